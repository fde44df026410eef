//! Serving pages.

use std::sync::Arc;

use tercel_wire::frame::Kind;
use tercel_wire::id::PageId;
use tercel_wire::message::{Fetch, PageReply, Reason};
use tercel_wire::page::Page;

use super::reads::{Done, Waiter};
use super::{Conn, Effect, Effects, Server};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::store::image::Found;

impl Server {
    pub(super) fn fetch(&mut self, conn: Conn, call: u64, fetch: Fetch, out: &mut Effects) {
        self.stats.fetches += 1;
        self.answer(conn, call, fetch, out);
    }

    fn answer(&mut self, conn: Conn, call: u64, fetch: Fetch, out: &mut Effects) {
        match self.image(fetch.page) {
            Found::Current(bytes) | Found::Stale(bytes) => self.serve(conn, call, fetch, bytes, out),
            Found::Missing => {
                if let Some(session) = self.sessions.get_mut(&conn) {
                    if session.pending >= limits::CREDIT as usize {
                        let text = "more requests under way than were granted";
                        return self.refuse(conn, call, Reason::Full, text, out);
                    }
                    session.pending += 1;
                }
                self.reads.wait(fetch.page, Waiter::Fetch(conn, call, fetch));
            }
        }
    }

    fn serve(&mut self, conn: Conn, call: u64, fetch: Fetch, bytes: Option<Arc<Vec<u8>>>, out: &mut Effects) {
        // The subscription holds from the stamp of the reply, and the stream is there before it.
        if !dropped(Rule::InstallBeforeWatermark) {
            self.stream_to(conn, out);
        }
        self.subscribe(conn, fetch.page, fetch.fetch, out);
        if !self.sessions.contains_key(&conn) {
            return;
        }
        let mut body = Vec::with_capacity(8 + tercel_wire::page::PAGE_BYTES);
        PageReply { fetch, bytes: bytes.as_ref().map_or(&[], |b| b.as_slice()) }.encode(&mut body);
        self.reply(conn, Kind::Page, call, &body, out);
    }

    /// Asks the host for the pages whose turn it is.
    pub(super) fn ask_reads(&mut self, out: &mut Effects) {
        while let Some(page) = self.reads.next() {
            self.stats.page_reads += 1;
            out.push(Effect::Read(page));
        }
    }

    pub(super) fn page_read(
        &mut self,
        page: PageId,
        result: Result<Option<Vec<u8>>, String>,
        out: &mut Effects,
    ) {
        let waiters = match self.reads.done(page) {
            Done::For(waiters) => waiters,
            Done::Again => return out.push(Effect::Read(page)),
            Done::Unasked => return,
        };
        let checked = result.and_then(|bytes| match bytes {
            None => Ok(None),
            Some(bytes) => match Page::parse(&bytes, page) {
                Ok(_) => Ok(Some(bytes)),
                Err(e) => Err(e.to_string()),
            },
        });
        let failed = match checked {
            Ok(bytes) => {
                self.images.put(page, bytes.map(Arc::new), true);
                // What the buffer has for it is laid over now, whoever still waits: once an install that is under way is
                // done, the buffer does not have it any more.
                self.image(page);
                None
            }
            Err(e) => Some(e),
        };
        for waiter in waiters {
            match (waiter, &failed) {
                (Waiter::Fetch(conn, call, fetch), failed) => {
                    if let Some(session) = self.sessions.get_mut(&conn) {
                        session.pending = session.pending.saturating_sub(1);
                    }
                    match failed {
                        None => self.answer(conn, call, fetch, out),
                        Some(e) => self.refuse(conn, call, Reason::Corrupt, e.clone(), out),
                    }
                }
                (Waiter::Commit(_, parked), None) => self.unpark(parked, out),
                (Waiter::Commit(_, parked), Some(e)) => self.fail_parked(parked, e, out),
                (Waiter::Large(_, id), failed) => self.large_read(id, failed.as_deref(), out),
                (Waiter::Install, None) => self.install_read(out),
                // A damaged page that must be rewritten cannot be: stopping keeps the log, which has the new objects.
                (Waiter::Install, Some(e)) => {
                    let next = "`tercel check --repair` restores what the log holds";
                    out.push(Effect::Stop(format!("{e}; {next}")));
                }
            }
        }
    }
}
