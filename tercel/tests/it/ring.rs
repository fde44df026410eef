//! Rings of this process's threads, and of processes that are killed.
//!
//! The killed member is this very program: with `TERCEL_TEST_RING` set, the test is that member.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::Killed;
use tercel::ring::{Configuration, Delivery, Level, Message, Ring, RingConfig, RingError, make_key};

const RING: &str = "TERCEL_TEST_RING";
const MEMBER: (&str, &str) = ("ring::killed_member_returns_and_others_agree", RING);
const MESSAGES: u32 = 10_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Addresses that no other process of this host has, by its number.
fn members(process: u32, count: u16) -> Vec<(u64, SocketAddr)> {
    let [c, b, a, _] = process.to_le_bytes();
    let at = |n| SocketAddr::from((Ipv4Addr::new(127, a + 1, b, c), 7_100 + n));
    (1..=count).map(|n| (n.into(), at(n))).collect()
}

fn join(me: u64, members: &[(u64, SocketAddr)], dir: &Path) -> Ring {
    let config = RingConfig::new(me, members.iter().copied(), dir.join(format!("{me}.ring")));
    // A loaded machine is not taken for a silent member.
    Ring::join(RingConfig { silence: Duration::from_secs(3), ..config }).unwrap()
}

/// A message of a member's run with a number, of mixed size.
fn message(run: u8, number: u32) -> (Vec<u8>, Level) {
    let length = match number % 100 {
        0 => 30_000,
        n if n % 10 == 1 => 3_000,
        n => n as usize,
    };
    let mut bytes = vec![run; 5 + length];
    bytes[1..5].copy_from_slice(&number.to_le_bytes());
    (bytes, if number.is_multiple_of(3) { Level::Safe } else { Level::Agreed })
}

fn send_all(ring: &Ring, run: u8) {
    for number in 0..MESSAGES {
        let (bytes, level) = message(run, number);
        ring.send(&bytes, level).unwrap();
    }
}

/// Sees that a message is whole. Gives its run and number.
fn read(it: &Message) -> (u8, u32) {
    let (run, number) = (it.bytes[0], u32::from_le_bytes(it.bytes[1..5].try_into().unwrap()));
    assert_eq!((it.bytes.clone(), it.level), message(run, number));
    (run, number)
}

fn next(ring: &Ring) -> Delivery {
    ring.next_within(PATIENCE).unwrap().expect("something is delivered in time")
}

fn until_all_are_in(ring: &Ring, count: usize) {
    let is_it = |it: Delivery| matches!(it, Delivery::Configuration(it) if it.members.len() == count && !it.is_transitional);
    while !is_it(next(ring)) {}
}

/// Takes deliveries until a member has sent its last message in these runs.
fn take_all(ring: &Ring, runs: &[u8], mut came: impl FnMut(u8, u32)) -> Vec<Delivery> {
    let (mut left, mut all) = (runs.to_vec(), Vec::new());
    while !left.is_empty() {
        let delivery = next(ring);
        if let Delivery::Message(it) = &delivery {
            let (run, number) = read(it);
            came(run, number);
            left.retain(|of| (*of, MESSAGES - 1) != (run, number));
        }
        all.push(delivery);
    }
    all
}

/// A delivery without the bytes of a message.
fn brief(delivery: &Delivery) -> String {
    match delivery {
        Delivery::Message(it) => format!("{:?} from {}", read(it), it.from),
        Delivery::Configuration(it) => format!("{it:?}"),
    }
}

/// Numbers of a run rise one by one.
fn see_whole(deliveries: &[Delivery], run: u8) -> u32 {
    let numbers = deliveries.iter().filter_map(|delivery| match delivery {
        Delivery::Message(it) => Some(read(it)).filter(|(of, _)| *of == run).map(|(_, number)| number),
        Delivery::Configuration(_) => None,
    });
    numbers.enumerate().map(|(at, number)| assert_eq!(at as u32, number)).count() as u32
}

#[test]
fn killed_member_returns_and_others_agree() {
    if let Ok(dir) = std::env::var(RING) {
        return be_killed(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let members = members(std::process::id(), 3);
    std::fs::write(dir.path().join("process"), std::process::id().to_string()).unwrap();
    let rings = [1, 2].map(|me| join(me, &members, dir.path()));
    let mut third = Some(Killed::start(dir.path(), MEMBER));
    rings.iter().for_each(|ring| until_all_are_in(ring, 3));
    let (one, two) = std::thread::scope(|scope| {
        scope.spawn(|| send_all(&rings[0], 1));
        scope.spawn(|| send_all(&rings[1], 2));
        let two = scope.spawn(|| take_all(&rings[1], &[1, 2, 4], |_, _| {}));
        let one = take_all(&rings[0], &[1, 2, 4], |run, number| {
            if (run, number) == (3, MESSAGES / 3) {
                third = None;
                third = Some(Killed::start(dir.path(), MEMBER));
            }
        });
        (one, two.join().unwrap())
    });
    if let Some(at) = one.iter().zip(&two).position(|(a, b)| a != b) {
        let around = |all: &[Delivery]| {
            all[at.saturating_sub(2)..all.len().min(at + 3)].iter().map(brief).collect::<Vec<_>>()
        };
        panic!("two members are given other things: {:#?} and {:#?}", around(&one), around(&two));
    }
    assert_eq!(one.len(), two.len());
    let whole = [1, 2, 4].map(|run| see_whole(&one, run));
    assert_eq!(whole, [MESSAGES; 3]);
    assert!((MESSAGES / 3..MESSAGES).contains(&see_whole(&one, 3)), "it was killed amid its messages");
    // The end and the return may be one change.
    let is_without = |it: &Delivery| matches!(it, Delivery::Configuration(it) if it.is_transitional && it.members == [1, 2]);
    assert!(one.iter().any(is_without), "the others went on without it");
}

/// The third member: its first process sends run 3, its second one run 4.
fn be_killed(dir: &Path) {
    let process = std::fs::read_to_string(dir.join("process")).unwrap().parse().unwrap();
    let run = if dir.join("3.ring").exists() { 4 } else { 3 };
    let ring = join(3, &members(process, 3), dir);
    until_all_are_in(&ring, 3);
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(&ring, run));
        loop {
            next(&ring);
        }
    });
}

#[test]
fn end_of_member_is_noticed_without_silence() {
    let (dir, members) = (tempfile::tempdir().unwrap(), members(std::process::id() ^ 0x80_0000, 3));
    let mut rings: Vec<Ring> = (1..=3).map(|me| join(me, &members, dir.path())).collect();
    rings.iter().for_each(|ring| until_all_are_in(ring, 3));
    let begun = Instant::now();
    drop(rings.pop());
    let seen = [next(&rings[0]), next(&rings[0])];
    let members = vec![1, 2];
    let [before, after] = [(false, true), (true, false)].map(|(is_primary, is_transitional)| {
        Delivery::Configuration(Configuration { members: members.clone(), is_primary, is_transitional })
    });
    assert_eq!(seen, [before, after]);
    assert!(begun.elapsed() < Duration::from_secs(3), "it took {:?}", begun.elapsed());
}

#[test]
fn dropped_member_has_sent_its_messages() {
    let (dir, members) = (tempfile::tempdir().unwrap(), members(std::process::id() ^ 0x20_0000, 2));
    let mut rings: Vec<Ring> = (1..=2).map(|me| join(me, &members, dir.path())).collect();
    rings.iter().for_each(|ring| until_all_are_in(ring, 2));
    let last = rings.pop().unwrap();
    (0..100).for_each(|number| last.send(&message(1, number).0, message(1, number).1).unwrap());
    drop(last);
    for number in 0..100 {
        let Delivery::Message(it) = next(&rings[0]) else { panic!("message {number} is lost") };
        assert_eq!(read(&it), (1, number));
    }
}

/// A member with a file of keys of its own.
fn join_sealed(me: u64, members: &[(u64, SocketAddr)], dir: &Path) -> Ring {
    let config = RingConfig::new(me, members.iter().copied(), dir.join(format!("{me}.ring")));
    let key = Some(dir.join(format!("{me}.key")));
    Ring::join(RingConfig { silence: Duration::from_secs(3), key, ..config }).unwrap()
}

#[test]
fn key_of_sealed_ring_changes_amid_messages() {
    let (dir, members) = (tempfile::tempdir().unwrap(), members(std::process::id() ^ 0x10_0000, 3));
    let [old, new] = ["old", "new"].map(|name| {
        make_key(dir.path().join(name)).unwrap();
        std::fs::read_to_string(dir.path().join(name)).unwrap()
    });
    let at = |me: u64| dir.path().join(format!("{me}.key"));
    (1..=3).for_each(|me| _ = std::fs::copy(dir.path().join("old"), at(me)).unwrap());
    let rings: Vec<Ring> = (1..=3).map(|me| join_sealed(me, &members, dir.path())).collect();
    rings.iter().for_each(|ring| until_all_are_in(ring, 3));
    let texts = [format!("{old}{new}"), format!("{new}{old}"), new.clone()];
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for text in &texts {
                for me in 1..=3 {
                    std::fs::write(at(me), text).unwrap();
                }
                // All members read their files within this time, some before others.
                std::thread::sleep(Duration::from_millis(2_500));
            }
            is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        let (mut sent, mut came) = (0, 0);
        while !is_over.load(std::sync::atomic::Ordering::SeqCst) || came < sent {
            if !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                rings[0].send(&message(1, sent).0, message(1, sent).1).unwrap();
                sent += 1;
            }
            while came + 50 < sent || came < sent && is_over.load(std::sync::atomic::Ordering::SeqCst) {
                for ring in &rings {
                    let Delivery::Message(it) = next(ring) else { panic!("the members change") };
                    assert_eq!(read(&it), (1, came));
                }
                came += 1;
            }
        }
        assert!(came > 1_000, "{came} messages");
    });
    // A process with the new key alone finds them all; its process before had the old one.
    drop(rings);
    let rings: Vec<Ring> = (1..=3).map(|me| join_sealed(me, &members, dir.path())).collect();
    rings.iter().for_each(|ring| until_all_are_in(ring, 3));
}

#[test]
fn member_with_another_key_is_not_heard() {
    let (dir, members) = (tempfile::tempdir().unwrap(), members(std::process::id() ^ 0x08_0000, 3));
    let at = |me: u64| dir.path().join(format!("{me}.key"));
    make_key(at(1)).unwrap();
    std::fs::copy(at(1), at(2)).unwrap();
    make_key(at(3)).unwrap();
    let stranger = join_sealed(3, &members, dir.path());
    let mut rings: Vec<Ring> = (1..=2).map(|me| join_sealed(me, &members, dir.path())).collect();
    rings.iter().for_each(|ring| until_all_are_in(ring, 2));
    // Nor is a plain member, and these go on.
    drop(stranger);
    let plain = join(3, &members, dir.path());
    (0..500).for_each(|number| rings[0].send(&message(1, number).0, message(1, number).1).unwrap());
    for number in 0..500 {
        let Delivery::Message(it) = next(&rings[1]) else { panic!("the members change") };
        assert_eq!(read(&it), (1, number));
    }
    // It is heard with the key of the others.
    drop((plain, rings.pop()));
    std::fs::remove_file(at(3)).unwrap();
    std::fs::copy(at(1), at(3)).unwrap();
    let _third = join_sealed(3, &members, dir.path());
    let is_it = |it: Delivery| matches!(it, Delivery::Configuration(it) if it.members == [1, 3] && !it.is_transitional);
    while !is_it(next(&rings[0])) {}
}

#[test]
fn settings_that_cannot_be_name_their_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let config = |members: &[(u64, SocketAddr)]| RingConfig::new(1, members.to_vec(), dir.path().join("1"));
    let (a, b) = (at("127.0.0.1:7100"), at("127.0.0.1:7101"));
    let far = config(&[(1, at("192.0.2.1:7100")), (2, b)]);
    let wrong = [
        (config(&[(1, a)]), "are 2 to 16"),
        (config(&[(1, a), (1, b)]), "the same"),
        (config(&[(2, a), (3, b)]), "this one among them"),
        (config(&[(1, at("127.0.0.1:0")), (2, b)]), "one has none"),
        (far, "set `allows_network`"),
        (RingConfig { key: Some(dir.path().join("none")), ..config(&[(1, a), (2, b)]) }, "cannot be read"),
        (RingConfig { packet_bytes: Some(699), ..config(&[(1, a), (2, b)]) }, "choose another value"),
    ];
    for (config, says) in wrong {
        let error = Ring::join(config).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let members = members(std::process::id() ^ 0x40_0000, 2);
    let ring = join(1, &members, dir.path());
    for file in ["1.ring", "another.ring"] {
        let again = RingConfig::new(1, members.clone(), dir.path().join(file));
        assert!(matches!(Ring::join(again), Err(RingError::InUse(_))));
    }
    assert!(matches!(ring.send(&vec![0; (1 << 20) + 1], Level::Agreed), Err(RingError::TooLarge(_))));
}
