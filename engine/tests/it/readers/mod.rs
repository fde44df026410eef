//! Clients that read at members which follow: what they see, how often their operations are executed, and
//! what the leader knows of them.

pub mod world;

use std::time::Duration;

use tercel_engine::Error;
use tercel_engine::random::Random;
use tercel_engine::server::ServerConfig;
use tercel_engine::txn::{self, Freshness, Isolation, Options, Tx};
use tercel_testkit::things::{Thing, thing};
use tercel_wire::access::Principal;
use tercel_wire::message::Accessing;

use world::{End, World};

fn world(seed: u64) -> World {
    World::new(seed, ServerConfig { keepalive_ms: 200, ..ServerConfig::default() })
}

fn follower(world: &World) -> usize {
    (world.with(|w| w.leader()).unwrap() + 1) % 3
}

fn options(isolation: Isolation, freshness: Freshness) -> Options {
    Options { isolation, freshness, ..Options::default() }
}

fn count_in(tx: &Tx<'_>) -> Result<u64, Error> {
    tx.find_root::<Thing>("count")?.map_or(Ok(0), |thing| Ok(thing.count()))
}

fn count(world: &World, client: usize, options: Options) -> Result<u64, Error> {
    txn::run(&world.port(client), options, count_in)
}

fn add(world: &World, client: usize) -> Result<u64, Error> {
    add_within(world, client, None)
}

#[test]
fn reader_sees_others_and_own_writes() {
    let world = world(1);
    let near = follower(&world);
    let (reader, writer) = (world.client(Some(near)), world.client(None));
    for n in 1..20 {
        assert_eq!(add(&world, if n % 3 == 0 { writer } else { reader }), Ok(n));
        assert_eq!(count(&world, reader, options(Isolation::Strict, Freshness::Recent)), Ok(n));
    }
    assert_eq!(world.with(|w| w.home(reader)), Some(near));
    assert!(world.with(|w| w.home(writer) == w.leader()));
}

/// The number after a name in the status of a client's server.
fn number(world: &World, client: usize, name: &str) -> u64 {
    let found = std::cell::RefCell::new(None);
    world.until(|w| {
        *found.borrow_mut() = w.status(client);
        found.borrow().is_some()
    });
    let status: String = found.take().unwrap();
    let (_, rest) = status.split_once(&format!("\"{name}\":")).unwrap();
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

/// Makes an object with a text that takes pages of its own.
fn grow(world: &World, client: usize, name: &str, bytes: usize) {
    let text = "x".repeat(bytes);
    let port = world.port(client);
    let done = txn::run(&port, Isolation::Serializable, |tx| match tx.find_root::<Thing>(name)? {
        Some(thing) => thing.edit()?.set_text(text.as_str()),
        None => {
            let made = tx.create(&Thing { text: text.as_str().into(), ..thing(0) })?;
            tx.set_root(name, made)
        }
    });
    done.unwrap();
}

/// Waits until pages have returned.
fn returns(world: &World, writer: usize) {
    for i in 0..200 {
        if number(world, writer, "pages_returned") >= 20 {
            return;
        }
        // A client gives pages back with the next that it asks for.
        grow(world, writer, &format!("more {i}"), 20_000);
        world.steps(50);
    }
    panic!("no page returns");
}

/// A world with a reader at a follower, and a writer at the leader who has made a large text.
fn shared() -> (World, usize, usize, usize) {
    let world = World::new(3, ServerConfig { keepalive_ms: 2_000, ..ServerConfig::default() });
    let near = follower(&world);
    let (reader, writer) = (world.client(Some(near)), world.client(None));
    grow(&world, writer, "large", 200_000);
    assert_eq!(count(&world, reader, options(Isolation::Strict, Freshness::Recent)), Ok(0));
    (world, near, reader, writer)
}

#[test]
fn places_known_to_readers_are_not_given_out() {
    let (world, _, reader, writer) = shared();
    world.with(|w| _ = w.held.insert(End::Client(reader)));
    grow(&world, writer, "large", 0);
    returns(&world, writer);
    // Long enough for every acknowledgement, and too short for the reader to be given up.
    world.pass(500_000);
    let returned = number(&world, writer, "pages_returned");
    // More than the writer was granted before.
    (0..12).for_each(|i| grow(&world, writer, &format!("next {i}"), 100_000));
    let left = number(&world, writer, "pages_returned");
    assert!(left >= returned, "{left} of {returned}: the reader has not acknowledged");
    world.with(|w| w.held.clear());
    world.pass(500_000);
    (12..24).for_each(|i| grow(&world, writer, &format!("next {i}"), 100_000));
    assert!(number(&world, writer, "pages_returned") < returned);
    assert_eq!(world.with(|w| w.clients[reader].stats().connections), 1);
}

#[test]
fn reader_behind_places_given_out_begins_anew() {
    let (world, near, reader, writer) = shared();
    // The leader waits no longer for a member that is away.
    world.with(|w| w.apart = [near].into());
    grow(&world, writer, "large", 0);
    returns(&world, writer);
    let returned = number(&world, writer, "pages_returned");
    for i in 0.. {
        grow(&world, writer, &format!("next {i}"), 100_000);
        if number(&world, writer, "pages_returned") < returned {
            break;
        }
        assert!(i < 500, "nothing is given out again");
        world.steps(500);
    }
    let stale = options(Isolation::Serializable, Freshness::Stale);
    let size = |options| txn::run(&world.port(reader), options, |tx| Ok(tx.roots()?.len()));
    assert_eq!(size(stale), Ok(1));
    world.with(|w| w.apart.clear());
    let timeout = Some(Duration::from_secs(20));
    assert!(size(Options { timeout, ..options(Isolation::Strict, Freshness::Recent) }).unwrap() > 1);
    assert_eq!(world.with(|w| w.clients[reader].stats().connections), 2);
}

#[test]
fn reader_at_member_far_behind_reads_elsewhere() {
    let (world, near, reader) = with_reader(7);
    let (leader, writer) = (world.with(|w| w.leader()).unwrap(), world.client(None));
    let strict = options(Isolation::Strict, Freshness::Recent);
    // The leader answers there, and feeds nothing.
    world.with(|w| _ = w.held.insert(End::Member(near, leader)));
    assert_eq!(add(&world, writer), Ok(1));
    let timeout = Some(Duration::from_secs(5));
    assert_eq!(count(&world, reader, Options { timeout, ..strict }), Ok(1));
    assert_ne!(world.with(|w| w.home(reader)), Some(near));
}

#[test]
fn idle_reader_that_comes_back_keeps_its_places() {
    let (world, _, reader) = with_reader(5);
    assert_eq!(add(&world, reader), Ok(1));
    world.with(|w| w.cut(reader));
    world.pass(2_000_000);
    assert_eq!(add(&world, reader), Ok(2));
    assert_eq!(world.with(|w| w.clients[reader].stats().connections), 2);
}

#[test]
fn recovering_member_sends_readers_on() {
    let world = world(6);
    let old = world.with(|w| w.leader()).unwrap();
    world.with(|w| w.apart = [old].into());
    world.until(|w| w.leader() != Some(old));
    world.with(|w| w.apart.clear());
    world.until(|w| !w.nodes[old].machine().unwrap().is_leading());
    // Its recovery does not come.
    world.with(|w| _ = w.held.insert(End::Disk(old)));
    let reader = world.client(Some(old));
    assert_eq!(count(&world, reader, options(Isolation::Strict, Freshness::Recent)), Ok(0));
    assert_ne!(world.with(|w| w.home(reader)), Some(old));
}

/// A world with a reader at a follower, once that has a state.
fn with_reader(seed: u64) -> (World, usize, usize) {
    let world = world(seed);
    let near = follower(&world);
    world.until(|w| w.nodes[near].machine().unwrap().view().number > 0);
    let reader = world.client(Some(near));
    assert_eq!(count(&world, reader, options(Isolation::Strict, Freshness::Recent)), Ok(0));
    assert_eq!(world.with(|w| w.home(reader)), Some(near));
    (world, near, reader)
}

/// A reader whose member is cut off from the others, before or after a first write, writes within a time.
fn writes_elsewhere(has_written: bool) {
    let (world, near, reader) = with_reader(4);
    let made = u64::from(has_written);
    assert!(!has_written || add(&world, reader) == Ok(1));
    world.with(|w| w.apart = [near].into());
    assert_eq!(add_within(&world, reader, Some(Duration::from_secs(5))), Ok(made + 1));
    assert_ne!(world.with(|w| w.home(reader)), Some(near));
}

#[test]
fn reader_at_lone_member_writes_elsewhere() {
    writes_elsewhere(false);
}

#[test]
fn reader_whose_member_is_cut_off_writes_elsewhere() {
    writes_elsewhere(true);
}

/// The promises to the clients of a world, as they are kept so far.
struct Promised {
    /// Additions that were acknowledged, and those of which nothing is known.
    made: u64,
    unknown: u64,
    /// The last count that each client has seen.
    seen: Vec<u64>,
}

impl Promised {
    fn is_seen(&mut self, client: usize, count: u64, seed: u64) {
        assert!(count >= self.seen[client], "seed {seed}: client {client} goes back to {count}");
        assert!(count <= self.made + self.unknown, "seed {seed}: {count} of {}", self.made);
        self.seen[client] = count;
    }
}

/// Something bad happens, or ends.
fn trouble(world: &World, r: &mut Random) {
    let (n, client) = (r.below(3) as usize, r.below(4) as usize);
    match r.below(9) {
        0 => world.with(|w| w.cut(client)),
        1 => world.with(|w| w.cut_upstream(n)),
        2 => world.with(|w| w.apart = [n].into()),
        3 => world.with(|w| w.held.extend((0..3).map(|from| End::Member(n, from)))),
        4 => world.with(|w| _ = w.held.insert(End::Client(client))),
        5 => world.steps(r.below(400) as usize),
        _ => world.with(|w| (w.apart, w.held) = Default::default()),
    }
}

fn run_world(seed: u64) {
    let (world, mut r) = (world(seed), Random::new(seed));
    let near = follower(&world);
    let homes = [Some(near), Some(near), Some((near + 1) % 3), None];
    homes.into_iter().for_each(|home| _ = world.client(home));
    let mut promised = Promised { made: 0, unknown: 0, seen: vec![0; 4] };
    for _ in 0..40 {
        if r.below(2) == 0 {
            trouble(&world, &mut r);
        }
        let client = r.below(4) as usize;
        let timeout = Some(Duration::from_millis(300));
        match r.below(3) {
            0 => {
                let before = promised.made;
                let strict = Options { timeout, ..options(Isolation::Strict, Freshness::Recent) };
                if let Ok(count) = count(&world, client, strict) {
                    assert!(count >= before, "seed {seed}: a strict read of {count}, and {before} were made");
                    promised.is_seen(client, count, seed);
                }
            }
            1 => {
                let stale = Options { timeout, ..options(Isolation::Serializable, Freshness::Stale) };
                if let Ok(count) = count(&world, client, stale) {
                    promised.is_seen(client, count, seed);
                }
            }
            _ => {
                promised.unknown += 1;
                match add_within(&world, client, timeout) {
                    Ok(count) => {
                        (promised.made, promised.unknown) = (promised.made + 1, promised.unknown - 1);
                        promised.is_seen(client, count, seed);
                    }
                    Err(Error::Unknown { op: Some(_), .. }) => {}
                    Err(Error::Unavailable(_) | Error::Timeout | Error::Conflict(_)) => promised.unknown -= 1,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
        }
    }
    world.with(|w| (w.apart, w.held) = Default::default());
    let patient = Some(Duration::from_secs(20));
    let strict = Options { timeout: patient, ..options(Isolation::Strict, Freshness::Recent) };
    // A write that timed out may be executed yet; but no reader reads less than another has.
    let counts = (0..4).map(|client| count(&world, client, strict));
    let counts: Vec<u64> = counts
        .collect::<Result<_, _>>()
        .unwrap_or_else(|e| panic!("seed {seed}: {e}, {}", world.with(|w| w.state())));
    assert!(counts.is_sorted(), "seed {seed}: {counts:?}");
    let allowed = promised.made..=promised.made + promised.unknown;
    assert!(counts.iter().all(|count| allowed.contains(count)), "seed {seed}: {counts:?} of {allowed:?}");
}

fn add_within(world: &World, client: usize, timeout: Option<Duration>) -> Result<u64, Error> {
    let options = Options { timeout, ..Options::default() };
    txn::run(&world.port(client), options, |tx| {
        let count = count_in(tx)? + 1;
        match tx.find_root::<Thing>("count")? {
            Some(thing) => thing.edit()?.set_count(count)?,
            None => {
                let made = tx.create(&thing(count))?;
                tx.set_root("count", made)?;
            }
        }
        Ok(count)
    })
}

#[test]
fn worlds_keep_sessions_and_count_once() {
    (0..100).for_each(run_world);
}

#[test]
fn newcomer_at_lone_member_reads_stale() {
    let (world, near, reader) = with_reader(8);
    assert_eq!(add(&world, reader), Ok(1));
    assert_eq!(count(&world, reader, options(Isolation::Strict, Freshness::Recent)), Ok(1));
    world.with(|w| w.apart = [near].into());
    world.pass(1_000_000);
    let newcomer = world.client(Some(near));
    let read = |tx: &Tx<'_>| Ok((count_in(tx)?, tx.as_of().age));
    let stale = options(Isolation::Serializable, Freshness::Stale);
    assert_eq!(txn::run(&world.port(newcomer), stale, read), Ok((1, Duration::MAX)));
    let refused = count(&world, newcomer, Options::default());
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
}

/// A transaction at a client, or why there is none.
fn denied(world: &World, client: usize) -> Option<String> {
    match add_within(world, client, Some(Duration::from_secs(5))) {
        Err(Error::Denied(text)) => Some(text),
        _ => None,
    }
}

#[test]
fn rights_hold_at_followers_and_after_fail_over() {
    let world = world(8);
    let near = follower(&world);
    let writer = world.client(None);
    let reader = world.client(Some(near));
    let stranger = world.client(Some(near));
    world.with(|w| w.names = [(writer, "w"), (reader, "x"), (stranger, "y")].into());
    assert_eq!(add(&world, writer), Ok(1));
    let strict = options(Isolation::Strict, Freshness::Recent);
    assert_eq!((count(&world, reader, strict), count(&world, stranger, strict)), (Ok(1), Ok(1)));
    let grant = |who: &str, role: &str| {
        world.with(|w| w.change_right(Accessing::Grant, who, role));
        world.pass(100_000);
    };
    ["read", "write", "define"].iter().for_each(|role| grant("client:w", role));
    grant("client:x", "read");
    // They were shut out meanwhile, and come back.
    let is_up = |w: &mut world::Inner, i: usize| matches!(w.clients[i].availability(), Some(Ok(())));
    world.until(|w| is_up(w, writer) && is_up(w, reader));
    assert_eq!(add(&world, writer), Ok(2));
    assert_eq!(count(&world, reader, strict), Ok(2));
    assert_eq!(world.with(|w| w.home(reader)), Some(near));
    let refused = count(&world, stranger, strict).unwrap_err();
    assert!(matches!(&refused, Error::Denied(text) if text.contains("client:y lacks")), "{refused:?}");
    // What the follower passes on is judged by the leader as its client's.
    let text = denied(&world, reader).expect("a reader does not write");
    assert!(text.contains("client:x lacks the role `write"), "{text}");
    grant("client:x", "write");
    assert_eq!(add(&world, reader), Ok(3));
    // The next leader has the same rights.
    let leader = world.with(|w| w.leader()).unwrap();
    world.with(|w| w.stop(leader));
    world.until(|w| w.leader().is_some_and(|next| next != leader));
    assert_eq!(add(&world, reader), Ok(4));
    let another = world.client(None);
    world.with(|w| w.names.insert(another, "y"));
    assert!(matches!(count(&world, another, strict), Err(Error::Denied(_))));
    // A revocation reaches the readers of members within two keepalives.
    for role in ["read", "write"] {
        world.with(|w| w.change_right(Accessing::Revoke, "client:x", role));
    }
    world.pass(400_000);
    let refused = count(&world, reader, strict).unwrap_err();
    assert!(matches!(&refused, Error::Denied(text) if text.contains("client:x lacks")), "{refused:?}");
}

/// A member that follows may not have applied that its reader's speaker may not speak any more.
#[test]
fn leader_judges_speakers_at_followers() {
    let world = world(8);
    let near = follower(&world);
    let writer = world.client(None);
    let speaker = world.client_for(Some(near), Principal::client("x"));
    world.with(|w| w.names = [(writer, "w"), (speaker, "web")].into());
    assert_eq!(add(&world, writer), Ok(1));
    for (who, role) in [
        ("client:w", "read"),
        ("client:w", "write"),
        ("client:w", "define"),
        ("client:x", "read"),
        ("client:x", "write"),
        ("client:web", "speak-for"),
    ] {
        world.with(|w| w.change_right(Accessing::Grant, who, role));
        world.pass(100_000);
    }
    let is_up = |w: &mut world::Inner, i: usize| matches!(w.clients[i].availability(), Some(Ok(())));
    world.until(|w| is_up(w, writer) && is_up(w, speaker));
    assert_eq!(add(&world, speaker), Ok(2), "it writes as the one for whom it speaks");
    assert_eq!(world.with(|w| w.home(speaker)), Some(near));
    world.with(|w| w.change_right(Accessing::Revoke, "client:web", "speak-for"));
    // Its connection may end before it hears of that.
    let refused = add_within(&world, speaker, Some(Duration::from_secs(5)));
    assert!(matches!(refused, Err(Error::Denied(_) | Error::Unknown { .. })), "{refused:?}");
    assert_eq!(add(&world, writer), Ok(3), "nothing was written meanwhile");
}

/// For builds with `--cfg tercel_mutants`, as the step `worlds` of `.ci/run` makes one.
#[cfg(tercel_mutants)]
#[test]
fn dropped_rules_of_readers_are_noticed() {
    use tercel_engine::mutant::{Rule, drop_rule};

    let tests: [(Rule, fn()); 2] = [
        (Rule::AnswerBeforeApplied, worlds_keep_sessions_and_count_once),
        (Rule::ReuseForgetsReaders, reader_behind_places_given_out_begins_anew),
    ];
    assert_eq!(tests.map(|(rule, _)| rule), Rule::OF_READERS);
    for (rule, test) in tests {
        drop_rule(Some(rule));
        assert!(std::panic::catch_unwind(test).is_err(), "{rule:?} is not noticed");
    }
    drop_rule(None);
}
