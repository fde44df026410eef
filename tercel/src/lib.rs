//! Typed, durable objects that live on servers and feel local.
//!
//! A program declares classes with `#[derive(Object)]`, opens a space with [`embedded`] or
//! [`Client::connect`], and reads and changes objects in transactions. What it reads comes from a cache in
//! its own memory. A transaction sees one state of the space, which may be some moments older than the newest
//! commit of others; what it writes is committed only if nothing that it read has changed since, and is run
//! again otherwise.
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
//! # What a program holds
//!
//! ```
//! use tercel::object::{Elements, RefField, Refs};
//! use tercel::{Any, Bytes, Committed, Error, List, Obj, Object, Record, Ref, Text};
//!
//! #[derive(Object)]
//! struct Part {
//!     name: Text,
//!     photo: Bytes,
//!     sizes_mm: List<u32>,
//!     within: Ref<Part>,
//!     uses: List<Ref<Part>>,
//!     label: Option<Ref<Any>>,
//!     state: State,
//! }
//!
//! #[derive(Record, Debug, PartialEq)]
//! enum State {
//!     New,
//!     Sold { cents: u64 },
//! }
//!
//! # let dir = std::env::temp_dir().join(format!("tercel-doc-holds-{}", std::process::id()));
//! # let space = tercel::embedded(&dir)?;
//! let tx = space.transaction().begin()?;
//! let wheel = Part {
//!     name: "wheel".into(),
//!     photo: Bytes::default(),
//!     sizes_mm: [640, 640, 30].into(),
//!     within: Ref::NULL,
//!     uses: List::new(),
//!     label: None,
//!     state: State::New,
//! };
//! let wheel: Ref<Part> = tx.create(&wheel)?;
//! let editor = tx.edit(wheel)?; // any number of setters, and no `mut`
//! editor.set_state(State::Sold { cents: 2_000 })?;
//! editor.push_uses(wheel)?;
//!
//! let part: Obj<'_, Part> = tx.get(wheel)?;
//! assert_eq!((part.name()?.as_ref(), part.photo()?.len(), part.state()?), ("wheel", 0, State::Sold { cents: 2_000 }));
//! let sizes: Elements<'_, '_, Part, u32> = part.sizes_mm();
//! assert_eq!(sizes.to_vec()?, [640, 640, 30]);
//! let uses: Refs<'_, '_, Part, Part> = part.uses();
//! assert_eq!((uses.len(), uses.get(0)?.reference()), (1, wheel));
//! let within: RefField<'_, '_, Part, Part> = part.within();
//! assert!(within.is_null() && within.find()?.is_none());
//! assert!(matches!(within.get(), Err(Error::NotFound(_))));
//! assert!(part.label().is_none());
//! drop(part); // it belongs to its transaction
//!
//! let Committed { stamp, op, .. } = tx.commit()?;
//! // A program that lost the answer asks for it by the operation.
//! assert_eq!(space.resolve(op.expect("it wrote"))?, Some(stamp));
//! # space.close()?;
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What a transaction does
//!
//! ```
//! use tercel::{Error, Object, Ref};
//!
//! #[derive(Object)]
//! struct Node {
//!     value: u32,
//!     next: Ref<Node>,
//! }
//!
//! # let dir = std::env::temp_dir().join(format!("tercel-doc-does-{}", std::process::id()));
//! # let space = tercel::embedded(&dir)?;
//! space.run(|tx| {
//!     // Two that refer to each other: the one has a place before it is there.
//!     let first: Ref<Node> = tx.reserve(&Node { value: 0, next: Ref::NULL })?;
//!     let second = tx.create(&Node { value: 2, next: first })?;
//!     tx.fill(first, &Node { value: 1, next: second })?;
//!     assert!(tx.is_new(first) && tx.edit(first)?.reference() == first);
//!     tx.set_root("first", first)
//! })?;
//! space.run(|tx| {
//!     println!("as of commit {:?}", tx.snapshot());
//!     let first = tx.get_root::<Node>("first")?;
//!     let second = first.next().get()?;
//!     assert_eq!((first.value(), second.value()), (1, 2));
//!     tx.edit(second.reference())?.set_value(20)?;
//!     tx.replace(first.reference(), &Node { value: 10, next: Ref::NULL })
//! })?;
//! space.run(|tx| {
//!     let first: Ref<Node> = tx.get_root_ref("first")?.ok_or(Error::NotFound("the first".into()))?;
//!     assert_eq!((tx.get(first)?.value(), tx.find(Ref::<Node>::NULL)?.is_none()), (10, true));
//!     assert_eq!(tx.roots()?, [("first".to_string(), first.cast())]);
//!     assert!(tx.remove_root("first")? && tx.find_root::<Node>("first")?.is_none());
//!     Ok(())
//! })?;
//! # space.close()?;
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What went wrong
//!
//! ```
//! use tercel::{Bound, ClientConfig, Error, HacParams, Policy, ServerConfig};
//!
//! # let dir = std::env::temp_dir().join(format!("tercel-doc-wrong-{}", std::process::id()));
//! let policy = Policy::Hac(HacParams::default());
//! let few = ClientConfig { transactions_max: 1, policy, ..ClientConfig::default() };
//! let space = tercel::embedded_with(ServerConfig::new(&dir), few)?;
//! let first = space.transaction().begin()?;
//! let full = space.transaction().begin().err().expect("one is open");
//! assert!(matches!(full, Error::Full(Bound::Transactions)) && !full.is_retryable());
//! assert!(full.to_string().contains("`transactions_max`"), "it names the setting");
//! # drop(first);
//! # space.close()?;
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The guide, [docs/guide.md](https://github.com/tercel/tercel/blob/main/docs/guide.md), goes from here to
//! changed classes, collections, conflicts, and a server with several clients.
//!
//! | module | its noun |
//! |---|---|
//! | [`Client`], [`Tx`], [`Obj`], [`Ref`] | what a program holds |
//! | [`Watch`] | a stream of changes |
//! | [`Spaces`], [`Session`] | several spaces, read causally and written together |
//! | [`Server`] | a space being served |
//! | [`backup`], [`check`] | copies of a space, and whether one is sound |
//! | [`group`] | directories of the members of a group of servers |
//! | [`ring`] | messages of many senders in one order |
//! | [`collections`] | ordered maps and lists, as ordinary objects |
//! | [`object`] | views of objects, their fields and lists; what derived code is made of |
//! | [`rpc`] | calls of methods and services |
//! | [`dynamic`] | objects, maps and tables of programs whose classes this one does not have |
//! | [`status`] | what a server says of itself |
//! | [`tools`] | for tools that look at files, pages and frames; no promise of stability |
#![deny(missing_docs)]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate self as tercel;

pub mod access;
mod address;
pub mod backup;
mod channel;
pub mod check;
mod client;
mod datagrams;
mod disk;
pub mod dynamic;
mod files;
mod health;
mod identity;
mod lookup;
mod memory;
mod once;
mod panics;
mod pipe;
mod private;
mod proving;
pub mod ring;
mod server;
mod serving;
mod sharing;
mod single;
mod spaces;
mod stream;
mod tls;
pub mod tools;
mod transaction;

pub use address::{Address, AddressError, Addresses};
#[cfg(feature = "stream")]
pub use client::Changes;
pub use client::{
    Client, ClientBuilder, ClientConfig, ReadFrom, Stats, Transport, Watch, WatchBuilder, embedded,
    embedded_with,
};
pub use disk::DiskError;
pub use health::{Health, HealthState};
pub use once::{OnceKey, once};
pub use server::{
    Auditing, Collecting, Network, Peer, Recovered, Server, ServerBuilder, ServerConfig, ServerError,
    Stopper, Stopping, Warnings, group,
};
pub use sharing::SharedMemory;
pub use spaces::Spaces;
#[doc(inline)]
pub use tercel_collections as collections;
pub use tercel_collections::Key;
pub use tercel_derive::{Object, Record, interface, service};
pub use tls::{Tls, TlsError, TlsStatus};
pub use transaction::Transaction;
// The derive macros and their traits have the same names, so that one `use` brings both.
pub use tercel_engine::client::ClientStats;
pub use tercel_engine::error::{Bound, Contended, ErrorKind, FaultKind, ServerFault, Taken};
pub use tercel_engine::object::{Obj, Object, Record};
pub use tercel_engine::rpc::{Called, Context, Failure, Handle};
pub use tercel_engine::server::SpaceWarning;
pub use tercel_engine::spaces::{Cut, InSpace, Session};
pub use tercel_engine::status::ServerStatus;
pub use tercel_engine::txn::{AsOf, Change, Committed, Freshness, Isolation, Options, Tx};
pub use tercel_engine::{Error, object, status};

/// Calls of methods and services: what handles give, and what implementations take.
pub mod rpc {
    pub use tercel_engine::rpc::{
        CallPolicy, Callback, Called, Context, Failure, Handle, Input, Methods, Output, Pending, Pipelined,
        Service, ServiceHandle, Streaming,
    };
}
pub use tercel_events::Backend;
pub use tercel_heap::{HacParams, Policy, Stats as CacheStats};
pub use tercel_wire::far::{BadFar, Far};
pub use tercel_wire::id::{ClientId, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
pub use tercel_wire::lent::{Lending, LentBytes};
pub use tercel_wire::record::{Any, Bytes, List, Ref, Target, Text};
pub use tercel_wire::token::{Token, TokenError};
pub use tercel_wire::vector::Vector as SessionToken;

/// The support of derived code. Not for people.
#[doc(hidden)]
pub use tercel_engine::__private;
