//! Streams of events.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;

use serde_json::{Value, json};
use tercel::collections::{Map, Table};
use tercel::{Object, Text};

use crate::common::{Purse, World, head, request, send};

/// An open stream.
struct Stream(BufReader<TcpStream>);

#[derive(Debug)]
struct Event {
    id: String,
    name: String,
    data: Value,
}

impl Stream {
    fn open(world: &World, path: &str, headers: &[(&str, &str)]) -> Stream {
        let mut stream = BufReader::new(send(world.at(), "GET", path, headers, "").unwrap());
        let (status, headers) = head(&mut stream).unwrap();
        assert_eq!((status, headers["content-type"].as_str()), (200, "text/event-stream"));
        // A proxy passes events on as they come, and the first bytes are there before there is an event.
        assert_eq!(headers.get("x-accel-buffering").map(String::as_str), Some("no"));
        let mut lines = stream.by_ref().lines().map_while(Result::ok).filter(|line| line.contains(": "));
        assert_eq!(lines.next().as_deref(), Some("retry: 1000"));
        Stream(stream)
    }

    /// The next event; none at the end.
    fn next(&mut self) -> Option<Event> {
        let mut event = Event { id: String::new(), name: String::new(), data: Value::Null };
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim_end().split_once(": ") {
                Some(("id", id)) => event.id = id.into(),
                Some(("event", name)) => event.name = name.into(),
                Some(("data", data)) => event.data = serde_json::from_str(data).unwrap(),
                // Lengths of chunks, comments, and ends of events.
                _ if line.trim().is_empty() && !event.data.is_null() => return Some(event),
                _ => {}
            }
        }
    }

    fn cents(&mut self) -> (String, i64, String) {
        let event = self.next().expect("an event");
        (event.name, event.data["fields"]["cents"].as_i64().unwrap(), event.id)
    }
}

#[test]
fn changes_come_and_go_on_after_last_id() {
    let world = World::new();
    let set = |cents| world.client.run(|tx| tx.edit(world.purse)?.set_cents(cents)).unwrap();
    let mut stream = Stream::open(&world, "/v1/watch/purse", &[]);
    let (name, cents, _) = stream.cents();
    assert_eq!((name.as_str(), cents), ("state", 1_000));
    set(1);
    let (name, cents, _) = stream.cents();
    assert_eq!((name.as_str(), cents), ("change", 1));
    set(2);
    let (_, cents, id) = stream.cents();
    assert_eq!(cents, 2);
    drop(stream);
    // While nobody reads.
    set(3);
    let by_reference = format!("/v1/watch/{}", world.purse.oref());
    let mut stream = Stream::open(&world, &by_reference, &[("Last-Event-ID", &id)]);
    let (name, cents, _) = stream.cents();
    assert_eq!((name.as_str(), cents), ("change", 3));
    // An id that is none begins anew, and says so.
    let mut stream = Stream::open(&world, "/v1/watch/purse", &[("Last-Event-ID", "yesterday")]);
    assert_eq!(stream.cents().0, "anew");
    world.client.run(|tx| tx.remove_root("purse")).unwrap();
    let gone = stream.next().unwrap();
    assert_eq!((gone.name.as_str(), gone.data), ("absent", json!({ "name": "purse" })));
}

#[test]
fn streams_end_when_gateway_stops() {
    let world = World::new();
    let mut changes = Stream::open(&world, "/v1/watch/purse", &[]);
    assert_eq!(changes.next().unwrap().name, "state");
    let mut status = Stream::open(&world, "/v1/status", &[("Accept", "text/event-stream")]);
    let commits = status.next().unwrap().data["commits"].as_u64();
    assert!(commits.is_some());
    assert!(status.next().unwrap().data["commits"].as_u64() >= commits);
    assert_eq!(request(world.at(), "GET", "/v1/status", &[], "").json()["commits"].as_u64(), commits);
    world.gateway.stop();
    assert!(changes.next().is_none());
    while status.next().is_some() {}
}

#[derive(Object)]
#[table(key = id, index(event, price))]
struct Seat {
    id: u64,
    event: u32,
    price: u32,
}

const EVENTS: (&str, &str) = ("Accept", "text/event-stream");

#[test]
fn rows_of_a_query_come_as_events() {
    let world = World::new();
    let seat = |id: u64, event: u32, price: u32| Seat { id, event, price };
    let seats = world
        .client
        .run(|tx| {
            let seats = Table::<Seat>::root(tx, "seats")?;
            (0..50).try_for_each(|id| seats.insert(tx, &seat(id, id as u32 % 5, 10)).map(drop))?;
            Ok(seats)
        })
        .unwrap();
    let mut stream = Stream::open(&world, "/v1/tables/seats?event=3", &[EVENTS]);
    let begun = stream.next().unwrap();
    assert_eq!((begun.name.as_str(), &begun.data), ("begun", &json!({})));
    world
        .client
        .run(|tx| {
            seats.insert(tx, &seat(60, 3, 70))?;
            seats.insert(tx, &seat(61, 4, 70))?;
            seats.edit(tx, 13)?.set_price(5)
        })
        .unwrap();
    let mut three: Vec<Event> = (0..3).map(|_| stream.next().unwrap()).collect();
    three.sort_by_key(|event| event.data["key"].to_string());
    let told = |event: &Event| {
        let Event { name, data, .. } = event;
        assert_eq!(name, "change");
        (data["key"].clone(), data["removed"].as_bool().unwrap(), data["row"]["fields"]["price"].clone())
    };
    assert_eq!(told(&three[0]), (json!([[3, 10], 13]), true, Value::Null));
    assert_eq!(told(&three[1]), (json!([[3, 5], 13]), false, json!(5)));
    assert_eq!(told(&three[2]), (json!([[3, 70], 60]), false, json!(70)));
    // The place behind all of a commit is that of its last event; that of the first is before it.
    let ids: Vec<String> = three.iter().map(|event| event.id.clone()).collect();
    assert!(ids.iter().any(|id| *id != ids[0]) && ids.contains(&begun.id), "{ids:?} {}", begun.id);
    drop(stream);
    let last = ids.iter().find(|id| **id != begun.id).unwrap();
    // One that has all goes on with what comes; one whose place is none begins anew.
    let mut stream = Stream::open(&world, "/v1/tables/seats?event=3", &[EVENTS, ("Last-Event-ID", last)]);
    let mut lost = Stream::open(&world, "/v1/tables/seats?event=3", &[EVENTS, ("Last-Event-ID", "x")]);
    assert_eq!(lost.next().unwrap().name, "anew");
    world.client.run(|tx| seats.remove(tx, 60)).unwrap();
    assert_eq!(told(&stream.next().unwrap()), (json!([[3, 70], 60]), true, Value::Null));
    drop(stream);
    world.client.run(|tx| seats.remove(tx, 3)).unwrap();
    let mut stream = Stream::open(&world, "/v1/tables/seats?event=3", &[EVENTS, ("Last-Event-ID", last)]);
    assert_eq!(stream.next().unwrap().name, "anew", "the range is to be read again");
    let mut stream = Stream::open(&world, "/v1/tables/seats", &[EVENTS]);
    assert_eq!(stream.next().unwrap().name, "begun");
    world.client.run(|tx| seats.remove(tx, 61)).unwrap();
    let gone = stream.next().unwrap();
    assert_eq!((&gone.data["key"], &gone.data["removed"]), (&json!(61), &json!(true)));
    let refused = request(world.at(), "GET", "/v1/tables/seats?limit=3", &[EVENTS], "");
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"].as_str().unwrap().contains("a stream has no `limit`"), "{refused:?}");
}

#[test]
fn entries_of_a_map_come_as_events() {
    let world = World::new();
    let (purses, numbers) = world
        .client
        .run(|tx| {
            let (purses, numbers) = (Map::<Text, Purse>::create(tx)?, Map::<Text, u64>::create(tx)?);
            tx.set_root("purses", purses.reference())?;
            tx.set_root("numbers", numbers.reference())?;
            Ok((purses, numbers))
        })
        .unwrap();
    let mut stream = Stream::open(&world, "/v1/maps/purses?from=b&to=d", &[EVENTS]);
    assert_eq!(stream.next().unwrap().name, "begun");
    let put = |key: &str| {
        world.client.run(|tx| purses.insert(tx, key, world.purse)).unwrap();
    };
    ["a", "bob", "d"].into_iter().for_each(put);
    // Changes that nobody has taken join, so the first is read before the second is made.
    let come = stream.next().unwrap();
    world.client.run(|tx| purses.remove(tx, "bob")).unwrap();
    let (of, gone) = (world.purse.oref().to_string(), stream.next().unwrap());
    assert_eq!(come.data, json!({ "key": "bob", "ref": of, "removed": false }));
    assert_eq!(gone.data, json!({ "key": "bob", "ref": of, "removed": true }));
    world.client.run(|tx| numbers.insert(tx, "one", 1).map(drop)).unwrap();
    let refused = request(world.at(), "GET", "/v1/maps/numbers", &[EVENTS], "");
    assert_eq!(refused.status, 400);
}
