//! The three files by which a process is known to others, and others to it, and when they are read anew.
//!
//! `tls.crt` has the process's certificate, and the chain behind it; `tls.key` its key; `ca.crt` the
//! authorities by which others count. The invariant: the three are used as they were read together, and only
//! if they are whole: a file that is wrong changes nothing but what [`Tls::status`] says.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tercel_wire::frame::WIRE_VERSION;
use thiserror::Error;

use super::anew::Anew;
use super::der::not_after;
use super::verify::Verifier;
use crate::identity::Identity;
use crate::private::see_private;

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
    pair: Anew<Pair>,
}

/// The configurations made from the three files together.
#[derive(Clone)]
struct Pair {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    verifier: Arc<Verifier>,
    identity: Identity,
    /// Seconds since 1970.
    ends: i64,
}

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
        let read = dir.clone();
        let pair = Anew::open(FILES.map(|name| dir.join(name)), move || Pair::read(&read))?;
        Ok(Tls { inner: Arc::new(Inner { dir, pair }) })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Looks at the files, and tells how the certificate is.
    pub fn status(&self) -> TlsStatus {
        self.status_of(self.inner.pair.with(Pair::clone))
    }

    /// The identity of this process.
    pub(crate) fn identity(&self) -> Identity {
        self.inner.pair.with(|pair| pair.identity.clone())
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        self.inner.pair.with(|pair| pair.client.clone())
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        self.inner.pair.with(|pair| pair.server.clone())
    }

    /// The rule by which others count, as of the last look: no file is read for it.
    pub(crate) fn verifier(&self) -> Arc<Verifier> {
        self.inner.pair.last(|pair| pair.verifier.clone())
    }

    /// The same, after a look at the files if that is due.
    pub(crate) fn verifier_anew(&self) -> Arc<Verifier> {
        self.inner.pair.with(|pair| pair.verifier.clone())
    }

    /// The state of the certificate at the last look: no file is read for it.
    pub(crate) fn last_status(&self) -> TlsStatus {
        self.status_of(self.inner.pair.last(Pair::clone))
    }

    /// Looks at the files now.
    #[cfg(test)]
    pub(crate) fn look(&self) {
        self.inner.pair.look();
    }

    fn status_of(&self, pair: Pair) -> TlsStatus {
        TlsStatus {
            principal: pair.identity.to_string(),
            group: pair.identity.group().map(String::from),
            days_left: days_left(pair.ends),
            problem: self.inner.pair.problem(),
        }
    }
}

/// Whole days until a moment in seconds since 1970; less than none behind it.
pub fn days_left(ends: i64) -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    ends.saturating_sub_unsigned(now).div_euclid(86_400)
}

impl Pair {
    fn read(dir: &Path) -> Result<Pair, TlsError> {
        let provider: Arc<CryptoProvider> = ring::default_provider().into();
        let [certificate, key, authorities] = FILES.map(|name| dir.join(name));
        let chain = certificates(&certificate)?;
        let identity = Identity::of(&chain[0]).map_err(|why| wrong(&certificate, why.to_string()))?;
        let ends = end_of(&chain).ok_or_else(|| wrong(&certificate, ENDLESS.into()))?;
        let private = private_key(&key)?;
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
        let mut client = client.with_client_auth_cert(chain.clone(), private.clone_key()).map_err(unfit)?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        client.alpn_protocols = vec![protocol()];

        let server = ServerConfig::builder_with_provider(provider);
        let server = server.with_protocol_versions(&versions).map_err(unfit)?;
        let server = server.with_client_cert_verifier(verifier.clone());
        let mut server = server.with_single_cert(chain, private).map_err(unfit)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![protocol()];
        let (client, server) = (Arc::new(client), Arc::new(server));
        Ok(Pair { client, server, verifier, identity, ends })
    }
}

/// The name under which both ends agree on the version of the protocol.
pub(super) fn protocol() -> Vec<u8> {
    format!("tercel/{WIRE_VERSION}").into_bytes()
}

/// The moment at which the first certificate of a chain ends, in seconds since 1970.
pub fn end_of(chain: &[CertificateDer<'_>]) -> Option<i64> {
    chain.iter().filter_map(|one| not_after(one)).min()
}

/// The chain of certificates has no moment at which it ends.
pub const ENDLESS: &str = "it does not say when it ends";

/// The certificates of a file, at least one.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(file)?;
    let all = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|why| wrong(file, format!("it is no certificate in PEM: {why}")))?;
    if all.is_empty() { Err(wrong(file, "it has no certificate".into())) } else { Ok(all) }
}

/// The key of a file.
pub fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    see_private(file);
    PrivateKeyDer::from_pem_slice(&read(file)?).map_err(|why| wrong(file, format!("it has no key: {why}")))
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let opened =
        std::fs::File::open(file).and_then(|opened| opened.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    opened.map_err(|why| wrong(file, why.to_string()))?;
    Ok(bytes)
}

/// A file that does not count, and why.
pub fn wrong(file: &Path, what: String) -> TlsError {
    TlsError { file: file.display().to_string(), what }
}

/// A bundle of some hundred authorities.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The names that Kubernetes gives them.
const CERTIFICATE_NAME: &str = "tls.crt";
const FILES: [&str; 3] = [CERTIFICATE_NAME, "tls.key", "ca.crt"];

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
