//! Archives of one space.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tercel::backup::stream::Tap;
use tercel::{Address, Client, Object, Ref, Server, ServerConfig, Stamp};
use tercel_archive::catalogue::{ArchiveError, Catalogue};
use tercel_archive::config::Config;
use tercel_archive::copy::copy;
use tercel_archive::head::{HEAD, Head, ends_in};
use tercel_archive::moment::{read_time, time_text};
use tercel_archive::restore::{Until, outlook, restore};
use tercel_archive::store::{Store, StoreError};
use tercel_archive::writer::{Status, Writer};

use crate::around::{Around, Changed};
use crate::failing::{Failing, Fails};
use crate::place::{Place, in_each_store};

#[derive(Object)]
pub struct Count {
    count: u64,
}

/// A served space with a counter, and its client.
pub struct Counting {
    pub server: Server,
    client: Client,
    pub counter: Ref<Count>,
    /// The stamp of each commit, with the count from then on.
    pub model: Vec<(Stamp, u64)>,
}

impl Counting {
    pub fn begin(dir: &Path, log_bytes_max: u64) -> Counting {
        let socket = Address::Unix(dir.with_extension("socket"));
        let builder = Server::builder(dir).listen(socket.clone()).log_bytes_max(log_bytes_max);
        // The log goes soon behind what is in the pages.
        let builder = builder.mob_bytes(8 << 20);
        let server = builder.start().unwrap();
        let client = Client::connect(socket).unwrap();
        let counter = client.run(|tx| {
            let counter = tx.create(&Count { count: 0 })?;
            tx.set_root("counter", counter).map(|()| counter)
        });
        Counting { server, counter: counter.unwrap(), client, model: Vec::new() }
    }

    /// Serves a space that was restored up to the last count of a model.
    pub fn restored(dir: &Path, counter: Ref<Count>, model: Vec<(Stamp, u64)>) -> Counting {
        Counting::served(ServerConfig::new(dir), counter, model)
    }

    /// Serves a space that has counted so far.
    pub fn served(config: ServerConfig, counter: Ref<Count>, model: Vec<(Stamp, u64)>) -> Counting {
        let socket = Address::Unix(config.dir.with_extension("socket"));
        let server = Server::start(ServerConfig { listen: vec![socket.clone()], ..config }).unwrap();
        let client = Client::connect(socket).unwrap();
        Counting { server, client, counter, model }
    }

    /// Ends the server. Gives what a restored space is served with.
    pub fn stop(self) -> (Ref<Count>, Vec<(Stamp, u64)>) {
        drop(self.client);
        self.server.stop().unwrap();
        (self.counter, self.model)
    }

    pub fn count(&mut self, times: u64) {
        for _ in 0..times {
            let count = self.model.last().map_or(1, |(_, count)| count + 1);
            let tx = self.client.transaction().begin().unwrap();
            tx.edit(self.counter).unwrap().set_count(count).unwrap();
            self.model.push((tx.commit().unwrap().stamp, count));
        }
    }

    /// Bytes that fill the log.
    pub fn fill(&mut self, megabytes: usize) {
        for _ in 0..megabytes * 20 {
            self.client
                .run(|tx| (0..50).try_for_each(|_| tx.create(&Large { all: [7; 1_000] }).map(drop)))
                .unwrap();
        }
        self.count(1);
    }

    pub fn archive(&self, store: &Arc<dyn Store>) -> Writer {
        Writer::start(Tap::of(&self.server), self.server.space(), store.clone(), quick()).unwrap()
    }

    pub fn last(&self) -> (Stamp, u64) {
        *self.model.last().unwrap()
    }

    /// The count at a stamp.
    pub fn at(&self, stamp: Stamp) -> u64 {
        let known = self.model.iter().take_while(|(at, _)| *at <= stamp);
        known.last().map_or(0, |(_, count)| *count)
    }
}

#[derive(Object)]
struct Large {
    all: [u8; 1_000],
}

/// Moments of one archive that are compared with the model.
const RESTORES: u64 = 100;

pub fn quick() -> Config {
    Config { every: Duration::from_millis(30), ..Config::default() }
}

/// Waits until a writer says so.
pub fn until(writer: &Writer, is_so: impl Fn(&Status) -> bool) -> Status {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let status = writer.status();
        if is_so(&status) {
            return status;
        }
        assert!(Instant::now() < end, "{status:?}");
        std::thread::yield_now();
    }
}

pub fn archived(writer: &Writer, (stamp, _): (Stamp, u64)) {
    until(writer, |status| status.stamp >= stamp.0);
}

/// The count in a space that is restored up to somewhere.
pub fn restored(store: &dyn Store, upto: Until, dir: &Path) -> Result<u64, ArchiveError> {
    restore(&Catalogue::open(store)?, upto, dir, &mut |_, _, _| ())?;
    let client = tercel::embedded(dir).unwrap();
    let count = client.run(|tx| Ok(tx.get_root::<Count>("counter")?.count())).unwrap();
    client.close().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
    Ok(count)
}

fn restored_stamps_equal_the_model(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    let store = place.store("archive");
    let writer = space.archive(&store);
    until(&writer, |status| status.bases > 0);
    let begins = Catalogue::open(&*store).unwrap().head.bases[0].stamp;
    for _ in 0..10 {
        space.count(30);
        archived(&writer, space.last());
    }
    let status = writer.stop();
    assert!(status.objects >= 10 && status.gaps == 0, "{status:?}");
    assert_eq!(Catalogue::open(&*store).unwrap().verify(|_| ()).unwrap().wrong, Vec::<String>::new());
    let ends = space.last().0.0;
    for n in 0..RESTORES {
        // All over the range, in no order.
        let stamp = Stamp(begins + n * 7_919 % (ends - begins + 1));
        let count = restored(&*store, Until::Stamp(stamp), &dir.join("restored")).unwrap();
        assert_eq!(count, space.at(stamp), "at {stamp}");
    }
    let beyond = restored(&*store, Until::Stamp(Stamp(ends + 1_000)), &dir.join("restored"));
    assert!(matches!(beyond, Err(ArchiveError::NotThere(_))), "{beyond:?}");
}

fn moments_are_gone_back_to(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    let store = place.store("archive");
    let writer = space.archive(&store);
    until(&writer, |status| status.bases > 0);
    let mut moments = Vec::new();
    for _ in 0..5 {
        space.count(7);
        archived(&writer, space.last());
        moments.push((writer.status().upto_ms, space.last().1));
    }
    writer.stop();
    for (ms, count) in moments {
        let found = restored(&*store, Until::Moment(ms), &dir.join("restored")).unwrap();
        assert_eq!(found, count);
    }
    // The second that `archive list` shows is taken whole, and the next one is not there.
    let upto = Head::read(&*store).unwrap().unwrap().0.upto_ms;
    let shown = read_time(&time_text(upto)).unwrap();
    let found = restored(&*store, Until::Moment(shown), &dir.join("restored")).unwrap();
    assert_eq!(found, space.last().1);
    for ms in [shown + 1, u64::MAX] {
        let later = restored(&*store, Until::Moment(ms), &dir.join("restored"));
        assert!(matches!(&later, Err(ArchiveError::NotThere(why)) if why.contains("up to")), "{later:?}");
    }
}

fn writer_lost_at_every_store_call(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    for fails in [Fails::Before, Fails::After] {
        for calls in 1..14 {
            let whole = place.store(&format!("archive{fails:?}{calls}"));
            let failing = Arc::new(Failing::new(whole.clone(), calls, fails));
            let lost: Arc<dyn Store> = failing.clone();
            let writer = space.archive(&lost);
            while !failing.has_failed() {
                space.count(1);
                std::thread::yield_now();
            }
            until(&writer, |status| status.trouble.is_some() || status.ended.is_some());
            drop(writer);
            space.count(3);
            let writer = space.archive(&whole);
            space.count(3);
            archived(&writer, space.last());
            let status = writer.stop();
            assert!(status.gaps == 0 && status.ended.is_none(), "{fails:?} at call {calls}: {status:?}");
            let verified = Catalogue::open(&*whole).unwrap().verify(|_| ()).unwrap();
            assert_eq!(verified.wrong, Vec::<String>::new(), "{fails:?} at call {calls}");
            let count = restored(&*whole, Until::End, &dir.join("restored")).unwrap();
            assert_eq!(count, space.last().1, "{fails:?} at call {calls}");
        }
    }
}

fn store_that_comes_back_is_caught_up_with(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    let whole = place.store("archive");
    let failing = Arc::new(Failing::new(whole.clone(), 8, Fails::After));
    let away: Arc<dyn Store> = failing.clone();
    let writer = space.archive(&away);
    while !failing.has_failed() {
        space.count(1);
    }
    // Commits go on.
    space.count(200);
    let trouble = until(&writer, |status| status.trouble.is_some()).trouble.unwrap();
    assert!(trouble.1.contains("it is away"), "{trouble:?}");
    let warns = || {
        let health = space.client.health(Duration::from_secs(10)).unwrap();
        health.reason.contains("does not get on")
    };
    let end = Instant::now() + Duration::from_secs(60);
    while !warns() {
        assert!(Instant::now() < end, "the server's health does not tell of the archive");
    }
    failing.mend();
    archived(&writer, space.last());
    while warns() {
        assert!(Instant::now() < end, "the server's health goes on telling of the archive");
    }
    let status = writer.stop();
    assert!(status.gaps == 0 && status.trouble.is_none(), "{status:?}");
    assert_eq!(restored(&*whole, Until::End, &dir.join("restored")).unwrap(), space.last().1);
}

fn gap_is_told_and_not_bridged(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), 32 << 20);
    let store = place.store("archive");
    let writer = space.archive(&store);
    until(&writer, |status| status.bases > 0);
    space.count(5);
    archived(&writer, space.last());
    writer.stop();
    let before = space.last();
    // Nobody reads the log, so it goes once it is in the pages.
    space.fill(48);
    let writer = space.archive(&store);
    let status = until(&writer, |status| status.gaps == 1 && status.bases == 1);
    assert!(status.ended.is_none(), "{status:?}");
    space.count(3);
    archived(&writer, space.last());
    writer.stop();
    let within = restored(&*store, Until::Stamp(Stamp(before.0.0 + 10)), &dir.join("restored"));
    assert!(matches!(&within, Err(ArchiveError::NotThere(why)) if why.contains("gap")), "{within:?}");
    let head = Catalogue::open(&*store).unwrap().head;
    let (from, base) = (head.gaps[0].from_ms.unwrap(), head.bases.last().unwrap().ms);
    for ms in [from + 1, base - 1] {
        let during = restored(&*store, Until::Moment(ms), &dir.join("restored"));
        let is_told = |why: &str| why.contains("is in a gap: the archive has no commits");
        assert!(matches!(&during, Err(ArchiveError::NotThere(why)) if is_told(why)), "{during:?}");
    }
    for until in [Until::Moment(from), Until::Stamp(before.0)] {
        assert_eq!(restored(&*store, until, &dir.join("restored")).unwrap(), before.1);
    }
    assert_eq!(restored(&*store, Until::End, &dir.join("restored")).unwrap(), space.last().1);
}

fn of_two_writers_one_stops_by_name(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    let store = place.store("archive");
    let named = |name: &str| Config { name: name.into(), ..quick() };
    let begin = |space: &Counting, name: &str| {
        Writer::start(Tap::of(&space.server), space.server.space(), store.clone(), named(name)).unwrap()
    };
    let (one, two) = (begin(&space, "one"), begin(&space, "two"));
    let end = Instant::now() + Duration::from_secs(120);
    let ended = loop {
        space.count(1);
        let ended = (one.status().ended, two.status().ended);
        if ended.0.is_some() || ended.1.is_some() {
            break ended;
        }
        assert!(Instant::now() < end);
    };
    let (other, left) = if ended.0.is_some() { ("two", &two) } else { ("one", &one) };
    let why = ended.0.clone().or(ended.1.clone()).unwrap();
    assert!(why.contains(&format!("written by {other}")), "{why}");
    archived(left, space.last());
    assert_eq!(left.status().ended, None);
    drop((one, two));
    assert_eq!(restored(&*store, Until::End, &dir.join("restored")).unwrap(), space.last().1);

    // Another space has another place.
    let stranger = Counting::begin(&dir.join("stranger"), 1 << 30);
    let refused = Writer::start(Tap::of(&stranger.server), stranger.server.space(), store.clone(), quick());
    let why = refused.err().unwrap().to_string();
    assert!(why.contains(&format!("written by {other}")), "{why}");
}

/// A store in which an older writer changes the head once, just before the first swap of it.
struct Meddled(Arc<dyn Store>, AtomicBool);

impl Around for Meddled {
    fn store(&self) -> &dyn Store {
        &*self.0
    }
    fn swap(&self, name: &str, old: Option<&[u8]>, new: &[u8]) -> Result<bool, StoreError> {
        if !self.1.swap(true, SeqCst) {
            let (mut head, bytes) = Head::read(&*self.0)?.unwrap();
            head.upto_ms += 1;
            assert!(self.0.swap(HEAD, Some(&bytes), &head.to_bytes())?);
        }
        self.0.swap(name, old, new)
    }
}

/// The leader before has written once more while this one came: that ends no writer.
fn writer_takes_over_from_an_earlier_view(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    let store = place.store("archive");
    let writer = space.archive(&store);
    space.count(1);
    archived(&writer, space.last());
    writer.stop();
    let (mut head, bytes) = Head::read(&*store).unwrap().unwrap();
    (head.view.0, head.owner, head.writer) = (head.view.0 - 1, "another".into(), "the one before".into());
    assert!(store.swap(HEAD, Some(&bytes), &head.to_bytes()).unwrap());

    let meddled = Arc::new(Changed(Meddled(store.clone(), AtomicBool::new(false))));
    let through: Arc<dyn Store> = meddled.clone();
    let writer = space.archive(&through);
    space.count(1);
    let last = space.last().0.0;
    let status = until(&writer, |status| status.ended.is_some() || status.stamp >= last);
    assert!(status.ended.is_none() && meddled.0.1.load(SeqCst), "{status:?}");
}

/// Two servers of one space: the one whose view is older says so, and does not call it a wait.
fn writer_of_another_copy_is_told(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    let store = place.store("archive");
    let writer = space.archive(&store);
    space.count(1);
    archived(&writer, space.last());
    writer.stop();
    let (mut head, bytes) = Head::read(&*store).unwrap().unwrap();
    (head.view.0, head.owner, head.writer) = (head.view.0 + 1, "another".into(), "the copy".into());
    assert!(store.swap(HEAD, Some(&bytes), &head.to_bytes()).unwrap());

    let writer = space.archive(&store);
    let status = until(&writer, |status| status.trouble.is_some());
    let (_, why) = status.trouble.clone().unwrap();
    assert!(
        why.contains("written by the copy")
            && why.contains("another copy of the space")
            && why.contains("tercel archive take"),
        "{why}"
    );
    assert_eq!((status.waits, status.ended), (None, None));
}

fn every_flipped_object_is_found(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    let store = place.store("archive");
    let writer = space.archive(&store);
    for _ in 0..4 {
        space.count(5);
        archived(&writer, space.last());
    }
    writer.stop();
    let copied = place.store("copied");
    let objects = copy(&*store, &*copied, |_| ()).unwrap().written;
    assert_eq!(copy(&*store, &*copied, |_| ()).unwrap().written, 0, "a copy is gone on with");
    assert_eq!(restored(&*copied, Until::End, &dir.join("restored")).unwrap(), space.last().1);
    let names = copied.list("").unwrap();
    assert!(names.len() as u64 == objects + 1 && objects > 5, "{names:?}");
    let verify = || Catalogue::open(&*copied)?.verify(|_| ());
    for name in names.clone() {
        let bytes = copied.get(&name).unwrap().unwrap();
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            place.set("copied", &name, Some(&flipped));
            match verify() {
                Ok(verified) => assert!(verified.wrong.iter().any(|why| why.contains(&name)), "{verified:?}"),
                Err(why) => assert_eq!(name, "head", "{why}"),
            }
        }
        if [names.first(), names.last()].contains(&Some(&name)) {
            copies_all_but(place, &*copied, &name, &names);
        }
        place.set("copied", &name, None);
        assert!(verify().map_or(true, |verified| !verified.wrong.is_empty()), "{name} is missing");
        place.set("copied", &name, Some(&bytes));
        assert_eq!(verify().unwrap().wrong, Vec::<String>::new());
    }
}

/// Several objects are damaged or cannot be read: each of them is named, and all others are copied. A
/// damaged base keeps nobody from what the one before it and the log have.
fn several_damaged_objects_are_named_and_gone_round(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    let store = place.store("archive");
    let config = Config { base_every: Duration::from_millis(1), ..quick() };
    let writer = Writer::start(Tap::of(&space.server), space.server.space(), store.clone(), config).unwrap();
    for bases in 1..4 {
        for _ in 0..5 {
            space.count(1);
            archived(&writer, space.last());
        }
        until(&writer, |status| status.bases >= bases);
    }
    writer.stop();
    let head = Catalogue::open(&*store).unwrap().head;
    let (newest, before) = (head.bases.last().unwrap(), &head.bases[head.bases.len() - 2]);
    let pieces = store.list(&tercel_archive::head::base_begin(newest.stamp, newest.ms)).unwrap();
    place.set("archive", &pieces[0], None);
    let made =
        restore(&Catalogue::open(&*store).unwrap(), Until::End, &dir.join("restored"), &mut |_, _, _| ());
    let made = made.unwrap();
    assert_eq!(made.base.0, before.stamp);
    assert!(made.damaged.len() == 1 && made.damaged[0].contains(&pieces[0]), "{:?}", made.damaged);
    let (seen, _) = outlook(&Catalogue::open(&*store).unwrap(), Until::End, &mut |_, _, _| ()).unwrap();
    assert_eq!(seen.plan.base.stamp, before.stamp);
    std::fs::remove_dir_all(dir.join("restored")).unwrap();
    assert_eq!(restored(&*store, Until::End, &dir.join("restored")).unwrap(), space.last().1);

    let logs = store.list("log/").unwrap();
    // A copy that has decayed is mended by the next one.
    let kept = place.store("kept");
    copy(&*store, &*kept, |_| ()).unwrap();
    let decayed = vec![logs[1].clone(), logs[2].clone()];
    decayed.iter().for_each(|name| place.set("kept", name, Some(b"no object")));
    let copied = copy(&*store, &*kept, |_| ()).unwrap();
    assert_eq!((copied.written, copied.mended), (2, decayed));
    let wrong = Catalogue::open(&*kept).unwrap().verify(|_| ()).unwrap().wrong;
    assert!(!wrong.iter().any(|told| told.contains("log/")), "{wrong:?}");

    let damaged = [&logs[0], &logs[1], logs.last().unwrap()];
    damaged.iter().for_each(|name| place.set("archive", name, Some(b"no object")));
    let wrong = Catalogue::open(&*store).unwrap().verify(|_| ()).unwrap().wrong;
    let to = place.store("copied");
    let left_out = copy(&*store, &*to, |_| ()).unwrap().wrong;
    for name in damaged.into_iter().chain([&pieces[0]]) {
        let is_named = |told: &[String]| told.iter().any(|told| told.contains(name.as_str()));
        assert!(is_named(&wrong) && is_named(&left_out), "{name}: {wrong:?} {left_out:?}");
        assert_eq!(to.get(name).unwrap(), None);
    }
    assert_eq!(to.list("").unwrap().len(), store.list("").unwrap().len() - damaged.len());

    // Missing objects are named, too: here one, four that follow, and one.
    assert!(logs.len() > 12, "{logs:?}");
    let missing = [&logs[4], &logs[6], &logs[7], &logs[8], &logs[9], &logs[11]];
    missing.iter().for_each(|name| place.set("archive", name, None));
    let wrong = Catalogue::open(&*store).unwrap().verify(|_| ()).unwrap().wrong;
    for (first, last) in [(4, 4), (6, 9), (11, 11)] {
        let ((first, _), (_, last)) = (ends_in(&logs[first]).unwrap(), ends_in(&logs[last]).unwrap());
        let name = format!("{first:020}-{last:020} in ");
        assert!(wrong.iter().any(|told| told.contains(&name)), "{name}: {wrong:?}");
    }
}

/// The store has an object that nobody can read.
#[test]
fn object_that_cannot_be_read_is_named() {
    let (dir, place) = (tempfile::tempdir().unwrap(), crate::place::directories());
    let mut space = Counting::begin(&dir.path().join("space"), 1 << 30);
    let store = place.store("archive");
    let writer = space.archive(&store);
    for _ in 0..3 {
        space.count(5);
        archived(&writer, space.last());
    }
    writer.stop();
    let logs = store.list("log/").unwrap();
    let path = place.path().join("archive").join(&logs[1]);
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&path, &path).unwrap();
    let wrong = Catalogue::open(&*store).unwrap().verify(|_| ()).unwrap().wrong;
    assert!(
        wrong.iter().any(|told| told.contains(&logs[1]) && told.contains("can be restored")),
        "{wrong:?}"
    );
    let to = place.store("copied");
    assert!(copy(&*store, &*to, |_| ()).unwrap().wrong.iter().any(|told| told.contains(&logs[1])));
    let rest: Vec<String> = logs.iter().filter(|name| **name != logs[1]).cloned().collect();
    assert_eq!(to.list("log/").unwrap(), rest);
}

/// An archive of which one object is damaged is copied without that one, and its copy is gone on with.
fn copies_all_but(place: &dyn Place, damaged: &dyn Store, name: &str, names: &[String]) {
    let to = place.store(&format!("without {}", name.replace('/', "-")));
    for _ in 0..2 {
        let wrong = copy(damaged, &*to, |_| ()).unwrap().wrong;
        assert!(wrong.len() == 1 && wrong[0].contains(name), "{wrong:?}");
        let rest: Vec<String> = names.iter().filter(|other| *other != name).cloned().collect();
        assert_eq!(to.list("").unwrap(), rest);
    }
}

fn archive_goes_on_over_a_restart(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    let store = place.store("archive");
    let writer = space.archive(&store);
    space.count(9);
    archived(&writer, space.last());
    writer.stop();
    space.count(9);
    let (model, counter) = (space.model.clone(), space.counter);
    drop(space.client);
    space.server.stop().unwrap();
    let socket = Address::Unix(dir.join("space.socket"));
    let server = Server::builder(dir.join("space")).listen(socket.clone()).start().unwrap();
    let client = Client::connect(socket).unwrap();
    let mut space = Counting { server, client, counter, model };
    let writer = space.archive(&store);
    space.count(9);
    archived(&writer, space.last());
    let status = writer.stop();
    // A clean stop has installed everything, and its log may be gone: then that is told.
    let verified = Catalogue::open(&*store).unwrap().verify(|_| ()).unwrap();
    assert_eq!(verified.wrong, Vec::<String>::new(), "{status:?}");
    assert_eq!(restored(&*store, Until::End, &dir.join("restored")).unwrap(), 27);
}

fn what_is_older_than_kept_is_removed(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    let store = place.store("archive");
    let config = Config { keep: Duration::ZERO, base_every: Duration::from_millis(1), ..quick() };
    let tap = Tap::of(&space.server);
    let writer = Writer::start(tap, space.server.space(), store.clone(), config).unwrap();
    until(&writer, |status| status.bases > 0);
    space.count(1);
    let first = space.last().0;
    for bases in 2..6 {
        space.count(5);
        archived(&writer, space.last());
        until(&writer, |status| status.bases >= bases);
    }
    writer.stop();
    let archive = Catalogue::open(&*store).unwrap();
    assert!(archive.head.bases.len() < 3 && archive.head.runs.len() < 3, "{:?}", archive.head);
    assert_eq!(archive.verify(|_| ()).unwrap().wrong, Vec::<String>::new());
    assert_eq!(restored(&*store, Until::End, &dir.join("restored")).unwrap(), space.last().1);
    let gone = restored(&*store, Until::Stamp(first), &dir.join("restored"));
    assert!(matches!(&gone, Err(ArchiveError::NotThere(why)) if why.contains("begins")), "{gone:?}");
}

fn copies_keep_what_an_archive_removes(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut space = Counting::begin(&dir.join("space"), 1 << 30);
    let (store, often, late) = (place.store("archive"), place.store("often"), place.store("late"));
    let copy_to = |to: &Arc<dyn Store>| {
        assert_eq!(copy(&*store, &**to, |_| ()).unwrap().wrong, Vec::<String>::new());
    };
    for round in 0..4 {
        let writer = space.archive(&store);
        until(&writer, |status| status.bases > 0 || status.stamp > 0);
        space.count(5);
        archived(&writer, space.last());
        writer.stop();
        copy_to(&often);
        if round == 0 {
            copy_to(&late);
        }
        // Everything is old.
        let config = Config { keep: Duration::ZERO, base_every: Duration::from_millis(1), ..quick() };
        let tap = Tap::of(&space.server);
        let writer = Writer::start(tap, space.server.space(), store.clone(), config).unwrap();
        until(&writer, |status| status.bases > 0);
        writer.stop();
    }
    let first = space.model[0].0;
    let gone = restored(&*store, Until::Stamp(first), &dir.join("restored"));
    assert!(gone.is_err(), "{gone:?}");
    [&often, &late].into_iter().for_each(copy_to);
    for (to, gaps) in [(&often, 0), (&late, 1)] {
        let copied = Catalogue::open(&**to).unwrap();
        assert_eq!(copied.verify(|_| ()).unwrap().wrong, Vec::<String>::new());
        assert_eq!(copied.head.gaps.len(), gaps, "{:?}", copied.head);
        assert_eq!(restored(&**to, Until::Stamp(first), &dir.join("restored")).unwrap(), 1);
        assert_eq!(restored(&**to, Until::End, &dir.join("restored")).unwrap(), space.last().1);
        assert_eq!(copy(&*store, &**to, |_| ()).unwrap().written, 0);
    }
    for (stamp, count) in &space.model {
        assert_eq!(restored(&*often, Until::Stamp(*stamp), &dir.join("restored")).unwrap(), *count);
    }
}

fn copy_onto_a_newer_archive_is_refused(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let mut space = Counting::begin(&dir.path().join("space"), 1 << 30);
    let (store, early, late) = (place.store("archive"), place.store("early"), place.store("late"));
    let mut go_on = |to: &Arc<dyn Store>| {
        let writer = space.archive(&store);
        until(&writer, |status| status.bases > 0 || status.stamp > 0);
        space.count(5);
        archived(&writer, space.last());
        writer.stop();
        copy(&*store, &**to, |_| ()).unwrap();
    };
    go_on(&early);
    go_on(&late);
    let newer = late.get(HEAD).unwrap();
    let refused = copy(&*early, &*late, |_| ());
    let why = refused.err().map(|why| why.to_string()).unwrap_or_default();
    assert!(why.contains(&late.url()) && why.contains("no beginning"), "{why}");
    assert_eq!(late.get(HEAD).unwrap(), newer);
    assert!(copy(&*late, &*early, |_| ()).unwrap().written > 0, "a beginning is gone on with");
    assert_eq!(early.get(HEAD).unwrap(), newer);
}

in_each_store!(
    copies_keep_what_an_archive_removes,
    copy_onto_a_newer_archive_is_refused,
    restored_stamps_equal_the_model,
    moments_are_gone_back_to,
    writer_lost_at_every_store_call,
    store_that_comes_back_is_caught_up_with,
    gap_is_told_and_not_bridged,
    of_two_writers_one_stops_by_name,
    writer_takes_over_from_an_earlier_view,
    writer_of_another_copy_is_told,
    every_flipped_object_is_found,
    several_damaged_objects_are_named_and_gone_round,
    archive_goes_on_over_a_restart,
    what_is_older_than_kept_is_removed,
);
