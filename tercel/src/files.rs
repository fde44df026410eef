//! A table of open files that belongs to one thread.
//!
//! The threads of a process share one table, and the kernel closes what is in it after it has taken down the
//! memory of the process. A thread with a table of its own is done with it as soon as the thread is killed.
#![allow(
    unsafe_code,
    reason = "two system calls that change what the numbers of open files mean; argued below"
)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives the calling thread a table of its own, with the standard streams and a copy of `keep` in it. From
/// then on the thread must use no file that another thread opened, and hand none over. `keep` comes back,
/// second: it is to be dropped by a thread with the table that it is in.
///
/// # Errors
/// If the kernel refuses it, or `/proc` is not there.
pub(crate) fn of_this_thread(keep: OwnedFd) -> io::Result<(OwnedFd, OwnedFd)> {
    // SAFETY: the thread owns no file but `keep`, which is at the same number in the new table.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
    let own = keep.try_clone()?;
    // The directory is itself open while it is read: its number is closed by then, which is no error. The
    // standard streams stay: else the next file opened would get their numbers, and a panic's words.
    let open: Vec<RawFd> = std::fs::read_dir("/proc/thread-self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| *fd > 2 && *fd != own.as_raw_fd()) {
        // SAFETY: an entry of this thread's table alone, which nothing in the thread owns.
        let _ = unsafe { rustix::io::try_close(fd) };
    }
    Ok((own, keep))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn thread_has_its_own_files_only() {
        let (ours, theirs) = rustix::pipe::pipe().unwrap();
        let mut ours = std::fs::File::from(ours);
        std::thread::spawn(move || {
            let (own, given_back) = of_this_thread(theirs).unwrap();
            let count = std::fs::read_dir("/proc/thread-self/fd").unwrap().count();
            std::fs::File::from(own).write_all(&[count as u8]).unwrap();
            given_back
        })
        .join()
        .map(drop)
        .unwrap();
        let mut said = Vec::new();
        // The end of the stream comes too: nobody holds the other end any more.
        ours.read_to_end(&mut said).unwrap();
        // The standard streams, the pipe, and the directory that is read.
        assert_eq!(said, [5]);
    }
}
