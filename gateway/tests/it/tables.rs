//! Rows of tables and entries of maps, a page at a time.

use serde_json::{Value, json};
use tercel::collections::{Map, Set, Table};
use tercel::{Client, Isolation, Object, Text};

use crate::common::{Purse, World};

#[derive(Object)]
#[table(key = id, index(event, price), unique(code))]
struct Seat {
    id: u64,
    event: u32,
    price: Option<i32>,
    code: Text,
}

/// The class with other indexes.
mod before {
    use tercel::{Object, Text};

    #[derive(Object)]
    #[table(key = id, unique(code))]
    pub struct Seat {
        pub id: u64,
        pub event: u32,
        pub price: Option<i32>,
        pub code: Text,
    }
}

/// A world with 250 seats: event 0 to 4, price from -10 to 39 or none.
fn world() -> World {
    let world = World::new();
    let seat = |id: u64| Seat {
        id,
        event: id as u32 % 5,
        price: (id % 5 != 4).then_some(id as i32 / 5 - 10),
        code: format!("c{id}").into(),
    };
    world.client.run(|tx| Table::<Seat>::root(tx, "seats")?.insert_all(tx, (0..250).map(seat))).unwrap();
    world
}

fn ids(page: &Value) -> Vec<u64> {
    page["rows"].as_array().unwrap().iter().map(|row| row["fields"]["id"].as_u64().unwrap()).collect()
}

#[test]
fn rows_come_by_key_and_page() {
    let world = world();
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let page = world.get(&format!("/v1/tables/seats?limit=60{after}")).json();
        assert_eq!(page["class"], "Seat");
        all.extend(ids(&page));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
        // Changes before the cursor are not seen any more.
        let (gone, id) = (all[0] + 1, 1_000 + all.len() as u64);
        let row = Seat { id, event: 9, price: None, code: format!("late {id}").into() };
        world
            .client
            .run(|tx| {
                let seats = Table::<Seat>::root(tx, "seats")?;
                seats.remove(tx, gone)?;
                seats.insert(tx, &row)
            })
            .unwrap();
    }
    assert_eq!(all[..250], (0..250).collect::<Vec<_>>());
    assert_eq!(all[250..], [1_060, 1_120, 1_180, 1_240]);
}

#[test]
fn rows_are_found_by_an_index() {
    let world = world();
    let get = |query: &str| world.get(&format!("/v1/tables/seats?fresh=strict&{query}")).json();
    assert_eq!(ids(&get("id=17")), [17]);
    assert_eq!(ids(&get("code=c17")), [17]);
    assert_eq!(ids(&get("code=c1")), [1]);
    assert_eq!(ids(&get("event=3&price=-9")), [8]);
    assert_eq!(ids(&get("price=39&event=0")), [245]);
    assert_eq!(ids(&get("event=2&limit=3")), [2, 7, 12]);
    assert_eq!(get("event=4&price=null")["rows"].as_array().unwrap().len(), 50);
    assert_eq!(ids(&get("event=1&from=-1&to=2")), [46, 51, 56]);
    assert_eq!(ids(&get("from=3&to=6")), [3, 4, 5]);
    assert_eq!(ids(&get("by=event,price&limit=2")), [0, 5]);
    assert_eq!(ids(&get("by=code&from=c24&to=c25&limit=2")), [24, 240]);
    for (query, words) in [
        ("price=3", "no index begins with the fields [price]"),
        ("event=many", "event: a key of u32 is wanted"),
        ("limit=0", "limit=0"),
        ("after=x", "after=x"),
        ("order=down", "order=down"),
        ("code=%ff", "no UTF-8"),
        ("id=1&from=2", "no field behind these"),
    ] {
        let got = world.get(&format!("/v1/tables/seats?{query}"));
        let body = got.json();
        assert_eq!(got.status, 400, "{query}: {got:?}");
        assert!(body["error"].as_str().unwrap().contains(words), "{query}: {body}");
    }
    assert_eq!(ids(&get("event=2&limit=3&order=desc")), [247, 242, 237]);
    // A cursor is of one query, whatever its page and bounds.
    let cursor = |query: &str| get(query)["next"].as_str().unwrap().to_owned();
    let by_event = cursor("event=2&limit=3&order=desc");
    assert_eq!(ids(&get(&format!("event=2&limit=2&order=desc&after={by_event}"))), [232, 227]);
    for other in ["event=2", "event=3&order=desc", "by=code&order=desc", "order=desc"] {
        let got = world.get(&format!("/v1/tables/seats?{other}&after={by_event}"));
        assert_eq!(got.status, 400, "{other}: {got:?}");
    }
    assert_eq!(world.get("/v1/tables/purse").status, 400);
    assert_eq!(world.get("/v1/tables/nothing").status, 404);
}

#[test]
fn index_being_built_is_refused() {
    let world = world();
    let older = Client::connect(&world.server.addresses()[0]).unwrap();
    let seats =
        older.transaction().isolation(Isolation::Strict).run(|tx| Table::<before::Seat>::root(tx, "seats"));
    older.migrate(seats.unwrap(), |_| {}).unwrap();
    let step = |rows_max: usize| {
        let strict = world.client.transaction().isolation(Isolation::Strict);
        strict.run(|tx| Table::<Seat>::root(tx, "seats")?.migrate_step(tx, rows_max)).unwrap()
    };
    assert_eq!((step(100), step(100)), (Some(0), Some(100)));
    let get = |query: &str| world.get(&format!("/v1/tables/seats?fresh=strict&{query}"));
    let refused = get("event=3&price=-9");
    let told = refused.json()["error"].to_string();
    assert!(told.contains("the index event, price of Seat is being built (rows so far: 100)"), "{told}");
    assert_eq!(
        (refused.status, ids(&get("id=17").json()), ids(&get("code=c17").json())),
        (400, vec![17], vec![17])
    );
    while step(100).is_some() {}
    assert_eq!(ids(&get("event=3&price=-9").json()), [8]);
}

#[test]
fn map_shows_keys_as_values() {
    let world = world();
    world
        .client
        .run(|tx| {
            let counts = Map::<(Text, i32), Text>::create(tx)?;
            for n in -2..3 {
                counts.insert(tx, ("a", n), format!("value {n}").into())?;
            }
            counts.insert(tx, ("b", 0), "".into())?;
            tx.set_root("counts", counts.reference())?;
            let purses = Map::<Text, Purse>::create(tx)?;
            purses.insert(tx, "Ann", world.purse)?;
            tx.set_root("purses", purses.reference())?;
            let members = Set::<u64>::create(tx)?;
            members.insert(tx, 7)?;
            tx.set_root("members", members.reference())
        })
        .unwrap();
    let counts = world.get("/v1/maps/counts?from=%5B%22a%22,1%5D&to=%5B%22b%22,1%5D&limit=2").json();
    assert_eq!(
        counts["entries"],
        json!([{ "key": ["a", 1], "value": "value 1" }, { "key": ["a", 2], "value": "value 2" }])
    );
    let next = counts["next"].as_str().unwrap();
    let rest = world.get(&format!("/v1/maps/counts?after={next}")).json();
    assert_eq!((&rest["entries"], &rest["next"]), (&json!([{ "key": ["b", 0], "value": "" }]), &Value::Null));
    let purse = world.purse.oref().to_string();
    let purses = world.get("/v1/maps/purses?from=A").json();
    assert_eq!(purses["entries"], json!([{ "key": "Ann", "ref": purse }]));
    assert_eq!(world.get("/v1/maps/members").json()["entries"], json!([{ "key": 7 }]));
    assert_eq!(world.get("/v1/maps/members?from=seven").status, 400);
    assert_eq!(
        world.get("/v1/maps/counts?order=desc&limit=1").json()["entries"],
        json!([{ "key": ["b", 0], "value": "" }])
    );
    let one = world.get("/v1/maps/counts?key=%5B%22a%22,-2%5D").json();
    assert_eq!(one["entries"], json!([{ "key": ["a", -2], "value": "value -2" }]));
    assert_eq!(world.get("/v1/maps/counts?key=%5B%22a%22,9%5D").json()["entries"], json!([]));
    let unknown = world.get("/v1/maps/counts?kay=1");
    assert!(unknown.status == 400 && unknown.json()["error"].as_str().unwrap().contains("`kay`"));
    assert_eq!(world.get("/v1/maps/purse").status, 400);
    let paths = &world.get("/openapi.json").json()["paths"];
    for (path, list) in [("/v1/tables/{table}", "rows"), ("/v1/maps/{map}", "entries")] {
        let answer = &paths[path]["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        assert_eq!(answer["properties"][list]["type"], "array", "{path}");
    }
}

/// The fields of this table are named as parameters are.
#[derive(Object)]
#[table(key = id, index(from), index(limit))]
struct Letter {
    id: u64,
    from: Text,
    limit: f64,
}

/// A gateway that was there before the class was, and before the table had rows.
#[test]
fn classes_that_come_later_are_known() {
    let world = world();
    assert_eq!(world.get("/v1/tables/seats?id=1").status, 200);
    let letters = Client::connect(&world.server.addresses()[0]).unwrap();
    letters.run(|tx| Table::<Letter>::root(tx, "letters").map(drop)).unwrap();
    let get = |query: &str| world.get(&format!("/v1/tables/letters?fresh=strict&{query}")).json();
    assert_eq!(get("")["rows"], json!([]), "{}", get(""));
    let letter = |id, from: &str, limit| Letter { id, from: from.into(), limit };
    let two = [letter(1, "Ann", f64::INFINITY), letter(2, "Bob", 0.5)];
    letters
        .run(|tx| {
            Table::<Letter>::root(tx, "letters")?
                .insert_all(tx, two.iter().map(|of| letter(of.id, &of.from.0, of.limit)))
        })
        .unwrap();
    assert_eq!(ids(&get("field.from=Ann")), [1]);
    assert_eq!(ids(&get("field.limit=0.5")), [2]);
    assert_eq!(get("id=1")["rows"][0]["fields"]["limit"], "inf");
}
