//! The mistakes of a program that must not make it wait for ever, or panic: time without an end, a server
//! that takes no connection, and procedures that wait for their own server.

use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tercel::rpc::{Output, Pending};
use tercel::{
    Called, Client, ClientConfig, Collecting, Context, Error, Failure, Freshness, Isolation, Ref, Server,
    ServerConfig, Text, Tx, embedded_with, service,
};

use crate::common::Counter;

#[service]
trait Nested {
    /// Reads in a transaction of the server, by a plain procedure.
    fn count(&self) -> u64;
    /// The same by a client of the same server.
    fn ask(&self) -> u64;
    #[slow]
    fn count_slowly(&self) -> u64;
    /// Calls a slow procedure of the same server.
    #[slow]
    fn call_slowly(&self) -> u64;
    /// Has six of them under way.
    #[slow]
    fn call_six_slowly(&self) -> u64;
    /// Begins a stream.
    #[slow]
    fn words(&self, out: &Output<Text>) -> u64;
}

struct Own {
    server: Arc<Server>,
    client: Client,
    counter: Ref<Counter>,
}

#[derive(Clone, Default)]
struct MyNested(Arc<OnceLock<Own>>);

impl MyNested {
    fn own(&self) -> &Own {
        self.0.get().unwrap()
    }
}

impl Nested for MyNested {
    fn count(&self, _: &Context<'_>) -> Called<u64> {
        let Own { server, counter, .. } = self.own();
        Ok(server.run(|tx| Ok(tx.get(*counter)?.count()))?)
    }

    fn ask(&self, _: &Context<'_>) -> Called<u64> {
        self.own().client.service::<dyn Nested>().count_slowly()
    }

    fn count_slowly(&self, cx: &Context<'_>) -> Called<u64> {
        self.count(cx)
    }

    fn call_slowly(&self, _: &Context<'_>) -> Called<u64> {
        self.own().client.service::<dyn Nested>().count_slowly()
    }

    fn call_six_slowly(&self, _: &Context<'_>) -> Called<u64> {
        let calls = self.own().client.service::<dyn Nested>().pipelined();
        let begun = (0..6).map(|_| calls.count_slowly()).collect::<Result<Vec<_>, _>>()?;
        begun.into_iter().map(Pending::wait).sum()
    }

    fn words(&self, _: &Context<'_>, out: &Output<Text>) -> Called<u64> {
        out.send(&"word".into())?;
        Ok(1)
    }
}

/// A server with these procedures, which have a client of it.
fn nested(dir: &tempfile::TempDir, workers: usize, listen: &str) -> Arc<Server> {
    let nested = MyNested::default();
    let builder = Server::builder(dir.path().join("space")).listen(listen).workers(workers);
    let server = Arc::new(builder.service(Nested::serve(nested.clone())).start().unwrap());
    let counter = server.run(|tx| tx.create(&Counter { count: 5, ..Counter::default() })).unwrap();
    let client = Client::connect(&server.addresses()[0]).unwrap();
    nested.0.set(Own { server: server.clone(), client, counter }).ok().unwrap();
    server
}

/// Far less than what a call waits for its server.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn procedure_in_the_loop_is_told_not_to_wait_for_its_server() {
    let dir = tempfile::tempdir().unwrap();
    for listen in ["127.0.0.1:0".to_string(), format!("unix:{}", dir.path().join("socket").display())] {
        let server = nested(&dir, 4, &listen);
        let client = Client::connect(&server.addresses()[0]).unwrap();
        let service = client.service::<dyn Nested>();
        let begun = Instant::now();
        for refused in [service.count(), service.ask()] {
            let Err(Failure::Space(Error::Failed(why))) = &refused else { panic!("{refused:?}") };
            assert!(why.contains("declare the procedure `#[slow]`"), "{why}");
        }
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        assert_eq!(service.count_slowly(), Ok(5));
        std::fs::remove_dir_all(dir.path().join("space")).unwrap();
    }
}

#[test]
fn slow_procedures_that_call_slow_ones_leave_a_thread() {
    let dir = tempfile::tempdir().unwrap();
    let server = nested(&dir, 2, "127.0.0.1:0");
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let begun = Instant::now();
    let ended: Vec<Called<u64>> = thread::scope(|scope| {
        let calls = [(); 8].map(|()| scope.spawn(|| client.service::<dyn Nested>().call_slowly()));
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    for ended in ended {
        match ended {
            Ok(count) => assert_eq!(count, 5),
            Err(e) => assert!(e.to_string().contains("raise `workers`"), "{e}"),
        }
    }
    // A thread waits once, for as many as it has begun.
    assert_eq!(client.service::<dyn Nested>().call_six_slowly(), Ok(30));
    let dir = tempfile::tempdir().unwrap();
    let server = nested(&dir, 1, "127.0.0.1:0");
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let service = client.service::<dyn Nested>();
    for refused in [service.call_slowly(), service.call_six_slowly()] {
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains("raise `workers`"), "{refused}");
    }
}

#[test]
fn time_without_an_end_is_for_ever() {
    let times = [Duration::MAX, Duration::from_secs(u64::MAX / 2), Duration::from_millis(u64::MAX)];
    for time in times {
        let dir = tempfile::tempdir().unwrap();
        let server = nested(&dir, 2, "127.0.0.1:0");
        let config = || ClientConfig { timeout: time, ..ClientConfig::default() };
        let client = Client::connect_with(&server.addresses()[0], config()).unwrap();
        let counter = client.run(|tx| tx.create(&Counter::default())).unwrap();
        client.run(|tx| tx.set_root("counter", counter)).unwrap();
        let service = client.service::<dyn Nested>().within(time);
        assert_eq!(service.count_slowly(), Ok(5));
        let words = service.words().unwrap();
        assert_eq!(words.items().count(), 1);
        assert_eq!(words.finish(), Ok(1));
        client.server_status().unwrap();
        client.health(time).unwrap();
        let mut watch = client.watch().root("counter").start().unwrap();
        client.run(|tx| tx.edit(counter)?.set_count(7)).unwrap();
        client.run(|tx| tx.set_root("counter", counter)).unwrap();
        watch.next_within(Duration::ZERO).unwrap();
        let strict = client.transaction().isolation(Isolation::Strict).timeout(time);
        strict.run(|tx| tx.roots()).unwrap();
        let stale = client.transaction().freshness(Freshness::Bounded(time));
        stale.run(|tx| tx.roots()).unwrap();
        let tx = client.transaction().timeout(time).begin().unwrap();
        tx.create(&Counter::default()).unwrap();
        tx.commit().unwrap();
        client.close().unwrap();
        let spins = ClientConfig { spin: Some(time), ..config() };
        Client::connect_with(&server.addresses()[0], spins).unwrap().health(time).unwrap();
        // In the same process, and with a server whose settings are as far.
        let server = ServerConfig {
            keepalive: time,
            collect: Collecting { grace: time, ..Collecting::default() },
            spin: None,
            ..ServerConfig::new(dir.path().join("embedded"))
        };
        let client = embedded_with(server, config()).unwrap();
        client.run(|tx| tx.create(&Counter::default())).unwrap();
        client.close().unwrap();
    }
}

/// A socket whose backlog is full: whatever connects waits.
fn full(path: &std::path::Path) -> (UnixListener, Vec<std::os::fd::OwnedFd>) {
    let listener = UnixListener::bind(path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let mut waiting = Vec::new();
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        match connect(&socket, &SocketAddrUnix::new(path).unwrap()) {
            Ok(()) => waiting.push(socket),
            Err(rustix::io::Errno::AGAIN) => return (listener, waiting),
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn server_that_takes_no_connection_is_waited_for_only_so_long() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let _full = full(&socket);
    let begun = Instant::now();
    let refused = Client::connect(format!("unix:{}", socket.display())).map(drop).unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused:?}");
    assert!(refused.to_string().contains("stopped taking connections"), "{refused}");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    // It is another server's.
    let begun = Instant::now();
    let start =
        Server::builder(dir.path().join("space")).listen(format!("unix:{}", socket.display())).start();
    assert!(start.is_err() && begun.elapsed() < SOON);
}

/// A drop, as at the end of a task, says goodbye to nobody.
#[test]
fn client_that_connects_is_dropped_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let at = format!("unix:{}", socket.display());
    let server = Server::builder(dir.path().join("space")).listen(at.as_str()).start().unwrap();
    let client = Client::connect(at.as_str()).unwrap();
    server.stop().unwrap();
    let _ = std::fs::remove_file(&socket);
    let _full = full(&socket);
    let gone = || client.transaction().timeout(Duration::from_millis(300)).run(|tx| tx.roots().map(drop));
    assert!(matches!(gone(), Err(Error::Unavailable(_) | Error::Timeout)));
    let begun = Instant::now();
    drop(client);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn transactions_whose_closures_panic_leave_nothing_open() {
    let dir = tempfile::tempdir().unwrap();
    let server = nested(&dir, 2, "127.0.0.1:0");
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let counter = client.run(|tx| tx.create(&Counter::default())).unwrap();
    // More than may be open at once.
    for _ in 0..200 {
        let broken = |tx: &Tx<'_>| -> Result<(), Error> {
            tx.edit(counter)?.set_count(9)?;
            panic!("of the caller, on purpose")
        };
        assert!(catch_unwind(AssertUnwindSafe(|| client.run(broken))).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| server.run(broken))).is_err());
    }
    assert_eq!(client.run(|tx| Ok(tx.get(counter)?.count())).unwrap(), 0);
    assert_eq!(server.run(|tx| Ok(tx.get(counter)?.count())).unwrap(), 0);
}
