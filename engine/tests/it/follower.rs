//! A follower, fed by hand: what it applies, what it waits for, and what it is after a restart.

use std::collections::BTreeMap;
use std::sync::Arc;

use tercel_engine::order::Sealed;
use tercel_engine::order::follower::{FEEDER, Follower, acked, packet};
use tercel_engine::replica::Replica;
use tercel_engine::replica::entry::{Entry, Head, Logged};
use tercel_engine::server::{
    Checkpoint, Effect, Effects, Input, LogRoom, Recovery, Server, ServerConfig, store,
};
use tercel_engine::time::Now;
use tercel_wire::id::{ClassId, ClientId, LogPosition, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::message::{CommitEffects as Written, Write};
use tercel_wire::page::Page;

const SPACE: SpaceId = SpaceId(77);
const VIEW: ViewId = ViewId::new(1, 9);
const CLASS: ClassId = ClassId(16);

/// What its feeder has to give: entries without a gap, as a leader orders them.
#[derive(Default)]
struct Order(Vec<Sealed>);

impl Order {
    fn new() -> Order {
        let mut order = Order::default();
        order.push(&Entry::Genesis);
        order.push(&Entry::View { kept: Stamp::ZERO });
        order
    }

    fn push(&mut self, entry: &Entry<'_>) {
        let stamp = Stamp(self.0.len() as u64 + 1);
        self.0.push(Sealed { stamp, view: VIEW, kind: entry.kind(), payload: entry.encode() });
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

/// A follower and its disk.
struct Node {
    server: Server,
    config: ServerConfig,
    now: Now,
    log: Vec<Sealed>,
    synced: usize,
    pages: BTreeMap<PageId, Arc<Vec<u8>>>,
    checkpoint: Option<Checkpoint>,
    /// How many installs the store still carries out.
    installs_left: u32,
    /// What it told its feeder last.
    acked: Stamp,
}

impl Node {
    fn new(mob_bytes: usize) -> Node {
        let config = ServerConfig { mob_bytes, cache_bytes: 1, ..ServerConfig::default() };
        let (server, out) = begin(&config, &[], None);
        let mut node = Node {
            server,
            config,
            now: Now(1_000_000),
            log: Vec::new(),
            synced: 0,
            pages: BTreeMap::new(),
            checkpoint: None,
            installs_left: u32::MAX,
            acked: Stamp::ZERO,
        };
        node.perform(out);
        node
    }

    /// Ends it, without what its log had not synced, and begins anew.
    fn restart(&mut self) {
        self.log.truncate(self.synced);
        let (server, out) = begin(&self.config, &self.log, self.checkpoint.as_ref());
        self.server = server;
        self.installs_left = u32::MAX;
        self.perform(out);
    }

    fn take(&mut self, input: Input<'_>) {
        let mut out = Effects::default();
        self.server.handle(self.now, input, &mut out);
        self.perform(out);
    }

    fn perform(&mut self, out: Effects) {
        for effect in out.list {
            match effect {
                Effect::Append(position, view, entry) => {
                    assert_eq!((position.0, view), (self.log.len() as u64 + 1, entry.view));
                    self.log.push(entry);
                }
                Effect::Packet(FEEDER, bytes) => {
                    let acked = acked(&bytes).unwrap();
                    assert!(acked >= self.acked, "it has lost what it said that it has");
                    self.acked = acked;
                }
                Effect::Install { .. } if self.installs_left == 0 => {}
                Effect::Install { view, pages, checkpoint } => {
                    self.installs_left -= 1;
                    store(pages, &mut self.pages);
                    let older = self.checkpoint.take();
                    self.checkpoint = match checkpoint {
                        Some(c) => Some(c.over(older)),
                        None => older,
                    };
                    self.take(Input::Installed(view));
                }
                Effect::Read(view, page) => {
                    let found = self.pages.get(&page).map(|bytes| bytes.to_vec());
                    self.take(Input::Read(view, page, Ok(found)));
                }
                Effect::Truncate(_) => {}
                other => panic!("{other:?}"),
            }
        }
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
        self.synced = self.log.len();
        if let Some(last) = self.log.last() {
            self.take(Input::Written(last.view, LogPosition(self.synced as u64)));
        }
    }

    /// Lets it do what it wants to do at once.
    fn run_until_idle(&mut self) {
        for _ in 0..1_000 {
            if self.server.deadline().is_none_or(|d| d > self.now) {
                return;
            }
            self.take(Input::Time);
        }
        panic!("it goes on for ever");
    }

    fn is_at(&self, order: &Order) -> bool {
        self.server.visible() == order.last() && self.server.digest() == (order.last(), order.digest())
    }
}

/// Begins from a checkpoint and a log from the first entry on.
fn begin(config: &ServerConfig, log: &[Sealed], checkpoint: Option<&Checkpoint>) -> (Server, Effects) {
    let stored_end = if log.is_empty() { 0 } else { PageId::MAX.get() };
    let mut recovery = Recovery::new(config.clone(), SPACE, checkpoint, stored_end).unwrap();
    for e in log {
        recovery.replay(e.view, e.stamp, e.kind, &e.payload).unwrap();
    }
    let sequencer = Follower::new(recovery.stamp(), LogPosition(log.len() as u64));
    let mut out = Effects::default();
    let server = recovery.finish_with(Now(0), Box::new(sequencer), VIEW, &mut out).unwrap();
    (server, out)
}

#[test]
fn a_follower_goes_on_behind_a_large_transaction_of_few_objects() {
    let mut order = Order::new();
    let end = order.stage(8..10, 8, 200);
    order.push(&end);
    order.commit(8..9, 1, 20);
    let mut node = Node::new(1 << 20);
    node.feed(&order);
    node.sync();
    node.run_until_idle();
    assert!(node.is_at(&order), "{:?}", node.server.digest());
}

#[test]
fn a_large_transaction_passes_through_a_smaller_buffer() {
    let mut order = Order::new();
    let end = order.stage(8..20, 8, 900);
    order.push(&end);
    order.commit(8..9, 1, 20);
    let mut node = Node::new(20_000);
    node.feed(&order);
    node.sync();
    node.run_until_idle();
    assert!(node.is_at(&order), "{:?}", node.server.digest());
}

#[test]
fn a_follower_applies_what_its_own_disk_has_and_nothing_else() {
    let mut order = Order::new();
    order.commit(8..9, 1, 20);
    let mut node = Node::new(1 << 20);
    node.feed(&order);
    assert_eq!((node.server.visible(), node.acked), (Stamp::ZERO, Stamp::ZERO));
    node.sync();
    assert!(node.is_at(&order) && node.acked == order.last());
    order.commit(9..10, 1, 20);
    node.feed(&order);
    node.restart();
    assert_eq!(node.server.visible(), node.acked);
    node.feed(&order);
    node.sync();
    assert!(node.is_at(&order));
}

#[test]
fn a_follower_restarts_from_its_own_checkpoint_and_log() {
    let mut order = Order::new();
    (8..60).for_each(|page| order.commit(page..page + 1, 4, 100));
    let mut node = Node::new(1 << 20);
    node.feed(&order);
    node.sync();
    // Two batches are stored, with a state that is ahead of the pages.
    node.installs_left = 2;
    node.take(Input::LogRoom(LogRoom::Tight));
    let checkpoint = node.checkpoint.clone().expect("a log that is too long is shortened");
    assert!(Stamp(1) < checkpoint.replay_from && checkpoint.replay_from <= checkpoint.applied);
    order.commit(8..12, 4, 100);
    node.feed(&order);
    node.sync();
    node.restart();
    assert!(node.is_at(&order), "{:?}", node.server.digest());
    order.commit(40..44, 4, 100);
    node.feed(&order);
    node.sync();
    assert!(node.is_at(&order));
}

#[test]
fn without_room_a_follower_waits_and_leaves_nothing_out() {
    let mut order = Order::new();
    (8..40).for_each(|page| order.commit(page..page + 1, 4, 400));
    let mut node = Node::new(8_000);
    node.installs_left = 0;
    node.feed(&order);
    node.sync();
    let stopped = node.server.visible();
    assert!(stopped < Stamp(20) && node.server.suffix_bytes() > 10 * 1_600, "{stopped}");
    // What waits is in its log, and so it is not fed again.
    assert_eq!(node.acked, order.last());
    node.restart();
    assert!(node.is_at(&order) && node.server.suffix_bytes() == 0);
}

#[test]
fn a_follower_gives_pages_that_it_must_read_first() {
    let mut order = Order::new();
    (8..60).for_each(|page| order.commit(page..page + 1, 4, 100));
    let mut node = Node::new(8_000);
    node.feed(&order);
    node.sync();
    node.run_until_idle();
    assert!(node.is_at(&order) && node.pages.len() > 16);
    let mut asked = 0;
    for page in (8..60).map(|n| PageId::new(n).unwrap()) {
        let mut out = Effects::default();
        let mut found = node.server.page(page, &mut out);
        if found.is_none() {
            asked += 1;
            assert!(matches!(out.list[..], [Effect::Read(..)]), "{:?}", out.list);
            node.perform(out);
            found = node.server.page(page, &mut Effects::default());
        }
        let bytes = found.flatten().expect("its bytes");
        assert_eq!(Page::parse(&bytes, page).unwrap().objects().count(), 4);
        let stored = node.pages.get(&page).cloned();
        assert_eq!(node.server.page_over(page, stored).as_ref(), Some(&bytes));
    }
    assert!(asked > 16, "{asked}");
}
