//! `tercel gc`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;
use tercel::status::Collected;
use tercel::{Client, ServerError, ServerStatus};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::{ProgressBar, Term, count, say, tell, thousands};

use crate::args;
use crate::backup::size;
use crate::space;

/// The exit code of a command that may succeed later.
const NOT_NOW: u8 = 75;
/// Time between two questions to the server about its progress.
const LOOK: Duration = Duration::from_millis(100);

pub fn run(args: &args::Gc, term: &Term) -> Outcome {
    let client = space::open_to_collect(&args.space)?;
    let begun = Instant::now();
    let asked = client.begin_collection(args.dry_run)?;
    let (view, ticket) = (asked.view, asked.pages.collection_ticket);
    let bar = term.bar(0, tercel_term::THINGS, "waiting for the collection before");
    let is_done =
        |s: &ServerStatus| s.leading.as_ref().is_some_and(|leading| leading.collection.done >= ticket);
    let status = wait(&client, &bar, Some(view), is_done)?;
    let report = status.leading.as_ref().and_then(|leading| leading.collection.last.clone());
    let report = report.unwrap_or_default();
    if let Some(why) = &report.failed {
        bar.finish_and_clear();
        return Err(Failure::new(format!("nothing was collected: {why}")));
    }
    let exports = client.run(|tx| tx.exports())?.len() as u64;
    let left = match args.dry_run {
        true => status,
        false => wait(&client, &bar, None, |s| s.pages.trees_released == 0)?,
    };
    bar.finish_and_clear();
    let seconds = begun.elapsed().as_secs_f64();
    if args.json {
        let mut shown = json!(report);
        shown["seconds"] = json!(seconds);
        shown["exports"] = json!(exports);
        say!("{shown}");
    } else {
        tell(&report, args, term, seconds);
        if exports > 0 {
            say!("{} kept by an export, with all that they lead to", count(exports, "object", "objects"));
        }
        if !args.dry_run && left.pages.pages_returned > 0 {
            say!("{} of 8 KB now wait to be used again", count(left.pages.pages_returned, "page", "pages"));
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

fn tell(report: &Collected, args: &args::Gc, term: &Term, seconds: f64) {
    let objects = count(report.objects, "object", "objects");
    let (word, would) = match args.dry_run {
        true => ("dry run", "would go"),
        false => ("collected", "went"),
    };
    tell!(
        "{}: {objects} that no root reaches {would}, {} without their large values; {} stay ({seconds:.1} s)",
        term.green(word),
        size(report.bytes),
        thousands(report.reached),
    );
    say!(
        "in {} of 8 KB: {} live, {} garbage with its large values, {} free",
        count(report.room.pages_counted, "page", "pages"),
        size(report.room.live_bytes),
        size(report.room.garbage_bytes),
        size(report.room.free_bytes),
    );
    for of in &report.classes {
        let class = if of.class.is_empty() { "of no class" } else { &of.class };
        say!("  {:>12} {class}, such as {}", thousands(of.objects), of.examples.join(" "));
    }
}

/// Asks the server until `is_done`; meanwhile the bar says how far it is. Fails if another view begins than
/// that in which the collection was asked for: it ended with that.
fn wait(
    client: &Client,
    bar: &ProgressBar,
    view: Option<u64>,
    is_done: impl Fn(&ServerStatus) -> bool,
) -> Result<ServerStatus, Failure> {
    loop {
        let status = client.server_status()?;
        if view.is_some_and(|view| status.view != view) {
            bar.finish_and_clear();
            let failure =
                Failure::new("the server ended, or another one leads now, before the collection was over");
            return Err(failure
                .next("run the same command again: it begins anew, and nothing is lost")
                .code(NOT_NOW));
        }
        if is_done(&status) {
            return Ok(status);
        }
        show(&status, bar);
        std::thread::sleep(LOOK);
    }
}

fn show(status: &ServerStatus, bar: &ProgressBar) {
    let Some(leading) = &status.leading else { return };
    let (collection, pages) = (&leading.collection, status.pages.pages);
    let (what, done, total) = match collection.phase.as_str() {
        "mark" => ("objects reached", collection.reached, 0),
        "sweep" => ("looking through pages", collection.page, pages),
        "grace" => ("waiting for the time of grace", collection.out_of_reach, 0),
        "stage" | "free" => ("freeing", collection.page, pages),
        _ => ("freeing large values", status.pages.trees_released, 0),
    };
    bar.set_message(what);
    bar.set_length(total.max(done));
    bar.set_position(done);
}
