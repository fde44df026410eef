//! `tercel inspect`: an object as JSON, through the space's catalogue; of a map its entries; the methods of a
//! server.

mod map;
mod table;

use std::process::ExitCode;

use serde_json::{Map, Value, json};
use tercel::collections::table::audit::TABLE;
use tercel::{Client, ClientConfig, Oref};
use tercel_gateway::json::{interfaces, record};
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
        show_interfaces(&client, args.json)?;
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
    if layout.name() == TABLE && args.key.is_none() {
        return table::show(client, args, oref);
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
pub fn locate(client: &Client, what: &str) -> Result<Oref, Failure> {
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

/// The number of roots that a message names; `tercel inspect` lists all.
const ROOTS_NAMED_MAX: usize = 20;

/// Prints the methods that a server runs, and the services that it offers.
fn show_interfaces(client: &Client, as_json: bool) -> Result<(), Failure> {
    let all = tercel::tools::interfaces(client)?;
    if as_json {
        let all: Vec<Value> = all.iter().map(interfaces::interface).collect();
        say!("{}", json!({ "interfaces": all }));
        return Ok(());
    }
    if all.is_empty() {
        say!("this server runs no methods, which run at clients that have them, and offers no services");
    }
    for i in &all {
        match i.is_service() {
            true => say!("service {}", i.name),
            false => say!("{} for {}", i.name, i.class),
        }
        i.methods.iter().for_each(|m| say!("  {}", interfaces::line(m)));
        interfaces::types(i).iter().for_each(|named| say!("  {}", named.line()));
    }
    Ok(())
}
