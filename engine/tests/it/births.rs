//! Pages that are given out again: a reference that a program kept from before names no object any more,
//! although another object took the place.

use crate::places::{end_session, half_a_page};
use crate::world::things::{Thing, count, make, set, thing, world};
use crate::world::{Thread, World};
use tercel_engine::error::Error;
use tercel_engine::txn::{Isolation, Tx, run};
use tercel_wire::record::Ref;

const OWNER: usize = 0;
const FILLER: usize = 1;
const PRESENT: usize = 2;
const AWAY: usize = 3;

/// A space in which a place was reserved and lost, and its page then given out again.
struct Reuse {
    w: World,
    /// The place, as it was reserved.
    old: Ref<Thing>,
    /// The object that another client made there.
    new: Ref<Thing>,
}

/// Ends the session of the place's owner, has `before` happen, and has another client fill the page.
fn reuse(before: impl FnOnce(&World, Ref<Thing>)) -> Reuse {
    let w = world(4);
    make(&w, FILLER, "r", 1);
    let old = reserve_second(&w);
    for client in [PRESENT, AWAY] {
        assert!(is_gone(&w.thread(client), old), "nothing was made there yet");
    }
    end_session(&w, OWNER);
    // Every session hears of the end.
    w.pass_ms(10_000);
    before(&w, old);
    let new = (0..50).find_map(|_| w.run(FILLER, half_a_page).ok().filter(|r| *r == old));
    w.run_until_idle();
    Reuse { new: new.expect("the page was given out again"), old, w }
}

/// The second place of the owner's first page: where the text of [`half_a_page`] stands before it.
fn reserve_second(w: &World) -> Ref<Thing> {
    let place = |tx: &Tx<'_>| tx.reserve(&thing(0)).and_then(|_| tx.reserve(&thing(0)));
    w.run(OWNER, place).unwrap()
}

/// Says whether a reference names nothing, however it is read.
fn is_gone(port: &Thread<'_>, r: Ref<Thing>) -> bool {
    let gone = [Isolation::Serializable, Isolation::Snapshot].map(|isolation| {
        let found = run(port, isolation, |tx| Ok(tx.find(r)?.is_some())).unwrap();
        let got = run(port, isolation, |tx| Ok(tx.get(r)?.count()));
        let replaced = run(port, isolation, |tx| tx.replace(r, &thing(9)));
        let edited = run(port, isolation, |tx| set(tx, r, 9));
        let outcomes = [got.map(drop), replaced, edited];
        let is_none = |o: &Result<(), Error>| matches!(o, Err(Error::NotFound(_)));
        (!found && outcomes.iter().all(is_none), found && outcomes.iter().all(Result::is_ok))
    });
    match gone {
        [(true, false), (true, false)] => true,
        [(false, true), (false, true)] => false,
        other => panic!("read in different ways it is {other:?}"),
    }
}

#[test]
fn kept_reference_never_reaches_the_object_that_took_its_place() {
    let Reuse { w, old, new } = reuse(|w, _| {
        w.cut(AWAY);
        w.lock().hold.connects = true;
        w.run_until_idle();
        w.lock().hold.connects = false;
        // It connects again once it is asked for something.
    });
    let late = w.add_client(77, 1 << 20);
    for client in [FILLER, PRESENT, AWAY, late] {
        // Before the page is cached, and after.
        assert!(is_gone(&w.thread(client), old), "client {client}");
        assert_eq!(count(&w, client, new), 1);
        assert!(is_gone(&w.thread(client), old), "client {client}, with the page cached");
        // What names whatever is there reaches the object.
        assert_eq!(count(&w, client, Ref::new(old.oref())), 1);
    }
    let p = w.indoors();
    assert_eq!(p.run(|tx| Ok((tx.find(old)?.is_some(), tx.get(new)?.count()))), Ok((false, 1)));
    assert_eq!(p.run(|tx| Ok((tx.get(new)?.count(), tx.find(old)?.is_some()))), Ok((1, false)));
}

#[test]
fn birth_outlives_grant_and_server() {
    let Reuse { w, old, new } = reuse(|_, _| {});
    for seed in 80..83 {
        end_session(&w, FILLER);
        w.run_until_idle();
        w.crash();
        w.restart();
        w.run_until_idle();
        let late = w.add_client(seed, 1 << 20);
        assert!(is_gone(&w.thread(late), old));
        assert_eq!(count(&w, late, new), 1);
        assert!(is_gone(&w.thread(PRESENT), old));
    }
}

#[test]
fn private_copy_is_not_reached_by_an_older_reference() {
    let Reuse { w, old, new } = reuse(|_, _| {});
    for client in [FILLER, PRESENT] {
        w.run(client, |tx| {
            set(tx, new, 5)?;
            assert!(tx.find(old)?.is_none() && tx.find(new)?.is_some());
            Ok(())
        })
        .unwrap();
        w.run(client, |tx| {
            tx.replace(new, &thing(6))?;
            assert!(tx.find(old)?.is_none() && tx.find(new)?.is_some());
            Ok(())
        })
        .unwrap();
        // The own version is kept without a fetch.
        assert!(is_gone(&w.thread(client), old));
        assert_eq!(count(&w, client, new), 6);
    }
}

#[test]
fn place_of_an_ended_session_is_not_filled_in_a_page_granted_again() {
    let w = world(2);
    make(&w, 1, "r", 1);
    let old = reserve_second(&w);
    end_session(&w, OWNER);
    w.pass_ms(10_000);
    // The same client, in its next session.
    let page = old.oref().page();
    let is_granted = (0..50).any(|_| w.run(OWNER, half_a_page).unwrap().oref().page() == page);
    assert!(is_granted, "the page was given out again");
    assert_eq!(w.run(OWNER, |tx| tx.fill(old, &thing(3))), Err(Error::PlaceLost(old.oref())));
}

#[test]
fn kept_reference_is_followed_before_it_is_stored() {
    let Reuse { w, old, new } = reuse(|_, _| {});
    let holder = make(&w, PRESENT, "holder", 1);
    let is_gone = |o: Result<(), Error>| matches!(o, Err(Error::NotFound(_)));
    for client in [FILLER, PRESENT] {
        assert!(is_gone(w.run(client, |tx| tx.edit(holder)?.set_next(old))), "client {client}");
        assert!(is_gone(w.run(client, |tx| tx.create(&Thing { next: old, ..thing(1) }).map(drop))));
        assert!(is_gone(w.run(client, |tx| tx.set_root("old", old))));
        // What is there may be stored, whenever the reference was read.
        w.run(client, |tx| tx.edit(holder)?.set_next(new)).unwrap();
        w.run(client, |tx| tx.edit(holder)?.set_next(Ref::new(new.oref()))).unwrap();
        let next = w.run(client, |tx| Ok(tx.get(holder)?.next().get()?.count()));
        assert_eq!(next, Ok(1));
    }
    let p = w.indoors();
    assert!(is_gone(p.run(|tx| tx.edit(holder)?.set_next(old))));
    p.run(|tx| tx.edit(holder)?.set_next(new)).unwrap();
}

#[test]
fn place_that_is_not_filled_yet_may_be_stored_by_its_owner() {
    let w = world(2);
    let holder = make(&w, 0, "holder", 1);
    let place = w.run(0, |tx| tx.reserve(&thing(0))).unwrap();
    make(&w, 1, "other", 1);
    w.run_until_idle();
    w.run(0, |tx| tx.edit(holder)?.set_next(place)).unwrap();
    w.run_until_idle();
    let stored = w.run(1, |tx| tx.edit(holder)?.set_next(place));
    assert!(matches!(stored, Err(Error::NotFound(_))), "{stored:?}");
    w.run(0, |tx| tx.fill(place, &thing(2))).unwrap();
    assert_eq!(w.run(1, |tx| Ok(tx.get(holder)?.next().get()?.count())), Ok(2));
}

/// The rule is what keeps the reference away.
#[cfg(tercel_mutants)]
#[test]
fn without_the_rule_the_other_object_is_reached() {
    use tercel_engine::mutant::{Rule, drop_rule};
    for client in [FILLER, PRESENT, AWAY] {
        let Reuse { w, old, new } = reuse(|_, _| {});
        assert_eq!(count(&w, client, new), 1);
        drop_rule(Some(Rule::TokenWithoutBirth));
        let is_gone = is_gone(&w.thread(client), old);
        drop_rule(None);
        assert!(!is_gone, "client {client}");
    }
}
