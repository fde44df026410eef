//! Backups of a server at work, and spaces made from them: what is in them, which clients are told what, and
//! what kills leave behind.
//!
//! Processes that are killed are this very program: with `TERCEL_TEST_ROLE` set, the test plays that part
//! instead.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::{Counter, counter};
use rustix::process::{Signal, getpid, kill_process};
use tercel::DiskError;
use tercel::backup::{BackupError, Source, Taken, backup, restore, verify};
use tercel::check::{CheckError, check, repair};
use tercel::tools::disk::dir::{DataDir, NewSpace};
use tercel::tools::disk::pages::{PageBatch, PageRead, PageStore, RedbPages};
use tercel::tools::wire::frame::{self, Header, Kind};
use tercel::tools::wire::id::{ClientId, PageId};
use tercel::tools::wire::message::{Hello, Refusal};
use tercel::{Address, Client, ClientConfig, Error, Object, Ref, Server, ServerConfig};
use tercel_testkit::ends::Ends;

/// An account, and how often it took part in a transfer.
#[derive(Object, Debug, Clone, PartialEq)]
struct Account {
    balance: i64,
    transfers: u64,
}

const ACCOUNTS: u64 = 200;
const THREADS: usize = 8;
const BALANCE: i64 = 1_000;

/// Nothing is damaged, and every reference leads to an object.
fn assert_whole(dir: &Path) {
    let report = check(dir, |_, _| ()).unwrap();
    assert!(report.is_sound() && report.unfilled == 0, "{report:?}");
}

fn socket(dir: &Path) -> Address {
    Address::Unix(dir.join("socket"))
}

/// A server that installs all the time.
fn serve(dir: &Path, name: &str) -> Server {
    let config = ServerConfig {
        listen: vec![socket(dir)],
        mob_bytes: 4 << 20,
        cache_bytes: 1 << 20,
        ..ServerConfig::new(dir.join(name))
    };
    Server::start(config).unwrap()
}

fn connect(dir: &Path) -> Client {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match Client::connect_with(socket(dir), quick()) {
            Ok(client) => return client,
            Err(Error::Unavailable(_)) if Instant::now() < end => std::thread::yield_now(),
            Err(e) => panic!("{e}"),
        }
    }
}

fn quick() -> ClientConfig {
    ClientConfig { timeout: Duration::from_secs(10), cache_bytes: 4 << 20, ..ClientConfig::default() }
}

fn open(dir: &Path) -> Client {
    tercel::embedded_with(ServerConfig::new(dir), quick()).unwrap()
}

fn take(dir: &Path, name: &str) -> Result<Taken, BackupError> {
    backup(&Source::Server(socket(dir).into()), &dir.join(name), |_| ())
}

/// Accounts of a bank, and a counter for each thread.
struct Bank {
    accounts: Vec<Ref<Account>>,
    counters: Vec<Ref<Counter>>,
}

impl Bank {
    fn make(client: &Client) -> Bank {
        let account = Account { balance: BALANCE, transfers: 0 };
        let accounts = client.run(|tx| (0..ACCOUNTS).map(|_| tx.create(&account)).collect()).unwrap();
        let counters = (0..THREADS).map(|i| counter(client, &format!("c{i}"))).collect();
        Bank { accounts, counters }
    }

    fn transfer(&self, client: &Client, thread: usize, n: u64) -> Result<(), Error> {
        let (from, to) = ((n * 7 + thread as u64 * 31) % ACCOUNTS, (n * 13 + 1) % ACCOUNTS);
        if from == to {
            return Ok(());
        }
        client.run(|tx| {
            for (account, by) in [(from, -5), (to, 5)] {
                let a = tx.get(self.accounts[account as usize])?;
                let e = a.edit()?;
                e.set_balance(a.balance() + by)?;
                e.set_transfers(a.transfers() + 1)?;
            }
            let c = tx.get(self.counters[thread])?;
            c.edit()?.set_count(c.count() + 1)?;
            // Births, which must not be in a backup from before.
            if n.is_multiple_of(16) {
                tx.create(&Account { balance: 0, transfers: 0 })?;
            }
            Ok(())
        })
    }

    /// Reads the counts of each thread, in one state that must add up.
    fn audit(&self, client: &Client) -> Vec<u64> {
        let (sum, transfers, counts) = client
            .run(|tx| {
                let (mut sum, mut transfers) = (0, 0);
                for a in &self.accounts {
                    let a = tx.get(*a)?;
                    sum += a.balance();
                    transfers += a.transfers();
                }
                let counts: Result<Vec<u64>, Error> =
                    self.counters.iter().map(|c| Ok(tx.get(*c)?.count())).collect();
                Ok((sum, transfers, counts?))
            })
            .unwrap();
        assert_eq!(sum, BALANCE * ACCOUNTS as i64, "no money is made or lost");
        assert_eq!(transfers, 2 * counts.iter().sum::<u64>(), "transfers are whole");
        counts
    }
}

#[test]
fn backups_of_a_server_at_work_have_all_of_before_and_nothing_of_after() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "space");
    let client = connect(dir.path());
    let bank = Bank::make(&client);
    let acknowledged: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let sent: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        let _ends = Ends(&over);
        for i in 0..THREADS {
            let (client, bank, acknowledged, sent, over) = (&client, &bank, &acknowledged, &sent, &over);
            s.spawn(move || {
                for n in 0.. {
                    if over.load(SeqCst) {
                        return;
                    }
                    sent[i].fetch_add(1, SeqCst);
                    bank.transfer(client, i, n).unwrap();
                    acknowledged[i].fetch_add(1, SeqCst);
                }
            });
        }
        let load = |all: &[AtomicU64]| all.iter().map(|n| n.load(SeqCst)).collect::<Vec<_>>();
        for round in 0..6 {
            let before = load(&acknowledged);
            let name = format!("backup{round}");
            take(dir.path(), &name).unwrap();
            let after = load(&sent);
            let (from, to) = (dir.path().join(&name), dir.path().join(format!("restored{round}")));
            restore(&from, &to, |_| ()).unwrap();
            assert_whole(&to);
            let copy = open(&to);
            let counts = bank.audit(&copy);
            copy.close().unwrap();
            for i in 0..THREADS {
                // A transfer from an account to itself is no transfer, and no counter counts it.
                let skipped =
                    (0..after[i]).filter(|n| (n * 7 + i as u64 * 31) % ACCOUNTS == (n * 13 + 1) % ACCOUNTS);
                let skipped = skipped.count() as u64;
                assert!(counts[i] + skipped >= before[i], "acknowledged before and not there");
                assert!(counts[i] <= after[i], "there and not even sent");
            }
        }
    });
    bank.audit(&client);
    drop(client);
    server.stop().unwrap();
}

#[test]
fn a_backup_is_not_served_and_a_space_is_no_backup() {
    let dir = tempfile::tempdir().unwrap();
    let client = open(&dir.path().join("space"));
    counter(&client, "c");
    client.close().unwrap();
    let (space, copy) = (dir.path().join("space"), dir.path().join("copy"));
    backup(&Source::Directory(space.clone()), &copy, |_| ()).unwrap();
    let Err(e) = Server::start(ServerConfig::new(&copy)) else { panic!("it is served") };
    assert!(e.to_string().contains("tercel restore"), "{e}");
    assert!(matches!(restore(&space, &dir.path().join("new"), |_| ()), Err(BackupError::NotABackup(_))));
    assert!(!dir.path().join("new").exists());
    let again = backup(&Source::Directory(space), &copy, |_| ());
    assert!(matches!(again, Err(BackupError::Disk(DiskError::Occupied { .. }))));
    assert_whole(&copy);
}

#[test]
fn nothing_is_made_within_what_it_is_made_from() {
    let dir = tempfile::tempdir().unwrap();
    let (space, copy) = (dir.path().join("space"), dir.path().join("copy"));
    open(&space).close().unwrap();
    for inside in [space.join("backup"), space.join("log/a/b")] {
        let refused = backup(&Source::Directory(space.clone()), &inside, |_| ());
        assert!(matches!(refused, Err(BackupError::Within { .. })), "{refused:?}");
    }
    backup(&Source::Directory(space.clone()), &copy, |_| ()).unwrap();
    let before = files(&copy);
    let around = dir.path().join("around");
    std::os::unix::fs::symlink(&copy, &around).unwrap();
    for inside in [copy.join("sub"), around.join("sub/sub")] {
        let refused = restore(&copy, &inside, |_| ()).unwrap_err();
        assert!(refused.to_string().contains("outside of it"), "{refused}");
    }
    assert!(files(&copy) == before);
    // Beside it is not within it, even if the name begins alike.
    restore(&copy, &dir.path().join("copy2"), |_| ()).unwrap();
}

/// Every file below a directory with its bytes, except the lock, which names the process that looked last.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false if path.ends_with("lock") => {}
            false => all.push((path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    all.sort();
    all
}

#[test]
fn a_backup_is_verified_against_what_was_written_when_it_was_taken_and_never_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let (space, copy, to) = (dir.path().join("space"), dir.path().join("copy"), dir.path().join("to"));
    let client = open(&space);
    counter(&client, "c");
    client.close().unwrap();
    let taken = backup(&Source::Directory(space), &copy, |_| ()).unwrap();
    let before = files(&copy);
    let verified = verify(&copy, |_| ()).unwrap();
    assert!(verified.is_sound() && verified.report.pages == taken.pages, "{verified:?}");
    let refused = repair(&copy, |_, _| ()).unwrap_err();
    assert!(matches!(refused, CheckError::Backup { .. }), "{refused}");
    assert!(files(&copy) == before, "looking changes nothing, nor does what is refused");
    let file = copy.join("backup.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let (pages, stamp) = (format!("pages = {}\n", taken.pages), format!("stamp = {}\n", taken.stamp));
    for (from, to_be, word) in [
        (&*pages, "pages = 99\n", "backup.toml says 99"),
        (&*stamp, "stamp = 1\n", "backup.toml says 1"),
        ("state_sum = ", "state_sum = 1", "state"),
        ("pages_sum = ", "sum_of_pages = ", "`pages_sum = ...` is missing"),
    ] {
        let changed = text.replace(from, to_be);
        assert_ne!(changed, text, "{from}");
        std::fs::write(&file, changed).unwrap();
        let verified = verify(&copy, |_| ()).unwrap();
        assert!(verified.report.is_sound() && !verified.is_sound(), "{verified:?}");
        assert!(verified.changed.as_ref().is_some_and(|what| what.contains(word)), "{verified:?}");
        let refused = restore(&copy, &to, |_| ()).unwrap_err().to_string();
        assert!(refused.contains(word) && refused.ends_with("; restore from another one"), "{refused}");
    }
    assert!(!to.exists());
    std::fs::write(&file, text).unwrap();
    restore(&copy, &to, |_| ()).unwrap();
}

#[test]
fn a_backup_with_a_page_of_another_one_is_not_restored() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "space");
    let client = connect(dir.path());
    let c = counter(&client, "c");
    take(dir.path(), "old").unwrap();
    client.run(|tx| tx.edit(c)?.set_count(7)).unwrap();
    take(dir.path(), "new").unwrap();
    let file = |name: &str| dir.path().join(name).join("pages.redb");
    let page: PageId = c.oref().page();
    let mut bytes = Vec::new();
    assert!(RedbPages::open(&file("old"), 8064).unwrap().read(page, &mut bytes).unwrap());
    let mut new = RedbPages::open(&file("new"), 8064).unwrap();
    let applied_stamp = new.applied_stamp().unwrap();
    new.commit(&PageBatch { pages: &[(page, &bytes)], gone: &[], meta: &[], applied_stamp }).unwrap();
    drop(new);
    // Every page is whole and every reference leads somewhere.
    assert_whole(&dir.path().join("new"));
    let verified = verify(&dir.path().join("new"), |_| ()).unwrap();
    assert!(verified.changed.as_ref().is_some_and(|what| what.contains("its pages")), "{verified:?}");
    let to = dir.path().join("to");
    let refused = restore(&dir.path().join("new"), &to, |_| ());
    assert!(matches!(refused, Err(BackupError::Damaged { .. })), "{refused:?}");
    assert!(!to.exists());
    drop(client);
    server.stop().unwrap();
}

#[test]
fn a_backup_of_a_space_with_a_damaged_page_names_the_page_and_the_repair_and_is_taken_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let space = dir.path().join("space");
    let client = open(&space);
    let made = Counter { count: 1, text: "what will be spoiled".into() };
    let c = client.run(|tx| tx.create(&made)).unwrap();
    client.close().unwrap();
    let file = space.join("pages.redb");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(20).rposition(|w| w == b"what will be spoiled").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let refused = |taken: Result<Taken, BackupError>, step: &str| {
        let Err(e @ BackupError::Unsound { .. }) = taken else { panic!("{taken:?}") };
        let words = e.to_string();
        assert!(words.contains(&format!("page {}:", c.oref().page())) && words.ends_with(step), "{words}");
        assert!(!e.is_retryable() && !tercel::backup::is_backup(&dir.path().join("copy")));
    };
    let command =
        format!("run `tercel check --data {} --repair`, then the same command again", space.display());
    refused(backup(&Source::Directory(space.clone()), &dir.path().join("copy"), |_| ()), &command);
    let server = serve(dir.path(), "space");
    let command = "stop the server, run `tercel check --data DIR --repair` on its directory and start it again, then \
                   run the same command again";
    refused(take(dir.path(), "copy"), command);
    // Others are served, and the server stops as it should.
    let client = connect(dir.path());
    counter(&client, "another");
    drop(client);
    server.stop().unwrap();
    let repaired = tercel::check::repair(&space, |_, _| ()).unwrap();
    assert!(repaired.after.is_sound(), "{repaired:?}");
    let server = serve(dir.path(), "space");
    take(dir.path(), "copy").unwrap();
    assert_whole(&dir.path().join("copy"));
    server.stop().unwrap();
}

#[test]
fn one_backup_at_a_time_and_the_next_when_it_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "space");
    let client = connect(dir.path());
    fill(&client);
    let mut second = None;
    backup(&Source::Server(socket(dir.path()).into()), &dir.path().join("first"), |_| {
        second.get_or_insert_with(|| take(dir.path(), "second"));
    })
    .unwrap();
    match second {
        Some(Err(BackupError::Refused(r))) => assert_eq!(r.reason, Refusal::FULL),
        other => panic!("{other:?}"),
    }
    take(dir.path(), "third").unwrap();
    drop(client);
    server.stop().unwrap();
}

#[test]
fn a_client_that_begins_a_backup_and_falls_silent_holds_nothing_up() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "space");
    let client = connect(dir.path());
    let c = counter(&client, "c");
    let mut silent = std::os::unix::net::UnixStream::connect(dir.path().join("socket")).unwrap();
    let (mut body, mut bytes) = (Vec::new(), Vec::new());
    Hello::new(ClientId(9)).encode(&mut body);
    frame::encode(Header::new(Kind::Hello, 1), &body, &mut bytes);
    frame::encode(Header::new(Kind::Backup, 2), &[], &mut bytes);
    silent.write_all(&bytes).unwrap();
    let is_under_way = || client.server_status().unwrap().storage.backup_stamp != 0;
    let mut count = 0;
    let mut commit = || {
        count += 1;
        client.run(|tx| tx.edit(c)?.set_count(count)).unwrap();
    };
    let end = Instant::now() + Duration::from_secs(30);
    while !is_under_way() && Instant::now() < end {
        commit();
    }
    while is_under_way() && Instant::now() < end {
        commit();
    }
    assert!(!is_under_way());
    take(dir.path(), "copy").unwrap();
    drop(client);
    server.stop().unwrap();
}

#[test]
fn clients_of_before_a_restore_are_told_and_their_operations_stay_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "space");
    let (writer, reader) = (connect(dir.path()), connect(dir.path()));
    let c = counter(&writer, "c");
    assert_eq!(reader.run(|tx| Ok(tx.get(c)?.count())).unwrap(), 0);
    let mut watch = reader.watch().object(c).start().unwrap();
    take(dir.path(), "copy").unwrap();
    let tx = writer.transaction().begin().unwrap();
    tx.edit(c).unwrap().set_count(5).unwrap();
    let lost = tx.commit().unwrap().op.unwrap();
    // It hears of it by itself.
    while reader.run(|tx| Ok(tx.get(c)?.count())).unwrap() != 5 {}
    server.stop().unwrap();

    // Elsewhere at first, so that the restored space comes to be ahead of what the old clients have seen.
    let restored = dir.path().join("restored");
    restore(&dir.path().join("copy"), &restored, |_| ()).unwrap();
    let new = open(&restored);
    for _ in 0..50 {
        new.run(|tx| tx.create(&Account { balance: 0, transfers: 0 })).unwrap();
    }
    new.close().unwrap();

    // The same address, and they connect again by themselves.
    let server = serve(dir.path(), "restored");
    for old in [&writer, &reader] {
        // Until they are connected again, what is cached may be read: it is recent.
        let read = || old.run(|tx| Ok(tx.get(c)?.count()));
        let e = loop {
            match read() {
                Ok(count) => assert_eq!(count, 5),
                Err(e) => break e,
            }
        };
        assert!(matches!(&e, Error::OtherHistory(why) if why.contains("restored from a backup")), "{e}");
        // A program that tries again at once is told at a measured pace.
        let (begun, mut errors) = (Instant::now(), 0);
        while begun.elapsed() < Duration::from_secs(2) {
            assert!(matches!(read(), Err(Error::OtherHistory(_))));
            errors += 1;
        }
        assert!((2..=20).contains(&errors), "{errors} errors in two seconds");
    }
    let ended = std::iter::from_fn(|| watch.next()).find_map(Result::err);
    assert!(matches!(ended, Some(Error::OtherHistory(_))), "{ended:?}");
    // Also for a program that does not wait, and at a measured pace.
    let (begun, mut errors) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(1) {
        assert!(matches!(watch.next_within(Duration::ZERO), Err(Error::OtherHistory(_))));
        errors += 1;
    }
    assert!((1..=15).contains(&errors), "{errors} errors in a second");
    let outcome = writer.resolve(lost);
    assert!(outcome.is_err(), "the outcome is unknown: {outcome:?}");
    let fresh = connect(dir.path());
    assert_eq!(fresh.run(|tx| Ok(tx.get(c)?.count())).unwrap(), 0);
    assert!(fresh.resolve(lost).is_err());
    fresh.run(|tx| tx.edit(c)?.set_count(1)).unwrap();
    server.stop().unwrap();

    // A restart is no restore: what is cached is still good.
    let server = serve(dir.path(), "restored");
    assert_eq!(fresh.run(|tx| Ok(tx.get(c)?.count())).unwrap(), 1);
    fresh.run(|tx| tx.edit(c)?.set_count(2)).unwrap();
    server.stop().unwrap();

    // And should the old server come back, nothing counts there that clients of the new one have.
    let server = serve(dir.path(), "space");
    let e = loop {
        match fresh.run(|tx| Ok(tx.get(c)?.count())) {
            Ok(count) => assert_eq!(count, 2),
            Err(e) => break e,
        }
    };
    assert!(matches!(&e, Error::Schema(why) if why.contains("connect with a new client")), "{e}");
    drop((writer, reader, fresh));
    server.stop().unwrap();
}

const ROLE: &str = "TERCEL_TEST_ROLE";
const PLACE: &str = "TERCEL_TEST_PLACE";

#[test]
#[ignore = "the processes that other tests kill"]
fn child() {
    let (role, place) = (std::env::var(ROLE).unwrap(), std::env::var_os(PLACE).unwrap());
    let dir = Path::new(&place);
    let kill_in_the_middle = |p: tercel::backup::Progress, what: &str| {
        if p.what == what && p.done > p.total / 2 {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
    };
    match role.as_str() {
        "serve" => serve(dir, "space").wait().unwrap(),
        "backup" => {
            let source = Source::Server(socket(dir).into());
            backup(&source, &dir.join("copy"), |p| kill_in_the_middle(p, "receiving")).map(|_| ()).unwrap();
        }
        _ => {
            let (from, to) = (dir.join("copy"), dir.join("restored"));
            restore(&from, &to, |p| kill_in_the_middle(p, "copying")).map(|_| ()).unwrap();
        }
    }
}

/// A process that plays a part, killed at the end.
struct Played(Child);

impl Played {
    fn start(role: &str, dir: &Path) -> Played {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "backup::child", "--ignored", "--nocapture"]);
        command.env(ROLE, role).env(PLACE, dir).stdout(Stdio::null()).stdin(Stdio::null());
        Played(command.spawn().unwrap())
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

/// Enough pages for there to be a middle.
fn fill(client: &Client) -> Bank {
    let bank = Bank::make(client);
    for _ in 0..40 {
        client
            .run(|tx| {
                (0..100).try_for_each(|i| {
                    tx.create(&Counter { count: i, text: "x".repeat(900).into() }).map(|_| ())
                })
            })
            .unwrap();
    }
    bank
}

#[test]
fn a_backup_whose_server_is_killed_fails_and_is_begun_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Some(Played::start("serve", dir.path()));
    let bank = fill(&connect(dir.path()));
    let failed = backup(&Source::Server(socket(dir.path()).into()), &dir.path().join("copy"), |p| {
        if p.what == "receiving" {
            server = None;
        }
    });
    let e = failed.unwrap_err();
    assert!(e.is_retryable() && e.to_string().contains("run the same command again"), "{e}");
    assert!(matches!(
        restore(&dir.path().join("copy"), &dir.path().join("restored"), |_| ()),
        Err(BackupError::NotABackup(_))
    ));
    let _server = Played::start("serve", dir.path());
    drop(connect(dir.path()));
    take(dir.path(), "copy").unwrap();
    restore(&dir.path().join("copy"), &dir.path().join("restored"), |_| ()).unwrap();
    bank.audit(&open(&dir.path().join("restored")));
}

#[test]
fn a_backup_and_a_restore_that_are_killed_are_known_as_unfinished_and_begun_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), "space");
    let bank = fill(&connect(dir.path()));
    let new = NewSpace { id: None, page_bytes: 8064, segment_bytes: 1 << 20 };
    let (copy, restored) = (dir.path().join("copy"), dir.path().join("restored"));
    let killed = Played::start("backup", dir.path()).0.wait().unwrap();
    assert!(!killed.success());
    let unfinished = DataDir::open(&copy, &new).unwrap_err().to_string();
    assert!(unfinished.contains("`tercel backup`"), "{unfinished}");
    assert!(matches!(restore(&copy, &restored, |_| ()), Err(BackupError::NotABackup(_))));
    take(dir.path(), "copy").unwrap();

    let killed = Played::start("restore", dir.path()).0.wait().unwrap();
    assert!(!killed.success());
    let Err(e) = Server::start(ServerConfig::new(&restored)) else { panic!("half a space is served") };
    assert!(e.to_string().contains("`tercel restore`"), "{e}");
    restore(&copy, &restored, |_| ()).unwrap();
    assert_whole(&restored);
    bank.audit(&open(&restored));
    server.stop().unwrap();
}
