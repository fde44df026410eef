//! Connections to another member, made anew whenever one ends. Names are resolved each time.
//!
//! One carries what is said. The other carries no more than signs of life, while the loop is busy
//! ([`Life`]): it belongs to a thread with a table of files of its
//! own, so that its end tells the member at once that this process has ended. The kernel closes the files
//! that all threads share only when it has taken down the memory of the process, which takes 15 ms for each
//! 256 MiB of small pages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_tcp_user_timeout;
use rustix::pipe::PipeFlags;
use tercel_engine::order::quorum::packet::sign_of_life;
use tercel_engine::server::Conn;
use tercel_events::Handle;
use tercel_wire::frame::{self, Header, Kind};
use tercel_wire::id::{MemberId, ViewId};
use tercel_wire::message::Challenge;

use super::life::{self, Life, Owed};
use crate::address::Address;
use crate::files;
use crate::proving::{Prover, Unopened};
use crate::server::Post;
use crate::server::store::post;
use crate::stream::{Connector, Stream, Whom};

/// Connects to one member, on a thread of its own.
pub(super) struct Dialer {
    again: Option<Sender<()>>,
    /// They end by themselves once nobody waits for them: they may be in a connect for a while.
    _threads: [JoinHandle<()>; 2],
    /// The thread of presence ends with this pipe, and looks at the loop with each byte.
    until: OwnedFd,
}

impl Dialer {
    /// Begins to connect. Each connection on which both ends have proven themselves is posted.
    pub(super) fn start(
        to: MemberId,
        address: Address,
        (prover, connector, life): (Prover, Connector, Arc<Life>),
        handle: Handle<Post>,
    ) -> std::io::Result<Dialer> {
        let other = Other { id: to, address, prover, connector };
        let (again, asked) = channel();
        let (ended, until) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let named = |name: &str| std::thread::Builder::new().name(name.into());
        let (give_back, given_back) = channel();
        let present = named("tercel-present").spawn({
            let other = other.clone();
            move || be_present(&other, &life, ended, &give_back)
        })?;
        // To be closed here; nothing comes if the thread could not have a table of its own, and is over.
        drop(given_back.recv());
        let dial = named("tercel-dial").spawn(move || dial(&other, &asked, &handle))?;
        Ok(Dialer { again: Some(again), _threads: [present, dial], until })
    }

    /// The loop has begun to lead.
    pub(super) fn look(&self) {
        // A pipe that is full has told it.
        let _ = rustix::io::write(&self.until, &[0]);
    }

    /// The connection has ended: makes another.
    pub(super) fn again(&self) {
        if let Some(again) = &self.again {
            let _ = again.send(());
        }
    }
}

/// The other member, and what is proven to it.
#[derive(Clone)]
struct Other {
    id: MemberId,
    address: Address,
    prover: Prover,
    connector: Connector,
}

/// Connects to the leader once, on a thread of its own, proves that a member asks, and posts the connection,
/// or that there is none.
/// `dials` has a clone for each such thread.
///
/// # Errors
/// If there is no thread for it, or [`DIALS_MAX`] are under way: nothing is posted.
pub(super) fn connect_once(
    conn: Conn,
    (leader, prover, connector): (String, Prover, Connector),
    handle: Handle<Post>,
    dials: &Arc<()>,
) -> std::io::Result<()> {
    if Arc::strong_count(dials) > DIALS_MAX {
        return Err(std::io::ErrorKind::WouldBlock.into());
    }
    let under_way = dials.clone();
    let dial = move || {
        let address = leader.parse::<Address>().ok();
        let open = |address: Address| {
            let mut stream = connector.connect(&address, Whom::Member, CONNECT_MAX)?;
            prover.open(&mut stream, None, PROVEN_MAX)?;
            Ok::<_, Unopened>(stream.unblocked()?)
        };
        let stream = address.and_then(|address| open(address).ok());
        post(&handle, Post::Reached(conn, stream));
        drop(under_way);
    };
    std::thread::Builder::new().name("tercel-dial".into()).spawn(dial).map(drop)
}

impl Drop for Dialer {
    fn drop(&mut self) {
        self.again = None;
    }
}

fn dial(other: &Other, asked: &Receiver<()>, handle: &Handle<Post>) {
    let (mut pause, mut patience) = (Pause::default(), Patience::default());
    loop {
        let begun = Instant::now();
        match patience.open(other) {
            Ok((stream, challenge)) => {
                post(handle, Post::Dialed(stream, challenge));
                if asked.recv().is_err() {
                    return;
                }
            }
            Err(Unopened::Refused(why)) => post(handle, Post::RefusedBy(other.id, why)),
            Err(Unopened::Failed(_)) => {}
        }
        if asked.recv_timeout(pause.after(begun)) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

/// Stays connected until the pipe ends, on connections that no other thread has, and says there that the loop
/// is alive while it is busy. Gives back the pipe of the other threads.
fn be_present(other: &Other, life: &Life, until: OwnedFd, give_back: &Sender<OwnedFd>) {
    // Without a table of its own, the connection for what is said tells as much, later.
    let Ok((until, of_others)) = files::of_this_thread(until) else { return };
    let _ = give_back.send(of_others);
    let (mut pause, mut patience) = (Pause::default(), Patience::default());
    loop {
        let begun = Instant::now();
        if let Ok((mut stream, _)) = patience.open(other)
            && speak(life, &until, &mut stream) == Woken::Over
        {
            return;
        }
        if wait(&until, None, Some(pause.after(begun))) == Woken::Over {
            return;
        }
    }
}

/// Says over a connection what the loop owes, until the connection or the pipe ends.
fn speak(life: &Life, until: &OwnedFd, stream: &mut Stream) -> Woken {
    loop {
        let within = match life.owed() {
            Owed::NotLeading => None,
            Owed::Nothing => Some(life::LATE),
            Owed::Sign(view) if sign(stream, view) => Some(life::LATE),
            Owed::Sign(_) => return Woken::Stream,
        };
        match wait(until, Some(stream.as_fd()), within) {
            Woken::Look => {}
            ended => return ended,
        }
    }
}

/// Says that the leader of a view is there. Says whether the connection is of further use.
fn sign(stream: &mut Stream, view: ViewId) -> bool {
    let mut bytes = Vec::new();
    frame::encode(Header::new(Kind::Packet, 0), &sign_of_life(view), &mut bytes);
    // Without room, its process does not read now.
    stream.offer(&bytes).is_ok()
}

/// The reason for which the thread of presence goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    /// The time is over, or the loop has begun to lead.
    Look,
    /// Something came over the connection: nothing is said there but a refusal, behind which it ends.
    Stream,
    /// The pipe has ended.
    Over,
}

fn wait(until: &OwnedFd, stream: Option<BorrowedFd<'_>>, within: Option<Duration>) -> Woken {
    let mut fds = vec![PollFd::new(until, PollFlags::IN)];
    fds.extend(stream.map(|stream| PollFd::from_borrowed_fd(stream, PollFlags::IN)));
    let within = within.and_then(|within| Timespec::try_from(within).ok());
    if rustix::io::retry_on_intr(|| poll(&mut fds, within.as_ref())).is_err() {
        return Woken::Over;
    }
    let [of_pipe, of_stream] = [0, 1].map(|i| fds.get(i).is_some_and(|fd| !fd.revents().is_empty()));
    let is_over = of_pipe && rustix::io::read(until, &mut [0; 64][..]).is_ok_and(|bytes| bytes == 0);
    match (is_over, of_stream) {
        (true, _) => Woken::Over,
        (false, true) => Woken::Stream,
        (false, false) => Woken::Look,
    }
}

/// Has a connection between members end if the other side leaves bytes unanswered for [`UNANSWERED_MAX_MS`].
pub(crate) fn end_if_unanswered(stream: BorrowedFd<'_>) {
    // A socket of a path has no network to wait for, and refuses.
    let _ = set_tcp_user_timeout(stream, UNANSWERED_MAX_MS);
}

/// Threads that connect to the leader at once: one that cannot be reached holds each for [`CONNECT_MAX`].
/// Other clients are tried again at the next heartbeat.
const DIALS_MAX: usize = 64;

/// The wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(1);
const CONNECT_MIN: Duration = Duration::from_millis(40);

/// The wait until a connection is proven: the other member may have to save this one's start, on a disk that
/// takes its time.
const PROVEN_MAX: Duration = Duration::from_secs(1);

/// Time for which the other machine may leave bytes unanswered, or the other process may read none of many,
/// until the connection to a member counts as ended, in milliseconds. After a longer cut, TCP would wait as
/// long again before it sends anew.
const UNANSWERED_MAX_MS: u32 = 400;

/// The wait for the next connection. A network that drops what it is sent is tried anew after a short time,
/// for TCP itself would send its first packet again after a second; now and then there is more time.
struct Patience {
    usual: Duration,
    failed: u32,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { usual: CONNECT_MIN, failed: 0 }
    }
}

impl Patience {
    /// Connects to a member, and proves that each end is who it says.
    fn open(&mut self, other: &Other) -> Result<(Stream, Challenge), Unopened> {
        let begun = Instant::now();
        let is_long = self.failed % LONG_EVERY == LONG_EVERY - 1;
        let wait = if is_long { CONNECT_MAX } else { self.usual };
        let connected = other.connector.connect(&other.address, Whom::Member, wait);
        self.failed = if connected.is_ok() { 0 } else { self.failed.wrapping_add(1) };
        if connected.is_ok() {
            self.usual = (begun.elapsed() * USUAL_TIMES).clamp(CONNECT_MIN, CONNECT_MAX);
        }
        let mut stream = connected?;
        end_if_unanswered(stream.as_fd());
        let challenge = other.prover.open(&mut stream, Some(other.id), PROVEN_MAX)?;
        Ok((stream.unblocked()?, challenge))
    }
}

/// One attempt of so many has the longest time.
const LONG_EVERY: u32 = 16;

/// An attempt has so many times the time that the last connection took.
const USUAL_TIMES: u32 = 8;

/// The pause before the next attempt: a member that is back is found within this time.
#[derive(Default)]
struct Pause(u32);

impl Pause {
    /// The pause after an attempt that began then, which is longer each time that a connection did not last.
    fn after(&mut self, begun: Instant) -> Duration {
        self.0 = if begun.elapsed() > PAUSE_MAX { 0 } else { (self.0 + 1).min(PAUSE_DOUBLINGS) };
        PAUSE_MIN * (1 << self.0)
    }
}

/// The least pause, how often it is doubled, and the most that that makes.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_DOUBLINGS: u32 = 3;
const PAUSE_MAX: Duration = Duration::from_millis(5 << PAUSE_DOUBLINGS);
