//! An archive taken for a server, whatever writer has it.
//!
//! A younger view takes an archive over by itself, and each restored space has younger views than the one it
//! was made of. So a copy that was served for a while would keep the archive from the original for good. The
//! invariant: after a take no view of another history than that of the server writes, until somebody takes it
//! again.

use tercel::{SpaceId, ViewId};

use crate::catalogue::{ArchiveError, Catalogue};
use crate::head::HEAD;
use crate::store::{Store, StoreError};
use crate::writer::{drawn, refuse_other};

/// Gives an archive to the server of a space that leads a view, and to its later views.
///
/// # Errors
/// If there is no archive, or one of another space, or the store fails.
pub fn take(store: &dyn Store, space: SpaceId, view: ViewId, name: &str) -> Result<(), ArchiveError> {
    for _ in 0..ATTEMPTS {
        let catalogue = Catalogue::open(store)?;
        let mut head = catalogue.head;
        refuse_other(&head, space, store).map_err(|why| ArchiveError::NotThere(why.to_string()))?;
        let Some((_, old)) = crate::head::Head::read(store)? else { continue };
        // Views of other histories are at least so far above.
        let above = view.number.saturating_add(VIEWS_OF_A_HISTORY);
        let theirs = head.view.0;
        head.ceiling = Some(if theirs > view.number { above.min(theirs - 1) } else { above });
        head.view = (view.number, view.incarnation);
        head.owner = format!("{:016x}", drawn(name));
        head.writer = name.into();
        head.taken = true;
        if store.swap(HEAD, Some(&old), &head.to_bytes())? {
            return Ok(());
        }
    }
    let (what, why) = ("replacing head".into(), "a writer changes it: stop its server".into());
    Err(StoreError::Failed { store: store.url(), what, why }.into())
}

/// A writer changes the head once a second at most.
const ATTEMPTS: usize = 20;

/// The views of a restored space begin more than so many above those of the space that it was made of.
const VIEWS_OF_A_HISTORY: u32 = (1 << 16) - 1;
