//! Which bytes of a type's objects are references, descriptors and plain numbers, and which types this cache
//! knows.
//!
//! The invariant: a header that says *valid* and a type number stands before a body that passed the check of
//! that type's layout.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, OnceLock};

use tercel_lock::unpoison;
use tercel_wire::id::ClassId;
use tercel_wire::layout::{self, Body as _, Layout, NONE_AT, SPILLED, padded};
use tercel_wire::record::{Class, HEADER_BYTES};
use tercel_wire::schema::{Schema, Type};

use crate::arena::{FRAME_WORDS, Object};
use crate::swizzle::{NEAR, expected_entry, near_word};
use crate::sync::{AtomicU32, Ordering};

/// Types of a process, which all its caches number alike: a program has hundreds, and the tables of this size
/// stay below 100 KiB.
pub const TYPES_MAX: usize = 1024;

const _: () = assert!(TYPES_MAX as u32 * FRAME_WORDS <= 1 << 30, "a number and a place fit into a word");

/// A class that cached objects can be of.
///
/// A cached object names its type by a number in two bytes, and so do a reference within a frame and, in four
/// bits, an entry of the table. A hit
/// compares that number and nothing else, so two types with one number could be mistaken for each other.
/// Implemented by `#[derive(Object)]` and by [`crate::typed`].
///
/// # Safety
/// `index` gives the same static at every call, and no other type's `index` ever gives that one.
pub unsafe trait Typed: Class {
    /// Where this type's number is kept.
    fn index() -> &'static TypeIndex;
}

/// The number of a type in this process, in the forms in which hits compare it. See [`Typed`].
#[derive(Debug)]
pub struct TypeIndex {
    near: AtomicU32,
    led: AtomicU32,
}

impl TypeIndex {
    /// Not numbered yet.
    #[allow(clippy::new_without_default, reason = "only ever a static")]
    pub const fn new() -> TypeIndex {
        TypeIndex { near: AtomicU32::new(NEAR), led: AtomicU32::new(expected_entry(0)) }
    }

    /// The number; 0, which is no cached object's, before there is one.
    #[inline(always)]
    pub(crate) fn number(&self) -> u16 {
        (self.near() / FRAME_WORDS) as u16
    }

    /// The word of a same-frame reference to an object of this type at place 0. Before there is a number, no
    /// word of any object differs from it by a place only.
    #[inline(always)]
    pub(crate) fn near(&self) -> u32 {
        self.near.load(Ordering::Relaxed)
    }

    /// The entry that leads to an object of this type at place 0, if entries name the type; else one from
    /// which no entry differs by a place only.
    #[inline(always)]
    pub(crate) fn led(&self) -> u32 {
        self.led.load(Ordering::Relaxed)
    }

    /// The number, given now if there is none; 0 when there are no more.
    fn numbered(&self) -> u16 {
        static LAST: Mutex<u16> = Mutex::new(0);
        let mut last = unpoison(LAST.lock());
        if self.number() == 0 && (*last as usize) < TYPES_MAX - 1 {
            *last += 1;
            self.near.store(near_word(*last, 0), Ordering::Relaxed);
            self.led.store(expected_entry(*last), Ordering::Relaxed);
        }
        self.number()
    }
}

/// Makes a class one that cached objects can be of. For classes that are written by hand.
#[macro_export]
macro_rules! typed {
    ($type:ty) => {
        // SAFETY: the static is inside this function, where no other code can name it, and the type is not
        // generic.
        unsafe impl $crate::Typed for $type {
            #[inline]
            fn index() -> &'static $crate::TypeIndex {
                static INDEX: $crate::TypeIndex = $crate::TypeIndex::new();
                &INDEX
            }
        }
    };
}

/// A type of the program, for the calls that need not be generic. Equal are only those of one type.
#[derive(Debug, Clone, Copy)]
pub struct TypeKey {
    pub(crate) number: u16,
    pub(crate) schema: &'static Schema,
}

impl TypeKey {
    /// The key of `T`.
    pub fn of<T: Typed>() -> TypeKey {
        TypeKey { number: T::index().numbered(), schema: &T::SCHEMA }
    }

    /// The key of a type that stands for a layout of which the program has no type: one for each layout in
    /// this process. It stays in memory.
    pub fn of_layout(layout: &Layout) -> TypeKey {
        static KNOWN: Mutex<Vec<(Layout, TypeKey)>> = Mutex::new(Vec::new());
        let mut known = unpoison(KNOWN.lock());
        if let Some((_, key)) = known.iter().find(|(of, _)| of == layout) {
            return *key;
        }
        let index = Box::leak(Box::new(TypeIndex::new()));
        let key = TypeKey { number: index.numbered(), schema: Box::leak(Box::new(layout.leak())) };
        known.push((layout.clone(), key));
        key
    }

    /// The layout of the type.
    pub fn schema(&self) -> &'static Schema {
        self.schema
    }
}

impl PartialEq for TypeKey {
    fn eq(&self, other: &TypeKey) -> bool {
        // Types beyond the last number have none.
        self.number == other.number && self.number != 0
    }
}

/// The facts that the heap keeps about a bound type.
pub(crate) struct BoundType {
    pub(crate) key: TypeKey,
    /// The layout of its schema.
    pub(crate) layout: Arc<Layout>,
    /// The class that it was bound to first: what its new records say.
    pub(crate) class: ClassId,
    /// References of the fixed part.
    refs: Box<[u16]>,
    /// The variable parts, if they can be gone through without the schema.
    parts: Option<Box<[VarDescriptor]>>,
}

/// Where a variable part's descriptor stands, and what the part is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct VarDescriptor {
    at: u16,
    /// Bytes of an element.
    item: u16,
    /// Set if the elements are references.
    is_refs: bool,
}

impl BoundType {
    fn new(key: TypeKey, class: ClassId) -> BoundType {
        let layout = Arc::new(Layout::of(key.schema));
        let refs = layout.fixed_refs().into();
        let mut parts = Some(Vec::new());
        simple_parts(key.schema, 0, &mut parts);
        BoundType { key, class, refs, parts: parts.map(Vec::into), layout }
    }

    /// Calls `f` with the offset of every reference.
    pub(crate) fn refs(&self, o: Object<'_>, mut f: impl FnMut(usize)) {
        let body = Body(o);
        let Some(parts) = &self.parts else { return self.layout.refs(&body, f) };
        self.refs.iter().for_each(|&at| f(at as usize));
        for place in parts {
            match body.part(place.at as usize) {
                PartExtent::Here(from, len) if place.is_refs => (0..len).for_each(|i| f(from + 4 * i)),
                PartExtent::Here(..) | PartExtent::None => {}
                PartExtent::Spilled(from) => f(from),
            }
        }
    }

    /// Bytes of the body that count.
    pub(crate) fn used(&self, o: Object<'_>) -> usize {
        let body = Body(o);
        let Some(parts) = &self.parts else { return used(self.key.schema, &body) };
        parts.iter().fold(self.layout.size(), |end, place| match body.part(place.at as usize) {
            PartExtent::None => end,
            PartExtent::Here(from, len) => end.max(from + len * place.item as usize),
            PartExtent::Spilled(from) => end.max(from + 8),
        })
    }

    /// Bytes of the whole object, padded as it is stored: all of it, for the check lets no other length pass.
    pub(crate) fn object_bytes(&self, o: Object<'_>) -> usize {
        HEADER_BYTES + padded(self.used(o))
    }
}

/// The types that a cache has bound, by number.
pub(crate) struct Types(Box<[OnceLock<BoundType>]>);

impl Types {
    pub(crate) fn new() -> Types {
        Types((0..TYPES_MAX).map(|_| OnceLock::new()).collect())
    }

    /// The bound type of a number.
    pub(crate) fn get(&self, number: u16) -> Option<&BoundType> {
        self.0.get(number as usize)?.get()
    }

    /// The number of a type, if it is bound.
    pub(crate) fn number(&self, key: TypeKey) -> Option<u16> {
        self.get(key.number).map(|_| key.number)
    }

    /// Adds a type; `None` if it has no number.
    pub(crate) fn add(&self, key: TypeKey, class: ClassId) -> Option<u16> {
        // Number 0 stays free: it is what a header of zeros would say.
        let place = self.0.get(key.number as usize).filter(|_| key.number != 0)?;
        place.get_or_init(|| BoundType::new(key, class));
        Some(key.number)
    }
}

/// Bit sets over the fixed part of a type, computed by the compiler: a test with a constant offset costs
/// nothing.
pub(crate) struct Kinds<T>(PhantomData<T>);

/// A bit for every two bytes of a body.
pub(crate) type Bits = [u64; 64];

impl<T: Class> Kinds<T> {
    const REFS: Bits = bits(&T::SCHEMA, Kind::Ref);
    const PARTS: Bits = bits(&T::SCHEMA, Kind::Part);
    const TEXTS: Bits = bits(&T::SCHEMA, Kind::Text);
    const BYTES: Bits = bits(&T::SCHEMA, Kind::Bytes);
    const REF_LISTS: Bits = bits(&T::SCHEMA, Kind::RefList);
    const OPTIONS: Bits = bits(&T::SCHEMA, Kind::Optional);
    /// Bytes of the fixed part.
    pub(crate) const SIZE: usize = T::SCHEMA.size();

    /// Says whether a reference stands at `at`.
    #[inline(always)]
    pub(crate) fn is_ref(at: usize) -> bool {
        at < Self::SIZE && at.is_multiple_of(4) && Self::REFS[at / 128] >> (at / 2 % 64) & 1 != 0
    }

    /// Says whether a descriptor of a variable part stands at `at`.
    #[inline(always)]
    pub(crate) fn is_part(at: usize) -> bool {
        at < Self::SIZE && at.is_multiple_of(2) && Self::PARTS[at / 128] >> (at / 2 % 64) & 1 != 0
    }

    /// Says whether the descriptor of a text stands at `at`.
    #[inline(always)]
    pub(crate) fn is_text(at: usize) -> bool {
        at < Self::SIZE && at.is_multiple_of(2) && Self::TEXTS[at / 128] >> (at / 2 % 64) & 1 != 0
    }

    /// Says whether the descriptor of a text or byte string stands at `at`.
    #[inline(always)]
    pub(crate) fn is_bytes(at: usize) -> bool {
        at < Self::SIZE && at.is_multiple_of(2) && Self::BYTES[at / 128] >> (at / 2 % 64) & 1 != 0
    }

    /// Says whether the descriptor of a list of references stands at `at`.
    #[inline(always)]
    pub(crate) fn is_ref_list(at: usize) -> bool {
        at < Self::SIZE && at.is_multiple_of(2) && Self::REF_LISTS[at / 128] >> (at / 2 % 64) & 1 != 0
    }

    /// Says whether the descriptor at `at` may be of a part that is not there.
    #[inline(always)]
    pub(crate) fn may_be_none(at: usize) -> bool {
        Self::OPTIONS[at / 128] >> (at / 2 % 64) & 1 != 0
    }

    /// Says whether the bytes are in the fixed part and none of them belongs to a reference.
    #[inline(always)]
    pub(crate) fn is_plain(at: usize, len: usize) -> bool {
        if at > Self::SIZE || len > Self::SIZE - at {
            return false;
        }
        let mut cell = at / 4;
        while cell * 4 < at + len {
            if Self::REFS[cell / 32] >> (cell * 2 % 64) & 1 != 0 {
                return false;
            }
            cell += 1;
        }
        true
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Ref,
    Part,
    Text,
    Bytes,
    RefList,
    Optional,
}

const fn bits(schema: &Schema, kind: Kind) -> Bits {
    let mut out = [0; 64];
    schema_bits(schema, 0, kind, &mut out);
    out
}

const fn schema_bits(schema: &Schema, base: usize, kind: Kind, out: &mut Bits) {
    let mut i = 0;
    while i < schema.fields.len() {
        type_bits(&schema.fields[i].ty, base + schema.offset(i), kind, out);
        i += 1;
    }
}

const fn type_bits(ty: &Type, at: usize, kind: Kind, out: &mut Bits) {
    let hit = match ty {
        Type::Scalar(_) | Type::Array(..) | Type::Far(_) => false,
        Type::Ref(_) => matches!(kind, Kind::Ref),
        Type::Text => matches!(kind, Kind::Part | Kind::Text | Kind::Bytes),
        Type::Bytes => matches!(kind, Kind::Part | Kind::Bytes),
        Type::List(Type::Ref(_)) => matches!(kind, Kind::Part | Kind::RefList),
        Type::List(_) => matches!(kind, Kind::Part),
        Type::Option(t) => {
            // The bytes of an absent value do not count as a part; its references are checked all the same.
            let pad = if t.has_none() { 0 } else { t.align() };
            if t.has_none() || matches!(kind, Kind::Ref) {
                type_bits(t, at + pad, kind, out);
            }
            matches!(kind, Kind::Optional)
        }
        Type::Record(r) | Type::Enum(r) => {
            schema_bits(r, at, kind, out);
            false
        }
    };
    if hit {
        out[at / 128] |= 1 << (at / 2 % 64);
    }
}

/// The kind of a place in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Region {
    /// A reference begins here.
    Ref,
    /// A descriptor begins here.
    Part,
    /// Bytes that never change, up to (not including) this offset.
    Plain(usize),
}

/// Finds the kind of the place `at` in a checked body of this schema, variable parts included. For the places
/// that [`Kinds`] does not know; takes time in the number of fields and of elements with parts of their own.
pub(crate) fn region(schema: &Schema, o: Object<'_>, at: usize) -> Option<Region> {
    region_of_schema(schema, &Body(o), 0, at)
}

fn region_of_schema(schema: &Schema, body: &Body<'_>, base: usize, at: usize) -> Option<Region> {
    let mut from = 0usize;
    schema.fields.iter().find_map(|field| {
        from = from.next_multiple_of(field.ty.align());
        let here = base + from;
        from += field.ty.size();
        region_of(&field.ty, body, here, at)
    })
}

fn region_of(ty: &Type, body: &Body<'_>, base: usize, at: usize) -> Option<Region> {
    let own = base <= at && at < base + ty.size();
    match ty {
        Type::Scalar(_) | Type::Array(..) | Type::Far(_) => own.then_some(Region::Plain(base + ty.size())),
        Type::Ref(_) => (at == base).then_some(Region::Ref),
        Type::Record(r) | Type::Enum(r) => region_of_schema(r, body, base, at),
        Type::Option(t) if t.has_none() => region_of(t, body, base, at),
        Type::Option(t) => {
            let inner = base + t.align();
            match own && at < inner {
                true => Some(Region::Plain(inner)),
                // The bytes of an absent value were not checked.
                false if body.u8(base) != 1 => None,
                false => region_of(t, body, inner, at),
            }
        }
        Type::Text | Type::Bytes | Type::List(_) if own => (at == base).then_some(Region::Part),
        Type::Text | Type::Bytes | Type::List(_) => match body.part(base) {
            PartExtent::None => None,
            PartExtent::Spilled(from) if at == from => Some(Region::Ref),
            PartExtent::Spilled(from) => (from + 4 <= at && at < from + 8).then_some(Region::Plain(from + 8)),
            PartExtent::Here(from, len) => region_of_block(ty, body, from, len, at),
        },
    }
}

fn region_of_block(ty: &Type, body: &Body<'_>, from: usize, len: usize, at: usize) -> Option<Region> {
    let Type::List(t) = ty else {
        return (from <= at && at < from + len).then_some(Region::Plain(from + len));
    };
    let size = t.size();
    let end = from + len * size;
    if from <= at && at < end {
        if t.is_numbers() {
            return Some(Region::Plain(end));
        }
        return region_of(t, body, from + (at - from) / size * size, at);
    }
    if t.is_fixed() { None } else { (0..len).find_map(|i| region_of(t, body, from + i * size, at)) }
}

fn for_places(schema: &Schema, base: usize, f: &mut dyn FnMut(&Type, usize)) {
    let mut at = 0usize;
    for field in schema.fields {
        at = at.next_multiple_of(field.ty.align());
        f(&field.ty, base + at);
        at += field.ty.size();
    }
}

/// Collects the variable parts that always are where the schema says and whose elements have nothing to be
/// looked into: nearly all. `None` if there are others.
fn simple_parts(schema: &Schema, base: usize, out: &mut Option<Vec<VarDescriptor>>) {
    for_places(schema, base, &mut |ty, at| simple_part(ty, at, out));
}

fn simple_part(ty: &Type, at: usize, out: &mut Option<Vec<VarDescriptor>>) {
    let (item, is_refs) = match ty {
        Type::Option(t) if t.has_none() => return simple_part(t, at, out),
        Type::Record(r) | Type::Enum(r) => return simple_parts(r, at, out),
        Type::Text | Type::Bytes => (1, false),
        Type::List(Type::Ref(_)) => (4, true),
        Type::List(t) if t.is_numbers() => (t.size(), false),
        ty if ty.is_fixed() => return,
        _ => return *out = None,
    };
    match (out, u16::try_from(at), u16::try_from(item)) {
        (Some(out), Ok(at), Ok(item)) => out.push(VarDescriptor { at, item, is_refs }),
        (out, ..) => *out = None,
    }
}

/// Bytes of a checked body that its fixed part and its descriptors name.
pub(crate) fn used(schema: &Schema, body: &Body<'_>) -> usize {
    let mut end = schema.size();
    for_places(schema, 0, &mut |ty, at| end = end.max(var_end(ty, body, at)));
    end
}

fn var_end(ty: &Type, body: &Body<'_>, at: usize) -> usize {
    let mut end = 0;
    match ty {
        Type::Scalar(_) | Type::Array(..) | Type::Ref(_) | Type::Far(_) => {}
        Type::Record(r) | Type::Enum(r) => {
            for_places(r, at, &mut |t, at| end = end.max(var_end(t, body, at)))
        }
        Type::Option(t) if t.has_none() => end = var_end(t, body, at),
        Type::Option(t) => {
            if body.u8(at) == 1 {
                end = var_end(t, body, at + t.align());
            }
        }
        Type::Text | Type::Bytes | Type::List(_) => match body.part(at) {
            PartExtent::None => {}
            PartExtent::Spilled(from) => end = from + 8,
            PartExtent::Here(from, len) => {
                let Type::List(t) = ty else { return from + len };
                end = from + len * t.size();
                if !t.is_fixed() {
                    (0..len).for_each(|i| end = end.max(var_end(t, body, from + i * t.size())));
                }
            }
        },
    }
    end
}

/// The numbers of a checked body that say where things are. They are plain bytes, so they may be read at any
/// time.
pub(crate) struct Body<'a>(pub(crate) Object<'a>);

enum PartExtent {
    None,
    Here(usize, usize),
    Spilled(usize),
}

impl layout::Body for Body<'_> {
    fn u8(&self, at: usize) -> u8 {
        // SAFETY: the walks above and those of the layout ask only for marks of optional values of the
        // checked body's own type.
        let b = unsafe { self.0.bytes(at, 1) };
        b[0]
    }

    fn u16(&self, at: usize) -> u16 {
        // SAFETY: the walks above and those of the layout ask only for descriptors of the checked body's own
        // type.
        let b = unsafe { self.0.bytes(at, 2) };
        u16::from_le_bytes([b[0], b[1]])
    }
}

impl Body<'_> {
    fn part(&self, at: usize) -> PartExtent {
        match (self.u16(at), self.u16(at + 2)) {
            (NONE_AT, _) | (_, 0) => PartExtent::None,
            (from, SPILLED) => PartExtent::Spilled(from as usize),
            (from, len) => PartExtent::Here(from as usize, len as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tercel_wire::schema::{Field, Scalar};

    const U64: Type = Type::Scalar(Scalar::U64);
    const REF: Type = Type::Ref("");

    /// The parts of a class with a number and a field of this type.
    macro_rules! places {
        ($ty:expr) => {{
            const FIELDS: [Field; 2] = [Field { name: "a", ty: U64 }, Field { name: "b", ty: $ty }];
            let mut out = Some(Vec::new());
            simple_parts(&Schema { name: "C", fields: &FIELDS }, 0, &mut out);
            out
        }};
    }

    #[test]
    fn a_list_whose_elements_have_references_inside_is_gone_through_by_its_schema() {
        const INNER: Schema = Schema { name: "r", fields: &[Field { name: "x", ty: REF }] };
        const MAYBE: Schema = Schema { name: "m", fields: &[Field { name: "t", ty: Type::Text }] };
        let place = |item, is_refs| Some(vec![VarDescriptor { at: 8, item, is_refs }]);
        assert_eq!(places!(Type::Text), place(1, false));
        assert_eq!(places!(Type::Option(&Type::Bytes)), place(1, false));
        assert_eq!(places!(Type::List(&U64)), place(8, false));
        assert_eq!(places!(Type::List(&REF)), place(4, true));
        assert_eq!(places!(Type::Option(&REF)), Some(vec![]));
        assert_eq!(places!(Type::List(&Type::Text)), None);
        assert_eq!(places!(Type::List(&Type::Record(&INNER))), None);
        assert_eq!(places!(Type::Option(&Type::Record(&MAYBE))), None);
    }
}
