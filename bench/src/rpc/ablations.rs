//! What each part of the short way of a call brings: the call without it, by the same call as it is, in alternating blocks.
//!
//! A part is switched off at run time, by a second client of the same process or by a second service of the same server, so that the
//! server's process, the processors and the program are the same on both sides of a ratio. The exceptions are the rows `spin` and `budget`:
//! how long a server looks is its own choice, so those calls go to servers of their own, and the one that looks has stopped before they
//! begin. Each block begins with some calls that are not timed. The row `nothing` compares a second client with the first.

use std::time::{Duration, Instant};

use tercel::tools::Without;
use tercel::{Client, ClientConfig, Transport};

use super::{
    Ends, LARGE, LARGE_TRIPS, Options, Place, Procedures, ProceduresCalls, Row, TRIPS, Unkept, UnkeptCalls,
    Waits, alternate, failed, rounds,
};

/// Where the rows are measured: in shared memory, each end on a processor of its own, looking.
pub(super) const PLACE: Place = Place { road: Transport::SharedMemory, waits: Waits::Spinning, apart: true };

/// Where the second server is: the same, and it sleeps.
pub(super) const ASLEEP: Place = Place { waits: Waits::Sleeping, ..PLACE };

/// A call, to be made again and again.
type Call<'a> = &'a mut dyn FnMut() -> Result<(), String>;

/// The rows.
pub(super) fn rows(
    options: &Options,
    ends: &Ends,
    asleep: &Ends,
    chooses: &Ends,
) -> Result<Vec<Row>, String> {
    options.say("calls without a part of the short way");
    let part = |name: &'static str, call: &'static str| Part { options, name, call, settle: Duration::ZERO };
    let as_it_is = ends.client(PLACE)?;
    let service = as_it_is.service::<dyn Procedures>();
    let mut null = || service.null().map_err(failed);
    let mut rows = Vec::new();

    let other = without(ends, Without::default())?;
    let same = other.service::<dyn Procedures>();
    rows.push(part("nothing", "null").row(&mut null, &mut || same.null().map_err(failed))?.note(
        "a second client of which nothing is switched off: how far the ratios of the others can be trusted",
    ));
    drop(other);

    let other = without(ends, Without { line: true, ..Without::default() })?;
    let messages = other.service::<dyn Procedures>();
    rows.push(part("line", "null").row(&mut null, &mut || messages.null().map_err(failed))?.note(
        "each call and its answer is a message of the stream: frame, checksum, the client's machine, the server's scheduler",
    ));
    drop(other);

    let there = asleep.client(ASLEEP)?;
    let sleeping = there.service::<dyn Procedures>();
    let spin = Part { settle: SETTLE, ..part("spin", "null") };
    rows.push(spin.row(&mut null, &mut || sleeping.null().map_err(failed))?.note(
        "both ends sleep at once: the calls go to a second server, which is there for them, and begin when the one that looks has stopped",
    ));
    drop(there);

    let there = chooses.client_with(PLACE, ClientConfig { spin: None, ..ends.config(PLACE) })?;
    let choosing = there.service::<dyn Procedures>();
    let budget = Part { settle: SETTLE, ..part("budget", "null") };
    rows.push(budget.row(&mut null, &mut || choosing.null().map_err(failed))?.note(
        "no end is told how long to look: each finds by the processors of the other that it pays, and looks for some microseconds",
    ));
    drop(there);

    let other = ends.client_with(PLACE, ClientConfig { spin: Some(Duration::ZERO), ..ends.config(PLACE) })?;
    let sleeping = other.service::<dyn Procedures>();
    rows.push(
        part("spin_client", "null")
            .row(&mut null, &mut || sleeping.null().map_err(failed))?
            .note("the client alone sleeps at once; the server, which is the same, looks as before"),
    );
    drop(other);

    let unkept = as_it_is.service::<dyn Unkept>();
    rows.push(part("replies", "null").row(&mut null, &mut || unkept.null().map_err(failed))?.note(
        "a service of whose calls the server keeps no replies; it still knows which calls it has begun",
    ));

    let other = without(ends, Without { template: true, ..Without::default() })?;
    let made_anew = other.service::<dyn Procedures>();
    rows.push(part("template", "null").row(&mut null, &mut || made_anew.null().map_err(failed))?.note(
        "the head of a request is made anew for each call, in a buffer of its own, and not once for all calls of a procedure",
    ));
    drop(other);

    let mut add = || service.add(2, 3).map(|_| ()).map_err(failed);
    let other = without(ends, Without { schema: true, ..Without::default() })?;
    let general = other.service::<dyn Procedures>();
    rows.push(
        part("schema", "add")
            .row(&mut add, &mut || general.add(2, 3).map(|_| ()).map_err(failed))?
            .note("two numbers are encoded as a record with parts beside it, and its head taken away; they are read as before"),
    );
    drop(other);

    let large = vec![7; LARGE];
    let mut take = || service.take(&large).map(|_| ()).map_err(failed);
    let other = without(ends, Without { in_place: true, ..Without::default() })?;
    let copied = other.service::<dyn Procedures>();
    rows.push(
        part("inplace", "take")
            .rate(&mut take, &mut || copied.take(&large).map(|_| ()).map_err(failed))?
            .note("nearly a mebibyte is encoded into a buffer, which is copied to where the server reads: of rates less is worse"),
    );
    Ok(rows)
}

/// A client whose calls do without something.
fn without(ends: &Ends, without: Without) -> Result<Client, String> {
    ends.client_with(PLACE, ClientConfig { without, ..ends.config(PLACE) })
}

/// What is switched off, and in which call.
struct Part<'a> {
    options: &'a Options,
    name: &'static str,
    call: &'static str,
    /// How long a block without it waits before it begins.
    settle: Duration,
}

impl Part<'_> {
    fn row(&self, with: Call<'_>, without: Call<'_>) -> Result<Row, String> {
        let us = |ns: f64| ns / 1e3;
        self.compared("us", TRIPS, &us, with, without)
    }

    /// By rates, for calls that take nearly a mebibyte.
    fn rate(&self, with: Call<'_>, without: Call<'_>) -> Result<Row, String> {
        let mib_s = |ns: f64| LARGE as f64 / (1 << 20) as f64 / (ns / 1e9);
        self.compared("MiB/s", LARGE_TRIPS, &mib_s, with, without)
    }

    fn compared(
        &self,
        unit: &'static str,
        trips: usize,
        of: &dyn Fn(f64) -> f64,
        with: Call<'_>,
        without: Call<'_>,
    ) -> Result<Row, String> {
        let id = format!("rpc.without.{}.{}", self.name, PLACE.name());
        self.options.say(&id);
        let rounds = rounds(self.options);
        let pairs = alternate(
            rounds,
            || block(trips, with).map(of),
            || {
                std::thread::sleep(self.settle);
                block(trips, without).map(of)
            },
        )?;
        // The best of rates is the most.
        let best = if unit == "us" { pairs.best() } else { None };
        let limit = format!("{} as it is", self.call);
        Ok(Row { best, ..Row::compared(id, unit, &pairs, limit, (rounds * trips) as u64) })
    }
}

/// Nanoseconds of a call, as the mean of so many.
fn block(trips: usize, call: Call<'_>) -> Result<f64, String> {
    (0..trips / WARM_SHARE).try_for_each(|_| call())?;
    let begun = Instant::now();
    (0..trips).try_for_each(|_| call())?;
    Ok(begun.elapsed().as_secs_f64() * 1e9 / trips as f64)
}

/// Of the calls of a block, one in so many comes before it.
const WARM_SHARE: usize = 5;

/// In which a server that looks has stopped: 20 ms at its channels, as many at its queue.
const SETTLE: Duration = Duration::from_millis(60);
