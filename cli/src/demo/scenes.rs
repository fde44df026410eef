//! The scenes of the demonstration, each a few lines of what a program would do.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tercel::{Client, ClientConfig, Error, List, Ref};
use tercel_packages::import::{self, Imported};
use tercel_packages::list::{Graph, Source};
use tercel_packages::model::{Counter, MARKS, Mark, Marks};
use tercel_packages::query::{self, Way};
use tercel_term::fail::Failure;
use tercel_term::process::OwnProcess;
use tercel_term::{Term, tell, thousands};

/// The package whose loss is asked about, if the list has it.
const ROOT: &str = "libssl3";
/// The closure's packages must fit to be found again. Of a list of all packages they take less than a
/// quarter, but the sample is made around them.
const CACHE_BYTES_MIN: usize = 5 << 20;
/// The advisory's number.
const ADVISORY: u32 = 2026;
/// Marks that each reading transaction looks at, and transactions that it makes.
const MARKS_READ: usize = 1_000;
const READS: u64 = 1_000;
/// Small commits before the server is killed, and after it is back.
const COMMITS_BEFORE: u64 = 500;
const COMMITS_AFTER: u64 = 100;

fn connect(server: &OwnProcess, cache_bytes: usize) -> Result<Client, Failure> {
    Ok(Client::connect_with(&server.address()?, ClientConfig { cache_bytes, ..ClientConfig::default() })?)
}

/// Writes the objects of a list that was read.
pub fn import(
    server: &OwnProcess,
    graph: &Graph,
    source: &Source,
    begun: Instant,
    term: &Term,
) -> Result<Imported, Failure> {
    let client = connect(server, 16 << 20)?;
    let imported = import::write(&client, graph, source, begun, term)?;
    tell!("{} {}", term.bold("import"), import::summary(&imported));
    Ok(imported)
}

/// The package whose loss is asked about: that of the examples, else the one that most others need.
pub fn root<'g>(graph: &'g Graph, term: &Term) -> &'g str {
    if graph.has(ROOT) {
        return ROOT;
    }
    let root = graph.most_needed();
    tell!("{} the list has no {ROOT}, so take {root}, which most packages name", term.bold("root"));
    root
}

/// Everything that may break if a package goes, through a cache of a quarter of the data or a little more.
pub fn closure(server: &OwnProcess, root: &str, imported: &Imported, term: &Term) -> Result<(), Failure> {
    let probe = connect(server, 1 << 20)?;
    let data = probe.server_status()?.pages.pages as usize * tercel::tools::wire::page::PAGE_BYTES;
    drop(probe);
    let cache = (data / 4).max(CACHE_BYTES_MIN);
    let client = connect(server, cache)?;
    tell!(
        "{} everything that may break if {root} goes (alternatives count, Provides does not), of {} dependencies, {:.1} MB of pages through {:.1} MB of cache",
        term.bold("closure"),
        thousands(imported.edges),
        data as f64 / 1e6,
        cache as f64 / 1e6,
    );
    let root = query::find(&client, root)?;
    for turn in ["cold", "hot"] {
        let before = client.stats().client.fetches;
        let begun = Instant::now();
        let visited = client.run(|tx| query::visit(tx, root, Way::Rdepends, |_| Ok(())))?;
        let took = begun.elapsed();
        let fetches = client.stats().client.fetches - before;
        let steps = (visited.packages + visited.edges).max(1);
        tell!(
            "  {turn:<5} {} packages, {} edges in {:.1} ms: {} fetches, {:.2} % hits, {:.0} ns a package, {:.0} ns an edge",
            thousands(visited.packages),
            thousands(visited.edges),
            took.as_secs_f64() * 1e3,
            thousands(fetches),
            100.0 * (1.0 - fetches as f64 / steps as f64),
            took.as_nanos() as f64 / visited.packages.max(1) as f64,
            took.as_nanos() as f64 / visited.edges.max(1) as f64,
        );
    }
    Ok(())
}

/// Marks all of them in one transaction, while another client reads the marks.
pub fn advisory(server: &OwnProcess, root: &str, term: &Term) -> Result<(), Failure> {
    let client = connect(server, 64 << 20)?;
    let root = query::find(&client, root)?;
    let marks = client.run(|tx| {
        let mut affected = Vec::new();
        query::visit(tx, root, Way::Rdepends, |p| {
            affected.push(p.reference());
            Ok(())
        })?;
        let marks = affected
            .into_iter()
            .map(|package| tx.create(&Mark { package, advisory: 0 }))
            .collect::<Result<Vec<_>, Error>>()?;
        let all = tx.create(&Marks { marks: List(marks.clone()) })?;
        tx.set_root(MARKS, all)?;
        Ok(marks)
    })?;
    let (before, after, mixed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let done = AtomicBool::new(false);
    let reader = connect(server, 64 << 20)?;
    let took = thread::scope(|scope| -> Result<Duration, Failure> {
        let watching = scope.spawn(|| -> Result<(), Error> {
            while !done.load(Ordering::SeqCst)
                || before.load(Ordering::SeqCst) + after.load(Ordering::SeqCst) < READS
                || after.load(Ordering::SeqCst) == 0
            {
                let seen = reader.run(look)?;
                let kind = match seen {
                    (_, 0) => &before,
                    (0, _) => &after,
                    _ => &mixed,
                };
                kind.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        });
        // The first half of the reads is before the commit.
        while before.load(Ordering::SeqCst) < READS / 2 && !watching.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        let begun = Instant::now();
        let marked = client.run(|tx| {
            for mark in &marks {
                tx.edit(*mark)?.set_advisory(ADVISORY)?;
            }
            Ok(())
        });
        let took = begun.elapsed();
        done.store(true, Ordering::SeqCst);
        match watching.join() {
            Ok(watched) => watched?,
            Err(_) => return Err(Failure::new("the reading thread panicked")),
        }
        marked?;
        Ok(took)
    })?;
    tell!(
        "{} {} packages marked in one transaction, {:.0} ms",
        term.bold("advisory"),
        thousands(marks.len() as u64),
        took.as_secs_f64() * 1e3
    );
    let mixed = mixed.load(Ordering::SeqCst);
    tell!(
        "  meanwhile another client read {MARKS_READ} marks in each of {} transactions: {} saw them before, {} after, {} a mixture",
        thousands(before.load(Ordering::SeqCst) + after.load(Ordering::SeqCst) + mixed),
        thousands(before.load(Ordering::SeqCst)),
        thousands(after.load(Ordering::SeqCst)),
        if mixed == 0 { term.green("0") } else { term.red(&mixed.to_string()) },
    );
    if mixed == 0 { Ok(()) } else { Err(Failure::new("a transaction saw a mixture of two states")) }
}

/// Reads the marks: how many without and with the advisory.
fn look(tx: &tercel::Tx<'_>) -> Result<(usize, usize), Error> {
    let mut seen = (0, 0);
    for mark in tx.get_root::<Marks>(MARKS)?.marks().iter().take(MARKS_READ) {
        match mark?.advisory() {
            0 => seen.0 += 1,
            _ => seen.1 += 1,
        }
    }
    Ok(seen)
}

/// Kills the server in the middle of a stream of commits.
pub fn crash(server: &mut OwnProcess, dir: &Path, term: &Term) -> Result<(), Failure> {
    let client = connect(server, 4 << 20)?;
    let counter: Ref<Counter> = client.run(|tx| {
        let counter = tx.create(&Counter { value: 0 })?;
        tx.set_root("counter", counter)?;
        Ok(counter)
    })?;
    let acknowledged = AtomicU64::new(0);
    let stop_at = AtomicU64::new(u64::MAX);
    let (outage, restarted) = thread::scope(|scope| -> Result<(Duration, Duration), Failure> {
        let stream = scope.spawn(|| -> Result<(), Error> {
            while acknowledged.load(Ordering::SeqCst) < stop_at.load(Ordering::SeqCst) {
                client.run(|tx| {
                    let c = tx.get(counter)?;
                    c.edit()?.set_value(c.value() + 1)
                })?;
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        });
        while acknowledged.load(Ordering::SeqCst) < COMMITS_BEFORE && !stream.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        server.kill()?;
        let at_kill = acknowledged.load(Ordering::SeqCst);
        let killed = Instant::now();
        let address = server.address()?;
        *server = OwnProcess::serve(dir, Some(&address), &[])?;
        let restarted = killed.elapsed();
        while acknowledged.load(Ordering::SeqCst) <= at_kill && !stream.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        let outage = killed.elapsed();
        stop_at.store(acknowledged.load(Ordering::SeqCst) + COMMITS_AFTER, Ordering::SeqCst);
        match stream.join() {
            Ok(result) => result?,
            Err(_) => return Err(Failure::new("the committing thread panicked")),
        }
        Ok((outage, restarted))
    })?;
    // Another client, with nothing cached, asks the server itself.
    let found = connect(server, 4 << 20)?.run(|tx| Ok(tx.get(counter)?.value()))?;
    let acknowledged = acknowledged.load(Ordering::SeqCst);
    tell!(
        "{} server killed with SIGKILL amid commits, back after {:.0} ms; the client went on after {:.0} ms",
        term.bold("crash"),
        restarted.as_secs_f64() * 1e3,
        outage.as_secs_f64() * 1e3,
    );
    let line = format!("acknowledged {}, found {}", thousands(acknowledged), thousands(found));
    tell!("  {}", if acknowledged == found { term.green(&line) } else { term.red(&line) });
    if acknowledged == found { Ok(()) } else { Err(Failure::new("commits were lost or made twice")) }
}
