//! A member of a group, fed by hand: greetings while no other leads or one does, and what it says of itself.

use tercel_engine::limits::GREETING_WAIT_US;
use tercel_engine::order::quorum::members::{Member, Members};
use tercel_engine::order::quorum::packet::{Append, Check, Contents, Packet, Vote, sign_of_life};
use tercel_engine::order::quorum::remembered::Started;
use tercel_engine::order::quorum::{Config, Quorum, Run, Start};
use tercel_engine::replica::Replica;
use tercel_engine::replica::saved::Saved;
use tercel_engine::server::{
    Conn, Effect, Effects, Input, MEMBERS_VERSION, Membership, OPERATOR, Proof, Recovery, Server,
    ServerConfig,
};
use tercel_engine::time::Now;
use tercel_testkit::hand::{A, B};
use tercel_wire::frame::{Header, Kind, split};
use tercel_wire::id::{
    ClientId, EntryId, LogPosition, MemberId, OpId, Oref, PageId, SpaceId, Stamp, ViewId, Written,
};
use tercel_wire::message::{
    BackupPart, Challenge, CommitEffects, Depend, Health, HealthState, Hello, Join, Opening, Prepare, Prove,
    Refusal, Refused, Regroup, Regrouping, Transfer, TransferBegun, Welcome,
};
use tercel_wire::vector::Vector;

const LEADER: MemberId = MemberId(2);
const VIEW: ViewId = ViewId::new(1, 9);

/// The first of some members: its server, and what it has sent to others.
struct First {
    server: Server,
    now: Now,
    packets: Vec<Packet>,
    /// Its host's part in copies of the space.
    copies: Vec<Effect>,
    /// The starts of others that its host was asked to save.
    starts: Vec<(MemberId, Started)>,
    closed: Vec<Conn>,
}

/// Messages of the server: their connection, kind and body.
type Said = Vec<(Conn, Kind, Vec<u8>)>;

impl First {
    /// Its group has these votes; its log is empty and begins behind so many entries.
    fn of(votes: &[bool], begins: u64, is_sure: bool) -> First {
        let member = |(i, votes): (usize, &bool)| Member {
            id: MemberId(i as u64 + 1),
            votes: *votes,
            address: format!("m{}:1", i + 1),
        };
        let begins = EntryId { view: ViewId::new(u32::from(begins > 0), 1), position: LogPosition(begins) };
        let start = Start {
            me: MemberId(1),
            promised: begins.view,
            begins,
            runs: Vec::new(),
            stable: begins.position,
            stable_stamp: Stamp::ZERO,
            members: Members::new(votes.iter().enumerate().map(member).collect()).unwrap(),
            suffix: Vec::new(),
            electorate: None,
            is_sure,
        };
        let order = Box::new(Quorum::new(Config::default(), start, 7, Now(0)));
        let recovery = Recovery::new(ServerConfig::default(), SpaceId(1), None, 0).unwrap();
        let (end, mut out) = (Written { cuts: 0, position: begins.position }, Effects::default());
        let mut server = recovery.finish_with(Now(0), order, ViewId::new(0, 1), end, &mut out).unwrap();
        server.set_membership(Membership::new(7, MemberId(1)));
        let mut first = First {
            server,
            now: Now(1_000),
            packets: vec![],
            copies: vec![],
            starts: vec![],
            closed: vec![],
        };
        first.perform(out);
        first
    }

    /// Another member leads, and it follows.
    fn following() -> First {
        let mut first = First::of(&[true, true, true], 0, true);
        first.packet(&first.beat());
        first
    }

    /// It leads, and the second follows.
    fn leading() -> First {
        let mut first = First::of(&[true, true], 0, true);
        first.join(Conn(70));
        while !first.server.is_leading() {
            first.is_answered(true);
        }
        first
    }

    /// The second connects, and proves itself.
    fn join(&mut self, conn: Conn) {
        self.says_join(conn, join(1, 1));
        self.proves(conn, PROOF);
    }

    /// A process connects and says who it is.
    fn says_join(&mut self, conn: Conn, join: Join) -> Said {
        let mut body = Vec::new();
        join.encode(&mut body);
        self.ask(conn, Kind::Join, &body)
    }

    fn proves(&mut self, conn: Conn, proof: Proof) -> Said {
        let mut body = Vec::new();
        Prove { proof }.encode(&mut body);
        self.frame(conn, Kind::Prove, &body)
    }

    fn frame(&mut self, conn: Conn, kind: Kind, body: &[u8]) -> Said {
        self.input(Input::Frame(conn, Header::new(kind, 7), body))
    }

    /// A while passes, and the second votes as it is asked to; perhaps it has what it is sent.
    fn is_answered(&mut self, has: bool) {
        self.pass(50_000);
        let (asked, others): (Vec<Packet>, Vec<Packet>) =
            std::mem::take(&mut self.packets).into_iter().partition(|packet| match packet {
                Packet::Append(_) => has,
                _ => true,
            });
        self.packets = others;
        for packet in asked {
            let answer = match packet {
                Packet::Ask { number, .. } => Packet::May { number, is_granted: true, promised: 0 },
                Packet::Vote { view, end } => {
                    let runs = vec![Run { view: end.view, last: end.position }];
                    let log = Contents { stable: end.position, runs: if has { runs } else { Vec::new() } };
                    Packet::Voted { view, vote: Vote { is_sure: true, log, electorate: None } }
                }
                Packet::Append(Append { view, round, before, entries, .. }) => {
                    let durable = LogPosition(before.position.0 + entries.len() as u64);
                    Packet::Acked { view, round, durable }
                }
                _ => continue,
            };
            self.packet(&answer);
        }
    }

    fn beat(&self) -> Packet {
        let (before, stable) = (EntryId::default(), LogPosition(0));
        Packet::Append(Append {
            view: VIEW,
            round: 1,
            before,
            stable,
            rank: 0,
            asks: true,
            check: Check { above: stable, sum: 0 },
            entries: vec![],
        })
    }

    fn packet(&mut self, packet: &Packet) -> Said {
        self.input(Input::Packet(LEADER, &packet.encode()))
    }

    fn input(&mut self, input: Input<'_>) -> Said {
        let mut out = Effects::default();
        self.server.handle(self.now, input, &mut out);
        self.perform(out)
    }

    fn pass(&mut self, us: u64) -> Said {
        self.now = self.now.plus_us(us);
        self.input(Input::Time)
    }

    /// Its disk does everything at once.
    fn perform(&mut self, mut out: Effects) -> Said {
        let mut said = Said::new();
        while !out.list.is_empty() {
            let mut more = Effects::default();
            for effect in out.list {
                let input = match effect {
                    Effect::Send(conn, bytes) => {
                        let (header, body, _) = split(&bytes).unwrap().unwrap();
                        said.push((conn, header.kind, body.to_vec()));
                        continue;
                    }
                    Effect::Packet(_, packet) => {
                        self.packets.push(Packet::decode(&packet).unwrap());
                        continue;
                    }
                    Effect::Save(number, ..) => Input::Saved(number),
                    Effect::Challenge(conn, _) => {
                        let (nonce, proof) = ([2; 32], [3; 32]);
                        let (group, member, start, drawn) = (7, MemberId(1), 1, None);
                        let challenge = Challenge { group, member, start, nonce, proof, drawn };
                        Input::Challenged(conn, Some((challenge, PROOF)))
                    }
                    Effect::SaveStart(member, started) => {
                        self.starts.push((member, started));
                        Input::StartSaved(member, started)
                    }
                    Effect::Vouch(conn) => Input::Vouched(conn, conn != STRANGER),
                    Effect::Close(conn) => {
                        self.closed.push(conn);
                        continue;
                    }
                    Effect::Append(position, _) => Input::Written(0, position),
                    Effect::Pin(view, pin) => Input::Pinned(view, pin, Ok(())),
                    Effect::Copy(..) | Effect::Adopt => {
                        self.copies.push(effect);
                        continue;
                    }
                    _ => continue,
                };
                self.server.handle(self.now, input, &mut more);
            }
            out = more;
        }
        said
    }

    fn ask(&mut self, conn: Conn, kind: Kind, body: &[u8]) -> Said {
        self.input(Input::Connected(conn, Default::default()));
        self.input(Input::Frame(conn, Header::new(kind, 7), body))
    }

    fn greet(&mut self, conn: Conn) -> Said {
        let mut body = Vec::new();
        Hello::new(ClientId(conn.0)).encode(&mut body);
        self.ask(conn, Kind::Hello, &body)
    }

    fn health(&mut self) -> (HealthState, String) {
        let said = self.ask(B, Kind::AskHealth, &[]);
        let [(_, Kind::Health, body)] = &said[..] else { panic!("{said:?}") };
        let health = Health::decode(body).unwrap();
        (health.state, health.reason)
    }

    fn regroup(&mut self, step: Regrouping, member: u64) -> Refused {
        refused(&self.asked_to(step, member))
    }

    fn asked_to(&mut self, step: Regrouping, member: u64) -> Said {
        let mut body = Vec::new();
        Regroup { step, member: MemberId(member), address: "new:1".into() }.encode(&mut body);
        self.ask(B, Kind::Regroup, &body)
    }
}

/// The words with which a process of the second member connects.
fn join(start: u64, process: u64) -> Join {
    // As a start that another member has taken by now.
    let opening = Some(Opening { process, nonce: [1; 32], earlier: Some(vec![(start, process)]) });
    Join { group: 7, space: SpaceId(1), member: LEADER, start, version: MEMBERS_VERSION, opening }
}

/// The proof that is expected of every connection.
const PROOF: Proof = [4; 32];

/// A connection for which the host does not vouch.
const STRANGER: Conn = Conn(666);

/// The addresses of the members, its own last.
fn all() -> Vec<String> {
    ["m2:1", "m3:1", "m1:1"].map(String::from).to_vec()
}

fn refused(said: &Said) -> Refused {
    let [(_, Kind::Refused, body)] = &said[..] else { panic!("{said:?}") };
    Refused::decode(body).unwrap()
}

#[test]
fn greeting_waits_for_word_of_the_leader() {
    let mut first = First::of(&[true, true, true], 0, true);
    assert_eq!(first.greet(A), []);
    let refused = refused(&first.packet(&first.beat()));
    assert_eq!((refused.reason, refused.servers), (Refusal::NotLeader, all()));
    assert!(refused.text.contains("m2:1 does"), "{}", refused.text);
    // Now it is known at once.
    let servers = self::refused(&first.greet(B)).servers;
    assert_eq!(servers, all());
}

#[test]
fn greeting_waits_no_longer_than_its_bound() {
    let mut first = First::of(&[true, true, true], 0, true);
    assert_eq!(first.greet(A), []);
    assert!(first.server.deadline().is_some_and(|at| at <= first.now.plus_us(GREETING_WAIT_US)));
    assert_eq!(first.pass(GREETING_WAIT_US - 1), []);
    let refused = refused(&first.pass(1));
    assert_eq!((refused.reason, refused.servers), (Refusal::NotLeader, all()));
    assert!(refused.text.contains("no member of the group leads now"), "{}", refused.text);
}

#[test]
fn greeting_waits_until_this_member_leads() {
    let mut first = First::of(&[true, false], 0, true);
    assert_eq!(first.greet(A), []);
    let said = first.pass(100_000);
    let [(A, Kind::Welcome, body)] = &said[..] else { panic!("{said:?}") };
    assert_eq!(Welcome::decode(body).unwrap().servers, ["m1:1", "m2:1"]);
}

#[test]
fn greeting_waits_while_the_leader_is_quiet() {
    let mut first = First::following();
    first.now = first.now.plus_us(100_000);
    assert_eq!(first.greet(A), [], "the client is sent to the leader that it gave up");
    let said = first.packet(&first.beat());
    let [(A, Kind::Refused, body), ..] = &said[..] else { panic!("{said:?}") };
    assert_eq!(Refused::decode(body).unwrap().servers[0], "m2:1");
}

#[test]
fn follower_says_whom_it_follows() {
    let mut first = First::following();
    assert_eq!(first.health(), (HealthState::Following, "m2:1 leads, and this member follows".into()));
    let refused = first.regroup(Regrouping::Remove, 3);
    assert_eq!((refused.reason, &refused.servers[0]), (Refusal::NotLeader, &"m2:1".to_string()));
}

#[test]
fn follower_whose_disk_is_full_says_so() {
    let mut first = First::following();
    first.input(Input::DiskFull(true));
    let (state, reason) = first.health();
    assert!(state == HealthState::Following && reason.contains("the disk is full"), "{reason}");
    first.input(Input::DiskFull(false));
    assert!(!first.health().1.contains("the disk is full"));
}

#[test]
fn member_that_hears_nobody_says_its_address() {
    let mut first = First::of(&[true, true, true], 0, true);
    let (state, reason) = first.health();
    assert!(
        state == HealthState::NotLeading && reason.ends_with("others reach it at m1:1: it must listen there"),
        "{reason}"
    );
}

/// The word of the second member, which leads, or of the first to the second.
fn lost(view: ViewId, needs: u64) -> Packet {
    let address = if view == VIEW { "m2:1" } else { "m1:1" };
    Packet::Lost { view, needs: LogPosition(needs), address: address.into() }
}

#[test]
fn member_says_that_it_is_lost_or_unsure() {
    let mut first = First::following();
    first.packet(&lost(VIEW, 500));
    let (state, reason) = first.health();
    assert_eq!(state, HealthState::NotLeading);
    assert!(reason.contains("needs entry 500") && reason.contains("takes a copy"), "{reason}");
    first.input(Input::RefusedBy(MemberId(1), "the copy broke off: the disk is full".into()));
    assert!(first.health().1.contains("the disk is full"));
    let mut unsure = First::of(&[true, true, true], 0, false);
    unsure.packet(&unsure.beat());
    let (state, reason) = unsure.health();
    assert!(state == HealthState::Following && reason.contains("had ended in damage"), "{reason}");
}

#[test]
fn member_that_log_passed_by_asks_for_copies() {
    let mut first = First::following();
    let word = lost(VIEW, 1);
    (0..3).for_each(|_| _ = first.packet(&word));
    assert!(matches!(first.copies[..], [Effect::Copy(VIEW, _)]), "{:?}", first.copies);
    first.now = first.now.plus_us(1_000_000);
    first.packet(&word);
    assert_eq!(first.copies.len(), 2);
    // The leader believes that it lacks what is here.
    first.now = first.now.plus_us(1_000_000);
    first.packet(&lost(VIEW, 0));
    assert_eq!(first.copies.len(), 2);
}

#[test]
fn copy_that_lacks_acknowledged_is_not_adopted() {
    let end = |view, position| EntryId { view, position: LogPosition(position) };
    let adopts = |view, end| {
        let mut first = First::of(&[true, true, true], 10, true);
        first.packet(&first.beat());
        first.input(Input::Copied(view, end));
        first.copies == [Effect::Adopt]
    };
    assert!(adopts(VIEW, end(VIEW, 11)));
    // Another leader may have had this member's word meanwhile.
    let older = ViewId::new(VIEW.number - 1, 1);
    assert!(!adopts(older, end(older, 11)));
    assert!(!adopts(VIEW, end(ViewId::new(1, 1), 10)));
}

#[test]
fn leader_tells_member_that_it_is_lost() {
    let mut first = First::of(&[true, false], 10, true);
    first.pass(100_000);
    let view = first.server.view();
    first.packet(&Packet::Missing { view, round: u64::MAX, log: Contents::default() });
    first.packets.clear();
    first.pass(Config::default().heartbeat_us);
    let word = lost(view, 1);
    assert!(first.packets.contains(&word), "{:?}", first.packets);
    let said = first.ask(A, Kind::Stat, &[]);
    let status = String::from_utf8(said[0].2.clone()).unwrap();
    assert!(status.contains("\"lost\":true"), "{status}");
    assert!(first.regroup(Regrouping::Vote, 2).text.contains("does not reach back"));
}

#[test]
fn copy_is_given_before_view_is_stable() {
    let mut first = First::of(&[true, true], 0, true);
    let ask = |first: &mut First, group: u64| {
        let mut body = Vec::new();
        Transfer { group, member: LEADER }.encode(&mut body);
        first.ask(A, Kind::Transfer, &body)
    };
    assert!(refused(&ask(&mut first, 8)).text.contains("not of that group"));
    assert!(refused(&ask(&mut first, 7)).text.contains("does not lead"));
    // The second grants its vote, and has nothing of what it is sent.
    while !first.packets.iter().any(|packet| matches!(packet, Packet::Append(_))) {
        first.is_answered(false);
    }
    assert!(!first.server.is_leading());
    let [(A, Kind::TransferBegun, body)] = &ask(&mut first, 7)[..] else { panic!("no copy begins") };
    assert_eq!(TransferBegun::decode(body).unwrap().stamp, Stamp::ZERO);
    // Nobody has greeted.
    let parts = first.ask(A, Kind::BackupNext, &[]);
    assert!(matches!(parts[..], [(A, Kind::BackupPart, _)]), "{parts:?}");
}

#[test]
pub fn copy_has_what_is_prepared() {
    let mut first = First::leading();
    first.greet(B);
    let op = |client, view| OpId { client: ClientId(client), slot: 0, seq: 1, view };
    let (mine, view) = (op(B.0, first.server.view()), ViewId::new(1, 1));
    let read = Oref::new(PageId::new(2).unwrap(), 0).unwrap();
    let (mut bytes, mut body) = (Vec::new(), Vec::new());
    CommitEffects { base: first.server.visible(), reads: vec![read], writes: vec![] }.encode(&mut bytes);
    let (of, coordinator) = (op(77, view), SpaceId(99));
    Prepare { op: mine, of, coordinator, seen: Vector::default(), bytes: &bytes }.encode(&mut body);
    first.frame(B, Kind::Prepare, &body);
    (0..4).for_each(|_| first.is_answered(true));
    let mut transfer = Vec::new();
    Transfer { group: 7, member: LEADER }.encode(&mut transfer);
    let said = first.ask(A, Kind::Transfer, &transfer);
    assert!(matches!(said[..], [(A, Kind::TransferBegun, _)]), "{said:?}");
    let said = first.ask(A, Kind::BackupNext, &[]);
    let [(A, Kind::BackupPart, body)] = &said[..] else { panic!("no part comes: {said:?}") };
    let BackupPart::State(state) = BackupPart::decode(body).unwrap() else { panic!("no state comes") };
    let copied = Replica::restored(&Saved::parse(state).unwrap()).unwrap();
    assert_eq!(copied.prepares.len(), 1);
}

#[test]
fn leader_stands_down_for_copy_that_waits() {
    let mut first = First::of(&[true, true], 10, true);
    while !first.server.is_leading() {
        first.is_answered(true);
    }
    // From here on the second has nothing, and answers all the same.
    let view = first.server.view();
    let answer = Packet::Missing { view, round: u64::MAX, log: Contents::default() };
    first.packet(&answer);
    first.asked_to(Regrouping::Learn, 3);
    let mut body = Vec::new();
    Transfer { group: 7, member: LEADER }.encode(&mut body);
    assert_eq!(first.ask(A, Kind::Transfer, &body), []);
    let mut led_ms = 0;
    while first.server.is_leading() && led_ms < 5_000 {
        led_ms += 50;
        first.pass(50_000);
        first.packet(&answer);
    }
    assert!((1_000..1_200).contains(&led_ms), "it led for {led_ms} ms");
}

#[test]
fn leader_that_drains_hands_the_lead_over() {
    let mut first = First::leading();
    let view = first.server.view();
    first.input(Input::Drain);
    assert!(first.packets.contains(&Packet::TakeOver { view }), "{:?}", first.packets);
    // Until the other leads, it serves as before.
    assert_eq!((first.health().0, first.server.is_drained()), (HealthState::Serving, false));
    let end = EntryId { view, position: first.server.stable_upto() };
    first.packet(&Packet::Vote { view: ViewId::new(view.number + 1, 2), end });
    // Its own vote may be the one that the other needs.
    assert_eq!((first.server.is_leading(), first.server.is_drained()), (false, false));
    first.packet(&Packet::Append(Append {
        view: ViewId::new(view.number + 1, 2),
        round: 1,
        before: EntryId { view, position: LogPosition(1) },
        stable: LogPosition(1),
        rank: 0,
        asks: true,
        check: Check { above: LogPosition(1), sum: 0 },
        entries: vec![],
    }));
    assert!(!first.server.is_leading() && first.server.is_drained());
}

#[test]
fn leader_waits_for_nobody_when_others_ended() {
    let mut first = First::leading();
    first.input(Input::Drain);
    assert_eq!((first.health().0, first.server.is_drained()), (HealthState::Serving, false));
    first.input(Input::Disconnected(Conn(70)));
    assert_eq!((first.health().0, first.server.is_drained()), (HealthState::Draining, true));
}

#[test]
fn connection_of_before_a_cut_is_closed() {
    let mut first = First::following();
    let (old, new) = (Conn(71), Conn(72));
    let mut closed = Vec::new();
    for conn in [old, new] {
        first.join(conn);
        let (packet, mut out) = (first.beat().encode(), Effects::default());
        first.server.handle(first.now, Input::Frame(conn, Header::new(Kind::Packet, 0), &packet), &mut out);
        closed.extend(out.list.iter().filter_map(|effect| match effect {
            Effect::Close(conn) => Some(*conn),
            _ => None,
        }));
        first.perform(out);
    }
    assert_eq!(closed, [old]);
    let asks = |first: &First| first.packets.iter().any(|packet| matches!(packet, Packet::Ask { .. }));
    first.input(Input::Disconnected(old));
    first.pass(1_000);
    assert!(!asks(&first), "the leader is still there");
    first.input(Input::Disconnected(new));
    first.pass(1_000);
    assert!(asks(&first));
}

#[test]
fn leader_with_full_disk_hands_over() {
    let mut first = First::leading();
    let view = first.server.view();
    let offers = |first: &mut First| {
        let packets = std::mem::take(&mut first.packets);
        packets.iter().filter(|packet| **packet == Packet::TakeOver { view }).count()
    };
    first.input(Input::DiskFull(true));
    assert_eq!((offers(&mut first), first.health().0), (1, HealthState::ReadOnly));
    // Nobody takes it: it is offered again, though not at once.
    let mut offered_after = |tenths: u64| {
        (0..tenths).for_each(|_| {
            first.pass(100_000);
            let durable = first.server.stable_upto();
            first.packet(&Packet::Acked { view, round: u64::MAX, durable });
        });
        offers(&mut first) > 0
    };
    assert!(offered_after(11), "it is told again with each answer");
    assert!(!offered_after(95));
    assert!(offered_after(20));
}

#[test]
fn leader_that_nobody_relieves_drains_alone() {
    let mut first = First::of(&[true, false], 0, true);
    first.pass(100_000);
    first.input(Input::Drain);
    assert_eq!((first.health().0, first.server.is_drained()), (HealthState::Draining, true));
}

#[test]
fn removal_that_is_asked_for_again_succeeds() {
    let mut first = First::of(&[true], 0, true);
    first.pass(100_000);
    let said = first.asked_to(Regrouping::Remove, 9);
    assert!(matches!(said[..], [(B, Kind::Grouped, _)]), "{said:?}");
    assert!(first.regroup(Regrouping::Lead, 9).text.contains("no member of this group"));
}

#[test]
fn view_that_began_unsure_is_told() {
    // A member that is not sure of its log votes for itself alone: everyone has answered.
    let mut first = First::of(&[true], 0, false);
    first.pass(100_000);
    let warning = first.server.space_warning().map(|warning| warning.to_string());
    assert!(warning.is_some_and(|warning| warning.contains("may be lost")));
    let status = first.ask(A, Kind::Stat, &[])[0].2.clone();
    assert!(String::from_utf8(status).unwrap().contains("\"unsure_view\":1"));
}

/// A view far above all that there were, by the word of a connection.
fn far_ahead(first: &mut First, conn: Conn) -> Said {
    let packet = Packet::Higher { view: ViewId::new(1_000, 1) };
    first.frame(conn, Kind::Packet, &packet.encode())
}

fn text(said: &Said) -> String {
    let refusal = said.iter().find(|(_, kind, _)| *kind == Kind::Refused);
    refusal.map_or(String::new(), |(.., body)| Refused::decode(body).unwrap().text)
}

#[test]
fn packet_counts_once_connection_is_proven() {
    let mut first = First::leading();
    let (view, stranger) = (first.server.view(), Conn(90));
    // Nobody, somebody who says that he is a member, and one who cannot prove it.
    assert!(text(&far_ahead(&mut first, stranger)).contains("no member's"));
    first.says_join(stranger, join(1, 1));
    assert!(text(&far_ahead(&mut first, stranger)).contains("no member's"));
    let said = first.says_join(stranger, join(1, 1));
    assert!(matches!(said[..], [(Conn(90), Kind::Challenge, _)]), "{said:?}");
    assert!(text(&first.proves(stranger, [5; 32])).contains("has another secret"));
    far_ahead(&mut first, stranger);
    assert_eq!((first.server.view(), first.server.is_leading()), (view, true));
    // The member itself.
    far_ahead(&mut first, Conn(70));
    assert!(!first.server.is_leading());
}

#[test]
fn sign_of_life_takes_no_connections_place() {
    let mut first = First::leading();
    let (talks, is_present) = (Conn(70), Conn(71));
    first.join(is_present);
    let acked = Packet::Acked { view: first.server.view(), round: 1, durable: LogPosition(1) };
    first.frame(talks, Kind::Packet, &acked.encode());
    let sign = sign_of_life(ViewId::new(1, 9));
    assert_eq!(text(&first.frame(is_present, Kind::Packet, &sign)), "");
    assert_eq!(first.closed, []);
    assert!(text(&first.frame(Conn(90), Kind::Packet, &sign)).contains("no member's"));
    // What is said goes over one connection.
    first.closed.clear();
    first.frame(is_present, Kind::Packet, &acked.encode());
    assert_eq!(first.closed, [talks]);
}

#[test]
fn proof_of_another_connection_does_not_count() {
    let mut first = First::leading();
    let (one, other) = (Conn(90), Conn(91));
    first.says_join(one, join(1, 1));
    first.says_join(other, join(1, 1));
    first.proves(one, PROOF);
    assert!(text(&far_ahead(&mut first, other)).contains("no member's"));
    // Nor does a proof without words before it.
    assert!(text(&first.proves(Conn(92), PROOF)).is_empty());
    assert!(first.server.is_leading());
}

#[test]
fn member_of_another_build_is_refused_by_version() {
    let mut first = First::leading();
    let of_before = Join { version: MEMBERS_VERSION - 1, opening: None, ..join(1, 1) };
    let text = text(&first.says_join(Conn(90), of_before));
    assert!(
        text.contains(&format!("speak version {MEMBERS_VERSION}, and not {}", MEMBERS_VERSION - 1)),
        "{text}"
    );
}

#[test]
fn start_is_durable_before_member_counts() {
    let mut first = First::leading();
    assert_eq!(first.starts, [(LEADER, Started { number: 1, process: 1 })]);
    first.says_join(Conn(90), join(2, 5));
    let said = first.proves(Conn(90), PROOF);
    assert!(matches!(said[..], [(_, Kind::Proven, _)]), "{said:?}");
    assert_eq!(first.starts[1..], [(LEADER, Started { number: 2, process: 5 })]);
    // Another connection of the same process.
    first.says_join(Conn(91), join(2, 5));
    first.proves(Conn(91), PROOF);
    assert_eq!(first.starts.len(), 2);
}

#[test]
fn directory_that_is_a_copy_is_refused() {
    let mut first = First::of(&[true, true], 0, true);
    let known = [(LEADER, Started { number: 7, process: 70 })];
    first.server.set_membership(Membership::new(7, MemberId(1)).with_starts(&known));
    let refusal = |first: &mut First, start, process| {
        first.says_join(Conn(90), join(start, process));
        text(&first.proves(Conn(90), PROOF))
    };
    assert!(refusal(&mut first, 6, 60).contains("its directory is an older copy"));
    assert!(refusal(&mut first, 7, 71).contains("was that of another process"));
    assert!(refusal(&mut first, u64::MAX, 80).contains("file of votes is damaged"));
    assert_eq!(first.starts, []);
    assert_eq!(refusal(&mut first, 7, 70), "");
    assert_eq!(refusal(&mut first, 8, 80), "");
}

#[test]
fn later_start_of_a_copy_is_refused() {
    let mut first = First::of(&[true, true], 0, true);
    let known = [(LEADER, Started { number: 7, process: 70 })];
    first.server.set_membership(Membership::new(7, MemberId(1)).with_starts(&known));
    let refusal = |first: &mut First, (start, process), earlier: &[(u64, u64)]| {
        let opening = Some(Opening { process, nonce: [1; 32], earlier: Some(earlier.to_vec()) });
        first.says_join(Conn(90), Join { opening, ..join(start, process) });
        text(&first.proves(Conn(90), PROOF))
    };
    // A copy of before start 7, which is refused and started again, and one that never had a connection.
    let refused = [&[(6, 60), (6, 60), (7, 71), (8, 81)][..], &[(6, 60), (8, 81), (9, 91)], &[]];
    // And one that a member has taken which knew as little.
    for earlier in refused.into_iter().chain([&[(8, 81), (6, 60), (7, 71), (8, 81), (9, 91)][..]]) {
        let text = refusal(&mut first, (9, 91), earlier);
        assert!(text.contains("has not had start 7"), "{text}");
    }
    assert_eq!(first.starts, []);
    // A list without end is not kept.
    let opening = Some(Opening { process: 81, nonce: [1; 32], earlier: Some(vec![(7, 70); 40]) });
    let said = text(&first.says_join(Conn(91), Join { opening, ..join(8, 81) }));
    assert!(said.contains("more starts than a directory keeps"), "{said}");
    // The directory itself: this member took its start and the answer was lost, or another one did since.
    assert_eq!(refusal(&mut first, (9, 90), &[(6, 60), (6, 60), (7, 70), (8, 80), (9, 90)]), "");
    assert_eq!(refusal(&mut first, (12, 120), &[(11, 110), (10, 100), (11, 110), (12, 120)]), "");
    assert_eq!(first.starts.len(), 2);
}

#[test]
fn answer_of_a_copy_does_not_count() {
    let mut first = First::leading();
    let higher = Packet::Higher { view: ViewId::new(1_000, 1) }.encode();
    let started = |process| Started { number: 2, process };
    // Nobody was judged yet, and then a copy of before start 1 that has been started twice.
    first.input(Input::Heard(LEADER, &higher));
    first.input(Input::Answered(LEADER, started(21), vec![(0, 0), (1, 11), (2, 21)]));
    first.input(Input::Heard(LEADER, &higher));
    assert_eq!((first.server.is_leading(), first.starts.len()), (true, 1));
    // The directory itself: its start is durable first.
    first.input(Input::Answered(LEADER, started(20), vec![(1, 1), (1, 1), (2, 20)]));
    assert_eq!(first.starts[1..], [(LEADER, started(20))]);
    first.input(Input::Heard(LEADER, &higher));
    assert!(!first.server.is_leading());
}

#[test]
fn request_of_operators_needs_proof_or_owner() {
    let mut first = First::leading();
    let bodies = |first: &mut First, conn| {
        let (mut regroup, mut transfer) = (Vec::new(), Vec::new());
        Regroup { step: Regrouping::Lead, member: MemberId(9), address: String::new() }.encode(&mut regroup);
        Transfer { group: 8, member: LEADER }.encode(&mut transfer);
        let all = [(Kind::Regroup, regroup), (Kind::Transfer, transfer), (Kind::BackupNext, Vec::new())];
        all.map(|(kind, body)| text(&first.frame(conn, kind, &body)))
    };
    first.input(Input::Connected(STRANGER, Default::default()));
    assert!(bodies(&mut first, STRANGER).iter().all(|text| text.contains("only operators and members")));
    // To look is not to change.
    let mut look = Vec::new();
    Regroup { step: Regrouping::Look, member: MemberId(0), address: String::new() }.encode(&mut look);
    assert_eq!(text(&first.frame(STRANGER, Kind::Regroup, &look)), "");
    // The same from a process that has the secret, and of the server's own user.
    first.says_join(STRANGER, Join { group: 0, space: SpaceId(0), member: OPERATOR, start: 0, ..join(0, 0) });
    first.proves(STRANGER, PROOF);
    for conn in [STRANGER, A] {
        if conn == A {
            first.input(Input::Connected(A, Default::default()));
        }
        let told = bodies(&mut first, conn);
        assert!(
            told[0].contains("no member of this group") && told[1].contains("not of that group"),
            "{told:?}"
        );
        assert!(told[2].contains("no backup of this client"), "{told:?}");
    }
}

#[test]
fn space_is_forgotten_for_operators_alone() {
    let mut first = First::leading();
    for (conn, is_trusted) in [(STRANGER, false), (A, true)] {
        first.greet(conn);
        let mut body = Vec::new();
        Depend { on: Vector::forgetting(SpaceId(5)) }.encode(&mut body);
        let text = text(&first.frame(conn, Kind::Depend, &body));
        assert_eq!(text.contains("only operators and members"), !is_trusted, "{text}");
    }
}
