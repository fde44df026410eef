//! The integration tests of this crate, one module a file. They are one program, because every program is
//! linked for itself.

mod command;
mod histories;
mod lossy;
#[cfg(tercel_mutants)]
mod mutants;
mod same_twice;
mod seeds;
