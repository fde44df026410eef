//! The errors of the engine, sorted by the party that must act.
//!
//! One type for all that a program calls, from opening a space to closing it. Its kinds are matched, and no
//! caller needs to look into a text.

use std::sync::Arc;

use tercel_wire::id::{OpId, Oref};
use tercel_wire::message::{Limit, Refusal};
use tercel_wire::page::OBJECT_BYTES_MAX;
use tercel_wire::record::EncodeError;
use thiserror::Error;

/// Why a call failed: of an object, a transaction, a client, or an embedded space.
///
/// Each kind names the party that must act, and [`Error::is_retryable`] whether the same transaction may just
/// be run again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Another transaction changed what this one read. Run it again; `run` does so by itself.
    ///
    /// The object is given if the conflict was found by a server, in the order of commits. A client that
    /// finds its copies obsolete, or a place lost, gives none.
    #[error("another transaction changed {}: run it again", contended(.0.as_deref()))]
    Conflict(Option<Box<Contended>>),
    /// The server cannot be reached, or was silent for too long for the client to read consistently. Try
    /// later.
    #[error("the server is not available: {0}")]
    Unavailable(String),
    /// The space at the address is another one, or was put back to an earlier state, by a restore or a
    /// directory that was moved; or a token is of another history. What the client has of the space is void:
    /// connect with a new client, and look references up again. The client goes on trying, in case the right
    /// server comes back.
    #[error("another history: {0}")]
    OtherHistory(String),
    /// No answer came in time, and nothing was changed.
    #[error("no answer came in time, and nothing was changed")]
    Timeout,
    /// It is not known whether this was executed: it was sent, and then the connection or the server was
    /// lost, or no answer came in time. It was executed once at most. A procedure that was not begun by now
    /// never will be, unless the server could not be notified.
    #[error("{}", unknown(.op.as_deref(), .what))]
    Unknown {
        /// The operation, of a commit or of a method's call: `Client::resolve` asks by it for the outcome, as
        /// `run` does. Procedures of services are no operations: of one the program must find out by other
        /// means, or call one that may be executed twice.
        op: Option<Box<OpId>>,
        /// The reason for which its outcome is not known.
        what: Box<str>,
    },
    /// A method or procedure was begun and did not come to its end: it panicked, or met an error of the
    /// space. The work of a procedure before that stays; of a method nothing does. Or it was executed, now
    /// or before under its key, and has come to a result that this build cannot read. The server's program
    /// must act.
    #[error("the call has failed at the server: {0}")]
    Failed(String),
    /// The object's place was reserved by an earlier transaction, and is lost with the session that it was
    /// given in: the client was without a connection for too long, or its server was put back to an earlier
    /// state. Or it was reserved by another client. Running this transaction again cannot help; reserve
    /// another place, and write anew what refers to this one.
    #[error(
        "the place of object {0} is not this client's, or no longer: places go with the session that they were reserved in; reserve another"
    )]
    PlaceLost(Oref),
    /// The reference names no object, or the root does not exist.
    #[error("{0} was not found")]
    NotFound(String),
    /// This program has no right to it. Who gives rights must act.
    #[error("denied: {0}")]
    Denied(String),
    /// The program's class and the space's do not agree. The program, or its classes, must change.
    #[error("schema: {0}")]
    Schema(String),
    /// The server is older than this program, and does not know what it was asked for. Its operator must act.
    #[error("the server is older than this program and lacks what it was asked for; upgrade the server: {0}")]
    Unsupported(String),
    /// Stored or received bytes are damaged. An operator must act: `tercel check` shows where.
    #[error("damaged data: {0}")]
    Corrupt(String),
    /// A use that cannot be meant: an address that is none, a transaction inside of another, a service that
    /// the server does not offer. The program must change, or the server's.
    #[error("{0}")]
    Invalid(String),
    /// Another row of the table has this key. The program must choose another key, or change that row.
    #[error("{0}")]
    Taken(Box<Taken>),
    /// A bound was reached. Which one, and the setting to raise where there is one, says the bound.
    #[error("full: {0}")]
    Full(Bound),
    /// The server of an embedded space did not start, or stopped by itself. Its operator must act; the fault
    /// has a kind.
    #[error("{0}")]
    Server(Box<ServerFault>),
}

/// The kinds of [errors](enum@Error), for a program that decides by them and not by what they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is named as the error that it is of")]
pub enum ErrorKind {
    Conflict,
    Unavailable,
    OtherHistory,
    Timeout,
    Unknown,
    Failed,
    PlaceLost,
    NotFound,
    Denied,
    Schema,
    Unsupported,
    Corrupt,
    Invalid,
    Taken,
    Full,
    Server,
}

/// The object that another transaction changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contended {
    /// The reference of the object.
    pub object: Oref,
    /// The name of its class, if the transaction wrote it too.
    pub class: Option<String>,
}

/// A key of a table's row that another row has. At the other end of a call it is `Denied`, with its sentence.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", shared(.class, .index, .key, .rows.as_ref()))]
pub struct Taken {
    /// The class of the rows.
    pub class: String,
    /// The fields of the index, or of the table's key, such as `event, seat`.
    pub index: String,
    /// The key, as a program would write it.
    pub key: String,
    /// The keys of two rows that share it, where the build of an index has found them.
    pub rows: Option<[String; 2]>,
}

fn shared(class: &str, index: &str, key: &str, rows: Option<&[String; 2]>) -> String {
    match rows {
        None => format!("another {class} has the {index} {key}, which must be unique"),
        Some([one, other]) => format!(
            "the rows {one} and {other} of {class} have the same {index} {key}, which must be unique: change or remove one of \
             them, and migrate the table again"
        ),
    }
}

/// The bound that a call reached. Printed, it says what to do, and names the setting to raise if there is
/// one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Bound {
    /// The client's cache: what is held of it at once, or read in one transaction, does not fit.
    #[error(
        "the client's cache holds no more at once: drop objects that are no longer needed, or raise `cache_bytes` in its \
         ClientConfig"
    )]
    Cache,
    /// The transactions of a client that are open at once.
    #[error(
        "as many transactions of this client are open as its `transactions_max` allows, 64 by default: raise that in its \
         ClientConfig, or run fewer at once"
    )]
    Transactions,
    /// The transactions that are open at once inside of a server.
    #[error(
        "{max} transactions are open inside of this server, which are all it takes at once: run fewer at the same time, or \
         some at a client"
    )]
    TransactionsInside {
        /// The number that is allowed.
        max: usize,
    },
    /// The number of reads by one transaction in a client's cache.
    #[error(
        "a transaction read more than the client's cache can remember: read less in one, or raise `cache_bytes` in its \
         ClientConfig"
    )]
    Reads,
    /// The bytes read by one transaction inside of a server.
    #[error(
        "a transaction inside of this server reads at most {bytes_max} bytes: read less in one, or run it at a client"
    )]
    ReadsInside {
        /// The bytes that are allowed.
        bytes_max: usize,
    },
    /// The pages that one client may have of the server at once.
    #[error(
        "a transaction read more pages than the server lets one client have: read less in one, or let the server's operator \
         raise `subscriptions_max`"
    )]
    Subscriptions,
    /// The objects that the watches of a client look at together.
    #[error(
        "the watches of a client look at {max} objects at most, those on the way to them included: watch fewer, or watch \
         at several clients"
    )]
    Watched {
        /// The number that is allowed.
        max: usize,
    },
    /// The bytes written by one transaction at this client or server.
    #[error("a transaction writes at most {bytes_max} bytes here: commit in smaller parts")]
    Writes {
        /// The bytes that are allowed.
        bytes_max: usize,
    },
    /// The message of one transaction.
    #[error("the transaction reads or writes too much: commit in smaller parts")]
    Message,
    /// The arguments or result of one call, or one item of a stream.
    #[error(
        "arguments and results have at most 64 MiB, and items of streams 1 MiB: this has {bytes} bytes, send it in parts"
    )]
    Call {
        /// The bytes of the call, as they are sent.
        bytes: usize,
    },
    /// The server's buffer of modified objects. Run the transaction again; `run` does so by itself.
    #[error(
        "the server's buffer of modified objects drains by itself, try again; if it lasts, transactions over several spaces wait for other servers (`tercel stat`)"
    )]
    Buffer,
    /// The writes of one transaction to the server.
    #[error(
        "the transaction is larger than the server takes: commit in smaller parts, or let its operator raise mob_bytes \
         (`tercel serve --mob`), and cache_bytes where it changes objects in very many pages"
    )]
    Transaction,
    /// The server's disk.
    #[error("the server's disk: make room there")]
    Disk,
    /// The pages of a space.
    #[error(
        "the space has given out all of its 4,194,303 pages and takes none back: what is there can be read and changed \
         within its pages; let a program copy what is still needed into another space"
    )]
    Pages,
    /// The roots of a space.
    #[error("a space has at most {max} roots: keep more in a map")]
    Roots {
        /// The number that is allowed.
        max: usize,
    },
    /// The exports of a space.
    #[error(
        "a space exports at most {max} objects, some fewer where their places fall together: withdraw some, or export one \
         object, such as a map, that leads to many"
    )]
    Exports {
        /// The number that is allowed.
        max: usize,
    },
    /// An object.
    #[error(
        "the object has {bytes} bytes and a page holds at most {OBJECT_BYTES_MAX}: move part of it behind a reference"
    )]
    Object {
        /// The bytes that it has.
        bytes: usize,
    },
    /// A list that must stand inside of its object.
    #[error(
        "a list whose elements have references, texts or lists in them has at most 1,024 bytes inside an object: use a collection"
    )]
    List,
    /// The elements of a list, text, byte string or vector.
    #[error("it would have more than {max} elements, which are the most: use several")]
    Elements {
        /// The number that is allowed.
        max: u64,
    },
    /// A key of a map.
    #[error("a key of a map has at most {bytes_max} bytes and this one has {bytes}: shorten it")]
    Key {
        /// The bytes that it has.
        bytes: usize,
        /// The bytes that it may have.
        bytes_max: usize,
    },
    /// A value that stands in a node of a map.
    #[error(
        "a value in a map has at most {bytes_max} bytes and this one has {bytes}: make it an object, and let the map lead to it"
    )]
    Value {
        /// The bytes that it has.
        bytes: usize,
        /// The bytes that it may have.
        bytes_max: usize,
    },
    /// Another bound of the server, which its answer names.
    #[error("{0}")]
    Server(Box<str>),
}

/// Why the server of an embedded space did not start, or stopped by itself.
#[derive(Debug, Clone, Error)]
#[error("{source}")]
pub struct ServerFault {
    kind: FaultKind,
    source: Arc<dyn std::error::Error + Send + Sync>,
}

/// Kinds of faults of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// Another process has the directory open: stop it, or connect to it.
    InUse,
    /// There is no space in the directory, and none was to be made.
    NoSpace,
    /// The directory is not one of a space, or not of this build.
    NotASpace,
    /// A file that the directory should have is damaged: `tercel check` shows where.
    Damaged,
    /// A setting that cannot be meant; the text names it.
    Setting,
    /// An address that cannot be listened at.
    Address,
    /// The disk has no room left.
    DiskFull,
    /// The system refuses something: a file, a thread, events.
    System,
    /// The server met something it cannot go on after.
    Stopped,
}

impl ServerFault {
    /// A fault of a kind, with the error that holds all details.
    pub fn new(kind: FaultKind, source: impl std::error::Error + Send + Sync + 'static) -> ServerFault {
        ServerFault { kind, source: Arc::new(source) }
    }

    /// The kind, to be matched.
    pub fn kind(&self) -> FaultKind {
        self.kind
    }

    /// The underlying error, if it is an `E`.
    pub fn get<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.source.downcast_ref()
    }
}

impl PartialEq for ServerFault {
    fn eq(&self, other: &ServerFault) -> bool {
        self.kind == other.kind && self.source.to_string() == other.source.to_string()
    }
}

impl Eq for ServerFault {}

// A step along a reference answers an object, 32 bytes, or an error. As long as the error is not the larger
// one, the compiler keeps the object in registers; with an error of 40 bytes every step of a hot traversal
// took 6 to 20 % longer.
const _: () = assert!(size_of::<Error>() <= 32);

impl Error {
    /// The kind, to be matched.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Conflict(_) => ErrorKind::Conflict,
            Error::Unavailable(_) => ErrorKind::Unavailable,
            Error::OtherHistory(_) => ErrorKind::OtherHistory,
            Error::Timeout => ErrorKind::Timeout,
            Error::Unknown { .. } => ErrorKind::Unknown,
            Error::Failed(_) => ErrorKind::Failed,
            Error::PlaceLost(_) => ErrorKind::PlaceLost,
            Error::NotFound(_) => ErrorKind::NotFound,
            Error::Denied(_) => ErrorKind::Denied,
            Error::Schema(_) => ErrorKind::Schema,
            Error::Unsupported(_) => ErrorKind::Unsupported,
            Error::Corrupt(_) => ErrorKind::Corrupt,
            Error::Invalid(_) => ErrorKind::Invalid,
            Error::Taken(_) => ErrorKind::Taken,
            Error::Full(_) => ErrorKind::Full,
            Error::Server(_) => ErrorKind::Server,
        }
    }

    /// Says whether another run of the same transaction can succeed without an intervention: after a
    /// conflict, and once the server's buffer has drained. `run` repeats it by itself.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Conflict(_) | Error::Full(Bound::Buffer))
    }

    /// Says whether the server is gone, or another space is at the address.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(self, Error::Unavailable(_) | Error::OtherHistory(_))
    }

    /// An operation of which the outcome is not known.
    pub fn unknown(op: OpId) -> Error {
        Error::Unknown { op: Some(Box::new(op)), what: "no answer came in time".into() }
    }

    /// A procedure's call of which it is not known whether it was executed, for this reason.
    pub fn unknown_call(what: impl Into<Box<str>>) -> Error {
        Error::Unknown { op: None, what: what.into() }
    }

    /// The text of the error beside its kind.
    pub(crate) fn what(&self) -> String {
        match self {
            Error::NotFound(what)
            | Error::Denied(what)
            | Error::Schema(what)
            | Error::Unsupported(what)
            | Error::Corrupt(what)
            | Error::Unavailable(what)
            | Error::OtherHistory(what)
            | Error::Failed(what)
            | Error::Invalid(what) => what.clone(),
            Error::Unknown { what, .. } => what.to_string(),
            Error::Full(bound) => bound.to_string(),
            other => other.to_string(),
        }
    }

    /// The sentence of an error that is to become the reason of another one.
    pub(crate) fn words(self) -> String {
        match self {
            Error::Unavailable(text) => text,
            error => error.to_string(),
        }
    }

    /// The error of what the server refused for this reason, with what it said beside.
    pub(crate) fn refused(why: Refusal, text: &str) -> Error {
        let said = || text.to_string();
        match why {
            Refusal::Protocol
            | Refusal::Unavailable
            | Refusal::Evicted
            | Refusal::History
            | Refusal::NotLeader => Error::Unavailable(said()),
            Refusal::Schema => Error::Schema(said()),
            Refusal::Corrupt => Error::Corrupt(said()),
            Refusal::Full(Limit::Buffer) => Error::Full(Bound::Buffer),
            Refusal::Full(Limit::Transaction) => Error::Full(Bound::Transaction),
            Refusal::Full(Limit::Disk) => Error::Full(Bound::Disk),
            Refusal::Full(Limit::Pages) => Error::Full(Bound::Pages),
            Refusal::FULL => Error::Full(Bound::Server(text.into())),
            Refusal::OtherHistory => Error::OtherHistory(said()),
            Refusal::Unsupported => Error::Unsupported(said()),
            Refusal::NotFound => Error::NotFound(said()),
            Refusal::Denied => Error::Denied(said()),
            Refusal::Late => Error::Timeout,
            Refusal::Elsewhere => Error::Corrupt("a procedure was refused as a method is".into()),
            Refusal::Unknown => Error::unknown_call(text),
            // A commit's verdict has no words of its own.
            Refusal::Misused if text.is_empty() => Error::Invalid("this server keeps no space".into()),
            Refusal::Misused => Error::Invalid(said()),
            Refusal::Failed => Error::Failed(said()),
            Refusal::NotExecuted | Refusal::TooOld => Error::Conflict(None),
            Refusal::Conflict(oref) => Error::conflict(Some(oref)),
            Refusal::Invalid(oref) => Error::Invalid(format!(
                "the server does not let object {oref} be written so: it is of another class, was made before by another \
                 client, or has a large value of another object"
            )),
            Refusal::Nowhere(oref) => Error::Invalid(format!(
                "this transaction writes a reference to object {oref}, which this space never had: it is of another space, \
                 or of before a restore; look the object up again, by a root"
            )),
        }
    }

    /// The reason that a server gives for an error which kept a method from its end.
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            Error::NotFound(_) => Refusal::NotFound,
            Error::Denied(_) => Refusal::Denied,
            Error::Invalid(_) | Error::PlaceLost(_) | Error::Taken(_) => Refusal::Misused,
            Error::Failed(_) => Refusal::Failed,
            Error::Schema(_) => Refusal::Schema,
            Error::Full(_) => Refusal::FULL,
            Error::Corrupt(_) => Refusal::Corrupt,
            Error::Timeout => Refusal::Late,
            Error::Conflict(_)
            | Error::Unavailable(_)
            | Error::OtherHistory(_)
            | Error::Unsupported(_)
            | Error::Unknown { .. }
            | Error::Server(_) => Refusal::Unavailable,
        }
    }

    /// A conflict over an object, if it is known.
    pub(crate) fn conflict(object: Option<Oref>) -> Error {
        let object = object.filter(|oref| !oref.is_null());
        Error::Conflict(object.map(|object| Box::new(Contended { object, class: None })))
    }

    /// A reference that names nothing.
    pub fn not_found(oref: Oref) -> Error {
        Error::NotFound(format!("object {oref}"))
    }
}

impl From<EncodeError> for Error {
    fn from(e: EncodeError) -> Error {
        Error::Full(match e {
            EncodeError::TooLarge(bytes) => Bound::Object { bytes },
            EncodeError::PartTooLarge => Bound::List,
            EncodeError::TooLong => Bound::Elements { max: u32::MAX.into() },
            EncodeError::NoRoom => Bound::Message,
            EncodeError::NoVariant(_) => return Error::Schema(e.to_string()),
            EncodeError::NoPart => return Error::Corrupt(e.to_string()),
        })
    }
}

fn contended(over: Option<&Contended>) -> String {
    match over {
        Some(Contended { object, class: Some(class) }) => {
            format!("object {object} ({class}), which this one read")
        }
        Some(Contended { object, .. }) => format!("object {object}, which this one read"),
        None => "what this one read".into(),
    }
}

fn unknown(op: Option<&OpId>, what: &str) -> String {
    match op {
        Some(op) => {
            format!("the outcome of operation {op} is unknown, and `Client::resolve` asks for it: {what}")
        }
        None => format!(
            "it is not known whether the call was executed, once at most: {what}; look what it has done before a second call"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tercel_wire::id::{ClientId, ViewId};

    /// An error of each kind. The match has the compiler ask for those that are added.
    fn all() -> Vec<Error> {
        use Error::*;
        let op = OpId { client: ClientId(7), slot: 0, seq: 3, view: ViewId::new(1, 0) };
        let text = || String::from("that");
        let fault = ServerFault::new(FaultKind::Stopped, std::io::Error::other("it is gone"));
        let all = vec![
            Conflict(None),
            Conflict(Some(Box::new(Contended { object: Oref::NULL, class: Some(text()) }))),
            Unavailable(text()),
            OtherHistory(text()),
            Timeout,
            Error::unknown(op),
            PlaceLost(Oref::NULL),
            NotFound(text()),
            Denied(text()),
            Schema(text()),
            Unsupported(text()),
            Corrupt(text()),
            Invalid(text()),
            Taken(Box::new(super::Taken { class: text(), index: text(), key: text(), rows: None })),
            Error::unknown_call(text()),
            Failed(text()),
            Server(Box::new(fault)),
        ];
        let known = |e: &Error| match e {
            Conflict(_) | Unavailable(_) | Timeout | PlaceLost(_) | NotFound(_) | Denied(_) | Schema(_) => {
                true
            }
            Unsupported(_)
            | Corrupt(_)
            | Invalid(_)
            | Taken(_)
            | Full(_)
            | Server(_)
            | OtherHistory(_)
            | Unknown { .. }
            | Failed(_) => true,
        };
        assert!(all.iter().all(known));
        all.into_iter().chain(bounds().into_iter().map(Full)).collect()
    }

    fn bounds() -> Vec<Bound> {
        use Bound::*;
        let all = vec![
            Cache,
            Transactions,
            TransactionsInside { max: 1 },
            Reads,
            ReadsInside { bytes_max: 1 },
            Subscriptions,
            Writes { bytes_max: 1 },
            Message,
            Call { bytes: 1 },
            Buffer,
            Transaction,
            Disk,
            Pages,
            Roots { max: 1 },
            Exports { max: 1 },
            Object { bytes: 9_000 },
            List,
            Elements { max: 9 },
            Key { bytes: 300, bytes_max: 255 },
            Value { bytes: 600, bytes_max: 512 },
            Watched { max: 1 },
            Server("that".into()),
        ];
        let known = |b: &Bound| match b {
            Cache | Transactions | TransactionsInside { .. } | Reads | ReadsInside { .. } | Subscriptions => {
                true
            }
            Writes { .. } | Message | Buffer | Transaction | Disk | Pages | Roots { .. } | Exports { .. } => {
                true
            }
            Object { .. }
            | Call { .. }
            | List
            | Elements { .. }
            | Key { .. }
            | Value { .. }
            | Watched { .. }
            | Server(_) => true,
        };
        assert!(all.iter().all(known));
        all
    }

    #[test]
    fn an_error_is_retryable_where_its_words_say_again() {
        for e in all() {
            assert_eq!(e.is_retryable(), e.to_string().contains("again"), "{e}");
        }
    }

    #[test]
    fn a_bound_with_a_setting_names_it() {
        for (bound, setting) in [
            (Bound::Cache, "`cache_bytes`"),
            (Bound::Reads, "`cache_bytes`"),
            (Bound::Transactions, "`transactions_max`"),
            (Bound::Subscriptions, "`subscriptions_max`"),
            (Bound::Transaction, "mob_bytes"),
        ] {
            assert!(bound.to_string().contains(setting), "{bound}");
        }
    }

    #[test]
    fn a_timeout_says_whether_the_outcome_is_known() {
        let [none, some] = [Error::Timeout, Error::unknown(OpId::default())].map(|e| e.to_string());
        assert!(none.contains("nothing was changed") && some.contains("is unknown"), "{none}; {some}");
    }
}
