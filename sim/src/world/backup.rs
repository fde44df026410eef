//! Backups: in some worlds a backup client takes one after the other, whatever happens, and checks each.
//!
//! The backup client is no client of the workload and its link is never cut: only faults of the server strike
//! it. A backup must be equal to the log's state at the stamp that the server named. That stamp must be
//! durable when the server names it.

use tercel_engine::random::Random;
use tercel_engine::server::{Conn, Input};
use tercel_testkit::taken::Taken;
use tercel_wire::frame::{Header, Kind};

use super::{Event, Phase, World};
use crate::rule::{drop_here, keep_here};

/// Takes backups in this world, if it has a source of random numbers.
#[derive(Default)]
pub(super) struct BackupClient {
    random: Option<Random>,
    begun: u64,
    under_way: Option<Backup>,
}

/// A backup under way.
struct Backup {
    conn: Conn,
    /// The server that it is of, and which life of it.
    node: usize,
    life: u32,
    call: u64,
    taken: Taken,
}

impl BackupClient {
    /// The server that it is connected to.
    pub(super) fn node(&self) -> usize {
        self.under_way.as_ref().map_or(0, |backup| backup.node)
    }

    /// Says whether a connection is its own; if so, keeps the bytes that were sent there.
    pub(super) fn takes(&mut self, conn: Conn, bytes: &[u8]) -> bool {
        match self.under_way.as_mut().filter(|b| b.conn == conn) {
            Some(b) => b.taken.push(bytes),
            None => return false,
        }
        true
    }
}

impl World {
    /// In one world of four there is a backup client, and in each in which one is needed.
    pub(super) fn begin_backups(&mut self) {
        let is_needed = self.plan.rule.is_some_and(|rule| rule.is_of_backups());
        if is_needed || self.plan.seed.is_multiple_of(WORLDS_PER_TAKER) {
            self.backup_client.random = Some(Random::new(self.plan.seed ^ 0xbac0_0000_0000_0000));
            self.at(self.time, Event::Backup);
        }
    }

    /// The backup client's turn.
    pub(super) fn backup_turn(&mut self) {
        if !matches!(self.phase, Phase::Safety | Phase::Healed) || self.backup_client.begun > BACKUPS_MAX {
            return self.leave_backup();
        }
        let n =
            if self.backup_client.under_way.is_some() { self.backup_client.node() } else { self.leader() };
        let (life, is_up) = (self.nodes[n].life, self.is_up(n));
        self.backup_client.under_way =
            self.backup_client.under_way.take().filter(|b| is_up && b.life == life);
        match self.backup_client.under_way.as_mut() {
            None if is_up => self.begin_backup(n),
            None => {}
            Some(b) => {
                let (heard, promised) = (b.taken.hear(), self.oracle.promised);
                if let Err(why) = heard.and_then(|()| is_not_ahead(&b.taken)) {
                    self.blame(format!("a backup: {why}"));
                } else if let Some(begun) = b.taken.begun.filter(|begun| begun.stamp > promised) {
                    self.blame(format!("a backup is of {}, and only {promised} is durable", begun.stamp));
                } else if b.taken.is_over() {
                    self.end_backup();
                } else if b.taken.asked < ASKED_MAX {
                    b.taken.asked += 1;
                    self.say_to_server(Kind::BackupNext, &[]);
                }
            }
        }
        let pause = if self.backup_client.under_way.is_some() { STEP_US_MAX } else { PAUSE_US_MAX };
        let us = self.backup_client.random.as_mut().map_or(0, |r| r.below(pause));
        self.at(self.time + us, Event::Backup);
    }

    fn begin_backup(&mut self, node: usize) {
        self.backup_client.begun += 1;
        let n = self.backup_client.begun;
        let conn = Conn(1 << 40 | n);
        let life = self.nodes[node].life;
        self.backup_client.under_way = Some(Backup { conn, node, life, call: 0, taken: Taken::default() });
        self.node_takes(node, Input::Connected(conn, Default::default()));
        self.say_to_server(Kind::Hello, &Taken::hello(1 << 40 | n));
        self.say_to_server(Kind::Backup, &[]);
    }

    fn say_to_server(&mut self, kind: Kind, body: &[u8]) {
        let Some(b) = &mut self.backup_client.under_way else { return };
        b.call += 1;
        let header = Header { body_bytes: body.len() as u32, ..Header::new(kind, b.call) };
        let (conn, node) = (b.conn, b.node);
        self.node_takes(node, Input::Frame(conn, header, body));
    }

    /// Drops the backup under way, because the server has forgotten its connections.
    pub(super) fn forget_backup(&mut self, n: usize) {
        self.backup_client.under_way.take_if(|backup| backup.node == n);
    }

    fn leave_backup(&mut self) {
        if let Some(b) = self.backup_client.under_way.take() {
            self.node_takes(b.node, Input::Disconnected(b.conn));
        }
    }

    fn end_backup(&mut self) {
        let Some(b) = self.backup_client.under_way.take() else { return };
        self.node_takes(b.node, Input::Disconnected(b.conn));
        if b.taken.ended.is_none() {
            return;
        }
        // The comparison must see the true state, so no rule is dropped meanwhile.
        keep_here();
        let compared = b.taken.compare(self.oracle.promised());
        drop_here(self.plan.rule, self.plan.small);
        match compared {
            Ok(()) => self.record.counts.backups += 1,
            Err(why) => self.blame(format!("a backup: {why}")),
        }
    }
}

/// Fails if the server has met a page ahead of its state. It gives nothing of it then, which is right where a
/// store is of an earlier build; none is here.
pub(super) fn is_not_ahead(taken: &Taken) -> Result<(), String> {
    let refused =
        taken.refused.iter().find(|refused| refused.text.contains("is ahead of this server's state"));
    refused.map_or(Ok(()), |refused| Err(refused.text.clone()))
}

/// Most worlds go without: a backup takes its share of the events.
const WORLDS_PER_TAKER: u64 = 4;
/// Each is compared with the whole log.
const BACKUPS_MAX: u64 = 12;
/// Parts asked for at once.
const ASKED_MAX: usize = 2;
/// Between two looks at what came, at most; and between two backups.
const STEP_US_MAX: u64 = 4_000;
const PAUSE_US_MAX: u64 = 100_000;
