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
//! A record that has numbers alone stands by itself, padded, without the rest; of one without fields there is nothing.
//!
//! A text, byte string or list above [`SPILL_BYTES`](crate::record::SPILL_BYTES) is a part. In an object it would be a tree of
//! chunks; here the page in the tree's word says where the part begins, counted in words from 1. So a large argument is copied once, into the message, and
//! read in place. The invariant of [`Payload::decode`]: the record is of its layout, and every part that it names is here.

use crate::cursor::{DecodeError, Put, le32, le64};
use crate::id::{Oref, PageId, Stamp};
use crate::layout::{Layout, Var, padded, var};
use crate::record::{EncodeError, Encoder, Spill};
use crate::schema::Schema;

const HEAD_BYTES: usize = 8;
const STAMP_BYTES: usize = 12;

/// Takes the parts and stamps of one payload while its record is written.
#[derive(Debug, Default)]
struct Beside {
    stamps: Vec<(Oref, Stamp)>,
    parts: Vec<u8>,
}

impl Beside {
    fn part(&mut self, bytes: usize, fill: impl FnOnce(&mut Vec<u8>)) -> Result<Oref, EncodeError> {
        let word = u32::try_from(self.parts.len() / 4 + 1).ok().and_then(PageId::new);
        let word = word.and_then(|n| Oref::new(n, 0)).ok_or(EncodeError::TooLong)?;
        self.parts.put_u32(bytes as u32);
        fill(&mut self.parts);
        self.parts.resize(self.parts.len().next_multiple_of(4), 0);
        Ok(word)
    }
}

impl Spill for Beside {
    fn bytes(&mut self, bytes: &[u8]) -> Result<Oref, EncodeError> {
        self.part(bytes.len(), |out| out.extend_from_slice(bytes))
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

/// The record of a payload, as a constant of a program; what each payload needs of it is worked out when that is compiled.
#[derive(Debug, Clone, Copy)]
pub struct PayloadSchema {
    record: Schema,
    /// Of its fixed part.
    bytes: usize,
    has_numbers_alone: bool,
}

impl PayloadSchema {
    /// One of these fields.
    pub const fn of(record: Schema) -> PayloadSchema {
        PayloadSchema { bytes: record.size(), has_numbers_alone: record.has_numbers_alone(), record }
    }

    /// Its fields.
    pub const fn record(&self) -> &Schema {
        &self.record
    }

    /// Appends a payload whose record `put` writes.
    ///
    /// # Errors
    /// If a value cannot be in a record; then nothing is appended.
    #[inline]
    pub fn encode(&self, put: impl FnOnce(&mut Encoder<'_>), out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self.bytes {
            0 => Ok(()),
            bytes if self.has_numbers_alone => encode_numbers(bytes, put, out),
            bytes => encode_parts(bytes, put, out),
        }
    }
}

/// Of numbers alone: there is nothing that would leave the record.
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
    let mut none = NoParts;
    let mut e = Encoder::behind(std::mem::take(out), bytes, &mut none);
    put(&mut e);
    let encoded;
    (*out, encoded) = e.finish_behind();
    encoded
}

/// Appends a payload whose record has a fixed part of so many bytes, and more than numbers.
pub(crate) fn encode_parts(
    bytes: usize,
    put: impl FnOnce(&mut Encoder<'_>),
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let mut beside = Beside::default();
    let from = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    let mut e = Encoder::behind(std::mem::take(out), bytes, &mut beside);
    put(&mut e);
    let encoded;
    (*out, encoded) = e.finish_behind();
    if let Err(e) = encoded {
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
    Ok(())
}

/// A payload that was checked, where it arrived.
#[derive(Debug, Clone, Copy)]
pub struct Payload<'a> {
    record: &'a [u8],
    stamps: &'a [u8],
    parts: &'a [u8],
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
        Ok(Payload { record: bytes, stamps: &[], parts: &[] })
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
        let payload = Payload { record, stamps, parts };
        payload.check_parts(layout)?;
        Ok(payload)
    }

    /// Whether every part that the record names is here, none of them twice, and nothing else is.
    fn check_parts(&self, layout: &Layout) -> Result<(), DecodeError> {
        let (mut used, mut missing) = (0, false);
        layout.trees(self.record, |word| match self.part(word) {
            Some(part) => used += 4 + part.len().next_multiple_of(4),
            None => missing = true,
        });
        if missing || used != self.parts.len() { Err(DecodeError::BadField("parts")) } else { Ok(()) }
    }

    /// The record.
    pub fn record(&self) -> &'a [u8] {
        self.record
    }

    /// The bytes of the part that a word of the record names.
    pub fn part(&self, word: Oref) -> Option<&'a [u8]> {
        let at = 4 * (word.page().get() as usize).checked_sub(1)?;
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

    /// The stamp of the state in which the caller read a reference; [`Stamp::MAX`] if it names whatever is there.
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
        for (text, bytes, refs) in
            [(0, 0, 0), (3, 1, 2), (1_025, 5, 0), (0, 1_000_001, 600), (5_000, 2_000, 3)]
        {
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
