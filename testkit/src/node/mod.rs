//! A node: a server's machine with its log, its store and its clock.
//!
//! Nothing here takes time. The host hands in what the machine wants done once its time has come, and hands
//! the word of it to the machine when that has come. Connections, packets and slow calls are the host's. The
//! invariant: what a sync has confirmed, and what was installed, is there after any end.

pub mod clock;
pub mod disk;
pub mod log;

use tercel_engine::order::log_queue::LogQueue;
use tercel_engine::order::{Sealed, Sequencer};
use tercel_engine::server::{
    Checkpoint, Consult, Effect, Effects, Input, Local, LocalConfig, PageUpdate, Recovery, RecoveryError,
    Server, ServerConfig,
};
use tercel_engine::time::Now;
use tercel_wire::id::{LogPosition, PageId, SpaceId, Stamp, ViewId, Written};

use crate::SPACE;
use clock::Clock;
use disk::{Disk, Pages};
use log::{Log, Opened};

/// A node, with what its host keeps for its process.
pub struct Node<H = ()> {
    /// The disk, which outlives a process.
    pub disk: Disk,
    /// Its clock.
    pub clock: Clock,
    /// Counts the processes that it was.
    pub life: u32,
    /// Its process, while there is one.
    pub running: Option<Running<H>>,
    /// Bytes of a segment of its log.
    pub segment_bytes: u32,
    space: SpaceId,
    /// Set until the first process of the node begins.
    is_new: bool,
}

/// The parts of a running process.
pub struct Running<H = ()> {
    /// The machine.
    pub machine: Server,
    /// Its log.
    pub log: Log,
    /// The way of entries to the log.
    pub queue: LogQueue,
    /// Everything up to here is on the disk.
    pub synced: Stamp,
    /// The word of a batch, or of a cut, is still to come.
    pub is_syncing: bool,
    /// Pages are being stored.
    pub is_installing: bool,
    /// A pin that waits for the install before it.
    pub pin_next: Option<(ViewId, u64)>,
    /// A replica is to be recovered up to there.
    pub recovers: Option<LogPosition>,
    consults: Vec<(ViewId, Consult)>,
    /// The transactions of methods.
    local: Local,
    /// The state that the host keeps.
    pub host: H,
    /// The log is no longer needed below this, and whether it is to be cut there.
    needed: Stamp,
    truncates: bool,
    /// Pages of one moment, under the number of their pin.
    pinned: Option<(u64, Pages)>,
}

impl<H> Node<H> {
    /// A node of a space in which nothing has happened yet.
    pub fn new(clock: Clock, salt: u64, segment_bytes: u32) -> Node<H> {
        Node::of_space(SPACE, clock, salt, segment_bytes)
    }

    /// The same of another space than [`SPACE`].
    pub fn of_space(space: SpaceId, clock: Clock, salt: u64, segment_bytes: u32) -> Node<H> {
        let mut disk = Disk::default();
        Log::create(&mut disk, space, salt, segment_bytes);
        Node { disk, clock, life: 0, running: None, segment_bytes, space, is_new: true }
    }

    /// Says whether its process runs.
    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    /// The machine, while it runs.
    pub fn machine(&self) -> Option<&Server> {
        self.running.as_ref().map(|running| &running.machine)
    }

    /// The machine, while it runs.
    pub fn machine_mut(&mut self) -> Option<&mut Server> {
        self.running.as_mut().map(|running| &mut running.machine)
    }

    /// Questions to other spaces that were not taken yet.
    pub fn take_consults(&mut self) -> Vec<(ViewId, Consult)> {
        self.running.as_mut().map(|running| std::mem::take(&mut running.consults)).unwrap_or_default()
    }

    /// Begins a recovery from a checkpoint.
    ///
    /// # Errors
    /// If the checkpoint cannot be read.
    pub fn recovery(
        &self,
        config: ServerConfig,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Recovery, RecoveryError> {
        Recovery::new(config, self.space, checkpoint, if self.is_new { 0 } else { PageId::MAX.get() })
    }

    /// Opens the log, and reads it from an entry on.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn open(&mut self, from: Stamp) -> Result<Opened, String> {
        Log::open(&mut self.disk, self.space, from, self.segment_bytes)
    }

    /// A machine begins, whose log has everything that its predecessors wrote.
    fn begin(&mut self, machine: Server, log: Log, host: H) {
        self.is_new = false;
        self.running = Some(Running {
            machine,
            synced: log.last().stamp,
            queue: LogQueue::new(log.last().position),
            log,
            is_syncing: false,
            is_installing: false,
            pin_next: None,
            recovers: None,
            consults: Vec::new(),
            local: Local::new(LocalConfig::default()),
            host,
            needed: Stamp::ZERO,
            truncates: false,
            pinned: None,
        });
    }

    /// A process begins that leads alone. The first entries of its view are to be synced before it serves
    /// anyone.
    ///
    /// # Errors
    /// If the machine does not begin, or wants anything else before.
    pub fn begin_alone(
        &mut self,
        recovery: Recovery,
        log: Log,
        (now, incarnation): (Now, u32),
        host: H,
    ) -> Result<(), String> {
        let (mut out, end) = (Effects::default(), log.last().position);
        let machine = recovery.finish(now, incarnation, end, &mut out).map_err(|e| e.to_string())?;
        self.begin(machine, log, host);
        for effect in out.list {
            if !matches!(effect, Effect::Append(..)) {
                return Err(format!("{effect:?} before the first sync"));
            }
            self.carry_out(effect);
        }
        Ok(())
    }

    /// A machine begins with a sequencer that knows of other nodes. Gives what it wants done.
    ///
    /// # Errors
    /// If the machine does not begin.
    pub fn begin_with(
        &mut self,
        recovery: Recovery,
        log: Log,
        (now, joined): (Now, ViewId),
        sequencer: Box<dyn Sequencer>,
        host: H,
    ) -> Result<Effects, String> {
        let mut out = Effects::default();
        let end = Written { cuts: 0, position: log.last().position };
        let machine = recovery.finish_with(now, sequencer, joined, end, &mut out);
        self.begin(machine.map_err(|e| e.to_string())?, log, host);
        Ok(out)
    }

    /// Tells the machine what happened at a time of the world, and has it run the methods that are due. Gives
    /// what it wants done.
    pub fn take(&mut self, time_us: u64, input: Input<'_>) -> Effects {
        let (mut out, now) = (Effects::default(), self.clock.now(time_us));
        if let Some(running) = &mut self.running {
            running.machine.handle(now, input, &mut out);
            if running.machine.has_calls() {
                running.machine.run_calls(now, &mut running.local, &mut out);
            }
        }
        out
    }

    /// Carries out what log and store are to do. Gives the word of it, if the machine waits for one.
    ///
    /// # Panics
    /// If that is not for log or store, or a state is to be stored that is not all on the disk.
    pub fn carry_out(&mut self, effect: Effect) -> Option<Input<'static>> {
        let running = self.running.as_mut()?;
        match effect {
            Effect::Append(position, entry) => {
                running.queue.append(position, entry).expect("entries come in their order");
            }
            Effect::Cut(above) => {
                running.queue.cut(above);
                let above = running.queue.take_cut()?;
                let end = self.cut_above(above).expect("a log that can be read");
                let vouched = self.running.as_mut()?.queue.was_cut(end)?;
                return Some(Input::Written(vouched.cuts, vouched.position));
            }
            Effect::Read(view, page) => {
                let found = self.disk.pages.get(&page).map(|bytes| bytes.to_vec());
                return Some(Input::Read(view, page, Ok(found)));
            }
            Effect::Install { view, pages, upto, checkpoint } => {
                self.install(pages, upto, checkpoint);
                return Some(Input::Installed(view));
            }
            Effect::Pin(view, pin) => {
                running.pinned = Some((pin, self.disk.pages.clone()));
                return Some(Input::Pinned(view, pin, Ok(())));
            }
            Effect::ReadPinned { view, pin, from, count } => {
                let (_, pages) = running.pinned.as_ref().filter(|(p, _)| *p == pin)?;
                let end = from.get() + count;
                let found = pages.range(from..).take_while(|(page, _)| page.get() < end);
                let found = found.map(|(page, bytes)| (*page, bytes.to_vec())).collect();
                return Some(Input::PinnedRead(view, pin, Ok(found)));
            }
            Effect::Unpin(pin) => {
                running.pin_next = running.pin_next.filter(|(_, p)| *p > pin);
                running.pinned = running.pinned.take().filter(|(p, _)| *p > pin);
            }
            Effect::Truncate(stamp) => {
                (running.needed, running.truncates) = (stamp, true);
                self.truncate();
            }
            // All clients are of the server's own user.
            Effect::Vouch(conn) => return Some(Input::Vouched(conn, true)),
            Effect::Recover(upto) => running.recovers = Some(upto),
            Effect::Consult(view, consult) => running.consults.push((view, consult)),
            Effect::KeepFrom(position) => running.log.keep = position,
            Effect::Sure => self.disk.is_unsure = false,
            Effect::Audit(_) => {}
            other => panic!("a node alone does not do {other:?}"),
        }
        None
    }

    /// Cuts the log above a position; the rest is durable. Gives the position at which it ends.
    ///
    /// # Errors
    /// If the log cannot be read, or there is no process.
    pub fn cut_above(&mut self, above: LogPosition) -> Result<LogPosition, String> {
        let running = self.running.as_mut().ok_or("no process has the log")?;
        running.log.cut_above(&mut self.disk, above)?;
        let last = running.log.last();
        running.synced = last.stamp;
        Ok(last.position)
    }

    /// Stores pages and perhaps a checkpoint.
    fn install(&mut self, pages: Vec<PageUpdate>, upto: Stamp, checkpoint: Option<Checkpoint>) {
        let synced = self.running.as_ref().map_or(Stamp::ZERO, |running| running.synced);
        let is_durable = checkpoint.as_ref().is_none_or(|c| c.applied <= synced);
        assert!(is_durable, "a state is stored only when all of it is durable");
        self.disk.install(pages, upto, checkpoint);
    }

    /// Lets go of what is no longer needed of the log, once that is idle.
    pub fn truncate(&mut self) {
        if let Some(running) = self.running.as_mut().filter(|running| !running.is_syncing)
            && std::mem::take(&mut running.truncates)
        {
            running.log.truncate_below(&mut self.disk, running.needed);
        }
    }

    /// Writes what was ordered, and syncs it. Gives the word of it, if there was anything.
    ///
    /// # Panics
    /// If the disk has no room.
    pub fn sync(&mut self) -> Option<Input<'static>> {
        let (entries, written) = self.running.as_mut()?.queue.take_batch()?;
        self.write(&entries);
        self.running.as_mut()?.queue.was_written(written);
        self.truncate();
        Some(Input::Written(written.cuts, written.position))
    }

    /// Writes and syncs entries that follow the log's last.
    ///
    /// # Panics
    /// If the disk has no room.
    pub fn write(&mut self, entries: &[Sealed]) {
        let Some(running) = &mut self.running else { return };
        let (records, last) = running.log.encode(entries);
        running.log.append(&mut self.disk, &records).expect("a disk with room");
        running.log.sync(&mut self.disk);
        running.synced = last.stamp;
    }
}

impl<H> Running<H> {
    /// Encodes what was ordered, unless the log is busy. Gives with it where the log will end, and the stamp
    /// there.
    pub fn take_records(&mut self) -> Option<(Vec<u8>, Written, Stamp)> {
        let (entries, end) = if self.is_syncing { None } else { self.queue.take_batch() }?;
        let (records, last) = self.log.encode(&entries);
        Some((records, end, last.stamp))
    }

    /// Bytes of the log that this node needs.
    pub fn log_bytes(&self) -> u64 {
        self.log.bytes(self.needed)
    }
}
