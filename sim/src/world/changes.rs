//! Changes of a group amid faults: its operator lets members come and go, and members lose disks, or the ends
//! of their logs.
//!
//! The operator asks the node that leads for one change after the other, each again and again until the list
//! of members that is promised shows it. A node whose disk is lost comes back as another member, and the one
//! that it was has to go. The invariant: of what is stable, one member at a time has lost its part, so that a
//! quorum without it has everything.

use std::collections::VecDeque;
use std::sync::Arc;

use tercel_engine::order::quorum::members::Members;
use tercel_engine::random::Random;
use tercel_engine::server::{Conn, Input};
use tercel_testkit::node::log::Log;
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{LogPosition, MemberId, PageId, Stamp, ViewId};
use tercel_wire::message::{Regroup, Regrouping};
use tercel_wire::page::Page;

use super::group::{letter, members};
use super::node::{Process, view_first};
use super::votes::Votes;
use super::{Event, Phase, SPACE, World};
use crate::rule::RunnerRule;

/// The operator of the group.
#[derive(Default)]
pub(super) struct Operator {
    /// The changes that are still to come about, and how often the first was asked for.
    wishes: VecDeque<(Regrouping, MemberId)>,
    asked: u32,
    /// Questions so far, and members that came.
    calls: u64,
    came: u64,
    /// A member whose disk is lost, until the promised list is without it.
    dead: Option<MemberId>,
}

impl Operator {
    fn forget(&mut self, member: MemberId) {
        self.wishes.retain(|(_, id)| *id != member);
        self.asked = 0;
    }

    fn wants(&mut self, steps: &[Regrouping], member: MemberId) {
        self.wishes.extend(steps.iter().map(|step| (*step, member)));
    }
}

impl World {
    /// The members by the newest list that is promised.
    pub(crate) fn members(&self) -> Members {
        self.oracle.members.clone().unwrap_or_else(|| members(&self.plan))
    }

    /// The node of a member.
    pub(super) fn node_of(&self, member: MemberId) -> Option<usize> {
        self.nodes.iter().position(|process| process.id == member)
    }

    /// The nodes of all members; without a group, the only one.
    pub(crate) fn member_nodes(&self) -> Vec<usize> {
        let members = self.members();
        (0..self.nodes.len()).filter(|n| members.get(self.nodes[*n].id).is_some()).collect()
    }

    /// Says whether a member is gone for good, and all others must be sure of their logs.
    pub(super) fn misses_one(&self) -> bool {
        self.operator.dead.is_some()
    }

    /// Says whether all changes have come about that the operator wants.
    pub(crate) fn is_regrouped(&mut self) -> bool {
        self.operator.wishes.is_empty()
    }

    pub(super) fn begin_changes(&mut self) {
        if self.plan.spares() > 0 {
            self.operator_turn();
        }
    }

    /// The operator looks at the group, and asks for the next change.
    pub(super) fn operator_turn(&mut self) {
        if !matches!(self.phase, Phase::Safety | Phase::Healed) {
            return;
        }
        let members = self.members();
        self.operator.dead.take_if(|dead| members.get(*dead).is_none());
        let is_so = |(step, id): &(Regrouping, MemberId)| match step {
            Regrouping::Learn => members.get(*id).is_some(),
            Regrouping::Vote => members.votes(*id),
            _ => members.get(*id).is_none(),
        };
        let is_needed = |id: MemberId, dead| Some(id) == dead;
        while let Some(wish) = self.operator.wishes.front()
            && (is_so(wish) || self.operator.asked > ASKED_MAX && !is_needed(wish.1, self.operator.dead))
        {
            self.operator.wishes.pop_front();
            self.operator.asked = 0;
        }
        if let Some((step, member)) = self.operator.wishes.front().copied() {
            self.ask_for(step, member);
        }
        let us = 1 + self.operator_random().below(PAUSE_US_MAX);
        self.at(self.time + us, Event::Operator);
    }

    fn operator_random(&mut self) -> Random {
        self.operator.calls += 1;
        Random::new(self.plan.seed ^ self.operator.calls << 32)
    }

    /// The operator asks the node that leads.
    fn ask_for(&mut self, step: Regrouping, member: MemberId) {
        let n = self.leader();
        if !self.is_up(n) || self.nodes[n].busy_until() > self.time {
            return;
        }
        self.operator.asked += 1;
        let address = self.node_of(member).map_or(String::new(), |n| letter(n).to_string());
        let mut body = Vec::new();
        Regroup { step, member, address }.encode(&mut body);
        let (conn, header) = (Conn(1 << 41 | self.operator.calls), Header::new(Kind::Regroup, 1));
        let header = Header { body_bytes: body.len() as u32, ..header };
        self.node_takes(n, Input::Connected(conn, Default::default()));
        self.node_takes(n, Input::Frame(conn, header, &body));
        self.node_takes(n, Input::Disconnected(conn));
    }

    /// A node that is no member begins as a new one, which learns, and mostly votes.
    pub(super) fn come(&mut self, dice: u64) -> bool {
        let members = self.members();
        let is_free = |n: &usize| {
            let id = self.nodes[*n].id;
            let is_listed = self
                .nodes
                .iter()
                .any(|process| process.ledger.members().is_some_and(|members| members.get(id).is_some()));
            members.get(id).is_none() && !is_listed && self.operator.wishes.iter().all(|wish| wish.1 != id)
        };
        let Some(n) = (0..self.nodes.len()).find(is_free) else { return false };
        let new = self.next_member();
        self.end_node(n, "another member is to be here", true);
        self.enter_group(n, new);
        let votes = !dice.is_multiple_of(4);
        let steps = [Regrouping::Learn, Regrouping::Vote];
        self.operator.wants(&steps[..1 + usize::from(votes)], new);
        true
    }

    /// A member is to go, unless it is the only one that votes.
    pub(super) fn go(&mut self, dice: u64) -> bool {
        let members = self.members();
        let all: Vec<MemberId> = members.iter().map(|member| member.id).collect();
        let id = all[dice as usize % all.len()];
        let may = members.voters().any(|other| other != id) && self.operator.wishes.len() < WISHES_MAX;
        if may {
            self.operator.wants(&[Regrouping::Remove], id);
        }
        may
    }

    /// A member's disk is lost, and its node begins as another member.
    pub(super) fn wipe(&mut self, lost: usize) -> bool {
        let id = self.nodes[lost].id;
        let list = self.members();
        let voters = list.voters().count();
        // Without it the others must go on: all of them, if some are not sure of their logs.
        let is_sure = |n: &usize| *n == lost || self.is_up(*n) && !self.nodes[*n].disk.is_unsure;
        let may = self.member_nodes().iter().all(is_sure);
        if !may || !self.may_lose(id) || list.votes(id) && voters - 1 < list.quorum() {
            return false;
        }
        for process in &mut self.nodes {
            (process.armed.sync_fails, process.armed.write_fails) = (false, false);
        }
        self.end_node(lost, "its disk is lost", false);
        if self.drops(RunnerRule::WipedMemberReturns) {
            self.enter_group(lost, id);
            return true;
        }
        let new = self.next_member();
        self.enter_group(lost, new);
        self.operator.forget(id);
        self.operator.wishes.push_front((Regrouping::Remove, id));
        self.operator.wants(&[Regrouping::Learn, Regrouping::Vote], new);
        self.operator.dead = Some(id);
        true
    }

    /// A member loses its power, and a part of the last batch that its log has synced.
    pub(super) fn rot(&mut self, n: usize) -> bool {
        let list = self.members();
        let process = &self.nodes[n];
        if !self.may_lose(process.id) || list.votes(process.id) && list.voters().count() < 2 {
            return false;
        }
        let Some(running) = &process.running else { return false };
        let (mut disk, segment_bytes) = (process.disk.clone(), process.segment_bytes);
        let random = &mut Random::new(self.plan.seed ^ self.record.counts.events << 20);
        disk.lose(random);
        if !running.log.rot(&mut disk, random) {
            return false;
        }
        // What it has stored is not in doubt.
        let stored = |(id, bytes): (&PageId, &Arc<Vec<u8>>)| Page::parse(bytes, *id).map(|page| page.stamp());
        let pages = disk.pages.iter().filter_map(|page| stored(page).ok());
        let applied = pages.chain(disk.checkpoint.iter().map(|checkpoint| checkpoint.applied)).max();
        let opened = Log::open(&mut disk.clone(), SPACE, Stamp(u64::MAX), segment_bytes);
        let Ok(last) = opened.map(|opened| opened.log.last()) else { return false };
        if Some(last.stamp) < applied || last.position >= process.ledger.durable {
            return false;
        }
        let process = &mut self.nodes[n];
        (process.node.disk, process.has_lost) = (disk, true);
        process.ledger.durable = last.position;
        self.end_node(n, "without power, and without the end of its log", false);
        true
    }

    /// Says whether a member may lose what is stable: no other one has, and no list is on its way.
    fn may_lose(&self, id: MemberId) -> bool {
        let list = self.members();
        let is_list = |process: &Process| process.ledger.members().is_none_or(|own| *own == list);
        let of_members = || self.nodes.iter().filter(|process| list.get(process.id).is_some());
        list.get(id).is_some()
            && self.operator.dead.is_none()
            && of_members().all(|process| !process.has_lost && is_list(process))
    }

    fn next_member(&mut self) -> MemberId {
        self.operator.came += 1;
        MemberId(self.nodes.len() as u64 + self.operator.came)
    }

    /// A node begins as a member with an empty disk, which knows the list of the leader.
    fn enter_group(&mut self, n: usize, id: MemberId) {
        let known = self.nodes[self.leader()].ledger.members().cloned().unwrap_or_else(|| self.members());
        let nature = self.nodes[n].nature.clone();
        let random = &mut Random::new(self.plan.seed ^ id.0 << 40);
        let new = Process::new(&self.plan, n, nature, random);
        let old = std::mem::replace(&mut self.nodes[n], new);
        let process = &mut self.nodes[n];
        (process.id, process.is_out) = (id, false);
        (process.node.life, process.node.clock) = (old.life, old.clock);
        process.votes = Votes::new(id, known, ViewId::new(view_first(&self.plan), 0));
        self.restart_soon(n);
    }

    /// A member stops because it was removed.
    pub(super) fn leave_group(&mut self, n: usize, why: &str) {
        // It may be the first to show the list.
        self.note_promises(n);
        if self.members().get(self.nodes[n].id).is_some() {
            return self.blame(format!("{} stops though it is a member: {why}", letter(n)));
        }
        self.nodes[n].is_out = true;
        self.end_node(n, why, true);
    }

    /// Says how many members that vote by the newest list of a node have its log up to a position, or had it
    /// and lost it; and how many make a quorum.
    pub(super) fn disks_with(&self, n: usize, upto: LogPosition) -> (usize, usize) {
        let ledger = &self.nodes[n].ledger;
        let list = ledger.members().cloned().unwrap_or_else(|| members(&self.plan));
        let has = |id: &MemberId| match self.node_of(*id).map(|n| &self.nodes[n]) {
            Some(node) => {
                node.has_lost || node.ledger.durable >= upto && node.ledger.at(upto) == ledger.at(upto)
            }
            None => self.operator.dead == Some(*id),
        };
        (list.voters().filter(has).count(), list.quorum())
    }
}

/// Questions after which a change that nobody needs is given up.
const ASKED_MAX: u32 = 200;
/// Changes that are still to come about, above which no more members are to go.
const WISHES_MAX: usize = 4;
/// Time between two questions, in microseconds at most.
const PAUSE_US_MAX: u64 = 20_000;
