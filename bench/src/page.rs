//! The report of a suite as one page to look at, which loads nothing from elsewhere.

use std::fmt::Write as _;

use super::figure::figures;
use super::papers::papers;
use super::report::{Report, Row};

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
    for paper in papers().iter().filter(|paper| paper.suites.contains(&report.suite)) {
        let _ = write!(
            page,
            "<h2>The founding paper: {}</h2>\n<p>{}</p>\n<table>\n\
             <tr><th>what</th><th>took</th><th>by its limit</th></tr>\n",
            escape(paper.title),
            escape(paper.source)
        );
        for (figure, value) in paper.figures.iter().filter_map(|figure| Some((figure, figure.value?))) {
            let cells = [figure.name().as_str(), value, &figure.by_limit()]
                .map(|cell| format!("<td>{}</td>", escape(cell)));
            let _ = writeln!(page, "<tr>{}</tr>", cells.concat());
        }
        page.push_str("</table>\n");
    }
    if !report.rows.is_empty() {
        page.push_str("<h2>What Tercel measured in this run</h2>\n");
        page.push_str(&figures(&report.rows));
        put_rows(&mut page, &report.rows);
    }
    page.push_str("</body></html>\n");
    page
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
    fn page_of_no_ratios_has_no_plot() {
        let rows = vec![Row::new("count", 7.0, "calls", 1)];
        let page = html(&Report { suite: "idle", commit: "", machine: Machine::here(""), rows });
        assert!(!page.contains("<svg") && !page.contains("founding"));
    }
}
