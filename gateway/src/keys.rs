//! Calls of procedures that are not `#[once]`, under a key of their caller: executed at most once, at
//! whatever gateways they arrive, and however often. Of other calls the server keeps the answers.
//!
//! A key is an object of the space. It is claimed by a commit before the call is sent, and its answer is
//! committed beside it before the caller has it. A repetition thus finds the answer, or a claim without one:
//! the call is then under way, or its gateway has ended, and it is not sent a second time. A claim goes again
//! only if it is known that the call was not executed. If the claim was in doubt, or cannot be given back,
//! its gateway knows its nonce, and a repetition there goes on with it.
//!
//! Clocks that tell the date decide nothing: an hour has passed where a gateway has seen the same one through
//! it. What is kept is of others, so no answer shows it: the objects are refused by their classes, no part of
//! an answer is large enough to leave them, and keys stand as digests in the nodes of maps.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::RETRY_AFTER;
use serde_json::json;
use sha2::{Digest, Sha256};
use tercel::collections::Map;
use tercel::tools::wire::record::SPILL_BYTES;
use tercel::{Error, Isolation, Obj, Object, Ref, Text, Transaction, Tx};

use crate::answer::{self, Answer, Content, refused, with};
use crate::asked::{Asked, KEY_BYTES_MAX};
use crate::calls::Ready;
use crate::claims::KEYS_MAX;
use crate::gate::{Gate, PATIENCE};
use crate::json::call::Wrong;
use crate::route::KEYS as ROOT;

/// Hours for which a generation of keys is filled; a key is kept for two such times at least.
const DAY_HOURS: u32 = 24;
/// The largest answer that is kept.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// The keys of a space: those of the present day, and those of the two days before. Others are garbage.
#[derive(Object)]
#[object(name = "gateway.Keys")]
struct Keys {
    /// The number of the present day.
    day: u64,
    /// The hours of it that have passed.
    hours: u32,
    /// Goes into the digests of keys, so that nobody finds a key by trying.
    salt: [u64; 2],
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
    answer: Ref<Part>,
}

/// A part of an answer, and those behind it.
#[derive(Object)]
#[object(name = "gateway.Part")]
struct Part {
    text: Text,
    next: Ref<Part>,
}

/// Says whether the objects of a class are the gateways' own, in which are answers to others.
pub fn is_kept(class: &str) -> bool {
    ["gateway.Keys", "gateway.Key", "gateway.Part", "once.Keys", "once.Kept"].contains(&class)
}

/// The state of a key that was to be claimed.
enum Claim {
    /// The key is the caller's, on that day.
    Taken(Ref<Key>, u64),
    /// Another request has the key, without an answer so far.
    Open,
    Answered(u16, String),
    /// The key stands for another request.
    Other,
    /// The key is new, and the gateway takes no more.
    Full,
}

impl Gate {
    /// A caller's key, as it is kept: each caller has keys of its own. A gateway without callers keeps keys
    /// as they are, as a client of the space does.
    pub fn own_key(&self, key: &str) -> String {
        let Some(caller) = &self.caller else { return key.to_string() };
        // No key has a space.
        let own = format!("{caller} {key}");
        match own.len() {
            ..=KEY_BYTES_MAX => own,
            _ => Sha256::digest(own).iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    /// Calls at most once under a key.
    pub fn call_once(&self, key: &str, asked: &Asked, ready: Result<Ready, Wrong>) -> Result<Answer, Wrong> {
        let digest = digest(asked);
        let key = &self.own_key(key);
        let mut ready = match ready {
            Ok(ready) => ready,
            // What was called may be gone since, and its answer is still that.
            Err(why) => return self.found(key, digest)?.and_then(|was| answered(key, was)).ok_or(why),
        };
        let nonce = self.claims.nonce(key);
        let begun = Instant::now();
        let claim =
            self.claim(key, digest, nonce, begun).inspect_err(|_| self.claims.remember(key, nonce))?;
        let Claim::Taken(place, day) = claim else {
            return Ok(answered(key, claim).unwrap_or_else(|| open(key)));
        };
        self.claims.count(day);
        let mut ended = self.call_ready(&ready);
        if let Err(Error::Schema(_)) = ended {
            // The servers may offer something else since they were asked.
            ready = self.ready(asked, Some(begun)).inspect_err(|_| self.release(key, nonce))?;
            ended = self.call_ready(&ready);
        }
        let answer = match ended {
            Ok(reply) => self.told(&ready, reply)?,
            Err(e @ Error::Unknown { .. }) => return Err(e.into()),
            Err(e) => match ready.wrong(e) {
                Wrong::Space(e @ Error::Failed(_)) => answer::error(&e),
                wrong => {
                    self.release(key, nonce);
                    return Err(wrong);
                }
            },
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
        self.own.transaction().isolation(Isolation::Strict).timeout(PATIENCE)
    }

    fn claim(&self, key: &str, digest: [u64; 2], nonce: u64, now: Instant) -> Result<Claim, Error> {
        self.strict().run(|tx| {
            let at = match tx.get_root_ref::<Keys>(ROOT)? {
                Some(keys) => keys,
                None => begin(tx)?,
            };
            let keys = tx.get(at)?;
            if let Some(found) = find(tx, &keys, key, digest, Some(nonce))? {
                if let Claim::Taken(place, _) = found {
                    let claims = tx.get(place)?.claims();
                    tx.edit(place)?.set_claims(claims.saturating_add(1))?;
                }
                return Ok(found);
            }
            let (mut day, mut today, salt) = (keys.day(), keys.today(), keys.salt());
            let passed = self.claims.hours_since((day, keys.hours()), now);
            let hours = keys.hours().saturating_add(passed);
            if hours >= DAY_HOURS {
                let (yesterday, before) = (today, keys.yesterday());
                (day, today) = (day + 1, Map::create(tx)?);
                tx.replace(at, &Keys { day, hours: 0, salt, today, yesterday, before })?;
            } else if passed > 0 {
                tx.edit(at)?.set_hours(hours)?;
            }
            if self.claims.is_full(day) {
                return Ok(Claim::Full);
            }
            let place = tx.create(&Key { digest, nonce, claims: 1, status: 0, answer: Ref::NULL })?;
            today.insert(tx, &name(salt, key), place)?;
            Ok(Claim::Taken(place, day))
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
        let kept = self.own.transaction().timeout(PATIENCE).run(|tx| {
            let mut answer = Ref::NULL;
            for text in parts(body).into_iter().rev() {
                answer = tx.create(&Part { text: text.into(), next: answer })?;
            }
            let key = tx.edit(place)?;
            key.set_status(status.as_u16())?;
            key.set_answer(answer)
        });
        kept.map_err(|e| Error::unknown_call(format!("it was, and its answer could not be kept: {e}")))
    }

    /// Gives a key back whose call was not executed. If that fails, a repetition here goes on with its claim.
    fn release(&self, key: &str, nonce: u64) {
        let released = self.own.transaction().timeout(PATIENCE).run(|tx| {
            let keys = tx.get_root::<Keys>(ROOT)?;
            let name = name(keys.salt(), key);
            for day in [keys.today(), keys.yesterday(), keys.before()] {
                if let Some(place) = day.get_ref(tx, &name)?
                    && tx.get(place)?.nonce() == nonce
                {
                    day.remove(tx, &name)?;
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
    let name = name(keys.salt(), key);
    for day in [keys.today(), keys.yesterday(), keys.before()] {
        if let Some(place) = day.get_ref(tx, &name)? {
            let found = tx.get(place)?;
            return Ok(Some(match (found.digest() == digest, found.status()) {
                (false, _) => Claim::Other,
                (true, 0) if Some(found.nonce()) == nonce => Claim::Taken(place, keys.day()),
                (true, 0) => Claim::Open,
                (true, status) => Claim::Answered(status, whole(tx, found.answer().reference())?),
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

/// The parts of an answer that are small enough to stay in their objects.
fn parts(body: &str) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), body);
    while !rest.is_empty() {
        let (part, behind) = rest.split_at(rest.floor_char_boundary(SPILL_BYTES));
        parts.push(part);
        rest = behind;
    }
    parts
}

/// The answer of which this is the first part.
fn whole(tx: &Tx<'_>, mut part: Ref<Part>) -> Result<String, Error> {
    let mut body = String::new();
    while !part.is_null() && body.len() <= KEPT_BYTES_MAX {
        let found = tx.get(part)?;
        body.push_str(&found.text()?);
        part = found.next().reference();
    }
    Ok(body)
}

/// The digest of a request.
fn digest(asked: &Asked) -> [u64; 2] {
    sha(asked.path.iter().map(String::as_bytes).chain([&asked.body[..]]))
}

/// The name by which a key stands in a map.
fn name(salt: [u64; 2], key: &str) -> String {
    let salt = salt.map(u64::to_le_bytes);
    let digest = sha([&salt[0][..], &salt[1], key.as_bytes()].into_iter());
    digest.iter().fold(String::new(), |mut name, half| {
        let _ = write!(name, "{half:016x}");
        name
    })
}

/// The first half of SHA-256, over parts and their lengths.
fn sha<'a>(parts: impl Iterator<Item = &'a [u8]>) -> [u64; 2] {
    let mut sha = Sha256::new();
    for part in parts {
        sha.update((part.len() as u64).to_le_bytes());
        sha.update(part);
    }
    let digest = sha.finalize();
    [0, 8].map(|at| digest[at..at + 8].iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)))
}

/// The answer to a repetition whose first answer could not be kept.
const TOO_LARGE: &str =
    r#"{"error":"executed, answer too large to be kept","next":"read what it changed","executed":"yes"}"#;

fn begin(tx: &Tx<'_>) -> Result<Ref<Keys>, Error> {
    let keys = Keys {
        day: 0,
        hours: 0,
        salt: [0, 1].map(|half| RandomState::new().hash_one(half)),
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
    use std::time::Duration;

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
        let now = Instant::now();
        let claim = |key, digest, nonce| gate.claim(key, digest, nonce, now).unwrap();
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
        // Two turns leave a key, the third does not. A day has passed where a gateway saw all of its hours.
        let hours = |n: u64| Duration::from_secs(n * 3_600);
        let claim_after = |key: &str, passed| {
            let Claim::Taken(_, day) = gate.claim(key, DIGEST, 1, now + passed).unwrap() else {
                panic!("{key} is free");
            };
            day
        };
        assert_eq!(claim_after("seen", Duration::ZERO), 0);
        for (turn, is_there) in [(1, true), (2, true), (3, false)] {
            assert_eq!(claim_after(&format!("a{turn}"), hours(25 * turn)), turn);
            assert_eq!(claim_after(&format!("b{turn}"), hours(25 * turn)), turn);
            assert_eq!(gate.found("k", DIGEST).unwrap().is_some(), is_there, "turn {turn}");
        }
        // Hours that no gateway saw whole do not count, and those of several are one.
        assert_eq!(claim_after("c", hours(75) + Duration::from_secs(3_599)), 3);
        assert_eq!(claim_after("d", hours(98)), 3);
        assert_eq!(claim_after("e", hours(98)), 3);
        assert_eq!(claim_after("f", hours(99)), 4);
        let Claim::Taken(_, day) = claim("last", DIGEST, 1) else { panic!("it is free") };
        (0..KEYS_MAX).for_each(|_| gate.claims.count(day));
        assert!(matches!(claim("more", DIGEST, 1), Claim::Full));
        assert!(matches!(claim("last", DIGEST, 1), Claim::Taken(..)));
    }

    #[test]
    fn digest_keeps_parts_apart() {
        // The beginning of SHA-256 of nothing. Parts do not run together.
        assert_eq!(sha([].into_iter())[0].to_le_bytes(), [0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14]);
        assert_ne!(sha([&b"ab"[..], b"c"].into_iter()), sha([&b"a"[..], b"bc"].into_iter()));
        assert_ne!(name([1, 2], "key"), name([1, 3], "key"));
    }

    #[test]
    fn answer_in_parts_is_whole_again() {
        let dir = tempfile::tempdir().unwrap();
        let space = tercel::embedded(dir.path()).unwrap();
        for body in [String::new(), "a".into(), "\u{20ac}".repeat(5_000)] {
            let read = space.run(|tx| {
                let mut answer = Ref::NULL;
                for text in parts(&body).into_iter().rev() {
                    answer = tx.create(&Part { text: text.into(), next: answer })?;
                }
                whole(tx, answer)
            });
            assert_eq!(read.unwrap(), body);
        }
    }
}
