//! Calls under a key of their caller: executed at most once, at whatever gateways they arrive, and however
//! often.
//!
//! A key is an object of the space. It is claimed by a commit before the call is sent, and its answer is
//! committed beside it before the caller has it. A repetition thus finds the answer, or a claim without one:
//! the call is then under way, or its gateway has ended, and it is not sent a second time. A claim goes again
//! only if it is known that the call was not executed. If the claim was in doubt, or cannot be given back,
//! its gateway knows its nonce, and a repetition there goes on with it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::RETRY_AFTER;
use serde_json::json;
use tercel::collections::Map;
use tercel::{Error, Isolation, Obj, Object, Ref, Text, Transaction, Tx};

use crate::answer::{self, Answer, Content, refused, with};
use crate::asked::Asked;
use crate::calls::Ready;
use crate::claims::KEYS_MAX;
use crate::gate::{Gate, PATIENCE};
use crate::json::call::Wrong;
use crate::route::KEYS as ROOT;

/// Time for which a generation of keys is filled; a key is kept for two such times at least.
const KEPT_MS: u64 = 24 * 3_600 * 1_000;
/// The largest answer that is kept.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// The keys of a space: those of the present day, and those of the two days before. Others are garbage.
#[derive(Object)]
#[object(name = "gateway.Keys")]
struct Keys {
    /// Milliseconds of the Unix clock at which the present day began.
    since_ms: u64,
    today: Map<Text, Key>,
    yesterday: Map<Text, Key>,
    before: Map<Text, Key>,
}

/// A key, and what came of its call.
#[derive(Object)]
#[object(name = "gateway.Key")]
struct Key {
    /// A digest of the request, for a key stands for one.
    digest: [u64; 2],
    /// A number that the claimant alone knows.
    nonce: u64,
    /// Claims by that number: each changes the key, so that a release of an earlier one that comes late is a
    /// conflict.
    claims: u32,
    /// The status of the answer; 0 if there is none yet.
    status: u16,
    answer: Text,
}

/// The state of a key that was to be claimed.
enum Claim {
    /// It is the caller's, in the generation that began then.
    Taken(Ref<Key>, u64),
    /// Another request has it, without an answer so far.
    Open,
    Answered(u16, String),
    /// It stands for another request.
    Other,
    /// It is new, and the gateway takes no more.
    Full,
}

impl Gate {
    /// Calls at most once under a key.
    pub fn call_once(&self, key: &str, asked: &Asked, ready: Result<Ready, Wrong>) -> Result<Answer, Wrong> {
        let digest = digest(asked);
        let mut ready = match ready {
            Ok(ready) => ready,
            // What was called may be gone since, and its answer is still that.
            Err(why) => return self.found(key, digest)?.and_then(|was| answered(key, was)).ok_or(why),
        };
        let nonce = self.claims.nonce(key);
        let claim = self.claim(key, digest, nonce).inspect_err(|_| self.claims.remember(key, nonce))?;
        let Claim::Taken(place, since_ms) = claim else {
            return Ok(answered(key, claim).unwrap_or_else(|| open(key)));
        };
        self.claims.count(since_ms);
        let begun = Instant::now();
        let mut ended = self.call_ready(&ready);
        if let Err(Error::Schema(_)) = ended {
            // The servers may offer something else since they were asked.
            ready = self.ready(asked, Some(begun)).inspect_err(|_| self.release(key, nonce))?;
            ended = self.call_ready(&ready);
        }
        let answer = match ended {
            Ok(reply) => self.told(&ready, reply)?,
            Err(Error::Timeout(Some(op))) => match self.client.resolve_within(*op, PATIENCE) {
                Ok(None) => {
                    self.release(key, nonce);
                    return Err(Error::Unavailable(format!("operation {op} was not executed in time")).into());
                }
                _ => return Err(Error::Timeout(Some(op)).into()),
            },
            Err(e @ Error::Unknown(_)) => return Err(e.into()),
            Err(e @ Error::Failed(_)) => answer::error(&e),
            Err(e) => {
                self.release(key, nonce);
                return Err(e.into());
            }
        };
        self.keep(place, &answer)?;
        Ok(answer)
    }

    /// The state of a key that may be there.
    fn found(&self, key: &str, digest: [u64; 2]) -> Result<Option<Claim>, Error> {
        self.strict().run(|tx| match tx.get_root_ref::<Keys>(ROOT)? {
            Some(keys) => find(tx, &tx.get(keys)?, key, digest, None),
            None => Ok(None),
        })
    }

    /// A transaction that sees what another gateway has written, as a repetition must.
    fn strict(&self) -> Transaction<'_> {
        self.client.transaction().isolation(Isolation::Strict).timeout(PATIENCE)
    }

    fn claim(&self, key: &str, digest: [u64; 2], nonce: u64) -> Result<Claim, Error> {
        let now_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d: Duration| d.as_millis() as u64);
        self.strict().run(|tx| {
            let at = match tx.get_root_ref::<Keys>(ROOT)? {
                Some(keys) => keys,
                None => begin(tx, now_ms)?,
            };
            let keys = tx.get(at)?;
            if let Some(found) = find(tx, &keys, key, digest, Some(nonce))? {
                if let Claim::Taken(place, _) = found {
                    let claims = tx.get(place)?.claims();
                    tx.edit(place)?.set_claims(claims.saturating_add(1))?;
                }
                return Ok(found);
            }
            let (mut since_ms, mut today) = (keys.since_ms(), keys.today());
            if now_ms.saturating_sub(since_ms) >= KEPT_MS {
                let (yesterday, before) = (today, keys.yesterday());
                (since_ms, today) = (now_ms, Map::create(tx)?);
                tx.replace(at, &Keys { since_ms, today, yesterday, before })?;
            } else if since_ms > now_ms {
                // A clock was ahead, and the day would not end before that time.
                since_ms = now_ms;
                tx.edit(at)?.set_since_ms(since_ms)?;
            }
            if self.claims.is_full(since_ms) {
                return Ok(Claim::Full);
            }
            let place = tx.create(&Key { digest, nonce, claims: 1, status: 0, answer: Text::default() })?;
            today.insert(tx, key, place)?;
            Ok(Claim::Taken(place, since_ms))
        })
    }

    /// Writes an answer beside its key. The caller is not told an answer that could not be told again, unless
    /// it is too large for that.
    fn keep(&self, place: Ref<Key>, answer: &Answer) -> Result<(), Error> {
        let body = match answer.body() {
            Content::Whole(Some(body)) => std::str::from_utf8(body).unwrap_or_default(),
            _ => "",
        };
        let (status, body) = match body.len() > KEPT_BYTES_MAX {
            true => (StatusCode::GONE, TOO_LARGE),
            false => (answer.status(), body),
        };
        let kept = self.client.transaction().timeout(PATIENCE).run(|tx| {
            let key = tx.edit(place)?;
            key.set_status(status.as_u16())?;
            key.set_answer(body)
        });
        kept.map_err(|e| Error::Unknown(format!("it was, and its answer could not be kept: {e}")))
    }

    /// Gives a key back whose call was not executed. If that fails, a repetition here goes on with its claim.
    fn release(&self, key: &str, nonce: u64) {
        let released = self.client.transaction().timeout(PATIENCE).run(|tx| {
            let keys = tx.get_root::<Keys>(ROOT)?;
            for day in [keys.today(), keys.yesterday(), keys.before()] {
                if let Some(place) = day.get_ref(tx, key)?
                    && tx.get(place)?.nonce() == nonce
                {
                    day.remove(tx, key)?;
                }
            }
            Ok(())
        });
        if released.is_err() {
            self.claims.remember(key, nonce);
        }
    }
}

/// The state of a key, if it is there; an idle claim of the same nonce is the caller's.
fn find(
    tx: &Tx<'_>,
    keys: &Obj<'_, Keys>,
    key: &str,
    digest: [u64; 2],
    nonce: Option<u64>,
) -> Result<Option<Claim>, Error> {
    for day in [keys.today(), keys.yesterday(), keys.before()] {
        if let Some(place) = day.get_ref(tx, key)? {
            let found = tx.get(place)?;
            return Ok(Some(match (found.digest() == digest, found.status()) {
                (false, _) => Claim::Other,
                (true, 0) if Some(found.nonce()) == nonce => Claim::Taken(place, keys.since_ms()),
                (true, 0) => Claim::Open,
                (true, status) => Claim::Answered(status, found.answer()?.into_owned()),
            }));
        }
    }
    Ok(None)
}

/// The answer to a request whose key is not its own.
fn answered(key: &str, claim: Claim) -> Option<Answer> {
    Some(match claim {
        Claim::Taken(..) => return None,
        Claim::Open => open(key),
        Claim::Answered(status, body) => again(status, body),
        Claim::Other => {
            let what = format!("the key `{key}` was used for another request");
            refused(StatusCode::UNPROCESSABLE_ENTITY, &what, "take a new key for a new request")
        }
        Claim::Full => {
            let what = format!("this gateway has taken {KEYS_MAX} keys today, which are all that it takes");
            refused(StatusCode::SERVICE_UNAVAILABLE, &what, "send it without a key, or to another gateway")
        }
    })
}

/// The digest of a request.
fn digest(asked: &Asked) -> [u64; 2] {
    let parts = asked.path.iter().map(String::as_bytes).chain([&asked.body[..]]);
    let digest = fnv(parts);
    [digest as u64, (digest >> 64) as u64]
}

/// FNV-1a of 128 bits, over parts and their lengths: the same at every gateway, of whatever build.
pub fn fnv<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u128 {
    let add = |sum: u128, byte: &u8| (sum ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
    parts.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |sum, part| {
        let sum = (part.len() as u64).to_le_bytes().iter().fold(sum, add);
        part.iter().fold(sum, add)
    })
}

/// The answer to a repetition whose first answer could not be kept.
const TOO_LARGE: &str =
    r#"{"error":"executed, answer too large to be kept","next":"read what it changed","executed":"yes"}"#;

fn begin(tx: &Tx<'_>, now_ms: u64) -> Result<Ref<Keys>, Error> {
    let keys = Keys {
        since_ms: now_ms,
        today: Map::create(tx)?,
        yesterday: Map::create(tx)?,
        before: Map::create(tx)?,
    };
    let keys = tx.create(&keys)?;
    tx.set_root(ROOT, keys)?;
    Ok(keys)
}

/// An answer that was given before.
fn again(status: u16, body: String) -> Answer {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    answer::of_type(status, "application/json", Bytes::from(body))
}

fn open(key: &str) -> Answer {
    let what = format!(
        "a request with the key `{key}` was begun and has no answer: it is under way, or its gateway has ended before it had one"
    );
    let next = "send it again with this key; if that stays so, look whether it was executed before you take another key";
    let body = json!({ "error": what, "next": next, "executed": "unknown" });
    with(answer::json(StatusCode::CONFLICT, &body), RETRY_AFTER, "1")
}

#[cfg(test)]
mod tests {
    use tercel::{Client, Server};

    use super::*;
    use crate::Config;

    const DIGEST: [u64; 2] = [1, 2];

    #[test]
    fn claims_go_by_nonce_clock_and_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::builder(dir.path()).listen("127.0.0.1:0").start().unwrap();
        let at = server.addresses()[0].clone();
        let gate = Gate::new(Client::connect(&at).unwrap(), &Config::new(at.into(), "127.0.0.1:0"));
        let claim = |key, digest, nonce| gate.claim(key, digest, nonce).unwrap();
        let Claim::Taken(place, _) = claim("k", DIGEST, 7) else { panic!("it is free") };
        // The claimant goes on; nobody else does.
        assert!(matches!(claim("k", DIGEST, 7), Claim::Taken(again, _) if again == place));
        assert!(matches!(claim("k", DIGEST, 8), Claim::Open));
        assert!(matches!(claim("k", [1, 3], 7), Claim::Other));
        gate.release("k", 8);
        assert!(matches!(claim("k", DIGEST, 8), Claim::Open), "another's release");
        gate.claims.remember("k", 7);
        assert_eq!(gate.claims.nonce("k"), 7);
        assert_ne!(gate.claims.nonce("k"), 7, "two repetitions have the claim");
        // An answer beyond the bound leaves that it was executed.
        let large = answer::of_type(StatusCode::OK, "text/plain", "x".repeat(KEPT_BYTES_MAX + 1));
        gate.keep(place, &large).unwrap();
        assert!(matches!(claim("k", DIGEST, 7), Claim::Answered(410, body) if body == TOO_LARGE));
        // A release gives it back.
        assert!(matches!(claim("i", DIGEST, 7), Claim::Taken(..)));
        gate.release("i", 7);
        assert!(matches!(claim("i", DIGEST, 8), Claim::Taken(..)));
        // A day that a clock ahead began ends in a day from now.
        let set =
            |ms| gate.client.run(|tx| tx.edit(tx.get_root_ref::<Keys>(ROOT)?.unwrap())?.set_since_ms(ms));
        set(u64::MAX).unwrap();
        let Claim::Taken(_, since_ms) = claim("j", DIGEST, 1) else { panic!("it is free") };
        assert!(since_ms < u64::MAX);
        // Two turns leave a key, the third does not.
        for (key, is_there) in [("a", true), ("b", true), ("c", false)] {
            set(0).unwrap();
            let Claim::Taken(_, since_ms) = claim(key, DIGEST, 1) else { panic!("it is free") };
            assert!(since_ms > 0);
            assert_eq!(gate.found("k", DIGEST).unwrap().is_some(), is_there);
        }
        let Claim::Taken(_, since_ms) = claim("last", DIGEST, 1) else { panic!("it is free") };
        (0..KEYS_MAX).for_each(|_| gate.claims.count(since_ms));
        assert!(matches!(claim("more", DIGEST, 1), Claim::Full));
        assert!(matches!(claim("last", DIGEST, 1), Claim::Taken(..)));
    }

    #[test]
    fn digest_keeps_parts_apart() {
        // FNV-1a of nothing is its offset. Parts do not run together.
        assert_eq!(fnv([].into_iter()), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_ne!(fnv([&b"ab"[..], b"c"].into_iter()), fnv([&b"a"[..], b"bc"].into_iter()));
    }
}
