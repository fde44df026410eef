#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;

struct Size {
    wide: u32,
}

#[derive(Object)]
#[object(crate = "crate::host")]
struct Part {
    id: u32,
    size: Size,
}

fn main() {}
