//! A client as the home of its transactions.

use std::sync::Arc;

use tercel_heap::{Scope, TypeKey};
use tercel_wire::id::{ClassId, OpId, Oref, Stamp};
use tercel_wire::layout::Layout;
use tercel_wire::message::Outcome;
use tercel_wire::token::Token;
use tercel_wire::vector::Vector;

use super::Client;
use crate::error::Error;
use crate::time::Now;
use crate::txn::{
    Across, Begin, Begun, Caller, Hold, Home, LocalWrite, Located, Place, Search, StoredObject, Wanted,
    Watcher,
};

impl Home for Client {
    fn may_begin(&mut self, now: Now, begin: &mut Begin) -> Option<Result<Option<Now>, Error>> {
        self.may_begin(now, begin)
    }

    fn begin(&mut self, now: Now, begin: &mut Begin) -> Option<Result<Begun, Error>> {
        Client::begin(self, now, begin)
    }

    fn token(&mut self, stamp: Stamp) -> Token {
        Client::token(self, stamp)
    }

    fn class_for(&mut self, now: Now, key: TypeKey) -> Option<Result<(ClassId, Arc<Layout>), Error>> {
        Client::class_for(self, now, key)
    }

    fn locate(&mut self, now: Now, wanted: &Wanted<'_>, search: &mut Search) -> Located {
        Client::locate(self, now, wanted, search)
    }

    fn class_at(
        &mut self,
        now: Now,
        scope: &Scope,
        oref: Oref,
        stamp: Stamp,
        search: &mut Search,
    ) -> Option<Result<ClassId, Error>> {
        Client::class_at(self, now, scope, oref, stamp, search)
    }

    fn stored(
        &mut self,
        scope: &Scope,
        oref: Oref,
        search: &mut Search,
    ) -> Option<Result<Option<StoredObject>, Error>> {
        Client::stored(self, scope, oref, search)
    }

    fn allocate(&mut self, now: Now, scope: &Scope, bytes: usize) -> Option<Result<Place, Error>> {
        Client::allocate(self, now, scope, bytes)
    }

    fn hold(&self, place: Oref, stamp: Stamp) -> Option<Arc<Hold>> {
        self.leases.hold(place, stamp)
    }

    fn filled(&mut self, place: Oref) {
        self.leases.filled(place);
    }

    fn sessions_ended(&self) -> u64 {
        self.leases.sessions_ended()
    }

    fn recheck(&mut self, scope: &Scope) -> Result<(), Error> {
        Client::recheck(self, scope)
    }

    fn base(&self, scope: &Scope) -> Stamp {
        Client::base(self, scope)
    }

    fn is_newer(&self, than: Stamp) -> bool {
        self.reader.watermark() > than
    }

    fn dependencies(&self, at: Stamp) -> Option<Vector> {
        (self.reader.watermark() >= at).then(|| self.history.dependencies.clone())
    }

    fn depend(&mut self, on: &Vector) -> Option<Result<(), Error>> {
        Client::depend(self, on)
    }

    fn read_set(&mut self, scope: &Scope, out: &mut Vec<Oref>) {
        Client::read_set(self, scope, out);
    }

    fn submit(
        &mut self,
        now: Now,
        base: Stamp,
        local_writes: &mut Vec<LocalWrite>,
        effects: &[u8],
    ) -> Option<Result<OpId, Error>> {
        Client::submit(self, now, base, local_writes, effects)
    }

    fn why_denied(&mut self) -> String {
        std::mem::take(&mut self.ops.denied)
    }

    fn outcome(&mut self, op: OpId) -> Option<Outcome> {
        Client::outcome(self, op)
    }

    fn abandon(&mut self, op: OpId) {
        Client::abandon(self, op);
    }

    fn resolve(&mut self, now: Now, op: OpId) -> Option<Outcome> {
        Client::resolve(self, now, op)
    }

    fn caller(&mut self) -> Option<&mut dyn Caller> {
        Some(self)
    }

    fn across(&mut self) -> Option<&mut dyn Across> {
        Some(self)
    }

    fn watcher(&mut self) -> Option<&mut dyn Watcher> {
        Some(self)
    }
}
