//! The effect of signals on a server: the first lets calls end, the second stops it at once.
//!
//! `tercel serve` has no call that a test can hold open. So a process of this very program serves one
//! instead, and waits for signals by the same function: with `TERCEL_TEST_SERVE` set, the ignored test is
//! that process.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tercel::rpc::Input;
use tercel::{Called, Client, Context, Error, Failure, HealthState, Server, service};
use tercel_term::stop::Signals;

use crate::common::{free, out, tercel, until};

const SPACE: &str = "TERCEL_TEST_SERVE";
const DRAIN_MS: &str = "TERCEL_TEST_DRAIN_MS";
const WITHIN: Duration = Duration::from_secs(10);
/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(600);

#[service]
trait Desk {
    /// Runs until its caller sends something; gives that.
    #[slow]
    fn hold(&self, until: &Input<u64>) -> u64;
}

struct Holds;

impl Desk for Holds {
    fn hold(&self, _: &Context<'_>, until: &Input<u64>) -> Called<u64> {
        Ok(until.next()?.unwrap_or_default())
    }
}

#[test]
#[ignore = "the child process of other tests"]
fn child_that_serves_until_it_is_told_to_stop() {
    let signals = Signals::take().unwrap();
    let space = std::env::var(SPACE).unwrap();
    let drain = std::env::var(DRAIN_MS).unwrap().parse().unwrap();
    let server = Server::builder(&space).listen(address(Path::new(&space)).as_str());
    let server = server.service(Desk::serve(Holds)).start().unwrap();
    signals.wait_for(server, Duration::from_millis(drain)).unwrap();
}

fn address(space: &Path) -> String {
    format!("unix:{}.socket", space.display())
}

/// A process that serves, and a client of it.
struct Office {
    process: Option<Child>,
    client: Client,
    _dir: tempfile::TempDir,
}

impl Office {
    fn open(drain: Duration) -> Office {
        let dir = tempfile::tempdir().unwrap();
        let space = dir.path().join("space");
        let process = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "serve::child_that_serves_until_it_is_told_to_stop",
                "--ignored",
                "--nocapture",
            ])
            .env(SPACE, &space)
            .env(DRAIN_MS, drain.as_millis().to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let client = until(|| Client::connect(address(&space).as_str()).ok());
        Office { process: Some(process), client, _dir: dir }
    }

    fn signal(&self, signal: &str) {
        send(self.process.as_ref().unwrap(), signal);
    }

    /// Waits until the server is in this state with one call under way.
    fn until_held(&self, state: HealthState) {
        until(|| {
            let health = self.client.health(WITHIN).unwrap();
            ((health.state, health.calls) == (state, 1)).then_some(())
        });
    }

    /// Waits for the end of the process, which must be a clean one; gives what it said.
    fn ended(&mut self) -> String {
        let output = self.process.take().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{}: {said}", output.status);
        said
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn send(process: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &process.id().to_string()]).status().unwrap().success());
}

/// A member and a gateway that wait for a server, which takes their connections and says nothing.
#[test]
fn signal_ends_what_waits_for_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    out(&tercel(&["group", "init", "--data", &at("a"), "--advertise", &free()]));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = silent.local_addr().unwrap().to_string();
    let (member, secret, own) = (at("b"), at("a/secret"), free());
    for waits in [
        vec!["serve", "--data", &member, "--listen", &own, "--join", &server, "--secret", &secret],
        vec!["gateway", &server, "--listen", "127.0.0.1:0"],
    ] {
        let process = Command::new(env!("CARGO_BIN_EXE_tercel")).args(&waits).stderr(Stdio::piped()).spawn();
        let process = process.unwrap();
        let waiting = silent.accept().unwrap();
        send(&process, "-TERM");
        let told = Instant::now();
        let ended = process.wait_with_output().unwrap();
        let (took, said) = (told.elapsed(), String::from_utf8_lossy(&ended.stderr).into_owned());
        assert!(ended.status.success() && took < Duration::from_secs(2), "{waits:?}: {took:?} {said}");
        drop(waiting);
    }
}

#[test]
fn first_signal_lets_a_call_end_and_refuses_new_ones() {
    for signal in ["-TERM", "-INT"] {
        let mut office = Office::open(LONG);
        let client = office.client.clone();
        let desk = client.service::<dyn Desk>();
        let held = desk.hold().unwrap();
        office.until_held(HealthState::Serving);
        office.signal(signal);
        office.until_held(HealthState::Draining);
        let refused = desk.hold().map_err(Failure::from).and_then(|held| held.finish());
        assert!(matches!(refused, Err(Failure::Space(Error::Unavailable(_)))), "{signal}: {refused:?}");
        held.send(&7).unwrap();
        assert_eq!(held.finish(), Ok(7), "{signal}");
        let said = office.ended();
        assert!(!said.contains("broken off"), "{said}");
    }
}

/// Ends a server with a call under way that does not end; gives what the server said.
fn break_off(drain: Duration, signals: usize) -> String {
    let mut office = Office::open(drain);
    let client = office.client.clone();
    let desk = client.service::<dyn Desk>();
    let held = desk.hold().unwrap();
    office.until_held(HealthState::Serving);
    office.signal("-TERM");
    for _ in 1..signals {
        office.until_held(HealthState::Draining);
        office.signal("-TERM");
    }
    let (said, broken) = (office.ended(), held.finish());
    assert!(matches!(broken, Err(Failure::Space(Error::Unknown { op: None, .. }))), "{broken:?}");
    assert!(said.contains("calls that are under way are broken off"), "{said}");
    said
}

#[test]
fn second_signal_stops_at_once() {
    break_off(LONG, 2);
}

#[test]
fn call_that_does_not_end_is_broken_off_after_the_time_to_drain() {
    let said = break_off(Duration::from_secs(1), 1);
    assert!(said.contains("it ends within 1 s"), "{said}");
}

#[test]
fn served_directory_is_closed_cleanly_at_a_signal() {
    for (signal, drain) in [("-TERM", "3600"), ("-INT", "3600"), ("-TERM", "0")] {
        let dir = tempfile::tempdir().unwrap();
        let address = format!("unix:{}", dir.path().join("socket").display());
        let mut process = Command::new(env!("CARGO_BIN_EXE_tercel"))
            .args(["serve", "--listen", &address, "--drain", drain, "--data"])
            .arg(dir.path().join("space"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let client = until(|| Client::connect(address.as_str()).ok());
        client.run(|tx| tx.roots()).unwrap();
        send(&process, signal);
        until(|| process.try_wait().unwrap());
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{signal}: {}", output.status);
        assert!(output.stdout.ends_with(b"stopped\n") && output.stderr.is_empty(), "{output:?}");
    }
}
