#[path = "../host/mod.rs"]
mod host;

use host::__private::Error;
use tercel_derive::Object;
use tercel_wire::record::Text;

#[derive(Object)]
#[object(crate = "crate::host")]
struct Part {
    name: Text,
    id: u32,
}

fn rename(part: &PartView<'_>) -> Result<(), Error> {
    part.set_name("wheel")?;
    part.set_id(7)
}

fn main() {}
