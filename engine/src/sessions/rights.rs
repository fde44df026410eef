//! The door of rights: every message passes it, and every kind stands in one table with the role that it
//! needs.
//!
//! The leader judges what it decides, in the step in which it orders; a member that follows
//! judges what it serves itself. A connection that has lost a right ends as soon as this server has applied
//! that. The invariant: no message is served to a principal that lacks its role.

use std::sync::Arc;

use tercel_wire::access::{Principal, Role};
use tercel_wire::frame::Header;
use tercel_wire::id::{CallId, ClientId, OpId};
use tercel_wire::message::{
    Access, Accessed, Accessing, FromClient, FromServer, OBJECT_SLOT, OnBehalf, Refusal, Regrouping, Request,
    ResponseEnd, Right,
};

use super::session::Trust;
use super::{Cx, Sessions};
use crate::effect::{Audit, Audited, Audits, Conn, Effect};
use crate::leader::{Asked, called, name_of};
use crate::mutant::{Rule, dropped};
use crate::rights::{
    ANY, BACKUP, Bits, CALL, DEFINE, GRANT, Lack, OPERATE, READ, Rights, SPEAK_FOR, TRUSTED, WRITE,
};

/// The roles of which a message needs one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// No right: the message tells nothing, or proves itself.
    Nothing,
    /// One of these rights; the text names the one that lacks.
    Of(Bits, &'static str),
    /// The sender is a member, or has the group's secret.
    Member,
}

/// The need of a message. Where objects or methods matter, the part that decides judges again.
pub(super) fn need(message: &FromClient<'_>, has_greeted: bool) -> Need {
    match message {
        FromClient::AskHealth(_)
        | FromClient::Join(_)
        | FromClient::Prove(_)
        | FromClient::Packet(_)
        // The greeting behind it is judged.
        | FromClient::OnBehalf(_)
        | FromClient::Bye(_) => Need::Nothing,
        FromClient::Access(access) => match access.step {
            Accessing::Whoami => Need::Nothing,
            Accessing::List => Need::Of(TRUSTED, "grant"),
            Accessing::Grant | Accessing::Revoke => Need::Of(GRANT, "grant"),
        },
        FromClient::Regroup(regroup) if regroup.step == Regrouping::Look => Need::Nothing,
        FromClient::Regroup(_) | FromClient::Stat(_) | FromClient::Collect(_) => Need::Of(OPERATE, "operate"),
        FromClient::Transfer(_) => Need::Member,
        FromClient::BackupNext(_) if !has_greeted => Need::Member,
        FromClient::Backup(_)
        | FromClient::BackupNext(_)
        | FromClient::FollowLog(_)
        | FromClient::LogNext(_) => Need::Of(BACKUP, "backup"),
        // What it asks, and tells, is its own; an end is believed of its part's client, or looked up.
        FromClient::Hello(_)
        | FromClient::Ack(_)
        | FromClient::Ping(_)
        | FromClient::Unsubscribe(_)
        | FromClient::Resolve(_)
        | FromClient::Interfaces(_)
        | FromClient::Settle(_)
        | FromClient::Inquire(_)
        | FromClient::AwaitSettled(_) => Need::Of(ANY, "read"),
        FromClient::Fetch(_) => Need::Of(READ, "read"),
        // A transaction may only read, of several spaces.
        FromClient::Commit(_) | FromClient::Part(_) | FromClient::Prepare(_) | FromClient::Decide(_) => {
            Need::Of(WRITE | READ, "write")
        }
        FromClient::Lease(_) => Need::Of(WRITE, "write"),
        FromClient::Define(_) | FromClient::Catalogue(_) => Need::Of(DEFINE | WRITE | READ, "read"),
        FromClient::Depend(depend) if depend.on.forgotten().next().is_some() => Need::Of(OPERATE, "operate"),
        FromClient::Depend(_) => Need::Of(WRITE | CALL, "write"),
        // A reader runs the methods of objects itself.
        FromClient::Bind(bind) if !bind.interface.is_service() => Need::Of(CALL | READ, "call"),
        FromClient::Bind(_)
        | FromClient::Request(_)
        | FromClient::Datagrams(_)
        | FromClient::Cancel(_)
        | FromClient::InputItem(_)
        | FromClient::InputEnd(_)
        | FromClient::OutputCredit(_) => Need::Of(CALL, "call"),
    }
}

/// The event of an audit that a message is which may be served.
fn audited(message: &FromClient<'_>, cx: &Cx) -> Option<Audit> {
    match message {
        FromClient::Access(Access { step: Accessing::Grant, right }) => right.clone().map(Audit::Granted),
        FromClient::Access(Access { step: Accessing::Revoke, right }) => right.clone().map(Audit::Revoked),
        FromClient::Define(layout) => {
            let is_known = cx.work.replica.catalogue.all().iter().any(|(_, known)| *known == layout);
            (!is_known).then(|| Audit::Defined(layout.name().into()))
        }
        FromClient::Backup(_) | FromClient::FollowLog(_) => Some(Audit::Backup),
        FromClient::Regroup(regroup) if regroup.step == Regrouping::Look => None,
        FromClient::Depend(depend) if depend.on.forgotten().next().is_none() => None,
        FromClient::Regroup(_) | FromClient::Collect(_) | FromClient::Depend(_) | FromClient::Transfer(_) => {
            Some(Audit::Operated(message.kind()))
        }
        _ => None,
    }
}

impl Sessions {
    /// Puts an event into the audit, if the host keeps one.
    pub(super) fn audit(&self, conn: Conn, what: Audit, cx: &mut Cx) {
        if cx.work.config.audits >= Audits::Events {
            let (who, client) = (cx.work.seats.who(conn).cloned().unwrap_or_default(), self.client_of(conn));
            cx.out.push(Effect::Audit(Audited { who, client, what }));
        }
    }

    /// Puts a message that may be served into the audit, if it belongs there.
    pub(super) fn audit_served(&self, conn: Conn, message: &FromClient<'_>, cx: &mut Cx) {
        if cx.work.config.audits >= Audits::Events
            && let Some(what) = audited(message, cx)
        {
            self.audit(conn, what, cx);
        }
    }

    /// Says whether a message may be served. One that may not is answered, or taken again once the host has
    /// told whose the connection is.
    pub(super) fn passes(
        &mut self,
        (conn, header, body): (Conn, &Header, &[u8]),
        message: &FromClient<'_>,
        cx: &mut Cx,
    ) -> bool {
        if !cx.work.replica.access.is_judged() {
            return true;
        }
        if matches!(message, FromClient::Fetch(_)) && self.is_cut_off(cx) {
            // A revocation may not have come here.
            self.send_elsewhere(conn, cx);
            return false;
        }
        let Some(session) = self.all.get_mut(&conn) else { return false };
        let client = session.client;
        let Need::Of(bits, role) = need(message, client.is_some()) else { return true };
        let of = (&cx.work.replica, &cx.work.config);
        let Err(lack) = cx.work.seats.check(conn, of, |rights| rights.bits & bits != 0, || role.into())
        else {
            return true;
        };
        if bits & TRUSTED != 0
            && matches!(session.trust, Trust::Unknown)
            && cx.work.seats.may_be_vouched(conn)
        {
            session.trust = Trust::Asked(*header, body.to_vec());
            cx.out.push(Effect::Vouch(conn));
            return false;
        }
        self.deny((conn, header), client, message, &lack, cx);
        false
    }

    /// Refuses a message in its own form.
    pub(super) fn deny(
        &mut self,
        (conn, header): (Conn, &Header),
        client: Option<ClientId>,
        message: &FromClient<'_>,
        lack: &Lack,
        cx: &mut Cx,
    ) {
        let asked = Asked { conn, call: header.call };
        let text = lack.to_string();
        self.audit(conn, Audit::Refused(text.clone()), cx);
        match (message, client) {
            (FromClient::Hello(_), _) => self.turn_away(conn, Refusal::Denied, &text, cx),
            (FromClient::Commit(_), Some(_))
            | (FromClient::Prepare(_), Some(_))
            | (FromClient::Decide(_), Some(_)) => {
                let op = match message {
                    FromClient::Commit(commit) => commit.op,
                    FromClient::Prepare(prepare) => prepare.op,
                    FromClient::Decide(decide) => decide.op,
                    _ => return,
                };
                cx.refuse(asked, Refusal::Denied, text);
                match client == Some(op.client) {
                    true => {
                        self.lead(cx, |leader, work| leader.not_executed(asked, op, Refusal::Denied, work))
                    }
                    false => cx.verdict(asked, op, Err(Refusal::Denied)),
                }
            }
            (FromClient::Request(request), Some(client)) => {
                self.deny_request((asked, header), client, request, &text, cx);
            }
            _ => cx.refuse(asked, Refusal::Denied, text),
        }
    }

    /// Refuses a call, by its slot.
    fn deny_request(
        &mut self,
        (asked, header): (Asked, &Header),
        client: ClientId,
        request: &Request<'_>,
        text: &str,
        cx: &mut Cx,
    ) {
        match (request.slot, request.object) {
            (Some(slot), Some(_)) => {
                let op = OpId { client, slot, seq: request.seq, view: header.view };
                self.deny_call(asked, op, text, cx);
            }
            (None, Some(_)) => {
                let id = CallId { slot: OBJECT_SLOT, seq: request.seq };
                super::services::respond(asked, id, ResponseEnd::Refused(Refusal::Denied, text), cx);
            }
            (Some(slot), None) => {
                self.deny_service(asked, client, CallId { slot, seq: request.seq }, text, cx)
            }
            // It is never answered.
            (None, None) => {}
        }
    }

    /// Puts a call that may be made into the audit, if the host asks for calls.
    fn audit_call(&self, conn: Conn, request: &Request<'_>, cx: &mut Cx) {
        if cx.work.config.audits < Audits::Calls {
            return;
        }
        let (config, number) = (&cx.work.config, request.interface);
        let of = match request.object {
            Some(_) => config.methods.get(number),
            None => config.services.with_versions().nth(number.into()),
        };
        self.audit(conn, Audit::Called(name_of(of, request.method)), cx);
    }

    /// Says whether a method or procedure may be called. If not, the call is answered.
    pub(super) fn may_request(
        &mut self,
        (asked, header): (Asked, &Header),
        client: ClientId,
        request: &Request<'_>,
        cx: &mut Cx,
    ) -> bool {
        let (interface, method) = (request.interface, request.method);
        if !cx.work.replica.access.is_judged() {
            self.audit_call(asked.conn, request, cx);
            return true;
        }
        let checked = match request.object {
            Some(_) => cx.work.may_call(asked, interface, method),
            None => {
                let of = (&cx.work.replica, &cx.work.config);
                let named = || called(of.1.services.with_versions().nth(interface.into()), method);
                cx.work.seats.check(asked.conn, of, |rights| rights.calls_service(interface, method), named)
            }
        };
        let Err(lack) = checked else {
            self.audit_call(asked.conn, request, cx);
            return true;
        };
        self.audit(asked.conn, Audit::Refused(lack.to_string()), cx);
        self.deny_request((asked, header), client, request, &lack.to_string(), cx);
        false
    }

    /// The principal for which a connection will greet, as a member says, or a principal that speaks for
    /// clients.
    pub(super) fn on_behalf(&mut self, conn: Conn, of: OnBehalf, cx: &mut Cx) {
        let Some(session) = self.all.get(&conn) else { return };
        if session.client.is_some() {
            return self.expel(conn, "a connection says before its greeting for whom it speaks", cx);
        }
        let is_member = matches!(session.trust, Trust::Given) || dropped(Rule::OnBehalfBelieved);
        let state = (&cx.work.replica, &cx.work.config);
        if is_member {
            // The proof was the member's.
            self.all.get_mut(&conn).into_iter().for_each(|session| session.trust = Trust::Unknown);
            return cx.work.seats.speaks_for(conn, of.who, true, state);
        }
        if !cx.work.replica.access.is_judged() {
            return;
        }
        if cx.work.seats.speaker(conn).is_some() {
            return self.expel(conn, "a connection speaks for one principal", cx);
        }
        let may_speak = |rights: &Rights| rights.bits & SPEAK_FOR != 0;
        let lack = match cx.work.seats.check(conn, state, may_speak, || Role::SpeakFor.to_string()) {
            Ok(()) if of.who.is_spoken_for() => {
                // The host would vouch for the speaker.
                self.all.get_mut(&conn).into_iter().for_each(|session| session.trust = Trust::Denied);
                return cx.work.seats.speaks_for(conn, of.who, false, state);
            }
            Ok(()) => format!("{} is no client, and `speak-for` is for clients alone", of.who),
            Err(lack) => lack.to_string(),
        };
        self.audit(conn, Audit::Refused(lack.clone()), cx);
        self.turn_away(conn, Refusal::Denied, &lack, cx);
    }

    /// Says whether a client may be the one of a connection: none of another principal greeted as it. If not,
    /// the connection is refused.
    pub(super) fn may_be(&mut self, conn: Conn, client: ClientId, cx: &mut Cx) -> bool {
        if !cx.work.replica.access.is_judged() || dropped(Rule::ClientOfAnyone) {
            return true;
        }
        let Some(who) = cx.work.seats.who(conn).cloned() else { return false };
        let live = self.clients.get(&client).and_then(|conn| cx.work.seats.who(*conn));
        let owners =
            [cx.work.replica.access.owner(client), live.map(Arc::as_ref), self.serving.owner(client)];
        if owners.into_iter().flatten().all(|owner| *owner == *who) {
            return true;
        }
        let text = format!("client {:016x} is another principal's, and not that of {who}", client.0);
        self.audit(conn, Audit::Refused(text.clone()), cx);
        self.turn_away(conn, Refusal::Evicted, &text, cx);
        false
    }

    /// A principal asks about the rights, or changes them.
    pub(super) fn access(&mut self, asked: Asked, access: Access, cx: &mut Cx) {
        match (access.step, access.right) {
            (Accessing::Whoami | Accessing::List, None) => self.accessed(asked, cx),
            (Accessing::Grant | Accessing::Revoke, Some(_)) if cx.leader.is_none() => {
                cx.answer(asked, &FromServer::Refused(super::greet::not_leader(cx)));
            }
            (step @ (Accessing::Grant | Accessing::Revoke), Some(right)) => {
                self.lead(cx, |leader, work| leader.access(asked, step, right, work));
            }
            _ => self.expel(asked.conn, "a right is named to be granted or revoked", cx),
        }
    }

    /// Tells the rights, as far as the one that asks may see them.
    pub(super) fn accessed(&mut self, asked: Asked, cx: &mut Cx) {
        let (replica, config) = (&cx.work.replica, &cx.work.config);
        let who = cx.work.seats.who(asked.conn).map_or(Principal::Anyone, |who| (**who).clone());
        let is_judged = replica.access.is_judged();
        let bits = cx.work.seats.rights(asked.conn, replica, config).map_or(0, |rights| rights.bits);
        let mut roles: Vec<Role> = replica.access.roles(&who).cloned().collect();
        let kept = [(OPERATE, Role::Operate), (GRANT, Role::Grant)];
        roles.extend(kept.into_iter().filter(|(bit, _)| bits & bit != 0).map(|(_, role)| role));
        roles.sort_unstable();
        roles.dedup();
        let all = replica.access.rights().filter(|_| bits & TRUSTED != 0);
        let rights = all.map(|(who, role)| Right { who: who.clone(), role: role.clone() }).collect();
        cx.answer(asked, &FromServer::Accessed(Accessed { who, roles, is_judged, rights }));
    }

    /// Rights have changed: ends the connections that have lost one. Those that have others left come back.
    pub(crate) fn rights_changed(&mut self, cx: &mut Cx) {
        for (conn, has_some) in cx.work.seats.shrunk(&cx.work.replica, &cx.work.config) {
            let is_via_member = self.all.get(&conn).is_some_and(|session| session.is_passed_on);
            match has_some {
                // A member tells its client by its own state.
                true => self.turn_away(conn, Refusal::Unavailable, "rights have changed: connect again", cx),
                false if is_via_member => {
                    self.turn_away(conn, Refusal::Unavailable, "rights were revoked: connect again", cx);
                }
                false => {
                    let lack = cx.work.seats.lack(conn, "read".into(), &cx.work.replica.access);
                    self.turn_away(conn, Refusal::Denied, &lack.to_string(), cx);
                }
            }
        }
    }
}
