//! The command line: `tercel` passes on what it was given.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use tercel_term::bytes;

/// Measurements of Tercel.
#[derive(Debug, Parser)]
#[command(name = "tercel", bin_name = "tercel", version, propagate_version = true, max_term_width = 100)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure against the physical limit in the same run
    Bench(Bench),
    /// Work on a server that is killed again and again, and prove that nothing was lost
    Soak(Soak),
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel bench oo7 --quick
  tercel bench commit --json
  tercel bench idle --connections 10000
  tercel bench load --quick --only greedy --only flood
  tercel bench cad --step ./Package_QFP.3dshapes
  tercel bench rpc --only shm.spin --report ./report
  tercel bench all --quick --write numbers.md
  tercel bench papers --write docs/papers.md")]
pub struct Bench {
    /// The suite to measure
    #[arg(value_enum)]
    pub suite: Suite,
    /// Suite all: write the document here, and the picture cost.svg beside it; the part of the file that is
    /// kept by hand stays. Suite papers: write it here, from the numbers.md beside it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "report"])]
    pub write: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Fewer and shorter rounds: wider intervals, seconds instead of minutes
    #[arg(long)]
    pub quick: bool,
    /// Where to put the data
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Write the report as a page to look at, too: SUITE.html in this directory
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Suite idle: how many connections do nothing
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub connections: usize,
    /// Suite group: seconds beside busy processes in which no member may be suspected; --quick takes 10
    #[arg(long, value_name = "N", default_value_t = 600)]
    pub quiet_seconds: u64,
    /// Suite flex, row anomalies: rounds that are written at least while two spaces are read by each way
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub rounds: u64,
    /// Suite cad: measure with this STEP file, or those of this directory, instead of written ones
    #[arg(long, value_name = "FILE|DIR")]
    pub step: Option<PathBuf>,
    /// Suite group: bytes of the space that an empty member joins; --quick takes 64M at most
    #[arg(long, value_name = "BYTES", value_parser = fill_bytes, default_value = "1G")]
    pub space: usize,
    /// Suites load, rpc, group, flex, oo7 and rows: only this row, such as greedy or shm.spin;
    /// rpc also has `instructions`; rows has `index`; oo7 has `medium`, the hot rows of the medium
    /// database, which --quick leaves out, and `whole`, every operation; may be given several times
    #[arg(long, value_name = "ROW")]
    pub only: Vec<String>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel soak --seconds 10 --clients 8 --kill-every 2
  tercel soak --seconds 120 --clients 32 --kill-every 2 --json
  tercel soak --seconds 60 --fill 1G --dir /var/tmp/soak --history soak.json
  tercel soak --seconds 60 --fill 64M --mob 4M     servers install all the time
  tercel soak --seconds 60 --replicas 3            a group: members are killed and stopped by turns
  tercel soak --replicas 3 --slow-disks            the disks of members take their time, too
  tercel soak --seconds 60 --replicas 3 --stranger    one that is no member says what members say
  tercel soak --replicas 3 --hosts --renew         every certificate is renewed
  tercel soak --seconds 120 --tiers                keyed payments through three tiers
  tercel soak --seconds 60 --tiers --payer 'python3 contrib/pay.py'
  tercel soak --seconds 120 --replicas 3 --replace --fill 64M --mob 4M     members are replaced, by copies

When the time is over, a fresh client reads everything and all that the clients did and saw is judged. \
That takes about a second for every 20,000 transactions: some 5 s after 20 s of work.

Exit codes: 0 nothing was lost; 1 it could not be done; 2 a wrong request; 3 something was lost or wrong.")]
pub struct Soak {
    /// Seconds of work
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = soak_seconds)]
    pub seconds: u64,
    /// Clients, each with a connection and a cache of its own
    #[arg(long, value_name = "M", default_value_t = 16, value_parser = clients)]
    pub clients: usize,
    /// Seconds between two kills of a server, no more than --seconds; else 2, or half of --seconds if that
    /// is less
    #[arg(long, value_name = "S", value_parser = kill_seconds)]
    pub kill_every: Option<f64>,
    /// Servers of a group, 3, 5 or 7: each time one is killed or stopped, the leader or another, and is back
    /// after half the time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = replicas)]
    pub replicas: usize,
    /// Every so many seconds, else 10, a member is killed for good and its directory wiped; it is removed,
    /// and a new one joins at its place. Only with --kill-every are members also killed and stopped
    #[arg(long, value_name = "S", value_parser = kill_seconds, num_args = 0..=1, require_equals = true,
        default_missing_value = "10")]
    pub replace: Option<f64>,
    /// Give each server a host: a network namespace whose link is cut by turns, too. It takes the superuser,
    /// or `unshare --user --map-root-user` in front
    #[arg(long)]
    pub hosts: bool,
    #[command(flatten)]
    pub payments: Payments,
    /// Have each sync of a member's disk take 20 to 200 ms longer by turns, too. It takes strace, and the
    /// superuser
    #[arg(long)]
    pub slow_disks: bool,
    /// Let a stranger, who knows all but the group's secret, say at every member what members say; members
    /// are also killed and stopped only with --kill-every
    #[arg(long)]
    pub stranger: bool,
    /// Have servers and clients use TLS, renew every certificate all the time, and replace their authority
    #[arg(long, conflicts_with_all = ["replace", "stranger"])]
    pub renew: bool,
    /// Fill the store with so many bytes first, such as 1G; up to 16G
    #[arg(long, value_name = "BYTES", value_parser = fill_bytes, default_value = "0")]
    pub fill: usize,
    /// The server's memory for modified objects, as `serve --mob` has it, from 4M; little makes it install
    /// pages all the time
    #[arg(long, value_name = "BYTES", value_parser = soak_mob_bytes)]
    pub mob: Option<usize>,
    /// The work of the clients and the times of cut connections follow from this
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Where to put the data: a new directory, or one of an earlier soak, which then goes on in it; else one
    /// that is removed at the end
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Write the history, for the checkers to read again
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The payments of a soak, instead of its other work.
#[derive(Debug, ClapArgs)]
pub struct Payments {
    /// Have payments go through gateways, application servers and two groups, each payment under a key, while
    /// processes of all tiers are killed and stopped by turns
    #[arg(long, conflicts_with_all = ["replicas", "replace", "hosts", "slow_disks", "stranger", "renew", "fill", "mob", "history"])]
    pub tiers: bool,
    /// Have this command pay as well, and go on until it ends: it finds the gateways, an address a line, in
    /// the file that is named behind it, and prints the number of each payment, as contrib/pay.py does
    #[arg(long, value_name = "COMMAND", requires = "tiers")]
    pub payer: Option<String>,
}

/// The suites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Traversals of the OO7 database, hot and in a small cache
    Oo7,
    /// Durable commits, one at a time and 64 at once
    Commit,
    /// Transfers between two spaces: durable in both, one at a time and 16 at once; payments under keys
    /// through three tiers, with 1 to 3 replicas, and beside PostgreSQL where that is installed
    Bank,
    /// The event queue beside a loop written by hand: batches, silent sources, declaring and revoking
    Events,
    /// Import and closures of the package graph
    Graph,
    /// Import, traversals and closures of models of STEP files
    Cad,
    /// A group of three servers: commits, and the end of a member
    Group,
    /// The cost of connections that do nothing: memory, and time of the connections that work
    Idle,
    /// The delay of other clients beside antagonist clients, and 1,000 clients at work
    Load,
    /// The delay until a change is seen by another client, and the cost of seeing it at once
    Stale,
    /// The room that a space takes which is written to all the time and holds no more than before; --quick
    /// in seconds, else gigabytes and many minutes
    Churn,
    /// Commits beside an archive, how far it is behind, and restores
    Archive,
    /// Runs of tasks of a runtime, beside the same runs by threads
    Async,
    /// Calls of methods: on the cached copy, and at the server by a bare exchange
    Flex,
    /// An HTTP proxy on the event queue, beside connections that say nothing
    Proxy,
    /// Messages of three members in one order, by bare datagrams, and the end of a member
    Ring,
    /// Rows of a table, in bulk and one by one, beside the same rows in redb; a shop, beside PostgreSQL where
    /// that is installed
    Rows,
    /// Calls to a server of this machine, by bare trips over the same road
    Rpc,
    /// Every suite in turn, as one document: some five minutes with --quick
    All,
    /// The founding papers' tables and figures beside the rows of docs/numbers.md; measures nothing
    Papers,
}

/// Parses the number of bytes that a soak fills the store with.
fn fill_bytes(s: &str) -> Result<usize, String> {
    match bytes(s)? {
        n @ 0..=FILL_BYTES_MAX => Ok(n),
        _ => Err("a store is filled with 16G at most: a space holds 32G, and clients need some of it".into()),
    }
}

/// Half of what a space can hold.
const FILL_BYTES_MAX: usize = 16 << 30;

/// A soak's server must have room for the largest of its transactions, of 2 MB, beside others.
fn soak_mob_bytes(s: &str) -> Result<usize, String> {
    match bytes(s)? {
        n @ SOAK_MOB_BYTES_MIN.. => Ok(n),
        _ => Err("a soak's server works with 4M or more".into()),
    }
}

const SOAK_MOB_BYTES_MIN: usize = 4 << 20;

/// Parses the number of seconds that a soak works.
fn soak_seconds(s: &str) -> Result<u64, String> {
    match s.parse() {
        Ok(n @ 1..=2_592_000) => Ok(n),
        _ => Err(format!("`{s}` is not a number of seconds from 1 to 2592000, which is 30 days")),
    }
}

/// Seconds between two kills.
fn kill_seconds(s: &str) -> Result<f64, String> {
    match s.parse() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("`{s}` is not a number of seconds from 0.1 to 86400")),
    }
}

fn replicas(s: &str) -> Result<usize, String> {
    match s.parse() {
        Ok(n @ (1 | 3 | 5 | 7)) => Ok(n),
        _ => Err(format!(
            "`{s}` is not 1, 3, 5 or 7: a group goes on as long as more than half of it is there"
        )),
    }
}

fn clients(s: &str) -> Result<usize, String> {
    match s.parse() {
        Ok(n @ 1..=1000) => Ok(n),
        _ => Err(format!("`{s}` is not a number of clients from 1 to 1000")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        super::Args::command().debug_assert();
    }
}
