//! Checks of state that a history does not show: the pages and the log, byte by byte.

pub(crate) mod pages;
pub(crate) mod reach;
