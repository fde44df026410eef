//! `tercel bench`: measuring against the physical limit in the same run.
//!
//! | module | its noun |
//! |---|---|
//! | `report`, `blocks` | what is said, and how two things are compared |
//! | `traversals` | suite `oo7`: hot traversals, and fetches in a small cache |
//! | `oo7`, `native`, `objects` | the database, without us and with us |
//! | `graph` | suite `graph`: import and closures of the package graph |
//! | `commit` | suite `commit`: durable commits, one at a time and 64 at once |
//! | `idle` | suite `idle`: what connections that do nothing cost |
//! | `stale` | suite `stale`: how late a change is seen elsewhere, and what it costs to see it at once |
//! | `load` | suite `load`: the latency of other clients beside antagonists, and 1,000 clients at work |

mod blocks;
mod commit;
mod graph;
mod idle;
mod load;
mod lru;
mod native;
mod objects;
mod oo7;
mod report;
mod scratch;
mod stale;
mod traversals;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::args;
use crate::fail::{Failure, Outcome};

pub use report::Report;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// Traversals of the OO7 database.
    Oo7,
    /// Durable commits.
    Commit,
    /// The package graph.
    Graph,
    /// Connections that do nothing.
    Idle,
    /// Antagonist clients, and many clients.
    Load,
    /// How late changes are seen.
    Stale,
}

/// How to measure.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Fewer rounds: some seconds instead of a minute, and wider intervals.
    pub quick: bool,
    /// So little, in suite `load`, that the numbers mean nothing.
    pub tiny: bool,
    /// Where to put data; a directory of its own is made in it and removed. Else the system's for temporary files.
    pub dir: Option<PathBuf>,
    /// How many connections do nothing, in suite `idle`.
    pub connections: usize,
    /// Which antagonists to measure, in suite `load`; all if none is named.
    pub only: Vec<String>,
    /// Whether to say on standard error what is being done.
    pub progress: bool,
}

impl Options {
    /// Says what is being done.
    fn say(&self, what: &str) {
        if self.progress {
            eprintln!("{what}");
        }
    }
}

/// Measures a suite.
///
/// # Errors
/// A sentence: what failed.
pub fn run(suite: Suite, options: &Options) -> Result<Report, String> {
    match suite {
        Suite::Oo7 => traversals::run(options),
        Suite::Commit => commit::run(options),
        Suite::Graph => graph::run(options),
        Suite::Idle => idle::run(options),
        Suite::Load => load::run(options),
        Suite::Stale => stale::run(options),
    }
}

/// The command; also the door by which the suites' own child processes come in.
pub fn command(args: &args::Bench) -> Outcome {
    if let Some(role) = std::env::var_os(commit::ROLE) {
        return commit::child(&role).map(|()| ExitCode::SUCCESS).map_err(Failure::new);
    }
    if let Some(role) = std::env::var_os(idle::ROLE) {
        return idle::child(&role).map(|()| ExitCode::SUCCESS).map_err(Failure::new);
    }
    if let Some(role) = std::env::var_os(load::ROLE) {
        return load::child(&role).map(|()| ExitCode::SUCCESS).map_err(Failure::new);
    }
    if let Some(role) = std::env::var_os(stale::ROLE) {
        return stale::child(&role).map(|()| ExitCode::SUCCESS).map_err(Failure::new);
    }
    if !args.only.is_empty() && args.suite != args::Suite::Load {
        return Err(Failure::new("only the suite load has rows to choose from")
            .next("leave --only out, or say `tercel bench load`")
            .code(2));
    }
    crate::tidy::on_signals(|| "interrupted: nothing was measured to its end".into())?;
    let options = Options {
        quick: args.quick,
        tiny: args.tiny,
        dir: args.dir.clone(),
        connections: args.connections,
        only: args.only.clone(),
        progress: std::io::IsTerminal::is_terminal(&std::io::stderr()),
    };
    let suite = match args.suite {
        args::Suite::Oo7 => Suite::Oo7,
        args::Suite::Commit => Suite::Commit,
        args::Suite::Graph => Suite::Graph,
        args::Suite::Idle => Suite::Idle,
        args::Suite::Load => Suite::Load,
        args::Suite::Stale => Suite::Stale,
    };
    let report = run(suite, &options).map_err(Failure::new)?;
    let text = if args.json { report.json().map_err(Failure::new)? } else { report.table() };
    say!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// The revision that the program was built from.
const COMMIT: &str = match option_env!("TERCEL_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};
