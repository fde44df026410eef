//! `tercel load` and `tercel dump`: the rows of a table, from and to files.
//!
//! Both go by the table's declaration and the catalogue. The memory of either is that of a batch of rows,
//! however long the file is.

mod file;

use std::process::ExitCode;

use serde_json::json;
use tercel::collections::map::RawValue;
use tercel::collections::table::untyped::{UntypedRow, UntypedTable};
use tercel::tools::wire::datum::Datum;
use tercel::tools::wire::layout::Layout;
use tercel::{Client, Error, Isolation};
use tercel_gateway::json::call::to_json;
use tercel_term::fail::{Failure, Outcome};
use tercel_term::{THINGS, Term, count, say, tell, tidy};

use crate::args::{self, RowFormat};
use crate::{inspect, space};
use file::{Line, Lines};

/// Rows of one commit at most: with more, a commit takes longer than it saves.
const BATCH_ROWS: usize = 1_000;
/// Rows that a dump reads at once at first.
const FIRST_ROWS: usize = 4;
/// Bytes of the lines of one commit at most, and about those that a dump reads at once.
const BATCH_BYTES: usize = 4 << 20;
/// Odd lines that are told one by one.
const TOLD_MAX: u64 = 20;

/// The table that a command names.
fn table(client: &Client, root: &str, class: Option<&str>) -> Result<UntypedTable, Failure> {
    let oref = inspect::locate(client, root)?;
    let table = tercel::tools::table(client, oref).map_err(|e| match e {
        Error::Schema(what) => Failure::new(format!("{root} cannot be taken for a table: {what}"))
            .next("name a root that a program made with `Table::root`"),
        e => e.into(),
    })?;
    match class {
        Some(class) if class != table.class => {
            Err(Failure::new(format!("{root} is a table of {} and not of {class}", table.class)).code(2))
        }
        _ => Ok(table),
    }
}

/// The counts of a load.
#[derive(Debug, Default)]
struct Loaded {
    rows: u64,
    odd: u64,
}

impl Loaded {
    /// Counts a line that is no row, and tells it if not too many were.
    fn odd(&mut self, line: u64, what: &str) {
        self.odd += 1;
        if self.odd <= TOLD_MAX {
            eprintln!("line {line}: {what}");
        }
    }
}

pub fn load(args: &args::Load, term: &Term) -> Outcome {
    let format = match (args.format, args.file.extension().and_then(|end| end.to_str())) {
        (Some(format), _) => format,
        (None, Some("csv")) => RowFormat::Csv,
        (None, Some("jsonl" | "ndjson")) => RowFormat::Jsonl,
        (None, _) => {
            let what = format!("{} ends neither in .csv nor in .jsonl", args.file.display());
            return Err(Failure::new(what).next("say --format csv or --format jsonl").code(2));
        }
    };
    tidy::on_signals(|| {
        "interrupted: whole batches of rows are loaded; run the same command again for the rest".into()
    })?;
    if args.strict && args.file.metadata().is_ok_and(|file| !file.is_file()) {
        let what = format!("--strict reads a file twice, and {} can be read once", args.file.display());
        return Err(Failure::new(what).next("write the rows into a file, or leave --strict out").code(2));
    }
    let client = space::open(&args.space)?;
    let table = table(&client, &args.root, args.class.as_deref())?;
    let open = || Lines::open(&args.file, format, &table.layout);
    if args.strict {
        strictly(open()?, &table, term)?;
    }
    let mut lines = open()?;
    let bar = term.bar(lines.bytes_total(), THINGS, "loading");
    let mut loaded = Loaded::default();
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while let Some(Line { number, bytes: of_line, row }) = lines.next()? {
        match row.and_then(|datum| table.row(datum)) {
            Ok(row) => batch.push((number, row)),
            Err(odd) => bar.suspend(|| loaded.odd(number, &odd)),
        }
        bytes += of_line;
        if batch.len() == BATCH_ROWS || bytes >= BATCH_BYTES {
            insert(&client, &table, &mut batch, args.strict, &mut loaded, &|tell| bar.suspend(tell))?;
            bytes = 0;
            bar.set_position(lines.bytes_read());
        }
    }
    insert(&client, &table, &mut batch, args.strict, &mut loaded, &|tell| bar.suspend(tell))?;
    bar.finish_and_clear();
    space::close(client)?;
    let Loaded { rows, odd } = loaded;
    if odd > TOLD_MAX {
        eprintln!("and {} more lines that were left out", odd - TOLD_MAX);
    }
    match args.json {
        true => say!("{}", json!({ "rows": rows, "odd_lines": odd })),
        false => tell!(
            "loaded {} into {}, left out {}",
            count(rows, "row", "rows"),
            args.root,
            count(odd, "odd line", "odd lines")
        ),
    }
    // Nothing of it was right: perhaps it is another file.
    Ok(if rows == 0 && odd > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reads the whole file, and refuses it if a line is no row.
fn strictly(mut lines: Lines<'_>, table: &UntypedTable, term: &Term) -> Result<(), Failure> {
    let bar = term.bar(lines.bytes_total(), THINGS, "reading");
    let mut read = Loaded::default();
    while let Some(Line { number, row, .. }) = lines.next()? {
        if let Err(odd) = row.and_then(|datum| table.row(datum)) {
            bar.suspend(|| read.odd(number, &odd));
        }
        bar.set_position(lines.bytes_read());
    }
    bar.finish_and_clear();
    match read.odd {
        0 => Ok(()),
        odd => {
            let what = format!("nothing was loaded: {}", count(odd, "line is no row", "lines are no rows"));
            Err(Failure::new(what).next("mend the lines, or leave --strict out to load the others"))
        }
    }
}

/// Inserts a batch in one transaction. If a key is taken, its rows go in one by one, without those.
fn insert(
    client: &Client,
    table: &UntypedTable,
    batch: &mut Vec<(u64, UntypedRow)>,
    is_strict: bool,
    loaded: &mut Loaded,
    told: &dyn Fn(&mut dyn FnMut()),
) -> Result<(), Failure> {
    let (numbers, rows): (Vec<u64>, Vec<UntypedRow>) = batch.drain(..).unzip();
    if rows.is_empty() {
        return Ok(());
    }
    let mut taken = Vec::new();
    match client.run(|tx| table.insert_all(tx, &rows)) {
        Ok(()) => {}
        Err(Error::Taken(_)) => {
            let done = client.run(|tx| {
                taken.clear();
                for (number, row) in numbers.iter().zip(&rows) {
                    match table.insert(tx, row) {
                        Err(e @ Error::Taken(_)) => {
                            taken.push((*number, e.to_string()));
                            if is_strict {
                                return Err(e);
                            }
                        }
                        done => done?,
                    }
                }
                Ok(())
            });
            match (done, taken.first()) {
                (Err(Error::Taken(_)), Some((number, what))) => {
                    let first = numbers.first().unwrap_or(number);
                    let what = format!("line {number}: {what}; the rows before line {first} are loaded");
                    let next = format!(
                        "take line {number} out, and those before line {first}; or leave --strict out"
                    );
                    return Err(Failure::new(what).next(next));
                }
                (done, _) => done?,
            }
        }
        Err(e) => return Err(e.into()),
    }
    loaded.rows += (rows.len() - taken.len()) as u64;
    told(&mut || taken.iter().for_each(|(number, what)| loaded.odd(*number, what)));
    Ok(())
}

pub fn dump(args: &args::Dump) -> Outcome {
    let client = space::open(&args.space)?;
    let table = table(&client, &args.root, args.class.as_deref())?;
    let (entries, mut after) = (table.entries(&table.key)?, None);
    // Until it is known how large rows are, few.
    let mut count = FIRST_ROWS;
    if args.format == RowFormat::Csv {
        say!("{}", file::names(&table.layout));
    }
    loop {
        let reading = client.transaction().isolation(Isolation::Snapshot);
        let (rows, next) = reading.run(|tx| {
            let page = entries.page(tx, after.as_ref(), count)?;
            let rows = page.entries.iter().filter_map(|(_, row)| match row {
                RawValue::Reference(row) => Some(table.read(tx, row.oref())),
                RawValue::Value(_) | RawValue::Nothing => None,
            });
            Ok((rows.collect::<Result<Vec<_>, _>>()?, page.next))
        })?;
        let mut bytes = 0;
        for row in rows {
            let line = line(args.format, &table.layout, row);
            bytes += line.len();
            say!("{line}");
        }
        count = match bytes {
            bytes if bytes > BATCH_BYTES => (count / 4).max(1),
            bytes if bytes < BATCH_BYTES / 4 => (count * 4).min(BATCH_ROWS),
            _ => count,
        };
        after = next;
        if after.is_none() {
            break;
        }
    }
    space::close(client)?;
    Ok(ExitCode::SUCCESS)
}

fn line(format: RowFormat, layout: &Layout, row: Datum) -> String {
    match format {
        RowFormat::Csv => file::cells(layout, row),
        RowFormat::Jsonl => to_json(row).to_string(),
    }
}
