#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;

#[derive(Object)]
#[object(crate = "crate::host")]
struct Part {
    #[object(name = "number")]
    id: u32,
}

fn main() {}
