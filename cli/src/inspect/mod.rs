//! `tercel inspect`: an object as JSON, through the space's catalogue; of a map its entries; the methods of a
//! server.

pub mod interfaces;
mod map;

use std::process::ExitCode;

use serde_json::{Map, Value, json};
use tercel::tools::wire::layout::{Layout, Shape, Var, var};
use tercel::tools::wire::schema::Scalar;
use tercel::{Any, Client, ClientConfig, Far, Oref};
use tercel_packages::model::CATALOG;
use tercel_packages::query;
use tercel_term::fail::{Failure, Outcome};
use tercel_term::say;

use crate::args;
use crate::space;

pub fn run(args: &args::Inspect) -> Outcome {
    if args.interfaces {
        let client =
            space::open_server(args.space.server.as_ref(), "--server", ClientConfig::default().timeout)?;
        interfaces::show(&client, args.json)?;
        space::close(client)?;
        return Ok(ExitCode::SUCCESS);
    }
    let client = space::open(&args.space)?;
    match &args.what {
        Some(what) => object(&client, args, what)?,
        None if args.exports => exports(&client, args.json)?,
        None => roots(&client, args.json)?,
    }
    space::close(client)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints an object, or the entries of a map.
fn object(client: &Client, args: &args::Inspect, what: &str) -> Result<(), Failure> {
    let oref = locate(client, what)?;
    let (class, layout, body) = tercel::tools::stored_object(client, oref)?;
    if map::is_map(&layout) {
        return map::show(client, args, oref, &layout, &body);
    }
    if args.key.is_some() || args.limit.is_some() {
        return Err(map::is_none(oref, &layout, &body));
    }
    let mut out = Map::new();
    out.insert("ref".into(), json!(oref.to_string()));
    out.insert("class".into(), json!(layout.name()));
    out.insert("class_id".into(), json!(class.0));
    out.insert("bytes".into(), json!(body.len()));
    if let Some(far) = client.run(|tx| tx.exports())?.iter().find(|far| far.oref() == oref) {
        out.insert("kept_by_export".into(), json!(far.to_string()));
    }
    out.insert("fields".into(), record(&layout, &body, 0));
    say!("{}", serde_json::to_string_pretty(&Value::Object(out)).unwrap_or_default());
    Ok(())
}

/// Prints the roots.
fn roots(client: &Client, as_json: bool) -> Result<(), Failure> {
    let roots = client.run(|tx| tx.roots())?;
    if as_json {
        let roots: Vec<Value> = roots
            .iter()
            .map(|(name, object)| json!({ "name": name, "ref": object.oref().to_string() }))
            .collect();
        say!("{}", json!({ "roots": roots }));
        return Ok(());
    }
    if roots.is_empty() {
        eprintln!("the space has no roots: nothing was stored in it yet");
    }
    roots.iter().for_each(|(name, object)| say!("{name:<24} {}", object.oref()));
    Ok(())
}

/// Prints the far references of objects that are kept by an export.
fn exports(client: &Client, as_json: bool) -> Result<(), Failure> {
    let exports = client.run(|tx| tx.exports())?;
    if as_json {
        let exports: Vec<Value> = exports
            .iter()
            .map(|far| json!({ "far": far.to_string(), "ref": far.oref().to_string() }))
            .collect();
        say!("{}", json!({ "exports": exports }));
        return Ok(());
    }
    if exports.is_empty() {
        eprintln!("no object of the space is kept by an export");
    }
    exports.iter().for_each(|far| say!("{:<24} {far}", far.oref().to_string()));
    Ok(())
}

/// A reference, a root, or a package.
fn locate(client: &Client, what: &str) -> Result<Oref, Failure> {
    if let Some(oref) = space::reference(what)? {
        return Ok(oref);
    }
    let roots = client.run(|tx| tx.roots())?;
    if let Some((_, object)) = roots.iter().find(|(name, _)| name == what) {
        return Ok(object.oref());
    }
    if roots.iter().any(|(name, _)| name == CATALOG) {
        return query::find(client, what).map(|r| r.oref());
    }
    let failure = Failure::new(format!("there is no root `{what}`"));
    let names: Vec<&str> = roots.iter().map(|(name, _)| name.as_str()).take(ROOTS_NAMED_MAX).collect();
    Err(match names.is_empty() {
        true => failure.next("the space has none yet: nothing was stored in it"),
        false => failure.next(format!("roots: {}", names.join(", "))),
    })
}

/// As many roots as a message names; `tercel inspect` lists all.
const ROOTS_NAMED_MAX: usize = 20;

fn record(layout: &Layout, body: &[u8], at: usize) -> Value {
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

fn reference(body: &[u8], at: usize) -> Value {
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
    fn a_value_of_an_enum_is_shown_by_its_variant() {
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
