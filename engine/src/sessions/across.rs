//! Transactions over several spaces: what clients, and the servers of other spaces, ask for.

use tercel_wire::frame::Header;
use tercel_wire::id::{ClientId, OpId, Oref, Stamp};
use tercel_wire::message::{Decide, FromServer, Limit, Nothing, Prepare, Refusal, Settle};
use tercel_wire::vector::VECTOR_MAX;

use super::{Cx, Sessions};
use crate::effect::Conn;
use crate::leader::{Asked, Body, Role};
use crate::limits;

impl Sessions {
    /// A client asks to prepare a part here.
    pub(super) fn prepare(
        &mut self,
        asked: Asked,
        client: ClientId,
        prepare: Prepare<'_>,
        request: &[u8],
        cx: &mut Cx,
    ) {
        let Prepare { op, of, coordinator, seen, bytes } = prepare;
        if coordinator == cx.work.space {
            return cx.verdict(asked, op, Err(Refusal::Invalid(Oref::NULL)));
        }
        let role = Role::Participant { of, coordinator, seen: seen.without(cx.work.space) };
        self.judge_part(asked, (client, op), Body::of_part(bytes, crc32fast::hash(request), role), cx);
    }

    /// A client asks to decide a transaction here.
    pub(super) fn decide(
        &mut self,
        asked: Asked,
        client: ClientId,
        decide: Decide<'_>,
        request: &[u8],
        cx: &mut Cx,
    ) {
        let Decide { op, parts, seen, bytes } = decide;
        let mut spaces: Vec<_> = parts.iter().map(|part| part.space).collect();
        spaces.sort_unstable();
        spaces.dedup();
        let is_one = !parts.is_empty()
            && spaces.len() == parts.len()
            && spaces.len() < limits::SPACES_MAX
            // Beside its own stamp.
            && seen.len() < VECTOR_MAX
            && !spaces.contains(&cx.work.space);
        if !is_one {
            return cx.verdict(asked, op, Err(Refusal::Invalid(Oref::NULL)));
        }
        let role = Role::Coordinator { parts, seen: seen.without(cx.work.space) };
        self.judge_part(asked, (client, op), Body::of_part(bytes, crc32fast::hash(request), role), cx);
    }

    fn judge_part(&mut self, asked: Asked, (client, op): (ClientId, OpId), body: Body<'_>, cx: &mut Cx) {
        if op.client != client {
            return cx.verdict(asked, op, Err(Refusal::Invalid(Oref::NULL)));
        }
        if op.slot >= limits::credit() {
            return cx.verdict(asked, op, Err(Refusal::Full(Limit::Buffer)));
        }
        self.lead(cx, |leader, work| leader.commit(asked, op, body, work));
    }

    /// A client tells the end of a part. It is believed if it is the one that had the part prepared, an
    /// operator or a member. For anyone else the space that decides is asked as if nobody had told: the
    /// servers of other spaces have other secrets.
    pub(super) fn settle(
        &mut self,
        (conn, header, body): (Conn, &Header, &[u8]),
        client: ClientId,
        mut settle: Settle,
        cx: &mut Cx,
    ) {
        let part = cx.work.replica.prepares.get(settle.prepared);
        let is_own = part.is_none_or(|part| part.client == client);
        let is_trusted = || self.is_trusted((conn, header, body), cx);
        // If that is not known yet, it is taken again.
        let Some(is_believed) = is_own.then_some(true).or_else(is_trusted) else { return };
        let asked = Asked { conn, call: header.call };
        settle.seen.iter_mut().for_each(|seen| seen.remove(cx.work.space));
        self.lead(cx, |leader, work| match is_believed {
            true => leader.settle(Some(asked), settle, work),
            false => leader.hear_of_end(asked, settle, work),
        });
    }

    /// A client asks to be answered once no prepare up to a stamp is unsettled.
    pub(super) fn await_settled(&mut self, asked: Asked, upto: Stamp, cx: &mut Cx) {
        let visible = cx.work.pages.visible();
        if upto <= visible && cx.work.replica.prepares.is_settled(upto, visible) {
            return self.tell_settled(asked, cx);
        }
        let Some(session) = self.all.get_mut(&asked.conn) else { return };
        if session.awaiting >= limits::AWAITING_MAX {
            return cx.refuse(asked, Refusal::FULL, "this client waits for too many settlements at once");
        }
        session.awaiting += usize::from(self.echoing.awaiting.insert((upto, asked.conn, asked.call)));
    }

    fn tell_settled(&mut self, asked: Asked, cx: &mut Cx) {
        self.stream_to(asked.conn, cx);
        cx.answer(asked, &FromServer::SettledUpto(Nothing));
    }

    /// Answers those for which nothing is unsettled any more.
    pub(super) fn answer_awaiting(&mut self, cx: &mut Cx) {
        let visible = cx.work.pages.visible();
        // What is settled up to a stamp is so up to each before it.
        while let Some((upto, conn, call)) = self.echoing.awaiting.first().copied()
            && upto <= visible
            && cx.work.replica.prepares.is_settled(upto, visible)
        {
            self.echoing.awaiting.pop_first();
            self.all.get_mut(&conn).into_iter().for_each(|session| session.awaiting -= 1);
            self.tell_settled(Asked { conn, call }, cx);
        }
    }
}
