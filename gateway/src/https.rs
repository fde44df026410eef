//! HTTPS: the files by which a gateway is known to its callers, and callers to it.
//!
//! The certificate is of any authority that callers trust, and is no Tercel certificate: a gateway is named
//! by its host. The invariant: where callers must have certificates, no byte of a request is read before
//! theirs counts.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use rustix::net::Shutdown;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use tercel::TlsError;
use tercel::access::Principal;
use tercel::tools::certificates::{
    Anew, ENDLESS, certificates, client_named, days_left, end_of, private_key, wrong,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::{task, time};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The certificate of a gateway, and the authorities of its callers, as files that are read anew once they
/// change.
#[derive(Clone)]
pub struct Https {
    files: Arc<Anew<Made>>,
    /// Counts the times at which an authority of callers was taken back.
    taken_back: Arc<watch::Sender<u64>>,
    proves_callers: bool,
    /// Callers that were refused before a request.
    refused: Counter,
}

/// The state made from the files together.
struct Made {
    server: Arc<ServerConfig>,
    /// The authorities of callers.
    roots: Arc<RootCertStore>,
    /// Seconds since 1970.
    ends: i64,
}

impl Https {
    /// Reads `tls.crt` and `tls.key` of a directory, in PEM. With a file of authorities, a caller must show a
    /// certificate of one of them; without it, callers show none.
    ///
    /// # Errors
    /// If a file is missing, is no PEM, or they do not fit together.
    pub fn open(dir: &Path, callers: Option<&Path>) -> Result<Https, TlsError> {
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| dir.join(name));
        let callers = callers.map(PathBuf::from);
        let files: Vec<_> = [&certificate, &key].into_iter().chain(&callers).cloned().collect();
        let proves_callers = callers.is_some();
        let files = Anew::open(files, move || Made::read(&certificate, &key, callers.as_deref()))?;
        let taken_back = Arc::new(watch::Sender::new(0));
        Ok(Https { files: Arc::new(files), taken_back, proves_callers, refused: Counter::default() })
    }

    /// Says whether callers must have certificates.
    pub fn proves_callers(&self) -> bool {
        self.proves_callers
    }

    /// Has the state of the certificate be told to Prometheus.
    pub fn register(&self, registry: &mut Registry) {
        let gauge = |value| {
            let gauge = Gauge::<i64>::default();
            gauge.set(value);
            gauge
        };
        let help = "callers that were refused at the handshake";
        registry.register("gateway_handshakes_refused", help, self.refused.clone());
        let days = self.files.last(|made| days_left(made.ends));
        let help = "whole days until the certificate for HTTPS ends";
        registry.register("gateway_certificate_days_left", help, gauge(days));
        let help = "1 if new files of the certificate do not count, and those before stay in use";
        registry.register("gateway_certificate_outdated", help, gauge(self.files.problem().is_some().into()));
    }

    /// Looks at the files again and again, until it is dropped.
    pub async fn look(self) {
        loop {
            time::sleep(LOOK).await;
            let files = self.files.clone();
            // A disk may take its time.
            let before = files.last(|made| made.roots.clone());
            let _ = task::spawn_blocking(move || files.look()).await;
            let lacks_one = |made: &Made| before.roots.iter().any(|root| !made.roots.roots.contains(root));
            if self.files.last(lacks_one) {
                self.taken_back.send_modify(|times| *times += 1);
            }
        }
    }

    /// Tells when an authority of callers is taken back: connected callers show their certificates again.
    pub fn taken_back(&self) -> watch::Receiver<u64> {
        self.taken_back.subscribe()
    }

    /// Shakes hands with a caller, and gives the stream, for how long the caller is known, and the client
    /// that its certificate names, if it does. None if the caller is refused: it is told why, unless it is
    /// silent for too long.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin + AsRef<TcpStream>>(
        &self,
        stream: TcpStream,
        paced: impl FnOnce(TcpStream) -> S,
    ) -> Option<(TlsStream<S>, Duration, Option<Principal>)> {
        if !begins_sealed(&stream).await {
            self.refused.inc();
            // To close a socket before all was read would take the answer back.
            let _ = stream.try_write(PLAIN_CALLER.as_bytes());
            linger(&stream).await;
            return None;
        }
        let acceptor = TlsAcceptor::from(self.files.last(|made| made.server.clone()));
        let shaking = acceptor.accept(paced(stream)).into_fallible();
        match time::timeout(HANDSHAKE, shaking).await {
            Ok(Ok(stream)) => {
                let shown = stream.get_ref().1.peer_certificates();
                let known_for = shown.map_or(Some(Duration::MAX), |chain| end_of(chain).map(until))?;
                let caller = shown.and_then(client_named);
                Some((stream, known_for.min(FOR_EVER), caller))
            }
            Ok(Err((_, stream))) => {
                self.refused.inc();
                linger(stream.as_ref()).await;
                None
            }
            Err(_) => {
                self.refused.inc();
                None
            }
        }
    }
}

/// The time until a moment in seconds since 1970.
fn until(ends: i64) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(ends.max(0) as u64).saturating_sub(now)
}

/// Says whether a caller begins with a handshake.
async fn begins_sealed(stream: &TcpStream) -> bool {
    let mut first = [0];
    matches!(time::timeout(HANDSHAKE, stream.peek(&mut first)).await, Ok(Ok(1)) if first[0] == FIRST_BYTE)
}

/// Reads what a caller sends on, which has its answer, until it has read that and ends the connection.
async fn linger(stream: &TcpStream) {
    let _ = rustix::net::shutdown(stream, Shutdown::Write);
    let all = async {
        let mut left = LINGER_BYTES;
        while stream.readable().await.is_ok() {
            match stream.try_read(&mut [0; 4 << 10]) {
                Ok(came @ 1..) if came < left => left -= came,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    };
    let _ = time::timeout(LINGER, all).await;
}

/// Time and bytes for a caller to take the reason for which it is refused.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 64 << 10;

/// The answer to plain HTTP.
const PLAIN_CALLER: &str = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: application/json\r\n\r\n\
                            {\"error\":\"this gateway speaks HTTPS\",\"next\":\"name it with https:// instead of http://\"}\n";

/// The first byte of a TLS handshake. No request of HTTP begins so.
const FIRST_BYTE: u8 = 0x16;

/// The time of a caller that needs no certificate.
pub const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Time between two looks at the files.
const LOOK: Duration = Duration::from_secs(10);

/// Time for the first byte of a caller, and then for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

impl Made {
    fn read(certificate: &Path, key: &Path, callers: Option<&Path>) -> Result<Made, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates(certificate)?;
        let ends = end_of(&chain).ok_or_else(|| wrong(certificate, ENDLESS.into()))?;
        let unfit = |why: rustls::Error| wrong(key, format!("it does not fit tls.crt: {why}"));
        let server = ServerConfig::builder_with_provider(provider.clone());
        let server = server.with_protocol_versions(&[&TLS13]).map_err(unfit)?;
        let mut roots = RootCertStore::empty();
        let server = match callers {
            None => server.with_no_client_auth(),
            Some(file) => {
                for authority in certificates(file)? {
                    roots.add(authority).map_err(|why| wrong(file, why.to_string()))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots.clone().into(), provider).build();
                server.with_client_cert_verifier(verifier.map_err(|why| wrong(file, why.to_string()))?)
            }
        };
        let mut server = server.with_single_cert(chain, private_key(key)?).map_err(unfit)?;
        server.alpn_protocols = vec![b"http/1.1".into()];
        if callers.is_some() {
            // A ticket would outlive the caller's certificate.
            server.send_tls13_tickets = 0;
        }
        Ok(Made { server: Arc::new(server), roots: roots.into(), ends })
    }
}

impl fmt::Debug for Https {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Https(proves callers: {})", self.proves_callers)
    }
}
