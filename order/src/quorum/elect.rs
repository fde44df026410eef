//! Who may lead: a member that suspects the leader asks whether others do, then for their votes.

use std::collections::{BTreeMap, BTreeSet};

use tercel_machine::mutant::{Rule, dropped};
use tercel_machine::time::Now;
use tercel_wire::id::{EntryId, MemberId, ViewId};

use super::follow::Followed;
use super::members::Electorate;
use super::packet::{Contents, Packet, Vote};
use super::{Quorum, Role, Why};
use crate::Output;

/// A member that asks whether it may ask for votes.
#[derive(Debug)]
pub(super) struct Asking {
    number: u32,
    granted: BTreeSet<MemberId>,
    pub(super) until: Now,
}

/// A member that asks for votes.
#[derive(Debug)]
pub(super) struct Candidate {
    view: ViewId,
    /// The number under which its own promise is saved; none once that is durable.
    saving: Option<u64>,
    votes: BTreeMap<MemberId, Vote>,
    /// The electorates of members with longer logs, in which they themselves do not vote.
    learn: BTreeMap<MemberId, Electorate>,
    begun: Now,
    /// When it asks again, or gives up; none while its own promise is being saved: a disk that takes its time
    /// costs no number.
    pub(super) until: Option<Now>,
    /// The time in which votes are to come.
    wait_us: u64,
    /// Times that it asked for votes.
    asked: u32,
    /// A member has promised another view of this number.
    is_refused: bool,
}

/// The candidate whose view this member has promised: it has time to lead.
#[derive(Debug)]
pub(super) struct Backed {
    by: MemberId,
    /// The end of the candidacy; none while the promise is being saved.
    until: Option<Now>,
}

impl Backed {
    fn is_over(&self, now: Now) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

impl Quorum {
    /// When it asks, if nothing changes.
    pub(super) fn ask_at(&self) -> Option<Now> {
        // One that is removed may still be needed until the list that removes it is stable (thesis, 4.2.2).
        // The lists between may have become stable, too.
        let votes = match dropped(Rule::AsksByTwoLists) {
            true => self.lists.newest().votes(self.me) || self.lists.at(self.stable).votes(self.me),
            false => self.lists.any_votes(self.me),
        };
        let backs_until = match &self.promise.backed {
            Some(backed) => backed.until?,
            None => Now(0),
        };
        let may = self.is_ready && votes;
        let followed = &self.followed;
        let suspected = match followed.gone {
            Some(gone) => gone,
            // There is nobody to hear.
            None if followed.leader.is_none() && self.is_alone() => followed.ask_after,
            None => followed.heard.plus_us(self.silence_us()),
        };
        let in_turn = suspected.plus_us(u64::from(followed.rank) * self.config.stagger_us);
        may.then(|| in_turn.max(followed.ask_after).max(backs_until))
    }

    /// Says whether it makes a quorum by itself.
    pub(super) fn is_alone(&self) -> bool {
        let members = self.lists.newest();
        members.quorum() == 1 && members.votes(self.me)
    }

    /// Puts off the next attempt, each time longer and by chance, so that two members do not go on asking at
    /// the same time.
    pub(super) fn wait_before_asking(&mut self, now: Now) {
        let followed = &mut self.followed;
        let most = self.config.stagger_us << followed.attempts.min(ATTEMPTS_DOUBLING);
        followed.attempts += 1;
        followed.ask_after = now.plus_us(self.random.below(most.min(self.config.deadline_us) + 1));
    }

    /// Asks whether it may ask for votes, without a promise (thesis, 9.6).
    pub(super) fn ask(&mut self, now: Now, is_handed: bool, out: &mut Vec<Output>) {
        self.counts.asked += 1;
        self.promise.why = match &self.followed {
            _ if is_handed => Why::Handed,
            Followed { leader: None, .. } => Why::NoLeader,
            Followed { gone: Some(_), .. } => Why::Ended,
            _ => Why::Silent,
        };
        let number = self.next_number(1);
        let until = now.plus_us(4 * self.config.stagger_us);
        self.role = Role::Asking(Asking { number, granted: BTreeSet::new(), until });
        let ask = Packet::Ask { number, end: self.tail.end(), is_handed };
        self.send_to_all(&ask, self.lists.newest().voters(), out);
        self.may(now, self.me, number, out);
    }

    /// Another member asks. It is told yes if this one would vote, hears no leader either, and knows of no
    /// candidate that may become one.
    pub(super) fn asked(
        &mut self,
        now: Now,
        from: MemberId,
        (number, end, is_handed): (u32, EntryId, bool),
        out: &mut Vec<Output>,
    ) {
        let promised = self.promise.view.number;
        let backs_another = |backed: &Backed| backed.by != from && !backed.is_over(now);
        let hears_leader = match &self.role {
            Role::Leading(_) => true,
            Role::Candidate(candidate) if candidate.may_lead(now) => true,
            _ if self.promise.backed.as_ref().is_some_and(backs_another) => true,
            // Its own view of that: it may have been late itself, and packets wait.
            _ => self.followed.leader.is_some() && self.followed.gone.is_none() && !self.followed.is_silent,
        };
        let is_granted = number > promised && self.is_behind(from, end) && (!hears_leader || is_handed);
        Quorum::send(from, &Packet::May { number, is_granted, promised }, out);
    }

    /// A member would vote.
    pub(super) fn may(&mut self, now: Now, from: MemberId, number: u32, out: &mut Vec<Output>) {
        let members = self.lists.newest();
        let Role::Asking(asking) = &mut self.role else { return };
        if asking.number != number || !members.votes(from) {
            return;
        }
        asking.granted.insert(from);
        if asking.granted.len() >= members.quorum() {
            self.stand(now, out);
        }
    }

    /// A member would not vote: mostly it has not noticed the end of the leader yet, and will in a moment.
    pub(super) fn may_not(&mut self, now: Now, number: u32) {
        let soon = now.plus_us(self.config.stagger_us);
        if let Role::Asking(asking) = &mut self.role
            && asking.number == number
        {
            asking.until = asking.until.min(soon);
        }
    }

    /// Stands for a view of its own: a quorum would vote.
    fn stand(&mut self, now: Now, out: &mut Vec<Output>) {
        self.counts.candidacies += 1;
        let number = self.next_number(1);
        let incarnation = 1 + self.random.below(u64::from(u32::MAX)) as u32;
        let view = ViewId::new(number, incarnation);
        let wait_us = self.config.deadline_us + self.random.below(self.config.deadline_us);
        let saving = self.promise(view, out);
        let candidate = Candidate {
            view,
            saving: Some(saving),
            votes: BTreeMap::new(),
            learn: BTreeMap::new(),
            begun: now,
            until: dropped(Rule::CandidacyEndsWhileSaving).then(|| now.plus_us(wait_us)),
            wait_us,
            asked: 0,
            is_refused: false,
        };
        self.role = Role::Candidate(candidate);
        if dropped(Rule::VoteBeforeDurable) {
            self.saved(now, saving, out);
        }
    }

    /// Promises and electorates up to a number are durable, and can be told.
    pub(super) fn saved(&mut self, now: Now, number: u64, out: &mut Vec<Output>) {
        self.promise.saved = self.promise.saved.max(number);
        if let Some((_, to)) = self.promise.owed.take_if(|(owed, _)| *owed <= number) {
            if let Some(backed) = &mut self.promise.backed {
                backed.until = Some(now.plus_us(self.config.deadline_us));
            }
            self.tell_promise(to, out);
        }
        if self.lists.saving.is_some_and(|saving| saving <= number) {
            self.lists.cover();
            self.report_disk(now, out);
        }
        let vote = self.own_vote(Contents::default());
        let Role::Candidate(candidate) = &mut self.role else { return };
        if candidate.saving.take_if(|saving| *saving <= number).is_some() {
            candidate.votes.insert(self.me, vote);
            // Other disks are mostly as fast as the own one.
            candidate.wait_us += 2 * now.since_us(candidate.begun).min(SAVE_US_MAX);
            self.ask_for_votes(now, out);
            self.count_votes(now, out);
        }
    }

    fn ask_for_votes(&mut self, now: Now, out: &mut Vec<Output>) {
        let Role::Candidate(candidate) = &mut self.role else { return };
        candidate.asked += 1;
        if !dropped(Rule::CandidacyEndsWhileSaving) {
            candidate.until = Some(now.plus_us(candidate.wait_us));
        }
        let packet = Packet::Vote { view: candidate.view, end: self.tail.end() };
        self.send_to_all(&packet, self.connected().iter().map(|member| member.id), out);
    }

    /// The time for votes is over. It asks again under the same number, for promises may still be on their
    /// way to the disks, unless another candidate has some of them.
    pub(super) fn wait_is_over(&mut self, now: Now, out: &mut Vec<Output>) {
        let Role::Candidate(candidate) = &self.role else { return };
        let is_outdone = candidate.is_refused || self.heard.number > candidate.view.number;
        if is_outdone || candidate.asked >= ASKED_MAX || dropped(Rule::CandidacyEndsWhileSaving) {
            return self.stand_down(now, out);
        }
        self.ask_for_votes(now, out);
    }

    /// A member has promised another view.
    pub(super) fn refused(&mut self, now: Now, by: ViewId, out: &mut Vec<Output>) {
        self.hear(by.number);
        if by.number > self.promise.view.number {
            return self.stand_down(now, out);
        }
        if let Role::Candidate(candidate) = &mut self.role {
            candidate.is_refused |= by.number == candidate.view.number && by != candidate.view;
        }
    }

    fn own_vote(&self, log: Contents) -> Vote {
        Vote { is_sure: self.unsure.is_none(), log, electorate: self.lists.kept.clone() }
    }

    /// Another member asks for a vote.
    pub(super) fn vote(
        &mut self,
        now: Now,
        from: MemberId,
        view: ViewId,
        end: EntryId,
        out: &mut Vec<Output>,
    ) {
        self.hear(view.number);
        let promised = self.promise.view;
        if view == promised {
            // The candidate has not heard of it.
            if self.promise.saved == self.promise.number {
                self.tell_promise(from, out);
            }
            return;
        }
        let is_taken = view.number < promised.number
            || view.number == promised.number && !dropped(Rule::TwoVotesANumber);
        if is_taken {
            return Quorum::send(from, &Packet::Higher { view: promised }, out);
        }
        if !self.is_behind(from, end) {
            if let Some(electorate) = self.lists.kept.clone().filter(|kept| !kept.votes(self.me)) {
                Quorum::send(from, &Packet::Learns { view, electorate }, out);
            }
            return;
        }
        self.stand_down(now, out);
        // The candidate has time to become the leader.
        self.followed.leave_for(now);
        let number = self.promise(view, out);
        self.promise.owed = Some((number, from));
        self.promise.backed =
            (!dropped(Rule::CandidacyEndsWhileSaving)).then_some(Backed { by: from, until: None });
        if dropped(Rule::VoteBeforeDurable) {
            self.saved(now, number, out);
        }
    }

    fn tell_promise(&self, to: MemberId, out: &mut Vec<Output>) {
        let vote = self.own_vote(self.tail.contents(self.stable));
        Quorum::send(to, &Packet::Voted { view: self.promise.view, vote }, out);
    }

    /// A member has promised the view.
    pub(super) fn voted(
        &mut self,
        now: Now,
        from: MemberId,
        view: ViewId,
        vote: Vote,
        out: &mut Vec<Output>,
    ) {
        self.lists.hear(vote.electorate.as_ref());
        if let Role::Candidate(candidate) = &mut self.role
            && candidate.view == view
            && candidate.saving.is_none()
        {
            candidate.votes.insert(from, vote);
            self.count_votes(now, out);
        }
    }

    /// A member has a longer log, and votes by no list that it has acknowledged.
    pub(super) fn learns(
        &mut self,
        now: Now,
        from: MemberId,
        view: ViewId,
        electorate: Electorate,
        out: &mut Vec<Output>,
    ) {
        self.lists.hear(Some(&electorate));
        if let Role::Candidate(candidate) = &mut self.role
            && candidate.view == view
        {
            candidate.learn.insert(from, electorate);
            self.count_votes(now, out);
        }
    }

    /// Leads, if a quorum of members that are sure of their logs has promised. A member that is not sure may
    /// have acknowledged more than it still has: it counts only when every voter has answered, and then
    /// entries may be lost.
    ///
    /// Voters are those of all lists that may count: the newest of the own log, and those of the electorates
    /// that the voters remember, this one included. No stable list is missed. A quorum of its voters has
    /// remembered it before they acknowledged it. That quorum meets every quorum of the list before, so among
    /// the voters of that one somebody tells it, or an electorate of a younger one. A younger list was
    /// ordered when the one before was stable, and an electorate has the voters of both; so the voters of a
    /// list before count by the youngest electorate alone. A voter that has acknowledged no list by which it
    /// votes made nothing stable, so its log may be longer than this one.
    ///
    /// A voter that remembers none may vote by any list. One that acknowledged entries with a log that may
    /// lack lists may have overwritten one. Then all members have to answer.
    fn count_votes(&mut self, now: Now, out: &mut Vec<Output>) {
        let members = self.lists.newest();
        let Role::Candidate(candidate) = &self.role else { return };
        let votes = &candidate.votes;
        let of_voters = || votes.iter().filter(|(id, _)| members.votes(**id));
        let sure = of_voters().filter(|(_, vote)| vote.is_sure).count();
        let is_sure = self.unsure.is_none() && sure >= members.quorum();
        let has = |id: MemberId| votes.contains_key(&id) || candidate.learn.contains_key(&id);
        let of_votes = || votes.values().map(|vote| vote.electorate.as_ref());
        let told = || of_votes().flatten().chain(candidate.learn.values());
        let is_settled = |it: Option<&Electorate>| it.is_some_and(|it| it.is_settled);
        let is_known = of_votes().all(is_settled) || members.iter().all(|member| has(member.id));
        let youngest = told().max_by_key(|told| (told.at.view.number, told.at.position));
        let is_youngest = |it: &&Electorate| youngest.is_some_and(|youngest| youngest.at == it.at);
        let before = self.younger(told().filter(is_youngest)).flat_map(Electorate::voters_before);
        let younger = self.younger(told()).flat_map(Electorate::newest_voters).chain(before);
        let have_voted = members.voters().chain(younger).all(has)
            || youngest
                .is_some_and(|list| self.is_acknowledged(list, votes) && list.newest_voters().all(has));
        let has_all = candidate.saving.is_none() && is_known && have_voted;
        if is_sure || has_all || dropped(Rule::UnsureCounts) && of_voters().count() >= members.quorum() {
            let (view, votes) = (candidate.view, candidate.votes.clone());
            self.lead(now, view, !is_sure, votes, out);
        }
    }

    /// Says whether a quorum of a list has acknowledged the list and votes here. Then members of the list
    /// before have made nothing stable without these since: they needed one of them, whose log would have
    /// lost the list by that.
    fn is_acknowledged(&self, list: &Electorate, votes: &BTreeMap<MemberId, Vote>) -> bool {
        let has_it = |id: &MemberId| {
            let of_list = |vote: &Vote| {
                let own = vote.electorate.as_ref().filter(|own| own.at == list.at);
                let is_in_log = vote.log.has(list.at) || *id == self.me && self.tail.has(list.at);
                own.is_some_and(|own| own.is_settled || is_in_log)
            };
            votes.get(id).is_some_and(of_list)
        };
        let voters = list.newest_voters().count();
        list.newest_voters().filter(has_it).count() > voters / 2
    }

    /// The leader hands the lead over: everything that it has is here.
    pub(super) fn take_over(&mut self, now: Now, from: MemberId, view: ViewId, out: &mut Vec<Output>) {
        let is_leader = self.followed.leader == Some(from) && view == self.promise.view;
        if is_leader && matches!(self.role, Role::Following) && self.is_ready {
            self.ask(now, true, out);
        }
    }

    /// Says whether a log that ends there has everything that this member may have acknowledged. What is
    /// queued for its disk counts too: it is not needed, for an acknowledgement names the view that is
    /// promised, and the leader of a lower one believes it no longer; but it is more likely to be kept.
    ///
    /// The member to which this one hands the lead over needs only what is stable: entries go on coming
    /// while it asks, and the view's own leader knows that nobody was told that they are there.
    fn is_behind(&self, from: MemberId, end: EntryId) -> bool {
        let ours = self.tail.end();
        let is_handed = self.promise.handed == Some((from, ours.view)) && end.view == ours.view;
        let is_enough = end.position >= self.stable || dropped(Rule::HandedBelowStable);
        (end.view.number, end.position) >= (ours.view.number, ours.position) || is_handed && is_enough
    }
}

impl Candidate {
    /// Says whether others should wait for its view: nobody has refused, and the votes are not overdue.
    fn may_lead(&self, now: Now) -> bool {
        let is_due = self.until.is_some_and(|until| until <= now) || self.asked > 1;
        !self.is_refused && !is_due && !dropped(Rule::CandidacyEndsWhileSaving)
    }
}

impl Quorum {
    /// The process of a candidate has ended.
    pub(super) fn candidate_gone(&mut self, member: MemberId) {
        self.promise.backed.take_if(|backed| backed.by == member);
    }
}

/// Times that a candidate asks for votes under one number.
const ASKED_MAX: u32 = 3;

/// The longest save of a promise that a candidate expects others to take, in microseconds.
const SAVE_US_MAX: u64 = 2_000_000;

/// The number of times that the wait before the next attempt is doubled.
const ATTEMPTS_DOUBLING: u32 = 6;
