//! Comparing the indexes of a table with its rows.

use std::ops::Bound;

use tercel_engine::Error;
use tercel_engine::object::Obj;
use tercel_engine::txn::Tx;

use super::declaration::stored_index_key;
use super::{Row, Table, shown};
use crate::key::Form;
use crate::map::count;
use crate::map::node::look_up;
use crate::map::walk::Walk;

/// Differences that are told at most.
const DIFFERENCES_MAX: usize = 100;

impl<T: Row> Table<T> {
    /// Compares every index with the rows, and tells each difference in a sentence, 100 at most. There are
    /// none unless the space was damaged, or another program changed rows without their table. Of an index
    /// that is being built, rows may be missing which the build has not come to.
    ///
    /// It is one transaction, which reads all rows and indexes.
    pub fn check(&self, tx: &Tx<'_>) -> Result<Vec<String>, Error> {
        let table = self.opened(tx)?;
        let mut wrong = Vec::new();
        let (mut rows, mut entries_wanted) = (0, vec![0; T::TABLE.indexes.len()]);
        let next = table.object.build().find()?.map(|build| Ok::<_, Error>(build.next()?.into_owned()));
        let next = next.transpose()?;
        let mut walk = Walk::new(tx, table.rows(), Self::KIND, Bound::Unbounded, Bound::Unbounded);
        loop {
            let read = walk.next(|key, leaf, i| Ok((key.to_vec(), leaf.values().cast::<T>().get(i)?)));
            let Some((key, row)) = read? else { break };
            rows += 1;
            let (stored, oref) = (Obj::stored(&row), row.reference().oref());
            let mut own = Vec::new();
            T::put_stored_key(&stored, Form::Last, &mut own)?;
            if own != key {
                let (key, own) = (shown(Self::KIND, &key), shown(Self::KIND, &own));
                wrong.push(format!("the row {oref} has the key {own} and stands at {key}"));
            }
            for (i, index) in T::TABLE.indexes.iter().enumerate() {
                let key = stored_index_key::<T>(&stored, i)?;
                let found = look_up(tx, table.index(i)?, index.kind(), &key)?;
                let found = found.map(|(leaf, i)| leaf.value(i)).transpose()?;
                let is_there = found == Some(row.reference().cast());
                let may_lack = next.as_ref().is_some_and(|next| own >= *next) && table.is_building::<T>(i)?;
                entries_wanted[i] += usize::from(is_there || !may_lack);
                if !is_there && !may_lack {
                    let key = shown(index.kind(), &key);
                    let what = if found.is_some() { "another row" } else { "nothing" };
                    wrong
                        .push(format!("the index {index} has {what} at {key}, where the row {oref} belongs"));
                }
            }
            if wrong.len() >= DIFFERENCES_MAX {
                return Ok(wrong);
            }
        }
        for (i, index) in T::TABLE.indexes.iter().enumerate() {
            let entries = count(tx, table.index(i)?, index.kind())?;
            if entries != entries_wanted[i] {
                wrong.push(format!("the index {index} has {entries} entries, and the table {rows} rows"));
            }
        }
        Ok(wrong)
    }
}
