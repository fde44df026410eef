//! Package indexes of Debian: finding one, unpacking it, reading it stanza by stanza.
//!
//! This crate knows the text, but not its use. It reads one stanza at a time in memory that does not grow with the file,
//! and it gives each stanza as it stands. Two rules are left to the code that puts the stanzas together into a graph. A
//! check of such a graph must follow the same rules:
//!
//! 1. Of several stanzas with one name, the last wins. It wins entirely: the edges of the earlier ones go with them.
//! 2. A name that is mentioned in `Depends` or `Pre-Depends` of a winning stanza, but defined by no stanza, is a virtual
//!    package: a node of the graph without fields and without edges of its own. `Provides` is not followed.
//!
//! An edge is a name mentioned: each alternative of `a | b` counts, and version, architecture and build profile are
//! ignored. A name mentioned twice in one stanza is one edge.

mod error;
mod input;
mod lines;
mod lists;
mod near;
mod relation;
mod stanza;

pub use error::ParseError;
pub use input::{Input, OpenError, open, sample, stdin};
pub use lists::default_list;
pub use near::near;
pub use stanza::{StanzaRef, Stanzas};
