//! The status of the server, in numbers: JSON for `tercel stat`.

use tercel_wire::id::{PageId, Stamp};
use tercel_wire::page::PAGE_BYTES;

use super::{Cx, Sessions};
use crate::effect::{ArchiveState, NetworkState};
use crate::leader::{CollectStatus, Leader, Outlook};
use crate::order::quorum::members::Member;
use crate::order::quorum::{Status, Why};
use crate::time::{Now, Times, in_words};

impl Sessions {
    /// The status. `ticket` is the number of the collection that was just asked for, if one was.
    pub(super) fn status(&self, ticket: Option<u64>, cx: &Cx) -> String {
        let (s, mob, visible) = (&cx.work.stats, &cx.work.pages.mob, cx.work.pages.visible());
        let places = &cx.work.replica.places;
        let fields: [(&str, u64); 36] = [
            ("view", cx.work.replica.view().number.into()),
            ("visible", visible.0),
            ("pages", places.next_page().saturating_sub(1).into()),
            ("sessions", self.all.len() as u64),
            ("commits", s.commits),
            ("conflicts", s.conflicts),
            ("fetches", s.fetches),
            ("fetches_unchanged", s.fetches_unchanged),
            ("page_reads", cx.work.pages.reads_asked),
            ("pages_installed", cx.work.pages.pages_installed),
            ("invalidations", s.invalidations),
            ("subscriptions", self.fullest.kept as u64),
            ("revocations", s.revocations),
            ("forwards", s.forwards),
            ("mob_bytes", mob.bytes() as u64),
            ("mob_pages", mob.pages() as u64),
            ("accepts_paused", cx.host.accepts_paused),
            ("ended_for_room", cx.host.ended_for_room),
            ("log_bytes", cx.host.log_bytes),
            ("sync_p99_us", cx.host.syncs.percentile_us(99)),
            ("slow_syncs", cx.host.syncs.slow),
            ("replay_entries", cx.work.pages.entries_behind()),
            ("staged_bytes", self.parts_bytes as u64),
            ("backup_stamp", self.backups.stamp().map_or(0, |s| s.0)),
            ("pages_max", PageId::MAX.get().into()),
            ("pages_in_use", places.in_use().into()),
            ("pages_free", places.left().into()),
            ("pages_granted", places.granted_count() as u64),
            ("bytes_granted", (places.granted_count() * PAGE_BYTES) as u64),
            ("pages_returned", places.returned_count() as u64),
            ("pages_held_back", places.held_back_count() as u64),
            ("trees_released", cx.work.replica.released.count() as u64),
            ("freed", s.freed),
            ("collected", s.collected),
            ("collection_ticket", ticket.unwrap_or_default()),
            ("backup_bytes", mob.bytes_aside() as u64),
        ];
        let mut out = format!("{{\"space\":\"{:016x}\",\"disk_full\":{}", cx.work.space.0, cx.host.disk_full);
        let on = cx.work.replica.dependencies.all();
        let on: Vec<_> = on.iter().map(|(space, seen)| format!("\"{:x}:{}\"", space.0, seen.at)).collect();
        out.push_str(&format!(",\"rests_on\":[{}]", on.join(",")));
        if let Some(leader) = cx.leader.as_ref() {
            out.push_str(&of_leader(leader, cx));
        }
        if cx.leader.is_none() {
            out.push_str(&self.of_readers(cx));
        }
        if let Some(group) = cx.work.sequencer.status() {
            out.push_str(&format!(",\"group\":{}", group_json(&group, cx)));
        }
        out.push_str(&format!(",\"network\":{}", network_json(cx.host.network)));
        if let Some((state, lag_ms)) = cx.host.archive {
            let is = |one: ArchiveState| u8::from(state == one);
            let (stuck, ended) = (is(ArchiveState::Stuck), is(ArchiveState::Ended));
            out.push_str(&format!(",\"archive_stuck\":{stuck},\"archive_ended\":{ended}"));
            // The lag of another member's writer is not known here.
            if let Some(lag_ms) = lag_ms.filter(|_| state != ArchiveState::Waits) {
                out.push_str(&format!(",\"archive_lag_ms\":{lag_ms}"));
            }
        }
        out.push_str(&format!(",\"syncs\":{}", times_json(&cx.host.syncs)));
        for (name, value) in fields {
            out.push_str(&format!(",\"{name}\":{value}"));
        }
        out.push('}');
        out
    }
}

/// The sentences have no characters that JSON writes otherwise.
fn network_json(network: NetworkState) -> String {
    let days = network.days_left.map_or("null".into(), |days| days.to_string());
    let warnings: Vec<String> = network.warnings().iter().map(|text| format!("\"{text}\"")).collect();
    let NetworkState { is_outdated, is_plain, .. } = network;
    format!(
        "{{\"certificate_days_left\":{days},\"certificate_outdated\":{is_outdated},\"plain_remote\":{is_plain},\"warnings\":[{}]}}",
        warnings.join(",")
    )
}

fn times_json(times: &Times) -> String {
    let Times { counts, sum_us, .. } = times;
    format!("{{\"bounds_us\":{:?},\"counts\":{counts:?},\"sum_us\":{sum_us}}}", Times::BOUNDS_US)
}

impl Sessions {
    /// The part of the status that only a member which follows has.
    fn of_readers(&self, cx: &Cx) -> String {
        let (readers, passed_on) = self.reading();
        let silent_us = self.upstreams.line.silent_us(cx.work.now);
        let silent = silent_us.map_or("null".into(), |us| (us / 1_000).to_string());
        format!(",\"readers\":{readers},\"passed_on\":{passed_on},\"leader_silent_ms\":{silent}")
    }
}

/// The group, as this member knows it. Addresses have no characters that JSON writes otherwise.
fn group_json(group: &Status, cx: &Cx) -> String {
    let why = match group.why {
        Why::NoLeader => "it knew of no leader",
        Why::Ended => "the process of the leader before had ended",
        Why::Silent => "the leader before was silent",
        Why::Handed => "the leader before handed the lead over",
    };
    let members = group.members.iter().map(|member| {
        let other = group.others.iter().find(|other| other.id == member.id);
        let end = match member.id == group.me {
            true => Some(group.end.position.0),
            false => other.map(|other| other.durable.0),
        };
        let number = |n: Option<u64>| n.map_or("null".into(), |n| n.to_string());
        format!(
            "{{\"member\":\"{}\",\"address\":\"{}\",\"votes\":{},\"leads\":{},\"end\":{},\"lag\":{},\"round_trip_us\":{},\"silent_ms\":{},\"gone\":{},\"lost\":{}}}",
            member.id,
            member.address,
            member.votes,
            group.leader == Some(member.id),
            number(end),
            number(end.map(|end| group.end.position.0.saturating_sub(end))),
            number(other.filter(|other| other.is_there(cx.work.now)).and_then(|other| other.round_trip_us)),
            number(other.map(|other| cx.work.now.since_us(other.heard) / 1_000)),
            other.is_some_and(|other| other.is_gone),
            other.is_some_and(|other| other.is_lost)
        )
    });
    let members: Vec<String> = members.collect();
    let address = |of: &Member| format!("\"{}\"", of.address);
    let led = group.leader.and_then(|leader| group.members.get(leader)).map_or("null".into(), address);
    let unled_us = cx.work.sequencer.unled_us(cx.work.now);
    let unled_ms = unled_us.map_or("null".into(), |us| (us / 1_000).to_string());
    let leader = if unled_us.is_none() { &led } else { "null" };
    let unsure = cx.condition.unsure.map_or("null".into(), |(view, _)| view.number.to_string());
    format!(
        "{{\"group\":\"{:016x}\",\"member\":\"{}\",\"view\":{},\"leads\":{},\"leader\":{leader},\"led\":{led},\"unled_ms\":{unled_ms},\"why\":\"{why}\",\"begins\":{},\"end\":{},\"stable\":{},\"sure\":{},\"lost\":{},\"unsure_view\":{unsure},\"members\":[{}]}}",
        cx.group,
        group.me,
        group.view.number,
        cx.leader.is_some(),
        group.begins,
        group.end.position,
        group.stable,
        group.is_sure,
        group.lost_before.is_some(),
        members.join(",")
    )
}

/// The part of the status that the leader alone knows.
fn of_leader(leader: &Leader, cx: &Cx) -> String {
    let collection = leader.collect_status(&cx.work.replica.places);
    let outlook = leader.outlook(cx.work.now, &cx.work.replica);
    let (collected, counted) = (collection_json(&collection), counted_json(&collection, cx.work.now));
    let across = across_json(leader, cx);
    format!(
        ",\"collection\":{collected},\"counted\":{counted},\"across\":{across},{}",
        outlook_json(&outlook)
    )
}

/// Transactions over several spaces: parts that wait to be settled, the oldest first, and decisions whose
/// parts do.
fn across_json(leader: &Leader, cx: &Cx) -> String {
    let prepares = &cx.work.replica.prepares;
    let age_ms = |stamp: Stamp| leader.part_age_us(stamp, cx.work.now) / 1_000;
    let oldest_ms = prepares.iter().map(|(stamp, _)| age_ms(stamp)).max().unwrap_or(0);
    let parts = prepares.iter().take(PARTS_TOLD).map(|(stamp, part)| {
        format!(
            "{{\"of\":\"{}\",\"coordinator\":\"{:x}\",\"prepared\":{},\"age_ms\":{}}}",
            part.of,
            part.coordinator.0,
            stamp.0,
            age_ms(stamp)
        )
    });
    let parts: Vec<String> = parts.collect();
    format!(
        "{{\"prepared\":{},\"oldest_ms\":{oldest_ms},\"decided\":{},\"unreached\":{:?},\"parts\":[{}]}}",
        prepares.len(),
        cx.work.replica.decisions.len(),
        leader.unreached().unwrap_or(""),
        parts.join(",")
    )
}

/// Parts that the status names.
const PARTS_TOLD: usize = 16;

fn collection_json(c: &CollectStatus<'_>) -> String {
    let last = if c.report.is_empty() { "null" } else { c.report };
    format!(
        "{{\"phase\":\"{}\",\"done\":{},\"reached\":{},\"out_of_reach\":{},\"page\":{},\"made_since\":{},\"last\":{last}}}",
        c.phase, c.done, c.marked, c.dead, c.page, c.made
    )
}

/// The use of the room of pages at the last count; null if they were not counted since the leader's view
/// began.
fn counted_json(c: &CollectStatus<'_>, now: Now) -> String {
    c.counted.map_or("null".into(), |counted| {
        let ago = now.since_us(counted.at) / 1_000_000;
        format!("{{{},\"seconds_ago\":{ago}}}", counted.census.json())
    })
}

fn outlook_json(outlook: &Outlook) -> String {
    let number = |n: Option<u64>| n.map_or("null".into(), |n| n.to_string());
    let words = match (outlook.fresh_per_hour, outlook.seconds_to_full) {
        (None, _) => "not known yet".into(),
        (_, None) => "not at the present rate".into(),
        (_, Some(seconds)) => in_words(seconds),
    };
    let warnings = outlook.warning.map_or(String::new(), |warning| format!("{:?}", warning.to_string()));
    format!(
        "\"fresh_pages_per_hour\":{},\"seconds_to_full\":{},\"time_to_full\":\"{words}\",\"warnings\":[{warnings}]",
        number(outlook.fresh_per_hour),
        number(outlook.seconds_to_full)
    )
}
