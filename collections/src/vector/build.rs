//! Building a vector: leaf after leaf, then level after level.

use tercel_engine::Error;
use tercel_engine::txn::Tx;
use tercel_wire::record::{Any, Ref};

use super::node::{Draft, FANOUT, VectorNode};

/// The top node of a vector of the items.
pub fn build(tx: &Tx<'_>, items: impl Iterator<Item = Ref<Any>>) -> Result<Ref<VectorNode>, Error> {
    let mut level: Vec<Ref<Any>> = Vec::new();
    let mut leaf = Draft::leaf();
    for item in items {
        if leaf.items.len() == FANOUT {
            level.push(std::mem::replace(&mut leaf, Draft::leaf()).make(tx)?.cast());
        }
        leaf.items.push(item);
    }
    level.push(leaf.make(tx)?.cast());
    let mut height = 0;
    while level.len() > 1 {
        height += 1;
        level = level
            .chunks(FANOUT)
            .map(|children| Draft { height, items: children.to_vec() }.make(tx).map(Ref::cast))
            .collect::<Result<_, _>>()?;
    }
    Ok(level[0].cast())
}
