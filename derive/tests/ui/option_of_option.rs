#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;

use tercel_wire::record::List;

#[derive(Object)]
#[object(crate = "crate::host")]
struct Part {
    id: Option<u32>,
    size: Option<Option<u32>>,
    sizes: List<Option<Option<u8>>>,
}

fn main() {}
