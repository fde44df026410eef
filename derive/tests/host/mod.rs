//! The least that a crate must offer to be named by `#[object(crate = "...")]`: objects are bytes at hand,
//! and an editor notes what it was asked to do.
#![allow(dead_code, unused_imports, reason = "not every test reads and changes")]

use std::cell::RefCell;
use std::marker::PhantomData;

use tercel_wire::cursor::le32;
use tercel_wire::id::{ClassId, Oref};
use tercel_wire::layout::{Var, var};
use tercel_wire::record::{Class, Encoder, HEADER_BYTES, List, NoSpill, Ref, Target, Text, Value};
use tercel_wire::schema::{Schema, Type};

pub mod __private {
    pub use super::{
        Elements, Error, Field, ListField, Object, RawMut, RawObj, Record, SetByEditors, Stored,
        load_elements, no_variant,
    };
    pub use tercel_heap::{TypeIndex, Typed};
    pub use tercel_wire as wire;
}

pub mod collections;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error;

pub trait Object: Class {
    type View<'t>;
    type Mut<'t>;
    const IS_ROW: bool = false;
    fn view<'t>(raw: RawObj<'t, Self>) -> Self::View<'t>;
    fn raw<'a, 't>(view: &'a Self::View<'t>) -> &'a RawObj<'t, Self>;
    fn edit<'t>(raw: RawMut<'t, Self>) -> Self::Mut<'t>;
    fn load(stored: &Stored<'_>) -> Result<Self, Error>;
}

pub trait Record: Sized {
    const SCHEMA: Schema;
    fn put_fields(&self, e: &mut Encoder<'_>, at: usize);
    fn load_fields(stored: &Stored<'_>, at: usize) -> Result<Self, Error>;
}

#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a field of an object",
    note = "fields are: u8 to u64, i8 to i64, f32, f64, bool, arrays of them, Text, Bytes, Ref<T>, Far<T>, List<T>, Option<T> and types with #[derive(Record)]",
    note = "if `{Self}` is a class, with #[derive(Object)], a field refers to its objects: write `Ref<{Self}>`"
)]
pub trait Field: Value + Sized {
    type Got<'a, 't, T: Object>
    where
        't: 'a;
    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Self::Got<'a, 't, T>;
    fn load(stored: &Stored<'_>, at: usize) -> Result<Self, Error>;
    const FIELD_TYPE: Type = <Self as Value>::TYPE;
    fn put_field(&self, e: &mut Encoder<'_>, at: usize) {
        self.put(e, at);
    }
    fn set_field<T: Object>(self, object: &RawMut<'_, T>, field: usize, at: usize) -> Result<(), Error> {
        object.set(field, at, self)
    }
    fn append_field<T: Object>(self, object: &RawMut<'_, T>, field: usize, at: usize) -> Result<(), Error> {
        object.set(field, at, self)
    }
}

#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an element of a list",
    note = "elements are: u8 to u64, i8 to i64, f32, f64, bool, arrays of them, Text, Bytes, Ref<T>, Far<T>, List<T>, Option<T> and types with #[derive(Record)]",
    note = "if `{Self}` is a class, with #[derive(Object)], a list refers to its objects: write `List<Ref<{Self}>>`"
)]
pub trait ListField: Value + Sized {
    type Items<'a, 't, T: Object>
    where
        't: 'a;
    fn items<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Self::Items<'a, 't, T>;
    fn load_items(stored: &Stored<'_>, at: usize) -> Result<Vec<Self>, Error>;
}

pub fn no_variant(_: &str, _: u8) -> Error {
    Error
}

pub fn load_elements<E: Field>(stored: &Stored<'_>, at: usize) -> Result<Vec<E>, Error> {
    let Var::Here { at, len } = var(stored.body, at) else { return Err(Error) };
    (0..len).map(|i| E::load(stored, at + i * E::TYPE.size())).collect()
}

/// A list at hand, already read.
pub struct Elements<'a, 't, H, E> {
    all: Result<Vec<E>, Error>,
    holder: PhantomData<(&'a H, &'t H)>,
}

impl<'a, 't, H: Object, E: ListField> Elements<'a, 't, H, E> {
    pub fn new(obj: &'a RawObj<'t, H>, at: usize) -> Elements<'a, 't, H, E> {
        Elements { all: E::load_items(&obj.stored(), at), holder: PhantomData }
    }

    pub fn to_vec(&self) -> Result<Vec<E>, Error>
    where
        E: Clone,
    {
        self.all.clone()
    }
}

pub struct RawObj<'t, T> {
    body: &'t [u8],
    class: PhantomData<fn() -> T>,
}

impl<T> RawObj<'_, T> {
    pub fn stored(&self) -> Stored<'_> {
        Stored { body: self.body }
    }
}

pub struct Stored<'a> {
    pub body: &'a [u8],
}

/// Field, offset and bytes of its fixed part.
pub type Set = (usize, usize, Vec<u8>);

/// A value that a setter of a view takes: no type is one. Derived code asks for it, so that the compiler says
/// what to call instead.
#[diagnostic::on_unimplemented(
    message = "an object that was read has no setters",
    label = "edit it first: `object.edit()?.set_..(..)`",
    note = "a row of a table is edited by the table: `table.edit(tx, key)?.set_..(..)`"
)]
pub trait SetByEditors {
    /// Cannot be called.
    fn never<R>(self) -> R;
}

pub struct RawMut<'t, T> {
    sets: RefCell<&'t mut Vec<Set>>,
    class: PhantomData<fn() -> T>,
}

impl<T: Object> RawMut<'_, T> {
    pub fn set<F: Value>(&self, field: usize, at: usize, value: F) -> Result<(), Error> {
        let mut no = NoSpill;
        let mut e = Encoder::new(F::TYPE.size(), &mut no);
        value.put(&mut e, 0);
        let bytes = e.finish(ClassId(99)).map_err(|_| Error)?;
        self.sets.borrow_mut().push((field, at, bytes[HEADER_BYTES..].to_vec()));
        Ok(())
    }

    pub fn reference(&self) -> Ref<T> {
        Ref::new(Oref::from_raw(77 << 9).unwrap())
    }
}

/// The body of a stored object.
pub fn body<T: Class>(value: &T) -> Vec<u8> {
    let mut no = NoSpill;
    let mut e = Encoder::new(T::SCHEMA.size(), &mut no);
    value.encode(&mut e);
    e.finish(ClassId(99)).unwrap()[HEADER_BYTES..].to_vec()
}

pub fn view<T: Object>(body: &[u8]) -> T::View<'_> {
    T::view(RawObj { body, class: PhantomData })
}

pub fn edit<T: Object>(sets: &mut Vec<Set>) -> T::Mut<'_> {
    T::edit(RawMut { sets: RefCell::new(sets), class: PhantomData })
}

macro_rules! numbers {
    ($($t:ty),*) => {$(
        impl Field for $t {
            type Got<'a, 't, T: Object> = $t where 't: 'a;
            fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> $t {
                Self::load(&obj.stored(), at).unwrap()
            }
            fn load(stored: &Stored<'_>, at: usize) -> Result<$t, Error> {
                Ok(<$t>::from_le_bytes(stored.body[at..at + size_of::<$t>()].try_into().unwrap()))
            }
        }
    )*};
}
numbers!(u8, u16, u32, i64);

impl<const N: usize> Field for [u8; N] {
    type Got<'a, 't, T: Object>
        = [u8; N]
    where
        't: 'a;
    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> [u8; N] {
        Self::load(&obj.stored(), at).unwrap()
    }
    fn load(stored: &Stored<'_>, at: usize) -> Result<[u8; N], Error> {
        Ok(stored.body[at..at + N].try_into().unwrap())
    }
}

impl Field for Text {
    type Got<'a, 't, T: Object>
        = Result<&'a str, Error>
    where
        't: 'a;
    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Result<&'a str, Error> {
        let Var::Here { at, len } = var(obj.body, at) else { return Err(Error) };
        std::str::from_utf8(&obj.body[at..at + len]).map_err(|_| Error)
    }
    fn load(stored: &Stored<'_>, at: usize) -> Result<Text, Error> {
        let Var::Here { at, len } = var(stored.body, at) else { return Err(Error) };
        String::from_utf8(stored.body[at..at + len].to_vec()).map(Text).map_err(|_| Error)
    }
}

impl<U: Target> Field for Ref<U> {
    type Got<'a, 't, T: Object>
        = Ref<U>
    where
        't: 'a;
    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Ref<U> {
        Self::load(&obj.stored(), at).unwrap()
    }
    fn load(stored: &Stored<'_>, at: usize) -> Result<Ref<U>, Error> {
        Oref::from_raw(le32(stored.body, at)).map(Ref::new).ok_or(Error)
    }
}

impl<E: ListField> Field for List<E> {
    type Got<'a, 't, T: Object>
        = E::Items<'a, 't, T>
    where
        't: 'a;
    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> E::Items<'a, 't, T> {
        E::items(obj, at)
    }
    fn load(stored: &Stored<'_>, at: usize) -> Result<List<E>, Error> {
        E::load_items(stored, at).map(List)
    }
}

macro_rules! lists {
    ($([$($bound:tt)*] $t:ty),*) => {$(
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
lists!([] u8, [] u16, [] u32, [] Text, [U: Target] Ref<U>, [F: Field] Option<F>, [E: ListField] List<E>);

impl<F: Field> Field for Option<F> {
    type Got<'a, 't, T: Object>
        = Option<F>
    where
        't: 'a;
    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Option<F> {
        Self::load(&obj.stored(), at).unwrap()
    }
    fn load(stored: &Stored<'_>, at: usize) -> Result<Option<F>, Error> {
        let (some, skip) = match F::TYPE {
            Type::Ref(_) => (le32(stored.body, at) != 0, 0),
            Type::Text | Type::Bytes | Type::List(_) => (var(stored.body, at) != Var::None, 0),
            ty => (stored.body[at] == 1, ty.align()),
        };
        some.then(|| F::load(stored, at + skip)).transpose()
    }
}
