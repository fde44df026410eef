//! A world: members, links, faults, and the truth that they are held against.

mod disks;
mod plan;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use tercel_machine::random::Random;
use tercel_machine::time::Now;
use tercel_wire::id::{LogPosition, MemberId, Written};

use super::super::members::{Member, Members};
use super::super::{Config, Status};
use super::node::{Node, OTHER};
use crate::{Found, Input, KIND_MEMBERS, Output, Sealed, Sequencer};
pub use disks::Disks;
pub use plan::Plan;

/// Counts of a world.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    pub views: u64,
    pub cuts: u64,
    pub crashes: u64,
    pub changes: u64,
    pub confirmed: u64,
    pub stable: u64,
    pub unsure: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Seen) {
        let Seen { views, cuts, crashes, changes, confirmed, stable, unsure } = other;
        self.views += views;
        self.cuts += cuts;
        self.crashes += crashes;
        self.changes += changes;
        self.confirmed += confirmed;
        self.stable += stable;
        self.unsure += unsure;
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Packet(usize, MemberId, Arc<Vec<u8>>),
    /// A life's log has done so many jobs.
    Done(usize, u64, usize),
    /// The report that a life's log is written comes late.
    Late(usize, u64, u32, LogPosition),
    /// A promise of a life is saved.
    Saved(usize, u64),
    /// A life's log was read from a position on, as far as it was written.
    Read(usize, u64, LogPosition, (u32, LogPosition)),
    Wake(usize),
    Begin(usize),
    Heal(u64),
    Fault,
    Work,
}

pub struct World {
    plan: Plan,
    random: Random,
    config: Config,
    members: Members,
    nodes: Vec<Node>,
    lives: Vec<u64>,
    /// When each is run next, if nothing comes.
    waking: Vec<Now>,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    events: u64,
    now: Now,
    /// Directed links that are cut, and by which fault.
    cuts: BTreeMap<(usize, usize), u64>,
    faults: u64,
    is_healed: bool,
    /// Everything that was ever reported as stable.
    truth: Vec<Sealed>,
    leaders: BTreeMap<u32, MemberId>,
    /// The views that had begun while processes were hardly run late: candidates may meet at the beginning.
    views_at_first: u64,
    pub seen: Seen,
}

impl World {
    pub fn new(plan: Plan) -> World {
        let member = |i: u64| Member { id: MemberId(i + 1), votes: i < plan.voters, address: String::new() };
        let members = Members::new((0..plan.nodes).map(member).collect()).unwrap();
        let config = Config {
            heartbeat_us: plan.deadline_us / 6,
            deadline_us: plan.deadline_us,
            silence_us: plan.silence_deadlines * plan.deadline_us,
            stagger_us: plan.deadline_us / 12,
            window_bytes: plan.window_bytes,
            packet_bytes: plan.window_bytes / 2,
            kept_bytes: 300,
        };
        let mut world = World {
            random: Random::new(plan.seed),
            config,
            nodes: members.iter().map(|member| Node::new(member.id)).collect(),
            lives: vec![0; plan.nodes as usize],
            waking: vec![Now(0); plan.nodes as usize],
            members,
            queue: BinaryHeap::new(),
            events: 0,
            now: Now(0),
            cuts: BTreeMap::new(),
            faults: 0,
            is_healed: false,
            truth: Vec::new(),
            leaders: BTreeMap::new(),
            views_at_first: 0,
            seen: Seen::default(),
            plan,
        };
        for i in 0..world.nodes.len() {
            world.nodes[i].create(&world.members);
            world.push(0, Event::Begin(i));
        }
        world.push(1, Event::Work);
        world.push(world.plan.faults.every_us, Event::Fault);
        world
    }

    pub fn now(&self) -> Now {
        self.now
    }

    fn push(&mut self, after_us: u64, event: Event) {
        self.events += 1;
        self.queue.push(Reverse((self.now.0 + after_us, self.events, event)));
    }

    /// Runs it: faults for a while, then none, and the group must agree.
    pub fn run(&mut self) -> Result<(), String> {
        let (mut look_at, healed_at) = (0, self.plan.until_us);
        let (mut most, mut until) = (0, healed_at + CONVERGE_US);
        while let Some(Reverse((at, _, event))) = self.queue.pop() {
            self.now = Now(at);
            self.event(event)?;
            if !self.is_healed && at >= healed_at {
                self.heal();
                look_at = at + 2 * WORK_US;
            }
            if self.is_healed && at >= look_at {
                let converged = self.converged();
                if converged.is_ok() || at >= until {
                    return converged;
                }
                let stable = self.nodes.iter().flat_map(|node| &node.process).map(|process| process.stable);
                let stable = stable.sum();
                if stable > most {
                    (most, until) = (stable, until.max((at + GET_ON_US).min(healed_at + CONVERGE_MAX_US)));
                }
                look_at = at + WORK_US / 4;
            }
        }
        self.converged()
    }

    /// Runs it until something is so.
    pub fn until<T>(&mut self, found: impl Fn(&World) -> Option<T>) -> T {
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            let Some(Reverse((at, _, event))) = self.queue.pop() else { panic!("it never comes about") };
            assert!(at < 2 * CONVERGE_US, "it does not come about");
            self.now = Now(at);
            self.event(event).unwrap();
        }
    }

    /// The member whose view has begun, if there is one.
    pub fn leader(&self) -> Option<MemberId> {
        let leads = |node: &&Node| node.process.as_ref().is_some_and(|process| process.has_begun());
        self.nodes.iter().find(leads).map(|node| node.id)
    }

    pub fn others(&self, than: MemberId) -> Vec<MemberId> {
        self.nodes.iter().map(|node| node.id).filter(|id| *id != than).collect()
    }

    pub fn deadline_us(&self) -> u64 {
        self.plan.deadline_us
    }

    /// The number of entries that are stable.
    pub fn stable_entries(&self) -> usize {
        self.truth.len()
    }

    pub fn status(&self, member: MemberId) -> Option<Status> {
        self.nodes[self.at(member)].process.as_ref().map(|process| process.quorum.status())
    }

    /// The entries that a member's disk has, and whether the member is sure that these are all.
    pub fn log(&self, member: MemberId) -> (usize, bool) {
        let has = self.nodes[self.at(member)].disk.log.len();
        (has, self.status(member).is_some_and(|status| status.is_sure))
    }

    fn at(&self, member: MemberId) -> usize {
        self.nodes.iter().position(|node| node.id == member).unwrap()
    }

    /// From now on the disk of a member answers nothing.
    pub fn hang_disk(&mut self, member: MemberId) {
        let at = self.at(member);
        self.nodes[at].hangs = true;
    }

    pub fn tell(&mut self, member: MemberId, input: Input<'_>) {
        self.try_tell(member, input).unwrap();
    }

    /// Tells a member something that the world may blame.
    pub fn try_tell(&mut self, member: MemberId, input: Input<'_>) -> Result<(), String> {
        self.take(self.at(member), input)
    }

    /// A leader is asked whether it still leads.
    pub fn ask(&mut self, leader: MemberId) {
        self.question(self.at(leader)).unwrap();
    }

    /// A leader orders a list of members that all vote.
    pub fn order_list(&mut self, leader: MemberId, voters: &[MemberId]) {
        self.order_list_with(leader, voters, &[]);
    }

    pub fn order_list_with(&mut self, leader: MemberId, voters: &[MemberId], learners: &[MemberId]) {
        let member = |id: &MemberId, votes| Member { id: *id, votes, address: String::new() };
        let voters = voters.iter().map(|id| member(id, true));
        let all = voters.chain(learners.iter().map(|id| member(id, false)));
        let (at, mut payload) = (self.at(leader), Vec::new());
        Members::new(all.collect()).unwrap().encode(&mut payload);
        let process = self.nodes[at].process.as_mut().unwrap();
        let entry = process.seal(KIND_MEMBERS, payload).unwrap();
        self.take(at, Input::Submit(entry)).unwrap();
    }

    /// Two members do not reach each other until [`World::uncut`].
    pub fn cut(&mut self, a: MemberId, b: MemberId) {
        let (a, b) = (self.at(a), self.at(b));
        self.cuts.extend([((a, b), 0), ((b, a), 0)]);
    }

    pub fn uncut(&mut self) {
        self.cuts.clear();
    }

    /// A process ends, its log loses all but some entries to damage, and another process begins. What was on
    /// its way to the one comes to the other.
    pub fn tear(&mut self, member: MemberId, entries: usize) {
        let at = self.at(member);
        self.nodes[at].crash(&mut self.random, false);
        self.nodes[at].disk.tear(entries);
        self.event(Event::Begin(at)).unwrap();
    }

    /// A process begins.
    pub fn begin(&mut self, member: MemberId) {
        self.event(Event::Begin(self.at(member))).unwrap();
    }

    /// The file of votes of a member that does not run is as one of an earlier build, which remembered less.
    pub fn forget_electorate(&mut self, member: MemberId) {
        let at = self.at(member);
        self.nodes[at].disk.forget_electorate();
    }

    /// Runs it for a while.
    pub fn pass(&mut self, us: u64) {
        let until = self.now.plus_us(us);
        self.push(us, Event::Wake(0));
        self.until(|world| (world.now >= until).then_some(()));
    }

    /// A process ends, and all others are told, after they have taken what it sent.
    pub fn end(&mut self, member: MemberId) {
        let at = self.at(member);
        self.nodes[at].crash(&mut self.random, false);
        self.lives[at] += 1;
        self.queue
            .retain(|Reverse((.., event))| !matches!(event, Event::Packet(_, from, _) if *from == member));
        self.others(member).into_iter().for_each(|other| self.tell(other, Input::Gone(member)));
    }

    fn heal(&mut self) {
        self.is_healed = true;
        self.cuts.clear();
        for i in 0..self.nodes.len() {
            self.nodes[i].paused = Now(0);
            self.push(0, Event::Wake(i));
            if self.nodes[i].process.is_none() {
                self.push(0, Event::Begin(i));
            }
        }
    }

    /// Everything that a leader has is everywhere, and stable.
    fn converged(&self) -> Result<(), String> {
        let newest = self.newest_members();
        let leaders: Vec<_> =
            self.nodes.iter().filter(|n| n.process.as_ref().is_some_and(|p| p.has_begun())).collect();
        let [leader] = leaders[..] else {
            return Err(format!("{} members lead after all faults are over", leaders.len()));
        };
        let process = leader.process.as_ref().unwrap();
        let end = process.log.len() as u64;
        if self.plan.faults.pauses_deadlines.is_some() && self.seen.views > self.views_at_first {
            return Err(format!("{} views, though nobody was gone", self.seen.views));
        }
        if process.stable < end {
            return Err(format!("of {end} entries {} are stable", process.stable));
        }
        for node in self.nodes.iter().filter(|node| newest.get(node.id).is_some()) {
            let Some(process) = &node.process else { return Err("a member does not run".into()) };
            if process.stable + IN_FLIGHT_MAX < end {
                let stable = process.stable;
                return Err(format!("member {} has {stable} stable entries of {end}", node.id));
            }
        }
        Ok(())
    }

    fn newest_members(&self) -> Members {
        let newest = self.truth.iter().rev().find(|entry| entry.kind == KIND_MEMBERS);
        newest.map_or(self.members.clone(), |entry| {
            Members::decode(&mut tercel_wire::cursor::Reader::new(&entry.payload)).unwrap()
        })
    }

    fn event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Packet(to, from, bytes) => {
                if self.nodes[to].paused > self.now {
                    // It waits in the socket.
                    let after = self.nodes[to].paused.since_us(self.now);
                    self.push(after, Event::Packet(to, from, bytes));
                    return Ok(());
                }
                self.take(to, Input::Packet(from, &bytes))
            }
            Event::Done(i, life, ..)
            | Event::Late(i, life, ..)
            | Event::Saved(i, life)
            | Event::Read(i, life, ..)
                if self.nodes[i].hangs || self.lives[i] != life =>
            {
                Ok(())
            }
            Event::Done(i, _, jobs) => self.done(i, jobs),
            Event::Late(i, _, cuts, position) => self.written(i, Written { cuts, position }),
            Event::Saved(i, _) => self.saved(i),
            Event::Read(i, _, from, (cuts, position)) => self.found(i, from, Written { cuts, position }),
            Event::Wake(i) if self.nodes[i].paused > self.now => Ok(()),
            Event::Wake(i) => self.take(i, Input::Time),
            Event::Begin(i) => {
                if self.nodes[i].process.is_none() {
                    let seed = self.random.next_u64();
                    self.nodes[i].begin(self.config, &self.members, seed, self.now);
                    self.lives[i] += 1;
                    self.compare(i)?;
                    self.take(i, Input::Ready(true))?;
                }
                Ok(())
            }
            Event::Heal(fault) => {
                self.cuts.retain(|_, of| *of != fault);
                Ok(())
            }
            Event::Fault => {
                if !self.is_healed {
                    self.fault();
                    let every = self.plan.faults.every_us;
                    let after = self.random.below(2 * every);
                    self.push(after, Event::Fault);
                }
                Ok(())
            }
            Event::Work => self.work(),
        }
    }

    fn fault(&mut self) {
        self.faults += 1;
        let fault = self.faults;
        let leads = |node: &Node| node.process.as_ref().is_some_and(|process| process.leads.is_some());
        let leader = self.nodes.iter().position(leads);
        let i = match leader.filter(|_| self.random.below(1_000) < self.plan.faults.of_leader_permille) {
            Some(leader) => leader,
            None => self.random.index(self.nodes.len()),
        };
        if let Some(most) = self.plan.faults.pauses_deadlines {
            if self.now.0 < self.plan.until_us / 8 {
                self.views_at_first = self.seen.views;
            }
            let most = most * self.config.deadline_us * self.now.0 / self.plan.until_us;
            let us = most / 2 + self.random.below(most / 2 + 1);
            // It is run between two pauses.
            if self.nodes[i].paused < self.now {
                self.pause(i, us);
            }
            return;
        }
        let long = self.random.below(4 * self.config.deadline_us);
        match self.random.below(6) {
            0 | 1 => {
                self.seen.crashes += 1;
                let mut others = self.nodes.iter().enumerate().filter(|(other, _)| *other != i);
                // One that is alone in voting may lose what nobody else has.
                let mut processes = self.nodes.iter().filter_map(|node| node.process.as_ref());
                let is_alone = processes.any(|process| process.quorum.status().members.quorum() == 1)
                    || self.newest_members().quorum() == 1;
                let may_rot = self.plan.may_rot
                    && !(self.plan.changes_members && is_alone)
                    && !others.any(|(_, n)| n.disk.is_damaged);
                self.nodes[i].crash(&mut self.random, may_rot);
                self.lives[i] += 1;
                // Peers are told, some of them.
                let gone = self.nodes[i].id;
                for peer in 0..self.nodes.len() {
                    if self.random.below(2) == 0 && self.nodes[peer].paused <= self.now {
                        let _ = self.take(peer, Input::Gone(gone));
                    }
                }
                self.push(long, Event::Begin(i));
            }
            2 => self.pause(i, long),
            3 => {
                // One way, of one link.
                let j = self.random.index(self.nodes.len());
                self.cuts.insert((i, j), fault);
                self.push(long, Event::Heal(fault));
            }
            4 => {
                // A part from the rest, both ways.
                let part: BTreeSet<usize> =
                    (0..self.nodes.len()).filter(|_| self.random.below(2) == 0).collect();
                for a in 0..self.nodes.len() {
                    for b in 0..self.nodes.len() {
                        if part.contains(&a) != part.contains(&b) {
                            self.cuts.insert((a, b), fault);
                        }
                    }
                }
                self.push(long, Event::Heal(fault));
            }
            _ => {
                // One member hears nobody, or is heard by nobody.
                let hears = self.random.below(2) == 0;
                for j in (0..self.nodes.len()).filter(|j| *j != i) {
                    self.cuts.insert(if hears { (i, j) } else { (j, i) }, fault);
                }
                self.push(long, Event::Heal(fault));
            }
        }
    }

    /// A process is not run for a while.
    fn pause(&mut self, i: usize, us: u64) {
        self.nodes[i].paused = self.now.plus_us(us);
        // It takes what waits in its sockets before it looks at the time.
        self.push(us + 1, Event::Wake(i));
    }

    /// Clients: leaders that have begun take entries and questions.
    fn work(&mut self) -> Result<(), String> {
        if self.now.0 > self.plan.until_us + WORK_US {
            return Ok(());
        }
        for i in 0..self.nodes.len() {
            if self.nodes[i].paused > self.now || self.random.below(3) == 0 {
                continue;
            }
            let change = self.plan.changes_members && !self.is_healed && self.random.below(20) == 0;
            let Some(process) = &mut self.nodes[i].process else { continue };
            if !process.has_begun() {
                continue;
            }
            if self.random.below(4) == 0 && self.plan.asks {
                self.question(i)?;
                continue;
            }
            if self.plan.moves_lead && self.random.below(60) == 0 {
                let to = MemberId(1 + self.random.below(self.plan.nodes));
                self.take(i, Input::MoveLead(to))?;
                continue;
            }
            let unstable = process.log.len() as u64 - process.stable;
            if unstable >= IN_FLIGHT_MAX {
                continue;
            }
            let entry = if change {
                let now: Vec<Member> = process.quorum.status().members.iter().cloned().collect();
                let mut to = now;
                let at = self.random.index(to.len());
                to[at].votes = !to[at].votes;
                let Some(to) = Members::new(to).filter(|to| process.quorum.may_change(to)) else { continue };
                let mut payload = Vec::new();
                to.encode(&mut payload);
                self.seen.changes += 1;
                process.seal(KIND_MEMBERS, payload)
            } else {
                let payload = vec![7; self.random.index(40)];
                process.seal(OTHER, payload)
            };
            if let Some(entry) = entry {
                self.take(i, Input::Submit(entry))?;
            }
        }
        let after = 50 + self.random.below(self.plan.work_us - 50);
        self.push(after, Event::Work);
        Ok(())
    }

    /// A leader is asked whether it still leads.
    fn question(&mut self, i: usize) -> Result<(), String> {
        let stable = self.truth.len() as u64;
        let Some(reign) = self.nodes[i].process.as_mut().and_then(|p| p.leads.as_mut()) else {
            return Ok(());
        };
        reign.asked += 1;
        reign.questions.push((reign.asked, stable));
        let id = reign.asked;
        self.take(i, Input::Confirm(id))
    }

    /// A process begins: what its log calls stable is so.
    fn compare(&self, i: usize) -> Result<(), String> {
        let Some(process) = &self.nodes[i].process else { return Ok(()) };
        let upto = (process.stable as usize).min(self.truth.len());
        match (0..upto).find(|at| process.log[*at] != self.truth[*at]) {
            Some(at) => {
                let id = self.nodes[i].id;
                Err(format!("member {id} begins with another stable entry at {} of {upto}", at + 1))
            }
            None => Ok(()),
        }
    }

    fn wake(&mut self, i: usize) {
        let Some(deadline) = self.nodes[i].process.as_ref().and_then(|p| p.quorum.deadline()) else { return };
        // One that is due earlier looks again.
        if self.waking[i] <= self.now || deadline < self.waking[i] {
            self.waking[i] = deadline.max(self.now.plus_us(1));
            self.push(self.waking[i].since_us(self.now), Event::Wake(i));
        }
    }

    fn take(&mut self, i: usize, input: Input<'_>) -> Result<(), String> {
        let mut out = Vec::new();
        let Some(process) = &mut self.nodes[i].process else { return Ok(()) };
        process.quorum.handle(self.now, input, &mut out);
        for said in out {
            self.said(i, said)?;
        }
        self.hand_over(i);
        self.wake(i);
        Ok(())
    }

    fn said(&mut self, i: usize, said: Output) -> Result<(), String> {
        let id = self.nodes[i].id;
        let Some(process) = &mut self.nodes[i].process else { return Ok(()) };
        match said {
            Output::Send(to, bytes) => self.post(i, to, bytes),
            Output::Save(number, view, electorate) => {
                process.saves.push_back((number, view, electorate));
                if process.saves.len() == 1 {
                    self.work_votes(i);
                }
            }
            Output::Append(position, entry) => {
                if position.0 != process.log.len() as u64 + 1 {
                    return Err(format!("member {id} appends at {position} after {}", process.log.len()));
                }
                process.log.push(entry.clone());
                process.queue.append(position, entry).map_err(|error| format!("member {id}: {error}"))?;
            }
            Output::Cut(above) => {
                if above.0 < process.stable {
                    return Err(format!(
                        "member {id} cuts above {above} what is stable up to {}",
                        process.stable
                    ));
                }
                self.seen.cuts += 1;
                process.log.truncate(above.0 as usize);
                process.queue.cut(above);
            }
            Output::Read(from, _) => match process.queue.readable(from) {
                Some(Written { cuts, position }) => {
                    let (us, life) = (self.act_us(), self.lives[i]);
                    self.push(us, Event::Read(i, life, from, (cuts, position)));
                }
                None => self.take(i, Input::Found(from, Found::NotNow))?,
            },
            Output::Stable(position, stamp) => self.stable(i, position, stamp.0)?,
            Output::Leading(lead) => {
                self.seen.views += 1;
                let other = self.leaders.insert(lead.view.number, id).filter(|other| *other != id);
                if let Some(other) = other {
                    return Err(format!("{other} and {id} lead in view {}", lead.view));
                }
                let entry = process.lead(lead);
                if lead.is_unsure {
                    // Every member has answered: what none of them has is lost, and that is said. It is
                    // nothing, unless the only one that votes has lost it.
                    self.seen.unsure += 1;
                    let kept = process.log.len();
                    if kept < self.truth.len() && self.newest_members().voters().count() > 1 {
                        return Err(format!("member {id} leads, and {kept} entries are kept"));
                    }
                    self.truth.truncate(kept);
                }
                self.take(i, Input::Submit(entry))?;
            }
            Output::Deposed(view) => {
                if process.leads.take().is_none_or(|reign| reign.view != view) {
                    return Err(format!("member {id} leads no longer in view {view}, and never did"));
                }
            }
            Output::Confirmed(question, stamp) => {
                let Some(reign) = &mut process.leads else { return Err("answered without leading".into()) };
                let at = reign.questions.iter().position(|(of, _)| *of == question);
                let (_, stable) = reign.questions.remove(at.ok_or("a question is answered twice")?);
                self.seen.confirmed += 1;
                let needed = (stable as usize).min(self.truth.len());
                if needed > 0 && stamp < self.truth[needed - 1].stamp {
                    return Err(format!("member {id} confirms {stamp} though {stable} entries were stable"));
                }
            }
            Output::Sure => self.nodes[i].disk.is_damaged = false,
            Output::KeepFrom(_) | Output::Members(_) | Output::Lost(..) => {}
            Output::Contradicted(leader, view, at) => {
                return Err(format!("member {leader}, which leads view {view}, has another entry at {at}"));
            }
        }
        Ok(())
    }

    /// An entry is stable: it is where it was before, and a quorum's disks have it.
    fn stable(&mut self, i: usize, position: LogPosition, stamp: u64) -> Result<(), String> {
        let id = self.nodes[i].id;
        let Some(process) = &mut self.nodes[i].process else { return Ok(()) };
        let upto = position.0 as usize;
        if process.log.len() < upto || process.log[upto - 1].stamp.0 != stamp {
            return Err(format!("member {id} has another entry at {position} than the one that is stable"));
        }
        let before = std::mem::replace(&mut process.stable, position.0) as usize;
        self.seen.stable += 1;
        let shared = upto.min(self.truth.len());
        if let Some(at) = (before.min(shared)..shared).find(|at| process.log[*at] != self.truth[*at]) {
            return Err(format!("member {id} has another stable entry at {}", at + 1));
        }
        if upto > self.truth.len() {
            if process.leads.is_none() {
                return Err(format!("member {id} follows and is ahead of every leader"));
            }
            self.truth.extend_from_slice(&process.log[self.truth.len()..upto]);
            let members = process.quorum.status().members;
            let has =
                |node: &&Node| members.votes(node.id) && node.disk.log.get(upto - 1) == self.truth.last();
            let disks = self.nodes.iter().filter(has).count();
            if disks < members.quorum() && !self.plan.may_rot {
                return Err(format!("entry {position} is stable on {disks} disks"));
            }
        }
        Ok(())
    }

    fn post(&mut self, i: usize, to: MemberId, bytes: Arc<Vec<u8>>) {
        let Some(to) = self.nodes.iter().position(|node| node.id == to) else { return };
        if self.cuts.contains_key(&(i, to)) {
            return;
        }
        let times = 1 + usize::from(self.random.below(1_000) < self.plan.links.double_permille);
        for _ in 0..times {
            if self.is_healed || self.random.below(1_000) >= self.plan.links.loss_permille {
                let us = 20 + self.random.below(self.plan.links.delay_us);
                self.push(us, Event::Packet(to, self.nodes[i].id, bytes.clone()));
            }
        }
    }
}

/// Time for a group to agree once all faults are over: some deadlines, and to send what some member lacks.
const CONVERGE_US: u64 = 5_000_000;

/// Time for each next entry on a disk, where `CONVERGE_US` is over: disks that stall go on to do so, and a
/// member that lacks all may have it one by one.
const GET_ON_US: u64 = 1_000_000;

/// The end of that: some ten times as long as such a member was seen to take.
const CONVERGE_MAX_US: u64 = 60_000_000;

/// Time for which clients go on once all faults are over.
const WORK_US: u64 = 100_000;

/// Entries of a leader that are not stable, at most.
const IN_FLIGHT_MAX: u64 = 24;
