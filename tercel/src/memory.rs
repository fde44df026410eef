//! The foundations of the cache: a mapping of its own and the kernel's process-wide fence; and a mark that a
//! fork removes.
//!
//! The one place of this crate with unsafe code: two traits of the heap whose promises only the kernel can
//! keep, and a byte in memory that the kernel empties in a child.
#![allow(unsafe_code, reason = "the heap's arena and fence are promises of the kernel; argued below")]

use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::{Pid, getpid};
use rustix::system::sysinfo;
use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
use tercel_heap::{FRAME_BYTES, Fence, Memory};

/// Bytes of memory that this machine has.
pub(crate) fn machine_bytes() -> u64 {
    let info = sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

/// The name of this bound in error messages.
pub(crate) const ALL_MEMORY: &str = "all the memory of this machine";

/// A large page of the processors that we know.
const HUGE_BYTES: usize = 2 << 20;

/// Anonymous memory, aligned to frames, untouched pages of which cost nothing.
pub(crate) struct Mapping {
    /// The start of the kernel's mapping, which is longer than needed, to leave room for the alignment.
    start: NonNull<u8>,
    mapped: usize,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory without a thread of its own.
unsafe impl Send for Mapping {}
// SAFETY: its methods only give out numbers and advise the kernel.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes.
    pub(crate) fn new(len: usize) -> io::Result<Mapping> {
        // Objects that are used together are all over the arena, so that the processor's table of pages is
        // the first to be too small. Large pages are asked for only where the arena fills them: it never
        // takes more than `len`.
        let align = if len >= HUGE_BYTES { HUGE_BYTES } else { FRAME_BYTES };
        let mapped = len + align;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let shift = start.as_ptr().align_offset(align);
        // SAFETY: the mapping is longer than `len` by `align`, and the shift is less than that.
        let base = unsafe { start.add(shift) };
        let huge = len / HUGE_BYTES * HUGE_BYTES;
        if huge != 0 {
            // SAFETY: the range lies inside the mapping; the advice changes nothing that a program could see.
            // Where the kernel has no large pages it is refused, which costs time and nothing else.
            let _ = unsafe { madvise(base.as_ptr().cast(), huge, Advice::LinuxHugepage) };
        }
        Ok(Mapping { start, mapped, base, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and every user of its memory is gone with the value.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

// SAFETY: private anonymous memory is zero, readable, writable and this value's alone until it is unmapped;
// the base is rounded up to a frame, or more, inside it. Discarded pages read as zero and stay usable.
unsafe impl Memory for Mapping {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }

    fn discard(&self, offset: usize, len: usize) {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return;
        }
        // SAFETY: the range was just seen to lie inside.
        let from = unsafe { self.base.add(offset) };
        // SAFETY: dropping pages of a private anonymous mapping leaves zeros behind; the heap says that it
        // does not use them.
        let _ = unsafe { madvise(from.as_ptr().cast(), len, Advice::LinuxDontNeed) };
    }
}

/// The kernel's process-wide fence, where it is allowed.
pub(crate) struct Barrier {
    process_wide: bool,
}

impl Barrier {
    /// Registers for it; where it is refused (old kernels, strict sandboxes), readers fence for themselves.
    pub(crate) fn new() -> Barrier {
        let offered = membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED);
        let process_wide = offered && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        Barrier { process_wide }
    }
}

// SAFETY: a private expedited membarrier is a full fence on every running thread of the process and the fence
// on this one; without it the value says so and is a fence on this thread.
unsafe impl Fence for Barrier {
    fn heavy(&self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if self.process_wide && membarrier(MembarrierCommand::PrivateExpedited).is_err() {
            // Registered and refused: going on would let a reader be overtaken.
            std::process::abort();
        }
    }

    fn is_process_wide(&self) -> bool {
        self.process_wide
    }
}

/// Tells the process that made it from every process forked off it since: a load, where the kernel empties
/// marked memory in a child.
pub(crate) struct Birthmark {
    /// The first byte of a mapping, which is 1 here and 0 in a child; none where the kernel cannot.
    byte: Option<NonNull<u8>>,
    pid: Pid,
}

// SAFETY: the byte is written before the value exists, and by the kernel in a child before that runs; later
// it is read only.
unsafe impl Send for Birthmark {}
// SAFETY: as above.
unsafe impl Sync for Birthmark {}

/// A mapping has whole pages, however little is asked for.
const BIRTHMARK_BYTES: usize = 1;

impl Birthmark {
    /// Marks this process.
    pub(crate) fn new() -> Birthmark {
        Birthmark { byte: Birthmark::mapped(), pid: getpid() }
    }

    fn mapped() -> Option<NonNull<u8>> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), BIRTHMARK_BYTES, protection, flags) }.ok()?;
        // SAFETY: the advice is about this mapping alone, in which nothing stands yet.
        let wiped = unsafe { madvise(start, BIRTHMARK_BYTES, Advice::LinuxWipeOnFork) };
        let byte = NonNull::new(start.cast::<u8>()).filter(|_| wiped.is_ok());
        match byte {
            // SAFETY: the mapping is readable and writable, and no other code knows it.
            Some(byte) => unsafe { byte.write(1) },
            // SAFETY: this is the whole mapping, and no other code knows it.
            None => _ = unsafe { munmap(start, BIRTHMARK_BYTES) },
        }
        byte
    }

    /// Says whether this process was forked off the process that made the mark. If the kernel empties no
    /// memory, a process that by chance has the number of a dead ancestor passes for that ancestor.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        match self.byte {
            // SAFETY: the mapping lives as long as the value, and no thread of this process writes it
            // meanwhile. The read is volatile because the kernel changes the byte, in a child.
            Some(byte) => unsafe { byte.read_volatile() == 0 },
            None => getpid() != self.pid,
        }
    }
}

impl Drop for Birthmark {
    fn drop(&mut self) {
        if let Some(byte) = self.byte {
            // SAFETY: this is the whole mapping, and the value that knew it is gone.
            let _ = unsafe { munmap(byte.as_ptr().cast(), BIRTHMARK_BYTES) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::process::Command;
    use std::sync::atomic::{AtomicU64, Ordering};

    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

    use super::*;

    /// The number of `membarrier`.
    const MEMBARRIER: i64 = if cfg!(target_arch = "x86_64") { 324 } else { 283 };
    const EPERM: u32 = 1;
    /// Tells a child that it is one.
    const CHILD: &str = "TERCEL_TEST_SANDBOX";
    const SAID: &str = "confined, and every reader fences for itself";

    #[test]
    fn without_the_process_wide_fence_readers_fence_for_themselves() {
        if std::env::var(CHILD).is_ok() {
            return confined();
        }
        // Filters are never taken off, so a child puts it on.
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memory::tests::without_the_process_wide_fence_readers_fence_for_themselves"])
            .arg("--nocapture")
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said =
            String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains(SAID), "{said}");
    }

    fn confined() {
        let filter = SeccompFilter::new(
            BTreeMap::from([(MEMBARRIER, vec![])]),
            SeccompAction::Allow,
            SeccompAction::Errno(EPERM),
            std::env::consts::ARCH.try_into().unwrap(),
        );
        let program: BpfProgram = filter.unwrap().try_into().unwrap();
        apply_filter(&program).unwrap();
        let barrier = Barrier::new();
        assert!(!barrier.is_process_wide());
        // It would abort if it asked the kernel.
        barrier.heavy();

        // A space of such a process works, with several threads in one cache.
        let dir = tempfile::tempdir().unwrap();
        let space = crate::embedded(dir.path()).unwrap();
        let cell = space.run(|tx| tx.create(&Cell { n: 0 })).unwrap();
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        space.run(|tx| tx.edit(cell)?.set_n(tx.get(cell)?.n() + 1)).unwrap();
                        seen.fetch_max(space.run(|tx| Ok(tx.get(cell)?.n())).unwrap(), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(seen.into_inner(), 100);
        space.close().unwrap();
        println!("{SAID}");
    }

    #[derive(tercel_derive::Object)]
    #[object(crate = "crate")]
    struct Cell {
        n: u64,
    }
}
