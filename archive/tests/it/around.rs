//! Stores around another one, which change some of its calls.

use tercel_archive::store::{Store, StoreError};

/// The changes of a store's calls: none, where nothing else is said.
pub trait Around: Send + Sync {
    fn store(&self) -> &dyn Store;

    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool, StoreError> {
        self.store().put(name, bytes)
    }

    fn swap(&self, name: &str, old: Option<&[u8]>, new: &[u8]) -> Result<bool, StoreError> {
        self.store().swap(name, old, new)
    }
}

/// A store with these changes.
pub struct Changed<A>(pub A);

impl<A: Around> Store for Changed<A> {
    fn url(&self) -> String {
        self.0.store().url()
    }
    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool, StoreError> {
        self.0.put(name, bytes)
    }
    fn swap(&self, name: &str, old: Option<&[u8]>, new: &[u8]) -> Result<bool, StoreError> {
        self.0.swap(name, old, new)
    }
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.store().get(name)
    }
    fn list(&self, begin: &str) -> Result<Vec<String>, StoreError> {
        self.0.store().list(begin)
    }
    fn remove(&self, name: &str) -> Result<(), StoreError> {
        self.0.store().remove(name)
    }
}
