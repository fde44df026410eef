//! The cost of rights: a call and a commit in a space with as many rights as it can have, by those in a space
//! without any.

use std::time::Instant;

use tercel::access::{Principal, Role, grant};
use tercel::{Address, Transport};

use super::{Counter, Ends, Place, Procedures, ProceduresCalls, TRIPS, Waits, block, failed, placed, rounds};
use crate::Options;
use crate::blocks::alternate;
use crate::report::Row;
use crate::scratch::Scratch;

/// The name of the rows in `--only`.
pub const JUDGED: &str = "judged";

/// Measures calls and commits of a principal with rights, with all ends on one processor, asleep while they
/// wait.
///
/// # Errors
/// A sentence: what failed.
pub(super) fn rows(options: &Options, scratch: &Scratch) -> Result<Vec<Row>, String> {
    options.say("a space with rights, by one without");
    let place = |road| Place { road, waits: Waits::Sleeping, apart: false };
    let (first, _) = placed::ends();
    placed::on(first, || {
        let begin = |name: &str| {
            Ends::begin(&scratch.join(&format!("{JUDGED}.{name}")), &place(Transport::Unix).role())
        };
        let (open, judged) = (begin("open")?, begin("rights")?);
        give_all(&judged)?;
        let mut rows = Vec::new();
        for (id, road) in [
            ("access.judged.null.shm", Transport::SharedMemory),
            ("access.judged.null.unix", Transport::Unix),
        ] {
            let [open, judged] = [open.client(place(road))?, judged.client(place(road))?];
            let [open, judged] = [&open, &judged].map(|it| it.service::<dyn Procedures>());
            let mut one = || open.null().map_err(failed);
            let mut call = || judged.null().map_err(failed);
            (0..TRIPS).try_for_each(|_| one().and_then(|()| call()))?;
            let pairs = alternate(rounds(options), || block(&mut one), || block(&mut call))?;
            let n = (rounds(options) * TRIPS) as u64;
            let row = Row::compared(id, "us", &pairs, NO_RIGHTS, n);
            rows.push(row.note("a procedure that takes and gives nothing, of a principal that may call it"));
        }
        let clients = [open.client(place(Transport::Unix))?, judged.client(place(Transport::Unix))?];
        let make = |of: &tercel::Client| of.run(|tx| tx.create(&Counter { count: 0 })).map_err(failed);
        let made = [make(&clients[0])?, make(&clients[1])?];
        let commits = |at: usize| {
            let begun = Instant::now();
            for count in 0..COMMITS as u64 {
                clients[at].run(|tx| tx.edit(made[at])?.set_count(count)).map_err(failed)?;
            }
            Ok::<_, String>(begun.elapsed().as_secs_f64() * 1e6 / COMMITS as f64)
        };
        [0, 1].into_iter().try_for_each(|at| commits(at).map(|_| ()))?;
        let pairs = alternate(rounds(options), || commits(0), || commits(1))?;
        let n = (rounds(options) * COMMITS) as u64;
        let row = Row::compared("access.judged.commit", "us", &pairs, NO_RIGHTS, n);
        rows.push(row.note("a commit of one object, over a Unix socket, of a principal that may write"));
        Ok(rows)
    })
}

/// Fills a space with rights, those of this process among them.
fn give_all(ends: &Ends) -> Result<(), String> {
    let servers = Address::Unix(ends.dir.join("sock")).into();
    let own = Principal::Uid(rustix::process::geteuid().as_raw());
    let give = |who: &Principal, role: &str| {
        let role: Role = role.parse().map_err(failed)?;
        grant(&servers, None, who, &role).map(|_| ()).map_err(failed)
    };
    OWN.iter().try_for_each(|role| give(&own, role))?;
    (OWN.len()..RIGHTS).try_for_each(|n| give(&Principal::Uid(UID_FIRST + n as u32), "read"))
}

/// The roles of this process.
const OWN: [&str; 4] = ["read", "write", "define", "call Procedures"];

/// The rights in a space, at most.
const RIGHTS: usize = 256;

/// Users that are nobody's.
const UID_FIRST: u32 = 3_000_000_000;

const NO_RIGHTS: &str = "a space without rights";

/// Commits of a block, each of which waits for the disk.
const COMMITS: usize = 200;
