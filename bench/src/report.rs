//! The report of a suite: rows for programs as JSON, for people as a table.
//!
//! A row that claims speed names its limit, the raw path measured in the same run. Absolute times on shared
//! machines mean little, so the row claims only the ratio.

use std::fmt::Write as _;

use serde::Serialize;
use tercel_term::wrap::wrap;

use super::blocks::Pairs;

/// The measurements of a suite.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Its name.
    pub suite: &'static str,
    /// The revision that the program was built from, or `unknown`.
    pub commit: &'static str,
    /// Where it ran.
    pub machine: Machine,
    /// The measurements, one row each.
    pub rows: Vec<Row>,
}

/// Where a suite ran.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Processors that it could use.
    pub cpus: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// The way in which the kernel delivered events to the server.
    pub backend: String,
    /// Its other load meanwhile; none where the kernel does not say.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub busy: Option<Busy>,
}

/// The other load of a machine while it was measured.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Busy {
    /// Threads that ran or wanted to, ours among them: the system's mean over the last minute, at the end.
    pub load: f64,
    /// The share of its processors' time that other machines on the same hardware took, in percent.
    pub stolen_percent: f64,
}

impl Machine {
    /// This machine, with a server of that backend.
    pub fn here(backend: impl Into<String>) -> Machine {
        Machine {
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| "unknown".into(), |release| release.trim().to_string()),
            backend: backend.into(),
            busy: None,
        }
    }

    pub fn line(&self) -> String {
        let mut line = format!("{} cpus, Linux {}, {}", self.cpus, self.kernel, self.backend);
        if let Some(Busy { load, stolen_percent }) = self.busy {
            let _ = write!(line, ", load {load:.1}, {stolen_percent:.1} % stolen");
        }
        line
    }
}

/// One thing measured. What does not apply is left out.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Row {
    /// Its name, the same in every run.
    pub id: String,
    /// The median over the blocks, or a count.
    pub value: f64,
    /// The unit of the value.
    pub unit: &'static str,
    /// The 99th percentile of single operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
    /// Single operations, where blocks were timed as a whole.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub each: Option<Each>,
    /// The best block, and it by the best block of the limit.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    /// The processor time of an operation.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// The name of what it is measured against.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_value: Option<f64>,
    /// The median of value by limit over pairs of blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Lower end of the ratio's confidence interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_lo: Option<f64>,
    /// Upper end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_hi: Option<f64>,
    /// The same beside a bystander, which only takes as much of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bystander: Option<Bystander>,
    /// Operations measured; operations of the limit are not counted.
    pub n: u64,
    /// The founding paper's own figure for the ratio, or for the value if there is no ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper: Option<f64>,
    /// A remark that the reader of the row needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Operations that were timed one by one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Each {
    /// The median.
    pub p50: f64,
    /// The 99.9th percentile: one in a thousand took longer.
    pub p999: f64,
}

/// Microseconds of processor that an operation took at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cpu {
    pub cpu_client_us: f64,
    pub cpu_server_us: f64,
}

/// The best block: what the machine allows when nothing disturbs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Best {
    #[serde(rename = "min")]
    pub value: f64,
    /// That by the least value of the limit.
    #[serde(rename = "min_ratio")]
    pub ratio: f64,
}

/// A row's value beside a bystander. The bystander takes as much of the machine as the antagonist and does
/// nothing else.
#[derive(Debug, Clone, Serialize)]
pub struct Bystander {
    /// The median over the blocks.
    pub value: f64,
    /// That by the limit: the machine's share of the row's ratio.
    pub of_limit: f64,
    /// Lower end of the confidence interval.
    pub of_limit_lo: f64,
    /// Upper end.
    pub of_limit_hi: f64,
    /// The row's value by the bystander's: the rest.
    pub ratio: f64,
    /// Lower end.
    pub ratio_lo: f64,
    /// Upper end.
    pub ratio_hi: f64,
    /// Processors that it took.
    pub cores: f64,
}

impl Row {
    /// A row without a limit.
    pub fn new(id: impl Into<String>, value: f64, unit: &'static str, n: u64) -> Row {
        Row { id: id.into(), value, unit, n, ..Row::default() }
    }

    /// A row of pairs of blocks.
    pub fn compared(
        id: impl Into<String>,
        unit: &'static str,
        pairs: &Pairs,
        limit: impl Into<String>,
        n: u64,
    ) -> Row {
        let ratio = pairs.ratio();
        Row {
            limit: Some(limit.into()),
            limit_value: Some(pairs.limit()),
            ratio: Some(ratio.median),
            ratio_lo: Some(ratio.lo),
            ratio_hi: Some(ratio.hi),
            ..Row::new(id, pairs.ours(), unit, n)
        }
    }

    /// The same with a remark.
    pub fn note(self, note: impl Into<String>) -> Row {
        Row { note: Some(note.into()), ..self }
    }
}

impl Report {
    /// For programs.
    ///
    /// # Errors
    /// If a number is none.
    pub fn json(&self) -> Result<String, String> {
        serde_json::to_string(self).map_err(|e| e.to_string())
    }

    /// For people: no line is longer than `columns`, but for what cannot be broken.
    pub fn table(&self, columns: usize) -> String {
        let machine = &self.machine;
        let head = format!("suite {}   commit {}   {}", self.suite, self.commit, machine.line());
        let mut out = format!("{}\n\n", wrap(&head, columns, 2));
        let mut lines = vec![HEAD.map(String::from)];
        lines.extend(self.rows.iter().map(cells));
        let widths: Vec<usize> =
            (0..HEAD.len()).map(|i| lines.iter().map(|l| l[i].chars().count()).max().unwrap_or(0)).collect();
        // Where names are too long for a table, each has a line of its own.
        let is_wide = widths.iter().sum::<usize>() + 2 * (HEAD.len() - 1) > columns;
        let details = std::iter::once(String::new()).chain(self.rows.iter().map(detail));
        for (line, detail) in lines.iter().zip(details) {
            let mut text = String::new();
            for (i, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                // Words stand left, numbers right.
                match i {
                    0 if is_wide && cell.is_empty() => text.push_str("    "),
                    0 if is_wide => text.push_str(&format!("{cell}\n    ")),
                    0 | 2 => text.push_str(&format!("{cell:<width$}  ")),
                    _ => text.push_str(&format!("{cell:>width$}  ")),
                }
            }
            out.push_str(text.trim_end());
            out.push('\n');
            if !detail.is_empty() {
                out.push_str(&wrap(&format!("    {detail}"), columns, 0));
                out.push('\n');
            }
        }
        if self.rows.iter().any(|row| row.ratio.is_some() || row.paper.is_some()) {
            for (word, meaning) in LEGEND {
                out.push_str(&format!("\n{}", wrap(&format!("{word:<8}{meaning}"), columns, 8)));
            }
            out.push('\n');
        }
        for row in &self.rows {
            if let Some(note) = &row.note {
                out.push_str(&format!("\n{}", wrap(&format!("{}: {note}", row.id), columns, 2)));
            }
        }
        out.truncate(out.trim_end().len());
        out
    }
}

/// The columns; the first has the name.
const HEAD: [&str; 6] = ["", "value", "unit", "p99", "ratio", "n"];

/// A legend for readers of the table.
const LEGEND: [(&str, &str); 9] = [
    ("value", "what Tercel took or did, the median"),
    (
        "limit",
        "what the row is measured against, most often the raw path under it, and what that took or did in this very run, the median",
    ),
    (
        "ratio",
        "value by limit, as the median over pairs of blocks measured one right after the other; so it is not the value \
         divided by that of the limit. Of times and fetches less is better, of things a second more; 1 is the limit itself",
    ),
    (
        "95 %",
        "where the true median of the ratios lies; a wide interval means that the machine was busy with other things, none \
         that there was one pair",
    ),
    (
        "paper",
        "what the paper that the method comes from measured for the ratio, or for the value if there is no ratio",
    ),
    (
        "p50",
        "of operations that were timed one by one, which costs each a look at the clock; p99 and p99.9 are of the same",
    ),
    ("best", "the best block, and it by the best block of the limit"),
    ("cpu", "time of the processors that an operation took at the client and at the server"),
    ("n", "operations measured, those of the limit not counted"),
];

fn cells(row: &Row) -> [String; 6] {
    [
        row.id.clone(),
        number(row.value),
        row.unit.into(),
        row.p99.map_or(String::new(), number),
        row.ratio.map_or(String::new(), |r| format!("{r:.3}")),
        row.n.to_string(),
    ]
}

/// The second line of a row: what its ratio is of.
fn detail(row: &Row) -> String {
    let mut parts = Vec::new();
    if let Some(limit) = &row.limit {
        parts.push(match row.limit_value {
            Some(value) => format!("limit {limit} {}", number(value)),
            None => format!("limit {limit}"),
        });
    }
    if let (Some(lo), Some(hi)) = (row.ratio_lo, row.ratio_hi) {
        parts.push(format!("95 % {lo:.3} to {hi:.3}"));
    }
    parts.extend(row.each.map(|each| format!("p50 {}, p99.9 {}", number(each.p50), number(each.p999))));
    parts.extend(row.best.map(|best| format!("best {} ({:.3})", number(best.value), best.ratio)));
    if let Some(cpu) = row.cpu {
        parts.push(format!("cpu {} + {} us", number(cpu.cpu_client_us), number(cpu.cpu_server_us)));
    }
    parts.extend(row.paper.map(|paper| format!("paper {}", number(paper))));
    parts.join(", ")
}

/// Three or four digits that matter; counts whole.
pub fn number(value: f64) -> String {
    match value {
        v if v == v.trunc() && v.abs() < 1e15 => format!("{v}"),
        v if v.abs() >= 1000.0 => format!("{v:.0}"),
        v if v.abs() >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            suite: "commit",
            commit: "unknown",
            machine: Machine {
                cpus: 2,
                kernel: "6.1".into(),
                backend: "epoll".into(),
                busy: Some(Busy { load: 1.25, stolen_percent: 0.5 }),
            },
            rows: vec![
                Row {
                    p99: Some(6.5),
                    limit: Some("raw.commit.one".into()),
                    limit_value: Some(4.0),
                    ratio: Some(1.25),
                    ratio_lo: Some(1.2),
                    ratio_hi: Some(1.3),
                    each: Some(Each { p50: 5.5, p999: 7.25 }),
                    ..Row::new("commit.one", 5.0, "us", 100)
                },
                Row::new("oo7.t6.visited", 2187.0, "parts", 1).note("as it must be"),
            ],
        }
    }

    #[test]
    fn json_has_the_fields_that_apply_and_no_others() {
        let expected = concat!(
            r#"{"suite":"commit","commit":"unknown","machine":{"cpus":2,"kernel":"6.1","backend":"epoll","load":1.25,"stolen_percent":0.5},"#,
            r#""rows":[{"id":"commit.one","value":5.0,"unit":"us","p99":6.5,"p50":5.5,"p999":7.25,"limit":"raw.commit.one","#,
            r#""limit_value":4.0,"ratio":1.25,"ratio_lo":1.2,"ratio_hi":1.3,"n":100},"#,
            r#"{"id":"oo7.t6.visited","value":2187.0,"unit":"parts","n":1,"note":"as it must be"}]}"#,
        );
        assert_eq!(report().json().unwrap(), expected);
    }

    #[test]
    fn the_table_lines_up_and_ends_with_the_notes() {
        let table = report().table(80);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[2].find("value").map(|at| at + 5), lines[3].find(" 5 ").map(|at| at + 2));
        assert!(lines[3].contains("1.250"), "{table}");
        assert_eq!(lines[4].trim(), "limit raw.commit.one 4, 95 % 1.200 to 1.300, p50 5.500, p99.9 7.250");
        assert_eq!(lines.last(), Some(&"oo7.t6.visited: as it must be"));
    }

    #[test]
    fn wide_rows_and_long_notes_fit() {
        let mut report = report();
        report.machine.kernel = "6.1.0-49-of-a-vendor-with-a-long-name-amd64".into();
        report.rows[0].id = "load.active.1000.bytes_per_client_and_more".into();
        (report.rows[0].value, report.rows[0].n) = (123_456_789.0, 123_456_789);
        report.rows[1] = report.rows[1].clone().note("a remark ".repeat(30));
        for columns in [60, 80, 100] {
            let table = report.table(columns);
            assert!(table.lines().all(|line| line.chars().count() <= columns), "{table}");
        }
    }
}
