//! The command's reader of Packages files. It is part of a program, so its files are taken here as they stand.
#![allow(dead_code, reason = "the command uses more of it")]

#[path = "../../cli/src/debian/error.rs"]
mod error;
#[path = "../../cli/src/debian/lines.rs"]
mod lines;
#[path = "../../cli/src/debian/relation.rs"]
mod relation;
#[path = "../../cli/src/debian/stanza.rs"]
pub mod stanza;
