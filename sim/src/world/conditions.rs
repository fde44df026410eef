//! Conditions that must hold at the moment of an action of the server, checked with the state of the whole
//! world.
//!
//! A history shows the view of the clients. Clients would see these mistakes only later, or only after
//! another fault. Each check looks at an action of the server from outside, and blames a mistake that nothing
//! excuses.

use tercel_engine::order::Sealed;
use tercel_engine::replica::entry::{Entry, Grant};
use tercel_engine::server::{Checkpoint, PageUpdate};
use tercel_wire::id::{ClientId, PageId, Stamp, ViewId};
use tercel_wire::page::Page;

use super::client::ClientProcess;
use super::{LEADER, World};

impl World {
    /// In a group visible entries are promised; a server alone promises the entries on its disk. Where others
    /// do not suffice, the group needs this node's disk, too.
    pub(super) fn note_promises(&mut self) {
        let (Some(running), Some(group)) = (&self.nodes[LEADER].running, &self.plan.group) else { return };
        let (visible, synced) = (running.machine.visible(), running.synced);
        self.oracle.promised = self.oracle.promised.max(visible);
        if visible > synced && !group.others_suffice {
            self.blame(format!(
                "{visible} is shown, and the disk has only {synced}, without which none suffice"
            ));
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
    pub(super) fn may_be_ordered(&mut self, entry: &Sealed) {
        match Entry::decode(entry.kind, &entry.payload) {
            Ok(Entry::Evict(client)) => self.may_be_evicted(client),
            Ok(Entry::Grant(grant)) => self.may_be_granted(&grant),
            _ => {}
        }
    }

    /// The answers of a client that has a session are kept.
    fn may_be_evicted(&mut self, id: ClientId) {
        if self.clients.iter().any(|c| c.machine.id() == id && self.has_session(c)) {
            self.blame(format!("client {:x} has a session, and its answers are forgotten", id.0));
        }
    }

    /// A place is given out again only when every client that has a session has heard that it was given back.
    /// In a page with a hole only places are given out that never were.
    fn may_be_granted(&mut self, grant: &Grant) {
        let ended = self.oracle.ended();
        let is_hole = |page: &&PageId| grant.holes.iter().any(|hole| hole.page == **page);
        let again = grant.pages.iter().filter(|page| !is_hole(page));
        let back = again.filter_map(|page| ended.get(page)).max().copied().unwrap_or_default();
        let with_session = (0..self.clients.len()).filter(|i| self.has_session(&self.clients[*i]));
        for client in with_session.collect::<Vec<_>>() {
            if self.clients[client].machine.writer().watermark() < back {
                self.blame(format!(
                    "client {client} has not heard of {back}, and a place is given out that came back then"
                ));
            }
        }
    }

    /// Says whether the client has a session, by its own account and the server's.
    fn has_session(&self, client: &ClientProcess) -> bool {
        let is_up = matches!(client.machine.availability(), Some(Ok(())));
        let conns = self.nodes[LEADER].running.as_ref().map(|r| &r.host.conns);
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
