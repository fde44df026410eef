//! The interface that a server lends to the transactions inside of it.

use std::sync::Arc;

use tercel_wire::id::{ClassId, ClientId, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::layout::Layout;
use tercel_wire::message::{Leased, Outcome};
use tercel_wire::token::Token;

use crate::error::Error;
use crate::txn::{Hold, Ticket};

/// A server, as its own transactions see it: its visible state and one session of its own.
///
/// It never waits: what takes time is begun, answered with `None` or [`Image::Missing`], and asked for again after something
/// has happened. A question that is repeated while it is being answered is the same question. Between two calls of one step
/// (see [`super::Local::over`]) the visible state stays what it is.
pub trait Source {
    /// The client and the view that submit operations. A change of the answer means a new session: the grants of the earlier
    /// session are gone, and its operations without an answer are unknown.
    ///
    /// # Errors
    /// `Unavailable` if the server cannot serve transactions now.
    fn session(&mut self) -> Result<Session, Error>;

    /// The state that may be seen: everything up to here is durable. Never goes back.
    fn visible(&self) -> Stamp;

    /// Asks the sequencer whether this server still leads. Returns the number of the question, higher than any before it.
    fn ask(&mut self) -> u64;

    /// The last question that was answered, once all that was acknowledged before it is visible; none if none was yet.
    fn echoed(&self) -> Option<u64>;

    /// Whether the token's state is visible.
    ///
    /// # Errors
    /// `OtherHistory` if it is of another space, or of another history of this one.
    fn holds(&mut self, token: Token) -> Result<bool, Error>;

    /// Calls `see` with the reference of each object that a commit after `since` and up to [`Source::visible`] wrote or
    /// made. `false` if not all of them are known any more; then `see` need not have been called.
    fn changes(&mut self, since: Stamp, see: &mut dyn FnMut(Oref)) -> bool;

    /// A page as it is at [`Source::visible`].
    fn image(&mut self, page: PageId) -> Image;

    /// A class of the catalogue; `None` if the space does not have it.
    fn class(&mut self, id: ClassId) -> Option<Arc<Layout>>;

    /// The youngest class of this layout, defined and durable.
    ///
    /// # Errors
    /// `Schema` if the space's class of that name cannot become this one; `Full`.
    fn define(&mut self, layout: &Layout) -> Option<Result<ClassId, Error>>;

    /// Empty pages to make objects in: at least one and at most `count`, granted to the session as a lease is. In the pages of
    /// `done` it makes nothing more; each comes with its first slot that was given to no object.
    ///
    /// # Errors
    /// `Full` if the space has no pages left.
    fn grant(&mut self, count: u16, done: &[(PageId, u16)]) -> Option<Result<Leased, Error>>;

    /// Takes an operation of the session: `effects` is [`tercel_wire::message::CommitEffects`] as bytes, judged as those of any
    /// client. `None`, and nothing is taken, if there is no room for it now.
    ///
    /// # Errors
    /// `Unavailable` if it is not taken and will not be.
    fn submit(&mut self, op: OpId, effects: &[u8]) -> Option<Result<(), Error>>;

    /// Takes what a method has written that was run here for a caller, with what it returns. `None`, and nothing is taken, if
    /// there is no room for it now; `false` if it met what is not visible yet. What is taken may wait to be ordered, and the
    /// `holds` are kept until then.
    ///
    /// # Errors
    /// `Unavailable` if it is not taken and will not be.
    fn submit_call(
        &mut self,
        ticket: Ticket,
        reply: &[u8],
        effects: &[u8],
        holds: &[Arc<Hold>],
    ) -> Option<Result<bool, Error>>;

    /// Takes the answer to an operation, once it is there: of a commit, once it is durable.
    fn outcome(&mut self, op: OpId) -> Option<Outcome>;
}

/// The name under which transactions inside of a server are submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    pub space: SpaceId,
    pub client: ClientId,
    /// The view that it began in.
    pub view: ViewId,
}

/// A page, if it is at hand.
#[derive(Debug, Clone)]
pub enum Image {
    /// Its bytes; none if nothing that is visible was ever written to it.
    Here(Option<Arc<Vec<u8>>>),
    /// It is being read.
    Missing,
    /// It cannot be had.
    Failed(Error),
}
