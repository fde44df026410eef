//! A copy of a group's space for one of its members: pages as they are stored, the ordered state, and the log
//! from the oldest entry on that those pages may lack.
//!
//! The invariant: all of it is stable, and the log ends with the last entry that the state contains. So the
//! copy is like the directory of a member after a crash.

use std::path::Path;

use tercel_engine::order::Sealed;
use tercel_engine::order::quorum::packet::entries;
use tercel_wire::cursor::Reader;
use tercel_wire::id::{EntryId, LogPosition, SpaceId, Stamp, ViewId};
use tercel_wire::log::{Kind, Last, encode_record};
use tercel_wire::message::{BackupBegun, Transfer, TransferBegun};

use super::BackupError;
use super::fill::Filler;
use super::receive::{BackupConnection, Remote, Way};
use crate::SharedMemory;
use crate::address::Addresses;
use crate::disk::DiskError;
use crate::disk::dir::{DataDir, LOG_NAME, Purpose};
use crate::disk::held::HeldDir;
use crate::disk::log::{Log, LogConfig};

/// Takes a copy from the leader into the directory `dir`. Gives the view in which it was begun, and the last
/// entry of its log.
///
/// # Errors
/// See [`BackupError`]. What was begun stays and is known as unfinished.
pub(crate) fn copy(servers: &Addresses, of: &Transfer, dir: &Path) -> Result<(ViewId, EntryId), BackupError> {
    let remote = Remote::new(servers.clone(), Way { by_memory: SharedMemory::Off, spin: None });
    let (mut connection, space) = BackupConnection::to_leader(&remote)?;
    let begun = connection.transfer(of)?;
    let TransferBegun { stamp, view, pages_end, state_bytes, replay_from, before_view, before } = begun;
    let before = EntryId { view: before_view, position: LogPosition(before) };
    let stamp_before = Stamp(replay_from.0.saturating_sub(1));
    let config = LogConfig::default();
    let segment_bytes = config.segment_bytes;
    let fill = |pages: &Path| -> Result<(), BackupError> {
        let log_dir = HeldDir::open(dir)?.below(LOG_NAME, false)?;
        let log = LogFiller::open(&log_dir, space.id, config, &begun)?;
        let of_pages = BackupBegun { stamp, view, pages_end, state_bytes };
        let (state, filler) = connection.take_all(&of_pages, Filler::open(pages)?, Some(log), &mut |_| ())?;
        filler.finish_from(replay_from, stamp, &state)?;
        Ok(())
    };
    DataDir::create_copy(dir, Purpose::Copy, &space, (stamp_before, before), segment_bytes, fill)?;
    let entries = stamp.0 - stamp_before.0;
    Ok((view, EntryId { view, position: LogPosition(before.position.0 + entries) }))
}

/// The log of a copy, as it is written.
pub(super) struct LogFiller {
    log: Log,
    last: Last,
    /// The view of the leader, and the stamps with which the log begins and ends.
    view: ViewId,
    upto: Stamp,
}

impl LogFiller {
    /// Opens the log of the copy, which was just created.
    fn open(
        dir: &HeldDir,
        space: SpaceId,
        config: LogConfig,
        begun: &TransferBegun,
    ) -> Result<LogFiller, DiskError> {
        let none = |_: tercel_wire::log::Record<'_>, _: bool| Ok::<_, DiskError>(());
        let (log, _) = Log::open_member(dir, space, config, begun.replay_from, Stamp::ZERO, none)?;
        Ok(LogFiller { last: log.tail().last, log, view: begun.view, upto: begun.stamp })
    }

    /// Appends entries as they came.
    pub(super) fn entries(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        let wrong =
            |what: &dyn std::fmt::Display| BackupError::Lost(format!("it sent a log that is none: {what}"));
        let mut r = Reader::new(bytes);
        let came = entries(&mut r, self.view, self.last.view).map_err(|e| wrong(&e))?;
        r.end().map_err(|e| wrong(&e))?;
        let mut records = Vec::new();
        for Sealed { stamp, view, kind, payload } in came {
            // The position of each is known by its stamp.
            if stamp != self.last.stamp.next() || stamp > self.upto {
                return Err(wrong(&format!("entry {stamp} behind entry {}", self.last.stamp)));
            }
            let kind = Kind::new(kind).ok_or_else(|| wrong(&"an entry has no kind"))?;
            encode_record(&mut records, &mut self.last.chain, kind, view, stamp, &payload)
                .map_err(|e| wrong(&e))?;
            let position = self.last.position.next();
            self.last = Last { stamp, view, position, ..self.last };
        }
        Ok(self.log.append(&records)?)
    }

    /// Everything is written, durably, and known to be stable.
    pub(super) fn finish(mut self) -> Result<(), BackupError> {
        if self.last.stamp != self.upto {
            let text = format!("its log ends with entry {} instead of {}", self.last.stamp, self.upto);
            return Err(BackupError::Lost(text));
        }
        self.log.stable_upto(self.last.position);
        Ok(self.log.close()?)
    }
}
