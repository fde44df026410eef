//! Pages, and the sessions that hear of them.
//!
//! The directory is bounded by session: beyond the bound some page is asked back, and is forgotten once the client has said
//! so, not before.

use tercel_wire::id::PageId;
use tercel_wire::message::Unsubscribe;

use super::{Cx, Sessions};
use crate::effect::Conn;
use crate::limits;
use crate::mutant::{Rule, dropped};

/// A session that is gone and may still be in the lists of those that hear of these pages.
#[derive(Debug)]
pub(super) struct Leaving {
    pub conn: Conn,
    pub pages: hashbrown::hash_map::IntoIter<PageId, u64>,
}

/// Pages whose lists a session that is gone is taken from in one go: some hundred microseconds. A client may have had a
/// million.
const LEAVE_AT_ONCE: usize = 2_000;

impl Sessions {
    /// Adds a session to those that hear of a page.
    pub(super) fn subscribe(&mut self, conn: Conn, page: PageId, fetch: u64, cx: &mut Cx<'_>) {
        let Some(session) = self.all.get_mut(&conn) else { return };
        let pages = &mut session.pages;
        pages.revoking.remove(&page);
        if pages.held.insert(page, fetch).is_none() {
            self.directory.entry(page).or_default().push(conn);
            self.listening.insert(conn);
            if pages.revoking.len() >= limits::REVOKING_MAX {
                return self.expel(conn, "the client does not give pages back that it is asked for", cx);
            }
            if pages.held.len() > cx.config.subscriptions_max + pages.revoking.len() {
                self.revoke_one(conn, page, cx);
            }
        }
    }

    fn revoke_one(&mut self, conn: Conn, but: PageId, cx: &mut Cx<'_>) {
        let Some(session) = self.all.get_mut(&conn) else { return };
        let pages = &mut session.pages;
        let victim = pages.held.iter().find(|(p, _)| **p != but && !pages.revoking.contains_key(*p));
        if let Some((page, fetch)) = victim.map(|(p, f)| (*p, *f)) {
            if dropped(Rule::SilentOverflow) {
                pages.held.remove(&page);
                return self.leave(page, conn);
            }
            pages.revoking.insert(page, fetch);
            pages.asking.push(page);
            cx.stats.revocations += 1;
        }
    }

    pub(super) fn unsubscribe(&mut self, conn: Conn, u: &Unsubscribe) {
        for (page, fetch) in &u.pages {
            let Some(session) = self.all.get_mut(&conn) else { return };
            let pages = &mut session.pages;
            pages.revoking.remove(page);
            // A fetch that was served later than the one named keeps the subscription.
            let any = dropped(Rule::UnsubscribeWithoutNumber);
            if pages.held.get(page).is_some_and(|served| served <= fetch || any) {
                pages.held.remove(page);
                if pages.held.is_empty() {
                    self.listening.remove(&conn);
                }
                self.leave(*page, conn);
            }
        }
    }

    /// Takes sessions that are gone from the lists of those that hear of their pages, some pages at a time. Until then they
    /// are in these lists for nothing.
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
