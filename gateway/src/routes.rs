//! The routes, and what is answered there.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, ETAG, HeaderMap, HeaderName, IF_NONE_MATCH};
use hyper::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tercel::group::{health_of, status_of};
use tercel::tools::stored;
use tercel::tools::wire::layout::Layout;
use tercel::tools::wire::page::class_of;
use tercel::tools::wire::record::HEADER_BYTES;
use tercel::{Addresses, Client, Error, HealthState, Isolation, Oref, Token, Transaction, Tx};
use tokio::sync::{Semaphore, watch};

use crate::Config;
use crate::answer::{self, Answer, of_type, refused, with};
use crate::calls::Offered;
use crate::counts::{Counts, Told};
use crate::http::IN_FLIGHT_MAX;
use crate::json::call::Wrong;
use crate::json::record;
use crate::status::{self, OPEN_METRICS};
use crate::watch::WATCHES_MAX;

/// A route, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Console,
    OpenApi,
    Health,
    Status,
    Metrics,
    Roots,
    Services,
    Object,
    Watch,
    Method,
    Procedure,
    None,
}

impl Route {
    pub const ALL: [Route; 12] = [
        Route::Console,
        Route::OpenApi,
        Route::Health,
        Route::Status,
        Route::Metrics,
        Route::Roots,
        Route::Services,
        Route::Object,
        Route::Watch,
        Route::Method,
        Route::Procedure,
        Route::None,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Route::Console => "/",
            Route::OpenApi => "/openapi.json",
            Route::Health => "/v1/health",
            Route::Status => "/v1/status",
            Route::Metrics => "/metrics",
            Route::Roots => "/v1/roots",
            Route::Services => "/v1/services",
            Route::Object => "/v1/objects/{object}",
            Route::Watch => "/v1/watch/{object}",
            Route::Method => "/v1/objects/{object}/{method}",
            Route::Procedure => "/v1/services/{service}/{procedure}",
            Route::None => "none",
        }
    }

    /// The HTTP method that it takes.
    fn method(self) -> Method {
        match self {
            Route::Method | Route::Procedure => Method::POST,
            _ => Method::GET,
        }
    }

    fn of(path: &[String]) -> Route {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        match path[..] {
            [""] => Route::Console,
            ["openapi.json"] => Route::OpenApi,
            ["v1", "health"] => Route::Health,
            ["v1", "status"] => Route::Status,
            ["metrics"] => Route::Metrics,
            ["v1", "roots"] => Route::Roots,
            ["v1", "services"] => Route::Services,
            ["v1", "objects", _] => Route::Object,
            ["v1", "watch", _] => Route::Watch,
            ["v1", "objects", _, _] => Route::Method,
            ["v1", "services", _, _] => Route::Procedure,
            _ => Route::None,
        }
    }
}

/// A request.
#[derive(Debug)]
pub struct Asked {
    pub route: Route,
    is_allowed: bool,
    /// The parts of the path, without escapes.
    pub path: Vec<String>,
    query: String,
    headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Asked {
    /// Reads the head of a request, and leaves its body.
    pub fn of(request: Request<Incoming>) -> (Asked, Incoming) {
        let (head, body) = request.into_parts();
        let path: Vec<String> = head.uri.path().split('/').skip(1).map(|part| unescaped(part)).collect();
        let route = Route::of(&path);
        let is_allowed =
            head.method == route.method() || head.method == Method::HEAD && route.method() == Method::GET;
        let query = head.uri.query().unwrap_or_default().to_string();
        (Asked { route, is_allowed, path, query, headers: head.headers, body: Vec::new() }, body)
    }

    /// Says whether it is answered by a stream of events.
    pub fn wants_events(&self) -> bool {
        let takes = |kind: &str| self.header(&ACCEPT).is_some_and(|kinds| kinds.contains(kind));
        self.is_allowed
            && match self.route {
                Route::Watch => true,
                Route::Status => takes("text/event-stream"),
                _ => false,
            }
    }

    /// A parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| unescaped(value)).next()
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
    let (mut bytes, mut rest) = (Vec::with_capacity(part.len()), part.as_bytes());
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'%').then(|| tail.get(..2)).flatten();
        let escaped = escaped.and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The age that a read may have.
#[derive(Debug, Clone, Copy, Default)]
struct Fresh {
    isolation: Option<Isolation>,
    age: Option<Duration>,
    is_stale: bool,
    at_least: Option<Token>,
}

impl Fresh {
    fn of(asked: &Asked) -> Result<Fresh, Wrong> {
        let mut fresh = Fresh::default();
        match asked.parameter("fresh").as_deref() {
            None => {}
            Some("strict") => fresh.isolation = Some(Isolation::Strict),
            Some("stale") => fresh.is_stale = true,
            Some(text) => {
                let ms = text.strip_prefix("bounded:").and_then(|ms| ms.parse().ok());
                let wrong =
                    || Wrong::invalid(format!("fresh={text}"), "say strict, stale or bounded:MS".into());
                fresh.age = Some(Duration::from_millis(ms.ok_or_else(wrong)?));
            }
        }
        if let Some(text) = asked.parameter("at_least") {
            let wrong = |_| {
                Wrong::invalid(
                    format!("at_least={text}"),
                    "give the Tercel-Token of an earlier answer".into(),
                )
            };
            fresh.at_least = Some(text.parse().map_err(wrong)?);
        }
        Ok(fresh)
    }

    /// A transaction that reads in this way.
    fn transaction<'c>(&self, client: &'c Client, timeout: Duration) -> Transaction<'c> {
        let mut tx = client.transaction().timeout(timeout);
        tx = tx.isolation(self.isolation.unwrap_or(Isolation::Snapshot));
        if let Some(age) = self.age {
            tx = tx.bounded(age);
        }
        if self.is_stale {
            tx = tx.stale();
        }
        match self.at_least {
            Some(token) => tx.at_least(token),
            None => tx,
        }
    }
}

/// The state that all requests share.
pub struct Gate {
    pub client: Client,
    servers: Addresses,
    pub counts: Arc<Counts>,
    pub in_flight: Arc<Semaphore>,
    pub streams: Arc<Semaphore>,
    pub offered: Offered,
    begun: Instant,
    /// Microseconds after `begun` until which nothing is read from the cache without a thread that may wait.
    wait_until_us: AtomicU64,
    pub stopped: watch::Sender<bool>,
}

impl Gate {
    pub fn new(client: Client, config: &Config) -> Gate {
        Gate {
            client,
            servers: config.servers.clone(),
            counts: Arc::default(),
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
            streams: Arc::new(Semaphore::new(WATCHES_MAX)),
            offered: Offered::default(),
            begun: Instant::now(),
            wait_until_us: AtomicU64::new(0),
            stopped: watch::channel(false).0,
        }
    }

    /// Ends what would never end by itself.
    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// The answer, if it can be given without a wait.
    pub fn from_cache(&self, asked: &Asked) -> Option<Answer> {
        let now_us = || self.begun.elapsed().as_micros() as u64;
        let may_wait = self.wait_until_us.load(Ordering::Relaxed) > now_us();
        if asked.route != Route::Object || !asked.is_allowed || may_wait {
            return None;
        }
        let fresh = Fresh::of(asked).ok().filter(|fresh| fresh.isolation.is_none())?;
        match self.object(asked, &fresh, Duration::ZERO) {
            Ok(answer) => Some(answer),
            Err(Wrong::Space(Error::Unavailable(_))) => {
                // A client without a server makes its callers pause.
                self.wait_until_us.store(now_us() + OUTAGE_US, Ordering::Relaxed);
                None
            }
            Err(_) => None,
        }
    }

    /// The answer, whatever it takes.
    pub fn answer(&self, asked: &Asked) -> Answer {
        if asked.route == Route::None {
            let what = format!("there is nothing at /{}", asked.path.join("/"));
            return refused(StatusCode::NOT_FOUND, &what, "GET /openapi.json lists what there is");
        }
        if !asked.is_allowed {
            let method = asked.route.method();
            let what = format!("{} takes {method}", asked.route.name());
            let answer = refused(StatusCode::METHOD_NOT_ALLOWED, &what, &format!("send it as {method}"));
            return with(answer, ALLOW, method.as_str());
        }
        let answer = match asked.route {
            Route::Health => self.health(),
            Route::Status => {
                self.status().map(|status| answer::json(StatusCode::OK, &status)).map_err(Wrong::from)
            }
            Route::Metrics => Ok(self.metrics()),
            Route::Roots => self.roots(asked),
            Route::Object => Fresh::of(asked).and_then(|fresh| self.object(asked, &fresh, PATIENCE)),
            Route::Services => self.services(),
            Route::Method | Route::Procedure => self.call(asked),
            Route::Console => Ok(of_type(StatusCode::OK, "text/html; charset=utf-8", CONSOLE)),
            Route::OpenApi => self.openapi(),
            Route::Watch | Route::None => unreachable!("it was answered before"),
        };
        answer.unwrap_or_else(|why| answer::wrong(&why))
    }

    /// The first of the servers that answers: one that waits to be asked again is as good as none.
    fn health(&self) -> Result<Answer, Wrong> {
        let (mut last, mut failed) = (None, Error::Timeout(None));
        for server in self.servers.iter() {
            match health_of(server, ASK) {
                Ok(health) => {
                    let serves = matches!(health.state, HealthState::Serving | HealthState::Following);
                    last = Some(health);
                    if serves {
                        break;
                    }
                }
                Err(e) => failed = e,
            }
        }
        let Some(health) = last else { return Err(failed.into()) };
        let (state, serves) = match health.state {
            HealthState::Serving => ("serving", true),
            HealthState::Following => ("following", true),
            HealthState::ReadOnly => ("read-only", false),
            HealthState::Draining => ("draining", false),
            HealthState::NotLeading => ("not leading", false),
        };
        let (seconds, calls) = (health.uptime.as_secs(), health.calls);
        let body =
            json!({ "state": state, "reason": health.reason, "uptime_seconds": seconds, "calls": calls });
        let status = if serves { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        Ok(answer::json(status, &body))
    }

    /// The status of the server that leads, else of any that answers.
    pub fn status(&self) -> Result<Value, Error> {
        let (mut found, mut failed) = (None, Error::Timeout(None));
        for server in self.servers.iter() {
            match status_of(server, ASK) {
                Ok(status) => {
                    let status: Value = serde_json::from_str(&status)
                        .map_err(|e| Error::Corrupt(format!("the server's status: {e}")))?;
                    let leads = status["group"]["leads"] != false;
                    found = Some(status);
                    if leads {
                        break;
                    }
                }
                Err(e) => failed = e,
            }
        }
        found.ok_or(failed)
    }

    /// The counts of the gateway, and of the servers if they answer.
    fn metrics(&self) -> Answer {
        let mut registry = status::registry();
        registry.register_collector(Box::new(Told(self.counts.clone())));
        if let Ok(status) = self.status() {
            status::add(&mut registry, status);
        }
        match status::written(&registry) {
            Ok(body) => of_type(StatusCode::OK, OPEN_METRICS, body),
            Err(e) => refused(StatusCode::INTERNAL_SERVER_ERROR, &format!("counters: {e}"), "report it"),
        }
    }

    fn roots(&self, asked: &Asked) -> Result<Answer, Wrong> {
        let roots = Fresh::of(asked)?.transaction(&self.client, PATIENCE).run(|tx| tx.roots())?;
        let roots: Vec<Value> =
            roots.iter().map(|(name, r)| json!({ "name": name, "ref": r.oref().to_string() })).collect();
        Ok(answer::json(StatusCode::OK, &json!({ "roots": roots })))
    }

    /// An object, by its reference or the root that it is.
    fn object(&self, asked: &Asked, fresh: &Fresh, patience: Duration) -> Result<Answer, Wrong> {
        let name = &asked.path[2];
        let read = |tx: &Tx<'_>| {
            let oref = located(tx, name)?;
            let (layout, object) =
                stored(tx, oref)?.ok_or_else(|| Error::NotFound(format!("object {oref}")))?;
            Ok((tx.as_of().token, oref, layout, object))
        };
        let transaction = fresh.transaction(&self.client, patience);
        let read = match patience.is_zero() {
            true => transaction.begin().and_then(|tx| read(&tx)),
            false => transaction.run(read),
        };
        let (token, oref, layout, object) = read?;
        let tag = tag(oref, &object);
        let has = asked.header(&IF_NONE_MATCH).is_some_and(|tags| {
            tags == "*" || tags.split(',').any(|has| has.trim().trim_start_matches("W/") == tag)
        });
        let answer = match has {
            true => of_type(StatusCode::NOT_MODIFIED, JSON, ""),
            false => answer::json(StatusCode::OK, &shown(oref, &layout, &object)),
        };
        let answer = with(with(answer, ETAG, &tag), CACHE_CONTROL, "no-cache");
        Ok(with(answer, TOKEN, &token.to_string()))
    }
}

/// The object that a name means: `PAGE.SLOT`, else a root.
pub fn located(tx: &Tx<'_>, name: &str) -> Result<Oref, Error> {
    if let Ok(oref) = name.parse() {
        return Ok(oref);
    }
    match tx.get_root_ref::<tercel::Any>(name)? {
        Some(root) => Ok(root.oref()),
        None => Err(Error::NotFound(format!("the root `{name}`"))),
    }
}

/// An object as JSON.
pub fn shown(oref: Oref, layout: &Layout, object: &[u8]) -> Value {
    json!({
        "ref": oref.to_string(),
        "class": layout.name(),
        "class_id": class_of(object).0,
        "fields": record(layout, &object[HEADER_BYTES..], 0),
    })
}

/// The entity tag of an object: the same bytes have the same one at every gateway, and an object that changes
/// has another. A stamp would change with every commit of the space, for objects have none of their own.
fn tag(oref: Oref, object: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    (oref.raw(), object).hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

const JSON: &str = "application/json";

/// The header of the state that an answer is of: `at_least` and `Last-Event-ID` take it.
const TOKEN: HeaderName = HeaderName::from_static("tercel-token");

/// The console: one page, which fetches nothing from elsewhere.
const CONSOLE: &str = include_str!("console.html");

/// Time for a server to answer a request.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Time for each server to say how it is.
const ASK: Duration = Duration::from_secs(2);
/// Microseconds for which requests go to threads that may wait, after one that found no server.
const OUTAGE_US: u64 = 200_000;
