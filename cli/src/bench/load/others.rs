//! The others: clients that behave, and whose waiting is measured.
//!
//! Each has work at fixed times, whether or not the work before is done: what waits behind something slow is counted with
//! its waiting. Only where a client had nothing to do does its time begin when it woke up, for how late a machine wakes its
//! sleepers is not the server's doing.

use std::time::{Duration, Instant};

use tercel::wire::id::PageId;
use tercel::{Address, Client, ClientConfig, Error, Object, Ref};

use super::super::blocks::percentile;

/// What each commits to: 60 bytes as stored.
#[derive(Object)]
pub struct Counter {
    pub value: u64,
    pub padding: [u8; 48],
}

/// Clients that behave.
pub struct Others {
    clients: Vec<Other>,
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

/// Of a block: median and 99th percentile.
#[derive(Debug, Clone, Copy, Default)]
pub struct Felt {
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
        Ok(Others { clients: (0..CLIENTS).map(one).collect::<Result<_, String>>()?, pages })
    }

    /// Works for a while: what each operation took.
    pub fn work(&self, time: Duration, seed: u64) -> Result<Times, String> {
        let begin = Instant::now();
        let results: Vec<Result<Times, String>> = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .clients
                .iter()
                .enumerate()
                .map(|(i, other)| {
                    let begin = begin + EVERY * i as u32 / CLIENTS as u32;
                    let random = seed.wrapping_mul(0x9e37_79b9).wrapping_add(i as u64);
                    scope.spawn(move || other.work(begin, time, &self.pages, random))
                })
                .collect();
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
    fn work(&self, begin: Instant, time: Duration, pages: &[PageId], random: u64) -> Result<Times, String> {
        let mut times = Times::default();
        let (mut due, mut n, mut random) = (begin, 0u32, random | 1);
        while due < begin + time {
            let now = Instant::now();
            if now < due {
                std::thread::sleep(due - now);
            }
            // Who slept until it was time begins now; who was still busy then is late.
            let from = if now < due { Instant::now() } else { due };
            match n % 4 {
                0 => {
                    self.commit().map_err(failed)?;
                    times.commits.push(from.elapsed().as_secs_f64() * 1e6);
                }
                2 => {
                    self.client.run(|tx| Ok::<_, Error>(tx.get(self.counter)?.value())).map_err(failed)?;
                }
                _ => {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                    let page = pages[(random >> 33) as usize % pages.len()];
                    self.client.page(page).map_err(failed)?;
                    times.fetches.push(from.elapsed().as_secs_f64() * 1e6);
                }
            }
            (due, n) = (due + EVERY, n + 1);
        }
        Ok(times)
    }

    fn commit(&self) -> Result<(), Error> {
        self.client.run(|tx| {
            let counter = tx.get(self.counter)?;
            counter.edit()?.set_value(counter.value() + 1)
        })
    }
}

impl Felt {
    /// Of some times.
    pub fn of(mut times: Vec<f64>) -> Felt {
        times.sort_unstable_by(f64::total_cmp);
        Felt { p50: percentile(&times, 0.5), p99: percentile(&times, 0.99) }
    }
}

pub fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Enough for one object.
const CACHE_BYTES: usize = 512 << 10;

/// How many there are, and how often each has something to do: a commit, two pages that are mostly not in the server's
/// memory, and a read of what it has, in turn; in all 400 commits and 800 pages a second, a tenth of what the server can do.
pub const CLIENTS: usize = 8;
const EVERY: Duration = Duration::from_millis(5);
