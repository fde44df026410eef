//! Transactions inside of the engine's own server, beside its clients, one thing at a time.

use crate::world::things::{Thing, count, make, many, set, small, thing, world};
use crate::world::{self, Indoors, World};
use tercel_engine::error::Error;
use tercel_engine::server::{Input, LocalConfig, ServerConfig, Unread};
use tercel_engine::time::Now;
use tercel_engine::txn::{Begin, Isolation, Options, Port, Step, Tx};
use tercel_wire::id::Stamp;
use tercel_wire::message::Refusal;
use tercel_wire::record::Ref;

/// The value that a program inside of the server reads.
fn inside(p: &Indoors<'_>, r: Ref<Thing>) -> u64 {
    p.run(|tx| Ok(tx.get(r)?.count())).unwrap()
}

#[test]
fn commit_inside_is_answered_and_seen_once_it_is_synced() {
    let w = world(1);
    let r = make(&w, 0, "r", 1);
    let p = w.indoors();
    w.lock().hold.syncs = true;
    let tx = p.begin();
    set(&tx, r, 2).unwrap();
    let Err(Error::Unknown { op: Some(op), .. }) = tx.commit() else { panic!("it was answered unsynced") };
    assert_eq!(inside(&p, r), 1);
    assert_eq!(count(&w, 0, r), 1);
    w.lock().hold.syncs = false;
    assert!(p.resolve(*op).is_ok());
    assert_eq!((inside(&p, r), count(&w, 0, r)), (2, 2));
}

#[test]
fn commit_of_a_client_is_not_seen_inside_before_it_is_synced() {
    let w = world(1);
    let r = make(&w, 0, "r", 1);
    let p = w.indoors();
    w.lock().hold.syncs = true;
    let thread = w.thread(0);
    let tx = Tx::begin(&thread, Isolation::Serializable).unwrap();
    set(&tx, r, 2).unwrap();
    assert!(matches!(tx.commit(), Err(Error::Unknown { op: Some(_), .. })));
    assert_eq!(inside(&p, r), 1);
    // But no transaction commits over it.
    let tx = p.begin();
    set(&tx, r, 3).unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict(_))));
    w.lock().hold.syncs = false;
    w.run_until_idle();
    assert_eq!(inside(&p, r), 2);
}

#[test]
fn transaction_that_read_what_a_client_changed_conflicts_at_its_next_read() {
    let w = world(1);
    let (a, b) = (make(&w, 0, "a", 1), make(&w, 0, "b", 1));
    let p = w.indoors();
    let tx = p.begin();
    assert_eq!(tx.get(a).unwrap().count(), 1);
    w.run(0, |tx| set(tx, a, 2).and(set(tx, b, 2))).unwrap();
    assert!(matches!(tx.get(b).map(|b| b.count()), Err(Error::Conflict(_))));
}

#[test]
fn pages_that_are_not_in_memory_are_waited_for_and_others_are_served_meanwhile() {
    let w = World::new(1, 1, small());
    let all: Vec<Ref<Thing>> = (0..10).flat_map(|_| many(&w, 0, 10, 3_000)).collect();
    let r = make(&w, 0, "r", 5);
    w.run_until_idle();
    w.crash();
    w.restart();
    let p = w.indoors();
    let before = w.lock().node.machine().unwrap().stats().page_reads;
    let sum = |tx: &Tx<'_>| all.iter().try_fold(0, |sum, r| Ok::<_, Error>(sum + tx.get(*r)?.count()));
    assert_eq!(p.run(sum).unwrap(), 10 * (0..10).sum::<u64>());
    assert!(w.lock().node.machine().unwrap().stats().page_reads > before + 16);
    // A read that is stuck keeps no transaction from the pages at hand.
    assert_eq!(count(&w, 0, r), 5);
    w.lock().hold.reads = true;
    assert_eq!(p.run(|tx| tx.get(all[0]).map(|o| o.count())).unwrap_err(), Error::Timeout);
    w.run(0, |tx| set(tx, r, 6)).unwrap();
    w.lock().hold.reads = false;
    assert_eq!((inside(&p, all[0]), count(&w, 0, r)), (0, 6));
}

#[test]
fn unread_page_is_error_inside_and_asked_anew() {
    let w = World::new(1, 1, small());
    let all: Vec<Ref<Thing>> = (0..10).flat_map(|_| many(&w, 0, 10, 3_000)).collect();
    w.run_until_idle();
    w.crash();
    w.restart();
    w.run_until_idle();
    let p = w.indoors();
    w.lock().hold.reads = true;
    let missing = |r: &&Ref<Thing>| p.run(|tx| tx.get(**r).map(|o| o.count())) == Err(Error::Timeout);
    let r = *all.iter().find(missing).expect("a page that is not in memory");
    let view = w.lock().node.machine().unwrap().view();
    let refused = (Unread::Refused("the disk".into()), Error::Unavailable("the disk".into()));
    let damaged = (Unread::Damaged("the page".into()), Error::Corrupt("the page".into()));
    for (unread, expected) in [refused, damaged] {
        assert!(missing(&&r), "it is asked for anew");
        w.lock().server_takes(Input::Read(view, r.oref().page(), Err(unread)));
        let read = p.run(|tx| tx.get(r).map(|o| o.count()));
        assert_eq!(read.unwrap_err(), expected);
    }
    w.lock().hold.reads = false;
    assert!(inside(&p, r) < 10);
}

#[test]
fn another_server_is_another_session() {
    let w = world(1);
    let r = make(&w, 0, "r", 1);
    let p = w.indoors();
    let reserved = p.run(|tx| tx.reserve(&thing(0))).unwrap();
    // What is under way when the server is lost may be done or not, and what was being read is of no state.
    w.lock().hold.syncs = true;
    let (open, tx) = (p.begin(), p.begin());
    assert_eq!(open.get(r).unwrap().count(), 1);
    set(&tx, r, 2).unwrap();
    let Err(Error::Unknown { op: Some(op), .. }) = tx.commit() else { panic!("it was answered unsynced") };
    w.lock().crash(0);
    w.lock().hold.syncs = false;
    w.restart();
    assert_eq!(p.resolve(*op), Err(Refusal::Unknown));
    assert_eq!(inside(&p, r), 1);
    assert!(open.get(r).is_ok(), "nothing has changed since");
    // Its places are the old session's.
    let fill = |tx: &Tx<'_>| tx.fill(reserved, &thing(9));
    assert!(matches!(p.run(fill), Err(Error::PlaceLost(_) | Error::NotFound(_))));
    p.run(|tx| set(tx, r, 7)).unwrap();
    assert_eq!(count(&w, 0, r), 7);
}

#[test]
fn places_of_an_earlier_session_are_given_out_again() {
    let w = world(1);
    make(&w, 0, "r", 1);
    let p = w.indoors();
    p.run(|tx| tx.reserve(&thing(0))).unwrap();
    let granted = |w: &World| w.lock().node.machine().unwrap().stats().ordered;
    assert!(granted(&w) > 0);
    w.run_until_idle();
    w.crash();
    w.restart();
    // The earlier session ends after two keepalives, for no client of its name has come.
    w.pass_ms(2 * 2 * u64::from(ServerConfig::default().keepalive_ms));
    let before = w.lock().history.last().unwrap().stamp;
    p.run(|tx| tx.create(&thing(3))).unwrap();
    assert!(w.lock().history.last().unwrap().stamp > before);
    let ends = w.lock().history.iter().filter(|e| e.kind == END).count();
    assert!(ends >= 1, "the earlier session has ended");
}

/// The entry by which a session ends.
const END: u8 = 9;

#[test]
fn large_transactions_and_many_at_once_are_bounded_as_those_of_clients() {
    let w = world(1);
    let p = w.indoors_with(LocalConfig { transactions_max: 2, ..LocalConfig::default() });
    let (_a, _b) = (p.begin(), p.begin());
    assert!(matches!(Tx::begin(&p, Isolation::Serializable), Err(Error::Full(_))));
    drop((_a, _b));
    // Some megabytes are ordered in pieces, and are there whole.
    let all: Vec<Ref<Thing>> = p
        .run(|tx| {
            (0..1_000).map(|i| tx.create(&Thing { text: "y".repeat(3_000).into(), ..thing(i) })).collect()
        })
        .unwrap();
    let sum = |tx: &Tx<'_>| all.iter().try_fold(0, |sum, r| Ok::<_, Error>(sum + tx.get(*r)?.count()));
    assert_eq!(p.run(sum).unwrap(), 499_500);
    assert_eq!(w.run(0, sum).unwrap(), 499_500);
}

#[test]
fn client_by_the_name_of_the_servers_own_session_is_refused() {
    use tercel_engine::server::Conn;
    use tercel_wire::deframer::Deframer;
    use tercel_wire::frame::{Header, Kind};
    use tercel_wire::message::Hello;
    let w = world(1);
    let p = w.indoors();
    let mut name = None;
    let r = p.run(|tx| tx.create(&thing(1))).unwrap();
    let tx = p.begin();
    set(&tx, r, 2).unwrap();
    w.lock().hold.syncs = true;
    if let Err(Error::Unknown { op: Some(op), .. }) = tx.commit() {
        name = Some(op.client);
    }
    w.lock().hold.syncs = false;
    let conn = Conn(9_999);
    let mut inner = w.lock();
    inner.heard.insert(conn, Vec::new());
    inner.server_takes(Input::Connected(conn, Default::default()));
    let mut body = Vec::new();
    Hello { space: world::SPACE, ..Hello::new(name.expect("an operation of the server's own")) }
        .encode(&mut body);
    let header = Header { body_bytes: body.len() as u32, ..Header::new(Kind::Hello, 0) };
    inner.server_takes(Input::Frame(conn, header, &body));
    let mut heard = Deframer::default();
    heard.push(&inner.heard(conn));
    assert_eq!(heard.next_frame().unwrap().unwrap().0.kind, Kind::Refused);
    drop(inner);
    w.run_until_idle();
    assert_eq!(inside(&p, r), 2);
}

#[test]
fn server_that_does_not_lead_takes_no_transaction() {
    let w = world(0);
    let p = w.indoors();
    // The first entry of its view is not synced yet.
    w.lock().crash(0);
    {
        let mut inner = w.lock();
        let recovery = tercel_engine::server::Recovery::new(ServerConfig::default(), world::SPACE, None, 0);
        let log = inner.node.open(Stamp::ZERO).unwrap().log;
        inner.node.begin_alone(recovery.unwrap(), log, (Now(0), 5), ()).unwrap();
    }
    let begun = Tx::begin(&p, Isolation::Serializable).map(|tx| tx.snapshot());
    assert!(matches!(begun, Err(Error::Unavailable(_))), "{begun:?}");
    let mut visible = Stamp(1);
    p.drive(None, &mut |home, now| {
        let begun = home.begin(now, &mut Begin::new(&Options::default()));
        visible = begun.map_or(Stamp::ZERO, |b| b.map_or(Stamp::ZERO, |b| b.scope.snapshot()));
        Step::Done
    })
    .unwrap();
    assert_eq!(visible, Stamp::ZERO);
}
