//! Bounds, by hand, on the memory that all clients together make a server keep: a client above a bound is
//! refused, and others go on.

use std::collections::BTreeMap;

use crate::world::hand::{A, B, Hand, Said, closed, refused};
use tercel_engine::limits::{GREETED_PAGES_MAX, REVOKING_MAX};
use tercel_engine::server::{Conn, Input, Recovery, ServerConfig};
use tercel_wire::frame::Kind;
use tercel_wire::id::{ClientId, PageId, SpaceId};
use tercel_wire::message::{Hello, Refusal, Resume, Stream, Unsubscribe};

fn begun(subscriptions_all_max: usize) -> Hand {
    let config = ServerConfig { subscriptions_all_max, ..ServerConfig::default() };
    Hand::of(Recovery::new(config, SpaceId(1), None, 0).unwrap(), Vec::new())
}

fn page(n: u32) -> PageId {
    PageId::new(n).unwrap()
}

/// Has a client fetch so many pages, from this one on.
fn fetch(h: &mut Hand, conn: Conn, first: u32, count: u32) -> Said {
    (first..first + count).flat_map(|n| h.fetch(conn, page(n), u64::from(n))).collect()
}

/// The pages that a client was asked for, be it more than once, with the fetches that it is to name.
fn asked(said: &Said, conn: Conn) -> Vec<(PageId, u64)> {
    let streams = said.iter().filter(|(c, kind, ..)| (*c, *kind) == (conn, Kind::Stream));
    let pages = streams.flat_map(|(.., body)| Stream::decode(body).unwrap().revoked);
    pages.collect::<BTreeMap<_, _>>().into_iter().collect()
}

/// A while later.
fn later(h: &mut Hand) -> Said {
    h.now = h.now.plus_us(60_000);
    h.input(Input::Time)
}

/// A number in what the server says of itself.
fn number(h: &mut Hand, conn: Conn, name: &str) -> u64 {
    let said = h.send(conn, Kind::Stat, |_| ());
    let (.., body) = said.iter().find(|(_, kind, ..)| *kind == Kind::Status).expect("a status");
    let status = String::from_utf8(body.clone()).unwrap();
    let (_, value) = status.split_once(&format!("\"{name}\":")).expect("it says so");
    value.split([',', '}']).next().unwrap().parse().unwrap()
}

#[test]
fn beyond_the_subscriptions_of_all_the_session_with_most_gives_pages_back() {
    let mut h = begun(1_000);
    h.greet(A, 5, 1);
    h.greet(B, 6, 1);
    assert_eq!(asked(&fetch(&mut h, A, 1_000, 900), A), []);
    fetch(&mut h, B, 5_000, 100);
    assert_eq!(number(&mut h, B, "subscriptions"), 1_000);
    // B has less than its share and keeps what it has; A, which does nothing, is asked all the same.
    let mut said = fetch(&mut h, B, 6_000, 50);
    said.extend(later(&mut h));
    assert_eq!(asked(&said, B), []);
    let back = asked(&said, A);
    assert_eq!((back.len(), number(&mut h, B, "subscriptions")), (50, 1_000));
    h.send(A, Kind::Unsubscribe, |o| Unsubscribe { pages: back }.encode(o));
    assert_eq!(asked(&later(&mut h), A), []);
    assert_eq!(number(&mut h, B, "subscriptions"), 1_000);
    // With A go its pages.
    h.input(Input::Disconnected(A));
    assert_eq!(number(&mut h, B, "subscriptions"), 150);
}

#[test]
fn session_with_most_that_gives_nothing_back_is_ended_with_the_reason() {
    let mut h = begun(5_000);
    h.greet(A, 5, 1);
    h.greet(B, 6, 1);
    fetch(&mut h, A, 10_000, 4_900);
    let mut said = Said::new();
    for n in 0.. {
        said.extend(fetch(&mut h, B, 100_000 + n, 1));
        if closed(&said, A) {
            break;
        }
        assert!(n < 100 + REVOKING_MAX as u32 + 1, "A is still here");
    }
    let told: Said = said.iter().filter(|s| s.0 == A).cloned().collect();
    let (reason, text) = refused(&told).expect("it is told why");
    assert!(reason == Refusal::FULL && text.contains("gives none back"), "{text}");
    assert!(!closed(&said, B));
    assert!(fetch(&mut h, B, 10_000, 10).iter().all(|s| s.1 == Kind::Page));
}

#[test]
fn pages_of_all_greetings_are_bounded_and_there_is_room_once_some_are_taken_in() {
    // As many as a message can name.
    const PAGES: usize = 87_000;
    let mut h = begun(ServerConfig::default().subscriptions_all_max);
    let (view, watermark) = (h.view(), h.server.visible());
    let pages: Vec<(PageId, u64)> = (0..PAGES as u32).map(|n| (page(1_000 + n), 1)).collect();
    let greet = |h: &mut Hand, client: u64| {
        let conn = Conn(client);
        h.input(Input::Connected(conn, Default::default()));
        let hello = Hello {
            resume: Some(Resume { view, watermark, heard: watermark, pages: pages.clone() }),
            ..Hello::new(ClientId(client))
        };
        h.send(conn, Kind::Hello, |o| hello.encode(o))
    };
    let together = GREETED_PAGES_MAX / PAGES;
    for client in 0..together as u64 {
        assert_eq!(greet(&mut h, 100 + client), []);
    }
    let said = greet(&mut h, 1_000);
    assert_eq!(refused(&said).map(|(reason, _)| reason), Some(Refusal::Unavailable));
    assert!(closed(&said, Conn(1_000)));
    // There is room again once one of them has been taken in.
    while h.input(Input::Time).is_empty() {}
    assert_eq!(greet(&mut h, 1_001), []);
}

#[test]
fn connection_for_which_the_host_has_no_room_is_told_and_ended() {
    let mut h = begun(1_000);
    h.greet(A, 5, 1);
    h.input(Input::Connected(B, Default::default()));
    assert!(h.server.has_greeted(A) && !h.server.has_greeted(B) && !h.server.has_greeted(Conn(9)));
    for conn in [A, B] {
        let said = h.input(Input::NoRoom(conn, "too much: come again"));
        assert_eq!(refused(&said), Some((Refusal::FULL, "too much: come again".into())));
        assert!(closed(&said, conn));
    }
    assert_eq!(h.server.sessions_count(), 0);
}
