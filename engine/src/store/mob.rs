//! The modified-object buffer: new versions wait here, in memory and in the log, until they are installed into their
//! pages in the background, many of a page at once (Ghemawat 1995).
//!
//! Versions carry stamps, because what is ordered is not yet visible: readers see the newest up to the visible stamp,
//! placing sees the newest of all.

use tercel_wire::class;
use tercel_wire::id::{Oref, PageId, SpaceId, Stamp};
use tercel_wire::page::{Page, PageBuilder};
use tercel_wire::record::{Class as _, Ref};

use super::entry::{Entry, Logged};
use crate::mutant::{Rule, dropped};
use crate::object::Root;
use crate::table::Map;

/// See the module.
#[derive(Debug, Default)]
pub struct Mob {
    pages: Map<PageId, Patch>,
    bytes: usize,
}

/// The modified objects of a page.
#[derive(Debug, Default)]
pub struct Patch {
    /// By slot; of each the versions, oldest first.
    slots: Vec<(u16, Vec<Version>)>,
    /// The oldest entry of the log that is still needed for this page.
    first: Stamp,
}

#[derive(Debug)]
struct Version {
    stamp: Stamp,
    object: Box<[u8]>,
}

/// What a version costs beside its bytes: its place in two vectors and the allocator's share.
const VERSION_BYTES: usize = 64;

impl Patch {
    fn put(&mut self, slot: u16, version: Version) {
        match self.slots.binary_search_by_key(&slot, |(s, _)| *s) {
            Ok(i) => self.slots[i].1.push(version),
            Err(i) => self.slots.insert(i, (slot, vec![version])),
        }
    }

    /// The newest version of a slot, visible or not.
    pub fn newest(&self, slot: u16) -> Option<&[u8]> {
        let i = self.slots.binary_search_by_key(&slot, |(s, _)| *s).ok()?;
        self.slots[i].1.last().map(|v| &*v.object)
    }

    /// All slots with their newest versions.
    pub fn newest_all(&self) -> impl Iterator<Item = (u16, &[u8])> {
        self.slots.iter().filter_map(|(s, v)| v.last().map(|v| (*s, &*v.object)))
    }

    fn visible(&self, upto: Stamp) -> impl Iterator<Item = (u16, &Version)> {
        self.slots.iter().filter_map(move |(s, v)| v.iter().rev().find(|v| v.stamp <= upto).map(|v| (*s, v)))
    }
}

impl Mob {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
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

    /// Takes in what an entry writes; gives the references that changed, as readers know them.
    pub fn apply(&mut self, stamp: Stamp, entry: &Entry<'_>) -> Vec<Oref> {
        match entry {
            Entry::Genesis => {
                self.put(class::ROOT_HEAD, stamp, root_head());
                vec![class::ROOT_HEAD]
            }
            Entry::Commit(c) => self.apply_commit(stamp, c),
            _ => Vec::new(),
        }
    }

    fn apply_commit(&mut self, stamp: Stamp, c: &Logged<'_>) -> Vec<Oref> {
        let mut changed = Vec::with_capacity(c.effects.writes.len());
        let mut placements = c.placements.iter().peekable();
        for (i, w) in c.effects.writes.iter().enumerate() {
            changed.push(w.oref);
            match placements.next_if(|(write, _)| *write as usize == i) {
                None => self.put(w.oref, stamp, w.object.into()),
                Some((_, to)) => {
                    if !dropped(Rule::ForwardLost) {
                        self.put(w.oref, stamp, forward(*to));
                    }
                    self.put(*to, stamp, w.object.into());
                    changed.push(*to);
                }
            }
        }
        changed
    }

    fn put(&mut self, oref: Oref, stamp: Stamp, object: Box<[u8]>) {
        self.bytes += object.len() + VERSION_BYTES;
        let patch =
            self.pages.entry(oref.page()).or_insert_with(|| Patch { first: stamp, ..Patch::default() });
        patch.put(oref.slot(), Version { stamp, object });
    }

    /// Writes a page as readers at `upto` see it: its stored form, if there is one, with the visible versions over it.
    /// `None` if the objects do not fit, which placing prevents.
    pub fn overlay(
        &self,
        page: PageId,
        base: Option<Page<'_>>,
        upto: Stamp,
        space: SpaceId,
        buffer: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let mut builder = PageBuilder::new(buffer, page, space);
        let mut stamp = base.map_or(Stamp::ZERO, |b| b.stamp());
        let mut patch = self.pages.get(&page).into_iter().flat_map(|p| p.visible(upto)).peekable();
        for (slot, object) in base.iter().flat_map(|b| b.objects()) {
            while let Some((s, v)) = patch.next_if(|(s, _)| *s < slot) {
                stamp = stamp.max(v.stamp);
                builder.push(s, &v.object).then_some(())?;
            }
            let over = patch.next_if(|(s, _)| *s == slot);
            stamp = stamp.max(over.as_ref().map_or(Stamp::ZERO, |(_, v)| v.stamp));
            builder.push(slot, over.as_ref().map_or(object, |(_, v)| &v.object)).then_some(())?;
        }
        for (s, v) in patch {
            stamp = stamp.max(v.stamp);
            builder.push(s, &v.object).then_some(())?;
        }
        if let Some(b) = base {
            builder.reserve_slots(b.slots());
        }
        let before = base.map_or(Stamp::ZERO, |b| b.stamp());
        Some(builder.finish(if dropped(Rule::PageWithoutStamp) { before } else { stamp }))
    }

    /// Pages whose oldest modification is visible, the oldest first, at most `max`.
    pub fn installable(&self, visible: Stamp, max: usize) -> Vec<PageId> {
        let mut all: Vec<(Stamp, PageId)> =
            self.pages.iter().filter(|(_, p)| p.first <= visible).map(|(id, p)| (p.first, *id)).collect();
        if all.len() > max {
            all.select_nth_unstable(max);
            all.truncate(max);
        }
        let mut pages: Vec<PageId> = all.into_iter().map(|(_, page)| page).collect();
        pages.sort_unstable();
        pages
    }

    /// The page is stored as of `upto`: versions up to there are no longer needed.
    pub fn installed(&mut self, page: PageId, upto: Stamp) {
        let Some(patch) = self.pages.get_mut(&page) else { return };
        let mut freed = 0;
        for (_, versions) in &mut patch.slots {
            versions.retain(|v| {
                let keep = v.stamp > upto;
                freed += if keep { 0 } else { v.object.len() + VERSION_BYTES };
                keep
            });
        }
        patch.slots.retain(|(_, versions)| !versions.is_empty());
        self.bytes -= freed;
        match patch.slots.iter().flat_map(|(_, v)| v.iter().map(|v| v.stamp)).min() {
            Some(first) => patch.first = first,
            None => {
                self.pages.remove(&page);
            }
        }
    }

    /// Versions that a later visible one hides are dropped.
    pub fn settle(&mut self, page: PageId, slot: u16, visible: Stamp) {
        let Some(patch) = self.pages.get_mut(&page) else { return };
        let Ok(i) = patch.slots.binary_search_by_key(&slot, |(s, _)| *s) else { return };
        let versions = &mut patch.slots[i].1;
        let Some(last) = versions.iter().rposition(|v| v.stamp <= visible) else { return };
        for v in versions.drain(..last) {
            self.bytes -= v.object.len() + VERSION_BYTES;
        }
    }

    /// The oldest entry of the log that is needed, once `installing` are stored as of `upto`.
    pub fn oldest(&self, installing: &[PageId], upto: Stamp) -> Option<Stamp> {
        self.pages
            .iter()
            .filter_map(|(id, p)| match installing.binary_search(id) {
                Err(_) => Some(p.first),
                Ok(_) => {
                    p.slots.iter().flat_map(|(_, v)| v.iter().map(|v| v.stamp)).filter(|s| *s > upto).min()
                }
            })
            .min()
    }
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

fn root_head() -> Box<[u8]> {
    let mut refuse = tercel_wire::record::NoSpill;
    let mut e = tercel_wire::record::Encoder::new(Root::SCHEMA.size(), &mut refuse);
    Root { name: Default::default(), target: Ref::NULL, next: Ref::NULL }.encode(&mut e);
    e.finish(class::ROOT).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tercel_wire::id::{ClientId, Epoch, OpId};
    use tercel_wire::message::{Effects, Write};

    fn commit(mob: &mut Mob, stamp: u64, oref: Oref, fill: u8, placements: Vec<(u32, Oref)>) {
        let object = [16, 0, 0, 0, fill, fill, fill, fill];
        let effects = Effects {
            base: Stamp(0),
            reads: vec![],
            writes: vec![Write { oref, new: false, object: &object }],
        };
        let op = OpId { client: ClientId(1), slot: 0, seq: 1, epoch: Epoch(1) };
        mob.apply(Stamp(stamp), &Entry::Commit(Logged { op, effects, placements }));
    }

    fn at(page: u32, slot: u16) -> Oref {
        Oref::new(PageId::new(page).unwrap(), slot).unwrap()
    }

    fn see(mob: &Mob, page: u32, upto: u64) -> Vec<(u16, u8)> {
        let id = PageId::new(page).unwrap();
        let bytes = mob.overlay(id, None, Stamp(upto), SpaceId(1), vec![]).unwrap();
        Page::parse(&bytes, id).unwrap().objects().map(|(s, o)| (s, o[4])).collect()
    }

    #[test]
    fn readers_see_only_what_is_visible() {
        let mut mob = Mob::default();
        commit(&mut mob, 1, at(9, 3), 1, vec![]);
        commit(&mut mob, 2, at(9, 3), 2, vec![]);
        commit(&mut mob, 3, at(9, 1), 3, vec![]);
        assert_eq!(see(&mob, 9, 1), [(3, 1)]);
        assert_eq!(see(&mob, 9, 3), [(1, 3), (3, 2)]);
        assert_eq!(mob.patch(PageId::new(9).unwrap()).unwrap().newest(3).unwrap()[4], 2);
        mob.settle(PageId::new(9).unwrap(), 3, Stamp(3));
        assert_eq!(see(&mob, 9, 3), [(1, 3), (3, 2)]);
    }

    #[test]
    fn what_is_installed_is_forgotten_and_the_rest_kept() {
        let mut mob = Mob::default();
        let page = PageId::new(9).unwrap();
        commit(&mut mob, 1, at(9, 3), 1, vec![]);
        commit(&mut mob, 5, at(9, 4), 2, vec![]);
        assert_eq!(mob.oldest(&[], Stamp(0)), Some(Stamp(1)));
        assert_eq!(mob.oldest(&[page], Stamp(3)), Some(Stamp(5)));
        mob.installed(page, Stamp(3));
        assert_eq!(see(&mob, 9, 9), [(4, 2)]);
        mob.installed(page, Stamp(5));
        assert_eq!((mob.bytes(), mob.pages()), (0, 0));
    }

    #[test]
    fn a_moved_object_leaves_word_where_it_went() {
        let mut mob = Mob::default();
        commit(&mut mob, 1, at(9, 3), 7, vec![(0, at(12, 0))]);
        let home = mob.patch(PageId::new(9).unwrap()).unwrap().newest(3).unwrap();
        assert_eq!(forwarded(home), Some(at(12, 0)));
        assert_eq!(see(&mob, 12, 1), [(0, 7)]);
    }
}
