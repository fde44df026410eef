//! Large transactions, a slice at a time: whatever one transaction writes, others are served, and commit,
//! between its slices.
//!
//! One is worked on at a time. It is checked, and its pages are brought here, while others do as they like.
//! From the moment in which it is judged until it is ordered it *holds* what it read and what it writes: a
//! transaction that writes any of that waits until then, and so does one that makes objects in the pages that
//! it fills. All others are judged, placed and ordered as ever, before it. So whatever was found out about it
//! stays true although it took many slices.
//!
//! A ledger keeps the room that its writes will take in each page; other requests for room count it. Once all
//! writes have their places it goes to the order in pieces, one after the other. At last an entry of a few
//! bytes commits it ([`super::stage`]): all of it becomes visible in one step. Until its first piece it can
//! be dropped without a trace; from then on it is committed whatever becomes of its client.

use std::collections::{BTreeSet, VecDeque};

use tercel_wire::cursor::{DecodeError, Reader};
use tercel_wire::id::{ClassId, OpId, Oref, PageId, Stamp};
use tercel_wire::message::form::Form;
use tercel_wire::message::{CommitEffects, Refusal, Write};
use tercel_wire::page::class_of;

use super::body::Body;
use super::commit::{check_object, missing_of};
use super::place::Placing;
use super::{Asked, Leader, Work};
use crate::effect::Unread;
use crate::mutant::{self, Rule, dropped};
use crate::pages::reads::Waiter;
use crate::replica::Replica;
use crate::table::Set;

/// The large transaction that the leader works on, and how far its work is.
#[derive(Debug)]
pub(super) struct Large {
    /// Tells its reads from those of another.
    id: u64,
    pub asked: Asked,
    pub op: OpId,
    arriving: Arriving,
    pub(super) bytes: Vec<u8>,
    pub(super) digest: u32,
    base: Stamp,
    reads: Vec<Oref>,
    pub(super) writes: Vec<At>,
    /// The number of reads, or writes, still to be decoded.
    left: usize,
    touched: Touched,
    pub(super) placing: Placing,
    pub(super) record: Record,
    pub(super) phase: LargePhase,
    /// Progress of the step.
    pub(super) next: usize,
    pages: Missing,
}

/// Parts not yet in the bytes, in their order, and the bytes of the first part that are.
#[derive(Debug)]
struct Arriving {
    parts: VecDeque<Vec<u8>>,
    part_at: usize,
}

/// The objects that it read, and those that it writes.
#[derive(Debug, Default)]
struct Touched {
    read: Set<Oref>,
    written: Set<Oref>,
}

/// The fields of its record in the log beside its bytes.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Places that its objects name and that may only have been promised, and the pages of those that are.
    refs: Vec<Oref>,
    pub named: Vec<PageId>,
    pub filled: Vec<PageId>,
    /// Set for the commit of a method.
    pub is_call: bool,
    /// The numbers of that method.
    pub called: Option<(u16, u16)>,
    /// The classes of what it writes.
    pub classes: BTreeSet<ClassId>,
    pub reply: Vec<u8>,
    /// The head of the record.
    pub head: Vec<u8>,
    /// The last piece so far.
    pub staged: Option<Stamp>,
}

/// Pages that it waits for.
#[derive(Debug, Default)]
struct Missing {
    missing: usize,
    /// The number of times that the pages of this slice did not stay here together: the slice is halved so
    /// many times.
    tries: u32,
}

/// A write, and where in the transaction's bytes its object is.
#[derive(Debug)]
pub(super) struct At {
    pub oref: Oref,
    pub new: bool,
    at: u32,
    len: u16,
}

impl At {
    fn range(&self) -> std::ops::Range<usize> {
        self.at as usize..self.at as usize + self.len as usize
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LargePhase {
    /// The parts in which it came are put together.
    Gather,
    /// The base is decoded.
    Head,
    /// The reads are decoded.
    Reads,
    /// The writes are decoded.
    Writes,
    /// Objects are what their classes say, and none is written twice.
    Check,
    /// Pages of places that it names and in which nothing was made are found.
    Name,
    /// Pages are brought here, so that few are missing later, when others wait.
    Warm,
    /// Nothing that was read has been written since.
    Certify,
    /// The places of new objects are the client's.
    Expect,
    /// Everything finds a place.
    Place,
    /// The pages that it fills are brought up to date.
    Keep,
    /// The commit goes to the order in pieces, and is committed after the last.
    Stage,
}

impl LargePhase {
    /// Says whether it holds the objects that it read and writes.
    fn holds(self) -> bool {
        matches!(
            self,
            LargePhase::Certify
                | LargePhase::Expect
                | LargePhase::Place
                | LargePhase::Keep
                | LargePhase::Stage
        )
    }
}

/// Writes, or reads to be certified, of a slice: a hundred microseconds or two.
const SLICE_WRITES: usize = 250;

/// References, or writes, that are decoded in a slice, which is quick.
const SLICE_READS: usize = 2_000;

/// Bytes of a slice where bytes are what takes the time.
const SLICE_BYTES: usize = 64 << 10;

/// Granted pages that are brought up to date at once, when it is certain that something is made in them.
const FILLS_AT_ONCE: usize = 500;

/// The result of a slice: a refusal ends the transaction.
type Sliced = Result<(), Refusal>;

impl Large {
    /// Puts some more of what came together.
    fn gather_slice(&mut self) {
        let Some(part) = self.arriving.parts.front() else {
            self.phase = LargePhase::Head;
            return;
        };
        let end = part.len().min(self.arriving.part_at + SLICE_BYTES);
        self.bytes.extend_from_slice(&part[self.arriving.part_at..end]);
        self.arriving.part_at = end;
        if end == part.len() {
            self.arriving.parts.pop_front();
            self.arriving.part_at = 0;
        }
    }

    /// Decodes some more; `next` is where in the bytes it goes on.
    fn decode_slice(&mut self) -> Result<(), DecodeError> {
        let mut r = Reader::new(&self.bytes[self.next..]);
        match self.phase {
            LargePhase::Head => {
                (self.base, self.left) = CommitEffects::decode_head(&mut r)?;
                self.reads.reserve_exact(self.left);
                self.touched.read.reserve(self.left);
                self.phase = LargePhase::Reads;
            }
            LargePhase::Reads => {
                for _ in 0..self.left.min(SLICE_READS) {
                    let oref = Oref::take(&mut r, "reference")?;
                    self.reads.push(oref);
                    self.touched.read.insert(oref);
                    self.left -= 1;
                }
                if self.left == 0 {
                    self.left = CommitEffects::decode_count(&mut r)?;
                    self.writes.reserve_exact(self.left);
                    self.touched.written.reserve(self.left);
                    self.phase = LargePhase::Writes;
                }
            }
            _ => {
                for _ in 0..self.left.min(SLICE_READS) {
                    let w = Write::take(&mut r, "write")?;
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
                    (self.phase, self.next) = (LargePhase::Check, 0);
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
        let writes_max = mutant::bound(SLICE_WRITES, 2) >> self.pages.tries.min(16);
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

    /// Says whether new objects are made in this page.
    pub(super) fn fills(&self, page: PageId) -> bool {
        self.placing.fills(page)
    }

    /// Says whether a transaction may not be placed before this one is ordered.
    fn holds(&self, effects: &CommitEffects<'_>) -> bool {
        let held =
            |w: &Write<'_>| self.touched.read.contains(&w.oref) || self.touched.written.contains(&w.oref);
        self.phase.holds() && effects.writes.iter().any(|w| held(w) || w.new && self.fills(w.oref.page()))
    }

    /// Says whether it holds anything that a part of a transaction over several spaces reads or writes.
    pub(super) fn meets(&self, effects: &CommitEffects<'_>) -> bool {
        let is_read = effects.reads.iter().any(|oref| self.touched.written.contains(oref));
        self.holds(effects) || self.phase.holds() && is_read
    }

    /// Goes on after a slice, or to the next step.
    fn done(&mut self, end: usize, of: usize, then: LargePhase) {
        self.next = end;
        if end >= of {
            (self.phase, self.next) = (then, 0);
        }
    }
}

impl Leader {
    /// Begins to work on a transaction.
    pub(super) fn begin_large(&mut self, asked: Asked, op: OpId, body: Body<'_>) {
        let (parts, digest, ran) = body.pieces();
        let author = ran.as_ref().map_or(op.client, |ran| ran.author);
        let is_call = ran.is_some();
        let called = ran.as_ref().map(|ran| ran.called);
        let (reply, holds) = ran.map_or_else(Default::default, |ran| (ran.reply, ran.holds));
        let bytes = Vec::with_capacity(parts.iter().map(Vec::len).sum());
        self.large = Some(Box::new(Large {
            id: self.waiting.next_id(),
            asked,
            op,
            base: Stamp::ZERO,
            reads: Vec::new(),
            writes: Vec::new(),
            left: 0,
            touched: Touched::default(),
            record: Record { is_call, called, reply, ..Record::default() },
            placing: Placing::of_large(author, holds),
            arriving: Arriving { parts: parts.into(), part_at: 0 },
            bytes,
            digest,
            phase: LargePhase::Gather,
            next: 0,
            pages: Missing::default(),
        }));
    }

    /// Says whether a commit must wait for a large transaction that holds the objects of its writes.
    pub(super) fn large_holds(&self, effects: &CommitEffects<'_>) -> bool {
        self.large.as_ref().is_some_and(|l| l.holds(effects)) && !dropped(Rule::HeldIgnored)
    }

    /// Says whether a large transaction makes objects in the page.
    pub(super) fn large_fills(&self, page: PageId) -> bool {
        self.large.as_ref().is_some_and(|l| l.fills(page))
    }

    /// Says whether a large transaction is of the same slot of the same client: a slot's operations are
    /// executed in their order.
    pub(super) fn large_precedes(&self, op: OpId) -> bool {
        self.large.as_ref().is_some_and(|l| (l.op.client, l.op.slot) == (op.client, op.slot))
    }

    /// Says whether the operation will be committed and is not yet ordered.
    pub(super) fn large_will_end(&self, op: OpId) -> bool {
        self.large.as_ref().is_some_and(|l| l.op == op && l.record.staged.is_some())
    }

    /// Says whether there is a slice to be done.
    pub(super) fn large_wants(&self, visible: Stamp, replica: &Replica) -> bool {
        let goes_on = |l: &Large| l.phase != LargePhase::Stage || l.may_stage(visible, replica);
        self.large.as_ref().is_some_and(|l| l.pages.missing == 0 && goes_on(l))
    }

    /// Drops a transaction whose client is gone or waits for the answer that it was not executed, if no piece
    /// of it is ordered yet. Transactions that waited for it are tried again soon.
    pub(super) fn drop_large(&mut self, which: impl Fn(&Large) -> bool) {
        if self.large.as_ref().is_some_and(|l| which(l) && l.record.staged.is_none()) {
            self.end_large();
        }
    }

    /// Ends a transaction of which nothing was ordered. Nothing of it is left but its bytes.
    pub(super) fn end_large(&mut self) {
        let Some(mut large) = self.large.take() else { return };
        self.unplace(&mut large.placing);
        self.spare = std::mem::take(&mut large.bytes);
        self.waiting.behind_due = true;
    }

    /// Transactions that waited for a large one are tried again.
    pub(crate) fn go_on_behind(&mut self, work: &mut Work) {
        if self.large.is_none() && std::mem::take(&mut self.waiting.behind_due) {
            for id in std::mem::take(&mut self.waiting.behind) {
                self.page_came(id, work);
            }
        }
    }

    /// A page that it waited for is here, or cannot be read.
    pub(crate) fn large_read(&mut self, id: u64, failed: Option<&Unread>, work: &mut Work) {
        let Some(large) = self.large.as_mut().filter(|l| l.id == id) else { return };
        large.pages.missing -= 1;
        if let Some(why) = failed {
            let (asked, op) = (large.asked, large.op);
            self.end_large();
            work.refuse(asked, why.refusal(), why.to_string());
            self.not_executed(asked, op, Refusal::NotExecuted, work);
        }
    }

    /// Does a slice.
    pub(super) fn go_on_large(&mut self, work: &mut Work) {
        if !self.large_wants(work.pages.visible(), &work.replica) {
            return;
        }
        let Some(mut large) = self.large.take() else { return };
        let sliced = match large.phase {
            LargePhase::Gather => {
                large.gather_slice();
                Ok(())
            }
            LargePhase::Head | LargePhase::Reads | LargePhase::Writes => {
                if let Err(e) = large.decode_slice() {
                    self.waiting.behind_due = true;
                    return work.expel(large.asked.conn, format!("a commit: {e}"));
                }
                Ok(())
            }
            LargePhase::Check => check_slice(&mut large, work),
            LargePhase::Name => {
                self.name_slice(&mut large, work);
                Ok(())
            }
            LargePhase::Warm => warm_slice(&mut large, work),
            LargePhase::Certify => self.certify_slice(&mut large, work),
            LargePhase::Expect => self.expect_slice(&mut large, work),
            LargePhase::Place => self.place_slice(&mut large, work),
            LargePhase::Keep => {
                match self.keep_fills(&mut large.placing, FILLS_AT_ONCE) {
                    Some(filled) => large.record.filled.extend(filled),
                    None => (large.phase, large.next) = (LargePhase::Stage, 0),
                }
                Ok(())
            }
            LargePhase::Stage => return self.stage_slice(large, work),
        };
        let (asked, op) = (large.asked, large.op);
        self.large = Some(large);
        if let Err(why) = sliced {
            if matches!(why, Refusal::Conflict(_) | Refusal::TooOld) {
                self.waiting.contended.lost(why, work);
            }
            self.end_large();
            self.not_executed(asked, op, why, work);
        }
    }

    fn name_slice(&mut self, large: &mut Large, work: &mut Work) {
        let end = large.record.refs.len().min(large.next + SLICE_READS);
        let named = large.record.refs[large.next..end].iter().copied();
        let named: Vec<Oref> = named.filter(|to| !large.touched.written.contains(to)).collect();
        large.record.named.extend(self.promised_of(&named, work));
        large.done(end, large.record.refs.len(), LargePhase::Warm);
        if large.phase == LargePhase::Warm {
            large.record.refs = Vec::new();
            large.record.named.sort_unstable();
            large.record.named.dedup();
        }
    }

    fn certify_slice(&mut self, large: &mut Large, work: &mut Work) -> Sliced {
        // A write counts as a read, and follows the reads here.
        let all = large.reads.len() + large.writes.len();
        let end = all.min(large.next + mutant::bound(SLICE_WRITES, 2));
        let reads = &large.reads[large.next.min(large.reads.len())..end.min(large.reads.len())];
        let from = large.next.max(large.reads.len()) - large.reads.len();
        let writes = large.writes(from..end.max(large.reads.len()) - large.reads.len());
        let effects = CommitEffects { base: large.base, reads: reads.to_vec(), writes };
        self.judge(&effects, work)?;
        if let Some(over) = work.replica.prepares.meets(&effects) {
            return Err(Refusal::Conflict(over));
        }
        large.done(end, all, LargePhase::Expect);
        Ok(())
    }

    fn expect_slice(&mut self, large: &mut Large, work: &mut Work) -> Sliced {
        let slice = large.slice(usize::MAX);
        let mut placing = std::mem::take(&mut large.placing);
        let expected = self.expect_some(large.base, &large.writes(slice.clone()), &mut placing, work);
        large.placing = placing;
        expected?;
        large.done(slice.end, large.writes.len(), LargePhase::Place);
        if large.phase == LargePhase::Place {
            large.placing.fits()?;
        }
        Ok(())
    }

    fn place_slice(&mut self, large: &mut Large, work: &mut Work) -> Sliced {
        let slice = large.slice(pages_at_once(work));
        miss(large, slice.clone(), work);
        if large.pages.missing > 0 {
            large.pages.tries += 1;
            return Ok(());
        }
        large.pages.tries = 0;
        let mut placing = std::mem::take(&mut large.placing);
        placing.look_again();
        let placed = self.place_some(&large.writes(slice.clone()), slice.start, &mut placing, work);
        large.placing = placing;
        placed?;
        large.done(slice.end, large.writes.len(), LargePhase::Keep);
        Ok(())
    }
}

fn check_slice(large: &mut Large, work: &mut Work) -> Sliced {
    let slice = large.slice(usize::MAX);
    let mut refs = std::mem::take(&mut large.record.refs);
    let mut owned = std::mem::take(&mut large.placing.owned);
    let check = |w: &Write<'_>| check_object(w, &mut refs, &mut owned, work);
    let checked = large.writes(slice.clone()).iter().try_for_each(check);
    (large.record.refs, large.placing.owned) = (refs, owned);
    checked?;
    let classes: Vec<ClassId> = large.writes(slice.clone()).iter().map(|w| class_of(w.object)).collect();
    large.record.classes.extend(classes);
    for i in slice.clone() {
        let oref = large.writes[i].oref;
        if !large.touched.written.insert(oref) {
            return Err(Refusal::Invalid(oref));
        }
    }
    large.done(slice.end, large.writes.len(), LargePhase::Name);
    if large.phase == LargePhase::Name { large.placing.owned.check() } else { Ok(()) }
}

fn warm_slice(large: &mut Large, work: &mut Work) -> Sliced {
    let slice = large.slice(pages_at_once(work));
    miss(large, slice.clone(), work);
    large.done(slice.end, large.writes.len(), LargePhase::Certify);
    Ok(())
}

/// Asks for the pages of a slice that are not here.
fn miss(large: &mut Large, slice: std::ops::Range<usize>, work: &mut Work) {
    let mut needed = Set::default();
    let mut missing: Vec<PageId> = Vec::new();
    for w in &large.writes[slice] {
        if !w.new {
            missing.extend(missing_of(w.oref, work, &mut needed));
        } else if work.replica.places.granted(w.oref.page()).is_some_and(|g| g.is_made_in)
            && !work.pages.is_here(w.oref.page())
        {
            missing.push(w.oref.page());
        }
    }
    missing.sort_unstable();
    missing.dedup();
    large.pages.missing = missing.len();
    for page in missing {
        work.pages.reads.wait(page, Waiter::Large(large.asked.conn, large.id));
    }
}

/// Pages that a slice may need at once: they must all be here together, with the pages that others need.
fn pages_at_once(work: &Work) -> usize {
    work.pages.cached_max() / 8
}
