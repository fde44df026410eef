//! `tercel restore`.

use std::process::ExitCode;

use serde_json::json;
use tercel::backup::{is_set, misfits, restore, restore_set};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::tidy;
use tercel_term::{Term, count, rate, say, tell};

use crate::args;
use crate::backup::{Bar, size, unfinished};

pub fn run(args: &args::Restore, term: &Term) -> Outcome {
    if let Err(e) = std::fs::metadata(&args.backup) {
        return Err(Failure::new(format!("cannot look into {}: {e}", args.backup.display()))
            .next("name a directory that `tercel backup` has made")
            .code(2));
    }
    let data = args.data.clone();
    tidy::on_signals(move || unfinished("restore", &data))?;
    if is_set(&args.backup) {
        return of_several(args, term);
    }
    // What is damaged is for the restore to say.
    for misfit in misfits(&args.backup).unwrap_or_default() {
        tell!("{} {misfit}", term.bold("alone:"));
    }
    let bar = Bar::new(term);
    let restored = restore(&args.backup, &args.data, |p| bar.show(p))?;
    bar.clear();
    let seconds = restored.took.as_secs_f64();
    if args.json {
        say!(
            "{}",
            json!({
                "stamp": restored.stamp.0, "pages": restored.pages, "bytes": restored.bytes,
                "view_first": restored.view_first, "seconds": seconds, "data": args.data,
            })
        );
    } else {
        tell!(
            "{} and restored up to commit {}: {}, {} in {:.1} s ({}); `tercel serve --data {}` serves it",
            term.green("sound"),
            restored.stamp,
            count(restored.pages, "page", "pages"),
            size(restored.bytes),
            seconds,
            rate(restored.bytes, seconds),
            args.data.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The spaces of a set of backups.
fn of_several(args: &args::Restore, term: &Term) -> Outcome {
    let bar = Bar::new(term);
    let restored = restore_set(&args.backup, &args.data, |p| bar.show(p))?;
    bar.clear();
    if args.json {
        let spaces = restored.spaces.iter().map(|(name, of)| {
            json!({
                "space": name, "stamp": of.stamp.0, "pages": of.pages, "bytes": of.bytes,
                "view_first": of.view_first, "data": args.data.join(name),
            })
        });
        let spaces: Vec<_> = spaces.collect();
        say!("{}", json!({ "spaces": spaces, "settled": restored.settled, "misfits": restored.misfits }));
        return Ok(ExitCode::SUCCESS);
    }
    for (name, of) in &restored.spaces {
        tell!(
            "{} and restored {name} up to commit {}: {}, {}; `tercel serve --data {}` serves it",
            term.green("sound"),
            of.stamp,
            count(of.pages, "page", "pages"),
            size(of.bytes),
            args.data.join(name).display()
        );
    }
    if restored.settled > 0 {
        tell!(
            "{} of transactions over several of them settled",
            count(restored.settled as u64, "part", "parts")
        );
    }
    restored.misfits.iter().for_each(|misfit| tell!("{} {misfit}", term.bold("next:")));
    Ok(ExitCode::SUCCESS)
}
