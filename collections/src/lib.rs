//! Ordered maps and vectors of references, as ordinary Tercel objects.
//!
//! Not here: anything that a program could not write itself. A collection is made of objects of two classes, with the
//! calls that every program has; it is cached, replaced, checked and committed like any other data, and other programs
//! may read its nodes. Nodes have at most [`NODE_BYTES_MAX`] bytes, so a change sends little and conflicts with little.
//!
//! | module | its noun |
//! |---|---|
//! | [`Map`] | references by key, in the order of the keys |
//! | [`Vector`] | references by position |
//! | [`Key`] | what a key can be |
//!
//! A handle is a copy of a reference and can be a field of an object. Removing entries gives the room of nodes back
//! when the space collects its garbage.
#![forbid(unsafe_code)]

mod field;
mod key;
pub mod map;
mod packed;
pub mod vector;

pub use key::{KEY_BYTES_MAX, Key, KeyTooLong, PrefixKey};
pub use map::{Map, MapNode};
pub use vector::{Vector, VectorNode};

/// Bytes of a node at most: 8 of them fill a page, so a page takes 8 without loss, and a changed node is an eighth of a
/// page on its way to the server.
pub const NODE_BYTES_MAX: usize = 1_000;

const _: () = {
    use tercel_wire::page::{PAGE_BYTES, PAGE_HEADER_BYTES, SLOT_BYTES};
    assert!(PAGE_HEADER_BYTES + 8 * (NODE_BYTES_MAX + SLOT_BYTES) <= PAGE_BYTES);
};
