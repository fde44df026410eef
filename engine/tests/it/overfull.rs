//! A transaction that read more than its client's cache can remember once it is gone from there.

use crate::world::things::{many, set, world};
use tercel_engine::error::{Bound, Error};
use tercel_engine::txn::{Isolation, Tx};

/// Reads much, writes one of it, and loses all of it to another transaction of its client; then something
/// that it read is changed elsewhere.
fn commit_after_forgetting(isolation: Isolation) -> Result<(), Error> {
    let w = world(1);
    let small = w.add_client(7, 256 << 10);
    let (read, others) = (many(&w, 0, 4_500, 0), many(&w, 0, 300, 900));
    let port = w.thread(small);
    let tx = Tx::begin(&port, isolation).unwrap();
    for (i, r) in (0..).zip(&read) {
        assert_eq!(tx.get(*r).unwrap().count(), i);
    }
    set(&tx, read[0], 7).unwrap();
    w.run(small, |tx| others.iter().try_for_each(|r| tx.get(*r).map(drop))).unwrap();
    w.run(0, |tx| read[1..300].iter().try_for_each(|r| set(tx, *r, 9))).unwrap();
    tx.commit().map(drop)
}

#[test]
fn forgotten_reads_are_not_committed_as_if_there_were_none() {
    let full = commit_after_forgetting(Isolation::Serializable);
    assert!(matches!(&full, Err(Error::Full(Bound::Reads))), "{full:?}");
}

#[test]
fn snapshot_isolation_needs_no_memory_of_what_was_only_read() {
    assert_eq!(commit_after_forgetting(Isolation::Snapshot), Ok(()));
}
