//! When clients come back to a server that turns them away: after pauses that grow, and not all at the same
//! moment.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use tercel::tools::wire::deframer::Deframer;
use tercel::tools::wire::frame::{self, Header, Kind, WIRE_VERSION};
use tercel::tools::wire::id::{SpaceId, Stamp, ViewId};
use tercel::tools::wire::message::Welcome;
use tercel::tools::wire::page::PAGE_BYTES;
use tercel::{Address, Client, ClientConfig};

/// The longest that a client rests between two attempts at first, and in the end.
const PAUSES_MS: [u64; 9] = [5, 10, 20, 40, 80, 160, 320, 320, 320];

/// A server that greets once and then ends every connection: where it listens, and the pauses of the client
/// that comes.
fn moody(at: &Path) -> (Address, impl FnOnce() -> Vec<Duration> + use<>) {
    let listener = UnixListener::bind(at).unwrap();
    let pauses = std::thread::spawn(move || {
        greet(listener.accept().unwrap().0);
        // The first attempt comes at once.
        let mut ended = None;
        let mut pauses = Vec::new();
        while pauses.len() < PAUSES_MS.len() {
            drop(listener.accept().unwrap());
            let now = Instant::now();
            pauses.extend(ended.replace(now).map(|before| now - before));
        }
        pauses
    });
    (Address::Unix(at.into()), || pauses.join().unwrap())
}

fn greet(mut client: UnixStream) {
    let (mut deframer, mut buffer) = (Deframer::default(), [0; 4096]);
    while deframer.next_frame().unwrap().is_none() {
        let n = client.read(&mut buffer).unwrap();
        deframer.push(&buffer[..n]);
    }
    let welcome = Welcome {
        version: WIRE_VERSION,
        space: SpaceId(1),
        view: ViewId::new(1, 1),
        places: false,
        watermark: Stamp(0),
        resumed: false,
        keepalive_ms: 60_000,
        credit: 16,
        credit_bytes: 1 << 20,
        transaction_bytes_max: 1 << 20,
        page_bytes: PAGE_BYTES as u16,
        servers: vec![],
    };
    let (mut body, mut bytes) = (Vec::new(), Vec::new());
    welcome.encode(&mut body);
    frame::encode(Header::new(Kind::Welcome, 1), &body, &mut bytes);
    client.write_all(&bytes).unwrap();
}

#[test]
fn clients_that_are_turned_away_come_back_after_growing_pauses_and_each_in_its_own_time() {
    let dir = tempfile::tempdir().unwrap();
    let (one, pauses_of_one) = moody(&dir.path().join("one"));
    let (two, pauses_of_two) = moody(&dir.path().join("two"));
    let config = ClientConfig { shared_memory: tercel::SharedMemory::Off, ..ClientConfig::default() };
    let clients = [one, two].map(|at| Client::connect_with(&at, config.clone()).unwrap());
    let [one, two] = [pauses_of_one(), pauses_of_two()];
    let nominal = PAUSES_MS.map(Duration::from_millis);
    // Of the long ones, which no busy machine makes differ so much.
    let pairs = one.iter().zip(&two).zip(&nominal).skip(4);
    let differ = pairs.filter(|((a, b), nominal)| a.abs_diff(**b) > **nominal / 24).count();
    assert!(differ > 0, "two clients come back at the same times: {one:?} and {two:?}");
    for pauses in [one, two] {
        let (total, most): (Duration, Duration) = (pauses.iter().sum(), nominal.iter().sum());
        assert!(total > most / 2 - Duration::from_millis(50), "the pauses are too short: {pauses:?}");
        assert!(total < most + Duration::from_secs(5), "the pauses are too long: {pauses:?}");
        let long = pauses.iter().filter(|p| **p > nominal[8] / 2 - Duration::from_millis(20)).count();
        assert!((3..=6).contains(&long), "the pauses do not grow: {pauses:?}");
    }
    drop(clients);
}
