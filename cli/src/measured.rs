//! `tercel bench` and `tercel soak`: the program beside this one that has them.

use std::os::unix::process::CommandExt;
use std::process::Command;

use tercel_term::fail::{Failure, Outcome};
use tercel_term::process::beside;

/// Becomes that program, with the command line as it is.
pub fn run() -> Outcome {
    let program = beside("tercel-bench", "tercel-bench")?;
    let e = Command::new(&program).args(std::env::args_os().skip(1)).exec();
    Err(Failure::new(format!("cannot run {}: {e}", program.display())))
}
