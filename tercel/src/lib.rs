//! Typed, durable objects that live on servers and feel local.
//!
//! A program declares classes with `#[derive(Object)]`, opens a space with [`embedded`] or [`Client::connect`], and reads
//! and changes objects in transactions. What it reads comes from a cache in its own memory. A transaction sees one state of
//! the space, which may be some moments older than the newest commit of others; what it writes is committed only if
//! nothing that it read has changed since, and is run again otherwise.
//!
//! ```
//! use tercel::{List, Object, Ref, Text};
//!
//! #[derive(Object)]
//! struct Person {
//!     name: Text,
//!     friends: List<Ref<Person>>,
//! }
//!
//! let dir = std::env::temp_dir().join(format!("tercel-doc-{}", std::process::id()));
//! let space = tercel::embedded(&dir)?;
//! space.run(|tx| {
//!     let bob = tx.create(&Person { name: "Bob".into(), friends: List::new() })?;
//!     let ann = tx.create(&Person { name: "Ann".into(), friends: [bob].into() })?;
//!     tx.set_root("ann", ann)
//! })?;
//! space.run(|tx| {
//!     let ann = tx.get_root::<Person>("ann")?;
//!     for friend in ann.friends() {
//!         assert_eq!(friend?.name()?, "Bob");
//!     }
//!     Ok(())
//! })?;
//! space.close()?;
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The guide, [docs/guide.md](https://github.com/tercel/tercel/blob/main/docs/guide.md), goes from here to changed classes,
//! collections, conflicts, and a server with several clients.
//!
//! | module | its noun |
//! |---|---|
//! | [`Client`], [`Tx`], [`Obj`], [`Ref`] | what a program holds |
//! | [`Server`] | a space being served |
//! | [`disk`] | what a server keeps on disk |
//! | [`backup`], [`check`] | copies of a space, and whether one is sound |
//! | [`collections`] | ordered maps and lists, as ordinary objects |
#![deny(unsafe_code)]

#[cfg(test)]
extern crate self as tercel;

mod address;
pub mod backup;
pub mod check;
mod client;
pub mod disk;
mod memory;
mod panics;
mod pipe;
mod server;
mod transaction;

pub use address::{Address, AddressError};
pub use client::{Client, ClientConfig, Stats, embedded, embedded_with};
pub use server::{Recovered, Server, ServerBuilder, ServerConfig, ServerError, Stopper};
pub use tercel_collections as collections;
pub use tercel_derive::{Object, Record};
pub use transaction::Transaction;
// The derive macros and their traits have the same names, so that one `use` brings both.
pub use tercel_engine::object::{Field, ListField, Obj, Object, Record, RefField, Refs, RefsIter};
pub use tercel_engine::txn::{AsOf, Committed, Freshness, Isolation, Tx};
pub use tercel_engine::{Error, object};
pub use tercel_heap::{HacParams, Policy};
pub use tercel_wire as wire;
pub use tercel_wire::id::{OpId, Oref, SpaceId, Stamp};
pub use tercel_wire::record::{Any, Bytes, List, Ref, Text};
pub use tercel_wire::token::{Token, TokenError};

/// What derived code needs. Not for people.
#[doc(hidden)]
pub use tercel_engine::__private;
