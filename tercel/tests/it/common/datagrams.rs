//! A relay of TCP and of datagrams at the same port, which drops, copies and delays datagrams by a seed.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tercel::{Address, Server};
use tercel_machine::random::Random;

/// Faults of datagrams, in thousandths, each way.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    pub lost: u64,
    pub doubled: u64,
    /// These come after the next one.
    pub late: u64,
}

/// The relay. Its threads end with the process.
pub struct LossyRelay {
    /// Where clients find it.
    pub address: Address,
    faults: Arc<Mutex<Faults>>,
    /// Datagrams of clients, the latest last.
    pub seen: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Datagrams that the server has sent.
    pub answers: Arc<AtomicU64>,
    to_server: UdpSocket,
}

/// Datagrams of clients that are remembered.
const SEEN_MAX: usize = 10_000;

impl LossyRelay {
    /// One before a server that listens at an address of UDP.
    pub fn new(server: &Server, seed: u64) -> LossyRelay {
        let target = server_at(server);
        let (listener, here) = loop {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            if let Ok(here) = UdpSocket::bind(listener.local_addr().unwrap()) {
                break (listener, here);
            }
        };
        let address = Address::Udp(here.local_addr().unwrap().to_string());
        thread::spawn(move || {
            for here in listener.incoming() {
                // A server that is gone ends the connection.
                let (here, Ok(there)) = (here.unwrap(), TcpStream::connect(target)) else { continue };
                for (mut from, mut to) in [
                    (here.try_clone().unwrap(), there.try_clone().unwrap()),
                    (there.try_clone().unwrap(), here.try_clone().unwrap()),
                ] {
                    thread::spawn(move || {
                        _ = std::io::copy(&mut from, &mut to);
                        _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        let to_server = UdpSocket::bind("127.0.0.1:0").unwrap();
        to_server.connect(target).unwrap();
        let (faults, client) = (Arc::<Mutex<Faults>>::default(), Arc::<Mutex<Option<SocketAddr>>>::default());
        let (seen, answers) = (Arc::<Mutex<Vec<Vec<u8>>>>::default(), Arc::<AtomicU64>::default());
        let (a, b, noted) = (here.try_clone().unwrap(), to_server.try_clone().unwrap(), client.clone());
        let note = seen.clone();
        forward(a, faults.clone(), seed, move |from, bytes| {
            *noted.lock().unwrap() = Some(from);
            let mut seen = note.lock().unwrap();
            if seen.len() < SEEN_MAX {
                seen.push(bytes.to_vec());
            }
            drop(seen);
            _ = b.send(bytes);
        });
        let (a, count) = (to_server.try_clone().unwrap(), answers.clone());
        forward(a, faults.clone(), !seed, move |_, bytes| {
            count.fetch_add(1, Ordering::Relaxed);
            let client = *client.lock().unwrap();
            client.into_iter().for_each(|client| _ = here.send_to(bytes, client));
        });
        LossyRelay { address, faults, seen, answers, to_server }
    }

    /// Has datagrams fail from now on.
    pub fn fail(&self, faults: Faults) {
        *self.faults.lock().unwrap() = faults;
    }

    /// Sends a datagram from where a client's come from.
    pub fn forge(&self, bytes: &[u8]) {
        _ = self.to_server.send(bytes);
    }
}

/// Where a server takes datagrams.
pub fn server_at(server: &Server) -> SocketAddr {
    let Address::Udp(target) = &server.addresses()[0] else { panic!("the server has no datagrams") };
    target.parse().unwrap()
}

/// Takes datagrams, and gives them on with faults.
fn forward(
    socket: UdpSocket,
    faults: Arc<Mutex<Faults>>,
    seed: u64,
    give: impl Fn(SocketAddr, &[u8]) + Send + 'static,
) {
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    thread::spawn(move || {
        let (mut random, mut bytes, mut late) = (Random::new(seed), vec![0; 1 << 16], None);
        loop {
            let taken = socket.recv_from(&mut bytes).ok();
            let Some((n, from)) = taken else {
                // Nothing came behind it.
                late.take().into_iter().for_each(|(from, bytes): (SocketAddr, Vec<u8>)| give(from, &bytes));
                continue;
            };
            let Faults { lost, doubled, late: of_late } = *faults.lock().unwrap();
            if random.below(1_000) < lost {
                continue;
            }
            if random.below(1_000) < of_late && late.is_none() {
                late = Some((from, bytes[..n].to_vec()));
                continue;
            }
            give(from, &bytes[..n]);
            if random.below(1_000) < doubled {
                give(from, &bytes[..n]);
            }
            late.take().into_iter().for_each(|(from, bytes)| give(from, &bytes));
        }
    });
}
