//! The three files by which a process is known to others, and others to it, and when they are read anew.
//!
//! `tls.crt` has the process's certificate, and the chain behind it; `tls.key` its key; `ca.crt` the
//! authorities by which others count. The invariant: the three are used as they were read together, and only
//! if they are whole: a file that is wrong changes nothing but what [`Tls::status`] says.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{Stat, stat};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tercel_lock::unpoison;
use tercel_wire::frame::WIRE_VERSION;
use thiserror::Error;

use super::der::not_after;
use super::verify::Verifier;
use crate::identity::Identity;

/// The certificate of this process, its key, and the authorities that it trusts, as files of one directory:
/// `tls.crt`, `tls.key` and `ca.crt`, in PEM. `tercel cert` makes such directories, and so does a secret of
/// cert-manager that is mounted.
///
/// The files are looked at every ten seconds, as far as connections are made. New ones count once all three
/// fit together; until then the old ones do, and [`Tls::status`] tells.
///
/// ```no_run
/// use tercel::{Client, Tls};
///
/// let tls = Tls::open("./ann")?;
/// let client = Client::builder().tls(tls).connect("db:7117")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Tls {
    inner: Arc<Inner>,
}

struct Inner {
    dir: PathBuf,
    state: Mutex<State>,
}

/// The files as they were read last.
struct State {
    pair: Pair,
    seen: Seen,
    looked: Instant,
    problem: Option<String>,
}

/// The configurations made from the three files together.
#[derive(Clone)]
struct Pair {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    identity: Identity,
    /// Seconds since 1970.
    ends: i64,
}

/// Marks of the files that change when a file is replaced.
type Seen = [Option<(u64, u64, i64, i64)>; 3];

/// The state of a process's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsStatus {
    /// The principal that the certificate names: `client:NAME` or `member:ID`.
    pub principal: String,
    /// The group of a member.
    pub group: Option<String>,
    /// Whole days until the certificate ends; less than none once it has.
    pub days_left: i64,
    /// The reason for which newer files do not count, as a sentence; none if the newest are in use.
    pub problem: Option<String>,
}

/// Files that make no certificate. Their owner must put others there.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}: {what}; `tercel cert` makes such files")]
pub struct TlsError {
    file: String,
    what: String,
}

impl Tls {
    /// Reads the three files of a directory.
    ///
    /// # Errors
    /// If one is missing, is no PEM, has no certificate or no key, or they do not fit together.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Tls, TlsError> {
        let dir = dir.into();
        let seen = see(&dir);
        let pair = Pair::read(&dir)?;
        let state = Mutex::new(State { pair, seen, looked: Instant::now(), problem: None });
        Ok(Tls { inner: Arc::new(Inner { dir, state }) })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Looks at the files, and tells how the certificate is.
    pub fn status(&self) -> TlsStatus {
        self.with(State::status)
    }

    /// The identity of this process.
    pub(crate) fn identity(&self) -> Identity {
        self.with(|state| state.pair.identity.clone())
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        self.with(|state| state.pair.client.clone())
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        self.with(|state| state.pair.server.clone())
    }

    /// The state of the certificate at the last look: no file is read for it.
    pub(crate) fn last_status(&self) -> TlsStatus {
        unpoison(self.inner.state.lock()).status()
    }

    /// Uses the files as they are, looked at now if that is due.
    fn with<R>(&self, of: impl FnOnce(&State) -> R) -> R {
        let state = unpoison(self.inner.state.lock());
        if state.looked.elapsed() < LOOK {
            return of(&state);
        }
        drop(state);
        self.look();
        let state = unpoison(self.inner.state.lock());
        of(&state)
    }

    /// Looks at the files, and takes them if they have changed, or were wrong before: the last of three may
    /// have come. Others use the files before meanwhile.
    pub(crate) fn look(&self) {
        let mut state = unpoison(self.inner.state.lock());
        state.looked = Instant::now();
        let (before, was_wrong) = (state.seen, state.problem.is_some());
        drop(state);
        let seen = see(&self.inner.dir);
        if seen == before && !was_wrong {
            return;
        }
        let read = Pair::read(&self.inner.dir);
        let mut state = unpoison(self.inner.state.lock());
        match read {
            Ok(pair) => (state.pair, state.seen, state.problem) = (pair, seen, None),
            Err(why) => state.problem = Some(format!("the certificate before stays in use: {why}")),
        }
    }
}

impl State {
    fn status(&self) -> TlsStatus {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
        TlsStatus {
            principal: self.pair.identity.to_string(),
            group: self.pair.identity.group().map(String::from),
            days_left: self.pair.ends.saturating_sub_unsigned(now).div_euclid(86_400),
            problem: self.problem.clone(),
        }
    }
}

impl Pair {
    fn read(dir: &Path) -> Result<Pair, TlsError> {
        let provider: Arc<CryptoProvider> = ring::default_provider().into();
        let [certificate, key, authorities] = FILES.map(|name| dir.join(name));
        let chain = certificates(&certificate)?;
        let wrong = |file: &Path, what: String| TlsError { file: file.display().to_string(), what };
        let identity = Identity::of(&chain[0]).map_err(|why| wrong(&certificate, why.to_string()))?;
        let ends = chain.iter().filter_map(|one| not_after(one)).min();
        let ends = ends.ok_or_else(|| wrong(&certificate, "it does not say when it ends".into()))?;
        let text = read(&key)?;
        let private = || {
            PrivateKeyDer::from_pem_slice(&text).map_err(|why| wrong(&key, format!("it has no key: {why}")))
        };
        let mut roots = RootCertStore::empty();
        for authority in certificates(&authorities)? {
            roots.add(authority).map_err(|why| wrong(&authorities, why.to_string()))?;
        }
        let verifier = Verifier::new(roots, &provider).map_err(|why| wrong(&authorities, why))?;
        let verifier = Arc::new(verifier);
        let unfit = |why: rustls::Error| wrong(&key, format!("it does not fit {}: {why}", CERTIFICATE_NAME));
        let versions = [&TLS13];

        let client = ClientConfig::builder_with_provider(provider.clone());
        let client = client.with_protocol_versions(&versions).map_err(unfit)?.dangerous();
        let client = client.with_custom_certificate_verifier(verifier.clone());
        let mut client = client.with_client_auth_cert(chain.clone(), private()?).map_err(unfit)?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        client.alpn_protocols = vec![protocol()];

        let server = ServerConfig::builder_with_provider(provider);
        let server = server.with_protocol_versions(&versions).map_err(unfit)?;
        let server = server.with_client_cert_verifier(verifier);
        let mut server = server.with_single_cert(chain, private()?).map_err(unfit)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![protocol()];
        Ok(Pair { client: Arc::new(client), server: Arc::new(server), identity, ends })
    }
}

/// The name under which both ends agree on the version of the protocol.
fn protocol() -> Vec<u8> {
    format!("tercel/{WIRE_VERSION}").into_bytes()
}

/// The certificates of a file, at least one.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |what: String| TlsError { file: file.display().to_string(), what };
    let text = read(file)?;
    let all = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|why| wrong(format!("it is no certificate in PEM: {why}")))?;
    if all.is_empty() { Err(wrong("it has no certificate".into())) } else { Ok(all) }
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    let wrong = |what: String| TlsError { file: file.display().to_string(), what };
    let mut bytes = Vec::new();
    let opened =
        std::fs::File::open(file).and_then(|opened| opened.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    opened.map_err(|why| wrong(why.to_string()))?;
    Ok(bytes)
}

/// A bundle of some hundred authorities.
const FILE_BYTES_MAX: u64 = 1 << 20;

fn see(dir: &Path) -> Seen {
    let of = |found: Stat| {
        (
            found.st_dev,
            found.st_ino,
            found.st_size,
            found.st_mtime * 1_000_000 + found.st_mtime_nsec as i64 / 1_000,
        )
    };
    FILES.map(|name| stat(dir.join(name)).ok().map(of))
}

/// The names that Kubernetes gives them.
const CERTIFICATE_NAME: &str = "tls.crt";
const FILES: [&str; 3] = [CERTIFICATE_NAME, "tls.key", "ca.crt"];

/// Time between two looks at the files.
const LOOK: Duration = Duration::from_secs(10);

/// The same certificate, and not only one that is equal.
impl PartialEq for Tls {
    fn eq(&self, other: &Tls) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Tls {}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({})", self.inner.dir.display())
    }
}
