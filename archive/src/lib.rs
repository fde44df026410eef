//! Archives: a space's log and bases, kept in a store, from which the space is made again as of any moment.
//!
//! An archive is behind the commit always: a writer reads what is stable from a server, as fast as the
//! store takes it, and no commit waits for it. What the server's log no longer has when the writer comes to
//! it is a *gap*: it is told, and no restore bridges it.
//!
//! | module | its noun |
//! |---|---|
//! | [`store`] | where objects are kept: what is asked of it |
//! | [`dir`] | a store that is a directory |
//! | [`object`] | the bytes of log objects and of pieces of bases |
//! | [`head`] | the one object that is changed: who writes, and what there is |
//! | [`writer`] | the thread that archives |
//! | [`catalogue`] | what an archive has, read and verified |
//! | [`restore`] | spaces made of archives, alone or of several at one cut |
//! | [`moment`] | moments as people write them |
//! | [`copy`] | an archive copied to another store |

pub mod catalogue;
pub mod copy;
pub mod dir;
pub mod head;
pub mod moment;
pub mod object;
pub mod restore;
pub mod store;
pub mod writer;

use std::path::Path;
use std::sync::Arc;

use store::{Store, StoreError};

/// Opens the store that a URL names, `file:///DIR`, to write there. The directory is made if it is not
/// there.
///
/// # Errors
/// If the URL names no store that this build knows, or nothing can be written there.
pub fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(dir::DirStore::open(path(url)?)?))
}

/// The store that a URL names, to read it. Nothing is made.
///
/// # Errors
/// If the URL names no store that this build knows.
pub fn existing(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(dir::DirStore::at(path(url)?)))
}

fn path(url: &str) -> Result<&Path, StoreError> {
    let path = url.strip_prefix("file://").filter(|path| path.starts_with('/'));
    path.map(Path::new).ok_or_else(|| StoreError::Url(url.into()))
}
