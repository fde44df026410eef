//! A host of a few connections: what is served when, and what is paused.

use tercel_wire::frame::{FRAME_BYTES, Kind, encode};

use super::*;

const A: Conn = Conn(1);
const B: Conn = Conn(2);
const ASK_MAX: usize = 1_000;

/// A scheduler with two connections, and a clock on which every frame takes a slice.
struct Host {
    scheduler: Scheduler,
    now: Now,
    handled: Vec<(Conn, u64)>,
    /// Receives of rests.
    receives: usize,
}

fn frames(calls: std::ops::Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    calls.for_each(|call| encode(Header::new(Kind::Ping, call), b"", &mut bytes));
    bytes
}

/// Bytes that an event brings, from which on a frame is large.
const PART: usize = 64 << 10;
const REST: usize = limits::RESTS_BYTES_AT_ONCE;

fn large(call: u64, body_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(Header::new(Kind::Request, call), &vec![7; body_bytes], &mut bytes);
    bytes
}

impl Host {
    fn new() -> Host {
        let bounds = Bounds { unsent_ask_max: ASK_MAX, received_bytes_max: 2 * PART, ..Bounds::default() };
        let mut scheduler = Scheduler::new(bounds);
        scheduler.connected(A, Origin::Network);
        scheduler.connected(B, Origin::Network);
        scheduler.begin_slice(Now(0));
        Host { scheduler, now: Now(0).plus_us(limits::SLICE_US), handled: Vec::new(), receives: 0 }
    }

    fn receive(&mut self, conn: Conn, bytes: &[u8], unsent_bytes: usize) -> Decision {
        let handle = |header: Header, _: &[u8]| self.handled.push((conn, header.call));
        self.scheduler.received(conn, bytes, unsent_bytes, || self.now, handle).decision
    }

    fn serve(&mut self, unsent_bytes: usize) -> Option<(Conn, Decision)> {
        let handle = |conn, header: Header, _: &[u8]| self.handled.push((conn, header.call));
        self.scheduler.serve_next(|_| unsent_bytes, || self.now, handle)
    }

    /// A host with time, where parts of large frames have arrived.
    fn amid(parts: &[(Conn, &[u8])]) -> Host {
        let mut host = Host::new();
        host.now = Now(0);
        parts.iter().for_each(|(conn, part)| assert_eq!(host.receive(*conn, part, 0), Decision::Keep));
        host
    }

    /// Receives what is due of the sockets of A and B.
    fn receive_rests(&mut self, mut sockets: [&mut &[u8]; 2]) -> Vec<(Conn, Decision)> {
        let mut decided = Vec::new();
        loop {
            let handle = |conn, header: Header, _: &[u8]| self.handled.push((conn, header.call));
            let receive = |conn, into: &mut Vec<u8>, bytes_max: usize| {
                self.receives += 1;
                let socket = &mut *sockets[usize::from(conn == B)];
                into.extend_from_slice(socket.split_off(..bytes_max.min(socket.len())).unwrap());
            };
            match self.scheduler.receive_rest(receive, || self.now, handle) {
                Some((conn, received)) => decided.push((conn, received.decision)),
                None => return decided,
            }
        }
    }

    fn handled(&mut self) -> Vec<(Conn, u64)> {
        std::mem::take(&mut self.handled)
    }
}

#[test]
fn when_the_slice_is_over_each_connection_has_one_frame_handled() {
    let mut host = Host::new();
    assert_eq!(host.receive(A, &frames(0..3), 0), Decision::Pause);
    assert_eq!(host.receive(B, &frames(0..1), 0), Decision::Keep);
    assert_eq!(host.receive(B, &frames(1..3), 0), Decision::Pause);
    assert_eq!(host.handled(), [(A, 0), (B, 0), (B, 1)]);
    assert!(!host.scheduler.is_idle());
    // In turn, until nothing is left of either.
    assert_eq!(host.serve(0), Some((A, Decision::Pause)));
    assert_eq!(host.serve(0), Some((B, Decision::Resume)));
    assert_eq!(host.serve(0), Some((A, Decision::Resume)));
    assert_eq!(host.serve(0), None);
    assert_eq!(host.handled(), [(A, 1), (B, 2), (A, 2)]);
    assert!(host.scheduler.is_idle() && host.scheduler.scheduled().turns == 3);
    assert_eq!(host.receive(A, &frames(7..8), 0), Decision::Keep);
}

#[test]
fn frames_of_a_waiting_connection_stay_in_order() {
    let mut host = Host::new();
    assert_eq!(host.receive(A, &frames(0..3), 0), Decision::Pause);
    assert_eq!(host.receive(A, &frames(3..4), 0), Decision::Keep);
    while host.serve(0).is_some() {}
    let calls: Vec<u64> = host.handled().into_iter().map(|(_, call)| call).collect();
    assert_eq!(calls, [0, 1, 2, 3]);
}

#[test]
fn connection_of_the_process_has_all_its_frames_handled() {
    let mut host = Host::new();
    host.scheduler.connected(B, Origin::Process);
    assert_eq!(host.receive(B, &frames(0..3), 2 * ASK_MAX), Decision::Keep);
    assert_eq!(host.handled().len(), 3);
}

#[test]
fn backpressured_connection_waits_until_it_has_read() {
    let mut host = Host::new();
    assert_eq!(host.receive(A, &frames(0..1), ASK_MAX + 1), Decision::Pause);
    assert_eq!(host.receive(A, &frames(1..2), 0), Decision::Pause);
    assert!(host.handled().is_empty() && host.scheduler.is_idle());
    assert_eq!(host.scheduler.drained(A), Decision::Keep);
    assert_eq!(host.scheduler.drained(B), Decision::Keep, "it was not backpressured");
    assert_eq!(host.serve(0), Some((A, Decision::Pause)));
    // Meanwhile it has asked for too much again.
    assert_eq!(host.serve(ASK_MAX + 1), None);
    assert_eq!(host.handled(), [(A, 0)]);
    assert_eq!(host.scheduler.drained(A), Decision::Keep);
    assert_eq!(host.serve(0), Some((A, Decision::Resume)));
    assert_eq!(host.scheduler.scheduled().backpressured, 2);
}

#[test]
fn drained_connection_without_kept_bytes_is_read_again() {
    let mut host = Host::new();
    assert_eq!(host.receive(A, b"", ASK_MAX + 1), Decision::Pause);
    assert_eq!(host.scheduler.drained(A), Decision::Resume);
}

#[test]
fn ended_connection_is_not_served() {
    let mut host = Host::new();
    assert_eq!(host.receive(A, &frames(0..3), 0), Decision::Pause);
    assert!(host.scheduler.closed(A, host.now, 10), "it may take what was sent");
    assert_eq!(host.serve(0), None);
    assert_eq!(host.receive(B, &frames(0..1), ASK_MAX + 1), Decision::Pause);
    assert!(!host.scheduler.closed(B, host.now, 10), "it does not read");
}

#[test]
fn bytes_that_are_no_frame_close_the_connection() {
    let mut host = Host::new();
    assert_eq!(host.receive(A, &[0; 2 * FRAME_BYTES], 0), Decision::Close);
}

#[test]
fn rest_of_a_large_frame_ends_exactly() {
    let frame = large(1, 300_000);
    let mut host = Host::amid(&[(A, &frame[..PART])]);
    let mut socket = &frame[PART..];
    assert_eq!(host.receive_rests([&mut socket, &mut &b""[..]]), [(A, Decision::Keep)]);
    assert_eq!((host.handled(), host.receives, socket.len()), (vec![(A, 1)], 1, 0));
    assert_eq!(host.receive(A, &frames(2..3), 0), Decision::Keep);
    assert_eq!(host.handled(), [(A, 2)]);
}

#[test]
fn surplus_behind_a_rest_is_handled() {
    // The second frame is gathered in the memory of the first, which is larger.
    let (first, second) = (large(1, 300_000), large(2, 200_000));
    let both = [&first[PART..], &second[..PART]].concat();
    let mut host = Host::amid(&[(A, &first[..PART]), (A, &both), (A, &second[PART..][..9])]);
    let rest = [&second[PART + 9..], &frames(3..5)].concat();
    assert_eq!(host.receive_rests([&mut &rest[..], &mut &b""[..]]), [(A, Decision::Keep)]);
    assert_eq!(host.handled(), [(A, 1), (A, 2), (A, 3), (A, 4)]);
}

#[test]
fn short_receive_is_the_last_one() {
    let frame = large(1, 300_000);
    let mut host = Host::amid(&[(A, &frame[..PART]), (B, &frame[..PART])]);
    // A has some more, and the peer of B none, or it has ended.
    assert_eq!(host.receive_rests([&mut &frame[PART..][..9], &mut &b""[..]]), [(A, Decision::Keep)]);
    assert_eq!((host.handled(), host.receives), (vec![], 2));
    assert_eq!(host.receive(A, &frame[PART + 9..], 0), Decision::Keep);
    assert_eq!(host.handled(), [(A, 1)]);
}

#[test]
fn damage_in_a_rest_closes_the_connection() {
    let mut frame = large(1, 300_000);
    *frame.last_mut().unwrap() ^= 1;
    let mut host = Host::amid(&[(A, &frame[..PART])]);
    assert_eq!(host.receive_rests([&mut &frame[PART..], &mut &b""[..]]), [(A, Decision::Close)]);
    assert!(host.handled().is_empty());
}

#[test]
fn rests_of_a_turn_are_bounded_and_shared() {
    let frame = large(1, 16 * REST);
    let parts = [&frame[..PART], &frame[PART..2 * PART], &frame[2 * PART..3 * PART]];
    let mut host = Host::amid(&parts.map(|part| (A, part)));
    // However many of its parts have come, a connection is one of them.
    let (mut of_a, mut of_b) = (&frame[3 * PART..], &frame[PART..]);
    assert_eq!(host.receive_rests([&mut of_a, &mut of_b]), [(A, Decision::Keep)]);
    assert_eq!(frame.len() - of_a.len(), 3 * PART + REST);
    let next = of_a.split_off(..PART).unwrap();
    assert_eq!([host.receive(A, next, 0), host.receive(B, &frame[..PART], 0)], [Decision::Keep; 2]);
    let before = of_a.len();
    assert_eq!(host.receive_rests([&mut of_a, &mut of_b]), [A, B].map(|conn| (conn, Decision::Keep)));
    assert_eq!([before - of_a.len(), frame.len() - PART - of_b.len()], [REST / 2; 2]);
    // One has what the other leaves.
    let (a, b) = (of_a.split_off(..PART).unwrap(), of_b.split_off(..PART).unwrap());
    assert_eq!([host.receive(B, b, 0), host.receive(A, a, 0)], [Decision::Keep; 2]);
    let before = of_a.len();
    assert_eq!(host.receive_rests([&mut of_a, &mut &of_b[..9]]).len(), 2);
    assert_eq!(before - of_a.len(), REST - 9);
}

#[test]
fn connection_about_to_end_receives_no_rest() {
    let frame = large(1, 300_000);
    let mut host = Host::amid(&[(A, &frame[..2 * PART])]);
    assert_eq!(host.scheduler.over_received(A, 2 * PART + 1, |_| true), [A]);
    assert_eq!(host.receive(A, &frame[2 * PART..3 * PART], 0), Decision::Keep);
    assert_eq!(host.receive_rests([&mut &frame[3 * PART..], &mut &b""[..]]), []);
    assert_eq!(host.receives, 0);
}
