//! `tercel inspect`: an object as JSON, through the space's catalogue.

use std::process::ExitCode;

use serde_json::{Map, Value, json};
use tercel::wire::layout::{Layout, Shape, Var, var};
use tercel::wire::schema::Scalar;
use tercel::{Client, Oref};

use crate::args;
use crate::fail::{Failure, Outcome};
use crate::query;
use crate::space;

pub fn run(args: &args::Inspect) -> Outcome {
    let client = space::open(&args.space)?;
    let oref = locate(&client, &args.what)?;
    let (class, layout, body) = client.stored_object(oref)?;
    let mut out = Map::new();
    out.insert("ref".into(), json!(oref.to_string()));
    out.insert("class".into(), json!(layout.name()));
    out.insert("class_id".into(), json!(class.0));
    out.insert("bytes".into(), json!(body.len()));
    out.insert("fields".into(), record(&layout, &body, 0));
    say!("{}", serde_json::to_string_pretty(&Value::Object(out)).unwrap_or_default());
    space::close(client)?;
    Ok(ExitCode::SUCCESS)
}

/// A reference, a root, or a package.
fn locate(client: &Client, what: &str) -> Result<Oref, Failure> {
    if let Ok(oref) = what.parse() {
        return Ok(oref);
    }
    if let Some(root) = client.run(|tx| tx.root::<tercel::Any>(what))? {
        return Ok(root.oref());
    }
    query::find(client, what).map(|r| r.oref())
}

fn record(layout: &Layout, body: &[u8], at: usize) -> Value {
    let fields = layout.places().iter().map(|p| (p.name.clone(), value(&p.shape, body, at + p.at)));
    Value::Object(fields.collect())
}

fn value(shape: &Shape, body: &[u8], at: usize) -> Value {
    match shape {
        Shape::Scalar(s) => scalar(*s, body, at),
        Shape::Array(s, n) => (0..*n as usize).map(|i| scalar(*s, body, at + i * s.size())).collect(),
        Shape::Ref(_) => reference(body, at),
        Shape::Record(r) => record(r, body, at),
        Shape::Option(t) if t.has_none() => match (&**t, var_of(t, body, at)) {
            (Shape::Ref(_), _) => reference(body, at),
            (_, Some(Var::None)) => Value::Null,
            _ => value(t, body, at),
        },
        Shape::Option(t) if body[at] == 0 => {
            let _ = t;
            Value::Null
        }
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

fn var_of(shape: &Shape, body: &[u8], at: usize) -> Option<Var> {
    matches!(shape, Shape::Text | Shape::Bytes | Shape::List(_)).then(|| var(body, at))
}

fn reference(body: &[u8], at: usize) -> Value {
    let raw = number(body, at, 4) as u32;
    Oref::from_raw(raw).filter(|o| !o.is_null()).map_or(Value::Null, |o| json!(o.to_string()))
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
