//! An archive copied to another store: what its head names, verified on the way.

use crate::catalogue::{ArchiveError, Catalogue};
use crate::head::{HEAD, Head, log_name, piece_name};
use crate::store::{Store, StoreError};

/// Copies an archive into a store that has none, or goes on with an earlier copy there. Gives the number of
/// objects that were written.
///
/// # Errors
/// If an object is damaged, or a store fails, or the other store has another archive.
pub fn copy(from: &dyn Store, to: &dyn Store, mut progress: impl FnMut(u64)) -> Result<u64, ArchiveError> {
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
    let mut written = 0;
    let mut put = |name: &str, bytes: &[u8]| -> Result<(), ArchiveError> {
        if to.put(name, bytes)? {
            written += 1;
        } else if to.get(name)?.as_deref() != Some(bytes) {
            let (what, why) = (format!("writing {name}"), "another object is there".into());
            return Err(StoreError::Failed { store: to.url(), what, why }.into());
        }
        progress(written);
        Ok(())
    };
    for base in &catalogue.head.bases {
        catalogue.pieces(base, |piece| {
            let name = piece_name(base.stamp, base.ms, piece.position);
            put(&name, &piece.encode().0)
        })?;
    }
    for run in &catalogue.head.runs {
        catalogue.walk(run, |object| {
            put(&log_name(run.view, object.first.0, object.last.0), &object.encode().0)
        })?;
    }
    let new = catalogue.head.to_bytes();
    let old = there.map(|(_, bytes)| bytes);
    if old.as_deref() != Some(&new[..]) && !to.swap(HEAD, old.as_deref(), &new)? {
        let (what, why) = ("replacing head".into(), "another copy is under way".into());
        return Err(StoreError::Failed { store: to.url(), what, why }.into());
    }
    Ok(written)
}
