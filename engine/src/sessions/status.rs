//! How the server is, in numbers: JSON for `tercel stat`.

use tercel_wire::id::PageId;

use super::{Cx, Sessions};
use crate::leader::CollectStatus;

impl Sessions {
    /// With the number of the collection that was just asked for, if one was.
    pub(super) fn status(&self, ticket: Option<u64>, cx: &Cx<'_>) -> String {
        let (s, mob, visible) = (&cx.stats, &cx.pages.mob, cx.pages.visible());
        let fields: [(&str, u64); 30] = [
            ("view", cx.replica.view().number.into()),
            ("visible", visible.0),
            ("pages", cx.replica.places.next_page().saturating_sub(1).into()),
            ("sessions", self.all.len() as u64),
            ("commits", s.commits),
            ("conflicts", s.conflicts),
            ("fetches", s.fetches),
            ("page_reads", cx.pages.reads_asked),
            ("pages_installed", cx.pages.pages_installed),
            ("invalidations", s.invalidations),
            ("subscriptions", self.kept as u64),
            ("revocations", s.revocations),
            ("forwards", s.forwards),
            ("mob_bytes", mob.bytes() as u64),
            ("mob_pages", mob.pages() as u64),
            ("accepts_paused", cx.host.accepts_paused),
            ("ended_for_room", cx.host.ended_for_room),
            ("log_bytes", cx.host.log_bytes),
            ("replay_entries", cx.pages.entries_behind()),
            ("staged_bytes", self.parts_bytes as u64),
            ("backup_stamp", self.backups.stamp().map_or(0, |s| s.0)),
            ("pages_max", PageId::MAX.get().into()),
            ("pages_granted", cx.replica.places.granted_count() as u64),
            ("pages_returned", cx.replica.places.returned_count() as u64),
            ("pages_held_back", cx.replica.places.held_back_count() as u64),
            ("trees_released", cx.replica.released.count() as u64),
            ("freed", s.freed),
            ("collected", s.collected),
            ("collection_ticket", ticket.unwrap_or_default()),
            ("backup_bytes", mob.bytes_aside() as u64),
        ];
        let mut out = format!("{{\"space\":\"{:016x}\",\"disk_full\":{}", cx.space.0, cx.host.disk_full);
        if let Some(collection) = cx.leader.as_ref().map(|leader| leader.collect_status()) {
            out.push_str(&format!(",\"collection\":{}", collection_json(&collection)));
        }
        for (name, value) in fields {
            out.push_str(&format!(",\"{name}\":{value}"));
        }
        out.push('}');
        out
    }
}

fn collection_json(c: &CollectStatus<'_>) -> String {
    let last = if c.report.is_empty() { "null" } else { c.report };
    format!(
        "{{\"phase\":\"{}\",\"done\":{},\"reached\":{},\"out_of_reach\":{},\"page\":{},\"made_since\":{},\"last\":{last}}}",
        c.phase, c.done, c.marked, c.dead, c.page, c.made
    )
}
