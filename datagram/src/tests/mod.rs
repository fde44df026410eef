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

#[test]
fn request_waits_while_too_much_is_unacknowledged() {
    use std::sync::Arc;

    use tercel_machine::time::Now;

    use crate::{Answerer, Asked, Caller, Limits, News, Packets};

    let limits = Limits {
        connections: 1,
        request_bytes: 9,
        pending_bytes: 9,
        answer_bytes: 1_000,
        seal_bytes: 0,
        idle_us: 9,
    };
    let (mut server, at) = (Answerer::new(limits, Box::new(|_, _| 7)), ([127, 0, 0, 1], 1).into());
    let (mut there, mut back, mut asked, mut news) =
        (Packets::default(), Packets::default(), Vec::new(), Vec::new());
    let mut caller = Caller::new(Now(1), 1, 0, &mut there);
    let (mut numbers, mut executed) = (Vec::new(), 0);
    for round in 0..20 {
        if round % 4 == 3 {
            numbers.extend(caller.call(Now(round), Arc::new(vec![1]), &mut there));
        }
        there.iter().for_each(|(_, packet)| server.packet(Now(round), at, packet, &mut back, &mut asked));
        there.clear();
        for asked in asked.drain(..) {
            if let Asked::Request(connection, exchange, _) = asked {
                executed += 1;
                // The caller gets none of it, and so acknowledges none.
                server.answer(
                    Now(round),
                    connection,
                    exchange,
                    Arc::new(vec![2; 600]),
                    &mut Packets::default(),
                );
            }
        }
        back.iter().for_each(|(_, packet)| caller.packet(Now(round), packet, &mut there, &mut news));
        back.clear();
    }
    assert_eq!((numbers.len(), executed), (5, 2));
    // Given up, the answers leave room.
    numbers[..4].iter().for_each(|number| caller.give_up(*number));
    assert_eq!(news, [News::Opened]);
    caller.time(Now(1_000_000), &mut there, &mut news);
    there.iter().for_each(|(_, packet)| server.packet(Now(21), at, packet, &mut back, &mut asked));
    assert!(asked.iter().any(|asked| matches!(asked, Asked::Request(..))), "{asked:?}");
}

#[test]
fn runs_are_of_one_size_and_address() {
    let mut packets = crate::Packets::default();
    for (to, bytes) in [(1, 4), (1, 4), (1, 4), (1, 2), (1, 2), (2, 2), (2, 3), (2, 3), (1, 3)] {
        packets.packet(to, |out| out.resize(out.len() + bytes, to));
    }
    let runs: Vec<_> = packets.runs(|_| 3).map(|(to, run, size)| (*to, run.len(), size)).collect();
    assert_eq!(runs, [(1, 12, 4), (1, 4, 2), (2, 2, 2), (2, 6, 3), (1, 3, 3)]);
    assert_eq!(
        packets.runs(|_| 9).map(|(_, run, _)| run.to_vec()).collect::<Vec<_>>().concat(),
        packets.bytes
    );
    let longer: Vec<_> = packets.runs(|_| 9).map(|(_, run, size)| (run.len(), size)).collect();
    assert_eq!(longer[..2], [(14, 4), (2, 2)]);
}
