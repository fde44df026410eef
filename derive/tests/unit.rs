//! Runs the unit tests in `src/`. A test build of a procedural macro is one for the compiler, so cargo would
//! build all that the tests need a second time; the library therefore has `test = false`, and its modules are
//! compiled here.
#![allow(dead_code, reason = "the macros use more of the modules than their tests do")]

#[path = "../src/advise.rs"]
mod advise;
#[path = "../src/input.rs"]
mod input;
