//! Worlds of two spaces, each of a group of three: members lag, are cut off, end and come back, and sessions
//! read at the leaders and at members that follow.

use std::time::Duration;

use tercel_engine::error::Error;
use tercel_engine::limits::HELD_US;
use tercel_engine::random::Random;
use tercel_engine::server::ServerConfig;
use tercel_engine::txn::{Freshness, Isolation, Options, Tx, run};
use tercel_wire::id::SpaceId;

use super::Played;
use super::judged::{Judged, both};
use crate::readers::world::{End, World};
use crate::world::SPACE;
use crate::world::things::{set, thing};

const READERS: usize = 3;
const STEPS: usize = 160;

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
    let early = worlds.iter().map(|world| world.with(|w| w.early.unwrap_or(0))).sum();
    Played::of(judged, early)
}

#[test]
fn commit_at_hold_keeps_its_leader() {
    let worlds = [0, 1].map(|n| World::of_space(SpaceId(SPACE.0 + n), n, ServerConfig::default()));
    let clients = worlds.each_ref().map(|world| [world.client(None), world.client(None)]);
    let ports = [0, 1].map(|n| worlds[n].port(clients[n][0]));
    let [account, document] =
        ports.each_ref().map(|port| run(port, Isolation::Serializable, |tx| tx.create(&thing(1))).unwrap());
    let session = both(&[&ports[0], &ports[1]]);
    // The decision is made, and neither its client nor the other space hears of it.
    let brief = Options { timeout: Some(Duration::from_millis(300)), ..Options::default() };
    let unheard = session.run_with(brief, |cut| {
        set(cut.space("accounts")?, account, 5)?;
        set(cut.space("documents")?, document, 5)?;
        worlds[0].with(|w| _ = w.held.insert(End::Client(clients[0][0])));
        Ok(())
    });
    assert!(matches!(unheard, Err(Error::Timeout(Some(_)))), "{unheard:?}");
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
