//! One server, a few clients, one thing at a time.

use crate::world::things::{Thing, count, grow, make, many, promise, set, small, text, thing, world};
use crate::world::{SPACE, World};
use tercel_engine::client::Input as ClientInput;
use tercel_engine::error::{Bound, Contended, Error};
use tercel_engine::limits::{CLIENTS_MAX, LAST_WRITES_MAX};
use tercel_engine::server::{Conn, Input, ServerConfig};
use tercel_engine::txn::{Isolation, Tx, try_run};
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{ClientId, OP_SLOTS_MAX, OpId};
use tercel_wire::message::{Commit, CommitEffects, Hello, Refusal};
use tercel_wire::page::PAGE_BYTES;
use tercel_wire::record::Ref;

#[test]
fn a_commit_is_seen_by_others_once_it_is_synced_and_not_before() {
    let w = world(2);
    let r = make(&w, 0, "r", 1);
    assert_eq!(count(&w, 1, r), 1);
    let port = w.thread(0);
    w.lock().hold.syncs = true;
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    set(&tx, r, 2).unwrap();
    assert!(matches!(tx.commit(), Err(Error::Unknown { op: Some(_), .. })));
    w.run_until_idle();
    assert_eq!(count(&w, 1, r), 1);
    w.lock().hold.syncs = false;
    w.run_until_idle();
    assert_eq!(count(&w, 1, r), 2);
    assert_eq!(count(&w, 0, r), 2);
}

#[test]
fn what_was_replaced_unread_is_read_back_also_where_the_cache_has_the_old_one() {
    let w = world(1);
    let all: Vec<Ref<Thing>> = (0..3).map(|i| make(&w, 0, &format!("r{i}"), i)).collect();
    let port = w.thread(0);
    let writer = Tx::begin(&port, Isolation::Serializable).unwrap();
    writer.replace(all[1], &thing(9)).unwrap();
    // Another transaction brings the old ones into the cache, where the first would find them.
    let reader = Tx::begin(&port, Isolation::Serializable).unwrap();
    let counts = |tx: &Tx<'_>| all.iter().map(|r| tx.get(*r).unwrap().count()).collect::<Vec<_>>();
    assert_eq!(counts(&reader), [0, 1, 2]);
    assert_eq!(counts(&writer), [0, 9, 2]);
    writer.commit().unwrap();
    assert_eq!(count(&w, 0, all[1]), 9);
}

#[test]
fn two_that_change_the_same_conflict_and_the_second_runs_again() {
    let w = world(2);
    let r = make(&w, 0, "r", 1);
    let (a, b) = (w.thread(0), w.thread(1));
    let (first, second) =
        (Tx::begin(&a, Isolation::Serializable).unwrap(), Tx::begin(&b, Isolation::Serializable).unwrap());
    for tx in [&first, &second] {
        let n = tx.get(r).unwrap().count();
        set(tx, r, n + 1).unwrap();
    }
    first.commit().unwrap();
    let refused = second.commit().unwrap_err();
    let over = Contended { object: r.oref(), class: Some("Thing".into()) };
    assert_eq!(refused, Error::Conflict(Some(Box::new(over))));
    assert!(refused.to_string().contains(&format!("object {} (Thing)", r.oref())), "{refused}");
    w.run(1, |tx| set(tx, r, tx.get(r)?.count() + 1)).unwrap();
    assert_eq!(count(&w, 0, r), 3);
}

/// An error of a program's own.
#[derive(Debug, PartialEq)]
enum ProgramError {
    Space(Error),
    Enough,
}

impl From<Error> for ProgramError {
    fn from(e: Error) -> ProgramError {
        ProgramError::Space(e)
    }
}

#[test]
fn a_body_aborts_with_an_error_of_its_own() {
    let w = world(1);
    let r = make(&w, 0, "r", 1);
    let mut attempts = 0;
    let answer: Result<(), ProgramError> = try_run(&w.thread(0), Isolation::Serializable, |tx| {
        attempts += 1;
        set(tx, r, 2)?;
        Err(ProgramError::Enough)
    });
    assert_eq!((answer, attempts), (Err(ProgramError::Enough), 1));
    assert_eq!(count(&w, 0, r), 1);
}

#[test]
fn a_conflict_runs_again_also_when_the_body_made_an_error_of_its_own_of_it() {
    let w = world(2);
    let (x, y) = (make(&w, 0, "x", 1), make(&w, 0, "y", 1));
    count(&w, 1, x);
    let mut attempts = 0;
    let seen: Result<_, ProgramError> = try_run(&w.thread(1), Isolation::Serializable, |tx| {
        attempts += 1;
        let of_x = tx.get(x)?.count();
        if attempts == 1 {
            w.run(0, |tx| [x, y].iter().try_for_each(|r| set(tx, *r, 2)))?;
            w.run_until_idle();
        }
        let of_y = tx.get(y).map_err(|_| ProgramError::Enough)?.count();
        Ok((of_x, of_y))
    });
    assert_eq!((seen, attempts), (Ok((2, 2)), 2));
}

#[test]
fn a_commit_that_conflicts_runs_again_whatever_the_errors_of_the_body() {
    let w = world(2);
    let r = make(&w, 0, "r", 1);
    let mut attempts = 0;
    let done: Result<(), ProgramError> = try_run(&w.thread(1), Isolation::Serializable, |tx| {
        attempts += 1;
        let n = tx.get(r)?.count();
        if attempts == 1 {
            w.run(0, |tx| set(tx, r, 10))?;
        }
        Ok(set(tx, r, n + 1)?)
    });
    assert_eq!((done, attempts), (Ok(()), 2));
    assert_eq!(count(&w, 0, r), 11);
}

#[test]
fn a_reader_never_sees_half_of_a_commit() {
    let w = world(2);
    let (x, y) = (make(&w, 0, "x", 1), make(&w, 0, "y", 1));
    count(&w, 1, x);
    let port = w.thread(1);
    let reader = Tx::begin(&port, Isolation::Serializable).unwrap();
    assert_eq!(reader.get(x).unwrap().count(), 1);
    w.run(0, |tx| {
        set(tx, x, 2)?;
        set(tx, y, 2)
    })
    .unwrap();
    w.run_until_idle();
    assert!(matches!(reader.get(y).err(), Some(Error::Conflict(_))));
}

#[test]
fn that_there_is_nothing_is_a_read_like_any_other() {
    let w = world(2);
    let flag = make(&w, 0, "flag", 0);
    let unborn = promise(&w, 0);
    count(&w, 1, flag);
    let port = w.thread(1);
    let reader = Tx::begin(&port, Isolation::Serializable).unwrap();
    assert!(reader.find(unborn).unwrap().is_none());
    w.run(0, |tx| {
        tx.fill(unborn, &thing(5))?;
        set(tx, flag, 1)
    })
    .unwrap();
    w.run_until_idle();
    assert!(matches!(reader.get(flag).err(), Some(Error::Conflict(_))));
    drop(reader);
    assert_eq!(count(&w, 1, unborn), 5);
}

#[test]
fn unused_absence_answer_expires() {
    let w = world(2);
    let flag = make(&w, 0, "flag", 0);
    let unborn = w.run(0, |tx| tx.reserve(&thing(0))).unwrap();
    count(&w, 1, flag);
    // Client 1 asks. The answer comes, and the object is made before a transaction looks at the answer.
    w.lock().patience = 1;
    assert!(w.run(1, |tx| Ok(tx.find(unborn)?.is_some())).is_err());
    w.run_until_idle();
    w.lock().patience = 1_000;
    w.run(0, |tx| {
        tx.fill(unborn, &thing(5))?;
        set(tx, flag, 1)
    })
    .unwrap();
    w.run_until_idle();
    let seen = w.run(1, |tx| Ok((tx.find(unborn)?.is_some(), tx.get(flag)?.count()))).unwrap();
    assert_eq!(seen, (true, 1));
}

#[test]
fn damaged_page_proves_no_absence() {
    let w = world(2).with_meanwhile(|w| {
        w.lock().hold.down = Some(1);
        w.run_until_idle();
        w.lock().damage_down(1, 1);
        w.lock().hold.down = None;
        w.run_until_idle();
    });
    let (other, unborn) = w.run(0, |tx| Ok((tx.create(&thing(1))?, tx.reserve(&thing(0))?))).unwrap();
    // Client 1 has the page without the object that is then made in it.
    assert_eq!(count(&w, 1, other), 1);
    w.run(0, |tx| tx.fill(unborn, &thing(5))).unwrap();
    w.run_until_idle();
    w.lock().chaos.meanwhile = 1;
    let seen = w.run(1, |tx| Ok(tx.find(unborn)?.is_some()));
    assert!(matches!(seen, Err(Error::Corrupt(_))), "{seen:?}");
    w.lock().chaos.meanwhile = 0;
    assert_eq!(count(&w, 1, unborn), 5);
}

#[test]
fn an_answer_about_another_page_ends_the_connection_and_not_the_hope() {
    // The reply's body, which has no checksum but the page's own, begins with the page's number.
    const BODY_BYTES: usize = 8 + PAGE_BYTES;
    let w = world(2).with_meanwhile(|w| {
        w.lock().hold.down = Some(1);
        w.run_until_idle();
        w.lock().damage_down(1, BODY_BYTES);
        w.lock().hold.down = None;
        w.lock().chaos.meanwhile = 0;
        w.run_until_idle();
    });
    let r = make(&w, 0, "r", 5);
    w.run_until_idle();
    let connections = w.lock().clients[1].stats().connections;
    w.lock().chaos.meanwhile = 1;
    assert_eq!(w.run(1, |tx| Ok(tx.get(r)?.count())), Ok(5));
    assert_eq!(w.lock().clients[1].stats().connections, connections + 1);
}

#[test]
fn a_cut_costs_nothing_that_is_cached_and_what_changed_meanwhile_is_caught_up_with() {
    let w = world(2);
    let (x, y) = (make(&w, 0, "x", 1), make(&w, 0, "y", 1));
    assert_eq!((count(&w, 1, x), count(&w, 1, y)), (1, 1));
    let pages = w.lock().clients[1].stats().pages;
    w.lock().hold.connects = true;
    w.cut(1);
    w.run(0, |tx| set(tx, x, 2)).unwrap();
    w.lock().hold.connects = false;
    w.run_until_idle();
    assert_eq!(count(&w, 1, y), 1);
    assert_eq!(count(&w, 1, x), 2);
    // x and y are in one page: it came once more, for x.
    assert_eq!(w.lock().clients[1].stats().pages, pages + 1);
}

#[test]
fn after_a_crash_what_was_acknowledged_is_there_and_what_was_not_is_executed_once() {
    for survives in [0, 1] {
        let w = world(2);
        let r = make(&w, 0, "r", 1);
        let port = w.thread(0);
        w.lock().hold.syncs = true;
        w.lock().patience = 100;
        let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
        set(&tx, r, tx.get(r).unwrap().count() + 1).unwrap();
        let Err(Error::Unknown { op: Some(op), .. }) = tx.commit() else { panic!("it is not synced") };
        let view = w.lock().clients[0].view();
        w.lock().crash(survives);
        w.lock().hold.syncs = false;
        w.restart();
        w.run_until_idle();
        let outcome = w.resolve(0, *op);
        assert_eq!(outcome.is_ok(), survives == 1, "{outcome:?}");
        assert_ne!(w.lock().clients[0].view(), view);
        if survives == 0 {
            w.run(0, |tx| set(tx, r, tx.get(r)?.count() + 1)).unwrap();
        }
        assert_eq!((count(&w, 0, r), count(&w, 1, r)), (2, 2));
    }
}

#[test]
fn a_lost_answer_is_asked_for_and_nothing_is_done_twice() {
    let w = world(2);
    let r = make(&w, 0, "r", 1);
    w.lock().patience = 50;
    let port = w.thread(0);
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    set(&tx, r, 2).unwrap();
    w.lock().hold.down = Some(0);
    let Err(Error::Unknown { op: Some(op), .. }) = tx.commit() else { panic!("the answer is held") };
    w.cut(0);
    w.lock().hold.down = None;
    w.run_until_idle();
    assert!(w.resolve(0, *op).is_ok());
    assert_eq!((count(&w, 0, r), count(&w, 1, r)), (2, 2));
}

/// Sets a number in a commit that is executed and whose answer is lost: the operation that the time-out
/// names.
fn set_without_hearing(w: &World, r: Ref<Thing>, count: u64) -> OpId {
    let port = w.thread(0);
    w.lock().patience = 50;
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    set(&tx, r, count).unwrap();
    w.lock().hold.down = Some(0);
    let Err(Error::Unknown { op: Some(op), .. }) = tx.commit() else { panic!("the answer is held") };
    w.lock().hold.connects = true;
    w.cut(0);
    w.lock().hold.down = None;
    w.run_until_idle();
    *op
}

#[test]
fn the_outcome_of_an_operation_is_known_until_others_follow_it_and_then_it_is_said_to_be_forgotten() {
    let w = world(1);
    let r = make(&w, 0, "r", 1);
    let op = set_without_hearing(&w, r, 2);
    w.lock().hold.connects = false;
    // However often it is asked for.
    for _ in 0..3 {
        assert!(w.resolve(0, op).is_ok());
    }
    w.run(0, |tx| set(tx, r, 3)).unwrap();
    assert_eq!(w.resolve(0, op), Err(Refusal::Unknown));
    w.crash();
    w.restart();
    assert_eq!(w.resolve(0, op), Err(Refusal::Unknown));
    assert_eq!(count(&w, 0, r), 3);
}

#[test]
fn an_operation_of_a_client_that_was_silent_while_thousands_came_is_said_to_be_forgotten() {
    let w = world(1);
    let r = make(&w, 0, "r", 1);
    let op = set_without_hearing(&w, r, 2);
    for n in 1..=CLIENTS_MAX as u64 {
        commit_as_another(&w, n);
    }
    w.lock().hold.connects = false;
    w.run_until_idle();
    assert_eq!(w.resolve(0, op), Err(Refusal::Unknown));
    // It was executed, once, and the client is there again, as another.
    assert_eq!(count(&w, 0, r), 2);
    w.run(0, |tx| set(tx, r, 3)).unwrap();
    assert_eq!(count(&w, 0, r), 3);
}

/// A client that connects, commits and goes; its answers are not read.
fn commit_as_another(w: &World, n: u64) {
    let (client, conn) = (ClientId(1_000_000 + n), Conn(1_000_000 + n));
    let hello = Hello { space: SPACE, ..Hello::new(client) };
    let base = w.lock().node.machine().unwrap().visible();
    let view = w.lock().clients[0].view();
    let mut work = Vec::new();
    CommitEffects { base, reads: vec![], writes: vec![] }.encode(&mut work);
    let mut bodies = [(Kind::Hello, Vec::new()), (Kind::Commit, Vec::new())];
    hello.encode(&mut bodies[0].1);
    let op = OpId { client, slot: 0, seq: 1, view };
    Commit { op, parts: 0, bytes: &work }.encode(&mut bodies[1].1);
    let mut inner = w.lock();
    inner.server_takes(Input::Connected(conn, Default::default()));
    for (kind, body) in &bodies {
        let header = Header { body_bytes: body.len() as u32, ..Header::new(*kind, 1) };
        inner.server_takes(Input::Frame(conn, header, body));
    }
    inner.server_takes(Input::Disconnected(conn));
    drop(inner);
    w.run_until_idle();
}

#[test]
fn a_commit_that_is_on_its_way_when_the_connection_goes_is_unknown_and_not_unavailable() {
    let w = world(1).with_meanwhile(|w| {
        let mut inner = w.lock();
        if inner.clients[0].availability().is_some() {
            inner.hold.connects = true;
            drop(inner);
            w.cut(0);
        }
    });
    let r = make(&w, 0, "r", 1);
    let port = w.thread(0);
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    set(&tx, r, 2).unwrap();
    w.lock().patience = 50;
    w.lock().chaos.meanwhile = 1;
    let Err(Error::Unknown { op: Some(op), .. }) = tx.commit() else { panic!("the connection was cut") };
    w.lock().chaos.meanwhile = 0;
    w.lock().hold.connects = false;
    w.run_until_idle();
    let executed = w.resolve(0, *op).is_ok();
    assert_eq!(count(&w, 0, r), if executed { 2 } else { 1 });
}

#[test]
fn abandoned_commits_return_their_slots() {
    let w = world(1);
    let r = make(&w, 0, "r", 0);
    let port = w.thread(0);
    w.lock().patience = 30;
    for _ in 0..OP_SLOTS_MAX as u64 + 100 {
        w.lock().hold.syncs = true;
        let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
        set(&tx, r, 1).unwrap();
        assert!(matches!(tx.commit(), Err(Error::Unknown { op: Some(_), .. })));
        w.lock().hold.syncs = false;
        w.run_until_idle();
    }
    w.lock().patience = 1_000;
    w.run(0, |tx| set(tx, r, 2)).unwrap();
    assert_eq!(count(&w, 0, r), 2);
}

#[test]
fn a_large_transaction_arrives_in_parts_and_is_whole() {
    let w = world(2);
    // 12 MB: some 48 parts, and more pages than a client is given at a time.
    let all = many(&w, 0, 3_000, 3_900);
    for i in [0, 1, 1_499, 2_999] {
        assert_eq!((count(&w, 1, all[i]), text(&w, 1, all[i])), (i as u64, 3_900));
    }
    w.crash();
    w.restart();
    w.run_until_idle();
    assert_eq!(text(&w, 1, all[2_000]), 3_900);
}

#[test]
fn recovery_goes_on_from_a_checkpoint_when_the_log_before_it_is_gone() {
    let w = World::new(1, 2, small());
    let mut all: Vec<Ref<Thing>> = Vec::new();
    for _ in 0..60 {
        all.extend(many(&w, 0, 10, 1_000));
    }
    w.run_until_idle();
    let (truncated, checkpoint) = {
        let inner = w.lock();
        (inner.counts.truncated, inner.node.disk.checkpoint.is_some())
    };
    assert!(checkpoint && truncated.0 > 1, "the log is truncated to {truncated}");
    w.crash();
    w.restart();
    w.run_until_idle();
    for (i, r) in all.iter().enumerate() {
        assert_eq!(count(&w, 1, *r), i as u64 % 10);
    }
    grow(&w, 0, all[7], 2_000);
    assert_eq!(text(&w, 1, all[7]), 2_000);
}

#[test]
fn a_full_buffer_delays_commits_and_does_not_refuse_them() {
    let w = World::new(1, 1, small());
    w.lock().hold.installs = true;
    let mut done = 0;
    w.lock().patience = 200;
    let port = w.thread(0);
    let stuck = loop {
        let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
        tx.create(&Thing { text: "x".repeat(3_000).into(), ..thing(1) }).unwrap();
        match tx.commit() {
            Ok(_) => done += 1,
            Err(e) => break e,
        }
    };
    assert!(done > 5 && matches!(stuck, Error::Unknown { op: Some(_), .. }), "{stuck} after {done}");
    w.lock().hold.installs = false;
    w.run_until_idle();
    let Error::Unknown { op: Some(op), .. } = stuck else { panic!() };
    assert!(w.resolve(0, *op).is_ok());
    many(&w, 0, 10, 3_000);
}

#[test]
fn a_commit_that_waits_for_room_makes_the_server_make_some() {
    let w = World::new(1, 1, small());
    // Too little to be installed for its own sake, and too much for what comes next.
    many(&w, 0, 4, 3_000);
    let next = many(&w, 0, 18, 3_000);
    assert_eq!(count(&w, 0, next[17]), 17);
}

#[test]
fn a_transaction_larger_than_the_buffer_is_told_so() {
    let w = World::new(1, 1, small());
    let e = w.run(0, |tx| {
        (0..40)
            .map(|i| tx.create(&Thing { text: "x".repeat(3_000).into(), ..thing(i) }))
            .collect::<Result<Vec<_>, _>>()
    });
    assert!(matches!(&e, Err(Error::Full(Bound::Transaction | Bound::Writes { .. }))), "{e:?}");
}

#[test]
fn a_transaction_that_touches_more_pages_than_the_server_can_hold_is_told_so() {
    let w = World::new(1, 1, ServerConfig { mob_bytes: 16 << 20, ..small() });
    let all = many(&w, 0, 60, 3_900);
    w.crash();
    w.restart();
    w.run_until_idle();
    let touch = |n: usize| w.run(0, |tx| all[..n].iter().try_for_each(|r| set(tx, *r, 9)));
    assert_eq!(touch(12), Ok(()));
    assert!(matches!(touch(60), Err(Error::Full(Bound::Transaction))));
}

#[test]
fn a_page_that_was_read_before_it_was_stored_is_read_again() {
    let w = World::new(1, 2, small());
    let all = many(&w, 0, 6, 600);
    w.run_until_idle();
    // Stored once, at 600 bytes; then changed, and the change on its way to the store.
    many(&w, 0, 20, 3_000);
    w.run_until_idle();
    w.run(0, |tx| all.iter().try_for_each(|r| set(tx, *r, 50))).unwrap();
    w.lock().hold.installs = true;
    w.lock().patience = 100;
    let _ = w.run(0, |tx| {
        (0..10)
            .map(|i| tx.create(&Thing { text: "x".repeat(3_000).into(), ..thing(i) }))
            .collect::<Result<Vec<_>, _>>()
    });
    // The server's own copies of the pages go, and the store is asked for them before the change is there.
    for page in 20..60 {
        w.lock().ask_for(1, page);
        w.run_until_idle();
    }
    w.lock().hold.read_words = true;
    for page in 1..20 {
        w.lock().ask_for(1, page);
        w.run_until_idle();
    }
    w.lock().hold.installs = false;
    w.run_until_idle();
    w.lock().hold.read_words = false;
    w.run_until_idle();
    w.lock().patience = 10_000;
    let fresh = w.add_client(5, 512 << 10);
    for r in &all {
        assert_eq!(count(&w, fresh, *r), 50);
    }
}

#[test]
fn base_below_floor_is_too_old() {
    let w = world(2);
    let (x, y) = (make(&w, 0, "x", 1), make(&w, 0, "y", 1));
    count(&w, 1, x);
    // A long transaction, and a client that does not hear of the time that passes.
    let port = w.thread(1);
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    set(&tx, x, 5).unwrap();
    for _ in 0..LAST_WRITES_MAX / 5_000 + 2 {
        many(&w, 0, 5_000, 8);
    }
    assert!(matches!(tx.commit(), Err(Error::Conflict(_))));
    assert!(w.lock().node.machine().unwrap().stats().conflicts > 0);
    w.run(1, |tx| set(tx, x, 6)).unwrap();
    assert_eq!((count(&w, 0, x), count(&w, 0, y)), (6, 1));
}

#[test]
fn idle_client_of_busy_server_stays_connected() {
    let w = world(2);
    let r = make(&w, 0, "r", 0);
    count(&w, 1, r);
    for i in 0..200 {
        w.run(0, |tx| set(tx, r, i)).unwrap();
        w.pass_ms(50);
    }
    assert_eq!(count(&w, 1, r), 199);
    assert_eq!(w.lock().clients[1].stats().connections, 1);
}

#[test]
fn a_busy_server_looks_after_the_silent() {
    let w = world(2);
    let r = make(&w, 0, "r", 0);
    count(&w, 1, r);
    w.lock().hold.up = Some(1);
    // Something arrives all the time, more often than the server looks at its clock when nothing does.
    for i in 0..700 {
        w.run(0, |tx| set(tx, r, i)).unwrap();
        w.lock().pass(10_000);
    }
    assert!(w.lock().clients[1].stats().connections > 1, "the silent one was shown out");
}

#[test]
fn unanswered_greeting_ends() {
    let w = world(1);
    w.lock().hold.up = Some(0);
    w.run_until_idle();
    assert!(w.lock().clients[0].availability().is_none() && !w.lock().clients[0].wants_connection());
    w.lock().hold.connects = true;
    w.lock().node.running = None;
    for _ in 0..50 {
        w.lock().pass(100_000);
    }
    assert!(w.lock().clients[0].wants_connection());
}

#[test]
fn server_that_falls_silent_while_catalogues_are_compared_is_given_up() {
    let w = world(1);
    let r = make(&w, 0, "r", 1);
    w.run_until_idle();
    let old = w.lock().node.disk.clone();
    w.run(0, |tx| set(tx, r, 2)).unwrap();
    w.crash();
    w.lock().node.disk = old;
    // The client hears that the history is another, greets as another client, and is welcomed; its question
    // for the catalogue never arrives.
    w.lock().hold.down = Some(0);
    w.restart();
    w.run_until_idle();
    let held = [(Some(0), None), (None, Some(0)), (Some(0), None)];
    for (up, down) in held {
        (w.lock().hold.up, w.lock().hold.down) = (up, down);
        w.run_until_idle();
    }
    let view = w.lock().clients[0].view();
    assert_eq!(view, w.lock().node.machine().unwrap().view(), "it is welcomed");
    assert!(w.lock().clients[0].availability().is_none() && !w.lock().clients[0].wants_connection());
    w.lock().hold.connects = true;
    w.lock().node.running = None;
    let pass_3_s = || (0..30).for_each(|_| w.lock().pass(100_000));
    pass_3_s();
    // Taking what is sent to it is as good as an answer, and puts the end off by two keepalives.
    let now = w.lock().now;
    w.lock().clients[0].handle(now, ClientInput::Taken);
    pass_3_s();
    assert!(!w.lock().clients[0].wants_connection());
    pass_3_s();
    assert!(w.lock().clients[0].wants_connection());
}

#[test]
fn pages_are_given_back_when_the_server_asks_and_nothing_is_missed() {
    let w = World::new(1, 2, ServerConfig { subscriptions_max: 6, ..ServerConfig::default() });
    let all = many(&w, 0, 40, 3_900);
    for round in 0..3 {
        for r in &all {
            count(&w, 1, *r);
        }
        w.run(0, |tx| all.iter().try_for_each(|r| set(tx, *r, 100 + round))).unwrap();
        w.run_until_idle();
        for r in &all {
            assert_eq!(count(&w, 1, *r), 100 + round);
        }
    }
    let stats = w.lock().node.machine().unwrap().stats();
    assert!(stats.revocations > 40, "{stats:?}");
    assert_eq!(w.lock().clients[1].stats().connections, 1);
}

#[test]
fn of_a_directory_that_was_put_back_a_client_believes_nothing_that_it_had() {
    let w = world(1);
    let r = make(&w, 0, "r", 1);
    let old = w.lock().node.disk.clone();
    grow(&w, 0, r, 100);
    w.run(0, |tx| set(tx, r, 2)).unwrap();
    grow(&w, 0, r, 200);
    w.crash();
    w.lock().node.disk = old;
    w.restart();
    w.run_until_idle();
    // It is another client from now on, with what the directory has.
    assert_eq!(w.run(0, |tx| Ok(tx.get(r)?.count())), Ok(1));
    w.run(0, |tx| set(tx, r, 3)).unwrap();
    assert_eq!(w.run(0, |tx| Ok(tx.get(r)?.count())), Ok(3));
}

#[test]
fn a_transaction_that_began_in_another_history_is_a_conflict() {
    let w = world(1);
    let (r, other) = (make(&w, 0, "r", 1), make(&w, 0, "other", 1));
    w.run_until_idle();
    let old = w.lock().node.disk.clone();
    w.run(0, |tx| set(tx, r, 2)).unwrap();
    let port = w.thread(0);
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    assert_eq!(tx.get(r).unwrap().count(), 2);
    let writer = Tx::begin(&port, Isolation::Serializable).unwrap();
    writer.edit(other).unwrap().set_count(writer.get(r).unwrap().count()).unwrap();
    w.crash();
    w.lock().node.disk = old;
    w.restart();
    w.run_until_idle();
    // Stamps of the one history say nothing in the other, even once they are equal.
    for _ in 0..3 {
        w.run(0, |tx| set(tx, other, 7)).unwrap();
    }
    assert!(matches!(tx.get(other).err(), Some(Error::Conflict(_))));
    assert!(matches!(writer.commit(), Err(Error::Conflict(_))));
    assert_eq!(w.run(0, |tx| Ok((tx.get(r)?.count(), tx.get(other)?.count()))), Ok((1, 7)));
}

#[test]
fn a_transaction_that_reads_more_pages_than_a_client_may_have_is_told_so() {
    let w = World::new(1, 2, ServerConfig { subscriptions_max: 8, ..ServerConfig::default() });
    // Two a page.
    let all = many(&w, 0, 60, 3_500);
    let other = make(&w, 0, "other", 0);
    let read = |n: usize| {
        w.run(1, |tx| {
            all[..n].iter().try_fold(0, |sum, r| {
                let sum = sum + tx.get(*r)?.count();
                // What others do meanwhile has nothing to do with it.
                w.run(0, |tx| set(tx, other, sum))?;
                Ok(sum)
            })
        })
    };
    let read_all = read(60);
    assert!(matches!(read_all, Err(Error::Full(Bound::Subscriptions))), "{read_all:?}");
    assert_eq!(read(6), Ok(15));
}

#[test]
fn a_space_has_as_many_roots_as_it_may_and_no_more() {
    let w = world(1);
    let r = make(&w, 0, "root 0", 7);
    w.run(0, |tx| (1..1_024).try_for_each(|n| tx.set_root(&format!("root {n}"), r))).unwrap();
    assert_eq!(w.run(0, |tx| Ok(tx.roots()?.len())), Ok(1_024));
    assert_eq!(w.run(0, |tx| tx.get_root_ref::<Thing>("absent")), Ok(None));
    assert_eq!(w.run(0, |tx| tx.get_root_ref::<Thing>("root 0")), Ok(Some(r)));
    let more = w.run(0, |tx| tx.set_root("one more", r));
    assert!(matches!(&more, Err(Error::Full(Bound::Roots { max: 1_024 }))), "{more:?}");
    w.run(0, |tx| tx.set_root("root 5", r)).unwrap();
    assert_eq!(w.run(0, |tx| Ok(tx.roots()?.len())), Ok(1_024));
}
