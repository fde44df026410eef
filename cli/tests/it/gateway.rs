//! `tercel gateway`, as a process before a server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::common::{Serving, err, free, imported, in_one_line, out, tercel};

fn get(at: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn gateway_answers_until_it_is_told_to_stop() {
    let (_dir, space) = imported();
    let server = Serving::start(&space);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tercel"));
    command.args(["gateway", &server.1, "--listen", "127.0.0.1:0"]);
    let mut gateway = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(gateway.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let at = line.strip_prefix("listening on http://").unwrap();
    let shown = get(at, "/v1/objects/debian");
    assert!(shown.starts_with("HTTP/1.1 200") && shown.contains("\"class\":\"Catalog\""), "{shown}");
    // `inspect` prints the same object in the same form.
    let inspected: serde_json::Value =
        serde_json::from_str(&out(&tercel(&["inspect", "debian", "--server", &server.1]))).unwrap();
    let body: serde_json::Value = serde_json::from_str(shown.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body["fields"], inspected["fields"]);
    assert!(get(at, "/metrics").contains("\ntercel_commits_total "));
    out(&Command::new("kill").arg(gateway.id().to_string()).output().unwrap());
    assert_eq!(lines.next().unwrap().unwrap(), "stopped");
    assert!(gateway.wait().unwrap().success());
    assert!(TcpStream::connect(at).is_err());
}

#[test]
fn gateway_answers_https_to_callers_with_certificates() {
    if Command::new("curl").arg("--version").output().is_err() {
        println!("left out: there is no curl here");
        return;
    }
    let (dir, space) = imported();
    let server = Serving::start(&space);
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let [ca, web, ann] = ["ca", "web", "ann"].map(place);
    out(&tercel(&["cert", "init", &ca]));
    let made = out(&tercel(&["cert", "host", "localhost", "127.0.0.1", "::1", "--ca", &ca, "--out", &web]));
    assert!(made.contains("--https"), "{made}");
    out(&tercel(&["cert", "client", "ann", "--ca", &ca, "--out", &ann]));
    let authority = format!("{ca}/ca.crt");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tercel"));
    command.args(["gateway", &server.1, "--listen", "127.0.0.1:0"]);
    command.args(["--https", &web, "--https-callers", &authority]);
    let mut gateway = command.stdout(Stdio::piped()).spawn().unwrap();
    let line = BufReader::new(gateway.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let at = line.strip_prefix("listening on ").unwrap();
    assert!(at.starts_with("https://"), "{line}");
    let url = format!("{at}/v1/objects/debian");
    let asked = |more: &[&str]| {
        let curl = ["-sS", "--noproxy", "*", "--cacert", &authority, &url];
        Command::new("curl").args(curl).args(more).output().unwrap()
    };
    let (certificate, key) = (format!("{ann}/tls.crt"), format!("{ann}/tls.key"));
    let shown = out(&asked(&["--cert", &certificate, "--key", &key]));
    assert!(shown.contains("\"class\":\"Catalog\""), "{shown}");
    assert!(!asked(&[]).status.success(), "without a certificate");
    gateway.kill().unwrap();
    gateway.wait().unwrap();
    // The host's certificate names no member and no client.
    let said = err(&tercel(&["stat", "--server", &server.1, "--tls", &web]));
    println!("{said}");
    assert!(said.contains("names nobody"), "{said}");
    assert!(err(&tercel(&["cert", "host", "a:1", "--ca", &ca, "--out", &place("b")])).contains("port"));
}

#[test]
fn gateway_waits_for_its_server() {
    let (_dir, space) = imported();
    let at = free();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tercel"));
    command.args(["gateway", &at, "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut gateway = command.spawn().unwrap();
    let waits = BufReader::new(gateway.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(waits.contains("no server answers") && waits.contains("trying again"), "{waits}");
    let _server = Serving::start_with(&space, &["--listen", &at]);
    let mut lines = BufReader::new(gateway.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let shown = get(line.strip_prefix("listening on http://").unwrap(), "/v1/objects/debian");
    assert!(shown.starts_with("HTTP/1.1 200"), "{shown}");
    gateway.kill().unwrap();
    gateway.wait().unwrap();
}

#[test]
fn gateway_that_cannot_begin_says_why() {
    let (_dir, space) = imported();
    let server = Serving::start(&space);
    let refused = |args: &[&str]| in_one_line(&err(&tercel(&[&["gateway"], args].concat())));
    let said = refused(&[&server.1, "--listen", "0.0.0.0:0"]);
    assert!(said.contains("nothing is encrypted") && said.contains("--public"), "{said}");
    let said = refused(&[&server.1, "--listen", &server.1]);
    assert!(said.contains("name HOST:PORT that is free"), "{said}");
    let said = refused(&["127.0.0.1:1", "--wait", "0"]);
    assert!(said.contains("tercel serve --data DIR"), "{said}");
    assert!(refused(&["nowhere"]).contains("SERVER: "));
}
