//! A shorter script of a failure: fewer faults, fewer commits, fewer clients, as long as it still fails.
//!
//! Delta debugging (Zeller, Hildebrandt, TSE 2002) on the list of faults; the rest is halved. A world that
//! differs in anything is another world, so what is kept is whatever fails, not the same failure.

use crate::plan::Plan;
use crate::run::run;

/// The shortest failing plan that was found in so many runs.
pub fn shrink(plan: &Plan, runs_max: u32) -> Plan {
    let mut best = Shrinking { plan: plan.clone(), runs_left: runs_max };
    loop {
        let before = best.plan.clone();
        best.fewer_commits();
        best.fewer_faults();
        best.fewer_hands();
        if best.plan == before || best.runs_left == 0 {
            return best.plan;
        }
    }
}

struct Shrinking {
    plan: Plan,
    runs_left: u32,
}

impl Shrinking {
    /// Takes a plan if it fails.
    fn takes(&mut self, plan: Plan) -> bool {
        if self.runs_left == 0 {
            return false;
        }
        self.runs_left -= 1;
        let fails = !run(&plan, false).blames.is_empty();
        if fails {
            self.plan = plan;
        }
        fails
    }

    fn fewer_commits(&mut self) {
        while self.plan.commits > 1 {
            let commits = self.plan.commits / 2;
            if !self.takes(Plan { commits, ..self.plan.clone() }) {
                return;
            }
        }
    }

    fn fewer_faults(&mut self) {
        let mut parts = 1;
        loop {
            let kept = self.plan.kept();
            if kept.is_empty() || parts > 2 * kept.len() {
                return;
            }
            let size = kept.len().div_ceil(parts).max(1);
            let shorter = (0..kept.len()).step_by(size).find_map(|from| {
                let rest: Vec<usize> = kept
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| !(from..from + size).contains(i))
                    .map(|(_, k)| *k)
                    .collect();
                self.takes(self.plan.keep(&rest)).then_some(())
            });
            if shorter.is_none() {
                if size == 1 {
                    return;
                }
                parts *= 2;
            }
        }
    }

    fn fewer_hands(&mut self) {
        while self.plan.threads > 1
            && self.takes(Plan { threads: self.plan.threads - 1, ..self.plan.clone() })
        {}
        while self.plan.watchers > 0
            && self.takes(Plan { watchers: self.plan.watchers - 1, ..self.plan.clone() })
        {}
        while self.plan.inside > 0 && self.takes(Plan { inside: self.plan.inside - 1, ..self.plan.clone() }) {
        }
        while self.plan.clients > 1
            && self.takes(Plan { clients: self.plan.clients - 1, ..self.plan.clone() })
        {}
    }
}
