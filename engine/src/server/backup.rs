//! Backups: everything as of one stamp, handed out part by part while the server works.
//!
//! A backup begins by freezing: the ordered state is written down, the buffer of modified objects keeps from now on what
//! the stamp shows, and the page store is pinned. The pin goes the way of the installs, so what was sent to be installed
//! before is in it and what comes later is not. Entries up to the stamp are all ordered by then but perhaps not durable;
//! nobody hears of the stamp before they are.
//!
//! The invariant: the pinned pages hold nothing younger than the stamp, and whatever of it they lack is in the buffer. It is
//! bounded: one backup at a time, a part only when it was asked for, time without progress, and what is set aside counts
//! among the bytes of the buffer. Commits come first: where one would have to wait for a backup, the backup ends.

use std::collections::VecDeque;

use tercel_wire::frame::Kind;
use tercel_wire::id::{PageId, Stamp};
use tercel_wire::message::{BACKUP_PAGES_MAX, BackupBegun, BackupPart, Reason};
use tercel_wire::page::{PAGE_BYTES, Page};

use super::{Conn, Effect, Effects, Server};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::time::Now;

/// A backup under way.
pub(super) struct Backup {
    /// Names the pin of the page store.
    pin: u64,
    conn: Conn,
    /// What it was begun by.
    call: u64,
    /// Whether that was answered: everything up to the stamp is durable, and the store pinned.
    is_told: bool,
    is_pinned: bool,
    begun: BackupBegun,
    state: Vec<u8>,
    state_sent: usize,
    /// The first page that was not read yet.
    next: u32,
    pages_sent: u64,
    /// Requests for the next part, in order.
    asked: VecDeque<u64>,
    /// Pages are being read for the first of them.
    is_reading: bool,
    /// When its progress was looked at last, and how far it was then.
    looked: Now,
    was_at: usize,
}

impl Backup {
    /// How far it is, in pages.
    fn progress(&self) -> usize {
        self.next as usize + self.state_sent / PAGE_BYTES
    }
}

/// Pages of a part: they are read one after the other, and a fetch that comes meanwhile waits for them.
const PART_PAGES: u32 = 16;
const _: () = assert!(PART_PAGES as usize <= BACKUP_PAGES_MAX);

impl Server {
    pub(super) fn backup(&mut self, conn: Conn, call: u64, out: &mut Effects) {
        if self.backup.is_some() {
            let text =
                "another backup is under way, and a server takes one at a time: try again when it is done";
            return self.refuse(conn, call, Reason::Full, text, out);
        }
        if self.disk_full {
            let text = "the server's disk is full, and a backup would keep it from being made room on: make room first";
            return self.refuse(conn, call, Reason::Full, text, out);
        }
        let state = self.state.encode();
        let begun = BackupBegun {
            stamp: self.state.stamp,
            view: self.state.view,
            pages_end: self.state.next_page,
            state_bytes: state.len() as u32,
        };
        self.mob.freeze(begun.stamp);
        self.pins += 1;
        out.push(Effect::Pin(self.pins));
        self.backup = Some(Backup {
            pin: self.pins,
            conn,
            call,
            is_told: false,
            is_pinned: false,
            begun,
            state,
            state_sent: 0,
            next: 1,
            pages_sent: 0,
            asked: VecDeque::new(),
            is_reading: false,
            looked: self.now,
            was_at: 0,
        });
    }

    /// Somebody can take another part.
    pub(super) fn backup_next(&mut self, conn: Conn, call: u64, out: &mut Effects) {
        match self.backup.as_mut().filter(|b| b.conn == conn) {
            None => {
                let text = "no backup of this client is under way: begin again";
                self.refuse(conn, call, Reason::Unavailable, text, out);
            }
            Some(b) if b.asked.len() >= limits::BACKUP_ASKED_MAX => {
                let text = "a backup's parts are asked for a few at a time";
                self.refuse(conn, call, Reason::Full, text, out);
            }
            Some(b) => b.asked.push_back(call),
        }
    }

    /// The page store is pinned, or cannot be.
    pub(super) fn pinned(&mut self, pin: u64, result: Result<(), String>, out: &mut Effects) {
        let Some(backup) = self.backup.as_mut().filter(|b| b.pin == pin) else { return };
        match result {
            Ok(()) => backup.is_pinned = true,
            Err(e) => self.end_backup(Reason::Unavailable, e, out),
        }
    }

    /// Pages from the first one that was not read yet are here as the pinned store has them; those that it does not have
    /// are left out.
    pub(super) fn pinned_read(
        &mut self,
        pin: u64,
        result: Result<Vec<(PageId, Vec<u8>)>, String>,
        out: &mut Effects,
    ) {
        let Some(backup) = self.backup.as_mut().filter(|b| b.pin == pin && b.is_reading) else { return };
        backup.is_reading = false;
        let upto = backup.next.saturating_add(PART_PAGES).min(backup.begun.pages_end);
        let range = std::mem::replace(&mut backup.next, upto)..upto;
        let pages = match result.and_then(|stored| self.as_of_backup(range, stored)) {
            Ok(pages) => pages,
            Err(e) => return self.end_backup(Reason::Corrupt, e, out),
        };
        let before = self.mob.bytes_aside();
        PageId::new(upto).into_iter().for_each(|page| self.mob.thaw_below(page));
        if self.mob.bytes_aside() < before {
            self.unstall(out);
        }
        // Nothing is there: what comes behind it is looked for at once.
        let Some(backup) = self.backup.as_mut().filter(|_| !pages.is_empty()) else { return };
        backup.pages_sent += (pages.len() / PAGE_BYTES) as u64;
        let (conn, call) = (backup.conn, backup.asked.pop_front());
        if let Some(call) = call {
            self.backup_part(conn, call, &BackupPart::Pages { upto, pages: &pages }, out);
        }
    }

    /// The pages of a range as of the backup's stamp, one after the other.
    fn as_of_backup(
        &self,
        range: std::ops::Range<u32>,
        stored: Vec<(PageId, Vec<u8>)>,
    ) -> Result<Vec<u8>, String> {
        let mut pages = Vec::with_capacity(stored.len() * PAGE_BYTES);
        let mut stored = stored.into_iter().peekable();
        for page in range.filter_map(PageId::new) {
            let bytes = stored.next_if(|(p, _)| *p == page).map(|(_, bytes)| bytes);
            // Damage must not travel into a backup under a checksum that is right again.
            let base = match &bytes {
                Some(bytes) => Some(Page::parse(bytes, page).map_err(|e| e.to_string())?),
                None => None,
            };
            match (&bytes, self.mob.differs_frozen(page)) {
                (None, false) => {}
                (Some(bytes), false) => pages.extend_from_slice(bytes),
                (_, true) => {
                    let laid = self.mob.overlay_frozen(page, base, self.space, Vec::new());
                    pages.extend(laid.ok_or_else(|| format!("page {page}: its objects do not fit into it"))?);
                }
            }
        }
        Ok(pages)
    }

    fn backup_part(&self, conn: Conn, call: u64, part: &BackupPart<'_>, out: &mut Effects) {
        let mut body = Vec::new();
        part.encode(&mut body);
        self.reply(conn, Kind::BackupPart, call, &body, out);
    }

    /// Takes the backup as far as it gets. Called after everything that happens.
    pub(super) fn drive_backup(&mut self, out: &mut Effects) {
        let Some(backup) = &self.backup else { return };
        if !self.sessions.contains_key(&backup.conn) {
            return self.drop_backup(out);
        }
        if self.disk_full {
            let text = "the server's disk is full: make room there, then begin again";
            return self.end_backup(Reason::Full, text, out);
        }
        let Some(backup) = &mut self.backup else { return };
        let is_durable = backup.begun.stamp <= self.visible || dropped(Rule::BackupUnsynced);
        if !backup.is_told && backup.is_pinned && is_durable {
            backup.is_told = true;
            backup.looked = self.now;
            let (conn, call, begun) = (backup.conn, backup.call, backup.begun);
            let mut body = Vec::new();
            begun.encode(&mut body);
            self.reply(conn, Kind::BackupBegun, call, &body, out);
        }
        self.send_parts(out);
    }

    fn send_parts(&mut self, out: &mut Effects) {
        while let Some(b) = self.backup.as_mut().filter(|b| b.is_told && !b.is_reading) {
            let Some(call) = b.asked.front().copied() else { return };
            if b.state_sent < b.state.len() {
                let from = b.state_sent;
                b.state_sent = b.state.len().min(from + limits::PART_BYTES);
                let piece = b.state[from..b.state_sent].to_vec();
                b.asked.pop_front();
                let conn = b.conn;
                self.backup_part(conn, call, &BackupPart::State(&piece), out);
            } else if let Some(from) = PageId::new(b.next).filter(|_| b.next < b.begun.pages_end) {
                b.state = Vec::new();
                b.state_sent = 0;
                b.is_reading = true;
                let count = PART_PAGES.min(b.begun.pages_end - b.next);
                return out.push(Effect::ReadPinned { pin: b.pin, from, count });
            } else {
                let (conn, pages) = (b.conn, b.pages_sent);
                self.backup_part(conn, call, &BackupPart::End { pages }, out);
                return self.drop_backup(out);
            }
        }
    }

    /// Whether the client still takes what it asked for. One that does not must not keep old pages on the disk for ever.
    pub(super) fn look_at_backup(&mut self, out: &mut Effects) {
        let now = self.now;
        let Some(b) = self.backup.as_mut().filter(|b| b.is_told) else { return };
        if now.since_us(b.looked) < limits::BACKUP_WINDOW_US {
            return;
        }
        let moved = b.progress().saturating_sub(b.was_at);
        if b.asked.is_empty() && moved < limits::BACKUP_WINDOW_PAGES_MIN {
            let text = "the backup made too little progress in a minute and was ended: begin again, \
                        closer to the server or onto a faster disk";
            return self.end_backup(Reason::Unavailable, text, out);
        }
        b.looked = now;
        b.was_at = b.progress();
    }

    /// A commit needs this much room in the buffer of modified objects. If what is set aside is in its way, the backup ends:
    /// installing would make no room.
    pub(super) fn make_room_of_backup(&mut self, bytes: usize, out: &mut Effects) {
        let surplus = (self.mob.bytes() + bytes).saturating_sub(self.config.mob_bytes);
        if surplus > 0 && surplus <= self.mob.bytes_aside() {
            let text = "so much changed during the backup that the server has no memory for the old versions: \
                        try again when there is less to do, or serve with a larger --mob";
            self.end_backup(Reason::Full, text, out);
        }
    }

    /// Ends it and tells its client why.
    fn end_backup(&mut self, reason: Reason, text: impl Into<String>, out: &mut Effects) {
        if let Some(backup) = &self.backup {
            self.refuse(backup.conn, backup.call, reason, text, out);
        }
        self.drop_backup(out);
    }

    fn drop_backup(&mut self, out: &mut Effects) {
        let Some(backup) = self.backup.take() else { return };
        self.mob.thaw();
        out.push(Effect::Unpin(backup.pin));
        self.unstall(out);
    }

    /// The stamp of the backup under way, if there is one.
    pub(super) fn backup_stamp(&self) -> Option<Stamp> {
        self.backup.as_ref().map(|b| b.begun.stamp)
    }
}
