//! The page store on redb, a copy-on-write B+tree file.
//!
//! Commits save the allocator's state ("quick repair"), so that opening after a crash does not walk the file.
//! The library's cache is small, because the server caches pages itself. Whether the disk has room for a
//! batch is looked at before it is begun; if it runs out nevertheless, the library refuses everything until
//! its file is opened anew, which is done here. A panic in the library is caught here and becomes
//! [`DiskError::Damaged`], since damaged files are what makes it panic; after one, everything is refused.

use super::{EachPage, PageBatch, PageRead, PageStore, copy_on_write};
use crate::disk::DiskError;
use crate::disk::held::HeldDir;
use crate::panics::{expected, text};
use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTableMetadata};
use redb::{ReadableTable, TableDefinition, WriteTransaction};
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, RwLock};
use tercel_lock::unpoison;
use tercel_wire::id::{PageId, Stamp};

/// A [`PageStore`] in one redb file.
#[derive(Debug)]
pub struct RedbPages {
    store: Arc<Shared>,
}

impl RedbPages {
    /// Creates the file, without pages, at stamp 0. Replaces what an earlier attempt may have left.
    pub fn create(file: &Path, page_bytes: u32) -> Result<(), DiskError> {
        let (dir, name) = HeldDir::around(file)?;
        RedbPages::create_in(&dir, name, page_bytes)
    }

    /// As [`RedbPages::create`], in a directory that is held.
    pub(crate) fn create_in(dir: &HeldDir, name: &Path, page_bytes: u32) -> Result<(), DiskError> {
        if dir.has(name) {
            dir.remove(name)?;
        }
        let guard = Guard::new(Some(dir.clone()), &dir.file(name), page_bytes);
        guard.run(|| {
            let file = dir.open_file(name, OFlags::RDWR | OFlags::CREATE)?;
            fill(&database(file)?, page_bytes)
        })?;
        dir.sync()
    }

    /// Opens the file that [`RedbPages::create`] made for pages of `page_bytes`.
    pub fn open(file: &Path, page_bytes: u32) -> Result<RedbPages, DiskError> {
        let (dir, name) = HeldDir::around(file)?;
        RedbPages::open_in(&dir, name, page_bytes)
    }

    /// As [`RedbPages::open`], in a directory that is held.
    pub(crate) fn open_in(dir: &HeldDir, name: &Path, page_bytes: u32) -> Result<RedbPages, DiskError> {
        let guard = Guard::new(Some(dir.clone()), &dir.file(name), page_bytes);
        guard.look_at_file()?;
        let db = guard.run(|| guard.open())?;
        RedbPages::check(db, guard)
    }

    /// Gives bytes of the file in which nothing is any more back to the file system: its length before and
    /// after. The library itself only shortens the file by what happens to be free at its end. Takes as long
    /// as copying what is in it.
    pub fn compact(file: &Path, page_bytes: u32) -> Result<(u64, u64), DiskError> {
        let guard = Guard::new(None, file, page_bytes);
        let bytes = || std::fs::metadata(file).map(|m| m.len()).map_err(DiskError::io("look at", file));
        let before = bytes()?;
        guard.run(|| {
            let mut db = Builder::new().set_cache_size(CACHE_BYTES).open(file)?;
            while db.compact()? {}
            Ok(())
        })?;
        Ok((before, bytes()?))
    }

    /// Opens it to read: the file stays as it is, byte for byte.
    pub(crate) fn look(file: &Path, page_bytes: u32) -> Result<RedbPages, DiskError> {
        RedbPages::look_with(Guard::new(None, file, page_bytes))
    }

    /// Opens what may be damaged to read: of each read that fails nothing follows for the others.
    pub(crate) fn look_damaged(file: &Path, page_bytes: u32) -> Result<RedbPages, DiskError> {
        RedbPages::look_with(Guard { is_lasting: false, ..Guard::new(None, file, page_bytes) })
    }

    /// The page with the highest id.
    pub(crate) fn last_page(&self) -> Result<Option<PageId>, DiskError> {
        self.store
            .now(|txn| Ok(txn.open_table(PAGES)?.last()?.and_then(|(page, _)| PageId::new(page.value()))))
    }

    fn look_with(guard: Guard) -> Result<RedbPages, DiskError> {
        guard.look_at_file()?;
        let db = guard.run(|| Ok(copy_on_write::open(&guard.file)?))?;
        RedbPages::check(db, guard)
    }

    fn check(db: Database, guard: Guard) -> Result<RedbPages, DiskError> {
        let stored = guard.run(|| state(&db.begin_read()?, PAGE_BYTES))?;
        if stored != guard.page_bytes as u64 {
            let what = format!("its pages have {stored} bytes, those of the space {}", guard.page_bytes);
            return Err(guard.damaged(what));
        }
        Ok(RedbPages { store: Arc::new(Shared { db: RwLock::new(Some(db)), guard }) })
    }
}

impl PageStore for RedbPages {
    fn commit(&mut self, batch: &PageBatch<'_>) -> Result<(), DiskError> {
        let guard = &self.store.guard;
        for (page, bytes) in batch.pages {
            assert_eq!(
                bytes.len(),
                guard.page_bytes as usize,
                "page {page} has the size of the space's pages"
            );
        }
        assert!(batch.applied_stamp >= self.applied_stamp()?, "the applied stamp never goes back");
        let bytes = batch.pages.len() * guard.page_bytes as usize
            + batch.meta.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        guard.look_for_room(bytes as u64)?;
        let committed = self.store.with(|db| {
            let txn = begin(db)?;
            write(&txn, batch)?;
            Ok(txn.commit()?)
        });
        match &committed {
            Ok(()) => {}
            Err(DiskError::Full { .. }) => drop(self.store.reopen()),
            Err(error) => guard.poison(error.to_string()),
        }
        committed
    }

    fn reader(&self) -> Box<dyn PageRead> {
        Box::new(RedbPages { store: self.store.clone() })
    }

    fn pin(&self) -> Result<Box<dyn PageRead>, DiskError> {
        let txn = self.store.with(|db| Ok(db.begin_read()?))?;
        Ok(Box::new(Pinned { txn, store: self.store.clone() }))
    }
}

impl PageRead for RedbPages {
    fn read(&self, page: PageId, buf: &mut Vec<u8>) -> Result<bool, DiskError> {
        self.store.now(|txn| read(txn, &self.store.guard, page, buf))
    }

    fn meta(&self, key: &str) -> Result<Option<Vec<u8>>, DiskError> {
        self.store.now(|txn| meta(txn, key))
    }

    fn applied_stamp(&self) -> Result<Stamp, DiskError> {
        self.store.now(|txn| Ok(Stamp(state(txn, APPLIED_STAMP)?)))
    }

    fn page_count(&self) -> Result<u64, DiskError> {
        self.store.now(|txn| Ok(txn.open_table(PAGES)?.len()?))
    }

    fn for_each_page(&self, each: EachPage<'_>) -> Result<(), DiskError> {
        self.pin()?.for_each_page(each)
    }
}

/// A commit of the store that is kept.
struct Pinned {
    txn: ReadTransaction,
    store: Arc<Shared>,
}

impl PageRead for Pinned {
    fn read(&self, page: PageId, buf: &mut Vec<u8>) -> Result<bool, DiskError> {
        self.store.guard.run(|| read(&self.txn, &self.store.guard, page, buf))
    }

    fn meta(&self, key: &str) -> Result<Option<Vec<u8>>, DiskError> {
        self.store.guard.run(|| meta(&self.txn, key))
    }

    fn applied_stamp(&self) -> Result<Stamp, DiskError> {
        self.store.guard.run(|| Ok(Stamp(state(&self.txn, APPLIED_STAMP)?)))
    }

    fn page_count(&self) -> Result<u64, DiskError> {
        self.store.guard.run(|| Ok(self.txn.open_table(PAGES)?.len()?))
    }

    fn for_each_page(&self, each: EachPage<'_>) -> Result<(), DiskError> {
        let guard = &self.store.guard;
        let mut pages = guard.run(|| Ok(self.txn.open_table(PAGES)?.range::<u32>(..)?))?;
        // `each` runs outside the guard: its panics are not the library's.
        while let Some((page, bytes)) = guard.run(|| Ok(pages.next().transpose()?))? {
            let id = PageId::new(page.value())
                .ok_or_else(|| guard.damaged(format!("it has a page {}", page.value())))?;
            each(id, bytes.value())?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Shared {
    /// The store; none while it could not be opened again.
    db: RwLock<Option<Database>>,
    guard: Guard,
}

impl Shared {
    /// Reads in the newest commit. A transaction kept between reads would keep replaced pages on disk while
    /// no thread reads.
    fn now<T>(&self, f: impl FnOnce(&ReadTransaction) -> Result<T, Failure>) -> Result<T, DiskError> {
        self.with(|db| f(&db.begin_read()?))
    }

    fn with<T>(&self, f: impl FnOnce(&Database) -> Result<T, Failure>) -> Result<T, DiskError> {
        // A thread that panicked did so in the library, after which the guard refuses everything.
        let db = unpoison(self.db.read());
        match &*db {
            Some(db) => self.guard.run(|| f(db)),
            None => {
                drop(db);
                // Opened, it is there at the next attempt.
                self.reopen().and(Err(DiskError::Full { path: self.guard.file.clone() }))
            }
        }
    }

    /// Opens the file anew, as after a crash: what was committed is there and the batch that failed is not.
    /// If even that finds no room or no descriptor, the next use tries again.
    fn reopen(&self) -> Result<(), DiskError> {
        let mut db = unpoison(self.db.write());
        *db = None;
        let opened = self.guard.run(|| self.guard.open()).inspect_err(|error| {
            if !error.may_pass() {
                self.guard.poison(error.to_string());
            }
        });
        opened.map(|opened| *db = Some(opened))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The library writes as it closes, and may panic over what is damaged.
        let db = unpoison(self.db.get_mut()).take();
        let _ = expected(|| drop(db));
    }
}

/// Runs the library on an opened file.
fn database(file: File) -> Result<Database, DatabaseError> {
    Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(FileBackend::new(file)?)
}

/// Writes what a store has from its beginning.
fn fill(db: &Database, page_bytes: u32) -> Result<(), Failure> {
    let txn = begin(db)?;
    txn.open_table(PAGES)?;
    txn.open_table(META)?;
    let mut state = txn.open_table(STATE)?;
    state.insert(APPLIED_STAMP, 0)?;
    state.insert(PAGE_BYTES, page_bytes as u64)?;
    drop(state);
    Ok(txn.commit()?)
}

fn begin(db: &Database) -> Result<WriteTransaction, Failure> {
    let mut txn = db.begin_write()?;
    txn.set_quick_repair(true);
    Ok(txn)
}

fn write(txn: &WriteTransaction, batch: &PageBatch<'_>) -> Result<(), Failure> {
    let mut pages = txn.open_table(PAGES)?;
    for (page, bytes) in batch.pages {
        pages.insert(page.get(), *bytes)?;
    }
    for page in batch.gone {
        pages.remove(page.get())?;
    }
    let mut meta = txn.open_table(META)?;
    for (key, bytes) in batch.meta {
        meta.insert(*key, &*[bytes, &sum_of(key, bytes)[..]].concat())?;
    }
    txn.open_table(STATE)?.insert(APPLIED_STAMP, batch.applied_stamp.0)?;
    Ok(())
}

fn read(txn: &ReadTransaction, guard: &Guard, page: PageId, buf: &mut Vec<u8>) -> Result<bool, Failure> {
    buf.clear();
    let Some(bytes) = txn.open_table(PAGES)?.get(page.get())? else { return Ok(false) };
    if bytes.value().len() != guard.page_bytes as usize {
        return Err(Failure::Damaged(format!("page {page} has {} bytes", bytes.value().len())));
    }
    buf.extend_from_slice(bytes.value());
    Ok(true)
}

/// A named value. Nothing but its sum would notice that a byte of it is wrong.
fn meta(txn: &ReadTransaction, key: &str) -> Result<Option<Vec<u8>>, Failure> {
    let Some(value) = txn.open_table(META)?.get(key)?.map(|bytes| bytes.value().to_vec()) else {
        return Ok(None);
    };
    match value.split_last_chunk::<4>() {
        Some((value, sum)) if *sum == sum_of(key, value) => Ok(Some(value.to_vec())),
        _ => Err(Failure::Damaged(format!("the sum of the value `{key}` does not match"))),
    }
}

/// Returns the bytes that follow a named value: the CRC-32 of its name and the value.
fn sum_of(key: &str, value: &[u8]) -> [u8; 4] {
    let mut sum = crc32fast::Hasher::new();
    sum.update(key.as_bytes());
    sum.update(value);
    sum.finalize().to_le_bytes()
}

fn state(txn: &ReadTransaction, key: &str) -> Result<u64, Failure> {
    let value = txn.open_table(STATE)?.get(key)?;
    value.map(|value| value.value()).ok_or_else(|| Failure::Damaged(format!("the value `{key}` is missing")))
}

/// Stands between the library and the server: turns its errors into ours, and its panics too.
#[derive(Debug)]
struct Guard {
    /// The directory in which the file is opened again; none for a file that is opened once.
    dir: Option<HeldDir>,
    file: PathBuf,
    page_bytes: u32,
    /// Nothing is believed after a panic.
    is_lasting: bool,
    poisoned: OnceLock<String>,
}

/// The failures of a closure under the guard.
enum Failure {
    Library(Box<redb::Error>),
    Damaged(String),
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Library(Box::new(error.into()))
    }
}

impl Guard {
    fn new(dir: Option<HeldDir>, file: &Path, page_bytes: u32) -> Guard {
        Guard { dir, file: file.into(), page_bytes, is_lasting: true, poisoned: OnceLock::new() }
    }

    /// Opens the file, in its directory if that is held.
    fn open_file(&self) -> io::Result<File> {
        match (&self.dir, self.file.file_name()) {
            (Some(dir), Some(name)) => dir.open_file(name, OFlags::RDWR),
            _ => File::open(&self.file),
        }
    }

    /// Fails if the file is missing, or has nothing in it, of which the library would make a new store.
    fn look_at_file(&self) -> Result<(), DiskError> {
        match self.open_file().and_then(|file| file.metadata()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(self.damaged("it is missing".into()))
            }
            Ok(file) if file.len() == 0 => Err(self.damaged("it is empty".into())),
            // What cannot be opened is said by the library.
            _ => Ok(()),
        }
    }

    fn open(&self) -> Result<Database, Failure> {
        Ok(database(self.open_file()?)?)
    }

    fn run<T>(&self, f: impl FnOnce() -> Result<T, Failure>) -> Result<T, DiskError> {
        if let Some(cause) = self.poisoned.get() {
            return Err(DiskError::Poisoned { cause: cause.clone() });
        }
        // Unwind safe: after a panic nothing that the closure touched is used again, because everything is
        // refused; or it was a look at what may be damaged, of which every answer is checked.
        match expected(f) {
            Ok(result) => result.map_err(|failure| self.error(failure)),
            Err(panic) => {
                let what = format!("the library panicked: {}", text(&*panic));
                if self.is_lasting {
                    self.poison(what.clone());
                }
                Err(self.damaged(what))
            }
        }
    }

    /// Fails with `Full` if the disk has no room for a batch of so many bytes. The room includes copies of
    /// what the batch changes in the tree, and some more for other programs that write meanwhile.
    fn look_for_room(&self, bytes: u64) -> Result<(), DiskError> {
        let disk = match &self.dir {
            Some(dir) => rustix::fs::fstatvfs(dir),
            None => rustix::fs::statvfs(&self.file),
        };
        match disk {
            Ok(disk) if disk.f_bavail.saturating_mul(disk.f_frsize) < 2 * bytes + ROOM_BYTES => {
                Err(DiskError::Full { path: self.file.clone() })
            }
            // What cannot be asked is found out by writing.
            _ => Ok(()),
        }
    }

    fn poison(&self, cause: String) {
        // The first cause is the one that matters.
        let _ = self.poisoned.set(cause);
    }

    fn error(&self, failure: Failure) -> DiskError {
        let error = match failure {
            Failure::Damaged(what) => return self.damaged(what),
            Failure::Library(error) => *error,
        };
        match error {
            // What the library says of a file that is not its own.
            redb::Error::Io(source) if copy_on_write::says_damage(&source) => {
                self.damaged(source.to_string())
            }
            redb::Error::Io(source) => DiskError::io("read or write", &self.file)(source),
            redb::Error::DatabaseAlreadyOpen => DiskError::Locked { dir: self.file.clone(), pid: None },
            redb::Error::PreviousIo => {
                DiskError::Poisoned { cause: "an earlier read or write failed".into() }
            }
            // Only a pin outlives its file: that was opened anew because the disk had no room.
            redb::Error::DatabaseClosed => DiskError::Full { path: self.file.clone() },
            other => self.damaged(other.to_string()),
        }
    }

    fn damaged(&self, what: String) -> DiskError {
        DiskError::Damaged { file: self.file.clone(), position: None, what }
    }
}

/// 16 MiB: the inner nodes of a few gigabytes of pages; the pages themselves are cached by the server.
const CACHE_BYTES: usize = 16 << 20;

/// 4 MiB: a batch's inner nodes, and what redb's file grows by.
const ROOM_BYTES: u64 = 4 << 20;

const PAGES: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("pages");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const STATE: TableDefinition<'_, &str, u64> = TableDefinition::new("state");

const APPLIED_STAMP: &str = "applied_stamp";
const PAGE_BYTES: &str = "page_bytes";

#[cfg(test)]
mod tests {
    use super::*;
    use redb::StorageBackend;
    use redb::backends::InMemoryBackend;
    use std::io;
    use std::sync::atomic::{AtomicU8, Ordering};

    const GOOD: u8 = 0;
    const FAILS: u8 = 1;
    const PANICS: u8 = 2;

    /// Memory that misbehaves on demand.
    #[derive(Debug)]
    struct Odd {
        memory: InMemoryBackend,
        mode: Arc<AtomicU8>,
    }

    impl Odd {
        fn behave(&self) -> io::Result<()> {
            match self.mode.load(Ordering::Relaxed) {
                FAILS => Err(io::ErrorKind::Other.into()),
                PANICS => panic!("this is what a defect looks like"),
                _ => Ok(()),
            }
        }
    }

    impl StorageBackend for Odd {
        fn len(&self) -> io::Result<u64> {
            self.memory.len()
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.behave()?;
            self.memory.read(offset, out)
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.memory.set_len(len)
        }
        fn sync_data(&self) -> io::Result<()> {
            self.behave()?;
            self.memory.sync_data()
        }
        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.memory.write(offset, data)
        }
    }

    fn odd_store() -> (RedbPages, Arc<AtomicU8>) {
        let mode = Arc::new(AtomicU8::new(GOOD));
        let backend = Odd { memory: InMemoryBackend::new(), mode: mode.clone() };
        // No cache, so that every read reaches the backend.
        let db = Builder::new().set_cache_size(0).create_with_backend(backend).unwrap();
        let guard = Guard::new(None, Path::new("odd"), 8);
        guard.run(|| fill(&db, 8)).unwrap();
        (RedbPages::check(db, guard).unwrap(), mode)
    }

    fn batch<'a>(pages: &'a [(PageId, &'a [u8])], stamp: u64) -> PageBatch<'a> {
        PageBatch { pages, gone: &[], meta: &[], applied_stamp: Stamp(stamp) }
    }

    #[test]
    fn a_panic_of_the_library_becomes_damage_and_then_everything_is_refused() {
        let (mut store, mode) = odd_store();
        let pages = [(PageId::new(1).unwrap(), &[1; 8][..])];
        store.commit(&batch(&pages, 1)).unwrap();
        mode.store(PANICS, Ordering::Relaxed);
        let Err(DiskError::Damaged { what, .. }) = store.commit(&batch(&pages, 2)) else { panic!() };
        assert!(what.contains("this is what a defect looks like"), "{what}");
        mode.store(GOOD, Ordering::Relaxed);
        assert!(matches!(store.read(pages[0].0, &mut Vec::new()), Err(DiskError::Poisoned { .. })));
        assert!(matches!(store.reader().applied_stamp(), Err(DiskError::Poisoned { .. })));
    }

    #[test]
    fn after_a_failed_commit_the_store_refuses_commits() {
        let (mut store, mode) = odd_store();
        mode.store(FAILS, Ordering::Relaxed);
        let pages = [(PageId::new(1).unwrap(), &[1; 8][..])];
        assert!(matches!(store.commit(&batch(&pages, 1)), Err(DiskError::Io { .. })));
        mode.store(GOOD, Ordering::Relaxed);
        assert!(matches!(store.commit(&batch(&pages, 1)), Err(DiskError::Poisoned { .. })));
    }

    #[test]
    fn pin_ends_when_file_reopens() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pages");
        RedbPages::create(&file, 8).unwrap();
        let mut store = RedbPages::open(&file, 8).unwrap();
        let all: Vec<(PageId, Vec<u8>)> = (1..5000).map(|i| (PageId::new(i).unwrap(), vec![1; 8])).collect();
        let pages: Vec<(PageId, &[u8])> = all.iter().map(|(p, b)| (*p, b.as_slice())).collect();
        store.commit(&batch(&pages, 1)).unwrap();
        let pin = store.pin().unwrap();
        store.store.reopen().unwrap();
        let mut buf = Vec::new();
        assert!(matches!(pin.read(pages[4_000].0, &mut buf), Err(DiskError::Full { .. })));
        store.commit(&batch(&pages, 2)).unwrap();
        drop(pin);
        store.commit(&batch(&pages, 3)).unwrap();
        assert!(store.read(pages[0].0, &mut buf).unwrap());
    }
}
