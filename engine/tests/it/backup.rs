//! Backups: one stamp, whatever happens meanwhile, and nothing kept for a backup that is not taken.

use crate::world::taken::Taken;
use crate::world::{Chaos, World};
use tercel_derive::Object;
use tercel_engine::error::Error;
use tercel_engine::limits::{BACKUP_ASKED_MAX, BACKUP_WINDOW_US};
use tercel_engine::random::Random;
use tercel_engine::server::{Conn, Input, ServerConfig};
use tercel_engine::status::ServerStatus;
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{Header, Kind};
use tercel_wire::id::{ClientId, Stamp};
use tercel_wire::message::*;
use tercel_wire::record::{Ref, Text};

#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Thing {
    count: u64,
    text: Text,
}

/// A client that takes a backup: a connection, and what came on it.
struct BackupClient {
    conn: Conn,
    call: u64,
    taken: Taken,
}

impl BackupClient {
    fn new(w: &World, n: u64) -> BackupClient {
        let conn = Conn(1 << 40 | n);
        w.lock().heard.insert(conn, Vec::new());
        w.lock().server_takes(Input::Connected(conn, Default::default()));
        let mut backup_client = BackupClient { conn, call: 0, taken: Taken::default() };
        backup_client.send(w, Kind::Hello, &Taken::hello(n + 1_000_000));
        backup_client
    }

    fn send(&mut self, w: &World, kind: Kind, body: &[u8]) {
        self.call += 1;
        let header = Header { body_bytes: body.len() as u32, ..Header::new(kind, self.call) };
        w.lock().server_takes(Input::Frame(self.conn, header, body));
        self.hear(w);
    }

    fn begin(w: &World, n: u64) -> BackupClient {
        let mut backup_client = BackupClient::new(w, n);
        backup_client.send(w, Kind::Backup, &[]);
        backup_client
    }

    fn next(&mut self, w: &World) {
        self.taken.asked += 1;
        self.send(w, Kind::BackupNext, &[]);
    }

    fn hear(&mut self, w: &World) {
        let bytes = w.lock().heard(self.conn);
        self.taken.push(&bytes);
        self.taken.hear().unwrap();
        let visible = w.lock().node.machine().map_or(Stamp(u64::MAX), |machine| machine.visible());
        let begun = self.taken.begun.map_or(Stamp::ZERO, |begun| begun.stamp);
        assert!(begun <= visible, "only durable stamps are announced");
    }

    /// Asks until all of it is here.
    fn finish(&mut self, w: &World) {
        for _ in 0..10_000 {
            w.run_until_idle();
            self.hear(w);
            if self.taken.is_over() {
                return;
            }
            self.next(w);
        }
        panic!("the backup does not come to its end");
    }

    /// Checks that the backup holds the state of the whole history up to the stamp, and nothing else.
    fn verify(&self, w: &World) {
        self.taken.compare(w.lock().history.iter()).unwrap();
    }
}

fn make(w: &World, n: u64) -> Vec<Ref<Thing>> {
    let all = |tx: &tercel_engine::txn::Tx<'_>| {
        (0..n).map(|i| tx.create(&Thing { count: i, text: "x".repeat(900).into() })).collect()
    };
    w.run(0, all).unwrap()
}

fn set(w: &World, r: Ref<Thing>, count: u64) {
    w.run(0, |tx| tx.edit(r)?.set_count(count)).unwrap();
}

fn config() -> ServerConfig {
    // Installing begins at 64 KB.
    ServerConfig { mob_bytes: 256 << 10, cache_bytes: 1, ..ServerConfig::default() }
}

fn bytes_aside(w: &World) -> u64 {
    let mut backup_client = BackupClient::new(w, 99);
    backup_client.send(w, Kind::Stat, &[]);
    w.lock().server_takes(Input::Disconnected(backup_client.conn));
    let status = ServerStatus::parse(backup_client.taken.status.as_bytes());
    status.expect("a status").storage.backup_bytes
}

#[test]
fn a_backup_is_of_the_stamp_at_which_it_began() {
    let w = World::new(1, 1, config());
    let all = make(&w, 100);
    w.run_until_idle();
    let mut backup_client = BackupClient::begin(&w, 1);
    for r in &all {
        set(&w, *r, 1_000);
    }
    make(&w, 50);
    backup_client.finish(&w);
    backup_client.verify(&w);
}

#[test]
fn a_backup_begun_while_an_install_is_under_way_has_what_the_install_has() {
    let w = World::new(1, 1, config());
    w.lock().hold.installs = true;
    let all = make(&w, 100);
    w.run_until_idle();
    set(&w, all[0], 7);
    let mut backup_client = BackupClient::begin(&w, 1);
    set(&w, all[1], 8);
    w.lock().hold.installs = false;
    w.run_until_idle();
    assert!(w.lock().counts.installs > 0);
    for r in &all {
        set(&w, *r, 9);
    }
    make(&w, 100);
    backup_client.finish(&w);
    backup_client.verify(&w);
}

#[test]
fn installs_go_on_between_the_parts_and_none_of_them_is_in_the_backup() {
    let w = World::new(1, 1, config());
    let all = make(&w, 200);
    w.run_until_idle();
    let mut backup_client = BackupClient::begin(&w, 1);
    w.run_until_idle();
    let before = w.lock().counts.installs;
    let mut round = 0;
    while !backup_client.taken.is_over() {
        round += 1;
        for r in &all {
            set(&w, *r, round);
        }
        backup_client.next(&w);
        w.run_until_idle();
        backup_client.hear(&w);
    }
    assert!(w.lock().counts.installs > before + 2);
    backup_client.verify(&w);
}

#[test]
fn backup_is_announced_after_its_stamp_is_durable() {
    let w = World::new(1, 1, config());
    let all = make(&w, 3);
    w.run_until_idle();
    let durable = w.lock().node.machine().unwrap().visible();
    w.lock().hold.syncs = true;
    w.lock().patience = 100;
    assert!(w.run(0, |tx| tx.edit(all[0])?.set_count(5)).is_err());
    let mut backup_client = BackupClient::begin(&w, 1);
    w.run_until_idle();
    backup_client.hear(&w);
    assert_eq!(backup_client.taken.begun, None);
    w.lock().hold.syncs = false;
    w.run_until_idle();
    backup_client.hear(&w);
    assert_eq!(backup_client.taken.begun.map(|b| b.stamp), Some(durable.next()));
    backup_client.finish(&w);
    backup_client.verify(&w);
}

#[test]
fn a_second_backup_is_refused_and_a_later_one_is_not() {
    let w = World::new(1, 1, config());
    make(&w, 20);
    w.run_until_idle();
    let mut first = BackupClient::begin(&w, 1);
    let second = BackupClient::begin(&w, 2);
    assert_eq!(
        second.taken.refused.as_ref().map(|r| r.reason),
        Some(Refusal::FULL),
        "{:?}",
        second.taken.refused
    );
    first.finish(&w);
    first.verify(&w);
    let mut third = BackupClient::begin(&w, 3);
    third.finish(&w);
    third.verify(&w);
}

#[test]
fn a_client_that_goes_lets_go_of_its_backup() {
    let w = World::new(1, 1, config());
    let all = make(&w, 100);
    w.run_until_idle();
    let backup_client = BackupClient::begin(&w, 1);
    w.run_until_idle();
    for r in &all {
        set(&w, *r, 1);
    }
    w.lock().hold.syncs = false;
    make(&w, 100);
    w.run_until_idle();
    assert!(bytes_aside(&w) > 0);
    w.lock().server_takes(Input::Disconnected(backup_client.conn));
    assert_eq!(bytes_aside(&w), 0);
    let mut next = BackupClient::begin(&w, 2);
    next.finish(&w);
    next.verify(&w);
}

#[test]
fn a_client_that_asks_for_nothing_is_told_that_its_backup_is_over() {
    let w = World::new(1, 1, ServerConfig { keepalive_ms: 1_000_000, ..config() });
    make(&w, 100);
    w.run_until_idle();
    let mut backup_client = BackupClient::begin(&w, 1);
    w.run_until_idle();
    backup_client.hear(&w);
    assert!(backup_client.taken.begun.is_some());
    w.lock().pass(BACKUP_WINDOW_US - 200_000);
    backup_client.hear(&w);
    assert_eq!(backup_client.taken.refused, None);
    w.lock().pass(400_000);
    backup_client.hear(&w);
    let refused = backup_client.taken.refused.take().expect("it is told");
    assert!(refused.reason == Refusal::Unavailable && refused.text.contains("begin again"), "{refused:?}");
    backup_client.next(&w);
    assert_eq!(backup_client.taken.refused.map(|r| r.reason), Some(Refusal::Unavailable));
    assert_eq!(bytes_aside(&w), 0);
}

#[test]
fn commits_come_before_a_backup_that_is_in_their_way() {
    let w = World::new(1, 1, config());
    let all = make(&w, 60);
    w.run_until_idle();
    let mut backup_client = BackupClient::begin(&w, 1);
    w.run_until_idle();
    // The oldest versions are set aside, and then installs stop: what is set aside is in the way of the last
    // commits.
    for round in 0..4 {
        all.iter().for_each(|r| set(&w, *r, round));
    }
    w.run_until_idle();
    assert!(bytes_aside(&w) > 0);
    w.lock().hold.installs = true;
    while bytes_aside(&w) > 0 {
        make(&w, 5);
    }
    backup_client.hear(&w);
    assert_eq!(backup_client.taken.refused.map(|r| r.reason), Some(Refusal::FULL));
}

#[test]
fn more_requests_than_a_few_are_refused() {
    let w = World::new(1, 1, config());
    make(&w, 100);
    w.run_until_idle();
    let mut backup_client = BackupClient::begin(&w, 1);
    w.run_until_idle();
    backup_client.hear(&w);
    w.lock().hold.reads = true;
    // The state goes at once, and then as many may wait as are allowed.
    backup_client.next(&w);
    for _ in 0..BACKUP_ASKED_MAX {
        backup_client.next(&w);
        assert_eq!(backup_client.taken.refused, None);
    }
    backup_client.next(&w);
    assert_eq!(backup_client.taken.refused.map(|r| r.reason), Some(Refusal::FULL));
}

#[test]
fn backup_under_load_is_of_one_stamp() {
    let mut taken = 0;
    for seed in 0..60 {
        let w = World::new(seed, 3, config());
        let mut random = Random::new(seed);
        let mut all = make(&w, 40);
        w.lock().chaos = Chaos { cut: 300, crash: 700, pause: 0, meanwhile: 0 };
        let mut backup_client: Option<BackupClient> = None;
        let (mut number, mut crashes) = (0, 0);
        for _ in 0..250 {
            let (client, r) = (random.below(3) as usize, all[random.below(all.len() as u64) as usize]);
            let count = random.below(1_000);
            // Whatever becomes of it, the history knows.
            match random.below(12) {
                0 => {
                    let made = w.run(client, |tx| {
                        tx.create(&Thing { count, text: "y".repeat(count as usize).into() })
                    });
                    all.extend(made);
                }
                1..=7 => {
                    let size = random.below(1_500) as usize;
                    let _ = w.run(client, |tx| {
                        let e = tx.edit(r)?;
                        e.set_text("z".repeat(size))?;
                        e.set_count(count)
                    });
                }
                _ => {}
            }
            // A restarted server knows nothing of it.
            let now = w.lock().counts.crashes;
            if std::mem::replace(&mut crashes, now) < now {
                backup_client = None;
            }
            match &mut backup_client {
                _ if !w.lock().node.is_up() => {}
                None => {
                    number += 1;
                    backup_client = Some(BackupClient::begin(&w, number));
                }
                Some(t) if t.taken.asked < BACKUP_ASKED_MAX => t.next(&w),
                Some(t) => t.hear(&w),
            }
            if backup_client.as_ref().is_some_and(|t| t.taken.is_over()) {
                let t = backup_client.take().unwrap();
                if t.taken.ended.is_some() {
                    taken += 1;
                    t.verify(&w);
                }
            }
        }
    }
    assert!(taken > 60, "only {taken} backups came to their end");
}

#[test]
fn a_client_of_another_history_is_turned_away_and_its_operations_are_unknown() {
    let w = World::new(1, 1, config());
    let r = make(&w, 1)[0];
    w.run_until_idle();
    w.lock().hold.syncs = true;
    w.lock().patience = 100;
    let Err(Error::Unknown { op: Some(op), .. }) = w.run(0, |tx| tx.edit(r)?.set_count(9)) else { panic!() };
    w.lock().hold.syncs = false;
    let before = w.lock().clients[0].view();
    // The same log, as a space that was restored from a backup of it.
    w.crash();
    w.lock().config.view_first = 1 << 20;
    w.restart();
    w.run_until_idle();
    w.lock().patience = 200;
    let e = w.run(0, |tx| Ok(tx.get(r)?.count())).unwrap_err();
    assert!(e.to_string().contains("restored from a backup"), "{e}");
    // Whether it was executed before is unknown, and the answer says so at once.
    w.lock().patience = 1;
    assert_eq!(w.resolve(0, *op), Err(Refusal::Unknown));
    w.lock().patience = 200;
    // A new client finds everything, and goes on over later restarts.
    let new = w.add_client(77, 512 << 10);
    assert_eq!(w.run(new, |tx| Ok(tx.get(r)?.count())), Ok(0));
    assert_eq!(w.lock().clients[new].view().number, 1 << 20);
    w.crash();
    w.restart();
    w.run(new, |tx| tx.edit(r)?.set_count(4)).unwrap();
    assert_eq!(w.lock().clients[new].view().number, (1 << 20) + 1);
    // By hand: an operation of before, asked for and sent, by a client that says nothing of where it comes
    // from. Its view is one of the backup's, and what it did after the backup was taken is not here.
    let mut backup_client = BackupClient::new(&w, 5);
    let op = tercel_wire::id::OpId { client: ClientId(1_000_005), slot: 0, seq: 1, view: before };
    for (kind, body) in [
        (Kind::Resolve, written(|o| Resolve { op }.encode(o))),
        (Kind::Commit, {
            let effects =
                written(|o| CommitEffects { base: Stamp(1), reads: vec![], writes: vec![] }.encode(o));
            written(|o| Commit { op, parts: 0, bytes: &effects }.encode(o))
        }),
    ] {
        let header = Header { body_bytes: body.len() as u32, ..Header::new(kind, 9) };
        backup_client.hear(&w);
        w.lock().server_takes(Input::Frame(backup_client.conn, header, &body));
        let bytes = w.lock().heard(backup_client.conn);
        let mut deframer = Deframer::default();
        deframer.push(&bytes);
        let (header, body) = deframer.next_frame().unwrap().expect("an answer");
        assert_eq!(header.kind, Kind::Verdict);
        assert_eq!(Verdict::decode(body).unwrap().outcome, Err(Refusal::Unknown), "{kind:?}");
    }
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}
