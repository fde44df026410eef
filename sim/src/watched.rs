//! The record of a watch, and what it must agree with: the history.

use std::collections::BTreeMap;

use tercel_verify::{History, Object, Outcome, Session};
use tercel_wire::id::Stamp;

/// The sessions of the commits around a loss begin here.
pub(crate) const LOSS_SESSIONS: Session = Session(1_000_000);

/// The changes that a thread received from a watch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watched {
    /// Which process, in words.
    pub by: String,
    /// Changes above this were to be told.
    pub from: Stamp,
    /// And up to this.
    pub upto: Stamp,
    /// By object, the stamp of the last change that was told.
    pub told: BTreeMap<Object, Stamp>,
}

impl Watched {
    /// Compares it with what was committed: whether the watch kept something back.
    pub(crate) fn check(&self, history: &History) -> Option<String> {
        for t in &history.transactions {
            let Outcome::Committed(stamp) = t.outcome else { continue };
            // What came in place of commits that were lost has stamps that these had.
            let is_after_loss = t.session >= LOSS_SESSIONS;
            if stamp <= self.from.0 || stamp > self.upto.0 || is_after_loss {
                continue;
            }
            for write in &t.writes {
                if let Some(told) = self.told.get(&write.object)
                    && told.0 < stamp
                {
                    let Watched { by, upto, .. } = self;
                    let object = write.object.0;
                    return Some(format!(
                        "{by} watched object {object} up to {upto}: {stamp} changed it, and the last that was told is {told}"
                    ));
                }
            }
        }
        None
    }
}
