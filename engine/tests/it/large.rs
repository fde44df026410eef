//! The server alone, spoken to by hand: large transactions are worked on in slices between which others are
//! served, and what one client asks for does not stand in front of another's.

use crate::world::hand::{self, A, B, Hand, Said, Work, closed, layout, object, refused};
use tercel_engine::limits::CREDIT;
use tercel_engine::replica::entry::{kind, root_head};
use tercel_engine::server::{CollectConfig, Conn, Input, ServerConfig};
use tercel_wire::class;
use tercel_wire::frame::Kind;
use tercel_wire::id::{ClassId, ClientId, OpId, Oref, PageId, Stamp, ViewId};
use tercel_wire::layout::{Layout, Shape};
use tercel_wire::message::*;
use tercel_wire::record::HEADER_BYTES;

fn op(client: u64, slot: u16, seq: u64) -> OpId {
    OpId { client: ClientId(client), slot, seq, view: ViewId::new(1, 7) }
}

/// The outcomes of operations that the server sent on a connection.
fn outcomes(said: &Said, conn: Conn) -> Vec<Outcome> {
    hand::outcomes(said.iter().filter(|(c, ..)| *c == conn))
}

/// As many objects as make a transaction large several times over, 400 a page, and how to write all of them.
const PAGES: u16 = 40;
const EACH: u16 = 400;

fn places(pages: &[PageId]) -> Vec<Oref> {
    pages.iter().flat_map(|p| (0..EACH).map(|slot| Oref::new(*p, slot).unwrap())).collect()
}

fn all<'a>(base: Stamp, places: &[Oref], new: bool, object: &'a [u8]) -> Work<'a> {
    let writes = places.iter().map(|oref| Write { oref: *oref, new, object }).collect();
    Work { base, reads: vec![], writes }
}

/// A server in which A has made many objects, and B one of its own.
fn filled() -> (Hand, ClassId, Vec<Oref>, Oref) {
    let mut h = Hand::storing(ServerConfig::default(), 0);
    let class = h.define(A);
    let places = places(&h.lease(A, PAGES));
    let mine = Oref::new(h.lease(B, 1)[0], 0).unwrap();
    let object = object(class, 1);
    h.commit(B, op(6, 0, 1), &all(Stamp(1), &[mine], true, &object));
    h.commit(A, op(5, 0, 1), &all(Stamp(1), &places, true, &object));
    let (_, slices) = h.finish();
    assert!(slices > 50, "{slices}");
    assert!(matches!(outcomes(&h.sync(), A)[..], [Ok(_)]));
    h.finish();
    h.commit(B, op(6, 0, 2), &all(h.server.visible(), &[mine], false, &object));
    h.sync();
    (h, class, places, mine)
}

#[test]
fn others_are_served_and_commit_between_the_slices_of_a_large_transaction_and_see_none_of_it() {
    let (mut h, class, places, mine) = filled();
    let (two, other) = (object(class, 2), object(class, 3));
    let base = h.server.visible();
    assert_eq!(h.commit(A, op(5, 0, 2), &all(base, &places, false, &two)), []);
    let (mut fetch, mut pieces) = (1, 0);
    // After every slice, B commits, and is answered with the next sync.
    while h.kind() != kind::COMMIT_STAGED {
        h.turn();
        pieces += (h.kind() == kind::STAGE) as u32;
        if h.kind() == kind::COMMIT_STAGED {
            break;
        }
        fetch += 1;
        assert_eq!(h.seen(B, places[fetch as usize % places.len()], fetch), Some(1));
        h.commit(B, op(6, 1, fetch), &all(h.server.visible(), &[mine], false, &other));
        let said = h.sync();
        assert!(matches!(outcomes(&said, B)[..], [Ok(_)]), "{fetch}: {said:?}");
        assert_eq!(outcomes(&said, A), []);
    }
    assert!(fetch > 50 && pieces > 3, "{fetch} slices, {pieces} pieces");
    // It is ordered, and not durable.
    assert_eq!(h.seen(B, places[0], fetch + 1), Some(1));
    assert!(matches!(outcomes(&h.sync(), A)[..], [Ok(_)]));
    for i in [0, 1, places.len() / 2, places.len() - 1] {
        assert_eq!(h.seen(B, places[i], 100_000 + i as u64), Some(2));
    }
    assert_eq!(h.seen(B, mine, 200_000), Some(3));
}

/// The position behind which a reader of the log begins now.
fn reads_behind(h: &mut Hand) -> u64 {
    let said = h.send(B, Kind::FollowLog, |body| FollowLog { after: 0 }.encode(body));
    let answer = said.iter().find(|(_, kind, ..)| *kind == Kind::LogFollowed);
    LogFollowed::decode(&answer.unwrap_or_else(|| panic!("{said:?}")).3).unwrap().position
}

#[test]
fn log_is_read_from_a_commits_first_piece() {
    let (mut h, class, places, mine) = filled();
    let (two, three) = (object(class, 2), object(class, 3));
    h.commit(A, op(5, 0, 2), &all(h.server.visible(), &places, false, &two));
    let mut before = 0;
    while h.kind() != kind::COMMIT_STAGED {
        h.sync();
        if before == 0 && !h.is_staging() {
            assert_eq!(reads_behind(&mut h), h.log.len() as u64);
        }
        let logged = h.log.len() as u64;
        h.turn();
        if before == 0 && h.kind() == kind::STAGE {
            before = logged;
        }
        // On its way, and ordered: with the first piece durable or not.
        if before > 0 {
            assert_eq!(reads_behind(&mut h), before);
        }
    }
    // Another one behind it, and then the end of it durable.
    h.commit(B, op(6, 0, 3), &all(h.server.visible(), &[mine], false, &three));
    assert_eq!(reads_behind(&mut h), before);
    h.sync();
    assert_eq!(reads_behind(&mut h), h.log.len() as u64);
}

#[test]
fn a_commit_that_writes_what_a_large_one_holds_waits_for_it_and_others_do_not() {
    let (mut h, class, places, mine) = filled();
    let (two, three) = (object(class, 2), object(class, 3));
    let base = h.server.visible();
    let read = |oref| Work { base, reads: vec![oref], writes: all(base, &[mine], false, &three).writes };
    let mut reading = all(base, &places[100..], false, &two);
    reading.reads = vec![places[7]];
    h.commit(A, op(5, 0, 2), &reading);
    h.until_ordered();
    assert_eq!(h.kind(), kind::STAGE);
    // A commit waits if it writes an object that the large one writes or has read. A commit that only reads
    // an object that the large one writes goes before it.
    let mut said = h.commit(B, op(6, 1, 1), &all(base, &[places[200]], false, &three));
    said.extend(h.commit(B, op(6, 2, 1), &all(base, &[places[7]], false, &three)));
    assert_eq!((h.kind(), outcomes(&said, B)), (kind::STAGE, vec![]));
    h.commit(B, op(6, 3, 1), &read(places[300]));
    said.extend(h.sync());
    let before = outcomes(&said, B);
    assert!(matches!(before[..], [Ok(_)]), "{before:?}");
    let mut said = h.finish().0;
    said.extend(h.sync());
    // Judged after it: one writes what it wrote, the other what it only read.
    let after = outcomes(&said, B);
    let at = places[200];
    assert!(matches!(after[..], [Ok(_), Err(Refusal::Conflict(oref))] if oref == at), "{after:?}");
    assert!(matches!(outcomes(&said, A)[..], [Ok(_)]));
    assert_eq!((h.seen(B, places[7], 1), h.seen(B, at, 2)), (Some(3), Some(2)));
}

#[test]
fn reader_of_fresh_large_write_conflicts() {
    let (mut h, class, places, mine) = filled();
    let (two, three) = (object(class, 2), object(class, 3));
    let base = h.server.visible();
    h.commit(A, op(5, 0, 2), &all(base, &places, false, &two));
    while h.kind() != kind::COMMIT_STAGED {
        if h.is_busy() {
            h.turn()
        } else {
            h.sync()
        };
    }
    let reads = [places[0], places[places.len() - 1]];
    for (seq, read) in (1..).zip(reads) {
        let writes = all(base, &[mine], false, &three).writes;
        let said = h.commit(B, op(6, seq, 1), &Work { base, reads: vec![read], writes });
        assert_eq!(outcomes(&said, B), []);
    }
    // They are refused once it is visible for what.
    assert_eq!(outcomes(&h.sync(), B), reads.map(|read| Err(Refusal::Conflict(read))));
}

#[test]
fn a_server_that_comes_after_one_that_was_staging_shows_all_of_it_or_nothing() {
    let (mut h, class, places, mine) = filled();
    let (two, three) = (object(class, 2), object(class, 3));
    let before = h.log.len();
    h.commit(A, op(5, 0, 2), &all(h.server.visible(), &places, false, &two));
    h.until_ordered();
    h.commit(B, op(6, 1, 1), &all(h.server.visible(), &[mine], false, &three));
    h.finish();
    assert_eq!(h.kind(), kind::COMMIT_STAGED);
    let whole = h.log.len();
    assert!(whole > before + 5);
    for records in before..=whole {
        let mut next = h.next(records);
        let (seen, others) =
            if records == whole { (2, 3) } else { (1, if records > before + 1 { 3 } else { 1 }) };
        for (fetch, at) in (1..).zip([0, places.len() / 2, places.len() - 1]) {
            assert_eq!(next.seen(B, places[at], fetch), Some(seen), "{records} of {whole}");
        }
        assert_eq!(next.seen(B, mine, 9), Some(others), "{records} of {whole}");
        let outcome = outcomes(&next.resolve(A, op(5, 0, 2)), A);
        assert_eq!(matches!(outcome[..], [Ok(_)]), records == whole, "{outcome:?}");
        // The pieces of one life are nothing to the next.
        let op = OpId { view: next.server.view(), ..op(5, 1, 1) };
        next.commit(A, op, &all(next.server.visible(), &places, false, &three));
        next.finish();
        let mut last = next.next(next.log.len());
        assert_eq!(last.seen(B, places[1], 1), Some(3));
    }
}

#[test]
fn a_large_transaction_whose_client_goes_once_it_is_staged_is_committed_all_the_same() {
    let (mut h, class, places, _) = filled();
    let two = object(class, 2);
    h.commit(A, op(5, 0, 2), &all(h.server.visible(), &places, false, &two));
    h.until_ordered();
    h.input(Input::Disconnected(A));
    h.turn();
    h.sync();
    // Its client comes back and asks, and is told when it is durable.
    h.greet(A, 5, 2);
    assert_eq!(h.resolve(A, op(5, 0, 2)), []);
    // A later operation of the slot is executed later.
    let said = h.commit(A, op(5, 0, 3), &all(h.server.visible(), &places[..1], false, &object(class, 3)));
    assert_eq!((outcomes(&said, A), h.kind()), (vec![], kind::STAGE));
    let mut said = h.finish().0;
    said.extend(h.sync());
    let outcomes = outcomes(&said, A);
    assert!(matches!(outcomes[..], [Ok(_), Err(Refusal::Conflict(_))]), "{outcomes:?}");
    assert_eq!(h.seen(B, places[0], 1), Some(2));
}

#[test]
fn a_large_transaction_that_is_refused_leaves_nothing_behind() {
    let (mut h, class, places, _) = filled();
    h.finish();
    let (two, three) = (object(class, 2), object(class, 3));
    h.send(A, Kind::Define, |o| layout("D").encode(o));
    h.sync();
    let stranger = object(ClassId(class.0 + 1), 2);
    let (base, bytes) = (h.server.visible(), h.stat("mob_bytes"));
    let mut work = all(base, &places, false, &two);
    let last = places[places.len() - 1];
    work.writes.last_mut().unwrap().object = &stranger;
    h.commit(A, op(5, 0, 2), &work);
    let ordered = h.last();
    let (mut said, mut most) = (Said::new(), 0);
    while h.is_busy() {
        said.extend(h.turn());
        most = most.max(h.stat("mob_bytes"));
    }
    assert_eq!(outcomes(&said, A), [Err(Refusal::Invalid(last))]);
    assert!(most == bytes && h.stat("mob_bytes") == bytes, "{bytes}, {most}");
    assert_eq!(h.last(), ordered);
    h.commit(B, op(6, 1, 1), &all(base, &places[..3], false, &three));
    assert!(matches!(outcomes(&h.sync(), B)[..], [Ok(_)]));
    assert_eq!((h.seen(B, places[0], 1), h.seen(B, places[9], 2)), (Some(3), Some(1)));
}

/// A large transaction makes objects smaller, and larger, in pages in which others do so meanwhile.
#[test]
fn page_objects_fit_in_any_commit_order() {
    let mut h = Hand::storing(ServerConfig::default(), 0);
    let layout = Layout::new("T".into(), vec![("t".into(), Shape::Bytes)]);
    h.send(A, Kind::Define, |o| layout.encode(o));
    let said = h.sync();
    let (.., body) = said.iter().find(|(_, k, ..)| *k == Kind::Defined).expect("defined");
    let class = ClassId(u16::from_le_bytes([body[0], body[1]]));
    let object = |bytes: usize, n: u8| {
        let mut o = class.0.to_le_bytes().to_vec();
        o.extend([0, 0, 4, 0]);
        o.extend((bytes as u16).to_le_bytes());
        o.resize(o.len() + bytes, n);
        o
    };
    let pages = h.lease(A, 30);
    let places: Vec<Oref> =
        pages.iter().flat_map(|p| (0..15).map(|slot| Oref::new(*p, slot).unwrap())).collect();
    let full = object(500, 1);
    h.commit(A, op(5, 0, 1), &all(Stamp(1), &places, true, &full));
    h.finish();
    h.sync();
    // Their client goes, so the pages are open to all clients.
    h.input(Input::Disconnected(A));
    h.greet(A, 5, 2);
    let (small, large) = (object(8, 2), object(1_000, 3));
    let base = h.server.visible();
    let (even, odd): (Vec<Oref>, Vec<Oref>) = places.iter().partition(|o| o.slot() % 2 == 0);
    let mut work = all(base, &even, false, &small);
    (0..even.len()).step_by(3).for_each(|i| work.writes[i].object = &large);
    h.commit(A, op(5, 0, 2), &work);
    let (mut i, mut fetch) = (0, 0);
    while h.kind() != kind::COMMIT_STAGED {
        if h.is_busy() {
            h.turn()
        } else {
            h.sync()
        };
        if i < odd.len() {
            let object = if i % 2 == 0 { &large } else { &small };
            h.commit(B, op(6, 1, i as u64 + 1), &all(h.server.visible(), &odd[i..=i], false, object));
            assert!(matches!(outcomes(&h.sync(), B)[..], [Ok(_)]));
            fetch += 1;
            assert!(h.seen(B, odd[i], fetch).is_some(), "{i}");
            i += 1;
        }
    }
    h.sync();
    for (n, oref) in places.iter().enumerate() {
        assert!(h.seen(B, *oref, 1_000 + n as u64).is_some());
    }
}

#[test]
fn a_large_transaction_whose_reads_changed_meanwhile_is_a_conflict_and_leaves_no_trace() {
    let (mut h, class, places, _) = filled();
    let (two, three) = (object(class, 2), object(class, 3));
    let base = h.server.visible();
    h.commit(A, op(5, 0, 2), &all(base, &places, false, &two));
    h.turn();
    h.commit(B, op(6, 1, 1), &all(base, &[places[9]], false, &three));
    h.sync();
    let (said, _) = h.finish();
    assert_eq!(outcomes(&said, A), [Err(Refusal::Conflict(places[9]))]);
    h.sync();
    assert_eq!((h.seen(B, places[9], 1), h.seen(B, places[8], 2)), (Some(3), Some(1)));
}

#[test]
fn a_client_that_goes_in_the_middle_takes_its_large_transaction_along_and_nothing_else() {
    let (mut h, class, places, mine) = filled();
    let (two, three) = (object(class, 2), object(class, 3));
    let base = h.server.visible();
    // At every number of slices, until it is in the log.
    for slices in (0..).step_by(7) {
        h.commit(A, op(5, 0, 2), &all(base, &places, false, &two));
        let before = h.last();
        for _ in 0..slices {
            h.turn();
        }
        if h.last() != before {
            break;
        }
        h.input(Input::Disconnected(A));
        h.finish();
        let said = h.commit(B, op(6, 1, slices as u64 + 1), &all(h.server.visible(), &[mine], false, &three));
        assert_eq!(outcomes(&said, B), []);
        assert!(matches!(outcomes(&h.sync(), B)[..], [Ok(_)]));
        h.finish();
        h.greet(A, 5, slices as u64 + 2);
        assert_eq!(h.seen(B, places[0], slices as u64 + 1), Some(1));
    }
    h.finish();
    assert!(matches!(outcomes(&h.sync(), A)[..], [Ok(_)]));
}

#[test]
fn asking_for_a_large_transaction_that_is_not_in_the_log_yet_spends_it() {
    let (mut h, class, places, _) = filled();
    let two = object(class, 2);
    let base = h.server.visible();
    h.commit(A, op(5, 0, 2), &all(base, &places, false, &two));
    h.turn();
    let said = h.resolve(A, op(5, 0, 2));
    assert_eq!(outcomes(&said, A), [Err(Refusal::NotExecuted)]);
    let (said, _) = h.finish();
    assert_eq!(outcomes(&said, A), []);
    // Once it is in the log, in part, the answer comes when it is committed.
    h.commit(A, op(5, 0, 3), &all(base, &places, false, &two));
    h.until_ordered();
    assert_eq!(h.resolve(A, op(5, 0, 3)), []);
    h.finish();
    assert!(matches!(outcomes(&h.sync(), A)[..], [Ok(_)]));
}

#[test]
fn large_transaction_that_arrives_twice_is_executed_once_and_with_other_bytes_ends_its_connection() {
    let (mut h, class, places, _) = filled();
    let (two, three) = (object(class, 2), object(class, 3));
    let base = h.server.visible();
    let bytes = |object: &[u8]| {
        let mut bytes = Vec::new();
        all(base, &places, false, object).encode(&mut bytes);
        bytes
    };
    // In one message, or in parts of any size: it is the same transaction.
    let send = |h: &mut Hand, conn, bytes: &[u8], part_bytes: usize| {
        let op = op(5, 0, 2);
        let (head, last) = bytes.split_at((bytes.len() - 1) / part_bytes * part_bytes);
        let mut parts = 0;
        for bytes in head.chunks(part_bytes) {
            h.send(conn, Kind::Part, |o| Part { op, index: parts, bytes }.encode(o));
            parts += 1;
        }
        h.send(conn, Kind::Commit, |o| Commit { op, parts, bytes: last }.encode(o))
    };
    send(&mut h, A, &bytes(&two), 50_000);
    h.finish();
    let [Ok(stamp)] = outcomes(&h.sync(), A)[..] else { panic!("it is committed") };
    for part_bytes in [1 << 20, 50_000, 7_000] {
        let said = send(&mut h, A, &bytes(&two), part_bytes);
        assert_eq!(outcomes(&said, A), [Ok(stamp)], "{part_bytes}");
    }
    for (n, part_bytes) in [1 << 20, 50_000].into_iter().enumerate() {
        let conn = Conn(10 + n as u64);
        h.greet(conn, 5, 2 + n as u64);
        assert!(closed(&send(&mut h, conn, &bytes(&three), part_bytes), conn), "{part_bytes}");
    }
    assert_eq!(h.seen(B, places[0], 1), Some(2));
}

#[test]
fn a_large_transaction_that_cannot_be_read_to_its_end_ends_its_connection() {
    let (mut h, class, places, _) = filled();
    let two = object(class, 2);
    let mut bytes = Vec::new();
    all(h.server.visible(), &places, false, &two).encode(&mut bytes);
    let last = bytes.len() - 10;
    bytes[last] = 3;
    h.send(A, Kind::Commit, |o| Commit { op: op(5, 0, 2), parts: 0, bytes: &bytes }.encode(o));
    let (said, _) = h.finish();
    assert!(closed(&said, A));
    assert_eq!(h.seen(B, places[0], 1), Some(1));
}

#[test]
fn request_beyond_grant_is_refused_others_proceed() {
    let mut h = Hand::storing(ServerConfig::default(), 10_000);
    let page = |n: u32| PageId::new(n).unwrap();
    for n in 0..CREDIT as u32 {
        assert_eq!(h.fetch(A, page(100 + n), u64::from(n) + 1), []);
    }
    let (reason, text) = refused(&h.fetch(A, page(5_000), 999)).expect("refused");
    assert_eq!((reason, &*text), (Refusal::FULL, "more requests under way than were granted"));
    // Few of the reads are with the host, and B's is next but for those.
    let out = h.reads.len();
    assert!(out < 20, "{out}");
    assert_eq!(h.fetch(B, page(9_000), 1), []);
    let mut answered = 0;
    while !h.reads.contains(&page(9_000)) {
        let read = h.reads.remove(0);
        h.input(Input::Read(h.view(), read, Ok(None)));
        answered += 1;
    }
    assert!(answered <= 2, "{answered} pages of A came first");
}

#[test]
fn a_client_with_very_many_pages_goes_in_slices_and_one_of_its_name_is_another() {
    let (mut h, class, places, _) = filled();
    for n in 0..20_000 {
        h.fetch(B, PageId::new(1_000 + n).unwrap(), u64::from(n) + 1);
    }
    h.input(Input::Disconnected(B));
    let slices = std::iter::from_fn(|| h.is_busy().then(|| h.turn())).count();
    assert!(slices > 5, "{slices}");
    // Gone in the middle of it, it is back under its name, and hears of what it has now.
    h.greet(B, 6, 2);
    (0..10_000).for_each(|n| _ = h.fetch(B, PageId::new(1_000 + n).unwrap(), u64::from(n) + 1));
    h.fetch(B, places[0].page(), 20_000);
    h.input(Input::Disconnected(B));
    h.greet(B, 6, 3);
    h.fetch(B, places[0].page(), 20_001);
    h.finish();
    let two = object(class, 2);
    h.commit(A, op(5, 0, 2), &all(h.server.visible(), &places[..1], false, &two));
    let said = h.sync();
    assert!(said.iter().any(|(c, k, ..)| *c == B && *k == Kind::Stream));
}

#[test]
fn parts_beyond_what_all_may_have_under_way_are_told_to_come_again() {
    use tercel_engine::limits::{STAGED_BYTES_MAX, TRANSACTION_BYTES_MAX};
    let mut h = Hand::storing(ServerConfig::default(), 0);
    let piece = vec![0; 1 << 20];
    let part = |h: &mut Hand, conn, op, index| {
        let said = h.send(conn, Kind::Part, |o| Part { op, index, bytes: &piece }.encode(o));
        assert_eq!(said, []);
    };
    let each = TRANSACTION_BYTES_MAX >> 20;
    let clients = STAGED_BYTES_MAX / TRANSACTION_BYTES_MAX;
    for client in 0..clients as u64 {
        let conn = Conn(100 + client);
        h.greet(conn, 100 + client, 1);
        (0..each as u32).for_each(|index| part(&mut h, conn, op(100 + client, 0, 1), index));
    }
    // One client more than its share is its own fault; one that finds all taken may try again.
    part(&mut h, A, op(5, 0, 1), 0);
    part(&mut h, Conn(100), op(100, 0, 1), each as u32);
    let end = |h: &mut Hand, conn, op, parts| {
        let said = h.send(conn, Kind::Commit, |o| Commit { op, parts, bytes: b"" }.encode(o));
        outcomes(&said, conn)
    };
    assert_eq!(
        end(&mut h, Conn(100), op(100, 0, 1), each as u32 + 1),
        [Err(Refusal::Full(Limit::Transaction))]
    );
    // That has made room.
    assert_eq!(end(&mut h, A, op(5, 0, 1), 1), [Err(Refusal::Full(Limit::Buffer))]);
    part(&mut h, A, op(5, 0, 2), 0);
    assert_eq!(h.stat("staged_bytes"), STAGED_BYTES_MAX - TRANSACTION_BYTES_MAX + piece.len());
    for client in 0..clients as u64 {
        h.input(Input::Disconnected(Conn(100 + client)));
    }
    assert_eq!(h.stat("staged_bytes"), piece.len());
}

#[test]
fn pages_are_given_back_while_a_large_transaction_of_the_client_is_worked_on() {
    let mut h = Hand::storing(ServerConfig::default(), 0);
    let class = h.define(A);
    let (done, pages) = (h.lease(A, 2), h.lease(A, PAGES));
    let places = places(&pages);
    h.commit(A, op(5, 0, 1), &all(Stamp(1), &places, true, &object(class, 1)));
    h.until_ordered();
    assert_eq!(h.kind(), kind::STAGE);
    let before = h.log.len();
    h.send(A, Kind::Lease, |o| {
        Lease { seq: 3, pages: 1, done: done.iter().map(|page| (*page, 4)).collect() }.encode(o)
    });
    let kinds: Vec<u8> = h.log[before..].iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [kind::GIVE_BACK, kind::GRANT]);
    h.finish();
    assert!(matches!(outcomes(&h.sync(), A)[..], [Ok(_)]));
    let visible = h.server.visible();
    [A, B].into_iter().for_each(|conn| _ = h.acknowledge(conn, visible));
    let again = h.lease(B, 2);
    assert!(again.iter().all(|page| done.contains(page)), "{again:?}");
}

#[test]
fn room_beside_objects_is_not_granted_while_a_large_transaction_may_count_on_it() {
    let collect = CollectConfig { is_automatic: false, grace_ms: 0, ..CollectConfig::default() };
    let mut h = Hand::storing(ServerConfig { collect, ..ServerConfig::default() }, 0);
    let class = h.define(A);
    let page = h.lease(A, 1)[0];
    let (place, small) = (Oref::new(page, 0).unwrap(), object(class, 1));
    let root = root_to(place);
    let writes = vec![
        Write { oref: place, new: true, object: &small },
        Write { oref: class::ROOT_HEAD, new: false, object: &root },
    ];
    h.commit(A, op(5, 0, 1), &Work { base: Stamp(1), reads: vec![], writes });
    h.sync();
    let pages = {
        let said =
            h.send(A, Kind::Lease, |o| Lease { seq: 2, pages: PAGES, done: vec![(page, 1)] }.encode(o));
        assert_eq!(said, []);
        let said = h.sync();
        let (.., body) = said.iter().find(|s| s.1 == Kind::Leased).expect("leased");
        Leased::decode(body).unwrap().pages
    };
    let holes = |h: &mut Hand| {
        let said = h.ask_places(B, 4);
        let (.., body) = said.iter().find(|s| s.1 == Kind::Leased).expect("leased");
        Leased::decode(body).unwrap().holes
    };
    // A dry run frees nothing, and so finds no room.
    h.send(A, Kind::Collect, |o| Collect { is_dry: true }.encode(o));
    h.finish();
    assert_eq!(holes(&mut h), []);
    h.send(A, Kind::Collect, |o| Collect { is_dry: false }.encode(o));
    h.finish();
    h.commit(A, op(5, 0, 2), &all(h.server.visible(), &places(&pages), true, &small));
    h.until_ordered();
    assert_eq!((h.kind(), holes(&mut h)), (kind::STAGE, vec![]));
    h.finish();
    h.sync();
    let found = holes(&mut h);
    assert_eq!((found.len(), found[0].page, found[0].from), (1, page, 1));
}

/// The head of the list of roots, leading to an object.
fn root_to(oref: Oref) -> Vec<u8> {
    let (_, layout) = class::built_in().find(|(id, _)| *id == class::ROOT).unwrap();
    let at = HEADER_BYTES + layout.field("target").unwrap().at;
    let mut head = root_head();
    head[at..at + 4].copy_from_slice(&oref.raw().to_le_bytes());
    head
}
