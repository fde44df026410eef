//! Versions: the interfaces of callers that were built at another time, and how this server runs them.
//!
//! A version stands among the interfaces of the server under a number of its own, with the layouts of its
//! callers. A call by that number is decoded, judged and queued as any other. Only the step that runs the
//! method is another one: it converts the arguments before, and the result behind. A call by the number of an
//! interface of the server itself meets nothing of this.

use std::sync::Arc;

use tercel_wire::interface::{Fit, Interface, Method};
use tercel_wire::layout::Layout;
use tercel_wire::payload::Payload;

use super::{Context, Ended, Given, ItemPort, ReplyBody};
use crate::error::Error;
use crate::limits;

/// Runs a procedure, by its number: gives how it ended, with what it gave appended.
pub(super) type RunProcedure =
    dyn Fn(&Context<'_>, usize, &Given<'_>, &mut ReplyBody<'_>) -> Result<Ended, Error> + Send + Sync;

/// A version of an interface.
#[derive(Debug, Clone)]
pub(crate) struct Version {
    /// The interface as this server has it.
    own: Arc<Interface>,
    /// The way in which each method of the version is run.
    fits: Arc<[Fit]>,
}

impl Version {
    /// The version of callers with this interface, and the interface under which it stands at the server.
    pub(crate) fn new(own: &Arc<Interface>, caller: &Interface) -> (Version, Interface) {
        let fits = own.fit(caller);
        let mut stands = caller.clone();
        for (method, fit) in stands.methods.iter_mut().zip(&fits) {
            if let Fit::Same(number) | Fit::Converts(number) = fit {
                // The thread on which it runs is the server's choice.
                method.mode = own.methods[usize::from(*number)].mode;
            }
        }
        (Version { own: own.clone(), fits: fits.into() }, stands)
    }

    /// The way in which a method is run.
    pub(crate) fn fit(&self, method: usize) -> Option<&Fit> {
        self.fits.get(method)
    }

    /// The numbers of all methods here, if each is the same at both ends.
    pub(crate) fn same(&self) -> Option<Vec<u16>> {
        let same = |fit: &Fit| if let Fit::Same(number) = fit { Some(*number) } else { None };
        self.fits.iter().map(same).collect()
    }

    /// The reason why a method cannot be called.
    pub(crate) fn refused(&self, method: usize) -> Option<&str> {
        match self.fits.get(method)? {
            Fit::Refused(why) => Some(why),
            Fit::Same(_) | Fit::Converts(_) => None,
        }
    }

    /// Why no method can be called; none if any can.
    pub(crate) fn refused_whole(&self) -> Option<&str> {
        let can_be_called = |fit: &Fit| !matches!(fit, Fit::Refused(_));
        if self.fits.iter().any(can_be_called) { None } else { self.refused(0) }
    }

    /// The method as this server has it.
    pub(crate) fn own(&self, number: u16) -> &Method {
        &self.own.methods[usize::from(number)]
    }

    /// The function that runs the procedures of the version, by one that runs those of the service.
    pub(super) fn serve(self, stands: Arc<Interface>, run: Arc<RunProcedure>) -> Arc<RunProcedure> {
        Arc::new(move |cx, method, given, out| match self.fit(method) {
            Some(Fit::Same(number)) => run(cx, usize::from(*number), given, out),
            Some(Fit::Converts(number)) => {
                let converting = Converting { own: self.own(*number), caller: &stands.methods[method] };
                converting.serve(cx, given, out, |cx, given, out| run(cx, usize::from(*number), given, out))
            }
            Some(Fit::Refused(why)) => Ok(not_begun(why, out)),
            None => Err(super::no_method(&self.own.name)),
        })
    }
}

/// Appends why a procedure is not begun.
fn not_begun(why: &str, out: &mut ReplyBody<'_>) -> Ended {
    out.bytes().extend_from_slice(why.as_bytes());
    Ended::NotBegun
}

/// A method whose layouts are others at the caller than here.
#[derive(Clone, Copy)]
pub(crate) struct Converting<'a> {
    pub own: &'a Method,
    pub caller: &'a Method,
}

impl Converting<'_> {
    /// Makes of a caller's arguments those that the method takes here.
    ///
    /// # Errors
    /// `Schema` if it has a variant that is not known here; `Full` if it is too large.
    pub(crate) fn take(&self, given: &Payload<'_>) -> Result<Vec<u8>, Error> {
        let mut taken = Vec::new();
        let converted = given.convert(&self.caller.takes, &self.own.takes, limits::CALL_MAX, &mut taken);
        converted.map_err(|e| Error::Schema(self.says("what it takes", &e.into())))?;
        Ok(taken)
    }

    /// Appends what the method has come to as its caller reads it.
    ///
    /// # Errors
    /// `Failed` if it has a variant that the caller does not know, or is too large: the method was executed.
    pub(crate) fn give(&self, ended: Ended, given: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let (what, from, to) = match ended {
            Ended::Returned => ("its result", &self.own.gives, &self.caller.gives),
            Ended::Failed => ("its error", &self.own.fails, &self.caller.fails),
            Ended::NotBegun => return Ok(()),
        };
        convert((from, given), to, out).map_err(|e| Error::Failed(self.says(what, &e)))
    }

    /// An error of the conversion, with the method that it is of.
    fn says(&self, what: &str, e: &Error) -> String {
        format!("`{}`, called by a program of another version: {what}: {}", self.own.name, e.what())
    }

    /// Runs a procedure.
    fn serve(
        self,
        cx: &Context<'_>,
        given: &Given<'_>,
        out: &mut ReplyBody<'_>,
        run: impl FnOnce(&Context<'_>, &Given<'_>, &mut ReplyBody<'_>) -> Result<Ended, Error>,
    ) -> Result<Ended, Error> {
        let taken = match self.take(given.payload()) {
            Ok(taken) => taken,
            Err(e) => return Ok(not_begun(&e.what(), out)),
        };
        let given = Given::new(Payload::decode(&taken, &self.own.takes).map_err(super::given::damaged)?);
        let mut result = Vec::new();
        let mut body = ReplyBody::new(&mut result);
        let ended = match self.has_other_items() {
            false => run(cx, &given, &mut body)?,
            true => {
                let layouts = |m: &Method| (m.input.clone(), m.output.clone());
                let (own, caller, port) = (layouts(self.own), layouts(self.caller), cx.items()?);
                let items: Arc<dyn ItemPort> = Arc::new(ConvertedItems { own, caller, port });
                cx.over(&items, |cx| run(cx, &given, &mut body))?
            }
        };
        self.give(ended, &result, out.bytes())?;
        Ok(ended)
    }

    fn has_other_items(&self) -> bool {
        self.own.input != self.caller.input || self.own.output != self.caller.output
    }
}

/// Appends a payload of one layout as one of another.
///
/// # Errors
/// `Schema` if it has a variant that the other does not have; `Full` if it is too large.
pub(crate) fn convert((from, bytes): (&Layout, &[u8]), to: &Layout, out: &mut Vec<u8>) -> Result<(), Error> {
    let payload = Payload::decode(bytes, from).map_err(super::given::damaged)?;
    Ok(payload.convert(from, to, limits::CALL_MAX, out)?)
}

/// Appends a result that was kept, with the words on its layout, as one of the layout `to`. Without words it
/// is of that layout.
///
/// # Errors
/// `Failed` if it is of a version that cannot become one of the layout: what it is the result of was
/// executed.
/// `Corrupt` if it is damaged.
pub fn read_kept((words, kept): (&[u8], &[u8]), to: &Layout, out: &mut Vec<u8>) -> Result<(), Error> {
    let from = match words.is_empty() {
        true => None,
        false => Some(Layout::decode(words).map_err(super::given::damaged)?),
    };
    match from.filter(|from| from != to) {
        None => out.extend_from_slice(kept),
        Some(from) => {
            let other =
                |why: &dyn std::fmt::Display| Error::Failed(format!("it is of another version: {why}"));
            to.fits(&from).map_err(|misfit| other(&misfit))?;
            convert((&from, kept), to, out).map_err(|e| other(&e.what()))?;
        }
    }
    Ok(())
}

/// The streams of a call whose items are others at the caller than here.
struct ConvertedItems {
    /// The layouts of input and output.
    own: (Layout, Layout),
    caller: (Layout, Layout),
    port: Arc<dyn ItemPort>,
}

impl ItemPort for ConvertedItems {
    fn send(&self, item: Vec<u8>) -> Result<(), Error> {
        let mut converted = Vec::new();
        convert((&self.own.1, &item), &self.caller.1, &mut converted)?;
        self.port.send(converted)
    }

    fn next(&self) -> Result<Option<Vec<u8>>, Error> {
        let Some(item) = self.port.next()? else { return Ok(None) };
        let mut converted = Vec::new();
        convert((&self.caller.0, &item), &self.own.0, &mut converted)?;
        Ok(Some(converted))
    }

    fn uses_space(&self) {
        self.port.uses_space();
    }
}
