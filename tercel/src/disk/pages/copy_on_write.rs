//! A file that is read and never written: what redb writes while it verifies one stays in memory.

use crate::disk::DiskError;
use crate::panics::expected;
use redb::{Builder, Database, DatabaseError, StorageBackend, StorageError};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use tercel_lock::unpoison;

/// Lets redb verify a file: every checksum of its trees and its allocator. What it says if it is not content.
///
/// # Errors
/// If the file cannot be read, which is no damage.
pub(crate) fn verify(path: &Path) -> Result<Option<String>, DiskError> {
    let backend = CopyOnWriteFile::over(path).map_err(DiskError::io("open", path))?;
    // Unwind safe: whatever panics is dropped, and with it all that it touched.
    let opened = expected(|| {
        let mut builder = Builder::new();
        builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
        builder.create_with_backend(backend).map(drop)
    });
    Ok(match opened {
        Ok(Ok(())) => None,
        Ok(Err(DatabaseError::Storage(StorageError::Io(error)))) if !says_damage(&error) => {
            return Err(DiskError::io("read", path)(error));
        }
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("it panicked".into()),
    })
}

/// Says whether the error is the library's report of a foreign or truncated file, rather than an error of the
/// system.
pub(super) fn says_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// Opens a file to read.
pub(super) fn open(path: &Path) -> Result<Database, DatabaseError> {
    let backend = CopyOnWriteFile::over(path).map_err(redb::StorageError::Io)?;
    Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend)
}

#[derive(Debug)]
struct CopyOnWriteFile {
    file: File,
    written: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    bytes: u64,
    blocks: HashMap<u64, Box<[u8; BLOCK_BYTES]>>,
}

impl CopyOnWriteFile {
    fn over(path: &Path) -> io::Result<CopyOnWriteFile> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        Ok(CopyOnWriteFile { file, written: Mutex::new(Written { bytes, blocks: HashMap::new() }) })
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        unpoison(self.written.lock())
    }

    /// A block as it is in the file; what the file does not reach to is zero.
    fn block(&self, number: u64) -> io::Result<Box<[u8; BLOCK_BYTES]>> {
        let mut block = Box::new([0; BLOCK_BYTES]);
        let mut have = 0;
        while have < BLOCK_BYTES {
            match self.file.read_at(&mut block[have..], number * BLOCK_BYTES as u64 + have as u64)? {
                0 => break,
                read => have += read,
            }
        }
        Ok(block)
    }
}

/// The parts of a range by blocks: number, offset in the block, range in the buffer.
fn parts(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let inner = (at % BLOCK_BYTES as u64) as usize;
        let part = (BLOCK_BYTES - inner).min(bytes - done);
        let range = done..done + part;
        done += part;
        (part > 0).then_some((at / BLOCK_BYTES as u64, inner, range))
    })
}

impl StorageBackend for CopyOnWriteFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.lock();
        if offset.saturating_add(out.len() as u64) > written.bytes {
            // After an error the library refuses all further reads, and a node that leads outside spoils no
            // other one.
            if out.len() > OUTSIDE_BYTES_MAX {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            out.fill(0);
            return Ok(());
        }
        for (number, inner, range) in parts(offset, out.len()) {
            let part = &mut out[range];
            match written.blocks.get(&number) {
                Some(block) => part.copy_from_slice(&block[inner..inner + part.len()]),
                None => part.copy_from_slice(&self.block(number)?[inner..inner + part.len()]),
            }
        }
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.lock().bytes = bytes;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = self.lock();
        for (number, inner, range) in parts(offset, data.len()) {
            let part = &data[range];
            let block = match written.blocks.entry(number) {
                std::collections::hash_map::Entry::Occupied(block) => block.into_mut(),
                std::collections::hash_map::Entry::Vacant(place) => place.insert(self.block(number)?),
            };
            block[inner..inner + part.len()].copy_from_slice(part);
        }
        Ok(())
    }
}

/// The most bytes that are read outside of a file.
const OUTSIDE_BYTES_MAX: usize = 64 << 10;

/// A node of redb's.
const BLOCK_BYTES: usize = 4096;

/// 16 MiB: what the store itself takes.
const CACHE_BYTES: usize = 16 << 20;
