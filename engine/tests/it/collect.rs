//! A collection frees all objects that no root reaches, and nothing else.

use std::collections::BTreeSet;

use crate::space::verify;
use crate::world::World;
use crate::world::things::{Thing, count, grow, make, many, set, small, thing};
use tercel_engine::error::Error;
use tercel_engine::random::Random;
use tercel_engine::replica::Replica;
use tercel_engine::server::{CollectConfig, ServerConfig};
use tercel_engine::txn::{Isolation, Tx, run};
use tercel_wire::id::PageId;
use tercel_wire::record::{Ref, Text};

const GRACE_MS: u64 = 1_000;

pub fn config(of: ServerConfig) -> ServerConfig {
    let collect = CollectConfig { is_automatic: false, grace_ms: GRACE_MS, ..CollectConfig::default() };
    ServerConfig { collect, ..of }
}

fn world(clients: usize) -> World {
    World::new(1, clients, config(ServerConfig::default()))
}

/// The number that JSON has under a name.
pub fn number(json: &str, name: &str) -> u64 {
    let at = json.find(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {json}"));
    let rest = &json[at + name.len() + 3..];
    rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap()].parse().unwrap()
}

/// Asks for a collection: gives its number.
pub fn ask(w: &World, is_dry: bool) -> u64 {
    for _ in 0..1_000 {
        let mut inner = w.lock();
        let now = inner.now;
        let said = inner.clients[0].begin_collection(now, is_dry);
        inner.send(0);
        drop(inner);
        if let Some(status) = said {
            return number(&String::from_utf8(status.unwrap()).unwrap(), "collection_ticket");
        }
        w.pass_ms(10);
    }
    panic!("nothing was said of the collection");
}

pub fn status(w: &World) -> String {
    for _ in 0..1_000 {
        let mut inner = w.lock();
        let now = inner.now;
        let said = inner.clients[0].server_status(now);
        inner.send(0);
        drop(inner);
        if let Some(status) = said {
            return String::from_utf8(status.unwrap()).unwrap();
        }
        w.pass_ms(10);
    }
    panic!("nothing was said of the server");
}

/// Waits for a collection's end and gives its report.
pub fn report(w: &World, ticket: u64) -> String {
    for _ in 0..2_000 {
        let status = status(w);
        if number(&status, "done") >= ticket {
            return status[status.find("\"last\":").unwrap()..].to_string();
        }
        w.pass_ms(50);
    }
    panic!("the collection does not end: {}", status(w));
}

pub fn collect(w: &World) -> String {
    let ticket = ask(w, false);
    let report = report(w, ticket);
    // Trees of chunks go after the objects that owned them.
    w.pass_ms(100);
    report
}

/// The number of objects in all pages, chunks included, and the head of the roots.
fn objects(w: &World) -> usize {
    w.run_until_idle();
    verify(w).1.values().map(Vec::len).sum()
}

/// Links things into a list and gives its head.
pub fn chain(tx: &Tx<'_>, n: usize, text: usize) -> Result<Ref<Thing>, Error> {
    (0..n).try_fold(Ref::NULL, |next, i| {
        tx.create(&Thing { text: "x".repeat(text).into(), next, ..thing(i as u64) })
    })
}

fn is_gone<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::NotFound(_)))
}

#[test]
fn what_no_root_reaches_goes_and_the_rest_stays() {
    let w = world(2);
    let heads = ["a", "b"].map(|name| {
        w.run(0, |tx| {
            let head = chain(tx, 300, 20)?;
            tx.set_root(name, head)?;
            Ok(head)
        })
        .unwrap()
    });
    let before = objects(&w);
    w.run(1, |tx| Ok(tx.get(heads[1])?.count())).unwrap();
    w.run(0, |tx| tx.remove_root("b").map(|_| ())).unwrap();
    let dry = report(&w, ask(&w, true));
    assert_eq!((number(&dry, "objects"), objects(&w)), (301, before), "{dry}");
    let report = collect(&w);
    assert_eq!(number(&report, "objects"), 301, "{report}");
    assert_eq!(objects(&w), before - 301);
    let walk = |tx: &Tx<'_>| {
        let (mut n, mut at) = (0, tx.get_root_ref::<Thing>("a")?.unwrap_or(Ref::NULL));
        while !at.is_null() {
            (n, at) = (n + 1, tx.get(at)?.next().reference());
        }
        Ok(n)
    };
    assert_eq!((w.run(0, walk), w.run(1, walk)), (Ok(300), Ok(300)));
    // Its client had it in the cache.
    for client in 0..2 {
        assert!(is_gone(w.run(client, |tx| Ok(tx.get(heads[1])?.count()))), "client {client}");
    }
    assert_eq!(number(&collect(&w), "objects"), 0);
}

#[test]
fn large_values_and_moved_objects_go_with_what_they_belong_to() {
    for config in [config(ServerConfig::default()), config(small())] {
        let w = World::new(1, 1, config);
        let kept = make(&w, 0, "kept", 1);
        let things = many(&w, 0, 300, 20);
        grow(&w, 0, kept, 20_000);
        // Some do not fit where they were, some own trees.
        things.iter().take(40).for_each(|r| grow(&w, 0, *r, 1_500));
        things.iter().skip(40).take(5).for_each(|r| grow(&w, 0, *r, 30_000));
        let head = w
            .run(0, |tx| {
                for pair in things.windows(2) {
                    tx.edit(pair[0])?.set_next(pair[1])?;
                }
                tx.set_root("list", things[0])?;
                Ok(things[0])
            })
            .unwrap();
        assert_eq!(number(&collect(&w), "objects"), 0);
        w.run(0, |tx| tx.edit(head)?.set_next(Ref::NULL)).unwrap();
        assert_eq!(number(&collect(&w), "objects"), 299);
        w.pass_ms(2_000);
        w.run(0, |tx| tx.remove_root("list").map(|_| ())).unwrap();
        collect(&w);
        w.pass_ms(2_000);
        let (state, pages) = verify(&w);
        // The head of the roots, one root, the thing and perhaps what points to it, its value: a node and six
        // leaves.
        let left: usize = pages.values().map(Vec::len).sum();
        assert!((10..=11).contains(&left) && state.released.count() == 0, "{left}");
        assert_eq!(w.run(0, |tx| Ok(tx.get(kept)?.text()?.len())), Ok(20_000));
    }
}

#[test]
fn what_a_transaction_under_way_has_read_or_names_is_not_freed_under_it() {
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        let w = world(2);
        let (old, kept) = (make(&w, 0, "old", 7), make(&w, 0, "kept", 1));
        w.run(1, |tx| tx.get(old).map(|_| ())).unwrap();
        let port = w.thread(1);
        let open = Tx::begin(&port, isolation).unwrap();
        assert_eq!(open.get(old).unwrap().count(), 7);
        w.run(0, |tx| tx.remove_root("old").map(|_| ())).unwrap();
        assert_eq!(number(&collect(&w), "objects"), 2);
        // It would bring back what is gone.
        let linked =
            open.edit(kept).and_then(|kept| kept.set_next(old)).and_then(|()| open.commit().map(|_| ()));
        assert!(matches!(linked, Err(Error::Conflict(_))), "{isolation:?}");
        assert_eq!(w.run(1, |tx| Ok(tx.get(kept)?.next().is_null())), Ok(true));
        assert!(is_gone(run(&port, isolation, |tx| Ok(tx.get(old)?.count()))));
        verify(&w);
    }
}

#[test]
fn promised_place_whose_page_is_held_back_no_more_is_not_written_from_an_older_state() {
    let w = world(3);
    let (kept, holder) = (make(&w, 0, "kept", 1), make(&w, 0, "holder", 2));
    let place = w.run(2, |tx| {
        // Something stays in the page, so it does not return as soon as it is let go of.
        let beside = tx.create(&thing(5))?;
        tx.set_root("beside", beside)?;
        tx.reserve(&thing(0))
    });
    let place = place.unwrap();
    w.run(2, |tx| tx.edit(holder)?.set_next(place)).unwrap();
    crate::places::end_session(&w, 2);
    assert!(verify(&w).0.places.is_held_back(place.oref().page()));
    w.run(1, |tx| Ok((count(&w, 1, kept), tx.get(holder)?.count()))).unwrap();
    let port = w.thread(1);
    let open = Tx::begin(&port, Isolation::Snapshot).unwrap();
    let named = open.get(holder).unwrap().next().reference();
    open.edit(kept).unwrap().set_next(named).unwrap();
    w.run(0, |tx| tx.edit(holder)?.set_next(Ref::NULL)).unwrap();
    collect(&w);
    assert!(!verify(&w).0.places.is_held_back(place.oref().page()));
    // Nothing keeps the page from being given out again, and then the reference would lead to another object.
    assert!(matches!(open.commit().map(|_| ()), Err(Error::Conflict(_))));
    verify(&w);
}

#[test]
fn kept_reference_to_an_object_that_was_freed_is_not_written() {
    let w = world(2);
    let kept = make(&w, 0, "kept", 1);
    // Its page is one in which its client still makes objects, as for a place that is to be filled later.
    let (old, place) = (make(&w, 0, "old", 7), w.run(0, |tx| tx.reserve(&thing(0))).unwrap());
    w.run(0, |tx| tx.remove_root("old").map(|_| ())).unwrap();
    assert_eq!(number(&collect(&w), "objects"), 2);
    for client in 0..2 {
        assert_eq!(count(&w, client, kept), 1);
        assert!(is_gone(w.run(client, |tx| tx.edit(kept)?.set_next(old))), "client {client}");
    }
    w.run(0, |tx| tx.edit(kept)?.set_next(place)).unwrap();
    w.run(0, |tx| tx.fill(place, &thing(8))).unwrap();
    assert_eq!(w.run(1, |tx| Ok(tx.get(tx.get(kept)?.next().reference())?.count())), Ok(8));
    verify(&w);
}

/// The place where a transaction has a reference from whose object a collection then frees.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Origin {
    /// It was kept since an earlier transaction.
    Kept,
    /// Another client read it, in a state that this transaction has not come to.
    OtherClient,
    /// Another transaction of this client read it, in the state that this one has too.
    SameState,
}

#[test]
fn written_reference_is_judged_where_transaction_moves_to() {
    for origin in [Origin::Kept, Origin::OtherClient, Origin::SameState] {
        let w = world(2);
        let kept = make(&w, 0, "kept", 1);
        let (old, other) = (make(&w, 0, "old", 7), make(&w, 0, "other", 3));
        w.run(1, |tx| Ok((tx.get(old)?.count(), tx.get(kept)?.count()))).unwrap();
        let port = w.thread(1);
        let [open, beside] = [0; 2].map(|_| Tx::begin(&port, Isolation::Serializable).unwrap());
        let change_other = || w.run(0, |tx| set(tx, other, 4)).unwrap();
        let edited = open.edit(kept).unwrap();
        match origin {
            Origin::Kept => edited.set_next(old).unwrap(),
            Origin::OtherClient => {
                change_other();
                edited.set_next(w.run(0, |tx| Ok(tx.get(old)?.reference())).unwrap()).unwrap();
            }
            Origin::SameState => {
                edited.set_next(beside.get(old).unwrap().reference()).unwrap();
                change_other();
            }
        }
        w.run(0, |tx| tx.remove_root("old").map(|_| ())).unwrap();
        assert_eq!(number(&collect(&w), "objects"), 2);
        // What it reads now is of the state behind the collection, and so its commit is.
        let expected = if origin == Origin::Kept { 3 } else { 4 };
        assert_eq!(open.get(other).unwrap().count(), expected);
        assert!(matches!(open.commit().map(|_| ()), Err(Error::Conflict(_))), "{origin:?}");
        assert_eq!(w.run(0, |tx| Ok(tx.get(kept)?.next().is_null())), Ok(true), "{origin:?}");
        verify(&w);
    }
}

#[test]
fn what_is_linked_again_within_the_time_of_grace_stays() {
    let w = world(2);
    let (old, kept) = (make(&w, 0, "old", 7), make(&w, 0, "kept", 1));
    w.run(0, |tx| tx.remove_root("old").map(|_| ())).unwrap();
    let ticket = ask(&w, false);
    w.pass_ms(GRACE_MS / 2);
    assert!(status(&w).contains("\"phase\":\"grace\""), "{}", status(&w));
    w.run(1, |tx| tx.edit(kept)?.set_next(old)).unwrap();
    report(&w, ticket);
    assert_eq!(count(&w, 0, old), 7);
    assert_eq!(number(&collect(&w), "objects"), 0);
    verify(&w);
}

#[test]
fn crash_at_any_moment_of_a_collection_leaves_all_of_it_or_nothing() {
    let mut ends = BTreeSet::new();
    for kept in 0..24 {
        let w = World::new(kept as u64, 1, config(small()));
        let head = w
            .run(0, |tx| {
                let head = chain(tx, 400, 100)?;
                tx.set_root("a", head)?;
                Ok(head)
            })
            .unwrap();
        let kept_thing = make(&w, 0, "kept", 5);
        w.run(0, |tx| tx.remove_root("a").map(|_| ())).unwrap();
        w.run_until_idle();
        let before = objects(&w);
        ask(&w, false);
        while !status(&w).contains("\"phase\":\"grace\"") {
            w.pass_ms(10);
        }
        w.pass_ms(GRACE_MS - 40);
        for _ in 0..kept {
            let mut inner = w.lock();
            inner.pass(4_000);
            (0..40).for_each(|_| _ = inner.step_in_order());
        }
        w.crash();
        w.restart();
        w.run_until_idle();
        let after = objects(&w);
        assert!(after == before || after == before - 401, "{kept}: {before} became {after}");
        ends.insert(after == before);
        assert_eq!(is_gone(w.run(0, |tx| Ok(tx.get(head)?.count()))), after != before);
        collect(&w);
        assert_eq!(objects(&w), before - 401);
        assert_eq!(count(&w, 0, kept_thing), 5);
    }
    assert_eq!(ends.len(), 2, "every crash was on the same side of the free");
}

/// The things that a client can reach from these roots, with their numbers.
fn reachable(tx: &Tx<'_>, roots: &[String]) -> Result<BTreeSet<u64>, Error> {
    let mut found = BTreeSet::new();
    for name in roots {
        let mut at = tx.find_root::<Thing>(name)?.map_or(Ref::NULL, |o| o.reference());
        while !at.is_null() && found.insert(tx.get(at)?.count()) {
            at = tx.get(at)?.next().reference();
        }
    }
    Ok(found)
}

#[test]
fn collections_beside_transactions_lose_nothing_and_leave_nothing() {
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let of = if seed % 2 == 0 { small() } else { ServerConfig::default() };
        let mut config = config(of);
        config.collect.grace_ms = random.below(30);
        let w = World::new(seed, 3, config);
        let roots: Vec<String> = (0..4).map(|n| format!("r{n}")).collect();
        let mut held: Vec<Ref<Thing>> = Vec::new();
        for step in 0..250u64 {
            let client = random.below(3) as usize;
            let root = &roots[random.below(4) as usize];
            let kept = held.get(random.below(held.len() as u64 + 1) as usize).copied();
            let choice = random.below(10);
            let size = [10, 400, 3_000, 20_000][random.below(4) as usize];
            let done = w.run(client, |tx| {
                let at = tx.find_root::<Thing>(root)?.map_or(Ref::NULL, |o| o.reference());
                match choice {
                    // A new head before the others.
                    0..=3 => {
                        let text: Text = "x".repeat(size).into();
                        let made = tx.create(&Thing { text, next: at, count: step + 1 })?;
                        tx.set_root(root, made)?;
                        return Ok(Some(made));
                    }
                    4 => return tx.remove_root(root).map(|_| None),
                    // The list goes on with what a program kept, wherever that is.
                    5 | 6 if !at.is_null() => tx.edit(at)?.set_next(kept.unwrap_or(Ref::NULL))?,
                    7 if !at.is_null() => tx.edit(at)?.set_text("y".repeat(size))?,
                    8 => {
                        if let Some(kept) = kept {
                            tx.set_root(root, kept)?;
                        }
                    }
                    _ if !at.is_null() => {
                        return Ok(Some(tx.get(at)?.next().reference()).filter(|r| !r.is_null()));
                    }
                    _ => {}
                }
                Ok(None)
            });
            match done {
                Ok(made) => held.extend(made),
                // What a program kept may be gone.
                Err(Error::NotFound(_)) => held.retain(|r| Some(*r) != kept),
                Err(e) => panic!("seed {seed}, step {step}: {e}"),
            }
            if random.below(12) == 0 {
                ask(&w, false);
            }
            w.pass_ms(random.below(20));
            if random.below(60) == 0 {
                w.crash();
                w.restart();
            }
            // Nothing that a root reaches is gone.
            let client = random.below(3) as usize;
            w.run(client, |tx| reachable(tx, &roots))
                .unwrap_or_else(|e| panic!("seed {seed}, step {step}: {e}"));
        }
        w.pass_ms(100);
        collect(&w);
        w.pass_ms(3_000);
        collect(&w);
        w.pass_ms(3_000);
        let (state, _): (Replica, _) = verify(&w);
        assert_eq!(state.released.count(), 0, "seed {seed}");
        let left = w
            .run(0, |tx| {
                let names: Vec<String> = tx.roots()?.into_iter().map(|(name, _)| name).collect();
                Ok((names.len(), reachable(tx, &roots)?))
            })
            .unwrap();
        // Trees apart: the objects of classes that users see.
        let report = collect(&w);
        assert_eq!(number(&report, "objects"), 0, "seed {seed}: {report}");
        for n in 1..state.places.next_page() {
            assert!(!state.places.is_held_back(PageId::new(n).unwrap()), "seed {seed}: page {n}");
        }
        assert!(left.1.len() < 2_000 && left.0 <= 4);
    }
}

/// Things that are linked one by one from those of a list, so that each can be unlinked alone.
fn linked(w: &World, n: usize) -> Vec<Ref<Thing>> {
    let things = many(w, 0, n, 60);
    for some in things.chunks(50) {
        w.run(0, |tx| {
            for thing in some {
                tx.set_root(&thing.oref().to_string().replace('.', "-"), *thing)?;
            }
            Ok(())
        })
        .unwrap();
    }
    things
}

/// Objects with a root each, at a client that then turns to another page, and gives back those that are done
/// with.
fn left(w: &World) -> Vec<Ref<Thing>> {
    let things = linked(w, 600);
    w.run(0, |tx| {
        let large = chain(tx, 400, 1_000)?;
        tx.set_root("large", large)
    })
    .unwrap();
    w.pass_ms(3_000);
    things
}

/// An object, and its place among those that were made.
type Numbered = (usize, Ref<Thing>);

/// Has a collection free four of five objects; gives those that stay, and those that went.
fn thin_out(w: &World, things: &[Ref<Thing>]) -> (Vec<Numbered>, Vec<Numbered>) {
    let (stay, go): (Vec<_>, Vec<_>) = things.iter().copied().enumerate().partition(|(i, _)| i % 5 == 0);
    for some in go.chunks(50) {
        w.run(0, |tx| {
            some.iter()
                .try_for_each(|(_, r)| tx.remove_root(&r.oref().to_string().replace('.', "-")).map(|_| ()))
        })
        .unwrap();
    }
    collect(w);
    w.pass_ms(3_000);
    (stay, go)
}

#[test]
fn room_beside_objects_that_stay_is_used_again_and_their_slots_are_not() {
    for cached in [true, false] {
        let w = world(2);
        let things = left(&w);
        if cached {
            things.iter().for_each(|r| _ = w.run(1, |tx| Ok(tx.get(*r)?.count())).unwrap());
        }
        let (stay, go) = thin_out(&w, &things);
        let (before, pages) = verify(&w);
        let made = linked(&w, 400);
        w.pass_ms(3_000);
        let (after, _) = verify(&w);
        let in_old: Vec<_> = made.iter().filter(|r| pages.contains_key(&r.oref().page())).collect();
        assert!(in_old.len() > 50, "{} of {} are beside others", in_old.len(), made.len());
        assert!(after.places.next_page() < before.places.next_page() + 20);
        // Both clients tell them apart from what was there before.
        for client in 0..2 {
            for (i, r) in &stay {
                assert_eq!(w.run(client, |tx| Ok(tx.get(*r)?.count())), Ok(*i as u64));
            }
            for (i, r) in made.iter().enumerate() {
                assert_eq!(w.run(client, |tx| Ok(tx.get(*r)?.count())), Ok(i as u64));
                assert!(things.iter().all(|old| old.oref() != r.oref()), "{r:?} was another's place");
            }
            for (_, r) in &go {
                assert!(is_gone(w.run(client, |tx| Ok(tx.get(*r)?.count()))), "{r:?}");
            }
        }
        w.crash();
        w.restart();
        verify(&w);
        stay.iter().for_each(|(i, r)| assert_eq!(count(&w, 1, *r), *i as u64));
    }
}

#[test]
fn chunk_that_found_no_room_in_its_place_is_freed_with_its_tree() {
    let w = world(2);
    let things = left(&w);
    let (stay, _) = thin_out(&w, &things);
    // A client is granted room beside what stays, which then grows into it.
    let owners = linked(&w, 40);
    stay.iter().for_each(|(_, r)| grow(&w, 1, *r, 400));
    let before = objects(&w);
    owners.iter().for_each(|r| grow(&w, 0, *r, 30_000));
    w.pass_ms(3_000);
    let (state, _) = verify(&w);
    assert!(state.released.all_moved().len() > 0);
    assert_eq!(Replica::decode(&state.encode()).unwrap().released, state.released);
    w.crash();
    w.restart();
    owners.iter().for_each(|r| grow(&w, 0, *r, 10));
    collect(&w);
    w.pass_ms(3_000);
    let (state, pages) = verify(&w);
    assert_eq!((state.released.count(), state.released.all_moved().len()), (0, 0));
    let is_left = |r: &&Ref<Thing>| w.run(1, |tx| Ok(tx.get(**r)?.count())).is_ok();
    assert_eq!(owners.iter().filter(is_left).count(), owners.len());
    assert_eq!(pages.values().map(Vec::len).sum::<usize>(), before);
}

#[test]
fn page_whose_client_left_without_a_word_is_used_again_only_when_it_is_empty() {
    let w = world(2);
    let things = linked(&w, 100);
    let reserved = w.run(0, |tx| tx.reserve(&thing(0))).unwrap();
    crate::places::end_session(&w, 0);
    for r in &things[1..] {
        w.run(1, |tx| tx.remove_root(&r.oref().to_string().replace('.', "-")).map(|_| ())).unwrap();
    }
    w.pass_ms(10_000);
    collect(&w);
    let made = linked(&w, 100);
    assert!(made.iter().all(|r| r.oref().page() != things[0].oref().page()));
    assert!(made.iter().all(|r| r.oref() != reserved.oref()));
    verify(&w);
}

#[test]
fn collection_begins_by_itself_when_much_was_made() {
    let mut config = config(ServerConfig::default());
    config.collect = CollectConfig { is_automatic: true, made_min: 500, ..config.collect };
    let w = World::new(1, 1, config);
    let kept = make(&w, 0, "kept", 1);
    for _ in 0..40 {
        w.run(0, |tx| {
            let head = chain(tx, 100, 20)?;
            tx.edit(kept)?.set_next(head)
        })
        .unwrap();
        w.pass_ms(GRACE_MS);
    }
    w.pass_ms(3 * GRACE_MS);
    // Another view goes on where the one before was.
    let left = objects(&w) as u64;
    w.crash();
    w.restart();
    w.run_until_idle();
    let made = number(&status(&w), "made_since");
    assert!(made < left, "{made} objects count as made since the last collection, of {left}");
    assert!(objects(&w) < 1_500, "{} objects are left of some hundred", objects(&w));
    set_twice(&w, kept);
}

/// A thing that is used after collections can be used as before.
fn set_twice(w: &World, r: Ref<Thing>) {
    for n in [3, 4] {
        w.run(0, |tx| set(tx, r, n)).unwrap();
        assert_eq!(count(w, 0, r), n);
    }
}
