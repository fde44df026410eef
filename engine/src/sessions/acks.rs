//! Acknowledgements that the reuse of pages waits for: asked for at once, and not waited for for ever.
//!
//! A page that has returned is given out again once every session has acknowledged that. A client says by
//! itself only every keepalive what it has heard of, so the server asks each session that is behind, with the
//! stream. The invariant: no session holds up reuse for longer than two keepalives since it was asked, or
//! [`limits::HELD_UP_US`] if it is busy.

use tercel_wire::id::{ClientId, Stamp};
use tercel_wire::message::Refusal;

use super::{Cx, Sessions};
use crate::effect::Conn;
use crate::leader::Behind;
use crate::limits;
use crate::table::Set;
use crate::time::Now;

/// The acknowledgement that a session owes.
#[derive(Debug, Default)]
pub(super) struct Asking {
    owed: Option<Owed>,
    /// When it was asked last.
    asked: Option<Now>,
}

/// The first stamp that a session was asked for and has not acknowledged.
#[derive(Debug)]
struct Owed {
    stamp: Stamp,
    since: Now,
    /// Since when it has had no reason to be late.
    idle: Now,
}

impl Asking {
    /// Says whether the client is to be asked now for `wanted`.
    fn is_due(&mut self, now: Now, wanted: Stamp, every_us: u64) -> bool {
        if self.asked.is_some_and(|asked| now.since_us(asked) < every_us) {
            return false;
        }
        self.owed.get_or_insert(Owed { stamp: wanted, since: now, idle: now });
        self.asked = Some(now);
        true
    }

    /// Says whether the client, which has acknowledged everything up to `acked`, was asked for too long.
    fn is_over(&mut self, now: Now, acked: Stamp, silence_us: u64, is_busy: bool) -> bool {
        self.owed.take_if(|owed| owed.stamp <= acked);
        let Some(owed) = &mut self.owed else { return false };
        if is_busy {
            owed.idle = now;
        }
        now.since_us(owed.idle) > silence_us || now.since_us(owed.since) > limits::HELD_UP_US
    }
}

impl Sessions {
    /// Asks the sessions that returned pages wait for to acknowledge, and ends those that were asked for too
    /// long.
    pub(super) fn ask_behind(&mut self, cx: &mut Cx) {
        let Some(returned) = cx.work.replica.places.last_return() else { return };
        let wanted = returned.min(cx.work.pages.visible());
        let (behind, working) = match cx.leader.as_ref() {
            Some(leader) => (leader.behind(wanted), leader.working()),
            None => (self.readers_behind(wanted), self.readers_working()),
        };
        if behind.is_empty() {
            return;
        }
        let every_us = ASK_EVERY_US.max(behind.len() as u64 * ASK_OTHER_US);
        for of in behind {
            if self.is_over(&of, &working, cx) {
                let text = "the client did not acknowledge within two keepalives what the server told it, and pages \
                            wait for that to be given out again: connect again";
                self.turn_away(of.conn, Refusal::Unavailable, text, cx);
            } else if !self.is_resuming(of.conn)
                && let Some(session) = self.all.get_mut(&of.conn)
                && session.asking.is_due(cx.work.now, wanted, every_us)
            {
                session.news.ack = true;
                self.stream_to(of.conn, cx);
            }
        }
    }

    /// Says whether the client was asked for too long. A busy client is not late: its operation keeps the
    /// base that it had, and messages sent before the question may take a while to arrive.
    fn is_over(&mut self, behind: &Behind, working: &Set<ClientId>, cx: &Cx) -> bool {
        let Some(session) = self.all.get_mut(&behind.conn) else { return false };
        let silence_us = 2 * cx.work.config.keepalive_ms as u64 * 1000;
        // A member that follows looks after its readers itself, and ends those that are late.
        let is_busy = session.is_passed_on
            || session.parts.is_arriving()
            || session.read.is_some_and(|read| cx.work.now.since_us(read) <= silence_us)
            || working.contains(&behind.client);
        session.asking.is_over(cx.work.now, behind.acked, silence_us, is_busy)
    }

    /// A client whose frames wait takes what it is sent: that is no silence.
    pub(crate) fn alive(&mut self, conn: Conn, now: Now) {
        if let Some(session) = self.all.get_mut(&conn) {
            (session.heard, session.read) = (now, Some(now));
        }
    }
}

/// The shortest interval between two questions to one session. A client that answers at once is asked once;
/// others are asked again, for their operations may have ended.
const ASK_EVERY_US: u64 = 100_000;

/// Microseconds from one question to the next, over all sessions: five thousand a second, whose answers take
/// the loop some hundredth of its time.
const ASK_OTHER_US: u64 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE_US: u64 = 4_000_000;

    fn asked() -> Asking {
        let mut asking = Asking::default();
        assert!(asking.is_due(Now(0), Stamp(5), ASK_EVERY_US));
        asking
    }

    #[test]
    fn session_is_asked_ten_times_a_second() {
        let mut asking = asked();
        let asks = (0..1_000).filter(|ms| asking.is_due(Now(ms * 1_000), Stamp(5 + ms), ASK_EVERY_US));
        assert_eq!(asks.count(), 9);
    }

    #[test]
    fn session_that_acknowledges_what_it_was_asked_for_first_is_not_late() {
        let mut asking = asked();
        asking.is_due(Now(SILENCE_US), Stamp(9), ASK_EVERY_US);
        assert!(asking.is_over(Now(SILENCE_US + 1), Stamp(4), SILENCE_US, false));
        assert!(!asking.is_over(Now(SILENCE_US + 1), Stamp(5), SILENCE_US, false));
        // What it owes now counts from the next question.
        asking.is_due(Now(2 * SILENCE_US), Stamp(9), ASK_EVERY_US);
        assert!(!asking.is_over(Now(3 * SILENCE_US), Stamp(5), SILENCE_US, false));
        assert!(asking.is_over(Now(3 * SILENCE_US + 1), Stamp(5), SILENCE_US, false));
    }

    #[test]
    fn busy_session_has_more_time_and_not_for_ever() {
        let mut asking = asked();
        let busy = Now(SILENCE_US + 1);
        assert!(!asking.is_over(busy, Stamp(4), SILENCE_US, true));
        // Its operation ends, and the answer may take as long again.
        assert!(!asking.is_over(busy.plus_us(SILENCE_US), Stamp(4), SILENCE_US, false));
        assert!(asking.is_over(busy.plus_us(SILENCE_US + 1), Stamp(4), SILENCE_US, false));
        let end = Now(limits::HELD_UP_US);
        assert!(!asking.is_over(end, Stamp(4), SILENCE_US, true));
        assert!(asking.is_over(end.plus_us(1), Stamp(4), SILENCE_US, true));
    }
}
