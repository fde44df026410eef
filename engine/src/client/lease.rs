//! Places for new objects: empty pages leased from the server, filled in order of creation.

use std::collections::{BTreeSet, VecDeque};

use tercel_wire::frame::Kind;
use tercel_wire::id::{Oref, PageId, SLOTS_MAX};
use tercel_wire::message::{Lease, Leased};
use tercel_wire::page::{OBJECT_BYTES_MAX, PAGE_BYTES, PAGE_HEADER_BYTES, SLOT_BYTES};

use super::Client;
use crate::error::Error;
use crate::limits;
use crate::time::Now;

/// The pages that a client may make objects in.
#[derive(Default)]
pub(super) struct Leases {
    empty: VecDeque<PageId>,
    current: Option<Filling>,
    /// All that the server lets us make objects in, the oldest first.
    held: BTreeSet<PageId>,
    call: Option<u64>,
    /// Grants that were heard of in this session.
    seq: u64,
    /// How many to ask for next: doubles with use.
    ask: u16,
    refused: Option<Error>,
}

struct Filling {
    page: PageId,
    used: usize,
    /// What each slot was promised.
    promised: Vec<u16>,
}

impl Leases {
    pub(super) fn granted(&mut self, call: u64, leased: Leased) {
        if self.call != Some(call) {
            return;
        }
        self.call = None;
        if leased.pages.is_empty() {
            self.refused = Some(Error::no_pages());
        }
        self.seq = leased.seq;
        self.held.extend(leased.pages.iter().copied());
        self.empty.extend(leased.pages);
        // The server, too, lets go of the oldest.
        while self.held.len() > limits::LEASED_PAGES_MAX {
            self.held.pop_first();
        }
    }

    pub(super) fn refused(&mut self, call: u64, error: &Error) -> bool {
        let ours = self.call == Some(call);
        if ours {
            self.call = None;
            self.refused = Some(error.clone());
        }
        ours
    }

    /// The connection is gone. What is on its way is asked for again.
    pub(super) fn abandon(&mut self) {
        (self.call, self.refused) = (None, None);
    }

    /// The session is over, and with it what was granted to it.
    pub(super) fn drop_all(&mut self) {
        *self = Leases::default();
    }

    pub(super) fn holds(&self, page: PageId) -> bool {
        self.held.contains(&page)
    }

    fn place(&mut self, bytes: usize) -> Option<Oref> {
        if let Some(f) = &mut self.current {
            let slot = f.promised.len() as u16;
            let end = f.used + bytes + SLOT_BYTES * (slot as usize + 1);
            if slot < SLOTS_MAX && end <= PAGE_BYTES {
                let oref = Oref::new(f.page, slot)?;
                f.promised.push(bytes as u16);
                f.used += bytes;
                return Some(oref);
            }
        }
        let page = self.empty.pop_front()?;
        self.current = Some(Filling { page, used: PAGE_HEADER_BYTES, promised: Vec::new() });
        self.place(bytes)
    }

    /// An object is made larger than its place was: there is so much less room for others.
    pub(super) fn made(&mut self, oref: Oref, bytes: usize) {
        if let Some(f) = self.current.as_mut().filter(|f| f.page == oref.page())
            && let Some(promised) = f.promised.get_mut(oref.slot() as usize)
        {
            let more = bytes.saturating_sub(*promised as usize);
            *promised += more as u16;
            f.used += more;
        }
    }

    /// The page being filled is left as it is: what the server thinks of it differs from what was thought here.
    pub(super) fn turn_page(&mut self) {
        self.current = None;
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
        if self.leases.empty.len() < self.leases.ask as usize / 2 || self.leases.ask == 0 {
            self.lease();
        }
        if let Some(oref) = self.leases.place(bytes) {
            return Some(Ok(oref));
        }
        if let Some(e) = self.leases.refused.take() {
            return Some(Err(e));
        }
        self.lease();
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
