//! Ports of a world: transactions run through them, and the world goes on while they wait.

use std::cell::RefCell;

use tercel_engine::error::Error;
use tercel_engine::server::{Effects, Local};
use tercel_engine::time::Now;
use tercel_engine::txn::{self, Home, Isolation, Port, Step, Tx};
use tercel_wire::id::OpId;
use tercel_wire::message::Outcome;

use crate::World;

/// A client's port: waiting is letting the world go on.
pub struct Thread<'w> {
    /// The world.
    pub world: &'w World,
    /// The number of the client.
    pub client: usize,
}

/// A program inside of the server: its port. Several share the one session that a server has of its own.
pub struct Indoors<'w> {
    /// The world.
    pub world: &'w World,
    pub(crate) local: RefCell<Local>,
}

impl Port for Thread<'_> {
    fn now(&self) -> Now {
        self.world.lock().now
    }

    fn drive(
        &self,
        _until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        let patience = self.world.lock().patience;
        for _ in 0..patience {
            {
                let mut inner = self.world.lock();
                let now = inner.now;
                let done = step(&mut inner.clients[self.client], now) == Step::Done;
                inner.send(self.client);
                if done {
                    return Ok(());
                }
            }
            self.world.wait();
        }
        match self.world.lock().clients[self.client].availability() {
            None => Err(Error::Unavailable("no connection".into())),
            _ => Err(Error::Timeout),
        }
    }

    fn back_off(&self, _: u64) {
        self.world.wait();
    }
}

impl Indoors<'_> {
    /// Begins a transaction.
    ///
    /// # Panics
    /// If the server does not let it begin.
    pub fn begin(&self) -> Tx<'_> {
        Tx::begin(self, Isolation::Serializable).unwrap()
    }

    /// Runs a transaction, again after conflicts.
    ///
    /// # Errors
    /// Those of [`txn::run`].
    pub fn run<R>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Error> {
        txn::run(self, Isolation::Serializable, body)
    }

    /// Asks what became of an operation, once.
    pub fn resolve(&self, op: OpId) -> Outcome {
        let mut found = None;
        self.drive(None, &mut |home, now| {
            found = home.resolve(now, op);
            if found.is_some() { Step::Done } else { Step::Wait }
        })
        .unwrap();
        found.unwrap()
    }
}

impl Port for Indoors<'_> {
    fn now(&self) -> Now {
        self.world.lock().now
    }

    fn drive(
        &self,
        _until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        let patience = self.world.lock().patience;
        let mut seen = None;
        for _ in 0..patience {
            let mut inner = self.world.lock();
            let now = inner.now;
            let mut out = Effects::default();
            // Between two servers there is none to ask.
            let done = inner.node.machine_mut().is_some_and(|server| {
                let news = server.inside_news();
                // It is asked again only after what it waits for may have happened.
                if seen.replace(news) == Some(news) {
                    return false;
                }
                let mut local = self.local.borrow_mut();
                server.inside(now, &mut local, &mut out, |home| step(home, now)) == Step::Done
            });
            if !inner.node.is_up() {
                seen = None;
            }
            inner.perform(out);
            drop(inner);
            if done {
                return Ok(());
            }
            self.world.wait();
        }
        Err(Error::Timeout)
    }

    fn back_off(&self, _: u64) {
        self.world.wait();
    }
}
