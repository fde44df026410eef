//! Objects, calls and interfaces as JSON, by the catalogue and the descriptions that a server gives: for the
//! gateway, and for commands that show the same.

pub mod call;
pub mod interfaces;
mod read;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use tercel::tools::wire::datum::{Datum, of_float};
use tercel::tools::wire::layout::{Layout, Shape, Var, var};
use tercel::tools::wire::schema::Scalar;
use tercel::{Any, Far, Oref};

use self::call::to_json;

/// A value of JSON as it is written.
///
/// # Errors
/// If it is none.
pub fn parse(text: &str) -> Result<Datum, serde_json::Error> {
    serde_json::from_str(text).map(|read::Written(datum)| datum)
}

/// The fields of a record whose layout its bytes were checked against.
pub fn record(layout: &Layout, body: &[u8], at: usize) -> Value {
    serde_json::to_value(Fields { layout, body, at }).expect("its keys are texts")
}

/// The same, to be written as text without values between.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    pub layout: &'a Layout,
    pub body: &'a [u8],
    pub at: usize,
}

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(
            self.layout.fields().iter().map(|p| (&p.name, field(&p.shape, self.body, self.at + p.at))),
        )
    }
}

/// A field, or an element of one.
struct Field<'a> {
    shape: &'a Shape,
    body: &'a [u8],
    at: usize,
}

fn field<'a>(shape: &'a Shape, body: &'a [u8], at: usize) -> Field<'a> {
    Field { shape, body, at }
}

impl Serialize for Field<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Field { shape, body, at } = *self;
        match shape {
            Shape::Scalar(s) => scalar(*s, body, at).serialize(to),
            Shape::Array(s, n) => {
                to.collect_seq((0..*n as usize).map(|i| scalar(*s, body, at + i * s.size())))
            }
            Shape::Ref(_) => reference(body, at).serialize(to),
            Shape::Far(_) => far(body, at).serialize(to),
            Shape::Record(layout) => Fields { layout, body, at }.serialize(to),
            Shape::Enum(r) => match r.variant(body, at) {
                Some((_, variant)) => chosen(&variant.name, &variant.shape, body, at + variant.at, to),
                None => to.serialize_unit(),
            },
            Shape::Option(t) if t.has_none() => match (&**t, var_of(t, body, at)) {
                (Shape::Ref(_), _) => reference(body, at).serialize(to),
                (_, Some(Var::None)) => to.serialize_unit(),
                _ => field(t, body, at).serialize(to),
            },
            Shape::Option(_) if body[at] == 0 => to.serialize_unit(),
            Shape::Option(t) => field(t, body, at + t.align()).serialize(to),
            Shape::Text | Shape::Bytes => match var(body, at) {
                Var::None => to.serialize_unit(),
                Var::Here { at, len } => String::from_utf8_lossy(&body[at..at + len]).serialize(to),
                Var::Spilled { at, len } => json!({"bytes": len, "tree": reference(body, at)}).serialize(to),
            },
            Shape::List(t) => match var(body, at) {
                Var::None => to.serialize_unit(),
                Var::Here { at, len } => to.collect_seq((0..len).map(|i| field(t, body, at + i * t.size()))),
                Var::Spilled { at, len } => {
                    json!({"elements": len, "tree": reference(body, at)}).serialize(to)
                }
            },
        }
    }
}

/// A variant by its name: alone, with its one value, or with its fields.
fn chosen<S: Serializer>(name: &str, of: &Shape, body: &[u8], at: usize, to: S) -> Result<S::Ok, S::Error> {
    let Shape::Record(layout) = of else { return to.collect_map([(name, field(of, body, at))]) };
    match layout.fields() {
        [] => to.serialize_str(name),
        [one] if one.name == "0" => to.collect_map([(name, field(&one.shape, body, at + one.at))]),
        _ => to.collect_map([(name, Fields { layout, body, at })]),
    }
}

fn var_of(shape: &Shape, body: &[u8], at: usize) -> Option<Var> {
    matches!(shape, Shape::Text | Shape::Bytes | Shape::List(_)).then(|| var(body, at))
}

/// The reference at `at`, or null.
pub fn reference(body: &[u8], at: usize) -> Value {
    let raw = number(body, at, 4) as u32;
    Oref::from_raw(raw).filter(|o| !o.is_null()).map_or(Value::Null, |o| json!(o.to_string()))
}

fn far(body: &[u8], at: usize) -> Value {
    let far = Far::<Any>::read(body, at);
    if far.is_null() { Value::Null } else { json!(far.to_string()) }
}

fn number(body: &[u8], at: usize, size: usize) -> u64 {
    body[at..at + size].iter().rev().fold(0, |n, b| n << 8 | *b as u64)
}

fn scalar(s: Scalar, body: &[u8], at: usize) -> Value {
    let raw = number(body, at, s.size());
    match s {
        Scalar::U8 | Scalar::U16 | Scalar::U32 | Scalar::U64 => json!(raw),
        Scalar::I8 => json!(raw as u8 as i8),
        Scalar::I16 => json!(raw as u16 as i16),
        Scalar::I32 => json!(raw as u32 as i32),
        Scalar::I64 => json!(raw as i64),
        // In its own digits.
        Scalar::F32 if f32::from_bits(raw as u32).is_finite() => json!(f32::from_bits(raw as u32)),
        Scalar::F32 => to_json(of_float(f32::from_bits(raw as u32).into())),
        Scalar::F64 => to_json(of_float(f64::from_bits(raw))),
        Scalar::Bool => json!(raw != 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enum_is_shown_by_its_variant() {
        let scalar = |name: &str, s| (name.to_owned(), Shape::Scalar(s));
        let variants = vec![
            Layout::new("Nobody".into(), vec![]),
            Layout::new("User".into(), vec![("0".into(), Shape::Ref("".into()))]),
            Layout::new("Group".into(), vec![scalar("since", Scalar::U8), scalar("open", Scalar::Bool)]),
            Layout::new("Pair".into(), vec![scalar("0", Scalar::U8), scalar("1", Scalar::U8)]),
        ];
        let shape = Shape::variants("Subject".into(), variants);
        let shown = |body: [u8; 12]| json!(field(&shape, &body, 0));
        assert_eq!(shown([0; 12]), json!("Nobody"));
        assert_eq!(shown([1, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0]), json!({ "User": "1.1" }));
        assert_eq!(
            shown([2, 0, 0, 0, 0, 0, 0, 0, 7, 1, 0, 0]),
            json!({ "Group": { "since": 7, "open": true } })
        );
        assert_eq!(shown([3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 9]), json!({ "Pair": { "0": 8, "1": 9 } }));
    }
}
