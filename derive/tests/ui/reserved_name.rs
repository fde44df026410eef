#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;

#[derive(Object)]
#[object(crate = "crate::host")]
struct Part {
    reference: u32,
    clone: u32,
    edit: u32,
    id: u32,
}

fn main() {}
