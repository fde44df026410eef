//! The errors of a server's files, sorted by the party that must act.

use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use tercel_wire::id::LogPosition;
use tercel_wire::log::Flaw;
use thiserror::Error;

/// An operation on the server's files that did not succeed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DiskError {
    /// Another process has the directory open.
    #[error("{} is in use by {}, or choose another directory", .dir.display(), holder(*.pid))]
    Locked {
        /// The data directory.
        dir: PathBuf,
        /// The process that holds it, if it could be read.
        pid: Option<u32>,
    },
    /// The directory has files in it, but is no data directory.
    #[error("{} has other files in it and is no data directory; choose an empty or a new one", .dir.display())]
    NotOurs {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory is a copy of a member's, made file by file.
    #[error(
        "the directory of {} is a copy of a member's, which may run still, or has promised more since; remove that member from \
         its group, and let an empty directory join. If the directory was only moved, and never starts again where it was, \
         remove {}, and start it", .file.display(), .file.display()
    )]
    Copied {
        /// The file that knows its own inode.
        file: PathBuf,
    },
    /// The directory is of a member that was removed from its group.
    #[error(
        "{} is of a member that was removed from its group, which goes on without it; to have it back, begin anew with an \
         empty directory: `tercel serve --data DIR --join ADDR --secret FILE`", .dir.display()
    )]
    Removed {
        /// The directory.
        dir: PathBuf,
    },
    /// There is a space or a backup in the directory already.
    #[error("{} has a space or a backup in it already; choose an empty or a new directory", .dir.display())]
    Occupied {
        /// The directory.
        dir: PathBuf,
    },
    /// A creation, restore or backup in the directory was not finished.
    #[error(
        "{} is unfinished: `{command}` was ended in the middle of it; run that again into it, or remove it",
        .dir.display()
    )]
    Unfinished {
        /// The directory.
        dir: PathBuf,
        /// The command that began it.
        command: &'static str,
    },
    /// A newer build wrote this.
    #[error(
        "{} has format {found}, this build knows {known}; run the build that wrote it, or a newer one",
        .file.display()
    )]
    NewerFormat {
        /// The file that names the version.
        file: PathBuf,
        /// The version in the file.
        found: u16,
        /// The newest version that this build reads.
        known: u16,
    },
    /// An older build wrote this, and nothing converts it.
    #[error(
        "{} has format {found}, which this build does not read: it knows {known} alone; run the build that wrote it, or choose a new directory and write anew what is needed",
        .file.display()
    )]
    OlderFormat {
        /// The file that names the version.
        file: PathBuf,
        /// The version in the file.
        found: u16,
        /// The version that this build reads.
        known: u16,
    },
    /// Something else has the name of a part of the directory.
    #[error(
        "{} is not {wanted}, as it must be; put back what was there, or move it away and run `tercel check --data DIR --repair`, or restore a backup with `tercel restore`",
        .path.display()
    )]
    Strange {
        /// The file or directory in the way.
        path: PathBuf,
        /// The kind of file that should be there.
        wanted: &'static str,
    },
    /// The path of an open directory leads to another directory, or to none.
    #[error(
        "{} is not the directory that was opened there: that was moved or removed while it was in use; all that was acknowledged is in it: put it back, then start the server again",
        .dir.display()
    )]
    Moved {
        /// The path.
        dir: PathBuf,
    },
    /// Data that was durable cannot be read.
    #[error(
        "{} is damaged{}: {what}; `tercel check --data DIR --repair` saves what can be saved, else `tercel restore` makes it anew from a backup",
        .file.display(), at(*.position)
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The position in the file, if it is known.
        position: Option<u64>,
        /// The damage found.
        what: String,
    },
    /// A file that is to have the secret of a group has something else. No data is damaged by that.
    #[error(
        "{} is no secret of a group: name, or put there, a copy of the file `secret` of another member's directory",
        .file.display()
    )]
    NoSecret {
        /// The file.
        file: PathBuf,
    },
    /// A log is to be cut above a position before which it was truncated already.
    #[error("{} cannot be cut above position {position}: it begins behind position {begins}", .dir.display())]
    CutTooLow {
        /// The log.
        dir: PathBuf,
        /// The position of the cut.
        position: LogPosition,
        /// The position before its first record.
        begins: LogPosition,
    },
    /// The device has no room left.
    #[error("no space left for {}; free some, or move the directory to a larger device", .path.display())]
    Full {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot {op} {}: {source}{}", .path.display(), advice(.source))]
    Io {
        /// The operation tried.
        op: &'static str,
        /// On which file.
        path: PathBuf,
        /// The answer.
        #[source]
        source: io::Error,
    },
    /// The bytes given to the log are not records that continue it. A mistake of the caller, found before any
    /// harm.
    #[error("these bytes do not continue the log: {flaw}; this is a defect of the server, please report it")]
    NotChained {
        /// The flaw of the bytes.
        flaw: Flaw,
    },
    /// A thread that works on the files panicked; nothing can be promised any more.
    #[error("{what}")]
    Panicked {
        /// The thread, and its message.
        what: String,
    },
    /// An earlier operation failed in a way after which nothing can be promised.
    #[error("refused since an earlier failure ({cause}); check the disk, then restart the server")]
    Poisoned {
        /// The first error.
        cause: String,
    },
}

impl DiskError {
    /// For `map_err`: the error of the system call `op` on `path`.
    pub(crate) fn io(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DiskError {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                DiskError::Full { path: path.into() }
            }
            _ => DiskError::Io { op, path: path.into(), source },
        }
    }

    /// Says whether another attempt may soon succeed without a repair, once room or descriptors are given
    /// back.
    pub(crate) fn may_pass(&self) -> bool {
        let is_out_of_descriptors =
            |source: &io::Error| matches!(Errno::from_io_error(source), Some(Errno::MFILE | Errno::NFILE));
        match self {
            DiskError::Full { .. } => true,
            DiskError::Io { source, .. } => is_out_of_descriptors(source),
            _ => false,
        }
    }
}

/// Advises the operator on the system's error, where a remedy is known.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; run this as the owner of the directory, or change its permissions"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "; mount it writable, or copy the directory to where it can be written"
        }
        _ => "",
    }
}

fn holder(pid: Option<u32>) -> String {
    match pid {
        None => "another process; stop it first".into(),
        Some(pid) if pid == std::process::id() => {
            format!("this process already, process {pid}; use a clone of its Client")
        }
        Some(pid) => format!("process {pid}; stop it first"),
    }
}

fn at(position: Option<u64>) -> String {
    position.map_or_else(String::new, |position| format!(" at byte {position}"))
}
