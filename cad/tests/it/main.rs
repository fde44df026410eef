//! The integration tests of this crate, one module a file. They are one program, because every program is
//! linked for itself.

mod imported;
