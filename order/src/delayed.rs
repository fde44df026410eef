//! A group of one, for the simulator: everything that a group may do to its leader, and nothing that it must
//! not.
//!
//! Stability lags and now and then stalls. The leader is deposed at any moment; any prefix of what it had
//! ordered and not made stable survives, and the next view, in which the same node leads, begins after that.
//! An entry may be stable although this node's disk does not have it, as where a quorum of others has it. A
//! process that ends is followed by one that receives the group's remaining knowledge ([`Known`]). The
//! invariant: what was reported as stable survives everything.

use std::collections::VecDeque;

use tercel_wire::id::{LogPosition, Stamp, ViewId};

use crate::{Input, Level, Output, Sealed, Sequencer};
use tercel_machine::mutant::{Rule, dropped};
use tercel_machine::random::Random;
use tercel_machine::time::Now;

/// Settings of a group's behaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayedConfig {
    /// The longest time until an entry is stable, in microseconds; one in thirty-two takes fifty times as
    /// long.
    pub stable_us: u64,
    /// Entries of a view, at most, before its leader is deposed.
    pub reign_entries: u64,
    /// The longest time without a leader, in microseconds.
    pub vacant_us: u64,
    /// Set if entries may be stable that this node's disk does not have.
    pub others_suffice: bool,
}

/// Knowledge of a group when one of its members starts.
#[derive(Debug, Clone)]
pub struct Known {
    /// The newest view of anything it has.
    pub view: ViewId,
    /// Where the log of the member that starts ends.
    pub local_end: LogPosition,
    /// The last entry that was reported as stable, and its position.
    pub stable: (Stamp, LogPosition),
    /// Entries that were ordered after that, in order, as far as the group remembers.
    pub suffix: Vec<Sealed>,
}

/// The sequencer of a simulated group of one node: it delays stability and deposes the leader.
#[derive(Debug)]
pub struct Delayed {
    config: DelayedConfig,
    random: Random,
    view: ViewId,
    leadership: Leadership,
    last: LogPosition,
    /// Entries that are not stable: the oldest first.
    tentative: VecDeque<Tentative>,
    stable: Stamp,
    /// The first entry of this view, once there is one.
    view_first: LogPosition,
    /// The end of the log on this node's disk.
    written: LogPosition,
    submitted: u64,
    reign_entries: u64,
    deposed: u64,
    /// Questions whether it leads, and when the others have answered.
    confirms: VecDeque<(Now, u64)>,
    /// Outputs that come before all others.
    first: Vec<Output>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leadership {
    /// No node leads until then.
    Vacant(Now),
    /// This node leads; it is deposed then, if it is known.
    Leading(Option<Now>),
}

#[derive(Debug)]
struct Tentative {
    position: LogPosition,
    stamp: Stamp,
    /// When it is stable; never, until the view that keeps it has begun.
    due: Now,
}

/// Later than any moment of a run.
const NEVER: Now = Now(u64::MAX);
/// Behind every record.
const FAR: LogPosition = LogPosition(u64::MAX);

impl Delayed {
    /// A member starts.
    pub fn new(config: DelayedConfig, seed: u64, now: Now, known: Known) -> Delayed {
        let mut random = Random::new(seed);
        let (stable, stable_at) = known.stable;
        let mut group = Delayed {
            config,
            view: known.view,
            leadership: Leadership::Vacant(now),
            last: stable_at,
            tentative: VecDeque::new(),
            stable,
            view_first: FAR,
            written: known.local_end,
            submitted: 0,
            reign_entries: 1 + random.below(config.reign_entries),
            deposed: 0,
            confirms: VecDeque::new(),
            first: Vec::new(),
            random,
        };
        let survive = group.survivors(known.suffix.len());
        for entry in known.suffix.into_iter().take(survive) {
            group.last = group.last.next();
            group.tentative.push_back(Tentative { position: group.last, stamp: entry.stamp, due: NEVER });
            if group.last > known.local_end {
                group.first.push(Output::Append(group.last, entry.view, entry));
            }
        }
        if known.local_end > group.last {
            group.first.push(Output::Cut(group.last));
        }
        group.fall_vacant(now);
        group
    }

    /// The last entry that was reported as stable.
    pub fn stable(&self) -> Stamp {
        self.stable
    }

    /// The position of the last entry that it has, stable or not.
    pub fn end(&self) -> LogPosition {
        self.last
    }

    /// The number of depositions of its leader.
    pub fn deposed(&self) -> u64 {
        self.deposed
    }

    /// Steps to take, durably, before the log is replayed: the rest of the group has a longer log, or a
    /// shorter one.
    pub fn before_replay(&mut self) -> Vec<Output> {
        self.written = self.last;
        std::mem::take(&mut self.first)
    }

    /// Draws the number of unstable entries that survive: any prefix, often all or none.
    fn survivors(&mut self, of: usize) -> usize {
        match self.random.below(3) {
            0 => of,
            1 => 0,
            _ => self.random.below(of as u64 + 1) as usize,
        }
    }

    fn fall_vacant(&mut self, now: Now) {
        let us = self.random.below(self.config.vacant_us + 1);
        self.leadership = Leadership::Vacant(now.plus_us(us));
    }

    fn depose(&mut self, out: &mut Vec<Output>, now: Now) {
        out.push(Output::Deposed(self.view));
        self.deposed += 1;
        self.confirms.clear();
        let survive = self.survivors(self.tentative.len());
        let before = self.last;
        if let Some(lost) = self.tentative.get(survive) {
            self.last = LogPosition(lost.position.0 - 1);
        }
        self.tentative.truncate(survive);
        self.tentative.iter_mut().for_each(|t| t.due = NEVER);
        if self.last < before {
            out.push(Output::Cut(self.last));
        }
        // The log is idle, and cut, before the member that was deposed is here again.
        self.written = self.last;
        self.fall_vacant(now);
    }

    fn lead(&mut self, out: &mut Vec<Output>) {
        let incarnation = 1 + self.random.below(u64::from(u32::MAX)) as u32;
        self.view = ViewId::new(self.view.number + 1, incarnation);
        (self.submitted, self.view_first) = (0, FAR);
        self.reign_entries = 1 + self.random.below(self.config.reign_entries);
        self.leadership = Leadership::Leading(None);
        out.push(Output::Leading(self.view));
    }

    fn submit(&mut self, now: Now, entry: Sealed, out: &mut Vec<Output>) {
        // A leader that does not know yet that it is deposed takes nothing.
        if entry.view != self.view || !matches!(self.leadership, Leadership::Leading(_)) {
            return;
        }
        self.last = self.last.next();
        let usual = self.random.below(self.config.stable_us + 1);
        let stall = if self.random.below(32) == 0 { 50 } else { 1 };
        let after = self.tentative.back().filter(|t| t.due < NEVER).map_or(now, |t| t.due.max(now));
        let due = after.max(now.plus_us(usual * stall));
        if self.submitted == 0 {
            self.view_first = self.last;
            // What the view kept is stable only with its first entry.
            self.tentative.iter_mut().for_each(|t| t.due = due);
        }
        self.tentative.push_back(Tentative { position: self.last, stamp: entry.stamp, due });
        self.submitted += 1;
        if self.submitted == self.reign_entries {
            let us = self.random.below(4 * self.config.stable_us + 2);
            self.leadership = Leadership::Leading(Some(now.plus_us(us)));
        }
        out.push(Output::Append(self.last, self.view, entry));
    }

    fn stabilize(&mut self, now: Now, out: &mut Vec<Output>) {
        let before = self.stable;
        let ready = self.tentative.iter().take_while(|t| self.is_stable(t, now)).count();
        let reaches_view =
            ready.checked_sub(1).is_some_and(|i| self.tentative[i].position >= self.view_first);
        // What was kept is stable together with the entry that keeps it, or not at all.
        for t in self.tentative.drain(..if reaches_view { ready } else { 0 }) {
            self.stable = t.stamp;
        }
        if self.stable > before {
            out.push(Output::Stable(self.stable, Level::Disk));
        }
    }

    fn is_stable(&self, t: &Tentative, now: Now) -> bool {
        t.due <= now && (self.config.others_suffice || t.position <= self.written)
    }
}

impl Sequencer for Delayed {
    fn handle(&mut self, now: Now, input: Input<'_>, out: &mut Vec<Output>) {
        // A leader that was deposed in this very moment may still submit: the next view is for the server
        // that joins after it.
        let is_time = matches!(input, Input::Time);
        match input {
            Input::Submit { entry, .. } => self.submit(now, entry, out),
            Input::Written(view, position) if view == self.view || dropped(Rule::CreditsOldWritten) => {
                // Until the next view begins, the report may be of entries that were cut.
                self.written = self.written.max(position.min(self.last));
            }
            Input::Confirm(id) if matches!(self.leadership, Leadership::Leading(_)) => {
                let us = self.random.below(self.config.stable_us + 1);
                let after = self.confirms.back().map_or(now, |(due, _)| *due);
                self.confirms.push_back((after.max(now.plus_us(us)), id));
            }
            Input::Written(..) | Input::Confirm(_) | Input::Packet(..) | Input::Gone(_) | Input::Time => {}
        }
        match self.leadership {
            Leadership::Leading(Some(at)) if at <= now => self.depose(out, now),
            Leadership::Leading(_) => {
                self.stabilize(now, out);
                while let Some((_, id)) = self.confirms.pop_front_if(|(due, _)| *due <= now) {
                    out.push(Output::Confirmed(id, self.stable));
                }
            }
            Leadership::Vacant(until) if until <= now && is_time => self.lead(out),
            Leadership::Vacant(_) => {}
        }
    }

    fn deadline(&self) -> Option<Now> {
        let leadership = match self.leadership {
            Leadership::Vacant(until) => Some(until),
            Leadership::Leading(deposed_at) => deposed_at,
        };
        let due = self.tentative.front().map(|t| t.due).filter(|due| *due < NEVER);
        // An entry that waits for the disk waits for the disk's report, not for the time.
        let due = due.filter(|_| {
            self.config.others_suffice || self.tentative.front().is_some_and(|t| t.position <= self.written)
        });
        let confirms = self.confirms.front().map(|(due, _)| *due);
        leadership.into_iter().chain(due).chain(confirms).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: DelayedConfig =
        DelayedConfig { stable_us: 100, reign_entries: 20, vacant_us: 50, others_suffice: false };

    /// A leader as simple as can be, a log, and the promises made.
    struct Group {
        sequencer: Delayed,
        view: Option<ViewId>,
        log: Vec<Sealed>,
        stable: Vec<Sealed>,
        stamp: u64,
        now: Now,
        deposed: u32,
    }

    impl Group {
        fn take(&mut self, input: Input<'_>) {
            let mut out = Vec::new();
            self.sequencer.handle(self.now, input, &mut out);
            for said in out {
                match said {
                    Output::Append(position, view, entry) => {
                        assert_eq!((position.0, Some(view)), (self.log.len() as u64 + 1, self.view));
                        self.log.push(entry);
                    }
                    Output::Stable(stamp, Level::Disk) => {
                        let upto = self.log.iter().take_while(|e| e.stamp <= stamp).count();
                        assert_eq!(self.log[..self.stable.len()], self.stable);
                        assert!(self.log[upto - 1].stamp == stamp && upto > self.stable.len());
                        assert!(
                            self.log[..upto].iter().any(|e| Some(e.view) == self.view),
                            "kept before begun"
                        );
                        self.stable = self.log[..upto].to_vec();
                    }
                    Output::Deposed(view) => {
                        assert_eq!(self.view.take(), Some(view));
                        self.deposed += 1;
                    }
                    Output::Cut(above) => {
                        assert!(self.view.is_none() && above.0 >= self.stable.len() as u64);
                        self.log.truncate(above.0 as usize);
                    }
                    Output::Leading(view) => {
                        assert!(self.log.iter().all(|e| e.view < view));
                        self.view = Some(view);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn word_of_entries_that_were_cut_makes_none_of_the_next_view_stable() {
        let mut cut = 0;
        for seed in 0..20 {
            let known = Known {
                view: ViewId::NONE,
                local_end: LogPosition::ZERO,
                stable: (Stamp::ZERO, LogPosition::ZERO),
                suffix: vec![],
            };
            let mut d = Delayed::new(CONFIG, seed, Now(0), known);
            let (mut now, mut end, mut view) = (Now(0), 0, None);
            let mut deposed = None;
            for stamp in 1..=60 {
                now = now.plus_us(60_000);
                let mut out = Vec::new();
                d.handle(now, Input::Time, &mut out);
                if let Some(view) = view {
                    let entry = Sealed { stamp: Stamp(stamp), view, kind: 3, payload: vec![] };
                    d.handle(now, Input::Submit { entry, level: Level::Disk }, &mut out);
                }
                for said in out {
                    match said {
                        Output::Leading(of) => view = Some(of),
                        Output::Append(position, ..) => end = position.0,
                        Output::Deposed(of) => (deposed, view) = (Some((of, end)), None),
                        Output::Cut(above) => {
                            cut += 1;
                            assert!(end > above.0);
                        }
                        other => panic!("seed {seed}: {other:?}, and nothing of the view is written"),
                    }
                }
                if let Some((of, end)) = deposed {
                    d.handle(now, Input::Written(of, LogPosition(end)), &mut Vec::new());
                }
            }
        }
        assert!(cut > 10, "{cut}");
    }

    #[test]
    fn what_a_deposed_leader_still_submits_begins_no_view() {
        let known = Known {
            view: ViewId::NONE,
            local_end: LogPosition::ZERO,
            stable: (Stamp::ZERO, LogPosition::ZERO),
            suffix: vec![],
        };
        let mut d = Delayed::new(DelayedConfig { vacant_us: 0, ..CONFIG }, 1, Now(0), known);
        let mut out = Vec::new();
        d.handle(Now(0), Input::Time, &mut out);
        let Some(Output::Leading(view)) = out.pop() else { panic!("{out:?}") };
        d.depose(&mut out, Now(9));
        out.clear();
        let entry = Sealed { stamp: Stamp(1), view, kind: 3, payload: vec![] };
        d.handle(Now(9), Input::Submit { entry, level: Level::Disk }, &mut out);
        assert!(out.is_empty(), "{out:?}");
        d.handle(Now(9), Input::Time, &mut out);
        assert!(matches!(out[..], [Output::Leading(_)]));
    }

    #[test]
    fn stable_entries_survive_every_deposition() {
        for seed in 0..50 {
            let known = Known {
                view: ViewId::NONE,
                local_end: LogPosition::ZERO,
                stable: (Stamp::ZERO, LogPosition::ZERO),
                suffix: vec![],
            };
            let mut random = Random::new(seed);
            let sequencer = Delayed::new(CONFIG, seed, Now(0), known);
            let mut g = Group {
                sequencer,
                view: None,
                log: vec![],
                stable: vec![],
                stamp: 0,
                now: Now(0),
                deposed: 0,
            };
            for _ in 0..2_000 {
                g.now = g.now.plus_us(random.below(40));
                match (random.below(3), g.view) {
                    (0, Some(view)) => {
                        g.stamp += 1 + random.below(3);
                        let entry = Sealed { stamp: Stamp(g.stamp), view, kind: 3, payload: vec![] };
                        g.take(Input::Submit { entry, level: Level::Disk });
                    }
                    (1, Some(view)) => g.take(Input::Written(view, LogPosition(g.log.len() as u64))),
                    _ => g.take(Input::Time),
                }
            }
            assert!(g.deposed > 5 && g.stable.len() > 50, "seed {seed}: {} {}", g.deposed, g.stable.len());
        }
    }
}
