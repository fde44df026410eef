//! Groups of sequencers in small worlds made from seeds: links that lose, double, delay and are cut; disks
//! that lag; members that crash, pause and come back; logs that end in damage.

mod node;
mod world;

#[cfg(tercel_mutants)]
use tercel_machine::mutant::Rule;

use world::{Plan, World};

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
    let found = hunt(0..worlds, Plan::of_either);
    assert!(found.is_none(), "seed {}: {}", found.as_ref().unwrap().0, found.as_ref().unwrap().1);
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
        let found = hunt(0..WORLDS_MAX, Plan::of_either);
        tercel_machine::mutant::drop_rule(None);
        println!("{rule:?}: {found:?}");
        assert!(found.is_some(), "{rule:?} can be dropped");
    }
}

#[cfg(tercel_mutants)]
const WORLDS_MAX: u64 = 5_000;

/// Three members in whom nothing fails, and the first to lead.
fn quiet(seed: u64) -> (World, tercel_wire::id::MemberId) {
    let mut world = World::new(Plan::quiet(seed, 3));
    let leader = world.until(|world| world.leader());
    (world, leader)
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
