//! Named entry points: a list of small objects whose head every space has.

use tercel_wire::class::ROOT_HEAD;
use tercel_wire::record::{Class, Ref, Target, Text};

use super::Tx;
use crate::error::Error;
use crate::txn::object::{Field, Obj, Root};

/// Roots of a space: the list is walked, so it stays short.
const ROOTS_MAX: usize = 1_024;

impl<'c> Tx<'c> {
    /// The object that was stored under `name`; none if nothing was.
    ///
    /// # Errors
    /// As [`Tx::get`].
    pub fn root<T: Target>(&self, name: &str) -> Result<Option<Ref<T>>, Error> {
        Ok(self.walk_roots(|found, _| found == name)?.map(|root| target(&root).cast()))
    }

    /// Stores `r` under `name`, in place of what was there.
    ///
    /// # Errors
    /// As [`Tx::create`]; `Full` if the space has 1,024 roots.
    pub fn set_root<T: Target>(&self, name: &str, r: Ref<T>) -> Result<(), Error> {
        let mut others = 0;
        let found = self.walk_roots(|found, _| {
            others += usize::from(found != name);
            found == name
        })?;
        if let Some(root) = found {
            return root.edit()?.set(1, Root::SCHEMA.offset(1), r.cast::<tercel_wire::record::Any>());
        }
        if others >= ROOTS_MAX {
            return Err(Error::Full(format!("a space has at most {ROOTS_MAX} roots: keep more in a map")));
        }
        let head = self.get(Ref::<Root>::new(ROOT_HEAD))?;
        let node = self.create(&Root { name: Text::from(name), target: r.cast(), next: next(&head) })?;
        head.edit()?.set(2, Root::SCHEMA.offset(2), node)
    }

    /// The names of all roots.
    ///
    /// # Errors
    /// As [`Tx::get`].
    pub fn roots(&self) -> Result<Vec<(String, Ref<tercel_wire::record::Any>)>, Error> {
        let mut out = Vec::new();
        self.walk_roots(|name, root| {
            out.push((name.to_owned(), target(root)));
            false
        })?;
        Ok(out)
    }

    fn walk_roots<'t>(
        &'t self,
        mut stop: impl FnMut(&str, &Obj<'t, Root>) -> bool,
    ) -> Result<Option<Obj<'t, Root>>, Error> {
        let head = self.get(Ref::<Root>::new(ROOT_HEAD))?;
        let mut at = next(&head);
        // The end of the list stands behind the last one.
        for _ in 0..=ROOTS_MAX {
            if at.is_null() {
                return Ok(None);
            }
            let root = self.get(at)?;
            if stop(&Text::got(&*root, Root::SCHEMA.offset(0))?, &root) {
                return Ok(Some(root));
            }
            at = next(&root);
        }
        Err(Error::Corrupt(format!("the list of roots has more than {ROOTS_MAX}")))
    }
}

fn next(root: &Obj<'_, Root>) -> Ref<Root> {
    <Ref<Root> as Field>::got(&**root, Root::SCHEMA.offset(2)).reference()
}

fn target(root: &Obj<'_, Root>) -> Ref<tercel_wire::record::Any> {
    <Ref<tercel_wire::record::Any> as Field>::got(&**root, Root::SCHEMA.offset(1)).reference()
}
