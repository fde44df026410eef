//! The modified-object buffer: new versions wait here, in memory and in the log, until they are installed
//! into their pages in the background, many of a page at once (Ghemawat 1995).
//!
//! Versions carry stamps, because an ordered entry is not yet visible: readers see the newest up to the
//! visible stamp, placing sees the newest of all. Versions of a large transaction are here before it has a
//! stamp ([`crate::replica::version`]), as the newest of their slots.
//!
//! A collection frees all its slots of a page in one version: there may be a million of them.
//!
//! It can be frozen at a stamp for a backup, which reads the pages as they were then. Nothing is copied: a
//! version that would be dropped and that the frozen stamp shows is set aside instead, until its page has
//! been read. The pages stored at the freeze, the versions set aside and the versions still here make up that
//! stamp exactly.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tercel_wire::class;
use tercel_wire::id::{Oref, PageId, SpaceId, Stamp};
use tercel_wire::page::{Page, PageBuilder};

use crate::mutant::{Rule, dropped};
use crate::replica::Objects;
use crate::replica::version::{PendingStamp, VersionStamp};
use crate::slots::Slots;
use crate::table::Map;

/// The buffer of modified objects: the versions of each page that are not installed yet.
#[derive(Debug, Default)]
pub struct Mob {
    pages: Map<PageId, Patch>,
    /// Bytes of the versions in `pages`, and of those among them that have no place in the order.
    bytes: usize,
    bytes_pending: usize,
    frozen: Option<Frozen>,
}

/// Versions that a stamp of the past still needs.
#[derive(Debug)]
struct Frozen {
    upto: Stamp,
    /// Pages below this one are not needed any more.
    from: u32,
    /// Versions set aside: the newest up to the stamp, of slots in which it would have been dropped.
    aside: BTreeMap<PageId, Patch>,
    bytes: usize,
}

/// The modified objects of a page.
#[derive(Debug)]
pub struct Patch {
    /// By slot; of each the versions, oldest first.
    slots: Vec<(u16, Vec<Version>)>,
    /// Slots emptied together, in the order of the stamps.
    cleared: Vec<Cleared>,
    /// When the oldest of the versions by slot was written.
    first: Option<VersionStamp>,
}

/// Slots in which there is nothing any more since one stamp.
#[derive(Debug)]
struct Cleared {
    slots: Slots,
    /// Without bytes.
    version: Version,
}

/// A version without bytes says that nothing is in its slot any more.
#[derive(Debug)]
struct Version {
    written: VersionStamp,
    /// The birth of the page, as far as this or an earlier version of the slot recorded it; else zero.
    birth: Stamp,
    object: Box<[u8]>,
}

/// The cost of a version beside its bytes: its place in two vectors and the allocator's share.
const VERSION_BYTES: usize = 64;

impl Version {
    fn bytes(&self) -> usize {
        self.object.len() + VERSION_BYTES
    }

    fn is_ordered(&self) -> bool {
        self.written.is_ordered()
    }
}

impl Patch {
    fn bytes(&self) -> usize {
        self.slots.iter().flat_map(|(_, versions)| versions).map(Version::bytes).sum()
    }

    fn new() -> Patch {
        Patch { slots: Vec::new(), cleared: Vec::new(), first: None }
    }

    /// When the oldest of the versions was written. What a large transaction wrote and what a collection
    /// emptied may both wait for their stamps, so which of them is older is not known before.
    fn first(&self) -> Stamp {
        let cleared = self.cleared.iter().map(|c| &c.version.written);
        cleared.chain(&self.first).map(VersionStamp::stamp).min().unwrap_or(VersionStamp::NEVER)
    }

    fn clear(&mut self, slots: Slots, version: Version) {
        self.cleared.push(Cleared { slots, version });
    }

    fn put(&mut self, slot: u16, mut version: Version) {
        // Stamps only go up, so what has none yet will have a higher one.
        if self.first.as_ref().is_none_or(|first| version.written.stamp() < first.stamp()) {
            self.first = Some(version.written.clone());
        }
        match self.slots.binary_search_by_key(&slot, |(s, _)| *s) {
            Ok(i) => {
                // The version that made the object may be dropped before it is installed.
                let before = self.slots[i].1.last().map_or(Stamp::ZERO, |v| v.birth);
                version.birth = version.birth.max(before);
                self.slots[i].1.push(version);
            }
            Err(i) => self.slots.insert(i, (slot, vec![version])),
        }
    }

    /// The newest version of a slot that has a place in the order, visible or not; without bytes if nothing
    /// is there any more.
    pub fn newest(&self, slot: u16) -> Option<&[u8]> {
        let i = self.slots.binary_search_by_key(&slot, |(s, _)| *s).ok();
        let version = i.and_then(|i| newest_of(&self.slots[i].1, Version::is_ordered));
        match self.cleared_last(slot, Version::is_ordered) {
            None => version.map(|v| &*v.object),
            Some(cleared) => Some(&newer(version, cleared).object),
        }
    }

    /// Says whether the newest version of a slot that has a place in the order is of a later stamp.
    pub fn is_newer(&self, slot: u16, than: Stamp) -> bool {
        let i = self.slots.binary_search_by_key(&slot, |(s, _)| *s).ok();
        let version = i.and_then(|i| newest_of(&self.slots[i].1, Version::is_ordered));
        version.is_some_and(|version| version.written.stamp() > than)
    }

    /// The last version of those that `is_seen` with which the slot was emptied together with others.
    fn cleared_last(&self, slot: u16, is_seen: impl Fn(&Version) -> bool) -> Option<&Version> {
        let all = self.cleared.iter().filter(|c| c.slots.contains(slot)).map(|c| &c.version);
        all.filter(|v| is_seen(v)).max_by_key(|v| v.written.stamp())
    }

    /// By slot, in order, the newest versions of those that `is_seen`.
    fn newest_all(&self, is_seen: impl Fn(&Version) -> bool) -> Vec<(u16, &Version)> {
        let written = self.slots.iter().filter_map(|(slot, all)| Some((*slot, newest_of(all, &is_seen)?)));
        let mut all: Vec<(u16, &Version)> = written.collect();
        for cleared in self.cleared.iter().filter(|c| is_seen(&c.version)) {
            for slot in cleared.slots.iter() {
                match all.binary_search_by_key(&slot, |(s, _)| *s) {
                    Ok(i) => all[i].1 = newer(Some(all[i].1), &cleared.version),
                    Err(i) => all.insert(i, (slot, &cleared.version)),
                }
            }
        }
        all
    }

    /// By slot, the newest versions that have a place in the order; without bytes where nothing is any more.
    pub fn all_newest(&self) -> impl Iterator<Item = (u16, &[u8])> {
        self.newest_all(Version::is_ordered).into_iter().map(|(slot, v)| (slot, &*v.object))
    }

    /// The birth that the newest versions give the page.
    pub fn birth(&self) -> Stamp {
        let all = self.slots.iter().flat_map(|(_, versions)| versions).filter(|v| v.written.is_ordered());
        all.map(|v| v.birth).max().unwrap_or_default()
    }

    fn visible(&self, upto: Stamp) -> impl Iterator<Item = (u16, &Version)> {
        let early = dropped(Rule::PendingShown);
        self.newest_all(|v| v.written.stamp() <= upto || early && !v.written.is_ordered()).into_iter()
    }

    /// Finds out anew which version is the oldest; whether there is any.
    fn look(&mut self) -> bool {
        let versions = self.slots.iter().flat_map(|(_, versions)| versions).map(|v| &v.written);
        self.first = versions.min_by_key(|w| w.stamp()).cloned();
        self.first.is_some() || !self.cleared.is_empty()
    }
}

impl Mob {
    /// Bytes held, those set aside included.
    pub fn bytes(&self) -> usize {
        self.bytes + self.bytes_aside()
    }

    /// Bytes held only because it is frozen.
    pub fn bytes_aside(&self) -> usize {
        self.frozen.as_ref().map_or(0, |f| f.bytes)
    }

    /// Bytes of versions that have no place in the order yet.
    pub fn bytes_pending(&self) -> usize {
        self.bytes_pending
    }

    /// From now on [`Mob::merge_page_frozen`] shows pages as of `upto`, which nothing applied so far is
    /// above.
    pub fn freeze(&mut self, upto: Stamp) {
        self.frozen = Some(Frozen { upto, from: 0, aside: BTreeMap::new(), bytes: 0 });
    }

    /// Pages below this one have been read as they were at the frozen stamp, and will not be again.
    pub fn thaw_below(&mut self, page: PageId) {
        let Some(frozen) = &mut self.frozen else { return };
        frozen.from = page.get();
        let kept = frozen.aside.split_off(&page);
        let freed = std::mem::replace(&mut frozen.aside, kept);
        frozen.bytes -= freed.values().map(Patch::bytes).sum::<usize>();
    }

    /// Ends the freeze and drops the versions that were set aside.
    pub fn thaw(&mut self) {
        self.frozen = None;
    }

    /// Says whether the page differs, at the frozen stamp, from the stored page at the time of freezing.
    pub fn differs_frozen(&self, page: PageId) -> bool {
        !self.frozen_versions(page).is_empty()
    }

    /// As [`Mob::merge_page`], at the frozen stamp; `base` is the page as it was stored when it was frozen.
    pub fn merge_page_frozen(
        &self,
        page: PageId,
        base: Option<Page<'_>>,
        space: SpaceId,
        buffer: Vec<u8>,
    ) -> Option<Vec<u8>> {
        lay(self.frozen_versions(page).into_iter(), page, base, space, buffer)
    }

    /// By slot, what the frozen stamp shows of a page beside what is stored. A slot with a version set aside
    /// has only younger ones left.
    fn frozen_versions(&self, page: PageId) -> Vec<(u16, &Version)> {
        let Some(frozen) = &self.frozen else { return Vec::new() };
        let here = self.pages.get(&page).into_iter().flat_map(|p| p.visible(frozen.upto));
        let aside = frozen.aside.get(&page).into_iter().flat_map(|p| p.visible(frozen.upto));
        let mut all: Vec<_> = here.chain(aside).collect();
        all.sort_unstable_by_key(|(slot, version)| (*slot, Reverse(version.written.stamp())));
        // What was set aside may be hidden by what emptied its slot and is still here.
        all.dedup_by_key(|(slot, _)| *slot);
        all
    }

    /// Pages with modified objects.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// The pages with modified objects, in order.
    pub fn page_ids(&self) -> Vec<PageId> {
        let mut ids: Vec<PageId> = self.pages.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// A page's modified objects.
    pub fn patch(&self, page: PageId) -> Option<&Patch> {
        self.pages.get(&page)
    }

    fn put(&mut self, oref: Oref, written: &VersionStamp, birth: Stamp, object: Box<[u8]>) {
        let version = Version { written: written.clone(), birth, object };
        self.bytes += version.bytes();
        if !written.is_ordered() {
            self.bytes_pending += version.bytes();
        }
        self.pages.entry(oref.page()).or_insert_with(Patch::new).put(oref.slot(), version);
    }

    /// Writes a page as readers at `upto` see it: its stored form, if there is one, with the visible versions
    /// over it. `None` if the objects do not fit, which placing prevents.
    pub fn merge_page(
        &self,
        page: PageId,
        base: Option<Page<'_>>,
        upto: Stamp,
        space: SpaceId,
        buffer: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let over = self.pages.get(&page).into_iter().flat_map(|p| p.visible(upto));
        lay(over, page, base, space, buffer)
    }

    /// Says whether the newest versions up to a stamp put anything into the page.
    pub fn has_objects(&self, page: PageId, upto: Stamp) -> bool {
        self.pages.get(&page).is_some_and(|p| p.visible(upto).any(|(_, version)| !version.object.is_empty()))
    }

    /// Says whether the page has modifications, the oldest of which is visible.
    pub fn is_installable(&self, page: PageId, visible: Stamp) -> bool {
        self.pages.get(&page).is_some_and(|p| p.first() <= visible)
    }

    /// Those pages, at most `max`, what was modified first coming first. Looks at all there are.
    pub fn installable(&self, visible: Stamp, max: usize) -> Vec<PageId> {
        let mut all: Vec<(Stamp, PageId)> =
            self.pages.iter().map(|(id, p)| (p.first(), *id)).filter(|(s, _)| *s <= visible).collect();
        if all.len() > max {
            all.select_nth_unstable(max);
            all.truncate(max);
        }
        all.sort_unstable();
        all.into_iter().map(|(_, page)| page).collect()
    }

    /// The page is stored as of `upto`: versions up to there are no longer needed.
    pub fn installed(&mut self, page: PageId, upto: Stamp) {
        let Some(patch) = self.pages.get_mut(&page) else { return };
        for (slot, versions) in &mut patch.slots {
            let n = versions.partition_point(|v| v.written.stamp() <= upto);
            self.bytes -= drop_oldest(versions, n, page, *slot, &mut self.frozen);
        }
        patch.slots.retain(|(_, versions)| !versions.is_empty());
        for cleared in patch.cleared.extract_if(.., |c| c.version.written.stamp() <= upto) {
            set_aside(cleared, page, &mut self.frozen);
        }
        if !patch.look() {
            self.pages.remove(&page);
        }
    }

    /// Versions in these slots of a page that a later visible one hides are dropped.
    pub fn drop_hidden(&mut self, page: PageId, slots: impl IntoIterator<Item = u16>, visible: Stamp) {
        let Some(patch) = self.pages.get_mut(&page) else { return };
        let mut is_any_empty = false;
        for slot in slots {
            let Ok(i) = patch.slots.binary_search_by_key(&slot, |(s, _)| *s) else { continue };
            let cleared =
                patch.cleared_last(slot, |v| v.written.stamp() <= visible).map(|v| v.written.stamp());
            let versions = &mut patch.slots[i].1;
            let shown = versions.iter().rposition(|v| v.written.stamp() <= visible);
            // What emptied the slot hides what was in it, too.
            let emptied = cleared.map(|stamp| versions.partition_point(|v| v.written.stamp() < stamp));
            let Some(hidden) = shown.max(emptied) else { continue };
            self.bytes -= drop_oldest(versions, hidden, page, slot, &mut self.frozen);
            is_any_empty |= versions.is_empty();
        }
        // All at once: a collection empties hundreds of slots of a page, and each removal would move all
        // behind it.
        if is_any_empty {
            patch.slots.retain(|(_, versions)| !versions.is_empty());
        }
    }

    /// The oldest entry of the log that is needed for what is ordered, once `installing` are stored as of
    /// `upto`.
    pub fn oldest(&self, installing: &[PageId], upto: Stamp) -> Option<Stamp> {
        self.pages
            .iter()
            .filter_map(|(id, p)| match installing.binary_search(id) {
                Err(_) => Some(p.first()),
                Ok(_) => {
                    let versions = p.slots.iter().flat_map(|(_, v)| v);
                    let all = versions.chain(p.cleared.iter().map(|c| &c.version));
                    all.map(|v| v.written.stamp()).filter(|s| *s > upto).min()
                }
            })
            .min()
            .filter(|stamp| *stamp < VersionStamp::NEVER)
    }
}

impl Objects for Mob {
    fn write(
        &mut self,
        oref: Oref,
        to: Option<(Oref, Stamp)>,
        written: &VersionStamp,
        birth: Stamp,
        object: &[u8],
    ) {
        let Some((to, birth_there)) = to else { return self.put(oref, written, birth, object.into()) };
        if !dropped(Rule::ForwardLost) {
            self.put(oref, written, birth, forward(to));
        }
        self.put(to, written, birth_there, object.into());
    }

    fn free(&mut self, oref: Oref, stamp: Stamp) {
        self.put(oref, &VersionStamp::At(stamp), Stamp::ZERO, Box::default());
    }

    fn clear(&mut self, page: PageId, slots: &Slots, pending: &PendingStamp) {
        let written = VersionStamp::With(pending.clone());
        let patch = self.pages.entry(page).or_insert_with(Patch::new);
        // What is cleared may be dropped, and the birth that it had recorded with it.
        let birth = patch.birth();
        patch.clear(slots.clone(), Version { written, birth, object: Box::default() });
    }

    fn restore(&mut self, page: PageId, pending: &PendingStamp) {
        let Some(patch) = self.pages.get_mut(&page) else { return };
        patch.cleared.retain(|c| !c.version.written.is_with(pending));
        if !patch.look() {
            self.pages.remove(&page);
        }
    }

    fn ordered(&mut self, pending: &PendingStamp, stamp: Stamp) {
        pending.ordered_at(stamp);
        self.bytes_pending = 0;
    }

    fn retract(&mut self, oref: Oref, pending: &PendingStamp) {
        let Some(patch) = self.pages.get_mut(&oref.page()) else { return };
        let Ok(i) = patch.slots.binary_search_by_key(&oref.slot(), |(s, _)| *s) else { return };
        let versions = &mut patch.slots[i].1;
        let Some(version) = versions.pop_if(|v| v.written.is_with(pending)) else { return };
        self.bytes -= version.bytes();
        self.bytes_pending -= version.bytes();
        if versions.is_empty() {
            patch.slots.remove(i);
        }
        if !patch.look() {
            self.pages.remove(&oref.page());
        }
    }
}

fn newest_of(versions: &[Version], is_seen: impl Fn(&Version) -> bool) -> Option<&Version> {
    versions.iter().rev().find(|v| is_seen(v))
}

/// The newer of what was written in a slot and of what emptied it.
fn newer<'a>(version: Option<&'a Version>, cleared: &'a Version) -> &'a Version {
    version.filter(|v| v.written.stamp() > cleared.written.stamp()).unwrap_or(cleared)
}

/// Keeps what emptied slots of a page, if the frozen stamp shows it.
fn set_aside(cleared: Cleared, page: PageId, frozen: &mut Option<Frozen>) {
    let is_needed = |f: &&mut Frozen| page.get() >= f.from && cleared.version.written.stamp() <= f.upto;
    if let Some(frozen) = frozen.as_mut().filter(is_needed).filter(|_| !dropped(Rule::BackupForgetsReplaced))
    {
        let patch = frozen.aside.entry(page).or_insert_with(Patch::new);
        patch.clear(cleared.slots, cleared.version);
    }
}

/// Lays versions, in the order of their slots, over a page.
fn lay<'a>(
    over: impl Iterator<Item = (u16, &'a Version)>,
    page: PageId,
    base: Option<Page<'_>>,
    space: SpaceId,
    buffer: Vec<u8>,
) -> Option<Vec<u8>> {
    let mut builder = PageBuilder::new(buffer, page, space);
    let before = base.map_or(Stamp::ZERO, |b| b.stamp());
    let mut stamp = before;
    let born = base.map_or(Stamp::ZERO, |b| b.birth());
    let (mut birth, mut slots) = (born, base.map_or(0, |b| b.slots()));
    let mut base = base.iter().flat_map(|b| b.objects()).peekable();
    let mut over = over.peekable();
    loop {
        let slot = match (base.peek(), over.peek()) {
            (Some((b, _)), Some((o, _))) => *b.min(o),
            (Some((slot, _)), None) | (None, Some((slot, _))) => *slot,
            (None, None) => break,
        };
        let stored = base.next_if(|(s, _)| *s == slot).map(|(_, object)| object);
        let version = over.next_if(|(s, _)| *s == slot).map(|(_, version)| version);
        stamp = stamp.max(version.map_or(Stamp::ZERO, |v| v.written.stamp()));
        birth = birth.max(version.map_or(Stamp::ZERO, |v| v.birth));
        let object = version.map(|v| &*v.object).or(stored).unwrap_or_default();
        slots = slots.max(slot + 1);
        if !object.is_empty() {
            builder.push(slot, object).then_some(())?;
        }
    }
    // Slots in which nothing is any more stay taken, but for those of a page that was given out again since.
    if birth == born {
        builder.reserve_slots(slots);
    }
    Some(builder.born(birth).finish(if dropped(Rule::PageWithoutStamp) { before } else { stamp }))
}

/// Drops the oldest `n` versions of a slot, but for the one that the frozen stamp shows, which is set aside.
/// Gives the bytes that the slot has become smaller by.
fn drop_oldest(
    versions: &mut Vec<Version>,
    n: usize,
    page: PageId,
    slot: u16,
    frozen: &mut Option<Frozen>,
) -> usize {
    let mut frozen =
        frozen.as_mut().filter(|f| page.get() >= f.from && !dropped(Rule::BackupForgetsReplaced));
    let shown = frozen.as_ref().and_then(|f| versions.iter().rposition(|v| v.written.stamp() <= f.upto));
    let mut freed = 0;
    for (i, version) in versions.drain(..n).enumerate() {
        freed += version.bytes();
        if let Some(frozen) = frozen.as_mut().filter(|_| shown == Some(i)) {
            frozen.bytes += version.bytes();
            frozen.aside.entry(page).or_insert_with(Patch::new).put(slot, version);
        }
    }
    freed
}

/// The object that stands where a moved one was.
fn forward(to: Oref) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(8);
    bytes.extend_from_slice(&class::FORWARD.0.to_le_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&to.raw().to_le_bytes());
    bytes.into()
}

/// Where a forwarding object points, if this is one.
pub fn forwarded(object: &[u8]) -> Option<Oref> {
    if tercel_wire::page::class_of(object) != class::FORWARD {
        return None;
    }
    Oref::from_raw(tercel_wire::cursor::le32(object, 4))
}

#[cfg(test)]
mod tests {
    use tercel_wire::id::{ClientId, OpId, ViewId};
    use tercel_wire::message::{CommitEffects, Write};

    use super::*;
    use crate::replica::Replica;
    use crate::replica::entry::{Entry, Grant, Head, Logged};

    fn commit(mob: &mut Mob, stamp: u64, oref: Oref, fill: u8, to: Option<Oref>) {
        let object = [16, 0, 0, 0, fill, fill, fill, fill];
        let to = to.map(|to| (to, Stamp::ZERO));
        mob.write(oref, to, &VersionStamp::At(Stamp(stamp)), Stamp::ZERO, &object);
    }

    fn at(page: u32, slot: u16) -> Oref {
        Oref::new(PageId::new(page).unwrap(), slot).unwrap()
    }

    fn see(mob: &Mob, page: u32, upto: u64) -> Vec<(u16, u8)> {
        let id = PageId::new(page).unwrap();
        let bytes = mob.merge_page(id, None, Stamp(upto), SpaceId(1), vec![]).unwrap();
        Page::parse(&bytes, id).unwrap().objects().map(|(s, o)| (s, o[4])).collect()
    }

    #[test]
    fn readers_see_only_visible_versions() {
        let mut mob = Mob::default();
        commit(&mut mob, 1, at(9, 3), 1, None);
        commit(&mut mob, 2, at(9, 3), 2, None);
        commit(&mut mob, 3, at(9, 1), 3, None);
        assert_eq!(see(&mob, 9, 1), [(3, 1)]);
        assert_eq!(see(&mob, 9, 3), [(1, 3), (3, 2)]);
        assert_eq!(mob.patch(PageId::new(9).unwrap()).unwrap().newest(3).unwrap()[4], 2);
        mob.drop_hidden(PageId::new(9).unwrap(), [3], Stamp(3));
        assert_eq!(see(&mob, 9, 3), [(1, 3), (3, 2)]);
    }

    #[test]
    fn installed_versions_are_dropped_others_kept() {
        let mut mob = Mob::default();
        let page = PageId::new(9).unwrap();
        commit(&mut mob, 1, at(9, 3), 1, None);
        commit(&mut mob, 5, at(9, 4), 2, None);
        assert_eq!(mob.oldest(&[], Stamp(0)), Some(Stamp(1)));
        assert_eq!(mob.oldest(&[page], Stamp(3)), Some(Stamp(5)));
        mob.installed(page, Stamp(3));
        assert_eq!(see(&mob, 9, 9), [(4, 2)]);
        mob.installed(page, Stamp(5));
        assert_eq!((mob.bytes(), mob.pages()), (0, 0));
    }

    #[test]
    fn page_of_a_large_transaction_and_a_collection_is_as_old_as_the_one_that_is_ordered() {
        let mut mob = Mob::default();
        let page = PageId::new(9).unwrap();
        let (collection, large) = (PendingStamp::default(), PendingStamp::default());
        mob.clear(page, &[3].into_iter().collect(), &collection);
        mob.write(
            at(9, 4),
            None,
            &VersionStamp::With(large.clone()),
            Stamp::ZERO,
            &[16, 0, 0, 0, 7, 7, 7, 7],
        );
        assert_eq!((mob.is_installable(page, Stamp(9)), mob.oldest(&[], Stamp(9))), (false, None));
        mob.ordered(&large, Stamp(5));
        assert_eq!((mob.is_installable(page, Stamp(9)), mob.oldest(&[], Stamp(9))), (true, Some(Stamp(5))));
        mob.installed(page, Stamp(5));
        assert_eq!((mob.is_installable(page, Stamp(9)), mob.oldest(&[], Stamp(9))), (false, None));
        mob.restore(page, &collection);
        assert_eq!((mob.bytes(), mob.pages()), (0, 0));
    }

    #[test]
    fn a_moved_object_leaves_word_where_it_went() {
        let mut mob = Mob::default();
        commit(&mut mob, 1, at(9, 3), 7, Some(at(12, 0)));
        let home = mob.patch(PageId::new(9).unwrap()).unwrap().newest(3).unwrap();
        assert_eq!(forwarded(home), Some(at(12, 0)));
        assert_eq!(see(&mob, 12, 1), [(0, 7)]);
    }

    fn see_frozen(mob: &Mob, page: u32, base: Option<&[u8]>) -> Vec<(u16, u8)> {
        let id = PageId::new(page).unwrap();
        let base = base.map(|b| Page::parse(b, id).unwrap());
        let bytes = mob.merge_page_frozen(id, base, SpaceId(1), vec![]).unwrap();
        Page::parse(&bytes, id).unwrap().objects().map(|(s, o)| (s, o[4])).collect()
    }

    #[test]
    fn a_frozen_stamp_is_shown_whatever_is_hidden_and_stored_after_it() {
        let mut mob = Mob::default();
        let page = PageId::new(9).unwrap();
        commit(&mut mob, 1, at(9, 3), 1, None);
        commit(&mut mob, 2, at(9, 4), 2, None);
        mob.freeze(Stamp(2));
        let before = mob.bytes();
        commit(&mut mob, 3, at(9, 3), 3, None);
        commit(&mut mob, 4, at(9, 5), 4, None);
        mob.drop_hidden(page, [3], Stamp(4));
        assert_eq!(see_frozen(&mob, 9, None), [(3, 1), (4, 2)]);
        mob.installed(page, Stamp(4));
        assert_eq!((see_frozen(&mob, 9, None), mob.pages()), (vec![(3, 1), (4, 2)], 0));
        assert_eq!((mob.bytes(), mob.bytes_aside()), (before, before));
        commit(&mut mob, 5, at(9, 3), 5, None);
        assert_eq!(see_frozen(&mob, 9, None), [(3, 1), (4, 2)]);
    }

    #[test]
    fn frozen_page_covers_earlier_stored_versions() {
        let mut mob = Mob::default();
        let page = PageId::new(9).unwrap();
        commit(&mut mob, 1, at(9, 3), 1, None);
        let stored = mob.merge_page(page, None, Stamp(1), SpaceId(1), vec![]).unwrap();
        commit(&mut mob, 2, at(9, 3), 2, None);
        mob.freeze(Stamp(2));
        // An install that was under way is done.
        mob.installed(page, Stamp(1));
        assert_eq!(mob.bytes_aside(), 0);
        assert_eq!(see_frozen(&mob, 9, Some(&stored)), [(3, 2)]);
    }

    #[test]
    fn page_has_the_greatest_birth_of_what_is_laid_over_it() {
        let mut mob = Mob::default();
        let page = PageId::new(9).unwrap();
        let object = [16, 0, 0, 0, 1, 1, 1, 1];
        let image = |mob: &Mob, base: Option<&[u8]>, upto| {
            let base = base.map(|b| Page::parse(b, page).unwrap());
            mob.merge_page(page, base, Stamp(upto), SpaceId(1), vec![]).unwrap()
        };
        let seen = |bytes: &[u8]| {
            let p = Page::parse(bytes, page).unwrap();
            (p.birth(), p.slots(), p.objects().count())
        };
        mob.write(at(9, 0), None, &VersionStamp::At(Stamp(5)), Stamp(4), &object);
        commit(&mut mob, 6, at(9, 0), 2, None);
        assert_eq!(seen(&image(&mob, None, 5)), (Stamp(4), 1, 1));
        // The version that made the object may be dropped.
        assert_eq!(seen(&image(&mob, None, 6)), (Stamp(4), 1, 1));
        let stored = image(&mob, None, 5);
        mob.installed(page, Stamp(5));
        assert_eq!(seen(&image(&mob, Some(&stored), 6)), (Stamp(4), 1, 1));
        // Given out again: its slots begin anew, and what was frozen keeps the birth that it had.
        let mut builder = PageBuilder::new(vec![], page, SpaceId(1)).born(Stamp(4));
        builder.reserve_slots(7);
        let emptied = builder.finish(Stamp(7));
        mob.installed(page, Stamp(6));
        mob.freeze(Stamp(7));
        mob.write(at(9, 1), None, &VersionStamp::At(Stamp(9)), Stamp(8), &object);
        assert_eq!(seen(&image(&mob, Some(&emptied), 8)), (Stamp(4), 7, 0));
        assert_eq!(seen(&image(&mob, Some(&emptied), 9)), (Stamp(8), 2, 1));
        let base = Page::parse(&emptied, page).unwrap();
        let frozen = mob.merge_page_frozen(page, Some(base), SpaceId(1), vec![]).unwrap();
        assert_eq!(seen(&frozen), (Stamp(4), 7, 0));
    }

    #[test]
    fn replay_knows_a_birth_although_its_state_has_let_go_of_the_grant() {
        let page = PageId::new(9).unwrap();
        let view = ViewId::new(1, 1);
        let grant = |client| {
            Entry::Grant(Grant {
                client: ClientId(client),
                seq: 1,
                next_page: 10,
                pages: vec![page],
                holes: vec![],
            })
        };
        let object = [16, 0, 0, 0, 1, 1, 1, 1];
        let op = OpId { client: ClientId(8), slot: 0, seq: 1, view };
        let head = Head { op, births: vec![(page, Stamp(3))], ..Head::default() };
        let writes = vec![Write { oref: at(9, 0), new: true, object: &object }];
        let effects = CommitEffects { base: Stamp(3), reads: vec![], writes };
        let commit = Entry::Commit(Logged { head, effects });
        let entries = [grant(7), Entry::End(ClientId(7)), grant(8), commit.clone(), Entry::End(ClientId(8))];
        let mut replica = Replica::new();
        for (stamp, entry) in (1..).map(Stamp).zip(&entries) {
            replica.apply(stamp, view, entry, &mut Mob::default()).unwrap();
        }
        let mut back = Replica::decode(&replica.encode()).unwrap();
        assert!(back.places.granted(page).is_none());
        let mut mob = Mob::default();
        back.apply(Stamp(4), view, &commit, &mut mob).unwrap();
        let bytes = mob.merge_page(page, None, Stamp(5), SpaceId(1), vec![]).unwrap();
        assert_eq!(Page::parse(&bytes, page).unwrap().birth(), Stamp(3));
    }

    #[test]
    fn what_has_been_read_is_not_kept() {
        let mut mob = Mob::default();
        for page in [8, 9] {
            commit(&mut mob, 1, at(page, 3), 1, None);
        }
        mob.freeze(Stamp(1));
        let half = mob.bytes() / 2;
        mob.installed(PageId::new(8).unwrap(), Stamp(1));
        assert_eq!(mob.bytes_aside(), half);
        mob.thaw_below(PageId::new(9).unwrap());
        assert_eq!((mob.bytes_aside(), mob.bytes()), (0, half));
        mob.installed(PageId::new(9).unwrap(), Stamp(1));
        assert_eq!(mob.bytes_aside(), half);
        mob.thaw();
        assert_eq!((mob.bytes(), mob.differs_frozen(PageId::new(9).unwrap())), (0, false));
    }
}
