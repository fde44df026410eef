//! Clients that read at a member which follows.

use super::*;
use crate::{ClientConfig, Error, Freshness, Isolation, ReadFrom};

impl Groups {
    /// A client that reads at a member.
    fn reader(&self, i: usize) -> Client {
        self.reader_with(i, ClientConfig::default())
    }

    fn reader_with(&self, i: usize, config: ClientConfig) -> Client {
        let read_from = ReadFrom::Address(self.members[i].1.clone());
        Client::connect_with(self.addresses(), ClientConfig { read_from, ..config }).unwrap()
    }

    /// The number after a name in the status of a member.
    fn number(&self, i: usize, name: &str) -> Option<u64> {
        let status = status_of(&self.members[i].1, WITHIN).ok()?.json();
        let (_, rest) = status.split_once(&format!("\"{name}\":"))?;
        rest.split([',', '}']).next()?.parse().ok()
    }

    /// A member that does not lead.
    fn follower(&self) -> usize {
        (self.leader() + 1) % self.members.len()
    }
}

#[test]
fn reader_at_follower_sees_others_and_own_writes() {
    let group = Groups::of(3);
    let (writer, follower) = (group.client(), group.follower());
    add(&writer);
    let reader = group.reader(follower);
    assert_eq!(count(&reader), 1);
    assert_eq!(group.number(follower, "readers"), Some(1));
    add(&writer);
    until(|| (count(&reader) == 2).then_some(()));
    for n in 3..20 {
        add(&reader);
        assert_eq!(count(&reader), n);
    }
    assert_eq!(group.number(follower, "passed_on"), Some(1));
    let strict = writer.transaction().isolation(Isolation::Strict);
    assert_eq!(strict.run(|tx| Ok(tx.find_root::<Counter>("counter")?.unwrap().count())).unwrap(), 19);
    assert_eq!(reader.stats().client.connections, 1);
}

#[test]
fn watch_at_follower_tells_of_changes() {
    let group = Groups::of(3);
    let (writer, follower) = (group.client(), group.follower());
    add(&writer);
    let reader = group.reader(follower);
    let counter = reader.run(|tx| Ok(tx.find_root::<Counter>("counter")?.unwrap().reference())).unwrap();
    let mut watch = reader.watch().object(counter).start().unwrap();
    for n in 2..10 {
        add(&writer);
        let change = watch.next_within(Duration::from_secs(30)).unwrap().expect("it has changed");
        let state = reader.transaction().at_least(change.token);
        assert_eq!(state.run(|tx| Ok(tx.get(counter)?.count())).unwrap(), n);
    }
    assert_eq!(group.number(follower, "passed_on"), Some(0), "a reader needs no connection to the leader");
}

#[test]
fn token_of_another_client_is_waited_for() {
    let group = Groups::of(3);
    let (writer, follower) = (group.client(), group.follower());
    add(&writer);
    let reader = group.reader(follower);
    for n in 2..20 {
        let tx = writer.transaction().begin().unwrap();
        tx.find_root::<Counter>("counter").unwrap().unwrap().edit().unwrap().set_count(n).unwrap();
        let token = tx.commit().unwrap().token;
        let seen = reader
            .transaction()
            .at_least(token)
            .run(|tx| Ok(tx.find_root::<Counter>("counter")?.unwrap().count()));
        assert_eq!(seen.unwrap(), n);
    }
}

#[test]
fn calls_of_reader_run_at_leader() {
    let group = Groups::of(3);
    let follower = group.follower();
    let reader = group.reader(follower);
    add(&reader);
    let counter = reader.run(|tx| Ok(tx.find_root::<Counter>("counter")?.unwrap().reference())).unwrap();
    let handle = reader.handle(counter).remote();
    let sum = reader.service::<dyn Adder>();
    for n in 1..50 {
        assert_eq!(handle.more(2).unwrap(), 1 + 2 * n);
        assert_eq!(count(&reader), 1 + 2 * n, "what a method wrote is there");
        assert_eq!(handle.now().unwrap(), 1 + 2 * n);
        assert_eq!(sum.add(n, 2).unwrap(), n + 2);
    }
}

#[test]
fn large_values_pass_through_follower() {
    let group = Groups::of(3);
    let reader = group.reader(group.follower());
    let mut blobs = Blobs::default();
    blobs.write(&reader, 1);
    let data = vec![7; 1 << 20];
    let blob = reader.run(|tx| tx.create(&Blob { data: Bytes::from(data.clone()) })).unwrap();
    let read = |client: &Client| client.run(|tx| Ok(tx.get(blob)?.data()?.to_vec())).unwrap();
    assert!(read(&reader) == data && read(&group.client()) == data);
    blobs.are_all_there(&reader);
}

#[test]
fn reader_stays_when_leader_ends() {
    let mut group = Groups::of(3);
    let follower = group.follower();
    let reader = group.reader(follower);
    add(&reader);
    for n in 2..5 {
        let leader = group.leader();
        group.servers[leader].take().unwrap().stop().unwrap();
        add(&reader);
        assert_eq!(count(&reader), n);
        group.servers[leader] = Some(group.start(leader));
        until(|| (group.health(leader)? == HealthState::Following).then_some(()));
    }
}

#[test]
fn reader_that_loses_its_member_goes_on() {
    let mut group = Groups::of(3);
    let follower = group.follower();
    let reader = group.reader(follower);
    add(&reader);
    group.servers[follower].take().unwrap().stop().unwrap();
    add(&reader);
    assert_eq!(count(&reader), 2);
}

#[test]
fn member_that_is_cut_off_serves_stale_reads() {
    let mut group = Groups::of(3);
    let follower = group.follower();
    let keepalive = Duration::from_millis(200);
    group.servers.iter_mut().for_each(|server| server.take().unwrap().stop().unwrap());
    group.keepalive = Some(keepalive);
    group.servers = (0..3).map(|i| Some(group.start(i))).collect();
    let reader = group.reader(follower);
    add(&reader);
    for i in (0..3).filter(|i| *i != follower) {
        group.servers[i].take().unwrap().stop().unwrap();
    }
    let stale = || reader.transaction().freshness(Freshness::Stale);
    let counter = |tx: &crate::Tx<'_>| Ok(tx.find_root::<Counter>("counter")?.unwrap().count());
    let told = until(|| reader.run(|tx| tx.roots().map(drop)).err());
    assert!(matches!(&told, Error::Unavailable(why) if why.contains("cut off")), "{told}");
    assert_eq!(stale().run(counter).unwrap(), 1);
    let strict = reader.transaction().isolation(Isolation::Strict).run(counter).unwrap_err();
    assert!(matches!(strict, Error::Unavailable(_)), "{strict}");
    let health = health_of(&group.members[follower].1, WITHIN).unwrap();
    assert!(health.reason.contains("1 clients read here"), "{}", health.reason);
    // Nothing goes back, and everything goes on.
    for i in (0..3).filter(|i| *i != follower) {
        group.servers[i] = Some(group.start(i));
    }
    until(|| reader.run(counter).ok().filter(|count| *count == 1));
    until(|| reader.run(|tx| tx.find_root::<Counter>("counter")?.unwrap().edit()?.set_count(2)).ok());
    assert_eq!(stale().run(counter).unwrap(), 2);
}

#[test]
fn learner_serves_readers_and_never_votes() {
    let mut group = Groups::begun();
    add(&group.client());
    let learner = group.join();
    // Before it has anything it sends readers on.
    until(|| group.number(learner, "visible").filter(|visible| *visible > 2));
    let reader = group.reader(learner);
    add(&reader);
    assert_eq!(count(&reader), 2);
    assert!(group.number(learner, "readers") == Some(1) && group.health(0) == Some(HealthState::Serving));
}
