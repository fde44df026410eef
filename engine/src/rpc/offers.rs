//! The methods that a server runs.

use std::fmt;
use std::sync::Arc;

use tercel_wire::interface::{Interface, InterfaceSchema};
use tercel_wire::record::{Any, Ref};

use super::{CallKey, Given};
use crate::error::Error;
use crate::txn::Tx;

/// Runs a method of an object, by its number: gives how it ended, with what it gave appended. For derived
/// code.
pub type Run = fn(&Tx<'_>, usize, Ref<Any>, &Given<'_>, &mut Vec<u8>) -> Result<Ended, Error>;

/// Gives the result that is kept under the key of a call, or runs the body and keeps its result, in the
/// transaction of the method. Of an error of the body nothing is kept.
pub type Once =
    fn(&Tx<'_>, CallKey<'_>, &mut dyn FnMut() -> Result<Vec<u8>, Error>) -> Result<Vec<u8>, Error>;

/// The end of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Returned,
    /// The method failed by its own decision.
    Failed,
}

/// The methods of one interface for the objects of one class. `#[interface]` makes it of each implementation.
#[derive(Clone, Copy)]
pub struct Methods {
    pub(super) schema: &'static InterfaceSchema,
    pub(super) class: &'static str,
    pub(super) run: Run,
}

impl Methods {
    /// For derived code.
    #[doc(hidden)]
    pub const fn new(schema: &'static InterfaceSchema, class: &'static str, run: Run) -> Methods {
        Methods { schema, class, run }
    }
}

impl fmt::Debug for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}", self.schema.name, self.class)
    }
}

/// All methods that a server runs, by number. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Offers {
    all: Arc<Vec<(Interface, Methods)>>,
    once: Option<Once>,
}

impl Offers {
    /// No methods yet, and a way to keep the results of calls with keys, which are refused without one.
    pub fn keeping(once: Once) -> Offers {
        Offers { once: Some(once), ..Offers::default() }
    }

    /// Adds one more interface of a class. The last of equal ones counts.
    pub fn with(&self, methods: Methods) -> Offers {
        let interface = Interface::of(methods.schema, methods.class);
        let mut all = Vec::clone(&self.all);
        all.retain(|(i, _)| (&i.name, &i.class) != (&interface.name, &interface.class));
        all.push((interface, methods));
        Offers { all: Arc::new(all), once: self.once }
    }

    /// The interface of a name, for a class, with its number.
    pub(crate) fn find(&self, name: &str, class: &str) -> Option<(u16, &Interface)> {
        let at = self.all.iter().position(|(i, _)| i.name == name && i.class == class)?;
        Some((u16::try_from(at).ok()?, &self.all[at].0))
    }

    /// The interface of a number.
    pub(crate) fn get(&self, number: u16) -> Option<&Interface> {
        self.all.get(number as usize).map(|(interface, _)| interface)
    }

    pub(crate) fn run(&self, number: u16) -> Option<Run> {
        self.all.get(number as usize).map(|(_, methods)| methods.run)
    }

    pub(crate) fn once(&self) -> Option<Once> {
        self.once
    }

    /// All of them.
    pub fn interfaces(&self) -> impl ExactSizeIterator<Item = &Interface> {
        self.all.iter().map(|(interface, _)| interface)
    }
}
