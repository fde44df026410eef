//! A leader: it sends its followers entries, says when one is stable, and sees whether it still leads.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tercel_machine::mutant::{Rule, dropped};
use tercel_machine::time::Now;
use tercel_wire::id::{EntryId, LogPosition, MemberId, ViewId};

use super::follow::RANK_AS_BEFORE;
use super::members::{Member, Members};
use super::packet::{Append, Check, Contents, Packet, Vote, entry_bytes};
use super::silence::Pauses;
use super::tail::{Tail, up_to};
use super::{Config, HEARD_US, Other, Quorum, Role};
use crate::{Found, Lead, Output, Sealed};

/// The leader of a view.
#[derive(Debug)]
pub(super) struct Leading {
    pub(super) view: ViewId,
    /// The position of the view's own entry.
    pub(super) first: LogPosition,
    others: BTreeMap<MemberId, Progress>,
    /// Counts its packets.
    round: u64,
    /// The round that questions wait for, the questions, and those that came since.
    asked: Option<u64>,
    questions: Vec<u64>,
    next_questions: Vec<u64>,
    /// The position from which others were said to need the log.
    kept_from: LogPosition,
    /// The member that is to lead instead, and until when that is waited for.
    handing: Option<(MemberId, Now)>,
    /// When its own disk last had everything that is stable, or got on.
    pub(super) disk_moved: Now,
}

/// Another member, as the leader knows it.
#[derive(Debug)]
struct Progress {
    /// The next entry to send.
    next: LogPosition,
    /// The disk of the member has the leader's log up to there.
    durable: LogPosition,
    heard: Now,
    pauses: Pauses,
    sent: Now,
    /// The position up to which the member was told to compare what is stable.
    checked: LogPosition,
    /// The newest packet that it has answered.
    round: u64,
    /// Packets up to this one were sent before it was known what it lacks.
    void: u64,
    /// Packets of entries that its disk does not have: the last position, and bytes.
    flying: VecDeque<(LogPosition, usize)>,
    flying_bytes: usize,
    /// The entries that are read from the log for it begin there.
    reading: Option<LogPosition>,
    /// The log no longer has what it needs.
    is_lost: bool,
    /// The newest packet when the process of the member seemed to end.
    gone: Option<u64>,
    /// A packet that it is to answer at once, and when that was sent; the time that the last answer took.
    question: Option<(u64, Now)>,
    round_trip_us: Option<u64>,
}

impl Progress {
    fn new(next: LogPosition, now: Now) -> Progress {
        Progress {
            next,
            durable: LogPosition::ZERO,
            heard: now,
            pauses: Pauses::default(),
            sent: Now(0),
            checked: LogPosition::ZERO,
            round: 0,
            void: 0,
            flying: VecDeque::new(),
            flying_bytes: 0,
            reading: None,
            is_lost: false,
            gone: None,
            question: None,
            round_trip_us: None,
        }
    }

    fn flies(&mut self, last: LogPosition, bytes: usize, now: Now) {
        self.next = last.next();
        self.flying.push_back((last, bytes));
        self.flying_bytes += bytes;
        self.sent = now;
    }

    fn lands(&mut self, durable: LogPosition) {
        self.durable = self.durable.max(durable);
        while let Some((_, bytes)) = self.flying.pop_front_if(|(last, _)| *last <= durable) {
            self.flying_bytes -= bytes;
        }
    }

    /// The silence after which it does not count for the quorum of the leader, in microseconds.
    fn silence_us(&self, config: &Config) -> u64 {
        2 * self.pauses.deadline_us(config)
    }

    fn silent_at(&self, config: &Config) -> Now {
        self.heard.plus_us(self.silence_us(config))
    }

    /// It was heard, and has answered a packet.
    fn answers(&mut self, round: u64, now: Now, config: &Config) {
        self.pauses.heard(now, now.since_us(self.heard), config);
        self.heard = now;
        self.round = self.round.max(round);
        // An answer to an earlier packet may come behind the end of its process.
        self.gone.take_if(|gone| *gone < round);
        if let Some((_, asked)) = self.question.take_if(|(question, _)| *question <= round) {
            self.round_trip_us = Some(now.since_us(asked));
        }
    }

    fn rewind(&mut self, next: LogPosition, round: u64) {
        (self.next, self.void, self.flying_bytes) = (next, round, 0);
        self.flying.clear();
        (self.reading, self.is_lost) = (None, false);
    }
}

impl Leading {
    pub(super) fn others(&self) -> impl Iterator<Item = Other> {
        self.others.iter().map(|(id, progress)| {
            let Progress { durable, heard, round_trip_us, is_lost, .. } = *progress;
            let is_gone = progress.gone.is_some();
            Other { id: *id, durable, heard, round_trip_us, is_lost, is_gone }
        })
    }

    pub(super) fn deadline(&self, config: &Config, me: MemberId, members: &Members) -> Option<Now> {
        let beats = self.others.values().map(|other| other.sent.plus_us(config.heartbeat_us));
        let handing = self.handing.map(|(_, until)| until);
        beats.chain(self.alone_at(config, me, members)).chain(handing).min()
    }

    /// The member to give the lead to: it votes and has the longest log.
    fn best(&self, members: &Members) -> Option<MemberId> {
        let voters = self.others.iter().filter(|(id, _)| members.votes(**id));
        voters.max_by_key(|(_, other)| other.durable).map(|(id, _)| *id)
    }

    /// When no quorum has answered for too long; never, if it makes a quorum by itself.
    fn alone_at(&self, config: &Config, me: MemberId, members: &Members) -> Option<Now> {
        let silent = |id| match id == me {
            true => Now(u64::MAX),
            false => self.others.get(&id).map_or(Now(0), |other| other.silent_at(config)),
        };
        Some(quorum_has(members, silent)).filter(|at| *at < Now(u64::MAX))
    }

    /// A member's process seems to have ended.
    pub(super) fn gone(&mut self, member: MemberId) {
        if let Some(other) = self.others.get_mut(&member) {
            other.gone = Some(self.round);
        }
    }

    pub(super) fn excuse(&mut self, config: &Config, excused: impl Fn(Now, u64) -> Now) {
        for other in self.others.values_mut() {
            other.heard = excused(other.heard, other.silence_us(config));
        }
    }
}

impl Quorum {
    /// Leads a view.
    pub(super) fn lead(
        &mut self,
        now: Now,
        view: ViewId,
        is_unsure: bool,
        votes: BTreeMap<MemberId, Vote>,
        out: &mut Vec<Output>,
    ) {
        let first = self.tail.end().position.next();
        let others = self.lists.newest().iter().filter(|member| member.id != self.me);
        let others = others.map(|Member { id, .. }| {
            let next = votes.get(id).map_or(first, |vote| self.tail.common(&vote.log).next());
            (*id, Progress::new(next, now))
        });
        let leading = Leading {
            view,
            first,
            others: others.collect(),
            round: 0,
            asked: None,
            questions: Vec::new(),
            next_questions: Vec::new(),
            kept_from: LogPosition::ZERO,
            handing: None,
            disk_moved: now,
        };
        self.role = Role::Leading(Box::new(leading));
        self.counts.led += 1;
        self.unsettle(out);
        out.push(Output::Leading(Lead { view, kept: self.tail.end_stamp(), is_unsure }));
        self.send_entries(now, out);
    }

    /// Takes an entry of its own.
    pub(super) fn submit(&mut self, now: Now, entry: Sealed, out: &mut Vec<Output>) {
        // A leader that does not know yet that it is deposed may still submit.
        if !matches!(&self.role, Role::Leading(leading) if leading.view == entry.view) {
            return;
        }
        let position = self.push(entry.clone());
        out.push(Output::Append(position, entry));
        if self.lists.newest_at() == position {
            self.follow_list(now);
            // The list may make a quorum of those that have answered, and nobody else may ever answer.
            self.answer_questions(now, out);
        }
        self.send_entries(now, out);
        self.advance(now, out);
    }

    /// Members may have come or gone.
    fn follow_list(&mut self, now: Now) {
        let (members, before) = (self.lists.newest(), self.lists.at(self.stable));
        let Role::Leading(leading) = &mut self.role else { return };
        // A member that goes is fed until it can know so.
        leading.others.retain(|id, _| members.get(*id).or(before.get(*id)).is_some());
        let next = self.tail.end().position.next();
        for member in members.iter().filter(|member| member.id != self.me) {
            leading.others.entry(member.id).or_insert_with(|| Progress::new(next, now));
        }
    }

    /// Sends each member the entries that it lacks, as far as its window goes. Members that lack the same get
    /// the same packet.
    fn send_entries(&mut self, now: Now, out: &mut Vec<Output>) {
        let Quorum { role: Role::Leading(leading), tail, config, stable, .. } = self else { return };
        let Leading { view, others, round, handing, .. } = &mut **leading;
        // Nobody gets ahead of a member that is to lead.
        let handing = *handing;
        let is_served = |id: MemberId| handing.is_none_or(|(to, _)| to == id);
        let mut last_packet: Option<(LogPosition, LogPosition, usize, Arc<Vec<u8>>)> = None;
        for (id, other) in others.iter_mut().filter(|(id, _)| is_served(**id)) {
            while other.next <= tail.end().position
                && other.flying_bytes < config.window_bytes
                && other.reading.is_none()
                && !other.is_lost
            {
                if other.next < tail.begins() {
                    other.is_lost = true;
                    break;
                }
                if other.next < tail.first() {
                    other.reading = Some(other.next);
                    out.push(Output::Read(other.next, config.packet_bytes));
                    break;
                }
                let same = last_packet.as_ref().filter(|(from, ..)| *from == other.next);
                let (_, last, bytes, packet) = match same {
                    Some(same) => same.clone(),
                    None => {
                        let entries = tail.from(other.next, config.packet_bytes);
                        let last = LogPosition(other.next.0 + entries.len() as u64 - 1);
                        let bytes = entries.iter().map(entry_bytes).sum();
                        let packet = packet(tail, (*view, round), other.next, *stable, entries);
                        last_packet.insert((other.next, last, bytes, Arc::new(packet))).clone()
                    }
                };
                other.flies(last, bytes, now);
                out.push(Output::Send(*id, packet));
            }
        }
    }

    /// The log has answered what was read for members that lag.
    pub(super) fn found(&mut self, now: Now, from: LogPosition, found: Found, out: &mut Vec<Output>) {
        let Quorum { role: Role::Leading(leading), tail, config, stable, .. } = self else { return };
        let Leading { view, others, round, .. } = &mut **leading;
        let reading = others.iter_mut().filter(|(_, other)| other.reading == Some(from));
        let entries = match found {
            Found::BeginsLater => {
                return reading.for_each(|(_, other)| (other.reading, other.is_lost) = (None, true));
            }
            Found::NotNow => Vec::new(),
            // The log of before a cut may have had other entries there.
            Found::Entries(entries) => {
                let at = |i: usize| tail.view_at(LogPosition(from.0 + i as u64));
                let entries =
                    entries.into_iter().enumerate().take_while(|(i, entry)| at(*i) == Some(entry.view));
                up_to(entries.map(|(_, entry)| entry), config.packet_bytes)
            }
        };
        if entries.is_empty() {
            // It is read again when the member answers next: heartbeats go on.
            let is_over = !dropped(Rule::ReadForgotten);
            return reading.filter(|_| is_over).for_each(|(_, other)| other.reading = None);
        }
        for (id, other) in reading {
            other.reading = None;
            let last = LogPosition(from.0 + entries.len() as u64 - 1);
            let bytes = entries.iter().map(entry_bytes).sum();
            let packet = packet(tail, (*view, round), from, *stable, entries.clone());
            other.flies(last, bytes, now);
            out.push(Output::Send(*id, Arc::new(packet)));
        }
        self.send_entries(now, out);
    }

    /// Sends a member the word that the leader is there; it answers at once.
    fn beat(&mut self, now: Now, to: MemberId, out: &mut Vec<Output>) {
        let rank = self.rank_of(to);
        let Quorum { role: Role::Leading(leading), tail, stable, .. } = self else { return };
        let Some(other) = leading.others.get_mut(&to) else { return };
        leading.round += 1;
        other.sent = now;
        other.question.get_or_insert((leading.round, now));
        let needs = other.is_lost.then_some(other.next);
        let before = before(tail, other.next);
        let (view, round, entries) = (leading.view, leading.round, Vec::new());
        let above = other.checked.max(tail.comparable_above());
        let check = tail.sum(above, *stable).map(|sum| Check { above, sum });
        other.checked = *stable;
        let check = check.unwrap_or(Check { above: *stable, sum: 0 });
        let packet = Append { view, round, before, stable: *stable, rank, asks: true, check, entries };
        Quorum::send(to, &Packet::Append(packet), out);
        if let Some(needs) = needs {
            // One that is being removed leads until that is stable, and may need the receiver's disk for it.
            let lists = [self.lists.newest(), self.lists.at(self.stable)];
            let own = lists.into_iter().find_map(|list| list.get(self.me));
            let address = own.map_or(String::new(), |own| own.address.clone());
            Quorum::send(to, &Packet::Lost { view, needs, address }, out);
        }
    }

    /// The place of a follower among those that ask when this leader is gone: the one with the longest log
    /// first.
    fn rank_of(&self, member: MemberId) -> u8 {
        let Role::Leading(leading) = &self.role else { return RANK_AS_BEFORE };
        let Some(own) = leading.others.get(&member) else { return RANK_AS_BEFORE };
        let voters = leading.others.iter().filter(|(id, _)| self.lists.newest().votes(**id));
        let key = |durable: LogPosition, id: MemberId| (std::cmp::Reverse(durable), id);
        voters.filter(|(id, other)| key(other.durable, **id) < key(own.durable, member)).count() as u8
    }

    /// A follower's disk has the log up to there.
    pub(super) fn acked(
        &mut self,
        now: Now,
        from: MemberId,
        view: ViewId,
        (round, durable): (u64, LogPosition),
        out: &mut Vec<Output>,
    ) {
        let end = self.tail.end().position;
        let Role::Leading(leading) = &mut self.role else { return };
        let Some(other) = leading.others.get_mut(&from).filter(|_| leading.view == view) else { return };
        other.answers(round, now, &self.config);
        other.lands(durable.min(end));
        if other.is_lost && other.durable >= other.next {
            // It has taken a copy of the space.
            let (next, round) = (other.durable.next(), leading.round);
            other.rewind(next, round);
        }
        self.answer_questions(now, out);
        self.send_entries(now, out);
        self.offer_lead(from, out);
        self.advance(now, out);
    }

    /// A follower lacks the entry before those of a packet.
    pub(super) fn missing(
        &mut self,
        now: Now,
        from: MemberId,
        view: ViewId,
        (round, log): (u64, &Contents),
        out: &mut Vec<Output>,
    ) {
        let next = self.tail.common(log).next();
        let Role::Leading(leading) = &mut self.role else { return };
        let Some(other) = leading.others.get_mut(&from).filter(|_| leading.view == view) else { return };
        other.answers(round, now, &self.config);
        if round > other.void {
            // It may have lost what it acknowledged before.
            other.durable = other.durable.min(LogPosition(next.0 - 1));
            other.rewind(next, leading.round);
        }
        self.answer_questions(now, out);
        self.send_entries(now, out);
    }

    /// A member that may have lost entries asks for the end of the log.
    pub(super) fn say_end(&self, to: MemberId, view: ViewId, process: u64, out: &mut Vec<Output>) {
        let Role::Leading(leading) = &self.role else { return };
        if leading.view == view && leading.others.contains_key(&to) {
            let end = self.tail.end().position;
            Quorum::send(to, &Packet::End { view, process, end }, out);
        }
    }

    /// Counts disks: what a quorum of the newest list has is stable, if it reaches an entry of this view
    /// (Ongaro and Ousterhout 2014, 5.4.2).
    pub(super) fn advance(&mut self, now: Now, out: &mut Vec<Output>) {
        let Role::Leading(leading) = &self.role else { return };
        let members = match dropped(Rule::ListCountsWhenStable) {
            true => self.lists.at(self.stable),
            false => self.lists.newest(),
        };
        let disks = |id| match id == self.me {
            true => self.durable(),
            false => leading.others.get(&id).map_or(LogPosition::ZERO, |other| other.durable),
        };
        let upto = quorum_has(members, disks);
        let is_more = upto > self.stable && (upto >= leading.first || dropped(Rule::OlderViewCounted));
        if is_more {
            self.stabilize(upto, out);
            self.become_sure_if_refilled(out);
            if self.stable == self.tail.end().position {
                // No packet of entries may follow for long.
                self.tell_stable(now, out);
            }
            self.follow_list(now);
        }
        self.let_go(out);
        if self.stable >= self.lists.newest_at() && !self.lists.newest().votes(self.me) {
            self.hand_over(now, out);
        }
    }

    /// Tells followers what is stable; none answers.
    fn tell_stable(&mut self, now: Now, out: &mut Vec<Output>) {
        let Quorum { role: Role::Leading(leading), tail, stable, .. } = self else { return };
        let Leading { view, others, round, .. } = &mut **leading;
        let next = tail.end().position.next();
        let bytes = Arc::new(packet(tail, (*view, round), next, *stable, Vec::new()));
        for (id, other) in others.iter_mut().filter(|(_, other)| other.next == next) {
            other.sent = now;
            out.push(Output::Send(*id, bytes.clone()));
        }
    }

    /// Forgets in memory, and lets the host's log forget, what every member has.
    fn let_go(&mut self, out: &mut Vec<Output>) {
        let Quorum { role: Role::Leading(leading), tail, config, stable, written, .. } = self else { return };
        let sent = leading.others.values().map(|other| LogPosition(other.next.0 - 1)).min();
        let everywhere = sent.unwrap_or(*stable).min(*stable).min(written.position);
        tail.forget(everywhere, config.kept_bytes);
        // A member that lags much is fed from the log.
        tail.forget((*stable).min(written.position), 4 * config.kept_bytes);
        let needed = leading.others.values().map(|other| other.durable).min().unwrap_or(*stable).next();
        if needed.0 >= leading.kept_from.0 + KEPT_STEP {
            leading.kept_from = needed;
            out.push(Output::KeepFrom(needed));
        }
    }

    /// Hands the lead over to a member, which has a while for it.
    pub(super) fn move_lead(&mut self, now: Now, to: MemberId, out: &mut Vec<Output>) {
        let votes = self.lists.newest().votes(to);
        let Role::Leading(leading) = &mut self.role else { return };
        if leading.handing.is_none() && votes && leading.others.contains_key(&to) {
            leading.handing = Some((to, now.plus_us(HAND_OVER_US)));
            self.send_entries(now, out);
            self.offer_lead(to, out);
        }
    }

    /// Tells the member that is to lead so, once it has been sent everything. Should it lack some of that,
    /// it is told again with its next answer.
    fn offer_lead(&mut self, to: MemberId, out: &mut Vec<Output>) {
        let Role::Leading(leading) = &self.role else { return };
        let is_it = leading.handing.is_some_and(|(member, _)| member == to);
        if is_it && leading.others.get(&to).is_some_and(|other| other.next > self.tail.end().position) {
            Quorum::send(to, &Packet::TakeOver { view: leading.view }, out);
            self.promise.handed = Some((to, leading.view));
        }
    }

    /// A leader that no longer votes gives the lead to the member with the longest log.
    fn hand_over(&mut self, now: Now, out: &mut Vec<Output>) {
        let Role::Leading(leading) = &self.role else { return };
        if let Some(best) = leading.best(self.lists.newest()) {
            Quorum::send(best, &Packet::TakeOver { view: leading.view }, out);
            self.promise.handed = Some((best, leading.view));
        }
        self.stand_down(now, out);
    }

    /// Is asked whether it still leads.
    pub(super) fn confirm(&mut self, now: Now, id: u64, out: &mut Vec<Output>) {
        let Role::Leading(leading) = &mut self.role else { return };
        leading.next_questions.push(id);
        self.answer_questions(now, out);
    }

    /// Answers questions whose round a quorum has answered, and begins a round for those that came since.
    fn answer_questions(&mut self, now: Now, out: &mut Vec<Output>) {
        let stamp = self.stable_stamp;
        loop {
            let Role::Leading(leading) = &mut self.role else { return };
            if let Some(asked) = leading.asked {
                let rounds = |id| match id == self.me {
                    true => u64::MAX,
                    false => leading.others.get(&id).map_or(0, |other| other.round),
                };
                let is_answered = quorum_has(self.lists.newest(), rounds) >= asked;
                if !is_answered && !dropped(Rule::ConfirmWithoutRound) {
                    return;
                }
                leading.asked = None;
                out.extend(leading.questions.drain(..).map(|id| Output::Confirmed(id, stamp)));
            }
            if leading.next_questions.is_empty() {
                return;
            }
            std::mem::swap(&mut leading.questions, &mut leading.next_questions);
            // Packets of the round come after the question.
            leading.asked = Some(leading.round + 1);
            let others: Vec<MemberId> = leading.others.keys().copied().collect();
            others.into_iter().for_each(|id| self.beat(now, id, out));
        }
    }

    /// Says that it is there, and whether it still is: a leader that no quorum answers leads no longer.
    pub(super) fn lead_on(&mut self, now: Now, is_time: bool, out: &mut Vec<Output>) {
        let Role::Leading(leading) = &self.role else { return };
        if is_time && leading.alone_at(&self.config, self.me, self.lists.newest()).is_some_and(|at| at <= now)
        {
            return self.stand_down(now, out);
        }
        let beat_us = self.config.heartbeat_us;
        if leading.handing.is_some_and(|(_, until)| until <= now) {
            // It has not come about.
            let Role::Leading(leading) = &mut self.role else { return };
            leading.handing = None;
            return self.send_entries(now, out);
        }
        let due = leading.others.iter().filter(|(_, other)| other.sent.plus_us(beat_us) <= now);
        let due: Vec<MemberId> = due.map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.beat(now, id, out));
        self.look_at_disk(now, out);
    }

    /// Hands the lead over if the own disk hangs: what is stable then is so by the others' disks alone.
    fn look_at_disk(&mut self, now: Now, out: &mut Vec<Output>) {
        let is_behind = self.written.position < self.stable;
        let Role::Leading(leading) = &mut self.role else { return };
        if !is_behind || leading.disk_moved.plus_us(HAND_OVER_US) <= now {
            leading.disk_moved = now;
        } else {
            return;
        }
        if let Some(best) = leading.best(self.lists.newest()).filter(|_| is_behind) {
            self.move_lead(now, best, out);
        }
    }
}

/// The most that a quorum has reached.
fn quorum_has<T: Ord + Copy>(members: &Members, of: impl Fn(MemberId) -> T) -> T {
    let mut reached: Vec<T> = members.voters().map(of).collect();
    reached.sort_unstable_by(|a, b| b.cmp(a));
    reached[members.quorum() - 1]
}

/// The entry before one that the log has.
fn before(tail: &Tail, next: LogPosition) -> EntryId {
    let position = LogPosition(next.0 - 1);
    EntryId { view: tail.view_at(position).unwrap_or_default(), position }
}

/// Encodes entries of a leader, as its next packet.
fn packet(
    tail: &Tail,
    (view, round): (ViewId, &mut u64),
    from: LogPosition,
    stable: LogPosition,
    entries: Vec<Sealed>,
) -> Vec<u8> {
    *round += 1;
    let (before, rank) = (before(tail, from), RANK_AS_BEFORE);
    let check = Check { above: stable, sum: 0 };
    Packet::Append(Append { view, round: *round, before, stable, rank, asks: false, check, entries }).encode()
}

impl Other {
    /// Says whether it was heard a moment ago, and its process has not ended since.
    pub fn is_there(&self, now: Now) -> bool {
        !self.is_gone && now.since_us(self.heard) <= HEARD_US
    }
}

/// Time for another member to take the lead over, and for the own disk to get on, in microseconds.
pub const HAND_OVER_US: u64 = 1_000_000;

/// The host is told in steps of so many entries what others no longer need: it lets whole segments go.
const KEPT_STEP: u64 = 256;
