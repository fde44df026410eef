//! An archive copied to another store: what its head names, verified on the way.

use crate::catalogue::{ArchiveError, Catalogue, is_noted};
use crate::head::{HEAD, Head, Run, log_name, piece_name, unhex};
use crate::merge::merged;
use crate::moment::time_text;
use crate::object::{Damage, Object};
use crate::store::{Store, StoreError};

/// The result of a copy.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Copied {
    /// Objects that were written.
    pub written: u64,
    /// Objects of an earlier copy that were damaged, and are whole again.
    pub mended: Vec<String>,
    /// Objects that are missing or damaged, and so are not in the copy either, a sentence each.
    pub wrong: Vec<String>,
}

/// Copies an archive into a store that has none, or goes on with an earlier copy there, which keeps what the
/// archive has removed as old. The copy of a damaged archive has all that can be read of it.
///
/// # Errors
/// If a store fails, or the other store has another archive, or more of this one.
pub fn copy(from: &dyn Store, to: &dyn Store, mut progress: impl FnMut(u64)) -> Result<Copied, ArchiveError> {
    let catalogue = Catalogue::open(from)?;
    let there = Head::read(to)?;
    if let Some((head, _)) = there.as_ref().filter(|(head, _)| head.space != catalogue.head.space) {
        return Err(ArchiveError::NotThere(format!(
            "{} has the archive of space {}, written by {}: copy to another place",
            to.url(),
            head.space,
            head.writer
        )));
    }
    if let Some((head, _)) = &there
        && !is_beginning(head, &catalogue)?
    {
        return Err(ArchiveError::NotThere(format!(
            "{} has an archive, up to {}, written by {}, that is no beginning of {}: copy to another place",
            to.url(),
            time_text(head.upto_ms),
            head.writer,
            from.url()
        )));
    }
    let mut copied = Copied::default();
    let mut put = |name: &str, object: &Object| -> Result<(), ArchiveError> {
        // As they were written: another build compresses otherwise, and the chain is of what stands there.
        let bytes = catalogue
            .bytes_of(name)?
            .filter(|bytes| Object::decode(bytes).is_ok_and(|(read, _)| read == *object));
        let bytes = bytes.ok_or_else(|| StoreError::Failed {
            store: from.url(),
            what: format!("reading {name}"),
            why: "it was another object a moment ago".into(),
        })?;
        let is_there = |there: Result<Option<Vec<u8>>, StoreError>| match there {
            Err(StoreError::Damaged { .. }) => Ok(false),
            there => there.map(|there| there.as_deref() == Some(&bytes[..])),
        };
        if to.put(name, &bytes)? {
            copied.written += 1;
        } else if !is_there(to.get(name))? {
            // A damaged object counts for nothing.
            if is_damaged(to, name, object)? {
                to.remove(name)?;
                if to.put(name, &bytes)? {
                    copied.written += 1;
                    copied.mended.push(name.into());
                    progress(copied.written);
                    return Ok(());
                }
            }
            return Err(ArchiveError::NotThere(format!(
                "another {name} is in {}, of another archive: copy to another place",
                to.url()
            )));
        }
        progress(copied.written);
        Ok(())
    };
    let mut wrong = Vec::new();
    for base in &catalogue.head.bases {
        let walked = catalogue.pieces(base, |piece| {
            let name = piece_name(base.stamp, base.ms, piece.position);
            put(&name, &piece)
        });
        if is_noted(walked, &mut wrong)? {
            let names = (0..base.pieces).map(|piece| piece_name(base.stamp, base.ms, piece));
            catalogue.readable(names, &mut wrong, &mut put)?;
        }
    }
    for run in &catalogue.head.runs {
        let walked =
            catalogue.walk(run, |object| put(&log_name(run.view, object.first.0, object.last.0), object));
        if is_noted(walked, &mut wrong)? {
            catalogue.rest_of(run, &mut wrong, &mut put)?;
        }
    }
    let new = match &there {
        Some((head, _)) => merged(head, &catalogue.head).to_bytes(),
        None => catalogue.head.to_bytes(),
    };
    let old = there.map(|(_, bytes)| bytes);
    if old.as_deref() != Some(&new[..]) && !to.swap(HEAD, old.as_deref(), &new)? {
        let (what, why) = ("replacing head".into(), "another copy is under way".into());
        return Err(StoreError::Failed { store: to.url(), what, why }.into());
    }
    Ok(Copied { wrong, ..copied })
}

/// Says whether a store has other bytes of an object than were written, or none any more. An earlier build
/// has compressed objects of copies anew.
fn is_damaged(store: &dyn Store, name: &str, whole: &Object) -> Result<bool, StoreError> {
    match store.get(name) {
        Err(StoreError::Damaged { .. }) | Ok(None) => Ok(true),
        Ok(Some(bytes)) if Object::decode(&bytes).is_ok_and(|(object, _)| object == *whole) => Ok(true),
        // One of a later version is none of this build's to judge.
        got => Ok(got?.is_some_and(|bytes| matches!(Object::decode(&bytes), Err(Damage::Bytes)))),
    }
}

/// Says whether an archive has gone on from a head: it has all of that, but for what it has removed as old.
fn is_beginning(head: &Head, of: &Catalogue<'_>) -> Result<bool, ArchiveError> {
    let whole = &of.head;
    let oldest = whole.bases.first().map_or((0, 0), |base| (base.history, base.first));
    let has_bases = head.bases.iter().all(|base| {
        let is_removed = (base.history, base.first) < oldest;
        is_removed || whole.bases.iter().any(|other| other == base)
    });
    if head.upto_ms > whole.upto_ms || !whole.histories.starts_with(&head.histories) || !has_bases {
        return Ok(false);
    }
    for run in &head.runs {
        if (run.history, run.last + 1) > oldest && !has_run(run, of)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Says whether an archive has the last object of a run.
fn has_run(run: &Run, of: &Catalogue<'_>) -> Result<bool, ArchiveError> {
    for other in of.head.runs.iter().filter(|other| (other.view, other.history) == (run.view, run.history)) {
        if other.first > run.last || other.last < run.last {
            continue;
        }
        // The head vouches for it, whether it can still be read or not.
        if (other.last, &other.digest) == (run.last, &run.digest) {
            return Ok(true);
        }
        for name in of.names_of(other)?.into_values().flatten() {
            if !name.ends_with(&format!("-{:020}", run.last)) {
                continue;
            }
            let bytes = of.bytes_of(&name)?;
            let digest = bytes.and_then(|bytes| Object::decode(&bytes).ok()).map(|(_, digest)| digest);
            if digest == Some(unhex(&run.digest)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
