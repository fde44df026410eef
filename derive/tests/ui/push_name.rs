#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;
use tercel_wire::record::List;

#[derive(Object)]
#[object(crate = "crate::host")]
struct Part {
    push_sizes: u32,
    sizes: List<u32>,
}

fn main() {}
