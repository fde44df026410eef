//! The demonstration of three tiers: payments over two groups through application servers and gateways, all
//! of which are killed, and each payment has one effect.

use std::path::Path;
use std::thread;
use std::time::Instant;

use tercel_term::fail::Failure;
use tercel_term::tiers::{MEMBERS, NAMES, PAIR, Part, Payments, Tiers};
use tercel_term::{Term, tell, thousands};

/// Half of them pay by HTTP.
const PAYERS: usize = 4;
/// Payments before something is killed, and behind it.
const PAYMENTS: u64 = 40;

/// Shows payments through three tiers, each of which loses each of its processes.
pub fn run(dir: &Path, term: &Term) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut tiers = Tiers::start(dir, "demo")?;
    tell!(
        "{} 2 gateways, 2 application servers, 2 groups of {MEMBERS} servers: 10 processes, up in {:.1} s",
        term.bold("tiers"),
        begun.elapsed().as_secs_f64()
    );
    let payments = Payments::new(&tiers);
    let began = Instant::now();
    thread::scope(|scope| {
        let payments = &payments;
        let payers: Vec<_> = (0..PAYERS).map(|payer| scope.spawn(move || payments.pay(payer))).collect();
        let ended = scenes(&mut tiers, payments, term);
        payments.end();
        let paid = payers.into_iter().map(|payer| match payer.join() {
            Ok(paid) => paid,
            Err(_) => Err(Failure::new("a payer panicked")),
        });
        // All are waited for.
        let paid: Vec<Result<(), Failure>> = paid.collect();
        paid.into_iter().fold(ended, Result::and)
    })?;
    let took = began.elapsed().as_secs_f64();
    tell!(
        "{} {} in {took:.1} s, {:.0} a second, in {} attempts",
        term.bold("payments"),
        thousands(payments.count()),
        payments.count() as f64 / took,
        thousands(payments.attempts())
    );
    let verdict = payments.judge(&tiers)?;
    let line = format!(
        "{} keys, {} effects; {} and {} cents in the groups, {} together",
        thousands(verdict.keys),
        thousands(verdict.effects),
        verdict.cents[0],
        verdict.cents[1],
        verdict.cents.iter().sum::<i64>()
    );
    tell!("  {}", if verdict.is_sound() { term.green(&line) } else { term.red(&line) });
    if !verdict.is_sound() {
        return Err(Failure::new("payments were lost or made twice"));
    }
    tiers.stop()
}

fn scenes(tiers: &mut Tiers, payments: &Payments, term: &Term) -> Result<(), Failure> {
    payments.wait_for(PAYMENTS)?;
    let ends = |tiers: &mut Tiers, part: Part, what: String| {
        let since = Instant::now();
        tiers.kill(part)?;
        payments.wait_for(PAYMENTS)?;
        tiers.start_again(part, payments)?;
        let waited = payments.longest_since(since);
        tell!("{} {what}: the longest wait for a payment was {waited:.0} ms", term.bold("kill"));
        Ok::<(), Failure>(())
    };
    for i in 0..PAIR {
        ends(tiers, Part::Gateway(i), format!("gateway {}", i + 1))?;
    }
    for i in 0..PAIR {
        ends(tiers, Part::Application(i), format!("application server {}", i + 1))?;
    }
    for (group, name) in NAMES.iter().enumerate() {
        for _ in 0..MEMBERS {
            let leader = tiers.group(group).settled()?;
            let part = Part::Member(group, leader);
            ends(tiers, part, format!("the leader of the {name}, member {}", leader + 1))?;
        }
    }
    payments.wait_for(PAYMENTS)
}
