#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;

#[derive(Object)]
#[object(crate = "crate::host")]
struct Part {
    set_id: u32,
    id: u32,
}

fn main() {}
