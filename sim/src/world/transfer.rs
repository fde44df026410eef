//! Copies of the space, for members that the log of the leader no longer reaches back for.
//!
//! A copy comes part by part over a connection of its own, while the group goes on. It breaks off when giver
//! or taker ends or the giver leads no longer, and the taker begins another with the next leader. The
//! invariant: an adopted copy is whole, and its log is what is promised.

use std::collections::BTreeMap;
use std::sync::Arc;

use tercel_engine::server::{Conn, Input};
use tercel_testkit::node::disk::Disk;
use tercel_testkit::taken::Taken;
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{EntryId, PageId, Stamp, ViewId};
use tercel_wire::log::LogId;
use tercel_wire::message::Transfer as Request;
use tercel_wire::page::Page;

use super::backup::is_not_ahead;
use super::group::letter;
use super::{Event, Phase, SPACE, World};

/// The copies under way.
#[derive(Default)]
pub(super) struct Transfers {
    begun: u64,
    /// By the node that takes one.
    all: BTreeMap<usize, Transfer>,
    /// One that is whole, until its taker has said whether it adopts it.
    made: Option<(Disk, EntryId)>,
}

/// A copy under way.
struct Transfer {
    /// The view in which it was asked for.
    view: ViewId,
    conn: Conn,
    /// Its ends, each with which of its lives it is.
    taker: (usize, u32),
    giver: (usize, u32),
    is_closed: bool,
    call: u64,
    taken: Taken,
}

impl Transfers {
    fn of(&mut self, conn: Conn) -> Option<&mut Transfer> {
        self.all.values_mut().find(|transfer| transfer.conn == conn)
    }

    /// Says whether a connection is of a copy; if so, keeps the bytes that were sent there.
    pub(super) fn takes(&mut self, conn: Conn, bytes: &[u8]) -> bool {
        self.of(conn).map(|transfer| transfer.taken.push(bytes)).is_some()
    }

    /// A giver has ended a connection, or forgotten all that it had.
    pub(super) fn closed(&mut self, giver: usize, conn: Option<Conn>) {
        let of_giver = self.all.values_mut().filter(|transfer| transfer.giver.0 == giver);
        let closed = of_giver.filter(|transfer| conn.is_none_or(|conn| transfer.conn == conn));
        closed.for_each(|transfer| transfer.is_closed = true);
    }

    /// The ends of the copy that a node takes.
    pub(super) fn ends(&self, taker: usize) -> Option<[usize; 2]> {
        self.all.get(&taker).map(|transfer| [taker, transfer.giver.0])
    }
}

impl World {
    /// A node takes a copy from the leader, unless it takes one.
    pub(super) fn begin_transfer(&mut self, n: usize, view: ViewId, leader: &str) {
        let giver = (0..self.nodes.len()).find(|giver| letter(*giver).to_string() == leader);
        let Some(giver) = giver.filter(|_| !self.net.transfers.all.contains_key(&n)) else { return };
        self.net.transfers.begun += 1;
        let conn = Conn(1 << 42 | self.net.transfers.begun);
        let (taker, giver) = ((n, self.nodes[n].life), (giver, self.nodes[giver].life));
        let (is_closed, call, taken) = (false, 0, Taken::default());
        self.net.transfers.all.insert(n, Transfer { view, conn, taker, giver, is_closed, call, taken });
        self.say(format_args!("{}       takes a copy from {leader}", letter(n)));
        self.transfer_soon(n);
    }

    fn transfer_soon(&mut self, n: usize) {
        let us = self.plan.latency_us + self.nodes[n].random.below(STEP_US_MAX);
        self.at(self.time + us, Event::Transfer(n));
    }

    /// The turn of a node that takes a copy.
    pub(super) fn transfer_turn(&mut self, n: usize) {
        let Some(transfer) = self.net.transfers.all.get_mut(&n) else { return };
        let (conn, taker, giver) = (transfer.conn, transfer.taker, transfer.giver);
        let heard = transfer.taken.hear().and_then(|()| is_not_ahead(&transfer.taken));
        let is_closed = transfer.is_closed || transfer.taken.refused.is_some();
        let (is_new, is_whole) = (transfer.call == 0, transfer.taken.ended.is_some());
        let is_asking = transfer.taken.asked < ASKED_MAX && transfer.taken.transfer.is_some();
        if let Err(why) = heard {
            self.blame(format!("a copy: {why}"));
        } else if !matches!(self.phase, Phase::Safety | Phase::Healed) || !self.is_of_life(n, taker.1) {
            self.leave_transfer(n);
        } else if is_closed || !self.is_of_life(giver.0, giver.1) {
            self.record.counts.group.broken += 1;
            let refused = self.net.transfers.all.get(&n).and_then(|transfer| transfer.taken.refused.as_ref());
            let why = refused.map_or("an end of it has ended".into(), |refused| refused.text.clone());
            self.say(format_args!("{}       has a copy that broke off: {why}", letter(n)));
            self.leave_transfer(n);
            self.node_takes(n, Input::RefusedBy(self.nodes[n].id, why));
        } else if is_whole {
            self.end_transfer(n);
        } else {
            if is_new {
                self.node_takes(giver.0, Input::Connected(conn, Default::default()));
                let mut body = Vec::new();
                Request { group: 1, member: self.nodes[n].id }.encode(&mut body);
                self.say_to_giver(n, Kind::Transfer, &body);
            } else if is_asking {
                self.net.transfers.all.get_mut(&n).into_iter().for_each(|transfer| transfer.taken.asked += 1);
                self.say_to_giver(n, Kind::BackupNext, &[]);
            }
            self.transfer_soon(n);
        }
    }

    fn say_to_giver(&mut self, n: usize, kind: Kind, body: &[u8]) {
        let Some(transfer) = self.net.transfers.all.get_mut(&n) else { return };
        transfer.call += 1;
        let header = Header { body_bytes: body.len() as u32, ..Header::new(kind, transfer.call) };
        let (conn, (giver, _)) = (transfer.conn, transfer.giver);
        self.node_takes(giver, Input::Frame(conn, header, body));
    }

    fn leave_transfer(&mut self, n: usize) -> Option<Transfer> {
        let transfer = self.net.transfers.all.remove(&n)?;
        let (giver, life) = transfer.giver;
        if !transfer.is_closed && self.is_of_life(giver, life) {
            self.node_takes(giver, Input::Disconnected(transfer.conn));
        }
        Some(transfer)
    }

    /// A copy is whole: its log must be what is promised. The taker says whether it adopts it.
    fn end_transfer(&mut self, n: usize) {
        let Some(Transfer { taken, view, .. }) = self.leave_transfer(n) else { return };
        let salt = self.nodes[n].random.next_u64();
        let made = taken.made(LogId { space: SPACE, salt }, self.nodes[n].segment_bytes);
        let (disk, entries, end) = match made {
            Ok(made) => made,
            Err(why) => return self.blame(format!("a copy: {why}")),
        };
        let stamp = |(page, bytes): (&PageId, &Arc<Vec<u8>>)| Page::parse(bytes, *page).map(|it| it.stamp());
        let last = taken.transfer.map_or(Stamp::ZERO, |begun| begun.stamp);
        if let Some(youngest) = disk.pages.iter().filter_map(|page| stamp(page).ok()).find(|it| *it > last) {
            return self.blame(format!("a copy has a log up to {last}, and a page of {youngest}"));
        }
        let promised = self.oracle.ledger(end.position);
        let first = promised.end().0 - entries.len() as u64;
        if promised.end() != end.position || promised.from(first) != entries {
            return self.blame(format!("a copy has a log up to {}, which is not promised", end.position));
        }
        self.net.transfers.made = Some((disk, end));
        self.node_takes(n, Input::Copied(view, end));
        self.net.transfers.made = None;
    }

    /// The copy takes the place of what the node has.
    pub(super) fn adopt(&mut self, n: usize) {
        let Some((mut disk, end)) = self.net.transfers.made.take() else {
            return self.blame(format!("{} adopts a copy that is not there", letter(n)));
        };
        // Entries of its own beyond that must be of a view that is over.
        let (next, own) = (end.position.next(), &self.nodes[n].ledger);
        if own.at(next).is_some_and(|entry| self.oracle.ledger(next).at(next) == Some(entry)) {
            return self.blame(format!("{} adopts a copy that lacks what it has, and is stable", letter(n)));
        }
        self.end_node(n, "a copy takes the place of what it has", true);
        self.record.counts.group.transfers += 1;
        let ledger = self.oracle.ledger(end.position);
        let process = &mut self.nodes[n];
        (disk.full, disk.is_unsure) = (process.disk.full, process.disk.is_unsure);
        (process.node.disk, process.ledger) = (disk, ledger);
    }
}

/// Parts asked for at once.
const ASKED_MAX: usize = 2;
/// Between two looks at what came, at most.
const STEP_US_MAX: u64 = 4_000;
