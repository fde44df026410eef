//! The parameters of an instance as bytes.
//!
//! Each value is a code and what belongs to it. References and reals stand in lists of their own beside, and
//! their codes mean the next of these. `docs/formats.md` has the table. The invariant of [`encode`]: what it
//! writes, [`decode`] reads as the same records.

use std::borrow::Cow;

use tercel_step::{Body, Record, Value};

const OMITTED: u8 = 0;
const DERIVED: u8 = 1;
const REFERENCE: u8 = 2;
const REAL: u8 = 3;
const INTEGER: u8 = 4;
const TEXT: u8 = 5;
const ENUMERATION: u8 = 6;
const BINARY: u8 = 7;
const LIST: u8 = 8;
const TYPED: u8 = 9;
const RECORD: u8 = 10;

/// Lists and typed values inside of each other that are read: more than the decoder of files lets through.
const DEPTH_MAX: usize = 64;

/// The three parts of an instance's parameters.
#[derive(Debug, Default)]
pub struct Parts {
    /// The ids of the instances referred to.
    pub refs: Vec<u64>,
    /// The reals, 8 bytes each.
    pub reals: Vec<u8>,
    /// The codes.
    pub values: Vec<u8>,
}

/// Appends the parameters of an instance.
pub fn encode(body: &Body<'_>, out: &mut Parts) {
    match body {
        Body::Simple(record) => record.parameters.iter().for_each(|value| put(value, out)),
        Body::Complex(records) => {
            for record in records {
                out.values.push(RECORD);
                put_bytes(record.keyword.as_bytes(), out);
                put_number(record.parameters.len() as u64, out);
                record.parameters.iter().for_each(|value| put(value, out));
            }
        }
    }
}

fn put(value: &Value<'_>, out: &mut Parts) {
    match value {
        Value::Omitted => out.values.push(OMITTED),
        Value::Derived => out.values.push(DERIVED),
        Value::Reference(id) => {
            out.values.push(REFERENCE);
            out.refs.push(*id);
        }
        Value::Real(real) => {
            out.values.push(REAL);
            out.reals.extend_from_slice(&real.to_le_bytes());
        }
        Value::Integer(integer) => {
            out.values.push(INTEGER);
            // Small numbers of either sign are short.
            put_number((integer << 1 ^ integer >> 63) as u64, out);
        }
        Value::Text(text) => put_coded(TEXT, text.as_bytes(), out),
        Value::Enumeration(name) => put_coded(ENUMERATION, name.as_bytes(), out),
        Value::Binary(digits) => put_coded(BINARY, digits.as_bytes(), out),
        Value::List(values) => {
            out.values.push(LIST);
            put_number(values.len() as u64, out);
            values.iter().for_each(|value| put(value, out));
        }
        Value::Typed(keyword, value) => {
            put_coded(TYPED, keyword.as_bytes(), out);
            put(value, out);
        }
    }
}

fn put_coded(code: u8, bytes: &[u8], out: &mut Parts) {
    out.values.push(code);
    put_bytes(bytes, out);
}

fn put_bytes(bytes: &[u8], out: &mut Parts) {
    put_number(bytes.len() as u64, out);
    out.values.extend_from_slice(bytes);
}

/// Appends a number in groups of seven bits, the lowest first; all but the last have the top bit.
fn put_number(mut number: u64, out: &mut Parts) {
    while number >= 0x80 {
        out.values.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.values.push(number as u8);
}

/// Reads the parameters of an instance of the entity. `ids` gives the names of its references in order,
/// `reals` has its reals. None if the bytes are no parameters.
pub fn decode<'a>(
    entity: &'a str,
    ids: impl IntoIterator<Item = u64>,
    reals: &'a [u8],
    values: &'a [u8],
) -> Option<Body<'a>> {
    let mut reader = Reader { ids: ids.into_iter(), reals: reals_of(reals), rest: values };
    if !entity.starts_with('(') {
        let mut parameters = Vec::new();
        while !reader.rest.is_empty() {
            parameters.push(reader.value(0)?);
        }
        return Some(Body::Simple(Record { keyword: entity, parameters }));
    }
    let mut records = Vec::new();
    while !reader.rest.is_empty() {
        if reader.byte()? != RECORD {
            return None;
        }
        let keyword = reader.text()?;
        let parameters = reader.values(0)?;
        records.push(Record { keyword, parameters });
    }
    Some(Body::Complex(records))
}

/// The reals of an instance.
pub fn reals_of(reals: &[u8]) -> impl Iterator<Item = f64> {
    reals.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes))
}

/// The texts among the first values of an instance, up to a value of another type: names and descriptions.
pub fn leading_texts(values: &[u8]) -> Vec<&str> {
    let mut reader = Reader { ids: std::iter::empty(), reals: std::iter::empty(), rest: values };
    let mut texts = Vec::new();
    while let Some(Value::Text(Cow::Borrowed(text))) = reader.value(0) {
        texts.push(text);
    }
    texts
}

struct Reader<'a, I, R> {
    ids: I,
    reals: R,
    rest: &'a [u8],
}

impl<'a, I: Iterator<Item = u64>, R: Iterator<Item = f64>> Reader<'a, I, R> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn text(&mut self) -> Option<&'a str> {
        let bytes = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        std::str::from_utf8(text).ok()
    }

    fn values(&mut self, depth: usize) -> Option<Vec<Value<'a>>> {
        let count = usize::try_from(self.number()?).ok()?;
        // Each value has a byte at least, so a count above that is none.
        if count > self.rest.len() {
            return None;
        }
        (0..count).map(|_| self.value(depth)).collect()
    }

    fn value(&mut self, depth: usize) -> Option<Value<'a>> {
        if depth > DEPTH_MAX {
            return None;
        }
        Some(match self.byte()? {
            OMITTED => Value::Omitted,
            DERIVED => Value::Derived,
            REFERENCE => Value::Reference(self.ids.next()?),
            REAL => Value::Real(self.reals.next()?),
            INTEGER => {
                let number = self.number()?;
                Value::Integer((number >> 1) as i64 ^ -((number & 1) as i64))
            }
            TEXT => Value::Text(Cow::Borrowed(self.text()?)),
            ENUMERATION => Value::Enumeration(self.text()?),
            BINARY => Value::Binary(self.text()?),
            LIST => Value::List(self.values(depth + 1)?),
            TYPED => {
                let keyword = self.text()?;
                Value::Typed(keyword, Box::new(self.value(depth + 1)?))
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Vec<Value<'static>> {
        vec![
            Value::Text("a 'name'".into()),
            Value::Text("".into()),
            Value::Omitted,
            Value::Derived,
            Value::Integer(i64::MIN),
            Value::Integer(-1),
            Value::Integer(i64::MAX),
            Value::Enumeration("METRE"),
            Value::Binary("0AF"),
            Value::List(vec![
                Value::Real(-0.5),
                Value::List(vec![]),
                Value::Reference(u64::MAX),
                Value::Real(1e300),
            ]),
            Value::Typed("LENGTH_MEASURE", Box::new(Value::Reference(7))),
        ]
    }

    #[test]
    fn parameters_are_read_as_they_were_written() {
        let simple = Body::Simple(Record { keyword: "A", parameters: values() });
        let records = ["A", "B"].map(|keyword| Record { keyword, parameters: values() });
        for (entity, body) in [("A", simple), ("(A B)", Body::Complex(records.into()))] {
            let mut parts = Parts::default();
            encode(&body, &mut parts);
            assert_eq!(decode(entity, parts.refs.clone(), &parts.reals, &parts.values), Some(body));
            for bytes in 0..parts.values.len() {
                // A cut between two parameters leaves fewer of them.
                let cut = decode(entity, parts.refs.clone(), &parts.reals, &parts.values[..bytes]);
                assert!(cut.is_none_or(|cut| cut.records().iter().map(|r| r.parameters.len()).sum::<usize>() < 22));
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused() {
        for code in 0..=255u8 {
            for next in 0..=255u8 {
                let bytes =
                    [code, next, next, code, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
                let _ = decode("A", [1, 2], &[0; 8], &bytes);
                let _ = decode("(A)", [1, 2], &[0; 8], &bytes);
                let _ = leading_texts(&bytes);
            }
        }
        assert_eq!(decode("A", [], &[], &[LIST; 200]), None, "too deep");
        assert_eq!(decode("A", [], &[], &[REFERENCE]), None);
        assert_eq!(decode("A", [], &[0; 7], &[REAL]), None);
    }

    #[test]
    fn leading_texts_end_at_another_value() {
        let mut parts = Parts::default();
        encode(&Body::Simple(Record { keyword: "A", parameters: values() }), &mut parts);
        assert_eq!(leading_texts(&parts.values), ["a 'name'", ""]);
    }
}
