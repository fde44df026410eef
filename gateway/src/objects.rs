//! Objects and roots.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, ETAG, HeaderName, IF_NONE_MATCH};
use serde_json::{Value, json};
use tercel::tools::stored;
use tercel::tools::wire::layout::Layout;
use tercel::{Error, Oref, Token, Tx};

use crate::answer::{self, Answer, of_type, with};
use crate::asked::Asked;
use crate::gate::{Gate, Shown, located};
use crate::json::call::Wrong;
use crate::keys::is_kept;
use crate::route::Route;

impl Gate {
    /// The answer, if it can be given without a wait.
    pub fn cached(&self, asked: &Asked) -> Option<Answer> {
        if asked.route != Route::Object || !asked.is_allowed || !asked.may_be_cached() || asked.is_reserved()
        {
            return None;
        }
        let transaction = asked.transaction(&self.client).ok()?.timeout(Duration::ZERO);
        let read = transaction.begin().and_then(|tx| read_now(&tx, &asked.path[2]));
        read.ok().map(|found| shown(asked, &found))
    }

    /// The answer that needs no thread of its own: what reads waits as a task does. None if that is no such
    /// request.
    pub async fn awaited(&self, asked: &Asked) -> Option<Answer> {
        let answer = match asked.route {
            Route::Object if asked.is_allowed => self.object(asked).await,
            Route::Roots if asked.is_allowed => self.roots(asked).await,
            _ => return None,
        };
        Some(answer.unwrap_or_else(|why| answer::wrong(&why)))
    }

    async fn roots(&self, asked: &Asked) -> Result<Answer, Wrong> {
        let roots = asked.transaction(&self.client)?.run_async(|tx| tx.roots()).await?;
        let roots: Vec<Value> =
            roots.iter().map(|(name, r)| json!({ "name": name, "ref": r.oref().to_string() })).collect();
        Ok(answer::json(StatusCode::OK, &json!({ "roots": roots })))
    }

    /// An object, by its reference or the root that it is.
    ///
    /// # Errors
    /// As the transaction that reads it.
    async fn object(&self, asked: &Asked) -> Result<Answer, Wrong> {
        let transaction = asked.transaction(&self.client)?;
        let found = transaction.run_async(|tx| read_now(tx, &asked.path[2])).await?;
        Ok(shown(asked, &found))
    }
}

/// An object, and the state that it is of.
struct Found {
    token: Token,
    oref: Oref,
    layout: Arc<Layout>,
    object: Vec<u8>,
}

fn read_now(tx: &Tx<'_>, name: &str) -> Result<Found, Error> {
    let (oref, layout, object) = read(tx, name)?;
    Ok(Found { token: tx.as_of().token, oref, layout, object })
}

/// The answer that shows an object, unless its caller has it.
fn shown(asked: &Asked, Found { token, oref, layout, object }: &Found) -> Answer {
    let tag = tag(*oref, object);
    let has = asked.header(&IF_NONE_MATCH).is_some_and(|tags| {
        tags == "*" || tags.split(',').any(|has| has.trim().trim_start_matches("W/") == tag)
    });
    let answer = match has {
        true => of_type(StatusCode::NOT_MODIFIED, JSON, ""),
        false => answer::json(StatusCode::OK, &Shown::of(*oref, layout, object)),
    };
    let answer = with(with(answer, ETAG, &tag), CACHE_CONTROL, "no-cache");
    with(answer, TOKEN, &token.to_string())
}

/// The object that a name means, in stored form with its layout.
///
/// # Errors
/// `NotFound`; `Denied` if it is the gateways' own; and as a transaction that reads.
pub fn read(tx: &Tx<'_>, name: &str) -> Result<(Oref, Arc<Layout>, Vec<u8>), Error> {
    let oref = located(tx, name)?;
    let (layout, object) = stored(tx, oref)?.ok_or_else(|| Error::NotFound(format!("object {oref}")))?;
    match is_kept(layout.name()) {
        true => Err(Error::Denied(format!("object {oref} is the gateway's own"))),
        false => Ok((oref, layout, object)),
    }
}

/// The entity tag of an object: the same bytes have the same one at every gateway, and an object that changes
/// has another. A stamp would change with every commit of the space, for objects have none of their own.
fn tag(oref: Oref, object: &[u8]) -> String {
    let raw = oref.raw().to_le_bytes();
    format!("\"{:032x}\"", fnv([&raw[..], object].into_iter()))
}

/// FNV-1a of 128 bits, over parts and their lengths: the same at every gateway, of whatever build.
fn fnv<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u128 {
    let add = |sum: u128, byte: &u8| (sum ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
    parts.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |sum, part| {
        let sum = (part.len() as u64).to_le_bytes().iter().fold(sum, add);
        part.iter().fold(sum, add)
    })
}

const JSON: &str = "application/json";

/// The header of the state that an answer is of: `at_least` and `Last-Event-ID` take it.
const TOKEN: HeaderName = HeaderName::from_static("tercel-token");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_keeps_parts_apart() {
        // FNV-1a of nothing is its offset. Parts do not run together.
        assert_eq!(fnv([].into_iter()), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_ne!(fnv([&b"ab"[..], b"c"].into_iter()), fnv([&b"a"[..], b"bc"].into_iter()));
    }
}
