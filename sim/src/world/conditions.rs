//! Conditions that must hold at the moment of an action of the server, checked with the state of the whole
//! world.
//!
//! A history shows the view of the clients. Clients would see these mistakes only later, or only after
//! another fault. Each check looks at an action of the server from outside, and blames a mistake that nothing
//! excuses.

use tercel_engine::order::Sealed;
use tercel_engine::replica::entry::{Entry, Grant};
use tercel_engine::server::{Checkpoint, PageUpdate};
use tercel_wire::id::{ClientId, LogPosition, PageId, Stamp, ViewId};
use tercel_wire::page::Page;

use super::World;
use super::client::ClientProcess;
use super::group::letter;
use crate::rule::Rule;

impl World {
    /// A server alone promises the entries on its disk, and a group those that a node says are stable.
    /// Nothing else is visible. Each number of a view has one leader.
    pub(super) fn note_promises(&mut self, n: usize) {
        let Some(machine) = self.nodes[n].machine() else { return };
        let (stable, visible) = (machine.stable_upto(), machine.visible());
        let leads = machine.is_leading().then(|| machine.view().number);
        if self.plan.group.is_some() {
            self.promise(n, stable);
        }
        let promised = self.oracle.promised;
        if visible > promised && !self.is_over() {
            self.blame(format!("{} shows {visible}, and only {promised} is promised", letter(n)));
        }
        let Some(number) = leads else { return };
        let other = *self.oracle.leaders.entry(number).or_insert_with(|| {
            self.record.counts.group.views += u64::from(self.plan.group.is_some());
            n
        });
        if other != n && self.plan.group.is_some() {
            self.blame(format!("{} and {} lead in view {number}", letter(other), letter(n)));
        }
    }

    /// Everything in the log of a node up to a position is promised: a quorum of disks has it.
    pub(super) fn promise(&mut self, n: usize, upto: LogPosition) {
        match self.oracle.promise(&mut self.nodes[n].ledger, upto) {
            Ok(false) => {}
            Ok(true) => {
                let upto = upto.min(self.nodes[n].ledger.end());
                let (disks, quorum) = self.disks_with(n, upto);
                // A runner that does not wait for its disk is found by what is lost.
                if disks < quorum && !matches!(self.plan.rule, Some(Rule::Runner(_))) {
                    self.blame(format!("entry {upto} is promised, and {disks} disks have it"));
                }
            }
            Err(why) => self.blame(format!("the order of {}: {why}", letter(n))),
        }
    }

    /// Checks that entries stored in pages are on this node's disk, because the log loses them with a
    /// checkpoint.
    pub(super) fn may_be_stored(&mut self, n: usize, pages: &[PageUpdate], checkpoint: &Option<Checkpoint>) {
        let Some(synced) = self.nodes[n].running.as_ref().map(|r| r.synced) else { return };
        let stamp =
            |(id, bytes): &PageUpdate| Page::parse(bytes.as_ref()?, *id).map(|page| page.stamp()).ok();
        let last = pages.iter().filter_map(stamp).chain(checkpoint.iter().map(|c| c.applied)).max();
        if let Some(last) = last.filter(|last| *last > synced) {
            self.blame(format!("{last} is to be stored, and this node's disk has only {synced}"));
        }
    }

    /// The log is needed from where recovery would begin.
    pub(super) fn may_be_truncated(&mut self, n: usize, below: Stamp) {
        let from = self.nodes[n].disk.checkpoint.as_ref().map_or(Stamp(1), |c| c.replay_from);
        if below > from {
            self.blame(format!("the log is to be cut below {below}, and recovery would begin at {from}"));
        }
    }

    /// An entry is about to be ordered.
    pub(super) fn may_be_ordered(&mut self, n: usize, entry: &Sealed) {
        if !self.nodes[n].machine().is_some_and(|machine| machine.is_leading()) {
            return;
        }
        match Entry::decode(entry.kind, &entry.payload) {
            Ok(Entry::Evict(client)) => self.may_be_evicted(n, client),
            Ok(Entry::Grant(grant)) => self.may_be_granted(n, &grant),
            _ => {}
        }
    }

    /// The answers of a client that has a session are kept.
    fn may_be_evicted(&mut self, n: usize, id: ClientId) {
        if self.clients.iter().any(|c| c.machine.id() == id && self.has_session(n, c)) {
            self.blame(format!("client {:x} has a session, and its answers are forgotten", id.0));
        }
    }

    /// A place is given out again only when every client that has a session has heard that it was given back.
    /// In a page with a hole only places are given out that never were.
    fn may_be_granted(&mut self, n: usize, grant: &Grant) {
        let ended = self.nodes[n].ledger.ended();
        let is_hole = |page: &&PageId| grant.holes.iter().any(|hole| hole.page == **page);
        let again = grant.pages.iter().filter(|page| !is_hole(page));
        let back = again.filter_map(|page| ended.get(page)).max().copied().unwrap_or_default();
        let with_session = (0..self.clients.len()).filter(|i| self.has_session(n, &self.clients[*i]));
        for client in with_session.collect::<Vec<_>>() {
            if self.clients[client].machine.writer().watermark() < back {
                self.blame(format!(
                    "client {client} has not heard of {back}, and a place is given out that came back then"
                ));
            }
        }
    }

    /// Says whether the client has a session, by its own account and the server's.
    fn has_session(&self, n: usize, client: &ClientProcess) -> bool {
        let is_up = matches!(client.machine.availability(), Some(Ok(())));
        let conns = self.nodes[n].running.as_ref().map(|r| &r.host.conns);
        is_up && client.link.is_some_and(|conn| conns.is_some_and(|conns| conns.contains_key(&conn)))
    }

    /// A client that was of `view` is told that what it heard of is lost. With small bounds the server
    /// remembers few views, and clients of older ones begin anew.
    pub(super) fn may_be_foreign(&mut self, client: usize, view: ViewId) {
        let is_foreign = view != ViewId::NONE && self.clients[client].machine.view() == ViewId::NONE;
        if is_foreign && !self.plan.small && !self.oracle.is_put_back {
            self.blame(format!("client {client} is told that what it has heard of is lost, and nothing is"));
        }
    }
}
