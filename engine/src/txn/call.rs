//! The home's part in calls of methods and services: it sends them, or takes the writes of methods.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use tercel_wire::id::{CallId, OpId, Oref, Stamp};
use tercel_wire::interface::{Interface, InterfaceSchema};
use tercel_wire::payload::PayloadSchema;
use tercel_wire::record::Encoder;

use crate::error::Error;
use crate::time::Now;

/// Names a call that a server has taken, until it is answered.
pub type Ticket = u64;

/// The interface that calls go through.
#[derive(Debug, Clone, Copy)]
pub enum Through<'a> {
    /// The interface of a class of this program; of no class, if it is a service.
    Own(&'static InterfaceSchema, &'static str),
    /// An interface that a server has described. This program does not have it.
    Described(&'a Arc<Interface>),
}

impl Through<'_> {
    pub fn name(&self) -> &str {
        match self {
            Through::Own(schema, _) => schema.name,
            Through::Described(interface) => &interface.name,
        }
    }

    /// The class of its objects; empty for a service.
    pub fn class(&self) -> &str {
        match self {
            Through::Own(_, class) => class,
            Through::Described(interface) => &interface.class,
        }
    }

    /// Says whether a method only reads.
    pub fn reads(&self, method: usize) -> bool {
        match self {
            Through::Own(schema, _) => schema.methods[method].reads,
            Through::Described(interface) => interface.methods[method].reads,
        }
    }

    /// All of it, for the server to compare.
    pub fn interface(&self) -> Arc<Interface> {
        match self {
            Through::Own(schema, class) => Arc::new(Interface::of(schema, class)),
            Through::Described(interface) => (*interface).clone(),
        }
    }

    /// Says whether it is this interface, which has the same [`Through::key`].
    pub fn is(&self, interface: &Interface) -> bool {
        match self {
            Through::Own(..) => true,
            Through::Described(own) => ***own == *interface,
        }
    }

    /// The key among all interfaces that a program may bind on one connection.
    pub fn key(&self) -> ThroughKey {
        match self {
            Through::Own(schema, class) => {
                (schema.name.into(), (*class).into(), std::ptr::from_ref(*schema).addr())
            }
            Through::Described(of) => (of.name.clone().into(), of.class.clone().into(), 0),
        }
    }
}

/// The names of interface and class, and where the interface stands in this program, which may have two
/// versions of it; 0 for one that was described.
pub type ThroughKey = (Cow<'static, str>, Cow<'static, str>, usize);

/// An interface as it was bound on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    pub number: u16,
    /// The number of each method there.
    pub methods: Arc<[u16]>,
    /// For each method: why it cannot be called, if the server could not answer a call of it.
    pub refused: Arc<[Option<String>]>,
    /// The interface, with the layouts of this end: a server that has others converts.
    pub interface: Arc<Interface>,
    /// For a service: the table that the server keeps this client's calls in.
    pub table: Option<u32>,
}

/// A call to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Requested<'a> {
    /// The interface of the object's class, or the service.
    pub through: Through<'a>,
    /// The number of the method or procedure there.
    pub method: usize,
    /// The object, and the stamp of the state in which the reference to it was read; none for a service.
    pub object: Option<(Oref, Stamp)>,
    /// The moment until which its caller waits.
    pub until: Option<Now>,
    /// The key of a procedure that is `#[once]`; empty for any other.
    pub key: &'a [u8],
    /// The arguments, as it takes them.
    pub payload: &'a [u8],
    /// The large parts that follow the payload, if any.
    pub rest: Option<Rest<'a>>,
}

impl Requested<'_> {
    /// Bytes of what it takes.
    pub fn bytes(&self) -> usize {
        self.payload.len() + self.rest.map_or(0, |rest| rest.bytes)
    }
}

/// The large parts of the arguments, which are written where they are sent from.
#[derive(Clone, Copy)]
pub struct Rest<'a> {
    /// The number of bytes of the parts.
    pub bytes: usize,
    /// Writes the record; its parts are what is left of that.
    pub put: &'a dyn Fn(&mut Encoder<'_>),
    /// The record.
    pub takes: &'static PayloadSchema,
}

impl Rest<'_> {
    /// Appends them: as many bytes, unless the record is another by now.
    pub fn append(&self, out: &mut Vec<u8>) {
        self.takes.encode_rest(self.put, &mut |bytes| out.extend_from_slice(bytes));
    }
}

impl fmt::Debug for Rest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rest").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// The name of a call, by which it is executed at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallName {
    /// A method's.
    Operation(OpId),
    /// A procedure's.
    Slot(CallId),
}

/// A call that was sent.
#[derive(Debug, Clone)]
pub struct UnderWay {
    pub name: CallName,
    /// The interface, with its layouts.
    pub interface: Arc<Interface>,
}

/// The body of a response, and the layouts that it has.
pub type Responded = (Vec<u8>, Arc<Interface>);

/// A home that can call methods and services elsewhere. `None` means: call again when something has happened.
pub trait Caller: Streamer {
    /// The numbers by which the methods of an interface are called; none if they run at clients alone.
    ///
    /// # Errors
    /// `Schema` if a method takes or gives something else there; `Unavailable`.
    fn bind(&mut self, through: Through<'_>) -> Option<Result<Option<Binding>, Error>>;

    /// Sends a call, once more on another connection if need be, and gives the body of its response.
    /// `under_way` is kept between the calls of one call, and is none as long as nothing was sent.
    ///
    /// # Errors
    /// `Unknown`, with the operation of a method that may have written, if it was sent, and it
    /// will never be known what it came to. Before it was sent: `Invalid` if no such interface is there,
    /// `Schema` if it takes or gives something else, `Unavailable`.
    fn request(
        &mut self,
        now: Now,
        call: &Requested<'_>,
        under_way: &mut Option<UnderWay>,
    ) -> Option<Result<Responded, Error>>;

    /// Says whether as many calls are under way as the server takes of this client.
    fn has_all_under_way(&self) -> bool;

    /// Sends a call that is never answered.
    ///
    /// # Errors
    /// As [`Caller::request`] before it was sent.
    fn tell(&mut self, now: Now, call: &Requested<'_>) -> Option<Result<(), Error>>;

    /// The body of a response that [`Caller::request`] gave was read: the memory of a large one is for the
    /// next.
    fn has_read(&mut self, body: Vec<u8>);

    /// The caller of a call waits no longer: what has not been begun never will be.
    fn give_up(&mut self, name: CallName);

    /// Says whether an object's page is worth a fetch: the object is cached, or was not cached at an earlier
    /// call of a method on it.
    fn is_worth_fetching(&mut self, oref: Oref) -> bool;
}

/// A home that can call procedures with streams. `None` means: call again when something has happened.
pub trait Streamer {
    /// Sends a call with streams, which is never sent again.
    ///
    /// # Errors
    /// As [`Caller::request`] before it was sent.
    fn begin(&mut self, now: Now, call: &Requested<'_>) -> Option<Result<(CallId, Arc<Interface>), Error>>;

    /// Sends an item to a call with streams. Says whether it was still taken: if not, the call has ended.
    ///
    /// # Errors
    /// `Unknown` if the call is lost, `Invalid` if its stream was ended.
    fn send_item(&mut self, id: CallId, item: &[u8]) -> Option<Result<bool, Error>>;

    /// Ends the stream to a call, if it has one.
    ///
    /// # Errors
    /// `Unknown` if the call is lost.
    fn end_items(&mut self, id: CallId) -> Option<Result<(), Error>>;

    /// The next item of a call; none once it has ended, and all were consumed.
    ///
    /// # Errors
    /// `Unknown` if the call is lost.
    fn next_item(&mut self, id: CallId) -> Option<Result<Option<Vec<u8>>, Error>>;

    /// Drops items of a call until it has ended, and gives the body of its response.
    ///
    /// # Errors
    /// `Unknown` if the call is lost.
    fn finish(&mut self, id: CallId) -> Option<Result<Vec<u8>, Error>>;
}
