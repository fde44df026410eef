//! Certificates for rows whose connections are sealed, and the rows of sealed calls by plain ones.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tercel::{Client, ClientConfig, Tls, Transport};

use super::{
    Counter, Ends, Place, Procedures, ProceduresCalls, TRIPS, Waits, block, failed, fetch, placed, rounds,
};
use crate::Options;
use crate::blocks::{alternate, percentile};
use crate::report::Row;
use crate::scratch::Scratch;

/// The name of the rows of sealed calls in `--only`.
pub const SEALED: &str = "sealed";

/// Measures sealed calls by plain ones, with all ends on one processor, asleep while they wait.
///
/// # Errors
/// A sentence: what failed.
pub(super) fn rows(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    options.say("sealed calls, by plain ones");
    let place = |road| Place { road, waits: Waits::Sleeping, apart: false };
    let (first, last) = placed::ends();
    let large = placed::on(last, || {
        let begin = |road| {
            Ends::begin(&scratch.join(&format!("{SEALED}.large.{}", place(road).name())), &place(road).role())
        };
        Ok::<_, String>((begin(Transport::Tcp)?, begin(Transport::Tls)?))
    })?;
    placed::on(first, || {
        let [plain, sealed] = [Transport::Tcp, Transport::Tls].map(|road| {
            let place = place(road);
            Ends::begin(&scratch.join(&format!("{SEALED}.{}", place.name())), &place.role())
        });
        let (plain, sealed) = (plain?, sealed?);
        let row = |id: &str, roads: [Transport; 2], limit: &str| {
            let [of_plain, of_sealed] = [plain.client(place(roads[0]))?, sealed.client(place(roads[1]))?];
            let [of_plain, of_sealed] = [&of_plain, &of_sealed].map(|it| it.service::<dyn Procedures>());
            let mut one = || of_plain.null().map_err(failed);
            let mut call = || of_sealed.null().map_err(failed);
            // Datagrams are begun by calls.
            (0..TRIPS).try_for_each(|_| one().and_then(|()| call()))?;
            let pairs = alternate(rounds(options), || block(&mut one), || block(&mut call))?;
            let n = (rounds(options) * TRIPS) as u64;
            Ok::<_, String>(
                Row::compared(id, "us", &pairs, limit, n).note("a procedure that takes and gives nothing"),
            )
        };
        let mut rows = vec![
            row("tls.null.tcp", [Transport::Tcp, Transport::Tls], "plain TCP")?,
            row("udp.sealed.null", [Transport::Udp, Transport::SealedUdp], "plain datagrams")?,
        ];
        let of = [(&large.0, place(Transport::Tcp)), (&large.1, place(Transport::Tls))];
        rows.push(large_results(options, of)?);
        rows.extend(by_streams(
            options,
            [(&plain, place(Transport::Tcp)), (&sealed, place(Transport::Tls))],
        )?);
        let bystander =
            Ends::begin(&scratch.join(&format!("{SEALED}.bystander")), &place(Transport::Tls).role())?;
        rows.push(handshakes(options, &sealed, &bystander)?);
        Ok(rows)
    })
}

/// Large results, with the ends on a processor each: one opens a record while the other seals the next one.
fn large_results(options: &Options, of: [(&Ends, Place); 2]) -> Result<Row, String> {
    let rounds = rounds(options);
    let clients = [of[0].0.client(of[0].1)?, of[1].0.client(of[1].1)?];
    let rate = |at: usize| {
        let service = clients[at].service::<dyn Procedures>();
        let begun = Instant::now();
        for _ in 0..LARGE {
            service.give(LARGE_BYTES).map_err(failed)?;
        }
        Ok::<_, String>(LARGE as f64 * f64::from(LARGE_BYTES) / 1e6 / begun.elapsed().as_secs_f64())
    };
    let pairs = alternate(rounds, || rate(0), || rate(1))?;
    let row = Row::compared("tls.1m", "MB/s", &pairs, PLAIN, (rounds * LARGE) as u64);
    Ok(row.note(format!("results of a megabyte; {}", placed::note())))
}

/// A page and a commit: each sealed by the same plain.
fn by_streams(options: &Options, of: [(&Ends, Place); 2]) -> Result<[Row; 2], String> {
    let rounds = rounds(options);
    let config = |(ends, place): (&Ends, Place)| ClientConfig {
        cache_bytes: fetch::CACHE_BYTES,
        ..ends.config(place)
    };
    let reader = |of: (&Ends, Place)| {
        let client = of.0.client_with(of.1, config(of))?;
        let halves = fetch::make(&client)?;
        Ok::<_, String>((client, halves))
    };
    let readers = [reader(of[0])?, reader(of[1])?];
    let reads = |at: usize| {
        let (client, halves) = &readers[at];
        let mut next = 0;
        block(&mut || {
            next = (next + 2) % halves.len();
            client.run(|tx| Ok(tx.get(halves[next])?.number())).map(|_| ()).map_err(failed)
        })
    };
    let pairs = alternate(rounds, || reads(0), || reads(1))?;
    let fetched = Row::compared("tls.fetch", "us", &pairs, PLAIN, (rounds * TRIPS) as u64);

    let clients = [of[0].0.client(of[0].1)?, of[1].0.client(of[1].1)?];
    let make = |client: &Client| client.run(|tx| tx.create(&Counter { count: 0 })).map_err(failed);
    let made = [make(&clients[0])?, make(&clients[1])?];
    let commits = |at: usize| {
        let begun = Instant::now();
        for count in 0..COMMITS as u64 {
            clients[at].run(|tx| tx.edit(made[at])?.set_count(count)).map_err(failed)?;
        }
        Ok::<_, String>(begun.elapsed().as_secs_f64() * 1e6 / COMMITS as f64)
    };
    let pairs = alternate(rounds, || commits(0), || commits(1))?;
    let commit = Row::compared("tls.commit.one", "us", &pairs, PLAIN, (rounds * COMMITS) as u64);
    Ok([
        fetched.note("an object read whose page is not cached"),
        commit.note("a commit of one object, which waits for the disk"),
    ])
}

/// The slowest hundredth of one client's calls while many others connect to its server, by the same while
/// they connect to another server on the same processor, which takes as much of it.
fn handshakes(options: &Options, at: &Ends, bystander: &Ends) -> Result<Row, String> {
    let place = Place { road: Transport::Tls, waits: Waits::Sleeping, apart: false };
    let client = at.client(place)?;
    let service = client.service::<dyn Procedures>();
    let beside = |others: &Ends| {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let connecting: Vec<_> = (0..CONNECTING)
                .map(|_| {
                    scope.spawn(|| {
                        let config =
                            || ClientConfig { cache_bytes: SMALL_CACHE_BYTES, ..others.config(place) };
                        let all = (0..CLIENTS / CONNECTING).map(|_| others.client_with(place, config()));
                        all.collect::<Result<Vec<_>, _>>().map(drop)
                    })
                })
                .collect();
            let calls = scope.spawn(|| {
                let mut times = Vec::new();
                while !is_over.load(Ordering::SeqCst) {
                    let begun = Instant::now();
                    service.null().map_err(failed)?;
                    times.push(begun.elapsed().as_secs_f64() * 1e3);
                }
                times.sort_unstable_by(f64::total_cmp);
                Ok::<_, String>(percentile(&times, 0.99))
            });
            let connected: Result<Vec<()>, String> = connecting
                .into_iter()
                .map(|one| one.join().unwrap_or_else(|_| Err(PANICKED.into())))
                .collect();
            is_over.store(true, Ordering::SeqCst);
            let p99 = calls.join().unwrap_or_else(|_| Err(PANICKED.into()));
            connected.and(p99)
        })
    };
    let rounds = if options.quick { 5 } else { 20 };
    let pairs = alternate(rounds, || beside(bystander), || beside(at))?;
    let limit = "the same while they connect to another server";
    let row = Row::compared("tls.handshakes", "ms", &pairs, limit, (rounds * CLIENTS) as u64);
    Ok(row.note(format!("p99 of a client's calls while {CLIENTS} others connect")))
}

const PLAIN: &str = "plain TCP";

/// Results of a block, and the bytes of each.
const LARGE: usize = 16;
const LARGE_BYTES: u32 = 1 << 20;

/// Commits of a block.
const COMMITS: usize = 200;

/// Clients that come at once, and the threads that connect them.
const CLIENTS: usize = 1_000;
const CONNECTING: usize = 20;

/// The cache of each, which reads nothing.
const SMALL_CACHE_BYTES: usize = 1 << 20;

const PANICKED: &str = "a thread of the measurement panicked";

/// Makes an authority, and a certificate each of a server and of a client.
pub(super) fn make(dir: &Path) -> Result<(), String> {
    let key = KeyPair::generate().map_err(failed)?;
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let trusted = authority.self_signed(&key).map_err(failed)?.pem();
    let issuer = Issuer::new(authority, key);
    for (name, uri) in [(SERVER, "tercel://bench/member/server"), (CLIENT, "tercel://client/bench")] {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(uri.try_into().map_err(failed)?)];
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        let dir = place(dir, name);
        std::fs::create_dir_all(&dir).map_err(failed)?;
        for (file, text) in
            [("tls.crt", certificate.pem()), ("tls.key", key.serialize_pem()), ("ca.crt", trusted.clone())]
        {
            std::fs::write(dir.join(file), text).map_err(failed)?;
        }
    }
    Ok(())
}

/// The certificate of an end.
pub(super) fn open(dir: &Path, name: &str) -> Result<Tls, String> {
    Tls::open(place(dir, name)).map_err(failed)
}

fn place(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}-tls"))
}

pub(super) const SERVER: &str = "server";
pub(super) const CLIENT: &str = "client";
