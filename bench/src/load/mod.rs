//! Suite `load`: the latency of other clients beside antagonists, and a thousand clients at work.
//!
//! | module | its noun |
//! |---|---|
//! | `others` | clients that behave; their waiting is measured |
//! | `beside` | the blocks: quiet, beside an antagonist, beside a bystander; and the rows |
//! | `antagonist` | the antagonist processes |
//! | `bystander` | a process that takes as much of the machine and sends nothing |
//! | `active` | a thousand clients at work |
//! | `share` | what a process takes of the machine |
//! | `raw`, `switch`, `sizes` | a client without a cache, how a process is told, how large everything is |

mod active;
mod antagonist;
mod beside;
mod bystander;
mod others;
pub(crate) mod raw;
pub mod share;
mod sizes;
mod switch;

use std::ffi::OsStr;
use std::path::Path;

use tercel::tools::wire::id::{Oref, PageId};
use tercel::{Address, Client, ClientConfig, Object, Ref};
use tercel_term::process::OwnProcess;

use self::antagonist::Antagonist;
use self::others::{Counter, failed};
use self::sizes::{FILL_OBJECTS, Sizes};
use super::idle::anonymous_bytes;
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::{COMMIT, Options, placed};

/// The environment variable that makes this program one of the suite's own processes.
pub const ROLE: &str = "TERCEL_BENCH_LOAD";

/// The command line of such a process.
const BENCH: [&str; 2] = ["bench", "load"];

/// The object that fills the pages, two to a page.
#[derive(Object)]
struct Filler {
    bytes: [u8; 3_900],
}

/// The names that `--only` takes.
pub fn names() -> Vec<String> {
    Antagonist::ALL.iter().map(|t| t.name()).chain([ACTIVE]).map(String::from).collect()
}

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|o| o == name);
    let scratch = Scratch::new(options.dir.as_deref(), "load")?;
    let data = scratch.join("data");
    options.say("filling the store");
    let sizes = if options.quick { Sizes::QUICK } else { Sizes::FULL };
    let pages = fill(&data, sizes)?;
    let mut rows = Vec::new();
    let mut backend = String::new();
    for antagonist in Antagonist::ALL.into_iter().filter(|t| wanted(t.name())) {
        // A server of its own for each: what one kind leaves behind is not another's.
        let server = serve(&data, &[&["--cache", sizes.cache], antagonist.server()].concat())?;
        backend = server.backend().to_string();
        options.say(&format!("{}: {}", antagonist.name(), antagonist.what()));
        rows.extend(beside::measure(options, &server, antagonist, &pages, sizes)?);
    }
    if wanted(ACTIVE) {
        let server = serve(&data, &["--cache", sizes.cache, "--keepalive", ACTIVE_KEEPALIVE_MS])?;
        backend = server.backend().to_string();
        options.say(&format!("{} clients at work", sizes.active_clients));
        rows.extend(placed::on(placed::ends().0, || crowd(&server, &pages, sizes))?);
    }
    Ok(Report { suite: "load", commit: COMMIT, machine: Machine::here(backend), rows })
}

/// A server that stays where servers are.
fn serve(data: &Path, more: &[&str]) -> Result<OwnProcess, String> {
    placed::on(placed::ends().1, || Ok(OwnProcess::serve(data, None, more)?))
}

/// Fills a space with pages and gives their numbers. All pages are stored, and none is in the memory of a
/// process.
fn fill(data: &Path, sizes: Sizes) -> Result<Vec<PageId>, String> {
    let space = tercel::embedded(data).map_err(failed)?;
    let mut pages = Vec::new();
    for n in 0..sizes.fills {
        let filler = Filler { bytes: [n as u8; 3_900] };
        let make = || space.run(|tx| (0..FILL_OBJECTS).map(|_| tx.create(&filler)).collect());
        let refs: Vec<Ref<Filler>> = make().map_err(failed)?;
        pages.extend(refs.iter().map(|r| r.oref().page()));
    }
    pages.sort_unstable();
    pages.dedup();
    space.close().map_err(failed)?;
    Ok(pages)
}

/// Many clients at work: what each takes, how long it waits, and how much all of them get done.
fn crowd(server: &OwnProcess, pages: &[PageId], sizes: Sizes) -> Result<Vec<Row>, String> {
    let address: Address = server.address()?;
    let config = ClientConfig { cache_bytes: 8 << 20, ..ClientConfig::default() };
    let client = Client::connect_with(&address, config).map_err(failed)?;
    let make = || {
        let counter = Counter { value: 0, padding: [7; 48] };
        client.run(|tx| (0..sizes.active_clients).map(|_| tx.create(&counter)).collect())
    };
    let refs: Vec<Ref<Counter>> = make().map_err(failed)?;
    let (class, _, body) = tercel::tools::stored_object(&client, refs[0].oref()).map_err(failed)?;
    let orefs: Vec<Oref> = refs.iter().map(|r| r.oref()).collect();
    // The server's page cache is full before, and so not the clients'.
    for page in pages {
        tercel::tools::page(&client, *page).map_err(failed)?;
    }
    let before = anonymous_bytes(server.id())?;
    let first = orefs.iter().map(|o| o.raw().to_string()).collect::<Vec<_>>().join(",");
    let hex: String = body.iter().map(|b| format!("{b:02x}")).collect();
    let role = format!("{ACTIVE} {} {} {} {hex} {first}", server.listens_on(), pages.len(), class.0);
    let mut workers = OwnProcess::role(&BENCH, ROLE, &role)?;
    let (seconds, clients) = (sizes.active_seconds, sizes.active_clients);
    let mut ask = |every: u64| -> Result<Vec<f64>, String> {
        let said = workers.ask(&format!("{seconds} {every}"))?;
        let numbers: Result<Vec<f64>, _> = said.split(' ').map(str::parse).collect();
        numbers.ok().filter(|n| n.len() == 7).ok_or_else(|| format!("the workers said {said:?}"))
    };
    let paced = ask(1_000_000 / (2 * clients as u64))?;
    let each = anonymous_bytes(server.id())?.saturating_sub(before) as f64 / clients as f64;
    let full = ask(0)?;
    let at = |name: &str, numbers: &[f64], p50: usize| {
        let row = Row::new(format!("load.active.1000.{name}"), numbers[p50], "us", numbers[1] as u64);
        Row { p99: Some(numbers[p50 + 1]), ..row }
    };
    Ok(vec![
        Row::new("load.active.1000.bytes_per_client", each, "B", clients as u64)
            .note("growth of the server's anonymous memory, by the clients, after they have worked"),
        at("commit", &paced, 3).note(format!(
            "each client commits and fetches once a second; {:.0} operations a second, {} not begun because the last was not done; {}",
            paced[0],
            paced[2],
            placed::note()
        )),
        at("fetch", &paced, 5),
        Row::new("load.active.1000.rate", full[0], "ops/s", full[1] as u64).note(format!(
            "each client commits and fetches in turn, as soon as it is answered: commits {:.0} us, p99 {:.0}; fetches {:.0}, p99 {:.0}",
            full[3], full[4], full[5], full[6]
        )),
    ])
}

/// Runs as one of the suite's own processes.
///
/// # Errors
/// A sentence: what failed.
pub fn child(role: &OsStr) -> Result<(), String> {
    let wrong = || format!("{ROLE} is for this program's own use");
    let words: Vec<&str> = role.to_str().ok_or_else(wrong)?.split(' ').collect();
    match words[..] {
        [ACTIVE, address, pages, class, object, orefs] => {
            let class: u16 = class.parse().map_err(|_| wrong())?;
            let mut bytes = class.to_le_bytes().to_vec();
            bytes.extend([0, 0]);
            let hex = object.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap_or(""));
            bytes.extend(hex.map(|two| u8::from_str_radix(two, 16).unwrap_or(0)));
            let orefs = orefs.split(',').map(|o| o.parse().ok().and_then(Oref::from_raw));
            let orefs: Vec<Oref> = orefs.collect::<Option<_>>().ok_or_else(wrong)?;
            active::work(address, pages.parse().map_err(|_| wrong())?, &bytes, &orefs)
        }
        [bystander::NAME, threads] => bystander::stand_by(threads.parse().map_err(|_| wrong())?),
        [antagonist, address, pages, sizes] => {
            let sizes = Sizes::named(sizes).ok_or_else(wrong)?;
            antagonist::make(antagonist, address, pages.parse().map_err(|_| wrong())?, sizes)
        }
        _ => Err(wrong()),
    }
}

/// The row of many clients.
const ACTIVE: &str = "active";

/// These clients answer no pings. On a machine that is busy with other things a thousand of them take seconds
/// to connect, in which the first ones must not count as gone.
const ACTIVE_KEEPALIVE_MS: &str = "60000";
