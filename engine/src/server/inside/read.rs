//! Reading inside of a server: from a page's image, or its modified objects, into the scope.

use std::sync::Arc;

use tercel_heap::{Copied, Scope};
use tercel_wire::class::FORWARD;
use tercel_wire::cursor::le32;
use tercel_wire::id::{ClassId, Oref, PageId, Stamp};
use tercel_wire::page::{Page, class_of};
use tercel_wire::record::HEADER_BYTES;

use super::Inside;
use crate::error::{Bound, Error};
use crate::mutant::{Rule, dropped};
use crate::pages::mob::Patch;
use crate::sessions::inside::Image;
use crate::txn::{Located, Wanted};

/// An object in an image.
enum ImageLookup {
    /// The image and the object in it, header included.
    Here(Arc<Vec<u8>>, std::ops::Range<usize>),
    /// There is none.
    Absent,
    /// A page is being read.
    Missing,
}

impl Inside<'_> {
    /// Checks the condition for every read: [`Inside::recheck`].
    fn still_true(&mut self, scope: &Scope) -> Result<(), Error> {
        if dropped(Rule::NoCheckOnHit) || dropped(Rule::CheckAtEndOnly) {
            return Ok(());
        }
        self.recheck(scope)
    }

    /// Fails if something that the scope read has changed, else takes the visible state as its snapshot.
    /// Looks only at what became visible since.
    pub(super) fn recheck(&mut self, scope: &Scope) -> Result<(), Error> {
        if scope.doomed() {
            return Err(Error::Conflict(None));
        }
        if self.is_ahead {
            return if scope.snapshot() == self.ordered() { Ok(()) } else { Err(Error::Conflict(None)) };
        }
        let (since, visible) = (scope.snapshot(), self.server.visible());
        if since == visible {
            return Ok(());
        }
        let copier = &self.local.copier;
        let mut changed = None;
        let known = copier.has_read_nothing(scope)
            || self.server.sessions.changes_since(since, visible, |oref| {
                changed = changed.or(copier.has_read(scope, oref).then_some(oref))
            });
        if changed.is_some() || !known || since > visible {
            copier.doom(scope);
            return Err(Error::conflict(changed));
        }
        copier.adopt(scope, visible);
        Ok(())
    }

    /// Copies an object into the scope.
    pub(super) fn copy(&mut self, wanted: &Wanted<'_>) -> Located {
        let Wanted { scope, oref, stamp, key, .. } = *wanted;
        if let Err(e) = self.still_true(scope) {
            return Located::Failed(e);
        }
        let birth = match self.birth(oref.page()) {
            Ok(Some(birth)) => birth,
            Ok(None) => return Located::Wait,
            Err(e) => return Located::Failed(e),
        };
        let (image, at) = match self.find_since(oref, stamp, birth) {
            Ok(ImageLookup::Here(image, at)) => (image, at),
            Ok(ImageLookup::Missing) => return Located::Wait,
            Ok(ImageLookup::Absent) => return self.absent(scope, oref),
            Err(e) => return Located::Failed(e),
        };
        // A class that is not bound is bound once; then it is.
        for _ in 0..2 {
            match self.local.copier.keep(scope, oref, &image[at.clone()], birth, key) {
                Copied::Ready => return Located::Ready { hint: 0 },
                Copied::Unbound { class } => match self.bind_for_reading(key, class) {
                    None => return Located::Wait,
                    Some(Err(e)) => return Located::Failed(e),
                    Some(Ok(())) => {}
                },
                Copied::WrongClass { found } => {
                    return Located::Failed(self.wrong_class(oref, found, key));
                }
                Copied::Damaged(e) => return Located::Failed(Error::Corrupt(format!("object {oref}: {e}"))),
                Copied::Newer(e) => return Located::Failed(Error::Schema(format!("object {oref}: {e}"))),
                Copied::Full => return Located::Failed(self.full()),
            }
        }
        Located::Failed(Error::Corrupt(format!("object {oref} is of a class that cannot be bound")))
    }

    /// The class of an object, whatever it is.
    pub(super) fn class_here(
        &mut self,
        scope: &Scope,
        oref: Oref,
        stamp: Stamp,
    ) -> Option<Result<ClassId, Error>> {
        if let Err(e) = self.still_true(scope) {
            return Some(Err(e));
        }
        let birth = match self.birth(oref.page()) {
            Ok(birth) => birth?,
            Err(e) => return Some(Err(e)),
        };
        match self.find_since(oref, stamp, birth) {
            Ok(ImageLookup::Here(image, at)) => Some(Ok(class_of(&image[at]))),
            Ok(ImageLookup::Missing) => None,
            Ok(ImageLookup::Absent) => Some(Err(match self.absent(scope, oref) {
                Located::Failed(e) => e,
                _ => Error::not_found(oref),
            })),
            Err(e) => Some(Err(e)),
        }
    }

    /// That there is none is a read like any other: a later birth must be noticed.
    fn absent(&mut self, scope: &Scope, oref: Oref) -> Located {
        if dropped(Rule::AbsenceIsNoRead) || self.local.copier.keep_absent(scope, oref) {
            Located::Absent
        } else {
            Located::Failed(self.full())
        }
    }

    fn full(&self) -> Error {
        Error::Full(Bound::ReadsInside { bytes_max: self.local.config.read_bytes_max })
    }

    /// The object that a reference names which was read at `stamp`; none if its page was born after that.
    fn find_since(&mut self, oref: Oref, stamp: Stamp, birth: Stamp) -> Result<ImageLookup, Error> {
        let is_older = stamp < birth && !dropped(Rule::TokenWithoutBirth);
        if is_older { Ok(ImageLookup::Absent) } else { self.find(oref) }
    }

    /// The object in the image of its page, or where the forward in its slot leads.
    fn find(&mut self, oref: Oref) -> Result<ImageLookup, Error> {
        let (image, at) = match self.find_at(oref)? {
            ImageLookup::Here(image, at) => (image, at),
            other => return Ok(other),
        };
        let object = &image[at.clone()];
        if class_of(object) != FORWARD {
            return Ok(ImageLookup::Here(image, at));
        }
        let damaged = |what: &str| Error::Corrupt(format!("object {oref} has moved {what}"));
        let to = (object.len() >= HEADER_BYTES + 4).then(|| Oref::from_raw(le32(object, HEADER_BYTES)));
        let to = to.flatten().filter(|to| !to.is_null()).ok_or_else(|| damaged("nowhere"))?;
        match self.find_at(to)? {
            ImageLookup::Here(image, at) if class_of(&image[at.clone()]) == FORWARD => Err(damaged("twice")),
            ImageLookup::Absent => Err(damaged(&format!("to page {}, which does not have it", to.page()))),
            found => Ok(found),
        }
    }

    /// A page as it is at the visible stamp.
    fn image(&mut self, page: PageId) -> Image {
        if let Err(e) = self.working() {
            return Image::Failed(e);
        }
        self.server.sessions.inside.image(page, &mut self.server.cx.work.pages)
    }

    /// The birth of a page; zero if nothing is in it, none while it is being read.
    fn birth(&mut self, page: PageId) -> Result<Option<Stamp>, Error> {
        let ahead = self.patch(page).map_or(Stamp::ZERO, Patch::birth);
        match self.image(page) {
            Image::Here(image) => {
                Ok(Some(image.map_or(Stamp::ZERO, |image| Page::birth_in(&image)).max(ahead)))
            }
            Image::Missing => Ok(None),
            Image::Failed(e) => Err(e),
        }
    }

    /// The modified objects of a page, if those count that are not visible yet.
    fn patch(&self, page: PageId) -> Option<&Patch> {
        self.server.cx.work.pages.mob.patch(page).filter(|_| self.is_ahead)
    }

    /// The object in a slot.
    fn find_at(&mut self, oref: Oref) -> Result<ImageLookup, Error> {
        let ahead = self.patch(oref.page());
        let born = ahead.map_or(Stamp::ZERO, Patch::birth);
        if let Some(object) = ahead.and_then(|patch| patch.newest(oref.slot())) {
            let object = Arc::new(object.to_vec());
            let whole = 0..object.len();
            return Ok(if object.is_empty() {
                ImageLookup::Absent
            } else {
                ImageLookup::Here(object, whole)
            });
        }
        let image = match self.image(oref.page()) {
            // The slots of a page that was given out again begin anew.
            Image::Here(Some(image)) if Page::birth_in(&image) >= born => image,
            Image::Here(_) => return Ok(ImageLookup::Absent),
            Image::Missing => return Ok(ImageLookup::Missing),
            Image::Failed(e) => return Err(e),
        };
        let extent = Page::extent_in(&image, oref.page(), oref.slot());
        match extent.map_err(|e| Error::Corrupt(e.to_string()))? {
            Some(e) => Ok(ImageLookup::Here(image, e.at..e.at + e.len)),
            None => Ok(ImageLookup::Absent),
        }
    }
}
