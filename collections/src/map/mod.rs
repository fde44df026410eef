//! An ordered map from keys to references or small values: a B+tree whose nodes are ordinary objects.
//!
//! A look-up reads one node a level, in the cache's memory, and follows references that the cache has made
//! direct. The transaction's read set holds all visited nodes, also when the key is not there: the leaf
//! without the key stands for its absence. So if one transaction inserts into a leaf that another has read,
//! one of the two is told of a conflict. The map keeps no count, because then every two inserts would
//! conflict. Two inserts into different leaves do not conflict, as long as neither splits a node.

mod build;
pub(crate) mod change;
pub(crate) mod items;
pub(crate) mod node;
pub(crate) mod query;
mod range;
mod raw;
mod set;
pub(crate) mod walk;

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use tercel_engine::Error;
use tercel_engine::object::{Field, Obj, Object};
use tercel_engine::txn::{Change, Query, Tx};
use tercel_wire::record::{MapValue, Ref, Target};

use crate::Load;
use crate::field::handle;
use crate::key::{Key, KeyTooLong, Prefix, check};
use items::{Item, Kind};
use node::{Draft, HEIGHT_MAX, Node, look_up};
use query::RangeQuery;
use range::Values;
use walk::Walk;

pub use node::{MapNode, VALUE_BYTES_MAX};
pub use range::Range;
#[doc(hidden)]
pub use raw::{RawEntries, RawValue};
pub use set::{Members, Set};

/// An ordered map from `K` to `V`: to objects of class `V`, by reference, or to small values, which then
/// stand in the map's own nodes. See the [module](self).
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
/// A number, text, byte string or small record needs no object of its own:
///
/// ```
/// use tercel::collections::Map;
/// use tercel::{Record, Text};
///
/// #[derive(Record, Debug, PartialEq)]
/// struct Visits {
///     count: u32,
///     last: Text,
/// }
///
/// # let dir = std::env::temp_dir().join(format!("tercel-map-values-{}", std::process::id()));
/// # let space = tercel::embedded(&dir)?;
/// space.run(|tx| {
///     let visits = Map::<Text, Visits>::create(tx)?;
///     assert_eq!(visits.insert(tx, "ann", Visits { count: 1, last: "today".into() })?, None);
///     assert_eq!(visits.get_value(tx, "ann")?.map(|ann| ann.count), Some(1));
///     Ok(())
/// })?;
/// # space.close()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Limits
/// A key has at most [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX) bytes, a value in a node [`VALUE_BYTES_MAX`] and
/// no references; types that are larger in any case, the compiler refuses. A record that stands in a map is
/// not converted when its fields change: a map of the older one is refused. A map takes about 1 KiB in its
/// page from the beginning; a handful of references is better a `List<Ref<V>>`.
///
/// # Errors
/// A method that reads fails with the errors of [`Tx::get`], and with `Schema` if the map was made with
/// another type of keys. A method that writes also fails with the errors of [`Tx::create`], and with `Full`
/// if the key is too long. `Corrupt` is a node that no map has made.
pub struct Map<K, V> {
    top: Ref<MapNode>,
    contents: PhantomData<fn() -> (K, V)>,
}

handle!(Map<K: Key, V: MapValue>, MapNode);

impl<K: Key, V: MapValue> Map<K, V> {
    /// The kind of such maps. The compiler refuses here what never fits.
    const KIND: &'static Kind = &Kind::map::<K, V>();
}

impl<K: Key, V: MapValue<Value: Field>> Map<K, V> {
    /// Makes an empty one.
    pub fn create(tx: &Tx<'_>) -> Result<Map<K, V>, Error> {
        Ok(Map::open(Draft::leaf(Self::KIND).make(tx)?))
    }

    /// Makes one of what comes in the order of the keys: full leaves, made in that order and thus side by
    /// side in their pages. What comes out of order is inserted afterwards, so it costs time but is not lost;
    /// of equal keys the last one stays.
    pub fn build_sorted<Q: Into<K>>(
        tx: &Tx<'_>,
        entries: impl IntoIterator<Item = (Q, V::Value)>,
    ) -> Result<Map<K, V>, Error> {
        let mut build = build::Build::new(tx, Self::KIND);
        let mut late = Vec::new();
        for (key, value) in entries {
            let key: K = key.into();
            let item = Item::of::<V>(&value)?;
            if !build.push(K::encode(key.arg()).as_ref(), &item)? {
                late.push((key, item));
            }
        }
        let top = build.finish()?;
        for (key, item) in late {
            change::insert(tx, top, Self::KIND, K::encode(key.arg()).as_ref(), &item)?;
        }
        Ok(Map::open(top))
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
    pub fn get_ref(&self, tx: &Tx<'_>, key: K::Arg<'_>) -> Result<Option<Ref<V>>, Error>
    where
        V: Target,
    {
        match look_up(tx, self.top, Self::KIND, K::encode(key).as_ref())? {
            Some((leaf, i)) => leaf.value(i).map(|value| Some(value.cast())),
            None => Ok(None),
        }
    }

    /// The value that the key names, a reference if the map leads to objects; none if the map does not have
    /// the key.
    pub fn get_value(&self, tx: &Tx<'_>, key: K::Arg<'_>) -> Result<Option<V::Value>, Error> {
        match look_up(tx, self.top, Self::KIND, K::encode(key).as_ref())? {
            Some((leaf, i)) => Values::<V>::default().read(tx, &leaf, i).map(Some),
            None => Ok(None),
        }
    }

    /// The object that the key names; none also if the key names a null reference.
    #[inline]
    pub fn find<'t>(&self, tx: &'t Tx<'_>, key: K::Arg<'_>) -> Result<Option<Obj<'t, V>>, Error>
    where
        V: Object,
    {
        match look_up(tx, self.top, Self::KIND, K::encode(key).as_ref())? {
            Some((leaf, i)) => leaf.values().cast::<V>().find(i),
            None => Ok(None),
        }
    }

    /// Says whether the map has the key.
    pub fn contains(&self, tx: &Tx<'_>, key: K::Arg<'_>) -> Result<bool, Error> {
        Ok(look_up(tx, self.top, Self::KIND, K::encode(key).as_ref())?.is_some())
    }

    /// Lets the key name `value`; gives what it named before.
    pub fn insert(&self, tx: &Tx<'_>, key: K::Arg<'_>, value: V::Value) -> Result<Option<V::Value>, Error> {
        let key = K::encode(key);
        check(key.as_ref())?;
        let old = change::insert(tx, self.top, Self::KIND, key.as_ref(), &Item::of::<V>(&value)?)?;
        old.map(|item| Values::<V>::default().read_item(tx, item)).transpose()
    }

    /// Removes the key; gives what it named.
    pub fn remove(&self, tx: &Tx<'_>, key: K::Arg<'_>) -> Result<Option<V::Value>, Error> {
        let key = K::encode(key);
        let old = change::remove(tx, self.top, Self::KIND, key.as_ref())?;
        old.map(|item| Values::<V>::default().read_item(tx, item)).transpose()
    }

    /// All entries in the order of the keys, from both ends.
    pub fn iter<'t>(&self, tx: &'t Tx<'_>) -> Range<'t, K, V> {
        self.between(tx, Bound::Unbounded, Bound::Unbounded)
    }

    /// The entries whose keys are in `range`, from both ends. A range that ends before it begins has none.
    pub fn range<'t, 'k>(&self, tx: &'t Tx<'_>, range: impl RangeBounds<K::Arg<'k>>) -> Range<'t, K, V> {
        let (low, high) = bounds::<K>(&range);
        self.between(tx, low, high)
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
    pub fn query<'k>(&self, range: impl RangeBounds<K::Arg<'k>>) -> Box<dyn Query>
    where
        V: Target,
    {
        let (low, high) = bounds::<K>(&range);
        self.query_bytes(low, high)
    }

    /// [`Map::query`] of the keys that begin with `prefix`.
    #[doc(hidden)]
    pub fn query_prefix(&self, prefix: impl Prefix<K>) -> Box<dyn Query>
    where
        V: Target,
    {
        let (low, high) = prefix_bounds(prefix);
        self.query_bytes(low, high)
    }

    fn query_bytes(&self, low: Bound<Vec<u8>>, high: Bound<Vec<u8>>) -> Box<dyn Query>
    where
        V: Target,
    {
        Box::new(RangeQuery { top: self.top, kind: *Self::KIND, low, high })
    }

    /// The entries whose keys begin with `prefix`, in order: a `&str` or `&[u8]`, or of tuples the first
    /// parts, such as `(5,)`.
    pub fn prefix<'t>(&self, tx: &'t Tx<'_>, prefix: impl Prefix<K>) -> Range<'t, K, V> {
        let (low, high) = prefix_bounds(prefix);
        self.between(tx, low, high)
    }

    fn between<'t>(&self, tx: &'t Tx<'_>, low: Bound<Vec<u8>>, high: Bound<Vec<u8>>) -> Range<'t, K, V> {
        Range::new(Walk::new(tx, self.top, Self::KIND, low, high))
    }

    /// The entry with the least key.
    pub fn first(&self, tx: &Tx<'_>) -> Result<Option<(K, V::Value)>, Error> {
        self.iter(tx).next().transpose()
    }

    /// The entry with the greatest key.
    pub fn last(&self, tx: &Tx<'_>) -> Result<Option<(K, V::Value)>, Error> {
        self.iter(tx).next_back().transpose()
    }

    /// Says whether there are no entries. Reads the top node only.
    pub fn is_empty(&self, tx: &Tx<'_>) -> Result<bool, Error> {
        is_empty(tx, self.top, Self::KIND)
    }

    /// The number of entries, by going to every leaf: about 50 entries a step. The transaction then has read
    /// the whole map.
    pub fn count(&self, tx: &Tx<'_>) -> Result<usize, Error> {
        count(tx, self.top, Self::KIND)
    }

    /// The number of entries whose keys are in `range`, by going to each of its leaves.
    pub fn count_range<'k>(&self, tx: &Tx<'_>, range: impl RangeBounds<K::Arg<'k>>) -> Result<usize, Error> {
        let (low, high) = bounds::<K>(&range);
        Walk::new(tx, self.top, Self::KIND, low, high).count()
    }
}

impl<K: Key, V: MapValue<Value: Field>> Load for Map<K, V> {
    type Entry = (K, V::Value);

    fn insert_batch(&self, tx: &Tx<'_>, entries: &[(K, V::Value)]) -> Result<(), Error> {
        let entries = entries
            .iter()
            .map(|(key, value)| Ok((K::encode(key.arg()).as_ref().to_vec(), Item::of::<V>(value)?)));
        insert_batch(tx, self.top, Self::KIND, entries.collect::<Result<_, Error>>()?)
    }
}

/// Inserts entries that come in any order. Of equal keys the last one stays.
fn insert_batch(
    tx: &Tx<'_>,
    top: Ref<MapNode>,
    kind: &Kind,
    mut entries: Vec<(Vec<u8>, Item)>,
) -> Result<(), Error> {
    entries.iter().try_for_each(|(key, _)| check(key))?;
    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    change::insert_all(tx, top, kind, &entries, true).map(|_| ())
}

/// Says whether there are no entries, from the top node.
pub(crate) fn is_empty(tx: &Tx<'_>, top: Ref<MapNode>, kind: &Kind) -> Result<bool, Error> {
    let top = Node::top(tx, top, kind)?;
    Ok(top.is_leaf() && top.items(kind)? == 0)
}

/// Counts all entries, from the nodes above the leaves.
pub(crate) fn count(tx: &Tx<'_>, top: Ref<MapNode>, kind: &Kind) -> Result<usize, Error> {
    let mut count = 0;
    let mut path = vec![(Node::top(tx, top, kind)?, 0)];
    while let Some((node, next)) = path.last_mut() {
        if *next < node.children().len() {
            let child = node.child(*next, kind)?;
            *next += 1;
            if path.len() > HEIGHT_MAX {
                return Err(child.damaged());
            }
            path.push((child, 0));
        } else {
            count += if node.is_leaf() { node.items(kind)? } else { 0 };
            path.pop();
        }
    }
    Ok(count)
}

/// The bounds of a range as bytes.
fn bounds<'k, K: Key>(range: &impl RangeBounds<K::Arg<'k>>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let own = |bound: Bound<&K::Arg<'k>>| bound.map(|key| K::encode(*key).as_ref().to_vec());
    (own(range.start_bound()), own(range.end_bound()))
}

fn prefix_bounds<K: Key>(prefix: impl Prefix<K>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let mut bytes = Vec::new();
    prefix.put_prefix(&mut bytes);
    with_prefix(&bytes)
}

/// The bounds of all keys that begin with `prefix`.
pub(crate) fn with_prefix(prefix: &[u8]) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
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
