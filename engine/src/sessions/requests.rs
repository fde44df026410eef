//! The requests of a client: each frame is decoded, and handed to the component that decides it.

use tercel_wire::frame::{BODY_BYTES_MAX, Header, Kind};
use tercel_wire::id::{ClientId, OpId, Oref};
use tercel_wire::layout::Layout;
use tercel_wire::message::{
    Bind, Call, Cancel, Collect, Commit, Credit, Fetch, Hello, InputEnd, Item, Lease, Limit, Outcome, Part,
    Ping, Reason, Request, Resolve, Unsubscribe,
};

use super::{Cx, Sessions};
use crate::effect::Conn;
use crate::leader::{Asked, Body};
use crate::limits;
use crate::mutant::{Rule, dropped};

impl Sessions {
    pub(crate) fn frame(&mut self, conn: Conn, header: &Header, body: &[u8], cx: &mut Cx<'_>) {
        let Some(session) = self.all.get_mut(&conn) else { return };
        session.heard = cx.now;
        let client = session.client;
        if header.kind == Kind::Hello {
            return match Hello::decode(body) {
                Ok(hello) => self.hello(conn, hello, cx),
                Err(e) => self.expel(conn, e.to_string(), cx),
            };
        }
        let asked = Asked { conn, call: header.call };
        if header.kind == Kind::AskHealth {
            // Answered before a greeting, too: only a server that leads welcomes a client.
            return self.health(asked, cx);
        }
        let Some(client) = client else {
            return self.expel(conn, "the first message must be a greeting", cx);
        };
        if let Some(leader) = cx.leader.as_deref_mut() {
            leader.acknowledged(client, header.ack);
        }
        let result = match header.kind {
            Kind::Fetch => Fetch::decode(body).map(|f| self.fetch(asked, f, cx)),
            Kind::Part => Part::decode(body).map(|p| self.part(conn, p)),
            Kind::Commit => Commit::decode(body).map(|c| self.commit(asked, client, c, cx)),
            Kind::Resolve => Resolve::decode(body).map(|r| self.resolve(asked, client, r.op, cx)),
            Kind::Ack => Ok(()),
            Kind::Unsubscribe => Unsubscribe::decode(body).map(|u| self.unsubscribe(conn, &u)),
            Kind::Lease => Lease::decode(body)
                .map(|l| self.lead(cx, |leader, work| leader.grant(asked, client, l, work))),
            Kind::Define => {
                Layout::decode(body).map(|l| self.lead(cx, |leader, work| leader.define(asked, l, work)))
            }
            Kind::Catalogue => {
                self.catalogue(asked, cx);
                Ok(())
            }
            Kind::Bind => Bind::decode(body).map(|b| self.bind(asked, client, &b, cx)),
            Kind::Request => Request::decode(body).map(|r| self.request(asked, client, header, &r, cx)),
            Kind::Cancel => Cancel::decode(body).map(|c| self.cancel(asked, client, c, cx)),
            Kind::InputItem => Item::decode(body).map(|i| self.item(client, &i, cx)),
            Kind::InputEnd => InputEnd::decode(body).map(|e| self.input_end(client, e, cx)),
            Kind::OutputCredit => Credit::decode(body).map(|c| self.credit(client, c, cx)),
            Kind::Call => Call::decode(body).map(|c| self.call(asked, client, header, body, c, cx)),
            Kind::Interfaces => {
                self.interfaces(asked, cx);
                Ok(())
            }
            Kind::Ping => Ping::decode(body).map(|p| self.ping(asked, p, cx)),
            Kind::Stat => {
                let status = self.status(None, cx);
                cx.reply(conn, Kind::Status, header.call, status.as_bytes());
                Ok(())
            }
            Kind::Collect => Collect::decode(body).map(|c| {
                let ticket = cx.leader.as_deref_mut().map(|leader| leader.collect(c.is_dry));
                let status = self.status(ticket, cx);
                cx.reply(conn, Kind::Status, header.call, status.as_bytes());
            }),
            Kind::Backup => {
                self.backup(asked, cx);
                Ok(())
            }
            Kind::BackupNext => {
                self.backup_next(asked, cx);
                Ok(())
            }
            Kind::Bye => {
                self.disconnected(conn, cx);
                cx.close(conn);
                self.serving.forget(client);
                self.lead(cx, |leader, work| leader.leave(client, work));
                Ok(())
            }
            other => return self.expel(conn, format!("{other:?} is for servers to send"), cx),
        };
        if let Err(e) = result {
            self.expel(conn, e.to_string(), cx);
        }
    }

    fn part(&mut self, conn: Conn, part: Part<'_>) {
        let Some(session) = self.all.get_mut(&conn) else { return };
        let before = session.parts.bytes;
        session.parts.take(part, self.parts_bytes - before);
        self.parts_bytes = self.parts_bytes - before + session.parts.bytes;
    }

    fn commit(&mut self, asked: Asked, client: ClientId, commit: Commit<'_>, cx: &mut Cx<'_>) {
        if commit.op.client != client {
            return cx.verdict(asked, commit.op, Outcome::Invalid(Oref::NULL));
        }
        if commit.op.slot >= limits::credit() {
            // Nothing is kept of it, not even that it was refused: so is every copy.
            return cx.verdict(asked, commit.op, Outcome::Full(Limit::Buffer));
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
        let half;
        let mut body = Body::new(parts, sum, commit.bytes);
        if commit.parts > 0 && dropped(Rule::StagedInParts) {
            half = half_of(body);
            body = Body::new(Vec::new(), crc32fast::Hasher::new(), &half);
        }
        self.lead(cx, |leader, work| leader.commit(asked, commit.op, body, work));
    }

    fn resolve(&mut self, asked: Asked, client: ClientId, op: OpId, cx: &mut Cx<'_>) {
        if op.client != client {
            return cx.verdict(asked, op, Outcome::Unknown);
        }
        let was_refused = op.slot >= limits::credit();
        if was_refused || dropped(Rule::CallAfterCancel) && self.calls.waits(asked.conn, op) {
            return cx.verdict(asked, op, Outcome::NotExecuted);
        }
        self.calls.drop_op(asked.conn, op);
        self.lead(cx, |leader, work| leader.resolve(asked, op, work));
    }

    fn catalogue(&mut self, asked: Asked, cx: &mut Cx<'_>) {
        let Some((classes, _)) = cx.lead(|leader, work| leader.catalogue(work)) else { return };
        let mut body = Vec::new();
        classes.encode(&mut body);
        if body.len() > BODY_BYTES_MAX {
            return cx.refuse(asked, Reason::Full, "the catalogue is larger than a message");
        }
        cx.reply(asked.conn, Kind::Classes, asked.call, &body);
    }
}

/// What is left of a transaction if only half of what it writes counts: a rule dropped on purpose.
fn half_of(body: Body<'_>) -> Vec<u8> {
    use tercel_wire::message::CommitEffects;
    let bytes = body.whole();
    let mut half = Vec::new();
    if let Ok(mut effects) = CommitEffects::decode(&bytes) {
        effects.writes.truncate(effects.writes.len() / 2);
        effects.encode(&mut half);
    }
    if half.is_empty() { bytes.into_owned() } else { half }
}
