//! The answer to the question for a server's status, made from what the rooms know.

use tercel_wire::id::{PageId, Stamp};
use tercel_wire::layout::Layout;
use tercel_wire::page::PAGE_BYTES;

use super::health::refused;
use super::{Cx, Sessions};
use crate::effect::ArchiveState;
use crate::leader::{Leader, Losses};
use crate::order::quorum::members::Member as Listed;
use crate::order::quorum::{Status, Why};
use crate::status::{
    Across, Archive, Contended, Counted, Following, Group, Leading, Member, Network, Pages, Part,
    ServerStatus, Storage, Syncs, Traffic,
};
use crate::time::{Times, in_words};

impl Sessions {
    /// The status. `ticket` is the number of the collection that was just asked for, if one was.
    pub(super) fn status(&self, ticket: Option<u64>, cx: &Cx) -> ServerStatus {
        let on = cx.work.replica.dependencies.all();
        ServerStatus {
            space: format!("{:016x}", cx.work.space.0),
            view: cx.work.replica.view().number.into(),
            visible: cx.work.pages.visible().0,
            rests_on: on.iter().map(|(space, seen)| format!("{:x}:{}", space.0, seen.at)).collect(),
            traffic: self.traffic(cx),
            pages: pages(ticket, cx),
            storage: self.storage(cx),
            leading: cx.leader.as_ref().map(|leader| leading(leader, cx)),
            following: cx.leader.is_none().then(|| self.following(cx)),
            group: cx.work.sequencer.status().map(|group| of_group(&group, cx)),
            network: network(cx),
            archive: cx.host.archive.map(|(state, lag_ms)| archive(state, lag_ms)),
            more: Default::default(),
        }
    }

    fn traffic(&self, cx: &Cx) -> Traffic {
        let s = &cx.work.stats;
        Traffic {
            sessions: self.all.len() as u64,
            commits: s.commits,
            conflicts: s.conflicts,
            fetches: s.fetches,
            fetches_unchanged: s.fetches_unchanged,
            invalidations: s.invalidations,
            subscriptions: self.fullest.kept as u64,
            revocations: s.revocations,
            forwards: s.forwards,
            accepts_paused: cx.host.accepts_paused,
            ended_for_room: cx.host.ended_for_room,
            staged_bytes: self.parts_bytes as u64,
        }
    }

    fn storage(&self, cx: &Cx) -> Storage {
        let (pages, syncs) = (&cx.work.pages, &cx.host.syncs);
        let Times { counts, sum_us, .. } = syncs;
        Storage {
            disk_full: cx.host.disk_full,
            page_reads: pages.reads_asked,
            pages_installed: pages.pages_installed,
            mob_bytes: pages.mob.bytes() as u64,
            mob_pages: pages.mob.pages() as u64,
            log_bytes: cx.host.log_bytes,
            sync_p99_us: syncs.percentile_us(99),
            slow_syncs: syncs.slow,
            replay_entries: pages.entries_behind(),
            backup_stamp: self.backups.stamp().map_or(0, |s| s.0),
            backup_bytes: pages.mob.bytes_aside() as u64,
            syncs: Syncs { bounds_us: Times::BOUNDS_US.to_vec(), counts: counts.to_vec(), sum_us: *sum_us },
        }
    }

    fn following(&self, cx: &Cx) -> Following {
        let (readers, passed_on) = self.reading();
        let silent_us = self.upstreams.line.silent_us(cx.work.now);
        Following {
            readers: readers as u64,
            passed_on: passed_on as u64,
            leader_silent_ms: silent_us.map(|us| us / 1_000),
        }
    }
}

fn pages(ticket: Option<u64>, cx: &Cx) -> Pages {
    let (s, places) = (&cx.work.stats, &cx.work.replica.places);
    Pages {
        pages: places.next_page().saturating_sub(1).into(),
        pages_max: PageId::MAX.get().into(),
        pages_in_use: places.in_use().into(),
        pages_free: places.left().into(),
        pages_granted: places.granted_count() as u64,
        bytes_granted: (places.granted_count() * PAGE_BYTES) as u64,
        pages_returned: places.returned_count() as u64,
        pages_held_back: places.held_back_count() as u64,
        trees_released: cx.work.replica.released.count() as u64,
        freed: s.freed,
        collected: s.collected,
        collection_ticket: ticket.unwrap_or_default(),
    }
}

fn network(cx: &Cx) -> Network {
    let network = cx.host.network;
    Network {
        certificate_days_left: network.days_left,
        certificate_outdated: network.is_outdated,
        plain_remote: network.is_plain,
        warnings: network.warnings(),
    }
}

fn archive(state: ArchiveState, lag_ms: Option<u64>) -> Archive {
    let is = |one: ArchiveState| u8::from(state == one);
    Archive {
        archive_stuck: is(ArchiveState::Stuck),
        archive_ended: is(ArchiveState::Ended),
        // The lag of another member's writer is not known here.
        archive_lag_ms: lag_ms.filter(|_| state != ArchiveState::Waits),
    }
}

/// The group, as this member knows it.
fn of_group(group: &Status, cx: &Cx) -> Group {
    let why = match group.why {
        Why::NoLeader => "it knew of no leader",
        Why::Ended => "the process of the leader before had ended",
        Why::Silent => "the leader before was silent",
        Why::Handed => "the leader before handed the lead over",
    };
    let address = |of: &Listed| of.address.to_string();
    let led = group.leader.and_then(|leader| group.members.get(leader)).map(address);
    let unled_us = cx.work.sequencer.unled_us(cx.work.now);
    Group {
        group: format!("{:016x}", cx.group),
        member: group.me.to_string(),
        view: group.view.number.into(),
        leads: cx.leader.is_some(),
        leader: led.clone().filter(|_| unled_us.is_none()),
        led,
        unled_ms: unled_us.map(|us| us / 1_000),
        why: why.into(),
        begins: group.begins.0,
        end: group.end.position.0,
        stable: group.stable.0,
        sure: group.is_sure,
        lost: group.lost_before.is_some(),
        refused: refused(cx).map(String::from),
        unsure_view: cx.condition.unsure.map(|(view, _)| view.number.into()),
        members: group.members.iter().map(|member| of_member(member, group, cx)).collect(),
    }
}

fn of_member(member: &Listed, group: &Status, cx: &Cx) -> Member {
    let other = group.others.iter().find(|other| other.id == member.id);
    let end = match member.id == group.me {
        true => Some(group.end.position.0),
        false => other.map(|other| other.durable.0),
    };
    Member {
        member: member.id.to_string(),
        address: member.address.to_string(),
        votes: member.votes,
        leads: group.leader == Some(member.id),
        end,
        lag: end.map(|end| group.end.position.0.saturating_sub(end)),
        round_trip_us: other
            .filter(|other| other.is_there(cx.work.now))
            .and_then(|other| other.round_trip_us),
        silent_ms: other.map(|other| cx.work.now.since_us(other.heard) / 1_000),
        gone: other.is_some_and(|other| other.is_gone),
        lost: other.is_some_and(|other| other.is_lost),
    }
}

fn leading(leader: &Leader, cx: &Cx) -> Leading {
    let outlook = leader.outlook(cx.work.now, &cx.work.replica);
    let time_to_full = match (outlook.fresh_per_hour, outlook.seconds_to_full) {
        (None, _) => "not known yet".into(),
        (_, None) => "not at the present rate".into(),
        (_, Some(seconds)) => in_words(seconds),
    };
    Leading {
        collection: leader.collect_status(&cx.work.replica.places),
        counted: leader.counted().map(|counted| Counted {
            room: counted.room,
            seconds_ago: cx.work.now.since_us(counted.at) / 1_000_000,
        }),
        across: across(leader, cx),
        contended: contended(leader, cx),
        fresh_pages_per_hour: outlook.fresh_per_hour,
        seconds_to_full: outlook.seconds_to_full,
        time_to_full,
        warnings: outlook.warning.iter().map(ToString::to_string).collect(),
    }
}

/// The objects over which most transactions were refused.
fn contended(leader: &Leader, cx: &Cx) -> Vec<Contended> {
    let name = |class| cx.work.replica.catalogue.class(class).map_or("", Layout::name).into();
    let told = |losses: &Losses| Contended {
        object: losses.over.to_string(),
        class: losses.class.map_or(String::new(), name),
        conflicts: losses.count,
    };
    leader.most_contended(CONTENDED_TOLD).iter().map(told).collect()
}

/// Contended objects that the status names.
const CONTENDED_TOLD: usize = 8;

/// Transactions over several spaces: parts that wait to be settled, the oldest first, and decisions whose
/// parts do.
fn across(leader: &Leader, cx: &Cx) -> Across {
    let prepares = &cx.work.replica.prepares;
    let age_ms = |stamp: Stamp| leader.part_age_us(stamp, cx.work.now) / 1_000;
    let parts = prepares.iter().take(PARTS_TOLD).map(|(stamp, part)| Part {
        of: part.of.to_string(),
        coordinator: format!("{:x}", part.coordinator.0),
        prepared: stamp.0,
        age_ms: age_ms(stamp),
    });
    Across {
        prepared: prepares.len() as u64,
        oldest_ms: prepares.iter().map(|(stamp, _)| age_ms(stamp)).max().unwrap_or(0),
        decided: cx.work.replica.decisions.len() as u64,
        unreached: leader.unreached().unwrap_or_default().into(),
        parts: parts.collect(),
    }
}

/// Parts that the status names.
const PARTS_TOLD: usize = 16;
