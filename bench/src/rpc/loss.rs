//! Large calls over datagrams through a relay that loses some of them, by the same without losses.
//!
//! The relay drops by a seed, each way. It takes nothing above the size of a packet of an Ethernet, so a call
//! of a mebibyte is some 740 datagrams there. Each call gives the number of calls that were executed before
//! it: the next call's is greater by one, or a call was executed twice or not at all.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use tercel::{Address, Client, ClientConfig, Transport};
use tercel_machine::random::Random;

use super::{Ends, LARGE, Procedures, ProceduresCalls, failed, rounds};
use crate::Options;
use crate::blocks::alternate;
use crate::report::Row;
use crate::scratch::Scratch;

/// The name of these rows in `--only`.
pub const LOSS: &str = "loss";

/// Measures the rate of large calls at each share of losses.
///
/// # Errors
/// A sentence: what failed.
pub fn rows(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    let ends = Ends::begin(&scratch.join(LOSS), "block")?;
    let Address::Udp(server) = ends.server.address()? else {
        return Err("the server has no datagrams".into());
    };
    let relay = Relay::new(server.parse().map_err(failed)?).map_err(failed)?;
    let client = Client::connect_with(&relay.address, ClientConfig::default()).map_err(failed)?;
    if client.transport() != Some(Transport::Udp) {
        return Err("the client does not call over datagrams".into());
    }
    let mut executed = None;
    SHARES.iter().map(|share| row(options, &client, &relay, *share, &mut executed)).collect()
}

fn row(
    options: &Options,
    client: &Client,
    relay: &Relay,
    (name, of_100_000): (&str, u64),
    executed: &mut Option<u64>,
) -> Result<Row, String> {
    options.say(&format!("large calls, {name} lost"));
    let service = client.service::<dyn Procedures>();
    let large = vec![7; LARGE];
    let bytes = relay.bytes.load(Ordering::Relaxed);
    let mut block = |lost: u64| {
        relay.lost.store(lost, Ordering::Relaxed);
        let begun = Instant::now();
        for _ in 0..CALLS {
            let now = service.count(&large).map_err(failed)?;
            if executed.is_some_and(|before| now != before + 1) {
                return Err(format!("{now} calls were executed, after {executed:?}: not each once"));
            }
            *executed = Some(now);
        }
        Ok((CALLS * LARGE) as f64 / (1 << 20) as f64 / begun.elapsed().as_secs_f64())
    };
    let block = std::cell::RefCell::new(&mut block);
    (block.borrow_mut())(0)?;
    let rounds = rounds(options) / 2;
    let pairs = alternate(rounds, || (block.borrow_mut())(0), || (block.borrow_mut())(of_100_000))?;
    let calls = (2 * rounds + 1) * CALLS;
    // The share that the relay has passed on: the rest went by TCP.
    let share = (relay.bytes.load(Ordering::Relaxed) - bytes) as f64 / (calls * LARGE) as f64;
    let note = format!(
        "nearly a mebibyte a call, through a relay that takes packets up to 1,472 bytes; {calls} calls, each executed once; \
         {:.0} % of their bytes were sent in datagrams",
        100.0 * share
    );
    let row = Row::compared(format!("rpc.loss.{name}"), "MiB/s", &pairs, "none lost", calls as u64);
    Ok(row.note(note))
}

/// A relay of TCP, and of datagrams at the same port. Its threads end with the process.
struct Relay {
    address: Address,
    /// Losses among 100,000 datagrams.
    lost: Arc<AtomicU64>,
    /// The bytes of clients' datagrams that were taken.
    bytes: Arc<AtomicU64>,
}

impl Relay {
    fn new(server: SocketAddr) -> io::Result<Relay> {
        let (listener, here) = (0..PORTS_TRIED)
            .find_map(|_| {
                let listener = TcpListener::bind("127.0.0.1:0").ok()?;
                let here = UdpSocket::bind(listener.local_addr().ok()?).ok()?;
                Some((listener, here))
            })
            .ok_or(io::ErrorKind::AddrInUse)?;
        thread::spawn(move || {
            for from in listener.incoming().flatten() {
                let Ok(to) = TcpStream::connect(server) else { continue };
                let _ = (from.set_nodelay(true), to.set_nodelay(true));
                if let (Ok(back), Ok(answers)) = (from.try_clone(), to.try_clone()) {
                    thread::spawn(move || carry(from, to));
                    thread::spawn(move || carry(answers, back));
                }
            }
        });
        let there = UdpSocket::bind("127.0.0.1:0")?;
        there.connect(server)?;
        for socket in [&here, &there] {
            set_socket_recv_buffer_size(socket, BUFFER_BYTES)?;
            set_socket_send_buffer_size(socket, BUFFER_BYTES)?;
        }
        let address = Address::Udp(here.local_addr()?.to_string());
        let relay = Relay { address, lost: Arc::default(), bytes: Arc::default() };
        let client = Arc::new(OnceLock::new());
        let (to_server, from_client, of_client) = (there.try_clone()?, here.try_clone()?, client.clone());
        let bytes = relay.bytes.clone();
        pass(from_client, relay.lost.clone(), SEED, move |from, packet| {
            of_client.get_or_init(|| from);
            bytes.fetch_add(packet.len() as u64, Ordering::Relaxed);
            _ = to_server.send(packet);
        });
        pass(there, relay.lost.clone(), !SEED, move |_, packet| {
            client.get().into_iter().for_each(|client| _ = here.send_to(packet, client));
        });
        Ok(relay)
    }
}

/// Takes datagrams, and gives on those that are not lost, nor too large.
fn pass(
    socket: UdpSocket,
    lost: Arc<AtomicU64>,
    seed: u64,
    give: impl Fn(SocketAddr, &[u8]) + Send + 'static,
) {
    thread::spawn(move || {
        let (mut random, mut packet) = (Random::new(seed), vec![0; 64 << 10]);
        loop {
            // An error reports a datagram before, which its receiver did not take.
            let Ok((n, from)) = socket.recv_from(&mut packet) else { continue };
            if n <= PACKET_BYTES && random.below(100_000) >= lost.load(Ordering::Relaxed) {
                give(from, &packet[..n]);
            }
        }
    });
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// The shares of datagrams that are lost: their names, and the number of 100,000.
const SHARES: [(&str, u64); 3] = [("0.1pct", 100), ("1pct", 1_000), ("5pct", 5_000)];
/// Bytes of a datagram that an Ethernet takes.
const PACKET_BYTES: usize = 1_472;
/// Room in a socket of the relay for what two ends may have under way.
const BUFFER_BYTES: usize = 4 << 20;
const PORTS_TRIED: usize = 100;
const SEED: u64 = 7;
/// Calls of a block.
const CALLS: usize = 10;
