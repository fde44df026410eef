#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;

use tercel_wire::record::List;

#[derive(Object)]
#[object(crate = "crate::host")]
struct Part {
    four: List<List<List<Option<u8>>>>,
    five: List<List<List<List<Option<u8>>>>>,
}

fn main() {}
