//! `tercel settle`.

use std::process::ExitCode;

use tercel::status::Part;
use tercel::tools::wire::message::Settle;
use tercel::{SpaceId, Stamp, tools};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::{say, thousands};

use crate::{args, group, space};

pub fn run(args: &args::Settle) -> Outcome {
    let client = space::open(&args.space)?;
    let waiting = client.server_status()?.leading.map_or(Vec::new(), |leading| leading.across.parts);
    let found = waiting.iter().find(|one| one.prepared == args.prepared);
    let found = found.ok_or_else(|| {
        Failure::new(format!("nothing that was prepared at {} waits for its end", args.prepared))
            .next("`tercel stat` lists the oldest that do; one that is settled needs nothing more")
    })?;
    let settle = settle(args, found).ok_or_else(|| {
        Failure::new(format!("the server's status lists what is no transaction: {found:?}"))
    })?;
    let end = if args.commit { "committed" } else { "aborted" };
    say!(
        "transaction {} of space {:x}, prepared at {}, waits for {} ms",
        settle.of,
        settle.coordinator.0,
        args.prepared,
        thousands(found.age_ms)
    );
    say!("it is {end} in this space alone: see that its other spaces end it in the same way");
    if !args.yes {
        group::agreed(
            &format!("if space {:x} cannot be asked any more, answer `yes`:", settle.coordinator.0),
            "if the space that decides is gone for good, run the same command with --yes",
        )?;
    }
    tools::settle(&client, settle)?;
    say!("{end}");
    space::close(client)?;
    Ok(ExitCode::SUCCESS)
}

/// The end of a transaction that the status lists.
fn settle(args: &args::Settle, found: &Part) -> Option<Settle> {
    let prepared = Stamp(args.prepared);
    let seen = args.commit.then(|| args.seen.clone().unwrap_or_default());
    Some(Settle {
        of: found.of.parse().ok()?,
        coordinator: SpaceId(u64::from_str_radix(&found.coordinator, 16).ok()?),
        prepared,
        seen,
        view: None,
    })
}
