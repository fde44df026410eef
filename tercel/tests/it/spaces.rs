//! Sessions over two spaces, on real servers and sockets, while one of them is restarted again and again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_executor::block_on;
use tercel::{
    Address, ClientConfig, Cut, Error, Isolation, Object, Options, Ref, Server, ServerConfig, Session,
    Spaces, Tx,
};
use tercel_testkit::ends::Ends;

use crate::common::relay::Relay;

#[derive(Object)]
struct Count {
    count: u64,
}

fn socket(dir: &Path, name: &str) -> Address {
    Address::Unix(dir.join(name).with_extension("socket"))
}

/// Serves one of both spaces, with the other one's server as its peer.
fn serve(dir: &Path, name: &str) -> Server {
    let peer = socket(dir, if name == "causes" { "effects" } else { "causes" }).to_string();
    Server::builder(dir.join(name)).listen(socket(dir, name)).peer(peer).start().unwrap()
}

/// Connects to both spaces, of which one may be away for a moment.
fn connect(dir: &Path) -> Spaces {
    let [causes, effects] = ["causes", "effects"].map(|name| socket(dir, name).to_string());
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match Spaces::connect([("causes", causes.as_str()), ("effects", effects.as_str())]) {
            Err(Error::Unavailable(_)) if Instant::now() < end => thread::yield_now(),
            connected => return connected.unwrap(),
        }
    }
}

fn make(session: &Session<'_>, space: &str) -> Ref<Count> {
    let made = session.space(space).unwrap().run(|tx| {
        let made = tx.create(&Count { count: 0 })?;
        tx.set_root("count", made)?;
        Ok(made)
    });
    made.unwrap()
}

fn count(tx: &Tx<'_>, r: Ref<Count>) -> Result<u64, Error> {
    Ok(tx.get(r)?.count())
}

/// A result, unless a server is away.
fn there<R>(result: Result<R, Error>) -> Option<R> {
    match result {
        Ok(value) => Some(value),
        Err(Error::Unavailable(_) | Error::Conflict(_)) => None,
        Err(e) => panic!("{e}"),
    }
}

const ROUNDS: u64 = 200;
const RESTARTS: u64 = 4;

#[test]
fn effects_never_come_before_causes_through_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (_causes, mut effects) = (serve(dir, "causes"), Some(serve(dir, "effects")));
    let spaces = connect(dir);
    let session = spaces.session();
    let (cause, effect) = (make(&session, "causes"), make(&session, "effects"));
    let (is_over, written, cuts) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ends = Ends(&is_over);
            let session = spaces.session();
            for n in 1..=ROUNDS {
                for (space, object) in [("causes", cause), ("effects", effect)] {
                    let set = |tx: &Tx<'_>| tx.edit(object)?.set_count(n);
                    while there(session.space(space).unwrap().run(set)).is_none() {}
                }
                written.store(n, Ordering::Relaxed);
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                // A cache of its own, and a session that never ends.
                let spaces = connect(dir);
                let session = spaces.session();
                let mut last = (0, 0);
                while !is_over.load(Ordering::Relaxed) {
                    let seen = there(session.space("effects").unwrap().read(|tx| count(tx, effect)));
                    let cut = session.read(|cut| {
                        Ok((count(cut.space("causes")?, cause)?, count(cut.space("effects")?, effect)?))
                    });
                    let Some((cause, effect)) = there(cut) else { continue };
                    assert!(cause >= effect, "effect {effect} without its cause, which is at {cause}");
                    assert!(
                        effect >= seen.unwrap_or(0).max(last.1) && cause >= last.0,
                        "a session goes back"
                    );
                    last = (cause, effect);
                    cuts.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for n in 1..=RESTARTS {
            while written.load(Ordering::Relaxed) < n * ROUNDS / (RESTARTS + 1)
                && !is_over.load(Ordering::Relaxed)
            {
                thread::yield_now();
            }
            effects.take().unwrap().stop().unwrap();
            effects = Some(serve(dir, "effects"));
        }
    });
    assert!(cuts.into_inner() > 10);
}

const MONEY: u64 = 1_000;
const TELLERS: u64 = 3;

#[test]
fn money_moves_through_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut servers = ["causes", "effects"].map(|name| Some(serve(dir, name)));
    let spaces = connect(dir);
    let session = spaces.session();
    let purses = [("causes", make(&session, "causes")), ("effects", make(&session, "effects"))];
    for (space, purse) in purses {
        session.space(space).unwrap().run(|tx| tx.edit(purse)?.set_count(MONEY)).unwrap();
    }
    let (is_over, moved, cuts) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let count_both = |cut: &Cut<'_>| {
        let [one, other] = purses.map(|(space, purse)| count(cut.space(space)?, purse));
        Ok(one? + other?)
    };
    thread::scope(|scope| {
        for teller in 0..TELLERS {
            let (moved, cuts, is_over) = (&moved, &cuts, &is_over);
            scope.spawn(move || {
                let _ends = Ends(is_over);
                let spaces = connect(dir);
                let session = spaces.session();
                // On a busy host the restarts leave more of the payments without an answer.
                let end = Instant::now() + Duration::from_secs(60);
                for n in 0.. {
                    let is_enough =
                        moved.load(Ordering::Relaxed) > 10 * RESTARTS && cuts.load(Ordering::Relaxed) > 10;
                    if n >= ROUNDS / 2 && (is_enough || Instant::now() > end) {
                        break;
                    }
                    let mut both = purses;
                    both.rotate_left(((teller + n) % 2) as usize);
                    let [(from, purse), (to, other)] = both;
                    let ended = session.run(|cut| {
                        let (from, to) = (cut.space(from)?, cut.space(to)?);
                        let (count, other_count) = (count(from, purse)?, count(to, other)?);
                        from.edit(purse)?.set_count(count - 1)?;
                        to.edit(other)?.set_count(other_count + 1)
                    });
                    // Whether one was committed of which nothing was heard is not asked here.
                    if !matches!(ended, Err(Error::Timeout | Error::Unknown { .. })) && there(ended).is_some()
                    {
                        moved.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        scope.spawn(|| {
            let spaces = connect(dir);
            let session = spaces.session();
            while !is_over.load(Ordering::Relaxed) {
                let isolation = [Isolation::Serializable, Isolation::Strict];
                let isolation = isolation[cuts.load(Ordering::Relaxed) as usize % 2];
                let cut = session.read_with(isolation, count_both);
                let Some(both) = there(cut) else { continue };
                assert_eq!(both, 2 * MONEY, "{isolation:?}");
                cuts.fetch_add(1, Ordering::Relaxed);
            }
        });
        for n in 1..=RESTARTS {
            while moved.load(Ordering::Relaxed) < n * 10 && !is_over.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            let (i, name) = [(0, "causes"), (1, "effects")][n as usize % 2];
            servers[i].take().unwrap().stop().unwrap();
            servers[i] = Some(serve(dir, name));
        }
    });
    // What was left unsettled is settled by the servers, and a strict reader waits for it.
    let reader = spaces.session();
    let both = (0..100).find_map(|_| there(reader.read_with(Isolation::Strict, count_both)));
    assert_eq!(both, Some(2 * MONEY));
    assert!(cuts.into_inner() > 10 && moved.into_inner() > 10 * RESTARTS);
}

const READERS: usize = 8;
const READS: usize = 300;
const MOVED: u64 = 20;

#[test]
fn strict_readers_of_a_held_object_starve_not() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let _servers = (serve(dir, "causes"), serve(dir, "effects"));
    let spaces = connect(dir);
    let session = spaces.session();
    let (cause, effect) = (make(&session, "causes"), make(&session, "effects"));
    let (is_over, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        // The object is held nearly all the time, by one part after the other.
        scope.spawn(|| {
            let session = spaces.session();
            while !is_over.load(Ordering::SeqCst) {
                let both = session.run(|cut| {
                    cut.space("causes")?.edit(cause)?.set_count(moved.load(Ordering::SeqCst))?;
                    cut.space("effects")?.edit(effect)?.set_count(moved.load(Ordering::SeqCst))
                });
                moved.fetch_add(u64::from(both.is_ok()), Ordering::SeqCst);
            }
        });
        let _ends = Ends(&is_over);
        let readers = (0..READERS).map(|_| {
            scope.spawn(|| {
                let spaces = connect(dir);
                let reader = spaces.client("effects").unwrap().transaction().isolation(Isolation::Strict);
                for n in 0.. {
                    if n >= READS && moved.load(Ordering::SeqCst) > MOVED {
                        break;
                    }
                    // All that was acknowledged before is there.
                    let before = moved.load(Ordering::SeqCst);
                    let read = reader.run(|tx| count(tx, effect)).unwrap();
                    assert!(read + 1 >= before, "{read} is read after {before} were acknowledged");
                }
            })
        });
        readers.collect::<Vec<_>>().into_iter().for_each(|reader| reader.join().unwrap());
    });
}

const PAYERS: u64 = 6;
const PAYMENTS: u64 = 15;

/// A part that nobody settles holds one object. Transactions over others lose against each other, and wait
/// for each other alone.
#[test]
fn contended_transactions_wait_for_no_other_part() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let _servers = (serve(dir, "causes"), serve(dir, "effects"));
    let third = Server::builder(dir.join("third")).listen(socket(dir, "third")).start().unwrap();
    let relay = Relay::of_sockets(&third);
    let (spaces, at) = (connect(dir), socket(dir, "effects").to_string());
    let session = spaces.session();
    let (cause, effect) = (make(&session, "causes"), make(&session, "effects"));
    let held = session.space("effects").unwrap().run(|tx| tx.create(&Count { count: 0 })).unwrap();
    // The third space decides, and nobody hears how: its server is no peer of the others.
    let address = relay.address.to_string();
    let parted = Spaces::connect([("a third", address.as_str()), ("effects", at.as_str())]).unwrap();
    let parted = parted.session();
    let far = make(&parted, "a third");
    let mut silence = None;
    let soon = Options { timeout: Some(Duration::from_millis(500)), ..Options::default() };
    let unheard = parted.run_with(soon, |cut| {
        cut.space("a third")?.edit(far)?.set_count(1)?;
        cut.space("effects")?.edit(held)?.set_count(1)?;
        silence.get_or_insert_with(|| relay.hold());
        Ok(())
    });
    assert!(unheard.is_err());
    assert_eq!(
        spaces.client("effects").unwrap().server_status().unwrap().leading.unwrap().across.prepared,
        1
    );
    let longest = thread::scope(|scope| {
        let payers = (0..PAYERS).map(|payer| {
            scope.spawn(move || {
                let spaces = connect(dir);
                let mut session = spaces.session();
                let pay = |cut: &Cut<'_>| {
                    let (causes, effects) = (cut.space("causes")?, cut.space("effects")?);
                    causes.edit(cause)?.set_count(count(causes, cause)? + 1)?;
                    effects.edit(effect)?.set_count(count(effects, effect)? + 1)
                };
                let payments = (0..PAYMENTS).map(|_| {
                    let begun = Instant::now();
                    // By threads and by tasks.
                    let is_task = payer % 2 == 1;
                    if is_task { block_on(session.run_async(pay)) } else { session.run(pay) }.unwrap();
                    begun.elapsed()
                });
                payments.max().unwrap()
            })
        });
        let payers: Vec<_> = payers.collect();
        payers.into_iter().map(|payer| payer.join().unwrap()).max().unwrap()
    });
    assert!(longest < Duration::from_secs(8), "{longest:?}");
    let both =
        session.read(|cut| Ok((count(cut.space("causes")?, cause)?, count(cut.space("effects")?, effect)?)));
    assert_eq!(both, Ok((PAYERS * PAYMENTS, PAYERS * PAYMENTS)));
}

#[test]
fn one_space_has_one_name() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let _servers = (serve(dir, "causes"), serve(dir, "effects"));
    let at = socket(dir, "causes").to_string();
    let twice = Spaces::connect([("causes", at.as_str()), ("causes", at.as_str())]).err();
    assert!(matches!(&twice, Some(Error::Invalid(why)) if why.contains("`causes`")), "{twice:?}");

    let as_task = Spaces::connect_async([("causes", at.as_str()), ("causes", at.as_str())]);
    assert_eq!(futures_executor::block_on(as_task).err(), twice);
    let twins = Spaces::connect([("causes", at.as_str()), ("effects", at.as_str())]).unwrap();
    let session = twins.session();
    make(&session, "causes");
    let twin = session.space("effects").unwrap().read(|_| Ok(()));
    let Err(Error::Invalid(why)) = twin else { panic!("{twin:?}") };
    assert!(why.contains("`causes` and `effects`"), "{why}");
}

#[test]
fn strict_cut_needs_one_transaction_a_space() {
    let dir = tempfile::tempdir().unwrap();
    let few = || ClientConfig { transactions_max: 1, ..ClientConfig::default() };
    let space = |name| tercel::embedded_with(ServerConfig::new(dir.path().join(name)), few()).unwrap();
    let spaces = Spaces::new().with("causes", space("causes")).with("effects", space("effects"));
    let session = spaces.session();
    let (cause, effect) = (make(&session, "causes"), make(&session, "effects"));
    let both = session.read_with(Isolation::Strict, |cut| {
        Ok((count(cut.space("causes")?, cause)?, count(cut.space("effects")?, effect)?))
    });
    assert_eq!(both, Ok((0, 0)));
}

#[derive(Debug, PartialEq)]
enum Refused {
    SoldOut,
    Space(Error),
}

impl From<Error> for Refused {
    fn from(e: Error) -> Refused {
        Refused::Space(e)
    }
}

#[test]
fn refusal_of_a_body_aborts_in_all_spaces() {
    let dir = tempfile::tempdir().unwrap();
    let space = |name| tercel::embedded(dir.path().join(name)).unwrap();
    // The session keeps what it was made of.
    let session = Spaces::new().with("causes", space("causes")).with("effects", space("effects")).session();
    let (cause, effect) = (make(&session, "causes"), make(&session, "effects"));
    let both = |cut: &Cut<'_>, refuses: bool| {
        let (causes, effects) = (cut.space("causes")?, cut.space("effects")?);
        causes.edit(cause)?.set_count(count(causes, cause)? + 1)?;
        effects.edit(effect)?.set_count(count(effects, effect)? + 1)?;
        if refuses { Err(Refused::SoldOut) } else { Ok(()) }
    };
    assert_eq!(session.try_run(|cut| both(cut, true)), Err(Refused::SoldOut));
    assert_eq!(session.try_run(|cut| both(cut, false)), Ok(()));
    let alone = session.space("causes").unwrap();
    let refused = alone.try_run(|tx| {
        tx.edit(cause)?.set_count(9)?;
        Err::<(), _>(Refused::SoldOut)
    });
    assert_eq!(refused, Err(Refused::SoldOut));
    let written = session.try_read(|cut| {
        cut.space("causes")?.edit(cause)?.set_count(9)?;
        Ok::<_, Refused>(())
    });
    assert!(matches!(&written, Err(Refused::Space(Error::Invalid(_)))), "{written:?}");
    let read = session.try_read(|cut| {
        Ok::<_, Refused>((count(cut.space("causes")?, cause)?, count(cut.space("effects")?, effect)?))
    });
    assert_eq!(read, Ok((1, 1)));
    assert_eq!(alone.try_read(|tx| Ok::<_, Refused>(count(tx, cause)?)), Ok(1));
    thread::spawn(move || assert!(session.token().is_ok())).join().unwrap();
}
