//! The putting of objects: log objects, and the pieces of a base.

use std::time::{Duration, Instant};

use tercel::Stamp;
use tercel::backup::BackupError;

use crate::config::OBJECT_BYTES;
use crate::head::piece_name;
use crate::object::{Digest, Kind, Object};
use crate::store::{Store, StoreError};

/// Contents of a piece of a base.
pub(crate) const PIECE_BYTES: usize = OBJECT_BYTES;

/// Puts a log object. Gives its bytes' number, and its digest. An attempt of this writer that seemed to
/// fail may have put it: with the same entries, and other moments.
pub(crate) fn put_log(store: &dyn Store, name: &str, object: Object) -> Result<(u64, Digest), StoreError> {
    let (bytes, digest) = object.encode();
    if store.put(name, &bytes)? {
        return Ok((bytes.len() as u64, digest));
    }
    let there = store.get(name)?.unwrap_or_default();
    match Object::decode(&there) {
        Ok((found, digest)) => match (Object { times: object.times.clone(), ..found }) == object {
            true => Ok((there.len() as u64, digest)),
            false => Err(is_there(store, name)),
        },
        Err(_) => Err(is_there(store, name)),
    }
}

fn is_there(store: &dyn Store, name: &str) -> StoreError {
    let (what, why) = (format!("writing {name}"), "another object is there".into());
    StoreError::Failed { store: store.url(), what, why }
}

/// Pieces of a base.
pub(crate) struct Pieces<'a> {
    /// The place of the pieces.
    pub store: &'a dyn Store,
    /// The space.
    pub space: tercel::SpaceId,
    /// The stamp of the base.
    pub stamp: Stamp,
    /// The moment of the base.
    pub ms: u64,
    /// Pieces that were put, their last digest, and their bytes.
    pub count: u64,
    /// See `count`.
    pub before: Digest,
    /// See `count`.
    pub bytes: u64,
    /// The longest time that a piece took.
    pub slowest: Duration,
}

impl Pieces<'_> {
    /// Puts the next piece.
    pub fn put(&mut self, kind: Kind, contents: Vec<u8>) -> Result<(), StoreError> {
        let object = Object {
            kind,
            space: self.space,
            before: self.before,
            first: self.stamp,
            position: self.count,
            last: Stamp(0),
            end: 0,
            times: Vec::new(),
            contents,
        };
        let (bytes, digest) = object.encode();
        let name = piece_name(self.stamp.0, self.ms, self.count);
        let begun = Instant::now();
        if !self.store.put(&name, &bytes)? && self.store.get(&name)?.as_deref() != Some(&bytes[..]) {
            // An attempt of the same moment: the next one has a later name.
            return Err(is_there(self.store, &name));
        }
        self.slowest = self.slowest.max(begun.elapsed());
        (self.before, self.count, self.bytes) = (digest, self.count + 1, self.bytes + bytes.len() as u64);
        Ok(())
    }

    /// The reason why the server ended a base, if that is the store's time: a server waits only so long for
    /// the next question.
    pub fn too_slow(&self, lost: &BackupError) -> Option<StoreError> {
        let is_too_slow = matches!(lost, BackupError::Lost(_)) && self.slowest >= SILENCE_MIN;
        is_too_slow.then(|| StoreError::Failed {
            store: self.store.url(),
            what: "writing a base".into(),
            why: format!(
                "a piece took {} s, and the server did not wait so long: the base is begun again",
                self.slowest.as_secs()
            ),
        })
    }
}

/// A server bears silence for longer than this.
const SILENCE_MIN: Duration = Duration::from_secs(4);
