//! `tercel check`.

use std::process::ExitCode;

use serde_json::json;

use crate::args;
use crate::fail::{Failure, Outcome};
use crate::term::{THINGS, Term, thousands};

/// The exit code when something is wrong with the data.
const UNSOUND: u8 = 3;

pub fn run(args: &args::Check, term: &Term) -> Outcome {
    if !args.data.join("format").exists() {
        return Err(Failure::new(format!("{} is not a data directory of Tercel", args.data.display()))
            .next("name one that `tercel serve` or `tercel import` made")
            .code(2));
    }
    let bar = term.bar(0, THINGS, "checking pages");
    let report = tercel::check::check(&args.data, |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    if args.json {
        say!(
            "{}",
            json!({
                "sound": report.is_sound(), "pages": report.pages, "objects": report.objects,
                "references": report.references, "log_records": report.log_records, "torn": report.torn,
                "stamp": report.stamp.0, "wrong": report.wrong, "findings": report.findings,
            })
        );
    } else {
        report.findings.iter().for_each(|f| say!("{} {f}", term.red("wrong:")));
        if report.torn {
            say!("the log ended in an unfinished write that nobody had been told of; it was cut");
        }
        let verdict = if report.is_sound() {
            term.green("sound")
        } else {
            term.red(&format!("{} things are wrong", thousands(report.wrong)))
        };
        say!(
            "{verdict}: {} pages, {} objects, {} references, {} log records, up to commit {}",
            thousands(report.pages),
            thousands(report.objects),
            thousands(report.references),
            thousands(report.log_records),
            report.stamp
        );
    }
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) })
}
