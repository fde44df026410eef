//! The verdict on a soak.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Serialize;
use tercel_term::fail::Outcome;
use tercel_term::{Term, count, say, tell, thousands};
use tercel_verify::{History, Outcome as Ended, Property, Session, Transaction};

use super::authority::Renewed;
use super::faults::{Fault, Kind};
use super::space::Ending;
use super::worker::Record;
use super::{Done, is_proxied};
use crate::args;

/// The form of `--json`.
#[derive(Serialize)]
pub struct Run {
    seconds: u64,
    clients: usize,
    /// Servers of the group, and the views that began meanwhile.
    replicas: usize,
    views: u64,
    /// Messages that a stranger sent, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    stranger: Option<u64>,
    #[serde(flatten)]
    met: Met,
    #[serde(flatten)]
    done: Done,
    #[serde(flatten)]
    work: Work,
    #[serde(flatten)]
    verdict: Verdict,
    #[serde(flatten)]
    worst: Worst,
    gaps: Vec<Gap>,
    recovery: Vec<Recovery>,
    /// The findings, a few of each kind.
    findings: Vec<String>,
    #[serde(skip)]
    faults: Vec<Fault>,
    #[serde(skip)]
    appended: Vec<u64>,
    #[serde(skip)]
    perhaps: Vec<u64>,
}

/// The transactions of a run.
#[derive(Default, Serialize)]
struct Work {
    /// All of them: acknowledged, read-only, aborted, and of unknown outcome.
    transactions: usize,
    /// Commits that wrote something and were acknowledged.
    acknowledged: u64,
    /// Transactions that wrote nothing.
    read_only: usize,
    /// Transactions that did not happen: conflicts, and attempts without a server.
    aborted: usize,
    conflicts: u64,
    /// Attempts that found no server.
    unavailable: u64,
    /// Commits of unknown outcome.
    unknown: usize,
}

/// The judgement of a run.
#[derive(Serialize)]
struct Verdict {
    /// Acknowledged commits that were not there in the end.
    lost: usize,
    duplicated: usize,
    violations: usize,
    sum_conserved: bool,
}

impl Verdict {
    fn is_sound(&self) -> bool {
        self.lost == 0 && self.duplicated == 0 && self.violations == 0 && self.sum_conserved
    }
}

/// The trouble of a run.
#[derive(Serialize)]
struct Met {
    kills: usize,
    /// Members that were replaced, and those of the new ones that took a copy of the space.
    replaced: usize,
    copied: usize,
    cuts: u64,
    #[serde(flatten)]
    renewed: Renewed,
}

/// The longest times of a run.
#[derive(Default, Serialize)]
struct Worst {
    /// From a kill to the first commit that was acknowledged once the server listened again, and from a kill
    /// until it did.
    worst_outage_ms: f64,
    worst_restart_ms: f64,
    /// The most that an outage was longer than its restart.
    worst_excess_ms: f64,
    /// From a request's begin to its acknowledgement.
    worst_request_ms: f64,
}

/// Faults of one kind: for each, the longest time between two acknowledgements of one client that met it.
#[derive(Serialize)]
struct Gap {
    fault: String,
    times: usize,
    median_ms: f64,
    worst_ms: f64,
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
        (faults, views): (Vec<Fault>, u64),
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
            replicas: args.replicas,
            views,
            stranger: None,
            met: Met {
                kills: faults.iter().filter(|fault| fault.kind == Kind::Kill).count(),
                replaced: faults.iter().filter(|fault| matches!(fault.kind, Kind::Replace(_))).count(),
                copied: faults.iter().filter(|fault| fault.kind == Kind::Replace(true)).count(),
                cuts,
                renewed: Renewed::default(),
            },
            done,
            work: Work::default(),
            verdict: Verdict { lost: 0, duplicated: 0, violations: 0, sum_conserved: ending.cents == total },
            worst: Worst::default(),
            gaps: Vec::new(),
            recovery: Vec::new(),
            findings,
            faults,
            appended: Vec::new(),
            perhaps: Vec::new(),
        }
    }

    /// Counts what a stranger said. Where nothing was done to a member, it has not brought about a view.
    pub fn heard(&mut self, messages: Option<u64>) {
        self.stranger = messages;
        if messages.is_some() && self.faults.is_empty() && self.views > 0 {
            self.verdict.violations += 1;
            self.findings
                .push(format!("{} beside a stranger alone", count(self.views, "view began", "views began")));
        }
        if messages == Some(0) {
            self.verdict.violations += 1;
            self.findings
                .push("the stranger knew no group or could not say a word, which proves nothing".into());
        }
    }

    /// Counts the certificates that were renewed.
    pub fn renewed(&mut self, renewed: Option<Renewed>) {
        self.met.renewed = renewed.unwrap_or_default();
    }

    /// Counts what a client did.
    pub fn add(&mut self, record: &Record) {
        self.work.conflicts += record.conflicts;
        self.work.unavailable += record.unavailable;
        let request_ms = record.request_us_max as f64 / 1e3;
        self.worst.worst_request_ms = self.worst.worst_request_ms.max(request_ms);
        self.verdict.violations += record.errors.len();
        self.findings.extend(record.errors.iter().take(FINDINGS_MAX).cloned());
        self.appended.extend(&record.appended);
        self.perhaps.extend(&record.perhaps);
    }

    /// Checks the history and what is there in the end; says which property is next.
    pub fn judge(&mut self, history: &History, ending: &Ending, next: impl FnMut(Property)) {
        self.work.transactions = history.transactions.len();
        let is_done = |t: &tercel_verify::Transaction| matches!(t.outcome, Ended::Committed(_));
        self.work.acknowledged =
            history.transactions.iter().filter(|t| is_done(t) && !t.is_read_only()).count() as u64;
        self.work.aborted = history.transactions.iter().filter(|t| t.outcome == Ended::Aborted).count();
        self.work.read_only = history.transactions.iter().filter(|t| is_done(t) && t.is_read_only()).count();
        self.work.unknown = history.transactions.iter().filter(|t| t.outcome == Ended::Unknown).count();
        self.judge_journals(ending);
        self.measure(history);
        for violation in tercel_verify::check_each(history, next) {
            match violation.property {
                Property::Durable => self.verdict.lost += 1,
                Property::Once => self.verdict.duplicated += 1,
                _ => self.verdict.violations += 1,
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
                self.verdict.lost += 1;
                self.findings.push(format!("entry {entry} was acknowledged and is in no journal"));
            }
        }
        self.verdict.duplicated += times.values().filter(|&&n| n > 1).count();
        let known: std::collections::BTreeSet<&u64> = self.appended.iter().chain(&self.perhaps).collect();
        for entry in times.keys().filter(|e| !known.contains(e)) {
            self.verdict.violations += 1;
            self.findings.push(format!("entry {entry} is in a journal and was never acknowledged"));
        }
        self.findings.truncate(FINDINGS_MAX);
    }

    fn measure(&mut self, history: &History) {
        let mut ends: BTreeMap<Session, Vec<u64>> = BTreeMap::new();
        let is_commit = |t: &&Transaction| matches!(t.outcome, Ended::Committed(_)) && !t.is_read_only();
        for t in history.transactions.iter().filter(is_commit) {
            ends.entry(t.session).or_default().push(t.end_us);
        }
        ends.values_mut().for_each(|ends| ends.sort_unstable());
        if self.replicas > 1 {
            self.gaps = gaps(&self.faults, &ends);
        } else {
            self.measure_restarts(ends.into_values().flatten().collect());
        }
    }

    fn measure_restarts(&mut self, mut ends: Vec<u64>) {
        ends.sort_unstable();
        let mut by_size: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for fault in &self.faults {
            let restart = fault.ms();
            by_size.entry((fault.log_bytes >> 20).next_power_of_two()).or_default().push(restart);
            let worst = &mut self.worst;
            worst.worst_restart_ms = worst.worst_restart_ms.max(restart);
            // The run may have ended before any client committed again.
            let Some(first) = ends.get(ends.partition_point(|&end| end < fault.over_us)) else { continue };
            let outage = (first - fault.begun_us) as f64 / 1e3;
            worst.worst_outage_ms = worst.worst_outage_ms.max(outage);
            worst.worst_excess_ms = worst.worst_excess_ms.max(outage - restart);
        }
        for (log_mib, mut took) in by_size {
            let (median_ms, worst_ms) = median_and_worst(&mut took);
            self.recovery.push(Recovery { log_mib, restarts: took.len(), median_ms, worst_ms });
        }
    }

    /// Prints it; the exit code tells whether all was well.
    pub fn tell(&self, json: bool, term: &Term) -> Outcome {
        if json {
            say!("{}", serde_json::to_string(self).unwrap_or_default());
        } else {
            self.print(term);
        }
        Ok(if self.verdict.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(3) })
    }

    fn print(&self, term: &Term) {
        tell!(
            "{} {} s, {}, {}, {}, {}",
            term.bold("soak"),
            self.seconds,
            count(self.clients as u64, "client", "clients"),
            count(self.met.kills as u64, "kill", "kills"),
            count(self.met.cuts, "cut connection", "cut connections"),
            count(self.done.pages_installed, "page installed", "pages installed")
        );
        tell!(
            "  {} transactions: {} commits acknowledged, {} that only read, {} that did not happen ({} conflicts), {} of unknown outcome",
            thousands(self.work.transactions as u64),
            thousands(self.work.acknowledged),
            thousands(self.work.read_only as u64),
            thousands(self.work.aborted as u64),
            thousands(self.work.conflicts),
            self.work.unknown
        );
        tell!(
            "  {} freed {} that the root did not reach",
            count(self.done.collections, "collection", "collections"),
            count(self.done.collected, "object", "objects")
        );
        if let Some(messages) = self.stranger {
            tell!("  {} of a stranger", count(messages, "message", "messages"));
        }
        let Renewed { certificates, authorities } = self.met.renewed;
        if certificates > 0 {
            tell!(
                "  {} renewed, {} replaced",
                count(certificates, "certificate", "certificates"),
                count(authorities, "authority", "authorities")
            );
        }
        let worst = &self.worst;
        if self.replicas > 1 {
            tell!(
                "  {} members, {}; a request at most {:.0} ms; longest pause of a client, by the fault that it met:",
                self.replicas,
                count(self.views, "view began", "views began"),
                worst.worst_request_ms
            );
        } else {
            tell!(
                "  outage at most {:.0} ms, of which {:.0} ms until the server listened again; a request at most {:.0} ms",
                worst.worst_outage_ms,
                worst.worst_restart_ms,
                worst.worst_request_ms
            );
        }
        if self.met.replaced > 0 {
            let replaced = count(self.met.replaced as u64, "member replaced", "members replaced");
            tell!("  {replaced}, {} by a copy of the space", self.met.copied);
        }
        for Gap { fault, times, median_ms, worst_ms } in &self.gaps {
            tell!("    {fault:<26} {median_ms:>6.0} ms, at most {worst_ms:.0} ms ({times} times)");
        }
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
            self.verdict.lost,
            self.verdict.duplicated,
            self.verdict.violations,
            if self.verdict.sum_conserved { "conserved" } else { "not conserved" }
        );
        tell!("  {}", if self.verdict.is_sound() { term.green(&verdict) } else { term.red(&verdict) });
        self.findings.iter().for_each(|f| tell!("  {f}"));
    }
}

/// The gaps that clients saw, by the kind of fault that they met; those that met none come last. Clients
/// whose connections are cut at random are left out.
fn gaps(faults: &[Fault], ends: &BTreeMap<Session, Vec<u64>>) -> Vec<Gap> {
    let pauses = |meets: &dyn Fn(u64, u64) -> bool| -> f64 {
        let whole = ends.iter().filter(|(session, _)| !is_proxied(session.0 as usize));
        let pairs = whole.flat_map(|(_, ends)| ends.windows(2)).filter(|pair| meets(pair[0], pair[1]));
        pairs.map(|pair| pair[1] - pair[0]).max().unwrap_or(0) as f64 / 1e3
    };
    let mut by_kind: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for fault in faults {
        let pause = pauses(&|from, to| fault.meets(from, to));
        by_kind.entry(fault.to_string()).or_default().push(pause);
    }
    let quiet = pauses(&|from, to| !faults.iter().any(|fault| fault.meets(from, to)));
    let of_kinds = by_kind.into_iter().chain([("none".to_string(), vec![quiet])]);
    let gap = |(fault, mut all): (String, Vec<f64>)| {
        let (median_ms, worst_ms) = median_and_worst(&mut all);
        Gap { fault, times: all.len(), median_ms, worst_ms }
    };
    of_kinds.map(gap).collect()
}

fn median_and_worst(all: &mut [f64]) -> (f64, f64) {
    all.sort_by(f64::total_cmp);
    (all[all.len() / 2], all[all.len() - 1])
}
