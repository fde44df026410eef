//! Maps and vectors in transactions inside of a server: what they do in a client.

use crate::common::{Item, LARGE, item, space};
use tercel::collections::{Map, Vector};
use tercel::{Error, Ref, Text, Tx};
use tercel_engine::server::ServerConfig;
use tercel_machine::random::Random;
use tercel_testkit::World;

/// A server from whose memory pages go.
fn server(seed: u64) -> World {
    World::new(seed, 0, ServerConfig { cache_bytes: 1, mob_bytes: 256 << 10, ..ServerConfig::default() })
}

/// Runs a transaction in one of the homes.
type Run<'a> = &'a dyn Fn(&mut dyn FnMut(&Tx<'_>) -> Result<(), Error>) -> Result<(), Error>;

/// Runs many small transactions, and gives the observations of each.
fn program(run: Run<'_>) -> Result<Vec<String>, Error> {
    let (map, vector, items) = made(run)?;
    let mut numbers = Random::new(5);
    let mut seen = Vec::new();
    for _ in 0..40 {
        run(&mut |tx| {
            for _ in 0..20 {
                let (key, at) = (numbers.below(400), numbers.below(items.len() as u64));
                let key = format!("{key:0width$}", width = 3 + key as usize % 50);
                match numbers.below(4) {
                    0 => drop(map.remove(tx, &key)?),
                    _ => drop(map.insert(tx, &key, items[at as usize])?),
                }
                vector.push_back(tx, items[at as usize])?;
            }
            vector.set(tx, numbers.below(20), items[0]).map(drop)
        })?;
    }
    run(&mut |tx| {
        let whole = map.iter(tx).collect::<Result<Vec<_>, _>>()?;
        let part = map.range(tx, "1".."2").rev().take(5).collect::<Result<Vec<_>, _>>()?;
        let last = vector.last(tx)?.unwrap();
        seen = vec![format!("{} {} {part:?}", map.count(tx)?, vector.len(tx)?)];
        let of = |r: Ref<Item>| Ok::<_, Error>(tx.get(r)?.number());
        for (key, r) in whole {
            seen.push(format!("{key:?}: {}", of(r)?));
        }
        for i in 0..vector.len(tx)? {
            seen.push(vector.find(tx, i)?.unwrap().number().to_string());
        }
        seen.push(format!("{:?} {}", map.find(tx, "nothing")?.map(|o| o.number()), of(last)?));
        Ok(())
    })?;
    Ok(seen)
}

/// A map, a vector, and what to put into them.
type Made = (Map<Text, Item>, Vector<Item>, Vec<Ref<Item>>);

fn made(run: Run<'_>) -> Result<Made, Error> {
    let mut made = None;
    run(&mut |tx| {
        let items = (0..50).map(|n| item(tx, n)).collect::<Result<Vec<_>, _>>()?;
        made = Some((Map::create(tx)?, Vector::create(tx)?, items));
        Ok(())
    })?;
    Ok(made.unwrap())
}

/// References differ between spaces; their numbers say what they name.
fn strip(mut seen: Vec<String>) -> Vec<String> {
    let end = seen[0].find('[').unwrap();
    seen[0].truncate(end);
    seen
}

#[test]
fn collections_are_the_same_inside_of_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let remote = program(&|body| client.run(&mut *body)).unwrap();
    assert!(remote.len() > 1_000);
    for seed in 1..4 {
        let server = server(seed);
        let inside = server.indoors();
        assert_eq!(strip(program(&|body| inside.run(&mut *body)).unwrap()), strip(remote.clone()));
    }
}

#[test]
fn nothing_appears_in_a_range_that_was_read_inside_of_a_server() {
    let server = server(9);
    let inside = server.indoors();
    let run: Run<'_> = &|body| inside.run(&mut *body);
    let (map, _, items) = made(run).unwrap();
    let insert = |key: &str| run(&mut |tx| map.insert(tx, key, items[1]).map(drop)).unwrap();
    (0..200).for_each(|i| insert(&format!("k{i:03}")));
    let reader = inside.begin();
    assert_eq!(map.range(&reader, "k0405".."k041").count(), 0);
    insert("k0407");
    let other = reader.get(items[2]).map(|o| o.number());
    assert!(matches!(other, Err(Error::Conflict(_))), "the leaf is the lock of the gap");
}
