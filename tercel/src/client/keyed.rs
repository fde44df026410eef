//! Keyed transactions of a client.

use tercel_engine::Error;
use tercel_engine::object::Field;
use tercel_engine::txn::Tx;

use super::Client;
use crate::once::{OnceKey, once};

impl Client {
    /// Runs `body` in a transaction once, however often it is sent: if a transaction with this key was
    /// committed in the last 48 hours, its result is given and nothing is done. Otherwise `body` runs as by
    /// [`Client::run`], which blocks, and its result is kept under the key by the same commit. [`once`] does
    /// the same in a transaction of any other kind. A space keeps some eight million keys, or 2 GiB of
    /// results, at least: where more come in 48 hours, the oldest go before.
    ///
    /// ```
    /// # #[derive(tercel::Object)]
    /// # struct Purse { cents: u64 }
    /// # let dir = std::env::temp_dir().join(format!("tercel-doc-once-{}", std::process::id()));
    /// # let space = tercel::embedded(&dir)?;
    /// # let purse = space.run(|tx| tx.create(&Purse { cents: 100 }))?;
    /// let pay = || {
    ///     space.once("order 4711", |tx| {
    ///         let left = tx.get(purse)?.cents() - 40;
    ///         tx.edit(purse)?.set_cents(left)?;
    ///         Ok(left)
    ///     })
    /// };
    /// assert_eq!((pay()?, pay()?), (60, 60));
    /// assert_eq!(space.run(|tx| Ok(tx.get(purse)?.cents()))?, 60);
    /// # space.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::run`] and [`once`](crate::once()).
    pub fn once<'k, R: Field>(
        &self,
        key: impl Into<OnceKey<'k>>,
        mut body: impl FnMut(&Tx<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let key = key.into();
        self.run(|tx| once(tx, key, || body(tx)))
    }

    /// [`Client::once`] for a task, as safe to drop as [`Client::run_async`]: the same again finds what the
    /// dropped one has done.
    ///
    /// # Errors
    /// As [`Client::run_async`] and [`once`].
    pub async fn once_async<'k, R: Field>(
        &self,
        key: impl Into<OnceKey<'k>>,
        mut body: impl FnMut(&Tx<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let key = key.into();
        self.run_async(|tx| once(tx, key, || body(tx))).await
    }
}
