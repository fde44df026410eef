//! A member of a group that follows, fed by hand: what it applies, what it waits for, and what it is after a
//! restart; a leader that begins behind entries that are not known to be stable; and one that is deposed.

use std::cell::RefCell;
use std::sync::Arc;

use tercel_engine::Error;
use tercel_engine::order::quorum::members::{Member, Members};
use tercel_engine::order::quorum::packet::{Append, Check, Packet};
use tercel_engine::order::quorum::{Config, Quorum, Run, Start};
use tercel_engine::order::{Found, Sealed};
use tercel_engine::replica::Replica;
use tercel_engine::replica::entry::{Entry, Head, Logged};
use tercel_engine::server::{
    Conn, Effect, Effects, Input, Local, LocalConfig, LogRoom, Server, ServerConfig,
};
use tercel_engine::time::Now;
use tercel_engine::txn::{Home, Isolation, Port, Step, Tx};
use tercel_testkit::node::Node;
use tercel_testkit::node::clock::Clock;
use tercel_testkit::taken::Taken;
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{ClassId, ClientId, EntryId, LogPosition, MemberId, OpId, Oref, PageId, Stamp, ViewId};
use tercel_wire::message::{CommitEffects as Written, Refusal, Transfer, Write};
use tercel_wire::page::Page;

const VIEW: ViewId = ViewId::new(1, 9);
const CLASS: ClassId = ClassId(16);

/// The entries of its leader, without a gap, as a leader orders them.
#[derive(Default)]
struct Order(Vec<Sealed>);

impl Order {
    fn new() -> Order {
        let mut order = Order::default();
        order.push(&Entry::Genesis);
        order.push(&Entry::View { kept: Stamp::ZERO, lost: false });
        order
    }

    /// A commit for each of these pages.
    fn of(pages: std::ops::Range<u32>, slots: u16, bytes: usize) -> Order {
        let mut order = Order::new();
        pages.for_each(|page| order.commit(page..page + 1, slots, bytes));
        order
    }

    fn push(&mut self, entry: &Entry<'_>) {
        self.push_in(VIEW, entry);
    }

    fn push_in(&mut self, view: ViewId, entry: &Entry<'_>) {
        let stamp = Stamp(self.0.len() as u64 + 1);
        self.0.push(Sealed { stamp, view, kind: entry.kind(), payload: Arc::new(entry.encode()) });
    }

    fn end(&self) -> u64 {
        self.0.len() as u64
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

/// The member, and the one that leads it by hand.
const ME: MemberId = MemberId(1);
const LEADER: MemberId = MemberId(2);

/// A member, whose disk takes no time.
struct Fed {
    node: Node,
    config: ServerConfig,
    now: u64,
    /// The number of installs that the store still carries out.
    installs_left: u32,
    /// Its last report to its leader, and the number of the leader's packets.
    acked: u64,
    round: u64,
    /// A copy that is taken of it.
    taken: Taken,
}

impl Fed {
    fn new(mob_bytes: usize) -> Fed {
        let config = ServerConfig { mob_bytes, cache_bytes: 1, ..ServerConfig::default() };
        let node = Node::new(Clock::new(1_000, 0), 0, 16 << 10);
        let (now, taken) = (1_000_000, Taken::default());
        let mut fed = Fed { node, config, now, installs_left: 0, acked: 0, round: 0, taken };
        fed.begin(0, &[ME, LEADER]);
        fed
    }

    /// One whose log has all of the order, of which nothing is known to be stable.
    fn with(mob_bytes: usize, order: &Order) -> Fed {
        let mut fed = Fed::new(mob_bytes);
        fed.feed(order);
        fed.sync();
        fed
    }

    /// Ends it, without what its log had not synced, and begins anew. Its log says of so many entries that
    /// they are stable.
    fn begin(&mut self, stable: u64, voters: &[MemberId]) {
        let node = &mut self.node;
        node.running = None;
        let stable = stable.max(node.disk.stored_upto().0);
        let mut recovery = node.recovery(self.config.clone(), node.disk.checkpoint.as_ref()).unwrap();
        let opened = node.open(recovery.replay_from()).unwrap();
        for entry in opened.records {
            match entry.stamp.0 <= stable {
                true => recovery.replay(entry.view, entry.stamp, entry.kind, &entry.payload).unwrap(),
                false => recovery.keep(entry),
            }
        }
        let member = |id| Member { id, votes: voters.contains(&id), address: String::new() };
        let run = Run { view: VIEW, last: LogPosition(stable) };
        let start = Start {
            me: ME,
            promised: ViewId::NONE,
            begins: EntryId::default(),
            runs: (stable > 0).then_some(run).into_iter().collect(),
            stable: LogPosition(stable),
            stable_stamp: recovery.stamp(),
            members: Members::new([ME, LEADER].map(member).to_vec()).unwrap(),
            suffix: recovery.kept(),
            electorate: None,
            is_sure: true,
        };
        let order = Box::new(Quorum::new(Config::default(), start, 7, Now(0)));
        let out = node.begin_with(recovery, opened.log, (Now(0), VIEW), order, ()).unwrap();
        self.installs_left = u32::MAX;
        self.perform(out);
    }

    /// Begins anew as the only member that votes, which knows two entries to be stable, and leads.
    fn begin_alone(&mut self) {
        self.begin_alone_knowing(2);
    }

    /// The same, with so many entries known to be stable.
    fn begin_alone_knowing(&mut self, stable: u64) {
        self.begin(stable, &[ME]);
        (0..2).for_each(|_| {
            self.now += 1_000_000;
            self.take(Input::Time);
        });
        assert!(!self.server().is_leading() && self.server().visible() == Stamp(stable));
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
                Effect::Packet(_, bytes) => {
                    if let Ok(Packet::Acked { durable, .. }) = Packet::decode(&bytes) {
                        self.acked = durable.0;
                    }
                }
                Effect::Save(number, ..) => self.take(Input::Saved(number)),
                Effect::Send(_, bytes) => self.taken.push(&bytes),
                Effect::Members(_) => {}
                Effect::ReadLog(from, _) => {
                    let entries = self.node.open(Stamp::ZERO).unwrap().records;
                    let found = Found::Entries(entries.into_iter().skip(from.0 as usize - 1).collect());
                    self.take(Input::FoundLog(from, found));
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

    /// The leader sends all entries behind some, and says that so many are stable.
    fn feed_from(&mut self, order: &Order, from: u64, stable: u64) {
        let before = from.checked_sub(1).map_or(ViewId::NONE, |last| order.0[last as usize].view);
        self.round += 1;
        let packet = Packet::Append(Append {
            view: order.0.last().unwrap().view,
            round: self.round,
            before: EntryId { view: before, position: LogPosition(from) },
            stable: LogPosition(stable),
            rank: 0,
            asks: true,
            check: Check { above: LogPosition(stable), sum: 0 },
            entries: order.0[from as usize..].to_vec(),
        });
        self.take(Input::Packet(LEADER, &packet.encode()));
    }

    /// The leader sends what is behind what it has; nothing more is stable.
    fn feed(&mut self, order: &Order) {
        self.feed_from(order, self.acked, 0);
    }

    /// Everything is stable.
    fn release(&mut self, order: &Order) {
        self.feed_from(order, order.end(), order.end());
    }

    /// Everything in its log is durable.
    fn sync(&mut self) {
        let word = self.node.sync();
        word.into_iter().for_each(|word| self.take(word));
    }

    /// It is sent all, has all on its disk, and all is stable.
    fn follow(&mut self, order: &Order) {
        self.feed(order);
        self.sync();
        self.release(order);
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

    /// Asks for a copy, and for its parts until there are no more.
    fn copy(&mut self, conn: Conn) {
        self.taken = Taken::default();
        self.take(Input::Connected(conn, Default::default()));
        let mut transfer = Vec::new();
        Transfer { group: 0, member: ME }.encode(&mut transfer);
        self.ask(conn, Kind::Transfer, &transfer);
        while !self.taken.is_over() {
            self.taken.asked += 1;
            self.ask(conn, Kind::BackupNext, &[]);
            self.taken.hear().unwrap();
        }
        self.take(Input::Disconnected(conn));
    }

    fn ask(&mut self, conn: Conn, kind: Kind, body: &[u8]) {
        let header = Header { body_bytes: body.len() as u32, ..Header::new(kind, 1) };
        self.take(Input::Frame(conn, header, body));
    }

    /// The stamp of the youngest page that it has stored.
    fn youngest(&self) -> Stamp {
        let stamp = |(id, bytes): (&PageId, &Arc<Vec<u8>>)| Page::parse(bytes, *id).unwrap().stamp();
        self.node.disk.pages.iter().map(stamp).max().unwrap_or_default()
    }

    /// Recovers a replica up to a position, and goes on with that.
    fn recover(&mut self, order: &Order, upto: LogPosition) {
        let (config, checkpoint) = (self.config.clone(), self.node.disk.checkpoint.clone());
        let mut recovery = self.node.recovery(config, checkpoint.as_ref()).unwrap();
        for e in &order.0[..upto.0 as usize] {
            recovery.replay(e.view, e.stamp, e.kind, &e.payload).unwrap();
        }
        let mut out = Effects::default();
        self.server().rejoin(Now(2_000_000), recovery, &mut out).unwrap();
        self.perform(out);
    }

    fn is_at(&mut self, order: &Order) -> bool {
        let due = (order.last(), order.digest());
        self.server().visible() == order.last() && self.server().digest() == due
    }
}

#[test]
fn large_transaction_passes_through_any_buffer() {
    for (pages, bytes, buffer) in [(8..10, 200, 1 << 20), (8..20, 900, 20_000)] {
        let mut order = Order::new();
        let end = order.stage(pages, 8, bytes);
        order.push(&end);
        order.commit(8..9, 1, 20);
        let mut fed = Fed::new(buffer);
        fed.follow(&order);
        fed.run_until_idle();
        assert!(fed.is_at(&order), "{buffer}: {:?}", fed.server().digest());
    }
}

#[test]
fn follower_applies_what_is_stable_and_reports_its_disk() {
    let mut order = Order::new();
    order.commit(8..9, 1, 20);
    let mut fed = Fed::new(1 << 20);
    fed.feed(&order);
    assert_eq!((fed.server().visible(), fed.acked), (Stamp::ZERO, 0));
    fed.sync();
    assert_eq!((fed.server().visible(), fed.acked), (Stamp::ZERO, order.end()));
    fed.release(&order);
    assert!(fed.is_at(&order));
    // A quorum of others suffices, and its own disk need not have an entry that is stable.
    order.commit(9..10, 1, 20);
    fed.feed_from(&order, fed.acked, order.end());
    assert!(fed.is_at(&order) && fed.acked < order.end());
    fed.begin(fed.acked, &[ME, LEADER]);
    fed.follow(&order);
    assert!(fed.is_at(&order));
}

#[test]
fn a_follower_restarts_from_its_own_checkpoint_and_log() {
    let mut order = Order::of(8..60, 4, 100);
    let mut fed = Fed::new(1 << 20);
    fed.follow(&order);
    // Two batches are stored, with a state that is ahead of the pages.
    fed.installs_left = 2;
    fed.take(Input::LogRoom(LogRoom::Tight));
    let checkpoint = fed.node.disk.checkpoint.clone().expect("a log that is too long is shortened");
    assert!(Stamp(1) < checkpoint.replay_from && checkpoint.replay_from <= checkpoint.applied);
    order.commit(8..12, 4, 100);
    fed.follow(&order);
    fed.begin(order.end(), &[ME, LEADER]);
    assert!(fed.is_at(&order), "{:?}", fed.server().digest());
    order.commit(40..44, 4, 100);
    fed.follow(&order);
    assert!(fed.is_at(&order));
}

#[test]
fn without_room_a_follower_waits_and_leaves_nothing_out() {
    let order = Order::of(8..40, 4, 400);
    let mut fed = Fed::new(8_000);
    fed.installs_left = 0;
    fed.follow(&order);
    let stopped = fed.server().visible();
    assert!(stopped < Stamp(20) && fed.server().suffix_bytes() > 10 * 1_600, "{stopped}");
    // What waits is in its log, and so it is not fed again.
    assert_eq!(fed.acked, order.end());
    fed.begin(order.end(), &[ME, LEADER]);
    assert!(fed.is_at(&order) && fed.server().suffix_bytes() == 0);
}

#[test]
fn leader_begins_behind_more_than_its_buffer_holds() {
    let order = Order::of(8..40, 4, 400);
    let mut fed = Fed::with(8_000, &order);
    fed.begin_alone();
    fed.installs_left = 0;
    fed.sync();
    let stopped = fed.server().visible();
    assert!(Stamp(2) < stopped && stopped < Stamp(20) && !fed.server().is_leading(), "{stopped}");
    fed.begin_alone();
    fed.sync();
    fed.run_until_idle();
    assert!(fed.server().is_leading() && fed.server().visible() > order.last());
}

#[test]
fn transfer_keeps_what_other_members_lack() {
    let order = Order::of(8..60, 4, 100);
    let mut fed = Fed::with(1 << 20, &order);
    fed.begin_alone();
    fed.sync();
    fed.run_until_idle();
    assert!(fed.server().is_leading());
    // The order has not said yet what others need: they may need all of it.
    fed.node.running.as_mut().unwrap().log.keep = LogPosition(1);
    fed.take(Input::Connected(Conn(7), Default::default()));
    let mut transfer = Vec::new();
    Transfer { group: 0, member: ME }.encode(&mut transfer);
    for (kind, body) in [(Kind::Hello, Taken::hello(7)), (Kind::Transfer, transfer)] {
        let header = Header { body_bytes: body.len() as u32, ..Header::new(kind, 1) };
        fed.take(Input::Frame(Conn(7), header, &body));
    }
    assert_eq!(fed.node.running.as_ref().unwrap().log.keep, LogPosition::ZERO);
}

/// The next view keeps four entries, and begins.
fn begin_view(order: &mut Order, number: u32) {
    order.0.truncate(4);
    order.push_in(ViewId::new(number, 9), &Entry::View { kept: Stamp(4), lost: false });
}

#[test]
fn cut_entries_are_dropped_and_old_reports_ignored() {
    let mut order = Order::of(8..12, 4, 20);
    let mut fed = Fed::with(1 << 20, &order);
    begin_view(&mut order, 2);
    fed.feed_from(&order, 4, 0);
    // The view's own entry has taken the place of one that was cut.
    fed.take(Input::Written(0, LogPosition(6)));
    assert_eq!(fed.acked, 4);
    fed.sync();
    assert_eq!(fed.acked, order.end());
    fed.release(&order);
    assert!(fed.is_at(&order));
}

#[test]
fn entry_with_stamp_of_cut_one_is_stored_once_written() {
    let mut order = Order::of(8..12, 4, 20);
    let mut fed = Fed::with(1 << 20, &order);
    begin_view(&mut order, 2);
    fed.feed_from(&order, 4, order.end());
    assert!(fed.is_at(&order));
    fed.take(Input::LogRoom(LogRoom::Tight));
    assert!(fed.node.disk.checkpoint.is_none() && fed.node.disk.pages.is_empty());
    fed.sync();
    fed.take(Input::LogRoom(LogRoom::Tight));
    assert_eq!(fed.node.disk.checkpoint.as_ref().map(|c| c.applied), Some(order.last()));
}

#[test]
fn recovered_replica_takes_what_became_stable_meanwhile() {
    let mut order = Order::of(8..10, 4, 20);
    let mut fed = Fed::with(1 << 20, &order);
    fed.begin_alone();
    fed.sync();
    let leads = fed.server().view();
    assert!(fed.server().is_leading());
    order.push_in(leads, &Entry::View { kept: Stamp(4), lost: false });
    let next = ViewId::new(leads.number + 1, 9);
    order.push_in(next, &Entry::View { kept: Stamp(5), lost: false });
    // Its leader is deposed, and the order goes on while a replica is recovered.
    fed.feed_from(&order, 5, 0);
    let upto = fed.node.running.as_mut().unwrap().recovers.take().expect("a replica is recovered");
    order.push_in(next, &Entry::End(ClientId(5)));
    fed.follow(&order);
    fed.recover(&order, upto);
    assert!(fed.is_at(&order), "{:?}", fed.server().visible());
    let mut out = Effects::default();
    fed.server().flush(&mut out);
    assert!(!out.list.is_empty(), "its disk has all of it, so that its pages can be stored");
}

/// A program inside of the member.
struct Program<'f> {
    fed: &'f RefCell<Fed>,
    local: RefCell<Local>,
}

impl Port for Program<'_> {
    fn now(&self) -> Now {
        Now(self.fed.borrow().now)
    }

    fn drive(
        &self,
        _until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        for _ in 0..10 {
            let (now, mut out, mut fed) = (self.now(), Effects::default(), self.fed.borrow_mut());
            let mut local = self.local.borrow_mut();
            let step = fed.server().inside(now, &mut local, &mut out, |home| step(home, now));
            fed.perform(out);
            if step == Step::Done {
                return Ok(());
            }
        }
        Err(Error::Timeout)
    }

    fn back_off(&self, _: u64) {}
}

#[test]
fn token_of_deposed_member_is_of_its_history() {
    let mut order = Order::new();
    let mut fed = Fed::with(1 << 20, &order);
    fed.begin_alone();
    fed.sync();
    let leads = fed.server().view();
    assert!(fed.server().is_leading());
    order.push_in(leads, &Entry::View { kept: Stamp(2), lost: false });
    let fed = RefCell::new(fed);
    let program = Program { fed: &fed, local: RefCell::new(Local::new(LocalConfig::default())) };
    let tx = Tx::begin(&program, Isolation::Serializable).unwrap();
    // Its leader is deposed, and it follows the next view while the transaction is open.
    let next = ViewId::new(leads.number + 1, 9);
    order.push_in(next, &Entry::View { kept: Stamp(3), lost: false });
    fed.borrow_mut().feed_from(&order, 3, 3);
    let upto = fed.borrow_mut().node.running.as_mut().unwrap().recovers.take();
    fed.borrow_mut().recover(&order, upto.expect("a replica is recovered"));
    fed.borrow_mut().follow(&order);
    assert!(fed.borrow_mut().is_at(&order));
    assert_eq!(tx.roots().map(|roots| roots.len()), Ok(0));
    let token = tx.commit().unwrap().token;
    assert_eq!((token.view, token.stamp), (next, order.last()));
}

/// A member that has stored pages, and no checkpoint, and the order that it has followed.
fn installed() -> (Fed, Order) {
    let mut order = Order::new();
    order.commit(8..60, 4, 100);
    (8..60).for_each(|page| order.commit(page..page + 1, 4, 100));
    let mut fed = Fed::new(40_000);
    fed.follow(&order);
    assert!(fed.node.disk.checkpoint.is_none() && fed.youngest() > Stamp(3));
    (fed, order)
}

#[test]
fn member_begins_as_of_its_youngest_page() {
    let (mut fed, _) = installed();
    let youngest = fed.youngest();
    fed.begin(3, &[ME, LEADER]);
    assert!(fed.server().visible() >= youngest, "{} and {youngest}", fed.server().visible());
}

#[test]
fn copy_waits_until_state_reaches_pages() {
    let (mut fed, order) = installed();
    // As of a build that did not store how far they are.
    fed.node.disk.upto = Stamp::ZERO;
    fed.begin_alone_knowing(3);
    fed.copy(Conn(7));
    let refused = fed.taken.refused.take().expect("pages are ahead of the state");
    assert!(refused.reason == Refusal::Unavailable && refused.text.contains("ahead"), "{}", refused.text);
    fed.sync();
    fed.run_until_idle();
    fed.copy(Conn(8));
    let begun = fed.taken.transfer.expect("a copy begins");
    assert!(fed.taken.ended.is_some() && begun.stamp > order.last() && begun.stamp >= fed.youngest());
}
