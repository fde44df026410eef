//! The founding paper's figures drawn from rows: a number in a row's name is its place on the axis.

use std::fmt::Write as _;

use super::page::escape;
use super::report::Row;

/// A figure of Banga, Mogul and Druschel (1999).
struct Figure {
    title: &'static str,
    x: &'static str,
    y: &'static str,
    lines: &'static [Line],
}

/// The rows `PREFIX<number>SUFFIX`, and one of their values.
struct Line {
    name: &'static str,
    prefix: &'static str,
    suffix: &'static str,
    value: Value,
}

#[derive(Clone, Copy)]
enum Value {
    Ours,
    Limit,
    P99,
    /// Ours, and at zero the limit, where the limit is the same without what the axis counts.
    FromZero,
}

const fn line(name: &'static str, prefix: &'static str, suffix: &'static str, value: Value) -> Line {
    Line { name, prefix, suffix, value }
}

const FIGURES: [Figure; 4] = [
    Figure {
        title: "Figure 6: a call of get_next_events, its events received",
        x: "events a call may bring",
        y: "ns",
        lines: &[
            line("event queue", "events.fig6.", "", Value::Ours),
            line("by hand", "events.fig6.", "", Value::Limit),
        ],
    },
    Figure {
        title: "Figure 7: declaring and revoking",
        x: "silent connections",
        y: "ns",
        lines: &[
            line("declare", "events.declare.", "", Value::FromZero),
            line("revoke", "events.revoke.", "", Value::FromZero),
        ],
    },
    Figure {
        title: "Figure 8: the proxy beside silent connections",
        x: "silent connections",
        y: "requests/s",
        lines: &[
            line("batches of 64", "proxy.cold", "", Value::FromZero),
            line("of 1", "proxy.array1.cold", "", Value::FromZero),
            line("nginx", "proxy.nginx.cold", "", Value::FromZero),
        ],
    },
    Figure {
        title: "Figure 9: latency of the proxy beside 750 silent connections",
        x: "requests offered, in percent of those that clients reach who ask all the time",
        y: "us",
        lines: &[
            line("median", "proxy.rate", ".latency", Value::Ours),
            line("p99", "proxy.rate", ".latency", Value::P99),
        ],
    },
];

impl Line {
    /// Points from left to right.
    fn points(&self, rows: &[Row]) -> Vec<(f64, f64)> {
        let mut points = Vec::new();
        for row in rows {
            let number = row.id.strip_prefix(self.prefix).and_then(|rest| rest.strip_suffix(self.suffix));
            let Some(x) = number.and_then(|number| number.parse::<u32>().ok()) else { continue };
            let value = match self.value {
                Value::Ours | Value::FromZero => Some(row.value),
                Value::Limit => row.limit_value,
                Value::P99 => row.p99,
            };
            points.extend(value.map(|value| (f64::from(x), value)));
            if let (Value::FromZero, true, Some(limit)) = (self.value, points.len() == 1, row.limit_value) {
                points.insert(0, (0.0, limit));
            }
        }
        points
    }
}

/// The figures for which there are rows.
pub fn figures(rows: &[Row]) -> String {
    let mut page = String::new();
    for figure in &FIGURES {
        let lines: Vec<_> = figure.lines.iter().map(|line| (line.name, line.points(rows))).collect();
        let most = |of: fn(&(f64, f64)) -> f64| {
            lines.iter().flat_map(|line| &line.1).map(of).fold(0.0, f64::max) * 1.05
        };
        let (x_most, y_most) = (most(|point| point.0), most(|point| point.1));
        if x_most == 0.0 || y_most == 0.0 {
            continue;
        }
        let at = |(x, y): (f64, f64)| (LEFT + WIDTH * x / x_most, TOP + HEIGHT * (1.0 - y / y_most));
        // Writing into a text does not fail.
        let _ = write!(
            page,
            "<h3>{0}</h3>\n<svg role=\"img\" aria-label=\"{0}\" width=\"{1:.0}\" height=\"{2:.0}\">\n\
             <polyline class=\"axis\" points=\"{LEFT},{TOP} {LEFT},{3} {4},{3}\"/>\n\
             <text x=\"{4:.0}\" y=\"{5:.0}\" text-anchor=\"end\">{6}</text><text x=\"2\" y=\"12\">{7}</text>\n",
            escape(figure.title),
            LEFT + WIDTH + RIGHT,
            TOP + HEIGHT + 40.0,
            TOP + HEIGHT,
            LEFT + WIDTH,
            TOP + HEIGHT + 34.0,
            escape(figure.x),
            escape(figure.y),
        );
        for part in 0..=4 {
            let share = f64::from(part) / 4.0;
            let (x, y) = at((x_most * share, y_most * share));
            let _ = writeln!(
                page,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0}</text>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{:.0}</text>",
                TOP + HEIGHT + 16.0,
                x_most * share,
                LEFT - 6.0,
                y + 4.0,
                y_most * share,
            );
        }
        for (number, (name, points)) in lines.iter().enumerate().filter(|(_, line)| !line.1.is_empty()) {
            let places: Vec<_> = points.iter().map(|&point| at(point)).collect();
            let path: Vec<_> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let (x, y) = places[places.len() - 1];
            let _ = writeln!(
                page,
                "<polyline class=\"line{number}\" points=\"{}\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                path.join(" "),
                x + 6.0,
                y + 4.0,
                escape(name),
            );
        }
        page.push_str("</svg>\n");
    }
    page
}

const LEFT: f64 = 70.0;
const TOP: f64 = 20.0;
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 220.0;
/// For the names of lines.
const RIGHT: f64 = 110.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_drawn_from_their_rows_alone() {
        let row = |id: &str, value| Row { limit_value: Some(2.0), ..Row::new(id, value, "ns", 1) };
        let rows = [row("events.fig6.1", 3.0), row("events.fig6.10", 5.0), row("events.fig6.to10.r2", 1.0)];
        let page = figures(&rows);
        assert_eq!((page.matches("<svg").count(), page.matches("class=\"line").count()), (1, 2), "{page}");
        let places = page.split("class=\"line0\" points=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(places.split(' ').count(), 2, "{page}");
        assert_eq!(figures(&rows[2..]), "");
    }

    #[test]
    fn line_begins_at_the_limit_without_silent_ones() {
        let row = |id: &str, value| Row { limit_value: Some(2.0), ..Row::new(id, value, "1/s", 1) };
        let rows = [row("proxy.cold750", 3.0), row("proxy.cold750.latency", 9.0), row("proxy.cold2000", 4.0)];
        assert_eq!(FIGURES[2].lines[0].points(&rows), [(0.0, 2.0), (750.0, 3.0), (2_000.0, 4.0)]);
    }
}
