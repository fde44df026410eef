//! A group of servers in this process, over TCP.

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Instant;

use super::*;
use crate::{Addresses, Client, Server, ServerConfig};

struct Groups {
    _dir: tempfile::TempDir,
    members: Vec<(PathBuf, Address)>,
    servers: Vec<Option<Server>>,
}

impl Groups {
    fn of(n: usize) -> Groups {
        let dir = tempfile::tempdir().unwrap();
        // Ports that are free: each is taken again a moment later.
        let listeners: Vec<TcpListener> = (0..n).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses = listeners.iter().map(|l| Address::from(l.local_addr().unwrap()));
        let members: Vec<_> = (0..n).map(|i| dir.path().join(i.to_string())).zip(addresses).collect();
        drop(listeners);
        let of: Vec<(&Path, Address)> = members.iter().map(|(dir, at)| (dir.as_path(), at.clone())).collect();
        form(&of).unwrap();
        let mut groups = Groups { _dir: dir, members, servers: Vec::new() };
        groups.servers = (0..n).map(|i| Some(groups.start(i))).collect();
        groups
    }

    fn start(&self, i: usize) -> Server {
        let (dir, address) = &self.members[i];
        let config = ServerConfig { listen: vec![address.clone()], ..ServerConfig::new(dir) };
        Server::start(config).unwrap()
    }

    /// A client that was told of one member alone.
    fn client_of(&self, i: usize) -> Client {
        Client::connect(&self.members[i].1).unwrap()
    }

    fn client(&self) -> Client {
        let all: Vec<String> = self.members.iter().map(|(_, at)| at.to_string()).collect();
        Client::connect(all.join(",").parse::<Addresses>().unwrap()).unwrap()
    }
}

#[derive(tercel_derive::Object)]
struct Counter {
    count: i64,
}

fn count(client: &Client) -> i64 {
    client.run(|tx| tx.find_root::<Counter>("counter")?.map_or(Ok(0), |counter| Ok(counter.count()))).unwrap()
}

fn add(client: &Client) {
    client
        .run(|tx| match tx.find_root::<Counter>("counter")? {
            Some(counter) => {
                let count = counter.count();
                counter.edit()?.set_count(count + 1)
            }
            None => {
                let counter = tx.create(&Counter { count: 1 })?;
                tx.set_root("counter", counter)
            }
        })
        .unwrap();
}

#[test]
fn commits_go_on_when_any_member_is_stopped() {
    let mut group = Groups::of(3);
    let client = group.client();
    let mut made = 0;
    for i in 0..3 {
        for _ in 0..20 {
            add(&client);
            made += 1;
        }
        let begun = Instant::now();
        group.servers[i].take().unwrap().stop().unwrap();
        add(&client);
        made += 1;
        println!("a commit after the end of a member: {:?}", begun.elapsed());
        assert_eq!(count(&client), made);
        group.servers[i] = Some(group.start(i));
    }
}

#[test]
fn one_address_reaches_the_whole_group() {
    let mut group = Groups::of(3);
    let clients: Vec<Client> = (0..3).map(|i| group.client_of(i)).collect();
    clients.iter().for_each(add);
    for i in 0..3 {
        group.servers[i].take().unwrap().stop().unwrap();
        // Also the client that was told of this member alone.
        clients.iter().for_each(add);
        group.servers[i] = Some(group.start(i));
    }
    assert_eq!(count(&clients[0]), 12);
}
