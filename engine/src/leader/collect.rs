//! Collecting what no root reaches.
//!
//! One mark, incremental, by the leader alone, over the newest state of every object, ordered or not yet
//! visible. What a commit writes, makes or moves becomes grey with it and is looked at again; so when nothing
//! is grey, all that the roots reach is black, at that very moment (Steele, CACM 1975). Then the pages are
//! swept: objects that are white are dead. A time of grace passes, in which commits go on to colour; then
//! what is still dead goes to the order in pieces, and at a moment when nothing is grey one later entry frees
//! all of it together. If anything dead was written meanwhile, the collection is given up and begins again.
//!
//! A transaction under way that still names a freed object is refused when it commits
//! ([`crate::replica::frees`]). Chunks of large values and former places are no candidates: they go with the
//! object that they belong to. The invariant: a freed object is dead when it is freed, and only objects freed
//! with it lead there.

use std::collections::{BTreeMap, BTreeSet};

use tercel_wire::class;
use tercel_wire::cursor::le32;
use tercel_wire::id::{ClassId, Oref, PageId, SLOTS_MAX, Stamp};
use tercel_wire::page::{PAGE_BYTES, PAGE_HEADER_BYTES, SLOT_BYTES, class_of};
use tercel_wire::record::HEADER_BYTES;

use super::census::{Counted, Counting};
use super::marks::{Color, Marks};
use super::own::trees_of;
use super::{Leader, Work, across};
use crate::effect::{CollectConfig, Unread};
use crate::mutant::{self, Rule, dropped};
use crate::pages::mob::forwarded;
use crate::pages::reads::Waiter;
use crate::replica::catalogue::Catalogue;
use crate::replica::entry::Entry;
use crate::replica::entry::Piece;
use crate::replica::places::Places;
use crate::replica::released::is_chunk;
use crate::status::{Collected, Collection, OutOfReach};
use crate::time::Now;
use crate::txn::export;

/// Collections of one view's leader: the one under way, and when the next one is due.
#[derive(Debug, Default)]
pub(super) struct Collecting {
    config: CollectConfig,
    cycle: Option<Box<Cycle>>,
    wanted: Option<Wanted>,
    /// The number of slots in use when the last collection ended.
    left: u64,
    /// The number of completed collections, and the report of the last one.
    done: u64,
    report: Option<Collected>,
    /// The end of one that is not visible yet, and its report.
    ending: Option<(Stamp, Collected)>,
    /// Pages that have room beside what is in them, each with the bytes that this takes, as the last sweep
    /// found them.
    holes: Vec<(PageId, u16)>,
    /// Trees that waited to be freed when a collection had released its own.
    released: usize,
    /// The use of the room of pages that the last sweep found, less the objects freed since.
    counted: Option<Counted>,
}

/// The task of the next collection. Of several requests, the one that wants more wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    /// To say what it would free.
    Report,
    Free,
}

/// A collection under way.
#[derive(Debug)]
struct Cycle {
    wanted: Wanted,
    marks: Marks,
    phase: Phase,
    /// The page that is read for it.
    reading: Option<PageId>,
    /// The page that was looked at last.
    cursor: PageId,
    /// Dead objects that own trees of chunks, in order, each with one of them.
    trees: Vec<(Oref, Oref)>,
    /// Pages that are held back for nothing.
    unheld: BTreeSet<PageId>,
    /// See [`Collecting::holes`].
    holes: Vec<(PageId, u16)>,
    /// By class, what was dead when it was swept.
    found: BTreeMap<ClassId, Found>,
    /// The use of the room of the pages swept so far, and the time of the sweep.
    counting: Counting,
    counted_at: Now,
    /// Pages in the pieces that are ordered, objects in them, and the stamp of the last piece.
    staged: u32,
    staged_objects: u64,
    ordered: Stamp,
    /// Something that is already in a piece is not dead any more.
    is_broken: bool,
    is_held_up: bool,
}

/// Progress of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Mark,
    /// The next page to be swept.
    Sweep(u32),
    /// Until then.
    Grace(Now),
    /// The next page whose dead slots go to the order.
    Stage(u32),
    /// All pieces are ordered.
    Free,
}

/// Dead objects of one class.
#[derive(Debug, Default)]
struct Found {
    objects: u64,
    bytes: u64,
    examples: Vec<Oref>,
}

/// A dead object, as a sweep sees it.
struct Corpse {
    oref: Oref,
    class: ClassId,
    bytes: usize,
    trees: Vec<Oref>,
}

/// Objects of a page that are looked at in one go: some ten microseconds.
const SLICE_OBJECTS: usize = 64;

/// Pages with nothing in them that a sweep passes in one go.
const SLICE_PAGES: usize = 256;

/// Bytes of a piece of what is freed, about.
const PIECE_BYTES: usize = 32 << 10;

/// Room from which on a page is granted beside what is in it: less would scatter what is made together.
const HOLE_BYTES_MIN: usize = PAGE_BYTES / 3;

/// Slots up to which it is: those that were used once are not used again, and take room.
const HOLE_SLOTS_MAX: u16 = SLOTS_MAX * 3 / 4;

/// Pages with room that are remembered until the next sweep, 8 bytes each: half a gigabyte of pages.
const HOLES_MAX: usize = 1 << 16;

/// Pages that are let go of with one collection; what is above it waits for the next.
const UNHELD_MAX: usize = 8 << 10;

/// Objects of each class that a report names.
const EXAMPLES: usize = 5;

impl Collecting {
    /// A view begins; the last collection before it left so much.
    pub(super) fn new(config: CollectConfig, left: u64) -> Collecting {
        Collecting { config, left, ..Collecting::default() }
    }

    /// A commit makes, changes or moves an object there.
    pub(super) fn wrote(&mut self, oref: Oref, is_new: bool) {
        if !is_new && dropped(Rule::MarkForgetsWrites) {
            return;
        }
        if let Some(cycle) = &mut self.cycle {
            cycle.reach(oref);
            cycle.marks.set(oref, Color::Grey);
        }
    }

    /// A part of a transaction over several spaces names these: they are not out of reach until it is
    /// settled.
    pub(super) fn name(&mut self, orefs: &[Oref]) {
        if let Some(cycle) = &mut self.cycle {
            orefs.iter().for_each(|oref| cycle.reach(*oref));
        }
    }

    /// An entry frees what is there.
    pub(super) fn left(&mut self, oref: Oref) {
        if let Some(cycle) = &mut self.cycle {
            cycle.reach(oref);
            cycle.marks.set(oref, Color::Black);
        }
    }

    /// The number of objects and chunks beyond those that the last collection left.
    fn made(&self, places: &Places) -> u64 {
        places.objects().saturating_sub(self.left)
    }

    /// Says whether enough was made since the last collection to make another worthwhile.
    fn is_due(&self, places: &Places) -> bool {
        let share = self.left / 100 * u64::from(self.config.made_percent);
        self.config.is_automatic && self.made(places) >= self.config.made_min.max(share)
    }

    /// Says whether dead objects are about to be freed, so that no large transaction may begin.
    pub(super) fn is_freeing(&self) -> bool {
        self.cycle.as_ref().is_some_and(|cycle| matches!(cycle.phase, Phase::Stage(_) | Phase::Free))
    }

    /// There may be room again for an entry.
    pub(super) fn try_again(&mut self) {
        if let Some(cycle) = &mut self.cycle {
            cycle.is_held_up = false;
        }
    }

    /// A page that may have room beside what is in it, and the bytes that this takes.
    pub(super) fn next_hole(&mut self) -> Option<(PageId, u16)> {
        self.holes.pop()
    }

    /// The number of trees that may wait to be freed beside those that commits have released.
    pub(super) fn released(&self) -> usize {
        self.released
    }

    /// When a time of grace is over.
    pub(super) fn deadline(&self) -> Option<Now> {
        match self.cycle.as_ref()?.phase {
            Phase::Grace(until) => Some(until),
            _ => None,
        }
    }
}

impl Cycle {
    fn new(wanted: Wanted) -> Cycle {
        let mut cycle = Cycle {
            wanted,
            marks: Marks::default(),
            phase: Phase::Mark,
            reading: None,
            cursor: class::ROOT_HEAD.page(),
            trees: Vec::new(),
            unheld: BTreeSet::new(),
            holes: Vec::new(),
            found: BTreeMap::new(),
            counting: Counting::default(),
            counted_at: Now(0),
            staged: 0,
            staged_objects: 0,
            ordered: Stamp::ZERO,
            is_broken: false,
            is_held_up: false,
        };
        cycle.marks.set(class::ROOT_HEAD, Color::Grey);
        cycle
    }

    /// Something leads to a place.
    fn reach(&mut self, oref: Oref) {
        let old = self.marks.color(oref);
        if matches!(old, Color::White | Color::Dead) {
            self.marks.set(oref, Color::Grey);
            let is_unheld = self.unheld.remove(&oref.page());
            let is_known =
                matches!(self.phase, Phase::Stage(_) | Phase::Free) && (old == Color::Dead || is_unheld);
            self.is_broken |= is_known && !dropped(Rule::CancelledFrees);
        }
    }

    /// Looks at some of what is grey in a page. What is in the buffer is looked at there, for the rest the
    /// page must be here.
    fn mark_slice(&mut self, page: PageId, work: &mut Work) {
        self.cursor = page;
        let is_here = work.pages.is_here(page);
        let (mut refs, mut is_missing) = (Vec::new(), false);
        let catalogue = &work.replica.catalogue;
        for oref in self.marks.grey_of(page).into_iter().take(SLICE_OBJECTS) {
            let is_in_buffer = || work.pages.mob.patch(page).is_some_and(|p| p.newest(oref.slot()).is_some());
            if !is_here && !is_in_buffer() {
                is_missing = true;
                continue;
            }
            self.marks.set(oref, Color::Black);
            work.pages.newest(oref, |object| refs_of(object, catalogue, &mut refs));
            refs.drain(..).for_each(|to| self.reach(to));
        }
        if is_missing {
            self.read(page, work);
        }
    }

    fn read(&mut self, page: PageId, work: &mut Work) {
        self.reading = Some(page);
        work.pages.reads.wait(page, Waiter::Collect(page));
    }

    /// Looks for what is white, in the next page that has anything in it.
    fn sweep_slice(&mut self, from: u32, work: &mut Work) {
        let places = &work.replica.places;
        let is_of_interest = |page: &PageId| places.filled(*page) > 0 || places.is_held_back(*page);
        let end = places.next_page();
        let upto = end.min(from.saturating_add(SLICE_PAGES as u32));
        let Some(page) = (from..upto).filter_map(PageId::new).find(is_of_interest) else {
            self.phase = Phase::Sweep(upto);
            if upto == end {
                self.swept(work);
            }
            return;
        };
        self.phase = Phase::Sweep(page.get());
        let Some(extents) = work.pages.extents(page) else { return self.read(page, work) };
        let mut corpses = Vec::new();
        for oref in extents.bytes.iter().filter_map(|(slot, _)| Oref::new(page, *slot)) {
            if self.marks.color(oref) == Color::White {
                match corpse(oref, work) {
                    Ok(found) => corpses.extend(found),
                    Err(missing) => return self.read(missing, work),
                }
            }
        }
        let dead: usize = corpses.iter().map(|corpse| corpse.bytes).sum();
        let all: usize = extents.bytes.iter().map(|(_, bytes)| *bytes).sum();
        let used = PAGE_HEADER_BYTES + all - dead;
        corpses.into_iter().for_each(|corpse| self.bury(corpse));
        let is_worth_it = all > dead
            && used + SLOT_BYTES * extents.slots as usize <= PAGE_BYTES - HOLE_BYTES_MIN
            && extents.slots <= HOLE_SLOTS_MAX;
        if is_worth_it && self.holes.len() < HOLES_MAX && work.replica.places.hole_from(page).is_some() {
            self.holes.push((page, used as u16));
        }
        self.counting.see(page, &extents, &self.marks);
        let is_filled = |slot: &u16| extents.bytes.binary_search_by_key(slot, |(s, _)| *s).is_ok();
        if work.replica.places.is_held_back(page)
            && self.unheld.len() < UNHELD_MAX
            && (self.marks.marked_of(page).iter().all(|slot| is_filled(&slot))
                || dropped(Rule::UnheldThoughNamed))
        {
            self.unheld.insert(page);
        }
        self.phase = Phase::Sweep(page.get() + 1);
    }

    fn bury(&mut self, corpse: Corpse) {
        self.marks.set(corpse.oref, Color::Dead);
        self.trees.extend(corpse.trees.into_iter().map(|root| (corpse.oref, root)));
        if corpse.class == class::FORWARD {
            // Where it went there is an object, which is counted.
            return;
        }
        let found = self.found.entry(corpse.class).or_default();
        found.objects += 1;
        found.bytes += corpse.bytes as u64;
        if found.examples.len() < EXAMPLES {
            found.examples.push(corpse.oref);
        }
    }

    /// All pages are swept.
    fn swept(&mut self, work: &Work) {
        self.counted_at = work.now;
        let grace = if dropped(Rule::NoGrace) { 0 } else { work.config.collect.grace_ms };
        self.phase = Phase::Grace(work.now.plus_us(grace * 1_000));
    }

    /// The next piece of dead objects, and the page after it.
    fn piece(&mut self, from: u32) -> (Piece, u32) {
        let mut piece = Piece { at: self.staged, ..Piece::default() };
        let (mut bytes, mut next) = (0, from);
        let piece_bytes = mutant::bound(PIECE_BYTES, 64);
        while next < self.marks.pages_end() && bytes < piece_bytes {
            let page = PageId::new(next).map(|page| (page, self.marks.dead_of(page)));
            next += 1;
            let Some((page, slots)) = page.filter(|(_, slots)| !slots.is_empty()) else { continue };
            let owners = self.trees.partition_point(|(owner, _)| owner.page() < page);
            let owned = self.trees[owners..].iter().take_while(|(owner, _)| owner.page() == page);
            piece
                .released
                .extend(owned.filter(|(owner, _)| slots.contains(owner.slot())).map(|(_, root)| *root));
            bytes += slots.encoded_bytes() + 4;
            self.staged_objects += slots.count() as u64;
            piece.pages.push((page, slots));
        }
        if next >= self.marks.pages_end() {
            piece.unheld.extend(&self.unheld);
        }
        (piece, next)
    }

    fn report(&self, catalogue: &Catalogue) -> Collected {
        let classes = self.found.iter().map(|(id, found)| OutOfReach {
            class: catalogue.class(*id).map_or("", |layout| layout.name()).into(),
            objects: found.objects,
            bytes: found.bytes,
            examples: found.examples.iter().map(ToString::to_string).collect(),
        });
        Collected {
            failed: None,
            dry_run: self.wanted == Wanted::Report,
            mark_bytes: self.marks.bytes() as u64,
            reached: self.marks.marked(),
            objects: self.found.values().map(|found| found.objects).sum(),
            bytes: self.found.values().map(|found| found.bytes).sum(),
            pages_let_go: self.unheld.len() as u64,
            room: self.counting.found,
            classes: classes.collect(),
        }
    }
}

/// The references of an object, and where it went if it moved.
fn refs_of(object: &[u8], catalogue: &Catalogue, refs: &mut Vec<Oref>) {
    let Some(layout) = catalogue.class(class_of(object)) else { return };
    if dropped(Rule::ExportIsNoRoot) && layout.name() == export::TABLE {
        return;
    }
    let body = &object[HEADER_BYTES..];
    layout.refs(body, |at| refs.extend(Oref::from_raw(le32(body, at)).filter(|to| !to.is_null())));
}

/// Gives the object in an unreachable place, if it is a candidate; as error, the page that must be here to
/// know it.
fn corpse(oref: Oref, work: &mut Work) -> Result<Option<Corpse>, PageId> {
    let catalogue = &work.replica.catalogue;
    let look = |object: &[u8]| {
        let (class, bytes) = (class_of(object), object.len());
        let corpse = Corpse { oref, class, bytes, trees: trees_of(object, catalogue) };
        (!is_chunk(class)).then(|| (corpse, forwarded(object)))
    };
    let Some(Some((corpse, moved))) = work.pages.newest(oref, look) else { return Ok(None) };
    let Some(to) = moved else { return Ok(Some(corpse)) };
    // A chunk that did not fit where it was promised a place is still a chunk.
    match work.pages.newest(to, |object| is_chunk(class_of(object))) {
        Some(false) => Ok(Some(corpse)),
        Some(true) => Ok(None),
        None if !work.pages.is_here(to.page()) => Err(to.page()),
        None => Ok(Some(corpse)),
    }
}

impl Leader {
    /// A client asks for a collection, or what one would free: gives which one will do it.
    pub(crate) fn collect(&mut self, is_dry: bool) -> u64 {
        let collecting = &mut self.reclaiming.collecting;
        collecting.wanted = collecting.wanted.max(Some(if is_dry { Wanted::Report } else { Wanted::Free }));
        collecting.done + 1 + u64::from(collecting.cycle.is_some() || collecting.ending.is_some())
    }

    /// The state of the collection.
    pub(crate) fn collect_status(&self, places: &Places) -> Collection {
        let Collecting { done, report, cycle, .. } = &self.reclaiming.collecting;
        let (phase, page) = match cycle.as_ref().map(|cycle| &cycle.phase) {
            None => ("none", 0),
            Some(Phase::Mark) => ("mark", 0),
            Some(Phase::Sweep(page)) => ("sweep", *page),
            Some(Phase::Grace(_)) => ("grace", 0),
            Some(Phase::Stage(page)) => ("stage", *page),
            Some(Phase::Free) => ("free", 0),
        };
        Collection {
            phase: phase.into(),
            done: *done,
            reached: cycle.as_ref().map_or(0, |cycle| cycle.marks.marked()),
            out_of_reach: cycle.as_ref().map_or(0, |cycle| cycle.marks.dead()),
            page: page.into(),
            made_since: self.reclaiming.collecting.made(places),
            last: report.clone(),
        }
    }

    /// The room of pages at the last count.
    pub(crate) fn counted(&self) -> Option<Counted> {
        self.reclaiming.collecting.counted
    }

    /// Says whether a collection has something to do now.
    pub(super) fn collect_wants(&self, visible: Stamp, places: &Places) -> bool {
        let collecting = &self.reclaiming.collecting;
        let Some(cycle) = &collecting.cycle else {
            let is_due = collecting.wanted.is_some() || collecting.is_due(places);
            return is_due && collecting.ending.is_none();
        };
        if cycle.reading.is_some() {
            return false;
        }
        !cycle.marks.is_settled()
            || match cycle.phase {
                Phase::Mark | Phase::Sweep(_) => true,
                Phase::Grace(_) => false,
                Phase::Stage(_) => cycle.ordered <= visible && !cycle.is_held_up,
                Phase::Free => cycle.ordered <= visible && !cycle.is_held_up && self.large.is_none(),
            }
    }

    /// Does a slice of a collection.
    pub(super) fn go_on_collecting(&mut self, work: &mut Work) {
        // Large values go only after the objects that owned them.
        let collecting = &mut self.reclaiming.collecting;
        collecting.left = collecting.left.min(work.replica.places.objects());
        let Some(mut cycle) = self.reclaiming.collecting.cycle.take() else {
            if self.collect_wants(work.pages.visible(), &work.replica.places) {
                let wanted = self.reclaiming.collecting.wanted.take().unwrap_or(Wanted::Free);
                self.begin_cycle(wanted, work);
            }
            return;
        };
        if cycle.reading.is_some() {
            self.reclaiming.collecting.cycle = Some(cycle);
            return;
        }
        if cycle.is_broken {
            return self.begin_collecting_again(*cycle, work);
        }
        if let Some(page) = cycle.marks.grey_from(cycle.cursor) {
            cycle.mark_slice(page, work);
            self.reclaiming.collecting.cycle = Some(cycle);
            return;
        }
        match cycle.phase {
            Phase::Mark => cycle.phase = Phase::Sweep(1),
            Phase::Sweep(page) => {
                cycle.sweep_slice(page, work);
                if matches!(cycle.phase, Phase::Grace(_)) {
                    self.reclaiming.collecting.counted = Some(cycle.counted());
                    if cycle.wanted == Wanted::Report || cycle.is_futile() {
                        return self.collected(*cycle, Stamp::ZERO, work);
                    }
                }
            }
            Phase::Grace(until) if work.now >= until => cycle.phase = Phase::Stage(1),
            Phase::Grace(_) => {}
            Phase::Stage(_) | Phase::Free => return self.free_dead(cycle, work),
        }
        self.reclaiming.collecting.cycle = Some(cycle);
    }

    /// Orders a piece of dead objects, or, after the last, the entry that frees all of them.
    fn free_dead(&mut self, mut cycle: Box<Cycle>, work: &mut Work) {
        let is_shown = cycle.ordered <= work.pages.visible();
        // The log is needed from the first piece on: a collection that has begun to free waits for no room
        // that its end makes.
        let is_begun = cycle.ordered > Stamp::ZERO;
        let has_room = !work.log_is_full() && work.pages.mob.bytes() <= work.config.mob_bytes;
        cycle.is_held_up = work.disk_full || !(is_begun || has_room);
        match cycle.phase {
            Phase::Stage(from) if is_shown && !cycle.is_held_up => {
                if cycle.is_futile() {
                    return self.collected(*cycle, Stamp::ZERO, work);
                }
                let (piece, next) = cycle.piece(from);
                cycle.staged += piece.pages.len() as u32;
                let is_last = next >= cycle.marks.pages_end();
                cycle.phase = if is_last { Phase::Free } else { Phase::Stage(next) };
                if !piece.pages.is_empty() || !piece.unheld.is_empty() {
                    cycle.ordered = self.order(&Entry::Condemn(piece), None, work);
                }
            }
            Phase::Free if is_shown && !cycle.is_held_up && self.large.is_none() => {
                work.stats.collected += cycle.staged_objects;
                let stamp = self.order(&Entry::Collect { pages: cycle.staged }, None, work);
                cycle.counting.found = cycle.counting.left;
                self.reclaiming.collecting.released = work.replica.released.count();
                self.reclaiming.collecting.counted = Some(cycle.counted());
                return self.collected(*cycle, stamp, work);
            }
            _ => {}
        }
        self.reclaiming.collecting.cycle = Some(cycle);
    }

    /// A collection has come to its end, which will be visible at that stamp.
    fn collected(&mut self, cycle: Cycle, stamp: Stamp, work: &Work) {
        let report = cycle.report(&work.replica.catalogue);
        if cycle.wanted == Wanted::Free {
            self.reclaiming.collecting.left = work.replica.places.objects();
            // The lowest are given out first. Without the free the dead have their room.
            self.reclaiming.collecting.holes = cycle.holes.into_iter().rev().collect();
        }
        self.reclaiming.collecting.ending = Some((stamp, report));
        self.waiting.behind_due = true;
        self.collected_upto(work.pages.visible());
    }

    /// Everything up to here is visible.
    pub(super) fn collected_upto(&mut self, visible: Stamp) {
        if let Some((_, report)) = self.reclaiming.collecting.ending.take_if(|(stamp, _)| *stamp <= visible) {
            self.reclaiming.collecting.done += 1;
            self.reclaiming.collecting.report = Some(report);
        }
    }

    /// An object came to life that an ordered piece names as dead: all pieces are taken back.
    fn begin_collecting_again(&mut self, cycle: Cycle, work: &mut Work) {
        self.take_back_dead(&cycle, work);
        self.begin_cycle(cycle.wanted, work);
        self.waiting.behind_due = true;
    }

    /// A collection begins, with the roots and what prepared parts name.
    fn begin_cycle(&mut self, wanted: Wanted, work: &Work) {
        let collecting = &mut self.reclaiming.collecting;
        collecting.cycle = Some(Box::new(Cycle::new(wanted)));
        for (_, part) in work.replica.prepares.iter().filter(|_| !dropped(Rule::HeldLostInCollection)) {
            collecting.name(&across::names(&part.entry().logged.effects, &work.replica.catalogue));
        }
    }

    /// No object of the ordered pieces is freed.
    fn take_back_dead(&mut self, cycle: &Cycle, work: &mut Work) {
        if cycle.ordered > Stamp::ZERO {
            self.order(&Entry::Condemn(Piece::default()), None, work);
        }
    }

    /// The page that a collection waited for is here, or is damaged: then nothing can be said of what it
    /// leads to.
    pub(crate) fn collect_read(&mut self, page: PageId, failed: Option<&Unread>, work: &mut Work) {
        let Some(cycle) = self.reclaiming.collecting.cycle.as_mut().filter(|c| c.reading == Some(page))
        else {
            return;
        };
        cycle.reading = None;
        let Some(why) = failed else {
            self.go_on_collecting(work);
            // It was read for this alone, and the pages of clients are not to make room for all pages of the
            // space.
            return work.pages.cool(page);
        };
        let failed = Some(format!("a collection needs every page: {}", why.with_next_step()));
        if let Some(cycle) = self.reclaiming.collecting.cycle.take() {
            self.take_back_dead(&cycle, work);
        }
        self.reclaiming.collecting.ending = Some((Stamp::ZERO, Collected { failed, ..Default::default() }));
        self.waiting.behind_due = true;
        self.collected_upto(work.pages.visible());
    }
}

impl Cycle {
    fn counted(&self) -> Counted {
        Counted { room: self.counting.found, at: self.counted_at }
    }

    /// Says whether there is nothing to be freed.
    fn is_futile(&self) -> bool {
        self.marks.dead() == 0 && self.unheld.is_empty()
    }
}
