//! Comparing the indexes of a table with its rows where no transaction is: in the files of a space.
//!
//! Objects come one by one from the caller. The memory is some bytes a row.

use std::sync::Arc;

use tercel_engine::Error;
use tercel_wire::datum::{self, Datum};
use tercel_wire::id::Oref;
use tercel_wire::layout::{Layout, Var, var};
use tercel_wire::record::{Class, Ref};

use super::untyped::{Declared, UntypedIndex, UntypedTable};
use super::{TableObject, shown};
use crate::map::node::{HEIGHT_MAX, MapNode};
use crate::packed::Keys;

/// The body of an object with its layout; none of one that is not there.
pub type Found = Option<(Arc<Layout>, Vec<u8>)>;

/// The objects of a space, by their references.
pub type Objects<'o> = dyn FnMut(Oref) -> Result<Found, Error> + 'o;

/// The name of the class of tables.
pub const TABLE: &str = TableObject::NAME;

/// Compares every index of a table with its rows, and tells each difference in a sentence. `class` gives the
/// layout of a class as it is written today.
///
/// An index that is being built may lack rows behind the build's place, and nothing else.
///
/// Objects that are not there are not told: references to it are the caller's to judge, and a collection may
/// have freed parts of a table that no root reaches.
///
/// # Errors
/// `Corrupt` if the table or a node of its maps is damaged, `Schema` if the declaration does not fit the
/// class; those of `objects`.
pub fn audit(
    table: Oref,
    class: &dyn Fn(&str) -> Option<Arc<Layout>>,
    objects: &mut Objects<'_>,
    tell: &mut dyn FnMut(String),
) -> Result<(), Error> {
    let Some((layout, body)) = objects(table)? else { return Ok(()) };
    let declared = declared(&layout, &body, objects)?
        .ok_or_else(|| Error::Corrupt(format!("the table {table} is not as tables are made")))?;
    // Without its class no row was ever inserted.
    let Some(layout) = class(&declared.class) else { return Ok(()) };
    let mut missing = false;
    let opened = UntypedTable::new(Ref::new(table), &declared, layout, |map| match objects(map)? {
        Some((layout, body)) => Ok(bytes(&layout, &body, "shape").unwrap_or_default().to_vec()),
        None => {
            missing = true;
            Ok(Vec::new())
        }
    });
    if missing {
        return Ok(());
    }
    let opened = opened?;
    let (named, mut rows) = (format!("the table {table} of {}", declared.class), Vec::new());
    // Rows come in the order of their keys: those first that the build has gone through.
    let (next, mut built) = (declared.build.as_ref().map(|(next, _)| next), 0);
    let is_whole = entries(opened.key.map.oref(), objects, &mut |objects, key, row| {
        if let Some(body) = row_of(&opened, row, objects)? {
            let own = opened.own_key(&body)?;
            if own != key {
                let (key, own) = (shown(&opened.key.kind, key), shown(&opened.key.kind, &own));
                tell(format!("{named}: the row {row} has the {} {own} and stands at {key}", declared.key));
            }
        }
        rows.push(row);
        built += usize::from(next.is_some_and(|next| key < &next[..]));
        Ok(())
    })?;
    let mut built = rows[..built].to_vec();
    built.sort_unstable();
    rows.sort_unstable();
    for index in opened.indexes.iter().filter(|_| is_whole) {
        let wanted = if index.building.is_some() { &built } else { &rows };
        compare(&opened, index, &named, (&rows, wanted), objects, tell)?;
    }
    Ok(())
}

/// Compares an index with the rows, and with those that it must have; both are sorted.
fn compare(
    table: &UntypedTable,
    index: &UntypedIndex,
    named: &str,
    (rows, wanted): (&[Oref], &[Oref]),
    objects: &mut Objects<'_>,
    tell: &mut dyn FnMut(String),
) -> Result<(), Error> {
    let mut seen = vec![false; rows.len()];
    let words = &index.words;
    let is_whole = entries(index.map.oref(), objects, &mut |objects, key, row| {
        let at = shown(&index.kind, key);
        let Ok(i) = rows.binary_search(&row) else {
            tell(format!("{named}: the index {words} has {row} at {at}, which is no row of the table"));
            return Ok(());
        };
        let Some(body) = row_of(table, row, objects)? else { return Ok(()) };
        let own = table.index_key(index, &body)?;
        if own == key {
            seen[i] = true;
        } else {
            let own = shown(&index.kind, &own);
            tell(format!("{named}: the index {words} has the row {row} at {at}, and it belongs at {own}"));
        }
        Ok(())
    })?;
    let lacking =
        rows.iter().zip(seen).filter(|(row, seen)| is_whole && !seen && wanted.binary_search(row).is_ok());
    for (row, _) in lacking {
        if let Some(body) = row_of(table, *row, objects)? {
            let own = shown(&index.kind, &table.index_key(index, &body)?);
            tell(format!("{named}: the index {words} lacks the row {row}, which belongs at {own}"));
        }
    }
    Ok(())
}

/// A row as its class is written today; none if it is not there.
fn row_of(table: &UntypedTable, row: Oref, objects: &mut Objects<'_>) -> Result<Option<Vec<u8>>, Error> {
    match objects(row)? {
        Some((layout, body)) if layout.name() == table.class => table.current(&layout, &body).map(Some),
        Some((layout, _)) => {
            Err(Error::Corrupt(format!("the row {row} of a table of {} is a {}", table.class, layout.name())))
        }
        None => Ok(None),
    }
}

/// A use of an entry, with the objects to look others up.
type Each<'e> = dyn FnMut(&mut Objects<'_>, &[u8], Oref) -> Result<(), Error> + 'e;

/// Goes through the entries of a map of references in order; says whether all of its nodes are there.
fn entries(map: Oref, objects: &mut Objects<'_>, each: &mut Each<'_>) -> Result<bool, Error> {
    let damaged = |node: Oref| Error::Corrupt(format!("the node {node} of a map is not as maps make them"));
    let (mut todo, mut last, mut is_whole) = (vec![(map, 0)], None::<Vec<u8>>, true);
    while let Some((node, depth)) = todo.pop() {
        let Some((layout, body)) = objects(node)? else {
            is_whole = false;
            continue;
        };
        if layout.name() != MapNode::NAME || depth > HEIGHT_MAX {
            return Err(damaged(node));
        }
        let part = |name| bytes(&layout, &body, name).ok_or_else(|| damaged(node));
        let keys = Keys::new(part("keys")?)?;
        let children = references(&layout, &body, "children").ok_or_else(|| damaged(node))?;
        if !children.is_empty() {
            todo.extend(children.into_iter().rev().map(|child| (child, depth + 1)));
            continue;
        }
        let rows = references(&layout, &body, "values").ok_or_else(|| damaged(node))?;
        if rows.len() != keys.len() {
            return Err(damaged(node));
        }
        for (i, row) in rows.into_iter().enumerate() {
            let key = keys.get(i)?;
            if last.as_deref().is_some_and(|last| last >= key) {
                return Err(damaged(node));
            }
            last = Some(key.to_vec());
            each(objects, key, row)?;
        }
    }
    Ok(is_whole)
}

/// A byte string of a record, which stands in it.
fn bytes<'b>(layout: &Layout, body: &'b [u8], name: &str) -> Option<&'b [u8]> {
    match var(body, layout.field(name)?.at) {
        Var::None => Some(&[]),
        Var::Here { at, len } => body.get(at..at + len),
        Var::Spilled { .. } => None,
    }
}

/// The references of a list of a record, which stands in it.
fn references(layout: &Layout, body: &[u8], name: &str) -> Option<Vec<Oref>> {
    match var(body, layout.field(name)?.at) {
        Var::None => Some(Vec::new()),
        Var::Here { at, len } => {
            let (words, _) = body.get(at..at + 4 * len)?.as_chunks::<4>();
            words.iter().map(|word| Oref::from_raw(u32::from_le_bytes(*word))).collect()
        }
        Var::Spilled { .. } => None,
    }
}

/// The declaration in the body of a table; none if it is none.
fn declared(layout: &Layout, body: &[u8], objects: &mut Objects<'_>) -> Result<Option<Declared>, Error> {
    let Some((mut declared, build)) = words(layout, body) else { return Ok(None) };
    if let Some(build) = build
        && let Some((layout, body)) = objects(build)?
    {
        declared.build = bytes(&layout, &body, "next").map(|next| (next.to_vec(), 0));
    }
    Ok(Some(declared))
}

/// The declaration without the build, and the object of that.
fn words(layout: &Layout, body: &[u8]) -> Option<(Declared, Option<Oref>)> {
    let fields = datum::read(layout, body, &|_, _| None).ok()?;
    let field = |name: &str| fields.iter().find(|(field, _)| field == name).map(|(_, value)| value);
    let text = |value: &Datum| match value {
        Datum::Text(text) => Some(text.clone()),
        _ => None,
    };
    let texts = |value: &Datum| match value {
        Datum::List(all) => all.iter().map(text).collect::<Option<Vec<_>>>(),
        _ => None,
    };
    let declared = Declared {
        class: text(field("class")?)?,
        key: text(field("key")?)?,
        indexes: texts(field("declared")?)?,
        rows: text(field("rows")?)?.parse().ok()?,
        maps: texts(field("indexes")?)?.iter().map(|map| map.parse().ok()).collect::<Option<_>>()?,
        build: None,
    };
    // Tables of before have no such field.
    Some((declared, field("build").and_then(text).and_then(|build| build.parse().ok())))
}
