//! The end of a server: it is stopped, cannot go on, or gives its directory to a copy.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use tercel_engine::server::Input;
use tercel_engine::time::Now;
use tercel_events::{Event, Kind};
use tercel_wire::id::Stamp;

use super::{Loop, Peer};
use crate::server::group::Group;
use crate::server::inside::Core;
use crate::server::{Post, ServerError};

/// The longest wait of a clean stop for ordered installs. It does not wait for room on the disk: everything
/// is in the log.
const STOP_MAX: Duration = Duration::from_secs(60);

/// The end of the server.
#[derive(Default)]
pub(super) struct End {
    /// The reason for which it cannot go on.
    pub(super) failed: Option<String>,
    /// The time by which the server stops.
    pub(super) by: Option<Instant>,
    /// The stamp that was visible when the stop began.
    begun: Stamp,
    /// A copy of the space takes the place of pages and log when this process has let go of them.
    pub(super) adopts: bool,
    /// A copy has come, and it is not decided yet whether it is adopted.
    pub(super) copied: bool,
    /// Threads that wait until no call is under way.
    pub(super) drains: Vec<Sender<()>>,
}

impl Loop {
    /// Says whether the loop is over after a turn.
    ///
    /// # Errors
    /// If it cannot go on.
    pub(super) fn is_over(&mut self, core: &Core) -> Result<bool, ServerError> {
        if let Some(why) = self.end.failed.take() {
            // The answers that are ready leave before the sockets close.
            self.queue.flush();
            return Err(ServerError::Stopped(why));
        }
        if self.end.adopts {
            self.queue.flush();
            self.held.0.adopt_copy()?;
            return Err(ServerError::Replaced);
        }
        if std::mem::take(&mut self.end.copied) {
            self.group.iter_mut().try_for_each(Group::copy_is_over)?;
        }
        let is_over = self.end.by.is_some_and(|by| Instant::now() >= by || self.may_stop(core));
        if is_over {
            self.queue.flush();
        }
        Ok(is_over)
    }

    /// Begins a clean stop, or ends one that is under way.
    pub(super) fn stop(&mut self, core: &mut Core, now: Now) {
        // Calls that are under way are broken off now.
        self.end.drains.clear();
        self.workers.inside().lending.stop();
        // Told again, it waits for nothing: all that was acknowledged is in the log.
        let last = match self.end.by {
            Some(_) => Duration::ZERO,
            None => {
                self.end.begun = core.machine.visible();
                STOP_MAX
            }
        };
        self.end.by = Some(Instant::now() + last);
        // A client that went on committing would keep the buffer from ever being empty. Ordered commits are
        // not lost: clients ask for them when there is a server again.
        for conn in self.conns.keys().copied().collect::<Vec<_>>() {
            self.gone(core, now, conn);
        }
    }

    /// No new call is begun: the thread is told when none is under way.
    pub(super) fn drain(&mut self, core: &mut Core, now: Now, tell: Sender<()>) {
        // Calls were broken off by a stop, so they have not come to their end.
        if self.end.by.is_none() {
            self.end.drains.push(tell);
            core.take(now, Input::Drain);
        }
    }

    pub(super) fn tell_drained(&mut self, core: &Core) {
        if !self.end.drains.is_empty() && core.machine.is_drained() {
            // One that waits no longer is gone.
            self.end.drains.drain(..).for_each(|drain| _ = drain.send(()));
        }
    }

    /// The reason for which there is no machine any more: the thread that lost it has reported it.
    pub(super) fn lost(batch: &mut Vec<Event<Post>>) -> ServerError {
        let said = batch.drain(..).find_map(|event| match event.kind {
            Kind::Posted(Post::Panicked(why)) => Some(why),
            _ => None,
        });
        ServerError::Stopped(said.unwrap_or_else(|| "a transaction inside of it panicked".into()))
    }

    /// Says whether everything is stored, or is in the log while the disk has no room for the store. What the
    /// log has no room for was never acknowledged.
    fn may_stop(&self, core: &Core) -> bool {
        let is_logged = self.group.is_some() || self.log.state().is_short || core.machine.is_all_visible();
        core.machine.may_stop(self.end.begun) || self.disk.disk_full && is_logged
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.held.1.clear();
        self.workers.inside().lending.close();
        // Sockets close with the queue; a client that waits at a pipe must be told.
        for peer in self.conns.values() {
            if let Peer::Memory(pipe) = peer {
                pipe.close();
            }
        }
    }
}
