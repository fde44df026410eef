//! The kinds of store that a test runs with: the same body for each.

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tercel_archive::dir::DirStore;
use tercel_archive::store::Store;

/// A place that has archives, by name.
pub trait Place {
    /// Opens the store of an archive, to write it.
    fn store(&self, archive: &str) -> Arc<dyn Store>;

    /// Gives an object other bytes, or removes it, behind the back of the store.
    fn set(&self, archive: &str, name: &str, bytes: Option<&[u8]>);
}

/// Directories, which vanish with it.
pub fn directories() -> TempDir {
    tempfile::tempdir().unwrap()
}

impl Place for TempDir {
    fn store(&self, archive: &str) -> Arc<dyn Store> {
        Arc::new(DirStore::open(&self.path().join(archive)).unwrap())
    }

    fn set(&self, archive: &str, name: &str, bytes: Option<&[u8]>) {
        let path: &Path = &self.path().join(archive).join(name);
        match bytes {
            Some(bytes) => std::fs::write(path, bytes).unwrap(),
            None => std::fs::remove_file(path).unwrap(),
        }
    }
}

/// Makes tests of functions, one for each kind of store.
macro_rules! in_each_store {
    ($($name:ident),* $(,)?) => {
        mod in_directories {
            $(#[test]
            fn $name() {
                super::$name(&crate::place::directories());
            })*
        }

        #[cfg(feature = "s3")]
        mod in_buckets {
            $(#[test]
            fn $name() {
                super::$name(&tercel_testkit::bucket::Bucket::start());
            })*
        }
    };
}
pub(crate) use in_each_store;
