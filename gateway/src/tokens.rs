//! Bearers' tokens: JWT (RFC 7519) of issuers that the operator names, signed by keys in files or at URLs
//! (RFC 7517).
//!
//! An issuer has a name of our own, under which its subjects are principals: `token:NAME/SUBJECT`. The
//! algorithm is never the token's choice: a key has one, and the issuer's list must have it. The invariant: a
//! principal is given only for bytes that a key of its issuer has signed, in their time, for this audience.
//!
//! The signatures are checked by `ring`, which TLS uses as well. Libraries for JWT bring a second set of
//! algorithms, or want to be installed for the whole process.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Deserialize;
use tercel::access::Principal;
use tercel::tools::certificates::Anew;
use tercel::tools::wire::access::PRINCIPAL_NAME_BYTES_MAX;

use crate::keysets::{Algorithm, Fetched, Key, keys_of};

/// The issuers whose tokens count, as a file that is read anew once it changes, or one of their keys.
#[derive(Clone)]
pub struct Tokens(Arc<Anew<Arc<Vec<Issuer>>>>);

/// The file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    issuers: Vec<NamedIssuer>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedIssuer {
    /// Our name of it.
    name: String,
    /// Its own, as its tokens say it.
    issuer: String,
    audience: String,
    algorithms: Vec<Algorithm>,
    /// The file of its keys, from the directory of this one, or their URL.
    keys: String,
}

/// An issuer with its keys.
struct Issuer {
    of: NamedIssuer,
    keys: Keys,
}

/// The keys of an issuer.
enum Keys {
    Read(Arc<Vec<Key>>),
    At(Arc<Fetched>),
}

#[derive(Deserialize)]
struct Header {
    alg: Algorithm,
    kid: Option<String>,
    /// Extensions that must be understood: none is.
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    aud: Audience,
    exp: f64,
    nbf: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Some(Vec<String>),
}

/// The subject of a token that counts, and the moment at which it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    pub who: Principal,
    pub until: SystemTime,
}

/// The reason why a token does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// The token is no JWT with an algorithm that is known here.
    #[error("it is no JWT, or of an algorithm that is not taken here")]
    Malformed,
    /// No issuer of this name is in the file.
    #[error("its issuer is not one that counts here")]
    Issuer,
    /// The issuer's list lacks the algorithm.
    #[error("its algorithm is not one of its issuer's")]
    Algorithm,
    /// No key of the issuer has signed it.
    #[error("no key of its issuer has signed it")]
    Signature,
    /// The keys of the issuer could not be fetched so far.
    #[error("the keys of its issuer could not be fetched so far: send it again")]
    NoKeys,
    /// The token is for another audience.
    #[error("it is for another audience")]
    Audience,
    /// The token's time is over, or has not come.
    #[error("its time is over, or has not come")]
    Time,
    /// The subject cannot be a principal.
    #[error("its subject cannot be a principal: 1 to 128 visible characters of ASCII")]
    Subject,
}

/// A file that does not count. Its owner must put another one there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {what}; `tercel gateway --help` shows the form")]
pub struct TokensError {
    file: String,
    what: String,
}

fn wrong(file: &Path, what: String) -> TokensError {
    TokensError { file: file.display().to_string(), what }
}

impl Tokens {
    /// Reads a file of issuers in JSON, and those of their keys.
    ///
    /// # Errors
    /// If a file is missing or is not of its form.
    pub fn open(file: &Path) -> Result<Tokens, TokensError> {
        let mut files = vec![file.to_path_buf()];
        let of_keys =
            |issuer: &NamedIssuer| (!Fetched::is_url(&issuer.keys)).then(|| issuer.keys.clone().into());
        files.extend(named(file)?.iter().filter_map(of_keys));
        let file = file.to_path_buf();
        // Keys that were fetched before the file was changed are still those of their URL.
        let fetched: Mutex<Vec<Arc<Fetched>>> = Mutex::default();
        let make = move || {
            let mut fetched = fetched.lock().unwrap_or_else(PoisonError::into_inner);
            let read = |of| Issuer::read(&file, of, &fetched);
            let issuers = named(&file)?.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
            *fetched = issuers.iter().filter_map(Issuer::fetched).cloned().collect();
            Ok(Arc::new(issuers))
        };
        Ok(Tokens(Arc::new(Anew::open(files, make)?)))
    }

    /// The bearer of a token at this moment.
    ///
    /// # Errors
    /// If it does not count.
    #[doc(hidden)]
    pub fn bearer(&self, token: &str, now: SystemTime) -> Result<Bearer, Unproven> {
        // Others judge theirs meanwhile.
        let issuers = self.0.last(Arc::clone);
        judge(&issuers, token, now)
    }

    /// Looks at the files, and fetches the sets of keys whose time it is.
    pub(crate) fn look(&self) {
        self.0.look();
        let issuers = self.0.last(Arc::clone);
        issuers.iter().filter_map(Issuer::fetched).for_each(|keys| keys.look(Instant::now()));
    }

    /// Has the state of the files be told to Prometheus.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let gauge = Gauge::<i64>::default();
        gauge.set(self.0.problem().is_some().into());
        let help = "1 if new files of tokens do not count, and those before stay in use";
        registry.register("gateway_tokens_outdated", help, gauge);
        let gauge = Gauge::<i64>::default();
        let failing = |all: &Arc<Vec<Issuer>>| {
            all.iter().filter_map(Issuer::fetched).filter(|of| of.is_failing()).count()
        };
        gauge.set(self.0.last(failing) as i64);
        let help = "issuers whose keys could not be fetched the last time";
        registry.register("gateway_tokens_unfetched", help, gauge);
    }
}

/// The issuers of a file.
fn named(file: &Path) -> Result<Vec<NamedIssuer>, TokensError> {
    let text = std::fs::read(file).map_err(|e| wrong(file, e.to_string()))?;
    let named: Named = serde_json::from_slice(&text).map_err(|e| wrong(file, format!("as issuers: {e}")))?;
    let dir = file.parent().unwrap_or(Path::new(""));
    let mut issuers = named.issuers;
    for i in 0..issuers.len() {
        let NamedIssuer { name, issuer, .. } = &issuers[i];
        if Principal::token(name, "-").is_none() {
            let text = format!(
                "`{name}`: a name has 1 to {PRINCIPAL_NAME_BYTES_MAX} letters, digits or characters of -_."
            );
            return Err(wrong(file, text));
        }
        if issuers[..i].iter().any(|before| before.name == *name || before.issuer == *issuer) {
            return Err(wrong(file, format!("the issuer `{name}` is there twice")));
        }
        if issuers[i].algorithms.is_empty() {
            return Err(wrong(file, format!("the issuer `{name}` has no algorithms")));
        }
        match Fetched::is_url(&issuers[i].keys) {
            true => Fetched::check(&issuers[i].keys).map_err(|why| wrong(file, why))?,
            false => issuers[i].keys = dir.join(&issuers[i].keys).display().to_string(),
        }
    }
    Ok(issuers)
}

impl Issuer {
    fn read(file: &Path, of: NamedIssuer, fetched: &[Arc<Fetched>]) -> Result<Issuer, TokensError> {
        if Fetched::is_url(&of.keys) {
            // It answers meanwhile, and takes no token of an issuer whose keys it does not have.
            let known = fetched.iter().find(|keys| keys.is_of(&of.keys, &of.algorithms));
            let keys = known.cloned().unwrap_or_else(|| Fetched::new(&of.keys, &of.algorithms).into());
            keys.look(Instant::now());
            return Ok(Issuer { of, keys: Keys::At(keys) });
        }
        let from = Path::new(&of.keys);
        let text = std::fs::read(from).map_err(|e| wrong(from, e.to_string()))?;
        let keys = keys_of(&text, &of.algorithms).map_err(|why| wrong(from, why))?;
        match keys.is_empty() {
            true => Err(wrong(file, format!("the issuer `{}` has no key of its algorithms", of.name))),
            false => Ok(Issuer { of, keys: Keys::Read(keys.into()) }),
        }
    }

    fn fetched(&self) -> Option<&Arc<Fetched>> {
        match &self.keys {
            Keys::At(keys) => Some(keys),
            Keys::Read(_) => None,
        }
    }

    fn keys(&self) -> Arc<Vec<Key>> {
        match &self.keys {
            Keys::Read(keys) => keys.clone(),
            Keys::At(keys) => keys.keys(),
        }
    }
}

fn judge(issuers: &[Issuer], token: &str, now: SystemTime) -> Result<Bearer, Unproven> {
    let malformed = || Unproven::Malformed;
    if token.len() > TOKEN_BYTES_MAX {
        return Err(Unproven::Malformed);
    }
    let (message, signature) = token.rsplit_once('.').ok_or_else(malformed)?;
    let (header, claims) = message.split_once('.').filter(|(_, c)| !c.contains('.')).ok_or_else(malformed)?;
    let decoded = |part: &str| BASE64.decode(part).map_err(|_| Unproven::Malformed);
    let header: Header = serde_json::from_slice(&decoded(header)?).map_err(|_| Unproven::Malformed)?;
    let claims: Claims = serde_json::from_slice(&decoded(claims)?).map_err(|_| Unproven::Malformed)?;
    if header.crit.is_some() {
        return Err(Unproven::Malformed);
    }
    // Nothing of the claims counts before the signature, but which issuer's keys are tried.
    let issuer = issuers.iter().find(|issuer| issuer.of.issuer == claims.iss).ok_or(Unproven::Issuer)?;
    if !issuer.of.algorithms.contains(&header.alg) {
        return Err(Unproven::Algorithm);
    }
    let signature = decoded(signature)?;
    let all = issuer.keys();
    let may_have = |key: &&Key| key.may_have_signed(header.alg, header.kid.as_deref());
    if let Some(fetched) = issuer.fetched()
        && !all.iter().any(|key| may_have(&key))
    {
        fetched.lacks_one();
        return Err(if all.is_empty() { Unproven::NoKeys } else { Unproven::Signature });
    }
    let mut keys = all.iter().filter(may_have).take(TRIED_MAX);
    if !keys.any(|key| key.has_signed(message.as_bytes(), &signature)) {
        return Err(Unproven::Signature);
    }
    let is_meant = match &claims.aud {
        Audience::One(aud) => *aud == issuer.of.audience,
        Audience::Some(all) => all.contains(&issuer.of.audience),
    };
    if !is_meant {
        return Err(Unproven::Audience);
    }
    let now_s = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let is_timely = claims.exp > now_s && claims.nbf.is_none_or(|nbf| nbf <= now_s + LEEWAY_S);
    if !is_timely {
        return Err(Unproven::Time);
    }
    let who = Principal::token(&issuer.of.name, &claims.sub).ok_or(Unproven::Subject)?;
    let left =
        Duration::try_from_secs_f64((claims.exp - now_s).min(LIFE_MAX_S)).map_err(|_| Unproven::Time)?;
    Ok(Bearer { who, until: now + left })
}

/// Bytes of a token.
const TOKEN_BYTES_MAX: usize = 8 << 10;

/// Keys that are tried for a token without the id of one.
const TRIED_MAX: usize = 8;

/// Seconds by which an issuer's clock may be ahead.
const LEEWAY_S: f64 = 30.0;

/// A token that counts for longer counts for so many seconds from each time that it is shown.
const LIFE_MAX_S: f64 = 86_400.0;

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.0.last(|all| all.iter().map(|issuer| issuer.of.name.clone()).collect());
        write!(f, "Tokens({names:?})")
    }
}
