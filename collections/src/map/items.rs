//! The items that the keys of a leaf name: references, values that stand in the node, or nothing.

use tercel_engine::Error;
use tercel_engine::object::Field;
use tercel_wire::layout::Shape as WireShape;
use tercel_wire::record::{Any, MapValue, Ref};
use tercel_wire::schema::{Schema, Type};

use super::node::{REF_BYTES, VALUE_BYTES_MAX};
use crate::key::shape::{self, Shape};
use crate::key::{Key, key_and_contents, must_fit};
use crate::packed::{KeyList, START_BYTES};

/// The kind of a map: what its keys are, and what they name.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub shape: Shape,
    pub contents: Contents,
    /// Set if all keys have eight bytes.
    pub has_numbers: bool,
}

/// The kinds of items that the keys of a leaf name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    References,
    Values,
    Nothing,
}

impl Kind {
    /// The kind of maps from `K` to objects or values, as `V` says.
    pub const fn map<K: Key, V: MapValue>() -> Kind {
        must_fit::<K>();
        match &V::STANDS {
            None => Kind::references::<K>(),
            Some(ty) => {
                assert!(!has_references(ty), "a value in a map has no references: make it an object");
                assert!(
                    ty.size() <= VALUE_BYTES_MAX,
                    "a value in a map has at most 512 bytes: make it an object"
                );
                Kind::new::<K>(K::SHAPE.values(ty), Contents::Values)
            }
        }
    }

    /// The kind of maps from `K` to objects.
    pub const fn references<K: Key>() -> Kind {
        must_fit::<K>();
        Kind::new::<K>(K::SHAPE, Contents::References)
    }

    /// The kind of sets of `K`.
    pub const fn set<K: Key>() -> Kind {
        must_fit::<K>();
        Kind::new::<K>(K::SHAPE.set(), Contents::Nothing)
    }

    /// The kind that a node describes; none if this version does not know it.
    pub fn of(stored: &[u8]) -> Option<Kind> {
        let contents = match key_and_contents(stored)?.1 {
            [] => Contents::References,
            [shape::SET] => Contents::Nothing,
            [shape::VALUES, ..] => Contents::Values,
            _ => return None,
        };
        Some(Kind { shape: Shape::read(stored)?, contents, has_numbers: false })
    }

    /// The description of the keys alone.
    pub fn keys(&self) -> &[u8] {
        let all = self.shape.as_bytes();
        key_and_contents(all).map_or(all, |(keys, _)| keys)
    }

    /// The type of the values that stand in the nodes; none if they are records, or do not stand there.
    pub fn value_shape(&self) -> Option<WireShape> {
        let (_, contents) = key_and_contents(self.shape.as_bytes())?;
        let [shape::VALUES, code] = contents else { return None };
        shape::of_value_code(*code)
    }

    /// The same, if it is one of maps to objects.
    pub fn of_references(stored: &[u8]) -> Option<Kind> {
        Kind::of(stored).filter(|kind| kind.contents == Contents::References)
    }

    const fn new<K: Key>(shape: Shape, contents: Contents) -> Kind {
        Kind { shape, contents, has_numbers: shape::is_number(K::SHAPE) }
    }
}

const fn has_references(ty: &Type) -> bool {
    match ty {
        Type::Ref(_) => true,
        Type::Option(of) | Type::List(of) => has_references(of),
        Type::Record(schema) | Type::Enum(schema) => any_has_references(schema),
        Type::Scalar(_) | Type::Array(..) | Type::Text | Type::Bytes | Type::Far(_) => false,
    }
}

const fn any_has_references(schema: &Schema) -> bool {
    let mut i = 0;
    while i < schema.fields.len() {
        if has_references(&schema.fields[i].ty) {
            return true;
        }
        i += 1;
    }
    false
}

/// The item that one key names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Reference(Ref<Any>),
    Value(Vec<u8>),
    Nothing,
}

impl Item {
    /// The item of a map's value.
    pub fn of<V: MapValue<Value: Field>>(value: &V::Value) -> Result<Item, Error> {
        match V::to_reference(value) {
            Some(r) => Ok(Item::Reference(r)),
            None => tercel_engine::object::encode_value(value, VALUE_BYTES_MAX).map(Item::Value),
        }
    }

    /// Bytes that it takes in a node.
    pub fn bytes(&self) -> usize {
        match self {
            Item::Reference(_) => REF_BYTES,
            Item::Value(bytes) => START_BYTES + bytes.len(),
            Item::Nothing => 0,
        }
    }
}

/// The items of a leaf, or the children of another node, to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Items {
    References(Vec<Ref<Any>>),
    Values(KeyList),
    Nothing(usize),
}

impl Items {
    /// No items yet.
    pub fn new(contents: Contents) -> Items {
        match contents {
            Contents::References => Items::References(Vec::new()),
            Contents::Values => Items::Values(KeyList::default()),
            Contents::Nothing => Items::Nothing(0),
        }
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        match self {
            Items::References(all) => all.len(),
            Items::Values(all) => all.len(),
            Items::Nothing(n) => *n,
        }
    }

    /// Bytes that item `i` takes in a node.
    pub fn bytes_of(&self, i: usize) -> usize {
        match self {
            Items::References(_) => REF_BYTES,
            Items::Values(all) => START_BYTES + all.get(i).len(),
            Items::Nothing(_) => 0,
        }
    }

    /// Bytes that all of them take.
    pub fn bytes(&self) -> usize {
        match self {
            Items::References(all) => all.len() * REF_BYTES,
            Items::Values(all) => all.bytes_packed(),
            Items::Nothing(_) => 0,
        }
    }

    /// Item `i`.
    pub fn get(&self, i: usize) -> Item {
        match self {
            Items::References(all) => Item::Reference(all[i]),
            Items::Values(all) => Item::Value(all.get(i).to_vec()),
            Items::Nothing(_) => Item::Nothing,
        }
    }

    /// Puts one before item `i`; one of another kind is a mistake of this crate.
    pub fn insert(&mut self, i: usize, item: &Item) {
        match (self, item) {
            (Items::References(all), Item::Reference(r)) => all.insert(i, *r),
            (Items::Values(all), Item::Value(bytes)) => all.insert(i, bytes),
            (Items::Nothing(n), Item::Nothing) => *n += 1,
            (items, item) => unreachable!("{item:?} among {items:?}"),
        }
    }

    /// Puts one behind the others.
    pub fn push(&mut self, item: &Item) {
        self.insert(self.len(), item);
    }

    /// Takes item `i` away.
    pub fn remove(&mut self, i: usize) -> Item {
        let item = self.get(i);
        match self {
            Items::References(all) => _ = all.remove(i),
            Items::Values(all) => all.remove(i),
            Items::Nothing(n) => *n -= 1,
        }
        item
    }

    /// Keeps the items before `i` and gives the others.
    pub fn split_off(&mut self, i: usize) -> Items {
        match self {
            Items::References(all) => Items::References(all.split_off(i)),
            Items::Values(all) => Items::Values(all.split_off(i)),
            Items::Nothing(n) => Items::Nothing(std::mem::replace(n, i) - i),
        }
    }

    /// Adds all of others, which are of the same kind.
    pub fn append(&mut self, other: Items) {
        match (self, other) {
            (Items::References(all), Items::References(other)) => all.extend(other),
            (Items::Values(all), Items::Values(other)) => all.append(&other),
            (Items::Nothing(n), Items::Nothing(other)) => *n += other,
            (items, other) => unreachable!("{other:?} behind {items:?}"),
        }
    }
}
