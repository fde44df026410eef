//! The integration tests of this crate, one module a file. They are one program, because every program is
//! linked for itself.

mod program;
#[path = "../../../wire/tests/it/promise/mod.rs"]
mod promise;
mod readers;
mod room;

use tercel_testkit as world;

mod across;
mod backup;
mod births;
mod bounds;
mod calls;
mod classes;
mod collect;
mod copies;
mod decoders;
mod enums;
mod errors;
mod exports;
mod follower;
mod golden;
mod grants;
mod greeting;
mod group;
mod health;
mod history;
mod homes;
mod indoors;
mod inside;
mod inside_model;
mod large;
mod lists;
mod overfull;
mod places;
mod rights;
mod seeds;
mod server;
mod settle;
mod space;
mod spaces;
mod stories;
mod turns;
mod unchanged;
