//! Receive buffers, leased and returned.
//!
//! The queue owns a fixed number of buffers. A received event carries one as a [`Lease`]; dropping the lease
//! puts it back. A buffer is one boxed slice that moves between the pool and the lease, so it has one owner
//! at any time and no unsafe code is needed. Not for other threads: a lease stays with the thread of its
//! queue.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// Received bytes in a buffer that belongs to the queue. Dropping it gives the buffer back; holding many
/// makes the queue stop receiving until some return.
pub struct Lease {
    /// The whole buffer; empty only while being dropped.
    buffer: Box<[u8]>,
    bytes: usize,
    pool: Rc<Pool>,
}

impl Lease {
    /// The whole buffer, to receive into.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Says how many bytes were received.
    pub(crate) fn fill(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.buffer.len());
        self.bytes = bytes;
    }

    /// Says whether the bytes fill the buffer, so that more may be waiting in the kernel.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes == self.buffer.len()
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.bytes]
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.bytes]
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Lease({} bytes)", self.bytes)
    }
}

impl Drop for Lease {
    #[inline]
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        self.pool.free.borrow_mut().push(buffer);
    }
}

/// The buffers that no lease holds.
pub(crate) struct Pool {
    /// A stack: the buffer returned last is leased next, while its lines are still in the cache. Its capacity
    /// is the number of buffers, so returning one never allocates.
    free: RefCell<Vec<Box<[u8]>>>,
}

impl Pool {
    pub(crate) fn new(buffers: usize, buffer_bytes: usize) -> Rc<Self> {
        let free = (0..buffers).map(|_| vec![0; buffer_bytes].into_boxed_slice()).collect();
        Rc::new(Pool { free: RefCell::new(free) })
    }

    /// A buffer without bytes in it, if one is free.
    #[inline]
    pub(crate) fn lease(self: &Rc<Self>) -> Option<Lease> {
        let buffer = self.free.borrow_mut().pop()?;
        Some(Lease { buffer, bytes: 0, pool: Rc::clone(self) })
    }

    /// Counts the buffers that no lease holds.
    pub(crate) fn free(&self) -> usize {
        self.free.borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_lease_can_be_leased_again() {
        let pool = Pool::new(2, 16);
        let first = pool.lease().unwrap();
        let _second = pool.lease().unwrap();
        assert!(pool.lease().is_none());
        assert_eq!(pool.free(), 0);
        drop(first);
        assert_eq!(pool.lease().unwrap().space().len(), 16);
    }

    #[test]
    fn a_lease_shows_only_what_was_received() {
        let pool = Pool::new(1, 16);
        let mut lease = pool.lease().unwrap();
        lease.space()[..3].copy_from_slice(b"abc");
        lease.fill(3);
        assert_eq!(&lease[..], b"abc");
        assert!(!lease.is_full());
    }

    #[test]
    fn a_lease_may_outlive_its_queue() {
        let pool = Pool::new(1, 16);
        let lease = pool.lease().unwrap();
        drop(pool);
        assert!(lease.is_empty());
    }
}
