//! States of other spaces on which a space rests: all that the sessions had seen which changed it.
//!
//! The invariant of causal reads: a reader of the space at a stamp, and of other spaces in states that cover
//! the dependencies at that stamp, sees no effect without its cause. Dependencies only grow, so those of a
//! later stamp will do as well (Kordale and Ahamad's mutual consistency, with one entry a space). The
//! exception is a space that an operator has them forget.

use std::collections::BTreeMap;

use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::{SpaceId, Stamp};
use tercel_wire::vector::{Seen, VECTOR_MAX, Vector};

use super::digest::{RowSum, view_word};
use crate::mutant::{Rule, dropped};

/// The dependencies, and the stamp since which each is one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dependencies {
    on: Vector,
    since: BTreeMap<SpaceId, Stamp>,
}

impl Dependencies {
    /// The space rests on these, too, from this stamp on; on what it is to forget no longer.
    pub(super) fn join(&mut self, stamp: Stamp, on: &Vector) {
        if dropped(Rule::DependenciesForgotten) {
            *self = Dependencies::default();
        }
        for space in on.forgotten() {
            self.on.remove(space);
            self.since.remove(&space);
        }
        for (space, seen) in on.iter().filter(|(_, seen)| *seen != Seen::NOTHING) {
            if !self.on.get(space).is_some_and(|mine| mine.covers(&seen)) {
                self.on.add(space, seen);
                self.since.insert(space, stamp);
            }
        }
    }

    /// All of them.
    pub fn all(&self) -> &Vector {
        &self.on
    }

    /// The dependencies that changed after a stamp.
    pub fn after(&self, stamp: Stamp) -> Vector {
        let mut changed = Vector::default();
        let entries = self.on.iter().filter(|(space, _)| self.since.get(space).is_some_and(|at| *at > stamp));
        entries.for_each(|(space, seen)| changed.add(space, seen));
        changed
    }

    /// The stamp from which on all of a vector is among them, if it is.
    pub fn covered_since(&self, on: &Vector) -> Option<Stamp> {
        if on.forgotten().any(|space| self.on.get(space).is_some()) {
            return None;
        }
        let mut known = on.clone();
        on.forgotten().for_each(|space| known.remove(space));
        let since = |space| self.since.get(&space).copied().unwrap_or_default();
        self.on.covers(&known).then(|| known.iter().map(|(space, _)| since(space)).max().unwrap_or_default())
    }

    /// Says whether there is room for a vector.
    pub fn has_room_for(&self, on: &Vector) -> bool {
        let is_new = |space, seen| seen != Seen::NOTHING && self.on.get(space).is_none();
        let new = on.iter().filter(|(space, seen)| is_new(*space, *seen)).count();
        self.on.len() + new <= VECTOR_MAX
    }

    /// For [`super::Replica::digest`].
    pub(super) fn digest(&self) -> u64 {
        let mut sum = RowSum::default();
        for (space, Seen { view, at, done }) in self.on.iter() {
            sum.add(&[space.0, view_word(view), at.0, done.0]);
        }
        sum.value()
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        self.on.encode(out);
        self.since.values().for_each(|stamp| out.put_u64(stamp.0));
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<Dependencies, DecodeError> {
        let on = Vector::decode(r)?;
        let mut since = BTreeMap::new();
        for (space, _) in on.iter() {
            let stamp = Stamp(r.u64()?);
            if stamp > Stamp::LAST {
                return Err(DecodeError::BadField("stamp"));
            }
            since.insert(space, stamp);
        }
        Ok(Dependencies { on, since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tercel_wire::id::ViewId;

    fn on(entries: &[(u64, u64)]) -> Vector {
        let mut on = Vector::default();
        for (space, at) in entries {
            on.add(SpaceId(*space), Seen::at(ViewId::new(1, 1), Stamp(*at)));
        }
        on
    }

    #[test]
    fn dependencies_grow_and_know_since_when() {
        let mut all = Dependencies::default();
        all.join(Stamp(10), &on(&[(1, 5), (2, 5)]));
        all.join(Stamp(20), &on(&[(1, 4), (2, 7)]));
        assert_eq!(all.all(), &on(&[(1, 5), (2, 7)]));
        assert_eq!(all.after(Stamp(10)), on(&[(2, 7)]));
        assert_eq!(all.after(Stamp(20)), Vector::default());
        assert_eq!(all.covered_since(&on(&[(1, 5)])), Some(Stamp(10)));
        assert_eq!(all.covered_since(&on(&[(1, 5), (2, 6)])), Some(Stamp(20)));
        assert_eq!(all.covered_since(&on(&[(2, 8)])), None);
        let full: Vec<_> = (0..VECTOR_MAX as u64).map(|space| (space, 1)).collect();
        assert!(all.has_room_for(&on(&full)) && !all.has_room_for(&on(&[&full[..], &[(100, 1)]].concat())));
    }

    #[test]
    fn forgotten_space_makes_room_for_another() {
        let full: Vec<_> = (0..VECTOR_MAX as u64).map(|space| (space, 1)).collect();
        let mut all = Dependencies::default();
        all.join(Stamp(10), &on(&full));
        let forget = Vector::forgetting(SpaceId(7));
        assert!(all.covered_since(&forget).is_none() && all.has_room_for(&forget));
        all.join(Stamp(20), &forget);
        assert_eq!((all.covered_since(&forget), all.all().len()), (Some(Stamp::ZERO), VECTOR_MAX - 1));
        assert!(all.has_room_for(&on(&[(100, 1)])) && all.all().get(SpaceId(7)).is_none());
    }

    #[test]
    fn saved_dependencies_come_back() {
        let mut all = Dependencies::default();
        all.join(Stamp(10), &on(&[(1, 5), (2, 5)]));
        let mut bytes = Vec::new();
        all.put(&mut bytes);
        assert_eq!(Dependencies::take(&mut Reader::new(&bytes)), Ok(all));
    }
}
