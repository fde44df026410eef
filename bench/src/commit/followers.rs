//! The followers of a bare leader: they write and sync the bytes that it sends, and say how many records they
//! have. The leader goes on once one of them has all.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use rustix::event::{PollFd, PollFlags, poll};

/// The leader's side.
pub struct Followers {
    /// Each with the bytes of its answers so far.
    all: Vec<(TcpStream, usize)>,
    /// Bytes of answers that are due: one a batch.
    due: usize,
}

impl Followers {
    pub fn connect(addresses: &[String]) -> io::Result<Followers> {
        let connect = |address: &String| {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Ok((stream, 0))
        };
        Ok(Followers { all: addresses.iter().map(connect).collect::<io::Result<_>>()?, due: 0 })
    }

    /// Sends a batch to all of them.
    pub fn send(&mut self, batch: &[u8]) -> io::Result<()> {
        self.due += 1;
        self.all.iter_mut().try_for_each(|(stream, _)| {
            stream.write_all(&(batch.len() as u32).to_le_bytes())?;
            stream.write_all(batch)
        })
    }

    /// Waits until one of them has all that was sent; at once if there is none.
    pub fn wait_for_one(&mut self) -> io::Result<()> {
        while !self.all.is_empty() && self.all.iter().all(|(_, answered)| *answered < self.due) {
            let mut ready: Vec<_> =
                self.all.iter().map(|(stream, _)| PollFd::new(stream, PollFlags::IN)).collect();
            poll(&mut ready, None)?;
            let ready: Vec<bool> = ready.iter().map(|fd| !fd.revents().is_empty()).collect();
            for ((stream, answered), _) in self.all.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
                match stream.read(&mut [0; 64])? {
                    0 => return Err(ErrorKind::UnexpectedEof.into()),
                    n => *answered += n,
                }
            }
        }
        Ok(())
    }
}

/// Follows one leader: makes each batch durable, and answers it with a byte, as long as there is a leader.
pub fn follow(
    listener: &TcpListener,
    durable: &mut dyn FnMut(usize) -> io::Result<()>,
    record_bytes: usize,
) -> io::Result<()> {
    let (mut leader, _) = listener.accept()?;
    leader.set_nodelay(true)?;
    let mut batch = Vec::new();
    let mut head = [0; 4];
    while leader.read_exact(&mut head).is_ok() {
        batch.resize(u32::from_le_bytes(head) as usize, 0);
        leader.read_exact(&mut batch)?;
        durable(batch.len() / record_bytes)?;
        leader.write_all(&[1])?;
    }
    Ok(())
}
