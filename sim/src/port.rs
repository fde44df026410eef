//! A process's port in the world, a client's or the server's own: waiting is letting the world go on.

use std::fmt;

use tercel_engine::error::Error;
use tercel_engine::time::Now;
use tercel_engine::txn::{Home, Port, Step};

use crate::scheduler::{Actor, ActorScheduler};
use crate::world::letter;

/// Where a thread runs transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// At a client.
    Client(usize),
    /// Inside of a server.
    Server(usize),
}

impl Site {
    /// A number of the process that no other process has.
    pub(crate) fn number(self) -> u32 {
        match self {
            Site::Client(client) => client as u32,
            Site::Server(n) => 1_000 + n as u32,
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Site::Client(client) => write!(f, "c{client}"),
            Site::Server(n) => write!(f, "{}", letter(*n)),
        }
    }
}

/// The port on which a thread of a process runs transactions.
pub(crate) struct ActorPort<'s> {
    pub scheduler: &'s ActorScheduler,
    pub me: Actor,
    pub site: Site,
    /// Which life of the process it belongs to: one that crashed is never heard of again.
    pub life: u32,
    pub patience_us: u64,
}

impl ActorPort<'_> {
    /// Says whether the process that this thread belongs to is gone.
    pub(crate) fn is_gone(&self) -> bool {
        let world = self.scheduler.world();
        world.life_of(self.site) != self.life || world.is_over()
    }
}

impl Port for ActorPort<'_> {
    fn now(&self) -> Now {
        self.scheduler.world().now_at(self.site)
    }

    fn drive(
        &self,
        until: Option<Now>,
        step: &mut dyn FnMut(&mut dyn Home, Now) -> Step,
    ) -> Result<(), Error> {
        let mut end = None;
        loop {
            {
                let mut world = self.scheduler.world();
                if world.life_of(self.site) != self.life || world.is_over() {
                    return Err(Error::Unavailable("the process has ended".into()));
                }
                let time = world.time();
                let heard = world.inside_news(self.site);
                let said = match self.site {
                    Site::Client(client) => world.step_at_client(client, step),
                    Site::Server(n) => world.step_inside(n, step),
                };
                if said == Step::Done {
                    return Ok(());
                }
                let until = until.map(|until| world.when_at(self.site, until));
                let end = *end.get_or_insert(until.unwrap_or(time + self.patience_us));
                // The machine may answer at the end of the very step that asks.
                if world.inside_news(self.site) != heard {
                    continue;
                }
                if time >= end {
                    return Err(match self.site {
                        Site::Client(client) if world.clients[client].machine.availability().is_none() => {
                            Error::Unavailable("no connection".into())
                        }
                        _ => Error::Timeout,
                    });
                }
                world.listen(self.me, self.site, end);
            }
            self.scheduler.pass(self.me);
        }
    }

    fn back_off(&self, us: u64) {
        self.scheduler.sleep(self.me, us);
    }

    fn pause(&self) {
        self.scheduler.sleep(self.me, PAUSE_US);
    }
}

/// Time that a thread waits before it learns that the server is gone, in microseconds.
const PAUSE_US: u64 = 10_000;
