//! Gateways over a group, of which the leader and a gateway die amid calls.
//!
//! Members and gateways are this very program: with [`ROLE`] set, the test serves instead of testing.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tercel::{Address, Addresses, Client, Server};
use tercel_gateway::{Config, Gateway};
use tercel_testkit::process::until;

use crate::common::{Account, Got, Purse, purse, request, try_request};

const ROLE: &str = "TERCEL_TEST_GATEWAY_ROLE";
const THREADS: usize = 4;
const KEYS: usize = 50;
const CENTS: i64 = 1_000_000;

/// A process that is killed in the end.
struct Process(Child, String);

impl Process {
    fn start(role: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "group::keys_execute_once_while_leader_and_gateway_die", "--nocapture"]);
        let mut child = command.env(ROLE, role).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let at = lines.map_while(Result::ok).find_map(|l| Some(l.split_once("ready at ")?.1.to_string()));
        Process(child, at.expect("it begins"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Serves as a member, or answers as a gateway, until it is killed.
fn play(role: &str) {
    match role.split(' ').collect::<Vec<_>>()[..] {
        ["member", dir, at] => {
            let server = Server::builder(dir).listen(at).methods(Purse::METHODS).start().unwrap();
            println!("ready at {at}");
            server.wait().unwrap();
        }
        ["gateway", servers] => {
            let config = Config::new(servers.parse().unwrap(), "127.0.0.1:0");
            let gateway = Gateway::start(config).unwrap();
            println!("ready at {}", gateway.address());
            loop {
                std::thread::park();
            }
        }
        _ => panic!("{role}"),
    }
}

fn leads(at: &str) -> bool {
    let status = tercel::group::status_of(at.parse::<Addresses>().unwrap(), Duration::from_secs(2));
    status.ok().and_then(|status| status.group).is_some_and(|group| group.leads)
}

fn pay(at: SocketAddr, key: &str) -> Option<Got> {
    try_request(at, "POST", "/v1/objects/purse/pay", &[("Idempotency-Key", key)], "[1]")
}

/// Pays under a key, at one gateway and at the other, until there is an answer.
fn paid(gateways: [SocketAddr; 2], key: &str) -> String {
    for at in gateways.into_iter().cycle().take(10_000) {
        match pay(at, key) {
            Some(got) if got.status == 200 => return got.body,
            Some(got) => assert!([503, 504].contains(&got.status), "{got:?}"),
            None => {}
        }
    }
    panic!("no answer under {key}");
}

#[test]
fn keys_execute_once_while_leader_and_gateway_die() {
    if let Ok(role) = std::env::var(ROLE) {
        return play(&role);
    }
    let dir = tempfile::tempdir().unwrap();
    let free: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ats: Vec<String> = free.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    let dirs: Vec<_> = (0..3).map(|i| dir.path().join(i.to_string())).collect();
    let members: Vec<(&Path, Address)> =
        dirs.iter().zip(&ats).map(|(dir, at)| (dir.as_path(), at.parse().unwrap())).collect();
    tercel::group::form(&members).unwrap();
    drop(free);
    let members = dirs.iter().zip(&ats).map(|(dir, at)| format!("member {} {at}", dir.display()));
    let mut members: Vec<Process> = members.map(|role| Process::start(&role)).collect();
    let servers: Addresses = ats.join(",").parse().unwrap();
    let client = until(|| Client::connect(servers.clone()).ok());
    purse(&client, CENTS);
    let role = format!("gateway {servers}");
    let (first, second) = (Process::start(&role), Process::start(&role));
    let gateways = [&first, &second].map(|gateway| gateway.1.parse().unwrap());

    let (done, answers) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (done, answers) = (&done, &answers);
            scope.spawn(move || {
                for i in 0..KEYS {
                    let key = format!("{thread}-{i}");
                    let answer = paid(gateways, &key);
                    answers.lock().unwrap().push((key, answer));
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let done = |n| until(|| (done.load(Ordering::SeqCst) >= n).then_some(()));
        done(THREADS * KEYS / 4);
        let leader = until(|| members.iter().position(|member| leads(&member.1)));
        drop(members.remove(leader));
        done(THREADS * KEYS / 2);
        drop(first);
    });

    let answers = answers.into_inner().unwrap();
    assert_eq!(answers.len(), THREADS * KEYS);
    for (key, body) in &answers {
        let again = pay(gateways[1], key).unwrap();
        assert_eq!((again.status, &again.body), (200, body), "{key}");
    }
    let distinct: BTreeSet<_> = answers.iter().map(|(_, body)| body).collect();
    assert_eq!(distinct.len(), answers.len(), "two keys have one execution");
    let left = request(gateways[1], "POST", "/v1/objects/purse/balance", &[], "").json()["gives"].as_i64();
    assert_eq!(CENTS - left.unwrap(), answers.len() as i64, "each key has one effect");
}
