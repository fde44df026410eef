//! The integration tests of this crate, one module a file. They are one program, because every program is
//! linked for itself.

mod common;

mod inside;
mod isolation;
mod map;
mod migrate;
mod once;
mod table;
mod values;
mod vector;
