//! Gateways as programs meet them: by HTTP over a socket, in front of real servers.

mod bounds;
mod callers;
mod calls;
mod common;
mod group;
mod https;
mod objects;
mod slow;
mod tables;
mod tokens;
mod watch;
