//! Serving pages.

use std::sync::Arc;

use tercel_wire::frame::Kind;
use tercel_wire::id::PageId;
use tercel_wire::message::{Fetch, PageReply, Reason};
use tercel_wire::page::Page;

use super::{Conn, Effect, Effects, Server};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::store::image::Found;

/// Who waits for a page to be read.
pub(super) enum Waiter {
    /// A client's fetch.
    Fetch(Conn, u64, Fetch),
    /// A commit that must know how much room there is.
    Commit(Conn, u64),
    /// The installer.
    Install,
}

/// A read under way.
#[derive(Default)]
pub(super) struct Reading {
    pub waiters: Vec<Waiter>,
    /// What it brings may be older than what has been stored since.
    pub again: bool,
}

impl Waiter {
    pub(super) fn is_of(&self, conn: Conn) -> bool {
        match self {
            Waiter::Fetch(c, ..) | Waiter::Commit(c, _) => *c == conn,
            Waiter::Install => false,
        }
    }
}

impl Server {
    pub(super) fn fetch(&mut self, conn: Conn, call: u64, fetch: Fetch, out: &mut Effects) {
        self.stats.fetches += 1;
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
                self.read(fetch.page, Waiter::Fetch(conn, call, fetch), out);
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

    /// Asks for a page to be read, once however many wait for it.
    pub(super) fn read(&mut self, page: PageId, waiter: Waiter, out: &mut Effects) {
        let reading = self.reading.entry(page);
        let is_new = matches!(reading, hashbrown::hash_map::Entry::Vacant(_));
        reading.or_default().waiters.push(waiter);
        if is_new {
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
        let Some(Reading { waiters, again }) = self.reading.remove(&page) else { return };
        if again {
            self.reading.insert(page, Reading { waiters, again: false });
            return out.push(Effect::Read(page));
        }
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
                        None => self.fetch(conn, call, fetch, out),
                        Some(e) => self.refuse(conn, call, Reason::Corrupt, e.clone(), out),
                    }
                }
                (Waiter::Commit(_, parked), None) => self.unpark(parked, out),
                (Waiter::Commit(_, parked), Some(e)) => self.fail_parked(parked, e, out),
                (Waiter::Install, None) => self.install_read(out),
                // A damaged page that must be rewritten cannot be: stopping keeps the log, which has the new objects.
                (Waiter::Install, Some(e)) => out.push(Effect::Stop(e.clone())),
            }
        }
    }
}
