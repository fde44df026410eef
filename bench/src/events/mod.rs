//! Suite `events`: the event queue beside a loop by hand, after the measurements of Banga, Mogul and
//! Druschel (*A Scalable and Explicit Event Delivery Mechanism for UNIX*, 1999, section 5).
//!
//! Everything runs in one thread on one processor: messages are sent over loopback before the clock
//! starts, so a wait never blocks. Both loops receive the bytes. Silent connections have their other ends
//! in a process of their own.

mod bed;
mod cold;
mod fit;
mod peers;

use std::ffi::OsStr;
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use tercel_events::{Backend, EventQueue};
use tercel_machine::random::Random;

use super::blocks::{Pairs, alternate, median};
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::{COMMIT, Options, callgrind, placed};
use bed::{Bed, ByHand, ByQueue, Loop};
use cold::Cold;

/// The environment variable that makes this program a process of the suite.
pub const ROLE: &str = "TERCEL_BENCH_EVENTS";

/// The number of pairs of blocks, and of operations in a block.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    calls: usize,
}

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    tercel_term::process::raise_descriptors();
    let scratch = Scratch::new(options.dir.as_deref(), "events")?;
    let effort = if options.quick { QUICK } else { FULL };
    let (others, here) = placed::ends();
    let rows = placed::on(here, || {
        let mut rows = Vec::new();
        for backend in [Backend::Epoll, Backend::Uring] {
            match ByQueue::new(Some(backend), SOURCES_MAX) {
                Ok(queue) => deliver(options, effort, queue, &mut rows)?,
                Err(reason) => eprintln!("{backend} is left out: {reason}"),
            }
        }
        peers::rows(options, effort, &mut rows)?;
        figure_6(options, effort, &mut rows)?;
        behind(options, effort, &mut rows)?;
        silent(options, effort, others, &mut rows)?;
        Ok(rows)
    });
    let mut rows = rows?;
    rows.extend(instructions(options, &scratch)?);
    Ok(Report { suite: "events", commit: COMMIT, machine: Machine::here(backend()?), rows })
}

/// The backend of a queue that asks for none.
pub fn backend() -> Result<String, String> {
    let queue = EventQueue::<()>::open(tercel_events::Config::small()).map_err(failed)?;
    Ok(queue.backend().to_string())
}

/// Rows `events.deliver.*`: the cost of an event, its bytes received.
fn deliver(options: &Options, effort: Effort, mut queue: ByQueue, rows: &mut Vec<Row>) -> Result<(), String> {
    let name = match queue.queue.backend() {
        Backend::Epoll => "epoll",
        Backend::Uring => "uring",
    };
    let mut hand = ByHand::new()?;
    for batch in [1, 8, 32] {
        options.say(&format!("delivery by {name}, {batch} at once"));
        let bed = std::cell::RefCell::new(Bed::new(batch)?);
        let pairs = alternate(
            effort.rounds,
            || bed::fresh(&mut hand, &mut bed.borrow_mut(), batch, effort.calls),
            || bed::fresh(&mut queue, &mut bed.borrow_mut(), batch, effort.calls),
        )?;
        let n = (effort.rounds * effort.calls * batch) as u64;
        let row = Row::compared(
            format!("events.deliver.{name}.batch{batch}"),
            "ns",
            &pairs,
            format!("raw.epoll.batch{batch}"),
            n,
        );
        rows.push(
            row.note("an event with its 64 bytes received, by epoll_wait and recv by hand; wanted: 1.15"),
        );
    }
    Ok(())
}

/// Rows `events.fig6.*`: the cost of a wait over the events that it may bring, the paper's Figure 6.
fn figure_6(options: &Options, effort: Effort, rows: &mut Vec<Row>) -> Result<(), String> {
    let bed = std::cell::RefCell::new(Bed::new(HOT)?);
    let (mut hand, mut queue) = (ByHand::new()?, ByQueue::new(None, SOURCES_MAX)?);
    let mut waits: Vec<(usize, Pairs)> =
        (1..=10).chain([16, 32, 64]).map(|array_max| (array_max, Pairs::default())).collect();
    // All numbers in each round: a line through points of other minutes would show the machine's load.
    for round in 0..effort.rounds.div_ceil(4) {
        options.say(&format!("Figure 6, round {round}"));
        for (array_max, pairs) in &mut waits {
            let two = alternate(
                2,
                || bed::saturated(&mut hand, &mut bed.borrow_mut(), *array_max, effort.calls),
                || bed::saturated(&mut queue, &mut bed.borrow_mut(), *array_max, effort.calls),
            )?;
            pairs.pairs.extend(two.pairs);
        }
    }
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for (array_max, pairs) in &waits {
        ours.push((*array_max as f64, pairs.ours()));
        raw.push((*array_max as f64, pairs.limit()));
        let n = (pairs.pairs.len() * effort.calls) as u64;
        let (id, limit) = (format!("events.fig6.{array_max}"), format!("raw.epoll.{array_max}"));
        rows.push(Row::compared(id, "ns", pairs, limit, n));
    }
    for (name, points) in [("to10", 10), ("to64", ours.len())] {
        let (line, by_hand) = (fit::Line::through(&ours[..points]), fit::Line::through(&raw[..points]));
        let n = points as u64;
        let note = format!("of the line through {points} of the points above; wanted: 0.99");
        rows.push(Row::new(format!("events.fig6.{name}.r2"), line.r2, "", n).note(note));
        let slope = Row {
            limit: Some("raw.epoll".into()),
            limit_value: Some(by_hand.slope),
            ratio: Some(line.slope / by_hand.slope),
            ..Row::new(format!("events.fig6.{name}.slope"), line.slope, "ns", n)
        };
        rows.push(slope.note(format!(
            "an event more; a wait takes {:.0} ns beside its events, {:.0} ns by hand",
            line.base, by_hand.base
        )));
    }
    Ok(())
}

/// Rows `events.behind.*`: the cost of a message to a loop that looks after every message, or after 4, 16,
/// 64.
fn behind(options: &Options, effort: Effort, rows: &mut Vec<Row>) -> Result<(), String> {
    options.say("a loop that falls behind");
    let bed = std::cell::RefCell::new(Bed::new(HOT)?);
    let queue = std::cell::RefCell::new(ByQueue::new(None, SOURCES_MAX)?);
    let looks = |late: usize| {
        let messages = effort.calls * 4;
        let (mut bed, mut queue) = (bed.borrow_mut(), queue.borrow_mut());
        bed::declare_all(&mut *queue, &bed)?;
        let (mut random, mut taken, mut times) = (Random::new(1), Vec::new(), Vec::new());
        for _ in 0..messages / late {
            bed.speak((0..late).map(|_| random.below(HOT as u64)))?;
            let begin = Instant::now();
            queue.take(HOT, &mut taken)?;
            times.push(begin.elapsed().as_nanos() as f64);
        }
        queue.revoke_all()?;
        Ok::<_, String>(median(&mut times) / late as f64)
    };
    for late in [4, 16, 64] {
        let pairs = alternate(effort.rounds.div_ceil(2), || looks(1), || looks(late))?;
        let n = (pairs.pairs.len() * effort.calls * 4) as u64;
        let row = Row::compared(format!("events.behind.{late}"), "ns", &pairs, "events.behind.1", n);
        rows.push(row.note(format!(
            "a message where the loop looks after {late}, to any of {HOT} sources; several to one are one event"
        )));
    }
    Ok(())
}

/// Rows with silent connections: `events.declare`, `events.revoke`, `events.cold.*`, `events.cold_bytes`.
fn silent(options: &Options, effort: Effort, others: usize, rows: &mut Vec<Row>) -> Result<(), String> {
    let bed = std::cell::RefCell::new(Bed::new(BATCH)?);
    let mut lonely = ByQueue::new(None, SOURCES_MAX)?;
    let mut cold = Cold::open(others)?;
    declaring(options, effort, &mut ByHand::new()?, &mut lonely, None, &bed.borrow(), rows)?;
    rows.push(together(effort, &mut lonely, &bed.borrow())?);
    let room = cold::room();
    let mut last = 0;
    for wanted in if options.quick { &COLD[..2] } else { &COLD[..] } {
        let count = (*wanted).min(room);
        if count == last {
            eprintln!(
                "events.cold.{wanted} is left out: descriptors allow {room} connections (`ulimit -Hn`)"
            );
            continue;
        }
        options.say(&format!("{count} silent connections"));
        let grown = cold.grow_to(count)?;
        let cut = match count == *wanted {
            true => String::new(),
            false => format!("; cut down to {count} by the limit on descriptors"),
        };
        let pairs = alternate(
            effort.rounds * 2,
            || bed::fresh(&mut lonely, &mut bed.borrow_mut(), BATCH, effort.calls),
            || bed::fresh(&mut cold.by, &mut bed.borrow_mut(), BATCH, effort.calls),
        )?;
        let n = (pairs.pairs.len() * effort.calls * BATCH) as u64;
        let row = Row::compared(format!("events.cold.{wanted}"), "ns", &pairs, "events.cold.0", n);
        let note = format!("an event beside {count} silent connections, {BATCH} at once{cut}; wanted: 1.01");
        rows.push(row.note(note));
        declaring(options, effort, &mut lonely, &mut cold.by, Some(*wanted), &bed.borrow(), rows)?;
        if count - last >= COLD[1] - COLD[0] {
            let bytes = grown as f64 / (count - last) as f64;
            rows.retain(|row| row.id != "events.cold_bytes");
            let note = "memory of user space that a silent connection takes; wanted: 160";
            rows.push(Row::new("events.cold_bytes", bytes, "B", (count - last) as u64).note(note));
        }
        last = count;
    }
    Ok(())
}

/// Rows of declaring and revoking, the paper's Figure 7: over `epoll_ctl`, or beside silent connections.
fn declaring(
    options: &Options,
    effort: Effort,
    limit: &mut dyn Loop,
    queue: &mut dyn Loop,
    cold: Option<usize>,
    bed: &Bed,
    rows: &mut Vec<Row>,
) -> Result<(), String> {
    options.say("declaring and revoking");
    let each = effort.calls / BATCH + 1;
    let (mut declared, mut revoked) = (Vec::new(), Vec::new());
    for round in 0..effort.rounds {
        let mut pair = [(0.0, 0.0); 2];
        for side in [round % 2, 1 - round % 2] {
            pair[side] = match side {
                0 => one_declaring(limit, bed, each, false)?,
                _ => one_declaring(queue, bed, each, false)?,
            };
        }
        declared.push((pair[0].0, pair[1].0));
        revoked.push((pair[0].1, pair[1].1));
    }
    let n = (effort.rounds * each * BATCH) as u64;
    for (name, pairs, raw, wanted) in
        [("declare", declared, "add", "1.3"), ("revoke", revoked, "delete_and_close", "1.2")]
    {
        let pairs = Pairs { pairs };
        let row = match cold {
            None => Row::compared(format!("events.{name}"), "ns", &pairs, format!("raw.epoll.{raw}"), n)
                .note(format!(
                    "one descriptor of {BATCH} in a row, by a call of epoll_ctl; wanted: {wanted}"
                )),
            Some(cold) => {
                Row::compared(format!("events.{name}.{cold}"), "ns", &pairs, format!("events.{name}"), n)
                    .note("beside silent connections, by none")
            }
        };
        rows.push(row);
    }
    Ok(())
}

/// The row `events.declare.batch`: descriptors that are declared in one call, by one after the other.
fn together(effort: Effort, queue: &mut dyn Loop, bed: &Bed) -> Result<Row, String> {
    let (each, queue) = (effort.calls / BATCH + 1, std::cell::RefCell::new(queue));
    let declare =
        |together| one_declaring(*queue.borrow_mut(), bed, each, together).map(|(declared, _)| declared);
    let pairs = alternate(effort.rounds, || declare(false), || declare(true))?;
    let n = (effort.rounds * each * BATCH) as u64;
    let row = Row::compared("events.declare.batch", "ns", &pairs, "events.declare", n);
    Ok(row.note(format!("one descriptor of {BATCH} in one call, by one of {BATCH} in a row")))
}

/// Nanoseconds of declaring a descriptor, and of revoking it.
fn one_declaring(by: &mut dyn Loop, bed: &Bed, times: usize, together: bool) -> Result<(f64, f64), String> {
    let (mut declared, mut revoked) = (Vec::new(), Vec::new());
    for _ in 0..times {
        let sockets: Vec<_> =
            bed.far.iter().map(|far| far.try_clone().map_err(failed)).collect::<Result<_, _>>()?;
        let begin = Instant::now();
        match together {
            true => by.declare_together(sockets.into_iter().map(OwnedFd::from).collect())?,
            false => sockets.into_iter().try_for_each(|socket| by.declare(socket.into(), false))?,
        }
        declared.push(begin.elapsed().as_nanos() as f64 / BATCH as f64);
        let begin = Instant::now();
        by.revoke_all()?;
        revoked.push(begin.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    Ok((median(&mut declared), median(&mut revoked)))
}

/// Rows `events.instructions*`; none, said, where valgrind is not here.
fn instructions(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    if !callgrind::is_here() {
        eprintln!("events.instructions is left out: valgrind is not installed");
        return Ok(Vec::new());
    }
    options.say("instructions of an event, by valgrind");
    let counted = callgrind::run("events", ROLE, "count", &scratch.join(""))?;
    let n = (COUNTED * BATCH) as u64;
    let all = format!("of user space, an event of {BATCH}, its bytes received; wanted: 150");
    let row = |id, function, note: String| {
        let counted = callgrind::instructions_of(&counted, function);
        let row = Row::new(id, counted as f64 / n as f64, "instructions", n).note(note);
        (counted > 0).then_some(row).ok_or("valgrind does not know a function that is counted")
    };
    Ok(vec![
        row("events.instructions", "::counted_wait", all)?,
        row(
            "events.instructions.queue",
            "::get_next_events",
            "the same in the queue alone: without the loop that takes the events and gives their buffers back".into(),
        )?,
    ])
}

/// Runs under valgrind.
fn count() -> Result<(), String> {
    let (mut bed, mut by, mut taken) = (Bed::new(BATCH)?, ByQueue::new(None, SOURCES_MAX)?, Vec::new());
    bed::declare_all(&mut by, &bed)?;
    for _ in 0..COUNTED {
        bed.speak(0..BATCH as u64)?;
        counted_wait(&mut by, &mut taken)?;
        assert_eq!(taken.len(), BATCH, "everything has come before the look");
    }
    Ok(())
}

#[inline(never)]
fn counted_wait(by: &mut ByQueue, taken: &mut Vec<u64>) -> Result<(), String> {
    by.take(black_box(BATCH), taken)
}

/// The work of a process of the suite.
///
/// # Errors
/// A sentence: what failed.
pub fn child(role: &OsStr) -> Result<(), String> {
    match role.to_str() {
        Some("count") => count(),
        Some(addresses) => cold::speak_never(addresses),
        None => Err(format!("{ROLE} is for this program's own use")),
    }
}

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Sources that have something in Figure 6, and where the loop falls behind: as in the paper's largest run.
const HOT: usize = 64;

/// Events at once in the other rows.
const BATCH: usize = 8;

/// Silent connections, in steps.
const COLD: [usize; 4] = [750, 2_000, 10_000, 19_000];

const SOURCES_MAX: usize = 32_768;

/// Waits under valgrind.
const COUNTED: usize = 2_000;

/// Longer than the kernel takes for a connection, if another has to be asked for a second time.
const PATIENCE: Duration = Duration::from_secs(30);

const FULL: Effort = Effort { rounds: 60, calls: 400 };
const QUICK: Effort = Effort { rounds: 10, calls: 100 };
