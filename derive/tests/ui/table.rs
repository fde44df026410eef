#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;

#[derive(Object)]
#[object(crate = "crate::host")]
#[table(index(id))]
struct NoKey {
    id: u32,
}

#[derive(Object)]
#[object(crate = "crate::host")]
#[table(key = id, index(colour))]
struct NoField {
    id: u32,
}

#[derive(Object)]
#[object(crate = "crate::host")]
#[table(key = id, index(a, b), unique(a, b))]
struct Twice {
    id: u32,
    a: u32,
    b: u32,
}

#[derive(Object)]
#[object(crate = "crate::host")]
#[table(key = (id, id))]
struct SameField {
    id: u32,
}

#[derive(Object)]
#[object(crate = "crate::host")]
#[table(key = (a, b, c, d, e))]
struct TooMany {
    a: u32,
    b: u32,
    c: u32,
    d: u32,
    e: u32,
}

#[derive(Object)]
#[object(crate = "crate::host")]
#[table(key = id, hash(a))]
struct Unknown {
    id: u32,
    a: u32,
}

fn main() {}
