//! The scene of calls: one method, one line of code, wherever it runs.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use tercel::{Address, Addresses, Client, ClientConfig, Handle, Ref};
use tercel_packages::model::{Mark, MarkedCalls, Seen};
use tercel_term::fail::Failure;
use tercel_term::process::OwnProcess;
use tercel_term::{Term, tell};

/// Calls of a row, behind as many that are not timed.
const CALLS: u32 = 2_000;
/// Calls on the cached copy are so short that as many are timed together.
const HITS: u32 = 100_000;

/// The line of code.
fn call(mark: &Handle<'_, Mark>) -> Result<Seen, Failure> {
    Ok(mark.seen().map_err(tercel::Error::from)?)
}

/// The socket of the demonstration's server, beside its address; none if the path of the directory for it is
/// too long for one.
pub fn socket(dir: &Path) -> Option<Address> {
    format!("unix:{}", dir.join("socket").display()).parse().ok()
}

/// Calls at the demonstration's own server.
pub fn at_own(server: &OwnProcess, dir: &Path, term: &Term) -> Result<(), Failure> {
    let tcp = server.address()?;
    let roads: Vec<Addresses> = socket(dir).into_iter().chain([tcp.clone()]).map(Addresses::from).collect();
    scene(&roads, &tcp.into(), term)
}

/// Calls at a server that serves already.
pub fn at(address: &Addresses, term: &Term) -> Result<(), Failure> {
    scene(std::slice::from_ref(address), address, term)
}

fn scene(roads: &[Addresses], other: &Addresses, term: &Term) -> Result<(), Failure> {
    tell!("{} the same line, `mark.seen()`, wherever the method runs:", term.bold("call"));
    let changer = connect(other)?;
    let made: Ref<Mark> = changer.run(|tx| tx.create(&Mark { package: Ref::NULL, advisory: 1 }))?;
    let client = connect(&roads[0])?;
    let tx = client.transaction().begin()?;
    let cached = tx.handle(made);
    call(&cached)?;
    let begun = Instant::now();
    for _ in 0..HITS {
        call(black_box(&cached))?;
    }
    line("on the cached copy", begun.elapsed() / HITS, call(&cached)?);
    drop(cached);
    drop(tx);
    let alone = client.handle(made).local();
    line("the same, a transaction for each", median(|| call(&alone))?, call(&alone)?);
    for road in roads {
        let client = connect(road)?;
        let remote = client.handle(made).remote();
        let by = client.transport().map_or_else(String::new, |transport| format!(", by {transport}"));
        match median(|| call(&remote)) {
            Ok(took) => line(&format!("at the server{by}"), took, call(&remote)?),
            Err(e) => tell!("  at the server{by}: {}", e.what),
        }
    }
    // The server tells the client that the copy is old; the next call fetches it.
    let mut took = Vec::new();
    for advisory in 2..CHANGES + 2 {
        changer.handle(made).local().set_advisory(advisory).map_err(tercel::Error::from)?;
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let begun = Instant::now();
            let seen = call(&alone)?;
            if seen.advisory == advisory {
                took.push(begun.elapsed());
                break;
            }
            if Instant::now() > end {
                return Err(Failure::new("a change was not heard of within five seconds"));
            }
        }
    }
    took.sort_unstable();
    line("after another client's change", took[took.len() / 2], call(&alone)?);
    Ok(())
}

/// Changes of another client.
const CHANGES: u32 = 50;

fn connect(address: &Addresses) -> Result<Client, Failure> {
    let config = ClientConfig { cache_bytes: 1 << 20, ..ClientConfig::default() };
    Client::connect_with(address.clone(), config).map_err(|e| Failure::at_server(e, "--addr"))
}

/// The median time of a call.
fn median(mut call: impl FnMut() -> Result<Seen, Failure>) -> Result<Duration, Failure> {
    for _ in 0..CALLS {
        call()?;
    }
    let timed = (0..CALLS).map(|_| {
        let begun = Instant::now();
        call().map(|_| begun.elapsed())
    });
    let mut times = timed.collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn line(where_: &str, took: Duration, seen: Seen) {
    let ran = if seen.process == std::process::id() { "here" } else { "at the server" };
    let us = took.as_nanos() as f64 / 1e3;
    let took = if us < 1.0 { format!("{:.0} ns", us * 1e3) } else { format!("{us:.1} us") };
    tell!("  {where_:<34} {took:>8}  ran {ran}, process {}", seen.process);
}
