//! Classes that Tercel itself defines: named roots, the leaves and nodes of large values, and the slot that
//! points on.
//!
//! They are ordinary classes in every way but that their ids are fixed, so that a server can follow them
//! without a catalogue.

use crate::id::{ClassId, Oref, PageId};
use crate::layout::Layout;
use crate::schema::{Field, Scalar, Schema, Type};

/// A named entry point: name, target, next root.
pub const ROOT: ClassId = ClassId(1);
/// Bytes of a large value.
pub const BYTES_LEAF: ClassId = ClassId(2);
/// References of a large list.
pub const REFS_LEAF: ClassId = ClassId(3);
/// A node above leaves or nodes: elements below it and the children, all full but the last.
pub const CHUNK_NODE: ClassId = ClassId(4);
/// The record that an object leaves in its slot when it moves to another page. It holds the new place.
pub const FORWARD: ClassId = ClassId(5);

/// The head of the list of roots: an object of class [`ROOT`] without a name, in slot 0 of page 1.
pub const ROOT_HEAD: Oref = match PageId::new(1) {
    Some(page) => match Oref::new(page, 0) {
        Some(oref) => oref,
        None => unreachable!(),
    },
    None => unreachable!(),
};

/// Bytes of a leaf's data: two leaves a page.
pub const LEAF_BYTES: usize = 3_968;
/// Children of a node, as many as a leaf has references.
pub const NODE_CHILDREN: usize = LEAF_BYTES / 4;

const ROOT_SCHEMA: Schema = Schema {
    name: "tercel.Root",
    fields: &[
        Field { name: "name", ty: Type::Text },
        Field { name: "target", ty: Type::Ref("") },
        Field { name: "next", ty: Type::Ref("tercel.Root") },
    ],
};
const BYTES_LEAF_SCHEMA: Schema =
    Schema { name: "tercel.BytesLeaf", fields: &[Field { name: "data", ty: Type::Bytes }] };
const REFS_LEAF_SCHEMA: Schema =
    Schema { name: "tercel.RefsLeaf", fields: &[Field { name: "refs", ty: Type::List(&Type::Ref("")) }] };
const CHUNK_NODE_SCHEMA: Schema = Schema {
    name: "tercel.ChunkNode",
    fields: &[
        Field { name: "height", ty: Type::Scalar(Scalar::U32) },
        Field { name: "children", ty: Type::List(&Type::Ref("")) },
    ],
};
const FORWARD_SCHEMA: Schema =
    Schema { name: "tercel.Forward", fields: &[Field { name: "to", ty: Type::Ref("") }] };

/// The classes of this module with their ids.
pub const BUILT_IN: [(ClassId, Schema); 5] = [
    (ROOT, ROOT_SCHEMA),
    (BYTES_LEAF, BYTES_LEAF_SCHEMA),
    (REFS_LEAF, REFS_LEAF_SCHEMA),
    (CHUNK_NODE, CHUNK_NODE_SCHEMA),
    (FORWARD, FORWARD_SCHEMA),
];

/// The layouts of [`BUILT_IN`].
pub fn built_in() -> impl Iterator<Item = (ClassId, Layout)> {
    BUILT_IN.iter().map(|(id, s)| (*id, Layout::of(s)))
}
