//! The plan of a world of lossy links: what a seed draws.

use std::fmt;

use tercel_engine::random::Random;

use crate::rule::{Rule, RunnerRule};

/// The size, the links and the faults of one world.
#[derive(Debug, Clone, PartialEq)]
pub struct LossyPlan {
    /// Everything that happens is drawn from it.
    pub seed: u64,
    /// Client processes.
    pub clients: usize,
    /// Calls of each client before everything is healed.
    pub calls: u64,
    /// Slots that a client is granted.
    pub credit: u16,
    /// Calls that a server runs side by side.
    pub workers: usize,
    /// Slow calls that a server takes.
    pub jobs_max: usize,
    /// Time that a message is on its way, in microseconds at least.
    pub latency_us: u64,
    /// Time between two calls of a client, in microseconds.
    pub think_us: u64,
    /// Calls with streams, in tenths of all.
    pub streams: u64,
    /// The troubles, and how often each strikes.
    pub troubles: Troubles,
    /// Bounds of the engine, where the build lets them be made small.
    pub small: bool,
    /// A rule that is dropped on purpose.
    pub rule: Option<Rule>,
}

/// The frequency of troubles, in thousandths of messages, of calls, or of moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Troubles {
    /// Messages that are lost.
    pub loss: u64,
    /// Messages of which a copy comes later.
    pub copies: u64,
    /// Messages that are overtaken by many others.
    pub late: u64,
    /// Calls whose callers give up at any moment.
    pub cancels: u64,
    /// Calls that have little time.
    pub deadlines: u64,
    /// Ends of the server.
    pub server_ends: u64,
    /// Ends of a client.
    pub client_ends: u64,
    /// Cuts of what is sent in order.
    pub cuts: u64,
    /// Clients that the server forgets, or of which it lets kept answers go.
    pub forgets: u64,
}

/// The names of [`Troubles`] in command lines.
pub const TROUBLES: [&str; 9] =
    ["loss", "copies", "late", "cancels", "deadlines", "server-ends", "client-ends", "cuts", "forgets"];

impl Troubles {
    /// Each with its place in [`TROUBLES`].
    pub(super) fn all(&mut self) -> [&mut u64; 9] {
        [
            &mut self.loss,
            &mut self.copies,
            &mut self.late,
            &mut self.cancels,
            &mut self.deadlines,
            &mut self.server_ends,
            &mut self.client_ends,
            &mut self.cuts,
            &mut self.forgets,
        ]
    }
}

impl LossyPlan {
    /// Draws the plan of a seed. Each leaves some kinds of trouble out and makes others frequent.
    pub fn of(seed: u64) -> LossyPlan {
        let r = &mut Random::new(seed ^ 0x0105_5e50_0000_0001);
        let mut plan = LossyPlan {
            seed,
            clients: 1 + r.index(4),
            calls: 30 + r.below(90),
            credit: *r.pick(&[1, 2, 4, 16]),
            workers: *r.pick(&[1, 2, 4]),
            jobs_max: *r.pick(&[4, 8, 64]),
            latency_us: *r.pick(&[50, 300, 2_000]),
            think_us: *r.pick(&[200, 1_000, 5_000]),
            streams: *r.pick(&[0, 1, 7]),
            troubles: Troubles {
                loss: *r.pick(&[0, 20, 100, 300]),
                copies: *r.pick(&[0, 50, 300]),
                late: *r.pick(&[0, 100, 300]),
                cancels: *r.pick(&[0, 200, 500]),
                deadlines: *r.pick(&[0, 300, 600]),
                server_ends: *r.pick(&[0, 20, 80]),
                client_ends: *r.pick(&[0, 20, 80]),
                cuts: *r.pick(&[0, 50, 200]),
                forgets: *r.pick(&[0, 20, 100]),
            },
            small: r.below(2) == 0,
            rule: None,
        };
        if r.below(3) == 0 {
            // What never ends by itself must not be ended by anything else, or it would not be noticed.
            let Troubles { loss, copies, late, .. } = plan.troubles;
            plan.troubles = Troubles { loss, copies, late, ..Troubles::default() };
        }
        plan
    }

    /// Says whether messages of other tables are believed: a rule of the host's, dropped.
    pub(super) fn believes_all(&self) -> bool {
        self.rule == Some(Rule::Runner(RunnerRule::OldConnectionBelieved))
    }

    /// The same without one kind of trouble. None if there is no such name, or if it is left out already.
    pub fn without(&self, name: &str) -> Option<LossyPlan> {
        let at = TROUBLES.iter().position(|known| *known == name)?;
        let mut plan = self.clone();
        let often = std::mem::take(plan.troubles.all()[at]);
        (often > 0).then_some(plan)
    }
}

/// The command line that makes this world again.
impl fmt::Display for LossyPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = LossyPlan::of(self.seed);
        write!(f, "--lossy --seed {}", self.seed)?;
        if self.clients != all.clients {
            write!(f, " --clients {}", self.clients)?;
        }
        if self.calls != all.calls {
            write!(f, " --calls {}", self.calls)?;
        }
        let mut here = self.troubles;
        let pairs = here.all().into_iter().zip(all.troubles.all()).zip(TROUBLES);
        let left_out: Vec<&str> =
            pairs.filter(|((here, all), _)| here != all).map(|(_, name)| name).collect();
        if !left_out.is_empty() {
            write!(f, " --without {}", left_out.join(","))?;
        }
        if let Some(rule) = self.rule {
            write!(f, " --drop {}", rule.name())?;
        }
        Ok(())
    }
}
