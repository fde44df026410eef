//! A follower, fed by hand: what it applies, and what it waits for.

use std::collections::BTreeMap;
use std::sync::Arc;

use tercel_engine::order::Sealed;
use tercel_engine::order::follower::{FEEDER, Follower, packet};
use tercel_engine::replica::Replica;
use tercel_engine::replica::entry::{Entry, Head, Logged};
use tercel_engine::server::{Effect, Effects, Input, Recovery, Server, ServerConfig};
use tercel_engine::time::Now;
use tercel_wire::id::{ClassId, ClientId, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::message::{Effects as Written, Write};

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
            replica.recent.settle(usize::MAX);
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
    now: Now,
    pages: BTreeMap<PageId, Arc<Vec<u8>>>,
}

impl Node {
    fn new(mob_bytes: usize) -> Node {
        let config = ServerConfig { mob_bytes, ..ServerConfig::default() };
        let recovery = Recovery::new(config, SPACE, None, 0).unwrap();
        let sequencer = Follower::new(recovery.stamp());
        let mut out = Effects::default();
        let server = recovery.finish_with(Now(0), Box::new(sequencer), VIEW, &mut out).unwrap();
        Node { server, now: Now(1_000_000), pages: BTreeMap::new() }
    }

    fn take(&mut self, input: Input<'_>) {
        let mut out = Effects::default();
        self.server.handle(self.now, input, &mut out);
        self.perform(out);
    }

    fn perform(&mut self, out: Effects) {
        for effect in out.list {
            match effect {
                Effect::Install { view, pages, .. } => {
                    self.pages.extend(pages);
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

    /// Feeds it these entries, each behind the one before.
    fn feed(&mut self, order: &Order, from: usize) {
        for i in from..order.0.len() {
            let before = if i == 0 { Stamp::ZERO } else { order.0[i - 1].stamp };
            self.take(Input::Packet(FEEDER, &packet(before, &order.0[i])));
        }
    }

    /// Lets it do what it wants to do at once.
    fn settle(&mut self) {
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

#[test]
fn a_follower_goes_on_behind_a_large_transaction_of_few_objects() {
    let mut order = Order::new();
    let end = order.stage(8..10, 8, 200);
    order.push(&end);
    order.commit(8..9, 1, 20);
    let mut node = Node::new(1 << 20);
    node.feed(&order, 0);
    node.settle();
    assert!(node.is_at(&order), "{:?}", node.server.digest());
}

#[test]
fn a_large_transaction_passes_through_a_smaller_buffer() {
    let mut order = Order::new();
    let end = order.stage(8..20, 8, 900);
    order.push(&end);
    order.commit(8..9, 1, 20);
    let mut node = Node::new(20_000);
    node.feed(&order, 0);
    node.settle();
    assert!(node.is_at(&order), "{:?}", node.server.digest());
}
