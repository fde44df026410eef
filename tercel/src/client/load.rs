//! Loading many entries into a collection, and bringing a table in line with its program.

use tercel_collections::table::Row;
use tercel_collections::{Load, Table};

use super::Client;
use crate::Error;

/// Entries of one commit: with more, a commit takes longer than it saves.
const BATCH: usize = 1_000;

impl Client {
    /// Inserts any number of rows into a table, or entries into a [`Map`](crate::collections::Map) or
    /// [`Set`](crate::collections::Set), 1,000 a transaction, and gives how many. The entries of a
    /// transaction are sorted, so those of one leaf are one change of it; what comes in the order of the keys
    /// fills its leaves. The memory is that of 1,000 entries. `progress` gets the number of those that are
    /// stored.
    ///
    /// It is no build from the bottom: a collection with entries takes more, and others may use it meanwhile.
    ///
    /// ```
    /// use tercel::Object;
    /// use tercel::collections::Table;
    ///
    /// #[derive(Object)]
    /// #[table(key = id, index(price))]
    /// struct Seat {
    ///     id: u64,
    ///     price: u32,
    /// }
    ///
    /// # let dir = std::env::temp_dir().join(format!("tercel-load-{}", std::process::id()));
    /// # let space = tercel::embedded(&dir)?;
    /// let seats = space.run(|tx| Table::<Seat>::root(tx, "seats"))?;
    /// let rows = (0..2_500).rev().map(|id| Seat { id, price: 5_000 - id as u32 });
    /// let mut told = Vec::new();
    /// assert_eq!(space.load(seats, rows, |rows| told.push(rows))?, 2_500);
    /// assert_eq!(told, [1_000, 2_000, 2_500]);
    /// space.run(|tx| {
    ///     let cheapest = seats.by(Seat::BY_PRICE).first(tx)?.expect("there are 2,500");
    ///     assert_eq!((cheapest.id(), seats.count(tx)?), (2_499, 2_500));
    ///     Ok(())
    /// })?;
    /// # space.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Load::insert_batch`] and [`Client::run`]. What was told by `progress` is stored then, the rest is
    /// not.
    pub fn load<C: Load>(
        &self,
        into: C,
        entries: impl IntoIterator<Item = C::Entry>,
        mut progress: impl FnMut(u64),
    ) -> Result<u64, Error> {
        let (mut entries, mut stored) = (entries.into_iter(), 0);
        loop {
            let batch: Vec<C::Entry> = entries.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(stored);
            }
            self.run(|tx| into.insert_batch(tx, &batch))?;
            stored += batch.len() as u64;
            progress(stored);
        }
    }

    /// Brings a table in line with the program's declarations, while others use it: builds the indexes that
    /// are new from the rows, 1,000 a transaction, and drops those that are no longer declared. Returns
    /// whether there was anything to do. `progress` gets the number of rows that were gone through.
    ///
    /// From the first transaction on, programs of these declarations may change rows, and programs of others
    /// are refused. A query by an index that is being built is `Error::Schema` until the last transaction. A
    /// build that was broken off goes on where it was when this is called again, by any client, and two at
    /// once do no harm. The room of dropped indexes comes back with the next collection.
    ///
    /// ```
    /// use tercel::Object;
    /// use tercel::collections::Table;
    ///
    /// mod before {
    ///     #[derive(tercel::Object)]
    ///     #[table(key = id)]
    ///     pub struct Seat {
    ///         pub id: u64,
    ///         pub price: u32,
    ///     }
    /// }
    ///
    /// #[derive(Object)]
    /// #[table(key = id, index(price))]
    /// struct Seat {
    ///     id: u64,
    ///     price: u32,
    /// }
    ///
    /// # let dir = std::env::temp_dir().join(format!("tercel-migrate-{}", std::process::id()));
    /// let space = tercel::embedded(&dir)?;
    /// let seats = space.run(|tx| Table::<before::Seat>::root(tx, "seats"))?;
    /// space.load(seats, (0..1_500).map(|id| before::Seat { id, price: 5_000 - id as u32 }), |_| {})?;
    /// space.close()?;
    ///
    /// // The program of today.
    /// let space = tercel::embedded(&dir)?;
    /// let seats = space.run(|tx| Table::<Seat>::root(tx, "seats"))?;
    /// let mut told = Vec::new();
    /// assert!(space.migrate(seats, |rows| told.push(rows))?);
    /// assert_eq!(told, [0, 1_000, 1_500]);
    /// let cheapest = space.run(|tx| Ok(seats.by(Seat::BY_PRICE).first(tx)?.map(|seat| seat.id())))?;
    /// assert_eq!(cheapest, Some(1_499));
    /// # space.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Table::migrate_step`] and [`Client::run`]. If two rows share a key that must be unique, the error
    /// names both: change or remove one of them, which programs of these declarations can do, and call this
    /// again; or have a program of the older declarations call it, which drops the index.
    pub fn migrate<T: Row>(&self, table: Table<T>, mut progress: impl FnMut(u64)) -> Result<bool, Error> {
        let (mut rows_max, mut most, mut has_changed) = (BATCH, BATCH, false);
        loop {
            let mut is_again = false;
            let step = self.run(|tx| {
                // A transaction that lost to writers is run again with fewer rows.
                if std::mem::replace(&mut is_again, true) {
                    rows_max = (rows_max / 2).max(1);
                }
                table.migrate_step(tx, rows_max)
            });
            let step = match step {
                // The cache may have no room for as many.
                Err(Error::Full(_)) if rows_max > 1 => {
                    (rows_max, most) = (rows_max / 2, rows_max / 2);
                    continue;
                }
                step => step?,
            };
            let Some(rows) = step else { return Ok(has_changed) };
            progress(rows);
            (rows_max, has_changed) = ((rows_max * 2).min(most), true);
        }
    }
}
