//! Bytes of items that wait to be sent to a client, over all of its streams.
//!
//! Each stream has a window. All windows of a client together are more than the unsent bytes at which a slow
//! reader is cut off, and calls that have ended may have left items unsent. So a procedure waits while its
//! client has [`ITEMS_UNSENT_MAX`] to take. The invariant: the bytes that are reserved and not handed on, and
//! those that were unsent when the loop looked last, are at most that when an item is let through, or the
//! item is alone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tercel_lock::unpoison;
use tercel_wire::id::ClientId;
use tercel_wire::message::ITEM_BYTES;

use super::start::ITEMS_UNSENT_MAX;

/// The bytes that wait for one client.
pub(super) struct Backlog {
    bytes: Mutex<Bytes>,
    /// The loop is to look at the backlogs: shared by all of them.
    is_due: Arc<AtomicBool>,
}

#[derive(Default)]
struct Bytes {
    /// Bytes of all items that were let through, and bytes of those among them that the machine has.
    reserved: usize,
    handed: usize,
    /// Unsent bytes of the connection at the loop's last look.
    unsent: usize,
    /// The smallest item for whose room a procedure waits, if one does.
    awaited: Option<usize>,
}

impl Bytes {
    /// Says whether an item may be let through.
    fn has_room(&self, item: usize) -> bool {
        let waits = self.unsent + self.reserved;
        waits == 0 || waits + item <= ITEMS_UNSENT_MAX
    }
}

impl Backlog {
    /// Lets an item of so many bytes through, if there is room for it.
    pub(super) fn reserve(&self, item: usize) -> bool {
        let mut bytes = self.bytes();
        let item = item + ITEM_BYTES;
        let has_room = bytes.has_room(item);
        if has_room {
            bytes.reserved += item;
        } else {
            bytes.awaited = Some(bytes.awaited.map_or(item, |least| least.min(item)));
            self.is_due.store(true, Ordering::Release);
        }
        has_room
    }

    fn bytes(&self) -> MutexGuard<'_, Bytes> {
        unpoison(self.bytes.lock())
    }
}

/// The backlogs of all clients whose calls have streams.
#[derive(Default)]
pub(super) struct Backlogs {
    of: BTreeMap<ClientId, Arc<Backlog>>,
    is_due: Arc<AtomicBool>,
}

impl Backlogs {
    /// The flag by which the loop learns that it must look at the backlogs.
    pub(super) fn due(&self) -> Arc<AtomicBool> {
        self.is_due.clone()
    }

    /// The backlog of a client.
    pub(super) fn of(&mut self, client: ClientId) -> Arc<Backlog> {
        let is_due = &self.is_due;
        let new = || Arc::new(Backlog { bytes: Mutex::default(), is_due: is_due.clone() });
        self.of.entry(client).or_insert_with(new).clone()
    }

    /// Has the loop look at them: one may be of no use any more.
    pub(super) fn look(&self) {
        self.is_due.store(true, Ordering::Release);
    }

    /// The machine has an item of a client now: it is unsent, or was dropped.
    pub(super) fn handed(&self, client: ClientId, item: usize) {
        if let Some(backlog) = self.of.get(&client) {
            backlog.bytes().handed += item + ITEM_BYTES;
            self.look();
        }
    }

    /// Looks how much is unsent to each client, once what was handed on is with its connection. Gives the
    /// clients whose procedures are to look again whether there is room.
    pub(super) fn settle(&mut self, mut unsent: impl FnMut(ClientId) -> usize) -> Vec<ClientId> {
        let (mut awaited, mut is_due) = (Vec::new(), false);
        self.of.retain(|client, backlog| {
            let mut bytes = backlog.bytes();
            bytes.reserved -= std::mem::take(&mut bytes.handed).min(bytes.reserved);
            bytes.unsent = unsent(*client);
            // Nobody is woken to find what was there before.
            if bytes.awaited.is_some_and(|item| bytes.has_room(item)) {
                bytes.awaited = None;
                awaited.push(*client);
            }
            // What is unsent is looked at again until it is taken.
            is_due |= bytes.unsent > 0;
            bytes.unsent > 0 || bytes.reserved > 0 || Arc::strong_count(backlog) > 1
        });
        if is_due {
            self.is_due.store(true, Ordering::Release);
        }
        awaited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: ClientId = ClientId(7);

    #[test]
    fn items_wait_for_what_their_client_has_not_taken() {
        let mut backlogs = Backlogs::default();
        let (one, other) = (backlogs.of(CLIENT), backlogs.of(CLIENT));
        let item = 1 << 20;
        let sent =
            (0..).take_while(|n| if n % 2 == 0 { one.reserve(item) } else { other.reserve(item) }).count();
        assert_eq!(sent, ITEMS_UNSENT_MAX / (item + ITEM_BYTES));
        assert!(backlogs.of(ClientId(8)).reserve(item), "other clients have a backlog of their own");
        (0..sent).for_each(|_| backlogs.handed(CLIENT, item));
        // All of it is with the connection, which is slow.
        assert_eq!(backlogs.settle(|_| sent * item), [], "nobody finds room");
        assert!(!one.reserve(item));
        assert_eq!(backlogs.settle(|_| item), [CLIENT]);
        assert!(one.reserve(item) && other.reserve(item));
    }

    #[test]
    fn backlog_is_kept_until_its_client_has_taken_what_ended_calls_left() {
        let mut backlogs = Backlogs::default();
        assert!(backlogs.of(CLIENT).reserve(1_000));
        backlogs.handed(CLIENT, 1_000);
        assert!(backlogs.settle(|_| ITEMS_UNSENT_MAX).is_empty());
        assert!(!backlogs.of(CLIENT).reserve(1), "of the next call");
        assert!(backlogs.due().swap(false, Ordering::SeqCst));
        backlogs.settle(|_| 0);
        assert!(backlogs.of.is_empty());
        assert!(!backlogs.due().load(Ordering::SeqCst), "nothing is left to be looked at");
    }
}
