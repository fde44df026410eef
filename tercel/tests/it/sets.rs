//! Backups of several spaces that fit each other: taken at random moments amid transfers between the spaces,
//! restored, and gone on with.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use tercel::backup::{BackupError, Progress, backup_set, is_set, misfits, restore, restore_set, verify};
use tercel::{Address, Addresses, Client, Cut, Error, Isolation, Object, Ref, Server, Session, Spaces};
use tercel_testkit::ends::Ends;

#[derive(Object)]
struct Purse {
    money: i64,
    given: u64,
    taken: u64,
}

const PURSES: usize = 4;
const MONEY: i64 = 1_000;
const TELLERS: u64 = 3;
/// Random moments at which a backup is taken, for each number of spaces.
const MOMENTS: u64 = 10;

fn socket(dir: &Path, name: &str) -> Address {
    Address::Unix(dir.join(name).with_extension("socket"))
}

/// Serves a space of several, which are one another's peers.
fn serve(data: &Path, sockets: &Path, names: &[&str]) -> Vec<Server> {
    let serve = |name: &&str| {
        let others = names.iter().filter(|other| *other != name);
        let builder = Server::builder(data.join(name)).listen(socket(sockets, name));
        let builder = others.fold(builder, |b, other| b.peer(socket(sockets, other).to_string()));
        builder.start().unwrap()
    };
    names.iter().map(serve).collect()
}

fn connect(sockets: &Path, names: &[&str]) -> Spaces {
    let clients = names.iter().map(|name| (*name, Client::connect(socket(sockets, name)).unwrap()));
    clients.fold(Spaces::new(), |spaces, (name, client)| spaces.with(name, client))
}

fn addresses(sockets: &Path, names: &[&str]) -> Vec<(String, Addresses)> {
    names.iter().map(|name| (name.to_string(), socket(sockets, name).into())).collect()
}

type Purses = BTreeMap<String, Vec<Ref<Purse>>>;

/// Purses in each space, found by their root.
fn make(session: &Session<'_>, names: &[&str]) -> Purses {
    let of = |name: &&str| {
        let made = session.space(name).unwrap().run(|tx| {
            let made = (0..PURSES).map(|n| {
                let purse = tx.create(&Purse { money: MONEY, given: 0, taken: 0 })?;
                tx.set_root(&format!("purse{n}"), purse).map(|()| purse)
            });
            made.collect::<Result<Vec<_>, _>>()
        });
        (name.to_string(), made.unwrap())
    };
    names.iter().map(of).collect()
}

/// Moves money from a space to the next one.
fn transfer(session: &Session<'_>, names: &[&str], purses: &Purses, n: u64) -> Result<(), Error> {
    let (from, to) = (names[n as usize % names.len()], names[(n as usize + 1) % names.len()]);
    let (giver, taker) = (purses[from][n as usize % PURSES], purses[to][(n as usize / 3) % PURSES]);
    session.run(|cut| {
        let purse = cut.space(from)?.get(giver)?;
        let edited = purse.edit()?;
        edited.set_money(purse.money() - 5)?;
        edited.set_given(purse.given() + 1)?;
        let purse = cut.space(to)?.get(taker)?;
        let edited = purse.edit()?;
        edited.set_money(purse.money() + 5)?;
        edited.set_taken(purse.taken() + 1)
    })
}

/// The money in all spaces, and how often it was given and taken.
fn audit(session: &Session<'_>, names: &[&str], purses: &Purses) -> (i64, u64, u64) {
    let sum = |cut: &Cut<'_>| {
        let mut sum = (0, 0, 0);
        for name in names {
            for purse in &purses[*name] {
                let purse = cut.space(name)?.get(*purse)?;
                sum = (sum.0 + purse.money(), sum.1 + purse.given(), sum.2 + purse.taken());
            }
        }
        Ok(sum)
    };
    session.read_with(Isolation::Strict, sum).unwrap()
}

/// Ends a restore when its spaces are made. Nothing of it can be served.
fn interrupt(set: &Path, dir: &Path, names: &[&str]) {
    let mut settles = |p: Progress| assert!(p.what != "settling", "it is interrupted");
    let mut restore = || drop(restore_set(set, dir, &mut settles));
    assert!(catch_unwind(AssertUnwindSafe(&mut restore)).is_err());
    for name in names {
        for data in [dir.join(name), dir.join("restore.unfinished").join(name)] {
            let why = tercel::embedded(data).err().map(|why| why.to_string()).unwrap_or_default();
            assert!(why.contains("is unfinished"), "{why}");
        }
    }
}

/// Restores a set, looks at what is in it, and goes on with transfers without any command.
fn goes_on(set: &Path, dir: &Path, names: &[&str], purses: &Purses) -> u64 {
    if dir.ends_with("restored0") {
        interrupt(set, dir, names);
    }
    let restored = restore_set(set, dir, |_| ()).unwrap();
    assert_eq!(restored.misfits, Vec::<String>::new());
    let servers = serve(dir, dir, names);
    let spaces = connect(dir, names);
    let session = spaces.session();
    let (money, given, taken) = audit(&session, names, purses);
    assert_eq!(money, (names.len() * PURSES) as i64 * MONEY);
    assert_eq!(given, taken, "half a transfer");
    for name in names {
        let status = spaces.client(name).unwrap().server_status().unwrap();
        assert_eq!(status.leading.unwrap().across.prepared, 0);
    }
    for n in 0..6 {
        transfer(&session, names, purses, n).unwrap();
    }
    assert_eq!(audit(&session, names, purses), (money, given + 6, taken + 6));
    drop(spaces);
    servers.into_iter().for_each(|server| server.stop().unwrap());
    given
}

/// Takes backups while tellers move money, and restores each.
fn fits_at_random_moments(names: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let servers = serve(dir, dir, names);
    let purses = make(&connect(dir, names).session(), names);
    let (is_over, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _ends = Ends(&is_over);
        for teller in 0..TELLERS {
            let (moved, is_over, purses) = (&moved, &is_over, &purses);
            scope.spawn(move || {
                let spaces = connect(dir, names);
                let session = spaces.session();
                let mut n = teller * 7;
                while !is_over.load(SeqCst) {
                    n += 1;
                    match transfer(&session, names, purses, n) {
                        Ok(()) => _ = moved.fetch_add(1, SeqCst),
                        Err(Error::Conflict(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        for moment in 0..MOMENTS {
            // The moments are of the transfers, which the machine paces.
            let before = moved.load(SeqCst);
            while moved.load(SeqCst) < before + 3 + moment * 7 % 11 {
                thread::yield_now();
            }
            let set = dir.join(format!("set{moment}"));
            let taken = backup_set(&addresses(dir, names), &set, |_| ()).unwrap();
            assert!(is_set(&set) && taken.spaces.len() == names.len());
        }
    });
    servers.into_iter().for_each(|server| server.stop().unwrap());
    let restore = |moment: u64| {
        let (set, restored) = (dir.join(format!("set{moment}")), dir.join(format!("restored{moment}")));
        let given = goes_on(&set, &restored, names, &purses);
        // Each has the room of several logs.
        [set, restored].iter().for_each(|dir| std::fs::remove_dir_all(dir).unwrap());
        given
    };
    let seen: Vec<u64> = (0..MOMENTS).map(restore).collect();
    assert!(seen.is_sorted() && seen.first() < seen.last(), "{seen:?}");
}

#[test]
fn backups_of_two_spaces_fit() {
    fits_at_random_moments(&["a", "b"]);
}

#[test]
fn backups_of_three_spaces_fit() {
    fits_at_random_moments(&["a", "b", "c"]);
}

#[test]
fn unfinished_set_is_begun_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (names, set) = (["a", "b"], dir.join("set"));
    let servers = serve(dir, dir, &names);
    make(&connect(dir, &names).session(), &names);
    let missing = [("a", "a"), ("c", "nowhere")].map(|(name, at)| (name.to_string(), socket(dir, at).into()));
    let lost = backup_set(&missing, &set, |_| ());
    assert!(matches!(lost, Err(BackupError::Unreachable { .. })), "{lost:?}");
    assert!(!is_set(&set));
    backup_set(&addresses(dir, &names), &set, |_| ()).unwrap();
    let again = backup_set(&addresses(dir, &names), &set, |_| ());
    assert!(matches!(again, Err(BackupError::Disk(_))), "{again:?}");
    let twice = [("a", "a"), ("b", "a")].map(|(name, at)| (name.to_string(), socket(dir, at).into()));
    let twice = backup_set(&twice, &dir.join("twice"), |_| ());
    assert!(matches!(&twice, Err(BackupError::Set(why)) if why.contains("one space")), "{twice:?}");
    servers.into_iter().for_each(|server| server.stop().unwrap());
}

#[test]
fn lone_backup_tells_what_it_rests_on() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let names = ["a", "b"];
    let servers = serve(dir, dir, &names);
    let spaces = connect(dir, &names);
    let session = spaces.session();
    let purses = make(&session, &names);
    transfer(&session, &names, &purses, 0).unwrap();
    let other = format!("{:x}", servers[1].space().0);
    backup_set(&addresses(dir, &names), &dir.join("set"), |_| ()).unwrap();
    let told = misfits(&dir.join("set/a")).unwrap();
    assert!(told.len() == 1 && told[0].contains(&other), "{told:?}");
    // A part of a set is a backup like others.
    assert!(verify(&dir.join("set/a"), |_| ()).unwrap().is_sound());
    restore(&dir.join("set/a"), &dir.join("alone"), |_| ()).unwrap();
    servers.into_iter().for_each(|server| server.stop().unwrap());
}

#[test]
fn large_transaction_amid_a_set_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let names = ["a", "b"];
    let servers = serve(dir, dir, &names);
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _ends = Ends(&is_over);
        let (is_over, written) = (&is_over, &written);
        scope.spawn(move || {
            let client = Client::connect(socket(dir, "a")).unwrap();
            // Some pieces each.
            while !is_over.load(SeqCst) {
                let large = || Large { all: [7; 1_000] };
                client.run(|tx| (0..400).try_for_each(|_| tx.create(&large()).map(drop))).unwrap();
                written.fetch_add(1, SeqCst);
            }
        });
        for n in 0..3 {
            let (set, restored) = (dir.join(format!("set{n}")), dir.join(format!("restored{n}")));
            let before = written.load(SeqCst);
            while written.load(SeqCst) == before {
                thread::yield_now();
            }
            backup_set(&addresses(dir, &names), &set, |_| ()).unwrap();
            restore_set(&set, &restored, |_| ()).unwrap();
            let report = tercel::check::check(&restored.join("a"), |_, _| ()).unwrap();
            assert!(report.is_sound(), "{report:?}");
        }
    });
    servers.into_iter().for_each(|server| server.stop().unwrap());
}

#[derive(Object)]
struct Large {
    all: [u8; 1_000],
}
