//! A server with one honest client and a stranger, which sends anything in frames that are well formed.
//!
//! The stranger may write anything where the protocol lets it. The server must go on all the same, and must be able to
//! replay its log.

use arbitrary::{Arbitrary, Result, Unstructured};
use tercel_derive::{Object, interface, service};
use tercel_engine::error::Error;
use tercel_engine::object::Obj;
use tercel_engine::rpc::{Called, Context, Input, Offers, Output, ServiceInterface, Services};
use tercel_engine::server::{self, Conn, Effects, Express, ServerConfig};
use tercel_engine::txn::local::{Local, LocalConfig};
use tercel_wire::class;
use tercel_wire::frame::{Header, Kind, WIRE_VERSION, WIRE_VERSION_MIN};
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

/// What strangers call on things.
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

/// What strangers call.
#[service(crate = "tercel_engine")]
trait Bell {
    fn ring(&self, times: u64, text: &str) -> u64;
    #[slow]
    fn tune(&self, bytes: &[u8]);
    #[one_way]
    fn mute(&self, of: Ref<Thing>);
    #[slow]
    fn chime(&self, bytes: &[u8], out: &Output<u64>, notes: &Input<u64>);
}

struct Silent;

impl Bell for Silent {
    fn ring(&self, _: &Context<'_>, times: u64, text: &str) -> Called<u64> {
        Ok(times.wrapping_add(text.len() as u64))
    }

    fn tune(&self, _: &Context<'_>, bytes: &[u8]) -> Called<()> {
        if bytes.is_empty() { Err(Error::NotFound("a note".into()).into()) } else { Ok(()) }
    }

    fn mute(&self, _: &Context<'_>, _: Ref<Thing>) {}

    fn chime(&self, _: &Context<'_>, _: &[u8], _: &Output<u64>, _: &Input<u64>) -> Called<()> {
        Ok(())
    }
}

/// Far from the numbers that the world gives.
const STRANGERS: [Conn; 2] = [Conn(1 << 40), Conn((1 << 40) + 1)];
const STEPS_MAX: usize = 60;

/// Plays the frames that the bytes describe against a server with an honest client.
pub fn run(data: &[u8]) {
    let _ = try_run(&mut Unstructured::new(data));
}

fn try_run(u: &mut Unstructured<'_>) -> Result<()> {
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
    STRANGERS.into_iter().for_each(|conn| w.lock().server_takes(server::Input::Connected(conn)));
    let mut local = Local::new(LocalConfig::default());
    for _ in 0..STEPS_MAX {
        if u.is_empty() {
            break;
        }
        let conn = *u.choose(&STRANGERS)?;
        match u.int_in_range(0..=15)? {
            0 => w.run_until_idle(),
            1 => w.pass_ms(u64::from(u.arbitrary::<u8>()?) * 40),
            2 => {
                w.lock().server_takes(server::Input::Disconnected(conn));
                w.lock().server_takes(server::Input::Connected(conn));
            }
            3 => {
                // Whatever the stranger did to them, asking does no harm.
                let r = *u.choose(&things)?;
                let _ = w.run(0, |tx| tx.edit(r)?.set_count(tx.get(r)?.count() + 1));
            }
            // A call by a line of shared memory.
            6 => {
                let mut body = Vec::new();
                let object = if u.arbitrary()? {
                    Some((u.choose(&things)?.oref(), Stamp(u.int_in_range(0..=9)?)))
                } else {
                    None
                };
                let payload = payload(u)?;
                Request {
                    slot: if object.is_none() { Some(u.int_in_range(0..=2)?) } else { None },
                    seq: u.int_in_range(1..=6)?,
                    again: false,
                    interface: u.int_in_range(0..=1)?,
                    method: u.int_in_range(0..=3)?,
                    object,
                    payload: &payload,
                }
                .encode(&mut body);
                if u.ratio(1, 8)? {
                    body.truncate(u.arbitrary::<u8>()?.into());
                }
                let mut inner = w.lock();
                let (now, mut response, mut out) = (inner.now, Vec::new(), Effects::default());
                let server = inner.server.as_mut();
                if let Some((server, client)) =
                    server.and_then(|s| s.client_of(conn).map(|client| (s, client)))
                {
                    let request = Express { client, place: &mut 0, left_us: u.arbitrary()?, body: &body };
                    if server.express(now, request, &mut local, &mut response, &mut out) {
                        assert!(Response::decode(&response).is_ok(), "a response that cannot be read");
                    }
                }
                inner.perform(out);
            }
            4 => w.lock().server_takes(server::Input::DiskFull(u.arbitrary()?)),
            5 => {
                let kept = u.int_in_range(0..=2)?;
                let mut inner = w.lock();
                inner.crash(kept);
                inner.start();
                STRANGERS.into_iter().for_each(|conn| inner.server_takes(server::Input::Connected(conn)));
            }
            _ => {
                let view = w.lock().server.as_ref().map_or(ViewId::NONE, |s| s.view());
                let (kind, body) = message(u, view)?;
                let mut header = Header::new(kind, u.int_in_range(0..=3)?);
                header.body_bytes = body.len() as u32;
                w.lock().server_takes(server::Input::Frame(conn, header, &body));
            }
        }
    }
    w.lock().server_takes(server::Input::DiskFull(false));
    w.run_until_idle();
    // The server replays its log, and the honest client goes on with the objects that remain.
    w.crash();
    w.restart();
    w.run_until_idle();
    let _ = w.run(0, |tx| tx.get_root_ref::<Thing>("things"));
    Ok(())
}

fn message(u: &mut Unstructured<'_>, view: ViewId) -> Result<(Kind, Vec<u8>)> {
    let mut body = Vec::new();
    let kind = match u.int_in_range(0..=18)? {
        0 => {
            let kinds = [
                Kind::Ack,
                Kind::Catalogue,
                Kind::Ping,
                Kind::Stat,
                Kind::Bye,
                Kind::Welcome,
                Kind::Page,
                Kind::Backup,
                Kind::BackupNext,
                Kind::Collect,
            ];
            return Ok((*u.choose(&kinds)?, u.bytes(u.len().min(9))?.to_vec()));
        }
        1 => {
            let kinds = [Kind::Hello, Kind::Fetch, Kind::Commit, Kind::Part, Kind::Define, Kind::Unsubscribe];
            return Ok((*u.choose(&kinds)?, u.bytes(u.len().min(60))?.to_vec()));
        }
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
                client,
                connection,
                version_min: WIRE_VERSION_MIN,
                version_max: WIRE_VERSION,
                space,
                resume,
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
            Bind { interface: Interface::of_service(<dyn Bell>::SCHEMA) }.encode(&mut body);
            Kind::Bind
        }
        15 | 16 => {
            let slot = if u.ratio(1, 6)? { None } else { Some(u.int_in_range(0..=2)?) };
            let payload = payload(u)?;
            Request {
                slot,
                seq: u.int_in_range(1..=6)?,
                again: slot.is_some() && u.arbitrary()?,
                interface: u.int_in_range(0..=1)?,
                method: u.int_in_range(0..=3)?,
                object: if u.ratio(1, 6)? { Some((oref(u)?, Stamp(u.arbitrary()?))) } else { None },
                payload: &payload,
            }
            .encode(&mut body);
            Kind::Request
        }
        18 => {
            let (slot, seq) = (u.int_in_range(0..=2)?, u.int_in_range(1..=6)?);
            match u.int_in_range(0..=2)? {
                0 => {
                    let (ordinal, payload) = (u.int_in_range(1..=4)?, &payload(u)?);
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

/// Arguments: those of one of the procedures, or anything.
fn payload(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let words: [u32; 8] = match u.int_in_range(0..=3)? {
        // A number and an empty text; an empty byte string; a reference.
        0 => [12, 0, u.arbitrary()?, 0, 0, 0, 0, 0],
        1 => [4, 0, 0, 0, 0, 0, 0, 0],
        2 => [4, 0, oref(u)?.raw(), 0, 0, 0, 0, 0],
        _ => return Ok(u.bytes(u.len().min(40))?.to_vec()),
    };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Ok(bytes[..8 + words[0] as usize].to_vec())
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
