#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Record;

#[derive(Record)]
#[object(crate = "crate::host")]
union Part {
    a: u32,
    b: i64,
}

fn main() {}
