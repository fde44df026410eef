//! Suite `archive`: what an archive beside a server costs its commits, how far behind it is, and how quickly
//! it becomes a space again.
//!
//! The servers are processes, `tercel serve`, on one disk, and the archive is a directory on it. Commits are
//! compared with those at a server that has no archive.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tercel::backup::{Source, backup};
use tercel::{Address, Client, Object, Stamp};
use tercel_archive::access::Access;
use tercel_archive::catalogue::Catalogue;
use tercel_archive::head::Head;
use tercel_archive::restore::{Restored, Until, restore};
use tercel_archive::store::Store;
use tercel_term::process::OwnProcess;

use super::blocks::{alternate, median, percentile};
use super::commit::{COMMITTERS, Committer, latencies, rate};
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::{COMMIT, Options, placed};

/// An object that fills a space.
#[derive(Object)]
struct Filling {
    bytes: [u8; 1_000],
}

/// A server, and where it archives.
struct Archived {
    server: OwnProcess,
    address: Address,
    url: String,
}

impl Archived {
    /// Starts one whose archive is at most about a second behind.
    fn start(scratch: &Scratch, name: &str) -> Result<Archived, String> {
        let url = format!("file://{}", scratch.join(&format!("archive of {name}")).display());
        let server =
            OwnProcess::serve(&scratch.join(name), None, &["--archive", &url, "--archive-every", "1s"])?;
        let address = server.address()?;
        Ok(Archived { server, address, url })
    }

    fn store(&self) -> Result<Arc<dyn Store>, String> {
        tercel_archive::existing(&self.url, &Access::default()).map_err(failed)
    }

    /// The last commit that the archive has.
    fn last(&self, store: &dyn Store) -> Result<Option<u64>, String> {
        let read = Head::read(store).map_err(failed)?;
        Ok(read.and_then(|(head, _)| head.last.map(|last| last.stamp)))
    }

    /// Waits until the archive has a commit.
    fn wait(&self, stamp: Stamp) -> Result<(), String> {
        let (store, end) = (self.store()?, Instant::now() + PATIENCE);
        while self.last(&*store)?.is_none_or(|last| last < stamp.0) {
            if Instant::now() > end {
                return Err(format!("the archive lacks commit {stamp} after {} s", PATIENCE.as_secs()));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }
}

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    let scratch = Scratch::new(options.dir.as_deref(), "archive")?;
    let (first, last) = placed::ends();
    options.say("starting the servers");
    let (archived, plain) = placed::on(last, || {
        let plain = OwnProcess::serve(&scratch.join("plain"), None, &[])?;
        Ok::<_, String>((Archived::start(&scratch, "archived")?, plain))
    })?;
    let beside: Address = plain.address()?;

    options.say("one committer");
    let mut rows = vec![placed::on(first, || one(options, &archived.address, &beside))?.note(placed::note())];
    drop((archived, plain));
    options.say(&format!("{COMMITTERS} committers"));
    let plain = OwnProcess::serve(&scratch.join("plain of many"), None, &[])?;
    let archived = Archived::start(&scratch, "archived of many")?;
    rows.push(group(options, &archived.address, &plain.address()?)?);
    drop(plain);
    options.say(&format!("{RATE} commits a second"));
    rows.push(lag(options, &archived)?);
    let backend = archived.server.backend().to_string();
    drop(archived);
    rows.extend(restored(options, &scratch)?);
    Ok(Report { suite: "archive", commit: COMMIT, machine: Machine::here(backend), rows })
}

fn one(options: &Options, archived: &Address, plain: &Address) -> Result<Row, String> {
    let (archived, plain) = (Committer::new(archived)?, Committer::new(plain)?);
    let block = |committer: &Committer| latencies(|| committer.commit()).map(|mut all| median(&mut all));
    let rounds = if options.quick { 15 } else { 60 };
    let pairs = alternate(rounds, || block(&plain), || block(&archived))?;
    Ok(Row::compared("archive.commit.one", "us", &pairs, "the same without an archive", rounds as u64))
}

fn group(options: &Options, archived: &Address, plain: &Address) -> Result<Row, String> {
    let of = |address| (0..COMMITTERS).map(|_| Committer::new(address)).collect::<Result<Vec<_>, _>>();
    let (archived, plain) = (of(archived)?, of(plain)?);
    let (rounds, time) = match options.quick {
        true => (8, Duration::from_millis(1_200)),
        false => (20, Duration::from_secs(3)),
    };
    let block = |all: &[Committer]| rate(time, all.iter().map(|committer| || committer.commit()));
    let pairs = alternate(rounds, || block(&plain), || block(&archived))?;
    let row = Row::compared(
        "archive.commit.group64",
        "commits/s",
        &pairs,
        "the same without an archive",
        rounds as u64,
    );
    Ok(row
        .note("each block is longer than the second for which entries wait, so it pays for its own objects"))
}

/// The time from a commit to the moment at which the archive has it.
fn lag(options: &Options, archived: &Archived) -> Result<Row, String> {
    let time = Duration::from_secs(if options.quick { 8 } else { 30 });
    let committers = (0..PACED).map(|_| Committer::new(&archived.address)).collect::<Result<Vec<_>, _>>()?;
    let (made, is_over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let begin = Instant::now();
    // When the archive was seen to have so much.
    let seen = thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let (store, mut seen) = (archived.store()?, Vec::new());
            loop {
                // The last look is behind the last commit.
                let is_last = is_over.load(Ordering::SeqCst);
                if let Some(stamp) = archived.last(&*store)? {
                    seen.push((stamp, Instant::now()));
                }
                if is_last {
                    return Ok::<_, String>(seen);
                }
                thread::sleep(POLL);
            }
        });
        let paced: Vec<_> = committers
            .iter()
            .enumerate()
            .map(|(at, committer)| {
                let made = &made;
                scope.spawn(move || {
                    let pace = Duration::from_secs(PACED as u64) / RATE;
                    let mut due = begin + pace * at as u32 / PACED as u32;
                    while due < begin + time {
                        thread::sleep(due.saturating_duration_since(Instant::now()));
                        let stamp = committer.stamped()?;
                        made.lock().unwrap_or_else(PoisonError::into_inner).push((stamp, Instant::now()));
                        due += pace;
                    }
                    Ok::<_, String>(())
                })
            })
            .collect();
        let paced = paced.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(PANICKED.into())));
        let done = paced.collect::<Result<(), _>>();
        let last = made.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(stamp, _)| *stamp).max();
        let done = done.and_then(|()| archived.wait(last.unwrap_or_default()));
        is_over.store(true, Ordering::SeqCst);
        let seen = looks.join().unwrap_or_else(|_| Err(PANICKED.into()))?;
        done.map(|()| seen)
    })?;
    let made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
    let of = |(stamp, at): &(Stamp, Instant)| {
        let first = seen.partition_point(|(has, _)| *has < stamp.0);
        seen.get(first).map(|(_, then)| then.saturating_duration_since(*at).as_secs_f64())
    };
    let mut all: Vec<f64> = made.iter().filter_map(of).collect();
    all.sort_unstable_by(f64::total_cmp);
    if all.len() < made.len() {
        return Err(format!("the archive lacks {} of {} commits", made.len() - all.len(), made.len()));
    }
    let (n, p99) = (all.len() as u64, percentile(&all, 0.99));
    let note = format!(
        "from a commit's answer to the archive's head, looked at every {} ms; entries wait for 1 s; {:.0} \
         commits a second",
        POLL.as_millis(),
        n as f64 / time.as_secs_f64()
    );
    Ok(Row { p99: Some(p99), ..Row::new("archive.lag", median(&mut all), "s", n).note(note) })
}

/// A backup and its restore, a restart after a kill, and from the archive the restore of a base alone, and of
/// the base with the commits behind it.
fn restored(options: &Options, scratch: &Scratch) -> Result<[Row; 5], String> {
    let (megabytes, commits) = if options.quick { (64, 20_000) } else { (488, 100_000) };
    options.say(&format!("filling a space with {megabytes} MB"));
    let (data, url) =
        (scratch.join("filled"), format!("file://{}", scratch.join("archive of filled").display()));
    fill(&OwnProcess::serve(&data, None, &[])?.address()?, megabytes)?;
    let more = ["--archive", url.as_str(), "--archive-every", "1s"];
    let server = OwnProcess::serve(&data, None, &more)?;
    let address = server.address()?;
    let archived = Archived { server, address, url };
    archived.wait(Committer::new(&archived.address)?.stamped()?)?;
    options.say(&format!("{commits} commits behind the base"));
    let committers =
        (0..COMMITTERS).map(|_| Committer::new(&archived.address)).collect::<Result<Vec<_>, _>>()?;
    thread::scope(|scope| {
        let each = |committer| {
            scope.spawn(move || (0..commits / COMMITTERS).try_for_each(|_| Committer::commit(committer)))
        };
        let all: Vec<_> = committers.iter().map(each).collect();
        all.into_iter().try_for_each(|one| one.join().unwrap_or_else(|_| Err(PANICKED.into())))
    })?;
    archived.wait(committers[0].stamped()?)?;
    let store = archived.store()?;
    let [taken, restored] = backed_up(options, scratch, &archived.address)?;
    let recovery = recovered(options, scratch, archived.server, &data)?;
    let catalogue = Catalogue::open(&*store).map_err(failed)?;
    let base = catalogue.head.bases.first().ok_or("the archive has no base")?.clone();
    options.say("restoring");
    let alone = again(scratch, &catalogue, Until::Stamp(Stamp(base.stamp)))?;
    let whole = again(scratch, &catalogue, Until::End)?;
    let bytes = base.pages * tercel::tools::wire::page::PAGE_BYTES as u64;
    let rate = bytes as f64 / 1e6 / alone.1;
    // Less than a hundredth of the whole is not told from its noise: the figure is then a lower bound.
    let more = (whole.1 - alone.1).max(alone.1 / 100.0);
    let entries = whole.0.entries as f64 / more;
    Ok([
        taken,
        restored,
        recovery,
        Row::new("archive.restore", rate, "MB/s", bytes).note("pages of the base, durable at the end"),
        Row::new("archive.replay", entries, "entries/s", whole.0.entries)
            .note("what the commits behind the base take more, at least a hundredth of the base's time"),
    ])
}

/// A backup of a server that runs, and its restore, each beside a plain copy of as many bytes.
fn backed_up(options: &Options, scratch: &Scratch, of: &Address) -> Result<[Row; 2], String> {
    options.say("a backup");
    let (dir, data) = (scratch.join("backup"), scratch.join("restored from it"));
    let source = Source::Server(of.clone().into());
    let pages = backup(&source, &dir, |_| ()).map_err(failed)?.pages;
    tercel::backup::restore(&dir, &data, |_| ()).map_err(failed)?;
    let bytes = pages * tercel::tools::wire::page::PAGE_BYTES as u64;
    let rate = |begin: Instant| bytes as f64 / 1e6 / begin.elapsed().as_secs_f64();
    let copied = |from: &Path| {
        let to = scratch.join("copied");
        let begin = Instant::now();
        copy_durably(from, &to).map_err(failed)?;
        let rate = rate(begin);
        std::fs::remove_dir_all(&to).map_err(failed)?;
        Ok::<_, String>(rate)
    };
    let taken = || {
        let to = scratch.join("another backup");
        let begin = Instant::now();
        backup(&source, &to, |_| ()).map_err(failed)?;
        let rate = rate(begin);
        std::fs::remove_dir_all(&to).map_err(failed)?;
        Ok(rate)
    };
    let taking = alternate(BACKUPS, || copied(&dir), taken)?;
    let restored = || {
        std::fs::remove_dir_all(&data).map_err(failed)?;
        let begin = Instant::now();
        tercel::backup::restore(&dir, &data, |_| ()).map_err(failed)?;
        Ok(rate(begin))
    };
    let restoring = alternate(BACKUPS, || copied(&dir), restored)?;
    let row = |name, pairs| Row::compared(name, "MB/s", pairs, "a copy of the backup's files, synced", bytes);
    let note = "pages, durable at the end";
    Ok([row("backup.take", &taking).note(note), row("backup.restore", &restoring).note(note)])
}

/// Copies a directory's files, and syncs each and the directory.
fn copy_durably(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let into = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_durably(&entry.path(), &into)?;
        } else {
            std::fs::copy(entry.path(), &into)?;
            File::open(&into)?.sync_all()?;
        }
    }
    File::open(to)?.sync_all()
}

/// The time from the start of a server that was killed until it listens, beside a reading of its files.
fn recovered(options: &Options, scratch: &Scratch, mut server: OwnProcess, of: &Path) -> Result<Row, String> {
    options.say("restarts after kills");
    server.kill()?;
    let data = scratch.join("recovered");
    // A server that starts may write a checkpoint, so each of them starts from the same files.
    let again = || {
        if data.exists() {
            std::fs::remove_dir_all(&data)?;
        }
        copy_durably(of, &data)
    };
    let mut bytes = 0;
    let read = || {
        again().map_err(failed)?;
        let begin = Instant::now();
        bytes = read_all(&data).map_err(failed)?;
        Ok::<_, String>(begin.elapsed().as_secs_f64() * 1e3)
    };
    let restarted = || {
        again().map_err(failed)?;
        let begin = Instant::now();
        let mut server = OwnProcess::serve(&data, None, &[])?;
        let time = begin.elapsed().as_secs_f64() * 1e3;
        server.kill()?;
        Ok(time)
    };
    let pairs = alternate(BACKUPS, read, restarted)?;
    let note = format!("{:.0} MB of files, the log of the commits among them", bytes as f64 / 1e6);
    Ok(Row::compared("recovery", "ms", &pairs, "a reading of the files", BACKUPS as u64).note(note))
}

/// Reads a directory's files. Gives their bytes.
fn read_all(dir: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => read_all(&entry.path())?,
            false => std::io::copy(&mut File::open(entry.path())?, &mut std::io::sink())?,
        };
    }
    Ok(bytes)
}

/// The median of three restores, in seconds.
fn again(scratch: &Scratch, from: &Catalogue<'_>, until: Until) -> Result<(Restored, f64), String> {
    let data = scratch.join("restored");
    let mut times = Vec::new();
    loop {
        let begin = Instant::now();
        let restored = restore(from, until, &data, &mut |_, _, _| ()).map_err(failed)?;
        times.push(begin.elapsed().as_secs_f64());
        std::fs::remove_dir_all(&data).map_err(failed)?;
        if times.len() == 3 {
            return Ok((restored, median(&mut times)));
        }
    }
}

fn fill(address: &Address, megabytes: usize) -> Result<(), String> {
    let client = Client::connect(address).map_err(failed)?;
    // Bytes that no compression makes less.
    let mut drawn = 1u64;
    let mut draw = |_| {
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (drawn >> 56) as u8
    };
    for _ in 0..megabytes {
        let all: Vec<_> = (0..1_000).map(|_| Filling { bytes: std::array::from_fn(&mut draw) }).collect();
        client.run(|tx| all.iter().try_for_each(|one| tx.create(one).map(drop))).map_err(failed)?;
    }
    Ok(())
}

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Commits a second, and the committers that make them.
const RATE: u32 = 1_000;
const PACED: usize = 16;

/// Pairs of blocks of the backup, the restore and the restart.
const BACKUPS: usize = 5;

/// Time between two looks at the archive.
const POLL: Duration = Duration::from_millis(20);

/// Time for the archive to have all.
const PATIENCE: Duration = Duration::from_secs(120);

const PANICKED: &str = "a thread of the measurement panicked";
