//! `tercel stat`.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::args;
use crate::fail::{Failure, Outcome};
use crate::space;
use crate::term::thousands;

/// Ids below belong to the system's own classes.
const USER_CLASS_MIN: u16 = 16;

pub fn run(args: &args::Stat) -> Outcome {
    let client = space::open(&args.space)?;
    let status = client.server_status()?;
    let roots = client.run(|tx| tx.roots())?;
    let classes = client.classes()?;
    let mut status: Value =
        serde_json::from_str(&status).map_err(|e| Failure::new(format!("the server's status: {e}")))?;
    status["roots"] = roots.iter().map(|(name, _)| name.clone()).collect();
    status["classes"] = classes
        .iter()
        .filter(|(id, _)| id.0 >= USER_CLASS_MIN)
        .map(|(id, l)| json!({ "name": l.name(), "id": id.0 }))
        .collect();
    if args.json {
        say!("{status}");
    } else if let Value::Object(fields) = &status {
        for (key, label, meaning) in WORDS {
            fields.get(key).into_iter().for_each(|value| show(label, value, meaning));
        }
        // A newer server may say more than this program knows.
        for (name, value) in fields.iter().filter(|(name, _)| WORDS.iter().all(|(key, ..)| key != name)) {
            show(&name.replace('_', " "), value, "");
        }
    }
    space::close(client)?;
    Ok(ExitCode::SUCCESS)
}

/// A line: what people call it, the value, and what it means.
fn show(label: &str, value: &Value, meaning: &str) {
    let shown = match value {
        Value::Number(n) => n.as_u64().map_or(n.to_string(), thousands),
        Value::String(s) => s.clone(),
        Value::Bool(b) => if *b { "yes" } else { "no" }.into(),
        Value::Array(a) => a.iter().map(element).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    };
    match meaning {
        "" => say!("{label:<16} {shown}"),
        _ => say!("{label:<16} {shown:>16}  {meaning}"),
    }
}

fn element(value: &Value) -> String {
    match (value.as_str(), value["name"].as_str()) {
        (Some(text), _) => text.into(),
        (None, Some(name)) => format!("{name} ({})", value["id"]),
        (None, None) => value.to_string(),
    }
}

/// What the server reports: its name there, for people, and the meaning with its unit.
const WORDS: [(&str, &str, &str); 24] = [
    ("space", "space", "the space's own number"),
    ("epoch", "epoch", "grows with every start of a server"),
    ("visible", "last commit", "the newest commit that clients can see"),
    (
        "pages",
        "pages given out",
        "of 8 KB, to objects or to clients for objects to come; `check` counts those stored",
    ),
    ("sessions", "clients", "connected now, this one too"),
    ("commits", "commits", "since the start, as all that follow up to forwards"),
    ("conflicts", "conflicts", "transactions refused because others were first"),
    ("fetches", "fetches", "pages that clients asked for"),
    ("page_reads", "page reads", "pages read from disk"),
    ("pages_installed", "pages installed", "pages written to disk"),
    ("invalidations", "invalidations", "objects that clients were told have changed"),
    ("revocations", "revocations", "pages that clients had to give up, for watching too many"),
    ("forwards", "forwards", "objects that outgrew their page and moved to another"),
    ("mob_bytes", "modified bytes", "of objects in memory that are in the log and not yet in pages"),
    ("mob_pages", "modified pages", "that these objects belong to"),
    ("staged_bytes", "staged bytes", "of transactions of which parts are still to come"),
    ("accepts_paused", "accepts paused", "times that no client was let in, for want of descriptors"),
    ("log_bytes", "log bytes", "on disk"),
    ("replay_entries", "log to replay", "commits that a start after a crash would replay"),
    ("disk_full", "disk full", "whether commits wait for room on the disk"),
    ("backup_stamp", "backup at", "the commit of the backup under way, or 0"),
    ("backup_bytes", "backup bytes", "kept in memory for that backup"),
    ("roots", "roots", ""),
    ("classes", "classes", ""),
];
