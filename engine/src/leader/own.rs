//! Trees of chunks belong to one field of one object each.
//!
//! A chunk is made by the transaction that makes its owner's new version, and is never changed. So the word
//! of a tree in a new version is one that the object had before, or leads to chunks of the same transaction
//! that nothing else there names; whatever else a client sends is refused. That is what lets a tree be freed
//! with the version that owned it. What a transaction says of its own chunks is seen while its objects are
//! checked ([`Owned`]), the rest when an object is placed and its old version is at hand ([`let_go`]).

use tercel_wire::class;
use tercel_wire::cursor::le32;
use tercel_wire::id::Oref;
use tercel_wire::layout::Layout;
use tercel_wire::message::{Refusal, Write};
use tercel_wire::page::class_of;
use tercel_wire::record::HEADER_BYTES;

use crate::mutant::{Rule, dropped};
use crate::replica::catalogue::Catalogue;
use crate::replica::released::is_chunk;
use crate::table::Map;

/// The chunks that a transaction makes, and the words of trees in what it writes.
#[derive(Debug, Default)]
pub(super) struct Owned(Map<Oref, Use>);

/// Uses of a chunk, or of a place that may hold one.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    is_made: bool,
    by_objects: u32,
    by_nodes: u32,
}

impl Owned {
    /// Takes note of a write, whose object is what its class says.
    pub(super) fn see(&mut self, w: &Write<'_>, layout: &Layout) -> Result<(), Refusal> {
        let (id, body) = (class_of(w.object), &w.object[HEADER_BYTES..]);
        if !is_chunk(id) {
            layout.trees(body, |root| self.0.entry(root).or_default().by_objects += 1);
            return Ok(());
        }
        let made = self.0.entry(w.oref).or_default();
        if !w.new || std::mem::replace(&mut made.is_made, true) {
            return Err(Refusal::Invalid(w.oref));
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

    /// Checks, once all writes were seen, that each chunk is used once, and that a chunk not made here is
    /// only named as the tree of an object.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        let is_right = |of: &Use| match of.is_made {
            true => of.by_objects + of.by_nodes == 1,
            false => (of.by_objects, of.by_nodes) == (1, 0),
        };
        let wrong = self.0.iter().filter(|(_, of)| !is_right(of)).map(|(oref, _)| *oref).min();
        wrong.map_or(Ok(()), |oref| Err(Refusal::Invalid(oref)))
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
) -> Result<Vec<Oref>, Refusal> {
    for root in trees_of(w.object, catalogue) {
        match old.iter().position(|o| *o == root) {
            Some(at) => _ = old.swap_remove(at),
            None if owned.makes(root) || dropped(Rule::TreesShared) => {}
            None => return Err(Refusal::Invalid(w.oref)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use tercel_wire::id::ClassId;
    use tercel_wire::record::{Any, Encoder, List, NoSpill, Ref, Value};
    use tercel_wire::schema::{Field, Schema, Type};

    const OWNER: Schema = Schema {
        name: "Owner",
        fields: &[Field { name: "a", ty: Type::Bytes }, Field { name: "b", ty: Type::Bytes }],
    };
    const ID: ClassId = ClassId(16);

    fn oref(n: u32) -> Oref {
        Oref::from_raw((n + 2) << 9).unwrap()
    }

    fn catalogue() -> Catalogue {
        let mut catalogue = Catalogue::new();
        catalogue.define(ID, Layout::of(&OWNER));
        catalogue
    }

    /// An object with these trees.
    fn owner(trees: [u32; 2]) -> Vec<u8> {
        let mut refuse = NoSpill;
        let mut e = Encoder::new(OWNER.size(), &mut refuse);
        (0..2).for_each(|i| e.put_tree(OWNER.offset(i), oref(trees[i]), 5_000));
        e.finish(ID).unwrap()
    }

    fn leaf() -> Vec<u8> {
        let mut refuse = NoSpill;
        let mut e = Encoder::new(4, &mut refuse);
        e.put_bytes(0, b"leaf");
        e.finish(class::BYTES_LEAF).unwrap()
    }

    fn node(children: &[u32]) -> Vec<u8> {
        let layout = catalogue().class(class::CHUNK_NODE).unwrap().clone();
        let mut refuse = NoSpill;
        let mut e = Encoder::new(layout.size(), &mut refuse);
        1u32.put(&mut e, 0);
        children.iter().map(|n| Ref::new(oref(*n))).collect::<List<Ref<Any>>>().put(&mut e, 4);
        e.finish(class::CHUNK_NODE).unwrap()
    }

    /// Judges a transaction that writes these objects at these places, those of chunks new.
    fn judge(writes: &[(u32, Vec<u8>)]) -> Result<Owned, Refusal> {
        let (catalogue, mut owned) = (catalogue(), Owned::default());
        for (at, object) in writes {
            let w = Write { oref: oref(*at), new: is_chunk(class_of(object)), object };
            owned.see(&w, catalogue.class(class_of(object)).unwrap())?;
        }
        owned.check().map(|()| owned)
    }

    fn let_go_of(new: [u32; 2], old: &[u32], chunks: &[(u32, Vec<u8>)]) -> Result<Vec<Oref>, Refusal> {
        let owner = owner(new);
        let owned = judge(&[chunks, &[(90, owner.clone())]].concat())?;
        let w = Write { oref: oref(90), new: false, object: &owner };
        let_go(&w, old.iter().map(|n| oref(*n)).collect(), &owned, &catalogue())
    }

    #[test]
    fn what_is_replaced_is_let_go_of_and_what_is_kept_is_not() {
        assert_eq!(let_go_of([1, 2], &[1, 2], &[]), Ok(vec![]));
        assert_eq!(let_go_of([2, 3], &[1, 2], &[(3, leaf())]), Ok(vec![oref(1)]));
        let chunks = [(3, node(&[4, 5])), (4, leaf()), (5, leaf()), (6, leaf())];
        assert_eq!(let_go_of([3, 6], &[1, 2], &chunks), Ok(vec![oref(1), oref(2)]));
    }

    #[test]
    fn a_tree_has_one_owner() {
        let wrong = |n| Err(Refusal::Invalid(oref(n)));
        assert_eq!(let_go_of([1, 1], &[1, 2], &[]), wrong(1), "the old tree in two fields");
        assert_eq!(let_go_of([3, 3], &[1, 2], &[(3, leaf())]), wrong(3), "a new tree in two fields");
        assert_eq!(let_go_of([1, 7], &[1, 2], &[]), wrong(90), "another's tree");
        let chunks = [(3, node(&[4, 4])), (4, leaf())];
        assert_eq!(let_go_of([1, 3], &[1, 2], &chunks), wrong(4), "a chunk twice in a tree");
        let chunks = [(3, node(&[1])), (4, leaf())];
        assert_eq!(let_go_of([3, 4], &[1, 2], &chunks), wrong(1), "an old chunk in a new tree");
        assert_eq!(let_go_of([1, 2], &[1, 2], &[(3, leaf())]), wrong(3), "a chunk of no tree");
        let other = judge(&[(90, owner([1, 2])), (91, owner([1, 3])), (3, leaf())]);
        assert_eq!(other.err(), Some(Refusal::Invalid(oref(1))), "one tree in two objects");
    }

    #[test]
    fn chunks_are_never_changed() {
        let (catalogue, leaf) = (catalogue(), leaf());
        let layout = catalogue.class(class::BYTES_LEAF).unwrap();
        let w = Write { oref: oref(3), new: false, object: &leaf };
        assert_eq!(Owned::default().see(&w, layout), Err(Refusal::Invalid(oref(3))));
    }
}
