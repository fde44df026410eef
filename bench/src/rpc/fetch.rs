//! A page that is fetched, by a bare exchange of as many bytes.

use tercel::{Client, ClientConfig, Object, Ref};

use super::{Bare, Ends, Options, Place, Row, Sizes, against_bare, failed};

/// One of which a page holds two, with little room beside them.
#[derive(Object)]
pub(super) struct Half {
    pub number: u64,
    ballast: [u64; 490],
}

/// The row of a place: each read is of a page that is not cached, and the message with it is as long as the
/// limit's.
pub(super) fn row(options: &Options, ends: &Ends, place: Place) -> Result<Row, String> {
    let config = ClientConfig { cache_bytes: CACHE_BYTES, ..ends.config(place) };
    let client = ends.client_with(place, config)?;
    let halves = make(&client)?;
    let mut bare = Bare::begin(&ends.dir, place.means(), SIZES)?;
    let (mut next, mut reads) = (0, 0);
    let mut fetch = || {
        // Not the other one of the same page.
        next = (next + 2) % halves.len();
        reads += 1;
        client.run(|tx| Ok(tx.get(halves[next])?.number())).map(|_| ()).map_err(failed)
    };
    let before = client.stats().client.pages;
    let row = against_bare(options, &format!("fetch.one.{}", place.name()), ends, &mut bare, &mut fetch)?;
    let pages = client.stats().client.pages - before;
    // The cache keeps an object here and there that was read more often.
    if pages * 100 < reads * 99 {
        return Err(format!("{reads} reads fetched {pages} pages"));
    }
    Ok(row.note("an object read whose page is not cached: it is fetched, checked and installed"))
}

pub(super) fn make(client: &Client) -> Result<Vec<Ref<Half>>, String> {
    let mut all = Vec::new();
    while all.len() < HALVES {
        let some = client.run(|tx| {
            let half = |number| tx.create(&Half { number, ballast: [7; 490] });
            (0..64).map(half).collect::<Result<Vec<_>, _>>()
        });
        all.extend(some.map_err(failed)?);
    }
    Ok(all)
}

/// Objects of half a page: 32 MiB of them, eight times the client's cache.
const HALVES: usize = 8_192;
pub(super) const CACHE_BYTES: usize = 4 << 20;

/// A header and the number of a page; a header, what names the fetch, and the page.
const SIZES: Sizes = Sizes { there: 64 + 12, back: 64 + 12 + 8_064 };
