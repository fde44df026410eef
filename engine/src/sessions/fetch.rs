//! Serving pages.

use std::sync::Arc;

use tercel_wire::frame::Kind;
use tercel_wire::id::{PageId, Stamp};
use tercel_wire::message::{Fetch, PageReply, Refusal, Unchanged};
use tercel_wire::page::{Page, PageError};

use super::{Cx, Sessions};
use crate::effect::{Effect, Unread};
use crate::leader::Asked;
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::pages::image::CachedImage;
use crate::pages::reads::{Done, Waiter};

impl Sessions {
    pub(super) fn fetch(&mut self, asked: Asked, fetch: Fetch, cx: &mut Cx) {
        cx.work.stats.fetches += 1;
        self.serve_or_wait(asked, fetch, cx);
    }

    fn serve_or_wait(&mut self, asked: Asked, fetch: Fetch, cx: &mut Cx) {
        match cx.work.pages.image(fetch.page) {
            CachedImage::Current(bytes) | CachedImage::Stale(bytes) => self.serve(asked, fetch, bytes, cx),
            CachedImage::Missing => {
                let Some(session) = self.all.get_mut(&asked.conn) else { return };
                if session.fetches >= limits::credit() as usize {
                    return cx.refuse(asked, Refusal::FULL, "more requests under way than were granted");
                }
                session.fetches += 1;
                cx.work.pages.reads.wait(fetch.page, Waiter::Fetch(asked.conn, asked.call, fetch));
            }
        }
    }

    fn serve(&mut self, asked: Asked, fetch: Fetch, bytes: Option<Arc<Vec<u8>>>, cx: &mut Cx) {
        // The subscription holds from the stamp of the reply, and the stream is there before it.
        if !dropped(Rule::InstallBeforeWatermark) {
            self.stream_to(asked.conn, cx);
        }
        self.subscribe(asked.conn, fetch.page, fetch.fetch, cx);
        if !self.all.contains_key(&asked.conn) {
            return;
        }
        let (page, number) = (fetch.page, fetch.fetch);
        let bytes = bytes.as_ref().map_or(&[][..], |b| b.as_slice());
        if fetch.since.is_some_and(|since| is_unchanged(bytes, since, cx)) {
            cx.work.stats.fetches_unchanged += 1;
            let mut body = Vec::with_capacity(12);
            Unchanged { page, fetch: number }.encode(&mut body);
            return cx.reply(asked.conn, Kind::Unchanged, asked.call, &body);
        }
        let mut names = Vec::with_capacity(12);
        PageReply { page, fetch: number, bytes: &[] }.encode(&mut names);
        cx.reply_at(cx.work.pages.visible(), asked.conn, Kind::Page, asked.call, [&names, bytes]);
    }

    /// Takes a page from the store, or the news that it has none or cannot read it. Every waiter of the page
    /// goes on.
    pub(crate) fn page_read(&mut self, page: PageId, result: Result<Option<Vec<u8>>, Unread>, cx: &mut Cx) {
        let waiters = match cx.work.pages.reads.done(page) {
            Done::For(waiters) => waiters,
            Done::Again => return cx.out.push(Effect::Read(cx.joined, page)),
            Done::Unasked => return,
        };
        let checked = result.and_then(|bytes| match bytes {
            None => Ok(None),
            Some(bytes) => {
                let damaged = |e: PageError| Unread::Damaged(e.to_string());
                Page::parse(&bytes, page).map(|_| ()).map_err(damaged).map(|()| Some(bytes))
            }
        });
        let failed = checked.map(|bytes| cx.work.pages.keep_read(page, bytes.map(Arc::new))).err();
        for waiter in waiters {
            self.go_on(waiter, failed.as_ref(), cx);
        }
    }

    fn go_on(&mut self, waiter: Waiter, failed: Option<&Unread>, cx: &mut Cx) {
        match (waiter, failed) {
            (Waiter::Fetch(conn, call, fetch), failed) => {
                let Some(session) = self.all.get_mut(&conn) else { return };
                session.fetches = session.fetches.saturating_sub(1);
                let asked = Asked { conn, call };
                match failed {
                    None => self.serve_or_wait(asked, fetch, cx),
                    Some(e) => cx.refuse(asked, e.refusal(), e.to_string()),
                }
            }
            (Waiter::Commit(_, id), None) => self.lead(cx, |leader, work| leader.page_came(id, work)),
            (Waiter::Commit(_, id), Some(e)) => self.lead(cx, |leader, work| leader.page_failed(id, e, work)),
            (Waiter::Large(_, id), failed) => {
                self.lead(cx, |leader, work| leader.large_read(id, failed, work))
            }
            (Waiter::Settle(prepared), failed) => {
                self.lead(cx, |leader, work| leader.settle_read(prepared, failed, work));
            }
            (Waiter::Release(page), failed) => {
                self.lead(cx, |leader, work| leader.free_read(page, failed.is_some(), work));
            }
            (Waiter::Collect(page), failed) => {
                self.lead(cx, |leader, work| leader.collect_read(page, failed, work));
            }
            (Waiter::Inside(_, page), failed) => self.inside.page_read(page, failed),
            (Waiter::Install, None) => cx.work.pages.install_read(),
            (Waiter::Host, _) => {}
            // A page that must be rewritten and cannot be read: stopping keeps the log, which has the new
            // objects.
            (Waiter::Install, Some(e)) => cx.out.push(Effect::Stop(e.with_next_step())),
        }
    }
}

/// Says whether nothing in a page has changed after `since`, up to now. The page's stamp is that of its last
/// change, or higher. So a page that was emptied, given out again, or put right by a repair is not taken for
/// unchanged. A page that changed at `since` itself is not called unchanged, because a repair gives the stamp
/// of the last commit to every page from which it lost something.
fn is_unchanged(bytes: &[u8], since: Stamp, cx: &Cx) -> bool {
    let is_proven = since <= cx.work.pages.visible() && Page::stamp_in(bytes) < since;
    !bytes.is_empty() && (is_proven || dropped(Rule::UnchangedUnproved))
}
