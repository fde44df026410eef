//! `tercel stat`.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use tercel::status::{Across, Collection, Contended, Leading};
use tercel::tools::wire::id::ClassId;
use tercel::{Error, ServerStatus};
use tercel_gateway::status::{ACROSS, SHOWN_OTHERWISE, WORDS};
use tercel_term::fail::Outcome;
use tercel_term::wrap::{columns, wrap};
use tercel_term::{count, say, thousands};

use crate::args;
use crate::space;

pub fn run(args: &args::Stat) -> Outcome {
    if let Some(status) = follower(&args.space) {
        match args.json {
            true => say!("{}", status.json()),
            false => shown(&status, &json!(status)),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let client = space::open(&args.space)?;
    let status = client.server_status()?;
    // Any other freshness is refused while a part waits, which is when an operator looks for it.
    let roots = client.transaction().stale().run(|tx| tx.roots());
    let (roots, classes) = (seen(roots)?, seen(tercel::tools::classes(&client))?);
    let mut fields = json!(status);
    fields["roots"] = roots.iter().map(|(name, _)| name.clone()).collect();
    fields["classes"] = classes
        .iter()
        .filter(|(id, _)| id.0 >= ClassId::FIRST_USER.0)
        .map(|(id, l)| json!({ "name": l.name(), "id": id.0 }))
        .collect();
    match args.json {
        true => say!("{fields}"),
        false => shown(&status, &fields),
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
fn follower(space: &args::Space) -> Option<ServerStatus> {
    let named = space.server.as_ref().filter(|servers| servers.iter().len() == 1)?;
    let status = tercel::group::status_of(named.clone(), PATIENCE).ok()?;
    Some(status).filter(|status| status.group.as_ref().is_some_and(|group| !group.leads))
}

/// Time for it to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Prints the status; `fields` are it as JSON, and more.
fn shown(status: &ServerStatus, fields: &Value) {
    let Value::Object(fields) = fields else { return };
    if let Some(group) = &status.group {
        crate::group::headline_of(group).iter().for_each(|line| hang(line, 17));
    }
    if let Some(leading) = &status.leading {
        hang(&format!("{:<16} {}", "collection", collection(&leading.collection)), 17);
        room(leading).iter().for_each(|(label, value, meaning)| show(label, value, meaning));
    }
    for (key, label, meaning) in WORDS {
        fields.get(key).into_iter().for_each(|value| show(label, value, meaning));
    }
    // A newer server may say more than this program knows.
    let is_said = |name: &str| SHOWN_OTHERWISE.contains(&name) || WORDS.iter().any(|(key, ..)| *key == name);
    for (name, value) in fields.iter().filter(|(name, _)| !is_said(name)) {
        show(&name.replace('_', " "), value, "");
    }
    if let Some(leading) = &status.leading {
        across(&leading.across, &fields["across"]);
        leading.contended.iter().for_each(|of| hang(&contended(of), 35));
    }
    if let Some(days) = status.network.certificate_days_left {
        let days = days.max(0);
        hang(&format!("{:<16} {days:>16}  days until the server's certificate ends", "certificate"), 35);
    }
    let leading = status.leading.iter().flat_map(|leading| &leading.warnings);
    for words in leading.chain(&status.network.warnings) {
        hang(&format!("{:<16} {words}", "warning"), 17);
    }
}

/// The progress of the collection under way, and the work of the last one.
fn collection(of: &Collection) -> String {
    let now = match of.phase.as_str() {
        "none" => format!("none under way, {} objects made since the last", thousands(of.made_since)),
        phase => format!("in its phase `{phase}`, {} objects reached", thousands(of.reached)),
    };
    match &of.last {
        None => now,
        Some(last) => match &last.failed {
            Some(why) => format!("{now}; the last one failed: {why}"),
            None => format!(
                "{now}; of the {} since the start the last found {} objects out of reach",
                thousands(of.done),
                thousands(last.objects)
            ),
        },
    }
}

/// Prints what is known of transactions over several spaces; `fields` are it as JSON.
fn across(of: &Across, fields: &Value) {
    for (field, _, label, meaning) in ACROSS {
        show(label, &fields[field], meaning);
    }
    for part in &of.parts {
        let age_s = thousands(part.age_ms / 1_000);
        let words = format!("{}, which space {} decides, for {age_s} s", part.of, part.coordinator);
        hang(&format!("{:<16} {:>16}  {words}", "prepared at", part.prepared), 35);
    }
    if !of.unreached.is_empty() {
        hang(&format!("{:<16} {}", "unreached", of.unreached), 17);
    }
}

/// An object over which transactions were refused.
fn contended(of: &Contended) -> String {
    let class = if of.class.is_empty() { "" } else { ", of class " };
    let (count, object) = (thousands(of.conflicts), &of.object);
    format!(
        "{:<16} {count:>16}  transactions were refused over object {object}{class}{}",
        "contended", of.class
    )
}

/// The use of the room of pages at its last count: a label, a value and its meaning each.
fn room(leading: &Leading) -> Vec<(&'static str, Value, String)> {
    let Some(counted) = leading.counted else {
        let words = "not counted since the server started: `tercel gc --dry-run` counts";
        return vec![("live bytes", words.into(), String::new())];
    };
    let made = leading.collection.made_since;
    let (ago, made) = (thousands(counted.seconds_ago), count(made, "object", "objects"));
    let room = counted.room;
    vec![
        (
            "live bytes",
            room.live_bytes.into(),
            format!("of what roots reach, counted {ago} s ago, large values included"),
        ),
        (
            "garbage bytes",
            room.garbage_bytes.into(),
            format!("of what none reached then; {made} made since that collection began"),
        ),
        ("free bytes", room.free_bytes.into(), "then, in pages that something was in".into()),
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
        let said = |leading: Value| -> Vec<String> {
            let leading: Leading = serde_json::from_value(leading).unwrap();
            room(&leading)
                .iter()
                .map(|(label, value, meaning)| format!("{label}: {value} {meaning}"))
                .collect()
        };
        let leading = |counted: Value| json!({ "collection": { "made_since": 1 }, "counted": counted, "across": {}, "time_to_full": "", "warnings": [] });
        let words = said(leading(Value::Null));
        assert!(matches!(&words[..], [one] if one.contains("`tercel gc --dry-run` counts")), "{words:?}");
        let counted =
            json!({ "live_bytes": 7_000, "garbage_bytes": 300, "free_bytes": 40, "seconds_ago": 1_200 });
        let words = said(leading(counted));
        assert!(
            words[0].starts_with("live bytes: 7000 of what roots reach, counted 1,200 s ago"),
            "{words:?}"
        );
        assert!(
            words[1].starts_with("garbage bytes: 300 ") && words[1].contains("1 object made"),
            "{words:?}"
        );
        assert!(words[2].starts_with("free bytes: 40 "), "{words:?}");
    }
}
