#[path = "../host/mod.rs"]
mod host;

use tercel_derive::Object;
use tercel_wire::record::Text;

#[derive(Object)]
#[object(crate = "crate::host")]
#[table(key = id, index(event, price), unique(code))]
struct Seat {
    id: u32,
    event: u32,
    price: u32,
    code: Text,
    note: Text,
}

/// The class's own editor.
fn edit(seat: SeatMut<'_>) {
    let _ = seat.set_note("free");
    let _ = seat.set_id(1);
    let _ = seat.set_price(7);
    let _ = seat.set_code("A1");
}

/// The table's editor.
fn edit_row(seat: SeatEdit<'_>) {
    let _ = (seat.set_note("free"), seat.set_price(7), seat.set_code("A1"));
    let _ = seat.set_id(1);
}

fn main() {}
