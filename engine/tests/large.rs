//! The server alone, spoken to by hand: large transactions are worked on in slices between which others are served, and
//! what one client asks for does not stand in front of another's.

use tercel_engine::limits::CREDIT;
use tercel_engine::server::{Conn, Effect, Effects, Input, Recovery, Server, ServerConfig};
use tercel_engine::time::Now;
use tercel_wire::frame::{Deframer, Header, Kind};
use tercel_wire::id::{ClassId, ClientId, Epoch, OpId, Oref, PageId, SpaceId, Stamp};
use tercel_wire::layout::{Layout, Shape};
use tercel_wire::message::*;
use tercel_wire::page::Page;
use tercel_wire::schema::Scalar;

type Work<'a> = tercel_wire::message::Effects<'a>;

/// What the server said: to whom, what, with which call.
type Said = Vec<(Conn, Kind, u64, Vec<u8>)>;

const A: Conn = Conn(1);
const B: Conn = Conn(2);

struct Hand {
    server: Server,
    now: Now,
    last: Stamp,
    reads: Vec<PageId>,
}

impl Hand {
    /// A server whose store may have pages up to `stored_end`, with two clients.
    fn new(config: ServerConfig, stored_end: u32) -> Hand {
        let mut out = Effects::default();
        let recovery = Recovery::new(config, SpaceId(1), None, stored_end).unwrap();
        let server = recovery.finish(Now(0), &mut out).unwrap();
        let mut hand = Hand { server, now: Now(1_000_000), last: Stamp::ZERO, reads: Vec::new() };
        hand.take(out);
        hand.sync();
        for (conn, client) in [(A, 5), (B, 6)] {
            hand.input(Input::Connected(conn));
            let hello = Hello {
                client: ClientId(client),
                connection: 1,
                version_min: 1,
                version_max: 1,
                space: SpaceId(0),
                resume: None,
            };
            hand.send(conn, Kind::Hello, |o| hello.encode(o));
        }
        hand
    }

    fn take(&mut self, out: Effects) -> Said {
        let mut said = Said::new();
        for effect in out.list {
            match effect {
                Effect::Send(conn, bytes) => {
                    let mut d = Deframer::default();
                    d.push(&bytes);
                    while let Some((h, body)) = d.next_frame().unwrap() {
                        said.push((conn, h.kind, h.call, body.to_vec()));
                    }
                }
                Effect::Close(conn) => said.push((conn, Kind::Bye, 0, vec![])),
                Effect::Log { stamp, .. } => self.last = stamp,
                Effect::Read(page) => self.reads.push(page),
                Effect::Install { .. } | Effect::Truncate(_) => {}
                Effect::Pin(_) | Effect::ReadPinned { .. } | Effect::Unpin(_) => {}
                Effect::Stop(why) => panic!("{why}"),
            }
        }
        said
    }

    fn input(&mut self, input: Input<'_>) -> Said {
        let mut out = Effects::default();
        self.server.handle(self.now, input, &mut out);
        self.take(out)
    }

    fn sync(&mut self) -> Said {
        self.input(Input::Synced(self.last))
    }

    fn send(&mut self, conn: Conn, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) -> Said {
        let mut body = Vec::new();
        write(&mut body);
        let header = Header { body_bytes: body.len() as u32, ..Header::new(kind, 7) };
        self.input(Input::Frame(conn, header, &body))
    }

    fn lease(&mut self, conn: Conn, pages: u16) -> Vec<PageId> {
        let mut said = self.send(conn, Kind::Lease, |o| Lease { pages }.encode(o));
        said.extend(self.sync());
        let (.., body) = said.iter().find(|(_, k, ..)| *k == Kind::Leased).expect("leased");
        Leased::decode(body).unwrap().pages
    }

    fn define(&mut self, conn: Conn) -> ClassId {
        let layout = Layout::new("C".into(), vec![("n".into(), Shape::Scalar(Scalar::U32))]);
        self.send(conn, Kind::Define, |o| layout.encode(o));
        let said = self.sync();
        let (.., body) = said.iter().find(|(_, k, ..)| *k == Kind::Defined).expect("defined");
        ClassId(u16::from_le_bytes([body[0], body[1]]))
    }

    fn commit(&mut self, conn: Conn, op: OpId, work: &Work<'_>) -> Said {
        let mut bytes = Vec::new();
        work.encode(&mut bytes);
        self.send(conn, Kind::Commit, |o| Commit { op, parts: 0, bytes: &bytes }.encode(o))
    }

    /// Whether it wants to go on at once.
    fn is_busy(&self) -> bool {
        self.server.deadline().is_some_and(|d| d <= self.now)
    }

    /// Lets it do a slice.
    fn turn(&mut self) -> Said {
        self.input(Input::Time)
    }

    /// Lets it go on until it has nothing to do at once; how many slices that took.
    fn finish(&mut self) -> (Said, usize) {
        let (mut said, mut slices) = (Said::new(), 0);
        while self.is_busy() {
            said.extend(self.turn());
            slices += 1;
            assert!(slices < 10_000, "it goes on for ever");
        }
        (said, slices)
    }

    fn fetch(&mut self, conn: Conn, page: PageId, fetch: u32) -> Said {
        self.send(conn, Kind::Fetch, |o| Fetch { page, fetch }.encode(o))
    }

    /// The first number of an object, as others see it.
    fn seen(&mut self, conn: Conn, oref: Oref, fetch: u32) -> Option<u8> {
        let said = self.fetch(conn, oref.page(), fetch);
        let (.., body) = said.iter().find(|(_, k, ..)| *k == Kind::Page).expect("a page");
        let reply = PageReply::decode(body).unwrap();
        let page = (!reply.bytes.is_empty()).then(|| Page::parse(reply.bytes, oref.page()).unwrap())?;
        page.object(oref.slot()).map(|o| o[4])
    }
}

fn op(client: u64, slot: u16, seq: u32) -> OpId {
    OpId { client: ClientId(client), slot, seq, epoch: Epoch(1) }
}

fn object(class: ClassId, n: u8) -> Vec<u8> {
    let mut bytes = class.0.to_le_bytes().to_vec();
    bytes.extend([0, 0, n, 2, 3, 4]);
    bytes
}

fn outcomes(said: &Said, conn: Conn) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (_, kind, _, body) in said.iter().filter(|(c, ..)| *c == conn) {
        match kind {
            Kind::Verdict => outcomes.push(Verdict::decode(body).unwrap().outcome),
            Kind::Stream => {
                let changes = Stream::decode(body).unwrap().changes;
                outcomes
                    .extend(changes.iter().filter(|c| c.own.is_some()).map(|c| Outcome::Committed(c.stamp)));
            }
            _ => {}
        }
    }
    outcomes
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
    let mut h = Hand::new(ServerConfig::default(), 0);
    let class = h.define(A);
    let places = places(&h.lease(A, PAGES));
    let mine = Oref::new(h.lease(B, 1)[0], 0).unwrap();
    let object = object(class, 1);
    h.commit(B, op(6, 0, 1), &all(Stamp(1), &[mine], true, &object));
    h.commit(A, op(5, 0, 1), &all(Stamp(1), &places, true, &object));
    let (_, slices) = h.finish();
    assert!(slices > 50, "{slices}");
    assert!(matches!(outcomes(&h.sync(), A)[..], [Outcome::Committed(_)]));
    h.finish();
    (h, class, places, mine)
}

#[test]
fn others_are_served_between_the_slices_of_a_large_transaction_and_see_none_of_it() {
    let (mut h, class, places, mine) = filled();
    let (two, other) = (object(class, 2), object(class, 3));
    let base = h.server.visible();
    assert_eq!(h.commit(A, op(5, 0, 2), &all(base, &places, false, &two)), []);
    let (mut fetch, mut said, mut committed) = (1, Said::new(), 0);
    let mut seq = 1;
    while h.is_busy() {
        said.extend(h.turn());
        fetch += 1;
        if !outcomes(&said, A).is_empty() {
            continue;
        }
        assert_eq!(h.seen(B, places[fetch as usize % places.len()], fetch), Some(1));
        if h.is_busy() {
            seq += 1;
            said.extend(h.commit(B, op(6, seq as u16, 1), &all(h.server.visible(), &[mine], false, &other)));
            said.extend(h.sync());
            committed += outcomes(&said, B).len();
        }
    }
    assert!(fetch > 50 && committed > 0, "{fetch} pages, {committed} commits");
    said.extend(h.sync());
    assert!(matches!(outcomes(&said, A)[..], [Outcome::Committed(_)]));
    for i in [0, 1, places.len() / 2, places.len() - 1] {
        assert_eq!(h.seen(B, places[i], 100_000 + i as u32), Some(2));
    }
}

#[test]
fn what_is_durable_before_all_of_it_is_applied_is_not_shown_before() {
    let (mut h, class, places, _) = filled();
    let two = object(class, 2);
    let base = h.server.visible();
    h.commit(A, op(5, 0, 2), &all(base, &places, false, &two));
    let before = h.last;
    while h.last == before {
        assert!(h.is_busy());
        h.turn();
    }
    // It is ordered, and the log is quicker than the state.
    let mut said = h.sync();
    assert!(h.is_busy());
    assert_eq!((h.server.visible(), outcomes(&said, A)), (base, vec![]));
    let mut fetch = 0;
    while h.server.visible() == base {
        fetch += 1;
        assert_eq!(h.seen(B, places[places.len() - 1], fetch), Some(1));
        assert_eq!(h.seen(B, places[0], fetch), Some(1));
        said.extend(h.turn());
    }
    assert!(matches!(outcomes(&said, A)[..], [Outcome::Committed(_)]));
    assert_eq!(h.seen(B, places[0], fetch + 1), Some(2));
    assert_eq!(h.seen(B, places[places.len() - 1], fetch + 1), Some(2));
}

#[test]
fn a_commit_that_comes_while_a_large_one_is_judged_waits_for_it_and_is_judged_after_it() {
    let (mut h, class, places, mine) = filled();
    let (two, three) = (object(class, 2), object(class, 3));
    let base = h.server.visible();
    h.commit(A, op(5, 0, 2), &all(base, &places, false, &two));
    // Its pages are here, so this is in the midst of judging or placing it.
    (0..90).for_each(|_| _ = h.turn());
    let ordered = h.last;
    let mut said = h.commit(B, op(6, 1, 1), &all(base, &[mine], false, &three));
    said.extend(h.commit(B, op(6, 2, 1), &all(base, &[places[7]], false, &three)));
    assert_eq!((h.last, outcomes(&said, B)), (ordered, vec![]));
    said.extend(h.finish().0);
    said.extend(h.sync());
    // One writes what the large one wrote, the other does not.
    let of_b = outcomes(&said, B);
    assert!(
        matches!(of_b[..], [Outcome::Conflict(at), Outcome::Committed(_)] if at == places[7]),
        "{of_b:?}"
    );
    assert!(matches!(outcomes(&said, A)[..], [Outcome::Committed(_)]));
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
    assert_eq!(outcomes(&said, A), [Outcome::Conflict(places[9])]);
    h.sync();
    assert_eq!((h.seen(B, places[9], 1), h.seen(B, places[8], 2)), (Some(3), Some(1)));
}

#[test]
fn a_client_that_goes_in_the_middle_takes_its_large_transaction_along_and_nothing_else() {
    let (mut h, class, places, mine) = filled();
    let (two, three) = (object(class, 2), object(class, 3));
    let base = h.server.visible();
    // At every number of slices, until it is ordered.
    for slices in (0..).step_by(7) {
        h.commit(A, op(5, 0, 2), &all(base, &places, false, &two));
        let before = h.last;
        for _ in 0..slices {
            h.turn();
        }
        if h.last != before {
            break;
        }
        h.input(Input::Disconnected(A));
        h.finish();
        let said = h.commit(B, op(6, slices as u16 + 1, 1), &all(h.server.visible(), &[mine], false, &three));
        assert_eq!(outcomes(&said, B), []);
        assert!(matches!(outcomes(&h.sync(), B)[..], [Outcome::Committed(_)]));
        h.finish();
        h.input(Input::Connected(A));
        let hello = Hello {
            client: ClientId(5),
            connection: slices as u32 + 2,
            version_min: 1,
            version_max: 1,
            space: SpaceId(0),
            resume: None,
        };
        h.send(A, Kind::Hello, |o| hello.encode(o));
        assert_eq!(h.seen(B, places[0], slices as u32 + 1), Some(1));
    }
    h.finish();
    assert!(matches!(outcomes(&h.sync(), A)[..], [Outcome::Committed(_)]));
}

#[test]
fn asking_for_a_large_transaction_that_is_not_ordered_yet_spends_it() {
    let (mut h, class, places, _) = filled();
    let two = object(class, 2);
    let base = h.server.visible();
    h.commit(A, op(5, 0, 2), &all(base, &places, false, &two));
    h.turn();
    let said = h.send(A, Kind::Resolve, |o| Resolve { op: op(5, 0, 2) }.encode(o));
    assert_eq!(outcomes(&said, A), [Outcome::NotExecuted]);
    let (said, _) = h.finish();
    assert_eq!(outcomes(&said, A), []);
    // Once it is ordered, the answer is that it was.
    h.commit(A, op(5, 0, 3), &all(base, &places, false, &two));
    let before = h.last;
    while h.last == before {
        h.turn();
    }
    assert_eq!(h.send(A, Kind::Resolve, |o| Resolve { op: op(5, 0, 3) }.encode(o)), []);
    h.finish();
    assert!(matches!(outcomes(&h.sync(), A)[..], [Outcome::Committed(_)]));
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
    assert!(said.iter().any(|(c, k, ..)| *c == A && *k == Kind::Bye));
    assert_eq!(h.seen(B, places[0], 1), Some(1));
}

/// Who was refused what.
fn refused(said: &Said) -> Option<(Reason, String)> {
    let (.., body) = said.iter().find(|(_, k, ..)| *k == Kind::Refused)?;
    let refused = Refused::decode(body).unwrap();
    Some((refused.reason, refused.text))
}

#[test]
fn who_asks_for_more_pages_than_granted_is_refused_and_others_have_their_turn() {
    let mut h = Hand::new(ServerConfig::default(), 10_000);
    let page = |n: u32| PageId::new(n).unwrap();
    for n in 0..CREDIT as u32 {
        assert_eq!(h.fetch(A, page(100 + n), n + 1), []);
    }
    let (reason, text) = refused(&h.fetch(A, page(5_000), 999)).expect("refused");
    assert_eq!((reason, &*text), (Reason::Full, "more requests under way than were granted"));
    // Few of the reads are with the host, and B's is next but for those.
    let out = h.reads.len();
    assert!(out < 20, "{out}");
    assert_eq!(h.fetch(B, page(9_000), 1), []);
    let mut answered = 0;
    while !h.reads.contains(&page(9_000)) {
        let read = h.reads.remove(0);
        h.input(Input::Read(read, Ok(None)));
        answered += 1;
    }
    assert!(answered <= 2, "{answered} pages of A came first");
}

#[test]
fn a_client_with_very_many_pages_goes_in_slices_and_one_of_its_name_is_another() {
    let (mut h, class, places, _) = filled();
    for n in 0..20_000 {
        h.fetch(B, PageId::new(1_000 + n).unwrap(), n + 1);
    }
    h.input(Input::Disconnected(B));
    let slices = std::iter::from_fn(|| h.is_busy().then(|| h.turn())).count();
    assert!(slices > 5, "{slices}");
    // Gone in the middle of it, it is back under its name, and hears of what it has now.
    h.input(Input::Connected(B));
    let hello = |connection| Hello {
        client: ClientId(6),
        connection,
        version_min: 1,
        version_max: 1,
        space: SpaceId(0),
        resume: None,
    };
    h.send(B, Kind::Hello, |o| hello(2).encode(o));
    (0..10_000).for_each(|n| _ = h.fetch(B, PageId::new(1_000 + n).unwrap(), n + 1));
    h.fetch(B, places[0].page(), 20_000);
    h.input(Input::Disconnected(B));
    h.input(Input::Connected(B));
    h.send(B, Kind::Hello, |o| hello(3).encode(o));
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
    let mut h = Hand::new(ServerConfig::default(), 0);
    let piece = vec![0; 1 << 20];
    let part = |h: &mut Hand, conn, op, index| {
        let said = h.send(conn, Kind::Part, |o| Part { op, index, bytes: &piece }.encode(o));
        assert_eq!(said, []);
    };
    let each = TRANSACTION_BYTES_MAX >> 20;
    let clients = STAGED_BYTES_MAX / TRANSACTION_BYTES_MAX;
    for client in 0..clients as u64 {
        let conn = Conn(100 + client);
        h.input(Input::Connected(conn));
        let hello = Hello {
            client: ClientId(100 + client),
            connection: 1,
            version_min: 1,
            version_max: 1,
            space: SpaceId(0),
            resume: None,
        };
        h.send(conn, Kind::Hello, |o| hello.encode(o));
        (0..each as u32).for_each(|index| part(&mut h, conn, op(100 + client, 0, 1), index));
    }
    // One client more than its share is its own fault; one that finds all taken may try again.
    part(&mut h, A, op(5, 0, 1), 0);
    part(&mut h, Conn(100), op(100, 0, 1), each as u32);
    let end = |h: &mut Hand, conn, op, parts| {
        let said = h.send(conn, Kind::Commit, |o| Commit { op, parts, bytes: b"" }.encode(o));
        outcomes(&said, conn)
    };
    assert_eq!(end(&mut h, Conn(100), op(100, 0, 1), each as u32 + 1), [Outcome::Full(Limit::Transaction)]);
    // That has made room.
    assert_eq!(end(&mut h, A, op(5, 0, 1), 1), [Outcome::Full(Limit::Buffer)]);
    part(&mut h, A, op(5, 0, 2), 0);
    let staged = |h: &mut Hand| {
        let said = h.send(B, Kind::Stat, |_| ());
        let text = String::from_utf8(said[0].3.clone()).unwrap();
        let (_, value) = text.split_once("\"staged_bytes\":").unwrap();
        value.split(',').next().unwrap().parse::<usize>().unwrap()
    };
    assert_eq!(staged(&mut h), STAGED_BYTES_MAX - TRANSACTION_BYTES_MAX + piece.len());
    for client in 0..clients as u64 {
        h.input(Input::Disconnected(Conn(100 + client)));
    }
    assert_eq!(staged(&mut h), piece.len());
}
