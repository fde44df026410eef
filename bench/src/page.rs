//! The report of a suite as one page to look at, which loads nothing from elsewhere.

use std::fmt::Write as _;

use super::figure::figures;
use super::report::{Report, Row};

/// The results of a founding paper, beside which rows stand.
struct Founding {
    suite: &'static str,
    /// The system, its machine, and where it was published.
    source: &'static str,
    /// The measured operation, its result, and the ratio of that to the limit.
    rows: &'static [(&'static str, &'static str, &'static str)],
}

const FOUNDING: [Founding; 3] = [
    Founding {
        suite: "rpc",
        source: "Peregrine: Sun-3/60, Ethernet of 10 Mbit/s. Johnson and Zwaenepoel, Software: Practice and Experience 23(2), 1993",
        rows: &[
            ("a call without arguments over the network", "573 us", "2.17 of the packets alone, 264 us"),
            ("with 1,024 bytes", "1,397 us", "1.32 of the packets alone, 1,059 us"),
            ("large arguments", "8.9 Mbit/s", "0.95 of what the packets alone allow"),
            ("without arguments between two address spaces of one machine", "149 us", ""),
        ],
    },
    Founding {
        suite: "events",
        source: "500 MHz Alpha 21164, Digital UNIX 4.0D, Ethernet of 100 Mbit/s. Banga, Mogul and Druschel, USENIX Annual Technical Conference, 1999",
        rows: &[
            ("get_next_event over the events it may bring, 1 to 10 (Figure 6)", "a line", ""),
            ("get_next_event beside 0 to 2,000 silent connections", "the same", "within 0.005 %"),
            ("declaring and revoking beside them (Figure 7)", "the same", ""),
            ("requests a second of a proxy beside them (Figure 8)", "the same, where select falls", ""),
            (
                "where the latency of a proxy grows, 750 silent (Figure 9)",
                "1,348 requests/s",
                "1.04 of an improved select",
            ),
        ],
    },
    Founding {
        suite: "flex",
        source: "Flex: two SPARCstation 20 of 60 MHz, SunOS 4.1.3, Fresco 0.7, two Ethernets of 10 Mbit/s and a router. Kordale, \
            Ahamad and Devarakonda, USENIX Conference on Object-Oriented Technologies, 1996. The limit is the null invocation on a proxy",
        rows: &[
            ("null invocation on a proxy (Table 1)", "2.7 ms", "1"),
            ("invocation on a cached copy (Table 2)", "0.020 ms", "1/135"),
            ("creating a cacheable object", "3.8 ms", "1.41"),
            ("validating a copy", "6.2 ms", "2.30"),
            ("caching a copy", "8.0 ms", "2.96"),
            ("calls from which on caching is cheaper", "3", ""),
        ],
    },
];

/// The page.
pub fn html(report: &Report) -> String {
    let machine = &report.machine;
    let mut page = String::new();
    let title = format!("tercel bench {}", report.suite);
    let about = format!("commit {}, {}", report.commit, machine.line());
    // Writing into a text does not fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n<style>{STYLE}</style></head>\n\
         <body><h1>{0}</h1>\n<p>{1}</p>\n",
        escape(&title),
        escape(&about)
    );
    for founding in FOUNDING.iter().filter(|founding| founding.suite == report.suite) {
        let _ = write!(
            page,
            "<h2>What the founding system measured</h2>\n<p>{}</p>\n<table>\n",
            escape(founding.source)
        );
        page.push_str("<tr><th>what</th><th>took</th><th>by its limit</th></tr>\n");
        for (what, took, ratio) in founding.rows {
            let cells = [what, took, ratio].map(|cell| format!("<td>{}</td>", escape(cell)));
            let _ = writeln!(page, "<tr>{}</tr>", cells.concat());
        }
        page.push_str("</table>\n");
    }
    if !report.rows.is_empty() {
        page.push_str("<h2>What Tercel measured in this run</h2>\n");
        if report.suite == "flex" {
            put_operations(&mut page, &report.rows);
        }
        page.push_str(&figures(&report.rows));
        put_rows(&mut page, &report.rows);
    }
    page.push_str("</body></html>\n");
    page
}

/// The operations of Flex, by its figures: the name, milliseconds there, and the ends of the names of our
/// rows.
const OPERATIONS: [(&str, f64, &str); 5] = [
    ("null call", 2.7, "remote"),
    ("call on a cached copy", 0.020, "cached"),
    ("create", 3.8, "create"),
    ("validate", 6.2, "validate"),
    ("cache", 8.0, "cache"),
];

/// The tables of Flex beside this run: each operation by a null call there, here, and here in a session.
fn put_operations(page: &mut String, rows: &[Row]) {
    let find = |id: &str| rows.iter().find(|row| row.id == id);
    let us = |row: &Row| if row.unit == "ns" { row.value / 1e3 } else { row.value };
    for road in ["tcp", "unix"] {
        let Some(null) = find(&format!("flex.remote.{road}")).map(us) else { continue };
        let _ = write!(
            page,
            "<h3>The operations of its Tables 1 and 2, over {road}</h3>\n<table>\n<tr><th>operation</th><th>Flex</th>\
             <th>by its null call</th><th>here</th><th>by ours</th><th>in a session</th><th>by ours</th></tr>\n"
        );
        let mut bars = Vec::new();
        for (name, ms, id) in OPERATIONS {
            let one = |family: &str| {
                find(&format!("flex{family}.{id}.{road}"))
                    .or_else(|| find(&format!("flex{family}.{id}")))
                    .map(us)
            };
            let (here, causal) = (one(""), one(".causal"));
            let by = [
                ("Flex", Some(ms / 2.7)),
                ("here", here.map(|us| us / null)),
                ("session", causal.map(|us| us / null)),
            ];
            for (system, ratio) in by.iter().filter_map(|(system, ratio)| Some((system, (*ratio)?))) {
                let bar = Row {
                    ratio: Some(ratio),
                    ratio_lo: Some(ratio),
                    ratio_hi: Some(ratio),
                    ..Row::default()
                };
                bars.push(Row { id: format!("{name}, {system}"), ..bar });
            }
            let took = |us: Option<f64>| us.map_or("".into(), |us| format!("{us:.3} us"));
            let ratio = |ratio: Option<f64>| ratio.map_or("".into(), |ratio| format!("{ratio:.4}"));
            let cells = [
                name.into(),
                format!("{ms:.3} ms"),
                ratio(by[0].1),
                took(here),
                ratio(by[1].1),
                took(causal),
                ratio(by[2].1),
            ];
            let cells: Vec<_> = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
            let _ = writeln!(page, "<tr>{}</tr>", cells.concat());
        }
        page.push_str("</table>\n");
        page.push_str(&plot(&bars));
    }
}

/// A plot, a table, and how to read them.
fn put_rows(page: &mut String, rows: &[Row]) {
    page.push_str(&plot(rows));
    page.push_str(
        "<table>\n<tr><th>row</th><th>value</th><th>p50</th><th>p99</th><th>p99.9</th><th>cpu, client + server</th><th>limit</th>\
         <th>its value</th><th>ratio</th><th>95 %</th><th>best block, by the limit's</th><th>paper</th><th>what it is</th></tr>\n",
    );
    rows.iter().for_each(|row| page.push_str(&table_row(row)));
    let _ = writeln!(page, "</table>\n<p>{ABOUT}</p>");
}

/// A note for readers of a table of rows.
const ABOUT: &str = "The limit is the raw path under a row, measured in the same run in alternating blocks; the ratio is the \
    median over pairs of blocks, and 95 % is where its true value lies.";

fn table_row(row: &Row) -> String {
    let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
    let interval = match (row.ratio_lo, row.ratio_hi) {
        (Some(lo), Some(hi)) => format!("{lo:.3} to {hi:.3}"),
        _ => String::new(),
    };
    let cells = [
        row.id.clone(),
        format!("{:.3} {}", row.value, row.unit),
        number(row.each.map(|each| each.p50)),
        number(row.p99),
        number(row.each.map(|each| each.p999)),
        row.cpu
            .map_or(String::new(), |cpu| format!("{:.3} + {:.3} us", cpu.cpu_client_us, cpu.cpu_server_us)),
        row.limit.clone().unwrap_or_default(),
        number(row.limit_value),
        number(row.ratio),
        interval,
        row.best.map_or(String::new(), |best| format!("{:.3} ({:.3})", best.value, best.ratio)),
        number(row.paper),
        row.note.clone().unwrap_or_default(),
    ];
    let cells: Vec<_> = cells.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
    format!("<tr>{}</tr>\n", cells.concat())
}

const NAME_WIDTH: f64 = 260.0;
const BAR_WIDTH: f64 = 560.0;
const LINE_HEIGHT: f64 = 20.0;

/// The ratios with their intervals, on a logarithmic scale; the line is the limit itself.
fn plot(rows: &[Row]) -> String {
    let of = |row: &Row| Some((row.id.clone(), row.ratio?, row.ratio_lo?, row.ratio_hi?));
    let bars: Vec<_> = rows.iter().filter_map(of).filter(|bar| bar.2 > 0.0).collect();
    let (mut least, mut most) = (0.8_f64, 1.25_f64);
    for (_, _, lo, hi) in &bars {
        (least, most) = (least.min(*lo), most.max(*hi));
    }
    if bars.is_empty() {
        return String::new();
    }
    let at = |ratio: f64| NAME_WIDTH + BAR_WIDTH * (ratio / least).ln() / (most / least).ln();
    let height = LINE_HEIGHT * (bars.len() as f64 + 1.5);
    let mut plot = format!(
        "<svg role=\"img\" aria-label=\"ratios to the limit\" width=\"{:.0}\" height=\"{height:.0}\">\n",
        NAME_WIDTH + BAR_WIDTH + 90.0
    );
    let one = at(1.0);
    let _ = writeln!(
        plot,
        "<line class=\"limit\" x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"0\" y2=\"{:.1}\"/>",
        height - LINE_HEIGHT
    );
    let _ = writeln!(
        plot,
        "<text x=\"{one:.1}\" y=\"{:.1}\" text-anchor=\"middle\">the limit</text>",
        height - 5.0
    );
    for (i, (name, ratio, lo, hi)) in bars.iter().enumerate() {
        let y = LINE_HEIGHT * (i as f64 + 0.5);
        let (x, lo, hi) = (at(*ratio), at(*lo), at(*hi));
        let (from, width) = (x.min(one), (x - one).abs().max(1.0));
        let _ = writeln!(
            plot,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"10\"/>\n\
             <line class=\"interval\" x1=\"{lo:.1}\" x2=\"{hi:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\">{ratio:.2}</text>",
            NAME_WIDTH - 8.0,
            y + 4.0,
            escape(name),
            y - 5.0,
            x.max(hi).max(one) + 6.0,
            y + 4.0,
        );
    }
    plot.push_str("</svg>\n");
    plot
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "body{font:14px sans-serif;margin:2em;max-width:72em}table{border-collapse:collapse;margin:1em 0}\
    td,th{border-bottom:1px solid #ccc;padding:2px 8px;text-align:left;vertical-align:top}svg text{font:12px sans-serif}\
    svg polyline{fill:none;stroke:#4a7ab5;stroke-width:2}svg .axis{stroke:#123;stroke-width:1}svg .line1{stroke:#b33}\
    svg .line2{stroke:#393}svg rect{fill:#4a7ab5}svg .limit{stroke:#b33;stroke-dasharray:3 3}svg .interval{stroke:#123;stroke-width:2}";

#[cfg(test)]
mod tests {
    use super::super::blocks::Pairs;
    use super::super::report::Machine;
    use super::*;

    #[test]
    fn page_has_the_rows_the_founding_ones_and_nothing_from_elsewhere() {
        let pairs = Pairs { pairs: vec![(1.0, 1.5), (1.0, 1.4), (1.0, 1.6)] };
        let rows = vec![
            Row::compared("rpc.null.<x>", "us", &pairs, "raw.null", 3).note("a \"note\" & more"),
            Row::new("count", 7.0, "calls", 1),
        ];
        let page = html(&Report { suite: "rpc", commit: "c0ffee", machine: Machine::here("epoll"), rows });
        for part in [
            "rpc.null.&lt;x&gt;",
            "&quot;note&quot; &amp; more",
            "573 us",
            "<svg",
            "1.500",
            "c0ffee",
            "<td>count</td>",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        for elsewhere in ["http:", "https:", "src=", "@import", "<script"] {
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
        assert_eq!(page.matches("<tr>").count(), page.matches("</tr>").count());
    }

    #[test]
    fn page_of_flex_has_its_operations_beside_ours() {
        let row = |id: &str, us, unit| Row::new(id, us, unit, 1);
        let rows = vec![
            row("flex.remote.tcp", 20.0, "us"),
            row("flex.cached", 10.0, "ns"),
            row("flex.causal.cached", 20.0, "ns"),
            row("flex.cache.tcp", 26.0, "us"),
        ];
        let page = html(&Report { suite: "flex", commit: "", machine: Machine::here(""), rows });
        let cached = "<td>0.020 ms</td><td>0.0074</td><td>0.010 us</td><td>0.0005</td><td>0.020 us</td><td>0.0010</td>";
        assert!(
            page.contains(cached) && page.contains("<td>26.000 us</td><td>1.3000</td><td></td>"),
            "{page}"
        );
        assert!(page.contains("cache, Flex</text>") && !page.contains("over unix"), "{page}");
    }

    #[test]
    fn page_of_no_ratios_has_no_plot() {
        let rows = vec![Row::new("count", 7.0, "calls", 1)];
        let page = html(&Report { suite: "idle", commit: "", machine: Machine::here(""), rows });
        assert!(!page.contains("<svg") && !page.contains("founding"));
    }
}
