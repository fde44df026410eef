//! `tercel backup`.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tercel::Address;
use tercel::backup::{Progress, Source, backup};
use tercel_term::fail::Outcome;
use tercel_term::tidy;
use tercel_term::{ProgressBar, Term, count, rate, say, tell};

use crate::args;

pub fn run(args: &args::Backup, term: &Term) -> Outcome {
    let source = match (&args.data, &args.server) {
        (Some(data), _) => Source::Directory(data.clone()),
        (None, Some(address)) => Source::Server(address.clone()),
        (None, None) => Source::Server(Address::default_tcp().into()),
    };
    let dir = args.dir.clone();
    tidy::on_signals(move || unfinished("backup", &dir))?;
    let bar = Bar::new(term);
    let taken = backup(&source, &args.dir, |p| bar.show(p))?;
    bar.clear();
    let seconds = taken.took.as_secs_f64();
    if args.json {
        say!(
            "{}",
            json!({
                "stamp": taken.stamp.0, "pages": taken.pages, "bytes": taken.bytes, "seconds": seconds,
                "dir": args.dir,
            })
        );
    } else {
        tell!(
            "{} up to commit {}: {}, {} in {:.1} s ({}); `tercel restore {} --data NEW` makes a space of it",
            term.green("backup"),
            taken.stamp,
            count(taken.pages, "page", "pages"),
            size(taken.bytes),
            seconds,
            rate(taken.bytes, seconds),
            args.dir.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The message for a copy that a signal ended.
pub fn unfinished(what: &str, dir: &Path) -> String {
    match dir.exists() {
        false => format!("interrupted: nothing was made, {} does not exist", dir.display()),
        true => format!(
            "interrupted: the {what} in {} is unfinished and known as such, if it was begun; run the same command again, or remove it",
            dir.display()
        ),
    }
}

/// The progress of a backup, as a bar.
pub struct Bar(ProgressBar);

impl Bar {
    pub fn new(term: &Term) -> Bar {
        Bar(term.bar(0, tercel_term::THINGS, "starting"))
    }

    pub fn show(&self, p: Progress) {
        self.0.set_message(p.what);
        self.0.set_length(p.total);
        self.0.set_position(p.done);
    }

    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
