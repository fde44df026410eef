//! Pages as the server has them, past the cache: for tools that read objects of classes they do not know.

use tercel_wire::frame::Kind;
use tercel_wire::id::PageId;
use tercel_wire::message::{Fetch, PageReply};

use super::Client;
use crate::error::Error;
use crate::table::Map;

/// Raw reads under way: by call, the answer once it is there.
#[derive(Default)]
pub(super) struct Raw {
    calls: Map<u64, Answer>,
}

/// The page's bytes, or none if it was never written; none at first.
type Answer = Option<Result<Option<Vec<u8>>, Error>>;

impl Raw {
    pub(super) fn abandon(&mut self) {
        self.calls.clear();
    }

    /// Takes a reply that belongs to a raw read.
    pub(super) fn take(&mut self, call: u64, reply: &PageReply<'_>) -> bool {
        match self.calls.get_mut(&call) {
            Some(answer) => {
                *answer = Some(Ok((!reply.bytes.is_empty()).then(|| reply.bytes.to_vec())));
                true
            }
            None => false,
        }
    }

    pub(super) fn refused(&mut self, call: u64, error: &Error) -> bool {
        match self.calls.get_mut(&call) {
            Some(answer) => {
                *answer = Some(Err(error.clone()));
                true
            }
            None => false,
        }
    }
}

impl Client {
    /// The page's bytes, unchecked; `None` while the server is being asked. `call` is the caller's, none at first.
    pub fn raw_page(
        &mut self,
        page: PageId,
        call: &mut Option<u64>,
    ) -> Option<Result<Option<Vec<u8>>, Error>> {
        if let Err(e) = self.availability()? {
            return Some(Err(e));
        }
        match call.filter(|c| self.tools.raw.calls.contains_key(c)) {
            None => {
                let fetch = self.fetches.next_number();
                let mut body = Vec::with_capacity(12);
                Fetch { page, fetch, since: None }.encode(&mut body);
                let asked = self.request(Kind::Fetch, &body);
                self.tools.raw.calls.insert(asked, None);
                *call = Some(asked);
                None
            }
            Some(asked) => {
                self.tools.raw.calls.get(&asked)?.as_ref()?;
                self.tools.raw.calls.remove(&asked)?
            }
        }
    }
}
