//! Walks through everything and says what is not as it must be.

use rustc_hash::FxHashMap as HashMap;
use tercel_wire::id::PageId;

use super::{State, Writer};
use crate::page;
use crate::protocol::{BUSY, INVALID, UNSURE, VALID};
use crate::swizzle::Word;
use crate::sync::Ordering;

impl Writer {
    /// Checks every invariant of the cache by recounting it; for tests and for a report of damage. Takes time
    /// in the size of the cache.
    pub fn verify(&self) -> Result<(), String> {
        self.verify_frames()?;
        let (names, pages) = self.recount()?;
        self.verify_entries(&names)?;
        self.verify_pages(&pages)?;
        if self.budget.charge_table && self.used_bytes() > self.budget.bytes {
            return Err(format!(
                "{} bytes are charged to a budget of {}",
                self.used_bytes(),
                self.budget.bytes
            ));
        }
        Ok(())
    }

    fn verify_frames(&self) -> Result<(), String> {
        let count = |s: State| self.frames.iter().filter(|f| f.state == s).count();
        let withheld = self.frames.len() - self.shared.in_use();
        if count(State::Free) != self.free.len() || count(State::Withheld) != withheld {
            return Err("free or withheld frames are miscounted".into());
        }
        if count(State::Superseded) != self.superseded.len() {
            return Err("superseded frames are miscounted".into());
        }
        let newest = self.shared.newest_birth.load(Ordering::Relaxed);
        if let Some((page, _)) = self.births.iter().find(|(_, birth)| birth.0 > newest) {
            return Err(format!("page {page} is younger than the newest birth"));
        }
        if let Some(f) = self.frames.iter().position(|f| f.state == State::Free && f.unsure_since.is_some()) {
            return Err(format!("frame {f} is free and unsure"));
        }
        match self.frames.iter().position(|f| f.closing) {
            Some(f) => Err(format!("frame {f} stayed closed")),
            None => Ok(()),
        }
    }

    fn is_open(&self, frame: u32) -> bool {
        self.shared.frames[frame as usize].page.load(Ordering::Relaxed) & BUSY == 0
    }

    /// Words by handle, and frames and copies by page.
    #[allow(clippy::type_complexity, reason = "two maps that are used once")]
    fn recount(&self) -> Result<(HashMap<u32, u32>, HashMap<PageId, (u32, u32, u32)>), String> {
        let mut names = HashMap::default();
        let mut pages: HashMap<PageId, (u32, u32, u32)> = HashMap::default();
        let mut items = Vec::new();
        for frame in 0..self.frames.len() as u32 {
            let state = self.frames[frame as usize].state;
            if matches!(state, State::Free | State::Withheld) {
                continue;
            }
            match (self.shared.page(frame), state) {
                (Some(p), State::Intact) if self.is_open(frame) => pages.entry(p).or_default().0 += 1,
                (Some(p), State::Superseded) if !self.is_open(frame) => pages.entry(p).or_default().1 += 1,
                (None, State::Compacted) => {}
                _ => {
                    return Err(format!(
                        "frame {frame} is {state:?} and of page {:?}",
                        self.shared.page(frame)
                    ));
                }
            }
            self.items(frame, &mut items);
            let is_sure = state == State::Intact && self.frames[frame as usize].unsure_since.is_none();
            if let Some(item) = items.iter().find(|i| i.flags & UNSURE != 0)
                && (item.flags & INVALID == 0 || is_sure)
            {
                return Err(format!("{} is unsure and not obsolete, or in a page that is sure", item.oref));
            }
            for item in items.iter().filter(|i| i.flags & VALID != 0) {
                let mut bad = None;
                self.each_word(item.arena_offset, |_, word| match word {
                    Word::Handle(h) => *names.entry(h).or_insert(0) += 1,
                    Word::Near(at) => {
                        let near = crate::arena::ArenaOffset::new(frame, at as usize);
                        if page::slot_at(&self.shared, near).is_none() {
                            bad = Some(format!("a word of {} leads to no object of its frame", item.oref));
                        }
                    }
                    _ => {}
                });
                if let Some(bad) = bad {
                    return Err(bad);
                }
                if state == State::Compacted {
                    *names.entry(self.handle_before(item.arena_offset)).or_insert(0) += 1;
                    pages.entry(item.oref.page()).or_default().2 += 1;
                    if let Some(to) = self.forward_of(item.arena_offset) {
                        *names.entry(to).or_insert(0) += 1;
                        pages.entry(self.shared.table.oref(to).page()).or_default().2 += 1;
                    }
                }
            }
        }
        Ok((names, pages))
    }

    fn verify_entries(&self, names: &HashMap<u32, u32>) -> Result<(), String> {
        let table = &self.shared.table;
        let mut live = 0;
        for h in self.index.handles(table) {
            let oref = table.oref(h);
            live += 1;
            if self.index.find(table, oref) != Some(h) {
                return Err(format!("the entry of {oref} is not found by its reference"));
            }
            let counted = names.get(&h).copied().unwrap_or(0);
            if self.index.names(h).is_some_and(|n| n as u32 != counted) {
                return Err(format!(
                    "{counted} words name {oref}, its entry counts {:?}",
                    self.index.names(h)
                ));
            }
            match table.arena_offset(h) {
                None if counted == 0 => {
                    return Err(format!("the entry of {oref} leads nowhere and is not named"));
                }
                None => {}
                Some(arena_offset) => {
                    let frame = &self.frames[arena_offset.frame() as usize];
                    let o = self.object(arena_offset);
                    let valid = o.flags().load(Ordering::Relaxed) & VALID != 0;
                    let own = self.oref_at(arena_offset) == Some(oref)
                        || self.forward_of(arena_offset).is_some_and(|to| table.oref(to) == oref);
                    let held = matches!(frame.state, State::Intact | State::Compacted);
                    let number = o.class().load(Ordering::Relaxed);
                    if !valid || !own || !held || !table.names_type(h, number) {
                        return Err(format!("the entry of {oref} leads to a place that is not its copy"));
                    }
                }
            }
        }
        if let Some(h) = names.keys().find(|&&h| table.oref(h).is_null()) {
            return Err(format!("a word names handle {h}, which is free"));
        }
        if live != self.index.live() { Err("entries are miscounted".into()) } else { Ok(()) }
    }

    fn verify_pages(&self, counted: &HashMap<PageId, (u32, u32, u32)>) -> Result<(), String> {
        for (id, p) in &self.pages {
            let (frames, superseded, copies) = counted.get(id).copied().unwrap_or_default();
            if (p.frame.is_some() as u32, p.superseded, p.copies) != (frames, superseded, copies) {
                return Err(format!(
                    "page {id} is recorded as {p:?} and found {:?}",
                    (frames, superseded, copies)
                ));
            }
            if p.frame.is_some_and(|f| self.shared.page(f) != Some(*id)) {
                return Err(format!("page {id} is not in its frame"));
            }
            if p.is_gone() && !p.pending && !self.gone.is_lost {
                return Err(format!("page {id} is gone and not to be reported"));
            }
        }
        match counted.keys().find(|id| !self.pages.contains_key(*id)) {
            Some(id) => Err(format!("page {id} has copies and no record")),
            None => Ok(()),
        }
    }
}
