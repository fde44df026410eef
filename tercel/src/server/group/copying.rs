//! Taking a copy of the space from the group's leader, for a member that the log no longer reaches back for.
//!
//! The copy is made in a directory of its own within the member's, which goes on voting meanwhile. A copy that
//! the member adopts has another name, and the next opening moves its pages and log to their places. The
//! invariant: a copy has that name only once all of it is on the disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tercel_engine::order::quorum::members::Members;
use tercel_events::Handle;
use tercel_wire::id::MemberId;
use tercel_wire::message::Transfer;

use crate::address::Addresses;
use crate::backup;
use crate::disk::dir::DataDir;
use crate::panics::caught;
use crate::server::Post;
use crate::server::store::post;

/// Takes copies, one at a time.
pub(super) struct Copying {
    dir: PathBuf,
    of: Transfer,
    is_under_way: Arc<AtomicBool>,
}

impl Copying {
    pub(super) fn new(dir: &Path, group: u64, member: MemberId) -> Copying {
        Copying { dir: dir.into(), of: Transfer { group, member }, is_under_way: Arc::default() }
    }

    /// Begins a copy, unless one is under way. The thread ends by itself: it may be in a connect for a while.
    pub(super) fn begin(&self, members: &Members, handle: &Handle<Post>) -> std::io::Result<()> {
        let others = members.iter().filter(|member| member.id != self.of.member);
        let others: Vec<String> = others.map(|member| member.address.clone()).collect();
        let Ok(servers) = others.join(",").parse::<Addresses>() else { return Ok(()) };
        if self.is_under_way.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let (dir, of, handle) = (self.dir.clone(), self.of.clone(), handle.clone());
        let is_under_way = self.is_under_way.clone();
        let copying = std::thread::Builder::new().name("tercel-copy".into()).spawn(move || {
            let copied = caught(|| {
                DataDir::drop_copy(&dir).map_err(|e| e.to_string())?;
                backup::copy(&servers, &of, &DataDir::copy_of(&dir)).map_err(|e| e.to_string())
            });
            is_under_way.store(false, Ordering::SeqCst);
            post(&handle, Post::Copied(copied.and_then(|copied| copied)));
        });
        copying.map(drop)
    }
}
