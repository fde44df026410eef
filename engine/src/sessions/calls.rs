//! Calls of methods that wait to be run here, or for what they need.
//!
//! A call is an operation of its client, executed at most once as a commit is: the id is looked up before the
//! method runs, goes into the order with what the method wrote, and is spent by every other answer. The host
//! runs what is due ([`crate::server::Server::run_calls`]), in the order that [`super::call_queue`] says; a
//! method that needs a page, or met a commit that is not visible yet, is run anew when there is news. The
//! invariant: a call that was taken is here until it is answered, its connection ends, or its client asks
//! what became of it, which spends the id.

use std::sync::Arc;

use tercel_wire::frame::{BODY_BYTES_MAX, Header, Kind};
use tercel_wire::id::{ClientId, OpId, Oref, Stamp};
use tercel_wire::interface::Interface;
use tercel_wire::message::{
    Bind, Bound, FromServer, Limit, Numbered, OPERATION, Refusal, Request, Response, ResponseEnd,
};

use super::call_queue::Waiting;
use super::health::DRAINING;
use super::versions::Tables;
use super::{Cx, Sessions, inside};
use crate::effect::Conn;
use crate::error::Error;
use crate::leader::{Asked, Body, Ran, called};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::replica::answers::Past;
use crate::rights::Rights;
use crate::rpc::versions::Version;
use crate::txn::{Hold, Ticket};

/// The result of a method.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The method returned, and has read this state alone.
    Returned(Stamp, Vec<u8>),
    /// The method failed by its own decision in this state.
    Failed(Stamp, Vec<u8>),
    /// The method did not come to its end.
    Refused(Error),
}

impl Sessions {
    /// A client asks for the numbers of an interface's methods.
    pub(super) fn bind(&mut self, asked: Asked, client: ClientId, bind: &Bind, cx: &mut Cx) {
        let of_service = bind.interface.is_service();
        let offered = match of_service {
            true => cx.work.config.services.find(&bind.interface.name),
            false => cx.work.config.methods.find(&bind.interface.name, &bind.interface.class),
        };
        let of = (&cx.work.replica, &cx.work.config);
        let mut may_call = |number: u16| {
            let named = || called(offered.map(|(_, interface)| &**interface), u16::MAX);
            cx.work.seats.check(asked.conn, of, |rights| rights.calls_any(of_service, number), named)
        };
        let offered = match offered.map(|(number, _)| may_call(number)) {
            Some(Err(lack)) if of_service => return cx.refuse(asked, Refusal::Denied, lack.to_string()),
            // Its methods run at the client, which may read.
            Some(Err(_)) => None,
            _ => offered,
        };
        let who = cx.work.seats.who(asked.conn);
        let table = (of_service && offered.is_some()).then(|| self.serving.table(client, who));
        let Some((number, interface)) = offered else {
            let bound = Bound { interface: None, methods: Vec::new(), table };
            return cx.answer(asked, &FromServer::Bound(bound));
        };
        let (version, stands) = Version::new(interface, &bind.interface);
        if let Some(why) = version.refused_whole() {
            return cx.refuse(asked, Refusal::Schema, why);
        }
        let bound = match version.same() {
            Some(methods) => (Some(number), methods.into_iter().map(Numbered::from).collect(), table),
            None => {
                match self.bind_version(asked.conn, client, &bind.interface, (number, version, stands), cx) {
                    Ok((number, methods)) => (Some(number), methods, table),
                    Err((why, text)) => return cx.refuse(asked, why, text),
                }
            }
        };
        let (interface, methods, table) = bound;
        cx.answer(asked, &FromServer::Bound(Bound { interface, methods, table }));
    }

    /// A client was built at another time: gives the number of its version of an interface, and how its
    /// methods are called there.
    fn bind_version(
        &mut self,
        conn: Conn,
        client: ClientId,
        caller: &Interface,
        (of, version, stands): (u16, Version, Interface),
        cx: &mut Cx,
    ) -> Result<(u16, Vec<Numbered>), (Refusal, String)> {
        let number_of = |method: usize| {
            // A call of any other method that cannot be made is answered so.
            let is_silent = stands.methods[method].mode.is_one_way();
            let refused = version.refused(method).filter(|_| is_silent).map(String::from);
            Numbered { number: method as u16, refused }
        };
        let methods = (0..stands.methods.len()).map(number_of).collect();
        let config = &mut cx.work.config;
        let tables = Tables { services: &mut config.services, methods: &mut config.methods };
        let number = self.serving.versions.bind(conn, caller, (of, version, stands), tables)?;
        // Rights are by number, and this one may be new since they were looked up.
        cx.work.seats.look_again(conn);
        self.serving.look_again(client);
        Ok((number, methods))
    }

    /// A client asks which interfaces there are.
    pub(super) fn interfaces(&self, asked: Asked, cx: &mut Cx) {
        let mut body = Vec::new();
        let of_objects = cx.work.config.methods.interfaces();
        let all =
            of_objects.map(|it| (false, it)).chain(cx.work.config.services.interfaces().map(|it| (true, it)));
        let (mut methods, mut services) = (0, 0);
        let of = (&cx.work.replica, &cx.work.config);
        for (of_service, interface) in all {
            let number = if of_service { &mut services } else { &mut methods };
            let may_call = |rights: &Rights| rights.calls_any(of_service, *number);
            // What a principal may not call it does not see.
            if cx.work.seats.check(asked.conn, of, may_call, String::new).is_ok() {
                interface.encode(&mut body);
            }
            *number += 1;
        }
        if body.len() > BODY_BYTES_MAX {
            return cx.refuse(asked, Refusal::FULL, "the interfaces are larger than a message");
        }
        cx.reply(asked.conn, Kind::Offered, asked.call, &body);
    }

    /// A client calls a method.
    pub(super) fn call(
        &mut self,
        asked: Asked,
        op: OpId,
        (header, body): (&Header, &[u8]),
        (call, (target, read_at)): (&Request<'_>, (Oref, Stamp)),
        cx: &mut Cx,
    ) {
        if op.slot >= limits::credit() {
            return cx.verdict(asked, op, Err(Refusal::Full(Limit::Buffer)));
        }
        let digest = crc32fast::hash(body);
        let mut is_answered = false;
        if !dropped(Rule::CallTwice) {
            self.lead(cx, |leader, work| is_answered = leader.answer_past(asked, op, Some(digest), work));
        }
        // A node that does not lead says nothing, as to a commit.
        if is_answered || cx.leader.is_none() {
            return;
        }
        if let Err(e) = cx.work.config.methods.runs(call.interface, call.method) {
            return self.refuse_call(asked, op, &e, cx);
        }
        if cx.condition.is_draining() {
            // An earlier copy may wait for a page: what is refused is not executed later.
            self.calls.drop_op(asked.conn, op);
            cx.lead(|leader, _| leader.withdraw(op));
            return refuse(asked, op, &Error::Unavailable(DRAINING.into()), cx);
        }
        if !self.calls.has_room(asked.conn, call.payload.len()) {
            return self.spend(asked, op, Refusal::Full(Limit::Buffer), cx);
        }
        let until = Some(header.deadline_us).filter(|us| *us > 0).map(|us| cx.work.now.plus_us(us.into()));
        let waiting = Waiting {
            asked,
            op,
            digest,
            interface: call.interface,
            method: call.method,
            target,
            read_at,
            until,
            key: call.key.to_vec(),
            payload: call.payload.to_vec(),
        };
        self.calls.put(waiting);
    }

    /// Orders the writes of a call's method, with its result. Says whether they were taken: if not, the
    /// method met something that is not visible yet, or another's turn, and is to be run anew. The pages of
    /// the `holds` are not given back before the writes are ordered. A method that was run ahead is told no
    /// refusal: what is wrong with its writes may follow from what may never be.
    pub(crate) fn call_wrote(
        &mut self,
        ticket: Ticket,
        reply: Vec<u8>,
        (effects, holds, is_ahead): (&[u8], Vec<Arc<Hold>>, bool),
        cx: &mut Cx,
    ) -> bool {
        use tercel_wire::message::CommitEffects;
        let author = self.inside.client();
        let (Some(call), Some(author)) = (self.calls.get(ticket), author) else {
            return true;
        };
        // A conflict is no answer: the state moves on, and the method with it.
        let judged = CommitEffects::decode(effects).map(|effects| {
            cx.lead(|leader, work| leader.judge_call(call.op.client, &effects, is_ahead, work))
        });
        match judged {
            Ok(Some(Err(Refusal::Conflict(_) | Refusal::TooOld))) => return false,
            Ok(Some(Err(_))) | Err(_) if is_ahead => return false,
            _ if is_ahead && effects.len() > cx.work.config.mob_bytes => return false,
            Ok(None) => return true,
            _ => {}
        }
        self.calls.take(ticket);
        let early = dropped(Rule::CallAnsweredEarly).then(|| reply.clone());
        let body = Body::of_call(
            effects,
            Ran { author, reply, digest: call.digest, called: (call.interface, call.method), holds },
        );
        self.lead(cx, |leader, work| leader.commit(call.asked, call.op, body, work));
        if let Some(reply) = early {
            let stamp = cx.work.pages.visible();
            answer(call.asked, call.op, ResponseEnd::Returned(stamp, &reply), cx);
        }
        true
    }

    /// A call has come to an end that is not ordered: the id is spent.
    pub(crate) fn call_ended(&mut self, ticket: Ticket, ended: Ended, cx: &mut Cx) {
        let Some(call) = self.calls.take(ticket) else { return };
        match &ended {
            Ended::Returned(stamp, reply) => self.end_call(&call, ResponseEnd::Returned(*stamp, reply), cx),
            Ended::Failed(stamp, reply) => self.end_call(&call, ResponseEnd::Failed(*stamp, reply), cx),
            Ended::Refused(e) => self.refuse_call(call.asked, call.op, e, cx),
        }
    }

    /// A method that only reads was run for a client by a shorter way.
    pub(crate) fn has_read(&mut self, client: ClientId, cx: &mut Cx) {
        if let Some(conn) = self.clients.get(&client).copied() {
            // What its client reads from now on is not older than what the method saw: it must not wait for
            // that.
            self.stream_to(conn, cx);
        }
    }

    fn end_call(&mut self, call: &Waiting, end: ResponseEnd<'_>, cx: &mut Cx) {
        let interface = cx.work.config.methods.get(call.interface);
        let method = interface.and_then(|i| i.methods.get(call.method as usize));
        // What only reads may be run again.
        if method.is_none_or(|m| !m.reads) && !self.spend_call(call.asked, call.op, cx) {
            return;
        }
        answer(call.asked, call.op, end, cx);
        // What its client reads from now on is not older than what the method saw: it must not wait for that.
        self.stream_to(call.asked.conn, cx);
    }

    /// A method may not be called: its id is spent.
    pub(super) fn deny_call(&mut self, asked: Asked, op: OpId, text: &str, cx: &mut Cx) {
        self.refuse_call(asked, op, &Error::Denied(text.into()), cx);
    }

    fn refuse_call(&mut self, asked: Asked, op: OpId, e: &Error, cx: &mut Cx) {
        if self.spend_call(asked, op, cx) {
            refuse(asked, op, e, cx);
        }
    }

    /// Spends the id of a call that comes to an end of its own. Says whether that end is to be told: a copy
    /// of the call may have been ordered in the meantime, and then that is the answer.
    fn spend_call(&mut self, asked: Asked, op: OpId, cx: &mut Cx) -> bool {
        if dropped(Rule::CallSpendsNothing) {
            return true;
        }
        let mut is_answered = false;
        self.lead(cx, |leader, work| {
            is_answered = leader.is_ordered(op, work) && leader.answer_past(asked, op, None, work);
            if !is_answered {
                leader.spend(op);
            }
        });
        !is_answered
    }

    fn spend(&mut self, asked: Asked, op: OpId, why: Refusal, cx: &mut Cx) {
        self.lead(cx, |leader, work| leader.not_executed(asked, op, why, work));
    }
}

/// Sends what a call came to.
pub(super) fn answer(asked: Asked, op: OpId, end: ResponseEnd<'_>, cx: &mut Cx) {
    if asked.conn == inside::CONN {
        return;
    }
    cx.answer(asked, &FromServer::Response(Response { slot: OPERATION | op.slot, seq: op.seq, end }));
}

fn refuse(asked: Asked, op: OpId, e: &Error, cx: &mut Cx) {
    answer(asked, op, ResponseEnd::Refused(e.refusal(), &e.what()), cx);
}

/// The stamp of an operation that committed, and the bytes that its method returned.
pub(super) fn reply_of(op: OpId, cx: &Cx) -> Option<(Stamp, Vec<u8>)> {
    match cx.work.replica.answers.past(op) {
        Past::Committed(a) => Some((a.stamp, a.reply.to_vec())),
        _ => None,
    }
}
