//! The question whether a server serves: answered at once, whatever the disk does.

use crate::world::hand::{A, B, Hand, Said, Work, object};
use tercel_engine::limits::LOG_STALLED_US;
use tercel_engine::server::{Conn, Effect, Effects, Input, Recovery, Server, ServerConfig};
use tercel_engine::time::Now;
use tercel_wire::frame::{Header, Kind, split};
use tercel_wire::id::{ClientId, LogPosition, OpId, Oref, PageId, SpaceId, ViewId};
use tercel_wire::message::{Health, HealthState, Write};

fn told(said: &Said) -> Health {
    let [(_, Kind::Health, 7, body)] = &said[..] else { panic!("{said:?}") };
    Health::decode(body).unwrap()
}

fn ask(h: &mut Hand, conn: Conn) -> Health {
    told(&h.send(conn, Kind::AskHealth, |_| ()))
}

/// Has a client commit an object, which the log does not write.
fn commit_unwritten(h: &mut Hand) {
    let (class, page) = (h.define(A), h.lease(A, 1)[0]);
    let object = object(class, 1);
    let write = Write { oref: Oref::new(page, 0).unwrap(), new: true, object: &object };
    let work = Work { base: h.server.visible(), reads: vec![], writes: vec![write] };
    let op = OpId { client: ClientId(5), slot: 0, seq: 1, view: ViewId::new(1, 7) };
    assert_eq!(h.commit(A, op, &work), [], "it waits for the log");
}

#[test]
fn server_says_how_long_it_has_been_up() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    let before = ask(&mut h, A);
    assert_eq!((before.state, before.calls, before.reason.as_str()), (HealthState::Serving, 0, ""));
    h.now = h.now.plus_us(3_000_000);
    assert_eq!(ask(&mut h, A).up_us, before.up_us + 3_000_000);
}

#[test]
fn server_answers_while_log_and_page_store_say_nothing() {
    let mut h = Hand::storing(ServerConfig::default(), 2_000);
    let page = PageId::new(1_000).unwrap();
    assert_eq!(h.fetch(B, page, 1), []);
    assert_eq!(h.reads, [page], "which the store never answers");
    commit_unwritten(&mut h);
    assert_eq!(ask(&mut h, B).state, HealthState::Serving, "a sync takes its time");
    h.now = h.now.plus_us(LOG_STALLED_US);
    let stuck = ask(&mut h, B);
    assert_eq!(stuck.state, HealthState::ReadOnly);
    assert_eq!(stuck.reason, "the log has written nothing for 5 s: commits wait for it");
    h.sync();
    assert_eq!(ask(&mut h, B).state, HealthState::Serving);
    h.now = h.now.plus_us(10 * LOG_STALLED_US);
    assert_eq!(ask(&mut h, B).state, HealthState::Serving, "it has nothing to write");
}

#[test]
fn log_that_still_writes_is_not_stuck() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    commit_unwritten(&mut h);
    let ordered = h.log.len();
    h.greet(B, 6, 1);
    h.ask_places(B, 1);
    assert!(h.log.len() > ordered, "the log has more to write");
    h.now = h.now.plus_us(LOG_STALLED_US);
    h.sync_upto(ordered);
    h.now = h.now.plus_us(LOG_STALLED_US - 1);
    assert_eq!(ask(&mut h, B).state, HealthState::Serving);
}

#[test]
fn full_disk_is_read_only() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    h.input(Input::DiskFull(true));
    let full = ask(&mut h, A);
    assert_eq!(full.state, HealthState::ReadOnly);
    assert!(full.reason.contains("the disk is full"), "{}", full.reason);
    h.input(Input::DiskFull(false));
    assert_eq!(ask(&mut h, A).state, HealthState::Serving);
}

#[test]
fn server_that_does_not_lead_yet_says_so_before_a_greeting() {
    let mut out = Effects::default();
    let recovery = Recovery::new(ServerConfig::default(), SpaceId(1), None, 0).unwrap();
    let mut server = recovery.finish(Now(0), 7, LogPosition(0), &mut out).unwrap();
    server.handle(Now(0), Input::Connected(A, Default::default()), &mut out);
    let ask = |server: &mut Server| {
        let mut out = Effects::default();
        server.handle(Now(0), Input::Frame(A, Header::new(Kind::AskHealth, 7), &[]), &mut out);
        let [Effect::Send(A, bytes)] = &out.list[..] else { panic!("{:?}", out.list) };
        let (_, body, _) = split(bytes).unwrap().unwrap();
        Health::decode(body).unwrap().state
    };
    assert_eq!(ask(&mut server), HealthState::NotLeading);
    let appended = out.list.iter().filter(|effect| matches!(effect, Effect::Append(..))).count();
    let written = Input::Written(0, LogPosition(appended as u64));
    server.handle(Now(0), written, &mut out);
    assert_eq!(ask(&mut server), HealthState::Serving);
}

#[test]
fn server_without_calls_is_drained_at_once_and_goes_on_to_commit() {
    let mut h = Hand::new();
    h.greet(A, 5, 1);
    h.greet(B, 6, 1);
    assert!(!h.server.is_drained());
    h.input(Input::Drain);
    assert!(h.server.is_drained());
    let draining = ask(&mut h, B);
    assert_eq!(draining.state, HealthState::Draining);
    assert!(draining.reason.contains("is about to stop"), "{}", draining.reason);
    commit_unwritten(&mut h);
    assert!(h.server.is_drained(), "a commit of a client is no call");
}
