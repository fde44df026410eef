//! Objects to count and to grow, and short words for what tests do with them. Counts and sizes are read in a world that
//! has come to rest, so that every client sees the same.

use tercel_derive::Object;
use tercel_engine::error::Error;
use tercel_engine::server::ServerConfig;
use tercel_engine::txn::Tx;
use tercel_wire::record::{Ref, Text};

use super::World;

/// Something to count and to grow.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
pub struct Thing {
    pub count: u64,
    pub text: Text,
    pub next: Ref<Thing>,
}

pub fn thing(count: u64) -> Thing {
    Thing { count, text: "".into(), next: Ref::NULL }
}

pub fn world(clients: usize) -> World {
    World::new(1, clients, ServerConfig::default())
}

pub fn small() -> ServerConfig {
    // Sixteen pages of cache, and a buffer that is full after some commits.
    ServerConfig { mob_bytes: 64 << 10, cache_bytes: 1, ..ServerConfig::default() }
}

pub fn make(w: &World, client: usize, name: &str, count: u64) -> Ref<Thing> {
    w.run(client, |tx| {
        let r = tx.create(&thing(count))?;
        tx.set_root(name, r)?;
        Ok(r)
    })
    .unwrap()
}

pub fn many(w: &World, client: usize, n: usize, size: usize) -> Vec<Ref<Thing>> {
    let all = |tx: &Tx<'_>| {
        (0..n).map(|i| tx.create(&Thing { text: "x".repeat(size).into(), ..thing(i as u64) })).collect()
    };
    w.run(client, all).unwrap()
}

/// A place in a page in which nothing else will be.
pub fn promise(w: &World, client: usize) -> Ref<Thing> {
    let large = Thing { text: "x".repeat(3_900).into(), ..thing(0) };
    // Two of them fill a page.
    w.run(client, |tx| (0..3).map(|_| tx.reserve(&large)).collect::<Result<Vec<_>, _>>()).unwrap()[2]
}

pub fn set(tx: &Tx<'_>, r: Ref<Thing>, count: u64) -> Result<(), Error> {
    tx.edit(r)?.set_count(count)
}

pub fn grow(w: &World, client: usize, r: Ref<Thing>, size: usize) {
    w.run(client, |tx| tx.edit(r)?.set_text("x".repeat(size))).unwrap();
}

/// What a client reads once everything that is on its way has arrived.
pub fn count(w: &World, client: usize, r: Ref<Thing>) -> u64 {
    w.run_until_idle();
    w.run(client, |tx| Ok(tx.get(r)?.count())).unwrap()
}

pub fn text(w: &World, client: usize, r: Ref<Thing>) -> usize {
    w.run_until_idle();
    w.run(client, |tx| Ok(tx.get(r)?.text()?.len())).unwrap()
}
