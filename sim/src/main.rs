//! Runs worlds: one with a trace of what happens in it, or many side by side.
//!
//! `tercel-sim --seed 17` plays one and prints what happens; `tercel-sim --seeds 0..2000` runs many and
//! prints what they did. A failure is one line, the command that plays it again in its shortest form.
//! `tercel-sim --check FILE` judges a history that was written with `--history FILE`, here or by another
//! program.
//!
//! Exit codes: 0 nothing was wrong; 1 something was, or it could not be done; 2 the command line is wrong.

mod many;
mod many_lossy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use tercel_sim::hunt::VARIANTS;
use tercel_sim::lossy::plan::{LossyPlan, TROUBLES};
use tercel_sim::rule::{BUILD, Rule};
use tercel_sim::{Plan, Report, run};
use tercel_verify::History;

/// The engine in worlds made from seeds.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// Plays one world and prints what happens in it.
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Runs many worlds, B left out; 0..200 if nothing is said.
    #[arg(long, value_name = "A..B", value_parser = range)]
    seeds: Option<(u64, u64)>,
    /// Judges a history in a file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "seeds", "hunt", "drop", "history"])]
    check: Option<PathBuf>,
    /// Worlds that run side by side; as many as there are processors if it is not said.
    #[arg(long)]
    jobs: Option<usize>,
    #[command(flatten)]
    chosen: Chosen,
    /// Drops a rule on purpose. A rule of the engine can be dropped only in a build with
    /// `--cfg tercel_mutants`:
    /// `RUSTFLAGS='--cfg tercel_mutants' CARGO_TARGET_DIR=target/mutants cargo run --release -p tercel-sim -- --drop RULE`.
    #[arg(long, value_name = "RULE")]
    drop: Option<String>,
    /// Drops each rule in turn, or that of --drop, and says after how many worlds that is noticed, at most so
    /// many. Needs a build with `--cfg tercel_mutants`, too.
    #[arg(long, value_name = "WORLDS", conflicts_with_all = ["seed", "seeds"])]
    hunt: Option<u64>,
    /// Makes the world, or the worlds, as the last hunt for this rule does, where what the rule forbids can
    /// happen. Drops nothing.
    #[arg(long, value_name = "RULE", conflicts_with = "hunt")]
    tuned: Option<String>,
    /// Writes the history of the one world to a file.
    #[arg(long, value_name = "FILE", requires = "seed", conflicts_with_all = ["seeds", "hunt"])]
    history: Option<PathBuf>,
    #[command(flatten)]
    calls: Calls,
    /// Prints no trace.
    #[arg(long)]
    quiet: bool,
    /// Takes failures as they come and does not look for shorter ones.
    #[arg(long)]
    no_shrink: bool,
}

/// The choices that a world has instead of those that its seed draws.
#[derive(Debug, clap::Args)]
struct Chosen {
    /// Clients instead of what the seed draws.
    #[arg(long)]
    clients: Option<usize>,
    /// Threads of each client instead of what the seed draws.
    #[arg(long)]
    threads: Option<usize>,
    /// Threads of a program inside of the server instead of what the seed draws.
    #[arg(long)]
    inside: Option<usize>,
    /// Threads that watch objects instead of what the seed draws.
    #[arg(long)]
    watchers: Option<usize>,
    /// Servers of a group instead of what the seed draws; 0 is a server alone.
    #[arg(long)]
    members: Option<usize>,
    /// Small bounds of the engine, or not, instead of what the seed draws. Needs a build as --drop does.
    #[arg(long, value_name = "BOOL")]
    small: Option<bool>,
    /// Commits before everything is healed, instead of what the seed draws.
    #[arg(long)]
    commits: Option<u64>,
    /// Which of the seed's faults strike, by their numbers, with commas between them; or `none`.
    #[arg(long, value_name = "LIST")]
    faults: Option<String>,
}

/// Worlds of calls over lossy links.
#[derive(Debug, clap::Args)]
struct Calls {
    /// Plays worlds of another kind: calls of services over links that lose messages, send them twice, and
    /// let them overtake each other.
    #[arg(long, conflicts_with_all = ["check", "hunt", "history", "tuned", "faults", "commits", "threads", "inside", "watchers"])]
    lossy: bool,
    /// Calls of each client of such a world, instead of what the seed draws.
    #[arg(long, requires = "lossy")]
    calls: Option<u64>,
    /// Troubles that such a world does not have, with commas between: loss, copies, late, cancels, deadlines,
    /// server-ends, client-ends, cuts, forgets.
    #[arg(long, value_name = "LIST", requires = "lossy")]
    without: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match act(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("tercel-sim: {}", why.text);
            ExitCode::from(why.code)
        }
    }
}

/// Why nothing came of it.
struct Failure {
    text: String,
    code: u8,
}

impl Failure {
    /// The command line must change.
    fn usage(text: String) -> Failure {
        Failure { text, code: 2 }
    }

    fn of_file(file: &Path, why: impl std::fmt::Display) -> Failure {
        Failure { text: format!("{}: {why}", file.display()), code: 1 }
    }
}

/// Acts as the arguments say; `true` if nothing was wrong.
fn act(args: &Args) -> Result<bool, Failure> {
    if let Some(file) = &args.check {
        let text = std::fs::read_to_string(file).map_err(|e| Failure::of_file(file, e))?;
        let history = History::from_json(&text).map_err(|e| Failure::of_file(file, e))?;
        let found = tercel_verify::check(&history);
        found.iter().for_each(|v| println!("{v}"));
        println!("{} transactions, {} violations", history.transactions.len(), found.len());
        return Ok(found.is_empty());
    }
    let rule = rule(args)?;
    if let Some(worlds) = args.hunt {
        return Ok(many::hunt_all(rule, worlds));
    }
    if args.calls.lossy {
        let (from, to) = args.seed.map(|seed| (seed, seed + 1)).or(args.seeds).unwrap_or((0, 200));
        let plans = (from..to).map(|seed| lossy_plan(args, rule, seed)).collect::<Result<Vec<_>, _>>()?;
        return Ok(match (args.seed, plans.first()) {
            (Some(_), Some(plan)) => many_lossy::one(plan, !args.quiet),
            _ => many_lossy::run_all(&plans, args.jobs, !args.no_shrink),
        });
    }
    match (args.seed, args.seeds) {
        (Some(seed), _) => one(args, &plan(args, rule, seed)?),
        (None, seeds) => {
            let (from, to) = seeds.unwrap_or((0, 200));
            let plans = (from..to).map(|seed| plan(args, rule, seed)).collect::<Result<Vec<_>, _>>()?;
            Ok(many::run(&plans, args.jobs, !args.no_shrink))
        }
    }
}

/// The rule of that name.
fn named(name: &String) -> Result<Rule, Failure> {
    Rule::named(name).ok_or_else(|| {
        let all: Vec<String> = Rule::all().into_iter().map(Rule::name).collect();
        Failure::usage(format!("{name} is no rule; these are: {}", all.join(", ")))
    })
}

/// The rule to drop, which this build must be able to drop.
fn rule(args: &Args) -> Result<Option<Rule>, Failure> {
    let rule = args.drop.as_ref().map(named).transpose()?;
    let possible = match rule {
        Some(rule) => rule.can_be_dropped(),
        None => args.hunt.is_none() || Rule::all().into_iter().all(Rule::can_be_dropped),
    };
    if possible {
        return Ok(rule);
    }
    let said: Vec<String> = std::env::args().skip(1).collect();
    Err(Failure::usage(format!(
        "rules of the engine can be dropped only in a build with `--cfg tercel_mutants`; run\n  \
         {BUILD} cargo run --release -p tercel-sim -- {}",
        said.join(" ")
    )))
}

fn one(args: &Args, plan: &Plan) -> Result<bool, Failure> {
    let Report { blames, counts, history, trace, .. } = run(plan, !args.quiet);
    print!("{trace}");
    println!("{}", many::summary(&counts));
    if let Some(file) = &args.history {
        std::fs::write(file, history.to_json()).map_err(|e| Failure::of_file(file, e))?;
    }
    blames.iter().for_each(|what| println!("WRONG: {what}"));
    println!("{} violations", blames.len());
    Ok(blames.is_empty())
}

fn plan(args: &Args, rule: Option<Rule>, seed: u64) -> Result<Plan, Failure> {
    let tuned = args.tuned.as_ref().map(named).transpose()?;
    let variant = VARIANTS.iter().rev().find(|v| Some(v.rule) == tuned);
    let mut plan = match variant {
        Some(variant) => Plan { rule, ..tercel_sim::hunt::plan(variant, seed) },
        None => Plan { rule, ..Plan::of(seed) },
    };
    if let Some(list) = &args.chosen.faults {
        let numbers = list.split(',').filter(|n| *n != "none");
        let wrong = |n: &str| Failure::usage(format!("{n} is not the number of a fault"));
        let kept = numbers.map(|n| n.trim().parse().map_err(|_| wrong(n)));
        plan = plan.keep(&kept.collect::<Result<Vec<usize>, _>>()?);
    }
    plan.clients = args.chosen.clients.unwrap_or(plan.clients).max(1);
    plan.threads = args.chosen.threads.unwrap_or(plan.threads).max(1);
    plan.inside = args.chosen.inside.unwrap_or(plan.inside);
    plan.watchers = args.chosen.watchers.unwrap_or(plan.watchers);
    plan.commits = args.chosen.commits.unwrap_or(plan.commits);
    plan.small = args.chosen.small.unwrap_or(plan.small);
    if let Some(members) = args.chosen.members {
        plan = plan.with_members(members);
    }
    Ok(plan)
}

fn lossy_plan(args: &Args, rule: Option<Rule>, seed: u64) -> Result<LossyPlan, Failure> {
    let mut plan = LossyPlan { rule, ..LossyPlan::of(seed) };
    for name in args.calls.without.iter().flat_map(|list| list.split(',')) {
        if !TROUBLES.contains(&name) {
            return Err(Failure::usage(format!("{name} is no trouble; these are: {}", TROUBLES.join(", "))));
        }
        plan = plan.without(name).unwrap_or(plan);
    }
    plan.clients = args.chosen.clients.unwrap_or(plan.clients).max(1);
    plan.calls = args.calls.calls.unwrap_or(plan.calls);
    Ok(plan)
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once("..").ok_or("it is two numbers with .. between them")?;
    let number = |n: &str| n.parse::<u64>().map_err(|_| format!("{n} is not a number"));
    let (from, to) = (number(from)?, number(to)?);
    match from < to {
        true => Ok((from, to)),
        false => Err(format!("there is no world in it: {to} is left out, so it must be above {from}")),
    }
}
