//! Ordered state as bytes, to be saved with the pages.

use tercel_wire::cursor::{DecodeError, Put, Reader};
use tercel_wire::id::{ClassId, ClientId, OP_SLOTS_MAX, Oref, Stamp, ViewId};
use tercel_wire::layout::Layout;
use tercel_wire::message::Leased;

use super::Replica;
use super::answers::{Answer, Answers, Client, Evicted};
use super::digest::Digest;
use super::entry;
use super::frees::Frees;
use super::places::{Granted, Places};
use super::recent::RecentWrites;
use super::released::Released;
use super::views::Views;
use crate::table::Map;

impl Replica {
    /// As bytes. Pieces of a large commit are not among them: they are read from the log again.
    pub fn encode(&self) -> Vec<u8> {
        let (floor, writes) = self.recent.rows();
        let mut out = Vec::with_capacity(256 + writes.len() * 12 + self.places.granted_count() * 29);
        out.put_u16(STATE_VERSION);
        out.put_u64(self.stamp.0);
        out.put_u64(self.digest.value());
        self.put_views(&mut out);
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
        // Most spaces have none, and are saved as before there could be any.
        let moved = self.released.all_moved();
        if moved.len() > 0 {
            out.put_u32(moved.len() as u32);
            moved.flat_map(|(from, to)| [from, to]).for_each(|oref| out.put_u32(oref.raw()));
        }
        out
    }

    fn put_views(&self, out: &mut Vec<u8>) {
        let views = self.views.iter();
        out.put_u32(views.len() as u32);
        for (view, kept) in views {
            view.encode(out);
            out.put_u64(kept.0);
        }
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
        let filled = self.places.filled_all();
        out.put_u32(filled.len() as u32);
        filled.iter().for_each(|count| out.put_u16(*count));
        let tops = self.places.tops_all();
        out.put_u32(tops.len() as u32);
        tops.iter().for_each(|top| out.put_u16(*top));
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
        let mut r = Reader::new(bytes);
        if r.u16()? != STATE_VERSION {
            return Err(DecodeError::BadField("version"));
        }
        let mut s = Replica::new();
        s.stamp = Stamp(r.u64()?);
        if s.stamp > STAMP_MAX {
            return Err(DecodeError::BadField("stamp"));
        }
        s.digest = Digest::restored(r.u64()?);
        s.views = views(&mut r)?;
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
        if !r.rest().is_empty() {
            let moved =
                (0..r.count(8, "moved chunks")?).map(|_| Ok((entry::oref(&mut r)?, entry::oref(&mut r)?)));
            s.released.put_elsewhere(moved.collect::<Result<Vec<_>, DecodeError>>()?);
        }
        r.end()?;
        Ok(s)
    }
}

fn views(r: &mut Reader<'_>) -> Result<Views, DecodeError> {
    let mut views = Views::default();
    for _ in 0..r.count(16, "views")? {
        let view = ViewId::decode(r)?;
        // Numbers rise, and none is the last that there is.
        if view.number <= views.last().number || view.number == u32::MAX {
            return Err(DecodeError::BadField("view"));
        }
        views.begin(view, Stamp(r.u64()?));
    }
    Ok(views)
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
    let filled = (0..r.count(2, "pages")?).map(|_| r.u16()).collect::<Result<Vec<u16>, DecodeError>>()?;
    let tops = (0..r.count(2, "pages")?).map(|_| r.u16()).collect::<Result<Vec<u16>, DecodeError>>()?;
    if filled.len().max(tops.len()) > next_page as usize {
        return Err(DecodeError::BadField("page"));
    }
    let (rows, last, returned) = (rows.into_iter(), last.into_iter(), returned.into_iter());
    Ok(Places::restored(next_page, reused, rows, last, returned, held_back.into_iter(), (filled, tops)))
}

const STATE_VERSION: u16 = 4;
/// Far more entries than a log will ever have, and far from where stamps would begin again.
const STAMP_MAX: Stamp = Stamp(1 << 62);

#[cfg(test)]
mod tests {
    use tercel_wire::id::{OpId, PageId};
    use tercel_wire::message::{CommitEffects, Write};

    use super::super::Objects;
    use super::super::entry::{Entry, Grant, Head, Logged};
    use super::super::version::{PendingStamp, VersionStamp};
    use super::*;
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
        // The stamp, and the first page that was never given out.
        for (at, bytes) in [(2, vec![0xff; 8]), (43, vec![0xff; 4])] {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(&bytes);
            assert!(Replica::decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn saved_state_judges_as_before() {
        let mut s = Replica::new();
        apply(&mut s, &Entry::View { kept: Stamp(0) });
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
