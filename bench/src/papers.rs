//! `tercel bench papers`: each table and figure of the founding papers beside rows of `docs/numbers.md`.
//!
//! Nothing is measured here. The papers' values stand in `papers.txt` and nowhere else: for this document,
//! for the page of a report and for the figure `paper` of a row.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use super::numbers::{Line, Written};
use super::report::Row;

const PAPERS: &str = include_str!("papers.txt");

/// A founding paper.
#[derive(Debug, Default, Serialize)]
pub struct Paper<'a> {
    pub title: &'a str,
    /// The authors, the year and the machine.
    pub source: &'a str,
    pub suites: Vec<&'a str>,
    pub figures: Vec<Figure<'a>>,
    /// Paragraphs, with the names of rows in braces.
    #[serde(skip)]
    texts: Vec<&'a str>,
    /// Comparisons of rows that must hold for the paragraphs to be true.
    #[serde(skip)]
    claims: Vec<&'a str>,
}

/// A measurement of a paper.
#[derive(Debug, PartialEq, Serialize)]
pub struct Figure<'a> {
    /// The table, figure or section.
    place: &'a str,
    what: &'a str,
    /// The result with its unit; none if only a picture has it.
    pub value: Option<&'a str>,
    /// The result by the paper's own limit, and that limit.
    ratio: Option<f64>,
    limit: Option<&'a str>,
    rows: Vec<&'a str>,
    /// Rows that would be needed for a comparison and do not exist.
    wanted: Vec<&'a str>,
    /// The reason for which the two are not alike.
    remark: &'a str,
}

/// All papers.
///
/// # Panics
/// If a line of the file is none; a test reads them all.
pub fn papers() -> Vec<Paper<'static>> {
    read(PAPERS).unwrap_or_else(|wrong| panic!("papers.txt: {wrong}"))
}

fn read(text: &str) -> Result<Vec<Paper<'_>>, String> {
    let mut papers: Vec<Paper<'_>> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let wrong = |why: &str| format!("{why}: {line}");
        let (word, rest) = line.split_once(' ').ok_or_else(|| wrong("a word alone"))?;
        if word == "paper" {
            papers.push(Paper { title: rest, ..Paper::default() });
            continue;
        }
        let paper = papers.last_mut().ok_or_else(|| wrong("no paper above"))?;
        match word {
            "source" if paper.source.is_empty() => paper.source = rest,
            "suites" if paper.suites.is_empty() => paper.suites = rest.split(' ').collect(),
            "figure" => paper.figures.push(Figure::parse(rest).map_err(wrong)?),
            "text" => paper.texts.push(rest),
            "holds" => paper.claims.push(rest),
            _ => return Err(wrong("an unknown word, or one a second time")),
        }
    }
    let is_unfinished = |paper: &&Paper<'_>| paper.source.is_empty() || paper.suites.is_empty();
    match papers.iter().find(is_unfinished) {
        Some(paper) => Err(format!("{} has no source or no suites", paper.title)),
        None => Ok(papers),
    }
}

impl<'a> Figure<'a> {
    fn parse(line: &'a str) -> Result<Figure<'a>, &'static str> {
        let cells: Vec<&str> = line.split(" | ").collect();
        let [place, what, value, by_limit, names, remark] = cells[..] else {
            return Err("not six cells");
        };
        let (ratio, limit) = match by_limit.split_once(' ') {
            None if by_limit == "-" => (None, None),
            Some((ratio, limit)) => (Some(ratio.parse::<f64>().map_err(|_| "no ratio")?), Some(limit)),
            None => return Err("a ratio without its limit"),
        };
        let (wanted, rows): (Vec<&str>, Vec<&str>) = names.split(' ').partition(|id| id.starts_with('?'));
        let wanted: Vec<&str> = wanted.into_iter().map(|id| &id[1..]).collect();
        let is_name = |id: &&str| id.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_'));
        if [place, what, value].contains(&"")
            || !rows.iter().chain(&wanted).all(|id| is_name(id) && !id.is_empty())
        {
            return Err("an empty cell, or no name of a row");
        }
        if !remark.ends_with('.') {
            return Err("a remark that is no sentence");
        }
        Ok(Figure { place, what, value: (value != "-").then_some(value), ratio, limit, rows, wanted, remark })
    }

    pub fn name(&self) -> String {
        format!("{}: {}", self.place, self.what)
    }

    /// The ratio and its limit.
    pub fn by_limit(&self) -> String {
        self.ratio.zip(self.limit).map_or(String::new(), |(ratio, limit)| format!("{ratio} of {limit}"))
    }

    /// The value, if it is a number of that unit.
    fn number(&self, unit: &str) -> Option<f64> {
        let (number, of) = self.value?.split_once(' ')?;
        (of == unit).then(|| number.replace(',', "").parse().ok())?
    }
}

/// Puts the papers' figures beside rows: the ratio, or the value of the same unit if a row has no ratio.
pub fn beside(rows: &mut [Row]) {
    let papers = papers();
    for row in rows {
        let mut figures = papers.iter().flat_map(|paper| &paper.figures);
        row.paper = figures.find_map(|figure| {
            let is_of_row = figure.rows.iter().chain(&figure.wanted).any(|id| *id == row.id);
            let of = if row.ratio.is_some() { figure.ratio } else { figure.number(row.unit) };
            of.filter(|_| is_of_row)
        });
    }
}

/// The cell of a row that is named `row`, `row/limit` or `row/ratio`.
fn cell<'a>(name: &str, numbers: &Written<'a>) -> Option<&'a str> {
    let (id, cell) = name.split_once('/').unwrap_or((name, "value"));
    numbers.row(id)?.part(cell)
}

/// A claim's truth by these numbers; none if it has no rows there.
fn holds(claim: &str, numbers: &Written<'_>) -> Option<bool> {
    let sum = |side: &str| -> Option<f64> {
        let number = |text: &str| -> Option<f64> { text.split(' ').next()?.parse().ok() };
        let term = |name: &str| -> Option<f64> { number(name).or_else(|| number(cell(name, numbers)?)) };
        side.split(" + ").map(term).sum()
    };
    let (more, less) = claim.split_once(" > ")?;
    Some(sum(more)? > sum(less)?)
}

/// A paragraph with its cells filled in.
fn filled(text: &str, numbers: &Written<'_>) -> String {
    let mut parts = text.split('{');
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or((part, ""));
        out.push_str(cell(name, numbers).unwrap_or("*not measured*"));
        out.push_str(rest);
    }
    out
}

/// Sentences about what the papers' table says and these numbers do not bear out.
pub fn stale(numbers: &Written<'_>) -> Vec<String> {
    let mut stale = Vec::new();
    for paper in papers() {
        for figure in &paper.figures {
            let missing = figure.rows.iter().filter(|id| numbers.row(id).is_none());
            stale.extend(missing.map(|id| format!("{} has no row {id}", figure.place)));
            let found = figure.wanted.iter().filter(|id| numbers.row(id).is_some());
            stale.extend(found.map(|id| format!("{} wants the row {id}, which exists", figure.place)));
        }
        let empty = paper.texts.iter().filter(|text| filled(text, numbers).contains("*not measured*"));
        stale.extend(empty.map(|text| format!("a cell is empty in: {text}")));
        let broken = paper.claims.iter().filter(|claim| holds(claim, numbers) != Some(true));
        stale.extend(broken.map(|claim| format!("the text on {} rests on: {claim}", paper.title)));
    }
    stale
}

/// The document.
pub fn document(numbers: &Written<'_>) -> String {
    let mut out = HEAD.replace("TAKEN", numbers.taken);
    for paper in papers() {
        // Writing into a text does not fail.
        let _ = writeln!(out, "\n## {}\n\n{}\n", paper.title, paper.source);
        for (suite, machine) in numbers.machines.iter().filter(|(suite, _)| paper.suites.contains(suite)) {
            let _ = writeln!(out, "- Rows of suite `{suite}`: {machine}.");
        }
        let _ = writeln!(out, "\n{COLUMNS}");
        for figure in &paper.figures {
            let then = [figure.name(), figure.value.unwrap_or("-").into(), figure.by_limit()].join(" | ");
            let (mut then, mut remark) = (then.as_str(), figure.remark);
            let rows = figure.rows.iter().map(|id| now(id, numbers));
            let wanted = figure.wanted.iter().map(|id| format!("*not measured*: `{id}` |  | "));
            for now in rows.chain(wanted) {
                let _ = writeln!(out, "| {then} | {now} | {remark} |");
                (then, remark) = (" |  | ", "");
            }
        }
        for text in &paper.texts {
            let _ = writeln!(out, "\n{}", filled(text, numbers));
        }
    }
    out
}

/// The cells of our row.
fn now(id: &str, numbers: &Written<'_>) -> String {
    match numbers.row(id) {
        Some(Line { value, limit, ratio, .. }) => format!("`{id}` {value} | {limit} | {ratio}"),
        None => format!("*not measured in this run*: `{id}` |  | "),
    }
}

/// The same for programs.
pub fn as_json(numbers: &Written<'_>) -> Value {
    let of = |paper: &Paper<'_>| {
        let ids = paper.figures.iter().flat_map(|figure| &figure.rows);
        let texts: Vec<String> = paper.texts.iter().map(|text| filled(text, numbers)).collect();
        let ours: Vec<&Line<'_>> = ids.filter_map(|id| numbers.row(id)).collect();
        json!({"paper": paper, "text": texts, "ours": ours})
    };
    json!({"taken": numbers.taken, "papers": papers().iter().map(of).collect::<Vec<_>>()})
}

const COLUMNS: &str = "| table or figure | then | by its limit | now | limit | by its limit (95 %) | not alike |\n|---|---|---|---|---|---|---|";

const HEAD: &str = "# The founding papers, then and now

Written by `tercel bench papers --write docs/papers.md` from the rows in [numbers](numbers.md). Nothing is measured for it.

*Then* is the paper's value, by the paper's own limit if it has one. *Now* is our row, by the limit measured in the same run. Some
thirty years lie between the machines, so values do not compare. Ratios to a limit do, as far as the last column allows it. Where no
row exists, the name is that of the row that would be needed. A graph or a curve is a picture, and the copy at hand lacks its values.

Our rows were taken on TAKEN, on the machine that each section names.
";

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: &str = "docs/numbers.md";

    fn in_repository(file: &str) -> String {
        std::fs::read_to_string(format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    }

    #[test]
    fn papers_name_only_rows_that_exist() {
        let text = in_repository(NUMBERS);
        assert_eq!(stale(&Written::read(&text).unwrap()), Vec::<String>::new(), "mend bench/src/papers.txt");
    }

    #[test]
    fn document_is_as_the_command_writes_it() {
        let text = in_repository(NUMBERS);
        let written = in_repository("docs/papers.md");
        let again = "run `tercel bench papers --write docs/papers.md`";
        assert!(document(&Written::read(&text).unwrap()) == written, "{again}");
    }

    #[test]
    fn lines_that_are_none_are_refused() {
        let head = "paper P\nsource S\nsuites a b\n";
        let read = |rest: &str| read(&format!("{head}{rest}")).map(|papers| papers.len());
        assert_eq!(
            read("figure F | w | 1 us | 2.5 4 us, bare | a.b ?c.d | One.\ntext {a.b}\nholds a.b > 1"),
            Ok(1)
        );
        for wrong in [
            "figure F | w | 1 us | 2.5 4 us, bare | a.b",
            "figure F | w | 1 us | 2.5 | a.b | One.",
            "figure F | w | 1 us | x 4 us, bare | a.b | One.",
            "figure F | w | 1 us | - | A.b | One.",
            "figure F | w | 1 us | - |  | One.",
            "figure F | w | 1 us | - | ? | One.",
            "figure F |  | 1 us | - | a.b | One.",
            "figure F | w | 1 us | - | a.b | one",
            "source T",
            "figures F",
            "text",
            "paper Q",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(super::read("suites a").is_err());
    }

    #[test]
    fn claims_and_texts_take_cells_of_rows() {
        let text = "Taken on 2026-11-26 at c0ffee.\n## ring\n| `a.b` | 4 us, p99 9 | the same alone 3 | 1.5 (1.0 to 2.0) |  |\n";
        let numbers = Written::read(text).unwrap();
        assert_eq!(
            filled("x {a.b}, {a.b/limit} us, {a.b/ratio}, {c}.", &numbers),
            "x 4 us, 3 us, 1.5, *not measured*."
        );
        assert_eq!(holds("a.b + a.b/ratio > 5.4", &numbers), Some(true));
        assert_eq!((holds("a.b/limit > a.b", &numbers), holds("c > 1", &numbers)), (Some(false), None));
        assert!(stale(&numbers).iter().any(|line| line.contains("no row rpc.null")), "{:?}", stale(&numbers));
    }

    #[test]
    fn rows_get_figure_of_their_paper() {
        let ratio = Row { ratio: Some(1.2), ..Row::new("rpc.null.udp.block", 11.0, "us", 1) };
        let mut rows = [
            ratio,
            Row::new("flex.breakeven.tcp", 2.0, "calls", 1),
            Row::new("group.rolling", 2.0, "ms", 1),
            Row { ratio: Some(1.2), ..Row::new("oo7.t2b.cold.medium", 1.0, "ms", 1) },
        ];
        beside(&mut rows);
        assert_eq!(rows.map(|row| row.paper), [Some(2.17), Some(3.0), None, Some(1.26)]);
    }
}
