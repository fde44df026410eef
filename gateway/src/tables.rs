//! The rows of tables and the entries of maps, a page at a time, in the order of their keys.
//!
//! Tables go by their declarations and the catalogue, maps by the description of keys in their nodes. A page
//! is of one moment, and ends with a cursor that survives what is inserted or removed meanwhile. A cursor is
//! of one query: another one refuses it.

use hyper::StatusCode;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tercel::collections::map::RawValue;
use tercel::collections::table::Cursor;
use tercel::collections::table::untyped::{Entries, UntypedIndex, UntypedTable};
use tercel::tools::stored;
use tercel::tools::wire::datum::Datum;
use tercel::tools::wire::layout::Shape;
use tercel::{Error, Ref, Tx};

use crate::answer::{self, Answer};
use crate::asked::Asked;
use crate::gate::{Gate, Shown, located};
use crate::json::call::{Wrong, cut, to_json};
use crate::json::parse;
use crate::keys::is_kept;

/// Entries of a page without `limit`, and at most: of the largest objects, that is some 8 MB.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1_000;
/// Parameters that name no field. A field of such a name is asked for behind [`FIELD`].
const OWN: [&str; 8] = ["limit", "after", "by", "from", "to", "order", "fresh", "at_least"];
/// The beginning of a parameter that names a field, whatever the field's name is.
const FIELD: &str = "field.";
/// The parameters of maps.
const OF_MAPS: [&str; 8] = ["limit", "after", "key", "from", "to", "order", "fresh", "at_least"];

/// A page that is asked for.
struct Page {
    limit: usize,
    after: Option<Cursor>,
    is_backwards: bool,
    /// Stands for everything of the query but the place of the page.
    query: String,
}

impl Page {
    fn of(asked: &Asked) -> Result<Page, Wrong> {
        let limit = match asked.parameter("limit") {
            None => LIMIT,
            Some(text) => text.parse().ok().filter(|n| (1..=LIMIT_MAX).contains(n)).ok_or_else(|| {
                Wrong::invalid(format!("limit={}", cut(&text)), format!("say 1 to {LIMIT_MAX}"))
            })?,
        };
        let is_backwards = match asked.parameter("order").as_deref() {
            None | Some("asc") => false,
            Some("desc") => true,
            Some(other) => {
                return Err(Wrong::invalid(format!("order={}", cut(other)), "say asc or desc".into()));
            }
        };
        let query = mark_of(asked);
        let after = asked.parameter("after").map(|text| {
            let of_query = text.strip_prefix(&query).and_then(|rest| rest.strip_prefix('-'));
            of_query.and_then(|cursor| cursor.parse().ok()).ok_or_else(|| {
                let next = "give the `next` of a page of the same query";
                Wrong::invalid(format!("after={}", cut(&text)), next.into())
            })
        });
        Ok(Page { limit, after: after.transpose()?, is_backwards, query })
    }

    fn of_entries(&self, entries: Entries) -> Entries {
        if self.is_backwards { entries.backwards() } else { entries }
    }

    fn next(&self, next: Option<&Cursor>) -> Option<String> {
        next.map(|next| format!("{}-{next}", self.query))
    }
}

/// Some digits that stand for what a query goes by: all of it but bounds, the place and length of a page, and
/// its freshness.
fn mark_of(asked: &Asked) -> String {
    const OF_PAGE: [&str; 6] = ["limit", "after", "from", "to", "fresh", "at_least"];
    let mut wanted: Vec<_> = asked.parameters().filter(|(name, _)| !OF_PAGE.contains(&&**name)).collect();
    wanted.sort_unstable();
    let digest = Sha256::digest(json!([asked.path, wanted]).to_string());
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

impl Gate {
    /// The rows of a table: all in the order of their keys, or those with some values of fields, by an index
    /// that begins with these.
    pub fn table(&self, asked: &Asked) -> Result<Answer, Wrong> {
        let page = Page::of(asked)?;
        let (table, entries) = self.rows_asked(asked)?;
        let entries = page.of_entries(entries);
        let (rows, next) = asked.transaction(&self.client)?.run(|tx| {
            let found = entries.page(tx, page.after.as_ref(), page.limit)?;
            let rows = found.entries.iter().filter_map(|(_, row)| match row {
                RawValue::Reference(row) => Some(object(tx, *row)),
                RawValue::Value(_) | RawValue::Nothing => None,
            });
            Ok((rows.collect::<Result<Vec<_>, _>>()?, found.next))
        })?;
        let next = page.next(next.as_ref());
        Ok(answer::json(StatusCode::OK, &json!({ "class": table.class, "rows": rows, "next": next })))
    }

    /// The table, and the rows of it that are asked for.
    pub fn rows_asked(&self, asked: &Asked) -> Result<(UntypedTable, Entries), Wrong> {
        let top = asked.transaction(&self.client)?.run(|tx| located(tx, &asked.path[2]))?;
        let table = tercel::tools::table(&self.client, top)?;
        if is_kept(&table.class) {
            return Err(Error::Denied(format!("the table {top} is the gateway's own")).into());
        }
        let entries = chosen(&table, asked)?;
        Ok((table, entries))
    }

    /// The entries of a map or set, all or those of a range.
    pub fn map(&self, asked: &Asked) -> Result<Answer, Wrong> {
        let page = Page::of(asked)?;
        let entries = page.of_entries(self.entries_asked(asked)?);
        let found = asked.transaction(&self.client)?.run(|tx| {
            let found = entries.page(tx, page.after.as_ref(), page.limit)?;
            refuse_kept(tx, found.entries.first())?;
            Ok(found)
        })?;
        let shown = found.entries.into_iter().map(|(key, value)| match value {
            RawValue::Nothing => json!({ "key": to_json(key) }),
            RawValue::Reference(r) => {
                let r = if r.is_null() { Value::Null } else { r.oref().to_string().into() };
                json!({ "key": to_json(key), "ref": r })
            }
            RawValue::Value(bytes) => json!({ "key": to_json(key), "value": to_json(entries.value(&bytes)) }),
        });
        let (shown, next) = (shown.collect::<Vec<_>>(), page.next(found.next.as_ref()));
        Ok(answer::json(StatusCode::OK, &json!({ "keys": entries.types(), "entries": shown, "next": next })))
    }

    /// The entries of a map that are asked for.
    pub fn entries_asked(&self, asked: &Asked) -> Result<Entries, Wrong> {
        if let Some((name, _)) = asked.parameters().find(|(name, _)| !OF_MAPS.contains(&&**name)) {
            let next = format!("a map is asked for by {}", OF_MAPS.join(", "));
            return Err(Wrong::invalid(format!("a map has no parameter `{}`", cut(&name)), next));
        }
        let reading = asked.transaction(&self.client)?;
        let entries = reading.run(|tx| {
            let entries = Entries::of_map(tx, Ref::new(located(tx, &asked.path[2])?))?;
            if asked.wants_events() {
                refuse_kept(tx, entries.page(tx, None, 1)?.entries.first())?;
            }
            Ok(entries)
        })?;
        let types = entries.types();
        let bound = |name: &str| {
            let text = asked.parameter(name)?;
            Some(if entries.has_parts() {
                parse(&text).map_err(|e| Wrong::invalid(format!("{name}={}: {e}", cut(&text)), a_key(&types)))
            } else {
                Ok(Datum::Text(text))
            })
        };
        let (from, to) = (bound("from").transpose()?, bound("to").transpose()?);
        let wanted = match bound("key").transpose()? {
            Some(key) => entries.at(&key),
            None => entries.between(from.as_ref(), to.as_ref()),
        };
        wanted.map_err(|what| Wrong::invalid(what, a_key(&types)))
    }
}

/// Refuses entries of a map of the gateway's own, which lead to objects of one class.
fn refuse_kept(tx: &Tx<'_>, first: Option<&(Datum, RawValue)>) -> Result<(), Error> {
    match first {
        Some((_, RawValue::Reference(object)))
            if stored(tx, object.oref())?.is_some_and(|(layout, _)| is_kept(layout.name())) =>
        {
            Err(Error::Denied("the map is the gateway's own".into()))
        }
        _ => Ok(()),
    }
}

fn a_key(types: &str) -> String {
    format!("the map has keys of {types}; of several parts they are a list of JSON")
}

/// A row as JSON. One that was removed since the key was read would be a conflict, so it is there.
fn object(tx: &Tx<'_>, row: Ref<tercel::Any>) -> Result<Value, Error> {
    let missing = || Error::Corrupt(format!("the row {} of a table is missing", row.oref()));
    let (layout, object) = stored(tx, row.oref())?.ok_or_else(missing)?;
    Ok(json!(Shown::of(row.oref(), &layout, &object)))
}

/// The rows that the query names, by the key or the first index that begins with its fields.
fn chosen(table: &UntypedTable, asked: &Asked) -> Result<Entries, Wrong> {
    let field = |(name, value): (String, String)| match name.strip_prefix(FIELD) {
        Some(field) => Some((field.to_owned(), value)),
        None => (!OWN.contains(&&*name)).then_some((name, value)),
    };
    let wanted: Vec<_> = asked.parameters().filter_map(field).collect();
    let by = asked.parameter("by");
    let names = |index: &UntypedIndex| index.fields.join(",");
    let fits = |index: &&UntypedIndex| {
        let first = index.fields.get(..wanted.len());
        first.is_some_and(|first| first.iter().all(|field| wanted.iter().any(|(name, _)| name == field)))
            && by.as_ref().is_none_or(|by| *by == names(index))
    };
    let all = || std::iter::once(&table.key).chain(&table.indexes);
    let whole = all().filter(|index| index.building.is_none()).find(fits);
    let index = whole.or_else(|| all().find(fits)).ok_or_else(|| {
        let asked = wanted.iter().map(|(name, _)| cut(name)).collect::<Vec<_>>().join(", ");
        let what = match &by {
            Some(by) => format!("no index by `{}` begins with the fields [{asked}]", cut(by)),
            None => format!("no index begins with the fields [{asked}]"),
        };
        let all = all().map(|index| format!("[{}]", names(index))).collect::<Vec<_>>().join(", ");
        Wrong::invalid(what, format!("the table goes by {all}: give the first fields of one, as FIELD=VALUE"))
    })?;
    let value = |field: &str, text: &str| {
        let is_option = table.layout.field(field).is_some_and(|p| matches!(p.shape, Shape::Option(_)));
        if is_option && text == "null" { Datum::Null } else { Datum::Text(text.into()) }
    };
    let values: Vec<Datum> = index
        .fields
        .iter()
        .filter_map(|field| wanted.iter().find(|(name, _)| name == field))
        .map(|(field, text)| value(field, text))
        .collect();
    let next = index.fields.get(values.len()).map_or("", String::as_str);
    let bound = |name: &str| asked.parameter(name).map(|text| value(next, &text));
    let (from, to) = (bound("from"), bound("to"));
    table
        .entries(index)?
        .with(index, &values, from.as_ref(), to.as_ref())
        .map_err(|what| Wrong::invalid(what, "give values as they are in JSON, texts without quotes".into()))
}
