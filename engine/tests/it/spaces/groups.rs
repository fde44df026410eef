//! Worlds of two spaces, each of a group of three: members lag, are cut off, end and come back, and sessions
//! read at the leaders and at members that follow.

use std::time::Duration;

use tercel_engine::error::Error;
use tercel_engine::limits::HELD_US;
use tercel_engine::random::Random;
use tercel_engine::server::ServerConfig;
use tercel_engine::spaces::Cut;
use tercel_engine::txn::{Freshness, Isolation, Options, Tx, run};
use tercel_wire::id::SpaceId;
use tercel_wire::record::Ref;

use super::Played;
use super::judged::{Judged, both};
use crate::readers::world::{End, Inner, World};
use crate::world::SPACE;
use crate::world::things::{Thing, set, thing};

const READERS: usize = 3;
const STEPS: usize = 160;
/// Connections of a reader in a world: some of each trouble, and no loop.
const CONNECTIONS_MAX: u64 = 1_000;

/// Something bad happens in a space, or ends.
pub fn trouble(world: &World, random: &mut Random) {
    let (n, reader) = (random.below(3) as usize, random.below(READERS as u64) as usize);
    match random.below(16) {
        0 => world.with(|w| w.cut(reader)),
        1 => world.with(|w| w.cut_upstream(n)),
        2 => world.with(|w| w.apart = [n].into()),
        // It follows with a lag, or its readers do.
        3..7 => world.with(|w| w.held.extend((0..3).map(|from| End::Member(n, from)))),
        7..11 => world.with(|w| _ = w.held.insert(End::Client(reader))),
        11 => world.with(|w| w.stop(n)),
        12 => world.steps(random.below(400) as usize),
        _ => heal(world),
    }
}

pub fn heal(world: &World) {
    world.with(|w| {
        (w.apart, w.held) = Default::default();
        w.start();
    });
}

/// Readers at the leader, and at the two members that follow.
pub fn populate(world: &World) {
    let leads = world.with(|w| w.leader()).unwrap();
    [None, Some((leads + 1) % 3), Some((leads + 2) % 3)].into_iter().for_each(|home| _ = world.client(home));
    world.with(|w| w.early = Some(0));
}

pub fn play(seed: u64, is_causal: bool) -> Played {
    let mut random = Random::new(seed);
    let config = || ServerConfig { keepalive_ms: 200, ..ServerConfig::default() };
    let worlds = [0, 1].map(|n| World::of_space(SpaceId(SPACE.0 + n), 2 * seed + n, config()));
    worlds.iter().for_each(populate);
    let threads: Vec<_> =
        (0..READERS).map(|reader| worlds.each_ref().map(|world| world.port(reader))).collect();
    let ports = threads.iter().map(|[accounts, documents]| [accounts as _, documents as _]).collect();
    let options = |ms| Options { timeout: Some(Duration::from_millis(ms)), ..Options::default() };
    // However old: sessions alone are what keeps them from going back.
    let stale = Options { freshness: Freshness::Stale, ..options(300) };
    let mut judged = Judged::new(ports, is_causal, stale);
    for _ in 0..STEPS {
        let world = &worlds[random.below(2) as usize];
        match random.below(4) {
            0 => trouble(world, &mut random),
            1 => world.steps(random.below(100) as usize),
            _ => {}
        }
        judged.step(&mut random);
    }
    worlds.iter().for_each(heal);
    judged.end(Options { isolation: Isolation::Strict, ..options(20_000) });
    let connections = |world: &World| {
        let of = |w: &mut Inner| w.clients.iter().map(|client| client.stats().connections).max();
        world.with(of).unwrap_or(0)
    };
    let most = worlds.iter().map(connections).max().unwrap_or(0);
    assert!(most < CONNECTIONS_MAX, "seed {seed}: a reader has connected {most} times");
    let early = worlds.iter().map(|world| world.with(|w| w.early.unwrap_or(0))).sum();
    Played::of(judged, early)
}

/// Leaves a transaction over both worlds without an end in the second: the decision is made, and neither its
/// clients nor the other space hear of it. Gives the object that is held there.
fn leave_unsettled(worlds: &[World; 2], clients: [usize; 2]) -> Ref<Thing> {
    let ports = [0, 1].map(|n| worlds[n].port(clients[n]));
    let [account, document] =
        ports.each_ref().map(|port| run(port, Isolation::Serializable, |tx| tx.create(&thing(1))).unwrap());
    let session = both(&[&ports[0], &ports[1]]);
    let brief = Options { timeout: Some(Duration::from_millis(300)), ..Options::default() };
    let unheard = session.run_with(brief, |cut| {
        set(cut.space("accounts")?, account, 5)?;
        set(cut.space("documents")?, document, 5)?;
        worlds[0].with(|w| _ = w.held.insert(End::Client(clients[0])));
        Ok(())
    });
    assert!(matches!(unheard, Err(Error::Unknown { op: Some(_), .. })), "{unheard:?}");
    document
}

fn two() -> [World; 2] {
    [0, 1].map(|n| World::of_space(SpaceId(SPACE.0 + n), n, ServerConfig::default()))
}

#[test]
fn reader_at_lagging_member_does_not_loop() {
    for seed in [600_198, 1_200_396] {
        assert!(play(seed, true).is_clean());
    }
}

#[test]
fn follower_passes_on_why_its_leader_waits() {
    let worlds = two();
    let (world, leads) = (&worlds[1], worlds[1].with(|w| w.leader()).unwrap());
    let readers = [leads, (leads + 1) % 3].map(|at| world.client(Some(at)));
    let beside = run(&world.port(readers[0]), Isolation::Serializable, |tx| tx.create(&thing(8))).unwrap();
    let document = leave_unsettled(&worlds, [worlds[0].client(None), world.client(None)]);
    let there = |reader: usize| world.with(|w| (w.clients[reader].stats().connections, w.home(reader)));
    let read = |reader, options: Options, patience| {
        let options = Options { timeout: patience, ..options };
        run(&world.port(reader), options, |tx| Ok(tx.get(document)?.count()))
    };
    for reader in readers {
        assert_eq!(read(reader, Freshness::Stale.into(), None), Ok(1));
    }
    let before = readers.map(there);
    for _ in 0..3 {
        world.pass(3_000_000);
        for reader in readers {
            for patience in [None, Some(Duration::from_secs(3))] {
                let refused = read(reader, Isolation::Strict.into(), patience);
                let text = refused.expect_err("a part waits").to_string();
                assert!(text.contains("is not settled") && !text.contains("cut off"), "{text}");
            }
            assert_eq!(read(reader, Freshness::Stale.into(), None), Ok(1));
            // Objects that the part does not write are read and written at once.
            let at_once = Options { timeout: Some(Duration::from_millis(50)), ..Isolation::Strict.into() };
            let port = world.port(reader);
            let count = run(&port, at_once, |tx| Ok(tx.get(beside)?.count())).unwrap();
            run(&port, at_once, |tx| tx.edit(beside)?.set_count(count + 1)).unwrap();
        }
    }
    assert_eq!(readers.map(there), before);
}

#[test]
fn cuts_and_transfers_beside_held_objects_go_on() {
    let worlds = two();
    let held = leave_unsettled(&worlds, [worlds[0].client(None), worlds[1].client(None)]);
    // A third space, which knows nothing of that, and the one that holds the document.
    let third = World::of_space(SpaceId(SPACE.0 + 2), 2, ServerConfig::default());
    let ports = [&third, &worlds[1]].map(|world| world.port(world.client(None)));
    let beside =
        ports.each_ref().map(|port| run(port, Isolation::Serializable, |tx| tx.create(&thing(10))).unwrap());
    let session = both(&[&ports[0], &ports[1]]);
    let strict = |ms| Options { timeout: Some(Duration::from_millis(ms)), ..Isolation::Strict.into() };
    let sum = |cut: &Cut<'_>| {
        let [a, b] = ["accounts", "documents"].map(|name| cut.space(name));
        Ok(a?.get(beside[0])?.count() + b?.get(beside[1])?.count())
    };
    for _ in 0..3 {
        session
            .run_with(strict(300), |cut| {
                set(cut.space("accounts")?, beside[0], 9)?;
                set(cut.space("documents")?, beside[1], 11)
            })
            .unwrap();
        assert_eq!(session.read_with(strict(300), sum), Ok(20));
    }
    let refused = session.read_with(strict(300), |cut| Ok(cut.space("documents")?.get(held)?.count()));
    assert!(refused.is_err(), "{refused:?}");
}

#[test]
fn newcomer_reads_stale_while_part_waits() {
    let worlds = two();
    let (world, leads) = (&worlds[1], worlds[1].with(|w| w.leader()).unwrap());
    let document = leave_unsettled(&worlds, [worlds[0].client(None), world.client(None)]);
    for at in [leads, (leads + 1) % 3] {
        let (newcomer, began) = (world.client(Some(at)), world.with(|w| w.now));
        assert_eq!(run(&world.port(newcomer), Freshness::Stale, |tx| Ok(tx.get(document)?.count())), Ok(1));
        let took = world.with(|w| w.now) - began;
        assert!(took < 500_000, "{took} us");
    }
}

#[test]
fn writers_at_followers_stay_while_part_waits() {
    let worlds = two();
    let (world, leads) = (&worlds[1], worlds[1].with(|w| w.leader()).unwrap());
    let writers = [0, 1, 2].map(|n| world.client(Some((leads + n) % 3)));
    let make = |writer| run(&world.port(writer), Freshness::Stale, |tx| tx.create(&thing(1))).unwrap();
    let own = writers.map(make);
    leave_unsettled(&worlds, [worlds[0].client(None), world.client(None)]);
    let there = |writer: usize| world.with(|w| (w.clients[writer].stats().connections, w.home(writer)));
    let before = writers.map(there);
    for _ in 0..48 {
        for (writer, own) in writers.into_iter().zip(own) {
            let add = |tx: &Tx<'_>| set(tx, own, tx.get(own)?.count() + 1);
            run(&world.port(writer), Freshness::Stale, add).unwrap();
        }
        world.pass(250_000);
    }
    assert_eq!(writers.map(there), before);
}

#[test]
fn commit_at_hold_keeps_its_leader() {
    let worlds = two();
    let clients = worlds.each_ref().map(|world| [world.client(None), world.client(None)]);
    let document = leave_unsettled(&worlds, [clients[0][0], clients[1][0]]);
    let (world, other) = (&worlds[1], clients[1][1]);
    let port = world.port(other);
    run(&port, Freshness::Stale, |tx| Ok(tx.get(document)?.count())).unwrap();
    world.with(|w| w.clients[other].has_others());
    let there = || world.with(|w| (w.clients[other].stats().connections, w.home(other)));
    let (before, began) = (there(), world.with(|w| w.now));
    let held = Tx::begin(&port, Freshness::Stale).and_then(|tx| {
        set(&tx, document, 7)?;
        tx.commit()
    });
    assert!(matches!(held, Err(Error::Conflict(_))), "{held:?}");
    // A silent one would have been given up by then.
    assert!(world.with(|w| w.now) >= began + HELD_US);
    assert_eq!(there(), before);
}
