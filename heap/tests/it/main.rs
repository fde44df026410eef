//! The integration tests of this crate, one module a file. They are one program, because every program is
//! linked for itself.
//!
//! `tests/loom.rs` stands apart, because it is built with `--cfg loom`.

mod common;

mod births;
mod copies;
mod exact;
mod holds;
mod hops;
mod model;
mod policy;
mod stories;
mod stress;
