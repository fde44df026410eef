//! Changes of a group: its operator asks the leader to let a member learn, vote, go or lead.
//!
//! Lists are changed one at a time, and each is answered once it is stable. The invariant: of the members
//! that vote by a list that is ordered here, a quorum was heard a moment ago, so that no operator stops a
//! group by a request.

use tercel_wire::id::{MemberId, Stamp};
use tercel_wire::message::{Addresses, FromServer, Grouped, Refusal, Regroup, Regrouping};

use super::greet::{not_leader, servers};
use super::{Cx, Sessions, unasked};
use crate::effect::Conn;
use crate::leader::Asked;
use crate::order;
use crate::order::quorum::Status;
use crate::order::quorum::members::{Member, Members};
use crate::time::Now;

/// A change, as it is carried out.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    /// The group is so already.
    Nothing,
    List(Members),
    Lead(MemberId),
}

/// Why there is no change: what the operator is told.
type Refused = (Refusal, String);

impl Sessions {
    /// An operator asks about the group, or for a change.
    pub(super) fn regroup(&mut self, asked: Asked, of: &Regroup, cx: &mut Cx) {
        let Some(group) = cx.work.sequencer.status() else {
            let text = "this server is of no group: stop it, and begin one with `tercel group init`, or give it an empty directory and \
                        have it join one with `tercel serve --join ADDR --secret FILE`";
            return cx.refuse(asked, Refusal::Denied, text);
        };
        if of.step == Regrouping::Look {
            return self.grouped(asked, cx);
        }
        if cx.leader.is_none() {
            return cx.answer(asked, &FromServer::Refused(not_leader(cx)));
        }
        match change(&group, of, cx.work.now) {
            Err((reason, text)) => cx.refuse(asked, reason, text),
            Ok(Change::Nothing) => self.grouped(asked, cx),
            Ok(Change::Lead(to)) => {
                cx.work.sequence(order::Input::MoveLead(to));
                self.grouped(asked, cx);
            }
            Ok(Change::List(members)) => {
                cx.lead(|leader, work| leader.regroup(asked, members, work));
            }
        }
    }

    /// Answers the change under way if it is visible now. Says whether it is.
    pub(crate) fn regrouped(&mut self, visible: Stamp, cx: &mut Cx) -> bool {
        let done = cx.leader.as_mut().and_then(|leader| leader.regrouped_upto(visible));
        if let Some(asked) = done {
            self.grouped(asked, cx);
            let mut conns: Vec<Conn> = self.clients.values().copied().collect();
            conns.sort_unstable();
            let servers = servers(cx);
            for conn in conns {
                cx.answer(unasked(conn), &FromServer::Addresses(Addresses { servers: servers.clone() }));
            }
        }
        done.is_some()
    }

    fn grouped(&self, asked: Asked, cx: &mut Cx) {
        let Some(status) = cx.work.sequencer.status() else { return };
        let mut members = Vec::new();
        status.members.encode(&mut members);
        let (space, view_first) = (cx.work.space, cx.work.config.view_first);
        let grouped = Grouped { group: cx.group, space, view_first, members: &members };
        cx.answer(asked, &FromServer::Grouped(grouped));
    }
}

/// The change that is asked for.
///
/// # Errors
/// The sentence for its operator: it cannot be, or not now.
fn change(group: &Status, of: &Regroup, now: Now) -> Result<Change, Refused> {
    let mut members: Vec<Member> = group.members.iter().cloned().collect();
    let denied = |text: String| Err((Refusal::Denied, text));
    let later = |text: String| Err((Refusal::Unavailable, text));
    let at = members.iter().position(|member| member.id == of.member);
    match (of.step, at) {
        (Regrouping::Look, _) => return Ok(Change::Nothing),
        (Regrouping::Learn, at) => {
            let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b',');
            if of.address.is_empty() || !of.address.bytes().all(is_plain) {
                return denied(format!("{:?} is no address of a member: write HOST:PORT", of.address));
            }
            let is_others = |member: &&Member| member.address == of.address && member.id != of.member;
            if let Some(other) = members.iter().find(is_others) {
                return denied(format!(
                    "{} is the address of another member, {}; name one of its own with --advertise or, if that member is lost, \
                     run `tercel group remove {}` before",
                    of.address, other.id, other.id
                ));
            }
            match at.map(|at| &mut members[at]) {
                Some(member) if member.address == of.address => return Ok(Change::Nothing),
                Some(member) => member.address = of.address.clone(),
                None => {
                    members.push(Member { id: of.member, votes: false, address: of.address.clone() });
                }
            }
        }
        // It was removed, and the operator did not receive the answer.
        (Regrouping::Remove, None) => return Ok(Change::Nothing),
        (_, None) => {
            return denied(format!(
                "{} is no member of this group: `tercel group status` lists them",
                of.member
            ));
        }
        (Regrouping::Vote, Some(_)) if of.member == group.me => return Ok(Change::Nothing),
        (Regrouping::Vote, Some(at)) => {
            let other = group.others.iter().find(|other| other.id == of.member);
            if members[at].votes {
                return match other.is_some_and(|other| other.is_there(now)) {
                    true => Ok(Change::Nothing),
                    false => later(format!("member {} votes already, and is silent; start it", of.member)),
                };
            }
            if other.is_some_and(|other| other.is_lost) {
                return later(format!(
                    "the leader's log does not reach back to what member {} lacks, so it takes a copy of the space: try again \
                     once `tercel group status` shows that it has caught up",
                    of.member
                ));
            }
            if other.is_none_or(|other| !other.is_there(now)) {
                return later(format!("member {} does not answer: start it before it is to vote", of.member));
            }
            let lacks = group.stable.0 - other.map_or(0, |other| other.durable.0.min(group.stable.0));
            if lacks > CAUGHT_UP_ENTRIES {
                return later(format!(
                    "member {} lacks {lacks} entries of the log: try again once `tercel group status` shows that it has caught up",
                    of.member
                ));
            }
            members[at].votes = true;
        }
        (Regrouping::Remove, Some(at)) => {
            let gone = members.remove(at);
            if gone.votes && !members.iter().any(|member| member.votes) {
                return denied("it is the only member that votes: let another one vote before".into());
            }
        }
        (Regrouping::Lead, Some(_)) if of.member == group.me => return Ok(Change::Nothing),
        (Regrouping::Lead, Some(at)) if !members[at].votes => {
            return denied(format!(
                "member {} does not vote, so it cannot lead: `tercel group add` lets it vote",
                of.member
            ));
        }
        (Regrouping::Lead, Some(_)) => {
            let other = group.others.iter().find(|other| other.id == of.member);
            return match other.is_some_and(|other| other.is_there(now)) {
                true => Ok(Change::Lead(of.member)),
                false => later(format!("member {} does not answer, so it cannot lead now", of.member)),
            };
        }
    }
    if group.is_changing {
        return later(
            "the change of members before this one is not stable yet: try again in a moment".into(),
        );
    }
    let Some(list) = Members::new(members) else {
        return denied("a group has at most 16 members, of which at most 7 vote: remove one before".into());
    };
    let is_heard = |id: &MemberId| {
        let mut others = group.others.iter();
        *id == group.me || others.any(|other| other.id == *id && other.is_there(now))
    };
    let (heard, needed) = (list.voters().filter(is_heard).count(), list.quorum());
    if heard < needed && of.step != Regrouping::Learn {
        return later(format!(
            "of the members that would vote then, {needed} must answer and {heard} do, so the group would stop: start the \
             others before"
        ));
    }
    Ok(Change::List(list))
}

/// Entries that a member may lack that is to vote: what some milliseconds of commits are. With fewer it holds
/// up no quorum for long.
const CAUGHT_UP_ENTRIES: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::quorum::{Counts, Other, Why};
    use tercel_wire::id::{EntryId, LogPosition, ViewId};

    fn group(votes: &[bool]) -> Status {
        let member = |(i, votes): (usize, &bool)| Member {
            id: MemberId(i as u64 + 1),
            votes: *votes,
            address: format!("m{i}:1"),
        };
        let other = |i: usize| Other {
            id: MemberId(i as u64 + 1),
            durable: LogPosition(5_000),
            heard: Now(9_000_000),
            round_trip_us: None,
            is_lost: false,
            is_gone: false,
        };
        Status {
            me: MemberId(1),
            view: ViewId::new(3, 1),
            leader: Some(MemberId(1)),
            why: Why::NoLeader,
            end: EntryId::default(),
            begins: LogPosition(1),
            stable: LogPosition(5_000),
            others: (1..votes.len()).map(other).collect(),
            members: Members::new(votes.iter().enumerate().map(member).collect()).unwrap(),
            is_changing: false,
            is_sure: true,
            lost_before: None,
            counts: Counts::default(),
        }
    }

    fn asked(group: &Status, step: Regrouping, member: u64, address: &str) -> Result<Change, Refused> {
        let of = Regroup { step, member: MemberId(member), address: address.into() };
        change(group, &of, Now(9_000_000))
    }

    fn why(group: &Status, step: Regrouping, member: u64) -> String {
        asked(group, step, member, "new:1").unwrap_err().1
    }

    #[test]
    fn each_step_changes_one_member() {
        let three = group(&[true, true, false]);
        let Ok(Change::List(list)) = asked(&three, Regrouping::Learn, 9, "new:1") else { panic!() };
        assert!(list.get(MemberId(9)).is_some_and(|new| !new.votes && new.address == "new:1"));
        let Ok(Change::List(list)) = asked(&three, Regrouping::Learn, 2, "moved:1") else { panic!() };
        assert!(list.get(MemberId(2)).is_some_and(|moved| moved.votes && moved.address == "moved:1"));
        let Ok(Change::List(list)) = asked(&three, Regrouping::Vote, 3, "") else { panic!() };
        assert_eq!(list.voters().count(), 3);
        let Ok(Change::List(list)) = asked(&three, Regrouping::Remove, 2, "") else { panic!() };
        assert_eq!(list.iter().count(), 2);
        assert_eq!(asked(&three, Regrouping::Lead, 2, ""), Ok(Change::Lead(MemberId(2))));
        for (step, member, address) in
            [(Regrouping::Learn, 2, "m1:1"), (Regrouping::Vote, 2, ""), (Regrouping::Lead, 1, "")]
        {
            assert_eq!(asked(&three, step, member, address), Ok(Change::Nothing), "{step:?}");
        }
    }

    #[test]
    fn change_that_cannot_be_is_refused_with_reason() {
        let mut of = group(&[true, true, false]);
        of.others[0].is_gone = true;
        assert!(why(&of, Regrouping::Vote, 2).contains("votes already, and is silent"));
        assert!(why(&of, Regrouping::Vote, 9).contains("no member of this group"));
        assert!(why(&of, Regrouping::Lead, 3).contains("does not vote"));
        assert!(asked(&of, Regrouping::Learn, 9, "m1:1").unwrap_err().1.contains("tercel group remove"));
        assert!(asked(&of, Regrouping::Learn, 9, "a:1,b:1").unwrap_err().1.contains("no address"));
        assert!(why(&group(&[true, false]), Regrouping::Remove, 1).contains("only member that votes"));
        of.others[1].durable = LogPosition(3_000);
        assert!(why(&of, Regrouping::Vote, 3).contains("lacks 2000 entries"));
        of.others[1].is_lost = true;
        assert!(why(&of, Regrouping::Vote, 3).contains("does not reach back"));
    }

    #[test]
    fn change_waits_for_one_before_and_quorum() {
        let mut of = group(&[true, true, true]);
        of.is_changing = true;
        assert!(why(&of, Regrouping::Remove, 2).contains("not stable yet"));
        of.is_changing = false;
        of.others.iter_mut().for_each(|other| other.heard = Now(1_000_000));
        assert!(why(&of, Regrouping::Remove, 2).contains("2 must answer and 1 do"));
        of = group(&[true, true, true]);
        of.others[1].is_gone = true;
        assert!(why(&of, Regrouping::Remove, 2).contains("2 must answer and 1 do"));
        assert!(asked(&of, Regrouping::Remove, 3, "").is_ok());
        of.others[0].is_gone = true;
        // A member that has yet to be heard of may be made known.
        assert!(matches!(asked(&of, Regrouping::Learn, 9, "new:1"), Ok(Change::List(_))));
    }
}
