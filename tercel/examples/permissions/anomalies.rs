//! Effects that a reader sees without their causes, by three ways of reading two spaces.
//!
//! A writer takes access away in one space, and only then writes a document in another, round after round. A
//! reader looks at the document, then at the access: an anomaly is a document of a later round than the
//! access that it is read with. The reader's server of accounts is further away: what it sends arrives later.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tercel::{Error, Far, Object, Ref, Server, Spaces, Tx};

/// An account that may read.
#[derive(Object)]
struct Account {
    /// The round in which access was taken away last.
    taken: u64,
}

/// Something to read.
#[derive(Object)]
struct Document {
    /// The round in which it was written last.
    written: u64,
    reader: Far<Account>,
}

/// The reads by one way.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    /// New documents with the access of before.
    pub anomalies: u64,
    /// All.
    pub reads: u64,
}

/// The least of each way.
#[derive(Debug, Clone, Copy)]
pub struct Least {
    pub reads: u64,
    pub within: Duration,
    /// Rounds that are written meanwhile.
    pub rounds: u64,
}

/// The reads by each way, and the rounds that were written meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    pub written: u64,
    pub ttl: Counts,
    pub stale: Counts,
    pub session: Counts,
}

const ACCOUNTS: &str = "accounts";
const DOCUMENTS: &str = "documents";

/// Time by which what the far server sends arrives later.
const AWAY: Duration = Duration::from_millis(2);
/// Age of a value in the cache with a time to live.
const TTL: Duration = Duration::from_millis(5);

/// Reads so much by each way, with servers of directories in `dir`.
///
/// # Errors
/// Those of servers and clients.
pub fn measure(dir: &Path, least: Least) -> Result<Measured, Box<dyn std::error::Error>> {
    let serve = |name: &str| Server::builder(dir.join(name)).listen("127.0.0.1:0").start();
    let servers = [serve(ACCOUNTS)?, serve(DOCUMENTS)?];
    let [accounts, documents] = servers.each_ref().map(|server| server.addresses()[0].to_string());
    let connect = |accounts: &str| Spaces::connect([(ACCOUNTS, accounts), (DOCUMENTS, documents.as_str())]);
    let writes = connect(&accounts)?;
    let far = far(accounts.clone())?;
    // The document keeps the account: no root of its own space leads there.
    let session = writes.session();
    let reader = session.space(ACCOUNTS)?.run(|tx| tx.export(tx.create(&Account { taken: 0 })?))?;
    let document = session.space(DOCUMENTS)?.run(|tx| {
        let document = tx.create(&Document { written: 0, reader })?;
        tx.set_root("document", document)?;
        Ok(document)
    })?;
    drop(session);
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let writer = scope.spawn(|| write(&writes, document, &is_over, &written));
        let found = connect(&far).and_then(|spaces| {
            let rounds = || if writer.is_finished() { u64::MAX } else { written.load(Ordering::Relaxed) };
            by_ways(&spaces, document, least, &rounds)
        });
        is_over.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| "the writer panicked")??;
        let [ttl, stale, session] = found?;
        Ok(Measured { written: written.load(Ordering::Relaxed), ttl, stale, session })
    })
}

/// Takes access away, and only then writes, until it is over; counts how often.
fn write(
    spaces: &Spaces,
    document: Ref<Document>,
    is_over: &AtomicBool,
    written: &AtomicU64,
) -> Result<(), Error> {
    let session = spaces.session();
    let reader = session.space(DOCUMENTS)?.read(|tx| Ok(tx.get(document)?.reader()))?;
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        session.space_of(reader)?.run(|tx| tx.get_far(reader)?.edit()?.set_taken(round))?;
        session.space(DOCUMENTS)?.run(|tx| tx.edit(document)?.set_written(round))?;
        written.store(round, Ordering::Relaxed);
    }
    Ok(())
}

fn by_ways(
    spaces: &Spaces,
    document: Ref<Document>,
    least: Least,
    rounds: &dyn Fn() -> u64,
) -> Result<[Counts; 3], Error> {
    let client = |name| spaces.client(name).ok_or_else(|| Error::Invalid(format!("no client of {name}")));
    let (accounts, documents) = (client(ACCOUNTS)?, client(DOCUMENTS)?);
    let written = |tx: &Tx<'_>| tx.get(document).map(|document| (document.written(), document.reader()));
    let taken = |reader| move |tx: &Tx<'_>| Ok(tx.get_far::<Account>(reader)?.taken());
    let (mut of_access, mut of_document) = (Aged::default(), Aged::default());
    let ttl = count(least, rounds, || {
        let newest = documents.transaction().bounded(Duration::ZERO);
        let (document, reader) = of_document.get(|| newest.run(written))?;
        let newest = accounts.transaction().bounded(Duration::ZERO);
        Ok((document, of_access.get(|| newest.run(taken(reader)))?))
    })?;
    let stale = count(least, rounds, || {
        let (document, reader) = documents.transaction().stale().run(written)?;
        Ok((document, accounts.transaction().stale().run(taken(reader))?))
    })?;
    let session = spaces.session();
    let causal = count(least, rounds, || {
        let (document, reader) = session.space(DOCUMENTS)?.read(written)?;
        Ok((document, session.follow(reader, |account| Ok(account.taken()))?))
    })?;
    Ok([ttl, stale, causal])
}

/// Counts the pairs of document and access that do not go together, and all.
fn count(
    least: Least,
    rounds: &dyn Fn() -> u64,
    mut read: impl FnMut() -> Result<(u64, u64), Error>,
) -> Result<Counts, Error> {
    let (begun, mut counts) = (Instant::now(), Counts { anomalies: 0, reads: 0 });
    let end = rounds().saturating_add(least.rounds);
    while counts.reads < least.reads || begun.elapsed() < least.within || rounds() < end {
        let (document, access) = read()?;
        counts.anomalies += u64::from(access < document);
        counts.reads += 1;
    }
    Ok(counts)
}

/// The address of a server that is further away: what it sends arrives later, in its order.
fn far(server: String) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    // The threads end with their connections, the first of them with this process.
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(&server) else { continue };
            let (Ok(mut up), Ok(mut from)) = (client.try_clone(), server.try_clone()) else { continue };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (sender, arriving) = mpsc::channel::<(Instant, Vec<u8>)>();
            thread::spawn(move || {
                let mut server = server;
                let _ = std::io::copy(&mut up, &mut server);
                let _ = server.shutdown(Shutdown::Both);
            });
            thread::spawn(move || {
                let mut buffer = [0; 64 << 10];
                while let Ok(n @ 1..) = from.read(&mut buffer) {
                    let _ = sender.send((Instant::now() + AWAY, buffer[..n].to_vec()));
                }
            });
            thread::spawn(move || {
                let mut client = client;
                for (at, bytes) in arriving {
                    thread::sleep(at.saturating_duration_since(Instant::now()));
                    if client.write_all(&bytes).is_err() {
                        break;
                    }
                }
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    Ok(address)
}

/// A value with a time to live.
struct Aged<T>(Option<(Instant, T)>);

impl<T> Default for Aged<T> {
    fn default() -> Aged<T> {
        Aged(None)
    }
}

impl<T: Copy> Aged<T> {
    fn get(&mut self, read: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        match self.0 {
            Some((at, value)) if at.elapsed() < TTL => Ok(value),
            _ => {
                let value = read()?;
                self.0 = Some((Instant::now(), value));
                Ok(value)
            }
        }
    }
}
