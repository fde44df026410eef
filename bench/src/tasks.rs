//! Suite `async`: runs of tasks on a runtime, beside the same runs by threads.
//!
//! The server is in this process and listens at TCP, for both sides of each row alike. The runtime is tokio,
//! with two workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tercel::{Address, Bytes, Client, Error, Object, Ref, Server};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, spawn_blocking};

use super::blocks::{Pairs, alternate, median, percentile};
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::{COMMIT, Options, handler};

/// An object on a page of its own.
#[derive(Object)]
struct Cell {
    count: u64,
    padding: Bytes,
}

/// The amount of work.
struct Size {
    /// Pairs of blocks.
    rounds: usize,
    /// Reads of a block of hits.
    hits: u64,
    /// Time of a block of commits.
    commits: Duration,
}

const FULL: Size = Size { rounds: 11, hits: 100_000, commits: Duration::from_secs(2) };
const QUICK: Size = Size { rounds: 7, hits: 50_000, commits: Duration::from_millis(500) };

/// Objects that are read one after the other, each a miss.
const MISSES: usize = 200;
/// Tasks that commit.
const WRITERS: usize = 8;
/// The period of the timer that runs beside them.
const TICK: Duration = Duration::from_millis(2);
/// Tasks that read, each an object that is cached, and one of so many another one that is not.
const TASKS: usize = 10_000;
const MISS_EACH: usize = 100;
/// Threads that read as many times.
const THREADS: usize = 64;

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    let size = if options.quick { QUICK } else { FULL };
    let scratch = Scratch::new(options.dir.as_deref(), "async")?;
    let server = Server::builder(scratch.join("data")).listen("127.0.0.1:0").start().map_err(failed)?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(failed)?;
    let world = World { at: server.addresses()[0].clone(), runtime, cells: Vec::new() };
    let cells = world.connect()?.run(|tx| {
        let cell = |_| tx.create(&Cell { count: 0, padding: vec![0u8; 6_000].as_slice().into() });
        (0..MISSES).map(cell).collect::<Result<Vec<_>, Error>>()
    });
    let world = World { cells: cells.map_err(failed)?, ..world };

    options.say("reading what is cached");
    let client = world.connect()?;
    let hit =
        alternate(size.rounds, || world.hits(&client, size.hits), || world.hits_async(&client, size.hits))?;
    options.say("reading what is missing");
    let miss = alternate(size.rounds, || world.misses(), || world.misses_async())?;
    options.say("committing");
    let mut late = Vec::new();
    let commits = alternate(
        size.rounds.min(7),
        || world.commits(&client, size.commits, false).map(|(rate, _)| rate),
        || {
            let (rate, late_ms) = world.commits(&client, size.commits, true)?;
            late.extend(late_ms);
            Ok(rate)
        },
    )?;
    late.sort_unstable_by(f64::total_cmp);
    options.say("reading by 10,000 tasks");
    let many = alternate(size.rounds, || world.threads(), || world.tasks())?;

    options.say("asking a gateway");
    let handler = handler::row(options, &world.at, size.rounds)?;

    let rounds = size.rounds as u64;
    let ticks = late.len() as u64;
    let mut ticker = Row::new("async.ticker", median(&mut late), "ms", ticks)
        .note("how late a timer of 2 ms is on the same runtime while the tasks commit");
    ticker.p99 = Some(percentile(&late, 0.99));
    let row = |id: &str, unit, pairs: &Pairs, limit: &str, n: u64| Row::compared(id, unit, pairs, limit, n);
    let rows = vec![
        row("async.hit", "ns", &hit, "run", size.hits * rounds)
            .note("a transaction of one cached read, awaited one after the other"),
        row("async.miss.tcp", "us", &miss, "run", MISSES as u64 * rounds)
            .note("a transaction of one read that is fetched, one after the other"),
        row("async.commits", "commits/s", &commits, "spawn_blocking", WRITERS as u64)
            .note("8 tasks on 2 workers, an object each"),
        ticker,
        row("async.10k", "tasks/s", &many, "64 threads", TASKS as u64 * rounds)
            .note("10,000 tasks at once, each reads a cached object, and one of 100 a missing one as well"),
        handler,
    ];
    drop(client);
    server.stop().map_err(failed)?;
    Ok(Report { suite: "async", commit: COMMIT, machine: Machine::here("embedded"), rows })
}

struct World {
    at: Address,
    runtime: Runtime,
    cells: Vec<Ref<Cell>>,
}

impl World {
    /// A client with nothing cached.
    fn connect(&self) -> Result<Client, String> {
        Client::connect(&self.at).map_err(failed)
    }

    /// Nanoseconds of a hit.
    fn hits(&self, client: &Client, hits: u64) -> Result<f64, String> {
        let begun = Instant::now();
        (0..hits).try_for_each(|_| read(client, self.cells[0])).map_err(failed)?;
        Ok(begun.elapsed().as_nanos() as f64 / hits as f64)
    }

    fn hits_async(&self, client: &Client, hits: u64) -> Result<f64, String> {
        self.runtime.block_on(async {
            let begun = Instant::now();
            for _ in 0..hits {
                read_async(client, self.cells[0]).await.map_err(failed)?;
            }
            Ok(begun.elapsed().as_nanos() as f64 / hits as f64)
        })
    }

    /// Microseconds of a miss.
    fn misses(&self) -> Result<f64, String> {
        let client = self.connect()?;
        let begun = Instant::now();
        self.cells.iter().try_for_each(|cell| read(&client, *cell)).map_err(failed)?;
        Ok(begun.elapsed().as_secs_f64() * 1e6 / MISSES as f64)
    }

    fn misses_async(&self) -> Result<f64, String> {
        let client = self.connect()?;
        self.runtime.block_on(async {
            let begun = Instant::now();
            for cell in &self.cells {
                read_async(&client, *cell).await.map_err(failed)?;
            }
            Ok(begun.elapsed().as_secs_f64() * 1e6 / MISSES as f64)
        })
    }

    /// Commits a second, and how many milliseconds late a timer beside them was each time.
    fn commits(&self, client: &Client, time: Duration, by_tasks: bool) -> Result<(f64, Vec<f64>), String> {
        let is_over = Arc::new(AtomicBool::new(false));
        let writer = |cell: &Ref<Cell>| -> JoinHandle<Result<u64, Error>> {
            let (client, cell, is_over) = (client.clone(), *cell, is_over.clone());
            self.runtime.spawn(async move {
                let mut done = 0;
                while !is_over.load(Ordering::Relaxed) {
                    if by_tasks {
                        client.run_async(|tx| tx.edit(cell)?.set_count(tx.get(cell)?.count() + 1)).await?;
                    } else {
                        let client = client.clone();
                        let write =
                            move || client.run(|tx| tx.edit(cell)?.set_count(tx.get(cell)?.count() + 1));
                        spawn_blocking(write).await.map_err(|e| Error::Failed(e.to_string()))??;
                    }
                    done += 1;
                }
                Ok(done)
            })
        };
        let begun = Instant::now();
        let writers: Vec<_> = self.cells.iter().take(WRITERS).map(writer).collect();
        self.runtime.block_on(async {
            let ticker = tokio::spawn(async move {
                let mut late = Vec::new();
                while begun.elapsed() < time {
                    let asked = Instant::now();
                    tokio::time::sleep(TICK).await;
                    late.push(asked.elapsed().saturating_sub(TICK).as_secs_f64() * 1e3);
                }
                late
            });
            let late = ticker.await.map_err(failed)?;
            let elapsed = begun.elapsed();
            is_over.store(true, Ordering::Relaxed);
            let mut done = 0;
            for writer in writers {
                done += writer.await.map_err(failed)?.map_err(failed)?;
            }
            Ok((done as f64 / elapsed.as_secs_f64(), late))
        })
    }

    /// Tasks a second of 64 threads.
    fn threads(&self) -> Result<f64, String> {
        let client = self.warm()?;
        let next = AtomicUsize::new(0);
        let begun = Instant::now();
        let work = || -> Result<(), Error> {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= TASKS {
                    return Ok(());
                }
                read(&client, self.cells[0])?;
                if let Some(cell) = self.missing(n) {
                    read(&client, cell)?;
                }
            }
        };
        let all = thread::scope(|s| {
            let threads: Vec<_> = (0..THREADS).map(|_| s.spawn(work)).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, Result<(), Error>>| match thread.join() {
                Ok(done) => done.map_err(failed),
                Err(_) => Err("a thread panicked".into()),
            };
            threads.into_iter().map(join).collect::<Result<Vec<()>, String>>()
        });
        all?;
        Ok(TASKS as f64 / begun.elapsed().as_secs_f64())
    }

    fn tasks(&self) -> Result<f64, String> {
        let client = self.warm()?;
        self.runtime.block_on(async {
            let begun = Instant::now();
            let task = |n| {
                let (client, first, missing) = (client.clone(), self.cells[0], self.missing(n));
                tokio::spawn(async move {
                    read_async(&client, first).await?;
                    if let Some(cell) = missing {
                        read_async(&client, cell).await?;
                    }
                    Ok::<(), Error>(())
                })
            };
            let tasks: Vec<_> = (0..TASKS).map(task).collect();
            for task in tasks {
                task.await.map_err(failed)?.map_err(failed)?;
            }
            Ok(TASKS as f64 / begun.elapsed().as_secs_f64())
        })
    }

    /// A client that has the first object cached, and no other.
    fn warm(&self) -> Result<Client, String> {
        let client = self.connect()?;
        read(&client, self.cells[0]).map_err(failed)?;
        Ok(client)
    }

    fn missing(&self, n: usize) -> Option<Ref<Cell>> {
        n.is_multiple_of(MISS_EACH).then(|| self.cells[1 + n / MISS_EACH])
    }
}

fn read(client: &Client, cell: Ref<Cell>) -> Result<(), Error> {
    client.run(|tx| tx.get(cell).map(|cell| _ = cell.count()))
}

async fn read_async(client: &Client, cell: Ref<Cell>) -> Result<(), Error> {
    client.run_async(|tx| tx.get(cell).map(|cell| _ = cell.count())).await
}

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}
