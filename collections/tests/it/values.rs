//! Maps with values in their nodes, and sets, do what the standard library's do.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::common::{Item, LARGE, space};
use proptest::prelude::*;
use tercel::collections::{KEY_BYTES_MAX, Map, Set, VALUE_BYTES_MAX};
use tercel::{Bound, Client, Error, Key, Record, Text, Tx};
use tercel_machine::random::Random;

fn with_space(body: impl FnOnce(&Client)) {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    body(&client);
    client.close().unwrap();
}

#[derive(Debug, Clone)]
enum Step {
    /// A key, and the length of its value.
    Insert(u16, usize),
    Remove(u16),
    /// Removes this and the following ones.
    Clear(u16, u16),
}

/// Keys of a history.
const POOL: u16 = 300;

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![0..40usize, Just(0), Just(LONG), 0..LONG];
    prop_oneof![
        40 => (0..POOL, len).prop_map(|(n, len)| Step::Insert(n, len)),
        15 => (0..POOL).prop_map(Step::Remove),
        2 => (0..POOL, 1..POOL / 4).prop_map(|(from, n)| Step::Clear(from, n)),
    ]
}

/// The longest text that stands in a node, behind its four bytes of place and length.
const LONG: usize = VALUE_BYTES_MAX - 4;

/// A key of the number, some of them as long as keys can be.
fn key(n: u16) -> (String, i16) {
    let pad = match n % 5 {
        0 => KEY_BYTES_MAX - 9,
        k => usize::from(k) * 7,
    };
    (format!("{}{:03}", "k".repeat(pad), n / 2), -((n % 2) as i16))
}

type Contents = Map<(Text, i16), Text>;

fn play(tx: &Tx<'_>, history: &[Step]) -> Result<(), Error> {
    let (map, mut model) = (Contents::create(tx)?, BTreeMap::new());
    for (i, step) in history.iter().enumerate() {
        match *step {
            Step::Insert(n, len) => {
                let (key, value) = (key(n), char::from(b'a' + (i % 26) as u8).to_string().repeat(len));
                let old = map.insert(tx, (&key.0, key.1), value.clone().into())?;
                assert_eq!(old.map(|old| old.0), model.insert(key.clone(), value.clone()));
                assert_eq!(map.get_value(tx, (&key.0, key.1))?.unwrap().0, value);
            }
            Step::Remove(n) => {
                let key = key(n);
                let old = map.remove(tx, (&key.0, key.1))?;
                assert_eq!(old.map(|old| old.0), model.remove(&key));
            }
            Step::Clear(from, n) => {
                let keys: Vec<_> = model.keys().skip(from.into()).take(n.into()).cloned().collect();
                for key in keys {
                    let old = map.remove(tx, (&key.0, key.1))?;
                    assert_eq!(old.map(|old| old.0), model.remove(&key));
                }
            }
        }
    }
    let all = map.iter(tx).collect::<Result<Vec<_>, _>>()?;
    let expected: Vec<_> =
        model.iter().map(|((text, n), v)| ((Text::from(text.clone()), *n), Text::from(v.clone()))).collect();
    assert_eq!(all, expected);
    let mut back = map.iter(tx).rev().collect::<Result<Vec<_>, _>>()?;
    back.reverse();
    assert_eq!(back, expected);
    assert_eq!((map.count(tx)?, map.is_empty(tx)?), (model.len(), model.is_empty()));
    let (low, high) = (key(40), key(200));
    if low < high {
        let n = model.range(low.clone()..=high.clone()).count();
        assert_eq!(map.count_range(tx, (&*low.0, low.1)..=(&*high.0, high.1))?, n);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn values_end_as_those_of_a_btreemap(history in prop::collection::vec(step(), 1..600)) {
        with_space(|client| client.run(|tx| play(tx, &history)).unwrap());
    }
}

#[test]
fn set_does_what_a_btreeset_does() {
    with_space(|client| {
        let set = client.run(Set::<(Reverse<u32>, Text)>::create).unwrap();
        let (mut model, mut numbers) = (BTreeSet::new(), Random::new(3));
        for _ in 0..20 {
            client
                .run(|tx| {
                    for _ in 0..200 {
                        let (n, text) = (numbers.below(40) as u32, format!("{}", numbers.below(60)));
                        let key = (Reverse(n), text.clone());
                        if numbers.below(3) == 0 {
                            assert_eq!(set.remove(tx, (Reverse(n), &text))?, model.remove(&key));
                        } else {
                            assert_eq!(set.insert(tx, (Reverse(n), &text))?, model.insert(key));
                        }
                    }
                    Ok(())
                })
                .unwrap();
        }
        client
            .run(|tx| {
                let own = |key: Result<(Reverse<u32>, Text), Error>| key.map(|(n, text)| (n, text.0));
                let all = set.iter(tx).map(own).collect::<Result<Vec<_>, _>>()?;
                assert_eq!(all, model.iter().cloned().collect::<Vec<_>>());
                let part = set.prefix(tx, (Reverse(7),)).rev().map(own).collect::<Result<Vec<_>, _>>()?;
                assert_eq!(part, model.iter().rev().filter(|key| key.0.0 == 7).cloned().collect::<Vec<_>>());
                assert!(set.contains(tx, (Reverse(all[0].0.0), &all[0].1))?);
                assert_eq!((set.count(tx)?, set.is_empty(tx)?), (model.len(), false));
                Ok(())
            })
            .unwrap();
    });
}

#[derive(Record, Debug, Clone, PartialEq)]
struct Seen {
    count: u32,
    by: Option<Text>,
    where_to: Where,
}

#[derive(Record, Debug, Clone, PartialEq)]
enum Where {
    Nowhere,
    Line { number: u16, text: Text },
}

#[derive(Key, Debug, Clone, PartialEq)]
struct Id(i64);

#[test]
fn records_and_numbers_stand_in_nodes() {
    with_space(|client| {
        client
            .run(|tx| {
                let seen = |n: i64| Seen {
                    count: n as u32,
                    by: (n % 3 == 0).then(|| format!("by {n}").into()),
                    where_to: if n % 2 == 0 {
                        Where::Nowhere
                    } else {
                        Where::Line { number: 7, text: "a line".into() }
                    },
                };
                let records = Map::<Id, Seen>::build_sorted(tx, (-500..500).map(|n| (Id(n), seen(n))))?;
                let counts = Map::<Option<char>, f64>::create(tx)?;
                assert_eq!(counts.insert(tx, None, 0.5)?, None);
                assert_eq!(counts.insert(tx, Some('é'), 1.5)?, None);
                assert_eq!(counts.insert(tx, None, -0.5)?, Some(0.5));
                assert_eq!(counts.iter(tx).collect::<Result<Vec<_>, _>>()?, [(None, -0.5), (Some('é'), 1.5)]);
                for n in -500..500 {
                    assert_eq!(records.get_value(tx, &Id(n))?, Some(seen(n)));
                }
                let negative = records.range(tx, ..&Id(0)).map(|entry| entry.map(|entry| entry.0.0));
                assert_eq!(negative.collect::<Result<Vec<_>, _>>()?, (-500..0).collect::<Vec<_>>());
                assert_eq!(records.remove(tx, &Id(3))?, Some(seen(3)));
                assert_eq!(records.get_value(tx, &Id(3))?, None);
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn value_that_is_too_long_is_refused() {
    with_space(|client| {
        client
            .run(|tx| {
                let map = Map::<u8, Text>::create(tx)?;
                assert_eq!(map.insert(tx, 1, "x".repeat(LONG).into())?, None);
                for bytes in [LONG + 1, 2_000, 20_000] {
                    let refused = map.insert(tx, 2, "x".repeat(bytes).into());
                    assert!(matches!(refused, Err(Error::Full(Bound::Value { .. }))), "{refused:?}");
                }
                assert_eq!(map.count(tx)?, 1);
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn map_is_opened_with_its_own_types_only() {
    with_space(|client| {
        client
            .run(|tx| {
                let map = Map::<(u8, Text), u32>::create(tx)?.reference();
                let refused = [
                    Map::<(u8, Text), u64>::open(map).get_value(tx, (1, "a")).err(),
                    Map::<(u8, Text), Item>::open(map).get_ref(tx, (1, "a")).err(),
                    Map::<(u16, Text), u32>::open(map).remove(tx, (1, "a")).err(),
                    Set::<(u8, Text)>::open(map).insert(tx, (1, "a")).err(),
                ];
                for refused in refused {
                    let said = refused.unwrap().to_string();
                    assert!(
                        said.contains("has keys of (u8, text) with values of u32 and is used with"),
                        "{said}"
                    );
                }
                Ok(())
            })
            .unwrap();
    });
}
