//! The stream of changes, and the sessions that must receive them.

use tercel_wire::frame::{BODY_BYTES_MAX, Kind};
use tercel_wire::id::{Oref, PageId, Stamp};
use tercel_wire::message::{Change, Dependencies, FromServer, ResponseEnd, Stream};

use super::{Cx, Sessions, calls, unasked};
use crate::effect::Conn;
use crate::leader::Flight;
use crate::mutant::{Rule, dropped};

impl Sessions {
    /// Entries are visible: their changes go to the sessions subscribed to them. The client that committed
    /// finds its outcome there, and needs no other answer.
    pub(crate) fn show(&mut self, shown: &[Flight], cx: &mut Cx) {
        self.end_overtaken(cx);
        let mut told: Vec<Conn> = Vec::with_capacity(shown.len());
        for flight in shown {
            self.show_one(flight, &mut told, cx);
        }
        told.sort_unstable();
        told.dedup();
        for conn in told {
            self.stream_to(conn, cx);
        }
        self.release_held(cx);
        self.answer_awaiting(cx);
        self.echo(cx);
    }

    fn show_one(&mut self, flight: &Flight, told: &mut Vec<Conn>, cx: &mut Cx) {
        if let Some(op) = flight.op {
            self.inside.committed(op, flight.stamp);
        }
        if let Some(op) = flight.op.filter(|_| flight.is_call)
            && let Some(conn) = self.clients.get(&op.client).copied()
            && let Some((stamp, reply)) = calls::reply_of(op, cx)
        {
            calls::answer(unasked(conn), op, ResponseEnd::Returned(stamp, &reply), cx);
        }
        let owner = flight.op.and_then(|op| self.clients.get(&op.client)).copied();
        // The member that the client reads at tells it.
        let owner = owner.filter(|conn| self.all.get(conn).is_some_and(|session| !session.is_passed_on));
        // The sessions that must receive the changes, with their objects: the directory has the sessions
        // subscribed to every page.
        let mut hear: Vec<(Conn, &[Oref])> = owner.map(|conn| (conn, &[][..])).into_iter().collect();
        // Objects of a page mostly stand together.
        for of_page in flight.changed.chunk_by(|a, b| a.page() == b.page()) {
            let conns = self.directory.get(&of_page[0].page());
            hear.extend(conns.into_iter().flatten().map(|conn| (*conn, of_page)));
        }
        // By session, and of each the pages as they stand in the commit.
        hear.sort_by_key(|(conn, _)| *conn);
        if let (Some(conn), Some(op)) = (owner, flight.op)
            && dropped(Rule::OwnNotInStream)
        {
            hear.retain(|(c, _)| *c != conn);
            cx.verdict(unasked(conn), op, Ok(flight.stamp));
        }
        for of_session in hear.chunk_by(|a, b| a.0 == b.0) {
            let conn = of_session[0].0;
            if self.is_resuming(conn) {
                // It receives all changes once its pages are known.
                continue;
            }
            let Some(session) = self.all.get_mut(&conn) else { continue };
            let orefs: Vec<Oref> = of_session.iter().flat_map(|(_, orefs)| *orefs).copied().collect();
            cx.work.stats.invalidations += if owner == Some(conn) { 0 } else { orefs.len() as u64 };
            let own = flight.op.filter(|_| owner == Some(conn));
            session.news.changes.push(Change { stamp: flight.stamp, own, orefs });
            told.push(conn);
        }
        self.horizon.changed(flight.stamp, flight.changed.clone());
    }

    /// Brings a session's stream up to the visible stamp.
    pub(super) fn stream_to(&mut self, conn: Conn, cx: &mut Cx) {
        let (visible, now) = (cx.work.pages.visible(), cx.work.now);
        if self.is_resuming(conn) {
            return;
        }
        let Some(session) = self.all.get_mut(&conn) else { return };
        let (pages, news) = (&mut session.pages, &mut session.news);
        let remind = !pages.revoking.is_empty() && now >= pages.reminded.plus_us(REMIND_US);
        if session.client.is_none()
            || (news.sent >= visible && pages.asking.is_empty() && !remind && !news.ack)
        {
            return;
        }
        let mut changes = std::mem::take(&mut news.changes);
        let ack = std::mem::take(&mut news.ack);
        let mut asked = std::mem::take(&mut pages.asking);
        if remind {
            pages.reminded = now;
            asked = pages.revoking.keys().copied().collect();
        }
        asked.sort_unstable();
        let revoking = &pages.revoking;
        let revoked: Vec<(PageId, u64)> =
            asked.into_iter().filter_map(|p| Some((p, *revoking.get(&p)?))).collect();
        let mut from = std::mem::replace(&mut news.sent, visible);
        send_dependencies(conn, from, cx);
        // A message is bounded, so a long catalogue of changes is cut between commits, and a large commit
        // within: its stamp is reached only by the last piece.
        while !changes.is_empty() {
            let (piece, to) = cut(&mut changes, visible);
            if changes.is_empty() {
                return send_stream(conn, Stream { from, to: visible, changes: piece, revoked, ack }, cx);
            }
            send_stream(conn, Stream { from, to, changes: piece, revoked: Vec::new(), ack: false }, cx);
            from = to;
        }
        send_stream(conn, Stream { from, to: visible, changes, revoked, ack }, cx);
    }

    /// Sends a session that has nothing to hear of a sign of life: a stream that goes nowhere.
    pub(super) fn show_life(&self, conn: Conn, cx: &mut Cx) {
        let Some(session) = self.all.get(&conn).filter(|session| session.client.is_some()) else { return };
        if !self.is_resuming(conn) {
            let (at, changes, revoked) = (session.news.sent, Vec::new(), Vec::new());
            send_stream(conn, Stream { from: at, to: at, changes, revoked, ack: false }, cx);
        }
    }
}

/// Tells a session of what the space rests on since a stamp: before the changes, so that it cannot see them
/// and not that. What is not stable yet may be told as well. A reader of it waits, at worst, for a state of
/// another space that it need not have waited for.
pub(super) fn send_dependencies(conn: Conn, since: Stamp, cx: &mut Cx) {
    let on = cx.work.replica.dependencies.after(since);
    if !on.is_empty() {
        cx.answer(unasked(conn), &FromServer::Dependencies(Dependencies { on }));
    }
}

fn send_stream(conn: Conn, stream: Stream, cx: &mut Cx) {
    let orefs: usize = stream.changes.iter().map(|c| c.orefs.len()).sum();
    let mut body = Vec::with_capacity(32 + 48 * stream.changes.len() + 4 * orefs + 12 * stream.revoked.len());
    stream.encode(&mut body);
    cx.reply(conn, Kind::Stream, 0, &body);
}

/// A client is asked for a page once, and reminded of all that it has not given back this often at most: each
/// message with all of them would cost more than what it comes with.
const REMIND_US: u64 = 50_000;

/// Takes as many changes off the front as a message holds, and says up to which stamp they are complete.
fn cut(changes: &mut Vec<Change>, visible: Stamp) -> (Vec<Change>, Stamp) {
    const OREFS_MAX: usize = BODY_BYTES_MAX / 8;
    const CHANGES_MAX: usize = BODY_BYTES_MAX / 128;
    let mut orefs = 0;
    let mut n = 0;
    while n < changes.len() && n < CHANGES_MAX && orefs + changes[n].orefs.len() <= OREFS_MAX {
        orefs += changes[n].orefs.len();
        n += 1;
    }
    if n == 0 {
        let rest = changes[0].orefs.split_off(OREFS_MAX);
        let piece = std::mem::replace(&mut changes[0].orefs, rest);
        let stamp = changes[0].stamp;
        let to = Stamp(stamp.0.saturating_sub(1));
        return (vec![Change { stamp, own: None, orefs: piece }], to);
    }
    let rest = changes.split_off(n);
    let piece = std::mem::replace(changes, rest);
    let to = if changes.is_empty() { visible } else { piece.last().map_or(visible, |c| c.stamp) };
    (piece, to)
}
