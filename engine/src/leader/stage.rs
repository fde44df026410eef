//! The end of a large transaction: it goes to the order in pieces, and an entry commits what was staged.
//!
//! Pieces are ordered like everything else, one when the one before is visible, so that no sync carries more
//! of it than a piece, and others' commits go between. What has been staged and not committed when the view
//! ends never happened. The invariant: as long as it is not ordered, or a page lacks what it wrote, the log
//! is kept from its first piece on.

use tercel_wire::id::Stamp;

use super::large::Large;
use super::{Leader, Work};
use crate::mutant;
use crate::replica::Replica;
use crate::replica::entry::{Entry, Head};

/// Bytes of a piece. A record of it has less than the 64 KiB up to which one wrong byte can be put right, and
/// syncing it takes little longer than syncing a small commit.
const PIECE_BYTES: usize = 60 << 10;

/// Bytes that are given back to the system at once: some hundred microseconds.
const THROWN_AWAY_BYTES: usize = 1 << 20;

impl Leader {
    /// Orders the next piece, or, after the last, the transaction.
    pub(super) fn stage_slice(&mut self, mut large: Box<Large>, work: &mut Work) {
        if large.record.head.is_empty() {
            let (asked, op, classes) = (large.asked, large.op, std::mem::take(&mut large.record.classes));
            if let Err(lack) = work.judge_rights(asked, large.record.called, classes.into_iter()) {
                self.large = Some(large);
                self.end_large();
                return self.denied(asked, op, &lack, work);
            }
            self.own(asked, op.client, work);
            let head = Head {
                op: large.op,
                digest: large.digest,
                reply: std::mem::take(&mut large.record.reply),
                placements: large.placing.placements().to_vec(),
                named: std::mem::take(&mut large.record.named),
                filled: std::mem::take(&mut large.record.filled),
                left: large.placing.left.clone(),
                released: std::mem::take(&mut large.placing.released),
                births: large.placing.take_births(),
            };
            head.encode(&mut large.record.head);
            work.replica.recent.expect(large.writes.len());
        } else if large.is_staged() {
            return self.order_large(large, work);
        }
        let at = large.next as u32;
        let piece = large.piece(mutant::bound(PIECE_BYTES, 64));
        let entry = Entry::Stage { op: large.op, at, bytes: &piece };
        let stamp = self.order(&entry, None, work);
        large.record.staged = Some(stamp);
        self.large = Some(large);
    }

    /// Gives it its place in the order, and its versions with it.
    fn order_large(&mut self, mut large: Box<Large>, work: &mut Work) {
        self.evict_for(large.op, 0, work);
        work.stats.commits += 1;
        work.stats.forwards += large.placing.placements().len() as u64;
        large.writes.iter().for_each(|w| self.reclaiming.collecting.wrote(w.oref, w.new));
        self.moved(large.placing.placements(), &large.placing.left);
        let entry = Entry::CommitStaged { op: large.op, bytes: large.bytes_all() as u32 };
        self.order(&entry, Some((large.op, large.record.is_call)), work);
        self.spare = std::mem::take(&mut large.bytes);
        self.waiting.behind_due = true;
    }

    /// Gives back some of the bytes of the last large transaction: giving back 64 MB at once takes
    /// milliseconds.
    pub(super) fn throw_away(&mut self) {
        let left = self.spare.len().saturating_sub(THROWN_AWAY_BYTES);
        self.spare.truncate(left);
        self.spare.shrink_to_fit();
    }
}

impl Large {
    /// Says whether the next piece can be ordered now, or the transaction.
    pub(super) fn may_stage(&self, visible: Stamp, replica: &Replica) -> bool {
        // The index of recent writes takes in one at a time.
        self.record.staged.is_none_or(|staged| visible >= staged)
            && (replica.recent.is_index_complete() || !self.is_staged())
    }

    /// Bytes that its record would have.
    fn bytes_all(&self) -> usize {
        self.record.head.len() + self.bytes.len()
    }

    /// Says whether the last piece was ordered.
    fn is_staged(&self) -> bool {
        !self.record.head.is_empty() && self.next == self.bytes_all()
    }

    /// Takes the next piece of its record.
    fn piece(&mut self, bytes_max: usize) -> Vec<u8> {
        let from = self.next;
        let to = self.bytes_all().min(from + bytes_max);
        let head = self.record.head.len();
        let mut piece = Vec::with_capacity(to - from);
        piece.extend_from_slice(&self.record.head[from.min(head)..to.min(head)]);
        piece.extend_from_slice(&self.bytes[from.max(head) - head..to.max(head) - head]);
        self.next = to;
        piece
    }
}
