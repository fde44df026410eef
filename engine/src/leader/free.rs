//! Freeing what was released: trees of chunks that no object owns any more.
//!
//! Trees are read from the front of the queue in ordered state, and an entry says which of their chunks are
//! gone and which trees below them are to be next. One such entry is on its way at a time, of a bounded size,
//! so others commit in between. Only nodes and the leaves that are roots are read: how high a node stands
//! says whether its children are leaves.

use tercel_wire::class;
use tercel_wire::cursor::le32;
use tercel_wire::id::{Oref, PageId, Stamp};
use tercel_wire::page::class_of;
use tercel_wire::record::HEADER_BYTES;

use super::{Leader, Work};
use crate::limits;
use crate::mutant;
use crate::pages::reads::Waiter;
use crate::replica::Replica;
use crate::replica::catalogue::Catalogue;
use crate::replica::entry::{Entry, Freed};

/// The leader's progress in freeing released trees.
#[derive(Debug, Default)]
pub(super) struct Freeing {
    /// The last entry about it.
    ordered: Stamp,
    /// The page that is read for it.
    reading: Option<PageId>,
    /// There was no room for an entry when it was looked at last.
    is_held_up: bool,
}

/// A chunk, and what hangs on it.
struct Chunk {
    leaves: Vec<Oref>,
    nodes: Vec<Oref>,
}

impl Chunk {
    /// Gives the contents of an object of a class for chunks. Nothing hangs on an object of any other class,
    /// which damage alone can have put there.
    fn of(object: &[u8], catalogue: &Catalogue) -> Option<Chunk> {
        let mut children = Vec::new();
        let body = &object[HEADER_BYTES..];
        match class_of(object) {
            class::BYTES_LEAF | class::REFS_LEAF => {}
            class::CHUNK_NODE => catalogue.class(class::CHUNK_NODE)?.refs(body, |at| {
                children.extend(Oref::from_raw(le32(body, at)).filter(|child| !child.is_null()));
            }),
            _ => return None,
        }
        // A node's first field is its height.
        Some(match class_of(object) == class::CHUNK_NODE && le32(body, 0) > 1 {
            true => Chunk { leaves: Vec::new(), nodes: children },
            false => Chunk { leaves: children, nodes: Vec::new() },
        })
    }
}

impl Leader {
    /// Says whether there is a slice of freeing to be done.
    pub(super) fn free_wants(&self, visible: Stamp, replica: &Replica) -> bool {
        let freeing = &self.reclaiming.freeing;
        replica.released.count() > 0
            && freeing.ordered <= visible
            && freeing.reading.is_none()
            && !freeing.is_held_up
    }

    /// There may be room again for an entry.
    pub(super) fn free_again(&mut self) {
        self.reclaiming.freeing.is_held_up = false;
        self.reclaiming.collecting.try_again();
    }

    /// Does a slice of freeing.
    pub(super) fn go_on_freeing(&mut self, work: &mut Work) {
        self.reclaiming.freeing.is_held_up = false;
        if !self.free_wants(work.pages.visible(), &work.replica) {
            return;
        }
        self.reclaiming.freeing.is_held_up =
            work.disk_full || work.log_is_full() || work.pages.mob.bytes() > work.config.mob_bytes;
        if self.reclaiming.freeing.is_held_up {
            return;
        }
        let mut freed = Freed::default();
        let max = mutant::bound(limits::FREED_MAX, 4);
        let catalogue = &work.replica.catalogue;
        let released = &work.replica.released;
        for root in released.iter() {
            if freed.chunks.len() + freed.below.len() >= max {
                break;
            }
            let at = released.moved(root).unwrap_or(root);
            if !work.pages.is_here(at.page()) {
                if freed.taken == 0 {
                    self.reclaiming.freeing.reading = Some(at.page());
                    work.pages.reads.wait(at.page(), Waiter::Release(at.page()));
                }
                break;
            }
            freed.taken += 1;
            if let Some(chunk) = work.pages.newest(at, |object| Chunk::of(object, catalogue)).flatten() {
                for chunk in [root].into_iter().chain(chunk.leaves) {
                    freed.chunks.push(chunk);
                    freed.chunks.extend(released.moved(chunk));
                }
                freed.below.extend(chunk.nodes);
            }
        }
        if freed.taken > 0 {
            work.stats.freed += freed.chunks.len() as u64;
            self.reclaiming.freeing.ordered = self.order(&Entry::Free(freed), None, work);
        }
    }

    /// The page that freeing waited for is here, or cannot be read: then what was released in it stays where
    /// it is.
    pub(crate) fn free_read(&mut self, page: PageId, is_unread: bool, work: &mut Work) {
        if self.reclaiming.freeing.reading != Some(page) {
            return;
        }
        self.reclaiming.freeing.reading = None;
        if is_unread {
            let released = &work.replica.released;
            let is_there = |root: &Oref| released.moved(*root).unwrap_or(*root).page() == page;
            let taken = released.iter().take_while(is_there).count();
            self.reclaiming.freeing.ordered =
                self.order(&Entry::Free(Freed { taken: taken as u32, ..Freed::default() }), None, work);
        }
    }
}
