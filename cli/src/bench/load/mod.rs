//! Suite `load`: what others feel of clients that make trouble, and a thousand clients at work.
//!
//! The server is a process of its own, and so is whoever makes trouble. Eight clients that read and eight that commit have
//! work at fixed times; what each operation took, its waiting included, is measured in alternating blocks, with the trouble
//! and without. The limit of a row is the 99th percentile of the quiet blocks: the ratio says how many times longer the
//! unluckiest of a hundred operations takes beside that trouble.

mod active;
mod others;
mod raw;
mod trouble;

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use tercel::wire::id::{Oref, PageId};
use tercel::{Address, Client, ClientConfig, Object, Ref};

use self::others::{Counter, Felt, Others, Times, failed};
use self::trouble::Trouble;
use super::blocks::{Pairs, alternate, median};
use super::commit::child::Child;
use super::idle::anonymous_bytes;
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::{COMMIT, Options};

/// The environment variable that makes this program one of the suite's own processes.
pub const ROLE: &str = "TERCEL_BENCH_LOAD";

/// What the pages are full of: two of them each.
#[derive(Object)]
struct Filler {
    bytes: [u8; 3_900],
}

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|o| o == name);
    let known = |name: &String| name == ACTIVE || Trouble::ALL.iter().any(|t| t.name() == name);
    if let Some(stranger) = options.only.iter().find(|o| !known(o)) {
        let names: Vec<&str> = Trouble::ALL.iter().map(|t| t.name()).chain([ACTIVE]).collect();
        return Err(format!("suite load has no row {stranger}; its rows are {}", names.join(", ")));
    }
    let scratch = Scratch::new(options.dir.as_deref(), "load")?;
    let data = scratch.join("data");
    options.say("filling the store");
    let pages = fill(&data)?;
    let mut rows = Vec::new();
    let mut backend = String::new();
    for trouble in Trouble::ALL.into_iter().filter(|t| wanted(t.name())) {
        // A server of its own for each: what one kind leaves behind is not another's.
        let server = Child::serve_with(&data, &["--cache", SERVER_CACHE])?;
        backend = server.backend().to_string();
        options.say(&format!("{}: {}", trouble.name(), trouble.what()));
        rows.extend(beside(options, &server, trouble, &pages)?);
    }
    if wanted(ACTIVE) {
        let server = Child::serve_with(&data, &["--cache", SERVER_CACHE])?;
        backend = server.backend().to_string();
        options.say(&format!("{ACTIVE_CLIENTS} clients at work"));
        rows.extend(crowd(options, &server, &pages)?);
    }
    Ok(Report { suite: "load", commit: COMMIT, machine: Machine::here(backend), rows })
}

/// Fills a space with pages and gives their numbers, all stored and none in anybody's memory.
fn fill(data: &Path) -> Result<Vec<PageId>, String> {
    let space = tercel::embedded(data).map_err(failed)?;
    let mut pages = Vec::new();
    for n in 0..FILL_TRANSACTIONS {
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

/// What others feel beside one kind of trouble: two rows.
fn beside(options: &Options, server: &Child, trouble: Trouble, pages: &[PageId]) -> Result<Vec<Row>, String> {
    let address: Address = server.address().to_string().parse().map_err(failed)?;
    let others = Others::connect(&address, pages.to_vec())?;
    let mut maker = Child::load(&format!("{} {} {}", trouble.name(), server.address(), pages.len()))?;
    let (rounds, time) = if options.quick { (ROUNDS_QUICK, BLOCK_QUICK) } else { (ROUNDS, BLOCK) };
    others.work(time, 0)?;
    let mut felt: [Vec<[Felt; 2]>; 2] = Default::default();
    let (mut seed, mut n, mut made) = (0, [0, 0], 0.0);
    let maker = std::cell::RefCell::new(&mut maker);
    let felt_by = std::cell::RefCell::new(&mut felt);
    let mut block = |with: bool| {
        seed += 1;
        if with {
            maker.borrow_mut().ask("on")?;
            std::thread::sleep(SETTLE);
        }
        let times: Times = others.work(time, seed)?;
        if with {
            n = [n[0] + times.fetches.len() as u64, n[1] + times.commits.len() as u64];
            made += maker.borrow_mut().ask("off")?.parse::<f64>().unwrap_or(0.0);
            std::thread::sleep(SETTLE);
        }
        felt_by.borrow_mut()[usize::from(with)].push([Felt::of(times.fetches), Felt::of(times.commits)]);
        Ok::<_, String>(0.0)
    };
    let block = std::cell::RefCell::new(&mut block);
    alternate(rounds, || (*block.borrow_mut())(false), || (*block.borrow_mut())(true))?;
    let row = |which: usize, name: &str| {
        let at =
            |with: usize, of: fn(&Felt) -> f64| felt[with].iter().map(|f| of(&f[which])).collect::<Vec<_>>();
        let (quiet, loud) = (at(0, |f| f.p99), at(1, |f| f.p99));
        let pairs = Pairs { pairs: quiet.into_iter().zip(loud).collect() };
        let (quiet, loud) = (median(&mut at(0, |f| f.p50)), median(&mut at(1, |f| f.p50)));
        let id = format!("load.{}.{name}.p99", trouble.name());
        let limit = format!("load.quiet.{name}.p99");
        let per_second = made / (rounds as f64 * time.as_secs_f64());
        Row::compared(id, "us", &pairs, limit, n[which]).note(format!(
            "{} (some {per_second:.1} a second); medians {loud:.0} us, {quiet:.0} us quiet",
            trouble.what()
        ))
    };
    Ok(vec![row(0, "fetch"), row(1, "commit")])
}

/// A thousand clients at work: what each takes, how long it waits, and how much all of them get done.
fn crowd(options: &Options, server: &Child, pages: &[PageId]) -> Result<Vec<Row>, String> {
    let address: Address = server.address().to_string().parse().map_err(failed)?;
    let config = ClientConfig { cache_bytes: 8 << 20, ..ClientConfig::default() };
    let client = Client::connect_with(&address, config).map_err(failed)?;
    let make = || {
        let counter = Counter { value: 0, padding: [7; 48] };
        client.run(|tx| (0..ACTIVE_CLIENTS).map(|_| tx.create(&counter)).collect())
    };
    let refs: Vec<Ref<Counter>> = make().map_err(failed)?;
    let (class, _, body) = client.stored_object(refs[0].oref()).map_err(failed)?;
    let orefs: Vec<Oref> = refs.iter().map(|r| r.oref()).collect();
    // The server's page cache is full before, and so not the clients'.
    for page in pages {
        client.page(*page).map_err(failed)?;
    }
    let before = anonymous_bytes(server.id())?;
    let first = orefs.iter().map(|o| o.raw().to_string()).collect::<Vec<_>>().join(",");
    let hex: String = body.iter().map(|b| format!("{b:02x}")).collect();
    let role = format!("{ACTIVE} {} {} {} {hex} {first}", server.address(), pages.len(), class.0);
    let mut workers = Child::load(&role)?;
    let seconds = if options.quick { 3 } else { 15 };
    let mut ask = |every: u64| -> Result<Vec<f64>, String> {
        let said = workers.ask(&format!("{seconds} {every}"))?;
        let numbers: Result<Vec<f64>, _> = said.split(' ').map(str::parse).collect();
        numbers.ok().filter(|n| n.len() == 7).ok_or_else(|| format!("the workers said {said:?}"))
    };
    let paced = ask(1_000_000 / (2 * ACTIVE_CLIENTS as u64))?;
    let each = anonymous_bytes(server.id())?.saturating_sub(before) as f64 / ACTIVE_CLIENTS as f64;
    let full = ask(0)?;
    let at = |name: &str, numbers: &[f64], p50: usize| {
        let row = Row::new(format!("load.active.1000.{name}"), numbers[p50], "us", numbers[1] as u64);
        Row { p99: Some(numbers[p50 + 1]), ..row }
    };
    Ok(vec![
        Row::new("load.active.1000.bytes_per_client", each, "B", ACTIVE_CLIENTS as u64)
            .note("growth of the server's anonymous memory, by the clients, after they have worked"),
        at("commit", &paced, 3).note(format!(
            "each client commits and fetches once a second; {:.0} operations a second, {} not begun because the last was not done",
            paced[0], paced[2]
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
        [trouble, address, pages] => trouble::make(trouble, address, pages.parse().map_err(|_| wrong())?),
        _ => Err(wrong()),
    }
}

/// The row of many clients.
const ACTIVE: &str = "active";
const ACTIVE_CLIENTS: usize = 1_000;

/// 64 MB of pages, of which the server keeps a quarter in memory, so that most pages asked for must be read.
const FILL_TRANSACTIONS: usize = 32;
const FILL_OBJECTS: usize = 512;
const SERVER_CACHE: &str = "16M";

/// For the trouble to begin, and for its end to be over.
const SETTLE: Duration = Duration::from_millis(200);

const ROUNDS: usize = 15;
const ROUNDS_QUICK: usize = 6;
const BLOCK: Duration = Duration::from_secs(2);
const BLOCK_QUICK: Duration = Duration::from_secs(1);
