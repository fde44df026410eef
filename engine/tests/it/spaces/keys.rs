//! Worlds of requests with keys: clients ask gateways, which ask application servers, whose procedures move
//! money between two spaces once a key; other clients call methods with keys at one of them. Any process may
//! end between two messages, and a process in doubt asks again elsewhere, sometimes for something else.
//!
//! The judge counts: under each key is one effect, in both spaces or at the object, and each answer that a
//! process had is that of the effect; the same key with another request is refused; what was permitted is
//! refused by nobody who begins behind that; money is neither made nor lost. Hours pass, so that generations
//! of keys go. A key counts for 48 hours from when it was first asked.

#![allow(clippy::disallowed_types, reason = "the ports of a session are shared between threads")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tercel_collections::once::{Hour, Hours, OTHER_REQUEST, OnceKey, Process, once, once_method};
use tercel_derive::{Object, interface};
use tercel_engine::error::Error;
use tercel_engine::object::Obj;
use tercel_engine::random::Random;
use tercel_engine::rpc::{CallKey, Called, Failure, Handle, KeptResult, Offers};
use tercel_engine::server::ServerConfig;
use tercel_engine::spaces::Cut;
use tercel_engine::time::Now;
use tercel_engine::txn::{Freshness, Isolation, Options, Port, Tx};
use tercel_wire::record::Ref;
use tercel_wire::vector::Vector;

use super::ground::{self, Course, Ground, Space};
use crate::world::things::{Thing, set, thing};

const NAMES: [&str; 2] = ["north", "south"];
const APPS: usize = 3;
const GATEWAYS: usize = 2;
const ASKERS: usize = 3;
/// The clients that call methods, by the numbers of their sessions. The one before is the servers' own.
const CALLERS: [usize; 2] = [APPS + 1, APPS + 2];
const SESSIONS: usize = APPS + 1 + CALLERS.len();
const ACCOUNTS: usize = 2;
const MONEY: u64 = 100_000;
/// Orders that are asked of gateways, and behind them those that are calls of a method.
const BY_GATEWAY: usize = 14;
const ORDERS: usize = BY_GATEWAY + 6;
/// The words of an order, and others that come under the same key.
const AMOUNTS: [u64; 2] = [1, 1_000];

const HOUR_US: u64 = 3_600_000_000;
/// A key is kept so long.
const KEPT_US: u64 = 48 * HOUR_US;
/// Nobody asks again after this.
const ASKED_US: u64 = 46 * HOUR_US;

#[derive(Object)]
#[object(crate = "tercel_engine")]
pub struct Purse {
    pub cents: u64,
}

#[interface(crate = "tercel_engine")]
pub trait Pays {
    /// Adds so many, and gives how many there are.
    fn pay(&mut self, cents: u64) -> u64;
}

impl Pays for Purse {
    fn pay(this: &Obj<'_, Purse>, cents: u64) -> Called<u64> {
        let cents = this.cents() + cents;
        this.edit()?.set_cents(cents)?;
        Ok(cents)
    }
}

/// The time of a world, and what its servers' processes know.
struct Servers {
    clock: Now,
    hours: Hours,
    random: Random,
    /// The bodies that ran: their orders, and when.
    ran: Vec<(usize, Now)>,
}

thread_local! {
    static SERVERS: RefCell<Servers> = RefCell::new(Servers::new(0));
}

fn servers<R>(f: impl FnOnce(&mut Servers) -> R) -> R {
    SERVERS.with_borrow_mut(f)
}

impl Servers {
    fn new(seed: u64) -> Servers {
        let random = Random::new(seed ^ 0x6b65_7973);
        Servers { clock: Now(HOUR_US), hours: Hours::default(), random, ran: Vec::new() }
    }

    fn draw(&mut self) -> [u64; 2] {
        [self.random.next_u64(), self.random.next_u64()]
    }
}

/// A server's process.
struct AtServer;

impl Process for AtServer {
    fn draw(&self) -> Result<[u64; 2], Error> {
        Ok(servers(Servers::draw))
    }

    fn passed(&self, space: [u64; 2], hour: Hour) -> u32 {
        servers(|it| it.hours.passed(space, hour, it.clock))
    }
}

/// Keeps what methods return.
fn keep(
    tx: &Tx<'_>,
    key: CallKey<'_>,
    layout: &[u8],
    body: &mut dyn FnMut() -> Result<Vec<u8>, Error>,
) -> Result<KeptResult, Error> {
    let order = std::str::from_utf8(key.key).unwrap().parse().unwrap();
    once_method(&AtServer, tx, key, layout, &mut || {
        servers(|it| it.ran.push((order, it.clock)));
        body()
    })
}

/// The hours that an application server's process has seen.
#[derive(Default)]
struct AtApp(Mutex<Hours>);

impl Process for AtApp {
    fn draw(&self) -> Result<[u64; 2], Error> {
        Ok(servers(Servers::draw))
    }

    fn passed(&self, space: [u64; 2], hour: Hour) -> u32 {
        self.0.lock().unwrap().passed(space, hour, servers(|it| it.clock))
    }
}

/// A place of the network. The processes there come one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Asker(usize),
    Gateway(usize),
    App(usize),
}

/// A request: an order, and whether its words are the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    order: usize,
    other: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Returned(u64),
    OtherRequest,
    /// The order is not permitted yet.
    NotPermitted,
    /// The asker does not know what became of the request.
    Doubt,
}

#[derive(Debug, Clone, Copy)]
enum Body {
    Ask(Request),
    Say(Answer),
}

/// A message. One to or from a process that has ended is lost.
#[derive(Debug, Clone, Copy)]
struct Mail {
    from: (Place, u32),
    to: (Place, u32),
    /// The number that its asker gave the request.
    ticket: u64,
    body: Body,
}

/// A client's process, which has one request under way: after a while it is in doubt, and asks again.
#[derive(Default)]
struct Asker {
    waits: Option<(u64, Request, u32)>,
}

impl Asker {
    const PATIENCE: u32 = 4;

    /// Says whether it may ask now.
    fn turn(&mut self) -> bool {
        self.waits = self.waits.filter(|(.., left)| *left > 0).map(|(t, r, left)| (t, r, left - 1));
        self.waits.is_none()
    }

    /// The request that this is the answer to.
    fn take(&mut self, ticket: u64) -> Option<Request> {
        self.waits.take_if(|(of, ..)| *of == ticket).map(|(_, request, _)| request)
    }
}

/// A gateway's process: it passes on what is asked, and asks another server if it is in doubt.
#[derive(Default)]
struct Gateway {
    open: BTreeMap<u64, Open>,
}

/// A request that a gateway has passed on.
#[derive(Clone, Copy)]
struct Open {
    by: (Place, u32),
    ticket: u64,
    request: Request,
    left: u32,
}

impl Gateway {
    const PATIENCE: u32 = 3;

    /// Requests that are to be passed on again.
    fn turn(&mut self) -> Vec<Open> {
        self.open.values_mut().for_each(|open| open.left = open.left.saturating_sub(1));
        self.open.extract_if(.., |_, open| open.left == 0).map(|(_, open)| open).collect()
    }
}

/// The network, with the processes between clients and spaces.
#[derive(Default)]
struct Net {
    mail: Vec<Mail>,
    tickets: u64,
    /// By place: the processes that were there.
    lives: [Vec<u32>; 3],
    askers: Vec<Asker>,
    gateways: Vec<Gateway>,
    apps: Vec<App>,
    callers: [bool; CALLERS.len()],
}

/// An application server's process.
#[derive(Default)]
struct App {
    seen: Vector,
    is_busy: bool,
}

impl Net {
    fn new() -> Net {
        Net {
            lives: [ASKERS, GATEWAYS, APPS].map(|count| vec![0; count]),
            askers: (0..ASKERS).map(|_| Asker::default()).collect(),
            gateways: (0..GATEWAYS).map(|_| Gateway::default()).collect(),
            apps: (0..APPS).map(|_| App::default()).collect(),
            ..Net::default()
        }
    }

    fn life(&mut self, place: Place) -> &mut u32 {
        match place {
            Place::Asker(i) => &mut self.lives[0][i],
            Place::Gateway(i) => &mut self.lives[1][i],
            Place::App(i) => &mut self.lives[2][i],
        }
    }

    /// The process that is there now.
    fn end(&mut self, place: Place) -> (Place, u32) {
        (place, *self.life(place))
    }

    fn ask(&mut self, from: (Place, u32), to: Place, request: Request) -> u64 {
        self.tickets += 1;
        let mail = Mail { from, to: self.end(to), ticket: self.tickets, body: Body::Ask(request) };
        self.mail.push(mail);
        self.tickets
    }

    fn answer(&mut self, asked: &Mail, answer: Answer) {
        let Mail { from, to, ticket, .. } = *asked;
        self.mail.push(Mail { from: to, to: from, ticket, body: Body::Say(answer) });
    }

    /// The process there ends, and another one begins.
    fn kill(&mut self, place: Place) {
        *self.life(place) += 1;
        match place {
            Place::Asker(i) => self.askers[i] = Asker::default(),
            Place::Gateway(i) => self.gateways[i] = Gateway::default(),
            Place::App(i) => self.apps[i] = App::default(),
        }
        let lives = &self.lives;
        let is_there = |(place, life): (Place, u32)| match place {
            Place::Asker(i) => lives[0][i] == life,
            Place::Gateway(i) => lives[1][i] == life,
            Place::App(i) => lives[2][i] == life,
        };
        // Messages that a dead process had sent may still arrive.
        self.mail.retain(|mail| is_there(mail.to));
    }

    /// A gateway passes a request on.
    fn pass_on(&mut self, gateway: usize, app: usize, open: Open) {
        let from = self.end(Place::Gateway(gateway));
        let ticket = self.ask(from, Place::App(app), open.request);
        self.gateways[gateway].open.insert(ticket, Open { left: Gateway::PATIENCE, ..open });
    }
}

/// Knowledge of an order.
#[derive(Debug, Default)]
struct Order {
    /// The moment at which it was first asked.
    since: Option<Now>,
    /// The results that askers were given.
    told: BTreeSet<u64>,
    /// Set for words that were refused for others.
    refused: [bool; 2],
    answers: usize,
    /// Set once an application server knows that it was permitted, or had its effect.
    is_permitted: bool,
}

/// A transfer of an order: from one space to the other, between accounts.
#[derive(Clone, Copy)]
struct Transfer {
    from: usize,
    accounts: [usize; 2],
}

/// The objects of a space.
struct Kept {
    accounts: Vec<Ref<Thing>>,
    /// By order: the words that had their effect, each with its amount.
    tallies: Vec<Ref<Thing>>,
    /// By order: whether it is permitted, in the space that the money comes from.
    permits: Vec<Ref<Thing>>,
}

pub struct Keyed {
    ground: Ground,
    net: Mutex<Net>,
    at_apps: [AtApp; APPS],
    kept: Vec<Kept>,
    /// The objects of the orders that are calls, and behind them one for calls that nobody repeats.
    purses: Vec<Ref<Purse>>,
    transfers: Vec<Transfer>,
    orders: Mutex<Vec<Order>>,
    /// The hours that pass at once, at most.
    leap: u64,
    pub counts: Counts,
}

/// Events of a world, in numbers.
#[derive(Debug, Default)]
pub struct Counts {
    pub answered: AtomicUsize,
    pub again: AtomicUsize,
    pub refused: AtomicUsize,
    pub doubts: AtomicUsize,
    pub ended: AtomicUsize,
    pub methods: AtomicUsize,
    pub early: AtomicUsize,
    pub wrong: Mutex<Vec<String>>,
}

impl Course for Keyed {
    fn ground(&self) -> &Ground {
        &self.ground
    }

    fn go_on(&self) {
        match self.below(17) {
            0..6 => self.deliver(),
            6..9 => self.ask(),
            9 => self.turn_gateway(),
            10 | 11 => self.call(self.below(CALLERS.len() as u64)),
            12 => self.pass_hours(),
            13 if self.below(3) == 0 => self.kill(),
            14 => self.look_around(),
            15 => self.permit(self.below(BY_GATEWAY as u64)),
            _ => self.lose_mail(),
        }
    }
}

fn add(counter: &AtomicUsize) {
    counter.fetch_add(1, Relaxed);
}

impl Keyed {
    fn new(seed: u64, spaces: Vec<Box<dyn Space>>) -> Keyed {
        servers(|it| *it = Servers::new(seed));
        let mut keyed = Keyed {
            ground: Ground::new(seed, spaces, SESSIONS),
            net: Mutex::new(Net::new()),
            at_apps: Default::default(),
            kept: Vec::new(),
            purses: Vec::new(),
            transfers: Vec::new(),
            orders: Mutex::new((0..ORDERS).map(|_| Order::default()).collect()),
            // In some worlds nearly every hour is seen through, in others hardly any.
            leap: [2, 8, 24][seed as usize % 3],
            counts: Counts::default(),
        };
        let accounts = || [0, 1].map(|_| keyed.below(ACCOUNTS as u64));
        let transfer = |_| Transfer { from: usize::from(keyed.below(4) == 0), accounts: accounts() };
        keyed.transfers = (0..BY_GATEWAY).map(transfer).collect();
        let make = |tx: &Tx<'_>| {
            let make = |count| {
                let made = tx.create(&thing(count))?;
                tx.set_root(&format!("{made:?}"), made)?;
                Ok::<_, Error>(made)
            };
            Ok(Kept {
                accounts: (0..ACCOUNTS).map(|_| make(MONEY)).collect::<Result<_, _>>()?,
                tallies: (0..BY_GATEWAY).map(|_| make(0)).collect::<Result<_, _>>()?,
                permits: (0..BY_GATEWAY as u64).map(|order| make(order % 2)).collect::<Result<_, _>>()?,
            })
        };
        let purse = |tx: &Tx<'_>| {
            let made = tx.create(&Purse { cents: 0 })?;
            tx.set_root(&format!("{made:?}"), made)?;
            Ok(made)
        };
        let mut seen = Vector::default();
        keyed.kept = keyed.session(&NAMES, 0, &mut seen, |its| {
            NAMES.map(|name| its.space(name).unwrap().run(make).unwrap()).into()
        });
        keyed.purses = keyed.session(&NAMES, 0, &mut seen, |its| {
            (BY_GATEWAY..=ORDERS).map(|_| its.space(NAMES[0]).unwrap().run(purse).unwrap()).collect()
        });
        keyed.ground.is_calm.store(false, Relaxed);
        keyed
    }

    fn below(&self, n: u64) -> usize {
        self.ground.below(n)
    }

    fn is_calm(&self) -> bool {
        self.ground.is_calm.load(Relaxed)
    }

    fn wrong(&self, what: String) {
        self.counts.wrong.lock().unwrap().push(what);
    }

    /// Chooses what is asked next of these orders: one that was asked before, or a new one.
    fn choose(&self, of: std::ops::Range<usize>) -> Option<Request> {
        let now = servers(|it| it.clock);
        let mut orders = self.orders.lock().unwrap();
        let is_young = |order: &Order| order.since.is_some_and(|since| now.since_us(since) < ASKED_US);
        let young: Vec<usize> = of.clone().filter(|n| is_young(&orders[*n])).collect();
        let new = of.into_iter().find(|n| orders[*n].since.is_none());
        let order = match new.filter(|_| young.is_empty() || self.below(4) == 0) {
            Some(new) => new,
            None if young.is_empty() => return None,
            None => young[self.below(young.len() as u64)],
        };
        orders[order].since.get_or_insert(now);
        Some(Request { order, other: self.below(6) == 0 })
    }

    /// A client asks a gateway.
    fn ask(&self) {
        let (asker, gateway) = (self.below(ASKERS as u64), self.below(GATEWAYS as u64));
        if !self.net.lock().unwrap().askers[asker].turn() {
            return;
        }
        let Some(request) = self.choose(0..BY_GATEWAY) else { return };
        let mut net = self.net.lock().unwrap();
        let from = net.end(Place::Asker(asker));
        let ticket = net.ask(from, Place::Gateway(gateway), request);
        net.askers[asker].waits = Some((ticket, request, Asker::PATIENCE));
    }

    fn turn_gateway(&self) {
        let gateway = self.below(GATEWAYS as u64);
        let again = self.net.lock().unwrap().gateways[gateway].turn();
        for open in again {
            let app = self.below(APPS as u64);
            self.net.lock().unwrap().pass_on(gateway, app, open);
        }
    }

    /// One of the messages under way arrives.
    fn deliver(&self) {
        let arrived = {
            let mut net = self.net.lock().unwrap();
            let is_heard = |mail: &Mail| !matches!(mail.to.0, Place::App(i) if net.apps[i].is_busy);
            let heard: Vec<usize> = (0..net.mail.len()).filter(|i| is_heard(&net.mail[*i])).collect();
            if heard.is_empty() {
                return;
            }
            let at = heard[self.below(heard.len() as u64)];
            net.mail.remove(at)
        };
        match (arrived.to.0, arrived.body) {
            (Place::Asker(i), Body::Say(answer)) => {
                let asked = self.net.lock().unwrap().askers[i].take(arrived.ticket);
                asked.into_iter().for_each(|request| self.told(request, answer));
            }
            (Place::Gateway(i), Body::Ask(request)) => {
                let open = Open { by: arrived.from, ticket: arrived.ticket, request, left: 0 };
                let app = self.below(APPS as u64);
                self.net.lock().unwrap().pass_on(i, app, open);
            }
            (Place::Gateway(i), Body::Say(answer)) => self.pass_back(i, arrived.ticket, answer),
            (Place::App(i), Body::Ask(request)) => {
                let answer = self.serve(i, request);
                if let Some(answer) = answer {
                    self.net.lock().unwrap().answer(&arrived, answer);
                }
            }
            (Place::Asker(_), Body::Ask(_)) | (Place::App(_), Body::Say(_)) => unreachable!(),
        }
    }

    /// A gateway hears of what it has passed on.
    fn pass_back(&self, gateway: usize, ticket: u64, answer: Answer) {
        let Some(open) = self.net.lock().unwrap().gateways[gateway].open.remove(&ticket) else { return };
        let asks_again = answer == Answer::Doubt && self.below(2) == 0;
        let app = self.below(APPS as u64);
        let mut net = self.net.lock().unwrap();
        if asks_again {
            return net.pass_on(gateway, app, open);
        }
        let from = net.end(Place::Gateway(gateway));
        // Its client may have ended meanwhile.
        if net.end(open.by.0) == open.by {
            net.mail.push(Mail { from, to: open.by, ticket: open.ticket, body: Body::Say(answer) });
        }
    }

    fn lose_mail(&self) {
        let mut net = self.net.lock().unwrap();
        if !net.mail.is_empty() && self.below(4) == 0 {
            let at = self.below(net.mail.len() as u64);
            net.mail.remove(at);
        }
    }

    /// A process that is amid nothing ends.
    fn kill(&self) {
        let place = match self.below(4) {
            0 => Place::Asker(self.below(ASKERS as u64)),
            1 => Place::Gateway(self.below(GATEWAYS as u64)),
            2 => Place::App(self.below(APPS as u64)),
            _ => return servers(|it| it.hours = Hours::default()),
        };
        match place {
            Place::App(i) if self.net.lock().unwrap().apps[i].is_busy => {}
            Place::App(i) => self.end_app(i),
            _ => self.net.lock().unwrap().kill(place),
        }
        add(&self.counts.ended);
    }

    fn end_app(&self, app: usize) {
        self.ground.lives[app].store(0, Relaxed);
        self.ground.renew_ended(app);
        *self.at_apps[app].0.lock().unwrap() = Hours::default();
        self.net.lock().unwrap().kill(Place::App(app));
    }

    fn pass_hours(&self) {
        let us = HOUR_US / 6 + self.below(self.leap * HOUR_US) as u64;
        servers(|it| it.clock = it.clock.plus_us(us));
    }

    /// A session begins something, amid which its process may end.
    fn enter(&self, session: usize) {
        self.ground.depth.fetch_add(1, Relaxed);
        if !self.is_calm() && self.below(6) == 0 {
            self.ground.lives[session].store(1 + self.below(60) as i64, Relaxed);
        }
    }

    /// Ends that. Says whether the process has ended, perhaps only after what it had begun.
    fn leave(&self, session: usize) -> bool {
        self.ground.depth.fetch_sub(1, Relaxed);
        let lives = &self.ground.lives[session];
        let ends_now = !self.is_calm() && self.below(10) == 0;
        let has_ended = lives.load(Relaxed) <= 0 || ends_now;
        if !has_ended {
            lives.store(i64::MAX, Relaxed);
        }
        has_ended
    }

    /// An application server runs its procedure. It answers unless it ends.
    fn serve(&self, app: usize, request: Request) -> Option<Answer> {
        let mut seen = {
            let mut net = self.net.lock().unwrap();
            net.apps[app].is_busy = true;
            net.apps[app].seen.clone()
        };
        let was_permitted = self.orders.lock().unwrap()[request.order].is_permitted;
        self.enter(app);
        // Also from a state that is old: a key has its result all the same.
        let freshness = if self.below(3) == 0 { Freshness::Stale } else { Freshness::Recent };
        let options = Options { freshness, ..Options::default() };
        let ended = self.session(&NAMES, app, &mut seen, |its| {
            its.run_with(options, |cut| self.transfer(&self.at_apps[app], cut, request))
        });
        if ended.is_ok() {
            self.orders.lock().unwrap()[request.order].is_permitted = true;
        }
        if was_permitted && matches!(ended, Err(Error::Denied(_))) {
            self.wrong(format!("{request:?} is refused by a state from before it was permitted"));
        }
        if self.leave(app) {
            add(&self.counts.ended);
            self.end_app(app);
            return None;
        }
        self.net.lock().unwrap().apps[app] = App { seen, is_busy: false };
        Some(match ended {
            Ok(result) => Answer::Returned(result),
            Err(Error::Invalid(text)) if text == OTHER_REQUEST => Answer::OtherRequest,
            Err(Error::Denied(_)) => Answer::NotPermitted,
            Err(_) => Answer::Doubt,
        })
    }

    /// An application server that is amid nothing permits an order.
    fn permit(&self, order: usize) {
        let app = self.below(APPS as u64);
        if std::mem::replace(&mut self.net.lock().unwrap().apps[app].is_busy, true) {
            return;
        }
        self.ground.depth.fetch_add(1, Relaxed);
        let mut seen = self.net.lock().unwrap().apps[app].seen.clone();
        let _may_have_failed = self.permit_by(app, &mut seen, order);
        self.ground.depth.fetch_sub(1, Relaxed);
        self.net.lock().unwrap().apps[app] = App { seen, is_busy: false };
    }

    fn permit_by(&self, app: usize, seen: &mut Vector, order: usize) -> Result<(), Error> {
        let from = self.transfers[order].from;
        self.session(&NAMES, app, seen, |its| {
            its.space(NAMES[from])?.run(|tx| set(tx, self.kept[from].permits[order], 1))
        })?;
        self.orders.lock().unwrap()[order].is_permitted = true;
        Ok(())
    }

    /// The procedure: moves money once.
    fn transfer(&self, at: &AtApp, cut: &Cut<'_>, request: Request) -> Result<u64, Error> {
        let Transfer { from, accounts } = self.transfers[request.order];
        let amount = AMOUNTS[usize::from(request.other)];
        let (key, words) = (request.order.to_string(), format!("{amount} from {from}"));
        once(at, cut.space(NAMES[from])?, OnceKey::from((key.as_str(), words.as_str())), || {
            let permit = self.kept[from].permits[request.order];
            if cut.space(NAMES[from])?.get(permit)?.count() == 0 {
                return Err(Error::Denied("it is not permitted yet".into()));
            }
            let run = servers(|it| {
                it.ran.push((request.order, it.clock));
                it.ran.len() as u64
            });
            for space in [1 - from, from] {
                let (tx, kept) = (cut.space(NAMES[space])?, &self.kept[space]);
                let (account, tally) = (kept.accounts[accounts[space]], kept.tallies[request.order]);
                let count = tx.get(account)?.count();
                let count = if space == from { count - amount } else { count + amount };
                set(tx, account, count)?;
                set(tx, tally, tx.get(tally)?.count() + amount)?;
            }
            // No two bodies have the same result.
            Ok(run * 10_000 + amount)
        })
    }

    /// A client calls a method with a key.
    fn call(&self, caller: usize) {
        if std::mem::replace(&mut self.net.lock().unwrap().callers[caller], true) {
            return;
        }
        // Others call as well, all the time: each new key looks at the hour.
        let request = match self.below(2) {
            0 => Some(Request { order: ORDERS, other: false }),
            _ => self.choose(BY_GATEWAY..ORDERS),
        };
        if let Some(request) = request {
            let session = CALLERS[caller];
            self.enter(session);
            let answer = self.pay(session, request);
            if self.leave(session) {
                add(&self.counts.ended);
                self.ground.lives[session].store(0, Relaxed);
                self.ground.renew_ended(session);
            } else if request.order < ORDERS {
                self.told(request, answer);
            }
        }
        self.net.lock().unwrap().callers[caller] = false;
    }

    fn pay(&self, session: usize, request: Request) -> Answer {
        let way = &self.ways(session)[0] as &dyn Port;
        let purse = self.purses[request.order - BY_GATEWAY];
        let number = match request.order {
            ORDERS => ORDERS + servers(|it| it.ran.len()),
            order => order,
        };
        let handle = Handle::new(purse, Ok(way)).with_key(number.to_string());
        match handle.within(Duration::from_millis(400)).pay(AMOUNTS[usize::from(request.other)]) {
            Ok(cents) => Answer::Returned(cents),
            Err(Failure::Space(Error::Invalid(text))) if text == OTHER_REQUEST => Answer::OtherRequest,
            Err(_) => Answer::Doubt,
        }
    }

    /// Counts an answer that an asker has.
    fn told(&self, request: Request, answer: Answer) {
        let is_over = self.is_over(request.order);
        let order = &mut self.orders.lock().unwrap()[request.order];
        match answer {
            Answer::Returned(result) => {
                let amount = AMOUNTS[usize::from(request.other)];
                if result % 10_000 != amount && !is_over {
                    self.wrong(format!("{request:?} is answered with {result}"));
                }
                let is_again = order.answers > 0;
                order.answers += 1;
                order.told.insert(result);
                add(&self.counts.answered);
                self.counts.again.fetch_add(usize::from(is_again), Relaxed);
                self.counts.methods.fetch_add(usize::from(request.order >= BY_GATEWAY), Relaxed);
            }
            Answer::OtherRequest => {
                order.refused[usize::from(request.other)] = true;
                add(&self.counts.refused);
            }
            Answer::NotPermitted => add(&self.counts.early),
            Answer::Doubt => add(&self.counts.doubts),
        }
    }

    /// Reads money and tallies of both spaces.
    fn look(&self, cut: &Cut<'_>) -> Result<(u64, Vec<[u64; 2]>), Error> {
        let (mut sum, mut tallies) = (0, vec![[0; 2]; BY_GATEWAY]);
        for (at, name) in NAMES.into_iter().enumerate() {
            let tx = cut.space(name)?;
            for account in &self.kept[at].accounts {
                sum += tx.get(*account)?.count();
            }
            for (n, tally) in self.kept[at].tallies.iter().enumerate() {
                tallies[n][at] = tx.get(*tally)?.count();
            }
        }
        Ok((sum, tallies))
    }

    /// An application server that is amid nothing reads everything.
    fn look_around(&self) {
        let (app, is_strict) = (self.below(APPS as u64), self.below(2) == 0);
        let isolation = if is_strict { Isolation::Strict } else { Isolation::Serializable };
        if std::mem::replace(&mut self.net.lock().unwrap().apps[app].is_busy, true) {
            return;
        }
        self.ground.depth.fetch_add(1, Relaxed);
        let mut seen = self.net.lock().unwrap().apps[app].seen.clone();
        let looked =
            self.session(&NAMES, app, &mut seen, |its| its.read_with(isolation, |cut| self.look(cut)));
        self.ground.depth.fetch_sub(1, Relaxed);
        self.net.lock().unwrap().apps[app] = App { seen, is_busy: false };
        if let Ok((sum, tallies)) = looked {
            self.judge_cut(sum, &tallies);
        }
    }

    fn judge_cut(&self, sum: u64, tallies: &[[u64; 2]]) {
        if sum != MONEY * (NAMES.len() * ACCOUNTS) as u64 {
            self.wrong(format!("the money is {sum}"));
        }
        for (n, [north, south]) in tallies.iter().enumerate() {
            if north != south {
                self.wrong(format!("order {n} has {north} in the one space, {south} in the other"));
            }
        }
    }

    /// Says whether a body of an order ran when its key counted no longer.
    fn is_over(&self, order: usize) -> bool {
        let since = self.orders.lock().unwrap()[order].since.unwrap_or_default();
        servers(|it| it.ran.iter().any(|(of, at)| *of == order && at.since_us(since) >= KEPT_US))
    }

    /// Asks until there is an answer.
    fn ask_at_last(&self, request: Request) {
        for _ in 0..60 {
            let answer = match request.order < BY_GATEWAY {
                true => self.serve(0, request).unwrap_or(Answer::Doubt),
                false => self.pay(CALLERS[0], request),
            };
            if answer != Answer::Doubt {
                return self.told(request, answer);
            }
            self.ground.settle();
        }
        self.wrong(format!("{request:?} has no answer in the end"));
    }

    /// Everything works again, and everything that still counts is asked once more.
    fn end(&self) {
        self.ground.calm();
        self.ground.settle();
        let permits = |order| {
            (0..60).any(|_| {
                self.ground.settle();
                self.permit_by(0, &mut Vector::default(), order).is_ok()
            })
        };
        assert!((0..BY_GATEWAY).all(permits), "an order cannot be permitted in the end");
        let now = servers(|it| it.clock);
        let since: Vec<_> = self.orders.lock().unwrap().iter().map(|order| order.since).collect();
        let counts = |order: &usize| since[*order].is_some_and(|since| now.since_us(since) < KEPT_US);
        for order in (0..ORDERS).filter(counts) {
            [false, true].into_iter().for_each(|other| self.ask_at_last(Request { order, other }));
        }
        let mut seen = Vector::default();
        let looked = (0..200).find_map(|_| {
            self.ground.settle();
            let looked = self.session(&NAMES, 0, &mut seen, |its| {
                its.read_with(Isolation::Strict, |cut| {
                    let tx = cut.space(NAMES[0])?;
                    let cents =
                        self.purses[..ORDERS - BY_GATEWAY].iter().map(|purse| Ok(tx.get(*purse)?.cents()));
                    Ok((cents.collect::<Result<Vec<_>, Error>>()?, self.look(cut)?))
                })
            });
            looked.ok()
        });
        let Some((cents, (sum, tallies))) = looked else {
            return self.wrong("a transaction is not settled".into());
        };
        self.judge_cut(sum, &tallies);
        for (n, tally) in tallies.iter().map(|tally| tally[0]).chain(cents).enumerate() {
            if !self.is_over(n) {
                self.judge(n, tally);
            }
        }
    }

    /// Judges an order by the effect that it had in the end.
    fn judge(&self, n: usize, effect: u64) {
        let order = &self.orders.lock().unwrap()[n];
        let had = AMOUNTS.iter().position(|amount| *amount == effect);
        let is_one = match (effect, had) {
            (0, _) => order.told.is_empty() && order.refused == [false; 2],
            (_, None) => false,
            (_, Some(had)) => order.told.iter().all(|told| told % 10_000 == effect) && !order.refused[had],
        };
        if !is_one || order.told.len() > 1 {
            self.wrong(format!("order {n} had the effect {effect}: {order:?}"));
        }
    }
}

fn play_in(seed: u64, spaces: Vec<Box<dyn Space>>, acts: usize) -> Keyed {
    let keyed = Keyed::new(seed, spaces);
    keyed.ground.trouble(seed);
    for _ in 0..acts {
        keyed.go_on();
        keyed.wait(keyed.below(NAMES.len() as u64));
    }
    keyed.end();
    keyed
}

fn config(keepalive_ms: u32) -> ServerConfig {
    let methods = Offers::keeping(keep).with(Purse::METHODS);
    ServerConfig { keepalive_ms, methods, ..ServerConfig::default() }
}

/// Plays a world of lone servers.
pub fn play(seed: u64) -> Keyed {
    play_in(seed, ground::lone(seed, NAMES.len() as u64, SESSIONS, &config(1_000)), 500)
}

/// Plays a world of groups.
pub fn play_groups(seed: u64) -> Keyed {
    play_in(seed, ground::groups(seed, NAMES.len() as u64, SESSIONS, &config(200)), 300)
}

impl Keyed {
    #[cfg_attr(not(tercel_mutants), expect(dead_code))]
    pub fn is_clean(&self) -> bool {
        self.counts.wrong.lock().unwrap().is_empty()
    }
}

fn play_worlds(play: fn(u64) -> Keyed, worlds: u64) {
    let mut all = [0u64; 7];
    for seed in 0..worlds {
        let Counts { answered, again, refused, doubts, ended, methods, early, wrong } = play(seed).counts;
        let counts = [answered, again, refused, doubts, ended, methods, early].map(AtomicUsize::into_inner);
        all.iter_mut().zip(counts).for_each(|(all, count)| *all += count as u64);
        let wrong = wrong.into_inner().unwrap();
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
    }
    println!("{worlds} worlds: answered, again, refused, doubts, ended, methods, early: {all:?}");
    assert!(all.iter().all(|count| *count > worlds / 2), "{all:?}");
}

#[test]
fn keys_have_one_effect_in_random_worlds() {
    play_worlds(play, super::worlds(20));
}

#[test]
fn keys_have_one_effect_over_groups() {
    play_worlds(play_groups, super::worlds(10));
}

/// The thousand worlds of either kind that a change of keys is to pass:
/// `cargo test --release -p tercel-engine --test it -- --ignored --nocapture spaces::keys`.
#[test]
#[ignore = "takes minutes"]
fn keys_have_one_effect_in_thousand_worlds() {
    play_worlds(play, super::worlds(1_000));
}

#[test]
#[ignore = "takes minutes"]
fn keys_have_one_effect_over_thousand_groups() {
    play_worlds(play_groups, super::worlds(1_000));
}

/// For builds with `--cfg tercel_mutants`, as the step `worlds` of `.ci/run` makes one.
#[cfg(tercel_mutants)]
#[test]
fn dropped_rules_of_keys_are_noticed() {
    use tercel_engine::mutant::{Rule, drop_rule};

    let mut missed: Vec<Rule> = Vec::new();
    for rule in Rule::OF_KEYS {
        drop_rule(Some(*rule));
        // A world notices a rule also by an assertion of its own.
        let is_clean = |seed| std::panic::catch_unwind(|| play(seed).is_clean()).unwrap_or(false);
        let caught = (0..WORLDS_MAX).find(|seed| !is_clean(*seed));
        println!("{rule:?} is noticed in world {caught:?}");
        missed.extend(caught.is_none().then_some(*rule));
    }
    drop_rule(None);
    assert!(missed.is_empty(), "{missed:?}");
}

/// Worlds in which a dropped rule must be noticed.
#[cfg(tercel_mutants)]
const WORLDS_MAX: u64 = 200;
