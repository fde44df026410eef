//! The others: clients that behave; their waiting is measured.
//!
//! Each has work at fixed times, whether or not the work before is done: an operation that waits behind a
//! slow one is counted with its waiting. The time of an idle client begins only when it wakes up, because the
//! server does not cause late wake-ups.

use std::time::{Duration, Instant};

use tercel::tools::wire::id::PageId;
use tercel::{Address, Client, ClientConfig, Error, Object, Ref};
use tercel_machine::random::Random;

use super::super::blocks::percentile;

/// The object that each client commits to: 60 bytes as stored.
#[derive(Object)]
pub struct Counter {
    pub value: u64,
    pub padding: [u8; 48],
}

/// Clients that behave: some read, some commit, so that a wait for a read does not delay a commit, nor the
/// reverse.
pub struct Others {
    readers: Vec<Other>,
    writers: Vec<Other>,
    pages: Vec<PageId>,
}

struct Other {
    client: Client,
    counter: Ref<Counter>,
}

/// Microseconds of each operation.
#[derive(Default)]
pub struct Times {
    pub fetches: Vec<f64>,
    pub commits: Vec<f64>,
}

/// The latency in a block: median and 99th percentile.
#[derive(Debug, Clone, Copy, Default)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
}

impl Others {
    /// Connects them; they will ask for `pages`.
    pub fn connect(address: &Address, pages: Vec<PageId>) -> Result<Others, String> {
        let one = |_| {
            let config =
                ClientConfig { cache_bytes: CACHE_BYTES, transactions_max: 2, ..ClientConfig::default() };
            let client = Client::connect_with(address, config).map_err(failed)?;
            let make = || client.run(|tx| tx.create(&Counter { value: 0, padding: [7; 48] }));
            let counter = make().map_err(failed)?;
            Ok(Other { client, counter })
        };
        let some = || (0..CLIENTS).map(one).collect::<Result<Vec<_>, String>>();
        Ok(Others { readers: some()?, writers: some()?, pages })
    }

    /// Works for a while: what each operation took.
    pub fn work(&self, time: Duration, seed: u64) -> Result<Times, String> {
        let begin = Instant::now();
        let results: Vec<Result<Times, String>> = std::thread::scope(|scope| {
            let stagger = |every: Duration, i: usize| begin + every * i as u32 / CLIENTS as u32;
            let readers = self.readers.iter().enumerate().map(|(i, reader)| {
                let random = Random::new(seed << 32 | i as u64);
                scope.spawn(move || reader.read(stagger(READ_EVERY, i), time, &self.pages, random))
            });
            let writers = self.writers.iter().enumerate();
            let writers =
                writers.map(|(i, writer)| scope.spawn(move || writer.write(stagger(WRITE_EVERY, i), time)));
            let threads: Vec<_> = readers.chain(writers).collect();
            let panicked = |_| Err("a client panicked".to_string());
            threads.into_iter().map(|t| t.join().unwrap_or_else(panicked)).collect()
        });
        let mut all = Times::default();
        for times in results {
            let times = times?;
            all.fetches.extend(times.fetches);
            all.commits.extend(times.commits);
        }
        Ok(all)
    }
}

impl Other {
    /// Asks for pages, and reads what it has every third time.
    fn read(
        &self,
        begin: Instant,
        time: Duration,
        pages: &[PageId],
        mut random: Random,
    ) -> Result<Times, String> {
        let mut n = 0u32;
        let fetches = at_times(begin, time, READ_EVERY, || {
            n += 1;
            if n.is_multiple_of(3) {
                self.client.run(|tx| Ok(tx.get(self.counter)?.value()))?;
                return Ok(false);
            }
            tercel::tools::page(&self.client, *random.pick(pages))?;
            Ok(true)
        })?;
        Ok(Times { fetches, ..Times::default() })
    }

    fn write(&self, begin: Instant, time: Duration) -> Result<Times, String> {
        let commits = at_times(begin, time, WRITE_EVERY, || self.commit().map(|()| true))?;
        Ok(Times { commits, ..Times::default() })
    }

    fn commit(&self) -> Result<(), Error> {
        self.client.run(|tx| {
            let counter = tx.get(self.counter)?;
            counter.edit()?.set_value(counter.value() + 1)
        })
    }
}

/// Does something at fixed times for a while: the microseconds of what is to be counted.
fn at_times(
    begin: Instant,
    time: Duration,
    every: Duration,
    mut what: impl FnMut() -> Result<bool, Error>,
) -> Result<Vec<f64>, String> {
    let (mut times, mut due) = (Vec::new(), begin);
    while due < begin + time {
        let now = Instant::now();
        if now < due {
            std::thread::sleep(due - now);
        }
        // A client that slept until this operation was due begins now; a client that was still busy then is
        // late.
        let from = if now < due { Instant::now() } else { due };
        if patiently(&mut what).map_err(failed)? {
            times.push(from.elapsed().as_secs_f64() * 1e6);
        }
        due += every;
    }
    Ok(times)
}

/// Repeats an operation until there is a server to do it. A client that lost its connection waits for
/// another, and the wait is counted.
fn patiently<R>(mut what: impl FnMut() -> Result<R, Error>) -> Result<R, Error> {
    let end = Instant::now() + PATIENCE;
    loop {
        match what() {
            Err(Error::Unavailable(_)) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1))
            }
            other => return other,
        }
    }
}

impl Latency {
    /// The latency of some times.
    pub fn of(mut times: Vec<f64>) -> Latency {
        times.sort_unstable_by(f64::total_cmp);
        Latency { p50: percentile(&times, 0.5), p99: percentile(&times, 0.99) }
    }
}

pub fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Enough for one object.
const CACHE_BYTES: usize = 512 << 10;

/// The number of readers, and that of writers.
pub const CLIENTS: usize = 8;

/// Times between two operations of a reader, and of a writer. In all that is 400 commits and 800 pages a
/// second, most of which are not in the server's memory; a tenth of the server's power.
const READ_EVERY: Duration = Duration::from_micros(6_667);
const WRITE_EVERY: Duration = Duration::from_millis(20);

/// Time for which a server may be away from a client that lost it; longer is a failure.
const PATIENCE: Duration = Duration::from_secs(10);
