//! Groups of sequencers in small worlds made from seeds: links that lose, double, delay and are cut; disks
//! that lag; members that crash, pause and come back; logs that end in damage.

mod node;
mod world;

#[cfg(tercel_mutants)]
use tercel_machine::mutant::Rule;

use std::sync::Arc;

use super::members::{Member, Members};
use super::packet::{Append, Check, Contents, Packet, Vote};
use super::{Config, Quorum, Start, Status, VIEWS_AHEAD_MAX};
use crate::{Input, Output, Sealed};
use tercel_machine::time::Now;
use tercel_wire::id::{EntryId, LogPosition, MemberId, Stamp, ViewId};
use world::{Disks, Plan, World};

/// Runs worlds from seeds. Gives what the first that failed blames.
fn hunt(seeds: std::ops::Range<u64>, plan: fn(u64) -> Plan) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let run = std::panic::catch_unwind(|| World::new(plan(seed)).run());
        run.unwrap_or_else(|_| Err("it panics".into())).err().map(|blame| (seed, blame))
    })
}

#[test]
fn groups_keep_what_is_stable_and_converge() {
    let worlds = std::env::var("TERCEL_TEST_WORLDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let plans = [
        Plan::of_either,
        Plan::of_torn_logs,
        Plan::of_stalled_disks,
        Plan::of_crashes_amid_stalls,
        Plan::of_slow_disks,
        Plan::of_busy_hosts,
    ];
    let found = plans.into_iter().find_map(|plan| hunt(0..worlds, plan));
    assert!(found.is_none(), "seed {}: {}", found.as_ref().unwrap().0, found.as_ref().unwrap().1);
}

/// Worlds that were found to fail once, and pass.
#[test]
fn worlds_that_failed_pass() {
    // A member gets 182 entries one by one, from a disk that stalls to a disk that stalls.
    assert_eq!(hunt(8_984..8_985, Plan::of_stalled_disks), None);
}

#[test]
fn worlds_have_views_cuts_crashes_and_changes() {
    let mut counts = world::Seen::default();
    for seed in 0..100 {
        let mut world = World::new(Plan::of(seed));
        world.run().unwrap();
        counts.add(&world.seen);
    }
    let world::Seen { views, cuts, crashes, changes, confirmed, stable, unsure } = counts;
    let often = [views, cuts, crashes, changes, confirmed, stable];
    assert!(often.iter().all(|n| *n >= 10) && unsure > 0, "{counts:?}");
}

#[test]
fn same_seed_gives_the_same_world() {
    let trace = |seed| {
        let mut world = World::new(Plan::of(seed));
        world.run().unwrap();
        (world.now(), world.seen)
    };
    assert_eq!(trace(7), trace(7));
}

/// Each rule of the order is missed when it is dropped. `RUSTFLAGS='--cfg tercel_mutants'` makes it possible.
#[cfg(tercel_mutants)]
#[test]
fn every_dropped_rule_is_noticed() {
    for rule in Rule::OF_GROUPS {
        tercel_machine::mutant::drop_rule(Some(*rule));
        let found = match rule {
            // Worlds made at random meet what it is for once in thousands.
            Rule::SureByFirstMatch => hunt_torn(0..50),
            Rule::ListNotSaved => hunt(0..WORLDS_MAX, Plan::of_torn_logs),
            Rule::AsksByTwoLists => {
                (!asks_by_list_between()).then(|| (0, "a member that votes never asks".into()))
            }
            Rule::DifferenceIgnored => {
                (!difference_is_named()).then(|| (0, "a member whose log is another goes on".into()))
            }
            Rule::ReadForgotten => hunt(0..WORLDS_MAX, Plan::of_stalled_disks),
            Rule::CutsCountedWhenAsked => hunt(0..WORLDS_MAX, Plan::of_stalled_disks),
            // A crash between a mark and what it names, and disks that are slow all the time, are as rare.
            Rule::MarkBeyondDisk => hunt(3_500..WORLDS_MAX, Plan::of_crashes_amid_stalls),
            Rule::UnlistedCounts => {
                unlisted_changes_something().then(|| (0, "a member that is on no list is heard".into()))
            }
            Rule::PausesForgotten => hunt(0..WORLDS_MAX, Plan::of_busy_hosts),
            Rule::CandidacyEndsWhileSaving => hunt(3_400..WORLDS_MAX, Plan::of_slow_disks),
            _ => hunt(0..WORLDS_MAX, Plan::of_either),
        };
        tercel_machine::mutant::drop_rule(None);
        println!("{rule:?}: {found:?}");
        assert!(found.is_some(), "{rule:?} can be dropped");
    }
}

#[cfg(tercel_mutants)]
const WORLDS_MAX: u64 = 5_000;

/// Three members in whom nothing fails, and the first to lead.
fn quiet(seed: u64) -> (World, MemberId) {
    begun(Plan::quiet(seed, 3))
}

fn begun(plan: Plan) -> (World, MemberId) {
    let mut world = World::new(plan);
    let leader = world.until(|world| world.leader());
    (world, leader)
}

/// Entries are stable on the disks of the leader and one other member. Gives these two, and the third.
fn stable_on_two(plan: Plan) -> (World, [MemberId; 3]) {
    let (mut world, leader) = begun(Plan { may_rot: true, ..plan });
    let others = world.others(leader);
    world.cut(leader, others[1]);
    let before = world.stable_entries();
    world.until(|world| (world.stable_entries() >= before + 6).then_some(()));
    (world, [leader, others[0], others[1]])
}

/// A member loses stable entries of its log, and so does the group its leader once that member is sure.
fn torn_member_gets_all_again(plan: Plan, questions: usize) {
    let seed = plan.seed;
    let (mut world, [leader, torn, _]) = stable_on_two(plan);
    let stable = world.stable_entries();
    world.tear(torn, stable - 2);
    (0..questions).for_each(|_| world.ask(leader));
    let has = world.until(|world| Some(world.log(torn)).filter(|(_, is_sure)| *is_sure)).0;
    assert!(has >= stable, "seed {seed}: it has {has} of {stable} entries and is sure");
    world.end(leader);
    world.uncut();
    world.until(|world| world.leader());
    let stable = world.stable_entries();
    world.until(|world| (world.stable_entries() > stable).then_some(()));
}

/// Runs worlds in which a member loses stable entries. Gives the first that failed.
#[cfg(tercel_mutants)]
fn hunt_torn(seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let run = std::panic::catch_unwind(|| torn_member_gets_all_again(Plan::quiet(seed, 3), 2));
        run.err().map(|_| (seed, "a member is sure too early".into()))
    })
}

#[test]
fn torn_member_is_unsure_until_refilled() {
    for seed in 0..50 {
        torn_member_gets_all_again(Plan::quiet(seed, 3), 2);
    }
}

#[test]
fn torn_member_is_refilled_piece_by_piece() {
    for seed in 0..50 {
        let plan = Plan { window_bytes: 20, asks: false, ..Plan::quiet(seed, 3) };
        torn_member_gets_all_again(plan, 0);
    }
}

#[test]
fn torn_member_ignores_end_said_to_earlier_process() {
    let (mut world, [leader, torn, _]) = stable_on_two(Plan::quiet(1, 3));
    let stable = world.stable_entries();
    world.tear(torn, stable - 2);
    let view = world.until(|world| world.status(torn).filter(|it| it.leader.is_some())).view;
    let late = Packet::End { view, process: 0, end: LogPosition(1) };
    world.tell(torn, crate::Input::Packet(leader, &late.encode()));
    let has = world.until(|world| Some(world.log(torn)).filter(|(_, is_sure)| *is_sure)).0;
    assert!(has >= stable, "it has {has} of {stable} entries and is sure");
}

#[test]
fn torn_member_is_unsure_until_written() {
    let (mut world, [leader, torn, _]) = stable_on_two(Plan::quiet(1, 3));
    let stable = world.stable_entries();
    world.tear(torn, stable - 2);
    world.hang_disk(torn);
    world.uncut();
    world.until(|world| (world.stable_entries() > stable + 100).then_some(()));
    assert!(!world.log(torn).1);
    // Its leader no longer believes what it had acknowledged before.
    let others = world.status(leader).unwrap().others;
    let durable = others.iter().find(|other| other.id == torn).unwrap().durable;
    assert!(durable.0 as usize <= stable - 2, "{durable}");
}

/// Three voters and a learner lose their power; the voters' logs end in damage, and the learner is gone.
fn voters_after_power_cut(seed: u64, remember: bool) -> (World, MemberId) {
    let plan = Plan { voters: 3, may_rot: true, ..Plan::quiet(seed, 4) };
    let (mut world, _) = begun(plan);
    world.until(|world| (world.stable_entries() > 20).then_some(()));
    let (voters, learner) = ([1, 2, 3].map(MemberId), MemberId(4));
    [&voters[..], &[learner]].concat().into_iter().for_each(|member| world.end(member));
    for voter in voters {
        if !remember {
            world.forget_electorate(voter);
        }
        let entries = world.log(voter).0;
        world.tear(voter, entries);
    }
    (world, learner)
}

#[test]
fn voters_with_torn_logs_need_no_learner() {
    for seed in 0..20 {
        let (mut world, _) = voters_after_power_cut(seed, true);
        world.until(|world| world.leader());
    }
}

#[test]
fn voters_that_remember_no_electorate_need_all() {
    let (mut world, learner) = voters_after_power_cut(1, false);
    world.pass(5 * world.deadline_us());
    assert_eq!(world.leader(), None);
    world.begin(learner);
    world.until(|world| world.leader());
}

/// A member that learned votes by a list, which a member that acknowledged it loses, and a voter never had.
fn voter_by_lost_list(seed: u64) -> (World, MemberId) {
    let (mut world, leader) = begun(Plan { voters: 2, may_rot: true, ..Plan::quiet(seed, 3) });
    let (other, newer) = (world.others(leader)[0], MemberId(3));
    [leader, newer].into_iter().for_each(|member| world.cut(member, other));
    let before = world.stable_entries();
    world.order_list(leader, &[leader, other, newer]);
    world.until(|world| (world.stable_entries() > before + 6).then_some(()));
    world.end(newer);
    world.tear(leader, before);
    world.uncut();
    (world, newer)
}

#[test]
fn voter_by_lost_list_is_waited_for() {
    for seed in 0..20 {
        let (mut world, newer) = voter_by_lost_list(seed);
        let stable = world.stable_entries();
        world.pass(5 * world.deadline_us());
        assert_eq!(world.leader(), None);
        world.begin(newer);
        world.until(|world| world.leader());
        world.until(|world| (world.stable_entries() > stable).then_some(()));
    }
}

/// A member is removed and gone. Only the leader hears that this is stable, orders another list, and loses
/// that.
#[test]
fn voter_of_older_list_is_not_needed() {
    for seed in 0..20 {
        let (mut world, leader) = begun(Plan { voters: 3, may_rot: true, ..Plan::quiet(seed, 4) });
        let learner = MemberId(4);
        let [other, gone] =
            [1, 2, 3].map(MemberId).into_iter().filter(|id| *id != leader).collect::<Vec<_>>()[..]
        else {
            unreachable!()
        };
        world.end(gone);
        world.order_list_with(leader, &[leader, other], &[learner]);
        let list = world.status(leader).unwrap().end.position;
        world.until(|world| (world.status(leader)?.stable >= list).then_some(()));
        assert!(world.status(other).unwrap().stable < list, "seed {seed}: it is told later");
        world.cut(leader, other);
        world.cut(leader, learner);
        let kept = world.log(leader).0;
        world.order_list(leader, &[leader, other]);
        world.until(|world| (world.log(leader).0 > kept).then_some(()));
        world.pass(world.deadline_us() / 4);
        world.end(learner);
        world.tear(leader, kept);
        world.uncut();
        world.until(|world| world.leader());
    }
}

#[test]
fn lead_is_handed_to_named_member() {
    for seed in 0..20 {
        let (mut world, leader) = quiet(seed);
        let to = world.others(leader)[seed as usize % 2];
        let (begun, silent_us) = (world.now(), world.deadline_us());
        world.tell(leader, crate::Input::MoveLead(to));
        assert_eq!(world.until(|world| world.leader().filter(|now| *now != leader)), to);
        assert!(world.now().since_us(begun) < silent_us, "nobody waits for a deadline");
    }
}

#[test]
fn lead_is_handed_over_while_entries_come() {
    for seed in 0..20 {
        let plan = Plan {
            disks: Disks::that_take(800),
            window_bytes: 100_000,
            work_us: 100,
            ..Plan::quiet(seed, 3)
        };
        let (mut world, leader) = begun(plan);
        let (to, third) = (world.others(leader)[0], world.others(leader)[1]);
        // Only the leader before can vote: that member has just begun, say.
        world.cut(to, third);
        let (begun, silent_us) = (world.now(), world.deadline_us());
        let before = world.status(leader).unwrap().view.number;
        world.tell(leader, crate::Input::MoveLead(to));
        let next = world.until(|world| world.leader().filter(|now| *now != leader));
        let view = world.status(to).unwrap().view.number;
        assert_eq!((next, view), (to, before + 1), "seed {seed}: the first view that it wants");
        assert!(world.now().since_us(begun) < silent_us);
    }
}

#[test]
fn leader_that_ends_is_replaced_at_once() {
    for seed in 0..20 {
        let (mut world, leader) = quiet(seed);
        let begun = world.now();
        world.end(leader);
        world.until(|world| world.leader());
        assert!(world.now().since_us(begun) < world.deadline_us(), "seed {seed}");
    }
}

#[test]
fn leader_knows_of_ended_member_until_it_answers() {
    let (mut world, leader) = quiet(1);
    let other = world.others(leader)[0];
    let is_gone = |world: &World| {
        let others = world.status(leader).unwrap().others;
        others.iter().find(|it| it.id == other).unwrap().is_gone
    };
    assert!(!is_gone(&world));
    world.end(other);
    assert!(is_gone(&world));
    world.pass(world.deadline_us());
    assert!(is_gone(&world));
    world.begin(other);
    world.until(|world| (!is_gone(world)).then_some(()));
}

#[test]
fn leader_left_alone_answers_what_was_asked_before() {
    let (mut world, leader) = begun(Plan { asks: false, ..Plan::quiet(1, 2) });
    let other = world.others(leader)[0];
    world.cut(leader, other);
    world.ask(leader);
    let confirmed = world.seen.confirmed;
    world.order_list(leader, &[leader]);
    assert_eq!(world.seen.confirmed, confirmed + 1);
}

#[test]
fn joining_member_reaches_leader_behind_old_lists() {
    let member = |id: u64, votes| Member { id: MemberId(id), votes, address: format!("m{id}:1") };
    let list = |of: &[(u64, bool)]| {
        Members::new(of.iter().map(|(id, votes)| member(*id, *votes)).collect()).unwrap()
    };
    let (old, now) = (list(&[(1, true), (2, true)]), list(&[(2, true), (3, true)]));
    let start = Start {
        me: MemberId(4),
        promised: ViewId::NONE,
        begins: EntryId::default(),
        runs: Vec::new(),
        stable: LogPosition::ZERO,
        stable_stamp: Stamp::ZERO,
        members: now.clone(),
        electorate: None,
        suffix: Vec::new(),
        is_sure: true,
    };
    let mut quorum = Quorum::new(Config::default(), start, 1, Now(0));
    quorum.joined(now);
    let mut payload = Vec::new();
    old.encode(&mut payload);
    let view = ViewId::new(1, 1);
    let entry = Sealed { stamp: Stamp(1), view, kind: crate::KIND_MEMBERS, payload: Arc::new(payload) };
    let append = Append {
        view,
        round: 1,
        before: EntryId::default(),
        stable: LogPosition(1),
        rank: 0,
        asks: true,
        check: Default::default(),
        entries: vec![entry],
    };
    let mut out = Vec::new();
    crate::Sequencer::handle(
        &mut quorum,
        Now(1),
        Input::Packet(MemberId(3), &Packet::Append(append).encode()),
        &mut out,
    );
    let told = out.iter().rev().find_map(|output| match output {
        Output::Members(members) => Some(members.iter().map(|member| member.id.0).collect::<Vec<_>>()),
        _ => None,
    });
    assert!(
        told.is_some_and(|told| told.contains(&3)),
        "its leader, 3, is not among those that it connects to"
    );
}

/// A member votes by a list that is neither the newest nor the one at what is stable: either may come to
/// count. Says whether it asks.
fn asks_by_list_between() -> bool {
    let member = |id: u64| Member { id: MemberId(id), votes: id < 4, address: String::new() };
    let list = |of: std::ops::RangeInclusive<u64>, votes: bool| {
        let one = |id| Member { votes: if id == 4 { votes } else { id < 4 }, ..member(id) };
        Members::new(of.map(one).collect()).unwrap()
    };
    let view = ViewId::new(1, 1);
    let entry = |at: u64, members: Members| {
        let mut payload = Vec::new();
        members.encode(&mut payload);
        Sealed { stamp: Stamp(at), view, kind: crate::KIND_MEMBERS, payload: Arc::new(payload) }
    };
    let start = Start {
        me: MemberId(4),
        promised: view,
        begins: EntryId::default(),
        runs: vec![super::Run { view, last: LogPosition(1) }],
        stable: LogPosition(1),
        stable_stamp: Stamp(1),
        members: list(1..=3, false),
        electorate: None,
        suffix: vec![entry(2, list(1..=4, true)), entry(3, list(1..=4, false))],
        is_sure: true,
    };
    let mut quorum = Quorum::new(Config::default(), start, 1, Now(0));
    let mut out = Vec::new();
    crate::Sequencer::handle(&mut quorum, Now(1), Input::Ready(true), &mut out);
    (1..50).for_each(|at| crate::Sequencer::handle(&mut quorum, Now(at * 10_000), Input::Time, &mut out));
    let is_ask = |bytes: &[u8]| matches!(Packet::decode(bytes), Ok(Packet::Ask { .. }));
    out.iter().any(|output| matches!(output, Output::Send(_, bytes) if is_ask(bytes)))
}

#[test]
fn member_that_votes_by_any_list_asks() {
    assert!(asks_by_list_between());
}

/// A member begins with entries of view 1 as stable, and hears its leader of view 2.
struct Compared {
    quorum: Quorum,
    round: u64,
}

impl Compared {
    fn with_three() -> Compared {
        let view = ViewId::new(1, 1);
        let start = Start {
            me: MemberId(1),
            promised: view,
            begins: EntryId::default(),
            runs: vec![super::Run { view, last: LogPosition(3) }],
            stable: LogPosition(3),
            stable_stamp: Stamp(3),
            members: members_that_vote(3),
            electorate: None,
            suffix: Vec::new(),
            is_sure: true,
        };
        Compared { quorum: Quorum::new(Config::default(), start, 1, Now(0)), round: 0 }
    }

    /// Takes entries behind one, all of them stable. Gives the position of an entry that is another.
    fn hears(&mut self, before: EntryId, entries: &[Sealed], check: Check) -> Option<LogPosition> {
        self.round += 1;
        let stable = LogPosition(before.position.0 + entries.len() as u64);
        let (view, round, entries) = (ViewId::new(2, 1), self.round, entries.to_vec());
        let append = Append { view, round, before, stable, rank: 0, asks: true, check, entries };
        let (packet, mut out) = (Packet::Append(append).encode(), Vec::new());
        crate::Sequencer::handle(&mut self.quorum, Now(1), Input::Packet(MemberId(2), &packet), &mut out);
        let differs = |output: &Output| match output {
            Output::Contradicted(leader, _, at) => Some((*leader, *at)),
            _ => None,
        };
        let (leader, at) = out.iter().find_map(differs)?;
        assert_eq!(leader, MemberId(2));
        Some(at)
    }
}

fn members_that_vote(members: u64) -> Members {
    let member = |id| Member { id: MemberId(id), votes: true, address: String::new() };
    Members::new((1..=members).map(member).collect()).unwrap()
}

fn entry_of(view: u32, at: u64, payload: u8) -> Sealed {
    Sealed { stamp: Stamp(at), view: ViewId::new(view, 1), kind: 3, payload: Arc::new(vec![payload; 8]) }
}

/// The leader has an entry of another view where this member's log is stable. Says whether that is named.
fn difference_is_named() -> bool {
    let before = EntryId { view: ViewId::new(2, 1), position: LogPosition(3) };
    let at = Compared::with_three().hears(before, &[], Check::default());
    at.inspect(|at| assert_eq!(*at, LogPosition(3))).is_some()
}

#[test]
fn member_whose_stable_log_is_another_stops() {
    assert!(difference_is_named());
    // The leader's log leaves it where it was another before the entry that is compared.
    let before = EntryId { view: ViewId::new(1, 1), position: LogPosition(2) };
    let entries = [entry_of(2, 3, 0)];
    assert_eq!(Compared::with_three().hears(before, &entries, Check::default()), Some(LogPosition(3)));
}

#[test]
fn bytes_of_stable_entries_are_compared() {
    let mut member = Compared::with_three();
    let before = EntryId { view: ViewId::new(1, 1), position: LogPosition(3) };
    let entries = [entry_of(2, 4, 7), entry_of(2, 5, 8)];
    let mut tail = super::tail::Tail::new(before, Vec::new(), Stamp(3));
    entries.iter().for_each(|entry| _ = tail.push(entry.clone()));
    let sum = tail.sum(LogPosition(3), LogPosition(5)).unwrap();
    assert_eq!(member.hears(before, &entries, Check { above: LogPosition(3), sum }), None);
    let end = EntryId { view: ViewId::new(2, 1), position: LogPosition(5) };
    let above = LogPosition(4);
    let half = tail.sum(above, end.position).unwrap();
    assert_eq!(member.hears(end, &[], Check { above, sum: half }), None);
    // What is before the oldest entry in memory is not compared.
    assert_eq!(member.hears(end, &[], Check { above: LogPosition(1), sum: 1 }), None);
    assert_eq!(member.hears(end, &[], Check { above, sum: half ^ 1 }), Some(LogPosition(5)));
}

/// A member whose process is run late, and that another one asks then.
struct Late {
    quorum: Quorum,
    round: u64,
}

impl Late {
    fn hears(&mut self, now: Now) {
        self.round += 1;
        let before = EntryId { view: ViewId::new(1, 1), position: LogPosition(3) };
        let (view, round, stable, entries) = (ViewId::new(2, 1), self.round, before.position, Vec::new());
        let check = Check::default();
        let append = Append { view, round, before, stable, rank: 0, asks: false, check, entries };
        self.takes(now, MemberId(2), Packet::Append(append));
    }

    fn takes(&mut self, now: Now, from: MemberId, packet: Packet) -> Vec<Output> {
        let mut out = Vec::new();
        crate::Sequencer::handle(&mut self.quorum, now, Input::Packet(from, &packet.encode()), &mut out);
        out
    }

    /// Says whether it would vote for another member.
    fn grants(&mut self, now: Now) -> bool {
        let end = EntryId { view: ViewId::new(2, 1), position: LogPosition(9) };
        let out = self.takes(now, MemberId(3), Packet::Ask { number: 3, end, is_handed: false });
        let granted = |output: &Output| match output {
            Output::Send(_, bytes) => {
                matches!(Packet::decode(bytes), Ok(Packet::May { is_granted: true, .. }))
            }
            _ => false,
        };
        out.iter().any(granted)
    }

    fn is_given_the_time(&mut self, now: Now) {
        crate::Sequencer::handle(&mut self.quorum, now, Input::Time, &mut Vec::new());
    }
}

#[test]
fn late_member_takes_packets_before_it_judges() {
    let mut late = Late { quorum: Compared::with_three().quorum, round: 0 };
    late.hears(Now(1));
    // It was not run for longer than a leader may be silent. The question of another comes first.
    let now = Now(170_000);
    assert!(!late.grants(now));
    late.hears(now);
    late.is_given_the_time(now);
    assert!(!late.grants(now.plus_us(140_000)));
    // Now nothing more had come when it looked at the time. Its link had a long pause.
    late.is_given_the_time(now.plus_us(681_000));
    assert!(late.grants(now.plus_us(681_000)));
}

#[test]
fn sign_of_life_says_nothing_else() {
    let mut member = Late { quorum: Compared::with_three().quorum, round: 0 };
    member.hears(Now(1));
    let before = member.quorum.status();
    let sign = super::packet::sign_of_life(ViewId::new(2, 1));
    assert!(super::packet::is_sign_of_life(&sign));
    let out = member.takes(Now(140_000), MemberId(2), Packet::decode(&sign).unwrap());
    assert_eq!((out, member.quorum.status()), (Vec::new(), before));
    member.is_given_the_time(Now(280_000));
    assert!(!member.grants(Now(280_000)));
}

#[test]
fn leader_with_long_pauses_is_given_time() {
    let mut member = Late { quorum: Compared::with_three().quorum, round: 0 };
    (0..5).for_each(|i| member.hears(Now(1 + i * 100_000)));
    let heard = Now(400_001);
    member.is_given_the_time(heard.plus_us(300_000));
    assert!(!member.grants(heard.plus_us(300_000)));
    member.is_given_the_time(heard.plus_us(401_000));
    assert!(member.grants(heard.plus_us(401_000)));
}

#[test]
fn leader_whose_disk_hangs_hands_over() {
    for seed in 0..20 {
        let (mut world, leader) = quiet(seed);
        world.hang_disk(leader);
        let (begun, before) = (world.now(), world.stable_entries());
        let next = world.until(|world| world.leader().filter(|now| *now != leader));
        let after_us = world.now().since_us(begun);
        assert!((1_000_000..1_200_000).contains(&after_us), "{next} leads after {after_us} us");
        assert!(world.stable_entries() > before + 100, "nobody waits for the disk");
    }
}

#[test]
fn packet_of_view_far_ahead_is_not_believed() {
    let (mut world, leader) = quiet(1);
    let other = world.others(leader)[0];
    world.until(|world| (world.stable_entries() > 6).then_some(()));
    let before = world.status(leader).unwrap();
    let far = ViewId::new(before.view.number + VIEWS_AHEAD_MAX + 1, 7);
    let end = EntryId { view: far, position: LogPosition(1 << 62) };
    for packet in [
        Packet::Higher { view: far },
        Packet::Vote { view: far, end },
        Packet::Ask { number: far.number, end, is_handed: true },
        Packet::May { number: 1, is_granted: false, promised: u32::MAX },
    ] {
        world.tell(leader, Input::Packet(other, &packet.encode()));
    }
    let after = world.status(leader).unwrap();
    assert_eq!((after.view, after.leader), (before.view, Some(leader)));
    assert_eq!(after.counts.jumps, before.counts.jumps + 4);
}

/// A member that is on no list says all that a member may say, to a leader and to a follower. Says whether
/// that changes anything.
fn unlisted_changes_something() -> bool {
    let (mut world, leader) = quiet(1);
    world.until(|world| (world.stable_entries() > 6).then_some(()));
    let (follower, nobody) = (world.others(leader)[0], MemberId(99));
    let of = |world: &World| [leader, follower].map(|member| world.status(member).unwrap());
    let before = of(&world);
    let (known, end) = (before[0].view, EntryId { position: LogPosition(1 << 40), ..before[0].end });
    let next = ViewId::new(known.number + 1, 7);
    let append = |view, before, stable| {
        let (check, entries) = (Check { above: LogPosition(1), sum: 1 }, Vec::new());
        Packet::Append(Append { view, round: 1, before, stable, rank: 0, asks: true, check, entries })
    };
    let vote =
        Vote { is_sure: true, log: Contents { stable: end.position, runs: Vec::new() }, electorate: None };
    let other = EntryId { view: ViewId::new(known.number + 1, 9), position: LogPosition(2) };
    let packets = [
        Packet::Vote { view: next, end },
        Packet::Voted { view: known, vote },
        Packet::Higher { view: next },
        Packet::May { number: 3, is_granted: true, promised: 1_000 },
        Packet::Acked { view: known, round: 1 << 40, durable: end.position },
        Packet::TakeOver { view: known },
        append(next, EntryId::default(), end.position),
        append(next, other, LogPosition(2)),
        append(known, before[0].end, before[0].end.position),
    ];
    let count = packets.len() as u64;
    let is_refused = packets.into_iter().all(|packet| {
        [leader, follower]
            .into_iter()
            .all(|to| world.try_tell(to, Input::Packet(nobody, &packet.encode())).is_ok())
    });
    let after = of(&world);
    let same = |(before, after): (&Status, &Status)| {
        let is_uncounted = after.counts.unlisted == before.counts.unlisted + count;
        is_uncounted
            && (after.view, after.leader, after.stable) == (before.view, before.leader, before.stable)
    };
    !is_refused || !before.iter().zip(&after).all(same)
}

#[test]
fn member_on_no_list_is_not_heard() {
    assert!(!unlisted_changes_something());
}

#[test]
fn unlisted_leader_is_followed_and_believed_nothing() {
    let mut member = Late { quorum: Compared::with_three().quorum, round: 0 };
    member.hears(Now(1));
    let stable = member.quorum.status().stable;
    let (view, before) = (ViewId::new(3, 1), EntryId { view: ViewId::new(1, 1), position: stable });
    let entry = Sealed { view, ..entry_of(3, 4, 7) };
    let (check, entries) = (Check::default(), vec![entry]);
    let stable_there = LogPosition(4);
    let append = Append { view, round: 1, before, stable: stable_there, rank: 0, asks: true, check, entries };
    let from = MemberId(4);
    member.takes(Now(2), from, Packet::Append(append.clone()));
    assert_eq!(member.quorum.status().leader, Some(MemberId(2)), "it hears its leader");
    member.is_given_the_time(Now(160_000));
    member.takes(Now(160_001), from, Packet::Append(append));
    // Its list may be an old one: it follows, and waits for a list that has the leader.
    let status = member.quorum.status();
    assert_eq!((status.leader, status.end.position, status.stable), (Some(from), stable_there, stable));
}

/// Another member leads a later view, by a list that this one lacks: its directory is a copy of before that.
#[test]
fn lone_leader_gives_way_to_later_view() {
    let (mut world, leader) = begun(Plan { voters: 1, ..Plan::quiet(1, 1) });
    world.until(|world| (world.stable_entries() > 6).then_some(()));
    let view = world.status(leader).unwrap().view;
    let append = |number| {
        let before = EntryId { view, position: LogPosition(4) };
        let (stable, check) = (LogPosition(4), Check::default());
        let view = ViewId::new(number, 7);
        Packet::Append(Append { view, round: 1, before, stable, rank: 0, asks: true, check, entries: vec![] })
    };
    let from = MemberId(9);
    world.tell(leader, Input::Packet(from, &append(view.number).encode()));
    assert_eq!(world.status(leader).unwrap().leader, Some(leader), "nobody leads the same view");
    world.tell(leader, Input::Packet(from, &append(view.number + 1).encode()));
    assert_eq!(world.status(leader).unwrap().leader, Some(from));
}

#[test]
fn view_number_beyond_the_last_is_not_promised() {
    let (mut world, leader) = quiet(1);
    let other = world.others(leader)[0];
    for _ in 0..=u32::MAX / VIEWS_AHEAD_MAX {
        let view = world.status(leader).unwrap().view;
        let next = ViewId::new(view.number.saturating_add(VIEWS_AHEAD_MAX), 7);
        let end = EntryId { view, position: LogPosition(1 << 62) };
        world.tell(leader, Input::Packet(other, &Packet::Vote { view: next, end }.encode()));
    }
    assert!(world.status(leader).unwrap().view.number <= ViewId::NUMBER_MAX);
}

#[test]
fn member_with_more_than_its_group_takes_nothing() {
    let (mut world, leader) = quiet(1);
    let other = world.others(leader)[0];
    world.until(|world| world.status(other).filter(|status| status.stable.0 > 6));
    let before = world.status(other).unwrap();
    // The view's own entry of a leader whose log is shorter than what is stable here.
    let view = ViewId::new(before.view.number + 1, 7);
    let at = EntryId { view: before.view, position: LogPosition(4) };
    let entry = Sealed { stamp: Stamp(5), view, kind: node::VIEW, payload: Arc::default() };
    let (stable, entries) = (LogPosition(4), vec![entry]);
    let append =
        Append { view, round: 1, before: at, stable, rank: 0, asks: true, check: Check::default(), entries };
    let said = world.try_tell(other, Input::Packet(leader, &Packet::Append(append).encode()));
    assert!(said.unwrap_err().contains("has another entry at 5"));
    let after = world.status(other).unwrap();
    assert_eq!((after.view, after.end, after.leader), (before.view, before.end, before.leader));
}
