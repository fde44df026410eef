//! Far references as fields.

use tercel_wire::far::Far;
use tercel_wire::record::Target;

use super::{Elements, Field, ListField, Object, RawObj, Stored, fixed, load_numbers, numbers};
use crate::error::Error;

impl<U: Target> Field for Far<U> {
    type Got<'a, 't, T: Object>
        = Far<U>
    where
        't: 'a;
    #[inline(always)]
    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Far<U> {
        obj.view.fixed::<Far<U>>(at)
    }
    fn load(stored: &Stored<'_>, at: usize) -> Result<Far<U>, Error> {
        Ok(fixed(&stored.body, at))
    }
}

impl<U: Target> ListField for Far<U> {
    type Items<'a, 't, T: Object>
        = Elements<'a, 't, T, Far<U>>
    where
        't: 'a;
    fn items<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Elements<'a, 't, T, Far<U>> {
        Elements::new(obj, at)
    }
    fn load_items(stored: &Stored<'_>, at: usize) -> Result<Vec<Far<U>>, Error> {
        load_numbers(stored, at)
    }
    fn read_items<T: Object>(obj: &RawObj<'_, T>, at: usize) -> Result<Vec<Far<U>>, Error> {
        numbers(obj, at)
    }
}
