//! Methods of objects, written once and run where the object is cheapest; and services, procedures without an
//! object.
//!
//! `#[interface]` makes of a trait with receivers a trait of functions over an [`Obj`](crate::object::Obj),
//! which a class implements, and a trait of calls, which a [`Handle`] has. A handle runs a method on the
//! cached copy, inside of a transaction of this client; or sends it to a server that offers the class's
//! [`Methods`], which runs it inside of a transaction of its own ([`crate::server::Server::run_calls`]).
//! Either way a method is a transaction: it may be run more than once, has no effect outside of the space
//! before it commits, and leaves none if it fails.
//!
//! `#[service]` makes of a trait one that a server implements and one that a [`ServiceHandle`] has. A
//! procedure is no transaction: it may do anything, and is therefore executed at most once. Two tables see to
//! that, one at each end of a connection: the slots of the client ([`slots`]) and what the server keeps of
//! them ([`served`]). Neither knows of connections, messages or time, so a host can use them directly.
//!
//! So they hold where single messages are lost, come twice, or overtake each other. A host of such a link
//! keeps these rules, and `sim/src/lossy` is one that does:
//!
//! - Each message names the table that it is of, and one of another table is not believed: a server refuses
//!   it whatever it says, a client drops it. A call has its name for good in one table only, so a copy of it
//!   is new to every other.
//! - The caller that waits sends its call again, under the same name and with the rest of its time. A call
//!   that was given up is cancelled again until that is answered ([`slots::Slots::given_up`]). A server sends
//!   nothing for a second time by itself.
//! - Calls that are never answered may be lost, also those that a later one overtakes.
//! - What belongs to a call with streams, from its request to its response, goes where the order is kept and
//!   nothing is lost before the end. Copies do no harm, also those that come after that end.
//!
//! | module | its noun |
//! |---|---|
//! | `offers` | the methods that a server runs |
//! | `given` | what a method takes or gives, as bytes and as values |
//! | `calling` | a call under way, at its caller |
//! | `handle` | an object whose methods are called |
//! | `reply_body` | the body of a response while it is made |
//! | `service` | a service as a client calls it |
//! | `serve` | a call that arrives at a server |
//! | `services` | the services that a server offers, and how a procedure is run |
//! | `streams` | the streams of a call: items in windows |
//! | `items` | the streams of a call as its procedure has them |
//! | `streaming` | a call with streams as its caller has it |
//! | `pipelined` | calls that are begun now and waited for later |
//! | `versions` | interfaces of callers that were built at another time |
//! | `described` | a call of a method that is known from the server's description alone |
//! | `context` | what a procedure knows of its call |
//! | [`slots`] | the calls that a client has under way |
//! | [`served`] | what a server keeps of a client's calls |
//! | `credit` | the bytes that calls may have under way |
//! | `failure` | how a call fails |

mod awaiting;
mod calling;
mod context;
pub(crate) mod credit;
mod described;
mod failure;
mod given;
mod handle;
mod items;
mod offers;
mod pipelined;
mod reply_body;
mod serve;
pub mod served;
mod service;
mod services;
pub mod slots;
mod streaming;
pub mod streams;
#[cfg(test)]
mod tests;
pub(crate) mod versions;

pub use calling::Reads;
pub(crate) use calling::takes_no_key;
pub use context::{CallKey, Context};
pub use described::{Described, Reply};
pub use failure::{Called, Failure};
pub use given::{Given, finish, finish_in, never, no_method, put_bytes, put_lending};
pub(crate) use handle::has_written;
pub use handle::{CallPolicy, Handle, Stub};
pub use items::{Callback, Input, ItemPort, Numbered, Output, Plain};
pub(crate) use offers::Runs;
pub use offers::{Ended, KeptResult, Methods, Offers, Once, Run};
pub use pipelined::{Pending, Pipelined};
pub use reply_body::{ReplyBody, SharedRoom};
pub use serve::{Taken, serve, serve_named};
pub use service::{ServiceHandle, stamp_of};
pub use services::{Job, JobDone, JobId, Procedure, Service, ServiceInterface, Services, Taking, put};
pub use streaming::Streaming;
pub use versions::read_kept;
