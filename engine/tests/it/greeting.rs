//! Greetings by hand: how long one may hold the server up, and which histories a client may go on in.

use crate::world::hand::{A, B, Hand, Said, Work, object, recovery, refused};
use tercel_derive::service;
use tercel_engine::order::Sealed;
use tercel_engine::rpc::{Called, Context, ServiceInterface, Services};
use tercel_engine::server::{Conn, Effect, Effects, Input, Recovery, ServerConfig, Who};
use tercel_wire::frame::{Header, Kind, ONE_HOST, split};
use tercel_wire::id::{ClientId, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::interface::Interface;
use tercel_wire::message::{Bind, Hello, Refusal, Request, Resume, Stream, Welcome, Write};

fn begun() -> Hand {
    Hand::of(Recovery::new(ServerConfig::default(), SpaceId(1), None, 0).unwrap(), Vec::new())
}

fn resume(h: &mut Hand, conn: Conn, client: u64, resume: Resume) -> Said {
    h.input(Input::Connected(conn, Default::default()));
    let hello = Hello { resume: Some(resume), ..Hello::new(ClientId(client)) };
    h.send(conn, Kind::Hello, |o| hello.encode(o))
}

fn write(h: &mut Hand, conn: Conn, seq: u64, oref: Oref, new: bool, object: &[u8]) {
    let op = OpId { client: ClientId(5), slot: 0, seq, view: ViewId::new(1, 7) };
    let base = h.server.visible();
    h.commit(conn, op, &Work { base, reads: vec![], writes: vec![Write { oref, new, object }] });
    h.sync();
}

#[test]
fn one_host_is_granted_by_both_ends_alone() {
    for (client, server) in [(true, true), (true, false), (false, true)] {
        let mut h = begun();
        h.input(Input::Connected(A, Who { is_one_host: server, ..Who::default() }));
        let mut body = Vec::new();
        Hello::new(ClientId(5)).encode(&mut body);
        let capabilities = if client { !0 } else { 0 };
        let mut out = Effects::default();
        let hello = Header { capabilities, ..Header::new(Kind::Hello, 7) };
        h.server.handle(h.now, Input::Frame(A, hello, &body), &mut out);
        let welcome = out.list.iter().find_map(|effect| match effect {
            Effect::Send(_, bytes) => split(bytes).unwrap().map(|(header, ..)| header),
            _ => None,
        });
        let welcome = welcome.filter(|header| header.kind == Kind::Welcome).unwrap();
        assert_eq!(welcome.capabilities, if client && server { ONE_HOST } else { 0 });
    }
}

#[service(crate = "tercel_engine")]
pub trait Seven {
    fn seven(&self) -> u64;
}

struct Here;

impl Seven for Here {
    fn seven(&self, _: &Context<'_>) -> Called<u64> {
        Ok(7)
    }
}

#[test]
fn one_host_is_not_granted_by_a_request() {
    for is_granted in [false, true] {
        let services = Services::default().with(Seven::serve(Here));
        let mut h = Hand::with(ServerConfig { services, ..ServerConfig::default() });
        h.input(Input::Connected(A, Who { is_one_host: is_granted, ..Who::default() }));
        let named = |kind| Header { capabilities: !0, ..Header::new(kind, 7) };
        let mut ask = |kind, write: &dyn Fn(&mut Vec<u8>)| {
            let (mut body, mut out) = (Vec::new(), Effects::default());
            write(&mut body);
            h.server.handle(h.now, Input::Frame(A, named(kind), &body), &mut out);
            out.list.iter().find_map(|effect| match effect {
                Effect::Send(_, bytes) => split(bytes).unwrap().map(|(header, ..)| header),
                _ => None,
            })
        };
        ask(Kind::Hello, &|out| Hello::new(ClientId(5)).encode(out));
        let interface = Interface::of_service(<dyn Seven as ServiceInterface>::SCHEMA);
        ask(Kind::Bind, &|out| Bind { interface: interface.clone() }.encode(out));
        let request = Request {
            slot: Some(0),
            seq: 1,
            again: false,
            interface: 0,
            method: 0,
            object: None,
            key: &[],
            payload: &[],
        };
        let answer = ask(Kind::Request, &|out| request.encode(out)).expect("an answer");
        assert_eq!(answer.kind, Kind::Response);
        assert_eq!(answer.capabilities, if is_granted { ONE_HOST } else { 0 });
    }
}

#[test]
fn huge_greeting_is_taken_in_turns_and_others_are_served_between() {
    // About as many as a message of a megabyte can name.
    const PAGES: u32 = 87_000;
    let mut h = begun();
    h.greet(A, 5, 1);
    let (class, page) = (h.define(A), h.lease(A, 1)[0]);
    let (one, oref) = (object(class, 1), Oref::new(page, 0).unwrap());
    write(&mut h, A, 1, oref, true, &one);
    let (view, watermark) = (h.view(), h.server.visible());
    let pages = (0..PAGES).map(|n| (PageId::new(page.get() + n).unwrap(), 1)).collect();
    let mut said = resume(&mut h, B, 6, Resume { view, watermark, heard: watermark, pages });
    let mut turns = 0;
    while said.is_empty() {
        assert_eq!(h.server.deadline(), Some(h.now), "the rest waits for nothing");
        if turns == 3 {
            write(&mut h, A, 2, oref, false, &one);
        }
        let pong = h.send(A, Kind::Ping, |_| ());
        assert!(pong.iter().any(|(conn, kind, ..)| (*conn, *kind) == (A, Kind::Pong)));
        said = h.input(Input::Time);
        turns += 1;
    }
    assert!(turns >= 50, "the first {turns} turns took all of it");
    // Then it is welcomed, and told of what changed meanwhile.
    let kinds: Vec<Kind> = said.iter().filter(|s| s.0 == B).map(|s| s.1).collect();
    assert_eq!(kinds, [Kind::Welcome, Kind::Stream]);
    let welcome = Welcome::decode(&said[0].3).unwrap();
    assert_eq!((welcome.resumed, welcome.watermark), (true, watermark));
    let stream = Stream::decode(&said[1].3).unwrap();
    assert_eq!(stream.changes.iter().flat_map(|c| c.orefs.clone()).collect::<Vec<_>>(), [oref]);
}

#[test]
fn client_that_heard_of_what_was_not_kept_is_told_by_watermark_or_heard() {
    let mut first = begun();
    first.greet(A, 5, 1);
    let (class, page) = (first.define(A), first.lease(A, 1)[0]);
    let (one, oref) = (object(class, 1), Oref::new(page, 0).unwrap());
    (1..10).for_each(|seq| write(&mut first, A, seq, oref, seq == 1, &one));
    let end = first.last();
    let kept = Stamp(end.0 - 4);
    let log: Vec<Sealed> = first.log.iter().filter(|e| e.stamp <= kept).cloned().collect();
    let beyond = kept.next();
    for (watermark, heard, is_of_this_history) in [
        (kept, kept, true),
        (kept, Stamp::ZERO, true),
        (kept, beyond, false),
        (beyond, Stamp::ZERO, false),
        (end, end, false),
    ] {
        let mut h = Hand::of(recovery(&log), log.clone());
        // The new history comes to the same stamps, which prove nothing.
        h.greet(A, 5, 2);
        (0..10).for_each(|_| _ = h.lease(A, 1));
        assert!(h.server.visible() > end);
        let resumed = Resume { view: first.view(), watermark, heard, pages: vec![(page, 1)] };
        let said = resume(&mut h, B, 6, resumed);
        let told = refused(&said).map(|(reason, _)| reason);
        match is_of_this_history {
            true => assert!(said.iter().any(|s| s.1 == Kind::Welcome), "{watermark}, {heard}: {told:?}"),
            false => assert_eq!(told, Some(Refusal::History), "{watermark}, {heard}"),
        }
    }
}
