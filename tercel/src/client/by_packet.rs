//! Calls over datagrams, at their caller: for the thread that has the baton.
//!
//! The connection of TCP has the session, and stays the way of everything else. A call whose answer does not
//! come is sent there under its own name, so that the server's table of calls decides whether it runs; and
//! after silence no call goes by datagrams for a while.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;
use tercel_datagram::{Caller, News, Packets};
use tercel_engine::time::Now;
use tercel_events::DatagramSocket;

use crate::datagrams::{self, DATAGRAM_BYTES};

/// A connection of datagrams, beside one of TCP.
pub(super) struct ByPacket {
    caller: Caller,
    begun: Instant,
    out: Packets<()>,
    news: Vec<News>,
    buffer: Box<[u8]>,
    is_open: bool,
    is_lost: bool,
}

impl ByPacket {
    /// Begins one, whose name is drawn from a random seed.
    pub(super) fn new(socket: &DatagramSocket, seed: u64) -> ByPacket {
        let mut out = Packets::default();
        let caller = Caller::new(Now(0), seed, &mut out);
        let (begun, buffer) = (Instant::now(), vec![0; DATAGRAM_BYTES].into());
        let mut new =
            ByPacket { caller, begun, out, news: Vec::new(), buffer, is_open: false, is_lost: false };
        new.flush(socket);
        new
    }

    /// The name of the connection.
    pub(super) fn connection(&self) -> u64 {
        self.caller.incarnation()
    }

    /// Says whether the server keeps nothing of it, or nothing comes from there.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Says whether the server has answered the opening. It does not wait for that.
    pub(super) fn is_open(&mut self, socket: &DatagramSocket) -> bool {
        while !self.is_open && !self.is_lost {
            match self.take(socket, RecvFlags::DONTWAIT) {
                Ok(true) => {}
                Ok(false) => {
                    self.time(socket);
                    break;
                }
                Err(_) => self.is_lost = true,
            }
        }
        self.is_open && !self.is_lost
    }

    /// Sends a request. Gives the number of its exchange; none if the request cannot go.
    pub(super) fn call(&mut self, socket: &DatagramSocket, request: Vec<u8>) -> Option<u64> {
        self.news.clear();
        let number = self.caller.call(self.now(), Arc::new(request), &mut self.out);
        self.flush(socket);
        number
    }

    /// Waits for a packet, for a moment unless one looks for longer. Says whether one has come.
    ///
    /// # Errors
    /// The server's socket is gone.
    pub(super) fn wait(&mut self, socket: &DatagramSocket, spin: Duration) -> io::Result<bool> {
        let begun = Instant::now();
        while !spin.is_zero() {
            if self.take(socket, RecvFlags::DONTWAIT)? {
                return Ok(true);
            }
            self.time(socket);
            if begun.elapsed() >= spin {
                break;
            }
        }
        let came = self.take(socket, RecvFlags::empty())?;
        self.time(socket);
        Ok(came)
    }

    /// The answer to a request, once it has come.
    pub(super) fn answer(&mut self, number: u64) -> Option<Vec<u8>> {
        self.news.drain(..).find_map(|news| match news {
            News::Answered(of, answer) if of == number => Some(answer),
            _ => None,
        })
    }

    /// Nobody waits for an answer any more.
    pub(super) fn give_up(&mut self, number: u64) {
        self.caller.give_up(number);
    }

    fn now(&self) -> Now {
        Now(self.begun.elapsed().as_micros() as u64)
    }

    fn take(&mut self, socket: &DatagramSocket, flags: RecvFlags) -> io::Result<bool> {
        let Some(came) = datagrams::receive(socket, flags, &mut self.buffer)? else {
            return Ok(false);
        };
        let now = Now(self.begun.elapsed().as_micros() as u64);
        let before = self.news.len();
        came.packets().for_each(|packet| self.caller.packet(now, packet, &mut self.out, &mut self.news));
        self.look(before);
        self.flush(socket);
        Ok(true)
    }

    /// Asks again where that is due.
    fn time(&mut self, socket: &DatagramSocket) {
        let now = self.now();
        if self.caller.deadline().is_some_and(|due| due <= now) {
            let before = self.news.len();
            self.caller.time(now, &mut self.out, &mut self.news);
            self.look(before);
            self.flush(socket);
        }
    }

    /// Notes how the connection is.
    fn look(&mut self, before: usize) {
        for news in &self.news[before..] {
            self.is_open |= *news == News::Opened;
            self.is_lost |= *news == News::Lost;
        }
    }

    fn flush(&mut self, socket: &DatagramSocket) {
        datagrams::send(socket, &mut self.out, |()| None);
    }
}
