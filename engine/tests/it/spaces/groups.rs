//! Worlds of two spaces, each of a group of three: members lag, are cut off, end and come back, and sessions
//! read at the leaders and at members that follow.

use std::time::Duration;

use tercel_engine::random::Random;
use tercel_engine::server::ServerConfig;
use tercel_engine::txn::{Freshness, Isolation, Options};
use tercel_wire::id::SpaceId;

use super::Played;
use super::judged::Judged;
use crate::readers::world::{End, World};
use crate::world::SPACE;

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
