//! The file of votes of a node, and the thread that saves promises there.

use tercel_engine::order::quorum::members::Members;
use tercel_engine::order::quorum::remembered::{Forgotten, Remembered, SLOT_BYTES};
use tercel_engine::random::Random;
use tercel_wire::id::{MemberId, ViewId};

/// The file, and the promises that are to be saved there.
pub(super) struct Votes {
    file: Vec<u8>,
    remembered: Remembered,
    /// The promise that is being saved, and the last one after it.
    saving: Option<(u64, ViewId)>,
    next: Option<(u64, ViewId)>,
}

impl Votes {
    /// The file of a member that has promised this.
    pub(super) fn new(me: MemberId, members: Members, promised: ViewId) -> Votes {
        let remembered = Remembered { sequence: 0, group: 1, me, start: 0, promised, members };
        let mut votes = Votes { file: vec![0; 2 * SLOT_BYTES], remembered, saving: None, next: None };
        votes.write(promised, SLOT_BYTES);
        votes.write(promised, SLOT_BYTES);
        votes
    }

    /// A process begins, whose log ends in a view: it counts its start.
    pub(super) fn open(&mut self, log: ViewId) -> Result<&Remembered, Forgotten> {
        self.remembered = Remembered::read(&self.file, log)?;
        self.remembered.start += 1;
        self.write(self.remembered.promised, SLOT_BYTES);
        self.write(self.remembered.promised, SLOT_BYTES);
        Ok(&self.remembered)
    }

    /// A promise is to be saved.
    pub(super) fn save(&mut self, number: u64, view: ViewId) {
        self.next = Some((number, view));
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
        let (number, view) = self.saving.take()?;
        self.write(view, SLOT_BYTES);
        Some(number)
    }

    /// The process ends, with some of the slot that it was writing.
    pub(super) fn end(&mut self, random: &mut Random) {
        self.next = None;
        if let Some((_, view)) = self.saving.take() {
            self.write(view, random.below(SLOT_BYTES as u64 + 1) as usize);
        }
    }

    fn write(&mut self, promised: ViewId, mut bytes: usize) {
        self.remembered.sequence += 1;
        self.remembered.promised = promised;
        for (at, copy) in self.remembered.copies() {
            let some = bytes.min(copy.len());
            self.file[at as usize..at as usize + some].copy_from_slice(&copy[..some]);
            bytes -= some;
        }
    }
}
