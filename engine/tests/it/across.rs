//! Parts of transactions over several spaces, at the server of one of them, spoken to by hand: what is held
//! meanwhile, what a restart keeps, and what is asked of the other spaces.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::world::hand::{A, B, Hand, Said, Work, object, outcomes, recovery, refused};
use tercel_engine::limits::{AWAITING_MAX, HELD_US, PREPARES_CLIENT_MAX};
use tercel_engine::order::Sealed;
use tercel_engine::replica::Replica;
use tercel_engine::replica::entry::Entry;
use tercel_engine::replica::saved::Saved;
use tercel_engine::server::{CollectConfig, Conn, Consult, Consulted, Input, Recovery, ServerConfig};
use tercel_wire::frame::Kind;
use tercel_wire::id::{ClassId, ClientId, OpId, Oref, SpaceId, Stamp, ViewId};
use tercel_wire::message::{
    AwaitSettled, BackupPart, Collect, Decide, Decided, Decision, Depend, Held, Inquire, Limit, Ping, Pong,
    Prepare, Prepared, Refusal, Settle, Write,
};
use tercel_wire::vector::{Seen, Vector};

const OTHER: SpaceId = SpaceId(99);

/// A server with two objects, and clients 5 at [`A`] and 6 at [`B`].
pub struct Space {
    pub hand: Hand,
    class: ClassId,
    pub x: Oref,
    y: Oref,
    seq: u64,
}

pub fn space() -> Space {
    let mut hand = Hand::greeted(recovery(&[]), Vec::new());
    let class = hand.define(A);
    let page = hand.lease(A, 1)[0];
    let [x, y] = [0, 1].map(|slot| Oref::new(page, slot).unwrap());
    let mut space = Space { hand, class, x, y, seq: 0 };
    let said = space.commit(5, &[], &[(x, true, 1), (y, true, 2)]);
    assert!(matches!(outcomes(&said)[..], [Ok(_)]));
    space
}

impl Space {
    fn op(&mut self, client: u64) -> OpId {
        self.seq += 1;
        OpId { client: ClientId(client), slot: self.seq as u16, seq: 1, view: self.hand.view() }
    }

    /// The effects as bytes.
    fn effects(&self, reads: &[Oref], writes: &[(Oref, bool, u8)]) -> Vec<u8> {
        let objects: Vec<_> = writes.iter().map(|(.., n)| object(self.class, *n)).collect();
        let write =
            |((oref, new, _), object): (&(Oref, bool, u8), _)| Write { oref: *oref, new: *new, object };
        let writes = writes.iter().zip(objects.iter().map(Vec::as_slice)).map(write).collect();
        let mut bytes = Vec::new();
        Work { base: self.hand.server.visible(), reads: reads.to_vec(), writes }.encode(&mut bytes);
        bytes
    }

    /// Commits, and has it durable.
    fn commit(&mut self, client: u64, reads: &[Oref], writes: &[(Oref, bool, u8)]) -> Said {
        let (op, bytes) = (self.op(client), self.effects(reads, writes));
        let conn = if client == 5 { A } else { B };
        let work = Work::decode(&bytes).unwrap();
        let mut said = self.hand.commit(conn, op, &work);
        said.extend(self.hand.sync());
        said
    }

    /// Prepares a part of client 5, of the transaction of this number at [`OTHER`].
    pub fn prepare(
        &mut self,
        of: u64,
        reads: &[Oref],
        writes: &[(Oref, bool, u8)],
    ) -> Result<Stamp, Refusal> {
        let (op, bytes) = (self.op(5), self.effects(reads, writes));
        let prepare =
            Prepare { op, of: transaction(of), coordinator: OTHER, seen: Vector::default(), bytes: &bytes };
        let mut said = self.hand.send(A, Kind::Prepare, |o| prepare.encode(o));
        said.extend(self.hand.sync());
        outcomes(&said)[0]
    }

    pub fn settle(&mut self, of: u64, prepared: Stamp, is_committed: bool) -> Said {
        self.settle_by(A, of, prepared, is_committed)
    }

    pub fn settle_by(&mut self, conn: Conn, of: u64, prepared: Stamp, is_committed: bool) -> Said {
        let seen = is_committed.then(decided_there);
        let settle = Settle { of: transaction(of), coordinator: OTHER, prepared, seen, view: None };
        let mut said = self.hand.send(conn, Kind::Settle, |o| settle.encode(o));
        said.extend(self.hand.sync());
        said
    }

    /// The value of an object as anyone reads it.
    pub fn value(&mut self, oref: Oref) -> Option<u8> {
        self.seq += 1;
        let fetch = self.seq;
        self.hand.seen(B, oref, fetch)
    }

    /// The server that comes after it.
    fn restarted(self) -> Space {
        Space { hand: self.hand.next(self.hand.log.len()), ..self }
    }

    pub fn pass(&mut self, us: u64) -> Said {
        self.hand.now = self.hand.now.plus_us(us);
        self.hand.turn()
    }
}

fn transaction(n: u64) -> OpId {
    OpId { client: ClientId(77), slot: 3, seq: n, view: ViewId::new(1, 1) }
}

/// The states on which a transaction rests that was decided at [`OTHER`].
pub fn decided_there() -> Vector {
    let mut seen = Vector::default();
    seen.add(OTHER, Seen::at(ViewId::new(1, 1), Stamp(40)));
    seen
}

pub fn has(said: &Said, kind: Kind) -> bool {
    said.iter().any(|(_, of, ..)| *of == kind)
}

#[test]
fn part_is_seen_once_it_is_settled() {
    let mut s = space();
    let prepared = s.prepare(1, &[s.y], &[(s.x, false, 7)]).unwrap();
    assert_eq!((s.value(s.x), s.hand.stat("prepared")), (Some(1), 1));
    assert!(has(&s.settle(1, prepared, true), Kind::Settled));
    assert_eq!((s.value(s.x), s.hand.stat("prepared")), (Some(7), 0));
    // The client, the coordinator and an operator may bring the same end.
    assert!(has(&s.settle(1, prepared, true), Kind::Settled));
    assert!(has(&s.settle(1, prepared, false), Kind::Settled));
    assert_eq!(s.value(s.x), Some(7));
}

#[test]
fn commits_wait_for_what_is_held() {
    for is_committed in [true, false] {
        let mut s = space();
        let prepared = s.prepare(1, &[s.y], &[(s.x, false, 7)]).unwrap();
        assert!(outcomes(&s.commit(6, &[s.x], &[(s.x, false, 9)])).is_empty(), "it writes what is written");
        assert!(outcomes(&s.commit(6, &[s.y], &[(s.y, false, 9)])).is_empty(), "it writes what was read");
        let said = s.settle(1, prepared, is_committed);
        let ends = outcomes(&said);
        let (x, y) = (s.value(s.x), s.value(s.y));
        match is_committed {
            true => {
                // The refusal comes once it is visible for what: the transaction may run again then.
                assert!(matches!(ends[..], [Ok(_), Err(Refusal::Conflict(_))]), "{ends:?}");
                assert_eq!((x, y), (Some(7), Some(9)));
            }
            false => {
                assert!(matches!(ends[..], [Ok(_), Ok(_)]), "{ends:?}");
                assert_eq!((x, y), (Some(9), Some(9)));
            }
        }
    }
}

#[test]
fn commit_waits_for_a_bounded_time() {
    let mut s = space();
    s.prepare(1, &[], &[(s.x, false, 7)]).unwrap();
    assert!(outcomes(&s.commit(6, &[s.x], &[(s.y, false, 9)])).is_empty());
    assert!(outcomes(&s.pass(HELD_US - 1)).is_empty());
    assert_eq!(outcomes(&s.pass(1)), [Err(Refusal::Conflict(s.x))]);
}

#[test]
fn part_that_meets_a_hold_is_refused() {
    let mut s = space();
    let first = s.prepare(1, &[s.y], &[(s.x, false, 7)]).unwrap();
    assert_eq!(s.prepare(2, &[], &[(s.x, false, 8)]), Err(Refusal::Conflict(s.x)));
    assert_eq!(s.prepare(3, &[], &[(s.y, false, 8)]), Err(Refusal::Conflict(s.y)));
    let second = s.prepare(4, &[s.y], &[]).unwrap();
    s.settle(1, first, false);
    assert_eq!(s.prepare(5, &[], &[(s.y, false, 8)]), Err(Refusal::Conflict(s.y)), "read by another, too");
    s.settle(4, second, true);
    s.prepare(6, &[], &[(s.y, false, 8)]).unwrap();
}

#[test]
fn holds_outlive_the_server() {
    let mut s = space();
    let prepared = s.prepare(1, &[s.y], &[(s.x, false, 7)]).unwrap();
    let mut s = s.restarted();
    assert_eq!(s.prepare(2, &[], &[(s.y, false, 8)]), Err(Refusal::Conflict(s.y)));
    assert_eq!(s.value(s.x), Some(1));
    s.settle(1, prepared, true);
    let mut s = s.restarted();
    assert_eq!((s.value(s.x), s.hand.stat("prepared")), (Some(7), 0));
}

#[test]
fn checkpoint_has_what_is_prepared() {
    let mut s = space();
    let page = s.hand.lease(A, 1)[0];
    let new = Oref::new(page, 0).unwrap();
    let prepared = s.prepare(1, &[s.y], &[(s.x, false, 7), (new, true, 3)]).unwrap();
    s.hand.flush();
    let checkpoint = s.hand.installs.iter().flatten().last().cloned().expect("it was stored");
    assert_eq!(checkpoint.applied, s.hand.last());
    // All that was logged before is gone; the pages are as they were stored.
    let stored: BTreeMap<_, _> = s.hand.pages.drain(..).collect();
    let end = checkpoint.applied;
    let recovered = Recovery::new(ServerConfig::default(), SpaceId(1), Some(&checkpoint), 10).unwrap();
    let log = s.hand.log.clone();
    let mut s = Space { hand: Hand::greeted(recovered, log), ..s };
    assert!(s.hand.last() > end);
    s.settle(1, prepared, true);
    assert!(s.hand.reads.contains(&s.x.page()), "the room there is not known");
    while let Some(read) = s.hand.reads.pop() {
        let bytes = stored.get(&read).and_then(|bytes| bytes.as_ref()).map(|bytes| bytes.to_vec());
        s.hand.input(Input::Read(s.hand.view(), read, Ok(bytes)));
    }
    s.hand.sync();
    s.hand.fetch(B, new.page(), 1_000);
    while let Some(read) = s.hand.reads.pop() {
        s.hand.input(Input::Read(s.hand.view(), read, Ok(None)));
    }
    assert_eq!(s.hand.stat("prepared"), 0);
    assert_eq!((s.value(s.x), s.value(new)), (Some(7), Some(3)));
}

#[test]
fn places_of_a_part_outlive_its_session() {
    let mut s = space();
    let page = s.hand.lease(A, 1)[0];
    let new = Oref::new(page, 0).unwrap();
    let prepared = s.prepare(1, &[], &[(new, true, 3)]).unwrap();
    s.hand.send(A, Kind::Bye, |_| ());
    s.hand.sync();
    let other = Conn(3);
    s.hand.greet(other, 8, 1);
    s.hand.acknowledge(other, s.hand.last());
    s.hand.acknowledge(B, s.hand.last());
    for _ in 0..4 {
        assert!(!s.hand.lease(other, 64).contains(&page), "the page was given to another client");
    }
    s.hand.greet(A, 9, 1);
    s.settle(1, prepared, true);
    assert_eq!(s.value(new), Some(3));
}

#[test]
fn undecided_transaction_is_aborted_for_good() {
    let mut s = space();
    let (op, bytes) = (s.op(5), s.effects(&[], &[(s.x, false, 7)]));
    let decision = |s: &mut Space| {
        let said = s.hand.send(B, Kind::Inquire, |o| Inquire { of: op }.encode(o));
        let (.., body) = said.iter().find(|(_, kind, ..)| *kind == Kind::Decided).expect("decided");
        Decided::decode(body).unwrap().decision
    };
    let parts = vec![Prepared { space: OTHER, view: op.view, at: Stamp(30), writes: true }];
    let decide = Decide { op, parts, seen: Vector::default(), bytes: &bytes };
    assert_eq!(decision(&mut s), Decision::Aborted);
    let said = s.hand.send(A, Kind::Decide, |o| decide.encode(o));
    assert_eq!(outcomes(&said), [Err(Refusal::NotExecuted)]);
    assert_eq!((decision(&mut s), s.value(s.x)), (Decision::Aborted, Some(1)));
}

#[test]
fn decision_is_told_until_parts_are_settled() {
    let mut s = space();
    let (op, bytes) = (s.op(5), s.effects(&[], &[(s.x, false, 7)]));
    let parts = vec![Prepared { space: OTHER, view: op.view, at: Stamp(30), writes: true }];
    let decide = Decide { op, parts, seen: decided_there(), bytes: &bytes };
    let mut said = s.hand.send(A, Kind::Decide, |o| decide.encode(o));
    let inquire = |s: &mut Space| {
        let said = s.hand.send(B, Kind::Inquire, |o| Inquire { of: op }.encode(o));
        Decided::decode(&said[0].3).unwrap()
    };
    assert_eq!(inquire(&mut s).decision, Decision::Pending, "it is not durable yet");
    said.extend(s.hand.sync());
    let [Ok(decided)] = outcomes(&said)[..] else { panic!("{said:?}") };
    assert!(s.hand.consults.is_empty(), "the client tells it first");
    let told = inquire(&mut s);
    let seen = told.seen.get(SpaceId(1)).map(|seen| seen.at);
    assert_eq!((told.decision, seen), (Decision::Committed, Some(decided)));
    let mut s = s.restarted();
    assert_eq!(inquire(&mut s), told);
    s.pass(1);
    let consult = s.hand.consults.pop().expect("the participant is told");
    let Consult::Settle { participant, settle } = &consult else { panic!("{consult:?}") };
    assert_eq!((*participant, settle.prepared, settle.seen.as_ref()), (OTHER, Stamp(30), Some(&told.seen)));
    // It is told again if it was not reached.
    s.hand.input(Input::Consulted(s.hand.view(), consult.clone(), Consulted::Failed("gone".into())));
    s.pass(9_999);
    assert!(s.hand.consults.is_empty());
    s.pass(1);
    assert_eq!(s.hand.consults.pop().as_ref(), Some(&consult));
    s.hand.input(Input::Consulted(s.hand.view(), consult, Consulted::Settled));
    s.hand.turn();
    s.hand.sync();
    assert_eq!(s.hand.stat("decided"), 0);
    s.pass(60_000_000);
    assert!(s.hand.consults.is_empty(), "it is forgotten");
}

#[test]
fn participant_asks_what_became_of_its_part() {
    for (decision, seen, value) in
        [(Decision::Committed, decided_there(), 7), (Decision::Aborted, Vector::default(), 1)]
    {
        let mut s = space();
        let prepared = s.prepare(1, &[], &[(s.x, false, 7)]).unwrap();
        let mut s = s.restarted();
        s.pass(1);
        let consult = s.hand.consults.pop().expect("the coordinator is asked");
        assert_eq!(consult, Consult::Inquire { coordinator: OTHER, of: transaction(1), prepared });
        s.hand.input(Input::Consulted(s.hand.view(), consult, Consulted::Decided(decision, seen)));
        s.hand.sync();
        assert_eq!((s.value(s.x), s.hand.stat("prepared")), (Some(value), 0));
    }
}

#[test]
fn echo_names_what_unsettled_parts_write() {
    let mut s = space();
    let held = |s: &mut Space| {
        let mut said = s.hand.send(B, Kind::Ping, |o| Ping { of: None }.encode(o));
        said.extend(s.hand.sync());
        let (.., body) = said.into_iter().find(|(_, kind, ..)| *kind == Kind::Pong).expect("an echo");
        Pong::decode(&body).unwrap().held
    };
    assert_eq!(held(&mut s), None);
    let prepared = s.prepare(1, &[], &[(s.x, false, 7)]).unwrap();
    let wait = s.hand.send(A, Kind::AwaitSettled, |o| AwaitSettled { upto: prepared, of: None }.encode(o));
    assert!(!has(&wait, Kind::SettledUpto));
    let of_part = Held { upto: prepared, decider: OTHER, objects: Some(vec![(s.x, prepared)]) };
    assert_eq!(held(&mut s), Some(of_part.clone()));
    s.pass(2_100_000);
    assert_eq!(held(&mut s), Some(of_part));
    let said = s.settle(1, prepared, true);
    assert!(has(&said, Kind::SettledUpto), "{said:?}");
    assert_eq!(held(&mut s), None);
}

/// Asks to decide a transaction with a part at [`OTHER`]; nothing is durable yet.
fn decide(s: &mut Space) -> Said {
    let (op, bytes) = (s.op(5), s.effects(&[], &[(s.x, false, 7)]));
    let parts = vec![Prepared { space: OTHER, view: op.view, at: Stamp(30), writes: true }];
    let decide = Decide { op, parts, seen: Vector::default(), bytes: &bytes };
    s.hand.send(A, Kind::Decide, |o| decide.encode(o))
}

#[test]
fn decision_that_may_be_lost_is_not_told() {
    let mut s = space();
    decide(&mut s);
    s.pass(500_000);
    assert!(s.hand.consults.is_empty());
    s.hand.sync();
    s.pass(1_000_000);
    assert!(matches!(s.hand.consults[..], [Consult::Settle { .. }]));
}

#[test]
fn large_transaction_meets_holds() {
    let mut s = space();
    let z = Oref::new(s.x.page(), 2).unwrap();
    s.commit(5, &[], &[(z, true, 3)]);
    s.prepare(1, &[s.y], &[(s.x, false, 7)]).unwrap();
    let others: Vec<Oref> = (0..17_000u32).map(|n| Oref::from_raw((100 << 9) + n).unwrap()).collect();
    let reads_held: Vec<Oref> = others.iter().copied().chain([s.x]).collect();
    for (reads, writes) in [(&reads_held, (z, 1)), (&others, (s.y, 9))] {
        let mut said = s.commit(6, reads, &[(writes.0, false, writes.1)]);
        said.extend(s.hand.finish().0);
        assert!(matches!(outcomes(&said)[..], [Err(Refusal::Conflict(_))]), "{said:?}");
    }
}

#[test]
fn unseen_prepare_is_not_called_settled() {
    let mut s = space();
    let later = Stamp(s.hand.last().0 + 5);
    let said = s.settle(1, later, true);
    assert_eq!(refused(&said).map(|(reason, _)| reason), Some(Refusal::Unavailable));
    let earlier = s.hand.server.visible();
    assert!(has(&s.settle(1, earlier, true), Kind::Settled));
}

#[test]
fn part_before_a_restore_waits_for_an_operator() {
    let mut s = space();
    let prepared = s.prepare(1, &[], &[(s.x, false, 7)]).unwrap();
    let config = ServerConfig { view_first: 5, ..ServerConfig::default() };
    let mut recovery = Recovery::new(config, SpaceId(1), None, 0).unwrap();
    s.hand.log.iter().for_each(|e| recovery.replay(e.view, e.stamp, e.kind, &e.payload).unwrap());
    let mut s = Space { hand: Hand::greeted(recovery, s.hand.log.clone()), ..s };
    s.pass(2_000_000);
    assert!(s.hand.consults.is_empty(), "the coordinator may have forgotten the transaction");
    let said = s.hand.send(B, Kind::Stat, |_| ());
    let status = String::from_utf8(said[0].3.clone()).unwrap();
    assert!(status.contains("before this space was restored"), "{status}");
    s.settle(1, prepared, false);
    assert_eq!(s.hand.stat("prepared"), 0);
}

#[test]
fn forgotten_space_is_told_nothing() {
    let mut s = space();
    decide(&mut s);
    s.hand.sync();
    assert_eq!(s.hand.stat("decided"), 1);
    let depend = Depend { on: Vector::forgetting(OTHER) };
    s.hand.send(A, Kind::Depend, |o| depend.encode(o));
    s.hand.sync();
    s.pass(500_000);
    assert_eq!((s.hand.stat("decided"), s.hand.consults.len()), (0, 0));
}

#[test]
fn settlement_waits_for_room_among_dependencies() {
    let mut s = space();
    let spaces = |ids: std::ops::Range<u64>| {
        let mut on = Vector::default();
        ids.for_each(|id| on.add(SpaceId(1_000 + id), Seen::at(ViewId::new(1, 1), Stamp(4))));
        on
    };
    let prepared = s.prepare(1, &[], &[(s.x, false, 7)]).unwrap();
    s.hand.send(A, Kind::Depend, |o| Depend { on: spaces(0..60) }.encode(o));
    s.hand.sync();
    let seen = Some(spaces(60..70));
    let settle = Settle { of: transaction(1), coordinator: OTHER, prepared, seen, view: None };
    s.hand.send(A, Kind::Settle, |o| settle.encode(o));
    s.hand.sync();
    assert_eq!((s.value(s.x), s.hand.stat("prepared")), (Some(1), 1));
    for gone in 0..8 {
        let depend = Depend { on: Vector::forgetting(SpaceId(1_000 + gone)) };
        s.hand.send(A, Kind::Depend, |o| depend.encode(o));
    }
    s.pass(1);
    s.hand.sync();
    assert_eq!((s.value(s.x), s.hand.stat("prepared")), (Some(7), 0));
}

#[test]
fn parts_of_one_client_are_bounded() {
    let mut s = space();
    for n in 0..PREPARES_CLIENT_MAX as u64 {
        s.seq = n % 500;
        let op = OpId { client: ClientId(5), slot: s.seq as u16, seq: 2 + n, view: s.hand.view() };
        let bytes = s.effects(&[], &[]);
        let seen = Vector::default();
        let prepare = Prepare { op, of: transaction(n + 1), coordinator: OTHER, seen, bytes: &bytes };
        s.hand.send(A, Kind::Prepare, |o| prepare.encode(o));
    }
    s.hand.sync();
    s.seq = 600;
    assert_eq!(s.prepare(9_999, &[], &[]), Err(Refusal::Full(Limit::Buffer)));
}

const THIRD: SpaceId = SpaceId(98);

fn inquire_of(s: &mut Space, of: OpId) -> Decided {
    let said = s.hand.send(B, Kind::Inquire, |o| Inquire { of }.encode(o));
    let (.., body) = said.iter().find(|(_, kind, ..)| *kind == Kind::Decided).expect("decided");
    Decided::decode(body).unwrap()
}

/// Decides a transaction of this operation with parts in these spaces, durably.
fn decide_with(s: &mut Space, op: OpId, spaces: &[SpaceId]) -> Said {
    let bytes = s.effects(&[], &[(s.x, false, 7)]);
    let part = |space: &SpaceId| Prepared { space: *space, view: op.view, at: Stamp(30), writes: true };
    let parts = spaces.iter().map(part).collect();
    let decide = Decide { op, parts, seen: Vector::default(), bytes: &bytes };
    let mut said = s.hand.send(A, Kind::Decide, |o| decide.encode(o));
    said.extend(s.hand.sync());
    assert!(matches!(outcomes(&said)[..], [Ok(_)]), "{said:?}");
    said
}

fn forget(s: &mut Space, space: SpaceId) {
    s.hand.send(A, Kind::Depend, |o| Depend { on: Vector::forgetting(space) }.encode(o));
    s.hand.sync();
}

/// The server of this log, of which everything before a view may be of another history.
fn recovered(log: &[Sealed], view_first: u32) -> Hand {
    let config = ServerConfig { view_first, ..ServerConfig::default() };
    let mut recovery = Recovery::new(config, SpaceId(1), None, 0).unwrap();
    log.iter().for_each(|e| recovery.replay(e.view, e.stamp, e.kind, &e.payload).unwrap());
    Hand::greeted(recovery, log.to_vec())
}

/// The server of this log, behind a view that may have lost entries.
fn unsure(log: &[Sealed]) -> Hand {
    let (mut log, view) = (log.to_vec(), Entry::View { kept: log.last().unwrap().stamp, lost: true });
    let last = log.last().unwrap();
    log.push(Sealed {
        stamp: Stamp(last.stamp.0 + 1),
        view: ViewId::new(last.view.number + 1, 77),
        kind: view.kind(),
        payload: Arc::new(view.encode()),
    });
    recovered(&log, 0)
}

fn status(s: &mut Space) -> String {
    let said = s.hand.send(B, Kind::Stat, |_| ());
    String::from_utf8(said[0].3.clone()).unwrap()
}

#[test]
fn part_whose_client_left_is_asked_about() {
    let mut s = space();
    let prepared = s.prepare(1, &[], &[(s.x, false, 7)]).unwrap();
    s.pass(100_000);
    assert!(s.hand.consults.is_empty(), "its client may bring the end");
    s.hand.input(Input::Disconnected(A));
    s.pass(1);
    let asked = Consult::Inquire { coordinator: OTHER, of: transaction(1), prepared };
    assert_eq!(s.hand.consults, [asked]);
}

#[test]
fn decision_whose_client_left_is_told() {
    let mut s = space();
    let op = s.op(5);
    decide_with(&mut s, op, &[OTHER]);
    s.hand.input(Input::Disconnected(A));
    s.pass(1);
    assert!(matches!(s.hand.consults[..], [Consult::Settle { participant: OTHER, .. }]));
}

#[test]
fn unanswered_question_comes_after_growing_pauses() {
    let mut s = space();
    s.prepare(1, &[], &[(s.x, false, 7)]).unwrap();
    s.hand.input(Input::Disconnected(A));
    let mut pauses = Vec::new();
    s.pass(1);
    for _ in 0..10 {
        let consult = s.hand.consults.pop().expect("it is asked");
        s.hand.input(Input::Consulted(s.hand.view(), consult, Consulted::Failed("gone".into())));
        let asked = s.hand.now;
        while s.hand.consults.is_empty() {
            s.pass(10_000);
        }
        pauses.push(s.hand.now.since_us(asked) / 1_000);
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1_280, 2_000, 2_000]);
}

#[test]
fn decision_of_forgotten_space_is_known_to_nobody() {
    for is_over in [false, true] {
        let mut s = space();
        let op = s.op(5);
        decide_with(&mut s, op, &[OTHER]);
        assert_eq!(inquire_of(&mut s, op).decision, Decision::Committed);
        forget(&mut s, OTHER);
        assert_eq!(inquire_of(&mut s, op).decision, Decision::Unknown);
        if is_over {
            s.hand.send(A, Kind::Bye, |_| ());
        } else {
            let bytes = s.effects(&[], &[(s.y, false, 9)]);
            let next = OpId { seq: op.seq + 1, ..op };
            s.hand.commit(A, next, &Work::decode(&bytes).unwrap());
        }
        s.hand.sync();
        assert_eq!(inquire_of(&mut s, op).decision, Decision::Unknown);
        let mut s = s.restarted();
        assert_eq!(inquire_of(&mut s, op).decision, Decision::Unknown, "the next server");
    }
}

#[test]
fn forgotten_space_makes_room_for_decisions() {
    let mut s = space();
    let op = s.op(5);
    decide_with(&mut s, op, &[OTHER, THIRD]);
    s.pass(500_000);
    for consult in std::mem::take(&mut s.hand.consults) {
        let answer = match consult.space() {
            OTHER => Consulted::Settled,
            _ => Consulted::Failed("gone".into()),
        };
        s.hand.input(Input::Consulted(s.hand.view(), consult, answer));
    }
    assert_eq!(s.hand.stat("decided"), 1);
    forget(&mut s, THIRD);
    assert_eq!(s.hand.stat("decided"), 0);
    assert_eq!(inquire_of(&mut s, op).decision, Decision::Unknown);
}

#[test]
fn settlement_by_hand_clears_what_was_unreached() {
    let mut s = space();
    let prepared = s.prepare(1, &[], &[(s.x, false, 7)]).unwrap();
    s.pass(2_000_000);
    let consult = s.hand.consults.pop().unwrap();
    let failed = Consulted::Failed("space 63 is not reached".into());
    s.hand.input(Input::Consulted(s.hand.view(), consult, failed));
    assert!(status(&mut s).contains("space 63 is not reached"));
    s.settle(1, prepared, false);
    assert!(status(&mut s).contains("\"unreached\":\"\""), "{}", status(&mut s));
}

#[test]
fn lost_prepare_is_not_called_settled() {
    let mut s = space();
    let log = s.hand.log.clone();
    let view = s.hand.view();
    let prepared = s.prepare(1, &[], &[(s.x, false, 7)]).unwrap();
    // The space was put back to before, and went on beyond the stamp.
    let mut s = Space { hand: recovered(&log, 0), ..s };
    (0..5).for_each(|n| _ = s.commit(5, &[], &[(s.y, false, n)]));
    assert!(s.hand.server.visible() > prepared);
    let settle = |view| Settle {
        of: transaction(1),
        coordinator: OTHER,
        prepared,
        seen: Some(decided_there()),
        view: Some(view),
    };
    let said = s.hand.send(A, Kind::Settle, |o| settle(view).encode(o));
    let (reason, text) = refused(&said).expect("it is refused");
    assert_eq!(reason, Refusal::OtherHistory);
    assert!(text.contains("is not in the history") && text.contains("`tercel forget`"), "{text}");
    // What this history has and has settled is.
    let kept = s.hand.view();
    assert!(has(&s.hand.send(A, Kind::Settle, |o| settle(kept).encode(o)), Kind::Settled));
}

#[test]
fn decision_possibly_lost_is_known_to_nobody() {
    let mut s = space();
    let before = s.hand.log.clone();
    let op = s.op(5);
    decide_with(&mut s, op, &[OTHER]);
    let mut s = Space { hand: unsure(&before), ..s };
    assert_eq!(inquire_of(&mut s, op).decision, Decision::Unknown);
    // What is undecided in its own view never will be.
    let later = s.op(5);
    assert_eq!(inquire_of(&mut s, later).decision, Decision::Aborted);
}

#[test]
fn part_possibly_settled_waits_for_an_operator() {
    let mut s = space();
    let prepared = s.prepare(1, &[], &[(s.x, false, 7)]).unwrap();
    let mut s = Space { hand: unsure(&s.hand.log), ..s };
    s.pass(1);
    let consult = s.hand.consults.pop().expect("the decision may be known");
    let aborted = Consulted::Decided(Decision::Aborted, Vector::default());
    s.hand.input(Input::Consulted(s.hand.view(), consult, aborted));
    s.hand.sync();
    assert_eq!(s.hand.stat("prepared"), 1);
    assert!(status(&mut s).contains("an operator decides"), "{}", status(&mut s));
    s.settle(1, prepared, true);
    assert_eq!((s.value(s.x), s.hand.stat("prepared")), (Some(7), 0));
}

#[test]
fn inquiry_about_a_stranger_spends_its_id_alone() {
    let mut s = space();
    let of = OpId { client: ClientId(9), slot: 40, seq: 1, view: s.hand.view() };
    assert_eq!(inquire_of(&mut s, of).decision, Decision::Aborted);
    s.hand.greet(Conn(9), 9, 1);
    let bytes = s.effects(&[], &[(s.x, false, 9)]);
    let work = Work::decode(&bytes).unwrap();
    assert_eq!(outcomes(&s.hand.commit(Conn(9), of, &work)), [Err(Refusal::NotExecuted)]);
    let mut said = s.hand.commit(Conn(9), OpId { slot: 41, ..of }, &work);
    said.extend(s.hand.sync());
    assert!(matches!(outcomes(&said)[..], [Ok(_)]), "{said:?}");
}

#[test]
fn inquiry_spends_one_id_of_a_slot() {
    let mut s = space();
    let of = OpId { client: ClientId(5), slot: 40, seq: u64::MAX, view: s.hand.view() };
    assert_eq!(inquire_of(&mut s, of).decision, Decision::Aborted);
    assert_eq!(inquire_of(&mut s, OpId { seq: 2, ..of }).decision, Decision::Aborted);
    let commit = |s: &mut Space, seq| {
        let bytes = s.effects(&[], &[(s.x, false, 9)]);
        let mut said = s.hand.commit(A, OpId { seq, ..of }, &Work::decode(&bytes).unwrap());
        said.extend(s.hand.sync());
        outcomes(&said)[0]
    };
    assert!(commit(&mut s, 1).is_ok());
    assert_eq!(commit(&mut s, 2), Err(Refusal::NotExecuted));
    assert!(commit(&mut s, 3).is_ok());
    // Those that cannot be noted are not called undecided.
    let invented = (100..200).map(|seq| inquire_of(&mut s, OpId { seq, ..of }).decision);
    let aborted = invented.filter(|decision| *decision == Decision::Aborted).count();
    assert!(aborted < 20, "{aborted}");
}

#[test]
fn settled_stamp_is_told_though_many_wait() {
    let mut s = space();
    for n in 0..1_024 {
        let conn = Conn(100 + n);
        s.hand.greet(conn, 1_000 + n, 1);
        for i in 0..AWAITING_MAX as u64 {
            let wait = AwaitSettled { upto: Stamp((1 << 61) + i), of: None };
            let said = s.hand.send(conn, Kind::AwaitSettled, |o| wait.encode(o));
            assert!(refused(&said).is_none());
        }
    }
    for conn in [Conn(100), B] {
        let said =
            s.hand.send(conn, Kind::AwaitSettled, |o| AwaitSettled { upto: Stamp(1), of: None }.encode(o));
        assert!(has(&said, Kind::SettledUpto), "{said:?}");
    }
    let said = s
        .hand
        .send(Conn(100), Kind::AwaitSettled, |o| AwaitSettled { upto: Stamp(1 << 62), of: None }.encode(o));
    assert!(refused(&said).is_some(), "a connection has its own bound");
}

#[test]
fn restored_space_tells_its_decisions() {
    let mut s = space();
    let (op, undecided) = (s.op(5), s.op(5));
    decide_with(&mut s, op, &[OTHER]);
    let before = inquire_of(&mut s, op);
    let mut s = Space { hand: recovered(&s.hand.log, 5), ..s };
    assert_eq!(inquire_of(&mut s, op), before);
    assert_eq!(inquire_of(&mut s, undecided).decision, Decision::Unknown);
    s.pass(1);
    let consult = s.hand.consults.pop().expect("the participant is told");
    s.hand.input(Input::Consulted(s.hand.view(), consult, Consulted::Settled));
    s.hand.sync();
    assert_eq!((s.hand.stat("decided"), inquire_of(&mut s, op).decision), (0, Decision::Unknown));
}

#[test]
fn collection_keeps_what_a_part_names() {
    for prepared_at in 0..7 {
        let collect = CollectConfig { is_automatic: false, grace_ms: 1_000, ..CollectConfig::default() };
        let config = ServerConfig { collect, ..ServerConfig::default() };
        let mut hand = Hand::greeted(Recovery::new(config, SpaceId(1), None, 0).unwrap(), Vec::new());
        let class = hand.define(A);
        let page = hand.lease(A, 1)[0];
        let [x, y] = [0, 1].map(|slot| Oref::new(page, slot).unwrap());
        let mut s = Space { hand, class, x, y, seq: 0 };
        s.commit(5, &[], &[(x, true, 1), (y, true, 2)]);
        let new = Oref::new(s.hand.lease(A, 1)[0], 0).unwrap();
        let mut prepared = None;
        if prepared_at == 6 {
            prepared = s.prepare(1, &[s.y], &[(s.x, false, 7), (new, true, 3)]).ok();
            assert!(prepared.is_some());
        }
        s.hand.send(B, Kind::Collect, |o| Collect { is_dry: false }.encode(o));
        for round in 0..200 {
            s.hand.sync();
            if [0, 1, 3, 8, 15, 16].get(prepared_at) == Some(&round) {
                prepared = s.prepare(1, &[s.y], &[(s.x, false, 7), (new, true, 3)]).ok();
            }
            while let Some(read) = s.hand.reads.pop() {
                s.hand.input(Input::Read(s.hand.view(), read, Ok(None)));
            }
            let last = s.hand.server.visible();
            s.hand.acknowledge(A, last);
            s.hand.acknowledge(B, last);
            s.pass(100_000);
        }
        // Whatever the collection had freed before is refused; the rest is there until the settlement.
        let Some(prepared) = prepared else { continue };
        assert_eq!((s.value(s.x), s.value(s.y)), (Some(1), Some(2)), "{prepared_at}");
        assert!(has(&s.settle(1, prepared, true), Kind::Settled));
        assert_eq!((s.value(s.x), s.value(new)), (Some(7), Some(3)), "{prepared_at}");
    }
}

#[test]
fn backup_has_what_is_prepared() {
    let mut s = space();
    let prepared = s.prepare(1, &[s.y], &[(s.x, false, 7)]).unwrap();
    s.hand.send(B, Kind::Backup, |_| ());
    s.hand.input(Input::Pinned(s.hand.view(), 1, Ok(())));
    let said = s.hand.send(B, Kind::BackupNext, |_| ());
    let [(B, Kind::BackupPart, _, body)] = &said[..] else { panic!("no part comes: {said:?}") };
    let BackupPart::State(state) = BackupPart::decode(body).unwrap() else { panic!("no state comes") };
    let restored = Replica::restored(&Saved::parse(state).unwrap()).unwrap();
    assert!(restored.prepares.get(prepared).is_some() && restored.prepares.len() == 1);
}

/// For builds with `--cfg tercel_mutants`, as the step `worlds` of `.ci/run` makes one.
#[cfg(tercel_mutants)]
#[test]
fn dropped_rules_of_holds_are_noticed() {
    use crate::group::copy_has_what_is_prepared;
    use tercel_engine::mutant::{Rule, drop_rule};

    for rule in Rule::OF_HOLDS {
        let all =
            [backup_has_what_is_prepared, copy_has_what_is_prepared, collection_keeps_what_a_part_names];
        drop_rule(Some(*rule));
        let noticed: Vec<_> = all.map(|test| std::panic::catch_unwind(test).is_err()).into();
        drop_rule(None);
        println!("{rule:?} is noticed by {noticed:?}");
        assert!(noticed.contains(&true), "{rule:?} can be dropped");
    }
}
