//! Two spaces of a group each, and the time for which the others wait when a client ends amid a transaction
//! over both, or when a leader ends or hangs.
//!
//! A process moves between two objects, one in each space, all the time: it is the client that is killed. The
//! others write the same objects in one space each, read strictly and boundedly, cut through both spaces, and
//! move between objects of their own. The longest time between two successes of any of them counts.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tercel::{Addresses, Client, Error, Isolation, Object, Session, Spaces, Tx};
use tercel_lock::unpoison;
use tercel_term::members::Members;
use tercel_term::process::OwnProcess;

use super::super::blocks::{median, percentile};
use super::super::report::Row;
use super::super::scratch::Scratch;
use super::ends::{caught_up, connect, ms};
use super::{MEMBERS, Options, failed, must};

/// Set for the client that is killed: the addresses of both spaces.
pub const ROLE: &str = "TERCEL_BENCH_WAITS";

const NAMES: [&str; 2] = ["decides", "follows"];

/// An object that is changed.
#[derive(Object)]
struct Count {
    value: u64,
}

/// The event that the others wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Client,
    /// The leaders of these spaces are killed.
    Leaders(&'static [usize]),
    Stopped,
}

/// `group.wait.client`: a client is killed amid transactions over both spaces.
pub fn client(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    measure(options, scratch, ("group.wait.client", Event::Client), [20.0, 50.0])
}

/// `group.wait.decider`: the leader of the space that decides is killed.
pub fn decider(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    measure(options, scratch, ("group.wait.decider", Event::Leaders(&[0])), [100.0, 250.0])
}

/// `group.wait.other`: the leader of the other space is killed.
pub fn other(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    measure(options, scratch, ("group.wait.other", Event::Leaders(&[1])), [100.0, 250.0])
}

/// `group.wait.both`: both leaders are killed at once.
pub fn both(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    measure(options, scratch, ("group.wait.both", Event::Leaders(&[0, 1])), [100.0, 250.0])
}

/// `group.wait.stopped`: the leader of the space that decides is stopped: it is there, and says nothing.
pub fn stopped(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    measure(options, scratch, ("group.wait.stopped", Event::Stopped), [170.0, 400.0])
}

fn measure(
    options: &Options,
    scratch: &Scratch,
    (name, event): (&str, Event),
    limits: [f64; 2],
) -> Result<Vec<Row>, String> {
    let memory = Path::new("/dev/shm");
    let in_memory = memory.is_dir().then(|| Scratch::new(Some(memory), "group-waits")).transpose()?;
    let mut groups = two(in_memory.as_ref().unwrap_or(scratch))?;
    let at = [groups[0].addresses()?, groups[1].addresses()?];
    for at in &at {
        let make = |tx: &Tx<'_>| {
            ["shared", "own", "still"]
                .into_iter()
                .try_for_each(|name| tx.set_root(name, tx.create(&Count { value: 0 })?))
        };
        connect(at)?.run(make).map_err(failed)?;
    }
    let over = AtomicBool::new(false);
    let others: Vec<Other> =
        KINDS.iter().map(|(kind, ..)| Other { kind, successes: Mutex::default() }).collect();
    let waits = thread::scope(|scope| {
        let threads: Vec<_> = KINDS
            .iter()
            .zip(&others)
            .map(|((_, space, act), other)| {
                let (at, over) = (&at, &over);
                scope.spawn(move || other.run(at, *space, *act, over))
            })
            .collect();
        let waits = events(options, &mut groups, &at, event, &others);
        over.store(true, Ordering::Relaxed);
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let failed = ended.into_iter().find_map(|end| match end {
            Ok(end) => end.err().map(|e| e.to_string()),
            Err(_) => Some("a client panicked".into()),
        });
        failed.map_or(waits, Err)
    })?;
    Ok(vec![row(name, waits, limits)])
}

/// Two groups whose members are each other's peers.
fn two(scratch: &Scratch) -> Result<[Members; 2], String> {
    let mut first = Members::start(&scratch.join(NAMES[0]), MEMBERS, &[])?;
    let at = first.addresses()?.to_string();
    let second = Members::start(&scratch.join(NAMES[1]), MEMBERS, &["--peer", &at])?;
    let other = second.addresses()?.to_string();
    first.serve_with(&["--peer", &other])?;
    first.settled()?;
    second.settled()?;
    Ok([first, second])
}

/// Waits in milliseconds.
#[derive(Default)]
struct Waits {
    /// The longest of all kinds, before each event.
    quiet: Vec<f64>,
    /// The longest wait of each kind behind each event.
    behind: Vec<Vec<(&'static str, f64)>>,
}

fn events(
    options: &Options,
    groups: &mut [Members; 2],
    at: &[Addresses; 2],
    event: Event,
    others: &[Other],
) -> Result<Waits, String> {
    let mut waits = Waits::default();
    let mut mover = mover(at)?;
    for round in 0..if options.quick { EVENTS_QUICK } else { EVENTS } {
        let leaders = [groups[0].settled()?, groups[1].settled()?];
        at.iter().try_for_each(caught_up)?;
        let quiet = Instant::now();
        all_go_on(others, quiet, WINDOW)?;
        waits.quiet.push(others.iter().map(|other| other.longest(quiet)).fold(0.0, f64::max));
        // It is amid something else each time.
        thread::sleep(Duration::from_micros(977 * (round as u64 % 11)));
        let begun = Instant::now();
        match event {
            Event::Client => mover.kill()?,
            Event::Leaders(of) => {
                for space in of {
                    groups[*space].kill(leaders[*space])?;
                }
            }
            Event::Stopped => groups[0].freeze(leaders[0], true),
        }
        all_go_on(others, begun, WINDOW)?;
        waits.behind.push(others.iter().map(|other| (other.kind, other.longest(begun))).collect());
        match event {
            Event::Client => mover = self::mover(at)?,
            Event::Leaders(of) => {
                for space in of {
                    groups[*space].start_one(leaders[*space])?;
                }
            }
            Event::Stopped => groups[0].freeze(leaders[0], false),
        }
    }
    Ok(waits)
}

/// The process of the client that is killed, which has moved something.
fn mover(at: &[Addresses; 2]) -> Result<OwnProcess, String> {
    Ok(OwnProcess::role(&["bench", "group"], ROLE, format!("{}\n{}", at[0], at[1]))?)
}

/// Moves between the spaces until it is killed.
///
/// # Errors
/// A sentence: what failed.
pub fn child(role: &OsStr) -> Result<(), String> {
    let at: Vec<&str> = role.to_str().ok_or("the role names no addresses")?.lines().collect();
    let spaces = Spaces::connect(NAMES.into_iter().zip(at)).map_err(failed)?;
    let session = spaces.session();
    let mut is_ready = false;
    loop {
        // A leader that ends beside it is no reason to end.
        let moved = moves(&session, "shared");
        thread::sleep(PAUSE);
        if moved.is_ok() && !std::mem::replace(&mut is_ready, true) {
            println!("listening on both");
        }
    }
}

fn moves(session: &Session<'_>, root: &str) -> Result<(), Error> {
    session.run(|cut| NAMES.into_iter().try_for_each(|name| add(cut.space(name)?, root)))
}

fn add(tx: &Tx<'_>, root: &str) -> Result<(), Error> {
    let count = tx.get_root::<Count>(root)?;
    count.edit()?.set_value(count.value() + 1)
}

fn value(tx: &Tx<'_>, root: &str) -> Result<u64, Error> {
    Ok(tx.get_root::<Count>(root)?.value())
}

/// An act of a client: in one of the spaces by its client, or over both in a session.
type Act = fn(&Client, &Session<'_>) -> Result<(), Error>;

const KINDS: [(&str, usize, Act); 7] = [
    ("writer where it is decided", 0, |client, _| client.run(|tx| add(tx, "shared"))),
    ("writer of the other space", 1, |client, _| client.run(|tx| add(tx, "shared"))),
    ("strict reader where it is decided", 0, strict),
    ("strict reader of the other space", 1, strict),
    ("bounded reader where it is decided", 0, |client, _| {
        client.transaction().bounded(BOUND).run(|tx| value(tx, "shared")).map(drop)
    }),
    ("cut", 0, |_, session| {
        let read = |cut: &tercel::Cut<'_>| {
            NAMES.into_iter().try_for_each(|name| value(cut.space(name)?, "still").map(drop))
        };
        session.read_with(Isolation::Strict, read)
    }),
    ("buyer", 0, |_, session| moves(session, "own")),
];

fn strict(client: &Client, _: &Session<'_>) -> Result<(), Error> {
    client.transaction().isolation(Isolation::Strict).run(|tx| value(tx, "shared")).map(drop)
}

/// A client that is not killed.
struct Other {
    kind: &'static str,
    successes: Mutex<Vec<Instant>>,
}

impl Other {
    fn run(&self, at: &[Addresses; 2], space: usize, act: Act, over: &AtomicBool) -> Result<(), Error> {
        let connect = |at: &Addresses| Client::connect(at.clone());
        let (first, second) = (connect(&at[0])?, connect(&at[1])?);
        let spaces = Spaces::new().with(NAMES[0], first.clone()).with(NAMES[1], second.clone());
        let session = spaces.session();
        let client = if space == 0 { &first } else { &second };
        while !over.load(Ordering::Relaxed) {
            match act(client, &session) {
                Ok(()) => unpoison(self.successes.lock()).push(Instant::now()),
                // What an application does: it tries again. All of it counts as waiting.
                Err(
                    Error::Conflict(_)
                    | Error::Unavailable(_)
                    | Error::Timeout
                    | Error::Unknown { .. }
                    | Error::Full(_),
                ) => {}
                Err(e) => return Err(e),
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn count(&self, since: Instant) -> usize {
        unpoison(self.successes.lock()).iter().rev().take_while(|at| **at > since).count()
    }

    /// The longest time between two successes of which the later is behind a moment, in milliseconds.
    fn longest(&self, since: Instant) -> f64 {
        let successes = unpoison(self.successes.lock());
        let behind = successes.windows(2).rev().take_while(|pair| pair[1] > since);
        behind.map(|pair| ms(pair[1] - pair[0].max(since))).fold(0.0, f64::max)
    }
}

/// Waits so long from a moment on, and then until all have gone on since.
fn all_go_on(others: &[Other], since: Instant, window: Duration) -> Result<(), String> {
    let end = Instant::now() + WAIT_MAX;
    while since.elapsed() < window || others.iter().any(|other| other.count(since) < SUCCESSES) {
        if Instant::now() > end {
            let stuck = others.iter().find(|other| other.count(since) < SUCCESSES);
            return Err(format!("a {} goes on no more", stuck.map_or("client", |other| other.kind)));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn row(id: &str, Waits { mut quiet, behind }: Waits, [p50, p99]: [f64; 2]) -> Row {
    let longest = |of: &Vec<(&'static str, f64)>| of.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
    let mut longest: Vec<(&str, f64)> = behind.iter().filter_map(longest).collect();
    longest.sort_unstable_by(|a, b| a.1.total_cmp(&b.1));
    let mut times: Vec<f64> = longest.iter().map(|(_, wait)| *wait).collect();
    let (middle, high) = (median(&mut times), percentile(&times, 0.99));
    let (who, most) = longest.last().copied().unwrap_or(("client", 0.0));
    let of_kinds = KINDS.iter().enumerate().map(|(i, (kind, ..))| {
        let mut of_kind: Vec<f64> = behind.iter().map(|of| of[i].1).collect();
        format!("{kind} {:.1}", median(&mut of_kind))
    });
    let of_kinds: Vec<String> = of_kinds.collect();
    let note = format!(
        "the longest wait of {} others: p50 {middle:.1} ms, {}; p99 {high:.1} ms, {}; at most {most:.1} ms, of a {who}; before that p50 {:.1} ms; p50 of each: {}",
        KINDS.len(),
        must(middle, p50, p50),
        must(high, p99, p99),
        median(&mut quiet),
        of_kinds.join(", ")
    );
    Row { p99: Some(high), ..Row::new(id, middle, "ms", times.len() as u64) }.note(note)
}

const EVENTS: usize = 50;
const EVENTS_QUICK: usize = 8;

/// The age that a bounded reader takes.
const BOUND: Duration = Duration::from_millis(5);

/// The pause of each client between two acts: two processors are enough for all.
const PAUSE: Duration = Duration::from_millis(3);

/// The time before an event, and behind it, in which waits count.
const WINDOW: Duration = Duration::from_millis(300);
/// Successes of each client in such a time.
const SUCCESSES: usize = 3;
const WAIT_MAX: Duration = Duration::from_secs(30);
