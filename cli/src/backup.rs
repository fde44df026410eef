//! `tercel backup`.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tercel::Address;
use tercel::backup::{Progress, Source, Taken, backup, backup_set};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::tidy;
use tercel_term::{ProgressBar, Term, count, rate, say, tell};

use crate::args;

pub fn run(args: &args::Backup, term: &Term) -> Outcome {
    if !args.named.is_empty() {
        return of_several(args, &args.named, term);
    }
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

/// Backups of several spaces that fit each other.
fn of_several(args: &args::Backup, named: &[args::Named], term: &Term) -> Outcome {
    let spaces = named.iter().map(|one| Some((one.name.clone()?, one.at.clone())));
    let spaces: Option<Vec<_>> = spaces.collect();
    let spaces = spaces.ok_or_else(|| {
        let failure = Failure::new("of several servers, each needs a name for its space");
        failure.next("say `--server NAME=ADDR` for each").code(2)
    })?;
    let dir = args.dir.clone();
    tidy::on_signals(move || unfinished("backup", &dir))?;
    let bar = Bar::new(term);
    let taken = backup_set(&spaces, &args.dir, |p| bar.show(p))?;
    bar.clear();
    let dir = args.dir.display();
    if args.json {
        let spaces = taken.spaces.iter().map(|(name, of)| {
            let Taken { stamp, pages, bytes, .. } = of;
            json!({ "space": name, "stamp": stamp.0, "pages": pages, "bytes": bytes })
        });
        say!("{}", json!({ "spaces": spaces.collect::<Vec<_>>(), "dir": args.dir }));
        return Ok(ExitCode::SUCCESS);
    }
    for (name, of) in &taken.spaces {
        tell!(
            "{} of {name} up to commit {}: {}, {}",
            term.green("backup"),
            of.stamp,
            count(of.pages, "page", "pages"),
            size(of.bytes)
        );
    }
    tell!("they fit each other; `tercel restore {dir} --data NEW` makes spaces of them");
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
