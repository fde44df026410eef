//! Rings in small worlds made from seeds: links that lose, double, delay and reorder; cuts of one way or of
//! both; members that pause, crash and come back, and programs that do not read.

mod check;
mod world;

use world::{Plan, World};

use super::Level;
use super::members::Set;

/// Runs worlds from seeds. Gives what the first that failed blames.
fn hunt(seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let run = std::panic::catch_unwind(|| World::new(Plan::of(seed)).run());
        run.unwrap_or_else(|_| Err("it panics".into())).err().map(|blame| (seed, blame))
    })
}

#[test]
fn members_deliver_alike_and_come_together() {
    let worlds = std::env::var("TERCEL_TEST_WORLDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let found = hunt(0..worlds);
    assert!(found.is_none(), "seed {}: {}", found.as_ref().unwrap().0, found.as_ref().unwrap().1);
}

#[test]
fn worlds_have_changes_crashes_and_messages() {
    let (mut transitions, mut crashes, mut messages) = (0, 0, 0);
    for seed in 0..60 {
        let mut world = World::new(Plan::of(seed));
        world.run().unwrap();
        transitions += world.lives.iter().map(|life| life.transitions()).sum::<usize>();
        crashes += world.lives.iter().filter(|life| life.is_over).count();
        messages += world.lives.iter().map(|life| life.events.len()).sum::<usize>();
    }
    let seen = (transitions, crashes, messages);
    assert!(transitions > 500 && crashes > 20 && messages > 20_000, "{seen:?}");
}

#[test]
fn members_that_begin_together_meet_at_once() {
    for seed in 0..200 {
        let mut world = World::new(Plan::quiet(seed, 2 + seed as usize % 4));
        let met = world.until("one ring", 15_000, World::is_one_ring);
        met.unwrap_or_else(|blame| panic!("seed {seed}: {blame}"));
    }
}

#[test]
fn member_whose_program_takes_nothing_is_left_out() {
    let mut world = World::new(Plan { until_us: 0, ..Plan::quiet(1, 3) });
    world.until("one ring", 15_000, World::is_one_ring).unwrap();
    world.fill(2, true);
    world.until("a ring of two", 3_000_000, |world| world.lives[0].was_with(Set(0b011))).unwrap();
    // It does not come back while its program takes nothing.
    let events = |world: &World| world.lives[2].events.len();
    let (rings, had) = (world.lives[0].transitions(), events(&world));
    world.pass(3_000_000);
    assert_eq!((world.lives[0].transitions(), events(&world)), (rings, had));
    world.fill(2, false);
    world.until("one ring", 1_000_000, World::is_one_ring).unwrap();
}

/// Three times as long as a token may be missing in these worlds.
const THREE_SILENCES_US: u64 = 90_000;

/// Cuts one direction of one link for long, then mends it. Blames a time in which most members deliver
/// nothing, and members whose rings change once they have settled.
fn one_way(members: usize, from: usize, to: usize) -> Result<(), String> {
    let quiet = Plan::quiet(1, members);
    let mut world = World::new(Plan { until_us: u64::MAX, every_us: 2_000, bytes: 100, ..quiet });
    world.until("one ring", 15_000, World::is_one_ring)?;
    world.pass(20_000);
    world.cut(from, to, true);
    // The least of what the half of members have that has most.
    let by_most = |world: &World, count: fn(&check::Life) -> usize| {
        let mut counts: Vec<usize> = world.lives.iter().map(count).collect();
        counts.sort_unstable();
        counts[(members - 1) / 2]
    };
    let (mut had, mut last) = (0, world.now());
    let mut rings = 0;
    for ms in 0..2_000 {
        world.pass(1_000);
        let has = by_most(&world, check::Life::messages);
        if has > had {
            (had, last) = (has, world.now());
        }
        if world.now() - last > THREE_SILENCES_US {
            return Err(format!("nothing is delivered for {THREE_SILENCES_US} us"));
        }
        if ms == 1_000 {
            rings = world.lives.iter().map(check::Life::transitions).sum();
        }
    }
    if world.lives.iter().map(check::Life::transitions).sum::<usize>() > rings {
        return Err("rings change again and again".into());
    }
    world.cut(from, to, false);
    world.until("one ring", THREE_SILENCES_US, World::is_one_ring)
}

/// Runs worlds of all links that lead one way.
fn hunt_one_way() -> Option<(u64, String)> {
    let links = (2..=5).flat_map(|all| (0..all).flat_map(move |a| (0..all).map(move |b| (all, a, b))));
    links.filter(|(_, a, b)| a != b).find_map(|(all, from, to)| {
        let blame = one_way(all, from, to).err()?;
        Some((0, format!("{all} members, cut from {from} to {to}: {blame}")))
    })
}

#[test]
fn link_that_leads_one_way_stops_nobody() {
    assert_eq!(hunt_one_way(), None);
}

/// Some rotations, and less than the token is held.
const LATENCY_US: u64 = 1_500;

/// A message in an idle ring of three, by one who does not hold the token. Gives the microseconds to all.
fn idle_latency(seed: u64) -> Result<u64, String> {
    let mut world = World::new(Plan { every_us: 1, until_us: 0, ..Plan::quiet(seed, 3) });
    world.run()?;
    // Amid a hold.
    world.pass(41_000 + seed * 500);
    let (before, name) = (world.now(), world.submit(2, Level::Safe, 100));
    world.until("the message", 100_000, |world| world.lives.iter().all(|life| life.has(name)))?;
    Ok(world.now() - before)
}

#[test]
fn idle_ring_sends_little_and_wakes_at_once() {
    for seed in 0..20 {
        let latency = idle_latency(seed).unwrap();
        assert!(latency < LATENCY_US, "{latency} us");
    }
    let mut world = World::new(Plan { every_us: 1, until_us: 0, ..Plan::quiet(1, 3) });
    world.run().unwrap();
    world.pass(20_000);
    let before = world.sent;
    world.pass(1_000_000);
    // A rotation each 10 ms.
    assert!(world.sent - before < 450, "{} packets a second", world.sent - before);
}

#[test]
fn number_of_ring_far_ahead_is_refused() {
    use super::members::Place;
    use super::packet::{Head, Join, Packet};
    use super::{Config, Input, Now, Ring};

    let mut ring = Ring::new(Config::new(Place(0), 2, 7, 640), 5, Now(0), &mut Vec::new());
    for (ahead, is_taken) in [(1 << 33, false), (1 << 31, true)] {
        let join = Join { heard: Set(0b11), failed: Set(0), hears: Set(0), number: 5 + ahead };
        let bytes = Packet::Join(join).encode(Head { from: Place(1), group: 7 });
        ring.handle(Now(1), Input::Packet(Place(1), &bytes), &mut Vec::new());
        assert_eq!(ring.numbers.known > 5, is_taken);
    }
}

#[test]
fn request_for_what_all_have_ends() {
    use super::members::{Place, RingId};
    use super::packet::{Packet, Token, decode};
    use super::{Config, Now, Output, Ring};

    let mut out = Vec::new();
    let mut ring = Ring::new(Config::new(Place(0), 2, 7, 640), 0, Now(0), &mut out);
    let (members, none) = (Set(0b11), Set(0));
    let token = Token {
        ring: RingId { number: 1, leader: Place(0) },
        hop: 2,
        members,
        number: 5,
        rows: vec![5, 5],
        links: vec![none, none],
        wanted: vec![(1, 1)],
        sent_bytes: 0,
        backlog_bytes: 0,
        idle: 0,
        recovered: 0,
        done: none,
        complete: none,
    };
    ring.visit(Now(1), token, &mut out);
    let wanted = out.iter().find_map(|output| match output {
        Output::Send(_, bytes) => match decode(bytes, 7, 2).ok()?.1 {
            Packet::Token(token) => Some(token.wanted),
            _ => None,
        },
        _ => None,
    });
    assert_eq!(wanted, Some(Vec::new()));
}

/// Each rule is missed when it is dropped. `RUSTFLAGS='--cfg tercel_mutants'` makes it possible.
#[cfg(tercel_mutants)]
#[test]
fn every_dropped_rule_is_noticed() {
    use tercel_machine::mutant::{Rule, drop_rule};

    for rule in Rule::OF_RINGS {
        drop_rule(Some(*rule));
        let found = match rule {
            Rule::HoldIgnoresMessage => (0..20).find_map(|seed| {
                let latency = idle_latency(seed).ok().filter(|us| *us >= LATENCY_US)?;
                Some((seed, format!("{latency} us")))
            }),
            Rule::AskedInVain | Rule::LetInOneWay => hunt_one_way(),
            _ => hunt(0..20_000),
        };
        drop_rule(None);
        println!("{rule:?}: {found:?}");
        assert!(found.is_some(), "{rule:?} can be dropped");
    }
}

#[test]
fn packets_have_the_bytes_of_their_version() {
    use super::members::{Place, RingId};
    use super::packet::{self, Beacon, Commit, Data, Entry, Head, Holds, Join, Packet, Token};

    let ring = RingId { number: 5, leader: Place(1) };
    let members = Set(0b110);
    let (rows, wanted, number, recovered) = (vec![7, 9], vec![(8, 2)], 9, 3);
    let links = vec![Set(1), Set(0)];
    let (done, complete) = (Set(0b110), Set(0b100));
    let (sent_bytes, backlog_bytes, idle) = (1_000, 2_000, 1);
    let token = Token {
        ring,
        hop: 12,
        members,
        number,
        rows,
        links,
        wanted,
        sent_bytes,
        backlog_bytes,
        idle,
        recovered,
        done,
        complete,
    };
    let entry = Entry { ring: RingId::NONE, whole: 4, highest: 6, safe: 3, owed: Set(0b111) };
    let packets = [
        (
            Packet::Data(Data { ring, number: 2, holds: Holds::Safe, body: &[3, 1, 0, 42] }),
            "02010201000000000000020500000000000000010200000000000000010301002a",
        ),
        (
            Packet::Token(token),
            "02020201000000000000020500000000000000010c00000000000000060009000000000000000700\
             000000000000090000000000000001000000e8030000d00700000103000000000000000600040001\
             08000000000000000200",
        ),
        (
            Packet::Join(Join { heard: Set(0b111), failed: Set(1), hears: Set(0b11), number: 4 }),
            "02030201000000000000020700010003000400000000000000",
        ),
        (
            Packet::Commit(Commit { ring, hop: 1, members, entries: vec![entry] }),
            "02040201000000000000020500000000000000010100000000000000060000000000000000000004\
             00000000000000060000000000000003000000000000000700",
        ),
        (Packet::Cancel(ring), "0205020100000000000002050000000000000001"),
        (
            Packet::Beacon(Beacon { ring, hears: Set(0b1), open: Set(0b10) }),
            "020602010000000000000205000000000000000101000200",
        ),
    ];
    for (packet, golden) in packets {
        let bytes = packet.encode(Head { from: Place(2), group: 0x0102 });
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden, "{packet:?}");
        assert_eq!(packet::decode(&bytes, 0x0102, 3).map(|read| read.1), Ok(packet));
        assert!(packet::decode(&bytes, 0x0103, 3).is_err() && packet::decode(&bytes, 0x0102, 2).is_err());
        (0..bytes.len().min(29)).for_each(|end| assert!(packet::decode(&bytes[..end], 0x0102, 3).is_err()));
    }
}
