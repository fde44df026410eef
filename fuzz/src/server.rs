//! A server with one honest client and a stranger, which sends anything in frames that are well formed.
//!
//! The stranger may write anything where the protocol lets it. The server must go on all the same, and must
//! be able to replay its log. Whatever is sent twice, a procedure is begun at most once for each name of a
//! call, as long as the server keeps the table of its client. A method may be begun more than once, for it
//! is a transaction; so of methods it is the log that is looked at: the operations of a slot are ordered
//! with rising sequences, each at most once.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use arbitrary::{Arbitrary, Result, Unstructured};
use tercel_derive::{Object, interface, service};
use tercel_engine::error::Error;
use tercel_engine::limits::SERVED_ABSENT_US;
use tercel_engine::object::Obj;
use tercel_engine::order::Sealed;
use tercel_engine::replica::entry::Entry;
use tercel_engine::rpc::{Called, Context, Input, Offers, Output, ReplyBody, ServiceInterface, Services};
use tercel_engine::server::{self, Conn, Effects, Express, ServerConfig};
use tercel_engine::server::{Local, LocalConfig};
use tercel_engine::time::Now;
use tercel_wire::class;
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{ClassId, ClientId, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::interface::Interface;
use tercel_wire::message::*;
use tercel_wire::record::{List, Ref, Text};

use crate::shapes;
use tercel_testkit::World;

#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Thing {
    count: u64,
    text: Text,
    others: List<Ref<Thing>>,
}

/// Methods that strangers call on things.
#[interface(crate = "tercel_engine")]
trait Countable {
    #[read]
    fn count_with(&self, more: u64, text: &str) -> u64;
    fn grow(&mut self, by: u64);
}

impl Countable for Thing {
    fn count_with(this: &Obj<Thing>, more: u64, text: &str) -> Called<u64> {
        Ok(this.count().wrapping_add(more).wrapping_add(text.len() as u64))
    }

    fn grow(this: &Obj<Thing>, by: u64) -> Called<()> {
        Ok(this.edit()?.set_count(by)?)
    }
}

/// Procedures that strangers call. The first argument of each names the call that it runs for, see
/// [`named`].
#[service(crate = "tercel_engine")]
trait Bell {
    fn ring(&self, name: u64, text: &str) -> u64;
    #[slow]
    fn tune(&self, name: u64, bytes: &[u8]);
    #[one_way]
    fn mute(&self, name: u64, of: Ref<Thing>);
    #[slow]
    fn chime(&self, name: u64, bytes: &[u8], out: &Output<u64>, notes: &Input<u64>);
}

struct Silent;

impl Bell for Silent {
    fn ring(&self, cx: &Context<'_>, name: u64, text: &str) -> Called<u64> {
        begin(cx, name);
        Ok(name.wrapping_add(text.len() as u64))
    }

    fn tune(&self, cx: &Context<'_>, name: u64, bytes: &[u8]) -> Called<()> {
        begin(cx, name);
        if bytes.is_empty() { Err(Error::NotFound("a note".into()).into()) } else { Ok(()) }
    }

    fn mute(&self, cx: &Context<'_>, name: u64, _: Ref<Thing>) {
        begin(cx, name);
    }

    fn chime(&self, cx: &Context<'_>, name: u64, _: &[u8], _: &Output<u64>, _: &Input<u64>) -> Called<()> {
        begin(cx, name);
        Ok(())
    }
}

thread_local! {
    /// The calls that were begun, by client and name, since the server began or has forgotten the client.
    static BEGUN: RefCell<BTreeSet<(ClientId, u64)>> = const { RefCell::new(BTreeSet::new()) };
    /// One that was begun twice. It is told of later: the server would catch a panic of the procedure.
    static TWICE: Cell<Option<(ClientId, u64)>> = const { Cell::new(None) };
}

/// The highest bit of a number that is a name. Numbers out of the fuzzer's bytes do not have it.
const NAMED: u64 = 1 << 63;

/// The name of a call, as its procedure is told it: copies of a call have the same, whatever else they say.
fn named(slot: Option<u16>, seq: u64) -> u64 {
    NAMED | slot.map_or(0, |slot| u64::from(slot) + 1) << 32 | seq
}

/// A procedure runs.
fn begin(cx: &Context<'_>, name: u64) {
    let call = (cx.client(), name);
    if name & NAMED != 0 && !BEGUN.with_borrow_mut(|begun| begun.insert(call)) {
        TWICE.set(Some(call));
    }
}

/// Drops the notes of calls that may be begun again.
fn forget_begun(client: ClientId) {
    BEGUN.with_borrow_mut(|begun| begun.retain(|(of, _)| *of != client));
}

/// Far from the numbers that the world gives.
const STRANGERS: [Conn; 2] = [Conn(1 << 40), Conn((1 << 40) + 1)];
const STEPS_MAX: usize = 60;

/// Plays the frames that the bytes describe against a server with an honest client.
pub fn run(data: &[u8]) {
    let _ = try_run(&mut Unstructured::new(data));
}

fn try_run(u: &mut Unstructured<'_>) -> Result<()> {
    BEGUN.take();
    TWICE.set(None);
    let services = Services::default().with(Bell::serve(Silent));
    let config = ServerConfig {
        mob_bytes: 48 << 10,
        cache_bytes: 32 << 10,
        services,
        methods: Offers::default().with(Thing::METHODS),
        jobs_max: 2,
        ..ServerConfig::default()
    };
    let w = World::new(1, 1, config);
    w.lock().patience = 300;
    let thing = Thing { count: 1, text: "x".repeat(100).into(), others: List::default() };
    let made = w.run(0, |tx| {
        let all: Vec<Ref<Thing>> =
            (0..10).map(|_| tx.create(&thing)).collect::<std::result::Result<_, _>>()?;
        tx.set_root("things", all[0])?;
        Ok(all)
    });
    let things = made.expect("a fresh space has room");
    w.run_until_idle();
    let mut strangers = Strangers { greeted: 10, seen: CLIENTS.map(|client| (client, w.lock().now)) };
    for conn in STRANGERS {
        strangers.connect(&w, conn, u)?;
    }
    let (mut local, mut sent) = (Local::new(LocalConfig::default()), Vec::<(Kind, Header, Vec<u8>)>::new());
    for _ in 0..STEPS_MAX {
        if u.is_empty() {
            break;
        }
        let conn = *u.choose(&STRANGERS)?;
        // One that was shown out mostly comes back.
        let is_here = w.lock().node.machine().is_some_and(|s| s.has_greeted(conn));
        if !is_here && u.ratio(3, 4)? {
            w.lock().server_takes(server::Input::Disconnected(conn));
            strangers.connect(&w, conn, u)?;
        }
        match u.int_in_range(0..=15)? {
            0 => w.run_until_idle(),
            1 => w.pass_ms(u64::from(u.arbitrary::<u8>()?) * 40),
            2 => {
                w.lock().server_takes(server::Input::Disconnected(conn));
                strangers.connect(&w, conn, u)?;
            }
            3 => {
                // Whatever the stranger did to them, asking does no harm.
                let r = *u.choose(&things)?;
                let _ = w.run(0, |tx| tx.edit(r)?.set_count(tx.get(r)?.count() + 1));
            }
            6 => call_by_line(&w, &mut local, conn, &things, u)?,
            4 => w.lock().server_takes(server::Input::DiskFull(u.arbitrary()?)),
            5 => {
                let kept = u.int_in_range(0..=2)?;
                check_order(&w.lock().history);
                {
                    let mut inner = w.lock();
                    inner.crash(kept);
                    inner.start();
                }
                BEGUN.take();
                local = Local::new(LocalConfig::default());
                for conn in STRANGERS {
                    strangers.connect(&w, conn, u)?;
                }
            }
            _ => {
                let view = w.lock().node.machine().map_or(ViewId::NONE, |s| s.view());
                let client = w.lock().node.machine().and_then(|s| s.client_of(conn));
                if sent.is_empty() || u.ratio(2, 3)? {
                    let (kind, body) = message(u, view, &things)?;
                    let mut header = Header::new(kind, u.int_in_range(0..=3)?);
                    if kind == Kind::Request {
                        header.view = view;
                        header.deadline_us = if u.ratio(1, 8)? { u.arbitrary()? } else { 0 };
                    }
                    header.body_bytes = body.len() as u32;
                    sent.push((kind, header, body));
                } else {
                    let copy = u.choose(&sent)?.clone();
                    sent.push(copy);
                }
                let (kind, header, body) = sent.last().cloned().expect("one is sent");
                // Copies are of what is executed at most once.
                if !matches!(kind, Kind::Request | Kind::Commit) {
                    sent.pop();
                }
                w.lock().server_takes(server::Input::Frame(conn, header, &body));
                if let (Kind::Bye, Some(client)) = (kind, client) {
                    // What waits still runs for the client that is forgotten.
                    w.run_until_idle();
                    forget_begun(client);
                }
            }
        }
        run_calls(&w, &mut local);
        strangers.look(&w);
        check_begun();
    }
    w.lock().server_takes(server::Input::DiskFull(false));
    let mut rounds = 0..ROUNDS_MAX;
    while rounds.next().is_some() {
        w.run_until_idle();
        if !run_calls(&w, &mut local) {
            break;
        }
    }
    assert!(!rounds.is_empty(), "calls do not come to rest");
    check_begun();
    check_order(&w.lock().history);
    // The server replays its log, and the honest client goes on with the objects that remain.
    w.crash();
    w.restart();
    w.run_until_idle();
    let _ = w.run(0, |tx| tx.get_root_ref::<Thing>("things"));
    Ok(())
}

/// The clients that strangers greet as.
const CLIENTS: [ClientId; 3] = [ClientId(0), ClientId(1), ClientId(2)];

/// More often than waiting calls can be tried anew when nothing else happens.
const ROUNDS_MAX: usize = 1_000;

struct Strangers {
    /// The last connection of any client that greeted by itself.
    greeted: u64,
    /// When each client was last seen to have a connection.
    seen: [(ClientId, Now); 3],
}

impl Strangers {
    /// Connects, and mostly greets and binds both interfaces as an honest client would.
    fn connect(&mut self, w: &World, conn: Conn, u: &mut Unstructured<'_>) -> Result<()> {
        let mut inner = w.lock();
        inner.server_takes(server::Input::Connected(conn, Default::default()));
        if u.is_empty() || u.ratio(1, 4)? {
            return Ok(());
        }
        self.greeted += 1;
        let (client, connection) = (*u.choose(&CLIENTS)?, self.greeted);
        let mut said = vec![(Kind::Hello, Vec::new()), (Kind::Bind, Vec::new()), (Kind::Bind, Vec::new())];
        Hello { connection, ..Hello::new(client) }.encode(&mut said[0].1);
        Bind { interface: interface(true) }.encode(&mut said[1].1);
        Bind { interface: interface(false) }.encode(&mut said[2].1);
        for (kind, body) in said {
            let mut header = Header::new(kind, 0);
            header.body_bytes = body.len() as u32;
            inner.server_takes(server::Input::Frame(conn, header, &body));
        }
        Ok(())
    }

    /// Looks which clients are here. The server may have forgotten the calls of those that were away for
    /// long.
    fn look(&mut self, w: &World) {
        let inner = w.lock();
        for (client, seen) in &mut self.seen {
            if inner.node.machine().is_some_and(|s| s.conn_of(*client).is_some()) {
                *seen = inner.now;
            } else if inner.now.since_us(*seen) >= SERVED_ABSENT_US {
                forget_begun(*client);
            }
        }
    }
}

/// Runs the calls of methods that are due, as a host does after each turn: whether there were any.
fn run_calls(w: &World, local: &mut Local) -> bool {
    let mut inner = w.lock();
    let (now, mut out) = (inner.now, Effects::default());
    let Some(server) = inner.node.machine_mut().filter(|server| server.has_calls()) else { return false };
    server.run_calls(now, local, &mut out);
    inner.perform(out);
    true
}

/// A call by a line of shared memory.
fn call_by_line(
    w: &World,
    local: &mut Local,
    conn: Conn,
    things: &[Ref<Thing>],
    u: &mut Unstructured<'_>,
) -> Result<()> {
    let mut body = Vec::new();
    let object =
        if u.arbitrary()? { Some((u.choose(things)?.oref(), Stamp(u.int_in_range(0..=9)?))) } else { None };
    let slot = if object.is_none() { Some(u.int_in_range(0..=2)?) } else { None };
    let seq = u.int_in_range(1..=6)?;
    let payload = payload(u, named(slot, seq))?;
    Request {
        slot,
        seq,
        again: false,
        interface: if u.ratio(1, 8)? { 1 } else { 0 },
        method: u.int_in_range(0..=3)?,
        object,
        key: &[],
        payload: &payload,
    }
    .encode(&mut body);
    if u.ratio(1, 8)? {
        body.truncate(u.arbitrary::<u8>()?.into());
    }
    let mut inner = w.lock();
    let (now, mut response, mut out) = (inner.now, Vec::new(), Effects::default());
    let server = inner.node.machine_mut();
    if let Some((server, client)) = server.and_then(|s| s.client_of(conn).map(|client| (s, client))) {
        let request = Express { client, place: &mut 0, left_us: u.arbitrary()?, body: &body, shared: None };
        if server.express(now, request, local, &mut ReplyBody::new(&mut response), &mut out) {
            assert!(Response::decode(&response).is_ok(), "a response that cannot be read");
        }
    }
    inner.perform(out);
    Ok(())
}

fn check_begun() {
    if let Some((client, name)) = TWICE.get() {
        panic!("client {}: call {name:x} was begun twice", client.0);
    }
}

/// Asserts that the sequences of each slot rise, in what was ordered and not lost.
fn check_order(history: &[Sealed]) {
    let mut last: BTreeMap<(ClientId, u16), u64> = BTreeMap::new();
    for record in history {
        let op = match Entry::decode(record.kind, &record.payload).expect("an entry") {
            Entry::Commit(logged) => logged.head.op,
            Entry::CommitStaged { op, .. } => op,
            Entry::Evict(client) => {
                last.retain(|(of, _), _| *of != client);
                continue;
            }
            _ => continue,
        };
        let before = last.insert((op.client, op.slot), op.seq);
        assert!(before.is_none_or(|before| before < op.seq), "operation {op} is ordered behind {before:?}");
    }
}

/// An interface that the server has.
fn interface(of_service: bool) -> Interface {
    match of_service {
        true => Interface::of_service(<dyn Bell>::SCHEMA),
        false => {
            let offers = Offers::default().with(Thing::METHODS);
            offers.interfaces().next().expect("one interface").clone()
        }
    }
}

fn message(u: &mut Unstructured<'_>, view: ViewId, things: &[Ref<Thing>]) -> Result<(Kind, Vec<u8>)> {
    let mut body = Vec::new();
    let kind = match u.int_in_range(0..=21)? {
        // Any kind, with any bytes.
        0 => return Ok((*u.choose(Kind::ALL)?, u.bytes(u.len().min(9))?.to_vec())),
        1 => return Ok((*u.choose(FromClient::KINDS)?, u.bytes(u.len().min(60))?.to_vec())),
        2 | 3 => {
            let resume = if u.arbitrary()? {
                let view = if u.arbitrary()? {
                    view
                } else {
                    ViewId::new(u.int_in_range(0..=3)?, *u.choose(&[0, 7])?)
                };
                let watermark = Stamp(u.int_in_range(0..=40)?);
                let heard = if u.ratio(1, 4)? { u.arbitrary()? } else { u.int_in_range(0..=40)? };
                Some(Resume { view, watermark, heard: Stamp(heard), pages: pages(u)? })
            } else {
                None
            };
            let (client, connection) = (ClientId(u.int_in_range(0..=2)?), u.int_in_range(0..=3)?);
            let space = SpaceId(*u.choose(&[0, 77, 5])?);
            Hello {
                connection,
                space,
                resume,
                via: *u.choose(&[None, Some(Via::Any), Some(Via::Replica)])?,
                ..Hello::new(client)
            }
            .encode(&mut body);
            Kind::Hello
        }
        4 => {
            Fetch { page: page(u)?, fetch: u.arbitrary()?, since: u.arbitrary::<Option<u64>>()?.map(Stamp) }
                .encode(&mut body);
            Kind::Fetch
        }
        5 => {
            Unsubscribe { pages: pages(u)? }.encode(&mut body);
            Kind::Unsubscribe
        }
        6 => {
            let seq = if u.ratio(1, 4)? { u.arbitrary()? } else { u.int_in_range(0..=4)? };
            let done = (0..u.int_in_range(0..=3)?)
                .map(|_| Ok((page(u)?, u.int_in_range(0..=600)?)))
                .collect::<Result<_>>()?;
            Lease { seq, pages: u.arbitrary()?, done }.encode(&mut body);
            Kind::Lease
        }
        7 => {
            shapes::layout(u, 2)?.encode(&mut body);
            Kind::Define
        }
        8 => {
            Resolve { op: op(u, view)? }.encode(&mut body);
            Kind::Resolve
        }
        9 => {
            let (op, index) = (op(u, view)?, u.int_in_range(0..=2)?);
            let bytes = effects(u)?;
            let cut = u.int_in_range(0..=bytes.len())?;
            Part { op, index, bytes: &bytes[..cut] }.encode(&mut body);
            Kind::Part
        }
        14 => {
            Bind { interface: interface(u.arbitrary()?) }.encode(&mut body);
            Kind::Bind
        }
        15 | 16 => {
            let slot = if u.ratio(1, 6)? { None } else { Some(u.int_in_range(0..=2)?) };
            let seq = u.int_in_range(1..=6)?;
            let payload = payload(u, named(slot, seq))?;
            Request {
                slot,
                seq,
                again: slot.is_some() && u.arbitrary()?,
                interface: if u.ratio(1, 8)? { 1 } else { 0 },
                method: u.int_in_range(0..=3)?,
                object: if u.ratio(1, 6)? { Some((oref(u)?, Stamp(u.arbitrary()?))) } else { None },
                key: if u.ratio(1, 6)? { b"order 4711" } else { &[] },
                payload: &payload,
            }
            .encode(&mut body);
            Kind::Request
        }
        18 => {
            let (slot, seq) = (u.int_in_range(0..=2)?, u.int_in_range(1..=6)?);
            match u.int_in_range(0..=2)? {
                0 => {
                    let (ordinal, payload) = (u.int_in_range(1..=4)?, &payload(u, 0)?);
                    Item { slot, seq, ordinal, payload }.encode(&mut body);
                    Kind::InputItem
                }
                1 => {
                    InputEnd { slot, seq, items: u.int_in_range(0..=4)? }.encode(&mut body);
                    Kind::InputEnd
                }
                _ => {
                    Credit { slot, seq, bytes: u.arbitrary()? }.encode(&mut body);
                    Kind::OutputCredit
                }
            }
        }
        19..=21 => {
            let (slot, seq) = (u.int_in_range(0..=2)?, u.int_in_range(1..=6)?);
            let (payload, thing) = (payload(u, named(Some(slot), seq))?, u.choose(things)?);
            let target = if u.ratio(1, 6)? { oref(u)? } else { thing.oref() };
            Request {
                slot: Some(slot),
                seq,
                again: false,
                interface: if u.ratio(1, 8)? { 1 } else { 0 },
                method: if u.ratio(1, 8)? { 2 } else { u.int_in_range(0..=1)? },
                object: Some((target, if u.ratio(1, 6)? { Stamp(u.arbitrary()?) } else { thing.stamp() })),
                key: &[],
                payload: &payload,
            }
            .encode(&mut body);
            Kind::Request
        }
        17 => {
            Cancel { slot: u.int_in_range(0..=2)?, seq: u.int_in_range(1..=6)? }.encode(&mut body);
            Kind::Cancel
        }
        _ => {
            let (op, parts) = (op(u, view)?, *u.choose(&[0, 0, 0, 1, 9])?);
            let bytes = effects(u)?;
            Commit { op, parts, bytes: &bytes }.encode(&mut body);
            Kind::Commit
        }
    };
    Ok((kind, body))
}

/// Arguments: those of one of the procedures and methods, with the name of the call, or anything that has
/// none.
fn payload(u: &mut Unstructured<'_>, name: u64) -> Result<Vec<u8>> {
    let (low, high) = (name as u32, (name >> 32) as u32);
    let words = match u.int_in_range(0..=3)? {
        // The name and an empty text or byte string; the name alone, without a head; the name and a
        // reference.
        0 => vec![12, 0, low, high, 0],
        1 => vec![low, high],
        2 => vec![12, 0, low, high, oref(u)?.raw()],
        _ => {
            let mut bytes = u.bytes(u.len().min(40))?.to_vec();
            bytes.iter_mut().skip(8 + 7).take(1).for_each(|byte| *byte &= 0x7f);
            return Ok(bytes);
        }
    };
    Ok(words.into_iter().flat_map(u32::to_le_bytes).collect())
}

fn effects(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let objects: Vec<Vec<u8>> = (0..u.int_in_range(0..=3)?).map(|_| object(u)).collect::<Result<_>>()?;
    let reads = (0..u.int_in_range(0..=3)?).map(|_| oref(u)).collect::<Result<_>>()?;
    let mut writes = Vec::new();
    for object in &objects {
        writes.push(Write { oref: oref(u)?, new: u.arbitrary()?, object });
    }
    let base = if u.ratio(1, 4)? { u.arbitrary()? } else { u.int_in_range(0..=40)? };
    let mut bytes = Vec::new();
    CommitEffects { base: Stamp(base), reads, writes }.encode(&mut bytes);
    Ok(bytes)
}

/// An object of a class that there may be, with a body that may be its.
fn object(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let class =
        *u.choose(&[class::ROOT, class::FORWARD, class::CHUNK_NODE, ClassId(16), ClassId(17), ClassId(99)])?;
    let mut bytes = [class.0.to_le_bytes(), [0, 0]].concat();
    let words = *u.choose(&[1, 2, 4, 5, 20, 600])?;
    for _ in 0..words {
        let word: u32 = match u.int_in_range(0..=3)? {
            0 => oref(u)?.raw(),
            1 => u.int_in_range(0..=40)?,
            _ => 0,
        };
        bytes.extend(word.to_le_bytes());
    }
    Ok(bytes)
}

fn op(u: &mut Unstructured<'_>, view: ViewId) -> Result<OpId> {
    let view = if u.ratio(1, 6)? { ViewId::new(u.arbitrary()?, u.arbitrary()?) } else { view };
    Ok(OpId {
        client: ClientId(u.int_in_range(0..=2)?),
        slot: u.int_in_range(0..=2)?,
        seq: u.int_in_range(1..=6)?,
        view,
    })
}

fn page(u: &mut Unstructured<'_>) -> Result<PageId> {
    let n =
        if u.ratio(1, 8)? { u32::arbitrary(u)? % PageId::MAX.get() + 1 } else { u.int_in_range(1..=140)? };
    Ok(PageId::new(n).expect("a page"))
}

fn pages(u: &mut Unstructured<'_>) -> Result<Vec<(PageId, u64)>> {
    (0..u.int_in_range(0..=3)?).map(|_| Ok((page(u)?, u.arbitrary()?))).collect()
}

fn oref(u: &mut Unstructured<'_>) -> Result<Oref> {
    let slot = if u.ratio(1, 8)? { u.int_in_range(0..=511)? } else { u.int_in_range(0..=12)? };
    Ok(Oref::new(page(u)?, slot).expect("a slot below 512"))
}
