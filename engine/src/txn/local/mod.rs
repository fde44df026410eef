//! The server as the home of transactions inside of it: methods, and what a program runs beside its server.
//!
//! A transaction reads the server's own page images. There is no cache: each object that it reads is copied into its scope
//! ([`tercel_heap::Copier`]). It commits with the bytes that a remote client would send, through a session of the server's
//! own, and is judged as any other.
//!
//! [`Local`] is the state that such transactions share. With a [`Source`] it is a [`Home`](super::Home):
//! [`Local::over`]. Nothing here waits; a page that must be read first makes the port call again, or give the attempt up and
//! run it anew. A transaction that is given up leaves nothing behind but places, which are never given out twice.
//!
//! The invariant: everything in a scope is of the state at its snapshot. A read looks at the visible state, and only after
//! nothing that the scope read before was found among the changes since its snapshot; that state is then its snapshot.

mod classes;
mod home;
mod ops;
mod read;
mod source;

use tercel_heap::Copier;

use super::{Echoes, Places};
use crate::error::Error;
use crate::limits;
use classes::Classes;
use ops::Ops;

pub use home::Inside;
pub use source::{Image, Session, Source};

/// What transactions inside of a server may use.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// Transactions open at once, up to [`tercel_heap::SCOPES_MAX`]. More wait for nothing: they are told `Full`.
    pub transactions_max: usize,
    /// Bytes that one transaction may copy of what it reads; 128 are counted for each object beside its own. All of them
    /// may be in use at once, times `transactions_max`.
    pub read_bytes_max: usize,
    /// Bytes of objects that one transaction may write.
    pub write_bytes_max: usize,
}

impl Default for LocalConfig {
    fn default() -> LocalConfig {
        LocalConfig {
            transactions_max: limits::LOCAL_TRANSACTIONS_MAX,
            read_bytes_max: limits::LOCAL_READ_BYTES_MAX,
            write_bytes_max: limits::TRANSACTION_BYTES_MAX,
        }
    }
}

/// The state that the transactions inside of a server share.
pub struct Local {
    config: LocalConfig,
    copier: Copier,
    classes: Classes,
    session: Option<Session>,
    echoes: Echoes,
    places: Places,
    /// How many pages to ask for next: doubles with use.
    ask: u16,
    ops: Ops,
}

impl Local {
    /// With no transaction open and nothing granted.
    pub fn new(config: LocalConfig) -> Local {
        let mut copier = Copier::new(config.transactions_max, config.read_bytes_max);
        let classes = Classes::new(&mut copier);
        Local {
            config,
            copier,
            classes,
            session: None,
            echoes: Echoes::default(),
            places: Places::default(),
            ask: 1,
            ops: Ops::default(),
        }
    }

    /// The home of one step of a transaction, over the server as it is now.
    pub fn over<'a>(&'a mut self, source: &'a mut dyn Source) -> Inside<'a> {
        Inside { local: self, source }
    }

    /// Learns which session this is; with another one, what the one before had is gone.
    fn meet(&mut self, source: &mut dyn Source) -> Result<Session, Error> {
        let session = source.session()?;
        if self.session.replace(session) != Some(session) {
            self.places = Places::default();
            self.echoes.forget();
            self.ops.forget();
        }
        Ok(session)
    }
}
