//! Tables whose order is the same in every run.

use std::hash::{BuildHasherDefault, Hash};

use rustc_hash::FxHasher;

/// A hash map with a fixed hash function. Its keys are our own ids, not a stranger's texts.
pub type Map<K, V> = hashbrown::HashMap<K, V, BuildHasherDefault<FxHasher>>;
/// A hash set with a fixed hash function.
pub type Set<K> = hashbrown::HashSet<K, BuildHasherDefault<FxHasher>>;

/// A table in which a value keeps its place: one that is asked for again and again is found there, without
/// its key being hashed.
#[derive(Debug)]
pub struct Placed<K, V> {
    places: Vec<Option<(K, V)>>,
    free: Vec<usize>,
    by_key: Map<K, usize>,
}

impl<K, V> Default for Placed<K, V> {
    fn default() -> Placed<K, V> {
        Placed { places: Vec::new(), free: Vec::new(), by_key: Map::default() }
    }
}

impl<K: Copy + Eq + Hash, V> Placed<K, V> {
    /// The value of a key.
    pub fn get(&self, key: K) -> Option<&V> {
        self.places[*self.by_key.get(&key)?].as_ref().map(|(_, value)| value)
    }

    /// The value of a key, to be changed.
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.places[*self.by_key.get(&key)?].as_mut().map(|(_, value)| value)
    }

    /// That of a key, which was at a place when it was last asked for. The place is brought up to date.
    #[inline]
    pub fn get_at(&mut self, key: K, place: &mut usize) -> Option<&mut V> {
        if !matches!(self.places.get(*place), Some(Some((there, _))) if *there == key) {
            *place = *self.by_key.get(&key)?;
        }
        self.places[*place].as_mut().map(|(_, value)| value)
    }

    /// The value of a key, made if there is none.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let Placed { places, free, by_key } = self;
        let place = *by_key.entry(key).or_insert_with(|| {
            let place = free.pop().unwrap_or(places.len());
            if place == places.len() {
                places.push(None);
            }
            place
        });
        &mut places[place].get_or_insert_with(|| (key, make())).1
    }

    /// Takes that of a key out.
    pub fn remove(&mut self, key: K) -> Option<V> {
        let place = self.by_key.remove(&key)?;
        self.free.push(place);
        self.places[place].take().map(|(_, value)| value)
    }

    /// All of them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.places.iter_mut().flatten().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_found_at_its_place_and_by_its_key() {
        let mut table = Placed::default();
        for key in 0..3 {
            assert_eq!(*table.get_or_insert_with(key, || 10 * key), 10 * key);
        }
        let mut place = 7;
        assert_eq!((table.get_at(1, &mut place).copied(), place), (Some(10), 1));
        assert_eq!(table.remove(1), Some(10));
        assert_eq!((table.get(1).copied(), table.get_at(1, &mut place).copied()), (None, None));
        // Its place is another's now.
        table.get_or_insert_with(4, || 40);
        assert_eq!(table.get_at(1, &mut place), None);
        assert_eq!((table.get_at(2, &mut place).copied(), place), (Some(20), 2));
        assert_eq!(table.values_mut().map(|v| *v).collect::<Vec<_>>(), [0, 40, 20]);
    }
}
