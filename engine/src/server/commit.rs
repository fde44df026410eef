//! Commits: arrived in parts, judged, placed, ordered; and operations whose answer did not arrive.

use tercel_wire::id::{OpId, Oref, PageId};
use tercel_wire::message::{Commit, Effects as TxEffects, Limit, Outcome, Part, Reason};
use tercel_wire::page::class_of;
use tercel_wire::record::HEADER_BYTES;

use super::fetch::Waiter;
use super::session::Staged;
use super::{Conn, Effects, Server};
use crate::limits;
use crate::store::entry::{Entry, Logged};
use crate::store::state::Past;

/// A commit that waits for pages to be read before it can be placed.
pub(super) struct Parked {
    pub conn: Conn,
    call: u64,
    op: OpId,
    bytes: Vec<u8>,
    missing: usize,
}

impl Server {
    pub(super) fn part(&mut self, conn: Conn, part: Part<'_>, out: &mut Effects) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let staged = session.staged.entry(part.op.slot).or_insert(Staged {
            seq: part.op.seq,
            parts: 0,
            bytes: vec![],
        });
        if staged.seq != part.op.seq {
            session.staged_bytes -= staged.bytes.len();
            *staged = Staged { seq: part.op.seq, parts: 0, bytes: Vec::new() };
        }
        if part.index != staged.parts
            || session.staged_bytes + part.bytes.len() > limits::TRANSACTION_BYTES_MAX
        {
            // The commit that follows finds its parts missing and is answered then.
            session.staged_bytes -= staged.bytes.len();
            session.staged.remove(&part.op.slot);
            return self.refuse(conn, 0, Reason::Full, "parts of transactions exceed the bound", out);
        }
        staged.parts += 1;
        staged.bytes.extend_from_slice(part.bytes);
        session.staged_bytes += part.bytes.len();
    }

    pub(super) fn commit_arrived(&mut self, conn: Conn, call: u64, commit: Commit<'_>, out: &mut Effects) {
        if commit.parts == 0 {
            return self.commit(conn, call, commit.op, commit.bytes, out);
        }
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let Some(staged) = session.staged.remove(&commit.op.slot) else {
            return self.not_executed(conn, call, commit.op, Outcome::Full(Limit::Transaction), out);
        };
        session.staged_bytes -= staged.bytes.len();
        if staged.seq != commit.op.seq || staged.parts != commit.parts {
            return self.not_executed(conn, call, commit.op, Outcome::Full(Limit::Transaction), out);
        }
        let mut bytes = staged.bytes;
        bytes.extend_from_slice(commit.bytes);
        self.commit(conn, call, commit.op, &bytes, out);
    }

    /// Executes an operation at most once.
    fn commit(&mut self, conn: Conn, call: u64, op: OpId, bytes: &[u8], out: &mut Effects) {
        if self.sessions.get(&conn).and_then(|s| s.client) != Some(op.client) {
            return self.verdict(conn, call, op, Outcome::Invalid(Oref::NULL), out);
        }
        if self.answer_past(conn, call, op, out) {
            return;
        }
        let effects = match TxEffects::decode(bytes) {
            Ok(effects) => effects,
            Err(e) => return self.refuse(conn, 0, Reason::Protocol, format!("a commit: {e}"), out),
        };
        if self.disk_full {
            return self.not_executed(conn, call, op, Outcome::Full(Limit::Disk), out);
        }
        if self.mob.bytes() + bytes.len() > self.config.mob_bytes {
            return self.not_executed(conn, call, op, Outcome::Full(Limit::Buffer), out);
        }
        if let Err(outcome) = self.state.certify(&effects) {
            self.stats.conflicts += 1;
            return self.not_executed(conn, call, op, outcome, out);
        }
        let missing = self.missing_pages(&effects);
        if !missing.is_empty() {
            return self.park(conn, call, op, bytes.to_vec(), missing, out);
        }
        let placements = match self.check_and_place(conn, &effects) {
            Ok(placements) => placements,
            Err(outcome) => return self.not_executed(conn, call, op, outcome, out),
        };
        if let Some(victim) = self.state.victim(op.client) {
            self.order(&Entry::Evict(victim), None, out);
        }
        self.stats.commits += 1;
        self.stats.forwards += placements.len() as u64;
        self.order(&Entry::Commit(Logged { op, effects, placements }), Some(op), out);
    }

    /// Answers from what is known of the operation; whether it was.
    fn answer_past(&mut self, conn: Conn, call: u64, op: OpId, out: &mut Effects) -> bool {
        let outcome = match self.state.past(op) {
            // Ordered and not yet durable: the answer comes when it is.
            Past::Committed(stamp) if stamp > self.visible => return true,
            Past::Committed(stamp) => Outcome::Committed(stamp),
            Past::Superseded | Past::Unknown => Outcome::Unknown,
            Past::Never if op.epoch != self.state.epoch => Outcome::NotExecuted,
            Past::Never if self.is_spent(op) => Outcome::NotExecuted,
            Past::Never => return false,
        };
        self.verdict(conn, call, op, outcome, out);
        true
    }

    fn is_spent(&self, op: OpId) -> bool {
        self.spent.get(&(op.client, op.slot)).is_some_and(|seq| *seq >= op.seq)
    }

    /// Answers that an operation is not executed, which spends its id: no later copy of the request will execute.
    fn not_executed(&mut self, conn: Conn, call: u64, op: OpId, outcome: Outcome, out: &mut Effects) {
        let spent = self.spent.entry((op.client, op.slot)).or_insert(0);
        *spent = (*spent).max(op.seq);
        self.verdict(conn, call, op, outcome, out);
    }

    pub(super) fn resolve(&mut self, conn: Conn, call: u64, op: OpId, out: &mut Effects) {
        if self.sessions.get(&conn).and_then(|s| s.client) != Some(op.client) {
            return self.verdict(conn, call, op, Outcome::Unknown, out);
        }
        if !self.answer_past(conn, call, op, out) {
            self.parked.retain(|_, p| p.op != op);
            self.not_executed(conn, call, op, Outcome::NotExecuted, out);
        }
    }

    /// Pages that must be seen before the writes can be placed.
    fn missing_pages(&mut self, effects: &TxEffects<'_>) -> Vec<PageId> {
        let mut missing = Vec::new();
        let mut last = None;
        for w in effects.writes.iter().filter(|w| !w.new) {
            let page = w.oref.page();
            if last == Some(page) {
                continue;
            }
            last = Some(page);
            if !self.is_here(page) {
                missing.push(page);
            } else if let Some(to) = self.forward_of(w.oref)
                && !self.is_here(to.page())
            {
                missing.push(to.page());
            }
        }
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    fn park(
        &mut self,
        conn: Conn,
        call: u64,
        op: OpId,
        bytes: Vec<u8>,
        missing: Vec<PageId>,
        out: &mut Effects,
    ) {
        self.parked_last += 1;
        let id = self.parked_last;
        self.parked.insert(id, Parked { conn, call, op, bytes, missing: missing.len() });
        for page in missing {
            self.read(page, Waiter::Commit(conn, id), out);
        }
    }

    /// A page that a parked commit waited for is here; with the last one it is tried again from the start.
    pub(super) fn unpark(&mut self, id: u64, out: &mut Effects) {
        let Some(parked) = self.parked.get_mut(&id) else { return };
        parked.missing -= 1;
        if parked.missing == 0
            && let Some(p) = self.parked.remove(&id)
        {
            self.commit(p.conn, p.call, p.op, &p.bytes, out);
        }
    }

    pub(super) fn fail_parked(&mut self, id: u64, why: &str, out: &mut Effects) {
        let Some(p) = self.parked.remove(&id) else { return };
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
        for w in &effects.writes {
            let layout = self.state.class(class_of(w.object)).ok_or(Outcome::Invalid(w.oref))?;
            layout.check(&w.object[HEADER_BYTES..]).map_err(|_| Outcome::Invalid(w.oref))?;
        }
        self.place(conn, effects)
    }
}
