//! The record of a run: its history, its counters and its findings.

use std::collections::BTreeMap;

use tercel_verify::{History, Object, Transaction, Value, View};

use crate::plan::FaultKind;
use crate::watched::Watched;
use crate::workload::services::Tally;

/// The history, the findings and the counters of a run.
#[derive(Debug, Default)]
pub struct Record {
    /// The transactions and views of the clients.
    pub history: History,
    /// The findings, a sentence each; no event happens after the first.
    pub blames: Vec<String>,
    /// The changes that threads received from their watches.
    pub(crate) watched: Vec<Watched>,
    /// Values read by calls after calls that wrote, with the value written: not older.
    pub(crate) behind: Vec<(Object, Value, Value)>,
    /// Values that calls have read, and told, which wrote nothing.
    pub(crate) told: Vec<(Object, Value)>,
    /// The calls of the service.
    pub(crate) tally: Tally,
    /// Transactions whose stamps only the log knows.
    pub(crate) unplaced: Vec<usize>,
    /// A page may have been damaged on its way.
    pub(crate) excuses_damage: bool,
    /// A page could not be read: chunks of a released tree may stay where they are.
    pub(crate) excuses_chunks: bool,
    /// Counters.
    pub counts: Counts,
}

/// The counters of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Transactions that wrote and were acknowledged.
    pub commits: u64,
    /// Calls that returned.
    pub calls: CallCounts,
    /// Acknowledged transactions that ran inside of the server.
    pub inside: u64,
    /// Transactions that only read.
    pub reads: u64,
    /// Attempts that were refused or given up.
    pub aborts: u64,
    /// Attempts whose end is unknown.
    pub unknown: u64,
    /// Faults that took effect, by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Ends of the server, for whatever reason.
    pub crashes: u64,
    /// Leaders that were deposed.
    pub depositions: u64,
    /// Logs that ended in an unfinished write.
    pub torn: u64,
    /// Flipped bits of the log that an opening refused.
    pub damage_found: u64,
    /// Page batches that were stored.
    pub installs: u64,
    /// Checkpoints that were stored.
    pub checkpoints: u64,
    /// Backups that were taken to their end and compared with the log.
    pub backups: u64,
    /// The counters of groups.
    pub group: GroupCounts,
    /// The decisions of the server's scheduler.
    pub schedule: ScheduleCounts,
    /// Entries behind which the state of a node was compared with that of another.
    pub digests_compared: u64,
    /// Pages of nodes that were compared with those of others.
    pub pages_compared: u64,
    /// Connections made.
    pub connections: u64,
    /// Pages that servers asked back.
    pub revocations: u64,
    /// Objects that outgrew their page.
    pub forwards: u64,
    /// Collections that freed something, the objects that they freed, and those that were given up on the
    /// way.
    pub collected: CollectCounts,
    /// Baton passes from one thread to another.
    pub switches: u64,
    /// Steps of the world.
    pub events: u64,
    /// Objects that were watched.
    pub told: u64,
    /// Answers `Full`.
    pub full: u64,
    /// Answers that only a fault explains: damaged pages.
    pub corrupt: u64,
}

/// The counters of calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Those of methods that wrote.
    pub methods: u64,
    /// Those of services.
    pub services: u64,
}

/// The counters of collections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CollectCounts {
    /// Those that freed something.
    pub ended: u64,
    /// Entries that said what they would free.
    pub pieces: u64,
    /// Objects that they freed.
    pub objects: u64,
    /// Those that took back what they had said, or were cut short by the end of a view.
    pub given_up: u64,
}

/// The counters of groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Views that began.
    pub views: u64,
    /// Promises that were saved: votes, and views that followers learned of.
    pub votes: u64,
    /// Cuts of logs.
    pub cuts: u64,
    /// Packets between members, and those that were lost.
    pub packets: u64,
    /// See `packets`.
    pub lost: u64,
    /// Leaders that were told to hand over.
    pub handed: u64,
    /// Starts of members whose logs ended in damage.
    pub unsure: u64,
    /// Lists of members that became stable.
    pub changes: u64,
    /// Copies that members adopted, and those that broke off.
    pub transfers: u64,
    /// See `transfers`.
    pub broken: u64,
}

/// The decisions of a server's scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScheduleCounts {
    /// Turns that connections had from the run queue.
    pub turns: u64,
    /// Times that a connection was not read because its client did not read.
    pub backpressured: u64,
    /// Connections that were ended because all together had taken too little.
    pub ended_for_room: u64,
}

/// Adds counters of another run to those of this one.
macro_rules! add {
    ($to:ident, $of:ident: $($($name:ident).+),+) => { $($to.$($name).+ += $of.$($name).+;)+ };
}
pub(crate) use add;

impl Counts {
    /// Everything of another run.
    pub fn add(&mut self, other: &Counts) {
        let Counts { faults, .. } = other;
        for (kind, n) in faults {
            *self.faults.entry(*kind).or_default() += n;
        }
        add!(self, other: commits, calls.methods, calls.services, inside, reads, aborts, unknown, crashes, depositions);
        add!(self, other: torn, damage_found, installs, checkpoints, backups, digests_compared, pages_compared);
        add!(self, other: group.views, group.votes, group.cuts, group.packets, group.lost, group.handed, group.unsure, group.changes);
        add!(self, other: group.transfers, group.broken);
        add!(self, other: schedule.turns, schedule.backpressured, schedule.ended_for_room);
        add!(self, other: collected.ended, collected.pieces, collected.objects, collected.given_up);
        add!(self, other: connections, revocations, forwards, switches, events, told, full, corrupt);
    }

    /// Faults of all kinds.
    pub fn faults_all(&self) -> u64 {
        self.faults.values().sum()
    }
}

impl Record {
    /// Something is wrong.
    pub(crate) fn blame(&mut self, what: String) {
        // One failure has many consequences; the first ones tell.
        if self.blames.len() < BLAMES_MAX {
            self.blames.push(what);
        }
    }

    /// A batch of pages was stored.
    pub(crate) fn count_install(&mut self, with_checkpoint: bool) {
        self.counts.installs += 1;
        self.counts.checkpoints += u64::from(with_checkpoint);
    }

    /// An attempt has ended; gives its place in the history.
    pub(crate) fn push(&mut self, t: Transaction) -> usize {
        match t.outcome {
            tercel_verify::Outcome::Committed(_) if t.is_read_only() => self.counts.reads += 1,
            tercel_verify::Outcome::Committed(_) => self.counts.commits += 1,
            tercel_verify::Outcome::Aborted => self.counts.aborts += 1,
            tercel_verify::Outcome::Unknown => self.counts.unknown += 1,
        }
        self.history.transactions.push(t);
        self.history.transactions.len() - 1
    }

    /// Records the final view of a part of the space.
    pub(crate) fn view(&mut self, view: View) {
        self.history.views.push(view);
    }
}

const BLAMES_MAX: usize = 8;
