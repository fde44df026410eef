//! `tercel bench all`: every suite in a process of its own, and the document that their rows become.
//!
//! The document has a table a suite, with one row a line, all of one build on one machine. The targets stand
//! in `targets.txt`, with the cause where a row is known to miss.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;
use tercel_machine::time::date_of_day;

use super::cost::picture;
use super::report::number;
use super::{COMMIT, Options};

/// The suites in the order of the document.
const SUITES: [&str; 18] = [
    "commit", "bank", "rows", "oo7", "graph", "cad", "flex", "rpc", "events", "proxy", "group", "ring",
    "stale", "idle", "load", "churn", "async", "archive",
];

/// The targets: a row's name, the field, the bound, and the cause if the row is known to miss.
const TARGETS: &str = include_str!("targets.txt");

/// From this line on the document is kept by hand.
const BY_HAND: &str = "<!-- From here on by hand. -->";

/// A bound that a row is held to.
#[derive(Debug, Clone, PartialEq)]
struct Target<'a> {
    id: &'a str,
    /// A field of the row's JSON: `ratio`, `value`, `p99`.
    field: &'a str,
    is_most: bool,
    bound: f64,
    /// The reason for which it is missed, and the next step; empty if it holds.
    cause: &'a str,
}

impl<'a> Target<'a> {
    /// Reads a line: `id field <= bound cause`.
    fn parse(line: &'a str) -> Option<Target<'a>> {
        let mut words = line.splitn(5, ' ');
        let (id, field) = (words.next()?, words.next()?);
        let is_most = match words.next()? {
            "<=" => true,
            ">=" => false,
            _ => return None,
        };
        Some(Target {
            id,
            field,
            is_most,
            bound: words.next()?.parse().ok()?,
            cause: words.next().unwrap_or(""),
        })
    }

    /// The cell of the document, and `true` if the row misses.
    fn cell(&self, row: &Value) -> (String, bool) {
        let word = if self.is_most { "at most" } else { "at least" };
        let field = if self.field == "ratio" { String::new() } else { format!("{} ", self.field) };
        let is_held = row[self.field]
            .as_f64()
            .is_some_and(|value| if self.is_most { value <= self.bound } else { value >= self.bound });
        let missed = if is_held { "" } else { ": **missed**" };
        (format!("{field}{word} {}{missed}", self.bound), !is_held)
    }
}

/// All targets.
///
/// # Panics
/// If a line of the file is none; a test reads them all.
fn targets() -> Vec<Target<'static>> {
    let lines = TARGETS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| Target::parse(line).unwrap_or_else(|| panic!("no target: {line}"))).collect()
}

/// A suite that was measured, or the reason for which it was not.
struct Done {
    suite: &'static str,
    report: Result<Value, String>,
}

/// Everything measured, for people to look at.
pub struct Numbers {
    pub document: String,
    /// A read's cost by where it runs, as SVG.
    pub picture: Option<String>,
    /// Suites that could not be measured.
    pub failed: usize,
}

/// Measures every suite. `before` is the document as it stands: its part that is kept by hand stays.
///
/// # Errors
/// A sentence: this program cannot be run again.
pub fn run(options: &Options, before: &str) -> Result<Numbers, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut all = Vec::new();
    for (i, suite) in SUITES.into_iter().enumerate() {
        eprintln!("{} of {}: {suite}", i + 1, SUITES.len());
        let report = measure(&program, suite, options);
        if let Err(reason) = &report {
            eprintln!("  left out: {reason}");
        }
        all.push(Done { suite, report });
    }
    let failed = all.iter().filter(|done| done.report.is_err()).count();
    let picture = picture(|id| nanoseconds(rows(&all).find(|row| row["id"] == id)?));
    Ok(Numbers { document: document(&all, before), picture, failed })
}

/// The rows of all suites.
fn rows(all: &[Done]) -> impl Iterator<Item = &Value> {
    all.iter().filter_map(|done| done.report.as_ref().ok()?["rows"].as_array()).flatten()
}

/// The value of a row, if it is a time.
fn nanoseconds(row: &Value) -> Option<f64> {
    let unit = match row["unit"].as_str()? {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        _ => return None,
    };
    row["value"].as_f64().map(|value| value * unit)
}

/// Measures a suite in a process of its own, which leaves nothing behind for the next.
fn measure(program: &Path, suite: &str, options: &Options) -> Result<Value, String> {
    let mut command = Command::new(program);
    command.args(["bench", suite, "--json"]);
    if options.quick {
        command.arg("--quick");
    }
    if let Some(dir) = &options.dir {
        command.arg("--dir").arg(dir);
    }
    let ran = command.stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    if !ran.status.success() {
        return Err(String::from_utf8_lossy(&ran.stderr).trim().replace('\n', " "));
    }
    serde_json::from_slice(&ran.stdout).map_err(|e| e.to_string())
}

fn document(all: &[Done], before: &str) -> String {
    let (targets, mut misses) = (targets(), Vec::new());
    let is_measured = |id: &str| rows(all).any(|row| row["id"] == id);
    let mut out = format!("{HEAD}\nTaken on {} at {COMMIT}.\n", today());
    for Done { suite, report } in all {
        let _ = writeln!(out, "\n## {suite}\n");
        match report {
            Ok(report) => table(&mut out, report, &targets, &mut misses),
            Err(reason) => _ = writeln!(out, "Left out: {reason}"),
        }
    }
    out.push_str("\n## Where the missed rows spend it\n\n| row | cause, and the next step |\n|---|---|\n");
    for target in targets.iter().filter(|target| !is_measured(target.id)) {
        let _ = writeln!(out, "| `{}` | not measured in this run |", target.id);
    }
    for target in misses {
        let cause = if target.cause.is_empty() { "in this run; held before" } else { target.cause };
        let _ = writeln!(out, "| `{}` | {cause} |", target.id);
    }
    if let Some(at) = before.find(BY_HAND) {
        out.push('\n');
        out.push_str(&before[at..]);
    }
    out
}

/// The document as it was last written.
#[derive(Debug, Default)]
pub struct Written<'a> {
    /// The date and the revision.
    pub taken: &'a str,
    /// A suite and its machine, each.
    pub machines: Vec<(&'a str, &'a str)>,
    pub rows: Vec<Line<'a>>,
}

/// A row of the document, cell by cell.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Line<'a> {
    pub id: &'a str,
    /// The value with its unit, and the 99th percentile.
    pub value: &'a str,
    /// The limit's name and value.
    pub limit: &'a str,
    /// The ratio with its interval.
    pub ratio: &'a str,
}

impl<'a> Written<'a> {
    /// Reads the document. Fails on a line of a suite's table that is no row, and if nothing was measured.
    pub fn read(document: &'a str) -> Result<Written<'a>, String> {
        let (mut written, mut suite) = (Written::default(), None);
        for line in document.lines() {
            if let Some(name) = line.strip_prefix("## ") {
                suite = SUITES.contains(&name).then_some(name);
            } else if let Some(taken) = line.strip_prefix("Taken on ") {
                written.taken = taken.trim_end_matches('.');
            } else if let (Some(suite), true) = (suite, line.contains(" processors, Linux ")) {
                written.machines.push((suite, line.trim_end_matches('.')));
            } else if suite.is_some() && line.starts_with("| `") {
                let cells: Vec<&str> = line.split('|').map(str::trim).collect();
                let ["", id, value, limit, ratio, _, ""] = cells[..] else {
                    return Err(format!("no row: {line}"));
                };
                written.rows.push(Line { id: id.trim_matches('`'), value, limit, ratio });
            }
        }
        match written.taken.is_empty() || written.rows.is_empty() {
            true => Err("it has no date or no rows, so `tercel bench all` did not write it".into()),
            false => Ok(written),
        }
    }

    pub fn row(&self, id: &str) -> Option<&Line<'a>> {
        self.rows.iter().find(|row| row.id == id)
    }
}

impl<'a> Line<'a> {
    /// The first thing in a cell, without percentiles, names and intervals: `value`, `limit` or `ratio`.
    pub fn part(&self, cell: &str) -> Option<&'a str> {
        let part = match cell {
            "value" => self.value.split(", ").next(),
            "limit" => self.limit.rsplit(' ').next(),
            "ratio" => self.ratio.split(' ').next(),
            _ => None,
        };
        part.filter(|part| !part.is_empty())
    }
}

/// Writes the rows of a suite, and remembers the targets that are missed.
fn table(out: &mut String, report: &Value, targets: &[Target<'static>], misses: &mut Vec<Target<'static>>) {
    let machine = &report["machine"];
    let _ = writeln!(
        out,
        "{} processors, Linux {}, {}, load {:.1}, {:.1} % stolen.\n\n{COLUMNS}",
        machine["cpus"],
        machine["kernel"].as_str().unwrap_or("unknown"),
        machine["backend"].as_str().unwrap_or("unknown"),
        machine["load"].as_f64().unwrap_or(0.0),
        machine["stolen_percent"].as_f64().unwrap_or(0.0),
    );
    for row in report["rows"].as_array().into_iter().flatten() {
        let id = row["id"].as_str().unwrap_or_default();
        let cells: Vec<String> = (targets.iter().filter(|target| target.id == id))
            .map(|target| {
                let (cell, is_missed) = target.cell(row);
                if is_missed {
                    misses.push(target.clone());
                }
                cell
            })
            .collect();
        let _ = writeln!(
            out,
            "| `{id}` | {} | {} | {} | {} |",
            value(row),
            limit(row),
            ratio(row),
            cells.join("; ")
        );
    }
}

/// The value with its unit, and the 99th percentile.
fn value(row: &Value) -> String {
    let unit = row["unit"].as_str().unwrap_or_default();
    let p99 = row["p99"].as_f64().map_or(String::new(), |p99| format!(", p99 {}", number(p99)));
    format!("{} {unit}{p99}", number(row["value"].as_f64().unwrap_or(f64::NAN)))
}

fn limit(row: &Value) -> String {
    let name = row["limit"].as_str().unwrap_or_default();
    row["limit_value"].as_f64().map_or(name.to_owned(), |value| format!("{name} {}", number(value)))
}

/// The ratio with its interval.
fn ratio(row: &Value) -> String {
    let of = |name: &str| row[name].as_f64();
    match (of("ratio"), of("ratio_lo"), of("ratio_hi")) {
        (Some(ratio), Some(lo), Some(hi)) => format!("{ratio:.3} ({lo:.3} to {hi:.3})"),
        (Some(ratio), ..) => format!("{ratio:.3}"),
        _ => String::new(),
    }
}

/// Today's date.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date_of_day(seconds / 86_400)
}

const COLUMNS: &str = "| row | value | limit | ratio (95 %) | target |\n|---|---|---|---|---|";

const HEAD: &str = "# Numbers

Written by `tercel bench all --quick --write docs/numbers.md`: all rows of one build, on one machine. The history is git's. A
limit is most often the raw path under a row, measured in the same run in alternating blocks; the ratio is the median of value
by limit over pairs of blocks. The machine is virtual and shares its two processors with strangers: microseconds of two runs are
not comparable, ratios of one run are. Of times less is better, of rates more.
";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_target_is_read() {
        let targets = targets();
        assert!(targets.len() > 50);
        assert!(targets.iter().all(|target| ["ratio", "value", "p99"].contains(&target.field)));
    }

    #[test]
    fn the_document_names_misses_and_keeps_notes() {
        let rows = json!({"machine": {"cpus": 2, "kernel": "6.1", "backend": "epoll", "load": 1.0}, "rows": [
            {"id": "commit.one", "value": 9.0, "unit": "us", "p99": 12.0, "limit": "bare", "limit_value": 3.0,
             "ratio": 3.0, "ratio_lo": 2.5, "ratio_hi": 3.5},
            {"id": "commit.odd", "value": 1.0, "unit": "us"},
        ]});
        let done = [
            Done { suite: SUITES[0], report: Ok(rows) },
            Done { suite: SUITES[1], report: Err("no room".into()) },
        ];
        let text = document(&done, &format!("gone\n{BY_HAND}\nmine\n"));
        let line =
            "| `commit.one` | 9 us, p99 12 | bare 3 | 3.000 (2.500 to 3.500) | at most 1.15: **missed** |";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("| `oo7.t1.hot.small` | not measured in this run |"), "{text}");
        assert!(
            text.contains("| `commit.odd` | 1 us |  |  |  |") && text.contains("Left out: no room"),
            "{text}"
        );
        assert!(text.ends_with(&format!("{BY_HAND}\nmine\n")) && !text.contains("gone"), "{text}");
        let written = Written::read(&text).unwrap();
        assert_eq!(written.machines, [("commit", "2 processors, Linux 6.1, epoll, load 1.0, 0.0 % stolen")]);
        let ratio = "3.000 (2.500 to 3.500)";
        let first = Line { id: "commit.one", value: "9 us, p99 12", limit: "bare 3", ratio };
        assert_eq!((written.rows.len(), written.rows[0]), (2, first));
        let parts = ["value", "limit", "ratio", "p99"].map(|cell| written.rows[0].part(cell));
        assert_eq!(parts, [Some("9 us"), Some("3"), Some("3.000"), None]);
        assert!(written.taken.ends_with(COMMIT) && written.rows[1].part("ratio").is_none());
    }

    #[test]
    fn document_that_is_none_is_refused() {
        assert!(Written::read("Taken on 2026-11-26 at c0ffee.\n").is_err());
        let short = "Taken on 2026-11-26 at c0ffee.\n\n## commit\n\n| `commit.one` | 9 us |\n";
        assert_eq!(Written::read(short).unwrap_err(), "no row: | `commit.one` | 9 us |");
    }
}
