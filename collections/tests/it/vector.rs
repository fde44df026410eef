//! A vector does what the standard library's does.

use crate::common::{Item, LARGE, item, space};
use tercel::collections::Vector;
use tercel::collections::vector::FANOUT;
use tercel::{Error, Ref, Tx};
use tercel_machine::random::Random;

fn assert_same(tx: &Tx<'_>, vector: Vector<Item>, model: &[Ref<Item>]) -> Result<(), Error> {
    assert_eq!(vector.len(tx)?, model.len() as u64);
    assert_eq!(vector.is_empty(tx)?, model.is_empty());
    assert_eq!(vector.last(tx)?, model.last().copied());
    assert_eq!(vector.iter(tx).collect::<Result<Vec<_>, _>>()?, model);
    assert_eq!(vector.get_ref(tx, model.len() as u64)?, None);
    Ok(())
}

#[test]
fn histories_end_as_those_of_a_vec_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut client = space(&dir, 512 << 10);
    let mut numbers = Random::new(11);
    let root = client.run(|tx| Ok(Vector::<Item>::create(tx)?.reference())).unwrap();
    client.run(|tx| tx.set_root("vector", root)).unwrap();
    let mut model: Vec<Ref<Item>> = Vec::new();
    for turn in 0..60 {
        let tx = client.transaction().begin().unwrap();
        let vector = Vector::<Item>::open(tx.get_root_ref("vector").unwrap().unwrap());
        let before = model.clone();
        // Long runs in one direction fill many leaves, and long runs back empty them.
        let grows = turn % 6 < 3;
        for _ in 0..numbers.below(2_000) {
            match numbers.below(10) {
                0 if !model.is_empty() => {
                    let i = numbers.below(model.len() as u64);
                    let value = item(&tx, i).unwrap();
                    assert_eq!(vector.set(&tx, i, value).unwrap(), model[i as usize]);
                    model[i as usize] = value;
                    assert_eq!(vector.find(&tx, i).unwrap().unwrap().number(), i);
                }
                1 => assert_eq!(vector.pop_back(&tx).unwrap(), model.pop()),
                _ if grows => {
                    let value = item(&tx, model.len() as u64).unwrap();
                    vector.push_back(&tx, value).unwrap();
                    model.push(value);
                }
                _ => assert_eq!(vector.pop_back(&tx).unwrap(), model.pop()),
            }
        }
        assert_same(&tx, vector, &model).unwrap();
        if numbers.below(8) == 0 {
            drop(tx);
            model = before;
        } else {
            tx.commit().unwrap();
        }
        if turn % 10 == 9 {
            client.close().unwrap();
            client = space(&dir, 512 << 10);
        }
    }
    client.run(|tx| assert_same(tx, Vector::open(root), &model)).unwrap();
    client.close().unwrap();
}

#[test]
fn every_length_around_a_full_level_grows_and_shrinks() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    for around in [FANOUT, FANOUT * FANOUT] {
        client
            .run(|tx| {
                let value = item(tx, 1)?;
                let built = around - 2;
                let vector = Vector::<Item>::build(tx, std::iter::repeat_n(value, built))?;
                for len in built..around + 3 {
                    assert_eq!(vector.len(tx)?, len as u64);
                    vector.push_back(tx, item(tx, len as u64)?)?;
                    assert_eq!(vector.find(tx, len as u64)?.unwrap().number(), len as u64);
                    assert_eq!(vector.get_ref(tx, 0)?, Some(value));
                }
                for len in (built..around + 3).rev() {
                    let popped = vector.pop_back(tx)?.unwrap();
                    assert_eq!(tx.get(popped)?.number(), len as u64);
                    assert_eq!(vector.len(tx)?, len as u64);
                    assert_eq!(vector.get_ref(tx, len as u64)?, None);
                }
                Ok(())
            })
            .unwrap();
    }
    client.close().unwrap();
}

#[test]
fn a_built_vector_is_read_from_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let len = 2 * FANOUT as u64 + 17;
    let vector = client
        .run(|tx| {
            let items: Vec<_> = (0..len).map(|i| item(tx, i)).collect::<Result<_, _>>()?;
            Vector::<Item>::build(tx, items)
        })
        .unwrap();
    client
        .run(|tx| {
            for from in [0, 1, 239, 240, 241, 480, len - 1, len, len + 1_000_000] {
                let found: Vec<u64> = vector
                    .iter_from(tx, from)
                    .map(|r| Ok(tx.get(r?)?.number()))
                    .collect::<Result<_, Error>>()?;
                assert_eq!(found, (from..len).collect::<Vec<_>>());
            }
            assert!(matches!(vector.set(tx, len, Ref::NULL), Err(Error::NotFound(_))));
            Ok(())
        })
        .unwrap();
    client.close().unwrap();
}

#[test]
fn an_empty_vector_is_built_of_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    client.run(|tx| assert_same(tx, Vector::build(tx, [])?, &[])).unwrap();
    client.close().unwrap();
}
