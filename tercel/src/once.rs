//! Exactly once, in this process: its clock, its randomness, and the hours at which it has seen spaces.

use std::sync::{LazyLock, Mutex};
use std::time::Instant;

use tercel_collections::once::{self, Hour, Hours, Process};
use tercel_engine::Error;
use tercel_engine::object::Field;
use tercel_engine::rpc::{CallKey, KeptResult};
use tercel_engine::time::Now;
use tercel_engine::txn::Tx;
use tercel_lock::unpoison;

pub use tercel_collections::once::{OTHER_REQUEST, OnceKey, returned_under};

/// Gives the result that is kept under a key in the space of this transaction; if there is none, runs
/// `body`, and keeps its result with what the transaction writes. In a transaction over several spaces
/// `body` writes them all, and the key stands in one of them.
///
/// ```
/// # #[derive(tercel::Object)]
/// # struct Purse { cents: u64 }
/// # let dir = std::env::temp_dir().join(format!("tercel-doc-once-tx-{}", std::process::id()));
/// # let spaces = tercel::Spaces::new()
/// #     .with("north", tercel::embedded(dir.join("north"))?)
/// #     .with("south", tercel::embedded(dir.join("south"))?);
/// # for name in ["north", "south"] {
/// #     let client = spaces.client(name).expect("it is there");
/// #     client.run(|tx| tx.set_root("purse", tx.create(&Purse { cents: 100 })?))?;
/// # }
/// let session = spaces.session();
/// let move_money = || {
///     session.run(|cut| {
///         let (north, south) = (cut.space("north")?, cut.space("south")?);
///         tercel::once(north, ("transfer 7", "40 cents to the south"), || {
///             let (from, to) = (north.get_root::<Purse>("purse")?, south.get_root::<Purse>("purse")?);
///             from.edit()?.set_cents(from.cents() - 40)?;
///             to.edit()?.set_cents(to.cents() + 40)?;
///             Ok(from.cents() - 40)
///         })
///     })
/// };
/// assert_eq!((move_money()?, move_money()?), (60, 60));
/// # drop((session, spaces));
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A reference in a result keeps no object alive: an object that nothing else leads to is collected.
///
/// # Errors
/// The error of `body`, of which nothing is kept; `Invalid` if the key has no bytes or more than 128, or
/// stands for another request; `Full` if the result has more than 4 KiB; `Failed` if the body ran before, in
/// a build whose result this one cannot read; and as reads and writes of the transaction.
pub fn once<'k, R: Field>(
    tx: &Tx<'_>,
    key: impl Into<OnceKey<'k>>,
    body: impl FnOnce() -> Result<R, Error>,
) -> Result<R, Error> {
    once::once(&*HERE, tx, key.into(), body)
}

/// [`once`] for the method of a call with a key.
pub(crate) fn once_method(
    tx: &Tx<'_>,
    key: CallKey<'_>,
    layout: &[u8],
    body: &mut dyn FnMut() -> Result<Vec<u8>, Error>,
) -> Result<KeptResult, Error> {
    once::once_method(&*HERE, tx, key, layout, body)
}

static HERE: LazyLock<Here> = LazyLock::new(|| Here { began: Instant::now(), hours: Mutex::default() });

/// The clock of this process, and the hours at which it has seen spaces.
struct Here {
    began: Instant,
    hours: Mutex<Hours>,
}

impl Process for Here {
    fn draw(&self) -> Result<[u64; 2], Error> {
        let mut drawn = [[0; 8]; 2];
        for half in &mut drawn {
            rustix::rand::getrandom(&mut half[..], rustix::rand::GetRandomFlags::empty())
                .map_err(|e| Error::Unavailable(format!("the system gives no randomness: {e}")))?;
        }
        Ok(drawn.map(u64::from_le_bytes))
    }

    fn passed(&self, space: [u64; 2], hour: Hour) -> u32 {
        let now = Now(self.began.elapsed().as_micros() as u64);
        unpoison(self.hours.lock()).passed(space, hour, now)
    }
}
