//! Driving the machine: which thread reads the connection, which threads sleep, which thread reconnects.
//!
//! The rules are in `tercel_lock::baton`: one thread reads, with the baton, one sends, and no thread waits
//! for another to send. The machine and its connection are the state that has a lock of its own. Output of
//! the machine is sent on the connection that the machine speaks of. Bytes that arrive are believed only if
//! they came on that connection.
//!
//! A thread whose bytes are not taken reads meanwhile, if it has the baton or no other thread has: a server
//! may want to be read first. A call in a line does without the right to send: it goes between two whole
//! messages. It does not go at all while a thread sends, since that thread may have earlier messages to send.
//!
//! Only a thread with the baton judges silence, just after it has found the connection empty. Without that
//! look, nothing may have been received because no thread read.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::Waker;
use std::thread::Thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tercel_engine::Error;
use tercel_engine::client::{Client as Machine, Input, PAUSES_US, Pauses};
use tercel_engine::limits::UNSENT_BYTES_MAX;
use tercel_engine::time::Now;
use tercel_engine::txn::{Claim, ExpressAsked, ExpressCall, Expressed, Home, Port, Search, Step, TaskPort};
use tercel_lock::baton::{Held as HeldBaton, Sent, Threads};
use tercel_lock::tasks::{Tasks, Turns};
use tercel_lock::unpoison;
use tercel_wire::id::{Oref, ViewId};
use tercel_wire::spare::Spare;

use super::asynchronous::OfTask;
use super::connection::{
    CONNECT_TIMEOUT, CONNECTING, CONNECTING_TO_ONE, READ_MAX, Remote, SLEEP_MAX, ServerConnection, Transport,
};
use super::express::{ByLine, micros};
use super::way::WayOf;
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
    pub(super) threads: Threads<Linked, Baton, Outbox>,
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
    stopping: AtomicBool,
    /// The resident thread, once it runs.
    driver: OnceLock<Thread>,
    /// Tasks of asynchronous runtimes that wait.
    pub(super) tasks: Tasks,
    /// The searches of their attempts, by the object that was looked for.
    pub(super) searches: Mutex<HashMap<Oref, Search>>,
    /// The queues of those that lost over one object.
    pub(super) turns: Turns<Oref>,
    pub(super) way: WayOf,
}

/// The right to read the connection.
pub(super) type Held<'a> = HeldBaton<'a, Linked, Baton, Outbox>;

/// The buffer of the thread that sends.
pub(super) type Outbox = (Vec<u8>, Spare);

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
    /// Counts waits, so that the driver knows whether there were any lately.
    waits: AtomicU64,
    /// Calls by the shorter way; written by the thread with the baton alone.
    expressed: AtomicU64,
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

/// Bytes that a task's thread sends at most, where the connection says that it has room.
const TASK_SENDS_MAX: usize = 16 << 10;

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
            threads: Threads::new(Linked { machine, conn: None }, Baton::default(), Outbox::default()),
            remote,
            how: How { timeout: timeout.min(FOR_EVER), timeout_us: micros(timeout) },
            birthmark: Birthmark::new(),
            begun: boot_time(),
            outage: Mutex::new(Outage { pauses: Pauses::new(seed.rotate_left(32)), last: None }),
            looked: AtomicU64::new(0),
            usage: Usage::default(),
            generation: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            driver: OnceLock::new(),
            tasks: Tasks::default(),
            searches: Mutex::default(),
            turns: Turns::default(),
            way: WayOf::default(),
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
        self.threads.state()
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
        let (conn, has_room) = (RefCell::new(None), Cell::new(false));
        let take = |machine: &mut MutexGuard<'a, Linked>, (bytes, _): &mut Outbox| {
            std::mem::swap(machine.outgoing(), bytes);
            if bytes.len() > UNSENT_BYTES_MAX {
                // A commit may wait for this.
                self.threads.happen(machine);
                has_room.set(true);
            }
            conn.replace(machine.conn.clone());
        };
        let send = |(bytes, spare): &mut Outbox| {
            if has_room.take() {
                self.tasks.take_happened(Some(&[])).wake();
            }
            let conn = conn.take();
            let sent = conn.map(|conn| self.send(&conn, bytes, reader.as_deref_mut()).map_err(|e| (conn, e)));
            spare.empty(bytes, SENDER_BYTES_MAX);
            if let Some(Err((conn, e))) = sent {
                self.lose(&conn, e.to_string());
            }
        };
        let is_posted = |machine: &mut Linked| !machine.outgoing().is_empty();
        if self.threads.send(machine, SENDS_MAX, is_posted, take, send) == Sent::Some {
            // Others have more to send all the time, and this thread has a call to return from.
            self.rouse();
            if let Some(conn) = self.conn() {
                conn.wake();
            }
        }
    }

    /// Sends what the machine wants sent if the connection takes it at once; else the client's own thread
    /// does: a task's thread waits for no peer.
    fn flush_of_task(&self, mut machine: MutexGuard<'_, Linked>) {
        let conn = machine.conn.clone();
        let bytes = machine.outgoing().len();
        let is_taken = bytes <= TASK_SENDS_MAX && conn.as_ref().is_none_or(|conn| conn.has_room());
        if bytes == 0 || is_taken {
            return self.flush(machine, None);
        }
        drop(machine);
        self.rouse();
        conn.iter().for_each(|conn| conn.wake());
    }

    /// Leaves what is to be sent to the next thread that sends, and to the driver at the latest.
    fn leave_unsent(&self, mut machine: MutexGuard<'_, Linked>) {
        if machine.outgoing().is_empty() {
            return;
        }
        self.usage.waits.fetch_add(1, Ordering::SeqCst);
        let conn = machine.conn.clone();
        drop(machine);
        if self.threads.must_wake() {
            conn.iter().for_each(|conn| conn.wake());
        }
    }

    /// Says whether there is a connection to the server.
    pub(super) fn is_linked(&self) -> bool {
        self.machine().conn.is_some()
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
        self.send_slowly(conn, rest, reader, &mut taken)
    }

    /// The rest of a send, for which there was no room: reads as long as it sends, with the baton that this
    /// thread has, or that it has `taken` because it was free.
    fn send_slowly<'a>(
        &'a self,
        conn: &Arc<ServerConnection>,
        mut bytes: &[u8],
        mut reader: Option<&mut Reader>,
        taken: &mut Option<Held<'a>>,
    ) -> io::Result<()> {
        let mut took = Instant::now();
        let mut moved = took;
        if let Some(reader) = reader.as_deref_mut() {
            reader.slow_since.get_or_insert(took);
        }
        while !bytes.is_empty() {
            if reader.is_none() && taken.is_none() {
                *taken = self.threads.take_baton();
            }
            let reader = reader.as_deref_mut().or(taken.as_mut().map(|baton| &mut baton.reader));
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
            let machine = self.happen(machine);
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
        drop(self.happen(machine));
        conn.cut();
        self.rouse();
    }

    /// Ends a rest of the driver.
    pub(super) fn rouse(&self) {
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

    /// Says whether the connection was not looked at for a while; then it is by the caller.
    pub(super) fn is_time_to_look(&self) -> bool {
        let now = self.now();
        let is_time = now.0.saturating_sub(self.looked.load(Ordering::Relaxed)) >= LOOK_US;
        if is_time {
            self.looked.store(now.0, Ordering::Relaxed);
        }
        is_time
    }

    /// Something that a thread or task may wait for has happened. Tasks are woken without the lock, which is
    /// then taken once more: other threads may have used the machine meanwhile.
    pub(super) fn happen<'a>(&'a self, mut machine: MutexGuard<'a, Linked>) -> MutexGuard<'a, Linked> {
        self.threads.happen(&machine);
        let news = machine.take_news();
        let wakes = self.tasks.take_happened(news.as_deref());
        if wakes.is_empty() {
            return machine;
        }
        drop(machine);
        wakes.wake();
        self.machine()
    }

    /// A task waits for something that was asked for, until this moment: the resident thread reads for it.
    pub(super) fn await_task(&self, waker: &Waker, due: Now) {
        self.tasks.wait(waker, due.0);
        self.rouse_before(due);
    }

    /// A task pauses until this moment.
    pub(super) fn pause_task(&self, waker: &Waker, due: Now) {
        self.tasks.pause(waker, due.0);
        self.rouse_before(due);
    }

    /// Has the resident thread awake at this moment: it keeps the time for tasks.
    fn rouse_before(&self, due: Now) {
        self.rouse();
        // No sleep of its is longer, so it looks before.
        if due.0.saturating_sub(self.now().0) >= u64::from(micros(SLEEP_MAX)) {
            return;
        }
        // Either it sees the task before it sleeps, or it is seen to sleep.
        fence(Ordering::SeqCst);
        if self.threads.must_wake()
            && let Some(conn) = self.conn()
        {
            conn.wake();
        }
    }

    /// Parks the resident thread, at most until a task's time has come.
    fn park(&self, time: Duration) {
        std::thread::park_timeout(time.min(self.tasks.wake_due(self.now().0)));
    }

    /// Takes in what has arrived, if no thread has looked for a while and no thread is reading: a thread that
    /// finds all it wants in the cache would otherwise read an old state until the driver wakes up.
    fn look(&self) {
        let now = self.now();
        if now.0.saturating_sub(self.looked.load(Ordering::Relaxed)) < LOOK_US {
            return;
        }
        let Some(mut baton) = self.threads.take_baton() else { return };
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
                let machine = self.happen(machine);
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
        self.usage.waits.fetch_add(1, Ordering::SeqCst);
        let left = end.saturating_duration_since(Instant::now()).min(READ_MAX);
        let read = |baton: &mut Baton| {
            let Some(conn) = conn.filter(|_| !self.give_lane_if_needed(baton)) else { return };
            match conn.wait_and_receive(left, &mut baton.reader.buffer) {
                Ok(false) => self.judge(conn, &mut baton.reader),
                received => self.read(conn, &mut baton.reader, received),
            }
        };
        self.threads.wait((seen, left), conn.is_some(), read, || conn.iter().for_each(|conn| conn.wake()));
    }

    /// Returns the time that the first connection may take.
    pub(super) fn first_connect(&self) -> Duration {
        FIRST_CONNECT.min(self.timeout())
    }

    /// Says whether the first connection stands, or never will; nothing while that is open.
    pub(super) fn is_connected(&self, machine: &Linked) -> Option<Result<(), Error>> {
        // Welcomed, and gone again meanwhile: that is an outage as any other.
        let welcomed = || (machine.view() != ViewId::NONE).then_some(Ok(()));
        // Nothing listens: trying on would only make the caller wait for the same answer.
        let unreachable = || {
            let why = machine.unreachable()?;
            Some(Err(Error::Unavailable(format!(
                "{} does not answer: {why}; start a server there with `tercel serve`, or name another address",
                self.remote.describe()
            ))))
        };
        machine.availability().or_else(welcomed).or_else(unreachable)
    }

    /// The error of a wait that was too long.
    pub(super) fn why_late(&self) -> Error {
        let machine = self.machine();
        match machine.availability() {
            None => self.not_connected(&machine),
            Some(Err(e)) => e,
            Some(Ok(())) => Error::Timeout,
        }
    }

    /// The error of a first connection that takes too long.
    pub(super) fn not_connected(&self, machine: &Linked) -> Error {
        Error::Unavailable(format!("{}: {}", self.remote.describe(), machine.why_unavailable()))
    }

    /// Waits until the first connection stands.
    pub(super) fn wait_connected(&self) -> Result<(), Error> {
        let end = Instant::now() + self.first_connect();
        loop {
            let (seen, conn) = {
                let machine = self.machine();
                if let Some(result) = self.is_connected(&machine) {
                    return result;
                }
                if Instant::now() >= end {
                    return Err(self.not_connected(&machine));
                }
                (self.threads.happened(), machine.conn.clone())
            };
            self.wait(conn.as_ref(), seen, end);
        }
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
            self.park(rest);
            let is_used = self.threads.waiting() > 0 || self.usage.count() != before || !self.read_idle();
            rest = if is_used { (rest * 2).min(DRIVER_REST_MAX) } else { DRIVER_REST_MIN };
        }
        let mut machine = self.machine();
        machine.bye();
        self.flush(machine, None);
    }

    /// Sleeps on the connection while no other thread wants it. Says no if one reads it.
    fn read_idle(&self) -> bool {
        let Some(conn) = self.conn() else { return true };
        let sleep = |baton: &mut Baton| {
            let time = SLEEP_MAX.min(self.tasks.wake_due(self.now().0));
            if let Ok(Waited::Ready) = conn.wait(time, true) {
                let received = conn.receive(&mut baton.reader.buffer);
                self.read(&conn, &mut baton.reader, received);
            }
        };
        self.threads.doze(|machine| machine.outgoing().is_empty(), sleep)
    }

    /// Tells the machine the time if it wants to know.
    fn keep_time(&self) {
        let mut machine = self.machine();
        let now = self.now();
        let is_silent = machine.seems_silent(now);
        if machine.deadline().is_some_and(|d| d <= now) && !is_silent {
            machine.handle(now, Input::Time);
            machine = self.happen(machine);
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
        } else if is_silent && let Some(mut baton) = self.threads.take_baton() {
            // A thread that has the baton judges for itself.
            self.judge(&conn, &mut baton.reader);
            drop(baton);
            drop(self.happen(self.machine()));
        }
    }

    fn reconnect(&self) {
        if !self.machine().wants_connection() {
            // Refused for good: there is nothing to drive.
            drop(self.happen(self.machine()));
            return self.park(SLEEP_MAX);
        }
        // A connection that is made and ended before it is of use counts like one that is not made. Its loss
        // ends a rest, and must not end this pause.
        let (at, pause_us) = self.machine().next_server();
        let due = Instant::now() + Duration::from_micros(pause_us);
        while Instant::now() < due {
            if self.stopping.load(Ordering::SeqCst) {
                return;
            }
            self.park(due.saturating_duration_since(Instant::now()));
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
        let machine = self.happen(machine);
        self.flush(machine, None);
    }

    /// Ends the driver.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        if let Some(conn) = self.conn() {
            conn.wake();
        }
        self.rouse();
        drop(self.happen(self.machine()));
    }
}

impl Shared {
    /// Calls `step` as [`Shared::drive_until`] does, for as long as a call of this client waits.
    pub(super) fn drive_machine(&self, step: &mut dyn FnMut(&mut Machine, Now) -> Step) -> Result<(), Error> {
        self.drive_until(None, step)
    }

    /// Calls `step` once, with the machine locked, and sends what it wants sent.
    ///
    /// # Errors
    /// `Timeout` if it would wait; `Unavailable` if this process was forked off the client's.
    pub(super) fn drive_once(&self, step: &mut dyn FnMut(&mut dyn Home, Now) -> Step) -> Result<(), Error> {
        if self.is_forked() {
            return Err(forked());
        }
        self.look();
        let mut machine = self.machine();
        let now = self.now();
        let said = step(&mut machine.machine, now);
        self.flush_of_task(machine);
        if said == Step::Done { Ok(()) } else { Err(Error::Timeout) }
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
            let waits_for = (said != Step::Done).then(|| (self.threads.happened(), machine.conn.clone()));
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
                return Err(self.why_late());
            }
            self.wait(conn.as_ref(), seen, end);
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
            return Err(forked());
        }
        self.drive_until_done(until, gathers, &mut |machine, now| step(machine, now))
    }
}

fn forked() -> Error {
    Error::Unavailable(
        "this transaction was begun before this process was forked, by another client: begin it anew".into(),
    )
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

    fn make_way(&self) {
        self.way.make(|| self.now());
    }

    fn claim_way(&self) -> Option<Box<dyn Claim + '_>> {
        self.way.claim()
    }

    fn for_task<'a>(&'a self, waker: &'a Waker) -> Option<Box<dyn TaskPort + 'a>> {
        Some(Box::new(OfTask::new(self, waker)))
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
