//! Streams of events.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::common::{World, head, request, send};

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
