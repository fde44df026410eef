//! The state that all requests share.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde::Serialize;
use tercel::access::Principal;
use tercel::tools::wire::interface::Interface;
use tercel::tools::wire::layout::Layout;
use tercel::tools::wire::page::class_of;
use tercel::tools::wire::record::HEADER_BYTES;
use tercel::{Addresses, Any, Client, Error, Oref, Tx};
use tokio::sync::{Semaphore, watch};

use crate::Config;
use crate::claims::Claims;
use crate::counts::Counts;
use crate::https::Https;
use crate::json::Fields;
use crate::json::call::cut;
use crate::room::Room;
use crate::tokens::Tokens;

/// Requests that may wait for a server at once, each on a thread of its own; more are refused.
pub const IN_FLIGHT_MAX: usize = 64;
/// Requests for health or counters beside these.
pub const SIGNS_MAX: usize = 8;
/// Bytes of all bodies that are received or in work.
const BODIES_BYTES_MAX: usize = 64 << 20;
/// Bytes of the large ones that are in work: two of the largest.
const LARGE_BODIES_BYTES_MAX: usize = 16 << 20;
/// Streams of events at once, each with a thread; more are refused.
pub const STREAMS_MAX: usize = 128;
/// Time for a server to answer a request.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The state that the requests of one principal share: the gateway's own, or of a caller for which it speaks.
pub struct Gate {
    pub client: Client,
    /// The caller; none is the gateway itself.
    pub caller: Option<Principal>,
    pub offered: Offered,
    common: Arc<Common>,
}

/// The state that all requests share.
pub struct Common {
    /// The gateway's own client, which keeps keys.
    pub own: Client,
    pub servers: Addresses,
    pub https: Option<Https>,
    pub is_public: bool,
    pub tokens: Option<Tokens>,
    /// The sites whose pages may ask, as `Origin` names them.
    pub origins: Vec<String>,
    pub counts: Counts,
    pub in_flight: Arc<Semaphore>,
    pub signs: Arc<Semaphore>,
    /// Bytes of bodies, and of those that are large.
    pub bodies: Arc<Semaphore>,
    pub large_bodies: Arc<Semaphore>,
    pub streams: Arc<Semaphore>,
    pub room: Arc<Room>,
    /// Held while a large reply becomes text: one does at a time.
    pub large_reply: Mutex<()>,
    pub claims: Claims,
    pub stopped: watch::Sender<bool>,
}

impl Deref for Gate {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

impl Gate {
    pub fn new(client: Client, config: &Config) -> Gate {
        let common = Common {
            own: client.clone(),
            servers: config.servers.clone(),
            https: config.https.clone(),
            is_public: config.is_public,
            tokens: config.tokens.clone(),
            origins: config.origins.clone(),
            counts: Counts::new(),
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
            signs: Arc::new(Semaphore::new(SIGNS_MAX)),
            bodies: Arc::new(Semaphore::new(BODIES_BYTES_MAX)),
            large_bodies: Arc::new(Semaphore::new(LARGE_BODIES_BYTES_MAX)),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            room: Arc::default(),
            large_reply: Mutex::default(),
            claims: Claims::default(),
            stopped: watch::channel(false).0,
        };
        Gate { client, caller: None, offered: Offered::default(), common: Arc::new(common) }
    }

    /// The same for a caller, by a client that speaks for it.
    pub fn of_caller(&self, caller: Principal, client: Client) -> Gate {
        let common = self.common.clone();
        Gate { client, caller: Some(caller), offered: Offered::default(), common }
    }

    /// Ends what would never end by itself.
    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }

    pub fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }
}

/// The interfaces that the servers offer, as they were last asked.
#[derive(Debug, Default)]
pub struct Offered(RwLock<Option<(Instant, Vec<Arc<Interface>>)>>);

/// Time after which the servers are asked again. A server that has others by then refuses a call.
const OFFERED_FOR: Duration = Duration::from_secs(2);

impl Offered {
    /// The interfaces, asked for after `since` at the earliest.
    pub fn get(&self, client: &Client, since: Option<Instant>) -> Result<Vec<Arc<Interface>>, Error> {
        let now = Instant::now();
        let is_good = |at: Instant| since.map_or(now - at < OFFERED_FOR, |since| at >= since);
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, known)) = known.filter(|(at, _)| is_good(*at)) {
            return Ok(known);
        }
        let all: Vec<_> = tercel::tools::interfaces(client)?.into_iter().map(Arc::new).collect();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some((now, all.clone()));
        Ok(all)
    }
}

/// The object that a name means: `PAGE.SLOT`, else a root.
pub fn located(tx: &Tx<'_>, name: &str) -> Result<Oref, Error> {
    if let Ok(oref) = name.parse() {
        return Ok(oref);
    }
    match tx.get_root_ref::<Any>(name)? {
        Some(root) => Ok(root.oref()),
        None => Err(Error::NotFound(format!("the root `{}`", cut(name)))),
    }
}

/// An object as JSON.
#[derive(Serialize)]
pub struct Shown<'a> {
    class: &'a str,
    class_id: u16,
    fields: Fields<'a>,
    r#ref: String,
}

impl Shown<'_> {
    pub fn of<'a>(oref: Oref, layout: &'a Layout, object: &'a [u8]) -> Shown<'a> {
        let fields = Fields { layout, body: &object[HEADER_BYTES..], at: 0 };
        Shown { class: layout.name(), class_id: class_of(object).0, fields, r#ref: oref.to_string() }
    }
}
