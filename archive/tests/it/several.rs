//! Archives of several spaces, restored at one cut.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use tercel::backup::stream::Tap;
use tercel::{Address, Client, Error, Isolation, Object, Ref, Server, Session, Spaces};
use tercel_archive::catalogue::Catalogue;
use tercel_archive::config::{Config, now_ms};
use tercel_archive::restore::{Until, outlook, outlook_set, restore_set};
use tercel_archive::writer::Writer;
use tercel_testkit::ends::Ends;

use crate::place::{Place, in_each_store};

#[derive(Object)]
struct Purse {
    money: i64,
    moves: u64,
}

const NAMES: [&str; 3] = ["a", "b", "c"];
const MONEY: i64 = 1_000;
/// Moments that are gone back to. All fifty that the archive promises take minutes:
/// `TERCEL_TEST_MOMENTS=50`.
fn moments_max() -> usize {
    std::env::var("TERCEL_TEST_MOMENTS").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
}

fn socket(dir: &Path, name: &str) -> Address {
    Address::Unix(dir.join(name).with_extension("socket"))
}

fn serve(dir: &Path, name: &str) -> Server {
    let others = NAMES.iter().filter(|other| **other != name);
    let builder = Server::builder(dir.join(name)).listen(socket(dir, name));
    others.fold(builder, |builder, other| builder.peer(socket(dir, other).to_string())).start().unwrap()
}

fn connect(dir: &Path) -> Spaces {
    let clients = NAMES.map(|name| (name, Client::connect(socket(dir, name)).unwrap()));
    clients.into_iter().fold(Spaces::new(), |spaces, (name, client)| spaces.with(name, client))
}

fn transfer(session: &Session<'_>, purses: &[Ref<Purse>], n: usize) -> Result<(), Error> {
    let (from, to) = (n % NAMES.len(), (n + 1) % NAMES.len());
    session.run(|cut| {
        for (of, by) in [(from, -5), (to, 5)] {
            let purse = cut.space(NAMES[of])?.get(purses[of])?;
            let edited = purse.edit()?;
            edited.set_money(purse.money() + by)?;
            edited.set_moves(purse.moves() + 1)?;
        }
        Ok(())
    })
}

/// Ends a restore amid its last space. Nothing of it can be served.
fn interrupt(archives: &[(String, Catalogue<'_>)], ms: u64, data: &Path) {
    let mut begun = 0;
    let mut progress = |what: &str, done: u64, _| {
        begun += usize::from(what == "pages" && done == 1);
        assert!(begun < NAMES.len(), "it is interrupted");
    };
    let mut restore = || drop(restore_set(archives, Until::Moment(ms), data, &mut progress));
    assert!(catch_unwind(AssertUnwindSafe(&mut restore)).is_err());
    for name in NAMES {
        let why = tercel::embedded(data.join(name)).err().map(|why| why.to_string()).unwrap_or_default();
        assert!(why.contains("is unfinished"), "{why}");
    }
}

fn three_spaces_are_restored_at_one_cut(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let servers = NAMES.map(|name| serve(dir, name));
    let spaces = connect(dir);
    let session = spaces.session();
    let purses = NAMES.map(|name| {
        let made = session.space(name).unwrap().run(|tx| {
            tx.create(&Purse { money: MONEY, moves: 0 })
                .and_then(|purse| tx.set_root("purse", purse).map(|()| purse))
        });
        made.unwrap()
    });
    let stores = NAMES.map(|name| place.store(&format!("archive-{name}")));
    let writers: Vec<Writer> = servers
        .iter()
        .zip(&stores)
        .map(|(server, store)| {
            let config = Config { every: Duration::from_millis(30), ..Config::default() };
            Writer::start(Tap::of(server), server.space(), store.clone(), config).unwrap()
        })
        .collect();
    let end = Instant::now() + Duration::from_secs(120);
    while writers.iter().any(|writer| writer.status().bases == 0) {
        assert!(Instant::now() < end);
        thread::yield_now();
    }
    let (is_over, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut moments = Vec::new();
    thread::scope(|scope| {
        let _ends = Ends(&is_over);
        for teller in 0..2 {
            let (is_over, moved, purses) = (&is_over, &moved, &purses);
            scope.spawn(move || {
                let spaces = connect(dir);
                let session = spaces.session();
                let mut n = teller;
                while !is_over.load(SeqCst) {
                    n += 1;
                    match transfer(&session, purses, n) {
                        Ok(()) => _ = moved.fetch_add(1, SeqCst),
                        Err(Error::Conflict(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        while moments.len() < moments_max() {
            let before = moved.load(SeqCst);
            while moved.load(SeqCst) < before + 10 {
                thread::yield_now();
            }
            moments.push(now_ms());
        }
        let last = moments[moments.len() - 1];
        while writers.iter().any(|writer| writer.status().upto_ms < last) {
            thread::yield_now();
        }
    });
    writers.into_iter().for_each(|writer| drop(writer.stop()));
    drop(spaces);
    servers.into_iter().for_each(|server| server.stop().unwrap());
    let mut seen = Vec::new();
    let archives: Vec<_> = NAMES
        .iter()
        .zip(&stores)
        .map(|(name, store)| (name.to_string(), Catalogue::open(&**store).unwrap()))
        .collect();
    for ms in moments {
        let restored = dir.join("restored");
        if seen.is_empty() {
            interrupt(&archives, ms, &restored);
        }
        let looked = outlook_set(&archives, Until::Moment(ms), &mut |_, _, _| ()).unwrap();
        let made = restore_set(&archives, Until::Moment(ms), &restored, &mut |_, _, _| ()).unwrap();
        assert_eq!(made.misfits, Vec::<String>::new());
        let ((looked, misfits), made) = (looked, made.spaces.iter().map(|(_, of)| of));
        assert_eq!(misfits, Vec::<String>::new());
        for (looked, made) in looked.iter().zip(made) {
            assert_eq!((looked.plan.upto, looked.entries), (made.stamp, made.entries));
        }
        let servers = NAMES.map(|name| serve(&restored, name));
        let spaces = connect(&restored);
        let session = spaces.session();
        let audit = || {
            session.read_with(Isolation::Strict, |cut| {
                let mut sum = (0, 0);
                for (name, purse) in NAMES.iter().zip(purses) {
                    let purse = cut.space(name)?.get(purse)?;
                    sum = (sum.0 + purse.money(), sum.1 + purse.moves());
                }
                Ok(sum)
            })
        };
        let (money, moves) = audit().unwrap();
        assert_eq!((money, moves % 2), (3 * MONEY, 0), "at {ms}");
        transfer(&session, &purses, 1).unwrap();
        assert_eq!(audit().unwrap(), (money, moves + 2));
        seen.push(moves);
        drop(spaces);
        servers.into_iter().for_each(|server| server.stop().unwrap());
        std::fs::remove_dir_all(&restored).unwrap();
    }
    assert!(seen.is_sorted() && seen.first() < seen.last(), "{seen:?}");

    // Alone, each rests on the others.
    for (_, archive) in &archives {
        let (looked, misfits) = outlook(archive, Until::End, &mut |_, _, _| ()).unwrap();
        assert!(looked.entries > 0 && looked.bytes > looked.plan.base.bytes, "{looked:?}");
        let is_told =
            |told: &String| told.contains("rests on") && told.contains("tercel archive restore --spaces");
        assert!(misfits.iter().any(is_told), "{misfits:?}");
    }
}

/// Each archive has a name and a space of its own, before anything is made.
fn names_and_spaces_are_given_once(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "a");
    let store = place.store("archive");
    let config = Config { every: Duration::from_millis(30), ..Config::default() };
    let writer = Writer::start(Tap::of(&server), server.space(), store.clone(), config).unwrap();
    while writer.status().bases == 0 {
        thread::yield_now();
    }
    writer.stop();
    for (names, told) in
        [(["a", "b"], "`a` and `b`"), (["a", "a"], "`a` is given twice"), (["a", "../a"], "`../a`")]
    {
        let archives = names.map(|name| (name.to_string(), Catalogue::open(&*store).unwrap()));
        let data = dir.path().join("restored");
        let refused = restore_set(&archives, Until::End, &data, &mut |_, _, _| ());
        let why = refused.err().map(|why| why.to_string()).unwrap_or_default();
        assert!(why.contains(told) && !data.exists(), "{why}");
    }
}

in_each_store!(names_and_spaces_are_given_once, three_spaces_are_restored_at_one_cut);
