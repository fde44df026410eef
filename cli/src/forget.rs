//! `tercel forget`.

use std::process::ExitCode;

use tercel::{SpaceId, tools};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::say;

use crate::args;
use crate::space;

const LISTED: &str = "`tercel stat --json` lists under `rests_on` the spaces that it rests on";

pub fn run(args: &args::Forget) -> Outcome {
    let other = u64::from_str_radix(&args.other, 16);
    let other = other.map_err(|_| {
        let failure = Failure::new(format!("{} is not the id of a space", args.other));
        failure.next(LISTED)
    })?;
    let client = space::open(&args.space)?;
    let status = client.server_status()?;
    // Each is a space and a stamp.
    let is_it = |on: &String| on.split(':').next() == Some(&format!("{other:x}"));
    if !status.rests_on.iter().any(is_it) {
        let failure = Failure::new(format!("the space does not rest on {other:x}"));
        return Err(failure.next(LISTED));
    }
    tools::forget_space(&client, SpaceId(other))?;
    say!("the space rests on {other:x} no longer");
    space::close(client)?;
    Ok(ExitCode::SUCCESS)
}
