//! Lists of everything that can be in one: in the record, in chunks, and from one version of a class to the
//! next.

use crate::world::World;
use tercel_derive::{Object, Record};
use tercel_engine::error::{Bound, Error};
use tercel_engine::server::ServerConfig;
use tercel_wire::record::{Bytes, List, Ref, Text};

/// A line of a bill.
#[derive(Record, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Line {
    what: Text,
    thing: Ref<Bill>,
    sizes: List<u32>,
}

/// Numbers only: a list of them may be of any length.
#[derive(Record, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Weight {
    grams: u16,
    checked: Option<bool>,
    spread: [f32; 2],
}

/// Has every kind of list.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Bill {
    number: u32,
    lines: List<Line>,
    weights: List<Weight>,
    maybe: Option<List<Weight>>,
    pairs: List<[u16; 2]>,
    parcels: List<Bytes>,
    gaps: List<Option<i64>>,
    rows: List<List<Text>>,
}

fn weight(n: usize) -> Weight {
    Weight {
        grams: n as u16,
        checked: [None, Some(false), Some(true)][n % 3],
        spread: [n as f32, -(n as f32) / 3.0],
    }
}

fn weights(n: usize) -> List<Weight> {
    (0..n).map(weight).collect()
}

fn bill(n: usize) -> Bill {
    let line =
        |i: usize| Line { what: "x".repeat(i).into(), thing: Ref::NULL, sizes: (0..i as u32).collect() };
    Bill {
        number: 7,
        lines: (0..4).map(line).collect(),
        weights: weights(n),
        maybe: Some(weights(n / 2)),
        pairs: (0..n).map(|i| [i as u16, 2]).collect(),
        parcels: List(vec![Bytes(vec![1, 2, 3]), Bytes(vec![]), Bytes(vec![4])]),
        // Options leave the record as the numbers they hold do.
        gaps: (0..n).map(|i| (i % 2 == 0).then_some(-(i as i64))).collect(),
        rows: List(vec![List(vec!["a".into(), "".into()]), List::default(), List(vec!["b".into()])]),
    }
}

fn world(clients: usize) -> World {
    World::new(1, clients, ServerConfig::default())
}

#[test]
fn lists_of_all_kinds_come_back_in_the_record_and_in_chunks() {
    // Nothing, in the record, one leaf, several leaves and a node.
    for n in [0, 5, 200, 3_000] {
        let w = world(2);
        let made = bill(n);
        let r = w
            .run(0, |tx| {
                let r = tx.create(&made)?;
                assert_eq!(tx.get(r)?.weights().to_vec()?, made.weights.0, "before it is committed");
                Ok(r)
            })
            .unwrap();
        w.run_until_idle();
        w.run(1, |tx| {
            let read = tx.get(r)?;
            assert_eq!(read.to_value()?, made);
            assert_eq!(read.lines().to_vec()?, made.lines.0);
            assert_eq!(read.weights().to_vec()?, made.weights.0);
            assert_eq!(read.maybe().unwrap().to_vec()?, made.maybe.clone().unwrap().0);
            assert_eq!(read.pairs().to_vec()?, made.pairs.0);
            assert_eq!(read.gaps().to_vec()?, made.gaps.0);
            assert_eq!(read.rows().to_vec()?, made.rows.0);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_pushed_element_comes_behind_the_others_in_the_record_and_in_chunks() {
    let w = world(2);
    for n in [0, 5, 3_000] {
        let made = bill(n);
        let r = w
            .run(0, |tx| {
                let r = tx.create(&made)?;
                let edit = tx.edit(r)?;
                edit.push_weights(weight(n))?;
                edit.push_parcels([5])?;
                edit.push_weights(weight(n + 1))?;
                edit.set_number(8)?;
                Ok(r)
            })
            .unwrap();
        w.run_until_idle();
        let read = w.run(1, |tx| tx.get(r)?.to_value()).unwrap();
        let parcels = made.parcels.iter().cloned().chain([Bytes(vec![5])]).collect();
        assert_eq!(read, Bill { number: 8, weights: weights(n + 2), parcels, ..made });
    }
}

#[test]
fn a_list_of_records_is_gone_through_as_one_of_references_is() {
    #[derive(Object)]
    #[object(crate = "tercel_engine")]
    struct Folder {
        bills: List<Ref<Bill>>,
        lines: List<Line>,
    }
    let w = world(1);
    w.run(0, |tx| {
        let first = tx.create(&bill(1))?;
        let folder = tx.create(&Folder { bills: [first].into(), lines: bill(1).lines })?;
        tx.edit(folder)?.push_bills(tx.create(&bill(2))?)?;
        let folder = tx.get(folder)?;
        let mut lengths = vec![];
        for bill in folder.bills() {
            lengths.push(bill?.weights().len());
        }
        for line in folder.lines() {
            lengths.push(line?.what.len());
        }
        assert_eq!(lengths, [1, 2, 0, 1, 2, 3]);
        assert_eq!((folder.bills().iter().count(), folder.lines().iter().count()), (2, 4));
        let value = folder.to_value()?;
        assert_eq!((value.bills.iter().count(), value.lines.len()), (2, 4));
        assert!(value.lines.into_iter().all(|line| line.thing.is_null()));
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_list_of_records_grows_out_of_its_record_and_shrinks_back_and_its_neighbours_stay() {
    let w = world(2);
    let r = w.run(0, |tx| tx.create(&bill(3))).unwrap();
    for n in [4_000, 1, 900, 0] {
        w.run(0, |tx| tx.edit(r)?.set_weights(weights(n))).unwrap();
        w.run(0, |tx| tx.edit(r)?.set_number(n as u32)).unwrap();
        w.run_until_idle();
        let read = w.run(1, |tx| tx.get(r)?.to_value()).unwrap();
        assert_eq!(read, Bill { number: n as u32, weights: weights(n), ..bill(3) });
    }
}

#[test]
fn a_long_list_of_records_with_parts_of_their_own_is_refused_and_says_what_to_do() {
    let w = world(1);
    let lines: List<Line> =
        (0..100).map(|_| Line { what: "".into(), thing: Ref::NULL, sizes: List::default() }).collect();
    let refused = w.run(0, |tx| tx.create(&Bill { lines: lines.clone(), ..bill(0) }));
    assert!(matches!(&refused, Err(Error::Full(Bound::List))), "{refused:?}");
}

/// Versions of one class, as programs of different ages have them.
mod versions {
    use super::*;

    pub mod first {
        use super::*;

        #[derive(Object, Debug, Clone, PartialEq)]
        #[object(crate = "tercel_engine", name = "Box")]
        pub struct Parcel {
            pub number: u16,
            pub weights: List<Weight>,
        }
    }

    pub mod second {
        use super::*;

        #[derive(Object, Debug, Clone, PartialEq)]
        #[object(crate = "tercel_engine", name = "Box")]
        pub struct Parcel {
            pub lines: List<Line>,
            pub weights: List<Weight>,
            pub number: u64,
        }
    }

    pub mod wrong {
        use super::*;

        #[derive(Record, Debug, Clone, PartialEq)]
        #[object(crate = "tercel_engine", name = "Weight")]
        pub struct Heavier {
            pub grams: u64,
            pub checked: Option<bool>,
            pub spread: [f32; 2],
        }

        #[derive(Object, Debug, Clone, PartialEq)]
        #[object(crate = "tercel_engine", name = "Box")]
        pub struct Parcel {
            pub number: u64,
            pub weights: List<Heavier>,
        }
    }
}

#[test]
fn a_new_version_of_a_class_gains_a_list_of_records_and_keeps_the_one_it_had() {
    use versions::{first, second};
    for n in [4, 1_000] {
        let w = world(2);
        let r = w.run(0, |tx| tx.create(&first::Parcel { number: 9, weights: weights(n) })).unwrap();
        w.run_until_idle();
        let r = r.cast::<second::Parcel>();
        let read = w.run(1, |tx| tx.get(r)?.to_value()).unwrap();
        assert_eq!(read, second::Parcel { lines: List::default(), weights: weights(n), number: 9 });

        w.run(1, |tx| tx.edit(r)?.set_lines(bill(0).lines)).unwrap();
        w.run_until_idle();
        let fresh = w.add_client(9, 512 << 10);
        let read = w.run(fresh, |tx| tx.get(r)?.to_value()).unwrap();
        assert_eq!(read, second::Parcel { lines: bill(0).lines, weights: weights(n), number: 9 });
    }
}

#[test]
fn a_version_whose_elements_are_others_is_refused_by_the_name_of_the_field() {
    use versions::{first, wrong};
    let w = world(2);
    let r = w.run(0, |tx| tx.create(&first::Parcel { number: 9, weights: weights(4) })).unwrap();
    w.run_until_idle();
    let refused = w.run(1, |tx| tx.get(r.cast::<wrong::Parcel>())?.to_value());
    assert!(matches!(&refused, Err(Error::Schema(why)) if why.contains("`weights`")), "{refused:?}");
}
