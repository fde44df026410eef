//! Objects, calls and interfaces as JSON, by the catalogue and the descriptions that a server gives: for the
//! gateway, and for commands that show the same.

pub mod call;
pub mod interfaces;
mod read;

use serde_json::{Value, json};
use tercel::tools::wire::layout::{Layout, Shape, Var, var};
use tercel::tools::wire::schema::Scalar;
use tercel::{Any, Far, Oref};

/// The fields of a record whose layout its bytes were checked against.
pub fn record(layout: &Layout, body: &[u8], at: usize) -> Value {
    let fields = layout.fields().iter().map(|p| (p.name.clone(), value(&p.shape, body, at + p.at)));
    Value::Object(fields.collect())
}

fn value(shape: &Shape, body: &[u8], at: usize) -> Value {
    match shape {
        Shape::Scalar(s) => scalar(*s, body, at),
        Shape::Array(s, n) => (0..*n as usize).map(|i| scalar(*s, body, at + i * s.size())).collect(),
        Shape::Ref(_) => reference(body, at),
        Shape::Far(_) => far(body, at),
        Shape::Record(r) => record(r, body, at),
        Shape::Enum(r) => match r.variant(body, at) {
            Some((_, variant)) => chosen(&variant.name, value(&variant.shape, body, at + variant.at)),
            None => Value::Null,
        },
        Shape::Option(t) if t.has_none() => match (&**t, var_of(t, body, at)) {
            (Shape::Ref(_), _) => reference(body, at),
            (_, Some(Var::None)) => Value::Null,
            _ => value(t, body, at),
        },
        Shape::Option(_) if body[at] == 0 => Value::Null,
        Shape::Option(t) => value(t, body, at + t.align()),
        Shape::Text | Shape::Bytes => match var(body, at) {
            Var::None => Value::Null,
            Var::Here { at, len } => json!(String::from_utf8_lossy(&body[at..at + len])),
            Var::Spilled { at, len } => json!({"bytes": len, "tree": reference(body, at)}),
        },
        Shape::List(t) => match var(body, at) {
            Var::None => Value::Null,
            Var::Here { at, len } => (0..len).map(|i| value(t, body, at + i * t.size())).collect(),
            Var::Spilled { at, len } => json!({"elements": len, "tree": reference(body, at)}),
        },
    }
}

/// A variant by its name: alone, with its one value, or with its fields.
fn chosen(name: &str, fields: Value) -> Value {
    match fields {
        Value::Object(fields) if fields.is_empty() => json!(name),
        Value::Object(mut fields) if fields.len() == 1 && fields.contains_key("0") => {
            json!({ name: fields.remove("0") })
        }
        fields => json!({ name: fields }),
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
        Scalar::F32 => json!(f32::from_bits(raw as u32)),
        Scalar::F64 => json!(f64::from_bits(raw)),
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
        let shown = |body: [u8; 12]| value(&shape, &body, 0);
        assert_eq!(shown([0; 12]), json!("Nobody"));
        assert_eq!(shown([1, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0]), json!({ "User": "1.1" }));
        assert_eq!(
            shown([2, 0, 0, 0, 0, 0, 0, 0, 7, 1, 0, 0]),
            json!({ "Group": { "since": 7, "open": true } })
        );
        assert_eq!(shown([3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 9]), json!({ "Pair": { "0": 8, "1": 9 } }));
    }
}
