//! Helpers that the tests share: a space in a directory that vanishes, objects to refer to, numbers without a clock.
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

/// Numbers that look random and are the same in every run.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}
