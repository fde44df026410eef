//! Transactions over several spaces: what clients, and the servers of other spaces, ask for.

use tercel_wire::id::{ClientId, OpId, Oref, Stamp};
use tercel_wire::message::{Decide, FromServer, Limit, Nothing, Prepare, Refusal};
use tercel_wire::vector::VECTOR_MAX;

use super::{Cx, Sessions};
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

    /// A client asks to be answered once no prepare up to a stamp is unsettled.
    pub(super) fn await_settled(&mut self, asked: Asked, upto: Stamp, cx: &mut Cx) {
        let of_conn = self.echoing.awaiting.iter().filter(|(other, _)| other.conn == asked.conn).count();
        if of_conn >= limits::AWAITING_MAX || self.echoing.awaiting.len() >= limits::SESSIONS_MAX {
            return cx.refuse(asked, Refusal::FULL, "too many clients wait for settlements at once");
        }
        self.echoing.awaiting.push((asked, upto));
        self.answer_awaiting(cx);
    }

    /// Answers those for which nothing is unsettled any more.
    pub(super) fn answer_awaiting(&mut self, cx: &mut Cx) {
        let visible = cx.work.pages.visible();
        let is_settled = |upto: Stamp| upto <= visible && cx.work.replica.prepares.is_settled(upto, visible);
        let settled: Vec<_> = self.echoing.awaiting.extract_if(.., |(_, upto)| is_settled(*upto)).collect();
        for (asked, _) in settled {
            self.stream_to(asked.conn, cx);
            cx.answer(asked, &FromServer::SettledUpto(Nothing));
        }
    }
}
