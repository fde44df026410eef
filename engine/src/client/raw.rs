//! Pages as the server has them, past the cache: for tools that read objects of classes they do not know.

use std::collections::VecDeque;

use tercel_wire::id::PageId;
use tercel_wire::message::Fetch;

use super::Client;
use super::pending::Asked;
use crate::error::Error;
use crate::table::Set;

/// Raw reads of a client, by the numbers of their fetches.
#[derive(Default)]
pub(super) struct Raw {
    /// The raw fetches under way.
    asked: Set<u64>,
    /// Answers that were not taken yet, the oldest first.
    came: VecDeque<(u64, Answer)>,
}

/// The page's bytes, or none if it was never written.
type Answer = Result<Option<Vec<u8>>, Error>;

/// Answers that are kept. Their callers take them at once, or have given up; one that comes late for its
/// answer asks again.
const CAME_MAX: usize = 64;

impl Raw {
    /// The number of raw fetches under way.
    pub(super) fn under_way(&self) -> usize {
        self.asked.len()
    }

    /// The answer to a read is here.
    pub(super) fn came(&mut self, fetch: u64, answer: Answer) {
        self.asked.remove(&fetch);
        if self.came.len() >= CAME_MAX {
            self.came.pop_front();
        }
        self.came.push_back((fetch, answer));
    }

    /// A read will not be answered.
    pub(super) fn lost(&mut self, fetch: u64) {
        self.asked.remove(&fetch);
    }

    /// The connection is gone, and the next one may be of another history.
    pub(super) fn end_connection(&mut self) {
        self.came.clear();
    }

    /// The only one under way.
    #[cfg(test)]
    pub(super) fn only_for_test(&self) -> Option<u64> {
        self.asked.iter().next().copied()
    }

    fn take(&mut self, fetch: u64) -> Option<Answer> {
        let at = self.came.iter().position(|(of, _)| *of == fetch)?;
        self.came.remove(at).map(|(_, answer)| answer)
    }
}

impl Client {
    /// The page's bytes, unchecked; `None` while the server is being asked. `read` is the caller's, none at
    /// first.
    pub fn raw_page(
        &mut self,
        page: PageId,
        read: &mut Option<u64>,
    ) -> Option<Result<Option<Vec<u8>>, Error>> {
        if let Err(e) = self.availability()? {
            return Some(Err(e));
        }
        if let Some(fetch) = *read {
            if self.tools.raw.asked.contains(&fetch) {
                return None;
            }
            if let Some(answer) = self.tools.raw.take(fetch) {
                return Some(answer);
            }
        }
        if self.has_credit() {
            let fetch = self.fetches.next_number();
            let mut body = Vec::with_capacity(12);
            Fetch { page, fetch, since: None }.encode(&mut body);
            self.request(Asked::RawPage { page, fetch }, &body);
            self.tools.raw.asked.insert(fetch);
            *read = Some(fetch);
        }
        None
    }

    /// A page that a raw read asked for has come.
    pub(super) fn raw_page_came(&mut self, page: PageId, fetch: u64, bytes: &[u8]) {
        self.tools.raw.came(fetch, Ok((!bytes.is_empty()).then(|| bytes.to_vec())));
        self.note_raw_subscription(page, fetch);
    }
}
