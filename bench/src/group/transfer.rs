//! An empty member that joins a large space beside clients: how fast it has its copy, and what the others
//! notice, beside a process that reads and writes as many bytes on the same disk.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tercel::{Bytes, Client, Object};
use tercel_lock::unpoison;
use tercel_term::members::{Joined, Members};

use super::super::blocks::{Pairs, median, percentile};
use super::super::report::Row;
use super::super::scratch::Scratch;
use super::ends::{caught_up, connect, ms};
use super::{MEMBERS, Options, failed, must};

/// A part of the space, or what a client changes.
#[derive(Object)]
struct Part {
    bytes: Bytes,
}

/// `group.transfer`: the rate of a copy until its taker votes, and the p99 of commits meanwhile.
pub fn joins(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let dir = scratch.join("transfer");
    // Pages are installed soon, and the log does not reach back.
    let mut members = Members::start(&dir, MEMBERS, &["--mob", "16M", "--gc-percent", "0"])?;
    members.settled()?;
    let at = members.addresses()?;
    let bytes = if options.quick { options.space_bytes.min(QUICK_BYTES) } else { options.space_bytes };
    fill(&connect(&at)?, bytes)?;
    let clients = (0..CLIENTS).map(|_| connect(&at)).collect::<Result<Vec<_>, _>>()?;
    let (mut rates, mut p99s, mut stored) = (Vec::new(), Pairs::default(), 0);
    for round in 0..if options.quick { 2 } else { 5 } {
        caught_up(&at)?;
        let met = (members.settled()? + 1 + round % (MEMBERS - 1)) % MEMBERS;
        members.take_out(met)?;
        let (joined, beside): (Joined, f64) = p99(&clients, || Ok(members.join(met)?))?;
        if !joined.is_copied {
            return Err("the log reached back to the beginning: no copy was taken".into());
        }
        let pages = members.dir(met).join(PAGES_NAME);
        stored = pages.metadata().map_err(failed)?.len();
        rates.push(stored as f64 / f64::from(1 << 20) / joined.took.as_secs_f64());
        // As many bytes in the same time, with as many members.
        caught_up(&at)?;
        let source = scratch.join("source");
        std::fs::copy(&pages, &source).map_err(failed)?;
        members.take_out(met)?;
        let copied = || copy(&source, &scratch.join("bystander"), stored, joined.took).map_err(failed);
        let ((), bystander) = p99(&clients, copied)?;
        members.join(met)?;
        p99s.pairs.push((bystander, beside));
    }
    let n = p99s.pairs.len() as u64;
    let rate = median(&mut rates);
    let size = stored >> 20;
    let about =
        format!("a copy of {size} MiB of pages until its taker votes, beside {CLIENTS} clients; no must");
    let ratio = p99s.ratio().median;
    let others = Row::compared("group.transfer.others", "ms", &p99s, "a process that copies as much", n);
    Ok(vec![
        Row::new("group.transfer", rate, "MiB/s", n).note(about),
        others.note(format!("the p99 of commits meanwhile; {}", must(ratio, 2.0, 2.0))),
    ])
}

/// Makes the space as large as that.
fn fill(client: &Client, bytes: usize) -> Result<(), String> {
    for _ in 0..bytes.div_ceil(BATCH * PART_BYTES) {
        let part = || Part { bytes: Bytes(vec![0x5a; PART_BYTES]) };
        let made = || client.run(|tx| (0..BATCH).try_for_each(|_| tx.create(&part()).map(drop)));
        let mut done = made();
        // It is filled faster than pages are installed.
        while done.as_ref().is_err_and(tercel_term::fail::drains) {
            thread::sleep(PAUSE);
            done = made();
        }
        done.map_err(failed)?;
    }
    Ok(())
}

/// Does some work while clients commit, and gives with what comes of it the p99 of their commits, in ms.
fn p99<T>(clients: &[Client], work: impl FnOnce() -> Result<T, String>) -> Result<(T, f64), String> {
    let (is_over, times) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let commit = |client: &Client| -> Result<(), String> {
        let part = client.run(|tx| tx.create(&Part { bytes: Bytes(vec![7; 1_000]) })).map_err(failed)?;
        while !is_over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            client.run(|tx| tx.get(part)?.edit()?.set_bytes(&[5; 1_000][..])).map_err(failed)?;
            unpoison(times.lock()).push(ms(begun.elapsed()));
        }
        Ok(())
    };
    let done = thread::scope(|scope| {
        let commits: Vec<_> = clients.iter().map(|client| scope.spawn(|| commit(client))).collect();
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        let ended = commits.into_iter().map(|it| it.join().map_err(|_| "a client panicked".to_string())?);
        ended.collect::<Result<Vec<()>, String>>()?;
        done
    })?;
    let mut times = unpoison(times.into_inner());
    times.sort_unstable_by(f64::total_cmp);
    Ok((done, percentile(&times, 0.99)))
}

/// Reads and writes as many bytes as a copy does, with as many syncs, in about the time that it took.
fn copy(from: &Path, to: &Path, bytes: u64, within: Duration) -> std::io::Result<()> {
    let (mut from, mut to) = (File::open(from)?, File::create(to)?);
    let (begun, mut done, mut buffer) = (Instant::now(), 0, vec![0; SYNC_BYTES]);
    while done < bytes {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        to.write_all(&buffer[..n])?;
        to.sync_data()?;
        done += n as u64;
        let due = within.mul_f64(done as f64 / bytes as f64);
        thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    Ok(())
}

/// The file of a member's pages.
const PAGES_NAME: &str = "pages.redb";

const CLIENTS: usize = 4;
const PART_BYTES: usize = 3_000;
const BATCH: usize = 400;
const QUICK_BYTES: usize = 64 << 20;

/// Pages that a taker stores in one step.
const SYNC_BYTES: usize = 4 << 20;

const PAUSE: Duration = Duration::from_millis(20);
