//! The rows of a range as a watch reads them: the entries of the keys' map, or of an index.

use std::ops::Bound;

use tercel_engine::Error;
use tercel_engine::txn::{Found, FoundIn, Query, Tx};
use tercel_wire::id::Oref;

use super::{Row, Table};
use crate::map::query::RangeQuery;

/// The query for the rows of a table in a range of their keys, or of those of an index.
pub(super) struct RowsQuery<T> {
    pub table: Table<T>,
    /// The number of the index; none for the keys of the rows.
    pub index: Option<usize>,
    pub low: Bound<Vec<u8>>,
    pub high: Bound<Vec<u8>>,
}

impl<T: Row> RowsQuery<T> {
    /// The same for the map that has the entries now: an index may be another one by then.
    fn in_map(&self, tx: &Tx<'_>) -> Result<RangeQuery, Error> {
        let table = self.table.opened(tx)?;
        let (top, kind) = match self.index {
            None => (table.rows(), Table::<T>::KIND),
            Some(i) => (table.whole_index::<T>(i)?, T::TABLE.indexes[i].kind()),
        };
        Ok(RangeQuery { top, kind: *kind, low: self.low.clone(), high: self.high.clone() })
    }
}

impl<T: Row> Query for RowsQuery<T> {
    fn run(&mut self, tx: &Tx<'_>) -> Result<Vec<FoundIn>, Error> {
        self.in_map(tx)?.run(tx)
    }

    fn outline(&mut self, tx: &Tx<'_>) -> Result<Option<Vec<Oref>>, Error> {
        self.in_map(tx)?.outline(tx)
    }

    fn part(&mut self, tx: &Tx<'_>, node: Oref) -> Result<Option<Found>, Error> {
        self.in_map(tx)?.part(tx, node)
    }
}
