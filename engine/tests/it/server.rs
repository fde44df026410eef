//! The server alone, spoken to by hand: what no honest client sends, and what the network does to what they
//! send.

use std::collections::BTreeMap;

use crate::world::hand::{A, B, Hand, Said, Work, closed, layout, object, outcomes, recovery, refused};
use tercel_engine::limits::{CLIENTS_MAX, CREDIT, LEASED_UNUSED_MAX, REVOKING_MAX};
use tercel_engine::server::{Conn, Input, LogRoom, Recovery, ServerConfig, Unread};
use tercel_engine::time::Now;
use tercel_wire::class::FORWARD;
use tercel_wire::frame::Kind;
use tercel_wire::id::{ClassId, ClientId, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::layout::{Layout, Shape};
use tercel_wire::message::*;
use tercel_wire::page::Page;
use tercel_wire::schema::Scalar;

#[test]
fn page_without_waiters_is_still_updated() {
    let mut h = Hand::with(ServerConfig { cache_bytes: 1, ..ServerConfig::default() });
    h.greet(A, 5, 1);
    let class = h.define(A);
    let page = h.lease(A, 1)[0];
    let old = object(class, 1);
    h.commit(A, op(5, 1), &make(page, 0, &old));
    h.sync();
    h.flush();
    let stored = h.pages.iter().find(|(p, _)| *p == page).unwrap().1.clone().unwrap().to_vec();
    h.input(Input::Installed(h.view()));
    // A change, on its way to the store; and the server's own copy of the page goes.
    let mut new = old.clone();
    new[4] = 9;
    let write = Write { oref: Oref::new(page, 0).unwrap(), new: false, object: &new };
    let change = Work { base: h.server.visible(), reads: vec![], writes: vec![write] };
    h.commit(A, op(5, 2), &change);
    h.sync();
    h.flush();
    h.greet(B, 6, 1);
    for n in 0..40 {
        let other = PageId::new(1_000 + n).unwrap();
        h.fetch(B, other, u64::from(n) + 1);
    }
    // A client asks for it and goes. The page as it was comes, then the answer that the change is stored.
    h.fetch(B, page, 99);
    h.input(Input::Disconnected(B));
    h.input(Input::Read(h.view(), page, Ok(Some(stored))));
    h.input(Input::Installed(h.view()));
    let again = Conn(3);
    h.greet(again, 6, 2);
    let said = h.fetch(again, page, 100);
    let (_, _, _, body) = said.iter().find(|(_, k, ..)| *k == Kind::Page).expect("it is here");
    let reply = PageReply::decode(body).unwrap();
    assert_eq!(Page::parse(reply.bytes, page).unwrap().object(0), Some(&new[..]));
}

#[test]
fn only_damage_is_refused_as_damage() {
    let mut h = Hand::storing(ServerConfig::default(), 10);
    let page = PageId::new(5).unwrap();
    let write =
        Write { oref: Oref::new(page, 0).unwrap(), new: false, object: &object(ClassId::FIRST_USER, 1) };
    let damaged = (Unread::Damaged("the page".into()), (Refusal::Corrupt, "the page".to_string()));
    let failed = (Unread::Refused("the disk".into()), (Refusal::Unavailable, "the disk".to_string()));
    for (seq, (unread, expected)) in (1..).zip([failed, damaged]) {
        assert_eq!(h.fetch(A, page, seq), []);
        let change = Work { base: h.server.visible(), reads: vec![], writes: vec![write] };
        assert_eq!(h.commit(B, op(6, seq), &change), []);
        let said = h.input(Input::Read(h.view(), page, Err(unread)));
        let refusals: Vec<_> = said.iter().filter(|(_, kind, ..)| *kind == Kind::Refused).collect();
        let [fetch, commit] = refusals[..] else { panic!("{said:?}") };
        assert_eq!((fetch.0, refused(&vec![fetch.clone()])), (A, Some(expected.clone())));
        assert_eq!((commit.0, refused(&vec![commit.clone()])), (B, Some(expected)));
        assert_eq!(outcomes(&said), [Err(Refusal::NotExecuted)]);
    }
}

fn op(client: u64, seq: u64) -> OpId {
    OpId { client: ClientId(client), slot: 0, seq, view: ViewId::new(1, 7) }
}

fn make(page: PageId, slot: u16, object: &[u8]) -> Work<'_> {
    let write = Write { oref: Oref::new(page, slot).unwrap(), new: true, object };
    Work { base: Stamp(1), reads: vec![], writes: vec![write] }
}

#[test]
fn a_commit_that_arrives_twice_is_executed_once() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    let (class, page) = (h.define(A), h.lease(A, 1)[0]);
    let object = object(class, 1);
    let effects = make(page, 0, &object);
    assert_eq!(outcomes(&h.commit(A, op(5, 1), &effects)), []);
    assert_eq!(outcomes(&h.commit(A, op(5, 1), &effects)), []);
    let [Ok(stamp)] = outcomes(&h.sync())[..] else { panic!("one answer") };
    assert_eq!(outcomes(&h.commit(A, op(5, 1), &effects)), [Ok(stamp)]);
    assert_eq!(h.server.stats().commits, 1);
}

#[test]
fn slot_goes_on_beyond_4_billion_operations_and_over_a_restart() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    let (class, page) = (h.define(A), h.lease(A, 1)[0]);
    let (one, oref) = (object(class, 1), Oref::new(page, 0).unwrap());
    let end = u64::from(u32::MAX);
    let mut last = Err(Refusal::Unknown);
    for seq in end - 1..=end + 2 {
        let write = Write { oref, new: seq == end - 1, object: &one };
        let work = Work { base: h.server.visible(), reads: vec![], writes: vec![write] };
        h.commit(A, op(5, seq), &work);
        let said = outcomes(&h.sync());
        assert!(matches!(said[..], [Ok(_)]), "operation {seq}: {said:?}");
        last = said[0];
    }
    assert_eq!(outcomes(&h.resolve(A, op(5, end + 1))), [Err(Refusal::Unknown)], "a later one was executed");
    assert_eq!(outcomes(&h.resolve(A, op(5, end + 2))), [last]);
    // From a checkpoint, without the log before it.
    h.flush();
    h.input(Input::Installed(h.view()));
    h.flush();
    let checkpoint = h.installs.iter().flatten().last().expect("a checkpoint").clone();
    assert_eq!(checkpoint.applied, h.last());
    let recovery = Recovery::new(ServerConfig::default(), SpaceId(1), Some(&checkpoint), PageId::MAX.get());
    let mut h = Hand::of(recovery.unwrap(), Vec::new());
    h.greet(B, 5, 2);
    assert_eq!(outcomes(&h.resolve(B, op(5, end + 2))), [last]);
    assert_eq!(outcomes(&h.resolve(B, op(5, end + 1))), [Err(Refusal::Unknown)]);
}

#[test]
fn what_was_said_not_to_be_executed_never_will_be() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    let (class, page) = (h.define(A), h.lease(A, 1)[0]);
    assert_eq!(outcomes(&h.resolve(A, op(5, 1))), [Err(Refusal::NotExecuted)]);
    let object = object(class, 1);
    assert_eq!(outcomes(&h.commit(A, op(5, 1), &make(page, 0, &object))), [Err(Refusal::NotExecuted)]);
    // Nor on another connection, nor an operation of another life.
    h.greet(B, 5, 2);
    let page = h.lease(B, 1)[0];
    assert_eq!(outcomes(&h.commit(B, op(5, 1), &make(page, 0, &object))), [Err(Refusal::NotExecuted)]);
    assert_eq!(outcomes(&h.commit(B, op(5, 2), &make(page, 0, &object))), []);
    assert_eq!(h.server.stats().commits, 1);
}

#[test]
fn old_operations_never_execute_foreign_ones_are_unknown() {
    let first = Hand::new();
    let mut h = Hand::of(recovery(&first.log), first.log.clone());
    h.greet(B, 5, 2);
    let (class, page) = (h.define(B), h.lease(B, 1)[0]);
    let object = object(class, 1);
    assert_eq!(h.view(), ViewId::new(2, 7));
    assert_eq!(outcomes(&h.commit(B, op(5, 2), &make(page, 0, &object))), [Err(Refusal::NotExecuted)]);
    for view in [ViewId::new(1, 8), ViewId::new(9, 7)] {
        let stranger = OpId { view, ..op(5, 2) };
        assert_eq!(outcomes(&h.commit(B, stranger, &make(page, 0, &object))), [Err(Refusal::Unknown)]);
    }
    assert_eq!(h.server.stats().commits, 0);
}

#[test]
fn an_older_connection_never_takes_a_younger_ones_place() {
    let mut h = Hand::new();
    h.greet(B, 5, 2);
    assert!(closed(&h.greet(A, 5, 1), A));
    assert!(h.send(B, Kind::Ping, |_| ()).iter().any(|(_, k, ..)| *k == Kind::Pong));
}

#[test]
fn a_connection_greets_once() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    assert!(closed(&h.hello(A, 6, 1), A));
}

#[test]
fn parts_out_of_order_cost_the_transaction_and_nothing_else() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    for index in [1, 0, 2] {
        let said = h.send(A, Kind::Part, |o| Part { op: op(5, 1), index, bytes: b"xx" }.encode(o));
        // A refusal of no call in particular would end the client.
        assert_eq!(said, []);
    }
    let said = h.send(A, Kind::Commit, |o| Commit { op: op(5, 1), parts: 3, bytes: b"" }.encode(o));
    assert_eq!(outcomes(&said), [Err(Refusal::Full(Limit::Transaction))]);
    assert!(!closed(&said, A));
}

#[test]
fn a_commit_that_cannot_be_read_ends_its_connection() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    let said = h.send(A, Kind::Commit, |o| Commit { op: op(5, 1), parts: 0, bytes: b"nonsense" }.encode(o));
    assert!(closed(&said, A));
}

#[test]
fn unknown_kind_is_refused_by_number_and_version() {
    let mut h = Hand::new();
    h.input(Input::Connected(A, Default::default()));
    for is_greeted in [false, true] {
        if is_greeted {
            h.hello(A, 5, 1);
        }
        let said = h.send(A, Kind::of(63), |o| o.push(1));
        let (reason, text) = refused(&said).expect("an answer");
        assert_eq!((reason, said[0].2), (Refusal::Unsupported, 7));
        assert!(text.contains("kind 63") && text.contains("version 4 of the protocol"), "{text}");
        assert!(!closed(&said, A));
    }
    assert!(h.send(A, Kind::Ping, |_| ()).iter().any(|(_, k, ..)| *k == Kind::Pong), "it goes on");
}

#[test]
fn clients_write_what_they_may_and_no_forwards() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    h.greet(B, 6, 1);
    let (class, page) = (h.define(A), h.lease(A, 1)[0]);
    let oref = Oref::new(page, 0).unwrap();
    let (good, forward) = (object(class, 1), object(FORWARD, 1));
    assert_eq!(outcomes(&h.commit(A, op(5, 1), &make(page, 0, &forward))), [Err(Refusal::Invalid(oref))]);
    assert_eq!(outcomes(&h.commit(B, op(6, 1), &make(page, 0, &good))), [Err(Refusal::Invalid(oref))]);
    let unknown = object(ClassId(4_000), 1);
    assert_eq!(outcomes(&h.commit(A, op(5, 2), &make(page, 0, &unknown))), [Err(Refusal::Invalid(oref))]);
    assert_eq!(outcomes(&h.commit(A, op(5, 3), &make(page, 0, &good))), []);
}

#[test]
fn bytes_behind_the_last_part_of_an_object_are_refused() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    let (class, page) = (h.define(A), h.lease(A, 1)[0]);
    let oref = Oref::new(page, 0).unwrap();
    let good = object(class, 1);
    for (seq, behind) in (1..).zip([vec![0; 4], vec![0xee; 4], vec![0; 4_000]]) {
        let longer = [good.clone(), behind].concat();
        let said = outcomes(&h.commit(A, op(5, seq), &make(page, 0, &longer)));
        assert_eq!(
            said,
            [Err(Refusal::Invalid(oref))],
            "{} bytes stand behind an object of 8",
            longer.len() - 8
        );
    }
    assert_eq!(outcomes(&h.commit(A, op(5, 9), &make(page, 0, &good))), []);
    assert!(matches!(outcomes(&h.sync())[..], [Ok(_)]));
}

#[test]
fn a_class_is_heard_of_when_it_is_durable() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    h.greet(B, 6, 1);
    let known = |h: &mut Hand| {
        let said = h.send(B, Kind::Catalogue, |_| ());
        Classes::decode(&said[0].3).unwrap().classes.len()
    };
    assert_eq!(h.send(A, Kind::Define, |o| layout("C").encode(o)), []);
    assert_eq!(h.send(B, Kind::Define, |o| layout("C").encode(o)), []);
    assert_eq!(known(&mut h), 0);
    let said = h.sync();
    // The number of the first class that is a program's own, in two bytes.
    let told: Vec<_> =
        said.iter().filter(|(_, k, ..)| *k == Kind::Defined).map(|(.., body)| &body[..]).collect();
    assert_eq!(told, [[16, 0], [16, 0]]);
    assert_eq!(known(&mut h), 1);
}

#[test]
fn backpressured_client_that_reads_is_not_silent() {
    let mut h = Hand::new();
    h.greet(A, 1, 1);
    h.greet(B, 2, 1);
    let silence_us = 2 * ServerConfig::default().keepalive_ms as u64 * 1_000;
    let mut said = Said::new();
    for _ in 0..6 {
        h.now = h.now.plus_us(silence_us / 4);
        h.input(Input::Alive(A));
        said.extend(h.input(Input::Time));
    }
    assert!(closed(&said, B) && !closed(&said, A));
    // Once it takes nothing any more, it is silent like others.
    h.now = h.now.plus_us(2 * silence_us);
    assert!(closed(&h.input(Input::Time), A));
    // For a closed connection the input means nothing.
    assert!(h.input(Input::Alive(A)).is_empty());
}

#[test]
fn a_client_that_gives_no_page_back_is_cut_off() {
    let mut h = Hand::with(ServerConfig { subscriptions_max: 4, ..ServerConfig::default() });
    h.greet(A, 5, 1);
    let asked = (1..).find(|n| {
        let page = PageId::new(*n).unwrap();
        closed(&h.fetch(A, page, u64::from(*n)), A)
    });
    let least = REVOKING_MAX as u32;
    assert!(asked.is_some_and(|n| (least..2 * least + 10).contains(&n)), "{asked:?}");
}

#[test]
fn a_client_is_asked_for_a_page_once_and_reminded_after_a_while() {
    let mut h = Hand::with(ServerConfig { subscriptions_max: 4, ..ServerConfig::default() });
    h.greet(A, 5, 1);
    let asked = |h: &mut Hand, n: u32| -> Vec<PageId> {
        let page = PageId::new(n).unwrap();
        let said = h.fetch(A, page, u64::from(n));
        let streams = said.iter().filter(|(_, kind, ..)| *kind == Kind::Stream);
        let revoked = streams.flat_map(|(.., body)| Stream::decode(body).unwrap().revoked);
        revoked.map(|(page, _)| page).collect()
    };
    // What a page pushes out is asked for with the next.
    let mut all: Vec<PageId> = (1..=13).flat_map(|n| asked(&mut h, n)).collect();
    assert_eq!(all.len(), 8);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 8, "none of them twice");
    h.now = h.now.plus_us(60_000);
    let reminded = asked(&mut h, 14);
    assert!(reminded.len() == 9 && all.iter().all(|page| reminded.contains(page)), "{reminded:?}");
    // Those that come back are not asked for again.
    let pages = reminded.iter().take(8).map(|page| (*page, u64::from(page.get()))).collect();
    h.send(A, Kind::Unsubscribe, |o| Unsubscribe { pages }.encode(o));
    h.now = h.now.plus_us(60_000);
    assert_eq!(asked(&mut h, 15).len(), 2);
}

#[test]
fn page_fetched_just_now_is_asked_back_last() {
    // Whichever three pages a transaction needs: it has them all at once, once those of before are gone.
    for first in 1..200 {
        let mut h = Hand::with(ServerConfig { subscriptions_max: 8, ..ServerConfig::default() });
        h.greet(A, 5, 1);
        let (mut fetch, mut held) = (0, BTreeMap::new());
        for n in (1_000..1_008).chain((first..first + 3).cycle().take(9)) {
            fetch += 1;
            held.insert(PageId::new(n).unwrap(), fetch);
            let said = h.fetch(A, PageId::new(n).unwrap(), fetch);
            let streams = said.iter().filter(|(_, kind, ..)| *kind == Kind::Stream);
            let pages: Vec<_> =
                streams.flat_map(|(.., body)| Stream::decode(body).unwrap().revoked).collect();
            pages.iter().for_each(|(page, _)| _ = held.remove(page));
            h.send(A, Kind::Unsubscribe, |o| Unsubscribe { pages }.encode(o));
        }
        assert!((first..first + 3).all(|n| held.contains_key(&PageId::new(n).unwrap())), "{first}: {held:?}");
    }
}

#[test]
fn a_client_without_a_session_is_evicted_and_may_come_back_as_another() {
    let mut h = Hand::new();
    h.greet(A, 1, 1);
    let (class, page) = (h.define(A), h.lease(A, 1)[0]);
    let object = object(class, 1);
    h.commit(A, op(1, 1), &make(page, 0, &object));
    let mut told = false;
    for client in 2..CLIENTS_MAX as u64 + 3 {
        let conn = Conn(client);
        h.greet(conn, client, 1);
        let page = h.lease(conn, 1)[0];
        let said = h.commit(conn, op(client, 1), &make(page, 0, &object));
        told |= closed(&said, A);
        h.input(Input::Disconnected(conn));
    }
    h.sync();
    // The one that is connected keeps its answers, though its commit is the oldest.
    assert!(!told);
    assert!(matches!(outcomes(&h.resolve(A, op(1, 1)))[..], [Ok(_)]));
    let refused = h.greet(Conn(90_000), 2, 2);
    assert!(
        refused
            .iter()
            .any(|(_, k, _, b)| *k == Kind::Refused && Refused::decode(b).unwrap().reason == Refusal::Evicted)
    );
    let welcome = h.greet(Conn(90_001), 77_777, 1);
    assert!(welcome.iter().any(|(_, k, ..)| *k == Kind::Welcome));
}

#[test]
fn client_that_says_good_bye_is_forgotten() {
    let mut h = Hand::new();
    h.greet(A, 1, 1);
    let (class, page) = (h.define(A), h.lease(A, 1)[0]);
    h.commit(A, op(1, 1), &make(page, 0, &object(class, 1)));
    h.sync();
    h.send(A, Kind::Bye, |_| ());
    h.sync();
    // It was not evicted, so it may come back; but of what it did nothing is known.
    let again = Conn(3);
    assert!(h.greet(again, 1, 2).iter().any(|(_, k, ..)| *k == Kind::Welcome));
    assert_eq!(outcomes(&h.resolve(again, op(1, 1))), [Err(Refusal::NotExecuted)]);
}

#[test]
fn operation_in_a_slot_beyond_the_grant_is_refused() {
    let mut h = Hand::new();
    h.greet(A, 1, 1);
    let (class, page) = (h.define(A), h.lease(A, 1)[0]);
    let object = object(class, 1);
    let last = OpId { slot: CREDIT - 1, ..op(1, 1) };
    h.commit(A, last, &make(page, 0, &object));
    assert!(matches!(outcomes(&h.sync())[..], [Ok(_)]));
    let beyond = OpId { slot: CREDIT, ..op(1, 1) };
    let said = h.commit(A, beyond, &make(page, 1, &object));
    assert_eq!(outcomes(&said), [Err(Refusal::Full(Limit::Buffer))]);
    assert_eq!(outcomes(&h.resolve(A, beyond)), [Err(Refusal::NotExecuted)]);
}

#[test]
fn a_client_that_makes_nothing_in_its_pages_gets_no_more_of_them() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    let mut leased = 0;
    let refused = loop {
        let said = h.ask_places(A, 64);
        match refused(&said) {
            Some(refused) => break refused,
            None => leased += Leased::decode(&said[0].3).unwrap().pages.len(),
        }
        assert!(leased <= LEASED_UNUSED_MAX);
    };
    assert_eq!((refused.0, leased), (Refusal::FULL, LEASED_UNUSED_MAX));
    // Another client is not the poorer for it.
    h.greet(B, 6, 1);
    assert_eq!(h.lease(B, 1).len(), 1);
}

#[test]
fn whether_a_session_is_over_is_said_only_once_it_is_certain() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    h.lease(A, 1);
    h.input(Input::Disconnected(A));
    h.now = h.now.plus_us(5 * ServerConfig::default().keepalive_ms as u64 * 1_000);
    h.input(Input::Time);
    // The end is ordered. Were it lost, the client would still have its grants, and count from the first one
    // anew.
    assert_eq!(refused(&h.greet(B, 5, 2)).map(|r| r.0), Some(Refusal::Unavailable));
    h.sync();
    h.greet(Conn(3), 5, 3);
    assert_eq!(h.lease(Conn(3), 1).len(), 1);
}

#[test]
fn a_client_that_fills_its_pages_gets_as_many_as_it_fills() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    let class = h.define(A);
    let object = object(class, 1);
    let mut first = None;
    for _ in 0..LEASED_UNUSED_MAX / 64 {
        let said = h.ask_places(A, 64);
        first = first.or(Some(Leased::decode(&said[0].3).unwrap().pages[0]));
    }
    assert!(refused(&h.ask_places(A, 64)).is_some());
    h.commit(A, op(5, 1), &make(first.unwrap(), 0, &object));
    let said = h.ask_places(A, 64);
    assert_eq!(Leased::decode(&said[0].3).unwrap().pages.len(), 1);
}

#[test]
fn a_class_with_which_the_catalogue_could_not_be_sent_is_refused() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    let wide = |n: usize| {
        let fields = (0..250).map(|i| (format!("{i:0120}"), Shape::Scalar(Scalar::U32))).collect();
        Layout::new(format!("C{n}"), fields)
    };
    let mut defined = 0;
    let (reason, text) = loop {
        if let Some(refused) = refused(&h.send(A, Kind::Define, |o| wide(defined).encode(o))) {
            break refused;
        }
        h.sync();
        defined += 1;
        assert!(defined < 100);
    };
    assert!(reason == Refusal::Schema && text.contains("one message"), "{text}");
    // What there is can be sent, and what is small can be defined.
    let said = h.send(A, Kind::Catalogue, |_| ());
    assert_eq!(Classes::decode(&said[0].3).unwrap().classes.len(), defined);
    h.define(A);
}

/// A client with an object that it changes again and again.
fn changing(h: &mut Hand) -> impl FnMut(&mut Hand) -> Said + use<> {
    h.greet(A, 5, 1);
    let (class, page) = (h.define(A), h.lease(A, 1)[0]);
    let object = object(class, 1);
    h.commit(A, op(5, 1), &make(page, 0, &object));
    h.sync();
    let mut seq = 1;
    move |h| {
        seq += 1;
        let write = Write { oref: Oref::new(page, 0).unwrap(), new: false, object: &object };
        let effects = Work { base: h.last(), reads: vec![], writes: vec![write] };
        let mut said = h.commit(A, op(5, seq), &effects);
        said.extend(h.sync());
        said
    }
}

#[test]
fn recovery_never_replays_more_than_a_bound_however_little_is_modified() {
    const ENTRIES: u64 = 350_000;
    let mut h = Hand::new();
    let mut change = changing(&mut h);
    let mut behind_max = 0;
    for _ in 0..ENTRIES {
        change(&mut h);
        if !h.installs.is_empty() {
            h.installs.clear();
            h.input(Input::Installed(h.view()));
        }
        behind_max = behind_max.max(h.last().0.saturating_sub(h.truncated.0));
    }
    assert!((100_000..110_000).contains(&behind_max), "{behind_max}");
}

#[test]
fn a_log_that_is_too_long_is_made_shorter_and_commits_wait_for_that() {
    let mut h = Hand::new();
    let mut change = changing(&mut h);
    assert_eq!((outcomes(&change(&mut h)).len(), h.installs.len()), (1, 0));
    // A checkpoint goes with the first batch, not after many.
    h.input(Input::LogRoom(LogRoom::Tight));
    assert!(matches!(&h.installs[..], [Some(_)]), "{:?}", h.installs);
    assert_eq!(outcomes(&change(&mut h)).len(), 1);
    h.input(Input::LogRoom(LogRoom::Full));
    assert_eq!(outcomes(&change(&mut h)), []);
    h.input(Input::Installed(h.view()));
    assert!(h.truncated > Stamp(1));
    h.input(Input::LogRoom(LogRoom::Free));
    assert_eq!(outcomes(&h.sync()).len(), 1);
}

#[test]
fn when_too_many_commits_wait_for_a_long_log_they_are_answered_full() {
    let mut h = Hand::with(ServerConfig { mob_bytes: 4096, ..ServerConfig::default() });
    let mut change = changing(&mut h);
    h.input(Input::LogRoom(LogRoom::Full));
    let answers: Vec<Outcome> = (0..200).flat_map(|_| outcomes(&change(&mut h))).collect();
    assert!(
        !answers.is_empty() && answers.iter().all(|o| *o == Err(Refusal::Full(Limit::Buffer))),
        "{answers:?}"
    );
}

#[test]
fn client_without_cached_pages_hears_fewer_beats() {
    let mut h = Hand::new();
    let mut change = changing(&mut h);
    h.greet(B, 6, 1);
    change(&mut h);
    let beat = |h: &mut Hand| {
        h.now = Now(h.now.0 + 60_000);
        h.input(Input::Time).iter().any(|(conn, k, ..)| *conn == B && *k == Kind::Stream)
    };
    assert!(!beat(&mut h));
    h.fetch(B, PageId::new(1).unwrap(), 1);
    change(&mut h);
    assert!(beat(&mut h));
}
