//! `tercel stat`.

use std::process::ExitCode;

use serde_json::{Value, json};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::say;
use tercel_term::thousands;
use tercel_term::wrap::{columns, wrap};

use crate::args;
use crate::space;

/// Ids below belong to the system's own classes.
const USER_CLASS_MIN: u16 = 16;

pub fn run(args: &args::Stat) -> Outcome {
    let client = space::open(&args.space)?;
    let status = client.server_status()?;
    let roots = client.run(|tx| tx.roots())?;
    let classes = tercel::tools::classes(&client)?;
    let mut status: Value =
        serde_json::from_str(&status).map_err(|e| Failure::new(format!("the server's status: {e}")))?;
    status["roots"] = roots.iter().map(|(name, _)| name.clone()).collect();
    status["classes"] = classes
        .iter()
        .filter(|(id, _)| id.0 >= USER_CLASS_MIN)
        .map(|(id, l)| json!({ "name": l.name(), "id": id.0 }))
        .collect();
    let warnings: Vec<String> = few_pages(&status).into_iter().collect();
    if args.json {
        status["warnings"] = json!(warnings);
        say!("{status}");
    } else if let Value::Object(fields) = &status {
        if let Some(words) = collection(&status["collection"]) {
            hang(&format!("{:<16} {words}", "collection"), 17);
        }
        for (key, label, meaning) in WORDS {
            fields.get(key).into_iter().for_each(|value| show(label, value, meaning));
        }
        // A newer server may say more than this program knows.
        let is_said = |name: &str| SAID.contains(&name) || WORDS.iter().any(|(key, ..)| *key == name);
        for (name, value) in fields.iter().filter(|(name, _)| !is_said(name)) {
            show(&name.replace('_', " "), value, "");
        }
        warnings.iter().for_each(|words| hang(&format!("{:<16} {words}", "warning"), 17));
    }
    space::close(client)?;
    Ok(ExitCode::SUCCESS)
}

/// What the server says of itself that is shown in other words.
const SAID: [&str; 2] = ["collection", "collection_ticket"];

/// How far the collection is that is under way, and what the last one did.
fn collection(of: &Value) -> Option<String> {
    let number = |value: &Value| value.as_u64().map(thousands);
    let now = match of["phase"].as_str()? {
        "none" => format!("none under way, {} objects made since the last", number(&of["made_since"])?),
        phase => format!("in its phase `{phase}`, {} objects reached", number(&of["reached"])?),
    };
    let last = &of["last"];
    Some(match (last["failed"].as_str(), number(&last["objects"])) {
        (Some(why), _) => format!("{now}; the last one failed: {why}"),
        (None, Some(objects)) => {
            format!(
                "{now}; of the {} since the start the last found {objects} out of reach",
                number(&of["done"])?
            )
        }
        (None, None) => now,
    })
}

/// What to do when few pages are left.
fn few_pages(status: &Value) -> Option<String> {
    // A server of before does not say how many there are.
    let (given, max) = (status["pages"].as_u64()?, status["pages_max"].as_u64()?);
    let left = max.saturating_sub(given) + status["pages_returned"].as_u64().unwrap_or(0);
    (left < max / 10).then(|| {
        format!(
            "{} of the space's {} pages are left; when they are gone, nothing new finds a place: unlink what is not needed and run \
             `tercel gc`, or let a program copy what is still needed into another space before",
            thousands(left),
            thousands(max)
        )
    })
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
        "" => hang(&format!("{label:<16} {shown}"), 17),
        _ => hang(&format!("{label:<16} {shown:>16}  {meaning}"), 35),
    }
}

/// Prints a line; what does not fit goes below its last column, which begins there.
fn hang(line: &str, column: usize) {
    let columns = columns();
    say!("{}", wrap(line, columns, column.min(columns / 2)));
}

fn element(value: &Value) -> String {
    match (value.as_str(), value["name"].as_str()) {
        (Some(text), _) => text.into(),
        (None, Some(name)) => format!("{name} ({})", value["id"]),
        (None, None) => value.to_string(),
    }
}

/// What the server reports: its name there, for people, and the meaning with its unit.
const WORDS: [(&str, &str, &str); 33] = [
    ("space", "space", "the space's own number"),
    ("view", "view", "grows with every start of a server"),
    ("visible", "last commit", "the newest commit that clients can see"),
    (
        "pages",
        "pages given out",
        "of 8 KB, to objects or to clients for objects to come; `check` counts those stored",
    ),
    ("pages_max", "pages at most", "that the space can give out"),
    ("pages_granted", "pages granted", "among those given out, to clients that may make objects in them"),
    ("pages_returned", "pages returned", "among those given out, that nothing is in and are given out again"),
    (
        "pages_held_back",
        "pages held back",
        "among those given out, that nothing may be in and that a reference to a place in them keeps",
    ),
    ("trees_released", "trees released", "large values that were replaced and are yet to be freed"),
    ("freed", "chunks freed", "of large values, since the start"),
    ("collected", "collected", "objects that no root reached, since the start"),
    ("sessions", "clients", "connected now, this one too"),
    ("commits", "commits", "since the start, as all that follow up to forwards"),
    ("conflicts", "conflicts", "transactions refused because others were first"),
    ("fetches", "fetches", "pages that clients asked for"),
    ("page_reads", "page reads", "pages read from disk"),
    ("pages_installed", "pages installed", "pages written to disk"),
    ("invalidations", "invalidations", "objects that clients were told have changed"),
    (
        "subscriptions",
        "subscriptions",
        "pages that clients are told of changes to, each as often as clients have it",
    ),
    ("revocations", "revocations", "pages that clients had to give up, for watching too many"),
    ("forwards", "forwards", "objects that outgrew their page and moved to another"),
    ("mob_bytes", "modified bytes", "of objects in memory that are in the log and not yet in pages"),
    ("mob_pages", "modified pages", "that these objects belong to"),
    ("staged_bytes", "staged bytes", "of transactions of which parts are still to come"),
    ("accepts_paused", "accepts paused", "times that no client was let in, for want of descriptors"),
    (
        "ended_for_room",
        "ended for room",
        "connections, because too much had arrived in part or was not taken",
    ),
    ("log_bytes", "log bytes", "on disk"),
    ("replay_entries", "log to replay", "commits that a start after a crash would replay"),
    ("disk_full", "disk full", "whether commits wait for room on the disk"),
    ("backup_stamp", "backup at", "the commit of the backup under way, or 0"),
    ("backup_bytes", "backup bytes", "kept in memory for that backup"),
    ("roots", "roots", ""),
    ("classes", "classes", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_full_space_names_next_step() {
        let warned = |pages: u64| few_pages(&json!({ "pages": pages, "pages_max": 4_194_303 }));
        assert_eq!((warned(1), warned(3_774_873)), (None, None));
        let words = warned(3_774_874).unwrap();
        assert!(words.starts_with("419,429 of the space's 4,194,303 pages are left"), "{words}");
        assert!(words.contains("into another space"), "{words}");
        assert!(warned(4_194_303).is_some_and(|words| words.starts_with("0 of")));
        assert_eq!(few_pages(&json!({ "pages": 4_194_303 })), None);
    }
}
