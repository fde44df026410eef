//! An archive taken for a server, whatever writer has it.
//!
//! A younger view takes an archive over by itself, and each restored space has younger views than the one it
//! was made of. So a copy that was served for a while would keep the archive from the original for good.
//!
//! The invariant: the views of other histories than the server's write nothing after a take, until the next
//! one; and a take loses nothing that a writer has named in the head meanwhile.

use tercel::{SpaceId, ViewId};

use crate::catalogue::ArchiveError;
use crate::head::{HEAD, Head};
use crate::store::{Store, StoreError};
use crate::writer::{drawn, refuse_other};

/// Gives an archive to the server of a space that leads a view, and to its later views.
///
/// # Errors
/// If there is no archive, or one of another space, or the store fails.
pub fn take(store: &dyn Store, space: SpaceId, view: ViewId, name: &str) -> Result<(), ArchiveError> {
    for _ in 0..ATTEMPTS {
        let (mut head, old) = Head::read(store)?.ok_or_else(|| ArchiveError::Nothing(store.url()))?;
        refuse_other(&head, space, store).map_err(|why| ArchiveError::NotThere(why.to_string()))?;
        // Views of other histories are at least so far above.
        let above = view.number.saturating_add(VIEWS_OF_A_HISTORY);
        let theirs = head.view.0;
        head.ceiling = Some(if theirs > view.number { above.min(theirs - 1) } else { above });
        head.view = (view.number, view.incarnation);
        head.owner = format!("{:016x}", drawn(name));
        head.writer = name.into();
        head.taken = true;
        if store.swap(HEAD, Some(&old), &head.to_bytes())? {
            return Ok(());
        }
    }
    let (what, why) = ("replacing head".into(), "a writer changes it: stop its server".into());
    Err(StoreError::Failed { store: store.url(), what, why }.into())
}

/// A writer changes the head once a second at most.
const ATTEMPTS: usize = 20;

/// The views of a restored space begin more than so many above those of the space that it was made of.
const VIEWS_OF_A_HISTORY: u32 = (1 << 16) - 1;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;
    use crate::dir::DirStore;

    /// A store whose writer goes on just behind the first look at the head.
    struct Busy {
        store: DirStore,
        reads: AtomicU64,
    }

    impl Store for Busy {
        fn url(&self) -> String {
            self.store.url()
        }
        fn put(&self, name: &str, bytes: &[u8]) -> Result<bool, StoreError> {
            self.store.put(name, bytes)
        }
        fn swap(&self, name: &str, old: Option<&[u8]>, new: &[u8]) -> Result<bool, StoreError> {
            self.store.swap(name, old, new)
        }
        fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
            let bytes = self.store.get(name);
            if self.reads.fetch_add(1, Relaxed) == 0 {
                let (mut head, old) = Head::read(&self.store)?.unwrap();
                head.upto_ms = 7;
                assert!(self.store.swap(HEAD, Some(&old), &head.to_bytes())?);
            }
            bytes
        }
        fn list(&self, begin: &str) -> Result<Vec<String>, StoreError> {
            self.store.list(begin)
        }
        fn remove(&self, name: &str) -> Result<(), StoreError> {
            self.store.remove(name)
        }
    }

    #[test]
    fn take_keeps_what_a_writer_adds_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let store = DirStore::open(dir.path()).unwrap();
        let (space, view) = (SpaceId(1), ViewId::new(1, 1));
        let head = Head::new(space, 1, "a writer", view);
        assert!(store.swap(HEAD, None, &head.to_bytes()).unwrap());
        let busy = Busy { store, reads: AtomicU64::new(0) };
        take(&busy, space, view, "a test").unwrap();
        let (head, _) = Head::read(&busy.store).unwrap().unwrap();
        assert_eq!((head.upto_ms, head.taken, busy.reads.load(Relaxed)), (7, true, 2));
        assert!(take(&busy, SpaceId(2), view, "a test").is_err());
    }
}
