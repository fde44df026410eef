//! The trust in the other end of a connection that lasts: it is looked at while the connection is used.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::Unsealed;
use super::files::Tls;
use super::sealed::Sealed;
use super::verify::Verifier;

/// The rule by which the other end of a connection was let in, and the certificate of this process, whose
/// bundle of authorities may have become another one.
pub(crate) struct Trust {
    tls: Tls,
    verifier: Arc<Verifier>,
    looked: Instant,
}

impl Trust {
    /// The trust of a handshake that has not begun: what changes during it is seen afterwards.
    pub(crate) fn new(tls: Tls) -> Trust {
        Trust { verifier: tls.verifier(), tls, looked: Instant::now() }
    }

    /// The rule of now, once a second at most: for it the files may be read.
    pub(crate) fn look(&mut self) -> Option<Arc<Verifier>> {
        if self.looked.elapsed() < LOOK {
            return None;
        }
        self.looked = Instant::now();
        Some(self.tls.verifier_anew())
    }

    /// Sees that the other end counts still, by the rule of now.
    ///
    /// # Errors
    /// If its certificate has ended, or its authority is in the bundle no more.
    pub(crate) fn judge(&mut self, at: &Sealed, verifier: Arc<Verifier>) -> Result<(), Unsealed> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if at.has_ended(now) || verifier.lacks_one_of(&self.verifier) {
            verifier.verify(&at.shown())?;
        }
        self.verifier = verifier;
        Ok(())
    }
}

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);
