//! The connections of other members, and what they say.
//!
//! A member greets with the identity of its group and its own, and with the number of its process's
//! start. What votes is the identity, never a name or an address. A connection is a member's once it has
//! proven that it has the group's secret, and once the start that it names is durable here. The one place
//! where it becomes so is [`Server::count`].

use std::collections::BTreeMap;
use std::sync::Arc;

use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{EntryId, MemberId, SpaceId, ViewId};
use tercel_wire::message::{FromClient, Join, Refusal};

use super::Server;
use crate::effect::{Conn, Effect};
use crate::mutant::{Rule, dropped};
use crate::order;
use crate::order::quorum::packet::is_sign_of_life;
use crate::order::quorum::remembered::{OWN_MAX, Started};
use crate::order::quorum::{HAND_OVER_US, Other};
use crate::sessions::health::{Condition, End};
use crate::time::Now;

/// A start of a member's process, as it says.
#[derive(Debug, Clone)]
struct Start {
    started: Started,
    /// Starts of its directory that others may know: the one that a member has taken, then the last ones.
    earlier: Vec<(u64, u64)>,
}

/// A server's place in a group, and the members that are connected to it.
#[derive(Debug)]
pub struct Membership {
    /// The group, drawn at random when it began.
    pub group: u64,
    /// This member.
    pub me: MemberId,
    /// The member at each connection, which has proven itself, and the start of its process.
    connected: BTreeMap<Conn, (MemberId, Started)>,
    /// Connections that have proven themselves, and whose starts are being saved.
    starting: BTreeMap<Conn, (MemberId, Start)>,
    /// Connections over which packets came: the newest of each member.
    talking: BTreeMap<MemberId, Conn>,
    /// Each member's last start, which is durable here.
    starts: BTreeMap<MemberId, Started>,
    /// The last one that is being saved.
    saving: BTreeMap<MemberId, Started>,
    /// The starts of those that answered the connections which were made to them.
    answered: BTreeMap<MemberId, Started>,
    /// The connections of members that are not on the list here, which may be an old one: the host does not
    /// know where they are, and they are answered there.
    unlisted: BTreeMap<MemberId, Conn>,
    /// Set if the list that its directory was made with has it.
    is_listed: bool,
    /// Set once a list without it is stable.
    is_removed: bool,
    /// When a copy of the space was asked for last.
    copies: Option<Now>,
    /// The member that was to lead last because the disk here was full.
    relieved_by: Option<MemberId>,
}

impl Membership {
    /// Nobody is connected.
    pub fn new(group: u64, me: MemberId) -> Membership {
        let (connected, starting, talking, starts, saving, answered, unlisted) = Default::default();
        Membership {
            group,
            me,
            connected,
            starting,
            talking,
            starts,
            saving,
            answered,
            unlisted,
            is_listed: true,
            is_removed: false,
            copies: None,
            relieved_by: None,
        }
    }

    /// A member of which the group's first lists know nothing: it joined.
    pub fn joined(group: u64, me: MemberId) -> Membership {
        Membership { is_listed: false, ..Membership::new(group, me) }
    }

    /// The starts of others that are durable here.
    pub fn with_starts(mut self, starts: &[(MemberId, Started)]) -> Membership {
        if !dropped(Rule::StartsForgotten) {
            self.starts.extend(starts.iter().copied());
        }
        self
    }

    pub(super) fn is_removed(&self) -> bool {
        self.is_removed
    }

    /// A packet came over a connection: gives the member, and the connection that it took the place of. The
    /// end of that one is no hint: it comes when the network is whole again.
    fn talks(&mut self, conn: Conn) -> Option<(MemberId, Option<Conn>)> {
        let of = *self.connected.get(&conn)?;
        let last = self.talking.insert(of.0, conn).filter(|last| *last != conn);
        let over = last.filter(|last| self.connected.get(last) == Some(&of));
        over.iter().for_each(|over| _ = self.connected.remove(over));
        Some((of.0, over))
    }

    /// Says whether a member counts that speaks on the connection which was made to it: its start is the last
    /// one that is durable here.
    pub(super) fn hears(&self, member: MemberId) -> bool {
        self.answered.get(&member).is_some_and(|started| self.starts.get(&member) == Some(started))
    }

    /// A sign of life came over a connection: gives the member.
    fn shows(&self, conn: Conn) -> Option<(MemberId, Option<Conn>)> {
        self.connected.get(&conn).map(|(member, _)| (*member, None))
    }

    /// Refuses a member that is none, or is not the one that it says.
    fn check(&self, join: &Join, space: SpaceId) -> Result<(), String> {
        let Join { group, member, version, .. } = *join;
        if (group != self.group || join.space != space) && member != OPERATOR {
            return Err(format!("this server is of group {:016x}, and not of {group:016x}", self.group));
        }
        if version != MEMBERS_VERSION {
            return Err(format!("members of this group speak version {MEMBERS_VERSION}, and not {version}"));
        }
        Ok(())
    }

    /// Refuses the start of a member whose directory is a copy.
    fn check_start(&self, member: MemberId, start: &Start) -> Result<(), String> {
        let Started { number, process } = start.started;
        let known = [&self.starts, &self.saving].into_iter().filter_map(|of| of.get(&member));
        let last = known.max_by_key(|of| of.number).copied().unwrap_or(Started { number: 0, process });
        let helps = format!(
            "put back the newer directory or, if that is lost for good, remove the member with `tercel group remove {member}` \
             and let an empty directory join"
        );
        if number < last.number {
            return Err(format!(
                "member {member} has been started {} times, and this is its start {number}: its directory is an older copy, \
                 and may lack what it has acknowledged; {helps}",
                last.number
            ));
        }
        if number == last.number && process != last.process && !dropped(Rule::EqualStartsPass) {
            return Err(format!(
                "start {number} of member {member} was that of another process: its directory is a copy, beside its original or \
                 in its place; stop whichever is the copy, {helps}"
            ));
        }
        if number - last.number > STARTS_AHEAD_MAX {
            return Err(format!(
                "start {number} of member {member} is too far after start {}, which was its last: its file of votes is \
                 damaged; {helps}",
                last.number
            ));
        }
        let (taken, recent) = start.earlier.split_first().unwrap_or((&(0, 0), &[]));
        // A member that took a later start may know as little as a copy does. Its word counts only where the
        // directory does not reach back to the start that is known here.
        let is_beyond = taken.0 > last.number && recent.iter().all(|(of, _)| *of > last.number);
        let is_after = is_beyond || start.earlier.contains(&(last.number, last.process));
        if number > last.number && last.number > 0 && !is_after && !dropped(Rule::LaterStartsPass) {
            return Err(format!(
                "start {number} of member {member} is of a directory that has not had start {}, which is known here: it is a \
                 copy from before that, and may lack what it has acknowledged; {helps}",
                last.number
            ));
        }
        Ok(())
    }
}

impl Server {
    /// Makes the server a member of a group.
    pub fn set_membership(&mut self, membership: Membership) {
        self.cx.group = membership.group;
        self.membership = Some(membership);
    }

    /// Says whether the newest list that the replica has names this member.
    pub(super) fn is_member(&self) -> bool {
        let Some(group) = &self.membership else { return false };
        let members = self.cx.work.replica.members.as_ref();
        members.map_or(group.is_listed, |members| members.get(group.me).is_some())
    }

    /// The list that this leader ordered is stable.
    pub(super) fn note_membership(&mut self) {
        let is_member = self.is_member();
        if let Some(group) = &mut self.membership {
            group.is_removed = !is_member;
        }
    }

    /// Takes a frame of another member.
    pub(super) fn member_frame(&mut self, conn: Conn, header: &Header, body: &[u8]) {
        match FromClient::decode(header.kind, body) {
            Ok(FromClient::Join(join)) => self.join(conn, &join),
            Ok(FromClient::Prove(prove)) => {
                if let Some(join) = self.sessions(|s, cx| s.proves(conn, &prove.proof, cx)) {
                    self.proven(conn, &join);
                }
            }
            Ok(FromClient::Packet(packet)) => {
                if let Some(from) = self.sessions.unproven(conn).map(|join| join.member) {
                    return self.sequence(order::Input::Packet(from, packet.bytes));
                }
                let group = self.membership.as_mut();
                // It comes over a connection beside that of what is said.
                let is_sign = is_sign_of_life(packet.bytes);
                match group.and_then(|group| if is_sign { group.shows(conn) } else { group.talks(conn) }) {
                    Some((from, over)) => {
                        self.cx.out.list.extend(over.map(Effect::Close));
                        self.note_stranger(conn, from);
                        self.sequence(order::Input::Packet(from, packet.bytes));
                    }
                    None => self.turn_away(conn, "the connection is no member's"),
                }
            }
            Ok(_) => {}
            Err(error) => self.turn_away(conn, &error.to_string()),
        }
    }

    /// Tells a member that is not on the list so. It is heard all the same: the list here may be an old one.
    fn note_stranger(&mut self, conn: Conn, from: MemberId) {
        let is_listed = self.cx.work.sequencer.members().is_none_or(|members| members.get(from).is_some());
        let unlisted = self.membership.iter_mut().map(|group| &mut group.unlisted);
        unlisted.for_each(|all| _ = if is_listed { all.remove(&from) } else { all.insert(from, conn) });
        if !is_listed {
            let text = "this server is not on the list of the group there: it has just come, or the directory there is a copy of before, or it \
                        was removed; then begin anew with an empty directory and --join";
            self.sessions(|s, cx| s.refuse(conn, text, cx));
        }
    }

    /// Sends a packet to another member.
    pub(super) fn say(&mut self, to: MemberId, packet: Arc<Vec<u8>>) {
        match self.membership.as_ref().and_then(|group| group.unlisted.get(&to)) {
            Some(conn) => self.cx.out.send(*conn, Header::new(Kind::Packet, 0), [&packet, &[]]),
            None => self.cx.out.push(Effect::Packet(to, packet)),
        }
    }

    /// A connection says that it is of a member, or of an operator. Nothing that it says counts yet.
    fn join(&mut self, conn: Conn, join: &Join) {
        match &self.membership {
            None if join.member != OPERATOR => return self.turn_away(conn, "this server is of no group"),
            Some(group) if join.member == group.me => {
                // It has connected to itself: a list has another member at its address.
                return self.cx.out.push(Effect::Close(conn));
            }
            Some(group) => {
                if let Err(why) = group.check(join, self.cx.work.space) {
                    return self.turn_away(conn, &why);
                }
            }
            None => {}
        }
        if join.opening.is_none() {
            return self
                .turn_away(conn, "its build proves nothing to other members: start one of this version");
        }
        let earlier = join.opening.iter().filter_map(|opening| opening.earlier.as_ref());
        if earlier.flatten().count() > 1 + OWN_MAX {
            return self.turn_away(conn, "it names more starts than a directory keeps");
        }
        self.sessions(|s, cx| s.open(conn, join, cx));
    }

    /// A connection has proven itself.
    fn proven(&mut self, conn: Conn, join: &Join) {
        let Some(group) = self.membership.as_mut().filter(|_| join.member != OPERATOR) else {
            return self.sessions(|s, cx| s.is_proven(conn, cx));
        };
        let (process, earlier) = match &join.opening {
            Some(opening) => (opening.process, opening.earlier.clone().unwrap_or_default()),
            None => (0, Vec::new()),
        };
        let (member, started) = (join.member, Started { number: join.start, process });
        let start = Start { started, earlier };
        match group.check_start(member, &start) {
            Err(why) => self.turn_away(conn, &why),
            Ok(()) if group.starts.get(&member) == Some(&started) => self.count(conn, member, started),
            Ok(()) => {
                group.starting.insert(conn, (member, start));
                group.saving.insert(member, started);
                self.cx.out.push(Effect::SaveStart(member, started));
            }
        }
    }

    /// A member has answered a connection that was made to it, and proven itself.
    pub(super) fn answered(&mut self, member: MemberId, started: Started, earlier: Vec<(u64, u64)>) {
        let Some(group) = &mut self.membership else { return };
        group.answered.remove(&member);
        match group.check_start(member, &Start { started, earlier }) {
            // What it says does not count. What this member says there does no harm.
            Err(why) => self.cx.refused = Some((self.cx.work.now, why)),
            Ok(()) => {
                group.answered.insert(member, started);
                if group.starts.get(&member) != Some(&started) {
                    group.saving.insert(member, started);
                    self.cx.out.push(Effect::SaveStart(member, started));
                }
            }
        }
    }

    /// The start of a member is durable here.
    pub(super) fn start_saved(&mut self, member: MemberId, started: Started) {
        let Some(group) = &mut self.membership else { return };
        if group.starts.get(&member).is_none_or(|last| last.number < started.number) {
            group.starts.insert(member, started);
        }
        group.saving.retain(|id, of| *id != member || of.number > started.number);
        let of_member: Vec<(Conn, (MemberId, Start))> = group
            .starting
            .extract_if(.., |_, (id, of)| *id == member && of.started.number <= started.number)
            .collect();
        for (conn, (_, of)) in of_member {
            let checked = self.membership.as_ref().map_or(Ok(()), |group| group.check_start(member, &of));
            match checked {
                Ok(()) => self.count(conn, member, of.started),
                Err(why) => self.turn_away(conn, &why),
            }
        }
    }

    /// The connection is of this member from now on.
    fn count(&mut self, conn: Conn, member: MemberId, started: Started) {
        let Some(group) = self.membership.as_mut().filter(|_| self.sessions.is_there(conn)) else { return };
        group.connected.insert(conn, (member, started));
        // It has no session.
        self.sessions(|s, cx| {
            s.is_proven(conn, cx);
            s.disconnected(conn, cx);
        });
        self.cx.out.push(Effect::Joined(conn, member));
    }

    /// Takes the end of a member's connection. It is a hint that the member's process has ended, unless a
    /// newer process of it is known. The first connection that ends counts: the kernel may close the others
    /// much later.
    pub(super) fn member_left(&mut self, conn: Conn) {
        let Some(membership) = &mut self.membership else { return };
        membership.starting.remove(&conn);
        let Some((member, start)) = membership.connected.remove(&conn) else { return };
        membership.unlisted.retain(|_, of| *of != conn);
        membership.talking.retain(|_, of| *of != conn);
        if membership.starts.get(&member) == Some(&start) {
            self.sequence(order::Input::Gone(member));
        }
    }

    /// The log of a view's leader, at this address, does not reach back to what this member lacks.
    pub(super) fn lost(&mut self, view: ViewId, leader: String) {
        let now = self.cx.work.now;
        let Some(group) = &mut self.membership else { return };
        if group.copies.is_none_or(|last| now.since_us(last) >= COPY_AGAIN_US) {
            group.copies = Some(now);
            self.cx.out.push(Effect::Copy(view, leader));
        }
    }

    /// A copy is whole. It takes the place of what is here if it has everything that this member has
    /// acknowledged: it ends behind that, and no view was promised since it was asked for, nor does its log
    /// have a newer one.
    pub(super) fn copied(&mut self, view: ViewId, end: EntryId) {
        let Some(status) = self.cx.work.sequencer.status() else { return };
        let is_newer = (end.view.number, end.position) > (status.end.view.number, status.end.position);
        if status.view == view && end.view.number <= view.number && is_newer {
            self.cx.end = End::Replaced;
            self.sessions.end_all(&mut self.cx.out);
            self.cx.out.push(Effect::Adopt);
        }
    }

    /// A leader whose disk has no room has the next of the members lead: whose disks have room it does not
    /// know, so each is tried in turn.
    pub(super) fn relieve(&mut self) {
        let Condition { disk_full, relieved, .. } = self.cx.condition;
        if !disk_full || relieved.is_some_and(|last| self.cx.work.now.since_us(last) < RELIEVED_AGAIN_US) {
            return;
        }
        let Some(group) = &self.membership else { return };
        let last = group.relieved_by.unwrap_or(group.me);
        let able = self.able_to_lead();
        if let Some(to) = able.iter().find(|to| to.id > last).or(able.first()).map(|to| to.id) {
            self.membership.iter_mut().for_each(|group| group.relieved_by = Some(to));
            self.cx.condition.relieved = Some(self.cx.work.now.plus_us(HAND_OVER_US));
            self.sequence(order::Input::MoveLead(to));
        }
    }

    /// Has the member lead that lacks least. Says whether there is one, and this server leads.
    pub(super) fn hand_over(&mut self) -> bool {
        let Some(to) = self.able_to_lead().into_iter().max_by_key(|other| other.durable) else {
            return false;
        };
        self.sequence(order::Input::MoveLead(to.id));
        true
    }

    /// Says whether another member is known to lead, has had its time for it, or none is there. One that
    /// stops as soon as it is deposed would take with it the vote that the next leader may need.
    pub(super) fn is_handed_over(&self, until: Now) -> bool {
        let leads = |group: order::quorum::Status| group.leader.is_some_and(|leader| leader != group.me);
        until <= self.cx.work.now
            || !self.is_connected(None)
            || self.cx.work.sequencer.status().is_some_and(leads)
    }

    /// The other members that vote and were heard a moment ago, in the order of their identities; none if
    /// this server does not lead.
    fn able_to_lead(&self) -> Vec<Other> {
        let Some(group) = self.cx.work.sequencer.status().filter(|_| self.cx.leader.is_some()) else {
            return Vec::new();
        };
        let may_lead = |other: &Other| {
            let is_fed = !other.is_lost && other.is_there(self.cx.work.now);
            group.members.votes(other.id) && is_fed && self.is_connected(Some(other.id))
        };
        let mut able: Vec<Other> = group.others.iter().copied().filter(may_lead).collect();
        able.sort_unstable_by_key(|other| other.id);
        able
    }

    /// Says whether the process of a member, or of any, is there as far as its connections tell.
    fn is_connected(&self, member: Option<MemberId>) -> bool {
        let mut all = self.membership.iter().flat_map(|group| group.connected.values());
        all.any(|(id, _)| member.is_none_or(|member| member == *id))
    }

    fn turn_away(&mut self, conn: Conn, why: &str) {
        self.sessions(|s, cx| s.turn_away(conn, Refusal::Protocol, why, cx));
    }
}

/// Time between two attempts to take a copy of the space, in microseconds: a leader that is asked in vain may
/// be at a backup.
const COPY_AGAIN_US: u64 = 1_000_000;

/// Time from an attempt of a leader with a full disk to hand the lead over until the next, in microseconds:
/// long, so that members whose disks are all full do not hand it round.
const RELIEVED_AGAIN_US: u64 = 10_000_000;

/// Why a member stops that was removed.
pub const REMOVED: &str = "this member was removed from its group, which goes on without it; to have it back, \
             begin anew with an empty directory: `tercel serve --data DIR --join ADDR --secret FILE`";

/// The version of packets and entries: members of a group speak the same.
pub const MEMBERS_VERSION: u16 = 10;

/// The name of an operator who proves that he has the group's secret: no member has it.
pub const OPERATOR: MemberId = MemberId(0);

/// Starts that a member may be ahead of its last that is known: one a second for twelve days.
const STARTS_AHEAD_MAX: u64 = 1 << 20;
