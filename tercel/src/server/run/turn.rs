//! The turns of the loop: what the engine's [`Turns`] and [`TURN`] have served next is served here.

use std::time::Instant;

use tercel_engine::rpc::ReplyBody;
use tercel_engine::schedule::{Decision, Next, Stage, TURN};
use tercel_engine::server::{Conn, Express, Input};
use tercel_engine::time::Now;
use tercel_events::Event;
use tercel_wire::id::ClientId;

use super::{Loop, unsent_bytes};
use crate::channel::{InLine, Large};
use crate::server::Post;
use crate::server::inside::Core;
use crate::server::shared::{Calls, Known};

impl Loop {
    /// Serves the connections in shared memory until events have their turn. Gives the moment until which the
    /// loop may wait for those.
    pub(super) fn serve_before_events(&mut self, core: &mut Core) -> Option<Instant> {
        self.turns.begin();
        loop {
            let waits = (!self.scheduler.is_idle(), self.hot.datagrams.is_ready());
            let mut next = self.turns.next(waits, || self.hot.channels.look_shortly(), || core.now());
            if next == Next::Look {
                let deadline = core.machine.deadline().map(|deadline| core.instant(deadline));
                let deadline = deadline.into_iter().chain(self.end.by).min();
                if !self.hot.channels.look(deadline) {
                    return deadline;
                }
                next = self.turns.found(core.now());
            }
            match next {
                Next::Lines(calls) => self.serve_lines(core, calls),
                Next::Turn if self.end.failed.is_none() => {
                    self.turn(core, &mut Vec::new());
                    self.queue.flush();
                }
                _ => return Some(core.instant(Now(0))),
            }
        }
    }

    /// Serves calls that came in lines of shared memory.
    fn serve_lines(&mut self, core: &mut Core, calls: u32) {
        // The time of the last turn, from which a caller's remaining time counts: a look at the clock takes
        // longer than a call.
        let now = self.hot.turned;
        let (served, has_messages) = self.hot.channels.serve(calls, &mut CoreCalls { core, now });
        self.turns.served(served, has_messages);
        // A method may have asked for a page, or its client be told of the state that it saw.
        if !core.out.list.is_empty() {
            self.perform(core);
        }
    }

    /// Takes what has happened, and does what is decided.
    pub(super) fn turn(&mut self, core: &mut Core, batch: &mut Vec<Event<Post>>) {
        let mut now = core.now();
        self.hot.turned = now;
        self.scheduler.begin_slice(now);
        for stage in TURN {
            match stage {
                Stage::Events => {
                    batch.drain(..).for_each(|event| self.event(core, now, event));
                    self.receive_rest(core, now);
                }
                Stage::Datagrams => {
                    let clock = core.clock();
                    self.hot.datagrams.serve(&mut self.turns, clock, &mut CoreCalls { core, now });
                }
                Stage::Lines(calls) => self.serve_lines(core, calls),
                Stage::Channels => self.hot.channels.hot().for_each(|at| self.take_shared(core, now, at)),
                Stage::Methods => core.run_calls(),
                Stage::RunQueue if self.scheduler.is_idle() => {}
                Stage::RunQueue => now = self.serve_run_queue(core),
                Stage::Time => self.take_time(core, now),
            }
        }
        if self.end.by.is_some() {
            core.machine.flush(&mut core.out);
        }
        self.perform(core);
        self.look_at_backlogs(core);
        if self.group.is_some() {
            self.journal.look(&core.machine);
        }
        self.tell_drained(core);
    }

    /// Gives the machine the time, if it wants that.
    fn take_time(&mut self, core: &mut Core, now: Now) {
        if core.machine.deadline().is_some_and(|deadline| deadline <= now) {
            self.look_at_disk(core, now);
            self.look_at_backpressured(core, now);
            self.end_with_certificates(core, now);
            core.take(now, Input::Time);
        }
    }

    /// Lets procedures go on whose clients have taken what they were sent.
    fn look_at_backlogs(&mut self, core: &Core) {
        let Loop { workers, conns, queue, hot, .. } = self;
        workers.settle(|client| {
            let Some(conn) = core.machine.conn_of(client) else { return 0 };
            if unsent_bytes(conns, queue, &hot.channels, conn) > 0 {
                queue.flush();
            }
            unsent_bytes(conns, queue, &hot.channels, conn)
        });
    }

    /// Takes what a connection in shared memory has sent.
    fn take_shared(&mut self, core: &mut Core, now: Now, at: usize) {
        let mut bytes = std::mem::take(&mut self.hot.received);
        bytes.clear();
        let taken = self.hot.channels.take(at, &mut bytes);
        let is_some = !bytes.is_empty();
        if let Some(peer) = self.hot.channels.get(at) {
            let (conn, unsent_bytes) = (peer.conn, peer.unsent_bytes());
            if is_some {
                self.received(core, now, conn, &bytes, unsent_bytes);
            }
            if taken.is_err() || self.hot.channels.is_over(at, !is_some) {
                self.gone(core, now, conn);
            }
        }
        self.hot.received = bytes;
    }

    /// Does and sends what was decided for the connections of the first slice, then serves the run queue for
    /// the second. The commits of the first go to the log before the second begins. Says what time it is
    /// then.
    fn serve_run_queue(&mut self, core: &mut Core) -> Now {
        self.perform(core);
        self.queue.flush();
        let now = core.now();
        self.scheduler.begin_slice(now);
        while let Some((conn, decision)) = self.serve_next(core, now) {
            self.obey(core, now, conn, decision);
            if self.scheduler.is_slice_over(core.now()) {
                break;
            }
        }
        now
    }

    fn serve_next(&mut self, core: &mut Core, now: Now) -> Option<(Conn, Decision)> {
        let (clock, handle) = core.frames(now);
        let unsent_bytes = |conn| unsent_bytes(&self.conns, &self.queue, &self.hot.channels, conn);
        self.scheduler.serve_next(unsent_bytes, clock, handle)
    }

    /// Reports to the machine the clients that still read, among the clients that are not received from.
    fn look_at_backpressured(&mut self, core: &mut Core, now: Now) {
        let unsent_bytes = |conn| unsent_bytes(&self.conns, &self.queue, &self.hot.channels, conn);
        for conn in self.scheduler.that_read(now, unsent_bytes) {
            core.take(now, Input::Alive(conn));
        }
    }
}

/// The machine, for the calls that come in lines.
struct CoreCalls<'a> {
    core: &'a mut Core,
    now: Now,
}

impl Calls for CoreCalls<'_> {
    fn client_of(&self, conn: Conn) -> Option<ClientId> {
        self.core.machine.client_of(conn)
    }

    #[inline]
    fn serve(&mut self, of: &mut Known, call: InLine<'_>, out: &mut ReplyBody<'_>) -> bool {
        let Known { client, place } = of;
        self.core.express(
            self.now,
            Express { client: *client, place, left_us: call.left_us, body: call.body, shared: None },
            out,
        )
    }

    fn serve_in_place(&mut self, of: &mut Known, large: &Large<'_, '_>, out: &mut ReplyBody<'_>) -> bool {
        let Known { client, place } = of;
        let mut head = [0; HEAD_BYTES];
        let (body, left_us) = (large.head(&mut head), large.left_us());
        let shared = Some(large.body());
        self.core.express(self.now, Express { client: *client, place, left_us, body, shared }, out)
    }
}

/// Bytes copied of a call that is read in place: its head, and a record of numbers.
const HEAD_BYTES: usize = 256;
