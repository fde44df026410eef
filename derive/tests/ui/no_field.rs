#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Record;

#[derive(Record)]
#[object(crate = "crate::host")]
struct Size {}

fn main() {}
