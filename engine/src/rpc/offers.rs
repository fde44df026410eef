//! The methods that a server runs.

use std::fmt;
use std::sync::Arc;

use tercel_wire::interface::{Fit, Interface, InterfaceSchema, Method};
use tercel_wire::record::{Any, Ref};

use super::versions::{Converting, Version};
use super::{CallKey, Given};
use crate::error::Error;
use crate::txn::Tx;

/// Runs a method of an object, by its number: gives how it ended, with what it gave appended. For derived
/// code.
pub type Run = fn(&Tx<'_>, usize, Ref<Any>, &Given<'_>, &mut Vec<u8>) -> Result<Ended, Error>;

/// Gives the result that is kept under the key of a call, or runs the body and keeps its result with these
/// words on its layout, in the transaction of the method. Of an error of the body nothing is kept.
pub type Once =
    fn(&Tx<'_>, CallKey<'_>, &[u8], &mut dyn FnMut() -> Result<Vec<u8>, Error>) -> Result<KeptResult, Error>;

/// A result that is kept under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptResult {
    /// The result.
    pub result: Vec<u8>,
    /// The words on its layout that it was kept with.
    pub layout: Vec<u8>,
}

/// The end of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Returned,
    /// The method failed by its own decision.
    Failed,
    /// A procedure was not begun: its caller is of a version that cannot call it so. The reason was appended.
    NotBegun,
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

/// The methods of an interface at a server, or of a version of one.
#[derive(Debug, Clone)]
struct Offer {
    /// The interface as its callers know it.
    interface: Arc<Interface>,
    methods: Methods,
    version: Option<Version>,
}

/// All methods that a server runs, by number, and behind them the versions of their callers. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Offers {
    all: Arc<Vec<Offer>>,
    /// The number of interfaces without versions.
    own: usize,
    once: Option<Once>,
}

/// The way in which a method is run here.
#[derive(Clone, Copy)]
pub(crate) struct Runs<'a> {
    /// The interface and the method as the caller knows them.
    pub interface: &'a Interface,
    pub method: &'a Method,
    pub run: Run,
    /// The method's number there.
    pub number: usize,
    /// Set for a caller of another version, whose arguments and result are converted.
    pub converting: Option<Converting<'a>>,
}

impl Offers {
    /// No methods yet, and a way to keep the results of calls with keys, which are refused without one.
    pub fn keeping(once: Once) -> Offers {
        Offers { once: Some(once), ..Offers::default() }
    }

    /// Adds one more interface of a class. The last of equal ones counts. Versions come later.
    pub fn with(&self, methods: Methods) -> Offers {
        let interface = Interface::of(methods.schema, methods.class);
        let mut all = Vec::clone(&self.all);
        all.retain(|of| (&of.interface.name, &of.interface.class) != (&interface.name, &interface.class));
        all.push(Offer { interface: Arc::new(interface), methods, version: None });
        Offers { own: all.len(), all: Arc::new(all), once: self.once }
    }

    /// The interface of a name, for a class, with its number.
    pub(crate) fn find(&self, name: &str, class: &str) -> Option<(u16, &Arc<Interface>)> {
        let at = self.interfaces().position(|i| i.name == name && i.class == class)?;
        Some((u16::try_from(at).ok()?, &self.all[at].interface))
    }

    /// Has a version of an interface stand under the next number.
    pub(crate) fn add_version(&mut self, of: u16, version: Version, stands: Interface) {
        let methods = self.all[usize::from(of)].methods;
        let offer = Offer { interface: Arc::new(stands), methods, version: Some(version) };
        Arc::make_mut(&mut self.all).push(offer);
    }

    /// Leaves a version without methods.
    pub(crate) fn empty_version(&mut self, at: u16) {
        if let Some(offer) = Arc::make_mut(&mut self.all).get_mut(usize::from(at)) {
            let Interface { name, class, .. } = &*offer.interface;
            let (name, class) = (name.clone(), class.clone());
            offer.interface = Arc::new(Interface { name, class, methods: Vec::new() });
            offer.version = None;
        }
    }

    /// The number of all, versions included.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The interface of a number.
    pub(crate) fn get(&self, number: u16) -> Option<&Interface> {
        self.all.get(number as usize).map(|of| &*of.interface)
    }

    /// The way in which a method of that interface is run.
    ///
    /// # Errors
    /// `Schema` if callers of that version cannot call it, or there is none.
    pub(crate) fn runs(&self, number: u16, method: u16) -> Result<Runs<'_>, Error> {
        let none = || Error::Schema("the server has no such method: bind anew".into());
        let Offer { interface, methods, version } = self.all.get(usize::from(number)).ok_or_else(none)?;
        let number = usize::from(method);
        let method = interface.methods.get(number).ok_or_else(none)?;
        let own = Runs { interface, method, run: methods.run, number, converting: None };
        let Some(version) = version else { return Ok(own) };
        match version.fit(number).ok_or_else(none)? {
            Fit::Same(number) => Ok(Runs { number: usize::from(*number), ..own }),
            Fit::Converts(number) => {
                let converting = Some(Converting { own: version.own(*number), caller: method });
                Ok(Runs { number: usize::from(*number), converting, ..own })
            }
            Fit::Refused(why) => Err(Error::Schema(why.clone())),
        }
    }

    pub(crate) fn once(&self) -> Option<Once> {
        self.once
    }

    /// All of them.
    pub fn interfaces(&self) -> impl ExactSizeIterator<Item = &Interface> {
        self.with_versions().take(self.own)
    }

    /// All of them and the versions of their callers, by number.
    pub(crate) fn with_versions(&self) -> impl ExactSizeIterator<Item = &Interface> {
        self.all.iter().map(|of| &*of.interface)
    }
}
