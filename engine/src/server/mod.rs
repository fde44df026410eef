//! A server: the rooms of the engine, wired.
//!
//! Its doors: [`Recovery::finish`] (a server begins with what was recovered), [`Server::handle`] with effects
//! appended to a buffer that the caller owns, [`Server::deadline`], getters. It does no input or output:
//! reading a page, writing the log and installing pages are effects that come back as inputs.
//!
//! A server is a replica that follows the order, and leads while the sequencer says so. The invariant is
//! *stable before visible*: what a leader orders is judged and applied at once, tentatively; no reply, page,
//! stream or watermark shows it before it is stable. Every other entry is applied once it is stable, the one
//! by which a view begins included: the leader is made behind it. A leader that is deposed is thrown away
//! with its replica, and another server is recovered.
//!
//! Its parts are owned in the order in which they reach each other: `Sessions` work on `Cx`, of which the
//! leader has `Work`, with replica, pages and sequencer.

mod execute;
mod inside;
mod membership;
mod recover;
mod suffix;

use std::sync::Arc;

use tercel_wire::frame::Kind;
use tercel_wire::id::{ClientId, LogPosition, MemberId, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::lent::SharedBody;
use tercel_wire::message::{Refusal, Request};

pub use crate::consult::{Consult, Consulted};
pub use crate::effect::{
    ArchiveState, Audit, Audited, Audits, Checkpoint, CollectConfig, Conn, Effect, Effects, HostStats, Input,
    LogRoom, NetworkState, PageUpdate, Proof, ServerConfig, ServerStats, SpaceWarning, Unread, Who, store,
};
pub use inside::{Local, LocalConfig};
pub use membership::{MEMBERS_VERSION, Membership, OPERATOR, REMOVED};
pub use recover::{LogEnds, Recovery, RecoveryError};

use crate::leader::{Flight, Leader, Work};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::order::{self, Lead, Output, Sealed};
use crate::pages::image::CachedImage;
use crate::pages::install::ToStore;
use crate::pages::reads::Waiter;
use crate::replica::entry::{Entry, kind};
use crate::rights::Seats;
use crate::rpc::ReplyBody;
use crate::sessions::health::{Drain, End};
use crate::sessions::{Cx, Sessions};
use crate::time::Now;
use recover::Recovered;
use suffix::Suffix;

/// A replica that follows the order, and leads while its sequencer says so.
#[derive(Debug)]
pub struct Server {
    sessions: Sessions,
    cx: Cx,
    /// The view that is to begin here once its own entry is stable.
    begins: Option<ViewId>,
    /// The place of the server in a group; none if it is alone.
    membership: Option<Membership>,
    suffix: Suffix,
}

/// A request that came by a shorter way than as a message.
#[derive(Debug)]
pub struct Express<'a> {
    /// The client, whose connection is in use.
    pub client: ClientId,
    /// Where the client was found last: its host keeps that from one request to the next. Any number will do
    /// at first.
    pub place: &'a mut usize,
    /// The rest of its caller's time, in microseconds; 0 is no limit.
    pub left_us: u32,
    /// The body as it is in the message.
    pub body: &'a [u8],
    /// All of the body and its bytes, where it lies in memory that the peer may write; of that `body` is how
    /// it begins. It comes as a whole if it cannot be used so.
    pub shared: Option<(SharedBody<'a>, usize)>,
}

impl Server {
    /// Takes in what happened and appends what is to be done.
    pub fn handle(&mut self, now: Now, input: Input<'_>, out: &mut Effects) {
        self.with_effects(out, |server| server.take_in(now, input));
    }

    /// Runs a step, and appends its effects to `out`.
    fn with_effects<R>(&mut self, out: &mut Effects, step: impl FnOnce(&mut Server) -> R) -> R {
        std::mem::swap(&mut self.cx.out, out);
        let result = step(self);
        std::mem::swap(&mut self.cx.out, out);
        result
    }

    fn take_in(&mut self, now: Now, input: Input<'_>) {
        self.cx.work.now = now;
        if self.cx.end == End::Replaced {
            return;
        }
        let is_working = self.cx.end == End::Working;
        match input {
            Input::Frame(conn, header, body)
                if matches!(header.kind, Kind::Join | Kind::Prove | Kind::Packet) =>
            {
                self.member_frame(conn, &header, body);
            }
            Input::Connected(conn, who) => self.sessions(|s, cx| s.connected(conn, &who, cx)),
            Input::Frame(conn, header, body) => self.sessions(|s, cx| s.frame(conn, &header, body, cx)),
            Input::Alive(conn) => self.sessions.alive(conn, now),
            Input::Disconnected(conn) => {
                self.member_left(conn);
                self.sessions(|s, cx| s.disconnected(conn, cx));
            }
            Input::Reached(conn) => self.sessions(|s, cx| s.reached(conn, cx)),
            Input::NoRoom(conn, why) => {
                self.sessions(|s, cx| s.turn_away(conn, Refusal::FULL, why, cx));
            }
            Input::Challenged(conn, said) => self.sessions(|s, cx| s.challenged(conn, said, cx)),
            Input::StartSaved(member, started) => self.start_saved(member, started),
            Input::Answered(member, started, earlier) => self.answered(member, started, earlier),
            Input::Heard(member, bytes) => {
                if self.membership.as_ref().is_some_and(|group| group.hears(member)) {
                    self.sequence(order::Input::Packet(member, bytes));
                }
            }
            Input::Vouched(conn, is_so) => self.sessions(|s, cx| s.vouched(conn, is_so, cx)),
            Input::Packet(from, bytes) => self.sequence(order::Input::Packet(from, bytes)),
            Input::RefusedBy(member, text) => {
                self.cx.refused = Some((now, format!("member {member} says: {text}")));
            }
            Input::Written(cuts, position) => self.written(cuts, position),
            Input::Saved(number) => self.sequence(order::Input::Saved(number)),
            Input::FoundLog(from, found) => {
                self.sessions(|s, cx| s.found_log(from, &found, cx));
                self.sequence(order::Input::Found(from, found));
            }
            Input::Gone(member) => self.sequence(order::Input::Gone(member)),
            Input::Copied(view, end) => self.copied(view, end),
            Input::MoveLead(to) => self.sequence(order::Input::MoveLead(to)),
            Input::Time if !is_working => self.sequence(order::Input::Time),
            Input::DiskFull(full) if !is_working => self.cx.condition.disk_full = full,
            Input::Drain if !is_working => self.cx.condition.refuse_calls(),
            // There is no replica meanwhile.
            _ if !is_working => {}
            Input::Read(view, page, result) if self.is_answered(view) => {
                self.sessions(|s, cx| s.page_read(page, result, cx));
            }
            Input::Installed(view) if self.is_answered(view) => self.installed(),
            Input::Pinned(view, pin, result) if self.is_answered(view) => {
                self.sessions(|s, cx| s.pinned(pin, result, cx));
            }
            Input::PinnedRead(view, pin, result) if self.is_answered(view) => {
                self.sessions(|s, cx| s.pinned_read(pin, result, cx));
            }
            Input::Ran(view, done) if view == self.cx.joined => self.sessions(|s, cx| s.ran(done, cx)),
            Input::Says(view, id, said) if view == self.cx.joined => {
                self.sessions(|s, cx| s.says(id, said, cx));
            }
            Input::Consulted(view, consult, answer) if view == self.cx.joined => self.sessions(|s, cx| {
                s.lead(cx, |leader, work| leader.consulted(&consult, answer, work));
            }),
            Input::Violated(view, id, violation) if view == self.cx.joined => {
                self.sessions(|s, cx| s.violated(id, violation, cx));
            }
            // The answer to a predecessor.
            Input::Read(..)
            | Input::Installed(_)
            | Input::Pinned(..)
            | Input::PinnedRead(..)
            | Input::Ran(..)
            | Input::Says(..)
            | Input::Consulted(..)
            | Input::Violated(..) => {}
            Input::DiskFull(full) => {
                self.cx.condition.disk_full = full;
                self.relieve();
                if !full {
                    self.sessions(|s, cx| s.lead(cx, Leader::unstall));
                }
            }
            Input::LogRoom(room) => {
                if self.cx.work.pages.installer.log_has(room) {
                    self.sessions(|s, cx| s.lead(cx, Leader::unstall));
                }
            }
            Input::Drain if self.cx.condition.drain == Drain::Open => self.begin_drain(),
            Input::Drain => {}
            Input::Time => self.time(),
        }
        if self.cx.end != End::Recovering {
            self.go_on();
        }
        if self.sessions.waiting_until().is_some() {
            self.sessions(Sessions::greet_waiting);
        }
    }

    /// The next moment at which it needs the time.
    pub fn deadline(&self) -> Option<Now> {
        let waits = sooner(self.cx.work.sequencer.deadline(), self.sessions.waiting_until());
        let handed = match self.cx.condition.drain {
            Drain::Handing(until) if until > self.cx.work.now => Some(until),
            Drain::Handing(_) if self.cx.end == End::Working => Some(self.cx.work.now),
            _ => None,
        };
        if self.cx.end == End::Recovering {
            return sooner(waits, handed);
        }
        let leads = self.cx.leader.as_ref();
        let has_work = match leads {
            Some(leader) => leader.has_work(self.cx.work.pages.visible(), &self.cx.work.replica),
            None => !self.cx.work.replica.recent.is_index_complete(),
        };
        // Work in slices goes on as soon as other inputs have been handled.
        if has_work || self.has_calls() || self.sessions.has_work() || self.cx.work.pages.has_hidden() {
            return Some(self.cx.work.now);
        }
        let absent = leads.and_then(|l| l.deadline());
        sooner(sooner(waits, self.sessions.deadline()), sooner(absent, handed))
    }

    fn is_answered(&self, view: ViewId) -> bool {
        view == self.cx.joined || dropped(Rule::CreditsOldInstall)
    }

    /// Has the sessions do something, and does what the sequencer says to it.
    fn sessions<R>(&mut self, f: impl FnOnce(&mut Sessions, &mut Cx) -> R) -> R {
        let result = f(&mut self.sessions, &mut self.cx);
        self.heed();
        result
    }

    /// Tells the sequencer something.
    fn sequence(&mut self, input: order::Input<'_>) {
        self.cx.work.sequence(input);
        self.heed();
    }

    /// Does what the sequencer says.
    fn heed(&mut self) {
        // Most often that is nothing.
        if self.cx.work.said.is_empty() {
            return;
        }
        let mut said = std::mem::take(&mut self.cx.work.said);
        for output in said.drain(..) {
            match output {
                Output::Send(to, bytes) => self.say(to, bytes),
                Output::Append(position, entry) => {
                    self.suffix.append(position, &entry, self.cx.leader.is_some());
                    self.cx.condition.unwritten_since.get_or_insert(self.cx.work.now);
                    self.cx.out.push(Effect::Append(position, entry));
                    if dropped(Rule::StreamUnsynced) {
                        self.show_by_mistake();
                    }
                }
                Output::Cut(above) => {
                    self.suffix.cut(above);
                    // The stamps of what was cut are used again.
                    let last = self.suffix.last().unwrap_or(self.cx.work.replica.stamp);
                    self.cx.work.pages.written_at_most(last);
                    self.cx.out.push(Effect::Cut(above));
                    self.depose();
                }
                // A deposed leader's tentative entries may have the stamps of others.
                Output::Stable(..) if self.cx.end != End::Working => {}
                Output::Stable(position, stamp) => self.stable(position, stamp),
                Output::Leading(lead) => self.lead(lead),
                Output::Deposed(_) => self.depose(),
                Output::Confirmed(number, stamp) => {
                    self.sessions(|s, cx| s.confirmed(number, stamp, cx));
                }
                Output::Save(number, view, electorate) => {
                    self.cx.out.push(Effect::Save(number, view, electorate))
                }
                Output::Read(from, bytes) => self.cx.out.push(Effect::ReadLog(from, bytes)),
                Output::KeepFrom(position) => self.sessions.keep_log_from(position, &mut self.cx.out),
                Output::Sure => self.cx.out.push(Effect::Sure),
                Output::Lost(view, leader) => self.lost(view, leader),
                Output::Contradicted(leader, view, at) => {
                    let me = self.membership.as_ref().map_or(MemberId(0), |group| group.me);
                    self.cx.out.push(Effect::Stop(contradicted(me, leader, view, at)));
                }
                Output::Members(members) => self.cx.out.push(Effect::Members(members)),
            }
        }
        self.cx.work.said = said;
    }

    /// This node leads no more. Only a leader has applied entries that may be lost.
    fn depose(&mut self) {
        self.begins = None;
        if self.cx.leader.is_some() {
            self.cx.end = End::Deposed;
        }
    }

    /// Lets the replica of a deposed leader go: what it has applied may be lost. The order goes on, and the
    /// host recovers another replica, of everything that is stable now.
    fn leave(&mut self) {
        self.cx.end = End::Recovering;
        self.cx.leader = None;
        self.sessions.end_all(&mut self.cx.out);
        self.suffix.release(self.cx.work.sequencer.stable());
        self.suffix.refill(self.cx.work.sequencer.tentative());
        self.sequence(order::Input::Ready(false));
        if self.membership.as_ref().is_some_and(Membership::is_removed) {
            return self.cx.out.push(Effect::Stop(REMOVED.into()));
        }
        self.cx.out.push(Effect::Recover(self.suffix.stable()));
    }

    /// Goes on with a replica of everything up to the position that [`Effect::Recover`] named.
    ///
    /// # Errors
    /// If entries are missing that the checkpoint contains.
    pub fn rejoin(&mut self, now: Now, recovery: Recovery, out: &mut Effects) -> Result<(), RecoveryError> {
        let recovered = recovery.recovered()?;
        self.with_effects(out, |server| server.go_on_with(now, recovered));
        Ok(())
    }

    fn go_on_with(&mut self, now: Now, Recovered { config, replica, pages, horizon, .. }: Recovered) {
        self.cx.work.now = now;
        self.cx.work.seats = Seats::default();
        (self.cx.work.config, self.cx.work.replica, self.cx.work.pages) = (config, replica, pages);
        self.sessions = self.sessions.next(now, horizon, &mut self.cx.out);
        self.cx.condition = self.cx.condition.rejoined(now);
        // What is still to come was asked for by the replica that is gone.
        self.cx.joined.incarnation = self.cx.joined.incarnation.wrapping_add(1);
        self.cx.end = End::Working;
        // Meanwhile more has become stable, and was written.
        self.suffix.release(self.cx.work.sequencer.stable());
        self.suffix.written_last().into_iter().for_each(|stamp| self.cx.work.pages.written_upto(stamp));
        self.sequence(order::Input::Ready(true));
        self.go_on();
    }

    /// This node leads: the view's own entry is ordered, and the leader is made once it is stable.
    fn lead(&mut self, lead: Lead) {
        self.begins = Some(lead.view);
        let genesis = (lead.kept == Stamp::ZERO).then_some(Entry::Genesis);
        let begins = Entry::View { kept: lead.kept, lost: lead.is_unsure };
        if dropped(Rule::KeptAppliedTentatively) {
            self.suffix.release_by_mistake();
        }
        let mut stamp = lead.kept;
        for entry in genesis.into_iter().chain([begins]) {
            stamp = stamp.next();
            self.cx.work.stats.ordered += 1;
            let payload = Arc::new(entry.encode());
            let sealed = Sealed { stamp, view: lead.view, kind: entry.kind(), payload };
            self.sequence(order::Input::Submit(sealed));
        }
        if dropped(Rule::AnswersBeforeView) {
            self.suffix.release(LogPosition(u64::MAX));
        }
    }

    /// Applies an entry that another server ordered, or this one in an earlier view.
    fn apply(&mut self, entry: &Sealed) -> Result<Flight, String> {
        let wrong = |e: &dyn std::fmt::Display| format!("entry {} cannot be applied: {e}", entry.stamp);
        let decoded = Entry::decode(entry.kind, &entry.payload).map_err(|e| wrong(&e))?;
        let Work { replica, pages, .. } = &mut self.cx.work;
        let applied = replica.apply(entry.stamp, entry.view, &decoded, &mut pages.mob);
        let applied = applied.map_err(|e| wrong(&e))?;
        if let Some(first) = applied.pieces_from {
            pages.installer.commits_pieces(first, entry.stamp);
        }
        // Its client asks what became of it.
        let (op, is_call) = (applied.op, false);
        Ok(Flight { stamp: entry.stamp, op, is_call, changed: applied.changed.into() })
    }

    /// A node that does not lead applies stable entries, as far as there is room; the others wait as bytes.
    fn follow(&mut self) {
        if dropped(Rule::FollowerSkips) && !self.has_room() && self.suffix.next().is_some() {
            self.suffix.take();
        }
        while self.cx.work.replica.recent.is_index_complete()
            // The entry of a view writes nothing.
            && self.suffix.next().is_some_and(|next| next.kind == kind::VIEW || self.has_room())
            && let Some(entry) = self.suffix.take()
        {
            let was_member = self.is_member();
            match self.apply(&entry) {
                Ok(flight) => self.show(vec![flight]),
                Err(why) => return self.cx.out.push(Effect::Stop(why)),
            }
            if entry.kind == kind::MEMBERS && was_member && !self.is_member() {
                return self.cx.out.push(Effect::Stop(REMOVED.into()));
            }
            if let Ok(Entry::View { lost: true, .. }) = Entry::decode(entry.kind, &entry.payload) {
                self.cx.condition.unsure = Some((entry.view, self.cx.work.now));
            }
            if entry.kind == kind::VIEW {
                self.sessions(Sessions::end_readers);
            }
            if entry.kind == kind::VIEW && self.begins.take_if(|view| *view == entry.view).is_some() {
                self.cx.leader = Some(Leader::begin(entry.view, &self.cx.work));
            }
        }
    }

    /// Says whether the buffer of modified objects has room for one more entry. Versions without a place in
    /// the order are not counted: no install makes them fewer, only the entries that come.
    fn has_room(&self) -> bool {
        let mob = &self.cx.work.pages.mob;
        mob.bytes() - mob.bytes_pending() <= self.cx.work.config.mob_bytes
    }

    /// Everything up to the position, and the stamp of its entry, is stable.
    fn stable(&mut self, position: LogPosition, stamp: Stamp) {
        self.suffix.release(position);
        self.sessions.log_is_stable(position, stamp);
        let Some(leader) = &mut self.cx.leader else { return };
        let shown = leader.stable(stamp);
        self.show(shown);
    }

    /// Shows entries that are not stable: a rule dropped on purpose.
    fn show_by_mistake(&mut self) {
        let Some(leader) = &mut self.cx.leader else { return };
        let shown = leader.show_by_mistake();
        self.show(shown);
    }

    /// Makes entries visible: pages, then the stream, then what waited for them.
    fn show(&mut self, shown: Vec<Flight>) {
        shown.iter().for_each(|flight| self.cx.work.pages.show(flight.stamp, flight.changed.clone()));
        let visible = self.cx.work.pages.visible();
        self.cx.work.replica.prepares.shown(visible);
        // Connections that have lost a right end once that is visible; what they ask for is refused before.
        let rights_changed = self.cx.work.seats.have_changed(&self.cx.work.replica.access, visible);
        let is_regrouped = self.sessions(|s, cx| {
            s.show(&shown, cx);
            s.lead(cx, |leader, work| leader.shown(visible, work));
            if rights_changed {
                s.rights_changed(cx);
            }
            s.regrouped(visible, cx)
        });
        if is_regrouped {
            self.note_membership();
        }
    }

    /// The log is on this node's disk up to a position, as it was after so many cuts.
    fn written(&mut self, cuts: u32, position: LogPosition) {
        let last = self.suffix.written(cuts, position);
        last.into_iter().for_each(|stamp| self.cx.work.pages.written_upto(stamp));
        self.cx.condition.unwritten_since = (!self.suffix.is_written()).then_some(self.cx.work.now);
        self.sequence(order::Input::Written(cuts, position));
    }

    /// Handles the completion of an install.
    fn installed(&mut self) {
        if let Some(needed) = self.cx.work.pages.installed() {
            self.cx.work.replica.saved();
            self.cx.out.push(Effect::Truncate(needed));
        }
        self.sessions(|s, cx| s.lead(cx, Leader::unstall));
    }

    fn time(&mut self) {
        self.sequence(order::Input::Time);
        self.relieve();
        self.sessions(|s, cx| {
            s.tick(cx);
            s.lead(cx, |leader, work| {
                leader.end_absent(work);
                leader.go_on(work);
            });
            s.resume_some(cx);
            s.leave_some();
        });
        if self.cx.leader.is_none() {
            self.cx.work.replica.recent.index_pending(usize::MAX);
        }
        self.cx.work.pages.drop_hidden();
    }

    /// Runs follow-up work: applies stable entries, drives backups and installs.
    pub(crate) fn go_on(&mut self) {
        self.follow();
        self.sessions(|s, cx| {
            s.lead(cx, Leader::go_on_behind);
            s.drive_backup(cx);
        });
        let to_store = self.cx.work.pages.maybe_install(&mut self.cx.work.replica);
        self.store(to_store);
        self.drain();
        if self.cx.end == End::Deposed {
            self.leave();
        }
    }

    /// The server is to be stopped. The leader of a group hands the lead over before, so that its clients go
    /// on where another member leads, and none is refused.
    fn begin_drain(&mut self) {
        self.cx.condition.drain = match self.hand_over() {
            true => Drain::Handing(self.cx.work.now.plus_us(order::quorum::HAND_OVER_US)),
            false => Drain::Draining,
        };
    }

    /// While new calls are refused: notes the moment from which on none is under way, and up to where they
    /// have written. Clients that go on to commit do not put it off.
    fn drain(&mut self) {
        if matches!(self.cx.condition.drain, Drain::Handing(until) if self.is_handed_over(until)) {
            self.cx.condition.drain = Drain::Draining;
        }
        if self.cx.condition.drain == Drain::Draining
            && self.sessions.calls_under_way() == 0
            && self.cx.leader.as_ref().is_none_or(|leader| !leader.has_waiting())
        {
            self.cx.condition.drain = Drain::Ordered(self.cx.work.replica.stamp);
        }
    }

    /// Says whether new calls are refused, all earlier calls have ended, and their writes are visible.
    pub fn is_drained(&self) -> bool {
        match self.cx.condition.drain {
            Drain::Open => false,
            Drain::Ordered(upto) => upto <= self.cx.work.pages.visible(),
            // It no longer leads: its calls have ended with its sessions.
            Drain::Handing(until) => self.cx.end == End::Recovering && self.is_handed_over(until),
            Drain::Draining => self.cx.end == End::Recovering,
        }
    }

    fn store(&mut self, to_store: Option<ToStore>) {
        if let Some(ToStore { overfull: Some(page), .. }) = &to_store {
            // The log still has all of it.
            let text = format!(
                "the objects of page {page} do not fit into it, which is a defect of the server: report it"
            );
            return self.cx.out.push(Effect::Stop(text));
        }
        if let Some(ToStore { pages, upto, checkpoint, .. }) = to_store {
            self.cx.out.push(Effect::Install { view: self.cx.joined, pages, upto, checkpoint });
        }
        while let Some(page) = self.cx.work.pages.reads.next() {
            self.cx.work.pages.reads_asked += 1;
            self.cx.out.push(Effect::Read(self.cx.joined, page));
        }
    }

    /// Installs everything that is visible, batch after batch, ending with a checkpoint: for a clean stop.
    pub fn flush(&mut self, out: &mut Effects) {
        let to_store = self.cx.work.pages.flush(&mut self.cx.work.replica);
        self.with_effects(out, |server| server.store(to_store));
    }

    /// Says whether everything ordered is stored, so that recovery would replay nothing.
    pub fn is_flushed(&self) -> bool {
        self.cx.work.pages.is_flushed(&self.cx.work.replica)
    }

    /// Says whether a clean stop has nothing to wait for. A server that is alone stores all that is ordered.
    /// A member stores what was visible when the stop began: its log has the rest, and the others would go
    /// on writing for as long as it waits.
    pub fn may_stop(&self, begun: Stamp) -> bool {
        match (self.cx.end, self.cx.work.sequencer.status()) {
            (End::Working, None) => self.is_quiet() && self.is_flushed(),
            (End::Working, Some(_)) => self.is_flushed() || self.cx.work.pages.is_stored(begun),
            // There is no replica whose pages could be stored.
            _ => true,
        }
    }

    /// Everything up to this position of the log is stable, as far as is known since it was recovered.
    pub fn stable_upto(&self) -> LogPosition {
        self.suffix.stable()
    }

    pub fn space(&self) -> SpaceId {
        self.cx.work.space
    }

    /// Everything up to here is stable and visible.
    pub fn visible(&self) -> Stamp {
        self.cx.work.pages.visible()
    }

    /// The view that it leads, or the last view that it knows of.
    pub fn view(&self) -> ViewId {
        self.cx.leader.as_ref().map_or(self.cx.work.replica.view(), |leader| leader.view())
    }

    /// The time since a leader of its group was heard, in microseconds; none while one is, or it leads.
    pub fn unled_us(&self) -> Option<u64> {
        self.cx.work.sequencer.unled_us(self.cx.work.now)
    }

    /// The state of the order, if it is a member of a group.
    pub fn group_status(&self) -> Option<order::quorum::Status> {
        self.cx.work.sequencer.status()
    }

    /// Says whether it leads, and clients are answered.
    pub fn is_leading(&self) -> bool {
        self.cx.leader.is_some()
    }

    /// Says whether everything that was ordered is visible, no large transaction is under way and nothing is
    /// being installed: a moment to stop at.
    pub fn is_quiet(&self) -> bool {
        let no_large = self.cx.leader.as_ref().is_none_or(|leader| !leader.has_large());
        self.is_all_visible() && no_large && !self.cx.work.pages.installer.is_installing()
    }

    /// Says whether everything that was ordered is visible, and so stable.
    pub fn is_all_visible(&self) -> bool {
        self.cx.leader.as_ref().is_none_or(|leader| leader.is_all_visible())
    }

    /// Says whether no arrived transaction and no released tree remains to be ordered, whether or not a
    /// client still waits for it.
    pub fn is_idle(&self) -> bool {
        self.cx.leader.as_ref().is_none_or(|leader| leader.is_idle(&self.cx.work.replica))
    }

    /// Says whether the connection's client has greeted, and was not turned away.
    pub fn has_greeted(&self, conn: Conn) -> bool {
        self.sessions.has_greeted(conn)
    }

    /// The client of a connection, once it has greeted.
    pub fn client_of(&self, conn: Conn) -> Option<ClientId> {
        self.sessions.client_of(conn)
    }

    /// The connection of a client, if it has one.
    pub fn conn_of(&self, client: ClientId) -> Option<Conn> {
        self.sessions.conn_of(client)
    }

    /// Runs a request that came by a shorter way than as a message, if it may come so: appends the body of
    /// the response to `response`, and what is to be done besides to `out`. Gives false if the request is to
    /// come as a message; then nothing has changed. `local` is as for [`Server::run_calls`].
    #[inline]
    pub fn express(
        &mut self,
        now: Now,
        request: Express<'_>,
        local: &mut Local,
        response: &mut ReplyBody<'_>,
        out: &mut Effects,
    ) -> bool {
        let Express { client, place, left_us, body, shared } = request;
        let Ok(request) = Request::decode(body) else { return false };
        // A call that a follower passes on, and one at the end of the server, come as messages.
        if self.cx.end != End::Working || self.cx.leader.is_none() || self.cx.condition.is_draining() {
            return false;
        }
        if self.cx.work.config.audits == Audits::Calls {
            return false;
        }
        if self.cx.work.replica.access.is_judged()
            && !self.sessions.may_express((client, &mut *place), &{ request }, &mut self.cx.work)
        {
            return false;
        }
        self.cx.work.now = self.cx.work.now.max(now);
        let until = (left_us > 0).then(|| now.plus_us(left_us.into()));
        let services = &self.cx.work.config.services;
        // Others are given copies of the request: it stays in registers for the shortest way.
        let lent = match &shared {
            None => None,
            Some((shared, bytes)) => match services.lend(&{ request }, body, (shared, *bytes)) {
                Some(lent) if request.object.is_none() => Some(lent),
                _ => return false,
            },
        };
        match request.object {
            None => self.sessions.express(
                (client, place),
                (now, until),
                &request,
                (services, lent.as_ref()),
                response,
            ),
            // It is queued with the other operations, as a message.
            Some(_) if request.slot.is_some() => false,
            Some(_) => {
                let response = response.bytes();
                self.with_effects(out, |s| s.run_reading(now, client, &{ request }, local, response));
                true
            }
        }
    }

    /// The number of connected clients.
    pub fn sessions_count(&self) -> usize {
        self.sessions.count()
    }

    /// The warning about the space's room, if any, while this node leads.
    pub fn space_warning(&self) -> Option<SpaceWarning> {
        let (unsure, now) = (self.cx.condition.unsure, self.cx.work.now);
        let unsure = unsure.filter(|(_, since)| now.since_us(*since) <= limits::UNSURE_TOLD_US);
        let unsure = unsure.map(|(view, _)| SpaceWarning::MayBeLost { view: view.number });
        unsure.or_else(|| self.cx.leader.as_ref().and_then(|leader| leader.space_warning()))
    }

    /// Takes the counters that the process around it keeps, for the status it reports.
    pub fn set_host(&mut self, host: HostStats) {
        self.cx.host = host;
    }

    /// Counters.
    pub fn stats(&self) -> ServerStats {
        let Work { pages, stats, .. } = &self.cx.work;
        ServerStats { page_reads: pages.reads_asked, pages_installed: pages.pages_installed, ..*stats }
    }

    /// The last entry that was applied, visible or not.
    pub fn applied(&self) -> Stamp {
        self.cx.work.replica.stamp
    }

    /// The last entry applied, and a sum over ordered state: equal at every replica at equal stamps.
    pub fn digest(&self) -> (Stamp, u64) {
        (self.cx.work.replica.stamp, self.cx.work.replica.digest())
    }

    /// Renders the page at the visible stamp. `None` if it must be read from the store first: the read is
    /// asked for, and the caller calls again when it is answered.
    pub fn page(&mut self, page: PageId, out: &mut Effects) -> Option<Option<Arc<Vec<u8>>>> {
        match self.cx.work.pages.image(page) {
            CachedImage::Current(bytes) | CachedImage::Stale(bytes) => Some(bytes),
            CachedImage::Missing => {
                self.cx.work.pages.reads.wait_once(page, Waiter::Host);
                self.with_effects(out, |server| server.store(None));
                None
            }
        }
    }

    /// Renders a page at the visible stamp from its stored bytes, to compare replicas. Changes nothing.
    pub fn page_over(&self, page: PageId, stored: Option<Arc<Vec<u8>>>) -> Option<Arc<Vec<u8>>> {
        self.cx.work.pages.render(page, stored, self.cx.work.pages.visible())
    }

    /// Pages that have changed since they were stored, in order.
    pub fn pages_modified(&self) -> Vec<PageId> {
        self.cx.work.pages.mob.page_ids()
    }

    /// Bytes of entries that wait to be applied. While they are many, the host of a follower takes nothing
    /// more of what it is fed: it is sent again later.
    pub fn suffix_bytes(&self) -> usize {
        self.suffix.bytes()
    }
}

/// The words of a member that has what the group lacks.
fn contradicted(me: MemberId, leader: MemberId, view: ViewId, at: LogPosition) -> String {
    format!(
        "this member has commits that a quorum had acknowledged, and from entry {at} on member {leader}, which leads view \
         {view}, has others: a directory of the group was put back from an older copy, and the group goes on without those \
         commits. Decide which history is kept. To keep this one, stop all other members and run `tercel group rescue` on \
         this directory; to keep the group's, run `tercel group remove {me}`, let an empty directory join, and keep this \
         one until what is lost is known"
    )
}

/// The earlier of two moments, as far as there are any.
fn sooner(a: Option<Now>, b: Option<Now>) -> Option<Now> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
