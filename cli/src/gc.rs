//! `tercel gc`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tercel::{Client, ServerError};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::{ProgressBar, Term, count, say, tell, thousands};

use crate::args;
use crate::backup::size;
use crate::space;

/// Time between two questions to the server about its progress.
const LOOK: Duration = Duration::from_millis(100);

pub fn run(args: &args::Gc, term: &Term) -> Outcome {
    let client = space::open_to_collect(&args.space)?;
    let begun = Instant::now();
    let status = parse(&client.begin_collection(args.dry_run)?)?;
    let ticket = number(&status["collection_ticket"])
        .ok_or_else(|| Failure::new("the server has no collector: it is of an earlier version"))?;
    let bar = term.bar(0, tercel_term::THINGS, "waiting for the collection before");
    let status =
        wait(&client, &bar, |s| number(&s["collection"]["done"]).is_some_and(|done| done >= ticket))?;
    let report = status["collection"]["last"].clone();
    if let Some(why) = report["failed"].as_str() {
        bar.finish_and_clear();
        return Err(Failure::new(format!("nothing was collected: {why}")));
    }
    let exports = client.run(|tx| tx.exports())?.len() as u64;
    let left = match args.dry_run {
        true => status,
        false => wait(&client, &bar, |s| number(&s["trees_released"]) == Some(0))?,
    };
    bar.finish_and_clear();
    let seconds = begun.elapsed().as_secs_f64();
    if args.json {
        let mut shown = report;
        shown["seconds"] = json!(seconds);
        shown["exports"] = json!(exports);
        say!("{shown}");
    } else {
        tell(&report, args, term, seconds);
        if exports > 0 {
            say!("{} kept by an export, with all that they lead to", count(exports, "object", "objects"));
        }
        if !args.dry_run && number(&left["pages_returned"]).is_some_and(|pages| pages > 0) {
            say!(
                "{} of 8 KB now wait to be used again",
                count(number(&left["pages_returned"]).unwrap_or(0), "page", "pages")
            );
        }
    }
    space::close(client)?;
    if let (Some(dir), false) = (&args.space.data, args.dry_run) {
        let bar = term.bar(0, tercel_term::THINGS, "giving room back to the file system");
        let (before, after) = tercel::tools::compact(dir).map_err(ServerError::from)?;
        bar.finish_and_clear();
        if !args.json && after < before {
            say!("the page store's file went from {} to {}", size(before), size(after));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(report: &Value, args: &args::Gc, term: &Term, seconds: f64) {
    let of = |name: &str| number(&report[name]).unwrap_or(0);
    let objects = count(of("objects"), "object", "objects");
    let (word, would) = match args.dry_run {
        true => ("dry run", "would go"),
        false => ("collected", "went"),
    };
    tell!(
        "{}: {objects} that no root reaches {would}, {} without their large values; {} stay ({seconds:.1} s)",
        term.green(word),
        size(of("bytes")),
        thousands(of("reached")),
    );
    // A server of before does not count them.
    if !report["live_bytes"].is_null() {
        say!(
            "in {} of 8 KB: {} live, {} garbage with its large values, {} free",
            count(of("pages_counted"), "page", "pages"),
            size(of("live_bytes")),
            size(of("garbage_bytes")),
            size(of("free_bytes")),
        );
    }
    for class in report["classes"].as_array().into_iter().flatten() {
        let examples: Vec<&str> =
            class["examples"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        say!(
            "  {:>12} {}, such as {}",
            thousands(number(&class["objects"]).unwrap_or(0)),
            class["class"].as_str().unwrap_or("of no class"),
            examples.join(" ")
        );
    }
}

/// Asks the server until `is_done`; meanwhile the bar says how far it is.
fn wait(client: &Client, bar: &ProgressBar, is_done: impl Fn(&Value) -> bool) -> Result<Value, Failure> {
    loop {
        let status = parse(&client.server_status()?)?;
        if is_done(&status) {
            return Ok(status);
        }
        show(&status, bar);
        std::thread::sleep(LOOK);
    }
}

fn show(status: &Value, bar: &ProgressBar) {
    let collection = &status["collection"];
    let of = |name: &str| number(&collection[name]).unwrap_or(0);
    let (what, done, total) = match collection["phase"].as_str() {
        Some("mark") => ("objects reached", of("reached"), 0),
        Some("sweep") => ("looking through pages", of("page"), number(&status["pages"]).unwrap_or(0)),
        Some("grace") => ("waiting for the time of grace", of("out_of_reach"), 0),
        Some("stage" | "free") => ("freeing", of("page"), number(&status["pages"]).unwrap_or(0)),
        _ => ("freeing large values", number(&status["trees_released"]).unwrap_or(0), 0),
    };
    bar.set_message(what);
    bar.set_length(total.max(done));
    bar.set_position(done);
}

fn parse(status: &str) -> Result<Value, Failure> {
    serde_json::from_str(status).map_err(|e| Failure::new(format!("the server's status: {e}")))
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64()
}
