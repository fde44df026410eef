//! A request, as its head has it.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONTENT_ENCODING, HOST, HeaderMap, HeaderName,
    ORIGIN,
};
use hyper::{Method, Request};
use tercel::{Client, Isolation, Token, Transaction};

use crate::gate::Gate;
use crate::json::call::{Wrong, cut};
use crate::route::{KEYS, Route};

/// The header of a key under which a call is executed at most once.
const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Bytes of a key.
pub const KEY_BYTES_MAX: usize = 128;

/// A request.
#[derive(Debug)]
pub struct Asked {
    pub route: Route,
    pub is_allowed: bool,
    is_options: bool,
    /// Set if path and query are UTF-8 once their escapes are read.
    pub is_text: bool,
    /// The parts of the path, without escapes.
    pub path: Vec<String>,
    query: String,
    headers: HeaderMap,
    pub body: Vec<u8>,
    /// The end of the time for which its bearer is known; none is the connection's.
    pub until: Option<SystemTime>,
}

impl Asked {
    /// Reads the head of a request, and leaves its body.
    pub fn of(request: Request<Incoming>) -> (Asked, Incoming) {
        let (head, body) = request.into_parts();
        let is_text = [head.uri.path(), head.uri.query().unwrap_or_default()]
            .iter()
            .all(|part| std::str::from_utf8(&read_escapes(part)).is_ok());
        let path: Vec<String> = head.uri.path().split('/').skip(1).map(unescaped).collect();
        let route = Route::of(&path);
        let is_allowed =
            head.method == route.method() || head.method == Method::HEAD && route.method() == Method::GET;
        let query = head.uri.query().unwrap_or_default().to_string();
        let is_options = head.method == Method::OPTIONS;
        (
            Asked {
                route,
                is_allowed,
                is_options,
                is_text,
                path,
                query,
                headers: head.headers,
                body: Vec::new(),
                until: None,
            },
            body,
        )
    }

    /// Says whether it is answered by a stream of events.
    pub fn wants_events(&self) -> bool {
        let takes = |kind: &str| self.accepts().contains(kind);
        self.is_allowed
            && match self.route {
                Route::Watch => true,
                Route::Status | Route::Table | Route::Map => takes("text/event-stream"),
                _ => false,
            }
    }

    /// Says whether the time is over for which its bearer is known.
    pub fn is_over(&self) -> bool {
        self.until.is_some_and(|until| SystemTime::now() >= until)
    }

    /// The token that it bears.
    pub fn token(&self) -> Option<&str> {
        let (scheme, token) = self.header(&AUTHORIZATION)?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    }

    /// The site whose page sent it, if that is one that may.
    pub fn origin<'g>(&self, gate: &'g Gate) -> Option<&'g str> {
        let origin = self.header(&ORIGIN)?;
        gate.origins.iter().find(|of| **of == origin).map(String::as_str)
    }

    /// Says whether a browser asks if a page of another site may send a request.
    pub fn is_preflight(&self) -> bool {
        self.is_options && self.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Says whether a browser sent it for a page of another site, or by a name that another site may have
    /// given to this host: such pages must not call what their reader may. Programs send no `Origin`.
    pub fn is_foreign(&self, gate: &Gate) -> bool {
        let host = self.header(&HOST).unwrap_or_default();
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let is_address = |host: &str| host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        // An address of IPv6 without a port has colons of its own.
        let is_local = is_address(name) || is_address(host) || name.eq_ignore_ascii_case("localhost");
        let is_https = gate.https.is_some();
        let origin = self.header(&ORIGIN).and_then(|origin| origin.split_once("://"));
        // A page that came in plain may be changed on its way. A proxy before a plain gateway may have TLS.
        let is_own = origin.is_some_and(|(scheme, at)| at == host && (!is_https || scheme == "https"));
        let is_other = self.headers.contains_key(ORIGIN) && !is_own;
        // A browser verifies the name in the certificate.
        let may_be_named = gate.is_public || is_https;
        is_other && self.origin(gate).is_none() || !may_be_named && !host.is_empty() && !is_local
    }

    /// Says whether the cached state may be new enough for it without a word of a server.
    pub fn may_be_cached(&self) -> bool {
        self.parameter("fresh").is_none_or(|fresh| fresh == "stale") && self.parameter("at_least").is_none()
    }

    /// Says whether it names the root of the keys, in which are answers to others.
    pub fn is_reserved(&self) -> bool {
        matches!(self.route, Route::Object | Route::Watch | Route::Method | Route::Table | Route::Map)
            && self.path[2] == KEYS
    }

    /// The types of answers that it takes, as it says.
    pub fn accepts(&self) -> String {
        let all = self.headers.get_all(ACCEPT).iter();
        all.filter_map(|kinds| kinds.to_str().ok()).collect::<Vec<_>>().join(",")
    }

    /// The coding of its body, if the gateway does not read it.
    pub fn coding(&self) -> Option<String> {
        let all = self.headers.get_all(CONTENT_ENCODING).iter();
        let mut all = all.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        let coded = all.find(|coding| !coding.trim_ascii().eq_ignore_ascii_case(b"identity"))?;
        Some(String::from_utf8_lossy(coded.trim_ascii()).into_owned())
    }

    /// The key under which it is to be executed at most once.
    ///
    /// # Errors
    /// `Invalid` if there are several, or it is too long, or has other characters than visible ASCII.
    pub fn key(&self) -> Result<Option<&str>, Wrong> {
        let mut all = self.headers.get_all(KEY).iter();
        let Some(key) = all.next() else { return Ok(None) };
        let is_visible = |key: &&str| key.bytes().all(|byte| byte.is_ascii_graphic());
        let key = key.to_str().ok().filter(is_visible).filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len()));
        let key = key.filter(|_| all.next().is_none()).ok_or_else(|| {
            let what =
                format!("a key has 1 to {KEY_BYTES_MAX} characters of visible ASCII without spaces, and a request one key");
            Wrong::invalid(what, "send one, such as a UUID".into())
        });
        key.map(Some)
    }

    /// A transaction that reads a state as new as the query says.
    ///
    /// # Errors
    /// `Invalid` if that says something else.
    pub fn transaction<'c>(&self, client: &'c Client) -> Result<Transaction<'c>, Wrong> {
        // Without a time of its own: it does not wait for a server that is away for long.
        let mut tx = client.transaction().isolation(Isolation::Snapshot);
        match self.parameter("fresh").as_deref() {
            None => {}
            Some("strict") => tx = tx.isolation(Isolation::Strict),
            Some("stale") => {
                tx = tx.stale();
                // An object that is not cached cannot come now.
                if outage(client).is_some() {
                    tx = tx.timeout(Duration::ZERO);
                }
            }
            Some(text) => {
                let ms = text.strip_prefix("bounded:").and_then(|ms| ms.parse().ok());
                let next = "say strict, stale or bounded:MS";
                let ms = ms.ok_or_else(|| Wrong::invalid(format!("fresh={}", cut(text)), next.into()))?;
                tx = tx.bounded(Duration::from_millis(ms));
            }
        }
        let Some(text) = self.parameter("at_least") else { return Ok(tx) };
        let next = "give the Tercel-Token of an earlier answer";
        let token: Result<Token, _> = text.parse();
        Ok(tx.at_least(token.map_err(|_| Wrong::invalid(format!("at_least={}", cut(&text)), next.into()))?))
    }

    /// A parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let mut all = self.pairs().filter(|(key, _)| *key == name);
        all.next().map(|(_, value)| unescaped(value))
    }

    /// All parameters of the query.
    pub fn parameters(&self) -> impl Iterator<Item = (String, String)> {
        self.pairs().map(|(key, value)| (unescaped(key), unescaped(value)))
    }

    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.query.split('&').filter_map(|pair| pair.split_once('='))
    }

    pub fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// A part of a path or query with its escapes read; one that is wrong stays as it is.
fn unescaped(part: &str) -> String {
    if !part.contains('%') {
        return part.to_string();
    }
    String::from_utf8_lossy(&read_escapes(part)).into_owned()
}

fn read_escapes(part: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(part.len()), part.as_bytes());
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'%').then(|| tail.get(..2)).flatten();
        let escaped = escaped.and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    bytes
}

/// Why a client has had no server for some time: requests do not wait for one then.
pub fn outage(client: &Client) -> Option<String> {
    let outage = tercel::tools::outage(client).ok().flatten();
    outage.filter(|(time, _)| *time > OUTAGE).map(|(_, why)| why)
}

/// A group mostly has another leader by then.
const OUTAGE: Duration = Duration::from_secs(2);
