//! Transactions inside of a server, told one behaviour at a time.

use std::sync::Arc;

use crate::world::things::{Thing, thing, world};
use crate::world::{Indoors, SPACE, World};
use tercel_derive::Object;
use tercel_engine::error::{Bound, Contended, Error};
use tercel_engine::server::{Effects, LocalConfig};
use tercel_engine::txn::{Isolation, Port, Step, Tx};
use tercel_wire::class::FORWARD;
use tercel_wire::id::{OpId, Oref, PageId};
use tercel_wire::message::Refusal;
use tercel_wire::page::{Page, PageBuilder};
use tercel_wire::record::{Ref, Text};

fn make(p: &Indoors<'_>, n: u64, size: usize) -> Vec<Ref<Thing>> {
    let text = "x".repeat(size);
    let make = |tx: &Tx<'_>| {
        (0..n).map(|count| tx.create(&Thing { text: text.clone().into(), ..thing(count) })).collect()
    };
    p.run(make).unwrap()
}

/// The last commit that is visible.
fn visible(w: &World) -> tercel_wire::id::Stamp {
    w.lock().node.machine().unwrap().visible()
}

/// Commits a count while no sync ends, until the program gives up. Gives the operation.
fn give_up(w: &World, p: &Indoors<'_>, r: Ref<Thing>, count: u64) -> OpId {
    w.lock().hold.syncs = true;
    w.lock().patience = 50;
    let tx = p.begin();
    tx.edit(r).unwrap().set_count(count).unwrap();
    let Err(Error::Unknown { op: Some(op), .. }) = tx.commit() else { panic!("it was answered unsynced") };
    *op
}

/// Lets syncs end again.
fn go_on(w: &World) {
    w.lock().hold.syncs = false;
    w.run_until_idle();
}

fn set(p: &Indoors<'_>, r: Ref<Thing>, count: u64) {
    p.run(|tx| tx.edit(r)?.set_count(count)).unwrap();
}

#[test]
fn reads_stay_of_one_state_or_conflict() {
    let w = world(0);
    let p = w.indoors();
    let all = make(&p, 3, 10);
    let (a, b) = (p.begin(), p.begin());
    assert_eq!((a.get(all[0]).unwrap().count(), b.get(all[1]).unwrap().count()), (0, 1));
    set(&p, all[1], 50);
    // Nothing that `a` read has changed, so it goes on with the new state; `b` cannot.
    assert_eq!(a.get(all[1]).unwrap().count(), 50);
    assert_eq!(a.snapshot(), visible(&w));
    assert_eq!(b.get(all[1]).unwrap().count(), 1, "what was read stays as it was");
    assert!(matches!(b.get(all[2]).map(|o| o.count()), Err(Error::Conflict(_))));
    assert!(matches!(b.get(all[0]).map(|o| o.count()), Err(Error::Conflict(_))), "for good");
}

#[test]
fn absence_is_a_read_and_a_birth_its_conflict() {
    let w = world(0);
    let p = w.indoors();
    let seen = make(&p, 1, 10)[0];
    let place = p.run(|tx| tx.reserve(&thing(0))).unwrap();
    let reader = p.begin();
    assert!(reader.find(place).unwrap().is_none());
    assert_eq!(reader.get(place).map(|o| o.count()), Err(Error::not_found(place.oref())));
    p.run(|tx| tx.fill(place, &thing(4))).unwrap();
    assert!(matches!(reader.get(seen).map(|o| o.count()), Err(Error::Conflict(_))));
    let writer = p.begin();
    assert_eq!(writer.get(place).unwrap().count(), 4);
}

#[test]
fn read_only_commit_submits_nothing() {
    let w = world(0);
    let p = w.indoors();
    let r = make(&p, 1, 0)[0];
    let (tx, before) = (p.begin(), visible(&w));
    tx.get(r).unwrap();
    let commit = tx.commit().unwrap();
    assert_eq!((commit.op, commit.stamp, visible(&w)), (None, before, before));
}

#[test]
fn write_skew_is_refused_unless_the_isolation_allows_it() {
    for (isolation, is_refused) in [(Isolation::Serializable, true), (Isolation::Snapshot, false)] {
        let w = world(0);
        let p = w.indoors();
        let all = make(&p, 2, 0);
        let begin = || Tx::begin(&p, isolation).unwrap();
        let (a, b) = (begin(), begin());
        for (tx, mine, other) in [(&a, 0, 1), (&b, 1, 0)] {
            let count = tx.get(all[other]).unwrap().count();
            tx.edit(all[mine]).unwrap().set_count(count + 10).unwrap();
        }
        a.commit().unwrap();
        let refused = match is_refused {
            true => Err(Error::Conflict(Some(Box::new(Contended { object: all[0].oref(), class: None })))),
            false => Ok(()),
        };
        assert_eq!(b.commit().map(drop), refused, "{isolation:?}");
        // Two that write the same object conflict whatever they allow.
        let (a, b) = (begin(), begin());
        for tx in [&a, &b] {
            tx.edit(all[0]).unwrap().set_count(7).unwrap();
        }
        a.commit().unwrap();
        assert!(matches!(b.commit().map(drop), Err(Error::Conflict(_))));
    }
}

#[test]
fn transaction_that_reads_too_much_is_full() {
    let w = world(0);
    let config = LocalConfig { read_bytes_max: 20_000, ..LocalConfig::default() };
    let (p, writer) = (w.indoors_with(config), w.indoors());
    let all = make(&writer, 40, 900);
    let tx = p.begin();
    let read = all.iter().map(|r| tx.get(*r).map(drop)).collect::<Vec<_>>();
    let kept = read.iter().filter(|r| r.is_ok()).count();
    assert!((15..=20).contains(&kept), "{kept} of 20,000 bytes");
    assert!(
        matches!(&read[kept], Err(Error::Full(Bound::ReadsInside { bytes_max: 20_000 }))),
        "{:?}",
        read[kept]
    );
    assert_eq!(tx.get(all[0]).unwrap().count(), 0, "what was read can be read");
    // Running it again would end no better, so it does not.
    let mut attempts = 0;
    let whole = p.run(|tx| {
        attempts += 1;
        all.iter().try_for_each(|r| tx.get(*r).map(drop))
    });
    assert!(matches!(whole, Err(Error::Full(_))) && attempts == 1, "{attempts} attempts");
}

#[test]
fn transactions_beyond_the_bound_are_full() {
    let w = world(0);
    let p = w.indoors_with(LocalConfig { transactions_max: 2, ..LocalConfig::default() });
    let (_a, b) = (p.begin(), p.begin());
    assert!(matches!(Tx::begin(&p, Isolation::Snapshot), Err(Error::Full(_))));
    drop(b);
    drop(p.begin());
}

#[test]
fn transaction_that_writes_too_much_is_full() {
    let w = world(0);
    let p = w.indoors_with(LocalConfig { write_bytes_max: 2_000, ..LocalConfig::default() });
    let large = Thing { text: "x".repeat(900).into(), ..thing(0) };
    let full = p.run(|tx| (0..3).try_for_each(|_| tx.create(&large).map(drop)));
    assert!(matches!(full, Err(Error::Full(_))));
}

#[test]
fn abandoned_operation_is_resolved_later() {
    let w = world(0);
    let p = w.indoors();
    let r = make(&p, 1, 0)[0];
    let op = give_up(&w, &p, r, 5);
    let mut asked = None;
    let early = p.drive(None, &mut |home, now| {
        asked = home.resolve(now, op);
        if asked.is_some() { Step::Done } else { Step::Wait }
    });
    assert_eq!(early, Err(Error::Timeout), "{asked:?}");
    go_on(&w);
    assert!(p.resolve(op).is_ok());
    assert_eq!(p.resolve(op), Err(Refusal::Unknown), "an answer is given once");
    // Also if others went on meanwhile, in slots of their own.
    let op = give_up(&w, &p, r, 6);
    go_on(&w);
    set(&p, make(&p, 1, 0)[0], 8);
    assert!(p.resolve(op).is_ok());
    assert_eq!(p.run(|tx| Ok(tx.get(r)?.count())), Ok(6));
}

#[test]
fn abandoned_operations_give_their_slots_back() {
    let w = world(0);
    let p = w.indoors();
    let r = make(&p, 1, 0)[0];
    for count in 0..tercel_engine::limits::CREDIT + 10 {
        let op = give_up(&w, &p, r, count.into());
        assert!(op.slot < 3, "{op:?}");
        go_on(&w);
    }
}

#[test]
fn outcome_is_unknown_after_the_session() {
    let w = world(0);
    let p = w.indoors();
    let r = make(&p, 1, 0)[0];
    let op = give_up(&w, &p, r, 5);
    w.crash();
    w.lock().hold.syncs = false;
    w.restart();
    w.run_until_idle();
    assert_eq!(p.resolve(op), Err(Refusal::Unknown));
}

#[test]
fn next_session_has_no_places_of_the_last() {
    let w = world(0);
    let p = w.indoors();
    let place = p.run(|tx| tx.reserve(&thing(0))).unwrap();
    let open = p.begin();
    open.create(&thing(1)).unwrap();
    w.crash();
    w.restart();
    w.run_until_idle();
    assert!(matches!(open.commit().map(drop), Err(Error::Conflict(_))), "run again, it takes another place");
    assert_eq!(p.run(|tx| tx.fill(place, &thing(2))), Err(Error::PlaceLost(place.oref())));
    p.run(|tx| tx.create(&thing(1))).unwrap();
}

#[test]
fn damaged_object_is_reported_and_names_itself() {
    let w = world(0);
    let p = w.indoors();
    let sound = make(&p, 1, 20)[0];
    let (page, stamp) = (PageId::new(900).unwrap(), visible(&w));
    let mut object = Vec::new();
    {
        let mut inner = w.lock();
        let mut out = Effects::default();
        let image = inner.node.machine_mut().unwrap().page(sound.oref().page(), &mut out).flatten().unwrap();
        object.extend_from_slice(
            Page::trusted(&image, sound.oref().page()).unwrap().object(sound.oref().slot()).unwrap(),
        );
    }
    // The text begins behind the object's end.
    object[4 + 12] = 0xff;
    let forward = |to: u32| [vec![FORWARD.0 as u8, 0, 0, 0], to.to_le_bytes().to_vec()].concat();
    let place = |slot| Ref::<Thing>::new(Oref::new(page, slot).unwrap());
    let mut builder = PageBuilder::new(Vec::new(), page, SPACE);
    for (slot, object) in [object, forward(0), forward(place(1).oref().raw())].iter().enumerate() {
        assert!(builder.push(slot as u16, object));
    }
    w.crash();
    w.lock().node.disk.pages.insert(page, Arc::new(builder.finish(stamp)));
    w.restart();
    w.run_until_idle();
    for slot in 0..3 {
        let r = place(slot);
        let Err(Error::Corrupt(why)) = p.run(|tx| tx.get(r).map(drop)) else { panic!("{r:?}") };
        assert!(why.contains(&r.oref().to_string()), "{why}");
    }
}

/// The class as an older program has it, and as a newer one does.
mod old {
    use super::*;
    #[derive(Object, Debug, Clone, PartialEq)]
    #[object(crate = "tercel_engine", name = "Part")]
    pub struct Part {
        pub size: u32,
        pub label: Text,
    }
}
mod new {
    use super::*;
    #[derive(Object, Debug, Clone, PartialEq)]
    #[object(crate = "tercel_engine", name = "Part")]
    pub struct Part {
        pub size: u32,
        pub label: Text,
        pub weight: u64,
    }
}

#[test]
fn versions_of_a_class_convert_both_ways_and_keep_what_they_do_not_know() {
    let w = world(0);
    let (older, newer) = (w.indoors(), w.indoors());
    let part = old::Part { size: 3, label: "bolt".into() };
    let r = older.run(|tx| tx.create(&part)).unwrap();
    let read = |p: &Indoors<'_>| p.run(|tx| tx.get(r.cast::<new::Part>())?.to_value());
    assert_eq!(read(&newer), Ok(new::Part { size: 3, label: "bolt".into(), weight: 0 }));
    newer.run(|tx| tx.edit(r.cast::<new::Part>())?.set_weight(9)).unwrap();
    assert_eq!(older.run(|tx| tx.get(r)?.to_value()), Ok(part));
    // The older program changes what it knows; the weight survives it.
    older.run(|tx| tx.edit(r)?.set_label("nut")).unwrap();
    assert_eq!(read(&newer), Ok(new::Part { size: 3, label: "nut".into(), weight: 9 }));
}

#[test]
fn one_program_has_one_type_for_a_class() {
    let w = world(0);
    let p = w.indoors();
    let r = p.run(|tx| tx.create(&old::Part { size: 1, label: "".into() })).unwrap();
    let tx = p.begin();
    tx.get(r).unwrap();
    for error in [
        tx.get(r.cast::<new::Part>()).map(drop).unwrap_err(),
        tx.create(&new::Part { size: 1, label: "".into(), weight: 1 }).map(drop).unwrap_err(),
    ] {
        assert!(matches!(&error, Error::Schema(why) if why.contains("another type")), "{error}");
    }
    let error = tx.get(r.cast::<Thing>()).map(drop).unwrap_err();
    assert!(matches!(&error, Error::Schema(why) if why.contains("of class Part, not Thing")), "{error}");
}
