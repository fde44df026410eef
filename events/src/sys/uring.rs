//! The ring backend: one multishot poll for each source, armed in batches by the wait itself.
//!
//! The kernel, with deferred task work, merges the arrivals of a source until the ring is entered. There is
//! thus about one completion for each armed source, however fast its peer is: the bound of the paper, kept by
//! the kernel. Only polls and cancels are submitted. They name no memory of this process, so the unsafe
//! blocks of this file are easy to justify.
//!
//! A poll lives until its final completion. `in_flight` counts, for each slot, the polls whose final
//! completion is still to come; the slot is free when it reaches zero.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::{HINTS_MAX, Hint, Interest};
use crate::token::Token;

pub(crate) struct Uring {
    ring: IoUring,
    /// Polls of each slot whose final completion has not come.
    in_flight: Vec<u32>,
    /// Completions that had to be taken to make room for a submission; the next wait gives them out first.
    early: Vec<Hint>,
}

impl Uring {
    /// Opens a ring for this thread, or says why the kernel refuses.
    pub(crate) fn open(slots_max: usize) -> io::Result<Self> {
        let completions = slots_max.next_power_of_two().clamp(COMPLETIONS_MIN, COMPLETIONS_MAX);
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(completions as u32)
            .dontfork()
            .build(SUBMISSIONS)?;
        let params = ring.params();
        if !(params.is_feature_ext_arg()
            && params.is_feature_nodrop()
            && params.is_feature_skip_cqe_on_success())
        {
            return Err(Errno::NOSYS.into());
        }
        Ok(Uring { ring, in_flight: vec![0; slots_max], early: Vec::new() })
    }

    pub(crate) fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        self.poll(fd, token, token.bits(), flags(interest), true)?;
        if interest.has(Interest::WRITE_ONCE) {
            self.poll_writable_once(fd, token)?;
        }
        Ok(())
    }

    pub(crate) fn change(
        &mut self,
        fd: BorrowedFd<'_>,
        token: Token,
        from: Interest,
        to: Interest,
    ) -> io::Result<Interest> {
        let mut armed = from;
        if flags(from) != flags(to) {
            // Cancelled and armed anew rather than updated: an update is refused while the poll is being
            // completed.
            self.cancel(token.bits())?;
            self.poll(fd, token, token.bits(), flags(to), true)?;
            armed = to.without(Interest::WRITE_ONCE).with(if from.has(Interest::WRITE_ONCE) {
                Interest::WRITE_ONCE
            } else {
                Interest::NONE
            });
        }
        if to.has(Interest::WRITE_ONCE) && !armed.has(Interest::WRITE_ONCE) {
            self.poll_writable_once(fd, token)?;
            armed = armed.with(Interest::WRITE_ONCE);
        }
        // A writable poll that is no longer wanted is left to fire: it ends by itself and costs less than a
        // cancel.
        Ok(armed)
    }

    pub(crate) fn remove(&mut self, token: Token, armed: Interest) -> bool {
        let slot = token.slot() as usize;
        if self.in_flight[slot] == 0 {
            return true;
        }
        // If the kernel takes no cancel now, the slot stays out of use until the poll ends of itself: a slot
        // is lost, no promise is. A descriptor closed and reused before its poll was submitted is no danger
        // either. The kernel takes submissions in order, so the cancel follows the poll, and an answer of the
        // poll meanwhile carries a token that no source has.
        let _ = self.cancel(token.bits());
        if armed.has(Interest::WRITE_ONCE) {
            let _ = self.cancel(token.bits() | WRITE_ONCE_MARK);
        }
        false
    }

    pub(crate) fn wait(&mut self, timeout: Option<Duration>, hints: &mut Vec<Hint>) -> io::Result<()> {
        hints.append(&mut self.early);
        let may_block =
            hints.is_empty() && timeout != Some(Duration::ZERO) && self.ring.completion().is_empty();
        let entered = if may_block {
            match timeout {
                None => self.ring.submit_and_wait(1),
                Some(timeout) => {
                    let timeout = Timespec::from(timeout);
                    let args = SubmitArgs::new().timespec(&timeout);
                    self.ring.submitter().submit_with_args(1, &args)
                }
            }
        } else if self.has_work() {
            self.ring.submit()
        } else {
            Ok(0)
        };
        match entered {
            Ok(_) => {}
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
        self.reap(hints);
        Ok(())
    }

    /// Says whether an enter would do anything: submissions wait, or the kernel has flagged completions that
    /// it still holds.
    fn has_work(&mut self) -> bool {
        let submission = self.ring.submission();
        !submission.is_empty() || submission.taskrun() || submission.cq_overflow()
    }

    /// Moves completions into hints, up to the bound; the rest stays in the ring.
    fn reap(&mut self, hints: &mut Vec<Hint>) {
        let room = HINTS_MAX.saturating_sub(hints.len());
        for completion in self.ring.completion().take(room) {
            hints.extend(read(&completion, &mut self.in_flight));
        }
    }

    fn poll_writable_once(&mut self, fd: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        self.poll(fd, token, token.bits() | WRITE_ONCE_MARK, PollFlags::OUT, false)
    }

    fn poll(
        &mut self,
        fd: BorrowedFd<'_>,
        token: Token,
        user_data: u64,
        flags: PollFlags,
        multishot: bool,
    ) -> io::Result<()> {
        let poll = opcode::PollAdd::new(Fd(fd.as_raw_fd()), u32::from(flags.bits()))
            .multi(multishot)
            .build()
            .user_data(user_data);
        self.push(&poll)?;
        self.in_flight[token.slot() as usize] += 1;
        Ok(())
    }

    /// Cancels every poll with this user data; each answers with its own final completion. The cancel itself
    /// is answered only when it finds nothing, and that answer is for no source.
    fn cancel(&mut self, user_data: u64) -> io::Result<()> {
        let cancel = opcode::AsyncCancel2::new(CancelBuilder::user_data(user_data).all())
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(0);
        self.push(&cancel)
    }

    /// Queues a submission; when the queue is full, hands it to the kernel first.
    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        for _ in 0..PUSHES_MAX {
            let mut submission = self.ring.submission();
            // SAFETY: the entry is a poll or a cancel. Neither refers to memory of this process: a poll holds
            // a descriptor number, a cancel holds user data. A descriptor number that is stale when the
            // kernel reads it gives an error completion or a poll that the cancel behind it ends; it gives no
            // access to memory.
            let pushed = unsafe { submission.push(entry) };
            drop(submission);
            if pushed.is_ok() {
                return Ok(());
            }
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) if is_passing(&error) => {
                    // The completion queue may be what is full: take what is there.
                    let in_flight = &mut self.in_flight;
                    self.early
                        .extend(self.ring.completion().filter_map(|completion| read(&completion, in_flight)));
                }
                Err(error) => return Err(error),
            }
        }
        Err(Errno::BUSY.into())
    }
}

/// One completion as a hint, with its slot's account kept.
fn read(completion: &cqueue::Entry, in_flight: &mut [u32]) -> Option<Hint> {
    let user_data = completion.user_data();
    let token = Token::from_bits(user_data & !WRITE_ONCE_MARK)?;
    let write_once = user_data & WRITE_ONCE_MARK != 0;
    let is_final = !cqueue::more(completion.flags());
    let polls = &mut in_flight[token.slot() as usize];
    if is_final {
        *polls -= 1;
    }
    let (flags, error) = match completion.result() {
        ready @ 0.. => (PollFlags::from_bits_retain(ready as u16), None),
        code => (PollFlags::empty(), Some(Errno::from_raw_os_error(-code))),
    };
    let cancelled = error == Some(Errno::CANCELED);
    Some(Hint {
        token,
        readable: flags.intersects(PollFlags::IN),
        writable: flags.intersects(PollFlags::OUT),
        hung_up: flags.intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR),
        error: error.filter(|_| !cancelled),
        ended: if write_once && is_final { Interest::WRITE_ONCE } else { Interest::NONE },
        lapsed: is_final && !write_once && !cancelled,
        last: *polls == 0,
    })
}

/// The conditions of the multishot poll for an interest. The kernel reports errors and hang-ups in any case.
fn flags(interest: Interest) -> PollFlags {
    let mut flags = PollFlags::empty();
    if interest.has(Interest::READ) {
        flags |= PollFlags::IN | PollFlags::RDHUP;
    }
    if interest.has(Interest::WRITE) {
        flags |= PollFlags::OUT;
    }
    flags
}

/// Failures of an enter after which one simply looks again: time is up, a signal came, the kernel is short of
/// something for a moment or wants its completions taken first.
fn is_passing(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY))
}

/// In the user data of a one-shot writable poll, in a bit that no slot number reaches.
const WRITE_ONCE_MARK: u64 = 1 << 31;

/// Submissions between two enters; arming more hands them over early. 256 entries are 16 KiB of ring.
const SUBMISSIONS: u32 = 256;

/// Room for one completion of each source, within what the kernel allows; beyond it the kernel keeps a list.
const COMPLETIONS_MIN: usize = 512;
const COMPLETIONS_MAX: usize = 65_536;

/// Tries to push before a caller is told that the kernel is busy: the first fails when the queue is full, the
/// second when the completions had to be taken first.
const PUSHES_MAX: usize = 4;
