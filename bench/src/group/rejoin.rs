//! A member that was away: the time until its acknowledgements count again at the end of the leader's log.

use std::thread;
use std::time::{Duration, Instant};

use tercel::{Bytes, Client, Object};
use tercel_term::hosts::{Hosts, Link};
use tercel_term::members::Members;

use super::super::blocks::median;
use super::super::report::Row;
use super::super::scratch::Scratch;
use super::ends::{SERVE, connect, fill, ms, set};
use super::{MEMBERS, Options, failed, must};

/// A part of what is written meanwhile.
#[derive(Object)]
struct Written {
    bytes: Bytes,
}

/// `group.rejoin.exit`: from the start of a process that was away for a second.
pub fn after_exit(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let members = Members::start(&scratch.join("rejoin exit"), MEMBERS, &SERVE)?;
    let mut members = fill(members, 64)?;
    let client = connect(&members.addresses()?)?;
    let mut times = Vec::new();
    for round in 0..rounds(options) {
        let met = follower(&members, round)?;
        members.kill(met)?;
        write_for_a_second(&client)?;
        let begun = Instant::now();
        members.start_one(met)?;
        times.push(until_it_counts(&client, &members, met, begun)?);
    }
    Ok(vec![row("group.rejoin.exit", times, 300.0)])
}

/// `group.rejoin.cut`: from the end of a cut of a second.
pub fn after_cut(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let id = "group.rejoin.cut";
    let measure = || -> Result<Row, String> {
        let hosts = match Hosts::new(MEMBERS) {
            Ok(hosts) => hosts,
            Err(e) => return Ok(Row::new(id, 0.0, "ms", 0).note(format!("left out: {}", e.what))),
        };
        let members = Members::start_on(hosts, &scratch.join("rejoin cut"), MEMBERS, &SERVE)?;
        members.settled()?;
        let client = connect(&members.addresses()?)?;
        let mut times = Vec::new();
        for round in 0..rounds(options) {
            let met = follower(&members, round)?;
            set(&members, met, Link::Cut)?;
            write_for_a_second(&client)?;
            let begun = Instant::now();
            set(&members, met, Link::Whole)?;
            times.push(until_it_counts(&client, &members, met, begun)?);
        }
        Ok(row(id, times, 100.0))
    };
    // A thread that is on one of the hosts stays there.
    let measured = thread::scope(|scope| scope.spawn(measure).join());
    Ok(vec![measured.map_err(|_| "the thread that measures a cut panicked")??])
}

/// A member that does not lead, another one each time.
fn follower(members: &Members, round: usize) -> Result<usize, String> {
    Ok((members.settled()? + 1 + round % (MEMBERS - 1)) % MEMBERS)
}

/// Writes 20 MB, and lets a second pass.
fn write_for_a_second(client: &Client) -> Result<(), String> {
    let begun = Instant::now();
    for _ in 0..WRITES {
        let bytes = Bytes(vec![0x5a; WRITE_BYTES]);
        client.run(|tx| tx.create(&Written { bytes: bytes.clone() }).map(drop)).map_err(failed)?;
    }
    thread::sleep(AWAY.saturating_sub(begun.elapsed()));
    Ok(())
}

/// Waits until the leader knows that the member's disk has everything. Gives milliseconds since `begun`.
fn until_it_counts(client: &Client, members: &Members, met: usize, begun: Instant) -> Result<f64, String> {
    let address = members.address(met).to_string();
    let lag = || -> Option<u64> {
        let group = client.server_status().ok()?.group?;
        group.members.iter().find(|member| member.address == address)?.lag
    };
    while lag() != Some(0) {
        if begun.elapsed() > WAIT_MAX {
            return Err("a member that was away does not catch up".into());
        }
        thread::yield_now();
    }
    Ok(ms(begun.elapsed()))
}

fn row(id: &str, mut times: Vec<f64>, most: f64) -> Row {
    let middle = median(&mut times);
    let note = format!("a second away, while 20 MB were written; {}", must(middle, most, most));
    Row { p99: times.last().copied(), ..Row::new(id, middle, "ms", times.len() as u64) }.note(note)
}

fn rounds(options: &Options) -> usize {
    if options.quick { 3 } else { 20 }
}

const WRITES: usize = 40;
const WRITE_BYTES: usize = 500_000;
const AWAY: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(30);
