//! Worlds tuned to a race: each function makes a plan in which the mistake of a variant matters.

use tercel_engine::random::Random;
use tercel_engine::server::CollectConfig;

use crate::plan::{Fault, FaultKind, GroupPlan, LogBounds, Pace, Plan};

/// Far more bytes than the cache holds, and transactions that read many of them slowly.
pub(super) fn crowded(plan: &mut Plan) {
    plan.cells = 500;
    plan.mob_bytes = 512 << 10;
    plan.cache_bytes = 264 << 10;
    plan.threads = 3;
    plan.think_us = 100;
    plan.latency_us = 20;
    plan.patience_us = 2_000_000;
    plan.mix = [4, 0, 4, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    plan.server.subscriptions = 1 << 20;
}

/// As [`crowded`], with transactions that read up to 24 cells, more than the cache has frames, and then
/// write. Cells read first often leave their place before the commit. A sync takes long, so the client hears
/// late of commits that wrote them.
pub(super) fn read_through(plan: &mut Plan) {
    crowded(plan);
    plan.reads_max = 24;
    plan.sync_us = 4_000;
    plan.commits = plan.commits.min(400);
    plan.mix = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
}

/// Connections are cut all the time, and bytes are on their way for longer than it takes to connect again.
pub(super) fn cut_off(plan: &mut Plan) {
    plan.clients = plan.clients.max(4);
    plan.latency_us = 10_000;
    plan.commits = plan.commits.min(400);
    let kinds = [FaultKind::Cut, FaultKind::Cut, FaultKind::HalfOpen];
    plan.faults.iter_mut().zip(kinds.into_iter().cycle()).for_each(|(f, kind)| f.kind = kind);
}

/// A table of operations that is too small for its clients, whose connections are cut all the time.
pub(super) fn forgetful(plan: &mut Plan) {
    plan.small = true;
    plan.clients = 7;
    plan.patience_us = 200_000;
    plan.sync_us = 500;
    // New processes take the places of clients whose connections are cut.
    let kinds = [FaultKind::Cut, FaultKind::Cut, FaultKind::ClientCrash];
    plan.faults.iter_mut().zip(kinds.into_iter().cycle()).for_each(|(f, kind)| f.kind = kind);
}

/// As [`forgetful`], but a client that lost its connection with commits under way does not know it for a
/// while. Meanwhile new processes take its place in the table.
pub(super) fn half_open(plan: &mut Plan) {
    plan.small = true;
    plan.clients = 6;
    plan.threads = 3;
    plan.patience_us = 200_000;
    plan.sync_us = 4_000;
    plan.think_us = 20;
    plan.keepalive_ms = 300;
    let kinds = [FaultKind::HalfOpen, FaultKind::ClientCrash, FaultKind::ClientCrash, FaultKind::ClientCrash];
    for (f, kind) in plan.faults.iter_mut().zip(kinds.into_iter().cycle()) {
        f.kind = kind;
        // The server hears at once that the connection is gone, the client not.
        f.dice = (f.dice & 0xffff) | (1 << 16);
    }
}

/// Pages are stored and read all the time, through a page cache that holds few of them.
pub(super) fn busy_store(plan: &mut Plan) {
    crowded(plan);
    plan.small = true;
    plan.mob_bytes = 256 << 10;
    plan.server.images_bytes = 1;
    plan.sync_us = 4_000;
}

/// Commits wait for room and for pages, and their clients do not wait for them.
pub(super) fn impatient(plan: &mut Plan) {
    plan.cells = 60;
    plan.mob_bytes = 32 << 10;
    plan.server.images_bytes = 1;
    plan.patience_us = 5_000;
    plan.sync_us = 2_000;
    plan.mix = [6, 0, 6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
}

/// Objects are promised and made all the time.
pub(super) fn births(plan: &mut Plan) {
    plan.mix = [1, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0];
    plan.think_us = 1_000;
}

/// Leaders are deposed all the time, with much that is not stable.
pub(super) fn grouped(plan: &mut Plan) {
    // With small bounds a commit may have more pieces than a view has entries, and would never be ordered.
    plan.small = false;
    (plan.latency_us, plan.sync_us) = (plan.latency_us.min(200), plan.sync_us.min(500));
    *plan = plan.clone().with_members(3);
    dense(
        plan,
        150,
        &[FaultKind::MemberCut, FaultKind::MoveLead, FaultKind::ServerPause, FaultKind::MemberCut],
    );
}

/// A space that is put back from a copy, soon.
pub(super) fn put_back(plan: &mut Plan) {
    plan.put_back = true;
    plan.group = None;
    plan.commits = 100;
}

/// A short index of recent writes, and clients that are held up in the midst of what they do.
pub(super) fn held_up(plan: &mut Plan) {
    plan.small = true;
    dense(plan, 1_000, &[FaultKind::ClientPause]);
}

/// Mostly calls of a service, of impatient callers.
pub(super) fn served(plan: &mut Plan) {
    plan.mix = [1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 12];
    plan.cells = plan.cells.min(8);
}

/// The same, whose requests come again.
pub(super) fn served_twice(plan: &mut Plan) {
    served(plan);
    dense(plan, 80, &[FaultKind::Repeat]);
}

/// The same, of clients that have few slots.
pub(super) fn served_few(plan: &mut Plan) {
    served(plan);
    plan.small = true;
}

/// Mostly calls, of impatient callers, on connections that end.
pub(super) fn called(plan: &mut Plan) {
    plan.mix = [1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 12, 0];
    plan.cells = plan.cells.min(8);
}

/// The same, whose requests come again.
pub(super) fn called_twice(plan: &mut Plan) {
    called(plan);
    dense(plan, 80, &[FaultKind::Repeat]);
}

/// The same, of few objects, at servers that are killed.
pub(super) fn called_at_killed(plan: &mut Plan) {
    called(plan);
    plan.cells = 2;
    dense(plan, 80, &[FaultKind::ServerKill, FaultKind::PowerLoss]);
}

/// Objects are watched at two clients.
pub(super) fn watched(plan: &mut Plan) {
    plan.watchers = 2;
}

/// Leaders stand still or are cut off, and go on when others lead: they do not know of that yet.
pub(super) fn paused_leaders(plan: &mut Plan) {
    grouped(plan);
    let kinds = [FaultKind::MemberCut, FaultKind::ServerPause, FaultKind::Cut, FaultKind::Cut];
    dense(plan, 60, &kinds);
}

/// Views that end before their own entry is stable.
pub(super) fn short_views(plan: &mut Plan) {
    grouped(plan);
    plan.commits = plan.commits.min(600);
    dense(plan, 40, &[FaultKind::MemberCut, FaultKind::MoveLead]);
}

/// Members lose their disks, while leaders change.
pub(super) fn wiped_members(plan: &mut Plan) {
    grouped(plan);
    plan.group = plan.group.map(|group| GroupPlan { spares: 1, ..group });
    let kinds = [FaultKind::MemberCut, FaultKind::MemberWiped, FaultKind::MoveLead, FaultKind::MemberCut];
    dense(plan, 80, &kinds);
}

/// Members are killed and begin again, all the time.
pub(super) fn restarted_members(plan: &mut Plan) {
    grouped(plan);
    dense(plan, 150, &[FaultKind::ServerKill, FaultKind::MemberCut, FaultKind::PowerLoss]);
}

/// A group whose pages are stored and read all the time, through a page cache that holds few of them.
pub(super) fn storing_group(plan: &mut Plan) {
    grouped(plan);
    plan.cells = 60;
    plan.mob_bytes = 32 << 10;
    plan.server.images_bytes = 1;
    // The log is always too long, so that each batch comes with a checkpoint.
    plan.log = LogBounds { segment_bytes: 1_024, bytes_max: 4_096 };
    plan.sync_us = 1000;
    plan.mix = [8, 0, 6, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
}

/// Members come and go, and take copies while much is stored, amid large transactions.
pub(super) fn copied(plan: &mut Plan) {
    copied_amid_installs(plan);
    plan.mix[9] = 3;
    plan.mob_bytes = 4 << 20;
}

/// The same without those: pages are stored all the time, also between two that a copy reads.
pub(super) fn copied_amid_installs(plan: &mut Plan) {
    storing_group(plan);
    plan.small = true;
    plan.group = plan.group.map(|group| GroupPlan { spares: 2, strays_one_in: 0, ..group });
    let kinds = [FaultKind::MemberComes, FaultKind::MemberGoes, FaultKind::MemberWiped];
    dense(plan, 100, &kinds);
}

/// A group whose clients' requests come twice, the second time when leaders have changed.
pub(super) fn repeating_group(plan: &mut Plan) {
    grouped(plan);
    plan.cells = 60;
    plan.sync_us = 500;
    plan.patience_us = 2_000_000;
    plan.mix = [6, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    dense(plan, 50, &[FaultKind::Repeat, FaultKind::Repeat, FaultKind::MemberCut, FaultKind::MoveLead]);
}

/// Processes with places come and go, and some do not hear for a while that they have been given up.
pub(super) fn leaving(plan: &mut Plan) {
    births(plan);
    plan.small = true;
    plan.clients = 5;
    plan.keepalive_ms = 100;
    let kinds = [FaultKind::ClientCrash, FaultKind::Cut, FaultKind::ClientPause, FaultKind::HalfOpen];
    plan.faults.iter_mut().zip(kinds.into_iter().cycle()).for_each(|(f, kind)| f.kind = kind);
}

/// A loop whose slices end, and clients that leave much unread.
pub(super) fn paced(plan: &mut Plan) {
    plan.pace = Some(Pace {
        frame_us: 25,
        unsent_ask_max: 512,
        unsent_bytes_max: 1 << 30,
        window_bytes: 512,
        slow_us: 200,
    });
}

/// Collections one after the other, while most transactions change the graph. Pieces take long to become
/// stable.
pub(super) fn overgrown(plan: &mut Plan) {
    plan.small = true;
    plan.group = None;
    plan.clients = plan.clients.max(4);
    plan.threads = 3;
    plan.mix = [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0];
    plan.mob_bytes = 4 << 20;
    plan.server.images_bytes = 1 << 20;
    plan.log.bytes_max = u64::MAX;
    plan.server.subscriptions = 1 << 20;
    plan.patience_us = 2_000_000;
    (plan.latency_us, plan.sync_us, plan.think_us) = (200, 4_000, 1_000);
    plan.commits = plan.commits.min(400);
    plan.faults.truncate(4);
    plan.server.collect = CollectConfig { is_automatic: true, grace_ms: 5, made_min: 1, made_percent: 0 };
}

/// Few programs, which make many objects and let go of them: pages become empty, and are given out again, all
/// the time.
pub(super) fn reborn(plan: &mut Plan) {
    overgrown(plan);
    (plan.clients, plan.threads) = (3, 1);
    plan.mix = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0];
    (plan.latency_us, plan.sync_us, plan.think_us) = (20, 50, 20);
    plan.commits = 1_500;
    plan.keepalive_ms = 100;
    plan.server.collect.grace_ms = 0;
}

/// As [`overgrown`], with programs that take their time within a transaction.
pub(super) fn hesitant(plan: &mut Plan) {
    overgrown(plan);
    plan.sync_us = 500;
    plan.think_us = 5_000;
    plan.server.collect.grace_ms = 0;
}

/// As [`overgrown`], with a time of grace that programs live to see the end of, by clocks that do not jump.
pub(super) fn patient(plan: &mut Plan) {
    overgrown(plan);
    plan.faults.retain(|fault| fault.kind != FaultKind::ClockJump);
    plan.sync_us = 500;
    plan.server.collect.grace_ms = 100;
}

/// Faults of these kinds in turn, one every so many events.
pub(super) fn dense(plan: &mut Plan, every: u64, kinds: &[FaultKind]) {
    let fault = |(i, kind): (u64, &FaultKind)| {
        let dice = Random::new(plan.seed.wrapping_add(i << 32)).next_u64();
        Fault { at: 500 + i * every, kind: *kind, dice }
    };
    plan.faults = (0..400).zip(kinds.iter().cycle()).map(fault).collect();
}
