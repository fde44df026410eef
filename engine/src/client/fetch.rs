//! Pages asked for and pages subscribed to.
//!
//! Invalidations that arrive while a fetch is outstanding are kept with it and applied to its reply: which of
//! the two came first on the wire does not matter, only their stamps do. That a slot is empty is believed
//! only as long as the page is subscribed to and nothing was born in the slot since the fetch that showed it.

use std::collections::VecDeque;

use tercel_heap::InstallError;
use tercel_wire::frame::Kind;
use tercel_wire::id::{Oref, PageId, SLOTS_MAX, Stamp};
use tercel_wire::message::{Fetch as FetchMessage, Unsubscribe};
use tercel_wire::page::Page;

use super::Client;
use super::pending::Asked;
use crate::error::{Bound, Error};
use crate::limits;
use crate::mutant::{self, Rule, dropped};
use crate::table::{Map, Set};

/// Fetches and subscriptions of a client.
#[derive(Default)]
pub(super) struct Fetches {
    /// Counts fetches, over all connections.
    last: u64,
    outstanding: Map<PageId, Outstanding>,
    /// The number of fetches that the server lets wait at once.
    credit: usize,
    /// The pages whose changes the server must announce.
    subscribed: Map<PageId, Subscribed>,
    /// Pages that were found empty, the oldest first; some may have been fetched again since.
    empty: VecDeque<PageId>,
    /// The error of the last failed fetch of a page.
    failed: Map<PageId, (u64, Error)>,
    dropped: Vec<PageId>,
    /// Subscriptions that were given back, that were not reported to the server yet, each with its fetch.
    leaving: Vec<(PageId, u64)>,
    /// Pages that the server asked back and that were not fetched since.
    given_back: Set<PageId>,
    /// Subscriptions that have ended while a copy of the page was here: what was known of its slots up to
    /// then.
    ended: Map<PageId, Subscribed>,
}

struct Subscribed {
    /// The last fetch that was served.
    fetch: u64,
    /// The last of them that was served with the page.
    shown: u64,
    /// Nothing was ever written to the page.
    empty: bool,
    /// The birth of the page as that fetch showed it, if it showed one.
    birth: Option<Stamp>,
    /// Slots that changed since it was shown, if any did.
    changed: Option<Box<Slots>>,
    /// The slots that others changed: the page may have been given out again meanwhile.
    foreign: Option<Box<Slots>>,
}

/// A bit for each slot of a page.
type Slots = [u64; SLOTS_MAX as usize / 64];

fn set_slot(slots: &mut Option<Box<Slots>>, slot: u16) {
    slots.get_or_insert_default()[slot as usize / 64] |= 1 << (slot % 64);
}

fn has_slot(slots: &Option<Box<Slots>>, slot: u16) -> bool {
    slots.as_ref().is_some_and(|c| c[slot as usize / 64] & 1 << (slot % 64) != 0)
}

/// A fetch under way: its reply is pending, or has come too early to count.
struct Outstanding {
    fetch: u64,
    /// The stamp up to which the copy here is current, if the request named it: the server may answer that
    /// nothing has changed since.
    since: Option<Stamp>,
    /// Slots that changed meanwhile, and when.
    kept: Vec<(u16, Stamp)>,
    /// A reply that came before the watermark reached it; without bytes if nothing has changed.
    early: Option<(Stamp, Option<Vec<u8>>)>,
}

impl Outstanding {
    /// The slots that changed after `at`.
    fn stale(&self, at: Stamp) -> Vec<u16> {
        let mut stale: Vec<u16> = self.kept.iter().filter(|(_, s)| *s > at).map(|(slot, _)| *slot).collect();
        stale.sort_unstable();
        stale.dedup();
        stale
    }
}

/// Failures that are remembered for waiting transactions. A transaction looks at a failure at once, or
/// fetches again.
const FAILED_MAX: usize = 1_024;

/// Subscriptions given back that are not reported to the server with another request.
const LEAVING_MAX: usize = 64;

/// Pages given back that are remembered, to distinguish a transaction that reads too much from one that was
/// unlucky.
const GIVEN_BACK_MAX: usize = 4_096;

impl Subscribed {
    /// A subscription to a page of which nothing is known.
    fn blind(fetch: u64) -> Subscribed {
        let all = || Some(Box::new([u64::MAX; SLOTS_MAX as usize / 64]));
        Subscribed { fetch, shown: 0, empty: false, birth: None, changed: all(), foreign: all() }
    }

    fn change(&mut self, slot: u16, is_own: bool) {
        set_slot(&mut self.changed, slot);
        if !is_own {
            set_slot(&mut self.foreign, slot);
        }
    }

    fn has_changed(&self, slot: u16) -> bool {
        has_slot(&self.changed, slot)
    }
}

impl Fetches {
    pub(super) fn subscriptions(&self) -> Vec<(PageId, u64)> {
        let mut all: Vec<_> = self.subscribed.iter().map(|(p, s)| (*p, s.fetch)).collect();
        all.sort_unstable();
        all
    }

    pub(super) fn subscribed_count(&self) -> usize {
        self.subscribed.len()
    }

    pub(super) fn has_given_back_none(&self) -> bool {
        self.given_back.is_empty()
    }

    /// Says whether the server asked the page back.
    pub(super) fn has_given_back(&self, page: PageId) -> bool {
        self.given_back.contains(&page)
    }

    pub(super) fn is_subscribed(&self, page: PageId) -> bool {
        self.subscribed.contains_key(&page)
    }

    /// The server lets so many fetches wait at once.
    pub(super) fn set_credit(&mut self, credit: u16) {
        self.credit = credit.max(1).into();
    }

    /// Says whether the page is being fetched.
    pub(super) fn is_under_way(&self, page: PageId) -> bool {
        self.outstanding.contains_key(&page)
    }

    /// The number of the next fetch.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A fetch will not be answered.
    pub(super) fn lost_request(&mut self, page: PageId) {
        if !dropped(Rule::FetchOutlivesConnection) {
            self.outstanding.remove(&page);
        }
    }

    /// The connection is gone, and with it the stream that replies which came too early wait for.
    pub(super) fn end_connection(&mut self) {
        if !dropped(Rule::FetchOutlivesConnection) {
            self.outstanding.clear();
        }
        self.failed.clear();
        self.leaving.clear();
    }

    /// The server has forgotten the subscriptions. What was known by them counts if the page `is_cached`, and
    /// is found unchanged.
    pub(super) fn forget(&mut self, is_cached: impl Fn(PageId) -> bool) {
        for (page, s) in std::mem::take(&mut self.subscribed) {
            if is_cached(page) {
                self.end(page, s);
            }
        }
        self.given_back.clear();
        self.empty.clear();
    }

    /// The history is over: nothing that was known counts any more.
    pub(super) fn forget_history(&mut self) {
        self.forget(|_| false);
        self.ended.clear();
    }

    fn end(&mut self, page: PageId, s: Subscribed) {
        // A copy for which an earlier subscription has ended, too, was not replaced since: what was fetched
        // then is not here.
        self.ended.entry(page).and_modify(|e| *e = Subscribed::blind(0)).or_insert(s);
    }

    pub(super) fn refused(&mut self, page: PageId, error: Error) {
        if let Some(o) = self.outstanding.remove(&page) {
            self.fail(page, o.fetch, error);
        }
    }

    fn fail(&mut self, page: PageId, fetch: u64, error: Error) {
        if self.failed.len() >= FAILED_MAX {
            self.failed.clear();
        }
        self.failed.insert(page, (fetch, error));
    }

    /// A reply came and what it showed is not here. What is cached of the page may be older, so it says
    /// nothing about any slot; the server, however, believes that we have it.
    fn lost(&mut self, page: PageId, fetch: u64, error: Error) {
        self.fail(page, fetch, error);
        if let Some(s) = self.subscribed.get_mut(&page) {
            *s = Subscribed::blind(s.fetch);
        }
        self.dropped.push(page);
    }

    /// These pages may no longer be needed.
    pub(super) fn look_again(&mut self, mut pages: Vec<PageId>) {
        self.dropped.append(&mut pages);
    }

    /// Notes a change of the object: for a fetch under way, and for transactions that found its slot empty.
    pub(super) fn changed(&mut self, oref: Oref, stamp: Stamp, is_own: bool) {
        if let Some(o) = self.outstanding.get_mut(&oref.page()) {
            o.kept.push((oref.slot(), stamp));
        }
        if let Some(s) = self.subscribed.get_mut(&oref.page()) {
            s.change(oref.slot(), is_own);
        }
    }

    /// The birth of the page that an object is in, if the object is the one that was fetched with it, or this
    /// client's own.
    pub(super) fn birth_of(&self, oref: Oref) -> Option<Stamp> {
        self.subscribed.get(&oref.page()).filter(|s| !has_slot(&s.foreign, oref.slot()))?.birth
    }

    /// This client makes objects in a page, whose birth is this.
    pub(super) fn born(&mut self, page: PageId, birth: Stamp) {
        if let Some(s) = self.subscribed.get_mut(&page) {
            s.birth = s.birth.max(Some(birth));
        }
    }

    /// Why the fetch `fetch` of `page`, or a later one, failed.
    pub(super) fn failed(&self, page: PageId, fetch: u64) -> Option<&Error> {
        self.failed.get(&page).filter(|(f, _)| *f >= fetch).map(|(_, error)| error)
    }

    /// Says whether the slot is unchanged since the fetch `fetch`, or a later one, showed it.
    pub(super) fn is_known(&self, oref: Oref, fetch: u64) -> bool {
        self.subscribed.get(&oref.page()).is_some_and(|s| s.fetch >= fetch && !s.has_changed(oref.slot()))
    }

    /// Says whether that fetch, or a later one, was answered with the page.
    pub(super) fn is_served(&self, page: PageId, fetch: u64) -> bool {
        !self.outstanding.contains_key(&page)
            && self.failed(page, fetch).is_none()
            && self.subscribed.get(&page).is_some_and(|s| s.shown >= fetch)
    }

    /// Says whether the page was empty when it was last fetched.
    pub(super) fn is_empty(&self, page: PageId) -> bool {
        self.subscribed.get(&page).is_some_and(|s| s.empty)
    }

    /// The server wants to forget a page: whether it may, which it may not if a newer fetch was served or is
    /// under way. What was known of it counts if it `is_cached`, and is found unchanged later.
    pub(super) fn revoke(&mut self, page: PageId, fetch: u64, is_cached: bool) -> bool {
        if dropped(Rule::UnsubscribeWithoutNumber) {
            self.subscribed.remove(&page);
            return true;
        }
        if self.outstanding.contains_key(&page) {
            return false;
        }
        match self.subscribed.get(&page) {
            Some(s) if s.fetch > fetch => false,
            _ => {
                if let Some(s) = self.subscribed.remove(&page).filter(|_| is_cached) {
                    self.end(page, s);
                }
                if self.given_back.len() >= GIVEN_BACK_MAX {
                    self.given_back.clear();
                }
                self.given_back.insert(page);
                true
            }
        }
    }
}

impl Client {
    /// Says whether one more page can be fetched: the server would refuse more than it has granted.
    pub(super) fn has_credit(&self) -> bool {
        self.fetches.outstanding.len() + self.tools.raw.under_way() < self.fetches.credit
    }

    /// Asks for a page, unless that is under way; gives the fetch's number. A copy that was true at `since`
    /// need not be sent again if nothing has changed.
    pub(super) fn fetch(&mut self, page: PageId, since: Option<Stamp>) -> u64 {
        if let Some(o) = self.fetches.outstanding.get(&page) {
            return o.fetch;
        }
        let fetch = self.fetches.next_number();
        let mut body = Vec::with_capacity(20);
        FetchMessage { page, fetch, since }.encode(&mut body);
        self.request(Asked::Page { page, fetch, has_stamp: since.is_some() }, &body);
        self.fetches.failed.remove(&page);
        let o = Outstanding { fetch, since, kept: Vec::new(), early: None };
        self.fetches.outstanding.insert(page, o);
        self.stats.fetches += 1;
        fetch
    }

    /// A page that was asked for has come, as it was at a stamp.
    pub(super) fn page_came(&mut self, page: PageId, at: Stamp, bytes: &[u8]) -> Result<(), Error> {
        if self.is_early(at) {
            self.keep_early(page, at, Some(bytes.to_vec()));
            return Ok(());
        }
        self.install(page, at, bytes)
    }

    /// Nothing has changed in a page since the stamp that the fetch named.
    pub(super) fn unchanged(&mut self, page: PageId, at: Stamp) {
        match self.is_early(at) {
            true => self.keep_early(page, at, None),
            false => self.trust(page, at),
        }
    }

    fn is_early(&self, at: Stamp) -> bool {
        self.reader.watermark() < at && !dropped(Rule::InstallBeforeWatermark)
    }

    fn keep_early(&mut self, page: PageId, at: Stamp, bytes: Option<Vec<u8>>) {
        if let Some(o) = self.fetches.outstanding.get_mut(&page) {
            o.early = Some((at, bytes));
        }
    }

    /// Does as if changes to a page were not received from now on: its copy is used again once it is found
    /// unchanged. For measuring.
    pub fn doubt(&mut self, page: PageId) {
        if self.fetches.revoke(page, u64::MAX, self.writer.is_cached(page)) {
            self.writer.flag_page(page);
            self.watches.lose_page(page);
        }
    }

    /// A raw read subscribed this client like any fetch: that is kept if the page is cached, and given back
    /// if not.
    pub(super) fn note_raw_subscription(&mut self, page: PageId, fetch: u64) {
        match self.fetches.subscribed.get_mut(&page) {
            Some(s) => s.fetch = s.fetch.max(fetch),
            None if self.fetches.outstanding.contains_key(&page) => {}
            None => self.give_back([(page, fetch)]),
        }
    }

    fn install(&mut self, page: PageId, at: Stamp, bytes: &[u8]) -> Result<(), Error> {
        let Some(o) = self.fetches.outstanding.remove(&page) else { return Ok(()) };
        let stale = o.stale(at);
        let birth = (!bytes.is_empty()).then(|| Page::birth_in(bytes));
        let mut subscribed = Subscribed {
            fetch: o.fetch,
            shown: o.fetch,
            empty: bytes.is_empty(),
            birth,
            changed: None,
            foreign: None,
        };
        stale.iter().for_each(|slot| subscribed.change(*slot, false));
        self.fetches.given_back.remove(&page);
        self.fetches.subscribed.insert(page, subscribed);
        if bytes.is_empty() {
            // Of a page with nothing in it no copy is found unchanged.
            self.fetches.ended.remove(&page);
            self.found_empty(page);
            return Ok(());
        }
        let parsed = match Page::parse(bytes, page) {
            Ok(parsed) => parsed,
            Err(e) => {
                self.fetches.lost(page, o.fetch, Error::Corrupt(e.to_string()));
                return Ok(());
            }
        };
        self.stats.pages += 1;
        if let Err(e) = self.writer.install(&parsed, at, &stale) {
            let e = match e {
                InstallError::Full(_) => Error::Full(Bound::Cache),
                InstallError::Overlap { .. } => Error::Corrupt(e.to_string()),
            };
            self.fetches.lost(page, o.fetch, e);
            return Ok(());
        }
        self.fetches.ended.remove(&page);
        Ok(())
    }

    /// Uses the copy of a page again: its contents as of the last received change are its contents at `at`,
    /// too.
    fn trust(&mut self, page: PageId, at: Stamp) {
        let Some(o) = self.fetches.outstanding.remove(&page) else { return };
        let ended = self.fetches.ended.remove(&page);
        // Its frame may have been needed meanwhile.
        let is_here = self.writer.unsure_since(page) == o.since;
        let known = ended.filter(|s| is_here && !s.empty).map(|s| Subscribed { fetch: o.fetch, ..s });
        let mut subscribed = known.unwrap_or_else(|| Subscribed::blind(o.fetch));
        o.stale(at).into_iter().for_each(|slot| subscribed.change(slot, false));
        self.fetches.given_back.remove(&page);
        self.fetches.subscribed.insert(page, subscribed);
        if is_here {
            self.writer.trust(page, at);
            self.stats.unchanged += 1;
        } else {
            self.fetches.dropped.push(page);
        }
    }

    /// Keeps an empty page subscribed: a transaction that read that there is nothing must be notified when an
    /// object is made. The cache does not know the page, so it cannot tell when the page is no longer needed.
    /// Beyond the bound the client drops the oldest page and dooms the transactions that rely on it.
    fn found_empty(&mut self, page: PageId) {
        self.fetches.empty.push_back(page);
        if self.fetches.empty.len() <= mutant::bound(limits::EMPTY_PAGES_MAX, 2) {
            return;
        }
        let Some(page) = self.fetches.empty.pop_front() else { return };
        if let Some(s) = self.fetches.subscribed.get_mut(&page)
            && s.empty
            && !self.fetches.empty.contains(&page)
        {
            s.empty = false;
            self.writer.flag_page(page);
            self.fetches.dropped.push(page);
        }
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
            match early {
                Some((at, Some(bytes))) => self.install(page, at, &bytes)?,
                Some((at, None)) => self.trust(page, at),
                None => {}
            }
        }
        Ok(())
    }

    /// Tells the server which pages no cached object, pin, read set, fetch or unresolved commit names any
    /// more.
    pub(super) fn unsubscribe(&mut self) {
        let mut dropped = std::mem::take(&mut self.fetches.dropped);
        self.writer.dropped(&mut dropped);
        if mutant::dropped(Rule::UnsubscribeWithFrame) {
            dropped.extend(self.fetches.subscribed.keys().filter(|p| !self.writer.is_cached(**p)));
            dropped.sort_unstable();
        }
        let mut pages = Vec::new();
        for page in dropped.drain(..) {
            if !self.writer.is_cached(page) {
                self.fetches.ended.remove(&page);
            }
            let held = self.fetches.outstanding.contains_key(&page)
                || (self.writer.is_held(page) && !mutant::dropped(Rule::UnsubscribeWithFrame))
                || self.fetches.is_empty(page)
                || self.watches.holds(page)
                || self.ops.names(page);
            if held {
                continue;
            }
            if let Some(s) = self.fetches.subscribed.remove(&page) {
                pages.push((page, s.fetch));
            }
        }
        self.fetches.dropped = dropped;
        self.give_back(pages);
    }

    /// Gives subscriptions back. The server is notified with the next request, or once there are many: a
    /// message of its own costs both ends about as much as a fetch does, and until then the server reports
    /// some changes in vain.
    pub(super) fn give_back(&mut self, pages: impl IntoIterator<Item = (PageId, u64)>) {
        if self.peer.link == super::LinkState::Up {
            self.fetches.leaving.extend(pages);
        }
        if self.fetches.leaving.len() >= LEAVING_MAX {
            self.send_leaving();
        }
    }

    /// Tells the server which subscriptions were given back.
    pub(super) fn send_leaving(&mut self) {
        let pages = std::mem::take(&mut self.fetches.leaving);
        if !pages.is_empty() {
            let mut body = Vec::new();
            Unsubscribe { pages }.encode(&mut body);
            self.send(Kind::Unsubscribe, [&body, &[]], 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use tercel_wire::message::PageReply;

    use super::*;

    const PAGE: PageId = match PageId::new(7) {
        Some(page) => page,
        None => panic!("7 is a page"),
    };

    #[test]
    fn no_more_pages_are_asked_for_at_once_than_were_granted() {
        let mut client = Client::connected_for_test();
        client.fetches.set_credit(2);
        let pages = [7, 8, 9].map(|n| PageId::new(n).unwrap());
        client.fetch(pages[0], None);
        client.fetch(pages[1], None);
        assert!(!client.has_credit());
        let mut read = None;
        assert!(client.raw_page(pages[2], &mut read).is_none() && read.is_none(), "past the cache, too");
        answer_empty(&mut client, pages[0]);
        assert!(client.has_credit());
        assert!(client.raw_page(pages[2], &mut read).is_none() && read.is_some());
        assert!(!client.has_credit());
    }

    /// The server has no such page.
    fn answer_empty(client: &mut Client, page: PageId) {
        let fetch = client.fetches.outstanding[&page].fetch;
        let is_it = |asked: &Asked| matches!(asked, Asked::Page { page: of, .. } if *of == page);
        let call = client.peer.pending.call_of(is_it).unwrap();
        client.told_for_test(Kind::Page, call, |o| PageReply { page, fetch, bytes: &[] }.encode(o));
    }

    #[test]
    fn page_that_was_emptied_leaves_nothing_of_its_earlier_subscription() {
        let mut client = Client::connected_for_test();
        client.fetches.end(PAGE, Subscribed::blind(1));
        let fetch = client.fetch(PAGE, None);
        answer_empty(&mut client, PAGE);
        assert!(client.fetches.is_empty(PAGE) && client.fetches.is_served(PAGE, fetch));
        assert!(client.fetches.ended.is_empty());
    }
}
