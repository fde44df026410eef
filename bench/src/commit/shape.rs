//! The bytes of a commit: on the wire both ways, and in the log. Measured, so that the bare server moves just
//! as many.

use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tercel::Address;
use tercel_term::process::OwnProcess;

/// Bytes of one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// From the client.
    pub request: usize,
    /// Into the log.
    pub log: usize,
    /// To the client.
    pub reply: usize,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { request, log, reply } = self;
        write!(f, "a commit is {request} bytes to the server, {log} in the log, {reply} back")
    }
}

/// Measures the commits of what `commit` makes: it connects to an address, commits so many times, and gives
/// what keeps the connection open.
pub fn measure<C>(
    server: &OwnProcess,
    log: &Path,
    commit: impl Fn(&Address, u64) -> Result<C, String>,
) -> Result<Shape, String> {
    // Both runs contain the cost of connecting, so their difference does not.
    let [few, many] = [WARM, WARM + COUNTED].map(|commits| {
        let before = written(log).map_err(|e| format!("cannot read the log: {e}"))?;
        let relay = Relay::start(server.listens_on()).map_err(|e| format!("cannot relay: {e}"))?;
        let committer = commit(&relay.address, commits)?;
        let sent = [relay.up.load(Ordering::Relaxed), relay.down.load(Ordering::Relaxed)];
        drop(committer);
        let after = written(log).map_err(|e| format!("cannot read the log: {e}"))?;
        Ok::<_, String>([sent[0], after - before, sent[1]])
    });
    let (few, many) = (few?, many?);
    let each = |i: usize| (many[i].saturating_sub(few[i]) as f64 / COUNTED as f64).round().max(1.0) as usize;
    Ok(Shape { request: each(0), log: each(1), reply: each(2) })
}

/// Passes one connection on and counts its bytes.
struct Relay {
    address: Address,
    up: Arc<AtomicU64>,
    down: Arc<AtomicU64>,
}

impl Relay {
    fn start(server: &str) -> std::io::Result<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = Address::Tcp(listener.local_addr()?.to_string());
        let (up, down) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (server, counts) = (server.to_string(), [up.clone(), down.clone()]);
        // The threads end with their connections.
        std::thread::spawn(move || -> std::io::Result<()> {
            let (client, _) = listener.accept()?;
            let server = TcpStream::connect(server)?;
            let back = (server.try_clone()?, client.try_clone()?);
            let [up, down] = counts;
            std::thread::spawn(move || pass(back.0, back.1, &down));
            pass(client, server, &up);
            Ok(())
        });
        Ok(Relay { address, up, down })
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, count: &AtomicU64) {
    let _ = to.set_nodelay(true);
    let mut buffer = [0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        count.fetch_add(n as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Bytes written to the log's segments, which are zeros where nothing was written.
fn written(log: &Path) -> std::io::Result<u64> {
    let mut total = 0;
    for entry in std::fs::read_dir(log)? {
        let path = entry?.path();
        // Others have been segments, and what is in them was counted then.
        if path.extension().is_none_or(|extension| extension != "tlog") {
            continue;
        }
        let bytes = std::fs::read(path)?;
        total += bytes.iter().rposition(|&b| b != 0).map_or(0, |last| last as u64 + 1);
    }
    Ok(total)
}

const WARM: u64 = 50;
const COUNTED: u64 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_passes_bytes_both_ways_and_counts_them() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay::start(&server.local_addr().unwrap().to_string()).unwrap();
        let Address::Tcp(address) = &relay.address else { panic!("a relay listens on TCP") };
        let mut client = TcpStream::connect(address).unwrap();
        let (mut served, _) = server.accept().unwrap();
        client.write_all(b"question").unwrap();
        let mut question = [0; 8];
        served.read_exact(&mut question).unwrap();
        served.write_all(b"yes").unwrap();
        let mut answer = [0; 3];
        client.read_exact(&mut answer).unwrap();
        assert_eq!((&question, &answer), (b"question", b"yes"));
        assert_eq!((relay.up.load(Ordering::Relaxed), relay.down.load(Ordering::Relaxed)), (8, 3));
    }

    #[test]
    fn zeros_behind_the_last_record_were_not_written() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("1.tlog"), [1, 0, 2, 0, 0]).unwrap();
        std::fs::write(dir.path().join("2.tlog"), [0; 9]).unwrap();
        std::fs::write(dir.path().join("0.tmp"), [7; 9]).unwrap();
        assert_eq!(written(dir.path()).unwrap(), 3);
    }
}
