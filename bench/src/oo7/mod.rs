//! The OO7 database (Carey, DeWitt and Naughton, "The OO7 Benchmark", SIGMOD 1993), described once for every
//! system that is measured on it.

mod generate;
mod random;
mod spec;

pub use generate::{
    Assembly, Components, Composite, Connection, Design, Document, Manual, Module, Part, Sink, generate,
};
pub use spec::Spec;
