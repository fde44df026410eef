//! Transactions over several spaces: what clients, and the servers of other spaces, ask for.

use tercel_wire::frame::Header;
use tercel_wire::id::{ClientId, OpId, Oref, Stamp};
use tercel_wire::message::{
    AwaitSettled, Awaited, Decide, FromServer, Limit, Prepare, Refusal, Settle, SettledUpto,
};
use tercel_wire::vector::VECTOR_MAX;

use super::{Cx, Sessions};
use crate::effect::{Audit, Audited, Conn, Effect};
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
        let is_there =
            part.is_some_and(|part| (part.of, part.coordinator) == (settle.of, settle.coordinator));
        let is_trusted = || self.is_trusted((conn, header, body), cx);
        // If that is not known yet, it is taken again.
        let Some(is_believed) = is_own.then_some(true).or_else(is_trusted) else { return };
        let asked = Asked { conn, call: header.call };
        // A server that settles names the view in which the part was prepared.
        if is_believed && !is_own && settle.view.is_none() && is_there && cx.leader.is_some() {
            let what = Audit::Settled {
                of: settle.of,
                prepared: settle.prepared,
                is_committed: settle.seen.is_some(),
            };
            let who = cx.work.seats.who(conn).cloned().unwrap_or_default();
            cx.out.push(Effect::Audit(Audited { who, client: Some(client), what }));
        }
        settle.seen.iter_mut().for_each(|seen| seen.remove(cx.work.space));
        self.lead(cx, |leader, work| match is_believed {
            true => leader.settle(Some(asked), settle, work),
            false => leader.hear_of_end(asked, settle, work),
        });
    }

    /// A client asks to be answered once no prepare up to a stamp is unsettled, or is named.
    pub(super) fn await_settled(&mut self, asked: Asked, wait: &AwaitSettled, cx: &mut Cx) {
        let (upto, of) = (wait.upto, wait.of.unwrap_or(Awaited::All));
        if is_over(upto, of, cx) {
            return self.tell_settled(asked, (upto, of), cx);
        }
        let Some(session) = self.all.get_mut(&asked.conn) else { return };
        if session.awaiting >= limits::AWAITING_MAX {
            return cx.refuse(asked, Refusal::FULL, "this client waits for too many settlements at once");
        }
        let waiting = match of {
            Awaited::All => &mut self.echoing.awaiting,
            Awaited::AllButNamed => &mut self.echoing.naming,
            Awaited::One => &mut self.echoing.awaiting_one,
        };
        session.awaiting += usize::from(waiting.insert((upto, asked.conn, asked.call)));
    }

    fn tell_settled(&mut self, asked: Asked, (upto, of): (Stamp, Awaited), cx: &mut Cx) {
        let named = |cx: &Cx| cx.work.replica.prepares.held(upto, cx.work.pages.visible());
        let held = if of == Awaited::AllButNamed { named(cx) } else { None };
        self.stream_to(asked.conn, cx);
        cx.answer(asked, &FromServer::SettledUpto(SettledUpto { held }));
    }

    /// Answers those for which nothing is unsettled any more.
    pub(super) fn answer_awaiting(&mut self, cx: &mut Cx) {
        // What is settled up to a stamp is so up to each before it.
        while let Some(of) =
            self.echoing.awaiting.first().copied().filter(|of| is_over(of.0, Awaited::All, cx))
        {
            self.echoing.awaiting.pop_first();
            self.answer_waiting(of, Awaited::All, cx);
        }
        while let Some(of) = self.echoing.naming.first().copied()
            && is_over(of.0, Awaited::AllButNamed, cx)
        {
            self.echoing.naming.pop_first();
            self.answer_waiting(of, Awaited::AllButNamed, cx);
        }
        let over = self.echoing.awaiting_one.iter().filter(|of| is_over(of.0, Awaited::One, cx));
        let over: Vec<_> = over.copied().collect();
        for of in over {
            self.echoing.awaiting_one.remove(&of);
            self.answer_waiting(of, Awaited::One, cx);
        }
    }

    fn answer_waiting(&mut self, (upto, conn, call): (Stamp, Conn, u64), of: Awaited, cx: &mut Cx) {
        self.all.get_mut(&conn).into_iter().for_each(|session| session.awaiting -= 1);
        self.tell_settled(Asked { conn, call }, (upto, of), cx);
    }
}

/// Says whether a question about parts up to a stamp, or of it, can be answered.
fn is_over(upto: Stamp, of: Awaited, cx: &Cx) -> bool {
    let (visible, prepares) = (cx.work.pages.visible(), &cx.work.replica.prepares);
    upto <= visible
        && match of {
            Awaited::All => prepares.is_settled(upto, visible),
            Awaited::AllButNamed => true,
            Awaited::One => prepares.is_one_settled(upto, visible),
        }
}
