//! Calls under a key of their caller: executed at most once, at whatever gateways they arrive, and however
//! often.
//!
//! A key is an object of the space. It is claimed by a commit before the call is sent, and its answer is
//! committed beside it before the caller has it. A repetition thus finds the answer, or a claim without one:
//! the call is then under way, or its gateway has ended, and it is not sent a second time. A claim goes again
//! only if it is known that the call was not executed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::RETRY_AFTER;
use serde_json::json;
use tercel::collections::Map;
use tercel::{Error, Isolation, Object, Ref, Text, Tx};

use crate::answer::{self, Answer, Content, refused, with};
use crate::asked::Asked;
use crate::calls::{Ready, told};
use crate::gate::{Gate, PATIENCE};
use crate::json::call::Wrong;

/// The root of the keys.
pub const ROOT: &str = "gateway.keys";
/// Time for which a key is kept at least, and half of the time for which it is at most.
const KEPT_MS: u64 = 24 * 3_600 * 1_000;

/// The keys of a space: those of the present day, and those of the day before. Those before that are garbage.
#[derive(Object)]
#[object(name = "gateway.Keys")]
struct Keys {
    /// Milliseconds of the Unix clock at which the present day began.
    since_ms: u64,
    today: Map<Text, Key>,
    yesterday: Map<Text, Key>,
}

/// A key, and what came of its call.
#[derive(Object)]
#[object(name = "gateway.Key")]
struct Key {
    /// A digest of the request, for a key stands for one.
    digest: u64,
    /// The status of the answer; 0 if there is none yet.
    status: u16,
    answer: Text,
}

/// The state of a key that was to be claimed.
enum Claim {
    Taken(Ref<Key>),
    /// Another request has it, without an answer so far.
    Open,
    Answered(u16, String),
    /// It stands for another request.
    Other,
}

impl Gate {
    /// Calls at most once under a key.
    pub fn call_once(&self, key: &str, asked: &Asked, ready: &Ready) -> Result<Answer, Wrong> {
        let mut hasher = DefaultHasher::new();
        (&asked.path, &asked.body).hash(&mut hasher);
        let place = match self.claim(key, hasher.finish())? {
            Claim::Taken(place) => place,
            Claim::Answered(status, body) => return Ok(again(status, body)),
            Claim::Other => {
                let what = format!("the key `{key}` was used for another request");
                return Ok(refused(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    &what,
                    "take a new key for a new request",
                ));
            }
            Claim::Open => return Ok(open(key)),
        };
        let answer = match self.call_ready(ready) {
            Ok(reply) => told(ready, reply)?,
            Err(Error::Timeout(Some(op))) => match self.client.resolve_within(*op, PATIENCE) {
                Ok(None) => {
                    self.release(key)?;
                    return Err(Error::Unavailable(format!("operation {op} was not executed in time")).into());
                }
                _ => return Err(Error::Timeout(Some(op)).into()),
            },
            Err(e @ Error::Unknown(_)) => return Err(e.into()),
            Err(e @ Error::Failed(_)) => answer::error(&e),
            Err(e) => {
                self.release(key)?;
                return Err(e.into());
            }
        };
        self.keep(place, &answer)?;
        Ok(answer)
    }

    fn claim(&self, key: &str, digest: u64) -> Result<Claim, Error> {
        let now_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d: Duration| d.as_millis() as u64);
        // A repetition must see what another gateway has written.
        let strict = self.client.transaction().isolation(Isolation::Strict).timeout(PATIENCE);
        strict.run(|tx| {
            let keys = match tx.get_root_ref::<Keys>(ROOT)? {
                Some(keys) => keys,
                None => begin(tx, now_ms)?,
            };
            let (since_ms, mut today, yesterday) = {
                let keys = tx.get(keys)?;
                (keys.since_ms(), keys.today(), keys.yesterday())
            };
            for day in [today, yesterday] {
                if let Some(found) = day.find(tx, key)? {
                    return Ok(match (found.digest() == digest, found.status()) {
                        (false, _) => Claim::Other,
                        (true, 0) => Claim::Open,
                        (true, status) => Claim::Answered(status, found.answer()?.into_owned()),
                    });
                }
            }
            if now_ms.saturating_sub(since_ms) >= KEPT_MS {
                let next = Map::create(tx)?;
                tx.replace(keys, &Keys { since_ms: now_ms, today: next, yesterday: today })?;
                today = next;
            }
            let place = tx.create(&Key { digest, status: 0, answer: Text::default() })?;
            today.insert(tx, key, place)?;
            Ok(Claim::Taken(place))
        })
    }

    /// Writes an answer beside its key. The caller is not told an answer that could not be told again.
    fn keep(&self, place: Ref<Key>, answer: &Answer) -> Result<(), Error> {
        let body = match answer.body() {
            Content::Whole(Some(body)) => std::str::from_utf8(body).unwrap_or_default(),
            _ => "",
        };
        let kept = self.client.transaction().timeout(PATIENCE).run(|tx| {
            let key = tx.edit(place)?;
            key.set_status(answer.status().as_u16())?;
            key.set_answer(body)
        });
        kept.map_err(|e| Error::Unknown(format!("it was, and its answer could not be kept: {e}")))
    }

    /// Gives a key back whose call was not executed.
    fn release(&self, key: &str) -> Result<(), Error> {
        self.client.transaction().timeout(PATIENCE).run(|tx| {
            let keys = tx.get_root::<Keys>(ROOT)?;
            keys.today().remove(tx, key)?;
            keys.yesterday().remove(tx, key).map(drop)
        })
    }
}

fn begin(tx: &Tx<'_>, now_ms: u64) -> Result<Ref<Keys>, Error> {
    let keys = Keys { since_ms: now_ms, today: Map::create(tx)?, yesterday: Map::create(tx)? };
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
