//! A store that is a directory, perhaps one that is mounted from elsewhere.
//!
//! An object is written beside its place, synced, and linked into it, so it is there whole or not at all,
//! and never replaces another one. The head is compared and replaced under a lock of the file system. Nothing
//! is written into another directory that has come to its name and has no archive: a place that is not
//! mounted any more.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::head::HEAD;
use crate::store::{Store, StoreError};

/// Makes a directory, and those above it that are missing, that only its user enters.
fn private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Makes a file that only its user reads.
fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// A directory with objects.
#[derive(Debug)]
pub struct DirStore {
    dir: PathBuf,
    /// Device and inode of the directory that was opened, or had an archive when it was written to.
    is: Mutex<Option<(u64, u64)>>,
    /// Numbers the files that are being written.
    written: AtomicU64,
}

impl DirStore {
    /// Opens the directory, and makes it if it is not there.
    ///
    /// # Errors
    /// If it cannot be made, or nothing can be written in it.
    pub fn open(dir: &Path) -> Result<DirStore, StoreError> {
        let store = DirStore::at(dir);
        let made = private_dir(dir).and_then(|()| store.temporary("probe", b""));
        let probe = made.map_err(|why| store.failed("open", &why))?;
        fs::remove_file(probe).map_err(|why| store.failed("open", &why))?;
        *store.is.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(inode(dir).map_err(|why| store.failed("open", &why))?);
        store.sweep();
        Ok(store)
    }

    /// A directory that has an archive, or is only read.
    #[must_use]
    pub fn at(dir: &Path) -> DirStore {
        DirStore { dir: dir.into(), is: Mutex::new(None), written: AtomicU64::new(0) }
    }

    /// Removes what writers that were killed have left beside the objects, long ago.
    fn sweep(&self) {
        let is_left = |entry: &fs::DirEntry| {
            let name = entry.file_name();
            let is_ours = |name: &str| OWN.iter().any(|own| name.starts_with(own)) && name.ends_with(".tmp");
            let is_temporary = name.to_str().is_some_and(is_ours);
            let age = entry.metadata().and_then(|of| of.modified()).ok().and_then(|at| at.elapsed().ok());
            is_temporary && age.is_some_and(|age| age > LEFT)
        };
        let Ok(all) = fs::read_dir(&self.dir) else { return };
        all.flatten().filter(is_left).for_each(|entry| _ = fs::remove_file(entry.path()));
    }

    /// Sees that the directory is the one that was opened, or has an archive.
    fn see(&self) -> io::Result<()> {
        let found = inode(&self.dir)?;
        let mut is = self.is.lock().unwrap_or_else(PoisonError::into_inner);
        if *is != Some(found) && !self.path(HEAD).exists() {
            let why =
                "another directory is there, and it has no archive: bring the place of the archive back";
            return Err(io::Error::other(why));
        }
        *is = Some(found);
        Ok(())
    }

    fn failed(&self, what: &str, error: &io::Error) -> StoreError {
        let (store, what, why) = (self.url(), what.into(), error.to_string());
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                StoreError::Refused { store, what, why }
            }
            _ => StoreError::Failed { store, what, why },
        }
    }

    /// Writes a file beside the objects, durably.
    fn temporary(&self, for_name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let name = for_name.replace('/', "-");
        let path = self.dir.join(format!(".{name}.{}.{number}.tmp", std::process::id()));
        let mut file = private_file(&path)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if let Err(why) = written {
            let _ = fs::remove_file(&path);
            return Err(why);
        }
        Ok(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn put_whole(&self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        self.see()?;
        let path = self.path(name);
        let parent = path.parent().unwrap_or(&self.dir);
        if !parent.is_dir() {
            private_dir(parent)?;
            // Up to the directory itself, new names must be durable, too.
            let mut above = parent.ancestors().skip(1).take_while(|above| above.starts_with(&self.dir));
            above.try_for_each(sync)?;
        }
        let temporary = self.temporary(name, bytes)?;
        let linked = fs::hard_link(&temporary, &path);
        fs::remove_file(&temporary)?;
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            linked => linked.and_then(|()| sync(parent)).map(|()| true),
        }
    }

    fn swap_whole(&self, name: &str, old: Option<&[u8]>, new: &[u8]) -> io::Result<bool> {
        self.see()?;
        let lock = private_file(&self.path(&format!(".{name}.lock")))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let path = self.path(name);
        if read(&path)?.as_deref() != old {
            return Ok(false);
        }
        let temporary = self.temporary(name, new)?;
        fs::rename(&temporary, &path)?;
        sync(&self.dir)?;
        Ok(true)
    }

    fn list_in(&self, dir: &Path, names: &mut Vec<String>) -> io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if entry.file_type()?.is_dir() {
                self.list_in(&entry.path(), names)?;
            } else if let Some(name) = entry.path().strip_prefix(&self.dir).ok().and_then(Path::to_str)
                && !hidden
            {
                names.push(name.into());
            }
        }
        Ok(())
    }
}

/// The beginnings of the names of files that are being written.
const OWN: [&str; 4] = [".head.", ".log-", ".base-", ".probe."];

/// Nothing takes so long to be written.
const LEFT: Duration = Duration::from_secs(3_600);

fn inode(dir: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(dir).map(|of| (of.dev(), of.ino()))
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Store for DirStore {
    fn url(&self) -> String {
        format!("file://{}", self.dir.display())
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool, StoreError> {
        self.put_whole(name, bytes).map_err(|why| self.failed(&format!("writing {name}"), &why))
    }

    fn swap(&self, name: &str, old: Option<&[u8]>, new: &[u8]) -> Result<bool, StoreError> {
        self.swap_whole(name, old, new).map_err(|why| self.failed(&format!("replacing {name}"), &why))
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        read(&self.path(name)).map_err(|why| self.failed(&format!("reading {name}"), &why))
    }

    fn list(&self, begin: &str) -> Result<Vec<String>, StoreError> {
        let mut names = Vec::new();
        self.list_in(&self.dir, &mut names).map_err(|why| self.failed("listing", &why))?;
        names.retain(|name| name.starts_with(begin));
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<(), StoreError> {
        match fs::remove_file(self.path(name)) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => {
                Err(self.failed(&format!("removing {name}"), &why))
            }
            _ => Ok(()),
        }
    }
}
