//! Named entry points: a list of small objects whose head every space has.

use tercel_wire::class::ROOT_HEAD;
use tercel_wire::id::Oref;
use tercel_wire::record::{Any, Class, Ref, Target, Text};

use super::Tx;
use crate::error::{Bound, Error};
use crate::txn::object::{Field, Obj, Object, Root};

/// Roots of a space: the list is walked, so it stays short.
const ROOTS_MAX: usize = 1_024;

/// A root, behind the element of the list that refers to it.
type ListedRoot<'t> = (Obj<'t, Root>, Obj<'t, Root>);

/// Bytes of a root's name.
const NAME_BYTES_MAX: usize = 255;

impl<'c> Tx<'c> {
    /// The object that was stored under `name`.
    ///
    /// # Errors
    /// `NotFound` if nothing was; as [`Tx::get`].
    pub fn get_root<'t, T: Object>(&'t self, name: &str) -> Result<Obj<'t, T>, Error> {
        self.find_root(name)?.ok_or_else(|| Error::NotFound(format!("the root `{name}`")))
    }

    /// The object that was stored under `name`; none if nothing was.
    ///
    /// # Errors
    /// As [`Tx::get`]; `NotFound` if the object does not exist.
    pub fn find_root<'t, T: Object>(&'t self, name: &str) -> Result<Option<Obj<'t, T>>, Error> {
        self.get_root_ref(name)?.map(|r| self.get(r)).transpose()
    }

    /// The reference that was stored under `name`, as a value; none if nothing was.
    ///
    /// # Errors
    /// As [`Tx::get`].
    pub fn get_root_ref<T: Target>(&self, name: &str) -> Result<Option<Ref<T>>, Error> {
        Ok(self.walk_roots(|found, _| found == name)?.map(|(_, root)| target(&root).cast()))
    }

    /// Stores `r` under `name`, in place of an earlier one. A null reference removes the root.
    ///
    /// # Errors
    /// As [`Tx::create`]; `Full` if the space has 1,024 roots; `Invalid` if the name is not of 1 to 255
    /// bytes, or reads as a reference does (`2.0`): tools that take either would find another object by it.
    pub fn set_root<T: Target>(&self, name: &str, r: Ref<T>) -> Result<(), Error> {
        if r.is_null() {
            return self.remove_root(name).map(drop);
        }
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "the name of a root has 1 to {NAME_BYTES_MAX} bytes, and this one has {}",
                name.len()
            )));
        }
        if reads_as_reference(name) {
            return Err(Error::Invalid(format!(
                "the name of a root must not read as a reference, PAGE.SLOT, as `{name}` does"
            )));
        }
        let mut others = 0;
        let found = self.walk_roots(|found, _| {
            others += usize::from(found != name);
            found == name
        })?;
        if let Some((_, root)) = found {
            return root.edit()?.set(1, Root::SCHEMA.offset(1), r.cast::<Any>());
        }
        if others >= ROOTS_MAX {
            return Err(Error::Full(Bound::Roots { max: ROOTS_MAX }));
        }
        let head = self.get(Ref::<Root>::new(ROOT_HEAD))?;
        let node = self.create(&Root { name: Text::from(name), target: r.cast(), next: next(&head) })?;
        head.edit()?.set(2, Root::SCHEMA.offset(2), node)
    }

    /// Removes a root; the object stays, for those that refer to it. Says whether there was one.
    ///
    /// # Errors
    /// As [`Tx::get`] and [`Tx::edit`].
    pub fn remove_root(&self, name: &str) -> Result<bool, Error> {
        let Some((before, root)) = self.walk_roots(|found, _| found == name)? else { return Ok(false) };
        before.edit()?.set(2, Root::SCHEMA.offset(2), next(&root))?;
        Ok(true)
    }

    /// The names of all roots, with their references.
    ///
    /// # Errors
    /// As [`Tx::get`].
    pub fn roots(&self) -> Result<Vec<(String, Ref<Any>)>, Error> {
        let mut out = Vec::new();
        self.walk_roots(|name, root| {
            out.push((name.to_owned(), target(root)));
            false
        })?;
        Ok(out)
    }

    /// The first root for which `stop` says so.
    fn walk_roots<'t>(
        &'t self,
        mut stop: impl FnMut(&str, &Obj<'t, Root>) -> bool,
    ) -> Result<Option<ListedRoot<'t>>, Error> {
        let mut before = self.get(Ref::<Root>::new(ROOT_HEAD))?;
        // The end of the list stands after the last root.
        for _ in 0..=ROOTS_MAX {
            let at = next(&before);
            if at.is_null() {
                return Ok(None);
            }
            let root = self.get(at)?;
            if stop(&Text::got(&*root, Root::SCHEMA.offset(0))?, &root) {
                return Ok(Some((before, root)));
            }
            before = root;
        }
        Err(Error::Corrupt(format!("the list of roots has more than {ROOTS_MAX}")))
    }
}

/// Says whether a name has the form PAGE.SLOT, be such an object possible or not.
fn reads_as_reference(name: &str) -> bool {
    if name.parse::<Oref>().is_ok() {
        return true;
    }
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    name.split_once('.').is_some_and(|(page, slot)| is_number(page) && is_number(slot))
}

fn next(root: &Obj<'_, Root>) -> Ref<Root> {
    <Ref<Root> as Field>::got(&**root, Root::SCHEMA.offset(2)).reference()
}

fn target(root: &Obj<'_, Root>) -> Ref<Any> {
    <Ref<Any> as Field>::got(&**root, Root::SCHEMA.offset(1)).reference()
}
