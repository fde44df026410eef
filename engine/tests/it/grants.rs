//! Grants of places over many clients and connections: numbers of pages do not run out while few pages are in
//! use.

use std::sync::Arc;

use crate::world::hand::{A, B, Hand, Said, Work, closed, object, outcomes, recovery, refused};
use tercel_engine::limits::{GRANTED_MAX, LEASE_PAGES, LEASED_UNUSED_MAX};
use tercel_engine::order::Sealed;
use tercel_engine::replica::entry::{Entry, Grant};
use tercel_engine::server::{Conn, Effects, Input, Local, LocalConfig, Recovery, ServerConfig};
use tercel_engine::time::Now;
use tercel_engine::txn::{Begin, Home, Options};
use tercel_wire::frame::Kind;
use tercel_wire::id::{ClassId, ClientId, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::layout::{Layout, Shape};
use tercel_wire::message::{Commit, Lease, Leased, Part, Refusal, Refused, Stream, Write};
use tercel_wire::schema::Scalar;

/// A server whose space has so many numbers of pages left.
fn with_pages_left(left: u32) -> Hand {
    let next_page = PageId::MAX.get() + 1 - left;
    let entries = [
        Entry::Genesis,
        Entry::View { kept: Stamp(1), lost: false },
        Entry::Grant(Grant { client: ClientId(1), seq: 1, next_page, pages: vec![], holes: vec![] }),
        Entry::End(ClientId(1)),
    ];
    let seal = |(stamp, entry): (u64, &Entry<'_>)| {
        let (kind, payload) = (entry.kind(), Arc::new(entry.encode()));
        Sealed { stamp: Stamp(stamp), view: ViewId::new(1, 7), kind, payload }
    };
    let log: Vec<Sealed> = (1..).zip(&entries).map(seal).collect();
    Hand::of(recovery(&log), log)
}

/// Takes all the pages that the server grants to this client, at most so many; says how many, and why not
/// more.
fn take(h: &mut Hand, conn: Conn, max: usize) -> (usize, Option<Refusal>) {
    let mut pages = 0;
    while pages < max {
        let said = h.ask_places(conn, LEASE_PAGES);
        if let Some((reason, _)) = refused(&said) {
            return (pages, Some(reason));
        }
        let granted = Leased::decode(&said[0].3).unwrap().pages.len();
        if granted == 0 {
            return (pages, Some(Refusal::FULL));
        }
        pages += granted;
    }
    (pages, None)
}

/// Lets so many milliseconds pass; what is ordered meanwhile is durable.
fn pass_ms(h: &mut Hand, ms: u64) -> Said {
    h.now = h.now.plus_us(ms * 1_000);
    let mut said = h.input(Input::Time);
    said.extend(h.sync());
    said
}

/// Lets time pass a tenth of a second at a time. Clients A and B say all the while that they are there. What
/// the server said.
fn pass_awake_ms(h: &mut Hand, ms: u64) -> Said {
    let mut said = Said::new();
    for _ in 0..ms / 100 {
        said.extend(pass_ms(h, 100));
        [A, B].into_iter().for_each(|conn| said.extend(h.send(conn, Kind::Ping, |_| ())));
    }
    said
}

/// A server whose last 64 pages have returned, which client A knows, and client B does not say.
fn with_pages_that_wait() -> Hand {
    let mut h = with_pages_left(64);
    let gone = Conn(100);
    h.greet(gone, 4, 1);
    h.greet(B, 6, 1);
    assert_eq!(take(&mut h, gone, 64), (64, None));
    h.send(gone, Kind::Bye, |_| ());
    h.sync();
    h.greet(A, 5, 1);
    assert_eq!(take(&mut h, A, 64), (0, Some(Refusal::FULL)));
    h
}

/// The number of requests for an acknowledgement on the connection, and the reason of its refusal.
fn asked(said: &Said, conn: Conn) -> (usize, Option<Refusal>) {
    let of = || said.iter().filter(|s| s.0 == conn);
    let streams = of().filter(|s| s.1 == Kind::Stream).map(|s| Stream::decode(&s.3).unwrap());
    let refused = of().find(|s| s.1 == Kind::Refused).map(|s| Refused::decode(&s.3).unwrap().reason);
    (streams.filter(|stream| stream.ack).count(), refused)
}

#[test]
fn client_that_reconnects_128_times_keeps_its_pages_and_gets_no_more() {
    let mut h = Hand::of(Recovery::new(ServerConfig::default(), SpaceId(1), None, 0).unwrap(), Vec::new());
    let mut all = 0;
    for connection in 1..=128 {
        let conn = Conn(100 + connection);
        h.greet(conn, 5, connection);
        h.goes_on(Conn(99 + connection), conn);
        all += take(&mut h, conn, LEASED_UNUSED_MAX).0;
        h.input(Input::Disconnected(conn));
    }
    assert_eq!(all, LEASED_UNUSED_MAX);
    h.greet(A, 6, 1);
    assert_eq!(h.lease(A, 1).len(), 1);
}

#[test]
fn thousand_clients_that_come_and_vanish_use_each_others_pages() {
    // Each takes 128, and forty of them are not over at any time.
    let mut h = with_pages_left(20_000);
    for client in 0..1_000 {
        let conn = Conn(100 + client);
        h.greet(conn, 1_000 + client, 1);
        assert_eq!(take(&mut h, conn, 128), (128, None), "client {client}");
        h.input(Input::Disconnected(conn));
        pass_ms(&mut h, 100);
    }
}

/// Repeats a step of a transaction inside of the server until it is answered.
fn inside<R>(h: &mut Hand, local: &mut Local, mut step: impl FnMut(&mut dyn Home, Now) -> Option<R>) -> R {
    for _ in 0..10 {
        let (mut out, now) = (Effects::default(), h.now);
        let answer = h.server.inside(now, local, &mut out, |home| step(home, now));
        h.take(out);
        h.sync();
        if let Some(answer) = answer {
            return answer;
        }
    }
    panic!("the server does not answer");
}

#[test]
fn places_of_a_session_inside_that_the_leader_ended_are_given_out_again() {
    let mut h = with_pages_left(64);
    let mut local = Local::new(LocalConfig::default());
    let mut begin = Begin::new(&Options::default());
    let begun = inside(&mut h, &mut local, |home, now| home.begin(now, &mut begin)).unwrap();
    let mut allocate =
        |h: &mut Hand| inside(h, &mut local, |home, now| home.allocate(now, &begun.scope, 4_000));
    let places: Vec<_> = std::iter::from_fn(|| allocate(&mut h).ok()).take(1_000).collect();
    assert_eq!(places.len(), 64 * 2, "two objects of that size fill a page");
    drop(places);
    h.greet(A, 5, 1);
    assert_eq!(take(&mut h, A, 64), (0, Some(Refusal::FULL)));
    // Bytes that are no effects end the session, and with it its grants.
    let op = inside(&mut h, &mut local, |home, now| {
        home.submit(now, begun.scope.snapshot(), &mut Vec::new(), b"no effects")
    });
    let outcome = inside(&mut h, &mut local, |home, _| home.outcome(op.clone().unwrap()));
    assert_eq!(outcome, Err(Refusal::Unknown));
    pass_ms(&mut h, 10_000);
    h.greet(B, 6, 1);
    assert_eq!(take(&mut h, B, 64), (64, None));
}

#[test]
fn all_clients_together_are_granted_so_much_until_some_have_gone() {
    let mut h = Hand::of(Recovery::new(ServerConfig::default(), SpaceId(1), None, 0).unwrap(), Vec::new());
    let full = GRANTED_MAX / LEASED_UNUSED_MAX;
    for client in 0..full as u64 {
        h.greet(Conn(100 + client), 1_000 + client, 1);
        assert_eq!(take(&mut h, Conn(100 + client), LEASED_UNUSED_MAX), (LEASED_UNUSED_MAX, None));
    }
    h.greet(A, 5, 1);
    assert_eq!(take(&mut h, A, 1), (0, Some(Refusal::FULL)));
    h.send(Conn(100), Kind::Bye, |_| ());
    h.sync();
    assert_eq!(take(&mut h, A, 1).1, None);
}

#[test]
fn commit_that_is_refused_gives_back_the_pages_promised_to_it() {
    let mut h = Hand::of(Recovery::new(ServerConfig::default(), SpaceId(1), None, 0).unwrap(), Vec::new());
    h.greet(A, 5, 1);
    let (class, page) = (h.define(A), h.lease(A, 1)[0]);
    // The class with one more field, of half a page.
    let number = ("n".into(), Shape::Scalar(Scalar::U32));
    let more = ("more".into(), Shape::Array(Scalar::U8, 3_900));
    h.send(A, Kind::Define, |o| Layout::new("C".into(), vec![number, more]).encode(o));
    let said = h.sync();
    let (.., body) = said.iter().find(|(_, k, ..)| *k == Kind::Defined).expect("defined");
    let (small, mut large) = (object(class, 1), object(ClassId(u16::from_le_bytes([body[0], body[1]])), 1));
    large.resize(large.len() + 3_900, 7);
    let op = |seq| OpId { client: ClientId(5), slot: 0, seq, view: ViewId::new(1, 7) };
    let places: Vec<Oref> = (0..4).map(|slot| Oref::new(page, slot).unwrap()).collect();
    let write = |oref, new, object| Write { oref, new, object };
    let make = places.iter().map(|oref| write(*oref, true, &small[..])).collect();
    h.commit(A, op(1), &Work { base: Stamp(1), reads: vec![], writes: make });
    assert!(matches!(outcomes(&h.sync())[..], [Ok(_)]));
    // Four that outgrow their page need two more; the last write is of an object that was never made.
    let nothing = Oref::new(page, 9).unwrap();
    for seq in 2..100 {
        let mut writes: Vec<_> = places.iter().map(|oref| write(*oref, false, &large[..])).collect();
        writes.push(write(nothing, false, &small[..]));
        let work = Work { base: h.server.visible(), reads: vec![], writes };
        assert_eq!(outcomes(&h.commit(A, op(seq), &work)), [Err(Refusal::Invalid(nothing))]);
    }
    h.greet(B, 6, 1);
    let next = h.lease(B, 1)[0];
    assert!(next.get() <= page.get() + 3, "page {next} is given out after page {page}");
}

#[test]
fn commit_on_a_base_below_the_birth_of_its_page_is_not_executed() {
    let mut h = with_pages_left(1);
    h.greet(A, 5, 1);
    let page = h.lease(A, 1)[0];
    h.input(Input::Disconnected(A));
    pass_ms(&mut h, 20_000);
    h.greet(B, 6, 1);
    let class = h.define(B);
    let said = h.ask_places(B, 1);
    let leased = Leased::decode(&said[0].3).unwrap();
    assert_eq!(leased.pages, [page]);
    assert!(leased.birth > Stamp::ZERO && leased.birth <= h.server.visible());
    let small = object(class, 1);
    let view = h.server.view();
    let op = |seq| OpId { client: ClientId(6), slot: 0, seq, view };
    let work = |base| Work {
        base: Stamp(base),
        reads: vec![],
        writes: vec![Write { oref: Oref::new(page, 0).unwrap(), new: true, object: &small }],
    };
    let birth = leased.birth.0;
    assert_eq!(outcomes(&h.commit(B, op(1), &work(birth - 1))), [Err(Refusal::NotExecuted)]);
    h.commit(B, op(2), &work(birth));
    assert!(matches!(outcomes(&h.sync())[..], [Ok(_)]));
    // The grant is repeated with its birth.
    let again = Lease { seq: leased.seq, pages: 1, done: vec![] };
    let said = h.send(B, Kind::Lease, |o| again.encode(o));
    let (.., body) = said.iter().find(|s| s.1 == Kind::Leased).expect("leased");
    assert_eq!(Leased::decode(body), Ok(leased));
}

#[test]
fn session_that_reuse_waits_for_is_asked_and_is_not_asked_again() {
    let mut h = with_pages_that_wait();
    let said = pass_awake_ms(&mut h, 100);
    assert_eq!((asked(&said, A), asked(&said, B)), ((0, None), (1, None)));
    let visible = h.server.visible();
    h.acknowledge(B, visible);
    assert_eq!(take(&mut h, A, 64), (64, None));
    assert_eq!(asked(&pass_awake_ms(&mut h, 10_000), B), (0, None));
}

#[test]
fn session_that_talks_and_never_acknowledges_is_ended_after_two_keepalives() {
    let mut h = with_pages_that_wait();
    // It is asked ten times a second.
    let said = pass_awake_ms(&mut h, 4_100);
    assert_eq!(asked(&said, B), (41, None));
    assert_eq!(take(&mut h, A, 64), (0, Some(Refusal::FULL)));
    let said = pass_awake_ms(&mut h, 100);
    assert_eq!(asked(&said, B), (0, Some(Refusal::Unavailable)));
    assert!(said.iter().any(|s| s.0 == B && s.1 == Kind::Bye));
    assert_eq!(take(&mut h, A, 64), (64, None));
    // It may come back, and knows then.
    h.greet(Conn(101), 6, 2);
    assert!(h.server.has_greeted(Conn(101)));
    assert_eq!(asked(&pass_awake_ms(&mut h, 10_000), Conn(101)).0, 0);
}

#[test]
fn session_whose_transaction_is_arriving_is_not_late() {
    let mut h = with_pages_that_wait();
    let op = OpId { client: ClientId(6), slot: 0, seq: 1, view: h.server.view() };
    let part = Part { op, index: 0, bytes: &[0; 100] };
    h.send(B, Kind::Part, |o| part.encode(o));
    assert_eq!(asked(&pass_awake_ms(&mut h, 60_000), B).1, None);
    // Its end is refused, for a part is missing.
    h.send(B, Kind::Commit, |o| Commit { op, parts: 2, bytes: &[] }.encode(o));
    assert_eq!(asked(&pass_awake_ms(&mut h, 3_900), B).1, None);
    assert_eq!(asked(&pass_awake_ms(&mut h, 5_000), B).1, Some(Refusal::Unavailable));
}

#[test]
fn client_that_counts_its_grants_from_zero_is_expelled() {
    for pages in [0, 1] {
        let mut h = with_pages_left(1);
        h.greet(A, 5, 1);
        let said = h.send(A, Kind::Lease, |o| Lease { seq: 0, pages, done: vec![] }.encode(o));
        assert!(closed(&said, A), "{said:?}");
    }
}
