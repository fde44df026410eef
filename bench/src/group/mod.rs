//! Suite `group`: what a group of three servers costs, and how fast it gets over the end of a member.
//!
//! The servers are processes of one machine, reached over TCP: what the loss of a machine does is not shown.
//! A time that has no physical limit here is reported beside what it must be.
//!
//! | module | its noun |
//! |---|---|
//! | `commit` | commits and calls, one at a time and 64 at once |
//! | `ends` | a member that is killed or stopped, and what a client and the other members notice |
//! | `rejoin` | a member that was away, until it has everything again |
//! | `rolling` | members that are restarted one after the other, under 64 clients |
//! | `transfer` | an empty member that takes a copy of a large space, beside clients |
//! | `waits` | two spaces, and the others when a client or a leader ends amid a transaction over both |
//! | `relay` | a link between members that tells when the sender has ended |

mod commit;
mod ends;
mod rejoin;
mod relay;
mod rolling;
mod transfer;
pub mod waits;

use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::{COMMIT, Options};

pub use commit::{ROLE, child};

/// The members of a group.
const MEMBERS: usize = 3;

/// A row's name, and what measures it.
type Measure = fn(&Options, &Scratch) -> Result<Vec<Row>, String>;

const ROWS: [(&str, Measure); 20] = [
    ("commit.one.1k", commit::one),
    ("commit.group64", commit::many),
    ("call.1k", commit::call),
    ("detect.exit", ends::detect),
    ("failover.exit", ends::failover_exit),
    ("failover.stop", ends::failover_stop),
    ("failover.cut", ends::failover_cut),
    ("failover.slow_disk", ends::failover_slow_disk),
    ("gap.follower.exit", ends::follower_exit),
    ("gap.follower.stop", ends::follower_stop),
    ("rejoin.exit", rejoin::after_exit),
    ("rejoin.cut", rejoin::after_cut),
    ("rolling", rolling::restarts),
    ("transfer", transfer::joins),
    ("false_suspicions", ends::false_suspicions),
    ("wait.client", waits::client),
    ("wait.decider", waits::decider),
    ("wait.other", waits::other),
    ("wait.both", waits::both),
    ("wait.stopped", waits::stopped),
];

/// The rows to choose from.
pub fn names() -> Vec<String> {
    ROWS.iter().map(|(name, _)| name.to_string()).collect()
}

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    let scratch = Scratch::new(options.dir.as_deref(), "group")?;
    let mut rows = Vec::new();
    for (name, measure) in ROWS {
        if options.only.is_empty() || options.only.iter().any(|row| row == name) {
            options.say(name);
            rows.extend(measure(options, &scratch)?);
        }
    }
    Ok(Report { suite: "group", commit: COMMIT, machine: Machine::here("three servers"), rows })
}

/// Says beside a value the most that it may be, and would better be.
fn must(value: f64, must: f64, stretch: f64) -> String {
    let wish = if stretch < must { format!(" (stretch {stretch})") } else { String::new() };
    let held = match value {
        v if v <= stretch => "held",
        v if v <= must => "held, the stretch is not",
        _ => "missed",
    };
    format!("must {must}{wish}: {held}")
}

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}
