//! Objects, maps and tables as a program sees them that has none of their types.

use tercel::collections::{Map, Set, Table};
use tercel::dynamic::{self, Entry, Value};
use tercel::{Any, Bytes, Client, ErrorKind, List, Object, Record, Ref, Text};

use crate::common::serve;

#[derive(Record, Debug, Clone, Copy, PartialEq)]
enum State {
    New,
    Sold { cents: u64 },
}

#[derive(Object)]
struct Part {
    name: Text,
    photo: Bytes,
    depth: Option<i16>,
    state: State,
    uses: List<Ref<Part>>,
}

#[derive(Object)]
#[table(key = id, index(price))]
struct Seat {
    id: u32,
    price: u64,
    note: Text,
}

#[derive(Object)]
struct Shop {
    by_name: Map<Text, Part>,
    counts: Map<(u8, i32), u64>,
    tags: Set<Text>,
    seats: Table<Seat>,
}

fn part(name: &str, uses: List<Ref<Part>>) -> Part {
    let state = State::Sold { cents: 250 };
    Part { name: name.into(), photo: [1, 255][..].into(), depth: None, state, uses }
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

fn root(client: &Client, name: &str) -> Ref<Any> {
    let roots = client.run(|tx| tx.roots()).unwrap();
    roots.into_iter().find(|(root, _)| root == name).unwrap().1
}

#[test]
fn objects_are_read_with_their_large_parts() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let [writer, reader] = [(); 2].map(|()| Client::connect(&server.addresses()[0]).unwrap());
    let name = "n".repeat(100_000);
    writer
        .run(|tx| {
            let bolt = tx.create(&part("bolt", List::new()))?;
            tx.edit(bolt)?.set_state(State::New)?;
            tx.edit(bolt)?.set_depth(Some(-3))?;
            let all = tx.create(&part(&name, vec![bolt; 5_000].into()))?;
            tx.set_root("all", all)
        })
        .unwrap();

    let all = root(&reader, "all");
    reader
        .run(|tx| {
            let object = dynamic::get(tx, all)?;
            let names: Vec<&str> = object.fields.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!((object.class.as_str(), object.reference), ("Part", all));
            assert_eq!(names, ["name", "photo", "depth", "state", "uses"]);
            assert_eq!(object.field("name"), Some(&text(&name)));
            assert_eq!(object.field("photo"), Some(&text("01ff")));
            assert_eq!(object.field("depth"), Some(&Value::Null));
            let sold = Value::Map(vec![("cents".into(), Value::Int(250))]);
            assert_eq!(object.field("state"), Some(&Value::Map(vec![("Sold".into(), sold)])));
            assert_eq!((object.field("price"), object.reference_in("name")), (None, None));
            let Some(Value::List(uses)) = object.field("uses") else { panic!("{:?}", object.field("uses")) };
            assert_eq!(uses.len(), 5_000);

            let bolt = dynamic::get(tx, dynamic::reference(&uses[4_999]).unwrap())?;
            assert_eq!(bolt.field("name"), Some(&text("bolt")));
            assert_eq!(bolt.field("depth"), Some(&Value::Int(-3)));
            assert_eq!(bolt.field("state"), Some(&text("New")));
            Ok(())
        })
        .unwrap();
    let classes = dynamic::classes(&reader).unwrap();
    let part = classes.iter().find(|class| class.name == "Part").unwrap();
    let types: Vec<&str> = part.fields.iter().map(|(_, of)| of.as_str()).collect();
    assert_eq!(types, ["Text", "Bytes", "Option<i16>", "State", "List<Ref<Part>>"]);
}

#[test]
fn reads_are_certified() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let [writer, reader] = [(); 2].map(|()| Client::connect(&server.addresses()[0]).unwrap());
    let [read, written] = [(); 2].map(|()| writer.run(|tx| tx.create(&part("one", List::new()))).unwrap());
    let tx = reader.transaction().begin().unwrap();
    dynamic::get(&tx, read.cast()).unwrap();
    tx.edit(written).unwrap().set_depth(Some(1)).unwrap();
    writer.run(|tx| tx.edit(read)?.set_depth(Some(2))).unwrap();
    assert_eq!(tx.commit().unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn maps_and_tables_are_read_by_pages() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let [writer, reader] = [(); 2].map(|()| Client::connect(&server.addresses()[0]).unwrap());
    writer
        .run(|tx| {
            let bolt = tx.create(&part("bolt", List::new()))?;
            let by_name = Map::<Text, Part>::create(tx)?;
            by_name.insert(tx, "bolt", bolt)?;
            let counts = Map::<(u8, i32), u64>::create(tx)?;
            (0..250).try_for_each(|n| counts.insert(tx, (1, n), n as u64 * 2).map(drop))?;
            let tags = Set::<Text>::create(tx)?;
            tags.insert(tx, "red")?;
            let seats = Table::<Seat>::create(tx)?;
            for id in 0..250 {
                seats.insert(tx, &Seat { id, price: 1_000 - id as u64, note: "n".into() })?;
            }
            let shop = tx.create(&Shop { by_name, counts, tags, seats })?;
            tx.set_root("shop", shop)
        })
        .unwrap();

    let shop = root(&reader, "shop");
    let shop = reader.run(|tx| dynamic::get(tx, shop)).unwrap();
    let [by_name, counts, tags, seats] =
        ["by_name", "counts", "tags", "seats"].map(|name| shop.reference_in(name).unwrap());
    reader
        .run(|tx| {
            let page = dynamic::entries(tx, by_name, None, 10)?;
            let [(key, Entry::Object(bolt))] = &page.items[..] else { panic!("{page:?}") };
            assert_eq!((key, page.next.is_none()), (&text("bolt"), true));
            assert_eq!(dynamic::get(tx, *bolt)?.class, "Part");
            assert_eq!(dynamic::entries(tx, tags, None, 10)?.items, [(text("red"), Entry::Nothing)]);

            let (mut after, mut all) = (None, Vec::new());
            loop {
                let page = dynamic::entries(tx, counts, after.as_ref(), 100)?;
                all.extend(page.items);
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
            let expected = (0..250).map(|n| {
                let key = Value::List(vec![Value::Int(1), Value::Int(n)]);
                (key, Entry::Value(Value::Int(2 * n)))
            });
            assert_eq!(all, expected.collect::<Vec<_>>());

            let first = dynamic::rows(tx, seats, None, 100)?;
            let second = dynamic::rows(tx, seats, first.next.as_ref(), 1_000)?;
            let ids = first.items.iter().chain(&second.items).map(|row| row.field("id").cloned());
            assert_eq!(ids.collect::<Vec<_>>(), (0..250).map(|n| Some(Value::Int(n))).collect::<Vec<_>>());
            assert_eq!((second.next.is_none(), first.items[7].class.as_str()), (true, "Seat"));
            Ok(())
        })
        .unwrap();
    let error = reader.run(|tx| dynamic::rows(tx, by_name, None, 1).map(drop)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    let error = reader.run(|tx| dynamic::entries(tx, seats, None, 1).map(drop)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    let error = reader.run(|tx| dynamic::get(tx, Ref::NULL).map(drop)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}
