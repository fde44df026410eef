//! `tercel forget`.

use std::process::ExitCode;

use tercel::{SpaceId, tools};
use tercel_term::fail::{Failure, Outcome};
use tercel_term::say;

use crate::args;
use crate::space;

pub fn run(args: &args::Forget) -> Outcome {
    let other = u64::from_str_radix(&args.other, 16);
    let other = other.map_err(|_| {
        let failure = Failure::new(format!("{} is not the id of a space", args.other));
        failure.next("`tercel stat --json` lists under `rests_on` the spaces that it rests on")
    })?;
    let client = space::open(&args.space)?;
    tools::forget_space(&client, SpaceId(other))?;
    say!("the space rests on {other:x} no longer");
    space::close(client)?;
    Ok(ExitCode::SUCCESS)
}
