//! Calls over datagrams, at their caller: for the thread that has the baton.
//!
//! The connection of TCP has the session, and stays the way of everything else. A call whose answer does not
//! come is sent there under its own name, so that the server's table of calls decides whether it runs; and
//! after silence no call goes by datagrams for a while.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;
use tercel_datagram::seal::{CALL_SEAL_BYTES, Seal};
use tercel_datagram::{Caller, News, Packets};
use tercel_engine::time::Now;
use tercel_events::DatagramSocket;

use crate::datagrams::{self, DATAGRAM_BYTES};

/// A connection of datagrams, beside one of TCP.
pub(super) struct ByPacket {
    caller: Caller,
    /// The seal of its packets, and room for what is opened.
    seal: Option<(Box<Seal>, Vec<u8>)>,
    begun: Instant,
    out: Packets<()>,
    /// Packets as they are sent, where those are sealed.
    sealed: Packets<()>,
    news: Vec<News>,
    buffer: Box<[u8]>,
    is_open: bool,
    is_lost: bool,
}

impl ByPacket {
    /// Begins one, whose name is drawn from a random seed. A function gives the seal by that name.
    ///
    /// # Errors
    /// If the function gives one.
    pub(super) fn new(
        socket: &DatagramSocket,
        seed: u64,
        seal: impl FnOnce(u64) -> io::Result<Option<Seal>>,
    ) -> io::Result<ByPacket> {
        let name = Caller::name(seed);
        let seal = seal(name)?.map(|seal| (Box::new(seal), Vec::new()));
        let seal_bytes = if seal.is_some() { CALL_SEAL_BYTES as u16 } else { 0 };
        let (mut out, sealed) = (Packets::default(), Packets::default());
        let caller = Caller::new(Now(0), seed, seal_bytes, &mut out);
        let (begun, buffer, news) = (Instant::now(), vec![0; DATAGRAM_BYTES].into(), Vec::new());
        let (is_open, is_lost) = (false, false);
        let mut new = ByPacket { caller, seal, begun, out, sealed, news, buffer, is_open, is_lost };
        new.flush(socket);
        Ok(new)
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
        for packet in came.packets() {
            let packet = match &mut self.seal {
                None => Some(packet),
                Some((seal, room)) => seal.open(packet, room),
            };
            packet.iter().for_each(|it| self.caller.packet(now, it, &mut self.out, &mut self.news));
        }
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
        let Some((seal, _)) = &mut self.seal else {
            return datagrams::send(socket, &mut self.out, |()| None);
        };
        for (_, packet) in self.out.iter() {
            self.sealed.packet((), |bytes| seal.seal(packet, bytes));
        }
        self.out.clear();
        datagrams::send(socket, &mut self.sealed, |()| None);
    }
}
