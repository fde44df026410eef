//! Commits: judged, placed, ordered; and operations whose answer did not arrive.

use tercel_wire::class::FORWARD;
use tercel_wire::cursor::le32;
use tercel_wire::id::{ClientId, OpId, Oref, PageId};
use tercel_wire::message::{CommitEffects, Limit, Refusal, Write};
use tercel_wire::page::class_of;
use tercel_wire::record::HEADER_BYTES;

use super::body::Body;
use super::own::Owned;
use super::role::Role;
use super::waiting::Parked;
use super::{Asked, Leader, Work};
use crate::effect::{INSIDE, Unread};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::pages::reads::Waiter;
use crate::replica::answers::Past;
use crate::replica::entry::{Decide, Entry, Head, Logged, Placement};
use crate::table::Set;

impl Leader {
    /// Executes an operation at most once. The client is the one that the connection belongs to.
    pub(crate) fn commit(&mut self, asked: Asked, op: OpId, body: Body<'_>, work: &mut Work) {
        let (is_large, digest) = (body.is_large(), body.digest);
        let is_twice = body.ran.is_some() && dropped(Rule::CallTwice);
        if !is_twice && self.answer_past(asked, op, Some(digest), work) {
            return;
        }
        if let Some((why, _)) = work.refuses_writes() {
            let why = if why == Refusal::FULL { Refusal::Full(Limit::Disk) } else { why };
            return self.not_executed(asked, op, why, work);
        }
        if body.len() > work.config.mob_bytes {
            return self.not_executed(asked, op, Refusal::Full(Limit::Transaction), work);
        }
        if work.replica.released.count() > limits::RELEASED_MAX + self.reclaiming.collecting.released() {
            return self.not_executed(asked, op, Refusal::Full(Limit::Buffer), work);
        }
        let reply_bytes = body.ran.as_ref().map_or(0, |ran| ran.reply.len());
        if work.replica.answers.lacks_room(op, reply_bytes) {
            self.evict_for(op, reply_bytes, work);
            if work.replica.answers.lacks_room(op, reply_bytes) {
                return self.not_executed(asked, op, Refusal::Full(Limit::Buffer), work);
            }
        }
        if work.log_is_full() || work.pages.mob.bytes() + body.len() > work.config.mob_bytes {
            return self.stall(asked, op, body, work);
        }
        if is_large && (self.large.is_some() || self.reclaiming.collecting.is_freeing())
            || self.large_precedes(op)
        {
            return self.wait_behind(asked, op, body, work);
        }
        if is_large {
            return self.begin_large(asked, op, body);
        }
        if let Some(why) = body.role.as_ref().and_then(|role| self.refuses_role(op, role, body.len(), work)) {
            return self.not_executed(asked, op, why, work);
        }
        let (ran, role) = (body.ran.clone(), body.role.clone());
        let bytes = body.whole();
        let effects = match CommitEffects::decode(&bytes) {
            Ok(effects) => effects,
            Err(e) => return work.expel(asked.conn, format!("a commit: {e}")),
        };
        let classes = effects.writes.iter().map(|w| class_of(w.object));
        if let Err(lack) = work.judge_rights(asked, ran.as_ref().map(|ran| ran.called), classes) {
            return self.denied(asked, op, &lack, work);
        }
        // Methods and transactions inside of the server take no turns: they are a round trip nearer.
        let has_turns = ran.is_none() && role.is_none() && asked.conn != INSIDE;
        let lost_over = match self.judge(&effects, work) {
            Err(Refusal::Conflict(over)) if has_turns && over != Oref::NULL => Some(over),
            Err(outcome) => {
                self.waiting.contended.lost(outcome, work);
                return self.not_executed(asked, op, outcome, work);
            }
            Ok(()) if has_turns => self.waiting.turns.of_another(op.client, &effects.writes, work.now),
            Ok(()) => None,
        };
        if let Some(over) = lost_over {
            return self.lose(asked, op, over, work);
        }
        if let Some(over) = work.replica.prepares.meets(&effects) {
            let body = Body { parts: Vec::new(), last: bytes, digest, ran, role };
            return self.meet_hold(asked, op, (over, body), work);
        }
        if matches!(role.as_deref(), Some(Role::Participant { .. })) && self.large_meets(&effects) {
            return self.not_executed(asked, op, Refusal::Conflict(Oref::NULL), work);
        }
        if self.large_holds(&effects) {
            let body = Body { parts: Vec::new(), last: bytes, digest, ran, role };
            return self.wait_behind(asked, op, body, work);
        }
        let missing = match self.missing_pages(&effects, work) {
            Ok(missing) => missing,
            Err(limit) => return self.not_executed(asked, op, Refusal::Full(limit), work),
        };
        if !missing.is_empty() {
            let body = Body { parts: Vec::new(), last: bytes, digest, ran, role };
            return self.park(asked, op, body, missing, work);
        }
        if let Some(Role::Participant { of, coordinator, .. }) = role.as_deref() {
            return self.prepare(asked, (op, digest), (*of, *coordinator), effects, work);
        }
        let author = ran.as_ref().map_or(op.client, |ran| ran.author);
        match self.check_and_place(author, &effects, work) {
            Err(outcome) => self.not_executed(asked, op, outcome, work),
            Ok(head) => {
                let (is_call, reply) = (ran.is_some(), ran.map_or(Vec::new(), |ran| ran.reply));
                let head = Head { op, digest, reply, ..head };
                self.waiting.turns.taken(op.client);
                self.own(asked, op.client, work);
                self.order_commit(Logged { head, effects }, role.map(|role| *role), is_call, work);
            }
        }
    }

    fn order_commit(&mut self, logged: Logged<'_>, role: Option<Role>, is_call: bool, work: &mut Work) {
        let op = logged.head.op;
        self.evict_for(op, logged.head.reply.len(), work);
        self.note_writes(&logged, work);
        let stamp = match role {
            Some(Role::Coordinator { parts, seen }) => {
                let spaces: Vec<_> = parts.iter().map(|part| part.space).collect();
                let decide = Entry::Decide(Decide { parts, seen, logged });
                let stamp = self.order(&decide, Some((op, is_call)), work);
                self.across.consulting.decided(stamp, spaces.into_iter(), work.now);
                stamp
            }
            _ => self.order(&Entry::Commit(logged), Some((op, is_call)), work),
        };
        if dropped(Rule::ReplyUnsynced)
            && let Some(present) = self.present.get(&op.client)
        {
            work.verdict(Asked { conn: present.conn, call: 0 }, op, Ok(stamp));
        }
    }

    /// A transaction that was placed is about to be ordered.
    pub(super) fn note_writes(&mut self, logged: &Logged<'_>, work: &mut Work) {
        work.stats.commits += 1;
        work.stats.forwards += logged.head.placements.len() as u64;
        logged.effects.writes.iter().for_each(|w| self.reclaiming.collecting.wrote(w.oref, w.new));
        self.moved(&logged.head.placements, &logged.head.left);
    }

    /// A commit moves objects.
    pub(super) fn moved(&mut self, to: &[Placement], left: &[Oref]) {
        to.iter().for_each(|p| self.reclaiming.collecting.wrote(p.to, p.is_new));
        left.iter().for_each(|oref| self.reclaiming.collecting.left(*oref));
    }

    /// Says whether the transaction may commit after everything ordered so far.
    pub(crate) fn judge(&self, effects: &CommitEffects<'_>, work: &Work) -> Result<(), Refusal> {
        work.replica.certify(effects).or_else(|why| match why {
            Refusal::Conflict(oref) if dropped(Rule::InFlightNotCertified) && self.is_in_flight(oref) => {
                Ok(())
            }
            other => Err(other),
        })
    }

    /// The same of what a method has written, which is run anew if it may not. It waits for the turn of
    /// another, and if it was run ahead, for those that have lost.
    pub(crate) fn judge_call(
        &self,
        client: ClientId,
        effects: &CommitEffects<'_>,
        is_ahead: bool,
        work: &Work,
    ) -> Result<(), Refusal> {
        self.judge(effects, work)?;
        if let Some(over) = self.waiting.turns.of_another(client, &effects.writes, work.now) {
            return Err(Refusal::Conflict(over));
        }
        if !is_ahead {
            return Ok(());
        }
        if let Some(write) = effects.writes.iter().find(|write| self.is_waited_for(write.oref)) {
            return Err(Refusal::Conflict(write.oref));
        }
        checked(effects, work).map(drop)
    }

    /// Makes room for an operation in the table of answers.
    pub(super) fn evict_for(&mut self, op: OpId, reply_bytes: usize, work: &mut Work) {
        let victims = work.replica.answers.victims(op, reply_bytes, |id| self.is_present(id));
        for victim in victims {
            self.order(&Entry::Evict(victim), None, work);
        }
    }

    /// Says whether the operation stands in the order, visible or not, or will.
    pub(crate) fn is_ordered(&self, op: OpId, work: &Work) -> bool {
        matches!(work.replica.answers.past(op), Past::Committed(_)) || self.large_will_end(op)
    }

    /// Answers from what is known of the operation; whether it was. `digest` is a checksum of the bytes that
    /// came with it.
    pub(crate) fn answer_past(
        &mut self,
        asked: Asked,
        op: OpId,
        digest: Option<u32>,
        work: &mut Work,
    ) -> bool {
        // A space that was restored has the views of the backup, too; what was done in them after it was
        // taken is not here.
        let is_of_history = work.replica.views.knows(op.view) && op.view.number >= work.config.view_first;
        let outcome = match work.replica.answers.past(op) {
            Past::Never if self.large_will_end(op) => return true,
            Past::Committed(answer) if digest.is_some_and(|digest| digest != answer.digest) => {
                work.expel(asked.conn, format!("operation {op} was sent before, with other bytes"));
                return true;
            }
            // Ordered and not yet visible: the answer comes when it is.
            Past::Committed(answer) if answer.stamp > work.pages.visible() => return true,
            Past::Committed(answer) => Ok(answer.stamp),
            Past::Superseded | Past::Unknown => Err(Refusal::Unknown),
            // It may have been executed in another history, which this server does not know.
            Past::Never if !is_of_history => Err(Refusal::Unknown),
            Past::Never if op.view != self.view && !dropped(Rule::RejectedAcrossViews) => {
                Err(Refusal::NotExecuted)
            }
            Past::Never if self.rejected.is_rejected(op) => Err(Refusal::NotExecuted),
            Past::Never => return false,
        };
        work.verdict(asked, op, outcome);
        true
    }

    /// Answers that an operation is not executed, which rejects its id: no later copy of the request will
    /// execute.
    pub(crate) fn not_executed(&mut self, asked: Asked, op: OpId, why: Refusal, work: &mut Work) {
        self.spend(op);
        work.verdict(asked, op, Err(why));
    }

    /// No copy of the request will execute: it was answered in another way than by a commit.
    pub(crate) fn spend(&mut self, op: OpId) {
        let present = &self.present;
        self.rejected.reject(op, |client| present.contains_key(&client));
    }

    /// The same, of a request that may wait here: what waits of it is let go of.
    pub(crate) fn withdraw(&mut self, op: OpId) {
        self.waiting.drop_where(|w| w.op == op);
        self.drop_large(|l| l.op == op);
        self.spend(op);
    }

    /// A transaction that came in parts was let go of before its commit came.
    pub(crate) fn refuse_parts(&mut self, asked: Asked, op: OpId, limit: Limit, work: &mut Work) {
        if !self.answer_past(asked, op, None, work) {
            self.not_executed(asked, op, Refusal::Full(limit), work);
        }
    }

    /// A client asks what became of an operation of its own.
    pub(crate) fn resolve(&mut self, asked: Asked, op: OpId, work: &mut Work) {
        if self.answer_past(asked, op, None, work) {
            return;
        }
        if dropped(Rule::ResolveDoesNotReject) {
            return work.verdict(asked, op, Err(Refusal::NotExecuted));
        }
        self.waiting.drop_where(|w| w.op == op);
        self.drop_large(|l| l.op == op);
        self.not_executed(asked, op, Refusal::NotExecuted, work);
    }

    /// Pages that must be seen before the writes can be placed. They must find room in the page cache all at
    /// once, or they would drive each other out for ever.
    fn missing_pages(&mut self, effects: &CommitEffects<'_>, work: &mut Work) -> Result<Vec<PageId>, Limit> {
        let mut missing = Vec::new();
        let mut needed: Set<PageId> = Set::default();
        for w in &effects.writes {
            let page = w.oref.page();
            if w.new {
                if !self.is_here_to_fill(page, work) {
                    needed.insert(page);
                    missing.push(page);
                }
                continue;
            }
            missing.extend(missing_of(w.oref, work, &mut needed));
            if needed.len() > work.pages.cached_max() / 2 {
                return Err(Limit::Transaction);
            }
        }
        missing.sort_unstable();
        missing.dedup();
        Ok(missing)
    }

    /// Keeps a commit until pages are read.
    fn park(&mut self, asked: Asked, op: OpId, body: Body<'_>, missing: Vec<PageId>, work: &mut Work) {
        let Some(id) = self.hold(asked, op, body, missing.len(), work) else { return };
        for page in missing {
            work.pages.reads.wait(page, Waiter::Commit(asked.conn, id));
        }
    }

    /// Keeps a commit until modified objects are installed and there is room for more, of them or of the log.
    fn stall(&mut self, asked: Asked, op: OpId, body: Body<'_>, work: &mut Work) {
        if let Some(id) = self.hold(asked, op, body, 1, work) {
            self.waiting.stalled.push(id);
            work.pages.installer.is_awaited = true;
        }
    }

    /// Keeps a commit until the large one that stands in its way is ordered.
    fn wait_behind(&mut self, asked: Asked, op: OpId, body: Body<'_>, work: &mut Work) {
        let id = self.hold(asked, op, body, 1, work);
        self.waiting.behind.extend(id);
    }

    /// Takes a commit among those that wait, or answers that too much waits.
    pub(super) fn hold(
        &mut self,
        asked: Asked,
        op: OpId,
        body: Body<'_>,
        missing: usize,
        work: &mut Work,
    ) -> Option<u64> {
        let id = self.waiting.hold(asked, op, body, missing, work.config.mob_bytes / 2);
        if id.is_none() {
            self.not_executed(asked, op, Refusal::Full(Limit::Buffer), work);
        }
        id
    }

    /// There may be room for those that wait for it.
    pub(crate) fn unstall(&mut self, work: &mut Work) {
        work.pages.installer.is_awaited = false;
        self.free_again();
        for id in std::mem::take(&mut self.waiting.stalled) {
            self.page_came(id, work);
        }
        self.go_on_settlements(work);
    }

    /// Bytes that the first of those that wait for room needs.
    pub(crate) fn bytes_awaited(&self) -> Option<usize> {
        self.waiting.bytes_stalled()
    }

    /// Something that a commit waited for is here; with the last of it, it is tried again from the start.
    pub(crate) fn page_came(&mut self, id: u64, work: &mut Work) {
        if let Some(Parked { asked, op, body, .. }) = self.waiting.arrived(id) {
            self.commit(asked, op, body, work);
        }
    }

    /// A page that a commit waited for cannot be read.
    pub(crate) fn page_failed(&mut self, id: u64, why: &Unread, work: &mut Work) {
        let Some(parked) = self.waiting.take(id) else { return };
        work.refuse(parked.asked, why.refusal(), why.to_string());
        self.not_executed(parked.asked, parked.op, Refusal::NotExecuted, work);
    }

    /// Checks every write against its class and finds a place for it.
    fn check_and_place(
        &mut self,
        client: ClientId,
        effects: &CommitEffects<'_>,
        work: &mut Work,
    ) -> Result<Head, Refusal> {
        let (named, owned) = checked(effects, work)?;
        let mut placing = self.place(client, effects.base, owned, &effects.writes, work)?;
        let filled = self.keep_fills(&mut placing, usize::MAX).unwrap_or_default();
        let named = self.promised_of(&named, work);
        let births = placing.take_births();
        Ok(Head {
            placements: placing.take_placements(),
            named,
            filled,
            left: placing.left,
            released: placing.released,
            births,
            ..Head::default()
        })
    }

    /// The pages among those of `named` in which nothing was made where they lead, in order.
    pub(super) fn promised_of(&self, named: &[Oref], work: &mut Work) -> Vec<PageId> {
        if dropped(Rule::NamedNotHeldBack) {
            return Vec::new();
        }
        let mut pages: Vec<PageId> =
            named.iter().filter(|to| !self.is_made(**to, work)).map(|to| to.page()).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Says whether something is known to have been made in a place.
    fn is_made(&self, to: Oref, work: &mut Work) -> bool {
        match self.fills.get(&to.page()) {
            Some(fill) => fill.is_made(to.slot()),
            None => work.pages.newest(to, |_| ()).is_some(),
        }
    }
}

/// Checks the objects of a transaction: gives the places that they name outside of it, and their trees.
pub(super) fn checked(effects: &CommitEffects<'_>, work: &Work) -> Result<(Vec<Oref>, Owned), Refusal> {
    let mut sorted: Vec<Oref> = effects.writes.iter().map(|w| w.oref).collect();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|w| w[0] == w[1]) {
        return Err(Refusal::Invalid(twice[0]));
    }
    let (mut named, mut owned) = (Vec::new(), Owned::default());
    effects.writes.iter().try_for_each(|w| check_object(w, &mut named, &mut owned, work))?;
    owned.check()?;
    named.retain(|to| sorted.binary_search(to).is_err());
    Ok((named, owned))
}

/// The pages of an object that are not at hand: its own, and the one that it moved to. All of them are
/// `needed`.
pub(super) fn missing_of(oref: Oref, work: &mut Work, needed: &mut Set<PageId>) -> Option<PageId> {
    needed.insert(oref.page());
    if !work.pages.is_here(oref.page()) {
        return Some(oref.page());
    }
    let to = work.pages.forward_of(oref)?;
    needed.insert(to.page());
    (!work.pages.is_here(to.page())).then_some(to.page())
}

/// Checks an object against its class, and that no page it names was never given out; notes the places that
/// may only have been promised, and its trees.
pub(super) fn check_object(
    w: &Write<'_>,
    named: &mut Vec<Oref>,
    owned: &mut Owned,
    work: &Work,
) -> Result<(), Refusal> {
    // A forward is the server's to write.
    let class = Some(class_of(w.object)).filter(|c| *c != FORWARD);
    let layout = class.and_then(|c| work.replica.catalogue.class(c)).ok_or(Refusal::Invalid(w.oref))?;
    let body = &w.object[HEADER_BYTES..];
    layout.check(body).map_err(|_| Refusal::Invalid(w.oref))?;
    let places = &work.replica.places;
    let first = places.promised_first();
    let mut wrong = None;
    layout.refs(body, |at| {
        let Some(to) = Oref::from_raw(le32(body, at)) else {
            wrong = Some(Refusal::Invalid(w.oref));
            return;
        };
        let page = to.page();
        if page.get() >= places.next_page() {
            wrong = Some(Refusal::Nowhere(to));
        } else if first.is_some_and(|first| page >= first)
            && named.last() != Some(&to)
            && places.may_return(page)
        {
            named.push(to);
        }
    });
    wrong.map_or_else(|| owned.see(w, layout), Err)
}
