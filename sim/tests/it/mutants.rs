//! Rules dropped on purpose are noticed: the checkers and the worlds prove something.
//!
//! `RUSTFLAGS='--cfg tercel_mutants' CARGO_TARGET_DIR=target/mutants cargo test --release -p tercel-sim`

use std::sync::Mutex;

use tercel_sim::hunt::{IMPOSSIBLE, VARIANTS, hunt, line, side_by_side};
use tercel_sim::lossy::hunt as lossy;
use tercel_sim::lossy::plan::LossyPlan;
use tercel_sim::rule::Rule;
use tercel_sim::{Plan, run};

#[test]
fn every_dropped_rule_is_noticed_within_its_number_of_worlds() {
    let missed = Mutex::new(Vec::new());
    side_by_side(VARIANTS, 2, |variant| {
        let caught = hunt(variant, variant.worlds_max);
        println!("{}", line(variant, caught.as_ref()));
        if caught.is_none() {
            missed.lock().unwrap().push(variant.rule.name());
        }
    });
    IMPOSSIBLE.iter().for_each(|(rule, why)| println!("cannot be dropped: {rule}: {why}"));
    assert_eq!(missed.into_inner().unwrap(), Vec::<String>::new());
}

#[test]
fn every_rule_that_can_be_dropped_is_in_the_table() {
    for rule in Rule::all() {
        let here = VARIANTS.iter().any(|v| v.rule == rule);
        assert!(here || lossy::RULES.contains(&rule), "{}", rule.name());
    }
    assert!(VARIANTS.len() >= 25);
}

#[test]
fn every_dropped_rule_of_calls_is_noticed_where_links_are_lossy() {
    for rule in lossy::RULES {
        let caught = lossy::hunt(*rule, lossy::WORLDS_MAX);
        println!("{}", lossy::line(*rule, caught.as_ref()));
        assert!(caught.is_some(), "{}", rule.name());
    }
}

/// A world that fails is told again in a shorter form, which fails too.
#[test]
fn failure_on_lossy_links_is_shrunk() {
    let plan = LossyPlan { rule: Some(lossy::RULES[0]), ..LossyPlan::of(1) };
    let short = lossy::shrink(&plan);
    assert!(short.calls < plan.calls, "{short}");
    assert!(!tercel_sim::lossy::run(&short, false).blames.is_empty());
}

/// A finding must come from the variant, not from its tuning.
#[test]
fn the_true_engine_passes_the_tuned_worlds() {
    for variant in VARIANTS.iter().filter(|v| v.tune.is_some()) {
        for seed in 0..4 {
            let plan = Plan { rule: None, ..tercel_sim::hunt::plan(variant, seed) };
            let report = run(&plan, false);
            assert!(report.blames.is_empty(), "{} {seed}: {:?}", variant.rule.name(), report.blames);
        }
    }
}

/// Bounds are so small that short histories reach them: evictions, floors, horizons, checkpoints.
#[test]
fn the_true_engine_passes_with_small_bounds() {
    for seed in 0..60 {
        let report = run(&Plan { small: true, ..Plan::of(seed) }, false);
        assert!(report.blames.is_empty(), "seed {seed}: {:?}", report.blames);
    }
}
