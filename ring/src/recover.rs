//! The change of rings: members give each other what they lack of the ring before, wrapped in packets of the
//! new one, and deliver it around the transitional configuration.
//!
//! A member that says to have everything may be the last that the others waited for: they may deliver. From
//! then on it owes them the same deliveries, though the new ring comes to nothing for itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use tercel_machine::mutant::{Rule, dropped};
use tercel_machine::time::Now;

use super::members::{RingId, Set};
use super::pack::Pieces;
use super::packet::{self, Commit, Data, Holds, Packet, Token};
use super::{Configuration, Epoch, Output, Ring, State};

/// The ring that is being formed.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) epoch: Epoch,
    /// Members that come along from the same ring.
    together: Set,
    /// The members whose messages are delivered beyond a gap.
    owed: Set,
    /// Numbers of the ring before that this member has and some other may lack.
    pub(super) unsent: BTreeSet<u64>,
}

impl Next {
    pub(super) fn new(epoch: Epoch) -> Next {
        Next { epoch, together: Set::default(), owed: Set::default(), unsent: BTreeSet::new() }
    }
}

impl Ring {
    /// All members' states are known.
    pub(super) fn begin_recovery(&mut self, commit: &Commit) {
        let (me, old) = (self.config.me, self.current.id);
        let Some(next) = &mut self.next else { return };
        self.state = State::Recovery;
        let entries = || {
            let all = commit.members.iter().zip(&commit.entries);
            all.filter(move |(place, entry)| *place == me || entry.ring == old && old != RingId::NONE)
        };
        next.together = entries().map(|(place, _)| place).collect();
        next.owed = entries().fold(next.together, |owed, (_, entry)| owed.and(entry.owed));
        let least = entries().map(|(_, entry)| entry.whole).min().unwrap_or(0);
        let most = entries().map(|(_, entry)| entry.whole).max().unwrap_or(0);
        // All end the configuration at the same message.
        let safe = entries().map(|(_, entry)| entry.safe).max().unwrap_or(0);
        self.current.safe = self.current.safe.max(safe);
        let has_most = entries().find(|(_, entry)| entry.whole == most).map(|(place, _)| place);
        let store = &self.current.store;
        // A member alone sends what all have that it has; the rest, whoever has it.
        let from = if has_most == Some(me) { least } else { most };
        let mine = from + 1..=store.highest();
        next.unsent = match next.together.count() {
            1 => BTreeSet::new(),
            _ => mine.filter(|number| store.get(*number).is_some()).collect(),
        };
    }

    /// The first token of a ring.
    pub(super) fn begin_token(
        &mut self,
        now: Now,
        ring: RingId,
        members: Set,
        hop: u64,
        out: &mut Vec<Output>,
    ) {
        let token = Token {
            ring,
            hop,
            members,
            number: 0,
            rows: vec![0; members.count()],
            links: vec![Set::default(); members.count()],
            wanted: Vec::new(),
            sent_bytes: 0,
            backlog_bytes: 0,
            idle: 0,
            recovered: 0,
            done: Set::default(),
            complete: Set::default(),
        };
        self.visit(now, token, out);
    }

    /// The next packet of the ring before to be sent.
    pub(super) fn next_unsent(&mut self) -> Option<Arc<Vec<u8>>> {
        let number = self.next.as_mut()?.unsent.pop_first()?;
        self.current.store.get(number).cloned()
    }

    /// A packet of the new ring has come: what it wraps is of the old one.
    pub(super) fn recovered(&mut self, data: &Data<'_>) {
        let Some(next) = &mut self.next else { return };
        let config = &self.config;
        if data.holds == Holds::Recovered
            && let Ok((_, Packet::Data(inner))) = packet::decode(data.body, config.group, config.members)
            && inner.ring == self.current.id
        {
            next.unsent.remove(&inner.number);
            self.current.store.insert(inner.number, Arc::new(data.body.to_vec()));
        }
    }

    /// Counts packets that wrap others as delivered: they are taken in as they come.
    pub(super) fn pass_over_recovered(&mut self) {
        let Some(Next { epoch, .. }) = &mut self.next else { return };
        while let Some(bytes) = epoch.store.get(epoch.delivered + 1) {
            let read = packet::decode(bytes, self.config.group, self.config.members);
            if !matches!(read, Ok((_, Packet::Data(Data { holds: Holds::Recovered, .. })))) {
                break;
            }
            epoch.delivered += 1;
        }
    }

    /// Says whether this member has sent, and has, everything that is recovered.
    pub(super) fn say_recovered(&mut self, token: &mut Token) {
        let Some(next) = &self.next else { return };
        let me = Set::one(self.config.me);
        if next.unsent.is_empty() {
            token.done = token.done.and(me);
        }
        if token.done == token.members && next.epoch.store.whole() >= token.recovered {
            token.complete = token.complete.and(me);
            if !dropped(Rule::ObligationsDropped) {
                self.current.owed = self.current.owed.and(next.owed);
            }
        }
    }

    /// Every member has everything: the new ring is there.
    pub(super) fn install(&mut self, now: Now, out: &mut Vec<Output>) {
        let Some(next) = self.next.take() else { return };
        self.state = State::Operational;
        // All that is left was delivered without room: once is enough.
        self.full_since = self.full_since.map(|_| Now(0));
        if self.current.id != RingId::NONE {
            self.end_current(&next, out);
        }
        self.current = next.epoch;
        self.pieces = Pieces::default();
        self.outbox.begin_anew();
        let Epoch { id: ring, members, .. } = self.current;
        let is_primary = 2 * members.count() > self.config.members;
        let is_transitional = false;
        out.push(Output::Configuration(Configuration { ring, members, is_primary, is_transitional }));
        self.beacon(now, out);
        self.deliver(out);
    }

    /// Delivers the rest of the current ring: in its own configuration what may be, and behind the
    /// transitional one what the members that come along have.
    fn end_current(&mut self, next: &Next, out: &mut Vec<Output>) {
        while self.deliver_next(out) {}
        let (ring, members) = (self.current.id, next.together);
        let (is_primary, is_transitional) = (false, true);
        let transitional = Configuration { ring, members, is_primary, is_transitional };
        if dropped(Rule::TransitionalAsSafe) {
            self.deliver_rest(next.owed, out);
        }
        out.push(Output::Configuration(transitional));
        self.deliver_rest(next.owed, out);
    }

    /// Delivers the rest of the current ring; beyond a gap only messages of these members, of which all is
    /// there.
    fn deliver_rest(&mut self, of: Set, out: &mut Vec<Output>) {
        for number in self.current.delivered + 1..=self.current.store.highest() {
            let Some(bytes) = self.current.store.get(number).cloned() else { continue };
            let (head, data) = self.stored(&bytes);
            if number <= self.current.store.whole() || of.has(head.from) {
                self.emit(head.from, &data, out);
            }
        }
        self.current.delivered = self.current.store.highest();
    }
}
