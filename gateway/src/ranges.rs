//! Server-sent events of a table's rows or a map's entries: those of a query that come, change and go.
//!
//! A reader begins the stream, and reads pages of the same query behind it: nothing is missed between. The
//! rules of ids are those of other streams. Changes of one commit have one token, so the id of an event is
//! the place of the watch, which moves on with the last of them.

use serde_json::{Value, json};
use tercel::collections::table::untyped::Entries;
use tercel::tools::{stored, watch_query};
use tercel::{Change, Error, Token, Watch};

use crate::asked::Asked;
use crate::events::{Events, RETRY, ROUND, since};
use crate::gate::{Gate, Shown};
use crate::json::call::{Wrong, to_json};
use crate::keys::is_kept;
use crate::route::Route;

/// Parameters of pages, which a stream does not have.
const OF_PAGES: [&str; 5] = ["limit", "after", "order", "fresh", "at_least"];

/// A range that is watched.
pub struct Ranged {
    watch: Watch,
    entries: Entries,
    has_rows: bool,
    /// The reader has told how far it came, and that place is known.
    resumes: bool,
    /// It has told so, and that place is of another history.
    anew: bool,
}

impl Ranged {
    /// Begins to watch the entries that a query names.
    pub fn begin(gate: &Gate, asked: &Asked) -> Result<Ranged, Wrong> {
        if let Some((name, _)) = asked.parameters().find(|(name, _)| OF_PAGES.contains(&&**name)) {
            let next = "leave it out, or ask for a page without `Accept: text/event-stream`";
            return Err(Wrong::invalid(format!("a stream has no `{name}`"), next.into()));
        }
        let has_rows = asked.route == Route::Table;
        let entries = if has_rows { gate.rows_asked(asked)?.1 } else { gate.entries_asked(asked)? };
        let start = |since: Option<Token>| {
            let query = entries.query().ok_or_else(|| {
                let next = "watch a map of objects, or ask for pages";
                Wrong::invalid("what this map leads to stands in the map itself".into(), next.into())
            })?;
            let watch = watch_query(gate.client.watch(), query);
            since.into_iter().fold(watch, |watch, token| watch.since(token)).start().map_err(Wrong::Space)
        };
        let (last, since) = since(asked);
        let (watch, resumes) = match start(since) {
            Err(Wrong::Space(Error::OtherHistory(_))) if since.is_some() => (start(None)?, false),
            watch => (watch?, since.is_some()),
        };
        Ok(Ranged { watch, entries, has_rows, resumes, anew: last.is_some() && !resumes })
    }

    /// Tells changes until nobody reads, the gateway stops, or the reader is not known any more.
    pub fn tell(mut self, gate: &Gate, asked: &Asked, events: &mut Events) {
        let first = if self.anew { "anew" } else { "begun" };
        if !events.send(RETRY.into())
            || !self.resumes && !events.tell(Some(self.watch.token()), first, &json!({}))
        {
            return;
        }
        while !gate.is_stopped() && !asked.is_over() && events.pass() {
            let told = match self.watch.next_within(ROUND) {
                Ok(None) => continue,
                Ok(Some(change)) => self.shown(gate, &change),
                Err(e) => Err(e),
            };
            let goes_on = match told {
                Ok(Some((name, data))) => events.tell(Some(self.watch.token()), name, &data),
                Ok(None) => true,
                Err(e) => {
                    let next = "the stream ends here: connect again";
                    events.tell(None, "error", &json!({ "error": e.to_string(), "next": next }));
                    false
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    /// The event of a change; none of a row that is gone by now, of which another change tells.
    fn shown(&self, gate: &Gate, change: &Change) -> Result<Option<(&'static str, Value)>, Error> {
        // All of the range may have changed.
        let Some(bytes) = &change.key else { return Ok(Some(("anew", json!({})))) };
        let damaged = || Error::Corrupt("a key of what is watched is none".into());
        let key = to_json(self.entries.key(bytes).ok_or_else(damaged)?);
        let r = change.reference.oref();
        if change.is_removed {
            return Ok(Some(("change", json!({ "key": key, "ref": r.to_string(), "removed": true }))));
        }
        let object = gate.client.transaction().at_least(change.token).run(|tx| {
            let Some((layout, object)) = stored(tx, r)? else { return Ok(None) };
            match is_kept(layout.name()) {
                true => Err(Error::Denied("it leads to objects of the gateway's own".into())),
                false => Ok(Some(json!(Shown::of(r, &layout, &object)))),
            }
        })?;
        let shown = |object| match self.has_rows {
            true => json!({ "key": key, "removed": false, "row": object }),
            false => json!({ "key": key, "ref": r.to_string(), "removed": false }),
        };
        Ok(object.map(|object| ("change", shown(object))))
    }
}
