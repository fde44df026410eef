//! The requests of a client: each frame is decoded, and handed to the component that decides it.

use tercel_wire::frame::{BODY_BYTES_MAX, Header, Kind, WIRE_VERSION};
use tercel_wire::id::{ClientId, OpId, Oref};
use tercel_wire::message::{Classes, Commit, FromClient, Limit, MessageError, Part, Refusal};

use super::{Cx, Sessions};
use crate::effect::{Conn, Effect};
use crate::leader::{Asked, Body};
use crate::limits;
use crate::mutant::{Rule, dropped};

impl Sessions {
    pub(crate) fn frame(&mut self, conn: Conn, header: &Header, body: &[u8], cx: &mut Cx) {
        if conn.is_upstream() {
            return self.answered(conn, header, body, cx);
        }
        let Some(session) = self.all.get_mut(&conn) else { return };
        session.heard = cx.work.now;
        let (client, asked) = (session.client, Asked { conn, call: header.call });
        if header.kind == Kind::Hello {
            session.capabilities &= header.capabilities;
        }
        let message = match FromClient::decode(header.kind, body) {
            // Whoever sent it is younger, and goes on without it.
            Err(MessageError::Unknown(number)) => {
                return cx.refuse(asked, Refusal::Unsupported, not_known(number));
            }
            Err(e) => return self.expel(conn, e.to_string(), cx),
            Ok(message) => message,
        };
        if !self.may_ask((conn, header, body), &message, cx) {
            return;
        }
        // What a member passes on is judged by the leader, in the step in which it orders.
        let is_passed_on = cx.leader.is_none() && client.is_some() && way(&message) == Way::Leader;
        if !is_passed_on {
            if !self.passes((conn, header, body), &message, cx) {
                return;
            }
            self.audit_served(conn, &message, cx);
        }
        let message = match message {
            FromClient::Hello(hello) => return self.hello(conn, hello, cx),
            // Answered before a greeting, too: only a server that leads welcomes a client.
            FromClient::AskHealth(_) => return self.health(asked, cx),
            FromClient::Stat(_) => return self.answer_status(asked, None, cx),
            FromClient::Regroup(regroup) => return self.regroup(asked, &regroup, cx),
            FromClient::Access(access) => return self.access(asked, access, cx),
            FromClient::OnBehalf(of) => return self.on_behalf(conn, of, cx),
            // The leader may need the member's disk before it can welcome anyone.
            FromClient::Transfer(transfer) => return self.transfer(asked, &transfer, cx),
            FromClient::BackupNext(_) if client.is_none() => return self.backup_next(asked, cx),
            message => message,
        };
        let Some(client) = client else {
            return self.expel(conn, "the first message must be a greeting", cx);
        };
        if let Some(session) = self.all.get_mut(&conn) {
            session.acked = session.acked.max(header.ack);
        }
        if cx.leader.is_none() {
            match way(&message) {
                Way::Here => {}
                Way::Leader => return self.pass_on(conn, header, (&message, body), cx),
                Way::Refused(text) => return cx.refuse(asked, Refusal::Denied, text),
            }
        }
        if let Some(leader) = cx.leader.as_mut() {
            leader.acknowledged(client, header.ack);
        }
        match message {
            FromClient::Hello(_)
            | FromClient::AskHealth(_)
            | FromClient::Stat(_)
            | FromClient::Regroup(_)
            | FromClient::Access(_)
            | FromClient::OnBehalf(_)
            | FromClient::Transfer(_)
            | FromClient::Ack(_) => {}
            // The server takes these itself.
            FromClient::Join(_) | FromClient::Prove(_) | FromClient::Packet(_) => {}
            FromClient::Fetch(fetch) => self.fetch(asked, fetch, cx),
            FromClient::Part(part) => self.part(conn, part),
            FromClient::Commit(commit) => self.commit(asked, client, commit, cx),
            FromClient::Resolve(resolve) => self.resolve(asked, client, resolve.op, cx),
            FromClient::Unsubscribe(unsubscribe) => self.unsubscribe(conn, &unsubscribe),
            FromClient::Lease(lease) => {
                self.lead(cx, |leader, work| leader.grant(asked, client, lease, work));
            }
            FromClient::Define(layout) => self.lead(cx, |leader, work| leader.define(asked, layout, work)),
            FromClient::Depend(depend) if depend.on.get(cx.work.space).is_some() => {
                self.expel(conn, "a space does not rest on itself", cx);
            }
            FromClient::Depend(depend) => self.lead(cx, |leader, work| leader.depend(asked, depend.on, work)),
            FromClient::Prepare(prepare) => self.prepare(asked, client, prepare, body, cx),
            FromClient::Decide(decide) => self.decide(asked, client, decide, body, cx),
            FromClient::Settle(settle) => self.settle((conn, header, body), client, settle, cx),
            FromClient::Inquire(inquire) => {
                self.lead(cx, |leader, work| leader.inquire(asked, inquire.of, work))
            }
            FromClient::AwaitSettled(wait) => self.await_settled(asked, &wait, cx),
            FromClient::Catalogue(_) => self.catalogue(asked, cx),
            FromClient::Bind(bind) => self.bind(asked, client, &bind, cx),
            FromClient::Request(request) if !self.may_request((asked, header), client, &request, cx) => {}
            FromClient::Request(request) => match (request.slot, request.object) {
                (Some(slot), Some(object)) => {
                    let op = OpId { client, slot, seq: request.seq, view: header.view };
                    self.call(asked, op, (header, body), (&request, object), cx);
                }
                _ => self.request(asked, client, header, &request, cx),
            },
            FromClient::Datagrams(of) => cx.out.push(Effect::Datagrams(conn, of.connection)),
            FromClient::Cancel(cancel) => self.cancel(asked, client, cancel, cx),
            FromClient::InputItem(item) => self.item(client, &item, cx),
            FromClient::InputEnd(end) => self.input_end(client, end, cx),
            FromClient::OutputCredit(credit) => self.credit(client, credit, cx),
            FromClient::Interfaces(_) => self.interfaces(asked, cx),
            FromClient::Ping(ping) => self.ping(asked, ping, cx),
            FromClient::Collect(collect) => {
                let ticket = cx.leader.as_mut().map(|leader| leader.collect(collect.is_dry));
                self.answer_status(asked, ticket, cx);
            }
            FromClient::Backup(_) => self.backup(asked, None, cx),
            FromClient::BackupNext(_) => self.backup_next(asked, cx),
            FromClient::FollowLog(follow) => self.follow_log(asked, follow, cx),
            FromClient::LogNext(_) => self.log_next(asked, cx),
            FromClient::Bye(_) => {
                self.pass_bye(conn, header, cx);
                self.disconnected(conn, cx);
                cx.close(conn);
                self.serving.forget(client);
                self.lead(cx, |leader, work| leader.leave(client, work));
            }
        }
    }

    fn answer_status(&mut self, asked: Asked, ticket: Option<u64>, cx: &mut Cx) {
        let status = self.status(ticket, cx);
        cx.reply(asked.conn, Kind::Status, asked.call, status.json().as_bytes());
    }

    fn part(&mut self, conn: Conn, part: Part<'_>) {
        let Some(session) = self.all.get_mut(&conn) else { return };
        let before = session.parts.bytes;
        session.parts.take(part, self.parts_bytes - before);
        self.parts_bytes = self.parts_bytes - before + session.parts.bytes;
    }

    fn commit(&mut self, asked: Asked, client: ClientId, commit: Commit<'_>, cx: &mut Cx) {
        if commit.op.client != client {
            return cx.verdict(asked, commit.op, Err(Refusal::Invalid(Oref::NULL)));
        }
        if commit.op.slot >= limits::credit() {
            // Nothing is kept of it, not even that it was refused: so is every copy.
            return cx.verdict(asked, commit.op, Err(Refusal::Full(Limit::Buffer)));
        }
        let (mut parts, mut sum) = (Vec::new(), crc32fast::Hasher::new());
        if commit.parts > 0 {
            let Some(session) = self.all.get_mut(&asked.conn) else { return };
            let before = session.parts.bytes;
            let complete = session.parts.complete(commit.op, commit.parts);
            self.parts_bytes = self.parts_bytes - before + session.parts.bytes;
            match complete {
                Ok(complete) => (parts, sum) = complete,
                Err(limit) => {
                    return self.lead(cx, |leader, work| leader.refuse_parts(asked, commit.op, limit, work));
                }
            }
        }
        let body = Body::new(parts, sum, commit.bytes);
        self.lead(cx, |leader, work| leader.commit(asked, commit.op, body, work));
    }

    fn resolve(&mut self, asked: Asked, client: ClientId, op: OpId, cx: &mut Cx) {
        if op.client != client {
            return cx.verdict(asked, op, Err(Refusal::Unknown));
        }
        let was_refused = op.slot >= limits::credit();
        if was_refused || dropped(Rule::CallAfterCancel) && self.calls.waits(asked.conn, op) {
            return cx.verdict(asked, op, Err(Refusal::NotExecuted));
        }
        self.calls.drop_op(asked.conn, op);
        self.lead(cx, |leader, work| leader.resolve(asked, op, work));
    }

    fn catalogue(&mut self, asked: Asked, cx: &mut Cx) {
        let led = cx.lead(|leader, work| leader.catalogue(work));
        let users = || cx.work.replica.catalogue.users().map(|(id, layout)| (id, layout.clone())).collect();
        let classes = led.unwrap_or_else(|| Classes { classes: users() });
        let mut body = Vec::new();
        classes.encode(&mut body);
        if body.len() > BODY_BYTES_MAX {
            return cx.refuse(asked, Refusal::FULL, "the catalogue is larger than a message");
        }
        cx.reply(asked.conn, Kind::Classes, asked.call, &body);
    }
}

/// The refusal of a message that only younger servers know.
fn not_known(kind: u8) -> String {
    let build = env!("CARGO_PKG_VERSION");
    format!(
        "it is tercel {build}, with version {WIRE_VERSION} of the protocol, and knows no message of kind {kind}"
    )
}

/// The way of a message of a client that reads at a member which follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The request is served from the state here.
    Here,
    /// The leader decides it.
    Leader,
    /// The request is refused, with this sentence.
    Refused(&'static str),
}

/// The way of a message.
fn way(message: &FromClient<'_>) -> Way {
    match message {
        FromClient::Hello(_)
        | FromClient::AskHealth(_)
        | FromClient::Stat(_)
        | FromClient::Regroup(_)
        | FromClient::Access(_)
        | FromClient::OnBehalf(_)
        | FromClient::Join(_)
        | FromClient::Prove(_)
        | FromClient::Packet(_)
        | FromClient::Transfer(_)
        | FromClient::Ack(_)
        | FromClient::Fetch(_)
        | FromClient::Unsubscribe(_)
        | FromClient::Catalogue(_)
        | FromClient::AwaitSettled(_)
        | FromClient::Datagrams(_)
        | FromClient::Bye(_) => Way::Here,
        // Only the leader's list of views says whether a token's state is of the space's history.
        FromClient::Ping(ping) if ping.of.is_some() => Way::Leader,
        // One question over the line answers those of all readers.
        FromClient::Ping(_) => Way::Here,
        FromClient::Commit(_)
        | FromClient::Part(_)
        | FromClient::Resolve(_)
        | FromClient::Lease(_)
        | FromClient::Define(_)
        | FromClient::Depend(_)
        | FromClient::Prepare(_)
        | FromClient::Decide(_)
        | FromClient::Settle(_)
        | FromClient::Inquire(_)
        | FromClient::Bind(_)
        | FromClient::Interfaces(_)
        | FromClient::Request(_)
        | FromClient::Cancel(_)
        | FromClient::InputItem(_)
        | FromClient::InputEnd(_)
        | FromClient::OutputCredit(_)
        | FromClient::Collect(_) => Way::Leader,
        FromClient::Backup(_)
        | FromClient::BackupNext(_)
        | FromClient::FollowLog(_)
        | FromClient::LogNext(_) => {
            Way::Refused("a backup is taken from the leader of the group: connect there for it")
        }
    }
}
