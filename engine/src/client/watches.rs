//! Watches of this client's programs: objects whose changes the programs want reported.
//!
//! A change of a watched object waits here until its watch takes it; further changes of the object join it.
//! The page of every watched object stays subscribed, cached or not. Where that is impossible, because the
//! server asks the page back or has forgotten what this client had, the object is *lost*: no news arrives of
//! it until its watch has read it again.

use tercel_heap::Scope;
use tercel_wire::id::{Oref, PageId, Stamp};

use super::Client;
use crate::error::{Bound, Error};
use crate::limits;
use crate::mutant::{self, Rule, dropped};
use crate::table::Map;
use crate::time::Now;
use crate::txn::{Heard, Search, WatchId, Watcher};

/// All watches of a client.
#[derive(Default)]
pub(super) struct Watches {
    last: u64,
    all: Map<WatchId, Watched>,
    /// The watches of every object.
    watchers: Map<Oref, Vec<WatchId>>,
    /// The watched objects of every page.
    pages: Map<PageId, Vec<Oref>>,
    /// Objects, counted for each watch of them.
    objects: usize,
    /// Watches that have had something since it was asked for, each once.
    news: Vec<WatchId>,
}

#[derive(Default)]
struct Watched {
    /// The watched objects, with what was not taken yet.
    objects: Map<Oref, Pending>,
    /// Objects of which something was not taken yet, each once.
    pending: Vec<Oref>,
    /// Why nothing more will come.
    ended: Option<Error>,
    /// Set while it stands in the list of watches that have had something.
    has_news: bool,
}

/// Changes of an object that were not reported to a watch yet.
#[derive(Debug, Clone, Copy, Default)]
struct Pending {
    changed: Option<Stamp>,
    lost: bool,
    /// Set while it stands in the list.
    listed: bool,
}

impl Watched {
    fn note(&mut self, oref: Oref, note: impl FnOnce(&mut Pending)) {
        let Some(pending) = self.objects.get_mut(&oref) else { return };
        note(pending);
        if !std::mem::replace(&mut pending.listed, true) {
            self.pending.push(oref);
        }
    }

    fn has_news_in(&mut self, news: &mut Vec<WatchId>, watch: WatchId) {
        if !std::mem::replace(&mut self.has_news, true) {
            news.push(watch);
        }
    }
}

impl Watches {
    /// Says whether the client needs notices of changes in the page.
    pub(super) fn holds(&self, page: PageId) -> bool {
        self.pages.contains_key(&page)
    }

    /// The object was changed.
    pub(super) fn changed(&mut self, oref: Oref, stamp: Stamp) {
        let Some(watchers) = self.watchers.get(&oref) else { return };
        for watch in watchers {
            let Some(watched) = self.all.get_mut(watch) else { continue };
            watched.note(oref, |pending| {
                let is_first = pending.changed.is_none();
                if is_first || !dropped(Rule::WatchForgetsCoalesced) {
                    pending.changed = Some(stamp);
                }
            });
            watched.has_news_in(&mut self.news, *watch);
        }
    }

    /// Changes in the page are no longer received.
    pub(super) fn lose_page(&mut self, page: PageId) {
        for oref in self.pages.get(&page).into_iter().flatten() {
            for watch in self.watchers.get(oref).into_iter().flatten() {
                if let Some(watched) = self.all.get_mut(watch) {
                    watched.note(*oref, |pending| pending.lost = true);
                    watched.has_news_in(&mut self.news, *watch);
                }
            }
        }
    }

    /// No more news arrives of the objects watched up to now.
    pub(super) fn lose_all(&mut self) {
        for (watch, watched) in &mut self.all {
            watched.has_news_in(&mut self.news, *watch);
            let Watched { objects, pending, .. } = watched;
            for (oref, of) in objects.iter_mut() {
                of.lost = true;
                if !std::mem::replace(&mut of.listed, true) {
                    pending.push(*oref);
                }
            }
            // A table's order is the same in every run, but for no reason that a reader could see.
            pending.sort_unstable();
        }
    }

    /// The history that the watches are of is not the space's any more.
    pub(super) fn end(&mut self, error: &Error) {
        for (watch, watched) in &mut self.all {
            watched.has_news_in(&mut self.news, *watch);
            watched.ended.get_or_insert_with(|| error.clone());
        }
    }

    /// Adds an object to a watch; says whether it was not watched by it before.
    fn add(&mut self, watch: WatchId, oref: Oref) -> Result<bool, Error> {
        let Some(watched) = self.all.get_mut(&watch) else { return Err(unknown()) };
        if watched.objects.contains_key(&oref) {
            return Ok(false);
        }
        let max = mutant::bound(limits::WATCHED_MAX, 64);
        if self.objects >= max {
            return Err(Error::Full(Bound::Watched { max }));
        }
        watched.objects.insert(oref, Pending::default());
        self.objects += 1;
        let watchers = self.watchers.entry(oref).or_default();
        watchers.push(watch);
        if watchers.len() == 1 {
            self.pages.entry(oref.page()).or_default().push(oref);
        }
        Ok(true)
    }

    /// No watch of this one looks at the object any more. Gives its page if no watched object is left there.
    fn remove(&mut self, watch: WatchId, oref: Oref) -> Option<PageId> {
        self.all.get_mut(&watch)?.objects.remove(&oref)?;
        self.objects -= 1;
        let watchers = self.watchers.get_mut(&oref)?;
        watchers.retain(|w| *w != watch);
        if !watchers.is_empty() {
            return None;
        }
        self.watchers.remove(&oref);
        let page = oref.page();
        let there = self.pages.get_mut(&page)?;
        there.retain(|o| *o != oref);
        if !there.is_empty() {
            return None;
        }
        self.pages.remove(&page);
        Some(page)
    }
}

impl Client {
    /// The numbers of the watches that have had something since this was asked last; none stands for all,
    /// because no news can be received now.
    pub fn take_news(&mut self) -> Option<Vec<u64>> {
        let news = std::mem::take(&mut self.watches.news);
        for watch in &news {
            if let Some(watched) = self.watches.all.get_mut(watch) {
                watched.has_news = false;
            }
        }
        self.refusal().is_none().then(|| news.into_iter().map(|watch| watch.number).collect())
    }
}

impl Watcher for Client {
    fn open(&mut self) -> WatchId {
        self.watches.last += 1;
        let watch = WatchId { client: self.id, number: self.watches.last };
        self.watches.all.insert(watch, Watched::default());
        watch
    }

    fn touch(
        &mut self,
        now: Now,
        scope: &Scope,
        oref: Oref,
        search: &mut Search,
    ) -> Option<Result<(), Error>> {
        match self.class_at(now, scope, oref, Stamp::MAX, search)? {
            Ok(_) => {
                self.writer.note_read(scope, oref);
                Some(Ok(()))
            }
            // The absence was noted.
            Err(Error::NotFound(_)) => Some(Ok(())),
            Err(e) => Some(Err(e)),
        }
    }

    fn close(&mut self, watch: WatchId) {
        let Some(watched) = self.watches.all.get(&watch) else { return };
        let mut orefs: Vec<Oref> = watched.objects.keys().copied().collect();
        orefs.sort_unstable();
        self.let_go(watch, &orefs);
        self.watches.all.remove(&watch);
        self.watches.news.retain(|known| *known != watch);
    }

    fn look_at(&mut self, watch: WatchId, read: &[Oref]) -> Result<(), Error> {
        let mut added = Vec::new();
        for oref in read {
            match self.watches.add(watch, *oref) {
                Ok(false) => {}
                Ok(true) => added.push(*oref),
                Err(e) => {
                    self.let_go(watch, &added);
                    return Err(e);
                }
            }
            let now = self.reader.watermark();
            if let Some(watched) = self.watches.all.get_mut(&watch)
                && watched.objects.get(oref).is_some_and(|pending| pending.lost)
            {
                watched.note(*oref, |pending| (pending.lost, pending.changed) = (false, Some(now)));
            }
        }
        Ok(())
    }

    fn let_go(&mut self, watch: WatchId, orefs: &[Oref]) {
        let pages = orefs.iter().filter_map(|oref| self.watches.remove(watch, *oref)).collect();
        // If nothing else holds them either, the server may forget them.
        self.fetches.look_again(pages);
    }

    fn take(&mut self, watch: WatchId) -> Result<Vec<Heard>, Error> {
        let Some(watched) = self.watches.all.get_mut(&watch) else { return Err(unknown()) };
        if let Some(e) = &watched.ended {
            return Err(e.clone());
        }
        let Watched { objects, pending, .. } = watched;
        let heard = pending.drain(..).filter_map(|oref| {
            // One that was let go of meanwhile is not wanted.
            let of = objects.get_mut(&oref)?;
            of.listed = false;
            let (changed, lost) = (of.changed.take(), of.lost);
            (changed.is_some() || lost).then_some(Heard { oref, changed, lost })
        });
        Ok(heard.collect())
    }

    fn watermark(&self) -> Stamp {
        self.reader.watermark()
    }

    fn refusal(&self) -> Option<Error> {
        Client::refusal(self).cloned()
    }
}

fn unknown() -> Error {
    Error::Invalid(
        "this watch was begun before this process was forked, by another client: watch anew".into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageId = match PageId::new(7) {
        Some(page) => page,
        None => panic!("7 is a page"),
    };

    fn object(slot: u16) -> Oref {
        Oref::new(PAGE, slot).unwrap()
    }

    fn heard(slot: u16, changed: u64) -> Heard {
        Heard { oref: object(slot), changed: Some(Stamp(changed)), lost: false }
    }

    fn watching(slots: &[u16]) -> (Client, WatchId) {
        let mut client = Client::connected_for_test();
        let watch = client.open();
        let orefs: Vec<Oref> = slots.iter().map(|slot| object(*slot)).collect();
        client.look_at(watch, &orefs).unwrap();
        (client, watch)
    }

    #[test]
    fn changes_of_an_object_are_told_once_with_the_last_stamp() {
        let (mut client, watch) = watching(&[1, 2]);
        for (slot, stamp) in [(1, 5), (2, 6), (3, 7), (1, 8)] {
            client.watches.changed(object(slot), Stamp(stamp));
        }
        assert_eq!(client.take(watch), Ok(vec![heard(1, 8), heard(2, 6)]));
        assert_eq!(client.take(watch), Ok(vec![]));
        client.watches.changed(object(2), Stamp(9));
        assert_eq!(client.take(watch), Ok(vec![heard(2, 9)]));
    }

    #[test]
    fn lost_objects_are_told_until_they_are_read_again() {
        let (mut client, watch) = watching(&[1]);
        let lost = Heard { oref: object(1), changed: None, lost: true };
        client.watches.lose_page(PAGE);
        assert_eq!(client.take(watch), Ok(vec![lost]));
        assert_eq!(client.take(watch), Ok(vec![]), "it was told");
        client.look_at(watch, &[object(1)]).unwrap();
        assert_eq!(client.take(watch), Ok(vec![heard(1, 0)]), "as changed in the state in which it was read");
        client.watches.changed(object(1), Stamp(4));
        assert_eq!(client.take(watch), Ok(vec![heard(1, 4)]));
    }

    #[test]
    fn object_that_is_lost_while_it_is_read_is_told_of() {
        let (mut client, watch) = watching(&[1]);
        client.watches.lose_all();
        client.look_at(watch, &[object(1)]).unwrap();
        assert_eq!(client.take(watch), Ok(vec![heard(1, 0)]));
    }

    #[test]
    fn page_is_held_as_long_as_any_watch_looks_at_an_object_in_it() {
        let (mut client, first) = watching(&[1, 2]);
        let second = client.open();
        client.look_at(second, &[object(2)]).unwrap();
        client.close(first);
        assert!(client.watches.holds(PAGE));
        assert_eq!(client.watches.objects, 1);
        client.let_go(second, &[object(2)]);
        assert!(!client.watches.holds(PAGE) && client.watches.watchers.is_empty());
        assert_eq!(client.watches.objects, 0);
    }

    #[test]
    fn objects_beyond_the_bound_are_refused_and_none_of_them_is_kept() {
        let (mut client, watch) = watching(&[]);
        let page = |n: u32| PageId::new(n).unwrap();
        let many: Vec<Oref> = (0..=limits::WATCHED_MAX as u32)
            .map(|i| Oref::new(page(1 + i / 100), (i % 100) as u16).unwrap())
            .collect();
        assert!(matches!(client.look_at(watch, &many), Err(Error::Full(Bound::Watched { .. }))));
        assert_eq!(client.watches.objects, 0);
        client.look_at(watch, &many[1..]).unwrap();
    }

    #[test]
    fn watch_of_a_history_that_is_gone_ends() {
        let (mut client, watch) = watching(&[1]);
        let gone = Error::OtherHistory("gone".into());
        client.watches.end(&gone);
        client.watches.changed(object(1), Stamp(5));
        assert_eq!(client.take(watch), Err(gone));
        let next = client.open();
        assert_eq!(client.take(next), Ok(vec![]));
    }
}
