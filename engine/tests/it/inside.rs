//! Transactions inside of a server, told one behaviour at a time.

use std::cell::RefCell;

use crate::local::fake::Fake;
use crate::local::{Inside, server};
use tercel_derive::Object;
use tercel_engine::error::{Bound, Error};
use tercel_engine::txn::local::{LocalConfig, Session, Source};
use tercel_engine::txn::{Isolation, Tx};
use tercel_wire::id::{ClientId, SpaceId, ViewId};
use tercel_wire::message::{Limit, Outcome};
use tercel_wire::record::{Ref, Text};

#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Thing {
    count: u64,
    text: Text,
    next: Ref<Thing>,
}

fn thing(count: u64) -> Thing {
    Thing { count, text: "".into(), next: Ref::NULL }
}

fn make(p: &Inside<'_>, n: u64, size: usize) -> Vec<Ref<Thing>> {
    let text = "x".repeat(size);
    let make = |tx: &Tx<'_>| {
        (0..n).map(|count| tx.create(&Thing { text: text.clone().into(), ..thing(count) })).collect()
    };
    p.run(make).unwrap()
}

fn set(p: &Inside<'_>, r: Ref<Thing>, count: u64) {
    p.run(|tx| tx.edit(r)?.set_count(count)).unwrap();
}

#[test]
fn missing_page_is_waited_for_and_read_once() {
    let server = server(1);
    let p = Inside::new(&server);
    let r = make(&p, 1, 0)[0];
    p.fake().forget_pages();
    let before = p.fake().reads;
    let tx = p.begin();
    assert_eq!(tx.get(r).unwrap().count(), 0);
    assert_eq!(tx.get(r).unwrap().next().find().unwrap().map(|o| o.count()), None);
    // Without forwards it is one page; with one it is two.
    assert!((1..=2).contains(&(p.fake().reads - before)));
}

#[test]
fn hurried_attempt_ends_at_a_missing_page_and_leaves_nothing_behind() {
    let server = server(1);
    let p = Inside::new(&server);
    let all = make(&p, 2, 3_000);
    p.fake().forget_pages();
    p.fake().here_max = 8;
    p.hurried.set(true);
    let mut attempts = 0;
    let copied = loop {
        attempts += 1;
        let tx = p.begin();
        let body = || {
            let made = tx.create(&thing(tx.get(all[0])?.count() + 10))?;
            tx.edit(all[1])?.set_next(made)?;
            Ok::<_, Error>(made)
        };
        if let Ok(made) = body() {
            p.hurried.set(false);
            tx.commit().unwrap();
            break made;
        }
        // What was asked for comes; nothing else is kept of the attempt.
        drop(tx);
        while p.fake().read() {}
        while p.fake().step() {}
    };
    assert!(attempts > 1 && attempts < 10, "{attempts} attempts");
    assert_eq!(p.run(|tx| Ok(tx.get(all[1])?.next().get()?.count())), Ok(10));
    assert_eq!(p.run(|tx| Ok(tx.get(copied)?.count())), Ok(10));
    assert_eq!(p.fake().commits, 2);
}

#[test]
fn reads_stay_of_one_state_or_conflict() {
    let server = server(2);
    let p = Inside::new(&server);
    let all = make(&p, 3, 10);
    let (a, b) = (p.begin(), p.begin());
    assert_eq!((a.get(all[0]).unwrap().count(), b.get(all[1]).unwrap().count()), (0, 1));
    set(&p, all[1], 50);
    // Nothing that `a` read has changed, so it goes on with the new state; `b` cannot.
    assert_eq!(a.get(all[1]).unwrap().count(), 50);
    assert_eq!(a.snapshot(), p.fake().visible());
    assert_eq!(b.get(all[1]).unwrap().count(), 1, "what was read stays as it was");
    assert_eq!(b.get(all[2]).map(|o| o.count()), Err(Error::Conflict));
    assert_eq!(b.get(all[0]).map(|o| o.count()), Err(Error::Conflict), "for good");
}

#[test]
fn absence_is_a_read_and_a_birth_its_conflict() {
    let server = server(3);
    let p = Inside::new(&server);
    let seen = make(&p, 1, 10)[0];
    let place = p.run(|tx| tx.reserve(&thing(0))).unwrap();
    let reader = p.begin();
    assert!(reader.find(place).unwrap().is_none());
    assert_eq!(reader.get(place).map(|o| o.count()), Err(Error::not_found(place.oref())));
    p.run(|tx| tx.fill(place, &thing(4))).unwrap();
    assert_eq!(reader.get(seen).map(|o| o.count()), Err(Error::Conflict));
    let writer = p.begin();
    assert_eq!(writer.get(place).unwrap().count(), 4);
}

#[test]
fn read_only_commit_submits_nothing() {
    let server = server(4);
    let p = Inside::new(&server);
    let r = make(&p, 1, 0)[0];
    let (tx, commits) = (p.begin(), p.fake().commits);
    tx.get(r).unwrap();
    let commit = tx.commit().unwrap();
    let visible = p.fake().visible();
    assert_eq!((commit.op, commit.stamp, p.fake().commits), (None, visible, commits));
}

#[test]
fn write_skew_is_refused_unless_the_isolation_allows_it() {
    for (isolation, expected) in
        [(Isolation::Serializable, Err(Error::Conflict)), (Isolation::Snapshot, Ok(()))]
    {
        let server = server(5);
        let p = Inside::new(&server);
        let all = make(&p, 2, 0);
        let begin = || Tx::begin(&p, isolation).unwrap();
        let (a, b) = (begin(), begin());
        for (tx, mine, other) in [(&a, 0, 1), (&b, 1, 0)] {
            let count = tx.get(all[other]).unwrap().count();
            tx.edit(all[mine]).unwrap().set_count(count + 10).unwrap();
        }
        a.commit().unwrap();
        assert_eq!(b.commit().map(drop), expected);
        // Two that write the same object conflict whatever they allow.
        let (a, b) = (begin(), begin());
        for tx in [&a, &b] {
            tx.edit(all[0]).unwrap().set_count(7).unwrap();
        }
        a.commit().unwrap();
        assert_eq!(b.commit().map(drop), Err(Error::Conflict));
    }
}

#[test]
fn state_older_than_the_remembered_changes_is_a_conflict() {
    let server = server(6);
    let p = Inside::new(&server);
    let all = make(&p, 3, 0);
    let (idle, reader) = (p.begin(), p.begin());
    reader.get(all[0]).unwrap();
    set(&p, all[2], 9);
    set(&p, all[2], 10);
    let visible = p.fake().visible();
    p.fake().forgotten = visible;
    assert_eq!(reader.get(all[1]).map(|o| o.count()), Err(Error::Conflict));
    // What has read nothing yet is of any state.
    assert_eq!(idle.get(all[2]).unwrap().count(), 10);
}

#[test]
fn transaction_that_reads_too_much_is_full() {
    let server = server(7);
    let config = LocalConfig { read_bytes_max: 20_000, ..LocalConfig::default() };
    let (p, writer) = (Inside::with(&server, config), Inside::new(&server));
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
    let server = server(8);
    let p = Inside::with(&server, LocalConfig { transactions_max: 2, ..LocalConfig::default() });
    let (_a, b) = (p.begin(), p.begin());
    assert!(matches!(Tx::begin(&p, Isolation::Snapshot), Err(Error::Full(_))));
    drop(b);
    drop(p.begin());
}

#[test]
fn transaction_that_writes_too_much_is_full() {
    let server = server(9);
    let p = Inside::with(&server, LocalConfig { write_bytes_max: 2_000, ..LocalConfig::default() });
    let large = Thing { text: "x".repeat(900).into(), ..thing(0) };
    let full = p.run(|tx| (0..3).try_for_each(|_| tx.create(&large).map(drop)));
    assert!(matches!(full, Err(Error::Full(_))));
    p.fake().pages_max = 0;
    let other = Inside::new(&server);
    assert!(matches!(other.run(|tx| tx.create(&large)), Err(Error::Full(_))));
}

#[test]
fn refusals_mean_what_they_mean_to_a_client() {
    let server = server(10);
    let p = Inside::new(&server);
    let r = make(&p, 1, 0)[0];
    for (outcome, expected) in [
        (Outcome::TooOld, "another transaction changed"),
        (Outcome::NotExecuted, "another transaction changed"),
        (Outcome::Full(Limit::Disk), "full: the server's disk"),
        (Outcome::Invalid(r.oref()), "denied"),
        (Outcome::Unknown, "no answer came in time: the outcome of operation"),
    ] {
        let tx = p.begin();
        tx.create(&thing(1)).unwrap();
        tx.edit(r).unwrap().set_count(2).unwrap();
        p.fake().refuse = Some(outcome);
        let error = tx.commit().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{outcome:?}: {error}");
    }
    set(&p, r, 3);
}

#[test]
fn abandoned_operation_is_resolved_later() {
    let server = server(11);
    let p = Inside::new(&server);
    let all = make(&p, 1, 0);
    p.fake().hold = true;
    let tx = p.begin();
    tx.edit(all[0]).unwrap().set_count(5).unwrap();
    let Err(Error::Timeout(Some(op))) = tx.commit() else { panic!("nothing is shown") };
    assert_eq!(p.resolve(*op), Err(Error::Timeout(None)));
    p.fake().hold = false;
    assert!(matches!(p.resolve(*op), Ok(Outcome::Committed(_))));
    assert_eq!(p.resolve(*op), Ok(Outcome::Unknown), "an answer is given once");
    // Also if others went on meanwhile, in slots of their own.
    p.fake().hold = true;
    let tx = p.begin();
    tx.edit(all[0]).unwrap().set_count(6).unwrap();
    let Err(Error::Timeout(Some(op))) = tx.commit() else { panic!("nothing is shown") };
    p.fake().hold = false;
    set(&p, make(&p, 1, 0)[0], 8);
    assert!(matches!(p.resolve(*op), Ok(Outcome::Committed(_))));
    assert_eq!(p.run(|tx| Ok(tx.get(all[0])?.count())), Ok(6));
}

#[test]
fn abandoned_operations_give_their_slots_back() {
    let server = server(16);
    let p = Inside::new(&server);
    let r = make(&p, 1, 0)[0];
    for count in 0..tercel_wire::id::OP_SLOTS_MAX + 10 {
        let tx = p.begin();
        tx.edit(r).unwrap().set_count(count.into()).unwrap();
        p.fake().hold = true;
        let given_up = tx.commit().map(drop);
        assert!(matches!(&given_up, Err(Error::Timeout(Some(op))) if op.slot < 3), "{given_up:?}");
        p.fake().hold = false;
        while p.fake().step() {}
    }
}

#[test]
fn another_session_has_none_of_the_places_of_the_one_before() {
    let server = server(12);
    let p = Inside::new(&server);
    let place = p.run(|tx| tx.reserve(&thing(0))).unwrap();
    let open = p.begin();
    open.create(&thing(1)).unwrap();
    p.fake().session =
        Ok(Session { space: SpaceId(1), client: ClientId(99), view: ViewId { number: 2, incarnation: 2 } });
    assert_eq!(open.commit().map(drop), Err(Error::Conflict), "run again, it takes another place");
    assert_eq!(p.run(|tx| tx.fill(place, &thing(2))), Err(Error::PlaceLost(place.oref())));
    p.run(|tx| tx.create(&thing(1))).unwrap();
    p.fake().session = Err(Error::Unavailable("it stops".into()));
    assert!(matches!(Tx::begin(&p, Isolation::Snapshot), Err(Error::Unavailable(_))));
}

#[test]
fn damaged_object_is_reported_and_names_itself() {
    let server = server(13);
    let p = Inside::new(&server);
    p.fake().moves = 0;
    let all = make(&p, 3, 20);
    let mut damaged = p.fake().object(all[0].oref()).clone();
    damaged[4 + 12] = 1;
    let forward = |to: u32| [vec![7, 0, 0, 0], to.to_le_bytes().to_vec()].concat();
    let class = tercel_wire::class::FORWARD.0 as u8;
    let forward = |to| {
        let mut f = forward(to);
        f[0] = class;
        f
    };
    p.fake().damage(all[0].oref(), damaged);
    p.fake().damage(all[1].oref(), forward(0));
    p.fake().damage(all[2].oref(), forward(all[1].oref().raw()));
    for r in all {
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

fn programs(server: &RefCell<Fake>) -> (Inside<'_>, Inside<'_>) {
    (Inside::new(server), Inside::new(server))
}

#[test]
fn versions_of_a_class_convert_both_ways_and_keep_what_they_do_not_know() {
    let server = server(14);
    let (older, newer) = programs(&server);
    let part = old::Part { size: 3, label: "bolt".into() };
    let r = older.run(|tx| tx.create(&part)).unwrap();
    let read = |p: &Inside<'_>| p.run(|tx| tx.get(r.cast::<new::Part>())?.to_value());
    assert_eq!(read(&newer), Ok(new::Part { size: 3, label: "bolt".into(), weight: 0 }));
    newer.run(|tx| tx.edit(r.cast::<new::Part>())?.set_weight(9)).unwrap();
    assert_eq!(older.run(|tx| tx.get(r)?.to_value()), Ok(part));
    // The older program changes what it knows; the weight survives it.
    older.run(|tx| tx.edit(r)?.set_label("nut")).unwrap();
    assert_eq!(read(&newer), Ok(new::Part { size: 3, label: "nut".into(), weight: 9 }));
}

#[test]
fn one_program_has_one_type_for_a_class() {
    let server = server(15);
    let p = Inside::new(&server);
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
