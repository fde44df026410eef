//! Rights by hand: every kind of message by every role, and whose word counts.

use crate::calls::{C, Counts};
use crate::world::hand::{Hand, Said, Work, closed, object, recovery, refused};
use crate::world::requests::{ROLES, Requests, denial};
use tercel_derive::service;
use tercel_engine::rpc::{Called, Context, Offers, ReplyBody, ServiceInterface, Services};
use tercel_engine::server::{Conn, Effects, Express, Input, Local, LocalConfig, Recovery, ServerConfig, Who};
use tercel_wire::access::Principal;
use tercel_wire::frame::Kind;
use tercel_wire::id::{ClassId, ClientId, OpId, Oref, PageId, SpaceId, ViewId};
use tercel_wire::interface::Interface;
use tercel_wire::layout::{Layout, Shape};
use tercel_wire::message::*;
use tercel_wire::record::Text;
use tercel_wire::schema::Scalar;
use tercel_wire::vector::Vector;

/// A connection of the server's own process, which may do everything.
const OWN: Conn = Conn(1);
/// Connections of clients.
const X: Conn = Conn(2);
const Y: Conn = Conn(3);

#[service(crate = "tercel_engine")]
pub trait Asked {
    fn who(&self) -> Text;
}

pub struct Here;

impl Asked for Here {
    fn who(&self, cx: &Context<'_>) -> Called<Text> {
        Ok(cx.principal().to_string().into())
    }
}

fn config() -> ServerConfig {
    let services = Services::default().with(Asked::serve(Here));
    ServerConfig { services, methods: Offers::default().with(C::METHODS), ..ServerConfig::default() }
}

fn client(name: &str) -> Who {
    Who { name: Principal::client(name), ..Who::default() }
}

/// A server with an object in its first page.
struct Space {
    h: Hand,
    class: ClassId,
    page: PageId,
}

const SLOT: u16 = 3;

fn op(client: u64, seq: u64) -> OpId {
    OpId { client: ClientId(client), slot: SLOT, seq, view: ViewId::new(1, 7) }
}

impl Space {
    fn new() -> Space {
        let mut h = Hand::with(config());
        // The host vouches for nobody else.
        h.stranger = Some(X);
        h.input(Input::Connected(OWN, Who { is_own_process: true, ..Who::default() }));
        h.hello(OWN, 5, 1);
        let (class, page) = (h.define(OWN), h.lease(OWN, 1)[0]);
        let mut space = Space { h, class, page };
        let said = space.write(OWN, op(5, 1), true, 1);
        assert!(refused(&said).is_none(), "{said:?}");
        space.h.sync();
        space
    }

    fn oref(&self) -> Oref {
        Oref::new(self.page, 0).unwrap()
    }

    fn effects(&self, new: bool, n: u8) -> Vec<u8> {
        let object = object(self.class, n);
        let writes = vec![Write { oref: self.oref(), new, object: &object }];
        let mut bytes = Vec::new();
        Work { base: self.h.server.visible(), reads: vec![], writes }.encode(&mut bytes);
        bytes
    }

    fn write(&mut self, conn: Conn, op: OpId, new: bool, n: u8) -> Said {
        let bytes = self.effects(new, n);
        self.h.send(conn, Kind::Commit, |out| Commit { op, parts: 0, bytes: &bytes }.encode(out))
    }

    fn order(&mut self, step: Accessing, who: &str, role: &str) -> Said {
        let right = Right { who: who.parse().unwrap(), role: role.parse().unwrap() };
        self.h.send(OWN, Kind::Access, |out| Access { step, right: Some(right) }.encode(out))
    }

    fn grant(&mut self, who: &str, role: &str) -> Said {
        let mut said = self.order(Accessing::Grant, who, role);
        said.extend(self.h.sync());
        said
    }

    fn connect(&mut self, conn: Conn, who: Who, client: u64) -> Said {
        self.h.input(Input::Connected(conn, who));
        self.h.hello(conn, client, 1)
    }
}

/// The sentence of a denial, in whichever form.
fn denied(said: &Said) -> Option<String> {
    said.iter().find_map(|(_, kind, _, body)| match kind {
        Kind::Refused => {
            let refused = Refused::decode(body).unwrap();
            (refused.reason == Refusal::Denied).then_some(refused.text)
        }
        Kind::Response => match Response::decode(body).unwrap().end {
            ResponseEnd::Refused(Refusal::Denied, text) => Some(text.into()),
            _ => None,
        },
        _ => None,
    })
}

fn granted(who: &str, role: &str) -> Option<Right> {
    Some(Right { who: who.parse().unwrap(), role: role.parse().unwrap() })
}

/// Asks as client 6: with a message of each kind.
fn requests(s: &Space) -> Requests {
    Requests {
        client: ClientId(6),
        view: ViewId::new(1, 7),
        visible: s.h.server.visible(),
        class: s.class,
        page: s.page,
        service: Interface::of_service(<dyn Asked as ServiceInterface>::SCHEMA),
        of_objects: Offers::default().with(C::METHODS).interfaces().next().unwrap().clone(),
        revoked: granted("client:x", "read").unwrap(),
    }
}

#[test]
fn every_kind_of_message_needs_its_role() {
    let kinds = requests(&Space::new()).all().len();
    for role in ROLES {
        for i in 0..kinds {
            let mut s = Space::new();
            s.grant("client:x", role);
            let said = s.connect(X, client("x"), 6);
            assert!(said.iter().any(|(_, kind, ..)| *kind == Kind::Welcome), "{role}: {said:?}");
            let asked = requests(&s).all().swap_remove(i);
            let before = (s.h.log.len(), s.h.server.digest());
            let said = s.h.send(X, asked.kind, |out| out.extend(&asked.body));
            let denial = said.iter().find_map(|(_, kind, _, body)| denial(*kind, body));
            assert_eq!(denial.is_none(), asked.is_for(role, false), "{role} {:?} {i}: {said:?}", asked.kind);
            if let Some(text) = denial {
                asked.check_words("client:x", &text);
                let after = (s.h.log.len(), s.h.server.digest());
                assert_eq!(after, before, "{role} {:?}: something changed", asked.kind);
            }
        }
    }
}

#[test]
fn first_grant_shuts_anyone_out_and_keeps_operators() {
    let mut s = Space::new();
    for (conn, who, client) in [(X, Who::default(), 6), (Y, Who { uid: Some(0), ..Who::default() }, 7)] {
        s.connect(conn, who, client);
        assert!(refused(&s.h.fetch(conn, s.page, 1)).is_none());
    }
    let said = s.grant("client:x", "read");
    let (.., body) = said.iter().find(|(_, kind, ..)| *kind == Kind::Accessed).expect("an answer");
    assert!(Accessed::decode(body).unwrap().is_judged);
    assert!(closed(&said, X) && denied(&said).unwrap().contains("anyone lacks the role"), "{said:?}");
    // The host vouches for the superuser, who may grant and not read.
    let said = s.connect(Y, Who { uid: Some(0), ..Who::default() }, 8);
    assert!(said.iter().any(|(_, kind, ..)| *kind == Kind::Welcome), "{said:?}");
    assert!(denied(&s.h.fetch(Y, s.page, 1)).unwrap().contains("uid:0 lacks the role `read`"));
    let right = granted("uid:0", "read");
    s.h.send(Y, Kind::Access, |out| Access { step: Accessing::Grant, right }.encode(out));
    s.h.sync();
    assert_eq!(denied(&s.h.fetch(Y, s.page, 1)), None);
    // The last right is gone, and the space stays shut.
    for who in ["uid:0", "client:x"] {
        s.order(Accessing::Revoke, who, "read");
        s.h.sync();
    }
    assert!(denied(&s.connect(X, Who::default(), 9)).is_some());
}

#[test]
fn role_names_a_class_in_all_its_versions() {
    let mut s = Space::new();
    s.grant("client:x", "write D");
    s.connect(X, client("x"), 6);
    let said = s.write(X, op(6, 1), false, 2);
    assert!(denied(&said).unwrap().contains("client:x lacks the role `write C`"), "{said:?}");
    s.grant("client:x", "write C");
    s.connect(X, client("x"), 6);
    s.write(X, op(6, 2), false, 2);
    s.h.sync();
    // A younger version of the class is defined behind the grant.
    let fields = ["n", "m"].map(|name| (name.to_string(), Shape::Scalar(Scalar::U32))).to_vec();
    s.h.send(OWN, Kind::Define, |out| Layout::new("C".into(), fields).encode(out));
    s.h.sync();
    s.class = ClassId(s.class.0 + 1);
    let object: Vec<u8> = [object(s.class, 3), vec![0; 4]].concat();
    let writes = vec![Write { oref: s.oref(), new: false, object: &object }];
    let work = Work { base: s.h.server.visible(), reads: vec![], writes };
    let said = s.h.commit(X, op(6, 3), &work);
    assert_eq!(denied(&said), None);
    assert_eq!(s.h.last(), s.h.server.applied());
}

/// Revokes between the arrival of a commit and the moment in which it can be ordered.
fn commit_that_waits_is_judged_when_it_is_ordered() {
    let mut s = Space::new();
    s.grant("client:x", "write");
    s.connect(X, client("x"), 6);
    // The object is held by a part of another client.
    let (of, bytes) = (op(5, 9), s.effects(false, 7));
    let coordinator = SpaceId(9);
    let prepare = Prepare { op: op(5, 2), of, coordinator, seen: Vector::default(), bytes: &bytes };
    s.h.send(OWN, Kind::Prepare, |out| prepare.encode(out));
    let prepared = s.h.last();
    s.h.sync();
    assert_eq!(s.write(X, op(6, 1), false, 2), []);
    s.order(Accessing::Revoke, "client:x", "write");
    let settle = Settle { of, coordinator, prepared, seen: None, view: None };
    let said = s.h.send(OWN, Kind::Settle, |out| settle.encode(out));
    let text = denied(&said).expect("the commit is refused");
    assert!(text.contains("client:x lacks the role `write"), "{text}");
}

#[test]
fn waiting_commit_is_judged_where_it_is_ordered() {
    commit_that_waits_is_judged_when_it_is_ordered();
}

fn revoked_right_counts_at_once_and_ends_the_session() {
    let mut s = Space::new();
    s.grant("client:x", "read");
    s.connect(X, client("x"), 6);
    assert_eq!(denied(&s.h.fetch(X, s.page, 1)), None);
    s.order(Accessing::Revoke, "client:x", "read");
    assert!(denied(&s.h.fetch(X, s.page, 2)).unwrap().contains("client:x lacks the role `read`"));
    let said = s.h.sync();
    assert!(closed(&said, X), "{said:?}");
    assert!(denied(&s.connect(X, client("x"), 6)).is_some());
}

#[test]
fn revocation_ends_the_session() {
    revoked_right_counts_at_once_and_ends_the_session();
}

fn client_of_another_principal_is_refused() {
    let mut s = Space::new();
    s.grant("client:x", "write");
    s.grant("client:y", "write");
    s.connect(X, client("x"), 6);
    s.write(X, op(6, 1), false, 2);
    s.h.sync();
    // While it is connected, when it is gone, and after the server has been started anew.
    for round in 0..3 {
        if round == 1 {
            s.h.input(Input::Disconnected(X));
        }
        if round == 2 {
            let log = s.h.log.clone();
            s.h = Hand::of(recovery(&log), log);
        }
        let said = s.connect(Y, client("y"), 6);
        let (reason, text) = refused(&said).expect("it is refused");
        assert_eq!(reason, Refusal::Evicted, "{round}");
        assert!(text.contains("client 0000000000000006") && text.contains("client:y"), "{text}");
        assert!(closed(&said, Y));
    }
    let said = s.connect(X, client("x"), 6);
    assert!(said.iter().any(|(_, kind, ..)| *kind == Kind::Welcome), "{said:?}");
}

#[test]
fn client_of_another_is_refused() {
    client_of_another_principal_is_refused();
}

/// Asks for whom the server takes a connection.
fn whoami(h: &mut Hand, conn: Conn) -> Principal {
    let said = h.send(conn, Kind::Access, |out| Access { step: Accessing::Whoami, right: None }.encode(out));
    let (.., body) = said.iter().find(|(_, kind, ..)| *kind == Kind::Accessed).expect("an answer");
    Accessed::decode(body).unwrap().who
}

fn on_behalf_is_believed_of_members_alone() {
    let mut s = Space::new();
    s.grant("client:x", "read");
    let member = || Who { name: Principal::member("a-1"), ..Who::default() };
    // A certificate names a member, the group's secret proves one.
    for (conn, who, is_believed) in [(X, client("y"), false), (X, member(), false), (Y, member(), true)] {
        s.h.input(Input::Connected(conn, who));
        if is_believed {
            s.h.proves(conn);
        }
        let on_behalf = OnBehalf { who: Principal::client("x").unwrap() };
        let said = s.h.send(conn, Kind::OnBehalf, |out| on_behalf.encode(out));
        assert_eq!(denied(&said).is_none(), is_believed, "{said:?}");
        assert_eq!(closed(&said, conn), !is_believed);
    }
    assert_eq!(whoami(&mut s.h, Y), Principal::client("x").unwrap());
    s.h.hello(Y, 6, 1);
    assert_eq!(denied(&s.h.fetch(Y, s.page, 1)), None);
    // What is the member's is not its client's.
    assert!(denied(&s.h.send(Y, Kind::Stat, |_| ())).unwrap().contains("client:x lacks the role `operate`"));
}

#[test]
fn only_members_speak_for_others() {
    on_behalf_is_believed_of_members_alone();
}

#[test]
fn name_of_a_member_is_no_right() {
    let mut s = Space::new();
    s.grant("client:x", "read");
    // The host is asked, and does not vouch for it.
    let member = Who { name: Principal::member("a-1"), ..Who::default() };
    s.h.input(Input::Connected(X, member));
    for role in ["operate", "grant"] {
        let said = match role {
            "operate" => s.h.send(X, Kind::Stat, |_| ()),
            _ => s.h.send(X, Kind::Access, |out| {
                let right = Right { who: "member:a-1".parse().unwrap(), role: "grant".parse().unwrap() };
                Access { step: Accessing::Grant, right: Some(right) }.encode(out)
            }),
        };
        let text = denied(&said).expect("a denial");
        assert!(text.contains(&format!("member:a-1 lacks the role `{role}`")), "{text}");
    }
    s.h.proves(X);
    assert_eq!(denied(&s.h.send(X, Kind::Stat, |_| ())), None);
}

/// Says for whom it speaks: what the server says to that.
fn speak(s: &mut Space, conn: Conn, speaker: &str, whom: Principal) -> Said {
    s.h.input(Input::Connected(conn, client(speaker)));
    s.h.send(conn, Kind::OnBehalf, |out| OnBehalf { who: whom }.encode(out))
}

#[test]
fn speaker_has_rights_of_its_client_alone() {
    let mut s = Space::new();
    let x = || Principal::client("x").unwrap();
    for (who, role) in [("client:x", "read"), ("client:web", "speak-for"), ("client:web", "operate")] {
        s.grant(who, role);
    }
    s.grant("client:y", "read");
    let said = speak(&mut s, X, "y", x());
    assert!(denied(&said).unwrap().contains("client:y lacks the role `speak-for`"));
    for whom in [Principal::Uid(0), Principal::member("1").unwrap(), Principal::Anyone] {
        let said = speak(&mut s, X, "web", whom);
        assert!(denied(&said).unwrap().contains("`speak-for` is for clients alone"));
        assert!(closed(&said, X));
    }
    assert_eq!(denied(&speak(&mut s, X, "web", x())), None);
    assert_eq!(whoami(&mut s.h, X), x());
    s.h.hello(X, 6, 1);
    assert_eq!(denied(&s.h.fetch(X, s.page, 1)), None);
    let said = s.h.send(X, Kind::Stat, |_| ());
    assert!(denied(&said).unwrap().contains("client:x lacks the role `operate`"));
    // A client without grants lacks every role, with a speaker too.
    assert_eq!(denied(&speak(&mut s, Y, "web", Principal::client("z").unwrap())), None);
    assert!(denied(&s.h.hello(Y, 7, 1)).unwrap().contains("client:z lacks the role"));
}

#[test]
fn revoked_speaker_is_heard_no_longer() {
    let mut s = Space::new();
    for (who, role) in [("client:x", "read"), ("client:web", "speak-for")] {
        s.grant(who, role);
    }
    speak(&mut s, X, "web", Principal::client("x").unwrap());
    s.h.hello(X, 6, 1);
    s.connect(Y, client("x"), 7);
    s.order(Accessing::Revoke, "client:web", "speak-for");
    let said = s.h.sync();
    assert!(closed(&said, X), "{said:?}");
    assert!(!closed(&said, Y), "the client itself keeps its rights");
    assert!(denied(&speak(&mut s, X, "web", Principal::client("x").unwrap())).is_some());
}

#[test]
fn speaker_is_not_vouched_for() {
    let mut s = Space::new();
    for (who, role) in [("client:x", "speak-for"), ("client:web", "speak-for"), ("client:x", "read")] {
        s.grant(who, role);
    }
    speak(&mut s, X, "web", Principal::client("x").unwrap());
    s.h.input(Input::Vouched(X, true));
    let said = s.h.send(X, Kind::Stat, |_| ());
    assert!(denied(&said).unwrap().contains("client:x lacks the role `operate`"), "{said:?}");
    let next = OnBehalf { who: Principal::client("y").unwrap() };
    let said = s.h.send(X, Kind::OnBehalf, |out| next.encode(out));
    assert!(closed(&said, X), "{said:?}");
}

#[test]
fn speaker_is_ignored_before_the_first_grant() {
    let mut s = Space::new();
    assert_eq!(denied(&speak(&mut s, X, "web", Principal::client("x").unwrap())), None);
    assert_eq!(whoami(&mut s.h, X), Principal::client("web").unwrap());
}

#[test]
fn short_ways_need_the_right_to_call() {
    let mut s = Space::new();
    s.grant("client:x", "call Asked.who");
    s.grant("client:y", "read");
    let service = Interface::of_service(<dyn Asked as ServiceInterface>::SCHEMA);
    for (conn, name, id) in [(X, "x", 6), (Y, "y", 7)] {
        s.connect(conn, client(name), id);
        s.h.send(conn, Kind::Bind, |out| Bind { interface: service.clone() }.encode(out));
    }
    let mut seq = 0;
    let mut call = |s: &mut Space, client, interface_of_objects| {
        seq += 1;
        let target = (s.oref(), s.h.server.visible());
        let (slot, object) = if interface_of_objects { (None, Some(target)) } else { (Some(0), None) };
        let (mut body, mut out) = (Vec::new(), Vec::new());
        Request { slot, seq, again: false, interface: 0, method: 0, object, key: &[], payload: &[] }
            .encode(&mut body);
        let request =
            Express { client: ClientId(client), place: &mut 0, left_us: 0, body: &body, shared: None };
        let mut local = Local::new(LocalConfig::default());
        let mut effects = Effects::default();
        let now = s.h.now;
        let served =
            s.h.server.express(now, request, &mut local, &mut ReplyBody::new(&mut out), &mut effects);
        s.h.take(effects);
        (served, out)
    };
    let (served, out) = call(&mut s, 6, false);
    assert!(served && out.windows(8).any(|bytes| bytes == b"client:x"), "{out:?}");
    assert!(!call(&mut s, 6, true).0 && !call(&mut s, 7, false).0 && !call(&mut s, 7, true).0);
    s.order(Accessing::Revoke, "client:x", "call Asked.who");
    assert!(!call(&mut s, 6, false).0);
}

#[test]
fn rights_come_back_from_log_and_state() {
    let mut s = Space::new();
    s.grant("client:x", "write C");
    s.connect(X, client("x"), 6);
    s.write(X, op(6, 1), false, 2);
    s.h.sync();
    s.h.flush();
    let checkpoint = s.h.installs.iter().flatten().last().cloned().expect("a checkpoint");
    let stored = Recovery::new(config(), SpaceId(1), Some(&checkpoint), 100).unwrap();
    for recovery in [recovery(&s.h.log), stored] {
        s.h = Hand::of(recovery, s.h.log.clone());
        s.h.stranger = Some(Y);
        assert!(denied(&s.connect(Y, client("y"), 7)).unwrap().contains("client:y lacks the role"));
        let said = s.connect(X, client("x"), 6);
        assert!(said.iter().any(|(_, kind, ..)| *kind == Kind::Welcome), "{said:?}");
    }
}

/// Where a connection comes from says nothing of whose it is, also if that is the server's own host.
#[test]
fn address_of_this_host_names_nobody() {
    let mut s = Space::new();
    s.grant("client:x", "read");
    s.h.stranger = Some(Y);
    for is_one_host in [false, true] {
        let said = s.connect(Y, Who { is_one_host, ..Who::default() }, 7);
        let text = denied(&said).expect("a refusal");
        assert!(text.contains("anyone lacks the role"), "{text}");
        s.h.input(Input::Disconnected(Y));
    }
}

#[test]
fn space_has_room_for_256_rights() {
    let mut s = Space::new();
    for n in 0..256 {
        assert!(refused(&s.grant(&format!("uid:{n}"), "read")).is_none(), "{n}");
    }
    let (reason, text) = refused(&s.grant("uid:256", "read")).expect("no room");
    assert!(reason == Refusal::FULL && text.contains("256 rights"), "{text}");
    // One that is there is there.
    assert!(refused(&s.grant("uid:7", "read")).is_none());
}

#[test]
fn who_reads_no_longer_resumes_nothing() {
    let mut s = Space::new();
    for (who, role) in [("client:x", "read"), ("client:x", "write"), ("client:y", "read")] {
        s.grant(who, role);
    }
    for (conn, name, id) in [(X, "x", 6), (Y, "y", 7)] {
        s.connect(conn, client(name), id);
        s.h.fetch(conn, s.page, 1);
    }
    s.order(Accessing::Revoke, "client:x", "read");
    s.h.sync();
    let (view, watermark) = (s.h.view(), s.h.server.visible());
    for (conn, name, id, resumes) in [(X, "x", 6, false), (Y, "y", 7, true)] {
        s.h.input(Input::Disconnected(conn));
        s.h.input(Input::Connected(conn, client(name)));
        let resume = Some(Resume { view, watermark, heard: watermark, pages: vec![(s.page, 1)] });
        let hello = Hello { connection: 2, resume, ..Hello::new(ClientId(id)) };
        let mut said = s.h.send(conn, Kind::Hello, |out| hello.encode(out));
        said.extend(s.h.input(Input::Time));
        let (.., body) = said.iter().find(|(_, kind, ..)| *kind == Kind::Welcome).expect("a welcome");
        assert_eq!(Welcome::decode(body).unwrap().resumed, resumes, "{name}");
    }
}

/// Each rule of rights is missed when it is dropped.
#[cfg(tercel_mutants)]
#[test]
fn dropped_rules_of_rights_are_noticed() {
    use tercel_engine::mutant::{Rule, drop_rule};
    let scenes: [fn(); 5] = [
        commit_that_waits_is_judged_when_it_is_ordered,
        revoked_right_counts_at_once_and_ends_the_session,
        client_of_another_principal_is_refused,
        on_behalf_is_believed_of_members_alone,
        address_of_this_host_names_nobody,
    ];
    for rule in Rule::OF_RIGHTS {
        drop_rule(Some(*rule));
        let noticed = scenes.iter().any(|scene| std::panic::catch_unwind(scene).is_err());
        drop_rule(None);
        assert!(noticed, "{rule:?}: {}", rule.says());
    }
}
