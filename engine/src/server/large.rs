//! Large transactions, a slice at a time: whatever one transaction writes, others are served, and commit, between its slices.
//!
//! One is worked on at a time. It is checked, and its pages are brought here, while others do as they like. From the moment in
//! which it is judged until it is ordered it *holds* what it read and what it writes: who writes any of that waits until then,
//! and so does who makes objects in the pages that it fills. All others are judged, placed and ordered as ever, before it. So
//! whatever was found out about it stays true although it took many slices.
//!
//! As its writes find their places they are put into the buffer of modified objects, under a mark, which nobody sees but who
//! looks for room. Then it goes to the log in pieces, one after the other, and at last an entry of a few bytes commits it
//! ([`super::stage`]): the mark gets its stamp, and all of it becomes visible in one step. Until its first piece it can be
//! dropped, and what is in the buffer is taken back; from then on it is committed whatever becomes of its client.

use std::collections::VecDeque;

use tercel_wire::cursor::{DecodeError, Reader};
use tercel_wire::id::{OpId, Oref, PageId, Stamp};
use tercel_wire::message::{Effects as TxEffects, Outcome, Reason, Write};

use super::place::Placing;
use super::reads::Waiter;
use super::{Conn, Effects, Server};
use crate::mutant::{self, Rule, dropped};
use crate::store::when::{Mark, When};
use crate::table::Set;

/// See the module.
pub(super) struct Large {
    /// Tells its reads from those of another.
    id: u64,
    pub conn: Conn,
    call: u64,
    pub op: OpId,
    /// What is not yet in `bytes`, in its order, and how much of the first of them is.
    parts: VecDeque<Vec<u8>>,
    part_at: usize,
    pub(super) bytes: Vec<u8>,
    base: Stamp,
    reads: Vec<Oref>,
    pub(super) writes: Vec<At>,
    /// How many reads, or writes, are still to be decoded.
    left: usize,
    /// What it read, and what it writes.
    read: Set<Oref>,
    pub(super) written: Set<Oref>,
    pub(super) placing: Placing,
    /// Of its versions in the buffer.
    pub(super) mark: Mark,
    /// The references that it changes, as readers know them.
    pub(super) changed: Vec<Oref>,
    /// What its record in the log begins with.
    pub(super) head: Vec<u8>,
    /// Its first piece in the log, and its last so far.
    pub(super) first: Option<Stamp>,
    pub(super) staged: Stamp,
    pub(super) step: Step,
    /// How far the step is.
    pub(super) next: usize,
    /// Pages that it waits for.
    missing: usize,
    /// How often the pages of this slice did not stay here together: it is so many times halved.
    tries: u32,
}

/// A write, and where in the transaction's bytes its object is.
pub(super) struct At {
    pub oref: Oref,
    new: bool,
    at: u32,
    len: u16,
}

impl At {
    fn range(&self) -> std::ops::Range<usize> {
        self.at as usize..self.at as usize + self.len as usize
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The parts in which it came are put together.
    Gather,
    /// Its base is decoded.
    Head,
    /// What it read is decoded.
    Reads,
    /// What it writes is decoded.
    Writes,
    /// Objects are what their classes say, and none is written twice.
    Check,
    /// Pages are brought here, so that few are missing later, when others wait.
    Warm,
    /// Nothing that was read has been written since.
    Certify,
    /// The places of new objects are the client's.
    Expect,
    /// Everything finds a place and is put there.
    Place,
    /// It will not be committed: what was put into the buffer is taken back.
    Undo,
    /// It goes to the log in pieces, and is ordered behind the last.
    Stage,
}

impl Step {
    /// Whether it holds what it read and writes.
    fn holds(self) -> bool {
        matches!(self, Step::Certify | Step::Expect | Step::Place | Step::Undo | Step::Stage)
    }
}

/// Bytes from which on a transaction is worked on in slices: what a turn of the loop handles in some hundred
/// microseconds.
const LARGE_BYTES: usize = 64 << 10;

/// Writes, or reads to be certified, of a slice: a hundred microseconds or two.
const SLICE_WRITES: usize = 250;

/// References, or writes, that are decoded in a slice, which is quick.
const SLICE_READS: usize = 2_000;

/// Bytes of a slice where bytes are what takes the time.
const SLICE_BYTES: usize = 64 << 10;

/// Whether a transaction of so many bytes is worked on in slices.
pub(super) fn is_large(bytes: usize) -> bool {
    bytes > mutant::bound(LARGE_BYTES, 200)
}

/// How a slice ended: a refusal ends the transaction.
type Sliced = Result<(), Outcome>;

impl Large {
    /// Puts some more of what came together.
    fn gather_slice(&mut self) {
        let Some(part) = self.parts.front() else {
            self.step = Step::Head;
            return;
        };
        let end = part.len().min(self.part_at + SLICE_BYTES);
        self.bytes.extend_from_slice(&part[self.part_at..end]);
        self.part_at = end;
        if end == part.len() {
            self.parts.pop_front();
            self.part_at = 0;
        }
    }

    /// Decodes some more; `next` is where in the bytes it goes on.
    fn decode_slice(&mut self) -> Result<(), DecodeError> {
        let mut r = Reader::new(&self.bytes[self.next..]);
        match self.step {
            Step::Head => {
                (self.base, self.left) = TxEffects::decode_head(&mut r)?;
                self.reads.reserve_exact(self.left);
                self.read.reserve(self.left);
                self.step = Step::Reads;
            }
            Step::Reads => {
                for _ in 0..self.left.min(SLICE_READS) {
                    let oref = TxEffects::decode_read(&mut r)?;
                    self.reads.push(oref);
                    self.read.insert(oref);
                    self.left -= 1;
                }
                if self.left == 0 {
                    self.left = TxEffects::decode_count(&mut r)?;
                    self.writes.reserve_exact(self.left);
                    self.written.reserve(self.left);
                    self.step = Step::Writes;
                }
            }
            _ => {
                for _ in 0..self.left.min(SLICE_READS) {
                    let w = Write::decode(&mut r)?;
                    let at = self.bytes.len() - r.rest().len() - w.object.len();
                    self.writes.push(At {
                        oref: w.oref,
                        new: w.new,
                        at: at as u32,
                        len: w.object.len() as u16,
                    });
                    self.left -= 1;
                }
                if self.left == 0 {
                    r.end()?;
                    (self.step, self.next) = (Step::Check, 0);
                    return Ok(());
                }
            }
        }
        self.next = self.bytes.len() - r.rest().len();
        Ok(())
    }

    fn writes(&self, range: std::ops::Range<usize>) -> Vec<Write<'_>> {
        let writes = self.writes[range].iter();
        writes.map(|w| Write { oref: w.oref, new: w.new, object: &self.bytes[w.range()] }).collect()
    }

    /// The next writes of a slice, few enough for the page cache to hold all their pages.
    fn slice(&self, pages_max: usize) -> std::ops::Range<usize> {
        let mut end = self.next;
        let (mut pages, mut bytes) = (0, 0);
        let mut last = None;
        let writes_max = mutant::bound(SLICE_WRITES, 2) >> self.tries.min(16);
        for w in self.writes[self.next..].iter().take(writes_max.max(1)) {
            if last.replace(w.oref.page()) != Some(w.oref.page()) {
                pages += 1;
            }
            bytes += w.len as usize;
            if end > self.next && (pages > pages_max || bytes > SLICE_BYTES) {
                break;
            }
            end += 1;
        }
        self.next..end
    }

    /// Where the writes of a slice go that go elsewhere, by index.
    fn placements(&self, slice: &std::ops::Range<usize>) -> &[(u32, Oref)] {
        let all = self.placing.placements();
        let at = |i: usize| all.partition_point(|(write, _)| (*write as usize) < i);
        &all[at(slice.start)..at(slice.end)]
    }

    /// Whether new objects are made in this page.
    pub(super) fn fills(&self, page: PageId) -> bool {
        self.placing.fills(page)
    }

    /// Whether a transaction may not be placed before this one is ordered.
    fn holds(&self, effects: &TxEffects<'_>) -> bool {
        let held = |w: &Write<'_>| self.read.contains(&w.oref) || self.written.contains(&w.oref);
        self.step.holds() && effects.writes.iter().any(|w| held(w) || w.new && self.fills(w.oref.page()))
    }

    /// Goes on behind a slice, or to the next step.
    fn done(&mut self, end: usize, of: usize, then: Step) {
        self.next = end;
        if end >= of {
            (self.step, self.next) = (then, 0);
        }
    }
}

impl Server {
    /// Begins to work on a transaction.
    pub(super) fn begin_large(&mut self, conn: Conn, call: u64, op: OpId, parts: Vec<Vec<u8>>) {
        self.parked_last += 1;
        let bytes = Vec::with_capacity(parts.iter().map(Vec::len).sum());
        self.large = Some(Box::new(Large {
            id: self.parked_last,
            conn,
            call,
            op,
            base: Stamp::ZERO,
            reads: Vec::new(),
            writes: Vec::new(),
            left: 0,
            read: Set::default(),
            written: Set::default(),
            placing: Placing::default(),
            mark: Mark::default(),
            changed: Vec::new(),
            head: Vec::new(),
            first: None,
            staged: Stamp::ZERO,
            parts: parts.into(),
            part_at: 0,
            bytes,
            step: Step::Gather,
            next: 0,
            missing: 0,
            tries: 0,
        }));
    }

    /// Whether a commit must wait for a large one that holds what it writes.
    pub(super) fn large_holds(&self, effects: &TxEffects<'_>) -> bool {
        self.large.as_ref().is_some_and(|l| l.holds(effects)) && !dropped(Rule::HeldIgnored)
    }

    /// Whether a large transaction is of the same slot of the same client: a slot's operations are executed in their order.
    pub(super) fn large_precedes(&self, op: OpId) -> bool {
        self.large.as_ref().is_some_and(|l| (l.op.client, l.op.slot) == (op.client, op.slot))
    }

    /// Whether the operation will be committed and is not yet ordered.
    pub(super) fn large_will_end(&self, op: OpId) -> bool {
        self.large.as_ref().is_some_and(|l| l.op == op && l.first.is_some())
    }

    /// Whether there is a slice to be done.
    pub(super) fn large_wants(&self) -> bool {
        self.large
            .as_ref()
            .is_some_and(|l| l.missing == 0 && (l.step != Step::Stage || self.stage_goes_on(l)))
    }

    /// Lets go of a transaction whose client is gone or wants to hear that it was not executed, if it is not being staged
    /// yet. Those who waited behind it are tried again soon.
    pub(super) fn drop_large(&mut self, which: impl Fn(&Large) -> bool) {
        let Some(large) = self.large.as_mut().filter(|l| which(l)) else { return };
        match large.step {
            // It is finished, but nobody will make anything more in the pages that it fills.
            Step::Stage if large.first.is_some() => large.placing.let_leases_go(),
            Step::Undo => {}
            _ => self.undo_large(),
        }
    }

    /// Ends a transaction that will not be committed, once nothing of it is in the buffer.
    fn undo_large(&mut self) {
        let Some(large) = &mut self.large else { return };
        let placed = match large.step {
            Step::Place => large.next,
            Step::Stage => large.writes.len(),
            _ => 0,
        };
        if placed == 0 {
            return self.end_large();
        }
        // Nothing that it still waits for matters.
        large.writes.truncate(placed);
        (large.step, large.next, large.missing, large.tries) = (Step::Undo, 0, 0, 0);
        self.parked_last += 1;
        large.id = self.parked_last;
    }

    /// Nothing of it is left but its bytes. Those who waited behind it are tried again soon.
    fn end_large(&mut self) {
        self.spare = self.large.take().map_or(Vec::new(), |large| large.bytes);
        self.behind_due = true;
    }

    /// Those who waited behind a large transaction are tried again.
    pub(super) fn go_on_behind(&mut self, out: &mut Effects) {
        if self.large.is_none() && std::mem::take(&mut self.behind_due) {
            for id in std::mem::take(&mut self.behind) {
                self.unpark(id, out);
            }
        }
    }

    /// A page that it waited for is here, or damaged.
    pub(super) fn large_read(&mut self, id: u64, failed: Option<&str>, out: &mut Effects) {
        let Some(large) = self.large.as_mut().filter(|l| l.id == id) else { return };
        large.missing -= 1;
        if let Some(why) = failed {
            let (conn, call, op) = (large.conn, large.call, large.op);
            self.undo_large();
            self.refuse(conn, call, Reason::Corrupt, why, out);
            self.not_executed(conn, call, op, Outcome::NotExecuted, out);
        }
    }

    /// Does a slice.
    pub(super) fn go_on_large(&mut self, out: &mut Effects) {
        if !self.large_wants() {
            return;
        }
        let Some(mut large) = self.large.take() else { return };
        let sliced = match large.step {
            Step::Gather => {
                large.gather_slice();
                Ok(())
            }
            Step::Head | Step::Reads | Step::Writes => {
                if let Err(e) = large.decode_slice() {
                    self.behind_due = true;
                    return self.expel(large.conn, format!("a commit: {e}"), out);
                }
                Ok(())
            }
            Step::Check => self.check_slice(&mut large),
            Step::Warm => self.warm_slice(&mut large),
            Step::Certify => self.certify_slice(&mut large),
            Step::Expect => self.expect_slice(&mut large),
            Step::Place => self.place_slice(&mut large),
            Step::Undo => {
                self.undo_slice(&mut large);
                if large.next >= large.writes.len() {
                    self.large = Some(large);
                    return self.end_large();
                }
                Ok(())
            }
            Step::Stage => match self.stage_slice(large, out) {
                Some(unfinished) => {
                    large = unfinished;
                    Ok(())
                }
                None => {
                    self.behind_due = true;
                    return;
                }
            },
        };
        let (conn, call, op) = (large.conn, large.call, large.op);
        self.large = Some(large);
        if let Err(outcome) = sliced {
            self.stats.conflicts += u64::from(matches!(outcome, Outcome::Conflict(_) | Outcome::TooOld));
            self.undo_large();
            self.not_executed(conn, call, op, outcome, out);
        }
    }

    fn check_slice(&mut self, large: &mut Large) -> Sliced {
        let slice = large.slice(usize::MAX);
        for w in &large.writes(slice.clone()) {
            self.check_object(w)?;
        }
        for i in slice.clone() {
            let oref = large.writes[i].oref;
            if !large.written.insert(oref) {
                return Err(Outcome::Invalid(oref));
            }
        }
        large.done(slice.end, large.writes.len(), Step::Warm);
        Ok(())
    }

    fn warm_slice(&mut self, large: &mut Large) -> Sliced {
        let slice = large.slice(self.pages_at_once());
        self.miss(large, slice.clone());
        large.done(slice.end, large.writes.len(), Step::Certify);
        Ok(())
    }

    fn certify_slice(&mut self, large: &mut Large) -> Sliced {
        // A write counts as a read, and follows the reads here.
        let all = large.reads.len() + large.writes.len();
        let end = all.min(large.next + mutant::bound(SLICE_WRITES, 2));
        let reads = &large.reads[large.next.min(large.reads.len())..end.min(large.reads.len())];
        let from = large.next.max(large.reads.len()) - large.reads.len();
        let writes = large.writes(from..end.max(large.reads.len()) - large.reads.len());
        let effects = TxEffects { base: large.base, reads: reads.to_vec(), writes };
        self.judge(&effects)?;
        large.done(end, all, Step::Expect);
        Ok(())
    }

    fn expect_slice(&mut self, large: &mut Large) -> Sliced {
        let slice = large.slice(usize::MAX);
        let mut placing = std::mem::take(&mut large.placing);
        let expected = self.expect_some(large.conn, &large.writes(slice.clone()), &mut placing);
        large.placing = placing;
        expected?;
        large.done(slice.end, large.writes.len(), Step::Place);
        if large.step == Step::Place {
            large.changed.reserve_exact(large.writes.len());
            large.placing.fits()?;
        }
        Ok(())
    }

    fn place_slice(&mut self, large: &mut Large) -> Sliced {
        let slice = large.slice(self.pages_at_once());
        self.miss(large, slice.clone());
        if large.missing > 0 {
            large.tries += 1;
            return Ok(());
        }
        large.tries = 0;
        let mut placing = std::mem::take(&mut large.placing);
        placing.look_again();
        let placed = self.place_some(&large.writes(slice.clone()), slice.start, &mut placing);
        large.placing = placing;
        placed?;
        let when = When::With(large.mark.clone());
        let mut changed = std::mem::take(&mut large.changed);
        let mut placements = large.placements(&slice).iter().peekable();
        for (i, w) in slice.clone().zip(&large.writes(slice.clone())) {
            let to = placements.next_if(|(write, _)| *write as usize == i).map(|(_, to)| *to);
            self.mob.write(w.oref, to, &when, w.object);
            changed.push(w.oref);
            changed.extend(to);
        }
        large.changed = changed;
        large.done(slice.end, large.writes.len(), Step::Stage);
        Ok(())
    }

    fn undo_slice(&mut self, large: &mut Large) {
        let slice = large.slice(usize::MAX);
        let elsewhere = large.placements(&slice).iter().map(|(_, to)| *to);
        for oref in large.writes[slice.clone()].iter().map(|w| w.oref).chain(elsewhere) {
            self.mob.retract(oref, &large.mark);
        }
        large.next = slice.end;
    }

    /// Asks for the pages of a slice that are not here.
    fn miss(&mut self, large: &mut Large, slice: std::ops::Range<usize>) {
        let mut missing: Vec<PageId> = Vec::new();
        for w in large.writes[slice].iter().filter(|w| !w.new) {
            if !self.is_here(w.oref.page()) {
                missing.push(w.oref.page());
            } else if let Some(to) = self.forward_of(w.oref)
                && !self.is_here(to.page())
            {
                missing.push(to.page());
            }
        }
        missing.sort_unstable();
        missing.dedup();
        large.missing = missing.len();
        for page in missing {
            self.reads.wait(page, Waiter::Large(large.conn, large.id));
        }
    }

    /// Pages that a slice may need at once: they must all be here together, with the pages that others need.
    fn pages_at_once(&self) -> usize {
        self.images.count_max() / 8
    }
}
