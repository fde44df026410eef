//! Writing: private copies, new objects.

use std::marker::PhantomData;
use std::sync::Arc;

use tercel_heap::{TypeKey, Typed, View};
use tercel_wire::id::{ClassId, Oref, Stamp};
use tercel_wire::layout::Layout;
use tercel_wire::record::{Any, Encoder, HEADER_BYTES, Ref, Value, convert};

use super::tree::TreeBuilder;
use super::{Place, Tx, write_set_error};
use crate::error::{Bound, Error};
use crate::txn::object::{Object, RawMut};

impl<'c> Tx<'c> {
    /// Makes a new object. Its reference is final; the object exists for others once this transaction
    /// commits.
    ///
    /// # Errors
    /// `NotFound` if the value has a reference that was kept from an earlier transaction and names nothing
    /// any more; `Full` if the value is too large or the space has no pages left; `Schema`; `Unavailable`,
    /// `Timeout`.
    pub fn create<T: Object>(&self, value: &T) -> Result<Ref<T>, Error> {
        let class = self.class_of::<T>()?.class;
        let object = self.encode(value, class)?;
        let (oref, birth) = self.reserve_bytes(object.len())?;
        self.put_new::<T>(oref, birth, object)?;
        Ok(self.token(oref, 0))
    }

    /// Takes a place for an object that will be as large as `value` is, to refer to it before it exists; fill
    /// it with [`Tx::fill`], in this transaction or a later one of this client.
    ///
    /// A place lasts as long as the client's session, which outlives connections and starts of the server.
    /// The session ends when the client closes, when it has had no connection for two keepalives, and when
    /// the server was put back to an earlier state. Every place that is not filled by then is lost for good,
    /// although the client connects again by itself; a later transaction that fills one fails with
    /// [`Error::PlaceLost`]. What was committed by then and refers to such a place leads to `NotFound`, and
    /// `tercel check` counts it. So a program that keeps places for later transactions must be able to begin
    /// anew, and lets others reach what leads there only with the last of them.
    ///
    /// # Errors
    /// As [`Tx::create`].
    pub fn reserve<T: Object>(&self, value: &T) -> Result<Ref<T>, Error> {
        let class = self.class_of::<T>()?.class;
        let mut sizes = super::tree::Measure;
        let mut e = Encoder::new(const { T::SCHEMA.size() }, &mut sizes);
        value.encode(&mut e);
        let bytes = e.finish(class)?.len();
        let (oref, birth) = self.reserve_bytes(bytes)?;
        // The last one is that of the place's page.
        self.taken.borrow().holds.last().inspect(|hold| hold.keep());
        self.reserved.borrow_mut().insert(oref, birth);
        Ok(self.token(oref, 0))
    }

    /// Makes the object in a place that was reserved.
    ///
    /// # Errors
    /// As [`Tx::create`]. The commit says `PlaceLost` if the place was reserved by an earlier transaction and
    /// is lost since, as [`Tx::reserve`] explains.
    pub fn fill<T: Object>(&self, place: Ref<T>, value: &T) -> Result<(), Error> {
        let class = self.class_of::<T>()?.class;
        let object = self.encode(value, class)?;
        let reserved = self.reserved.borrow().get(&place.oref()).copied();
        match reserved {
            Some(birth) if birth > place.stamp() => return Err(Error::PlaceLost(place.oref())),
            Some(_) => {}
            None => _ = self.brought.borrow_mut().insert(place.oref(), place.stamp()),
        }
        // References to a place that was brought are no older than its own.
        let birth = reserved.unwrap_or(if place.stamp() < Stamp::MAX { place.stamp() } else { Stamp::ZERO });
        self.put_new::<T>(place.oref(), birth, object)
    }

    /// Replaces the whole object, unread.
    ///
    /// # Errors
    /// `NotFound` if the reference was kept from an earlier transaction and names nothing any more; `Full`,
    /// `Schema`, `Unavailable`, `Timeout`.
    pub fn replace<T: Object>(&self, r: Ref<T>, value: &T) -> Result<(), Error> {
        const {
            assert!(
                !T::IS_ROW,
                "a row of a table is changed by the table, so that indexes follow: `Table::edit`"
            )
        };
        let class = self.class_of::<T>()?.class;
        if r.stamp() < self.began.at.stamp {
            // Its place may be that of another object by now.
            self.find(r)?.ok_or_else(|| Error::not_found(r.oref()))?;
        }
        let object = self.encode(value, class)?;
        self.put::<T>(r.oref(), object, None)?;
        self.blind.borrow_mut().insert(r.oref());
        self.scope.set_blind();
        Ok(())
    }

    /// A private copy of the object, to change. What its setters set belongs to the transaction at once:
    /// dropping the editor keeps it, dropping the transaction loses it.
    ///
    /// # Errors
    /// As [`Tx::get`]; `Full` if the transaction is too large.
    pub fn edit<'t, T: Object>(&'t self, r: Ref<T>) -> Result<T::Mut<'t>, Error> {
        self.get(r)?.edit()
    }

    pub(crate) fn edit_view<'t, T: Object>(&'t self, view: &View<'t, T>) -> Result<RawMut<'t, T>, Error> {
        let oref = view.oref();
        if !self.write_set.contains(oref) {
            // The class must be writable as T is now, not only readable.
            self.class_of::<T>()?;
            self.put::<T>(oref, view.to_stored(), view.behind())?;
        }
        Ok(RawMut { tx: self, oref, class: PhantomData })
    }

    /// Sets a field of a private copy.
    pub(crate) fn set_field<T: Object, F: Value>(
        &self,
        oref: Oref,
        at: usize,
        value: &F,
    ) -> Result<(), Error> {
        if const { F::TYPE.is_fixed() } {
            let mut names = TreeBuilder::new(self);
            let mut e = Encoder::new(const { F::TYPE.size() }, &mut names);
            value.put(&mut e, 0);
            let encoded = e.finish_bytes();
            let bytes = names.finish(encoded)?;
            return self.write_set.patch(oref, at, &bytes).map_err(write_set_error);
        }
        let known = self.class_of::<T>()?;
        let Some(old) = self.write_set.get(oref) else { return Err(Error::not_found(oref)) };
        let object = self.rebuild(&known.layout, &old, known.class, at, value)?;
        let behind = self.write_set.behind(oref);
        self.put::<T>(oref, object, behind)
    }

    /// The record again with another value at `at`.
    fn rebuild<F: Value>(
        &self,
        layout: &Layout,
        old: &[u8],
        class: ClassId,
        at: usize,
        value: &F,
    ) -> Result<Vec<u8>, Error> {
        let mut trees = TreeBuilder::new(self);
        let mut e = Encoder::new(layout.size(), &mut trees);
        convert(layout, &old[HEADER_BYTES..], layout, &mut e, |place, e| {
            let here = place.at == at;
            if here {
                value.put(e, at);
            }
            here
        });
        let encoded = e.finish(class);
        trees.finish(encoded)
    }

    fn encode<T: Typed>(&self, value: &T, class: ClassId) -> Result<Vec<u8>, Error> {
        let mut trees = TreeBuilder::new(self);
        let mut e = Encoder::new(const { T::SCHEMA.size() }, &mut trees);
        value.encode(&mut e);
        let encoded = e.finish(class);
        trees.finish(encoded)
    }

    /// A place for a new object of that many bytes, and the birth of its page, at or below the snapshot.
    pub(super) fn reserve_bytes(&self, bytes: usize) -> Result<(Oref, Stamp), Error> {
        let Place { oref, birth, hold } = self.place(bytes)?;
        let holds = &mut self.taken.borrow_mut().holds;
        if holds.last().is_none_or(|last| !Arc::ptr_eq(last, &hold)) {
            holds.push(hold);
        }
        Ok((oref, birth))
    }

    fn place(&self, bytes: usize) -> Result<Place, Error> {
        self.ask(|home, now| {
            let place = home.allocate(now, &self.scope, bytes)?;
            self.taken.borrow_mut().session.get_or_insert_with(|| home.sessions_ended());
            Some(place)
        })
    }

    pub(super) fn put_new<T: Typed>(&self, oref: Oref, birth: Stamp, object: Vec<u8>) -> Result<(), Error> {
        self.put_made(TypeKey::of::<T>(), oref, birth, object)
    }

    fn put_made(&self, key: TypeKey, oref: Oref, birth: Stamp, object: Vec<u8>) -> Result<(), Error> {
        self.made.borrow_mut().insert(oref, birth);
        self.put_keyed(key, oref, object, None)
    }

    fn put<T: Typed>(&self, oref: Oref, object: Vec<u8>, behind: Option<Vec<u8>>) -> Result<(), Error> {
        self.put_keyed(TypeKey::of::<T>(), oref, object, behind)
    }

    /// Keeps a private copy. Large values of it that are replaced were made for nothing, as are those of one
    /// that cannot be kept.
    fn put_keyed(
        &self,
        key: TypeKey,
        oref: Oref,
        object: Vec<u8>,
        behind: Option<Vec<u8>>,
    ) -> Result<(), Error> {
        let layout = self.class_of_key(key)?.layout;
        let trees = |object: &[u8]| {
            let mut trees = Vec::new();
            layout.trees(&object[HEADER_BYTES..], |root| trees.push(root));
            trees
        };
        let after = trees(&object);
        let before = match layout.may_own() {
            true => self.write_set.get(oref).map_or(Vec::new(), |object| trees(&object)),
            false => Vec::new(),
        };
        let kept = self.keep(key, oref, object, behind);
        let (gone, there) = if kept.is_ok() { (before, after) } else { (after, before) };
        for root in gone.into_iter().filter(|root| !there.contains(root)) {
            if self.made.borrow().contains_key(&root) {
                self.unmake_tree(root);
            }
        }
        kept
    }

    fn keep(&self, key: TypeKey, oref: Oref, object: Vec<u8>, behind: Option<Vec<u8>>) -> Result<(), Error> {
        let room = self.bytes_max.get();
        if self.write_set.bytes_total() + object.len() > room {
            return Err(Error::Full(Bound::Writes { bytes_max: room }));
        }
        self.write_set.put(oref, &object, key, behind).map_err(write_set_error)?;
        self.scope.set_overlaid(true);
        Ok(())
    }

    /// Says whether the object was made by this transaction.
    pub fn is_new<T>(&self, r: Ref<T>) -> bool {
        self.made.borrow().contains_key(&r.oref())
    }

    /// Looks the object up as [`Tx::get`] does, but none is not an error.
    ///
    /// # Errors
    /// As [`Tx::get`], without `NotFound`.
    pub fn find<'t, T: Object>(&'t self, r: Ref<T>) -> Result<Option<crate::txn::object::Obj<'t, T>>, Error> {
        Ok(self.enter_oref::<T>(r.oref(), r.stamp())?.map(|view| crate::txn::object::Obj::new(view, self)))
    }
}

/// Makes an object of a class that the program has no type for: for tools. `fill` writes it, as the layout
/// says. A client that uses the class with a type of its own refuses it.
///
/// # Errors
/// As [`Tx::create`].
pub fn create_stored(
    tx: &Tx<'_>,
    layout: &Layout,
    fill: impl FnOnce(&mut Encoder<'_>),
) -> Result<Ref<Any>, Error> {
    let key = TypeKey::of_layout(layout);
    let class = tx.class_of_key(key)?.class;
    let mut trees = TreeBuilder::new(tx);
    let mut e = Encoder::new(layout.size(), &mut trees);
    fill(&mut e);
    let encoded = e.finish(class);
    let object = trees.finish(encoded)?;
    let (oref, birth) = tx.reserve_bytes(object.len())?;
    tx.put_made(key, oref, birth, object)?;
    Ok(tx.token(oref, 0))
}
