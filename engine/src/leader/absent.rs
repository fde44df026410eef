//! Clients with grants and no connection: when their sessions are over, and what they had acknowledged.

use std::collections::VecDeque;

use tercel_wire::id::{ClientId, Stamp};

use crate::table::Map;
use crate::time::Now;

/// The clients with grants and no connection. Every session waits equally long, so the first in the queue
/// ends first.
#[derive(Debug, Default)]
pub(super) struct Absent {
    over: Map<ClientId, (Now, Stamp)>,
    /// Some of these may have come back, or have gone again since.
    queue: VecDeque<(Now, ClientId)>,
}

impl Absent {
    /// These clients, in the order of their names. What they have acknowledged is not known.
    pub(super) fn all(clients: impl Iterator<Item = ClientId>, over: Now) -> Absent {
        let mut clients: Vec<ClientId> = clients.collect();
        clients.sort_unstable();
        let mut absent = Absent::default();
        clients.into_iter().for_each(|client| absent.insert(client, over, Stamp::ZERO));
        absent
    }

    /// The client's session is over then. It has acknowledged everything up to `acked`, and takes nothing
    /// back of that by being away.
    pub(super) fn insert(&mut self, client: ClientId, over: Now, acked: Stamp) {
        self.over.insert(client, (over, acked));
        self.queue.push_back((over, client));
    }

    /// Removes a client that is there again, or gone for good.
    pub(super) fn remove(&mut self, client: ClientId) {
        self.over.remove(&client);
        let is_stale =
            |(over, client): &(Now, ClientId)| self.over.get(client).is_none_or(|(o, _)| o != over);
        while self.queue.front().is_some_and(is_stale) {
            self.queue.pop_front();
        }
    }

    /// The stamp up to which all of them have acknowledged; `None` if there are none.
    pub(super) fn acked(&self) -> Option<Stamp> {
        self.over.values().map(|(_, acked)| *acked).min()
    }

    /// When the next session is over.
    pub(super) fn next(&self) -> Option<Now> {
        self.queue.front().map(|(over, _)| *over)
    }

    /// A client whose session is over by now.
    pub(super) fn take(&mut self, now: Now) -> Option<ClientId> {
        let client = self.queue.front().filter(|(over, _)| *over <= now).map(|(_, client)| *client)?;
        self.remove(client);
        Some(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_in_their_order_but_for_those_that_have_come_back() {
        let [a, b, c] = [1, 2, 3].map(ClientId);
        let mut absent = Absent::all([b, a].into_iter(), Now(10));
        absent.insert(c, Now(12), Stamp(3));
        absent.remove(a);
        absent.insert(a, Now(15), Stamp(5));
        assert_eq!((absent.next(), absent.take(Now(9))), (Some(Now(10)), None));
        assert_eq!(absent.acked(), Some(Stamp::ZERO));
        assert_eq!(absent.take(Now(12)), Some(b));
        assert_eq!(absent.acked(), Some(Stamp(3)));
        assert_eq!(absent.take(Now(12)), Some(c));
        assert_eq!((absent.take(Now(12)), absent.next()), (None, Some(Now(15))));
        absent.remove(a);
        assert_eq!((absent.next(), absent.acked()), (None, None));
    }
}
