//! The chunks and places that large values and moved objects leave are freed, and their pages are given out
//! again.

use std::collections::BTreeMap;

use crate::world::things::{Thing, make, many, set, small, thing, world};
use crate::world::{Thread, World};
use tercel_derive::Object;
use tercel_engine::error::Error;
use tercel_engine::replica::Replica;
use tercel_engine::server::{Recovery, ServerConfig};
use tercel_engine::txn::{Isolation, Tx, run};
use tercel_wire::id::PageId;
use tercel_wire::page::Page;
use tercel_wire::record::{Bytes, List, Ref};

/// An object with large values.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Album {
    picture: Bytes,
    things: List<Ref<Thing>>,
    number: u64,
}

/// Ordered state and pages as the whole history has them.
fn replayed(w: &World) -> (Replica, BTreeMap<PageId, Vec<usize>>) {
    let inner = w.lock();
    let mut recovery = Recovery::new(ServerConfig::default(), crate::world::SPACE, None, 0).unwrap();
    for e in &inner.history {
        recovery.replay(e.view, e.stamp, e.kind, &e.payload).unwrap();
    }
    let (state, mob) = recovery.into_parts();
    let objects = |page: PageId| {
        let bytes = mob.merge_page(page, None, state.stamp, crate::world::SPACE, Vec::new()).unwrap();
        Page::parse(&bytes, page).unwrap().objects().map(|(_, o)| o.len()).collect::<Vec<_>>()
    };
    let pages = mob.page_ids().into_iter().map(|page| (page, objects(page)));
    let pages = pages.filter(|(_, objects)| !objects.is_empty()).collect();
    (state, pages)
}

/// Checks that the ordered state describes each page as it is.
pub fn verify(w: &World) -> (Replica, BTreeMap<PageId, Vec<usize>>) {
    let (state, pages) = replayed(w);
    for n in 1..state.places.next_page() {
        let page = PageId::new(n).unwrap();
        let objects = pages.get(&page).map_or(0, Vec::len);
        assert_eq!(state.places.filled(page) as usize, objects, "page {page}");
        assert!(objects == 0 || state.places.returned_at(page).is_none(), "page {page}");
    }
    (state, pages)
}

fn picture(n: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i as u64 + n) as u8).collect()
}

fn album(w: &World, client: usize) -> Ref<Album> {
    let album = Album { picture: picture(0, 100_000).into(), things: List::new(), number: 0 };
    w.run(client, |tx| {
        let r = tx.create(&album)?;
        tx.set_root("album", r)?;
        Ok(r)
    })
    .unwrap()
}

#[test]
fn value_that_is_replaced_by_session_after_session_takes_the_room_of_a_few() {
    let w = world(2);
    let r = album(&w, 0);
    for n in 0..60 {
        w.run(0, |tx| tx.edit(r)?.set_picture(picture(n, 100_000))).unwrap();
        w.run_until_idle();
        if n % 5 == 4 {
            crate::places::end_session(&w, 0);
            // The server asks the idle client what it has heard of.
            w.pass_ms(300);
        }
    }
    let (state, pages) = verify(&w);
    assert_eq!(state.released.count(), 0);
    let bytes: usize = pages.values().flatten().sum();
    assert!(bytes < 110_000, "{bytes} bytes are left of one value");
    assert!(state.places.next_page() < 300, "{} pages were given out", state.places.next_page());
    let read = w.run(1, |tx| Ok(tx.get(r)?.picture()?.to_vec())).unwrap();
    assert_eq!(read, picture(59, 100_000));
}

#[test]
fn value_that_one_session_replaces_beside_idle_ones_takes_the_room_of_a_few() {
    // One of them has the object in its cache, and one has nothing.
    let w = world(3);
    let r = album(&w, 0);
    w.run(1, |tx| Ok(tx.get(r)?.number())).unwrap();
    for n in 0..100 {
        w.run(0, |tx| tx.edit(r)?.set_picture(picture(n, 100_000))).unwrap();
        w.pass_ms(300);
    }
    let (state, _) = verify(&w);
    assert!(state.places.next_page() < 200, "{} pages were given out", state.places.next_page());
    let read = w.run(1, |tx| Ok(tx.get(r)?.picture()?.to_vec())).unwrap();
    assert_eq!(read, picture(99, 100_000));
}

#[test]
fn page_with_a_place_that_may_still_be_filled_is_not_given_back() {
    let w = world(2);
    let r = album(&w, 0);
    let reserved = w.run(0, |tx| tx.reserve(&thing(0))).unwrap();
    let port = w.thread(0);
    let open = Tx::begin(&port, Isolation::Serializable).unwrap();
    let made = open.create(&thing(7)).unwrap();
    for n in 0..40 {
        w.run(0, |tx| tx.edit(r)?.set_picture(picture(n, 100_000))).unwrap();
        w.pass_ms(500);
    }
    open.commit().unwrap();
    w.run(0, |tx| tx.fill(reserved, &thing(8))).unwrap();
    let counts = w.run(1, |tx| Ok((tx.get(made)?.count(), tx.get(reserved)?.count())));
    assert_eq!(counts, Ok((7, 8)));
    verify(&w);
}

#[test]
fn place_of_an_aborted_transaction_that_is_named_keeps_its_page() {
    let w = world(2);
    let kept = make(&w, 0, "kept", 1);
    // Its page has nothing else in it when the objects beside it are gone.
    many(&w, 0, 2, 3_000);
    let port = w.thread(0);
    let aborted = Tx::begin(&port, Isolation::Serializable).unwrap();
    let place = aborted.create(&thing(7)).unwrap();
    drop(aborted);
    let page = place.oref().page();
    // In a newer state the reference is one that the program kept.
    w.run(1, |tx| set(tx, kept, 2)).unwrap();
    w.run_until_idle();
    let open = Tx::begin(&port, Isolation::Serializable).unwrap();
    open.edit(kept).unwrap().set_next(place).unwrap();
    // The client turns to other pages, and gives back those that are done with.
    for _ in 0..5 {
        many(&w, 0, 300, 3_000);
        w.pass_ms(1_000);
    }
    assert!(replayed(&w).0.places.granted(page).is_some());
    open.commit().unwrap();
    for _ in 0..5 {
        many(&w, 0, 300, 3_000);
        w.pass_ms(1_000);
    }
    let places = replayed(&w).0.places;
    assert!(places.granted(page).is_none() && places.is_held_back(page));
    let read = w.run(1, |tx| Ok(tx.get(tx.get(kept)?.next().reference())?.count()));
    assert!(matches!(read, Err(Error::NotFound(_))), "{read:?}");
}

#[test]
fn reader_of_a_value_that_is_freed_sees_all_of_it_or_begins_again() {
    let w = World::new(3, 2, ServerConfig { mob_bytes: 1 << 20, ..small() });
    let r = album(&w, 0);
    for n in 1..40u64 {
        let mut attempts = 0;
        let read = run(&w.thread(1), Isolation::Serializable, |tx| {
            let album = tx.get(r)?;
            let number = album.number();
            attempts += 1;
            if attempts == 1 {
                // Between the reading of the object and of its value.
                let other: Thread<'_> = w.thread(0);
                run(&other, Isolation::Serializable, |tx| {
                    let album = tx.edit(r)?;
                    album.set_number(n)?;
                    album.set_picture(picture(n, 100_000))
                })?;
                w.run_until_idle();
            }
            Ok((number, album.picture()?.to_vec()))
        });
        let (number, read) = read.unwrap();
        assert_eq!((number, attempts), (n, 2));
        assert!(read == picture(n, 100_000), "{n}");
        w.pass_ms(50);
    }
    verify(&w);
}

#[test]
fn value_that_a_transaction_sets_twice_is_sent_once() {
    let w = world(1);
    let r = album(&w, 0);
    w.run(0, |tx| {
        let album = tx.edit(r)?;
        (0..5).try_for_each(|n| album.set_picture(picture(n, 50_000 + 10_000 * n as usize)))?;
        album.set_picture(picture(9, 10))
    })
    .unwrap();
    w.run_until_idle();
    w.pass_ms(1_000);
    let (_, pages) = verify(&w);
    let bytes: usize = pages.values().flatten().sum();
    assert!(bytes < 1_000, "{bytes}");
    let read = w.run(0, |tx| Ok(tx.get(r)?.picture()?.to_vec())).unwrap();
    assert_eq!(read, picture(9, 10));
}

#[test]
fn tree_of_several_levels_is_freed_and_what_its_leaves_name_is_not() {
    let w = world(1);
    let r = album(&w, 0);
    let things = many(&w, 0, 10, 10);
    let list: List<Ref<Thing>> = (0..20_000).map(|i| things[i % 10]).collect();
    w.run(0, |tx| tx.edit(r)?.set_things(list.clone())).unwrap();
    // Of bytes it takes some four megabytes for a node above nodes.
    w.run(0, |tx| tx.edit(r)?.set_picture(picture(1, 4_500_000))).unwrap();
    w.run_until_idle();
    let before: usize = verify(&w).1.values().flatten().sum();
    assert!(before > 4_500_000);
    w.run(0, |tx| {
        let album = tx.edit(r)?;
        album.set_picture(picture(1, 5))?;
        album.set_things(List::new())
    })
    .unwrap();
    for _ in 0..50 {
        w.run_until_idle();
        w.pass_ms(100);
    }
    let (state, pages) = verify(&w);
    let after: usize = pages.values().flatten().sum();
    assert!(state.released.count() == 0 && after < 2_000, "{after} bytes");
    w.run(0, |tx| things.iter().try_for_each(|thing| set(tx, *thing, 1))).unwrap();
}

#[test]
fn released_value_is_freed_by_the_next_view() {
    let w = world(1);
    let r = album(&w, 0);
    w.run_until_idle();
    w.run(0, |tx| tx.edit(r)?.set_picture(picture(1, 5))).unwrap();
    w.crash();
    w.restart();
    w.run_until_idle();
    w.pass_ms(1_000);
    w.run(0, |tx| tx.edit(r)?.set_number(1)).unwrap();
    w.run_until_idle();
    w.pass_ms(1_000);
    let (state, pages) = verify(&w);
    let bytes: usize = pages.values().flatten().sum();
    assert!(state.released.count() == 0 && bytes < 1_000, "{bytes}");
}

#[test]
fn object_that_shrinks_goes_home_and_what_it_left_is_given_out_again() {
    let w = world(2);
    // Nothing more is made in their page.
    let things = many(&w, 0, 150, 10);
    for round in 0..30 {
        for bytes in [900, 10] {
            for part in things.chunks(10).take(4) {
                w.run(round % 2, |tx| {
                    part.iter().try_for_each(|r| tx.edit(*r)?.set_text(&*"x".repeat(bytes)))
                })
                .unwrap();
            }
            w.run_until_idle();
            w.pass_ms(100);
        }
    }
    w.pass_ms(10_000);
    let (state, pages) = verify(&w);
    assert!(state.places.next_page() < 60, "{} pages were given out", state.places.next_page());
    let bytes: usize = pages.values().flatten().sum();
    assert!(bytes < 150 * 60, "{bytes}");
    let counts =
        |tx: &Tx<'_>| things.iter().map(|r| Ok(tx.get(*r)?.count())).collect::<Result<Vec<u64>, Error>>();
    let counts = w.run(1, counts).unwrap();
    assert!(counts.into_iter().eq(0..150));
}

#[test]
fn place_that_an_object_refers_to_keeps_its_page_although_its_session_is_over() {
    let w = world(2);
    let holder = make(&w, 1, "holder", 1);
    let place = w.run(0, |tx| tx.reserve(&thing(0))).unwrap();
    w.run(0, |tx| tx.edit(holder)?.set_next(place)).unwrap();
    crate::places::end_session(&w, 0);
    w.run_until_idle();
    let (state, _) = verify(&w);
    assert_eq!(state.places.held_back_count(), 1);
    assert!(state.places.returned_at(place.oref().page()).is_none());
}
