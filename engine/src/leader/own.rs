//! Trees of chunks belong to one field of one object each.
//!
//! A chunk is made by the transaction that makes its owner's new version, and is never changed. So the word of a tree in a
//! new version is one that the object had before, or leads to chunks of the same transaction that nothing else there names;
//! whatever else a client sends is refused. That is what lets a tree be freed with the version that owned it. What a
//! transaction says of its own chunks is seen while its objects are checked ([`Owned`]), the rest when an object is placed
//! and its old version is at hand ([`let_go`]).

use tercel_wire::class;
use tercel_wire::cursor::le32;
use tercel_wire::id::{ClassId, Oref};
use tercel_wire::layout::Layout;
use tercel_wire::message::{Outcome, Write};
use tercel_wire::page::class_of;
use tercel_wire::record::HEADER_BYTES;

use crate::mutant::{Rule, dropped};
use crate::replica::catalogue::Catalogue;
use crate::table::Map;

/// The chunks that a transaction makes, and the words of trees in what it writes.
#[derive(Debug, Default)]
pub(super) struct Owned(Map<Oref, Use>);

/// How a chunk, or what may be one, is used.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    is_made: bool,
    by_objects: u32,
    by_nodes: u32,
}

impl Owned {
    /// Takes note of a write, whose object is what its class says.
    pub(super) fn see(&mut self, w: &Write<'_>, layout: &Layout) -> Result<(), Outcome> {
        let (id, body) = (class_of(w.object), &w.object[HEADER_BYTES..]);
        if !is_chunk(id) {
            layout.trees(body, |root| self.0.entry(root).or_default().by_objects += 1);
            return Ok(());
        }
        let made = self.0.entry(w.oref).or_default();
        if !w.new || std::mem::replace(&mut made.is_made, true) {
            return Err(Outcome::Invalid(w.oref));
        }
        if id == class::CHUNK_NODE {
            layout.refs(body, |at| {
                // One that is in no stored form was refused before.
                let child = Oref::from_raw(le32(body, at)).unwrap_or_default();
                self.0.entry(child).or_default().by_nodes += 1;
            });
        }
        Ok(())
    }

    /// Whether each chunk is used once and what is not made here is only named as the tree of an object, once all writes were
    /// seen.
    pub(super) fn check(&self) -> Result<(), Outcome> {
        let is_right = |of: &Use| match of.is_made {
            true => of.by_objects + of.by_nodes == 1,
            false => (of.by_objects, of.by_nodes) == (1, 0),
        };
        let wrong = self.0.iter().filter(|(_, of)| !is_right(of)).map(|(oref, _)| *oref).min();
        wrong.filter(|_| !dropped(Rule::TreesShared)).map_or(Ok(()), |oref| Err(Outcome::Invalid(oref)))
    }

    fn makes(&self, root: Oref) -> bool {
        self.0.get(&root).is_some_and(|of| of.is_made)
    }
}

/// The trees that an object's new version lets go of, of those that the old one owned.
///
/// # Errors
/// If the new version has a tree that is neither the old one's nor made by the transaction.
pub(super) fn let_go(
    w: &Write<'_>,
    mut old: Vec<Oref>,
    owned: &Owned,
    catalogue: &Catalogue,
) -> Result<Vec<Oref>, Outcome> {
    for root in trees_of(w.object, catalogue) {
        match old.iter().position(|o| *o == root) {
            Some(at) => _ = old.swap_remove(at),
            None if owned.makes(root) || dropped(Rule::TreesShared) => {}
            None => return Err(Outcome::Invalid(w.oref)),
        }
    }
    Ok(old)
}

/// The trees that an object owns.
pub(super) fn trees_of(object: &[u8], catalogue: &Catalogue) -> Vec<Oref> {
    let mut trees = Vec::new();
    if let Some(layout) = catalogue.class(class_of(object)) {
        layout.trees(&object[HEADER_BYTES..], |root| trees.push(root));
    }
    trees
}

fn is_chunk(id: ClassId) -> bool {
    matches!(id, class::BYTES_LEAF | class::REFS_LEAF | class::CHUNK_NODE)
}
