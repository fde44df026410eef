#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Key;

#[derive(Key, Debug, Clone)]
#[object(crate = "crate::host")]
struct Fine(u32);

#[derive(Key, Debug, Clone)]
#[object(crate = "crate::host")]
struct Two(u32, u32);

#[derive(Key, Debug, Clone)]
#[object(crate = "crate::host")]
struct Unit;

#[derive(Key, Debug, Clone)]
#[object(crate = "crate::host")]
enum Colour {
    Red,
}

#[derive(Key, Debug, Clone)]
#[object(crate = "crate::host")]
struct Any<T>(T);

#[derive(Key, Debug, Clone)]
#[object(crate = "crate::host")]
struct NotAKey {
    parts: Vec<u32>,
}

fn main() {}
