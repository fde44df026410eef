//! Reading everything, when all is quiet: what a cache says, what the server says.

use std::cell::RefCell;
use std::time::Duration;

use tercel_engine::error::Error;
use tercel_engine::txn::{Options, Tx, run};
use tercel_verify::{Kind, Object, Value, View};

use super::actor::HEALED_WAIT_US;
use super::{CRADLE, ELEMENTS_MAX, Ground, KEYS, Notes, bulk_id, cell_id, element_id, key_id};
use crate::port::ActorPort;

/// All objects as a client sees them, and whether anything about them is wrong. One after the other: together
/// they may be on more pages than a session may be subscribed to, and nothing changes meanwhile.
pub(crate) fn read_all(
    port: &ActorPort<'_>,
    ground: &Ground,
    viewer: String,
    kind: Kind,
) -> Result<(View, Option<String>), Error> {
    let notes = RefCell::new(Notes::new(0, 0));
    // With a time of its own a transaction waits for a connection that was just found to be gone.
    let options = Options { timeout: Some(Duration::from_micros(HEALED_WAIT_US)), ..Options::default() };
    let each = |look: &dyn Fn(&Tx<'_>, &mut Notes) -> Result<(), Error>| {
        run(port, options, |tx| look(tx, &mut notes.borrow_mut()))
    };
    for (i, cell) in ground.cells.iter().enumerate() {
        each(&|tx, notes| notes.see(tx, *cell, cell_id(i)))?;
    }
    for (i, cell) in ground.bulk.iter().enumerate() {
        each(&|tx, notes| notes.see(tx, *cell, bulk_id(i)))?;
    }
    for key in 0..KEYS {
        each(&|tx, notes| match ground.map.get_ref(tx, key)? {
            Some(cell) => notes.see(tx, cell, key_id(key)),
            None => {
                notes.saw(key_id(key), Value::INITIAL);
                Ok(())
            }
        })?;
    }
    for i in 0..ELEMENTS_MAX {
        each(&|tx, notes| match ground.vector.get_ref(tx, i)? {
            Some(cell) => notes.see(tx, cell, element_id(i)),
            None => Ok(()),
        })?;
    }
    each(&|tx, notes| {
        notes.see(tx, ground.cradle, CRADLE)?;
        let cradle = tx.get(ground.cradle)?;
        let (child, object) = (cradle.next().reference(), Object(cradle.next_object()));
        if !child.is_null() {
            notes.look(tx, child, object)?;
        }
        Ok(())
    })?;
    ground.anchors.walk_all(&each)?;
    for key in 0..KEYS {
        each(&|tx, notes| {
            let [a, b] = &ground.twins;
            if a.contains(tx, key)? != b.contains(tx, key)? {
                notes.wrong = Some("two maps that are changed together differ in the end".into());
            }
            Ok(())
        })?;
    }
    let mut notes = notes.into_inner();
    let wrong = notes.wrong.take();
    let (objects, _) = notes.into_parts();
    Ok((View { viewer, kind, objects }, wrong))
}
