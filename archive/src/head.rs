//! The head: the one object of an archive that is changed, always by comparing and swapping.
//!
//! It names who writes, and what there is: runs of log objects, bases, gaps. A writer that finds another
//! one's name in it stops for good. What is in the store and not in the head was written by a writer that
//! ended in between, and counts for nothing.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tercel::{SpaceId, Stamp, ViewId};

use crate::object::Digest;
use crate::store::{Store, StoreError};

/// The name of the head.
pub const HEAD: &str = "head";

const FORMAT: u32 = 1;

/// Who writes an archive, and what there is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The version of the archive.
    pub format: u32,
    /// The space, in hexadecimal digits.
    pub space: String,
    /// The writer: a number that it has drawn, in hexadecimal digits.
    pub owner: String,
    /// The name of the writer, for people: host and process.
    pub writer: String,
    /// The view of the writer's server.
    pub view: (u32, u32),
    /// Everything up to this moment is archived, in milliseconds since 1970, by the writer's clock.
    pub upto_ms: u64,
    /// The last entry that is archived.
    pub last: Option<LastEntry>,
    /// Log objects in order, by the view under which they were written.
    pub runs: Vec<Run>,
    /// Bases, the oldest first.
    pub bases: Vec<Base>,
    /// Gaps, the oldest first.
    pub gaps: Vec<Gap>,
}

/// The last entry that is archived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastEntry {
    /// The stamp of the state.
    pub stamp: u64,
    /// The position in the server's log that this state has.
    pub position: u64,
    /// Its digest, in hexadecimal digits.
    pub digest: String,
}

/// Log objects that one writer has written, chained and without gaps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The view of the writer's server, which is in the objects' names.
    pub view: (u32, u32),
    /// The first stamp and position.
    pub first: u64,
    /// See `first`.
    pub position: u64,
    /// The last stamp.
    pub last: u64,
    /// The moment of the last stamp.
    pub last_ms: u64,
    /// The digest of the object before the first, in hexadecimal digits.
    pub before: String,
    /// The digest of the last object, in hexadecimal digits.
    pub digest: String,
    /// Bytes of the objects.
    pub bytes: u64,
    /// Entries in them.
    pub count: u64,
}

impl Run {
    /// The position of the last entry.
    #[must_use]
    pub fn position_end(&self) -> u64 {
        self.position + self.count - 1
    }
}

/// A base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// The stamp that it is as of.
    pub stamp: u64,
    /// A replay begins with this entry.
    pub first: u64,
    /// When it was taken, in milliseconds since 1970.
    pub ms: u64,
    /// Its pieces.
    pub pieces: u64,
    /// Its pages.
    pub pages: u64,
    /// Bytes of its objects.
    pub bytes: u64,
    /// The number of its view.
    pub view: u32,
    /// The digest of its last piece, in hexadecimal digits.
    pub digest: String,
}

/// Entries that are missing: the log no longer had them when the writer came to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Behind this stamp.
    pub after: u64,
    /// A base of this stamp goes on.
    pub upto: u64,
    /// When it was noticed, in milliseconds since 1970.
    pub ms: u64,
    /// The reason.
    pub why: String,
}

impl Head {
    /// The head of a new archive.
    #[must_use]
    pub fn new(space: SpaceId, owner: u64, writer: &str, view: ViewId) -> Head {
        Head {
            format: FORMAT,
            space: format!("{:016x}", space.0),
            owner: format!("{owner:016x}"),
            writer: writer.into(),
            view: (view.number, view.incarnation),
            upto_ms: 0,
            last: None,
            runs: Vec::new(),
            bases: Vec::new(),
            gaps: Vec::new(),
        }
    }

    /// The space.
    #[must_use]
    pub fn space(&self) -> SpaceId {
        SpaceId(u64::from_str_radix(&self.space, 16).unwrap_or(0))
    }

    /// Reads the head of an archive, and its bytes; none if the store has no archive.
    ///
    /// # Errors
    /// If the store fails, or the head is none of this version.
    pub fn read(store: &dyn Store) -> Result<Option<(Head, Vec<u8>)>, StoreError> {
        let Some(bytes) = store.get(HEAD)? else { return Ok(None) };
        let damaged = |why: String| StoreError::Damaged { store: store.url(), what: "head".into(), why };
        let body = std::str::from_utf8(&bytes).ok().and_then(|text| text.rsplit_once('\n'));
        let body = body.filter(|(body, sum)| *sum == sum_of(body)).map(|(body, _)| body);
        let body = body.ok_or_else(|| damaged("its sum is not that of its bytes".into()))?;
        let head: Head = serde_json::from_str(body).map_err(|e| damaged(e.to_string()))?;
        match head.format {
            FORMAT => Ok(Some((head, bytes))),
            found => Err(damaged(format!("it is of version {found}, and this build knows {FORMAT}"))),
        }
    }

    /// Its bytes: JSON, and in a line of its own the digest of that.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let body = serde_json::to_string_pretty(self).unwrap_or_default();
        let sum = sum_of(&body);
        format!("{body}\n{sum}").into_bytes()
    }

    /// The base from which a stamp is restored: the newest that is not behind it, with no gap between. None
    /// if there is none.
    #[must_use]
    pub fn base_for(&self, stamp: Stamp) -> Option<&Base> {
        let base = self.bases.iter().rev().find(|base| base.stamp <= stamp.0)?;
        let is_bridged = self
            .gaps
            .iter()
            .any(|gap| gap.after >= base.stamp && gap.after < stamp.0 && gap.upto > base.stamp);
        (!is_bridged).then_some(base)
    }
}

fn sum_of(body: &str) -> String {
    hex(&Sha256::digest(body.as_bytes()).into())
}

/// The name of a log object.
#[must_use]
pub fn log_name(view: (u32, u32), first: u64, last: u64) -> String {
    format!("log/{:010}-{:08x}/{first:020}-{last:020}", view.0, view.1)
}

/// The beginning of the names of a run's log objects.
#[must_use]
pub fn log_begin(view: (u32, u32)) -> String {
    format!("log/{:010}-{:08x}/", view.0, view.1)
}

/// The beginning of the names of a base's pieces.
#[must_use]
pub fn base_begin(stamp: u64, ms: u64) -> String {
    format!("base/{stamp:020}-{ms:014}/")
}

/// The name of a piece of a base.
#[must_use]
pub fn piece_name(stamp: u64, ms: u64, piece: u64) -> String {
    format!("{}{piece:08}", base_begin(stamp, ms))
}

/// The first and the last stamp in a log object's name.
#[must_use]
pub fn ends_in(name: &str) -> Option<(u64, u64)> {
    let (first, last) = name.rsplit('/').next()?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// A digest in hexadecimal digits.
#[must_use]
pub fn hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A digest of hexadecimal digits; zeros if it is none.
#[must_use]
pub fn unhex(text: &str) -> Digest {
    let mut digest = [0; 32];
    for (i, byte) in digest.iter_mut().enumerate() {
        *byte = text.get(2 * i..2 * i + 2).and_then(|two| u8::from_str_radix(two, 16).ok()).unwrap_or(0);
    }
    digest
}
