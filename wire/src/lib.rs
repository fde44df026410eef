//! The byte formats of every frame, record, page and log entry of Tercel.
//!
//! This crate knows layouts and nothing else: no sockets, no files, no clock, no unsafe code. Whatever comes
//! from outside is checked once, here, and becomes a type that cannot be wrong; whatever was wrong is an
//! error that says what was found. All integers are little-endian, on disk and on the wire.
//!
//! | module | its noun |
//! |---|---|
//! | [`id`] | references, pages, slots, stamps, operations: each its own type |
//! | [`schema`] | what a class looks like, as a constant of a program |
//! | [`layout`] | the same, as stored in a space's catalogue, with offsets; checks records |
//! | [`record`] | values into records, and the numbers back out |
//! | [`page`] | objects in slots, with checksum and stamp |
//! | [`frame`] | the 64-byte header before every message |
//! | [`deframer`] | a stream of bytes, cut into frames |
//! | [`token`] | a stamp that may be passed on |
//! | [`vector`] | stamps of several spaces |
//! | [`far`] | references to objects of other spaces |
//! | [`access`] | principals, and what they may do |
//! | [`message`] | the bodies of messages |
//! | [`interface`] | methods of objects, with what they take and give |
//! | [`payload`] | arguments and results of calls |
//! | [`said`] | what arguments say, whichever version of a method they are of |
//! | [`lent`] | byte strings that are lent to a procedure where they arrived |
//! | [`datum`] | the same of a class that no program here has |
//! | [`log`] | what the log of a server looks like |
//! | [`class`] | classes that Tercel itself defines: roots and the leaves of big values |
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod access;
pub mod class;
pub mod cursor;
pub mod datum;
pub mod deframer;
pub mod far;
pub mod frame;
pub mod id;
pub mod interface;
pub mod layout;
pub mod lent;
pub mod log;
pub mod message;
pub mod page;
pub mod payload;
pub mod record;
pub mod said;
pub mod schema;
pub mod spare;
pub mod token;
pub mod vector;
