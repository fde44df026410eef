//! The order of a host's loop: which source is served next, and for how long.
//!
//! Beside its sockets a host has calls in lines of shared memory, messages in channels there, packets, and
//! methods that wait to be run. Between two waits for events it asks [`Turns::next`]; in a turn it serves the
//! stages of [`TURN`]. It reports what its looks have found. It reads the clock only where it is asked for
//! the time, because a call in a line takes less than the clock does.
//!
//! The invariant: a source that has something is served once the others have had their slices.

use crate::limits;
use crate::time::Now;

/// A part of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The events that were taken.
    Events,
    /// Packets that have come: [`Turns::next_socket`].
    Datagrams,
    /// Calls in lines: so many at most of all channels together, beginning with another channel each time.
    Lines(u32),
    /// A piece of the messages in each channel.
    Channels,
    /// Methods that are due.
    Methods,
    /// The connections that wait for a turn: one slice, once the effects of earlier stages are carried out.
    RunQueue,
    /// The time, if the machine asks for it.
    Time,
}

/// The stages of a turn, in order. The effects of all are carried out at its end.
pub const TURN: [Stage; 8] = [
    Stage::Events,
    Stage::Datagrams,
    Stage::Lines(limits::LINES_AT_ONCE),
    Stage::Channels,
    Stage::Methods,
    Stage::RunQueue,
    Stage::Time,
    Stage::Methods,
];

/// The next step of a loop that is between two turns.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Serve calls in lines, as [`Stage::Lines`], and report them to [`Turns::served`].
    Lines(u32),
    /// Take the events that have come, and do not wait for any.
    Events,
    /// Look at the channels once more, for as long as a sleep costs. If that is in vain, wait for events; if
    /// not, ask [`Turns::found`].
    Look,
    /// Make a turn without events.
    Turn,
}

/// Decides what a host serves next.
#[derive(Debug, Default)]
pub struct Turns {
    /// Calls in lines since the clock was read.
    lines: u32,
    /// A channel has something that is no call in a line.
    has_messages: bool,
    /// The moments at which events are taken, although lines or channels have more.
    lines_end: Option<Now>,
    channels_end: Option<Now>,
    receives: Receives,
    /// Turns since threads began to wait for the machine.
    turns_waited: u32,
}

/// The sockets for datagrams in a turn.
#[derive(Debug, Default)]
struct Receives {
    sockets: usize,
    /// The socket whose turn it is.
    at: usize,
    /// Receives that are left to it, and sockets that are left in the turn, itself included.
    left: u32,
    sockets_left: usize,
    end: Now,
}

impl Turns {
    /// Begins what comes between two waits for events.
    pub fn begin(&mut self) {
        (self.lines, self.has_messages) = (0, false);
        (self.lines_end, self.channels_end) = (None, None);
    }

    /// Decides the next step. `waits` says whether a connection waits in the run queue, and `has_packets`
    /// whether packets may have come. `look` is a short look at the channels.
    #[inline]
    pub fn next(
        &mut self,
        (waits, has_packets): (bool, bool),
        look: impl FnOnce() -> bool,
        clock: impl FnOnce() -> Now,
    ) -> Next {
        if !waits && !self.has_messages && look() {
            if self.lines < limits::LINES_AT_ONCE {
                return Next::Lines(limits::LINES_AT_ONCE);
            }
            self.lines = 0;
            return match is_over(&mut self.lines_end, clock(), limits::LINES_SLICE_US) {
                true => Next::Events,
                false => Next::Lines(limits::LINES_AT_ONCE),
            };
        }
        self.has_messages = false;
        if waits || has_packets { Next::Events } else { Next::Look }
    }

    /// So many calls in lines were served, and perhaps a channel has messages behind them. A look that found
    /// neither counts as a call.
    #[inline]
    pub fn served(&mut self, calls: u32, has_messages: bool) {
        (self.lines, self.has_messages) = (self.lines + calls.max(1), has_messages);
    }

    /// The long look has found something: decides between a turn for it and events.
    pub fn found(&mut self, now: Now) -> Next {
        match is_over(&mut self.channels_end, now, limits::CHANNELS_SLICE_US) {
            true => Next::Events,
            false => Next::Turn,
        }
    }

    /// Begins [`Stage::Datagrams`], with so many sockets.
    pub fn begin_datagrams(&mut self, now: Now, sockets: usize) {
        let (at, left) = (self.receives.at, limits::RECEIVES_AT_ONCE);
        let end = now.plus_us(limits::DATAGRAMS_SLICE_US);
        self.receives = Receives { sockets, at, left, sockets_left: sockets, end };
    }

    /// Decides which of the sockets for datagrams is received from next; `None` ends the stage.
    pub fn next_socket(
        &mut self,
        is_ready: impl Fn(usize) -> bool,
        clock: impl Fn() -> Now,
    ) -> Option<usize> {
        let Receives { sockets, at, left, sockets_left, end } = &mut self.receives;
        while *sockets_left > 0 {
            if *left > 0 && is_ready(*at) {
                if clock() < *end {
                    *left -= 1;
                    return Some(*at);
                }
                // The next turn begins with the socket after this one.
                *sockets_left = 1;
            }
            *at = (*at + 1) % *sockets;
            (*left, *sockets_left) = (limits::RECEIVES_AT_ONCE, *sockets_left - 1);
        }
        None
    }

    /// Decides, once in each turn, whether the loop waits for a thread that wants the machine.
    pub fn is_for_threads(&mut self, is_wanted: bool) -> bool {
        self.turns_waited = if is_wanted { self.turns_waited + 1 } else { 0 };
        let is_due = self.turns_waited >= limits::TURNS_AT_ONCE;
        if is_due {
            self.turns_waited = 0;
        }
        is_due
    }
}

/// Says whether a slice is over, which begins when this is first asked.
fn is_over(end: &mut Option<Now>, now: Now, slice_us: u64) -> bool {
    now >= *end.get_or_insert(now.plus_us(slice_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sources of a host: two sockets for datagrams, calls in lines, messages in channels, connections.
    const SOURCES: usize = 5;
    const LINES: usize = 2;
    const MESSAGES: usize = 3;
    const CONNS: usize = 4;

    /// A host with a simulated clock.
    #[derive(Default)]
    struct Host {
        turns: Turns,
        now: u64,
        /// Pieces of work that each source has, and when it was served last.
        has: [u32; SOURCES],
        served_at: [u64; SOURCES],
        /// The longest time for which a source with work was not served.
        waited_us: u64,
        /// A connection waits in the run queue.
        waits: bool,
    }

    impl Host {
        /// Serves a piece of work, which takes so long that the slices end amid the work of each source.
        fn serve(&mut self, source: usize) -> bool {
            let has_any = self.has[source] > 0;
            if has_any {
                self.waited_us = self.waited_us.max(self.now - self.served_at[source]);
                self.now += 10;
                (self.has[source], self.served_at[source]) = (self.has[source] - 1, self.now);
            }
            has_any
        }

        fn serve_lines(&mut self, calls: u32) {
            let served = (0..calls).filter(|_| self.serve(LINES)).count();
            self.turns.served(served as u32, self.has[MESSAGES] > 0);
        }

        fn next_socket(&mut self) -> Option<usize> {
            let (has, now) = (&self.has, self.now);
            self.turns.next_socket(|at| has[at] > 0, || Now(now))
        }

        fn turn(&mut self, has_events: bool) {
            for stage in TURN {
                match stage {
                    Stage::Events if has_events => self.waits = self.serve(CONNS) && self.has[CONNS] > 0,
                    Stage::RunQueue if self.waits => self.waits = self.serve(CONNS) && self.has[CONNS] > 0,
                    Stage::Datagrams => {
                        self.turns.begin_datagrams(Now(self.now), 2);
                        while let Some(at) = self.next_socket() {
                            self.serve(at);
                        }
                    }
                    Stage::Lines(calls) => self.serve_lines(calls),
                    Stage::Channels => _ = self.serve(MESSAGES),
                    _ => {}
                }
            }
        }

        fn step(&mut self) {
            let has_arrivals = self.has[LINES].max(self.has[MESSAGES]) > 0;
            let waits = (self.waits, self.has[0].max(self.has[1]) > 0);
            let now = Now(self.now);
            let next = match self.turns.next(waits, || has_arrivals, || now) {
                Next::Look if has_arrivals => self.turns.found(now),
                next => next,
            };
            match next {
                Next::Lines(calls) => self.serve_lines(calls),
                Next::Turn => self.turn(false),
                Next::Events | Next::Look => {
                    self.turn(true);
                    self.turns.begin();
                }
            }
        }
    }

    #[test]
    fn no_source_starves_beside_those_that_flood() {
        // Each slice once, the work in which it ends, and the bounded stages of a turn.
        const WAIT_MAX_US: u64 = 100 + 160 + 20 + 2 * (500 + 160 + 50);
        for floods in 0..1 << SOURCES {
            let has = std::array::from_fn(|source| if floods >> source & 1 == 1 { u32::MAX } else { 1 });
            let mut host = Host { has, ..Host::default() };
            while host.now < 20_000 && host.has.iter().any(|has| *has > 0) {
                host.step();
            }
            let left: Vec<u32> = host.has.into_iter().filter(|has| *has == 1).collect();
            assert!(left.is_empty() && host.waited_us <= WAIT_MAX_US, "{floods:b}: {} us", host.waited_us);
        }
    }

    #[test]
    fn clock_is_read_once_in_so_many_lines() {
        let mut turns = Turns::default();
        let (mut calls, mut reads) = (0, 0);
        let clock = |reads: &mut u64| {
            *reads += 1;
            Now(10 * *reads)
        };
        while turns.next((false, false), || true, || clock(&mut reads)) == Next::Lines(limits::LINES_AT_ONCE)
        {
            turns.served(1, false);
            calls += 1;
        }
        assert_eq!(calls, 11 * u64::from(limits::LINES_AT_ONCE));
        assert_eq!(reads * 10, limits::LINES_SLICE_US + 10);
    }

    #[test]
    fn messages_in_a_channel_end_lines_of_others() {
        let mut turns = Turns::default();
        turns.served(3, true);
        assert_eq!(turns.next((false, false), || true, || Now(0)), Next::Look);
        assert_eq!(turns.found(Now(0)), Next::Turn);
        assert_eq!(turns.found(Now(limits::CHANNELS_SLICE_US)), Next::Events);
    }

    #[test]
    fn threads_that_wait_have_their_turn() {
        let mut turns = Turns::default();
        let wanted = [true, true, false, true, true, true, true, true];
        let due = wanted.map(|is_wanted| turns.is_for_threads(is_wanted));
        assert_eq!(due.iter().position(|due| *due), Some(6));
        assert!(!due[7]);
    }
}
