//! Suite `idle`: what connections cost that do nothing.
//!
//! Two servers, each a process of its own: one has thousands of connected clients that only say now and then
//! that they are there, the other none. What a connection takes is the growth of the first one's anonymous
//! memory; what it costs the others is the time of a round trip for a page that both have in memory, in
//! alternating blocks. Both servers stay on one processor, and all clients on another.

use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use tercel::tools::wire::frame::{self, Header, Kind};
use tercel::tools::wire::id::{ClientId, PageId};
use tercel::{Address, Client, ClientConfig};
use tercel_term::process::{OwnProcess, raise_descriptors};

use super::blocks::{alternate, median, percentile};
use super::load::raw::hello;
use super::report::{Machine, Report, Row};
use super::scratch::Scratch;
use super::{COMMIT, Options, placed};

/// The environment variable that makes this program the holder of idle connections.
pub const ROLE: &str = "TERCEL_BENCH_IDLE";

/// The value of [`ROLE`] for such a process.
pub fn role(address: &str, connections: usize) -> String {
    format!("{connections} {address}")
}

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options) -> Result<Report, String> {
    room_for(options.connections)?;
    let scratch = Scratch::new(options.dir.as_deref(), "idle")?;
    options.say("starting two servers");
    let (clients, servers) = placed::ends();
    let serve = |name| placed::on(servers, || Ok(OwnProcess::serve(&scratch.join(name), None, &[])?));
    let (busy, lonely) = (serve("busy")?, serve("lonely")?);
    let rows = placed::on(clients, || rows(options, &busy, &lonely))?;
    Ok(Report { suite: "idle", commit: COMMIT, machine: Machine::here(busy.backend()), rows })
}

fn rows(options: &Options, busy: &OwnProcess, lonely: &OwnProcess) -> Result<Vec<Row>, String> {
    let (with, without) = (Caller::connect(busy)?, Caller::connect(lonely)?);
    // The first calls allocate memory that does not belong to the connections.
    for caller in [&with, &without] {
        caller.block()?;
    }
    let before = anonymous_bytes(busy.id())?;
    options.say(&format!("connecting {} clients", options.connections));
    let _idle = OwnProcess::role(&["bench", "idle"], ROLE, role(busy.listens_on(), options.connections))?;
    let grown = anonymous_bytes(busy.id())?.saturating_sub(before);

    options.say("measuring round trips");
    let mut all = Vec::new();
    let rounds = if options.quick { ROUNDS_QUICK } else { ROUNDS };
    let pairs = alternate(
        rounds,
        || without.block().map(|mut block| median(&mut block)),
        || {
            let mut block = with.block()?;
            all.extend_from_slice(&block);
            Ok::<_, String>(median(&mut block))
        },
    )?;
    all.sort_unstable_by(f64::total_cmp);
    let n = all.len() as u64;
    let after = anonymous_bytes(busy.id())?.saturating_sub(before);
    let each = grown.max(after) as f64 / options.connections.max(1) as f64;
    let hot = Row::compared("idle.hot.p50", "us", &pairs, "idle.none.p50", n);
    Ok(vec![
        Row::new("idle.bytes_per_connection", each, "B", options.connections as u64)
            .note("growth of the server's anonymous memory, by the connections"),
        Row { p99: Some(percentile(&all, 0.99)), ..hot }.note(format!(
            "a page from the server's memory, beside idle connections and without any; {}",
            placed::note()
        )),
    ])
}

/// Checks that so many connections can be: each takes a descriptor here and one of the server's, and a port.
fn room_for(connections: usize) -> Result<(), String> {
    if let Some(descriptors) = getrlimit(Resource::Nofile).maximum
        && connections as u64 + OWN_DESCRIPTORS > descriptors
    {
        return Err(format!(
            "{connections} connections need as many file descriptors, and a process here may have {descriptors} \
             (`ulimit -Hn`): name at most {} with --connections, or raise the limit",
            descriptors.saturating_sub(OWN_DESCRIPTORS)
        ));
    }
    let ports = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let ends: Vec<u64> = ports.split_whitespace().filter_map(|end| end.parse().ok()).collect();
    if let [first, last] = ends[..]
        && connections as u64 + OWN_DESCRIPTORS > last.saturating_sub(first)
    {
        return Err(format!(
            "{connections} connections need as many ports, and this machine gives out {} (net.ipv4.ip_local_port_range): \
             name fewer with --connections, or widen the range",
            last.saturating_sub(first)
        ));
    }
    Ok(())
}

/// A client that asks for a page that the server has in memory, past its own cache.
struct Caller {
    client: Client,
}

impl Caller {
    fn connect(server: &OwnProcess) -> Result<Caller, String> {
        let address: Address = server.address()?;
        let config = ClientConfig { cache_bytes: 1 << 20, ..ClientConfig::default() };
        Client::connect_with(&address, config).map(|client| Caller { client }).map_err(failed)
    }

    /// Microseconds of each call.
    fn block(&self) -> Result<Vec<f64>, String> {
        let mut times = Vec::with_capacity(BLOCK_CALLS);
        for _ in 0..BLOCK_CALLS {
            let begin = Instant::now();
            tercel::tools::page(&self.client, ROOT_PAGE).map_err(failed)?;
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    }
}

/// Holds idle connections until standard input ends.
///
/// # Errors
/// A sentence: what failed.
pub fn child(role: &OsStr) -> Result<(), String> {
    let wrong = || format!("{ROLE} is for this program's own use");
    let (count, address) = role.to_str().and_then(|r| r.split_once(' ')).ok_or_else(wrong)?;
    let count: usize = count.parse().map_err(|_| wrong())?;
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    raise_descriptors();
    let connect = |n: usize| greet(address, n as u64 + 1).map_err(|e| format!("connection {n}: {e}"));
    let mut streams = (0..count).map(connect).collect::<Result<Vec<_>, _>>()?;
    println!("listening on nothing");
    let mut ping = Vec::new();
    frame::encode(Header::new(Kind::Ping, 1), &[], &mut ping);
    let step = Duration::from_millis(5);
    let share = (count as f64 * step.as_secs_f64() / PING_EVERY.as_secs_f64()).ceil() as usize;
    let mut next = 0;
    // Evenly spread, as of clients that know nothing of each other.
    loop {
        std::thread::sleep(step);
        for _ in 0..share {
            beat(&mut streams[next], &ping).map_err(|e| format!("connection {next}: {e}"))?;
            next = (next + 1) % count;
        }
    }
}

/// Connects and is welcomed.
fn greet(address: &str, id: u64) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut bytes = Vec::new();
    hello(ClientId(id), &mut bytes);
    stream.write_all(&bytes)?;
    let mut answer = [0; 512];
    let n = stream.read(&mut answer)?;
    match frame::split(&answer[..n]) {
        Ok(Some((header, ..))) if header.kind == Kind::Welcome => {}
        _ => return Err(std::io::Error::new(ErrorKind::ConnectionRefused, "the server does not welcome it")),
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Takes the last answer and says that the client is there.
fn beat(stream: &mut TcpStream, ping: &[u8]) -> std::io::Result<()> {
    match stream.read(&mut [0; 512]) {
        Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
        Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e),
        _ => {}
    }
    stream.write_all(ping)
}

/// Reads the bytes of memory that a process has written to and no file backs: heap, stacks, tables.
pub(super) fn anonymous_bytes(process: u32) -> Result<u64, String> {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"));
    let kib: Option<u64> = kib.and_then(|kib| kib.parse().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| format!("{path} does not say how much memory the server has"))
}

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// The page of the names, which every space has.
const ROOT_PAGE: PageId = PageId::new(1).expect("a page");

/// Time between two messages in which an idle client reports that it is there: as in Tercel's own client.
const PING_EVERY: Duration = Duration::from_secs(2);

/// Descriptors of a process beside the connections, several times over.
const OWN_DESCRIPTORS: u64 = 128;

/// Calls of a block, some tens of milliseconds.
const BLOCK_CALLS: usize = 1_000;
const ROUNDS: usize = 60;
const ROUNDS_QUICK: usize = 15;
