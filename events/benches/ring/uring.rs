//! The servers over a ring: polls or multishot receives, sends by calls or through the ring.
//!
//! The kernel reads the memory of a send until it has completed. So a connection has two buffers for replies: one that
//! grows, and one that is lent to the kernel and not touched meanwhile. All sends are made with `MSG_DONTWAIT`: they are
//! completed, wholly or in part, within the enter that takes them, and a full socket is waited for by a poll.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{CompletionQueue, IoUring, SubmissionQueue, Submitter, cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::buffers::{GROUP, Provided};
use crate::message::Counts;
use crate::plain::{Conn, ROOM, WAIT_S};

/// How a server hears of bytes and gets them.
#[derive(Clone, Copy, PartialEq)]
pub enum Receiving {
    /// A multishot poll a connection, and receive calls.
    Polls,
    /// A multishot receive a connection.
    Receives,
    /// A multishot receive for connections that received something of late, a poll for the others.
    Hybrid {
        /// After so long a connection without bytes is cold.
        idle: Duration,
    },
}

/// How a server's replies leave.
#[derive(Clone, Copy, PartialEq)]
pub enum Sending {
    /// By a call each.
    Calls,
    /// Queued in a turn, submitted by the enter that waits, each answered by a completion.
    Answered,
    /// The same, but only a send that fails or is short is answered.
    Quiet,
}

#[derive(Clone, Copy, PartialEq)]
pub struct How {
    pub receiving: Receiving,
    pub sending: Sending,
    /// Sockets are registered with the ring, which then need not be looked up for each receive and send.
    pub registered: bool,
    /// The ring is entered again until it has no more to say: an enter carries out some twenty pieces of deferred work, or
    /// one if it has slept.
    pub thorough: bool,
    pub buffers: u16,
}

/// What the kernel does for a connection's incoming bytes.
#[derive(Clone, Copy, PartialEq)]
enum Watch {
    Nothing,
    Poll,
    Receive,
    /// The receive is cancelled, and its last completion has not come.
    Cooling,
}

struct Peer {
    conn: Conn,
    watch: Watch,
    /// Something came since the last look for cold connections.
    warm: bool,
    ended: bool,
    /// Replies that are lent to the kernel.
    lent: Vec<u8>,
    /// The kernel has answered the send of what is lent, with so many bytes.
    answer: Option<usize>,
}

struct Server<'r> {
    submitter: Submitter<'r>,
    submission: SubmissionQueue<'r>,
    completion: CompletionQueue<'r>,
    how: How,
    peers: Vec<Peer>,
    provided: Option<Provided>,
    /// Those with replies.
    dirty: Vec<usize>,
    /// Those with a send in the submission queue or in the kernel.
    lenders: Vec<usize>,
    /// Those whose receive ended for want of a buffer.
    starved: Vec<usize>,
    /// Requests of which the kernel has not said the last word, sends apart.
    in_flight: usize,
    open: usize,
    room: Vec<u8>,
    counts: Counts,
    looked: Instant,
}

/// Serves until every peer has ended.
pub fn serve(streams: Vec<OwnedFd>, how: How, work: Duration) {
    let mut ring = open_ring();
    let (mut submitter, submission, completion) = ring.split();
    submitter.register_ring_fd().unwrap();
    let provided = (how.receiving != Receiving::Polls).then(|| Provided::register(&submitter, how.buffers));
    let peers: Vec<Peer> = streams
        .into_iter()
        .map(|fd| Peer {
            conn: Conn::new(fd, work),
            watch: Watch::Nothing,
            warm: false,
            ended: false,
            lent: Vec::new(),
            answer: None,
        })
        .collect();
    let mut server = Server {
        submitter,
        submission,
        completion,
        how,
        open: peers.len(),
        peers,
        provided,
        dirty: Vec::new(),
        lenders: Vec::new(),
        starved: Vec::new(),
        in_flight: 0,
        room: vec![0; ROOM],
        counts: Counts::default(),
        looked: Instant::now(),
    };
    // Behind the server, so before it on the way of a panic: the kernel may hold requests that name its memory.
    let _guard = AbortOnPanic;
    if how.registered {
        let sockets: Vec<i32> = server.peers.iter().map(|peer| peer.conn.fd.as_raw_fd()).collect();
        server.submitter.register_files(&sockets).unwrap();
    }
    for number in 0..server.peers.len() {
        match how.receiving {
            Receiving::Polls | Receiving::Hybrid { .. } => server.poll(number),
            Receiving::Receives => server.receive(number),
        }
    }
    while server.open > 0 {
        server.turn();
    }
    server.end();
}

/// The ring that every contender has.
pub fn open_ring() -> IoUring {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_no_sqarray()
        .setup_cqsize(4_096)
        .dontfork()
        .build(1_024)
        .unwrap()
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Server<'_> {
    /// One round: what waits is sent, then the kernel is asked, then its answers are worked off.
    fn turn(&mut self) {
        self.counts.turns += 1;
        self.flush();
        // Not for one completion more than there are answered sends, although those are complete when the wait begins: of
        // a send that was short one must hear at once.
        self.enter(1);
        self.settle_and_work();
        for number in std::mem::take(&mut self.starved) {
            // Every buffer has been given back by now.
            self.receive(number);
        }
        if let Receiving::Hybrid { idle } = self.how.receiving
            && self.looked.elapsed() >= idle
        {
            self.cool();
        }
    }

    /// Sends, or queues the sends.
    fn flush(&mut self) {
        for number in std::mem::take(&mut self.dirty) {
            let peer = &mut self.peers[number];
            peer.conn.dirty = false;
            if self.how.sending == Sending::Calls {
                if peer.conn.send(&mut self.counts) {
                    self.poll_writable(number);
                }
                continue;
            }
            if peer.conn.blocked || peer.conn.dialogue.out.is_empty() {
                continue;
            }
            assert!(peer.lent.is_empty());
            std::mem::swap(&mut peer.lent, &mut peer.conn.dialogue.out);
            let flags = (SendFlags::DONTWAIT | SendFlags::NOSIGNAL).bits() as i32;
            let quiet = self.how.sending == Sending::Quiet;
            // A quiet send that is short counts as failed, and is answered, only if all of it was asked for.
            let flags = if quiet { flags | MSG_WAITALL } else { flags };
            let (begin, bytes) = (peer.lent.as_ptr(), peer.lent.len() as u32);
            let send = if self.how.registered {
                opcode::Send::new(Fixed(number as u32), begin, bytes)
            } else {
                opcode::Send::new(Fd(peer.conn.fd.as_raw_fd()), begin, bytes)
            };
            let send = send.flags(flags).build().user_data(data(Asked::Send, number));
            let send = if quiet { send.flags(squeue::Flags::SKIP_SUCCESS) } else { send };
            self.lenders.push(number);
            self.push(&send);
        }
    }

    /// Submits all and waits for completions, or for the limit.
    fn enter(&mut self, wanted: usize) {
        let limit = Timespec::new().sec(WAIT_S as u64);
        let args = SubmitArgs::new().timespec(&limit);
        let (mut wanted, mut known) = (wanted, self.completion.len());
        loop {
            self.submission.sync();
            self.counts.calls += 1;
            match self.submitter.submit_with_args(wanted, &args) {
                Ok(_) => {}
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                    _ => panic!("enter: {error}"),
                },
            }
            self.submission.sync();
            assert!(!self.submission.cq_overflow(), "more completions than the ring has room for");
            self.completion.sync();
            let more = self.completion.len() > known;
            known = self.completion.len();
            // The flag alone would not do: it may be set behind work that is done already, and stays until there is other
            // work.
            let pending = self.how.thorough && more && self.submission.taskrun();
            // If the submissions are not taken the kernel was short of something, and what is lent must be taken.
            if self.submission.is_empty() && !pending {
                return;
            }
            wanted = 0;
        }
    }

    /// Works off the completions. What was lent for sends comes back: their completions stand before everything that
    /// came later, and a quiet one that has no completion has succeeded.
    fn settle_and_work(&mut self) {
        let mut given = false;
        self.completion.sync();
        // What comes while these are worked off waits for the next turn.
        for _ in 0..self.completion.len() {
            let Some(entry) = self.completion.next() else {
                break;
            };
            let (asked, number) = asked_of(entry.user_data());
            let (result, flags) = (entry.result(), entry.flags());
            match asked {
                Asked::Send => {
                    let peer = &mut self.peers[number];
                    peer.answer = Some(match failure(result) {
                        None => result as usize,
                        Some(Errno::AGAIN | Errno::INTR) => 0,
                        Some(error) => panic!("send: {error}"),
                    });
                }
                Asked::Room => {
                    self.in_flight -= 1;
                    if failure(result) != Some(Errno::CANCELED) {
                        self.peers[number].conn.blocked = false;
                        self.make_dirty(number);
                    }
                }
                Asked::Poll => self.polled(number, result, flags),
                Asked::Receive => given |= self.received(number, result, flags),
                Asked::Cancel => {}
            }
        }
        // The kernel counts what is waited for from here.
        self.completion.sync();
        if given && let Some(provided) = &mut self.provided {
            provided.publish();
        }
        for number in std::mem::take(&mut self.lenders) {
            let peer = &mut self.peers[number];
            let sent = match (self.how.sending, peer.answer.take()) {
                (_, Some(sent)) => sent,
                (Sending::Quiet, None) => peer.lent.len(),
                _ => panic!("a send with MSG_DONTWAIT was not answered at once"),
            };
            if sent < peer.lent.len() {
                self.counts.sends_short += 1;
                peer.lent.drain(..sent);
                peer.lent.append(&mut peer.conn.dialogue.out);
                std::mem::swap(&mut peer.lent, &mut peer.conn.dialogue.out);
                peer.conn.blocked = true;
                self.poll_writable(number);
            } else {
                peer.lent.clear();
            }
        }
    }

    fn polled(&mut self, number: usize, result: i32, flags: u32) {
        let last = !cqueue::more(flags);
        self.in_flight -= usize::from(last);
        let peer = &mut self.peers[number];
        match failure(result) {
            None => {}
            Some(Errno::CANCELED) => {
                peer.watch = Watch::Nothing;
                return;
            }
            Some(error) => panic!("poll: {error}"),
        }
        if peer.ended {
            return;
        }
        if peer.conn.receive(&mut self.room, &mut self.counts) {
            peer.ended = true;
            self.open -= 1;
            return;
        }
        if !peer.conn.dialogue.out.is_empty() {
            self.make_dirty(number);
        }
        if last {
            match self.how.receiving {
                Receiving::Hybrid { .. } => {
                    // Bytes have come: from now on it is received from.
                    self.peers[number].warm = true;
                    self.receive(number);
                }
                _ => self.poll(number),
            }
        }
    }

    /// Says whether a buffer was given back.
    fn received(&mut self, number: usize, result: i32, flags: u32) -> bool {
        let last = !cqueue::more(flags);
        self.in_flight -= usize::from(last);
        let peer = &mut self.peers[number];
        let mut given = false;
        if let Some(id) = cqueue::buffer_select(flags) {
            let provided = self.provided.as_mut().unwrap();
            // SAFETY: the completion names the buffer and the count, and the buffer is given again only below.
            let bytes = unsafe { provided.bytes(id, result.max(0) as usize) };
            peer.conn.dialogue.take(bytes, &mut self.counts);
            provided.give(id);
            given = true;
        }
        match failure(result) {
            None if result == 0 => {
                assert!(peer.conn.dialogue.is_complete(), "a connection ended within a request");
                assert!(last, "an end is the last completion");
                peer.ended = true;
                peer.watch = Watch::Nothing;
                self.open -= 1;
                return given;
            }
            None => {
                peer.warm = true;
                if !peer.conn.dialogue.out.is_empty() {
                    self.make_dirty(number);
                }
            }
            Some(Errno::NOBUFS) => self.counts.buffers_out += 1,
            Some(Errno::CANCELED) => {}
            Some(error) => panic!("receive: {error}"),
        }
        if last {
            match (self.peers[number].watch, failure(result)) {
                (Watch::Cooling, _) => self.poll(number),
                (_, Some(Errno::NOBUFS)) => self.starved.push(number),
                (_, Some(Errno::CANCELED)) => self.peers[number].watch = Watch::Nothing,
                // The kernel may end a receive at any time; then it is asked for again.
                _ => self.receive(number),
            }
        }
        given
    }

    /// Has the kernel poll the connections again that received nothing since the last look.
    fn cool(&mut self) {
        self.looked = Instant::now();
        for number in 0..self.peers.len() {
            let peer = &mut self.peers[number];
            let warm = std::mem::take(&mut peer.warm);
            if peer.watch == Watch::Receive && !warm {
                peer.watch = Watch::Cooling;
                self.counts.cooled += 1;
                let receive = CancelBuilder::user_data(data(Asked::Receive, number));
                self.cancel(receive);
            }
        }
    }

    fn make_dirty(&mut self, number: usize) {
        let conn = &mut self.peers[number].conn;
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(number);
        }
    }

    fn poll(&mut self, number: usize) {
        let peer = &mut self.peers[number];
        peer.watch = Watch::Poll;
        let flags = PollFlags::IN | PollFlags::RDHUP;
        // The poll of a cold connection ends with its first bytes.
        let multishot = self.how.receiving == Receiving::Polls;
        let poll = opcode::PollAdd::new(Fd(peer.conn.fd.as_raw_fd()), u32::from(flags.bits()))
            .multi(multishot)
            .build()
            .user_data(data(Asked::Poll, number));
        self.in_flight += 1;
        self.push(&poll);
    }

    fn poll_writable(&mut self, number: usize) {
        let fd = Fd(self.peers[number].conn.fd.as_raw_fd());
        let poll = opcode::PollAdd::new(fd, u32::from(PollFlags::OUT.bits()))
            .build()
            .user_data(data(Asked::Room, number));
        self.in_flight += 1;
        self.push(&poll);
    }

    fn receive(&mut self, number: usize) {
        let peer = &mut self.peers[number];
        peer.watch = Watch::Receive;
        let receive = if self.how.registered {
            opcode::RecvMulti::new(Fixed(number as u32), GROUP)
        } else {
            opcode::RecvMulti::new(Fd(peer.conn.fd.as_raw_fd()), GROUP)
        };
        let receive = receive.build().user_data(data(Asked::Receive, number));
        self.in_flight += 1;
        self.push(&receive);
    }

    fn cancel(&mut self, what: CancelBuilder) {
        let cancel = opcode::AsyncCancel2::new(what)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(data(Asked::Cancel, 0));
        self.push(&cancel);
    }

    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: polls and cancels name no memory. A receive names the group of buffers, which is registered until
            // `end` has heard the last of every receive. A send names the bytes in `lent`, which `settle_and_work` alone
            // touches, after an enter that took the whole submission queue and with it completed the send.
            if unsafe { self.submission.push(entry) }.is_ok() {
                return;
            }
            // Not more than a turn's sends and watches, so seldom.
            self.enter(0);
        }
    }

    /// Ends every request, then gives the memory back.
    fn end(mut self) {
        self.cancel(CancelBuilder::any());
        let begin = Instant::now();
        while self.in_flight > 0 {
            assert!(begin.elapsed() < Duration::from_secs(10), "{} requests do not end", self.in_flight);
            self.enter(1);
            self.completion.sync();
            for entry in &mut self.completion {
                let (asked, _) = asked_of(entry.user_data());
                let last = !cqueue::more(entry.flags());
                self.in_flight -= usize::from(last && !matches!(asked, Asked::Send | Asked::Cancel));
            }
        }
        if let Some(provided) = self.provided.take() {
            // SAFETY: every receive has had its last completion.
            unsafe { provided.release(&self.submitter) };
        }
    }
}

/// What a completion answers.
#[derive(Clone, Copy)]
enum Asked {
    Poll,
    Room,
    Receive,
    Send,
    Cancel,
}

fn data(asked: Asked, number: usize) -> u64 {
    (asked as u64) << 32 | number as u64
}

fn asked_of(data: u64) -> (Asked, usize) {
    let asked = [Asked::Poll, Asked::Room, Asked::Receive, Asked::Send, Asked::Cancel];
    (asked[(data >> 32) as usize], data as u32 as usize)
}

fn failure(result: i32) -> Option<Errno> {
    (result < 0).then(|| Errno::from_raw_os_error(-result))
}

/// By Linux's number; rustix has it for receives alone.
const MSG_WAITALL: i32 = 0x100;
