//! The views that there were, and what each kept of those before it.
//!
//! A view begins with an ordered entry that names the last stamp it keeps. A client of an older view may have
//! received stamps beyond that: they were lost, and what it has of them never happened. Stamps need not be
//! dense, so the view's own stamp would hide such a loss. The invariant: numbers rise, kept stamps never
//! fall.

use std::collections::VecDeque;

use tercel_wire::id::{Stamp, ViewId};

use super::digest::{RowSum, view_word};
use crate::limits;
use crate::mutant;

/// The views that are remembered, each with the last stamp that it kept.
#[derive(Debug, Clone, Default)]
pub struct Views {
    /// The oldest first.
    list: VecDeque<(ViewId, Stamp)>,
    /// The number of the last view that may have lost entries of those before it; 0 if none has.
    unsure: u32,
}

impl Views {
    /// A view begins, which may have lost entries of those before it. Beyond [`limits::VIEWS_MAX`] the oldest
    /// is forgotten: its clients begin anew.
    pub fn begin(&mut self, view: ViewId, kept: Stamp, is_unsure: bool) {
        if is_unsure {
            self.unsure = view.number;
        }
        self.list.push_back((view, kept));
        while self.list.len() > mutant::bound(limits::VIEWS_MAX, 6) {
            self.list.pop_front();
        }
    }

    /// The newest view.
    pub fn last(&self) -> ViewId {
        self.list.back().map_or(ViewId::NONE, |(view, _)| *view)
    }

    /// Says whether the view is one of this history, as far as it is remembered.
    pub fn knows(&self, view: ViewId) -> bool {
        self.list.iter().any(|(v, _)| *v == view)
    }

    /// Says whether entries of a view may be missing in this history, so that what is not here may have been.
    pub fn may_miss_of(&self, view: ViewId) -> bool {
        view.number < self.unsure || !self.knows(view)
    }

    /// The number of the last view that may have lost entries of those before it; 0 if none has.
    pub(super) fn unsure(&self) -> u32 {
        self.unsure
    }

    /// The views that were saved, with the number of the last unsure one.
    pub(super) fn with_unsure(self, unsure: u32) -> Views {
        Views { unsure, ..self }
    }

    /// Says whether a client of `view` that received stamps up to `heard` may know something that is not in
    /// this history. Then the view is not of this history, or its successor kept less.
    pub fn contradict(&self, view: ViewId, heard: Stamp) -> bool {
        match self.list.iter().position(|(v, _)| *v == view) {
            None => true,
            Some(i) => self.list.get(i + 1).is_some_and(|(_, kept)| heard > *kept),
        }
    }

    /// All of them, the oldest first, each with the last stamp that it kept.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (ViewId, Stamp)> {
        self.list.iter().copied()
    }

    /// Replaces all views by `view`, whose number becomes at least that of the last one. No client may go on
    /// in a history whose end is lost.
    pub fn skip_to(&mut self, view: ViewId, kept: Stamp) {
        let number = self.last().number.max(view.number);
        self.list.clear();
        self.list.push_back((ViewId { number, ..view }, kept));
        self.unsure = number;
    }

    /// Replaces all views by one, whatever its number: the numbers were used up, and the history goes on
    /// under others. No client of it may go on.
    pub fn renumber(&mut self, view: ViewId, kept: Stamp) {
        self.list.clear();
        self.list.push_back((view, kept));
    }

    /// For [`super::Replica::digest`].
    pub fn digest(&self) -> u64 {
        let mut sum = RowSum::default();
        self.list.iter().for_each(|(view, kept)| sum.add(&[view_word(*view), kept.0]));
        if self.unsure > 0 {
            sum.add(&[self.unsure.into()]);
        }
        sum.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Views {
        let mut views = Views::default();
        views.begin(ViewId::new(1, 11), Stamp(0), false);
        views.begin(ViewId::new(2, 22), Stamp(10), false);
        views.begin(ViewId::new(3, 33), Stamp(15), false);
        views
    }

    #[test]
    fn a_client_is_contradicted_by_what_the_next_view_did_not_keep() {
        let views = three();
        assert!(!views.contradict(ViewId::new(1, 11), Stamp(10)));
        assert!(views.contradict(ViewId::new(1, 11), Stamp(11)));
        assert!(!views.contradict(ViewId::new(2, 22), Stamp(15)));
        assert!(views.contradict(ViewId::new(2, 22), Stamp(16)));
        assert!(!views.contradict(ViewId::new(3, 33), Stamp(1_000)));
    }

    #[test]
    fn a_view_of_another_incarnation_or_never_heard_of_is_none_of_this_history() {
        let views = three();
        assert!(views.contradict(ViewId::new(3, 34), Stamp(0)));
        assert!(views.contradict(ViewId::new(4, 33), Stamp(0)));
        assert!(views.knows(ViewId::new(2, 22)) && !views.knows(ViewId::new(2, 0)));
    }

    #[test]
    fn views_before_an_unsure_one_may_miss_entries() {
        let mut views = three();
        assert!(!views.may_miss_of(ViewId::new(1, 11)) && views.may_miss_of(ViewId::new(1, 12)));
        views.begin(ViewId::new(4, 44), Stamp(15), true);
        views.begin(ViewId::new(5, 55), Stamp(16), false);
        assert!(views.may_miss_of(ViewId::new(3, 33)) && !views.may_miss_of(ViewId::new(4, 44)));
    }

    #[test]
    fn the_oldest_views_are_forgotten_beyond_the_bound() {
        let mut views = Views::default();
        for n in 1..=limits::VIEWS_MAX as u32 + 1 {
            views.begin(ViewId::new(n, n), Stamp(n.into()), false);
        }
        assert!(!views.knows(ViewId::new(1, 1)) && views.knows(ViewId::new(2, 2)));
        assert_eq!(views.iter().len(), limits::VIEWS_MAX);
    }
}
