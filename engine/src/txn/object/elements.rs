//! Lists whose elements are no references: numbers, texts, records.
//!
//! Such a list is read whole, each element as the field it could be. Where it is too long for its record and
//! its elements are all numbers, a tree of chunks has their bytes, one element after the other; they are read
//! there as they would be in the record.

use std::borrow::Cow;
use std::marker::PhantomData;

use tercel_wire::layout::{self, Var};
use tercel_wire::record::{Bytes, List, Text};

use super::{Field, ListField, Object, RawObj, Stored};
use crate::error::Error;

/// A list in an object at hand whose elements are no references. It is gone through as [`Refs`](super::Refs)
/// are: `for line in bill.lines() { line?.. }`.
pub struct Elements<'a, 't, H, E> {
    holder: &'a RawObj<'t, H>,
    list: usize,
    element: PhantomData<fn() -> E>,
}

impl<'a, 't, H: Object, E: ListField> Elements<'a, 't, H, E> {
    /// The list whose descriptor is at `list`. For derived code.
    pub fn new(holder: &'a RawObj<'t, H>, list: usize) -> Elements<'a, 't, H, E> {
        Elements { holder, list, element: PhantomData }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        match self.holder.view.var(self.list) {
            Var::None => 0,
            Var::Here { len, .. } | Var::Spilled { len, .. } => len,
        }
    }

    /// Says whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, in order.
    ///
    /// # Errors
    /// Those of reading large parts: `Unavailable`, `Conflict`, `Corrupt`.
    pub fn to_vec(&self) -> Result<Vec<E>, Error> {
        E::read_items(self.holder, self.list)
    }

    /// All of them in order, read at once. If that fails, the error is the one item.
    pub fn iter(&self) -> ElementsIter<E> {
        match self.to_vec() {
            Ok(elements) => ElementsIter { elements: elements.into_iter(), error: None },
            Err(e) => ElementsIter { elements: Vec::new().into_iter(), error: Some(e) },
        }
    }
}

impl<H: Object, E: ListField> IntoIterator for Elements<'_, '_, H, E> {
    type Item = Result<E, Error>;
    type IntoIter = ElementsIter<E>;

    fn into_iter(self) -> ElementsIter<E> {
        self.iter()
    }
}

/// Goes through the elements of an [`Elements`].
pub struct ElementsIter<E> {
    elements: std::vec::IntoIter<E>,
    error: Option<Error>,
}

impl<E> Iterator for ElementsIter<E> {
    type Item = Result<E, Error>;

    fn next(&mut self) -> Option<Result<E, Error>> {
        match self.error.take() {
            Some(e) => Some(Err(e)),
            None => self.elements.next().map(Ok),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.elements.len() + self.error.is_some() as usize;
        (left, Some(left))
    }
}

/// The elements of the list whose descriptor is at `at`. For derived code.
///
/// # Errors
/// Those of the elements, and of the chunks of a long list.
pub fn load_elements<E: Field>(stored: &Stored<'_>, at: usize) -> Result<Vec<E>, Error> {
    match layout::var(&stored.body, at) {
        Var::None => Ok(Vec::new()),
        Var::Here { at, len } => elements(stored, at, len),
        Var::Spilled { at, len } => {
            let bytes = stored.parts.tree(stored.oref(at), len.saturating_mul(const { E::TYPE.size() }))?;
            elements(&Stored { body: Cow::Owned(bytes), parts: stored.parts }, 0, len)
        }
    }
}

/// The error of derived code for a value that is of no variant of its enum. The values of a record were
/// checked. Those of a long list were not, and are not converted either.
pub fn no_variant(of: &str, tag: u8) -> Error {
    Error::Schema(format!(
        "a value is of variant number {tag} of `{of}`, which this program does not know: build it with the newer enum"
    ))
}

fn elements<E: Field>(stored: &Stored<'_>, from: usize, len: usize) -> Result<Vec<E>, Error> {
    (0..len).map(|i| E::load(stored, from + i * const { E::TYPE.size() })).collect()
}

macro_rules! lists {
    ($([$($bound:tt)*] $t:ty),* $(,)?) => {$(
        impl<$($bound)*> ListField for $t {
            type Items<'a, 't, T: Object> = Elements<'a, 't, T, Self> where 't: 'a;
            fn items<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Elements<'a, 't, T, Self> {
                Elements::new(obj, at)
            }
            fn load_items(stored: &Stored<'_>, at: usize) -> Result<Vec<Self>, Error> {
                load_elements(stored, at)
            }
        }
    )*};
}

lists!([] Text, [] Bytes, [F: Field] Option<F>, [E: ListField] List<E>);
lists!([const N: usize] [u8; N], [const N: usize] [u16; N], [const N: usize] [u32; N], [const N: usize] [u64; N]);
lists!([const N: usize] [i8; N], [const N: usize] [i16; N], [const N: usize] [i32; N], [const N: usize] [i64; N]);
lists!([const N: usize] [f32; N], [const N: usize] [f64; N], [const N: usize] [bool; N]);
