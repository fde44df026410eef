#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;

#[derive(Object)]
#[object(crate = "crate::host")]
struct Part {
    id: u32,
    nothing: [u8; 0],
}

fn main() {}
