//! `tercel bench`: the command line of the measurements.

use tercel_bench::{Options, Suite, command};
use tercel_term::fail::Outcome;

use crate::args;

pub fn run(args: args::Bench) -> Outcome {
    let suite = match args.suite {
        args::Suite::Oo7 => Suite::Oo7,
        args::Suite::Commit => Suite::Commit,
        args::Suite::Graph => Suite::Graph,
        args::Suite::Idle => Suite::Idle,
        args::Suite::Load => Suite::Load,
        args::Suite::Stale => Suite::Stale,
        args::Suite::Churn => Suite::Churn,
        args::Suite::Flex => Suite::Flex,
        args::Suite::Rpc => Suite::Rpc,
    };
    let options =
        Options { quick: args.quick, dir: args.dir, connections: args.connections, only: args.only };
    command(suite, options, args.json, args.report.as_deref())
}
