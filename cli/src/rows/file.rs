//! Files of rows: lines of CSV or of JSON, one row each, with the numbers of their lines.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use tercel::tools::wire::datum::Datum;
use tercel::tools::wire::layout::{Layout, Shape};
use tercel::tools::wire::schema::Scalar;
use tercel_gateway::json::call::to_json;
use tercel_gateway::json::parse;
use tercel_term::fail::Failure;

use crate::args::RowFormat;

/// Bytes of a row in a file at most: more than a transaction takes is nothing to keep.
const ROW_BYTES_MAX: usize = 16 << 20;

/// A row of a file.
pub struct Line {
    /// The number of its first line, from 1.
    pub number: u64,
    /// Bytes that it has in the file.
    pub bytes: usize,
    /// The fields of the row, or what is odd.
    pub row: Result<Datum, String>,
}

/// The rows of a file, one after the other.
pub struct Lines<'a> {
    from: BufReader<File>,
    path: PathBuf,
    layout: &'a Layout,
    /// The fields that the first line of a CSV file names.
    names: Option<Vec<String>>,
    bytes_total: u64,
    bytes_read: u64,
    number: u64,
}

impl<'a> Lines<'a> {
    /// Opens a file, and reads the names of a CSV file's fields.
    pub fn open(path: &Path, format: RowFormat, layout: &'a Layout) -> Result<Lines<'a>, Failure> {
        let failed = |e| Failure::new(format!("cannot read {}: {e}", path.display()));
        let file = File::open(path).map_err(failed)?;
        let bytes_total = file.metadata().map_err(failed)?.len();
        let from = BufReader::with_capacity(1 << 16, file);
        let (path, names) = (path.to_owned(), None);
        let mut lines = Lines { from, path, layout, names, bytes_total, bytes_read: 0, number: 0 };
        if format == RowFormat::Csv {
            let first = lines.record(true)?.ok_or("the file is empty".to_owned());
            let first = first.and_then(|(_, _, text)| names_of(&text?, layout));
            let fields = layout.fields().iter().map(|p| &*p.name).collect::<Vec<_>>().join(",");
            let next = format!("begin the file with the names of its fields, such as {fields}");
            lines.names = Some(first.map_err(|what| Failure::new(what).next(next).code(2))?);
        }
        Ok(lines)
    }

    /// Bytes of the file; 0 of one that has no length.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total
    }

    /// Bytes of the rows that were read.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// The next row; empty lines are none.
    pub fn next(&mut self) -> Result<Option<Line>, Failure> {
        loop {
            let is_csv = self.names.is_some();
            let Some((number, bytes, text)) = self.record(is_csv)? else { return Ok(None) };
            let row = match text {
                Ok(text) if self.is_none(&text) => continue,
                Ok(text) => match &self.names {
                    Some(names) => cells_of(&text).and_then(|cells| self.of_cells(names, &cells)),
                    None => match parse(text.trim_start_matches(BOM)) {
                        Ok(row @ Datum::Map(_)) => Ok(row),
                        Ok(_) => Err("it is no object of JSON".into()),
                        Err(e) => Err(format!("it is no JSON: {e}")),
                    },
                },
                Err(odd) => Err(odd),
            };
            return Ok(Some(Line { number, bytes, row }));
        }
    }

    /// Says whether a line is empty. Blanks alone may be the one text of a row.
    fn is_none(&self, text: &str) -> bool {
        match &self.names {
            Some(names) if names.len() == 1 => text.is_empty(),
            _ => text.trim().is_empty(),
        }
    }

    /// A line, or several if a quoted cell goes on behind the end of one: its number, bytes and text.
    #[allow(clippy::type_complexity, reason = "read where it is made")]
    fn record(&mut self, is_csv: bool) -> Result<Option<(u64, usize, Result<String, String>)>, Failure> {
        let (number, mut bytes, mut is_long, mut length) = (self.number + 1, Vec::new(), false, 0);
        let mut quote = Quote::default();
        loop {
            let room = (ROW_BYTES_MAX - bytes.len()) as u64;
            let read = self
                .from
                .by_ref()
                .take(room)
                .read_until(b'\n', &mut bytes)
                .map_err(|e| Failure::new(format!("cannot read {}: {e}", self.path.display())))?;
            (length, self.bytes_read) = (length + read, self.bytes_read + read as u64);
            self.number += u64::from(read > 0);
            if bytes.len() == ROW_BYTES_MAX && !bytes.ends_with(b"\n") {
                // The rest of the line is gone over.
                (is_long, self.number) = (true, self.number - 1);
                bytes.clear();
                continue;
            }
            let new = bytes.len().saturating_sub(read);
            bytes[new..].iter().for_each(|byte| quote.pass(*byte));
            if read == 0 || is_long || !(is_csv && quote.is_open) {
                break;
            }
        }
        if length == 0 {
            return Ok(None);
        }
        let text = match is_long {
            true => Err(format!("it has more than {ROW_BYTES_MAX} bytes")),
            false => String::from_utf8(bytes).map_err(|_| "it is no UTF-8".into()),
        };
        Ok(Some((number, length, text.map(|text| text.trim_end_matches(['\n', '\r']).to_owned()))))
    }

    fn of_cells(&self, names: &[String], cells: &[Cell]) -> Result<Datum, String> {
        if names.len() != cells.len() {
            return Err(format!("it has {} cells, and the first line names {}", cells.len(), names.len()));
        }
        let fields = names.iter().zip(cells).map(|(name, cell)| {
            let shape = &self.layout.field(name).ok_or("it has other fields")?.shape;
            Ok((name.clone(), value(shape, cell).map_err(|what| format!("`{name}`: {what}"))?))
        });
        fields.collect::<Result<_, String>>().map(Datum::Map)
    }
}

/// The state of a line of CSV behind some of its bytes.
#[derive(Default)]
struct Quote {
    /// Within a quoted cell.
    is_open: bool,
    /// Within a cell, where a quote begins nothing.
    is_within: bool,
}

impl Quote {
    fn pass(&mut self, byte: u8) {
        match byte {
            // Two quotes in a quoted cell, which stand for one, end it and begin it again.
            b'"' if self.is_open => (self.is_open, self.is_within) = (false, false),
            b'"' if !self.is_within => self.is_open = true,
            _ if self.is_open => {}
            b',' | b'\n' => self.is_within = false,
            _ => self.is_within = true,
        }
    }
}

/// A cell, and whether it stands in quotes: an empty one that does is a text.
struct Cell {
    text: String,
    is_quoted: bool,
}

/// The fields that the first line of a CSV file names: all but those that a row may lack, each once.
fn names_of(first: &str, layout: &Layout) -> Result<Vec<String>, String> {
    let names: Vec<String> =
        cells_of(first.trim_start_matches(BOM))?.into_iter().map(|cell| cell.text).collect();
    let again = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name));
    if let Some((_, name)) = again {
        return Err(format!("the first line names `{name}` twice"));
    }
    if let Some(name) = names.iter().find(|name| layout.field(name).is_none()) {
        return Err(format!("the first line names `{name}`, which is no field"));
    }
    match layout.fields().iter().find(|p| !names.contains(&p.name)) {
        Some(p) => Err(format!("the first line does not name `{}`, which each row has", p.name)),
        None => Ok(names),
    }
}

/// The mark that some programs put before a text.
const BOM: char = '\u{feff}';

fn is_text(shape: &Shape) -> bool {
    matches!(shape, Shape::Text | Shape::Bytes)
}

/// The value of a cell. What has parts is written as JSON.
fn value(shape: &Shape, cell: &Cell) -> Result<Datum, String> {
    let Cell { text, is_quoted } = cell;
    let cell = match shape {
        Shape::Ref(_) | Shape::Far(_) if text.is_empty() => return Ok(Datum::Null),
        // In quotes it is a text, where one can be.
        Shape::Option(of) if text.is_empty() && !(*is_quoted && is_text(of)) => return Ok(Datum::Null),
        Shape::Option(of) => return value(of, cell),
        _ => text,
    };
    let number = |what: &str| format!("`{cell}` is no {what}");
    Ok(match shape {
        Shape::Text | Shape::Bytes | Shape::Ref(_) | Shape::Far(_) => Datum::Text(cell.into()),
        Shape::Scalar(Scalar::Bool) => Datum::Bool(cell.parse().map_err(|_| number("true or false"))?),
        Shape::Scalar(Scalar::F32 | Scalar::F64) => match cell.parse::<f64>() {
            Ok(x) if x.is_finite() => Datum::Float(x),
            _ => Datum::Text(cell.into()),
        },
        Shape::Scalar(_) => Datum::Int(cell.parse().map_err(|_| number("whole number"))?),
        Shape::Option(_) | Shape::Array(..) | Shape::List(_) | Shape::Record(_) | Shape::Enum(_) => {
            parse(cell).map_err(|e| format!("`{cell}` is no JSON: {e}"))?
        }
    })
}

/// The cells of a row, as RFC 4180 has them.
fn cells_of(text: &str) -> Result<Vec<Cell>, String> {
    let (mut cells, mut rest) = (Vec::new(), text);
    loop {
        let is_quoted = rest.starts_with('"');
        let (text, behind) = match rest.strip_prefix('"') {
            None => rest.split_once(',').map_or((rest.to_owned(), None), |(c, b)| (c.to_owned(), Some(b))),
            Some(mut quoted) => {
                let mut cell = String::new();
                loop {
                    let (part, behind) = quoted.split_once('"').ok_or("a quote has no end")?;
                    cell += part;
                    match behind.strip_prefix('"') {
                        Some(behind) => (cell, quoted) = (cell + "\"", behind),
                        None if behind.is_empty() => break (cell, None),
                        None => {
                            let behind = behind.strip_prefix(',').ok_or("a quote ends within a cell")?;
                            break (cell, Some(behind));
                        }
                    }
                }
            }
        };
        cells.push(Cell { text, is_quoted });
        match behind {
            Some(behind) => rest = behind,
            None => return Ok(cells),
        }
    }
}

/// The first line of a CSV file.
pub fn names(layout: &Layout) -> String {
    layout.fields().iter().map(|p| quoted(&p.name)).collect::<Vec<_>>().join(",")
}

/// A row as a line of CSV, which reads as the same row.
pub fn cells(layout: &Layout, row: Datum) -> String {
    let Datum::Map(fields) = row else { return String::new() };
    let is_alone = fields.len() == 1;
    let cells = layout.fields().iter().zip(fields).map(|(p, (_, value))| match (&p.shape, value) {
        (_, Datum::Null) => String::new(),
        // Without quotes it would be none, or no row.
        (shape, Datum::Text(text)) if text.is_empty() && (is_alone || matches!(shape, Shape::Option(_))) => {
            "\"\"".into()
        }
        (_, Datum::Text(text)) if !is_in_parts(&p.shape) => quoted(&text),
        (_, value) => quoted(&to_json(value).to_string()),
    });
    cells.collect::<Vec<_>>().join(",")
}

fn is_in_parts(shape: &Shape) -> bool {
    match shape {
        Shape::Option(of) => is_in_parts(of),
        shape => matches!(shape, Shape::Array(..) | Shape::List(_) | Shape::Record(_) | Shape::Enum(_)),
    }
}

fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
