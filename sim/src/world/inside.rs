//! A program inside of the server's process: its transactions run over the server itself.
//!
//! It lives and dies with the process. A server that recovers in the same process, after a deposition, is
//! another server to the same program.

use tercel_engine::server::Effects;
use tercel_engine::server::{Local, LocalConfig};
use tercel_engine::time::Now;
use tercel_engine::txn::{Home, Step};

use super::World;
use super::node::Process;
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
            Site::Server(n) => self.nodes[n].clock.now(self.time),
        }
    }

    /// When the clock of a process will show that.
    pub(crate) fn when_at(&self, site: Site, now: Now) -> u64 {
        match site {
            Site::Client(client) => self.clients[client].clock.when(now),
            Site::Server(n) => self.nodes[n].clock.when(now),
        }
    }

    /// One step of a transaction inside of the server; it waits while there is none.
    pub(crate) fn step_inside(&mut self, n: usize, step: &mut dyn FnMut(&mut dyn Home, Now) -> Step) -> Step {
        let now = self.nodes[n].clock.now(self.time);
        let Process { node, inside, .. } = &mut self.nodes[n];
        let Some(machine) = node.machine_mut() else { return Step::Wait };
        let mut out = Effects::default();
        let said = machine.inside(now, inside, &mut out, |home| step(home, now));
        self.perform(n, out);
        said
    }

    /// Counts the news that a server has told the program inside of it; `None` while there is none.
    pub(crate) fn inside_news(&self, site: Site) -> Option<u64> {
        match site {
            Site::Client(_) => None,
            Site::Server(n) => self.nodes[n].machine().map(|machine| machine.inside_news()),
        }
    }

    /// Tells the program if the server has news for it.
    pub(super) fn tell_inside(&mut self, n: usize) {
        let news = self.inside_news(Site::Server(n));
        if self.nodes[n].inside_heard != news {
            self.nodes[n].inside_heard = news;
            self.happened(Site::Server(n));
        }
    }
}
