//! Pages, and the sessions that receive their changes.
//!
//! The directory is bounded by session: beyond the bound some page is asked back, and is forgotten once the
//! client has said so, not before. All of it is bounded, too: there the session that has most is asked.

use tercel_wire::id::PageId;
use tercel_wire::message::{Refusal, Unsubscribe};

use super::{Cx, Sessions};
use crate::effect::Conn;
use crate::limits;
use crate::mutant::{Rule, dropped};

/// A session that is gone and may still be in the lists of subscribers of these pages.
#[derive(Debug)]
pub(super) struct Leaving {
    pub conn: Conn,
    pub pages: hashbrown::hash_map::IntoIter<PageId, u64>,
}

/// Pages whose lists a session that is gone is taken from in one go: some hundred microseconds. A client may
/// have had a million.
const LEAVE_AT_ONCE: usize = 2_000;

/// The session that has most pages, or had lately.
#[derive(Debug, Default)]
pub(super) struct Fullest {
    /// Pages that all sessions are subscribed to and were not asked back.
    pub kept: usize,
    conn: Option<Conn>,
    /// The number of times that it is taken as the fullest without another look at all sessions.
    looks: usize,
}

/// Pages asked back until all sessions are looked at again for the one that has most: a look at thousands of
/// sessions costs each of these pages some nanoseconds.
const LOOK_EVERY: usize = 1_000;

/// Pages that a session is asked for with one message, while it has nothing else to receive.
const ASKED_TOGETHER: usize = 32;

/// Pages of which the one that was fetched first is asked for. With a single one, those that a transaction
/// needs could push each other out for ever.
const LOOKED_AT: usize = 32;

impl Sessions {
    /// Adds a session to the subscribers of a page.
    pub(super) fn subscribe(&mut self, conn: Conn, page: PageId, fetch: u64, cx: &mut Cx) {
        let Some(session) = self.all.get_mut(&conn) else { return };
        let pages = &mut session.pages;
        let before = pages.kept();
        pages.revoking.remove(&page);
        let is_new = pages.held.insert(page, fetch).is_none();
        self.fullest.kept = self.fullest.kept - before + pages.kept();
        if is_new {
            self.directory.entry(page).or_default().push(conn);
            self.listening.insert(conn);
            if pages.revoking.len() >= limits::REVOKING_MAX {
                return self.expel(conn, "the client does not give pages back that it is asked for", cx);
            }
            if pages.kept() > cx.work.config.subscriptions_max {
                self.revoke_one(conn, page, cx);
            }
        }
        if self.fullest.kept > cx.work.config.subscriptions_all_max {
            self.revoke_of_fullest(conn, page, cx);
        }
    }

    /// All sessions together have too many pages: the one that has most is asked for one. One that gives
    /// nothing back ends.
    fn revoke_of_fullest(&mut self, asking: Conn, but: PageId, cx: &mut Cx) {
        if self.fullest.looks == 0 || !self.fullest.conn.is_some_and(|conn| self.all.contains_key(&conn)) {
            let by_pages = self.all.iter().map(|(conn, s)| (s.pages.kept(), *conn));
            (self.fullest.conn, self.fullest.looks) = (by_pages.max().map(|(_, conn)| conn), LOOK_EVERY);
        }
        self.fullest.looks -= 1;
        let Some(conn) = self.fullest.conn else { return };
        let Some(session) = self.all.get(&conn) else { return };
        if session.pages.revoking.len() >= limits::REVOKING_MAX {
            let text = "all clients together have too many pages cached, and this one has most and gives none back: \
                        connect again";
            return self.turn_away(conn, Refusal::FULL, text, cx);
        }
        self.revoke_one(conn, but, cx);
        // The session that asks for a page receives its changes with the reply to its next request.
        let is_much = |s: &super::Session| s.pages.asking.len() >= ASKED_TOGETHER;
        if conn != asking && self.all.get(&conn).is_some_and(is_much) {
            self.stream_to(conn, cx);
        }
    }

    fn revoke_one(&mut self, conn: Conn, but: PageId, cx: &mut Cx) {
        let Some(session) = self.all.get_mut(&conn) else { return };
        let pages = &mut session.pages;
        let others = pages.held.iter().filter(|(p, _)| **p != but && !pages.revoking.contains_key(*p));
        let victim = others.take(LOOKED_AT).min_by_key(|(_, fetch)| **fetch);
        if let Some((page, fetch)) = victim.map(|(p, f)| (*p, *f)) {
            self.fullest.kept -= 1;
            if dropped(Rule::SilentOverflow) {
                pages.held.remove(&page);
                return self.leave(page, conn);
            }
            pages.revoking.insert(page, fetch);
            pages.asking.push(page);
            cx.work.stats.revocations += 1;
        }
    }

    pub(super) fn unsubscribe(&mut self, conn: Conn, u: &Unsubscribe) {
        for (page, fetch) in &u.pages {
            let Some(session) = self.all.get_mut(&conn) else { return };
            let pages = &mut session.pages;
            let before = pages.kept();
            pages.revoking.remove(page);
            // A fetch that was served later than the one named keeps the subscription.
            let any = dropped(Rule::UnsubscribeWithoutNumber);
            let is_given_back = pages.held.get(page).is_some_and(|served| served <= fetch || any);
            if is_given_back {
                pages.held.remove(page);
            }
            self.fullest.kept = self.fullest.kept - before + pages.kept();
            if is_given_back {
                if pages.held.is_empty() {
                    self.listening.remove(&conn);
                }
                self.leave(*page, conn);
            }
        }
    }

    /// Takes sessions that are gone from the lists of subscribers of their pages, some pages at a time. Until
    /// then they are in these lists for nothing.
    pub(crate) fn leave_some(&mut self) {
        for _ in 0..LEAVE_AT_ONCE {
            let Some(leaving) = self.leaving.front_mut() else { return };
            let conn = leaving.conn;
            match leaving.pages.next() {
                Some((page, _)) => self.leave(page, conn),
                None => _ = self.leaving.pop_front(),
            }
        }
    }

    fn leave(&mut self, page: PageId, conn: Conn) {
        if let Some(conns) = self.directory.get_mut(&page) {
            conns.retain(|c| *c != conn);
            if conns.is_empty() {
                self.directory.remove(&page);
            }
        }
    }
}
