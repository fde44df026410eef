//! The follower compared with the leader, at equal stamps.
//!
//! Ordered state: the leader's digest is noted at every stamp that it is seen at, and the follower's must be
//! the same. Pages: now and then the leader's pages are kept as they are, and nothing behind that stamp is
//! fed until the follower is there, gives all of them as its readers would get them, and has the same in its
//! store and buffer and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tercel_engine::server::Effects;
use tercel_wire::id::{PageId, Stamp};
use tercel_wire::page::Page;

use super::feeder::Feeder;
use super::{FOLLOWER, LEADER, World};

/// The leader's digests and pages that the follower is compared with.
#[derive(Default)]
pub(super) struct Comparison {
    /// The feeder that brings the follower up to where it is compared.
    pub(super) feeder: Feeder,
    /// The leader's digests.
    digests: BTreeMap<Stamp, u64>,
    /// The last stamps of which digests were noted, and compared.
    noted: Stamp,
    compared: Stamp,
    /// When pages are compared next, and the pages under comparison.
    next: Stamp,
    look: Option<Look>,
    /// Set once the last comparison has begun.
    is_over: bool,
}

impl Comparison {
    /// The comparison in another history.
    pub(super) fn after(before: &Comparison) -> Comparison {
        let mut next = Comparison::default();
        next.feeder.epoch = before.feeder.epoch + 1;
        next
    }
}

/// A page's bytes, if there are any.
type Image = Option<Arc<Vec<u8>>>;

/// The leader's pages as of a stamp.
struct Look {
    stamp: Stamp,
    pages: BTreeMap<PageId, Image>,
    /// Pages that the follower has not yet given.
    left: Vec<PageId>,
}

impl World {
    /// The leader ends: what it had ordered and not promised may come otherwise.
    pub(super) fn forget_digests(&mut self) {
        let _ = self.comparison.digests.split_off(&self.oracle.promised.next());
        self.comparison.noted = Stamp::ZERO;
    }

    /// Notes what the leader is like now.
    pub(super) fn note_leader(&mut self) {
        let Some(machine) = self.nodes[LEADER].machine() else { return };
        let applied = machine.applied();
        if applied == self.comparison.noted {
            return;
        }
        self.comparison.noted = applied;
        let digest = machine.digest().1;
        self.comparison.digests.insert(applied, digest);
        if self.oracle.promised >= self.comparison.next {
            self.begin_look();
        }
    }

    /// Keeps the leader's pages as they are, unless others are still being looked at.
    fn begin_look(&mut self) {
        let Some(machine) = self.nodes[LEADER].machine() else { return };
        let (stamp, stored) = (machine.visible(), &self.nodes[LEADER].disk.pages);
        if self.comparison.look.is_some() || stamp != self.oracle.promised {
            return;
        }
        let all: BTreeSet<PageId> = stored.keys().copied().chain(machine.pages_modified()).collect();
        let image = |page: PageId| machine.page_over(page, stored.get(&page).cloned());
        let pages: BTreeMap<PageId, Image> = all.into_iter().map(|page| (page, image(page))).collect();
        let left = pages.keys().copied().collect();
        let every = self.nodes[FOLLOWER].random.below(2 * LOOK_ENTRIES) + 1;
        self.comparison.next = Stamp(stamp.0 + every);
        self.comparison.look = Some(Look { stamp, pages, left });
        self.feed_in(0);
    }

    /// Up to where the follower is fed now.
    pub(super) fn feed_upto(&self) -> Stamp {
        let look = self.comparison.look.as_ref();
        look.map_or(self.oracle.promised, |look| look.stamp)
    }

    /// The follower has applied something.
    pub(super) fn compare_digests(&mut self) {
        let Some(machine) = self.nodes[FOLLOWER].machine() else { return };
        let stamp = machine.applied();
        if stamp == self.comparison.compared {
            return;
        }
        let digest = machine.digest().1;
        self.comparison.compared = stamp;
        if let Some(due) = self.comparison.digests.get(&stamp) {
            if *due != digest {
                return self.blame(format!("the follower's state at {stamp} is not that of the leader"));
            }
            self.record.counts.digests_compared += 1;
        }
    }

    /// The follower gives what is looked at, as far as it is at hand.
    pub(super) fn look_on(&mut self) {
        let Some(mut look) = self.comparison.look.take() else { return };
        let visible = self.nodes[FOLLOWER].machine().map(|m| m.visible());
        if visible == Some(look.stamp) {
            match self.look_at(&mut look) {
                Ok(true) => {
                    self.record.counts.pages_compared += look.pages.len() as u64;
                    return self.feed_in(0);
                }
                Ok(false) => {}
                Err(page) => {
                    let stamp = look.stamp;
                    return self.blame(format!("the follower's page {page} at {stamp} is not the leader's"));
                }
            }
        } else if visible > Some(look.stamp) {
            return self.blame(format!("the follower is at {visible:?}, and was fed up to {}", look.stamp));
        }
        self.comparison.look = Some(look);
    }

    /// Compares the pages that are left; says whether all have been compared. The error is a page that
    /// differs.
    fn look_at(&mut self, look: &mut Look) -> Result<bool, PageId> {
        while let Some(page) = look.left.last().copied() {
            let mut out = Effects::default();
            let Some(machine) = self.nodes[FOLLOWER].machine_mut() else { return Ok(false) };
            let Some(found) = machine.page(page, &mut out) else {
                self.perform(FOLLOWER, out);
                return Ok(false);
            };
            if !is_same(page, &look.pages[&page], &found) {
                return Err(page);
            }
            look.left.pop();
        }
        let stored = self.nodes[FOLLOWER].disk.pages.clone();
        let Some(machine) = self.nodes[FOLLOWER].machine() else { return Ok(false) };
        let all: BTreeSet<PageId> = stored.keys().copied().chain(machine.pages_modified()).collect();
        for page in all.into_iter().chain(look.pages.keys().copied()) {
            let found = machine.page_over(page, stored.get(&page).cloned());
            if !is_same(page, look.pages.get(&page).unwrap_or(&None), &found) {
                return Err(page);
            }
        }
        Ok(true)
    }

    /// Says whether the follower is where the leader is, and was compared with it there. Asked until it is
    /// so.
    pub(crate) fn is_follower_level(&mut self) -> bool {
        if !self.comparison.is_over {
            self.begin_look();
            let look = self.comparison.look.as_ref();
            self.comparison.is_over = look.is_some_and(|look| look.stamp == self.oracle.promised);
            self.look_on();
        }
        let promised = self.oracle.promised;
        let is_there = self.nodes[FOLLOWER].machine().is_some_and(|m| m.visible() == promised);
        self.comparison.is_over && self.comparison.look.is_none() && is_there
    }
}

impl World {
    /// Describes the missing condition of [`World::is_follower_level`].
    pub(crate) fn follower_gap(&mut self) -> String {
        let promised = self.oracle.promised;
        let look = self.comparison.look.as_ref().map(|look| (look.stamp, look.left.len()));
        match self.nodes[FOLLOWER].machine() {
            None => "it is down".into(),
            Some(m) => {
                let (visible, waits) = (m.visible(), m.suffix_bytes());
                format!("at {visible} of {promised}, {waits} bytes wait, looked at is {look:?}")
            }
        }
    }
}

fn is_same(page: PageId, due: &Image, found: &Image) -> bool {
    match (due, found) {
        (None, None) => true,
        (Some(a), Some(b)) if a == b => true,
        (Some(a), Some(b)) => match (Page::parse(a, page), Page::parse(b, page)) {
            (Ok(a), Ok(b)) => a.stamp() == b.stamp() && a.objects().eq(b.objects()),
            _ => false,
        },
        _ => false,
    }
}

/// Entries between two looks at the pages, about: all of them are laid out anew each time.
const LOOK_ENTRIES: u64 = 100;
