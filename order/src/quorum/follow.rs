//! A follower: it takes entries from its leader, cuts, acknowledges and releases.

use tercel_machine::mutant::{Rule, dropped};
use tercel_machine::time::Now;
use tercel_wire::id::{LogPosition, MemberId, ViewId};

use super::packet::{Append, Check, Packet};
use super::{Quorum, Role};
use crate::Output;

/// The leader of the view, as a member that does not lead knows it.
#[derive(Debug)]
pub(super) struct Followed {
    /// The leader; none until it has sent something in this view.
    pub(super) leader: Option<MemberId>,
    /// When it was heard last.
    pub(super) heard: Now,
    /// When its last packet came, for people; `heard` is put off where this process itself was late.
    pub(super) said: Now,
    /// The leader was silent for too long when the host last gave the time.
    pub(super) is_silent: bool,
    /// When its process seemed to end.
    pub(super) gone: Option<Now>,
    /// The place among those that ask for votes when it is gone.
    pub(super) rank: u8,
    /// Up to here the log is the leader's.
    matched: LogPosition,
    /// The number of the leader's newest packet.
    round: u64,
    /// The end of its log, as it said to this process, and when it was asked for that last.
    end: Option<LogPosition>,
    end_asked: Option<Now>,
    /// Attempts to lead since a leader was heard.
    pub(super) attempts: u32,
    /// The time before which no other attempt begins.
    pub(super) ask_after: Now,
    /// Set if this member needs the entry there, and the leader's log no longer has that.
    pub(super) lost_before: Option<LogPosition>,
}

impl Followed {
    /// No leader is known.
    pub(super) fn nobody(now: Now) -> Followed {
        Followed {
            leader: None,
            heard: now,
            said: now,
            is_silent: false,
            gone: None,
            rank: 0,
            matched: LogPosition::ZERO,
            round: 0,
            end: None,
            end_asked: None,
            attempts: 0,
            ask_after: now,
            lost_before: None,
        }
    }

    /// Another leader may come: this one's view is over.
    pub(super) fn leave_for(&mut self, now: Now) {
        let (attempts, ask_after) = (self.attempts, self.ask_after);
        *self = Followed { attempts, ask_after, ..Followed::nobody(now) };
    }
}

impl Quorum {
    /// A leader sends entries, or says that it is there.
    pub(super) fn append(&mut self, now: Now, from: MemberId, append: Append, out: &mut Vec<Output>) {
        let (view, promised) = (append.view, self.promise.view);
        if view.number < promised.number || from == self.me {
            return Quorum::send(from, &Packet::Higher { view: promised }, out);
        }
        if let Some(at) = self.contradicts(&append) {
            return self.contradicted(from, view, at, out);
        }
        self.stand_down(now, out);
        if view != promised {
            // Also if another candidate of this number was promised: a quorum has promised this one. Nothing
            // waits for the promise: an entry in the log promises its view, and without an entry of the view
            // nothing is acknowledged that counts.
            self.promise(view, out);
            self.followed = Followed::nobody(now);
        }
        let round = append.round;
        if self.followed.leader == Some(from) {
            self.heard.pauses.heard(now, now.since_us(self.followed.heard), &self.config);
        }
        let followed = &mut self.followed;
        (followed.leader, followed.heard, followed.said, followed.gone) = (Some(from), now, now, None);
        (followed.attempts, followed.ask_after, followed.is_silent) = (0, now, false);
        self.promise.backed = None;
        let followed = &mut self.followed;
        followed.round = followed.round.max(round);
        if append.rank != RANK_AS_BEFORE {
            followed.rank = append.rank;
        }
        self.unsettle(out);
        self.ask_end(now, from, out);
        // Everything stable is in every leader's log.
        let is_here = append.before.position <= self.stable || self.tail.has(append.before);
        if !is_here && !dropped(Rule::GapCounts) {
            let log = self.tail.contents(self.stable);
            return Quorum::send(from, &Packet::Missing { view, round, log }, out);
        }
        let last = LogPosition(append.before.position.0 + append.entries.len() as u64);
        if dropped(Rule::SureByFirstMatch) {
            self.followed.end.get_or_insert(last);
        }
        if !append.entries.is_empty() {
            self.followed.lost_before = None;
        }
        let (asks, stable, check) = (append.asks, append.stable, append.check);
        let is_empty = append.entries.is_empty();
        let is_new = self.take(append, out);
        // The leader's log has all that is stable here, even if the leader knows of less.
        self.followed.matched = self.followed.matched.max(last).max(self.stable);
        if self.is_listed(from) {
            self.release(stable, out);
        }
        if self.differs(check, stable) {
            return self.contradicted(from, view, stable, out);
        }
        if asks || !is_new && !is_empty {
            self.acknowledge(from, round, out);
        }
    }

    /// A leader has another entry than one that is stable here. Nobody stops for one that is on no list.
    fn contradicted(&self, leader: MemberId, view: ViewId, at: LogPosition, out: &mut Vec<Output>) {
        if self.is_listed(leader) {
            out.push(Output::Contradicted(leader, view, at));
        }
    }

    /// The first position at which a leader's packet has another entry than one that is stable here. What was
    /// stable is in the log of every later leader, unless a member has lost what it had acknowledged.
    fn contradicts(&self, append: &Append) -> Option<LogPosition> {
        let first = append.before.position;
        let views = [append.before.view].into_iter().chain(append.entries.iter().map(|entry| entry.view));
        let positions = (first.0..=self.stable.0).map(LogPosition);
        let is_other = |(at, view): &(LogPosition, ViewId)| {
            // The leader's log may begin behind the entry before, and then has no view of it.
            *view != ViewId::default() && self.tail.view_at(*at).is_some_and(|here| here != *view)
        };
        let found = positions.zip(views).find(is_other).map(|(at, _)| at);
        found.filter(|_| !dropped(Rule::DifferenceIgnored))
    }

    /// Says whether the entries that are to be compared are others here. What is not in memory is not
    /// compared.
    fn differs(&self, check: Check, stable: LogPosition) -> bool {
        let ours = self.tail.sum(check.above, stable).filter(|_| stable <= self.stable);
        check.above < stable && ours.is_some_and(|sum| sum != check.sum) && !dropped(Rule::DifferenceIgnored)
    }

    /// Takes the entries that are not here yet. Says whether there are any.
    fn take(&mut self, append: Append, out: &mut Vec<Output>) -> bool {
        let (mut position, mut is_new) = (append.before.position, false);
        for entry in append.entries {
            position = position.next();
            let here = self.tail.view_at(position);
            if position <= self.stable || here == Some(entry.view) {
                continue;
            }
            if here.is_some() {
                self.cut(LogPosition(position.0 - 1), out);
            }
            if position != self.tail.end().position.next() {
                // Only a log with a gap goes on so, where that rule is dropped.
                return is_new;
            }
            self.push(entry.clone());
            out.push(Output::Append(position, entry));
            is_new = true;
        }
        is_new
    }

    /// Cuts what no leader after this one can have kept.
    fn cut(&mut self, above: LogPosition, out: &mut Vec<Output>) {
        self.tail.cut(above);
        self.lists.cut(above);
        self.written.position = self.written.position.min(above);
        self.written.cuts += 1;
        self.counts.cuts += 1;
        out.push(Output::Cut(above));
    }

    /// Releases what is stable, as far as the log is known to be the leader's: beyond that there may be an
    /// old tail of its own.
    fn release(&mut self, stable: LogPosition, out: &mut Vec<Output>) {
        let upto = match dropped(Rule::StableBeyondMatched) {
            true => self.tail.end().position,
            false => self.followed.matched,
        };
        self.stabilize(stable.min(upto), out);
        self.become_sure_if_refilled(out);
        self.tail.forget(self.stable, self.config.kept_bytes);
    }

    /// Asks the leader for the end of its log, unless this member is sure of its own.
    fn ask_end(&mut self, now: Now, leader: MemberId, out: &mut Vec<Output>) {
        let Some(process) = self.unsure else { return };
        let Followed { end, end_asked, .. } = &mut self.followed;
        let is_due = end_asked.is_none_or(|at| now.since_us(at) >= self.config.stagger_us);
        if end.is_none() && is_due {
            *end_asked = Some(now);
            Quorum::send(leader, &Packet::AskEnd { view: self.promise.view, process }, out);
        }
    }

    /// The leader answers with the end of its log.
    pub(super) fn end_said(
        &mut self,
        from: MemberId,
        (view, process): (ViewId, u64),
        end: LogPosition,
        out: &mut Vec<Output>,
    ) {
        let is_leader = view == self.promise.view && self.followed.leader == Some(from);
        if is_leader && Some(process) == self.unsure {
            self.followed.end.get_or_insert(end);
            self.become_sure_if_refilled(out);
        }
    }

    /// Becomes sure, once the log has again what it may have lost: everything that this member has
    /// acknowledged and that is stable, or may become so.
    ///
    /// That is in the log of the view's leader, up to the end that the leader has said to this process:
    /// - Entries acknowledged to this leader were in its log when it sent them. In its view it cuts nothing,
    ///   so its end is behind them, if it was read after the last of them was sent. Processes before this one
    ///   acknowledge nothing after this one began; the answer names this process, so it was read later. The
    ///   end in any other packet is no bound: that may have been sent before, and come late.
    /// - Entries acknowledged to leaders of lower views, as far as they are stable or may become so by an
    ///   acknowledgement that is still on its way, are in the log with which this leader began (leader
    ///   completeness): its votes came from members that were sure, or from all.
    ///
    /// A new leader is asked anew, and so is any by a new process. The log is known to have that once an
    /// entry of the view is stable here behind that end, for what is stable here is matched. The mark goes
    /// only when the own disk has it too, for a crash before that loses it once more.
    ///
    /// A leader is sure behind its view's own entry: what it lost and no voter had is lost, and that entry
    /// says so.
    pub(super) fn become_sure_if_refilled(&mut self, out: &mut Vec<Output>) {
        let end = match &self.role {
            Role::Leading(leading) => Some(leading.first),
            _ => self.followed.end,
        };
        let Some(end) = end.filter(|_| self.unsure.is_some()) else { return };
        let is_of_view = self.tail.view_at(self.stable) == Some(self.promise.view);
        if is_of_view && self.stable >= end && self.written.position >= end {
            self.unsure = None;
            out.push(Output::Sure);
        }
    }

    /// Tells the leader what the own disk has of its log.
    fn acknowledge(&self, leader: MemberId, round: u64, out: &mut Vec<Output>) {
        let matched = self.followed.matched;
        let durable = if dropped(Rule::AckBeforeSync) { matched } else { self.durable().min(matched) };
        Quorum::send(leader, &Packet::Acked { view: self.promise.view, round, durable }, out);
    }

    /// The own disk has the log up to a position.
    pub(super) fn written(&mut self, now: Now, cuts: u32, position: LogPosition, out: &mut Vec<Output>) {
        if cuts != self.written.cuts && !dropped(Rule::StaleWritten) {
            return;
        }
        let position = position.min(self.tail.end().position);
        let has_moved = position > self.written.position;
        self.written.position = self.written.position.max(position);
        self.become_sure_if_refilled(out);
        if let Role::Leading(leading) = &mut self.role
            && has_moved
        {
            leading.disk_moved = now;
        }
        self.report_disk(now, out);
    }

    /// The own disk may have more that counts.
    pub(super) fn report_disk(&mut self, now: Now, out: &mut Vec<Output>) {
        match (&self.role, self.followed.leader) {
            (Role::Leading(_), _) => self.advance(now, out),
            (_, Some(leader)) => self.acknowledge(leader, self.followed.round, out),
            (_, None) => {}
        }
    }

    /// A member's process seems to have ended.
    pub(super) fn gone(&mut self, now: Now, member: MemberId) {
        self.candidate_gone(member);
        if let Role::Leading(leading) = &mut self.role {
            leading.gone(member);
        } else if self.followed.leader == Some(member) {
            self.followed.gone.get_or_insert(now);
        }
    }
}

/// In packets that name no rank.
pub(super) const RANK_AS_BEFORE: u8 = u8::MAX;
