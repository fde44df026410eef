//! A server with methods and a service, a gateway before it, and a client that speaks HTTP by hand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tercel::collections::Map;
use tercel::{Called, Client, Context, List, Obj, Object, Record, Ref, Server, Text, interface, service};
use tercel_gateway::{Config, Gateway};

#[interface]
pub trait Account {
    #[read]
    fn balance(&self) -> i64;
    fn pay(&mut self, cents: i64) -> Result<i64, Overdrawn>;
}

#[derive(Object)]
pub struct Purse {
    pub cents: i64,
    pub owner: Text,
    pub friends: List<Ref<Purse>>,
    pub by_name: Map<Text, Purse>,
    pub limit: Limit,
}

/// A type that no method names.
#[derive(Record, Debug)]
pub struct Limit {
    pub cents: i64,
}

#[derive(Record, Debug)]
pub struct Overdrawn {
    pub short: i64,
}

impl Account for Purse {
    fn balance(this: &Obj<Purse>) -> Called<i64> {
        Ok(this.cents())
    }

    fn pay(this: &Obj<Purse>, cents: i64) -> Called<i64, Overdrawn> {
        let left = this.cents() - cents;
        if left < 0 {
            return Err(Overdrawn { short: -left }.into());
        }
        this.edit()?.set_cents(left)?;
        Ok(left)
    }
}

#[service]
pub trait Clock {
    fn add(&self, a: u64, b: u64) -> u64;
    fn tick(&self) -> u64;
    /// A text of that length.
    fn long(&self, bytes: u64) -> Text;
    /// The same again.
    fn echo(&self, text: &str) -> Text;
    /// Waits for the lock that a test may hold.
    #[slow]
    fn wait(&self) -> bool;
    /// Takes cents out of the purse, and gives what is left.
    #[once]
    fn take(&self, cents: i64) -> i64;
}

/// A clock that counts.
#[derive(Default)]
pub struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn add(&self, _: &Context<'_>, a: u64, b: u64) -> Called<u64> {
        Ok(a + b)
    }

    fn tick(&self, _: &Context<'_>) -> Called<u64> {
        Ok(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn long(&self, _: &Context<'_>, bytes: u64) -> Called<Text> {
        Ok("a".repeat(bytes as usize).into())
    }

    fn echo(&self, _: &Context<'_>, text: &str) -> Called<Text> {
        Ok(text.into())
    }

    fn wait(&self, _: &Context<'_>) -> Called<bool> {
        Ok(HELD.lock().is_ok())
    }

    fn take(&self, cx: &Context<'_>, cents: i64) -> Called<i64> {
        let left = cx.run(|tx| {
            tercel::once(tx, cx.key()?, || {
                let purse = tx.get_root::<Purse>("purse")?;
                let left = purse.cents() - cents;
                purse.edit()?.set_cents(left)?;
                Ok(left)
            })
        });
        Ok(left?)
    }
}

pub static HELD: Mutex<()> = Mutex::new(());

/// A purse under the root `purse`, its server, and a gateway.
pub struct World {
    pub gateway: Gateway,
    pub client: Client,
    pub purse: Ref<Purse>,
    pub server: Server,
    pub dir: TempDir,
}

impl World {
    pub fn new() -> World {
        World::with(|config| config)
    }

    pub fn with(change: impl FnOnce(Config) -> Config) -> World {
        World::at_address("127.0.0.1:0", change)
    }

    /// The gateway comes by a Unix socket: the server knows its user.
    pub fn at_socket(change: impl FnOnce(Config) -> Config) -> World {
        World::at_address("unix:@socket", change)
    }

    fn at_address(listen: &str, change: impl FnOnce(Config) -> Config) -> World {
        let dir = tempfile::tempdir().unwrap();
        // Each world has a socket of its own.
        let listen = listen.replace('@', &format!("{}/", dir.path().display()));
        let server =
            Server::builder(dir.path().join("space")).listen(listen.as_str()).methods(Purse::METHODS);
        let server = server.service(Clock::serve(Ticks::default())).start().unwrap();
        let at = server.addresses()[0].clone();
        let client = Client::connect(&at).unwrap();
        let purse = purse(&client, 1_000);
        let gateway = Gateway::start(change(Config::new(at.into(), "127.0.0.1:0"))).unwrap();
        World { gateway, client, purse, server, dir }
    }

    pub fn at(&self) -> SocketAddr {
        self.gateway.address()
    }

    pub fn get(&self, path: &str) -> Got {
        request(self.at(), "GET", path, &[], "")
    }

    pub fn post(&self, path: &str, body: &str) -> Got {
        request(self.at(), "POST", path, &[], body)
    }
}

/// A purse under the root `purse`.
pub fn purse(client: &Client, cents: i64) -> Ref<Purse> {
    let made = client.run(|tx| {
        let by_name = Map::create(tx)?;
        let purse = tx.create(&Purse {
            cents,
            owner: "Ann".into(),
            friends: List::new(),
            by_name,
            limit: Limit { cents: 0 },
        })?;
        tx.set_root("purse", purse)?;
        Ok(purse)
    });
    made.unwrap()
}

/// An answer.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Got {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value)
    }
}

/// Sends a request on a connection of its own.
pub fn request(at: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Got {
    try_request(at, method, path, headers, body).expect("an answer")
}

/// As [`request`]; none if the gateway is gone.
pub fn try_request(
    at: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<Got> {
    let mut stream = BufReader::new(send(at, method, path, headers, body).ok()?);
    let (status, headers) = head(&mut stream)?;
    let mut body = Vec::new();
    stream.read_to_end(&mut body).ok()?;
    Some(Got { status, headers, body: String::from_utf8(body).unwrap() })
}

/// Sends a request, and leaves the answer to be read.
pub fn send(
    at: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}");
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
    Ok(stream)
}

/// The status and the headers of an answer.
pub fn head(stream: &mut impl BufRead) -> Option<(u16, BTreeMap<String, String>)> {
    let mut line = || {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|n| *n > 0).map(|_| line.trim_end().to_string())
    };
    let status = line()?.split(' ').nth(1)?.parse().ok()?;
    let mut headers = BTreeMap::new();
    loop {
        let line = line()?;
        let Some((name, value)) = line.split_once(": ") else { return Some((status, headers)) };
        headers.insert(name.to_ascii_lowercase(), value.to_string());
    }
}
