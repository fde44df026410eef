//! Small documents of other servers, by HTTPS.
//!
//! The authorities are the system's. No redirection is followed. The invariant: a document is given whole,
//! within [`PATIENCE`] and [`BYTES_MAX`], or not at all.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::header::{ACCEPT, HOST};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::{runtime, time};
use tokio_rustls::TlsConnector;

/// Checks that a document may be fetched there: by HTTPS, or in plain from this host.
///
/// # Errors
/// A sentence.
pub fn check(url: &str) -> Result<Uri, String> {
    let wrong = |why: &str| format!("`{url}`: {why}");
    let uri: Uri = url.parse().map_err(|_| wrong("it is no URL"))?;
    let host = uri.host().ok_or_else(|| wrong("it names no host"))?;
    match uri.scheme_str() {
        Some("https") => Ok(uri),
        Some("http") if is_this_host(host) => Ok(uri),
        Some("http") => Err(wrong("in plain HTTP it could be changed on its way: name it with https://")),
        _ => Err(wrong("it is neither https:// nor a file")),
    }
}

fn is_this_host(host: &str) -> bool {
    let at = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || at.is_ok_and(|at| at.is_loopback())
}

/// Fetches a document. Waits for it, also where the caller's thread is a runtime's.
///
/// # Errors
/// A sentence.
pub fn fetch(url: &str) -> Result<Vec<u8>, String> {
    let uri = check(url)?;
    let work = move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let fetched = async { time::timeout(PATIENCE, fetched(&uri)).await };
        let late = |_| format!("{uri}: no answer within {} s", PATIENCE.as_secs());
        let runtime = runtime.map_err(|e| e.to_string())?;
        let fetched = runtime.block_on(fetched);
        // A look-up of the name may go on for longer.
        runtime.shutdown_background();
        fetched.map_err(late)?.map_err(|why| format!("{uri}: {why}"))
    };
    let thread = thread::Builder::new().name("tercel-fetch".into()).spawn(work).map_err(|e| e.to_string())?;
    thread.join().unwrap_or_else(|_| Err("the thread that fetched it has failed".into()))
}

async fn fetched(uri: &Uri) -> Result<Vec<u8>, String> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_string();
    let is_sealed = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if is_sealed { 443 } else { 80 });
    let stream = TcpStream::connect((host.as_str(), port)).await.map_err(|e| e.to_string())?;
    if !is_sealed {
        return asked(stream, uri).await;
    }
    let name = ServerName::try_from(host).map_err(|e| e.to_string())?;
    let connector = TlsConnector::from(Arc::new(trusting()?));
    asked(connector.connect(name, stream).await.map_err(|e| e.to_string())?, uri).await
}

/// The configuration that trusts the system's authorities.
fn trusting() -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(
            "this machine trusts no authority: install its package of certificates (ca-certificates)".into(),
        );
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(|e| e.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

async fn asked(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    uri: &Uri,
) -> Result<Vec<u8>, String> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let moving = tokio::spawn(connection);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let request = Request::get(path).header(HOST, host).header(ACCEPT, "application/json");
    let request = request.body(String::new()).map_err(|e| e.to_string())?;
    let answer = sender.send_request(request).await.map_err(|e| e.to_string())?;
    match answer.status() {
        StatusCode::OK => {}
        status => return Err(format!("the answer is {status}")),
    }
    let whole = whole(answer.into_body()).await;
    moving.abort();
    whole
}

async fn whole(body: Incoming) -> Result<Vec<u8>, String> {
    let (mut body, mut bytes) = (pin!(body), Vec::new());
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let data = frame.map_err(|e| e.to_string())?.into_data().unwrap_or_else(|_| Bytes::new());
        if bytes.len() + data.len() > BYTES_MAX {
            return Err(format!("the answer has more than {BYTES_MAX} bytes"));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// Time for a document, with its connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of a document.
const BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_documents_come_from_this_host_alone() {
        let all = [
            "https://login.example.org/keys",
            "http://127.0.0.1:1/",
            "http://[::1]:1/k",
            "http://localhost/",
        ];
        assert!(all.iter().all(|url| check(url).is_ok()));
        for (url, why) in [
            ("http://login.example.org/keys", "https://"),
            ("http://127.0.0.1.example.org/", "https://"),
            ("ftp://login.example.org/", "neither"),
            ("https://", "URL"),
        ] {
            assert!(check(url).unwrap_err().contains(why), "{url}: {:?}", check(url));
        }
    }
}
