//! `tercel stat`.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use tercel::Error;
use tercel_gateway::status::{ACROSS, WORDS};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::wrap::{columns, wrap};
use tercel_term::{count, say, thousands};

use crate::args;
use crate::space;

/// Ids below belong to the system's own classes.
const USER_CLASS_MIN: u16 = 16;

pub fn run(args: &args::Stat) -> Outcome {
    if let Some(status) = follower(&args.space) {
        match args.json {
            true => say!("{status}"),
            false => shown(&status),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let client = space::open(&args.space)?;
    let status = client.server_status()?;
    // Any other freshness is refused while a part waits, which is when an operator looks for it.
    let roots = client.transaction().stale().run(|tx| tx.roots());
    let (roots, classes) = (seen(roots)?, seen(tercel::tools::classes(&client))?);
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
    } else {
        shown(&status);
    }
    space::close(client)?;
    Ok(ExitCode::SUCCESS)
}

/// Whoever operates need not read the space.
fn seen<T>(read: Result<Vec<T>, Error>) -> Result<Vec<T>, Error> {
    match read {
        Err(Error::Denied(_)) => Ok(Vec::new()),
        read => read,
    }
}

/// The status of a server that was named alone, and does not lead its group: it takes no sessions.
fn follower(space: &args::Space) -> Option<Value> {
    let named = space.server.as_ref().filter(|servers| servers.iter().len() == 1)?;
    let status = tercel::group::status_of(named.clone(), PATIENCE).ok()?;
    serde_json::from_str::<Value>(&status).ok().filter(|status| status["group"]["leads"] == false)
}

/// Time for it to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Prints the status.
fn shown(status: &Value) {
    let Value::Object(fields) = status else { return };
    if !status["group"].is_null() {
        crate::group::headline(&status["group"]).iter().for_each(|line| hang(line, 17));
    }
    if let Some(words) = collection(&status["collection"]) {
        hang(&format!("{:<16} {words}", "collection"), 17);
    }
    room(status).iter().for_each(|(label, value, meaning)| show(label, value, meaning));
    for (key, label, meaning) in WORDS {
        fields.get(key).into_iter().for_each(|value| show(label, value, meaning));
    }
    // A newer server may say more than this program knows.
    let is_said = |name: &str| SAID.contains(&name) || WORDS.iter().any(|(key, ..)| *key == name);
    for (name, value) in fields.iter().filter(|(name, _)| !is_said(name)) {
        show(&name.replace('_', " "), value, "");
    }
    across(&status["across"]);
    let network = &status["network"];
    if let Some(days) = network["certificate_days_left"].as_i64() {
        hang(&format!("{:<16} {days:>16}  days until the server's certificate ends", "certificate"), 35);
    }
    let all = [&status["warnings"], &network["warnings"]].into_iter().filter_map(Value::as_array);
    for words in all.flatten().filter_map(Value::as_str) {
        hang(&format!("{:<16} {words}", "warning"), 17);
    }
}

/// Fields of the server's status that are shown in other words.
const SAID: [&str; 10] = [
    "across",
    "collection",
    "collection_ticket",
    "counted",
    "group",
    "network",
    "syncs",
    "warnings",
    // In words, `time_to_full` says as much.
    "fresh_pages_per_hour",
    "seconds_to_full",
];

/// The progress of the collection under way, and the work of the last one.
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

/// Prints what is known of transactions over several spaces.
fn across(of: &Value) {
    // A server of before knows of none.
    let Value::Object(fields) = of else { return };
    for (field, _, label, meaning) in ACROSS {
        fields.get(field).into_iter().for_each(|value| show(label, value, meaning));
    }
    for one in of["parts"].as_array().into_iter().flatten() {
        let age_s = one["age_ms"].as_u64().unwrap_or(0) / 1_000;
        let [of, coordinator] = ["of", "coordinator"].map(|field| one[field].as_str().unwrap_or_default());
        let words = format!("{of}, which space {coordinator} decides, for {} s", thousands(age_s));
        hang(&format!("{:<16} {:>16}  {words}", "prepared at", one["prepared"]), 35);
    }
    if let Some(why) = of["unreached"].as_str().filter(|why| !why.is_empty()) {
        hang(&format!("{:<16} {why}", "unreached"), 17);
    }
}

/// The use of the room of pages at its last count: a label, a value and its meaning each.
fn room(status: &Value) -> Vec<(&'static str, Value, String)> {
    let counted = &status["counted"];
    let Some(ago) = counted["seconds_ago"].as_u64() else {
        // A server of before does not count.
        let words = "not counted since the server started: `tercel gc --dry-run` counts";
        let is_new = status.get("counted").is_some();
        return is_new.then(|| ("live bytes", words.into(), String::new())).into_iter().collect();
    };
    let made = status["collection"]["made_since"].as_u64().unwrap_or(0);
    let (ago, made) = (thousands(ago), count(made, "object", "objects"));
    vec![
        (
            "live bytes",
            counted["live_bytes"].clone(),
            format!("of what roots reach, counted {ago} s ago, large values included"),
        ),
        (
            "garbage bytes",
            counted["garbage_bytes"].clone(),
            format!("of what none reached then; {made} made since that collection began"),
        ),
        ("free bytes", counted["free_bytes"].clone(), "then, in pages that something was in".into()),
    ]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_said_with_its_age_or_how_to_have_it_counted() {
        let words = |status: &Value| {
            room(status).iter().map(|(label, value, meaning)| format!("{label}: {value} {meaning}")).collect()
        };
        let said: Vec<String> = words(&json!({ "counted": null }));
        assert!(matches!(&said[..], [one] if one.contains("`tercel gc --dry-run` counts")), "{said:?}");
        let counted =
            json!({ "live_bytes": 7_000, "garbage_bytes": 300, "free_bytes": 40, "seconds_ago": 1_200 });
        let said: Vec<String> = words(&json!({ "counted": counted, "collection": { "made_since": 1 } }));
        assert!(said[0].starts_with("live bytes: 7000 of what roots reach, counted 1,200 s ago"), "{said:?}");
        assert!(said[1].starts_with("garbage bytes: 300 ") && said[1].contains("1 object made"), "{said:?}");
        assert!(said[2].starts_with("free bytes: 40 "), "{said:?}");
        // A server of before.
        let said: Vec<String> = words(&json!({}));
        assert!(said.is_empty());
    }
}
