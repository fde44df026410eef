//! Calls of methods that wait at a server, by hand: a client with many of them does not hold up another one,
//! and each ends.

use std::collections::BTreeSet;

use crate::world::hand::{A, B, Hand, Said, Work, object, outcomes};
use tercel_derive::{Object, interface};
use tercel_engine::limits::{CALLS_AT_ONCE, CREDIT};
use tercel_engine::object::Obj;
use tercel_engine::rpc::{Called, Offers};
use tercel_engine::server::{Conn, Effects, Input, LogRoom, ServerConfig};
use tercel_engine::server::{Local, LocalConfig};
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{ClassId, ClientId, OpId, Oref, PageId, Stamp, ViewId};
use tercel_wire::message::{Limit, OPERATION, Refusal, Request, Response, ResponseEnd, Verdict, Write};
use tercel_wire::record::Text;

/// As [`crate::world::hand::layout`] has it.
#[derive(Object)]
#[object(crate = "tercel_engine")]
pub struct C {
    pub n: u32,
}

/// Two of them fill a page.
#[derive(Object)]
#[object(crate = "tercel_engine")]
pub struct Half {
    text: Text,
}

#[interface(crate = "tercel_engine")]
pub trait Counts {
    /// Counts one more, and gives what was there.
    fn count(&mut self) -> u32;
    /// Makes an object of half a page.
    fn make(&mut self);
    /// Counts one more, if nothing was counted yet.
    fn count_first(&mut self) -> bool;
}

const COUNT: u16 = 0;
const MAKE: u16 = 1;
const COUNT_FIRST: u16 = 2;

impl Counts for C {
    fn count(this: &Obj<'_, C>) -> Called<u32> {
        let before = this.n();
        this.edit()?.set_n(before + 1)?;
        Ok(before)
    }

    fn make(this: &Obj<'_, C>) -> Called<()> {
        Obj::tx(this).create(&Half { text: "x".repeat(3_900).into() })?;
        Ok(())
    }

    fn count_first(this: &Obj<'_, C>) -> Called<bool> {
        // The lowest byte counts.
        let is_first = this.n().is_multiple_of(256);
        if is_first {
            this.edit()?.set_n(this.n() + 1)?;
        }
        Ok(is_first)
    }
}

/// A server, and two objects on pages of their own.
struct Calling {
    h: Hand,
    local: Local,
    class: ClassId,
    hot: Oref,
    cold: Oref,
}

impl Calling {
    fn new() -> Calling {
        Calling::over(0)
    }

    /// Over a store that may have pages up to `stored_end`, of which few are kept in memory.
    fn over(stored_end: u32) -> Calling {
        let config = ServerConfig {
            methods: Offers::default().with(C::METHODS),
            cache_bytes: 1,
            ..ServerConfig::default()
        };
        let mut h = Hand::storing(config, stored_end);
        let class = h.define(A);
        let pages = h.lease(A, 2);
        let [hot, cold] = [0, 1].map(|i| Oref::new(pages[i], 0).unwrap());
        let object = object(class, 0);
        let writes = [hot, cold].map(|oref| Write { oref, new: true, object: &object }).to_vec();
        let op = OpId { client: ClientId(5), slot: CREDIT - 1, seq: 1, view: ViewId::new(1, 7) };
        h.commit(A, op, &Work { base: Stamp(1), reads: vec![], writes });
        h.sync();
        Calling { h, local: Local::new(LocalConfig::default()), class, hot, cold }
    }

    /// A client counts by a call; nothing is run yet.
    fn call(&mut self, conn: Conn, target: Oref, slot: u16, seq: u64) -> Said {
        self.call_method(conn, COUNT, target, (slot, seq), 0)
    }

    /// A client calls a method, and waits for so many microseconds; 0 is no limit. Nothing is run yet.
    fn call_method(
        &mut self,
        conn: Conn,
        method: u16,
        target: Oref,
        (slot, seq): (u16, u64),
        deadline_us: u32,
    ) -> Said {
        let read_at = self.h.server.visible();
        let (slot, object) = (Some(slot), Some((target, read_at)));
        let call = Request { slot, seq, again: false, interface: 0, method, object, key: &[], payload: &[] };
        let mut body = Vec::new();
        call.encode(&mut body);
        let view = self.h.view();
        let body_bytes = body.len() as u32;
        let header = Header { view, body_bytes, deadline_us, ..Header::new(Kind::Request, 7) };
        self.h.input(Input::Frame(conn, header, &body))
    }

    /// A transaction of A that has read this state changes the hot object.
    fn set(&mut self, seq: u64, base: Stamp) -> Said {
        let op = OpId { client: ClientId(5), slot: 0, seq, view: self.h.view() };
        let object = object(self.class, 7);
        let writes = vec![Write { oref: self.hot, new: false, object: &object }];
        self.h.commit(A, op, &Work { base, reads: vec![], writes })
    }

    /// A method of B changes the hot object, and a transaction of A loses over that, which it is told when it
    /// is visible.
    fn lose(&mut self) {
        let base = self.h.server.visible();
        self.call(B, self.hot, 0, 1);
        self.run();
        assert_eq!(outcomes(&self.set(2, base)), []);
    }

    /// Runs what is due, as a host does in one go.
    fn run(&mut self) -> Said {
        let mut out = Effects::default();
        self.h.server.run_calls(self.h.now, &mut self.local, &mut out);
        self.h.take(out)
    }

    /// Runs all that is due: gives how often.
    fn run_all(&mut self, said: &mut Said) -> usize {
        let mut turns = 0;
        while self.h.server.has_calls() {
            assert!(self.h.is_busy(), "the host does not sleep");
            said.extend(self.run());
            turns += 1;
            assert!(turns < 1_000, "it goes on for ever");
        }
        turns
    }
}

/// The slots of a client's calls that have returned.
fn returned(said: &Said, conn: Conn) -> Vec<u16> {
    let answers = said.iter().filter(|(c, kind, ..)| (*c, *kind) == (conn, Kind::Response));
    let slot = |(.., body): &(_, _, _, Vec<u8>)| {
        let answer = Response::decode(body).unwrap();
        assert!(matches!(answer.end, ResponseEnd::Returned(..)), "{answer:?}");
        answer.slot & !OPERATION
    };
    answers.map(slot).collect()
}

#[test]
fn client_with_many_calls_on_one_object_holds_up_nobody_else() {
    let mut w = Calling::new();
    for slot in 0..CREDIT {
        assert_eq!(w.call(A, w.hot, slot, 2), []);
    }
    // One more than it was granted.
    let said = w.call(A, w.hot, CREDIT, 1);
    let (.., body) = said.iter().find(|(_, kind, ..)| *kind == Kind::Verdict).expect("a verdict");
    assert_eq!(Verdict::decode(body).unwrap().outcome, Err(Refusal::Full(Limit::Buffer)));

    // Some are ordered, each over the one before, and others were not tried yet.
    let ordered = w.h.last().0;
    w.run();
    assert_eq!(w.h.last().0 - ordered, CALLS_AT_ONCE as u64);
    assert!(w.h.server.has_calls() && w.h.is_busy());
    // Between two turns others are served: a page at once, a call in the next one.
    let said = w.h.fetch(B, w.cold.page(), 1);
    assert!(said.iter().any(|(c, kind, ..)| (*c, *kind) == (B, Kind::Page)));
    assert_eq!(w.call(B, w.cold, 0, 1), []);
    let ordered = w.h.last();
    w.run();
    assert!(w.h.last() > ordered && w.h.server.has_calls(), "its call is ordered, and A's are still due");
    let said = w.h.sync();
    assert_eq!(returned(&said, B), [0]);
    let mut ended: BTreeSet<u16> = returned(&said, A).into_iter().collect();
    assert_eq!(ended.len(), 2 * CALLS_AT_ONCE - 1, "one sync brings all that were ordered");

    // Others follow, until all have come to an end.
    let mut syncs = 0;
    while ended.len() < CREDIT as usize {
        let mut said = Said::new();
        w.run_all(&mut said);
        said.extend(w.h.sync());
        ended.extend(returned(&said, A));
        syncs += 1;
        assert!(syncs <= 2, "{} have ended", ended.len());
    }
    assert!(!w.h.server.has_calls());
    assert_eq!(w.h.seen(B, w.hot, 2), Some(CREDIT as u8), "each has counted once");
}

#[test]
fn call_on_the_same_object_waits_for_one_of_a_client_with_many() {
    let mut w = Calling::new();
    (0..CREDIT).for_each(|slot| _ = w.call(A, w.hot, slot, 2));
    w.run();
    w.call(B, w.hot, 0, 1);
    for _ in 0..3 {
        let mut said = Said::new();
        assert!(w.run_all(&mut said) <= (CREDIT as usize).div_ceil(CALLS_AT_ONCE) + 1);
        said.extend(w.h.sync());
        if !returned(&said, B).is_empty() {
            return;
        }
    }
    panic!("the call of B has not come to its turn");
}

#[test]
fn later_calls_are_tried_while_every_turn_has_another_state() {
    let mut w = Calling::new();
    (0..CREDIT).for_each(|slot| _ = w.call(A, w.hot, slot, 2));
    // A call on another object stands last. In the turn in which it is tried it is ordered.
    let last = CREDIT - 1;
    w.h.resolve(A, OpId { client: ClientId(5), slot: last, seq: 2, view: ViewId::new(1, 7) });
    w.call(A, w.cold, last, 3);
    let mut ended = Vec::new();
    for _ in 0..CREDIT as usize / CALLS_AT_ONCE + 2 {
        w.run();
        ended.extend(returned(&w.h.sync(), A));
    }
    assert!(ended.contains(&last), "{ended:?}");
}

#[test]
fn calls_of_a_connection_that_ends_are_gone() {
    let mut w = Calling::new();
    (0..CREDIT).for_each(|slot| _ = w.call(A, w.hot, slot, 2));
    w.run();
    w.h.input(Input::Disconnected(A));
    assert!(!w.h.server.has_calls());
    w.call(B, w.cold, 0, 1);
    w.run();
    assert_eq!(returned(&w.h.sync(), B), [0]);
}

#[test]
fn places_of_a_call_that_waits_to_be_ordered_are_not_given_back() {
    const CALLS: u16 = 40;
    let mut w = Calling::new();
    w.h.input(Input::LogRoom(LogRoom::Full));
    for slot in 0..CALLS {
        // The pages that one call fills are turned by the next ones, which ask for more of them.
        w.call_method(A, MAKE, w.cold, (slot, 2), 0);
        let mut said = Said::new();
        while w.h.server.has_calls() {
            w.run_all(&mut said);
            said.extend(w.h.sync());
        }
        assert!(returned(&said, A).is_empty(), "there is no room for what it wrote");
    }
    let mut said = w.h.input(Input::LogRoom(LogRoom::Free));
    said.extend(w.h.sync());
    assert_eq!(returned(&said, A), (0..CALLS).collect::<Vec<_>>());
}

#[test]
fn late_call_is_refused_and_its_id_is_spent() {
    const LEFT_US: u32 = 1_000;
    let mut w = Calling::new();
    let op = OpId { client: ClientId(6), slot: 0, seq: 1, view: w.h.view() };
    w.call_method(B, COUNT, w.hot, (op.slot, op.seq), LEFT_US);
    w.h.now = w.h.now.plus_us(LEFT_US.into());
    let said = w.run();
    let [(B, Kind::Response, _, body)] = &said[..] else { panic!("{said:?}") };
    let end = Response::decode(body).unwrap().end;
    assert!(matches!(end, ResponseEnd::Refused(Refusal::Late, _)), "{end:?}");
    // A copy of it with time left, and a question for it.
    for said in [w.call_method(B, COUNT, w.hot, (op.slot, op.seq), LEFT_US), w.h.resolve(B, op)] {
        assert_eq!(outcomes(&said), [Err(Refusal::NotExecuted)]);
    }
    assert!(!w.h.server.has_calls());
    assert_eq!(w.h.seen(B, w.hot, 1), Some(0));
    // One in time is executed.
    w.call_method(B, COUNT, w.hot, (op.slot, op.seq + 1), LEFT_US);
    w.h.now = w.h.now.plus_us(u64::from(LEFT_US) - 1);
    w.run();
    assert_eq!(returned(&w.h.sync(), B), [op.slot]);
}

#[test]
fn methods_let_clients_that_have_lost_come() {
    let mut w = Calling::new();
    w.lose();
    let ordered = w.h.last();
    w.call(B, w.hot, 1, 1);
    let mut said = w.run();
    w.run_all(&mut said);
    assert_eq!((w.h.last(), said), (ordered, Said::new()), "the method does not keep the object on its way");
    let said = w.h.sync();
    assert_eq!(outcomes(said.iter().filter(|(conn, ..)| *conn == A)), [Err(Refusal::Conflict(w.hot))]);
    // The client has its turn, for which methods wait.
    let ordered = w.h.last();
    w.run_all(&mut Said::new());
    assert_eq!(w.h.last(), ordered);
    w.set(3, w.h.server.visible());
    let mut said = w.h.sync();
    assert_eq!(w.h.seen(A, w.hot, 1), Some(7));
    w.run_all(&mut said);
    said.extend(w.h.sync());
    assert_eq!(returned(&said, B), [1]);
}

/// The turn of a client that does not come back ends, and the host is told when.
#[test]
fn methods_wait_for_a_turn_no_longer() {
    let mut w = Calling::new();
    w.lose();
    w.h.sync();
    w.call(B, w.hot, 1, 1);
    let ordered = w.h.last();
    w.run_all(&mut Said::new());
    assert_eq!(w.h.last(), ordered);
    let end = w.h.now.plus_us(20_000);
    while !w.h.server.has_calls() {
        w.h.now = w.h.server.deadline().expect("a turn ends").max(w.h.now.plus_us(1));
        assert!(w.h.now < end, "the turn does not end");
        w.h.input(Input::Time);
    }
    w.run_all(&mut Said::new());
    assert_eq!(returned(&w.h.sync(), B), [1]);
}

/// A power cut would take back the state that it saw.
#[test]
fn nothing_is_told_of_what_is_not_stable() {
    let mut w = Calling::new();
    w.call(A, w.hot, 0, 2);
    // It is run over what the first one counted, and has nothing to be ordered.
    w.call_method(B, COUNT_FIRST, w.hot, (0, 1), 0);
    let ordered = w.h.last();
    let mut said = w.run();
    w.run_all(&mut said);
    assert_eq!((w.h.last().0, &said[..]), (ordered.0 + 1, &[][..]));
    let mut said = w.h.sync();
    w.run_all(&mut said);
    assert_eq!((returned(&said, A), returned(&said, B)), (vec![0], vec![0]));
    assert_eq!(w.h.seen(B, w.hot, 2), Some(1), "it has seen what was counted");
    // The other way round both are ordered at once.
    w.call_method(B, COUNT_FIRST, w.cold, (0, 2), 0);
    w.run();
    w.call(A, w.cold, 0, 3);
    w.run();
    assert_eq!(w.h.last().0, ordered.0 + 3);
    let said = w.h.sync();
    assert_eq!((returned(&said, A), returned(&said, B)), (vec![0], vec![0]));
    assert_eq!(w.h.seen(B, w.cold, 3), Some(2));
}

/// A network delivers a request twice.
#[test]
fn late_copy_does_not_deny_what_was_ordered() {
    const LEFT_US: u32 = 1_000;
    let mut w = Calling::new();
    let op = OpId { client: ClientId(6), slot: 0, seq: 1, view: w.h.view() };
    for _ in 0..2 {
        w.call_method(B, COUNT, w.hot, (op.slot, op.seq), LEFT_US);
    }
    // One is ordered. The other meets what is not visible yet, and is still here when its time is over.
    let mut said = w.run();
    w.h.now = w.h.now.plus_us(LEFT_US.into());
    said.extend(w.h.sync());
    w.run_all(&mut said);
    let answers = said.iter().filter(|(_, kind, ..)| *kind == Kind::Response);
    for (_, _, _, body) in answers.clone() {
        let end = Response::decode(body).unwrap().end;
        assert!(matches!(end, ResponseEnd::Returned(..)), "{end:?}");
    }
    assert!(answers.count() > 0, "{said:?}");
    assert_eq!(w.h.seen(B, w.hot, 1), Some(1));
}

#[test]
fn call_that_waits_for_one_page_is_not_refused_while_states_change() {
    const STORED: u32 = 9;
    let mut w = Calling::over(STORED + 1);
    let stored = PageId::new(STORED).unwrap();
    w.h.fetch(A, w.hot.page(), 1);
    w.h.input(Input::Read(w.h.view(), w.hot.page(), Ok(None)));
    w.h.reads.clear();
    w.call(B, Oref::new(stored, 0).unwrap(), 0, 1);
    let mut said = w.run();
    assert_eq!(w.h.reads, [stored]);
    // It is tried again in each state, more often than pages find room.
    for seq in 2..100 {
        w.call(A, w.hot, 0, seq);
        while w.h.server.has_calls() {
            w.run_all(&mut said);
            said.extend(w.h.sync());
        }
    }
    assert_eq!(returned(&said, A).len(), 98);
    assert!(!said.iter().any(|(conn, kind, ..)| (*conn, *kind) == (B, Kind::Response)));
    // There is nothing in the page.
    w.h.input(Input::Read(w.h.view(), stored, Ok(None)));
    let said = w.run();
    let [(B, Kind::Response, _, body)] = &said[..] else { panic!("{said:?}") };
    let end = Response::decode(body).unwrap().end;
    assert!(matches!(end, ResponseEnd::Refused(Refusal::NotFound, _)), "{end:?}");
}

#[test]
fn finished_call_asked_for_gives_result() {
    let mut w = Calling::new();
    for (method, seq) in [(COUNT, 1), (MAKE, 2)] {
        w.call_method(B, method, w.hot, (0, seq), 0);
        let mut said = Said::new();
        while w.h.server.has_calls() {
            w.run_all(&mut said);
            said.extend(w.h.sync());
        }
        assert_eq!(returned(&said, B), [0], "with bytes and without");
        let said = w.h.resolve(B, OpId { client: ClientId(6), slot: 0, seq, view: w.h.view() });
        match method {
            COUNT => assert_eq!(returned(&said, B), [0]),
            _ => assert!(matches!(outcomes(&said)[..], [Ok(_)]), "a result of no bytes is a verdict"),
        }
    }
}
