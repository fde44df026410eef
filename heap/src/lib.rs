//! Where Tercel objects live in memory: frames, handles, swizzled references, pins, replacement.
//!
//! This crate caches pages that others fetch and gives views of their objects. It fetches nothing, decides
//! nothing about transactions and makes no system call: its arena and its fence are handed in. It has two
//! faces. A [`Reader`], for any thread, opens a [`Scope`] a transaction; a hit is a few loads and plain
//! stores. The [`Writer`] has one owner: it installs pages, flags what a commit made obsolete, swizzles, and
//! makes room by the hybrid policy of HAC (Castro, Adya, Liskov, Myers: *HAC: Hybrid Adaptive Caching for
//! Distributed Storage Systems*, SOSP '97).
//!
//! A [`Copier`] is a heap without frames, for a process that has the pages itself: its scopes hold copies of
//! what they read, and no reference is followed without asking.
//!
//! Nothing that can be seen is ever overwritten or slid: new versions and kept objects go to a fresh place,
//! and a frame is reused only when no view is in it and no way leads there.
//!
//! Public functions are safe and sound whatever their caller does; what the caller must keep in order for the
//! *answers* to be right (flag, then advance, then install) is said at each of them.
//!
//! | module | its noun |
//! |---|---|
//! | `memory` | the arena and the fence that are handed in |
//! | `arena`, `page`, `swizzle` | places, slots of intact frames, forms of reference words |
//! | `protocol`, `sync` | the steps that threads take at the same time |
//! | `class` | which bytes of a type are references, and which types are bound |
//! | `table`, `hints`, `page_table` | handles, where references were last found, which frame a page is in |
//! | `scope_slot`, `scope` | pins and marks, the hit path |
//! | `view`, `write_set` | what a program reads, what it has changed |
//! | `hold` | the way in which a view's object is kept in its place |
//! | `version`, `chunks` | objects outside of the arena |
//! | `copies`, `copier` | a heap without frames, whose owner has the pages |
//! | `writer` | one file a transition: `resolve`, `install`, `flag`, `keep`, `replace` |
#![cfg(not(loom))]

#[cfg(target_endian = "big")]
compile_error!("reference words are read as they are stored, which is little-endian");

mod arena;
mod bindings;
mod chunks;
mod class;
mod config;
mod copier;
mod copies;
mod hints;
mod hold;
mod memory;
mod page;
mod page_table;
mod protocol;
mod scope;
mod scope_slot;
mod shared;
mod stats;
mod swizzle;
mod sync;
mod table;
mod version;
mod view;
mod write_set;
mod writer;
mod zeroed;

use tercel_machine::mutant;

pub use arena::FRAME_BYTES;
pub use bindings::BindError;
pub use class::{TYPES_MAX, TypeIndex, TypeKey, Typed};
pub use config::{
    BUDGET_BYTES_MIN, Config, ConfigError, FRAMES_MIN, HacParams, Policy, SCOPES_MAX, arena_bytes,
};
pub use copier::{Copied, Copier};
pub use memory::{Boxed, Fence, Memory, OneAtATime, SeqCst};
pub use scope::{Lookup, Reader, Scope};
pub use shared::TRACE_PAGES_MAX;
pub use stats::Stats;
pub use view::{Items, Left, Lent, RefView, View};
pub use write_set::{WriteSet, WriteSetError};
pub use writer::{Doomed, Full, InstallError, Resolved, Writer, heap};
