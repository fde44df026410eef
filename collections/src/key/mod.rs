//! The types that a key of a map can have, and their form as bytes whose order is the keys' own.
//!
//! The forms are a format, and stand in `docs/formats.md`. The invariant: of two keys of one type the lesser
//! one has the lesser bytes, equal keys have equal bytes, and other bytes than those of a key are refused.

mod compound;
mod scalar;
pub(crate) mod shape;
mod show;
pub(crate) mod untyped;

use std::fmt::Debug;

use tercel_engine::Error;
use tercel_engine::error::Bound;
use tercel_wire::record::{Bytes, Text};
use thiserror::Error;

pub use shape::Shape;
#[doc(hidden)]
pub use show::{key_and_contents, shape_name, show};
#[doc(hidden)]
pub use untyped::{put_datum, to_datum};

/// Bytes of a key at most: three of the longest still fit into a node, so a split always helps.
pub const KEY_BYTES_MAX: usize = 255;

/// A type that the keys of a [`Map`](crate::Map) can have.
///
/// | keys | in the order of |
/// |---|---|
/// | integers from 8 to 128 bits, `bool`, `char` | their values |
/// | `f32`, `f64` | `total_cmp`: negative NaN, numbers, NaN; -0.0 before 0.0 |
/// | [`Text`], [`Bytes`], `[u8; N]` | their bytes |
/// | `Option<K>` | `None` first |
/// | [`Reverse<K>`](std::cmp::Reverse) | `K`, from the greatest to the least |
/// | pairs, triples and quadruples | the first part, of equal ones the second, and so on |
/// | a struct of one field with `#[derive(Key)]` | that field |
///
/// Implemented here and by `#[derive(Key)]`; not meant to be implemented by hand.
///
/// ```
/// use std::cmp::Reverse;
/// use tercel::collections::Map;
/// use tercel::{Key, Object, Text};
///
/// /// The number of a seat.
/// #[derive(Key, Debug, Clone, PartialEq)]
/// struct SeatId(u32);
///
/// #[derive(Object)]
/// struct Seat {
///     is_free: bool,
/// }
///
/// # let dir = std::env::temp_dir().join(format!("tercel-key-{}", std::process::id()));
/// # let space = tercel::embedded(&dir)?;
/// space.run(|tx| {
///     let dear_first = Map::<(Text, Reverse<u64>, SeatId), Seat>::create(tx)?;
///     for (price, seat) in [(900, 1), (4_000, 2), (900, 3)] {
///         let is_free = tx.create(&Seat { is_free: true })?;
///         dear_first.insert(tx, ("opera", Reverse(price), &SeatId(seat)), is_free)?;
///     }
///     let seats = dear_first.prefix(tx, ("opera",)).map(|entry| Ok(entry?.0.2.0));
///     assert_eq!(seats.collect::<Result<Vec<_>, tercel::Error>>()?, [2, 1, 3]);
///     assert_eq!(dear_first.prefix(tx, ("opera", Reverse(900))).count(), 2);
///     Ok(())
/// })?;
/// # space.close()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key of a map or an index",
    note = "keys are: integers, bool, char, f32, f64, [u8; N], Text, Bytes, Option and Reverse of a key, two to four keys in a tuple, and structs of one field with #[derive(Key)]"
)]
pub trait Key: Clone + Debug + 'static {
    /// The form of a key in a look-up, without a copy: `&str`, `&[u8]`, the number itself; a reference to a
    /// struct with `#[derive(Key)]`.
    type Arg<'k>: Copy;

    /// The key as an argument.
    fn arg(&self) -> Self::Arg<'_>;

    /// The description that its maps carry.
    #[doc(hidden)]
    const SHAPE: Shape;

    /// Bytes of each key, if all have as many.
    #[doc(hidden)]
    const BYTES: Option<usize>;

    /// Appends the key's bytes.
    #[doc(hidden)]
    fn put(key: Self::Arg<'_>, form: Form, to: &mut Vec<u8>);

    /// Reads a key from the front of bytes.
    #[doc(hidden)]
    fn take(from: &mut &[u8], form: Form) -> Result<Self, BadKey>;

    /// The bytes of a whole key. The argument is written out in implementations too: the lifetime would be
    /// bound at another time.
    #[doc(hidden)]
    fn encode<'k>(key: Self::Arg<'k>) -> impl AsRef<[u8]> + 'k {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        Self::put(key, Form::Last, &mut bytes);
        bytes
    }

    /// The key of bytes that were read.
    #[doc(hidden)]
    fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut rest = bytes;
        match Self::take(&mut rest, Form::Last) {
            Ok(key) if rest.is_empty() => Ok(key),
            _ => Err(Error::Corrupt(format!("a key of a map is no {}: it is {bytes:02x?}", Self::SHAPE))),
        }
    }
}

/// Bytes that a key of several parts has room for before it needs more.
const USUAL_BYTES: usize = 32;

/// A place in a key. What has no fixed length is written in another form where more of the key follows.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The key ends with it.
    Last,
    /// More may follow.
    Inner,
}

/// The bytes of keys as they are written.
#[doc(hidden)]
pub type KeyBytes = Vec<u8>;

/// Bytes that are no key of their type.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadKey;

/// The beginning of keys of type `K`: `&str` of [`Text`], `&[u8]` of [`Bytes`], and of a tuple its first
/// parts, as a tuple: `(5,)` or `(5, "a")` of a triple.
pub trait Prefix<K: Key>: Copy {
    /// Appends its bytes.
    #[doc(hidden)]
    fn put_prefix(self, to: &mut Vec<u8>);
}

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

/// Has the compiler refuse keys that are all too long.
pub(crate) const fn must_fit<K: Key>() {
    if let Some(bytes) = K::BYTES {
        assert!(
            bytes <= KEY_BYTES_MAX,
            "a key of a map has at most 255 bytes, and those of this type have more"
        );
    }
}

/// Text and byte strings: as they are at the end of a key, and else with an end of their own.
fn put_bytes(bytes: &[u8], form: Form, to: &mut Vec<u8>) {
    if form == Form::Last {
        return to.extend_from_slice(bytes);
    }
    for part in bytes.split_inclusive(|byte| *byte == 0) {
        to.extend_from_slice(part);
        if part.ends_with(&[0]) {
            to.push(ZERO);
        }
    }
    to.extend_from_slice(&[0, END]);
}

/// Reads what [`put_bytes`] wrote.
fn take_bytes(from: &mut &[u8], form: Form) -> Result<Vec<u8>, BadKey> {
    if form == Form::Last {
        return Ok(std::mem::take(from).to_vec());
    }
    let mut bytes = Vec::new();
    loop {
        let zero = from.iter().position(|byte| *byte == 0).ok_or(BadKey)?;
        bytes.extend_from_slice(&from[..zero]);
        let mark = *from.get(zero + 1).ok_or(BadKey)?;
        *from = &from[zero + 2..];
        match mark {
            END => return Ok(bytes),
            ZERO => bytes.push(0),
            _ => return Err(BadKey),
        }
    }
}

/// Stands behind a zero byte that is the end of a part. Less than [`ZERO`]: the shorter of two comes first.
const END: u8 = 0;
/// Stands behind a zero byte of the part itself.
const ZERO: u8 = 0xff;

impl Key for Text {
    type Arg<'k> = &'k str;
    const SHAPE: Shape = Shape::new(shape::TEXT);
    const BYTES: Option<usize> = None;

    fn arg(&self) -> &str {
        &self.0
    }

    fn put(key: Self::Arg<'_>, form: Form, to: &mut Vec<u8>) {
        put_bytes(key.as_bytes(), form, to);
    }

    fn take(from: &mut &[u8], form: Form) -> Result<Text, BadKey> {
        String::from_utf8(take_bytes(from, form)?).map(Text).map_err(|_| BadKey)
    }

    fn encode<'k>(key: Self::Arg<'k>) -> impl AsRef<[u8]> + 'k {
        key
    }
}

impl Prefix<Text> for &str {
    fn put_prefix(self, to: &mut Vec<u8>) {
        to.extend_from_slice(self.as_bytes());
    }
}

impl Key for Bytes {
    type Arg<'k> = &'k [u8];
    const SHAPE: Shape = Shape::new(shape::BYTES);
    const BYTES: Option<usize> = None;

    fn arg(&self) -> &[u8] {
        &self.0
    }

    fn put(key: Self::Arg<'_>, form: Form, to: &mut Vec<u8>) {
        put_bytes(key, form, to);
    }

    fn take(from: &mut &[u8], form: Form) -> Result<Bytes, BadKey> {
        take_bytes(from, form).map(Bytes)
    }

    fn encode<'k>(key: Self::Arg<'k>) -> impl AsRef<[u8]> + 'k {
        key
    }
}

impl Prefix<Bytes> for &[u8] {
    fn put_prefix(self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }
}

#[cfg(test)]
mod tests;
