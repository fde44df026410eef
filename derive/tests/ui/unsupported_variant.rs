#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Record;

struct Plain;

#[derive(Record)]
#[object(crate = "crate::host")]
enum State {
    New,
    #[object(name = "old")]
    Old(u32, String),
}

#[derive(Record)]
#[object(crate = "crate::host")]
enum Kind {
    Known,
    Other { what: Plain },
}

#[derive(Record)]
#[object(crate = "crate::host")]
enum Never {}

fn main() {}
