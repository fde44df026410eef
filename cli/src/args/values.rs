//! Parsers of values: bytes, pages and times within their bounds.

use std::time::Duration;

use tercel::Addresses;
use tercel_term::bytes;

/// A server's address, with the name of its space where several are named.
#[derive(Debug, Clone)]
pub struct Named {
    pub name: Option<String>,
    pub at: Addresses,
}

impl std::str::FromStr for Named {
    type Err = String;

    fn from_str(s: &str) -> Result<Named, String> {
        // The path of a socket may have a `=`, too.
        let named = s.split_once('=').filter(|(name, _)| !name.contains([':', '/', ',']));
        let (name, at) = named.map_or((None, s), |(name, at)| (Some(name.to_string()), at));
        Ok(Named { name, at: at.parse().map_err(|e: tercel::AddressError| e.to_string())? })
    }
}

/// A site as a browser names it: scheme, host and port alone.
pub(super) fn origin(s: &str) -> Result<String, String> {
    let at = s.strip_prefix("https://").or_else(|| s.strip_prefix("http://")).unwrap_or_default();
    let is_bare = !at.is_empty() && !at.contains(['/', '*', '?', '#', ' ', '@']) && *at == at.to_lowercase();
    let text = "a site is https://HOST or http://HOST, in small letters, with a port if it has one and nothing behind";
    if is_bare { Ok(s.into()) } else { Err(text.into()) }
}

/// The bytes of a client's cache.
pub(super) fn cache_bytes(s: &str) -> Result<usize, String> {
    match bytes(s)? {
        n @ CACHE_BYTES_MIN..=CACHE_BYTES_MAX => Ok(n),
        _ => Err("a cache has from 1M to 8G".into()),
    }
}

pub(super) fn server_bytes(s: &str) -> Result<usize, String> {
    match bytes(s)? {
        n @ SERVER_BYTES_MIN.. => Ok(n),
        _ => Err("a server works with 1M or more".into()),
    }
}

/// Bytes of modified objects or cached pages, at least; the library goes lower, and knows what is too much.
const SERVER_BYTES_MIN: usize = 1 << 20;

/// Room for what one transaction holds beside what is kept; the library goes down to a quarter of it.
const CACHE_BYTES_MIN: usize = 1 << 20;
/// The bytes that references in a cache can address.
const CACHE_BYTES_MAX: usize = 8 << 30;

/// Parses the number of pages that a client may have.
pub(super) fn subscriptions(s: &str) -> Result<usize, String> {
    match s.parse() {
        Ok(n @ 16..=SUBSCRIPTIONS_MAX) => Ok(n),
        _ => Err(format!("`{s}` is not a number of pages from 16 to {SUBSCRIPTIONS_MAX}")),
    }
}

pub(super) fn socket_mode(s: &str) -> Result<u32, String> {
    match u32::from_str_radix(s, 8) {
        Ok(mode @ 0..=0o777) if mode & 0o600 == 0o600 => Ok(mode),
        _ => Err(format!("`{s}` is not the mode of a socket that its owner can use, such as 600 or 660")),
    }
}

/// The number of pages of a space, at most.
const SUBSCRIPTIONS_MAX: usize = 1 << 22;

/// A time with its unit.
pub(super) fn time(s: &str) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0)];
    let parsed = units.iter().find_map(|(unit, seconds)| {
        let number: f64 = s.strip_suffix(unit)?.trim_end().parse().ok()?;
        Duration::try_from_secs_f64(number * seconds).ok().filter(|time| !time.is_zero())
    });
    parsed.ok_or_else(|| format!("`{s}` is no time: give one such as 500ms, 2s or 1m"))
}
