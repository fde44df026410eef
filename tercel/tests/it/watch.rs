//! Watching, on real servers: objects, roots, ranges of maps, over outages.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{Counter, counter, serve};
use tercel::collections::Map;
use tercel::{Address, Bound, Change, Client, Error, Oref, Ref, Server, ServerConfig, Text, Watch};

/// Longer than anything takes that is not lost.
const LONG: Duration = Duration::from_secs(30);

fn pair(server: &Server) -> (Client, Client) {
    let connect = || Client::connect(&server.addresses()[0]).unwrap();
    (connect(), connect())
}

fn set(client: &Client, r: Ref<Counter>, count: u64) -> tercel::Token {
    let tx = client.transaction().begin().unwrap();
    tx.edit(r).unwrap().set_count(count).unwrap();
    tx.commit().unwrap().token
}

fn make(client: &Client) -> Ref<Counter> {
    client.run(|tx| tx.create(&Counter { count: 0, text: Text::default() })).unwrap()
}

fn next(watch: &mut Watch) -> Change {
    watch.next_within(LONG).unwrap().expect("something has changed")
}

fn is_quiet(watch: &mut Watch) -> bool {
    watch.next_within(Duration::from_millis(20)).unwrap().is_none()
}

#[test]
fn change_is_told_once_seen_here_and_by_its_token_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let (writer, watcher) = pair(&server);
    let (a, b) = (counter(&writer, "a"), counter(&writer, "b"));
    let mut watch = watcher.watch().object(a).object(b).start().unwrap();
    assert!(is_quiet(&mut watch));
    for count in 1..100 {
        let token = set(&writer, a, count);
        let change = next(&mut watch);
        assert_eq!((change.token, change.reference, change.source), (token, a.cast(), 0));
        assert_eq!(watcher.run(|tx| Ok(tx.get(a)?.count())), Ok(count));
    }
    // Its own commits are changes, too; others are not told of.
    let other = make(&watcher);
    set(&watcher, other, 1);
    let token = set(&watcher, b, 1);
    let change = next(&mut watch);
    assert_eq!((change.token, change.reference, change.source), (token, b.cast(), 1));
    assert!(is_quiet(&mut watch));
    assert!(watch.token().stamp >= token.stamp);
    server.stop().unwrap();
}

#[test]
fn changes_that_are_not_taken_join_and_keep_the_order_of_their_stamps() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let (writer, watcher) = pair(&server);
    let (a, b) = (counter(&writer, "a"), counter(&writer, "b"));
    let mut watch = watcher.watch().object(a).object(b).start().unwrap();
    let mut last = [0; 2].map(|_| set(&writer, a, 1));
    for count in 0..500 {
        last = [set(&writer, a, count), set(&writer, b, count)];
    }
    // What arrives while it is taken may be told once more, but never what was before.
    let mut told = Vec::new();
    while told.last() != Some(&(last[1], b.cast())) {
        let change = next(&mut watch);
        told.push((change.token, change.reference));
    }
    assert!(told.is_sorted_by_key(|(token, _)| token.stamp));
    let of_a = told.iter().rfind(|(_, r)| *r == a.cast());
    assert_eq!(of_a, Some(&(last[0], a.cast())));
    assert!(told.len() < 500, "{} changes were told of 1,000", told.len());
    assert!(is_quiet(&mut watch));
    server.stop().unwrap();
}

#[test]
fn root_and_range_are_told_as_they_come_change_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let (writer, watcher) = pair(&server);
    let map = writer.run(Map::<u64, Counter>::create).unwrap();
    let insert = |key: u64, r| writer.run(|tx| map.insert(tx, key, r)).unwrap();
    let first = make(&writer);
    insert(5, first);
    let builder = watcher.watch().root("main").range(map, 3..1_000);
    let mut watch = builder.keys(map, ..).start().unwrap();
    let mut told = |n: usize| {
        let mut told: Vec<_> = (0..n).map(|_| next(&mut watch)).map(|c| (c.source, c.reference)).collect();
        told.sort_unstable_by_key(|(source, reference)| (*source, reference.oref()));
        assert!(is_quiet(&mut watch));
        told
    };
    // A root that comes, whose object changes, and that goes.
    let main = counter(&writer, "main");
    assert_eq!(told(1), [(0, main.cast())]);
    set(&writer, main, 7);
    assert_eq!(told(1), [(0, main.cast())]);
    writer.run(|tx| tx.remove_root("main")).unwrap();
    assert_eq!(told(1), [(0, Ref::NULL)]);
    set(&writer, main, 8);
    // An object of the range changes: `keys` does not tell.
    set(&writer, first, 1);
    assert_eq!(told(1), [(1, first.cast())]);
    // Keys that come, in the range and outside; one that leads elsewhere; one that goes.
    let (second, outside) = (make(&writer), make(&writer));
    insert(1, outside);
    assert_eq!(told(1), [(2, outside.cast())]);
    insert(5, second);
    assert_eq!(told(2), [(1, second.cast()), (2, second.cast())]);
    writer.run(|tx| map.remove(tx, 5)).unwrap();
    assert_eq!(told(2), [(1, second.cast()), (2, second.cast())]);
    // A key that is renamed.
    insert(7, first);
    assert_eq!(told(2), [(1, first.cast()), (2, first.cast())]);
    writer.run(|tx| map.remove(tx, 7).and_then(|_| map.insert(tx, 8, first))).unwrap();
    assert_eq!(told(4), [(1, first.cast()), (1, first.cast()), (2, first.cast()), (2, first.cast())]);
    // Many at once, more than a node of the map has.
    let made: Vec<Ref<Counter>> = (0..300).map(|_| make(&writer)).collect();
    writer.run(|tx| (0..300).try_for_each(|i| map.insert(tx, 10 + i, made[i as usize]).map(drop))).unwrap();
    let all = told(600);
    assert!(all.iter().take(300).map(|(_, r)| r.cast()).eq(made.iter().copied()));
    set(&writer, made[299], 1);
    assert_eq!(told(1), [(1, made[299].cast())]);
    server.stop().unwrap();
}

/// A model that takes every change is what a reader finds, while leaves are split, joined and emptied.
#[test]
fn ranges_told_are_ranges_read() {
    const ENTRIES: u64 = 3_000;
    // Entries that stay, whatever leaf they are in.
    let is_rock = |key: &u64| key % 10 == 5;
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let (writer, watcher) = pair(&server);
    let objects = writer
        .run(|tx| {
            let objects = (0..8).map(|_| tx.create(&Counter::default()));
            objects.collect::<Result<Vec<_>, Error>>()
        })
        .unwrap();
    let map = writer
        .run(|tx| {
            let map = Map::<u64, Counter>::create(tx)?;
            for key in 0..ENTRIES {
                map.insert(tx, key * 2, objects[key as usize % 8])?;
            }
            (0..2 * ENTRIES).filter(is_rock).try_for_each(|key| map.insert(tx, key, objects[0]).map(drop))?;
            Ok(map)
        })
        .unwrap();
    let ranges = [0..2 * ENTRIES + 1, 1_000..1_700];
    let [all, some] = ranges.clone();
    let mut watch = watcher.watch().range(map, all).keys(map, some).start().unwrap();
    let read = |range: &std::ops::Range<u64>| -> BTreeMap<u64, Oref> {
        let entries = |tx: &tercel::Tx<'_>| {
            map.range(tx, range.clone()).map(|entry| entry.map(|(key, r)| (key, r.oref()))).collect()
        };
        watcher.run(entries).unwrap()
    };
    let mut told = [read(&ranges[0]), read(&ranges[1])];
    // Rounds of single changes, of many at once, and of whole leaves that go and come.
    let change = |round: u64| {
        let (from, n, step) = match round % 4 {
            0 | 1 => (0, 3, 997),
            2 => (round * 31 % ENTRIES, 150, 1),
            _ => (0, 40, 131),
        };
        let mut dice = round;
        let tx = writer.transaction().begin().unwrap();
        for i in 0..n {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = (2 * from + i * step + if step == 1 { 0 } else { dice >> 40 }) % (2 * ENTRIES + 1);
            let done = match dice >> 62 {
                _ if is_rock(&key) => continue,
                0 => map.insert(&tx, key, objects[(dice >> 50) as usize % 8]),
                _ if round % 8 < 4 => map.remove(&tx, key),
                _ => map.insert(&tx, key, objects[key as usize % 8]),
            };
            done.unwrap();
        }
        tx.commit().unwrap().token
    };
    let mut take = |told: &mut [BTreeMap<u64, Oref>; 2], is_over: &mut dyn FnMut(&Watch) -> bool| {
        while !is_over(&watch) {
            let Some(change) = watch.next_within(LONG).unwrap() else { panic!("nothing comes") };
            let key = map.key_of(&change).unwrap().expect("the key of an entry");
            assert!(!is_rock(&key), "{key} has never changed: {change:?}");
            match change.is_removed {
                true => _ = told[change.source].remove(&key),
                false => _ = told[change.source].insert(key, change.reference.oref()),
            }
        }
    };
    for round in 0..120 {
        let token = change(round);
        take(&mut told, &mut |watch| watch.token().stamp >= token.stamp);
        for (source, range) in ranges.iter().enumerate() {
            assert_eq!(told[source], read(range), "round {round}, source {source}");
        }
    }
    // The same while the writer does not wait for the watch.
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| (121..1_000).fold(change(120), |_, round| change(round)));
        take(&mut told, &mut |_| writes.is_finished());
        let token = writes.join().unwrap();
        take(&mut told, &mut |watch| watch.token().stamp >= token.stamp);
    });
    for (source, range) in ranges.iter().enumerate() {
        assert_eq!(told[source], read(range), "source {source}");
    }
    server.stop().unwrap();
}

#[test]
fn change_of_an_entry_names_its_key_and_whether_it_was_removed() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let (writer, watcher) = pair(&server);
    let (map, a) = writer
        .run(|tx| {
            let (map, a) = (Map::<Text, Counter>::create(tx)?, tx.create(&Counter::default())?);
            // Under two keys of the range, and one outside.
            ["u/ann", "u/bob", "w/ann"].iter().try_for_each(|key| map.insert(tx, key, a).map(drop))?;
            Ok((map, a))
        })
        .unwrap();
    let mut watch = watcher.watch().prefix(map, "u/").root("main").start().unwrap();
    let before = watch.token();
    let mut told = |n: usize| {
        let told = (0..n).map(|_| next(&mut watch));
        let mut told: Vec<_> = told.map(|c| (map.key_of(&c).unwrap().unwrap().0, c.is_removed)).collect();
        told.sort();
        assert!(is_quiet(&mut watch));
        told
    };
    let of = |keys: &[(&str, bool)]| -> Vec<(String, bool)> {
        keys.iter().map(|(key, is_removed)| (key.to_string(), *is_removed)).collect()
    };
    set(&writer, a, 1);
    assert_eq!(told(2), of(&[("u/ann", false), ("u/bob", false)]));
    let rename = |tx: &tercel::Tx<'_>| map.remove(tx, "u/bob").and_then(|_| map.insert(tx, "u/cleo", a));
    writer.run(rename).unwrap();
    assert_eq!(told(2), of(&[("u/bob", true), ("u/cleo", false)]));
    // In one commit removed, and what it led to changed: what is there no more is told as that.
    writer.run(|tx| map.remove(tx, "u/cleo").and_then(|_| tx.edit(a)?.set_count(2))).unwrap();
    assert_eq!(told(2), of(&[("u/ann", false), ("u/cleo", true)]));
    writer.run(|tx| tx.set_root("main", a)).unwrap();
    assert_eq!(told(1), of(&[("main", false)]));
    writer.run(|tx| tx.remove_root("main")).unwrap();
    assert_eq!(told(1), of(&[("main", true)]));
    // From a token the range is told as a whole, and the root as it is.
    let late = watcher.watch().prefix(map, "u/").root("main").since(before).start().unwrap();
    let told: Vec<_> = late.take(2).map(Result::unwrap).map(|c| (c.key.is_some(), c.is_removed)).collect();
    assert_eq!(told, [(false, false), (true, true)]);
    server.stop().unwrap();
}

#[test]
fn object_that_is_not_there_yet_is_told_of_when_it_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let (writer, watcher) = pair(&server);
    let value = Counter { count: 1, text: Text::default() };
    let place = writer
        .run(|tx| {
            let place = tx.reserve(&value)?;
            let holder = tx.create(&Counter { count: 0, text: Text::default() })?;
            tx.set_root("holder", holder)?;
            Ok(place)
        })
        .unwrap();
    let mut watch = watcher.watch().object(place).start().unwrap();
    assert!(is_quiet(&mut watch));
    writer.run(|tx| tx.fill(place, &value)).unwrap();
    assert_eq!(next(&mut watch).reference, place.cast());
    assert_eq!(watcher.run(|tx| Ok(tx.get(place)?.count())), Ok(1));
    server.stop().unwrap();
}

#[test]
fn watch_goes_on_over_a_restart_and_another_one_from_its_token() {
    let dir = tempfile::tempdir().unwrap();
    let socket = Address::Unix(dir.path().join("socket"));
    let serve = || {
        let config = ServerConfig::new(dir.path().join("space"));
        Server::start(ServerConfig { listen: vec![socket.clone()], ..config }).unwrap()
    };
    let server = serve();
    let (writer, watcher) = pair(&server);
    let (a, b) = (counter(&writer, "a"), counter(&writer, "b"));
    let map = writer.run(Map::<u64, Counter>::create).unwrap();
    let mut watch = watcher.watch().object(a).object(b).start().unwrap();
    let before = watch.token();
    server.stop().unwrap();
    assert_eq!(watch.next_within(Duration::from_millis(50)), Ok(None), "an outage is no error");
    let server = serve();
    writer.transaction().timeout(LONG).run(|tx| tx.edit(a)?.set_count(1)).unwrap();
    let token = set(&writer, a, 2);
    // If the server no longer knows what changed, all that is watched is told of; then come changes.
    while next(&mut watch).token.stamp < token.stamp {}
    assert!(is_quiet(&mut watch));

    let mut again = watcher.watch().object(b).since(watch.token()).start().unwrap();
    assert!(is_quiet(&mut again), "nothing has changed since");
    let late = watcher.watch().object(b).object(a).root("a").range(map, ..).since(before);
    let mut late = late.start().unwrap();
    let told: Vec<_> = std::iter::from_fn(|| late.next_within(Duration::from_millis(20)).unwrap()).collect();
    assert!(told.iter().all(|change| change.token.stamp >= token.stamp));
    let told: Vec<_> = told.iter().map(|change| (change.source, change.reference)).collect();
    assert_eq!(told, [(0, b.cast()), (1, a.cast()), (2, a.cast()), (3, Ref::NULL)]);
    server.stop().unwrap();
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let (writer, watcher) = pair(&server);
    let a = counter(&writer, "a");
    let nothing = watcher.watch().object(Ref::<Counter>::NULL).start().map(drop);
    assert!(matches!(nothing, Err(Error::Invalid(_))), "{nothing:?}");
    // More than a client can watch, by references that need not lead anywhere.
    let mut watches = Vec::new();
    let full = loop {
        let builder = (0..250).fold(watcher.watch(), |builder, slot| {
            builder.object(Ref::<Counter>::new(Oref::new(a.oref().page(), slot).unwrap()))
        });
        match builder.start() {
            Ok(watch) => watches.push(watch),
            Err(e) => break e,
        }
    };
    assert!(matches!(full, Error::Full(Bound::Watched { max: 65_536 })), "{full}");
    assert_eq!(watches.len(), 65_536 / 250);
    // One that ends gives its room back, and the others go on.
    drop(watches.pop());
    set(&writer, a, 1);
    assert_eq!(next(&mut watches[0]).reference, a.cast());
    watches.push(watcher.watch().object(a).start().unwrap());
    // A map that has keys of another type, found when it is read.
    let map = writer.run(Map::<u64, Counter>::create).unwrap();
    let wrong = watcher.watch().range(Map::<Text, Counter>::open(map.reference()), ..).start().map(drop);
    assert!(matches!(wrong, Err(Error::Schema(_))), "{wrong:?}");
    server.stop().unwrap();
}

#[test]
fn iterator_waits_in_a_thread_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let space = tercel::embedded(dir.path()).unwrap();
    let c = counter(&space, "c");
    let watch = space.watch().object(c).start().unwrap();
    let clone = space.clone();
    let watching = std::thread::spawn(move || {
        for change in watch {
            change.unwrap();
            let count = clone.run(|tx| Ok(tx.get(c)?.count())).unwrap();
            if count == 1_000 {
                return;
            }
        }
    });
    (1..=1_000).for_each(|count| _ = set(&space, c, count));
    watching.join().unwrap();
    space.close().unwrap();
}
