//! The epoll backend: edge-triggered, one descriptor of its own.
//!
//! Removal is immediate, so a slot is free as soon as it is removed. What it cannot do is batch its changes:
//! each is a system call.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{HINTS_MAX, Hint, Interest};
use crate::token::Token;

pub(crate) struct Epoll {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Epoll {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Epoll { epoll: epoll::create(CreateFlags::CLOEXEC)?, events: Vec::with_capacity(HINTS_MAX) })
    }

    pub(crate) fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token.bits()), flags(interest))?)
    }

    /// The kernel looks anew at a descriptor whose interest changes, so readiness that was there before is
    /// hinted.
    pub(crate) fn change(&mut self, fd: BorrowedFd<'_>, token: Token, to: Interest) -> io::Result<Interest> {
        epoll::modify(&self.epoll, fd, EventData::new_u64(token.bits()), flags(to))?;
        Ok(to)
    }

    pub(crate) fn remove(&mut self, fd: BorrowedFd<'_>) -> bool {
        // Closing alone would not do: the caller may hold a duplicate. If the call fails, the kernel did not
        // know the descriptor, and that is what we want.
        let _ = epoll::delete(&self.epoll, fd);
        true
    }

    pub(crate) fn wait(&mut self, timeout: Option<Duration>, hints: &mut Vec<Hint>) -> io::Result<()> {
        self.events.clear();
        match timeout.filter(|timeout| timeout.subsec_nanos() % MS_NS != 0) {
            None => self.ask(timeout)?,
            Some(timeout) => self.ask_exactly(timeout)?,
        }
        for event in &self.events {
            // The structure is packed: copy the fields out before looking at them.
            let (flags, data) = (event.flags, event.data);
            let Some(token) = Token::from_bits(data.u64()) else {
                continue;
            };
            hints.push(Hint {
                token,
                readable: flags.intersects(EventFlags::IN),
                writable: flags.intersects(EventFlags::OUT),
                hung_up: flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR),
                error: None,
                ended: Interest::NONE,
                lapsed: false,
                last: false,
            });
        }
        Ok(())
    }
}

impl Epoll {
    /// Waits until the timeout, which the kernel rounds up to milliseconds.
    fn ask(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        // A timeout too long for the kernel's type is no timeout.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits whole milliseconds here and what is left of them in a poll, which is exact to the nanosecond on
    /// every kernel. It costs a system call more, and only if nothing happened.
    fn ask_exactly(&mut self, timeout: Duration) -> io::Result<()> {
        let begin = Instant::now();
        let whole = Duration::from_millis(timeout.as_millis() as u64);
        if !whole.is_zero() {
            self.ask(Some(whole))?;
        }
        let is_over = !self.events.is_empty();
        let rest = if is_over { Duration::ZERO } else { timeout.saturating_sub(begin.elapsed()) };
        if rest.is_zero() {
            return Ok(());
        }
        let rest = Timespec::try_from(rest).ok();
        let mut ready = [PollFd::new(&self.epoll, PollFlags::IN)];
        match poll(&mut ready, rest.as_ref()) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            Ok(_) => self.ask(Some(Duration::ZERO)),
            Err(error) => Err(error.into()),
        }
    }
}

const MS_NS: u32 = 1_000_000;

fn flags(interest: Interest) -> EventFlags {
    let mut flags = EventFlags::ET;
    if interest.has(Interest::READ) {
        flags |= EventFlags::IN | EventFlags::RDHUP;
    }
    if interest.has(Interest::WRITE) || interest.has(Interest::WRITE_ONCE) {
        flags |= EventFlags::OUT;
    }
    flags
}
