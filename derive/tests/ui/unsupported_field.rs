#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;
use tercel_wire::record::List;

#[derive(Object)]
#[object(crate = "crate::host")]
struct Part {
    id: u32,
    name: String,
    tags: Option<Vec<u8>>,
    notes: List<std::string::String>,
    other: Box<Part>,
    count: usize,
    label: &'static str,
    place: (u32, u32),
    prices: std::collections::HashMap<u32, u32>,
}

fn main() {}
