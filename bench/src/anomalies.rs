//! Rows of suite `flex`: effects that a reader sees without their causes, by three ways of reading two
//! spaces.
//!
//! A writer takes access away in one space, and only then changes a document in another, round after round.
//! A reader looks at the document, then at the access: an anomaly is a document of a later round than the
//! access that it is read with. The reader's server of accounts is further away: what it sends arrives later.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tercel::{Error, Object, Ref, Server, Spaces, Tx};

use super::Options;
use super::report::Row;

/// An access, or a document: the round in which it was changed.
#[derive(Object)]
struct Round {
    round: u64,
}

const ACCOUNTS: &str = "accounts";
const DOCUMENTS: &str = "documents";

/// Time by which what the far server sends arrives later.
const AWAY: Duration = Duration::from_millis(2);
/// Age of a value in the cache with a time to live.
const TTL: Duration = Duration::from_millis(5);
/// Rounds that are read by each way at least, and the time for it.
const READS: u64 = 100_000;
const READS_QUICK: u64 = 2_000;
const READING: Duration = Duration::from_secs(2);
const READING_QUICK: Duration = Duration::from_millis(300);

/// Measures, with servers of these directories.
///
/// # Errors
/// A sentence: what failed.
pub fn rows(options: &Options, dir: &Path) -> Result<Vec<Row>, String> {
    let serve = |name: &str| Server::builder(dir.join(name)).listen("127.0.0.1:0").start().map_err(failed);
    let servers = [serve(ACCOUNTS)?, serve(DOCUMENTS)?];
    let [accounts, documents] = servers.each_ref().map(|server| server.addresses()[0].to_string());
    let connect = |accounts: &str| {
        Spaces::connect([(ACCOUNTS, accounts), (DOCUMENTS, documents.as_str())]).map_err(failed)
    };
    let writes = connect(&accounts)?;
    let far = far(accounts.clone()).map_err(failed)?;
    let make = |space: &str| {
        writes.session()?.space(space)?.run(|tx| {
            let made = tx.create(&Round { round: 0 })?;
            tx.set_root("round", made)?;
            Ok(made)
        })
    };
    let (access, document) = (make(ACCOUNTS).map_err(failed)?, make(DOCUMENTS).map_err(failed)?);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let session = writes.session()?;
            let mut round = 0;
            while !is_over.load(Ordering::Relaxed) {
                round += 1;
                for (space, of) in [(ACCOUNTS, access), (DOCUMENTS, document)] {
                    session.space(space)?.run(|tx| tx.edit(of)?.set_round(round))?;
                }
            }
            Ok::<u64, Error>(round)
        });
        let rows = connect(&far).and_then(|reads| by_ways(options, &reads, access, document));
        is_over.store(true, Ordering::Relaxed);
        let written = writer.join().map_err(|_| "the writer panicked")?.map_err(failed)?;
        options.say(&format!("{written} rounds were written meanwhile"));
        rows
    })
}

fn by_ways(
    options: &Options,
    spaces: &Spaces,
    access: Ref<Round>,
    document: Ref<Round>,
) -> Result<Vec<Row>, String> {
    let client = |name| spaces.client(name).ok_or("the space has a client");
    let (accounts, documents) = (client(ACCOUNTS)?, client(DOCUMENTS)?);
    let round = |of: Ref<Round>| move |tx: &Tx<'_>| Ok(tx.get(of)?.round());
    let (mut of_access, mut of_document) = (Aged::default(), Aged::default());
    let ttl = count(options, || {
        let document =
            of_document.get(|| documents.transaction().bounded(Duration::ZERO).run(round(document)))?;
        Ok((document, of_access.get(|| accounts.transaction().bounded(Duration::ZERO).run(round(access)))?))
    })?;
    let stale = count(options, || {
        let document = documents.transaction().stale().run(round(document))?;
        Ok((document, accounts.transaction().stale().run(round(access))?))
    })?;
    let session = spaces.session().map_err(failed)?;
    let causal = count(options, || {
        let document = session.space(DOCUMENTS)?.read(round(document))?;
        Ok((document, session.space(ACCOUNTS)?.read(round(access))?))
    })?;
    let row = |way: &str, (anomalies, reads): (u64, u64)| {
        Row::new(format!("flex.anomalies.{way}"), anomalies as f64, "reads", reads)
    };
    Ok(vec![
        row("ttl", ttl).note("a cache of values that are at most 5 ms old"),
        row("stale", stale).note("each space as the client's cache has it"),
        row("session", causal).note("in a session over both spaces; must be 0"),
    ])
}

/// Counts the pairs of document and access that do not go together, and all.
fn count(
    options: &Options,
    mut read: impl FnMut() -> Result<(u64, u64), Error>,
) -> Result<(u64, u64), String> {
    let (reads, within) = if options.quick { (READS_QUICK, READING_QUICK) } else { (READS, READING) };
    let (begun, mut anomalies, mut all) = (Instant::now(), 0, 0);
    while all < reads || begun.elapsed() < within {
        let (document, access) = read().map_err(failed)?;
        anomalies += u64::from(access < document);
        all += 1;
    }
    Ok((anomalies, all))
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
#[derive(Default)]
struct Aged(Option<(Instant, u64)>);

impl Aged {
    fn get(&mut self, read: impl FnOnce() -> Result<u64, Error>) -> Result<u64, Error> {
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

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}
