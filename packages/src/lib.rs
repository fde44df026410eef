//! The graph of Debian's packages as objects: what `tercel import`, `query`, `demo` and `bench graph` share.
//!
//! | module | its noun |
//! |---|---|
//! | [`model`] | the classes and the roots |
//! | [`import`] | a list that becomes objects |
//! | [`query`] | closures and paths over them |

pub mod import;
pub mod model;
pub mod query;
