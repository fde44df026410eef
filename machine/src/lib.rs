//! Arguments of machines: time, numbers from a seed, and rules that a test drops.
//!
//! A machine has no clock and no randomness of its own. Its host hands in a [`time::Now`] and a seed, so that
//! the same inputs give the same outputs in a simulated world and in a process.
#![forbid(unsafe_code)]

pub mod mutant;
pub mod random;
pub mod time;
