//! A transaction over two spaces whose client is killed in the middle, with servers that are each other's
//! peers, in processes of their own: it ends in both spaces alike.
//!
//! The client is this very program, with `TERCEL_TEST_PAY` set. It reaches the servers through relays, of
//! which one holds back the first message of a kind: so the client is killed before the decision, or behind
//! it and before it has told anybody.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tercel::tools::wire::deframer::Deframer;
use tercel::tools::wire::frame::{self, Kind};
use tercel::{Client, Isolation, Object, Spaces, Tx};
use tercel_testkit::process::{err, out, until};

use crate::common::{Serving, free, in_one_line, leader, tercel};
use crate::group::three;

const PAY: &str = "TERCEL_TEST_PAY";
const PAYER: &str = "across::client_killed_before_the_decision_has_paid_nothing";

#[derive(Object)]
struct Purse {
    cents: i64,
}

/// Pays once between two spaces, as the process that is killed.
fn pay(at: &str) {
    let (from, to) = at.rsplit_once(',').unwrap();
    let spaces = Spaces::connect([("from", from), ("to", to)]).unwrap();
    let paid = spaces.session().run(|cut| {
        let purse = cut.space("from")?.get_root::<Purse>("purse")?;
        purse.edit()?.set_cents(purse.cents() - 10)?;
        let purse = cut.space("to")?.get_root::<Purse>("purse")?;
        purse.edit()?.set_cents(purse.cents() + 10)
    });
    panic!("it was to be killed, and has {paid:?}");
}

/// Two spaces with a purse each. The servers are each other's peers, and reach each other once that is
/// allowed.
struct Bank {
    dir: tempfile::TempDir,
    at: [String; 2],
    /// Where each is reached by the other one.
    gates: [String; 2],
    servers: [Option<Serving>; 2],
}

const NAMES: [&str; 2] = ["from", "to"];

impl Bank {
    fn open() -> Bank {
        let at = [free(), free()];
        let gates = [free(), free()];
        let mut bank = Bank { dir: tempfile::tempdir().unwrap(), at, gates, servers: [None, None] };
        for i in [0, 1] {
            bank.start(i);
            bank.make_purse(i);
        }
        bank
    }

    fn make_purse(&self, i: usize) {
        let client = Client::connect(&self.at[i]).unwrap();
        client.run(|tx| tx.set_root("purse", tx.create(&Purse { cents: 100 })?)).unwrap();
    }

    fn start(&mut self, i: usize) {
        let data = self.path(NAMES[i]).display().to_string();
        let audit = self.audit(i).display().to_string();
        let more = ["--listen", &self.at[i], "--peer", &self.gates[1 - i], "--audit", &audit];
        self.servers[i] = Some(Serving::start_with(&data, &more));
    }

    /// From now on a server is reached by the other one.
    fn open_gate(&self, i: usize) {
        let ways = self.gates[i].split(',').zip(self.at[i].split(','));
        ways.for_each(|(gate, at)| relay(gate, at, None));
    }

    fn kill(&mut self, i: usize) {
        self.servers[i] = None;
    }

    fn audit(&self, i: usize) -> PathBuf {
        self.path(NAMES[i]).with_extension("audit")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn cents(&self, i: usize) -> i64 {
        let client = Client::connect(&self.at[i]).unwrap();
        client.run(|tx| Ok(tx.get_root::<Purse>("purse")?.cents())).unwrap()
    }

    /// The transactions of several spaces, as the server that received the money knows them.
    fn across(&self) -> Option<Value> {
        let asked = tercel(&["stat", "--json", "--server", &self.at[1]]);
        let status: Value = serde_json::from_slice(&asked.stdout).ok()?;
        Some(status["across"].clone())
    }

    /// Waits until it has asked the other server in vain.
    fn until_unreached(&self) -> Value {
        until(|| {
            self.across().filter(|across| across["unreached"].as_str().is_some_and(|why| !why.is_empty()))
        })
    }

    /// Waits until it has so many prepared.
    fn until_prepared(&self, n: u64) {
        until(|| self.across().filter(|across| across["prepared"].as_u64() == Some(n)));
    }

    /// A client that pays, and has come to where the relay in front of a server holds back what it says.
    fn pay_until(&self, i: usize, kind: Kind) -> Payer {
        let (tell, held) = channel();
        let mut at = self.at.clone();
        at[i] = free();
        relay(&at[i], &self.at[i], Some((kind, tell)));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", PAYER, "--nocapture"]).env(PAY, at.join(","));
        let payer = Payer(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        wait(&held);
        payer
    }
}

fn wait(held: &Receiver<()>) {
    held.recv_timeout(std::time::Duration::from_secs(60)).expect("the message comes");
}

/// The client's process, which is killed when this is dropped.
struct Payer(Child);

impl Drop for Payer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A kind of message, of which the first is not passed on, and what is told of that.
type Held = Option<(Kind, Sender<()>)>;

/// Passes connections on to a server. What a client says behind a message that is held is lost.
fn relay(at: &str, server: &str, held: Held) {
    let (listener, server) = (TcpListener::bind(at).unwrap(), server.to_string());
    thread::spawn(move || {
        for here in listener.incoming() {
            let mut here = here.unwrap();
            let Ok(there) = TcpStream::connect(&server) else { continue };
            let (mut back, mut answers, held) =
                (here.try_clone().unwrap(), there.try_clone().unwrap(), held.clone());
            thread::spawn(move || {
                let _ = std::io::copy(&mut answers, &mut back);
                let _ = back.shutdown(Shutdown::Both);
            });
            thread::spawn(move || {
                pass_on(&mut here, &there, held);
                let _ = there.shutdown(Shutdown::Both);
            });
        }
    });
}

/// Passes frames on until one is held, and then none, until the client is gone.
fn pass_on(from: &mut TcpStream, mut to: &TcpStream, held: Held) {
    let (mut deframer, mut buffer, mut is_held) = (Deframer::default(), vec![0; 64 << 10], false);
    while let Some(n) = from.read(&mut buffer).ok().filter(|n| *n > 0) {
        deframer.push(&buffer[..n]);
        while let Some((header, body)) = deframer.next_frame().unwrap().filter(|_| !is_held) {
            if let Some((_, tell)) = held.as_ref().filter(|(kind, _)| *kind == header.kind) {
                is_held = true;
                tell.send(()).unwrap();
                break;
            }
            let mut bytes = Vec::new();
            frame::encode(header, body, &mut bytes);
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
    }
}

#[test]
fn client_killed_before_the_decision_has_paid_nothing() {
    if let Ok(at) = std::env::var(PAY) {
        return pay(&at);
    }
    let bank = Bank::open();
    drop(bank.pay_until(0, Kind::Decide));
    bank.until_prepared(1);
    // The participant asks.
    bank.open_gate(0);
    bank.until_prepared(0);
    assert_eq!((bank.cents(0), bank.cents(1)), (100, 100));
}

/// Readers wait for the end of the transaction, and for no timer.
#[test]
fn strict_readers_go_on_once_client_is_killed() {
    for (at, kind) in [(0, Kind::Decide), (1, Kind::Settle)] {
        let bank = Bank::open();
        (0..2).for_each(|i| bank.open_gate(i));
        let readers = [0, 1].map(|i| Client::connect(&bank.at[i]).unwrap());
        let read = |reader: &Client| {
            let cents = |tx: &Tx<'_>| Ok(tx.get_root::<Purse>("purse")?.cents());
            reader.transaction().isolation(Isolation::Strict).run(cents).unwrap();
            Instant::now()
        };
        let wait = || {
            let payer = bank.pay_until(at, kind);
            thread::scope(|scope| {
                let reading = readers.each_ref().map(|reader| scope.spawn(|| read(reader)));
                let killed = Instant::now();
                drop(payer);
                let ends = reading.map(|reading| reading.join().unwrap());
                ends.into_iter().map(|end| end.saturating_duration_since(killed)).max().unwrap()
            })
        };
        // The machine may be busy once, and not each time.
        let least = (0..3).map(|_| wait()).min().unwrap();
        assert!(least < Duration::from_millis(300), "{kind:?}: {least:?}");
    }
}

#[test]
fn client_killed_behind_the_decision_has_paid() {
    let bank = Bank::open();
    drop(bank.pay_until(1, Kind::Settle));
    bank.until_prepared(1);
    // The coordinator tells.
    bank.open_gate(1);
    bank.until_prepared(0);
    assert_eq!((bank.cents(0), bank.cents(1)), (90, 110));
}

/// Both servers are killed beside the client, and know when they are back what they had prepared and decided.
#[test]
fn killed_servers_end_what_they_had_begun() {
    for (at, kind, cents) in [(0, Kind::Decide, (100, 100)), (1, Kind::Settle, (90, 110))] {
        let mut bank = Bank::open();
        drop(bank.pay_until(at, kind));
        bank.kill(0);
        bank.until_unreached();
        bank.kill(1);
        bank.start(1);
        bank.until_prepared(1);
        bank.start(0);
        (0..2).for_each(|i| bank.open_gate(i));
        bank.until_prepared(0);
        assert_eq!((bank.cents(0), bank.cents(1)), cents);
    }
}

/// A group decides, and its leader is killed: the next one knows what was decided.
#[test]
fn next_leader_is_asked_what_was_decided() {
    let dir = tempfile::tempdir().unwrap();
    let (ats, mut members) = three(dir.path());
    let gates = [[free(), free(), free()].join(","), free()];
    let mut bank = Bank { dir, at: [ats.join(","), free()], gates, servers: [None, None] };
    bank.start(1);
    (0..2).for_each(|i| bank.make_purse(i));
    drop(bank.pay_until(1, Kind::Settle));
    let leads = leader(&bank.at[0]);
    drop(members.remove(ats.iter().position(|at| *at == leads).unwrap()));
    bank.until_prepared(1);
    bank.open_gate(0);
    bank.until_prepared(0);
    assert_eq!((bank.cents(0), bank.cents(1)), (90, 110));
}

#[test]
fn part_of_lost_space_is_settled_by_hand() {
    for (at, kind, end, cents) in [(0, Kind::Decide, "--abort", 100), (1, Kind::Settle, "--commit", 110)] {
        let mut bank = Bank::open();
        drop(bank.pay_until(at, kind));
        bank.kill(0);
        let across = bank.until_unreached();
        let unreached = across["unreached"].as_str().unwrap();
        assert!(unreached.contains(&bank.gates[0]) && unreached.contains("--peer"), "{unreached}");
        let client = Client::connect(&bank.at[1]).unwrap();
        let cents_here = |tx: &Tx<'_>| Ok(tx.get_root::<Purse>("purse")?.cents());
        assert_eq!(client.transaction().stale().run(cents_here), Ok(100), "readers see the state before");
        let refused = client.run(cents_here).unwrap_err().to_string();
        assert!(refused.contains("is not settled"), "{refused}");
        let said = in_one_line(&out(&tercel(&["stat", "--server", &bank.at[1]])));
        assert!(said.contains("prepared") && said.contains("is not reached"), "{said}");

        let prepared = across["parts"][0]["prepared"].to_string();
        let settle = |more: &[&str]| {
            tercel(&[&["settle", "--prepared", &prepared, end, "--server", &bank.at[1]], more].concat())
        };
        let asked = in_one_line(&err(&settle(&[])));
        assert!(asked.contains("nothing was changed") && asked.contains("--yes"), "{asked}");
        bank.until_prepared(1);
        let said = in_one_line(&out(&settle(&["--yes"])));
        assert!(said.contains("see that its other spaces end it in the same way"), "{said}");
        bank.until_prepared(0);
        assert_eq!(bank.cents(1), cents);
        let again = in_one_line(&err(&settle(&["--yes"])));
        assert!(again.contains("waits for its end"), "{again}");
        let told = format!("\"prepared\":{prepared},\"committed\":{}", end == "--commit");
        until(|| {
            let audit = std::fs::read_to_string(bank.audit(1)).ok()?;
            let mut of_ends = audit.lines().filter(|line| line.contains("\"what\":\"settle\""));
            of_ends.find(|line| line.contains(&told)).map(drop)
        });
    }
}
