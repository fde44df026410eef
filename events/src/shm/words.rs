//! Bare words in shared memory: what a channel is measured against.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;

use super::Config;
use super::region::{LINE, Region, WORD, store_words};

/// Words that two processes have mapped, and nothing beside them: no order, no wake-up. The limit of what any
/// channel in shared memory can do, for benchmarks.
pub struct Words {
    region: Region,
}

impl Words {
    /// Maps at least so many words, and gives the descriptor for [`Words::open`] at the other end.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for more than [`Config::BLOCK_BYTES_MAX`] holds;
    /// otherwise what the system says.
    pub fn create(count: usize) -> io::Result<(Words, OwnedFd)> {
        let block_bytes = count.saturating_mul(WORD).checked_next_multiple_of(LINE).unwrap_or(usize::MAX);
        let (region, fd) = Region::create(Config { lines: 4, block_bytes }, 0)?;
        Ok((Words { region }, fd))
    }

    /// Maps what the other end has made.
    ///
    /// # Errors
    /// [`InvalidData`](io::ErrorKind::InvalidData) if the descriptor is of something else.
    pub fn open(fd: OwnedFd) -> io::Result<Words> {
        Ok(Words { region: Region::open(fd)? })
    }

    /// Writes bytes to where the words begin, eight a word; those that find no room are left out.
    pub fn fill(&self, bytes: &[u8]) {
        store_words(self.get(), bytes.as_chunks::<WORD>().0);
    }

    /// The words; eight are a cache line.
    pub fn get(&self) -> &[AtomicU64] {
        let bytes = self.region.config().block_bytes;
        self.region.lane(self.region.place(0)).words(0, bytes)[0]
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Words").finish_non_exhaustive()
    }
}
