//! Sessions over two spaces, used by tasks of a runtime.

use std::path::Path;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use futures_executor::block_on;
use tercel::{Address, Client, ClientConfig, Cut, Error, Isolation, Options, Ref, Server, Session, Spaces};

use crate::common::{Counter, counter};

const NAMES: [&str; 2] = ["north", "south"];
/// The money in both spaces.
const ALL: u64 = 1_000;

struct World {
    dir: tempfile::TempDir,
    _servers: [Server; 2],
    purses: [Ref<Counter>; 2],
}

fn socket(dir: &Path, name: &str) -> Address {
    Address::Unix(dir.join(name).with_extension("socket"))
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let serve = |name: &str, peer: &str| {
            let server = Server::builder(dir.path().join(name)).listen(socket(dir.path(), name));
            server.peer(socket(dir.path(), peer).to_string()).start().unwrap()
        };
        let servers = [serve("north", "south"), serve("south", "north")];
        let mut world = World { dir, _servers: servers, purses: [Ref::NULL; 2] };
        let spaces = world.spaces();
        world.purses = NAMES.map(|name| counter(spaces.client(name).unwrap(), "purse"));
        let fill = |cut: &Cut<'_>| cut.space("north")?.edit(world.purses[0])?.set_count(ALL);
        spaces.session().run(fill).unwrap();
        world
    }

    /// Clients with nothing cached.
    fn spaces(&self) -> Spaces {
        let at = NAMES.map(|name| socket(self.dir.path(), name).to_string());
        block_on(Spaces::connect_async(NAMES.into_iter().zip(at.iter().map(String::as_str)))).unwrap()
    }

    fn counts(&self, cut: &Cut<'_>) -> Result<[u64; 2], Error> {
        let count = |i: usize| Ok::<_, Error>(cut.space(NAMES[i])?.get(self.purses[i])?.count());
        Ok([count(0)?, count(1)?])
    }

    /// Moves one from the richer to the poorer.
    fn transfer(&self, cut: &Cut<'_>) -> Result<(), Error> {
        let counts = self.counts(cut)?;
        let from = usize::from(counts[1] > counts[0]);
        cut.space(NAMES[from])?.edit(self.purses[from])?.set_count(counts[from] - 1)?;
        cut.space(NAMES[1 - from])?.edit(self.purses[1 - from])?.set_count(counts[1 - from] + 1)
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn assert_send<F: Send>(future: F) -> F {
    future
}

#[test]
fn tasks_transfer_between_spaces_and_lose_nothing() {
    let world = World::new();
    let spaces = world.spaces();
    runtime().block_on(async {
        let transfers = |mut session: Session<'static>| {
            let world = &world;
            async move {
                for _ in 0..20 {
                    assert_send(session.run_async(|cut| world.transfer(cut))).await.unwrap();
                    let counts = session.read_async(|cut| world.counts(cut)).await.unwrap();
                    assert_eq!(counts.iter().sum::<u64>(), ALL);
                }
            }
        };
        // Both on one thread: neither may block it.
        let (mut one, mut other) =
            (Box::pin(transfers(spaces.session())), Box::pin(transfers(spaces.session())));
        let mut ended = [false; 2];
        std::future::poll_fn(|cx| {
            ended[0] = ended[0] || one.as_mut().poll(cx).is_ready();
            ended[1] = ended[1] || other.as_mut().poll(cx).is_ready();
            if ended == [true; 2] { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    });
    let counts = spaces.session().read(|cut| world.counts(cut)).unwrap();
    assert_eq!(counts.iter().sum::<u64>(), ALL);
    assert_eq!(counts[1], 40, "one each from the richer");
}

#[test]
fn cut_is_read_by_misses_then_at_once() {
    let world = World::new();
    let mut session = world.spaces().session();
    let runtime = runtime();
    let mut runs = 0;
    let mut read = |session: &mut Session<'static>, options: Options| {
        runs = 0;
        let counted = |cut: &Cut<'_>| {
            runs += 1;
            world.counts(cut)
        };
        let counts = runtime.block_on(session.read_async_with(options, counted)).unwrap();
        (counts, runs)
    };
    let (counts, cold) = read(&mut session, Options::default());
    assert_eq!(counts, [ALL, 0]);
    assert!(cold > 1, "nothing was cached");
    assert_eq!(read(&mut session, Options::default()), (counts, 1));
    // Asked after all was read: it runs again, for nothing may wait in between.
    let (strict, runs) = read(&mut session, Isolation::Strict.into());
    assert!(strict == counts && runs < 20, "{runs}");
    let writes = session.read(|cut| world.transfer(cut)).unwrap_err();
    let too = runtime.block_on(session.read_async(|cut| world.transfer(cut))).unwrap_err();
    assert_eq!(writes, too);
}

#[test]
fn strict_cut_sees_what_was_acknowledged_before() {
    let world = World::new();
    let (writer, mut reader) = (world.spaces().session(), world.spaces().session());
    let runtime = runtime();
    for n in 1..=10 {
        writer.run(|cut| world.transfer(cut)).unwrap();
        let strict = reader.read_async_with(Isolation::Strict, |cut| world.counts(cut));
        assert_eq!(runtime.block_on(strict).unwrap(), [ALL - n, n]);
    }
}

#[test]
fn transfer_may_be_dropped_at_every_await() {
    let world = World::new();
    let spaces = world.spaces();
    let mut session = spaces.session();
    let (runtime, mut done, mut dropped) = (runtime(), 0, 0);
    // On a busy host a run is through after few polls. It is begun again until enough of them were dropped.
    for (round, polls) in (0..24).cycle().enumerate() {
        if round >= 24 && dropped > 5 {
            break;
        }
        let mut run = Box::pin(session.run_async(|cut| world.transfer(cut)));
        let mut polls_left = polls;
        let ended = loop {
            if let Poll::Ready(end) = run.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                end.unwrap();
                break true;
            }
            if polls_left == 0 {
                break false;
            }
            polls_left -= 1;
            thread::sleep(Duration::from_micros(300));
        };
        drop(run);
        if ended {
            done += 1
        } else {
            dropped += 1
        }
        // It gets past whatever the dropped one has left behind.
        runtime.block_on(session.run_async(|cut| world.transfer(cut))).unwrap();
        done += 1;
    }
    // Each transfer was made in both spaces or in none.
    let counts = runtime.block_on(session.read_async(|cut| world.counts(cut))).unwrap();
    assert_eq!(counts.iter().sum::<u64>(), ALL);
    assert!((done..=done + dropped).contains(&counts[1]), "{counts:?}: {done} and {dropped}");
}

/// While as many transactions are open as a client takes, a session waits for one of them to end, by a task
/// or a thread.
#[test]
fn session_waits_for_a_transaction_to_end() {
    let world = World::new();
    let few = ClientConfig { transactions_max: 1, ..ClientConfig::default() };
    let client = |name| Client::connect_with(socket(world.dir.path(), name), few.clone()).unwrap();
    let spaces = NAMES.into_iter().fold(Spaces::new(), |all, name| all.with(name, client(name)));
    for by_task in [true, false] {
        let open = spaces.client("north").unwrap().transaction().begin().unwrap();
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut session = spaces.session();
                let read = |cut: &Cut<'_>| world.counts(cut);
                tell.send(if by_task { block_on(session.read_async(read)) } else { session.read(read) })
                    .unwrap();
            });
            let early = told.recv_timeout(Duration::from_millis(100));
            drop(open);
            assert!(early.is_err(), "{early:?}");
            assert_eq!(told.recv().unwrap(), Ok([ALL, 0]));
        });
    }
}
