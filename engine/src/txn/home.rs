//! Where a transaction runs: what [`Tx`](super::Tx) asks of whatever keeps the objects, hits excepted.
//!
//! A home is a machine: it never waits. A call that cannot be answered yet answers `None` (or
//! [`Located::Wait`]), has asked for what is missing, and is repeated after something has happened. A remote
//! client is a home; so is a server, for the transactions inside of it ([`super::local`]).
//!
//! The invariant: all that a transaction was given is of one state, the scope's snapshot, or the next call
//! says `Conflict`.

use std::sync::Arc;

use tercel_heap::{RefView, Scope, TypeKey};
use tercel_wire::id::{ClassId, ClientId, OpId, Oref, SpaceId, Stamp};
use tercel_wire::layout::Layout;
use tercel_wire::message::{Outcome, Prepared, Settle};
use tercel_wire::token::Token;
use tercel_wire::vector::Vector;

use super::held::SettledFrom;
use super::search::Search;
use super::{Begin, Begun};
use crate::consult::Consulted;
use crate::error::Error;
use crate::time::Now;
use crate::txn::{Caller, Hold, Place, Ticket};

/// An object in stored form, header included, and the layout of its class.
pub type StoredObject = (Arc<Layout>, Vec<u8>);

/// The home of transactions. `None` means: call again when something has happened.
pub trait Home {
    /// Opens the read side of a transaction. Waits until the home shows its own last commit, and a state as
    /// new as `begin` demands; `begin` is kept between the calls of one begin.
    ///
    /// # Errors
    /// `Unavailable` if the state may be too old to read; `OtherHistory`; `Full` if too many transactions are
    /// open.
    fn begin(&mut self, now: Now, begin: &mut Begin) -> Option<Result<Begun, Error>>;

    /// Waits as [`Home::begin`] does, and opens nothing: everything acknowledged before the moment that it
    /// gives, if one is known, is in the state that the home shows.
    ///
    /// # Errors
    /// As [`Home::begin`], but for `Full`.
    fn may_begin(&mut self, now: Now, begin: &mut Begin) -> Option<Result<Option<Now>, Error>>;

    /// A stamp that this home has shown or was answered, to pass on.
    fn token(&mut self, stamp: Stamp) -> Token;

    /// The class that a type of the program is written as, defined in the space if need be.
    ///
    /// # Errors
    /// `Schema` if the space or the program has another class of that name; `Full`; `Unavailable`.
    fn class_for(&mut self, now: Now, key: TypeKey) -> Option<Result<(ClassId, Arc<Layout>), Error>>;

    /// Makes an object readable through the scope. `search` is kept between the calls of one search.
    fn locate(&mut self, now: Now, wanted: &Wanted<'_>, search: &mut Search) -> Located;

    /// The class of the object that a reference names which was read at `stamp`, whatever it is. It does not
    /// count as read unless there is none.
    ///
    /// # Errors
    /// `NotFound`, `Conflict`, `Corrupt`, and as [`Home::locate`].
    fn class_at(
        &mut self,
        now: Now,
        scope: &Scope,
        oref: Oref,
        stamp: Stamp,
        search: &mut Search,
    ) -> Option<Result<ClassId, Error>>;

    /// An object of whatever class as it is stored, unchecked; none if the reference names none. It counts as
    /// read.
    ///
    /// # Errors
    /// `Invalid` if this home has no such reads; `Conflict`, `Corrupt`, and as [`Home::locate`].
    fn stored(
        &mut self,
        _scope: &Scope,
        _oref: Oref,
        _search: &mut Search,
    ) -> Option<Result<Option<StoredObject>, Error>> {
        Some(Err(Error::Invalid("inside of a server objects are read by their classes".into())))
    }

    /// A place for a new object of that many bytes, and the birth of its page. The scope's snapshot is at or
    /// above the birth then: it has taken over a newer state if need be.
    ///
    /// # Errors
    /// `Conflict` if what the scope read does not hold in that state; `Full` if the object is larger than a
    /// page or the space has no pages left; `Unavailable`.
    fn allocate(&mut self, now: Now, scope: &Scope, bytes: usize) -> Option<Result<Place, Error>>;

    /// Gives the hold on the page of a place, which keeps the page from being given back. `None` if this home
    /// may no longer make an object in the place, whose reference was read at `stamp`.
    fn hold(&self, place: Oref, stamp: Stamp) -> Option<Arc<Hold>>;

    /// An object was made in a place, or may have been: none will be made there any more.
    fn filled(&mut self, place: Oref);

    /// The number of ended sessions in which places were given out: places of an earlier session are lost.
    fn sessions_ended(&self) -> u64;

    /// Looks whether everything that the scope read still holds, and takes the newest state as its snapshot
    /// if so.
    ///
    /// # Errors
    /// `Conflict` if something changed; `Full` if the scope read more than the home can remember.
    fn recheck(&mut self, scope: &Scope) -> Result<(), Error>;

    /// The stamp of the state that everything the scope read is of: the base of a commit.
    fn base(&self, scope: &Scope) -> Stamp;

    /// Appends the references of everything that the scope read, those that named nothing included.
    fn read_set(&mut self, scope: &Scope, out: &mut Vec<Oref>);

    /// Sends a transaction as one operation: `base` is [`Home::base`] of its scope, `effects`
    /// [`tercel_wire::message::CommitEffects`] as bytes, `local_writes` the new versions in it, which are
    /// taken once it is sent.
    ///
    /// # Errors
    /// `PlaceLost` or `Conflict` if it makes an object in a place that is lost; `Full` if it is too large;
    /// `Unavailable`.
    fn submit(
        &mut self,
        now: Now,
        base: Stamp,
        local_writes: &mut Vec<LocalWrite>,
        effects: &[u8],
    ) -> Option<Result<OpId, Error>>;

    /// The answer to an operation that was submitted, once later transactions of this home see its effects.
    /// It is given once.
    fn outcome(&mut self, op: OpId) -> Option<Outcome>;

    /// Why the last operation that was denied was: the server's sentence.
    fn why_denied(&mut self) -> String {
        String::new()
    }

    /// Stops waiting for the answer; [`Home::resolve`] finds it later.
    fn abandon(&mut self, op: OpId);

    /// The outcome of an operation that was abandoned.
    fn resolve(&mut self, now: Now, op: OpId) -> Option<Outcome>;

    /// Takes what a method has written that was run here for a caller, with what it returns, instead of
    /// [`Home::submit`]. Gives whether it was taken: if not, it met what is not visible yet. The `holds` are
    /// kept until it is ordered, or never will be.
    ///
    /// # Errors
    /// As [`Home::submit`].
    fn submit_call(
        &mut self,
        _ticket: Ticket,
        _reply: &[u8],
        _local_writes: &mut Vec<LocalWrite>,
        _effects: &[u8],
        _holds: &[Arc<Hold>],
    ) -> Option<Result<bool, Error>> {
        Some(Err(Error::Invalid("calls are not run here".into())))
    }

    /// Says whether this home shows a newer state than that.
    fn is_newer(&self, than: Stamp) -> bool;

    /// States of other spaces on which the space rests at a stamp, or later. `None` until this home shows
    /// that stamp.
    fn dependencies(&self, _at: Stamp) -> Option<Vector> {
        Some(Vector::default())
    }

    /// Has the space rest on states of other spaces, before anything that is sent from now on changes it.
    ///
    /// # Errors
    /// `Full` if it rests on as many spaces as it can; `Unavailable`.
    fn depend(&mut self, _on: &Vector) -> Option<Result<(), Error>> {
        Some(Err(Error::Invalid("this home knows no other spaces".into())))
    }

    /// The home's side of calls that run elsewhere, if it can make any.
    fn caller(&mut self) -> Option<&mut dyn Caller> {
        None
    }

    /// The home's side of transactions over several spaces, if it can take part in them.
    fn across(&mut self) -> Option<&mut dyn Across> {
        None
    }

    /// The home's side of watches, if it has them.
    fn watcher(&mut self) -> Option<&mut dyn Watcher> {
        None
    }
}

/// A home's side of transactions over several spaces. `None` means: call again when something has happened.
pub trait Across {
    /// Takes the slot of an operation: of the part that this home will send, and at the coordinator that of
    /// the transaction. It is sent, or given back.
    ///
    /// # Errors
    /// `Unavailable`.
    fn reserve(&mut self) -> Option<Result<OpId, Error>>;

    /// Gives a slot back. Nothing is executed for an operation that was not sent; one that was is abandoned.
    fn unreserve(&mut self, op: OpId);

    /// Sends a part to be prepared for a transaction. [`Home::outcome`] has its outcome, as of a commit.
    ///
    /// # Errors
    /// As [`Home::submit`]; `Conflict` if the slot was lost. Nothing was sent then.
    fn prepare(
        &mut self,
        part: &mut SentPart<'_>,
        of: OpId,
        coordinator: SpaceId,
    ) -> Option<Result<(), Error>>;

    /// Sends the coordinator's part, which decides that the transaction is committed: these others have
    /// prepared. [`Home::outcome`] has its outcome.
    ///
    /// # Errors
    /// As [`Across::prepare`].
    fn decide(&mut self, part: &mut SentPart<'_>, others: &[Prepared]) -> Option<Result<(), Error>>;

    /// Notifies the space of the end of a transaction that it has prepared, and gives the call of the
    /// message. `None` while there is no connection, or very many answers are to come.
    ///
    /// # Errors
    /// `Unavailable`.
    fn settle(&mut self, settle: &Settle) -> Option<Result<u64, Error>>;

    /// Asks the space what became of a transaction that it coordinates, and gives the call of the message.
    /// `None` as of [`Across::settle`].
    ///
    /// # Errors
    /// `Unavailable`.
    fn inquire(&mut self, of: OpId) -> Option<Result<u64, Error>>;

    /// The answer to such a call, once; an error if none will come. Those that nobody takes are dropped.
    fn answered(&mut self, call: u64) -> Option<Result<Consulted, Error>>;

    /// A stamp from which on no prepare up to this one waits for its settlement. The state at hand has it.
    ///
    /// # Errors
    /// In the server's words if it refuses to wait for that any longer; `Unavailable`.
    fn settled_from(&mut self, upto: Stamp) -> Option<Result<Stamp, Error>>;

    /// A stamp from which on the part that was prepared at this one is settled. The state at hand has it.
    ///
    /// # Errors
    /// As [`Across::settled_from`].
    fn one_settled_from(&mut self, prepared: Stamp) -> Option<Result<Stamp, Error>>;

    /// A stamp from which on no prepare up to this one waits for its settlement, but for parts that are
    /// named: a reader of such a state has to look whether it has read what they write.
    ///
    /// # Errors
    /// As [`Across::settled_from`].
    fn settled_or_named(&mut self, upto: Stamp) -> Option<Result<SettledFrom, Error>>;
}

/// A space's part of a transaction over several, as it is sent.
pub struct SentPart<'a> {
    /// The operation, which was reserved for it.
    pub op: OpId,
    /// The base, as of [`Home::submit`].
    pub base: Stamp,
    /// The local writes, as of [`Home::submit`].
    pub local_writes: &'a mut Vec<LocalWrite>,
    /// The effects, as of [`Home::submit`].
    pub effects: &'a [u8],
    /// States on which the transaction rests, and what is known of its other parts.
    pub seen: &'a Vector,
}

/// An object that a transaction wants to read.
pub struct Wanted<'a> {
    /// The transaction's read side.
    pub scope: &'a Scope,
    /// The object.
    pub oref: Oref,
    /// The stamp at which the program read the reference; [`Stamp::MAX`] if it stands in an object of the
    /// snapshot, or names whatever is there.
    pub stamp: Stamp,
    /// The reference that leads there, if it stands in an object at hand.
    pub ref_view: Option<&'a RefView<'a, 'a>>,
    /// The type that it is read as.
    pub key: TypeKey,
}

/// Progress of a search.
#[derive(Debug)]
pub enum Located {
    /// The scope has it: a hit will find it, by this handle if not by the word.
    Ready {
        /// The handle, or 0 if the word leads there without one.
        hint: u32,
    },
    /// Something was asked for.
    Wait,
    /// There is none.
    Absent,
    /// The object cannot be had.
    Failed(Error),
}

/// A new version that a transaction wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalWrite {
    /// The object.
    pub oref: Oref,
    /// Header and body in stored form.
    pub object: Vec<u8>,
    /// Set if the operation makes it.
    pub new: bool,
    /// The stamp up to which its place was known to be one. If its page was granted again since, the place is
    /// lost.
    pub placed: Stamp,
    /// Set if the place was taken before the transaction that makes it, which therefore cannot take another.
    pub is_brought: bool,
}

/// A watch of a client: no other client knows it, such as that of a process that was forked off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId {
    /// The client's id at the time of opening.
    pub client: ClientId,
    /// Which of its watches it is.
    pub number: u64,
}

/// News of a watched object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// The object.
    pub oref: Oref,
    /// The last change of the object.
    pub changed: Option<Stamp>,
    /// No further news of it arrives until the watch has read it again: it may have changed.
    pub lost: bool,
}

/// A home that receives changes. Changes of a watched object join until they are taken.
pub trait Watcher {
    /// Opens a watch, of nothing yet.
    fn open(&mut self) -> WatchId;

    /// Counts an object as read, of whatever class it is, and whether there is one or not: if it changes, or
    /// comes to be, what the scope read no longer holds. `None` means: call again when something has
    /// happened.
    ///
    /// # Errors
    /// `Conflict`, and as [`Home::locate`].
    fn touch(
        &mut self,
        now: Now,
        scope: &Scope,
        oref: Oref,
        search: &mut Search,
    ) -> Option<Result<(), Error>>;

    /// Ends a watch.
    fn close(&mut self, watch: WatchId);

    /// From now on the watch receives changes of these objects, all of which were just read in a state that
    /// still holds. A lost object counts as changed in this state.
    ///
    /// # Errors
    /// `Full` if they are too many: then the watch looks at none of them.
    fn look_at(&mut self, watch: WatchId, read: &[Oref]) -> Result<(), Error>;

    /// The watch no longer looks at these.
    fn let_go(&mut self, watch: WatchId, orefs: &[Oref]);

    /// All news received and not taken yet, each object once.
    ///
    /// # Errors
    /// `OtherHistory` if the watch can receive no more, because its earlier news is void.
    fn take(&mut self, watch: WatchId) -> Result<Vec<Heard>, Error>;

    /// The stamp up to which all changes of watched objects were received.
    fn watermark(&self) -> Stamp;

    /// The reason why no changes can be received now, if it is another than a lost connection.
    fn refusal(&self) -> Option<Error>;
}
