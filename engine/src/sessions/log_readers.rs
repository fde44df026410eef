//! Readers of the log: what is stable, in order, for backups of several spaces and for archives.
//!
//! A reader asks for part after part, and each is read from this node's disk: nothing is kept in memory for
//! it. The log is kept from the reader's place on, but the log's own bound comes first: a reader that is too
//! slow is refused, and says that there is a gap. The invariant: no entry is given before it is stable, and
//! none is left out.

use std::collections::BTreeMap;

use tercel_wire::frame::Kind;
use tercel_wire::id::{LogPosition, Stamp, ViewId};
use tercel_wire::message::{BackupPart, FollowLog, FromServer, LogFollowed, Refusal};

use super::{Cx, Sessions};
use crate::effect::{Conn, Effect};
use crate::leader::Asked;
use crate::limits;
use crate::order::quorum::packet::put_entries;
use crate::order::{Found, Sealed};
use crate::time::Now;

/// The readers, and how far the log is stable.
#[derive(Debug, Default)]
pub(super) struct LogReaders {
    all: BTreeMap<Conn, LogReader>,
    stable: LogPosition,
    /// The stamp of the entry there.
    stable_stamp: Stamp,
}

/// A connection that reads the log.
#[derive(Debug)]
struct LogReader {
    /// The next entry to give.
    next: LogPosition,
    /// The request that waits, and since when.
    wanted: Option<(u64, Now)>,
    reading: Reading,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Idle,
    /// The disk was asked.
    Asked,
    /// The log was just being cut: the disk is asked again after a while.
    Later,
}

impl LogReaders {
    /// The readers of the sessions that come after these.
    pub(super) fn next(&self) -> LogReaders {
        LogReaders { all: BTreeMap::new(), ..*self }
    }

    /// The position from which on the log is kept for readers.
    pub(super) fn needed(&self) -> LogPosition {
        self.all.values().map(|reader| reader.next).min().unwrap_or(LogPosition(u64::MAX))
    }

    /// The position before the first entry that a replay behind the visible state needs. A large commit or a
    /// collection has pieces in the log, and no state has them: one that is under way, or ordered and not
    /// visible, is read from its first piece on. Positions and stamps rise together.
    fn before_unseen(&self, cx: &Cx) -> LogPosition {
        let first = cx.work.pages.unseen_from(&cx.work.replica);
        LogPosition(self.stable.0.saturating_sub((self.stable_stamp.0 + 1).saturating_sub(first.0)))
    }

    /// Says whether a reader waits for an answer: it is not silent.
    pub(super) fn owe(&self, conn: Conn) -> bool {
        self.all.get(&conn).is_some_and(|reader| reader.wanted.is_some())
    }
}

impl Sessions {
    /// Everything up to a position is stable, the entry there of this stamp.
    pub(crate) fn log_is_stable(&mut self, upto: LogPosition, stamp: Stamp) {
        let readers = &mut self.backups.readers;
        if upto > readers.stable {
            (readers.stable, readers.stable_stamp) = (upto, stamp);
        }
    }

    pub(super) fn follow_log(&mut self, asked: Asked, follow: FollowLog, cx: &mut Cx) {
        let stable = self.backups.readers.stable;
        let after = match follow.after {
            0 => self.backups.readers.before_unseen(cx),
            after => LogPosition(after),
        };
        if stable == LogPosition::ZERO {
            return cx.refuse(asked, Refusal::Unavailable, "nothing of the log is stable yet: try again");
        }
        if after > stable {
            let text = format!("the log ends at position {stable}, before {after}: it is another history");
            return cx.refuse(asked, Refusal::OtherHistory, text);
        }
        if self.backups.readers.all.len() >= limits::LOG_READERS_MAX
            && !self.backups.readers.all.contains_key(&asked.conn)
        {
            let text = "as many connections read the log as may: end an archive or a backup";
            return cx.refuse(asked, Refusal::FULL, text);
        }
        let reader = LogReader { next: after.next(), wanted: None, reading: Reading::Idle };
        self.backups.readers.all.insert(asked.conn, reader);
        self.keep_log(cx);
        let view = cx.leader.as_ref().map_or(ViewId::NONE, |leader| leader.view());
        let (stamp, stable) = (cx.work.pages.visible(), stable.0);
        let followed = LogFollowed { stamp, view, position: after.0, stable };
        cx.answer(asked, &FromServer::LogFollowed(followed));
    }

    /// Notes a request for the next entries.
    pub(super) fn log_next(&mut self, asked: Asked, cx: &mut Cx) {
        match self.backups.readers.all.get_mut(&asked.conn) {
            None => {
                cx.refuse(asked, Refusal::Unavailable, "this connection does not read the log: begin again")
            }
            Some(reader) if reader.wanted.is_some() => {
                cx.refuse(asked, Refusal::FULL, "the log's parts are asked for one after the other");
            }
            Some(reader) => reader.wanted = Some((asked.call, cx.work.now)),
        }
    }

    /// Has entries read that are asked for, and answers those that have waited for long. Called after
    /// everything that happens.
    pub(super) fn drive_log_readers(&mut self, cx: &mut Cx) {
        if self.backups.readers.all.is_empty() {
            return;
        }
        let LogReaders { all, stable, .. } = &mut self.backups.readers;
        let count = all.len();
        all.retain(|conn, _| self.all.contains_key(conn));
        for (conn, reader) in &mut *all {
            let Some((call, since)) = reader.wanted else { continue };
            let is_due = reader.next <= *stable && cx.work.pages.may_store();
            if reader.reading == Reading::Idle && is_due {
                reader.reading = Reading::Asked;
                cx.out.push(Effect::ReadLog(reader.next, limits::PART_BYTES));
            } else if !is_due && cx.work.now.since_us(since) >= limits::LOG_WAIT_US {
                reader.wanted = None;
                send_entries(Asked { conn: *conn, call }, &[], cx);
            }
        }
        if all.len() < count {
            self.keep_log(cx);
        }
    }

    /// The log was read, perhaps for readers.
    pub(super) fn found_for_readers(&mut self, from: LogPosition, found: &Found, cx: &mut Cx) {
        if self.backups.readers.all.is_empty() {
            return;
        }
        let stable = self.backups.readers.stable;
        let mut late = Vec::new();
        for (conn, reader) in &mut self.backups.readers.all {
            if reader.reading != Reading::Asked || reader.next != from {
                continue;
            }
            reader.reading = Reading::Idle;
            match found {
                Found::NotNow => reader.reading = Reading::Later,
                Found::BeginsLater => late.push((*conn, reader.wanted.take())),
                Found::Entries(entries) => {
                    let count = entries.len().min((stable.0 + 1).saturating_sub(from.0) as usize);
                    let entries = that_fit(&entries[..count]);
                    let Some((call, _)) = reader.wanted.take_if(|_| !entries.is_empty()) else { continue };
                    reader.next = LogPosition(from.0 + entries.len() as u64);
                    send_entries(Asked { conn: *conn, call }, entries, cx);
                }
            }
        }
        for (conn, wanted) in late {
            self.backups.readers.all.remove(&conn);
            let text = "the log begins later: its bound was reached before this was read";
            wanted.iter().for_each(|(call, _)| cx.refuse(Asked { conn, call: *call }, Refusal::TooOld, text));
        }
        self.keep_log(cx);
    }

    /// The disk may be asked again.
    pub(super) fn look_at_log_readers(&mut self) {
        let later = self.backups.readers.all.values_mut().filter(|reader| reader.reading == Reading::Later);
        later.for_each(|reader| reader.reading = Reading::Idle);
    }

    /// Has the log kept as far as the order, members that take copies and readers need it.
    pub(super) fn keep_log(&mut self, cx: &mut Cx) {
        // A server that is alone has no order that says so.
        let of_order = match cx.work.sequencer.members() {
            None => LogPosition(u64::MAX),
            Some(_) => self.backups.kept_from(),
        };
        cx.out.push(Effect::KeepFrom(of_order.min(self.backups.readers.needed())));
    }
}

/// The first entries that fit a message, at least one.
fn that_fit(entries: &[Sealed]) -> &[Sealed] {
    let mut bytes = 0;
    let fitting = entries.iter().take_while(|entry| {
        let is_first = bytes == 0;
        bytes += ENTRY_HEAD_BYTES + entry.payload.len();
        is_first || bytes <= 2 * limits::PART_BYTES
    });
    &entries[..fitting.count()]
}

fn send_entries(asked: Asked, entries: &[Sealed], cx: &mut Cx) {
    let (mut bytes, mut body) = (Vec::new(), Vec::new());
    put_entries(entries, &mut bytes);
    BackupPart::Log(&bytes).encode(&mut body);
    cx.reply(asked.conn, Kind::BackupPart, asked.call, &body);
}

/// Bytes of an entry in a part, beside its payload.
const ENTRY_HEAD_BYTES: usize = 21;
