//! The types that a key of a map can have, and their form as bytes whose order is the keys' own.

use std::fmt::Debug;

use tercel_engine::Error;
use tercel_engine::error::Bound;
use tercel_wire::record::{Bytes, Text};
use thiserror::Error;

/// Bytes of a key at most: three of the longest still fit into a node, so a split always helps.
pub const KEY_BYTES_MAX: usize = 255;

/// A type that the keys of a [`Map`](crate::Map) can have: [`Text`], [`Bytes`] (both ordered by their bytes)
/// and `u64`.
pub trait Key: Ord + Clone + Debug + sealed::Stored + 'static {
    /// The form of a key in a look-up, without a copy: `&str`, `&[u8]`, `u64`.
    type Arg<'k>: Copy;

    /// The key as an argument.
    fn arg(&self) -> Self::Arg<'_>;
}

/// A key that others can begin with: [`Text`] and [`Bytes`].
pub trait PrefixKey: Key {}

/// A key that does not fit into a node. The caller must shorten it, or use a digest of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a key of a map has at most {KEY_BYTES_MAX} bytes and this one has {bytes}: shorten it")]
pub struct KeyTooLong {
    /// Bytes of the key.
    pub bytes: usize,
}

impl From<KeyTooLong> for Error {
    fn from(e: KeyTooLong) -> Error {
        Error::Full(Bound::Key { bytes: e.bytes, bytes_max: KEY_BYTES_MAX })
    }
}

/// Checks that a key of these bytes can be stored.
pub(crate) fn check(key: &[u8]) -> Result<(), KeyTooLong> {
    if key.len() > KEY_BYTES_MAX { Err(KeyTooLong { bytes: key.len() }) } else { Ok(()) }
}

/// The part of a key that only this crate may know: its stored form is a format, so the kinds are fixed here.
pub(crate) mod sealed {
    use super::{Error, Key};

    pub trait Stored: Sized {
        /// The number that nodes carry for keys of this type.
        const KIND: u8;

        /// Bytes in the order of the keys. The argument is written out in the implementations too: the
        /// lifetime would be bound at another time.
        fn encode<'k>(key: <Self as Key>::Arg<'k>) -> impl AsRef<[u8]> + 'k
        where
            Self: Key;

        /// The key of bytes that were read.
        fn decode(bytes: &[u8]) -> Result<Self, Error>;
    }
}

impl Key for Text {
    type Arg<'k> = &'k str;

    fn arg(&self) -> &str {
        &self.0
    }
}

impl PrefixKey for Text {}

impl sealed::Stored for Text {
    const KIND: u8 = 1;

    fn encode<'k>(key: <Self as Key>::Arg<'k>) -> impl AsRef<[u8]> + 'k {
        key
    }

    fn decode(bytes: &[u8]) -> Result<Text, Error> {
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Text::from(text)),
            Err(_) => Err(Error::Corrupt("a key of a map of texts is not UTF-8".into())),
        }
    }
}

impl Key for Bytes {
    type Arg<'k> = &'k [u8];

    fn arg(&self) -> &[u8] {
        &self.0
    }
}

impl PrefixKey for Bytes {}

impl sealed::Stored for Bytes {
    const KIND: u8 = 2;

    fn encode<'k>(key: <Self as Key>::Arg<'k>) -> impl AsRef<[u8]> + 'k {
        key
    }

    fn decode(bytes: &[u8]) -> Result<Bytes, Error> {
        Ok(Bytes(bytes.to_vec()))
    }
}

impl Key for u64 {
    type Arg<'k> = u64;

    fn arg(&self) -> u64 {
        *self
    }
}

/// A number's bytes are stored highest first, because nodes are ordered by bytes.
impl sealed::Stored for u64 {
    const KIND: u8 = 3;

    fn encode<'k>(key: u64) -> impl AsRef<[u8]> + 'k {
        key.swap_bytes().to_le_bytes()
    }

    fn decode(bytes: &[u8]) -> Result<u64, Error> {
        match bytes.try_into() {
            Ok(bytes) => Ok(u64::from_le_bytes(bytes).swap_bytes()),
            Err(_) => Err(Error::Corrupt(format!("a key of a map of numbers has {} bytes", bytes.len()))),
        }
    }
}
