//! The graph of Debian's packages as objects: what `tercel import`, `query`, `demo` and `bench graph` share.
//!
//! | module | its noun |
//! |---|---|
//! | [`model`] | the classes and the roots |
//! | [`list`] | a list that was read |
//! | [`import`] | a list that becomes objects |
//! | [`query`] | closures and paths over them |

pub mod import;
pub mod list;
pub mod model;
pub mod query;
