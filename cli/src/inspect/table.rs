//! `tercel inspect` of a table: its declaration, and its first rows.

use serde_json::{Value, json};
use tercel::collections::map::RawValue;
use tercel::collections::table::untyped::UntypedIndex;
use tercel::{Client, Isolation, Oref};
use tercel_gateway::json::call::to_json;
use tercel_term::fail::Failure;
use tercel_term::{say, tell};

use super::map::{SHOWN, cut};
use crate::args;

/// Prints the table with this reference.
pub fn show(client: &Client, args: &args::Inspect, oref: Oref) -> Result<(), Failure> {
    let table = tercel::tools::table(client, oref)?;
    let limit = args.limit.map_or(SHOWN, |limit| limit as usize);
    let entries = table.entries(&table.key)?;
    let reading = client.transaction().isolation(Isolation::Snapshot);
    let (rows, is_more) = reading.run(|tx| {
        let page = entries.page(tx, None, limit)?;
        let rows = page.entries.iter().filter_map(|(_, row)| match row {
            RawValue::Reference(row) => Some(table.read(tx, row.oref()).map(to_json)),
            RawValue::Value(_) | RawValue::Nothing => None,
        });
        Ok((rows.collect::<Result<Vec<Value>, _>>()?, page.next.is_some()))
    })?;
    if args.json {
        let index = |index: &UntypedIndex| {
            json!({
                "fields": index.fields, "unique": index.is_unique, "keys": index.types(),
                "map": index.map().to_string(), "building": index.building,
            })
        };
        let out = json!({
            "ref": oref.to_string(),
            "rows_of": table.class,
            "key": index(&table.key),
            "indexes": table.indexes.iter().map(index).collect::<Vec<_>>(),
            "rows": rows,
            "more": is_more,
        });
        say!("{}", serde_json::to_string_pretty(&out).unwrap_or_default());
        return Ok(());
    }
    tell!("table {oref} of {} by {}: {}", table.class, table.key.fields.join(", "), table.key.types());
    for index in &table.indexes {
        let kind = if index.is_unique { "unique" } else { "index" };
        let state =
            index.building.map(|rows| format!(", being built (rows so far: {rows})")).unwrap_or_default();
        tell!("{kind} {}: {}{state}", index.fields.join(", "), index.types());
    }
    rows.iter().for_each(|row| say!("{}", cut(&row.to_string())));
    if is_more {
        eprintln!("there may be more rows: --limit N shows N, `tercel dump` all");
    }
    Ok(())
}
