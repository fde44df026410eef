//! By page: in how many of its slots there is something, and from which slot on there never was a place.
//!
//! The counts lie in rows as they are stored, four bytes a page, so nothing of them is encoded for a
//! checkpoint. A checkpoint takes the rows that are not known to be stored, and shares them with this table
//! until they change: it costs a reference count a row, and a copy of a row at its next change. The
//! invariant: a row that is `Stored` is in the page store, byte for byte, with the last checkpoint there. A
//! row becomes `Stored` only when a checkpoint that took it is, so one that comes to nothing needs no report:
//! the next one takes its rows again.

use std::ops::Range;
use std::sync::Arc;

use tercel_wire::cursor::{DecodeError, le16};
use tercel_wire::id::PageId;

use super::digest::RowSum;
use crate::mutant::{Rule, dropped};

/// A row of counts: its number, from 0 and without gaps, and its [`ROW_BYTES`] bytes.
pub type CountRow = (u32, Arc<Vec<u8>>);

/// Pages of a row. With the frame of a named value it fits into a node of the page store's file, which has
/// 4,096 bytes.
pub const ROW_PAGES: u32 = 1_000;

pub const ROW_BYTES: usize = ROW_PAGES as usize * COUNT_BYTES;

/// Rows of a space that has given out all of its pages.
pub const ROWS_MAX: usize = (PageId::MAX.get() / ROW_PAGES) as usize + 1;

/// The count of a page of which it is not known in how many slots there is something.
pub const UNKNOWN: u16 = u16::MAX;

/// Two numbers of two bytes: slots that are filled, and the first that was never a place, 0 if that is not
/// known.
const COUNT_BYTES: usize = 4;

/// The counts of all pages. Pages beyond the last row have none.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    rows: Vec<Row>,
    /// In how many slots there is something, of the pages of which that is known.
    objects: u64,
    /// In how many pages there is something, or it is not known.
    in_use: u32,
    sum: RowSum,
}

#[derive(Debug, Clone)]
struct Row {
    bytes: Arc<Vec<u8>>,
    state: RowState,
}

/// The relation of a row to the page store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowState {
    /// The count is stored as it is.
    Stored,
    /// A checkpoint took it as it is, and is not known to be stored.
    Taken,
    /// The count has changed since any checkpoint took it.
    Changed,
}

/// The counts of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count {
    filled: u16,
    top: u16,
}

impl Counts {
    /// Rows as they were stored, from the first one on.
    ///
    /// # Errors
    /// If a row is missing or of another size, or if there are more than a space has.
    pub(super) fn restored(rows: &[CountRow]) -> Result<Counts, DecodeError> {
        let mut counts = Counts::default();
        if rows.len() > ROWS_MAX {
            return Err(DecodeError::TooMany("rows of counts"));
        }
        for (at, (number, bytes)) in rows.iter().enumerate() {
            if *number as usize != at || bytes.len() != ROW_BYTES {
                return Err(DecodeError::BadField("row of counts"));
            }
            for i in 0..ROW_PAGES {
                let count = Count::of(bytes, i);
                counts.add(number * ROW_PAGES + i, count);
            }
            counts.rows.push(Row { bytes: bytes.clone(), state: RowState::Stored });
        }
        Ok(counts)
    }

    /// In how many slots of a page there is something, or [`UNKNOWN`].
    pub(super) fn filled(&self, page: PageId) -> u16 {
        self.get(page).filled
    }

    /// The first slot of a page that was never a place, if that is known.
    pub(super) fn top(&self, page: PageId) -> Option<u16> {
        Some(self.get(page).top).filter(|top| *top > 0)
    }

    /// In how many slots there is something, as far as it is known.
    pub(super) fn objects(&self) -> u64 {
        self.objects
    }

    /// In how many pages there is something, or it is not known.
    pub(super) fn in_use(&self) -> u32 {
        self.in_use
    }

    /// For [`super::Replica::digest`].
    pub(super) fn digest(&self) -> u64 {
        self.sum.value()
    }

    pub(super) fn set_filled(&mut self, page: PageId, filled: u16) {
        self.set(page, Count { filled, ..self.get(page) });
    }

    pub(super) fn set_top(&mut self, page: PageId, top: Option<u16>) {
        self.set(page, Count { top: top.unwrap_or_default(), ..self.get(page) });
    }

    /// Nothing is known of the pages below `end` any more.
    pub(super) fn forget_below(&mut self, end: u32) {
        let pages = 1..end.min(PageId::MAX.get() + 1);
        *self = Counts::default();
        let full: Arc<Vec<u8>> = Arc::new(UNKNOWN_COUNT.repeat(ROW_PAGES as usize));
        let rows = pages.end.div_ceil(ROW_PAGES);
        for number in 0..rows {
            let of_row = number * ROW_PAGES..(number + 1) * ROW_PAGES;
            let is_whole = of_row.start >= pages.start && of_row.end <= pages.end;
            let bytes = if is_whole { full.clone() } else { Arc::new(unknown_within(of_row, &pages)) };
            self.rows.push(Row { bytes, state: RowState::Changed });
        }
        pages.for_each(|page| self.add(page, Count { filled: UNKNOWN, top: 0 }));
    }

    /// The number of rows.
    pub(super) fn rows_count(&self) -> u32 {
        self.rows.len() as u32
    }

    /// All rows.
    pub(super) fn all(&self) -> Vec<CountRow> {
        (0..).zip(&self.rows).map(|(number, row)| (number, row.bytes.clone())).collect()
    }

    /// The rows that are not known to be stored, for a checkpoint of now.
    pub(super) fn take(&mut self) -> Vec<CountRow> {
        let not_stored = (0..).zip(&mut self.rows).filter(|(_, row)| row.state != RowState::Stored);
        let take = |(number, row): (u32, &mut Row)| {
            row.state = RowState::Taken;
            (number, row.bytes.clone())
        };
        not_stored.map(take).collect()
    }

    /// The checkpoint that took rows last is stored.
    pub(super) fn stored(&mut self) {
        for row in &mut self.rows {
            if row.state == RowState::Taken || dropped(Rule::CountsChangedAreStored) {
                row.state = RowState::Stored;
            }
        }
    }

    /// Says whether no count lies at or beyond the page.
    pub(super) fn end_below(&self, page: u32) -> bool {
        let Some(row) = self.rows.last() else { return true };
        let first = (self.rows.len() as u32 - 1) * ROW_PAGES;
        first < page && (page - first..ROW_PAGES).all(|i| Count::of(&row.bytes, i) == Count::NONE)
    }

    fn get(&self, page: PageId) -> Count {
        let row = self.rows.get((page.get() / ROW_PAGES) as usize);
        row.map_or(Count::NONE, |row| Count::of(&row.bytes, page.get() % ROW_PAGES))
    }

    fn set(&mut self, page: PageId, count: Count) {
        let was = self.get(page);
        if was == count {
            return;
        }
        let at = (page.get() / ROW_PAGES) as usize;
        while self.rows.len() <= at {
            self.rows.push(Row { bytes: Arc::new(vec![0; ROW_BYTES]), state: RowState::Changed });
        }
        let row = &mut self.rows[at];
        row.state = RowState::Changed;
        let bytes: &mut Vec<u8> = Arc::make_mut(&mut row.bytes);
        count.put(bytes, page.get() % ROW_PAGES);
        self.remove(page.get(), was);
        self.add(page.get(), count);
    }

    fn add(&mut self, page: u32, count: Count) {
        if count != Count::NONE {
            self.objects += count.objects();
            self.in_use += u32::from(count.filled > 0);
            self.sum.add(&count.row(page));
        }
    }

    fn remove(&mut self, page: u32, count: Count) {
        if count != Count::NONE {
            self.objects -= count.objects();
            self.in_use -= u32::from(count.filled > 0);
            self.sum.remove(&count.row(page));
        }
    }
}

/// A row of which the counts of these pages are not known, and all others are 0.
fn unknown_within(row: Range<u32>, pages: &Range<u32>) -> Vec<u8> {
    row.flat_map(|page| if pages.contains(&page) { UNKNOWN_COUNT } else { [0; COUNT_BYTES] }).collect()
}

/// The bytes of a count that is not known.
const UNKNOWN_COUNT: [u8; COUNT_BYTES] = [0xff, 0xff, 0, 0];

impl Count {
    /// A page in which nothing is and of which nothing is known.
    const NONE: Count = Count { filled: 0, top: 0 };

    /// The count at a place of a row.
    fn of(row: &[u8], i: u32) -> Count {
        let at = i as usize * COUNT_BYTES;
        Count { filled: le16(row, at), top: le16(row, at + 2) }
    }

    fn put(self, row: &mut [u8], i: u32) {
        let at = i as usize * COUNT_BYTES;
        row[at..at + 2].copy_from_slice(&self.filled.to_le_bytes());
        row[at + 2..at + COUNT_BYTES].copy_from_slice(&self.top.to_le_bytes());
    }

    fn objects(self) -> u64 {
        if self.filled == UNKNOWN { 0 } else { self.filled.into() }
    }

    fn row(self, page: u32) -> [u64; 2] {
        [page.into(), u64::from(self.filled) << 16 | u64::from(self.top)]
    }
}
