//! The two texts in which counters are told to Prometheus and its relatives, and the choice between them.
//!
//! A scraper says by `Accept` which of them it reads. Read as the older one, a counter of OpenMetrics would
//! be two families: one has a type, the other the samples.

use std::collections::BTreeSet;

/// The form of a scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format 0.0.4 of Prometheus.
    Text,
}

impl Exposition {
    /// The form that a scraper with this `Accept` likes better: OpenMetrics if it takes everything, and the
    /// text if it takes neither.
    pub fn accepted(accept: &str) -> Exposition {
        let ranges: Vec<(String, f32)> = accept.split(',').filter_map(range).collect();
        let quality = |names: [&str; 3]| {
            let best = |name: &&str| {
                let named = ranges.iter().filter(|(range, _)| range == name);
                named.map(|(_, quality)| *quality).reduce(f32::max)
            };
            // The range that says most counts, and of several the best.
            names.iter().find_map(best).unwrap_or(0.0)
        };
        let open = quality(["application/openmetrics-text", "application/*", "*/*"]);
        let text = quality(["text/plain", "text/*", "*/*"]);
        match ranges.is_empty() || open > 0.0 && open >= text {
            true => Exposition::OpenMetrics,
            false => Exposition::Text,
        }
    }

    /// The media type of the form.
    pub fn content_type(self) -> &'static str {
        match self {
            Exposition::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Exposition::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The same in this form, of what is OpenMetrics.
    pub fn of(self, open: String) -> String {
        match self {
            Exposition::OpenMetrics => open,
            Exposition::Text => text(&open),
        }
    }
}

/// A media range and its quality, if it is one.
fn range(part: &str) -> Option<(String, f32)> {
    let mut parts = part.split(';').map(str::trim);
    let name = parts.next().filter(|name| name.contains('/'))?.to_ascii_lowercase();
    let quality = parts.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse().unwrap_or(0.0))
    });
    Some((name, quality.unwrap_or(1.0)))
}

/// OpenMetrics as the older text has it: the family of a counter is named as its samples are, and there is
/// neither a unit nor an end.
fn text(open: &str) -> String {
    let is_counter =
        |line: &'_ str| Some(line.strip_prefix("# TYPE ")?.strip_suffix(" counter")?.to_string());
    let counters: BTreeSet<String> = open.lines().filter_map(is_counter).collect();
    let mut out = String::with_capacity(open.len());
    for line in open.lines() {
        let mut words = line.splitn(4, ' ');
        let (line, rest) = match (words.next(), words.next(), words.next(), words.next().unwrap_or_default())
        {
            (Some("#"), Some("UNIT" | "EOF"), ..) => continue,
            (Some("#"), Some(word @ ("HELP" | "TYPE")), Some(family), rest) => {
                let total = if counters.contains(family) { "_total" } else { "" };
                let rest = if (word, rest) == ("TYPE", "unknown") { "untyped" } else { rest };
                (&*format!("# {word} {family}{total} "), rest)
            }
            _ => (line, ""),
        };
        out.extend([line, rest, "\n"]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_decides_the_form() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.5,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for open in ["", "*/*", "application/openmetrics-text", prometheus, "text/plain;q=0.1, */*"] {
            assert_eq!(Exposition::accepted(open), Exposition::OpenMetrics, "{open}");
        }
        let telegraf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;q=0.7,\
                        text/plain;version=0.0.4;q=0.3";
        for text in [
            "text/plain;version=0.0.4",
            "Text/Plain",
            "text/*",
            telegraf,
            "application/openmetrics-text;q=0.1, text/plain; Q=0.2",
            "application/openmetrics-text;q=0, */*",
            "text/html",
            "text/plain, */*;q=0.1",
        ] {
            assert_eq!(Exposition::accepted(text), Exposition::Text, "{text}");
        }
    }

    #[test]
    fn counter_is_one_family_in_the_older_text() {
        let open = "# HELP a_commits commits.\n# TYPE a_commits counter\na_commits_total 7\n\
                    # HELP a_wait_seconds wait.\n# TYPE a_wait_seconds gauge\n# UNIT a_wait_seconds seconds\n\
                    a_wait_seconds{of=\"# EOF\"} 1\n# TYPE a_other unknown\na_other 2\n# EOF\n";
        let text = "# HELP a_commits_total commits.\n# TYPE a_commits_total counter\na_commits_total 7\n\
                    # HELP a_wait_seconds wait.\n# TYPE a_wait_seconds gauge\n\
                    a_wait_seconds{of=\"# EOF\"} 1\n# TYPE a_other untyped\na_other 2\n";
        assert_eq!(Exposition::Text.of(open.into()), text);
        assert_eq!(Exposition::OpenMetrics.of(open.into()), open);
    }
}
