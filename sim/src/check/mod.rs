//! What the simulator can see and a history cannot: the pages and the log, byte by byte.

pub(crate) mod pages;
