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

use crate::{Input, Lead, Output, Sealed, Sequencer};
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
    /// Entries behind the end of that log, or behind the last stable one if that is before, in order, as far
    /// as the group remembers.
    pub entries: Vec<Sealed>,
}

/// The sequencer of a simulated group of one node: it delays stability and deposes the leader.
#[derive(Debug)]
pub struct Delayed {
    config: DelayedConfig,
    random: Random,
    view: ViewId,
    leadership: Leadership,
    /// Set while the server beside it can lead.
    is_ready: bool,
    last: LogPosition,
    /// Entries that are not stable: the oldest first.
    tentative: VecDeque<Tentative>,
    stable: Stamp,
    /// The first entry of this view, once there is one.
    view_first: LogPosition,
    /// The end of the log on this node's disk.
    written: LogPosition,
    cuts: u32,
    submitted: u64,
    reign_entries: u64,
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
        let first_at = stable_at.min(known.local_end);
        let mut group = Delayed {
            config,
            view: known.view,
            leadership: Leadership::Vacant(now),
            is_ready: true,
            last: first_at,
            tentative: VecDeque::new(),
            stable,
            view_first: FAR,
            written: known.local_end,
            cuts: 0,
            submitted: 0,
            reign_entries: 1 + random.below(config.reign_entries),
            confirms: VecDeque::new(),
            first: Vec::new(),
            random,
        };
        let missing = (stable_at.0 - first_at.0) as usize;
        let survive = missing + group.survivors(known.entries.len() - missing);
        let mut first = Vec::new();
        for entry in known.entries.into_iter().take(survive) {
            group.last = group.last.next();
            if group.last > stable_at {
                group.tentative.push_back(Tentative { position: group.last, stamp: entry.stamp, due: NEVER });
            }
            if group.last > known.local_end {
                first.push(Output::Append(group.last, entry));
            }
        }
        if missing > 0 {
            first.push(Output::Stable(stable_at, stable));
        }
        group.cut_above(known.local_end, &mut first);
        group.first = first;
        group.fall_vacant(now);
        group
    }

    /// The position of the last entry that it has, stable or not.
    pub fn end(&self) -> LogPosition {
        self.last
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
        self.confirms.clear();
        let survive = self.survivors(self.tentative.len());
        let before = self.last;
        if let Some(lost) = self.tentative.get(survive) {
            self.last = LogPosition(lost.position.0 - 1);
        }
        self.tentative.truncate(survive);
        self.tentative.iter_mut().for_each(|t| t.due = NEVER);
        self.cut_above(before, out);
        self.fall_vacant(now);
    }

    /// The log of this node ended there, and ends with the last entry now.
    fn cut_above(&mut self, end: LogPosition, out: &mut Vec<Output>) {
        if self.last < end {
            out.push(Output::Cut(self.last));
            self.cuts += 1;
            self.written = self.written.min(self.last);
        }
    }

    fn lead(&mut self, out: &mut Vec<Output>) {
        let incarnation = 1 + self.random.below(u64::from(u32::MAX)) as u32;
        self.view = ViewId::new(self.view.number + 1, incarnation);
        (self.submitted, self.view_first) = (0, FAR);
        self.reign_entries = 1 + self.random.below(self.config.reign_entries);
        self.leadership = Leadership::Leading(None);
        let kept = self.tentative.back().map_or(self.stable, |t| t.stamp);
        out.push(Output::Leading(Lead { view: self.view, kept, is_unsure: false }));
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
        out.push(Output::Append(self.last, entry));
    }

    fn stabilize(&mut self, now: Now, out: &mut Vec<Output>) {
        let ready = self.tentative.iter().take_while(|t| self.is_stable(t, now)).count();
        let reaches_view =
            ready.checked_sub(1).is_some_and(|i| self.tentative[i].position >= self.view_first);
        // What was kept is stable together with the entry that keeps it, or not at all.
        if let Some(t) = self.tentative.drain(..if reaches_view { ready } else { 0 }).next_back() {
            self.stable = t.stamp;
            out.push(Output::Stable(t.position, t.stamp));
        }
    }

    fn is_stable(&self, t: &Tentative, now: Now) -> bool {
        t.due <= now && (self.config.others_suffice || t.position <= self.written)
    }
}

impl Sequencer for Delayed {
    fn handle(&mut self, now: Now, input: Input<'_>, out: &mut Vec<Output>) {
        out.append(&mut self.first);
        // A leader that was deposed in this very moment may still submit: the next view is for the server
        // that joins after it.
        let is_time = matches!(input, Input::Time);
        match input {
            Input::Submit(entry) => self.submit(now, entry, out),
            Input::Written(cuts, position) if cuts == self.cuts || dropped(Rule::CreditsOldWritten) => {
                self.written = self.written.max(position.min(self.last));
            }
            Input::Confirm(id) if matches!(self.leadership, Leadership::Leading(_)) => {
                let us = self.random.below(self.config.stable_us + 1);
                let after = self.confirms.back().map_or(now, |(due, _)| *due);
                self.confirms.push_back((after.max(now.plus_us(us)), id));
            }
            Input::Ready(is_ready) => self.is_ready = is_ready,
            Input::Written(..)
            | Input::Confirm(_)
            | Input::Packet(..)
            | Input::Saved(_)
            | Input::Found(..)
            | Input::Gone(_)
            | Input::MoveLead(_)
            | Input::Time => {}
        }
        match self.leadership {
            Leadership::Leading(Some(at)) if at <= now => self.depose(out, now),
            Leadership::Leading(_) => {
                self.stabilize(now, out);
                while let Some((_, id)) = self.confirms.pop_front_if(|(due, _)| *due <= now) {
                    out.push(Output::Confirmed(id, self.stable));
                }
            }
            Leadership::Vacant(until) if until <= now && is_time && self.is_ready => self.lead(out),
            Leadership::Vacant(_) => {}
        }
    }

    fn deadline(&self) -> Option<Now> {
        let leadership = match self.leadership {
            Leadership::Vacant(until) => Some(until).filter(|_| self.is_ready),
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

    /// A group in which nothing has happened yet.
    fn new(config: DelayedConfig, seed: u64) -> Delayed {
        let known = Known {
            view: ViewId::NONE,
            local_end: LogPosition::ZERO,
            stable: (Stamp::ZERO, LogPosition::ZERO),
            entries: vec![],
        };
        Delayed::new(config, seed, Now(0), known)
    }

    fn entry(stamp: u64, view: ViewId) -> Sealed {
        Sealed { stamp: Stamp(stamp), view, kind: 3, payload: Default::default() }
    }

    /// A leader as simple as can be, a log, and the promises made.
    struct Group {
        sequencer: Delayed,
        view: Option<ViewId>,
        log: Vec<Sealed>,
        cuts: u32,
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
                    Output::Append(position, entry) => {
                        assert_eq!((position.0, Some(entry.view)), (self.log.len() as u64 + 1, self.view));
                        self.log.push(entry);
                    }
                    Output::Stable(position, stamp) => {
                        let upto = position.0 as usize;
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
                        self.cuts += 1;
                    }
                    Output::Leading(lead) => {
                        assert!(self.log.iter().all(|e| e.view < lead.view));
                        assert_eq!(lead.kept, self.log.last().map_or(Stamp::ZERO, |e| e.stamp));
                        self.stamp = lead.kept.0;
                        self.view = Some(lead.view);
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
            let mut d = new(CONFIG, seed);
            let (mut now, mut end, mut view) = (Now(0), 0, None);
            let mut cuts = 0;
            let mut deposed = None;
            for stamp in 1..=60 {
                now = now.plus_us(60_000);
                let mut out = Vec::new();
                d.handle(now, Input::Time, &mut out);
                if let Some(view) = view {
                    d.handle(now, Input::Submit(entry(stamp, view)), &mut out);
                }
                for said in out {
                    match said {
                        Output::Leading(lead) => view = Some(lead.view),
                        Output::Append(position, ..) => end = position.0,
                        Output::Deposed(_) => view = None,
                        Output::Cut(above) => {
                            deposed = Some((cuts, end));
                            cuts += 1;
                            cut += 1;
                            assert!(end > above.0);
                        }
                        other => panic!("seed {seed}: {other:?}, and nothing of the view is written"),
                    }
                }
                if let Some((before, end)) = deposed {
                    d.handle(now, Input::Written(before, LogPosition(end)), &mut Vec::new());
                }
            }
        }
        assert!(cut > 10, "{cut}");
    }

    #[test]
    fn member_that_starts_learns_what_its_log_lacks() {
        let view = ViewId::new(1, 1);
        let start = |local_end, stable, seed| {
            let known = Known {
                view,
                local_end: LogPosition(local_end),
                stable: (Stamp(stable), LogPosition(stable)),
                entries: (local_end.min(stable) + 1..=5).map(|n| entry(n, view)).collect(),
            };
            let (mut d, mut out) = (Delayed::new(CONFIG, seed, Now(0), known), Vec::new());
            d.handle(Now(0), Input::Submit(entry(9, view)), &mut out);
            (d.end().0, out)
        };
        for seed in 0..20 {
            let (end, said) = start(1, 3, seed);
            let lacks = (2..=end).map(|n| Output::Append(LogPosition(n), entry(n, view)));
            assert!(end >= 3);
            assert!(lacks.chain([Output::Stable(LogPosition(3), Stamp(3))]).eq(said));
            let (end, said) = start(5, 3, seed);
            assert!(end >= 3);
            assert!(said.into_iter().eq((end < 5).then_some(Output::Cut(LogPosition(end)))));
        }
    }

    #[test]
    fn late_submit_of_deposed_leader_begins_no_view() {
        let mut d = new(DelayedConfig { vacant_us: 0, ..CONFIG }, 1);
        let mut out = Vec::new();
        d.handle(Now(0), Input::Time, &mut out);
        let Some(Output::Leading(Lead { view, .. })) = out.pop() else { panic!("{out:?}") };
        d.depose(&mut out, Now(9));
        out.clear();
        d.handle(Now(9), Input::Submit(entry(1, view)), &mut out);
        assert!(out.is_empty(), "{out:?}");
        d.handle(Now(9), Input::Time, &mut out);
        assert!(matches!(out[..], [Output::Leading(_)]));
    }

    #[test]
    fn stable_entries_survive_every_deposition() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let mut g = Group {
                sequencer: new(CONFIG, seed),
                view: None,
                log: vec![],
                cuts: 0,
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
                        g.take(Input::Submit(entry(g.stamp, view)));
                    }
                    (1, Some(_)) => g.take(Input::Written(g.cuts, LogPosition(g.log.len() as u64))),
                    _ => g.take(Input::Time),
                }
            }
            assert!(g.deposed > 5 && g.stable.len() > 50, "seed {seed}: {} {}", g.deposed, g.stable.len());
        }
    }
}
