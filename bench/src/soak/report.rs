//! The verdict on a soak.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Serialize;
use tercel_term::fail::Outcome;
use tercel_term::{Term, count, say, tell, thousands};
use tercel_verify::{History, Outcome as Ended, Property};

use super::Done;
use super::space::Ending;
use super::worker::Record;
use crate::args;

/// A kill and what came of it.
#[derive(Debug, Clone, Copy)]
pub struct Restart {
    pub killed_us: u64,
    pub listening_us: u64,
    pub log_bytes: u64,
}

/// The form of `--json`.
#[derive(Serialize)]
pub struct Run {
    seconds: u64,
    clients: usize,
    kills: usize,
    cuts: u64,
    #[serde(flatten)]
    done: Done,
    /// Commits that wrote something and were acknowledged.
    acknowledged: u64,
    /// Acknowledged commits that were not there in the end.
    lost: usize,
    duplicated: usize,
    violations: usize,
    sum_conserved: bool,
    conflicts: u64,
    /// Attempts that found no server.
    unavailable: u64,
    /// Commits of unknown outcome.
    unknown: usize,
    /// All transactions: acknowledged, read-only, aborted, and of unknown outcome.
    transactions: usize,
    /// Transactions that wrote nothing.
    read_only: usize,
    /// Transactions that did not happen: conflicts, and attempts without a server.
    aborted: usize,
    /// From a kill to the first commit that was acknowledged after it, and from a kill until the server
    /// listened again.
    worst_outage_ms: f64,
    worst_restart_ms: f64,
    /// The most that an outage was longer than its restart.
    worst_excess_ms: f64,
    /// From a request's begin to its acknowledgement.
    worst_request_ms: f64,
    recovery: Vec<Recovery>,
    /// The findings, a few of each kind.
    findings: Vec<String>,
    #[serde(skip)]
    restarts: Vec<Restart>,
    #[serde(skip)]
    appended: Vec<u64>,
    #[serde(skip)]
    perhaps: Vec<u64>,
}

/// Recovery time against the log's size: restarts whose logs had about as many bytes.
#[derive(Serialize)]
struct Recovery {
    log_mib: u64,
    restarts: usize,
    median_ms: f64,
    worst_ms: f64,
}

/// Findings of one kind that are printed.
const FINDINGS_MAX: usize = 20;

impl Run {
    pub fn new(
        args: &args::Soak,
        restarts: Vec<Restart>,
        done: Done,
        cuts: u64,
        ending: &Ending,
        total: i64,
    ) -> Run {
        let mut findings = Vec::new();
        if ending.cents != total {
            findings.push(format!("{} cents are there instead of {total}", ending.cents));
        }
        Run {
            seconds: args.seconds,
            clients: args.clients,
            kills: restarts.len(),
            cuts,
            done,
            acknowledged: 0,
            lost: 0,
            duplicated: 0,
            violations: 0,
            sum_conserved: ending.cents == total,
            conflicts: 0,
            unavailable: 0,
            unknown: 0,
            transactions: 0,
            read_only: 0,
            aborted: 0,
            worst_outage_ms: 0.0,
            worst_restart_ms: 0.0,
            worst_excess_ms: 0.0,
            worst_request_ms: 0.0,
            recovery: Vec::new(),
            findings,
            restarts,
            appended: Vec::new(),
            perhaps: Vec::new(),
        }
    }

    /// Counts what a client did.
    pub fn add(&mut self, record: &Record) {
        self.conflicts += record.conflicts;
        self.unavailable += record.unavailable;
        self.worst_request_ms = self.worst_request_ms.max(record.request_us_max as f64 / 1e3);
        self.violations += record.errors.len();
        self.findings.extend(record.errors.iter().take(FINDINGS_MAX).cloned());
        self.appended.extend(&record.appended);
        self.perhaps.extend(&record.perhaps);
    }

    /// Checks the history and what is there in the end; says which property is next.
    pub fn judge(&mut self, history: &History, ending: &Ending, next: impl FnMut(Property)) {
        self.transactions = history.transactions.len();
        let is_done = |t: &tercel_verify::Transaction| matches!(t.outcome, Ended::Committed(_));
        self.acknowledged =
            history.transactions.iter().filter(|t| is_done(t) && !t.is_read_only()).count() as u64;
        self.aborted = history.transactions.iter().filter(|t| t.outcome == Ended::Aborted).count();
        self.read_only = history.transactions.iter().filter(|t| is_done(t) && t.is_read_only()).count();
        self.unknown = history.transactions.iter().filter(|t| t.outcome == Ended::Unknown).count();
        self.judge_journals(ending);
        self.measure(history);
        for violation in tercel_verify::check_each(history, next) {
            match violation.property {
                Property::Durable => self.lost += 1,
                Property::Once => self.duplicated += 1,
                _ => self.violations += 1,
            }
            if self.findings.len() < FINDINGS_MAX {
                self.findings.push(violation.to_string());
            }
        }
    }

    /// Checks that every acknowledged entry is in its journal once, and that no journal has an entry that was
    /// never tried.
    fn judge_journals(&mut self, ending: &Ending) {
        let mut times: BTreeMap<u64, usize> = BTreeMap::new();
        ending.entries.iter().for_each(|e| *times.entry(*e).or_default() += 1);
        for entry in &self.appended {
            if !times.contains_key(entry) {
                self.lost += 1;
                self.findings.push(format!("entry {entry} was acknowledged and is in no journal"));
            }
        }
        self.duplicated += times.values().filter(|&&n| n > 1).count();
        let known: std::collections::BTreeSet<&u64> = self.appended.iter().chain(&self.perhaps).collect();
        for entry in times.keys().filter(|e| !known.contains(e)) {
            self.violations += 1;
            self.findings.push(format!("entry {entry} is in a journal and was never acknowledged"));
        }
        self.findings.truncate(FINDINGS_MAX);
    }

    fn measure(&mut self, history: &History) {
        let mut ends: Vec<u64> = history
            .transactions
            .iter()
            .filter(|t| matches!(t.outcome, Ended::Committed(_)) && !t.is_read_only())
            .map(|t| t.end_us)
            .collect();
        ends.sort_unstable();
        let mut by_size: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for r in &self.restarts {
            let restart = (r.listening_us - r.killed_us) as f64 / 1e3;
            by_size.entry((r.log_bytes >> 20).next_power_of_two()).or_default().push(restart);
            self.worst_restart_ms = self.worst_restart_ms.max(restart);
            // The run may have ended before any client committed again.
            let Some(first) = ends.get(ends.partition_point(|&end| end < r.listening_us)) else { continue };
            let outage = (first - r.killed_us) as f64 / 1e3;
            self.worst_outage_ms = self.worst_outage_ms.max(outage);
            self.worst_excess_ms = self.worst_excess_ms.max(outage - restart);
        }
        for (log_mib, mut took) in by_size {
            took.sort_by(f64::total_cmp);
            self.recovery.push(Recovery {
                log_mib,
                restarts: took.len(),
                median_ms: took[took.len() / 2],
                worst_ms: took[took.len() - 1],
            });
        }
    }

    fn is_sound(&self) -> bool {
        self.lost == 0 && self.duplicated == 0 && self.violations == 0 && self.sum_conserved
    }

    /// Prints it; the exit code tells whether all was well.
    pub fn tell(&self, json: bool, term: &Term) -> Outcome {
        if json {
            say!("{}", serde_json::to_string(self).unwrap_or_default());
        } else {
            self.print(term);
        }
        Ok(if self.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(3) })
    }

    fn print(&self, term: &Term) {
        tell!(
            "{} {} s, {}, {}, {}, {}",
            term.bold("soak"),
            self.seconds,
            count(self.clients as u64, "client", "clients"),
            count(self.kills as u64, "kill", "kills"),
            count(self.cuts, "cut connection", "cut connections"),
            count(self.done.pages_installed, "page installed", "pages installed")
        );
        tell!(
            "  {} transactions: {} commits acknowledged, {} that only read, {} that did not happen ({} conflicts), {} of unknown outcome",
            thousands(self.transactions as u64),
            thousands(self.acknowledged),
            thousands(self.read_only as u64),
            thousands(self.aborted as u64),
            thousands(self.conflicts),
            self.unknown
        );
        tell!(
            "  {} freed {} that the root did not reach",
            count(self.done.collections, "collection", "collections"),
            count(self.done.collected, "object", "objects")
        );
        tell!(
            "  outage at most {:.0} ms, of which {:.0} ms until the server listened again; a request at most {:.0} ms",
            self.worst_outage_ms,
            self.worst_restart_ms,
            self.worst_request_ms
        );
        for r in &self.recovery {
            tell!(
                "  restart with a log of up to {} MiB: {:.0} ms, at most {:.0} ms ({} times)",
                r.log_mib,
                r.median_ms,
                r.worst_ms,
                r.restarts
            );
        }
        let verdict = format!(
            "lost {}, duplicated {}, violations {}, sum {}",
            self.lost,
            self.duplicated,
            self.violations,
            if self.sum_conserved { "conserved" } else { "not conserved" }
        );
        tell!("  {}", if self.is_sound() { term.green(&verdict) } else { term.red(&verdict) });
        self.findings.iter().for_each(|f| tell!("  {f}"));
    }
}
