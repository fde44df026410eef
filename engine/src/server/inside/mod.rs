//! The server as the home of transactions inside of it: methods, and programs beside their server.
//!
//! A transaction reads the server's own page images. There is no cache: each object that it reads is copied
//! into its scope ([`tercel_heap::Copier`]). It commits with the bytes that a remote client would send,
//! through a session of the server's own (`sessions/inside`), and is judged as any other.
//!
//! [`Local`] is what outlives a server: the scopes of open transactions, and the types bound to classes. With
//! a server it is a [`Home`] for one step: [`Server::inside`]. Nothing here waits: what is missing is asked
//! for, and the step is repeated after news. A dropped transaction leaves nothing but places, which are never
//! given out twice.
//!
//! The invariant: everything in a scope is of the state at its snapshot. A read looks at the visible state,
//! and only after nothing that the scope read before was found among the changes since its snapshot; that
//! state is then its snapshot. A transaction that is *ahead* reads what is ordered instead, in one go: it has
//! lost as soon as more is ordered. What it writes stands behind what it read in the same log, so both become
//! visible or neither; nothing else of it may leave the server.

mod classes;
mod read;

use std::sync::Arc;

use tercel_heap::{Copier, Scope, TypeKey};
use tercel_wire::id::{ClassId, OpId, Oref, Stamp};
use tercel_wire::layout::Layout;
use tercel_wire::message::Outcome;
use tercel_wire::page::OBJECT_BYTES_MAX;
use tercel_wire::record::EncodeError;
use tercel_wire::token::Token;
use tercel_wire::vector::Vector;

use super::Server;
use crate::effect::Effects;
use crate::error::{Bound, Error};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::sessions::health::End;
use crate::sessions::inside::Session;
use crate::time::Now;
use crate::txn::{Allowed, Begin, Begun, Hold, Home, LocalWrite, Located, Place, Search, Ticket, Wanted};
use classes::Classes;

/// Limits of the transactions inside of a server.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// Transactions open at once, up to [`tercel_heap::SCOPES_MAX`]. More wait for nothing: they receive
    /// `Full`.
    pub transactions_max: usize,
    /// Bytes that one transaction may copy of what it reads; 128 are counted for each object beside its own.
    /// All of them may be in use at once, times `transactions_max`.
    pub read_bytes_max: usize,
    /// Bytes of objects that one transaction may write.
    pub write_bytes_max: usize,
}

impl Default for LocalConfig {
    fn default() -> LocalConfig {
        LocalConfig {
            transactions_max: limits::LOCAL_TRANSACTIONS_MAX,
            read_bytes_max: limits::LOCAL_READ_BYTES_MAX,
            write_bytes_max: limits::TRANSACTION_BYTES_MAX,
        }
    }
}

/// The state that the transactions of one process share, whichever server they run in.
pub struct Local {
    config: LocalConfig,
    copier: Copier,
    classes: Classes,
}

impl Local {
    /// A local home with no transaction open.
    pub fn new(config: LocalConfig) -> Local {
        let mut copier = Copier::new(config.transactions_max, config.read_bytes_max);
        let classes = Classes::new(&mut copier);
        Local { config, copier, classes }
    }
}

impl Server {
    /// Runs one step of a transaction over the state as it is now. Appends effects to `out`, as
    /// [`Server::handle`] does.
    pub fn inside<R>(
        &mut self,
        now: Now,
        local: &mut Local,
        out: &mut Effects,
        step: impl FnOnce(&mut dyn Home) -> R,
    ) -> R {
        self.with_effects(out, |server| {
            server.cx.work.now = server.cx.work.now.max(now);
            let result = step(&mut Inside { server, local, is_ahead: false });
            server.go_on();
            result
        })
    }

    /// Rises whenever a step that had to wait may go on. Another server begins anew.
    pub fn inside_news(&self) -> u64 {
        self.sessions.inside.news()
    }
}

/// A server for the time of one step.
pub(super) struct Inside<'a> {
    pub server: &'a mut Server,
    pub local: &'a mut Local,
    /// Set for a transaction that reads what is ordered and not visible yet.
    pub is_ahead: bool,
}

impl Inside<'_> {
    /// The session that submits operations, begun if need be.
    fn session(&mut self) -> Result<Session, Error> {
        self.working()?;
        self.server.sessions(|s, cx| s.inside_session(cx))
    }

    /// Fails once the leader was deposed: commits of others are not known here any more.
    fn working(&self) -> Result<(), Error> {
        match self.server.cx.end {
            End::Working => Ok(()),
            _ => Err(Error::Unavailable("this server does not lead any more: try again".into())),
        }
    }

    /// The moment before which everything acknowledged is visible here, if that is late enough for the
    /// transaction.
    fn as_of(&mut self, now: Now, begin: &mut Begin) -> Option<Now> {
        let recent_us = self.recent_us();
        for asked in [false, true] {
            let echoes = &mut self.server.sessions.inside.echoes;
            match echoes.allow(begin, now, recent_us) {
                Allowed::Yes { as_of, ask: false } => return Some(as_of),
                Allowed::Yes { as_of, ask: true } if asked => return Some(as_of),
                Allowed::NotYet if asked => return None,
                _ => {}
            }
            if !echoes.is_asked_for(begin, now, recent_us) && echoes.may_ask() {
                self.server.sessions(|s, cx| s.inside_ask(now, cx));
            }
        }
        None
    }

    /// The age of a recent state, the default of clients: two keepalives, as this server's clients are told.
    fn recent_us(&self) -> u64 {
        2 * u64::from(self.server.cx.work.config.keepalive_ms) * 1_000
    }

    /// The state behind everything that is ordered, visible or not.
    fn ordered(&self) -> Stamp {
        self.server.cx.work.replica.stamp
    }

    /// Fails unless each new object has a place that this session may still fill.
    fn check_places(&self, local_writes: &[LocalWrite]) -> Result<(), Error> {
        let places = &self.server.sessions.inside.places;
        let mut lost = local_writes.iter().filter(|o| o.new && !places.holds(o.oref, o.placed)).peekable();
        if lost.peek().is_none() {
            return Ok(());
        }
        // A transaction that runs again takes other places, but not for an object that it brought.
        Err(lost.find(|o| o.is_brought).map_or(Error::Conflict(None), |o| Error::PlaceLost(o.oref)))
    }

    fn made(&mut self, local_writes: &mut Vec<LocalWrite>) {
        for o in local_writes.drain(..).filter(|o| o.new) {
            self.server.sessions.inside.places.made(o.oref, o.object.len());
        }
    }
}

impl Home for Inside<'_> {
    fn may_begin(&mut self, now: Now, begin: &mut Begin) -> Option<Result<Option<Now>, Error>> {
        if let Err(e) = self.session() {
            return Some(Err(e));
        }
        if let Some(token) = begin.at_least() {
            match self.server.sessions(|s, cx| s.holds(token, cx)) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(e) => return Some(Err(e)),
            }
        }
        self.as_of(now, begin).map(|as_of| Ok(Some(as_of)))
    }

    fn begin(&mut self, now: Now, begin: &mut Begin) -> Option<Result<Begun, Error>> {
        let as_of = match self.may_begin(now, begin)? {
            Ok(as_of) => as_of,
            Err(e) => return Some(Err(e)),
        };
        let full = || Error::Full(Bound::TransactionsInside { max: limits::LOCAL_TRANSACTIONS_MAX });
        let at = if self.is_ahead { self.ordered() } else { self.server.visible() };
        let scope = self.local.copier.scope(at).ok_or_else(full);
        Some(scope.map(|scope| Begun {
            scope,
            bytes_max: self.local.config.write_bytes_max,
            as_of,
            token: self.token(at),
            held: None,
        }))
    }

    fn token(&mut self, stamp: Stamp) -> Token {
        // A snapshot may be of a later view than the transaction began in, and of one that another member led.
        Token { space: self.server.cx.work.space, view: self.server.cx.work.replica.view(), stamp }
    }

    fn class_for(&mut self, _now: Now, key: TypeKey) -> Option<Result<(ClassId, Arc<Layout>), Error>> {
        self.class_of_type(key)
    }

    fn dependencies(&self, at: Stamp) -> Option<Vector> {
        (self.server.visible() >= at).then(|| self.server.cx.work.replica.dependencies.all().clone())
    }

    fn depend(&mut self, on: &Vector) -> Option<Result<(), Error>> {
        if let Err(e) = self.session() {
            return Some(Err(e));
        }
        let ordered = self.server.sessions(|s, cx| s.inside_depend(on, cx));
        match ordered {
            Ok(stamp) => (stamp <= self.server.visible()).then_some(Ok(())),
            Err(e) => Some(Err(e)),
        }
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
        if let Err(e) = self.session() {
            return Some(Err(e));
        }
        if self.server.sessions.inside.places.birth_next(bytes).is_none()
            && let Err(e) = self.server.sessions(|s, cx| s.inside_grant(cx))?
        {
            return Some(Err(e));
        }
        let birth = self.server.sessions.inside.places.birth_next(bytes);
        // In an older state the page may have had other objects. The grant is visible: its notice has
        // arrived.
        if birth.is_some_and(|birth| scope.snapshot() < birth)
            && let Err(e) = self.recheck(scope)
        {
            return Some(Err(e));
        }
        let place = birth.and_then(|_| self.server.sessions.inside.places.place(bytes));
        Some(place.ok_or(Error::Full(Bound::Pages)))
    }

    fn hold(&self, place: Oref, stamp: Stamp) -> Option<Arc<Hold>> {
        self.server.sessions.inside.places.hold(place, stamp)
    }

    fn filled(&mut self, place: Oref) {
        self.server.sessions.inside.places.filled(place);
    }

    /// The session of transactions inside of a server lasts as long as the server.
    fn sessions_ended(&self) -> u64 {
        0
    }

    fn recheck(&mut self, scope: &Scope) -> Result<(), Error> {
        Inside::recheck(self, scope)
    }

    fn base(&self, scope: &Scope) -> Stamp {
        if dropped(Rule::BaseIsWatermark) { self.server.visible() } else { scope.snapshot() }
    }

    fn is_newer(&self, than: Stamp) -> bool {
        self.server.visible() > than
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
        let session = match self.session() {
            Ok(session) => session,
            Err(e) => return Some(Err(e)),
        };
        if effects.len() > limits::TRANSACTION_BYTES_MAX {
            return Some(Err(Error::Full(Bound::Message)));
        }
        if let Err(e) = self.check_places(local_writes) {
            return Some(Err(e));
        }
        let makes = local_writes.iter().any(|o| o.new);
        let op = self.server.sessions(|s, cx| s.inside_submit(session, makes, effects, cx))?;
        self.made(local_writes);
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
        if let Err(e) = self.session() {
            return Some(Err(e));
        }
        if effects.len() > limits::TRANSACTION_BYTES_MAX {
            return Some(Err(Error::Full(Bound::Message)));
        }
        if self.check_places(local_writes).is_err() {
            return Some(Err(Error::Conflict(None)));
        }
        let (reply, holds) = (reply.to_vec(), holds.to_vec());
        let wrote = (effects, holds, self.is_ahead);
        let taken = self.server.sessions(|s, cx| s.call_wrote(ticket, reply, wrote, cx));
        if taken {
            self.made(local_writes);
        }
        Some(Ok(taken))
    }

    fn outcome(&mut self, op: OpId) -> Option<Outcome> {
        self.server.sessions.inside.ops.outcome(op)
    }

    fn abandon(&mut self, op: OpId) {
        self.server.sessions.inside.ops.abandon(op);
    }

    fn resolve(&mut self, _now: Now, op: OpId) -> Option<Outcome> {
        self.server.sessions.inside.ops.resolve(op)
    }
}
