//! Explicit event delivery: declare interest, take batches of events.
//!
//! The interface is that of Banga, Mogul and Druschel, *A Scalable and Explicit Event Delivery Mechanism for
//! UNIX* (1999): a source is declared once, and from then on the kernel remembers it; `get_next_events`
//! returns a bounded batch of what happened. Its cost does not depend on how many sources are silent, nor on
//! how fast the others are.
//!
//! It knows sockets, timers, wake-ups and, in [`shm`], memory shared with another process. It does not know
//! messages, and it decides nothing: what bytes mean, which peer to disconnect and how to answer overload is
//! the caller's business.
//!
//! # The contract
//!
//! - **One thread.** An [`EventQueue`] belongs to the thread that opened it. Other threads reach it by its
//!   [`Handle`].
//! - **Batches.** [`EventQueue::get_next_events`] returns at most `array_max` events and does not wait past
//!   its deadline. What does not fit stays queued, merged: one entry for each source, so the queue cannot
//!   overflow.
//! - **Tokens.** A source is named by a [`Token`], which is never given twice. After [`EventQueue::revoke`]
//!   no later batch names the token. A timer's token ends with its event, and a source's with
//!   [`Kind::Closed`].
//! - **Ownership.** The queue owns the descriptors that are declared or accepted, and closes them.
//! - **Receiving.** Bytes arrive in a [`Lease`], a buffer of the queue that returns when it is dropped. A
//!   silent stream holds no buffer. When all are leased, receiving rests, the kernel holds up the peers, and
//!   it resumes by itself.
//! - **Sending.** [`EventQueue::send`] queues a buffer and the next turn sends it, tried at once and without
//!   waiting for readiness. Bytes are never reordered and are lost only with their stream. Above a bound
//!   `send` refuses and gives the buffer back; below a mark [`Kind::Drained`] says so.
//! - **Limits are states.** A listener that meets the descriptor limit rests and tries again
//!   ([`ListenerState`]); a peer that does not read fills its own queue and nothing else. Each such moment is
//!   counted ([`Counters`]).
//! - **Two backends**, io_uring and epoll, chosen when the queue is opened ([`Backend`]): epoll, unless the
//!   ring is asked for. The environment variable `TERCEL_EVENTS` chooses for a whole process.
//!
//! # An echo server
//!
//! ```
//! use std::net::{TcpListener, TcpStream};
//! use tercel_events::{Config, EventQueue, Kind};
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! let client = std::thread::spawn(move || -> std::io::Result<String> {
//!     use std::io::{Read, Write};
//!     let mut stream = TcpStream::connect(address)?;
//!     stream.write_all(b"hello")?;
//!     stream.shutdown(std::net::Shutdown::Write)?;
//!     let mut answer = String::new();
//!     stream.read_to_string(&mut answer)?;
//!     Ok(answer)
//! });
//!
//! let mut queue = EventQueue::<()>::open(Config::small())?;
//! queue.declare_listener(listener, 0)?;
//! let mut batch = Vec::new();
//! let mut open = true;
//! while open {
//!     queue.get_next_events(&mut batch, 64, None)?;
//!     for event in batch.drain(..) {
//!         match event.kind {
//!             Kind::Received(bytes) => {
//!                 let mut reply = queue.spare_buffer();
//!                 reply.extend_from_slice(&bytes);
//!                 queue.send(event.token, reply)?;
//!             }
//!             Kind::EndOfStream => open = !queue.finish(event.token),
//!             Kind::Closed(reason) => panic!("{reason}"),
//!             _ => {}
//!         }
//!     }
//! }
//! assert_eq!(client.join().unwrap()?, "hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/proxy` is a whole program on it, an HTTP proxy.
//!
//! # The rooms
//!
//! `queue` (the doors), `turn` (flush, look, merge), `deliver` (events are made), `slots` and `token` (which
//! source has which slot), `list` (pending, once each), `ready` (the same by priority), `stream` and
//! `listener` (bytes and connections), `buffer` (leases), `timer` (the wheel), `ticker` (the kernel's timer),
//! `wake` (other threads), `sys` (the two backends and their contract), `datagrams` (a socket of them, beside
//! the queue), `shm` (a channel to another process of the host; it stands beside the queue, which knows only
//! its bell), `sync` (the atomics that loom replaces).

#![deny(missing_docs)]
#![deny(unsafe_code)]
// Loom's test takes the modelled file by its path; the rest of the crate is not built with loom's atomics.
#![cfg(not(loom))]

mod buffer;
mod config;
mod datagrams;
mod deliver;
mod event;
mod list;
mod listener;
mod queue;
mod ready;
pub mod shm;
mod slots;
mod stream;
mod sync;
mod sys;
mod ticker;
mod timer;
mod token;
mod turn;
mod wake;

pub use buffer::Lease;
pub use config::{Backend, Config, OpenError};
pub use datagrams::{DatagramSocket, Datagrams};
pub use event::{CloseReason, Counters, Event, Kind, ListenerState, Priority, Readiness};
pub use queue::{DeclareError, EventQueue, SendError, Wanted, Watch};
pub use token::Token;
pub use wake::{Handle, PostError};
