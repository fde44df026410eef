//! Sets of keys (RFC 7517): the public keys of issuers, in a file or at a URL.
//!
//! A set at a URL is fetched with the first look, again after an hour, and after a minute where a token names
//! a key that it lacks. The invariant: keys count for a day at most after the last fetch that had them, and
//! nothing that callers send has a set fetched more often than once a minute.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;

use crate::fetch::{check, fetch};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Algorithm {
    ES256,
    EdDSA,
    RS256,
}

/// A public key of an issuer.
pub struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: Bytes,
}

/// The bytes of a public key.
enum Bytes {
    /// A point, or what the algorithm takes for one.
    Whole(Vec<u8>),
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
}

/// A set of keys. Keys for other uses and of other kinds are left out.
#[derive(Deserialize)]
struct KeySet {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct NamedKey {
    kid: Option<String>,
    r#use: Option<String>,
    alg: Option<String>,
    kty: String,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
    n: Option<String>,
    e: Option<String>,
}

impl Key {
    /// A key that may sign by one of these algorithms.
    fn of(key: serde_json::Value, algorithms: &[Algorithm]) -> Option<Key> {
        let key: NamedKey = serde_json::from_value(key).ok()?;
        let bytes = |text: &Option<String>| BASE64.decode(text.as_deref()?).ok();
        let (algorithm, name, material) = match (key.kty.as_str(), key.crv.as_deref()) {
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes(&key.x)?, bytes(&key.y)?);
                let point = [&[UNCOMPRESSED][..], &x, &y].concat();
                let whole = (x.len() == 32 && y.len() == 32).then_some(Bytes::Whole(point));
                (Algorithm::ES256, "ES256", whole?)
            }
            ("OKP", Some("Ed25519")) => (Algorithm::EdDSA, "EdDSA", Bytes::Whole(bytes(&key.x)?)),
            ("RSA", _) => (Algorithm::RS256, "RS256", Bytes::Rsa { n: bytes(&key.n)?, e: bytes(&key.e)? }),
            _ => return None,
        };
        let is_for_this = key.r#use.is_none_or(|of| of == "sig") && key.alg.is_none_or(|alg| alg == name);
        let is_taken = is_for_this && algorithms.contains(&algorithm);
        is_taken.then_some(Key { id: key.kid, algorithm, key: material })
    }

    /// Says whether a token by this algorithm, which may name its key, can be of this one.
    pub fn may_have_signed(&self, algorithm: Algorithm, id: Option<&str>) -> bool {
        self.algorithm == algorithm && (id.is_none() || self.id.is_none() || self.id.as_deref() == id)
    }

    pub fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match (&self.key, self.algorithm) {
            (Bytes::Whole(key), Algorithm::ES256) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key).verify(message, signature)
            }
            (Bytes::Whole(key), _) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
            (Bytes::Rsa { n, e }, _) => {
                let key = RsaPublicKeyComponents { n, e };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
        };
        verified.is_ok()
    }
}

/// The keys of a set that may sign by one of these algorithms.
///
/// # Errors
/// A sentence: it is no set of keys.
pub fn keys_of(text: &[u8], algorithms: &[Algorithm]) -> Result<Vec<Key>, String> {
    let set: KeySet = serde_json::from_slice(text).map_err(|e| format!("as a set of keys: {e}"))?;
    Ok(set.keys.into_iter().filter_map(|key| Key::of(key, algorithms)).collect())
}

/// A set of keys at a URL.
pub struct Fetched {
    url: String,
    algorithms: Vec<Algorithm>,
    state: Mutex<State>,
}

struct State {
    keys: Arc<Vec<Key>>,
    /// When they were fetched.
    fetched: Option<Instant>,
    /// The last attempt, and whether it failed.
    tried: Option<Instant>,
    has_failed: bool,
    /// A token has named a key that is not among them.
    lacks_one: bool,
}

impl Fetched {
    /// Has no keys before the first look.
    pub fn new(url: &str, algorithms: &[Algorithm]) -> Fetched {
        let (keys, fetched, tried, has_failed, lacks_one) = (Arc::default(), None, None, false, false);
        let state = Mutex::new(State { keys, fetched, tried, has_failed, lacks_one });
        Fetched { url: url.into(), algorithms: algorithms.to_vec(), state }
    }

    /// Says whether it is this set.
    pub fn is_of(&self, url: &str, algorithms: &[Algorithm]) -> bool {
        self.url == url && self.algorithms == algorithms
    }

    /// Says whether a place is a URL, and no file.
    pub fn is_url(place: &str) -> bool {
        place.contains("://")
    }

    /// Checks that keys may be fetched there.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(url: &str) -> Result<(), String> {
        check(url).map(drop)
    }

    /// The keys as they were fetched last; none if that is too long ago.
    pub fn keys(&self) -> Arc<Vec<Key>> {
        self.state().keys.clone()
    }

    /// A token names a key that is not here.
    pub fn lacks_one(&self) {
        self.state().lacks_one = true;
    }

    /// Says whether the last attempt to fetch them has failed.
    pub fn is_failing(&self) -> bool {
        self.state().has_failed
    }

    /// Fetches them if it is time. Others use those before meanwhile.
    pub fn look(&self, now: Instant) {
        if !self.state().is_due(now) {
            return;
        }
        let fetched = fetch(&self.url).and_then(|text| keys_of(&text, &self.algorithms));
        let fetched = fetched.and_then(|keys| match keys.is_empty() {
            true => Err("the set has no key of the issuer's algorithms".to_string()),
            false => Ok(keys),
        });
        let mut state = self.state();
        state.tried = Some(now);
        state.has_failed = fetched.is_err();
        match fetched {
            Ok(keys) => (state.keys, state.fetched, state.lacks_one) = (keys.into(), Some(now), false),
            Err(_) if state.fetched.is_some_and(|at| now.duration_since(at) >= OLD) => {
                state.keys = Arc::default();
            }
            Err(_) => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_due(&self, now: Instant) -> bool {
        let Some(tried) = self.tried else { return true };
        let since = now.duration_since(tried);
        match self.has_failed {
            true => since >= AFTER_FAILURE,
            false => since >= if self.lacks_one { FOR_ONE_MORE } else { KEPT },
        }
    }
}

/// Time for which a set is kept.
const KEPT: Duration = Duration::from_secs(3_600);

/// Time between two fetches because of a key that a token names.
const FOR_ONE_MORE: Duration = Duration::from_secs(60);

/// Time between two attempts to fetch a set that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// Time for which keys count that cannot be fetched again.
const OLD: Duration = Duration::from_secs(86_400);

/// The first byte of a point of which both numbers stand.
const UNCOMPRESSED: u8 = 4;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// A server of sets at a URL: each answer is the next that was given to it.
    fn served() -> (Sender<String>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/keys?of=corp", listener.local_addr().unwrap());
        let (answers, given) = channel::<String>();
        std::thread::spawn(move || {
            for answer in given {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut asked, mut some) = (Vec::new(), [0; 1_024]);
                while !asked.ends_with(b"\r\n\r\n") {
                    let n = stream.read(&mut some).unwrap();
                    asked.extend_from_slice(&some[..n]);
                }
                assert!(asked.starts_with(b"GET /keys?of=corp HTTP/1.1\r\n"), "{asked:?}");
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        (answers, url)
    }

    fn ok(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    fn set(id: &str) -> String {
        let key = BASE64.encode([7; 32]);
        ok(&format!(
            "{{\"keys\": [{{\"kty\": \"OKP\", \"crv\": \"Ed25519\", \"kid\": \"{id}\", \"x\": \"{key}\"}}]}}"
        ))
    }

    fn ids(of: &Fetched) -> Vec<String> {
        of.keys().iter().filter_map(|key| key.id.clone()).collect()
    }

    #[test]
    fn set_is_fetched_hourly_and_for_new_keys() {
        let (answers, url) = served();
        let (keys, begun) = (Fetched::new(&url, &[Algorithm::EdDSA]), Instant::now());
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        answers.send(set("a")).unwrap();
        keys.look(at(0));
        assert_eq!(ids(&keys), ["a"]);
        keys.look(at(3_599));
        // Tokens that name other keys have it fetched once a minute.
        keys.lacks_one();
        keys.look(at(59));
        answers.send(set("b")).unwrap();
        keys.look(at(60));
        assert_eq!(ids(&keys), ["b"]);
        answers.send(set("c")).unwrap();
        keys.look(at(60 + 3_600));
        assert_eq!(ids(&keys), ["c"]);
    }

    #[test]
    fn unfetched_keys_count_for_a_day() {
        let (answers, url) = served();
        let (keys, begun) = (Fetched::new(&url, &[Algorithm::EdDSA]), Instant::now());
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        answers.send(set("a")).unwrap();
        keys.look(at(0));
        let refusals = [
            "HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n".to_string(),
            ok("[]"),
            ok("{\"keys\": []}"),
            "HTTP/1.1 302 Found\r\nLocation: /else\r\nContent-Length: 0\r\n\r\n".into(),
            ok(&" ".repeat(2 << 20)),
            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort".into(),
        ];
        for (refusal, second) in refusals.into_iter().zip((3_600..).step_by(10)) {
            answers.send(refusal).unwrap();
            keys.look(at(second));
            assert_eq!((ids(&keys), keys.is_failing()), (vec!["a".to_string()], true));
        }
        answers.send(ok("{}")).unwrap();
        keys.look(at(86_400));
        assert!(ids(&keys).is_empty());
        answers.send(set("b")).unwrap();
        keys.look(at(86_410));
        assert_eq!((ids(&keys), keys.is_failing()), (vec!["b".to_string()], false));
    }
}
