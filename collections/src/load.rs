//! Many entries at once.

use tercel_engine::Error;
use tercel_engine::txn::Tx;

/// A collection that takes many entries in one transaction. `Client::load` gives it any number of them, in
/// transactions of 1,000.
pub trait Load {
    /// A row, a key with its value, or a key.
    type Entry;

    /// Inserts entries, in any order: those of one leaf are one change of it. A row whose key is taken is
    /// refused; in a map and a set the last one of equal keys stays.
    ///
    /// # Errors
    /// Those of one insert. If there is one, the transaction can only be dropped.
    fn insert_batch(&self, tx: &Tx<'_>, entries: &[Self::Entry]) -> Result<(), Error>;
}
