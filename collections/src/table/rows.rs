//! Going through rows, all at once or page by page.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Bound;
use std::str::FromStr;

use tercel_engine::Error;
use tercel_engine::object::Obj;
use thiserror::Error as ErrorOf;

use super::Row;
use crate::map::walk::Walk;

/// The rows of a table in a range, in order, from both ends. After an error nothing more comes.
pub struct Rows<'t, T> {
    /// The way, or why there is none, until that was told.
    walk: Result<Walk<'t>, Option<Error>>,
    is_done: bool,
    rows: PhantomData<fn() -> T>,
}

/// Some rows, and where the others begin.
pub struct Page<'t, T: Row> {
    /// The rows, in the order in which they came.
    pub rows: Vec<Obj<'t, T>>,
    /// The place behind them; none if no more come.
    pub next: Option<Cursor>,
}

/// A place between the rows of a range: behind the key of one, whether that row is still there or not. As
/// text, for links and other programs, it is in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(pub(super) Vec<u8>);

/// A text that is no [`Cursor`]. The caller must give one that a page came with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ErrorOf)]
#[error("a place in a table is an even number of hexadecimal digits, as a page of rows came with")]
pub struct BadCursor;

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Cursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Cursor, BadCursor> {
        if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(BadCursor);
        }
        let byte = |i: usize| u8::from_str_radix(&text[i..i + 2], 16).map_err(|_| BadCursor);
        (0..text.len()).step_by(2).map(byte).collect::<Result<_, _>>().map(Cursor)
    }
}

impl<'t, T: Row> Rows<'t, T> {
    pub(super) fn new(walk: Result<Walk<'t>, Error>) -> Self {
        Rows { walk: walk.map_err(Some), is_done: false, rows: PhantomData }
    }

    /// The rows behind a place where a page of the same range ended.
    #[must_use]
    pub fn after(mut self, cursor: &Cursor) -> Self {
        if let Ok(walk) = &mut self.walk {
            walk.begin_behind(&cursor.0);
        }
        self
    }

    /// The rows before a place where a page from the end of the same range ended.
    #[must_use]
    pub fn before(mut self, cursor: &Cursor) -> Self {
        if let Ok(walk) = &mut self.walk {
            walk.end_before(&cursor.0);
        }
        self
    }

    /// The next rows, at most `rows_max`, and where to go on: with [`Rows::after`], in any transaction. Rows
    /// that are inserted meanwhile come if they belong behind that place, and none comes twice.
    pub fn page(&mut self, rows_max: usize) -> Result<Page<'t, T>, Error> {
        let mut page = Page { rows: Vec::new(), next: None };
        for row in self.by_ref().take(rows_max) {
            page.rows.push(row?);
        }
        page.next = self
            .walk
            .as_ref()
            .ok()
            .filter(|_| page.rows.len() == rows_max)
            .and_then(|walk| place(walk.low()));
        Ok(page)
    }

    /// As [`Rows::page`] from the end: the last rows, the last one first. It goes on with [`Rows::before`].
    pub fn page_back(&mut self, rows_max: usize) -> Result<Page<'t, T>, Error> {
        let mut page = Page { rows: Vec::new(), next: None };
        for row in self.by_ref().rev().take(rows_max) {
            page.rows.push(row?);
        }
        page.next = self
            .walk
            .as_ref()
            .ok()
            .filter(|_| page.rows.len() == rows_max)
            .and_then(|walk| place(walk.high()));
        Ok(page)
    }

    /// The number of rows that are left, by going to each leaf of the keys and to no row.
    ///
    /// # Errors
    /// As those of the rows.
    pub fn count_keys(self) -> Result<usize, Error> {
        match self.walk {
            Ok(walk) => walk.count(),
            Err(e) => e.map_or(Ok(0), Err),
        }
    }

    /// Takes a step; after an error or the end there are none.
    fn step(
        &mut self,
        step: impl FnOnce(&mut Walk<'t>) -> Result<Option<Obj<'t, T>>, Error>,
    ) -> Option<Result<Obj<'t, T>, Error>> {
        if self.is_done {
            return None;
        }
        let found = match &mut self.walk {
            Ok(walk) => step(walk).transpose(),
            Err(e) => return e.take().map(Err),
        };
        if !matches!(found, Some(Ok(_))) {
            self.is_done = true;
        }
        found
    }
}

/// The place at a bound where rows ended.
fn place(bound: &Bound<Vec<u8>>) -> Option<Cursor> {
    match bound {
        Bound::Excluded(key) => Some(Cursor(key.clone())),
        Bound::Included(_) | Bound::Unbounded => None,
    }
}

impl<'t, T: Row> Iterator for Rows<'t, T> {
    type Item = Result<Obj<'t, T>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(|walk| walk.next(|_, leaf, i| leaf.values().cast::<T>().get(i)))
    }
}

impl<T: Row> DoubleEndedIterator for Rows<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(|walk| walk.next_back(|_, leaf, i| leaf.values().cast::<T>().get(i)))
    }
}
