//! Backups: everything as of one stamp, handed out part by part while the server works.
//!
//! A backup begins by freezing: the ordered state is written down, the buffer of modified objects keeps from
//! now on what the stamp shows, and the page store is pinned. The pin goes the way of the installs: it
//! contains the pages that were sent to be installed before it, and no later ones. Entries up to the stamp
//! are all ordered by then but perhaps not durable; the server announces the stamp only once they are.
//!
//! A member of the group that the log no longer reaches back for takes a *copy* by the same parts. Nothing is
//! frozen for it: a copy has the pages as they are stored, the ordered state, and the log from the oldest
//! entry on that the stored pages may lack. That is what a crash leaves, and the member begins as after one.
//! The log behind the copy's stamp is kept until it has caught up.
//!
//! The invariant: the pinned pages hold nothing younger than the stamp, and whatever of it they lack is in
//! the buffer. It is bounded: one backup at a time, a part only when it was asked for, time without progress,
//! and what is set aside counts among the bytes of the buffer. Commits come first: where one would have to
//! wait for a backup, the backup ends.

use std::collections::VecDeque;
use std::ops::Range;

use tercel_wire::frame::Kind;
use tercel_wire::id::{EntryId, LogPosition, MemberId, PageId, Stamp};
use tercel_wire::message::{
    BACKUP_PAGES_MAX, BackupBegun, BackupPart, FromServer, Refusal, Transfer, TransferBegun,
};
use tercel_wire::page::{PAGE_BYTES, Page};

use super::health::End;
use super::log_readers::LogReaders;
use super::{Cx, Sessions};
use crate::effect::{Conn, Effect, Effects};
use crate::leader::Asked;
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::order::quorum::Other;
use crate::order::quorum::packet::put_entries;
use crate::order::{self, Found};
use crate::pages::has_objects;
use crate::replica::prepares::Prepares;
use crate::replica::saved::Saved;
use crate::time::Now;

/// The backup under way, and the count of the pins of the page store.
#[derive(Debug, Default)]
pub(super) struct Backups {
    current: Option<Backup>,
    pins: u64,
    /// The order has the log kept from there on; from its beginning, if it has said nothing yet.
    kept_from: LogPosition,
    pub(super) readers: LogReaders,
}

impl Backups {
    /// Those of the sessions that come after these, for the same page store: numbers of pins go on, and what
    /// was pinned is let go of.
    pub(super) fn next(&self, out: &mut Effects) -> Backups {
        self.current.iter().for_each(|backup| out.push(Effect::Unpin(backup.pin)));
        Backups { current: None, pins: self.pins, kept_from: self.kept_from, readers: self.readers.next() }
    }
}

/// A backup under way.
#[derive(Debug)]
struct Backup {
    /// Names the pin of the page store.
    pin: u64,
    /// The request that began it.
    asked: Asked,
    /// Set once that was answered: everything up to the stamp is visible, and the store pinned.
    is_told: bool,
    is_pinned: bool,
    begun: BackupBegun,
    /// The log that goes with it: of a copy for a member.
    log: Option<LogPart>,
    state: Saved,
    state_sent: usize,
    /// The first page that was not read yet.
    next: u32,
    pages_sent: u64,
    /// Requests for the next part, in order.
    wanted: VecDeque<u64>,
    /// Pages are being read for the first of them.
    is_reading: bool,
    /// When its progress was looked at last, and how far it was then.
    looked: Now,
    was_at: usize,
}

/// The log of a copy, from the oldest entry on that the stored pages may lack.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogPart {
    replay_from: Stamp,
    /// The entry before the first.
    before: EntryId,
    /// The next entry to read.
    next: LogPosition,
    bytes_sent: usize,
    is_reading: bool,
    /// Set if the reading found nothing, for the log was just being cut: it begins anew after a while.
    was_cut: bool,
    /// The entry of the copy's stamp was sent.
    is_sent: bool,
}

impl Backup {
    /// The progress, in pages.
    fn progress(&self) -> usize {
        let of_log = self.log.map_or(0, |log| log.bytes_sent);
        self.next as usize + (self.state_sent + of_log) / PAGE_BYTES
    }
}

impl Backups {
    /// The position from which on members need the log.
    pub(super) fn kept_from(&self) -> LogPosition {
        self.kept_from
    }

    /// The stamp of the backup under way, if there is one.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        self.current.as_ref().map(|b| b.begun.stamp)
    }

    /// Says whether a taker waits for an answer: it is not silent.
    pub(super) fn owe(&self, conn: Conn) -> bool {
        let is_owed = |b: &Backup| b.asked.conn == conn && (!b.is_told || !b.wanted.is_empty());
        self.current.as_ref().is_some_and(is_owed) || self.readers.owe(conn)
    }
}

/// Time for which a copy waits until all is stable that it has, in microseconds.
const COPY_WAIT_US: u64 = 1_000_000;

/// Pages of a part: they are read one after the other, and a fetch that comes meanwhile waits for them.
const PART_PAGES: u32 = 16;
const _: () = assert!(PART_PAGES as usize <= BACKUP_PAGES_MAX);

impl Sessions {
    /// Begins a copy for a member. A leader gives it before its view's own entry is stable: for that it may
    /// need the member. All that is applied by then is stable.
    pub(super) fn transfer(&mut self, asked: Asked, of: &Transfer, cx: &mut Cx) {
        let Some(status) = cx.work.sequencer.status().filter(|_| of.group == cx.group) else {
            return cx.refuse(asked, Refusal::Denied, "this server is not of that group");
        };
        if status.members.get(of.member).is_none() {
            let text = format!(
                "member {} is not on the list of the group: let an empty directory join, `tercel serve --data DIR --join ADDR`",
                of.member
            );
            return cx.refuse(asked, Refusal::Denied, text);
        }
        if status.leader != Some(status.me) || cx.end != End::Working {
            let text = "this member does not lead the group: a copy is taken from the one that does";
            return cx.refuse(asked, Refusal::Unavailable, text);
        }
        let replay_from = cx.work.pages.replay_from(&cx.work.replica).min(cx.work.pages.visible().next());
        let Some(before) = cx.work.sequencer.entry_of(Stamp(replay_from.0 - 1)) else {
            let text = "the log does not reach back to what the stored pages lack: try again in a moment";
            return cx.refuse(asked, Refusal::Unavailable, text);
        };
        let next = before.position.next();
        let log = LogPart {
            replay_from,
            before,
            next,
            bytes_sent: 0,
            is_reading: false,
            was_cut: false,
            is_sent: false,
        };
        self.backup(asked, Some(log), cx);
    }

    /// The order has the log kept from there on for members that lag.
    pub(crate) fn keep_log_from(&mut self, position: LogPosition, out: &mut Effects) {
        self.backups.kept_from = position;
        out.push(Effect::KeepFrom(position.min(self.backups.readers.needed())));
    }

    pub(super) fn backup(&mut self, asked: Asked, log: Option<LogPart>, cx: &mut Cx) {
        if self.backups.current.is_some() {
            let text =
                "another backup is under way, and a server takes one at a time: try again when it is done";
            return cx.refuse(asked, Refusal::FULL, text);
        }
        if cx.condition.disk_full {
            let text = "the server's disk is full, and a backup would keep it from being made room on: make room first";
            return cx.refuse(asked, Refusal::FULL, text);
        }
        // Rows of counts are shared with the state until that changes them.
        let is_held_lost = match &log {
            Some(_) => dropped(Rule::HeldLostInCopy),
            None => dropped(Rule::HeldLostInBackup),
        };
        let state = match is_held_lost {
            true => {
                let mut lacking = cx.work.replica.clone();
                lacking.prepares = Prepares::default();
                lacking.save()
            }
            false => cx.work.replica.save(),
        };
        let begun = BackupBegun {
            stamp: cx.work.replica.stamp,
            view: cx.work.replica.view(),
            pages_end: cx.work.replica.places.next_page(),
            state_bytes: state.bytes() as u32,
        };
        match &log {
            None => cx.work.pages.mob.freeze(begun.stamp),
            // Another member that lags may need more of it. The order says where from once this one has
            // caught up.
            Some(log) => {
                self.backups.kept_from = log.next.min(self.backups.kept_from);
                self.keep_log(cx);
            }
        }
        // A log of no entries is sent.
        let log = log.map(|log| LogPart { is_sent: log.replay_from > begun.stamp, ..log });
        self.backups.pins += 1;
        let pin = self.backups.pins;
        cx.out.push(Effect::Pin(cx.joined, pin));
        self.backups.current = Some(Backup {
            pin,
            asked,
            is_told: false,
            is_pinned: false,
            begun,
            log,
            state,
            state_sent: 0,
            next: 1,
            pages_sent: 0,
            wanted: VecDeque::new(),
            is_reading: false,
            looked: cx.work.now,
            was_at: 0,
        });
    }

    /// Queues a request for the next part. Refused as `Unavailable` without a backup of this connection, and
    /// as `Full` if too many requests are queued.
    pub(super) fn backup_next(&mut self, asked: Asked, cx: &mut Cx) {
        match self.backups.current.as_mut().filter(|b| b.asked.conn == asked.conn) {
            None => {
                let text = "no backup of this client is under way: begin again";
                cx.refuse(asked, Refusal::Unavailable, text);
            }
            Some(b) if b.wanted.len() >= limits::BACKUP_ASKED_MAX => {
                let text = "a backup's parts are asked for a few at a time";
                cx.refuse(asked, Refusal::FULL, text);
            }
            Some(b) => b.wanted.push_back(asked.call),
        }
    }

    /// The page store is pinned, or cannot be.
    pub(crate) fn pinned(&mut self, pin: u64, result: Result<(), String>, cx: &mut Cx) {
        let Some(backup) = self.backups.current.as_mut().filter(|b| b.pin == pin) else { return };
        match result {
            Ok(()) => backup.is_pinned = true,
            Err(e) => self.end_backup(Refusal::Unavailable, e, cx),
        }
    }

    /// Pages from the first one that was not read yet are here as the pinned store has them; those that it
    /// does not have are left out.
    pub(crate) fn pinned_read(
        &mut self,
        pin: u64,
        result: Result<Vec<(PageId, Vec<u8>)>, String>,
        cx: &mut Cx,
    ) {
        let under_way = self.backups.current.as_mut().filter(|b| b.pin == pin && b.is_reading);
        let Some(backup) = under_way else { return };
        backup.is_reading = false;
        let upto = backup.next.saturating_add(PART_PAGES).min(backup.begun.pages_end);
        let range = std::mem::replace(&mut backup.next, upto)..upto;
        let (stamp, result) = (backup.begun.stamp, result.map_err(|e| (Refusal::Corrupt, e)));
        let pages = match result.and_then(|stored| as_of_backup(range, stored, stamp, cx)) {
            Ok(pages) => pages,
            Err((reason, e)) => return self.end_backup(reason, e, cx),
        };
        let before = cx.work.pages.mob.bytes_aside();
        PageId::new(upto).into_iter().for_each(|page| cx.work.pages.mob.thaw_below(page));
        if cx.work.pages.mob.bytes_aside() < before {
            self.lead(cx, |leader, work| leader.unstall(work));
        }
        // Nothing is there: the next page is looked for at once.
        let Some(backup) = self.backups.current.as_mut().filter(|_| !pages.is_empty()) else { return };
        backup.pages_sent += (pages.len() / PAGE_BYTES) as u64;
        let (conn, call) = (backup.asked.conn, backup.wanted.pop_front());
        if let Some(call) = call {
            send_part(Asked { conn, call }, &BackupPart::Pages { upto, pages: &pages }, cx);
        }
    }

    /// Takes the backup as far as it gets. Called after everything that happens.
    pub(crate) fn drive_backup(&mut self, cx: &mut Cx) {
        self.drive_log_readers(cx);
        let Some(backup) = &self.backups.current else { return };
        if !self.all.contains_key(&backup.asked.conn) {
            return self.drop_backup(cx);
        }
        if cx.condition.disk_full {
            let text = "the server's disk is full: make room there, then begin again";
            return self.end_backup(Refusal::FULL, text, cx);
        }
        self.make_room_of_backup(cx);
        let Some(backup) = &mut self.backups.current else { return };
        let is_visible = backup.begun.stamp <= cx.work.pages.visible() || dropped(Rule::BackupUnsynced);
        if !backup.is_told && backup.is_pinned && is_visible {
            backup.is_told = true;
            backup.looked = cx.work.now;
            let (asked, begun) = (backup.asked, backup.begun);
            let answer = match backup.log {
                None => FromServer::BackupBegun(begun),
                Some(log) => FromServer::TransferBegun(log.begun(&begun)),
            };
            cx.answer(asked, &answer);
        } else if backup.log.is_some() && !is_visible && cx.work.now.since_us(backup.looked) > COPY_WAIT_US {
            stand_down_if_stuck(cx);
        }
        self.send_parts(cx);
    }

    fn send_parts(&mut self, cx: &mut Cx) {
        while let Some(b) = self.backups.current.as_mut().filter(|b| b.is_told && !b.is_reading) {
            let Some(call) = b.wanted.front().copied() else { return };
            let asked = Asked { conn: b.asked.conn, call };
            if b.state_sent < b.state.bytes() {
                let piece = b.state.piece(b.state_sent, limits::PART_BYTES);
                b.state_sent += piece.len();
                b.wanted.pop_front();
                send_part(asked, &BackupPart::State(&piece), cx);
            } else if let Some(from) = PageId::new(b.next).filter(|_| b.next < b.begun.pages_end) {
                b.state = Saved { head: Vec::new(), rows: Vec::new() };
                b.state_sent = 0;
                b.is_reading = true;
                let count = PART_PAGES.min(b.begun.pages_end - b.next);
                if b.log.is_some() && dropped(Rule::PagesBelievedBeyondLog) {
                    // As the pages are by now.
                    cx.out.push(Effect::Pin(cx.joined, b.pin));
                }
                return cx.out.push(Effect::ReadPinned { view: cx.joined, pin: b.pin, from, count });
            } else if let Some(log) = b.log.as_mut().filter(|log| !log.is_sent) {
                // It is read as far as this node's disk has it.
                if !log.is_reading && cx.work.pages.may_store() {
                    log.is_reading = true;
                    cx.out.push(Effect::ReadLog(log.next, limits::PART_BYTES));
                }
                return;
            } else {
                let pages = b.pages_sent;
                send_part(asked, &BackupPart::End { pages }, cx);
                return self.drop_backup(cx);
            }
        }
    }

    /// The log was read, perhaps for a copy.
    pub(crate) fn found_log(&mut self, from: LogPosition, found: &Found, cx: &mut Cx) {
        self.found_for_readers(from, found, cx);
        let Some(backup) = &mut self.backups.current else { return };
        let Some(log) = backup.log.as_mut().filter(|log| log.is_reading && log.next == from) else { return };
        log.was_cut = *found == Found::NotNow;
        if log.was_cut {
            return;
        }
        log.is_reading = false;
        let (stamp, entries) = (backup.begun.stamp, found.entries());
        let entries = &entries[..entries.partition_point(|entry| entry.stamp <= stamp)];
        let Some(last) = entries.last() else {
            let text = "the log was made shorter meanwhile, for it is over its cap: begin again";
            return self.end_backup(Refusal::Unavailable, text, cx);
        };
        log.next = LogPosition(from.0 + entries.len() as u64);
        log.is_sent = last.stamp == stamp;
        let mut bytes = Vec::new();
        put_entries(entries, &mut bytes);
        log.bytes_sent += bytes.len();
        let conn = backup.asked.conn;
        if let Some(call) = backup.wanted.pop_front() {
            send_part(Asked { conn, call }, &BackupPart::Log(&bytes), cx);
        }
    }

    /// Ends a backup whose client takes too little of it: such a client must not keep old pages on the disk
    /// for ever.
    pub(super) fn look_at_backup(&mut self, cx: &mut Cx) {
        let Some(b) = self.backups.current.as_mut().filter(|b| b.is_told) else { return };
        if let Some(log) = b.log.as_mut().filter(|log| log.was_cut) {
            (log.is_reading, log.was_cut) = (false, false);
        }
        if cx.work.now.since_us(b.looked) < limits::BACKUP_WINDOW_US {
            return;
        }
        let moved = b.progress().saturating_sub(b.was_at);
        if b.wanted.is_empty() && moved < limits::BACKUP_WINDOW_PAGES_MIN {
            let text = "the backup made too little progress in a minute and was ended: begin again, \
                        closer to the server or onto a faster disk";
            return self.end_backup(Refusal::Unavailable, text, cx);
        }
        b.looked = cx.work.now;
        b.was_at = b.progress();
    }

    /// A commit may wait for room in the buffer of modified objects. If what is set aside is in its way, the
    /// backup ends: installing would make no room.
    fn make_room_of_backup(&mut self, cx: &mut Cx) {
        let Some(bytes) = cx.leader.as_ref().and_then(|leader| leader.bytes_awaited()) else { return };
        let surplus = (cx.work.pages.mob.bytes() + bytes).saturating_sub(cx.work.config.mob_bytes);
        if surplus > 0 && surplus <= cx.work.pages.mob.bytes_aside() {
            let text = "so much changed during the backup that the server has no memory for the old versions: \
                        try again when there is less to do, or serve with a larger --mob";
            self.end_backup(Refusal::FULL, text, cx);
        }
    }

    /// Ends it and sends its client the reason.
    fn end_backup(&mut self, reason: Refusal, text: impl Into<String>, cx: &mut Cx) {
        if let Some(backup) = &self.backups.current {
            cx.refuse(backup.asked, reason, text);
        }
        self.drop_backup(cx);
    }

    fn drop_backup(&mut self, cx: &mut Cx) {
        let Some(backup) = self.backups.current.take() else { return };
        cx.work.pages.mob.thaw();
        cx.out.push(Effect::Unpin(backup.pin));
        self.lead(cx, |leader, work| leader.unstall(work));
    }
}

/// Leads no longer if what was ordered can become stable by no other disk than that of a member which waits
/// for a copy, and the copy waits for it. What a new view keeps is not applied before it is stable.
fn stand_down_if_stuck(cx: &mut Cx) {
    let Some(group) = cx.work.sequencer.status() else { return };
    let is_able = |id: MemberId| {
        let is_fed = |other: &Other| !other.is_lost && other.is_there(cx.work.now);
        id == group.me || group.others.iter().any(|other| other.id == id && is_fed(other))
    };
    if group.members.voters().filter(|id| is_able(*id)).count() < group.members.quorum() {
        cx.work.sequence(order::Input::StandDown);
    }
}

impl LogPart {
    fn begun(&self, of: &BackupBegun) -> TransferBegun {
        let BackupBegun { stamp, view, pages_end, state_bytes } = *of;
        let LogPart { replay_from, before: EntryId { view: before_view, position }, .. } = *self;
        TransferBegun { stamp, view, pages_end, state_bytes, replay_from, before_view, before: position.0 }
    }
}

fn send_part(asked: Asked, part: &BackupPart<'_>, cx: &mut Cx) {
    let mut body = Vec::new();
    part.encode(&mut body);
    cx.reply(asked.conn, Kind::BackupPart, asked.call, &body);
}

/// The pages of a range as of the backup's stamp, one after the other.
fn as_of_backup(
    range: Range<u32>,
    stored: Vec<(PageId, Vec<u8>)>,
    stamp: Stamp,
    cx: &Cx,
) -> Result<Vec<u8>, (Refusal, String)> {
    let corrupt = |e: &dyn std::fmt::Display| (Refusal::Corrupt, e.to_string());
    let mut pages = Vec::with_capacity(stored.len() * PAGE_BYTES);
    let mut stored = stored.into_iter().peekable();
    for page in range.filter_map(PageId::new) {
        let bytes = stored.next_if(|(p, _)| *p == page).map(|(_, bytes)| bytes);
        // Damage must not travel into a backup under a checksum that is right again.
        let base = match &bytes {
            Some(bytes) => Some(Page::parse(bytes, page).map_err(|e| corrupt(&e))?),
            None => None,
        };
        // The pages of a build that did not store how far they are may be ahead of the state until a leader
        // has said again that the entries between are stable.
        let is_younger = base.is_some_and(|base| base.stamp() > stamp);
        if is_younger && !dropped(Rule::PagesBelievedBeyondLog) {
            let text =
                format!("page {page} is ahead of this server's state, of {stamp}: try again in a moment");
            return Err((Refusal::Unavailable, text));
        }
        match (&bytes, cx.work.pages.mob.differs_frozen(page)) {
            (None, false) => {}
            (Some(bytes), false) => pages.extend_from_slice(bytes),
            (_, true) => {
                let laid = cx.work.pages.mob.merge_page_frozen(page, base, cx.work.space, Vec::new());
                let laid =
                    laid.ok_or_else(|| corrupt(&format!("page {page}: its objects do not fit into it")))?;
                pages.extend(Some(laid).filter(|page| has_objects(page)).unwrap_or_default());
            }
        }
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_pins_go_on_behind_deposition() {
        let mut out = Effects::default();
        let kept_from = LogPosition(7);
        let next = Backups { pins: 3, kept_from, ..Backups::default() }.next(&mut out);
        assert_eq!((next.pins, next.kept_from), (3, kept_from));
    }
}
