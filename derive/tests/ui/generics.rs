#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;

#[derive(Object)]
#[object(crate = "crate::host")]
struct Part<T: 'static> {
    id: u32,
    value: T,
}

#[derive(Object)]
#[object(crate = "crate::host")]
struct Borrowed<'a> {
    id: &'a u32,
}

#[derive(Object)]
#[object(crate = "crate::host")]
struct Bounded
where
    u32: Copy,
{
    id: u32,
}

fn main() {}
