//! The tests of the program, one module a file.

mod common;

mod events;
mod load;
mod mishaps;
mod soak;
