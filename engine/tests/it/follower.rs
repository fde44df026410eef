//! A follower, fed by hand: what it applies, what it waits for, and what it is after a restart; and a leader
//! that begins behind entries that are not known to be stable.

use std::sync::Arc;

use tercel_engine::order::delayed::{Delayed, DelayedConfig, Known};
use tercel_engine::order::follower::{FEEDER, Follower, acked, packet};
use tercel_engine::order::{Sealed, Sequencer};
use tercel_engine::replica::Replica;
use tercel_engine::replica::entry::{Entry, Head, Logged};
use tercel_engine::server::{Effect, Effects, Input, LogRoom, Server, ServerConfig};
use tercel_engine::time::Now;
use tercel_testkit::node::Node;
use tercel_testkit::node::clock::Clock;
use tercel_wire::id::{ClassId, ClientId, LogPosition, OpId, Oref, PageId, Stamp, ViewId};
use tercel_wire::log::Last;
use tercel_wire::message::{CommitEffects as Written, Write};
use tercel_wire::page::Page;

const VIEW: ViewId = ViewId::new(1, 9);
const CLASS: ClassId = ClassId(16);

/// The entries of its feeder, without a gap, as a leader orders them.
#[derive(Default)]
struct Order(Vec<Sealed>);

impl Order {
    fn new() -> Order {
        let mut order = Order::default();
        order.push(&Entry::Genesis);
        order.push(&Entry::View { kept: Stamp::ZERO, lost: false });
        order
    }

    fn push(&mut self, entry: &Entry<'_>) {
        let stamp = Stamp(self.0.len() as u64 + 1);
        self.0.push(Sealed { stamp, view: VIEW, kind: entry.kind(), payload: Arc::new(entry.encode()) });
    }

    /// An operation that writes these objects, so many bytes each.
    fn commit(&mut self, pages: std::ops::Range<u32>, slots: u16, bytes: usize) {
        let (object, op) = (object(bytes), self.op());
        self.push(&Entry::Commit(logged(op, pages, slots, &object)));
    }

    /// The same in pieces, without the entry that commits them; gives that.
    fn stage(&mut self, pages: std::ops::Range<u32>, slots: u16, bytes: usize) -> Entry<'static> {
        let (object, op) = (object(bytes), self.op());
        let whole = Entry::Commit(logged(op, pages, slots, &object)).encode();
        for (i, bytes) in whole.chunks(PIECE_BYTES).enumerate() {
            self.push(&Entry::Stage { op, at: (i * PIECE_BYTES) as u32, bytes });
        }
        Entry::CommitStaged { op, bytes: whole.len() as u32 }
    }

    fn op(&self) -> OpId {
        OpId { client: ClientId(5), slot: 0, seq: self.0.len() as u64, view: VIEW }
    }

    fn last(&self) -> Stamp {
        self.0.last().map_or(Stamp::ZERO, |e| e.stamp)
    }

    /// The digest of a replica that applied all of it and never stopped.
    fn digest(&self) -> u64 {
        let (mut replica, mut mob) = (Replica::new(), tercel_engine::pages::mob::Mob::default());
        for e in &self.0 {
            let entry = Entry::decode(e.kind, &e.payload).unwrap();
            replica.apply(e.stamp, e.view, &entry, &mut mob).unwrap();
            replica.recent.index_pending(usize::MAX);
        }
        replica.digest()
    }
}

const PIECE_BYTES: usize = 4_000;

fn object(bytes: usize) -> Vec<u8> {
    let mut object = vec![7; bytes];
    object[..4].copy_from_slice(&u32::from(CLASS.0).to_le_bytes());
    object
}

fn logged(op: OpId, pages: std::ops::Range<u32>, slots: u16, object: &[u8]) -> Logged<'_> {
    let orefs = pages.flat_map(|page| (0..slots).map(move |slot| (PageId::new(page).unwrap(), slot)));
    let writes = orefs.map(|(page, slot)| Write { oref: Oref::new(page, slot).unwrap(), new: true, object });
    let effects = Written { base: Stamp(2), reads: vec![], writes: writes.collect() };
    Logged { head: Head { op, ..Head::default() }, effects }
}

/// A follower, whose disk takes no time.
struct Fed {
    node: Node,
    config: ServerConfig,
    now: u64,
    /// The number of installs that the store still carries out.
    installs_left: u32,
    /// The stamp that it last reported to its feeder.
    acked: Stamp,
}

impl Fed {
    fn new(mob_bytes: usize) -> Fed {
        let config = ServerConfig { mob_bytes, cache_bytes: 1, ..ServerConfig::default() };
        let node = Node::new(Clock::new(1_000, 0), 0, 16 << 10);
        let mut fed = Fed { node, config, now: 1_000_000, installs_left: 0, acked: Stamp::ZERO };
        fed.restart();
        fed
    }

    /// Ends it, without what its log had not synced, and begins anew.
    fn restart(&mut self) {
        let follower = |last: Last| Box::new(Follower::new(last.stamp, last.position)) as Box<dyn Sequencer>;
        self.begin(Stamp(u64::MAX), follower);
    }

    /// Begins anew, with entries up to `stable` known to be that.
    fn begin(&mut self, stable: Stamp, sequencer: impl FnOnce(Last) -> Box<dyn Sequencer>) {
        let node = &mut self.node;
        node.running = None;
        let mut recovery = node.recovery(self.config.clone(), node.disk.checkpoint.as_ref()).unwrap();
        let opened = node.open(recovery.replay_from()).unwrap();
        recovery.only_stable_upto(stable);
        opened.replay(&mut recovery).unwrap();
        let sequencer = sequencer(opened.log.last());
        let out = node.begin_with(recovery, (opened.log, 0), (Now(0), VIEW), sequencer, ()).unwrap();
        self.installs_left = u32::MAX;
        self.perform(out);
    }

    fn server(&mut self) -> &mut Server {
        self.node.machine_mut().unwrap()
    }

    fn take(&mut self, input: Input<'_>) {
        let out = self.node.take(self.now, input);
        self.perform(out);
    }

    fn perform(&mut self, out: Effects) {
        for effect in out.list {
            match effect {
                Effect::Packet(FEEDER, bytes) => {
                    let acked = acked(&bytes).unwrap();
                    assert!(acked >= self.acked, "it has lost what it said that it has");
                    self.acked = acked;
                }
                Effect::Install { .. } if self.installs_left == 0 => {}
                deed => {
                    self.installs_left -= u32::from(matches!(deed, Effect::Install { .. }));
                    let word = self.node.carry_out(deed);
                    word.into_iter().for_each(|word| self.take(word));
                }
            }
        }
    }

    /// Begins anew in a group that knows the first two entries to be stable, and keeps so many of its log.
    fn begin_in_group(&mut self, order: &Order, kept: u64) {
        let config =
            DelayedConfig { stable_us: 0, reign_entries: u64::MAX, vacant_us: 0, others_suffice: false };
        let known = |last: Last| Known {
            view: VIEW,
            local_end: last.position,
            stable: (Stamp(2), LogPosition(2)),
            entries: order.0[2..].to_vec(),
        };
        self.begin(Stamp(2), |last| {
            let mut groups = (0..).map(|seed| Delayed::new(config, seed, Now(0), known(last)));
            Box::new(groups.find(|group| group.end().0 == kept).unwrap())
        });
        self.take(Input::Time);
        assert!(!self.server().is_leading() && self.server().visible() == Stamp(2));
    }

    /// Feeds it all that is behind what it has, each entry behind the one before.
    fn feed(&mut self, order: &Order) {
        let from = order.0.partition_point(|e| e.stamp <= self.acked);
        for i in from..order.0.len() {
            let before = if i == 0 { Stamp::ZERO } else { order.0[i - 1].stamp };
            self.take(Input::Packet(FEEDER, &packet(before, &order.0[i])));
        }
    }

    /// Everything in its log is durable.
    fn sync(&mut self) {
        let word = self.node.sync();
        word.into_iter().for_each(|word| self.take(word));
    }

    /// Lets it do what it wants to do at once.
    fn run_until_idle(&mut self) {
        for _ in 0..1_000 {
            let now = Now(self.now);
            if self.server().deadline().is_none_or(|d| d > now) {
                return;
            }
            self.take(Input::Time);
        }
        panic!("it goes on for ever");
    }

    fn is_at(&mut self, order: &Order) -> bool {
        let due = (order.last(), order.digest());
        self.server().visible() == order.last() && self.server().digest() == due
    }
}

#[test]
fn a_follower_goes_on_behind_a_large_transaction_of_few_objects() {
    let mut order = Order::new();
    let end = order.stage(8..10, 8, 200);
    order.push(&end);
    order.commit(8..9, 1, 20);
    let mut fed = Fed::new(1 << 20);
    fed.feed(&order);
    fed.sync();
    fed.run_until_idle();
    assert!(fed.is_at(&order), "{:?}", fed.server().digest());
}

#[test]
fn a_large_transaction_passes_through_a_smaller_buffer() {
    let mut order = Order::new();
    let end = order.stage(8..20, 8, 900);
    order.push(&end);
    order.commit(8..9, 1, 20);
    let mut fed = Fed::new(20_000);
    fed.feed(&order);
    fed.sync();
    fed.run_until_idle();
    assert!(fed.is_at(&order), "{:?}", fed.server().digest());
}

#[test]
fn a_follower_applies_what_its_own_disk_has_and_nothing_else() {
    let mut order = Order::new();
    order.commit(8..9, 1, 20);
    let mut fed = Fed::new(1 << 20);
    fed.feed(&order);
    assert_eq!((fed.server().visible(), fed.acked), (Stamp::ZERO, Stamp::ZERO));
    fed.sync();
    assert!(fed.is_at(&order) && fed.acked == order.last());
    order.commit(9..10, 1, 20);
    fed.feed(&order);
    fed.restart();
    assert_eq!(fed.server().visible(), fed.acked);
    fed.feed(&order);
    fed.sync();
    assert!(fed.is_at(&order));
}

#[test]
fn a_follower_restarts_from_its_own_checkpoint_and_log() {
    let mut order = Order::new();
    (8..60).for_each(|page| order.commit(page..page + 1, 4, 100));
    let mut fed = Fed::new(1 << 20);
    fed.feed(&order);
    fed.sync();
    // Two batches are stored, with a state that is ahead of the pages.
    fed.installs_left = 2;
    fed.take(Input::LogRoom(LogRoom::Tight));
    let checkpoint = fed.node.disk.checkpoint.clone().expect("a log that is too long is shortened");
    assert!(Stamp(1) < checkpoint.replay_from && checkpoint.replay_from <= checkpoint.applied);
    order.commit(8..12, 4, 100);
    fed.feed(&order);
    fed.sync();
    fed.restart();
    assert!(fed.is_at(&order), "{:?}", fed.server().digest());
    order.commit(40..44, 4, 100);
    fed.feed(&order);
    fed.sync();
    assert!(fed.is_at(&order));
}

#[test]
fn without_room_a_follower_waits_and_leaves_nothing_out() {
    let mut order = Order::new();
    (8..40).for_each(|page| order.commit(page..page + 1, 4, 400));
    let mut fed = Fed::new(8_000);
    fed.installs_left = 0;
    fed.feed(&order);
    fed.sync();
    let stopped = fed.server().visible();
    assert!(stopped < Stamp(20) && fed.server().suffix_bytes() > 10 * 1_600, "{stopped}");
    // What waits is in its log, and so it is not fed again.
    assert_eq!(fed.acked, order.last());
    fed.restart();
    assert!(fed.is_at(&order) && fed.server().suffix_bytes() == 0);
}

#[test]
fn a_follower_gives_pages_that_it_must_read_first() {
    let mut order = Order::new();
    (8..60).for_each(|page| order.commit(page..page + 1, 4, 100));
    let mut fed = Fed::new(8_000);
    fed.feed(&order);
    fed.sync();
    fed.run_until_idle();
    assert!(fed.is_at(&order) && fed.node.disk.pages.len() > 16);
    let mut asked = 0;
    for page in (8..60).map(|n| PageId::new(n).unwrap()) {
        let mut out = Effects::default();
        let mut found = fed.server().page(page, &mut out);
        if found.is_none() {
            asked += 1;
            assert!(matches!(out.list[..], [Effect::Read(..)]), "{:?}", out.list);
            fed.perform(out);
            found = fed.server().page(page, &mut Effects::default());
        }
        let bytes = found.flatten().expect("its bytes");
        assert_eq!(Page::parse(&bytes, page).unwrap().objects().count(), 4);
        let stored = fed.node.disk.pages.get(&page).cloned();
        assert_eq!(fed.server().page_over(page, stored).as_ref(), Some(&bytes));
    }
    assert!(asked > 16, "{asked}");
}

#[test]
fn leader_begins_behind_more_than_its_buffer_holds() {
    let mut order = Order::new();
    (8..40).for_each(|page| order.commit(page..page + 1, 4, 400));
    let mut fed = Fed::new(8_000);
    fed.feed(&order);
    fed.sync();
    fed.begin_in_group(&order, order.last().0);
    fed.installs_left = 0;
    fed.sync();
    let stopped = fed.server().visible();
    assert!(Stamp(2) < stopped && stopped < Stamp(20) && !fed.server().is_leading(), "{stopped}");
    fed.begin_in_group(&order, order.last().0);
    fed.sync();
    fed.run_until_idle();
    assert!(fed.server().is_leading() && fed.server().visible() == order.last().next());
}

#[test]
fn cut_entries_are_dropped_and_old_reports_ignored() {
    let mut order = Order::new();
    (8..12).for_each(|page| order.commit(page..page + 1, 4, 20));
    let mut fed = Fed::new(1 << 20);
    fed.feed(&order);
    fed.sync();
    fed.begin_in_group(&order, 4);
    // The view's own entry has taken the place of one that was cut.
    fed.take(Input::Written(0, LogPosition(6)));
    fed.take(Input::Time);
    assert!(!fed.server().is_leading());
    fed.sync();
    fed.take(Input::Time);
    order.0.truncate(4);
    let view = ViewId::new(2, fed.server().view().incarnation);
    let begins = Entry::View { kept: Stamp(4), lost: false };
    let payload = Arc::new(begins.encode());
    order.0.push(Sealed { stamp: Stamp(5), view, kind: begins.kind(), payload });
    assert!(fed.server().is_leading() && fed.is_at(&order));
}
