//! Classes: their numbers, the catalogue, and the types of a program that stand for them.

use crate::world::World;
use tercel_derive::Object;
use tercel_engine::error::Error;
use tercel_engine::server::ServerConfig;
use tercel_engine::txn::{Isolation, Tx};
use tercel_wire::record::Ref;

/// Something to count.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Thing {
    count: u64,
}

/// Another class.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Other {
    word: u64,
}

/// By mistake of the class of [`Thing`], of the same shape.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine", name = "Thing")]
struct Twin {
    count: u64,
}

/// By mistake of the class of [`Thing`], of another shape.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine", name = "Thing")]
struct Namesake {
    next: Ref<Namesake>,
    weight: u16,
}

fn world(clients: usize) -> World {
    World::new(1, clients, ServerConfig::default())
}

fn make(w: &World, client: usize, count: u64) -> Ref<Thing> {
    w.run(client, |tx| tx.create(&Thing { count })).unwrap()
}

/// The value that a client reads once everything that is on its way has arrived.
fn count(w: &World, client: usize, r: Ref<Thing>) -> u64 {
    w.run_until_idle();
    w.run(client, |tx| Ok(tx.get(r)?.count())).unwrap()
}

fn is_taken<T: std::fmt::Debug>(result: Result<T, Error>) {
    let told =
        matches!(&result, Err(Error::Schema(why)) if why.contains("the class Thing with another type"));
    assert!(told, "{result:?}");
}

#[test]
fn two_types_of_one_name_are_not_written_by_one_client() {
    let w = world(2);
    let r = make(&w, 0, 7);
    is_taken(w.run(0, |tx| tx.create(&Twin { count: 8 })));
    is_taken(w.run(0, |tx| tx.create(&Namesake { next: Ref::NULL, weight: 9 })));
    // What was refused has left nothing behind, and another client may use the other one.
    assert_eq!(count(&w, 0, r), 7);
    w.run(1, |tx| tx.create(&Twin { count: 8 })).unwrap();
}

#[test]
fn two_types_of_one_name_are_not_read_by_one_client() {
    let w = world(2);
    let r = make(&w, 0, 7);
    w.run_until_idle();
    is_taken(w.run(0, |tx| Ok(tx.get(r.cast::<Twin>())?.count())));
    is_taken(w.run(0, |tx| Ok(tx.get(r.cast::<Namesake>())?.weight())));
    // Also where the class was only read before.
    assert_eq!(count(&w, 1, r), 7);
    is_taken(w.run(1, |tx| Ok(tx.get(r.cast::<Twin>())?.count())));
    is_taken(w.run(1, |tx| tx.create(&Twin { count: 8 })));
    assert_eq!(count(&w, 1, r), 7);
}

#[test]
fn class_number_is_durable_before_it_is_announced() {
    let w = world(2);
    w.run_until_idle();
    w.lock().hold.syncs = true;
    w.lock().patience = 100;
    let made = w.run(0, |tx| tx.create(&Thing { count: 1 }));
    assert_eq!(made, Err(Error::Timeout));
    // The definition is lost, and another class takes the number.
    w.crash();
    w.lock().hold.syncs = false;
    w.restart();
    w.run_until_idle();
    w.lock().patience = 10_000;
    w.run(1, |tx| tx.create(&Other { word: 7 })).unwrap();
    let r = make(&w, 0, 3);
    assert_eq!(count(&w, 1, r), 3);
}

#[test]
fn the_catalogue_is_asked_for_again_if_the_first_question_was_lost() {
    let w = world(2);
    let known = make(&w, 0, 1);
    assert_eq!(count(&w, 1, known), 1);
    let (r, other) =
        w.run(0, |tx| Ok((tx.create(&Thing { count: 1 })?, tx.create(&Other { word: 7 })?))).unwrap();
    assert_eq!((count(&w, 1, r), r.oref().page()), (1, other.oref().page()));
    let port = w.thread(1);
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    w.lock().hold.connects = true;
    w.cut(1);
    // The page is here, the class is not known, and there is no server to ask.
    w.lock().patience = 20;
    assert!(tx.get(other).is_err());
    w.lock().hold.connects = false;
    w.run_until_idle();
    w.lock().patience = 1_000;
    assert_eq!(w.run(1, |tx| Ok(tx.get(other)?.word())), Ok(7));
}
