//! Exchange files of ISO 10303-21, "STEP part 21": read instance by instance, and written.
//!
//! The crate opens no file and knows no schema. Its [`Decoder`] is fed with pieces of a file in any sizes and
//! gives records of the header and instances of the data sections, one at a time. It holds the statement at
//! hand and nothing else, so ids that come twice and references to nothing are left to the caller.
//!
//! | module | its noun |
//! |---|---|
//! | `decoder` | the sections of a file, and what stands in them |
//! | `statements` | the pieces of a file between semicolons |
//! | `parse` | the values of a statement |
//! | `text` | strings and their escapes |
//! | `pages` | the characters that `\S\` means in each page |
//! | `value` | values, records, instances |
//! | `write` | the same as text |
//! | `error`, `limits` | the reason for which a file is refused; the bounds |
//!
//! The edition read is the second, with the UTF-8 of the third in strings. Scopes of the first edition and
//! the sections ANCHOR, REFERENCE and SIGNATURE of the third are refused by name.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod decoder;
mod error;
mod limits;
mod pages;
mod parse;
mod statements;
mod text;
mod value;
mod write;

pub use decoder::{Decoder, Step};
pub use error::ParseError;
pub use limits::Limits;
pub use value::{Body, Instance, Record, Value};
pub use write::{write_file, write_instance, write_value};
