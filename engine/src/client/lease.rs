//! Places for new objects: empty pages leased from the server, filled in order of creation.

use std::collections::VecDeque;

use tercel_wire::frame::Kind;
use tercel_wire::id::{Oref, PageId, SLOTS_MAX};
use tercel_wire::message::{Lease, Leased};
use tercel_wire::page::{OBJECT_BYTES_MAX, PAGE_BYTES, PAGE_HEADER_BYTES, SLOT_BYTES};

use super::Client;
use crate::error::Error;
use crate::limits;
use crate::table::Set;
use crate::time::Now;

/// The pages that a client may make objects in.
#[derive(Default)]
pub(super) struct Leases {
    empty: VecDeque<PageId>,
    current: Option<Filling>,
    held: Set<PageId>,
    call: Option<u64>,
    /// How many to ask for next: doubles with use.
    ask: u16,
    refused: Option<Error>,
}

struct Filling {
    page: PageId,
    slot: u16,
    used: usize,
}

impl Leases {
    pub(super) fn granted(&mut self, call: u64, leased: Leased) {
        if self.call != Some(call) {
            return;
        }
        self.call = None;
        if leased.pages.is_empty() {
            self.refused = Some(Error::Full("the space has no pages left for new objects".into()));
        }
        self.held.extend(leased.pages.iter().copied());
        self.empty.extend(leased.pages);
    }

    pub(super) fn refused(&mut self, call: u64, error: &Error) -> bool {
        let ours = self.call == Some(call);
        if ours {
            self.call = None;
            self.refused = Some(error.clone());
        }
        ours
    }

    /// The connection is gone; what was granted on it holds as long as the server lives.
    pub(super) fn abandon(&mut self) {
        self.call = None;
    }

    /// The server was restarted: it may have given the pages to others.
    pub(super) fn drop_all(&mut self) {
        *self = Leases::default();
    }

    pub(super) fn holds(&self, page: PageId) -> bool {
        self.held.contains(&page)
    }

    fn place(&mut self, bytes: usize) -> Option<Oref> {
        if let Some(f) = &mut self.current {
            let end = f.used + bytes + SLOT_BYTES * (f.slot as usize + 1);
            if f.slot < SLOTS_MAX && end <= PAGE_BYTES {
                let oref = Oref::new(f.page, f.slot)?;
                f.slot += 1;
                f.used += bytes;
                return Some(oref);
            }
        }
        let page = self.empty.pop_front()?;
        self.current = Some(Filling { page, slot: 0, used: PAGE_HEADER_BYTES });
        self.place(bytes)
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
        Lease { pages: self.leases.ask }.encode(&mut body);
        self.leases.call = Some(self.request(Kind::Lease, &body));
    }
}
