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

/// The version of an archive of one history, and of one that has had several.
const FORMAT: u32 = 1;
const FORMAT_OF_HISTORIES: u32 = 2;

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
    /// Views above this do not write: the archive was taken from their history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<u32>,
    /// Set while it is taken for a server whose writer has not come yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken: bool,
    /// Histories behind the first one, in order. A restored space begins one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histories: Vec<History>,
}

/// A history that has overtaken another one. Its number is its place in the list, from 1 on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// The number of the history that it continues.
    pub of: u32,
    /// The last stamp that both have.
    pub after: u64,
    /// The moment of its first base: moments from then on are of this history.
    pub ms: u64,
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
    /// The number of its history.
    #[serde(default, skip_serializing_if = "is_first")]
    pub history: u32,
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
    /// The number of its history.
    #[serde(default, skip_serializing_if = "is_first")]
    pub history: u32,
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
    /// The moment up to which everything before it was archived; none in archives of earlier builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<u64>,
    /// The reason.
    pub why: String,
    /// The number of its history.
    #[serde(default, skip_serializing_if = "is_first")]
    pub history: u32,
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
            histories: Vec::new(),
            ceiling: None,
            taken: false,
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
        let mut head: Head = serde_json::from_str(body).map_err(|e| damaged(e.to_string()))?;
        if !(FORMAT..=FORMAT_OF_HISTORIES).contains(&head.format) {
            let (found, known) = (head.format, FORMAT_OF_HISTORIES);
            return Err(damaged(format!("it is of version {found}, and this build knows {known}")));
        }
        // Nobody counts to what no archive has.
        if let Some(base) = head.bases.iter().find(|base| base.pieces > base.bytes) {
            return Err(damaged(format!("its base of commit {} has more pieces than bytes", base.stamp)));
        }
        head.tell_apart();
        Ok(Some((head, bytes)))
    }

    /// Its bytes: JSON, and in a line of its own the digest of that.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // A build that knows of one history only would mix several.
        let is_of_one = self.histories.is_empty() && self.ceiling.is_none();
        let format = if is_of_one { FORMAT } else { FORMAT_OF_HISTORIES };
        let body = serde_json::to_string_pretty(&Head { format, ..self.clone() }).unwrap_or_default();
        let sum = sum_of(&body);
        format!("{body}\n{sum}").into_bytes()
    }

    /// Names a base of the newest history, up to which the open gap is. Gives the number of gaps that it
    /// ends.
    pub(crate) fn add_base(&mut self, base: Base) -> u64 {
        let (stamp, history) = (base.stamp, base.history);
        self.bases.retain(|other| (other.stamp, other.history) != (stamp, history));
        self.bases.push(base);
        let begun =
            self.histories.last().filter(|begun| begun.ms == self.bases.last().map_or(0, |base| base.ms));
        let (after, mut ended) = (begun.map(|begun| begun.after), 0);
        self.gaps.retain_mut(|gap| {
            if gap.upto != 0 {
                return true;
            }
            (gap.upto, gap.history, gap.after) = (stamp, history, after.unwrap_or(gap.after));
            let is_one = gap.after + 1 < gap.upto;
            ended += u64::from(is_one);
            is_one
        });
        ended
    }

    /// The newest history.
    #[must_use]
    pub fn history(&self) -> u32 {
        self.histories.len() as u32
    }

    /// The history that was the newest one at a moment.
    #[must_use]
    pub fn history_at(&self, ms: u64) -> u32 {
        self.histories.iter().rposition(|history| history.ms <= ms).map_or(0, |i| i as u32 + 1)
    }

    /// The histories that a history goes through, itself first, each with the last stamp that counts of it.
    #[must_use]
    pub fn path(&self, history: u32) -> Vec<(u32, Stamp)> {
        let mut path = vec![(history, Stamp::LAST)];
        while let Some((number, upto)) = path.last().copied()
            && let Some(begun) = (number as usize).checked_sub(1).and_then(|i| self.histories.get(i))
            && begun.of < number
        {
            path.push((begun.of, upto.min(Stamp(begun.after))));
        }
        path
    }

    /// The last stamp that is archived of a history, without those that it continues.
    #[must_use]
    pub fn end_of(&self, history: u32) -> Stamp {
        let runs = self.runs.iter().filter(|run| run.history == history).map(|run| run.last);
        let bases = self.bases.iter().filter(|base| base.history == history).map(|base| base.stamp);
        Stamp(runs.chain(bases).max().unwrap_or(0))
    }

    /// The base from which a stamp of a history is restored: the newest that is not behind it, with no gap
    /// between. None if there is none.
    #[must_use]
    pub fn base_for(&self, history: u32, stamp: Stamp) -> Option<&Base> {
        let path = self.path(history);
        let base = path.iter().find_map(|(of, upto)| {
            let fits = |base: &&Base| base.history == *of && base.stamp <= stamp.min(*upto).0;
            self.bases.iter().rev().find(fits)
        })?;
        let is_bridged = self.gaps.iter().any(|gap| {
            gap.is_on(&path) && gap.after >= base.stamp && gap.after < stamp.0 && gap.upto > base.stamp
        });
        let (_, upto) = path.iter().find(|(of, _)| *of == base.history)?;
        (!is_bridged && stamp <= *upto).then_some(base)
    }

    /// The gap that a moment is in, of which a stamp is the last that had been archived: with the moments
    /// between which it is.
    #[must_use]
    pub fn gap_during(&self, history: u32, last: Stamp, ms: u64) -> Option<(&Gap, u64, u64)> {
        let path = self.path(history);
        self.gaps.iter().filter(|gap| gap.is_on(&path) && gap.after == last.0).find_map(|gap| {
            // Archives of earlier builds do not say from when on commits are missing.
            let from = gap.from_ms.unwrap_or(gap.ms);
            let mut bases = self.bases.iter().filter(|base| base.stamp == gap.upto);
            let to = bases.find(|base| base.history >= gap.history).map_or(u64::MAX, |base| base.ms);
            (from < ms && ms < to).then_some((gap, from, to))
        })
    }

    /// The gap that a stamp of a history is in.
    #[must_use]
    pub fn gap_at(&self, history: u32, stamp: Stamp) -> Option<&Gap> {
        let path = self.path(history);
        self.gaps.iter().find(|gap| gap.is_on(&path) && gap.after < stamp.0 && stamp.0 < gap.upto)
    }

    /// Tells histories apart that an earlier build has mixed: a gap that goes back ends a history. That build
    /// has not written where the two part, so their stamps have nothing in common.
    fn tell_apart(&mut self) {
        if !self.histories.is_empty() {
            return;
        }
        let goes_back = |gap: &&mut Gap| gap.upto != 0 && gap.upto <= gap.after;
        for gap in self.gaps.iter_mut().filter(goes_back) {
            self.histories.push(History { of: self.histories.len() as u32, after: 0, ms: gap.ms });
            (gap.history, gap.after) = (self.histories.len() as u32, 0);
        }
        let histories = std::mem::take(&mut self.histories);
        let began = |ms: u64| histories.iter().filter(|history| history.ms <= ms).count() as u32;
        self.bases.iter_mut().for_each(|base| base.history = began(base.ms));
        let (mut history, mut before) = (0, 0);
        for run in &mut self.runs {
            if run.first <= before {
                history = (history + 1).min(histories.len() as u32);
            }
            (run.history, before) = (history, run.last);
        }
        self.gaps.iter_mut().filter(|gap| gap.history == 0).for_each(|gap| gap.history = began(gap.ms));
        self.histories = histories;
    }
}

impl Gap {
    /// Says whether it is in what counts of these histories.
    fn is_on(&self, path: &[(u32, Stamp)]) -> bool {
        path.iter().any(|(history, upto)| *history == self.history && self.after < upto.0)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_first(history: &u32) -> bool {
    *history == 0
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
