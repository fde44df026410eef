//! Large transactions, a slice at a time: whatever one transaction writes, others are served between its slices.
//!
//! One is worked on at a time. It is checked, and its pages are brought here, while others commit. From the moment in which
//! it is judged until it is applied, other commits wait, and all else goes on: so it is judged, placed and applied against
//! one state, as if in one step. It gets its stamp when it is placed; what is durable behind it is shown only when all of
//! it is applied, so it becomes visible as a whole.

use tercel_wire::cursor::{DecodeError, Reader};
use tercel_wire::id::{OpId, Oref, PageId, Stamp};
use tercel_wire::message::{Effects as TxEffects, Outcome, Reason, Write};

use super::place::Placing;
use super::reads::Waiter;
use super::{Conn, Effect, Effects, Flight, Server};
use crate::mutant::{self, Rule, dropped};
use crate::order::{Delivery, Ordering};
use crate::store::entry;
use crate::table::Set;

/// See the module.
pub(super) struct Large {
    /// Tells its reads from those of another.
    id: u64,
    pub conn: Conn,
    call: u64,
    pub op: OpId,
    bytes: Vec<u8>,
    base: Stamp,
    reads: Vec<Oref>,
    writes: Vec<At>,
    /// How many reads, or writes, are still to be decoded.
    left: usize,
    seen: Set<Oref>,
    placing: Placing,
    /// The entry of the log, as it is put together.
    payload: Vec<u8>,
    step: Step,
    /// How far the step is.
    next: usize,
    /// Pages that it waits for.
    missing: usize,
    /// How often the pages of this slice did not stay here together: it is so many times halved.
    tries: u32,
    /// Up to here the log is durable; shown when all is applied.
    durable: Option<Stamp>,
}

/// A write, and where in the transaction's bytes its object is.
struct At {
    oref: Oref,
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
enum Step {
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
    /// Everything has a place.
    Place,
    /// The entry of the log is put together.
    Encode,
    /// It is ordered; state and buffer take it in.
    Apply(Stamp),
}

impl Step {
    /// Whether other commits must wait meanwhile.
    fn locks(self) -> bool {
        matches!(self, Step::Certify | Step::Expect | Step::Place | Step::Encode | Step::Apply(_))
    }
}

/// Bytes from which on a transaction is worked on in slices: what a turn of the loop handles in some hundred
/// microseconds.
const LARGE_BYTES: usize = 64 << 10;

/// Writes, or reads to be certified, of a slice: some hundred microseconds.
const SLICE_WRITES: usize = 500;

/// References, or writes, that are decoded in a slice, which is quick.
const SLICE_READS: usize = 4_000;

/// Bytes of a slice where bytes are what takes the time.
const SLICE_BYTES: usize = 256 << 10;

/// Whether a transaction of so many bytes is worked on in slices.
pub(super) fn is_large(bytes: usize) -> bool {
    bytes > mutant::bound(LARGE_BYTES, 200)
}

/// How a slice ended: a refusal ends the transaction.
type Sliced = Result<(), Outcome>;

impl Large {
    /// Decodes some more; `next` is where in the bytes it goes on.
    fn decode_slice(&mut self) -> Result<(), DecodeError> {
        let mut r = Reader::new(&self.bytes[self.next..]);
        match self.step {
            Step::Head => {
                (self.base, self.left) = TxEffects::decode_head(&mut r)?;
                self.reads.reserve_exact(self.left);
                self.step = Step::Reads;
            }
            Step::Reads => {
                for _ in 0..self.left.min(SLICE_READS) {
                    self.reads.push(TxEffects::decode_read(&mut r)?);
                    self.left -= 1;
                }
                if self.left == 0 {
                    self.left = TxEffects::decode_count(&mut r)?;
                    self.writes.reserve_exact(self.left);
                    self.seen.reserve(self.left);
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
    pub(super) fn begin_large(&mut self, conn: Conn, call: u64, op: OpId, bytes: Vec<u8>) {
        self.parked_last += 1;
        self.large = Some(Box::new(Large {
            id: self.parked_last,
            conn,
            call,
            op,
            base: Stamp::ZERO,
            reads: Vec::new(),
            writes: Vec::new(),
            left: 0,
            seen: Set::default(),
            placing: Placing::default(),
            payload: Vec::new(),
            bytes,
            step: Step::Head,
            next: 0,
            missing: 0,
            tries: 0,
            durable: None,
        }));
    }

    /// Whether other commits must wait for a large one.
    pub(super) fn large_locks(&self) -> bool {
        self.large.as_ref().is_some_and(|l| l.step.locks())
    }

    /// Whether state and buffer have taken in a part of a transaction.
    pub(super) fn large_applies(&self) -> Option<Stamp> {
        match self.large.as_ref()?.step {
            Step::Apply(stamp) => Some(stamp),
            _ => None,
        }
    }

    /// Whether there is a slice to be done.
    pub(super) fn large_wants(&self) -> bool {
        self.large.as_ref().is_some_and(|l| l.missing == 0)
    }

    /// The log is durable up to here; whether that has to wait until a transaction is applied.
    pub(super) fn large_holds(&mut self, durable: Stamp) -> Option<Stamp> {
        let large = self.large.as_mut()?;
        match large.step {
            Step::Apply(stamp) if durable >= stamp => {
                large.durable = large.durable.max(Some(durable));
                Some(Stamp(stamp.0 - 1))
            }
            _ => None,
        }
    }

    /// Lets go of a transaction that is not ordered yet. Those who waited behind it are tried again soon.
    pub(super) fn drop_large(&mut self, which: impl Fn(&Large) -> bool) {
        if self.large_applies().is_none() && self.large.as_ref().is_some_and(|l| which(l)) {
            self.end_large();
        }
    }

    fn end_large(&mut self) -> Option<Box<Large>> {
        let large = self.large.take()?;
        // Before it kept others from committing they may have taken places, and it had taken none.
        if large.step.locks() && !matches!(large.step, Step::Apply(_)) {
            self.overflow = large.placing.overflow_before();
        }
        self.behind_due = true;
        Some(large)
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
        if let Some(why) = failed
            && let Some(large) = self.end_large()
        {
            self.refuse(large.conn, large.call, Reason::Corrupt, why, out);
            self.not_executed(large.conn, large.call, large.op, Outcome::NotExecuted, out);
        }
    }

    /// Does a slice.
    pub(super) fn go_on_large(&mut self, out: &mut Effects) {
        if !self.large_wants() {
            return;
        }
        let Some(mut large) = self.large.take() else { return };
        let sliced = match large.step {
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
            Step::Encode => self.encode_slice(&mut large, out),
            Step::Apply(stamp) => self.apply_slice(&mut large, stamp),
        };
        let is_applied = matches!(large.step, Step::Apply(_)) && large.next >= large.writes.len();
        self.large = Some(large);
        match sliced {
            Ok(()) if is_applied => {
                let durable = self.end_large().and_then(|l| l.durable);
                durable.into_iter().for_each(|stamp| self.show(stamp, out));
            }
            Ok(()) => {}
            Err(outcome) => {
                self.stats.conflicts += u64::from(matches!(outcome, Outcome::Conflict(_) | Outcome::TooOld));
                if let Some(large) = self.end_large() {
                    self.not_executed(large.conn, large.call, large.op, outcome, out);
                }
            }
        }
    }

    fn check_slice(&mut self, large: &mut Large) -> Sliced {
        let slice = large.slice(usize::MAX);
        for w in &large.writes(slice.clone()) {
            self.check_object(w)?;
        }
        for i in slice.clone() {
            let oref = large.writes[i].oref;
            if !large.seen.insert(oref) {
                return Err(Outcome::Invalid(oref));
            }
        }
        large.done(slice.end, large.writes.len(), Step::Warm);
        if large.step == Step::Warm {
            large.seen = Set::default();
        }
        Ok(())
    }

    fn warm_slice(&mut self, large: &mut Large) -> Sliced {
        let slice = large.slice(self.pages_at_once());
        self.miss(large, slice.clone());
        large.done(slice.end, large.writes.len(), Step::Certify);
        if large.step == Step::Certify {
            large.placing = Placing::new(self.overflow);
        }
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
        let placed = self.place_some(&large.writes(slice.clone()), slice.start, &mut placing);
        large.placing = placing;
        placed?;
        large.done(slice.end, large.writes.len(), Step::Encode);
        Ok(())
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

    fn encode_slice(&mut self, large: &mut Large, out: &mut Effects) -> Sliced {
        if large.payload.is_empty() {
            large.payload.reserve_exact(64 + large.placing.placements().len() * 8 + large.bytes.len());
            entry::commit_head(large.op, large.placing.placements(), &mut large.payload);
        }
        let end = large.bytes.len().min(large.next + SLICE_BYTES);
        large.payload.extend_from_slice(&large.bytes[large.next..end]);
        large.next = end;
        if end == large.bytes.len() {
            let stamp = self.order_large(large, out);
            (large.step, large.next) = (Step::Apply(stamp), 0);
        }
        Ok(())
    }

    /// Gives it its place in the order. Nothing else is certified until it is applied.
    fn order_large(&mut self, large: &mut Large, out: &mut Effects) -> Stamp {
        self.evict_for(large.op.client, out);
        self.keep_leases(large.conn, &mut large.placing);
        let ticket = self.order.submit();
        let stamp = self.state.begin_commit(large.op);
        let ordered = self.order.poll();
        debug_assert_eq!(ordered, Some(Delivery::Ordered(ticket, stamp)));
        self.stats.ordered += 1;
        self.stats.commits += 1;
        self.stats.forwards += large.placing.placements().len() as u64;
        let payload = std::mem::take(&mut large.payload);
        out.push(Effect::Log { stamp, kind: entry::kind::COMMIT, payload });
        let mut changed = Vec::with_capacity(large.writes.len());
        let mut placements = large.placing.placements().iter().peekable();
        for (i, w) in large.writes.iter().enumerate() {
            changed.push(w.oref);
            changed.extend(placements.next_if(|(write, _)| *write as usize == i).map(|(_, to)| *to));
        }
        self.flights.push_back(Flight { stamp, op: Some(large.op), changed: changed.into() });
        stamp
    }

    fn apply_slice(&mut self, large: &mut Large, stamp: Stamp) -> Sliced {
        let slice = large.slice(usize::MAX);
        let placements = large.placing.placements();
        let first = placements.partition_point(|(write, _)| (*write as usize) < slice.start);
        let mut placements = placements[first..].iter().peekable();
        for (i, w) in slice.clone().zip(&large.writes(slice.clone())) {
            let to = placements.next_if(|(write, _)| *write as usize == i).map(|(_, to)| *to);
            self.state.wrote(w.oref, to, stamp);
            self.mob.write(w.oref, to, stamp, w.object);
            if dropped(Rule::FetchUnsynced) {
                self.images.changed(w.oref.page());
            }
        }
        large.next = slice.end;
        Ok(())
    }
}
