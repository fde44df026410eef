//! Package indexes of Debian: finding one, unpacking it, reading it stanza by stanza.
//!
//! This crate knows the text, but not its use. It reads one stanza at a time in memory that does not grow
//! with the file, and it gives each stanza as it stands. These rules are left to the code that puts the
//! stanzas together into a graph. A check of such a graph must follow the same rules:
//!
//! 1. Stanzas of another architecture than the one that was asked for, and than `all`, are left out.
//! 2. Of several stanzas with one name, the one with the highest version wins ([`compare`]); of equal ones
//!    the first, as with apt. It wins entirely: the edges of the others go with them.
//! 3. A name that is mentioned in `Depends` or `Pre-Depends` of a winning stanza, but defined by no stanza,
//!    is a virtual package: a node of the graph without fields and without edges of its own. `Provides` is
//!    not followed.
//!
//! An edge is a name mentioned: each alternative of `a | b` counts, and version, architecture and build
//! profile are ignored. A name mentioned twice in one stanza is one edge.

mod error;
mod input;
mod lines;
mod lists;
mod near;
mod relation;
mod stanza;
mod version;

pub use error::ParseError;
pub use input::{Input, OpenError, open, sample, stdin};
pub use lists::default_list;
pub use near::near;
pub use stanza::{StanzaRef, Stanzas};
pub use version::compare;
