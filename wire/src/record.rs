//! Values into records, and the numbers back out.
//!
//! An object is a 4-byte header and a body. The header holds the class (two bytes) and, in caches only, flags
//! and usage; on disk and on the wire those two bytes are 0. The body's layout is [`crate::schema`]'s. An
//! [`Encoder`] writes variable parts depth first in order of the fields, the only order that a check accepts.
//! A part above [`SPILL_BYTES`] goes to a [`Spill`], which makes a tree of chunks and returns its reference.

use std::marker::PhantomData;

use thiserror::Error;

use crate::id::{ClassId, Oref, Stamp};
use crate::layout::{FieldLayout, Layout, NONE_AT, SPILLED, Shape, Var, padded, var};
use crate::lent::Lending;
use crate::page::OBJECT_BYTES_MAX;
use crate::schema::{Scalar, Schema, Type};

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
    /// Its type.
    const TYPE: Type;

    /// Writes it at `at` of the fixed part or of a list's element.
    fn put(&self, e: &mut Encoder<'_>, at: usize);
}

/// A value that has no variable part and can be read by copying its bytes.
pub trait Fixed: Value + Copy {
    /// Its bytes, as an array.
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
}

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
        Encoder { body: vec![0; size], base: 0, spill, spill_above: SPILL_BYTES, error: None }
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

/// A reference to an object of class `T`, as a value: 16 bytes, copied freely, equal when it names the same
/// place. It remembers where a cache last found the object; that is a hint and not part of its value. It also
/// remembers the stamp of the state in which it was read: when the object is gone and its page was given out
/// again since, the reference names no object, whatever stands in the place now.
pub struct Ref<T> {
    oref: Oref,
    hint: u32,
    stamp: Stamp,
    class: PhantomData<fn() -> T>,
}

/// Stands for "an object of any class" in `Ref<Any>`.
#[derive(Debug, Clone, Copy)]
pub enum Any {}

/// The target of a reference: a class, or [`Any`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no class of objects, so nothing can refer to it",
    note = "references, maps and vectors lead to objects: make a struct with `#[derive(Object)]` that holds the value"
)]
pub trait Target: 'static {
    /// The class's name; empty for any.
    const NAME: &'static str;
}

impl<T: Class> Target for T {
    const NAME: &'static str = <T as Class>::NAME;
}

impl Target for Any {
    const NAME: &'static str = "";
}

impl<T> Ref<T> {
    /// Names no object.
    pub const NULL: Ref<T> = Ref { oref: Oref::NULL, hint: 0, stamp: Stamp::MAX, class: PhantomData };

    /// A typed reference to whatever is there when it is read. Whether that is of class `T` is checked then.
    pub fn new(oref: Oref) -> Ref<T> {
        Ref::with_hint(oref, 0)
    }

    /// The same, with a cache's handle as the hint.
    pub fn with_hint(oref: Oref, hint: u32) -> Ref<T> {
        Ref { oref, hint, stamp: Stamp::MAX, class: PhantomData }
    }

    /// The same, as read in the state at `stamp`.
    pub fn read_at(self, stamp: Stamp) -> Ref<T> {
        Ref { stamp, ..self }
    }

    /// The stored form.
    pub fn oref(self) -> Oref {
        self.oref
    }

    /// The handle at which a cache last found it, or 0.
    pub fn hint(self) -> u32 {
        self.hint
    }

    /// The stamp of the state in which it was read; [`Stamp::MAX`] if it names whatever is there.
    pub fn stamp(self) -> Stamp {
        self.stamp
    }

    /// Says whether this is the null reference.
    pub fn is_null(self) -> bool {
        self.oref.is_null()
    }

    /// The same reference, expecting another class.
    pub fn cast<U>(self) -> Ref<U> {
        Ref { oref: self.oref, hint: self.hint, stamp: self.stamp, class: PhantomData }
    }
}

impl<T> Clone for Ref<T> {
    fn clone(&self) -> Ref<T> {
        *self
    }
}
impl<T> Copy for Ref<T> {}
impl<T> Default for Ref<T> {
    fn default() -> Ref<T> {
        Ref::NULL
    }
}
impl<T> PartialEq for Ref<T> {
    fn eq(&self, other: &Ref<T>) -> bool {
        self.oref == other.oref
    }
}
impl<T> Eq for Ref<T> {}
impl<T> PartialOrd for Ref<T> {
    fn partial_cmp(&self, other: &Ref<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Ref<T> {
    fn cmp(&self, other: &Ref<T>) -> std::cmp::Ordering {
        self.oref.cmp(&other.oref)
    }
}
impl<T> std::hash::Hash for Ref<T> {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        self.oref.hash(h);
    }
}
impl<T> std::fmt::Debug for Ref<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ref({})", self.oref)
    }
}

impl<T: Target> Value for Ref<T> {
    const TYPE: Type = Type::Ref(T::NAME);
    fn put(&self, e: &mut Encoder<'_>, at: usize) {
        e.set(at, &self.oref.raw().to_le_bytes());
        if !self.is_null() {
            e.spill.named(self.oref, self.stamp);
        }
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
        let size = T::TYPE.size();
        if e.spills(self.0.len().saturating_mul(size)) {
            return put_large_list(&self.0, e, at);
        }
        let Some(from) = e.put_block(at, self.0.len(), size, T::TYPE.align()) else { return };
        for (i, v) in self.0.iter().enumerate() {
            v.put(e, from + i * size);
        }
    }
}

/// Elements are written as they would be in a record, and the bytes or references go to the spill.
fn put_large_list<T: Value>(list: &[T], e: &mut Encoder<'_>, at: usize) {
    let size = T::TYPE.size();
    if !T::TYPE.spills() {
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

/// Writes field by field what `from` says into a record of class `to`: equal fields are copied, widened ones
/// widened, new ones left empty, dropped ones left out. Fails with `NoVariant` where `to` only
/// [reads](Layout::reads) the other and does not know a variant. `body` was checked and its references are
/// stored. With `skip`, that field of `to` is left for the caller.
pub fn convert(
    from: &Layout,
    body: &[u8],
    to: &Layout,
    e: &mut Encoder<'_>,
    mut at_place: impl FnMut(&FieldLayout, &mut Encoder<'_>) -> bool,
) {
    for p in to.fields() {
        if at_place(p, e) {
            continue;
        }
        match from.field(&p.name) {
            Some(q) => copy_value(&q.shape, body, q.at, &p.shape, e, p.at),
            None => empty_value(&p.shape, e, p.at),
        }
    }
}

fn empty_value(shape: &Shape, e: &mut Encoder<'_>, at: usize) {
    match shape {
        Shape::Option(t) if t.has_none() && !matches!(**t, Shape::Ref(_)) => e.put_none(at),
        Shape::Record(r) => r.fields().iter().for_each(|p| empty_value(&p.shape, e, at + p.at)),
        // The first variant, whose number is 0.
        Shape::Enum(r) => r.fields().iter().take(2).for_each(|p| empty_value(&p.shape, e, at + p.at)),
        _ => {}
    }
}

fn copy_value(old: &Shape, body: &[u8], from: usize, new: &Shape, e: &mut Encoder<'_>, to: usize) {
    match (old, new) {
        (Shape::Scalar(a), Shape::Scalar(b)) if a != b => copy_widened(*a, &body[from..], *b, e, to),
        (Shape::Scalar(_) | Shape::Array(..) | Shape::Ref(_) | Shape::Far(_), _) => {
            e.set(to, &body[from..from + old.size().min(new.size())]);
        }
        (Shape::Text | Shape::Bytes, _) => match var(body, from) {
            Var::None => e.put_none(to),
            Var::Here { at, len } => e.put_bytes(to, &body[at..at + len]),
            Var::Spilled { at, len } => copy_tree(body, at, len, e, to),
        },
        (Shape::List(a), Shape::List(b)) => match var(body, from) {
            Var::None => e.put_none(to),
            Var::Spilled { at, len } => copy_tree(body, at, len, e, to),
            Var::Here { at, len } => {
                let Some(block) = e.put_block(to, len, b.size(), b.align()) else { return };
                for i in 0..len {
                    copy_value(a, body, at + i * a.size(), b, e, block + i * b.size());
                }
            }
        },
        (Shape::Record(a), Shape::Record(b)) => {
            for p in b.fields() {
                match a.field(&p.name) {
                    Some(q) => copy_value(&q.shape, body, from + q.at, &p.shape, e, to + p.at),
                    None => empty_value(&p.shape, e, to + p.at),
                }
            }
        }
        (Shape::Enum(a), Shape::Enum(b)) => {
            let Some((tag, was)) = a.variant(body, from) else { return };
            let Some((_, is)) = b.variant(&[tag], 0) else {
                return e.fail(EncodeError::NoVariant(format!("`{}` of `{}`", was.name, a.name()).into()));
            };
            e.set(to, &[tag]);
            copy_value(&was.shape, body, from + was.at, &is.shape, e, to + is.at);
        }
        (Shape::Option(a), Shape::Option(b)) if a.has_none() => copy_value(a, body, from, b, e, to),
        (Shape::Option(a), Shape::Option(b)) => {
            if body[from] == 1 {
                e.set(to, &[1]);
                copy_value(a, body, from + a.align(), b, e, to + b.align());
            }
        }
        // Layout::accepts lets no other pair through.
        _ => empty_value(new, e, to),
    }
}

fn copy_tree(body: &[u8], at: usize, len: usize, e: &mut Encoder<'_>, to: usize) {
    if let Some(root) = Oref::from_raw(crate::cursor::le32(body, at)) {
        e.put_tree(to, root, len as u32);
    }
}

fn copy_widened(old: Scalar, bytes: &[u8], new: Scalar, e: &mut Encoder<'_>, to: usize) {
    if let (Scalar::F32, Scalar::F64) = (old, new) {
        let v = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        return e.set(to, &(v as f64).to_le_bytes());
    }
    let mut wide = [0u8; 8];
    wide[..old.size()].copy_from_slice(&bytes[..old.size()]);
    let signed = matches!(old, Scalar::I8 | Scalar::I16 | Scalar::I32 | Scalar::I64);
    if signed && bytes[old.size() - 1] & 0x80 != 0 {
        wide[old.size()..].fill(0xff);
    }
    e.set(to, &wide[..new.size()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Field;

    fn shape(fields: &[(&str, Shape)]) -> Layout {
        Layout::new("T".into(), fields.iter().map(|(n, s)| (n.to_string(), s.clone())).collect())
    }

    struct Trees(Vec<usize>);
    impl Spill for Trees {
        fn bytes(&mut self, b: &[u8]) -> Result<Oref, EncodeError> {
            self.0.push(b.len());
            Ok(Oref::from_raw(1 << 9).unwrap())
        }
        fn refs(&mut self, r: &[Oref]) -> Result<Oref, EncodeError> {
            self.0.push(r.len());
            Ok(Oref::from_raw(2 << 9).unwrap())
        }
    }

    #[test]
    fn encoded_record_passes_check_and_reads_back() {
        let l = shape(&[
            ("n", Shape::Scalar(Scalar::I64)),
            ("t", Shape::Text),
            ("r", Shape::List(Box::new(Shape::Ref("".into())))),
            ("o", Shape::Option(Box::new(Shape::Text))),
            ("tt", Shape::List(Box::new(Shape::Text))),
        ]);
        let mut no = NoSpill;
        let mut e = Encoder::new(l.size(), &mut no);
        (-5i64).put(&mut e, l.fields()[0].at);
        Text::from("hello").put(&mut e, l.fields()[1].at);
        let r = Ref::<Any>::new(Oref::from_raw(7 << 9).unwrap());
        List(vec![r, Ref::NULL]).put(&mut e, l.fields()[2].at);
        None::<Text>.put(&mut e, l.fields()[3].at);
        List(vec![Text::from("a"), Text::from(""), Text::from("bc")]).put(&mut e, l.fields()[4].at);
        let bytes = e.finish(ClassId(20)).unwrap();
        let body = &bytes[HEADER_BYTES..];
        l.check(body).unwrap();
        assert_eq!(body[..8], (-5i64).to_le_bytes());
        let Var::Here { at, len } = var(body, l.fields()[1].at) else { panic!() };
        assert_eq!(&body[at..at + len], b"hello");
        assert_eq!(var(body, l.fields()[3].at), Var::None);
        let mut refs = vec![];
        l.refs(body, |at| refs.push(crate::cursor::le32(body, at)));
        assert_eq!(refs, [7 << 9, 0]);
        assert_eq!(l.used(body).next_multiple_of(4), body.len());
    }

    #[test]
    fn large_parts_become_trees() {
        let l = shape(&[("b", Shape::Bytes), ("r", Shape::List(Box::new(Shape::Ref("".into()))))]);
        let mut trees = Trees(vec![]);
        let mut e = Encoder::new(l.size(), &mut trees);
        Bytes(vec![1; 5000]).put(&mut e, 0);
        List(vec![Ref::<Any>::NULL; 300]).put(&mut e, 4);
        let bytes = e.finish(ClassId(20)).unwrap();
        let body = &bytes[4..];
        l.check(body).unwrap();
        assert!(matches!(var(body, 0), Var::Spilled { len: 5000, .. }));
        let mut n = 0;
        l.refs(body, |_| n += 1);
        assert_eq!((n, trees.0), (2, vec![5000, 300]));
    }

    #[test]
    fn references_are_found_in_optional_elements_of_lists() {
        let record = shape(&[("r", Shape::Ref("".into()))]);
        let l = shape(&[
            ("o", Shape::List(Box::new(Shape::Option(Box::new(Shape::Ref("".into())))))),
            ("r", Shape::List(Box::new(Shape::Option(Box::new(Shape::Record(Box::new(record))))))),
            ("d", Shape::Ref("".into())),
        ]);
        let r = Ref::<Any>::new(Oref::from_raw(7 << 9).unwrap());
        let mut no = NoSpill;
        let mut e = Encoder::new(l.size(), &mut no);
        List(vec![Some(r), None]).put(&mut e, l.fields()[0].at);
        let block = e.put_block(l.fields()[1].at, 2, 8, 4).unwrap();
        e.set(block, &[1]);
        r.put(&mut e, block + 4);
        r.put(&mut e, l.fields()[2].at);
        let bytes = e.finish(ClassId(20)).unwrap();
        l.check(&bytes[4..]).unwrap();
        let mut refs = vec![];
        l.refs(&bytes[4..], |at| refs.push(crate::cursor::le32(&bytes[4..], at)));
        assert_eq!(refs, [7 << 9, 7 << 9, 0, 7 << 9]);
    }

    #[test]
    fn bytes_of_absent_values_in_elements_are_no_references() {
        let inner = Shape::Record(Box::new(shape(&[("r", Shape::Ref("".into()))])));
        let element = Shape::Record(Box::new(shape(&[("o", Shape::Option(Box::new(inner)))])));
        let l = shape(&[("l", Shape::List(Box::new(element)))]);
        let mut no = NoSpill;
        let mut e = Encoder::new(l.size(), &mut no);
        let block = e.put_block(l.fields()[0].at, 2, 8, 4).unwrap();
        e.set(block, &[1]);
        // The second element has no value, and nothing checks what stands in its place.
        e.set(block + 12, &[0xff; 4]);
        let bytes = e.finish(ClassId(20)).unwrap();
        l.check(&bytes[4..]).unwrap();
        let mut found = vec![];
        l.refs(&bytes[4..], |at| found.push(at));
        assert_eq!(found, [block + 4]);
    }

    #[test]
    fn a_type_and_its_shape_agree_on_what_may_leave_a_record() {
        const NUMBERS: Schema = Schema {
            name: "Numbers",
            fields: &[
                Field { name: "a", ty: Type::Array(Scalar::U16, 3) },
                Field { name: "o", ty: Type::Option(&Type::Scalar(Scalar::I64)) },
            ],
        };
        const NESTED: Schema = Schema {
            name: "Nested",
            fields: &[
                Field { name: "r", ty: Type::Record(&NUMBERS) },
                Field { name: "o", ty: Type::Option(&Type::Record(&NUMBERS)) },
            ],
        };
        const WITH_REF: Schema =
            Schema { name: "WithRef", fields: &[Field { name: "o", ty: Type::Option(&Type::Ref("")) }] };
        const WITH_TEXT: Schema = Schema { name: "WithText", fields: &[Field { name: "t", ty: Type::Text }] };
        for (ty, may) in [
            (Type::Scalar(Scalar::Bool), true),
            (Type::Array(Scalar::F64, 2), true),
            (Type::Ref("T"), true),
            (Type::Option(&Type::Scalar(Scalar::U32)), true),
            (Type::Record(&NUMBERS), true),
            (Type::Record(&NESTED), true),
            (Type::Option(&Type::Record(&NESTED)), true),
            (Type::Option(&Type::Ref("")), false),
            (Type::Record(&WITH_REF), false),
            (Type::Record(&WITH_TEXT), false),
            (Type::Option(&Type::Record(&WITH_TEXT)), false),
            (Type::Text, false),
            (Type::Bytes, false),
            (Type::List(&Type::Scalar(Scalar::U8)), false),
        ] {
            assert_eq!((ty.spills(), Shape::of(&ty).spills()), (may, may), "{ty:?}");
        }
    }

    #[test]
    fn a_text_is_written_as_a_str_is() {
        let text = Text::from("Ann");
        assert_eq!(format!("{text}|{text:>5}|{text:.2}"), "Ann|  Ann|An");
    }

    #[test]
    fn an_object_above_a_page_is_refused() {
        let mut no = NoSpill;
        let mut e = Encoder::new(4 * 10, &mut no).spill_above(1 << 16);
        for i in 0..10 {
            e.put_bytes(i * 4, &[1; 1000]);
        }
        assert!(matches!(e.finish(ClassId(20)), Err(EncodeError::TooLarge(_))));
    }

    #[test]
    fn a_newer_class_reads_an_older_record() {
        let old = shape(&[("a", Shape::Scalar(Scalar::I16)), ("gone", Shape::Text), ("t", Shape::Text)]);
        let new = shape(&[
            ("t", Shape::Text),
            ("a", Shape::Scalar(Scalar::I64)),
            ("added", Shape::Option(Box::new(Shape::Text))),
        ]);
        assert!(new.accepts(&old).is_ok());
        let mut no = NoSpill;
        let mut e = Encoder::new(old.size(), &mut no);
        (-2i16).put(&mut e, 0);
        e.put_bytes(old.fields()[1].at, b"bye");
        e.put_bytes(old.fields()[2].at, b"kept");
        let bytes = e.finish(ClassId(16)).unwrap();
        let mut no = NoSpill;
        let mut e = Encoder::new(new.size(), &mut no);
        convert(&old, &bytes[4..], &new, &mut e, |_, _| false);
        let bytes = e.finish(ClassId(17)).unwrap();
        new.check(&bytes[4..]).unwrap();
        assert_eq!(bytes[4 + new.fields()[1].at..][..8], (-2i64).to_le_bytes());
        assert_eq!(var(&bytes[4..], new.fields()[2].at), Var::None);
    }

    #[test]
    fn narrowing_is_refused_by_name() {
        let old = shape(&[("a", Shape::Scalar(Scalar::I64))]);
        let new = shape(&[("a", Shape::Scalar(Scalar::I32))]);
        assert!(new.accepts(&old).unwrap_err().to_string().contains("`a`"));
    }
}
