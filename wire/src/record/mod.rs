//! Values into records, and the numbers back out.
//!
//! An object is a 4-byte header and a body. The header holds the class (two bytes) and, in caches only, flags
//! and usage; on disk and on the wire those two bytes are 0. The body's layout is [`crate::schema`]'s. An
//! [`Encoder`] writes variable parts depth first in order of the fields, the only order that a check accepts.
//! A part above [`SPILL_BYTES`] goes to a [`Spill`], which makes a tree of chunks and returns its reference.

mod convert;
mod reference;

use thiserror::Error;

use crate::id::{ClassId, Oref, Stamp};
use crate::layout::{NONE_AT, SPILLED, padded};
use crate::lent::Lending;
use crate::page::OBJECT_BYTES_MAX;
use crate::schema::{Scalar, Schema, Type};

pub use convert::convert;
pub(crate) use convert::convert_parts;
pub use reference::{Any, MapValue, Ref, Target};

/// Bytes of the header before every body.
pub const HEADER_BYTES: usize = 4;

/// The smallest object: what points on to a moved object must fit into its place.
pub const OBJECT_BYTES_MIN: usize = 8;

/// A variable part above this leaves the record for a tree of chunks: an object stays a small part of a page.
pub const SPILL_BYTES: usize = 1024;

/// A class of objects; written by `#[derive(Object)]`.
pub trait Class: Sized + 'static {
    /// Its name, unique in a space; apart from the schema, for a class may refer to itself.
    const NAME: &'static str = Self::SCHEMA.name;

    /// The schema of its records.
    const SCHEMA: Schema;

    /// Writes the fields into an encoder that begins at this class's fixed part.
    fn encode(&self, e: &mut Encoder<'_>);
}

/// A value that can be a field.
#[diagnostic::on_unimplemented(message = "`{Self}` cannot be stored in an object")]
pub trait Value {
    /// The type of the value.
    const TYPE: Type;

    /// Writes it at `at` of the fixed part or of a list's element.
    fn put(&self, e: &mut Encoder<'_>, at: usize);
}

/// A value that has no variable part and can be read by copying its bytes.
pub trait Fixed: Value + Copy {
    /// The bytes of the number, as an array.
    type Bytes: AsRef<[u8]> + for<'a> TryFrom<&'a [u8]> + Copy;

    /// From little-endian bytes.
    fn from_bytes(bytes: Self::Bytes) -> Self;

    /// To little-endian bytes.
    fn to_bytes(self) -> Self::Bytes;
}

/// Makes trees of chunks for an encoder, and receives the references that it writes.
pub trait Spill {
    /// Stores bytes; gives the tree's root.
    fn bytes(&mut self, bytes: &[u8]) -> Result<Oref, EncodeError>;
    /// Stores references; gives the tree's root.
    fn refs(&mut self, refs: &[Oref]) -> Result<Oref, EncodeError>;
    /// Stores bytes that are written one part after the other.
    fn lending(&mut self, lending: Lending<'_>) -> Result<Oref, EncodeError> {
        self.bytes(&gathered(lending))
    }
    /// A reference that was read at `stamp` is written, not null.
    fn named(&mut self, _oref: Oref, _stamp: Stamp) {}
}

/// Appends a record, unpadded, whose fixed part has `size` bytes and which `put` writes. Earlier content
/// stays, also if `put` panics; a part of the record may then stay after it.
///
/// # Errors
/// If a value cannot be in a record; then nothing is appended.
#[inline]
pub(crate) fn encode_behind(
    out: &mut Vec<u8>,
    size: usize,
    spill: &mut dyn Spill,
    put: impl FnOnce(&mut Encoder<'_>),
) -> Result<(), EncodeError> {
    let encoder = Encoder::behind(std::mem::take(out), size, spill);
    let mut behind = Behind { out, encoder };
    put(&mut behind.encoder);
    let Encoder { error, body, base, .. } = &mut behind.encoder;
    match error.take() {
        None => Ok(()),
        Some(e) => {
            body.truncate(*base);
            Err(e)
        }
    }
}

/// A record that is appended. Its bytes, and those before it, go back to their owner however that ends.
struct Behind<'o, 'e> {
    out: &'o mut Vec<u8>,
    encoder: Encoder<'e>,
}

impl Drop for Behind<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        *self.out = std::mem::take(&mut self.encoder.body);
    }
}

fn gathered(lending: Lending<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(lending.len());
    lending.write(&mut |part| bytes.extend_from_slice(part));
    bytes
}

/// A spill that refuses: for records that must be whole.
#[derive(Debug, Default)]
pub struct NoSpill;

impl Spill for NoSpill {
    fn bytes(&mut self, _: &[u8]) -> Result<Oref, EncodeError> {
        Err(EncodeError::PartTooLarge)
    }

    fn refs(&mut self, _: &[Oref]) -> Result<Oref, EncodeError> {
        Err(EncodeError::PartTooLarge)
    }
}

/// Refuses to make trees, and passes on which references are written.
struct NamesOnly<'a>(&'a mut dyn Spill);

impl Spill for NamesOnly<'_> {
    fn bytes(&mut self, _: &[u8]) -> Result<Oref, EncodeError> {
        Err(EncodeError::PartTooLarge)
    }

    fn refs(&mut self, _: &[Oref]) -> Result<Oref, EncodeError> {
        Err(EncodeError::PartTooLarge)
    }

    fn named(&mut self, oref: Oref, stamp: Stamp) {
        self.0.named(oref, stamp);
    }
}

/// A value that cannot be an object. The caller must act.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// An object above the page's limit.
    #[error("the object has {0} bytes and a page holds at most {max}: move part of it behind a reference", max = OBJECT_BYTES_MAX)]
    TooLarge(usize),
    /// A list that cannot be cut into chunks.
    #[error(
        "a list whose elements have references, texts or lists in them has at most 1,024 bytes inside an object: use a collection"
    )]
    PartTooLarge,
    /// More than 2^32 - 1 elements.
    #[error("a list, text or byte string has at most 4,294,967,295 elements")]
    TooLong,
    /// The transaction or its space has no room for chunks.
    #[error("there is no room for the chunks of a large value: commit in smaller parts")]
    NoRoom,
    /// A value of an enum of another version, of a variant that this one does not have.
    #[error("it has variant {0}, which this program does not know: build it with the newer enum")]
    NoVariant(Box<str>),
    /// A large part of a message that is to be converted, which its sender must mend.
    #[error("a large text, byte string or list is not as long as its record says")]
    NoPart,
}

/// Bytes of a body that there is room for before more is made: a node of a map has as many at most.
const USUAL_BYTES: usize = 1_000;

/// Writes one record.
pub struct Encoder<'a> {
    body: Vec<u8>,
    /// Where the record begins in the body.
    base: usize,
    spill: &'a mut dyn Spill,
    spill_above: usize,
    error: Option<EncodeError>,
}

impl<'a> Encoder<'a> {
    /// Begins a record whose fixed part has `size` bytes, all 0.
    pub fn new(size: usize, spill: &'a mut dyn Spill) -> Encoder<'a> {
        let mut body = Vec::with_capacity(size.max(USUAL_BYTES));
        body.resize(size, 0);
        Encoder { body, base: 0, spill, spill_above: SPILL_BYTES, error: None }
    }

    /// Begins an encoder after other bytes, which [`encode_behind`] gives back with it.
    fn behind(mut body: Vec<u8>, size: usize, spill: &'a mut dyn Spill) -> Encoder<'a> {
        let base = body.len();
        body.resize(base + size, 0);
        Encoder { body, base, spill, spill_above: SPILL_BYTES, error: None }
    }

    /// Keeps parts of up to `bytes` in the record. For the leaves of trees of chunks.
    pub fn spill_above(mut self, bytes: usize) -> Encoder<'a> {
        self.spill_above = bytes;
        self
    }

    /// The body alone, unpadded: for a value that goes into a record that exists.
    pub fn finish_bytes(self) -> Result<Vec<u8>, EncodeError> {
        self.error.map_or(Ok(self.body), Err)
    }

    /// The object: header and body, padded to a multiple of 4 and to at least [`OBJECT_BYTES_MIN`].
    pub fn finish(self, class: ClassId) -> Result<Vec<u8>, EncodeError> {
        if let Some(e) = self.error {
            return Err(e);
        }
        let body = &self.body[self.base..];
        let bytes = HEADER_BYTES + padded(body.len());
        let mut out = Vec::with_capacity(bytes);
        out.extend_from_slice(&class.0.to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(body);
        out.resize(bytes, 0);
        if out.len() > OBJECT_BYTES_MAX { Err(EncodeError::TooLarge(out.len())) } else { Ok(out) }
    }

    /// Overwrites bytes of the fixed part or of an element.
    pub fn set(&mut self, at: usize, bytes: &[u8]) {
        self.body[self.base + at..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Passes on a reference that was read at `stamp`, and that the record has.
    pub(crate) fn named(&mut self, oref: Oref, stamp: Stamp) {
        self.spill.named(oref, stamp);
    }

    /// Makes what is encoded fail; the first error counts.
    pub fn fail(&mut self, e: EncodeError) {
        self.error.get_or_insert(e);
    }

    fn descriptor(&mut self, at: usize, off: u16, len: u16) {
        self.set(at, &off.to_le_bytes());
        self.set(at + 2, &len.to_le_bytes());
    }

    /// Room for a variable part at its alignment; where it begins.
    fn room(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let from = (self.body.len() - self.base).next_multiple_of(align);
        if from + bytes > OBJECT_BYTES_MAX {
            self.fail(EncodeError::TooLarge(HEADER_BYTES + from + bytes));
            return None;
        }
        self.body.resize(self.base + from + bytes, 0);
        Some(from)
    }

    /// A text or byte string whose descriptor is at `at`.
    pub fn put_bytes(&mut self, at: usize, bytes: &[u8]) {
        if self.spills(bytes.len()) {
            return self.put_spilled(at, bytes.len(), |s| s.bytes(bytes));
        }
        if bytes.is_empty() {
            return self.descriptor(at, 0, 0);
        }
        if let Some(from) = self.room(bytes.len(), 1) {
            self.set(from, bytes);
            self.descriptor(at, from as u16, bytes.len() as u16);
        }
    }

    /// A byte string that is lent, whose descriptor is at `at`.
    pub fn put_lending(&mut self, at: usize, lending: Lending<'_>) {
        match lending {
            _ if self.spills(lending.len()) => self.put_spilled(at, lending.len(), |s| s.lending(lending)),
            Lending::Bytes(bytes) => self.put_bytes(at, bytes),
            _ => self.put_bytes(at, &gathered(lending)),
        }
    }

    /// A text, byte string or list above the limit, of which `f` makes a tree.
    pub(crate) fn put_spilled(
        &mut self,
        at: usize,
        len: usize,
        f: impl FnOnce(&mut dyn Spill) -> Result<Oref, EncodeError>,
    ) {
        let Ok(total) = u32::try_from(len) else { return self.fail(EncodeError::TooLong) };
        match f(self.spill) {
            Ok(root) => self.put_tree(at, root, total),
            Err(e) => self.fail(e),
        }
    }

    /// A tree of chunks that exists, whose descriptor is at `at`.
    pub fn put_tree(&mut self, at: usize, root: Oref, len: u32) {
        if let Some(from) = self.room(8, 4) {
            self.set(from, &root.raw().to_le_bytes());
            self.set(from + 4, &len.to_le_bytes());
            self.descriptor(at, from as u16, SPILLED);
        }
    }

    /// Marks the optional part whose descriptor is at `at` as absent.
    pub fn put_none(&mut self, at: usize) {
        self.descriptor(at, NONE_AT, 0);
    }

    /// Says whether a part of so many bytes leaves the record.
    pub(crate) fn spills(&self, bytes: usize) -> bool {
        bytes > self.spill_above
    }

    /// Room for `len` elements whose descriptor is at `at`; where the first one goes.
    pub(crate) fn put_block(&mut self, at: usize, len: usize, size: usize, align: usize) -> Option<usize> {
        if len == 0 {
            self.descriptor(at, 0, 0);
            return None;
        }
        let from = self.room(len * size, align)?;
        self.descriptor(at, from as u16, len as u16);
        Some(from)
    }
}

/// The length of an array field, which the compiler refuses above 65,535.
const fn array_len(n: usize) -> u16 {
    assert!(n <= u16::MAX as usize, "an array in an object has at most 65,535 elements");
    n as u16
}

macro_rules! scalar {
    ($($t:ty => $s:ident),*) => {$(
        impl Value for $t {
            const TYPE: Type = Type::Scalar(Scalar::$s);
            fn put(&self, e: &mut Encoder<'_>, at: usize) {
                e.set(at, &self.to_le_bytes());
            }
        }
        impl Fixed for $t {
            type Bytes = [u8; size_of::<$t>()];
            fn from_bytes(bytes: Self::Bytes) -> Self {
                <$t>::from_le_bytes(bytes)
            }
            fn to_bytes(self) -> Self::Bytes {
                self.to_le_bytes()
            }
        }
        impl<const N: usize> Value for [$t; N] {
            const TYPE: Type = Type::Array(Scalar::$s, array_len(N));
            fn put(&self, e: &mut Encoder<'_>, at: usize) {
                for (i, v) in self.iter().enumerate() {
                    v.put(e, at + i * size_of::<$t>());
                }
            }
        }
    )*};
}
scalar!(u8 => U8, u16 => U16, u32 => U32, u64 => U64, i8 => I8, i16 => I16, i32 => I32, i64 => I64, f32 => F32, f64 => F64);

impl Value for bool {
    const TYPE: Type = Type::Scalar(Scalar::Bool);
    fn put(&self, e: &mut Encoder<'_>, at: usize) {
        e.set(at, &[*self as u8]);
    }
}

impl Fixed for bool {
    type Bytes = [u8; 1];
    fn from_bytes(bytes: [u8; 1]) -> bool {
        bytes[0] != 0
    }
    fn to_bytes(self) -> [u8; 1] {
        [self as u8]
    }
}

impl<const N: usize> Value for [bool; N] {
    const TYPE: Type = Type::Array(Scalar::Bool, array_len(N));
    fn put(&self, e: &mut Encoder<'_>, at: usize) {
        for (i, v) in self.iter().enumerate() {
            e.set(at + i, &[*v as u8]);
        }
    }
}

/// UTF-8 of any length.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Text(pub String);

impl From<&str> for Text {
    fn from(s: &str) -> Text {
        Text(s.into())
    }
}

impl std::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl From<std::borrow::Cow<'_, str>> for Text {
    fn from(s: std::borrow::Cow<'_, str>) -> Text {
        Text(s.into_owned())
    }
}

impl From<String> for Text {
    fn from(s: String) -> Text {
        Text(s)
    }
}

impl std::fmt::Display for Text {
    /// The text itself; width, alignment and precision are those of a `str`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.0)
    }
}

impl Value for Text {
    const TYPE: Type = Type::Text;
    fn put(&self, e: &mut Encoder<'_>, at: usize) {
        e.put_bytes(at, self.0.as_bytes());
    }
}

/// Bytes of any length.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub Vec<u8>);

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Bytes {
        Bytes(bytes.to_vec())
    }
}

impl<const N: usize> From<[u8; N]> for Bytes {
    fn from(bytes: [u8; N]) -> Bytes {
        Bytes(bytes.into())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(b: Vec<u8>) -> Bytes {
        Bytes(b)
    }
}

impl Value for Bytes {
    const TYPE: Type = Type::Bytes;
    fn put(&self, e: &mut Encoder<'_>, at: usize) {
        e.put_bytes(at, &self.0);
    }
}

/// Any number of elements of one type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct List<T>(pub Vec<T>);

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List(Vec::new())
    }
}

impl<T> List<T> {
    /// An empty one.
    pub const fn new() -> List<T> {
        List(Vec::new())
    }
}

impl<T, const N: usize> From<[T; N]> for List<T> {
    fn from(elements: [T; N]) -> List<T> {
        List(elements.into())
    }
}

impl<T> From<Vec<T>> for List<T> {
    fn from(v: Vec<T>) -> List<T> {
        List(v)
    }
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(iter: I) -> List<T> {
        List(iter.into_iter().collect())
    }
}

impl<T> std::ops::Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> IntoIterator for List<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a List<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T: Value> Value for List<T> {
    const TYPE: Type = Type::List(&T::TYPE);
    fn put(&self, e: &mut Encoder<'_>, at: usize) {
        let size = const { T::TYPE.size() };
        if e.spills(self.0.len().saturating_mul(size)) {
            return put_large_list(&self.0, e, at);
        }
        let Some(from) = e.put_block(at, self.0.len(), size, const { T::TYPE.align() }) else { return };
        for (i, v) in self.0.iter().enumerate() {
            v.put(e, from + i * size);
        }
    }
}

/// Elements are written as they would be in a record, and the bytes or references go to the spill.
fn put_large_list<T: Value>(list: &[T], e: &mut Encoder<'_>, at: usize) {
    let size = const { T::TYPE.size() };
    if !const { T::TYPE.spills() } {
        return e.fail(EncodeError::PartTooLarge);
    }
    let mut names = NamesOnly(&mut *e.spill);
    let mut plain = Encoder::new(list.len() * size, &mut names);
    for (i, v) in list.iter().enumerate() {
        v.put(&mut plain, i * size);
    }
    let body = plain.body;
    match T::TYPE {
        Type::Ref(_) => {
            let refs: Vec<Oref> =
                (0..list.len()).filter_map(|i| Oref::from_raw(crate::cursor::le32(&body, i * 4))).collect();
            e.put_spilled(at, list.len(), |s| s.refs(&refs));
        }
        _ => e.put_spilled(at, list.len(), |s| s.bytes(&body)),
    }
}

impl<T: Value> Value for Option<T> {
    const TYPE: Type = Type::Option(&T::TYPE);
    fn put(&self, e: &mut Encoder<'_>, at: usize) {
        match (self, &T::TYPE) {
            (None, Type::Ref(_)) => {}
            (None, Type::Text | Type::Bytes | Type::List(_)) => e.put_none(at),
            (None, _) => {}
            (Some(v), Type::Ref(_) | Type::Text | Type::Bytes | Type::List(_)) => v.put(e, at),
            (Some(v), t) => {
                e.set(at, &[1]);
                v.put(e, at + t.align());
            }
        }
    }
}

#[cfg(test)]
mod tests;
