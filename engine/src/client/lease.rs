//! Places for new objects: empty pages granted by the server.

use tercel_wire::frame::Kind;
use tercel_wire::id::{Oref, PageId};
use tercel_wire::message::{Lease, Leased};
use tercel_wire::page::OBJECT_BYTES_MAX;

use super::Client;
use crate::error::Error;
use crate::limits;
use crate::time::Now;
use crate::txn::Places;

/// The pages that a client may make objects in.
#[derive(Default)]
pub(super) struct Leases {
    places: Places,
    call: Option<u64>,
    /// Somebody waits for that call's answer; else it asks ahead.
    is_needed: bool,
    /// Asked ahead in vain: it asks again when a place is needed.
    is_content: bool,
    /// Grants that were heard of in this session.
    seq: u64,
    /// How many to ask for next: doubles with use.
    ask: u16,
    refused: Option<Error>,
    /// Sessions that were over.
    sessions_ended: u64,
}

impl Leases {
    pub(super) fn granted(&mut self, call: u64, leased: Leased) {
        if self.call != Some(call) {
            return;
        }
        self.call = None;
        if leased.pages.is_empty() {
            self.in_vain(Error::no_pages());
        }
        self.seq = leased.seq;
        if !leased.pages.is_empty() {
            (self.is_needed, self.is_content) = (false, false);
        }
        self.places.grant(leased.pages);
    }

    pub(super) fn refused(&mut self, call: u64, error: &Error) -> bool {
        let ours = self.call == Some(call);
        if ours {
            self.call = None;
            self.in_vain(error.clone());
        }
        ours
    }

    /// There are no more pages now. Who asked ahead may find some when it needs them.
    fn in_vain(&mut self, why: Error) {
        self.is_content = true;
        if std::mem::take(&mut self.is_needed) {
            self.refused = Some(why);
        }
    }

    /// The connection is gone. What is on its way is asked for again.
    pub(super) fn abandon(&mut self) {
        (self.call, self.refused) = (None, None);
        (self.is_needed, self.is_content) = (false, false);
    }

    /// The session is over, and with it what was granted to it.
    pub(super) fn drop_all(&mut self) {
        *self = Leases { sessions_ended: self.sessions_ended + 1, ..Leases::default() };
    }

    pub(super) fn sessions_ended(&self) -> u64 {
        self.sessions_ended
    }

    pub(super) fn holds(&self, page: PageId) -> bool {
        self.places.holds(page)
    }

    pub(super) fn made(&mut self, oref: Oref, bytes: usize) {
        self.places.made(oref, bytes);
    }

    pub(super) fn turn_page(&mut self) {
        self.places.turn_page();
    }
}

impl Client {
    /// A place for a new object of that many bytes; `None` while the server is being asked for pages.
    pub(crate) fn allocate(&mut self, _now: Now, bytes: usize) -> Option<Result<Oref, Error>> {
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
        if let Some(oref) = self.leases.places.place(bytes) {
            return Some(Ok(oref));
        }
        if let Some(e) = self.leases.refused.take() {
            return Some(Err(e));
        }
        self.lease();
        self.leases.is_needed = true;
        None
    }

    fn lease(&mut self) {
        if self.leases.call.is_some() || self.leases.refused.is_some() {
            return;
        }
        self.leases.ask = (self.leases.ask * 2).clamp(1, limits::LEASE_PAGES);
        let mut body = Vec::new();
        Lease { seq: self.leases.seq + 1, pages: self.leases.ask }.encode(&mut body);
        self.leases.call = Some(self.request(Kind::Lease, &body));
    }
}
