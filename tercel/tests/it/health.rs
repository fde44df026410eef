//! The question whether a server serves, and a server that lets its calls come to their end before it stops:
//! the same over every transport.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tercel::{
    Address, Called, Client, ClientConfig, Context, Error, Failure, HealthState, Obj, Object, Server,
    ServerConfig, Transport, embedded_with, interface, service,
};

use crate::common::counter;

#[service]
pub trait Desk {
    /// The next number.
    fn next(&self, of: u64) -> u64;
    /// Runs until the test lets it go.
    #[slow]
    fn hold(&self) -> u64;
}

#[interface]
pub trait Tally {
    #[read]
    fn count(&self) -> u64;
    fn add(&mut self, more: u64) -> u64;
}

#[derive(Object)]
pub struct Sheet {
    count: u64,
}

impl Tally for Sheet {
    fn count(this: &Obj<Sheet>) -> Called<u64> {
        Ok(this.count())
    }

    fn add(this: &Obj<Sheet>, more: u64) -> Called<u64> {
        let after = this.count() + more;
        this.edit()?.set_count(after)?;
        Ok(after)
    }
}

/// Tells that a call of `hold` has begun, and what it waits for.
struct MyDesk {
    begun: Sender<()>,
    let_go: std::sync::Mutex<Receiver<u64>>,
}

impl Desk for Arc<MyDesk> {
    fn next(&self, _: &Context<'_>, of: u64) -> Called<u64> {
        Ok(of + 1)
    }

    fn hold(&self, _: &Context<'_>) -> Called<u64> {
        self.begun.send(()).unwrap();
        Ok(self.let_go.lock().unwrap().recv().unwrap())
    }
}

/// A server, a client of it, and the other ends of its desk.
struct Office {
    client: Client,
    server: Option<Server>,
    begun: Receiver<()>,
    let_go: Sender<u64>,
    _dir: TempDir,
}

const WITHIN: Duration = Duration::from_secs(10);

fn offices() -> [(&'static str, Option<Transport>); 4] {
    [
        ("tcp", Some(Transport::Tcp)),
        ("unix", Some(Transport::Unix)),
        ("shm", Some(Transport::SharedMemory)),
        ("inside", None),
    ]
}

fn open(transport: Option<Transport>) -> Office {
    let dir = tempfile::tempdir().unwrap();
    let ((begin, begun), (let_go, waits)) = (channel(), channel());
    let desk = Arc::new(MyDesk { begun: begin, let_go: waits.into() });
    let listen = match transport {
        None => vec![],
        Some(Transport::Tcp) => vec!["127.0.0.1:0".parse().unwrap()],
        Some(_) => vec![Address::Unix(dir.path().join("socket"))],
    };
    let config = ServerConfig {
        listen,
        methods: vec![Sheet::METHODS],
        services: vec![Desk::serve(desk)],
        ..ServerConfig::new(dir.path().join("space"))
    };
    let mine = ClientConfig {
        shared_memory: crate::common::by_memory(transport == Some(Transport::SharedMemory)),
        timeout: WITHIN,
        ..ClientConfig::default()
    };
    let (client, server) = match transport {
        None => (embedded_with(config, mine).unwrap(), None),
        Some(_) => {
            let server = Server::start(config).unwrap();
            (Client::connect_with(&server.addresses()[0], mine).unwrap(), Some(server))
        }
    };
    if transport.is_some() {
        assert_eq!(client.transport(), transport);
    }
    Office { client, server, begun, let_go, _dir: dir }
}

/// Checks the error of a call that was refused because the server is about to stop.
fn is_refused<R: std::fmt::Debug>(called: Called<R>) {
    match called {
        Err(Failure::Space(Error::Unavailable(why))) => assert!(why.contains("takes no new calls"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn server_says_that_it_serves_and_for_how_long() {
    for (name, transport) in offices() {
        let office = open(transport);
        let first = office.client.health(WITHIN).unwrap();
        assert_eq!(
            (first.state, first.calls, first.reason.as_str()),
            (HealthState::Serving, 0, ""),
            "{name}"
        );
        let second = office.client.health(WITHIN).unwrap();
        assert!(second.uptime > first.uptime, "{name}: {:?} is not later", second.uptime);
        // Threads that ask at once each have an answer to a question of their own.
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut last = Duration::ZERO;
                    for _ in 0..50 {
                        let health = office.client.health(WITHIN).unwrap();
                        assert!(health.uptime > last, "{name}");
                        last = health.uptime;
                    }
                });
            }
        });
    }
}

#[test]
fn draining_server_refuses_new_calls_and_ends_those_under_way() {
    for (name, transport) in offices() {
        let Office { client, server, begun, let_go, _dir } = open(transport);
        let sheet = client.run(|tx| tx.create(&Sheet { count: 1 })).unwrap();
        let other = counter(&client, "n");
        let desk = client.service::<dyn Desk>();
        let sheet = client.handle(sheet).remote();
        assert_eq!((desk.next(6), sheet.add(1)), (Ok(7), Ok(2)), "{name}");
        thread::scope(|scope| {
            let held = scope.spawn(|| client.service::<dyn Desk>().hold());
            begun.recv_timeout(WITHIN).unwrap();
            assert_eq!(client.health(WITHIN).unwrap().calls, 1, "{name}");
            let of = server.as_ref().or(client.server()).unwrap();
            assert!(!of.drain(Duration::ZERO), "{name}: a call is under way");
            let draining = scope.spawn(move || of.drain(WITHIN));

            // The order to drain goes another way than the question.
            let asked = Instant::now();
            let mut health = client.health(WITHIN).unwrap();
            while health.state == HealthState::Serving && asked.elapsed() < WITHIN {
                health = client.health(WITHIN).unwrap();
            }
            assert_eq!((health.state, health.calls), (HealthState::Draining, 1), "{name}");
            assert!(health.reason.contains("about to stop"), "{name}: {}", health.reason);
            is_refused(desk.next(6));
            is_refused(desk.hold());
            is_refused(sheet.add(1));
            is_refused(sheet.count());
            // Twice over the same slot.
            is_refused(desk.next(6));
            client.run(|tx| tx.edit(other)?.set_count(7)).unwrap();
            assert!(!draining.is_finished(), "{name}: a call is under way");

            let_go.send(9).unwrap();
            assert_eq!(held.join().unwrap(), Ok(9), "{name}");
            assert!(draining.join().unwrap(), "{name}");
            assert!(of.drain(Duration::from_secs(1)), "{name}: it stays drained");
            assert_eq!(client.health(WITHIN).unwrap().calls, 0, "{name}");
        });
        assert_eq!(
            begun.try_recv(),
            Err(std::sync::mpsc::TryRecvError::Empty),
            "{name}: `hold` has begun twice"
        );
        assert_eq!(client.run(|tx| Ok(tx.get(sheet.reference())?.count())), Ok(2), "{name}");
        match server {
            Some(server) => server.stop().unwrap(),
            None => client.close().unwrap(),
        }
    }
}

#[test]
fn server_that_is_gone_is_unavailable_within_the_time_given() {
    for (name, transport) in offices() {
        let Office { client, server: Some(server), .. } = open(transport) else { continue };
        server.stop().unwrap();
        let began = Instant::now();
        let told = client.health(Duration::from_millis(100));
        assert!(matches!(told, Err(Error::Unavailable(_))), "{name}: {told:?}");
        assert!(began.elapsed() < WITHIN, "{name}: it waits for the client's own timeout");
    }
}

#[test]
fn drain_ends_at_once_when_the_server_stops() {
    let Office { client, server, begun, let_go, _dir } = open(Some(Transport::Unix));
    let server = server.unwrap();
    let stopper = server.stopper();
    let drainer = stopper.clone();
    thread::scope(|scope| {
        let held = scope.spawn(|| client.service::<dyn Desk>().within(Duration::from_secs(1)).hold());
        begun.recv_timeout(WITHIN).unwrap();
        let draining = scope.spawn(move || drainer.drain(Duration::from_secs(600)));
        while client.health(WITHIN).unwrap().state != HealthState::Draining {
            thread::yield_now();
        }
        stopper.stop();
        assert!(!draining.join().unwrap(), "a call is broken off");
        let_go.send(9).unwrap();
        assert!(matches!(held.join().unwrap(), Err(Failure::Space(Error::Unknown { op: None, .. }))));
    });
    server.wait().unwrap();
    assert!(!stopper.drain(Duration::from_secs(600)), "nothing is left that ends");
}
