//! A map does what the standard library's does.

use std::collections::BTreeMap;

use crate::common::{Item, LARGE, item, space};
use proptest::prelude::*;
use tercel::collections::{KEY_BYTES_MAX, KeyTooLong, Map};
use tercel::{Bytes, Client, Error, Object, Ref, Text, Tx};
use tercel_machine::random::Random;

/// One step of a history. Numbers choose keys out of a small pool, so that steps meet.
#[derive(Debug, Clone)]
enum Step {
    Insert(u16),
    Remove(u16),
    /// Removes this and the following ones.
    Clear(u16, u16),
    Scan(u16, u16),
    Commit,
    Abort,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => (0..POOL).prop_map(Step::Insert),
        15 => (0..POOL).prop_map(Step::Remove),
        2 => (0..POOL, 1..POOL / 4).prop_map(|(from, n)| Step::Clear(from, n)),
        5 => (0..POOL, 0..POOL).prop_map(|(from, to)| Step::Scan(from, to)),
        4 => Just(Step::Commit),
        1 => Just(Step::Abort),
        1 => Just(Step::Reopen),
    ]
}

/// Keys of a history.
const POOL: u16 = 800;

/// The key of a number: of 3 to 255 bytes, many of them with a long beginning in common.
fn key(number: u16) -> String {
    let pad = match number % 7 {
        0 => KEY_BYTES_MAX - 4,
        1 => 100,
        n => n as usize * 3,
    };
    format!("{}{number:04}", "k".repeat(pad))
}

type Model = BTreeMap<String, Ref<Item>>;

fn assert_same(tx: &Tx<'_>, map: Map<Text, Item>, model: &Model) -> Result<(), Error> {
    let expected: Vec<_> = model.iter().map(|(k, r)| (Text::from(k.clone()), *r)).collect();
    let forth: Vec<_> = map.iter(tx).collect::<Result<_, _>>()?;
    assert_eq!(forth, expected);
    let mut back: Vec<_> = map.iter(tx).rev().collect::<Result<_, _>>()?;
    back.reverse();
    assert_eq!(back, expected);
    assert_eq!(map.count(tx)?, expected.len());
    assert_eq!(map.is_empty(tx)?, expected.is_empty());
    assert_eq!(map.first(tx)?, expected.first().cloned());
    assert_eq!(map.last(tx)?, expected.last().cloned());
    Ok(())
}

/// Takes one step in both; the steps that end a transaction are the caller's.
fn take(tx: &Tx<'_>, map: Map<Text, Item>, model: &mut Model, step: &Step) -> Result<(), Error> {
    match *step {
        Step::Insert(n) => {
            let value = item(tx, u64::from(n))?;
            assert_eq!(map.insert(tx, &key(n), value)?, model.insert(key(n), value));
            assert_eq!(map.find(tx, &key(n))?.unwrap().number(), u64::from(n));
        }
        Step::Remove(n) => assert_eq!(map.remove(tx, &key(n))?, model.remove(&key(n))),
        Step::Clear(from, n) => {
            let keys: Vec<String> =
                model.range(key(from)..).take(usize::from(n)).map(|(k, _)| k.clone()).collect();
            for key in keys {
                assert_eq!(map.remove(tx, &key)?, model.remove(&key));
            }
        }
        Step::Scan(a, b) => {
            let (from, to) = (key(a.min(b)).min(key(a.max(b))), key(a.min(b)).max(key(a.max(b))));
            let expected: Vec<_> =
                model.range(from.clone()..to.clone()).map(|(k, r)| (Text::from(k.clone()), *r)).collect();
            let found: Vec<_> = map.range(tx, &from[..]..&to[..]).collect::<Result<_, _>>()?;
            assert_eq!(found, expected);
            let found: Vec<_> = map.range(tx, &from[..]..=&to[..]).rev().collect::<Result<_, _>>()?;
            let expected: Vec<_> =
                model.range(from..=to).rev().map(|(k, r)| (Text::from(k.clone()), *r)).collect();
            assert_eq!(found, expected);
        }
        Step::Commit | Step::Abort | Step::Reopen => {}
    }
    Ok(())
}

fn play(history: &[Step]) {
    let dir = tempfile::tempdir().unwrap();
    let mut client = space(&dir, SMALL);
    let root = client.run(|tx| Ok(Map::<Text, Item>::create(tx)?.reference())).unwrap();
    client.run(|tx| tx.set_root("map", root)).unwrap();
    let mut model = Model::new();
    for (i, part) in
        history.split_inclusive(|s| matches!(s, Step::Commit | Step::Abort | Step::Reopen)).enumerate()
    {
        let tx = client.transaction().begin().unwrap();
        let map = Map::open(tx.get_root_ref("map").unwrap().unwrap());
        let mut changed = model.clone();
        for step in part {
            take(&tx, map, &mut changed, step).unwrap();
        }
        if i % 4 == 0 {
            assert_same(&tx, map, &changed).unwrap();
        }
        match part.last() {
            Some(Step::Abort) => drop(tx),
            _ => {
                tx.commit().unwrap();
                model = changed;
            }
        }
        if matches!(part.last(), Some(Step::Reopen)) {
            client.close().unwrap();
            client = space(&dir, SMALL);
        }
    }
    client.run(|tx| assert_same(tx, Map::open(root), &model)).unwrap();
    client.close().unwrap();
}

/// A cache that holds a part of a map of some thousand keys only.
const SMALL: usize = 384 << 10;

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
    #[test]
    fn histories_end_as_those_of_a_btreemap_do(history in prop::collection::vec(step(), 1..1_500)) {
        play(&history);
    }
}

#[test]
fn a_map_larger_than_the_cache_does_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, SMALL);
    let name = |n: u64| format!("a name like many others {n:06}");
    let build = |tx: &Tx<'_>| {
        let items: Vec<_> =
            (0..15_000).map(|i| Ok((name(i * 2), item(tx, i)?))).collect::<Result<_, Error>>()?;
        let map = Map::<Text, Item>::build_sorted(tx, items.clone())?;
        Ok((map, items.into_iter().collect::<BTreeMap<_, _>>()))
    };
    let (map, mut model) = client.run(build).unwrap();
    let mut numbers = Random::new(2);
    for _ in 0..30 {
        let tx = client.transaction().begin().unwrap();
        for _ in 0..100 {
            let key = name(numbers.below(30_000));
            match numbers.below(3) {
                0 => {
                    let value = item(&tx, 1).unwrap();
                    assert_eq!(map.insert(&tx, &key, value).unwrap(), model.insert(key, value));
                }
                1 => assert_eq!(map.remove(&tx, &key).unwrap(), model.remove(&key)),
                _ => {
                    let found = map.range(&tx, &key[..]..).next().transpose().unwrap();
                    let expected = model.range(key..).next().map(|(k, r)| (Text::from(k.clone()), *r));
                    assert_eq!(found, expected);
                }
            }
        }
        tx.commit().unwrap();
    }
    // In parts, because a cache this small cannot remember the reads of the whole map for one transaction.
    for part in 0..10 {
        let (from, to) = (name(part * 3_000), name((part + 1) * 3_000));
        let expected: Vec<_> =
            model.range(from.clone()..to.clone()).map(|(k, r)| (Text::from(k.clone()), *r)).collect();
        let found =
            client.run(|tx| map.range(tx, &from[..]..&to[..]).collect::<Result<Vec<_>, _>>()).unwrap();
        assert_eq!(found, expected);
    }
    assert!(client.stats().cache.taken > 0, "nothing left the cache, so nothing was shown");
    client.close().unwrap();
}

fn with_space(body: impl FnOnce(&Client)) {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    body(&client);
    client.close().unwrap();
}

#[test]
fn numbers_are_in_the_order_of_numbers() {
    with_space(|client| {
        client
            .run(|tx| {
                let map = Map::<u64, Item>::create(tx)?;
                let keys = [0, 1, 255, 256, 65_535, 1 << 32, u64::MAX - 1, u64::MAX];
                for key in keys.iter().rev() {
                    map.insert(tx, *key, item(tx, *key)?)?;
                }
                let found: Vec<u64> = map.iter(tx).map(|e| Ok(e?.0)).collect::<Result<_, Error>>()?;
                assert_eq!(found, keys);
                let found: Vec<u64> =
                    map.range(tx, 256..=1 << 32).map(|e| Ok(e?.0)).collect::<Result<_, Error>>()?;
                assert_eq!(found, [256, 65_535, 1 << 32]);
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn a_prefix_finds_what_begins_with_it_and_no_more() {
    with_space(|client| {
        client
            .run(|tx| {
                let map = Map::<Bytes, Item>::create(tx)?;
                let keys: [&[u8]; 8] =
                    [b"", b"a", b"ab", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff\0"];
                for key in keys {
                    map.insert(tx, key, item(tx, 0)?)?;
                }
                for prefix in keys {
                    let found: Vec<Bytes> =
                        map.prefix(tx, prefix).map(|e| Ok(e?.0)).collect::<Result<_, Error>>()?;
                    let expected: Vec<Bytes> =
                        keys.iter().filter(|k| k.starts_with(prefix)).map(|k| Bytes(k.to_vec())).collect();
                    assert_eq!(found, expected, "{prefix:?}");
                }
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn a_key_that_is_too_long_is_refused_and_found_nowhere() {
    with_space(|client| {
        let long = "x".repeat(KEY_BYTES_MAX + 1);
        assert_eq!(Map::<Text, Item>::check_key(&long), Err(KeyTooLong { bytes: KEY_BYTES_MAX + 1 }));
        assert_eq!(Map::<Text, Item>::check_key(&long[1..]), Ok(()));
        client
            .run(|tx| {
                let map = Map::<Text, Item>::create(tx)?;
                assert!(matches!(map.insert(tx, &long, item(tx, 1)?), Err(Error::Full(_))));
                assert_eq!(map.get_ref(tx, &long)?, None);
                assert_eq!(map.remove(tx, &long)?, None);
                assert!(map.is_empty(tx)?);
                assert!(map.insert(tx, &long[1..], item(tx, 1)?)?.is_none());
                assert!(map.contains(tx, &long[1..])?);
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn a_map_is_opened_with_its_own_type_of_keys_only() {
    with_space(|client| {
        client
            .run(|tx| {
                let map = Map::<Text, Item>::create(tx)?;
                let other = Map::<u64, Item>::open(map.reference());
                assert!(matches!(other.get_ref(tx, 1), Err(Error::Schema(_))));
                assert!(matches!(other.insert(tx, 1, Ref::NULL), Err(Error::Schema(_))));
                assert!(matches!(other.iter(tx).next(), Some(Err(Error::Schema(_)))));
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn what_is_built_of_sorted_keys_is_whole_and_can_change() {
    with_space(|client| {
        let name = |i: u64| format!("package-{:06}", i * 2);
        let map = client
            .run(|tx| {
                let items: Vec<_> =
                    (0..20_000).map(|i| Ok((name(i), item(tx, i)?))).collect::<Result<_, Error>>()?;
                Map::<Text, Item>::build_sorted(tx, items)
            })
            .unwrap();
        client
            .run(|tx| {
                assert_eq!(map.count(tx)?, 20_000);
                for i in [0, 1, 57, 9_999, 19_999] {
                    assert_eq!(map.find(tx, &name(i))?.unwrap().number(), i);
                }
                let mut before = None;
                for (i, entry) in map.iter(tx).enumerate() {
                    let (key, value) = entry?;
                    assert_eq!(key.0, name(i as u64));
                    assert!(before < Some(value));
                    before = Some(value);
                }
                Ok(())
            })
            .unwrap();
        client
            .run(|tx| {
                for i in 0..2_000 {
                    map.insert(tx, &format!("package-{:06}", i * 20 + 1), item(tx, i)?)?;
                }
                assert_eq!(map.count(tx)?, 22_000);
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn what_comes_out_of_order_is_built_all_the_same() {
    with_space(|client| {
        client
            .run(|tx| {
                let mut numbers = Random::new(7);
                let mut model = BTreeMap::new();
                let mut entries = Vec::new();
                for i in 0..3_000 {
                    let key = numbers.below(2_000);
                    let value = item(tx, i)?;
                    model.insert(key, value);
                    entries.push((key, value));
                }
                let map = Map::<u64, Item>::build_sorted(tx, entries)?;
                let found: Vec<_> = map.iter(tx).collect::<Result<_, _>>()?;
                assert_eq!(found, model.into_iter().collect::<Vec<_>>());
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn both_ends_of_a_range_meet() {
    with_space(|client| {
        client
            .run(|tx| {
                let entries: Vec<_> =
                    (0..1_000).map(|i| Ok((i, item(tx, i)?))).collect::<Result<_, Error>>()?;
                let map = Map::<u64, Item>::build_sorted(tx, entries)?;
                let mut numbers = Random::new(3);
                let mut range = map.range(tx, 100..900);
                let (mut from, mut to) = (100, 900);
                while from < to {
                    let found = if numbers.below(2) == 0 {
                        from += 1;
                        (range.next().unwrap()?.0, from - 1)
                    } else {
                        to -= 1;
                        (range.next_back().unwrap()?.0, to)
                    };
                    assert_eq!(found.0, found.1);
                }
                assert!(range.next().is_none());
                assert!(range.next_back().is_none());
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn entries_are_removed_and_inserted_while_they_are_gone_through() {
    with_space(|client| {
        client
            .run(|tx| {
                let entries: Vec<_> =
                    (0..2_000).map(|i| Ok((i * 2, item(tx, i)?))).collect::<Result<_, Error>>()?;
                let map = Map::<u64, Item>::build_sorted(tx, entries)?;
                let mut old = Vec::new();
                for entry in map.iter(tx) {
                    let (key, value) = entry?;
                    if key % 2 == 0 {
                        old.push(key);
                        assert_eq!(map.remove(tx, key)?, Some(value));
                        map.insert(tx, key + 1, value)?;
                    }
                }
                assert_eq!(old, (0..2_000).map(|i| i * 2).collect::<Vec<_>>());
                let left: Vec<u64> = map.iter(tx).map(|e| Ok(e?.0)).collect::<Result<_, Error>>()?;
                assert_eq!(left, (0..2_000).map(|i| i * 2 + 1).collect::<Vec<_>>());
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn a_map_that_was_emptied_has_one_node_again() {
    with_space(|client| {
        let map = client
            .run(|tx| {
                let entries: Vec<_> =
                    (0..5_000).map(|i| Ok((i, item(tx, i)?))).collect::<Result<_, Error>>()?;
                Map::<u64, Item>::build_sorted(tx, entries)
            })
            .unwrap();
        client
            .run(|tx| {
                let mut numbers = Random::new(5);
                let mut left: Vec<u64> = (0..5_000).collect();
                while !left.is_empty() {
                    let key = left.swap_remove(numbers.below(left.len() as u64) as usize);
                    assert!(map.remove(tx, key)?.is_some());
                }
                // Only a top that is a leaf is empty.
                assert!(map.is_empty(tx)?);
                assert_eq!(map.count(tx)?, 0);
                Ok(())
            })
            .unwrap();
    });
}

#[derive(Object)]
struct Shop {
    parts: Map<Text, Item>,
    spare: Option<Map<u64, Item>>,
}

#[test]
fn a_map_is_a_field_of_an_object() {
    with_space(|client| {
        let shop = client.run(|tx| tx.create(&Shop { parts: Map::create(tx)?, spare: None })).unwrap();
        client
            .run(|tx| {
                let shop = tx.get(shop)?;
                shop.parts().insert(tx, "bolt", item(tx, 4)?)?;
                assert_eq!(shop.spare(), None);
                let spare = Map::create(tx)?;
                spare.insert(tx, 9, item(tx, 9)?)?;
                shop.edit()?.set_spare(Some(spare))
            })
            .unwrap();
        client
            .run(|tx| {
                let shop = tx.get(shop)?;
                assert_eq!(shop.parts().find(tx, "bolt")?.unwrap().number(), 4);
                assert_eq!(shop.spare().unwrap().find(tx, 9)?.unwrap().number(), 9);
                assert_eq!(shop.to_value()?.parts, shop.parts());
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn map_that_is_none_is_found_nowhere() {
    with_space(|space| {
        space
            .run(|tx| {
                let none = Map::<Text, Item>::NULL;
                assert!(none.is_null() && !Map::<Text, Item>::create(tx)?.is_null());
                let wrong = [
                    none.get_ref(tx, "a").err(),
                    none.remove(tx, "a").err(),
                    none.insert(tx, "a", item(tx, 1)?).err(),
                    none.iter(tx).next().and_then(Result::err),
                ];
                assert!(wrong.iter().all(|e| matches!(e, Some(Error::NotFound(_)))), "{wrong:?}");
                Ok(())
            })
            .unwrap();
    });
}
