//! Arguments and results of calls: a record, and beside it what is too large for one.
//!
//! ```text
//!  0  bytes of the record    4
//!  4  references             4   how many of the record's and the parts' references have a stamp beside
//!  8  record                     as in an object, without its header; padded
//!     stamps                12   each: a reference, and the stamp of the state in which the caller read it
//!     parts                      each: its bytes or references, padded to 4, behind its length in bytes
//! ```
//!
//! A record that has numbers alone stands by itself, padded, without the rest; of one without fields there is
//! nothing.
//!
//! A text, byte string or list above [`SPILL_BYTES`](crate::record::SPILL_BYTES) is a part. In an object it
//! would be a tree of chunks; here the page in the tree's word says where the part begins, counted in words
//! from 1, and its slot how often all pages go before. So a large argument is copied once, into the message,
//! and read in place. The invariant of [`Payload::decode`]: the record is of its layout, and every part that
//! it names is here.

use crate::cursor::{DecodeError, Put, le32, le64};
use crate::id::{Oref, PageId, Stamp};
use crate::layout::{Layout, Shape, Var, padded, var};
pub use crate::lent::PartSink;
use crate::lent::{Lending, LentBytes, SharedBody};
use crate::record::{EncodeError, Encoder, Spill, convert_parts, encode_behind};
use crate::schema::Schema;

const HEAD_BYTES: usize = 8;
const STAMP_BYTES: usize = 12;

/// Takes the parts and stamps of one payload while its record is written.
#[derive(Debug, Default)]
struct Beside {
    stamps: Vec<(Oref, Stamp)>,
    /// The parts, unless they are more than [`GATHERED_BYTES`]: then they are written by themselves, where
    /// they go.
    parts: Vec<u8>,
    /// Bytes of the parts.
    bytes: usize,
}

/// Parts up to here are gathered while the record is written, which writes it once. Of more than that the
/// record is written once more for its parts: each is copied once, to where it goes.
const GATHERED_BYTES: usize = 16 << 10;

/// The word of a part that begins after so many bytes of parts.
fn word_of(at: usize) -> Result<Oref, EncodeError> {
    let (slot, page) = (at / 4 / PAGES, at / 4 % PAGES + 1);
    let word = PageId::new(page as u32).zip(slot.try_into().ok());
    word.and_then(|(page, slot)| Oref::new(page, slot)).ok_or(EncodeError::TooLong)
}

/// Pages that a word can name.
const PAGES: usize = PageId::MAX.get() as usize;

/// Returns the bytes that a part occupies: its length, its content and its padding.
fn part_bytes(bytes: usize) -> usize {
    4 + bytes.next_multiple_of(4)
}

impl Beside {
    fn part(&mut self, bytes: usize, fill: impl FnOnce(&mut Vec<u8>)) -> Result<Oref, EncodeError> {
        let word = word_of(self.bytes)?;
        self.bytes += part_bytes(bytes);
        if self.is_gathered() {
            self.parts.put_u32(bytes as u32);
            fill(&mut self.parts);
            self.parts.resize(self.bytes, 0);
        } else {
            self.parts = Vec::new();
        }
        Ok(word)
    }

    /// Says whether the parts are gathered here.
    fn is_gathered(&self) -> bool {
        self.bytes <= GATHERED_BYTES
    }
}

impl Spill for Beside {
    fn bytes(&mut self, bytes: &[u8]) -> Result<Oref, EncodeError> {
        self.part(bytes.len(), |out| out.extend_from_slice(bytes))
    }

    fn lending(&mut self, lending: Lending<'_>) -> Result<Oref, EncodeError> {
        self.part(lending.len(), |out| lending.write(&mut |bytes| out.extend_from_slice(bytes)))
    }

    fn refs(&mut self, refs: &[Oref]) -> Result<Oref, EncodeError> {
        self.part(4 * refs.len(), |out| refs.iter().for_each(|oref| out.put_u32(oref.raw())))
    }

    fn named(&mut self, oref: Oref, stamp: Stamp) {
        // What names whatever is there has no stamp.
        if stamp < Stamp::MAX {
            self.stamps.push((oref, stamp));
        }
    }
}

/// Writes parts where they go, while a record is written that was written before.
struct Through<'a, 's> {
    sink: &'a mut PartSink<'s>,
    bytes: usize,
}

impl Through<'_, '_> {
    fn begin(&mut self, bytes: usize) -> Result<Oref, EncodeError> {
        let word = word_of(self.bytes)?;
        self.bytes += part_bytes(bytes);
        (self.sink)(&(bytes as u32).to_le_bytes());
        Ok(word)
    }
}

impl Spill for Through<'_, '_> {
    fn bytes(&mut self, bytes: &[u8]) -> Result<Oref, EncodeError> {
        self.lending(Lending::Bytes(bytes))
    }

    fn lending(&mut self, lending: Lending<'_>) -> Result<Oref, EncodeError> {
        let (word, bytes) = (self.begin(lending.len())?, lending.len());
        lending.write(self.sink);
        (self.sink)(&[0; 4][..bytes.next_multiple_of(4) - bytes]);
        Ok(word)
    }

    fn refs(&mut self, refs: &[Oref]) -> Result<Oref, EncodeError> {
        let word = self.begin(4 * refs.len())?;
        let mut some = [0; 256];
        for refs in refs.chunks(some.len() / 4) {
            for (bytes, oref) in some.chunks_exact_mut(4).zip(refs) {
                bytes.copy_from_slice(&oref.raw().to_le_bytes());
            }
            (self.sink)(&some[..4 * refs.len()]);
        }
        Ok(word)
    }

    fn named(&mut self, _: Oref, _: Stamp) {}
}

/// The record of a payload, as a constant of a program; what each payload needs of it is worked out when that
/// is compiled.
#[derive(Debug, Clone, Copy)]
pub struct PayloadSchema {
    record: Schema,
    /// Bytes of the record's fixed part.
    bytes: usize,
    has_numbers_alone: bool,
}

impl PayloadSchema {
    /// The schema of a payload with these fields.
    pub const fn of(record: Schema) -> PayloadSchema {
        PayloadSchema { bytes: record.size(), has_numbers_alone: record.has_numbers_alone(), record }
    }

    /// Says whether its payloads have no bytes.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The fields of the payload.
    pub const fn record(&self) -> &Schema {
        &self.record
    }

    /// Appends a payload whose record `put` writes; it is asked to do so twice if there is much beside the
    /// record.
    ///
    /// # Errors
    /// If a value cannot be in a record; then nothing is appended.
    #[inline]
    pub fn encode(&self, put: impl FnMut(&mut Encoder<'_>), out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self.bytes {
            0 => Ok(()),
            bytes if self.has_numbers_alone => encode_numbers(bytes, put, out),
            bytes => encode_parts(bytes, put, out),
        }
    }

    /// As [`PayloadSchema::encode`], but leaves out the parts if they are many bytes, and gives the number of
    /// those bytes. They belong after the rest, and [`PayloadSchema::encode_rest`] writes them there.
    ///
    /// # Errors
    /// If a value cannot be in a record; then nothing is appended.
    #[inline]
    pub fn encode_head(
        &self,
        put: impl FnMut(&mut Encoder<'_>),
        out: &mut Vec<u8>,
    ) -> Result<usize, EncodeError> {
        match self.bytes {
            0 => Ok(0),
            bytes if self.has_numbers_alone => encode_numbers(bytes, put, out).map(|()| 0),
            bytes => encode_head(bytes, put, out),
        }
    }

    /// Writes the parts that [`PayloadSchema::encode_head`] has left out, of the same record: so many bytes,
    /// one after the other. Of a record that is another now, fewer or more.
    pub fn encode_rest(&self, put: impl FnMut(&mut Encoder<'_>), sink: &mut PartSink<'_>) {
        encode_rest(self.bytes, put, sink);
    }
}

/// The sink for records of numbers alone, in which no part can leave the record.
struct NoParts;

impl Spill for NoParts {
    fn bytes(&mut self, _: &[u8]) -> Result<Oref, EncodeError> {
        Err(EncodeError::TooLong)
    }

    fn refs(&mut self, _: &[Oref]) -> Result<Oref, EncodeError> {
        Err(EncodeError::TooLong)
    }

    fn named(&mut self, _: Oref, _: Stamp) {}
}

/// Appends a payload whose record has a fixed part of so many bytes, and numbers alone.
#[inline]
pub(crate) fn encode_numbers(
    bytes: usize,
    put: impl FnOnce(&mut Encoder<'_>),
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let bytes = if bytes == 0 { 0 } else { padded(bytes) };
    encode_behind(out, bytes, &mut NoParts, put)
}

/// Appends a payload whose record has a fixed part of so many bytes, and more than numbers.
///
/// # Errors
/// If a value cannot be in a record; then nothing is appended.
pub(crate) fn encode_parts(
    bytes: usize,
    mut put: impl FnMut(&mut Encoder<'_>),
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let left = encode_head(bytes, &mut put, out)?;
    if left > 0 {
        let end = out.len() + left;
        out.reserve_exact(left);
        encode_rest(bytes, put, &mut |bytes| out.extend_from_slice(bytes));
        // Of a value that is another at the second look the reader finds that its parts do not fit.
        out.resize(end, 0);
    }
    Ok(())
}

/// The same without its parts, if they are many bytes; gives how many.
fn encode_head(
    bytes: usize,
    put: impl FnOnce(&mut Encoder<'_>),
    out: &mut Vec<u8>,
) -> Result<usize, EncodeError> {
    let mut beside = Beside::default();
    let from = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    if let Err(e) = encode_behind(out, bytes, &mut beside, put) {
        out.truncate(from);
        return Err(e);
    }
    let record = padded(out.len() - from - HEAD_BYTES);
    out.resize(from + HEAD_BYTES + record, 0);
    beside.stamps.sort_unstable();
    // Of one that was read twice the older state counts.
    beside.stamps.dedup_by_key(|(oref, _)| *oref);
    out[from..][..4].copy_from_slice(&(record as u32).to_le_bytes());
    out[from + 4..][..4].copy_from_slice(&(beside.stamps.len() as u32).to_le_bytes());
    for (oref, stamp) in &beside.stamps {
        out.put_u32(oref.raw());
        out.put_u64(stamp.0);
    }
    out.extend_from_slice(&beside.parts);
    Ok(if beside.is_gathered() { 0 } else { beside.bytes })
}

/// Writes the parts of a record whose fixed part has so many bytes.
fn encode_rest(bytes: usize, mut put: impl FnMut(&mut Encoder<'_>), sink: &mut PartSink<'_>) {
    let mut through = Through { sink, bytes: 0 };
    // The record itself is there already.
    put(&mut Encoder::new(bytes, &mut through));
}

/// A payload that was checked, where it arrived.
#[derive(Debug, Clone, Copy)]
pub struct Payload<'a> {
    record: &'a [u8],
    stamps: &'a [u8],
    parts: &'a [u8],
    /// The one part, if it lies where the peer wrote it.
    lent: Option<&'a LentBytes<'a>>,
}

/// A payload whose one part is to be read where the peer wrote it.
#[derive(Debug, Clone, Copy)]
pub struct InPlace<'a> {
    record: &'a [u8],
    part: LentBytes<'a>,
}

impl<'a> InPlace<'a> {
    /// Lends the part of a payload that is in shared memory from `at` to `end` of a message's body, and whose
    /// first bytes were copied to `copied`. None if it has other parts, or is not of a layout with [one lone
    /// byte string](lone_bytes): then it is to be copied.
    pub fn lend(
        copied: &'a [u8],
        (at, end): (usize, usize),
        body: &SharedBody<'a>,
        layout: &Layout,
    ) -> Option<InPlace<'a>> {
        let field = lone_bytes(layout)?;
        let (head, rest) = copied.split_at_checked(HEAD_BYTES)?;
        let record_bytes = le32(head, 0) as usize;
        // The length of the record's part follows the record.
        let (record, length) = rest.split_at_checked(record_bytes)?;
        if le32(head, 4) != 0 || length.len() < 4 || layout.check(record).is_err() {
            return None;
        }
        let Var::Spilled { at: word, len } = var(record, field) else { return None };
        let begin = at.checked_add(HEAD_BYTES + record_bytes + 4)?;
        let is_whole = begin.checked_add(len.checked_next_multiple_of(4)?)? == end;
        let is_first = Oref::from_raw(le32(record, word)) == word_of(0).ok();
        if !is_whole || !is_first || le32(length, 0) as usize != len {
            return None;
        }
        Some(InPlace { record, part: body.lend(begin, len)? })
    }

    /// It as a payload, which was checked.
    pub fn payload(&'a self) -> Payload<'a> {
        Payload { record: self.record, stamps: &[], parts: &[], lent: Some(&self.part) }
    }
}

/// Where the one byte string of a layout stands whose other fields are numbers; none of any other layout.
pub fn lone_bytes(layout: &Layout) -> Option<usize> {
    let mut other = layout.fields().iter().filter(|f| !matches!(f.shape, Shape::Scalar(_)));
    match (other.next(), other.next()) {
        (Some(field), None) if field.shape == Shape::Bytes => Some(field.at),
        _ => None,
    }
}

impl<'a> Payload<'a> {
    /// Checks a payload of a layout, all of it.
    #[inline]
    pub fn decode(bytes: &'a [u8], layout: &Layout) -> Result<Payload<'a>, DecodeError> {
        if !layout.has_numbers_alone() {
            return Payload::decode_parts(bytes, layout);
        }
        if layout.size() > 0 {
            layout.check(bytes).map_err(|_| DecodeError::BadField("record"))?;
        } else if !bytes.is_empty() {
            return Err(DecodeError::BadField("record"));
        }
        Ok(Payload { record: bytes, stamps: &[], parts: &[], lent: None })
    }

    fn decode_parts(bytes: &'a [u8], layout: &Layout) -> Result<Payload<'a>, DecodeError> {
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES).ok_or(DecodeError::Truncated)?;
        let (record, rest) = rest.split_at_checked(le32(head, 0) as usize).ok_or(DecodeError::Truncated)?;
        let stamps =
            (le32(head, 4) as usize).checked_mul(STAMP_BYTES).ok_or(DecodeError::TooMany("stamps"))?;
        let (stamps, parts) = rest.split_at_checked(stamps).ok_or(DecodeError::TooMany("stamps"))?;
        layout.check(record).map_err(|_| DecodeError::BadField("record"))?;
        let rows = || stamps.chunks_exact(STAMP_BYTES).map(|row| le32(row, 0));
        let rise = rows().zip(rows().skip(1)).all(|(a, b)| a < b);
        if !rise || rows().any(|raw| Oref::from_raw(raw).is_none()) {
            return Err(DecodeError::BadField("stamps"));
        }
        let payload = Payload { record, stamps, parts, lent: None };
        payload.check_parts(layout)?;
        Ok(payload)
    }

    /// Checks that the payload has exactly the parts that its record names, each once.
    fn check_parts(&self, layout: &Layout) -> Result<(), DecodeError> {
        let (mut used, mut missing) = (0, false);
        layout.trees(self.record, |word| match self.part(word) {
            Some(part) => used += 4 + part.len().next_multiple_of(4),
            None => missing = true,
        });
        if missing || used != self.parts.len() { Err(DecodeError::BadField("parts")) } else { Ok(()) }
    }

    /// Appends the payload as one of the layout `to`, which [fits](Layout::fits) its own layout `from`. Lists
    /// have at most `bytes_max` bytes together.
    ///
    /// # Errors
    /// `NoVariant` if `to` does not have a variant that a value is of, and if the result is too large.
    /// Nothing is appended then.
    pub fn convert(
        &self,
        from: &Layout,
        to: &Layout,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let part = |word| self.part(word);
        let put = |e: &mut Encoder<'_>| {
            // The caller reads the references in the states in which they were read, wherever they stand.
            self.stamps().for_each(|(oref, stamp)| e.named(oref, stamp));
            convert_parts(from, (self.record, &part), to, e, bytes_max);
        };
        match to.has_numbers_alone() {
            true => encode_numbers(to.size(), put, out),
            false => encode_parts(to.size(), put, out),
        }
    }

    /// The references that have a stamp beside, with it.
    fn stamps(&self) -> impl Iterator<Item = (Oref, Stamp)> + 'a {
        let rows = self.stamps.chunks_exact(STAMP_BYTES);
        rows.filter_map(|row| Some((Oref::from_raw(le32(row, 0))?, Stamp(le64(row, 4)))))
    }

    /// The record.
    pub fn record(&self) -> &'a [u8] {
        self.record
    }

    /// The bytes of the part that a word of the record names.
    pub fn part(&self, word: Oref) -> Option<&'a [u8]> {
        let at = 4 * ((word.page().get() as usize).checked_sub(1)? + usize::from(word.slot()) * PAGES);
        let (head, rest) = self.parts.get(at..)?.split_at_checked(4)?;
        rest.get(..le32(head, 0) as usize)
    }

    /// A text or byte string whose descriptor is at `at`.
    ///
    /// # Errors
    /// If it is not as long as the record says.
    pub fn bytes(&self, at: usize) -> Result<&'a [u8], DecodeError> {
        match var(self.record, at) {
            Var::None => Ok(&[]),
            Var::Here { at, len } => Ok(&self.record[at..at + len]),
            Var::Spilled { at, len } => {
                let word = Oref::from_raw(le32(self.record, at)).ok_or(DecodeError::BadField("parts"))?;
                self.part(word).filter(|part| part.len() == len).ok_or(DecodeError::BadField("parts"))
            }
        }
    }

    /// A byte string whose descriptor is at `at`, wherever it lies.
    ///
    /// # Errors
    /// If it is not as long as the record says.
    pub fn lent(&self, at: usize) -> Result<LentBytes<'a>, DecodeError> {
        match self.lent {
            // A record with a part that is lent has no other one.
            Some(lent) => Ok(*lent),
            None => self.bytes(at).map(LentBytes::own),
        }
    }

    /// The stamp of the state in which the caller read a reference; [`Stamp::MAX`] if it names whatever is
    /// there.
    pub fn stamp_of(&self, oref: Oref) -> Stamp {
        let (mut low, mut high) = (0, self.stamps.len() / STAMP_BYTES);
        while low < high {
            let at = (low + high) / 2;
            match le32(self.stamps, at * STAMP_BYTES).cmp(&oref.raw()) {
                std::cmp::Ordering::Equal => return Stamp(le64(self.stamps, at * STAMP_BYTES + 4)),
                std::cmp::Ordering::Less => low = at + 1,
                std::cmp::Ordering::Greater => high = at,
            }
        }
        Stamp::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Bytes, List, Ref, Text, Value};
    use crate::schema::{Field, Scalar, Type};

    const SCHEMA: Schema = Schema {
        name: "sample",
        fields: &[
            Field { name: "text", ty: Type::Text },
            Field { name: "bytes", ty: Type::Bytes },
            Field { name: "refs", ty: <List<Ref<crate::record::Any>> as Value>::TYPE },
        ],
    };

    /// The bytes of `PayloadSchema::encode_head` by the way that records with parts take.
    fn encode_head_generally(
        schema: PayloadSchema,
        put: impl FnMut(&mut Encoder<'_>),
        out: &mut Vec<u8>,
    ) -> Result<usize, EncodeError> {
        if schema.bytes == 0 {
            return Ok(0);
        }
        let from = out.len();
        let left = encode_head(schema.bytes, put, out)?;
        if schema.has_numbers_alone {
            out.drain(from..from + HEAD_BYTES);
        }
        Ok(left)
    }

    fn oref(n: u32) -> Oref {
        Oref::from_raw(n << 9).unwrap()
    }

    fn payload(text: usize, bytes: usize, refs: u32) -> Vec<u8> {
        let refs: List<Ref<crate::record::Any>> =
            (1..=refs).rev().map(|n| Ref::new(oref(n)).read_at(Stamp(n.into()))).collect();
        let mut out = Vec::new();
        let put = |e: &mut Encoder<'_>| {
            Text("t".repeat(text)).put(e, SCHEMA.offset(0));
            Bytes(vec![7; bytes]).put(e, SCHEMA.offset(1));
            refs.put(e, SCHEMA.offset(2));
        };
        PayloadSchema::of(SCHEMA).encode(put, &mut out).unwrap();
        out
    }

    #[test]
    fn what_is_put_is_read_in_place_small_and_large() {
        let layout = Layout::of(&SCHEMA);
        for (text, bytes, refs) in [
            (0, 0, 0),
            (3, 1, 2),
            (1_025, 5, 0),
            (0, 1_000_001, 600),
            (5_000, 2_000, 3),
            (16_383, 2_001, 300),
        ] {
            let all = payload(text, bytes, refs);
            let p = Payload::decode(&all, &layout).unwrap();
            assert_eq!(p.bytes(SCHEMA.offset(0)).unwrap(), "t".repeat(text).as_bytes());
            assert_eq!(p.bytes(SCHEMA.offset(1)).unwrap(), vec![7; bytes]);
            let inside = all.as_ptr_range();
            assert!(bytes == 0 || inside.contains(&p.bytes(SCHEMA.offset(1)).unwrap().as_ptr()));
            if refs <= 256 {
                assert!((1..=refs).all(|n| p.stamp_of(oref(n)) == Stamp(n.into())));
            }
            assert_eq!(p.stamp_of(oref(2_000)), Stamp::MAX);
        }
    }

    #[test]
    fn what_is_written_in_two_steps_is_what_is_written_in_one() {
        let text = "t".repeat(3_001);
        for bytes in [0, 5, 1_030, 12_000, GATHERED_BYTES, 100_003] {
            let bytes = vec![7; bytes];
            let refs: List<Ref<crate::record::Any>> = (1..=300).map(|n| Ref::new(oref(n))).collect();
            let put = |e: &mut Encoder<'_>| {
                e.put_bytes(SCHEMA.offset(0), text.as_bytes());
                e.put_bytes(SCHEMA.offset(1), &bytes);
                refs.put(e, SCHEMA.offset(2));
            };
            let schema = PayloadSchema::of(SCHEMA);
            let (mut one, mut two, mut rest) = (vec![1], vec![1], Vec::new());
            schema.encode(put, &mut one).unwrap();
            let left = schema.encode_head(put, &mut two).unwrap();
            if left > 0 {
                schema.encode_rest(put, &mut |bytes| rest.extend_from_slice(bytes));
            }
            assert_eq!((left > 0, rest.len()), (bytes.len() > 12_000, left), "{} bytes", bytes.len());
            two.extend_from_slice(&rest);
            assert!(one == two, "{} bytes", bytes.len());
            let mut generally = vec![1];
            assert_eq!(encode_head_generally(schema, put, &mut generally), Ok(left));
            assert!(two.starts_with(&generally) && two.len() == generally.len() + left);
            let layout = Layout::of(&SCHEMA);
            let payload = Payload::decode(&one[1..], &layout).unwrap();
            assert_eq!(payload.bytes(SCHEMA.offset(1)).unwrap(), bytes);
        }
    }

    #[test]
    fn what_was_there_before_outlives_a_panic() {
        const NUMBER: Schema =
            Schema { name: "number", fields: &[Field { name: "n", ty: Type::Scalar(Scalar::U64) }] };
        for schema in [SCHEMA, NUMBER] {
            let mut out = b"before".to_vec();
            let put = |_: &mut Encoder<'_>| panic!("on purpose");
            let encode = std::panic::AssertUnwindSafe(|| PayloadSchema::of(schema).encode(put, &mut out));
            assert!(std::panic::catch_unwind(encode).is_err());
            assert!(out.starts_with(b"before"), "{out:?}");
        }
    }

    #[test]
    fn value_that_is_another_at_the_second_look_is_refused_by_its_reader() {
        let layout = Layout::of(&SCHEMA);
        for (first, second) in
            [(100_000, 0), (100_000, 5), (100_000, 99_990), (100_000, 100_100), (20_000, 100_000)]
        {
            let mut looks = 0;
            let put = |e: &mut Encoder<'_>| {
                looks += 1;
                e.put_bytes(SCHEMA.offset(0), b"text");
                e.put_bytes(SCHEMA.offset(1), &vec![7; if looks == 1 { first } else { second }]);
                e.put_bytes(SCHEMA.offset(2), b"");
            };
            let mut out = Vec::new();
            PayloadSchema::of(SCHEMA).encode(put, &mut out).unwrap();
            assert!(out.len() < first + 1_000, "{first}, {second}");
            assert!(Payload::decode(&out, &layout).is_err(), "{first}, {second}");
        }
    }

    #[test]
    fn record_of_numbers_stands_by_itself() {
        const fn of(fields: &'static [Field]) -> Schema {
            Schema { name: "numbers", fields }
        }
        const BOTH: Schema = of(&[
            Field { name: "one", ty: Type::Scalar(Scalar::U64) },
            Field { name: "three", ty: Type::Array(Scalar::U8, 3) },
        ]);
        const THREE: Schema = of(&[Field { name: "three", ty: Type::Array(Scalar::U8, 3) }]);
        const NONE: Schema = of(&[]);
        for (schema, bytes) in [(&BOTH, 12), (&THREE, 4), (&NONE, 0)] {
            let (mut out, layout) = (vec![9], Layout::of(schema));
            PayloadSchema::of(*schema).encode(|_| {}, &mut out).unwrap();
            assert_eq!(out.len(), 1 + bytes);
            assert_eq!(Payload::decode(&out[1..], &layout).unwrap().record(), vec![0; bytes]);
            assert!(Payload::decode(&out, &layout).is_err() && Payload::decode(&[0; 16], &layout).is_err());
            let put = |e: &mut Encoder<'_>| {
                for (i, field) in schema.fields.iter().enumerate() {
                    match field.ty {
                        Type::Scalar(_) => 7_u64.put(e, schema.offset(i)),
                        _ => [1_u8, 2, 3].put(e, schema.offset(i)),
                    }
                }
            };
            let (mut quick, mut general) = (vec![9], vec![9]);
            assert_eq!(PayloadSchema::of(*schema).encode_head(put, &mut quick), Ok(0));
            assert_eq!(encode_head_generally(PayloadSchema::of(*schema), put, &mut general), Ok(0));
            assert_eq!(quick, general);
        }
        assert!(Payload::decode(&[], &Layout::of(&SCHEMA)).is_err());
    }

    #[test]
    fn damaged_payload_is_refused_or_read_without_a_panic() {
        let layout = Layout::of(&SCHEMA);
        let whole = payload(1_100, 3, 3);
        for end in 0..whole.len() {
            assert!(Payload::decode(&whole[..end], &layout).is_err(), "{end} bytes");
        }
        for bit in 0..whole.len() * 8 {
            let mut bad = whole.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Ok(p) = Payload::decode(&bad, &layout) {
                let _ = (p.bytes(SCHEMA.offset(0)), p.bytes(SCHEMA.offset(1)), p.stamp_of(oref(2)));
            }
        }
    }
}
