//! Looking for members: joins until all that are heard agree on who is there, then a ring of a higher number
//! goes round twice.
//!
//! Sets of members that were heard of and that failed only grow while a member gathers, so that gathering
//! ends. A member believes the sets of failed members of its own ring alone. Members of another ring are
//! asked in over links that lead both ways; see `links`.

use tercel_machine::mutant::{Rule, dropped};
use tercel_machine::time::Now;

use super::members::{MEMBERS_MAX, Place, RingId, Set};
use super::packet::{Beacon, Commit, Entry, Join, Packet};
use super::recover::Next;
use super::visit::Tokens;
use super::{Epoch, NEVER, Output, Ring, State};

/// A member's view of those around it.
#[derive(Debug)]
pub(super) struct Gather {
    heard: Set,
    failed: Set,
    agreed: Set,
    pub(super) join_at: Now,
    pub(super) consensus_at: Now,
    /// Members that were left out as stuck: until when they do not come back, and how often that was.
    shunned: [(Now, u32); MEMBERS_MAX],
}

impl Default for Gather {
    fn default() -> Gather {
        let (heard, failed, agreed) = Default::default();
        let shunned = [(Now(0), 0); MEMBERS_MAX];
        Gather { heard, failed, agreed, join_at: NEVER, consensus_at: NEVER, shunned }
    }
}

/// Times that the pause of a stuck member doubles.
const SHUNS_MAX: u32 = 8;

impl Gather {
    fn members(&self) -> Set {
        self.heard.without(self.failed)
    }
}

impl Ring {
    /// Leaves the token and looks for members.
    pub(super) fn gather(&mut self, now: Now, heard: Set, failed: Set, out: &mut Vec<Output>) {
        let me = Set::one(self.config.me);
        // The others may go by a ring whose last word has come and is not answered yet.
        if let Some(Packet::Token(token)) = &self.tokens.arrived
            && token.complete == token.members
        {
            self.install(now, out);
        }
        self.shun(now, self.lagged(now));
        self.state = State::Gather;
        self.next = None;
        self.tokens = Tokens::new();
        self.gather.heard = heard.and(me);
        self.gather.failed = failed.without(me);
        // The others waited for this member's program long enough: it comes back when there is room.
        if self.full_since.is_some_and(|since| now.since_us(since) >= self.config.stuck_us) {
            (self.gather.join_at, self.gather.consensus_at) = (NEVER, NEVER);
            return;
        }
        self.gather_again(now, out);
    }

    /// Says whether this member waits for its program, outside of any ring.
    pub(super) fn rests(&self) -> bool {
        self.state == State::Gather && self.gather.join_at == NEVER
    }

    /// Says what this member now knows. All are to agree anew.
    fn gather_again(&mut self, now: Now, out: &mut Vec<Output>) {
        self.gather.agreed = Set::one(self.config.me);
        self.gather.consensus_at = now.plus_us(self.config.consensus_us);
        self.join(now, out);
    }

    fn join(&mut self, now: Now, out: &mut Vec<Output>) {
        self.gather.join_at = now.plus_us(self.config.join_us);
        let Gather { heard, failed, .. } = self.gather;
        let hears = self.links.heard(now);
        self.say(Join { heard, failed, hears, number: self.numbers.known }, out);
    }

    pub(super) fn say(&self, join: Join, out: &mut Vec<Output>) {
        let others = Set::first_of(self.config.members).without(Set::one(self.config.me));
        out.push(Output::Send(others, self.encode(&Packet::Join(join))));
    }

    /// A member of another ring says so. Both rings must want to come together.
    pub(super) fn take_beacon(
        &mut self,
        now: Now,
        from: Place,
        beacon: Beacon,
        is_new: bool,
        out: &mut Vec<Output>,
    ) {
        self.hears(now, from, beacon.hears, out);
        let is_open = beacon.open.has(self.config.me) || dropped(Rule::LetInOneWay);
        match self.state {
            // That ring may let this member in as soon as it knows that it is heard.
            State::Gather if is_new && !self.rests() => return self.join(now, out),
            State::Operational if !self.current.members.has(from) && !self.is_late => {}
            _ => return,
        }
        if self.lets_in(now, from) && is_open && self.know(beacon.ring.number) {
            self.gather(now, self.current.members.and(Set::one(from)), Set::default(), out);
        } else if is_new {
            self.beacon_to(now, Set::one(from), out);
        }
    }

    pub(super) fn is_shunned(&self, now: Now, place: Place) -> bool {
        now < self.gather.shunned[usize::from(place.0)].0
    }

    /// A member's process has ended. It is a hint: if it is wrong, the member comes back.
    pub(super) fn gone(&mut self, now: Now, place: Place, out: &mut Vec<Output>) {
        let ring = match (&self.next, self.state) {
            (_, State::Gather) => self.gather.members(),
            (Some(next), _) => next.epoch.members,
            _ => self.current.members,
        };
        if !ring.has(place) || place == self.config.me || self.rests() {
            return;
        }
        match self.state {
            State::Gather => {
                self.gather.failed = self.gather.failed.and(Set::one(place));
                self.gather_again(now, out);
                self.form_if_agreed(now, out);
            }
            _ => self.gather(now, ring, Set::one(place), out),
        }
    }

    /// A member looks for others.
    pub(super) fn take_join(&mut self, now: Now, from: Place, join: Join, out: &mut Vec<Output>) {
        if !self.know(join.number) || self.is_late || self.rests() {
            return;
        }
        self.hears(now, from, join.hears, out);
        let me = self.config.me;
        if join.failed.has(from) {
            // It leaves, unless this is late and of a process before.
            let is_late = self.current.members.has(from) && join.number < self.current.id.number;
            return if is_late { Default::default() } else { self.gone(now, from, out) };
        }
        match (&self.next, self.state) {
            (_, State::Gather) => {}
            (Some(next), state) => {
                // Others are asked in when this ring is there.
                if !next.epoch.members.has(from) {
                    return;
                }
                // It does not agree any longer: a ring of these does not come about.
                let Gather { heard, failed, .. } = self.gather;
                let is_news = !join.heard.is_in(heard) || !join.failed.is_in(failed);
                if state == State::Commit && is_news {
                    self.gather(now, heard, failed, out);
                } else if join.number >= next.epoch.id.number {
                    self.gather(now, next.epoch.members, Set::default(), out);
                } else {
                    return;
                }
            }
            (None, _) => {
                let is_mate = self.current.members.has(from);
                let is_stale = is_mate && join.number < self.current.id.number;
                if is_stale || join.failed.has(me) {
                    return;
                }
                if !is_mate && !self.lets_in(now, from) {
                    return self.beacon_to(now, Set::one(from), out);
                }
                self.gather(now, self.current.members.and(Set::one(from)), Set::default(), out);
            }
        }
        self.consider(now, from, join, out);
    }

    fn consider(&mut self, now: Now, from: Place, join: Join, out: &mut Vec<Output>) {
        let (me, before) = (self.config.me, (self.gather.heard, self.gather.failed));
        if self.gather.failed.has(from) {
            return;
        }
        let (heard, failed) = (&mut self.gather.heard, &mut self.gather.failed);
        *heard = heard.and(join.heard);
        if join.failed.has(me) {
            *failed = failed.and(Set::one(from));
        } else if self.current.members.has(from) {
            *failed = failed.and(join.failed);
        }
        let now_known = (*heard, *failed);
        if now_known != before {
            self.gather_again(now, out);
        }
        if now_known == (join.heard, join.failed) {
            self.gather.agreed = self.gather.agreed.and(Set::one(from));
            self.form_if_agreed(now, out);
        }
    }

    fn form_if_agreed(&mut self, now: Now, out: &mut Vec<Output>) {
        let members = self.gather.members();
        let is_alone = members == Set::one(self.config.me);
        // A member that has only begun to look may be alone for want of time.
        if members.is_in(self.gather.agreed) && (!is_alone || !self.gather.failed.is_empty()) {
            self.form(now, members, out);
        }
    }

    /// Begins a ring, if this member is the one to do so.
    fn form(&mut self, now: Now, members: Set, out: &mut Vec<Output>) {
        if members.first() != Some(self.config.me) {
            return;
        }
        let ring = RingId { number: self.numbers.known + 1, leader: self.config.me };
        self.form_further(now, Commit { ring, hop: 0, members, entries: Vec::new() }, out);
    }

    /// Times of a member that gathers.
    pub(super) fn time_in_gather(&mut self, now: Now, out: &mut Vec<Output>) {
        if now >= self.gather.consensus_at {
            let silent = self.gather.members().without(self.gather.agreed);
            if silent.is_empty() {
                let members = self.gather.members();
                return match members.count() {
                    1 => self.form(now, members, out),
                    // All agree, and the one to form a ring does not: from the beginning.
                    _ => self.gather(now, members, Set::default(), out),
                };
            }
            self.gather.failed = self.gather.failed.and(silent);
            self.gather_again(now, out);
            self.form_if_agreed(now, out);
        } else if now >= self.gather.join_at {
            self.join(now, out);
        }
    }

    fn shun(&mut self, now: Now, stuck: Set) {
        let longest_us = self.config.consensus_us << SHUNS_MAX;
        for place in stuck.iter() {
            let (until, times) = &mut self.gather.shunned[usize::from(place.0)];
            // It has kept up for long since.
            if now > until.plus_us(longest_us) {
                *times = 0;
            }
            *times = (*times + 1).min(SHUNS_MAX);
            *until = now.plus_us(self.config.consensus_us << *times);
        }
    }

    /// A ring that is being formed has come.
    pub(super) fn take_commit(&mut self, from: Place, commit: Commit) {
        let members = commit.members;
        let is_mine = members.has(self.config.me) && members.has(from) && self.is_turn(members, commit.hop);
        let is_next = match &self.next {
            // The first time: a number is agreed to once, over all processes of a member.
            None => {
                self.state == State::Gather
                    && !self.rests()
                    && commit.hop < members.count() as u64
                    && members == self.gather.members()
                    && commit.ring.number > self.numbers.taken
                    && self.know(commit.ring.number)
            }
            Some(next) => {
                (next.epoch.id, next.epoch.members) == (commit.ring, members) && commit.hop > self.tokens.hop
            }
        };
        if is_mine && is_next && self.state != State::Operational {
            self.tokens.arrived = Some(Packet::Commit(commit));
        }
    }

    /// A ring that is being formed goes on: the first rotation collects, the second tells.
    pub(super) fn form_further(&mut self, now: Now, mut commit: Commit, out: &mut Vec<Output>) {
        let count = commit.members.count() as u64;
        self.tokens.hop = commit.hop;
        if commit.hop == 2 * count {
            return self.begin_token(now, commit.ring, commit.members, commit.hop, out);
        }
        if commit.hop < count {
            self.take_number(commit.ring.number, out);
            self.state = State::Commit;
            self.next = Some(Next::new(Epoch::new(commit.ring, commit.members)));
            let Epoch { id: ring, store, safe, owed, .. } = &self.current;
            let (whole, highest) = (store.whole(), store.highest());
            // They are safe because this member has them, too.
            let safe = (*safe).min(whole);
            commit.entries.push(Entry { ring: *ring, whole, highest, safe, owed: *owed });
        } else {
            self.begin_recovery(&commit);
        }
        commit.hop += 1;
        self.pass(now, commit.members, Packet::Commit(commit), out);
    }
}
