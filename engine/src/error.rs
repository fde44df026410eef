//! The errors of the engine, sorted by the party that must act.

use tercel_wire::id::{OpId, Oref};
use tercel_wire::record::EncodeError;
use thiserror::Error;

/// Why a call on an object, a transaction or a client failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Another transaction changed what this one read. Run it again; `Client::run` does so by itself.
    #[error("another transaction changed what this one read: run it again")]
    Conflict,
    /// The server cannot be reached, or the client has not heard from it for too long to read consistently. Try later.
    #[error("the server is not available: {0}")]
    Unavailable(String),
    /// The space at the address is another one, or was put back to an earlier state, by a restore or a directory that was
    /// moved; or a token is of another history. What the client has of the space is void: connect with a new client, and
    /// look references up again. The client goes on trying, in case the right server comes back.
    #[error("another history: {0}")]
    OtherHistory(String),
    /// The time ran out with the outcome unknown. `Client::resolve` asks for it by the operation's id.
    #[error("no answer came in time{}", .0.as_ref().map(|op| format!(": the outcome of operation {op} is unknown")).unwrap_or_default())]
    Timeout(Option<Box<OpId>>),
    /// The object's place was reserved by an earlier transaction, and is lost with the session that it was given in: the
    /// client was without a connection for too long, or its server was put back to an earlier state. Or it was reserved by
    /// another client. Running this transaction again cannot help; reserve another place, and write anew what refers to
    /// this one.
    #[error(
        "the place of object {0} is not this client's, or no longer: places go with the session that they were reserved in; reserve another"
    )]
    PlaceLost(Oref),
    /// The reference names no object, or the root does not exist.
    #[error("{0} was not found")]
    NotFound(String),
    /// The server does not allow it.
    #[error("denied: {0}")]
    Denied(String),
    /// The program's class and the space's do not agree. The program, or its classes, must change.
    #[error("schema: {0}")]
    Schema(String),
    /// Stored or received bytes are damaged. An operator must act: `tercel check` tells where.
    #[error("damaged data: {0}")]
    Corrupt(String),
    /// An argument that cannot be meant, such as an address that is none. The program must change.
    #[error("{0}")]
    Invalid(String),
    /// A bound was reached; the text says which one and how to raise it or live with it.
    #[error("full: {0}")]
    Full(String),
}

// A step along a reference answers an object, 32 bytes, or an error. As long as the error is not the larger one, the compiler
// keeps the object in registers; with an error of 40 bytes every step of a hot traversal took 6 to 20 % longer.
const _: () = assert!(size_of::<Error>() <= 32);

impl Error {
    /// Whether running the same transaction again can succeed without an intervention.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Conflict)
    }

    /// Whether the server is gone, or the space behind the address is another one.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(self, Error::Unavailable(_) | Error::OtherHistory(_))
    }

    /// The space has no page left to make anything in.
    pub(crate) fn no_pages() -> Error {
        Error::Full(
            "the space has given out all of its 4,194,303 pages, and none that an object was made in is used again: what \
             is there can be read and changed within its pages; let a program copy what is still needed into another space"
                .into(),
        )
    }

    /// Whether an operation was executed is not known.
    pub fn unknown(op: OpId) -> Error {
        Error::Timeout(Some(Box::new(op)))
    }

    /// A reference that names nothing.
    pub fn not_found(oref: Oref) -> Error {
        Error::NotFound(format!("object {oref}"))
    }
}

impl From<EncodeError> for Error {
    fn from(e: EncodeError) -> Error {
        Error::Full(e.to_string())
    }
}
