//! Ordered state as bytes, to be saved with the pages.
//!
//! Two parts: a head, encoded anew each time, and the counts by page, which are kept as they are stored. The
//! head says how many rows of counts belong to it and what they come to, so a head with the rows of another
//! is refused.

use std::sync::Arc;

use tercel_wire::cursor::{DecodeError, Put, Reader, le32};
use tercel_wire::id::{ClassId, ClientId, OP_SLOTS_MAX, Oref, Stamp, ViewId};
use tercel_wire::layout::Layout;
use tercel_wire::message::Leased;

use super::Replica;
use super::access::Access;
use super::answers::{Answer, Answers, Client, Evicted};
use super::counts::{CountRow, Counts, ROW_BYTES, ROWS_MAX};
use super::decisions::Decisions;
use super::dependencies::Dependencies;
use super::digest::Digest;
use super::entry;
use super::frees::Frees;
use super::places::{Granted, Places};
use super::prepares::Prepares;
use super::recent::RecentWrites;
use super::released::Released;
use super::views::Views;
use crate::order::quorum::members::Members;
use crate::table::Map;

/// Ordered state as bytes. Pieces of a large commit are not among them: they are read from the log again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Everything but the counts by page.
    pub head: Vec<u8>,
    /// Rows of counts, by number: all of them, or in a checkpoint those that a store does not have yet.
    pub rows: Vec<CountRow>,
}

impl Saved {
    /// Head and rows, one after the other.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.piece(0, usize::MAX)
    }

    /// The number of bytes of head and rows.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.rows.len() * ROW_BYTES
    }

    /// At most so many of the bytes of [`Saved::to_bytes`], from one on.
    pub fn piece(&self, from: usize, bytes_max: usize) -> Vec<u8> {
        let bytes = self.bytes().saturating_sub(from).min(bytes_max);
        let mut out = Vec::with_capacity(bytes);
        let (at_rows, head) = match from.checked_sub(self.head.len()) {
            Some(at_rows) => (at_rows, [].as_slice()),
            None => (0, &self.head[from..]),
        };
        out.extend_from_slice(&head[..head.len().min(bytes)]);
        let mut skip = at_rows % ROW_BYTES;
        for (_, row) in self.rows.iter().skip(at_rows / ROW_BYTES) {
            let rest = &row[skip..];
            out.extend_from_slice(&rest[..rest.len().min(bytes - out.len())]);
            skip = 0;
            if out.len() == bytes {
                break;
            }
        }
        out
    }

    /// Tells head and rows apart.
    ///
    /// # Errors
    /// If the head is of another version, or names more rows than there are.
    pub fn parse(bytes: &[u8]) -> Result<Saved, DecodeError> {
        let of_rows = Saved::rows_of(bytes)? as usize * ROW_BYTES;
        let (head, rows) = match bytes.len().checked_sub(of_rows) {
            Some(at) => bytes.split_at(at),
            None => return Err(DecodeError::TooMany("rows of counts")),
        };
        let rows = (0..).zip(rows.chunks(ROW_BYTES)).map(|(number, row)| (number, Arc::new(row.to_vec())));
        Ok(Saved { head: head.to_vec(), rows: rows.collect() })
    }

    /// The number of rows that belong to a head.
    ///
    /// # Errors
    /// If the head is of another version, or damaged.
    pub fn rows_of(head: &[u8]) -> Result<u32, DecodeError> {
        if Reader::new(head).u16()? != STATE_VERSION {
            return Err(DecodeError::BadField("version"));
        }
        let rows =
            head.get(ROWS_AT..ROWS_AT + 4).map(|bytes| le32(bytes, 0)).ok_or(DecodeError::Truncated)?;
        if rows as usize <= ROWS_MAX { Ok(rows) } else { Err(DecodeError::TooMany("rows of counts")) }
    }
}

impl Replica {
    /// The state as bytes, with all counts: rows are shared, not copied.
    pub fn save(&self) -> Saved {
        Saved { head: self.head(), rows: self.places.counts().all() }
    }

    /// The state as bytes, with the counts that are not known to be stored.
    pub fn save_changed(&mut self) -> Saved {
        Saved { head: self.head(), rows: self.places.counts_mut().take() }
    }

    /// Handles the news that the last state from [`Replica::save_changed`] is stored.
    pub fn saved(&mut self) {
        self.places.counts_mut().stored();
    }

    /// The saved state as one run of bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.save().to_bytes()
    }

    fn head(&self) -> Vec<u8> {
        let (floor, writes) = self.recent.rows();
        let mut out = Vec::with_capacity(256 + writes.len() * 12 + self.places.granted_count() * 29);
        out.put_u16(STATE_VERSION);
        out.put_u64(self.stamp.0);
        out.put_u64(self.digest.value());
        let counts = self.places.counts();
        out.put_u32(counts.rows_count());
        out.put_u32(counts.in_use());
        out.put_u64(counts.objects());
        self.put_views(&mut out);
        let mut members = Vec::new();
        self.members.iter().for_each(|list| list.encode(&mut members));
        out.put_bytes(&members);
        out.put_u64(floor.0);
        out.put_u32(writes.len() as u32);
        for (oref, stamp) in writes {
            out.put_u32(oref.raw());
            out.put_u64(stamp.0);
        }
        self.put_answers(&mut out);
        self.put_places(&mut out);
        let users: Vec<_> = self.catalogue.users().collect();
        out.put_u32(users.len() as u32);
        for (id, layout) in users {
            out.put_u16(id.0);
            let mut bytes = Vec::new();
            layout.encode(&mut bytes);
            out.put_bytes(&bytes);
        }
        let moved = self.released.all_moved();
        out.put_u32(moved.len() as u32);
        moved.flat_map(|(from, to)| [from, to]).for_each(|oref| out.put_u32(oref.raw()));
        self.dependencies.put(&mut out);
        self.prepares.put(&mut out);
        self.decisions.put(&mut out);
        self.access.put(&mut out);
        out
    }

    fn put_views(&self, out: &mut Vec<u8>) {
        let views = self.views.iter();
        out.put_u32(views.len() as u32);
        for (view, kept) in views {
            view.encode(out);
            out.put_u64(kept.0);
        }
        out.put_u32(self.views.unsure());
    }

    fn put_answers(&self, out: &mut Vec<u8>) {
        let clients = self.answers.rows();
        out.put_u32(clients.len() as u32);
        for (id, client) in clients {
            out.put_u64(id.0);
            out.put_u64(client.used.0);
            let mut slots: Vec<_> = client.slots.iter().collect();
            slots.sort_unstable_by_key(|(slot, _)| **slot);
            out.put_u32(slots.len() as u32);
            for (slot, answer) in slots {
                out.put_u16(*slot);
                out.put_u64(answer.seq);
                out.put_u64(answer.stamp.0);
                out.put_u32(answer.digest);
                out.put_bytes(&answer.reply);
            }
        }
        let evicted = self.answers.evicted();
        out.put_u8(evicted.forgot as u8);
        out.put_u32(evicted.order.len() as u32);
        evicted.order.iter().for_each(|c| out.put_u64(c.0));
    }

    fn put_places(&self, out: &mut Vec<u8>) {
        out.put_u32(self.places.next_page());
        out.put_u64(self.places.reused().0);
        let grantees = self.places.grantees();
        out.put_u32(grantees.len() as u32);
        for (client, grantee) in grantees {
            out.put_u64(client.0);
            out.put_u64(grantee.seq);
            out.put_u32(grantee.last.len() as u32);
            grantee.last.iter().for_each(|page| out.put_u32(page.get()));
            entry::put_holes(&grantee.holes, out);
            out.put_u64(grantee.birth.0);
            out.put_u32(grantee.pages.len() as u32);
            for (seq, page) in &grantee.pages {
                let row = self.places.granted(*page);
                let (made, named) = row.map_or((false, false), |row| (row.is_made_in, row.is_named));
                let (birth, from) = row.map_or((Stamp::ZERO, 0), |row| (row.birth, row.from));
                out.put_u64(*seq);
                out.put_u32(page.get());
                out.put_u8(made as u8 | (named as u8) << 1);
                out.put_u64(birth.0);
                out.put_u16(from);
            }
        }
        let returned = self.places.returned();
        out.put_u32(returned.len() as u32);
        for (page, at) in returned {
            out.put_u32(page.get());
            out.put_u64(at.0);
        }
        let held_back = self.places.held_back();
        out.put_u32(held_back.len() as u32);
        held_back.for_each(|page| out.put_u32(page.get()));
        let released = self.released.iter();
        out.put_u32(released.len() as u32);
        released.for_each(|oref| out.put_u32(oref.raw()));
        out.put_u64(self.places.collected());
        out.put_u64(self.frees.last().0);
    }

    /// Reads what [`Replica::encode`] wrote.
    ///
    /// # Errors
    /// If it is of another version, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<Replica, DecodeError> {
        Replica::restored(&Saved::parse(bytes)?)
    }

    /// Reads what was saved. All rows are taken for stored.
    ///
    /// # Errors
    /// If it is of another version or damaged, or if the rows are not those of the head.
    pub fn restored(saved: &Saved) -> Result<Replica, DecodeError> {
        let (mut replica, in_use, objects) = Replica::decode_head(&saved.head)?;
        let counts = Counts::restored(&saved.rows)?;
        let rows = Saved::rows_of(&saved.head)?;
        if (counts.rows_count(), counts.in_use(), counts.objects()) != (rows, in_use, objects) {
            return Err(DecodeError::BadField("counts"));
        }
        if !counts.end_below(replica.places.next_page()) {
            return Err(DecodeError::BadField("page"));
        }
        *replica.places.counts_mut() = counts;
        Ok(replica)
    }

    /// Reads a head of which the rows are lost: in any page there may be more or less than is known.
    ///
    /// # Errors
    /// If it is of another version, or damaged.
    pub fn restored_without_counts(head: &[u8]) -> Result<Replica, DecodeError> {
        let (mut replica, ..) = Replica::decode_head(head)?;
        replica.places.forget_counts();
        Ok(replica)
    }

    /// The state without counts, and what they come to: pages in which there is something, and objects.
    fn decode_head(bytes: &[u8]) -> Result<(Replica, u32, u64), DecodeError> {
        let mut r = Reader::new(bytes);
        if r.u16()? != STATE_VERSION {
            return Err(DecodeError::BadField("version"));
        }
        let mut s = Replica::new();
        s.stamp = Stamp(r.u64()?);
        if s.stamp > Stamp::LAST {
            return Err(DecodeError::BadField("stamp"));
        }
        s.digest = Digest::restored(r.u64()?);
        let (_rows, in_use, objects) = (r.u32()?, r.u32()?, r.u64()?);
        s.views = views(&mut r)?;
        s.members = members(r.bytes("members")?)?;
        let floor = Stamp(r.u64()?);
        let writes = (0..r.count(12, "recent writes")?).map(|_| {
            let oref = Oref::from_raw(r.u32()?).ok_or(DecodeError::BadField("reference"))?;
            Ok((oref, Stamp(r.u64()?)))
        });
        let writes = writes.collect::<Result<Vec<_>, DecodeError>>()?;
        s.recent = RecentWrites::restored(floor, writes.into_iter());
        s.answers = answers(&mut r)?;
        s.places = places(&mut r)?;
        s.released = Released::restored(entry::orefs(&mut r)?);
        s.places.have_collected(r.u64()?);
        s.frees = Frees::restored(Stamp(r.u64()?));
        for _ in 0..r.count(6, "classes")? {
            let id = ClassId(r.u16()?);
            s.catalogue.define(id, Layout::decode(r.bytes("layout")?)?);
        }
        let moved =
            (0..r.count(8, "moved chunks")?).map(|_| Ok((entry::oref(&mut r)?, entry::oref(&mut r)?)));
        s.released.put_elsewhere(moved.collect::<Result<Vec<_>, DecodeError>>()?);
        s.dependencies = Dependencies::take(&mut r)?;
        s.prepares = Prepares::take(&mut r)?;
        s.decisions = Decisions::take(&mut r)?;
        s.access = Access::take(&mut r)?;
        r.end()?;
        Ok((s, in_use, objects))
    }
}

fn views(r: &mut Reader<'_>) -> Result<Views, DecodeError> {
    let mut views = Views::default();
    for _ in 0..r.count(16, "views")? {
        let view = ViewId::decode(r)?;
        // Numbers rise. Builds before may have written the last that there is, behind which nothing follows.
        if view.number <= views.last().number {
            return Err(DecodeError::BadField("view"));
        }
        views.begin(view, Stamp(r.u64()?), false);
    }
    Ok(views.with_unsure(r.u32()?))
}

/// The list of members, if there is one.
fn members(bytes: &[u8]) -> Result<Option<Members>, DecodeError> {
    let mut r = Reader::new(bytes);
    let members = (!bytes.is_empty()).then(|| Members::decode(&mut r)).transpose()?;
    r.end()?;
    Ok(members)
}

fn answers(r: &mut Reader<'_>) -> Result<Answers, DecodeError> {
    let mut clients: Map<ClientId, Client> = Map::default();
    for _ in 0..r.count(20, "clients")? {
        let (id, used) = (ClientId(r.u64()?), Stamp(r.u64()?));
        let mut client = Client { used, ..Client::default() };
        for _ in 0..r.count(26, "slots")? {
            let (slot, seq, stamp, digest) = (r.u16()?, r.u64()?, Stamp(r.u64()?), r.u32()?);
            if slot >= OP_SLOTS_MAX {
                return Err(DecodeError::BadField("slot"));
            }
            client.slots.insert(slot, Answer { seq, stamp, digest, reply: entry::reply(r)?.into() });
        }
        clients.insert(id, client);
    }
    let mut evicted = Evicted { forgot: r.u8()? != 0, ..Evicted::default() };
    for _ in 0..r.count(8, "evicted clients")? {
        let id = ClientId(r.u64()?);
        evicted.order.push_back(id);
        evicted.set.insert(id);
    }
    Ok(Answers::restored(clients, evicted))
}

fn places(r: &mut Reader<'_>) -> Result<Places, DecodeError> {
    let (next_page, reused) = (entry::next_page(r)?, Stamp(r.u64()?));
    let (mut rows, mut last) = (Vec::new(), Vec::new());
    for _ in 0..r.count(36, "clients with grants")? {
        let (client, seq) = (ClientId(r.u64()?), r.u64()?);
        let (pages, holes) = (entry::pages(r)?, entry::holes(r)?);
        last.push((client, Leased { seq, pages, holes, birth: Stamp(r.u64()?) }));
        for _ in 0..r.count(23, "granted pages")? {
            let (by, page, flags, birth, from) =
                (r.u64()?, entry::page(r)?, r.u8()?, Stamp(r.u64()?), r.u16()?);
            if flags > 3 {
                return Err(DecodeError::BadField("grant"));
            }
            let (is_made_in, is_named) = (flags & 1 != 0, flags & 2 != 0);
            rows.push((page, Granted { client, seq: by, is_made_in, is_named, birth, from }));
        }
    }
    let returned = (0..r.count(12, "returned pages")?).map(|_| Ok((entry::page(r)?, Stamp(r.u64()?))));
    let returned = returned.collect::<Result<Vec<_>, DecodeError>>()?;
    let held_back = (0..r.count(4, "pages held back")?).map(|_| entry::page(r));
    let held_back = held_back.collect::<Result<Vec<_>, DecodeError>>()?;
    let (rows, last, returned) = (rows.into_iter(), last.into_iter(), returned.into_iter());
    Ok(Places::restored(next_page, reused, rows, last, returned, held_back.into_iter()))
}

const STATE_VERSION: u16 = 9;
/// Where a head says how many rows of counts belong to it: after version, stamp and digest.
const ROWS_AT: usize = 18;
#[cfg(test)]
mod tests {
    use tercel_wire::id::{MemberId, OpId, PageId, SLOTS_MAX, SpaceId};
    use tercel_wire::message::{CommitEffects, Prepared, Write};
    use tercel_wire::vector::{Seen, VECTOR_MAX, Vector};

    use super::super::Objects;
    use super::super::entry::{Decide, Entry, Freed, Grant, Head, Logged, Placement, Prepare, Settle};
    use super::super::version::{PendingStamp, VersionStamp};
    use super::*;
    use crate::effect::Checkpoint;
    use crate::limits;
    use crate::order::quorum::members::{ADDRESS_BYTES_MAX, MEMBERS_MAX, Member};
    use crate::random::Random;
    use crate::slots::Slots;

    /// Drops all objects: the tests look at ordered state only.
    struct Nowhere;

    impl Objects for Nowhere {
        fn write(&mut self, _: Oref, _: Option<(Oref, Stamp)>, _: &VersionStamp, _: Stamp, _: &[u8]) {}
        fn ordered(&mut self, _: &PendingStamp, _: Stamp) {}
        fn free(&mut self, _: Oref, _: Stamp) {}
        fn retract(&mut self, _: Oref, _: &PendingStamp) {}
        fn clear(&mut self, _: PageId, _: &Slots, _: &PendingStamp) {}
        fn restore(&mut self, _: PageId, _: &PendingStamp) {}
    }

    fn apply(s: &mut Replica, entry: &Entry<'_>) {
        // Stamps rise and need not be dense.
        s.apply(Stamp(s.stamp.0 + 2), ViewId::new(3, 33), entry, &mut Nowhere).unwrap();
    }

    fn oref(n: u32) -> Oref {
        Oref::from_raw((n + 2) << 9).unwrap()
    }

    fn commit(s: &mut Replica, seq: u64, writes: &[u32]) {
        let object = [16, 0, 0, 0, 0, 0, 0, 0];
        let writes = writes.iter().map(|n| Write { oref: oref(*n), new: false, object: &object }).collect();
        let effects = CommitEffects { base: Stamp(0), reads: vec![], writes };
        let op = OpId { client: ClientId(1), slot: 0, seq, view: ViewId::new(3, 33) };
        let head = Head { op, digest: 5, reply: vec![1, 2, 3], ..Head::default() };
        apply(s, &Entry::Commit(Logged { head, effects }));
    }

    #[test]
    fn a_state_that_nothing_could_follow_is_damaged() {
        let good = Replica::new().encode();
        // Another version, the stamp, rows that are not there, and the first page that was never given out.
        for (at, bytes) in [(0, vec![4, 0]), (ROWS_AT, vec![1]), (2, vec![0xff; 8]), (59, vec![0xff; 4])] {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(&bytes);
            assert!(Replica::decode(&bad).is_err(), "byte {at}");
        }
    }

    /// An entry of a log: objects that are made, or freed.
    struct Change {
        stamp: Stamp,
        is_made: bool,
        places: Vec<Oref>,
    }

    impl Change {
        fn random(stamp: Stamp, filled: &mut Vec<Oref>, random: &mut Random) -> Change {
            let is_made = filled.is_empty() || random.below(2) == 0;
            let mut places = Vec::new();
            for _ in 0..1 + random.below(4) {
                let oref = oref(random.below(4_000) as u32);
                if is_made && !filled.contains(&oref) {
                    filled.push(oref);
                    places.push(oref);
                } else if !is_made && !filled.is_empty() {
                    places.push(filled.swap_remove(random.below(filled.len() as u64) as usize));
                }
            }
            Change { stamp, is_made, places }
        }

        fn apply(&self, s: &mut Replica) {
            let object = [16, 0, 0, 0, 0, 0, 0, 0];
            let write = |oref: &Oref| Write { oref: *oref, new: true, object: &object };
            let view = ViewId::new(3, 33);
            let op = OpId { client: ClientId(1), slot: 0, seq: self.stamp.0, view };
            let writes = self.places.iter().map(write).collect();
            let effects = CommitEffects { base: Stamp(0), reads: vec![], writes };
            let entry = match self.is_made {
                true => Entry::Commit(Logged { head: Head { op, ..Head::default() }, effects }),
                false => Entry::Free(Freed { taken: 0, chunks: self.places.clone(), below: vec![] }),
            };
            s.apply(self.stamp, view, &entry, &mut Nowhere).unwrap();
        }
    }

    fn over(saved: Saved, stored: Saved) -> Saved {
        let checkpoint = |state| Checkpoint { applied: Stamp::ZERO, replay_from: Stamp::ZERO, state };
        checkpoint(saved).over(Some(checkpoint(stored))).state
    }

    #[test]
    fn recovery_from_rows_of_many_checkpoints_equals_the_state() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let (mut s, mut filled, mut log) = (Replica::new(), Vec::new(), Vec::<Change>::new());
            let mut stored = s.save();
            for _ in 0..40 {
                let mut happen = |s: &mut Replica, random: &mut Random| {
                    for _ in 0..random.below(6) {
                        let change = Change::random(s.stamp.next(), &mut filled, random);
                        change.apply(s);
                        log.push(change);
                    }
                };
                happen(&mut s, &mut random);
                let (taken, as_of) = (s.save_changed(), s.save());
                happen(&mut s, &mut random);
                // Half of the checkpoints come to nothing.
                if random.below(2) == 0 {
                    stored = over(taken, stored);
                    s.saved();
                    assert_eq!(stored, as_of, "seed {seed}: what happened meanwhile is not in it");
                }
                let mut back = Replica::restored(&stored).unwrap();
                let from = back.stamp;
                log.iter().filter(|change| change.stamp > from).for_each(|change| change.apply(&mut back));
                assert_eq!((back.digest(), back.save()), (s.digest(), s.save()), "seed {seed}");
                // A server that recovers goes on with checkpoints of its own.
                if random.below(4) == 0 {
                    s = back;
                }
            }
        }
    }

    #[test]
    fn checkpoint_after_one_commit_has_one_row_of_a_large_space() {
        let mut s = Replica::new();
        s.skip_lost(Stamp(10), ViewId::new(1, 1), PageId::MAX.get());
        assert_eq!(s.save_changed().rows.len(), ROWS_MAX);
        s.saved();
        assert_eq!(s.save_changed().rows, []);
        Change { stamp: Stamp(11), is_made: true, places: vec![oref(PageId::MAX.get() - 2)] }.apply(&mut s);
        let changed = s.save_changed();
        assert_eq!(changed.rows.len(), 1);
        assert!(changed.bytes() < 2 * ROW_BYTES, "{} bytes", changed.bytes());
        // The row is saved again: nothing says that it was stored.
        assert_eq!(s.save_changed().rows, changed.rows);
    }

    #[test]
    fn head_with_rows_of_another_state_is_damaged() {
        let mut s = Replica::new();
        let before = s.save();
        Change { stamp: Stamp(1), is_made: true, places: vec![oref(1), oref(2)] }.apply(&mut s);
        let two = s.save();
        Change { stamp: Stamp(2), is_made: false, places: vec![oref(1)] }.apply(&mut s);
        let one = s.save();
        for rows in [&before.rows, &one.rows] {
            let mixed = Saved { head: two.head.clone(), rows: rows.clone() };
            assert_eq!(Replica::restored(&mixed).unwrap_err(), DecodeError::BadField("counts"));
        }
        let mut lost = Replica::restored_without_counts(&two.head).unwrap();
        assert_eq!((lost.places.objects(), lost.places.in_use()), (0, lost.places.next_page() - 1));
        // Nothing is believed to be empty.
        Change { stamp: Stamp(2), is_made: false, places: vec![oref(1), oref(2)] }.apply(&mut lost);
        assert_eq!(lost.places.returned_count(), 0);
        assert_eq!(Replica::restored(&lost.save()).unwrap().save(), lost.save());
    }

    #[test]
    fn pieces_of_a_saved_state_are_its_bytes_in_order() {
        let mut s = Replica::new();
        Change { stamp: Stamp(1), is_made: true, places: vec![oref(1), oref(2_500)] }.apply(&mut s);
        let saved = s.save();
        assert_eq!((saved.rows.len(), Saved::parse(&saved.to_bytes()).as_ref()), (3, Ok(&saved)));
        for bytes_max in [1, 7, saved.head.len(), ROW_BYTES, 5_000, 1 << 20] {
            let mut all = Vec::new();
            while all.len() < saved.bytes() {
                all.extend(saved.piece(all.len(), bytes_max));
            }
            assert_eq!(all, saved.to_bytes(), "{bytes_max} at a time");
        }
    }

    #[test]
    fn saved_state_judges_as_before() {
        let mut s = Replica::new();
        apply(&mut s, &Entry::View { kept: Stamp(0), lost: false });
        for n in 0..100u32 {
            commit(&mut s, u64::from(n) + 1, &[n, n + 1]);
        }
        let pages = [200, 201].map(|n| PageId::new(n).unwrap()).to_vec();
        apply(
            &mut s,
            &Entry::Grant(Grant {
                client: ClientId(9),
                seq: 1,
                next_page: 202,
                pages: pages.clone(),
                holes: vec![],
            }),
        );
        apply(&mut s, &Entry::End(ClientId(9)));
        apply(
            &mut s,
            &Entry::Grant(Grant {
                client: ClientId(8),
                seq: 4,
                next_page: 202,
                pages: pages[..1].into(),
                holes: vec![],
            }),
        );
        apply(&mut s, &Entry::Define(ClassId(16), Layout::new("C".into(), vec![])));
        apply(&mut s, &Entry::Evict(ClientId(3)));
        let back = Replica::decode(&s.encode()).unwrap();
        assert_eq!((back.encode(), back.digest()), (s.encode(), s.digest()));
        assert_eq!((back.stamp, back.places.next_page(), back.view()), (s.stamp, 202, ViewId::new(3, 33)));
        let birth = back.places.granted(pages[0]).unwrap().birth;
        let last = Leased { seq: 4, birth, pages: pages[..1].into(), holes: vec![] };
        assert_eq!(back.places.last_grant(ClientId(8)), last);
        assert!(birth > Stamp::ZERO);
        let read = CommitEffects { base: Stamp(210), reads: vec![oref(99)], writes: vec![] };
        assert_eq!(back.certify(&read), s.certify(&read));
        assert!(back.certify(&CommitEffects { base: Stamp(100), ..read }).is_err());
    }

    /// The reader takes all that the writer may write.
    #[test]
    fn highest_values_of_every_field_come_back() {
        let mut s = Replica::new();
        s.stamp = Stamp(Stamp::LAST.0 - 8);
        let view = ViewId::new(ViewId::NUMBER_MAX, u32::MAX);
        let next = |s: &mut Replica, entry: &Entry<'_>| {
            s.apply(s.stamp.next(), view, entry, &mut Nowhere).unwrap();
        };
        let kept = s.stamp;
        next(&mut s, &Entry::View { kept, lost: true });
        let address = "x".repeat(ADDRESS_BYTES_MAX);
        let member = |id| Member { id: MemberId(u64::MAX - id), votes: id < 7, address: address.clone() };
        next(&mut s, &Entry::Members(Members::new((0..MEMBERS_MAX as u64).map(member).collect()).unwrap()));
        let mut on = Vector::default();
        for space in 0..VECTOR_MAX as u64 {
            on.add(SpaceId(u64::MAX - space), Seen { view, at: Stamp::LAST, done: Stamp::LAST });
        }
        next(&mut s, &Entry::Depend(on));
        let op = OpId { client: ClientId(u64::MAX), slot: OP_SLOTS_MAX - 1, seq: u64::MAX, view };
        let object = [16, 0, 0, 0, 0, 0, 0, 0];
        let place = Oref::new(PageId::MAX, SLOTS_MAX - 1).unwrap();
        let writes = vec![Write { oref: place, new: true, object: &object }];
        let effects = CommitEffects { base: s.stamp, reads: vec![], writes };
        let head = Head { op, digest: u32::MAX, ..Head::default() };
        next(&mut s, &Entry::Commit(Logged { head, effects }));
        let pages = vec![PageId::new(PageId::MAX.get() - 1).unwrap()];
        let grant = Grant {
            client: op.client,
            seq: u64::MAX,
            next_page: PageId::MAX.get() + 1,
            pages,
            holes: vec![],
        };
        next(&mut s, &Entry::Grant(grant));
        next(&mut s, &Entry::Define(ClassId(u16::MAX), Layout::new("C".into(), vec![])));
        next(&mut s, &Entry::Evict(ClientId(u64::MAX - 1)));
        next(&mut s, &Entry::End(ClientId(u64::MAX)));
        assert_eq!(s.stamp, Stamp::LAST);
        let back = Replica::decode(&s.encode()).unwrap();
        assert_eq!((back.encode(), back.digest(), back.view()), (s.encode(), s.digest(), view));
    }

    /// A part, each field at its bound.
    fn highest_part(op: OpId, object: &[u8]) -> Logged<'_> {
        let (first, last) = (PageId::new(PageId::MAX.get() - 1).unwrap(), PageId::MAX);
        let place = |page, slot| Oref::new(page, slot).unwrap();
        let [read, written, moved] = [(first, 0), (last, SLOTS_MAX - 1), (last, 0)].map(|(p, s)| place(p, s));
        Logged {
            head: Head {
                op,
                digest: u32::MAX,
                reply: vec![u8::MAX; limits::REPLY_BYTES_MAX],
                placements: vec![Placement { write: 0, to: moved, is_new: true }],
                named: vec![first, last],
                filled: vec![last],
                left: vec![written],
                released: vec![written],
                births: vec![(last, Stamp::LAST)],
            },
            effects: CommitEffects {
                base: Stamp::LAST,
                reads: vec![read],
                writes: vec![Write { oref: written, new: false, object }],
            },
        }
    }

    #[test]
    fn highest_values_of_parts_come_back() {
        let view = ViewId::new(ViewId::NUMBER_MAX, u32::MAX);
        let op = |seq| OpId { client: ClientId(u64::MAX), slot: OP_SLOTS_MAX - 1, seq, view };
        let mut seen = Vector::default();
        for space in 0..VECTOR_MAX as u64 {
            seen.add(SpaceId(u64::MAX - space), Seen { view, at: Stamp::LAST, done: Stamp::LAST });
        }
        let part = |n: u64| Prepared { space: SpaceId(u64::MAX - n), view, at: Stamp::LAST, writes: true };
        let parts: Vec<_> = (0..limits::SPACES_MAX as u64 - 1).map(part).collect();
        let mut object = [u8::MAX; 8];
        object[..4].copy_from_slice(&[16, 0, 0, 0]);
        let mut s = Replica::new();
        s.stamp = Stamp(Stamp::LAST.0 - 5);
        let (kept, prepared) = (s.stamp, Stamp(Stamp::LAST.0 - 3));
        let of = |seq| highest_part(op(seq), &object);
        for entry in [
            Entry::View { kept, lost: true },
            Entry::Prepare(Prepare {
                of: op(u64::MAX),
                coordinator: SpaceId(u64::MAX),
                logged: of(u64::MAX - 1),
            }),
            Entry::Decide(Decide { parts, seen: seen.clone(), logged: of(u64::MAX) }),
            Entry::Settle(Settle { prepared, seen: seen.clone(), logged: None }),
            Entry::Prepare(Prepare {
                of: op(u64::MAX),
                coordinator: SpaceId(u64::MAX),
                logged: of(u64::MAX),
            }),
        ] {
            let bytes = entry.encode();
            assert_eq!(Entry::decode(entry.kind(), &bytes), Ok(entry.clone()));
            s.apply(s.stamp.next(), view, &entry, &mut Nowhere).unwrap();
            let back = Replica::decode(&s.encode()).unwrap();
            assert_eq!((back.encode(), back.digest()), (s.encode(), s.digest()));
        }
        assert_eq!(
            (s.stamp, s.prepares.len(), s.decisions.count_of(ClientId(u64::MAX))),
            (Stamp::LAST, 1, 1)
        );
        let settled = Settle { prepared: Stamp::LAST, seen, logged: Some(of(u64::MAX)) };
        for entry in [Entry::Settle(settled), Entry::Forget(vec![op(u64::MAX); 64])] {
            assert_eq!(Entry::decode(entry.kind(), &entry.encode()), Ok(entry.clone()));
        }
    }

    #[test]
    fn the_base_of_what_may_have_seen_lost_entries_is_too_old() {
        let mut s = Replica::new();
        commit(&mut s, 1, &[1]);
        let at = s.stamp;
        s.skip_lost(Stamp(at.0 + 100), ViewId::new(9, 0), 70);
        assert_eq!((s.stamp, s.view().number, s.places.next_page()), (Stamp(at.0 + 100), 9, 70));
        let read = |base| CommitEffects { base: Stamp(base), reads: vec![oref(1)], writes: vec![] };
        assert!(s.certify(&read(at.0 + 99)).is_err());
        assert_eq!(s.certify(&read(at.0 + 100)), Ok(()));
    }

    #[test]
    fn replicas_are_equal_at_equal_stamps_wherever_they_began() {
        let mut a = Replica::new();
        (1..50).for_each(|n| commit(&mut a, n, &[n as u32]));
        let mut b = Replica::decode(&a.encode()).unwrap();
        assert_eq!(a.digest(), b.digest());
        (50..90).for_each(|n| [&mut a, &mut b].into_iter().for_each(|s| commit(s, n, &[n as u32])));
        assert_eq!((a.digest(), a.encode()), (b.digest(), b.encode()));
        commit(&mut a, 90, &[1]);
        commit(&mut b, 90, &[2]);
        assert_ne!(a.digest(), b.digest());
    }
}
