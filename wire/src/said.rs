//! The sense of a payload, apart from its layout: bytes that are equal for equal arguments, whichever
//! version of the method they were encoded for.
//!
//! A request that is repeated under its key is recognised by them. Fields stand under their names, in the
//! order of these, and a field that is 0, empty, none or the first variant is left out, as if it had been
//! added later. Numbers have no width. A reference is its place, without the stamp at which it was read.
//!
//! ```text
//! record    fields*, 0              a field: length of its name + 1, the name, a value
//! integer   1, LEB128 of its zigzag       float   2, the 8 bytes of an f64
//! truth     3, a byte                      text    4, length, bytes
//! bytes     5, length, bytes               place   6, 4
//! far       7, 28                          list    8, length, values*
//! option    9, the value, if there is one  record  10, as above
//! enum      11, the variant, a record
//! ```

use crate::cursor::{DecodeError, le32};
use crate::id::Oref;
use crate::layout::{FieldLayout, Layout, Shape, Var, var};
use crate::payload::Payload;
use crate::schema::Scalar;

/// Appends what a payload of the layout says. [`Payload::decode`] has checked it. Each field of each record
/// of a list costs its name and [`FIELD_COST`], said or not, and all together cost `max` at most.
///
/// # Errors
/// A sentence: it costs too much, for its sender has written the layout; or a large part is not as long as
/// the record says.
pub fn put(layout: &Layout, payload: &Payload<'_>, max: usize, out: &mut Vec<u8>) -> Result<(), String> {
    let put = Said { payload, out, left: max }.record(layout, payload.record(), 0);
    put.map(drop).map_err(|e| match e {
        DecodeError::TooMany(_) => {
            "with a key, a call takes no lists of so many records with so many fields: give fewer elements at once, or \
             shorter names"
                .into()
        }
        e => e.to_string(),
    })
}

/// The cost of looking at a field, beside its name, in bytes that could be written instead.
pub const FIELD_COST: usize = 16;

/// Writes what a payload says.
struct Said<'s, 'a> {
    payload: &'s Payload<'a>,
    out: &'s mut Vec<u8>,
    /// The cost that it may still have.
    left: usize,
}

/// Set if there is anything in a value that a missing field does not say.
type Says = Result<bool, DecodeError>;

impl<'a> Said<'_, 'a> {
    fn record(&mut self, layout: &Layout, body: &'a [u8], at: usize) -> Says {
        let mut fields: Vec<&FieldLayout> = layout.fields().iter().collect();
        fields.sort_unstable_by(|p, q| p.name.cmp(&q.name));
        let from = self.out.len();
        for p in fields {
            self.pay(FIELD_COST + p.name.len())?;
            let before = self.out.len();
            self.number(p.name.len() as u64 + 1);
            self.out.extend_from_slice(p.name.as_bytes());
            if !self.value(&p.shape, body, at + p.at)? {
                self.out.truncate(before);
            }
        }
        self.out.push(0);
        Ok(self.out.len() > from + 1)
    }

    fn value(&mut self, shape: &Shape, body: &'a [u8], at: usize) -> Says {
        match shape {
            Shape::Scalar(s) => Ok(self.scalar(*s, body, at)),
            Shape::Array(s, n) => {
                self.begin(8, *n as usize);
                let elements = 0..*n as usize;
                Ok(elements.fold(false, |says, i| self.scalar(*s, body, at + i * s.size()) | says))
            }
            Shape::Text | Shape::Bytes => {
                let bytes = self.bytes(body, at)?;
                self.begin(if *shape == Shape::Text { 4 } else { 5 }, bytes.len());
                self.out.extend_from_slice(bytes);
                Ok(!bytes.is_empty())
            }
            Shape::Ref(_) => {
                self.out.push(6);
                self.out.extend_from_slice(&body[at..at + 4]);
                Ok(le32(body, at) != Oref::NULL.raw())
            }
            Shape::Far(_) => {
                let far = &body[at..at + shape.size()];
                self.out.push(7);
                self.out.extend_from_slice(far);
                Ok(far.iter().any(|byte| *byte != 0))
            }
            Shape::List(t) => self.list(t, body, at),
            Shape::Option(t) => {
                self.out.push(9);
                let is_none = match **t {
                    Shape::Ref(_) => le32(body, at) == Oref::NULL.raw(),
                    _ if t.has_none() => var(body, at) == Var::None,
                    _ => body[at] == 0,
                };
                if is_none {
                    return Ok(false);
                }
                self.value(t, body, at + if t.has_none() { 0 } else { t.align() })?;
                Ok(true)
            }
            Shape::Record(layout) => {
                self.out.push(10);
                self.record(layout, body, at)
            }
            Shape::Enum(layout) => {
                let (tag, variant) = layout.variant(body, at).ok_or(DecodeError::BadField("variant"))?;
                self.out.extend([11, tag]);
                let Shape::Record(fields) = &variant.shape else { return Ok(tag > 0) };
                Ok(self.record(fields, body, at + variant.at)? | (tag > 0))
            }
        }
    }

    fn list(&mut self, t: &Shape, body: &'a [u8], at: usize) -> Says {
        let (elements, from, len) = match var(body, at) {
            Var::None => (body, 0, 0),
            Var::Here { at, len } => (body, at, len),
            Var::Spilled { at, len } => (self.part(body, at, len.saturating_mul(t.size()))?, 0, len),
        };
        self.begin(8, len);
        for i in 0..len {
            self.pay(1)?;
            self.value(t, elements, from + i * t.size())?;
        }
        Ok(len > 0)
    }

    /// A text or byte string.
    fn bytes(&self, body: &'a [u8], at: usize) -> Result<&'a [u8], DecodeError> {
        match var(body, at) {
            Var::None => Ok(&[]),
            Var::Here { at, len } => Ok(&body[at..at + len]),
            Var::Spilled { at, len } => self.part(body, at, len),
        }
    }

    /// Refuses what costs too much.
    fn pay(&mut self, cost: usize) -> Result<(), DecodeError> {
        self.left = self.left.checked_sub(cost).ok_or(DecodeError::TooMany("names under a key"))?;
        Ok(())
    }

    fn scalar(&mut self, s: Scalar, body: &'a [u8], at: usize) -> bool {
        let mut wide = [0; 8];
        wide[..s.size()].copy_from_slice(&body[at..at + s.size()]);
        let bits = u64::from_le_bytes(wide);
        match s {
            Scalar::Bool => self.out.extend([3, wide[0]]),
            Scalar::F32 => self.float(f32::from_bits(bits as u32).into()),
            Scalar::F64 => self.float(f64::from_bits(bits)),
            Scalar::U8 | Scalar::U16 | Scalar::U32 | Scalar::U64 => self.integer(bits.into()),
            Scalar::I8 | Scalar::I16 | Scalar::I32 | Scalar::I64 => {
                let unused = 64 - 8 * s.size() as u32;
                self.integer(i128::from((bits << unused) as i64 >> unused));
            }
        }
        bits != 0
    }

    fn integer(&mut self, n: i128) {
        self.out.push(1);
        let mut zigzag = ((n << 1) ^ (n >> 127)) as u128;
        while zigzag > 0x7f {
            self.out.push(zigzag as u8 | 0x80);
            zigzag >>= 7;
        }
        self.out.push(zigzag as u8);
    }

    fn float(&mut self, x: f64) {
        self.out.push(2);
        self.out.extend_from_slice(&x.to_le_bytes());
    }

    /// A tag and a length.
    fn begin(&mut self, tag: u8, len: usize) {
        self.out.push(tag);
        self.number(len as u64);
    }

    fn number(&mut self, mut n: u64) {
        while n > 0x7f {
            self.out.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.out.push(n as u8);
    }

    /// The part of so many bytes that the word at `at` names.
    fn part(&self, body: &[u8], at: usize, bytes: usize) -> Result<&'a [u8], DecodeError> {
        let part = Oref::from_raw(le32(body, at)).and_then(|word| self.payload.part(word));
        part.filter(|part| part.len() == bytes).ok_or(DecodeError::BadField("parts"))
    }
}
