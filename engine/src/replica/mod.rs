//! Ordered state: what follows from the entries alone, the same at every replica at equal stamps.
//!
//! Not here: connections, caches, decisions. A leader judges and places; the entries that it orders are
//! applied here by the same function at the leader, at a follower and in recovery. The invariant:
//! [`Replica::apply`] is the only door, and its effect depends on nothing but the state and the entry.
//!
//! | module | its noun |
//! |---|---|
//! | [`entry`] | what is ordered, and its bytes |
//! | [`recent`] | the index of recent writes and its floor |
//! | [`answers`] | what became of each client's last operations |
//! | [`catalogue`] | classes |
//! | [`places`] | pages given out to make objects in |
//! | [`counts`] | by page, how much is in it; in rows, of which a checkpoint stores those that changed |
//! | [`cut`] | the latest states of several spaces that fit each other |
//! | [`saved`] | the state as bytes |
//! | [`prepares`] | parts of transactions over several spaces that are prepared, and what they hold |
//! | [`decisions`] | transactions over several spaces that were decided here |
//! | [`dependencies`] | states of other spaces on which this one rests |
//! | [`access`] | which principal may do what |
//! | [`released`] | trees of chunks that no object owns any more |
//! | [`condemned`] | what a collection is about to free, as its pieces arrive |
//! | [`frees`] | the index of what collections freed |
//! | [`views`] | which views there were, and what each kept |
//! | [`pieces`] | a large commit as its pieces arrive |
//! | [`version`] | the stamp of a version, or the one it will get |
//! | [`digest`] | a sum over the state, to compare replicas by |

pub mod access;
pub mod answers;
pub mod catalogue;
pub mod condemned;
pub mod counts;
pub mod cut;
pub mod decisions;
pub mod dependencies;
pub mod digest;
pub mod entry;
pub mod frees;
pub mod pieces;
pub mod places;
pub mod prepares;
pub mod recent;
pub mod released;
pub mod saved;
pub mod version;
pub mod views;

use tercel_wire::class;
use tercel_wire::cursor::{DecodeError, le32};
use tercel_wire::id::{ClientId, OpId, Oref, PageId, Stamp, ViewId};
use tercel_wire::message::{CommitEffects, Refusal, Write};
use tercel_wire::page::class_of;
use tercel_wire::record::HEADER_BYTES;

use access::Access;
use answers::Answers;
use catalogue::Catalogue;
use condemned::Condemned;
use decisions::Decisions;
use dependencies::Dependencies;
use digest::Digest;
use entry::{Entry, Freed, Head, Logged, Piece};
use frees::{Frees, Known};
use pieces::Pieces;
use places::Places;
use prepares::Prepares;
use recent::RecentWrites;
use released::{Released, is_chunk};
use version::{PendingStamp, VersionStamp};
use views::Views;

use crate::mutant::{Rule, dropped};
use crate::order::quorum::members::Members;
use crate::slots::Slots;

/// Where the versions go that entries write: the buffer of modified objects.
pub trait Objects {
    /// Takes in one write, and where it goes if that is another place. The births are those of the pages in
    /// which something is made, else zero.
    fn write(
        &mut self,
        oref: Oref,
        to: Option<(Oref, Stamp)>,
        written: &VersionStamp,
        birth: Stamp,
        object: &[u8],
    );
    /// The versions that share the pending stamp get this stamp.
    fn ordered(&mut self, pending: &PendingStamp, stamp: Stamp);
    /// Nothing is in that place any more.
    fn free(&mut self, oref: Oref, stamp: Stamp);
    /// Nothing will be in these slots any more once the pending stamp has a value.
    fn clear(&mut self, page: PageId, slots: &Slots, pending: &PendingStamp);
    /// Takes that back.
    fn restore(&mut self, page: PageId, pending: &PendingStamp);
    /// Takes back what a transaction that will have no stamp wrote there.
    fn retract(&mut self, oref: Oref, pending: &PendingStamp);
}

/// The effects of an entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The references that changed, as readers know them.
    pub changed: Vec<Oref>,
    /// The operation, if it is a client's.
    pub op: Option<OpId>,
    /// If it committed pieces, the stamp of the first of them.
    pub pieces_from: Option<Stamp>,
}

/// The ordered state of a space after an entry.
#[derive(Debug, Clone)]
pub struct Replica {
    /// The last entry that was applied.
    pub stamp: Stamp,
    /// Which views there were.
    pub views: Views,
    /// The members of the group; none in a space of one server.
    pub members: Option<Members>,
    /// The index of recent writes.
    pub recent: RecentWrites,
    /// The last answers of each client.
    pub answers: Answers,
    /// Classes.
    pub catalogue: Catalogue,
    /// Pages given out to make objects in.
    pub places: Places,
    /// Trees of chunks that no object owns any more.
    pub released: Released,
    /// The slots that collections freed.
    pub frees: Frees,
    /// States of other spaces that it rests on.
    pub dependencies: Dependencies,
    /// Parts of transactions over several spaces that are prepared here.
    pub prepares: Prepares,
    /// Transactions over several spaces that were decided here, until all their parts are settled.
    pub decisions: Decisions,
    /// Which principal may do what.
    pub access: Access,
    pieces: Option<Pieces>,
    condemned: Option<Condemned>,
    digest: Digest,
}

impl Default for Replica {
    fn default() -> Replica {
        Replica::new()
    }
}

impl Replica {
    /// A space before its first entry.
    pub fn new() -> Replica {
        Replica {
            stamp: Stamp::ZERO,
            views: Views::default(),
            members: None,
            recent: RecentWrites::default(),
            answers: Answers::default(),
            catalogue: Catalogue::new(),
            places: Places::new(),
            released: Released::default(),
            frees: Frees::default(),
            dependencies: Dependencies::default(),
            prepares: Prepares::default(),
            decisions: Decisions::default(),
            access: Access::default(),
            pieces: None,
            condemned: None,
            digest: Digest::default(),
        }
    }

    /// Applies the next entry, ordered in `view`; what it writes goes to `objects`. An entry that the state
    /// already contains, as one read from a log may be, only writes.
    ///
    /// # Errors
    /// If the entry ends pieces that are not all there. Nothing has changed then.
    pub fn apply(
        &mut self,
        stamp: Stamp,
        view: ViewId,
        entry: &Entry<'_>,
        objects: &mut impl Objects,
    ) -> Result<Applied, DecodeError> {
        let is_new = stamp > self.stamp;
        let applied = match entry {
            Entry::Stage { op, at, bytes } => {
                self.piece(stamp, *op, *at as usize, bytes, objects)?;
                Applied::default()
            }
            Entry::CommitStaged { op, bytes } => {
                self.commit_pieces(stamp, *op, *bytes as usize, is_new, objects)?
            }
            Entry::Commit(c) => {
                let changed = write_all(stamp, c, objects);
                if is_new {
                    self.commit(stamp, c);
                }
                Applied { changed, op: Some(c.head.op), pieces_from: None }
            }
            Entry::Prepare(prepare) => {
                if is_new {
                    self.answers.committed(&prepare.logged.head, stamp);
                    self.places.judged(stamp, &prepare.logged.head.named, &[]);
                    self.prepares.begin(stamp, prepare);
                }
                Applied { op: Some(prepare.logged.head.op), ..Applied::default() }
            }
            Entry::Decide(decide) => {
                let changed = write_all(stamp, &decide.logged, objects);
                if is_new {
                    self.commit(stamp, &decide.logged);
                    self.decisions.add(stamp, view, decide);
                    self.dependencies.join(stamp, &decide.seen);
                }
                Applied { changed, op: Some(decide.logged.head.op), pieces_from: None }
            }
            Entry::Settle(settle) => {
                let changed = settle.logged.as_ref().map_or(Vec::new(), |c| write_all(stamp, c, objects));
                if is_new {
                    settle.logged.iter().for_each(|c| self.written(stamp, c));
                    self.prepares.end(settle.prepared, stamp);
                    self.dependencies.join(stamp, &settle.seen);
                }
                Applied { changed, ..Applied::default() }
            }
            Entry::Free(f) => {
                f.chunks.iter().for_each(|oref| objects.free(*oref, stamp));
                if is_new {
                    self.free(stamp, f);
                }
                Applied { changed: f.chunks.clone(), ..Applied::default() }
            }
            Entry::Condemn(piece) => {
                self.condemn(stamp, piece, objects);
                Applied::default()
            }
            Entry::Collect { pages } => self.collect(stamp, *pages, is_new, objects)?,
            Entry::Genesis => {
                let written = VersionStamp::At(stamp);
                objects.write(class::ROOT_HEAD, None, &written, Stamp::ZERO, &entry::root_head());
                if is_new {
                    let _ = self.places.fill(class::ROOT_HEAD.page());
                    self.recent.insert(class::ROOT_HEAD, stamp);
                    self.digest.chain(class::ROOT_HEAD, stamp);
                }
                Applied { changed: vec![class::ROOT_HEAD], ..Applied::default() }
            }
            Entry::View { kept, lost } => {
                // A new view knows nothing of what its predecessor was about to commit.
                self.forget_pieces(objects);
                self.forget_condemned(objects);
                if is_new {
                    self.views.begin(view, *kept, *lost);
                }
                Applied::default()
            }
            Entry::Define(..)
            | Entry::Evict(_)
            | Entry::Grant(_)
            | Entry::End(_)
            | Entry::Leave(_)
            | Entry::Members(_)
            | Entry::Depend(_)
            | Entry::Forget(_)
            | Entry::Access(..)
            | Entry::Own(..)
            | Entry::GiveBack(..) => {
                if is_new {
                    self.apply_small(stamp, entry);
                }
                Applied::default()
            }
        };
        if is_new {
            self.stamp = stamp;
            self.digest.entry(stamp, view, entry.kind());
        }
        Ok(applied)
    }

    /// Entries that write no object.
    fn apply_small(&mut self, stamp: Stamp, entry: &Entry<'_>) {
        match entry {
            Entry::Define(id, layout) => self.catalogue.define(*id, layout.clone()),
            Entry::Evict(client) => {
                self.answers.evict(*client);
                self.access.forget(*client);
            }
            Entry::Grant(g) => {
                let reborn = self.places.grant(stamp, g);
                self.frees.reborn(stamp, &reborn);
            }
            Entry::End(client) => {
                self.places.end(stamp, *client);
                if !self.answers.knows(*client) {
                    self.access.forget(*client);
                }
            }
            Entry::Leave(client) => {
                self.places.end(stamp, *client);
                self.answers.forget(*client);
                self.access.forget(*client);
            }
            Entry::Access(is_granted, right) => self.access.change(stamp, *is_granted, right),
            Entry::Own(client, who) => self.access.own(*client, who),
            Entry::Members(members) => self.members = Some(members.clone()),
            Entry::Depend(on) => {
                self.dependencies.join(stamp, on);
                on.forgotten().for_each(|space| self.decisions.forget_space(space));
            }
            Entry::Forget(ops) => ops.iter().for_each(|op| self.decisions.forget(*op)),
            Entry::GiveBack(client, pages) => self.places.give_back(stamp, *client, pages),
            Entry::Genesis
            | Entry::View { .. }
            | Entry::Commit(_)
            | Entry::Stage { .. }
            | Entry::CommitStaged { .. }
            | Entry::Free(_)
            | Entry::Condemn(_)
            | Entry::Prepare(_)
            | Entry::Decide(_)
            | Entry::Settle(_)
            | Entry::Collect { .. } => {}
        }
    }

    fn commit(&mut self, stamp: Stamp, c: &Logged<'_>) {
        self.answers.committed(&c.head, stamp);
        self.written(stamp, c);
    }

    /// Applies what a transaction has written.
    fn written(&mut self, stamp: Stamp, c: &Logged<'_>) {
        for of_page in c.effects.writes.chunk_by(|a, b| a.oref.page() == b.oref.page()) {
            self.places.used(of_page[0].oref.page(), of_page.iter().filter(|w| w.new).count());
        }
        for w in &c.effects.writes {
            self.recent.insert(w.oref, stamp);
            self.digest.chain(w.oref, stamp);
        }
        let is_chunk = |w: &&Write<'_>| w.new && is_chunk(class_of(w.object));
        let moved = c.head.placements.iter().filter(|p| p.is_new).filter_map(|p| {
            let chunk = c.effects.writes.get(p.write as usize).filter(is_chunk)?;
            Some((chunk.oref, p.to))
        });
        self.released.put_elsewhere(moved);
        self.settle(stamp, &c.head);
        self.recent.forget_for(c.effects.writes.len());
    }

    /// Applies the effects of a commit beside its writes: objects moved, places that were named and pages
    /// that are full, released trees.
    fn settle(&mut self, stamp: Stamp, head: &Head) {
        let mut reused = Vec::new();
        for page in head.placements.iter().filter(|p| p.is_new).map(|p| p.to.page()) {
            reused.extend(self.places.fill(page).then_some(page));
        }
        self.frees.reborn(stamp, &reused);
        self.places.judged(stamp, &head.named, &head.filled);
        for oref in &head.left {
            self.places.empty(oref.page(), stamp);
            self.digest.chain(*oref, stamp);
        }
        self.released.push(&head.released);
    }

    fn free(&mut self, stamp: Stamp, f: &Freed) {
        for oref in &f.chunks {
            self.places.empty(oref.page(), stamp);
            self.digest.chain(*oref, stamp);
        }
        self.released.freed(f);
    }

    fn piece(
        &mut self,
        stamp: Stamp,
        op: OpId,
        at: usize,
        bytes: &[u8],
        objects: &mut impl Objects,
    ) -> Result<(), DecodeError> {
        if at == 0 {
            self.forget_pieces(objects);
            self.pieces = Some(Pieces::new(op, stamp));
        }
        // A piece that continues nothing is of a transaction whose beginning was let go of: it is in the
        // pages.
        let Some(pieces) = self.pieces.as_mut().filter(|p| p.continues(op, at)) else { return Ok(()) };
        pieces.take(bytes, objects)
    }

    fn commit_pieces(
        &mut self,
        stamp: Stamp,
        op: OpId,
        bytes: usize,
        is_new: bool,
        objects: &mut impl Objects,
    ) -> Result<Applied, DecodeError> {
        let Some(pieces) = self.pieces.take_if(|p| p.is_whole(op, bytes)) else {
            return Err(DecodeError::BadField("pieces"));
        };
        objects.ordered(&pieces.pending, stamp);
        pieces.head.left.iter().for_each(|oref| objects.free(*oref, stamp));
        let mut changed = pieces.changed;
        changed.extend(&pieces.head.left);
        if is_new {
            self.answers.committed(&pieces.head, stamp);
            for of_page in pieces.writes.chunk_by(|(a, _), (b, _)| a.page() == b.page()) {
                self.places.used(of_page[0].0.page(), of_page.iter().filter(|(_, new)| *new).count());
            }
            pieces.writes.iter().for_each(|(oref, _)| self.digest.chain(*oref, stamp));
            self.released.put_elsewhere(pieces.chunks_moved);
            self.settle(stamp, &pieces.head);
            // The index takes in one large commit at a time.
            self.recent.index_pending(usize::MAX);
            self.recent.insert_large(
                stamp,
                pieces.writes.iter().map(|(oref, _)| *oref).collect(),
                pieces.set,
            );
        }
        Ok(Applied { changed, op: Some(op), pieces_from: Some(pieces.first) })
    }

    fn condemn(&mut self, stamp: Stamp, piece: &Piece, objects: &mut impl Objects) {
        if piece.at == 0 {
            self.forget_condemned(objects);
            if piece.pages.is_empty() && piece.unheld.is_empty() {
                // The collection was given up.
                return;
            }
            self.condemned = Some(Condemned::new(stamp));
        }
        if let Some(condemned) = &mut self.condemned {
            condemned.take(piece, objects);
        }
    }

    fn collect(
        &mut self,
        stamp: Stamp,
        pages: u32,
        is_new: bool,
        objects: &mut impl Objects,
    ) -> Result<Applied, DecodeError> {
        let Some(condemned) = self.condemned.take_if(|c| c.is_whole(pages)) else {
            return Err(DecodeError::BadField("pieces"));
        };
        objects.ordered(&condemned.pending, stamp);
        if is_new {
            let all = &condemned.all;
            for (page, slots) in &all.pages {
                self.places.empty_some(*page, slots.count(), stamp);
                // One link of the chain for all of them: there may be a million.
                let first = slots.iter().next().and_then(|slot| Oref::new(*page, slot));
                first.into_iter().for_each(|oref| self.digest.chain(oref, stamp));
            }
            all.unheld.iter().for_each(|page| self.places.unhold(*page, stamp));
            self.released.push(&all.released);
            self.frees.collected(stamp, &all.pages);
            // A transaction that read of a place there in an older state must not write that down: nothing
            // keeps the page.
            self.frees.reborn(stamp, &all.unheld);
            self.places.have_collected(self.places.objects());
        }
        let pieces_from = Some(condemned.first);
        Ok(Applied { changed: condemned.orefs(), op: None, pieces_from })
    }

    fn forget_condemned(&mut self, objects: &mut impl Objects) {
        if let Some(c) = self.condemned.take() {
            c.all.pages.iter().for_each(|(page, _)| objects.restore(*page, &c.pending));
        }
    }

    fn forget_pieces(&mut self, objects: &mut impl Objects) {
        if let Some(pieces) = self.pieces.take() {
            pieces.changed.iter().for_each(|oref| objects.retract(*oref, &pieces.pending));
        }
    }

    /// The stamp of the first piece of a large commit, or a collection, that is arriving.
    pub fn pieces_from(&self) -> Option<Stamp> {
        let pieces = self.pieces.as_ref().map(|p| p.first);
        pieces.into_iter().chain(self.condemned.as_ref().map(|c| c.first)).min()
    }

    /// Says whether a transaction may commit after everything applied so far: a function of the ordered
    /// prefix alone.
    ///
    /// # Errors
    /// The outcome for the client: a conflict, or a base older than the index reaches.
    pub fn certify(&self, effects: &CommitEffects<'_>) -> Result<(), Refusal> {
        if dropped(Rule::NoCertification) {
            return Ok(());
        }
        if effects.base > self.stamp {
            return Err(Refusal::Conflict(Oref::NULL));
        }
        self.recent.certify(effects)?;
        if effects.base < self.frees.last() { self.certify_frees(effects) } else { Ok(()) }
    }

    /// Checks that nothing that the transaction read, changes or names was freed after its base.
    fn certify_frees(&self, effects: &CommitEffects<'_>) -> Result<(), Refusal> {
        let mut verdict = Ok(());
        let mut look = |oref: Oref| match self.frees.of(oref, effects.base) {
            Known::There => {}
            Known::Freed => verdict = Err(Refusal::Conflict(oref)),
            Known::Unknown => verdict = verdict.and(Err(Refusal::TooOld)),
        };
        effects.reads.iter().copied().for_each(&mut look);
        for w in &effects.writes {
            if !w.new {
                look(w.oref);
            }
            // What is wrong with an object is found when it is checked.
            let class = self
                .catalogue
                .class(class_of(w.object))
                .filter(|c| c.check(&w.object[HEADER_BYTES..]).is_ok());
            let body = &w.object[HEADER_BYTES..];
            if let Some(class) = class {
                class.refs(body, |at| Oref::from_raw(le32(body, at)).into_iter().for_each(&mut look));
            }
        }
        verdict
    }

    /// The view of the newest [`Entry::View`].
    pub fn view(&self) -> ViewId {
        self.views.last()
    }

    /// A sum over everything applied: equal at equal stamps, at every replica.
    pub fn digest(&self) -> u64 {
        self.digest.value()
            ^ self.answers.digest()
            ^ self.places.digest()
            ^ self.catalogue.digest()
            ^ self.views.digest()
            ^ self.dependencies.digest()
            ^ self.prepares.digest()
            ^ self.decisions.digest()
            ^ self.access.digest()
    }

    /// Forgets state that must survive a restart, if a rule is dropped.
    pub(crate) fn forget_by_mistake(&mut self) {
        if dropped(Rule::RestartEmptyIndex) {
            self.recent = RecentWrites::default();
        }
        if dropped(Rule::HoldsForgotten) {
            self.prepares = Prepares::default();
        }
        if dropped(Rule::VolatileOperationTable) {
            self.answers.clear();
        }
    }

    /// Goes on after entries that are lost: nothing that they named is given out again, and a client that has
    /// seen any of them receives the answer that its base is too old. `stamp` must be above all of them.
    pub fn skip_lost(&mut self, stamp: Stamp, view: ViewId, next_page: u32) {
        self.stamp = self.stamp.max(stamp);
        self.views.skip_to(view, self.stamp);
        self.places.skip_to(next_page);
        self.recent = RecentWrites::with_floor(self.stamp);
        self.released = Released::default();
        self.frees = Frees::restored(self.stamp);
        (self.pieces, self.condemned) = (None, None);
    }

    /// Goes on behind a view of this number, because those of the views that there were are used up.
    pub fn renumber(&mut self, view: ViewId) {
        self.views.renumber(view, self.stamp);
    }

    /// Says whether the client's operations may have been known and forgotten.
    pub fn may_be_evicted(&self, client: ClientId, connection: u64) -> bool {
        self.answers.may_be_evicted(client, connection)
    }
}

fn write_all(stamp: Stamp, c: &Logged<'_>, objects: &mut impl Objects) -> Vec<Oref> {
    let mut changed = Vec::with_capacity(c.effects.writes.len());
    let mut placements = c.head.placements.iter().peekable();
    for (i, w) in c.effects.writes.iter().enumerate() {
        let to = placements.next_if(|p| p.write as usize == i).map(|p| (p.to, c.head.birth(p.to, p.is_new)));
        objects.write(w.oref, to, &VersionStamp::At(stamp), c.head.birth(w.oref, w.new), w.object);
        changed.push(w.oref);
        changed.extend(to.map(|(to, _)| to));
    }
    for oref in &c.head.left {
        objects.free(*oref, stamp);
        changed.push(*oref);
    }
    changed
}
