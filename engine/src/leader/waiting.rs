//! Commits that wait: for pages to be read before they can be placed, for room, or for a large one that
//! stands in their way. Bounded by client and in bytes; what cannot wait is answered `Full`. Refusals wait,
//! too, for their turns.

use tercel_wire::id::OpId;

use super::Asked;
use super::body::Body;
use super::contended::Contended;
use super::turns::Turns;
use crate::effect::Conn;
use crate::limits;
use crate::table::Map;

/// The commits that wait, by number, with their bytes and their count for each connection.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    commits: Map<u64, Parked>,
    bytes: usize,
    last: u64,
    by_conn: Map<Conn, usize>,
    /// Commits that wait for room in the buffer of modified objects, or in the log.
    pub stalled: Vec<u64>,
    /// Commits that wait for a large one, and whether they are to be tried again.
    pub behind: Vec<u64>,
    pub behind_due: bool,
    pub turns: Turns,
    pub contended: Contended,
}

/// A commit that waits.
#[derive(Debug)]
pub(super) struct Parked {
    pub asked: Asked,
    pub op: OpId,
    pub body: Body<'static>,
    missing: usize,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.commits.is_empty()
    }

    /// The operations whose commits wait.
    pub(super) fn ops(&self) -> impl Iterator<Item = OpId> {
        self.commits.values().map(|parked| parked.op)
    }

    /// A number that names nothing yet.
    pub(super) fn next_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Keeps a commit until so many things have happened; none if too much waits already.
    pub(super) fn hold(
        &mut self,
        asked: Asked,
        op: OpId,
        body: Body<'_>,
        missing: usize,
        bytes_max: usize,
    ) -> Option<u64> {
        let of_conn = self.by_conn.entry(asked.conn).or_default();
        let is_much = self.bytes + body.len() > bytes_max && !self.commits.is_empty();
        if *of_conn >= limits::CREDIT as usize || is_much {
            return None;
        }
        *of_conn += 1;
        self.bytes += body.len();
        self.last += 1;
        self.commits.insert(self.last, Parked { asked, op, body: body.into_owned(), missing });
        Some(self.last)
    }

    /// Bytes of the first commit that waits for room.
    pub(super) fn bytes_stalled(&self) -> Option<usize> {
        self.stalled.iter().find_map(|id| self.commits.get(id)).map(|p| p.body.len())
    }

    /// Something that a commit waited for is here; gives it with the last of it.
    pub(super) fn arrived(&mut self, id: u64) -> Option<Parked> {
        let parked = self.commits.get_mut(&id)?;
        parked.missing -= 1;
        if parked.missing == 0 { self.take(id) } else { None }
    }

    pub(super) fn take(&mut self, id: u64) -> Option<Parked> {
        let parked = self.commits.remove(&id)?;
        self.bytes -= parked.body.len();
        if let Some(n) = self.by_conn.get_mut(&parked.asked.conn) {
            *n -= 1;
            if *n == 0 {
                self.by_conn.remove(&parked.asked.conn);
            }
        }
        Some(parked)
    }

    pub(super) fn drop_where(&mut self, which: impl Fn(&Parked) -> bool) {
        let mut ids: Vec<u64> = self.commits.iter().filter(|(_, p)| which(p)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| _ = self.take(id));
    }
}
