//! The row `rows.watch.range`: how late a watch of a large range tells keys that come, beside changes at a
//! steady pace.

use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use tercel::collections::Map;
use tercel::{Client, Object, Server};

use super::Options;
use super::blocks::percentile;
use super::report::Row;
use super::scratch::Scratch;

#[derive(Object)]
struct Mark {
    n: u64,
}

/// Entries of the range before the first change.
const ENTRIES: u64 = 20_000;
/// Changes of a second.
const PACE: u64 = 300;

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options, scratch: &Scratch) -> Result<Row, String> {
    options.say("watching a range");
    let server = Server::builder(scratch.join("told")).listen("127.0.0.1:0").start().map_err(failed)?;
    let [writer, watcher] = [(); 2].map(|()| Client::connect(&server.addresses()[0]).map_err(failed));
    let (writer, watcher) = (writer?, watcher?);
    let made = writer.run(|tx| {
        let map = Map::<u64, Mark>::create(tx)?;
        for n in 0..ENTRIES {
            map.insert(tx, 2 * n, tx.create(&Mark { n })?)?;
        }
        Ok(map)
    });
    let map = made.map_err(failed)?;
    let mut watch = watcher.watch().range(map, ..).start().map_err(failed)?;
    let changes = PACE * if options.quick { 3 } else { 20 };
    let sent = Mutex::new(HashMap::new());
    let mut late = Vec::with_capacity(changes as usize);
    thread::scope(|scope| -> Result<(), String> {
        let writes = scope.spawn(|| {
            let begin = Instant::now();
            for n in 0..changes {
                // All over the range, each key once.
                let key = 2 * (n * 7_919 % ENTRIES) + 1;
                let due = begin + Duration::from_micros(n * 1_000_000 / PACE);
                thread::sleep(due.saturating_duration_since(Instant::now()));
                sent.lock().map_err(failed)?.insert(key, due);
                writer.run(|tx| map.insert(tx, key, tx.create(&Mark { n })?)).map_err(failed)?;
            }
            Ok::<(), String>(())
        });
        while late.len() < changes as usize {
            let Some(change) = watch.next_within(PATIENCE).map_err(failed)? else {
                return Err(format!("{} changes of {changes} were told", late.len()));
            };
            let told = Instant::now();
            let key = map.key_of(&change).map_err(failed)?.ok_or("a change without a key")?;
            if let Some(at) = sent.lock().map_err(failed)?.remove(&key) {
                late.push((told - at).as_secs_f64() * 1e3);
            }
        }
        writes.join().unwrap_or_else(|_| Err("the writer has panicked".into()))
    })?;
    drop((watch, writer, watcher));
    server.stop().map_err(failed)?;
    late.sort_unstable_by(f64::total_cmp);
    let p50 = percentile(&late, 0.5);
    Ok(Row::new("rows.watch.range", percentile(&late, 0.99), "ms", changes).note(format!(
        "p99 from when a commit is due until it is told, of {PACE} keys a second that come into a range of {ENTRIES}, each with an object of its own; p50 {p50:.2} ms"
    )))
}

/// Time for a change to be told.
const PATIENCE: Duration = Duration::from_secs(10);

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}
