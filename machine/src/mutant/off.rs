//! Without `--cfg tercel_mutants`: every rule holds, every bound is the usual one.

use super::Rule;

/// Says whether the rule is dropped here: never in this build.
#[inline(always)]
pub const fn dropped(_: Rule) -> bool {
    false
}

/// The usual bound.
#[inline(always)]
pub const fn bound(usual: usize, _small: usize) -> usize {
    usual
}
