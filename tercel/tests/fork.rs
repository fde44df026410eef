//! A process that forks: its child is another client, and the parent hears nothing of it.

#[path = "it/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use common::{Counter, counter, serve};
use tercel::{Address, Client, ClientConfig, Error, Ref, ServerConfig};
use tercel_lock::unpoison;

unsafe extern "C" {
    safe fn fork() -> i32;
    safe fn _exit(code: i32) -> !;
}

/// Longer than anything here takes, so that what does not end is told apart from what is slow.
const CHILD_MAX: Duration = Duration::from_secs(15);

/// Tests fork one after the other: a child has but the thread that forked, and what others held is held for
/// ever.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    unpoison(ALONE.lock())
}

/// Returns the text that a child which runs `f` sends.
fn in_child(f: impl FnOnce() -> String) -> String {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    match fork() {
        0 => {
            drop(here);
            let said = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| "panicked".into());
            let written = there.write_all(said.as_bytes());
            _exit(i32::from(written.is_err()));
        }
        child => {
            drop(there);
            assert!(child > 0, "the system does not fork");
            here.set_read_timeout(Some(CHILD_MAX)).unwrap();
            let mut said = String::new();
            let heard = here.read_to_string(&mut said);
            let pid = rustix::process::Pid::from_raw(child).unwrap();
            if heard.is_err() {
                said += " (it did not end)";
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            }
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
            said
        }
    }
}

fn connect(address: &Address) -> Client {
    let config = ClientConfig { timeout: Duration::from_secs(5), ..ClientConfig::default() };
    Client::connect_with(address, config).unwrap()
}

fn add(client: &Client, counter: Ref<Counter>, by: u64) -> Result<(), Error> {
    client.run(|tx| {
        let counter = tx.get(counter)?;
        counter.edit()?.set_count(counter.count() + by)
    })
}

fn read(client: &Client, counter: Ref<Counter>) -> Result<u64, Error> {
    client.run(|tx| Ok(tx.get(counter)?.count()))
}

#[test]
fn a_childs_commits_are_its_own() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let client = connect(&server.addresses()[0]);
    let counter = counter(&client, "counter");
    let said = in_child(|| format!("{:?}", add(&client, counter, 1)));
    // The first operation of the parent after the fork, as that of the child was.
    let added = add(&client, counter, 10);
    let found = read(&connect(&server.addresses()[0]), counter);
    assert_eq!(
        (said.as_str(), &added, &found),
        ("Ok(())", &Ok(()), &Ok(11)),
        "child, parent, and what is there"
    );
    assert_eq!(client.stats().client.connections, 1, "the parent lost its connection");
    client.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn watch_of_the_parent_is_refused_to_a_child_and_takes_nothing_from_its_own() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let client = connect(&server.addresses()[0]);
    let counter = counter(&client, "counter");
    let mut watch = Some(client.watch().object(counter).start().unwrap());
    let long = Duration::from_secs(20);
    let said = in_child(|| {
        let mut watch = watch.take().unwrap();
        let mut own = client.watch().object(counter).start().unwrap();
        add(&client, counter, 1).unwrap();
        let refused = matches!(watch.next_within(Duration::ZERO), Err(Error::Invalid(_)));
        drop(watch);
        format!("{refused} {:?}", own.next_within(long).map(|change| change.is_some()))
    });
    assert_eq!(said, "true Ok(true)");
    // The parent's goes on, and hears of the child's commit.
    let change = watch.as_mut().unwrap().next_within(long).unwrap();
    assert_eq!(change.map(|change| change.reference), Some(counter.cast()));
    drop(watch);
    client.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_child_reads_what_was_committed_since_and_lets_its_client_go() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let client = connect(&server.addresses()[0]);
    let counter = counter(&client, "counter");
    assert_eq!(read(&client, counter), Ok(0));
    let mut kept = Some(client);
    let said = in_child(|| {
        let client = kept.take().unwrap();
        let other = connect(&server.addresses()[0]);
        add(&other, counter, 3).unwrap();
        let before = read(&client, counter);
        add(&client, counter, 4).unwrap();
        let after = read(&client, counter);
        let grandchild = in_child(|| format!("{:?}", read(&client, counter)));
        drop(client);
        format!("{before:?} {after:?} {grandchild}")
    });
    let client = kept.unwrap();
    assert_eq!(said, "Ok(3) Ok(7) Ok(7)");
    assert_eq!(add(&client, counter, 1).and_then(|()| read(&client, counter)), Ok(8));
    assert_eq!(client.stats().client.connections, 1, "the parent lost its connection");
    client.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_transaction_of_before_the_fork_fails_in_the_child_and_not_in_the_parent() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let client = connect(&server.addresses()[0]);
    let counter = counter(&client, "counter");
    let tx = client.transaction().begin().unwrap();
    tx.edit(counter).unwrap().set_count(5).unwrap();
    let mut tx = Some(tx);
    let said = in_child(|| match tx.take().unwrap().commit() {
        Ok(_) => "committed".into(),
        Err(e) => e.to_string(),
    });
    assert!(said.contains("before this process was forked"), "{said}");
    tx.unwrap().commit().unwrap();
    assert_eq!(read(&client, counter), Ok(5));
    client.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn an_embedded_space_stays_with_the_process_that_opened_it() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let config = ClientConfig { timeout: Duration::from_secs(5), ..ClientConfig::default() };
    let space = tercel::embedded_with(ServerConfig::new(dir.path()), config).unwrap();
    let counter = counter(&space, "counter");
    let mut kept = Some(space);
    let said = in_child(|| {
        let space = kept.take().unwrap();
        let said = read(&space, counter).unwrap_err().to_string();
        drop(space);
        said
    });
    assert!(said.contains("stays with the process that opened it"), "{said}");
    let space = kept.unwrap();
    assert_eq!(add(&space, counter, 1).and_then(|()| read(&space, counter)), Ok(1));
    space.close().unwrap();
}
