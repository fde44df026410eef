//! Entries that are ordered and not yet visible: the tentative suffix of a leader's entries.
//!
//! The invariant: entries become visible in the order of their stamps, each once everything up to it is
//! stable at its own level.

use std::collections::VecDeque;
use std::sync::Arc;

use tercel_wire::id::{OpId, Oref, Stamp};

use crate::order::Level;

/// The entries that are ordered and not yet visible, in the order of their stamps.
#[derive(Debug, Default)]
pub(super) struct Flights {
    queue: VecDeque<Flight>,
    /// Up to where everything is stable, by level.
    stable: [Stamp; 3],
}

/// An entry that is ordered and not yet visible.
#[derive(Debug, Clone)]
pub(crate) struct Flight {
    pub stamp: Stamp,
    /// The level of safety that it needs.
    pub level: Level,
    pub op: Option<OpId>,
    /// The operation is a call of a method: its answer is what that returned.
    pub is_call: bool,
    /// The references that it changed, as readers know them.
    pub changed: Arc<[Oref]>,
}

impl Flights {
    pub(super) fn push(&mut self, flight: Flight) {
        self.queue.push_back(flight);
    }

    /// Everything up to the stamp is stable at the level; gives the entries that are visible now.
    pub(super) fn stable(&mut self, stamp: Stamp, level: Level) -> Vec<Flight> {
        for below in &mut self.stable[..=level as usize] {
            *below = (*below).max(stamp);
        }
        let stable = self.stable;
        let mut shown = Vec::new();
        while let Some(flight) = self.queue.pop_front_if(|f| f.stamp <= stable[f.level as usize]) {
            shown.push(flight);
        }
        shown
    }

    pub(super) fn all(&mut self) -> Vec<Flight> {
        self.queue.drain(..).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Flight> {
        self.queue.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_visible_once_all_before_it_are_stable_at_their_own_levels() {
        let mut flights = Flights::default();
        for (stamp, level) in [(1, Level::Agreed), (3, Level::Disk), (4, Level::Agreed)] {
            flights.push(Flight { stamp: Stamp(stamp), level, op: None, is_call: false, changed: [].into() });
        }
        let stamps = |shown: Vec<Flight>| shown.iter().map(|f| f.stamp.0).collect::<Vec<_>>();
        assert_eq!(stamps(flights.stable(Stamp(4), Level::Agreed)), [1]);
        assert_eq!(stamps(flights.stable(Stamp(4), Level::Memory)), []);
        assert_eq!(stamps(flights.stable(Stamp(2), Level::Disk)), []);
        assert_eq!(stamps(flights.stable(Stamp(3), Level::Disk)), [3, 4]);
        assert!(flights.is_empty());
    }
}
