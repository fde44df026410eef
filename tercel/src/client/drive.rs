//! Driving the machine: who reads the connection, who sleeps, who reconnects.
//!
//! Locks, in the order in which they may be taken: the baton (who reads), the sender (who writes), the machine, the
//! connection. The machine and the connection change together, under the machine's lock, so what the machine says is
//! sent on the connection it speaks of, and what arrives is believed only if it came on that one.
//!
//! Nobody sleeps on old news: what may end a wait is counted under the machine's lock, and who is about to sleep looks
//! whether the count is still what it was when the wait was found necessary.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use tercel_engine::Error;
use tercel_engine::client::{Client as Machine, Input};
use tercel_engine::time::Now;
use tercel_engine::txn::{Port, Step};

use super::conn::{Conn, Remote};
use crate::pipe::Waited;

/// What the threads of a client share.
pub(super) struct Shared {
    machine: Mutex<Machine>,
    /// Waited on by threads that do not hold the baton; paired with the machine.
    changed: Condvar,
    /// Counts what may end a wait; changed under the machine's lock.
    happened: AtomicU64,
    /// Threads asleep on `changed`; changed under the machine's lock. Most often none, and then nobody is to be woken,
    /// which would be a system call for each reply.
    asleep: AtomicUsize,
    /// Held by the one thread that reads the connection.
    baton: Mutex<Baton>,
    /// Held while bytes are being sent, so that they leave in order.
    sender: Mutex<()>,
    conn: Mutex<Option<Arc<Conn>>>,
    remote: Remote,
    timeout: Duration,
    begun: Instant,
    /// Threads inside [`Port::drive`] that wait.
    waiting: AtomicUsize,
    /// Counts waits, so that the driver knows whether there were any lately.
    waits: AtomicU64,
    /// Whether the driver holds the baton and sleeps on the connection.
    driver_sleeps: AtomicBool,
    stopping: AtomicBool,
    last_trouble: Mutex<Option<String>>,
}

#[derive(Default)]
struct Baton {
    buffer: Vec<u8>,
}

/// How long the driver leaves the connection to the threads that have been using it. Invalidations that arrive when
/// nobody waits are applied this late at most, and a lone caller is not disturbed between two calls.
const DRIVER_REST: Duration = Duration::from_millis(2);
/// How long anybody sleeps at most before looking at the time.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// The first pause between two attempts to connect; doubles up to 64 times.
const RECONNECT_PAUSE: Duration = Duration::from_millis(5);
/// How long the first connection may take.
const FIRST_CONNECT: Duration = Duration::from_secs(5);

fn unpoison<T>(r: Result<T, PoisonError<T>>) -> T {
    r.unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(machine: Machine, remote: Remote, timeout: Duration) -> Result<Shared, Error> {
        Ok(Shared {
            machine: Mutex::new(machine),
            changed: Condvar::new(),
            happened: AtomicU64::new(0),
            asleep: AtomicUsize::new(0),
            baton: Mutex::default(),
            sender: Mutex::default(),
            conn: Mutex::default(),
            remote,
            timeout,
            begun: Instant::now(),
            waiting: AtomicUsize::new(0),
            waits: AtomicU64::new(0),
            driver_sleeps: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            last_trouble: Mutex::default(),
        })
    }

    pub(super) fn machine(&self) -> MutexGuard<'_, Machine> {
        unpoison(self.machine.lock())
    }

    fn now(&self) -> Now {
        Now(self.begun.elapsed().as_micros() as u64)
    }

    fn conn(&self) -> Option<Arc<Conn>> {
        unpoison(self.conn.lock()).clone()
    }

    /// Sends what the machine wants sent.
    fn flush(&self) {
        let _sender = unpoison(self.sender.lock());
        let (bytes, conn) = {
            let mut machine = self.machine();
            (std::mem::take(machine.outgoing()), self.conn())
        };
        if bytes.is_empty() {
            return;
        }
        let Some(conn) = conn else { return };
        if let Err(e) = conn.send(&bytes) {
            self.lose(&conn, e.to_string());
        }
    }

    /// The connection is gone, if it is still this one.
    fn lose(&self, conn: &Arc<Conn>, why: String) {
        let mut machine = self.machine();
        if !self.is_current(conn) {
            return;
        }
        *unpoison(self.conn.lock()) = None;
        machine.handle(self.now(), Input::Disconnected(why));
        self.happen(&machine);
        drop(machine);
        conn.wake();
    }

    fn is_current(&self, conn: &Arc<Conn>) -> bool {
        unpoison(self.conn.lock()).as_ref().is_some_and(|c| Arc::ptr_eq(c, conn))
    }

    /// Something that a thread may wait for has happened.
    fn happen(&self, _machine: &MutexGuard<'_, Machine>) {
        self.happened.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// Reads what has arrived, with the baton held; whether anything had.
    fn read(&self, conn: &Arc<Conn>, baton: &mut Baton) -> bool {
        match conn.receive(&mut baton.buffer) {
            Ok(false) => false,
            Ok(true) => {
                let close = {
                    let mut machine = self.machine();
                    if !self.is_current(conn) {
                        return true;
                    }
                    machine.handle(self.now(), Input::Bytes(&baton.buffer));
                    self.happen(&machine);
                    machine.wants_close().then(|| machine.trouble())
                };
                self.flush();
                if let Some(why) = close {
                    self.lose(conn, why);
                }
                true
            }
            Err(e) => {
                let why = match e.kind() {
                    io::ErrorKind::UnexpectedEof => "the server closed the connection".to_string(),
                    _ => e.to_string(),
                };
                self.lose(conn, why);
                true
            }
        }
    }

    /// Waits for something to happen after the count was `seen`: by reading, if nobody else does.
    fn wait(&self, seen: u64, end: Instant) {
        let left = end.saturating_duration_since(Instant::now()).min(SLEEP_MAX);
        let nothing_happened = || self.happened.load(Ordering::SeqCst) == seen;
        let conn = self.conn();
        if let Some(conn) = &conn {
            match self.baton.try_lock() {
                Ok(mut baton) => {
                    // Who held the baton before may have read just what this thread waits for.
                    if nothing_happened()
                        && let Ok(Waited::Ready) = conn.wait(left, false)
                    {
                        self.read(conn, &mut baton);
                    }
                    drop(baton);
                    // Whoever waited for this thread to read must read now.
                    if self.waiting.load(Ordering::SeqCst) > 1 {
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
        let end = Instant::now() + FIRST_CONNECT;
        loop {
            let seen = {
                let machine = self.machine();
                if let Some(result) = machine.availability() {
                    return result;
                }
                let trouble = unpoison(self.last_trouble.lock()).clone();
                // Nobody listens: trying on would only make the caller wait for the same answer.
                if let Some(why) = trouble {
                    return Err(Error::Unavailable(format!(
                        "{} does not answer: {why}; start a server there with `tercel serve`, or name another address",
                        self.remote.describe()
                    )));
                }
                if Instant::now() >= end {
                    return Err(Error::Unavailable(format!(
                        "{}: {}",
                        self.remote.describe(),
                        machine.trouble()
                    )));
                }
                self.happened.load(Ordering::SeqCst)
            };
            self.wait_counted(seen, end);
        }
    }

    fn wait_counted(&self, seen: u64, end: Instant) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.waits.fetch_add(1, Ordering::SeqCst);
        self.wait(seen, end);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// The resident thread.
    pub(super) fn run_driver(&self) {
        let mut pause = Duration::ZERO;
        while !self.stopping.load(Ordering::SeqCst) {
            if self.conn().is_none() {
                self.reconnect(&mut pause);
                continue;
            }
            // Also while others read: they look at the connection only, and the time passes for it as well.
            if self.keep_time() {
                pause = Duration::ZERO;
            }
            let before = self.waits.load(Ordering::SeqCst);
            if self.waiting.load(Ordering::SeqCst) > 0 {
                self.rest(DRIVER_REST);
                continue;
            }
            self.rest(DRIVER_REST);
            if self.waits.load(Ordering::SeqCst) != before {
                continue;
            }
            self.read_idle();
        }
        self.machine().bye();
        self.flush();
    }

    fn rest(&self, time: Duration) {
        std::thread::park_timeout(time);
    }

    /// Sleeps on the connection while nobody else wants it.
    fn read_idle(&self) {
        let Some(conn) = self.conn() else { return };
        let mut baton = match self.baton.try_lock() {
            Ok(baton) => baton,
            Err(TryLockError::Poisoned(p)) => p.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.driver_sleeps.store(true, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) == 0
            && let Ok(Waited::Ready) = conn.wait(SLEEP_MAX, true)
        {
            self.read(&conn, &mut baton);
        }
        self.driver_sleeps.store(false, Ordering::SeqCst);
        drop(baton);
        self.happen(&self.machine());
    }

    /// Tells the machine the time if it wants to know; whether the connection is up.
    fn keep_time(&self) -> bool {
        let (up, why) = {
            let mut machine = self.machine();
            let now = self.now();
            if machine.deadline().is_some_and(|d| d <= now) {
                machine.handle(now, Input::Time);
                self.happen(&machine);
            }
            let why = machine.wants_close().then(|| machine.trouble());
            (matches!(machine.availability(), Some(Ok(()))), why)
        };
        self.flush();
        if let (Some(why), Some(conn)) = (why, self.conn()) {
            self.lose(&conn, why);
        }
        up
    }

    fn reconnect(&self, pause: &mut Duration) {
        if !self.machine().wants_connection() {
            // Refused for good: there is nothing to drive.
            self.happen(&self.machine());
            return self.rest(SLEEP_MAX);
        }
        if !pause.is_zero() {
            self.rest(*pause);
        }
        // A connection that is made and ended before it is of use counts like one that is not made.
        *pause = (*pause * 2).clamp(RECONNECT_PAUSE, RECONNECT_PAUSE * 64);
        let connected = self.remote.connect();
        let mut machine = self.machine();
        match connected {
            Ok(conn) => {
                *unpoison(self.conn.lock()) = Some(Arc::new(conn));
                machine.handle(self.now(), Input::Connected);
            }
            Err(e) => *unpoison(self.last_trouble.lock()) = Some(e.to_string()),
        }
        self.happen(&machine);
        drop(machine);
        self.flush();
    }

    /// Ends the driver.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        if let Some(conn) = self.conn() {
            conn.wake();
        }
        self.happen(&self.machine());
    }
}

impl Port for Shared {
    fn drive(&self, step: &mut dyn FnMut(&mut Machine, Now) -> Step) -> Result<(), Error> {
        let mut end = None;
        loop {
            let (done, sends, seen) = {
                let mut machine = self.machine();
                let done = step(&mut machine, self.now()) == Step::Done;
                (done, !machine.outgoing().is_empty(), self.happened.load(Ordering::SeqCst))
            };
            if sends {
                self.flush();
            }
            if done {
                return Ok(());
            }
            let now = Instant::now();
            let end = *end.get_or_insert(now + self.timeout);
            if self.stopping.load(Ordering::SeqCst) {
                return Err(Error::Unavailable("the client is closed".into()));
            }
            if now >= end {
                let machine = self.machine();
                return Err(match machine.availability() {
                    None => Error::Unavailable(format!("{}: {}", self.remote.describe(), machine.trouble())),
                    _ => Error::Timeout(None),
                });
            }
            self.wait_counted(seen, end);
        }
    }

    fn back_off(&self, us: u64) {
        std::thread::sleep(Duration::from_micros(us));
    }
}
