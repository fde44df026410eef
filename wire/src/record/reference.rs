//! References to objects, as values of fields.

use std::marker::PhantomData;

use super::{Class, Encoder, Value};
use crate::id::{Oref, Stamp};
use crate::schema::Type;

/// A reference to an object of class `T`, as a value: 16 bytes, copied freely, equal when it names the same
/// place. It remembers where a cache last found the object; that is a hint and not part of its value. It also
/// remembers the stamp of the state in which it was read: when the object is gone and its page was given out
/// again since, the reference names no object, whatever stands in the place now.
pub struct Ref<T> {
    oref: Oref,
    hint: u32,
    stamp: Stamp,
    class: PhantomData<fn() -> T>,
}

/// Stands for "an object of any class" in `Ref<Any>`.
#[derive(Debug, Clone, Copy)]
pub enum Any {}

/// The target of a reference: a class, or [`Any`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no class of objects, so nothing can refer to it",
    note = "references, maps and vectors lead to objects: make a struct with `#[derive(Object)]` that holds the value"
)]
pub trait Target: 'static {
    /// The class's name; empty for any.
    const NAME: &'static str;
}

impl<T: Class> Target for T {
    const NAME: &'static str = <T as Class>::NAME;
}

impl Target for Any {
    const NAME: &'static str = "";
}

/// The second parameter of a map: a class, to whose objects the keys lead by reference, or a type of values
/// that stand in the map's nodes themselves: a number, text, byte string or record without references.
#[diagnostic::on_unimplemented(
    message = "a map cannot lead to `{Self}`",
    note = "maps lead to objects of classes with #[derive(Object)], or to small values: numbers, bool, arrays of them, Text, Bytes, Option<T> and types with #[derive(Record)]"
)]
pub trait MapValue: 'static {
    /// The value that a key names: a reference, or the value itself.
    type Value;

    /// The type of values that stand in nodes; none of objects.
    #[doc(hidden)]
    const STANDS: Option<Type>;

    /// The reference that the value is; none of one that stands in a node.
    #[doc(hidden)]
    fn to_reference(value: &Self::Value) -> Option<Ref<Any>>;

    /// The value that the reference is; none of those that stand in nodes.
    #[doc(hidden)]
    fn of_reference(r: Ref<Any>) -> Option<Self::Value>;
}

impl<T: Target> MapValue for T {
    type Value = Ref<T>;
    const STANDS: Option<Type> = None;

    fn to_reference(value: &Ref<T>) -> Option<Ref<Any>> {
        Some(value.cast())
    }

    fn of_reference(r: Ref<Any>) -> Option<Ref<T>> {
        Some(r.cast())
    }
}

/// Makes a type one of values that stand in the nodes of a map. For derived code.
#[doc(hidden)]
#[macro_export]
macro_rules! map_value {
    ($([$($generics:tt)*] $ty:ty),* $(,)?) => {$(
        impl<$($generics)*> $crate::record::MapValue for $ty {
            type Value = $ty;
            const STANDS: ::core::option::Option<$crate::schema::Type> =
                ::core::option::Option::Some(<$ty as $crate::record::Value>::TYPE);

            fn to_reference(_: &$ty) -> ::core::option::Option<$crate::record::Ref<$crate::record::Any>> {
                ::core::option::Option::None
            }

            fn of_reference(_: $crate::record::Ref<$crate::record::Any>) -> ::core::option::Option<$ty> {
                ::core::option::Option::None
            }
        }
    )*};
}

map_value! {
    [] u8, [] u16, [] u32, [] u64, [] i8, [] i16, [] i32, [] i64, [] f32, [] f64, [] bool,
    [const N: usize] [u8; N], [const N: usize] [u16; N], [const N: usize] [u32; N], [const N: usize] [u64; N],
    [] super::Text, [] super::Bytes, [T: Value + 'static] Option<T>,
}

impl<T> Ref<T> {
    /// Names no object.
    pub const NULL: Ref<T> = Ref { oref: Oref::NULL, hint: 0, stamp: Stamp::MAX, class: PhantomData };

    /// A typed reference to whatever is there when it is read. Whether that is of class `T` is checked then.
    pub fn new(oref: Oref) -> Ref<T> {
        Ref::with_hint(oref, 0)
    }

    /// The same, with a cache's handle as the hint.
    pub fn with_hint(oref: Oref, hint: u32) -> Ref<T> {
        Ref { oref, hint, stamp: Stamp::MAX, class: PhantomData }
    }

    /// The same, as read in the state at `stamp`.
    pub fn read_at(self, stamp: Stamp) -> Ref<T> {
        Ref { stamp, ..self }
    }

    /// The stored form.
    pub fn oref(self) -> Oref {
        self.oref
    }

    /// The handle at which a cache last found it, or 0.
    pub fn hint(self) -> u32 {
        self.hint
    }

    /// The stamp of the state in which it was read; [`Stamp::MAX`] if it names whatever is there.
    pub fn stamp(self) -> Stamp {
        self.stamp
    }

    /// Says whether this is the null reference.
    pub fn is_null(self) -> bool {
        self.oref.is_null()
    }

    /// The same reference, expecting another class.
    pub fn cast<U>(self) -> Ref<U> {
        Ref { oref: self.oref, hint: self.hint, stamp: self.stamp, class: PhantomData }
    }
}

impl<T> Clone for Ref<T> {
    fn clone(&self) -> Ref<T> {
        *self
    }
}
impl<T> Copy for Ref<T> {}
impl<T> Default for Ref<T> {
    fn default() -> Ref<T> {
        Ref::NULL
    }
}
impl<T> PartialEq for Ref<T> {
    fn eq(&self, other: &Ref<T>) -> bool {
        self.oref == other.oref
    }
}
impl<T> Eq for Ref<T> {}
impl<T> PartialOrd for Ref<T> {
    fn partial_cmp(&self, other: &Ref<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Ref<T> {
    fn cmp(&self, other: &Ref<T>) -> std::cmp::Ordering {
        self.oref.cmp(&other.oref)
    }
}
impl<T> std::hash::Hash for Ref<T> {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        self.oref.hash(h);
    }
}
impl<T> std::fmt::Debug for Ref<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ref({})", self.oref)
    }
}

impl<T: Target> Value for Ref<T> {
    const TYPE: Type = Type::Ref(T::NAME);
    fn put(&self, e: &mut Encoder<'_>, at: usize) {
        e.set(at, &self.oref.raw().to_le_bytes());
        if !self.is_null() {
            e.spill.named(self.oref, self.stamp);
        }
    }
}
