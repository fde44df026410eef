//! The age of the states that transactions read, on real processes: strict, bounded, stale, tokens, and
//! outages.
//!
//! The server that is killed is this very program: with `TERCEL_TEST_SERVE_FRESH` set, the test serves
//! instead of testing.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Killed, counter, serve};
use tercel::{
    Address, Client, ClientConfig, Error, Freshness, Isolation, Server, ServerConfig, SpaceId, Token,
};
use tercel_testkit::ends::Ends;

const SERVE: &str = "TERCEL_TEST_SERVE_FRESH";
const SERVED: (&str, &str) = ("fresh::stale_readers_go_on_through_a_kill", SERVE);
const KEEPALIVE: Duration = Duration::from_millis(400);

fn socket(dir: &Path) -> Address {
    Address::Unix(dir.join("socket"))
}

fn connect(dir: &Path) -> Client {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match Client::connect(socket(dir)) {
            Ok(client) => return client,
            Err(Error::Unavailable(_)) if Instant::now() < end => std::thread::yield_now(),
            Err(e) => panic!("{e}"),
        }
    }
}

/// The experience of a reader: the longest time between two reads that worked, and the times at which reads
/// began and ceased to fail.
#[derive(Debug, Default)]
struct Seen {
    gap: Duration,
    failed: Option<Instant>,
    worked: Option<Instant>,
    errors: u32,
}

fn read_until(over: &AtomicBool, read: impl Fn() -> Result<u64, Error>) -> Seen {
    let mut seen = Seen::default();
    let mut last = Instant::now();
    while !over.load(Ordering::SeqCst) {
        let result = read();
        let now = Instant::now();
        match result {
            Ok(_) => {
                seen.gap = seen.gap.max(now - last);
                last = now;
                if seen.failed.is_some() {
                    seen.worked.get_or_insert(now);
                }
            }
            Err(Error::Unavailable(_)) => {
                seen.failed.get_or_insert(now);
                seen.errors += 1;
            }
            Err(e) => panic!("{e}"),
        }
    }
    seen
}

#[test]
fn stale_readers_go_on_through_a_kill() {
    if let Ok(dir) = std::env::var(SERVE) {
        let dir = Path::new(&dir);
        let config = ServerConfig {
            listen: vec![socket(dir)],
            keepalive: KEEPALIVE,
            ..ServerConfig::new(dir.join("space"))
        };
        return Server::start(config).unwrap().wait().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Killed::start(dir.path(), SERVED);
    let (stale, recent) = (connect(dir.path()), connect(dir.path()));
    let c = counter(&stale, "c");
    let over = AtomicBool::new(false);
    let outage = KEEPALIVE * 5;
    let (of_stale, of_recent, killed, restarted, _server) = std::thread::scope(|s| {
        let ends = Ends(&over);
        let of_stale = s.spawn(|| {
            read_until(&over, || {
                stale.transaction().stale().run(|tx| {
                    assert!(tx.as_of().token.stamp <= tx.snapshot());
                    Ok(tx.get(c)?.count())
                })
            })
        });
        let of_recent = s.spawn(|| read_until(&over, || recent.run(|tx| Ok(tx.get(c)?.count()))));
        std::thread::sleep(KEEPALIVE);
        drop(server);
        let killed = Instant::now();
        std::thread::sleep(outage);
        let server = Killed::start(dir.path(), SERVED);
        // Both have come back when they see what is committed now.
        let writer = connect(dir.path());
        let restarted = Instant::now();
        let token = {
            let tx = writer.transaction().begin().unwrap();
            tx.edit(c).unwrap().set_count(1).unwrap();
            tx.commit().unwrap().token
        };
        for client in [&stale, &recent] {
            let newer = client.transaction().at_least(token).timeout(Duration::from_secs(20));
            assert_eq!(newer.run(|tx| Ok(tx.get(c)?.count())), Ok(1));
        }
        drop(ends);
        (of_stale.join().unwrap(), of_recent.join().unwrap(), killed, restarted, server)
    });
    assert_eq!(of_stale.errors, 0);
    // Without a gap, but for what a busy machine takes.
    assert!(of_stale.gap < outage / 4, "{of_stale:?}");
    // No longer than two keepalives, and what a busy machine takes; and not at once, for what is recent may
    // be read.
    let failed = of_recent.failed.expect("the server was gone for five keepalives") - killed;
    assert!(
        failed > KEEPALIVE / 2 && failed < 2 * KEEPALIVE + Duration::from_millis(500),
        "after {failed:?}"
    );
    // Not in a storm.
    let rate = f64::from(of_recent.errors) / (outage.as_secs_f64() - 2.0 * KEEPALIVE.as_secs_f64() + 1.0);
    assert!(rate <= 10.0, "{} errors", of_recent.errors);
    let back = of_recent.worked.unwrap_or_else(Instant::now).saturating_duration_since(restarted);
    assert!(back < Duration::from_secs(5), "after {back:?}");
}

#[test]
fn strict_reader_sees_what_was_acknowledged_before_it_began() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let (writer, reader) =
        (Client::connect(&server.addresses()[0]).unwrap(), Client::connect(&server.addresses()[0]).unwrap());
    let c = counter(&writer, "c");
    let strict = reader.transaction().isolation(Isolation::Strict);
    let newest = reader.transaction().isolation(Isolation::Snapshot).bounded(Duration::ZERO);
    for count in 1..300 {
        writer.run(|tx| tx.edit(c)?.set_count(count)).unwrap();
        assert_eq!(strict.run(|tx| Ok(tx.get(c)?.count())), Ok(count));
        writer.run(|tx| tx.edit(c)?.set_count(1_000 + count)).unwrap();
        assert_eq!(newest.run(|tx| Ok(tx.get(c)?.count())), Ok(1_000 + count));
    }
    // Those that begin together share questions.
    let before = reader.stats().client.questions;
    std::thread::scope(|s| {
        for _ in 0..16 {
            s.spawn(|| (0..50).for_each(|_| assert_eq!(strict.run(|tx| Ok(tx.get(c)?.count())), Ok(1_299))));
        }
    });
    let asked = reader.stats().client.questions - before;
    assert!(asked < 16 * 50, "{asked} questions for 800 transactions");
    drop((writer, reader));
    server.stop().unwrap();
}

#[test]
fn token_passed_on_shows_the_commit_it_is_of() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let (writer, reader) =
        (Client::connect(&server.addresses()[0]).unwrap(), Client::connect(&server.addresses()[0]).unwrap());
    let c = counter(&writer, "c");
    for count in 1..300 {
        let tx = writer.transaction().begin().unwrap();
        tx.edit(c).unwrap().set_count(count).unwrap();
        // As another process would get it.
        let token: Token = tx.commit().unwrap().token.to_string().parse().unwrap();
        let seen =
            reader.transaction().at_least(token).run(|tx| Ok((tx.get(c)?.count(), tx.as_of().token.stamp)));
        assert_eq!(seen, Ok((count, token.stamp)));
    }
    // At hand: nothing is sent.
    let token = writer.transaction().begin().unwrap().commit().unwrap().token;
    let before = writer.stats().client.questions;
    (0..1_000).for_each(|_| drop(writer.transaction().at_least(token).begin().unwrap()));
    assert!(writer.stats().client.questions - before <= 1, "a keepalive's at most");
    // The program inside of the server takes them, too.
    assert!(server.transaction().at_least(token).begin().is_ok());
    // Of another space, and of no view that this space ever had.
    let of_another = Token { space: SpaceId(token.space.0 ^ 1), ..token };
    let of_nowhere = Token { view: tercel::ViewId::new(token.view.number, !token.view.incarnation), ..token };
    for wrong in [of_another, of_nowhere] {
        let refused = reader.transaction().at_least(wrong).begin().map(drop);
        assert!(matches!(refused, Err(Error::OtherHistory(_))), "{refused:?}");
        let refused = server.transaction().at_least(wrong).begin().map(drop);
        assert!(matches!(refused, Err(Error::OtherHistory(_))), "{refused:?}");
    }
    // One that is not reached in time says so.
    let far = Token { stamp: tercel::Stamp(token.stamp.0 + 1_000_000), ..token };
    let late = reader.transaction().at_least(far).timeout(Duration::from_millis(50)).begin().map(drop);
    assert!(matches!(&late, Err(Error::Unavailable(why)) if why.contains("in time")), "{late:?}");
    drop((writer, reader));
    server.stop().unwrap();
}

#[test]
fn bounded_reader_is_never_older_than_its_bound() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let config =
        ClientConfig { freshness: Freshness::Bounded(Duration::from_millis(5)), ..ClientConfig::default() };
    let reader = Client::connect_with(&server.addresses()[0], config).unwrap();
    let c = counter(&reader, "c");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        let begin = Instant::now();
        let age = reader.run(|tx| tx.get(c).map(|_| tx.as_of().age)).unwrap();
        assert!(age <= Duration::from_millis(5) + begin.elapsed(), "{age:?}");
    }
    let asked = reader.stats().client.questions;
    assert!((3..=300).contains(&asked), "{asked} questions in 300 ms");
    // The server is gone, and soon no state is new enough.
    server.stop().unwrap();
    let stopped = Instant::now();
    let late = loop {
        match reader.transaction().timeout(Duration::from_millis(100)).begin().map(drop) {
            Ok(()) if stopped.elapsed() < Duration::from_millis(50) => {}
            late => break late,
        }
    };
    assert!(matches!(late, Err(Error::Unavailable(_))), "{late:?}");
    assert_eq!(reader.transaction().stale().run(|tx| Ok(tx.get(c)?.count())), Ok(0));
}
