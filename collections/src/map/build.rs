//! Building a map of sorted keys: leaf after leaf, then level after level.

use tercel_engine::Error;
use tercel_engine::txn::Tx;
use tercel_wire::record::Ref;

use super::items::{Item, Kind};
use super::node::{Draft, MapNode, REF_BYTES};
use crate::key::check;
use crate::packed::between;

/// A map that is being built. Holds one leaf and, for each leaf made, its reference and what parts it from
/// the one before.
pub struct Build<'a, 'c> {
    tx: &'a Tx<'c>,
    kind: Kind,
    leaf: Draft,
    /// The key that parts the leaf at hand from the leaf before; empty for the first.
    separator: Vec<u8>,
    made: Vec<(Vec<u8>, Ref<MapNode>)>,
}

impl<'a, 'c> Build<'a, 'c> {
    /// Without anything.
    pub fn new(tx: &'a Tx<'c>, kind: &Kind) -> Build<'a, 'c> {
        Build { tx, kind: *kind, leaf: Draft::leaf(kind), separator: Vec::new(), made: Vec::new() }
    }

    /// Adds an entry; `false` if its key is not greater than the last one.
    pub fn push(&mut self, key: &[u8], item: &Item) -> Result<bool, Error> {
        check(key)?;
        if let Some(last) = self.leaf.keys.len().checked_sub(1) {
            let last = self.leaf.keys.get(last);
            if key <= last {
                return Ok(false);
            }
            if !self.leaf.has_room_for(key.len(), item.bytes()) {
                let separator = between(last, key).to_vec();
                self.flush(separator)?;
            }
        }
        self.leaf.push(key, item);
        Ok(true)
    }

    fn flush(&mut self, next: Vec<u8>) -> Result<(), Error> {
        let leaf = std::mem::replace(&mut self.leaf, Draft::leaf(&self.kind)).make(self.tx)?;
        self.made.push((std::mem::replace(&mut self.separator, next), leaf));
        Ok(())
    }

    /// The top node.
    pub fn finish(mut self) -> Result<Ref<MapNode>, Error> {
        self.flush(Vec::new())?;
        let mut level = self.made;
        while level.len() > 1 {
            level = raise(self.tx, &self.kind, level)?;
        }
        Ok(level[0].1)
    }
}

/// Nodes of one height in order, each with the key that separates it from the one before.
type Level = Vec<(Vec<u8>, Ref<MapNode>)>;

/// The nodes above a level.
fn raise(tx: &Tx<'_>, kind: &Kind, level: Level) -> Result<Level, Error> {
    let mut above = Vec::new();
    let mut open: Option<(Vec<u8>, Draft)> = None;
    for (separator, node) in level {
        open = Some(match open {
            Some((before, mut draft)) if draft.has_room_for(separator.len(), REF_BYTES) => {
                draft.push(&separator, &Item::Reference(node.cast()));
                (before, draft)
            }
            full => {
                if let Some((before, draft)) = full {
                    above.push((before, draft.make(tx)?));
                }
                (separator, Draft::above(kind, node))
            }
        });
    }
    if let Some((before, draft)) = open {
        above.push((before, draft.make(tx)?));
    }
    Ok(above)
}
