//! Places for new objects: empty pages granted by the server.

use std::sync::Arc;

use tercel_heap::Scope;
use tercel_wire::id::{Oref, PageId, Stamp};
use tercel_wire::message::{Lease, Leased};
use tercel_wire::page::OBJECT_BYTES_MAX;

use super::Client;
use super::pending::{Asked, Single};
use crate::error::{Bound, Error};
use crate::limits;
use crate::time::Now;
use crate::txn::{Hold, Place, Places};

/// The pages that a client may make objects in.
#[derive(Default)]
pub(super) struct Leases {
    places: Places,
    /// A transaction waits for the answer to the request under way; else the client asks ahead.
    is_needed: bool,
    /// Asked ahead in vain: it asks again when a place is needed.
    is_content: bool,
    /// Grants that were received in this session.
    seq: u64,
    /// The number of pages to ask for next: doubles with use.
    ask: u16,
    refused: Option<Error>,
    /// Sessions that were over.
    sessions_ended: u64,
}

impl Leases {
    pub(super) fn granted(&mut self, leased: Leased) {
        if leased.pages.is_empty() {
            self.in_vain(Error::Full(Bound::Pages));
        }
        self.seq = leased.seq;
        if !leased.pages.is_empty() {
            (self.is_needed, self.is_content) = (false, false);
        }
        self.places.grant(leased);
    }

    pub(super) fn refused(&mut self, error: Error) {
        self.in_vain(error);
    }

    /// Notes that there are no more pages now. Only a waiting transaction gets the error: a client that asked
    /// ahead may find some when it needs them.
    fn in_vain(&mut self, why: Error) {
        self.is_content = true;
        if std::mem::take(&mut self.is_needed) {
            self.refused = Some(why);
        }
    }

    /// The connection is gone. What is on its way is asked for again.
    pub(super) fn end_connection(&mut self) {
        self.refused = None;
        (self.is_needed, self.is_content) = (false, false);
    }

    /// The session is over, and with it what was granted to it.
    pub(super) fn drop_all(&mut self) {
        *self = Leases { sessions_ended: self.sessions_ended + 1, ..Leases::default() };
    }

    pub(super) fn sessions_ended(&self) -> u64 {
        self.sessions_ended
    }

    pub(super) fn holds(&self, place: Oref, stamp: Stamp) -> bool {
        self.places.holds(place, stamp)
    }

    pub(super) fn hold(&self, place: Oref, stamp: Stamp) -> Option<Arc<Hold>> {
        self.places.hold(place, stamp)
    }

    pub(super) fn filled(&mut self, place: Oref) {
        self.places.filled(place);
    }

    pub(super) fn birth(&self, page: PageId) -> Option<Stamp> {
        self.places.birth(page)
    }

    pub(super) fn made(&mut self, oref: Oref, bytes: usize) {
        self.places.made(oref, bytes);
    }

    pub(super) fn turn_page(&mut self) {
        self.places.turn_page();
    }
}

impl Client {
    /// A place for a new object of that many bytes, and the birth of its page, which the scope's snapshot has
    /// reached; `None` while the server is being asked for pages, or the stream has not come to the birth.
    pub(crate) fn allocate(
        &mut self,
        _now: Now,
        scope: &Scope,
        bytes: usize,
    ) -> Option<Result<Place, Error>> {
        if bytes > OBJECT_BYTES_MAX {
            return Some(Err(tercel_wire::record::EncodeError::TooLarge(bytes).into()));
        }
        if let Err(e) = self.availability()? {
            return Some(Err(e));
        }
        if (self.leases.places.empty_count() < self.leases.ask as usize / 2 || self.leases.ask == 0)
            && !self.leases.is_content
        {
            self.lease();
        }
        if let Some(birth) = self.leases.places.birth_next(bytes) {
            // In an older state the page may have had other objects.
            if scope.snapshot() < birth {
                if self.reader.watermark() < birth {
                    return None;
                }
                if let Err(e) = self.recheck(scope) {
                    return Some(Err(e));
                }
            }
            return self.leases.places.place(bytes).map(Ok);
        }
        if let Some(e) = self.leases.refused.take() {
            return Some(Err(e));
        }
        self.lease();
        self.leases.is_needed = true;
        None
    }

    fn lease(&mut self) {
        if self.peer.pending.has(Single::Lease) || self.leases.refused.is_some() {
            return;
        }
        self.leases.ask = (self.leases.ask * 2).clamp(1, limits::LEASE_PAGES);
        let mut body = Vec::new();
        let done = self.leases.places.give_back();
        Lease { seq: self.leases.seq + 1, pages: self.leases.ask, done }.encode(&mut body);
        self.request(Asked::Single(Single::Lease), &body);
    }
}

#[cfg(test)]
mod tests {
    use tercel_wire::frame::Kind;
    use tercel_wire::message::{Refusal, Refused};

    use super::*;

    /// Two of them fill a page.
    const HALF: usize = 3_900;

    /// Gives the number of pages that the client has just asked for, if it has asked for any.
    fn asked(client: &mut Client) -> Option<u16> {
        let bytes = std::mem::take(client.outgoing());
        let (header, body, rest) = tercel_wire::frame::split(&bytes).unwrap()?;
        assert!(header.kind == Kind::Lease && rest.is_empty());
        Some(Lease::decode(body).unwrap().pages)
    }

    /// The call that asks for pages.
    fn call(client: &Client) -> u64 {
        client.peer.pending.call_of(|asked| matches!(asked, Asked::Single(Single::Lease))).unwrap()
    }

    fn grant(client: &mut Client, leased: Leased) {
        client.told_for_test(Kind::Leased, call(client), |o| leased.encode(o));
    }

    fn refuse(client: &mut Client, text: &str) {
        let refused = Refused { reason: Refusal::FULL, text: text.into(), servers: vec![] };
        client.told_for_test(Kind::Refused, call(client), |o| refused.encode(o));
    }

    #[test]
    fn place_in_a_page_given_out_again_waits_for_the_birth_and_renews_the_snapshot() {
        let mut client = Client::connected_for_test();
        let page = PageId::new(2).unwrap();
        let place = |slot| Oref::new(page, slot).unwrap();
        let scopes = [0; 3].map(|_| client.reader.scope().unwrap());
        let allocate = |client: &mut Client, scope| {
            Some(client.allocate(Now(0), scope, HALF)?.map(|place| (place.oref, place.birth)))
        };
        assert_eq!(allocate(&mut client, &scopes[0]), None);
        grant(&mut client, Leased { seq: 1, birth: Stamp(5), pages: vec![page], holes: vec![] });
        client.writer.advance(Stamp(4));
        assert_eq!(allocate(&mut client, &scopes[0]), None);
        // What one of them has read changes before the birth.
        client.writer.note_read(&scopes[1], place(7));
        client.writer.flag(place(7));
        client.writer.advance(Stamp(6));
        assert!(matches!(allocate(&mut client, &scopes[1]), Some(Err(Error::Conflict(_)))));
        // No place was lost by it.
        assert_eq!(allocate(&mut client, &scopes[0]), Some(Ok((place(0), Stamp(5)))));
        assert_eq!(scopes[0].snapshot(), Stamp(6));
        assert!(client.leases.holds(place(0), Stamp(5)) && !client.leases.holds(place(0), Stamp(4)));
    }

    #[test]
    fn places_asked_ahead_in_vain_are_asked_for_again_when_one_is_needed() {
        let mut client = Client::connected_for_test();
        let scope = client.reader.scope().unwrap();
        let allocate =
            |client: &mut Client| Some(client.allocate(Now(0), &scope, HALF)?.map(|place| place.oref));
        let full = Error::Full(Bound::Server("no page is left".into()));
        // It has used many before, and so asks for many.
        client.leases.ask = 8;
        assert_eq!((allocate(&mut client), asked(&mut client)), (None, Some(16)));
        let pages: Vec<PageId> = (2..4).filter_map(PageId::new).collect();
        grant(&mut client, Leased { seq: 1, birth: Stamp::ZERO, pages: pages.clone(), holes: vec![] });
        // Two pages hold four objects. That is little, and more are asked for ahead.
        let mut places = vec![allocate(&mut client).expect("there is one").expect("it is given")];
        assert!(asked(&mut client).is_some());
        refuse(&mut client, "no page is left");
        // No transaction waited for it: the places at hand are used up without another request.
        while places.len() < 4 {
            places.push(allocate(&mut client).expect("there is one").expect("it is given"));
            assert_eq!(asked(&mut client), None);
        }
        assert!(places.iter().all(|place| pages.contains(&place.page())));
        // A transaction needs a place now, so the server is asked again, and the transaction receives the
        // error.
        for _ in 0..2 {
            assert_eq!(allocate(&mut client), None);
            assert!(asked(&mut client).is_some());
            refuse(&mut client, "no page is left");
            assert_eq!(allocate(&mut client), Some(Err(full.clone())));
            assert_eq!(asked(&mut client), None);
        }
        assert_eq!(allocate(&mut client), None);
        grant(&mut client, Leased { seq: 2, birth: Stamp::ZERO, pages: vec![PageId::MAX], holes: vec![] });
        assert_eq!(allocate(&mut client).unwrap().unwrap().page(), PageId::MAX);
    }
}
