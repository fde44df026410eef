//! The instructions of user space that a hop takes in a hot T1, ours and natively, counted by valgrind's
//! callgrind.
//!
//! Each counted traversal is a transaction of its own, so first touches are among its hops, and so is all
//! that the traversal does itself.

use std::ffi::OsStr;
use std::path::Path;

use tercel::ServerConfig;

use super::callgrind;
use super::native::{Arena, ArenaIndex, ArenaPointers, Tally, Visited};
use super::objects;
use super::oo7::Spec;
use super::report::Row;
use super::traversals::{SEED, failed, open_hot};

/// Says in a process's environment that it counts, on the small database in this directory.
pub const ROLE: &str = "TERCEL_BENCH_HOP";

/// Counted traversals.
const COUNT: u32 = 5;

/// The row, of the small database in `data`. `dir` is for what valgrind writes.
///
/// # Errors
/// A sentence: what failed.
pub fn row(data: &Path, dir: &Path) -> Result<Row, String> {
    let counted = callgrind::run("oo7", ROLE, data, dir)?;
    let [ours, native] = ["::our_traversal", "::native_traversal"].map(|name| {
        callgrind::instructions_of(&counted, name) as f64 / f64::from(COUNT) / hops(Spec::SMALL) as f64
    });
    if ours == 0.0 || native == 0.0 {
        return Err("valgrind does not know one of the traversals that are counted".into());
    }
    Ok(Row {
        limit: Some("native.pointers".into()),
        limit_value: Some(native),
        ratio: Some(ours / native),
        ..Row::new("oo7.instructions.hop", ours, "instructions", COUNT.into())
    }
    .note("user space, in T1; what the traversal does itself is among them"))
}

/// References that T1 follows: to assemblies, to composite parts and their root parts, to connections and
/// behind them.
fn hops(spec: Spec) -> u64 {
    u64::from(spec.assemblies())
        + 2 * spec.t6_visits()
        + 2 * u64::from(spec.connections_per_part) * spec.t1_visits()
}

/// Runs under valgrind: the traversals that are counted.
///
/// # Errors
/// A sentence: what failed.
pub fn child(data: &OsStr) -> Result<(), String> {
    let client = open_hot(&ServerConfig::new(Path::new(data)))?;
    let index = ArenaIndex::new(Spec::SMALL, SEED);
    let arena = Arena::new(&index);
    let pointers = ArenaPointers::new(&arena, &index);
    let mut visited = Visited::new(Spec::SMALL.parts());
    // The first one fetches everything.
    let expected = client.run(|tx| objects::t1(tx, &mut visited)).map_err(failed)?;
    for _ in 0..COUNT {
        let ours = our_traversal(&mut || client.run(|tx| objects::t1(tx, &mut visited)).map_err(failed))?;
        if ours != expected || native_traversal(&mut || pointers.t1(&mut visited)) != expected {
            return Err("traversals disagree".into());
        }
    }
    client.close().map_err(failed)
}

#[inline(never)]
fn our_traversal(t1: &mut dyn FnMut() -> Result<Tally, String>) -> Result<Tally, String> {
    t1()
}

#[inline(never)]
fn native_traversal(t1: &mut dyn FnMut() -> Tally) -> Tally {
    t1()
}
