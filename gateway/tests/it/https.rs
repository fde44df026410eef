//! Gateways that answer HTTPS.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustix::process::{Resource, Rlimit};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;
use tercel_gateway::{Config, Gateway, Https, StartError};

use crate::common::{World, head, request};

/// An authority, the certificate of a gateway on this host, and those of callers.
pub struct Papers {
    dir: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

pub type Answer = Result<(u16, String), String>;
type Caller = StreamOwned<ClientConnection, TcpStream>;

impl Papers {
    pub fn new() -> Papers {
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
        self.sign_for(name, usage, Duration::from_secs(3_600))
    }

    /// A certificate that names a URI.
    pub fn sign_uri(&self, uri: &str, usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        self.sign_as(params, usage, Duration::from_secs(3_600))
    }

    fn sign_for(&self, name: &str, usage: ExtendedKeyUsagePurpose, time: Duration) -> (String, String) {
        self.sign_as(CertificateParams::new([name.to_string()]).unwrap(), usage, time)
    }

    fn sign_as(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
        time: Duration,
    ) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        params.extended_key_usages = vec![usage];
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + now + time;
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// A gateway with this certificate, for everyone or for callers with one.
    fn world(&self, proves_callers: bool) -> World {
        let https = self.https(proves_callers);
        World::with(|config| Config { https: Some(https), ..config })
    }

    pub fn https(&self, proves_callers: bool) -> Https {
        let callers = self.path().join("ca.crt");
        Https::open(self.path(), proves_callers.then_some(callers.as_path())).unwrap()
    }

    /// Asks as a caller that trusts this authority, by the name of a host.
    pub fn ask(&self, at: SocketAddr, host: &str, caller: Option<(String, String)>) -> Answer {
        self.ask_with(at, host, caller, "")
    }

    fn ask_with(&self, at: SocketAddr, host: &str, caller: Option<(String, String)>, header: &str) -> Answer {
        let mut stream = self.connect(at, host, caller);
        let asked = format!("GET /v1/roots HTTP/1.1\r\nHost: {host}\r\n{header}Connection: close\r\n\r\n");
        let text = |e: std::io::Error| e.to_string();
        stream.write_all(asked.as_bytes()).map_err(text)?;
        let mut stream = BufReader::new(stream);
        let (status, _) = head(&mut stream).ok_or("no answer")?;
        let mut body = String::new();
        stream.read_to_string(&mut body).map_err(text)?;
        Ok((status, body))
    }

    pub fn connect(&self, at: SocketAddr, host: &str, caller: Option<(String, String)>) -> Caller {
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
        StreamOwned::new(tls, connect(at))
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
    // A body behind the head does not take the answer back.
    let mut plain = connect(world.at());
    plain.write_all(b"POST /v1/objects/purse/pay HTTP/1.1\r\nContent-Length: 9000\r\n\r\n").unwrap();
    plain.write_all(&[b' '; 9_000]).unwrap();
    let mut said = String::new();
    plain.read_to_string(&mut said).unwrap();
    assert!(said.contains("https://"), "{said}");
}

#[test]
fn pages_that_came_in_plain_are_foreign() {
    let papers = Papers::new();
    let world = papers.world(false);
    for (origin, status) in [("https://localhost", 200), ("http://localhost", 403), ("https://other", 403)] {
        let origin = format!("Origin: {origin}\r\n");
        let answer = papers.ask_with(world.at(), "localhost", None, &origin);
        assert_eq!(answer.unwrap().0, status, "{origin}");
    }
}

#[test]
fn connection_ends_with_the_certificate() {
    let papers = Papers::new();
    let world = papers.world(true);
    let short = papers.sign_for("ann", ExtendedKeyUsagePurpose::ClientAuth, Duration::from_secs(4));
    let mut stream = BufReader::new(papers.connect(world.at(), "localhost", Some(short)));
    let begun = Instant::now();
    stream.get_mut().write_all(b"GET /v1/watch/purse HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(head(&mut stream).is_some());
    // A stream of events would go on for as long as its reader.
    let _ = stream.read_to_end(&mut Vec::new());
    let took = begun.elapsed().as_secs();
    assert!((2..20).contains(&took), "{took} s");
}

#[test]
fn connection_ends_with_its_authority() {
    let (papers, other) = (Papers::new(), Papers::new());
    let callers = papers.path().join("callers.crt");
    std::fs::write(&callers, papers.authority.pem() + &other.authority.pem()).unwrap();
    let https = Https::open(papers.path(), Some(&callers)).unwrap();
    let world = World::with(|config| Config { https: Some(https), ..config });
    let ann = other.sign("ann", ExtendedKeyUsagePurpose::ClientAuth);
    let mut stream = BufReader::new(papers.connect(world.at(), "localhost", Some(ann)));
    let begun = Instant::now();
    stream.get_mut().write_all(b"GET /v1/watch/purse HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(head(&mut stream).is_some());
    std::fs::write(&callers, papers.authority.pem()).unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    let took = begun.elapsed().as_secs();
    assert!(took < 40, "{took} s");
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
    let until = |is_so: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < end, "the files were not looked at");
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    let metrics = || openssl_get(world.at(), &papers.path().join("ca.crt"), "/metrics");
    let is_outdated = |is_so: u8| {
        let said = metrics();
        said.is_none_or(|said| said.contains(&format!("tercel_gateway_certificate_outdated {is_so}")))
    };
    assert!(is_outdated(0));
    std::fs::write(papers.path().join("tls.crt"), "no certificate").unwrap();
    until(&|| is_outdated(1));
    assert_eq!(papers.ask(world.at(), "localhost", None).unwrap().0, 200, "the one before stays in use");
    papers.name("db.example");
    until(&|| papers.ask(world.at(), "db.example", None).is_ok());
    assert!(is_outdated(0));
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
    let panics = Arc::new(AtomicU64::new(0));
    let (counted, usual) = (panics.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() == Some("tercel-gateway") {
            counted.fetch_add(1, SeqCst);
        }
        usual(panic);
    }));
    for at in 0..hello.len() {
        let mut flipped = hello.clone();
        flipped[at] ^= 0x41;
        for bytes in [&hello[..at], &flipped[..]] {
            let mut stream = connect(world.at());
            stream.write_all(bytes).unwrap();
            // It may be closed at the other end.
            let _ = stream.shutdown(std::net::Shutdown::Write);
            match stream.read_to_end(&mut Vec::new()) {
                Ok(_) => {}
                Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}"),
            }
        }
    }
    assert_eq!(papers.ask(world.at(), "localhost", None).unwrap().0, 200);
    assert_eq!(panics.load(SeqCst), 0, "a task of a gateway panicked");
}

#[test]
fn slow_strangers_keep_no_caller_out() {
    // Each connection has two ends here.
    let limits = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits }).unwrap();
    let papers = Papers::new();
    let world = papers.world(true);
    let good = papers.sign("ann", ExtendedKeyUsagePurpose::ClientAuth);
    // Half of them begin a handshake.
    let begun = Instant::now();
    let slow: Vec<_> = (0..1_100)
        .map(|n| {
            let mut stream = connect(world.at());
            stream.write_all(&[0x16, 3, 1, 2, 0][..n % 2 * 5]).unwrap();
            stream
        })
        .collect();
    assert_eq!(papers.ask(world.at(), "localhost", Some(good)).unwrap().0, 200);
    // Handshakes that are never finished have ten seconds each.
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    drop(slow);
}

#[test]
fn gateway_beyond_loopback_proves_its_callers() {
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
