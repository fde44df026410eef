//! Callers and a server over links that lose, double, delay and reorder packets, and that stop taking large
//! ones.

mod world;

use world::{Plan, World};

/// Runs worlds from seeds. Gives what the first that failed blames.
fn hunt(seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let run = std::panic::catch_unwind(|| World::new(Plan::of(seed)).run().map(drop));
        run.unwrap_or_else(|_| Err("it panics".into())).err().map(|blame| (seed, blame))
    })
}

#[test]
fn requests_are_executed_once_and_answered() {
    let worlds = std::env::var("TERCEL_TEST_WORLDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let found = hunt(0..worlds);
    assert!(found.is_none(), "seed {}: {}", found.as_ref().unwrap().0, found.as_ref().unwrap().1);
}

#[test]
fn worlds_lose_packets_and_change_their_sizes() {
    let mut seen = world::Seen::default();
    for seed in 0..100 {
        seen.add(&World::new(Plan::of(seed)).run().unwrap());
    }
    let world::Seen { lost, doubled, too_large, answered, given_up, lost_connections, large, .. } = seen;
    let often = [lost, doubled, too_large, answered, given_up, lost_connections, large];
    assert!(often.iter().all(|n| *n >= 20) && seen.bytes < 3 * seen.useful, "{seen:?}");
}

#[test]
fn small_call_is_one_packet_each_way() {
    let mut world = World::new(Plan::quiet(1, 100, 100));
    let seen = world.run().unwrap();
    // Two to open the connection each way.
    assert_eq!((seen.answered, seen.sent), (100, 4 + 200));
}

#[test]
fn large_message_is_sent_once_where_nothing_is_lost() {
    let mut world = World::new(Plan::quiet(1, 3 << 20, 1 << 20));
    let seen = world.run().unwrap();
    let (bytes, least) = (seen.answered * (4 << 20), seen.bytes);
    assert!(least as f64 <= bytes as f64 * 1.05, "{least} bytes are sent for {bytes}");
}

/// Each rule is missed when it is dropped. `RUSTFLAGS='--cfg tercel_mutants'` makes it possible.
#[cfg(tercel_mutants)]
#[test]
fn every_dropped_rule_is_noticed() {
    use tercel_machine::mutant::Rule;

    for rule in Rule::OF_DATAGRAMS {
        tercel_machine::mutant::drop_rule(Some(*rule));
        let found = hunt(0..2_000);
        tercel_machine::mutant::drop_rule(None);
        println!("{rule:?}: {found:?}");
        assert!(found.is_some(), "{rule:?} can be dropped");
    }
}
