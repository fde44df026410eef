//! `tercel-bench`, behind `tercel bench`: measuring against the physical limit in the same run. And behind
//! `tercel soak`. It is a program of its own, so that users get no more than they use.
//!
//! | module | its noun |
//! |---|---|
//! | `args` | the command line |
//! | `soak` | work on a server that is killed again and again |
//! | `report`, `blocks` | what is said, and how two things are compared |
//! | `page`, `figure` | the report as a page to look at, and the founding paper's figures on it |
//! | `cost` | a read's cost by where it runs, as a picture |
//! | `numbers` | every suite, and the document that their rows become |
//! | `papers` | the founding papers' figures, beside rows of that document |
//! | `callgrind` | instructions of user space, counted by valgrind |
//! | `traversals` | suite `oo7`: hot traversals, and fetches in a small cache |
//! | `hop`, `threads`, `map` | the instructions of a hop in it, two threads beside one, and look-ups by key |
//! | `oo7`, `native`, `objects` | the database, without us and with us |
//! | `graph` | suite `graph`: import and closures of the package graph |
//! | `cad` | suite `cad`: import and traversals of models |
//! | `group` | suite `group`: a group of servers, and how fast the end of a member is got over |
//! | `bank`, `pay` | suite `bank`: money that goes from one space to another, and through three tiers |
//! | `commit` | suite `commit`: durable commits, one at a time and 64 at once |
//! | `events` | suite `events`: the event queue beside a loop by hand, and beside silent sources |
//! | `idle` | suite `idle`: what connections that do nothing cost |
//! | `stale` | suite `stale`: how late a change is seen elsewhere, and what it costs to see it at once |
//! | `archive` | suite `archive`: commits beside an archive, its lag, and restores |
//! | `tasks`, `handler` | suite `async`: runs of tasks beside threads; HTTP from a gateway's cache |
//! | `churn` | suite `churn`: the room that a space takes which is written to all the time |
//! | `flex` | suite `flex`: calls of methods, on the cached copy and at the server |
//! | `ring` | suite `ring`: messages in one order among three members, and the end of one |
//! | `rpc` | suite `rpc`: calls between two processes, beside the bare means under them |
//! | `rows`, `hot`, `told` | suite `rows`: rows of a table, beside redb; rows that many change, or watch |
//! | `shop` | suite `rows`, too: a shop beside the same in PostgreSQL |
//! | `postgres` | a PostgreSQL of a measurement's own |
//! | `proxy` | suite `proxy`: an HTTP proxy on the event queue, beside silent connections |
//! | `load` | suite `load`: the latency of other clients beside antagonists, and 1,000 clients at work |

#[path = "../../tercel/examples/permissions/anomalies.rs"]
mod anomalies;
mod archive;
mod args;
mod bank;
mod blocked;
mod blocks;
mod cad;
mod callgrind;
mod churn;
mod commit;
mod cost;
mod events;
mod figure;
mod flex;
mod graph;
mod group;
mod handler;
mod hop;
mod hot;
mod idle;
mod keyed;
mod load;
mod lru;
mod map;
mod native;
mod near;
mod numbers;
mod objects;
mod oo7;
mod page;
mod papers;
mod pay;
mod placed;
mod postgres;
mod proxy;
mod report;
mod ring;
mod rows;
mod rpc;
mod scratch;
mod shop;
mod soak;
mod stale;
mod tasks;
mod threads;
mod told;
mod traversals;

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use tercel_term::fail::{Failure, Outcome};
use tercel_term::wrap::columns;
use tercel_term::{Term, say, tidy};

use args::{Args, Command, Suite};
use report::Report;

/// The options of a measurement.
#[derive(Debug, Clone, Default)]
struct Options {
    /// Fewer rounds: some seconds instead of a minute, and wider intervals.
    quick: bool,
    /// Where to put data; a directory of its own is made in it and removed. Else the system's for temporary
    /// files.
    dir: Option<PathBuf>,
    /// Connections that do nothing, in suite `idle`.
    connections: usize,
    /// Seconds in which nothing may be suspected, in suite `group`.
    quiet_seconds: u64,
    /// Rounds that are written while each way reads, in row `anomalies` of suite `flex`.
    rounds: u64,
    /// A file or directory of models, in suite `cad`; else models that the program writes itself.
    step: Option<PathBuf>,
    /// Bytes of the space that an empty member joins, in suite `group`.
    space_bytes: usize,
    /// Which rows to measure, in suites `load`, `rpc`, `group` and `flex`; all if none is named.
    only: Vec<String>,
}

fn main() -> ExitCode {
    let term = Term::new();
    let done = match Args::parse().command {
        Command::Bench(args) => bench(args),
        Command::Soak(args) => soak::run(&args, &term),
    };
    done.unwrap_or_else(|e| {
        e.print(&term);
        ExitCode::from(e.code)
    })
}

impl Options {
    /// Says what is being done, where a person may look.
    fn say(&self, what: &str) {
        if std::io::stderr().is_terminal() {
            eprintln!("{what}");
        }
    }
}

/// Measures a suite.
///
/// # Errors
/// A sentence: what failed.
fn run(suite: Suite, options: &Options) -> Result<Report, String> {
    let mut report = match suite {
        Suite::Oo7 => traversals::run(options),
        Suite::Commit => commit::run(options),
        Suite::Bank => bank::run(options),
        Suite::Events => events::run(options),
        Suite::Cad => cad::run(options),
        Suite::Graph => graph::run(options),
        Suite::Group => group::run(options),
        Suite::Idle => idle::run(options),
        Suite::Load => load::run(options),
        Suite::Stale => stale::run(options),
        Suite::Churn => churn::run(options),
        Suite::Archive => archive::run(options),
        Suite::Async => tasks::run(options),
        Suite::Flex => flex::run(options),
        Suite::Proxy => proxy::run(options),
        Suite::Ring => ring::run(options),
        Suite::Rows => rows::run(options),
        Suite::Rpc => rpc::run(options),
        Suite::All | Suite::Papers => Err("it measures nothing itself, and makes no report".into()),
    }?;
    papers::beside(&mut report.rows);
    Ok(report)
}

/// Measures a suite and prints its report. This is also the door by which the suites' own child processes
/// come in: they say in their environment what they are.
fn bench(args: args::Bench) -> Outcome {
    let (suite, page) = (args.suite, args.report.as_deref());
    let options = Options {
        quick: args.quick,
        dir: args.dir,
        connections: args.connections,
        quiet_seconds: args.quiet_seconds,
        rounds: args.rounds,
        step: args.step,
        space_bytes: args.space,
        only: args.only,
    };
    for (variable, child) in CHILDREN {
        if let Some(role) = std::env::var_os(variable) {
            return child(&role).map(|()| ExitCode::SUCCESS).map_err(Failure::new);
        }
    }
    check_rows(suite, &options.only)?;
    if suite == Suite::Papers {
        return papers(args.write.as_deref(), args.json);
    }
    tidy::on_signals(|| "interrupted: nothing was measured to its end".into())?;
    if suite == Suite::All {
        return all(&options, args.write.as_deref());
    }
    // Before minutes are spent on what could not be written.
    if let Some(dir) = page {
        std::fs::create_dir_all(dir).map_err(|e| not_written(dir, &e))?;
    }
    let before = load::share::Stolen::now();
    let mut report = run(suite, &options).map_err(Failure::new)?;
    if suite == Suite::Events && page.is_some() {
        // The paper's figures stand on one page.
        match run(Suite::Proxy, &options) {
            Ok(more) => report.rows.extend(more.rows),
            Err(reason) => eprintln!("Figures 8 and 9 are left out: {reason}"),
        }
    }
    report.machine.busy = before.and_then(|before| before.busy_since());
    if let Some(dir) = page {
        let file = dir.join(format!("{}.html", report.suite));
        std::fs::write(&file, page::html(&report)).map_err(|e| not_written(&file, &e))?;
        eprintln!("the page is {}", file.display());
    }
    let text = if args.json { report.json().map_err(Failure::new)? } else { report.table(columns()) };
    say!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// Measures every suite and writes the document, or prints it.
fn all(options: &Options, file: Option<&Path>) -> Outcome {
    let before = match file.map(|file| (file, std::fs::read_to_string(file))) {
        Some((_, Ok(before))) => before,
        // Before minutes are spent on what could not be written.
        Some((file, Err(_))) => write(file, "").map(|()| String::new())?,
        None => String::new(),
    };
    let numbers = numbers::run(options, &before).map_err(Failure::new)?;
    match file {
        Some(file) => {
            write(file, &numbers.document)?;
            if let Some(picture) = numbers.picture {
                write(&file.with_file_name("cost.svg"), &picture)?;
            }
        }
        None => say!("{}", numbers.document),
    }
    match numbers.failed {
        0 => Ok(ExitCode::SUCCESS),
        n => Err(Failure::new(format!("{n} suites could not be measured")).next("the document says why")),
    }
}

/// Writes the founding papers beside the rows of the `numbers.md` in the same directory, or prints them.
/// Fails if a paper's text does not fit the rows; the document is written all the same.
fn papers(file: Option<&Path>, is_json: bool) -> Outcome {
    let beside = file.unwrap_or(Path::new("docs/papers.md")).with_file_name("numbers.md");
    let unread = |reason: String| {
        Failure::new(format!("cannot read {}: {reason}", beside.display())).next(
            "name a file beside numbers.md with --write; `tercel bench all --write numbers.md` writes one",
        )
    };
    let text = std::fs::read_to_string(&beside).map_err(|e| unread(e.to_string()))?;
    let numbers = numbers::Written::read(&text).map_err(unread)?;
    match file {
        Some(file) => write(file, &papers::document(&numbers))?,
        None if is_json => say!("{}", papers::as_json(&numbers)),
        None => say!("{}", papers::document(&numbers)),
    }
    match papers::stale(&numbers).join("; ") {
        stale if stale.is_empty() => Ok(ExitCode::SUCCESS),
        stale => Err(Failure::new(format!("the papers' texts do not fit the rows: {stale}"))
            .next("mend bench/src/papers.txt")),
    }
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|e| {
        Failure::new(format!("cannot write {}: {e}", file.display())).next("name another file with --write")
    })
}

/// Refuses names of rows that the suite does not have, before anything is made or measured.
fn check_rows(suite: Suite, only: &[String]) -> Result<(), Failure> {
    let (name, rows) = match suite {
        Suite::Load => ("load", load::names()),
        Suite::Rpc => ("rpc", rpc::names()),
        Suite::Group => ("group", group::names()),
        Suite::Flex => ("flex", flex::names()),
        Suite::Oo7 => ("oo7", vec![traversals::MEDIUM.into(), traversals::WHOLE.into()]),
        Suite::Rows => ("rows", vec![rows::INDEX.into()]),
        _ if only.is_empty() => return Ok(()),
        _ => {
            return Err(Failure::new(
                "only the suites load, rpc, group, flex, oo7 and rows have rows to choose from",
            )
            .next("leave --only out, or say `tercel bench load`")
            .code(2));
        }
    };
    match only.iter().find(|row| !rows.contains(row)) {
        Some(stranger) => Err(Failure::new(format!("suite {name} has no row {stranger}"))
            .next(format!("its rows are {}", rows.join(", ")))
            .code(2)),
        None => Ok(()),
    }
}

fn not_written(path: &Path, e: &std::io::Error) -> Failure {
    Failure::new(format!("cannot write {}: {e}", path.display())).next("name another directory with --report")
}

/// The work of a suite's process, with the value of its variable.
type Part = fn(&OsStr) -> Result<(), String>;

/// The variables that make this program a process of a suite, and what it then does.
const CHILDREN: [(&str, Part); 16] = [
    (commit::ROLE, commit::child),
    (events::ROLE, events::child),
    (flex::ROLE, flex::child),
    (group::ROLE, group::child),
    (group::waits::ROLE, group::waits::child),
    (handler::ROLE, handler::child),
    (hop::ROLE, hop::child),
    (idle::ROLE, idle::child),
    (load::ROLE, load::child),
    (map::ROLE, map::child),
    (pay::ROLE, pay::child),
    (proxy::ROLE, proxy::child),
    (ring::ROLE, ring::child),
    (rpc::ROLE, rpc::child),
    (shop::ROLE, shop::child),
    (stale::ROLE, stale::child),
];

/// The revision that the program was built from.
const COMMIT: &str = match option_env!("TERCEL_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};
