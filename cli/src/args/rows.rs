//! The command lines of rows: `load` and `dump`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

use super::Space;

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel load seats seats.csv --data ./shop
  tercel load seats seats.jsonl --class Seat --strict
  tercel dump seats --data ./shop | tercel load seats /dev/stdin --format jsonl

The first line of a CSV file names all fields, each once. A line of JSON is an object by field. Lines that are no row, or whose \
key is taken, are left out and told by number; with --strict the whole file is read before, and refused if any line is no row. \
Rows go in 1,000 a commit, so a load that is broken off has loaded some: run it again, and what is there is told. The exit code is 1 if no line was a row.")]
pub struct Load {
    /// The table: a root, or a reference PAGE.SLOT
    pub root: String,
    /// The file, .csv or .jsonl, in any order
    pub file: PathBuf,
    /// Refuse a table of rows of another class
    #[arg(long, value_name = "CLASS")]
    pub class: Option<String>,
    /// The form of the file; else as its name ends
    #[arg(long, value_name = "FORM", value_enum)]
    pub format: Option<RowFormat>,
    /// Refuse a file with a line that is no row, before anything is inserted, and stop at a key that is taken
    #[arg(long)]
    pub strict: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub space: Space,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tercel dump seats --data ./shop > seats.jsonl
  tercel dump seats --format csv

The rows of 1,000 keys are of one moment. What others commit meanwhile may be among those that follow.")]
pub struct Dump {
    /// The table: a root, or a reference PAGE.SLOT
    pub root: String,
    /// Refuse a table of rows of another class
    #[arg(long, value_name = "CLASS")]
    pub class: Option<String>,
    /// The form of the rows
    #[arg(long, value_name = "FORM", value_enum, default_value_t = RowFormat::Jsonl)]
    pub format: RowFormat,
    #[command(flatten)]
    pub space: Space,
}

/// The form of a file of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RowFormat {
    /// A first line of names, then a line a row, with commas
    Csv,
    /// An object of JSON a line
    Jsonl,
}
