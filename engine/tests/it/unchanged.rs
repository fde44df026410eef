//! Copies whose subscription has ended: they are used again where nothing has changed, without the page, and
//! nowhere else.

use crate::world::World;
use crate::world::hand::{A, B, Hand, Said, Work, object};
use crate::world::things::{Thing, count, make, many, set};
use tercel_engine::client::ClientStats;
use tercel_engine::limits::RECENT_CHANGES_MAX;
use tercel_engine::server::ServerConfig;
use tercel_engine::txn::{Isolation, Tx};
use tercel_wire::frame::Kind;
use tercel_wire::id::{ClientId, OpId, Oref, PageId, Stamp, ViewId};
use tercel_wire::message::*;
use tercel_wire::page::PAGE_BYTES;
use tercel_wire::record::Ref;

fn op(client: u64, seq: u64) -> OpId {
    OpId { client: ClientId(client), slot: 0, seq, view: ViewId::new(1, 7) }
}

/// The answers to a connection, without the stream: kinds and bytes.
fn answers(said: &Said) -> Vec<(Kind, usize)> {
    said.iter()
        .filter(|(_, kind, ..)| *kind != Kind::Stream)
        .map(|(_, kind, _, body)| (*kind, body.len()))
        .collect()
}

#[test]
fn server_says_unchanged_only_of_what_it_can_prove() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    h.greet(B, 6, 1);
    let class = h.define(A);
    let page = h.lease(A, 1)[0];
    let write = |n, new| (Oref::new(page, 0).unwrap(), object(class, n), new);
    let change = |h: &mut Hand, seq, n, new| {
        let (oref, object, new) = write(n, new);
        let writes = vec![Write { oref, new, object: &object }];
        h.commit(A, op(5, seq), &Work { base: h.server.visible(), reads: vec![], writes });
        h.sync()
    };
    change(&mut h, 1, 1, true);
    let made = h.server.visible();
    let whole = vec![(Kind::Page, 12 + PAGE_BYTES)];
    let none = vec![(Kind::Unchanged, 12)];
    // Of its own stamp, below it, and above all that there is, nothing is proven.
    for since in [Stamp::ZERO, Stamp(made.0 - 1), made, made.next(), Stamp::MAX] {
        assert_eq!(answers(&h.fetch_since(B, page, 1, since)), whole, "{since}");
    }
    // A commit elsewhere moves the stamp that a client may have heard of.
    let other = h.lease(A, 1)[0];
    let made_there = object(class, 7);
    let writes = vec![Write { oref: Oref::new(other, 0).unwrap(), new: true, object: &made_there }];
    h.commit(A, op(5, 2), &Work { base: h.server.visible(), reads: vec![], writes });
    h.sync();
    let later = h.server.visible();
    assert!(later > made);
    assert_eq!(answers(&h.fetch_since(B, page, 2, later)), none);
    // The same once the page is stored, and the buffer of modified objects is empty.
    h.flush();
    assert_eq!(answers(&h.fetch_since(B, page, 3, later)), none);
    assert_eq!(h.stat("fetches_unchanged"), 2);
    // A page in which there is nothing is none that could be unchanged.
    let nothing = PageId::new(4_000).unwrap();
    assert_eq!(answers(&h.fetch_since(B, nothing, 4, later)), [(Kind::Page, 12)]);
    // The client that was told so hears of the next change.
    let said = change(&mut h, 3, 2, false);
    let heard = said.iter().filter(|(conn, kind, ..)| (*conn, *kind) == (B, Kind::Stream));
    let heard: Vec<Oref> = heard
        .flat_map(|(.., body)| Stream::decode(body).unwrap().changes)
        .flat_map(|change| change.orefs)
        .collect();
    assert_eq!(heard, [Oref::new(page, 0).unwrap()]);
    assert_eq!(answers(&h.fetch_since(B, page, 5, later)), whole);
}

/// The number of pages that a client has fetched since, and of those found unchanged.
fn since(w: &World, client: usize, before: ClientStats) -> (u64, u64) {
    let now = w.lock().clients[client].stats();
    (now.pages - before.pages, now.unchanged - before.unchanged)
}

fn stats(w: &World, client: usize) -> ClientStats {
    w.lock().clients[client].stats()
}

/// The client that changes other things, with a cache for many of them.
const OTHER: usize = 3;

/// Two clients have made an object each, in pages of their own, and the third has both.
fn of_three() -> (World, Ref<Thing>, Ref<Thing>) {
    let w = World::new(3, 3, ServerConfig::default());
    assert_eq!(w.add_client(78, 32 << 20), OTHER);
    make(&w, OTHER, "other", 1);
    let (x, y) = (make(&w, 0, "x", 1), make(&w, 1, "y", 1));
    // Later than both.
    w.run(0, |tx| set(tx, x, 2)).unwrap();
    w.run(1, |tx| set(tx, y, 2)).unwrap();
    w.run(0, |tx| set(tx, x, 3)).unwrap();
    assert_eq!((count(&w, 2, x), count(&w, 2, y)), (3, 2));
    (w, x, y)
}

/// The third client is away while so much changes elsewhere that the server does not know all of it when it
/// comes back.
fn is_away(w: &World) {
    is_away_while(w, || {});
}

/// The same while something else happens, too.
fn is_away_while(w: &World, meanwhile: impl FnOnce()) {
    w.run_until_idle();
    w.lock().hold.connects = true;
    w.cut(2);
    meanwhile();
    (0..=RECENT_CHANGES_MAX / 2_000).for_each(|_| _ = many(w, OTHER, 2_000, 8));
    w.run_until_idle();
    w.crash();
    w.restart();
    w.lock().hold.connects = false;
    w.run_until_idle();
}

#[test]
fn restarted_server_sends_only_pages_that_it_cannot_prove() {
    let (w, x, y) = of_three();
    is_away(&w);
    let before = stats(&w, 2);
    assert_eq!((count(&w, 2, y), since(&w, 2, before)), (2, (0, 1)));
    // The last commit that the client has heard of was to the other page.
    assert_eq!((count(&w, 2, x), since(&w, 2, before)), (3, (1, 1)));
    // What was found unchanged is heard of again, and changed by this client as ever.
    w.run(1, |tx| set(tx, y, 5)).unwrap();
    w.run_until_idle();
    assert_eq!((count(&w, 2, y), since(&w, 2, before)), (5, (2, 1)));
    w.run(2, |tx| set(tx, y, 6)).unwrap();
    assert_eq!((count(&w, 2, y), count(&w, 1, y)), (6, 6));
}

#[test]
fn own_commit_in_a_page_found_unchanged_is_shown_without_a_fetch() {
    let (w, _, y) = of_three();
    is_away(&w);
    let before = stats(&w, 2);
    w.run(2, |tx| set(tx, y, tx.get(y)?.count() + 1)).unwrap();
    assert_eq!((count(&w, 2, y), since(&w, 2, before)), (3, (0, 1)));
}

#[test]
fn what_changed_while_the_client_was_away_is_sent() {
    let (w, x, y) = of_three();
    is_away_while(&w, || w.run(1, |tx| set(tx, y, 9)).unwrap());
    let before = stats(&w, 2);
    assert_eq!((count(&w, 2, y), count(&w, 2, x)), (9, 3));
    assert_eq!(since(&w, 2, before), (2, 0));
}

#[test]
fn what_was_stale_before_is_sent_although_the_page_is_unchanged() {
    let (w, x, y) = of_three();
    // A second object in the page of `x`, which the reader has and knows to be stale.
    let z = make(&w, 0, "z", 1);
    assert_eq!(count(&w, 2, z), 1);
    w.run(0, |tx| set(tx, z, 2)).unwrap();
    w.run(1, |tx| set(tx, y, 3)).unwrap();
    assert_eq!(z.oref().page(), x.oref().page());
    is_away(&w);
    let before = stats(&w, 2);
    assert_eq!((count(&w, 2, x), since(&w, 2, before)), (3, (0, 1)));
    assert_eq!((count(&w, 2, z), since(&w, 2, before)), (2, (1, 1)));
}

#[test]
fn reader_of_what_was_lost_and_found_unchanged_goes_on() {
    let (w, _, y) = of_three();
    w.run_until_idle();
    let port = w.thread(2);
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    let seen = tx.get(y).unwrap().count();
    is_away(&w);
    // Another transaction finds out that it is unchanged.
    assert_eq!(count(&w, 2, y), 2);
    let again = tx.get(y).map(|y| y.count());
    assert!(again == Ok(seen) || again.is_err(), "{again:?}");
    drop(tx);
    w.run(1, |tx| set(tx, y, 4)).unwrap();
    w.run_until_idle();
    assert_eq!(count(&w, 2, y), 4);
}

#[test]
fn pages_asked_back_are_found_unchanged() {
    let config = ServerConfig { subscriptions_max: 4, ..ServerConfig::default() };
    let w = World::new(5, 1, config);
    w.run_until_idle();
    // Two or three of them fill a page.
    let all = many(&w, 0, 24, 3_000);
    // Later than they.
    make(&w, 0, "later", 1);
    let pages: std::collections::BTreeSet<PageId> = all.iter().map(|r| r.oref().page()).collect();
    assert!(pages.len() >= 6, "{pages:?}");
    let reader = w.add_client(77, 512 << 10);
    let read = |w: &World| all.iter().for_each(|r| _ = count(w, reader, *r));
    read(&w);
    let before = stats(&w, reader);
    (0..3).for_each(|_| read(&w));
    let (sent, unchanged) = since(&w, reader, before);
    assert!(sent <= 3 && unchanged >= 20, "{sent} pages sent, {unchanged} unchanged");
}
