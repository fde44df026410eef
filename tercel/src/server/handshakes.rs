//! The handshakes of connections that come, on a thread of their own: two signatures take longer than a turn
//! of the loop.
//!
//! At most [`UNDER_WAY_MAX`] are under way, and the others wait for their turn: next is the first from
//! the network that has fewest under way: an IPv4 address, or the 64 bits before a host's own of IPv6.
//! One that has all it needs ends in a millisecond of this thread; one whose other end has not said all
//! that is its turn to say within [`SLOW_MAX`] goes when others wait, and after [`HANDSHAKE_MAX`] in any
//! case. So strangers that say nothing, or a byte at a time, hold up others from their own address for a
//! part of a second for each 64 of them, and nothing else at all.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendFlags, Shutdown, getpeername, recv, send, shutdown};
use tercel_events::{Handle, Token};

use super::Post;
use super::store::post;
use crate::address::network_of;
use crate::panics::caught;
use crate::tls::{Handshake, Sealed, Shown, Step, Tls, Unsealed};

/// Feeds the thread of the handshakes.
pub(super) struct Handshakes {
    begun: Option<Sender<Asked>>,
    /// Wakes the thread: it waits for its connections.
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

/// A request to the thread.
enum Asked {
    Begin(Waiting),
    /// The bundle of authorities has changed: whether the other end of this connection still counts.
    Verify(Token, Shown),
}

/// A connection whose handshake has not begun.
struct Waiting {
    stream: Token,
    socket: OwnedFd,
    /// The address of its other end; none if that has ended.
    from: Option<IpAddr>,
}

impl Handshakes {
    pub(super) fn start(tls: Tls, handle: Handle<Post>) -> std::io::Result<Handshakes> {
        let (begun, asked) = channel();
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let thread = std::thread::Builder::new().name("tercel-tls".into());
        let thread = thread.spawn(move || {
            let end = handle.clone();
            let (waiting, shown, under_way) = (VecDeque::new(), VecDeque::new(), Vec::new());
            let all = All { tls, handle, waiting, shown, under_way };
            if let Err(why) = caught(|| all.run(&asked, &woken)) {
                post(&end, Post::Panicked(why));
            }
        })?;
        Ok(Handshakes { begun: Some(begun), wake, thread: Some(thread) })
    }

    /// Begins the handshake of a connection, of which the thread has a descriptor of its own. Its end is
    /// posted. Says whether there is a thread for it.
    pub(super) fn begin(&self, stream: Token, socket: OwnedFd) -> bool {
        let from = getpeername(&socket).ok().and_then(|at| SocketAddr::try_from(at?).ok());
        let waiting = Waiting { stream, socket, from: from.map(|at| at.ip()) };
        self.ask(Asked::Begin(waiting))
    }

    /// Verifies again what the other end of a connection has shown. If it does not count any more, that is
    /// posted.
    pub(super) fn verify(&self, stream: Token, shown: Shown) {
        self.ask(Asked::Verify(stream, shown));
    }

    fn ask(&self, what: Asked) -> bool {
        let is_asked = self.begun.as_ref().is_some_and(|begun| begun.send(what).is_ok());
        // One that is full has woken it.
        let _ = (&self.wake).write(&[0]);
        is_asked
    }
}

impl Drop for Handshakes {
    fn drop(&mut self) {
        self.begun = None;
        let _ = (&self.wake).write(&[0]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The handshakes of a server.
struct All {
    tls: Tls,
    handle: Handle<Post>,
    waiting: VecDeque<Waiting>,
    /// Those to be verified again.
    shown: VecDeque<(Token, Shown)>,
    under_way: Vec<UnderWay>,
}

/// A handshake that is under way, or one that has failed, whose other end is to read why.
struct UnderWay {
    stream: Token,
    socket: OwnedFd,
    from: Option<IpAddr>,
    handshake: Option<Handshake>,
    begun: Instant,
    /// Since when it is its other end's turn to say something.
    asked: Instant,
}

impl All {
    /// Until nothing more can come.
    fn run(mut self, asked: &Receiver<Asked>, woken: &UnixStream) {
        let mut arrived = vec![0; 16 << 10];
        loop {
            self.wait(woken);
            loop {
                match asked.try_recv() {
                    Ok(Asked::Begin(one)) => self.waiting.push_back(one),
                    Ok(Asked::Verify(stream, shown)) => self.shown.push_back((stream, shown)),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            let mut under_way = std::mem::take(&mut self.under_way);
            under_way.retain_mut(|one| self.goes_on(one, &mut arrived));
            self.under_way = under_way;
            self.end_late();
            self.begin();
            self.verify();
            // Without connections too, so that an operator is told in time.
            self.tls.status();
        }
    }

    /// Waits until a connection has said something, one more is there, or a time is over.
    fn wait(&self, woken: &UnixStream) {
        let mut fds = vec![PollFd::new(woken, PollFlags::IN)];
        fds.extend(self.under_way.iter().map(|one| PollFd::new(&one.socket, PollFlags::IN)));
        let patience = self.patience();
        let due = self.under_way.iter().map(|one| one.due(patience)).min();
        let left = match due {
            _ if !self.shown.is_empty() => Duration::ZERO,
            Some(due) => due.saturating_duration_since(Instant::now()),
            None => LOOK,
        };
        let left = Timespec::try_from(left).ok();
        // What fails here fails with its connection.
        let _ = poll(&mut fds, left.as_ref());
        let _ = retry_on_intr(|| recv(woken, &mut [0; 256][..], RecvFlags::DONTWAIT));
    }

    /// The time for which a connection keeps its place whose other end has not said all that it is to say.
    fn patience(&self) -> Duration {
        if self.waiting.is_empty() { HANDSHAKE_MAX } else { SLOW_MAX }
    }

    /// Begins as many of those that wait as there is room for.
    fn begin(&mut self) {
        while self.under_way.len() < UNDER_WAY_MAX
            && let Some(Waiting { stream, socket, from }) = self.next()
        {
            let now = Instant::now();
            match Handshake::accept(self.tls.server()) {
                Ok(handshake) => {
                    let handshake = Some(handshake);
                    self.under_way.push(UnderWay { stream, socket, from, handshake, begun: now, asked: now });
                }
                Err(why) => self.failed((stream, from), &why),
            }
        }
    }

    /// Verifies some again, so that handshakes go on between them.
    fn verify(&mut self) {
        let verifier = self.tls.verifier();
        for (stream, shown) in self.shown.drain(..self.shown.len().min(VERIFIED_AT_ONCE)) {
            if let Err(why) = verifier.verify(&shown) {
                post(&self.handle, Post::Distrusted(stream, why.to_string()));
            }
        }
    }

    /// The next one that waits: the first from the network that has fewest under way.
    fn next(&mut self) -> Option<Waiting> {
        let mut under_way = BTreeMap::<_, usize>::new();
        let network = |from: Option<IpAddr>| from.map(network_of);
        self.under_way.iter().for_each(|one| *under_way.entry(network(one.from)).or_default() += 1);
        let number_of = |one: &Waiting| under_way.get(&network(one.from)).copied().unwrap_or_default();
        let (next, _) = self.waiting.iter().enumerate().min_by_key(|(_, one)| number_of(one))?;
        self.waiting.remove(next)
    }

    /// Ends those whose time is over.
    fn end_late(&mut self) {
        let (now, patience) = (Instant::now(), self.patience());
        let late: Vec<UnderWay> = self.under_way.extract_if(.., |one| one.due(patience) <= now).collect();
        for one in late.into_iter().filter(|one| one.handshake.is_some()) {
            self.failed((one.stream, one.from), &Unsealed::Late);
        }
    }

    /// Takes what a connection has said, if it has. Says whether its handshake is still under way.
    fn goes_on(&self, one: &mut UnderWay, arrived: &mut [u8]) -> bool {
        let room = one.handshake.as_ref().map_or(arrived.len(), Handshake::bytes_left).min(arrived.len());
        let came = match retry_on_intr(|| recv(&one.socket, &mut arrived[..room], RecvFlags::DONTWAIT)) {
            Err(rustix::io::Errno::AGAIN) => return true,
            Ok((came @ 1.., _)) => came,
            Ok(_) | Err(_) => {
                if one.handshake.is_some() {
                    self.failed((one.stream, one.from), &Unsealed::Ended);
                }
                return false;
            }
        };
        // What comes behind a failure is read and dropped: a socket that is closed with bytes in it takes
        // back the reason that it has sent.
        let Some(handshake) = one.handshake.take() else { return true };
        let mut out = Vec::new();
        let step = handshake.step(&arrived[..came], &mut out);
        let is_sent = out.is_empty() || say(&one.socket, &out);
        match step {
            Ok(_) if !is_sent => {
                self.failed((one.stream, one.from), &Unsealed::Ended);
                false
            }
            Ok(Step::More(handshake)) => {
                one.handshake = Some(handshake);
                if !out.is_empty() {
                    one.asked = Instant::now();
                }
                true
            }
            Ok(Step::Done(sealed)) => {
                post(&self.handle, Post::Sealed(one.stream, Ok(sealed)));
                false
            }
            Err(why) => {
                self.failed((one.stream, one.from), &why);
                let _ = shutdown(one.socket.as_fd(), Shutdown::Write);
                true
            }
        }
    }

    fn failed(&self, (stream, from): (Token, Option<IpAddr>), why: &Unsealed) {
        let failed = Failed { from, why: why.to_string() };
        post(&self.handle, Post::Sealed(stream, Err(failed)));
    }
}

impl UnderWay {
    /// When it is given up, if its other end may take so long.
    fn due(&self, patience: Duration) -> Instant {
        (self.begun + HANDSHAKE_MAX).min(self.asked + patience)
    }
}

/// Sends a part of a handshake. An empty socket has room for any.
fn say(socket: &OwnedFd, bytes: &[u8]) -> bool {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry_on_intr(|| send(socket, bytes, flags)).is_ok_and(|sent| sent == bytes.len())
}

/// The end of a handshake.
pub(super) type Ended = Result<Box<Sealed>, Failed>;

/// A handshake that has failed.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The address of its other end, which may be gone by now.
    pub from: Option<IpAddr>,
    /// A sentence.
    pub why: String,
}

/// Chains that are verified in one go: a few milliseconds.
const VERIFIED_AT_ONCE: usize = 16;

/// Handshakes under way: each has some 20 KiB.
const UNDER_WAY_MAX: usize = 64;

/// Time for a handshake: some round trips half around the Earth, and some packets that were lost.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);

/// Time between two looks at the files of the certificate.
const LOOK: Duration = Duration::from_secs(10);

/// Time for an answer while others wait: the way to the other side of the Earth and back.
const SLOW_MAX: Duration = Duration::from_millis(250);
