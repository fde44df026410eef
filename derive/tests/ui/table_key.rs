#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;
use tercel_wire::record::List;

#[derive(Object)]
#[object(crate = "crate::host")]
#[table(key = id, index(parts))]
struct NotAKey {
    id: u32,
    parts: List<u32>,
}

fn main() {}
