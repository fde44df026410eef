//! A directory that was put back from a copy goes on as another history, and reaches the same stamps again. A
//! client that heard of the lost one must not join the two.

use crate::world::things::{count, make, many, set, thing, world};
use tercel_derive::Object;
use tercel_engine::error::Error;
use tercel_engine::txn::{Isolation, Tx};
use tercel_wire::message::Refusal;

#[test]
fn client_of_a_lost_history_keeps_no_copy_place_or_answer_of_it() {
    let w = world(1);
    let r = make(&w, 0, "r", 1);
    w.run_until_idle();
    let old = w.lock().node.disk.clone();
    // What is lost: a version that is cached, pages that were granted, places of a transaction that is still
    // open, and an operation whose answer is here and was not asked for.
    w.run(0, |tx| set(tx, r, 2)).unwrap();
    many(&w, 0, 20, 3_900);
    let port = w.thread(0);
    let open = Tx::begin(&port, Isolation::Serializable).unwrap();
    open.create(&thing(7)).unwrap();
    w.lock().hold.down = Some(0);
    w.lock().patience = 50;
    let Err(Error::Unknown { op: Some(op), .. }) = w.run(0, |tx| set(tx, r, 3)) else {
        panic!("it is not answered")
    };
    w.lock().hold.down = None;
    w.run_until_idle();
    // The new history reaches the same stamps, and beyond, before the client is heard.
    w.crash();
    w.lock().node.disk = old;
    w.lock().hold.up = Some(0);
    w.restart();
    w.lock().patience = 20_000;
    let other = w.add_client(99, 512 << 10);
    w.run(other, |tx| set(tx, r, 7)).unwrap();
    let theirs = many(&w, other, 20, 3_900);
    (0..20).for_each(|n| w.run(other, |tx| set(tx, theirs[0], n)).unwrap());
    w.lock().hold.up = None;
    w.run_until_idle();
    assert_eq!(count(&w, 0, r), 7);
    assert_eq!(w.resolve(0, *op), Err(Refusal::Unknown));
    assert!(matches!(open.commit(), Err(Error::Conflict(_))));
    // It makes objects in pages that are its own in this history.
    let mine = many(&w, 0, 20, 3_900);
    w.run_until_idle();
    for (i, r) in theirs.iter().enumerate().skip(1) {
        assert_eq!(count(&w, 0, *r), i as u64);
    }
    for (i, r) in mine.iter().enumerate() {
        assert!(!theirs.contains(r));
        assert_eq!(count(&w, other, *r), i as u64);
    }
}

/// A class that only the lost history has.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Other {
    word: u64,
}

#[test]
fn client_with_a_class_of_a_lost_history_is_refused_by_its_name() {
    let w = world(1);
    let r = make(&w, 0, "r", 1);
    w.run_until_idle();
    let old = w.lock().node.disk.clone();
    w.run(0, |tx| tx.create(&Other { word: 1 })).unwrap();
    w.crash();
    w.lock().node.disk = old;
    w.restart();
    w.run_until_idle();
    // Its number may soon be that of another class, and types are bound to numbers for as long as a cache is
    // there.
    w.lock().patience = 200;
    let refused = w.run(0, |tx| Ok(tx.get(r)?.count()));
    let is_told = |why: &str| why.contains("class Other") && why.contains("connect with a new client");
    assert!(matches!(&refused, Err(Error::Schema(why)) if is_told(why)), "{refused:?}");
    let new = w.add_client(99, 512 << 10);
    assert_eq!(count(&w, new, r), 1);
}
