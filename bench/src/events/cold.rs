//! Connections that never say anything: accepted by a queue here, held by a process of their own.

use std::io::BufRead;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use rustix::process::{Resource, getrlimit};
use tercel_term::process::{OwnProcess, raise_descriptors};

use super::bed::ByQueue;
use super::{ROLE, SOURCES_MAX, failed};
use crate::placed;

/// A loop with silent connections.
pub struct Cold {
    pub by: ByQueue,
    peers: OwnProcess,
    count: usize,
}

impl Cold {
    /// A loop without any. The process of the other ends stays on that processor.
    pub fn open(others: usize) -> Result<Cold, String> {
        let mut by = ByQueue::new(None, SOURCES_MAX)?;
        let mut addresses = Vec::new();
        for host in 1..=HOSTS {
            let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, host), 0)).map_err(failed)?;
            rustix::net::listen(&listener, BACKLOG).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?.to_string());
            by.queue.declare_listener(listener, 0).map_err(failed)?;
        }
        let role = addresses.join(" ");
        let peers = placed::on(others, || Ok(OwnProcess::role(&["bench", "events"], ROLE, role)?))?;
        Ok(Cold { by, peers, count: 0 })
    }

    /// Has so many connections in all. Gives the bytes by which the memory of this process grew.
    pub fn grow_to(&mut self, count: usize) -> Result<u64, String> {
        let more = count - self.count;
        self.count = count;
        let before = anonymous_bytes()?;
        self.peers.ask(&more.to_string())?;
        self.by.accept(more)?;
        Ok(anonymous_bytes()?.saturating_sub(before))
    }
}

/// The number of silent connections for which this process and the other one have descriptors.
pub fn room() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors.saturating_sub(OWN_DESCRIPTORS)).unwrap_or(usize::MAX)
}

/// At each number in a line of standard input, connects so often, to the addresses by turns.
pub fn speak_never(addresses: &str) -> Result<(), String> {
    raise_descriptors();
    let addresses: Vec<&str> = addresses.split(' ').collect();
    println!("listening on nothing");
    let mut streams = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(failed)?;
        println!("connecting");
        for n in 0..line.parse::<usize>().map_err(failed)? {
            let address = addresses[n % addresses.len()];
            streams.push(TcpStream::connect(address).map_err(|e| format!("connection {n}: {e}"))?);
        }
    }
    Ok(())
}

/// Reads the bytes of this process's memory that no file backs, page by page: the figure of `status` is kept
/// for each processor apart, and may lack hundreds of KiB.
fn anonymous_bytes() -> Result<u64, String> {
    let path = "/proc/self/smaps_rollup";
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let kib = text.lines().find_map(|line| line.strip_prefix("Anonymous:")?.trim().strip_suffix(" kB"));
    let kib: Option<u64> = kib.and_then(|kib| kib.parse().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| format!("{path} does not say how much memory this process has"))
}

/// Addresses of this machine, by turns: a search for a free port is short while few are in use towards one.
const HOSTS: u8 = 8;

/// Connections that wait to be accepted: as many as the system allows by default.
const BACKLOG: i32 = 4_096;

/// Descriptors beside the silent connections, several times over.
const OWN_DESCRIPTORS: u64 = 200;
