//! A group whose connections are sealed.

use super::*;
use crate::{ClientConfig, ReadFrom};

#[test]
fn sealed_group_goes_on_without_its_leader() {
    let mut group = Groups::with(3, Some(Authority::new()));
    let client = group.client();
    add(&client);
    let leader = group.leader();
    group.servers[leader].take().unwrap().stop().unwrap();
    add(&client);
    group.servers[leader] = Some(group.start(leader));
    add(&client);
    assert_eq!(count(&client), 3);
    // One that follows passes on what it is asked to write.
    let follower = (group.leader() + 1) % 3;
    let read_from = ReadFrom::Address(group.members[follower].1.clone());
    let config = ClientConfig { read_from, ..ClientConfig::default() };
    let reader = Client::connect_with(group.addresses(), config).unwrap();
    add(&reader);
    assert_eq!(count(&reader), 4);
    let taken = group._dir.path().join("backup");
    crate::backup::backup(&crate::backup::Source::Server(group.addresses()), &taken, |_| ()).unwrap();
}

#[test]
fn sealed_member_joins_and_takes_a_copy() {
    let mut group = Groups::with(1, Some(Authority::new()));
    let (client, mut blobs) = (group.client(), Blobs::default());
    add(&client);
    // More than the log of the first keeps.
    blobs.write(&client, 40);
    let joined = group.join();
    group.goes_on_with_copy(joined);
    group.vote(joined);
    group.change(Change::Lead, joined);
    until(|| (group.leader() == joined).then_some(()));
    blobs.are_all_there(&group.client());
    add(&client);
    assert_eq!(count(&client), 2);
}

/// It has the secret, and a certificate of the same authority.
#[test]
fn member_of_another_group_cannot_join() {
    let group = Groups::with(3, Some(Authority::new()));
    let leader = group.leader();
    add(&group.client());
    let away = (leader + 1) % 3;
    let mut group = group;
    group.servers[away].take().unwrap().stop().unwrap();
    let tls = group.authority.as_ref().unwrap().tls("tercel://dollars/member/1");
    let (dir, address) = group.members[away].clone();
    let server = Server::builder(&dir).listen(address.clone()).tls(tls.clone()).start().unwrap();
    until(|| {
        let health = health_of(group.address(away), WITHIN).ok()?;
        health.reason.contains("of another group by its certificate").then_some(())
    });
    // As a client it is let in.
    let client = Client::builder().tls(tls).connect(&group.members[group.leader()].1).unwrap();
    assert_eq!(count(&client), 1);
    server.stop().unwrap();
}
