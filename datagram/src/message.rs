//! Messages in pieces: at their sender, and at their receiver.

use std::sync::Arc;

use tercel_machine::mutant::{Rule, dropped};
use tercel_machine::time::Now;

use crate::Packets;
use crate::packet::{Body, Head, RANGES_MAX, Report, encode};
use crate::path::{CREDIT_BYTES, Path};
use crate::ranges::Ranges;

/// A message on its way. All its pieces are sent back to back, within the receiver's credit and the window of
/// the path; the last asks for a report, and what that misses is sent again (a blast, Zwaenepoel 1985).
#[derive(Debug)]
pub(crate) struct Outgoing {
    bytes: Arc<Vec<u8>>,
    /// The first byte that was never sent.
    next: u32,
    /// The receiver takes bytes before this one.
    granted: u32,
    /// Missing at the receiver.
    again: Vec<(u32, u32)>,
    /// The number of the newest report, and the bytes that it has.
    report: u32,
    came: u32,
    /// Under way, for the path's account.
    flying: u32,
    /// Reports and questions without progress, one after the other.
    stuck: u8,
}

impl Outgoing {
    pub(crate) fn new(bytes: Arc<Vec<u8>>) -> Outgoing {
        let again = Vec::new();
        Outgoing { bytes, next: 0, granted: CREDIT_BYTES, again, report: 0, came: 0, flying: 0, stuck: 0 }
    }

    pub(crate) fn total(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// The range to send next.
    fn range(&self, path: &Path) -> Option<(u32, u32)> {
        let (from, to) = match self.again.first() {
            Some(range) => *range,
            None => (self.next, self.total().min(self.granted)),
        };
        (from < to).then(|| (from, to.min(from + path.piece_bytes())))
    }

    /// Sends what may be sent.
    pub(crate) fn send<A: Copy>(
        &mut self,
        now: Now,
        path: &mut Path,
        head: Head,
        to: A,
        out: &mut Packets<A>,
    ) {
        let is_large = self.total() > path.piece_bytes();
        while let Some((from, end)) = self.range(path).filter(|range| self.may_send(now, path, *range)) {
            match self.again.first_mut() {
                Some(range) if range.1 == end => _ = self.again.remove(0),
                Some(range) => range.0 = end,
                None => self.next = end,
            }
            self.flies(now, path, if is_large { self.flying + (end - from) } else { 0 });
            let is_last = self.range(path).is_none_or(|range| !self.may_send(now, path, range));
            self.piece(path, Head { asks: is_large && is_last, ..head }, (from, end), (now, to), out);
        }
        if is_large && let Some(size) = path.try_size(now) {
            let (stamp, echo) = path.stamps(now);
            out.packet(to, |bytes| encode(&Head { stamp, echo, ..head }, &Body::Probe { size }, bytes));
        }
    }

    fn piece<A>(
        &self,
        path: &Path,
        head: Head,
        (from, end): (u32, u32),
        (now, to): (Now, A),
        out: &mut Packets<A>,
    ) {
        let (stamp, echo) = path.stamps(now);
        let bytes = &self.bytes[from as usize..end as usize];
        let piece = Body::Piece { total: self.total(), at: from, bytes };
        out.packet(to, |bytes| encode(&Head { stamp, echo, ..head }, &piece, bytes));
    }

    /// Nothing was heard for long: what is under way counts as lost, and the end of it is sent again to ask.
    pub(crate) fn ask<A: Copy>(
        &mut self,
        now: Now,
        path: &mut Path,
        head: Head,
        to: A,
        out: &mut Packets<A>,
    ) {
        self.flies(now, path, 0);
        self.no_progress(path);
        if self.next == 0 {
            return self.send(now, path, head, to, out);
        }
        path.lost(now, 1, 1);
        let from = self.next.saturating_sub(path.piece_bytes());
        self.piece(path, Head { asks: true, ..head }, (from, self.next), (now, to), out);
    }

    /// The receiver says what has come. One that names more than was sent is not believed.
    pub(crate) fn reported(&mut self, now: Now, path: &mut Path, report: &Report, is_asked_for: bool) {
        let is_old = report.number <= self.report;
        if is_old || report.end > self.next && !dropped(Rule::ReportBelieved) {
            return;
        }
        self.report = report.number;
        self.granted = self.granted.max(report.granted);
        let missing: u32 = report.missing.iter().map(|(from, to)| to - from).sum();
        let came = report.end - missing;
        let new = came.saturating_sub(self.came);
        path.came(new);
        if came > self.came {
            (self.came, self.stuck) = (came, 0);
        } else {
            self.no_progress(path);
        }
        if missing > 0 {
            path.lost(now, missing, missing + new);
        }
        self.again.clone_from(&report.missing);
        if is_asked_for {
            // The receiver has waited: what is behind the end is lost too.
            self.next = report.end;
        }
        self.flies(now, path, self.next - report.end);
    }

    /// Several times in a row nothing of it has come: its packets may be too large.
    fn no_progress(&mut self, path: &mut Path) {
        self.stuck += 1;
        if self.stuck == STUCK_MAX {
            self.stuck = 0;
            path.shrink_packets();
        }
    }

    /// Says whether the receiver has all of it.
    pub(crate) fn is_whole(&self, report: &Report) -> bool {
        report.is_whole(self.total()) && report.end <= self.next
    }

    /// Nothing of it is under way any more.
    pub(crate) fn end(&mut self, path: &mut Path) {
        path.came(self.flying);
        self.flies(Now(0), path, 0);
        self.stuck = 0;
    }

    /// So many bytes of it are under way now.
    fn flies(&mut self, now: Now, path: &mut Path, bytes: u32) {
        path.flies(now, self.flying, bytes);
        self.flying = bytes;
    }

    /// One packet of each message may always be under way.
    fn may_send(&self, now: Now, path: &Path, (from, end): (u32, u32)) -> bool {
        self.flying == 0 || path.has_room(now, end - from)
    }
}

/// A message that comes in pieces.
#[derive(Debug)]
pub(crate) struct Incoming {
    total: u32,
    bytes: Vec<u8>,
    has: Ranges,
    came: u32,
    granted: u32,
    reports: u32,
}

/// The end of a piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Took {
    /// The packet was here already, or cannot be taken.
    Nothing,
    /// The message lacks others.
    Piece,
    /// The receiver allows more, and says so.
    Granted,
    /// The message is whole.
    All,
}

impl Incoming {
    /// A message of so many bytes: its memory grows with what comes.
    pub(crate) fn new(total: u32) -> Incoming {
        let granted = total.min(CREDIT_BYTES);
        Incoming { total, bytes: Vec::new(), has: Ranges::default(), came: 0, granted, reports: 0 }
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn take(&mut self, total: u32, at: u32, piece: &[u8]) -> Took {
        let end = at.saturating_add(piece.len() as u32);
        if total != self.total || end > self.granted {
            return Took::Nothing;
        }
        let new = match self.has.add(at, end, RANGES_MAX) {
            None | Some(0) => return Took::Nothing,
            Some(new) => new,
        };
        if self.bytes.is_empty() {
            self.bytes.reserve(self.total.min(RESERVED_BYTES) as usize);
        }
        if self.bytes.len() == at as usize {
            // Most come in order: what they fill is not emptied before.
            self.bytes.extend_from_slice(piece);
        } else {
            let bytes = self.bytes.len().max(end as usize);
            self.bytes.resize(bytes, 0);
            self.bytes[at as usize..end as usize].copy_from_slice(piece);
        }
        self.came += new;
        if self.came == self.total {
            return Took::All;
        }
        let granted = self.total.min(self.has.prefix() + CREDIT_BYTES);
        if granted >= self.granted + CREDIT_BYTES / 2 {
            self.granted = granted;
            return Took::Granted;
        }
        Took::Piece
    }

    /// A report of the parts that have come.
    pub(crate) fn report(&mut self) -> Report {
        self.reports += 1;
        self.granted = self.granted.max(self.total.min(self.has.prefix() + CREDIT_BYTES));
        let (missing, end) = self.has.missing(RANGES_MAX);
        Report { number: self.reports, granted: self.granted, end, missing }
    }

    /// The message, once it is whole.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Memory that is reserved for a message, and not touched, when its first piece comes.
const RESERVED_BYTES: u32 = 1 << 20;

/// Reports and questions without progress after which packets may be too large.
const STUCK_MAX: u8 = 3;
