//! Programs inside of a server that is a [`Fake`].
#![allow(dead_code, reason = "each test takes what it needs")]

pub mod fake;

use std::cell::{Cell, RefCell, RefMut};

use tercel_engine::error::Error;
use tercel_engine::time::Now;
use tercel_engine::txn::local::{Local, LocalConfig};
use tercel_engine::txn::{self, Home, Isolation, Port, Step, Tx};

use tercel_wire::id::OpId;
use tercel_wire::message::Outcome;

use fake::Fake;

/// A program inside of a server: its port. Several may share one server, each with types of its own.
pub struct Inside<'s> {
    server: &'s RefCell<Fake>,
    program: u64,
    local: RefCell<Local>,
    /// Whether a call that cannot be answered at once fails.
    pub hurried: Cell<bool>,
}

pub fn server(seed: u64) -> RefCell<Fake> {
    RefCell::new(Fake::new(seed))
}

impl<'s> Inside<'s> {
    pub fn new(server: &'s RefCell<Fake>) -> Inside<'s> {
        Inside::with(server, LocalConfig::default())
    }

    pub fn with(server: &'s RefCell<Fake>, config: LocalConfig) -> Inside<'s> {
        server.borrow_mut().programs += 1;
        let program = server.borrow().programs;
        Inside { server, program, local: RefCell::new(Local::new(config)), hurried: Cell::new(false) }
    }

    pub fn fake(&self) -> RefMut<'_, Fake> {
        self.server.borrow_mut()
    }

    pub fn begin(&self) -> Tx<'_> {
        Tx::begin(self, Isolation::Serializable).unwrap()
    }

    pub fn run<R>(&self, body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Error> {
        txn::run(self, Isolation::Serializable, body)
    }

    /// What became of an operation; an error if that is not known in time.
    pub fn resolve(&self, op: OpId) -> Result<Outcome, Error> {
        let mut found = None;
        self.drive(None, &mut |home, now| {
            found = home.resolve(now, op);
            if found.is_some() { Step::Done } else { Step::Wait }
        })?;
        Ok(found.unwrap())
    }
}

impl Port for Inside<'_> {
    fn now(&self) -> Now {
        Now(0)
    }

    fn drive(
        &self,
        _until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        loop {
            let mut server = self.server.borrow_mut();
            let mut local = self.local.borrow_mut();
            server.program = self.program;
            if step(&mut local.over(&mut *server), Now(0)) == Step::Done {
                return Ok(());
            }
            if self.hurried.get() {
                return Err(Error::Unavailable("it would have to wait".into()));
            }
            if !server.step() {
                return Err(Error::Timeout(None));
            }
        }
    }

    fn back_off(&self, _: u64) {
        self.server.borrow_mut().step();
    }

    fn pause(&self) {}
}
