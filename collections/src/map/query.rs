//! The entries of a range as a watch reads them: once all leaves, and then those that have changed.
//!
//! A leaf has the same range of keys for as long as no inner node changes: a split or a join writes the node
//! above as well, of which the watch is told, and then it reads the inner nodes, and the leaves that are new.
//! The invariant: the parts of a range are those of its leaves, empty ones among them.

use std::ops::{Bound, Range};

use tercel_engine::Error;
use tercel_engine::txn::{Found, FoundIn, Query, Tx};
use tercel_wire::id::Oref;
use tercel_wire::record::Ref;

use super::items::Kind;
use super::node::{MapNode, Node};
use super::walk::{Walk, between};

/// The query for the references in a range, with their keys as bytes.
pub struct RangeQuery {
    pub top: Ref<MapNode>,
    pub kind: Kind,
    pub low: Bound<Vec<u8>>,
    pub high: Bound<Vec<u8>>,
}

impl Query for RangeQuery {
    fn run(&mut self, tx: &Tx<'_>) -> Result<Vec<FoundIn>, Error> {
        let mut parts = Vec::new();
        let walk = Walk::new(tx, self.top, &self.kind, self.low.clone(), self.high.clone());
        walk.leaves(|leaf, entries| {
            parts.push((leaf.reference().oref(), found(leaf, entries)?));
            Ok(())
        })?;
        Ok(parts)
    }

    fn outline(&mut self, tx: &Tx<'_>) -> Result<Option<Vec<Oref>>, Error> {
        let walk = Walk::new(tx, self.top, &self.kind, self.low.clone(), self.high.clone());
        Ok(Some(walk.outline()?.into_iter().map(|leaf| leaf.oref()).collect()))
    }

    fn part(&mut self, tx: &Tx<'_>, node: Oref) -> Result<Option<Found>, Error> {
        let leaf = match tx.get(Ref::<MapNode>::new(node)) {
            Ok(node) => Node::new(node, &self.kind)?,
            Err(Error::NotFound(_)) => return Ok(None),
            Err(e) => return Err(e),
        };
        match leaf.is_leaf() {
            true => Ok(Some(found(&leaf, between(&leaf, &self.low, &self.high)?)?)),
            false => Ok(None),
        }
    }
}

fn found(leaf: &Node<'_>, entries: Range<usize>) -> Result<Found, Error> {
    let keys = leaf.sorted()?;
    entries.map(|i| Ok((keys.get(i)?.to_vec(), leaf.value(i)?.oref()))).collect()
}
