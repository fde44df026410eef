//! The integration tests of this crate, one module a file. They are one program, because every program is linked for itself.

mod common;
#[path = "../../../engine/tests/it/local/mod.rs"]
mod local;

mod inside;
mod isolation;
mod map;
mod vector;
