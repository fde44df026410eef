//! What a server keeps: the ordered state, the buffer of modified objects, the pages.
//!
//! Asks for reads and writes, does none.

pub mod entry;
pub mod image;
pub mod mob;
pub mod staged;
pub mod state;
pub mod when;
