//! Row `bank.blocked`: how long transfers of other objects wait while a space that decides is stopped.
//!
//! Three spaces have a server process each. One thread moves money between the first and the second, of which
//! the first decides. The first server is stopped while a part of that is prepared in the second. Another
//! teller moves money of its own between the second and the third meanwhile, and reads it strictly.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tercel::Address;
use tercel::group::status_of;
use tercel_term::process::OwnProcess;

use super::bank::{Teller, failed};
use super::blocks::median;
use super::report::Row;
use super::scratch::Scratch;
use super::{Options, placed};

/// Time for which the server is stopped.
const STOPPED: Duration = Duration::from_secs(5);
const STOPPED_QUICK: Duration = Duration::from_secs(2);

/// Times that the server is stopped until a part is left behind.
const TRIES: usize = 50;

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options, scratch: &Scratch) -> Result<Row, String> {
    options.say("transfers of other objects while a space that decides is stopped");
    let (_, last) = placed::ends();
    let servers = placed::on(last, || {
        let serve = |name: &str| OwnProcess::serve(&scratch.join(&format!("blocked {name}")), None, &[]);
        Ok::<_, String>([serve("north")?, serve("south")?, serve("west")?])
    })?;
    let [north, south, west] = &servers;
    let at = |one: &OwnProcess, other: &OwnProcess| Ok::<_, String>([one.address()?, other.address()?]);
    let (stopped, beside) = (Teller::new(&at(north, south)?)?, Teller::new(&at(south, west)?)?);
    let (rounds, time) = if options.quick { (2, STOPPED_QUICK) } else { (5, STOPPED) };
    let mut longest = Vec::new();
    let mut transfers = 0;
    for _ in 0..rounds {
        let over = AtomicBool::new(false);
        let waits = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut session = stopped.spaces.session();
                // Refusals and doubts while the server is stopped are not measured.
                while !over.load(Ordering::Relaxed) {
                    let _ = stopped.transfer(&mut session);
                }
            });
            let waits = leave_part(north, &south.address()?).and_then(|()| waits(&beside, time));
            north.signal(Signal::CONT);
            over.store(true, Ordering::Relaxed);
            waits
        })?;
        transfers += waits.len();
        longest.push(waits.into_iter().fold(0.0, f64::max));
    }
    let value = longest.iter().copied().fold(0.0, f64::max);
    let row = Row::new("bank.blocked", value, "ms", transfers as u64);
    Ok(row.note(format!(
        "the longest transfer or strict cut of other objects while the only server of a space that decides is stopped for {} s, \
         {rounds} times; the median of the longest is {:.1}",
        time.as_secs(),
        median(&mut longest)
    )))
}

/// Stops a server so that another one has a part that it is to decide.
fn leave_part(decides: &OwnProcess, holds: &Address) -> Result<(), String> {
    for _ in 0..TRIES {
        decides.signal(Signal::STOP);
        // Settlements that were on their way have come by then: a part that is left waits for the server.
        std::thread::sleep(Duration::from_millis(50));
        let status = status_of(holds, Duration::from_secs(5)).map_err(failed)?;
        if status.leading.is_some_and(|leading| leading.across.prepared > 0) {
            return Ok(());
        }
        decides.signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(3));
    }
    Err(format!("no part was left in {TRIES} stops"))
}

/// The milliseconds of each transfer and each strict cut for a while.
fn waits(beside: &Teller, time: Duration) -> Result<Vec<f64>, String> {
    let mut session = beside.spaces.session();
    let (begun, mut all) = (Instant::now(), Vec::new());
    while begun.elapsed() < time {
        let now = Instant::now();
        beside.transfer(&mut session).map_err(failed)?;
        all.push(now.elapsed().as_secs_f64() * 1e3);
        let now = Instant::now();
        beside.cents(&session).map_err(failed)?;
        all.push(now.elapsed().as_secs_f64() * 1e3);
    }
    Ok(all)
}
