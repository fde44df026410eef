//! `tercel soak --tiers`: payments through gateways, application servers and two groups, while a process of
//! one tier after the other is killed or stopped.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use tercel_term::fail::{Failure, Outcome};
use tercel_term::tiers::{MEMBERS, NAMES, PAIR, Part, Payments, Tiers};
use tercel_term::{Term, count, say, tell, thousands};

use super::{BAR, Every};
use crate::args;

/// The form of `--json`.
#[derive(Serialize)]
struct Run {
    seconds: f64,
    clients: usize,
    payments: u64,
    attempts: u64,
    /// Effects of payments in the groups.
    effects: u64,
    lost: u64,
    doubled: u64,
    /// Answers that said that nobody knows whether a payment was made.
    unknown: u64,
    /// Each answer is the number of a payment of its own.
    numbers_distinct: bool,
    money_constant: bool,
    /// For each kind of fault the longest times without any payment, and how many faults there were.
    pauses: BTreeMap<String, Pause>,
}

#[derive(Serialize, Default)]
struct Pause {
    times: usize,
    worst_ms: f64,
}

/// A fault: what ends or stops, by tier.
#[derive(Clone, Copy)]
enum Met {
    Gateway,
    Application,
    Leader,
    Follower,
}

/// The faults by turns; set if the process is killed, else it is stopped for a while. Gateways, application
/// servers and groups take turns, too.
const TURNS: [(Met, bool); 8] = [
    (Met::Gateway, true),
    (Met::Leader, true),
    (Met::Application, true),
    (Met::Follower, true),
    (Met::Leader, false),
    (Met::Gateway, false),
    (Met::Application, false),
    (Met::Follower, false),
];

pub fn run(args: &args::Soak, every: Every, dir: &Path, term: &Term) -> Outcome {
    let mut tiers = Tiers::start(dir, "soak")?;
    let payments = Payments::new(&tiers);
    let mut pauses = BTreeMap::<String, Pause>::new();
    let begun = Instant::now();
    thread::scope(|scope| {
        let payers: Vec<_> = (0..args.clients)
            .map(|payer| {
                scope.spawn({
                    let payments = &payments;
                    move || payments.pay(payer)
                })
            })
            .collect();
        let program = args.payments.payer.as_deref().map(|command| {
            let payments = &payments;
            scope.spawn(move || payments.pay_by(command))
        });
        let is_paying = || program.as_ref().is_some_and(|program| !program.is_finished());
        let ended = faults((args, &is_paying), every, &mut tiers, (&payments, &mut pauses), term);
        payments.end();
        let program = program.map_or(Ok(()), joined);
        // All are waited for.
        let paid: Vec<_> = payers.into_iter().map(joined).collect();
        paid.into_iter().fold(ended.and(program), Result::and)
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let verdict = payments.judge(&tiers)?;
    tiers.stop()?;
    let run = Run {
        seconds,
        clients: args.clients,
        payments: verdict.keys,
        attempts: payments.attempts(),
        effects: verdict.effects,
        lost: verdict.lost,
        doubled: verdict.doubled,
        unknown: verdict.unknown,
        numbers_distinct: verdict.is_once,
        money_constant: verdict.is_whole,
        pauses,
    };
    run.tell(args.json, verdict.is_sound(), term);
    Ok(if verdict.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

fn joined(payer: thread::ScopedJoinHandle<'_, Result<(), Failure>>) -> Result<(), Failure> {
    payer.join().unwrap_or_else(|_| Err(Failure::new("a payer panicked")))
}

/// Lets the payments go on for their time, and as long as a program of the user's pays, with a fault every so
/// often, and leaves processes that work.
fn faults(
    (args, is_paying): (&args::Soak, &dyn Fn() -> bool),
    every: Every,
    tiers: &mut Tiers,
    (payments, pauses): (&Payments, &mut BTreeMap<String, Pause>),
    term: &Term,
) -> Result<(), Failure> {
    let (begun, end) = (Instant::now(), Duration::from_secs(args.seconds));
    let bar = term.bar(args.seconds, BAR, "soak --tiers");
    for turn in 0_usize.. {
        let next = every.fault.saturating_mul(turn as u32 + 1);
        let is_over = || begun.elapsed() >= end && !is_paying();
        while begun.elapsed() < next && !is_over() {
            thread::sleep(next.saturating_sub(begun.elapsed()).min(BAR_STEP));
            bar.set_position(begun.elapsed().as_secs());
        }
        if is_over() {
            break;
        }
        let (met, is_killed) = TURNS[turn % TURNS.len()];
        let (part, tier) = chosen(tiers, met, turn / TURNS.len())?;
        let since = Instant::now();
        if is_killed {
            tiers.kill(part)?;
        } else {
            tiers.freeze(part, true);
        }
        thread::sleep(every.fault / 2);
        if is_killed {
            tiers.start_again(part, payments)?;
        } else {
            tiers.freeze(part, false);
        }
        payments.wait_for(1)?;
        let what = format!("{tier} {}", if is_killed { "killed" } else { "stopped" });
        let pause = pauses.entry(what).or_default();
        pause.times += 1;
        pause.worst_ms = pause.worst_ms.max(payments.longest_since(since));
    }
    bar.finish_and_clear();
    (0..NAMES.len()).try_for_each(|group| tiers.group(group).settled().map(drop))
}

/// The process that a fault meets, and the name of its tier.
fn chosen(tiers: &Tiers, met: Met, round: usize) -> Result<(Part, &'static str), Failure> {
    let group = round % NAMES.len();
    Ok(match met {
        Met::Gateway => (Part::Gateway(round % PAIR), "gateway"),
        Met::Application => (Part::Application(round % PAIR), "application server"),
        Met::Leader => (Part::Member(group, tiers.group(group).settled()?), "leader"),
        Met::Follower => {
            let leader = tiers.group(group).settled()?;
            (Part::Member(group, (leader + 1 + round % (MEMBERS - 1)) % MEMBERS), "follower")
        }
    })
}

impl Run {
    fn tell(&self, json: bool, is_sound: bool, term: &Term) {
        if json {
            return say!("{}", serde_json::to_string(self).unwrap_or_default());
        }
        tell!(
            "{} {:.0} s, {}, {PAIR} gateways, {PAIR} application servers, {} groups of {MEMBERS}",
            term.bold("soak --tiers"),
            self.seconds,
            count(self.clients as u64, "client", "clients"),
            NAMES.len()
        );
        tell!(
            "  {} payments answered, {:.0} a second, in {} attempts; longest pause, by the fault:",
            thousands(self.payments),
            self.payments as f64 / self.seconds,
            thousands(self.attempts)
        );
        for (fault, Pause { times, worst_ms }) in &self.pauses {
            tell!("    {fault:<28} {worst_ms:>6.0} ms ({times} times)");
        }
        let verdict = format!(
            "lost {}, doubled {}, unknown {}, answers {}, money {}",
            self.lost,
            self.doubled,
            self.unknown,
            if self.numbers_distinct { "distinct" } else { "not distinct" },
            if self.money_constant { "constant" } else { "not constant" }
        );
        tell!("  {}", if is_sound { term.green(&verdict) } else { term.red(&verdict) });
    }
}

/// Time between two moves of the bar.
const BAR_STEP: Duration = Duration::from_millis(500);
