//! A directory that is held open by its descriptor.
//!
//! Its files are opened, renamed and removed below the descriptor, so they stay its own wherever its path
//! leads by now. `HeldDir::see_named` sees whether the path still leads to it.

use super::DiskError;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, fstat, mkdirat, openat, renameat, stat, statat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory that is held open. Clones share its descriptor.
#[derive(Debug, Clone)]
pub struct HeldDir(Arc<Held>);

#[derive(Debug)]
struct Held {
    fd: OwnedFd,
    /// The path that the caller named.
    path: PathBuf,
    /// The same, independent of the current directory of the process.
    absolute: PathBuf,
    /// The directory below which it was opened.
    above: Option<HeldDir>,
}

/// The rights of what is made in a directory: all of a space is its user's alone.
const PRIVATE_DIR: Mode = Mode::RWXU;
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

impl HeldDir {
    /// Opens the directory at `path`.
    pub fn open(path: &Path) -> Result<HeldDir, DiskError> {
        let absolute = std::path::absolute(path).map_err(DiskError::io("find", path))?;
        HeldDir::take(openat(rustix::fs::CWD, path, DIRECTORY, Mode::empty()), path.into(), absolute, None)
    }

    /// Opens its directory `name`, which is made if `makes` and it is missing.
    pub(crate) fn below(&self, name: impl AsRef<Path>, makes: bool) -> Result<HeldDir, DiskError> {
        let name = name.as_ref();
        let (path, absolute) = (self.file(name), self.0.absolute.join(name));
        if makes {
            match mkdirat(self, name, PRIVATE_DIR) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(DiskError::io("create", &path)(error.into())),
            }
        }
        HeldDir::take(openat(self, name, DIRECTORY, Mode::empty()), path, absolute, Some(self.clone()))
    }

    /// Opens the directory that holds `file`; gives the file's name in it, too.
    pub(crate) fn around(file: &Path) -> Result<(HeldDir, &Path), DiskError> {
        let nameless = || DiskError::io("open", file)(io::ErrorKind::InvalidInput.into());
        let name = Path::new(file.file_name().ok_or_else(nameless)?);
        // A relative path of one part has the parent "", which is the current directory.
        let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        Ok((HeldDir::open(parent.unwrap_or(Path::new(".")))?, name))
    }

    fn take(
        opened: rustix::io::Result<OwnedFd>,
        path: PathBuf,
        absolute: PathBuf,
        above: Option<HeldDir>,
    ) -> Result<HeldDir, DiskError> {
        let fd = opened.map_err(|error| DiskError::io("open", &path)(error.into()))?;
        Ok(HeldDir(Arc::new(Held { fd, path, absolute, above })))
    }

    /// The path of the directory when it was opened, as the caller gave it.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The path of a file in it, for messages.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path.join(name)
    }

    /// Fails with `Moved` if its path, or that of a directory above which is held too, leads to another
    /// directory, or to none. A path that cannot be looked at counts as right.
    pub(crate) fn see_named(&self) -> Result<(), DiskError> {
        let Held { fd, path, absolute, above } = &*self.0;
        let is_named = match (stat(absolute), fstat(fd)) {
            (Ok(named), Ok(held)) => (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino),
            (Err(Errno::NOENT | Errno::NOTDIR), _) => false,
            _ => true,
        };
        if !is_named {
            return Err(DiskError::Moved { dir: path.clone() });
        }
        above.as_ref().map_or(Ok(()), HeldDir::see_named)
    }

    /// Opens a file in it to read.
    pub(crate) fn read(&self, name: impl AsRef<Path>) -> Result<File, DiskError> {
        self.open_file(&name, OFlags::RDONLY).map_err(DiskError::io("open", &self.file(name)))
    }

    /// Opens a file in it to read and write.
    pub(crate) fn edit(&self, name: impl AsRef<Path>) -> Result<File, DiskError> {
        self.open_file(&name, OFlags::RDWR).map_err(DiskError::io("open", &self.file(name)))
    }

    /// Opens a file in it, with the flags of `open`.
    pub(crate) fn open_file(&self, name: impl AsRef<Path>, flags: OFlags) -> io::Result<File> {
        Ok(File::from(openat(self, name.as_ref(), flags | OFlags::CLOEXEC, PRIVATE_FILE)?))
    }

    /// The text of a small file in it.
    pub(crate) fn read_small(&self, name: impl AsRef<Path>) -> Result<String, DiskError> {
        let mut text = String::new();
        let opened = self.open_file(&name, OFlags::RDONLY);
        let path = self.file(name);
        let damaged =
            |what: &str| DiskError::Damaged { file: path.clone(), position: None, what: what.into() };
        match opened.and_then(|file| file.take(SMALL_BYTES_MAX).read_to_string(&mut text)) {
            Ok(_) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(damaged("it is not text")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(damaged("it is missing")),
            Err(error) => Err(DiskError::io("read", &path)(error)),
        }
    }

    /// Replaces a file in it whole: after a crash it has the old text or the new.
    pub(crate) fn write_whole(&self, name: impl AsRef<Path>, text: &str) -> Result<(), DiskError> {
        self.write_whole_bytes(name, text.as_bytes())
    }

    /// The same of a file that is no text.
    pub(crate) fn write_whole_bytes(&self, name: impl AsRef<Path>, bytes: &[u8]) -> Result<(), DiskError> {
        self.write_for(name, |_| bytes.to_vec(), PRIVATE_FILE)
    }

    /// The same of a text in which the file's own inode stands.
    pub(crate) fn write_with_inode(
        &self,
        name: impl AsRef<Path>,
        text: impl FnOnce(u64) -> String,
    ) -> Result<(), DiskError> {
        self.write_for(name, |inode| text(inode).into_bytes(), PRIVATE_FILE)
    }

    /// The inode of a file in it.
    pub(crate) fn inode(&self, name: impl AsRef<Path>) -> Result<u64, DiskError> {
        let found = statat(self, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW);
        found.map(|found| found.st_ino).map_err(|why| DiskError::io("look at", &self.file(name))(why.into()))
    }

    /// The same of a text that no other user may read.
    pub(crate) fn write_private(&self, name: impl AsRef<Path>, text: &str) -> Result<(), DiskError> {
        // One that was left behind would keep the rights that it had.
        let _ = unlinkat(self, name.as_ref().with_extension("tmp"), AtFlags::empty());
        self.write_for(name, |_| text.into(), Mode::RUSR | Mode::WUSR)
    }

    fn write_for(
        &self,
        name: impl AsRef<Path>,
        bytes: impl FnOnce(u64) -> Vec<u8>,
        mode: Mode,
    ) -> Result<(), DiskError> {
        let name = name.as_ref();
        let temporary = name.with_extension("tmp");
        let written = (|| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
            let mut file = File::from(openat(self, &temporary, flags, mode)?);
            file.write_all(&bytes(fstat(&file)?.st_ino))?;
            file.sync_all()?;
            Ok(renameat(self, &temporary, self, name)?)
        })();
        written.map_err(DiskError::io("write", &self.file(name)))?;
        self.sync()
    }

    /// Renames a file in it.
    pub(crate) fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), DiskError> {
        let renamed = renameat(self, from.as_ref(), self, to.as_ref());
        renamed.map_err(|error| DiskError::io("rename", &self.file(from))(error.into()))
    }

    /// Moves a file or directory in from another one, in place of a file of that name.
    pub(crate) fn take_in(&self, from: &HeldDir, name: impl AsRef<Path>) -> Result<(), DiskError> {
        let renamed = renameat(from, name.as_ref(), self, name.as_ref());
        renamed.map_err(|error| DiskError::io("rename", &from.file(name))(error.into()))
    }

    /// Removes a file in it.
    pub(crate) fn remove(&self, name: impl AsRef<Path>) -> Result<(), DiskError> {
        let removed = unlinkat(self, name.as_ref(), AtFlags::empty());
        removed.map_err(|error| DiskError::io("remove", &self.file(name))(error.into()))
    }

    /// Removes an empty directory in it.
    pub(crate) fn remove_dir(&self, name: impl AsRef<Path>) -> Result<(), DiskError> {
        let removed = unlinkat(self, name.as_ref(), AtFlags::REMOVEDIR);
        removed.map_err(|error| DiskError::io("remove", &self.file(name))(error.into()))
    }

    /// Makes created, renamed and removed names in it durable.
    pub(crate) fn sync(&self) -> Result<(), DiskError> {
        let synced = rustix::fs::fsync(self);
        synced.map_err(|error| DiskError::io("sync directory", self.path())(error.into()))
    }

    /// The names in it, in no order.
    pub(crate) fn names(&self) -> Result<Vec<OsString>, DiskError> {
        let list = || {
            let names = Dir::read_from(self)?.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
            names.collect::<rustix::io::Result<Vec<_>>>()
        };
        let names = list().map_err(|error| DiskError::io("list", self.path())(error.into()))?;
        let is_of_it = |name: &Vec<u8>| name != b"." && name != b"..";
        Ok(names.into_iter().filter(is_of_it).map(OsString::from_vec).collect())
    }

    /// Says whether the directory has a file or directory of this name.
    pub(crate) fn has(&self, name: impl AsRef<Path>) -> bool {
        statat(self, name.as_ref(), AtFlags::empty()).is_ok()
    }

    /// Says whether the entry of this name is a directory; none if there is no such entry.
    pub(crate) fn is_dir(&self, name: impl AsRef<Path>) -> Option<bool> {
        let found = statat(self, name.as_ref(), AtFlags::empty()).ok()?;
        Some(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
    }
}

impl AsFd for HeldDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// More than any of the text files has.
const SMALL_BYTES_MAX: u64 = 4096;
