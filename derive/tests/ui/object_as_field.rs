#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;
use tercel_wire::record::{List, Ref};

#[derive(Object)]
#[object(crate = "crate::host")]
struct Wheel {
    spokes: u32,
    next: Ref<Wheel>,
}

#[derive(Object)]
#[object(crate = "crate::host")]
struct Cart {
    front: Wheel,
}

#[derive(Object)]
#[object(crate = "crate::host")]
struct Train {
    wheels: List<Wheel>,
}

fn main() {}
