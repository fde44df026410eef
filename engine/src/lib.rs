//! Every decision of Tercel as state machines without input or output.
//!
//! Not here: sockets, files, threads, clocks, randomness of the system. Time and seeds are handed in, what happened is
//! handed in, and what is to be done comes out as values; `clippy.toml` beside this crate keeps it so.
//!
//! | room | what it decides |
//! |---|---|
//! | [`server`] | the order of commits, their verdicts, what is visible when, who must hear of it |
//! | [`client`] | what is cached, when it is too old, what is asked for |
//! | [`txn`] | what a transaction reads and writes, and what it sends to commit |
//! | [`object`] | what a program holds: objects, references, lists |
//! | [`store`] | the ordered state, the buffer of modified objects, the page cache |
//! | [`order`] | the engines that put requests in an order: one node here |
//!
//! Learning one machine is learning all: `new(config, seed)`, `handle(now, input, ..)`, `deadline()`, getters.
#![forbid(unsafe_code)]

pub mod client;
pub mod error;
pub mod limits;
pub mod object;
pub mod order;
pub mod random;
pub mod server;
pub mod store;
pub mod table;
pub mod time;
pub mod txn;

pub use error::Error;

#[doc(hidden)]
pub use tercel_heap::mutant;

/// What derived code needs. Not for people.
#[doc(hidden)]
pub mod __private {
    pub use crate::error::Error;
    pub use crate::object::{Field, ListField, Object, RawMut, RawObj, Record, Stored, load_elements};
    pub use tercel_heap::{TypeIndex, Typed};
    pub use tercel_wire as wire;
}
