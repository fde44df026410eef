//! Tables: their indexes are those that the rows make, whatever is done.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::common::{LARGE, space};
use proptest::prelude::*;
use tercel::collections::Table;
use tercel::{Client, Error, Obj, Object, Record, Text, Tx};
use tercel_machine::random::Random;

/// A row with all that an index can be made of.
#[derive(Object, Debug, Clone, PartialEq)]
#[table(key = (event, number), index(event, price), index(holder), index(name, event, state), unique(code))]
struct Seat {
    event: u16,
    number: u32,
    price: i32,
    holder: Option<u64>,
    name: Text,
    state: bool,
    code: Text,
    note: Text,
}

fn seat(n: u32) -> Seat {
    Seat {
        event: (n % 3) as u16,
        number: n,
        price: 100 - (n % 7) as i32 * 50,
        holder: n.is_multiple_of(4).then_some(u64::from(n % 8)),
        name: ["a", "a\0", "ab", ""][n as usize % 4].into(),
        state: n.is_multiple_of(2),
        code: format!("code {n}").into(),
        note: "".into(),
    }
}

fn with_table(body: impl FnOnce(&Client, Table<Seat>)) {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let seats = client.run(|tx| Table::<Seat>::root(tx, "seats")).unwrap();
    body(&client, seats);
    assert!(client.run(|tx| seats.check(tx)).unwrap().is_empty());
    client.close().unwrap();
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u32),
    /// Inserts with another row's code.
    Double(u32, u32),
    Remove(u32),
    Price(u32, i32),
    Holder(u32, Option<u64>),
    Name(u32, u8),
    Code(u32, u32),
    Commit,
    Abort,
}

/// Rows of a history.
const POOL: u32 = 120;

fn step() -> impl Strategy<Value = Step> {
    let n = 0..POOL;
    prop_oneof![
        30 => n.clone().prop_map(Step::Insert),
        3 => (n.clone(), n.clone()).prop_map(|(a, b)| Step::Double(a, b)),
        10 => n.clone().prop_map(Step::Remove),
        8 => (n.clone(), -200..200i32).prop_map(|(n, price)| Step::Price(n, price)),
        5 => (n.clone(), prop::option::of(0..9u64)).prop_map(|(n, holder)| Step::Holder(n, holder)),
        5 => (n.clone(), 0..4u8).prop_map(|(n, name)| Step::Name(n, name)),
        5 => (n.clone(), n).prop_map(|(n, code)| Step::Code(n, code)),
        3 => Just(Step::Commit),
        1 => Just(Step::Abort),
    ]
}

type Model = BTreeMap<(u16, u32), Seat>;

fn is_taken(e: &Error) -> bool {
    matches!(e, Error::Taken(_))
}

fn take(tx: &Tx<'_>, seats: Table<Seat>, model: &mut Model, step: &Step) -> Result<(), Error> {
    let key = |n: u32| ((n % 3) as u16, n);
    let has_code = |model: &Model, code: &Text| model.values().any(|row| row.code == *code);
    let insert = |model: &mut Model, row: Seat| -> Result<(), Error> {
        let key = (row.event, row.number);
        match seats.insert(tx, &row) {
            Ok(r) => {
                assert!(!has_code(model, &row.code));
                assert_eq!(tx.get(r)?.to_value()?, row);
                assert!(model.insert(key, row).is_none());
            }
            Err(e) => {
                assert!(is_taken(&e) && (model.contains_key(&key) || has_code(model, &row.code)), "{e}")
            }
        }
        Ok(())
    };
    match *step {
        Step::Insert(n) => insert(model, seat(n))?,
        Step::Double(n, other) => insert(model, Seat { code: seat(other).code, ..seat(n) })?,
        Step::Remove(n) => assert_eq!(seats.remove(tx, key(n))?.is_some(), model.remove(&key(n)).is_some()),
        Step::Price(n, price) => match (seats.edit(tx, key(n)), model.get_mut(&key(n))) {
            (Ok(row), Some(model)) => {
                row.set_price(price)?;
                row.set_note("moved")?;
                (model.price, model.note) = (price, "moved".into());
            }
            (row, model) => assert!(model.is_none() && matches!(row, Err(Error::NotFound(_)))),
        },
        Step::Holder(n, holder) => {
            if let Some(model) = model.get_mut(&key(n)) {
                seats.edit(tx, key(n))?.set_holder(holder)?;
                model.holder = holder;
            }
        }
        Step::Name(n, name) => {
            if let Some(model) = model.get_mut(&key(n)) {
                let row = seats.edit(tx, key(n))?;
                model.name = ["", "a", "a\0\0", "b"][usize::from(name)].into();
                row.set_name(model.name.clone())?;
                model.state = !model.state;
                row.set_state(model.state)?;
            }
        }
        Step::Code(n, code) => {
            if model.contains_key(&key(n)) {
                let code = seat(code).code;
                match seats.edit(tx, key(n))?.set_code(code.clone()) {
                    Ok(()) => {
                        model.get_mut(&key(n)).unwrap().code = code.clone();
                        assert_eq!(model.values().filter(|row| row.code == code).count(), 1);
                    }
                    Err(e) => assert!(is_taken(&e) && has_code(model, &code), "{e}"),
                }
            }
        }
        Step::Commit | Step::Abort => {}
    }
    Ok(())
}

fn values<'t>(rows: impl Iterator<Item = Result<Obj<'t, Seat>, Error>>) -> Result<Vec<Seat>, Error> {
    rows.map(|row| row?.to_value()).collect()
}

/// The rows of a model that are meant, in an order of their own.
fn sorted<K: Ord>(model: &Model, by: impl Fn(&Seat) -> K, is_meant: impl Fn(&Seat) -> bool) -> Vec<Seat> {
    let mut rows: Vec<_> = model.values().filter(|row| is_meant(row)).cloned().collect();
    rows.sort_by_key(|row| (by(row), row.event, row.number));
    rows
}

fn assert_same(tx: &Tx<'_>, seats: Table<Seat>, model: &Model) -> Result<(), Error> {
    assert_eq!(seats.check(tx)?, Vec::<String>::new());
    assert_eq!(values(seats.iter(tx))?, model.values().cloned().collect::<Vec<_>>());
    assert_eq!((seats.count(tx)?, seats.is_empty(tx)?), (model.len(), model.is_empty()));
    let by_price = seats.by(Seat::BY_EVENT_PRICE);
    let price = |row: &Seat| (row.event, row.price);
    assert_eq!(values(by_price.iter(tx))?, sorted(model, price, |_| true));
    assert_eq!(values(by_price.prefix(tx, (1,)))?, sorted(model, price, |row| row.event == 1));
    let part = sorted(model, price, |row| ((1, -50)..=(2, 50)).contains(&price(row)));
    assert_eq!(values(by_price.range(tx, (1, -50)..=(2, 50)))?, part);
    assert_eq!(by_price.range(tx, (1, -50)..=(2, 50)).count_keys()?, part.len());
    let bounds = (std::ops::Bound::Excluded((0, 50)), std::ops::Bound::Excluded((1, 100)));
    let part = sorted(model, price, |row| price(row) > (0, 50) && price(row) < (1, 100));
    assert_eq!(values(by_price.range(tx, bounds))?, part);
    let mut back = values(by_price.range(tx, bounds).rev())?;
    back.reverse();
    assert_eq!(back, part);
    let by_holder = seats.by(Seat::BY_HOLDER);
    assert_eq!(values(by_holder.at(tx, None))?, sorted(model, |_| (), |row| row.holder.is_none()));
    assert_eq!(values(by_holder.at(tx, Some(4)))?, sorted(model, |_| (), |row| row.holder == Some(4)));
    let by_name = seats.by(Seat::BY_NAME_EVENT_STATE);
    let name = |row: &Seat| (row.name.0.clone(), row.event, row.state);
    assert_eq!(values(by_name.prefix(tx, ("a",)))?, sorted(model, name, |row| row.name == "a"));
    assert_eq!(
        values(by_name.prefix(tx, ("a", 1)))?,
        sorted(model, name, |row| row.name == "a" && row.event == 1)
    );
    let first = sorted(model, name, |_| true).first().cloned();
    assert_eq!(by_name.first(tx)?.map(|row| row.to_value()).transpose()?, first);
    let by_code = seats.by(Seat::BY_CODE);
    for row in model.values() {
        assert_eq!(by_code.get(tx, &row.code)?.to_value()?, *row);
    }
    assert!(by_code.find(tx, "none")?.is_none());
    let last = sorted(model, |row| row.code.0.clone(), |_| true).last().cloned();
    assert_eq!(by_code.last(tx)?.map(|row| row.to_value()).transpose()?, last);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn rows_and_indexes_are_those_of_a_model(history in prop::collection::vec(step(), 1..400)) {
        with_table(|client, seats| {
            let mut model = Model::new();
            for part in history.split_inclusive(|s| matches!(s, Step::Commit | Step::Abort)) {
                let tx = client.transaction().begin().unwrap();
                let mut changed = model.clone();
                for step in part {
                    take(&tx, seats, &mut changed, step).unwrap();
                }
                assert_same(&tx, seats, &changed).unwrap();
                if matches!(part.last(), Some(Step::Abort)) {
                    drop(tx);
                } else {
                    tx.commit().unwrap();
                    model = changed;
                }
            }
            client.run(|tx| assert_same(tx, seats, &model)).unwrap();
        });
    }
}

#[test]
fn unique_index_names_itself_and_the_key() {
    with_table(|client, seats| {
        client
            .run(|tx| {
                seats.insert(tx, &seat(1))?;
                let key = seats.insert(tx, &Seat { code: "other".into(), ..seat(1) }).unwrap_err();
                assert_eq!(
                    key.to_string(),
                    "another Seat has the event, number (1, 1), which must be unique"
                );
                let code = seats.insert(tx, &Seat { code: seat(1).code, ..seat(2) }).unwrap_err();
                assert_eq!(code.to_string(), "another Seat has the code \"code 1\", which must be unique");
                let Err(Error::Taken(taken)) = seats.insert(tx, &seat(1)) else { panic!("it was not taken") };
                assert_eq!((&taken.class[..], &taken.index[..]), ("Seat", "event, number"));
                assert_eq!(seats.count(tx)?, 1);
                let missing = seats.get(tx, (0, 9)).err().unwrap();
                assert_eq!(missing.to_string(), "a Seat with the event, number (0, 9) was not found");
                let missing = seats.by(Seat::BY_CODE).get(tx, "x").err().unwrap();
                assert_eq!(missing.to_string(), "a Seat with the code \"x\" was not found");
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn refused_row_leaves_the_transaction_usable() {
    with_table(|client, seats| {
        client
            .run(|tx| {
                seats.insert(tx, &seat(1))?;
                seats.insert(tx, &seat(2))?;
                let row = seats.edit(tx, (2, 2))?;
                assert!(is_taken(&row.set_code(seat(1).code).unwrap_err()));
                assert!(matches!(row.set_name("x".repeat(300)), Err(Error::Full(_))));
                row.set_price(7)?;
                let long = Seat { name: "x".repeat(300).into(), ..seat(3) };
                assert!(matches!(seats.insert(tx, &long), Err(Error::Full(_))));
                Ok(())
            })
            .unwrap();
        client
            .run(|tx| {
                let row = seats.get(tx, (2, 2))?.to_value()?;
                assert_eq!(row, Seat { price: 7, ..seat(2) });
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn pages_go_on_where_they_ended() {
    with_table(|client, seats| {
        let price = |n: u32| Seat { price: n as i32 * 10, event: 0, ..seat(n) };
        client.run(|tx| (0..60).try_for_each(|n| seats.insert(tx, &price(n)).map(drop))).unwrap();
        let by_price = seats.by(Seat::BY_EVENT_PRICE);
        let (mut seen, mut cursor) = (Vec::new(), None);
        for turn in 0.. {
            let page = client
                .run(|tx| {
                    let mut rows = by_price.prefix(tx, (0,));
                    if let Some(cursor) = &cursor {
                        rows = rows.after(cursor);
                    }
                    let page = rows.page(7)?;
                    Ok((values(page.rows.into_iter().map(Ok))?, page.next))
                })
                .unwrap();
            seen.extend(page.0.iter().map(|row| (row.price, row.number)));
            let Some(next) = page.1 else { break };
            cursor = Some(next.to_string().parse().unwrap());
            // Of what is inserted the rest comes; the row at which the page ended may go.
            let last = seen.last().unwrap().1;
            client
                .run(|tx| {
                    seats.insert(tx, &Seat { price: -1, event: 0, ..seat(1_000 + turn) })?;
                    seats.insert(tx, &Seat { price: 595 - turn as i32, event: 0, ..seat(2_000 + turn) })?;
                    seats.remove(tx, (0, last)).map(drop)
                })
                .unwrap();
        }
        let mut once = seen.clone();
        once.dedup();
        assert_eq!(seen, once);
        assert_eq!(seen.iter().filter(|(_, number)| *number < 60).count(), 60);
        assert!(
            seen.is_sorted() && seen.contains(&(595, 2_000)) && seen.iter().all(|(price, _)| *price >= 0)
        );
        client
            .run(|tx| {
                let last = by_price.iter(tx).page_back(5)?;
                let before = by_price.iter(tx).before(last.next.as_ref().unwrap()).page_back(5)?;
                let both: Vec<i32> = last.rows.iter().chain(&before.rows).map(|row| row.price()).collect();
                assert!(both.len() == 10 && both.is_sorted_by_key(|price| Reverse(*price)), "{both:?}");
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn inserts_of_two_clients_keep_one_code() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let seats = client.run(|tx| Table::<Seat>::root(tx, "seats")).unwrap();
    let (one, other) = (client.transaction().begin().unwrap(), client.transaction().begin().unwrap());
    seats.insert(&one, &seat(1)).unwrap();
    seats.insert(&other, &Seat { code: seat(1).code, ..seat(2) }).unwrap();
    one.commit().unwrap();
    assert!(matches!(other.commit(), Err(Error::Conflict(_))));
    let found = client.run(|tx| Ok((seats.count(tx)?, seats.check(tx)?))).unwrap();
    assert_eq!(found, (1, vec![]));
    client.close().unwrap();
}

/// A key that is a record, and the same class with other indexes.
#[derive(Record, tercel::Key, Debug, Clone, PartialEq)]
pub struct Number {
    pub n: u32,
}

mod before {
    use super::*;
    #[derive(Object)]
    #[table(key = id, index(size))]
    pub struct Part {
        pub id: Number,
        pub size: f64,
        pub colour: Text,
    }
}

mod after {
    use super::*;
    #[derive(Object)]
    #[table(key = id, index(colour, size), index(size))]
    pub struct Part {
        pub id: Number,
        pub size: f64,
        pub colour: Text,
    }
}

#[test]
fn other_declarations_are_refused_until_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    client
        .run(|tx| {
            let parts = Table::<before::Part>::root(tx, "parts")?;
            for n in 0..50 {
                let size = f64::from(n % 5) - 2.0;
                parts.insert(
                    tx,
                    &before::Part { id: Number { n }, size, colour: format!("{}", n % 3).into() },
                )?;
            }
            let sizes = parts.by(before::Part::BY_SIZE).range(tx, ..0.0).count_keys()?;
            assert_eq!((sizes, parts.contains(tx, &Number { n: 7 })?), (20, true));
            Ok(())
        })
        .unwrap();
    client.close().unwrap();
    let client = space(&dir, LARGE);
    let parts = client.run(|tx| Table::<after::Part>::root(tx, "parts")).unwrap();
    let refused = client.run(|tx| parts.count(tx)).unwrap_err();
    assert!(matches!(refused, Error::Schema(_)));
    assert!(
        refused.to_string().contains("[size], and the program declares Part by id with [colour, size; size]"),
        "{refused}"
    );
    client
        .run(|tx| {
            assert!(parts.rebuild(tx)? && !parts.rebuild(tx)?);
            assert_eq!(parts.check(tx)?, Vec::<String>::new());
            assert_eq!(parts.by(after::Part::BY_COLOUR_SIZE).prefix(tx, ("1",)).count_keys()?, 17);
            assert_eq!(parts.by(after::Part::BY_SIZE).range(tx, ..0.0).count_keys()?, 20);
            parts.edit(tx, &Number { n: 7 })?.set_colour("new")
        })
        .unwrap();
    assert!(client.run(|tx| parts.check(tx)).unwrap().is_empty());
    client.close().unwrap();
}

#[test]
fn rows_inserted_together_are_those_inserted_singly() {
    with_table(|client, seats| {
        let mut numbers = Random::new(8);
        let mut model = Model::new();
        for turn in 0..12u32 {
            let mut rows: Vec<Seat> = (0..150).map(|n| seat(turn * 150 + n)).collect();
            if turn % 3 > 0 {
                rows.sort_by_cached_key(|_| numbers.below(1_000));
            }
            model.extend(rows.iter().map(|row| ((row.event, row.number), row.clone())));
            client.run(|tx| seats.insert_all(tx, rows.clone())).unwrap();
        }
        client.run(|tx| assert_same(tx, seats, &model)).unwrap();
        let twice = [seat(9_000), seat(9_001), Seat { code: seat(9_000).code, ..seat(9_002) }];
        let tx = client.transaction().begin().unwrap();
        assert!(is_taken(&seats.insert_all(&tx, twice).unwrap_err()));
        assert!(matches!(tx.commit(), Err(Error::Invalid(_))));
        assert!(is_taken(&client.run(|tx| seats.insert_all(tx, [seat(7)])).unwrap_err()));
        client.run(|tx| assert_same(tx, seats, &model)).unwrap();
    });
}

#[test]
fn torn_transaction_is_never_committed() {
    with_table(|client, seats| {
        let tx = client.transaction().begin().unwrap();
        seats.insert(&tx, &seat(1)).unwrap();
        tx.tear();
        assert!(matches!(tx.commit(), Err(Error::Invalid(_))));
        assert!(client.run(|tx| seats.is_empty(tx)).unwrap());
    });
}
