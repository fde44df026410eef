//! Gateways that answer HTTPS.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;
use tercel_gateway::{Config, Gateway, Https, StartError};

use crate::common::{World, head, request};

/// An authority, the certificate of a gateway on this host, and those of callers.
struct Papers {
    dir: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

type Answer = Result<(u16, String), String>;

impl Papers {
    fn new() -> Papers {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let papers = Papers { dir: tempfile::tempdir().unwrap(), authority };
        std::fs::write(papers.dir.path().join("ca.crt"), papers.authority.pem()).unwrap();
        papers.name("localhost");
        papers
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Puts another certificate where the gateway's is.
    fn name(&self, host: &str) {
        let (certificate, key) = self.sign(host, ExtendedKeyUsagePurpose::ServerAuth);
        std::fs::write(self.path().join("tls.key"), key).unwrap();
        std::fs::write(self.path().join("tls.crt"), certificate).unwrap();
    }

    fn sign(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_string()]).unwrap();
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// A gateway with this certificate, for everyone or for callers with one.
    fn world(&self, proves_callers: bool) -> World {
        let callers = self.path().join("ca.crt");
        let https = Https::open(self.path(), proves_callers.then_some(callers.as_path())).unwrap();
        World::with(|config| Config { https: Some(https), ..config })
    }

    /// Asks as a caller that trusts this authority, by the name of a host.
    fn ask(&self, at: SocketAddr, host: &str, caller: Option<(String, String)>) -> Answer {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(ring::default_provider().into());
        let config = config.with_protocol_versions(&[&TLS13]).unwrap().with_root_certificates(roots);
        let config = match caller {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let tls = ClientConnection::new(Arc::new(config), host.to_string().try_into().unwrap()).unwrap();
        let mut stream = StreamOwned::new(tls, connect(at));
        let asked = format!("GET /v1/roots HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let text = |e: std::io::Error| e.to_string();
        stream.write_all(asked.as_bytes()).map_err(text)?;
        let mut stream = BufReader::new(stream);
        let (status, _) = head(&mut stream).ok_or("no answer")?;
        let mut body = String::new();
        stream.read_to_string(&mut body).map_err(text)?;
        Ok((status, body))
    }
}

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

#[test]
fn callers_ask_by_https() {
    let papers = Papers::new();
    let world = papers.world(false);
    let (status, body) = papers.ask(world.at(), "localhost", None).unwrap();
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("purse"), "{body}");
    // The certificate is of another host, or of an authority that the caller does not know.
    papers.ask(world.at(), "elsewhere.example", None).unwrap_err();
    Papers::new().ask(world.at(), "localhost", None).unwrap_err();
    let plain = request(world.at(), "GET", "/v1/roots", &[], "");
    assert_eq!(plain.status, 400);
    assert!(plain.body.contains("https://"), "{plain:?}");
}

#[test]
fn callers_without_good_certificates_are_refused() {
    let papers = Papers::new();
    let world = papers.world(true);
    let good = papers.sign("ann", ExtendedKeyUsagePurpose::ClientAuth);
    assert_eq!(papers.ask(world.at(), "localhost", Some(good)).unwrap().0, 200);
    papers.ask(world.at(), "localhost", None).unwrap_err();
    let other = Papers::new().sign("ann", ExtendedKeyUsagePurpose::ClientAuth);
    papers.ask(world.at(), "localhost", Some(other)).unwrap_err();
    let host = papers.sign("ann", ExtendedKeyUsagePurpose::ServerAuth);
    papers.ask(world.at(), "localhost", Some(host)).unwrap_err();
}

#[test]
fn new_certificates_count_without_a_restart() {
    let papers = Papers::new();
    let world = papers.world(false);
    std::fs::write(papers.path().join("tls.crt"), "no certificate").unwrap();
    let until = |is_so: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < end, "the files were not looked at");
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    let metrics = || openssl_get(world.at(), &papers.path().join("ca.crt"), "/metrics");
    if let Some(said) = metrics() {
        assert!(said.contains("tercel_gateway_certificate_outdated 0"), "{said}");
        until(&|| metrics().unwrap().contains("tercel_gateway_certificate_outdated 1"));
    }
    assert_eq!(papers.ask(world.at(), "localhost", None).unwrap().0, 200, "the one before stays in use");
    papers.name("db.example");
    until(&|| papers.ask(world.at(), "db.example", None).is_ok());
}

#[test]
fn nothing_below_the_newest_version_is_spoken() {
    let papers = Papers::new();
    let world = papers.world(false);
    let authority = papers.path().join("ca.crt");
    let Some(said) = openssl(world.at(), &["-CAfile", authority.to_str().unwrap()], "") else { return };
    assert!(said.contains("TLSv1.3"), "{said}");
    for old in ["-tls1_2", "-tls1_1", "-tls1"] {
        let said = openssl(world.at(), &[old], "").unwrap();
        assert!(!said.contains("Cipher is TLS_") && !said.contains("Cipher is ECDHE"), "{old}: {said}");
    }
}

#[test]
fn cut_and_flipped_handshakes_end_alone() {
    let papers = Papers::new();
    let world = papers.world(false);
    let config = ClientConfig::builder_with_provider(ring::default_provider().into());
    let config = config.with_protocol_versions(&[&TLS13]).unwrap();
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let mut tls = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).unwrap();
    for at in 0..hello.len() {
        let mut flipped = hello.clone();
        flipped[at] ^= 0x41;
        for bytes in [&hello[..at], &flipped[..]] {
            let mut stream = connect(world.at());
            stream.write_all(bytes).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            match stream.read_to_end(&mut Vec::new()) {
                Ok(_) => {}
                Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}"),
            }
        }
    }
    assert_eq!(papers.ask(world.at(), "localhost", None).unwrap().0, 200);
}

#[test]
fn strangers_that_say_nothing_keep_nobody_out() {
    let papers = Papers::new();
    let world = papers.world(true);
    let silent: Vec<_> = (0..1_100).map(|_| connect(world.at())).collect();
    let good = papers.sign("ann", ExtendedKeyUsagePurpose::ClientAuth);
    assert_eq!(papers.ask(world.at(), "localhost", Some(good)).unwrap().0, 200);
    drop(silent);
}

#[test]
fn remote_gateways_say_who_may_call() {
    let papers = Papers::new();
    let world = papers.world(false);
    let listen = |https| {
        let servers = world.server.addresses()[0].clone().into();
        Gateway::start(Config { https, ..Config::new(servers, "0.0.0.0:0") })
    };
    assert!(matches!(listen(None), Err(StartError::Public(_))));
    let everyone = Https::open(papers.path(), None).unwrap();
    assert!(matches!(listen(Some(everyone)), Err(StartError::Everyone(_))));
    let callers = papers.path().join("ca.crt");
    listen(Some(Https::open(papers.path(), Some(&callers)).unwrap())).unwrap();
}

/// The words of the other implementation's client: none, with a printed reason, if this machine has none.
fn openssl(at: SocketAddr, options: &[&str], asked: &str) -> Option<String> {
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-ign_eof", "-connect", &at.to_string()]).args(options);
    openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = openssl.spawn() else {
        println!("left out: there is no openssl here");
        return None;
    };
    let asked = if asked.is_empty() { "GET / HTTP/1.0\r\n\r\n" } else { asked };
    // It may have ended, because the gateway refuses its version.
    let _ = child.stdin.take().unwrap().write_all(asked.as_bytes());
    Some(String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).into_owned())
}

fn openssl_get(at: SocketAddr, authority: &Path, path: &str) -> Option<String> {
    let asked = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    openssl(at, &["-CAfile", authority.to_str().unwrap()], &asked)
}
