//! A program inside of the server's process: its transactions run over the server itself.
//!
//! It lives and dies with the process. A server that recovers in the same process, after a deposition, is another server to
//! the same program.

use tercel_engine::server::Effects;
use tercel_engine::time::Now;
use tercel_engine::txn::local::{Local, LocalConfig};
use tercel_engine::txn::{Home, Step};

use super::World;
use crate::port::Site;

/// The state that the transactions of one process share.
pub(super) fn program() -> Local {
    Local::new(LocalConfig { transactions_max: 8, ..LocalConfig::default() })
}

impl World {
    /// The time by the clock of a process.
    pub(crate) fn now_at(&self, site: Site) -> Now {
        match site {
            Site::Client(client) => self.client_now(client),
            Site::Server => self.server.clock.now(self.time),
        }
    }

    /// When the clock of a process will show that.
    pub(crate) fn when_at(&self, site: Site, now: Now) -> u64 {
        match site {
            Site::Client(client) => self.clients[client].clock.when(now),
            Site::Server => self.server.clock.when(now),
        }
    }

    /// One step of a transaction inside of the server; it waits while there is none.
    pub(crate) fn step_inside(&mut self, step: &mut dyn FnMut(&mut dyn Home, Now) -> Step) -> Step {
        let now = self.server.clock.now(self.time);
        let Some(running) = &mut self.server.running else { return Step::Wait };
        let local = &mut self.server.inside;
        let mut out = Effects::default();
        let said = running.machine.inside(now, &mut out, |source| step(&mut local.over(source), now));
        self.perform(out);
        said
    }

    /// Counts the news that the server has told the program; `None` while there is no server.
    pub(crate) fn inside_news(&self) -> Option<u64> {
        self.server.running.as_ref().map(|running| running.machine.inside_news())
    }

    /// Tells the program if the server has news for it.
    pub(super) fn tell_inside(&mut self) {
        let news = self.inside_news();
        if self.server.inside_heard != news {
            self.server.inside_heard = news;
            self.happened(Site::Server);
        }
    }
}
