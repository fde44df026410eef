//! OO7 in Tercel, written as a program of a user would be: classes, a builder, two traversals.
//!
//! Nothing here knows more than the library's public face. The traversals visit in the order of the native ones and leave
//! the same tally.

mod build;
mod classes;
mod traverse;

pub use build::build;
pub use traverse::{t1, t1_in_steps, t2b, t6};
