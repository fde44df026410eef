//! Where objects are on this node: pages on disk, and over them the buffer of modified objects.
//!
//! Reading, installing and pinning are effects that the host carries out. Their answers name the view into
//! which this replica was recovered, and answers of another view are dropped. The invariant: no reader sees a
//! version above the visible stamp, and pages are handed to the host only when all that is visible is on this
//! node's disk, too.
//!
//! | module | its noun |
//! |---|---|
//! | [`mob`] | the modified-object buffer |
//! | [`image`] | the page cache |
//! | [`reads`] | pages that must be read: the requests that wait, and the order of the reads |
//! | [`install`] | bringing stored pages up to date, checkpoints, how much of the log is needed |

pub mod image;
pub mod install;
pub mod mob;
pub mod reads;

use std::collections::VecDeque;
use std::sync::Arc;

use tercel_wire::cursor::le16;
use tercel_wire::id::{Oref, PageId, SpaceId, Stamp};
use tercel_wire::page::{PAGE_BYTES, PAGE_HEADER_BYTES, Page, SLOT_BYTES};

use crate::mutant::{Rule, dropped};
use image::{CachedImage, Images};
use install::Installer;
use mob::{Mob, forwarded};
use reads::Reads;

/// The pages of this node: stored pages with the buffer of modified objects over them.
#[derive(Debug)]
pub struct Pages {
    space: SpaceId,
    /// The buffer of modified objects.
    pub mob: Mob,
    images: Images,
    pub(crate) reads: Reads,
    pub(crate) installer: Installer,
    /// Everything up to here may be seen.
    visible: Stamp,
    /// This node's disk has the log up to here.
    written: Stamp,
    /// The highest page that the store may have.
    stored_end: u32,
    /// Visible changes below which hidden versions must still be dropped, and how far that is.
    hidden: VecDeque<(Arc<[Oref]>, usize)>,
    pub(crate) reads_asked: u64,
    pub(crate) pages_installed: u64,
}

/// Objects whose hidden versions are dropped in one go: a hundred microseconds or two.
const DROPPED_AT_ONCE: usize = 500;

impl Pages {
    /// Pages with the modified objects that recovery found, all of them visible up to `visible`.
    pub(crate) fn new(
        space: SpaceId,
        cache_bytes: usize,
        mob: Mob,
        installer: Installer,
        stored_end: u32,
    ) -> Pages {
        Pages {
            space,
            mob,
            images: Images::new(cache_bytes),
            reads: Reads::default(),
            installer,
            visible: Stamp::ZERO,
            written: Stamp::ZERO,
            stored_end,
            hidden: VecDeque::new(),
            reads_asked: 0,
            pages_installed: 0,
        }
    }

    /// Everything up to here may be seen.
    pub fn visible(&self) -> Stamp {
        self.visible
    }

    /// Says whether all visible entries are on this node's disk, so that pages may be stored.
    pub(crate) fn may_store(&self) -> bool {
        self.written >= self.visible || dropped(Rule::TentativeInstalled)
    }

    /// Pages that there is room for in the cache.
    pub(crate) fn cached_max(&self) -> usize {
        self.images.count_max()
    }

    /// The changes of an entry become visible.
    pub(crate) fn show(&mut self, stamp: Stamp, changed: Arc<[Oref]>) {
        self.visible = self.visible.max(stamp);
        for of_page in changed.chunk_by(|a, b| a.page() == b.page()) {
            self.images.changed(of_page[0].page());
        }
        let few = changed.len() <= DROPPED_AT_ONCE && self.hidden.is_empty();
        self.hidden.push_back((changed, 0));
        if few {
            self.drop_hidden();
        }
    }

    /// Shows ordered changes too early, if a rule is dropped.
    pub(crate) fn changed_by_mistake(&mut self, changed: &[Oref]) {
        changed.iter().for_each(|oref| self.images.changed(oref.page()));
    }

    /// The visible stamp moves over entries that change nothing.
    pub(crate) fn show_upto(&mut self, stamp: Stamp) {
        self.visible = self.visible.max(stamp);
    }

    /// This node's disk has the log up to here.
    pub(crate) fn written_upto(&mut self, stamp: Stamp) {
        self.written = self.written.max(stamp);
    }

    /// The log was cut behind this entry, which is on this node's disk if the ones after it were.
    pub(crate) fn written_at_most(&mut self, stamp: Stamp) {
        self.written = self.written.min(stamp);
    }

    /// Says whether hidden versions are still to be dropped.
    pub(crate) fn has_hidden(&self) -> bool {
        !self.hidden.is_empty()
    }

    /// Drops versions that visible ones hide, some of them.
    pub(crate) fn drop_hidden(&mut self) {
        let mut left = DROPPED_AT_ONCE;
        while left > 0
            && let Some((changed, next)) = self.hidden.front_mut()
        {
            let end = changed.len().min(*next + left);
            left -= end - *next;
            for of_page in changed[*next..end].chunk_by(|a, b| a.page() == b.page()) {
                let slots = of_page.iter().map(|oref| oref.slot());
                self.mob.drop_hidden(of_page[0].page(), slots, self.visible);
            }
            *next = end;
            if end == changed.len() {
                self.hidden.pop_front();
            }
        }
        if left == 0 {
            join_freed();
        }
    }

    /// Looks the page up, brought up to the visible stamp.
    pub(crate) fn image(&mut self, page: PageId) -> CachedImage {
        let base = match self.images.get(page) {
            CachedImage::Current(bytes) => return CachedImage::Current(bytes),
            CachedImage::Stale(base) => base,
            CachedImage::Missing if page.get() > self.stored_end => None,
            CachedImage::Missing => return CachedImage::Missing,
        };
        let upto = if dropped(Rule::FetchUnsynced) { TENTATIVE } else { self.visible };
        let image = self.render(page, base, upto);
        self.images.put(page, image.clone(), false);
        CachedImage::Current(image)
    }

    /// The page as it may be stored now.
    pub(crate) fn image_to_store(&mut self, page: PageId) -> CachedImage {
        if !dropped(Rule::TentativeInstalled) {
            return self.image(page);
        }
        let (CachedImage::Current(base) | CachedImage::Stale(base)) = self.images.get(page) else {
            return self.image(page);
        };
        CachedImage::Current(self.render(page, base, TENTATIVE))
    }

    /// A page's bytes with the modified objects up to a stamp over them; none if nothing of it is there.
    pub(crate) fn render(
        &self,
        page: PageId,
        base: Option<Arc<Vec<u8>>>,
        upto: Stamp,
    ) -> Option<Arc<Vec<u8>>> {
        let parsed = base.as_ref().and_then(|bytes| Page::trusted(bytes, page).ok());
        let image = match self.mob.patch(page) {
            None => base,
            Some(_) => self.mob.merge_page(page, parsed, upto, self.space, Vec::new()).map(Arc::new),
        };
        // A page in which nothing is visible, yet or any more, does not exist for readers.
        image.filter(|bytes| has_objects(bytes))
    }

    /// A page was read from the store.
    pub(crate) fn keep_read(&mut self, page: PageId, bytes: Option<Arc<Vec<u8>>>) {
        self.images.put(page, bytes, true);
        // The buffer's versions are laid over now, even if no request waits any more: once an install that is
        // under way is done, the buffer does not have them any more.
        self.image(page);
    }

    /// The page is not needed soon: it leaves the cache before others.
    pub(crate) fn cool(&mut self, page: PageId) {
        self.images.cool(page);
    }

    /// Says whether a page's contents are at hand, brought up to date or not.
    pub(crate) fn is_here(&mut self, page: PageId) -> bool {
        page.get() > self.stored_end || !matches!(self.images.get(page), CachedImage::Missing)
    }

    /// Shows the newest version of an object that was ordered, visible or not.
    pub(crate) fn newest<R>(&mut self, oref: Oref, look: impl FnOnce(&[u8]) -> R) -> Option<R> {
        if let Some(object) = self.mob.patch(oref.page()).and_then(|p| p.newest(oref.slot())) {
            return (!object.is_empty()).then(|| look(object));
        }
        // What is not in the buffer is in the page as it was stored, however old the image of it is.
        let (CachedImage::Current(bytes) | CachedImage::Stale(bytes)) = self.images.get(oref.page()) else {
            return None;
        };
        let page = Page::trusted(bytes.as_ref()?, oref.page()).ok()?;
        page.object(oref.slot()).map(look)
    }

    /// Says whether a version of the object is ordered and not visible.
    pub(crate) fn is_on_its_way(&self, oref: Oref) -> bool {
        self.mob.patch(oref.page()).is_some_and(|patch| patch.is_newer(oref.slot(), self.visible()))
    }

    /// Where an object went, if it outgrew its page.
    pub(crate) fn forward_of(&mut self, oref: Oref) -> Option<Oref> {
        self.newest(oref, forwarded).flatten()
    }

    /// By slot, the bytes of the newest ordered version of everything in a page, in order of slots; none of a
    /// page that is not at hand.
    pub(crate) fn extents(&mut self, page: PageId) -> Option<Extents> {
        let CachedImage::Current(bytes) = self.image(page) else { return None };
        let parsed = bytes.as_ref().and_then(|b| Page::trusted(b, page).ok());
        let birth = self.mob.patch(page).map_or(Stamp::ZERO, |p| p.birth());
        // Of a page that was given out again the slots begin anew.
        let slots = parsed.filter(|p| p.birth() >= birth).map_or(0, |p| p.slots());
        let mut all = Extents { slots, bytes: Vec::new() };
        all.bytes.extend(parsed.iter().flat_map(|p| p.objects()).map(|(slot, o)| (slot, o.len())));
        for (slot, object) in self.mob.patch(page).into_iter().flat_map(|p| p.all_newest()) {
            all.slots = all.slots.max(slot + 1);
            match all.bytes.binary_search_by_key(&slot, |(s, _)| *s) {
                Ok(i) => all.bytes[i].1 = object.len(),
                Err(i) => all.bytes.insert(i, (slot, object.len())),
            }
        }
        all.bytes.retain(|(_, bytes)| *bytes > 0);
        Some(all)
    }

    /// The highest page that the store may have.
    pub(crate) fn stored_upto(&mut self, page: PageId) {
        self.stored_end = self.stored_end.max(page.get());
    }
}

/// The extents of the slots of a page.
pub(crate) struct Extents {
    /// The slot behind the last one.
    pub slots: u16,
    /// Bytes by slot, in order.
    pub bytes: Vec<(u16, usize)>,
}

impl Extents {
    /// Free bytes of the page.
    pub(crate) fn free(&self) -> isize {
        let used: usize = self.bytes.iter().map(|(_, bytes)| bytes).sum();
        let total = PAGE_HEADER_BYTES + used + self.slots as usize * SLOT_BYTES;
        PAGE_BYTES as isize - total as isize
    }
}

/// Above everything that was ordered, below what was not: for rules dropped on purpose.
const TENTATIVE: Stamp = Stamp(u64::MAX - 1);

/// Says whether anything is in a page.
pub(crate) fn has_objects(page: &[u8]) -> bool {
    le16(page, DATA_END_AT) as usize > PAGE_HEADER_BYTES
}

/// Where a page's header says where its objects end.
const DATA_END_AT: usize = 26;

/// Has the allocator join the small blocks that were given back. The C library's puts them aside and joins
/// all of them at the next request of a kilobyte or more, whatever it is for: after 100,000 of them that took
/// ten milliseconds.
fn join_freed() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(4 << 10)));
}
