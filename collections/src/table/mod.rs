//! Tables: the rows of a class with indexes that its declaration names.
//!
//! A table is an object that leads to ordinary maps: one from the rows' keys to the rows, and one an index. A
//! row's entries change in the transaction that changes the row, by the code of this module, wherever that
//! runs. The invariant: every index has exactly one entry for each row, under the key that the row's fields
//! make. It rests on three rules:
//!
//! - Only [`Table`] makes, removes and changes rows. Editors of a class of rows have no setters of fields
//!   that an index or the key is made of, and the compiler refuses to replace a row as a whole.
//! - What can be refused (a key that is too long, or taken) is refused before anything is changed.
//! - Where a change begins and fails before its end, the transaction can no longer be committed.
//!
//! An index that is being built has entries for some rows alone, and no query uses it; rows change in it as
//! in the others, where they have an entry.
//!
//! An index that is not unique has keys of two parts, the index's own and the row's, so that rows of equal
//! keys stand side by side, in the order of their own keys.

#[doc(hidden)]
pub mod audit;
mod check;
mod declaration;
mod edit;
mod index;
mod migrate;
mod query;
mod rows;
#[doc(hidden)]
pub mod untyped;

use std::borrow::Borrow;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use tercel_derive::Object;
use tercel_engine::Error;
use tercel_engine::error::Taken;
use tercel_engine::object::Obj;
use tercel_engine::txn::{Change, Query, Tx};
use tercel_wire::record::{List, Ref, Text};

use crate::Load;
use crate::field::handle;
use crate::key::{self, Form, Key, Prefix, check};
use crate::map::items::{Item, Kind};
use crate::map::node::{Draft, MapNode, look_up};
use crate::map::walk::Walk;
use crate::map::{change, count, is_empty, with_prefix};

use declaration::state_of;
pub use declaration::{Declaration, IndexDeclaration, Row};
pub use edit::RowMut;
pub use index::{ByIndex, Index};
pub use migrate::TableBuild;
use query::RowsQuery;
pub use rows::{BadCursor, Cursor, Page, Rows};

/// The object of a table: what it was declared as, and its maps.
#[derive(Object)]
#[object(name = "collections.Table", crate = "::tercel_engine")]
pub struct TableObject {
    /// The class of the rows.
    pub(crate) class: Text,
    /// The fields of the rows' key, such as `event, seat`.
    pub(crate) key: Text,
    /// The fields of each index, behind `unique ` if it is, and behind `building ` while it is being built.
    pub(crate) declared: List<Text>,
    /// A number that is another one for other declarations, and while an index is being built.
    pub(crate) digest: u64,
    /// The rows by their keys.
    pub(crate) rows: Ref<MapNode>,
    /// The rows by each index, in the order of `declared`.
    pub(crate) indexes: List<Ref<MapNode>>,
    /// The state of the indexes that are being built; null if all are whole.
    pub(crate) build: Ref<TableBuild>,
}

/// The rows of class `T`, by their key and by the indexes that the class declares.
///
/// ```
/// use tercel::collections::Table;
/// use tercel::{Error, Object, Text};
///
/// #[derive(Object)]
/// #[table(key = id, index(event, price), unique(code))]
/// struct Seat {
///     id: u64,
///     event: u32,
///     price: u32,
///     code: Text,
///     sold: bool,
/// }
///
/// # let dir = std::env::temp_dir().join(format!("tercel-table-{}", std::process::id()));
/// # let space = tercel::embedded(&dir)?;
/// space.run(|tx| {
///     let seats = Table::<Seat>::root(tx, "seats")?;
///     for (id, price) in [(1, 900), (2, 4_000), (3, 900)] {
///         seats.insert(tx, &Seat { id, event: 5, price, code: format!("A{id}").into(), sold: false })?;
///     }
///     assert_eq!(seats.get(tx, 2)?.price(), 4_000);
///     // By an index: the first parts of its key, a range of keys, or one key.
///     let of_event = seats.by(Seat::BY_EVENT_PRICE).prefix(tx, (5,));
///     let ids = of_event.map(|seat| Ok(seat?.id())).collect::<Result<Vec<_>, Error>>()?;
///     assert_eq!(ids, [1, 3, 2]);
///     assert_eq!(seats.by(Seat::BY_EVENT_PRICE).range(tx, (5, 1_000)..(6, 0)).count(), 1);
///     assert_eq!(seats.by(Seat::BY_CODE).get(tx, "A3")?.id(), 3);
///     // The indexes follow; one that is unique refuses.
///     let seat = seats.edit(tx, 1)?;
///     seat.set_price(5_000)?;
///     let taken = seat.set_code("A2").unwrap_err();
///     assert_eq!(taken.to_string(), "another Seat has the code \"A2\", which must be unique");
///     let dearest = seats.by(Seat::BY_EVENT_PRICE).last(tx)?.expect("there are three");
///     assert_eq!(dearest.id(), 1);
///     assert!(seats.remove(tx, 3)?.is_some());
///     assert_eq!(seats.count(tx)?, 2);
///     Ok(())
/// })?;
/// # space.close()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It is a handle, as a [`Map`](crate::Map) is: a copy of a reference, which can be a field or a root.
///
/// # Limits
/// A key, and what stands in an index for a row, which is its key as well unless the index is unique, have at
/// most [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX) bytes.
///
/// # Errors
/// A method that reads fails with the errors of [`Tx::get`], and with `Schema` if the table was made with
/// other declarations, or the index is being built. A method that writes also fails with the errors of
/// [`Tx::create`]; with `Taken` if another row has the key, or a key of an index that is unique; with `Full`
/// if one is too long. If it failed because it was taken or too long, nothing was changed, and the
/// transaction can go on; otherwise the transaction can only be dropped.
pub struct Table<T> {
    top: Ref<TableObject>,
    contents: PhantomData<fn() -> T>,
}

handle!(Table<T: Row>, TableObject);

/// A table's object, of the declarations that the program has.
struct Opened<'t> {
    object: Obj<'t, TableObject>,
}

impl Opened<'_> {
    fn rows(&self) -> Ref<MapNode> {
        self.object.rows().reference()
    }

    /// An index, to change.
    fn index(&self, i: usize) -> Result<Ref<MapNode>, Error> {
        let damaged =
            || Error::Corrupt(format!("the table {} lacks index {i}", self.object.reference().oref()));
        self.object.indexes().get_ref(i)?.ok_or_else(damaged)
    }

    /// An index, to find rows in.
    fn whole_index<T: Row>(&self, i: usize) -> Result<Ref<MapNode>, Error> {
        match self.is_building::<T>(i)? {
            false => self.index(i),
            true => {
                let rows = self.object.build().get()?.rows();
                Err(being_built(T::TABLE.class, &T::TABLE.indexes[i].to_string(), rows))
            }
        }
    }

    fn is_building<T: Row>(&self, i: usize) -> Result<bool, Error> {
        Ok(self.object.digest() != T::DIGEST
            && self.object.declared().to_vec()?.get(i).is_some_and(|words| state_of(words).1))
    }
}

impl<T: Row> Table<T> {
    const KIND: &'static Kind = &Kind::references::<T::Key>();

    /// Makes an empty one.
    pub fn create(tx: &Tx<'_>) -> Result<Table<T>, Error> {
        // Tools go by the catalogue, also before the first row.
        tx.define::<T>()?;
        let rows = Draft::leaf(Self::KIND).make(tx)?;
        let make = |index: &'static IndexDeclaration| Draft::leaf(index.kind()).make(tx);
        let indexes = T::TABLE.indexes.iter().map(make).collect::<Result<Vec<_>, _>>()?;
        let declared = T::TABLE.indexes.iter().map(|index| index.to_string()).collect();
        Ok(Table::open(tx.create(&Self::object(rows, declared, indexes, Ref::NULL))?))
    }

    /// The object of a table: of `declared`, the words of its indexes, some are being built if there is a
    /// `build`.
    fn object(
        rows: Ref<MapNode>,
        declared: Vec<String>,
        indexes: Vec<Ref<MapNode>>,
        build: Ref<TableBuild>,
    ) -> TableObject {
        TableObject {
            class: T::TABLE.class.into(),
            key: T::TABLE.key.into(),
            declared: declared.into_iter().map(Text::from).collect(),
            digest: if build.is_null() { T::DIGEST } else { T::DIGEST_BUILDING },
            rows,
            indexes: List(indexes),
            build,
        }
    }

    /// The table that the root of this name leads to. Makes one, and the root, if there is none.
    pub fn root(tx: &Tx<'_>, name: &str) -> Result<Table<T>, Error> {
        if let Some(top) = tx.get_root_ref(name)? {
            return Ok(Table::open(top));
        }
        let table = Table::create(tx)?;
        tx.set_root(name, table.reference())?;
        Ok(table)
    }

    #[cold]
    fn of_other_declarations(&self, object: &Obj<'_, TableObject>) -> Result<Error, Error> {
        let declared = object.declared().to_vec()?;
        let declared = declared.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join("; ");
        let wanted = T::TABLE.indexes.iter().map(|index| index.to_string()).collect::<Vec<_>>().join("; ");
        let (top, class, key) = (self.top.oref(), object.class()?, object.key()?);
        Ok(Error::Schema(format!(
            "the table {top} has rows of {class} by {key} with the indexes [{declared}], and the program declares {} by {} \
             with [{wanted}]: update the program, or have it bring the table in line with `Client::migrate`",
            T::TABLE.class,
            T::TABLE.key,
        )))
    }

    #[inline]
    fn opened<'t>(&self, tx: &'t Tx<'_>) -> Result<Opened<'t>, Error> {
        let object = tx.get(self.top)?;
        if object.digest() != T::DIGEST && object.digest() != T::DIGEST_BUILDING {
            return Err(self.of_other_declarations(&object)?);
        }
        Ok(Opened { object })
    }

    /// The same, to change rows: the commit fails if the indexes are others by then.
    fn opened_to_change<'t>(&self, tx: &'t Tx<'_>) -> Result<Opened<'t>, Error> {
        tx.must_stand(self.top.oref());
        self.opened(tx)
    }

    /// Inserts a row, and gives its reference.
    ///
    /// # Errors
    /// `Taken` if a row has its key, or a key of an index that is unique.
    pub fn insert(&self, tx: &Tx<'_>, row: &T) -> Result<Ref<T>, Error> {
        let table = self.opened_to_change(tx)?;
        let key = T::Key::encode(row.key());
        let key = key.as_ref();
        check(key)?;
        let mut keys = Vec::with_capacity(T::TABLE.indexes.len());
        for (i, index) in T::TABLE.indexes.iter().enumerate() {
            let of_index = declaration::index_key(row, i);
            if let Err(refused) = free::<T>(tx, table.index(i)?, index, &of_index) {
                // Of a row that is there already, its own key is told.
                let is_there = look_up(tx, table.rows(), Self::KIND, key)?.is_some();
                return Err(if is_there {
                    taken(T::TABLE.class, T::TABLE.key, Self::KIND, key)
                } else {
                    refused
                });
            }
            keys.push(of_index);
        }
        let mut made = Ref::NULL;
        let is_new = whole(tx, || {
            let make = || {
                made = tx.create(row)?;
                Ok(Item::Reference(made.cast()))
            };
            if !change::insert_new(tx, table.rows(), Self::KIND, key, make)? {
                return Ok(false);
            }
            let item = Item::Reference(made.cast());
            for (i, key) in keys.iter().enumerate() {
                change::insert(tx, table.index(i)?, T::TABLE.indexes[i].kind(), key, &item)?;
            }
            Ok(true)
        })?;
        if is_new { Ok(made) } else { Err(taken(T::TABLE.class, T::TABLE.key, Self::KIND, key)) }
    }

    /// Inserts rows, in any order: entries of one leaf are one change of it, so that a thousand rows at once
    /// are some times cheaper than one after the other.
    ///
    /// # Errors
    /// `Taken` as [`Table::insert`]; the transaction can only be dropped then, too.
    pub fn insert_all(
        &self,
        tx: &Tx<'_>,
        rows: impl IntoIterator<Item = impl Borrow<T>>,
    ) -> Result<(), Error> {
        let table = self.opened_to_change(tx)?;
        let mut by_key = Vec::new();
        let mut by_index = vec![Vec::new(); T::TABLE.indexes.len()];
        whole(tx, || {
            for row in rows {
                let row = row.borrow();
                let mut key = Vec::new();
                T::Key::put(row.key(), Form::Last, &mut key);
                check(&key)?;
                let keys = (0..by_index.len()).map(|i| declaration::index_key(row, i)).collect::<Vec<_>>();
                keys.iter().try_for_each(|key| check(key))?;
                let item = Item::Reference(tx.create(row)?.cast());
                by_index.iter_mut().zip(keys).for_each(|(entries, key)| entries.push((key, item.clone())));
                by_key.push((key, item));
            }
            insert_sorted(tx, table.rows(), Self::KIND, T::TABLE.class, T::TABLE.key, by_key)?;
            for (i, entries) in by_index.into_iter().enumerate() {
                let index = &T::TABLE.indexes[i];
                insert_sorted(tx, table.index(i)?, index.kind(), T::TABLE.class, index.fields, entries)?;
            }
            Ok(())
        })
    }

    /// Takes the row with the key out of the table and its indexes; gives its reference, none if there is no
    /// such row.
    pub fn remove(&self, tx: &Tx<'_>, key: <T::Key as Key>::Arg<'_>) -> Result<Option<Ref<T>>, Error> {
        let Some(row) = self.find(tx, key)? else { return Ok(None) };
        let table = self.opened_to_change(tx)?;
        let stored = Obj::stored(&row);
        let keys = (0..T::TABLE.indexes.len()).map(|i| declaration::stored_index_key::<T>(&stored, i));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let key = T::Key::encode(key);
        whole(tx, || {
            change::remove(tx, table.rows(), Self::KIND, key.as_ref())?;
            for (i, key) in keys.iter().enumerate() {
                // While a unique index is being built, the key may be that of another row.
                let own = |item: &Item| *item == Item::Reference(row.reference().cast());
                change::remove_if(tx, table.index(i)?, T::TABLE.indexes[i].kind(), key, own)?;
            }
            Ok(Some(row.reference()))
        })
    }

    /// The row with the key, to change: setters for all fields but those of the key.
    ///
    /// # Errors
    /// `NotFound` if there is no such row.
    pub fn edit<'t>(&self, tx: &'t Tx<'_>, key: <T::Key as Key>::Arg<'_>) -> Result<T::Edit<'t>, Error> {
        tx.must_stand(self.top.oref());
        let raw = self.get(tx, key)?.edit_raw()?;
        Ok(T::guard(RowMut::new(*self, raw)))
    }

    /// The row with the key.
    ///
    /// # Errors
    /// `NotFound` if there is no such row.
    pub fn get<'t>(&self, tx: &'t Tx<'_>, key: <T::Key as Key>::Arg<'_>) -> Result<Obj<'t, T>, Error> {
        let missing = || {
            let bytes = T::Key::encode(key);
            let key = shown(Self::KIND, bytes.as_ref());
            Error::NotFound(format!("a {} with the {} {key}", T::TABLE.class, T::TABLE.key))
        };
        self.find(tx, key)?.ok_or_else(missing)
    }

    /// The row with the key; none if there is none.
    pub fn find<'t>(
        &self,
        tx: &'t Tx<'_>,
        key: <T::Key as Key>::Arg<'_>,
    ) -> Result<Option<Obj<'t, T>>, Error> {
        let table = self.opened(tx)?;
        match look_up(tx, table.rows(), Self::KIND, T::Key::encode(key).as_ref())? {
            Some((leaf, i)) => leaf.values().cast::<T>().get(i).map(Some),
            None => Ok(None),
        }
    }

    /// The reference of the row with the key; none if there is none. The row itself is not read.
    pub fn get_ref(&self, tx: &Tx<'_>, key: <T::Key as Key>::Arg<'_>) -> Result<Option<Ref<T>>, Error> {
        let table = self.opened(tx)?;
        match look_up(tx, table.rows(), Self::KIND, T::Key::encode(key).as_ref())? {
            Some((leaf, i)) => leaf.value(i).map(|row| Some(row.cast())),
            None => Ok(None),
        }
    }

    /// Says whether there is a row with the key.
    pub fn contains(&self, tx: &Tx<'_>, key: <T::Key as Key>::Arg<'_>) -> Result<bool, Error> {
        Ok(self.get_ref(tx, key)?.is_some())
    }

    /// The rows by an index of their class, a constant that its declaration makes: `Seat::BY_EVENT_PRICE` of
    /// `index(event, price)`.
    pub fn by<K: Key>(&self, index: Index<T, K>) -> ByIndex<T, K> {
        ByIndex::new(*self, index)
    }

    /// All rows in the order of their keys, from both ends.
    pub fn iter<'t>(&self, tx: &'t Tx<'_>) -> Rows<'t, T> {
        self.between(tx, Bound::Unbounded, Bound::Unbounded)
    }

    /// The rows whose keys are in `range`, from both ends.
    pub fn range<'t, 'k>(
        &self,
        tx: &'t Tx<'_>,
        range: impl RangeBounds<<T::Key as Key>::Arg<'k>>,
    ) -> Rows<'t, T> {
        let own = |key: &<T::Key as Key>::Arg<'k>| T::Key::encode(*key).as_ref().to_vec();
        self.between(tx, range.start_bound().map(own), range.end_bound().map(own))
    }

    /// The rows whose keys begin with `prefix`, in order, from both ends.
    pub fn prefix<'t>(&self, tx: &'t Tx<'_>, prefix: impl Prefix<T::Key>) -> Rows<'t, T> {
        let mut bytes = Vec::new();
        prefix.put_prefix(&mut bytes);
        let (low, high) = with_prefix(&bytes);
        self.between(tx, low, high)
    }

    fn between<'t>(&self, tx: &'t Tx<'_>, low: Bound<Vec<u8>>, high: Bound<Vec<u8>>) -> Rows<'t, T> {
        Rows::new(self.opened(tx).map(|table| Walk::new(tx, table.rows(), Self::KIND, low, high)))
    }

    /// Reads the rows in a range of their keys: what a watch of the range runs.
    #[doc(hidden)]
    pub fn query<'k>(&self, range: impl RangeBounds<<T::Key as Key>::Arg<'k>>) -> Box<dyn Query> {
        let own = |key: &<T::Key as Key>::Arg<'k>| T::Key::encode(*key).as_ref().to_vec();
        let (low, high) = (range.start_bound().map(own), range.end_bound().map(own));
        Box::new(RowsQuery { table: *self, index: None, low, high })
    }

    /// The key of the row that a change of a watch of rows names; none where a whole range may have changed.
    ///
    /// # Errors
    /// `Corrupt` if the change is of something else.
    pub fn key_of(&self, change: &Change) -> Result<Option<T::Key>, Error> {
        change.key.as_deref().map(T::Key::decode).transpose()
    }

    /// The row with the least key.
    pub fn first<'t>(&self, tx: &'t Tx<'_>) -> Result<Option<Obj<'t, T>>, Error> {
        self.iter(tx).next().transpose()
    }

    /// The row with the greatest key.
    pub fn last<'t>(&self, tx: &'t Tx<'_>) -> Result<Option<Obj<'t, T>>, Error> {
        self.iter(tx).next_back().transpose()
    }

    /// The number of rows, by going to every leaf of the keys and to no row. The transaction then has read
    /// all keys.
    pub fn count(&self, tx: &Tx<'_>) -> Result<usize, Error> {
        count(tx, self.opened(tx)?.rows(), Self::KIND)
    }

    /// Says whether there are no rows.
    pub fn is_empty(&self, tx: &Tx<'_>) -> Result<bool, Error> {
        is_empty(tx, self.opened(tx)?.rows(), Self::KIND)
    }
}

impl<T: Row> Load for Table<T> {
    type Entry = T;

    fn insert_batch(&self, tx: &Tx<'_>, rows: &[T]) -> Result<(), Error> {
        self.insert_all(tx, rows)
    }
}

/// Makes a change of several maps whose end must be reached, or the transaction must not be committed.
fn whole<R>(tx: &Tx<'_>, change: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
    change().inspect_err(|_| tx.tear())
}

/// Fails if the key of an index is too long, or there already where the index is unique.
fn free<T: Row>(
    tx: &Tx<'_>,
    map: Ref<MapNode>,
    index: &'static IndexDeclaration,
    key: &[u8],
) -> Result<(), Error> {
    must_be_free(tx, map, index.kind(), index.is_unique, T::TABLE.class, index.fields, key)
}

/// The same of an index that is declared by these words.
fn must_be_free(
    tx: &Tx<'_>,
    map: Ref<MapNode>,
    kind: &Kind,
    is_unique: bool,
    class: &str,
    fields: &str,
    key: &[u8],
) -> Result<(), Error> {
    check(key)?;
    if is_unique && look_up(tx, map, kind, key)?.is_some() {
        return Err(taken(class, fields, kind, key));
    }
    Ok(())
}

/// Inserts entries that come in any order.
fn insert_sorted(
    tx: &Tx<'_>,
    map: Ref<MapNode>,
    kind: &Kind,
    class: &str,
    fields: &str,
    mut entries: Vec<(Vec<u8>, Item)>,
) -> Result<(), Error> {
    if !entries.is_sorted_by(|(a, _), (b, _)| a <= b) {
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
    match change::insert_all(tx, map, kind, &entries, false)? {
        None => Ok(()),
        Some(i) => Err(taken(class, fields, kind, &entries[i].0)),
    }
}

#[cold]
fn taken(class: &str, fields: &str, kind: &Kind, key: &[u8]) -> Error {
    let (class, index, key) = (class.into(), fields.into(), shown(kind, key));
    Error::Taken(Box::new(Taken { class, index, key, rows: None }))
}

/// The refusal of a query by an index that is being built.
#[cold]
fn being_built(class: &str, words: &str, rows: u64) -> Error {
    Error::Schema(format!(
        "the index {words} of {class} is being built (rows so far: {rows}): ask by another one, or when `Client::migrate` has \
         come to its end"
    ))
}

fn shown(kind: &Kind, key: &[u8]) -> String {
    key::show(kind.shape.as_bytes(), key).unwrap_or_else(|| format!("{key:02x?}"))
}
