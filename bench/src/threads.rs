//! T1 by one thread and by two at once: how much more two do, ours and natively.

use std::sync::Barrier;
use std::time::Instant;

use tercel::Client;

use super::blocks::alternate;
use super::native::{ArenaIndex, Tally, Visited};
use super::objects;
use super::report::Row;
use super::traversals::failed;

/// Traversals of each thread in a block.
const REPEATS: usize = 5;

/// The row: the speed of two threads by that of one, beside the same natively.
///
/// # Errors
/// A sentence: what failed.
pub fn row(client: &Client, index: &ArenaIndex, parts: u32, rounds: usize) -> Result<Row, String> {
    let ours = |visited: &mut Visited| client.run(|tx| objects::t1(tx, visited)).map_err(failed);
    let native = |visited: &mut Visited| Ok(index.t1(visited));
    let pairs = alternate(
        rounds,
        || Ok::<f64, String>(speed(2, parts, &native)? / speed(1, parts, &native)?),
        || Ok(speed(2, parts, &ours)? / speed(1, parts, &ours)?),
    )?;
    let n = (3 * REPEATS * rounds) as u64;
    Ok(Row::compared("oo7.t1.hot.threads2", "times", &pairs, "native.index", n))
}

/// A traversal, with what it has visited.
type Traversal<'a> = &'a (dyn Fn(&mut Visited) -> Result<Tally, String> + Sync);

/// Traversals a second of so many threads together.
fn speed(threads: usize, parts: u32, t1: Traversal<'_>) -> Result<f64, String> {
    let barrier = Barrier::new(threads);
    let one = || {
        let mut visited = Visited::new(parts);
        let warmed = t1(&mut visited);
        barrier.wait();
        warmed?;
        let begin = Instant::now();
        for _ in 0..REPEATS {
            std::hint::black_box(t1(&mut visited)?);
        }
        Ok(REPEATS as f64 / begin.elapsed().as_secs_f64())
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        let speeds = all.into_iter().map(|t| t.join().expect("a traversal does not panic"));
        speeds.sum::<Result<f64, String>>()
    })
}
