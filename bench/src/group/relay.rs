//! A link between members, through this process, that tells when the process at its sending end has ended.
//!
//! A member sends over connections that it made, so the end of one of those is what its peer sees. An end
//! that this process made itself, because the receiver has gone, is not told.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Instant;

use tercel::Address;
use tercel_term::fail::Failure;

/// Passes on to a listener, from the same address at another port, as long as this process runs.
pub fn start(to: &Address, ended: &Sender<Instant>) -> Result<Address, Failure> {
    let to = to.to_string();
    let at = to.replace(":7117", ":7118");
    let listener = TcpListener::bind(&at)?;
    let ended = ended.clone();
    thread::spawn(move || {
        for dialed in listener.incoming().flatten() {
            let Ok(peer) = TcpStream::connect(&to) else { continue };
            let _ = (dialed.set_nodelay(true), peer.set_nodelay(true));
            let (Ok(back), Ok(answers)) = (dialed.try_clone(), peer.try_clone()) else { continue };
            let is_over = Arc::new(AtomicBool::new(false));
            let (over, tell) = (is_over.clone(), ended.clone());
            thread::spawn(move || {
                carry(dialed, peer, &over, || _ = tell.send(Instant::now()));
            });
            thread::spawn(move || carry(answers, back, &is_over, || ()));
        }
    });
    at.parse().map_err(|e: tercel::AddressError| Failure::new(e.to_string()))
}

/// Copies bytes one way until one end has gone, then closes both ends.
fn carry(mut from: TcpStream, mut to: TcpStream, is_over: &AtomicBool, ended: impl Fn()) {
    let mut buffer = [0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(n @ 1..) if to.write_all(&buffer[..n]).is_ok() => {}
            Ok(1..) => break,
            Ok(0) | Err(_) => {
                if !is_over.swap(true, Ordering::AcqRel) {
                    ended();
                }
                break;
            }
        }
    }
    is_over.store(true, Ordering::Release);
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
