//! Methods of objects: written once, run where the object is cheapest.
//!
//! `#[interface]` makes of a trait with receivers a trait of functions over an [`Obj`](crate::object::Obj), which a class
//! implements, and a trait of calls, which a [`Handle`] has. A handle runs a method on the cached copy, inside of a transaction of
//! this client; or sends it to a server that offers the class's [`Methods`], which runs it inside of a transaction of its own
//! ([`crate::server::Server::run_calls`]). Either way a method is a transaction: it may be run more than once, has no effect
//! outside of the space before it commits, and leaves none if it fails.
//!
//! | module | its noun |
//! |---|---|
//! | `offers` | the methods that a server runs |
//! | `given` | what a method takes or gives, as bytes and as values |
//! | `handle` | an object whose methods are called |
//! | `failure` | how a call fails |

mod failure;
mod given;
mod handle;
mod offers;

pub use failure::{Called, Failure};
pub use given::{Given, finish, never, no_method, put_bytes};
pub(crate) use handle::has_written;
pub use handle::{CallPolicy, Handle, Stub};
pub use offers::{Ended, Methods, Offers, Run};
