//! The memory of a writer: a file beside the space that names its archive and the last entry there.
//!
//! A server that starts while the place of its archive is away knows by it that there is an archive, begins
//! no other one at an empty mount point, and keeps the log behind that entry meanwhile.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::head::LastEntry;

/// The name of the file in a space's directory.
pub const MEMORY: &str = "archive";

/// A place, and the last entry of the archive there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    url: String,
    last: Option<LastEntry>,
    /// Everything up to this moment was archived, in milliseconds since 1970.
    #[serde(default)]
    upto_ms: u64,
}

/// Says whether a server had an archive at a place.
#[must_use]
pub fn remembers(path: &Path, url: &str) -> bool {
    Memory::read(Some(path), url).has_one()
}

/// The position of the last entry that a server had archived at a place: its log is needed from there on.
#[must_use]
pub fn archived_upto(path: &Path, url: &str) -> Option<u64> {
    Memory::read(Some(path), url).last().map(|last| last.position)
}

/// The memory of one writer; without a file it lasts as long as the writer.
#[derive(Debug)]
pub(crate) struct Memory {
    path: Option<PathBuf>,
    known: Option<Remembered>,
}

impl Memory {
    /// Reads what is known of the archive at a place. A file that cannot be read, or tells of another place,
    /// counts as none.
    pub fn read(path: Option<&Path>, url: &str) -> Memory {
        let bytes = path.and_then(|path| fs::read(path).ok());
        let known = bytes.and_then(|bytes| serde_json::from_slice::<Remembered>(&bytes).ok());
        Memory { path: path.map(Path::to_owned), known: known.filter(|known| known.url == url) }
    }

    /// Says whether an archive was there.
    pub fn has_one(&self) -> bool {
        self.known.is_some()
    }

    /// The last entry that was archived.
    pub fn last(&self) -> Option<&LastEntry> {
        self.known.as_ref()?.last.as_ref()
    }

    /// The file that is to be removed before another archive is begun.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The moment up to which everything was archived; 0 if that is not known.
    pub fn upto_ms(&self) -> u64 {
        self.known.as_ref().map_or(0, |known| known.upto_ms)
    }

    /// Remembers an entry that is archived, durably if there is a file. What cannot be written is not
    /// remembered there.
    pub fn set(&mut self, url: &str, last: Option<&LastEntry>, upto_ms: u64) {
        let known = Remembered { url: url.into(), last: last.cloned(), upto_ms };
        if self.known.as_ref().is_some_and(|before| (&before.url, &before.last) == (&known.url, &known.last))
        {
            return;
        }
        if let Some(path) = &self.path {
            let _ = write(path, &known);
        }
        self.known = Some(known);
    }
}

fn write(path: &Path, known: &Remembered) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    file.write_all(&serde_json::to_vec_pretty(known)?)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}
