//! Pages to make objects in: granted to a client, kept over its connections, and ended with its session.
//!
//! A commit may refer to a place before an object is made in it. So the leader announces a grant only once it
//! is visible: the page of a lost grant would be granted again, and the reference would come to name another
//! object. Pages of ended sessions are granted again by the rule of reuse alone: every session has
//! acknowledged the end, and no transaction that was judged before it is still under way.

use tercel_wire::id::{ClientId, PageId, Stamp};
use tercel_wire::message::{Hole, Lease, Leased, Refusal};

use super::{Asked, Leader, Reply, Work, session_us};
use crate::limits;
use crate::mutant::{self, Rule, dropped};
use crate::replica::entry::{Entry, Grant};

/// A grant that is ordered and not yet visible.
#[derive(Debug)]
pub(super) struct Granting {
    stamp: Stamp,
    client: ClientId,
    pub asked: Asked,
    leased: Leased,
}

impl Leader {
    /// A client wants pages.
    pub(crate) fn grant(&mut self, asked: Asked, client: ClientId, lease: Lease, work: &mut Work) {
        if let Some(granting) = self.granting.iter_mut().find(|g| g.client == client) {
            if lease.seq != granting.leased.seq {
                return work.refuse(asked, Refusal::FULL, "a client asks for places once at a time");
            }
            // It asks again, on another connection.
            granting.asked = asked;
            return;
        }
        let last = work.replica.places.last_grant(client);
        let seq = last.seq;
        // They are counted from one: before the first there is none to be asked for again.
        if lease.seq == 0 || (lease.seq != seq && lease.seq != seq + 1) {
            return work.expel(asked.conn, "a client counts its grants");
        }
        if lease.seq == seq {
            // It has not received its last grant.
            return work.replies.push(Reply::Granted(asked, last));
        }
        if let Some((why, text)) = work.refuses_writes() {
            return work.refuse(asked, why, text);
        }
        self.take_back(client, lease.done, work);
        match self.pages_for(client, lease.pages, work) {
            Err(text) => work.refuse(asked, Refusal::FULL, text),
            Ok((pages, _)) if pages.is_empty() => {
                let leased = Leased { seq: lease.seq - 1, birth: Stamp::ZERO, pages, holes: Vec::new() };
                work.replies.push(Reply::Granted(asked, leased));
            }
            Ok((pages, holes)) => {
                let next_page = self.promises.next_page.max(work.replica.places.next_page());
                self.own(asked, client, work);
                let entry = Grant { client, seq: lease.seq, next_page, pages: pages.clone(), holes };
                let stamp = self.order(&Entry::Grant(entry), None, work);
                self.begin_anew(&pages);
                let leased = work.replica.places.last_grant(client);
                self.granting.push_back(Granting { stamp, client, asked, leased });
            }
        }
    }

    /// A client makes nothing more in pages that it was granted. It does not say so of what a large
    /// transaction of it makes objects in.
    fn take_back(&mut self, client: ClientId, mut pages: Vec<(PageId, u16)>, work: &mut Work) {
        let is_of = |page| work.replica.places.granted(page).is_some_and(|g| g.client == client);
        pages.retain(|(page, _)| is_of(*page) && !self.large_fills(*page));
        if !pages.is_empty() {
            let done: Vec<PageId> = pages.iter().map(|(page, _)| *page).collect();
            self.begin_anew(&done);
            self.order(&Entry::GiveBack(client, pages), None, work);
        }
    }

    /// Drops the knowledge about pages that are given out again.
    fn begin_anew(&mut self, pages: &[PageId]) {
        pages.iter().for_each(|page| _ = self.fills.remove(page));
        self.overflow = self.overflow.filter(|overflow| !pages.contains(&overflow.page));
    }

    /// Pages to grant: fewer if there are not so many, none if the space has none left.
    fn pages_for(
        &mut self,
        client: ClientId,
        wanted: u16,
        work: &mut Work,
    ) -> Result<(Vec<PageId>, Vec<Hole>), &'static str> {
        let places = &work.replica.places;
        let unused_max = mutant::bound(limits::LEASED_UNUSED_MAX, 96);
        let spare = unused_max.saturating_sub(places.unused(client));
        if spare == 0 {
            return Err(
                "this client has asked for too many places in which it made nothing: make something in them, \
                        or end its session",
            );
        }
        let left = mutant::bound(limits::GRANTED_MAX, 1_200).saturating_sub(places.granted_count());
        if left == 0 {
            return Err(
                "the server has granted all the places it can keep count of: try again when other clients \
                        have used theirs, or have gone",
            );
        }
        let count = spare.min(left).min(wanted.min(limits::LEASE_PAGES) as usize);
        let mut pages = self.reusable(count, work);
        // A birth would be that of the objects in a page with a hole, too. And there must be room for an
        // object of any size.
        let holes = if pages.is_empty() { self.holes(count / 2, work) } else { Vec::new() };
        pages.extend(holes.iter().map(|hole| hole.page));
        while pages.len() < count
            && let Some(page) = self.promise_page(work)
        {
            pages.push(page);
        }
        pages.sort_unstable();
        Ok((pages, holes))
    }

    /// Pages with room beside what is in them, as the last sweep has found them.
    fn holes(&mut self, count: usize, work: &Work) -> Vec<Hole> {
        let mut holes = Vec::new();
        // A large transaction that is not ordered counts on room in pages that it has looked at.
        let count = if self.large.is_some() { 0 } else { count };
        while holes.len() < count
            && let Some((page, used)) = self.reclaiming.collecting.next_hole()
        {
            let is_filled_now = self.overflow.is_some_and(|overflow| overflow.page == page);
            if let Some(from) = work.replica.places.hole_from(page).filter(|_| !is_filled_now) {
                holes.push(Hole { page, from, used });
            }
        }
        holes
    }

    /// Pages in which there is nothing, and every session has acknowledged that.
    pub(super) fn reusable(&self, count: usize, work: &Work) -> Vec<PageId> {
        // A large transaction was judged when they were still what they were before.
        if self.large.is_some() || work.replica.places.returned_count() == 0 {
            return Vec::new();
        }
        let present = self.present.values().map(|p| p.acked).min();
        // While clients come and go there is always an absent one: were it counted as having acknowledged
        // nothing, no page would ever be given out again.
        let acked = present.into_iter().chain(self.absent.acked()).chain([work.pages.visible()]).min();
        let acked = acked.unwrap_or_default();
        let acked = if dropped(Rule::ReuseAtOnce) { work.replica.stamp } else { acked };
        work.replica.places.reusable(acked, count)
    }

    /// A page that was never given out, and now is promised.
    pub(super) fn promise_page(&mut self, work: &Work) -> Option<PageId> {
        if let Some(page) = self.promises.in_vain.pop() {
            return Some(page);
        }
        self.promises.next_page = self.promises.next_page.max(work.replica.places.next_page());
        let page = PageId::new(self.promises.next_page)?;
        self.promises.next_page += 1;
        Some(page)
    }

    /// Tells of the grants that have become visible.
    pub(super) fn granted_upto(&mut self, visible: Stamp, work: &mut Work) {
        while let Some(g) = self.granting.pop_front_if(|g| g.stamp <= visible) {
            work.replies.push(Reply::Granted(g.asked, g.leased));
        }
        while self.ending.pop_front_if(|(stamp, _)| *stamp <= visible).is_some() {}
    }

    /// A client has said good-bye: nothing is kept of it.
    pub(crate) fn leave(&mut self, client: ClientId, work: &mut Work) {
        let is_known = work.replica.answers.knows(client);
        self.end_session(client, is_known, work);
    }

    /// Ends a client's session. Forgets its answers if it `leaves`.
    fn end_session(&mut self, client: ClientId, leaves: bool, work: &mut Work) {
        self.absent.remove(client);
        if !work.replica.places.has_grants(client) && !leaves {
            return;
        }
        // A large transaction is about to make objects in what was granted; and a full disk takes nothing.
        if work.disk_full || self.large.as_ref().is_some_and(|large| large.placing.client == client) {
            return self.absent.insert(client, work.now.plus_us(session_us(&work.config)), Stamp::ZERO);
        }
        let entry = if leaves { Entry::Leave(client) } else { Entry::End(client) };
        let stamp = self.order(&entry, None, work);
        self.ending.push_back((stamp, client));
        let places = &work.replica.places;
        self.fills.retain(|page, _| places.granted(*page).is_some());
    }

    /// Says whether the end of the client's session is ordered and not yet visible. The end may still be
    /// lost, so the leader cannot tell whether the client still has its grants.
    pub(crate) fn is_ending(&self, client: ClientId) -> bool {
        self.ending.iter().any(|(_, ending)| *ending == client)
    }

    /// Ends the sessions of clients that have been absent for too long.
    pub(crate) fn end_absent(&mut self, work: &mut Work) {
        for _ in 0..ENDED_AT_ONCE {
            let Some(client) = self.absent.take(work.now) else { return };
            self.end_session(client, false, work);
        }
    }
}

/// Sessions ended in one go: each may take thousands of rows from the tables.
const ENDED_AT_ONCE: usize = 4;
