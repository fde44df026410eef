//! Every decision of Tercel as state machines without input or output.
//!
//! Not here: sockets, files, threads, clocks, randomness of the system. Time and seeds are handed in, what
//! happened is handed in, and what is to be done comes out as values; `clippy.toml` beside this crate keeps
//! it so.
//!
//! | room | what it decides |
//! |---|---|
//! | [`order`] | which node leads, in which order entries stand, and when they are stable |
//! | [`replica`] | what follows from the entries: ordered state |
//! | [`pages`] | the buffer of modified objects, page images, installs |
//! | `leader` | verdicts, places, grants: what one view's leader decides and knows alone |
//! | `rights` | what a connection's principal may do |
//! | `sessions` | greetings, the stream, resuming, backups |
//! | [`schedule`] | of the sessions: which connection is served next, which is not read, where a commit is synced |
//! | [`server`] | these, wired; how a server begins, and lends itself to transactions inside of it |
//! | [`rpc`] | methods of objects and services: what is called, where it runs, and what of it is kept |
//! | [`client`] | what is cached, when it is too old, what is asked for |
//! | [`txn`] | what a transaction reads and writes, what it sends to commit, and where it runs: its home |
//! | [`status`] | what a server says of itself |
//! | [`spaces`], [`consult`] | sessions over several spaces; what their servers ask each other |
//! | [`object`] | what a program holds: objects, references, lists |
//!
//! Learning one machine is learning all: `new(config, seed)`, `handle(now, input, ..)`, `deadline()`,
//! getters.
#![forbid(unsafe_code)]

pub mod client;
pub mod consult;
mod effect;
pub mod error;
mod leader;
pub mod limits;
pub mod pages;
pub mod replica;
mod rights;
pub mod rpc;
pub mod server;
mod sessions;
pub mod slots;
pub mod spaces;
pub mod status;
pub mod table;
pub mod txn;

pub use error::Error;
pub use sessions::schedule;
pub use tercel_machine::{random, time};
pub use tercel_order as order;
pub use txn::object;

#[doc(hidden)]
pub use tercel_machine::mutant;

/// Items for derived code. Not for people.
#[doc(hidden)]
pub mod __private {
    pub use crate::error::Error;
    pub use crate::rpc::{
        Callback, Called, Context, Ended, Given, Handle, Input, Methods, Numbered, Output, Pending,
        Pipelined, Plain, Reads, Service, ServiceHandle, ServiceInterface, Streaming, Stub, finish,
        finish_in, never, no_method, put_bytes, put_lending,
    };
    pub use crate::txn::Tx;
    pub use crate::txn::object::{
        Elements, Field, ListField, Obj, Object, RawMut, RawObj, Record, SetByEditors, Stored, load_elements,
        no_variant,
    };
    pub use tercel_heap::{TypeIndex, Typed};
    pub use tercel_wire as wire;
    pub use tercel_wire::lent::{Lending, LentBytes};
    pub use tercel_wire::record::{Any, Ref};
}
