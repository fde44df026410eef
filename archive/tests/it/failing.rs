//! A store that fails when it is told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use tercel_archive::store::{Store, StoreError};

/// The way in which a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fails {
    /// Nothing is done.
    Before,
    /// It is done, and nobody hears of it.
    After,
}

/// A store whose calls fail from a number of them on, until it is mended.
pub struct Failing {
    store: Arc<dyn Store>,
    /// Calls that succeed.
    left: AtomicI64,
    fails: Fails,
}

impl Failing {
    pub fn new(store: Arc<dyn Store>, left: i64, fails: Fails) -> Failing {
        Failing { store, left: AtomicI64::new(left), fails }
    }

    /// From now on, calls fail.
    pub fn end(&self) {
        self.left.store(0, SeqCst);
    }

    pub fn mend(&self) {
        self.left.store(i64::MAX, SeqCst);
    }

    pub fn has_failed(&self) -> bool {
        self.left.load(SeqCst) < 0
    }

    fn call<R>(&self, call: impl FnOnce(&dyn Store) -> Result<R, StoreError>) -> Result<R, StoreError> {
        let left = self.left.fetch_sub(1, SeqCst);
        if left > 0 {
            return call(&*self.store);
        }
        // The first that fails may be done.
        if left == 0 && self.fails == Fails::After {
            call(&*self.store)?;
        }
        Err(StoreError::Failed { store: self.url(), what: "a test".into(), why: "it is away".into() })
    }
}

impl Store for Failing {
    fn url(&self) -> String {
        self.store.url()
    }
    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool, StoreError> {
        self.call(|store| store.put(name, bytes))
    }
    fn swap(&self, name: &str, old: Option<&[u8]>, new: &[u8]) -> Result<bool, StoreError> {
        self.call(|store| store.swap(name, old, new))
    }
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.call(|store| store.get(name))
    }
    fn list(&self, begin: &str) -> Result<Vec<String>, StoreError> {
        self.call(|store| store.list(begin))
    }
    fn remove(&self, name: &str) -> Result<(), StoreError> {
        self.call(|store| store.remove(name))
    }
}
