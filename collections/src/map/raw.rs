//! The entries of a map whose types the program does not know: for tools.

use std::ops::Bound;

use tercel_engine::Error;
use tercel_engine::txn::Tx;
use tercel_wire::record::{Any, Ref};

use super::items::{Item, Kind};
use super::node::MapNode;
use super::walk::Walk;
use crate::key::show;

/// The value of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawValue {
    /// An object.
    Reference(Ref<Any>),
    /// A value that stands in the map, as the body of a record.
    Value(Vec<u8>),
    /// Nothing: the map is a set.
    Nothing,
}

impl From<Item> for RawValue {
    fn from(item: Item) -> RawValue {
        match item {
            Item::Reference(r) => RawValue::Reference(r),
            Item::Value(bytes) => RawValue::Value(bytes),
            Item::Nothing => RawValue::Nothing,
        }
    }
}

/// Entries of a map, or of a set, without its types. No promise of stability.
pub struct RawEntries<'t> {
    walk: Walk<'t>,
    kind: Kind,
    is_done: bool,
}

impl<'t> RawEntries<'t> {
    /// All entries of the map or set with this top node.
    ///
    /// # Errors
    /// `Corrupt` if the node describes no keys that this version knows; those of [`Tx::get`].
    pub fn new(tx: &'t Tx<'_>, top: Ref<MapNode>) -> Result<RawEntries<'t>, Error> {
        let stored = tx.get(top)?.shape()?.into_owned();
        let unknown =
            || Error::Corrupt(format!("the map {} has keys that this version does not know", top.oref()));
        let kind = Kind::of(&stored).ok_or_else(unknown)?;
        let walk = Walk::new(tx, top, &kind, Bound::Unbounded, Bound::Unbounded);
        Ok(RawEntries { walk, kind, is_done: false })
    }

    /// The types of the keys, and of values that stand in the map.
    pub fn types(&self) -> String {
        self.kind.shape.to_string()
    }
}

impl Iterator for RawEntries<'_> {
    type Item = Result<(String, RawValue), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let kind = self.kind;
        let found = self.walk.next(|key, leaf, i| {
            Ok((show(kind.keys(), key).ok_or_else(|| leaf.damaged())?, leaf.item(i, &kind)?.into()))
        });
        self.is_done = !matches!(found, Ok(Some(_)));
        found.transpose()
    }
}
