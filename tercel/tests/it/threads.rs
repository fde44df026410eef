//! Many threads on one cache while another client changes what they read: no thread ever sees a mixture of
//! two states. This holds for a thread that goes on reading after a conflict, and while the cache is so small
//! that objects come and go.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::serve;
use tercel::{Client, ClientConfig, Error, List, Object, Ref, Tx};
use tercel_testkit::ends::Ends;

/// Objects with one number have it from one commit; each knows its partner and the next pair.
#[derive(Object, Debug, Clone, PartialEq)]
struct Half {
    number: u64,
    partner: Ref<Half>,
    next: List<Ref<Half>>,
    ballast: [u8; 600],
}

const PAIRS: usize = 800;

/// 16 threads' worth of marks and a fraction of the 1 MB of objects.
const CACHE_BYTES: usize = 640 << 10;

fn build(client: &Client) -> Vec<Ref<Half>> {
    client
        .run(|tx| {
            let half =
                |next: List<Ref<Half>>| Half { number: 0, partner: Ref::NULL, next, ballast: [7; 600] };
            // Partners stand far from each other, so that a walk goes through pages and handles alike.
            let left: Vec<_> =
                (0..PAIRS).map(|_| tx.create(&half(List::default()))).collect::<Result<_, _>>()?;
            for (i, l) in left.iter().enumerate() {
                let next = List(vec![left[(i + 1) % PAIRS], left[(i * 7 + 3) % PAIRS]]);
                let right = tx.create(&Half { partner: *l, ..half(List::default()) })?;
                let edit = tx.edit(*l)?;
                edit.set_partner(right)?;
                edit.set_next(next)?;
            }
            Ok(left)
        })
        .unwrap()
}

/// Reads along pairs. An error may be passed over, as programs do; what is read nevertheless must be of one
/// state.
fn walk(tx: &Tx<'_>, from: Ref<Half>, steps: u64) -> Result<u64, Error> {
    let (mut pairs, mut at, mut failed) = (0, from, None);
    for step in 0..steps {
        let read = || -> Result<Ref<Half>, Error> {
            let left = tx.get(at)?;
            let right = left.partner().get()?;
            assert_eq!(left.number(), right.number(), "a pair is seen as one commit left it");
            let next = left.next().get((step % 2) as usize)?;
            Ok(next.reference())
        };
        match read() {
            Ok(next) => (pairs, at) = (pairs + 1, next),
            Err(e) => failed = Some(e),
        }
    }
    failed.map_or(Ok(pairs), Err)
}

#[test]
fn threads_of_one_cache_never_see_half_of_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let address = &server.addresses()[0];
    let writer = Client::connect(address).unwrap();
    let pairs = build(&writer);
    let config = ClientConfig { cache_bytes: CACHE_BYTES, ..ClientConfig::default() };
    let reader = Client::connect_with(address, config).unwrap();
    let (stop, read, conflicts) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let commits = std::thread::scope(|s| {
        let ends = Ends(&stop);
        let readers: Vec<_> = (0..4usize)
            .map(|t| {
                let (reader, pairs) = (&reader, &pairs);
                let (stop, read, conflicts) = (&stop, &read, &conflicts);
                s.spawn(move || {
                    let mut turn = t;
                    while !stop.load(Ordering::Relaxed) {
                        turn += 17;
                        let tx = reader.transaction().begin().unwrap();
                        match walk(&tx, pairs[turn % PAIRS], 24) {
                            Ok(n) => read.fetch_add(n, Ordering::Relaxed),
                            Err(Error::Conflict(_)) => conflicts.fetch_add(1, Ordering::Relaxed),
                            Err(e) => panic!("{e}"),
                        };
                    }
                })
            })
            .collect();
        let (begun, mut number) = (Instant::now(), 0);
        while begun.elapsed() < RUN && !readers.iter().any(|r| r.is_finished()) {
            number += 1;
            writer
                .run(|tx| {
                    // A few neighbours of one walk at once.
                    for k in 0..3 {
                        let left = tx.get(pairs[(number as usize * 13 + k) % PAIRS])?;
                        left.partner().get()?.edit()?.set_number(number)?;
                        left.edit()?.set_number(number)?;
                    }
                    Ok(())
                })
                .unwrap();
        }
        drop(ends);
        number
    });
    let (read, conflicts) = (read.into_inner(), conflicts.into_inner());
    assert!(
        commits > 20 && read > 1_000 && conflicts > 0,
        "{commits} commits, {read} pairs, {conflicts} conflicts"
    );
}

/// Long enough for thousands of commits to fall into walks.
const RUN: Duration = Duration::from_secs(3);

/// Who loses is refused when it can win, so clients of one object take turns.
#[test]
fn clients_of_one_object_take_turns() {
    const CLIENTS: u64 = 8;
    const EACH: u64 = 40;

    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let address = &server.addresses()[0];
    let first = Client::connect(address).unwrap();
    let half = Half { number: 0, partner: Ref::NULL, next: List::default(), ballast: [7; 600] };
    let shared = first.run(|tx| tx.create(&half)).unwrap();
    let tries = AtomicU64::new(0);
    std::thread::scope(|s| {
        for _ in 0..CLIENTS {
            s.spawn(|| {
                let client = Client::connect(address).unwrap();
                for _ in 0..EACH {
                    let added = client.run(|tx| {
                        tries.fetch_add(1, Ordering::Relaxed);
                        let number = tx.get(shared)?.number();
                        tx.edit(shared)?.set_number(number + 1)
                    });
                    added.unwrap();
                }
            });
        }
    });
    assert_eq!(first.run(|tx| Ok(tx.get(shared)?.number())).unwrap(), CLIENTS * EACH);
    let tries = tries.into_inner();
    assert!(tries < 4 * CLIENTS * EACH, "{tries} tries of {} commits", CLIENTS * EACH);
    first.close().unwrap();
    server.stop().unwrap();
}
