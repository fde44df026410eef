//! Suite `rows`: rows of a table, in bulk and one by one, beside the embedded store that keeps our pages.
//!
//! A row has four fields: a number, which is its key, two texts and a number. Both stores have the same rows,
//! sync each commit, and take turns block by block. redb has them as a tree from the key to the other three.
//! SQLite is not beside: its library is C, and no crate of this workspace builds it. PostgreSQL is beside the
//! shop alone, for its programs come with the system.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use tercel::collections::Table;
use tercel::collections::table::Row as TableRow;
use tercel::{Client, ClientConfig, Error, Object, ServerConfig, Text, Tx};

use super::blocks::{Pairs, alternate};
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::{COMMIT, Options, hot, shop, told};

#[derive(Object)]
#[table(key = id)]
struct Plain {
    id: u64,
    name: Text,
    city: Text,
    amount: u64,
}

/// The same with an index on each other field.
#[derive(Object)]
#[table(key = id, index(name), index(city, amount), index(amount))]
struct Indexed {
    id: u64,
    name: Text,
    city: Text,
    amount: u64,
}

/// The rows of redb.
const ROWS: TableDefinition<'_, u64, (&str, &str, u64)> = TableDefinition::new("rows");

/// The amount of work.
#[derive(Clone, Copy)]
struct Size {
    /// Rows in the end.
    rows: u64,
    /// Pairs of blocks in which they are inserted.
    blocks: usize,
    /// Random reads of a block.
    reads: u64,
    /// Durable updates of a block.
    updates: u64,
    /// Pairs of blocks of every other row.
    rounds: usize,
}

const FULL: Size = Size { rows: 300_000, blocks: 10, reads: 200_000, updates: 300, rounds: 9 };
const QUICK: Size = Size { rows: 30_000, blocks: 5, reads: 30_000, updates: 60, rounds: 5 };

/// Rows that one transaction inserts.
const TOGETHER: u64 = 1_000;

/// Bytes of our cache: room for everything. redb's has 1 GiB.
const CACHE_BYTES: usize = 512 << 20;

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    let size = if options.quick { QUICK } else { FULL };
    let scratch = Scratch::new(options.dir.as_deref(), "rows")?;
    let report = |rows| Report { suite: "rows", commit: COMMIT, machine: Machine::here("embedded"), rows };
    if !options.only.is_empty() {
        return Ok(report(indexes(size, &scratch, options)?));
    }
    let mut ours = Ours::<Plain>::open(&scratch.join("ours"))?;
    let mut redb = Redb::open(scratch.join("rows.redb"))?;

    options.say("inserting");
    let per_block = size.rows / size.blocks as u64;
    let (mut to_redb, mut to_ours) = (0, 0);
    let insert = alternate(
        size.blocks,
        || redb.insert(next(&mut to_redb, per_block)),
        || ours.insert(next(&mut to_ours, per_block), plain),
    )?;
    let inserted = row("rows.insert.1000", &insert, size.rows)
        .note(format!(
            "{} rows of four fields, {TOGETHER} a durable commit, keys rising; SQLite is left out, its library is C",
            size.rows
        ));

    options.say("reading");
    // The first block of each warms its cache.
    redb.read(size)?;
    ours.read(size)?;
    let read = alternate(size.rounds, || redb.read(size), || ours.read(size))?;
    redb.scan(size)?;
    ours.scan(size)?;
    let hot = alternate(size.rounds, || redb.scan(size), || ours.scan(size))?;

    options.say("updating");
    let update = alternate(size.rounds, || redb.update(size), || ours.update(size))?;

    options.say("opening again");
    let mut cold = Pairs::default();
    let mut reopen = Pairs::default();
    for _ in 0..size.rounds {
        ours.close()?;
        redb.close();
        let opened = (redb.reopen()?, ours.reopen()?);
        reopen.pairs.push(opened);
        let first = redb.scan(size)?;
        cold.pairs.push((first, ours.scan(size)?));
    }
    ours.close()?;
    redb.close();
    let disk = Pairs { pairs: vec![(bytes_in(&redb.path)?, bytes_in(&ours.dir)?)] };

    let indexed = indexes(size, &scratch, options)?;
    let contended = hot::run(options, &scratch)?;
    let watched = told::run(options, &scratch)?;
    let sold = shop::run(options, &scratch)?;
    let rounds = size.rounds as u64;
    let mut rows = vec![
        inserted,
        row("rows.get.hot", &read, size.reads * rounds).note("one row by its key, keys at random"),
        row("rows.scan.hot", &hot, size.rows * rounds).note("all rows in the order of keys, a field of each"),
        row("rows.scan.cold", &cold, size.rows * rounds)
            .note("the first after the store was opened again; files are in the system's memory"),
        Row::compared("rows.update.one", "commits/s", &update, "redb", size.updates * rounds)
            .note("one row a durable commit, one after the other"),
        Row::compared("rows.reopen", "ms", &reopen, "redb", rounds)
            .note("from opening to the first row; the store was closed cleanly"),
        Row::compared("rows.disk", "bytes", &disk, "redb", size.rows).note("all files after a clean stop"),
    ];
    rows.extend(indexed);
    rows.extend(contended);
    rows.push(watched);
    rows.extend(sold);
    Ok(report(rows))
}

/// The row of `--only`: rows that are inserted together, with indexes and without.
pub const INDEX: &str = "index";

fn indexes(size: Size, scratch: &Scratch, options: &Options) -> Result<Vec<Row>, String> {
    options.say("inserting with indexes");
    let bare = Ours::<Plain>::open(&scratch.join("bare"))?;
    let to_other = Redb::open(scratch.join("bare.redb"))?;
    let indexed = Ours::<Indexed>::open(&scratch.join("indexed"))?;
    let (mut to_bare, mut to_indexed, mut to_redb) = (0, 0, size.rows);
    let per_block = size.rows / size.blocks as u64;
    let together = alternate(
        size.blocks,
        || to_other.insert(next(&mut to_redb, per_block)),
        || bare.insert_all(next(&mut to_bare, per_block), plain),
    )?;
    let index = alternate(
        size.blocks,
        || bare.insert_all(next(&mut to_bare, per_block / 2), plain),
        || indexed.insert_all(next(&mut to_indexed, per_block / 2), with_indexes),
    )?;
    indexed.check()?;
    Ok(vec![
        row("rows.insert.together", &together, size.rows)
            .note("rows of one leaf are one change of it, by `Table::insert_all`"),
        Row::compared("rows.index.insert", "rows/s", &index, "rows.insert.bare", size.rows / 2)
            .note("three indexes: (name), (city, amount), (amount), by `insert_all`; the limit is the table without any"),
    ])
}

fn row(id: &str, pairs: &Pairs, n: u64) -> Row {
    Row::compared(id, "rows/s", pairs, "redb", n)
}

/// The numbers of the rows of the next block.
fn next(done: &mut u64, n: u64) -> Range<u64> {
    *done += n;
    *done - n..*done
}

/// The rows of a number a second.
fn rate(n: u64, since: Instant) -> f64 {
    n as f64 / since.elapsed().as_secs_f64()
}

fn name(n: u64) -> String {
    format!("customer {}", scattered(n) >> 34)
}

fn city(n: u64) -> String {
    format!("city {}", scattered(n) % 997)
}

fn amount(n: u64) -> u64 {
    scattered(n) % 100_000
}

fn plain(id: u64) -> Plain {
    Plain { id, name: name(id).into(), city: city(id).into(), amount: amount(id) }
}

fn with_indexes(id: u64) -> Indexed {
    Indexed { id, name: name(id).into(), city: city(id).into(), amount: amount(id) }
}

/// A number without order, different for each `n`.
fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes().wrapping_mul(0xd134_2543_de82_ef95)
}

/// The key of a read.
fn chosen(i: u64, size: Size) -> u64 {
    scattered(i) % size.rows
}

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// A space with a table.
struct Ours<T: TableRow> {
    dir: PathBuf,
    client: Option<Client>,
    table: Table<T>,
}

impl<T: TableRow> Ours<T> {
    fn open(dir: &Path) -> Result<Ours<T>, String> {
        let client = embedded(dir)?;
        let table = client.run(|tx| Table::root(tx, "rows")).map_err(failed)?;
        Ok(Ours { dir: dir.into(), client: Some(client), table })
    }

    fn client(&self) -> Result<&Client, String> {
        self.client.as_ref().ok_or_else(|| "the space is closed".into())
    }

    /// Inserts rows one by one.
    fn insert(&self, rows: Range<u64>, make: impl Fn(u64) -> T) -> Result<f64, String> {
        self.commits(rows, |tx, mut rows| rows.try_for_each(|n| self.table.insert(tx, &make(n)).map(drop)))
    }

    /// Inserts the rows of a commit at once.
    fn insert_all(&self, rows: Range<u64>, make: impl Fn(u64) -> T) -> Result<f64, String> {
        self.commits(rows, |tx, rows| self.table.insert_all(tx, rows.map(&make)))
    }

    fn commits(
        &self,
        rows: Range<u64>,
        insert: impl Fn(&Tx<'_>, Range<u64>) -> Result<(), Error>,
    ) -> Result<f64, String> {
        let (client, n) = (self.client()?, rows.end - rows.start);
        let begin = Instant::now();
        for from in rows.clone().step_by(TOGETHER as usize) {
            client.run(|tx| insert(tx, from..(from + TOGETHER).min(rows.end))).map_err(failed)?;
        }
        Ok(rate(n, begin))
    }

    fn check(&self) -> Result<(), String> {
        match self.client()?.run(|tx| self.table.check(tx)).map_err(failed)? {
            wrong if wrong.is_empty() => Ok(()),
            wrong => Err(format!("an index differs from its rows: {}", wrong[0])),
        }
    }

    fn close(&mut self) -> Result<(), String> {
        self.client.take().map_or(Ok(()), |client| client.close().map_err(failed))
    }
}

fn embedded(dir: &Path) -> Result<Client, String> {
    let config = ClientConfig { cache_bytes: CACHE_BYTES, ..ClientConfig::default() };
    tercel::embedded_with(ServerConfig::new(dir), config).map_err(failed)
}

impl Ours<Plain> {
    fn read(&self, size: Size) -> Result<f64, String> {
        let (client, begin) = (self.client()?, Instant::now());
        let sum = client.run(|tx| {
            (0..size.reads)
                .try_fold(0u64, |sum, i| Ok(sum.wrapping_add(self.table.get(tx, chosen(i, size))?.id())))
        });
        is_right(sum.map_err(failed)?, size)?;
        Ok(rate(size.reads, begin))
    }

    fn scan(&self, size: Size) -> Result<f64, String> {
        let (client, begin) = (self.client()?, Instant::now());
        let count = client.run(|tx| {
            self.table.iter(tx).try_fold(0u64, |count, row| Ok(count + u64::from(row?.id() < size.rows)))
        });
        is_whole(count.map_err(failed)?, size)?;
        Ok(rate(size.rows, begin))
    }

    fn update(&self, size: Size) -> Result<f64, String> {
        let (client, begin) = (self.client()?, Instant::now());
        for i in 0..size.updates {
            let update = client.run(|tx| self.table.edit(tx, chosen(i, size))?.set_amount(i));
            update.map_err(failed)?;
        }
        Ok(rate(size.updates, begin))
    }

    /// Milliseconds from opening to the first row.
    fn reopen(&mut self) -> Result<f64, String> {
        let begin = Instant::now();
        let client = embedded(&self.dir)?;
        client.run(|tx| Table::<Plain>::root(tx, "rows")?.get(tx, 1).map(|row| row.id())).map_err(failed)?;
        self.client = Some(client);
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    }
}

fn is_right(sum: u64, size: Size) -> Result<(), String> {
    let expected = (0..size.reads).fold(0u64, |sum, i| sum.wrapping_add(chosen(i, size)));
    if sum == expected { Ok(()) } else { Err("other rows were read than were asked for".into()) }
}

fn is_whole(count: u64, size: Size) -> Result<(), String> {
    if count == size.rows { Ok(()) } else { Err(format!("{count} rows were found of {}", size.rows)) }
}

/// The same rows in redb.
struct Redb {
    path: PathBuf,
    database: Option<Database>,
}

impl Redb {
    fn open(path: PathBuf) -> Result<Redb, String> {
        let database = Some(Database::create(&path).map_err(failed)?);
        Ok(Redb { path, database })
    }

    fn database(&self) -> Result<&Database, String> {
        self.database.as_ref().ok_or_else(|| "redb is closed".into())
    }

    fn insert(&self, rows: Range<u64>) -> Result<f64, String> {
        let (database, n) = (self.database()?, rows.end - rows.start);
        let begin = Instant::now();
        for from in rows.clone().step_by(TOGETHER as usize) {
            let tx = database.begin_write().map_err(failed)?;
            {
                let mut table = tx.open_table(ROWS).map_err(failed)?;
                for n in from..(from + TOGETHER).min(rows.end) {
                    table.insert(n, (&*name(n), &*city(n), amount(n))).map_err(failed)?;
                }
            }
            tx.commit().map_err(failed)?;
        }
        Ok(rate(n, begin))
    }

    fn read(&self, size: Size) -> Result<f64, String> {
        let (database, begin) = (self.database()?, Instant::now());
        let table = database.begin_read().map_err(failed)?.open_table(ROWS).map_err(failed)?;
        let mut sum = 0u64;
        for i in 0..size.reads {
            let key = chosen(i, size);
            let row = table.get(key).map_err(failed)?.ok_or("a row is missing")?;
            sum = sum.wrapping_add(if row.value().2 < u64::MAX { key } else { 0 });
        }
        is_right(sum, size)?;
        Ok(rate(size.reads, begin))
    }

    fn scan(&self, size: Size) -> Result<f64, String> {
        let (database, begin) = (self.database()?, Instant::now());
        let table = database.begin_read().map_err(failed)?.open_table(ROWS).map_err(failed)?;
        let mut count = 0;
        for entry in table.iter().map_err(failed)? {
            let (key, row) = entry.map_err(failed)?;
            count += u64::from(key.value() < size.rows && row.value().2 < u64::MAX);
        }
        is_whole(count, size)?;
        Ok(rate(size.rows, begin))
    }

    fn update(&self, size: Size) -> Result<f64, String> {
        let (database, begin) = (self.database()?, Instant::now());
        for i in 0..size.updates {
            let key = chosen(i, size);
            let tx = database.begin_write().map_err(failed)?;
            {
                let mut table = tx.open_table(ROWS).map_err(failed)?;
                let (name, city) = match table.get(key).map_err(failed)? {
                    Some(row) => (row.value().0.to_owned(), row.value().1.to_owned()),
                    None => return Err("a row is missing".into()),
                };
                table.insert(key, (&*name, &*city, i)).map_err(failed)?;
            }
            tx.commit().map_err(failed)?;
        }
        Ok(rate(size.updates, begin))
    }

    fn close(&mut self) {
        self.database = None;
    }

    fn reopen(&mut self) -> Result<f64, String> {
        let begin = Instant::now();
        let database = Database::open(&self.path).map_err(failed)?;
        let table = database.begin_read().map_err(failed)?.open_table(ROWS).map_err(failed)?;
        table.get(1).map_err(failed)?.ok_or("a row is missing")?;
        self.database = Some(database);
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    }
}

/// Bytes of a file, or of all files in a directory.
fn bytes_in(path: &Path) -> Result<f64, String> {
    let meta = std::fs::metadata(path).map_err(failed)?;
    if !meta.is_dir() {
        return Ok(meta.len() as f64);
    }
    let entries = std::fs::read_dir(path).map_err(failed)?;
    entries.map(|entry| bytes_in(&entry.map_err(failed)?.path())).sum()
}
