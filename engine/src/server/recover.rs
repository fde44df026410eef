//! Recovery: open, then replay the log.
//!
//! The checkpoint says which entries the ordered state contains and from which entry on the stored pages may
//! lack writes. Every entry goes through the one door of ordered state; those that the state contains are
//! only laid into the buffer. Stored pages may be ahead of the checkpoint; the buffer then holds the same or
//! newer versions and covers them. What is not known to be stable is not applied: it waits as bytes for what
//! the sequencer says of it. The host knows it to be stable as far as the stored pages are, too
//! ([`crate::effect::Effect::Install`]), so no page is ahead of the state.

use std::collections::VecDeque;

use tercel_wire::cursor::DecodeError;
use tercel_wire::id::{EntryId, LogPosition, SpaceId, Stamp, ViewId, Written};
use thiserror::Error;

use crate::effect::{Checkpoint, Effects, ServerConfig};
use crate::leader::Work;
use crate::order::quorum::members::Members;
use crate::order::quorum::remembered::Remembered;
use crate::order::quorum::{Run, Start};
use crate::order::solo::Solo;
use crate::order::{Input, Lead, Sealed, Sequencer};
use crate::pages::Pages;
use crate::pages::install::Installer;
use crate::pages::mob::Mob;
use crate::replica::Replica;
use crate::replica::entry::Entry;
use crate::server::Server;
use crate::server::suffix::Suffix;
use crate::sessions::horizon::Horizon;
use crate::sessions::{Cx, Sessions};
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
        /// The place of the entry in the commit order.
        stamp: Stamp,
        /// The error.
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
    /// The space has had as many views as there are numbers.
    #[error("the space has had all the views that it can have: copy what is in it into another")]
    Views,
}

/// A server that is being recovered.
#[derive(Debug)]
pub struct Recovery {
    config: ServerConfig,
    space: SpaceId,
    replica: Replica,
    mob: Mob,
    horizon: Horizon,
    /// First pieces and ends of the large commits in the log.
    pieces: VecDeque<(Stamp, Stamp)>,
    suffix: VecDeque<Sealed>,
    checkpointed: Stamp,
    replay_from: Stamp,
    replayed: Stamp,
    stored_end: u32,
}

/// The findings of a host in the log of a member.
#[derive(Debug, Clone, Copy)]
pub struct LogEnds<'a> {
    /// The entry before the first one.
    pub begins: EntryId,
    /// The last position of each view.
    pub runs: &'a [(ViewId, LogPosition)],
    /// The last position that is known to be stable.
    pub stable: LogPosition,
    /// Set if the log ends there; not if it ends in bytes that may have been entries.
    pub is_sure: bool,
}

impl Recovery {
    /// Begins with the last checkpoint, if there ever was one. `stored_end` is the highest page that the
    /// store may have.
    ///
    /// # Errors
    /// If the checkpoint is damaged.
    pub fn new(
        config: ServerConfig,
        space: SpaceId,
        checkpoint: Option<&Checkpoint>,
        stored_end: u32,
    ) -> Result<Recovery, RecoveryError> {
        let (replica, replay_from) = match checkpoint {
            None => (Replica::new(), Stamp(1)),
            Some(c) => {
                let replica = Replica::restored(&c.state).map_err(RecoveryError::Checkpoint)?;
                // There is no entry before the first, and none that both the state and the log may lack.
                if c.replay_from == Stamp::ZERO || c.replay_from > replica.stamp.next() {
                    return Err(RecoveryError::Checkpoint(DecodeError::BadField("replay from")));
                }
                (replica, c.replay_from)
            }
        };
        Ok(Recovery {
            config,
            space,
            horizon: Horizon::new(replica.stamp),
            checkpointed: replica.stamp,
            replica,
            mob: Mob::default(),
            pieces: VecDeque::new(),
            suffix: VecDeque::new(),
            replay_from,
            replayed: Stamp::ZERO,
            stored_end,
        })
    }

    /// The first entry that is needed.
    pub fn replay_from(&self) -> Stamp {
        self.replay_from
    }

    /// Takes the next entry of the log, which is known to be stable.
    ///
    /// # Errors
    /// If it cannot be read, or does not go on where the one before ended.
    pub fn replay(
        &mut self,
        view: ViewId,
        stamp: Stamp,
        kind: u8,
        payload: &[u8],
    ) -> Result<(), RecoveryError> {
        if stamp < self.replay_from {
            return Ok(());
        }
        if stamp <= self.replayed {
            return Err(RecoveryError::Gap { from: self.replayed, to: stamp });
        }
        self.replayed = stamp;
        let wrong = |error| RecoveryError::Entry { stamp, error };
        let entry = Entry::decode(kind, payload).map_err(wrong)?;
        let applied = self.replica.apply(stamp, view, &entry, &mut self.mob).map_err(wrong)?;
        self.replica.recent.index_pending(usize::MAX);
        self.pieces.extend(applied.pieces_from.map(|first| (first, stamp)));
        for oref in &applied.changed {
            self.mob.drop_hidden(oref.page(), [oref.slot()], stamp);
        }
        self.horizon.changed(stamp, applied.changed.into());
        Ok(())
    }

    /// Keeps the next entry of the log, which is not known to be stable: it is applied once it is.
    pub fn keep(&mut self, entry: Sealed) {
        self.suffix.push_back(entry);
    }

    /// The entries that are kept, in order.
    pub fn kept(&self) -> Vec<Sealed> {
        self.suffix.iter().cloned().collect()
    }

    /// The members of the group as of the last entry that was applied, if there were any.
    pub fn members(&self) -> Option<&Members> {
        self.replica.members.as_ref()
    }

    /// The start of the sequencer of a member that remembers this, over the log that was replayed up to
    /// `stable` and kept from there.
    pub fn start(&self, of: &Remembered, log: LogEnds<'_>) -> Start {
        let (mut runs, mut before) = (Vec::new(), log.begins.position);
        for (view, last) in log.runs {
            let run = Run { view: *view, last: (*last).min(log.stable) };
            if run.last > before {
                before = run.last;
                runs.push(run);
            }
        }
        Start {
            me: of.me,
            promised: of.promised,
            begins: log.begins,
            runs,
            stable: log.stable,
            stable_stamp: self.stamp(),
            members: self.members().unwrap_or(&of.members).clone(),
            electorate: of.electorate.clone(),
            suffix: self.kept(),
            is_sure: log.is_sure,
        }
    }

    /// The log that was replayed begins after this stamp.
    ///
    /// # Errors
    /// If it should begin earlier.
    pub fn begins_behind(&self, before: Stamp) -> Result<(), RecoveryError> {
        match before < self.replay_from {
            true => Ok(()),
            false => Err(RecoveryError::Gap { from: Stamp(self.replay_from.0 - 1), to: before.next() }),
        }
    }

    /// The last entry that was applied.
    pub fn stamp(&self) -> Stamp {
        self.replica.stamp
    }

    /// The newest view that was applied.
    pub fn view(&self) -> ViewId {
        self.replica.view()
    }

    /// Gives the recovered state, to be inspected and not served.
    pub fn into_parts(self) -> (Replica, Mob) {
        (self.replica, self.mob)
    }

    /// Makes a server of one node. It leads in its next view, which has this incarnation, after a log that
    /// ends at `last`. The host must sync the entries that are appended to `out` before the server serves a
    /// client.
    ///
    /// # Errors
    /// If entries are missing that the checkpoint contains.
    pub fn finish(
        self,
        now: Now,
        incarnation: u32,
        last: LogPosition,
        out: &mut Effects,
    ) -> Result<Server, RecoveryError> {
        let number =
            self.view().number.checked_add(1).filter(|n| *n < u32::MAX).ok_or(RecoveryError::Views)?;
        let view = ViewId::new(number.max(self.config.view_first), incarnation);
        let solo = Solo::new(Lead { view, kept: self.stamp(), is_unsure: false }, last);
        self.finish_with(now, Box::new(solo), view, Written { cuts: 0, position: last }, out)
    }

    /// A server with a sequencer. `joined` names it in effects and their answers, and is another one after
    /// each recovery. `end` is that of the log, all of which is durable.
    ///
    /// # Errors
    /// If entries are missing that the checkpoint contains.
    pub fn finish_with(
        self,
        now: Now,
        sequencer: Box<dyn Sequencer>,
        joined: ViewId,
        end: Written,
        out: &mut Effects,
    ) -> Result<Server, RecoveryError> {
        let space = self.space;
        let Recovered { config, replica, pages, horizon, suffix } = self.recovered()?;
        let tables_from = config.application.unwrap_or(0);
        let cx = Cx::new(joined, Work::new(now, space, config, replica, pages, sequencer));
        let (sessions, suffix) = (Sessions::new(now, horizon, tables_from), Suffix::new(suffix, end));
        let mut server = Server { sessions, cx, begins: None, membership: None, suffix };
        server.with_effects(out, |server| {
            server.sequence(Input::Ready(true));
            server.sequence(Input::Time);
        });
        Ok(server)
    }

    /// The parts of a server that checkpoint and log give.
    pub(super) fn recovered(mut self) -> Result<Recovered, RecoveryError> {
        if self.replayed < self.checkpointed && self.replay_from <= self.checkpointed {
            return Err(RecoveryError::Gap { from: self.replayed, to: self.checkpointed });
        }
        let stamp = self.replica.stamp;
        self.replica.forget_by_mistake();
        let installer = Installer::new(self.config.mob_bytes, self.replay_from, self.pieces);
        let mut pages = Pages::new(self.space, self.config.cache_bytes, self.mob, installer, self.stored_end);
        pages.show_upto(stamp);
        let last = self.suffix.back().map_or(stamp, |entry| entry.stamp);
        pages.written_upto(last.max(self.replayed));
        Ok(Recovered {
            config: self.config,
            replica: self.replica,
            pages,
            horizon: self.horizon,
            suffix: self.suffix,
        })
    }
}

/// The parts of a server that follow from checkpoint and log.
pub(super) struct Recovered {
    pub config: ServerConfig,
    pub replica: Replica,
    pub pages: Pages,
    pub horizon: Horizon,
    pub suffix: VecDeque<Sealed>,
}
