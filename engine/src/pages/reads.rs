//! Pages that must be read: the requests that wait for each, and the order of the reads.
//!
//! Each session has a queue of its own, the installer another, and they take turns, a page each; only a few
//! reads are with the host at a time. So a session that asks for a thousand pages waits for a thousand. A
//! session that asks for one page waits for a few, whatever the others want. A page is read once however many
//! requests wait for it. The invariant: a page that is waited for and not with the host is in the queue of
//! every asker that waits for it.

use std::collections::VecDeque;

use tercel_wire::id::{PageId, Stamp};
use tercel_wire::message::Fetch;

use crate::effect::Conn;
use crate::table::Map;

/// The pages that must be read, with a queue for each session and one for the node itself.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    pages: Map<PageId, Reading>,
    queues: Map<Asker, VecDeque<PageId>>,
    /// The askers whose queues are not empty.
    round_robin: VecDeque<Asker>,
    /// Reads that are with the host.
    out: usize,
}

/// A request that waits for a page to be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A client's fetch.
    Fetch(Conn, u64, Fetch),
    /// A commit that must know how much room there is.
    Commit(Conn, u64),
    /// The large transaction of that number.
    Large(Conn, u64),
    /// A transaction inside of this server, by its session's connection.
    Inside(Conn, PageId),
    /// The end of what was released there.
    Release(PageId),
    /// A collection.
    Collect(PageId),
    /// The settlement of the part that was prepared at that stamp.
    Settle(Stamp),
    /// The installer.
    Install,
    /// The host, which asks again.
    Host,
}

/// A session, or the node itself.
type Asker = Option<Conn>;

#[derive(Debug, Default)]
struct Reading {
    waiters: Vec<Waiter>,
    /// Set once the host has been asked.
    is_out: bool,
    /// The bytes that it brings may be older than those stored since.
    again: bool,
}

/// Reads with the host at a time: enough that it always has the next one at hand, few enough that what is
/// asked for now waits some hundred microseconds for them.
pub(crate) const OUT_MAX: usize = 8;

/// The purpose of a read that has come back.
pub(crate) enum Done {
    /// For these.
    For(Vec<Waiter>),
    /// The read must be done once more.
    Again,
    /// No request waits for it.
    Unasked,
}

impl Waiter {
    fn asker(&self) -> Asker {
        match self {
            Waiter::Fetch(conn, ..) | Waiter::Commit(conn, _) | Waiter::Large(conn, _) => Some(*conn),
            Waiter::Inside(conn, _) => Some(*conn),
            Waiter::Release(_) | Waiter::Collect(_) | Waiter::Settle(_) | Waiter::Install | Waiter::Host => {
                None
            }
        }
    }
}

impl Reads {
    /// Adds a request that waits for a page, and queues the page unless the host reads it already.
    pub(crate) fn wait(&mut self, page: PageId, waiter: Waiter) {
        let asker = waiter.asker();
        let reading = self.pages.entry(page).or_default();
        reading.waiters.push(waiter);
        if reading.is_out {
            return;
        }
        let queue = self.queues.entry(asker).or_default();
        if queue.is_empty() {
            self.round_robin.push_back(asker);
        }
        queue.push_back(page);
    }

    /// As [`Reads::wait`], unless the same waits already.
    pub(crate) fn wait_once(&mut self, page: PageId, waiter: Waiter) {
        if !self.pages.get(&page).is_some_and(|r| r.waiters.contains(&waiter)) {
            self.wait(page, waiter);
        }
    }

    /// The next page to read, if one more may be with the host.
    pub(crate) fn next(&mut self) -> Option<PageId> {
        while self.out < OUT_MAX {
            let asker = self.round_robin.pop_front()?;
            let Some(queue) = self.queues.get_mut(&asker) else { continue };
            let page = queue.pop_front();
            if queue.is_empty() {
                self.queues.remove(&asker);
            } else {
                self.round_robin.push_back(asker);
            }
            // Another's turn may have come first.
            let reading = page.and_then(|page| self.pages.get_mut(&page)).filter(|r| !r.is_out);
            if let Some(reading) = reading {
                reading.is_out = true;
                self.out += 1;
                return page;
            }
        }
        None
    }

    /// A page has been read.
    pub(crate) fn done(&mut self, page: PageId) -> Done {
        let Some(reading) = self.pages.get_mut(&page).filter(|r| r.is_out) else { return Done::Unasked };
        if std::mem::take(&mut reading.again) {
            return Done::Again;
        }
        self.out -= 1;
        self.pages.remove(&page).map_or(Done::Unasked, |r| Done::For(r.waiters))
    }

    /// The page was stored: a read of it that is under way may have seen it as it was before.
    pub(crate) fn stored(&mut self, page: PageId) {
        if let Some(reading) = self.pages.get_mut(&page) {
            reading.again = reading.is_out;
        }
    }

    /// A session is gone. What is with the host comes back all the same.
    pub(crate) fn forget(&mut self, conn: Conn) {
        let asker = Some(conn);
        self.queues.remove(&asker);
        self.round_robin.retain(|t| *t != asker);
        self.pages.retain(|_, reading| {
            reading.waiters.retain(|w| w.asker() != asker);
            reading.is_out || !reading.waiters.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(n: u32) -> PageId {
        PageId::new(n).unwrap()
    }

    fn fetch(reads: &mut Reads, conn: u64, n: u32) {
        reads.wait(page(n), Waiter::Fetch(Conn(conn), 1, Fetch { page: page(n), fetch: 1, since: None }));
    }

    /// Answers reads one by one until none is left: the pages in the order in which they were asked for.
    fn drain(reads: &mut Reads) -> Vec<u32> {
        let mut order = Vec::new();
        let mut out = VecDeque::new();
        loop {
            while let Some(page) = reads.next() {
                order.push(page.get());
                out.push_back(page);
            }
            let Some(page) = out.pop_front() else { return order };
            assert!(matches!(reads.done(page), Done::For(_)));
        }
    }

    #[test]
    fn one_page_of_another_session_waits_for_a_few_and_not_for_hundreds() {
        let mut reads = Reads::default();
        (1..=200).for_each(|n| fetch(&mut reads, 1, n));
        let mut with_host: Vec<PageId> = std::iter::from_fn(|| reads.next()).collect();
        assert_eq!(with_host.len(), OUT_MAX);
        fetch(&mut reads, 2, 900);
        reads.done(with_host.pop().unwrap());
        reads.done(with_host.pop().unwrap());
        let next: Vec<u32> = std::iter::from_fn(|| reads.next()).map(|p| p.get()).collect();
        assert!(next.contains(&900), "{next:?}");
    }

    #[test]
    fn sessions_and_the_installer_take_turns() {
        let mut reads = Reads::default();
        (1..=3).for_each(|n| fetch(&mut reads, 1, n));
        (11..=13).for_each(|n| fetch(&mut reads, 2, n));
        (21..=22).for_each(|n| reads.wait(page(n), Waiter::Install));
        assert_eq!(drain(&mut reads), [1, 11, 21, 2, 12, 22, 3, 13]);
    }

    #[test]
    fn page_is_read_once_for_all_waiters() {
        let mut reads = Reads::default();
        (1..=20).for_each(|n| fetch(&mut reads, 1, n));
        fetch(&mut reads, 2, 20);
        let order = drain(&mut reads);
        assert_eq!(order.iter().filter(|n| **n == 20).count(), 1);
        assert_eq!(order[1], 20);
        assert_eq!(order.len(), 20);
        assert!(reads.pages.is_empty() && reads.queues.is_empty() && reads.round_robin.is_empty());
    }

    #[test]
    fn closed_session_leaves_no_read() {
        let mut reads = Reads::default();
        (1..=100).for_each(|n| fetch(&mut reads, 1, n));
        fetch(&mut reads, 2, 50);
        let with_host: Vec<PageId> = std::iter::from_fn(|| reads.next()).collect();
        reads.forget(Conn(1));
        with_host.into_iter().for_each(|p| _ = reads.done(p));
        assert!(drain(&mut reads).len() <= 1);
        assert!(reads.pages.is_empty() && reads.queues.is_empty() && reads.round_robin.is_empty());
    }

    #[test]
    fn what_was_stored_meanwhile_is_read_again() {
        let mut reads = Reads::default();
        fetch(&mut reads, 1, 5);
        reads.stored(page(5));
        assert_eq!(reads.next(), Some(page(5)));
        reads.stored(page(5));
        assert!(matches!(reads.done(page(5)), Done::Again));
        assert!(matches!(reads.done(page(5)), Done::For(w) if w.len() == 1));
        assert!(matches!(reads.done(page(5)), Done::Unasked));
    }
}
