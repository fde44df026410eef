//! A rolling restart: each member is ended with SIGTERM and started again, under 64 clients that commit.
//!
//! Every client counts in an object of its own, so what is counted there in the end is what was committed: a
//! smaller number is a commit that was lost, a larger one was executed twice.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tercel::{Addresses, Client, Error, Object, Ref};
use tercel_lock::unpoison;
use tercel_term::members::Members;

use super::super::report::Row;
use super::super::scratch::Scratch;
use super::ends::{caught_up, connect};
use super::{MEMBERS, Options, failed, must};

/// The object of a client.
#[derive(Object)]
struct Tally {
    commits: u64,
}

/// The fate of a client.
struct Met {
    /// The longest time between two of its successes.
    gap: Duration,
    failed: u64,
    lost: u64,
    doubled: u64,
}

/// `group.rolling`: the longest gap of any client, with the calls that failed and the commits that were lost.
pub fn restarts(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let mut members = Members::start(&scratch.join("rolling"), MEMBERS, &[])?;
    members.settled()?;
    let at = members.addresses()?;
    let clients = (0..CLIENTS).map(|_| connect(&at)).collect::<Result<Vec<_>, _>>()?;
    let (is_over, met) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let rounds = if options.quick { 1 } else { 5 };
    let ended = thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                let result = count(client, &is_over);
                unpoison(met.lock()).push(result);
            });
        }
        let ended = roll(&mut members, &at, rounds);
        is_over.store(true, Ordering::Relaxed);
        ended
    })?;
    let met: Vec<Met> = unpoison(met.into_inner()).into_iter().collect::<Result<_, _>>()?;
    let gap = met.iter().map(|met| met.gap).max().unwrap_or_default().as_secs_f64() * 1e3;
    let sum = |of: fn(&Met) -> u64| met.iter().map(of).sum::<u64>();
    let note = format!(
        "longest gap of any of {CLIENTS} clients in {rounds} rolling restarts, {}; calls failed {}, commits lost {}, executed \
         twice {}: must be 0 each; a member ended within {:.0} ms",
        must(gap, 100.0, 100.0),
        sum(|met| met.failed),
        sum(|met| met.lost),
        sum(|met| met.doubled),
        ended.as_secs_f64() * 1e3,
    );
    Ok(vec![Row::new("group.rolling", gap, "ms", (rounds * MEMBERS) as u64).note(note)])
}

/// Restarts each member in turn, with a while between in which all is well. Gives the longest time that one
/// took to end.
fn roll(members: &mut Members, at: &Addresses, rounds: usize) -> Result<Duration, String> {
    let mut longest = Duration::ZERO;
    for member in (0..rounds).flat_map(|_| 0..MEMBERS) {
        thread::sleep(BETWEEN);
        longest = longest.max(members.restart(member)?);
        caught_up(at)?;
    }
    thread::sleep(BETWEEN);
    Ok(longest)
}

/// Commits until it is over.
fn count(client: &Client, is_over: &AtomicBool) -> Result<Met, String> {
    let tally: Ref<Tally> = client.run(|tx| tx.create(&Tally { commits: 0 })).map_err(failed)?;
    let (mut gap, mut successes, mut failures) = (Duration::ZERO, 0_u64, 0_u64);
    let mut last = Instant::now();
    while !is_over.load(Ordering::Relaxed) {
        let added: Result<(), Error> = client.run(|tx| {
            let tally = tx.get(tally)?;
            tally.edit()?.set_commits(tally.commits() + 1)
        });
        match added {
            Ok(()) => successes += 1,
            Err(_) => failures += 1,
        }
        gap = gap.max(last.elapsed());
        last = Instant::now();
    }
    let found = client.run(|tx| Ok(tx.get(tally)?.commits())).map_err(failed)?;
    let (lost, doubled) = (successes.saturating_sub(found), found.saturating_sub(successes + failures));
    Ok(Met { gap, failed: failures, lost, doubled })
}

const CLIENTS: usize = 64;

const BETWEEN: Duration = Duration::from_millis(500);
