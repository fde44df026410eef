//! Pages asked for and pages subscribed to.
//!
//! Invalidations that arrive while a fetch is outstanding are kept with it and applied to its reply: which of the two
//! came first on the wire does not matter, only their stamps do.

use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{Oref, PageId, Stamp};
use tercel_wire::message::{Fetch as FetchMessage, PageReply, Unsubscribe};
use tercel_wire::page::Page;

use super::Client;
use crate::error::Error;
use crate::table::Map;

/// Fetches and subscriptions of a client.
#[derive(Default)]
pub(super) struct Fetches {
    /// Counts fetches, over all connections.
    last: u32,
    outstanding: Map<PageId, Outstanding>,
    /// What the server must tell us about, and the last fetch that was served.
    subscribed: Map<PageId, u32>,
    /// How the last fetch of a page ended, if not with a page.
    ended: Map<PageId, (u32, Result<(), Error>)>,
    dropped: Vec<PageId>,
}

struct Outstanding {
    call: u64,
    fetch: u32,
    /// Slots that changed meanwhile, and when.
    kept: Vec<(u16, Stamp)>,
    /// A reply that came before the watermark reached it.
    early: Option<(Stamp, Vec<u8>)>,
}

/// Ends without a page that are remembered for whoever waits; each is looked at at once or asked for again.
const ENDED_MAX: usize = 1_024;

impl Fetches {
    pub(super) fn subscriptions(&self) -> Vec<(PageId, u32)> {
        let mut all: Vec<_> = self.subscribed.iter().map(|(p, f)| (*p, *f)).collect();
        all.sort_unstable();
        all
    }

    pub(super) fn is_subscribed(&self, page: PageId) -> bool {
        self.subscribed.contains_key(&page)
    }

    /// The number of the next fetch.
    pub(super) fn next_number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// The connection is gone.
    pub(super) fn abandon(&mut self) {
        self.outstanding.clear();
        self.ended.clear();
    }

    /// The server has forgotten the subscriptions.
    pub(super) fn forget(&mut self) {
        self.subscribed.clear();
    }

    pub(super) fn refused(&mut self, call: u64, error: &Error) -> bool {
        let Some(page) = self.outstanding.iter().find(|(_, o)| o.call == call).map(|(p, _)| *p) else {
            return false;
        };
        if let Some(o) = self.outstanding.remove(&page) {
            self.end(page, o.fetch, Err(error.clone()));
        }
        true
    }

    fn end(&mut self, page: PageId, fetch: u32, how: Result<(), Error>) {
        if self.ended.len() >= ENDED_MAX {
            self.ended.clear();
        }
        self.ended.insert(page, (fetch, how));
    }

    /// An object changed: fetches under way must know.
    pub(super) fn changed(&mut self, oref: Oref, stamp: Stamp) {
        if let Some(o) = self.outstanding.get_mut(&oref.page()) {
            o.kept.push((oref.slot(), stamp));
        }
    }

    /// How the fetch `fetch` of `page` or a later one ended without a page.
    pub(super) fn ended(&self, page: PageId, fetch: u32) -> Option<&Result<(), Error>> {
        self.ended.get(&page).filter(|(f, _)| *f >= fetch).map(|(_, how)| how)
    }

    /// The server wants to forget a page: whether it may, which it may not if a newer fetch was served or is under way.
    pub(super) fn revoke(&mut self, page: PageId, fetch: u32) -> bool {
        if self.outstanding.contains_key(&page) {
            return false;
        }
        match self.subscribed.get(&page) {
            Some(served) if *served <= fetch => {
                self.subscribed.remove(&page);
                true
            }
            _ => false,
        }
    }
}

impl Client {
    /// Asks for a page, unless that is under way; gives the fetch's number.
    pub(super) fn fetch(&mut self, page: PageId) -> u32 {
        if let Some(o) = self.fetches.outstanding.get(&page) {
            return o.fetch;
        }
        let fetch = self.fetches.next_number();
        let mut body = Vec::with_capacity(8);
        FetchMessage { page, fetch }.encode(&mut body);
        let call = self.request(Kind::Fetch, &body);
        self.fetches.ended.remove(&page);
        let o = Outstanding { call, fetch, kept: Vec::new(), early: None };
        self.fetches.outstanding.insert(page, o);
        self.stats.fetches += 1;
        fetch
    }

    pub(super) fn page(&mut self, header: &Header, reply: PageReply<'_>) -> Result<(), Error> {
        let page = reply.fetch.page;
        if self.raw.take(header.call, &reply) {
            self.settle_raw(page, reply.fetch.fetch);
            return Ok(());
        }
        match self.fetches.outstanding.get_mut(&page) {
            Some(o) if o.call == header.call && o.fetch == reply.fetch.fetch => {
                if self.reader.watermark() < header.stamp {
                    o.early = Some((header.stamp, reply.bytes.to_vec()));
                    return Ok(());
                }
            }
            // Not asked for on this connection, or answered before.
            _ => return Ok(()),
        }
        self.install(page, header.stamp, reply.bytes)
    }

    /// A raw read subscribed this client like any fetch: that is kept if the page is cached, and given back if not.
    fn settle_raw(&mut self, page: PageId, fetch: u32) {
        match self.fetches.subscribed.get_mut(&page) {
            Some(served) => *served = (*served).max(fetch),
            None if self.fetches.outstanding.contains_key(&page) => {}
            None => self.send_unsubscribe(vec![(page, fetch)]),
        }
    }

    fn install(&mut self, page: PageId, at: Stamp, bytes: &[u8]) -> Result<(), Error> {
        let Some(o) = self.fetches.outstanding.remove(&page) else { return Ok(()) };
        self.fetches.subscribed.insert(page, o.fetch);
        if bytes.is_empty() {
            self.fetches.end(page, o.fetch, Ok(()));
            self.fetches.dropped.push(page);
            return Ok(());
        }
        let parsed = match Page::parse(bytes, page) {
            Ok(parsed) => parsed,
            Err(e) => {
                self.fetches.end(page, o.fetch, Err(Error::Corrupt(e.to_string())));
                return Ok(());
            }
        };
        let mut stale: Vec<u16> = o.kept.iter().filter(|(_, s)| *s > at).map(|(slot, _)| *slot).collect();
        stale.sort_unstable();
        stale.dedup();
        self.stats.pages += 1;
        if let Err(full) = self.writer.install(&parsed, at, &stale) {
            let e = Error::Full(format!("the client's cache: {full}"));
            self.fetches.end(page, o.fetch, Err(e));
            self.fetches.dropped.push(page);
        }
        Ok(())
    }

    /// Replies that waited for the watermark.
    pub(super) fn install_early(&mut self) -> Result<(), Error> {
        let w = self.reader.watermark();
        let ready: Vec<PageId> = self
            .fetches
            .outstanding
            .iter()
            .filter(|(_, o)| o.early.as_ref().is_some_and(|(at, _)| *at <= w))
            .map(|(p, _)| *p)
            .collect();
        for page in ready {
            let early = self.fetches.outstanding.get_mut(&page).and_then(|o| o.early.take());
            if let Some((at, bytes)) = early {
                self.install(page, at, &bytes)?;
            }
        }
        Ok(())
    }

    /// Tells the server which pages no cached object, pin, read set, fetch or unresolved commit names any more.
    pub(super) fn unsubscribe(&mut self) {
        let mut dropped = std::mem::take(&mut self.fetches.dropped);
        self.writer.dropped(&mut dropped);
        let mut pages = Vec::new();
        for page in dropped.drain(..) {
            let held = self.fetches.outstanding.contains_key(&page)
                || self.writer.is_held(page)
                || self.ops.names(page);
            if held {
                continue;
            }
            if let Some(fetch) = self.fetches.subscribed.remove(&page) {
                pages.push((page, fetch));
            }
        }
        self.fetches.dropped = dropped;
        self.send_unsubscribe(pages);
    }

    pub(super) fn send_unsubscribe(&mut self, pages: Vec<(PageId, u32)>) {
        if pages.is_empty() || self.link != super::Link::Up {
            return;
        }
        let mut body = Vec::new();
        Unsubscribe { pages }.encode(&mut body);
        self.request(Kind::Unsubscribe, &body);
    }
}
