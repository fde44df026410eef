//! A group of servers: one leads, and an entry is stable once a quorum's disks have it.
//!
//! The safety argument is Raft's (Ongaro and Ousterhout 2014; Ongaro's thesis 2014). A term is a *view*
//! here, its no-op the view's own entry, and logs are compared by the view and the position of their ends.
//! Beyond that: a member asks before it votes (thesis, 9.6), nothing is answered by a lease, a report of a
//! disk names the cuts before it, and a log that ends in damage is *unsure*: it may have held more.
//!
//! | module | what it decides |
//! |---|---|
//! | `elect` | candidacies: asking, promises, votes |
//! | `lead` | what followers are sent, when an entry is stable, whether the leader still leads |
//! | `follow` | what a follower takes, cuts, acknowledges and releases |
//! | [`members`] | the members, and how many make a quorum |
//! | [`packet`] | the bytes between members |
//! | [`remembered`] | what a member remembers over its processes |
//! | `silence` | after which silence a member is suspected |
//! | `tail` | the log: views by position, and its newest entries |
//!
//! Packets may be lost, doubled and come in any order; a disk answers in the order in which it was asked. The
//! invariants: one leader a view; a promise is durable before it is said, and so is an entry before it is
//! acknowledged; what was reported as stable is in the log of every later leader.

mod elect;
mod follow;
mod lead;
pub mod members;
pub mod packet;
pub mod remembered;
mod silence;
mod tail;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tercel_machine::mutant::{Rule, dropped};
use tercel_machine::random::Random;
use tercel_machine::time::Now;
use tercel_wire::cursor::Reader;
use tercel_wire::id::{EntryId, LogPosition, MemberId, Stamp, ViewId, Written};

use crate::{Input, KIND_MEMBERS, Output, Sealed, Sequencer};
use elect::{Asking, Backed, Candidate};
use follow::Followed;
pub use lead::HAND_OVER_US;
use lead::Leading;
use members::{Electorate, Lists, Member, Members};
use packet::Packet;
use silence::Pauses;
pub use tail::Run;
use tail::Tail;

/// Settings of a group, the same at every member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// A leader sends each member something at least this often, in microseconds.
    pub heartbeat_us: u64,
    /// Silence after which a leader is suspected at least, in microseconds: on links on which packets came
    /// without long pauses of late. A leader that hears no quorum for twice as long leads no longer.
    pub deadline_us: u64,
    /// Silence after which a leader is suspected at most, in microseconds: on hosts that are busy.
    pub silence_us: u64,
    /// A round trip and a sync, in microseconds: the time by which members that suspect a leader ask one
    /// after the other.
    pub stagger_us: u64,
    /// Bytes of entries on their way to one member.
    pub window_bytes: usize,
    /// Bytes of entries in one packet; an entry that is larger goes alone.
    pub packet_bytes: usize,
    /// Bytes of stable entries that a member keeps in memory, for members that lag. The rest is read from the
    /// log.
    pub kept_bytes: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            heartbeat_us: 20_000,
            deadline_us: 150_000,
            silence_us: 1_000_000,
            stagger_us: 3_000,
            window_bytes: 8 << 20,
            packet_bytes: 1 << 20,
            kept_bytes: 8 << 20,
        }
    }
}

/// The findings of a member on its own disk when its process begins.
#[derive(Debug, Clone)]
pub struct Start {
    /// The identity of this member.
    pub me: MemberId,
    /// The view that it has promised.
    pub promised: ViewId,
    /// The entry before the first one of its log.
    pub begins: EntryId,
    /// The views of all entries up to `stable`.
    pub runs: Vec<Run>,
    /// Known to be stable.
    pub stable: LogPosition,
    /// The stamp of the entry there.
    pub stable_stamp: Stamp,
    /// The members as of there.
    pub members: Members,
    /// The electorate that it remembers.
    pub electorate: Option<Electorate>,
    /// The entries after that.
    pub suffix: Vec<Sealed>,
    /// Set if the log ends there; not if it ends in bytes that may have been entries.
    pub is_sure: bool,
}

/// The sequencer of a member of a group.
#[derive(Debug)]
pub struct Quorum {
    config: Config,
    me: MemberId,
    random: Random,
    promise: Promise,
    tail: Tail,
    lists: Lists,
    stable: LogPosition,
    stable_stamp: Stamp,
    /// The own disk has the log up to there, after so many cuts.
    written: Written,
    /// Set while the log may lack entries that this member has acknowledged: names this process.
    unsure: Option<u64>,
    /// Set while the server beside it can lead.
    is_ready: bool,
    /// Set once the members of the beginning are told.
    has_told_members: bool,
    role: Role,
    followed: Followed,
    heard: Heard,
    counts: Counts,
}

/// The news of others, over all views.
#[derive(Debug)]
struct Heard {
    /// The highest number of a view that anyone has told of.
    number: u32,
    /// The pauses of those that led.
    pauses: Pauses,
}

/// The view that a member has promised: it takes part in no lower one.
#[derive(Debug)]
struct Promise {
    view: ViewId,
    /// Counts what was to be saved.
    number: u64,
    /// Everything up to here is durable.
    saved: u64,
    /// Who waits for a promise, by its number.
    owed: Option<(u64, MemberId)>,
    /// The candidate that has it.
    backed: Option<Backed>,
    /// The member that was last told to take the lead over, and the view in which this one led.
    handed: Option<(MemberId, ViewId)>,
    /// Why this member last wanted a view of its own.
    why: Why,
}

#[derive(Debug)]
enum Role {
    Following,
    Asking(Asking),
    Candidate(Candidate),
    Leading(Box<Leading>),
}

/// Counters, for people and tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times that it asked whether it may ask for votes.
    pub asked: u64,
    /// Times that it asked for votes.
    pub candidacies: u64,
    /// Views that it led.
    pub led: u64,
    /// Times that it led no longer.
    pub deposed: u64,
    /// Times that its log was cut.
    pub cuts: u64,
    /// Packets that were no packets.
    pub damaged: u64,
    /// Packets that named a view too far above all that were heard of.
    pub jumps: u64,
    /// Packets of members that are on no list, and did not count.
    pub unlisted: u64,
}

/// The state of a member, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// This member.
    pub me: MemberId,
    /// The view that it takes part in, or has promised.
    pub view: ViewId,
    /// The leader that it follows, or itself.
    pub leader: Option<MemberId>,
    /// Why the last view began that it led, or wanted to lead.
    pub why: Why,
    /// The end of its log.
    pub end: EntryId,
    /// The position of the first entry of its log.
    pub begins: LogPosition,
    /// Stable up to there.
    pub stable: LogPosition,
    /// The other members, as their leader knows them.
    pub others: Vec<Other>,
    /// The members.
    pub members: Members,
    /// Set while the list of members may not be changed: it, or the view's own entry, is not stable.
    pub is_changing: bool,
    /// Not set if its log ended in damage, and has not everything again that it may have lost.
    pub is_sure: bool,
    /// Set if it needs the entry there, and the leader's log no longer has that: it cannot be fed.
    pub lost_before: Option<LogPosition>,
    /// Counters.
    pub counts: Counts,
}

/// The reason for which a member wanted to lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The member knew of no leader.
    NoLeader,
    /// The leader's process ended.
    Ended,
    /// The leader was silent.
    Silent,
    /// The leader handed the lead over.
    Handed,
}

/// Another member, as the leader knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Other {
    /// The member.
    pub id: MemberId,
    /// The disk of the member has the log up to there.
    pub durable: LogPosition,
    /// When it was heard last.
    pub heard: Now,
    /// The time of the last question and its answer, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Set if the leader's log no longer has what it needs.
    pub is_lost: bool,
    /// Set if its process seems to have ended.
    pub is_gone: bool,
}

impl Quorum {
    /// A member's process begins.
    pub fn new(config: Config, start: Start, seed: u64, now: Now) -> Quorum {
        let Start { me, promised, begins, runs, stable, stable_stamp, .. } = start;
        let Start { members, electorate, suffix, is_sure, .. } = start;
        let mut quorum = Quorum {
            config,
            me,
            random: Random::new(seed),
            promise: Promise {
                view: promised,
                number: 0,
                saved: 0,
                owed: None,
                backed: None,
                handed: None,
                why: Why::NoLeader,
            },
            tail: Tail::new(begins, runs, stable_stamp),
            lists: Lists::new(stable, members, electorate),
            stable,
            stable_stamp,
            written: Written { cuts: 0, position: stable },
            unsure: (!is_sure).then(|| Random::new(!seed).next_u64()),
            is_ready: false,
            has_told_members: false,
            role: Role::Following,
            followed: Followed::nobody(now),
            heard: Heard { number: promised.number, pauses: Pauses::default() },
            counts: Counts::default(),
        };
        suffix.into_iter().for_each(|entry| _ = quorum.push(entry));
        let end = quorum.tail.end();
        quorum.written.position = end.position;
        // An entry in the log promises its view, whatever was saved.
        if end.view.number > quorum.promise.view.number {
            quorum.promise.view = end.view;
        }
        quorum.heard.number = quorum.promise.view.number;
        quorum.wait_before_asking(now);
        quorum
    }

    /// The state, for people and tests.
    pub fn status(&self) -> Status {
        let (leader, others) = match &self.role {
            Role::Leading(leading) => (Some(self.me), leading.others().collect()),
            _ => (self.followed.leader, Vec::new()),
        };
        Status {
            me: self.me,
            view: self.promise.view,
            leader,
            why: self.promise.why,
            end: self.tail.end(),
            begins: self.tail.begins(),
            stable: self.stable,
            others,
            members: self.lists.newest().clone(),
            is_changing: !self.has_begun(),
            is_sure: self.unsure.is_none(),
            lost_before: self.followed.lost_before,
            counts: self.counts,
        }
    }

    /// Says whether a leader may order this list now: its view has begun, the list before is stable, and any
    /// quorum of the one meets any quorum of the other (thesis, 4.1, and the erratum of 2015).
    pub fn may_change(&self, to: &Members) -> bool {
        self.has_begun() && self.lists.newest().is_next_to(to)
    }

    /// Says whether it leads, and both the view's own entry and the list of members are stable.
    fn has_begun(&self) -> bool {
        let Role::Leading(leading) = &self.role else { return false };
        self.stable >= leading.first && self.lists.newest_at() <= self.stable
    }

    /// It joined when these were the members.
    pub fn joined(&mut self, members: Members) {
        self.lists.joined = Some(members);
    }

    /// The members that are to be connected: a member that the newest list lacks hears that this is stable,
    /// one that joins must reach those that feed it, although its log begins with lists of before them, and
    /// a log that lost its end may lack members that vote.
    fn connected(&self) -> Members {
        let newest = self.lists.newest();
        let mut all: Vec<Member> = newest.iter().cloned().collect();
        let feeding = self.lists.joined.as_ref().filter(|_| newest.get(self.me).is_none());
        let feeding = feeding.into_iter().flat_map(Members::iter);
        let others = self.lists.at(self.stable).iter().chain(feeding);
        let younger = self.younger(self.lists.kept.iter().chain(&self.lists.told));
        for member in others.chain(younger.flat_map(Electorate::voters)) {
            if all.iter().all(|other| other.id != member.id) {
                all.push(Member { votes: false, ..member.clone() });
            }
        }
        Members::new(all).unwrap_or_else(|| newest.clone())
    }

    /// The electorates whose newest list is younger than what is stable here.
    fn younger<'a>(&self, of: impl Iterator<Item = &'a Electorate>) -> impl Iterator<Item = &'a Electorate> {
        let stable = self.entry_at(self.lists.stable_at());
        of.filter(move |electorate| electorate.is_younger(stable))
    }

    fn entry_at(&self, position: LogPosition) -> EntryId {
        EntryId { view: self.tail.view_at(position).unwrap_or_default(), position }
    }

    /// Remembers who may vote by the lists of the log. While the log may lack entries that were acknowledged,
    /// it may lack lists, so an older one takes no place.
    fn keep_electorate(&mut self, out: &mut Vec<Output>) {
        let of_log = self.lists.electorate(self.entry_at(self.lists.newest_at()));
        let lists = &mut self.lists;
        let wanted = match (self.unsure, lists.kept.clone(), of_log) {
            (None, _, of_log) => of_log,
            (Some(_), Some(kept), Some(mut of_log)) if of_log.is_younger(kept.at) => {
                of_log.is_settled = kept.is_settled;
                Some(of_log)
            }
            (Some(_), kept, _) => kept,
        };
        if wanted != lists.kept && !dropped(Rule::ListNotSaved) {
            lists.kept = wanted;
            self.save_electorate(out);
        } else if lists.saving.is_none() {
            lists.cover();
        }
    }

    fn save(&self, out: &mut Vec<Output>) {
        let Promise { number, view, .. } = self.promise;
        out.push(Output::Save(number, view, self.lists.kept.clone()));
    }

    /// The position up to which the own disk has the log and, of its lists, the electorate.
    fn durable(&self) -> LogPosition {
        if self.unsure.is_some() && self.lists.saving.is_some() {
            return LogPosition::ZERO;
        }
        let remembered = self.lists.remembered_upto();
        remembered.map_or(self.written.position, |upto| upto.min(self.written.position))
    }

    /// Remembers, before it acknowledges anything, that what is remembered may not be the newest.
    fn unsettle(&mut self, out: &mut Vec<Output>) {
        if let Some(kept) = self.lists.kept.as_mut().filter(|kept| self.unsure.is_some() && kept.is_settled) {
            kept.is_settled = false;
            self.save_electorate(out);
        }
    }

    fn save_electorate(&mut self, out: &mut Vec<Output>) {
        self.promise.number += 1;
        self.lists.saving = Some(self.promise.number);
        self.save(out);
    }

    fn packet(&mut self, now: Now, from: MemberId, bytes: &[u8], out: &mut Vec<Output>) {
        let Ok(packet) = Packet::decode(bytes) else {
            self.counts.damaged += 1;
            return;
        };
        if packet.number() > self.number_max() {
            self.counts.jumps += 1;
            return;
        }
        if !self.may_hear(from, &packet) {
            self.counts.unlisted += 1;
            return;
        }
        match packet {
            Packet::Ask { number, end, is_handed } => self.asked(now, from, (number, end, is_handed), out),
            Packet::May { number, is_granted, promised } => {
                self.hear(promised);
                match is_granted {
                    true => self.may(now, from, number, out),
                    false => self.may_not(now, number),
                }
            }
            Packet::Vote { view, end } => self.vote(now, from, view, end, out),
            Packet::Voted { view, vote } => self.voted(now, from, view, vote, out),
            Packet::Append(append) => self.append(now, from, append, out),
            Packet::Acked { view, round, durable } => self.acked(now, from, view, (round, durable), out),
            Packet::Missing { view, round, log } => self.missing(now, from, view, (round, &log), out),
            Packet::Higher { view } => self.refused(now, view, out),
            Packet::TakeOver { view } => self.take_over(now, from, view, out),
            Packet::Learns { view, electorate } => self.learns(now, from, view, electorate, out),
            Packet::AskEnd { view, process } => self.say_end(from, view, process, out),
            Packet::End { view, process, end } => self.end_said(from, (view, process), end, out),
            Packet::Lost { view, needs, address } => {
                let is_leader = view == self.promise.view && self.followed.leader == Some(from);
                // The leader may not know yet what is here.
                if is_leader && needs > self.stable {
                    self.followed.lost_before = Some(needs);
                    out.push(Output::Lost(view, address));
                }
            }
        }
    }

    /// Says whether a packet counts. One of a member that is on no list here counts only where the lists here
    /// may be old ones: it asks for this member's vote, or leads, and this member knows of no leader. What
    /// such a leader calls stable counts once a list that has it has come. A member that makes a quorum by
    /// itself gives way to the leader of a later view: others have elected that one by a later list, and its
    /// own directory is a copy of before. Where it needs others, they refuse its start.
    fn may_hear(&self, from: MemberId, packet: &Packet) -> bool {
        let is_led = match (&self.role, packet) {
            (Role::Leading(_), Packet::Append(append)) => {
                !self.is_alone() || append.view.number <= self.promise.view.number
            }
            (Role::Leading(_), _) => true,
            _ => {
                let Followed { leader, gone, is_silent, .. } = self.followed;
                leader.is_some_and(|leader| leader != from) && gone.is_none() && !is_silent
            }
        };
        self.is_listed(from)
            || self.followed.leader == Some(from)
            || matches!(packet, Packet::Ask { .. })
            || matches!(packet, Packet::Vote { .. } | Packet::Append(_)) && !is_led
    }

    /// Says whether a member is on a list that may count here.
    fn is_listed(&self, id: MemberId) -> bool {
        let is_on = self.lists.newest().get(id).is_some() || self.connected().get(id).is_some();
        is_on || dropped(Rule::UnlistedCounts)
    }

    /// The highest number of a view that is believed. Views begin one after the other, so a number far above
    /// all that were heard is damage, and behind the last number that there is no view can follow. A member
    /// whose log is empty has heard of no view yet: its group may have had any number of them.
    fn number_max(&self) -> u32 {
        match self.tail.end().view == ViewId::NONE {
            true => ViewId::NUMBER_MAX,
            false => self.next_number(VIEWS_AHEAD_MAX),
        }
    }

    /// The number that is so many views after all that were heard of.
    fn next_number(&self, step: u32) -> u32 {
        let known = self.heard.number.max(self.promise.view.number);
        known.saturating_add(step).min(ViewId::NUMBER_MAX)
    }

    /// Someone has told of a view of this number.
    fn hear(&mut self, number: u32) {
        self.heard.number = self.heard.number.max(number);
    }

    /// Promises a view. Gives the number under which it is saved.
    fn promise(&mut self, view: ViewId, out: &mut Vec<Output>) -> u64 {
        (self.promise.view, self.promise.owed, self.promise.backed) = (view, None, None);
        self.hear(view.number);
        self.promise.number += 1;
        self.save(out);
        self.promise.number
    }

    /// Appends an entry to the log as it is known here. Gives its position.
    fn push(&mut self, entry: Sealed) -> LogPosition {
        let members = (entry.kind == KIND_MEMBERS).then(|| Members::decode(&mut Reader::new(&entry.payload)));
        let position = self.tail.push(entry);
        // A list that cannot be read was refused before it was ordered, or is damage that applying it finds.
        if let Some(Ok(members)) = members {
            self.lists.push(position, members);
        }
        position
    }

    /// Everything up to a position is stable.
    fn stabilize(&mut self, upto: LogPosition, out: &mut Vec<Output>) {
        if upto <= self.stable {
            return;
        }
        let stamp = self.tail.stamp_at(upto).expect("entries that are not stable are in memory");
        (self.stable, self.stable_stamp) = (upto, stamp);
        self.lists.stable(upto);
        out.push(Output::Stable(upto, stamp));
    }

    /// Ends whatever it wanted to become, or was.
    fn stand_down(&mut self, now: Now, out: &mut Vec<Output>) {
        match std::mem::replace(&mut self.role, Role::Following) {
            Role::Leading(leading) => {
                self.counts.deposed += 1;
                out.push(Output::Deposed(leading.view));
                self.followed = Followed::nobody(now);
                self.wait_before_asking(now);
            }
            Role::Asking(_) | Role::Candidate(_) => self.wait_before_asking(now),
            Role::Following => {}
        }
    }

    fn send(to: MemberId, packet: &Packet, out: &mut Vec<Output>) {
        out.push(Output::Send(to, Arc::new(packet.encode())));
    }

    fn send_to_all(&self, packet: &Packet, to: impl Iterator<Item = MemberId>, out: &mut Vec<Output>) {
        let bytes = Arc::new(packet.encode());
        out.extend(to.filter(|id| *id != self.me).map(|id| Output::Send(id, bytes.clone())));
    }
}

/// A member is there that was heard so long ago at most, in microseconds: many heartbeats.
pub const HEARD_US: u64 = 1_000_000;

/// Views that a packet may be ahead of all that were heard of: one a minute for six weeks. A member that was
/// away for longer joins with an empty directory.
pub const VIEWS_AHEAD_MAX: u32 = 1 << 16;

/// A leader that is there sends something in as many intervals.
const BEATS_MISSED: u64 = 3;

impl Sequencer for Quorum {
    fn leader(&self) -> Option<&Member> {
        let is_heard = matches!(self.role, Role::Following) && self.followed.gone.is_none();
        self.lists.newest().get(self.followed.leader.filter(|_| is_heard)?)
    }

    fn is_heard(&self, now: Now) -> bool {
        now.since_us(self.followed.heard) <= BEATS_MISSED * self.config.heartbeat_us
    }

    fn unled_us(&self, now: Now) -> Option<u64> {
        let Followed { leader, gone, said, .. } = self.followed;
        let silent_us = now.since_us(said);
        let is_led = leader.is_some() && gone.is_none() && silent_us <= HEARD_US;
        (!is_led && !matches!(self.role, Role::Leading(_))).then_some(silent_us)
    }

    fn status(&self) -> Option<Status> {
        Some(Quorum::status(self))
    }

    fn members(&self) -> Option<&Members> {
        Some(self.lists.newest())
    }

    fn stable(&self) -> LogPosition {
        self.stable
    }

    fn entry_of(&self, stamp: Stamp) -> Option<EntryId> {
        let behind = self.stable_stamp.0.checked_sub(stamp.0)?;
        let position = LogPosition(self.stable.0.checked_sub(behind)?);
        Some(EntryId { view: self.tail.view_at(position)?, position })
    }

    fn tentative(&self) -> Vec<Sealed> {
        self.tail.from(self.stable.next(), usize::MAX)
    }

    fn handle(&mut self, now: Now, input: Input<'_>, out: &mut Vec<Output>) {
        self.excuse_lateness(now);
        let list = |quorum: &Quorum| {
            let lists = &quorum.lists;
            let told = lists.told.as_ref().map(|told| told.at);
            let is_sure = quorum.unsure.is_none();
            (lists.newest_at(), lists.newest_at() <= quorum.stable, quorum.written.cuts, told, is_sure)
        };
        let before = list(self);
        let is_time = matches!(input, Input::Time);
        match input {
            Input::Submit(entry) => self.submit(now, entry, out),
            Input::Packet(from, bytes) => self.packet(now, from, bytes, out),
            Input::Written(cuts, position) => self.written(now, cuts, position, out),
            Input::Saved(number) => self.saved(now, number, out),
            Input::Found(from, found) => self.found(now, from, found, out),
            Input::Gone(member) => self.gone(now, member),
            Input::MoveLead(to) => self.move_lead(now, to, out),
            Input::StandDown => self.stand_down(now, out),
            Input::Confirm(id) => self.confirm(now, id, out),
            Input::Ready(is_ready) => self.is_ready = is_ready,
            Input::Time => {}
        }
        self.time(now, is_time, out);
        if before != list(self) || !std::mem::replace(&mut self.has_told_members, true) {
            self.keep_electorate(out);
            out.push(Output::Members(self.connected()));
        }
    }

    fn deadline(&self) -> Option<Now> {
        match &self.role {
            Role::Following => self.silent_at().into_iter().chain(self.ask_at()).min(),
            Role::Asking(asking) => Some(asking.until),
            Role::Candidate(candidate) => candidate.until,
            Role::Leading(leading) => leading.deadline(&self.config, self.me, self.lists.newest()),
        }
    }
}

impl Quorum {
    /// Does what is due. Silence is judged where the host gives the time, and not behind a packet: others may
    /// have come that it has not handed over yet.
    fn time(&mut self, now: Now, is_time: bool, out: &mut Vec<Output>) {
        if is_time && self.silent_at().is_some_and(|at| at <= now) {
            self.followed.is_silent = true;
        }
        let judges = is_time || self.followed.leader.is_none() || self.followed.gone.is_some();
        match &self.role {
            Role::Following if judges && self.ask_at().is_some_and(|at| at <= now) => {
                self.ask(now, false, out)
            }
            Role::Asking(Asking { until, .. }) if *until <= now => self.stand_down(now, out),
            Role::Candidate(Candidate { until: Some(until), .. }) if *until <= now => {
                self.wait_is_over(now, out);
            }
            Role::Leading(_) => self.lead_on(now, is_time, out),
            _ => {}
        }
    }

    /// A process that was not run for a while has heard nothing meanwhile: packets may be waiting. It judges
    /// nobody before it has had time to take these.
    fn excuse_lateness(&mut self, now: Now) {
        let slack = self.config.deadline_us / 4;
        if self.deadline().is_none_or(|due| now.since_us(due) <= slack) {
            return;
        }
        let excused = |heard: Now, us: u64| Now(heard.0.max((now.0 + slack).saturating_sub(us)));
        let silence_us = self.silence_us();
        if let Role::Leading(leading) = &mut self.role {
            leading.excuse(&self.config, excused);
        }
        self.followed.heard = excused(self.followed.heard, silence_us);
    }

    /// When the leader is silent, if it says nothing and that is not known yet.
    fn silent_at(&self) -> Option<Now> {
        let Followed { leader, gone, heard, is_silent, .. } = self.followed;
        let is_heard = leader.is_some() && gone.is_none() && !is_silent;
        is_heard.then(|| heard.plus_us(self.silence_us()))
    }

    /// The silence after which the leader is suspected, in microseconds.
    fn silence_us(&self) -> u64 {
        self.heard.pauses.deadline_us(&self.config)
    }
}
