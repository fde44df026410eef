//! The bodies of messages. Each type has `encode`, which appends to a buffer, and `decode`, which checks
//! everything.
//!
//! | module | its noun |
//! |---|---|
//! | `table` | kinds, fields and answers of all messages: [`Kind`], [`FromClient`], [`FromServer`] |
//! | `declare` | the macros that make them of it |
//! | `form` | a field as bytes |
//! | `part` | what several messages have, or has a codec of its own |
//! | `request`, `backup` | bodies whose codec is written by hand |

mod backup;
mod declare;
pub mod form;
mod part;
mod request;
mod table;

pub use backup::{BACKUP_PAGES_MAX, BackupPart};
pub use form::Numbered;
pub use part::*;
pub use request::{
    CALL_KEY_BYTES_MAX, HEAD_BYTES, OBJECT_SLOT, OPERATION, Request, RequestTemplate, Response, ResponseEnd,
};
pub use table::*;

use thiserror::Error;

use crate::cursor::DecodeError;
use crate::frame::{WIRE_VERSION, WIRE_VERSION_MIN};
use crate::id::{ClientId, SpaceId};

/// A message that cannot be read as one of the side that sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MessageError {
    /// A message of a kind that this build does not have. The older side is to be upgraded.
    #[error("a message of unknown kind {0}")]
    Unknown(u8),
    /// A message of a kind that only the other side sends.
    #[error("{0:?} is for the other side to send")]
    OtherSide(Kind),
    /// The body is not what the kind promises.
    #[error(transparent)]
    Body(#[from] DecodeError),
}

impl Hello {
    /// The greeting of a client's first connection, to any space, with all versions that this build speaks.
    pub fn new(client: ClientId) -> Hello {
        Hello {
            client,
            connection: 1,
            version_min: WIRE_VERSION_MIN,
            version_max: WIRE_VERSION,
            space: SpaceId(0),
            resume: None,
            via: None,
        }
    }
}

/// No body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nothing;

impl Nothing {
    /// Appends nothing.
    pub fn encode(&self, _: &mut Vec<u8>) {}

    /// Reads it.
    ///
    /// # Errors
    /// If there are bytes.
    pub fn decode(body: &[u8]) -> Result<Nothing, DecodeError> {
        if body.is_empty() { Ok(Nothing) } else { Err(DecodeError::Trailing) }
    }
}
