//! The servers without a ring of their own: edge-triggered epoll by hand, and the event queue over either backend.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tercel_events::{Backend, Config, EventQueue, Kind};

use crate::message::{Counts, Dialogue};

/// Bytes asked for by one receive, as the event queue has it.
pub const ROOM: usize = 65_536;
/// A wait without an event ends after this, and the loop goes on.
pub const WAIT_S: i64 = 1;

/// One connection of a server that sends by calls.
pub struct Conn {
    pub fd: OwnedFd,
    pub dialogue: Dialogue,
    /// Stands in the list of those with something to send.
    pub dirty: bool,
    /// The last send met a full socket.
    pub blocked: bool,
}

impl Conn {
    pub fn new(fd: OwnedFd, work: Duration) -> Self {
        rustix::io::ioctl_fionbio(&fd, true).unwrap();
        Conn { fd, dialogue: Dialogue::new(work), dirty: false, blocked: false }
    }

    /// Receives until the socket is empty, and says whether the peer's end was met.
    pub fn receive(&mut self, room: &mut [u8], counts: &mut Counts) -> bool {
        loop {
            counts.calls += 1;
            match rustix::net::recv(&self.fd, &mut *room, RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    assert!(self.dialogue.is_complete(), "a connection ended within a request");
                    return true;
                }
                Ok((bytes, _)) => {
                    self.dialogue.take(&room[..bytes], counts);
                    // A short receive has emptied the socket, and what comes later is another edge.
                    if bytes < room.len() {
                        return false;
                    }
                }
                Err(Errno::AGAIN) => return false,
                Err(Errno::INTR) => {}
                Err(error) => panic!("receive: {error}"),
            }
        }
    }

    /// Sends what waits, once. Says whether the socket took less, so that its room must be waited for.
    pub fn send(&mut self, counts: &mut Counts) -> bool {
        if self.blocked || self.dialogue.out.is_empty() {
            return false;
        }
        counts.calls += 1;
        let sent = match rustix::net::send(
            &self.fd,
            &self.dialogue.out,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        ) {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => panic!("send: {error}"),
        };
        self.blocked = sent < self.dialogue.out.len();
        if self.blocked {
            counts.sends_short += 1;
            self.dialogue.out.drain(..sent);
        } else {
            self.dialogue.out.clear();
        }
        self.blocked
    }
}

/// Edge-triggered epoll, `recv` and `send`: what the event queue does over epoll, without the queue.
pub fn epoll(streams: Vec<OwnedFd>, work: Duration) {
    let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
    let mut conns: Vec<Conn> = streams.into_iter().map(|fd| Conn::new(fd, work)).collect();
    let reading = EventFlags::ET | EventFlags::IN | EventFlags::RDHUP;
    for (number, conn) in conns.iter().enumerate() {
        epoll::add(&epoll, &conn.fd, EventData::new_u64(number as u64), reading).unwrap();
    }
    let mut events = Vec::with_capacity(512);
    let mut room = vec![0; ROOM];
    let mut dirty: Vec<usize> = Vec::new();
    let mut counts = Counts::default();
    let mut open = conns.len();
    let limit = Timespec { tv_sec: WAIT_S, tv_nsec: 0 };
    while open > 0 {
        for number in dirty.drain(..) {
            let conn = &mut conns[number];
            conn.dirty = false;
            if conn.send(&mut counts) {
                counts.calls += 1;
                let flags = reading | EventFlags::OUT;
                epoll::modify(&epoll, &conn.fd, EventData::new_u64(number as u64), flags).unwrap();
            }
        }
        events.clear();
        counts.calls += 1;
        counts.turns += 1;
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("wait: {error}"),
        }
        for event in &events {
            let (flags, data) = (event.flags, event.data);
            let number = data.u64() as usize;
            let conn = &mut conns[number];
            if flags.contains(EventFlags::OUT) && conn.blocked {
                conn.blocked = false;
                counts.calls += 1;
                epoll::modify(&epoll, &conn.fd, EventData::new_u64(number as u64), reading).unwrap();
            }
            if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP)
                && conn.receive(&mut room, &mut counts)
            {
                counts.calls += 1;
                epoll::delete(&epoll, &conn.fd).unwrap();
                open -= 1;
            }
            if !conn.dialogue.out.is_empty() && !conn.dirty {
                conn.dirty = true;
                dirty.push(number);
            }
        }
    }
}

/// The event queue itself. Its system calls are not counted.
pub fn queue(streams: Vec<OwnedFd>, backend: Backend, work: Duration) {
    let config = Config { backend: Some(backend), ..Config::default() };
    let mut queue = EventQueue::<()>::open(config).unwrap();
    let mut dialogues = Vec::new();
    for stream in streams {
        queue.declare_stream(stream, dialogues.len() as u64).unwrap();
        dialogues.push((Dialogue::new(work), VecDeque::new()));
    }
    let mut open = dialogues.len();
    let mut counts = Counts::default();
    let mut batch = Vec::new();
    while open > 0 {
        // Without a limit: one costs the queue a look at the clock. A client that is not answered ends the process.
        queue.get_next_events(&mut batch, 64, None).unwrap();
        counts.turns += 1;
        for event in batch.drain(..) {
            let (dialogue, refused) = &mut dialogues[event.key as usize];
            match event.kind {
                Kind::Received(bytes) => {
                    dialogue.out = queue.spare_buffer();
                    dialogue.take(&bytes, &mut counts);
                    let replies = std::mem::take(&mut dialogue.out);
                    if !replies.is_empty() {
                        refused.push_back(replies);
                    }
                }
                Kind::EndOfStream => {
                    assert!(dialogue.is_complete(), "a connection ended within a request");
                    queue.finish(event.token);
                    open -= 1;
                    continue;
                }
                Kind::Drained => {}
                other => panic!("{other:?}"),
            }
            while let Some(replies) = refused.pop_front() {
                if let Err(tercel_events::SendError::Full(replies)) = queue.send(event.token, replies) {
                    counts.sends_short += 1;
                    refused.push_front(replies);
                    break;
                }
            }
        }
    }
}
