//! The objects of programs: to read, to change, and references to follow.
//!
//! An [`Obj`] is pinned while it lives and reads straight from the cache's memory; it belongs to its
//! transaction and to its thread. What can need a page (following a reference, reading a part that is in
//! chunks) returns a `Result`, the rest does not.

mod elements;
mod far;
mod refs;
mod value;

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Deref;

use tercel_heap::{Lent, View};
use tercel_wire::class;
use tercel_wire::id::{Oref, Stamp};
use tercel_wire::layout::{self, Var};
use tercel_wire::record::{Bytes, HEADER_BYTES, List, Ref, Text};

use crate::error::Error;
use crate::txn::Tx;

pub use tercel_heap::{TypeIndex, Typed};
pub use tercel_wire::record::{Class, Encoder, Fixed, Target, Value};
pub use tercel_wire::schema::{Schema, Type};

pub use elements::{Elements, ElementsIter, load_elements, no_variant};
pub use refs::{Refs, RefsIter};
pub(crate) use refs::{TREE_HEIGHT_MAX, TreeNode};
pub use value::{ValueReader, encode_value};

/// A class of objects. Written by `#[derive(Object)]`; not meant to be written by hand.
pub trait Object: Typed {
    /// The reader of an object: a method for each field.
    type View<'t>;
    /// The editor of an object: a setter for each field.
    type Mut<'t>;

    /// Set if its objects are rows of a table, with indexes that nobody but the table may change.
    #[doc(hidden)]
    const IS_ROW: bool = false;

    /// Wraps.
    fn view<'t>(raw: RawObj<'t, Self>) -> Self::View<'t>;
    /// Unwraps.
    fn raw<'a, 't>(view: &'a Self::View<'t>) -> &'a RawObj<'t, Self>;
    /// Wraps.
    fn edit<'t>(raw: RawMut<'t, Self>) -> Self::Mut<'t>;
    /// Reads all fields.
    fn load(stored: &Stored<'_>) -> Result<Self, Error>;
}

/// A small record inside an object. Written by `#[derive(Record)]`.
pub trait Record: Sized {
    /// The schema of its objects.
    const SCHEMA: Schema;
    /// Writes the fields.
    fn put_fields(&self, e: &mut Encoder<'_>, at: usize);
    /// Reads the fields.
    fn load_fields(stored: &Stored<'_>, at: usize) -> Result<Self, Error>;
}

/// A type that a field of an object can have.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a field of an object",
    note = "fields are: u8 to u64, i8 to i64, f32, f64, bool, arrays of them, Text, Bytes, Ref<T>, Far<T>, List<T>, Option<T> and types with #[derive(Record)]",
    note = "if `{Self}` is a class, with #[derive(Object)], a field refers to its objects: write `Ref<{Self}>`"
)]
pub trait Field: Value + Sized {
    /// The result of reading the field of an object of class `T`.
    type Got<'a, 't, T: Object>
    where
        't: 'a;
    /// Reads it from an object.
    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Self::Got<'a, 't, T>;
    /// Reads it from a stored record, whole.
    fn load(stored: &Stored<'_>, at: usize) -> Result<Self, Error>;

    // What derived code would else ask of `Value` and of `RawMut`. That a type is no `Field` is then the one
    // error that its author gets.

    /// The type of the object. For derived code.
    #[doc(hidden)]
    const FIELD_TYPE: Type = <Self as Value>::TYPE;
    /// Writes it into a record. For derived code.
    #[doc(hidden)]
    fn put_field(&self, e: &mut Encoder<'_>, at: usize) {
        self.put(e, at);
    }
    /// Sets the field that begins at `at`. For derived code.
    #[doc(hidden)]
    fn set_field<T: Object>(self, object: &RawMut<'_, T>, field: usize, at: usize) -> Result<(), Error> {
        object.set(field, at, self)
    }
    /// Sets the field to what it holds with this behind: of lists, whose elements come after those that are
    /// there. Of anything else it is [`Field::set_field`]. For derived code.
    #[doc(hidden)]
    fn append_field<T: Object>(self, object: &RawMut<'_, T>, field: usize, at: usize) -> Result<(), Error> {
        self.set_field(object, field, at)
    }
}

/// A pinned object of class `T`, as long as the transaction lives at most.
///
/// Neither it nor what it lends, such as the text of a field, can leave the transaction. What is to outlive
/// it is taken out: the whole object with [`Obj::to_value`], a text or byte string with `into_owned()`, as in
/// `obj.name()?.into_owned()`, and the way back to it with [`Obj::reference`], which is a plain value.
pub struct Obj<'t, T: Object>(T::View<'t>);

impl<'t, T: Object> Obj<'t, T> {
    pub(crate) fn new(view: View<'t, T>, tx: &'t Tx<'t>) -> Obj<'t, T> {
        Obj(T::view(RawObj { view, tx }))
    }

    /// The reference of the object, to keep or to write into other objects.
    pub fn reference(&self) -> Ref<T> {
        let raw = T::raw(&self.0);
        let (oref, hint) = raw.view.token();
        raw.tx.token(oref, hint)
    }

    /// The transaction that it belongs to. Called as `Obj::tx(&obj)`, so that a field may be called `tx`.
    pub fn tx(this: &Obj<'t, T>) -> &'t Tx<'t> {
        T::raw(&this.0).tx
    }

    /// All its fields as a value, large parts read in.
    pub fn to_value(&self) -> Result<T, Error> {
        T::load(&T::raw(&self.0).stored())
    }

    /// A copy of the transaction's own, to change. Reads of the object in this transaction see the changes at
    /// once, others when it commits. This `Obj` goes on showing what it showed.
    pub fn edit(&self) -> Result<T::Mut<'t>, Error> {
        self.edit_raw().map(T::edit)
    }

    /// The same, raw. For collections.
    #[doc(hidden)]
    pub fn edit_raw(&self) -> Result<RawMut<'t, T>, Error> {
        let raw = T::raw(&self.0);
        raw.tx.edit_view(&raw.view)
    }

    /// The object in stored form. For collections.
    #[doc(hidden)]
    pub fn stored<'a>(this: &'a Obj<'t, T>) -> Stored<'a> {
        T::raw(&this.0).stored()
    }
}

impl<T: Object> Clone for Obj<'_, T> {
    fn clone(&self) -> Self {
        let raw = T::raw(&self.0);
        Obj(T::view(RawObj { view: raw.view.clone(), tx: raw.tx }))
    }
}

impl<'t, T: Object> Deref for Obj<'t, T> {
    type Target = T::View<'t>;
    fn deref(&self) -> &T::View<'t> {
        &self.0
    }
}

/// The raw parts of a view. For derived code.
pub struct RawObj<'t, T> {
    pub(crate) view: View<'t, T>,
    pub(crate) tx: &'t Tx<'t>,
}

impl<T: Object> RawObj<'_, T> {
    /// The record in stored form.
    pub fn stored(&self) -> Stored<'_> {
        let mut bytes = self.view.to_stored();
        bytes.drain(..HEADER_BYTES);
        Stored { body: Cow::Owned(bytes), parts: self.tx }
    }
}

/// A record in stored form and what has its large parts. For derived code.
pub struct Stored<'a> {
    pub(crate) body: Cow<'a, [u8]>,
    pub(crate) parts: &'a dyn Parts,
}

/// The source of the large parts of stored records: a transaction, for its objects, or a message, for its
/// records.
pub(crate) trait Parts {
    /// All bytes of a part, of which there are so many.
    fn tree(&self, root: Oref, len: usize) -> Result<Vec<u8>, Error>;
    /// Appends all references of a part.
    fn ref_tree(&self, root: Oref, out: &mut Vec<Oref>) -> Result<(), Error>;
    /// The stamp of the state in which a reference in the record was read.
    fn stamp_of(&self, oref: Oref) -> Stamp;
}

impl Parts for Tx<'_> {
    fn tree(&self, root: Oref, len: usize) -> Result<Vec<u8>, Error> {
        self.read_tree(root, len)
    }

    fn ref_tree(&self, root: Oref, out: &mut Vec<Oref>) -> Result<(), Error> {
        self.read_ref_tree(root, out)
    }

    fn stamp_of(&self, _: Oref) -> Stamp {
        self.snapshot()
    }
}

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

/// The raw parts of an editor. For derived code.
pub struct RawMut<'t, T> {
    pub(crate) tx: &'t Tx<'t>,
    pub(crate) oref: Oref,
    pub(crate) class: PhantomData<fn() -> T>,
}

impl<'t, T: Object> RawMut<'t, T> {
    /// Sets the field that begins at `at`.
    pub fn set<F: Value>(&self, _field: usize, at: usize, value: F) -> Result<(), Error> {
        self.tx.set_field::<T, F>(self.oref, at, &value)
    }

    /// Reads the field that begins at `at`, as it is set by now.
    pub fn load<F: Field>(&self, at: usize) -> Result<F, Error> {
        F::load(&self.stored()?, at)
    }

    /// The record in stored form, as it is set by now.
    pub fn stored(&self) -> Result<Stored<'t>, Error> {
        let mut object = self.tx.write_set.get(self.oref).ok_or_else(|| Error::not_found(self.oref))?;
        object.drain(..HEADER_BYTES);
        Ok(Stored { body: Cow::Owned(object), parts: self.tx })
    }

    /// The transaction that it belongs to.
    pub fn tx(&self) -> &'t Tx<'t> {
        self.tx
    }

    /// The object's reference.
    pub fn reference(&self) -> Ref<T> {
        self.tx.token(self.oref, 0)
    }
}

macro_rules! scalars {
    ($($t:ty),*) => {$(
        impl Field for $t {
            type Got<'a, 't, T: Object> = $t where 't: 'a;
            #[inline(always)]
            fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> $t {
                obj.view.fixed::<$t>(at)
            }
            fn load(stored: &Stored<'_>, at: usize) -> Result<$t, Error> {
                Ok(fixed(&stored.body, at))
            }
        }
        impl<const N: usize> Field for [$t; N] {
            type Got<'a, 't, T: Object> = [$t; N] where 't: 'a;
            fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> [$t; N] {
                std::array::from_fn(|i| obj.view.fixed::<$t>(at + i * size_of::<$t>()))
            }
            fn load(stored: &Stored<'_>, at: usize) -> Result<[$t; N], Error> {
                Ok(std::array::from_fn(|i| fixed(&stored.body, at + i * size_of::<$t>())))
            }
        }
        // For each number by itself: of one implementation for all of them the compiler would speak in its
        // errors, and not of what the elements of a list can be.
        impl ListField for $t {
            type Items<'a, 't, T: Object> = Elements<'a, 't, T, $t> where 't: 'a;
            fn items<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Elements<'a, 't, T, $t> {
                Elements::new(obj, at)
            }
            fn load_items(stored: &Stored<'_>, at: usize) -> Result<Vec<$t>, Error> {
                load_numbers(stored, at)
            }
            fn read_items<T: Object>(obj: &RawObj<'_, T>, at: usize) -> Result<Vec<$t>, Error> {
                numbers(obj, at)
            }
        }
    )*};
}
scalars!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64, bool);

/// A number at `at` of bytes that were checked.
fn fixed<F: Fixed>(bytes: &[u8], at: usize) -> F {
    let bytes = &bytes[at..at + size_of::<F::Bytes>()];
    match F::Bytes::try_from(bytes) {
        Ok(array) => F::from_bytes(array),
        Err(_) => unreachable!("a slice of an array's own length"),
    }
}

impl Field for Text {
    type Got<'a, 't, T: Object>
        = Result<Cow<'a, str>, Error>
    where
        't: 'a;
    #[inline]
    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Result<Cow<'a, str>, Error> {
        match obj.view.text_at(at) {
            Some(text) => Ok(Cow::Borrowed(text)),
            None => text(in_chunks(obj, at)?).map(Cow::Owned),
        }
    }
    fn load(stored: &Stored<'_>, at: usize) -> Result<Text, Error> {
        Ok(Text(text(stored.part(at)?)?))
    }
}

fn text(bytes: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|_| Error::Corrupt("a text in chunks is not UTF-8".into()))
}

impl Field for Bytes {
    type Got<'a, 't, T: Object>
        = Result<Cow<'a, [u8]>, Error>
    where
        't: 'a;
    #[inline]
    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Result<Cow<'a, [u8]>, Error> {
        match obj.view.bytes_at(at) {
            Some(bytes) => Ok(Cow::Borrowed(bytes)),
            None => in_chunks(obj, at).map(Cow::Owned),
        }
    }
    fn load(stored: &Stored<'_>, at: usize) -> Result<Bytes, Error> {
        Ok(Bytes(stored.part(at)?))
    }
}

/// The text or byte string whose descriptor is at `at`, which is in chunks.
#[cold]
#[inline(never)]
fn in_chunks<T: Object>(obj: &RawObj<'_, T>, at: usize) -> Result<Vec<u8>, Error> {
    match obj.view.var(at) {
        Var::Spilled { at, len } => obj.tx.read_tree(obj.view.word(at).0, len),
        Var::None | Var::Here { .. } => Ok(Vec::new()),
    }
}

impl Stored<'_> {
    /// A text or byte string, whole.
    fn part(&self, at: usize) -> Result<Vec<u8>, Error> {
        match layout::var(&self.body, at) {
            Var::None => Ok(Vec::new()),
            Var::Here { at, len } => Ok(self.body[at..at + len].to_vec()),
            Var::Spilled { at, len } => self.parts.tree(self.oref(at), len),
        }
    }

    fn oref(&self, at: usize) -> Oref {
        Oref::from_raw(tercel_wire::cursor::le32(&self.body, at)).unwrap_or_default()
    }

    fn reference<T>(&self, oref: Oref) -> Ref<T> {
        Ref::new(oref).read_at(self.parts.stamp_of(oref))
    }
}

impl<U: Target> Field for Ref<U> {
    type Got<'a, 't, T: Object>
        = RefField<'a, 't, T, U>
    where
        't: 'a;
    #[inline(always)]
    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> RefField<'a, 't, T, U> {
        RefField { holder: Lent::new(&obj.view), at, tx: obj.tx, class: PhantomData }
    }
    fn load(stored: &Stored<'_>, at: usize) -> Result<Ref<U>, Error> {
        Ok(stored.reference(stored.oref(at)))
    }
}

/// A reference field of an object at hand: can be followed, or taken as a value.
pub struct RefField<'a, 't, H, T> {
    holder: Lent<'a, 't, H>,
    at: usize,
    tx: &'t Tx<'t>,
    class: PhantomData<fn() -> T>,
}

impl<H: Class, T> RefField<'_, '_, H, T> {
    /// The reference as a value.
    pub fn reference(&self) -> Ref<T> {
        let (oref, hint) = self.holder.word(self.at);
        self.tx.token(oref, hint)
    }

    /// Says whether it names no object.
    pub fn is_null(&self) -> bool {
        self.reference().is_null()
    }
}

impl<'t, H: Class, T: Object> RefField<'_, 't, H, T> {
    /// The object.
    ///
    /// # Errors
    /// `NotFound` if the reference is null or names nothing; as [`Tx::get`].
    #[inline(always)]
    pub fn get(&self) -> Result<Obj<'t, T>, Error> {
        match self.tx.follow(&self.holder, self.at)? {
            Some(obj) => Ok(obj),
            None => Err(*null()),
        }
    }

    /// The object, or none if the reference is null.
    #[inline(always)]
    pub fn find(&self) -> Result<Option<Obj<'t, T>>, Error> {
        self.tx.follow(&self.holder, self.at)
    }
}

#[cold]
fn null() -> Box<Error> {
    Box::new(Error::NotFound("the object of a null reference".into()))
}

#[cold]
fn absent(i: usize) -> Box<Error> {
    Box::new(Error::NotFound(format!("element {i} of a list")))
}

impl<E: ListField> Field for List<E> {
    type Got<'a, 't, T: Object>
        = E::Items<'a, 't, T>
    where
        't: 'a;
    #[inline(always)]
    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> E::Items<'a, 't, T> {
        E::items(obj, at)
    }
    fn load(stored: &Stored<'_>, at: usize) -> Result<List<E>, Error> {
        Ok(List(E::load_items(stored, at)?))
    }
    fn append_field<T: Object>(self, object: &RawMut<'_, T>, field: usize, at: usize) -> Result<(), Error> {
        let mut all: List<E> = object.load(at)?;
        all.0.extend(self);
        object.set(field, at, all)
    }
}

/// A type that the elements of a list can have.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an element of a list",
    note = "elements are: u8 to u64, i8 to i64, f32, f64, bool, arrays of them, Text, Bytes, Ref<T>, Far<T>, List<T>, Option<T> and types with #[derive(Record)]",
    note = "if `{Self}` is a class, with #[derive(Object)], a list refers to its objects: write `List<Ref<{Self}>>`"
)]
pub trait ListField: Value + Sized {
    /// The result of reading the list.
    type Items<'a, 't, T: Object>
    where
        't: 'a;
    /// Reads the list from an object.
    fn items<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Self::Items<'a, 't, T>;
    /// Reads the list from a stored record, whole.
    fn load_items(stored: &Stored<'_>, at: usize) -> Result<Vec<Self>, Error>;
    /// Reads the list from an object, whole. For [`Elements`].
    #[doc(hidden)]
    fn read_items<T: Object>(obj: &RawObj<'_, T>, at: usize) -> Result<Vec<Self>, Error> {
        Self::load_items(&obj.stored(), at)
    }
}

/// A list of numbers in an object at hand.
fn numbers<T: Object, E: Fixed>(obj: &RawObj<'_, T>, at: usize) -> Result<Vec<E>, Error> {
    let size = const { E::TYPE.size() };
    Ok(match obj.view.var(at) {
        Var::None => Vec::new(),
        Var::Here { at, len } => each(obj.view.bytes(at, len * size)),
        Var::Spilled { at, len } => each(&obj.tx.read_tree(obj.view.word(at).0, len.saturating_mul(size))?),
    })
}

/// A list of numbers in a stored record.
fn load_numbers<E: Fixed>(stored: &Stored<'_>, at: usize) -> Result<Vec<E>, Error> {
    let size = const { E::TYPE.size() };
    Ok(match layout::var(&stored.body, at) {
        Var::None => Vec::new(),
        Var::Here { at, len } => each(&stored.body[at..at + len * size]),
        Var::Spilled { at, len } => each(&stored.parts.tree(stored.oref(at), len.saturating_mul(size))?),
    })
}

fn each<E: Fixed>(bytes: &[u8]) -> Vec<E> {
    bytes.chunks_exact(const { E::TYPE.size() }).map(|bytes| fixed(bytes, 0)).collect()
}

impl<U: Target> ListField for Ref<U> {
    type Items<'a, 't, T: Object>
        = Refs<'a, 't, T, U>
    where
        't: 'a;
    #[inline(always)]
    fn items<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Refs<'a, 't, T, U> {
        Refs { holder: Lent::new(&obj.view), list: at, tx: obj.tx, class: PhantomData }
    }
    fn load_items(stored: &Stored<'_>, at: usize) -> Result<Vec<Ref<U>>, Error> {
        match layout::var(&stored.body, at) {
            Var::None => Ok(Vec::new()),
            Var::Here { at, len } => {
                Ok((0..len).map(|i| stored.reference(stored.oref(at + 4 * i))).collect())
            }
            Var::Spilled { at, .. } => {
                let mut out = Vec::new();
                stored.parts.ref_tree(stored.oref(at), &mut out)?;
                Ok(out.into_iter().map(|oref| stored.reference(oref)).collect())
            }
        }
    }
}

impl<F: Field> Field for Option<F> {
    type Got<'a, 't, T: Object>
        = Option<F::Got<'a, 't, T>>
    where
        't: 'a;
    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Self::Got<'a, 't, T> {
        let none = match F::TYPE {
            Type::Ref(_) => obj.view.word(at).0.is_null(),
            Type::Text | Type::Bytes | Type::List(_) => obj.view.var(at) == Var::None,
            _ => obj.view.fixed::<u8>(at) == 0,
        };
        (!none).then(|| F::got(obj, at + option_offset(&F::TYPE)))
    }
    fn load(stored: &Stored<'_>, at: usize) -> Result<Option<F>, Error> {
        let none = match F::TYPE {
            Type::Ref(_) => stored.oref(at).is_null(),
            Type::Text | Type::Bytes | Type::List(_) => layout::var(&stored.body, at) == Var::None,
            _ => stored.body[at] == 0,
        };
        if none { Ok(None) } else { F::load(stored, at + option_offset(&F::TYPE)).map(Some) }
    }
}

fn option_offset(ty: &Type) -> usize {
    if ty.has_none() { 0 } else { ty.align() }
}

/// Tercel's own classes as the engine reads them.
macro_rules! built_in {
    ($name:ident, $id:expr, $doc:literal) => {
        #[doc = $doc]
        pub(crate) enum $name {}
        impl Class for $name {
            const SCHEMA: Schema = class::BUILT_IN[$id.0 as usize - 1].1;
            fn encode(&self, _: &mut Encoder<'_>) {
                match *self {}
            }
        }
    };
}
tercel_heap::typed!(BytesLeaf);
tercel_heap::typed!(RefsLeaf);
tercel_heap::typed!(ChunkNode);
tercel_heap::typed!(Root);
built_in!(BytesLeaf, class::BYTES_LEAF, "A leaf with bytes.");
built_in!(RefsLeaf, class::REFS_LEAF, "A leaf with references.");
built_in!(ChunkNode, class::CHUNK_NODE, "A node above leaves or nodes.");

/// A named entry point of a space, as an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    pub name: Text,
    pub target: Ref<tercel_wire::record::Any>,
    pub next: Ref<Root>,
}

impl Class for Root {
    const SCHEMA: Schema = class::BUILT_IN[0].1;
    fn encode(&self, e: &mut Encoder<'_>) {
        self.name.put(e, Self::SCHEMA.offset(0));
        self.target.put(e, Self::SCHEMA.offset(1));
        self.next.put(e, Self::SCHEMA.offset(2));
    }
}

impl Object for Root {
    type View<'t> = RawObj<'t, Root>;
    type Mut<'t> = RawMut<'t, Root>;
    fn view<'t>(raw: RawObj<'t, Root>) -> RawObj<'t, Root> {
        raw
    }
    fn raw<'a, 't>(view: &'a Self::View<'t>) -> &'a RawObj<'t, Root> {
        view
    }
    fn edit<'t>(raw: RawMut<'t, Root>) -> RawMut<'t, Root> {
        raw
    }
    fn load(stored: &Stored<'_>) -> Result<Root, Error> {
        Ok(Root {
            name: Text::load(stored, Self::SCHEMA.offset(0))?,
            target: Ref::load(stored, Self::SCHEMA.offset(1))?,
            next: Ref::load(stored, Self::SCHEMA.offset(2))?,
        })
    }
}
