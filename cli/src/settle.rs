//! `tercel settle`.

use std::process::ExitCode;

use serde_json::Value;
use tercel::tools::wire::message::Settle;
use tercel::{SpaceId, Stamp, tools};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::{say, thousands};

use crate::{args, group, space};

pub fn run(args: &args::Settle) -> Outcome {
    let client = space::open(&args.space)?;
    let status: Value = serde_json::from_str(&client.server_status()?)
        .map_err(|e| Failure::new(format!("the server's status: {e}")))?;
    let waiting = status["across"]["parts"].as_array().into_iter().flatten();
    let found = waiting.into_iter().find(|one| one["prepared"].as_u64() == Some(args.prepared));
    let found = found.ok_or_else(|| {
        Failure::new(format!("nothing that was prepared at {} waits for its end", args.prepared))
            .next("`tercel stat` lists the oldest that do; one that is settled needs nothing more")
    })?;
    let settle = settle(args, found)
        .ok_or_else(|| Failure::new(format!("the server's status lists what is no transaction: {found}")))?;
    let end = if args.commit { "committed" } else { "aborted" };
    say!(
        "transaction {} of space {:x}, prepared at {}, waits for {} ms",
        settle.of,
        settle.coordinator.0,
        args.prepared,
        thousands(found["age_ms"].as_u64().unwrap_or(0))
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
fn settle(args: &args::Settle, found: &Value) -> Option<Settle> {
    let space = |value: &Value| Some(SpaceId(u64::from_str_radix(value.as_str()?, 16).ok()?));
    let prepared = Stamp(args.prepared);
    let seen = args.commit.then(|| args.seen.clone().unwrap_or_default());
    Some(Settle {
        of: found["of"].as_str()?.parse().ok()?,
        coordinator: space(&found["coordinator"])?,
        prepared,
        seen,
        view: None,
    })
}
