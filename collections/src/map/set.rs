//! An ordered set of keys: a map whose keys name nothing.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use tercel_engine::Error;
use tercel_engine::txn::Tx;
use tercel_wire::record::Ref;

use super::items::{Item, Kind};
use super::node::{Draft, MapNode, look_up};
use super::walk::Walk;
use super::{bounds, change, count, insert_batch, is_empty, prefix_bounds};
use crate::Load;
use crate::field::handle;
use crate::key::{Key, Prefix, check};

/// An ordered set of keys, which stand in its nodes and need no objects: for memberships, tags, what was
/// seen. A handle, as [`Map`](crate::Map) is.
///
/// ```
/// use tercel::Text;
/// use tercel::collections::Set;
///
/// # let dir = std::env::temp_dir().join(format!("tercel-set-{}", std::process::id()));
/// # let space = tercel::embedded(&dir)?;
/// space.run(|tx| {
///     let members = Set::<(Text, u64)>::create(tx)?;
///     for member in [("chess", 7), ("chess", 3), ("choir", 7)] {
///         assert!(members.insert(tx, member)?);
///     }
///     assert!(!members.insert(tx, ("choir", 7))? && members.contains(tx, ("choir", 7))?);
///     let chess = members.prefix(tx, ("chess",)).map(|member| Ok(member?.1));
///     assert_eq!(chess.collect::<Result<Vec<_>, tercel::Error>>()?, [3, 7]);
///     assert!(members.remove(tx, ("choir", 7))?);
///     assert_eq!(members.count(tx)?, 2);
///     tx.set_root("members", members.reference())
/// })?;
/// # space.close()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of [`Map`](crate::Map).
pub struct Set<K> {
    top: Ref<MapNode>,
    contents: PhantomData<fn() -> K>,
}

handle!(Set<K: Key>, MapNode);

impl<K: Key> Set<K> {
    const KIND: &'static Kind = &Kind::set::<K>();

    /// Makes an empty one.
    pub fn create(tx: &Tx<'_>) -> Result<Set<K>, Error> {
        Ok(Set::open(Draft::leaf(Self::KIND).make(tx)?))
    }

    /// Says whether the set has the key.
    pub fn contains(&self, tx: &Tx<'_>, key: K::Arg<'_>) -> Result<bool, Error> {
        Ok(look_up(tx, self.top, Self::KIND, K::encode(key).as_ref())?.is_some())
    }

    /// Adds the key; says whether it was not there before.
    pub fn insert(&self, tx: &Tx<'_>, key: K::Arg<'_>) -> Result<bool, Error> {
        let key = K::encode(key);
        check(key.as_ref())?;
        Ok(change::insert(tx, self.top, Self::KIND, key.as_ref(), &Item::Nothing)?.is_none())
    }

    /// Removes the key; says whether it was there.
    pub fn remove(&self, tx: &Tx<'_>, key: K::Arg<'_>) -> Result<bool, Error> {
        Ok(change::remove(tx, self.top, Self::KIND, K::encode(key).as_ref())?.is_some())
    }

    /// All keys in order, from both ends.
    pub fn iter<'t>(&self, tx: &'t Tx<'_>) -> Members<'t, K> {
        self.between(tx, (Bound::Unbounded, Bound::Unbounded))
    }

    /// The keys in `range`, from both ends.
    pub fn range<'t, 'k>(&self, tx: &'t Tx<'_>, range: impl RangeBounds<K::Arg<'k>>) -> Members<'t, K> {
        self.between(tx, bounds::<K>(&range))
    }

    /// The keys that begin with `prefix`, in order, from both ends.
    pub fn prefix<'t>(&self, tx: &'t Tx<'_>, prefix: impl Prefix<K>) -> Members<'t, K> {
        self.between(tx, prefix_bounds(prefix))
    }

    fn between<'t>(&self, tx: &'t Tx<'_>, (low, high): (Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Members<'t, K> {
        let walk = Walk::new(tx, self.top, Self::KIND, low, high);
        Members { walk, is_done: false, keys: PhantomData }
    }

    /// Says whether there are no keys. Reads the top node only.
    pub fn is_empty(&self, tx: &Tx<'_>) -> Result<bool, Error> {
        is_empty(tx, self.top, Self::KIND)
    }

    /// The number of keys, by going to every leaf.
    pub fn count(&self, tx: &Tx<'_>) -> Result<usize, Error> {
        count(tx, self.top, Self::KIND)
    }
}

impl<K: Key> Load for Set<K> {
    type Entry = K;

    fn insert_batch(&self, tx: &Tx<'_>, keys: &[K]) -> Result<(), Error> {
        let entries = keys.iter().map(|key| (K::encode(key.arg()).as_ref().to_vec(), Item::Nothing));
        insert_batch(tx, self.top, Self::KIND, entries.collect())
    }
}

/// The keys of a [`Set`] in a range, in order. After an error nothing more comes.
pub struct Members<'t, K> {
    walk: Walk<'t>,
    is_done: bool,
    keys: PhantomData<fn() -> K>,
}

impl<K: Key> Members<'_, K> {
    fn ended(&mut self, found: Result<Option<K>, Error>) -> Option<Result<K, Error>> {
        self.is_done = !matches!(found, Ok(Some(_)));
        found.transpose()
    }
}

impl<K: Key> Iterator for Members<'_, K> {
    type Item = Result<K, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let found = self.walk.next(|key, _, _| K::decode(key));
        self.ended(found)
    }
}

impl<K: Key> DoubleEndedIterator for Members<'_, K> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let found = self.walk.next_back(|key, _, _| K::decode(key));
        self.ended(found)
    }
}

impl<K: Key> std::iter::FusedIterator for Members<'_, K> {}
