//! Callers by their certificates or tokens: a client of the space for each, which speaks for it.
//!
//! Rights are judged by the servers, for each caller as if it had come itself; the gateway decides nothing.
//! Each has a cache of its own, so that none reads what another may. The invariant: a gate is given to
//! requests of its caller alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hyper::StatusCode;
use hyper::header::WWW_AUTHENTICATE;
use tercel::access::Principal;
use tercel::{Addresses, Client, ClientConfig, Error};
use tokio::sync::Semaphore;
use tokio::{task, time};

use crate::Config;
use crate::answer::{self, Answer, refused, with};
use crate::asked::Asked;
use crate::gate::Gate;
use crate::route::Route;
use crate::tokens::{Bearer, Tokens, Unproven};

/// The callers that have a client.
pub struct Callers {
    own: Arc<Gate>,
    servers: Addresses,
    config: ClientConfig,
    /// Callers are known by their certificates, too.
    by_certificate: bool,
    all: Mutex<HashMap<Principal, Seat>>,
    dials: Arc<Semaphore>,
}

struct Seat {
    gate: Arc<Gate>,
    used: Instant,
}

/// Callers with a client at once. One beyond them takes the place of one without a request.
const CALLERS_MAX: usize = 64;

/// Time for a caller to wait until others are connected.
const DIAL_WAIT: Duration = Duration::from_secs(10);

/// Clients that are connected at the same time.
pub const DIALS_MAX: usize = 4;

/// The part of the gateway's cache that a caller's has, and its bounds in bytes.
const CACHE_SHARE: usize = 16;
const CACHE_BYTES: std::ops::RangeInclusive<usize> = 1 << 20..=64 << 20;

impl Callers {
    pub fn new(own: Arc<Gate>, of: &Config, config: ClientConfig) -> Callers {
        let cache_bytes = (config.cache_bytes / CACHE_SHARE).clamp(*CACHE_BYTES.start(), *CACHE_BYTES.end());
        let config = ClientConfig { cache_bytes, ..config };
        let servers = of.servers.clone();
        let by_certificate = of.speaks_for_callers;
        Callers {
            own,
            servers,
            by_certificate,
            config,
            all: Mutex::default(),
            dials: Arc::new(Semaphore::new(DIALS_MAX)),
        }
    }

    /// Looks at the files of tokens again and again, until it is dropped.
    pub async fn look(self: Arc<Callers>) {
        while let Some(tokens) = self.own.tokens.clone() {
            time::sleep(LOOK).await;
            // A disk may take its time.
            let _ = task::spawn_blocking(move || tokens.look()).await;
        }
    }

    /// The gate of a caller, with a client that the servers take.
    async fn gate(self: &Arc<Callers>, caller: Principal) -> Result<Arc<Gate>, Refusal> {
        if let Some(gate) = self.known(&caller) {
            return Ok(gate);
        }
        let dial = time::timeout(DIAL_WAIT, self.dials.clone().acquire_owned());
        let Ok(Ok(dial)) = dial.await else { return Err(Refusal::Busy) };
        let at = self.clone();
        // It ends, and gives its place back, whether or not the caller still waits.
        let found = task::spawn_blocking(move || {
            let found = at.find(caller);
            drop(dial);
            found
        });
        let found = found.await;
        found.unwrap_or(Err(Refusal::Broken))
    }

    fn find(&self, caller: Principal) -> Result<Arc<Gate>, Refusal> {
        if let Some(gate) = self.known(&caller) {
            return Ok(gate);
        }
        let config = ClientConfig { on_behalf_of: Some(caller.clone()), ..self.config.clone() };
        let client = Client::connect_with(self.servers.clone(), config).map_err(Refusal::Space)?;
        // Another request of the caller may have connected meanwhile: then this client is of no use.
        if let Some(gate) = self.known(&caller) {
            return Ok(gate);
        }
        let gate = Arc::new(self.own.of_caller(caller.clone(), client));
        let (left, given) = {
            let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            let is_idle = |seat: &&Seat| Arc::strong_count(&seat.gate) == 1;
            let idle = all.iter().filter(|(_, seat)| is_idle(seat)).min_by_key(|(_, seat)| seat.used);
            let is_full = all.len() >= CALLERS_MAX && !all.contains_key(&caller);
            let idle = idle.map(|(caller, _)| caller.clone()).filter(|_| is_full);
            let left = idle.and_then(|idle| all.remove(&idle));
            if is_full && left.is_none() {
                return Err(Refusal::Full);
            }
            (left, all.insert(caller, Seat { gate: gate.clone(), used: Instant::now() }))
        };
        // A client that ends may wait for its thread: nobody waits for that here.
        drop((left, given));
        Ok(gate)
    }

    /// The gate of a caller whose client the servers still take.
    fn known(&self, caller: &Principal) -> Option<Arc<Gate>> {
        let gate = {
            let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            let seat = all.get_mut(caller)?;
            seat.used = Instant::now();
            seat.gate.clone()
        };
        // It does not wait: only one that was refused for good is known to be.
        let begun = gate.client.transaction().timeout(Duration::ZERO).begin();
        match begun {
            Err(Error::Denied(_) | Error::OtherHistory(_) | Error::Schema(_)) => None,
            _ => Some(gate),
        }
    }
}

/// The reason why a caller has no client.
pub enum Refusal {
    /// The caller has shown neither a certificate that names a client nor, where tokens are taken, a token.
    Unnamed { takes_tokens: bool },
    /// The caller's token does not count.
    Unproven(Unproven),
    /// All places of callers have requests under way.
    Full,
    /// Others are being connected.
    Busy,
    /// The servers do not take it, or do not answer.
    Space(Error),
    /// The gateway has failed.
    Broken,
}

/// Time between two looks at the files of tokens.
const LOOK: Duration = Duration::from_secs(10);

/// The way from a connection to the gate of each request.
pub struct Door {
    own: Arc<Gate>,
    /// None if the gateway speaks for itself alone.
    callers: Option<Arc<Callers>>,
    /// The client that the connection's certificate names.
    named: Option<Principal>,
    /// The last token, its bearer, and when it was judged: most connections bear one. Keys may be taken back.
    last: Mutex<Option<(String, Bearer, Instant)>>,
}

impl Door {
    pub fn new(own: Arc<Gate>, callers: Option<Arc<Callers>>, named: Option<Principal>) -> Door {
        Door { own, callers, named, last: Mutex::default() }
    }

    /// The gateway's own gate.
    pub fn own(&self) -> &Arc<Gate> {
        &self.own
    }

    /// Says whether a request is the gateway's own: all if it speaks for nobody, else those that tell of no
    /// object, which watchers and beginners ask for that have no token yet.
    pub fn is_own(&self, asked: &Asked) -> bool {
        self.callers.is_none() || matches!(asked.route, Route::Console | Route::Health)
    }

    /// The gate of a request of a caller. Its bearer is known until the end that the request has from then
    /// on.
    ///
    /// # Errors
    /// The reason why there is none.
    pub async fn gate(&self, asked: &mut Asked) -> Result<Arc<Gate>, Refusal> {
        let Some(callers) = &self.callers else { return Ok(self.own.clone()) };
        let takes_tokens = self.own.tokens.is_some();
        let caller = match (&self.own.tokens, asked.token()) {
            (Some(tokens), Some(token)) => {
                let Bearer { who, until } = self.bearer(tokens, token).map_err(Refusal::Unproven)?;
                asked.until = Some(until);
                who
            }
            _ => {
                let named = self.named.as_ref().filter(|_| callers.by_certificate);
                named.cloned().ok_or(Refusal::Unnamed { takes_tokens })?
            }
        };
        callers.gate(caller).await
    }

    fn bearer(&self, tokens: &Tokens, token: &str) -> Result<Bearer, Unproven> {
        let now = SystemTime::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((known, bearer, judged))
                if known == token && now < bearer.until && judged.elapsed() < LOOK =>
            {
                Ok(bearer.clone())
            }
            _ => {
                let bearer = tokens.bearer(token, now)?;
                *last = Some((token.into(), bearer.clone(), Instant::now()));
                Ok(bearer)
            }
        }
    }
}

impl Refusal {
    /// The answer to all that the caller asks on this connection.
    pub fn answer(&self) -> Answer {
        let (status, what, next) = match self {
            Refusal::Unnamed { takes_tokens: true } => {
                let what = "this gateway speaks for callers, and does not know you";
                let next = "send a token of an issuer that counts here: `Authorization: Bearer TOKEN`";
                return with(refused(StatusCode::UNAUTHORIZED, what, next), WWW_AUTHENTICATE, "Bearer");
            }
            Refusal::Unproven(why) => {
                let answer =
                    refused(StatusCode::UNAUTHORIZED, &format!("your token: {why}"), "ask for another one");
                return with(answer, WWW_AUTHENTICATE, "Bearer error=\"invalid_token\"");
            }
            Refusal::Unnamed { takes_tokens: false } => {
                let what = "this gateway speaks for clients by their names, and your certificate names none";
                (
                    StatusCode::FORBIDDEN,
                    what.into(),
                    "show one for tercel://client/NAME (`tercel cert client NAME`)",
                )
            }
            Refusal::Full => {
                let what = format!(
                    "{CALLERS_MAX} callers have requests under way, which are all for whom this gateway speaks"
                );
                (StatusCode::SERVICE_UNAVAILABLE, what, "come back later, or ask another gateway")
            }
            Refusal::Busy => {
                let what = "the gateway connects for other callers, and the servers are slow";
                (StatusCode::SERVICE_UNAVAILABLE, what.into(), "send it again")
            }
            Refusal::Space(e) => return answer::error(e),
            Refusal::Broken => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "the gateway failed to connect for you".into(),
                "report it",
            ),
        };
        refused(status, &what, next)
    }
}
