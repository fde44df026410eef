//! Tables whose classes the program has no types for: for tools, which go by the declaration that a table
//! keeps and by the catalogue.
//!
//! The words of a table's object name the fields of its key and of each index, with commas between. The types
//! stand in the class's layout, and again as the description of keys in each map's top node. What both say
//! must agree, so that a tool makes the keys that the program makes.

use std::ops::Bound;
use std::sync::Arc;

use tercel_engine::Error;
use tercel_engine::txn::{Query, Tx, create_stored, stored, stored_fields};
use tercel_wire::datum::{self, Datum};
use tercel_wire::id::{ClassId, Oref};
use tercel_wire::layout::{Layout, padded};
use tercel_wire::page::class_of;
use tercel_wire::record::{Any, EncodeError, Encoder, HEADER_BYTES, Ref, Spill, convert};

use super::declaration::state_of;
use super::{Cursor, TableObject, being_built, insert_sorted, must_be_free, taken, whole};
use crate::key::untyped::{put_datum, put_fields, tuple};
use crate::key::{Form, check, to_datum};
use crate::map::items::{Contents, Item, Kind};
use crate::map::node::{MapNode, Node, look_up};
use crate::map::query::RangeQuery;
use crate::map::walk::Walk;
use crate::map::{RawValue, change, with_prefix};

/// A key or index of a table.
#[derive(Debug, Clone)]
pub struct UntypedIndex {
    /// The fields, as the table names them.
    pub fields: Vec<String>,
    /// Set if two rows cannot have the same key.
    pub is_unique: bool,
    /// The number of rows that its build has gone through; none if it is whole.
    pub building: Option<u64>,
    /// The fields, behind `unique ` if it is.
    pub(super) words: String,
    pub(super) map: Ref<MapNode>,
    /// The places of the fields in the class.
    places: Vec<usize>,
    pub(super) kind: Kind,
}

/// A table without its types. No promise of stability.
#[derive(Debug, Clone)]
pub struct UntypedTable {
    /// The name of the rows' class.
    pub class: String,
    /// The class as it is written today.
    pub layout: Arc<Layout>,
    /// The rows' own key.
    pub key: UntypedIndex,
    /// The indexes, as declared.
    pub indexes: Vec<UntypedIndex>,
    top: Ref<TableObject>,
}

/// The declaration that a table keeps.
#[derive(Debug, Clone)]
pub struct Declared {
    /// The class of the rows.
    pub class: String,
    /// The fields of the key.
    pub key: String,
    /// The fields of each index, behind `unique ` if it is, and behind `building ` while it is being built.
    pub indexes: Vec<String>,
    /// The map of the rows.
    pub rows: Oref,
    /// The map of each index.
    pub maps: Vec<Oref>,
    /// The place of the build, and the number of rows before it; none if all indexes are whole.
    pub build: Option<(Vec<u8>, u64)>,
}

impl UntypedIndex {
    /// The types of its keys, as a program writes them; of an index that is not unique, with that of the
    /// row's own key behind.
    pub fn types(&self) -> String {
        self.kind.shape.to_string()
    }

    /// The map that it is.
    pub fn map(&self) -> Oref {
        self.map.oref()
    }
}

impl Declared {
    /// The declaration of a table.
    ///
    /// # Errors
    /// As [`Tx::get`].
    pub fn of(tx: &Tx<'_>, top: Ref<TableObject>) -> Result<Declared, Error> {
        let object = tx.get(top)?;
        let build = match object.build().find()? {
            Some(build) => Some((build.next()?.into_owned(), build.rows())),
            None => None,
        };
        Ok(Declared {
            class: object.class()?.into_owned(),
            key: object.key()?.into_owned(),
            indexes: object.declared().to_vec()?.into_iter().map(|words| words.0).collect(),
            rows: object.rows().reference().oref(),
            maps: object.indexes().references()?.iter().map(|map| map.oref()).collect(),
            build,
        })
    }
}

/// A row that can be inserted, with its keys.
#[derive(Debug, Clone)]
pub struct UntypedRow {
    datum: Datum,
    key: Vec<u8>,
    keys: Vec<Vec<u8>>,
}

impl UntypedTable {
    /// The object of the table, which changes with its indexes.
    pub fn reference(&self) -> Ref<Any> {
        self.top.cast()
    }

    /// The table of a root or reference.
    ///
    /// # Errors
    /// `Schema` if the declaration does not fit the class; those of [`Tx::get`].
    pub fn open(tx: &Tx<'_>, top: Ref<TableObject>, layout: Arc<Layout>) -> Result<UntypedTable, Error> {
        let declared = Declared::of(tx, top)?;
        UntypedTable::new(top, &declared, layout, |map| {
            Ok(tx.get(Ref::<MapNode>::new(map))?.shape()?.into_owned())
        })
    }

    /// The table of a declaration. `shape_of` gives the description of keys that a map's top node has.
    pub(super) fn new(
        top: Ref<TableObject>,
        declared: &Declared,
        layout: Arc<Layout>,
        mut shape_of: impl FnMut(Oref) -> Result<Vec<u8>, Error>,
    ) -> Result<UntypedTable, Error> {
        if declared.indexes.len() != declared.maps.len() || declared.class != layout.name() {
            return Err(Error::Corrupt(format!(
                "the table of {} declares {} indexes and has {}",
                declared.class,
                declared.indexes.len(),
                declared.maps.len()
            )));
        }
        let mut index = |words: &str, map: Oref| {
            let (words, is_building) = state_of(words);
            let (is_unique, fields) = match words.strip_prefix("unique ") {
                Some(fields) => (true, fields),
                None => (false, words),
            };
            let fields: Vec<String> = fields.split(", ").map(str::to_owned).collect();
            let place = |name: &String| layout.fields().iter().position(|p| p.name == *name);
            let places = fields.iter().map(place).collect::<Option<Vec<_>>>().ok_or_else(|| {
                let class = &declared.class;
                Error::Schema(format!("the table has a key of {words}, and its class {class} no such field"))
            })?;
            let kind = Kind::of_references(&shape_of(map)?).ok_or_else(|| {
                Error::Corrupt(format!("the map {map} has keys that this version does not know"))
            })?;
            Ok::<_, Error>(UntypedIndex {
                fields,
                is_unique,
                building: is_building.then(|| declared.build.as_ref().map_or(0, |(_, rows)| *rows)),
                words: words.to_owned(),
                map: Ref::new(map),
                places,
                kind,
            })
        };
        let mut key = index(&declared.key, declared.rows)?;
        key.is_unique = true;
        let indexes = declared.indexes.iter().zip(&declared.maps).map(|(words, map)| index(words, *map));
        let indexes = indexes.collect::<Result<Vec<_>, _>>()?;
        Ok(UntypedTable { class: declared.class.clone(), layout, key, indexes, top })
    }

    /// All rows in the order of an index, or of the key.
    ///
    /// # Errors
    /// `Schema` if the index is being built.
    pub fn entries(&self, index: &UntypedIndex) -> Result<Entries, Error> {
        match index.building {
            None => {
                let (low, high) = (Bound::Unbounded, Bound::Unbounded);
                Ok(Entries { map: index.map, kind: index.kind, low, high, is_backwards: false })
            }
            Some(rows) => Err(being_built(&self.class, &index.words, rows)),
        }
    }

    /// Sees that the indexes are those that the table has, now and when the transaction commits.
    fn must_stand(&self, tx: &Tx<'_>) -> Result<(), Error> {
        tx.must_stand(self.top.oref());
        let now = Declared::of(tx, self.top)?;
        let has = |index: &UntypedIndex, words: &str, map: Oref| {
            index.words == state_of(words).0 && index.map() == map
        };
        let is_same = now.maps.len() == self.indexes.len()
            && self
                .indexes
                .iter()
                .zip(now.indexes.iter().zip(now.maps))
                .all(|(index, (words, map))| has(index, words, map));
        match is_same {
            true => Ok(()),
            false => Err(Error::Schema(format!(
                "the table of {} was given other indexes meanwhile: run the same command again for the rest",
                self.class
            ))),
        }
    }

    /// The body of a row as the class is written today.
    pub(super) fn current(&self, of: &Layout, body: &[u8]) -> Result<Vec<u8>, Error> {
        if *of == *self.layout {
            return Ok(body.to_vec());
        }
        self.layout.accepts(of).map_err(|e| Error::Schema(e.to_string()))?;
        self.encoded(|e| convert(of, body, &self.layout, e, |_, _| false))
    }

    /// A body whose large parts are not made: for keys, which have none.
    fn encoded(&self, fill: impl FnOnce(&mut Encoder<'_>)) -> Result<Vec<u8>, Error> {
        let mut nowhere = Nowhere;
        let mut e = Encoder::new(self.layout.size(), &mut nowhere);
        fill(&mut e);
        let mut object = e.finish(ClassId(0))?;
        object.drain(..HEADER_BYTES);
        Ok(object)
    }

    /// The row's own key.
    pub(super) fn own_key(&self, body: &[u8]) -> Result<Vec<u8>, Error> {
        let (mut shape, mut key) = (self.key.kind.shape.as_bytes(), Vec::new());
        put_fields(&mut shape, &self.layout, body, &self.key.places, Form::Last, &mut key)
            .map_err(|_| self.unlike(&self.key))?;
        Ok(key)
    }

    /// The key that a row has in an index.
    pub(super) fn index_key(&self, index: &UntypedIndex, body: &[u8]) -> Result<Vec<u8>, Error> {
        let (mut shape, mut key) = (index.kind.shape.as_bytes(), Vec::new());
        let made = if index.is_unique {
            put_fields(&mut shape, &self.layout, body, &index.places, Form::Last, &mut key)
        } else {
            tuple(&mut shape, 2)
                .and_then(|()| {
                    put_fields(&mut shape, &self.layout, body, &index.places, Form::Inner, &mut key)
                })
                .and_then(|()| {
                    put_fields(&mut shape, &self.layout, body, &self.key.places, Form::Last, &mut key)
                })
        };
        made.map_err(|_| self.unlike(index)).map(|()| key)
    }

    #[cold]
    fn unlike(&self, index: &UntypedIndex) -> Error {
        Error::Schema(format!(
            "the table's key of {} is {}, and the class {} has other types there: use the program's own version",
            index.words, index.kind.shape, self.class
        ))
    }

    /// A row with these fields, ready to be inserted. The error says, to its author, what is odd.
    pub fn row(&self, datum: Datum) -> Result<UntypedRow, String> {
        let mut odd = None;
        let body = self.encoded(|e| odd = datum::put(&self.layout, &datum, e).err());
        if let Some(odd) = odd {
            return Err(odd.to_string());
        }
        let keys = || {
            let body = body?;
            let key = self.own_key(&body)?;
            let keys = self.indexes.iter().map(|index| self.index_key(index, &body));
            let keys = keys.collect::<Result<Vec<_>, _>>()?;
            keys.iter().chain([&key]).try_for_each(|key| check(key))?;
            Ok::<_, Error>((key, keys))
        };
        let (key, keys) = keys().map_err(|e| e.to_string())?;
        Ok(UntypedRow { datum, key, keys })
    }

    fn create(&self, tx: &Tx<'_>, row: &UntypedRow) -> Result<Item, Error> {
        // It was put once already.
        let fill = |e: &mut Encoder<'_>| _ = datum::put(&self.layout, &row.datum, e);
        create_stored(tx, &self.layout, fill).map(Item::Reference)
    }

    /// Inserts rows as [`Table::insert_all`](super::Table::insert_all) does, by the same code.
    ///
    /// # Errors
    /// `Taken` if a key is there already, or twice among them; the transaction can only be dropped then.
    pub fn insert_all(&self, tx: &Tx<'_>, rows: &[UntypedRow]) -> Result<(), Error> {
        self.must_stand(tx)?;
        whole(tx, || {
            let items = rows.iter().map(|row| self.create(tx, row)).collect::<Result<Vec<_>, _>>()?;
            let entries = |key: &dyn Fn(&UntypedRow) -> Vec<u8>| {
                rows.iter().map(key).zip(items.iter().cloned()).collect::<Vec<_>>()
            };
            let of = |index: &UntypedIndex, entries| {
                let fields = index.fields.join(", ");
                insert_sorted(tx, index.map, &index.kind, &self.class, &fields, entries)
            };
            of(&self.key, entries(&|row| row.key.clone()))?;
            let mut indexes = self.indexes.iter().enumerate();
            indexes.try_for_each(|(i, index)| of(index, entries(&|row| row.keys[i].clone())))
        })
    }

    /// Inserts a row, as [`Table::insert`](super::Table::insert) does.
    ///
    /// # Errors
    /// `Taken` if a key is there already: then nothing was changed, and the transaction can go on.
    pub fn insert(&self, tx: &Tx<'_>, row: &UntypedRow) -> Result<(), Error> {
        self.must_stand(tx)?;
        if look_up(tx, self.key.map, &self.key.kind, &row.key)?.is_some() {
            return Err(taken(&self.class, &self.key.fields.join(", "), &self.key.kind, &row.key));
        }
        for (index, key) in self.indexes.iter().zip(&row.keys) {
            let fields = index.fields.join(", ");
            must_be_free(tx, index.map, &index.kind, index.is_unique, &self.class, &fields, key)?;
        }
        whole(tx, || {
            let item = self.create(tx, row)?;
            change::insert(tx, self.key.map, &self.key.kind, &row.key, &item)?;
            for (index, key) in self.indexes.iter().zip(&row.keys) {
                change::insert(tx, index.map, &index.kind, key, &item)?;
            }
            Ok(())
        })
    }

    /// A row as it is stored, by the class as it is written today, with its large parts.
    ///
    /// # Errors
    /// As those of a transaction that reads; `Corrupt` if there is no such row.
    pub fn read(&self, tx: &Tx<'_>, row: Oref) -> Result<Datum, Error> {
        let damaged = |what: &str| Error::Corrupt(format!("the row {row} of a table {what}"));
        let (layout, object) = stored(tx, row)?.ok_or_else(|| damaged("is missing"))?;
        if layout.name() != self.class {
            return Err(damaged(&format!("is a {} of number {}", layout.name(), class_of(&object).0)));
        }
        let body = &object[HEADER_BYTES..];
        let current = match *layout == *self.layout {
            true => body.to_vec(),
            false => self.current(&layout, body)?,
        };
        stored_fields(tx, &self.layout, &current).map(Datum::Map)
    }
}

/// Entries of a map between two keys, without its types.
#[derive(Debug, Clone)]
pub struct Entries {
    map: Ref<MapNode>,
    kind: Kind,
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    is_backwards: bool,
}

/// Some entries of a map, each with its key, and the place where the others begin.
#[derive(Debug)]
pub struct EntryPage {
    /// The keys as values, and what they name.
    pub entries: Vec<(Datum, RawValue)>,
    /// The place behind them; none if no more come.
    pub next: Option<Cursor>,
}

impl Entries {
    /// All entries of a map or set.
    ///
    /// # Errors
    /// `Corrupt` if the map has keys that this version does not know; those of [`Tx::get`].
    pub fn of_map(tx: &Tx<'_>, map: Ref<MapNode>) -> Result<Entries, Error> {
        let shape = tx.get(map)?.shape()?.into_owned();
        let kind = Kind::of(&shape).ok_or_else(|| {
            Error::Corrupt(format!("the map {} has keys that this version does not know", map.oref()))
        })?;
        let (low, high) = (Bound::Unbounded, Bound::Unbounded);
        Ok(Entries { map, kind, low, high, is_backwards: false })
    }

    /// Those whose first parts have these values, in the order of the fields; all parts of a key, or some. Of
    /// the part behind them, those from a value, and those before another one.
    ///
    /// # Errors
    /// A sentence that says what is wanted.
    pub fn with(
        mut self,
        index: &UntypedIndex,
        values: &[Datum],
        from: Option<&Datum>,
        to: Option<&Datum>,
    ) -> Result<Entries, String> {
        let mut shape = self.kind.shape.as_bytes();
        let unknown = |_| "the key has other parts".to_owned();
        if !index.is_unique {
            tuple(&mut shape, 2).map_err(unknown)?;
        }
        if index.fields.len() > 1 {
            tuple(&mut shape, index.fields.len()).map_err(unknown)?;
        }
        let is_whole = index.is_unique && values.len() == index.fields.len();
        let mut key = Vec::new();
        for (i, value) in values.iter().enumerate() {
            let form = if is_whole && i + 1 == values.len() { Form::Last } else { Form::Inner };
            put_datum(&mut shape, value, form, &mut key)
                .map_err(|e| format!("{}: {e}", index.fields.get(i).map_or("a field", String::as_str)))?;
        }
        (self.low, self.high) = match is_whole {
            true => (Bound::Included(key.clone()), Bound::Included(key.clone())),
            false => with_prefix(&key),
        };
        let is_last = index.is_unique && values.len() + 1 == index.fields.len();
        let bound = |value: Option<&Datum>| {
            let Some(value) = value else { return Ok(None) };
            let field = index.fields.get(values.len()).ok_or("the index has no field behind these")?;
            let (mut shape, mut key) = (shape, key.clone());
            let form = if is_last { Form::Last } else { Form::Inner };
            put_datum(&mut shape, value, form, &mut key).map_err(|e| format!("{field}: {e}"))?;
            Ok::<_, String>(Some(key))
        };
        if let Some(from) = bound(from)? {
            self.low = Bound::Included(from);
        }
        if let Some(to) = bound(to)? {
            self.high = Bound::Excluded(to);
        }
        Ok(self)
    }

    /// Those from a key, and those before another one.
    ///
    /// # Errors
    /// A sentence that says what is wanted.
    pub fn between(mut self, from: Option<&Datum>, to: Option<&Datum>) -> Result<Entries, String> {
        let encode = |value: &Datum| {
            let (mut shape, mut key) = (self.kind.shape.as_bytes(), Vec::new());
            put_datum(&mut shape, value, Form::Last, &mut key).map(|()| key)
        };
        let low = from.map(&encode).transpose()?;
        let high = to.map(&encode).transpose()?;
        self.low = low.map_or(Bound::Unbounded, Bound::Included);
        self.high = high.map_or(Bound::Unbounded, Bound::Excluded);
        Ok(self)
    }

    /// The one with a key, if it is there.
    ///
    /// # Errors
    /// A sentence that says what is wanted.
    pub fn at(mut self, key: &Datum) -> Result<Entries, String> {
        let (mut shape, mut bytes) = (self.kind.shape.as_bytes(), Vec::new());
        put_datum(&mut shape, key, Form::Last, &mut bytes)?;
        (self.low, self.high) = (Bound::Included(bytes.clone()), Bound::Included(bytes));
        Ok(self)
    }

    /// The same, the last one first.
    #[must_use]
    pub fn backwards(self) -> Entries {
        Entries { is_backwards: true, ..self }
    }

    /// The types of the keys, and of values that stand in the map.
    pub fn types(&self) -> String {
        self.kind.shape.to_string()
    }

    /// A value that stands in the map; of a record, which nothing describes, its bytes.
    pub fn value(&self, bytes: &[u8]) -> Datum {
        let hex = || Datum::Text(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
        let Some(shape) = self.kind.value_shape() else { return hex() };
        let layout = Layout::new("value".into(), vec![("0".into(), shape)]);
        let mut body = bytes.to_vec();
        body.resize(padded(bytes.len()), 0);
        let read = layout.check(&body).ok().and_then(|()| datum::read(&layout, &body, &|_, _| None).ok());
        read.and_then(|fields| fields.into_iter().next()).map_or_else(hex, |(_, value)| value)
    }

    /// Reads them for a watch; none of a map or set whose keys lead to no objects.
    pub fn query(&self) -> Option<Box<dyn Query>> {
        let (low, high) = (self.low.clone(), self.high.clone());
        let is_of_objects = self.kind.contents == Contents::References;
        is_of_objects.then(|| Box::new(RangeQuery { top: self.map, kind: self.kind, low, high }) as _)
    }

    /// A key that a watch of them names, as a value; none if it is none of this map.
    pub fn key(&self, bytes: &[u8]) -> Option<Datum> {
        to_datum(self.kind.keys(), bytes)
    }

    /// Says whether the first part of the keys has parts of its own.
    pub fn has_parts(&self) -> bool {
        self.kind.shape.as_bytes().first().is_some_and(|code| (34..=36).contains(code))
    }

    /// The next entries, behind the place where a page ended.
    ///
    /// # Errors
    /// Those of [`Tx::get`]; `Corrupt` if a key is none.
    pub fn page(&self, tx: &Tx<'_>, after: Option<&Cursor>, entries_max: usize) -> Result<EntryPage, Error> {
        let mut walk = Walk::new(tx, self.map, &self.kind, self.low.clone(), self.high.clone());
        match after {
            Some(after) if self.is_backwards => walk.end_before(&after.0),
            Some(after) => walk.begin_behind(&after.0),
            None => {}
        }
        let (mut entries, mut last) = (Vec::new(), None);
        while entries.len() < entries_max {
            let read = |key: &[u8], leaf: &Node<'_>, i: usize| {
                let value = to_datum(self.kind.keys(), key).ok_or_else(|| leaf.damaged())?;
                last = Some(Cursor(key.to_vec()));
                Ok((value, leaf.item(i, &self.kind)?.into()))
            };
            let found = if self.is_backwards { walk.next_back(read)? } else { walk.next(read)? };
            let Some(entry) = found else { return Ok(EntryPage { entries, next: None }) };
            entries.push(entry);
        }
        Ok(EntryPage { entries, next: last })
    }
}

/// Has no place for large parts: they are measured, and left out.
struct Nowhere;

impl Spill for Nowhere {
    fn bytes(&mut self, _: &[u8]) -> Result<Oref, EncodeError> {
        Ok(Oref::NULL)
    }

    fn refs(&mut self, _: &[Oref]) -> Result<Oref, EncodeError> {
        Ok(Oref::NULL)
    }
}
