//! Rows of a table, loaded from files and printed again.

use serde_json::Value;
use tercel::collections::{Map, Table};
use tercel::{Any, Bytes, Client, List, Object, Oref, Ref, Text};

use crate::common::{err, out, tercel};

#[derive(Object)]
#[table(key = id, index(event, price), unique(code))]
struct Seat {
    id: u64,
    event: i32,
    price: Option<u32>,
    code: Text,
    weight: f64,
    mark: Bytes,
    tags: List<Text>,
    sold: bool,
}

/// The class with other indexes.
mod before {
    use tercel::{Bytes, List, Object, Text};

    #[derive(Object)]
    #[table(key = id, unique(code))]
    pub struct Seat {
        pub id: u64,
        pub event: i32,
        pub price: Option<u32>,
        pub code: Text,
        pub weight: f64,
        pub mark: Bytes,
        pub tags: List<Text>,
        pub sold: bool,
    }
}

/// A space with an empty table of seats; gives the directory, and that as a text.
fn seats() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let space = dir.path().join("space").display().to_string();
    let client = tercel::embedded(&space).unwrap();
    let seat = |id: u64| Seat {
        id,
        event: -1,
        price: None,
        code: format!("first {id}").into(),
        weight: 0.5,
        mark: Bytes(vec![0, 255]),
        tags: List(vec!["a,\"b".into()]),
        sold: true,
    };
    client.run(|tx| Table::<Seat>::root(tx, "seats")?.insert(tx, &seat(0)).map(|_| ())).unwrap();
    client.close().unwrap();
    (dir, space)
}

fn with<R>(space: &str, f: impl Fn(&Client) -> R) -> R {
    let client = tercel::embedded(space).unwrap();
    let r = f(&client);
    client.close().unwrap();
    r
}

/// The number of rows, after the indexes were compared with them.
fn rows(space: &str) -> usize {
    with(space, |client| {
        client.run(|tx| {
            let seats = Table::<Seat>::root(tx, "seats")?;
            assert_eq!(seats.check(tx)?, Vec::<String>::new());
            seats.count(tx)
        })
    })
    .unwrap()
}

#[test]
fn unsorted_rows_are_loaded_and_dumped() {
    let (dir, space) = seats();
    let file = dir.path().join("seats.jsonl").display().to_string();
    let line = |n: u64| {
        // In no order: 7 has no common divisor with 2,500.
        let id = n * 7 % 2_500 + 1;
        format!(
            r#"{{"id":{id},"event":{},"price":{},"code":"c{id}","weight":1.25,"mark":"00ff","tags":[],"sold":false}}"#,
            id as i64 % 10 - 5,
            if id.is_multiple_of(2) { "null".into() } else { (id % 100).to_string() }
        )
    };
    std::fs::write(&file, (0..2_500).map(line).collect::<Vec<_>>().join("\n")).unwrap();
    let told = out(&tercel(&["load", "seats", &file, "--class", "Seat", "--strict", "--data", &space]));
    assert!(told.contains("loaded 2500 rows") || told.contains("loaded 2,500 rows"), "{told}");
    assert_eq!(rows(&space), 2_501);
    with(&space, |client| {
        client.run(|tx| {
            let seats = Table::<Seat>::root(tx, "seats")?;
            let by = seats.by(Seat::BY_EVENT_PRICE);
            assert_eq!((by.prefix(tx, (-5,)).count(), seats.get(tx, 9)?.price()), (250, Some(9)));
            assert_eq!(seats.by(Seat::BY_CODE).get(tx, "c77")?.id(), 77);
            Ok(())
        })
    })
    .unwrap();
    // As they come out they go into another space, in either form.
    for format in ["jsonl", "csv"] {
        let dumped = out(&tercel(&["dump", "seats", "--format", format, "--data", &space]));
        let again = dir.path().join(format!("again.{format}")).display().to_string();
        std::fs::write(&again, &dumped).unwrap();
        let (_other, other) = seats();
        with(&other, |client| client.run(|tx| Table::<Seat>::root(tx, "seats")?.remove(tx, 0).map(|_| ())))
            .unwrap();
        out(&tercel(&["load", "seats", &again, "--strict", "--data", &other]));
        assert_eq!(rows(&other), 2_501);
        assert_eq!(out(&tercel(&["dump", "seats", "--format", format, "--data", &other])), dumped);
    }
}

#[test]
fn odd_lines_are_told_by_number() {
    let (dir, space) = seats();
    let file = dir.path().join("seats.csv").display().to_string();
    let long = "x".repeat(300);
    let lines = [
        "id,event,price,code,weight,mark,tags,sold",
        "1,5,900,A1,1,,[],false",
        "2,5,,\"A,\n2\",NaN,ff,\"[\"\"x\"\"]\",true",
        "three,5,900,A3,1,,[],false",
        "4,5,900",
        "5,5,900,A1,1,,[],false",
        "1,5,900,A6,1,,[],false",
        &format!("7,5,900,{long},1,,[],false"),
        "8,5,-1,A8,1,,[],false",
    ];
    std::fs::write(&file, lines.join("\n")).unwrap();
    let refused = tercel(&["load", "seats", &file, "--strict", "--data", &space]);
    assert!(err(&refused).contains("nothing was loaded"), "{}", err(&refused));
    // One that can be read once would be empty when its rows are to be loaded.
    let once = tercel(&["load", "seats", "/dev/null", "--format", "csv", "--strict", "--data", &space]);
    assert!(err(&once).contains("can be read once") && once.status.code() == Some(2), "{}", err(&once));
    assert_eq!(rows(&space), 1);
    let loaded = tercel(&["load", "seats", &file, "--json", "--data", &space]);
    let told = String::from_utf8_lossy(&loaded.stderr).into_owned();
    for wanted in [
        "line 5: `id`: `three` is no whole number",
        "line 6: it has 3 cells, and the first line names 8",
        "line 7: another Seat has the code \"A1\", which must be unique",
        "line 8: another Seat has the id 1, which must be unique",
        "line 9: ",
        "line 10: `price`: -1 is given where a whole number from 0 to 4294967295 is wanted",
    ] {
        assert!(told.contains(wanted), "{wanted}: {told}");
    }
    let counts: Value = serde_json::from_str(&out(&loaded)).unwrap();
    assert_eq!((&counts["rows"], &counts["odd_lines"]), (&2.into(), &6.into()));
    assert_eq!(rows(&space), 3);
    let dumped = out(&tercel(&["dump", "seats", "--data", &space]));
    let second: Value = serde_json::from_str(dumped.lines().nth(2).unwrap()).unwrap();
    assert_eq!((&second["code"], &second["weight"]), (&"A,\n2".into(), &"NaN".into()));
}

#[test]
fn what_is_no_table_is_refused() {
    let (dir, space) = seats();
    let file = dir.path().join("seats.csv").display().to_string();
    std::fs::write(&file, "id,place\n1,2\n").unwrap();
    let refused = |args: &[&str]| err(&tercel(&[args, &["--data", &space]].concat()));
    assert!(refused(&["load", "seats", &file, "--class", "Chair"]).contains("a table of Seat"));
    assert!(refused(&["load", "seats", &file]).contains("names `place`, which is no field"));
    assert!(refused(&["dump", "chairs"]).contains("there is no root `chairs`"));
    assert!(refused(&["load", "seats", "seats.txt"]).contains("--format"));
}

/// The map of an index of the seats, as `inspect` shows it.
fn map_of(space: &str, index: usize) -> Oref {
    let shown: Value =
        serde_json::from_str(&out(&tercel(&["inspect", "seats", "--json", "--data", space]))).unwrap();
    assert_eq!((&shown["rows_of"], &shown["key"]["fields"][0]), (&"Seat".into(), &"id".into()));
    assert_eq!(
        (&shown["indexes"][0]["unique"], &shown["indexes"][1]["unique"]),
        (&false.into(), &true.into())
    );
    shown["indexes"][index]["map"].as_str().unwrap().parse().unwrap()
}

#[test]
fn damaged_index_is_named_by_check() {
    let (dir, space) = seats();
    let file = dir.path().join("seats.csv").display().to_string();
    let line = |id: u64| format!("{id},5,{},A{id},1,,[],false\n", 100 * id);
    let lines = (1..=200).map(line).collect::<String>();
    std::fs::write(&file, format!("id,event,price,code,weight,mark,tags,sold\n{lines}")).unwrap();
    out(&tercel(&["load", "seats", &file, "--strict", "--data", &space]));
    let check = || tercel(&["check", "--json", "--data", &space]);
    let sound: Value = serde_json::from_str(&out(&check())).unwrap();
    assert_eq!(sound["sound"], true, "{sound}");
    let by_price = Map::<((i32, Option<u32>), u64), Any>::open(Ref::new(map_of(&space, 0)));
    let by_code = Map::<Text, Any>::open(Ref::new(map_of(&space, 1)));
    with(&space, |client| {
        client.run(|tx| {
            let lost = by_price.remove(tx, ((5, Some(700)), 7))?.expect("it was there");
            by_price.insert(tx, ((6, None), 7), lost)?;
            by_code.remove(tx, "A9")?;
            Ok(())
        })
    })
    .unwrap();
    let checked = check();
    assert_eq!(checked.status.code(), Some(3));
    let report: Value = serde_json::from_slice(&checked.stdout).unwrap();
    let found = report["findings"].as_array().unwrap();
    let texts: Vec<&str> = found.iter().map(|f| f["text"].as_str().unwrap()).collect();
    let has = |index: &str, key: &str| {
        texts.iter().any(|t| t.starts_with("the table ") && t.contains(index) && t.contains(key))
    };
    assert!(has("of Seat: the index event, price has the row", "at ((6, None), 7)"), "{texts:?}");
    assert!(has("the index event, price lacks the row", "((5, Some(700)), 7)"), "{texts:?}");
    assert!(has("the index unique code lacks the row", "\"A9\""), "{texts:?}");
    assert_eq!((found.len(), &found[0]["kind"]), (3, &"index".into()), "{texts:?}");
    // The remedy that is named, also where a repair from the files is asked for.
    for command in [&["check", "--data", &space][..], &["check", "--repair", "--data", &space]] {
        let told = tercel(command);
        let words = [told.stdout, told.stderr].concat();
        let words = String::from_utf8_lossy(&words);
        assert!(words.contains("`tercel dump` the table") && !words.contains("restore a backup"), "{words}");
    }
    assert_eq!(out(&tercel(&["dump", "seats", "--data", &space])).lines().count(), 201);
}

#[test]
fn table_is_inspected_by_lines() {
    let (_dir, space) = seats();
    let shown = out(&tercel(&["inspect", "seats", "--data", &space]));
    for wanted in ["of Seat by id: u64", "index event, price", "unique code: text", "first 0"] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
}

#[test]
fn tools_keep_an_index_being_built() {
    let (dir, space) = seats();
    let load = |name: &str, ids: std::ops::Range<u64>| {
        let file = dir.path().join(name).display().to_string();
        let lines = ids.map(|id| format!("{id},5,{},A{id},1,,[],false\n", 100 * id)).collect::<String>();
        std::fs::write(&file, format!("id,event,price,code,weight,mark,tags,sold\n{lines}")).unwrap();
        out(&tercel(&["load", "seats", &file, "--strict", "--data", &space]));
    };
    load("first.csv", 1..100);
    // An older program drops the index of prices; one of today begins to build it.
    with(&space, |client| {
        let seats = client.run(|tx| Table::<before::Seat>::root(tx, "seats")).unwrap();
        client.migrate(seats, |_| {}).unwrap()
    });
    with(&space, |client| {
        let seats = client.run(|tx| Table::<Seat>::root(tx, "seats")).unwrap();
        (0..3).for_each(|_| _ = client.run(|tx| seats.migrate_step(tx, 20)).unwrap());
    });
    load("second.csv", 100..200);
    let shown = out(&tercel(&["inspect", "seats", "--data", &space]));
    assert!(shown.contains("being built (rows so far: 40)"), "{shown}");
    let shown: Value =
        serde_json::from_str(&out(&tercel(&["inspect", "seats", "--json", "--data", &space]))).unwrap();
    let states = [&shown["indexes"][0]["building"], &shown["indexes"][1]["building"]];
    assert_eq!(states, [&Value::from(40), &Value::Null]);
    assert_eq!(out(&tercel(&["dump", "seats", "--data", &space])).lines().count(), 200);
    let check = || -> Vec<String> {
        let report: Value =
            serde_json::from_slice(&tercel(&["check", "--json", "--data", &space]).stdout).unwrap();
        let text = |finding: &Value| finding["text"].as_str().unwrap().to_owned();
        report["findings"].as_array().unwrap().iter().map(text).collect()
    };
    assert_eq!(check(), Vec::<String>::new());
    // Rows before the place of the build have entries, rows behind it may have some.
    let by_price = Map::<((i32, Option<u32>), u64), Any>::open(Ref::new(map_of(&space, 0)));
    let remove = |id: u64| {
        with(&space, |client| client.run(|tx| by_price.remove(tx, ((5, Some(100 * id as u32)), id)))).unwrap()
    };
    assert!(remove(150).is_some() && remove(60).is_none());
    assert_eq!(check(), Vec::<String>::new());
    let lost = remove(7).expect("it was gone through");
    assert!(matches!(&check()[..], [text] if text.contains("lacks the row") && text.contains("Some(700)")));
    with(&space, |client| client.run(|tx| by_price.insert(tx, ((5, Some(700)), 7), lost))).unwrap();
    with(&space, |client| {
        let seats = client.run(|tx| Table::<Seat>::root(tx, "seats")).unwrap();
        client.migrate(seats, |_| {}).unwrap()
    });
    assert_eq!((check(), rows(&space)), (vec![], 200));
}

/// A row of one text, which CSV may write as an empty line.
#[derive(Object)]
#[table(key = word)]
struct Word {
    word: Text,
}

#[derive(Object)]
#[table(key = id)]
struct Note {
    id: u64,
    text: Option<Text>,
}

#[test]
fn dumped_rows_come_back_whatever_is_in_them() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| dir.path().join(name).display().to_string());
    let words = ["", " ", "  x ", "a\"b", "\u{feff}c", "d\r", "null"];
    let texts = [None, Some(""), Some("null"), Some("a,b")];
    for space in [&one, &other] {
        with(space, |client| {
            client.run(|tx| {
                let (all, notes) = (Table::<Word>::root(tx, "words")?, Table::<Note>::root(tx, "notes")?);
                if *space == one {
                    words
                        .iter()
                        .try_for_each(|word| all.insert(tx, &Word { word: (*word).into() }).map(drop))?;
                    let notes_of = texts.iter().zip(0..);
                    notes_of.into_iter().try_for_each(|(text, id)| {
                        notes.insert(tx, &Note { id, text: text.map(Text::from) }).map(drop)
                    })?;
                }
                Ok(())
            })
        })
        .unwrap();
    }
    for root in ["words", "notes"] {
        for format in ["csv", "jsonl"] {
            let dumped = out(&tercel(&["dump", root, "--format", format, "--data", &one]));
            let file = dir.path().join(format!("{root}.{format}")).display().to_string();
            std::fs::write(&file, &dumped).unwrap();
            let loaded = tercel(&["load", root, &file, "--data", &other]);
            assert_eq!(
                out(&tercel(&["dump", root, "--format", format, "--data", &other])),
                dumped,
                "{loaded:?}"
            );
            with(&other, |client| {
                client.run(|tx| {
                    let (all, notes) = (Table::<Word>::root(tx, "words")?, Table::<Note>::root(tx, "notes")?);
                    words.iter().try_for_each(|word| all.remove(tx, word).map(drop))?;
                    (0..texts.len() as u64).try_for_each(|id| notes.remove(tx, id).map(drop))
                })
            })
            .unwrap();
        }
    }
}

#[test]
fn stray_quote_is_a_part_of_its_cell() {
    let (dir, space) = seats();
    let file = dir.path().join("seats.csv").display().to_string();
    let rows_of = (2..20_002).map(|n| format!("{n},1,,c{n},1,,[],true"));
    let first = "1,1,,5\" pipe,1,,[],true".to_owned();
    let all: Vec<String> =
        ["id,event,price,code,weight,mark,tags,sold".to_owned(), first].into_iter().chain(rows_of).collect();
    std::fs::write(&file, all.join("\n")).unwrap();
    let told = out(&tercel(&["load", "seats", &file, "--data", &space]));
    assert!(told.contains("left out 0"), "{told}");
    assert_eq!(rows(&space), 20_002);
    for (first, words) in [
        ("id,event", "does not name `price`"),
        ("id,id,event,price,code,weight,mark,tags,sold", "`id` twice"),
    ] {
        std::fs::write(&file, first).unwrap();
        let refused = tercel(&["load", "seats", &file, "--data", &space]);
        assert!(err(&refused).contains(words) && refused.status.code() == Some(2), "{refused:?}");
    }
    // The command fails where no line is a row, and with --strict where a key is taken.
    std::fs::write(&file, "id,event,price,code,weight,mark,tags,sold\nx,1,,z,1,,[],true").unwrap();
    assert_eq!(tercel(&["load", "seats", &file, "--data", &space]).status.code(), Some(1));
    std::fs::write(
        &file,
        "id,event,price,code,weight,mark,tags,sold\n30000,1,,z,1,,[],true\n7,1,,y,1,,[],true",
    )
    .unwrap();
    let refused = err(&tercel(&["load", "seats", &file, "--strict", "--data", &space]));
    assert!(
        refused.contains("line 3: another Seat has the id 7") && refused.contains("before line 2"),
        "{refused}"
    );
}
