//! What becomes of a server of which a thread panics: it stops, and says which thread it was and why.

use std::sync::mpsc::channel;
use std::time::Duration;

use tempfile::TempDir;
use tercel_wire::id::{PageId, Stamp};

use super::start::{Opened, launch, listen, open};
use super::*;
use crate::disk::log::tests::open_panicking;
use crate::disk::pages::{EachPage, PageBatch, PageRead, PageStore};
use crate::wire::record::Ref;
use crate::{Client, Object};

#[derive(Object)]
struct Counter {
    count: u64,
}

/// How long a server may take to stop: a test that fails waits for that, one that passes does not.
const STOPS_WITHIN: Duration = Duration::from_secs(10);

/// A directory in whose pages there is one object.
fn with_an_object() -> (TempDir, Ref<Counter>) {
    let dir = tempfile::tempdir().unwrap();
    let client = crate::embedded(dir.path()).unwrap();
    let counter = client.run(|tx| tx.create(&Counter { count: 7 })).unwrap();
    client.close().unwrap();
    (dir, counter)
}

fn serve(dir: &TempDir, change: impl FnOnce(Opened) -> Opened) -> Server {
    let config =
        ServerConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], ..ServerConfig::new(dir.path()) };
    let listening = listen(&config.listen).unwrap();
    launch(change(open(&config).unwrap()), listening, 0).unwrap()
}

/// What a server says that stops by itself while a client is at work.
fn stops(server: Server, work: impl FnOnce(Client) + Send + 'static) -> String {
    let address = server.addresses()[0].clone();
    // A client has no bound on how long it waits for a server.
    std::thread::spawn(move || work(Client::connect(&address).unwrap()));
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(server.wait()));
    match told.recv_timeout(STOPS_WITHIN) {
        Ok(Err(ServerError::Stopped(why))) => why,
        Ok(other) => panic!("it stopped with {other:?}"),
        Err(_) => panic!("it has not stopped"),
    }
}

/// A page store that panics when it is read or written.
struct Panics {
    store: Box<dyn PageStore>,
    reads: bool,
    commits: bool,
}

struct PanicsReading;

impl PageRead for PanicsReading {
    fn read(&self, _: PageId, _: &mut Vec<u8>) -> Result<bool, DiskError> {
        panic!("injected into a read");
    }

    fn meta(&self, _: &str) -> Result<Option<Vec<u8>>, DiskError> {
        Ok(None)
    }

    fn applied_stamp(&self) -> Result<Stamp, DiskError> {
        Ok(Stamp::ZERO)
    }

    fn page_count(&self) -> Result<u64, DiskError> {
        Ok(0)
    }

    fn for_each_page(&self, _: EachPage<'_>) -> Result<(), DiskError> {
        Ok(())
    }
}

impl PageRead for Panics {
    fn read(&self, page: PageId, buf: &mut Vec<u8>) -> Result<bool, DiskError> {
        self.store.read(page, buf)
    }

    fn meta(&self, name: &str) -> Result<Option<Vec<u8>>, DiskError> {
        self.store.meta(name)
    }

    fn applied_stamp(&self) -> Result<Stamp, DiskError> {
        self.store.applied_stamp()
    }

    fn page_count(&self) -> Result<u64, DiskError> {
        self.store.page_count()
    }

    fn for_each_page(&self, each: EachPage<'_>) -> Result<(), DiskError> {
        self.store.for_each_page(each)
    }
}

impl PageStore for Panics {
    fn commit(&mut self, batch: &PageBatch<'_>) -> Result<(), DiskError> {
        assert!(!self.commits, "injected into an install");
        self.store.commit(batch)
    }

    fn reader(&self) -> Box<dyn PageRead> {
        if self.reads { Box::new(PanicsReading) } else { self.store.reader() }
    }

    fn pin(&self) -> Result<Box<dyn PageRead>, DiskError> {
        self.store.pin()
    }
}

fn panicking(opened: Opened, reads: bool, commits: bool) -> Opened {
    let pages = Box::new(Panics { store: opened.pages, reads, commits });
    Opened { pages, ..opened }
}

#[test]
fn panic_while_reading_a_page_stops_the_server() {
    let (dir, counter) = with_an_object();
    let server = serve(&dir, |opened| panicking(opened, true, false));
    let why = stops(server, move |client| _ = client.run(|tx| Ok(tx.get(counter)?.count())));
    assert!(why.contains("tercel-read") && why.contains("injected into a read"), "{why}");
}

#[test]
fn panic_while_installing_pages_stops_the_server() {
    let (dir, counter) = with_an_object();
    let server = serve(&dir, |opened| panicking(opened, false, true));
    let stopper = server.stopper();
    let why = stops(server, move |client| {
        client.run(|tx| tx.edit(counter)?.set_count(8)).unwrap();
        // A clean stop installs what was committed.
        stopper.stop();
    });
    assert!(why.contains("tercel-install") && why.contains("injected into an install"), "{why}");
}

#[test]
fn panic_while_syncing_the_log_stops_the_server() {
    let (dir, counter) = with_an_object();
    let server = serve(&dir, |opened| {
        let (log_dir, space) = (opened.dir.log_dir(), opened.machine.space());
        opened.log.close().unwrap();
        Opened { log: open_panicking(&log_dir, space), ..opened }
    });
    let why = stops(server, move |client| _ = client.run(|tx| tx.edit(counter)?.set_count(8)));
    assert!(why.contains("tercel-log") && why.contains("injected into a sync"), "{why}");
}
