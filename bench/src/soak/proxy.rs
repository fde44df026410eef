//! A proxy on a loopback port: a link to the server whose connections are dropped at random.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tercel::Address;
use tercel_lock::unpoison;
use tercel_machine::random::Random;
use tercel_term::fail::Failure;

/// Forwards connections to the server, and cuts them at random times.
pub struct Proxy {
    address: Address,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Dropped to stop the thread that cuts connections.
    end: mpsc::Sender<()>,
}

struct Shared {
    server: Address,
    stop: AtomicBool,
    cuts: AtomicU64,
    /// Both ends of every connection that is forwarded.
    links: Mutex<Vec<(TcpStream, TcpStream)>>,
}

impl Proxy {
    /// Begins to listen.
    pub fn start(server: &Address, seed: u64) -> Result<Proxy, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = Address::from(listener.local_addr()?);
        let shared = Arc::new(Shared {
            server: server.clone(),
            stop: AtomicBool::new(false),
            cuts: AtomicU64::new(0),
            links: Mutex::default(),
        });
        let (end, ended) = mpsc::channel();
        let threads = vec![
            thread::spawn({
                let shared = shared.clone();
                move || shared.accept(&listener)
            }),
            thread::spawn({
                let shared = shared.clone();
                move || shared.cut(&ended, Random::new(seed))
            }),
        ];
        Ok(Proxy { address, shared, threads, end })
    }

    pub fn address(&self) -> Address {
        self.address.clone()
    }

    /// Ends every connection. Returns how many were cut before.
    pub fn stop(self) -> u64 {
        let cuts = self.shared.cuts.load(Ordering::Relaxed);
        self.shared.stop.store(true, Ordering::Release);
        drop(self.end);
        // A last connection wakes the thread that accepts.
        drop(TcpStream::connect(self.address.to_string()));
        self.threads.into_iter().for_each(|t| drop(t.join()));
        self.shared.links().drain(..).for_each(|(a, b)| close(&a, &b));
        cuts
    }
}

impl Shared {
    fn links(&self) -> MutexGuard<'_, Vec<(TcpStream, TcpStream)>> {
        unpoison(self.links.lock())
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            // Without a server the client's connection ends at once, as it would without a proxy.
            let Ok(client) = client else { continue };
            let Ok(server) = TcpStream::connect(self.server.to_string()) else { continue };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let ends = || io::Result::Ok((client.try_clone()?, server.try_clone()?));
            let (Ok(there), Ok(back), Ok(link)) = (ends(), ends(), ends()) else { continue };
            self.links().push(link);
            thread::spawn(move || carry(there.0, there.1));
            thread::spawn(move || carry(back.1, back.0));
        }
    }

    /// Cuts one connection after the other, at random times.
    fn cut(&self, ended: &mpsc::Receiver<()>, mut random: Random) {
        loop {
            let pause = Duration::from_millis(100 + random.below(CUT_EVERY_MS * 2));
            if ended.recv_timeout(pause) != Err(mpsc::RecvTimeoutError::Timeout) {
                return;
            }
            let mut links = self.links();
            // A connection that has already ended is forgotten, and not counted as cut.
            links.retain(|(a, _)| a.peer_addr().is_ok());
            if links.is_empty() {
                continue;
            }
            let i = random.below(links.len() as u64) as usize;
            let (a, b) = links.swap_remove(i);
            close(&a, &b);
            self.cuts.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn close(a: &TcpStream, b: &TcpStream) {
    let _ = a.shutdown(Shutdown::Both);
    let _ = b.shutdown(Shutdown::Both);
}

/// Copies bytes one way until one end has gone, then closes both ends.
fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    close(&from, &to);
}

/// Between two cuts, on average.
const CUT_EVERY_MS: u64 = 400;
