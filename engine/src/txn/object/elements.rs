//! Lists whose elements are neither plain numbers nor references: read one by one, each as the field it could be.
//!
//! Such a list is read whole. Where it is too long for its record and its elements are all numbers, a tree of chunks
//! has their bytes, one element after the other; they are read there as they would be in the record.

use std::borrow::Cow;

use tercel_wire::layout::{self, Var};
use tercel_wire::record::{Bytes, List, Text};

use super::{Field, ListField, Object, RawObj, Stored};
use crate::error::Error;

/// The elements of the list whose descriptor is at `at`. For derived code.
///
/// # Errors
/// Those of the elements, and of the chunks of a long list.
pub fn load_elements<E: Field>(stored: &Stored<'_>, at: usize) -> Result<Vec<E>, Error> {
    match layout::var(&stored.body, at) {
        Var::None => Ok(Vec::new()),
        Var::Here { at, len } => elements(stored, at, len),
        Var::Spilled { at, len } => {
            let bytes = stored.tx.read_tree(stored.oref(at), len.saturating_mul(E::TYPE.size()))?;
            elements(&Stored { body: Cow::Owned(bytes), tx: stored.tx }, 0, len)
        }
    }
}

fn elements<E: Field>(stored: &Stored<'_>, from: usize, len: usize) -> Result<Vec<E>, Error> {
    (0..len).map(|i| E::load(stored, from + i * E::TYPE.size())).collect()
}

macro_rules! lists {
    ($([$($bound:tt)*] $t:ty),* $(,)?) => {$(
        impl<$($bound)*> ListField for $t {
            type Items<'a, 't, T: Object> = Result<Vec<Self>, Error> where 't: 'a;
            fn items<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Result<Vec<Self>, Error> {
                load_elements(&obj.stored(), at)
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
