//! Requests of members and operators, and the connections that may ask for them.
//!
//! A connection is trusted if its other end has proven that it has the group's secret, or is a process on
//! the server's host of the superuser or of the server's own user. The invariant: nobody else changes the
//! members of a group, takes a copy of its log, says how far another space's states are depended on, or ends
//! what another client has prepared.

use tercel_wire::frame::Header;
use tercel_wire::message::{
    Accessing, Challenge, FromClient, FromServer, Join, Nothing, Refusal, Regrouping,
};

use super::rights::{Need, need};
use super::session::{Opening, Session, Trust};
use super::{Cx, Sessions, unasked};
use crate::effect::{Audit, Conn, Effect, Proof};
use crate::leader::Asked;
use crate::mutant::{Rule, dropped};

impl Sessions {
    /// Says whether the other end of a connection may ask for this. If that is not known, the host is asked,
    /// and the request is taken again; if it may not, it is refused.
    pub(super) fn may_ask(
        &mut self,
        (conn, header, body): (Conn, &Header, &[u8]),
        message: &FromClient<'_>,
        cx: &mut Cx,
    ) -> bool {
        let Some(session) = self.all.get_mut(&conn) else { return false };
        let is_judged = cx.work.replica.access.is_judged();
        if is_judged && need(message, session.client.is_some()) != Need::Member
            || !is_of_operators(message, session.client.is_some())
        {
            return true;
        }
        let asked = Asked { conn, call: header.call };
        match session.trust {
            Trust::Given => return true,
            Trust::Unknown => {
                session.trust = Trust::Asked(*header, body.to_vec());
                cx.out.push(Effect::Vouch(conn));
            }
            Trust::Asked(..) => cx.refuse(asked, Refusal::Unavailable, "one request at a time: try again"),
            Trust::Denied => {
                cx.refuse(asked, Refusal::Denied, UNTRUSTED);
                self.audit(conn, Audit::Refused(UNTRUSTED.into()), cx);
            }
        }
        false
    }

    /// Says whether the other end of a connection is an operator or a member; none if the host is asked first
    /// and the request taken again. What a member passes on is its reader's.
    pub(super) fn is_trusted(
        &mut self,
        (conn, header, body): (Conn, &Header, &[u8]),
        cx: &mut Cx,
    ) -> Option<bool> {
        let Some(session) = self.all.get_mut(&conn) else { return Some(false) };
        match session.trust {
            _ if session.is_passed_on => Some(false),
            Trust::Given => Some(true),
            Trust::Denied | Trust::Asked(..) => Some(false),
            Trust::Unknown => {
                session.trust = Trust::Asked(*header, body.to_vec());
                cx.out.push(Effect::Vouch(conn));
                None
            }
        }
    }

    /// The host vouches for the other end of a connection, or does not.
    pub(crate) fn vouched(&mut self, conn: Conn, is_so: bool, cx: &mut Cx) {
        let Some(session) = self.all.get_mut(&conn) else { return };
        // The host vouches for the speaker, and for nobody for whom that speaks.
        let is_so = is_so && cx.work.seats.speaker(conn).is_none();
        let trust = if is_so { Trust::Given } else { Trust::Denied };
        if is_so {
            cx.work.seats.is_trusted(conn);
        }
        if let Trust::Asked(header, body) = std::mem::replace(&mut session.trust, trust) {
            self.frame(conn, &header, &body, cx);
        }
    }

    /// A connection says that it is of a member or an operator: the host is asked for what proves it.
    pub(crate) fn open(&mut self, conn: Conn, join: &Join, cx: &mut Cx) {
        let Some(session) = self.all.get_mut(&conn) else { return };
        if session.opening.is_some() || session.client.is_some() {
            return self.expel(conn, "a connection is opened once", cx);
        }
        session.opening = Some(Opening { join: join.clone(), expected: None });
        cx.out.push(Effect::Challenge(conn, join.clone()));
    }

    /// The host has drawn its nonce.
    pub(crate) fn challenged(&mut self, conn: Conn, said: Option<(Challenge, Proof)>, cx: &mut Cx) {
        let Some(opening) = self.all.get_mut(&conn).and_then(|session| session.opening.as_mut()) else {
            return;
        };
        match said {
            Some((challenge, expected)) => {
                opening.expected = Some(expected);
                cx.answer(unasked(conn), &FromServer::Challenge(challenge));
            }
            None => self.turn_away(conn, Refusal::Denied, NO_SECRET, cx),
        }
    }

    /// A connection proves itself. Gives the words with which it had begun, if it does.
    pub(crate) fn proves(&mut self, conn: Conn, proof: &Proof, cx: &mut Cx) -> Option<Join> {
        let expects = |session: &Session| {
            let expected = session.opening.as_ref().and_then(|opening| opening.expected);
            expected.is_some_and(|expected| is_same(&expected, proof))
        };
        let is_of_another = dropped(Rule::ProofOfAnotherCounts) && self.all.values().any(expects);
        let session = self.all.get_mut(&conn)?;
        if !expects(session) && !is_of_another {
            self.audit(conn, Audit::Refused(UNPROVEN.into()), cx);
            self.turn_away(conn, Refusal::Denied, UNPROVEN, cx);
            return None;
        }
        session.trust = Trust::Given;
        cx.work.seats.is_trusted(conn);
        session.opening.take().map(|opening| opening.join)
    }

    /// A connection that has proven itself is told so.
    pub(crate) fn is_proven(&self, conn: Conn, cx: &mut Cx) {
        cx.answer(unasked(conn), &FromServer::Proven(Nothing));
    }

    /// The words with which a connection has begun that has not proven itself: a rule dropped on purpose
    /// believes them.
    pub(crate) fn unproven(&self, conn: Conn) -> Option<&Join> {
        let opening = self.all.get(&conn)?.opening.as_ref();
        opening.map(|opening| &opening.join).filter(|_| dropped(Rule::UnprovenCounts))
    }

    /// Says whether the connection is one that may still be a member's.
    pub(crate) fn is_there(&self, conn: Conn) -> bool {
        self.all.contains_key(&conn)
    }
}

/// Says whether only members and operators ask for this.
fn is_of_operators(message: &FromClient<'_>, has_greeted: bool) -> bool {
    match message {
        FromClient::Regroup(regroup) => regroup.step != Regrouping::Look,
        // The first grant shuts everyone else out.
        FromClient::Access(access) => matches!(access.step, Accessing::Grant | Accessing::Revoke),
        FromClient::Transfer(_) => true,
        FromClient::BackupNext(_) => !has_greeted,
        // A space is forgotten.
        FromClient::Depend(depend) => depend.on.forgotten().next().is_some(),
        _ => false,
    }
}

/// Compares proofs in a time that does not tell where they differ.
fn is_same(a: &Proof, b: &Proof) -> bool {
    let differ = a.iter().zip(b).fold(0, |differ, (a, b)| std::hint::black_box(differ | (a ^ b)));
    differ == 0
}

const UNTRUSTED: &str = "only operators and members may ask for this: ask on the server's host as the user that it runs \
             as, or name the group's secret with --secret FILE (`tercel group secret` tells where it is)";

const NO_SECRET: &str =
    "this server has no secret, so nothing can be proven to it: `tercel group secret` makes one";

const UNPROVEN: &str = "it has another secret than this member of the group, or none: copy the file `secret` of this \
             member's directory into its own, and start it again";
