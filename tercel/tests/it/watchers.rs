//! Tasks that watch: woken by what they watch, and begun without a thread that waits.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures_executor::block_on;
use tercel::collections::{Map, Table};
use tercel::{Client, ClientConfig, Error, Object, Ref, Text};

use crate::common::relay::Relay;
use crate::common::{Counter, counter, serve};

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn count_up(client: &Client, of: Ref<Counter>) {
    client
        .run(|tx| {
            let count = tx.get(of)?.count() + 1;
            tx.edit(of)?.set_count(count)
        })
        .unwrap();
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < end, "{what} does not come about");
        thread::yield_now();
    }
}

/// A client that commits beside thousands of watches must not wake them all by each answer.
#[test]
fn watching_tasks_are_woken_by_what_they_watch() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let (client, other) =
        (Client::connect(&server.addresses()[0]).unwrap(), Client::connect(&server.addresses()[0]).unwrap());
    let hot = counter(&client, "hot");
    let watched: Vec<Ref<Counter>> = (0..100).map(|i| counter(&client, &format!("watched {i}"))).collect();
    let mut watches: Vec<_> = watched
        .iter()
        .map(|of| (client.watch().object(*of).start().unwrap(), Arc::new(Woken::default())))
        .collect();
    for (watch, woken) in &mut watches {
        let waker = Waker::from(woken.clone());
        assert!(pin!(watch.next_async()).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    let woken = |watches: &[(tercel::Watch, Arc<Woken>)]| -> Vec<usize> {
        watches.iter().map(|(_, woken)| woken.0.load(SeqCst)).collect()
    };
    (0..200).for_each(|_| count_up(&client, hot));
    assert_eq!(woken(&watches), [0; 100]);
    // Commits of this client and of another one count alike.
    count_up(&client, watched[7]);
    count_up(&other, watched[60]);
    until("the wake of both", || [7, 60].iter().all(|i| woken(&watches)[*i] > 0));
    assert_eq!(woken(&watches).iter().filter(|woken| **woken > 0).count(), 2);
    for i in [7, 60] {
        let change = block_on(watches[i].0.next_async()).unwrap();
        assert!(change.reference == watched[i].cast());
    }
}

#[test]
fn watch_is_begun_by_a_task() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let maker = Client::connect(&server.addresses()[0]).unwrap();
    let (map, last) = maker
        .run(|tx| {
            let map = Map::<Text, Counter>::create(tx)?;
            for i in 0..500 {
                map.insert(
                    tx,
                    format!("{i:03}").as_str(),
                    tx.create(&Counter { count: i, text: "".into() })?,
                )?;
            }
            tx.set_root("map", map.reference())?;
            Ok((map, map.get_ref(tx, "499")?.unwrap()))
        })
        .unwrap();
    let relay = Relay::of_sockets(&server);
    let config = ClientConfig { timeout: Duration::from_millis(800), ..ClientConfig::default() };
    let client = Client::connect_with(&relay.address, config).unwrap();
    let begin = || client.watch().range(map, ..).root("map");
    let held = relay.hold();
    {
        let mut begun = pin!(begin().start_async());
        let polled = begun.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(
            polled.is_pending(),
            "nothing is cached, and it gives {:?}",
            polled.map(|opened| opened.err())
        );
    }
    let asked = Instant::now();
    let late = block_on(begin().start_async()).err();
    assert!(matches!(late, Some(Error::Timeout | Error::Unavailable(_))), "{late:?}");
    assert!((0.7..10.0).contains(&asked.elapsed().as_secs_f64()), "{:?}", asked.elapsed());
    drop(held);
    let mut watch = block_on(begin().start_async()).unwrap();
    assert!(matches!(pin!(watch.next_async()).poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
    count_up(&maker, last);
    let change = block_on(watch.next_async()).unwrap();
    assert_eq!((change.source, map.key_of(&change).unwrap()), (0, Some("499".into())));
    let nothing = block_on(client.watch().start_async()).err();
    assert!(matches!(nothing, Some(Error::Invalid(_))), "{nothing:?}");
}

#[derive(Object)]
#[table(key = id, index(event, price))]
struct Seat {
    id: u64,
    event: u32,
    price: u32,
    sold: bool,
}

#[test]
fn rows_are_watched_by_key_and_index() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let connect = || Client::connect(&server.addresses()[0]).unwrap();
    let (client, other) = (connect(), connect());
    let seats = other
        .run(|tx| {
            let seats = Table::<Seat>::root(tx, "seats")?;
            let seat = |id: u64| Seat { id, event: (id % 10) as u32, price: id as u32, sold: false };
            seats.insert_all(tx, (0..2_000).map(seat))?;
            Ok(seats)
        })
        .unwrap();
    let of_event = seats.by(Seat::BY_EVENT_PRICE);
    let mut watches = [
        client.watch().rows(seats, 100..200).start().unwrap(),
        client.watch().rows_by_prefix(of_event, (5,)).start().unwrap(),
        client.watch().rows_by(of_event, (5, 0)..(5, 300)).start().unwrap(),
    ];
    let mut changes = |which: usize| {
        let watch = &mut watches[which];
        let mut all = Vec::new();
        // All changes of one commit come with the first.
        let mut within = Duration::from_secs(30);
        while let Some(change) = watch.next_within(within).unwrap() {
            within = Duration::ZERO;
            let key = match which {
                0 => seats.key_of(&change).unwrap().map(|id| (0, id as u32)),
                _ => of_event.key_of(&change).unwrap(),
            };
            all.push((key.unwrap(), change.is_removed));
        }
        all.sort_unstable();
        all
    };
    // A field outside of the index: the row has changed, under the key that it had.
    other.run(|tx| seats.edit(tx, 105)?.set_sold(true)).unwrap();
    assert_eq!(changes(0), [((0, 105), false)]);
    assert_eq!(changes(1), [((5, 105), false)]);
    assert_eq!(changes(2), [((5, 105), false)]);
    // One of the index: it goes under one key, and comes under another, inside of a range or not.
    other.run(|tx| seats.edit(tx, 115)?.set_price(7_000)).unwrap();
    assert_eq!(changes(0), [((0, 115), false)]);
    assert_eq!(changes(1), [((5, 115), true), ((5, 7_000), false)]);
    assert_eq!(changes(2), [((5, 115), true)]);
    // Rows that go, and so many that come that leaves are split.
    other
        .run(|tx| {
            assert!(seats.remove(tx, 125)?.is_some());
            let seat = |id: u64| Seat { id, event: 5, price: 9_000 + id as u32, sold: false };
            seats.insert_all(tx, (5_000..5_300).map(seat))
        })
        .unwrap();
    assert_eq!(changes(0), [((0, 125), true)]);
    let come = (5_000..5_300).map(|id| ((5, 9_000 + id), false));
    assert_eq!(changes(1), [((5, 125), true)].into_iter().chain(come).collect::<Vec<_>>());
    assert_eq!(changes(2), [((5, 125), true)]);
    // None is of another event.
    other.run(|tx| seats.edit(tx, 1_006)?.set_sold(true)).unwrap();
    other.run(|tx| seats.edit(tx, 199)?.set_sold(true)).unwrap();
    assert_eq!(changes(0), [((0, 199), false)]);
    assert_eq!(watches[1].next_within(Duration::ZERO).unwrap(), None);
}
