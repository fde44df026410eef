//! Tables whose order is the same in every run.

use std::hash::BuildHasherDefault;

use rustc_hash::FxHasher;

/// A hash map with a fixed hash function. Its keys are our own ids, not a stranger's texts.
pub type Map<K, V> = hashbrown::HashMap<K, V, BuildHasherDefault<FxHasher>>;
/// A hash set with a fixed hash function.
pub type Set<K> = hashbrown::HashSet<K, BuildHasherDefault<FxHasher>>;
