//! One step of a transaction inside of a server: the calls of [`Home`].

use std::sync::Arc;

use tercel_heap::{Scope, TypeKey};
use tercel_wire::id::{ClassId, OpId, Oref, Stamp};
use tercel_wire::layout::Layout;
use tercel_wire::message::Outcome;
use tercel_wire::page::OBJECT_BYTES_MAX;
use tercel_wire::record::EncodeError;
use tercel_wire::token::Token;

use super::{Local, Source};
use crate::error::{Bound, Error};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::time::Now;
use crate::txn::{Allowed, Begin, Begun, Hold, Home, LocalWrite, Located, Place, Search, Ticket, Wanted};

/// A [`Local`] together with its server, as the [`Home`] of one step.
pub struct Inside<'a> {
    pub(super) local: &'a mut Local,
    pub(super) source: &'a mut dyn Source,
}

impl Inside<'_> {
    /// The moment before which everything acknowledged is visible here, if that is late enough for the transaction.
    fn as_of(&mut self, now: Now, begin: &mut Begin) -> Option<Now> {
        for asked in [false, true] {
            if let Some(number) = self.source.echoed() {
                // What was confirmed is visible.
                self.local.echoes.heard(number, Stamp::ZERO, Stamp::ZERO);
            }
            match self.local.echoes.allow(begin, now, RECENT_US) {
                Allowed::Yes { as_of, ask: false } => return Some(as_of),
                Allowed::Yes { as_of, ask: true } if asked => return Some(as_of),
                Allowed::NotYet if asked => return None,
                _ => {}
            }
            let is_asked = self.local.echoes.is_asked_for(begin, now, RECENT_US);
            if !is_asked && self.local.echoes.may_ask() {
                let number = self.source.ask();
                self.local.echoes.asked(number, now);
            }
        }
        None
    }
}

/// The age of a recent state: what clients are told by default.
const RECENT_US: u64 = 2 * limits::KEEPALIVE_MS as u64 * 1_000;

impl Home for Inside<'_> {
    fn begin(&mut self, now: Now, begin: &mut Begin) -> Option<Result<Begun, Error>> {
        let session = match self.local.meet(self.source) {
            Ok(session) => session,
            Err(e) => return Some(Err(e)),
        };
        if let Some(token) = begin.at_least() {
            match self.source.holds(token) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(e) => return Some(Err(e)),
            }
        }
        let as_of = self.as_of(now, begin)?;
        let full = || Error::Full(Bound::TransactionsInside { max: limits::LOCAL_TRANSACTIONS_MAX });
        let visible = self.source.visible();
        let scope = self.local.copier.scope(visible).ok_or_else(full);
        Some(scope.map(|scope| Begun {
            scope,
            bytes_max: self.local.config.write_bytes_max,
            as_of,
            token: Token { space: session.space, view: session.view, stamp: visible },
        }))
    }

    fn token(&mut self, stamp: Stamp) -> Token {
        // A snapshot may be of a later view than the session that the transaction began in.
        let session = self.source.session().ok().or(self.local.session);
        let (space, view) = session.map_or_else(Default::default, |s| (s.space, s.view));
        Token { space, view, stamp }
    }

    fn class_for(&mut self, _now: Now, key: TypeKey) -> Option<Result<(ClassId, Arc<Layout>), Error>> {
        self.local.classes.class_for(key, &mut self.local.copier, self.source)
    }

    fn locate(&mut self, _now: Now, wanted: &Wanted<'_>, _search: &mut Search) -> Located {
        self.copy(wanted)
    }

    fn class_at(
        &mut self,
        _now: Now,
        scope: &Scope,
        oref: Oref,
        stamp: Stamp,
        _search: &mut Search,
    ) -> Option<Result<ClassId, Error>> {
        self.class_here(scope, oref, stamp)
    }

    fn allocate(&mut self, _now: Now, scope: &Scope, bytes: usize) -> Option<Result<Place, Error>> {
        if bytes > OBJECT_BYTES_MAX {
            return Some(Err(EncodeError::TooLarge(bytes).into()));
        }
        if let Err(e) = self.local.meet(self.source) {
            return Some(Err(e));
        }
        if self.local.places.birth_next(bytes).is_none() {
            let done = self.local.places.give_back();
            match self.source.grant(self.local.ask, &done)? {
                Err(e) => return Some(Err(e)),
                Ok(leased) => self.local.places.grant(leased),
            }
            self.local.ask = (self.local.ask * 2).min(limits::LEASE_PAGES);
        }
        let birth = self.local.places.birth_next(bytes);
        // In an older state the page may have had other objects. The grant is visible: it was told of.
        if birth.is_some_and(|birth| scope.snapshot() < birth)
            && let Err(e) = self.recheck(scope)
        {
            return Some(Err(e));
        }
        let place = birth.and_then(|_| self.local.places.place(bytes));
        Some(place.ok_or(Error::Full(Bound::Pages)))
    }

    fn hold(&self, place: Oref, stamp: Stamp) -> Option<Arc<Hold>> {
        self.local.places.hold(place, stamp)
    }

    fn filled(&mut self, place: Oref) {
        self.local.places.filled(place);
    }

    /// The session of transactions inside of a server lasts as long as the server.
    fn sessions_ended(&self) -> u64 {
        0
    }

    fn recheck(&mut self, scope: &Scope) -> Result<(), Error> {
        Inside::recheck(self, scope)
    }

    fn base(&self, scope: &Scope) -> Stamp {
        if dropped(Rule::BaseIsWatermark) { self.source.visible() } else { scope.snapshot() }
    }

    fn read_set(&mut self, scope: &Scope, out: &mut Vec<Oref>) {
        self.local.copier.read_set(scope, out);
    }

    fn submit(
        &mut self,
        _now: Now,
        _base: Stamp,
        local_writes: &mut Vec<LocalWrite>,
        effects: &[u8],
    ) -> Option<Result<OpId, Error>> {
        let session = match self.local.meet(self.source) {
            Ok(session) => session,
            Err(e) => return Some(Err(e)),
        };
        if effects.len() > limits::TRANSACTION_BYTES_MAX {
            return Some(Err(Error::Full(Bound::Message)));
        }
        let holds = |o: &LocalWrite| self.local.places.holds(o.oref, o.placed);
        let mut lost = local_writes.iter().filter(|o| o.new && !holds(o)).peekable();
        if lost.peek().is_some() {
            // A transaction that runs again takes other places, but not for what it brought.
            let error = lost.find(|o| o.is_brought).map_or(Error::Conflict, |o| Error::PlaceLost(o.oref));
            return Some(Err(error));
        }
        if self.local.ops.hear_abandoned(self.source) {
            self.local.places.turn_page();
        }
        let makes = local_writes.iter().any(|o| o.new);
        let op = match self.local.ops.submit(session, makes, effects, self.source)? {
            Ok(op) => op,
            Err(e) => return Some(Err(e)),
        };
        for o in local_writes.drain(..).filter(|o| o.new) {
            self.local.places.made(o.oref, o.object.len());
        }
        Some(Ok(op))
    }

    fn submit_call(
        &mut self,
        ticket: Ticket,
        reply: &[u8],
        local_writes: &mut Vec<LocalWrite>,
        effects: &[u8],
        holds: &[Arc<Hold>],
    ) -> Option<Result<bool, Error>> {
        if let Err(e) = self.local.meet(self.source) {
            return Some(Err(e));
        }
        if effects.len() > limits::TRANSACTION_BYTES_MAX {
            return Some(Err(Error::Full(Bound::Message)));
        }
        let is_held = |o: &LocalWrite| self.local.places.holds(o.oref, o.placed);
        if local_writes.iter().any(|o| o.new && !is_held(o)) {
            return Some(Err(Error::Conflict));
        }
        let taken = self.source.submit_call(ticket, reply, effects, holds)?;
        if let Ok(true) = taken {
            for o in local_writes.drain(..).filter(|o| o.new) {
                self.local.places.made(o.oref, o.object.len());
            }
        }
        Some(taken)
    }

    fn outcome(&mut self, op: OpId) -> Option<Outcome> {
        self.hear(op);
        self.local.ops.outcome(op, self.source.visible())
    }

    fn abandon(&mut self, op: OpId) {
        self.local.ops.abandon(op);
    }

    fn resolve(&mut self, _now: Now, op: OpId) -> Option<Outcome> {
        self.hear(op);
        self.local.ops.resolve(op, self.source.visible())
    }
}

impl Inside<'_> {
    /// Takes the answer to an operation, if it has come.
    fn hear(&mut self, op: OpId) {
        // A server that serves no transactions now may still answer those that it took.
        let _ = self.local.meet(self.source);
        if self.local.ops.hear(op, self.source) {
            self.local.places.turn_page();
        }
    }
}
