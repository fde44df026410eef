//! Commits: arrived in parts, judged, placed, ordered; and operations whose answer did not arrive.

use std::borrow::Cow;

use tercel_wire::class::FORWARD;
use tercel_wire::id::{ClientId, OpId, Oref, PageId};
use tercel_wire::message::{Commit, Effects as TxEffects, Limit, Outcome, Part, Reason, Write};
use tercel_wire::page::class_of;
use tercel_wire::record::HEADER_BYTES;

use super::large::is_large;
use super::reads::Waiter;
use super::session::Staged;
use super::{Conn, Effects, LogRoom, Server};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::store::entry::{Entry, Logged};
use crate::store::state::Past;
use crate::table::Set;

/// A commit that waits: for pages to be read before it can be placed, or for room in the buffer of modified objects.
pub(super) struct Parked {
    pub conn: Conn,
    call: u64,
    op: OpId,
    body: Body<'static>,
    missing: usize,
}

/// A transaction's bytes: its parts, if it came in parts, and what came with the commit.
pub(super) struct Body<'a> {
    parts: Vec<Vec<u8>>,
    last: Cow<'a, [u8]>,
}

impl<'a> Body<'a> {
    fn len(&self) -> usize {
        self.parts.iter().map(Vec::len).sum::<usize>() + self.last.len()
    }

    /// All of it in one piece.
    fn whole(self) -> Cow<'a, [u8]> {
        match self.parts.is_empty() {
            true => self.last,
            false => [self.parts.concat(), self.last.into_owned()].concat().into(),
        }
    }

    /// In the pieces that there are.
    fn pieces(mut self) -> Vec<Vec<u8>> {
        self.parts.push(self.last.into_owned());
        self.parts
    }

    fn into_owned(self) -> Body<'static> {
        Body { parts: self.parts, last: self.last.into_owned().into() }
    }
}

impl Server {
    /// Takes a piece of a transaction. With one that is out of order or beyond a bound all of it is let go: the commit that
    /// follows is told why.
    pub(super) fn part(&mut self, conn: Conn, part: Part<'_>) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let fresh = || Staged { seq: part.op.seq, parts: 0, buffers: Vec::new(), bytes: 0, refused: None };
        let staged = session.staged.entry(part.op.slot).or_insert_with(fresh);
        let before = staged.bytes;
        if staged.seq != part.op.seq {
            *staged = fresh();
        }
        let others = session.staged_bytes - before;
        let after = staged.bytes + part.bytes.len();
        let is_wrong = part.index != staged.parts || others + after > limits::TRANSACTION_BYTES_MAX;
        let is_much = self.staged_bytes - before + after > limits::STAGED_BYTES_MAX;
        staged.refused = staged.refused.or(match (is_wrong, is_much) {
            (true, _) => Some(Limit::Transaction),
            (false, true) => Some(Limit::Buffer),
            (false, false) => None,
        });
        if staged.refused.is_some() {
            (staged.buffers, staged.bytes) = (Vec::new(), 0);
        } else {
            match staged.buffers.last_mut().filter(|b| b.len() + part.bytes.len() <= limits::PART_BYTES) {
                Some(buffer) => buffer.extend_from_slice(part.bytes),
                None => staged.buffers.push(part.bytes.to_vec()),
            }
            staged.parts += 1;
            staged.bytes = after;
        }
        let after = staged.bytes;
        session.staged_bytes = others + after;
        self.staged_bytes = self.staged_bytes - before + after;
    }

    pub(super) fn commit_arrived(&mut self, conn: Conn, call: u64, commit: Commit<'_>, out: &mut Effects) {
        if commit.parts == 0 {
            let body = Body { parts: Vec::new(), last: commit.bytes.into() };
            return self.commit(conn, call, commit.op, body, out);
        }
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let Some(staged) = session.staged.remove(&commit.op.slot) else {
            return self.not_executed(conn, call, commit.op, Outcome::Full(Limit::Transaction), out);
        };
        session.staged_bytes -= staged.bytes;
        self.staged_bytes -= staged.bytes;
        if staged.seq != commit.op.seq || staged.refused.is_some() || staged.parts != commit.parts {
            let limit = staged.refused.unwrap_or(Limit::Transaction);
            return self.not_executed(conn, call, commit.op, Outcome::Full(limit), out);
        }
        let mut body = Body { parts: staged.buffers, last: commit.bytes.into() };
        if dropped(Rule::StagedInParts) {
            let bytes = body.whole();
            let mut part = Vec::new();
            if let Ok(mut effects) = TxEffects::decode(&bytes) {
                effects.writes.truncate(effects.writes.len() / 2);
                effects.encode(&mut part);
            }
            body = Body { parts: Vec::new(), last: if part.is_empty() { bytes } else { part.into() } };
        }
        self.commit(conn, call, commit.op, body, out);
    }

    /// Executes an operation at most once.
    fn commit(&mut self, conn: Conn, call: u64, op: OpId, body: Body<'_>, out: &mut Effects) {
        if self.sessions.get(&conn).and_then(|s| s.client) != Some(op.client) {
            return self.verdict(conn, call, op, Outcome::Invalid(Oref::NULL), out);
        }
        if self.answer_past(conn, call, op, out) {
            return;
        }
        if self.disk_full {
            return self.not_executed(conn, call, op, Outcome::Full(Limit::Disk), out);
        }
        if body.len() > self.config.mob_bytes {
            return self.not_executed(conn, call, op, Outcome::Full(Limit::Transaction), out);
        }
        self.make_room_of_backup(body.len(), out);
        let log_full = self.log_room == LogRoom::Full;
        if log_full || self.mob.bytes() + body.len() > self.config.mob_bytes {
            return self.stall(conn, call, op, body, out);
        }
        let is_large = is_large(body.len());
        if is_large && self.large.is_some() || self.large_precedes(op) {
            return self.wait_behind(conn, call, op, body, out);
        }
        if is_large {
            return self.begin_large(conn, call, op, body.pieces());
        }
        let bytes = body.whole();
        let effects = match TxEffects::decode(&bytes) {
            Ok(effects) => effects,
            Err(e) => return self.expel(conn, format!("a commit: {e}"), out),
        };
        if let Err(outcome) = self.judge(&effects) {
            self.stats.conflicts += 1;
            return self.not_executed(conn, call, op, outcome, out);
        }
        if self.large_holds(&effects) {
            return self.wait_behind(conn, call, op, Body { parts: Vec::new(), last: bytes }, out);
        }
        let missing = match self.missing_pages(&effects) {
            Ok(missing) => missing,
            Err(limit) => return self.not_executed(conn, call, op, Outcome::Full(limit), out),
        };
        if !missing.is_empty() {
            return self.park(conn, call, op, Body { parts: Vec::new(), last: bytes }, missing, out);
        }
        let placements = match self.check_and_place(conn, &effects) {
            Ok(placements) => placements,
            Err(outcome) => return self.not_executed(conn, call, op, outcome, out),
        };
        self.evict_for(op.client, out);
        self.stats.commits += 1;
        self.stats.forwards += placements.len() as u64;
        let stamp = self.order(&Entry::Commit(Logged { op, effects, placements }), Some(op), out);
        if dropped(Rule::ReplyUnsynced) {
            self.verdict(conn, call, op, Outcome::Committed(stamp), out);
        }
    }

    /// Whether the transaction may commit after everything ordered so far.
    pub(super) fn judge(&self, effects: &TxEffects<'_>) -> Result<(), Outcome> {
        self.state.certify(effects).or_else(|outcome| match outcome {
            Outcome::Conflict(oref) if dropped(Rule::InFlightNotCertified) => {
                let in_flight = self.flights.iter().any(|f| f.changed.contains(&oref));
                if in_flight { Ok(()) } else { Err(outcome) }
            }
            other => Err(other),
        })
    }

    /// Makes room for a client among those whose answers are kept.
    pub(super) fn evict_for(&mut self, client: ClientId, out: &mut Effects) {
        if let Some(victim) = self.state.victim(client) {
            self.order(&Entry::Evict(victim), None, out);
            if let Some(conn) = self.clients.get(&victim).copied() {
                self.forget(conn, out);
            }
        }
    }

    /// Answers from what is known of the operation; whether it was.
    fn answer_past(&mut self, conn: Conn, call: u64, op: OpId, out: &mut Effects) -> bool {
        let outcome = match self.state.past(op) {
            Past::Never if self.large_will_end(op) => return true,
            // Ordered and not yet durable: the answer comes when it is.
            Past::Committed(stamp) if stamp > self.visible => return true,
            Past::Committed(stamp) => Outcome::Committed(stamp),
            Past::Superseded | Past::Unknown => Outcome::Unknown,
            // It may have been executed in the history that this space was restored from, and nobody here can know.
            Past::Never if !self.is_own_life(op.view) => Outcome::Unknown,
            Past::Never if op.view != self.state.view => Outcome::NotExecuted,
            Past::Never if self.spent.is_spent(op) => Outcome::NotExecuted,
            Past::Never => return false,
        };
        self.verdict(conn, call, op, outcome, out);
        true
    }

    /// Answers that an operation is not executed, which spends its id: no later copy of the request will execute.
    pub(super) fn not_executed(
        &mut self,
        conn: Conn,
        call: u64,
        op: OpId,
        outcome: Outcome,
        out: &mut Effects,
    ) {
        let clients = &self.clients;
        self.spent.spend(op, |client| clients.contains_key(&client));
        self.verdict(conn, call, op, outcome, out);
    }

    pub(super) fn resolve(&mut self, conn: Conn, call: u64, op: OpId, out: &mut Effects) {
        if self.sessions.get(&conn).and_then(|s| s.client) != Some(op.client) {
            return self.verdict(conn, call, op, Outcome::Unknown, out);
        }
        if !self.answer_past(conn, call, op, out) {
            if dropped(Rule::ResolveDoesNotSpend) {
                return self.verdict(conn, call, op, Outcome::NotExecuted, out);
            }
            self.drop_parked(|p| p.op == op);
            self.drop_large(|l| l.op == op);
            self.not_executed(conn, call, op, Outcome::NotExecuted, out);
        }
    }

    /// Pages that must be seen before the writes can be placed. They must find room in the page cache all at once, or
    /// they would drive each other out for ever.
    fn missing_pages(&mut self, effects: &TxEffects<'_>) -> Result<Vec<PageId>, Limit> {
        let mut missing = Vec::new();
        let mut needed: Set<PageId> = Set::default();
        for w in effects.writes.iter().filter(|w| !w.new) {
            let page = w.oref.page();
            if !self.is_here(page) {
                missing.push(page);
            } else if let Some(to) = self.forward_of(w.oref) {
                needed.insert(to.page());
                if !self.is_here(to.page()) {
                    missing.push(to.page());
                }
            }
            needed.insert(page);
            if needed.len() > self.images.count_max() / 2 {
                return Err(Limit::Transaction);
            }
        }
        missing.sort_unstable();
        missing.dedup();
        Ok(missing)
    }

    /// Keeps a commit until pages are read.
    fn park(
        &mut self,
        conn: Conn,
        call: u64,
        op: OpId,
        body: Body<'_>,
        missing: Vec<PageId>,
        out: &mut Effects,
    ) {
        let Some(id) = self.hold(conn, call, op, body, missing.len()) else {
            return self.not_executed(conn, call, op, Outcome::Full(Limit::Buffer), out);
        };
        for page in missing {
            self.reads.wait(page, Waiter::Commit(conn, id));
        }
    }

    /// Keeps a commit until modified objects are installed and there is room for more, of them or of the log.
    fn stall(&mut self, conn: Conn, call: u64, op: OpId, body: Body<'_>, out: &mut Effects) {
        match self.hold(conn, call, op, body, 1) {
            Some(id) => self.stalled.push(id),
            None => self.not_executed(conn, call, op, Outcome::Full(Limit::Buffer), out),
        }
    }

    /// Keeps a commit until the large one that stands in its way is ordered.
    fn wait_behind(&mut self, conn: Conn, call: u64, op: OpId, body: Body<'_>, out: &mut Effects) {
        match self.hold(conn, call, op, body, 1) {
            Some(id) => self.behind.push(id),
            None => self.not_executed(conn, call, op, Outcome::Full(Limit::Buffer), out),
        }
    }

    /// Takes a commit among the parked; none if there are too many.
    fn hold(&mut self, conn: Conn, call: u64, op: OpId, body: Body<'_>, missing: usize) -> Option<u64> {
        let session = self.sessions.get_mut(&conn)?;
        if session.pending >= limits::CREDIT as usize
            || self.parked_bytes + body.len() > self.config.mob_bytes / 2 && !self.parked.is_empty()
        {
            return None;
        }
        session.pending += 1;
        self.parked_bytes += body.len();
        self.parked_last += 1;
        self.parked.insert(self.parked_last, Parked { conn, call, op, body: body.into_owned(), missing });
        Some(self.parked_last)
    }

    fn release(&mut self, id: u64) -> Option<Parked> {
        let parked = self.parked.remove(&id)?;
        self.parked_bytes -= parked.body.len();
        if let Some(session) = self.sessions.get_mut(&parked.conn) {
            session.pending = session.pending.saturating_sub(1);
        }
        Some(parked)
    }

    pub(super) fn drop_parked(&mut self, which: impl Fn(&Parked) -> bool) {
        let ids: Vec<u64> = self.parked.iter().filter(|(_, p)| which(p)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| {
            self.release(id);
        });
    }

    /// There may be room for those that wait for it.
    pub(super) fn unstall(&mut self, out: &mut Effects) {
        for id in std::mem::take(&mut self.stalled) {
            self.unpark(id, out);
        }
    }

    /// Something that a parked commit waited for is here; with the last of it it is tried again from the start.
    pub(super) fn unpark(&mut self, id: u64, out: &mut Effects) {
        let Some(parked) = self.parked.get_mut(&id) else { return };
        parked.missing -= 1;
        if parked.missing == 0
            && let Some(p) = self.release(id)
        {
            self.commit(p.conn, p.call, p.op, p.body, out);
        }
    }

    pub(super) fn fail_parked(&mut self, id: u64, why: &str, out: &mut Effects) {
        let Some(p) = self.release(id) else { return };
        self.refuse(p.conn, p.call, Reason::Corrupt, why, out);
        self.not_executed(p.conn, p.call, p.op, Outcome::NotExecuted, out);
    }

    /// Checks every write against its class and finds a place for it.
    fn check_and_place(&mut self, conn: Conn, effects: &TxEffects<'_>) -> Result<Vec<(u32, Oref)>, Outcome> {
        let mut sorted: Vec<Oref> = effects.writes.iter().map(|w| w.oref).collect();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|w| w[0] == w[1]) {
            return Err(Outcome::Invalid(twice[0]));
        }
        effects.writes.iter().try_for_each(|w| self.check_object(w))?;
        self.place(conn, effects)
    }

    /// Checks an object against its class.
    pub(super) fn check_object(&self, w: &Write<'_>) -> Result<(), Outcome> {
        // A forward is the server's to write.
        let class = Some(class_of(w.object)).filter(|c| *c != FORWARD);
        let layout = class.and_then(|c| self.state.class(c)).ok_or(Outcome::Invalid(w.oref))?;
        layout.check(&w.object[HEADER_BYTES..]).map_err(|_| Outcome::Invalid(w.oref))
    }
}
