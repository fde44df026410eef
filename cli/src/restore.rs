//! `tercel restore`.

use std::process::ExitCode;

use serde_json::json;
use tercel::backup::restore;

use crate::args;
use crate::backup::{Bar, size};
use crate::fail::Outcome;
use crate::term::{Term, rate, thousands};

pub fn run(args: &args::Restore, term: &Term) -> Outcome {
    let bar = Bar::new(term);
    let restored = restore(&args.backup, &args.data, |p| bar.show(p))?;
    bar.clear();
    let seconds = restored.took.as_secs_f64();
    if args.json {
        say!(
            "{}",
            json!({
                "stamp": restored.stamp.0, "pages": restored.pages, "bytes": restored.bytes,
                "epoch_first": restored.epoch_first, "seconds": seconds, "data": args.data,
            })
        );
    } else {
        say!(
            "{} and restored up to commit {}: {} pages, {} in {:.1} s ({}); `tercel serve --data {}` serves it",
            term.green("sound"),
            restored.stamp,
            thousands(restored.pages),
            size(restored.bytes),
            seconds,
            rate(restored.bytes, seconds),
            args.data.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}
