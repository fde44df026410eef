//! Links to members of other rings. Rings come together only over links that lead both ways between all of
//! their members, so that one that leads one way does not end a ring again and again.
//!
//! Each packet shows that its sender is heard, and joins and beacons name those whom their sender hears. Each
//! member writes into the token the strangers with whom its link leads both ways. Those that all have written
//! are let in.

use tercel_machine::mutant::{Rule, dropped};
use tercel_machine::time::Now;

use super::members::{MEMBERS_MAX, Place, Set};
use super::{Output, Ring, State};

/// Beacons that may be lost before a link counts as broken.
const BEACONS_LOST: u64 = 3;

/// Until when the links to others count.
#[derive(Debug, Default)]
pub(super) struct Links {
    heard: [Now; MEMBERS_MAX],
    both_ways: [Now; MEMBERS_MAX],
}

impl Links {
    fn alive(until: &[Now], now: Now) -> Set {
        (0..MEMBERS_MAX as u8).map(Place).filter(|place| now < until[usize::from(place.0)]).collect()
    }

    /// Members from which something has come of late.
    pub(super) fn heard(&self, now: Now) -> Set {
        Links::alive(&self.heard, now)
    }

    /// The members among them that have said of late that they hear this one.
    pub(super) fn both_ways(&self, now: Now) -> Set {
        Links::alive(&self.both_ways, now)
    }
}

impl Ring {
    /// A packet has come straight from another member. Says whether that one was not heard before.
    pub(super) fn hear(&mut self, now: Now, from: Place) -> bool {
        let until = now.plus_us(BEACONS_LOST * self.config.beacon_us);
        let before = std::mem::replace(&mut self.links.heard[usize::from(from.0)], until);
        before <= now
    }

    /// Another member says whom it hears.
    pub(super) fn hears(&mut self, now: Now, from: Place, hears: Set, out: &mut Vec<Output>) {
        if hears.has(self.config.me) {
            let until = now.plus_us(BEACONS_LOST * self.config.beacon_us);
            let before = std::mem::replace(&mut self.links.both_ways[usize::from(from.0)], until);
            if before <= now && !self.current.members.has(from) {
                self.want_token(now, out);
            }
        }
    }

    /// Says whether a member of another ring may come into this one.
    pub(super) fn lets_in(&self, now: Now, place: Place) -> bool {
        let is_open = self.tokens.open.has(place) || dropped(Rule::LetInOneWay);
        self.state == State::Operational && is_open && !self.is_shunned(now, place)
    }
}
