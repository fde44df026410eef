//! Loops that programs use today, beside the event queue: `poll(2)`, which is told all sockets at each wait
//! as the paper's `select` was, and mio, on which tokio stands.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};

use mio::unix::SourceFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, recv};

use super::bed::{self, Bed, ByQueue, Loop};
use super::{BATCH, Effort, SOURCES_MAX, failed};
use crate::Options;
use crate::blocks::alternate;
use crate::report::Row;

/// Rows `events.mio.*` and `events.poll.*`.
pub fn rows(options: &Options, effort: Effort, rows: &mut Vec<Row>) -> Result<(), String> {
    let effort = Effort { rounds: effort.rounds.div_ceil(4), ..effort };
    let mut queue = ByQueue::new(None, SOURCES_MAX)?;
    let mut mio = ByMio::new()?;
    for batch in [1, 8, 32] {
        options.say(&format!("delivery by mio, {batch} at once"));
        let bed = RefCell::new(Bed::new(batch)?);
        let pairs = alternate(
            effort.rounds,
            || bed::fresh(&mut mio, &mut bed.borrow_mut(), batch, effort.calls),
            || bed::fresh(&mut queue, &mut bed.borrow_mut(), batch, effort.calls),
        )?;
        let n = (effort.rounds * effort.calls * batch) as u64;
        let row = Row::compared(format!("events.mio.batch{batch}"), "ns", &pairs, "mio", n);
        rows.push(row.note("an event with its 64 bytes received, by mio and recv"));
    }
    for cold in SILENT {
        options.say(&format!("delivery by poll, beside {cold} silent connections"));
        // The queue and poll watch duplicates of the same pairs; only the first ones speak.
        let silent = Bed::new(cold)?;
        let bed = RefCell::new(Bed::new(BATCH)?);
        let (mut by_poll, mut by_queue) = (ByPoll::beside(&silent)?, ByQueue::new(None, SOURCES_MAX)?);
        for far in &silent.far {
            let far = far.try_clone().map_err(failed)?;
            by_queue.queue.declare_stream(far, SILENT_KEY).map_err(failed)?;
        }
        let pairs = alternate(
            effort.rounds,
            || bed::fresh(&mut by_poll, &mut bed.borrow_mut(), BATCH, effort.calls),
            || bed::fresh(&mut by_queue, &mut bed.borrow_mut(), BATCH, effort.calls),
        )?;
        let n = (effort.rounds * effort.calls * BATCH) as u64;
        let row = Row::compared(format!("events.poll.cold{cold}"), "ns", &pairs, "poll(2)", n);
        rows.push(
            row.note(format!("an event of {BATCH} beside {cold} silent connections, by poll and recv")),
        );
    }
    Ok(())
}

/// The loop over `poll(2)`.
struct ByPoll {
    silent: Vec<OwnedFd>,
    sockets: Vec<OwnedFd>,
    room: Vec<u8>,
}

impl ByPoll {
    /// A loop that watches duplicates of all of these too.
    fn beside(silent: &Bed) -> Result<ByPoll, String> {
        let silent = silent.far.iter().map(|far| Ok(far.try_clone().map_err(failed)?.into()));
        Ok(ByPoll {
            silent: silent.collect::<Result<_, String>>()?,
            sockets: Vec::new(),
            room: vec![0; 64 << 10],
        })
    }
}

impl Loop for ByPoll {
    fn declare(&mut self, socket: OwnedFd, _receives: bool) -> Result<(), String> {
        self.sockets.push(socket);
        Ok(())
    }

    fn take(&mut self, array_max: usize, taken: &mut Vec<u64>) -> Result<(), String> {
        taken.clear();
        // The list of a program that keeps it: made once where sockets stay, and here once a wait, of which
        // the kernel's look at each takes most.
        let all = self.sockets.iter().chain(&self.silent);
        let mut watched: Vec<PollFd<'_>> = all.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        poll(&mut watched, None).map_err(failed)?;
        for (number, socket) in self.sockets.iter().enumerate() {
            if taken.len() < array_max && watched[number].revents().contains(PollFlags::IN) {
                recv(socket, &mut self.room[..], RecvFlags::DONTWAIT).map_err(failed)?;
                taken.push(number as u64);
            }
        }
        Ok(())
    }

    fn revoke_all(&mut self) -> Result<(), String> {
        self.sockets.clear();
        Ok(())
    }
}

/// The loop over mio's selector.
struct ByMio {
    poll: mio::Poll,
    events: mio::Events,
    sockets: Vec<OwnedFd>,
    room: Vec<u8>,
}

impl ByMio {
    fn new() -> Result<ByMio, String> {
        let poll = mio::Poll::new().map_err(failed)?;
        Ok(ByMio {
            poll,
            events: mio::Events::with_capacity(1),
            sockets: Vec::new(),
            room: vec![0; 64 << 10],
        })
    }
}

impl Loop for ByMio {
    fn declare(&mut self, socket: OwnedFd, _receives: bool) -> Result<(), String> {
        let token = mio::Token(self.sockets.len());
        let registry = self.poll.registry();
        registry
            .register(&mut SourceFd(&socket.as_raw_fd()), token, mio::Interest::READABLE)
            .map_err(failed)?;
        self.sockets.push(socket);
        Ok(())
    }

    fn take(&mut self, array_max: usize, taken: &mut Vec<u64>) -> Result<(), String> {
        taken.clear();
        if self.events.capacity() != array_max {
            self.events = mio::Events::with_capacity(array_max);
        }
        self.poll.poll(&mut self.events, None).map_err(failed)?;
        for event in &self.events {
            let number = event.token().0;
            recv(&self.sockets[number], &mut self.room[..], RecvFlags::DONTWAIT).map_err(failed)?;
            taken.push(number as u64);
        }
        Ok(())
    }

    fn revoke_all(&mut self) -> Result<(), String> {
        let registry = self.poll.registry();
        self.sockets
            .drain(..)
            .try_for_each(|socket| registry.deregister(&mut SourceFd(&socket.as_raw_fd())).map_err(failed))
    }
}

/// Silent connections beside `poll`. Both their ends are here, and twice the watched one.
const SILENT: [usize; 2] = [750, 2_000];

/// The key of what never says anything.
const SILENT_KEY: u64 = u64::MAX;
