//! Readers of two spaces at a copy of each, on hosts that are cut off from the groups of the spaces: both
//! while leaders are killed, and then that of the causes alone.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tercel::{
    Address, Addresses, Client, ClientConfig, Error, Freshness, Isolation, Object, Options, ReadFrom,
    Session, Spaces, Transport, Tx,
};
use tercel_term::hosts::{Hosts, Link};
use tercel_testkit::ends::Ends;

use crate::common::{Serving, leader, out, tercel, until};

#[derive(Object)]
struct Count {
    count: u64,
}

const SPACES: [&str; 2] = ["causes", "effects"];
const MEMBERS: usize = 3;
const READERS: usize = 2;
/// The host of the readers and of the copy of the causes; that of the effects has the next one.
const NEAR: usize = MEMBERS;
const KEEPALIVE: Duration = Duration::from_millis(400);
/// Two keepalives, a third of a second, and room for a busy machine.
const FAILS_WITHIN: Duration = Duration::from_millis(3_000);

/// The time after which a writer waits for readers no longer.
const WITHIN: Duration = Duration::from_secs(60);

/// The time for which both copies are cut off.
fn cut_for() -> Duration {
    let seconds = std::env::var("TERCEL_TEST_CUT_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(3))
}

/// The addresses of the members of a space, and the socket of its copy.
#[derive(Clone)]
struct Place {
    all: Addresses,
    socket: Address,
}

/// The group of a space, its members on hosts of their own, and the copy near the readers.
struct Group {
    data: Vec<String>,
    ats: Vec<String>,
    members: Vec<Option<Serving>>,
    place: Place,
    _copy: Serving,
}

impl Group {
    fn start(hosts: &Hosts, dir: &Path, space: usize) -> Group {
        let (name, near) = (SPACES[space], NEAR + space);
        let at = |host: usize| format!("10.77.{}.2:{}", host + 1, 7117 + space);
        let ats: Vec<String> = (0..MEMBERS).map(at).collect();
        let path = |what: &str| dir.join(format!("{name}-{what}")).display().to_string();
        let data: Vec<String> = (0..MEMBERS).map(|i| path(&i.to_string())).collect();
        let pairs = data.iter().zip(&ats).map(|(data, at)| format!("{data}={at}"));
        let form: Vec<String> = ["group", "form"].map(String::from).into_iter().chain(pairs).collect();
        out(&tercel(&form.iter().map(String::as_str).collect::<Vec<_>>()));
        let members =
            (0..MEMBERS).map(|i| Some(Serving::of(serve(hosts, i, &data[i], &ats[i]), 0))).collect();
        let socket = path("socket");
        let mut copy = serve(hosts, near, &path("near"), &at(near));
        copy.args(["--listen", &format!("unix:{socket}"), "--follow", &ats.join(",")]);
        copy.args(["--secret", &format!("{}/secret", data[0])]);
        let place = Place { all: ats.join(",").parse().unwrap(), socket: Address::Unix(socket.into()) };
        Group { data, ats, members, place, _copy: Serving::of(copy, 1) }
    }

    /// Kills the member that leads, and gives its number.
    fn kill_leader(&mut self) -> usize {
        let at = leader(&self.ats.join(","));
        let leads = self.ats.iter().position(|other| *other == at).unwrap();
        self.members[leads] = None;
        leads
    }

    fn serve_again(&mut self, hosts: &Hosts, member: usize) {
        let command = serve(hosts, member, &self.data[member], &self.ats[member]);
        self.members[member] = Some(Serving::of(command, 0));
    }
}

fn serve(hosts: &Hosts, host: usize, data: &str, at: &str) -> Command {
    let keepalive = KEEPALIVE.as_millis().to_string();
    let mut command = hosts.of(host).command(env!("CARGO_BIN_EXE_tercel"));
    command.args([
        "serve",
        "--data",
        data,
        "--listen",
        at,
        "--allow-plain-remote",
        "--keepalive",
        &keepalive,
    ]);
    command
}

/// Clients of both spaces, at the leaders or at the copies.
fn connect(places: &[Place; 2], is_near: bool) -> Spaces {
    places.iter().zip(SPACES).fold(Spaces::new(), |spaces, (place, name)| {
        let read_from = if is_near { ReadFrom::Address(place.socket.clone()) } else { ReadFrom::Leader };
        let config = ClientConfig { read_from, ..ClientConfig::default() };
        spaces.with(name, Client::connect_with(place.all.clone(), config).unwrap())
    })
}

/// Clients at the copies, once these have a state to show.
fn near(places: &[Place; 2]) -> Spaces {
    until(|| Some(connect(places, true)).filter(is_near))
}

fn is_near(spaces: &Spaces) -> bool {
    let at_copy = |name| spaces.client(name).unwrap().transport() == Some(Transport::SharedMemory);
    SPACES.into_iter().all(at_copy)
}

fn count(tx: &Tx<'_>, root: &str) -> Result<u64, Error> {
    Ok(tx.get_root::<Count>(root)?.count())
}

/// Counts on in a space; gives the count after that.
fn add(session: &Session<'_>, space: &str, root: &str, options: Options) -> Result<u64, Error> {
    session.space(space)?.with(options).run(|tx| {
        let counter = tx.get_root::<Count>(root)?;
        counter.edit()?.set_count(counter.count() + 1)?;
        Ok(counter.count() + 1)
    })
}

fn read(session: &Session<'_>, space: &str, root: &str, options: impl Into<Options>) -> Result<u64, Error> {
    session.space(space)?.with(options).read(|tx| count(tx, root))
}

/// The course of a run, told to all of its threads.
#[derive(Default)]
struct Course {
    /// By space, whether its copy is cut off.
    cut: [AtomicBool; 2],
    is_over: AtomicBool,
    /// Rounds that were acknowledged.
    written: AtomicU64,
    /// By reader, the rounds that it has seen in both spaces, once it writes no more.
    shown: [AtomicU64; READERS],
    /// By reader, causal reads while both copies were cut off.
    reads: [AtomicU64; READERS],
    /// By reader, causal reads that failed because the causes alone were cut off.
    lacked: [AtomicU64; READERS],
    /// By kind, strict and bounded reads that have failed at a copy that was cut off.
    refused: [AtomicU64; 3],
}

impl Course {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn cut(&self) -> [bool; 2] {
        self.cut.each_ref().map(|is_cut| is_cut.load(Ordering::SeqCst))
    }

    /// Runs `body` while the copies of these spaces are cut off.
    fn cut_off(&self, hosts: &Hosts, spaces: &[usize], body: impl FnOnce()) {
        spaces.iter().for_each(|space| hosts.set(NEAR + space, Link::Cut).unwrap());
        spaces.iter().for_each(|space| self.cut[*space].store(true, Ordering::SeqCst));
        body();
        spaces.iter().for_each(|space| self.cut[*space].store(false, Ordering::SeqCst));
        spaces.iter().for_each(|space| hosts.set(NEAR + space, Link::Whole).unwrap());
    }
}

fn is_each(counts: &[AtomicU64], at_least: u64) -> bool {
    counts.iter().all(|count| count.load(Ordering::SeqCst) >= at_least)
}

/// The newest counts of both spaces that a session has seen, and that of its own objects.
#[derive(Default)]
struct Seen([u64; 2], u64);

impl Seen {
    /// Both counts were read, the effect's first or in one cut.
    fn both(&mut self, [cause, effect]: [u64; 2]) {
        assert!(cause >= effect, "effect {effect} without its cause, which is at {cause}");
        self.one(0, cause);
        self.one(1, effect);
    }

    fn one(&mut self, space: usize, count: u64) {
        assert!(count >= self.0[space], "{} go back from {} to {count}", SPACES[space], self.0[space]);
        self.0[space] = count;
    }
}

/// Writes objects of its own, and then reads causally without a pause.
fn reads_on(course: &Course, places: &[Place; 2], reader: usize) {
    let spaces = near(places);
    let session = spaces.session();
    let (mut seen, root) = (Seen::default(), own(reader));
    for n in 1..=OWN {
        for space in SPACES {
            assert_eq!(add(&session, space, &root, Options::default()), Ok(n));
        }
        seen.1 = n;
        looks(&session, &mut seen, &root).unwrap();
    }
    let mut has_moved = false;
    while !course.is_over() {
        let (begun, cut) = (Instant::now(), course.cut());
        let looked = looks(&session, &mut seen, &root);
        let (took, is_same) = (begun.elapsed(), cut == course.cut());
        assert!(!is_same || cut == [false; 2] || took < FAILS_WITHIN, "causal reads take {took:?}");
        match looked {
            Ok(()) if is_same && cut == [true; 2] => {
                course.reads[reader].fetch_add(1, Ordering::SeqCst);
                if !std::mem::replace(&mut has_moved, true) {
                    moves(places, &session.token().unwrap().to_string(), &mut seen, &root);
                }
            }
            Ok(()) => course.shown[reader].store(seen.0[0].min(seen.0[1]), Ordering::SeqCst),
            // Both copies have what the session has seen, until one goes on without the other.
            Err(Error::Unavailable(_) | Error::Timeout | Error::Unknown { .. })
                if !is_same || cut != [true; 2] =>
            {
                let lacked = is_same && cut == [true, false] && seen.0[1] > seen.0[0];
                course.lacked[reader].fetch_add(u64::from(lacked), Ordering::SeqCst);
            }
            Err(error) => panic!("{error}"),
        }
    }
    let written = [course.written.load(Ordering::SeqCst); 2];
    until(|| (looks(&session, &mut seen, &root).is_ok() && seen.0 == written).then_some(()));
    has_all(&session, course);
}

/// Reads both spaces, and its own writes, however old the caches are.
fn looks(session: &Session<'_>, seen: &mut Seen, own: &str) -> Result<(), Error> {
    let read = |space, root: &str| read(session, space, root, Freshness::Stale);
    let effect = read("effects", "count")?;
    seen.one(1, effect);
    seen.both([read("causes", "count")?, effect]);
    seen.both(session.read_with(Freshness::Stale, |cut| {
        Ok([count(cut.space("causes")?, "count")?, count(cut.space("effects")?, "count")?])
    })?);
    let own = [read(SPACES[0], own)?, read(SPACES[1], own)?];
    assert!(own[0] >= seen.1 && own == [own[0]; 2], "of its own writes it reads {own:?}");
    seen.1 = own[0];
    Ok(())
}

/// Goes on with a token in a process that has nothing in its caches yet, at the copies too.
fn moves(places: &[Place; 2], token: &str, seen: &mut Seen, own: &str) {
    let spaces = near(places);
    let session = spaces.session();
    session.absorb(&token.parse().unwrap()).unwrap();
    looks(&session, seen, own).unwrap();
}

/// Asks for what a copy that is cut off cannot know.
fn asks_too_much(course: &Course, places: &[Place; 2]) {
    let spaces = near(places);
    let session = spaces.session();
    let mut seen = Seen::default();
    let bounded = |ms| Options::from(Freshness::Bounded(Duration::from_millis(ms)));
    let timeout = Some(Duration::from_millis(500));
    const BOUNDED: usize = 1;
    let asked = [Isolation::Strict.into(), bounded(50), Options { timeout, ..bounded(0) }];
    while !course.is_over() {
        for (space, kind) in (0..2).flat_map(|space| (0..3).map(move |kind| (space, kind))) {
            let (begun, was_cut) = (Instant::now(), course.cut()[space]);
            let (options, least) = (asked[kind], course.written.load(Ordering::SeqCst));
            let read = read(&session, SPACES[space], "count", options);
            let took = begun.elapsed();
            match read {
                Ok(count) => {
                    seen.one(space, count);
                    assert!(kind == BOUNDED || count >= least, "{count} is older than {least}");
                    let may_know = kind == BOUNDED && took < KEEPALIVE;
                    let is_cut = was_cut && course.cut()[space];
                    assert!(may_know || !is_cut, "who told kind {kind} of {count} of {least} in {took:?}?");
                }
                Err(Error::Unavailable(_) | Error::Timeout | Error::Unknown { .. }) => {
                    assert!(took < FAILS_WITHIN, "it fails after {took:?}");
                    course.refused[kind].fetch_add(u64::from(was_cut), Ordering::SeqCst);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    has_all(&session, course);
}

/// A session sees all that was written.
fn has_all(session: &Session<'_>, course: &Course) {
    for space in SPACES {
        let counted = until(|| read(session, space, "count", Isolation::Strict).ok());
        assert_eq!(counted, course.written.load(Ordering::SeqCst));
    }
}

/// Rounds of a reader before the copies are cut off.
const OWN: u64 = 30;

fn rounds(session: &Session<'_>, course: &Course, is_over: impl Fn(u64) -> bool) {
    let (begun, mut n) = (Instant::now(), course.written.load(Ordering::SeqCst));
    while !is_over(n) {
        assert!(begun.elapsed() < WITHIN + cut_for(), "readers are not served: {:?}", course.shown);
        n += 1;
        for space in SPACES {
            let added = add(session, space, "count", Options::default());
            assert_eq!(added, Ok(n), "an acknowledged commit is lost, or one is there twice");
        }
        course.written.store(n, Ordering::SeqCst);
    }
}

#[test]
fn readers_beside_cut_off_copies_read_causally() {
    // The thread stays on the host of the writer.
    thread::spawn(|| match Hosts::new(MEMBERS + 2) {
        Ok(hosts) => run(&hosts),
        Err(e) => println!("left out: no hosts can be made: {}", e.what),
    })
    .join()
    .unwrap();
}

fn run(hosts: &Hosts) {
    let dir = tempfile::tempdir().unwrap();
    let mut groups = [0, 1].map(|space| Group::start(hosts, dir.path(), space));
    let places = groups.each_ref().map(|group| group.place.clone());
    let spaces = connect(&places, false);
    let session = spaces.session();
    make(&session);
    let course = &Course::default();
    thread::scope(|scope| {
        let ends = Ends(&course.is_over);
        let on_host = |reads: &dyn Fn()| {
            hosts.of(NEAR).enter().unwrap();
            reads();
        };
        let places = &places;
        (0..READERS).for_each(|i| _ = scope.spawn(move || on_host(&|| reads_on(course, places, i))));
        scope.spawn(move || on_host(&|| asks_too_much(course, places)));
        rounds(&session, course, |_| is_each(&course.shown, 1));
        // The copies have both, else the one that has an effect could have it without its cause for as long.
        has_all(&near(places).session(), course);
        course.cut_off(hosts, &[0, 1], || {
            let begun = Instant::now();
            for group in &mut groups {
                let killed = group.kill_leader();
                let n = course.written.load(Ordering::SeqCst);
                rounds(&session, course, |now| now > n + 20);
                group.serve_again(hosts, killed);
            }
            rounds(&session, course, |_| begun.elapsed() >= cut_for() && is_each(&course.refused, 2));
        });
        catch_up(&session, course);
        course.cut_off(hosts, &[0], || rounds(&session, course, |_| is_each(&course.lacked, 2)));
        catch_up(&session, course);
        drop(ends);
    });
    assert!(is_each(&course.reads, 50), "{:?}", course.reads);
    println!("cut off: {:?} are refused, {:?} lack causes", course.refused, course.lacked);
    let written = course.written.load(Ordering::SeqCst);
    for space in SPACES {
        assert_eq!(read(&session, space, "count", Isolation::Strict), Ok(written));
    }
}

/// Writes on while the copies catch up, each for itself, until the readers have seen what was written before.
fn catch_up(session: &Session<'_>, course: &Course) {
    let written = course.written.load(Ordering::SeqCst);
    rounds(session, course, |_| is_each(&course.shown, written));
}

/// The counters of the writer and of each reader.
fn make(session: &Session<'_>) {
    let roots: Vec<String> = (0..READERS).map(own).chain(["count".into()]).collect();
    for space in SPACES {
        let make = |tx: &Tx<'_>| {
            roots.iter().try_for_each(|root| tx.set_root(root, tx.create(&Count { count: 0 })?))
        };
        session.space(space).unwrap().run(make).unwrap();
    }
}

fn own(reader: usize) -> String {
    format!("own {reader}")
}
