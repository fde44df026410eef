//! The file of votes of a node, and the thread that saves promises there.

use tercel_engine::order::quorum::members::{Electorate, Members};
use tercel_engine::order::quorum::remembered::{Forgotten, Remembered, SLOT_BYTES, Started};
use tercel_engine::random::Random;
use tercel_wire::id::{MemberId, ViewId};

/// The file, and the promises that are to be saved there.
pub(super) struct Votes {
    file: Vec<u8>,
    remembered: Remembered,
    /// The promise that is being saved, and the last one after it.
    saving: Option<(u64, Promised)>,
    next: Option<(u64, Promised)>,
}

/// A promise, and the electorate that is remembered with it.
type Promised = (ViewId, Option<Electorate>);

impl Votes {
    /// The file of a member that has promised this.
    pub(super) fn new(me: MemberId, members: Members, promised: ViewId) -> Votes {
        let remembered = Remembered::new(1, (me, promised), members);
        Votes { file: remembered.file(), remembered, saving: None, next: None }
    }

    /// A process begins, whose log ends in a view and which has drawn this number: it counts its start.
    pub(super) fn open(&mut self, log: ViewId, process: u64) -> Result<&Remembered, Forgotten> {
        self.remembered = Remembered::read(&self.file, log)?;
        self.remembered.begin(process);
        self.write(SLOT_BYTES);
        self.write(SLOT_BYTES);
        Ok(&self.remembered)
    }

    /// The starts of its processes so far.
    pub(super) fn start(&self) -> u64 {
        self.remembered.start
    }

    /// The own starts that others may know.
    pub(super) fn earlier(&self) -> Vec<(u64, u64)> {
        self.remembered.earlier()
    }

    /// Another member has taken the start of this process.
    pub(super) fn taken(&mut self) {
        if self.remembered.taken() {
            self.write(SLOT_BYTES);
        }
    }

    /// The starts of others that are remembered.
    pub(super) fn starts(&self) -> &[(MemberId, Started)] {
        &self.remembered.starts
    }

    /// The start of another member is remembered.
    pub(super) fn started(&mut self, member: MemberId, started: Started) {
        self.remembered.started(member, started);
        self.write(SLOT_BYTES);
    }

    /// A promise is to be saved.
    pub(super) fn save(&mut self, number: u64, promised: Promised) {
        self.next = Some((number, promised));
    }

    /// Begins to save the next promise, if there is one and none is being saved.
    pub(super) fn begins(&mut self) -> bool {
        let begins = self.saving.is_none();
        if begins {
            self.saving = self.next.take();
        }
        begins && self.saving.is_some()
    }

    /// The promise is saved. Gives its number.
    pub(super) fn saved(&mut self) -> Option<u64> {
        let (number, promised) = self.saving.take()?;
        self.remember(promised);
        self.write(SLOT_BYTES);
        Some(number)
    }

    /// The process ends, with some of the slot that it was writing.
    pub(super) fn end(&mut self, random: &mut Random) {
        self.next = None;
        if let Some((_, promised)) = self.saving.take() {
            self.remember(promised);
            self.write(random.below(SLOT_BYTES as u64 + 1) as usize);
        }
    }

    fn remember(&mut self, (promised, electorate): Promised) {
        (self.remembered.promised, self.remembered.electorate) = (promised, electorate);
    }

    fn write(&mut self, mut bytes: usize) {
        self.remembered.sequence += 1;
        for (at, copy) in self.remembered.copies() {
            let some = bytes.min(copy.len());
            self.file[at as usize..at as usize + some].copy_from_slice(&copy[..some]);
            bytes -= some;
        }
    }
}
