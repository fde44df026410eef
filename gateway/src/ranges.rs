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
use crate::events::{Events, LAST_EVENT_ID, RETRY, ROUND};
use crate::gate::{Gate, Shown};
use crate::json::call::{Wrong, to_json};
use crate::keys::is_kept;
use crate::route::Route;

/// Parameters of pages, which a stream does not have.
const OF_PAGES: [&str; 5] = ["limit", "after", "order", "fresh", "at_least"];

/// Entries of a range at most, as it begins.
const ENTRIES_MAX: usize = 8_192;

/// A range that is watched.
pub struct Ranged {
    watch: Watch,
    entries: Entries,
    /// The class of the rows; none of a map.
    rows_of: Option<String>,
    /// The reader has told how far it came, and that place is known.
    resumes: bool,
    /// Set if the reader named a place that is of another history, or is none.
    anew: bool,
}

impl Ranged {
    /// Begins to watch the entries that a query names.
    pub fn begin(gate: &Gate, asked: &Asked) -> Result<Ranged, Wrong> {
        if let Some((name, _)) = asked.parameters().find(|(name, _)| OF_PAGES.contains(&&**name)) {
            let next = "leave it out, or ask for a page without `Accept: text/event-stream`";
            return Err(Wrong::invalid(format!("a stream has no `{name}`"), next.into()));
        }
        let (entries, table) = match asked.route {
            Route::Table => {
                let (table, entries) = gate.rows_asked(asked)?;
                (entries, Some(table))
            }
            _ => (gate.entries_asked(asked)?, None),
        };
        // One stream leaves others their part of what a client can watch.
        if gate.client.run(|tx| entries.page(tx, None, ENTRIES_MAX + 1))?.entries.len() > ENTRIES_MAX {
            let what =
                format!("the query names more than {ENTRIES_MAX} entries, which a stream does not watch");
            return Err(Wrong::invalid(
                what,
                "narrow it, by `from` and `to` or the fields of an index".into(),
            ));
        }
        let start = |since: Option<Token>| {
            let query = entries.query().ok_or_else(|| {
                let next = "watch a map of objects, or ask for pages";
                Wrong::invalid("what this map leads to stands in the map itself".into(), next.into())
            })?;
            let watch = watch_query(gate.client.watch(), query);
            // Its maps are others once an index was built anew.
            let watch = table.iter().fold(watch, |watch, table| watch.object(table.reference()));
            since.into_iter().fold(watch, |watch, token| watch.since(token)).start().map_err(Wrong::Space)
        };
        let last = asked.header(&LAST_EVENT_ID);
        let since: Option<Token> = last.and_then(|text| text.parse().ok());
        let (watch, resumes) = match start(since) {
            Err(Wrong::Space(Error::OtherHistory(_))) if since.is_some() => (start(None)?, false),
            watch => (watch?, since.is_some()),
        };
        let rows_of = table.map(|table| table.class);
        Ok(Ranged { watch, entries, rows_of, resumes, anew: last.is_some() && !resumes })
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
        if change.source > 0 {
            return Err(Error::Schema("the indexes of the table are others now".into()));
        }
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
            if is_kept(layout.name()) {
                return Err(Error::Denied("it leads to objects of the gateway's own".into()));
            }
            // The place of a row that was removed since may be that of another object.
            let is_row = self.rows_of.as_ref().is_none_or(|class| class == layout.name());
            Ok(is_row.then(|| json!(Shown::of(r, &layout, &object))))
        })?;
        let shown = |object| match self.rows_of.is_some() {
            true => json!({ "key": key, "removed": false, "row": object }),
            false => json!({ "key": key, "ref": r.to_string(), "removed": false }),
        };
        Ok(object.map(|object| ("change", shown(object))))
    }
}
