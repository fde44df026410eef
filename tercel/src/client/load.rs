//! Loading many rows into a table.

use tercel_collections::Table;
use tercel_collections::table::Row;

use super::Client;
use crate::Error;

/// Rows of one commit: with more, a commit takes longer than it saves.
const BATCH_ROWS: usize = 1_000;

impl Client {
    /// Inserts any number of rows, 1,000 a transaction, and gives how many. The rows of a transaction are
    /// sorted, so those of one leaf are one change of it; rows in the order of their keys fill their leaves.
    /// The memory is that of 1,000 rows. `progress` gets the number of rows that are stored.
    ///
    /// It is no build from the bottom: a table with rows takes more, and others may use it meanwhile.
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
    /// As [`Table::insert_all`] and [`Client::run`]. What was told by `progress` is stored then, the rest is
    /// not.
    pub fn load<T: Row>(
        &self,
        table: Table<T>,
        rows: impl IntoIterator<Item = T>,
        mut progress: impl FnMut(u64),
    ) -> Result<u64, Error> {
        let (mut rows, mut stored) = (rows.into_iter(), 0);
        loop {
            let batch: Vec<T> = rows.by_ref().take(BATCH_ROWS).collect();
            if batch.is_empty() {
                return Ok(stored);
            }
            self.run(|tx| table.insert_all(tx, &batch))?;
            stored += batch.len() as u64;
            progress(stored);
        }
    }
}
