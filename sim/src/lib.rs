//! The engine, unchanged, in a world made from one seed.
//!
//! A world is a server or a group of them, some clients with threads of user code, a network, disks, clocks,
//! and whatever goes wrong with them. Everything in it follows from a [`Plan`], and a plan from a number, so
//! a failure is a command line. Not here: sockets, files, real time. What the engine is given instead is
//! below; nothing between differs from a real process.
//!
//! | in the world | what it is |
//! |---|---|
//! | clients | the engine's client machine and heap, each with its own clock; threads that run transactions on objects, maps and vectors, one at a time under a baton |
//! | a program in the server | threads that run the same transactions inside of a server's process, and end with it |
//! | group | in every other world: up to five members, each with disk, log, votes and sizes of its own |
//! | members | in half of those worlds they come, vote and go, and lose disks and ends of logs |
//! | links of members | one way or both cut, clogged; packets that are lost, doubled or of views long over |
//! | network | connections that carry bytes in order and are cut, half open, silent, slow or garbled |
//! | loop | the engine's scheduler over frames that take time: slices end, connections wait for turns, clients read slowly, the loop waits for its own syncs |
//! | log | the real encoding on a disk of bytes: torn writes, lost writes, failed operations, a full disk, flipped bits |
//! | pages | whole installs, with or without the word of it; failed and damaged reads |
//! | directory | in some worlds is put back from a copy, when all is quiet, with what was committed since lost |
//! | processes | are killed, lose their power, stand still, stop cleanly, start again, and die while starting |
//! | clocks | run at their own speed and jump ahead |
//!
//! A run has two halves (safety, then liveness): while faults strike nothing wrong may be seen; then
//! everything works, every thread must come to an end, every cache must say what the server says, and the
//! stored pages what the log says. At equal stamps ordered state and pages of all members are equal, at any
//! time; a view has one leader, and what is stable stays. `tercel-verify` judges the history of the run.
//!
//! | module | its noun |
//! |---|---|
//! | [`plan`] | what a seed draws |
//! | `scheduler`, `port` | the baton, and waiting as letting the world go on |
//! | `world` | the queue of events; `node`, `start`, `turn`, `client`, `inside`, `net`, `fault`, `copy`; `group`, `changes`, `transfer`, `votes`; `oracle`, `conditions` and `compare`, which look on. Disk, log and clock of a node are `tercel-testkit`'s |
//! | [`lossy`] | worlds of another kind: calls of services over links that lose single messages |
//! | `slow` | a slow call with streams, as worlds of both kinds run it |
//! | [`workload`] | what the clients do |
//! | `watched` | what a watch told, against the history |
//! | `check` | what only the simulator can see: stored pages against the log, what is left against what roots reach |
//! | [`shrink`] | a shorter script of a failure |
//! | [`rule`], [`hunt`] | rules that can be dropped on purpose, and the worlds that notice |
#![deny(unsafe_code)]

mod check;
pub mod hunt;
pub mod lossy;
pub mod plan;
mod port;
mod quiet;
pub mod record;
pub mod rule;
mod run;
mod scheduler;
pub mod shrink;
mod slow;
mod trace;
mod watched;
pub mod workload;
mod world;

pub use plan::Plan;
pub use run::{Report, run};
