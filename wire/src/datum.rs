//! Values of records whose class no program here has: built from what a user writes, by the layout alone, and
//! read back.
//!
//! A [`Datum`] has the forms that JSON has, so that a tool which reads and writes JSON needs no rules of its
//! own. The rules are here:
//!
//! | a field of type | is |
//! |---|---|
//! | an integer | [`Datum::Int`] in the range of its type |
//! | `f32`, `f64` | [`Datum::Float`] or [`Datum::Int`]; the texts `NaN`, `inf` and `-inf` for what no number of JSON is |
//! | `bool`, `Text` | [`Datum::Bool`], [`Datum::Text`] |
//! | `Bytes` | a text of hexadecimal digits, two for each byte |
//! | `Ref` | the text `PAGE.SLOT`, or [`Datum::Null`] |
//! | `Far` | its text, or [`Datum::Null`] |
//! | `Option` | the value, or [`Datum::Null`] |
//! | `List`, an array | [`Datum::List`] |
//! | a record | [`Datum::Map`] by the names of fields, of which optional ones may be left out; or [`Datum::List`] in their order |
//! | an enum | the name of a variant without fields; else a map of one entry: that name, and the one unnamed value or the fields |
//!
//! The invariant: what [`encode`] appends is a payload of the layout. Its size is bounded by that of a
//! message, whatever the datum is.

use std::borrow::Cow;
use std::fmt::Write as _;

use thiserror::Error;

use crate::cursor::{DecodeError, le32};
use crate::far::Far;
use crate::frame::BODY_BYTES_MAX;
use crate::id::Oref;
use crate::layout::{FieldLayout, Layout, Shape, Var, var};
use crate::payload::{self, Payload};
use crate::record::{Any, Encoder, NoSpill, Ref, Value as _};
use crate::schema::Scalar;

/// A value in one of the forms that JSON has.
#[derive(Debug, Clone, PartialEq)]
pub enum Datum {
    /// There is none.
    Null,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// Any other number.
    Float(f64),
    /// A text.
    Text(String),
    /// Several values in order.
    List(Vec<Datum>),
    /// Several values by name.
    Map(Vec<(String, Datum)>),
}

/// A datum that is no value of its type: its author must act.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}{what}", place(at))]
pub struct DatumError {
    /// Which part of it, such as `tags[3].name`; empty for all of it.
    pub at: String,
    /// The cause, and the value or field that it concerns.
    pub what: String,
}

fn place(at: &str) -> String {
    if at.is_empty() { String::new() } else { format!("`{at}`: ") }
}

impl DatumError {
    fn new(what: impl Into<String>) -> DatumError {
        DatumError { at: String::new(), what: what.into() }
    }

    /// The same, as that of a part with this name.
    fn within(self, name: &str) -> DatumError {
        let dot = if self.at.is_empty() || self.at.starts_with('[') { "" } else { "." };
        DatumError { at: format!("{name}{dot}{}", self.at), ..self }
    }
}

/// Appends a datum as a payload.
///
/// # Errors
/// If it is no value of the layout, or larger than a message. Nothing is appended then.
pub fn encode(layout: &Layout, datum: &Datum, out: &mut Vec<u8>) -> Result<(), DatumError> {
    let mut wrong = None;
    let put = |e: &mut Encoder<'_>| {
        let mut writer = Writer { left: BODY_BYTES_MAX };
        wrong = writer.record(layout, datum, e, 0).err();
    };
    let from = out.len();
    let encoded = match layout.has_numbers_alone() {
        true => payload::encode_numbers(layout.size(), put, out),
        false => payload::encode_parts(layout.size(), put, out),
    };
    let wrong = wrong.or_else(|| encoded.err().map(|e| DatumError::new(e.to_string())));
    match wrong {
        None => Ok(()),
        Some(e) => {
            out.truncate(from);
            Err(e)
        }
    }
}

/// Writes a datum into a record that is being encoded.
///
/// # Errors
/// If it is no value of the layout.
pub fn put(layout: &Layout, datum: &Datum, e: &mut Encoder<'_>) -> Result<(), DatumError> {
    Writer { left: BODY_BYTES_MAX }.record(layout, datum, e, 0)
}

/// Reads a payload of the layout, which [`Payload::decode`] has checked, as a map.
///
/// # Errors
/// If a part beside the record is not of its type.
pub fn decode(layout: &Layout, payload: &Payload<'_>) -> Result<Datum, DecodeError> {
    let part = |word, _| payload.part(word).map(Cow::Borrowed);
    Reader { part: &part }.record(layout, payload.record(), 0)
}

/// Reads the fields of the checked body of an object. `part` gives the bytes of a large part, as many as it
/// is told; none if there is no such part. The elements of lists of references have four.
///
/// # Errors
/// If a part is missing, or not of its type.
pub fn read<'a>(
    layout: &Layout,
    body: &[u8],
    part: Parts<'_, 'a>,
) -> Result<Vec<(String, Datum)>, DecodeError> {
    Reader { part }.fields(layout, body, 0)
}

/// The source of the large parts of a record: the word that names one, and its bytes.
pub type Parts<'r, 'a> = &'r dyn Fn(Oref, usize) -> Option<Cow<'a, [u8]>>;

/// Writes one payload.
struct Writer {
    /// Bytes that its lists may still have: a few optional elements that are absent could take much room.
    left: usize,
}

type Written = Result<(), DatumError>;

impl Writer {
    fn record(&mut self, layout: &Layout, datum: &Datum, e: &mut Encoder<'_>, at: usize) -> Written {
        let fields = layout.fields();
        match datum {
            Datum::List(values) if values.len() == fields.len() => {
                let pairs = fields.iter().zip(values);
                pairs.into_iter().try_for_each(|(p, value)| self.field(p, value, e, at))
            }
            Datum::List(values) => {
                let named = named(layout);
                let wanted = counted(fields.len(), "value is wanted", "values are wanted");
                Err(DatumError::new(format!("{} given where {wanted}: {named}", values.len())))
            }
            Datum::Map(values) => {
                self.known(layout, values)?;
                fields.iter().try_for_each(|p| match values.iter().find(|(name, _)| *name == p.name) {
                    Some((_, value)) => self.field(p, value, e, at),
                    None if matches!(p.shape, Shape::Option(_)) => self.field(p, &Datum::Null, e, at),
                    None => Err(DatumError::new(format!("`{}` is missing: {}", p.name, named(layout)))),
                })
            }
            other => Err(mismatch(other, &format!("the fields of `{}` by name, or in order", layout.name()))),
        }
    }

    /// Checks that every name names a field of `layout`, and that none occurs twice.
    fn known(&self, layout: &Layout, values: &[(String, Datum)]) -> Written {
        for (i, (name, _)) in values.iter().enumerate() {
            if layout.field(name).is_none() {
                return Err(DatumError::new(format!("there is no `{name}`: {}", named(layout))));
            }
            if values[..i].iter().any(|(earlier, _)| earlier == name) {
                return Err(DatumError::new(format!("`{name}` is given twice")));
            }
        }
        Ok(())
    }

    fn field(&mut self, p: &FieldLayout, datum: &Datum, e: &mut Encoder<'_>, at: usize) -> Written {
        self.value(&p.shape, datum, e, at + p.at).map_err(|wrong| wrong.within(&p.name))
    }

    fn value(&mut self, shape: &Shape, datum: &Datum, e: &mut Encoder<'_>, at: usize) -> Written {
        match (shape, datum) {
            (Shape::Scalar(s), _) => scalar(*s, datum, e, at),
            (Shape::Array(s, n), Datum::List(values)) if values.len() == *n as usize => {
                let element = |(i, v)| scalar(*s, v, e, at + i * s.size()).map_err(|w| w.within(&index(i)));
                values.iter().enumerate().try_for_each(element)
            }
            (Shape::Array(_, n), _) => Err(mismatch(datum, &format!("a list of {n}"))),
            (Shape::Text, Datum::Text(text)) => {
                e.put_bytes(at, text.as_bytes());
                Ok(())
            }
            (Shape::Text, _) => Err(mismatch(datum, "a text")),
            (Shape::Bytes, Datum::Text(digits)) => {
                let bytes = unhex(digits).ok_or_else(|| mismatch(datum, BYTES))?;
                e.put_bytes(at, &bytes);
                Ok(())
            }
            (Shape::Bytes, _) => Err(mismatch(datum, BYTES)),
            (Shape::Ref(_), _) => {
                // It names whatever is there.
                Ref::<Any>::new(oref(datum)?).put(e, at);
                Ok(())
            }
            (Shape::Far(_), Datum::Null) => Ok(()),
            (Shape::Far(_), Datum::Text(text)) => {
                let far: Far<Any> = text.parse().map_err(|e| DatumError::new(format!("{text:?}: {e}")))?;
                far.put(e, at);
                Ok(())
            }
            (Shape::Far(_), _) => Err(mismatch(datum, "a far reference, as a text or null,")),
            (Shape::Option(t), Datum::Null) => {
                if t.has_none() && !matches!(**t, Shape::Ref(_)) {
                    e.put_none(at);
                }
                Ok(())
            }
            (Shape::Option(t), _) if t.has_none() => self.value(t, datum, e, at),
            (Shape::Option(t), _) => {
                e.set(at, &[1]);
                self.value(t, datum, e, at + t.align())
            }
            (Shape::List(t), Datum::List(values)) => self.list(t, values, e, at),
            (Shape::List(_), _) => Err(mismatch(datum, "a list")),
            (Shape::Record(layout), _) => self.record(layout, datum, e, at),
            (Shape::Enum(layout), _) => self.variant(layout, datum, e, at),
        }
    }

    fn list(&mut self, t: &Shape, values: &[Datum], e: &mut Encoder<'_>, at: usize) -> Written {
        let bytes = values.len().saturating_mul(t.size());
        let too_long = || DatumError::new(format!("{} elements do not fit into a message", values.len()));
        self.left = self.left.checked_sub(bytes).ok_or_else(too_long)?;
        if !e.spills(bytes) {
            let Some(from) = e.put_block(at, values.len(), t.size(), t.align()) else { return Ok(()) };
            return self.elements(t, values, e, from);
        }
        match t {
            Shape::Ref(_) => {
                let orefs = values.iter().enumerate().map(|(i, v)| oref(v).map_err(|w| w.within(&index(i))));
                let orefs: Vec<Oref> = orefs.collect::<Result<_, _>>()?;
                e.put_spilled(at, orefs.len(), |spill| spill.refs(&orefs));
            }
            t if t.spills() => {
                let mut none = NoSpill;
                let mut plain = Encoder::new(bytes, &mut none);
                self.elements(t, values, &mut plain, 0)?;
                let body = plain.finish_bytes().map_err(|e| DatumError::new(e.to_string()))?;
                e.put_spilled(at, values.len(), |spill| spill.bytes(&body));
            }
            _ => e.fail(crate::record::EncodeError::PartTooLarge),
        }
        Ok(())
    }

    fn elements(&mut self, t: &Shape, values: &[Datum], e: &mut Encoder<'_>, from: usize) -> Written {
        let mut all = values.iter().enumerate();
        all.try_for_each(|(i, v)| self.value(t, v, e, from + i * t.size()).map_err(|w| w.within(&index(i))))
    }

    fn variant(&mut self, layout: &Layout, datum: &Datum, e: &mut Encoder<'_>, at: usize) -> Written {
        let (name, value) = match datum {
            Datum::Text(name) => (name, None),
            Datum::Map(entries) if entries.len() == 1 => (&entries[0].0, Some(&entries[0].1)),
            other => {
                return Err(mismatch(
                    other,
                    &format!("a variant of `{}`: {}", layout.name(), variants(layout)),
                ));
            }
        };
        let variants = || variants(layout);
        let found = layout.fields()[1..].iter().position(|p| p.name == *name);
        let tag = found.ok_or_else(|| {
            DatumError::new(format!("`{}` has no variant `{name}`: {}", layout.name(), variants()))
        })?;
        let p = &layout.fields()[1 + tag];
        let Shape::Record(fields) = &p.shape else { return Ok(()) };
        e.set(at, &[tag as u8]);
        let put = match (value, unnamed(fields)) {
            (None, _) if fields.fields().is_empty() => Ok(()),
            (None, _) => Err(DatumError::new(format!("it has {}", named(fields)))),
            (Some(value), Some(only)) => self.value(&only.shape, value, e, at + p.at + only.at),
            (Some(value), None) => self.record(fields, value, e, at + p.at),
        };
        put.map_err(|wrong| wrong.within(name))
    }
}

/// The one field of a variant such as `User(Ref)`.
fn unnamed(fields: &Layout) -> Option<&FieldLayout> {
    match fields.fields() {
        [only] if only.name == "0" => Some(only),
        _ => None,
    }
}

fn index(i: usize) -> String {
    format!("[{i}]")
}

/// Describes the value to write in place of `found`.
fn mismatch(found: &Datum, wanted: &str) -> DatumError {
    let found = match found {
        Datum::Null => "null".into(),
        Datum::Bool(b) => b.to_string(),
        Datum::Int(n) => n.to_string(),
        Datum::Float(x) => format!("{x:?}"),
        Datum::Text(text) => {
            let short: String = text.chars().take(TEXT_SHOWN_MAX).collect();
            let more = if short.len() < text.len() { ".." } else { "" };
            format!("the text {short:?}{more}")
        }
        Datum::List(values) => format!("a list of {}", values.len()),
        Datum::Map(values) => format!("a map of {}", values.len()),
    };
    DatumError::new(format!("{found} is given where {wanted} is wanted"))
}

/// Characters of a wrong text that a message shows.
const TEXT_SHOWN_MAX: usize = 40;

const BYTES: &str = "a text of hexadecimal digits, two for each byte,";

fn counted(n: usize, one: &str, many: &str) -> String {
    if n == 1 { format!("{n} {one}") } else { format!("{n} {many}") }
}

/// The names and types of the fields.
fn named(layout: &Layout) -> String {
    let fields = layout.fields();
    let all: Vec<String> = fields.iter().map(|p| format!("{}: {}", p.name, p.shape)).collect();
    match all.is_empty() {
        true => "there are none".into(),
        false => all.join(", "),
    }
}

fn variants(layout: &Layout) -> String {
    let names: Vec<&str> = layout.fields()[1..].iter().map(|p| p.name.as_str()).collect();
    names.join(", ")
}

fn oref(datum: &Datum) -> Result<Oref, DatumError> {
    match datum {
        Datum::Null => Ok(Oref::NULL),
        Datum::Text(text) => text.parse().map_err(|e| DatumError::new(format!("{text:?}: {e}"))),
        other => Err(mismatch(other, "a reference, as a text \"PAGE.SLOT\" or null,")),
    }
}

fn scalar(s: Scalar, datum: &Datum, e: &mut Encoder<'_>, at: usize) -> Written {
    match s {
        Scalar::Bool => match datum {
            Datum::Bool(b) => e.set(at, &[*b as u8]),
            other => return Err(mismatch(other, "true or false")),
        },
        Scalar::F32 => e.set(at, &float32(float(datum)?)?.to_le_bytes()),
        Scalar::F64 => e.set(at, &float(datum)?.to_le_bytes()),
        _ => {
            let (low, high) = range(s);
            let wanted = || format!("a whole number from {low} to {high}");
            match datum {
                Datum::Int(n) if (low..=high).contains(n) => e.set(at, &n.to_le_bytes()[..s.size()]),
                other => return Err(mismatch(other, &wanted())),
            }
        }
    }
    Ok(())
}

/// The least and the greatest value of an integer.
fn range(s: Scalar) -> (i128, i128) {
    let bits = 8 * s.size() as u32;
    match s {
        Scalar::I8 | Scalar::I16 | Scalar::I32 | Scalar::I64 => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => (0, (1 << bits) - 1),
    }
}

fn float(datum: &Datum) -> Result<f64, DatumError> {
    match datum {
        Datum::Int(n) => Ok(*n as f64),
        Datum::Float(x) => Ok(*x),
        Datum::Text(text) => {
            let named = NOT_NUMBERS.iter().find(|(name, _)| name == text);
            named.map(|(_, x)| *x).ok_or_else(|| mismatch(datum, "a number"))
        }
        other => Err(mismatch(other, "a number")),
    }
}

fn float32(x: f64) -> Result<f32, DatumError> {
    let short = x as f32;
    match short.is_infinite() && x.is_finite() {
        true => Err(mismatch(&Datum::Float(x), "a number that an f32 can hold")),
        false => Ok(short),
    }
}

/// The numbers without a JSON notation, by the names that stand for them.
const NOT_NUMBERS: [(&str, f64); 3] =
    [("NaN", f64::NAN), ("inf", f64::INFINITY), ("-inf", f64::NEG_INFINITY)];

/// A number, or the text that stands for one without a notation in JSON.
pub fn of_float(x: f64) -> Datum {
    match x {
        x if x.is_finite() => Datum::Float(x),
        x if x.is_nan() => Datum::Text(NOT_NUMBERS[0].0.into()),
        x => Datum::Text(NOT_NUMBERS[if x > 0.0 { 1 } else { 2 }].0.into()),
    }
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let nibble = |digit: u8| (digit as char).to_digit(16).map(|n| n as u8);
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(nibble(*high)? << 4 | nibble(*low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}

fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    bytes.iter().for_each(|b| _ = write!(digits, "{b:02x}"));
    digits
}

/// Reads one record.
struct Reader<'r, 'a> {
    part: Parts<'r, 'a>,
}

impl Reader<'_, '_> {
    /// A large part, named by the word at `at`.
    fn part(&self, body: &[u8], at: usize, bytes: Option<usize>) -> Result<Cow<'_, [u8]>, DecodeError> {
        let word = Oref::from_raw(le32(body, at));
        let part = word.zip(bytes).and_then(|(word, bytes)| (self.part)(word, bytes));
        part.filter(|part| Some(part.len()) == bytes).ok_or(DecodeError::BadField("parts"))
    }

    /// The text or byte string whose descriptor is at `at`.
    fn bytes<'b>(&'b self, body: &'b [u8], at: usize) -> Result<Cow<'b, [u8]>, DecodeError> {
        match var(body, at) {
            Var::None => Ok(Cow::Borrowed(&[])),
            Var::Here { at, len } => Ok(Cow::Borrowed(&body[at..at + len])),
            Var::Spilled { at, len } => self.part(body, at, Some(len)),
        }
    }

    fn fields(&self, layout: &Layout, body: &[u8], at: usize) -> Result<Vec<(String, Datum)>, DecodeError> {
        let fields = layout.fields().iter();
        fields.map(|p| Ok((p.name.clone(), self.value(&p.shape, body, at + p.at)?))).collect()
    }

    fn record(&self, layout: &Layout, body: &[u8], at: usize) -> Result<Datum, DecodeError> {
        self.fields(layout, body, at).map(Datum::Map)
    }

    /// The value at `at` of the record, or of a part beside it. The bytes of a part were not checked.
    fn value(&self, shape: &Shape, body: &[u8], at: usize) -> Result<Datum, DecodeError> {
        Ok(match shape {
            Shape::Scalar(s) => read_scalar(*s, body, at)?,
            Shape::Array(s, n) => {
                let all = (0..*n as usize).map(|i| read_scalar(*s, body, at + i * s.size()));
                Datum::List(all.collect::<Result<_, _>>()?)
            }
            Shape::Ref(_) => {
                let oref = Oref::from_raw(le32(body, at)).ok_or(DecodeError::BadField("reference"))?;
                if oref.is_null() { Datum::Null } else { Datum::Text(oref.to_string()) }
            }
            Shape::Far(_) => {
                let far = Far::<Any>::read(body, at);
                if far.is_null() { Datum::Null } else { Datum::Text(far.to_string()) }
            }
            Shape::Option(t) if t.has_none() => match **t {
                Shape::Ref(_) => self.value(t, body, at)?,
                _ if var(body, at) == Var::None => Datum::Null,
                _ => self.value(t, body, at)?,
            },
            Shape::Option(t) => match body[at] {
                0 => Datum::Null,
                1 => self.value(t, body, at + t.align())?,
                _ => return Err(DecodeError::BadField("option")),
            },
            Shape::Text => {
                let text = String::from_utf8(self.bytes(body, at)?.into_owned());
                Datum::Text(text.map_err(|_| DecodeError::BadField("text"))?)
            }
            Shape::Bytes => Datum::Text(hex(&self.bytes(body, at)?)),
            Shape::List(t) => self.list(t, body, at)?,
            Shape::Record(layout) => self.record(layout, body, at)?,
            Shape::Enum(layout) => self.variant(layout, body, at)?,
        })
    }

    fn list(&self, t: &Shape, body: &[u8], at: usize) -> Result<Datum, DecodeError> {
        let (body, from, len) = match var(body, at) {
            Var::None => (Cow::Borrowed(body), 0, 0),
            Var::Here { at, len } => (Cow::Borrowed(body), at, len),
            Var::Spilled { at, len } => (self.part(body, at, len.checked_mul(t.size()))?, 0, len),
        };
        let all = (0..len).map(|i| self.value(t, &body, from + i * t.size()));
        Ok(Datum::List(all.collect::<Result<_, _>>()?))
    }

    fn variant(&self, layout: &Layout, body: &[u8], at: usize) -> Result<Datum, DecodeError> {
        let (_, p) = layout.variant(body, at).ok_or(DecodeError::BadField("variant"))?;
        let Shape::Record(fields) = &p.shape else { return Err(DecodeError::BadField("variant")) };
        let value = match unnamed(fields) {
            _ if fields.fields().is_empty() => return Ok(Datum::Text(p.name.clone())),
            Some(only) => self.value(&only.shape, body, at + p.at + only.at)?,
            None => self.record(fields, body, at + p.at)?,
        };
        Ok(Datum::Map(vec![(p.name.clone(), value)]))
    }
}

fn read_scalar(s: Scalar, body: &[u8], at: usize) -> Result<Datum, DecodeError> {
    let mut wide = [0; 8];
    wide[..s.size()].copy_from_slice(&body[at..at + s.size()]);
    let raw = u64::from_le_bytes(wide);
    Ok(match s {
        Scalar::U8 | Scalar::U16 | Scalar::U32 | Scalar::U64 => Datum::Int(raw.into()),
        Scalar::I8 => Datum::Int((raw as i8).into()),
        Scalar::I16 => Datum::Int((raw as i16).into()),
        Scalar::I32 => Datum::Int((raw as i32).into()),
        Scalar::I64 => Datum::Int((raw as i64).into()),
        Scalar::F32 => of_float(f32::from_bits(raw as u32).into()),
        Scalar::F64 => of_float(f64::from_bits(raw)),
        Scalar::Bool if raw > 1 => return Err(DecodeError::BadField("truth value")),
        Scalar::Bool => Datum::Bool(raw == 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let user = Layout::new("User".into(), vec![("0".into(), Shape::Ref("".into()))]);
        let group =
            vec![("since".into(), Shape::Scalar(Scalar::U8)), ("open".into(), Shape::Scalar(Scalar::Bool))];
        let variants = vec![Layout::new("Nobody".into(), vec![]), user, Layout::new("Group".into(), group)];
        Layout::new(
            "grant".into(),
            vec![
                ("cents".into(), Shape::Scalar(Scalar::I16)),
                ("to".into(), Shape::variants("Subject".into(), variants)),
                ("key".into(), Shape::Bytes),
                ("tags".into(), Shape::List(Box::new(Shape::Text))),
                ("note".into(), Shape::Option(Box::new(Shape::Text))),
            ],
        )
    }

    fn text(text: &str) -> Datum {
        Datum::Text(text.into())
    }

    fn map(entries: &[(&str, Datum)]) -> Datum {
        Datum::Map(entries.iter().map(|(name, datum)| ((*name).into(), datum.clone())).collect())
    }

    /// Its fields, with one of them changed.
    fn grant(name: &str, datum: Datum) -> Datum {
        let mut all = vec![
            ("cents", Datum::Int(-5)),
            ("to", map(&[("User", text("3.1"))])),
            ("key", text("00ff")),
            ("tags", Datum::List(vec![text("a"), text("")])),
            ("note", Datum::Null),
        ];
        all.iter_mut().filter(|(field, _)| *field == name).for_each(|(_, old)| *old = datum.clone());
        map(&all)
    }

    fn again(datum: &Datum) -> Result<Datum, DatumError> {
        let mut bytes = Vec::new();
        encode(&layout(), datum, &mut bytes)?;
        let payload = Payload::decode(&bytes, &layout()).unwrap();
        Ok(decode(&layout(), &payload).unwrap())
    }

    #[test]
    fn values_come_back_by_name_and_in_order() {
        for (name, datum) in [
            ("", Datum::Null),
            ("cents", Datum::Int(i16::MIN.into())),
            ("to", text("Nobody")),
            ("to", map(&[("Group", map(&[("since", Datum::Int(7)), ("open", Datum::Bool(true))]))])),
            ("to", map(&[("User", Datum::Null)])),
            ("key", text(&"5a".repeat(5_000))),
            ("note", text("")),
        ] {
            let whole = grant(name, datum);
            assert_eq!(again(&whole).as_ref(), Ok(&whole));
            let Datum::Map(fields) = &whole else { panic!() };
            let in_order = Datum::List(fields.iter().map(|(_, datum)| datum.clone()).collect());
            assert_eq!(again(&in_order), Ok(whole));
        }
    }

    #[test]
    fn wrong_value_is_named_with_its_place_and_what_is_wanted() {
        let wrong = |name, datum| again(&grant(name, datum)).unwrap_err().to_string();
        let many = wrong("cents", Datum::Int(40_000));
        assert_eq!(many, "`cents`: 40000 is given where a whole number from -32768 to 32767 is wanted");
        let unknown = wrong("to", text("Root"));
        assert_eq!(unknown, "`to`: `Subject` has no variant `Root`: Nobody, User, Group");
        let field = wrong("to", map(&[("Group", map(&[("since", Datum::Int(1)), ("open", Datum::Int(1))]))]));
        assert_eq!(field, "`to.Group.open`: 1 is given where true or false is wanted");
        let element = wrong("tags", Datum::List(vec![text("a"), Datum::Null]));
        assert_eq!(element, "`tags[1]`: null is given where a text is wanted");
        assert!(wrong("key", text("0x1")).contains("hexadecimal"));
        assert!(wrong("to", map(&[("User", text("x"))])).contains("PAGE.SLOT"));
        let missing = again(&map(&[("cents", Datum::Int(1))])).unwrap_err().to_string();
        assert!(missing.contains("`to` is missing") && missing.contains("key: Bytes"), "{missing}");
        let few = again(&Datum::List(vec![])).unwrap_err().to_string();
        assert!(few.contains("0 given where 5 values are wanted"), "{few}");
        let other = again(&map(&[("sum", Datum::Null)])).unwrap_err().to_string();
        assert!(other.contains("there is no `sum`"), "{other}");
    }

    #[test]
    fn absent_elements_cannot_fill_the_memory() {
        let wide = Layout::new("wide".into(), vec![("all".into(), Shape::Array(Scalar::U64, 900))]);
        let element = Shape::Option(Box::new(Shape::Record(Box::new(wide))));
        let layout = Layout::new("l".into(), vec![("l".into(), Shape::List(Box::new(element)))]);
        let mut out = Vec::new();
        let many = Datum::List(vec![Datum::List(vec![Datum::Null; 1_000])]);
        let wrong = encode(&layout, &many, &mut out).unwrap_err();
        assert!(out.is_empty() && wrong.what.contains("do not fit"), "{wrong}");
    }
}
