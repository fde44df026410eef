//! Finding an object that the hit path did not find.

use tercel_heap::{Resolved, Scope, TypeKey};
use tercel_wire::id::{ClassId, Oref, PageId, Stamp};
use tercel_wire::page::class_of;

use super::Client;
use super::classes::taken;
use crate::error::{Bound, Error};
use crate::mutant::{Rule, dropped};
use crate::time::Now;
use crate::txn::object::RefsLeaf;
use crate::txn::{Located, Search, StoredObject, Wanted};

impl Client {
    pub(crate) fn locate(&mut self, now: Now, wanted: &Wanted<'_>, search: &mut Search) -> Located {
        let Wanted { scope, oref, stamp, ref_view, key } = *wanted;
        if let Err(e) = self.still_true(scope) {
            return Located::Failed(e);
        }
        let resolved = match ref_view {
            Some(ref_view) => self.writer.resolve(scope, ref_view, key),
            None => self.writer.lookup(scope, oref, stamp, key),
        };
        match resolved {
            Resolved::Ready { hint } => Located::Ready { hint },
            Resolved::Unbound { class } => {
                match self.bind_for_reading(now, key, class, &mut search.catalogue) {
                    None => Located::Wait,
                    Some(Err(e)) => Located::Failed(e),
                    Some(Ok(())) => self.locate(now, wanted, search),
                }
            }
            Resolved::WrongClass { found } => {
                let found = self.class_name(found);
                Located::Failed(if found == key.schema().name {
                    taken(key)
                } else {
                    Error::Schema(format!("object {oref} is of class {found}, not {}", key.schema().name))
                })
            }
            Resolved::Newer(e) => Located::Failed(Error::Schema(format!("object {oref}: {e}"))),
            missing => self.missing(scope, oref, missing, search),
        }
    }

    /// Goes on where an object of whatever class was not found.
    fn missing(&mut self, scope: &Scope, oref: Oref, found: Resolved, search: &mut Search) -> Located {
        match found {
            Resolved::Miss { page } | Resolved::Stale { page } => self.fetch_for(scope, oref, page, search),
            Resolved::Empty { page } => match search.fetched {
                // An empty slot of a page just fetched: the server has said so.
                Some((p, fetch))
                    if p == page && page == oref.page() && self.fetches.is_known(oref, fetch) =>
                {
                    self.absent(scope, oref)
                }
                Some((p, fetch))
                    if p == page && page != oref.page() && self.fetches.is_served(page, fetch) =>
                {
                    let what = format!("object {oref} has moved to page {page}, which does not have it");
                    Located::Failed(Error::Corrupt(what))
                }
                _ => self.fetch_for(scope, oref, page, search),
            },
            Resolved::Reborn => self.absent(scope, oref),
            Resolved::Damaged(e) => Located::Failed(Error::Corrupt(format!("object {oref}: {e}"))),
            _ => Located::Failed(Error::Full(Bound::Cache)),
        }
    }

    /// An object of whatever class as it is stored, from the cache if it is there.
    pub(crate) fn stored(
        &mut self,
        scope: &Scope,
        oref: Oref,
        search: &mut Search,
    ) -> Option<Result<Option<StoredObject>, Error>> {
        if let Err(e) = self.still_true(scope) {
            return Some(Err(e));
        }
        let missing = match self.writer.stored_object(scope, oref) {
            Ok(object) => {
                let layout = self.layout_of(class_of(&object), &mut search.catalogue)?;
                return Some(layout.map(|layout| Some((layout, object))));
            }
            Err(missing) => missing,
        };
        match self.missing(scope, oref, missing, search) {
            Located::Absent => Some(Ok(None)),
            Located::Failed(e) => Some(Err(e)),
            Located::Wait | Located::Ready { .. } => None,
        }
    }

    /// Fails if something that the scope read has changed; looks only if anything was applied since it last
    /// looked.
    fn still_true(&mut self, scope: &Scope) -> Result<(), Error> {
        if dropped(Rule::NoCheckOnHit) || dropped(Rule::CheckAtEndOnly) {
            return Ok(());
        }
        if scope.doomed() || !scope.is_current() { self.recheck(scope) } else { Ok(()) }
    }

    fn fetch_for(&mut self, scope: &Scope, oref: Oref, page: PageId, search: &mut Search) -> Located {
        if let Some((p, fetch)) = search.fetched
            && p == page
        {
            if page == oref.page() && self.fetches.is_empty(page) && self.fetches.is_known(oref, fetch) {
                return self.absent(scope, oref);
            }
            if let Some(e) = self.fetches.failed(page, fetch) {
                return Located::Failed(e.clone());
            }
        }
        match self.availability() {
            None => return Located::Wait,
            Some(Err(e)) => return Located::Failed(e),
            Some(Ok(())) => {}
        }
        if !self.fetches.is_under_way(page) && !self.has_credit() {
            // One is answered before long.
            return Located::Wait;
        }
        // What is obsolete because it was changed must be sent.
        let since = match page == oref.page() {
            true => self.writer.unsure_of(oref),
            false => self.writer.unsure_since(page),
        };
        let fetch = self.fetch(page, since);
        search.fetched = Some((page, fetch));
        // The frame for the reply is made free while the request is on its way; not for a question, which the
        // copy itself may be made free for.
        if since.is_none() && self.writer.reserve().is_err() {
            return Located::Failed(Error::Full(Bound::Cache));
        }
        Located::Wait
    }

    /// That there is none is a read like any other: a later birth must be noticed.
    fn absent(&mut self, scope: &Scope, oref: Oref) -> Located {
        if !dropped(Rule::AbsenceIsNoRead) {
            self.writer.note_read(scope, oref);
        }
        Located::Absent
    }

    /// The class of an object, whatever it is.
    pub(crate) fn class_at(
        &mut self,
        now: Now,
        scope: &Scope,
        oref: Oref,
        stamp: Stamp,
        search: &mut Search,
    ) -> Option<Result<ClassId, Error>> {
        let key = TypeKey::of::<RefsLeaf>();
        if let Err(e) = self.still_true(scope) {
            return Some(Err(e));
        }
        match self.writer.lookup(scope, oref, stamp, key) {
            Resolved::WrongClass { found } | Resolved::Unbound { class: found } => Some(Ok(found)),
            Resolved::Ready { .. } => Some(Ok(tercel_wire::class::REFS_LEAF)),
            _ => match self.locate(now, &Wanted { scope, oref, stamp, ref_view: None, key }, search) {
                Located::Wait => None,
                Located::Failed(e) => Some(Err(e)),
                Located::Absent => Some(Err(Error::not_found(oref))),
                Located::Ready { .. } => Some(Ok(tercel_wire::class::REFS_LEAF)),
            },
        }
    }
}
