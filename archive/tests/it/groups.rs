//! Archives of groups: each member has a writer, and that of the leader writes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tercel::backup::stream::Tap;
use tercel::group::{Change, change, form, status_of};
use tercel::{Address, Addresses, Client, Object, Server};
use tercel_archive::catalogue::Catalogue;
use tercel_archive::config::Config;
use tercel_archive::head::{HEAD, Head};
use tercel_archive::memory::{MEMORY, archived_upto};
use tercel_archive::restore::{Until, restore};
use tercel_archive::store::Store;
use tercel_archive::writer::Writer;

use crate::failing::{Failing, Fails};
use crate::place::{Place, directories, in_each_store};

#[derive(Object)]
struct Count {
    count: u64,
}

/// A member and its writer.
struct Member {
    dir: PathBuf,
    at: Address,
    running: Option<(Server, Writer)>,
}

impl Member {
    fn start(&mut self, store: &Arc<dyn Store>) {
        let server = Server::builder(&self.dir).listen(self.at.clone());
        // The log goes soon behind what is in the pages.
        let server = server.mob_bytes(8 << 20).start().unwrap();
        let memory = Some(self.memory());
        let config = Config { every: Duration::from_millis(30), memory, ..Config::default() };
        let writer = Writer::start(Tap::of(&server), server.space(), store.clone(), config).unwrap();
        self.running = Some((server, writer));
    }

    fn memory(&self) -> PathBuf {
        self.dir.join(MEMORY)
    }

    fn stop(&mut self) {
        let (server, writer) = self.running.take().unwrap();
        drop(writer);
        server.stop().unwrap();
    }

    fn status(&self) -> Value {
        serde_json::to_value(status_of(Addresses::from(&self.at), PATIENCE).unwrap()).unwrap()
    }
}

const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until something holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what} does not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Each member leads twice: a writer that was overtaken goes on when its server leads again.
fn archive_goes_on_with_whichever_member_leads(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let store = place.store("archive");
    let name = |i: usize| dir.join(format!("m{i}"));
    let mut members: Vec<Member> = (0..3)
        .map(|i| Member { dir: name(i), at: Address::Unix(name(i).with_extension("socket")), running: None })
        .collect();
    let list: Vec<_> = members.iter().map(|member| (member.dir.as_path(), member.at.clone())).collect();
    form(&list).unwrap();
    members.iter_mut().for_each(|member| member.start(&store));

    let all: Vec<String> = members.iter().map(|member| member.at.to_string()).collect();
    let all: Addresses = all.join(",").parse().unwrap();
    let client = Client::connect(all.clone()).unwrap();
    let counter = client.run(|tx| {
        let counter = tx.create(&Count { count: 0 })?;
        tx.set_root("counter", counter).map(|()| counter)
    });
    let (counter, mut count) = (counter.unwrap(), 0);
    for turn in 0..6 {
        let leader = turn % 3;
        let secret = members[leader].dir.join("secret");
        until("the move of the lead", || {
            change(&all, Change::Lead, &members[leader].at.to_string(), Some(&secret)).is_ok()
        });
        let stamp = {
            count += 1;
            let tx = client.transaction().begin().unwrap();
            tx.edit(counter).unwrap().set_count(count).unwrap();
            tx.commit().unwrap().stamp
        };
        let written = || Head::read(&*store).ok().flatten().and_then(|(head, _)| head.last);
        until("the entry", || written().is_some_and(|last| last.stamp >= stamp.0));
        until("the archive in the leader's status", || {
            members[leader].status()["archive_lag_ms"].as_u64().is_some_and(|ms| ms < 60_000)
        });
        if turn == 4 {
            // One that comes back takes its turn again.
            members[2].stop();
            members[2].start(&store);
        }
    }
    for member in &members {
        let (_, writer) = member.running.as_ref().unwrap();
        assert_eq!(writer.status().ended, None);
    }
    drop(client);
    members.iter_mut().for_each(Member::stop);

    let archive = Catalogue::open(&*store).unwrap();
    assert_eq!(Head::read(&*store).unwrap().unwrap().0.gaps, []);
    restore(&archive, Until::End, &dir.join("restored"), &mut |_, _, _| ()).unwrap();
    let restored = tercel::embedded(dir.join("restored")).unwrap();
    let found = restored.run(|tx| Ok(tx.get_root::<Count>("counter")?.count())).unwrap();
    assert_eq!(found, count);
    restored.close().unwrap();
}

/// Another writer of its view stops a writer by name, and no longer than its server leads that view.
fn displaced_writer_goes_on_with_later_views(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let store = place.store("archive");
    let name = |i: usize| dir.join(format!("m{i}"));
    let mut members: Vec<Member> = (0..3)
        .map(|i| Member { dir: name(i), at: Address::Unix(name(i).with_extension("socket")), running: None })
        .collect();
    let list: Vec<_> = members.iter().map(|member| (member.dir.as_path(), member.at.clone())).collect();
    form(&list).unwrap();
    members.iter_mut().for_each(|member| member.start(&store));
    let all: Vec<String> = members.iter().map(|member| member.at.to_string()).collect();
    let all: Addresses = all.join(",").parse().unwrap();
    let client = Client::connect(all.clone()).unwrap();
    let lead = |leader: usize| {
        let secret = members[leader].dir.join("secret");
        until("the move of the lead", || {
            change(&all, Change::Lead, &members[leader].at.to_string(), Some(&secret)).is_ok()
        });
    };
    let commit = || client.run(|tx| tx.create(&Count { count: 0 }).map(drop)).unwrap();
    let status = |i: usize| members[i].running.as_ref().unwrap().1.status();
    let writes = |i: usize| {
        let before = status(i).objects;
        until("the archive of the leader", || {
            commit();
            status(i).objects > before
        });
    };
    lead(0);
    writes(0);
    // Another writer takes the archive in the same view, as a second process of the member would.
    until("the other writer", || {
        let (mut head, bytes) = Head::read(&*store).unwrap().unwrap();
        (head.owner, head.writer) = ("another".into(), "the other one".into());
        store.swap(HEAD, Some(&bytes), &head.to_bytes()).unwrap()
    });
    until("the end of the writer", || {
        commit();
        status(0).ended.is_some()
    });
    let why = status(0).ended.unwrap();
    assert!(why.contains("written by the other one") && why.contains("a later view"), "{why}");
    lead(1);
    writes(1);
    until("the wait of the writer", || status(0).ended.is_none() && status(0).waits.is_some());
    lead(0);
    writes(0);
    assert_eq!(status(0).ended, None);
    drop(client);
    members.iter_mut().for_each(Member::stop);
    let archive = Catalogue::open(&*store).unwrap();
    assert_eq!(archive.head.gaps, []);
    assert_eq!(archive.verify(|_| ()).unwrap().wrong, Vec::<String>::new());
}

#[derive(Object)]
struct Large {
    all: [u8; 1_000],
}

/// Followers hold the log for the archive as their leader does: one that leads next, when the place of the
/// archive was away, has all of it.
#[test]
fn next_leader_has_what_is_not_archived_yet() {
    let (dir, place) = (tempfile::tempdir().unwrap(), directories());
    let dir = dir.path();
    let whole = place.store("archive");
    let failing = Arc::new(Failing::new(whole.clone(), i64::MAX, Fails::Before));
    let store: Arc<dyn Store> = failing.clone();
    let name = |i: usize| dir.join(format!("m{i}"));
    let mut members: Vec<Member> = (0..3)
        .map(|i| Member { dir: name(i), at: Address::Unix(name(i).with_extension("socket")), running: None })
        .collect();
    let list: Vec<_> = members.iter().map(|member| (member.dir.as_path(), member.at.clone())).collect();
    form(&list).unwrap();
    members.iter_mut().for_each(|member| member.start(&store));
    let all: Vec<String> = members.iter().map(|member| member.at.to_string()).collect();
    let all: Addresses = all.join(",").parse().unwrap();
    let client = Client::connect(all.clone()).unwrap();
    let lead = |leader: usize| {
        let secret = members[leader].dir.join("secret");
        until("the move of the lead", || {
            change(&all, Change::Lead, &members[leader].at.to_string(), Some(&secret)).is_ok()
        });
    };
    let written = || Head::read(&*whole).ok().flatten().and_then(|(head, _)| head.last);
    let commit = || {
        let tx = client.transaction().begin().unwrap();
        (0..50).try_for_each(|_| tx.create(&Large { all: [7; 1_000] }).map(drop)).unwrap();
        tx.commit().unwrap().stamp.0
    };
    let is_archived = |stamp| written().is_some_and(|last| last.stamp >= stamp);
    lead(0);
    let first = commit();
    until("the archive", || is_archived(first));
    let has_seen = |i: usize| archived_upto(&members[i].memory(), &store.url()).is_some();
    until("the archive in the eyes of followers", || has_seen(1) && has_seen(2));
    failing.end();
    let last = (0..40 * 20).fold(0, |_, _| commit());
    lead(1);
    failing.mend();
    until("the archive of the next leader", || is_archived(last));
    drop(client);
    members.iter_mut().for_each(Member::stop);
    let archive = Catalogue::open(&*whole).unwrap();
    assert_eq!(archive.head.gaps, []);
    assert_eq!(archive.verify(|_| ()).unwrap().wrong, Vec::<String>::new());
}

in_each_store!(archive_goes_on_with_whichever_member_leads, displaced_writer_goes_on_with_later_views);
