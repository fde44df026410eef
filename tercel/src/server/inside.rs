//! Transactions inside the server: on threads of the program, over the machine itself.
//!
//! The loop owns the machine while it works. Once a thread has asked for the machine, the loop lends it while
//! it sleeps. A thread takes the lent machine, does one step of its transaction and gives the machine back.
//! If the step left work to do, the thread wakes the loop. So a step costs a lock, not a wake-up. No thread
//! holds the machine while it waits for a page or for the log.
//!
//! The invariant: the machine is with the loop, or lent, or with one thread. A thread that waits for the
//! machine is notified when it is lent.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tercel_engine::Error;
use tercel_engine::rpc::ReplyBody;
use tercel_engine::schedule::Turns;
use tercel_engine::server::{Conn, Effects, Express, Input, Local, LocalConfig, Server as Machine};
use tercel_engine::time::Now;
use tercel_engine::txn::{Home, Port, Step};
use tercel_events::Handle;
use tercel_lock::unpoison;
use tercel_wire::frame::Header;
use tercel_wire::id::ViewId;

use super::{Post, store};
use crate::serving;

/// The machine, and the effects that it has decided.
pub(super) struct Core {
    pub machine: Machine,
    pub out: Effects,
    local: Local,
    begun: Instant,
}

impl Core {
    /// The time is counted from `begun`.
    pub(super) fn new(machine: Machine, out: Effects, begun: Instant) -> Core {
        Core { machine, out, local: Local::new(LocalConfig::default()), begun }
    }

    pub(super) fn now(&self) -> Now {
        since(self.begun)
    }

    /// The moment of the loop's clock.
    pub(super) fn instant(&self, now: Now) -> Instant {
        self.begun + Duration::from_micros(now.0)
    }

    pub(super) fn clock(&self) -> impl Fn() -> Now + use<> {
        let begun = self.begun;
        move || since(begun)
    }

    /// The clock, and what hands frames to the machine.
    pub(super) fn frames(
        &mut self,
        now: Now,
    ) -> (impl Fn() -> Now + use<>, impl FnMut(Conn, Header, &[u8]) + use<'_>) {
        let (clock, machine, out) = (self.clock(), &mut self.machine, &mut self.out);
        let handle = move |conn, header: Header, body: &[u8]| {
            machine.handle(now, Input::Frame(conn, header, body), out);
        };
        (clock, handle)
    }

    pub(super) fn take(&mut self, now: Now, input: Input<'_>) {
        self.machine.handle(now, input, &mut self.out);
    }

    /// Runs the calls of methods that are due.
    pub(super) fn run_calls(&mut self) {
        if self.machine.has_calls() {
            let now = self.now();
            self.machine.run_calls(now, &mut self.local, &mut self.out);
        }
    }

    /// Runs a call that came by a shorter way, and appends the body of the response; or says that it is to
    /// come as a message.
    pub(super) fn express(&mut self, now: Now, request: Express<'_>, response: &mut ReplyBody<'_>) -> bool {
        let Core { machine, out, local, .. } = self;
        machine.express(now, request, local, response, out)
    }

    fn step(&mut self, step: &mut dyn FnMut(&mut dyn Home, Now) -> Step) -> Step {
        let now = self.now();
        let Core { machine, out, local, .. } = self;
        machine.inside(now, local, out, |home| step(home, now))
    }
}

fn since(begun: Instant) -> Now {
    Now(begun.elapsed().as_micros() as u64)
}

/// The place in which the loop lends its machine.
#[derive(Default)]
pub(super) struct Lending {
    state: Mutex<LendState>,
    /// The machine is lent, or the loop will not lend it again.
    lent: Condvar,
    /// A thread has given it back.
    back: Condvar,
    /// Threads that want it.
    wanting: AtomicUsize,
    /// Set once a thread has asked for the machine. Until then the loop lends nothing, since lending costs it
    /// two locks a turn.
    is_asked_for: AtomicBool,
}

#[derive(Default)]
struct LendState {
    core: Option<Box<Core>>,
    /// Steps done so far.
    steps: u64,
    /// The moment of the loop's next work, as of its lending of the machine.
    deadline: Option<Now>,
    /// Set while the server stops: no new step begins, and a step that waits for an answer may still get it.
    is_stopping: bool,
    is_closed: bool,
}

impl Lending {
    fn state(&self) -> MutexGuard<'_, LendState> {
        // A step that panicked has lost the machine: the loop finds that out and stops.
        unpoison(self.state.lock())
    }

    /// Lends the machine, or gives it back if no thread has ever asked for it.
    pub(super) fn lend(&self, core: Box<Core>) -> Option<Box<Core>> {
        if !self.is_asked_for.load(Ordering::SeqCst) {
            return Some(core);
        }
        let mut state = self.state();
        state.deadline = core.machine.deadline();
        state.core = Some(core);
        drop(state);
        if self.wanting.load(Ordering::SeqCst) > 0 {
            self.lent.notify_all();
        }
        None
    }

    /// Takes the machine back; `None` if a thread lost it. `turns` decides whether the loop was back too soon
    /// for a waiting thread to take it.
    pub(super) fn take_back(&self, turns: &mut Turns) -> Option<Box<Core>> {
        let mut state = self.state();
        if turns.is_for_threads(self.wanting.load(Ordering::SeqCst) > 0) {
            let before = state.steps;
            let is_waited_for = |state: &mut LendState| {
                state.core.is_some() && state.steps == before && self.wanting.load(Ordering::SeqCst) > 0
            };
            state = unpoison(self.back.wait_timeout_while(state, PATIENCE, is_waited_for)).0;
        }
        state.core.take()
    }

    /// No step is begun any more.
    pub(super) fn stop(&self) {
        self.state().is_stopping = true;
    }

    /// Ends the lending: the loop will not lend the machine again.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
        self.lent.notify_all();
    }
}

/// The longest wait of the loop for a thread to wake up that wants the machine.
const PATIENCE: Duration = Duration::from_millis(1);

/// A program's way to the server that runs beside it. Clones are the same.
#[derive(Clone)]
pub(super) struct Inside {
    pub lending: Arc<Lending>,
    pub handle: Handle<Post>,
    /// The moment from which the server counts time, and the threads of the program as well.
    pub begun: Instant,
    /// The view by which the server is known.
    pub view: ViewId,
}

impl Inside {
    /// Waits until the machine is lent and `may_go_on` says so.
    fn wait(
        &self,
        until: Instant,
        may_go_on: impl Fn(&Core) -> bool,
    ) -> Result<MutexGuard<'_, LendState>, Error> {
        let lending = &self.lending;
        if !lending.is_asked_for.swap(true, Ordering::SeqCst) {
            // The loop may sleep with the machine.
            store::post(&self.handle, Post::Inside);
        }
        lending.wanting.fetch_add(1, Ordering::SeqCst);
        let is_waiting =
            |state: &mut LendState| !state.is_closed && !state.core.as_deref().is_some_and(&may_go_on);
        let left = until.saturating_duration_since(Instant::now());
        let waited = lending.lent.wait_timeout_while(lending.state(), left, is_waiting);
        lending.wanting.fetch_sub(1, Ordering::SeqCst);
        let (state, waited) = unpoison(waited);
        match (state.is_closed, waited.timed_out()) {
            (true, _) => Err(Error::Unavailable("the server has stopped".into())),
            (false, true) => Err(Error::Timeout),
            (false, false) => Ok(state),
        }
    }
}

/// Time for which a step waits for what it needs, such as a page or the log: as long as a client waits by
/// default.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The pause before a thread receives the error that this server does not lead, so that a thread that tries
/// again does not spin.
const PAUSE: Duration = Duration::from_millis(100);

/// Tells the loop that a step has panicked and the machine is lost.
struct Loses<'a>(&'a Handle<Post>);

impl Drop for Loses<'_> {
    fn drop(&mut self) {
        store::post(self.0, Post::Panicked("a transaction inside of the server panicked".into()));
    }
}

impl Port for Inside {
    fn now(&self) -> Now {
        Now(self.begun.elapsed().as_micros() as u64)
    }

    fn drive(
        &self,
        until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        let until = until
            .map_or_else(|| Instant::now() + TIMEOUT, |until| self.begun + Duration::from_micros(until.0));
        serving::may_wait(self.view)?;
        let mut heard = None;
        loop {
            let mut state = self.wait(until, |core| heard != Some(core.machine.inside_news()))?;
            if state.is_stopping && heard.is_none() {
                return Err(Error::Unavailable("the server is stopping".into()));
            }
            let Some(mut core) = state.core.take() else { continue };
            let loses = Loses(&self.handle);
            // The machine may answer at the end of the very step that asks: what came since its beginning is
            // news.
            heard = Some(core.machine.inside_news());
            let said = core.step(step);
            std::mem::forget(loses);
            let wants = |a: Option<Now>, b: Option<Now>| a.is_some_and(|a| b.is_none_or(|b| a < b));
            let has_work = !core.out.list.is_empty() || wants(core.machine.deadline(), state.deadline);
            state.core = Some(core);
            state.steps += 1;
            drop(state);
            self.lending.back.notify_one();
            if has_work {
                store::post(&self.handle, Post::Inside);
            }
            if said == Step::Done {
                return Ok(());
            }
        }
    }

    fn back_off(&self, us: u64) {
        std::thread::sleep(Duration::from_micros(us));
    }

    fn pause(&self) {
        std::thread::sleep(PAUSE);
    }
}
