#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;

#[derive(Object)]
#[object(crate = "crate::host", colour = "red")]
struct Part {
    id: u32,
}

#[derive(Object)]
#[object(name = 3, crate = "crate::host")]
struct Number {
    id: u32,
}

#[derive(Object)]
#[object(name = "A", name = "B")]
struct Twice {
    id: u32,
}

#[derive(Object)]
#[object(name = "")]
struct Nameless {
    id: u32,
}

#[derive(Object)]
#[object(crate = "not a path")]
struct Lost {
    id: u32,
}

#[derive(Object)]
#[object]
struct Bare {
    id: u32,
}

fn main() {}
