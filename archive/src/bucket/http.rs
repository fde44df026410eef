//! Requests of buckets over HTTP/1.1, by TLS 1.3 or in plain, each with a bound in time and in bytes.
//!
//! It neither follows redirections nor retries nor asks a proxy: the calls above do what must be done again.
//! The invariant: an answer is given whole or as an error, and a refusal is noted before it is given.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_LENGTH, HOST, HeaderValue};
use hyper::{Method, Response, Uri};
use hyper_util::rt::TokioIo;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpService,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::settings::{Patience, Settings};
use super::trouble::{self, Answer, Trouble};

/// The client's end: it makes connections to one endpoint.
#[derive(Clone)]
pub(super) struct Connector {
    inner: Arc<Inner>,
}

struct Inner {
    patience: Patience,
    /// Plain connections may leave this machine.
    allow_http: bool,
    /// The authorities that are trusted; none if the endpoint is plain.
    tls: Option<Arc<ClientConfig>>,
    idle: Mutex<Option<(Sender, Instant)>>,
}

type Sender = SendRequest<HttpRequestBody>;

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl Connector {
    /// Reads the authorities that are trusted.
    ///
    /// # Errors
    /// A sentence: a file of authorities cannot be read, or there are none.
    pub(super) fn new(settings: &Settings) -> Result<Connector, String> {
        let is_plain = settings.endpoint.scheme_str() == Some("http");
        let tls = match is_plain {
            true => None,
            false => Some(Arc::new(trusting(settings.authorities.as_deref())?)),
        };
        let (patience, allow_http) = (settings.patience, settings.allow_http);
        Ok(Connector { inner: Arc::new(Inner { patience, allow_http, tls, idle: Mutex::default() }) })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        trouble::clear();
        match self.inner.call(request).await {
            Ok(response) => Ok(response),
            Err(trouble) => {
                let text = format!("{trouble:?}");
                trouble::note(trouble);
                Err(HttpError::new(HttpErrorKind::Unknown, io::Error::other(text)))
            }
        }
    }
}

impl Inner {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, Trouble> {
        let is_head = request.method() == Method::HEAD;
        let sending = self.patience.of_bytes(request.body().content_length() as u64);
        let uri = request.uri().clone();
        address_by_path(&mut request, &uri)?;
        let mut sender = match self.take_idle() {
            Some(sender) => sender,
            None => self.connect(&uri).await?,
        };
        let sent = timeout(sending, sender.send_request(request)).await;
        let response = sent
            .map_err(|_| Trouble::NoAnswer(format!("no answer within {} ms", sending.as_millis())))?
            .map_err(|error| Trouble::NoAnswer(chain(&error)))?;
        let (mut parts, body) = response.into_parts();
        let bytes = self.whole(body, is_head).await?;
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some((sender, Instant::now()));
        if !parts.status.is_success() {
            let region = parts.headers.get("x-amz-bucket-region").and_then(|region| region.to_str().ok());
            trouble::note(Trouble::Answer(Answer::read(parts.status.as_u16(), region, &bytes)));
        }
        if !is_head {
            // Where the length was not told before, it is known now.
            parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        }
        Ok(Response::from_parts(parts, bytes.into()))
    }

    /// The connection of the last request, unless the other end may have closed it meanwhile.
    fn take_idle(&self) -> Option<Sender> {
        let (sender, since) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        (since.elapsed() < IDLE_MAX && sender.is_ready()).then_some(sender)
    }

    /// Connects to the host of a URL.
    async fn connect(&self, uri: &Uri) -> Result<Sender, Trouble> {
        let no_url = || Trouble::Distrust("the endpoint has no host".into());
        let host = uri.host().ok_or_else(no_url)?.trim_matches(['[', ']']).to_string();
        let is_plain = uri.scheme_str() == Some("http");
        let port = uri.port_u16().unwrap_or(if is_plain { 80 } else { 443 });
        let connecting = async {
            let failed = |error: io::Error| Trouble::NoAnswer(format!("{host}:{port}: {error}"));
            let found: Vec<SocketAddr> = lookup_host((host.as_str(), port)).await.map_err(failed)?.collect();
            let is_near = |at: &SocketAddr| at.ip().to_canonical().is_loopback();
            if is_plain && !self.allow_http && !found.iter().all(is_near) {
                // The name had other addresses when the settings were read.
                return Err(Trouble::Distrust(format!(
                    "{host} is not this machine, and AWS_ALLOW_HTTP is not true"
                )));
            }
            let stream = any_of(&found).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            match (&self.tls, is_plain) {
                (_, true) => begun(stream).await,
                (Some(tls), false) => {
                    let name = ServerName::try_from(host.clone())
                        .map_err(|_| Trouble::Distrust(format!("{host} is no name of a host")))?;
                    let stream = TlsConnector::from(tls.clone()).connect(name, stream).await;
                    begun(stream.map_err(|error| of_handshake(&host, &error))?).await
                }
                (None, false) => {
                    Err(Trouble::Distrust("the endpoint is plain, and its answer is not".into()))
                }
            }
        };
        let late = || format!("{host}:{port}: no connection within {} ms", self.patience.connect.as_millis());
        timeout(self.patience.connect, connecting).await.map_err(|_| Trouble::NoAnswer(late()))?
    }

    /// Reads the whole body of an answer.
    async fn whole(&self, body: Incoming, is_head: bool) -> Result<Vec<u8>, Trouble> {
        let told = body.size_hint().exact().filter(|_| !is_head).unwrap_or(0);
        if told > BODY_BYTES_MAX {
            return Err(Trouble::Distrust(format!("an answer of {told} bytes is more than an object has")));
        }
        let within = self.patience.of_bytes(told);
        let end = tokio::time::Instant::now() + within;
        let mut bytes = Vec::new();
        let mut body = pin!(body);
        loop {
            let frame = timeout_at(end, std::future::poll_fn(|cx| body.as_mut().poll_frame(cx))).await;
            let late = |_| Trouble::NoAnswer(format!("no whole answer within {} ms", within.as_millis()));
            let Some(frame) = frame.map_err(late)? else { return Ok(bytes) };
            let frame = frame.map_err(|error| Trouble::NoAnswer(chain(&error)))?;
            let Ok(data) = frame.into_data() else { continue };
            if (bytes.len() + data.len()) as u64 > BODY_BYTES_MAX {
                return Err(Trouble::Distrust(format!("an answer of more than {BODY_BYTES_MAX} bytes")));
            }
            bytes.extend_from_slice(&data);
        }
    }
}

/// Gives a request the form that a server, and no proxy, takes: its host in a header, and its path alone.
fn address_by_path(request: &mut HttpRequest, uri: &Uri) -> Result<(), Trouble> {
    let wrong = || Trouble::Distrust("the endpoint makes no URL".into());
    let host = uri.authority().ok_or_else(wrong)?.as_str();
    if !request.headers().contains_key(HOST) {
        request.headers_mut().insert(HOST, HeaderValue::from_str(host).map_err(|_| wrong())?);
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse().map_err(|_| wrong())?;
    Ok(())
}

/// Connects to the first of several addresses that takes the connection.
async fn any_of(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for at in addresses {
        match TcpStream::connect(at).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Begins with HTTP on a connection, whose bytes are then moved whenever the runtime runs.
async fn begun(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Sender, Trouble> {
    let (sender, connection) = handshake(TokioIo::new(Pin::new(Box::new(stream))))
        .await
        .map_err(|error| Trouble::NoAnswer(chain(&error)))?;
    tokio::spawn(async move {
        // The request that waits on it is told of its end.
        let _ = connection.await;
    });
    Ok(sender)
}

/// The trouble of a handshake. A certificate that is not trusted now will not be in a moment.
fn of_handshake(host: &str, error: &io::Error) -> Trouble {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        // An authority of the same name and another key is another one.
        Some(rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => Trouble::Distrust(format!(
            "no authority that is trusted here has signed the certificate of {host}; AWS_CA_BUNDLE names a file with more"
        )),
        Some(rustls::Error::InvalidCertificate(why)) => {
            // Behind a semicolon stands what to do.
            let why = why.to_string().replace(';', ",");
            Trouble::Distrust(format!("the certificate of {host} does not count: {why}"))
        }
        Some(rustls::Error::InvalidMessage(_)) => {
            Trouble::NoAnswer(format!("{host} does not answer by TLS: {error}"))
        }
        _ => Trouble::NoAnswer(format!("{host}: {error}")),
    }
}

/// The configuration that trusts the system's authorities and those of a file.
fn trusting(authorities: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = authorities {
        let wrong = |why: String| format!("the file of AWS_CA_BUNDLE, {}: {why}", path.display());
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        let certificates = certificates.map_err(|error| wrong(error.to_string()))?;
        let (added, _) = roots.add_parsable_certificates(certificates);
        if added == 0 {
            return Err(wrong("it has no certificate of an authority".into()));
        }
    }
    if roots.is_empty() {
        return Err(
            "this machine trusts no authority, so no certificate would count: install its package of \
                    certificates (ca-certificates), or name a file in AWS_CA_BUNDLE"
                .into(),
        );
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// An error with those that it comes from: the words of hyper alone say little.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Bytes of an answer at most: an object, whose contents are 80 MiB at most, and some more.
const BODY_BYTES_MAX: u64 = 96 << 20;

/// The time after which an idle connection is not used again: services close theirs after five seconds or
/// more, and nobody here would notice that before the next request is lost in it.
const IDLE_MAX: Duration = Duration::from_secs(3);
