//! Archives: a space's log and bases, kept in a store, from which the space is made again as of any moment.
//!
//! An archive is behind the commit always: a writer reads what is stable from a server, as fast as the
//! store takes it, and no commit waits for it. What the server's log no longer has when the writer comes to
//! it is a *gap*: it is told, and no restore bridges it.
//!
//! | module | its noun |
//! |---|---|
//! | [`store`] | where objects are kept: what is asked of it |
//! | [`access`] | the variables and keys by which stores are reached |
//! | [`dir`] | a store that is a directory |
//! | `bucket` | a store that is a bucket, with the feature `s3` |
//! | [`object`] | the bytes of log objects and of pieces of bases |
//! | [`head`] | the one object that is changed: who writes, and what there is |
//! | [`writer`] | the thread that archives |
//! | [`memory`] | what a server knows of its archive while its place is away |
//! | `reading` | the reading of a server's log, from one session of the writer to the next |
//! | `pieces` | the putting of objects |
//! | [`catalogue`] | what an archive has, read and verified |
//! | [`restore`] | spaces made of archives, alone or of several at one cut |
//! | [`config`] | the settings of a writer |
//! | [`moment`] | moments as people write them |
//! | [`take`] | an archive taken for a server, whatever writer has it |
//! | [`copy`] | an archive copied to another store |
//! | `merge` | the head of a copy that goes on |

pub mod access;
#[cfg(feature = "s3")]
pub mod bucket;
pub mod catalogue;
pub mod config;
pub mod copy;
pub mod dir;
pub mod head;
pub mod memory;
mod merge;
pub mod moment;
pub mod object;
mod pieces;
mod reading;
pub mod restore;
pub mod store;
pub mod take;
pub mod writer;

use std::path::Path;
use std::sync::Arc;

use access::Access;
use store::{Store, StoreError};

/// Opens the store that a URL names, `file:///DIR` or `s3://BUCKET/PATH`, to write there. A directory is made
/// if it is not there. A bucket that cannot be reached now is opened, and seen to before its first write.
///
/// # Errors
/// If the URL names no store that this build knows, or nothing can be written there.
pub fn open(url: &str, access: &Access) -> Result<Arc<dyn Store>, StoreError> {
    match Place::of(url)? {
        Place::Directory(path) => Ok(Arc::new(dir::DirStore::open(path)?)),
        Place::Bucket => bucket_of(url, access, true),
    }
}

/// Opens the store that a URL names, to read it. Nothing is made, and nothing is asked of it yet.
///
/// # Errors
/// If the URL names no store that this build knows, or the settings of a bucket are wrong.
pub fn existing(url: &str, access: &Access) -> Result<Arc<dyn Store>, StoreError> {
    match Place::of(url)? {
        Place::Directory(path) => Ok(Arc::new(dir::DirStore::at(path))),
        Place::Bucket => bucket_of(url, access, false),
    }
}

/// The kind of store that a URL names.
enum Place<'a> {
    Directory(&'a Path),
    Bucket,
}

impl Place<'_> {
    fn of(url: &str) -> Result<Place<'_>, StoreError> {
        match url.strip_prefix("file://") {
            Some(path) if path.starts_with('/') => Ok(Place::Directory(Path::new(path))),
            None if url.starts_with("s3://") => Ok(Place::Bucket),
            _ => Err(StoreError::Url { url: shown(url), why: String::new() }),
        }
    }
}

/// A URL without the part before an `@`, which may be a password.
fn shown(url: &str) -> String {
    let Some((before, after)) = url.rsplit_once('@') else { return url.into() };
    let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
    format!("{scheme}://..@{after}")
}

#[cfg(feature = "s3")]
fn bucket_of(url: &str, access: &Access, is_written: bool) -> Result<Arc<dyn Store>, StoreError> {
    let settings = bucket::settings::Settings::read(url, access)?;
    let store = bucket::BucketStore::new(settings)?;
    match is_written.then(|| store.prove()) {
        Some(Err(error)) if !matches!(error, StoreError::Failed { .. }) => Err(error),
        _ => Ok(Arc::new(store)),
    }
}

#[cfg(not(feature = "s3"))]
fn bucket_of(url: &str, _: &Access, _: bool) -> Result<Arc<dyn Store>, StoreError> {
    let why = " that this build knows: it was built without the feature `s3`".into();
    Err(StoreError::Url { url: shown(url), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        existing(url, &Access::default()).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn unknown_scheme_names_both_known_ones() {
        for url in ["http://host/a", "/mnt/a", "file://a", "S3://bucket/a", ""] {
            let why = refused(url);
            assert!(why.contains("file:///DIR") && why.contains("s3://BUCKET/PATH"), "{url}: {why}");
        }
    }

    #[test]
    fn password_in_a_url_is_not_shown() {
        for url in ["s3://key:geheim@bucket/a", "http://key:geheim@host", "geheim@host"] {
            let why = refused(url);
            assert!(why.contains("names no store") && !why.contains("geheim"), "{why}");
        }
    }
}
