//! A call in a line while the memory to the server is full: its caller comes back in time, whatever it has to
//! send meanwhile.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use tercel::tools::wire::frame::{Header, Kind, encode};
use tercel::tools::wire::message::Stream;
use tercel::{Address, Called, Client, Context, Server, Stamp, service};
use tercel_events::shm::{LINE_BYTES, Receiver, SendError, Sender};

use crate::common::relay::{accept, knock};

#[service]
trait Notes {
    fn count(&self) -> u64;
    #[one_way]
    fn note(&self);
}

#[derive(Default)]
struct MyNotes(AtomicU64);

impl Notes for MyNotes {
    fn count(&self, _: &Context<'_>) -> Called<u64> {
        Ok(self.0.load(Ordering::SeqCst))
    }

    fn note(&self, _: &Context<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Messages that a direction holds, as both ends of a connection have it. What was read is told to the sender
/// with each block, and each half of that.
const LINES: u64 = 64;

/// The instructions of a test to a relay between a client and its server.
#[derive(Default)]
struct Hand {
    /// Nothing is to be taken from the client, and nothing is any more.
    is_held: AtomicBool,
    holds: AtomicBool,
    /// Messages that were taken from it and that it was not told of.
    untold: AtomicU64,
    /// The server seems to ask for acknowledgements.
    asks: AtomicBool,
    is_over: AtomicBool,
}

/// Forwards all that is there, and counts messages of which the sender is not told.
fn forward(from: &mut Receiver, to: &mut Sender, untold: &AtomicU64) {
    let mut block = Vec::new();
    while let Ok(Some(message)) = from.receive() {
        let line: [u8; LINE_BYTES] = *message.line();
        block.clear();
        let has_block = message.block.as_ref().map(|bytes| bytes.copy_to(&mut block)).is_some();
        drop(message);
        let end = Instant::now() + Duration::from_secs(10);
        while let Err(e) = to.send(&line, has_block.then_some(&block)) {
            assert!(e == SendError::Full && Instant::now() < end, "the reader does not keep up: {e:?}");
            thread::yield_now();
        }
        let before = untold.load(Ordering::SeqCst);
        let is_told = has_block || before + 1 == LINES / 2;
        untold.store(if is_told { 0 } else { before + 1 }, Ordering::SeqCst);
    }
}

/// News of nothing, which the client is to acknowledge.
fn asks() -> Vec<u8> {
    let (mut body, mut frame) = (Vec::new(), Vec::new());
    let (changes, revoked) = (Vec::new(), Vec::new());
    Stream { from: Stamp(0), to: Stamp(0), changes, revoked, ack: true }.encode(&mut body);
    encode(Header::new(Kind::Stream, 0), &body, &mut frame);
    frame
}

/// Stands between the server and the first client that comes.
fn relay(listener: &UnixListener, target: PathBuf, hand: &Hand) {
    let (here, there) = (accept(listener.accept().unwrap().0), knock(&target));
    let ((_client, here), (_server, there)) = (here, there);
    let ((mut to_client, mut from_client), (mut to_server, mut from_server)) = (here.split(), there.split());
    while !hand.is_over.load(Ordering::SeqCst) {
        let is_held = hand.is_held.load(Ordering::SeqCst);
        hand.holds.store(is_held, Ordering::SeqCst);
        if !is_held {
            forward(&mut from_client, &mut to_server, &hand.untold);
        }
        forward(&mut from_server, &mut to_client, &AtomicU64::new(0));
        if hand.asks.load(Ordering::SeqCst) {
            (0..20).for_each(|_| to_client.send(&[0; LINE_BYTES], Some(&asks())).unwrap());
            hand.asks.store(false, Ordering::SeqCst);
        }
        thread::yield_now();
    }
}

#[test]
fn caller_by_a_line_comes_back_though_it_has_to_send_into_a_full_ring() {
    for _ in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let [target, path] = ["socket", "relay"].map(|name| dir.path().join(name));
        let server = Server::builder(dir.path().join("space")).listen(Address::Unix(target.clone()));
        let server = server.service(Notes::serve(MyNotes::default())).start().unwrap();
        let (listener, hand) = (UnixListener::bind(&path).unwrap(), Arc::new(Hand::default()));
        let relaying = thread::spawn({
            let hand = hand.clone();
            move || relay(&listener, target, &hand)
        });
        let client = Arc::new(Client::connect(Address::Unix(path)).unwrap());
        let calls = client.service::<dyn Notes>();
        (0..5).for_each(|_| assert_eq!(calls.count(), Ok(0)));
        hand.is_held.store(true, Ordering::SeqCst);
        while !hand.holds.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        // The call itself takes the last line.
        let free = LINES - hand.untold.load(Ordering::SeqCst);
        (1..free).for_each(|_| calls.note().unwrap());
        let (say, said) = channel();
        hand.asks.store(true, Ordering::SeqCst);
        let calling = thread::spawn({
            let (client, hand) = (client.clone(), hand.clone());
            move || {
                while hand.asks.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
                say.send(client.service::<dyn Notes>().within(Duration::from_micros(1)).count()).unwrap();
            }
        });
        // Nothing tells when the caller stands at the full ring, or has given up there: it has 1 us.
        thread::sleep(Duration::from_millis(50));
        hand.is_held.store(false, Ordering::SeqCst);
        let begun = Instant::now();
        _ = said.recv_timeout(Duration::from_secs(10)).expect("the caller has not come back");
        assert!(begun.elapsed() < Duration::from_secs(10));
        calling.join().unwrap();
        assert_eq!(calls.count(), Ok(free - 1), "nothing was lost");
        drop(client);
        server.stop().unwrap();
        hand.is_over.store(true, Ordering::SeqCst);
        relaying.join().unwrap();
    }
}
