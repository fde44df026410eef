//! Transactions over several spaces: parts that are prepared, decided and settled here.
//!
//! A participant judges its part as a commit and orders the *prepare*: from then on the part is held
//! ([`crate::replica::prepares`]). The coordinator orders the *decision*, which is its own part's commit, and
//! the point from which on the transaction is committed. Each participant then orders the *settlement*: what
//! the part wrote is placed and becomes visible, or the hold goes without effects. The client, the
//! coordinator or an operator brings the end. A participant that hears nothing asks the coordinator
//! ([`super::consult`]), which spends an id that it has not decided: presumed abort. No part waits for a
//! lock: one that meets a hold is refused, and a commit of this space alone waits for a bounded time.

use std::collections::{BTreeMap, VecDeque};

use tercel_wire::cursor::le32;
use tercel_wire::id::{LogPosition, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::message::{CommitEffects, Decision, Limit, Refusal, Settle};
use tercel_wire::page::class_of;
use tercel_wire::record::HEADER_BYTES;
use tercel_wire::vector::Vector;

use super::body::Body;
use super::commit::{checked, missing_of};
use super::consult::Consulting;
use super::place::Placing;
use super::role::Role;
use super::{Asked, Leader, Reply, Work};
use crate::effect::{Conn, Unread};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::pages::reads::Waiter;
use crate::replica::Replica;
use crate::replica::answers::Past;
use crate::replica::catalogue::Catalogue;
use crate::replica::entry::{self, Entry, Head, Logged};
use crate::replica::prepares::Part;
use crate::table::{Map, Set};
use crate::time::Now;

/// Progress of the transactions over several spaces in which this one has a part.
#[derive(Debug, Default)]
pub(super) struct Across {
    /// Settlements that wait for pages, or for room, by the stamp of the prepare.
    settling: BTreeMap<Stamp, Settling>,
    /// Requests that wait until a settlement is visible, by its stamp.
    settled: VecDeque<(Stamp, Asked)>,
    /// Requests of those whose word does not count, by the stamp of the prepare.
    hearing: BTreeMap<Stamp, Vec<Asked>>,
    held: Vec<Held>,
    /// By operation, when it waits no longer.
    held_until: Map<OpId, Now>,
    pub(super) consulting: Consulting,
}

/// A settlement that is to be ordered.
#[derive(Debug, Default)]
struct Settling {
    seen: Vector,
    asked: Vec<Asked>,
    /// Pages that are read for it.
    missing: usize,
}

/// A commit that waits until a part lets go of an object.
#[derive(Debug)]
struct Held {
    until: Now,
    id: u64,
    over: Oref,
}

impl Across {
    /// A view begins.
    pub(super) fn new(now: Now, replica: &Replica) -> Across {
        Across { consulting: Consulting::new(now, replica), ..Across::default() }
    }

    /// When something is to be done.
    pub(super) fn deadline(&self) -> Option<Now> {
        let held = self.held.iter().map(|held| held.until).min();
        held.into_iter().chain(self.consulting.deadline()).min()
    }

    /// A connection is gone.
    pub(super) fn left(&mut self, conn: Conn) {
        self.settled.retain(|(_, asked)| asked.conn != conn);
        for settling in self.settling.values_mut() {
            settling.asked.retain(|asked| asked.conn != conn);
        }
    }
}

impl Leader {
    /// Orders the prepare of a part that was found free of conflicts.
    pub(super) fn prepare(
        &mut self,
        asked: Asked,
        (op, digest): (OpId, u32),
        role: (OpId, SpaceId),
        effects: CommitEffects<'_>,
        work: &mut Work,
    ) {
        match self.check_part(op, &effects, work) {
            Err(outcome) => self.not_executed(asked, op, outcome, work),
            Ok(head) => {
                self.own(asked, op.client, work);
                self.evict_for(op, 0, work);
                work.stats.prepares += 1;
                self.reclaiming.collecting.name(&names(&effects, &work.replica.catalogue));
                let logged = Logged { head: Head { op, digest, ..head }, effects };
                let (of, coordinator) = role;
                let entry = Entry::Prepare(entry::Prepare { of, coordinator, logged });
                let stamp = self.order(&entry, Some((op, false)), work);
                self.across.consulting.prepared(stamp, work.now);
            }
        }
    }

    /// The reason why a part, or a decision, is refused before it is judged.
    pub(super) fn refuses_role(&self, op: OpId, role: &Role, bytes: usize, work: &Work) -> Option<Refusal> {
        let replica = &work.replica;
        let (seen, is_much) = match role {
            Role::Participant { seen, .. } => {
                let is_much = replica.prepares.len() >= limits::PREPARES_MAX
                    || replica.prepares.count_of(op.client) >= limits::PREPARES_CLIENT_MAX
                    || replica.prepares.bytes() + bytes > limits::PREPARES_BYTES_MAX;
                (seen, is_much)
            }
            Role::Coordinator { seen, .. } => {
                let is_much = replica.decisions.len() >= limits::DECISIONS_MAX
                    || replica.decisions.count_of(op.client) >= limits::DECISIONS_CLIENT_MAX;
                (seen, is_much)
            }
        };
        if bytes > limits::PART_BYTES {
            return Some(Refusal::Full(Limit::Transaction));
        }
        (is_much || !replica.dependencies.has_room_for(seen)).then_some(Refusal::Full(Limit::Buffer))
    }

    /// Says whether a large transaction that is being placed has to do with what a part reads or writes.
    pub(super) fn large_meets(&self, effects: &CommitEffects<'_>) -> bool {
        self.large.as_ref().is_some_and(|large| large.meets(effects))
    }

    /// Checks a part as a commit is checked, and that its writes would find places. None is taken: what is
    /// free now may be filled before the part is settled.
    fn check_part(
        &mut self,
        op: OpId,
        effects: &CommitEffects<'_>,
        work: &mut Work,
    ) -> Result<Head, Refusal> {
        let (named, owned) = checked(effects, work)?;
        let mut expected = Placing::new(op.client);
        self.expect_some(effects.base, &effects.writes, &mut expected, work)?;
        expected.fits()?;
        let births = expected.take_births();
        // Their slots are taken from now on.
        let _ = self.keep_fills(&mut expected, usize::MAX);
        let overflow = self.overflow;
        let tried = self.place(op.client, effects.base, owned, &effects.writes, work);
        self.overflow = overflow;
        self.unplace(&mut tried?);
        let mut named = self.promised_of(&named, work);
        named.extend(effects.writes.iter().filter(|w| w.new).map(|w| w.oref.page()));
        named.sort_unstable();
        named.dedup();
        Ok(Head { named, births, ..Head::default() })
    }

    /// A part, or the part of a commit of this space alone, meets what a part holds: the one is refused, and
    /// the other waits until that is settled, for a bounded time.
    pub(super) fn meet_hold(
        &mut self,
        asked: Asked,
        op: OpId,
        (over, body): (Oref, Body<'_>),
        work: &mut Work,
    ) {
        let until = *self.across.held_until.entry(op).or_insert_with(|| work.now.plus_us(limits::HELD_US));
        if body.role.is_some() || work.now >= until {
            self.across.held_until.remove(&op);
            self.waiting.contended.lost(Refusal::Conflict(over), work);
            return self.not_executed(asked, op, Refusal::Conflict(over), work);
        }
        if let Some(id) = self.hold(asked, op, body, 1, work) {
            self.across.held.push(Held { until, id, over });
        }
    }

    /// Those that wait for a hold are tried again: one is gone.
    fn release_held(&mut self, work: &mut Work) {
        for held in std::mem::take(&mut self.across.held) {
            self.page_came(held.id, work);
        }
        if self.across.held.is_empty() {
            self.across.held_until.clear();
        }
    }

    /// Refuses those that have waited for too long.
    fn end_held(&mut self, work: &mut Work) {
        let now = work.now;
        let late: Vec<Held> = self.across.held.extract_if(.., |held| held.until <= now).collect();
        self.across.held_until.retain(|_, until| *until > now);
        for held in late {
            let Some(parked) = self.waiting.take(held.id) else { continue };
            self.across.held_until.remove(&parked.op);
            self.waiting.contended.lost(Refusal::Conflict(held.over), work);
            self.not_executed(parked.asked, parked.op, Refusal::Conflict(held.over), work);
        }
    }

    /// Somebody whose word does not count tells the end of a part, such as the server of the space that
    /// decides. It is answered once that space was asked from here.
    pub(crate) fn hear_of_end(&mut self, asked: Asked, settle: Settle, work: &mut Work) {
        let is_of = |part: &&Part| (part.of, part.coordinator) == (settle.of, settle.coordinator);
        if work.replica.prepares.get(settle.prepared).filter(is_of).is_none() {
            // There is nothing to end.
            return self.settle(Some(asked), settle, work);
        }
        let hearing = self.across.hearing.entry(settle.prepared).or_default();
        if hearing.len() >= limits::CREDIT as usize {
            return work.refuse(asked, Refusal::Unavailable, "too many tell of this part at once: try again");
        }
        hearing.retain(|earlier| earlier.conn != asked.conn);
        hearing.push(asked);
    }

    /// The part is not settled yet, for a reason.
    pub(super) fn refuse_hearing(&mut self, prepared: Stamp, why: &str, work: &mut Work) {
        for asked in self.across.hearing.remove(&prepared).unwrap_or_default() {
            let text = format!(
                "{why}; its end counts from the client that had it prepared and from operators: run `tercel settle` on the \
                 server's host, as the user that it runs as"
            );
            work.refuse(asked, Refusal::Unavailable, text);
        }
    }

    /// Takes the end of a transaction of which a part may be prepared here.
    pub(crate) fn settle(&mut self, asked: Option<Asked>, settle: Settle, work: &mut Work) {
        let Settle { of, coordinator, prepared, seen, view } = settle;
        let is_of = |part: &&Part| (part.of, part.coordinator) == (of, coordinator);
        if work.replica.prepares.get(prepared).filter(is_of).is_none() {
            // One that has heard of a later view knows less than another leader.
            let may_be_deposed = work.sequencer.stable() > LogPosition::ZERO;
            let is_overtaken = |view: &ViewId| may_be_deposed && view.number > work.replica.view().number;
            let known = view.filter(|view| !is_overtaken(view));
            if known.is_some_and(|view| work.replica.views.contradict(view, prepared)) {
                let text = format!(
                    "the part of transaction {of} that was prepared at {prepared} is not in the history that space {:x} has now: its \
                     operator looks at what was lost, and then the deciding space forgets this one (`tercel forget`)",
                    work.space.0
                );
                return asked.into_iter().for_each(|asked| work.refuse(asked, Refusal::OtherHistory, &*text));
            }
            // Another leader may have prepared it: only what is visible here is in every later history.
            if prepared > work.pages.visible() {
                let text = "this server does not know of so late a prepare: ask again";
                return asked.into_iter().for_each(|asked| work.refuse(asked, Refusal::Unavailable, text));
            }
            let at = work.replica.prepares.settled_at(prepared).unwrap_or_default();
            return self.answer_settled(at, asked, work);
        }
        let Some(seen) = seen else {
            let logged = None;
            return self.order_settlement(
                prepared,
                (Vector::default(), logged),
                asked.into_iter().collect(),
                work,
            );
        };
        let settling = self.across.settling.entry(prepared).or_default();
        settling.seen = seen;
        if let Some(asked) = asked.filter(|_| settling.asked.len() < limits::CREDIT as usize) {
            settling.asked.retain(|earlier| earlier.conn != asked.conn);
            settling.asked.push(asked);
        }
        self.go_on_settling(prepared, work);
    }

    /// Places a part and orders its settlement, once its pages are here and there is room.
    fn go_on_settling(&mut self, prepared: Stamp, work: &mut Work) {
        let Some(settling) = self.across.settling.get(&prepared).filter(|s| s.missing == 0) else { return };
        if work.disk_full || work.log_is_full() || work.pages.mob.bytes() > work.config.mob_bytes {
            work.pages.installer.is_awaited = true;
            return;
        }
        let seen = settling.seen.clone();
        if !work.replica.dependencies.has_room_for(&seen) {
            let text = "a part waits to be settled, and the space rests on 64 others, as many as it can: have it forget one that is \
                        gone (`tercel forget`)";
            self.across.consulting.not_settled(prepared, text.into());
            return;
        }
        let Some(part) = work.replica.prepares.get(prepared).cloned() else {
            self.across.settling.remove(&prepared);
            return;
        };
        let part = part.entry();
        if part.logged.effects.writes.iter().any(|w| w.new && self.large_fills(w.oref.page())) {
            // Once that is ordered, the room of the page is known.
            return;
        }
        let missing = self.missing_of_part(&part.logged.effects, work);
        if !missing.is_empty() {
            if let Some(settling) = self.across.settling.get_mut(&prepared) {
                settling.missing = missing.len();
            }
            return missing
                .into_iter()
                .for_each(|page| work.pages.reads.wait(page, Waiter::Settle(prepared)));
        }
        match self.place_part(&part.logged, work) {
            Ok(head) => {
                let Some(settling) = self.across.settling.remove(&prepared) else { return };
                let logged = Logged { head, effects: part.logged.effects.clone() };
                self.note_writes(&logged, work);
                self.order_settlement(prepared, (seen, Some(logged)), settling.asked, work);
            }
            Err(why) => {
                let text = "a part that was prepared finds no place: make room in the space";
                let asked = self.across.settling.get_mut(&prepared).map(|s| std::mem::take(&mut s.asked));
                asked.into_iter().flatten().for_each(|asked| work.refuse(asked, why, text));
                self.across.consulting.not_settled(prepared, text.into());
            }
        }
    }

    fn order_settlement(
        &mut self,
        prepared: Stamp,
        (seen, logged): (Vector, Option<Logged<'_>>),
        asked: Vec<Asked>,
        work: &mut Work,
    ) {
        let waits = self.across.settling.remove(&prepared).map_or(Vec::new(), |settling| settling.asked);
        work.stats.settled += 1;
        self.across.consulting.settled(prepared);
        let stamp = self.order(&Entry::Settle(entry::Settle { prepared, seen, logged }), None, work);
        let hearing = self.across.hearing.remove(&prepared).unwrap_or_default();
        for asked in asked.into_iter().chain(waits).chain(hearing) {
            self.answer_settled(stamp, Some(asked), work);
        }
        self.release_held(work);
    }

    /// Answers once the settlement of this stamp is visible.
    fn answer_settled(&mut self, at: Stamp, asked: Option<Asked>, work: &mut Work) {
        let Some(asked) = asked else { return };
        match at <= work.pages.visible() {
            true => work.replies.push(Reply::Settled(asked)),
            false => {
                let i = self.across.settled.partition_point(|(other, _)| *other <= at);
                self.across.settled.insert(i, (at, asked));
            }
        }
    }

    /// Everything up to a stamp is visible.
    pub(super) fn settled_upto(&mut self, visible: Stamp, work: &mut Work) {
        while let Some((_, asked)) = self.across.settled.pop_front_if(|(at, _)| *at <= visible) {
            work.replies.push(Reply::Settled(asked));
        }
    }

    /// A page that a settlement waited for is here, or cannot be read.
    pub(crate) fn settle_read(&mut self, prepared: Stamp, failed: Option<&Unread>, work: &mut Work) {
        let Some(settling) = self.across.settling.get_mut(&prepared) else { return };
        settling.missing = settling.missing.saturating_sub(1);
        if let Some(why) = failed {
            for asked in std::mem::take(&mut settling.asked) {
                work.refuse(asked, why.refusal(), why.to_string());
            }
            return;
        }
        self.go_on_settling(prepared, work);
    }

    /// Pages that must be seen before the part can be placed.
    fn missing_of_part(&self, effects: &CommitEffects<'_>, work: &mut Work) -> Vec<PageId> {
        let (mut missing, mut needed) = (Vec::new(), Set::default());
        for w in &effects.writes {
            let page = w.oref.page();
            let is_fresh = work.replica.places.granted(page).is_some_and(|g| !g.is_made_in);
            match w.new {
                true if self.fills.contains_key(&page) || is_fresh || work.pages.is_here(page) => {}
                true => missing.push(page),
                false => missing.extend(missing_of(w.oref, work, &mut needed)),
            }
        }
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Finds the places of a part that is to be settled.
    fn place_part(&mut self, part: &Logged<'_>, work: &mut Work) -> Result<Head, Refusal> {
        let Logged { head, effects } = part;
        let (_, owned) = checked(effects, work)?;
        let mut placing = Placing::of_part(head.op.client, self.overflow, owned);
        self.expect_part(&effects.writes, &mut placing, work)?;
        if let Err(why) = self.place_some(&effects.writes, 0, &mut placing, work) {
            self.unplace(&mut placing);
            return Err(why);
        }
        self.overflow = placing.overflow();
        placing.drop_fills(|page| work.replica.places.granted(page).is_none());
        let filled = self.keep_fills(&mut placing, usize::MAX).unwrap_or_default();
        let mut births = placing.take_births();
        births.extend(&head.births);
        births.sort_unstable();
        births.dedup();
        Ok(Head {
            op: head.op,
            digest: head.digest,
            placements: placing.take_placements(),
            filled,
            left: placing.left,
            released: placing.released,
            births,
            ..Head::default()
        })
    }

    /// A participant asks about a transaction. If it is not decided, it never will be.
    pub(crate) fn inquire(&mut self, asked: Asked, of: OpId, work: &mut Work) {
        let (decision, seen) = self.decision(of, work);
        work.replies.push(Reply::Decided(asked, decision, seen));
    }

    fn decision(&mut self, of: OpId, work: &mut Work) -> (Decision, Vector) {
        if let Some((stamp, decided)) = work.replica.decisions.get(of) {
            return match stamp <= work.pages.visible() {
                true => (Decision::Committed, decided.seen_at(stamp, work.space)),
                false => (Decision::Pending, Vector::default()),
            };
        }
        // What was decided in such a view may be lost, or told to none that asks.
        let is_known = !work.replica.views.may_miss_of(of.view)
            && of.view.number >= work.config.view_first
            && !work.replica.decisions.may_be_dropped(of);
        let decision = match work.replica.answers.past(of) {
            _ if !is_known => Decision::Unknown,
            _ if self.waiting.ops().any(|op| op == of) => Decision::Pending,
            // All its parts were settled, or it was no transaction over several spaces.
            Past::Committed(_) => Decision::Unknown,
            Past::Superseded | Past::Unknown => Decision::Aborted,
            // One of an earlier view is never executed.
            Past::Never if of.view != self.view || dropped(Rule::AbortNotSpent) => Decision::Aborted,
            Past::Never if !self.is_present(of.client) => {
                self.rejected.spend_absent(of);
                Decision::Aborted
            }
            Past::Never => match self.rejected.spend(of, work.replica.answers.last_of(of)) {
                true => Decision::Aborted,
                false => Decision::Pending,
            },
        };
        (decision, Vector::default())
    }

    /// Goes on with what time decides.
    pub(super) fn go_on_across(&mut self, work: &mut Work) {
        self.end_held(work);
        self.go_on_settlements(work);
        self.consult(work);
    }

    /// There may be room for settlements that wait for it.
    pub(super) fn go_on_settlements(&mut self, work: &mut Work) {
        let settling: Vec<Stamp> = self.across.settling.keys().copied().collect();
        settling.into_iter().for_each(|prepared| self.go_on_settling(prepared, work));
    }
}

/// All that a part names: what it read and writes, and what that refers to. None of it is out of reach before
/// the part is settled.
pub(super) fn names(effects: &CommitEffects<'_>, catalogue: &Catalogue) -> Vec<Oref> {
    let mut names = effects.reads.clone();
    for w in &effects.writes {
        names.push(w.oref);
        let body = &w.object[HEADER_BYTES..];
        if let Some(layout) = catalogue.class(class_of(w.object)).filter(|layout| layout.check(body).is_ok())
        {
            layout.refs(body, |at| names.extend(Oref::from_raw(le32(body, at)).filter(|to| !to.is_null())));
        }
    }
    names
}
