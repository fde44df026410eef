//! `tercel check`.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use tercel::backup::{BackupError, Verified, is_backup, is_set};
use tercel::check::{CheckError, Finding, Kind, LOST_NAME, Repaired, Report};
use tercel::tools::disk::dir::is_member;
use tercel_term::fail::{Failure, Outcome, anew};
use tercel_term::tidy;
use tercel_term::{THINGS, Term, count, say, tell};

use crate::args;

/// The exit code when something is wrong with the data.
const UNSOUND: u8 = 3;

pub fn run(args: &args::Check, term: &Term) -> Outcome {
    if is_set(&args.data) {
        let dir = args.data.display();
        return Err(Failure::new(format!("{dir} is a set of backups"))
            .next(format!("check each of them: `tercel check --data {dir}/NAME`"))
            .code(2));
    }
    look(&args.data)?;
    let (repairs, data) = (args.repair, args.data.display().to_string());
    tidy::on_signals(move || match repairs {
        false => "interrupted: nothing was changed, for a check only reads".into(),
        true => format!(
            "interrupted: every damaged file that was replaced is kept; run the same command again to finish the repair of {data}"
        ),
    })?;
    let bar =
        term.bar(0, THINGS, if args.repair { "checking and repairing pages" } else { "checking pages" });
    let progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let failed = |e: CheckError| Failure::from(e).in_directory(&args.data);
    let whole = if args.repair {
        let repaired = tercel::check::repair(&args.data, progress).map_err(failed)?;
        bar.finish_and_clear();
        if args.json {
            say!("{}", repair_as_json(&repaired));
        } else {
            tell_repair(&repaired, &args.data, term);
        }
        repaired.after.is_whole()
    } else if is_backup(&args.data) {
        let verified =
            tercel::backup::verify(&args.data, |p| progress(p.done, p.total)).map_err(of_backup)?;
        bar.finish_and_clear();
        if args.json {
            let json = backup_as_json(&verified);
            say!("{json}");
        } else {
            tell_backup(&verified, &args.data, term);
        }
        verified.is_sound()
    } else {
        let report = tercel::check::check(&args.data, progress).map_err(failed)?;
        bar.finish_and_clear();
        if args.json {
            say!("{}", as_json(&report));
        } else {
            tell(&report, &args.data, term);
            if !report.is_sound() {
                let data = args.data.display();
                let next = match is_member(&args.data) {
                    _ if is_of_indexes(&report) => STALE_INDEX.into(),
                    true => anew(&args.data),
                    false => format!(
                        "`tercel check --data {data} --repair` restores what pages and log still hold; it keeps the damaged files"
                    ),
                };
                tell!("{} {next}", term.bold("next:"));
            }
        }
        report.is_whole()
    };
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) })
}

/// Sees that something is there which may be a data directory, damaged or not.
fn look(data: &Path) -> Result<(), Failure> {
    let made = "name one that `tercel serve` or `tercel import` made";
    let refused = |e: std::io::Error| {
        let failure = Failure::new(format!("cannot look into {}: {e}", data.display()));
        match e.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => failure.next(made),
            _ => failure.next("check it as a user that may read it"),
        }
    };
    std::fs::metadata(data).map_err(refused)?;
    // Without the first two all of the data may still be there.
    for names in [&["format"][..], &["space.toml"], &["pages.redb", "log"]] {
        let mut are_there = true;
        for name in names {
            are_there &= data.join(name).try_exists().map_err(refused)?;
        }
        if are_there {
            return Ok(());
        }
    }
    Err(Failure::new(format!("{} is not a data directory of Tercel", data.display())).next(made))
}

/// Prints the result of the check of a backup.
fn tell_backup(verified: &Verified, data: &Path, term: &Term) {
    if let Some(what) = &verified.changed {
        tell!("{} this is not what was taken: {what}", term.red("wrong:"));
    }
    let report = &verified.report;
    report.findings.iter().for_each(|finding| tell!("{} {finding}", term.red("wrong:")));
    tell_of_more(report, term);
    let wrong = report.wrong + u64::from(verified.changed.is_some());
    let verdict = if verified.is_sound() { term.green("sound") } else { wrongs(wrong, term) };
    tell!("{verdict}: {}", sums(report));
    match verified.is_sound() {
        true => {
            tell!(
                "a backup, as it was taken: `tercel restore {} --data NEW` makes a space of it",
                data.display()
            )
        }
        false => tell!(
            "{} this is a backup; one that is damaged is neither restored nor repaired: take another one with `tercel backup`, \
             or restore another one",
            term.bold("next:")
        ),
    }
}

/// The remedy of indexes that differ from their rows: the rows are right.
const STALE_INDEX: &str = "the rows are right, and an index is not, as after a program that changed rows past their table: \
    have the program drop that index and declare it again by `Client::migrate`, or `tercel dump` the table and `tercel load` \
    a new one";

/// Says whether nothing is wrong but indexes.
fn is_of_indexes(report: &Report) -> bool {
    !report.findings.is_empty() && report.findings.iter().all(|finding| finding.kind == Kind::Index)
}

fn tell_repair(repaired: &Repaired, data: &Path, term: &Term) {
    let Repaired { before, done, kept, after } = repaired;
    if done.is_empty() {
        tell(before, data, term);
        if !before.is_sound() {
            match is_of_indexes(before) {
                true => tell!("{} {STALE_INDEX}", term.bold("next:")),
                false => tell!(
                    "nothing of this can be repaired from the files; restore a backup, or go on with the rest"
                ),
            }
        }
        return;
    }
    before.findings.iter().for_each(|f| tell!("{} {f}", term.red("found:")));
    tell_of_more(before, term);
    done.iter().for_each(|d| tell!("{} {d}", term.green("done:")));
    kept.iter().for_each(|k| tell!("{} {}", term.bold("kept:"), k.display()));
    tell(after, data, term);
}

fn tell(report: &Report, data: &Path, term: &Term) {
    for finding in &report.findings {
        // A repair could make a member unlike the others.
        let hope = if finding.repairable && !is_member(data) { " (can be repaired)" } else { "" };
        tell!("{} {finding}{hope}", term.red("wrong:"));
    }
    tell_of_more(report, term);
    if report.torn {
        tell!(
            "the log ends in what looks like a write that was never acknowledged; the next server cuts it off"
        );
    }
    if report.unfilled > 0 {
        // Of a space that was never repaired, "saved" would sound like a loss.
        let why = match report.lost.is_empty() {
            true => "since a program was interrupted before",
            false => "since a program was interrupted before, or where what was made could not be saved",
        };
        tell!(
            "{} to places in which nothing was made, {why}: reading one is answered \"not found\"",
            count(report.unfilled, "reference leads", "references lead")
        );
    }
    report.lost.iter().for_each(|line| tell!("{} {line}", term.red("lost:")));
    if !report.lost.is_empty() {
        tell!(
            "{} a backup may have what repairs could not save (`tercel restore`); once this is dealt with, remove {}, and a \
             check is about damage again",
            term.bold("next:"),
            data.join(LOST_NAME).display()
        );
    }
    let verdict = match (report.is_sound(), report.is_whole()) {
        (true, true) => term.green("sound"),
        (true, false) => term.red("nothing is damaged any more, and something is lost or may be"),
        _ => wrongs(report.wrong, term),
    };
    tell!("{verdict}: {}", sums(report));
}

fn wrongs(n: u64, term: &Term) -> String {
    term.red(&count(n, "thing is wrong", "things are wrong"))
}

/// The sums of a report, in a sentence.
fn sums(report: &Report) -> String {
    let exports = match report.exports {
        0 => String::new(),
        n => format!("{} kept by an export, ", count(n, "object", "objects")),
    };
    format!(
        "{}, {}, {}, {exports}{}, up to commit {}",
        count(report.pages, "page", "pages"),
        count(report.objects, "object", "objects"),
        count(report.references, "reference", "references"),
        count(report.log_records, "log record", "log records"),
        report.stamp
    )
}

/// Prints the number of findings that are not named.
fn tell_of_more(report: &Report, term: &Term) {
    let more = report.wrong - report.findings.len() as u64;
    if more > 0 {
        tell!("{} and {more} more", term.red("wrong:"));
    }
}

fn as_json(report: &Report) -> Value {
    json!({
        "sound": report.is_sound(), "whole": report.is_whole(), "pages": report.pages, "objects": report.objects,
        "references": report.references, "unfilled": report.unfilled, "exports": report.exports,
        "log_records": report.log_records, "torn": report.torn,
        "stamp": report.stamp.0, "wrong": report.wrong, "beyond_repair": report.beyond_repair, "lost": report.lost,
        "findings": report.findings.iter().map(finding_as_json).collect::<Vec<_>>(),
    })
}

/// Encodes the check of a backup: the fields of any directory, and `changed`.
fn backup_as_json(verified: &Verified) -> Value {
    let mut json = as_json(&verified.report);
    (json["sound"], json["whole"]) = (verified.is_sound().into(), verified.is_sound().into());
    json["changed"] = verified.changed.clone().into();
    json
}

/// A backup that cannot be looked at is like any other directory that cannot be.
fn of_backup(e: BackupError) -> Failure {
    match e {
        BackupError::Check(e) => e.into(),
        e => e.into(),
    }
}

/// Encodes a repair: the check of the directory as it is now, and the findings and repairs before it.
fn repair_as_json(repaired: &Repaired) -> Value {
    let mut now = as_json(&repaired.after);
    now["found"] = repaired.before.findings.iter().map(finding_as_json).collect();
    now["done"] = repaired.done.iter().cloned().collect();
    now["kept"] = repaired.kept.iter().map(|k| k.display().to_string()).collect();
    now
}

fn finding_as_json(finding: &Finding) -> Value {
    json!({
        "kind": finding.kind.name(), "text": finding.text, "offset": finding.offset,
        "file": finding.file.as_ref().map(|f| f.display().to_string()),
        "page": finding.page.map(|p| p.get()), "object": finding.object.map(|o| o.to_string()),
        "class": finding.class, "repairable": finding.repairable,
    })
}
