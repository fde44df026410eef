//! Recovery: open, then replay the log.
//!
//! The checkpoint says which entries the ordered state contains and from which entry on the stored pages may lack
//! writes. Entries in between are laid into the buffer without being judged again; later ones are applied in full.
//! Stored pages may be ahead of the checkpoint; the buffer then holds the same or newer versions and covers them.

use std::collections::VecDeque;

use tercel_wire::cursor::DecodeError;
use tercel_wire::id::{SpaceId, Stamp, ViewId};
use thiserror::Error;

use super::{Checkpoint, Effects, HostStats, LogRoom, Server, ServerConfig, ServerStats};
use crate::mutant;
use crate::order::Solo;
use crate::store::entry::{Entry, kind};
use crate::store::image::Images;
use crate::store::mob::Mob;
use crate::store::staged::Staged;
use crate::store::state::State;
use crate::time::Now;

/// A log or a checkpoint that cannot be replayed. An operator must act.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RecoveryError {
    /// The checkpoint is damaged.
    #[error("the checkpoint is damaged: {0}")]
    Checkpoint(DecodeError),
    /// A record is damaged although its checksum is right.
    #[error("the log's entry {stamp} cannot be read: {error}")]
    Entry {
        /// Its place.
        stamp: Stamp,
        /// What is wrong.
        error: DecodeError,
    },
    /// Entries are missing.
    #[error("the log goes from entry {from} to {to}: entries are missing")]
    Gap {
        /// The last one there.
        from: Stamp,
        /// The next one there.
        to: Stamp,
    },
}

/// A server that is being recovered.
pub struct Recovery {
    config: ServerConfig,
    space: SpaceId,
    state: State,
    mob: Mob,
    gathered: Staged,
    /// First pieces and ends of the transactions that were staged.
    staged: VecDeque<(Stamp, Stamp)>,
    replayed: Option<Stamp>,
    replay_from: Stamp,
    recent: VecDeque<(Stamp, std::sync::Arc<[tercel_wire::id::Oref]>)>,
    recent_orefs: usize,
    recent_from: Stamp,
    stored_end: u32,
}

impl Recovery {
    /// Begins with the last checkpoint, if there ever was one.
    pub fn new(
        config: ServerConfig,
        space: SpaceId,
        checkpoint: Option<&Checkpoint>,
        stored_end: u32,
    ) -> Result<Recovery, RecoveryError> {
        let (state, replay_from) = match checkpoint {
            None => (State::new(), Stamp(1)),
            Some(c) => {
                let state = State::decode(&c.state).map_err(RecoveryError::Checkpoint)?;
                // There is no entry before the first, and none that both the state and the log may lack.
                if c.replay_from == Stamp::ZERO || c.replay_from > state.stamp.next() {
                    return Err(RecoveryError::Checkpoint(DecodeError::BadField("replay from")));
                }
                (state, c.replay_from)
            }
        };
        Ok(Recovery {
            config,
            space,
            recent_from: state.stamp,
            state,
            mob: Mob::default(),
            gathered: Staged::default(),
            staged: VecDeque::new(),
            replayed: None,
            replay_from,
            recent: Default::default(),
            recent_orefs: 0,
            stored_end,
        })
    }

    /// The first entry that is needed.
    pub fn replay_from(&self) -> Stamp {
        self.replay_from
    }

    /// Takes the next entry of the log.
    pub fn replay(&mut self, stamp: Stamp, kind: u8, payload: &[u8]) -> Result<(), RecoveryError> {
        if stamp < self.replay_from {
            return Ok(());
        }
        let before = self.replayed.unwrap_or(Stamp(self.replay_from.0 - 1));
        if stamp != before.next() {
            return Err(RecoveryError::Gap { from: before, to: stamp });
        }
        self.replayed = Some(stamp);
        if kind == kind::COMMIT_STAGED {
            self.staged.extend(self.gathered.first().map(|first| (first, stamp)));
        }
        let entry = self
            .gathered
            .entry(stamp, kind, payload)
            .map_err(|error| RecoveryError::Entry { stamp, error })?;
        if stamp > self.state.stamp {
            self.state.apply(&entry);
        }
        let changed = self.mob.apply(stamp, &entry);
        for oref in &changed {
            self.mob.settle(oref.page(), oref.slot(), stamp);
        }
        if stamp > self.recent_from {
            self.recent_orefs += changed.len();
            self.recent.push_back((stamp, changed.into()));
            while self.recent_orefs > mutant::bound(crate::limits::RECENT_CHANGES_MAX, 16) {
                let Some((stamp, changed)) = self.recent.pop_front() else { break };
                self.recent_orefs -= changed.len();
                self.recent_from = stamp;
            }
        }
        Ok(())
    }

    /// What was recovered, to be looked at and not served.
    pub fn into_parts(self) -> (State, Mob) {
        (self.state, self.mob)
    }

    /// The server, in its next life. What it appends to `out` must be synced before it serves anybody.
    pub fn finish(mut self, now: Now, incarnation: u32, out: &mut Effects) -> Result<Server, RecoveryError> {
        let last = self.replayed.unwrap_or(Stamp(self.replay_from.0 - 1));
        if last < self.state.stamp {
            return Err(RecoveryError::Gap { from: last, to: self.state.stamp });
        }
        let stamp = self.state.stamp;
        self.state.forget_by_mistake();
        let mut server = Server {
            images: Images::new(self.config.cache_bytes),
            config: self.config,
            space: self.space,
            order: Solo::new(stamp),
            state: self.state,
            mob: self.mob,
            visible: stamp,
            flights: Default::default(),
            recent: self.recent,
            recent_orefs: self.recent_orefs,
            recent_from: self.recent_from,
            sessions: Default::default(),
            listening: Default::default(),
            clients: Default::default(),
            directory: Default::default(),
            spent: Default::default(),
            defining: Default::default(),
            leasing: Default::default(),
            reads: Default::default(),
            parked: Default::default(),
            parked_bytes: 0,
            parked_last: 0,
            stalled: Default::default(),
            staged: self.staged,
            large: None,
            spare: Vec::new(),
            behind: Default::default(),
            behind_due: false,
            settling: Default::default(),
            leaving: Default::default(),
            staged_bytes: 0,
            lease_next: 0,
            overflow: None,
            installing: None,
            to_install: VecDeque::new(),
            batches_since_checkpoint: 0,
            nothing_at: None,
            checkpointed: Stamp::ZERO,
            replay_from: self.replay_from,
            log_room: LogRoom::Free,
            backup: None,
            pins: 0,
            host: HostStats::default(),
            stored_end: self.stored_end,
            disk_full: false,
            now,
            ticked: now,
            looked: now,
            stats: ServerStats::default(),
        };
        if stamp == Stamp::ZERO {
            server.order(&Entry::Genesis, None, out);
        }
        let view = ViewId::new((server.state.view.number + 1).max(server.config.view_first), incarnation);
        server.order(&Entry::View(view), None, out);
        Ok(server)
    }
}
