//! Reading: the hit path, and what happens when it does not hit.

use std::sync::Arc;

use tercel_heap::{Left, Lent, Lookup, RefView, TypeKey, Typed, View};
use tercel_wire::id::{Oref, Stamp};
use tercel_wire::layout::Var;
use tercel_wire::record::{Class, HEADER_BYTES, Ref};

use super::held::{HeldUp, Met};
use super::{Across, Begin, Home, Located, Search, StoredObject, Tx, Wanted, begun};
use crate::error::{Bound, Error};
use crate::mutant::{Rule, dropped};
use crate::time::Now;
use crate::txn::object::{Obj, Object};

/// The result of a slow way. It is boxed, so that it comes back in registers. A result as large as an
/// object's view would be written into the caller's own. That view must then live in memory even where the
/// quick way was enough, and copying it about costs several times as much as a hit.
pub(crate) type Boxed<T> = Result<Option<Box<T>>, Box<Error>>;

/// Attempts to enter an object that was found and then lost again to replacement before it could be pinned.
/// Losing it once is rare; losing it this often means a cache of a few frames and many threads.
const ENTER_ATTEMPTS_MAX: usize = 10_000;

impl<'c> Tx<'c> {
    /// The object that `r` names.
    ///
    /// # Errors
    /// `NotFound` if it names nothing; `Conflict` if what was read before is no longer one state with it;
    /// `Unavailable`, `Timeout`; `Schema` if the object is of another class; `Full` if the cache is too
    /// small.
    #[inline]
    pub fn get<'t, T: Object>(&'t self, r: Ref<T>) -> Result<Obj<'t, T>, Error> {
        match self.scope.get(r) {
            Lookup::Hit(view) => Ok(Obj::new(view, self)),
            Lookup::Null => Err(Error::not_found(Oref::NULL)),
            Lookup::Slow => match self.get_slow(r) {
                Ok(obj) => Ok(*obj),
                Err(e) => Err(*e),
            },
        }
    }

    #[cold]
    #[inline(never)]
    fn get_slow<'t, T: Object>(&'t self, r: Ref<T>) -> Result<Box<Obj<'t, T>>, Box<Error>> {
        match self.enter_oref(r.oref(), r.stamp()) {
            Ok(Some(view)) => Ok(Box::new(Obj::new(view, self))),
            Ok(None) => Err(Box::new(Error::not_found(r.oref()))),
            Err(e) => Err(Box::new(e)),
        }
    }

    /// Follows the reference at `at` of `holder`'s fixed part; none if it is null.
    #[inline(always)]
    pub(crate) fn follow<'t, H: Class, T: Object>(
        &'t self,
        holder: &Lent<'_, 't, H>,
        at: usize,
    ) -> Result<Option<Obj<'t, T>>, Error> {
        match self.scope.follow(holder, at) {
            Lookup::Hit(view) => Ok(Some(Obj::new(view, self))),
            Lookup::Null => Ok(None),
            Lookup::Slow => self.unboxed(holder, self.fixed_slow(holder.clone(), at)),
        }
    }

    /// Gives the result of a step along element `i` of the list of references at `list`, by the slow way
    /// where that is needed.
    #[inline(always)]
    pub(crate) fn arrived<'t, H: Class, T: Object>(
        &'t self,
        step: Lookup<View<'t, T>>,
        holder: &Lent<'_, 't, H>,
        list: usize,
        i: usize,
    ) -> Result<Option<Obj<'t, T>>, Error> {
        match step {
            Lookup::Hit(view) => Ok(Some(Obj::new(view, self))),
            Lookup::Null => Ok(None),
            Lookup::Slow => match holder.ref_view_item(list, i) {
                Some(ref_view) => self.unboxed(holder, self.follow_slow(ref_view)),
                None => Ok(None),
            },
        }
    }

    /// The slow way to the element of a list that has what is `left` after it.
    #[cold]
    #[inline(never)]
    pub(crate) fn item_slow<'t, H: Class, T: Object>(
        &'t self,
        holder: Lent<'_, 't, H>,
        list: usize,
        left: Left<'_>,
    ) -> Boxed<View<'t, T>> {
        let Var::Here { len, .. } = holder.var(list) else { return Ok(None) };
        match holder.ref_view_item(list, len.wrapping_sub(left.count() + 1)) {
            Some(ref_view) => self.follow_slow(ref_view),
            None => Ok(None),
        }
    }

    #[cold]
    #[inline(never)]
    fn fixed_slow<'t, H: Class, T: Object>(
        &'t self,
        holder: Lent<'_, 't, H>,
        at: usize,
    ) -> Boxed<View<'t, T>> {
        self.follow_slow(holder.ref_view(at))
    }

    #[cold]
    #[inline(never)]
    fn follow_slow<'t, T: Object>(&'t self, ref_view: RefView<'_, 't>) -> Boxed<View<'t, T>> {
        let oref = ref_view.target().0;
        match self.enter::<T>(oref, Stamp::MAX, Some(&ref_view)) {
            Ok(Some(view)) => Ok(Some(Box::new(view))),
            Ok(None) => Err(Box::new(Error::not_found(oref))),
            Err(e) => Err(Box::new(e)),
        }
    }

    /// An object from a slow way along a reference of `holder`.
    #[inline(always)]
    fn unboxed<'t, H: Class, T: Object>(
        &'t self,
        holder: &Lent<'_, 't, H>,
        answer: Boxed<View<'t, T>>,
    ) -> Result<Option<Obj<'t, T>>, Error> {
        match answer {
            Ok(Some(view)) => Ok(Some(Obj::new(view.beside(holder), self))),
            Ok(None) => Ok(None),
            Err(e) => Err(*e),
        }
    }

    /// Finds the object of a reference that was read at `stamp`, whatever it takes; none if the home says
    /// that there is none.
    #[cold]
    #[inline(never)]
    pub(super) fn enter_oref<'t, T: Typed>(
        &'t self,
        oref: Oref,
        stamp: Stamp,
    ) -> Result<Option<View<'t, T>>, Error> {
        if oref.is_null() || (self.write_set.contains(oref) && self.is_older::<T>(oref, stamp)?) {
            return Ok(None);
        }
        self.enter::<T>(oref, stamp, None)
    }

    /// Says whether a reference to an object with a private copy was read before the object's page was given
    /// out again.
    fn is_older<T: Typed>(&self, oref: Oref, stamp: Stamp) -> Result<bool, Error> {
        if let Some(birth) = self.made.borrow().get(&oref) {
            return Ok(stamp < *birth && !dropped(Rule::TokenWithoutBirth));
        }
        // An object that was read is of a page that was here.
        let is_doubtful = self.scope.may_be_reborn(stamp)
            || (stamp < self.scope.snapshot() && self.blind.borrow().contains(&oref));
        Ok(is_doubtful && self.locate::<T>(oref, stamp, None)?.is_none())
    }

    fn enter<'t, T: Typed>(
        &'t self,
        oref: Oref,
        stamp: Stamp,
        ref_view: Option<&RefView<'_, 't>>,
    ) -> Result<Option<View<'t, T>>, Error> {
        if let Some(view) = self.write_set.view::<T>(&self.scope, oref) {
            return Ok(Some(view));
        }
        if self.write_set.contains(oref) {
            return Err(Error::Schema(format!("object {oref} is not of class {}", T::SCHEMA.name)));
        }
        if let Some(view) = self.scope.copy::<T>(oref, stamp) {
            return Ok(Some(view));
        }
        for _ in 0..ENTER_ATTEMPTS_MAX {
            let Some(hint) = self.locate::<T>(oref, stamp, ref_view)? else { return Ok(None) };
            if let Some(Lookup::Hit(view)) = ref_view.map(|ref_view| self.scope.follow_clean(ref_view)) {
                return Ok(Some(view));
            }
            // A word of a private copy stays stored, and a token has an old hint: go by the one just found.
            // Its stamp was compared.
            if let Lookup::Hit(view) = self.scope.get_clean(Ref::with_hint(oref, hint)) {
                return Ok(Some(view));
            }
            // Where there are no frames no hit ends well.
            if let Some(view) = self.scope.copy::<T>(oref, Stamp::MAX) {
                return Ok(Some(view));
            }
        }
        Err(Error::Full(Bound::Cache))
    }

    fn locate<T: Typed>(
        &self,
        oref: Oref,
        stamp: Stamp,
        ref_view: Option<&RefView<'_, '_>>,
    ) -> Result<Option<u32>, Error> {
        let wanted = Wanted { scope: &self.scope, oref, stamp, ref_view, key: TypeKey::of::<T>() };
        self.search(oref, |home, now, search| match home.locate(now, &wanted, search) {
            Located::Wait => None,
            Located::Ready { hint } => Some(Ok(Some(hint))),
            Located::Absent => Some(Ok(None)),
            Located::Failed(e) => Some(Err(e)),
        })
    }

    /// Asks the home for an object until it is found, absent, or cannot be had.
    pub(super) fn search<T>(
        &self,
        oref: Oref,
        mut look: impl FnMut(&mut dyn Home, Now, &mut Search) -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut search = self.port.recall(oref);
        let found = self.ask(|home, now| look(home, now, &mut search));
        if search != Search::default() {
            self.port.remember(oref, search, found.is_ok());
        }
        found
    }

    /// Finds out whether references that the program kept from outside of this transaction may be written
    /// into objects: a stored reference is followed without a look at the birth of its page. They do not
    /// count as read; a later end of an object that is named is the server's to refuse.
    ///
    /// # Errors
    /// `NotFound` if one of them names no object, nor a place in which this home may still make one;
    /// `Conflict`, and as [`Tx::get`].
    pub(super) fn find_kept(&self, mut kept: Vec<(Oref, Stamp)>) -> Result<(), Error> {
        // Of one that was made or reserved here the birth of its page is known.
        let mut replaced = None;
        {
            let (made, reserved) = (self.made.borrow(), self.reserved.borrow());
            kept.retain(|(oref, stamp)| match made.get(oref).or_else(|| reserved.get(oref)) {
                None => true,
                Some(birth) if stamp < birth => {
                    replaced = replaced.or(Some(*oref));
                    true
                }
                Some(_) => false,
            });
        }
        if kept.is_empty() {
            return Ok(());
        }
        if let Some(oref) = replaced.filter(|_| !dropped(Rule::TokenWithoutBirth)) {
            return Err(Error::not_found(oref));
        }
        kept.sort_unstable();
        kept.dedup();
        // What was read in the present state is there, and of a newer one, which another transaction has
        // read, nothing can be said in this one. Should the transaction move on, they are judged.
        let snapshot = self.scope.snapshot();
        let is_doubtful = |stamp: Stamp| stamp < snapshot || stamp == Stamp::MAX;
        let (older, sure): (Vec<_>, Vec<_>) = kept.into_iter().partition(|(_, stamp)| is_doubtful(*stamp));
        let mut judging = Judging { snapshot, ..Judging::default() };
        if !older.is_empty() {
            self.ask(|home, now| self.judge(home, now, &older, &mut judging))?;
        }
        let mut named = self.named.borrow_mut();
        // The scope may have moved on during the look at the older ones.
        let seen = if sure.is_empty() { judging.snapshot } else { snapshot };
        named.judged = named.judged.min(seen);
        named.add(older.into_iter().chain(sure));
        Ok(())
    }

    /// Finds out whether kept references that are written may still be written in the state that the
    /// transaction commits on, if that is a newer one than they were judged in: they are not among what it
    /// read. `None` while that takes time.
    ///
    /// # Errors
    /// `Conflict` if one of them names nothing any more; as [`Tx::get`].
    pub(super) fn judge_named(
        &self,
        home: &mut dyn Home,
        now: Now,
        judging: &mut Judging,
    ) -> Option<Result<(), Error>> {
        let named = self.named.borrow();
        if named.judged >= self.scope.snapshot() || dropped(Rule::NamesJudgedOnce) {
            return Some(Ok(()));
        }
        Some(match self.judge(home, now, &named.all, judging)? {
            Err(Error::NotFound(_)) => Err(Error::Conflict(None)),
            other => other,
        })
    }

    /// Checks that each of these names an object, or a place in which this home may still make one.
    fn judge(
        &self,
        home: &mut dyn Home,
        now: Now,
        kept: &[(Oref, Stamp)],
        judging: &mut Judging,
    ) -> Option<Result<(), Error>> {
        loop {
            if judging.snapshot != self.scope.snapshot() {
                // All are judged in one state, or a newer one.
                *judging = Judging { snapshot: self.scope.snapshot(), ..Judging::default() };
            }
            let Some((oref, stamp)) = kept.get(judging.next).copied() else { return Some(Ok(())) };
            if let Some(hold) = home.hold(oref, stamp) {
                // Else the server could take the page back before it learns that an object names the place.
                self.taken.borrow_mut().holds.push(hold);
            } else {
                let search = judging.search.get_or_insert_with(|| self.port.recall(oref));
                let found = home.class_at(now, &self.scope, oref, stamp, search);
                if *search != Search::default() {
                    self.port.remember(oref, *search, found.is_none());
                }
                match found? {
                    // What is of a class that the program cannot read is there. Of what is in a damaged page
                    // nothing is known.
                    Ok(_) | Err(Error::Schema(_)) => {}
                    Err(Error::NotFound(_)) if dropped(Rule::EndedPlaceNamed) => {}
                    Err(e) => return Some(Err(e)),
                }
            }
            (judging.next, judging.search) = (judging.next + 1, None);
        }
    }

    /// Says whether something this transaction read has changed since.
    pub(crate) fn is_stale(&self) -> Result<bool, Error> {
        self.ask(|home, _| Some(Ok(matches!(home.recheck(&self.scope), Err(Error::Conflict(_))))))
    }

    /// The longest wait at its end for parts that write what it has read, in microseconds.
    pub(crate) fn held_patience_us(&self) -> u64 {
        self.began.held.borrow().iter().map(|held| held.patience_us).max().unwrap_or(0)
    }

    /// Looks at the end also at these parts.
    pub(crate) fn also_held(&self, held: Arc<HeldUp>) {
        let mut all = self.began.held.borrow_mut();
        if !all.iter().any(|known| Arc::ptr_eq(known, &held)) {
            all.push(held);
        }
    }

    /// Says whether what an unsettled part writes was read: nothing that was made of it counts, once the part
    /// is settled. It waits for that.
    ///
    /// # Errors
    /// `Unavailable` if that takes longer than it may.
    pub(crate) fn is_held_up(&self) -> Result<bool, Error> {
        let held = self.began.held.borrow().clone();
        // Something that was read has changed and is gone, so what is remembered is not all: it runs again.
        if !held.is_empty() && self.scope.doomed() && !self.scope.overfull() {
            return Ok(true);
        }
        held.iter().try_fold(false, |is_held_up, held| Ok(is_held_up || self.is_held_up_by(held)?))
    }

    fn is_held_up_by(&self, held: &HeldUp) -> Result<bool, Error> {
        let (since, mut met) = (self.port.now(), None);
        let waited = self.ask(|home, now| {
            let Some(met) = met.get_or_insert_with(|| self.met(home, held)) else { return Some(Ok(false)) };
            match settled_from(met, home.across()?) {
                Some(settled) => Some(settled.map(|from| from > self.scope.snapshot())),
                None if self.until.is_none() && now.since_us(since) > held.patience_us => {
                    Some(Err(held.is_late()))
                }
                None => None,
            }
        });
        waited.map_err(|e| match e {
            Error::Timeout | Error::Unknown { .. } => held.is_late(),
            e => e,
        })
    }

    /// Says whether nothing that was made of what it read counts: something has changed since, or was held.
    pub(crate) fn is_doubtful(&self) -> Result<bool, Error> {
        Ok(self.is_stale()? || self.is_held_up()?)
    }

    /// The parts that write what it has read. What is not remembered may be that.
    fn met(&self, home: &mut dyn Home, held: &HeldUp) -> Option<Met> {
        if self.scope.overfull() {
            return Some(Met::All(held.upto));
        }
        let mut read = Vec::new();
        home.read_set(&self.scope, &mut read);
        held.met(&read)
    }

    /// Sends the question of a strict begin, and does not wait for its answer.
    pub(crate) fn send_question(&self, begin: &mut Begin) -> Result<(), Error> {
        // An answer given at once is given again in `holds_since`.
        self.ask(|home, now| {
            drop(home.may_begin(now, begin));
            Some(Ok(()))
        })
    }

    /// Says whether all that this transaction read is current at a moment after a begin asked its question.
    pub(crate) fn holds_since(&self, begin: &mut Begin) -> Result<bool, Error> {
        begun(self.port, self.until, begin, |home, now, begin| {
            let may_begin = home.may_begin(now, begin)?;
            if let (Ok(_), Some(held)) = (&may_begin, begin.held.clone())
                && let Some(met) = self.met(home, &held)
            {
                let since = *begin.held_since.get_or_insert(now);
                match settled_from(&met, home.across()?) {
                    Some(Ok(_)) => {}
                    Some(Err(e)) => return Some(Err(e)),
                    None if begin.is_patient() || now.since_us(since) <= held.patience_us => return None,
                    None => return Some(Err(held.is_late())),
                }
            }
            Some(may_begin.and_then(|_| match home.recheck(&self.scope) {
                Ok(()) => Ok(true),
                Err(Error::Conflict(_)) => Ok(false),
                Err(e) => Err(e),
            }))
        })
    }
}

/// A stamp from which on all parts that were met are settled.
fn settled_from(met: &Met, across: &mut dyn Across) -> Option<Result<Stamp, Error>> {
    let prepares = match met {
        Met::All(upto) => return across.settled_from(*upto),
        Met::These(prepares) => prepares,
    };
    let mut from = Stamp::ZERO;
    for prepared in prepares {
        match across.one_settled_from(*prepared)? {
            Ok(one) => from = from.max(one),
            Err(e) => return Some(Err(e)),
        }
    }
    Some(Ok(from))
}

/// An object in stored form, header included, with the layout of its class, for a tool that has no type for
/// that; none if the reference names nothing. It comes from the cache if it is there, and counts as read.
///
/// # Errors
/// As [`Tx::get`]; `Corrupt` if it is not what its class says; `Invalid` inside of a server.
pub fn stored(tx: &Tx<'_>, oref: Oref) -> Result<Option<StoredObject>, Error> {
    if oref.is_null() {
        return Ok(None);
    }
    let found = tx.search(oref, |home, _, search| home.stored(&tx.scope, oref, search))?;
    if let Some((layout, object)) = &found {
        let body = object.get(HEADER_BYTES..).unwrap_or_default();
        layout.check(body).map_err(|e| Error::Corrupt(format!("{oref}: {e}")))?;
    }
    Ok(found)
}

/// Kept references that a transaction writes into objects.
pub(super) struct Named {
    all: Vec<(Oref, Stamp)>,
    /// The number of references before the first that may be there twice.
    distinct: usize,
    /// The oldest state in which one of them was judged.
    judged: Stamp,
}

impl Default for Named {
    fn default() -> Named {
        Named { all: Vec::new(), distinct: 0, judged: Stamp::MAX }
    }
}

impl Named {
    /// An object that is written again and again names the same ones each time: they are kept once, or twice.
    fn add(&mut self, named: impl IntoIterator<Item = (Oref, Stamp)>) {
        self.all.extend(named);
        if self.all.len() > 2 * self.distinct + 64 {
            self.all.sort_unstable();
            self.all.dedup();
            self.distinct = self.all.len();
        }
    }
}

/// Progress of a look at kept references.
#[derive(Default)]
pub(super) struct Judging {
    /// The snapshot since the first of them.
    snapshot: Stamp,
    next: usize,
    search: Option<Search>,
}
