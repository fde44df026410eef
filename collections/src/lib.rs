//! Ordered maps, sets and vectors, as ordinary Tercel objects.
//!
//! Not here: anything that a program could not write itself. A collection is made of objects of a few
//! classes, with the calls that every program has; it is cached, replaced, checked and committed like any
//! other data, and other programs may read its nodes. Nodes have at most [`NODE_BYTES_MAX`] bytes, so a
//! change sends little and conflicts with little.
//!
//! | module | its noun |
//! |---|---|
//! | [`Map`] | references or small values by key, in the order of the keys |
//! | [`Set`] | keys in their order |
//! | [`Table`] | the rows of a class, by their key and by indexes |
//! | [`Vector`] | references by position |
//! | [`Load`] | a map, set or table that takes many entries at once |
//! | [`Key`] | what a key can be |
//!
//! A handle is a copy of a reference and can be a field of an object. Removing entries gives the room of
//! nodes back when the space collects its garbage.
//!
//! ```
//! use tercel::collections::{KEY_BYTES_MAX, Key, KeyTooLong, Map, Prefix, Vector};
//! use tercel::{Error, Object, Text, Tx};
//!
//! #[derive(Object)]
//! struct Word {
//!     count: u32,
//! }
//!
//! fn how_many<K: Key>(map: Map<K, Word>, tx: &Tx<'_>, begin: impl Prefix<K>) -> Result<usize, Error> {
//!     map.prefix(tx, begin).try_fold(0, |n, entry| entry.map(|_| n + 1))
//! }
//!
//! # let dir = std::env::temp_dir().join(format!("tercel-collections-{}", std::process::id()));
//! # let space = tercel::embedded(&dir)?;
//! space.run(|tx| {
//!     let [one, two, three] = [1, 2, 3].map(|count| tx.create(&Word { count }));
//!     let (one, two, three) = (one?, two?, three?);
//!
//!     // What comes in the order of the keys fills its nodes.
//!     let words = Map::<Text, Word>::build_sorted(tx, [("ash", one), ("oak", two)])?;
//!     assert_eq!(words.insert(tx, "elm", three)?, None);
//!     assert_eq!((words.count(tx)?, words.get(tx, "elm")?.count()), (3, 3));
//!     assert_eq!(words.remove(tx, "ash")?, Some(one));
//!     assert!(!words.contains(tx, "ash")? && words.find(tx, "ash")?.is_none());
//!     assert_eq!((words.first(tx)?, words.get_ref(tx, "oak")?), (Some(("elm".into(), three)), Some(two)));
//!     let to_oak = words.range(tx, "f"..="oak").collect::<Result<Vec<_>, _>>()?;
//!     assert_eq!((to_oak, words.last(tx)?), (vec![("oak".into(), two)], Some(("oak".into(), two))));
//!     assert_eq!((words.iter(tx).count(), how_many(words, tx, "e")?, words.is_empty(tx)?), (2, 1, false));
//!     let long = "x".repeat(KEY_BYTES_MAX + 1);
//!     assert_eq!(Map::<Text, Word>::check_key(&long), Err(KeyTooLong { bytes: 256 }));
//!
//!     let row = Vector::build(tx, [one, two])?;
//!     assert_eq!((row.set(tx, 0, three)?, row.get_ref(tx, 0)?), (one, Some(three)));
//!     assert_eq!((row.pop_back(tx)?, row.last(tx)?, row.is_empty(tx)?), (Some(two), Some(three), false));
//!     assert_eq!((row.get(tx, 0)?.count(), row.iter(tx).count(), row.iter_from(tx, 1).count()), (3, 1, 0));
//!     Ok(())
//! })?;
//! # space.close()?;
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod field;
pub mod key;
mod load;
pub mod map;
#[doc(hidden)]
pub mod once;
mod packed;
pub mod table;
pub mod vector;

pub use key::{KEY_BYTES_MAX, Key, KeyTooLong, Prefix};
pub use load::Load;
pub use map::{Map, MapNode, Members, Set, VALUE_BYTES_MAX};
pub use table::Table;
pub use tercel_derive::Key;
pub use vector::{Vector, VectorNode};

/// Bytes of a node at most: 8 of them fill a page, so a page takes 8 without loss, and a changed node is an
/// eighth of a page on its way to the server.
pub const NODE_BYTES_MAX: usize = 996;

const _: () = {
    use tercel_wire::page::{PAGE_BYTES, PAGE_HEADER_BYTES, SLOT_BYTES};
    assert!(PAGE_HEADER_BYTES + 8 * (NODE_BYTES_MAX + SLOT_BYTES) <= PAGE_BYTES);
};
