//! Members of a group compared with each other, where they are at equal stamps.
//!
//! Ordered state: the digest of the first node that is seen behind an entry is noted, and that of each other
//! one there must be the same. Pages: now and then those of two nodes that show the same state are laid out
//! and must be equal, page by page; in the end those of all nodes are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tercel_wire::id::{EntryId, PageId, Stamp};
use tercel_wire::page::Page;

use super::group::letter;
use super::{Phase, World};

/// The digests that nodes are compared with.
#[derive(Default)]
pub(super) struct Comparison {
    /// By entry, whether or not it is stable: logs that have an entry in common have all before it in common.
    digests: BTreeMap<(u64, EntryKey), u64>,
    /// The entry behind which each node was seen last.
    seen: BTreeMap<usize, EntryId>,
    /// When pages are compared next.
    next: Stamp,
}

/// The view of an entry.
type EntryKey = (u32, u32);

/// A page's bytes, if there are any.
type Image = Option<Arc<Vec<u8>>>;

impl World {
    /// Compares a node that may have applied something with what others were like there.
    pub(super) fn compare(&mut self, n: usize) {
        // A replica whose leader was deposed may have applied what is no longer in the log.
        let running = self.nodes[n].running.as_ref().filter(|running| running.recovers.is_none());
        let Some(machine) = running.map(|running| &running.machine) else { return };
        let (applied, visible) = (machine.applied(), machine.visible());
        let at = self.nodes[n].ledger.upto(applied);
        if self.comparison.seen.insert(n, at) == Some(at) {
            return;
        }
        let digest = machine.digest().1;
        let key = (at.position.0, (at.view.number, at.view.incarnation));
        match self.comparison.digests.get(&key) {
            Some(due) if *due != digest => {
                return self.blame(format!("the state of {} at {applied} is not that of others", letter(n)));
            }
            Some(_) => self.record.counts.digests_compared += 1,
            None => _ = self.comparison.digests.insert(key, digest),
        }
        while self.comparison.digests.len() > DIGESTS_MAX {
            self.comparison.digests.pop_first();
        }
        if visible >= self.comparison.next && self.phase == Phase::Safety {
            let is_there = |m: &usize| self.nodes[*m].machine().is_some_and(|m| m.visible() == visible);
            if let Some(other) = (0..self.nodes.len()).find(|m| *m != n && is_there(m)) {
                let every = self.nodes[n].random.below(2 * LOOK_ENTRIES) + 1;
                self.comparison.next = Stamp(visible.0 + every);
                self.compare_pages(n, other);
            }
        }
    }

    /// The pages of two nodes that show the same state are the same.
    fn compare_pages(&mut self, n: usize, other: usize) {
        let pages = |n: usize| {
            let stored = self.nodes[n].disk.pages.keys().copied();
            stored.chain(self.nodes[n].machine().map(|m| m.pages_modified()).unwrap_or_default())
        };
        let all: BTreeSet<PageId> = pages(n).chain(pages(other)).collect();
        let image = |n: usize, page: &PageId| {
            let stored = self.nodes[n].disk.pages.get(page).cloned();
            self.nodes[n].machine().and_then(|machine| machine.page_over(*page, stored))
        };
        let differs = all.iter().find(|page| !is_same(**page, &image(n, page), &image(other, page)));
        if let Some(page) = differs {
            let (one, two) = (letter(n), letter(other));
            return self.blame(format!("page {page} of {one} is not that of {two}, and both show the same"));
        }
        self.record.counts.pages_compared += all.len() as u64;
    }

    /// Says whether all nodes show everything that is promised, and have the same pages. It is asked until
    /// that is so.
    pub(crate) fn are_nodes_level(&mut self) -> bool {
        let promised = self.oracle.promised;
        let nodes = self.member_nodes();
        let is_level =
            nodes.iter().all(|n| self.nodes[*n].machine().is_some_and(|m| m.visible() == promised));
        if is_level {
            nodes[1..].iter().for_each(|n| self.compare_pages(*n, nodes[0]));
        }
        is_level
    }

    /// Describes the missing condition of [`World::are_nodes_level`].
    pub(crate) fn gap(&self) -> String {
        let of = |process: &super::node::Process| match process.machine() {
            None => "down".into(),
            Some(m) => {
                let due = process.running.as_ref().and_then(|running| running.recovers);
                format!("at {}, {} bytes wait, recovers {due:?}", m.visible(), m.suffix_bytes())
            }
        };
        let nodes: Vec<String> = self.nodes.iter().map(|p| format!("{}: {}", p.id, of(p))).collect();
        let members = self.members();
        let listed: Vec<String> =
            members.iter().map(|it| format!("{}{}", it.id, if it.votes { "" } else { " learns" })).collect();
        format!(
            "{} is promised; members: {}; nodes: {}",
            self.oracle.promised,
            listed.join(", "),
            nodes.join("; ")
        )
    }
}

fn is_same(page: PageId, one: &Image, other: &Image) -> bool {
    match (one, other) {
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
/// Digests that are kept: of more entries than any node lags behind.
const DIGESTS_MAX: usize = 10_000;
