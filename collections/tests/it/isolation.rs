//! Several transactions at once that read and change one collection.

use std::collections::BTreeSet;

use crate::common::{Item, LARGE, item, space};
use tercel::collections::vector::FANOUT;
use tercel::collections::{Map, Vector};
use tercel::{Client, Error, Isolation, Ref, Text};
use tercel_machine::random::Random;

const KEYS: u64 = 1_000;

/// A map of even numbers on several leaves.
fn even(client: &Client) -> Map<u64, Item> {
    client
        .run(|tx| {
            let value = item(tx, 0)?;
            Map::build_sorted(tx, (0..KEYS).map(|i| (i * 2, value)))
        })
        .unwrap()
}

fn insert(client: &Client, map: Map<u64, Item>, key: u64) {
    client.run(|tx| map.insert(tx, key, item(tx, key)?)).unwrap();
}

/// A transaction that read something and writes something else, so that its commit is checked.
fn reads_then_commits(
    client: &Client,
    read: impl Fn(&tercel::Tx<'_>),
    between: impl FnOnce(),
) -> Result<(), Error> {
    let other = client.run(|tx| item(tx, 0)).unwrap();
    let tx = client.transaction().begin().unwrap();
    read(&tx);
    tx.edit(other).and_then(|o| o.set_number(1)).unwrap();
    between();
    tx.commit().map(|_| ())
}

/// Runs a change under a snapshot, and something else of another transaction in its first attempt; gives the
/// number of attempts beside what became of it.
fn change_amid<R>(
    client: &Client,
    change: impl Fn(&tercel::Tx<'_>) -> Result<R, Error>,
    amid: impl Fn() -> Result<(), Error>,
) -> (u32, Result<R, Error>) {
    let mut attempts = 0;
    let outcome = client.transaction().isolation(Isolation::Snapshot).run(|tx| {
        attempts += 1;
        let changed = change(tx)?;
        if attempts == 1 {
            amid()?;
        }
        Ok(changed)
    });
    (attempts, outcome)
}

#[test]
fn change_beside_a_split_commits() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let map = even(&client);
    // A leaf that was built is full: room for one more.
    client.run(|tx| (0..10).try_for_each(|i| map.remove(tx, 2 * i).map(drop))).unwrap();
    let first = |tx: &tercel::Tx<'_>| map.insert(tx, 1, item(tx, 1).unwrap()).map(drop);
    let last = |tx: &tercel::Tx<'_>| map.remove(tx, KEYS).map(drop);
    for change in [&first as &dyn Fn(&tercel::Tx<'_>) -> Result<(), Error>, &last] {
        let tx = client.transaction().begin().unwrap();
        change(&tx).unwrap();
        // Some leaf is cut far away from both, and the top is written.
        (0..100).for_each(|i| insert(&client, map, 400 + 2 * i + 1));
        tx.commit().unwrap();
        client.run(|tx| (0..100).try_for_each(|i| map.remove(tx, 400 + 2 * i + 1).map(drop))).unwrap();
    }
    client.close().unwrap();
}

/// A change of a map, or a look into it.
#[derive(Debug, Clone, Copy)]
enum Act {
    Insert(u64),
    Remove(u64),
    Find(u64),
    /// Counts the keys of a range.
    Count(u64, u64),
}

impl Act {
    fn random(random: &mut Random) -> Act {
        let key = random.below(WIDE_KEYS);
        match random.below(8) {
            0..=2 => Act::Insert(key),
            3..=5 => Act::Remove(key),
            6 => Act::Find(key),
            _ => Act::Count(key, key + random.below(20)),
        }
    }

    fn on(self, tx: &tercel::Tx<'_>, map: Map<Text, u64>) -> Result<u64, Error> {
        Ok(match self {
            Act::Insert(key) => map.insert(tx, &wide(key), key)?.is_some().into(),
            Act::Remove(key) => map.remove(tx, &wide(key))?.is_some().into(),
            Act::Find(key) => map.contains(tx, &wide(key))?.into(),
            Act::Count(from, to) => map.count_range(tx, &*wide(from)..&*wide(to))? as u64,
        })
    }

    fn on_model(self, model: &mut BTreeSet<u64>) -> u64 {
        match self {
            Act::Insert(key) => (!model.insert(key)).into(),
            Act::Remove(key) => model.remove(&key).into(),
            Act::Find(key) => model.contains(&key).into(),
            Act::Count(from, to) => model.range(from..to).count() as u64,
        }
    }
}

const WIDE_KEYS: u64 = 120;

/// A key of which a node holds four, so that few keys make a high map.
fn wide(key: u64) -> String {
    format!("{key:0180}")
}

/// Two transactions at once: if both commit, they saw and left what one behind the other would have.
#[test]
fn interleaved_changes_are_serializable() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let mut random = Random::new(7);
    let (mut committed, mut conflicts) = (0, 0);
    for round in 0..400 {
        let mut model: BTreeSet<u64> = (0..WIDE_KEYS).filter(|_| random.below(2) == 0).collect();
        let map = client.run(|tx| Map::<Text, u64>::build_sorted(tx, model.iter().map(|k| (wide(*k), *k))));
        let map = map.unwrap();
        let [ours, others] =
            [0; 2].map(|_| (0..1 + random.below(6)).map(|_| Act::random(&mut random)).collect::<Vec<_>>());
        let tx = client.transaction().begin().unwrap();
        let seen: Vec<u64> = ours.iter().map(|act| act.on(&tx, map).unwrap()).collect();
        client.run(|tx| others.iter().try_for_each(|act| act.on(tx, map).map(drop))).unwrap();
        others.iter().for_each(|act| _ = act.on_model(&mut model));
        match tx.commit() {
            Ok(done) if done.op.is_none() => {}
            Ok(_) => {
                let then: Vec<u64> = ours.iter().map(|act| act.on_model(&mut model)).collect();
                assert_eq!(seen, then, "round {round}: {ours:?} behind {others:?}");
                committed += 1;
            }
            Err(Error::Conflict(_)) => conflicts += 1,
            Err(e) => panic!("{e}"),
        }
        let left = client.run(|tx| map.iter(tx).map(|entry| Ok(entry?.1)).collect::<Result<Vec<_>, Error>>());
        assert!(left.unwrap().into_iter().eq(model), "round {round}: {ours:?} behind {others:?}");
    }
    assert!(committed > 80 && conflicts > 80, "{committed} and {conflicts}");
    client.close().unwrap();
}

/// The last leaf keeps its keys when what comes behind them is cut off, and is written all the same.
#[test]
fn end_of_a_map_grows_twice_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let mut conflicts = 0;
    for n in 1..40 {
        let keys = (0..n).map(|key| (wide(key), key));
        let map = client.run(|tx| Map::<Text, u64>::build_sorted(tx, keys.clone())).unwrap();
        let add = |tx: &tercel::Tx<'_>, key| map.insert(tx, &wide(key), key).map(drop);
        let tx = client.transaction().begin().unwrap();
        add(&tx, n + 2).unwrap();
        client.run(|tx| add(tx, n + 1)).unwrap();
        let mut model: Vec<u64> = (0..n).chain([n + 1]).collect();
        match tx.commit() {
            Ok(_) => model.push(n + 2),
            Err(Error::Conflict(_)) => conflicts += 1,
            Err(e) => panic!("{e}"),
        }
        let left = client.run(|tx| map.iter(tx).map(|entry| Ok(entry?.1)).collect::<Result<Vec<_>, Error>>());
        assert_eq!(left.unwrap(), model);
        let found = client.run(|tx| model.iter().map(|key| map.contains(tx, &wide(*key))).collect());
        assert_eq!(found, Ok(vec![true; model.len()]));
    }
    assert_eq!(conflicts, 39, "both have changed one leaf");
    client.close().unwrap();
}

#[test]
fn nothing_appears_in_a_range_that_was_read() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let map = even(&client);
    let scan = |tx: &tercel::Tx<'_>| assert_eq!(map.range(tx, 500..600).count(), 50);
    assert!(matches!(
        reads_then_commits(&client, scan, || insert(&client, map, 555)),
        Err(Error::Conflict(_))
    ));
    client.close().unwrap();
}

#[test]
fn a_key_that_was_not_there_stays_away() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let map = even(&client);
    for key in [501, KEYS * 2 + 1] {
        let miss = |tx: &tercel::Tx<'_>| assert_eq!(map.get_ref(tx, key).unwrap(), None);
        let committed = reads_then_commits(&client, miss, || insert(&client, map, key));
        assert!(matches!(committed, Err(Error::Conflict(_))), "{key}");
    }
    let empty = client.run(Map::<u64, Item>::create).unwrap();
    let none = |tx: &tercel::Tx<'_>| assert!(empty.first(tx).unwrap().is_none());
    assert!(matches!(
        reads_then_commits(&client, none, || insert(&client, empty, 1)),
        Err(Error::Conflict(_))
    ));
    client.close().unwrap();
}

#[test]
fn a_change_far_from_what_was_read_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let map = even(&client);
    // The last leaf has room, so the insert splits nothing.
    let scan = |tx: &tercel::Tx<'_>| assert_eq!(map.range(tx, 500..600).count(), 50);
    assert_eq!(reads_then_commits(&client, scan, || insert(&client, map, KEYS * 2 + 1)), Ok(()));
    client.close().unwrap();
}

#[test]
fn a_range_reads_no_leaf_beyond_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let map = even(&client);
    // What the key at the end names is changed, which splits nothing. That key is in the last leaf of the
    // range, unless the range ends where a leaf does.
    let mut through = 0;
    for end in (2..400).step_by(2) {
        let scan = |tx: &tercel::Tx<'_>| assert_eq!(map.range(tx, 0..end).count() as u64, end / 2);
        through += usize::from(reads_then_commits(&client, scan, || insert(&client, map, end)).is_ok());
    }
    assert!((1..10).contains(&through), "{through} of 200 ranges ended with their leaf");
    client.close().unwrap();
}

#[test]
fn no_change_is_lost_in_leaves_that_are_joined_under_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let map = even(&client);
    // Few entries are left in all but the first leaf, whose keys are then removed one by one. At some time it
    // is joined with the second, at some time the top takes over the last leaf. Each time other transactions
    // are changing these leaves.
    client
        .run(|tx| (70..KEYS).filter(|i| i % 64 != 0).try_for_each(|i| map.remove(tx, i * 2).map(|_| ())))
        .unwrap();
    let left: Vec<u64> = (1..).map(|i| i * 128).skip(1).take_while(|k| *k < KEYS * 2).collect();
    for removed in 0..70 {
        for key in &left {
            let value = client.run(|tx| item(tx, *key + removed)).unwrap();
            let amid = || match key == &left[removed as usize % left.len()] {
                true => client.run(|inner| map.remove(inner, removed * 2).map(drop)),
                false => Ok(()),
            };
            change_amid(&client, |tx| map.insert(tx, *key, value).map(drop), amid).1.unwrap();
            assert_eq!(client.run(|tx| map.get_ref(tx, *key)).unwrap(), Some(value), "{key} at {removed}");
        }
    }
    client.close().unwrap();
}

#[test]
fn no_change_is_lost_when_a_last_entry_goes_under_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    // With one of these lengths the last leaf has one entry: then removing it drops that leaf, and the top
    // takes over the other.
    for len in 60..80 {
        for changed in [0, len] {
            let map = client
                .run(|tx| {
                    let value = item(tx, 0)?;
                    Map::<u64, Item>::build_sorted(tx, (0..len).map(|i| (i, value)))
                })
                .unwrap();
            let insert = |tx: &tercel::Tx<'_>| {
                let value = item(tx, 1)?;
                map.insert(tx, changed, value).map(|_| value)
            };
            let remove = || client.run(|inner| map.remove(inner, len - 1).map(drop));
            let value = change_amid(&client, insert, remove).1.unwrap();
            assert_eq!(client.run(|tx| map.get_ref(tx, changed)).unwrap(), Some(value), "{changed} of {len}");
        }
    }
    client.close().unwrap();
}

#[test]
fn no_change_is_lost_in_leaves_that_are_popped_under_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let len = FANOUT as u64 + 1;
    for changed in [0, len - 1] {
        let vector = client
            .run(|tx| {
                let value = item(tx, 0)?;
                Vector::<Item>::build(tx, std::iter::repeat_n(value, len as usize))
            })
            .unwrap();
        let set = |tx: &tercel::Tx<'_>| {
            let value = item(tx, 245)?;
            vector.set(tx, changed, value).map(|_| value)
        };
        let (attempts, outcome) =
            change_amid(&client, set, || client.run(|inner| vector.pop_back(inner).map(drop)));
        assert_eq!(attempts, 2);
        match outcome {
            Ok(value) => assert_eq!(client.run(|tx| vector.get_ref(tx, changed)).unwrap(), Some(value)),
            Err(e) => assert!(changed == len - 1 && matches!(e, Error::NotFound(_)), "{e}"),
        }
    }
    client.close().unwrap();
}

#[test]
fn threads_lose_no_insert_and_no_removal() {
    const THREADS: u64 = 4;
    const EACH: u64 = 250;
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        let map = client.run(Map::<u64, Item>::create).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let client = &client;
                scope.spawn(move || {
                    for i in 0..EACH {
                        // Neighbours in the map, so the threads meet in most leaves.
                        let key = i * THREADS + thread;
                        client
                            .transaction()
                            .isolation(isolation)
                            .run(|tx| map.insert(tx, key, item(tx, key)?))
                            .unwrap();
                        if i % 3 == 2 {
                            let gone = client
                                .transaction()
                                .isolation(isolation)
                                .run(|tx| map.remove(tx, key - THREADS))
                                .unwrap();
                            assert!(gone.is_some());
                        }
                    }
                });
            }
        });
        let expected: Vec<u64> =
            (0..EACH * THREADS).filter(|k| k / THREADS % 3 != 1 || k / THREADS + 1 >= EACH).collect();
        client
            .run(|tx| {
                let found: Vec<u64> = map.iter(tx).map(|e| Ok(e?.0)).collect::<Result<_, Error>>()?;
                assert_eq!(found, expected);
                for key in &expected {
                    assert_eq!(map.find(tx, *key)?.unwrap().number(), *key);
                }
                Ok(())
            })
            .unwrap();
    }
    client.close().unwrap();
}

#[test]
fn threads_lose_no_push() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let vector = client.run(Vector::<Item>::create).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let client = &client;
            scope.spawn(move || {
                for i in 0..200 {
                    client.run(|tx| vector.push_back(tx, item(tx, thread * 1_000 + i)?)).unwrap();
                }
            });
        }
    });
    client
        .run(|tx| {
            let items: Vec<Ref<Item>> = vector.iter(tx).collect::<Result<_, _>>()?;
            let mut found: Vec<u64> =
                items.into_iter().map(|r| Ok(tx.get(r)?.number())).collect::<Result<_, Error>>()?;
            found.sort_unstable();
            let expected: Vec<u64> = (0..3).flat_map(|t| (0..200).map(move |i| t * 1_000 + i)).collect();
            assert_eq!(found, expected);
            Ok(())
        })
        .unwrap();
    client.close().unwrap();
}

#[test]
fn a_push_leaves_readers_of_other_leaves_alone() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let vector = client
        .run(|tx| {
            let value = item(tx, 0)?;
            Vector::<Item>::build(tx, std::iter::repeat_n(value, 1_000))
        })
        .unwrap();
    let read = |tx: &tercel::Tx<'_>| assert!(vector.get_ref(tx, 17).unwrap().is_some());
    let push = || client.run(|tx| vector.push_back(tx, item(tx, 1)?)).unwrap();
    assert_eq!(reads_then_commits(&client, read, push), Ok(()));
    let len = |tx: &tercel::Tx<'_>| assert_eq!(vector.len(tx).unwrap(), 1_001);
    assert!(matches!(reads_then_commits(&client, len, push), Err(Error::Conflict(_))));
    client.close().unwrap();
}
