//! The tests of the program, one module a file.

mod common;

mod load;
mod mishaps;
mod soak;
