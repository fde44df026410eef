#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Record;

#[derive(Record)]
#[object(crate = "crate::host")]
struct Size {
    wide: std::time::Duration,
    high: u32,
}

fn main() {}
