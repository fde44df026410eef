//! Small calls over datagrams beside strangers that send what no client sends, by the same without them.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tercel::{Address, Transport};
use tercel_machine::random::Random;

use super::{Ends, Place, Procedures, ProceduresCalls, Waits, failed, placed, rounds};
use crate::Options;
use crate::blocks::alternate;
use crate::report::Row;
use crate::scratch::Scratch;

/// The name of this row in `--only`.
pub const HOSTILE: &str = "hostile";

/// Measures the rate of calls beside strangers.
///
/// # Errors
/// A sentence: what failed.
pub fn row(options: &Options, scratch: &Scratch) -> Result<Row, String> {
    options.say("calls over datagrams beside strangers");
    let (first, last) = placed::ends();
    let place = Place { road: Transport::Udp, waits: Waits::Sleeping, apart: true };
    let ends = placed::on(last, || Ends::begin(&scratch.join(HOSTILE), place.spin()))?;
    let Address::Udp(server) = ends.server.address()? else {
        return Err("the server has no datagrams".into());
    };
    let server: SocketAddr = server.parse().map_err(failed)?;
    let (attacks, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let strangers = strangers()?;
    let (sent, attacked_s) = (AtomicU64::new(0), Cell::new(0.0));
    placed::on(first, || {
        let client = ends.client(place)?;
        let service = client.service::<dyn Procedures>();
        let mut executed = service.count(&[]).map_err(failed)?;
        let mut block = |are_there| {
            attacks.store(are_there, Ordering::Relaxed);
            let begun = Instant::now();
            for _ in 0..CALLS {
                let now = service.count(&[]).map_err(failed)?;
                if now != executed + 1 {
                    return Err(format!("{now} calls were executed, after {executed}: not each once"));
                }
                executed = now;
            }
            let took_s = begun.elapsed().as_secs_f64();
            if are_there {
                attacked_s.set(attacked_s.get() + took_s);
            }
            Ok(CALLS as f64 / took_s)
        };
        let pairs = std::thread::scope(|scope| {
            scope.spawn(|| attack((&strangers, server), &attacks, &is_over, &sent));
            let block = std::cell::RefCell::new(&mut block);
            let pairs =
                alternate(rounds(options), || (block.borrow_mut())(false), || (block.borrow_mut())(true));
            is_over.store(true, Ordering::Relaxed);
            pairs
        })?;
        let rate = sent.load(Ordering::Relaxed) as f64 / attacked_s.get();
        if rate < PACKETS_MIN {
            return Err(format!("strangers sent {rate:.0} packets a second: too few for a row about them"));
        }
        let n = (pairs.pairs.len() * CALLS) as u64;
        let note = format!(
            "a null call each, executed once, beside {rate:.0} packets a second of {STRANGERS} strangers: noise, and forged \
             pieces and reports of connections that are not theirs"
        );
        Ok(Row::compared("rpc.hostile.udp", "calls/s", &pairs, "no strangers", n).note(note))
    })
}

fn strangers() -> Result<Vec<UdpSocket>, String> {
    (1..=STRANGERS).map(|n| UdpSocket::bind((Ipv4Addr::new(127, 9, 0, n), 0)).map_err(failed)).collect()
}

/// Sends packets until that is over: so many after each pause, which makes their rate.
fn attack(
    (strangers, server): (&[UdpSocket], SocketAddr),
    attacks: &AtomicBool,
    is_over: &AtomicBool,
    sent: &AtomicU64,
) {
    let mut random = Random::new(32);
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
        if !attacks.load(Ordering::Relaxed) {
            continue;
        }
        for _ in 0..AT_ONCE {
            let mut packet = vec![0; 32 + random.index(100)];
            packet.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
            if random.below(2) == 0 {
                // A piece, or a report.
                packet[..4].copy_from_slice(&[b'T', b'D', 1, 5 + random.below(2) as u8]);
            }
            // One that finds no room is lost, as on any network.
            let is_sent = random.pick(strangers).send_to(&packet, server).is_ok();
            sent.fetch_add(u64::from(is_sent), Ordering::Relaxed);
        }
    }
}

const STRANGERS: u8 = 64;
/// Packets after a pause.
const AT_ONCE: usize = 10;
const PAUSE: Duration = Duration::from_millis(1);
/// Packets a second, below which the row would say nothing.
const PACKETS_MIN: f64 = 1_000.0;
/// Calls of a block.
const CALLS: usize = 2_000;
