//! Builds with `--cfg tercel_mutants`: the rule that this thread drops.

use std::cell::Cell;

use super::Rule;

thread_local! {
    static DROPPED: Cell<Option<Rule>> = const { Cell::new(None) };
    static SMALL: Cell<bool> = const { Cell::new(false) };
}

/// Says whether the rule is dropped on this thread.
pub fn dropped(rule: Rule) -> bool {
    DROPPED.get() == Some(rule)
}

/// Drops a rule on this thread, or none.
pub fn drop_rule(rule: Option<Rule>) {
    DROPPED.set(rule);
}

/// Which of two bounds holds on this thread.
pub fn bound(usual: usize, small: usize) -> usize {
    if SMALL.get() { small } else { usual }
}

/// Makes bounds small on this thread, so that short histories reach them.
pub fn shrink_bounds(small: bool) {
    SMALL.set(small);
}
