//! Packets of calls over datagrams.

use std::net::SocketAddr;
use std::sync::Arc;

use tercel_datagram::packet::{HEADER_BYTES, decode, encode};
use tercel_datagram::seal::{KEY_BYTES, Seal};
use tercel_datagram::{Answerer, Asked, Caller, Limits, Packets};
use tercel_machine::time::Now;

/// Reads the bytes as a packet. Then two ends of a connection, with a call under way, take pieces of the
/// bytes as packets of their own connection.
pub fn run(data: &[u8]) {
    if let Ok((head, body)) = decode(data) {
        let mut bytes = Vec::new();
        encode(&head, &body, &mut bytes);
        assert_eq!(decode(&bytes), Ok((head, body)), "it is not read as it was written");
    }
    see_seal(data);
    let address = SocketAddr::from(([127, 0, 0, 1], 9));
    let limits = Limits {
        connections: 4,
        request_bytes: 1 << 16,
        pending_bytes: 1 << 16,
        answer_bytes: 1 << 16,
        seal_bytes: 0,
        idle_us: 0,
    };
    let mut server = Answerer::new(limits, Box::new(|_, incarnation| incarnation ^ 7));
    let (mut to_server, mut to_caller) = (Packets::default(), Packets::default());
    let (mut news, mut asked) = (Vec::new(), Vec::new());
    let mut caller = Caller::new(Now(1), 1, 0, &mut to_server);
    let incarnation = caller.incarnation();
    caller.call(Now(1), Arc::new(vec![3; 5_000]), &mut to_server);
    // A quarter of the packets is lost.
    for (at, piece) in data.split(|byte| *byte == b'|').take(PIECES_MAX).enumerate() {
        let now = Now(1 + at as u64 * 1_000);
        exchange(now, address, (&mut caller, &mut server), (&mut to_server, &mut to_caller), &mut asked);
        let mut packet = b"TD\x01".to_vec();
        packet.extend(piece);
        if packet.len() >= HEADER_BYTES {
            packet[16..24].copy_from_slice(&incarnation.to_le_bytes());
        }
        server.packet(now, address, &packet, &mut to_caller, &mut asked);
        caller.packet(now, &packet, &mut to_server, &mut news);
        caller.time(now, &mut to_server, &mut news);
        assert!(server.connections() <= limits.connections, "more connections are remembered than may be");
    }
}

/// Bytes of a stranger open nothing behind a seal, and what was sealed after them opens.
fn see_seal(data: &[u8]) {
    let secret = [7; 2 * KEY_BYTES];
    let (mut caller, mut answerer) = (Seal::of_caller(1, &secret), Seal::of_answerer(1, &secret));
    let (mut sealed, mut room) = (Vec::new(), Vec::new());
    for piece in data.split(|byte| *byte == b'|').take(PIECES_MAX) {
        let forged = [b"TD\x02", piece].concat();
        assert!(answerer.open(&forged, &mut room).is_none(), "a forged packet opens");
    }
    caller.seal(data, &mut sealed);
    assert_eq!(answerer.open(&sealed, &mut room), Some(data));
    assert!(answerer.open(&sealed, &mut room).is_none(), "a packet opens twice");
}

fn exchange(
    now: Now,
    address: SocketAddr,
    (caller, server): (&mut Caller, &mut Answerer),
    (to_server, to_caller): (&mut Packets<()>, &mut Packets<SocketAddr>),
    asked: &mut Vec<Asked>,
) {
    let sent = std::mem::take(to_server);
    for (_, packet) in sent.iter().enumerate().filter(|(i, _)| i % 4 != 3).map(|(_, sent)| sent) {
        server.packet(now, address, packet, to_caller, asked);
    }
    for asked in asked.drain(..) {
        if let Asked::Request(connection, exchange, request) = asked {
            server.answer(now, connection, exchange, Arc::new(request), to_caller);
        }
    }
    let sent = std::mem::take(to_caller);
    for (_, packet) in sent.iter() {
        caller.packet(now, packet, to_server, &mut Vec::new());
    }
}

/// Packets of one run.
const PIECES_MAX: usize = 64;
