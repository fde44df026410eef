//! Taking a copy of the space from the group's leader, for a member that the log no longer reaches back for.
//!
//! The copy has pages as they are stored, the ordered state, and the log from the oldest entry on that those
//! pages may lack: what a crash leaves. It is made in a directory of its own within the member's, which goes
//! on voting meanwhile. The invariant: a copy is told of only when all of it is on the disk; one that breaks
//! off, or is not adopted, is removed.

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tercel_engine::order::Sealed;
use tercel_engine::order::quorum::packet::entries;
use tercel_engine::replica::Replica;
use tercel_engine::replica::saved::Saved;
use tercel_events::Handle;
use tercel_wire::cursor::{DecodeError, Reader, le32};
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{self, Header, Kind};
use tercel_wire::id::{EntryId, LogPosition, MemberId, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::log::{self, Last, encode_record};
use tercel_wire::message::{BackupPart, Refused, Transfer, TransferBegun};
use tercel_wire::page::{PAGE_BYTES, Page};

use crate::address::Address;
use crate::disk::DiskError;
use crate::disk::dir::{DataDir, LOG_NAME, Purpose, Space, today};
use crate::disk::held::HeldDir;
use crate::disk::log::{Log, LogConfig};
use crate::disk::pages::{PageBatch, PageStore, Parts, RedbPages};
use crate::panics::caught;
use crate::proving::Prover;
use crate::server::Post;
use crate::server::store::post;
use crate::stream::{Connector, Stream, Whom};

/// Takes copies, one at a time.
pub(super) struct Copying {
    dir: PathBuf,
    space: SpaceId,
    of: Transfer,
    /// The proof and the certificate with which it connects.
    how: (Prover, Connector),
    is_under_way: Arc<AtomicBool>,
    /// Set when the server stops: a copy breaks off.
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Copying {
    pub(super) fn new(
        dir: &Path,
        space: SpaceId,
        (group, member): (u64, MemberId),
        how: (Prover, Connector),
    ) -> Copying {
        let (of, is_under_way, is_stopping) = (Transfer { group, member }, Arc::default(), Arc::default());
        Copying { dir: dir.into(), space, of, how, is_under_way, is_stopping, thread: None }
    }

    /// Begins a copy from the leader of a view, unless one is under way.
    pub(super) fn begin(&mut self, view: ViewId, leader: &str, handle: &Handle<Post>) -> std::io::Result<()> {
        // One that cannot be reached so is told of where it was added.
        let Ok(leader) = leader.parse::<Address>() else { return Ok(()) };
        if self.is_under_way.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let (dir, of, handle) = (self.dir.clone(), self.of.clone(), handle.clone());
        let (prover, connector) = self.how.clone();
        let space = Space { id: self.space, page_bytes: PAGE_BYTES as u32, created: today(), view_first: 0 };
        let (is_under_way, is_stopping) = (self.is_under_way.clone(), self.is_stopping.clone());
        self.spawn(move || {
            let copied = caught(|| {
                DataDir::drop_copy(&dir)?;
                copy(((&leader, &connector), &prover, is_stopping), &of, &DataDir::copy_of(&dir), &space)
            });
            if !matches!(copied, Ok(Ok(_))) {
                // The next attempt, or opening, tries again.
                let _ = DataDir::drop_copy(&dir);
            }
            // One that is whole may be adopted: no other is begun before the loop has said.
            let is_whole = matches!(copied, Ok(Ok(_)));
            let copied = copied.and_then(|copied| copied.map_err(|why| why.to_string()));
            let failed = |why| (of.member, format!("the copy broke off: {why}"));
            post(&handle, Post::Copied(copied.map(|end| (view, end)).map_err(failed)));
            is_under_way.fetch_and(is_whole, Ordering::SeqCst);
        })
    }

    /// The copy that was made is not adopted: another may be begun once it is removed.
    pub(super) fn is_over(&mut self) -> std::io::Result<()> {
        let (dir, is_under_way) = (self.dir.clone(), self.is_under_way.clone());
        self.spawn(move || {
            let _ = DataDir::drop_copy(&dir);
            is_under_way.store(false, Ordering::SeqCst);
        })
    }

    /// Has the thread do something. It is done with what was before.
    fn spawn(&mut self, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.join();
        self.thread = Some(std::thread::Builder::new().name("tercel-copy".into()).spawn(work)?);
        Ok(())
    }

    fn join(&mut self) {
        // A panic in it was caught.
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.join();
    }
}

type Failed = Box<dyn Error + Send + Sync>;

/// Takes a copy of the space into the directory `dir`. Gives the last entry of its log.
fn copy(
    (leader, prover, is_stopping): ((&Address, &Connector), &Prover, Arc<AtomicBool>),
    of: &Transfer,
    dir: &Path,
    space: &Space,
) -> Result<EntryId, Failed> {
    let mut source = Source::connect(leader, prover, is_stopping)?;
    source.ask(Kind::Transfer, |body| of.encode(body))?;
    let begun = source.answer(Kind::TransferBegun, TransferBegun::decode)?;
    let before = EntryId { view: begun.before_view, position: LogPosition(begun.before) };
    let stamp_before = Stamp(begun.replay_from.0.saturating_sub(1));
    let (config, mut end) = (LogConfig::default(), before);
    let segment_bytes = config.segment_bytes;
    let fill = |pages: &Path| -> Result<(), Failed> {
        let none = |_: log::Record<'_>, _: bool| Ok::<_, DiskError>(());
        let log_dir = HeldDir::open(dir)?.below(LOG_NAME, false)?;
        let (log, _) = Log::open_member(&log_dir, space.id, config, begun.replay_from, Stamp::ZERO, none)?;
        let pages = RedbPages::open(pages, PAGE_BYTES as u32)?;
        let last = log.tail().last;
        let made = Made { begun, pages, batch: Vec::new(), count: 0, state: Vec::new(), log, last };
        end = made.take(&mut source)?;
        Ok(())
    };
    DataDir::create_copy(dir, Purpose::Copy, space, (stamp_before, before), segment_bytes, fill)?;
    Ok(end)
}

/// The copy as far as it is made.
struct Made {
    begun: TransferBegun,
    pages: RedbPages,
    batch: Vec<(PageId, Vec<u8>)>,
    count: u64,
    state: Vec<u8>,
    log: Log,
    last: Last,
}

impl Made {
    /// Takes all parts. Gives the last entry of the log.
    fn take(mut self, source: &mut Source) -> Result<EntryId, Failed> {
        (0..ASKED).try_for_each(|_| source.ask(Kind::BackupNext, |_| ()))?;
        loop {
            let body = source.answer(Kind::BackupPart, |body| Ok(body.to_vec()))?;
            match BackupPart::decode(&body)? {
                BackupPart::State(piece) => {
                    self.state.extend_from_slice(piece);
                    if self.state.len() > self.begun.state_bytes as usize {
                        return Err("it sent more state than it had said".into());
                    }
                }
                BackupPart::Pages { pages, .. } => self.add_pages(pages)?,
                BackupPart::Log(bytes) => self.add_entries(bytes)?,
                BackupPart::End { pages } => return self.finish(pages),
            }
            source.ask(Kind::BackupNext, |_| ())?;
        }
    }

    fn add_pages(&mut self, pages: &[u8]) -> Result<(), Failed> {
        for bytes in pages.chunks_exact(PAGE_BYTES) {
            let last = self.batch.last().map_or(0, |(page, _)| page.get());
            let page = PageId::new(le32(bytes, 4)).filter(|page| page.get() > last);
            let page = page.ok_or("it sent a page out of its turn")?;
            Page::parse(bytes, page)?;
            self.batch.push((page, bytes.to_vec()));
        }
        if self.batch.len() >= BATCH_PAGES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Failed> {
        let pages: Vec<(PageId, &[u8])> = self.batch.iter().map(|(p, b)| (*p, b.as_slice())).collect();
        let batch = PageBatch { pages: &pages, gone: &[], meta: &[], applied_stamp: Stamp::ZERO };
        self.pages.commit(&batch)?;
        self.count += pages.len() as u64;
        self.batch.clear();
        Ok(())
    }

    fn add_entries(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        let (mut r, mut records) = (Reader::new(bytes), Vec::new());
        let came = entries(&mut r, self.begun.view, self.last.view)?;
        r.end()?;
        for Sealed { stamp, view, kind, payload } in came {
            // The leader knew the position of the first by its stamp.
            if stamp != self.last.stamp.next() || stamp > self.begun.stamp {
                return Err("it sent an entry out of its turn".into());
            }
            let kind = log::Kind::new(kind).ok_or("it sent an entry without a kind")?;
            encode_record(&mut records, &mut self.last.chain, kind, view, stamp, &payload)?;
            self.last = Last { stamp, view, position: self.last.position.next(), ..self.last };
        }
        Ok(self.log.append(&records)?)
    }

    /// Sees that all of it came, and makes it durable.
    fn finish(mut self, pages: u64) -> Result<EntryId, Failed> {
        self.flush()?;
        let TransferBegun { stamp, view, replay_from, state_bytes, .. } = self.begun;
        let state = Saved::parse(&self.state)?;
        let restored = Replica::restored(&state)?;
        let is_whole = self.state.len() == state_bytes as usize && self.count == pages;
        if !is_whole || (restored.stamp, restored.view()) != (stamp, view) || self.last.stamp != stamp {
            return Err("it sent less than it had said".into());
        }
        let parts = Parts::new(replay_from, &state);
        let batch = PageBatch { pages: &[], gone: &[], meta: &parts.meta(), applied_stamp: stamp };
        self.pages.commit(&batch)?;
        // All of it was stable at the leader.
        self.log.stable_upto(self.last.position);
        self.log.close()?;
        Ok(self.last.id())
    }
}

/// A connection to the leader, without a greeting: it may need this member's disk before it welcomes anyone.
struct Source {
    stream: Stream,
    deframer: Deframer,
    buffer: Vec<u8>,
    call: u64,
    is_stopping: Arc<AtomicBool>,
}

impl Source {
    fn connect(
        (leader, connector): (&Address, &Connector),
        prover: &Prover,
        is_stopping: Arc<AtomicBool>,
    ) -> Result<Source, Failed> {
        let mut stream = connector.connect(leader, Whom::Member, CONNECT_MAX)?;
        prover.open(&mut stream, None, CONNECT_MAX)?;
        stream.set_read_timeout(GLANCE)?;
        stream.set_write_timeout(ANSWER_MAX)?;
        let (deframer, buffer) = (Deframer::default(), vec![0; 256 << 10]);
        Ok(Source { stream, deframer, buffer, call: 0, is_stopping })
    }

    fn ask(&mut self, kind: Kind, body: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failed> {
        self.call += 1;
        let (mut bytes, mut of_kind) = (Vec::new(), Vec::new());
        body(&mut of_kind);
        frame::encode(Header::new(kind, self.call), &of_kind, &mut bytes);
        Ok(self.stream.write_all(&bytes)?)
    }

    /// Waits for a message of a kind, and no longer than [`ANSWER_MAX`]. Others that are no refusals mean
    /// nothing here.
    fn answer<T>(
        &mut self,
        kind: Kind,
        read: impl FnOnce(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<T, Failed> {
        let asked = Instant::now();
        loop {
            while let Some((header, body)) = self.deframer.next_frame()? {
                if header.kind == kind {
                    return Ok(read(body)?);
                }
                if header.kind == Kind::Refused {
                    return Err(Refused::decode(body)?.text.into());
                }
            }
            if self.is_stopping.load(Ordering::SeqCst) {
                return Err("the server stops".into());
            }
            if asked.elapsed() > ANSWER_MAX {
                return Err("the leader did not answer in time: it is asked again".into());
            }
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err("the connection ended".into()),
                Ok(n) => self.deframer.push(&self.buffer[..n]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Parts asked for at once: one is on its way while the one before is written.
const ASKED: usize = 2;
const _: () = assert!(ASKED <= tercel_engine::limits::BACKUP_ASKED_MAX);

/// Pages stored in one step: a sync takes less than the silence after which the leader ends the session.
const BATCH_PAGES: usize = 512;

const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Time for an answer, however its bytes come. The leader waits for its log and its page store before it
/// answers.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Time between two looks whether the server stops.
const GLANCE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proving::tests::{accept, secret};
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;
    use tercel_events::{Config as EventsConfig, EventQueue};

    /// A leader that says that a copy begins, and then nothing; or it ends the connection.
    fn leader(ends: bool, prover: Prover) -> (Address, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::from(listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut stream = Stream::from(UnixStream::from(OwnedFd::from(stream)));
            assert!(accept(&prover, &mut stream));
            let (mut begun, mut bytes) = (Vec::new(), Vec::new());
            let transfer = TransferBegun {
                stamp: Stamp(9),
                view: ViewId::new(1, 1),
                pages_end: 1,
                state_bytes: 1,
                replay_from: Stamp(5),
                before_view: ViewId::new(1, 1),
                before: 4,
            };
            transfer.encode(&mut begun);
            frame::encode(Header::new(Kind::TransferBegun, 1), &begun, &mut bytes);
            stream.write_all(&bytes).unwrap();
            // It reads until the member ends, or it ends itself when it was asked for a part.
            let mut buffer = [0; 4096];
            while !ends && stream.read(&mut buffer).is_ok_and(|n| n > 0) {}
        });
        (address, thread)
    }

    #[test]
    fn copy_that_breaks_off_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let queue: EventQueue<Post> = EventQueue::open(EventsConfig::default()).unwrap();
        let prover = Prover::operator(secret());
        let mut copying =
            Copying::new(parent.path(), SpaceId(7), (1, MemberId(2)), (prover.clone(), Connector::default()));
        let copy = DataDir::copy_of(parent.path());
        let (address, thread) = leader(true, prover.clone());
        copying.begin(ViewId::new(1, 1), &address.to_string(), &queue.handle()).unwrap();
        copying.join();
        thread.join().unwrap();
        assert!(!copy.exists() && !copying.is_under_way.load(Ordering::SeqCst));
        // A copy that has begun ends with the server, and does not wait for its leader.
        let (address, thread) = leader(false, prover);
        copying.begin(ViewId::new(1, 1), &address.to_string(), &queue.handle()).unwrap();
        while !copy.exists() {
            std::thread::yield_now();
        }
        let stopped = Instant::now();
        drop(copying);
        thread.join().unwrap();
        assert!(!copy.exists() && stopped.elapsed() < Duration::from_secs(10));
    }
}
