//! The input of a starting server: a stored state and the entries of its log.

use arbitrary::{Arbitrary, Result, Unstructured};
use tercel_engine::replica::Replica;
use tercel_engine::replica::entry::Piece;
use tercel_engine::replica::entry::{Entry, Freed, Grant, Head, Logged, Placement, kind};
use tercel_engine::replica::saved::Saved;
use tercel_engine::server::{Checkpoint, Recovery, ServerConfig};
use tercel_engine::slots::Slots;
use tercel_engine::time::Now;
use tercel_testkit::nowhere::Nowhere;
use tercel_wire::id::{ClassId, ClientId, LogPosition, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::message::{CommitEffects, Hole, Write};
use tercel_wire::page::PAGE_BYTES;

use crate::shapes;

/// Decodes the bytes as a state and as an entry, then replays a log that they describe.
pub fn run(data: &[u8]) {
    if let Ok(state) = Replica::decode(data) {
        let again = Replica::decode(&state.encode()).expect("a state that was written");
        assert_eq!((again.encode(), again.digest()), (state.encode(), state.digest()));
    }
    if let Some((kind, payload)) = data.split_first()
        && let Ok(entry) = Entry::decode(*kind, payload)
    {
        assert_eq!(Entry::decode(entry.kind(), &entry.encode()).as_ref(), Ok(&entry));
    }
    let _ = replay(&mut Unstructured::new(data));
}

fn replay(u: &mut Unstructured<'_>) -> Result<()> {
    let mut records = Vec::new();
    let mut view = ViewId::new(u.int_in_range(0..=3)?, *u.choose(&[0, 7])?);
    for _ in 0..u.int_in_range(1..=12)? {
        let (kind, payload) = entry(u)?;
        if kind == kind::VIEW && u.ratio(7, 8)? {
            let number = match u.int_in_range(0..=15)? {
                0 => u.arbitrary()?,
                1 => u32::MAX - u.int_in_range(0..=2)?,
                _ => view.number.saturating_add(1),
            };
            view = ViewId::new(number, u.arbitrary()?);
        }
        if kind == kind::COMMIT && u.ratio(1, 4)? {
            let pieces = pieces(&payload, u.int_in_range(1..=64)?);
            records.extend(pieces.into_iter().map(|(kind, payload)| (view, kind, payload)));
            continue;
        }
        records.push((view, kind, payload));
    }
    for (_, _, payload) in &mut records {
        if u.ratio(1, 8)? && !payload.is_empty() {
            let at = u.choose_index(payload.len())?;
            payload[at] = u.arbitrary()?;
        }
    }
    // A view may have kept less than was ordered: then there are stamps that no entry has.
    let mut stamp = 0;
    let mut log = Vec::new();
    for (view, kind, payload) in records {
        stamp += if u.ratio(1, 16)? { u.int_in_range(1..=3)? } else { 1 };
        log.push((Stamp(stamp), view, kind, payload));
    }
    let checkpoint = match u.int_in_range(0..=2)? {
        0 => None,
        1 => {
            let mut state = Replica::new();
            let applied = u.choose_index(log.len())?;
            for (stamp, view, kind, payload) in &log[..applied] {
                let Ok(entry) = Entry::decode(*kind, payload) else { return Ok(()) };
                // Pieces that are not all there are an error, and change nothing.
                let before = state.encode();
                if state.apply(*stamp, *view, &entry, &mut Nowhere).is_err() {
                    assert_eq!(state.encode(), before);
                    return Ok(());
                }
            }
            let replay_from = u.int_in_range(0..=state.stamp.0 + 1)?;
            Some(Checkpoint { applied: state.stamp, replay_from: Stamp(replay_from), state: state.save() })
        }
        _ => Some(Checkpoint {
            applied: Stamp(u.arbitrary()?),
            replay_from: Stamp(u.arbitrary()?),
            state: Saved { head: Vec::arbitrary(u)?, rows: Vec::new() },
        }),
    };
    let end = if u.arbitrary()? { PageId::MAX.get() } else { 9 };
    let Ok(mut recovery) = Recovery::new(ServerConfig::default(), SpaceId(1), checkpoint.as_ref(), end)
    else {
        return Ok(());
    };
    for (stamp, view, kind, payload) in &log {
        if recovery.replay(*view, *stamp, *kind, payload).is_err() {
            return Ok(());
        }
    }
    let mut out = Default::default();
    let _ = recovery.finish(Now(0), 1, LogPosition(log.len() as u64), &mut out);
    Ok(())
}

/// A commit as it is staged.
fn pieces(commit: &[u8], piece: usize) -> Vec<(u8, Vec<u8>)> {
    let Ok(Entry::Commit(c)) = Entry::decode(kind::COMMIT, commit) else { return Vec::new() };
    let op = c.head.op;
    let at = (0u32..).step_by(piece);
    let pieces = at.zip(commit.chunks(piece)).map(|(at, bytes)| Entry::Stage { op, at, bytes });
    let end = Entry::CommitStaged { op, bytes: commit.len() as u32 };
    pieces.chain([end]).map(|entry| (entry.kind(), entry.encode())).collect()
}

fn entry(u: &mut Unstructured<'_>) -> Result<(u8, Vec<u8>)> {
    let entry = match u.int_in_range(0..=11)? {
        0 => Entry::Genesis,
        1 => {
            let kept = Stamp(if u.ratio(1, 4)? { u.arbitrary()? } else { u.int_in_range(0..=12)? });
            Entry::View { kept, lost: u.arbitrary()? }
        }
        2 => Entry::Define(ClassId(u.int_in_range(10..=20)?), shapes::layout(u, 2)?),
        3 => Entry::Evict(ClientId(u.int_in_range(0..=3)?)),
        4 => Entry::End(ClientId(u.int_in_range(0..=3)?)),
        5 => Entry::Grant(Grant {
            client: ClientId(u.int_in_range(0..=3)?),
            seq: if u.ratio(1, 8)? { u.arbitrary()? } else { u.int_in_range(0..=3)? },
            next_page: if u.arbitrary()? {
                u.int_in_range(0..=40)?
            } else {
                u.int_in_range(0..=PageId::MAX.get() + 1)?
            },
            pages: pages(u)?,
            holes: holes(u)?,
        }),
        6 => Entry::Free(Freed { taken: u.int_in_range(0..=3)?, chunks: orefs(u)?, below: orefs(u)? }),
        7 => {
            Entry::GiveBack(ClientId(u.int_in_range(0..=3)?), pages(u)?.into_iter().map(|p| (p, 5)).collect())
        }
        8 => Entry::Condemn(Piece {
            at: u.int_in_range(0..=3)?,
            pages: condemned(u)?,
            released: orefs(u)?,
            unheld: pages(u)?,
        }),
        9 => Entry::Collect { pages: u.int_in_range(0..=4)? },
        _ => {
            let objects: Vec<[u8; 8]> = (0..u.int_in_range(0..=4)?)
                .map(|_| Ok([u.int_in_range(0..=18)?, 0, 0, 0, u.arbitrary()?, 0, 0, 0]))
                .collect::<Result<_>>()?;
            let mut writes = Vec::new();
            for object in &objects {
                writes.push(Write { oref: oref(u)?, new: u.arbitrary()?, object });
            }
            let mut placements = Vec::new();
            if !writes.is_empty() && u.arbitrary()? {
                let write = u.choose_index(writes.len())? as u32;
                placements.push(Placement { write, to: oref(u)?, is_new: u.arbitrary()? });
            }
            let op = OpId {
                client: ClientId(u.int_in_range(0..=3)?),
                slot: u.int_in_range(0..=3)?,
                seq: u.int_in_range(1..=5)?,
                view: ViewId::new(u.int_in_range(0..=3)?, *u.choose(&[0, 7])?),
            };
            let reply = (0..u.int_in_range(0..=3)?).map(|_| u.arbitrary()).collect::<Result<_>>()?;
            let births = pages(u)?.into_iter().map(|page| (page, Stamp(4))).collect();
            let head = Head {
                op,
                digest: u.arbitrary()?,
                reply,
                placements,
                named: pages(u)?,
                filled: pages(u)?,
                left: orefs(u)?,
                released: orefs(u)?,
                births,
            };
            let effects = CommitEffects { base: Stamp(u.arbitrary()?), reads: vec![oref(u)?], writes };
            let logged = Entry::Commit(Logged { head, effects });
            return Ok((logged.kind(), logged.encode()));
        }
    };
    Ok((entry.kind(), entry.encode()))
}

fn condemned(u: &mut Unstructured<'_>) -> Result<Vec<(PageId, Slots)>> {
    let pages = pages(u)?;
    pages.into_iter().map(|page| Ok((page, slots(u)?))).collect()
}

fn slots(u: &mut Unstructured<'_>) -> Result<Slots> {
    (0..u.int_in_range(0..=3)?).map(|_| u.int_in_range(0..=511)).collect()
}

fn holes(u: &mut Unstructured<'_>) -> Result<Vec<Hole>> {
    let pages = pages(u)?;
    let mut hole = |page| {
        Ok(Hole { page, from: u.int_in_range(0..=512)?, used: u.int_in_range(0..=PAGE_BYTES as u16)? })
    };
    pages.into_iter().map(&mut hole).collect()
}

fn pages(u: &mut Unstructured<'_>) -> Result<Vec<PageId>> {
    (0..u.int_in_range(0..=3)?).map(|_| page(u)).collect()
}

fn orefs(u: &mut Unstructured<'_>) -> Result<Vec<Oref>> {
    (0..u.int_in_range(0..=3)?).map(|_| oref(u)).collect()
}

fn page(u: &mut Unstructured<'_>) -> Result<PageId> {
    Ok(PageId::new(u.int_in_range(1..=12)?).expect("a page"))
}

fn oref(u: &mut Unstructured<'_>) -> Result<Oref> {
    Ok(Oref::new(page(u)?, u.int_in_range(0..=511)?).expect("a slot"))
}
