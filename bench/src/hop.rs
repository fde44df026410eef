//! The instructions of user space that a hop takes in a hot T1 and a hot T6, ours and natively, counted by
//! valgrind's callgrind.
//!
//! Each counted traversal is a transaction of its own, so first touches are among its hops, and so is all
//! that the traversal does itself. In T6 four hops of ten are first touches.

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

/// The rows, of the small database in `data`. `dir` is for what valgrind writes.
///
/// # Errors
/// A sentence: what failed.
pub fn rows(data: &Path, dir: &Path) -> Result<[Row; 2], String> {
    let counted = callgrind::run("oo7", ROLE, data, dir)?;
    let [t1, native_t1, t6, native_t6] = ["our_t1", "native_t1", "our_t6", "native_t6"]
        .map(|name| callgrind::instructions_of(&counted, &format!("::{name}")) as f64 / f64::from(COUNT));
    if [t1, native_t1, t6, native_t6].contains(&0.0) {
        return Err("valgrind does not know one of the traversals that are counted".into());
    }
    let row = |id: &str, ours: f64, native: f64, hops: u64| {
        Row {
            limit: Some("native.pointers".into()),
            limit_value: Some(native / hops as f64),
            ratio: Some(ours / native),
            ..Row::new(id, ours / hops as f64, "instructions", COUNT.into())
        }
        .note("user space; what the traversal does itself is among them")
    };
    let spec = Spec::SMALL;
    Ok([
        row("oo7.instructions.hop", t1, native_t1, t1_hops(spec)),
        row("oo7.instructions.t6.hop", t6, native_t6, t6_hops(spec)),
    ])
}

/// References that T1 follows: those of T6, to connections and behind them.
fn t1_hops(spec: Spec) -> u64 {
    t6_hops(spec) + 2 * u64::from(spec.connections_per_part) * spec.t1_visits()
}

/// References that T6 follows: to assemblies, to composite parts and to their root parts.
fn t6_hops(spec: Spec) -> u64 {
    u64::from(spec.assemblies()) + 2 * spec.t6_visits()
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
        let ours = our_t1(&mut || client.run(|tx| objects::t1(tx, &mut visited)).map_err(failed))?;
        let t6 = our_t6(&mut || client.run(objects::t6).map_err(failed))?;
        if [ours, native_t1(&mut || pointers.t1(&mut visited))] != [expected; 2]
            || t6 != native_t6(&mut || pointers.t6())
        {
            return Err("traversals disagree".into());
        }
    }
    client.close().map_err(failed)
}

#[inline(never)]
fn our_t1(t1: &mut dyn FnMut() -> Result<Tally, String>) -> Result<Tally, String> {
    t1()
}

#[inline(never)]
fn native_t1(t1: &mut dyn FnMut() -> Tally) -> Tally {
    t1()
}

// Other bodies than these, so that no two become one function.
#[inline(never)]
fn our_t6(t6: &mut dyn FnMut() -> Result<Tally, String>) -> Result<Tally, String> {
    std::hint::black_box(t6())
}

#[inline(never)]
fn native_t6(t6: &mut dyn FnMut() -> Tally) -> Tally {
    std::hint::black_box(t6())
}
