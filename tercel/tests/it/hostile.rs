//! Strangers in shared memory that have greeted as any client does: they repeat calls, take what is not
//! theirs, and write all over the memory while the server reads it. They harm themselves alone.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tercel::tools::wire::frame::Kind;
use tercel::tools::wire::message::{OBJECT_SLOT, Refusal, Request, Response, ResponseEnd};
use tercel::{
    Address, Called, Client, ClientId, Context, Obj, Object, Oref, PageId, Server, Stamp, interface, service,
};
use tercel_machine::random::Random;
use tercel_testkit::ends::Ends;
use tercel_testkit::stranger::Stranger;

use crate::common::memory::Memory;

#[service]
trait Tally {
    /// Counts the executed calls of this client, this one among them.
    fn count(&self) -> u64;
}

/// Counts the calls of each client.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<std::collections::HashMap<ClientId, u64>>>);

impl Counted {
    fn of(&self, client: u64) -> u64 {
        self.0.lock().unwrap().get(&ClientId(client)).copied().unwrap_or(0)
    }
}

impl Tally for Counted {
    fn count(&self, cx: &Context<'_>) -> Called<u64> {
        let mut all = self.0.lock().unwrap();
        let count = all.entry(cx.client()).or_default();
        *count += 1;
        Ok(*count)
    }
}

#[interface]
trait Reads {
    #[read]
    fn cents(&self) -> u64;
}

#[derive(Object)]
struct Purse {
    cents: u64,
}

impl Reads for Purse {
    fn cents(this: &Obj<Purse>) -> Called<u64> {
        Ok(this.cents())
    }
}

/// A stranger that has greeted and bound the service.
fn greet(path: &Path, client: u64) -> Stranger<Memory> {
    let mut stranger = Stranger::greet(Memory::connect(path), client);
    stranger.bind(<dyn Tally as tercel::__private::ServiceInterface>::SCHEMA);
    stranger
}

/// The next response.
fn response(stranger: &mut Stranger<Memory>) -> (u16, u64, Result<u64, Option<Refusal>>) {
    let body = stranger.read_to(Kind::Response);
    let response = Response::decode(&body).unwrap();
    let said = match response.end {
        ResponseEnd::Returned(_, bytes) => Ok(u64::from_le_bytes(bytes.try_into().unwrap())),
        ResponseEnd::Refused(why, _) => Err(Some(why)),
        _ => Err(None),
    };
    (response.slot, response.seq, said)
}

fn count(slot: u16, seq: u64) -> Request<'static> {
    Request {
        slot: Some(slot),
        seq,
        again: false,
        interface: 0,
        method: 0,
        object: None,
        key: &[],
        payload: &[],
    }
}

struct Place {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    counted: Counted,
    server: Server,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let (socket, counted) = (dir.path().join("socket"), Counted::default());
    let builder = Server::builder(dir.path().join("space")).listen(Address::Unix(socket.clone()));
    let server = builder.methods(Purse::METHODS).service(Tally::serve(counted.clone())).start().unwrap();
    Place { _dir: dir, socket, counted, server }
}

#[test]
fn stranger_that_repeats_its_calls_has_each_executed_once() {
    let Place { socket, counted, server: _server, .. } = &place();
    let mut stranger = greet(socket, 66);
    for (slot, seq, executed) in [(0, 1, 1), (3, 7, 2), (0, 2, 3), (3, 8, 4)] {
        for _ in 0..5 {
            stranger.stream.line(&count(slot, seq)).unwrap();
            assert_eq!(response(&mut stranger), (slot, seq, Ok(executed)), "the answer of then");
        }
    }
    // Old copies say nothing.
    (1..=7).for_each(|seq| stranger.stream.line(&count(3, seq)).unwrap());
    stranger.stream.line(&count(9, 1)).unwrap();
    assert_eq!(response(&mut stranger), (9, 1, Ok(5)));
    // What has no object there, or no method, is sent elsewhere; what it has in its place is read.
    let client = Client::connect(Address::Unix(socket.clone())).unwrap();
    let purse = client.run(|tx| tx.create(&Purse { cents: 9 })).unwrap();
    let nowhere = Oref::new(PageId::new(4_000).unwrap(), 1).unwrap();
    let elsewhere = Err(Some(Refusal::Elsewhere));
    for (seq, oref, interface, payload, said) in [
        (1, purse.oref(), 0, &[][..], Ok(9)),
        (2, nowhere, 0, &[], elsewhere),
        (3, purse.oref(), 7, &[], elsewhere),
        (4, purse.oref(), 0, &[1, 2, 3], elsewhere),
        (1, purse.oref(), 0, &[], Ok(9)),
    ] {
        let object = Some((oref, Stamp::MAX));
        let call = Request { slot: None, seq, again: false, interface, method: 0, object, key: &[], payload };
        stranger.stream.line(&call).unwrap();
        assert_eq!(response(&mut stranger), (OBJECT_SLOT, seq, said), "call {seq}");
    }
    // A slot that was not granted costs it the connection.
    stranger.stream.line(&count(255, 1)).unwrap();
    assert_eq!(response(&mut stranger), (255, 1, Ok(6)), "the last slot is granted");
    let mut body = Vec::new();
    count(0, 1).encode(&mut body);
    body[..2].copy_from_slice(&300u16.to_le_bytes());
    stranger.stream.raw_line(&body).unwrap();
    stranger.stream.await_end();
    assert_eq!((counted.of(66), client.service::<dyn Tally>().count()), (6, Ok(1)));
}

#[test]
fn memory_that_is_written_all_over_harms_nobody_else() {
    let Place { _dir: _kept, socket, server, .. } = place();
    let (is_over, executed) = (AtomicBool::new(false), AtomicU64::new(0));
    let honest = Client::connect(Address::Unix(socket.clone())).unwrap();
    let purse = honest.run(|tx| tx.create(&Purse { cents: 9 })).unwrap();
    thread::scope(|scope| {
        let _ends = Ends(&is_over);
        let calls = scope.spawn(|| {
            let (tally, purse) = (honest.service::<dyn Tally>(), honest.handle(purse).remote());
            while !is_over.load(Ordering::SeqCst) {
                let next = executed.load(Ordering::SeqCst) + 1;
                assert_eq!((tally.count(), purse.cents()), (Ok(next), Ok(9)));
                executed.store(next, Ordering::SeqCst);
            }
        });
        for seed in 0..40 {
            let mut stranger = greet(&socket, 1_000 + seed);
            let (is_left, scribbled) = (AtomicBool::new(false), AtomicU64::new(0));
            let mapped = stranger.stream.mapped.clone();
            thread::scope(|scope| {
                let _ends = Ends(&is_left);
                // A thread of its own, so that the memory changes at any moment: while a call is sent,
                // received or answered there.
                scope.spawn(|| {
                    let mut random = Random::new(seed);
                    let bytes = mapped.bytes;
                    while !is_left.load(Ordering::SeqCst) {
                        let mut noise = vec![0; 1 + random.index(64)];
                        noise.iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
                        // Mostly where the rings are, at the begin.
                        let span = if random.index(4) > 0 { bytes.min(16 << 10) } else { bytes };
                        let at = random.next_u64() % span.saturating_sub(64).max(1);
                        mapped.write_at(at, &noise);
                        scribbled.fetch_add(1, Ordering::SeqCst);
                    }
                });
                let mut random = Random::new(1_000 + seed);
                for seq in 1..200 {
                    // The memory is full, or not as it left it: so be it.
                    let _ = stranger.stream.line(&count((seq % 3) as u16, seq));
                    if random.index(20) == 0 {
                        let _ = stranger.stream.receiver.receive();
                    }
                }
                // The stranger is still there, and still writes: others go on.
                let executed = || executed.load(Ordering::SeqCst);
                let written = || scribbled.load(Ordering::SeqCst);
                let (before, noise, end) = (executed(), written(), Instant::now() + Duration::from_secs(10));
                while (executed() < before + 2 || written() < noise + 200) && !calls.is_finished() {
                    assert!(Instant::now() < end, "others stand still beside stranger {seed}");
                    thread::yield_now();
                }
            });
        }
    });
    assert_eq!(honest.service::<dyn Tally>().count(), Ok(executed.into_inner() + 1));
    drop(honest);
    server.stop().unwrap();
}
