//! The integration tests of this crate, one module a file. They are one program, because every program is
//! linked for itself.
//!
//! `tests/fork.rs` stands apart: a forked child has one thread, so a lock that another thread held is never
//! released.

mod absent;
mod application;
mod asynchronous;
mod audit;
mod common;
mod damage;
#[path = "../../../engine/tests/it/program/mod.rs"]
mod program;

mod backup;
mod calls;
mod collections;
mod crowd;
mod dynamic;
mod embedded;
mod examples;
mod flips;
mod fresh;
mod full;
mod guide;
mod health;
mod hostile;
mod inside;
mod kill;
mod lent;
mod limits;
mod load;
mod memory;
mod misuse;
mod moody;
mod moved;
mod names;
mod network;
mod once;
mod order;
mod pipelined;
mod quotes;
mod read_only;
mod reconnects;
mod repair;
mod rights;
mod rights_by_links;
mod ring;
mod sends;
mod services;
mod session;
mod session_tasks;
mod sets;
mod shared;
mod spaces;
mod stored;
mod streams;
mod threads;
mod turns;
mod udp;
mod versions;
mod wakers;
mod watch;
mod watchers;
