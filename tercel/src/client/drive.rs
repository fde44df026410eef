//! Driving the machine: which thread reads the connection, which threads sleep, which thread reconnects.
//!
//! Locks, in the order in which they may be taken: the baton (the right to read), then the machine with its
//! connection. Output of the machine is sent on the connection that the machine speaks of. Bytes that arrive
//! are believed only if they came on that connection.
//!
//! No thread waits for the sender (the right to write). A thread that finds it taken leaves its bytes to the
//! thread that has it. That thread looks once more, under the machine's lock, before it lets go. So a thread
//! that reads never waits for a thread that sends. A thread whose bytes are not taken reads meanwhile, if it
//! has the baton or no other thread has: a server may want to be read first. A call in a line does without
//! the sender: it goes between two whole messages. It does not go at all while a thread sends, since that
//! thread may have earlier messages to send.
//!
//! Only a thread with the baton judges silence, just after it has found the connection empty. Without that
//! look, nothing may have been received because no thread read.
//!
//! No thread sleeps on old news: events that may end a wait are counted under the machine's lock. A thread
//! that is about to sleep looks whether the count is still the count at which it found the wait necessary.

use std::any::Any;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tercel_engine::Error;
use tercel_engine::client::{Client as Machine, Input, PAUSES_US, Pauses};
use tercel_engine::limits::UNSENT_BYTES_MAX;
use tercel_engine::time::Now;
use tercel_engine::txn::{ExpressAsked, ExpressCall, Expressed, Home, Port, Step};
use tercel_lock::unpoison;
use tercel_wire::id::ViewId;
use tercel_wire::spare::Spare;

use super::connection::{
    CONNECT_TIMEOUT, CONNECTING, CONNECTING_TO_ONE, READ_MAX, Remote, SLEEP_MAX, ServerConnection, Transport,
};
use super::express::{ByLine, micros};
use crate::memory::Birthmark;
use crate::pipe::Waited;
use crate::serving::{self, Waits};

/// The machine, and the connection that it speaks of: they change together.
pub(super) struct Linked {
    machine: Machine,
    conn: Option<Arc<ServerConnection>>,
}

impl Linked {
    /// The connection of now.
    pub(super) fn connection(&self) -> Option<Arc<ServerConnection>> {
        self.conn.clone()
    }

    pub(super) fn is_current(&self, conn: &Arc<ServerConnection>) -> bool {
        self.conn.as_ref().is_some_and(|c| Arc::ptr_eq(c, conn))
    }
}

impl Deref for Linked {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl DerefMut for Linked {
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }
}

/// The state that the threads of a client share.
pub(super) struct Shared {
    machine: Mutex<Linked>,
    /// Waited on by threads that do not hold the baton; paired with the machine.
    changed: Condvar,
    /// Counts what may end a wait; changed under the machine's lock.
    happened: AtomicU64,
    /// Threads asleep on `changed`; changed under the machine's lock. Most often there are none, and a
    /// wake-up would be a needless system call for each reply.
    asleep: AtomicUsize,
    /// Held by the one thread that reads the connection.
    pub(super) baton: Mutex<Baton>,
    /// Held while bytes are being sent, so that they leave in order; keeps the buffer that they were in.
    pub(super) sender: Mutex<(Vec<u8>, Spare)>,
    remote: Remote,
    how: How,
    /// The mark of the process that made this client. A child has copies of all fields as they were at the
    /// fork, locks that a thread held among them, and the parent's connection. It touches none of them.
    birthmark: Birthmark,
    /// The beginning of the machine's time, and the same moment for threads that wait.
    begun: Duration,
    outage: Mutex<Outage>,
    /// When the connection was read last, by [`Shared::now`].
    looked: AtomicU64,
    usage: Usage,
    /// Changes when a connection is made and when one is lost.
    pub(super) generation: AtomicU64,
    /// Set while the driver holds the baton and sleeps on the connection.
    driver_sleeps: AtomicBool,
    stopping: AtomicBool,
    /// The resident thread, once it runs.
    driver: OnceLock<Thread>,
}

/// The parameters of calls.
pub(super) struct How {
    /// Time for which a call waits for the server.
    timeout: Duration,
    /// The same in microseconds.
    pub(super) timeout_us: u32,
}

/// The use of the connection by callers. While they use it, the driver leaves it to them.
#[derive(Default)]
struct Usage {
    /// Threads inside [`Shared::drive_machine`] that wait.
    waiting: AtomicUsize,
    /// Counts waits, so that the driver knows whether there were any lately.
    waits: AtomicU64,
    /// Calls by the shorter way; written by the thread with the baton alone.
    expressed: AtomicU64,
    /// A thread sends, or there is something to be sent by the one that does; changed under the machine's
    /// lock.
    sending: AtomicBool,
}

impl Usage {
    fn count(&self) -> u64 {
        self.waits.load(Ordering::SeqCst) + self.expressed.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
pub(super) struct Baton {
    pub(super) reader: Reader,
    pub(super) express: Option<Box<ByLine>>,
    /// The last call of an object by the shorter way: no other one has its number, whatever becomes of the
    /// rest.
    pub(super) of_object: u64,
}

/// The buffers with which the thread that holds the baton reads the connection.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) buffer: Vec<u8>,
    /// The machine has a message in part: what arrives next is the rest of it.
    pub(super) is_amid: bool,
    /// The machine was given bytes, since the thread that has the baton last cleared this.
    pub(super) has_read: bool,
    /// The moment since which that thread has been at something that takes long, for callers that do not read
    /// the clock otherwise. Cleared in the same way.
    pub(super) slow_since: Option<Instant>,
}

impl Reader {
    /// Returns the time for which the thread has been at something that takes long.
    pub(super) fn slowly(&self) -> Duration {
        self.slow_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Time for which the driver at first leaves the connection to the threads that use it. It thus does not
/// disturb a lone caller between two calls. Invalidations that arrive while no thread waits are applied at
/// most this late.
const DRIVER_REST_MIN: Duration = Duration::from_millis(2);
/// The longest time for which the driver leaves the connection to threads that use it all the time. Each call
/// takes in earlier arrivals, so little is missed meanwhile. The delay stays below the one that the server's
/// own heartbeat allows a client. A driver that looked more often would cost more than the calls do, in a
/// process with many clients or on a small machine.
const DRIVER_REST_MAX: Duration = Duration::from_millis(32);
/// The interval, in microseconds, at which threads look for news when they begin a transaction or ask the
/// server for something. A look costs half a microsecond, and a new state may be seen so much later.
const LOOK_US: u64 = 200;
/// Time for which a sending thread lets another thread read before it checks that the other thread still
/// reads. Most reads end sooner.
const READER_CHECK: Duration = Duration::from_millis(10);
/// The number of sends that a thread does for others in one go before it leaves the rest to the driver.
const SENDS_MAX: u32 = 16;
/// Bytes of a send buffer that are kept: those of a large transaction's buffer would be kept for nothing.
pub(super) const SENDER_BYTES_MAX: usize = 64 << 10;
/// Requests of pipelined calls that gather before they leave: about those of 128 small calls.
const GATHERED_BYTES: usize = 16 << 10;
/// Durations above this are for ever: the clock has no moment at an arbitrary distance from now.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);
/// The longest time for the first connection, where calls do not wait for less.
const FIRST_CONNECT: Duration = Duration::from_secs(5);

/// The pauses of threads that are about to report that the server is gone.
struct Outage {
    pauses: Pauses,
    last: Option<Instant>,
}

/// When no thread has paused for so long, an outage is another one. Longer than the longest pause.
const OUTAGE_FORGOTTEN: Duration = Duration::from_secs(2);

/// The time since the machine was started, sleep included.
fn boot_time() -> Duration {
    let at = clock_gettime(ClockId::Boottime);
    Duration::new(at.tv_sec as u64, at.tv_nsec as u32)
}

impl Shared {
    pub(super) fn new(mut machine: Machine, remote: Remote, timeout: Duration, seed: u64) -> Shared {
        machine.set_servers(remote.names());
        Shared {
            machine: Mutex::new(Linked { machine, conn: None }),
            changed: Condvar::new(),
            happened: AtomicU64::new(0),
            asleep: AtomicUsize::new(0),
            baton: Mutex::default(),
            sender: Mutex::default(),
            remote,
            how: How { timeout: timeout.min(FOR_EVER), timeout_us: micros(timeout) },
            birthmark: Birthmark::new(),
            begun: boot_time(),
            outage: Mutex::new(Outage { pauses: Pauses::new(seed.rotate_left(32)), last: None }),
            looked: AtomicU64::new(0),
            usage: Usage::default(),
            generation: AtomicU64::new(0),
            driver_sleeps: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            driver: OnceLock::new(),
        }
    }

    /// Says whether this process was forked off the process that made this client.
    pub(super) fn is_forked(&self) -> bool {
        self.birthmark.is_forked()
    }

    /// Returns the time for which a call waits for the server.
    pub(super) fn timeout(&self) -> Duration {
        self.how.timeout
    }

    /// Returns the parameters of calls.
    #[inline]
    pub(super) fn how(&self) -> &How {
        &self.how
    }

    pub(super) fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Returns the medium that carries the messages now; none without a connection.
    pub(super) fn transport(&self) -> Option<Transport> {
        Some(self.machine().conn.as_ref()?.transport())
    }

    pub(super) fn machine(&self) -> MutexGuard<'_, Linked> {
        unpoison(self.machine.lock())
    }

    /// The time by a clock that also runs while the machine sleeps: what was read before is old afterwards.
    pub(super) fn now(&self) -> Now {
        Now(boot_time().saturating_sub(self.begun).as_micros() as u64)
    }

    fn conn(&self) -> Option<Arc<ServerConnection>> {
        self.machine().conn.clone()
    }

    /// Sends what the machine wants sent, or leaves it to the thread that is sending. With the baton, if this
    /// thread has it.
    pub(super) fn flush<'a>(&'a self, mut machine: MutexGuard<'a, Linked>, mut reader: Option<&mut Reader>) {
        if machine.outgoing().is_empty() {
            return;
        }
        let mut sender = match self.sender.try_lock() {
            Ok(sender) => sender,
            Err(TryLockError::Poisoned(p)) => p.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.usage.sending.store(true, Ordering::Relaxed);
        for _ in 0..SENDS_MAX {
            let (bytes, spare) = &mut *sender;
            std::mem::swap(machine.outgoing(), bytes);
            if bytes.len() > UNSENT_BYTES_MAX {
                // A commit may wait for this.
                self.happen(&machine);
            }
            let conn = machine.conn.clone();
            drop(machine);
            let sent = conn.map(|conn| self.send(&conn, bytes, reader.as_deref_mut()).map_err(|e| (conn, e)));
            spare.empty(bytes, SENDER_BYTES_MAX);
            if let Some(Err((conn, e))) = sent {
                self.lose(&conn, e.to_string());
            }
            machine = self.machine();
            if machine.outgoing().is_empty() {
                // Before the machine is let go of: what is to be sent from now on finds the sender free.
                self.usage.sending.store(false, Ordering::Relaxed);
                drop(sender);
                return;
            }
        }
        drop(machine);
        // Others have more to send all the time, and this thread has a call to return from.
        drop(sender);
        self.rouse();
        if let Some(conn) = self.conn() {
            conn.wake();
        }
    }

    /// Says whether a thread sends messages that this thread has left to it, or may have left. A message sent
    /// outside of the queue could then overtake them.
    #[inline]
    pub(super) fn is_sending(&self) -> bool {
        self.usage.sending.load(Ordering::Relaxed)
    }

    /// Leaves what is to be sent to the next thread that sends, and to the driver at the latest.
    fn leave_unsent(&self, mut machine: MutexGuard<'_, Linked>) {
        if machine.outgoing().is_empty() {
            return;
        }
        self.usage.waits.fetch_add(1, Ordering::SeqCst);
        let conn = machine.conn.clone();
        drop(machine);
        if self.driver_sleeps.load(Ordering::SeqCst) {
            conn.iter().for_each(|conn| conn.wake());
        }
    }

    /// Sends all of it. Fails if for some seconds the connection neither takes nor brings anything, or if it
    /// takes nothing for as long as a call may wait.
    pub(super) fn send(
        &self,
        conn: &Arc<ServerConnection>,
        bytes: &[u8],
        reader: Option<&mut Reader>,
    ) -> io::Result<()> {
        let rest = &bytes[conn.offer(bytes)?..];
        if rest.is_empty() {
            return Ok(());
        }
        let mut taken = None;
        let sent = self.send_slowly(conn, rest, reader, &mut taken);
        if taken.take().is_some() && self.waiting() > 0 {
            // A thread that waited for this one to read must read now.
            self.happen(&self.machine());
        }
        sent
    }

    /// The rest of a send, for which there was no room: reads as long as it sends, with the baton that this
    /// thread has, or that it has `taken` because it was free.
    fn send_slowly<'a>(
        &'a self,
        conn: &Arc<ServerConnection>,
        mut bytes: &[u8],
        mut reader: Option<&mut Reader>,
        taken: &mut Option<MutexGuard<'a, Baton>>,
    ) -> io::Result<()> {
        let mut took = Instant::now();
        let mut moved = took;
        if let Some(reader) = reader.as_deref_mut() {
            reader.slow_since.get_or_insert(took);
        }
        while !bytes.is_empty() {
            if reader.is_none() && taken.is_none() {
                *taken = match self.baton.try_lock() {
                    Ok(free) => Some(free),
                    Err(TryLockError::Poisoned(p)) => Some(p.into_inner()),
                    Err(TryLockError::WouldBlock) => None,
                };
            }
            let reader = reader.as_deref_mut().or(taken.as_deref_mut().map(|baton| &mut baton.reader));
            let patience = if reader.is_some() { SLEEP_MAX } else { READER_CHECK };
            let arrived = conn.wait_to_send(patience, reader.is_some())?;
            match reader {
                Some(reader) if arrived => {
                    let received = conn.receive(&mut reader.buffer);
                    moved = if matches!(received, Ok(true)) { Instant::now() } else { moved };
                    self.read(conn, reader, received);
                }
                Some(reader) => self.judge(conn, reader),
                None => {}
            }
            let n = conn.offer(bytes)?;
            bytes = &bytes[n..];
            let now = Instant::now();
            if n > 0 {
                (took, moved) = (now, now);
                self.heard(conn);
            } else if now - moved > CONNECT_TIMEOUT || now - took > self.timeout().max(CONNECT_TIMEOUT) {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the server has stopped taking bytes"));
            }
        }
        Ok(())
    }

    /// Tells the machine that its server lives, which is seen by bytes that the machine is not given.
    pub(super) fn heard(&self, conn: &Arc<ServerConnection>) {
        let mut machine = self.machine();
        if machine.is_current(conn) {
            machine.handle(self.now(), Input::Taken);
        }
    }

    /// Looks for news from a server that seems silent. Without news, it gives the machine the time. The
    /// caller holds the baton.
    fn judge(&self, conn: &Arc<ServerConnection>, reader: &mut Reader) {
        if !self.machine().seems_silent(self.now()) {
            return;
        }
        let received = conn.receive(&mut reader.buffer);
        if !matches!(received, Ok(false)) {
            return self.read(conn, reader, received);
        }
        let why = {
            let mut machine = self.machine();
            if !machine.is_current(conn) {
                return;
            }
            machine.handle(self.now(), Input::Time);
            self.happen(&machine);
            machine.wants_close().then(|| machine.why_unavailable())
        };
        if let Some(why) = why {
            self.lose(conn, why);
        }
    }

    /// The connection is gone, if it is still this one.
    pub(super) fn lose(&self, conn: &Arc<ServerConnection>, why: String) {
        let mut machine = self.machine();
        if !machine.is_current(conn) {
            return;
        }
        machine.conn = None;
        self.generation.fetch_add(1, Ordering::Release);
        machine.handle(self.now(), Input::Disconnected(why));
        self.happen(&machine);
        drop(machine);
        conn.cut();
        self.rouse();
    }

    /// Ends a rest of the driver.
    fn rouse(&self) {
        if let Some(driver) = self.driver.get() {
            driver.unpark();
        }
    }

    /// Calls that were sent in a line.
    pub(super) fn expressed(&self) -> u64 {
        self.usage.expressed.load(Ordering::Relaxed)
    }

    /// A call was sent by the shorter way: the driver leaves the connection to the threads that use it. With
    /// the baton.
    pub(super) fn count_express(&self) {
        let expressed = &self.usage.expressed;
        expressed.store(expressed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Threads that wait.
    /// Says whether the connection was not looked at for a while; then it is by the caller.
    pub(super) fn is_time_to_look(&self) -> bool {
        let now = self.now();
        let is_time = now.0.saturating_sub(self.looked.load(Ordering::Relaxed)) >= LOOK_US;
        if is_time {
            self.looked.store(now.0, Ordering::Relaxed);
        }
        is_time
    }

    pub(super) fn waiting(&self) -> usize {
        self.usage.waiting.load(Ordering::SeqCst)
    }

    /// Something that a thread may wait for has happened.
    pub(super) fn happen(&self, _machine: &MutexGuard<'_, Linked>) {
        self.happened.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// Takes in what has arrived, if no thread has looked for a while and no thread is reading: a thread that
    /// finds all it wants in the cache would otherwise read an old state until the driver wakes up.
    fn look(&self) {
        let now = self.now();
        if now.0.saturating_sub(self.looked.load(Ordering::Relaxed)) < LOOK_US {
            return;
        }
        let Ok(mut baton) = self.baton.try_lock() else { return };
        self.looked.store(now.0, Ordering::Relaxed);
        if let Some(conn) = self.conn() {
            let received = conn.receive(&mut baton.reader.buffer);
            self.read(&conn, &mut baton.reader, received);
        }
    }

    /// Takes in what was received, with the baton held.
    pub(super) fn read(&self, conn: &Arc<ServerConnection>, reader: &mut Reader, received: io::Result<bool>) {
        match received {
            Ok(false) => {}
            Ok(true) => {
                let mut machine = self.machine();
                if !machine.is_current(conn) {
                    return;
                }
                let now = self.now();
                self.looked.store(now.0, Ordering::Relaxed);
                machine.handle(now, Input::Bytes(&reader.buffer));
                (reader.is_amid, reader.has_read) = (machine.is_amid_message(), true);
                self.happen(&machine);
                let close = machine.wants_close().then(|| machine.why_unavailable());
                self.flush(machine, Some(reader));
                if let Some(why) = close {
                    self.lose(conn, why);
                }
            }
            Err(e) => {
                let why = match e.kind() {
                    io::ErrorKind::UnexpectedEof => "the server closed the connection".to_string(),
                    _ => e.to_string(),
                };
                self.lose(conn, why);
            }
        }
    }

    /// Waits for something to happen after the count was `seen`: by reading `conn`, if no other thread does.
    fn wait(&self, conn: Option<&Arc<ServerConnection>>, seen: u64, end: Instant) {
        let left = end.saturating_duration_since(Instant::now()).min(READ_MAX);
        let nothing_happened = || self.happened.load(Ordering::SeqCst) == seen;
        if let Some(conn) = conn {
            match self.baton.try_lock() {
                Ok(mut baton) => {
                    // The previous holder of the baton may have read just what this thread waits for.
                    if nothing_happened() && !self.give_lane_if_needed(&mut baton) {
                        let received = conn.wait_and_receive(left, &mut baton.reader.buffer);
                        match received {
                            Ok(false) => self.judge(conn, &mut baton.reader),
                            received => self.read(conn, &mut baton.reader, received),
                        }
                    }
                    drop(baton);
                    // A thread that waited for this one to read must read now.
                    if self.waiting() > 1 {
                        self.happen(&self.machine());
                    }
                    return;
                }
                Err(TryLockError::Poisoned(_)) => return self.baton.clear_poison(),
                Err(TryLockError::WouldBlock) => {}
            }
            if self.driver_sleeps.load(Ordering::SeqCst) {
                conn.wake();
            }
        }
        let machine = self.machine();
        if nothing_happened() {
            self.asleep.fetch_add(1, Ordering::Relaxed);
            let woken = self.changed.wait_timeout(machine, left);
            self.asleep.fetch_sub(1, Ordering::Relaxed);
            drop(woken);
        }
    }

    /// Waits until the first connection stands.
    pub(super) fn wait_connected(&self) -> Result<(), Error> {
        let end = Instant::now() + FIRST_CONNECT.min(self.timeout());
        loop {
            let (seen, conn) = {
                let machine = self.machine();
                if let Some(result) = machine.availability() {
                    return result;
                }
                // Welcomed, and gone again meanwhile: that is an outage as any other.
                if machine.view() != ViewId::NONE {
                    return Ok(());
                }
                // Nothing listens: trying on would only make the caller wait for the same answer.
                if let Some(why) = machine.unreachable() {
                    return Err(Error::Unavailable(format!(
                        "{} does not answer: {why}; start a server there with `tercel serve`, or name another address",
                        self.remote.describe()
                    )));
                }
                if Instant::now() >= end {
                    return Err(Error::Unavailable(format!(
                        "{}: {}",
                        self.remote.describe(),
                        machine.why_unavailable()
                    )));
                }
                (self.happened.load(Ordering::SeqCst), machine.conn.clone())
            };
            self.wait_counted(conn.as_ref(), seen, end);
        }
    }

    fn wait_counted(&self, conn: Option<&Arc<ServerConnection>>, seen: u64, end: Instant) {
        self.usage.waiting.fetch_add(1, Ordering::SeqCst);
        self.usage.waits.fetch_add(1, Ordering::SeqCst);
        self.wait(conn, seen, end);
        self.usage.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// The resident thread.
    pub(super) fn run_driver(&self) {
        let _ = self.driver.set(std::thread::current());
        let mut rest = DRIVER_REST_MIN;
        while !self.stopping.load(Ordering::SeqCst) {
            if self.conn().is_none() {
                self.reconnect();
                continue;
            }
            // Also while others read: they look at the connection only, and the time passes for it as well.
            self.keep_time();
            let before = self.usage.count();
            std::thread::park_timeout(rest);
            let is_used = self.waiting() > 0 || self.usage.count() != before;
            if is_used {
                rest = (rest * 2).min(DRIVER_REST_MAX);
            } else {
                rest = DRIVER_REST_MIN;
                self.read_idle();
            }
        }
        let mut machine = self.machine();
        machine.bye();
        self.flush(machine, None);
    }

    /// Sleeps on the connection while no other thread wants it.
    fn read_idle(&self) {
        let Some(conn) = self.conn() else { return };
        let mut baton = match self.baton.try_lock() {
            Ok(baton) => baton,
            Err(TryLockError::Poisoned(p)) => p.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.driver_sleeps.store(true, Ordering::SeqCst);
        // Behind the mark: a thread that leaves something unsent from now on sees it.
        if self.waiting() == 0
            && self.machine().outgoing().is_empty()
            && let Ok(Waited::Ready) = conn.wait(SLEEP_MAX, true)
        {
            let received = conn.receive(&mut baton.reader.buffer);
            self.read(&conn, &mut baton.reader, received);
        }
        self.driver_sleeps.store(false, Ordering::SeqCst);
        drop(baton);
        self.happen(&self.machine());
    }

    /// Tells the machine the time if it wants to know.
    fn keep_time(&self) {
        let mut machine = self.machine();
        let now = self.now();
        let is_silent = machine.seems_silent(now);
        if machine.deadline().is_some_and(|d| d <= now) && !is_silent {
            machine.handle(now, Input::Time);
            self.happen(&machine);
        }
        let why = machine.wants_close().then(|| machine.why_unavailable());
        if matches!(machine.availability(), Some(Ok(()))) {
            machine.settled();
            machine.note_others();
        }
        let conn = machine.conn.clone();
        self.flush(machine, None);
        let Some(conn) = conn else { return };
        if let Some(why) = why {
            self.lose(&conn, why);
        } else if is_silent && let Ok(mut baton) = self.baton.try_lock() {
            // A thread that has the baton judges for itself.
            self.judge(&conn, &mut baton.reader);
            drop(baton);
            self.happen(&self.machine());
        }
    }

    fn reconnect(&self) {
        if !self.machine().wants_connection() {
            // Refused for good: there is nothing to drive.
            self.happen(&self.machine());
            return std::thread::park_timeout(SLEEP_MAX);
        }
        // A connection that is made and ended before it is of use counts like one that is not made. Its loss
        // ends a rest, and must not end this pause.
        let (at, pause_us) = self.machine().next_server();
        let due = Instant::now() + Duration::from_micros(pause_us);
        while Instant::now() < due {
            if self.stopping.load(Ordering::SeqCst) {
                return;
            }
            std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
        }
        let patience = if self.machine().knows_several() { CONNECTING_TO_ONE } else { CONNECTING };
        let connected = self.remote.connect(&at, patience);
        let mut machine = self.machine();
        match connected {
            Ok(conn) => {
                machine.set_one_host(conn.is_one_host());
                machine.conn = Some(Arc::new(conn));
                self.generation.fetch_add(1, Ordering::Release);
                machine.handle(self.now(), Input::Connected);
            }
            Err(e) => machine.server_unreachable(e.to_string()),
        }
        self.happen(&machine);
        self.flush(machine, None);
    }

    /// Ends the driver.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        if let Some(conn) = self.conn() {
            conn.wake();
        }
        self.rouse();
        self.happen(&self.machine());
    }
}

impl Shared {
    /// Calls `step` as [`Shared::drive_until`] does, for as long as a call of this client waits.
    pub(super) fn drive_machine(&self, step: &mut dyn FnMut(&mut Machine, Now) -> Step) -> Result<(), Error> {
        self.drive_until(None, step)
    }

    /// Calls `step` as [`Shared::drive_patiently`] does, and sends at once.
    pub(super) fn drive_until(
        &self,
        until: Option<Now>,
        step: &mut dyn FnMut(&mut Machine, Now) -> Step,
    ) -> Result<(), Error> {
        self.drive_until_done(until, 0, step)
    }

    /// Calls `step` with the machine locked, again after everything that happens, until it says
    /// [`Step::Done`]. Then fewer bytes than `gathers` stay for what is sent next, or for the driver.
    ///
    /// # Errors
    /// `Timeout` at `until`, or after the client's timeout if there is none; `Unavailable` if the client is
    /// closed, or not connected by then.
    fn drive_until_done(
        &self,
        until: Option<Now>,
        gathers: usize,
        step: &mut dyn FnMut(&mut Machine, Now) -> Step,
    ) -> Result<(), Error> {
        let mut end = until.map(|until| {
            // Threads wait by a clock that stands still while the machine sleeps.
            Instant::now() + Duration::from_micros(until.since_us(self.now()))
        });
        self.look();
        loop {
            let mut machine = self.machine();
            let (view, said) = (machine.view(), step(&mut machine, self.now()));
            let waits_for =
                (said == Step::Wait).then(|| (self.happened.load(Ordering::SeqCst), machine.conn.clone()));
            if waits_for.is_some() || machine.outgoing().len() >= gathers {
                self.flush(machine, None);
            } else {
                self.leave_unsent(machine);
            }
            let Some((seen, conn)) = waits_for else { return Ok(()) };
            serving::may_wait(view)?;
            let end = *end.get_or_insert_with(|| Instant::now() + self.timeout());
            if self.stopping.load(Ordering::SeqCst) {
                return Err(Error::Unavailable("the client is closed".into()));
            }
            if Instant::now() >= end {
                let machine = self.machine();
                return Err(match machine.availability() {
                    None => Error::Unavailable(format!(
                        "{}: {}",
                        self.remote.describe(),
                        machine.why_unavailable()
                    )),
                    Some(Err(e)) => e,
                    Some(Ok(())) => Error::Timeout(None),
                });
            }
            self.wait_counted(conn.as_ref(), seen, end);
        }
    }
}

impl Shared {
    fn drive_port(
        &self,
        until: Option<Now>,
        gathers: usize,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Unavailable(
                "this transaction was begun before this process was forked, by another client: begin it anew"
                    .into(),
            ));
        }
        self.drive_until_done(until, gathers, &mut |machine, now| step(machine, now))
    }
}

impl Port for Shared {
    fn now(&self) -> Now {
        Shared::now(self)
    }

    fn drive(
        &self,
        until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        self.drive_port(until, 0, step)
    }

    fn drive_patiently(
        &self,
        until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        self.drive_port(until, GATHERED_BYTES, step)
    }

    fn express(&self, asked: &ExpressAsked, call: &mut dyn ExpressCall) -> Expressed {
        self.call_express(asked, call)
    }

    fn wait_for_slow(&self) -> Result<Option<Box<dyn Any>>, Error> {
        let waits = Waits::begin(|| self.machine().view())?;
        Ok(waits.map(|waits| Box::new(waits) as Box<dyn Any>))
    }

    fn back_off(&self, us: u64) {
        std::thread::sleep(Duration::from_micros(us));
    }

    fn pause(&self) {
        let mut outage = unpoison(self.outage.lock());
        let now = Instant::now();
        if outage.last.replace(now).is_none_or(|last| now - last > OUTAGE_FORGOTTEN) {
            outage.pauses.reset();
        }
        let pause_us = outage.pauses.take_us(PAUSES_US);
        drop(outage);
        std::thread::sleep(Duration::from_micros(pause_us));
    }
}
