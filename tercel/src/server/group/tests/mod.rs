//! A group of servers in this process, over TCP.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

mod busy;
mod copies;
mod readers;
mod sealed;
mod stops;

use tercel_testkit::process::until;

use super::*;
use crate::tls::tests::Authority;
use crate::{Addresses, Bytes, Client, HealthState, Network, Ref, Server, ServerConfig};

struct Groups {
    _dir: tempfile::TempDir,
    members: Vec<(PathBuf, Address)>,
    servers: Vec<Option<Server>>,
    keepalive: Option<Duration>,
    /// Who signs the certificates of members and clients, if they have some.
    authority: Option<Authority>,
}

impl Groups {
    fn of(n: usize) -> Groups {
        Groups::with(n, None)
    }

    fn with(n: usize, authority: Option<Authority>) -> Groups {
        let dir = tempfile::tempdir().unwrap();
        // Ports that are free: each is taken again a moment later.
        let listeners: Vec<TcpListener> = (0..n).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses = listeners.iter().map(|l| Address::from(l.local_addr().unwrap()));
        let members: Vec<_> = (0..n).map(|i| dir.path().join(i.to_string())).zip(addresses).collect();
        drop(listeners);
        let of: Vec<(&Path, Address)> = members.iter().map(|(dir, at)| (dir.as_path(), at.clone())).collect();
        form(&of).unwrap();
        let mut groups = Groups { _dir: dir, members, servers: Vec::new(), keepalive: None, authority };
        groups.servers = (0..n).map(|i| Some(groups.start(i))).collect();
        groups
    }

    /// A group of one, which others join.
    fn begun() -> Groups {
        let dir = tempfile::tempdir().unwrap();
        let members = vec![(dir.path().join("0"), free())];
        init(&members[0].0, &members[0].1).unwrap();
        let mut group = Groups { _dir: dir, members, servers: Vec::new(), keepalive: None, authority: None };
        group.servers.push(Some(group.start(0)));
        group
    }

    /// One more member, which learns. Gives its place.
    fn join(&mut self) -> usize {
        let i = self.members.len();
        self.members.push((self._dir.path().join(i.to_string()), free()));
        join(&self.members[i].0, &self.addresses(), &self.members[i].1, Some(&self.secret())).unwrap();
        self.servers.push(Some(self.start(i)));
        i
    }

    /// The secret of a member that is served.
    fn secret(&self) -> PathBuf {
        let at = self.servers.iter().position(Option::is_some).unwrap();
        self.members[at].0.join("secret")
    }

    fn addresses(&self) -> Addresses {
        let all: Vec<String> = self.members.iter().map(|(_, at)| at.to_string()).collect();
        self.sealed(all.join(",").parse().unwrap())
    }

    /// These addresses, with a client's certificate if the group has some.
    fn sealed(&self, at: Addresses) -> Addresses {
        match &self.authority {
            Some(authority) => at.with_tls(authority.client()),
            None => at,
        }
    }

    /// The address of one member.
    fn address(&self, i: usize) -> Addresses {
        self.sealed(self.members[i].1.clone().into())
    }

    fn change(&self, what: Change, i: usize) -> Listed {
        change(&self.addresses(), what, &self.members[i].1.to_string(), None).unwrap()
    }

    /// The place of the member that leads.
    fn leader(&self) -> usize {
        until(|| (0..self.members.len()).find(|i| self.health(*i) == Some(HealthState::Serving)))
    }

    fn health(&self, i: usize) -> Option<HealthState> {
        self.servers[i].as_ref()?;
        Some(health_of(self.address(i), WITHIN).ok()?.state)
    }

    /// Waits until a member has stopped by itself; gives why.
    fn ended(&mut self, i: usize) -> String {
        until(|| health_of(self.address(i), WITHIN).is_err().then_some(()));
        self.servers[i].take().unwrap().stop().unwrap_err().to_string()
    }

    fn start(&self, i: usize) -> Server {
        let (dir, address) = &self.members[i];
        // A log of a few segments, and checkpoints often enough that it becomes shorter.
        let (mob_bytes, log_bytes_max) = (2 << 20, 32 << 20);
        let listen = vec![address.clone()];
        let usual = ServerConfig::new(dir);
        let keepalive = self.keepalive.unwrap_or(usual.keepalive);
        let (methods, services) = (vec![Counter::METHODS], vec![Adder::serve(Sum)]);
        let tls = self.authority.as_ref().map(|authority| authority.member(i));
        let network = Network { tls, ..Network::default() };
        let usual = ServerConfig { network, ..usual };
        let config = ServerConfig { listen, mob_bytes, log_bytes_max, keepalive, methods, services, ..usual };
        Server::start(config).unwrap()
    }

    /// Waits until a member has taken a copy of the space, and starts it again.
    fn goes_on_with_copy(&mut self, i: usize) {
        let why = self.ended(i);
        assert!(why.contains("has a copy of the space now"), "{why}");
        self.servers[i] = Some(self.start(i));
    }

    /// Waits until a member that learns has caught up, and lets it vote.
    fn vote(&self, i: usize) {
        let member = self.members[i].1.to_string();
        until(|| change(&self.addresses(), Change::Vote, &member, None).ok());
    }

    /// A client that was told of one member alone.
    fn client_of(&self, i: usize) -> Client {
        Client::connect(self.address(i)).unwrap()
    }

    fn client(&self) -> Client {
        Client::connect(self.addresses()).unwrap()
    }
}

const WITHIN: Duration = Duration::from_secs(2);

/// An address that is free, and is taken a moment later: below the ports that the system gives to others.
fn free() -> Address {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + std::process::id() as u16 % 4_000;
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % 8_000;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return Address::from(listener.local_addr().unwrap());
        }
    }
}

#[derive(tercel_derive::Object)]
struct Counter {
    count: i64,
}

#[crate::interface]
trait Counting {
    #[read]
    fn now(&self) -> i64;
    fn more(&mut self, n: i64) -> i64;
}

impl Counting for Counter {
    fn now(this: &crate::Obj<Counter>) -> crate::Called<i64> {
        Ok(this.count())
    }

    fn more(this: &crate::Obj<Counter>, n: i64) -> crate::Called<i64> {
        let count = this.count() + n;
        this.edit()?.set_count(count)?;
        Ok(count)
    }
}

#[crate::service]
trait Adder {
    fn add(&self, a: i64, b: i64) -> i64;
    fn hold(&self, ms: u64) -> u64;
}

struct Sum;

impl Adder for Sum {
    fn add(&self, _: &crate::Context<'_>, a: i64, b: i64) -> crate::Called<i64> {
        Ok(a + b)
    }

    /// Work of the loop: nothing else is done there meanwhile.
    fn hold(&self, _: &crate::Context<'_>, ms: u64) -> crate::Called<u64> {
        std::thread::sleep(Duration::from_millis(ms));
        Ok(ms)
    }
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

#[derive(tercel_derive::Object)]
struct Blob {
    data: Bytes,
}

/// Objects that were written, and what is in them.
#[derive(Default)]
struct Blobs(Vec<(Ref<Blob>, Vec<u8>)>);

impl Blobs {
    /// Writes some megabytes.
    fn write(&mut self, client: &Client, megabytes: usize) {
        for _ in 0..8 * megabytes {
            let n = self.0.len();
            let data: Vec<u8> = (0..128 << 10).map(|i| (i * 7 + n * 31 + i / 251) as u8).collect();
            let blob = Blob { data: Bytes::from(data.clone()) };
            self.0.push((client.run(|tx| tx.create(&blob)).unwrap(), data));
        }
    }

    fn are_all_there(&self, client: &Client) {
        for (blob, data) in &self.0 {
            assert!(client.run(|tx| Ok(tx.get(*blob)?.data()?.to_vec())).unwrap() == *data);
        }
    }
}

#[test]
fn member_joins_by_copy_where_log_was_shortened() {
    let mut group = Groups::begun();
    let client = group.client();
    let mut blobs = Blobs::default();
    blobs.write(&client, 40);
    let copied = group.join();
    group.goes_on_with_copy(copied);
    blobs.write(&client, 1);
    group.vote(copied);
    // Everything is there, of before the copy and of after.
    group.change(Change::Lead, copied);
    until(|| (group.leader() == copied).then_some(()));
    blobs.are_all_there(&group.client());
    // It can be fed from again, by a copy and from its log.
    let next = group.join();
    group.goes_on_with_copy(next);
    group.vote(next);
    group.servers[0].take().unwrap().stop().unwrap();
    blobs.write(&client, 1);
    blobs.are_all_there(&group.client());
}

/// Adds to the counter until it is told to stop; gives how often.
fn load(client: Client, stop: Arc<AtomicBool>) -> JoinHandle<i64> {
    std::thread::spawn(move || {
        let mut made = 0;
        while !stop.load(Ordering::Relaxed) {
            add(&client);
            made += 1;
        }
        made
    })
}

#[test]
fn members_that_lagged_or_lost_disks_return() {
    let mut group = Groups::of(3);
    let (client, mut blobs, stop) = (group.client(), Blobs::default(), Arc::new(AtomicBool::new(false)));
    let loading = load(group.client(), stop.clone());
    let leader = group.leader();
    let (lags, wiped) = ((leader + 1) % 3, (leader + 2) % 3);
    group.servers[lags].take().unwrap().stop().unwrap();
    blobs.write(&client, 40);
    group.servers[lags] = Some(group.start(lags));
    group.goes_on_with_copy(lags);
    // It is one of a quorum again, and another one loses its disk.
    let caught_up = |group: &Groups| {
        let status = status_of(&group.members[group.leader()].1, WITHIN).ok()?;
        let group = status.group?;
        (!group.lost && group.members.iter().all(|member| !member.lost)).then_some(())
    };
    until(|| caught_up(&group));
    group.servers[wiped].take().unwrap().stop().unwrap();
    std::fs::remove_dir_all(&group.members[wiped].0).unwrap();
    blobs.write(&client, 1);
    group.change(Change::Remove, wiped);
    let new = group.join();
    group.goes_on_with_copy(new);
    group.vote(new);
    stop.store(true, Ordering::Relaxed);
    let made = loading.join().unwrap();
    for i in [lags, new] {
        until(|| change(&group.addresses(), Change::Lead, &group.members[i].1.to_string(), None).ok());
        until(|| (group.leader() == i).then_some(()));
        let client = group.client();
        blobs.are_all_there(&client);
        assert_eq!(count(&client), made);
    }
}

#[test]
fn rescued_member_begins_group_that_refuses_others() {
    let mut group = Groups::of(3);
    let client = group.client();
    (0..5).for_each(|_| add(&client));
    (0..3).for_each(|i| _ = group.servers[i].take().unwrap().stop());
    let before = log_ends(&group.members[1].0).unwrap();
    assert!(before.is_sure && before.last > Stamp::ZERO && before.stable <= before.last, "{before:?}");
    rescue(&group.members[1].0, None).unwrap();
    assert_eq!(log_ends(&group.members[1].0).unwrap().last, Stamp(before.last.0 + 2));
    group.servers[1] = Some(group.start(1));
    assert_eq!(count(&group.client_of(1)), 5);
    // A client of the time before may know of commits that are lost.
    until(|| match client.run(|tx| tx.find_root::<Counter>("counter").map(drop)) {
        Err(crate::Error::OtherHistory(_)) => Some(()),
        // From its cache, or while it looks for a server.
        Ok(()) | Err(crate::Error::Unavailable(_)) => None,
        Err(told) => panic!("{told}"),
    });
    let client = group.client();
    group.servers[0] = Some(group.start(0));
    until(|| {
        let health = health_of(&group.members[0].1, WITHIN).ok()?;
        health.reason.contains("this server is of group").then_some(())
    });
    group.servers[0] = None;
    let new = group.join();
    group.vote(new);
    add(&client);
    assert_eq!(count(&client), 6);
}

#[test]
fn restored_space_begins_group_that_is_joined() {
    let mut group = Groups::of(3);
    add(&group.client());
    let [taken, restored] = ["taken", "restored"].map(|name| group._dir.path().join(name));
    crate::backup::backup(&crate::backup::Source::Server(group.addresses()), &taken, |_| ()).unwrap();
    group.servers.clear();
    crate::backup::restore(&taken, &restored, |_| ()).unwrap();
    group.members.iter().for_each(|(dir, _)| std::fs::remove_dir_all(dir).unwrap());
    let other = group.members[0].clone();
    group.members = vec![(restored, free())];
    let (dir, address) = group.members[0].clone();
    let refused = form(&[(&dir, address.clone()), (&other.0, other.1)]).unwrap_err();
    assert!(refused.to_string().contains("`tercel group init`") && !other.0.exists(), "{refused}");
    // The process ends once the member's identity is written, and nothing more.
    let me = Member { id: MemberId(9), votes: true, address: address.to_string() };
    open(&dir).unwrap().become_member(5, me.id, Members::new(vec![me]).unwrap()).unwrap();
    assert_eq!(init(&dir, &address).unwrap(), MemberId(9));
    group.servers.push(Some(group.start(0)));
    let client = group.client();
    add(&client);
    // Its log lacks what was restored.
    let new = group.join();
    group.goes_on_with_copy(new);
    group.vote(new);
    group.change(Change::Lead, new);
    until(|| (group.leader() == new).then_some(()));
    assert_eq!(count(&group.client()), 2);
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

#[test]
fn members_say_who_leads_and_who_follows() {
    let group = Groups::of(3);
    let leader = group.leader();
    let at = group.members[leader].1.to_string();
    for i in (0..3).filter(|i| *i != leader) {
        let health = until(|| {
            let health = health_of(&group.members[i].1, WITHIN).unwrap();
            (health.state == HealthState::Following).then_some(health)
        });
        assert_eq!(health.reason, format!("{at} leads, and this member follows"));
        let status = status_of(&group.members[i].1, WITHIN).unwrap();
        let group = status.group.unwrap();
        assert_eq!((group.leads, group.leader.as_ref()), (false, Some(&at)));
    }
    let status = status_of(&group.members[leader].1, WITHIN).unwrap();
    let group = status.group.unwrap();
    assert!(group.leads && group.members.iter().any(|member| member.round_trip_us.is_some()), "{group:?}");
}

#[test]
fn group_of_one_grows_and_loses_its_first() {
    let mut group = Groups::begun();
    let client = group.client();
    (0..20).for_each(|_| add(&client));
    for n in [2, 3] {
        let i = group.join();
        let listed = group.change(Change::Vote, i);
        assert_eq!(listed.iter().filter(|(_, votes, _)| *votes).count(), n);
        add(&client);
    }
    // It has everything from the beginning, and the client has heard of it.
    group.servers[0].take().unwrap().stop().unwrap();
    add(&client);
    assert_eq!(count(&client), 23);
    // The newest list is remembered, not the one that it began with.
    let known = inspect(&group.members[0].0).unwrap().members;
    assert_eq!(known.iter().filter(|(_, votes, _)| *votes).count(), 3);
    // All of them start anew by the lines that they joined with, when nobody answers yet.
    (1..3).for_each(|i| group.servers[i].take().unwrap().stop().unwrap());
    for i in 1..3 {
        join(&group.members[i].0, &group.addresses(), &group.members[i].1, None).unwrap();
    }
    (0..3).for_each(|i| group.servers[i] = Some(group.start(i)));
    group.leader();
    assert_eq!(count(&group.client()), 23);
}

#[test]
fn lead_moves_to_the_member_that_is_named() {
    let group = Groups::of(3);
    let client = group.client();
    for to in [0, 1, 2, 1] {
        add(&client);
        group.change(Change::Lead, to);
        // The one before may not know yet that it does not lead.
        until(|| (group.leader() == to).then_some(()));
    }
    assert_eq!(count(&client), 4);
}

#[test]
fn removed_members_stop_and_say_why() {
    let mut group = Groups::of(5);
    let client = group.client();
    add(&client);
    let leader = group.leader();
    let follower = (leader + 1) % 5;
    assert_eq!(group.change(Change::Remove, follower).len(), 4);
    assert!(group.ended(follower).contains("was removed from its group"));
    // It hands the lead over before it stops.
    assert_eq!(group.change(Change::Remove, leader).len(), 3);
    assert!(group.ended(leader).contains("was removed from its group"));
    add(&client);
    assert_eq!(count(&client), 2);
    // One that was away when it was removed is told by the others.
    let away = until(|| (0..5).find(|i| group.health(*i) == Some(HealthState::Following)));
    group.servers[away].take().unwrap().stop().unwrap();
    assert_eq!(group.change(Change::Remove, away).len(), 2);
    group.servers[away] = Some(group.start(away));
    until(|| {
        let health = health_of(&group.members[away].1, WITHIN).unwrap();
        health.reason.contains("is not on the list of the group").then_some(())
    });
    // The directory of a member that was removed does not come back by itself.
    let (dir, at) = &group.members[follower];
    let refused = join(dir, &group.addresses(), at, None).unwrap_err().to_string();
    assert!(refused.contains("was removed from the group"), "{refused}");
}

#[test]
fn change_that_cannot_be_is_refused() {
    let group = Groups::begun();
    let refused = change(&group.addresses(), Change::Vote, "127.0.0.1:1", None).unwrap_err();
    assert!(refused.to_string().contains("no member of the group"), "{refused}");
    let alone =
        change(&group.addresses(), Change::Remove, &group.members[0].1.to_string(), None).unwrap_err();
    assert!(alone.to_string().contains("the only member that votes"), "{alone}");
}

/// The time for which a connection may leave bytes unanswered, of each that was accepted at a port.
fn accepted_timeouts(port: u16) -> Vec<u32> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let me = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let files = numbers.filter_map(|fd| pidfd_getfd(&me, fd, PidfdGetfdFlags::empty()).ok());
    let accepted = files.filter_map(|file| {
        let stream = std::net::TcpStream::from(file);
        let is_it = stream.local_addr().ok()?.port() == port && stream.peer_addr().is_ok();
        is_it.then(|| rustix::net::sockopt::tcp_user_timeout(&stream).unwrap())
    });
    accepted.collect()
}

#[test]
fn connections_of_members_end_unanswered_at_both_ends() {
    let group = Groups::of(2);
    let Address::Tcp(address) = &group.members[0].1 else { panic!() };
    let port = address.rsplit_once(':').unwrap().1.parse().unwrap();
    // One carries what is said, and one nothing.
    until(|| (accepted_timeouts(port).iter().filter(|ms| **ms == 400).count() >= 2).then_some(()));
    let _client = group.client_of(0);
    until(|| accepted_timeouts(port).contains(&0).then_some(()));
}

/// The last number that there is, as builds before believed it of anyone.
#[test]
fn directory_whose_views_are_used_up_is_rescued() {
    let mut group = Groups::begun();
    let client = group.client();
    (0..5).for_each(|_| add(&client));
    drop(client);
    group.servers[0].take().unwrap().stop().unwrap();
    let (dir, at) = group.members[0].clone();
    let members = {
        let held = open(&dir).unwrap();
        let found = Votes::look(&HeldDir::open(&dir).unwrap(), ViewId::NONE).unwrap();
        let spoiled = ViewId::new(u32::MAX, 7);
        let whole = Whole::recover(&held).unwrap();
        whole.go_on(spoiled, false, &found.members).unwrap();
        let mut votes = held.votes(spoiled, 7).unwrap();
        votes.promise((spoiled, found.electorate));
        votes.save().unwrap();
        found.members
    };
    assert_eq!(members.iter().count(), 1);
    let secret = std::fs::read(dir.join("secret")).unwrap();
    let config = ServerConfig { listen: vec![at.clone()], ..ServerConfig::new(&dir) };
    let Err(why) = Server::start(config) else { panic!("it serves") };
    assert!(
        why.to_string().contains("are used up") && why.to_string().contains("tercel group rescue"),
        "{why}"
    );
    rescue(&dir, Some(&at)).unwrap();
    assert_ne!(std::fs::read(dir.join("secret")).unwrap(), secret, "members of the old group are believed");
    group.servers[0] = Some(group.start(0));
    let client = group.client();
    add(&client);
    assert_eq!(count(&client), 6);
}
