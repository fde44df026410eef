//! The shared memory: one sealed memfd, mapped by both ends, and where everything lies in it.
//!
//! The peer may write any byte at any time. So the memory is never a byte slice here, but a slice of atomic
//! words, of which every bit pattern is a value and every access one load or store; long runs of them are
//! copied by an instruction that the compiler does not look into. The rings above it are safe code. A page
//! that is not there would end in SIGBUS. So all of it is allocated, and sealed: against shrinking where it
//! is made, and against holes once both ends have mapped it.
//!
//! ```text
//! line 0                    magic, version and lines, bytes of a block area, lines of all
//! then for each direction:
//!   line 0                  the consumer's flag, its end's bell
//!   line 1                  the consumer's positions: lines, block bytes
//!   line 2                  the producer's flag
//!   LINES lines             the ring
//!   BLOCK_BYTES / 64 lines  the block area
//! ```

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::{Config, protocol};
use crate::sync::{AtomicU64, Ordering};

/// A cache line of shared memory.
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [AtomicU64; WORDS]);

/// Words of a line.
pub(crate) const WORDS: usize = 8;
/// Bytes of a line and of a word.
pub(crate) const LINE: usize = 64;
pub(crate) const WORD: usize = 8;

/// Positions of lines run from 0 to this and begin again. The bit above says in a line that a block belongs
/// to it.
pub(crate) const POSITION_MASK: u32 = u32::MAX >> 1;

/// A mapped channel. It is unmapped when it is dropped.
pub(crate) struct Region {
    base: NonNull<Line>,
    count: usize,
    config: Config,
}

// SAFETY: the region owns its map and reaches it by atomic words alone, from whatever thread.
unsafe impl Send for Region {}
// SAFETY: as above; a shared region gives out nothing but `&AtomicU64`.
unsafe impl Sync for Region {}

impl Region {
    /// Makes a region and the descriptor by which the other end opens it. Positions begin at `first`.
    pub(crate) fn create(config: Config, first: u32) -> io::Result<(Region, OwnedFd)> {
        let count = lines_of(config)?;
        let fd = rustix::fs::memfd_create(c"tercel", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, (count * LINE) as u64)?;
        allocate(&fd, count)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        let region = Region::map(&fd, count, config)?;
        for direction in 0..2 {
            let lane = region.lane(region.place(direction));
            for ahead in 0..config.lines {
                let position = first.wrapping_add(ahead);
                let empty = position.wrapping_add(1).wrapping_sub(config.lines) & POSITION_MASK;
                protocol::publish(&lane.slot(position).0[0], u64::from(empty));
            }
            protocol::publish(lane.line_position(), u64::from(first));
        }
        let header = &region.lines()[0].0;
        let words = [MAGIC, VERSION << 32 | u64::from(config.lines), config.block_bytes as u64, count as u64];
        for (word, value) in header.iter().zip(words) {
            protocol::publish(word, value);
        }
        Ok((region, fd))
    }

    /// Maps what the other end made, once it is known to be of the right kind, size and geometry.
    pub(crate) fn open(fd: OwnedFd) -> io::Result<Region> {
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| wrong("it is no sealed memfd"))?;
        if !seals.contains(SEALS) {
            return Err(wrong("it is not sealed against shrinking and growing"));
        }
        let bytes = rustix::fs::fstat(&fd)?.st_size as u64;
        if bytes < LINE as u64 || !bytes.is_multiple_of(LINE as u64) || bytes > BYTES_MAX {
            return Err(wrong("its size is impossible"));
        }
        let count = (bytes / LINE as u64) as usize;
        let unchecked = Config { lines: 0, block_bytes: 0 };
        let mut region = Region::map(&fd, count, unchecked)?;
        // From now on nothing maps it anew or punches holes into it, and what holes there were are filled.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        allocate(&fd, count)?;
        // Each word is read once: the peer may change it, but not what was checked.
        let header = &region.lines()[0].0;
        let [magic, form, block_bytes, total] = [0, 1, 2, 3].map(|word| header[word].load(Ordering::Acquire));
        if magic != MAGIC || form >> 32 != VERSION {
            return Err(wrong("it is none of this version"));
        }
        let Ok(block_bytes) = usize::try_from(block_bytes) else {
            return Err(wrong("its geometry is impossible"));
        };
        let config = Config { lines: form as u32, block_bytes };
        if total != count as u64 || lines_of(config)? != count {
            return Err(wrong("its geometry does not fit its size"));
        }
        region.config = config;
        Ok(region)
    }

    fn map(fd: impl AsFd, count: usize, config: Config) -> io::Result<Region> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh map at an address of the kernel's choice, which aliases no memory of this process
        // that is reached otherwise; what the descriptor holds is words to be loaded, whatever they are.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), count * LINE, prot, MapFlags::SHARED, fd.as_fd(), 0)
        }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| wrong("the kernel mapped it at address zero"))?;
        Ok(Region { base, count, config })
    }

    /// All of the memory.
    #[inline(always)]
    fn lines(&self) -> &[Line] {
        // SAFETY: the map begins at a page, so lines are aligned; it is `count` lines long, sealed against
        // shrinking before it was mapped, and unmapped only by `drop`, which no borrow outlives. A `Line` is
        // nothing but atomic words, of which all bit patterns are values and which may be written by others
        // at any time.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }

    pub(crate) fn config(&self) -> Config {
        self.config
    }

    /// Where one direction lies: 0 is from the end that created the region.
    pub(crate) fn place(&self, direction: usize) -> Place {
        let Config { lines, block_bytes } = self.config;
        let control = 1 + direction * (CONTROL + lines as usize + block_bytes / LINE);
        let ring = control + CONTROL;
        Place { control, ring, mask: lines - 1, blocks: ring + lines as usize, block_bytes }
    }

    /// The memory of a place.
    #[inline(always)]
    pub(crate) fn lane(&self, place: Place) -> Lane<'_> {
        Lane { lines: self.lines(), place }
    }
}

#[cfg(test)]
impl Region {
    /// Writes into a word somewhere, as a hostile peer would: anything, or something small.
    pub(crate) fn scribble(&self, random: &mut tercel_machine::random::Random) {
        let line = &self.lines()[random.below(self.count as u64) as usize].0;
        let word = &line[random.below(WORDS as u64) as usize];
        let value = random.below(u64::MAX) >> random.below(64);
        word.store(value, Ordering::Relaxed);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the map is this region's own and of this length, and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.count * LINE) };
    }
}

/// Where a direction lies in a region. It is computed once and kept outside of the shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    control: usize,
    ring: usize,
    /// The ring is a power of two, which divides the number of positions.
    mask: u32,
    blocks: usize,
    pub(crate) block_bytes: usize,
}

impl Place {
    /// Lines of the ring.
    #[inline(always)]
    pub(crate) fn lines(self) -> u32 {
        self.mask + 1
    }
}

/// The memory of one direction.
#[derive(Clone, Copy)]
pub(crate) struct Lane<'a> {
    lines: &'a [Line],
    place: Place,
}

impl<'a> Lane<'a> {
    /// The line at a position.
    #[inline(always)]
    pub(crate) fn slot(self, position: u32) -> &'a Line {
        &self.lines[self.place.ring + (position & self.place.mask) as usize]
    }

    /// The flag of a consumer that sleeps.
    #[inline(always)]
    pub(crate) fn asleep(self) -> &'a AtomicU64 {
        &self.lines[self.place.control].0[0]
    }

    /// The bell of the consumer's end. Half of a word, and never reached as a whole one.
    pub(crate) fn bell(self) -> &'a AtomicU32 {
        let word = &raw const self.lines[self.place.control].0[1];
        // SAFETY: the word is shared memory, borrowed as long as `self.lines` is; its first half is aligned,
        // an atomic value whatever its bits are, and may be written by others at any time. No other code
        // reaches this word.
        unsafe { &*word.cast() }
    }

    /// The position up to which the consumer has read lines, as of the last half ring.
    pub(crate) fn line_position(self) -> &'a AtomicU64 {
        &self.lines[self.place.control + 1].0[0]
    }

    /// The count of all bytes of blocks that the consumer has released.
    pub(crate) fn block_position(self) -> &'a AtomicU64 {
        &self.lines[self.place.control + 1].0[1]
    }

    /// The flag of a producer that waits for room.
    pub(crate) fn starved(self) -> &'a AtomicU64 {
        &self.lines[self.place.control + 2].0[0]
    }

    /// The words of the block area, from a position on for so many bytes, in two runs: after the end of the
    /// area the beginning follows. The position is a multiple of 64; bytes beyond the area's are left out.
    pub(crate) fn words(self, position: u64, bytes: usize) -> [&'a [AtomicU64]; 2] {
        let blocks = &self.lines[self.place.blocks..][..self.place.block_bytes / LINE];
        let words = blocks.as_flattened_words();
        if words.is_empty() {
            return [words, words];
        }
        let start = (position % (words.len() * WORD) as u64) as usize / WORD;
        let count = bytes.div_ceil(WORD).min(words.len());
        let first = count.min(words.len() - start);
        [&words[start..start + first], &words[..count - first]]
    }
}

trait Flatten {
    fn as_flattened_words(&self) -> &[AtomicU64];
}

impl Flatten for [Line] {
    fn as_flattened_words(&self) -> &[AtomicU64] {
        // SAFETY: a `Line` is exactly eight words, without padding, and at least as strictly aligned as a
        // word.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len() * WORDS) }
    }
}

/// Stores eight bytes a word, little-endian. Both are of the same length; what is longer is left alone.
#[inline]
pub(crate) fn store_words(words: &[AtomicU64], bytes: &[[u8; WORD]]) {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= STRING_WORDS && words.len() >= bytes.len() {
        let (source, target) = (bytes.as_ptr(), words.as_ptr());
        // SAFETY: the target is `bytes.len()` words of shared memory, which are cells: they may be written
        // through a shared borrow, at any time and by anything. The source is as long. To the compiler the
        // instruction is as foreign as a peer's store.
        unsafe { move_string(target.cast_mut().cast(), source.cast(), bytes.len() * WORD) };
        return;
    }
    for (word, bytes) in words.iter().zip(bytes) {
        word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
}

/// Loads eight bytes a word, little-endian. Both are of the same length; what is longer is left alone.
#[inline]
pub(crate) fn load_words(words: &[AtomicU64], bytes: &mut [[u8; WORD]]) {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= STRING_WORDS && words.len() >= bytes.len() {
        let (source, target) = (words.as_ptr(), bytes.as_mut_ptr());
        // SAFETY: the source is `bytes.len()` words of shared memory, of which any bytes may be read at any
        // time; the target is this function's own and as long. What a peer writes meanwhile is other bytes,
        // and nothing else.
        unsafe { move_string(target.cast(), source.cast(), bytes.len() * WORD) };
        return;
    }
    for (bytes, word) in bytes.iter_mut().zip(words) {
        *bytes = word.load(Ordering::Relaxed).to_le_bytes();
    }
}

/// Copies by the processor's string instruction, which moves whole lines where loads and stores move words.
/// To the compiler it is neither: it knows no copy whose bytes may change meanwhile. What is stored behind it
/// is seen behind it, and what was loaded before it was loaded before it, as with any other store and load of
/// this processor.
///
/// # Safety
/// Both ranges are valid for so many bytes, and do not overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn move_string(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: by the caller; the direction flag is clear, as everywhere in Rust.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") target => _,
            inout("rsi") source => _,
            options(nostack, preserves_flags),
        );
    }
}

/// From how many words on the string instruction is used. Below that its beginning costs more than it saves:
/// by the bare exchange of the same runs calls with 1 KiB took 3.1 to 3.4 times as long with it, and 2.8 to
/// 3.1 without.
#[cfg(target_arch = "x86_64")]
const STRING_WORDS: usize = 512;

/// Lines of a whole region, or why the configuration cannot be.
fn lines_of(config: Config) -> io::Result<usize> {
    config.check().map_err(|text| io::Error::new(io::ErrorKind::InvalidInput, text))?;
    Ok(1 + 2 * (CONTROL + config.lines as usize + config.block_bytes / LINE))
}

/// Takes memory for all lines, those in holes included.
fn allocate(fd: impl AsFd, count: usize) -> io::Result<()> {
    Ok(rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, (count * LINE) as u64)?)
}

fn wrong(text: &str) -> io::Error {
    let text = format!("the descriptor is not the shared memory of a channel: {text}");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const CONTROL: usize = 3;
const MAGIC: u64 = u64::from_le_bytes(*b"tercel\x0d\x0a");
const VERSION: u64 = 2;

/// The largest region that any configuration makes.
const BYTES_MAX: u64 =
    ((1 + 2 * (CONTROL + Config::LINES_MAX as usize)) * LINE + 2 * Config::BLOCK_BYTES_MAX) as u64;

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Config = Config { lines: 4, block_bytes: 256 };

    fn memfd(bytes: usize, seals: SealFlags) -> OwnedFd {
        let fd = rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    fn refusal(fd: OwnedFd) -> String {
        match Region::open(fd) {
            Ok(_) => panic!("it was opened"),
            Err(error) => error.to_string(),
        }
    }

    /// A region whose header is changed before it is opened.
    fn with_word(word: usize, value: u64) -> OwnedFd {
        let (region, fd) = Region::create(SMALL, 0).unwrap();
        region.lines()[0].0[word].store(value, Ordering::Relaxed);
        fd
    }

    #[test]
    fn a_region_opens_with_its_geometry() {
        let (made, fd) = Region::create(SMALL, 0).unwrap();
        let opened = Region::open(fd).unwrap();
        assert_eq!(opened.config(), SMALL);
        made.lane(made.place(1)).slot(2).0[7].store(5, Ordering::Relaxed);
        assert_eq!(opened.lane(opened.place(1)).slot(6).0[7].load(Ordering::Relaxed), 5);
        assert_eq!(opened.lane(opened.place(0)).slot(6).0[7].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_can_shrink_is_refused() {
        for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW | SealFlags::SEAL] {
            assert!(refusal(memfd(4_096, seals)).contains("sealed"));
        }
        let (pipe, _writer) = std::io::pipe().unwrap();
        assert!(refusal(pipe.into()).contains("no sealed memfd"));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for bytes in [0, 63, 65, BYTES_MAX as usize + LINE] {
            assert!(refusal(memfd(bytes, SEALS)).contains("size"), "{bytes}");
        }
        assert!(refusal(memfd(4_096, SEALS)).contains("version"));
    }

    #[test]
    fn impossible_geometries_are_refused() {
        assert!(refusal(with_word(0, 7)).contains("version"));
        assert!(refusal(with_word(1, (VERSION + 1) << 32 | 4)).contains("version"));
        for lines in [0, 3, 5, 8, u64::from(Config::LINES_MAX) * 2] {
            refusal(with_word(1, VERSION << 32 | lines));
        }
        for bytes in [0, 63, 192, 320, u64::MAX, u64::MAX - 63, Config::BLOCK_BYTES_MAX as u64 + 64] {
            refusal(with_word(2, bytes));
        }
        refusal(with_word(3, 0));
    }

    #[test]
    fn a_sealed_region_cannot_be_resized() {
        let (_region, fd) = Region::create(SMALL, 0).unwrap();
        assert!(rustix::fs::ftruncate(&fd, 64).is_err());
        assert!(rustix::fs::ftruncate(&fd, 1 << 20).is_err());
    }

    /// Bytes of memory that the kernel holds for a file.
    fn held_bytes(fd: &OwnedFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn region_has_all_its_memory_from_the_start() {
        let config = Config { lines: 64, block_bytes: 1 << 20 };
        let (region, fd) = Region::create(config, 0).unwrap();
        assert!(held_bytes(&fd) >= (region.count * LINE) as u64, "{} bytes are there", held_bytes(&fd));
    }

    #[test]
    fn opened_region_has_no_holes_and_gets_none() {
        let config = Config { lines: 64, block_bytes: 1 << 20 };
        let (region, fd) = Region::create(config, 0).unwrap();
        let punch = |fd: &OwnedFd| {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(fd, flags, 512 << 10, 1 << 20)
        };
        punch(&fd).unwrap();
        assert!(held_bytes(&fd) < (region.count * LINE) as u64);
        let _opened = Region::open(fd.try_clone().unwrap()).unwrap();
        assert!(held_bytes(&fd) >= (region.count * LINE) as u64, "{} bytes are there", held_bytes(&fd));
        assert_eq!(punch(&fd), Err(rustix::io::Errno::PERM));
    }

    #[test]
    fn words_wrap_at_the_end_of_the_area() {
        let (region, _fd) = Region::create(SMALL, 0).unwrap();
        let [first, rest] = region.lane(region.place(0)).words(3 * 64 + 5 * 256, 100);
        assert_eq!((first.len(), rest.len()), (8, 5));
        let [first, rest] = region.lane(region.place(0)).words(64, 1_000_000);
        assert_eq!(first.len() + rest.len(), 32);
    }
}
