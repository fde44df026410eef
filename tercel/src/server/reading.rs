//! Reading the own log for members that lag, for backups and archives, and for a replica that is recovered
//! within the process. The thread begins with the first question: most servers have none.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use tercel_engine::order::{Found, Sealed};
use tercel_engine::server::{Recovery, ServerConfig};
use tercel_events::Handle;
use tercel_wire::id::{LogPosition, PageId, SpaceId, Written};
use tercel_wire::log::Record;

use crate::disk::DiskError;
use crate::disk::held::HeldDir;
use crate::disk::log::{LogReader, ReadUpto};
use crate::disk::pages::{PageRead, checkpoint};
use crate::server::Post;
use crate::server::store::post;

/// Feeds the thread that reads.
pub(super) struct Reading {
    dir: HeldDir,
    space: SpaceId,
    handle: Handle<Post>,
    thread: Option<(Sender<Asked>, JoinHandle<()>)>,
}

/// Entries from a position on, so many bytes of them, of a log that is written up to another.
struct Asked {
    from: LogPosition,
    bytes: usize,
    written: Written,
}

impl Reading {
    pub(super) fn new(dir: HeldDir, space: SpaceId, handle: Handle<Post>) -> Reading {
        Reading { dir, space, handle, thread: None }
    }

    fn start(&self) -> std::io::Result<(Sender<Asked>, JoinHandle<()>)> {
        let (asked, rx) = channel::<Asked>();
        let (dir, space, handle) = (self.dir.clone(), self.space, self.handle.clone());
        let thread = std::thread::Builder::new().name("tercel-log-read".into()).spawn(move || {
            let mut reader = LogReader::new(dir, space);
            while let Ok(Asked { from, bytes, written }) = rx.recv() {
                let mut entries = Vec::new();
                let upto = written.position;
                let found = match reader.read(from, upto, bytes, |record| entries.push(sealed(record))) {
                    Ok(ReadUpto::BeginsLater) => Ok(Found::BeginsLater),
                    Ok(ReadUpto::Position(_)) if entries.is_empty() => Ok(Found::NotNow),
                    Ok(ReadUpto::Position(_)) => Ok(Found::Entries(entries)),
                    Err(error) => Err(error.to_string()),
                };
                post(&handle, Post::Found(from, written, found));
            }
        })?;
        Ok((asked, thread))
    }

    /// Has entries read. The answer is posted.
    pub(super) fn read(&mut self, from: LogPosition, bytes: usize, written: Written) -> std::io::Result<()> {
        if self.thread.is_none() {
            self.thread = Some(self.start()?);
        }
        if let Some((asked, _)) = &self.thread {
            let _ = asked.send(Asked { from, bytes, written });
        }
        Ok(())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some((asked, thread)) = self.thread.take() {
            drop(asked);
            let _ = thread.join();
        }
    }
}

/// A record as the order knows it.
pub(crate) fn sealed(record: Record<'_>) -> Sealed {
    let Record { stamp, view, kind, payload, .. } = record;
    Sealed { stamp, view, kind: kind.get(), payload: payload.to_vec().into() }
}

/// Recovers a replica of everything up to a position, which the disk has, while the log goes on behind it.
pub(super) fn recover(
    pages: &dyn PageRead,
    (dir, space): (HeldDir, SpaceId),
    config: ServerConfig,
    upto: LogPosition,
) -> Result<Box<Recovery>, String> {
    let say = |error: DiskError| error.to_string();
    let checkpoint = checkpoint(pages).map_err(say)?;
    let recovery = Recovery::new(config, space, checkpoint.as_ref(), PageId::MAX.get());
    let mut recovery = recovery.map_err(|error| error.to_string())?;
    let mut reader = LogReader::new(dir, space);
    let mut from = reader.begins().map_err(say)?.unwrap_or_default().next();
    let mut failed = None;
    while from <= upto && failed.is_none() {
        let read = reader.read(from, upto, READ_BYTES, |record| {
            let Record { view, stamp, kind, payload, .. } = record;
            failed = failed.take().or(recovery.replay(view, stamp, kind.get(), payload).err());
        });
        match read.map_err(say)? {
            ReadUpto::Position(last) => from = last.next(),
            // Segments that nobody needs went meanwhile.
            ReadUpto::BeginsLater => {
                from = reader.begins().map_err(say)?.unwrap_or_default().next().max(from.next())
            }
        }
    }
    match failed {
        Some(error) => Err(error.to_string()),
        None => Ok(Box::new(recovery)),
    }
}

const READ_BYTES: usize = 1 << 20;
