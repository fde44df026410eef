//! Indexes that are built beside writers, in steps, by programs of several declarations.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::common::{LARGE, space};
use proptest::prelude::*;
use tercel::collections::table::Row;
use tercel::collections::table::untyped::UntypedTable;
use tercel::collections::{Map, MapNode, Table};
use tercel::tools::wire::datum::Datum;
use tercel::{Client, Error, Isolation, List, Object, Ref, Server, Text, Tx};
use tercel_testkit::ends::Ends;

mod before {
    use super::*;
    #[derive(Object, Debug, Clone, PartialEq)]
    #[table(key = id, index(price))]
    pub struct Seat {
        pub id: u32,
        pub event: u16,
        pub price: i32,
        pub code: Text,
    }
}

mod after {
    use super::*;
    #[derive(Object, Debug, Clone, PartialEq)]
    #[table(key = id, index(event, price), index(price), unique(code))]
    pub struct Seat {
        pub id: u32,
        pub event: u16,
        pub price: i32,
        pub code: Text,
    }
}

use after::Seat;

fn old_seat(id: u32) -> before::Seat {
    let Seat { id, event, price, code } = seat(id);
    before::Seat { id, event, price, code }
}

fn seat(id: u32) -> Seat {
    Seat { id, event: (id % 3) as u16, price: 100 - (id % 7) as i32 * 50, code: format!("code {id}").into() }
}

/// A server of a table with these rows, made by the program of before; that program, and the one of today.
struct World {
    before: Client,
    client: Client,
    old: Table<before::Seat>,
    seats: Table<Seat>,
    server: Server,
    dir: tempfile::TempDir,
}

fn world(rows: impl IntoIterator<Item = before::Seat>) -> World {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", dir.path().join("socket").display());
    let server = Server::builder(dir.path().join("space")).listen(&*socket).start().unwrap();
    let [before, client] = [0, 1].map(|_| Client::connect(&server.addresses()[0]).unwrap());
    let old = before.run(|tx| Table::<before::Seat>::root(tx, "seats")).unwrap();
    before.load(old, rows, |_| {}).unwrap();
    let seats = client.transaction().isolation(Isolation::Strict).run(|tx| Table::root(tx, "seats")).unwrap();
    World { before, client, old, seats, server, dir }
}

impl World {
    fn step(&self, rows_max: usize) -> Result<Option<u64>, Error> {
        self.client.run(|tx| self.seats.migrate_step(tx, rows_max))
    }

    fn finish(&self) {
        while self.step(17).unwrap().is_some() {}
        self.client.run(|tx| assert_sound(tx, self.seats, true)).unwrap();
    }
}

/// Compares all indexes with the rows, and finds the rows by each that is whole.
fn assert_sound(tx: &Tx<'_>, seats: Table<Seat>, is_whole: bool) -> Result<(), Error> {
    assert_eq!(seats.check(tx)?, Vec::<String>::new());
    let ids = |rows: &mut dyn Iterator<Item = Result<tercel::Obj<'_, Seat>, Error>>| {
        rows.map(|row| row.map(|row| row.id())).collect::<Result<BTreeSet<_>, _>>()
    };
    let all = ids(&mut seats.iter(tx))?;
    assert_eq!(ids(&mut seats.by(Seat::BY_PRICE).iter(tx))?, all);
    for found in
        [ids(&mut seats.by(Seat::BY_EVENT_PRICE).iter(tx)), ids(&mut seats.by(Seat::BY_CODE).iter(tx))]
    {
        match found {
            Ok(found) => assert!(is_whole && found == all, "{found:?} of {all:?}"),
            Err(e) => assert!(!is_whole && e.to_string().contains("is being built"), "{e}"),
        }
    }
    Ok(())
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u32),
    Remove(u32),
    Price(u32, i32),
    Code(u32, u32),
    Build(usize),
}

const POOL: u32 = 80;

fn step() -> impl Strategy<Value = Step> {
    let n = 0..POOL;
    prop_oneof![
        8 => n.clone().prop_map(Step::Insert),
        4 => n.clone().prop_map(Step::Remove),
        4 => (n.clone(), -200..200i32).prop_map(|(n, price)| Step::Price(n, price)),
        4 => (n.clone(), n).prop_map(|(n, code)| Step::Code(n, code)),
        4 => (1..20usize).prop_map(Step::Build),
    ]
}

/// The rows as they must be, those that stand in the index of codes, and how far the build is.
#[derive(Debug, Clone)]
struct Model {
    rows: BTreeMap<u32, Seat>,
    with_code: BTreeSet<u32>,
    next: u32,
    is_building: bool,
}

impl Model {
    fn has_code(&self, code: &Text, but: u32) -> bool {
        self.with_code.iter().any(|id| *id != but && self.rows[id].code == *code)
    }

    /// Takes a step of the build; two rows that share a code end it.
    fn build(&mut self, rows_max: usize) -> Result<(), Text> {
        let behind: Vec<u32> = self.rows.range(self.next..).map(|(id, _)| *id).take(rows_max).collect();
        let mut built = self.clone();
        for id in &behind {
            let code = &self.rows[id].code;
            if !built.with_code.contains(id) && built.has_code(code, *id) {
                return Err(code.clone());
            }
            built.with_code.insert(*id);
        }
        built.is_building = behind.len() == rows_max;
        built.next = behind.last().map_or(self.next, |last| last + 1);
        *self = built;
        Ok(())
    }
}

fn take(w: &World, model: &mut Model, step: &Step) {
    let seats = w.seats;
    match *step {
        Step::Insert(n) => {
            let inserted = w.client.run(|tx| seats.insert(tx, &seat(n)));
            if model.rows.contains_key(&n) || model.has_code(&seat(n).code, n) {
                assert!(matches!(inserted, Err(Error::Taken(_))));
            } else {
                inserted.unwrap();
                model.rows.insert(n, seat(n));
                model.with_code.insert(n);
            }
        }
        Step::Remove(n) => {
            let removed = w.client.run(|tx| seats.remove(tx, n)).unwrap();
            assert_eq!(removed.is_some(), model.rows.remove(&n).is_some());
            model.with_code.remove(&n);
        }
        Step::Price(n, price) => {
            if let Some(row) = model.rows.get_mut(&n) {
                w.client.run(|tx| seats.edit(tx, n)?.set_price(price)).unwrap();
                row.price = price;
            }
        }
        Step::Code(n, code) => {
            let code = seat(code).code;
            if model.rows.get(&n).is_some_and(|row| row.code != code) {
                let set = w.client.run(|tx| seats.edit(tx, n)?.set_code(code.clone()));
                if model.has_code(&code, n) {
                    assert!(matches!(set, Err(Error::Taken(_))));
                } else {
                    set.unwrap();
                    model.rows.get_mut(&n).unwrap().code = code;
                    model.with_code.insert(n);
                }
            }
        }
        Step::Build(_) if !model.is_building => assert_eq!(w.step(9), Ok(None)),
        Step::Build(rows_max) => match (w.step(rows_max), model.build(rows_max)) {
            (Ok(Some(_)), Ok(())) => {}
            (Err(Error::Taken(taken)), Err(_)) => {
                let ids = taken.rows.clone().unwrap().map(|id| id.parse::<u32>().unwrap());
                assert!(ids[0] != ids[1] && model.rows[&ids[0]].code == model.rows[&ids[1]].code, "{taken}");
                take(w, model, &Step::Remove(ids[1]));
            }
            (found, wanted) => panic!("{found:?}, and the model says {wanted:?}"),
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
    #[test]
    fn built_indexes_are_those_of_a_model(history in prop::collection::vec(step(), 1..80)) {
        // Some rows share codes.
        let doubled = |n: u32| before::Seat { code: seat(n % 60).code, ..old_seat(n) };
        let w = world((0..POOL).step_by(2).map(doubled));
        let rows = (0..POOL).step_by(2).map(|n| (n, Seat { code: seat(n % 60).code, ..seat(n) })).collect();
        let mut model = Model { rows, with_code: BTreeSet::new(), next: 0, is_building: true };
        assert_eq!(w.step(5), Ok(Some(0)));
        let last = [Step::Build(11)].into_iter().cycle().take(60);
        for step in history.into_iter().chain(last) {
            take(&w, &mut model, &step);
            let rows = w.client.run(|tx| {
                assert_sound(tx, w.seats, !model.is_building)?;
                w.seats.iter(tx).map(|row| row?.to_value()).collect::<Result<Vec<_>, _>>()
            });
            assert_eq!(rows.unwrap(), model.rows.values().cloned().collect::<Vec<_>>());
        }
        assert!(!model.is_building);
    }
}

#[test]
fn writers_go_on_beside_two_builders() {
    let w = world((0..1_200).map(old_seat));
    assert_eq!(w.step(1), Ok(Some(0)));
    let (over, written) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|s| {
        for thread in 0..3u32 {
            let (w, over, written) = (&w, &over, &written);
            s.spawn(move || {
                for n in (0..).map(|n| n * 37 % 1_200 / 3 * 3 + thread) {
                    let done = w.client.run(|tx| match n % 4 {
                        0 => w.seats.remove(tx, n).map(drop),
                        1 if w.seats.contains(tx, n)? => w.seats.edit(tx, n)?.set_price(n as i32),
                        2 if w.seats.contains(tx, n)? => w.seats.edit(tx, n)?.set_code(format!("new {n}")),
                        _ if w.seats.contains(tx, n)? => w.seats.edit(tx, n)?.set_event(9),
                        _ => w.seats.insert(tx, &seat(n)).map(drop),
                    });
                    done.unwrap();
                    written.fetch_add(1, Ordering::SeqCst);
                    if over.load(Ordering::SeqCst) {
                        break;
                    }
                }
            });
        }
        let ends = Ends(&over);
        let other = s.spawn(|| w.client.migrate(w.seats, |_| {}).unwrap());
        while w.step(30).unwrap().is_some() {}
        other.join().unwrap();
        drop(ends);
    });
    assert!(written.load(Ordering::SeqCst) > 3);
    w.client.run(|tx| assert_sound(tx, w.seats, true)).unwrap();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => copy(&entry.path(), &to.join(entry.file_name())),
            kind if kind.is_file() => _ = std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap(),
            _ => {}
        }
    }
}

#[test]
fn build_resumes_after_each_crash() {
    let w = world((0..60).map(old_seat));
    for crash in 0.. {
        let step = w.step(25).unwrap();
        w.client.run(|tx| w.seats.insert(tx, &seat(200 + crash)).map(drop)).unwrap();
        // The files as they are now are those that a crash leaves.
        let left = w.dir.path().join(format!("left {crash}"));
        copy(&w.dir.path().join("space"), &left);
        let report = tercel::check::check(&left, |_, _| {}).unwrap();
        assert!(report.is_sound(), "{:?}", report.findings);
        let client = tercel::embedded(&left).unwrap();
        let seats = client.run(|tx| Table::<Seat>::root(tx, "seats")).unwrap();
        let mut told = Vec::new();
        assert_eq!(
            client.migrate(seats, |rows| told.push(rows)).unwrap(),
            step.is_some_and(|rows| rows < 60)
        );
        // It goes on behind the rows that were gone through.
        assert!(told.first().is_none_or(|first| Some(*first) > step), "{told:?} after {step:?}");
        client.run(|tx| assert_sound(tx, seats, true)).unwrap();
        client.close().unwrap();
        std::fs::remove_dir_all(&left).unwrap();
        if step.is_none() {
            break;
        }
    }
}

#[test]
fn shared_key_ends_build_of_unique_index() {
    let w = world((0..40).map(|n| before::Seat { code: seat(n % 39).code, ..old_seat(n) }));
    let mut told = Vec::new();
    let refused = w.client.migrate(w.seats, |rows| told.push(rows)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the rows 0 and 39 of Seat have the same code \"code 0\", which must be unique: change or remove one of them, and \
         migrate the table again"
    );
    // The rest is usable, by programs of these declarations.
    w.client.run(|tx| assert_sound(tx, w.seats, false)).unwrap();
    w.client.run(|tx| w.seats.edit(tx, 39)?.set_code("code 39")).unwrap();
    assert!(w.client.migrate(w.seats, |_| {}).unwrap());
    w.client.run(|tx| assert_sound(tx, w.seats, true)).unwrap();
}

#[test]
fn too_long_key_of_index_names_row() {
    let w =
        world((0..40).map(|n| before::Seat { code: "x".repeat(200 + n as usize * 2).into(), ..old_seat(n) }));
    let refused = w.client.migrate(w.seats, |_| {}).unwrap_err().to_string();
    assert!(refused.contains("the row 28 of Seat has a key of 256 bytes in the index code"), "{refused}");
    (28..40).for_each(|id| assert!(w.client.run(|tx| w.seats.remove(tx, id)).unwrap().is_some()));
    w.finish();
}

#[test]
fn tool_is_refused_where_indexes_were_added() {
    let w = world((0..40).map(old_seat));
    let tool = Client::connect(&w.server.addresses()[0]).unwrap();
    let open = || {
        tool.transaction().isolation(Isolation::Strict).run(|tx| tx.roots()).unwrap();
        tercel::tools::table(&tool, w.seats.reference().oref()).unwrap()
    };
    let row = |table: &UntypedTable, id: u32| {
        let Seat { id, event, price, code } = seat(id);
        let number = |field: &str, n: i128| (field.to_owned(), Datum::Int(n));
        let fields = [number("id", id.into()), number("event", event.into()), number("price", price.into())];
        let fields = fields.into_iter().chain([("code".to_owned(), Datum::Text(code.0))]);
        table.row(Datum::Map(fields.collect())).unwrap()
    };
    let (stale, _) = (open(), w.step(10).unwrap());
    let refused = tool.run(|tx| stale.insert_all(tx, &[row(&stale, 50)])).unwrap_err();
    assert!(refused.to_string().contains("was given other indexes"), "{refused}");
    // An index that becomes whole is no other one.
    let table = open();
    tool.run(|tx| table.insert(tx, &row(&table, 50))).unwrap();
    w.finish();
    tool.run(|tx| table.insert_all(tx, &[row(&table, 51)])).unwrap();
    w.finish();
}

#[test]
fn older_program_takes_a_build_back() {
    let w = world((0..40).map(|n| before::Seat { code: seat(n % 39).code, ..old_seat(n) }));
    w.client.migrate(w.seats, |_| {}).unwrap_err();
    let strict = w.before.transaction().isolation(Isolation::Strict);
    let refused = strict.run(|tx| w.old.get(tx, 3).map(drop)).unwrap_err().to_string();
    assert!(refused.contains("update the program, or have it bring the table in line"), "{refused}");
    assert!(w.before.migrate(w.old, |_| {}).unwrap() && !w.before.migrate(w.old, |_| {}).unwrap());
    w.before
        .run(|tx| {
            assert_eq!(w.old.check(tx)?, Vec::<String>::new());
            assert_eq!(w.old.by(before::Seat::BY_PRICE).iter(tx).count(), 40);
            w.old.insert(tx, &old_seat(50)).map(drop)
        })
        .unwrap();
}

#[test]
fn query_by_an_index_being_built_is_refused() {
    let w = world((0..40).map(old_seat));
    w.step(10).unwrap();
    w.step(10).unwrap();
    w.client
        .run(|tx| {
            let refused = w.seats.by(Seat::BY_EVENT_PRICE).first(tx).err().unwrap();
            assert_eq!(
                refused.to_string(),
                "schema: the index event, price of Seat is being built (rows so far: 10): ask by another one, or when \
                 `Client::migrate` has come to its end"
            );
            assert!(w.seats.by(Seat::BY_CODE).find(tx, "code 3").is_err());
            assert_eq!(w.seats.get(tx, 3)?.code()?, "code 3");
            assert_eq!(w.seats.by(Seat::BY_PRICE).at(tx, 100).count(), 6);
            Ok(())
        })
        .unwrap();
    w.finish();
}

#[test]
fn snapshot_writer_of_before_is_refused() {
    let w = world((0..40).map(old_seat));
    let [inserts, edits] =
        [0, 1].map(|_| w.before.transaction().isolation(Isolation::Snapshot).begin().unwrap());
    w.old.insert(&inserts, &old_seat(41)).unwrap();
    w.old.edit(&edits, 3).unwrap().set_code("other").unwrap();
    w.finish();
    assert!(matches!(inserts.commit(), Err(Error::Conflict(_))));
    assert!(matches!(edits.commit(), Err(Error::Conflict(_))));
    let snapshot = w.client.transaction().isolation(Isolation::Snapshot);
    assert!(matches!(snapshot.run(|tx| w.seats.migrate_step(tx, 1)), Err(Error::Invalid(_))));
    w.finish();
}

/// The object of a table as it was before indexes could be built beside writers.
#[derive(Object)]
#[object(name = "collections.Table")]
struct OldTable {
    class: Text,
    key: Text,
    declared: List<Text>,
    digest: u64,
    rows: Ref<MapNode>,
    indexes: List<Ref<MapNode>>,
}

#[test]
fn old_layout_is_used_and_migrated() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    client
        .run(|tx| {
            let rows = Map::<u32, before::Seat>::create(tx)?;
            let by_price = Map::<(i32, u32), before::Seat>::create(tx)?;
            for n in 0..30 {
                let row = tx.create(&old_seat(n))?;
                rows.insert(tx, n, row)?;
                by_price.insert(tx, (old_seat(n).price, n), row)?;
            }
            let table = OldTable {
                class: "Seat".into(),
                key: "id".into(),
                declared: List(vec!["price".into()]),
                digest: before::Seat::DIGEST,
                rows: rows.reference(),
                indexes: List(vec![by_price.reference()]),
            };
            tx.set_root("seats", tx.create(&table)?)
        })
        .unwrap();
    client.close().unwrap();
    assert!(tercel::check::check(dir.path(), |_, _| {}).unwrap().is_sound());
    let client = space(&dir, LARGE);
    client
        .run(|tx| {
            let seats = Table::<before::Seat>::root(tx, "seats")?;
            seats.insert(tx, &old_seat(30))?;
            seats.remove(tx, 3)?;
            assert_eq!((seats.check(tx)?, seats.count(tx)?), (vec![], 30));
            Ok(())
        })
        .unwrap();
    client.close().unwrap();
    let client = space(&dir, LARGE);
    let seats = client.run(|tx| Table::<Seat>::root(tx, "seats")).unwrap();
    assert!(client.migrate(seats, |_| {}).unwrap());
    client.run(|tx| assert_sound(tx, seats, true)).unwrap();
    client.close().unwrap();
    assert!(tercel::check::check(dir.path(), |_, _| {}).unwrap().is_sound());
}

#[test]
fn maps_and_sets_are_loaded_in_batches() {
    let dir = tempfile::tempdir().unwrap();
    let client = space(&dir, LARGE);
    let (counts, seen) = client
        .run(|tx| Ok((Map::<Text, u64>::create(tx)?, tercel::collections::Set::<u64>::create(tx)?)))
        .unwrap();
    // In no order, and some keys twice: 7 has no common divisor with 2,000.
    let entries = (0..3_000u64).map(|n| (Text::from(format!("{:04}", n * 7 % 2_000)), n));
    let mut told = Vec::new();
    assert_eq!(client.load(counts, entries.clone(), |n| told.push(n)).unwrap(), 3_000);
    assert_eq!(told, [1_000, 2_000, 3_000]);
    assert_eq!(client.load(seen, (0..1_500).map(|n| n % 900), |_| {}).unwrap(), 1_500);
    let wanted: BTreeMap<Text, u64> = entries.collect();
    client
        .run(|tx| {
            assert!(counts.iter(tx).collect::<Result<Vec<_>, _>>()?.into_iter().eq(wanted.clone()));
            assert!(seen.iter(tx).collect::<Result<Vec<_>, _>>()?.into_iter().eq(0..900));
            Ok(())
        })
        .unwrap();
    client.close().unwrap();
}
