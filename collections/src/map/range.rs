//! The entries of a range as an iterator.

use std::marker::PhantomData;

use tercel_engine::Error;
use tercel_engine::object::{Field, ValueReader};
use tercel_engine::txn::Tx;
use tercel_wire::record::MapValue;

use super::node::Node;
use super::walk::Walk;
use crate::key::Key;

/// The entries of a [`Map`](crate::Map) in a range, in order. After an error nothing more comes.
pub struct Range<'t, K, V: MapValue> {
    walk: Walk<'t>,
    values: Values<V>,
    is_done: bool,
    keys: PhantomData<fn() -> K>,
}

impl<'t, K: Key, V: MapValue<Value: Field>> Range<'t, K, V> {
    pub(super) fn new(walk: Walk<'t>) -> Self {
        Range { walk, values: Values::default(), is_done: false, keys: PhantomData }
    }

    fn ended<R>(&mut self, found: Result<Option<R>, Error>) -> Option<Result<R, Error>> {
        self.is_done = !matches!(found, Ok(Some(_)));
        found.transpose()
    }
}

impl<K: Key, V: MapValue<Value: Field>> Iterator for Range<'_, K, V> {
    type Item = Result<(K, V::Value), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let (tx, values) = (self.walk.tx(), &self.values);
        let found = self.walk.next(|key, leaf, i| Ok((K::decode(key)?, values.read(tx, leaf, i)?)));
        self.ended(found)
    }
}

impl<K: Key, V: MapValue<Value: Field>> DoubleEndedIterator for Range<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let (tx, values) = (self.walk.tx(), &self.values);
        let found = self.walk.next_back(|key, leaf, i| Ok((K::decode(key)?, values.read(tx, leaf, i)?)));
        self.ended(found)
    }
}

impl<K: Key, V: MapValue<Value: Field>> std::iter::FusedIterator for Range<'_, K, V> {}

/// Reads what the keys of a map name.
pub struct Values<V: MapValue> {
    /// The reader of values that stand in nodes; none of references.
    standing: Option<ValueReader<V::Value>>,
}

impl<V: MapValue<Value: Field>> Default for Values<V> {
    fn default() -> Self {
        Values { standing: V::STANDS.is_some().then(ValueReader::default) }
    }
}

impl<V: MapValue<Value: Field>> Values<V> {
    /// Reads the value that key `i` of a leaf names.
    pub fn read(&self, tx: &Tx<'_>, leaf: &Node<'_>, i: usize) -> Result<V::Value, Error> {
        match &self.standing {
            Some(reader) => reader.read(tx, leaf.value_bytes(i)?),
            None => V::of_reference(leaf.value(i)?).ok_or_else(|| leaf.damaged()),
        }
    }

    /// Reads a value that was in a leaf.
    pub fn read_item(&self, tx: &Tx<'_>, item: super::items::Item) -> Result<V::Value, Error> {
        use super::items::Item;
        let read = match (&self.standing, item) {
            (Some(reader), Item::Value(bytes)) => Some(reader.read(tx, &bytes)?),
            (None, Item::Reference(r)) => V::of_reference(r),
            _ => None,
        };
        read.ok_or_else(|| Error::Corrupt("a map has something that is no value of it".into()))
    }
}
