//! Real threads: readers follow a graph while the writer flags, installs and evicts.
//!
//! Each commit gives a pair of objects one and the same new number. A transaction that reads both sees them
//! equal, or is told to start again.

use crate::common::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use tercel_heap::*;
use tercel_lock::unpoison;
use tercel_machine::random::Random;
use tercel_wire::id::{Oref, PageId, Stamp};

const PAGES: u32 = 80;
const SLOTS: u16 = 8;
/// Time beyond the usual in which everything must have happened once.
const LATE: std::time::Duration = std::time::Duration::from_secs(60);

/// The process-wide fence, where the system has one.
struct Membarrier;

// SAFETY: the expedited private command is a full barrier on every running thread of the process.
unsafe impl Fence for Membarrier {
    fn heavy(&self) {
        use rustix::thread::{MembarrierCommand, membarrier};
        membarrier(MembarrierCommand::PrivateExpedited).expect("registered at the start of the test");
    }

    fn is_process_wide(&self) -> bool {
        true
    }
}

fn membarrier_works() -> bool {
    use rustix::thread::{MembarrierCommand, membarrier};
    membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

fn lock(w: &Mutex<World>) -> MutexGuard<'_, World> {
    unpoison(w.lock())
}

/// The partner with the same number: the same slot, half the pages on.
fn partner(o: Oref) -> Oref {
    oref((o.page().get() - 1 + PAGES / 2) % PAGES + 1, o.slot())
}

fn node(rng: &mut Random, id: u64, o: Oref) -> Node {
    let page = 1 + rng.below(PAGES as u64) as u32;
    let next = match rng.below(3) {
        0 => oref(page, rng.below(SLOTS as u64) as u16),
        _ => oref(o.page().get(), rng.below(SLOTS as u64) as u16),
    };
    Node::new(id, &"y".repeat(rng.below(60) as usize), next, &[partner(o)])
}

/// A step of a transaction: hits without the lock, everything else under it.
fn step<'s>(
    w: &Mutex<World>,
    scope: &'s Scope,
    from: Option<&View<'s, Node>>,
    at: usize,
    o: Oref,
    hits: &AtomicU64,
) -> Result<View<'s, Node>, Stop> {
    if let Some(v) = from {
        if let Lookup::Hit(next) = scope.follow(v, at) {
            hits.fetch_add(1, Relaxed);
            return Ok(next);
        }
        return lock(w).follow(scope, v, at).map(|v| v.expect("no reference of the test is null"));
    }
    lock(w).get(scope, o)
}

fn read(w: &Mutex<World>, reader: &Reader, seed: u64, stop: &AtomicBool, hits: &AtomicU64, done: &AtomicU64) {
    let mut rng = Random::new(seed);
    let mut scope = reader.scope().unwrap();
    while !stop.load(Relaxed) {
        let complete = (|| {
            let o = oref(1 + rng.below(PAGES as u64) as u32, rng.below(SLOTS as u64) as u16);
            let mut v = step(w, &scope, None, 0, o, hits)?;
            for _ in 0..30 {
                let tercel_wire::layout::Var::Here { at, len: 1 } = v.var(KIDS) else { panic!() };
                let other = step(w, &scope, Some(&v), at, o, hits)?;
                assert_eq!(other.oref(), partner(v.oref()));
                assert_eq!(
                    v.fixed::<u64>(ID),
                    other.fixed::<u64>(ID),
                    "a pair is read as one commit left it"
                );
                assert!(v.text_at(NAME).unwrap().bytes().all(|b| b == b'y'));
                let next = step(w, &scope, Some(&v), NEXT, o, hits)?;
                assert_eq!(next.oref(), v.word(NEXT).0);
                v = next;
            }
            Ok::<(), Stop>(())
        })();
        done.fetch_add(complete.is_ok() as u64, Relaxed);
        scope.reset();
    }
}

fn run(fence: Box<dyn Fence>, millis: u64) {
    let config = Config { budget_bytes: 400 << 10, scopes_max: 4, ..Config::default() };
    let memory = Boxed::new(arena_bytes(&config).unwrap());
    let (reader, mut writer) = heap(config, Box::new(memory), fence).unwrap();
    defined(&mut writer);
    let mut world = World { server: Server::default(), reader, writer, fetches: vec![], verify_each: false };
    let mut rng = Random::new(3);
    for p in 1..=PAGES {
        for s in 0..SLOTS {
            world.server.put(oref(p, s), Kept::Plain, node(&mut rng, 0, oref(p, s)));
        }
    }
    let reader = world.reader.clone();
    let world = Mutex::new(world);
    let (stop, hits, done) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let end = std::time::Instant::now() + std::time::Duration::from_millis(millis);
    std::thread::scope(|threads| {
        let readers: Vec<_> = (1..4u64)
            .map(|seed| {
                let (world, reader, stop, hits, done) = (&world, &reader, &stop, &hits, &done);
                threads.spawn(move || read(world, reader, seed * 7919, stop, hits, done))
            })
            .collect();
        let mut id = 0;
        while !readers.iter().any(|r| r.is_finished()) {
            let mut w = lock(&world);
            let stats = w.writer.stats();
            let enough =
                hits.load(Relaxed) > 100 && done.load(Relaxed) > 0 && stats.taken > 0 && stats.flagged > 0;
            let now = std::time::Instant::now();
            // A busy machine gets more time.
            if now >= end && enough || now >= end + LATE {
                break;
            }
            let o = oref(1 + rng.below(PAGES as u64) as u32, rng.below(SLOTS as u64) as u16);
            match rng.below(8) {
                0 => {
                    id += 1;
                    let pair = [o, partner(o)].map(|o| (o, node(&mut rng, id, o)));
                    w.commit(&pair);
                    if w.writer.is_held(o.page()) {
                        w.writer.install_own(o, &pair[0].1.object(), Stamp::ZERO).ok();
                    }
                }
                1 => {
                    w.fetch(PageId::new(o.page().get()).unwrap()).ok();
                }
                2 => w.writer.verify().unwrap(),
                _ => {
                    w.writer.reserve().ok();
                }
            }
            w.server.versions.values_mut().for_each(|v| {
                v.drain(..v.len() - 1);
            });
            drop(w);
            std::thread::yield_now();
        }
        stop.store(true, Relaxed);
    });
    let w = lock(&world);
    w.writer.verify().unwrap();
    let stats = w.writer.stats();
    assert!(done.load(Relaxed) > 0 && hits.load(Relaxed) > 100, "{stats:?}");
    assert!(stats.taken > 0 && stats.flagged > 0, "{stats:?}");
}

#[test]
fn readers_see_whole_commits_under_the_readers_own_fence() {
    run(Box::new(SeqCst), 1500);
}

#[test]
fn readers_see_whole_commits_under_the_process_wide_fence() {
    if membarrier_works() {
        run(Box::new(Membarrier), 1500);
    }
}
