//! Pages given out to make objects in: to which client, and when they may be given out again.
//!
//! A grant outlives connections and views. It ends with its client's session, by an ordered entry. A page
//! that is not granted and in which there is nothing returns: because nothing was made in it when its grant
//! ended, or because all that was there has been freed. It is given out again once every session has
//! acknowledged that, so that no commit under way still means the old place. A page in which a place was
//! promised that an object refers to, and nothing was made there, is held back. The grant that gives a page
//! out again is the page's *birth*: a reference that was read before it names no object any more. The
//! invariant: a page is in at most one of the tables, and every page from 2 up to `next_page` was given out.

use std::collections::{BTreeMap, BTreeSet};

use tercel_wire::id::{ClientId, PageId, SLOTS_MAX, Stamp};
use tercel_wire::message::{Hole, Leased};

use super::counts::{Counts, UNKNOWN};
use super::digest::RowSum;
use super::entry::Grant;
use crate::limits;
use crate::table::Map;

/// The pages that were granted, and the returned pages that wait to be given out again.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// The first page that was never given out.
    next_page: u32,
    granted: BTreeMap<PageId, Granted>,
    clients: Map<ClientId, Grantee>,
    /// Pages that are given out again once every session has acknowledged the stamp.
    returned: BTreeMap<PageId, Stamp>,
    /// The highest stamp at which one did, given out again or not.
    last_return: Stamp,
    /// Pages that are not granted any more, in which an object refers to a place where nothing was made.
    held_back: BTreeSet<PageId>,
    /// By page, in how many of its slots there is something, and from which slot on there never was a place.
    counts: Counts,
    /// In how many slots there was something when a collection had freed the last time.
    collected: u64,
    /// The highest of these stamps among pages that were given out again.
    reused: Stamp,
    sum: RowSum,
}

/// A page that a client may make objects in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// The client that may make objects in it.
    pub client: ClientId,
    /// By which of the client's grants, from 1.
    pub seq: u64,
    /// Set once anything was made in it.
    pub is_made_in: bool,
    /// Set if an object refers to a place in this page where nothing was made.
    pub is_named: bool,
    /// The stamp of its grant, if that gave any page out again; else zero.
    pub birth: Stamp,
    /// The first slot in which the client may make objects.
    pub from: u16,
}

/// A client that was granted pages.
#[derive(Debug, Clone, Default)]
pub(super) struct Grantee {
    /// By grant, so that the oldest is first: a page that was given out again has a lower number than older
    /// ones.
    pub pages: BTreeSet<(u64, PageId)>,
    /// The number of its pages in which nothing was made.
    pub unused: usize,
    /// The number of its last grant, and that grant's pages and birth. The grant is repeated if the client
    /// has not received it.
    pub seq: u64,
    pub last: Vec<PageId>,
    pub holes: Vec<Hole>,
    pub birth: Stamp,
}

impl Places {
    pub(super) fn new() -> Places {
        // Page 1 has the head of the list of roots.
        Places { next_page: 2, ..Places::default() }
    }

    /// The first page that was never given out.
    pub fn next_page(&self) -> u32 {
        self.next_page
    }

    /// A client that goes on from below this may have of a place what it was before it was given out again.
    pub fn reused(&self) -> Stamp {
        self.reused
    }

    /// The page, if objects may be made in it.
    pub fn granted(&self, page: PageId) -> Option<&Granted> {
        self.granted.get(&page)
    }

    /// The lowest page in which there may be promised places.
    pub fn promised_first(&self) -> Option<PageId> {
        let first = [
            self.granted.first_key_value().map(|(p, _)| *p),
            self.returned.first_key_value().map(|(p, _)| *p),
        ];
        first.into_iter().flatten().min()
    }

    /// Says whether the page has returned, or will once it is empty. No object is known to refer to an unused
    /// place in it.
    pub fn may_return(&self, page: PageId) -> bool {
        self.granted.get(&page).is_some_and(|g| !g.is_named) || self.returned.contains_key(&page)
    }

    /// In how many slots of the page there is something.
    pub fn filled(&self, page: PageId) -> u16 {
        self.counts.filled(page)
    }

    /// In how many slots there is something, as far as it is known.
    pub fn objects(&self) -> u64 {
        self.counts.objects()
    }

    /// In how many slots there was something when a collection had freed the last time; zero if none has.
    pub fn collected(&self) -> u64 {
        self.collected
    }

    /// A collection has freed what was out of reach, and has left so much.
    pub(super) fn have_collected(&mut self, left: u64) {
        self.collected = left;
    }

    /// In how many pages there is something. Where that is not known of a page, the page counts.
    pub fn in_use(&self) -> u32 {
        self.counts.in_use()
    }

    /// The number of pages that may still be given out: fresh ones, and those that have returned.
    pub fn left(&self) -> u32 {
        (PageId::MAX.get() + 1).saturating_sub(self.next_page) + self.returned.len() as u32
    }

    /// Says whether the page is held back: something may refer to a place there where nothing is.
    pub fn is_held_back(&self, page: PageId) -> bool {
        self.held_back.contains(&page)
    }

    /// The number of pages in which objects may be made.
    pub fn granted_count(&self) -> usize {
        self.granted.len()
    }

    /// Pages that are not given out again although there is nothing in them: something refers to a place
    /// there.
    pub fn held_back_count(&self) -> usize {
        self.held_back.len()
    }

    /// Pages that wait to be given out again.
    pub fn returned_count(&self) -> usize {
        self.returned.len()
    }

    /// Clients with grants.
    pub fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.clients.keys().copied()
    }

    /// Says whether the client has grants.
    pub fn has_grants(&self, client: ClientId) -> bool {
        self.clients.contains_key(&client)
    }

    /// The client's pages in which nothing was made.
    pub fn unused(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, |g| g.unused)
    }

    /// The client's last grant; one without a number and pages if it has none.
    pub fn last_grant(&self, client: ClientId) -> Leased {
        let none = Leased { seq: 0, birth: Stamp::ZERO, pages: Vec::new(), holes: Vec::new() };
        self.clients.get(&client).map_or(none, |g| Leased {
            seq: g.seq,
            birth: g.birth,
            pages: g.last.clone(),
            holes: g.holes.clone(),
        })
    }

    /// The first slot of a page that was never a place, if that is known and the page can be granted beside
    /// what is in it.
    pub fn hole_from(&self, page: PageId) -> Option<u16> {
        let is_free = !self.granted.contains_key(&page) && !self.held_back.contains(&page);
        self.counts.top(page).filter(|_| is_free && ![0, UNKNOWN].contains(&self.filled(page)))
    }

    /// The birth that a grant of these pages gives them at this stamp. One for all, also for those that are
    /// new, so that a client receives a single birth.
    pub fn birth_of(&self, pages: &[PageId], stamp: Stamp) -> Stamp {
        if pages.iter().any(|page| self.returned.contains_key(page)) { stamp } else { Stamp::ZERO }
    }

    /// The pages that may be given out again once every session has acknowledged `acked`, at most `max`.
    pub fn reusable(&self, acked: Stamp, max: usize) -> Vec<PageId> {
        self.returned.iter().filter(|(_, at)| **at <= acked).map(|(page, _)| *page).take(max).collect()
    }

    /// The stamp that every session has to acknowledge before all returned pages are given out again; `None`
    /// if there are none.
    pub fn last_return(&self) -> Option<Stamp> {
        (!self.returned.is_empty()).then_some(self.last_return)
    }

    /// When the page was returned, if it waits to be given out again.
    pub fn returned_at(&self, page: PageId) -> Option<Stamp> {
        self.returned.get(&page).copied()
    }

    /// A client may make objects in these pages. Beyond [`limits::LEASED_PAGES_MAX`] it loses the oldest, as
    /// it knows. Gives the pages that were given out before.
    pub(super) fn grant(&mut self, stamp: Stamp, g: &Grant) -> Vec<PageId> {
        let mut reborn = Vec::new();
        self.next_page = self.next_page.max(g.next_page);
        let birth = self.birth_of(&g.pages, stamp);
        for page in &g.pages {
            if let Some(at) = self.take_back(*page) {
                self.reused = self.reused.max(at);
                reborn.push(*page);
            }
            self.remove(*page);
            let hole = g.holes.iter().find(|hole| hole.page == *page);
            let from = hole.map_or(0, |hole| hole.from);
            // What is in a page with a hole must be looked at before anything is made there.
            let row = Granted {
                client: g.client,
                seq: g.seq,
                is_made_in: hole.is_some(),
                is_named: false,
                birth,
                from,
            };
            self.counts.set_top(*page, None);
            self.sum.add(&row.row(*page));
            self.granted.insert(*page, row);
            // Together with the row: a damaged record may name a page twice.
            let grantee = self.clients.entry(g.client).or_default();
            grantee.pages.insert((g.seq, *page));
            grantee.unused += usize::from(!row.is_made_in);
        }
        let grantee = self.clients.entry(g.client).or_default();
        (grantee.seq, grantee.last, grantee.birth) = (g.seq, g.pages.clone(), birth);
        grantee.holes = g.holes.clone();
        while self.clients.get(&g.client).is_some_and(|g| g.pages.len() > limits::leased_pages_max()) {
            if let Some((_, page)) = self.clients.get(&g.client).and_then(|g| g.pages.first()).copied() {
                self.release(stamp, page);
            }
        }
        reborn
    }

    /// A client makes nothing more in these pages.
    pub(super) fn give_back(&mut self, stamp: Stamp, client: ClientId, pages: &[(PageId, u16)]) {
        for (page, slots) in pages {
            if let Some(row) = self.granted.get(page).copied().filter(|row| row.client == client) {
                // Of a page that was born anew, references that are older than its objects may name any slot.
                if row.birth == Stamp::ZERO {
                    self.counts.set_top(*page, Some(row.from.max(*slots).min(SLOTS_MAX)));
                }
                self.release(stamp, *page);
            }
        }
    }

    /// A client's session is over.
    pub(super) fn end(&mut self, stamp: Stamp, client: ClientId) {
        let Some(grantee) = self.clients.remove(&client) else { return };
        grantee.pages.into_iter().for_each(|(_, page)| self.release(stamp, page));
    }

    /// The page is granted no more.
    fn remove(&mut self, page: PageId) -> Option<Granted> {
        let row = self.granted.remove(&page)?;
        self.sum.remove(&row.row(page));
        if let Some(grantee) = self.clients.get_mut(&row.client) {
            grantee.pages.remove(&(row.seq, page));
            grantee.unused -= usize::from(!row.is_made_in);
        }
        Some(row)
    }

    /// The page is granted no more. It returns if there is nothing in it and nothing refers to a place there.
    fn release(&mut self, stamp: Stamp, page: PageId) {
        let Some(row) = self.remove(page) else { return };
        if row.is_named {
            self.hold_back(page);
        } else {
            self.return_if_empty(page, stamp);
        }
    }

    fn hold_back(&mut self, page: PageId) {
        if self.held_back.insert(page) {
            self.sum.add(&[page.get().into()]);
        }
    }

    fn return_if_empty(&mut self, page: PageId, stamp: Stamp) {
        if self.filled(page) > 0 || self.granted.contains_key(&page) || self.held_back.contains(&page) {
            return;
        }
        self.last_return = self.last_return.max(stamp);
        if self.returned.insert(page, stamp).is_none() {
            self.sum.add(&[page.get().into(), stamp.0]);
        }
    }

    /// The page is given out, or something is in it.
    fn take_back(&mut self, page: PageId) -> Option<Stamp> {
        let at = self.returned.remove(&page)?;
        self.sum.remove(&[page.get().into(), at.0]);
        Some(at)
    }

    /// Something is in one more slot of the page; whether that takes the page from those that have returned.
    pub(super) fn fill(&mut self, page: PageId) -> bool {
        self.fill_some(page, 1)
    }

    fn fill_some(&mut self, page: PageId, count: usize) -> bool {
        self.next_page = self.next_page.max(page.get() + 1);
        let filled = self.filled(page).saturating_add(count.try_into().unwrap_or(UNKNOWN));
        self.counts.set_filled(page, filled);
        let is_reused = self.take_back(page).is_some();
        if is_reused {
            // The server chooses slots there, and no client knows them.
            self.counts.set_top(page, None);
        }
        is_reused
    }

    /// Nothing is in one of the slots any more.
    pub(super) fn empty(&mut self, page: PageId, stamp: Stamp) {
        self.empty_some(page, 1, stamp);
    }

    /// Nothing is in so many of the slots any more.
    pub(super) fn empty_some(&mut self, page: PageId, count: usize, stamp: Stamp) {
        let filled = self.filled(page);
        if count > 0 && ![0, UNKNOWN].contains(&filled) {
            self.counts.set_filled(page, filled.saturating_sub(count.try_into().unwrap_or(UNKNOWN)));
            self.return_if_empty(page, stamp);
        }
    }

    /// Nothing refers to a place in the page where nothing is.
    pub(super) fn unhold(&mut self, page: PageId, stamp: Stamp) {
        if self.held_back.remove(&page) {
            self.sum.remove(&[page.get().into()]);
            self.return_if_empty(page, stamp);
        }
    }

    /// A commit writes in a page, and makes so many objects there.
    pub(super) fn used(&mut self, page: PageId, made: usize) {
        self.next_page = self.next_page.max(page.get() + 1);
        if made == 0 {
            return;
        }
        let _ = self.fill_some(page, made);
        if let Some(row) = self.granted.get_mut(&page).filter(|row| !row.is_made_in) {
            self.sum.remove(&row.row(page));
            row.is_made_in = true;
            self.sum.add(&row.row(page));
            if let Some(grantee) = self.clients.get_mut(&row.client) {
                grantee.unused -= 1;
            }
        }
    }

    /// Applies a leader's findings about a commit: pages in which its objects name unused places, and pages
    /// that it filled.
    pub(super) fn judged(&mut self, stamp: Stamp, named: &[PageId], filled: &[PageId]) {
        for page in named {
            // A place that was promised is named although its client has gone: the page stays as it is.
            if let Some(row) = self.granted.get_mut(page) {
                self.sum.remove(&row.row(*page));
                row.is_named = true;
                self.sum.add(&row.row(*page));
            } else {
                self.take_back(*page);
                self.hold_back(*page);
            }
        }
        filled.iter().for_each(|page| self.release(stamp, *page));
    }

    /// Goes on after entries that are lost: pages below `next_page` may have been given out, and in any page
    /// there may be more or less than is known.
    pub(super) fn skip_to(&mut self, next_page: u32) {
        self.next_page = self.next_page.max(next_page.min(PageId::MAX.get() + 1));
        self.forget_counts();
        let returned: Vec<PageId> = self.returned.keys().copied().collect();
        for page in returned {
            self.take_back(page);
            self.hold_back(page);
        }
    }

    /// In any page that was given out there may be more or less than is known.
    pub(super) fn forget_counts(&mut self) {
        self.counts.forget_below(self.next_page);
        self.collected = 0;
    }

    /// For [`super::Replica::digest`].
    pub fn digest(&self) -> u64 {
        let mut sum = self.sum.clone();
        sum.add(&[self.next_page.into(), self.reused.0, self.counts.digest()]);
        sum.value()
    }

    pub(super) fn grantees(&self) -> Vec<(ClientId, &Grantee)> {
        let mut all: Vec<_> = self.clients.iter().map(|(id, g)| (*id, g)).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    pub(super) fn held_back(&self) -> impl ExactSizeIterator<Item = PageId> {
        self.held_back.iter().copied()
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) fn counts_mut(&mut self) -> &mut Counts {
        &mut self.counts
    }

    pub(super) fn returned(&self) -> impl ExactSizeIterator<Item = (PageId, Stamp)> {
        self.returned.iter().map(|(page, at)| (*page, *at))
    }

    /// The tables as they were saved.
    pub(super) fn restored(
        next_page: u32,
        reused: Stamp,
        rows: impl Iterator<Item = (PageId, Granted)>,
        last: impl Iterator<Item = (ClientId, Leased)>,
        returned: impl Iterator<Item = (PageId, Stamp)>,
        held_back: impl Iterator<Item = PageId>,
    ) -> Places {
        let mut places = Places { next_page, reused, ..Places::default() };
        held_back.for_each(|page| places.hold_back(page));
        for (client, Leased { seq, birth, pages: last, holes }) in last {
            places.clients.insert(client, Grantee { seq, last, holes, birth, ..Grantee::default() });
        }
        for (page, row) in rows {
            places.sum.add(&row.row(page));
            let grantee = places.clients.entry(row.client).or_default();
            grantee.pages.insert((row.seq, page));
            grantee.unused += usize::from(!row.is_made_in);
            places.granted.insert(page, row);
        }
        for (page, at) in returned {
            places.sum.add(&[page.get().into(), at.0]);
            places.returned.insert(page, at);
            places.last_return = places.last_return.max(at);
        }
        places
    }
}

impl Granted {
    fn row(self, page: PageId) -> [u64; 5] {
        let flags = u64::from(self.is_made_in) | u64::from(self.is_named) << 1;
        [page.get().into(), self.client.0, self.seq << 2 | flags, self.birth.0, self.from.into()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(n: u32) -> PageId {
        PageId::new(n).unwrap()
    }

    fn grant(places: &mut Places, stamp: u64, client: u64, seq: u64, pages: &[u32]) {
        let next_page = pages.iter().max().map_or(0, |p| p + 1);
        let pages = pages.iter().map(|n| page(*n)).collect();
        places.grant(Stamp(stamp), &Grant { client: ClientId(client), seq, next_page, pages, holes: vec![] });
    }

    #[test]
    fn of_an_ended_session_only_untouched_pages_return() {
        let mut p = Places::new();
        grant(&mut p, 1, 7, 1, &[2, 3, 4, 5]);
        p.used(page(2), 1);
        p.judged(Stamp(2), &[page(3)], &[]);
        p.used(page(5), 1);
        p.judged(Stamp(2), &[], &[page(5)]);
        assert_eq!(p.unused(ClientId(7)), 2);
        p.end(Stamp(9), ClientId(7));
        assert_eq!((p.granted_count(), p.returned_count()), (0, 1));
        assert!(p.reusable(Stamp(8), 10).is_empty());
        assert_eq!(p.reusable(Stamp(9), 10), [page(4)]);
        assert!(!p.has_grants(ClientId(7)));
    }

    #[test]
    fn page_returns_when_it_is_granted_no_more_and_nothing_is_in_it() {
        let mut p = Places::new();
        grant(&mut p, 1, 7, 1, &[2, 3, 4]);
        [2, 2, 3, 4].iter().for_each(|n| p.used(page(*n), 1));
        p.judged(Stamp(2), &[page(4)], &[page(2), page(4)]);
        assert_eq!(p.in_use(), 3);
        p.empty(page(2), Stamp(3));
        p.empty(page(3), Stamp(4));
        p.empty(page(4), Stamp(5));
        // Page 3 is still granted, and something refers to a place in page 4.
        assert_eq!((p.returned_count(), p.held_back_count(), p.in_use()), (0, 1, 1));
        p.empty(page(2), Stamp(6));
        p.end(Stamp(7), ClientId(7));
        assert_eq!(p.reusable(Stamp(7), 10), [page(2), page(3)]);
        assert_eq!(p.returned_at(page(2)), Some(Stamp(6)));
        // What moves there takes it.
        p.fill(page(2));
        assert_eq!((p.reusable(Stamp(7), 10), p.reused(), p.in_use()), (vec![page(3)], Stamp::ZERO, 1));
        assert_eq!(p.left(), PageId::MAX.get() - 4 + 1);
        // Behind entries that are lost no page is believed to be empty.
        p.skip_to(9);
        p.empty(page(2), Stamp(9));
        assert_eq!((p.returned_count(), p.held_back_count(), p.in_use()), (0, 2, 8));
    }

    #[test]
    fn a_page_that_is_given_out_again_raises_the_stamp_below_which_bases_are_too_old() {
        let mut p = Places::new();
        grant(&mut p, 1, 7, 1, &[2, 3]);
        p.end(Stamp(5), ClientId(7));
        grant(&mut p, 8, 9, 1, &[3]);
        assert_eq!((p.reused(), p.next_page()), (Stamp(5), 4));
        assert_eq!(p.granted(page(3)).unwrap().client, ClientId(9));
        assert_eq!(p.returned_count(), 1);
    }

    #[test]
    fn hole_begins_where_its_client_said_and_not_in_pages_of_which_that_is_not_known() {
        let mut p = Places::new();
        grant(&mut p, 1, 7, 1, &[2, 3, 4, 5]);
        [2, 2, 3, 4, 5].iter().for_each(|n| p.used(page(*n), 1));
        assert_eq!(p.hole_from(page(2)), None, "it is granted");
        p.give_back(Stamp(2), ClientId(8), &[(page(2), 9)]);
        assert_eq!(p.hole_from(page(2)), None, "it is another's");
        p.give_back(Stamp(2), ClientId(7), &[(page(2), 9), (page(3), 4), (page(4), 0)]);
        assert_eq!([2, 3, 4, 5].map(|n| p.hole_from(page(n))), [Some(9), Some(4), None, None]);
        // What is granted as a hole is counted from its first slot, whatever the client says.
        let hole = Hole { page: page(2), from: 9, used: 100 };
        p.grant(
            Stamp(3),
            &Grant { client: ClientId(8), seq: 1, next_page: 6, pages: vec![page(2)], holes: vec![hole] },
        );
        let row = *p.granted(page(2)).unwrap();
        assert_eq!((row.from, row.is_made_in, row.birth, p.hole_from(page(2))), (9, true, Stamp::ZERO, None));
        p.give_back(Stamp(4), ClientId(8), &[(page(2), 3)]);
        assert_eq!(p.hole_from(page(2)), Some(9));
        // A page that an overflow takes has slots that no client knows.
        p.empty(page(3), Stamp(5));
        assert!(p.fill(page(3)));
        assert_eq!(p.hole_from(page(3)), None);
        // Of a page that is born anew, references of its life before may name any slot.
        p.empty_some(page(2), 2, Stamp(6));
        grant(&mut p, 7, 8, 2, &[2]);
        p.used(page(2), 1);
        p.give_back(Stamp(8), ClientId(8), &[(page(2), 5)]);
        assert_eq!((p.hole_from(page(2)), p.objects()), (None, 4));
    }

    #[test]
    fn grant_that_gives_a_page_out_again_is_the_birth_of_all_its_pages() {
        let mut p = Places::new();
        grant(&mut p, 1, 7, 1, &[2, 3]);
        let last = |p: &Places, client| p.last_grant(ClientId(client));
        assert_eq!((last(&p, 7).pages, last(&p, 7).birth), (vec![page(2), page(3)], Stamp::ZERO));
        p.end(Stamp(5), ClientId(7));
        grant(&mut p, 8, 9, 1, &[3, 4]);
        assert_eq!((last(&p, 9).pages, last(&p, 9).birth), (vec![page(3), page(4)], Stamp(8)));
        assert_eq!([3, 4].map(|n| p.granted(page(n)).unwrap().birth), [Stamp(8); 2]);
        grant(&mut p, 9, 9, 2, &[5]);
        assert_eq!(last(&p, 9).birth, Stamp::ZERO);
    }

    #[test]
    fn a_client_with_too_many_pages_loses_the_oldest() {
        let mut p = Places::new();
        let max = limits::LEASED_PAGES_MAX as u32;
        for n in 0..max / 64 + 1 {
            let pages: Vec<u32> = (0..64).map(|i| 2 + 64 * n + i).collect();
            grant(&mut p, u64::from(n) + 1, 7, u64::from(n) + 1, &pages);
        }
        assert_eq!(p.granted_count(), limits::LEASED_PAGES_MAX);
        assert!(p.granted(page(2)).is_none() && p.returned_at(page(2)).is_some());
        assert_eq!(p.unused(ClientId(7)), limits::LEASED_PAGES_MAX);
        // A page that was given out again has a low number, and is new.
        grant(&mut p, 5_000, 7, 5_000, &[2]);
        assert!(p.granted(page(2)).is_some() && p.returned_at(page(66)).is_some());
    }

    #[test]
    fn page_that_a_damaged_grant_names_twice_counts_once() {
        let mut p = Places::new();
        grant(&mut p, 1, 7, 1, &[2, 2, 3]);
        assert_eq!((p.granted_count(), p.unused(ClientId(7))), (2, 2));
        grant(&mut p, 2, 7, 2, &[3, 4]);
        assert_eq!((p.granted_count(), p.unused(ClientId(7))), (3, 3));
        p.end(Stamp(3), ClientId(7));
        assert_eq!((p.granted_count(), p.returned_count()), (0, 3));
    }

    #[test]
    fn the_digest_is_of_what_the_tables_hold() {
        let (mut a, mut b) = (Places::new(), Places::new());
        grant(&mut a, 1, 7, 1, &[2, 3]);
        grant(&mut a, 2, 8, 1, &[4]);
        grant(&mut b, 1, 8, 1, &[4]);
        grant(&mut b, 2, 7, 1, &[2, 3]);
        assert_eq!(a.digest(), b.digest());
        a.used(page(4), 1);
        assert_ne!(a.digest(), b.digest());
        b.used(page(4), 1);
        a.end(Stamp(3), ClientId(7));
        b.end(Stamp(3), ClientId(7));
        assert_eq!(a.digest(), b.digest());
    }
}
