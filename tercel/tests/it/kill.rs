//! A server that is killed again and again, by the signal that leaves it no last word, while clients commit.
//!
//! The server is this very program: with `TERCEL_TEST_SERVE` set, the test serves instead of testing.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::{Counter, Killed, counter};
use tercel::rpc::{Input, Output, ServiceHandle};
use tercel::{
    Address, Called, Client, ClientConfig, Context, Error, Failure, List, Obj, Object, OpId, Ref, Server,
    ServerConfig, Tx, interface, service,
};
use tercel_testkit::ends::Ends;

const SERVE: &str = "TERCEL_TEST_SERVE";
const SERVED: (&str, &str) = ("kill::a_killed_server_keeps_what_it_acknowledged", SERVE);
const THREADS: usize = 4;
const KILLS: u64 = 30;
/// Acknowledged commits between two kills.
const COMMITS: u64 = 120;

#[test]
fn a_killed_server_keeps_what_it_acknowledged() {
    if let Ok(dir) = std::env::var(SERVE) {
        return serve_until_killed(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut server = Killed::start(dir.path(), SERVED);
    let client = connect(dir.path());
    let counters: Vec<Ref<Counter>> = (0..THREADS).map(|i| counter(&client, &format!("c{i}"))).collect();
    let (acknowledged, over) = (AtomicU64::new(0), AtomicBool::new(false));
    // The last server is handed out: what is asked below needs one.
    let (outcomes, _server): (Vec<(u64, Vec<OpId>)>, Killed) = std::thread::scope(|s| {
        let ends = Ends(&over);
        let threads: Vec<_> = counters
            .iter()
            .map(|r| {
                let (client, acknowledged, over) = (&client, &acknowledged, &over);
                s.spawn(move || stream(client, *r, acknowledged, over))
            })
            .collect();
        for kill in 1..=KILLS {
            let end = Instant::now() + Duration::from_secs(60);
            while acknowledged.load(Ordering::SeqCst) < kill * COMMITS && Instant::now() < end {
                std::thread::yield_now();
            }
            assert!(Instant::now() < end, "commits stopped after {} kills", kill - 1);
            drop(server);
            server = Killed::start(dir.path(), SERVED);
            check(dir.path(), &counters, acknowledged.load(Ordering::SeqCst));
        }
        drop(ends);
        (threads.into_iter().map(|t| t.join().unwrap()).collect(), server)
    });
    for (r, (done, unknown)) in counters.iter().zip(outcomes) {
        let late = unknown.iter().filter(|op| client.resolve(**op).unwrap().is_some()).count() as u64;
        let count = client.run(|tx| Ok(tx.get(*r)?.count())).unwrap();
        assert_eq!(count, done + late, "each commit once");
    }
}

#[service]
trait Till {
    /// Counts on by one, in a transaction.
    #[slow]
    fn count_on(&self, counter: Ref<Counter>) -> u64;
    /// The same for each step that comes, and says how far it is; gives how many steps there were.
    #[slow]
    fn count_each(&self, counter: Ref<Counter>, steps: &Input<u64>, counts: &Output<u64>) -> u64;
    /// The process that answers.
    fn process(&self) -> u32;
}

struct Here;

impl Till for Here {
    fn count_each(
        &self,
        cx: &Context<'_>,
        counter: Ref<Counter>,
        steps: &Input<u64>,
        counts: &Output<u64>,
    ) -> Called<u64> {
        let mut done = 0;
        while steps.next()?.is_some() {
            counts.send(&self.count_on(cx, counter)?)?;
            done += 1;
        }
        Ok(done)
    }

    fn count_on(&self, cx: &Context<'_>, counter: Ref<Counter>) -> Called<u64> {
        let count_on = |tx: &Tx<'_>| {
            let count = tx.get(counter)?.count() + 1;
            tx.edit(counter)?.set_count(count)?;
            Ok(count)
        };
        Ok(cx.run(count_on)?)
    }

    fn process(&self, _: &Context<'_>) -> Called<u32> {
        Ok(std::process::id())
    }
}

const KILLS_OF_SERVICES: u64 = 10;
/// Certain calls between two kills.
const CALLS: u64 = 60;

/// Over sockets and over shared memory: errors that say what is certain, in time, and nothing twice.
#[test]
fn calls_of_a_killed_servers_services_are_executed_once_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Killed::start(dir.path(), SERVED);
    let clients = [true, false].map(|shared_memory| connect_by(dir.path(), shared_memory));
    let counters = [0, 1].map(|i| counter(&clients[i], &format!("c{i}")));
    let (certain, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (outcomes, _server) = std::thread::scope(|s| {
        let ends = Ends(&over);
        let calling = [0, 1].map(|i| {
            let (client, r, certain, over) = (&clients[i], counters[i], &certain, &over);
            s.spawn(move || calls(client, r, certain, over))
        });
        for kill in 1..=KILLS_OF_SERVICES {
            let end = Instant::now() + Duration::from_secs(60);
            while certain.load(Ordering::SeqCst) < kill * CALLS {
                assert!(Instant::now() < end, "calls stopped after {} kills", kill - 1);
                std::thread::yield_now();
            }
            drop(server);
            server = Killed::start(dir.path(), SERVED);
        }
        drop(ends);
        (calling.map(|c| c.join().unwrap()), server)
    });
    let reader = connect(dir.path());
    for (r, (done, unknown)) in counters.into_iter().zip(outcomes) {
        let count = reader.run(|tx| Ok(tx.get(r)?.count())).unwrap();
        assert!((done..=done + unknown).contains(&count), "{count} of {done} and {unknown}");
    }
}

/// Calls until it is over: how many calls that commit are certain, and of how many nothing is.
fn calls(client: &Client, r: Ref<Counter>, certain: &AtomicU64, over: &AtomicBool) -> (u64, u64) {
    let till = client.service::<dyn Till>();
    let (mut done, mut unknown) = (0, 0);
    while !over.load(Ordering::SeqCst) {
        let begun = Instant::now();
        match till.count_on(r) {
            Ok(_) => {
                done += 1;
                certain.fetch_add(1, Ordering::SeqCst);
            }
            Err(Failure::Space(Error::Unknown { op: None, .. } | Error::Failed(_))) => unknown += 1,
            // Not executed.
            Err(Failure::Space(Error::Unavailable(_) | Error::Timeout)) => {}
            Err(e) => panic!("{e}"),
        }
        let (told, untold) = steps(&till, r);
        (done, unknown) = (done + told, unknown + untold);
        match till.process() {
            Ok(process) => assert_ne!(process, std::process::id()),
            Err(Failure::Space(Error::Unknown { op: None, .. } | Error::Unavailable(_) | Error::Timeout)) => {
            }
            Err(e) => panic!("{e}"),
        }
        // Three calls of ten seconds at most.
        assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    }
    (done, unknown)
}

/// Steps of one call with streams: how many commits its caller was told of, and how many more there may be.
fn steps(till: &ServiceHandle<'_, dyn Till>, r: Ref<Counter>) -> (u64, u64) {
    const STEPS: u64 = 4;
    let call = match till.count_each(r) {
        Ok(call) => call,
        // Not executed.
        Err(Error::Unavailable(_) | Error::Timeout) => return (0, 0),
        Err(e) => panic!("{e}"),
    };
    let is_sent = (0..STEPS).all(|step| call.send(&step) == Ok(true)) && call.close().is_ok();
    let told = call.items().filter(Result::is_ok).count() as u64;
    match call.finish() {
        Ok(done) => assert!(is_sent && (done, told) == (STEPS, STEPS), "{done} steps, {told} told of"),
        Err(Failure::Space(Error::Unknown { op: None, .. } | Error::Failed(_))) => {}
        // Not begun.
        Err(Failure::Space(Error::Timeout)) => assert_eq!(told, 0),
        Err(e) => panic!("{e}"),
    }
    (told, STEPS - told)
}

#[interface]
trait Tally {
    /// Notes the id of a call; gives how many were noted.
    fn note(&mut self, id: u64) -> u64;
    /// The number of notes.
    #[read]
    fn noted(&self) -> u64;
}

#[derive(Object)]
struct Sheet {
    count: u64,
    ids: List<u64>,
}

impl Tally for Sheet {
    fn note(this: &Obj<Sheet>, id: u64) -> Called<u64> {
        let count = this.count() + 1;
        let e = this.edit()?;
        e.push_ids(id)?;
        e.set_count(count)?;
        Ok(count)
    }

    fn noted(this: &Obj<Sheet>) -> Called<u64> {
        Ok(this.count())
    }
}

const KILLS_OF_METHODS: usize = 12;
/// Calls of each patient caller that are known to be executed, between two kills. On a busy host the others
/// may give up all of theirs.
const NOTES: usize = 8;
/// The time limits of a patient caller, which outlasts several lives of the server, and of the others.
const PATIENT: Duration = Duration::from_secs(10);
const IMPATIENT: Duration = Duration::from_millis(100);

/// The endings of a call.
#[derive(Clone, Copy, PartialEq)]
enum Ending {
    Executed,
    /// By an error that says that it was not.
    NotExecuted,
    /// By an error that does not say it.
    Unknown,
}

/// Over shared memory, a Unix socket and TCP, with two callers of each client: one whose calls last until
/// there is a server again, and one that gives them up and asks what became of them.
#[test]
fn calls_of_a_killed_servers_methods_are_executed_exactly_once() {
    let dir = tempfile::tempdir().unwrap();
    let tcp = unshared_tcp();
    std::fs::write(dir.path().join(TCP), tcp.to_string()).unwrap();
    let mut server = Killed::start(dir.path(), SERVED);
    let clients = [(socket(dir.path()), true), (socket(dir.path()), false), (tcp, false)]
        .map(|(address, shared_memory)| connect_to(&address, shared_memory));
    let callers: Vec<(&Client, Ref<Sheet>, Duration)> = clients
        .iter()
        .flat_map(|client| [PATIENT, IMPATIENT].map(|within| (client, sheet(client), within)))
        .collect();
    let (certain, _server) = std::thread::scope(|s| {
        // Callers stop when there is no receiver, which a failure drops as well.
        let (tell, told) = mpsc::channel();
        let calling: Vec<_> = (0..callers.len())
            .map(|i| {
                let ((client, r, within), tell) = (callers[i], tell.clone());
                s.spawn(move || notes(client, r, within, &|ending| tell.send((i, ending)).is_ok()))
            })
            .collect();
        // Waits until each of these callers has told of so many calls.
        let wait_for = |of: &[usize], calls: usize, counts: fn(Ending) -> bool| {
            let (mut counted, mut unknown) = (vec![0; callers.len()], 0);
            let end = Instant::now() + Duration::from_secs(60);
            while of.iter().any(|i| counted[*i] < calls) {
                let (i, ending) =
                    told.recv_timeout(end.saturating_duration_since(Instant::now())).expect("callers go on");
                // A caller ends only by a panic: it would be waited for in vain, while the others go on.
                assert!(!calling.iter().any(|caller| caller.is_finished()), "a caller has panicked");
                counted[i] += usize::from(counts(ending));
                unknown += usize::from(ending == Ending::Unknown);
            }
            unknown
        };
        let (patient, impatient): (Vec<usize>, Vec<usize>) =
            (0..callers.len()).partition(|i| callers[*i].2 == PATIENT);
        let mut unknown = 0;
        for kill in 0..KILLS_OF_METHODS {
            unknown += wait_for(&patient, NOTES, |ending| ending == Ending::Executed);
            drop(server);
            // Every second time the server is away for longer than impatient callers wait.
            if kill % 2 == 0 {
                unknown += wait_for(&impatient, 1, |ending| ending != Ending::Executed);
            }
            server = Killed::start(dir.path(), SERVED);
        }
        unknown += wait_for(&patient, NOTES, |ending| ending == Ending::Executed);
        assert!(unknown > 0, "no kill met a call under way");
        drop(told);
        (calling.into_iter().map(|c| c.join().unwrap()).collect::<Vec<_>>(), server)
    });
    let reader = connect(dir.path());
    for ((_, r, within), certain) in callers.iter().zip(certain) {
        let read = |tx: &Tx<'_>| {
            let sheet = tx.get(*r)?;
            Ok((sheet.count(), sheet.ids().into_iter().collect::<Result<Vec<u64>, Error>>()?))
        };
        let expected = (certain.len() as u64, certain);
        assert_eq!(reader.run(read).unwrap(), expected, "of calls that last {within:?}");
    }
}

/// Calls until nobody is told of it: the ids of the calls that returned, or were found to be committed.
fn notes(client: &Client, r: Ref<Sheet>, within: Duration, tell: &dyn Fn(Ending) -> bool) -> Vec<u64> {
    let sheet = client.handle(r).remote().within(within);
    let mut certain = Vec::new();
    for id in 1.. {
        let begun = Instant::now();
        let result = sheet.note(id);
        let took = begun.elapsed();
        assert!(took < within + Duration::from_secs(5), "{took:?} of {within:?}");
        let ending = match &result {
            Ok(_) => Ending::Executed,
            Err(Failure::Space(Error::Unknown { op: Some(_), .. })) => Ending::Unknown,
            Err(Failure::Space(Error::Unavailable(_) | Error::Timeout | Error::Conflict(_))) => {
                Ending::NotExecuted
            }
            Err(e) => panic!("{e}"),
        };
        // Told before there need be a server again, which `resolve` waits for.
        let goes_on = tell(ending);
        let is_executed = match result {
            Ok(count) => {
                assert_eq!(count, certain.len() as u64 + 1, "call {id} behind {certain:?}");
                true
            }
            Err(Failure::Space(Error::Unknown { op: Some(op), .. })) => {
                client.resolve(*op).unwrap().is_some()
            }
            Err(_) => false,
        };
        certain.extend(is_executed.then_some(id));
        if !goes_on {
            break;
        }
        match sheet.noted() {
            Ok(count) => assert_eq!(count, certain.len() as u64, "behind call {id}"),
            Err(Failure::Space(Error::Unavailable(_) | Error::Timeout | Error::Conflict(_))) => {}
            Err(e) => panic!("{e}"),
        }
    }
    certain
}

fn sheet(client: &Client) -> Ref<Sheet> {
    client.run(|tx| tx.create(&Sheet { count: 0, ids: List::new() })).unwrap()
}

/// Commits until it is over: how many were acknowledged, and which were never answered.
fn stream(client: &Client, r: Ref<Counter>, acknowledged: &AtomicU64, over: &AtomicBool) -> (u64, Vec<OpId>) {
    let (mut done, mut unknown) = (0, Vec::new());
    while !over.load(Ordering::SeqCst) {
        let result = client.run(|tx| {
            let n = tx.get(r)?;
            let size = (n.count() * 37 % 3_000) as usize;
            let e = n.edit()?;
            e.set_text("x".repeat(size))?;
            e.set_count(n.count() + 1)
        });
        match result {
            Ok(()) => {
                done += 1;
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            Err(Error::Unknown { op: Some(op), .. }) => unknown.push(*op),
            Err(Error::Unavailable(_) | Error::Timeout | Error::Conflict(_)) => {}
            Err(e) => panic!("{e}"),
        }
    }
    (done, unknown)
}

/// Asserts that a new client, which has nothing cached, finds everything that was acknowledged.
fn check(dir: &Path, counters: &[Ref<Counter>], acknowledged: u64) {
    let reader = connect(dir);
    let sum = reader.run(|tx| counters.iter().map(|r| Ok(tx.get(*r)?.count())).sum::<Result<u64, Error>>());
    let sum = sum.unwrap();
    assert!(sum >= acknowledged, "{acknowledged} were acknowledged and {sum} are there");
}

fn socket(dir: &Path) -> Address {
    Address::Unix(dir.join("socket"))
}

fn connect(dir: &Path) -> Client {
    connect_by(dir, true)
}

fn connect_by(dir: &Path, shared_memory: bool) -> Client {
    connect_to(&socket(dir), shared_memory)
}

fn connect_to(address: &Address, shared_memory: bool) -> Client {
    let timeout = Duration::from_secs(10);
    let config = ClientConfig {
        timeout,
        cache_bytes: 1 << 20,
        shared_memory: crate::common::by_memory(shared_memory),
        ..ClientConfig::default()
    };
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match Client::connect_with(address, config.clone()) {
            Ok(client) => return client,
            // It is still starting.
            Err(Error::Unavailable(_)) if Instant::now() < end => std::thread::yield_now(),
            Err(e) => panic!("{e}"),
        }
    }
}

/// The file that names the address of a server's port, if it is to have one.
const TCP: &str = "tcp";

/// An address that only this process uses: no other takes the port between two lives of a server, and no
/// connection to it comes from it.
fn unshared_tcp() -> Address {
    // A process has a number below 2^22.
    let own = Ipv4Addr::from_bits(127 << 24 | 64 << 16 | std::process::id());
    let free = TcpListener::bind((own, 0)).unwrap();
    Address::Tcp(free.local_addr().unwrap().to_string())
}

/// Modified objects are installed all the time, so that kills meet that as well.
fn serve_until_killed(dir: &Path) {
    let tcp = std::fs::read_to_string(dir.join(TCP)).ok();
    let config = ServerConfig {
        listen: [socket(dir)].into_iter().chain(tcp.map(Address::Tcp)).collect(),
        methods: vec![Sheet::METHODS],
        mob_bytes: 128 << 10,
        cache_bytes: 256 << 10,
        services: vec![Till::serve(Here)],
        ..ServerConfig::new(dir.join("space"))
    };
    Server::start(config).unwrap().wait().unwrap();
}
