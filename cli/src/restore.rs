//! `tercel restore`.

use std::process::ExitCode;

use serde_json::json;
use tercel::backup::restore;
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
