//! A read's cost by where it runs, as a picture for the first screen of the README.

use std::fmt::Write as _;

/// The bars from above: the row that has the cost, and the sentence beside it.
const BARS: [(&str, &str); 6] = [
    ("flex.cached", "on the cached copy, in this process"),
    ("rpc.method.shm.spin", "at a server of this host, by shared memory"),
    ("flex.remote.unix", "there, by a Unix socket"),
    ("flex.remote.tcp", "at a server, by TCP over loopback"),
    ("rpc.method.tcp.block.two", "there, both ends asleep before"),
    ("commit.one", "for comparison: a durable write"),
];

const LEFT: f64 = 310.0;
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 30.0;
const TOP: f64 = 36.0;
/// The axis, in powers of ten of nanoseconds.
const DECADES: u32 = 6;

/// The picture; `nanoseconds` gives the value of a row if it was measured. None if none was.
pub fn picture(nanoseconds: impl Fn(&str) -> Option<f64>) -> Option<String> {
    let bars: Vec<(&str, f64)> =
        BARS.iter().filter_map(|&(id, name)| nanoseconds(id).map(|cost| (name, cost))).collect();
    if bars.is_empty() {
        return None;
    }
    let x = |cost: f64| LEFT + WIDTH * (cost.max(1.0).log10() / f64::from(DECADES)).min(1.0);
    let bottom = TOP + HEIGHT * bars.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0}\" height=\"{1:.0}\" viewBox=\"0 0 {0:.0} {1:.0}\" \
         role=\"img\" aria-label=\"A read's cost by where it runs\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        LEFT + WIDTH + 80.0,
        bottom + 14.0,
    );
    for (decade, name) in (0..=DECADES).zip(["1 ns", "10", "100", "1 us", "10", "100", "1 ms"]) {
        let at = LEFT + WIDTH * f64::from(decade) / f64::from(DECADES);
        // Writing into a text does not fail.
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {TOP} V{bottom}\" stroke=\"#d8dee4\"/>\
             <text x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#57606a\">{name}</text>",
            TOP - 12.0,
        );
    }
    for (place, (name, cost)) in bars.into_iter().enumerate() {
        let y = TOP + HEIGHT * place as f64;
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{2:.0}\" text-anchor=\"end\" fill=\"#1f2328\">{name}</text>\
             <rect x=\"{LEFT}\" y=\"{3:.0}\" width=\"{4:.1}\" height=\"18\" rx=\"2\" fill=\"#2f6f9f\"/>\
             <text x=\"{5:.1}\" y=\"{2:.0}\" fill=\"#1f2328\">{1}</text>",
            LEFT - 10.0,
            words(cost),
            y + 19.0,
            y + 6.0,
            x(cost) - LEFT,
            x(cost) + 6.0,
        );
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// Two digits and a unit.
fn words(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns => (ns / 1e6, "ms"),
    };
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_of_measured_rows() {
        let cost = |id: &str| match id {
            "flex.cached" => Some(10.0),
            "commit.one" => Some(150_000.0),
            _ => None,
        };
        let svg = picture(cost).unwrap();
        assert_eq!(svg.matches("<rect").count(), 3, "{svg}");
        assert!(
            svg.contains("width=\"66.7\"") && svg.contains(">10 ns<") && svg.contains(">150 us<"),
            "{svg}"
        );
        assert_eq!(picture(|_| None), None);
    }
}
