//! The guide's section *Put it on a network*, command by command: over loopback, and between three hosts
//! where this process may make them.

use std::path::Path;
use std::process::{Command, Output};
use std::thread;

use tercel_term::hosts::Hosts;

use crate::common::{Serving, err, free, in_one_line, out, until};

const GUIDE: &str = include_str!("../../../docs/guide.md");

/// The commands of the section, block by block.
fn blocks() -> Vec<Vec<&'static str>> {
    let section = GUIDE.split("### Put it on a network\n").nth(1).unwrap().split("\n### ").next().unwrap();
    let blocks = section.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.map(|block| block.lines().collect()).collect()
}

/// Where the commands of the guide run: in a directory, with the addresses of these hosts in place of the
/// guide's own.
struct Runs<'h> {
    dir: &'h Path,
    hosts: Option<&'h Hosts>,
    places: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    serving: Vec<Serving>,
}

impl<'h> Runs<'h> {
    fn new(dir: &'h Path, hosts: Option<&'h Hosts>) -> Runs<'h> {
        let at = |i: usize, port: u16| match hosts {
            Some(hosts) => {
                let host = hosts.address(i).unwrap().to_string();
                format!("{}:{port}", host.rsplit_once(':').unwrap().0)
            }
            None => free(),
        };
        let named = [(0, 7117), (0, 7118), (1, 7118), (2, 7118)];
        let places = named.map(|(i, port)| (format!("10.0.0.{}:{port}", i + 1), at(i, port)));
        Runs { dir, hosts, places: places.into(), environment: Vec::new(), serving: Vec::new() }
    }

    /// Runs a line of the guide. A server goes on; gives what another command said.
    fn line(&mut self, line: &str) -> Option<Output> {
        let host = (0..3).find(|i| line.contains(&format!("--listen 10.0.0.{}:", i + 1)));
        let line = self.places.iter().fold(line.to_string(), |line, (named, at)| line.replace(named, at));
        let mut words = line.split_whitespace().filter(|word| *word != "&");
        match words.next()? {
            "export" => {
                let named = words.filter_map(|word| word.split_once('='));
                self.environment.extend(named.map(|(name, value)| (name.into(), value.into())));
                None
            }
            "tercel" => {
                let program = env!("CARGO_BIN_EXE_tercel");
                let mut command = match (self.hosts, host) {
                    (Some(hosts), Some(i)) => hosts.of(i).command(program),
                    _ => Command::new(program),
                };
                command
                    .args(words)
                    .current_dir(self.dir)
                    .env_remove("TERCEL_SERVER")
                    .env_remove("TERCEL_TLS");
                command.envs(self.environment.iter().cloned());
                if host.is_none() {
                    return Some(command.output().unwrap());
                }
                self.serving.push(Serving::of(command, usize::from(line.contains("--invite"))));
                None
            }
            other => panic!("{other} is no command of the guide"),
        }
    }

    /// Runs a line until it succeeds, as the guide has a reader do who comes too early.
    fn until_done(&mut self, line: &str) -> String {
        let mut said = String::new();
        until(|| {
            let output = self.line(line)?;
            said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).concat();
            output.status.success().then_some(())
        });
        said
    }
}

fn follow_the_guide(hosts: Option<&Hosts>) {
    let dir = tempfile::tempdir().unwrap();
    let mut runs = Runs::new(dir.path(), hosts);
    let blocks = blocks();
    let [one, group, renewal] = &blocks[..] else { panic!("the section has three blocks") };
    for line in one {
        if let Some(output) = runs.line(line) {
            let said = out(&output);
            assert!(!line.contains("health") || said.starts_with("serving"), "{said}");
            assert!(!line.contains("show") || said.starts_with("member:a of group euros"), "{said}");
        }
    }
    // A plain client, and one without the right authority, are told what to do.
    let plain = runs.line("tercel stat --server 10.0.0.1:7117").unwrap();
    assert!(!plain.status.success() && in_one_line(&err(&plain)).contains("--tls DIR"), "{}", err(&plain));
    for line in ["tercel cert init ./other", "tercel cert client ann --ca ./other --out ./stranger"] {
        out(&runs.line(line).unwrap());
    }
    let strange = runs.line("tercel stat --server 10.0.0.1:7117 --tls ./stranger").unwrap();
    assert!(
        in_one_line(&err(&strange)).contains("no authority in this process's `ca.crt`"),
        "{}",
        err(&strange)
    );
    for line in group {
        match line.contains("group add") || line.contains("status") {
            true => {
                let said = runs.until_done(line);
                assert!(
                    !line.contains("status")
                        || said.matches("votes").count() + said.matches("leads").count() >= 3,
                    "{said}"
                );
            }
            false => _ = runs.line(line).map(|output| out(&output)),
        }
    }
    out(&runs.line("tercel import debian --sample").unwrap());
    let backup = out(&runs.line("tercel backup ./monday").unwrap());
    assert!(backup.contains("pages"), "{backup}");
    for line in renewal {
        out(&runs.line(line).unwrap());
    }
    out(&runs.line("tercel query rdepends libc6").unwrap());
}

#[test]
fn guide_puts_servers_on_a_network() {
    follow_the_guide(None);
}

#[test]
fn guide_puts_servers_on_three_hosts() {
    // The thread stays on the host of the clients.
    thread::spawn(|| match Hosts::new(3) {
        Ok(hosts) => follow_the_guide(Some(&hosts)),
        Err(e) => println!("left out: no hosts can be made: {}", e.what),
    })
    .join()
    .unwrap();
}

#[test]
fn certificates_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let mut runs = Runs::new(dir.path(), None);
    out(&runs.line("tercel cert init ./ca").unwrap());
    out(&runs.line("tercel cert member a --ca ./ca --out ./a --days 3").unwrap());
    for (name, mode) in [("ca", 0o700), ("a", 0o700), ("ca/ca.key", 0o600), ("a/tls.key", 0o600)] {
        let found = std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{name}");
    }
    // Nothing is made twice.
    let before = std::fs::read(dir.path().join("ca/ca.key")).unwrap();
    for line in ["tercel cert init ./ca", "tercel cert client b --ca ./ca --out ./a"] {
        assert!(err(&runs.line(line).unwrap()).contains("there already"), "{line}");
    }
    assert_eq!(std::fs::read(dir.path().join("ca/ca.key")).unwrap(), before);
    let shown = out(&runs.line("tercel cert show ./a --json").unwrap());
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["principal"], &shown["days_left"]), (&"member:a".into(), &3.into()));
    out(&runs.line("tercel cert renew ./a --ca ./ca").unwrap());
    assert!(out(&runs.line("tercel cert show ./a").unwrap()).contains("ends in 365 days"));
    // Others would not know a certificate by an authority that is in no bundle yet.
    out(&runs.line("tercel cert init ./other").unwrap());
    let before = std::fs::read(dir.path().join("a/tls.crt")).unwrap();
    let strange = runs.line("tercel cert renew ./a --ca ./other").unwrap();
    assert!(
        !strange.status.success() && in_one_line(&err(&strange)).contains("not among those in ./a/ca.crt")
    );
    assert_eq!(std::fs::read(dir.path().join("a/tls.crt")).unwrap(), before);
    for line in ["tercel cert member a/b --ca ./ca --out ./c", "tercel stat --tls ./ca"] {
        assert_eq!(runs.line(line).unwrap().status.code(), Some(2), "{line}");
    }
}

#[test]
fn invitation_is_whole_private_and_for_one_member() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mut runs = Runs::new(dir.path(), None);
    out(&runs.line("tercel cert init ./ca --group euros").unwrap());
    out(&runs.line("tercel cert member a --ca ./ca --out ./a").unwrap());
    out(&runs.line("tercel group init --data ./g1 --advertise 10.0.0.1:7118").unwrap());
    let invite = "tercel group invite b --ca ./ca --server 10.0.0.1:7118 --out ./b.invite";
    let wrong = err(&runs.line(&format!("{invite} --secret ./ca/group")).unwrap());
    assert!(in_one_line(&wrong).contains("is no secret of a group"), "{wrong}");
    let nowhere = "tercel group invite b --ca ./ca --secret ./g1/secret --out ./b.invite";
    assert!(err(&runs.line(nowhere).unwrap()).contains("--server ADDR"));
    let here = "tercel group invite b --ca ./ca --secret ./g1/secret --server unix:./s --out ./b.invite";
    assert!(in_one_line(&err(&runs.line(here).unwrap())).contains("no other machine reaches"));
    out(&runs.line(&format!("{invite} --secret ./g1/secret")).unwrap());
    let mode = |mode| std::fs::set_permissions(at("b.invite"), PermissionsExt::from_mode(mode)).unwrap();
    assert_eq!(std::fs::metadata(at("b.invite")).unwrap().permissions().mode() & 0o777, 0o600);
    let again = err(&runs.line(&format!("{invite} --secret ./g1/secret")).unwrap());
    assert!(again.contains("exists"), "{again}");

    let serve = "tercel serve --data ./g2 --listen 127.0.0.1:0 --invite ./b.invite";
    assert!(err(&runs.line(serve).unwrap()).contains("--tls DIR"));
    mode(0o644);
    let open = err(&runs.line(&format!("{serve} --tls ./b")).unwrap());
    assert!(in_one_line(&open).contains("chmod 600"), "{open}");
    mode(0o600);
    let other = in_one_line(&err(&runs.line(&format!("{serve} --tls ./a")).unwrap()));
    assert!(other.contains("member:a") && other.contains("member b of group euros"), "{other}");
    let whole = std::fs::read_to_string(at("b.invite")).unwrap();
    for bytes in [0, 1, whole.len() / 2, whole.len() - 3] {
        std::fs::write(at("b.invite"), &whole[..bytes]).unwrap();
        let cut = err(&runs.line(&format!("{serve} --tls ./b")).unwrap());
        assert!(in_one_line(&cut).contains("no whole invitation"), "{bytes}: {cut}");
        assert!(!at("b").exists());
    }
    std::fs::write(at("b.invite"), &whole).unwrap();
    // A directory without a certificate stays as it is.
    let kept = std::fs::read(at("ca/ca.crt")).unwrap();
    let authority = err(&runs.line(&format!("{serve} --tls ./ca")).unwrap());
    assert!(in_one_line(&authority).contains("has no tls.crt"), "{authority}");
    assert_eq!(std::fs::read(at("ca/ca.crt")).unwrap(), kept);
    // Broken off before the certificate was there: it goes on. Nobody answers there yet.
    std::fs::create_dir(at("b.new")).unwrap();
    std::fs::write(at("b.new/tls.key"), "half").unwrap();
    for _ in 0..2 {
        let unanswered = runs.line(&format!("{serve} --tls ./b")).unwrap();
        assert!(!unanswered.status.success());
        let shown = out(&runs.line("tercel cert show ./b").unwrap());
        assert!(shown.starts_with("member:b of group euros"), "{shown}");
    }
}
