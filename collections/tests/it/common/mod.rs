//! Helpers that the tests share: a space in a directory that vanishes, objects to refer to, numbers without a
//! clock.
#![allow(dead_code, reason = "each test file uses a part of it")]

use tercel::{Client, ClientConfig, Error, Object, Ref, ServerConfig, Tx};

/// Something to refer to.
#[derive(Object, Debug, PartialEq)]
pub struct Item {
    pub number: u64,
}

pub fn item(tx: &Tx<'_>, number: u64) -> Result<Ref<Item>, Error> {
    tx.create(&Item { number })
}

/// A space whose client has a cache of that many bytes.
pub fn space(dir: &tempfile::TempDir, cache_bytes: usize) -> Client {
    let config = ClientConfig { cache_bytes, ..ClientConfig::default() };
    tercel::embedded_with(ServerConfig::new(dir.path()), config).unwrap()
}

/// Enough for everything a test does.
pub const LARGE: usize = 32 << 20;
