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
}

fn frames(calls: std::ops::Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    calls.for_each(|call| encode(Header::new(Kind::Ping, call), b"", &mut bytes));
    bytes
}

impl Host {
    fn new() -> Host {
        let bounds = Bounds { unsent_ask_max: ASK_MAX, ..Bounds::default() };
        let mut scheduler = Scheduler::new(bounds);
        scheduler.connected(A, Origin::Network);
        scheduler.connected(B, Origin::Network);
        scheduler.begin_slice(Now(0));
        Host { scheduler, now: Now(0).plus_us(limits::SLICE_US), handled: Vec::new() }
    }

    fn receive(&mut self, conn: Conn, bytes: &[u8], unsent_bytes: usize) -> Decision {
        let handle = |header: Header, _: &[u8]| self.handled.push((conn, header.call));
        self.scheduler.received(conn, bytes, unsent_bytes, || self.now, handle).decision
    }

    fn serve(&mut self, unsent_bytes: usize) -> Option<(Conn, Decision)> {
        let handle = |conn, header: Header, _: &[u8]| self.handled.push((conn, header.call));
        self.scheduler.serve_next(|_| unsent_bytes, || self.now, handle)
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
