#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;

#[derive(Object)]
#[object(crate = "crate::host")]
struct Part {
    some: [u8; 8_000],
    more: [u8; 16],
    last_straw: u8,
    after: u32,
}

fn main() {}
