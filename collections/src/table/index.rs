//! The rows of a table by an index.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use tercel_engine::Error;
use tercel_engine::object::Obj;
use tercel_engine::txn::{Change, Query, Tx};

use super::declaration::IndexDeclaration;
use super::query::RowsQuery;
use super::{Row, Rows, Table};
use crate::key::{Form, Key, Prefix};
use crate::map::walk::Walk;
use crate::map::with_prefix;

/// An index of the rows of class `T`, with keys of type `K`: a constant that the class's declaration makes.
pub struct Index<T, K> {
    number: usize,
    of: PhantomData<fn() -> (T, K)>,
}

impl<T: Row, K: Key> Index<T, K> {
    /// The index of that number. For derived code.
    #[doc(hidden)]
    pub const fn new(number: usize) -> Index<T, K> {
        Index { number, of: PhantomData }
    }
}

impl<T, K> Clone for Index<T, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, K> Copy for Index<T, K> {}

/// The rows of a [`Table`] in the order of an index. Rows of equal keys come in the order of their own.
pub struct ByIndex<T, K> {
    table: Table<T>,
    index: Index<T, K>,
}

impl<T, K> Clone for ByIndex<T, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, K> Copy for ByIndex<T, K> {}

type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

impl<T: Row, K: Key> ByIndex<T, K> {
    pub(super) fn new(table: Table<T>, index: Index<T, K>) -> Self {
        ByIndex { table, index }
    }

    fn declared(&self) -> &'static IndexDeclaration {
        &T::TABLE.indexes[self.index.number]
    }

    fn walk<'t>(&self, tx: &'t Tx<'_>, (low, high): Bounds) -> Result<Walk<'t>, Error> {
        let map = self.table.opened(tx)?.whole_index::<T>(self.index.number)?;
        Ok(Walk::new(tx, map, self.declared().kind(), low, high))
    }

    fn bounds<'k>(&self, range: &impl RangeBounds<K::Arg<'k>>) -> Bounds {
        let is_unique = self.declared().is_unique;
        let bytes = |key: &K::Arg<'k>| {
            let mut bytes = Vec::new();
            K::put(*key, if is_unique { Form::Last } else { Form::Inner }, &mut bytes);
            bytes
        };
        if is_unique {
            return (range.start_bound().map(bytes), range.end_bound().map(bytes));
        }
        // The keys of rows stand behind those of the index: all that begin with a key are at it.
        let behind = |key| with_prefix(&bytes(key)).1;
        let low = match range.start_bound() {
            Bound::Excluded(key) => match behind(key) {
                Bound::Excluded(next) => Bound::Included(next),
                // Nothing is greater than all that begin with it.
                _ => Bound::Excluded(vec![u8::MAX; crate::KEY_BYTES_MAX]),
            },
            other => other.map(bytes),
        };
        let high = match range.end_bound() {
            Bound::Included(key) => behind(key),
            other => other.map(bytes),
        };
        (low, high)
    }

    fn rows<'t>(&self, tx: &'t Tx<'_>, bounds: Bounds) -> Rows<'t, T> {
        Rows::new(self.walk(tx, bounds))
    }

    /// All rows, from both ends.
    pub fn iter<'t>(&self, tx: &'t Tx<'_>) -> Rows<'t, T> {
        self.rows(tx, (Bound::Unbounded, Bound::Unbounded))
    }

    /// The rows whose keys in the index are in `range`, from both ends.
    pub fn range<'t, 'k>(&self, tx: &'t Tx<'_>, range: impl RangeBounds<K::Arg<'k>>) -> Rows<'t, T> {
        self.rows(tx, self.bounds(&range))
    }

    /// The rows whose keys in the index begin with `prefix`, from both ends: `(5,)` of an index of two
    /// fields, or the beginning of a text.
    pub fn prefix<'t>(&self, tx: &'t Tx<'_>, prefix: impl Prefix<K>) -> Rows<'t, T> {
        let mut bytes = Vec::new();
        prefix.put_prefix(&mut bytes);
        self.rows(tx, with_prefix(&bytes))
    }

    /// The rows that have this key in the index, from both ends.
    pub fn at<'t>(&self, tx: &'t Tx<'_>, key: K::Arg<'_>) -> Rows<'t, T> {
        self.range(tx, key..=key)
    }

    /// Reads the rows in a range of the index: what a watch of the range runs.
    #[doc(hidden)]
    pub fn query<'k>(&self, range: impl RangeBounds<K::Arg<'k>>) -> Box<dyn Query> {
        self.query_bytes(self.bounds(&range))
    }

    /// [`ByIndex::query`] of the keys that begin with `prefix`.
    #[doc(hidden)]
    pub fn query_prefix(&self, prefix: impl Prefix<K>) -> Box<dyn Query> {
        let mut bytes = Vec::new();
        prefix.put_prefix(&mut bytes);
        self.query_bytes(with_prefix(&bytes))
    }

    fn query_bytes(&self, (low, high): Bounds) -> Box<dyn Query> {
        Box::new(RowsQuery { table: self.table, index: Some(self.index.number), low, high })
    }

    /// The key in the index that a change of a watch of its rows names; none where a whole range may have
    /// changed. A row whose key becomes another one is gone under the one and comes under the other.
    ///
    /// # Errors
    /// `Corrupt` if the change is of something else.
    pub fn key_of(&self, change: &Change) -> Result<Option<K>, Error> {
        let Some(bytes) = change.key.as_deref() else { return Ok(None) };
        if self.declared().is_unique {
            return K::decode(bytes).map(Some);
        }
        // The key of the row stands behind it.
        let key = K::take(&mut &*bytes, Form::Inner);
        let index = self.declared().fields;
        let damaged = |_| Error::Corrupt(format!("a key of the index {index} is none: it is {bytes:02x?}"));
        key.map(Some).map_err(damaged)
    }

    /// The first row that has this key in the index.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn get<'t>(&self, tx: &'t Tx<'_>, key: K::Arg<'_>) -> Result<Obj<'t, T>, Error> {
        let missing = || {
            let mut bytes = Vec::new();
            K::put(key, Form::Last, &mut bytes);
            let key =
                crate::key::show(K::SHAPE.as_bytes(), &bytes).unwrap_or_else(|| format!("{bytes:02x?}"));
            Error::NotFound(format!("a {} with the {} {key}", T::TABLE.class, self.declared().fields))
        };
        self.find(tx, key)?.ok_or_else(missing)
    }

    /// The first row that has this key in the index; none if there is none.
    pub fn find<'t>(&self, tx: &'t Tx<'_>, key: K::Arg<'_>) -> Result<Option<Obj<'t, T>>, Error> {
        self.at(tx, key).next().transpose()
    }

    /// The row with the least key.
    pub fn first<'t>(&self, tx: &'t Tx<'_>) -> Result<Option<Obj<'t, T>>, Error> {
        self.iter(tx).next().transpose()
    }

    /// The row with the greatest key.
    pub fn last<'t>(&self, tx: &'t Tx<'_>) -> Result<Option<Obj<'t, T>>, Error> {
        self.iter(tx).next_back().transpose()
    }
}
