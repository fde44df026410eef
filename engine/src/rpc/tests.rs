//! The two tables of a call of a service, against each other over a link that loses, doubles and reorders: no
//! call is begun twice, the result that a caller receives is true, and no slot is lost.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tercel_wire::id::{CallId, ClientId, ViewId};
use tercel_wire::interface::{InterfaceSchema, MethodSchema, Mode};
use tercel_wire::message::{Request, Response, ResponseEnd};
use tercel_wire::payload::PayloadSchema;
use tercel_wire::schema::Schema;

use super::served::{Arrival, Cancelled, Served};
use super::slots::{Look, Sent, Slots, Table};
use super::{Context, Ended, Service, ServiceInterface, Services, Taken, serve};
use crate::random::Random;
use crate::time::Now;

/// Messages of the two ends.
#[derive(Debug, Clone)]
enum Message {
    /// A call; what it is called in the test.
    Call(CallId, u64),
    Cancel(CallId),
    /// The result of a call, or none if it was not begun.
    Answer(CallId, Option<u64>),
}

/// A call as its caller sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Result(u64),
    NotBegun,
    Unknown,
}

struct World {
    random: Random,
    client: Slots,
    server: Served,
    /// The server's table; it changes when the server has forgotten the client.
    table: Table,
    connection: u64,
    /// The table of this connection's server, once the client knows it.
    met: Option<Table>,
    to_server: VecDeque<Message>,
    to_client: VecDeque<Message>,
    /// Calls that run at the server, with the table that they are of.
    running: Vec<(Table, CallId, u64)>,
    /// The number of times that each call was begun.
    begun: BTreeMap<u64, u32>,
    /// Calls that wait for an answer, by their names in the test.
    waiting: BTreeMap<u64, CallId>,
    told: BTreeMap<u64, Told>,
    last: u64,
}

const CREDIT: u16 = 4;

impl World {
    fn new(seed: u64) -> World {
        let mut client = Slots::default();
        client.set_credit(CREDIT);
        World {
            random: Random::new(seed),
            client,
            server: Served::default(),
            table: Table { view: ViewId::new(1, 0), number: 1 },
            connection: 1,
            met: None,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            running: Vec::new(),
            begun: BTreeMap::new(),
            waiting: BTreeMap::new(),
            told: BTreeMap::new(),
            last: 0,
        }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.random.below(n) == 0
    }

    fn call(&mut self) {
        let Some(table) = self.met else { return };
        if let Some(id) = self.client.begin(table, self.connection, 0) {
            self.last += 1;
            self.waiting.insert(self.last, id);
            self.told.insert(self.last, Told::Nothing);
            self.to_server.push_back(Message::Call(id, self.last));
        }
    }

    /// Each caller looks what became of its call.
    fn look(&mut self) {
        for (name, id) in self.waiting.clone() {
            let told = match self.client.look(id, self.connection) {
                Look::Waits => continue,
                Look::Answered(body) => match body.first_chunk::<8>() {
                    Some(result) => Told::Result(u64::from_le_bytes(*result)),
                    None => Told::NotBegun,
                },
                Look::None => panic!("call {name} is not known"),
                Look::Lost => {
                    let Some(table) = self.met else { continue };
                    match self.client.send_again(id, table, self.connection) {
                        Sent::Again => {
                            self.to_server.push_back(Message::Call(id, name));
                            continue;
                        }
                        Sent::Unknown => Told::Unknown,
                    }
                }
            };
            self.waiting.remove(&name);
            self.told.insert(name, told);
        }
    }

    fn give_up(&mut self) {
        let n = self.random.below(self.waiting.len().max(1) as u64) as usize;
        let Some((name, id)) = self.waiting.iter().nth(n).map(|(name, id)| (*name, *id)) else { return };
        self.waiting.remove(&name);
        self.told.insert(name, Told::Unknown);
        if self.client.cancel(id, self.connection, self.met) {
            self.to_server.push_back(Message::Cancel(id));
        }
    }

    /// The server takes a message, the first or any; sometimes it comes once more later.
    fn serve(&mut self) {
        let at =
            if self.one_in(3) { self.random.below(self.to_server.len().max(1) as u64) as usize } else { 0 };
        let Some(message) = self.to_server.remove(at) else { return };
        if self.one_in(5) {
            self.to_server.push_back(message.clone());
        }
        match message {
            Message::Call(id, name) => match self.server.arrive(id) {
                // The server has no room for the call.
                Arrival::New if self.random.below(8) == 0 => self.answer(id, None),
                Arrival::New => {
                    *self.begun.entry(name).or_default() += 1;
                    self.running.push((self.table, id, name));
                    if self.one_in(2) {
                        self.finish();
                    }
                }
                Arrival::Kept(body) => {
                    let body = result_of(body);
                    self.to_client.push_back(Message::Answer(id, body));
                }
                Arrival::Running | Arrival::Old => {}
                other => panic!("{other:?} of an honest client"),
            },
            Message::Cancel(id) => match self.server.cancel(id) {
                Cancelled::New => self.answer(id, None),
                Cancelled::Told | Cancelled::Old => {}
                Cancelled::Kept(body) => {
                    let body = result_of(body);
                    self.to_client.push_back(Message::Answer(id, body));
                }
                Cancelled::Forgotten => panic!("small answers are kept"),
            },
            Message::Answer(..) => {}
        }
    }

    fn answer(&mut self, id: CallId, result: Option<u64>) {
        let body = result.map_or(Vec::new(), |result| result.to_le_bytes().to_vec());
        if self.server.end(id, &body) {
            self.to_client.push_back(Message::Answer(id, result));
        }
    }

    /// A call that runs comes to its end.
    fn finish(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let at = self.random.below(self.running.len() as u64) as usize;
        let (table, id, name) = self.running.swap_remove(at);
        if table == self.table {
            self.answer(id, Some(name));
        }
    }

    fn hear(&mut self) {
        let Some(message) = self.to_client.pop_front() else { return };
        if self.one_in(5) {
            self.to_client.push_back(message.clone());
        }
        if let Message::Answer(id, result) = message {
            self.client
                .answered(id, result.map_or(Vec::new(), |result| result.to_le_bytes().to_vec()).into());
        }
    }

    /// Loses all messages on their way. The client receives the server's table some time after it has another
    /// connection.
    fn cut(&mut self) {
        self.to_server.clear();
        self.to_client.clear();
        self.connection += 1;
        self.met = None;
    }

    fn meet(&mut self) {
        if self.met.replace(self.table).is_none() {
            for id in self.client.met(self.table, self.connection) {
                self.to_server.push_back(Message::Cancel(id));
            }
        }
    }

    /// The server knows nothing any more of this client, whose connection is gone.
    fn forget(&mut self) {
        self.cut();
        self.server = Served::default();
        self.table.number += 1;
    }

    fn step(&mut self) {
        match self.random.below(64) {
            0 => self.cut(),
            1 if self.one_in(4) => self.forget(),
            2..4 => self.give_up(),
            4..12 => self.call(),
            12..28 => self.serve(),
            28..36 => self.finish(),
            36..52 => self.hear(),
            52..56 => self.meet(),
            _ => self.look(),
        }
    }

    fn check(&self) {
        for (name, told) in &self.told {
            let begun = self.begun.get(name).copied().unwrap_or(0);
            assert!(begun <= 1, "call {name} was begun {begun} times");
            match told {
                Told::Result(result) => assert_eq!((result, begun), (name, 1)),
                Told::NotBegun => assert_eq!(begun, 0, "call {name} was begun after all"),
                Told::Nothing | Told::Unknown => {}
            }
        }
    }
}

fn result_of(body: &[u8]) -> Option<u64> {
    body.first_chunk::<8>().map(|result| u64::from_le_bytes(*result))
}

#[test]
fn call_is_begun_at_most_once_and_what_its_caller_is_told_is_true() {
    let (mut results, mut unknown, mut refused) = (0, 0, 0);
    for seed in 0..300 {
        let mut world = World::new(seed);
        for _ in 0..600 {
            world.step();
            world.check();
        }
        // Everything works: each caller has its result, and each slot is free.
        world.meet();
        for _ in 0..2_000 {
            match world.random.below(4) {
                0 => world.serve(),
                1 => world.finish(),
                2 => world.hear(),
                _ => world.look(),
            }
        }
        world.check();
        assert!(world.waiting.is_empty(), "seed {seed}: {:?} wait", world.waiting);
        assert_eq!(world.client.under_way(), 0, "seed {seed}");
        let count = |what: fn(&Told) -> bool| world.told.values().filter(|told| what(told)).count();
        results += count(|t| matches!(t, Told::Result(_)));
        unknown += count(|t| *t == Told::Unknown);
        refused += count(|t| *t == Told::NotBegun);
    }
    assert!(results > 3_000 && unknown > 300 && refused > 300, "{results}, {unknown}, {refused}");
}

#[test]
fn large_answers_are_not_kept_and_small_ones_up_to_a_bound() {
    use crate::limits::{KEPT_BYTES_MAX, KEPT_CLIENT_BYTES_MAX};
    let mut served = Served::default();
    let id = |slot| CallId { slot, seq: 1 };
    assert_eq!(served.arrive(id(0)), Arrival::New);
    assert!(served.end(id(0), &vec![0; KEPT_BYTES_MAX + 1]));
    assert_eq!(served.arrive(id(0)), Arrival::Forgotten);
    assert_eq!(served.kept_bytes(), 0);
    for slot in 1..200 {
        assert_eq!(served.arrive(id(slot)), Arrival::New);
        assert!(served.end(id(slot), &[7; KEPT_BYTES_MAX]));
        assert!(served.kept_bytes() <= KEPT_CLIENT_BYTES_MAX);
    }
    assert!(matches!(served.arrive(id(1)), Arrival::Kept(_)));
    assert_eq!(served.arrive(id(199)), Arrival::Forgotten);
    assert_eq!(served.arrive(CallId { slot: 1, seq: 2 }), Arrival::New);
    assert_eq!(served.arrive(CallId { slot: 1, seq: 3 }), Arrival::Broken, "its slot is in use");
    assert_eq!(served.arrive(CallId { slot: 256, seq: 1 }), Arrival::Broken);
    served.shrink();
    assert_eq!(served.kept_bytes(), 0);
    assert_eq!(served.arrive(id(2)), Arrival::Forgotten);
}

#[test]
fn slots_give_the_memory_of_large_answers_back() {
    use crate::limits::{KEPT_BYTES_MAX, KEPT_CLIENT_BYTES_MAX};
    let mut served = Served::default();
    for seq in [1, 2] {
        for slot in 0..256 {
            let id = CallId { slot, seq };
            assert_eq!(served.arrive(id), Arrival::New);
            // In the first round each answer is large; the next call of the slot acknowledges it.
            served.end(id, &vec![7; if seq == 1 { KEPT_BYTES_MAX } else { 1 }]);
            assert!(served.kept_bytes() <= KEPT_CLIENT_BYTES_MAX, "slot {slot}");
        }
    }
    // What slots keep for their next answers counts as well.
    assert!(served.kept_bytes() > 16 * (4 << 10), "{}", served.kept_bytes());
    served.shrink();
    assert_eq!(served.kept_bytes(), 0);
}

/// A service with one procedure, which counts.
struct Counts;

impl ServiceInterface for Counts {
    const SCHEMA: &'static InterfaceSchema = &InterfaceSchema {
        name: "Counts",
        methods: &[MethodSchema {
            name: "count",
            reads: false,
            mode: Mode::Plain,
            takes: PayloadSchema::of(NOTHING),
            gives: PayloadSchema::of(NOTHING),
            fails: PayloadSchema::of(NOTHING),
            input: NOTHING,
            output: NOTHING,
        }],
    };
}

const NOTHING: Schema = Schema { name: "nothing", fields: &[] };

#[test]
fn a_repeated_call_whose_reply_is_not_kept_is_forgotten_and_not_run_again() {
    let id = CallId { slot: 3, seq: 1 };
    let begun = Arc::new(AtomicU64::new(0));
    let counts = begun.clone();
    let kept = Service::new::<Counts>(move |_, _, _, _| {
        counts.fetch_add(1, Ordering::Relaxed);
        Ok(Ended::Returned)
    });
    for (service, keeps) in [(kept.clone(), true), (kept.without_replies(), false)] {
        let services = Services::default().with(service);
        let mut served = Served::default();
        let mut call = |seq| {
            let request = Request {
                slot: Some(id.slot),
                seq,
                again: false,
                interface: 0,
                method: 0,
                object: None,
                key: &[],
                payload: &[],
            };
            let (cx, mut body) = (Context::inline(ClientId(1), Now(0), None), Vec::new());
            assert_eq!(serve(&mut served, &services, &request, &cx, &mut body), Taken::Answered);
            Response::decode(&body).unwrap().end == ResponseEnd::FORGOTTEN
        };
        let before = begun.load(Ordering::Relaxed);
        assert_eq!([call(1), call(1), call(2), call(2)], [false, !keeps, false, !keeps]);
        assert_eq!(begun.load(Ordering::Relaxed) - before, 2, "each is run once");
        assert_eq!(served.kept_bytes() > 0, keeps);
    }
}

#[test]
fn calls_that_are_never_answered_count_once_and_rise() {
    let mut served = Served::default();
    assert_eq!(
        [1, 2, 2, 1, 5, 3].map(|seq| served.arrive_told(seq)),
        [true, true, false, false, true, false]
    );
}

#[test]
fn slots_beyond_the_credit_wait_until_one_is_answered() {
    let (table, mut slots) = (Table::default(), Slots::default());
    assert_eq!(slots.begin(table, 1, 0), None, "nothing was granted yet");
    slots.set_credit(2);
    let ids: Vec<CallId> = std::iter::from_fn(|| slots.begin(table, 1, 0)).collect();
    assert_eq!(ids.len(), 2);
    slots.answered(ids[1], Cow::Borrowed(b"body"));
    assert_eq!(slots.begin(table, 1, 0), None, "its caller has not taken it");
    assert_eq!(slots.look(ids[1], 1), Look::Answered(b"body".to_vec()));
    assert_eq!(slots.begin(table, 1, 0), Some(CallId { seq: 2, ..ids[1] }));
    slots.answered(ids[1], Cow::Borrowed(b"late"));
    assert_eq!(slots.look(CallId { seq: 2, ..ids[1] }, 1), Look::Waits, "an answer to the call before");
}

#[test]
fn bytes_beyond_the_credit_wait_until_some_are_given_back() {
    let (table, mut slots) = (Table::default(), Slots::default());
    slots.set_credit(9);
    slots.grant_bytes(100);
    let alone = slots.begin(table, 1, 101).expect("one that is too large for the credit goes alone");
    assert_eq!(slots.begin(table, 1, 0), None);
    slots.answered(alone, Cow::Borrowed(b"body"));
    // What was answered is not at the server any more, whether or not its caller has taken it.
    let [first, second] = [60, 40].map(|bytes| slots.begin(table, 1, bytes).expect("there is credit"));
    assert_eq!(slots.begin(table, 1, 1), None);
    assert!(slots.cancel(first, 1, Some(table)));
    assert_eq!(slots.begin(table, 1, 1), None, "the server may still have it");
    slots.answered(first, Cow::Borrowed(b"cancelled"));
    let third = slots.begin(table, 1, 60).expect("60 were given back");
    assert_eq!(slots.begin(table, 1, 1), None);
    [second, third].iter().for_each(|id| slots.forget(*id));
    assert!(slots.begin(table, 1, 100).is_some());
}

#[test]
fn call_given_up_is_to_be_cancelled_until_it_is_answered() {
    let (table, mut slots) = (Table::default(), Slots::default());
    slots.set_credit(2);
    let ids: Vec<CallId> = std::iter::from_fn(|| slots.begin(table, 1, 0)).collect();
    assert_eq!(slots.given_up().next(), None);
    assert!(slots.cancel(ids[1], 1, Some(table)));
    assert_eq!(slots.given_up().collect::<Vec<_>>(), [ids[1]]);
    slots.answered(ids[1], Cow::Borrowed(b"body"));
    assert_eq!((slots.given_up().next(), slots.under_way()), (None, 1));
}

#[test]
fn lost_call_of_lane_keeps_its_name() {
    let (table, mut slots) = (Table::default(), Slots::default());
    slots.set_credit(1);
    let mut lane = slots.lend(table, 0).expect("there is credit");
    let id = lane.begin();
    assert_eq!(slots.give_back_lost(lane), id);
    assert_eq!(slots.look(id, 0), Look::Lost);
    assert_eq!(slots.send_again(id, table, 0), Sent::Again);
    assert_eq!(slots.look(id, 0), Look::Waits);
}
