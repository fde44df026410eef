//! Where objects are: places are reserved, lost and filled, and what grows moves. Whatever happens meanwhile,
//! no place is ever that of two objects, and an object is found by its first reference wherever it went.

use crate::world::World;
use crate::world::things::{Thing, count, grow, make, many, promise, set, small, text, thing, world};
use tercel_engine::error::{Bound, Error};
use tercel_engine::txn::{Isolation, Tx};
use tercel_wire::id::PageId;
use tercel_wire::record::Ref;

#[test]
fn places_are_promised_only_once_it_is_durable_that_they_are() {
    let w = world(2);
    make(&w, 0, "r", 1);
    let port = w.thread(1);
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    w.run_until_idle();
    // Were a place given out now, the crash would make the server forget it and give it out again, and the
    // transaction would have two objects in it.
    w.lock().hold.syncs = true;
    w.lock().patience = 100;
    assert_eq!(tx.create(&thing(7)).err(), Some(Error::Timeout));
    w.lock().crash(0);
    w.lock().hold.syncs = false;
    w.restart();
    w.run_until_idle();
    let (a, b) = (tx.create(&thing(8)).unwrap(), tx.create(&thing(9)).unwrap());
    assert_ne!(a, b);
    assert_eq!((tx.get(a).unwrap().count(), tx.get(b).unwrap().count()), (8, 9));
}

#[test]
fn places_for_new_objects_outlive_connections_and_servers_but_not_their_session() {
    let w = world(1);
    many(&w, 0, 3, 10);
    let port = w.thread(0);
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    let before = tx.create(&thing(1)).unwrap();
    w.cut(0);
    w.crash();
    w.restart();
    w.run_until_idle();
    tx.commit().unwrap();
    assert_eq!(w.run(0, |tx| Ok(tx.get(before)?.count())), Ok(1));
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    let before = tx.create(&thing(1)).unwrap();
    end_session(&w, 0);
    assert!(matches!(tx.commit(), Err(Error::Conflict(_))));
    assert_eq!(w.run(0, |tx| Ok(tx.find(before)?.is_some())), Ok(false));
    many(&w, 0, 3, 10);
}

/// A client is away for longer than its session lasts.
pub fn end_session(w: &World, client: usize) {
    w.cut(client);
    w.lock().hold.connects = true;
    w.pass_ms(5_000);
    w.lock().hold.connects = false;
    w.run_until_idle();
}

#[test]
fn a_place_of_an_earlier_transaction_that_is_lost_is_said_at_once_and_not_tried_again() {
    let w = world(1);
    make(&w, 0, "r", 1);
    let place = w.run(0, |tx| tx.reserve(&thing(0))).unwrap();
    end_session(&w, 0);
    let mut attempts = 0;
    let filled = w.run(0, |tx| {
        attempts += 1;
        tx.create(&thing(2))?;
        tx.fill(place, &thing(3))
    });
    assert_eq!((filled, attempts), (Err(Error::PlaceLost(place.oref())), 1));
    // A transaction that reserves the places that it fills loses nothing for good: it is a conflict, and runs
    // again.
    let port = w.thread(0);
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    let own = tx.reserve(&thing(0)).unwrap();
    tx.fill(own, &thing(3)).unwrap();
    end_session(&w, 0);
    assert!(matches!(tx.commit(), Err(Error::Conflict(_))));
}

#[test]
fn places_of_one_transaction_are_all_kept() {
    let w = world(1);
    let large = Thing { text: "x".repeat(1_000).into(), ..thing(1) };
    let reserved: Result<Vec<_>, Error> = w.run(0, |tx| (0..24).map(|_| tx.reserve(&large)).collect());
    let places = reserved.unwrap();
    let pages = places.iter().map(|place| place.oref().page()).collect::<std::collections::BTreeSet<_>>();
    assert!(pages.len() >= 3, "{pages:?}");
    // The client asks for pages again and again, and each time gives back those that nobody keeps.
    for _ in 0..300 {
        w.run(0, half_a_page).unwrap();
    }
    for place in &places {
        w.run(0, |tx| tx.fill(*place, &thing(7))).unwrap();
    }
    let counts =
        w.run(0, |tx| places.iter().map(|place| Ok(tx.get(*place)?.count())).collect::<Result<Vec<_>, _>>());
    assert_eq!(counts, Ok(vec![7; 24]));
}

#[test]
fn a_place_that_is_lost_before_it_is_named_never_comes_to_name_another_object() {
    let w = world(2);
    let holder = make(&w, 1, "holder", 1);
    let port = w.thread(0);
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    let place = tx.reserve(&thing(0)).unwrap();
    end_session(&w, 0);
    // Every session hears of the end; then the other client gets the page, and makes an object of its own in
    // the place.
    w.pass_ms(10_000);
    let page = |r: Ref<Thing>| r.oref().page();
    let is_taken = (0..50).any(|_| page(w.run(1, half_a_page).unwrap()) == page(place));
    assert!(is_taken, "the page was given out again");
    w.run_until_idle();
    tx.edit(holder).unwrap().set_next(place).unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict(_))));
    assert!(w.run(1, |tx| Ok(tx.get(holder)?.next().is_null())).unwrap());
}

#[test]
fn reader_of_lost_place_runs_again() {
    let w = world(2);
    let flag = make(&w, 0, "flag", 0);
    let place = w.run(0, |tx| tx.reserve(&thing(0))).unwrap();
    w.run_until_idle();
    let port = w.thread(0);
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    assert_eq!(tx.get(flag).unwrap().count(), 0);
    tx.fill(place, &thing(3)).unwrap();
    w.cut(0);
    w.run(1, |tx| set(tx, flag, 1)).unwrap();
    w.run_until_idle();
    assert!(matches!(tx.commit(), Err(Error::Conflict(_))));
}

#[test]
fn a_place_that_was_promised_before_a_crash_is_never_another_object_after_it() {
    let w = world(1);
    let holder = make(&w, 0, "holder", 1);
    let promised = promise(&w, 0);
    w.run(0, |tx| tx.edit(holder)?.set_next(promised)).unwrap();
    w.crash();
    w.restart();
    w.run_until_idle();
    many(&w, 0, 50, 100);
    assert_eq!(w.run(0, |tx| Ok(tx.find(promised)?.is_some())), Ok(false));
}

#[test]
fn an_object_may_grow_in_the_transaction_that_makes_it() {
    let w = world(2);
    let mut all = Vec::new();
    for size in [10, 300, 2_000, 3_900] {
        let made = w
            .run(0, |tx| {
                let made: Vec<_> = (0..40).map(|i| tx.create(&thing(i))).collect::<Result<_, _>>()?;
                for r in &made {
                    tx.edit(*r)?.set_text("x".repeat(size))?;
                }
                Ok(made)
            })
            .unwrap();
        all.extend(made.into_iter().map(|r| (r, size)));
        all.push((w.run(0, |tx| tx.create(&thing(0))).unwrap(), 0));
    }
    for (r, size) in all {
        assert_eq!(text(&w, 1, r), size);
    }
}

#[test]
fn two_threads_may_grow_what_they_make_in_the_same_page() {
    let w = world(1);
    let (a, b) = (w.thread(0), w.thread(0));
    let (first, second) =
        (Tx::begin(&a, Isolation::Serializable).unwrap(), Tx::begin(&b, Isolation::Serializable).unwrap());
    let mut made = Vec::new();
    for i in 0..100 {
        for tx in [&first, &second] {
            made.push(tx.create(&thing(i)).unwrap());
        }
    }
    for r in made.iter().step_by(2) {
        first.edit(*r).unwrap().set_text("x".repeat(1_000)).unwrap();
    }
    first.commit().unwrap();
    // The places of the second may be used up by now; then it runs again elsewhere, and is never denied.
    let committed = second.commit();
    assert!(matches!(committed, Ok(_) | Err(Error::Conflict(_))), "{committed:?}");
    many(&w, 0, 100, 10);
    assert_eq!(text(&w, 0, made[0]), 1_000);
}

#[test]
fn an_object_that_outgrows_its_page_is_found_where_it_went() {
    let w = world(2);
    let all = many(&w, 0, 12, 600);
    for round in 1..4 {
        for (i, r) in all.iter().enumerate() {
            grow(&w, 0, *r, 600 + round * 500 + i);
            if i % 5 == round {
                assert_eq!(text(&w, 1, *r), 600 + round * 500 + i);
            }
        }
        w.run_until_idle();
        w.crash();
        w.restart();
        w.run_until_idle();
        for (i, r) in all.iter().enumerate() {
            assert_eq!(text(&w, 1, *r), 600 + round * 500 + i, "object {i} in round {round}");
            assert_eq!(count(&w, 1, *r), i as u64);
        }
    }
}

#[test]
fn objects_that_moved_to_one_page_grow_there_together() {
    for together in [true, false] {
        let w = world(2);
        let all = many(&w, 0, 10, 700);
        let (moving, staying) = all.split_at(7);
        for size in [900, 1_100, 1_500, 2_000, 2_600, 3_900] {
            if together {
                let grow =
                    |tx: &Tx<'_>| moving.iter().try_for_each(|r| tx.edit(*r)?.set_text("y".repeat(size)));
                w.run(0, grow).unwrap();
            } else {
                moving.iter().for_each(|r| grow(&w, 0, *r, size));
            }
            assert!(moving.iter().all(|r| text(&w, 1, *r) == size), "at {size}");
            assert!(staying.iter().all(|r| text(&w, 1, *r) == 700));
        }
    }
}

#[test]
fn neighbours_that_moved_are_changed_together_by_a_server_that_has_to_read_them_first() {
    let w = World::new(1, 2, small());
    let pair = many(&w, 0, 8, 900);
    for (i, r) in pair[..2].iter().enumerate() {
        grow(&w, 0, *r, 2_000 + i);
        // Something else fills the page that moved objects go to, so that each goes to its own.
        let other = many(&w, 0, 8, 900);
        other.iter().for_each(|o| grow(&w, 0, *o, 1_900));
    }
    w.run_until_idle();
    w.crash();
    w.restart();
    w.run_until_idle();
    w.run(0, |tx| pair[..2].iter().try_for_each(|r| set(tx, *r, 77))).unwrap();
    assert_eq!((count(&w, 1, pair[0]), count(&w, 1, pair[1])), (77, 77));
}

/// Two of them fill a page, and no third of its size goes where they are.
pub fn half_a_page(tx: &Tx<'_>) -> Result<Ref<Thing>, Error> {
    tx.create(&Thing { text: "x".repeat(3_900).into(), ..thing(1) })
}

fn is_out_of_pages<T: std::fmt::Debug>(answer: Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Full(Bound::Pages))), "{answer:?}");
}

#[test]
fn full_space_refuses_grants_and_serves_reads() {
    let w = world(2);
    // Twelve of them fill a page.
    let old = many(&w, 0, 120, 630);
    w.run_until_idle();
    w.crash();
    w.lock().leave_pages(5);
    w.restart();
    w.run_until_idle();
    let mut made = Vec::new();
    let refused = loop {
        match w.run(0, half_a_page) {
            Ok(r) => made.push(r),
            Err(e) => break e,
        }
    };
    assert_eq!(made.iter().map(|r| r.oref().page()).max(), Some(PageId::MAX), "every page is used");
    for _ in 0..2 {
        is_out_of_pages(Err::<(), _>(refused.clone()));
        is_out_of_pages(w.run(0, half_a_page));
        is_out_of_pages(w.run(1, |tx| tx.create(&thing(1))));
        // Nor do objects grow out of their pages, be the transaction small or large.
        is_out_of_pages(w.run(1, |tx| tx.edit(old[0])?.set_text("y".repeat(1_000))));
        let grow = |tx: &Tx<'_>| old.iter().try_for_each(|r| tx.edit(*r)?.set_text("y".repeat(1_000)));
        is_out_of_pages(w.run(1, grow));
        for (i, r) in old.iter().chain(&made).enumerate() {
            w.run(i % 2, |tx| set(tx, *r, 100 + i as u64)).unwrap();
            assert_eq!(count(&w, 1 - i % 2, *r), 100 + i as u64);
        }
        assert_eq!((text(&w, 0, old[0]), text(&w, 1, made[0])), (630, 3_900));
        // The next life knows it, too.
        w.crash();
        w.restart();
        w.run_until_idle();
    }
}
