//! The latest states of several spaces that fit each other, of what backups or archives have of them.
//!
//! Each space has a state and the log behind it. A *cut* names a stamp of each, at or behind its
//! state. It fits if no space has an effect without its cause:
//!
//! - no space rests on more of another than the cut has of that;
//! - a decision comes with all the parts that it decides;
//! - where a decision is forgotten, its parts are settled.
//!
//! A part that is prepared in a cut which fits has its decision there, or it was decided later, and nobody in
//! the cut has seen that: it is aborted. Rules of this form have one greatest solution: whoever has too much
//! is cut back, until nobody has. If each log goes on until a moment at which all the states were there, what
//! was stable at that moment is a solution, so there is one behind all states.

use std::collections::BTreeMap;

use tercel_wire::cursor::DecodeError;
use tercel_wire::id::{OpId, SpaceId, Stamp};
use tercel_wire::message::Prepared;
use tercel_wire::vector::{Seen, Vector};
use thiserror::Error;

use super::Replica;
use super::entry::{Entry, kind};
use crate::mutant::{Rule, dropped};
use crate::order::Sealed;

/// The known part of a space's history.
#[derive(Debug, Clone, Copy)]
pub struct Extent<'a> {
    /// The space.
    pub space: SpaceId,
    /// The state of the space at a stamp.
    pub state: &'a Replica,
    /// Entries in order, those behind that stamp among them.
    pub log: &'a [Sealed],
}

/// Why there is no cut.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoCut {
    /// An entry cannot be read.
    #[error("the log's entry {stamp} of space {:x} cannot be read: {error}", .space.0)]
    Entry {
        /// The space.
        space: SpaceId,
        /// The place of the entry in the commit order.
        stamp: Stamp,
        /// The error.
        error: DecodeError,
    },
    /// Even the earliest state of a space needs more of another than there is.
    #[error("the earliest state of space {:x} needs commit {needs} of space {:x}, of which there is less", .space.0, .of.0)]
    Late {
        /// The space.
        space: SpaceId,
        /// The other one.
        of: SpaceId,
        /// The commit that it needs.
        needs: Stamp,
    },
}

/// By space, the stamps from which on so much is needed of it, rising.
type Needs = BTreeMap<SpaceId, Vec<(Stamp, Stamp)>>;

/// By the stamp at which a part was prepared, the stamp at which the log settles it.
type Settled = BTreeMap<Stamp, Stamp>;

/// Finds the latest cut that fits: for each space, in their order, a stamp up to which entries belong to it.
/// The logs may leave out what is neither of several spaces nor the last entry.
///
/// # Errors
/// If there is none.
pub fn latest(extents: &[Extent<'_>]) -> Result<Vec<Stamp>, NoCut> {
    let settled: Vec<Settled> = extents.iter().map(settled).collect();
    let all: Vec<_> = extents.iter().zip(&settled).collect();
    let needs = extents.iter().map(|of| needs(of, &all)).collect::<Result<Vec<_>, _>>()?;
    let ends = extents.iter().map(|of| of.log.last().map_or(of.state.stamp, |e| e.stamp.max(of.state.stamp)));
    let mut cut: Vec<Stamp> = ends.collect();
    loop {
        let before = cut.clone();
        for (i, of) in extents.iter().enumerate() {
            for (j, other) in extents.iter().enumerate() {
                let Some(needed) = needs[i].get(&other.space) else { continue };
                let enough = needed.partition_point(|(_, least)| *least <= cut[j]);
                let Some((from, least)) = needed.get(enough).copied().filter(|(from, _)| *from <= cut[i])
                else {
                    continue;
                };
                if from <= of.state.stamp {
                    return Err(NoCut::Late { space: of.space, of: other.space, needs: least });
                }
                cut[i] = Stamp(from.0 - 1).max(of.state.stamp);
            }
        }
        if cut == before || dropped(Rule::CutBackOnce) {
            return Ok(cut);
        }
    }
}

/// Finds the states of others that a space needs, and from which of its stamps on.
fn needs(of: &Extent<'_>, all: &[(&Extent<'_>, &Settled)]) -> Result<Needs, NoCut> {
    let mut needs = Needs::default();
    let mut decided: BTreeMap<OpId, Vec<Prepared>> =
        of.state.decisions.iter().map(|(_, decided)| (decided.op, decided.parts.clone())).collect();
    rest(&mut needs, of.state.stamp, of.state.dependencies.all());
    for (stamp, entry) in behind(of) {
        let entry = entry.map_err(|error| NoCut::Entry { space: of.space, stamp, error })?;
        match entry {
            Entry::Depend(on) => {
                rest(&mut needs, stamp, &on);
                on.forgotten().for_each(|space| drop_space(&mut decided, space));
            }
            Entry::Settle(settle) => rest(&mut needs, stamp, &settle.seen),
            Entry::Decide(decide) => {
                rest(&mut needs, stamp, &decide.seen);
                if !dropped(Rule::DecidesWithoutParts) {
                    decide.parts.iter().for_each(|part| need(&mut needs, stamp, part.space, part.at));
                }
                decided.insert(decide.logged.head.op, decide.parts);
            }
            Entry::Forget(ops) if !dropped(Rule::ForgetsUnsettled) => {
                for part in ops.iter().filter_map(|op| decided.remove(op)).flatten() {
                    if let Some((other, settled)) = all.iter().find(|(other, _)| other.space == part.space) {
                        need(&mut needs, stamp, part.space, settled_at(other, settled, part.at));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(needs)
}

/// The entries behind the state that have to do with other spaces.
fn behind<'a>(of: &Extent<'a>) -> impl Iterator<Item = (Stamp, Result<Entry<'a>, DecodeError>)> {
    let from = of.log.partition_point(|entry| entry.stamp <= of.state.stamp);
    let entries = of.log[from..].iter().filter(|entry| is_of_several(entry));
    entries.map(|entry| (entry.stamp, decode(entry)))
}

fn decode(entry: &Sealed) -> Result<Entry<'_>, DecodeError> {
    #[cfg(test)]
    tests::DECODED.with(|decoded| decoded.set(decoded.get() + 1));
    Entry::decode(entry.kind, &entry.payload)
}

/// Says whether an entry has to do with other spaces. A view has: it says what may be lost.
pub fn is_of_several(entry: &Sealed) -> bool {
    use kind::{DECIDE, DEPEND, FORGET, PREPARE, SETTLE, VIEW};
    matches!(entry.kind, VIEW | DEPEND | PREPARE | DECIDE | SETTLE | FORGET)
}

fn drop_space(decided: &mut BTreeMap<OpId, Vec<Prepared>>, space: SpaceId) {
    decided.values_mut().for_each(|parts| parts.retain(|part| part.space != space));
}

fn rest(needs: &mut Needs, from: Stamp, on: &Vector) {
    if dropped(Rule::RestUncovered) {
        return;
    }
    for (space, Seen { at, done, .. }) in on.iter() {
        need(needs, from, space, at.max(done));
    }
}

fn need(needs: &mut Needs, from: Stamp, space: SpaceId, least: Stamp) {
    let of_space = needs.entry(space).or_default();
    if of_space.last().is_none_or(|(_, before)| *before < least) {
        of_space.push((from, least));
    }
}

/// The parts that a log settles behind the state. An entry that cannot be read is told by [`needs`].
fn settled(of: &Extent<'_>) -> Settled {
    let from = of.log.partition_point(|entry| entry.stamp <= of.state.stamp);
    let mut settled = Settled::new();
    for entry in of.log[from..].iter().filter(|entry| entry.kind == kind::SETTLE) {
        if let Ok(Entry::Settle(settle)) = decode(entry) {
            settled.entry(settle.prepared).or_insert(entry.stamp);
        }
    }
    settled
}

/// The stamp at which a part was settled; a stamp that is never reached if it was not.
fn settled_at(of: &Extent<'_>, settled: &Settled, prepared: Stamp) -> Stamp {
    match prepared <= of.state.stamp && of.state.prepares.get(prepared).is_none() {
        true => of.state.stamp,
        false => settled.get(&prepared).copied().unwrap_or(Stamp::LAST),
    }
}

/// A state after some of the log. Only its stamp and what has to do with other spaces are of that: the views,
/// what it rests on, parts that are prepared, and decisions.
///
/// # Errors
/// If an entry cannot be read.
pub fn ends_at(of: &Extent<'_>, upto: Stamp) -> Result<Replica, NoCut> {
    let mut state = of.state.clone();
    let from = of.log.partition_point(|entry| entry.stamp <= of.state.stamp);
    for sealed in of.log[from..].iter().take_while(|entry| entry.stamp <= upto) {
        let stamp = sealed.stamp;
        state.stamp = stamp;
        if !is_of_several(sealed) {
            continue;
        }
        let entry = Entry::decode(sealed.kind, &sealed.payload);
        match entry.map_err(|error| NoCut::Entry { space: of.space, stamp, error })? {
            Entry::View { kept, lost } => state.views.begin(sealed.view, kept, lost),
            Entry::Depend(on) => {
                state.dependencies.join(stamp, &on);
                on.forgotten().for_each(|space| state.decisions.forget_space(space));
            }
            Entry::Prepare(prepare) => state.prepares.begin(stamp, &prepare),
            Entry::Decide(decide) => {
                state.decisions.add(stamp, sealed.view, &decide);
                state.dependencies.join(stamp, &decide.seen);
            }
            Entry::Settle(settle) => {
                state.prepares.end(settle.prepared, stamp);
                state.dependencies.join(stamp, &settle.seen);
            }
            Entry::Forget(ops) => ops.iter().for_each(|op| state.decisions.forget(*op)),
            _ => {}
        }
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use tercel_wire::id::{ClientId, ViewId};
    use tercel_wire::message::CommitEffects;

    use super::*;
    use crate::replica::entry::{Decide, Head, Logged, Settle};

    thread_local! {
        /// Entries that were decoded.
        pub(super) static DECODED: Cell<u64> = const { Cell::new(0) };
    }

    const A: SpaceId = SpaceId(1);
    const B: SpaceId = SpaceId(2);
    const VIEW: ViewId = ViewId::new(1, 1);

    fn op() -> OpId {
        OpId { client: ClientId(1), slot: 0, seq: 1, view: VIEW }
    }

    fn on(space: SpaceId, at: u64) -> Vector {
        let mut on = Vector::default();
        on.add(space, Seen::at(VIEW, Stamp(at)));
        on
    }

    fn logged() -> Logged<'static> {
        let effects = CommitEffects { base: Stamp(1), reads: Vec::new(), writes: Vec::new() };
        Logged { head: Head { op: op(), ..Head::default() }, effects }
    }

    /// Entries of these stamps.
    fn log(entries: &[(u64, Entry<'_>)]) -> Vec<Sealed> {
        let seal = |(stamp, entry): &(u64, Entry<'_>)| Sealed {
            stamp: Stamp(*stamp),
            view: VIEW,
            kind: entry.kind(),
            payload: Arc::new(entry.encode()),
        };
        entries.iter().map(seal).collect()
    }

    fn state(stamp: u64) -> Replica {
        Replica { stamp: Stamp(stamp), ..Replica::new() }
    }

    fn latest_of(a: (&Replica, &[Sealed]), b: (&Replica, &[Sealed])) -> Result<Vec<u64>, NoCut> {
        let of = |space, (state, log)| Extent { space, state, log };
        latest(&[of(A, a), of(B, b)]).map(|cut| cut.iter().map(|stamp| stamp.0).collect())
    }

    fn nothing() -> Entry<'static> {
        Entry::End(ClientId(9))
    }

    #[test]
    fn effect_is_cut_off_without_its_cause() {
        let a = log(&[(11, nothing()), (12, Entry::Depend(on(B, 22))), (13, nothing())]);
        let b = log(&[(21, nothing())]);
        assert_eq!(latest_of((&state(10), &a), (&state(20), &b)), Ok(vec![11, 21]));
        let b = log(&[(21, nothing()), (22, nothing())]);
        assert_eq!(latest_of((&state(10), &a), (&state(20), &b)), Ok(vec![13, 22]));
    }

    #[test]
    fn cutting_back_goes_on_through_others() {
        let a = log(&[(11, Entry::Depend(on(B, 23))), (12, nothing())]);
        let b = log(&[(21, Entry::Depend(on(A, 12))), (22, nothing())]);
        assert_eq!(latest_of((&state(10), &a), (&state(20), &b)), Ok(vec![10, 20]));
        // The space that is looked at first lacks its cause only once the other one is cut back.
        let a = log(&[(11, Entry::Depend(on(B, 21))), (12, nothing())]);
        let b = log(&[(21, Entry::Depend(on(A, 15))), (22, nothing())]);
        assert_eq!(latest_of((&state(10), &a), (&state(20), &b)), Ok(vec![10, 20]));
    }

    #[test]
    fn state_that_rests_on_more_has_no_cut() {
        let mut late = state(10);
        late.dependencies.join(Stamp(10), &on(B, 25));
        let b = log(&[(24, nothing())]);
        let none = NoCut::Late { space: A, of: B, needs: Stamp(25) };
        assert_eq!(latest_of((&late, &[]), (&state(20), &b)), Err(none));
    }

    #[test]
    fn decision_comes_with_parts_that_only_read() {
        let parts = vec![Prepared { space: B, view: VIEW, at: Stamp(22), writes: false }];
        let decide = Entry::Decide(Decide { parts, seen: Vector::default(), logged: logged() });
        let a = log(&[(11, decide)]);
        let b = log(&[(21, nothing())]);
        assert_eq!(latest_of((&state(10), &a), (&state(20), &b)), Ok(vec![10, 21]));
    }

    #[test]
    fn decision_is_forgotten_only_where_parts_are_settled() {
        let parts = vec![Prepared { space: B, view: VIEW, at: Stamp(21), writes: true }];
        let decide = Entry::Decide(Decide { parts, seen: Vector::default(), logged: logged() });
        let a = log(&[(11, decide), (12, Entry::Forget(vec![op()])), (13, nothing())]);
        let b = log(&[(21, nothing()), (22, nothing())]);
        assert_eq!(latest_of((&state(10), &a), (&state(20), &b)), Ok(vec![11, 22]));
        let settle = Settle { prepared: Stamp(21), seen: Vector::default(), logged: None };
        let b = log(&[(21, nothing()), (22, nothing()), (23, Entry::Settle(settle))]);
        assert_eq!(latest_of((&state(10), &a), (&state(20), &b)), Ok(vec![13, 23]));
    }

    /// Each transaction of a long log is decided, settled and forgotten: 100,000 entries.
    #[test]
    fn work_of_a_cut_is_linear() {
        const TRANSACTIONS: u64 = 25_000;
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for n in 0..TRANSACTIONS {
            let op = OpId { seq: n, ..op() };
            let prepared = 21 + 2 * n;
            let parts = vec![Prepared { space: B, view: VIEW, at: Stamp(prepared), writes: true }];
            let logged = Logged { head: Head { op, ..Head::default() }, ..logged() };
            a.push((11 + 2 * n, Entry::Decide(Decide { parts, seen: Vector::default(), logged })));
            a.push((12 + 2 * n, Entry::Forget(vec![op])));
            let settle = Settle { prepared: Stamp(prepared), seen: Vector::default(), logged: None };
            b.push((prepared, nothing()));
            b.push((prepared + 1, Entry::Settle(settle)));
        }
        let (a, b) = (log(&a), log(&b));
        DECODED.set(0);
        let ends = vec![10 + 2 * TRANSACTIONS, 20 + 2 * TRANSACTIONS];
        assert_eq!(latest_of((&state(10), &a), (&state(20), &b)), Ok(ends));
        let entries = (a.len() + b.len()) as u64;
        assert!(DECODED.get() <= 2 * entries, "{} of {entries} entries decoded", DECODED.get());
    }

    #[cfg(tercel_mutants)]
    #[test]
    fn dropped_rules_of_cuts_are_noticed() {
        let all = [
            effect_is_cut_off_without_its_cause,
            cutting_back_goes_on_through_others,
            state_that_rests_on_more_has_no_cut,
            decision_comes_with_parts_that_only_read,
            decision_is_forgotten_only_where_parts_are_settled,
        ];
        for rule in Rule::OF_CUTS {
            crate::mutant::drop_rule(Some(*rule));
            let is_noticed = all.iter().any(|test| std::panic::catch_unwind(test).is_err());
            crate::mutant::drop_rule(None);
            assert!(is_noticed, "{rule:?} can be dropped");
        }
    }
}
