//! Changing a row: a field that indexes are made of moves the row in them.

use tercel_engine::Error;
use tercel_engine::object::{Field, RawMut};
use tercel_wire::record::Ref;

use super::declaration::stored_index_key;
use super::{Row, Table, free, whole};
use crate::map::change;
use crate::map::items::Item;

/// The raw parts of an editor of a row. For derived code.
#[doc(hidden)]
pub struct RowMut<'t, T: Row> {
    table: Table<T>,
    raw: RawMut<'t, T>,
}

impl<'t, T: Row> RowMut<'t, T> {
    pub(super) fn new(table: Table<T>, raw: RawMut<'t, T>) -> Self {
        RowMut { table, raw }
    }

    /// The row's reference.
    pub fn reference(&self) -> Ref<T> {
        self.raw.reference()
    }

    /// The object's editor: for fields that no index is made of.
    pub fn raw(&self) -> &RawMut<'t, T> {
        &self.raw
    }

    /// Sets the field that begins at `at`, and moves the row in the indexes that are made of it.
    ///
    /// # Errors
    /// `Taken` or `Full` if an index refuses the row; then nothing was changed.
    pub fn set<F: Field>(&self, field: usize, at: usize, value: F, indexes: &[usize]) -> Result<(), Error> {
        let tx = self.raw.tx();
        let table = self.table.opened(tx)?;
        let keys = || {
            let stored = self.raw.stored()?;
            indexes.iter().map(|i| stored_index_key::<T>(&stored, *i)).collect::<Result<Vec<_>, _>>()
        };
        let before = keys()?;
        let old: F = self.raw.load(at)?;
        value.set_field(&self.raw, field, at)?;
        let judged = keys().and_then(|after| {
            let mut moves = Vec::new();
            for ((i, before), after) in indexes.iter().zip(before).zip(after) {
                if before != after {
                    let (map, index) = (table.index(*i)?, &T::TABLE.indexes[*i]);
                    free::<T>(tx, map, index, &after)?;
                    moves.push((table.is_building::<T>(*i)?, map, index.kind(), before, after));
                }
            }
            Ok(moves)
        });
        let moves = match judged {
            Ok(moves) => moves,
            Err(refused) => {
                // The field is as it was, or the transaction ends here.
                whole(tx, || old.set_field(&self.raw, field, at))?;
                return Err(refused);
            }
        };
        whole(tx, || {
            let item = Item::Reference(self.reference().cast());
            for (is_building, map, kind, before, after) in &moves {
                let removed = change::remove_if(tx, *map, kind, before, |there| *there == item)?;
                if removed.is_none() && !is_building {
                    return Err(Error::Corrupt(format!(
                        "the row {} is missing in an index of its table: `Table::check` tells of which",
                        self.reference().oref()
                    )));
                }
                change::insert(tx, *map, kind, after, &item)?;
            }
            Ok(())
        })
    }
}
