//! Objects to count and to grow, and short words for what tests do with them. Counts and sizes are read in a
//! world that has come to rest, so that every client sees the same.

use tercel_derive::Object;
use tercel_engine::error::Error;
use tercel_engine::server::ServerConfig;
use tercel_engine::txn::Tx;
use tercel_wire::record::{Ref, Text};

use crate::World;

/// Something to count and to grow.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
pub struct Thing {
    /// Its number.
    pub count: u64,
    /// The text that grows.
    pub text: Text,
    /// Another one, or null.
    pub next: Ref<Thing>,
}

/// Makes a thing of that number, which refers to no other.
pub fn thing(count: u64) -> Thing {
    Thing { count, text: "".into(), next: Ref::NULL }
}

/// Makes a world of the seed 1 with a server of the usual size.
pub fn world(clients: usize) -> World {
    World::new(1, clients, ServerConfig::default())
}

/// Gives the configuration of a server that soon has to read and to install.
pub fn small() -> ServerConfig {
    // Sixteen pages of cache, and a buffer that is full after some commits.
    ServerConfig { mob_bytes: 64 << 10, cache_bytes: 1, ..ServerConfig::default() }
}

/// Creates a thing under a root.
///
/// # Panics
/// If that fails, as all here do.
pub fn make(w: &World, client: usize, name: &str, count: u64) -> Ref<Thing> {
    w.run(client, |tx| {
        let r = tx.create(&thing(count))?;
        tx.set_root(name, r)?;
        Ok(r)
    })
    .unwrap()
}

/// Creates `n` things with `size` bytes of text each.
///
/// # Panics
/// If that fails.
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

/// Sets the number of a thing.
///
/// # Errors
/// Those of [`Tx::edit`].
pub fn set(tx: &Tx<'_>, r: Ref<Thing>, count: u64) -> Result<(), Error> {
    tx.edit(r)?.set_count(count)
}

/// Gives a thing `size` bytes of text.
///
/// # Panics
/// If that fails.
pub fn grow(w: &World, client: usize, r: Ref<Thing>, size: usize) {
    w.run(client, |tx| tx.edit(r)?.set_text("x".repeat(size))).unwrap();
}

/// The count that a client reads once everything that is on its way has arrived.
pub fn count(w: &World, client: usize, r: Ref<Thing>) -> u64 {
    w.run_until_idle();
    w.run(client, |tx| Ok(tx.get(r)?.count())).unwrap()
}

/// The number of bytes of text that a client reads once everything that is on its way has arrived.
///
/// # Panics
/// If that fails.
pub fn text(w: &World, client: usize, r: Ref<Thing>) -> usize {
    w.run_until_idle();
    w.run(client, |tx| Ok(tx.get(r)?.text()?.len())).unwrap()
}
