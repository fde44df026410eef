//! Exactly once: a result is kept under a key of its caller, in the transaction that made it.
//!
//! A client that does not know what became of a transaction sends the same again, under the same key, at any
//! member, from any process. If the first one was committed, its result is found; if not, the body runs. Both
//! the look and the result are part of the transaction, so two that come at once conflict, and one of them
//! finds the other's result.
//!
//! Keys stand in three generations, of a day each: the present one, which is filled, and the two before. The
//! oldest goes as a whole. Clocks that tell the date decide nothing: an hour has passed where a process has
//! seen the space at the same hour all through it, so that a key is kept for 48 hours of use at least.
//! A day is over early if it has 4,194,304 keys or 1 GiB of results, as one key of 1,024 is counted: a key
//! may go once twice as many newer ones are kept.
//!
//! Time and randomness are the host's ([`Process`]): programs call `tercel::once`.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};
use tercel_derive::Object;
use tercel_engine::Error;
use tercel_engine::limits::CALL_MAX;
use tercel_engine::mutant::{Rule, dropped};
use tercel_engine::object::{Field, Obj, ValueReader, encode_value};
use tercel_engine::rpc::{CallKey, KeptResult, read_kept};
use tercel_engine::time::Now;
use tercel_engine::txn::Tx;
#[cfg(tercel_mutants)]
use tercel_engine::txn::{self, Isolation};
use tercel_wire::cursor::DecodeError;
use tercel_wire::id::Oref;
use tercel_wire::interface::Interface;
use tercel_wire::payload::Payload;
use tercel_wire::record::{Bytes, Ref};
use tercel_wire::said;

use crate::Map;

/// The root that leads to the keys of a space.
const ROOT: &str = "once.keys";
/// Bytes of a key, at most.
const KEY_BYTES_MAX: usize = 128;
/// Bytes of a kept result, at most.
const RESULT_BYTES_MAX: usize = 4 << 10;
/// One key of so many is counted, for all: which one is as random as the salt of the space.
const COUNTED_OF: u64 = 1_024;
/// Bytes that a kept result takes besides its own, about.
const KEPT_BYTES: u64 = 64;
/// Hours for which a generation of keys is filled.
const DAY_HOURS: u32 = 24;
/// Spaces whose hour a process remembers. Of others their days last longer.
const SPACES_MAX: usize = 64;
const HOUR_US: u64 = 3_600_000_000;

/// The process in which keys are looked up, as its host knows it.
pub trait Process {
    /// Random numbers, which nobody can guess.
    ///
    /// # Errors
    /// `Unavailable` if there are none.
    fn draw(&self) -> Result<[u64; 2], Error>;

    /// The whole hours for which it knows that a space, named by the salt of its keys, was at this hour:
    /// [`Hours::passed`] by a clock that only goes forward.
    fn passed(&self, space: [u64; 2], hour: Hour) -> u32;

    /// Keys and bytes of results of one day, at most: about, as one key of 1,024 is counted.
    fn day_max(&self) -> DayMax {
        DayMax { keys: 4 << 20, bytes: 1 << 30 }
    }
}

/// Bounds of a day's keys. A day that reaches one is over early.
#[derive(Debug, Clone, Copy)]
pub struct DayMax {
    pub keys: u64,
    pub bytes: u64,
}

impl DayMax {
    fn is_reached(self, keys: &Obj<'_, Keys>) -> bool {
        let all = |counted: u64| counted.saturating_mul(COUNTED_OF);
        all(keys.counted()) >= self.keys || all(keys.counted_bytes()) >= self.bytes
    }
}

/// The keys of a space.
#[derive(Object)]
#[object(name = "once.Keys", crate = "::tercel_engine")]
struct Keys {
    /// The number of the present day.
    day: u64,
    /// The hours of it that have passed.
    hours: u32,
    /// Goes into the digests of keys, so that nobody finds a key by trying.
    salt: [u64; 2],
    today: Map<[u8; 16], Kept>,
    yesterday: Map<[u8; 16], Kept>,
    before: Map<[u8; 16], Kept>,
    /// The keys of today that are counted, and the bytes of what is kept under them.
    counted: u64,
    counted_bytes: u64,
}

/// A result.
#[derive(Object)]
#[object(name = "once.Kept", crate = "::tercel_engine")]
struct Kept {
    /// The digest of the request: a key stands for one.
    request: [u8; 16],
    result: Bytes,
    /// The layout of the result, which a program of another version reads it by. A key that was kept before
    /// layouts were has none.
    layout: Bytes,
}

/// A key under which a body has one effect and one result: 1 to 128 bytes that no other request has, such as
/// a UUID or the number of an order; and the request itself, if the same key with another request is to be
/// an error.
///
/// ```
/// use tercel::OnceKey;
///
/// let plain: OnceKey = "order 4711".into();
/// let with_request: OnceKey = ("order 4711", "two tickets for Friday").into();
/// ```
#[derive(Debug, Clone, Copy)]
pub struct OnceKey<'k> {
    key: &'k [u8],
    request: [&'k [u8]; 3],
}

impl<'k> OnceKey<'k> {
    fn new(key: &'k [u8], request: &'k [u8]) -> OnceKey<'k> {
        OnceKey { key, request: [request, &[], &[]] }
    }
}

/// The key that a caller of a procedure has given, from [`Context::key`](tercel_engine::rpc::Context::key).
impl<'k> From<CallKey<'k>> for OnceKey<'k> {
    fn from(CallKey { key, request }: CallKey<'k>) -> OnceKey<'k> {
        OnceKey { key, request }
    }
}

impl<'k> From<&'k str> for OnceKey<'k> {
    fn from(key: &'k str) -> OnceKey<'k> {
        OnceKey::new(key.as_bytes(), &[])
    }
}

impl<'k> From<&'k [u8]> for OnceKey<'k> {
    fn from(key: &'k [u8]) -> OnceKey<'k> {
        OnceKey::new(key, &[])
    }
}

impl<'k> From<(&'k str, &'k str)> for OnceKey<'k> {
    fn from((key, request): (&'k str, &'k str)) -> OnceKey<'k> {
        OnceKey::new(key.as_bytes(), request.as_bytes())
    }
}

impl<'k> From<(&'k [u8], &'k [u8])> for OnceKey<'k> {
    fn from((key, request): (&'k [u8], &'k [u8])) -> OnceKey<'k> {
        OnceKey::new(key, request)
    }
}

/// Gives the result that is kept under a key in the space of this transaction; if there is none, runs
/// `body`, and keeps its result with what the transaction writes. For hosts: programs call `tercel::once`.
///
/// # Errors
/// The error of `body`, of which nothing is kept; `Invalid` if the key has no bytes or more than 128, or
/// stands for another request; `Full` if the result has more than 4 KiB; `Failed` if the body ran before, in
/// a build whose result this one cannot read; and as reads and writes of the transaction.
pub fn once<R: Field>(
    process: &impl Process,
    tx: &Tx<'_>,
    key: OnceKey<'_>,
    body: impl FnOnce() -> Result<R, Error>,
) -> Result<R, Error> {
    let reader = ValueReader::default();
    match look_within(process, tx, key)? {
        Looked::Kept(KeptResult { result, layout }) => reader.read_version(tx, &result, &layout),
        Looked::Free(place) => {
            // A state of this client's may be from before the key had its result.
            let value = tx.whole_or_torn(body).inspect_err(|_| {
                if !dropped(Rule::OnceRefusesEarly) {
                    tx.must_be_current();
                }
            })?;
            place.keep_within(tx, &encode_value(&value, RESULT_BYTES_MAX)?, &reader.words())?;
            Ok(value)
        }
    }
}

/// [`once`] for the method of a call with a key, whose result has another form. For hosts.
///
/// # Errors
/// As [`once`], but the result has the bound of calls.
pub fn once_method(
    process: &impl Process,
    tx: &Tx<'_>,
    key: CallKey<'_>,
    layout: &[u8],
    body: &mut dyn FnMut() -> Result<Vec<u8>, Error>,
) -> Result<KeptResult, Error> {
    match look(process, tx, key.into())? {
        Looked::Kept(kept) => Ok(kept),
        Looked::Free(place) => {
            let result = body()?;
            place.keep(tx, &result, layout)?;
            Ok(KeptResult { result, layout: layout.to_vec() })
        }
    }
}

/// The words of the error for a key that stands for another request.
pub const OTHER_REQUEST: &str = "this key stands for another request: take a new key for a new request";

/// Gives what a method with these arguments has returned under a key, and the object. For gateways, where a
/// repetition names an object that is not there any more.
///
/// # Errors
/// The errors of reads of the transaction; `Failed` as of [`once`], `Schema` if the arguments say too much.
pub fn returned_under(
    tx: &Tx<'_>,
    key: &[u8],
    (interface, method): (&Interface, usize),
    takes: &[u8],
) -> Result<Option<(Oref, Vec<u8>)>, Error> {
    let Some(at) = tx.get_root_ref::<Keys>(ROOT)? else { return Ok(None) };
    let keys = tx.get(at)?;
    let Some(kept) = find(tx, &keys, name(&keys, key))? else { return Ok(None) };
    let (result, layout) = (kept.result()?.to_vec(), kept.layout()?.to_vec());
    let Some((object, result)) = result.split_first_chunk::<4>() else { return Ok(None) };
    let method = &interface.methods[method];
    let damaged = |e: DecodeError| Error::Corrupt(format!("what method `{}` is to take: {e}", method.name));
    let mut said = object.to_vec();
    let payload = Payload::decode(takes, &method.takes).map_err(damaged)?;
    said::put(&method.takes, &payload, CALL_MAX, &mut said).map_err(Error::Schema)?;
    let request = [interface.name.as_bytes(), method.name.as_bytes(), &said];
    let object = Oref::from_raw(u32::from_le_bytes(*object)).filter(|_| kept.request() == digest(&request));
    let Some(object) = object else { return Ok(None) };
    let mut returned = Vec::new();
    read_kept((&layout, result), &method.gives, &mut returned)?;
    Ok(Some((object, returned)))
}

/// The name of a key in the maps of a space.
fn name(keys: &Obj<'_, Keys>, key: &[u8]) -> [u8; 16] {
    digest(&[&keys.salt().map(u64::to_le_bytes).concat(), key])
}

fn find<'t>(tx: &'t Tx<'t>, keys: &Obj<'_, Keys>, name: [u8; 16]) -> Result<Option<Obj<'t, Kept>>, Error> {
    for day in [keys.today(), keys.yesterday(), keys.before()] {
        if let Some(kept) = day.find(tx, name)? {
            return Ok(Some(kept));
        }
    }
    Ok(None)
}

/// The state of a key.
enum Looked {
    Kept(KeptResult),
    Free(Place),
}

/// The place for the result of a key that has none.
struct Place {
    keys: Ref<Keys>,
    today: Map<[u8; 16], Kept>,
    name: [u8; 16],
    request: [u8; 16],
}

impl Place {
    fn keep(&self, tx: &Tx<'_>, result: &[u8], layout: &[u8]) -> Result<(), Error> {
        let kept = Kept { request: self.request, result: result.into(), layout: layout.into() };
        let kept = tx.create(&kept)?;
        self.today.insert(tx, self.name, kept)?;
        if u64::from_le_bytes(*self.name.first_chunk().expect("16 bytes")) % COUNTED_OF == 0 {
            let bytes = (result.len() + layout.len()) as u64 + KEPT_BYTES;
            let keys = tx.get(self.keys)?;
            let (counted, bytes) = (keys.counted() + 1, keys.counted_bytes() + bytes);
            let keys = keys.edit()?;
            keys.set_counted(counted)?;
            keys.set_counted_bytes(bytes)?;
        }
        Ok(())
    }

    /// The same, in the transaction of the body.
    fn keep_within(&self, tx: &Tx<'_>, result: &[u8], layout: &[u8]) -> Result<(), Error> {
        #[cfg(tercel_mutants)]
        if dropped(Rule::OnceOutside) {
            return txn::run(tx.port(), Isolation::Serializable, |other| self.keep(other, result, layout));
        }
        self.keep(tx, result, layout)
    }
}

/// Looks in the transaction of the body.
fn look_within(process: &impl Process, tx: &Tx<'_>, key: OnceKey<'_>) -> Result<Looked, Error> {
    #[cfg(tercel_mutants)]
    if dropped(Rule::OnceLooksEarly) || dropped(Rule::OnceOutside) {
        return txn::run(tx.port(), Isolation::Serializable, |other| look(process, other, key));
    }
    look(process, tx, key)
}

fn look(process: &impl Process, tx: &Tx<'_>, OnceKey { key, request }: OnceKey<'_>) -> Result<Looked, Error> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        let text = format!("a key has 1 to {KEY_BYTES_MAX} bytes, and this one {}", key.len());
        return Err(Error::Invalid(text));
    }
    let at = match tx.get_root_ref::<Keys>(ROOT)? {
        Some(at) => at,
        None => begin(process, tx)?,
    };
    let keys = tx.get(at)?;
    let request = digest(&request);
    let name = name(&keys, key);
    if let Some(kept) = find(tx, &keys, name)? {
        return match kept.request() == request || dropped(Rule::OnceDigestIgnored) {
            true => {
                let (result, layout) = (kept.result()?.to_vec(), kept.layout()?.to_vec());
                Ok(Looked::Kept(KeptResult { result, layout }))
            }
            false => Err(Error::Invalid(OTHER_REQUEST.into())),
        };
    }
    Ok(Looked::Free(Place { keys: at, today: turn(process, tx, at, &keys)?, name, request }))
}

/// The map of the present day, which is another one if the last is over.
fn turn(
    process: &impl Process,
    tx: &Tx<'_>,
    at: Ref<Keys>,
    keys: &Obj<'_, Keys>,
) -> Result<Map<[u8; 16], Kept>, Error> {
    let (day, salt) = (keys.day(), keys.salt());
    let passed = process.passed(salt, (day, keys.hours()));
    let hours = keys.hours().saturating_add(passed);
    if hours < DAY_HOURS && !process.day_max().is_reached(keys) {
        if passed > 0 {
            tx.edit(at)?.set_hours(hours)?;
        }
        return Ok(keys.today());
    }
    let (today, yesterday, before) = match dropped(Rule::OnceDayDropped) {
        true => (Map::create(tx)?, keys.today(), Map::create(tx)?),
        false => (Map::create(tx)?, keys.today(), keys.yesterday()),
    };
    tx.replace(
        at,
        &Keys { day: day + 1, hours: 0, salt, today, yesterday, before, counted: 0, counted_bytes: 0 },
    )?;
    Ok(today)
}

fn begin(process: &impl Process, tx: &Tx<'_>) -> Result<Ref<Keys>, Error> {
    let salt = process.draw()?;
    let [today, yesterday, before] = [Map::create(tx)?, Map::create(tx)?, Map::create(tx)?];
    let at =
        tx.create(&Keys { day: 0, hours: 0, salt, today, yesterday, before, counted: 0, counted_bytes: 0 })?;
    tx.set_root(ROOT, at)?;
    Ok(at)
}

/// The first half of SHA-256, over parts and their lengths.
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut sha = Sha256::new();
    for part in parts {
        sha.update((part.len() as u64).to_le_bytes());
        sha.update(part);
    }
    let mut half = [0; 16];
    half.copy_from_slice(&sha.finalize()[..16]);
    half
}

/// The hour of a day.
pub type Hour = (u64, u32);

/// The hours at which a process has seen spaces: by the salt of a space's keys the hour that was seen last,
/// and when it was first.
#[derive(Debug, Default)]
pub struct Hours(BTreeMap<[u64; 2], (Hour, Now)>);

impl Hours {
    /// The whole hours for which this process knows that the space was at this hour of this day.
    pub fn passed(&mut self, space: [u64; 2], hour: Hour, now: Now) -> u32 {
        if self.0.len() >= SPACES_MAX && !self.0.contains_key(&space) {
            return 0;
        }
        let known = self.0.entry(space).or_insert((hour, now));
        if known.0 != hour {
            *known = (hour, now);
        }
        (now.since_us(known.1) / HOUR_US) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hour_passes_where_it_is_seen_through() {
        let mut hours = Hours::default();
        let at = |minutes: u64| Now(1_000_000 + 60_000_000 * minutes);
        assert_eq!(hours.passed([1, 1], (0, 0), at(0)), 0);
        assert_eq!(hours.passed([1, 1], (0, 0), at(59)), 0);
        assert_eq!(hours.passed([1, 1], (0, 0), at(61)), 1);
        // Another process has counted it, so it begins anew.
        assert_eq!(hours.passed([1, 1], (0, 1), at(62)), 0);
        assert_eq!(hours.passed([1, 1], (0, 1), at(121)), 0);
        assert_eq!(hours.passed([1, 1], (0, 1), at(62 + 180)), 3);
        for space in 2..=SPACES_MAX as u64 + 5 {
            assert_eq!(hours.passed([space, 0], (0, 0), at(0)), 0);
        }
        assert_eq!(hours.0.len(), SPACES_MAX);
    }
}
