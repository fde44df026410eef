//! An archive asks few things of a store, which object stores have as well as directories.
//!
//! Objects are written once and whole: whoever reads a name finds all of its bytes or nothing. One object,
//! the head, is changed, by comparing and swapping.

use thiserror::Error;

/// An error of a store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The URL names no store.
    #[error("`{url}` names no store{why}; say file:///DIR or s3://BUCKET/PATH")]
    Url {
        /// The URL, without what may be a secret.
        url: String,
        /// The reason, behind a colon; empty if the scheme is unknown.
        why: String,
    },
    /// The store refuses, and will refuse again until somebody has changed something: keys, rights, settings.
    #[error("the store {store} refuses {what}: {why}")]
    Refused {
        /// The store.
        store: String,
        /// The request.
        what: String,
        /// The reason, and what to change.
        why: String,
    },
    /// An object of the store has other bytes than were written.
    #[error("{what} in the store {store} cannot be read: {why}")]
    Damaged {
        /// The store.
        store: String,
        /// The object.
        what: String,
        /// The defect.
        why: String,
    },
    /// The store cannot be reached, or fails: it is tried again.
    #[error("the store {store} fails at {what}: {why}")]
    Failed {
        /// The store.
        store: String,
        /// The request.
        what: String,
        /// The words of the store.
        why: String,
    },
}

/// A place for objects, by names of parts with `/` between.
pub trait Store: Send + Sync {
    /// The URL of the store, for people.
    fn url(&self) -> String;

    /// Writes an object durably, unless one of that name is there. Says whether it was written.
    ///
    /// # Errors
    /// If the store fails; the object may then be there.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool, StoreError>;

    /// Replaces an object, if it has these bytes now, or is not there. Says whether it was replaced.
    ///
    /// # Errors
    /// If the store fails; the object may then be replaced.
    fn swap(&self, name: &str, old: Option<&[u8]>, new: &[u8]) -> Result<bool, StoreError>;

    /// The bytes of an object; none if it is not there.
    ///
    /// # Errors
    /// If the store fails.
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// The names of all objects that begin so, in order.
    ///
    /// # Errors
    /// If the store fails.
    fn list(&self, begin: &str) -> Result<Vec<String>, StoreError>;

    /// Removes an object, which may be gone.
    ///
    /// # Errors
    /// If the store fails.
    fn remove(&self, name: &str) -> Result<(), StoreError>;
}
