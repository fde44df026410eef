//! The end of a large transaction: it goes to the log in pieces, and an entry commits what was staged.
//!
//! Pieces are ordered like everything else, one when the one before is durable, so that no sync carries more of it than a
//! piece, and others' commits go between. What has been staged and not committed when the server's life ends never
//! happened. The invariant: as long as it is not ordered, or a page lacks what it wrote, the log is kept from its
//! first piece on.

use tercel_wire::id::{Oref, PageId, Stamp};

use super::large::{Large, Step};
use super::{Effect, Effects, Flight, Server};
use crate::mutant::{self, Rule, dropped};
use crate::order::{Delivery, Ordering};
use crate::store::entry::{self, Entry};

/// Bytes of a piece. A record of it has less than the 64 KiB up to which one wrong byte can be put right, and syncing it takes
/// little longer than syncing a small commit.
const PIECE_BYTES: usize = 60 << 10;

/// Leased pages that are brought up to date at once, when it is certain that something is made in them.
const LEASES_AT_ONCE: usize = 500;

/// Bytes that are given back to the system at once: some hundred microseconds.
const THROWN_AWAY_BYTES: usize = 1 << 20;

impl Server {
    /// Whether the transaction, which is being staged, can go on now.
    pub(super) fn stage_goes_on(&self, large: &Large) -> bool {
        // The index of recent writes takes in one at a time.
        self.visible >= large.staged && (self.state.is_settled() || !large.is_staged())
    }

    /// The oldest entry of the log that is needed once these pages are stored as everybody sees them now. A replay must not
    /// begin between the first piece of a transaction and its end.
    pub(super) fn log_needed(&self, installing: &[PageId]) -> Option<Stamp> {
        let staging = self.large.as_ref().and_then(|l| l.first).filter(|_| !dropped(Rule::PiecesNotKept));
        let needed = self.mob.oldest(installing, self.visible).into_iter().chain(staging).min()?;
        let within = |(first, end): &&(Stamp, Stamp)| *first < needed && needed <= *end;
        let staged = self.staged.iter().find(within).filter(|_| !dropped(Rule::PiecesNotKept));
        Some(staged.map_or(needed, |(first, _)| *first))
    }

    /// The log is not needed below this entry any more.
    pub(super) fn log_not_needed_below(&mut self, stamp: Stamp) {
        self.replay_from = stamp;
        while self.staged.front().is_some_and(|(_, end)| *end < stamp) {
            self.staged.pop_front();
        }
    }

    /// Orders the next piece, or, behind the last, the transaction. Gives it back if it is not ordered.
    pub(super) fn stage_slice(&mut self, mut large: Box<Large>, out: &mut Effects) -> Option<Box<Large>> {
        if large.head.is_empty() {
            entry::commit_head(large.op, large.placing.placements(), &mut large.head);
            self.state.expect(large.writes.len());
        } else if self.keep_leases(large.conn, &mut large.placing, LEASES_AT_ONCE) {
            return Some(large);
        } else if large.is_staged() {
            self.order_large(large, out);
            return None;
        }
        let at = large.next;
        let piece = large.piece(mutant::bound(PIECE_BYTES, 64));
        let entry = Entry::Stage { op: large.op, at: at as u32, bytes: &piece };
        large.staged = self.order(&entry, None, out);
        if at == 0 {
            large.first = Some(large.staged);
        }
        Some(large)
    }

    /// Gives it its place in the order, and its versions with it.
    fn order_large(&mut self, mut large: Box<Large>, out: &mut Effects) {
        self.evict_for(large.op.client, out);
        let list = large.writes.iter().map(|w| w.oref).collect();
        let page_max = large.changed.iter().map(|oref| oref.page()).max();
        let ticket = self.order.submit();
        let stamp = self.state.apply_large(large.op, list, std::mem::take(&mut large.written), page_max);
        let ordered = self.order.poll();
        debug_assert_eq!(ordered, Some(Delivery::Ordered(ticket, stamp)));
        self.mob.ordered(&large.mark, stamp);
        self.staged.extend(large.first.map(|first| (first, stamp)));
        self.stats.ordered += 1;
        self.stats.commits += 1;
        self.stats.forwards += large.placing.placements().len() as u64;
        if dropped(Rule::FetchUnsynced) {
            large.changed.iter().for_each(|oref| self.images.changed(oref.page()));
        }
        let entry = Entry::CommitStaged { op: large.op, bytes: large.bytes_all() as u32 };
        out.push(Effect::Log { stamp, kind: entry.kind(), payload: entry.encode() });
        let changed: Vec<Oref> = std::mem::take(&mut large.changed);
        self.flights.push_back(Flight { stamp, op: Some(large.op), changed: changed.into() });
        if dropped(Rule::StreamUnsynced) {
            self.show(stamp, out);
        }
        self.spare = std::mem::take(&mut large.bytes);
    }

    /// Gives back some of the bytes of the last large transaction: giving back 64 MB at once takes milliseconds.
    pub(super) fn throw_away(&mut self) {
        let left = self.spare.len().saturating_sub(THROWN_AWAY_BYTES);
        self.spare.truncate(left);
        self.spare.shrink_to_fit();
    }
}

impl Large {
    /// Bytes that its record would have.
    fn bytes_all(&self) -> usize {
        self.head.len() + self.bytes.len()
    }

    /// Whether the last piece was ordered.
    fn is_staged(&self) -> bool {
        self.step == Step::Stage && !self.head.is_empty() && self.next == self.bytes_all()
    }

    /// Takes the next piece of its record.
    fn piece(&mut self, bytes_max: usize) -> Vec<u8> {
        let from = self.next;
        let to = self.bytes_all().min(from + bytes_max);
        let head = self.head.len();
        let mut piece = Vec::with_capacity(to - from);
        piece.extend_from_slice(&self.head[from.min(head)..to.min(head)]);
        piece.extend_from_slice(&self.bytes[from.max(head) - head..to.max(head) - head]);
        self.next = to;
        piece
    }
}
