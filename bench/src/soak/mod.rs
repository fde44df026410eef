//! `tercel soak`: real work on a server process that is killed again and again, and a proof that nothing was
//! lost.
//!
//! Clients in this process move money, append to lists and fill a map, half of them through proxies that cut
//! connections. Every few seconds a server gets SIGKILL and is started again on its directory; in a group a
//! member may instead be stopped for a while. Everything that the clients did and saw is recorded, and in the
//! end the checkers of `tercel-verify` go through it with what a fresh client finds.
//!
//! | module | its noun |
//! |---|---|
//! | `space` | the objects, and how they are made and read out |
//! | `worker` | a client: what it does and records |
//! | `faults` | the kills and stops of servers, one after the other |
//! | `authority` | certificates that are renewed while servers run |
//! | `stranger` | one that is no member and says what members say |
//! | `tiers` | payments through three tiers, instead of all that |
//! | `proxy` | a link whose connections are cut now and then |
//! | `report` | the verdict |

mod authority;
mod faults;
mod proxy;
mod report;
mod space;
mod stranger;
mod tiers;
mod worker;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use tercel::{Address, Addresses, Client, ClientConfig, ServerStatus};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::hosts::Hosts;
use tercel_term::members::Members;
use tercel_term::tidy::{self, OwnDir};
use tercel_term::{Term, count, tell};
use tercel_verify::{History, Kind, PROPERTIES, View};

use crate::args;
use authority::Authority;
use faults::Every;
use proxy::Proxy;
use report::Run;
use space::Space;
use worker::{Record, Worker};

/// The state that all threads of a run share.
struct Shared {
    /// The one clock.
    begun: Instant,
    stop: AtomicBool,
    /// Clients that still work, and the last commit that one of them was told of.
    working: AtomicUsize,
    last_stamp: AtomicU64,
    space: Space,
}

impl Shared {
    fn now_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }
}

pub fn run(args: &args::Soak, term: &Term) -> Outcome {
    if let Some(role) = std::env::var_os(tercel_term::tiers::ROLE) {
        tercel_term::tiers::application(&role)?;
        return Ok(ExitCode::SUCCESS);
    }
    let every = between_kills(args)?;
    tidy::on_signals(|| "interrupted: nothing was judged".into())?;
    let dir = Dir::new(args.dir.clone())?;
    if args.payments.tiers {
        return tiers::run(args, every, dir.path(), term);
    }
    // Opened before the work, for a name that cannot be written must not cost a whole run.
    let history_file = match &args.history {
        Some(path) => Some(File::create(path).map_err(|e| cannot_write(path, &e))?),
        None => None,
    };
    if dir.goes_on() && !args.json {
        tell!(
            "{} is of an earlier soak: this one goes on in its space, beside what is there",
            dir.path().display()
        );
    }
    let authority = match args.renew {
        true => Some(Authority::new(dir.path().join("certificates"), args.replicas)?),
        false => None,
    };
    let mut members = dir.serve(args, authority.as_ref())?;
    if args.slow_disks {
        // Tried before the work: without strace there is nothing to wait for.
        drop(members.slow_disk(0, Duration::ZERO)?);
    }
    let addresses = members.addresses()?;
    let first = client(&addresses)?;
    let view = view_of(&first);
    if args.fill > 0 && !args.json {
        tell!("filling the store with {} MB", args.fill >> 20);
    }
    let space = Space::make(&first, args.clients, args.fill as u64, term)?;
    drop(first);
    let shared = Shared {
        begun: Instant::now(),
        stop: AtomicBool::new(false),
        working: AtomicUsize::new(args.clients),
        last_stamp: AtomicU64::new(0),
        space,
    };
    let proxy = |i| Proxy::start(members.address(i), args.seed + i as u64);
    let proxies = (0..members.len()).map(proxy).collect::<Result<Vec<_>, _>>()?;
    let proxied: Vec<Address> = proxies.iter().map(Proxy::address).collect();
    let proxied = members.asked(proxied.iter())?;
    let at = args.stranger.then(|| {
        (0..members.len()).filter_map(|i| members.address(i).to_string().parse().ok()).collect::<Vec<_>>()
    });
    let (records, ended, spoken, renewed) = thread::scope(|scope| {
        let workers: Vec<_> = (0..args.clients)
            .map(|i| {
                let target = if is_proxied(i) { &proxied } else { &addresses };
                let worker = Worker::new(&shared, i, args.seed);
                scope.spawn(move || worker.run(target))
            })
            .collect();
        scope.spawn(|| collect_always(&shared, &addresses));
        let stranger = at.as_deref().map(|at| scope.spawn(|| stranger::speak(&shared, at, args.seed)));
        let renewal = authority.as_ref().map(|of| scope.spawn(|| of.renew_always(&shared)));
        let ended = faults::make(args, every, &shared, &mut members, term);
        // Set also if a server could not be started: without a server no client ends by itself. Each then
        // gives up at its own time-out.
        shared.stop.store(true, Ordering::Release);
        let records: Vec<Record> = workers.into_iter().filter_map(|w| w.join().ok()).collect();
        let spoken = stranger.and_then(|stranger| stranger.join().ok());
        let renewed = renewal.and_then(|renewal| renewal.join().ok()).transpose();
        (records, ended, spoken, renewed)
    });
    let cuts = proxies.into_iter().map(Proxy::stop).sum();
    let (faults, before) = ended?;
    if records.len() < args.clients {
        return Err(Failure::new("a client of the soak panicked; what it said stands above"));
    }
    let bar = term.bar(1, BAR, "reading all there is");
    let last = client(&addresses)?;
    let ending = shared.space.read(&last)?;
    let done = before + Done::by(&last);
    let views = view_of(&last) - view;
    drop(last);
    bar.finish_and_clear();
    let mut history = History { about: command_line(args, &every), ..History::default() };
    history.views.push(View {
        viewer: "a fresh client".into(),
        kind: Kind::Server,
        objects: ending.versions(),
    });
    let mut run = Run::new(args, (faults, views), done, cuts, &ending, shared.space.total());
    run.heard(spoken);
    run.renewed(renewed?);
    for record in records {
        run.add(&record);
        history.transactions.extend(record.transactions);
        history.views.extend(record.view);
    }
    if !args.json {
        tell!("judging {}", count(history.transactions.len() as u64, "transaction", "transactions"));
    }
    let bar = term.bar(PROPERTIES as u64, BAR, "judging");
    let mut done = 0;
    run.judge(&history, &ending, |property| {
        bar.set_message(format!("judging: {property:?}").to_lowercase());
        bar.set_position(done);
        done += 1;
    });
    bar.finish_and_clear();
    members.stop()?;
    if let (Some(path), Some(mut file)) = (&args.history, history_file) {
        file.write_all(history.to_json().as_bytes()).map_err(|e| cannot_write(path, &e))?;
    }
    run.tell(args.json, term)
}

/// Says whether the connections of a client are cut now and then.
fn is_proxied(client: usize) -> bool {
    client.is_multiple_of(2)
}

fn cannot_write(path: &Path, e: &std::io::Error) -> Failure {
    Failure::new(format!("cannot write the history to {}: {e}", path.display()))
        .next("name another file with --history")
}

/// The command that runs this soak again.
fn command_line(args: &args::Soak, every: &Every) -> String {
    let mut line = format!("tercel soak --seconds {} --clients {}", args.seconds, args.clients);
    let optional = [
        (every.fault.as_secs_f64() < NEVER).then(|| format!(" --kill-every {}", every.fault.as_secs_f64())),
        (args.replicas > 1).then(|| format!(" --replicas {}", args.replicas)),
        args.replace.map(|every| format!(" --replace={every}")),
        args.hosts.then(|| " --hosts".into()),
        args.slow_disks.then(|| " --slow-disks".into()),
        args.stranger.then(|| " --stranger".into()),
        args.renew.then(|| " --renew".into()),
        (args.fill > 0).then(|| format!(" --fill {}", args.fill)),
        args.mob.map(|bytes| format!(" --mob {bytes}")),
    ];
    line.extend(optional.into_iter().flatten());
    line + &format!(" --seed {}", args.seed)
}

/// The times from one kill or replacement to the next, short enough for one.
fn between_kills(args: &args::Soak) -> Result<Every, Failure> {
    let seconds = args.seconds as f64;
    if (args.slow_disks || args.stranger) && args.replicas == 1 {
        let what = "slow disks and a stranger are trials of a group, and a server alone is none";
        return Err(Failure::new(what).next("have a group with --replicas 3").code(2));
    }
    if args.replace.is_some() && args.replicas == 1 {
        return Err(Failure::new("a server alone has nobody from whom another could take its place")
            .next("have a group with --replicas 3")
            .code(2));
    }
    let kinds = [
        (args.kill_every, "kills the server", "--kill-every"),
        (args.replace, "replaces a member", "--replace"),
    ];
    for (every, does, name) in kinds {
        if let Some(every) = every.filter(|every| *every > seconds) {
            return Err(Failure::new(format!(
                "a soak of {seconds} s that {does} every {every} s never does, and proves nothing"
            ))
            .next(format!("give a longer time with --seconds, or a shorter one with {name}"))
            .code(2));
        }
    }
    let otherwise =
        if args.replace.is_some() || args.stranger { NEVER } else { KILL_EVERY.min(seconds / 2.0) };
    Ok(Every {
        fault: Duration::from_secs_f64(args.kill_every.unwrap_or(otherwise)),
        replace: Duration::from_secs_f64(args.replace.unwrap_or(NEVER)),
    })
}

/// Seconds that no soak has.
const NEVER: f64 = 1e9;

/// Seconds between two kills, unless the command line says otherwise.
const KILL_EVERY: f64 = 2.0;

/// The work that servers did unseen by their clients.
#[derive(Clone, Copy, Default, Serialize)]
struct Done {
    /// Pages written to disk, as far as servers could be asked before they were killed.
    pages_installed: u64,
    /// Collections that came to their end, and what they freed.
    collections: u64,
    collected: u64,
}

impl Done {
    /// By one server in its life, as far as it says so.
    fn by(client: &Client) -> Done {
        let status = status_of(client);
        Done {
            pages_installed: status.storage.pages_installed,
            collections: status.leading.map_or(0, |leading| leading.collection.done),
            collected: status.pages.collected,
        }
    }
}

impl std::ops::Add for Done {
    type Output = Done;

    fn add(self, other: Done) -> Done {
        Done {
            pages_installed: self.pages_installed + other.pages_installed,
            collections: self.collections + other.collections,
            collected: self.collected + other.collected,
        }
    }
}

/// The number of the view that the server is in.
fn view_of(client: &Client) -> u64 {
    status_of(client).view
}

fn status_of(client: &Client) -> ServerStatus {
    client.server_status().unwrap_or_default()
}

/// Has one collection follow the other, whatever becomes of the servers.
fn collect_always(shared: &Shared, addresses: &Addresses) {
    let mut link: Option<Client> = None;
    while !shared.stop.load(Ordering::Acquire) {
        link = link.or_else(|| client(addresses).ok());
        // A server that was killed is connected to again by the client itself.
        if let Some(client) = &link {
            let _ = client.begin_collection(false);
        }
        thread::sleep(COLLECT_EVERY);
    }
}

/// A collection that is asked for while one is under way follows it.
const COLLECT_EVERY: Duration = Duration::from_millis(20);

/// A bar of what takes its time.
const BAR: &str = "{msg:<22} {wide_bar:.cyan/dim} {elapsed}";

fn client(at: &Addresses) -> Result<Client, Failure> {
    Ok(Client::connect_with(at.clone(), ClientConfig { cache_bytes: 8 << 20, ..ClientConfig::default() })?)
}

/// Says whether a directory has entries, or the path is something else.
fn is_used(dir: &Path) -> bool {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => dir.exists(),
    }
}

/// The file by which a directory of an earlier run is known.
const MARK: &str = "made-by-tercel-soak";

/// Where the space is.
enum Dir {
    /// Where the command line says; whether an earlier run has been there.
    Named(PathBuf, bool),
    /// Made for this run.
    Own(OwnDir),
}

impl Dir {
    fn new(named: Option<PathBuf>) -> Result<Dir, Failure> {
        let is_named = named.is_some();
        let goes_on = named.as_deref().is_some_and(|dir| dir.join(MARK).exists());
        if let Some(dir) = named.as_deref().filter(|dir| !goes_on && is_used(dir)) {
            return Err(Failure::new(format!(
                "{} is not empty, and no earlier soak has made it",
                dir.display()
            ))
            .next("name a new directory with --dir, or one that a soak has made, to go on in it"));
        }
        let path =
            named.unwrap_or_else(|| std::env::temp_dir().join(format!("tercel-soak-{}", std::process::id())));
        std::fs::create_dir_all(&path).map_err(|e| {
            Failure::new(format!("cannot make {}: {e}", path.display())).next("name another place with --dir")
        })?;
        if !is_named {
            return Ok(Dir::Own(OwnDir::new(path)));
        }
        std::fs::write(path.join(MARK), "Made by `tercel soak --dir`, which goes on in it.\n").map_err(
            |e| {
                Failure::new(format!("cannot write into {}: {e}", path.display()))
                    .next("name another place with --dir")
            },
        )?;
        Ok(Dir::Named(path, goes_on))
    }

    /// Says whether an earlier run has been there.
    fn goes_on(&self) -> bool {
        matches!(self, Dir::Named(_, true))
    }

    /// Starts the servers over the space.
    fn serve(&self, args: &args::Soak, authority: Option<&Authority>) -> Result<Members, Failure> {
        let bytes = args.mob.map(|bytes| bytes.to_string());
        let mob = bytes.iter().flat_map(|bytes| ["--mob", bytes]);
        // Nothing is kept but what the root reaches, so nothing needs a time of grace.
        let more: Vec<&str> = mob.chain(["--gc-grace", "0"]).collect();
        let hosts = args.hosts.then(|| Hosts::new(args.replicas)).transpose().unwrap_or_else(|e| {
            eprintln!("cuts of links are left out, for no hosts can be made: {}", e.what);
            None
        });
        match (authority, hosts) {
            (Some(of), hosts) => Members::start_secured(hosts, of.dir(), self.path(), args.replicas, &more),
            (None, Some(hosts)) => Members::start_on(hosts, self.path(), args.replicas, &more),
            (None, None) => Members::start(self.path(), args.replicas, &more),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Dir::Named(path, _) => path,
            Dir::Own(own) => own.path(),
        }
    }
}
