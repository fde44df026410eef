//! Bringing a table in line with a program's declarations: new indexes are built beside writers.
//!
//! The first step puts the declarations in place, and marks the new indexes as being built. From there on all
//! programs that may change rows keep those as they keep the others. Each further step puts the entries of
//! some rows there, in the order of the rows' keys, and the last one takes the marks away. The invariant: an
//! entry of an index that is being built is that of a row, and rows below the build's place have theirs. So a
//! build that was broken off goes on at its place, and two of them do no harm.
//!
//! The place has an object of its own, which no writer reads: a step conflicts with changes of its rows
//! alone.

use std::ops::Bound;

use tercel_derive::Object;
use tercel_engine::Error;
use tercel_engine::object::Obj;
use tercel_engine::txn::{Isolation, Tx};
use tercel_wire::record::{Bytes, Ref};

use super::declaration::{BUILDING, state_of, stored_index_key};
use super::{Row, Table, TableObject, shown, taken, whole};
use crate::key::{Form, KEY_BYTES_MAX, KeyTooLong, check};
use crate::map::change;
use crate::map::items::Item;
use crate::map::node::{Draft, look_up};
use crate::map::walk::Walk;

/// The state of a table's indexes that are being built.
#[derive(Object)]
#[object(name = "collections.TableBuild", crate = "::tercel_engine")]
pub struct TableBuild {
    /// The least key whose row may lack entries.
    pub(crate) next: Bytes,
    /// The number of rows that the build has gone through.
    pub(crate) rows: u64,
}

impl<T: Row> Table<T> {
    /// Takes one step to bring the table in line with the program's declarations, and gives the number of
    /// rows that were gone through in all; none if there is nothing to do. `Client::migrate` takes all steps,
    /// in transactions of their own.
    ///
    /// The first step drops indexes that are no longer declared, whose room the next collection gives back,
    /// and marks new ones as being built: queries by those are refused until the last step. Each step after
    /// it puts the entries of `rows_max` rows into them. Programs of these declarations may change rows
    /// meanwhile; others are refused.
    ///
    /// # Errors
    /// `Schema` if the class of the rows or their key is another one; `Invalid` under
    /// [`Isolation::Snapshot`]. `Taken` if two rows have the same key in an index that is unique, and
    /// `Schema` if a row's key there is too long: the index stays marked, all else of the table can be used,
    /// and the steps go on when the row was changed or removed. The transaction can only be dropped then.
    pub fn migrate_step(&self, tx: &Tx<'_>, rows_max: usize) -> Result<Option<u64>, Error> {
        if tx.isolation() == Isolation::Snapshot {
            let text =
                "a table is migrated by transactions whose reads are checked, not under snapshot isolation";
            return Err(Error::Invalid(text.into()));
        }
        let object = tx.get(self.top)?;
        if object.digest() == T::DIGEST {
            return Ok(None);
        }
        whole(tx, || match object.digest() == T::DIGEST_BUILDING {
            true => self.build(tx, &object, rows_max.max(1)),
            false => self.declare(tx, &object),
        })
        .map(Some)
    }

    /// Takes all [steps](Table::migrate_step) in this transaction. Returns whether there was anything to do.
    ///
    /// The transaction reads all rows: for some 100,000 of them.
    pub fn rebuild(&self, tx: &Tx<'_>) -> Result<bool, Error> {
        let mut has_changed = false;
        while self.migrate_step(tx, usize::MAX)?.is_some() {
            has_changed = true;
        }
        Ok(has_changed)
    }

    /// Puts the program's declarations in place. Indexes that the table has stay as they are, whole or not.
    fn declare(&self, tx: &Tx<'_>, object: &Obj<'_, TableObject>) -> Result<u64, Error> {
        if *object.class()? != *T::TABLE.class || *object.key()? != *T::TABLE.key {
            return Err(self.of_other_declarations(object)?);
        }
        tx.define::<T>()?;
        let (known, maps) = (object.declared().to_vec()?, object.indexes().references()?);
        let (mut declared, mut indexes, mut has_new) = (Vec::new(), Vec::new(), false);
        for index in T::TABLE.indexes {
            let words = index.to_string();
            match known.iter().zip(&maps).find(|(known, _)| state_of(known).0 == words) {
                Some((known, map)) => {
                    declared.push(known.0.clone());
                    indexes.push(*map);
                }
                None => {
                    declared.push(format!("{BUILDING}{words}"));
                    indexes.push(Draft::leaf(index.kind()).make(tx)?);
                    has_new = true;
                }
            }
        }
        let build = if has_new {
            // Indexes that were being built begin anew with it, and find their entries there.
            tx.create(&TableBuild { next: Bytes::default(), rows: 0 })?
        } else if declared.iter().any(|words| state_of(words).1) {
            object.build().reference()
        } else {
            Ref::NULL
        };
        tx.replace(self.top, &Self::object(object.rows().reference(), declared, indexes, build))?;
        if build.is_null() { Ok(0) } else { Ok(tx.get(build)?.rows()) }
    }

    /// Puts the entries of the next rows into the indexes that are being built.
    fn build(&self, tx: &Tx<'_>, object: &Obj<'_, TableObject>, rows_max: usize) -> Result<u64, Error> {
        let (declared, maps) = (object.declared().to_vec()?, object.indexes().references()?);
        let (rows, build) = (object.rows().reference(), object.build().get()?);
        let building = (0..maps.len().min(T::TABLE.indexes.len())).filter(|i| state_of(&declared[*i]).1);
        let mut parts: Vec<_> = building.map(|i| (i, Vec::new())).collect();
        let (mut next, mut n) = (build.next()?.into_owned(), 0);
        let mut walk = Walk::new(tx, rows, Self::KIND, Bound::Included(next.clone()), Bound::Unbounded);
        while n < rows_max {
            let read = walk.next(|key, leaf, at| Ok((key.to_vec(), leaf.values().cast::<T>().get(at)?)))?;
            let Some((key, row)) = read else { break };
            for (i, entries) in &mut parts {
                let key = stored_index_key::<T>(&Obj::stored(&row), *i)?;
                check(&key).or_else(|e| Err(Self::too_long(tx, row.reference(), *i, e)?))?;
                entries.push((key, Item::Reference(row.reference().cast())));
            }
            (next, n) = (key, n + 1);
        }
        for (i, mut entries) in parts {
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            let kind = T::TABLE.indexes[i].kind();
            if let Some(at) = change::insert_all(tx, maps[i], kind, &entries, false)? {
                let (key, item) = &entries[at];
                let other =
                    look_up(tx, maps[i], kind, key)?.map(|(leaf, at)| leaf.item(at, kind)).transpose()?;
                return Err(Self::shared(tx, i, key, [other.as_ref(), Some(item)])?);
            }
        }
        let done = build.rows() + n as u64;
        if n == rows_max {
            // The least key that is greater.
            next.push(0);
            tx.replace(build.reference(), &TableBuild { next: Bytes(next), rows: done })?;
        } else {
            let declared = declared.iter().map(|words| state_of(words).0.to_owned()).collect();
            tx.replace(self.top, &Self::object(rows, declared, maps, Ref::NULL))?;
        }
        Ok(done)
    }

    /// The error of two rows with the same key in an index that is unique.
    #[cold]
    fn shared(tx: &Tx<'_>, i: usize, key: &[u8], rows: [Option<&Item>; 2]) -> Result<Error, Error> {
        let own_key = |item: Option<&Item>| match item {
            Some(Item::Reference(row)) => Self::own_key(tx, row.cast()),
            _ => Ok(String::new()),
        };
        let (index, [one, other]) = (&T::TABLE.indexes[i], rows);
        let mut refused = taken(T::TABLE.class, index.fields, index.kind(), key);
        if let Error::Taken(taken) = &mut refused {
            taken.rows = Some([own_key(one)?, own_key(other)?]);
        }
        Ok(refused)
    }

    /// The error of a row whose key in an index has too many bytes.
    #[cold]
    fn too_long(tx: &Tx<'_>, row: Ref<T>, i: usize, e: KeyTooLong) -> Result<Error, Error> {
        let (row, class, index) = (Self::own_key(tx, row)?, T::TABLE.class, T::TABLE.indexes[i].fields);
        Ok(Error::Schema(format!(
            "the row {row} of {class} has a key of {} bytes in the index {index}, and at most {KEY_BYTES_MAX} fit: change or \
             remove it, and migrate the table again",
            e.bytes
        )))
    }

    /// A row's own key, as a program would write it.
    fn own_key(tx: &Tx<'_>, row: Ref<T>) -> Result<String, Error> {
        let mut own = Vec::new();
        T::put_stored_key(&Obj::stored(&tx.get(row)?), Form::Last, &mut own)?;
        Ok(shown(Self::KIND, &own))
    }
}
