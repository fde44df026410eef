#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;
use tercel_wire::record::List;

struct Plain;

#[derive(Object)]
#[object(crate = "crate::host")]
struct Whole {
    parts: List<Plain>,
}

fn main() {}
