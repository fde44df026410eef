//! Calls of one thread, 64 of them under way, by calls that are waited for one by one.

use std::collections::VecDeque;
use std::time::Instant;

use tercel::Client;

use super::{Place, Procedures, ProceduresCalls, ProceduresPipelined, TRIPS, failed, rounds};
use crate::Options;
use crate::blocks::alternate;
use crate::report::Row;

/// Measures the calls of a second, with and without waiting for each.
///
/// # Errors
/// A sentence: what failed.
pub fn row(options: &Options, client: &Client, place: Place) -> Result<Row, String> {
    let service = client.service::<dyn Procedures>();
    let calls = service.clone().pipelined();
    let rate = |begun: Instant, calls: usize| calls as f64 / begun.elapsed().as_secs_f64();
    let one_by_one = || {
        let begun = Instant::now();
        (0..TRIPS).try_for_each(|_| service.null()).map_err(failed)?;
        Ok(rate(begun, TRIPS))
    };
    let together = || {
        let begun = Instant::now();
        let mut under_way = VecDeque::with_capacity(UNDER_WAY);
        for _ in 0..CALLS {
            if under_way.len() == UNDER_WAY {
                under_way.pop_front().map_or(Ok(()), tercel::rpc::Pending::wait).map_err(failed)?;
            }
            under_way.push_back(calls.null().map_err(failed)?);
        }
        under_way.into_iter().try_for_each(tercel::rpc::Pending::wait).map_err(failed)?;
        Ok::<_, String>(rate(begun, CALLS))
    };
    let pairs = alternate(rounds(options), one_by_one, together)?;
    let id = format!("rpc.pipelined.{}", place.name());
    let row = Row::compared(id, "calls/s", &pairs, "one at a time", (rounds(options) * CALLS) as u64);
    Ok(row.note("a procedure that takes and gives nothing, 64 calls of one thread under way"))
}

/// Calls that are under way, and those of a block: as many as without, so that both are as often interrupted.
const UNDER_WAY: usize = 64;
const CALLS: usize = TRIPS;
