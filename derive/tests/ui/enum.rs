#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;

#[derive(Object)]
#[object(crate = "crate::host")]
enum Part {
    A,
    B { id: u32 },
}

fn main() {}
