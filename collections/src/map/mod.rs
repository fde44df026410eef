//! An ordered map from keys to references: a B+tree whose nodes are ordinary objects.
//!
//! A look-up reads one node a level, in the cache's memory, and follows references that the cache has made
//! direct. The transaction's read set holds all visited nodes, also when the key is not there: the leaf
//! without the key stands for its absence. So if one transaction inserts into a leaf that another has read,
//! one of the two is told of a conflict. The map keeps no count, because then every two inserts would
//! conflict. Two inserts into different leaves do not conflict, as long as neither splits a node.

mod build;
mod change;
mod node;
mod range;

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use tercel_engine::Error;
use tercel_engine::object::{Obj, Object};
use tercel_engine::txn::{Change, Query, Tx};
use tercel_wire::record::{Ref, Target};

use crate::field::handle;
use crate::key::{Key, KeyTooLong, PrefixKey, check};
use node::{Draft, HEIGHT_MAX, Node, look_up};

pub use node::MapNode;
pub use range::Range;

/// An ordered map from `K` to references to objects of class `V`. See the [module](self).
///
/// It is a handle: a copy of the reference to the map's top node. It can be a field of an object, which then
/// holds that reference, or be kept as a root:
///
/// ```
/// use tercel::collections::Map;
/// use tercel::{Object, Ref, Text};
///
/// #[derive(Object)]
/// struct Person {
///     age: u32,
///     friends: Map<Text, Person>,
/// }
///
/// # let dir = std::env::temp_dir().join(format!("tercel-map-{}", std::process::id()));
/// # let space = tercel::embedded(&dir)?;
/// space.run(|tx| {
///     let people = Map::<Text, Person>::create(tx)?;
///     for (name, age) in [("Bob", 30), ("Ann", 41), ("Bea", 7)] {
///         let person = tx.create(&Person { age, friends: Map::create(tx)? })?;
///         people.insert(tx, name, person)?;
///     }
///     tx.set_root("people", people.reference())
/// })?;
/// space.run(|tx| {
///     let people = Map::<Text, Person>::open(tx.get_root_ref("people")?.expect("stored just now"));
///     let ann = people.find(tx, "Ann")?.expect("inserted just now");
///     assert_eq!(ann.age(), 41);
///     ann.friends().insert(tx, "Bea", people.get_ref(tx, "Bea")?.expect("inserted just now"))?;
///     let mut names = Vec::new();
///     for entry in people.prefix(tx, "B") {
///         let (name, _person) = entry?;
///         names.push(name.0);
///     }
///     assert_eq!(names, ["Bea", "Bob"]);
///     Ok(())
/// })?;
/// space.close()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Limits
/// A key has at most [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX) bytes. A map takes about 1 KiB in its page from
/// the beginning; a handful of references is better a `List<Ref<V>>`.
///
/// # Errors
/// A method that reads fails with the errors of [`Tx::get`], and with `Schema` if the map was made with
/// another type of keys. A method that writes also fails with the errors of [`Tx::create`], and with `Full`
/// if the key is too long. `Corrupt` is a node that no map has made.
pub struct Map<K, V> {
    top: Ref<MapNode>,
    contents: PhantomData<fn() -> (K, V)>,
}

handle!(Map<K: Key, V: Target>, MapNode);

impl<K: Key, V: Target> Map<K, V> {
    /// Makes an empty one.
    pub fn create(tx: &Tx<'_>) -> Result<Map<K, V>, Error> {
        Ok(Map::open(Draft::leaf().make(tx, K::KIND)?))
    }

    /// Makes one of what comes in the order of the keys: full leaves, made in that order and thus side by
    /// side in their pages. What comes out of order is inserted afterwards, so it costs time but is not lost;
    /// of equal keys the last one stays.
    pub fn build_sorted<Q: Into<K>>(
        tx: &Tx<'_>,
        entries: impl IntoIterator<Item = (Q, Ref<V>)>,
    ) -> Result<Map<K, V>, Error> {
        let mut build = build::Build::new(tx, K::KIND);
        let mut late = Vec::new();
        for (key, value) in entries {
            let key: K = key.into();
            if !build.push(K::encode(key.arg()).as_ref(), value.cast())? {
                late.push((key, value));
            }
        }
        let map = Map::open(build.finish()?);
        for (key, value) in late {
            map.insert(tx, key.arg(), value)?;
        }
        Ok(map)
    }

    /// Checks whether the key can be stored, without a transaction. Fails with [`KeyTooLong`] if it cannot.
    pub fn check_key(key: K::Arg<'_>) -> Result<(), KeyTooLong> {
        check(K::encode(key).as_ref())
    }

    /// The object that the key names.
    ///
    /// # Errors
    /// `NotFound` if the map does not have the key, or has it with a null reference.
    #[inline]
    pub fn get<'t>(&self, tx: &'t Tx<'_>, key: K::Arg<'_>) -> Result<Obj<'t, V>, Error>
    where
        V: Object,
    {
        let missing = || Error::NotFound(format!("a key of the map {}", self.top.oref()));
        self.find(tx, key)?.ok_or_else(missing)
    }

    /// The reference that the key names, as a value; none if the map does not have the key.
    pub fn get_ref(&self, tx: &Tx<'_>, key: K::Arg<'_>) -> Result<Option<Ref<V>>, Error> {
        match look_up(tx, self.top, K::KIND, K::encode(key).as_ref())? {
            Some((leaf, i)) => leaf.value(i).map(|value| Some(value.cast())),
            None => Ok(None),
        }
    }

    /// The object that the key names; none also if the key names a null reference.
    #[inline]
    pub fn find<'t>(&self, tx: &'t Tx<'_>, key: K::Arg<'_>) -> Result<Option<Obj<'t, V>>, Error>
    where
        V: Object,
    {
        match look_up(tx, self.top, K::KIND, K::encode(key).as_ref())? {
            Some((leaf, i)) => leaf.values().cast::<V>().find(i),
            None => Ok(None),
        }
    }

    /// Says whether the map has the key.
    pub fn contains(&self, tx: &Tx<'_>, key: K::Arg<'_>) -> Result<bool, Error> {
        Ok(self.get_ref(tx, key)?.is_some())
    }

    /// Lets the key name `value`; gives what it named before.
    pub fn insert(&self, tx: &Tx<'_>, key: K::Arg<'_>, value: Ref<V>) -> Result<Option<Ref<V>>, Error> {
        let key = K::encode(key);
        check(key.as_ref())?;
        let old = change::insert(tx, self.top, K::KIND, key.as_ref(), value.cast())?;
        Ok(old.map(Ref::cast))
    }

    /// Removes the key; gives what it named.
    pub fn remove(&self, tx: &Tx<'_>, key: K::Arg<'_>) -> Result<Option<Ref<V>>, Error> {
        let key = K::encode(key);
        let old = change::remove(tx, self.top, K::KIND, key.as_ref())?;
        Ok(old.map(Ref::cast))
    }

    /// All entries in the order of the keys, from both ends.
    pub fn iter<'t>(&self, tx: &'t Tx<'_>) -> Range<'t, K, V> {
        Range::new(tx, self.top, Bound::Unbounded, Bound::Unbounded)
    }

    /// The entries whose keys are in `range`, from both ends. A range that ends before it begins has none.
    pub fn range<'t, 'k>(&self, tx: &'t Tx<'_>, range: impl RangeBounds<K::Arg<'k>>) -> Range<'t, K, V> {
        let own = |bound: Bound<&K::Arg<'k>>| bound.map(|key| K::encode(*key).as_ref().to_vec());
        Range::new(tx, self.top, own(range.start_bound()), own(range.end_bound()))
    }

    /// The key that a change of a watched range of this map is of; none if the whole range may have changed.
    ///
    /// # Errors
    /// `Corrupt` if the change is of another map, whose keys are of another type.
    pub fn key_of(&self, change: &Change) -> Result<Option<K>, Error> {
        change.key.as_deref().map(K::decode).transpose()
    }

    /// Reads the references in a range, with their keys as bytes: what a watch of the range runs.
    #[doc(hidden)]
    pub fn query<'k>(&self, range: impl RangeBounds<K::Arg<'k>>) -> Query
    where
        K: 'static,
        V: 'static,
    {
        let own = |bound: Bound<&K::Arg<'k>>| bound.map(|key| K::encode(*key).as_ref().to_vec());
        self.query_bytes(own(range.start_bound()), own(range.end_bound()))
    }

    /// [`Map::query`] of the keys that begin with `prefix`.
    #[doc(hidden)]
    pub fn query_prefix(&self, prefix: K::Arg<'_>) -> Query
    where
        K: PrefixKey + 'static,
        V: 'static,
    {
        let (low, high) = with_prefix(K::encode(prefix).as_ref());
        self.query_bytes(low, high)
    }

    fn query_bytes(&self, low: Bound<Vec<u8>>, high: Bound<Vec<u8>>) -> Query
    where
        K: 'static,
        V: 'static,
    {
        let map = *self;
        Box::new(move |tx| {
            let range: Range<'_, K, V> = Range::new(tx, map.top, low.clone(), high.clone());
            range
                .map(|entry| entry.map(|(key, r)| (K::encode(key.arg()).as_ref().to_vec(), r.oref())))
                .collect()
        })
    }

    /// The entries whose keys begin with `prefix`, in order.
    pub fn prefix<'t>(&self, tx: &'t Tx<'_>, prefix: K::Arg<'_>) -> Range<'t, K, V>
    where
        K: PrefixKey,
    {
        let (low, high) = with_prefix(K::encode(prefix).as_ref());
        Range::new(tx, self.top, low, high)
    }

    /// The entry with the least key.
    pub fn first(&self, tx: &Tx<'_>) -> Result<Option<(K, Ref<V>)>, Error> {
        self.iter(tx).next().transpose()
    }

    /// The entry with the greatest key.
    pub fn last(&self, tx: &Tx<'_>) -> Result<Option<(K, Ref<V>)>, Error> {
        self.iter(tx).next_back().transpose()
    }

    /// Says whether there are no entries. Reads the top node only.
    pub fn is_empty(&self, tx: &Tx<'_>) -> Result<bool, Error> {
        let top = Node::top(tx, self.top, K::KIND)?;
        Ok(top.is_leaf() && top.values().is_empty())
    }

    /// The number of entries, by going to every leaf: about 50 entries a step. The transaction then has read
    /// the whole map.
    pub fn count(&self, tx: &Tx<'_>) -> Result<usize, Error> {
        let mut count = 0;
        let mut path = vec![(Node::top(tx, self.top, K::KIND)?, 0)];
        while let Some((node, next)) = path.last_mut() {
            if *next < node.children().len() {
                let child = node.child(*next)?;
                *next += 1;
                if path.len() > HEIGHT_MAX {
                    return Err(child.damaged());
                }
                path.push((child, 0));
            } else {
                count += node.values().len();
                path.pop();
            }
        }
        Ok(count)
    }
}

/// The bounds of all keys that begin with `prefix`.
fn with_prefix(prefix: &[u8]) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    // The least that is greater than all with the prefix: it, cut after the last byte that can be one more.
    let mut to = prefix.to_vec();
    while to.pop_if(|last| *last == u8::MAX).is_some() {}
    let high = match to.last_mut() {
        Some(last) => {
            *last += 1;
            Bound::Excluded(to)
        }
        None => Bound::Unbounded,
    };
    (Bound::Included(prefix.to_vec()), high)
}
