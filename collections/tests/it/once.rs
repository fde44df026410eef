//! Keys are kept within bounds.

use std::cell::Cell;

use crate::common::{LARGE, space};
use tercel::{Client, Error, Text};
use tercel_collections::once::{DayMax, Hour, OnceKey, Process, once};

/// A process that sees no hour pass.
struct Still(DayMax);

impl Process for Still {
    fn draw(&self) -> Result<[u64; 2], Error> {
        Ok([11, 47])
    }

    fn passed(&self, _: [u64; 2], _: Hour) -> u32 {
        0
    }

    fn day_max(&self) -> DayMax {
        self.0
    }
}

const KEYS: u64 = 16_000;

/// Keeps results under all keys, in order, and gives the first that is still there.
fn first_kept(client: &Client, process: &Still, result: &str) -> u64 {
    for first in (0..KEYS).step_by(200) {
        let keep = |number: u64| format!("order {number}");
        client
            .run(|tx| {
                for number in first..first + 200 {
                    once(process, tx, OnceKey::from(keep(number).as_str()), || Ok(Text::from(result)))?;
                }
                Ok(())
            })
            .unwrap();
    }
    let is_kept = |number: u64| {
        let has_run = Cell::new(false);
        let key = format!("order {number}");
        let looked = client.run(|tx| {
            once(process, tx, OnceKey::from(key.as_str()), || {
                has_run.set(true);
                Err::<Text, _>(Error::Failed("it is not there".into()))
            })
        });
        assert_eq!(looked.is_ok(), !has_run.get(), "{looked:?}");
        !has_run.get()
    };
    let first = (0..KEYS).step_by(100).find(|number| is_kept(*number)).unwrap();
    assert!((first..KEYS).step_by(100).all(is_kept), "a newer key has gone before an older one");
    first
}

#[test]
fn oldest_keys_go_beyond_bound_of_number() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let first = first_kept(&client, &Still(DayMax { keys: 2_048, bytes: u64::MAX }), "paid");
    assert!((6_000..KEYS - 2 * 1_024).contains(&first), "{first}");
}

#[test]
fn oldest_keys_go_beyond_bound_of_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let result = "x".repeat(400);
    let first = first_kept(&client, &Still(DayMax { keys: u64::MAX, bytes: 2_048 * 400 }), &result);
    assert!((6_000..KEYS - 2 * 1_024).contains(&first), "{first}");
}
