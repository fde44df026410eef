//! Making commits visible, and telling who must know.

use tercel_wire::frame::{BODY_BYTES_MAX, Kind};
use tercel_wire::id::{Oref, PageId, Stamp};
use tercel_wire::message::{Change, Outcome, Stream, Unsubscribe};

use super::{Conn, Effects, Flight, Server};
use crate::limits;
use crate::mutant::{self, Rule, dropped};
use crate::order::{Delivery, Level, Ordering};

impl Server {
    /// Takes in what the ordering engine reports.
    pub(super) fn deliver(&mut self, out: &mut Effects) {
        while let Some(delivery) = self.order.poll() {
            match delivery {
                Delivery::Safe(stamp, Level::Disk) => self.show(stamp, out),
                Delivery::Safe(..) | Delivery::Ordered(..) | Delivery::Lost(_) => {}
            }
        }
    }

    /// Makes everything up to `stamp` visible: pages, then the stream. Who committed is told there that it did, and needs
    /// no other answer.
    pub(super) fn show(&mut self, stamp: Stamp, out: &mut Effects) {
        let mut shown: Vec<Flight> = Vec::new();
        while self.flights.front().is_some_and(|f| f.stamp <= stamp) {
            shown.extend(self.flights.pop_front());
        }
        self.visible = self.visible.max(stamp);
        let mut told: Vec<Conn> = Vec::with_capacity(shown.len());
        for flight in &shown {
            self.show_one(flight, &mut told, out);
        }
        told.sort_unstable();
        told.dedup();
        for conn in told {
            self.stream_to(conn, out);
        }
        self.show_classes(out);
        self.show_leases(out);
    }

    fn show_one(&mut self, flight: &Flight, told: &mut Vec<Conn>, out: &mut Effects) {
        let owner = flight.op.and_then(|op| self.clients.get(&op.client)).copied();
        // Who hears of which of them: the directory has of every page the sessions that are subscribed to it.
        let mut hear: Vec<(Conn, &[Oref])> = owner.map(|conn| (conn, &[][..])).into_iter().collect();
        // Objects of a page mostly stand together.
        for of_page in flight.changed.chunk_by(|a, b| a.page() == b.page()) {
            let page = of_page[0].page();
            self.images.changed(page);
            hear.extend(self.directory.get(&page).into_iter().flatten().map(|conn| (*conn, of_page)));
        }
        // By session, and of each the pages as they stand in the commit.
        hear.sort_by_key(|(conn, _)| *conn);
        self.settling.push_back((flight.changed.clone(), 0));
        if flight.changed.len() <= SETTLE_AT_ONCE && self.settling.len() == 1 {
            self.settle();
        }
        if let Some(conn) = owner
            && dropped(Rule::OwnNotInStream)
        {
            hear.retain(|(c, _)| *c != conn);
            flight
                .op
                .into_iter()
                .for_each(|op| self.verdict(conn, 0, op, Outcome::Committed(flight.stamp), out));
        }
        for of_session in hear.chunk_by(|a, b| a.0 == b.0) {
            let conn = of_session[0].0;
            let Some(session) = self.sessions.get_mut(&conn) else { continue };
            let orefs: Vec<Oref> = of_session.iter().flat_map(|(_, orefs)| *orefs).copied().collect();
            self.stats.invalidations += if owner == Some(conn) { 0 } else { orefs.len() as u64 };
            let own = flight.op.filter(|_| owner == Some(conn));
            session.changes.push(Change { stamp: flight.stamp, own, orefs });
            told.push(conn);
        }
        self.remember(flight);
    }

    /// Drops versions that visible ones hide, some of them.
    pub(super) fn settle(&mut self) {
        if self.settling.is_empty() {
            return;
        }
        let mut left = SETTLE_AT_ONCE;
        while left > 0
            && let Some((changed, next)) = self.settling.front_mut()
        {
            let end = changed.len().min(*next + left);
            left -= end - *next;
            for oref in &changed[*next..end] {
                self.mob.settle(oref.page(), oref.slot(), self.visible);
            }
            *next = end;
            if end == changed.len() {
                self.settling.pop_front();
            }
        }
        if left == 0 {
            join_freed();
        }
    }

    /// Keeps the change for sessions that resume.
    fn remember(&mut self, flight: &Flight) {
        if flight.changed.is_empty() {
            return;
        }
        self.recent_orefs += flight.changed.len();
        self.recent.push_back((flight.stamp, flight.changed.clone()));
        while self.recent_orefs > mutant::bound(limits::RECENT_CHANGES_MAX, 16) {
            let Some((stamp, changed)) = self.recent.pop_front() else { break };
            self.recent_orefs -= changed.len();
            self.recent_from = stamp;
        }
    }

    /// Brings a session's stream up to the visible stamp.
    pub(super) fn stream_to(&mut self, conn: Conn, out: &mut Effects) {
        let (visible, now) = (self.visible, self.now);
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let remind = !session.revoking.is_empty() && now >= session.reminded.plus_us(REMIND_US);
        if session.client.is_none() || (session.sent >= visible && session.asking.is_empty() && !remind) {
            return;
        }
        let mut changes = std::mem::take(&mut session.changes);
        let mut asked = std::mem::take(&mut session.asking);
        if remind {
            session.reminded = now;
            asked = session.revoking.keys().copied().collect();
        }
        asked.sort_unstable();
        let revoking = &session.revoking;
        let revoked: Vec<(PageId, u64)> =
            asked.into_iter().filter_map(|p| Some((p, *revoking.get(&p)?))).collect();
        let mut from = std::mem::replace(&mut session.sent, visible);
        // A message is bounded, so a long catalogue of changes is cut between commits, and a large commit within:
        // its stamp is reached only by the last piece.
        while !changes.is_empty() {
            let (piece, to) = cut(&mut changes, visible);
            if changes.is_empty() {
                return self.send_stream(conn, Stream { from, to: visible, changes: piece, revoked }, out);
            }
            self.send_stream(conn, Stream { from, to, changes: piece, revoked: Vec::new() }, out);
            from = to;
        }
        self.send_stream(conn, Stream { from, to: visible, changes, revoked }, out);
    }

    fn send_stream(&mut self, conn: Conn, stream: Stream, out: &mut Effects) {
        let orefs: usize = stream.changes.iter().map(|c| c.orefs.len()).sum();
        let mut body =
            Vec::with_capacity(32 + 32 * stream.changes.len() + 4 * orefs + 8 * stream.revoked.len());
        stream.encode(&mut body);
        self.reply(conn, Kind::Stream, 0, &body, out);
    }

    /// Adds a session to those who hear of a page.
    pub(super) fn subscribe(&mut self, conn: Conn, page: PageId, fetch: u64, out: &mut Effects) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        session.revoking.remove(&page);
        if session.subscribed.insert(page, fetch).is_none() {
            self.directory.entry(page).or_default().push(conn);
            self.listening.insert(conn);
            if session.revoking.len() >= limits::REVOKING_MAX {
                return self.expel(conn, "the client does not give pages back that it is asked for", out);
            }
            if session.subscribed.len() > self.config.subscriptions_max + session.revoking.len() {
                self.revoke_one(conn, page);
            }
        }
    }

    /// The directory is bounded: some other page of the session is asked back. It is forgotten once the session has
    /// said so, not before.
    fn revoke_one(&mut self, conn: Conn, but: PageId) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let victim =
            session.subscribed.iter().find(|(p, _)| **p != but && !session.revoking.contains_key(*p));
        if let Some((page, fetch)) = victim.map(|(p, f)| (*p, *f)) {
            if dropped(Rule::SilentOverflow) {
                session.subscribed.remove(&page);
                return self.leave(page, conn);
            }
            session.revoking.insert(page, fetch);
            session.asking.push(page);
            self.stats.revocations += 1;
        }
    }

    pub(super) fn unsubscribe(&mut self, conn: Conn, u: &Unsubscribe) {
        for (page, fetch) in &u.pages {
            let Some(session) = self.sessions.get_mut(&conn) else { return };
            session.revoking.remove(page);
            // A fetch that was served later than the one named keeps the subscription.
            let any = dropped(Rule::UnsubscribeWithoutNumber);
            if session.subscribed.get(page).is_some_and(|served| served <= fetch || any) {
                session.subscribed.remove(page);
                if session.subscribed.is_empty() {
                    self.listening.remove(&conn);
                }
                self.leave(*page, conn);
            }
        }
    }
}

/// A client is asked for a page once, and reminded of all that it has not given back this often at most: each message with
/// all of them would cost more than what it comes with.
const REMIND_US: u64 = 50_000;

/// Objects whose hidden versions are dropped in one go: a hundred microseconds or two.
const SETTLE_AT_ONCE: usize = 500;

/// Has the allocator join the small blocks that were given back. The C library's puts them aside and joins all of them at the
/// next request of a kilobyte or more, whoever makes it: after 100,000 of them that took ten milliseconds.
fn join_freed() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(4 << 10)));
}

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
