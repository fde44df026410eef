//! What a server finds when it starts: a stored state and the entries of its log.

use arbitrary::{Arbitrary, Result, Unstructured};
use tercel_engine::server::{Checkpoint, Recovery, ServerConfig};
use tercel_engine::store::entry::{Entry, Logged, kind};
use tercel_engine::store::state::State;
use tercel_engine::time::Now;
use tercel_wire::id::{ClassId, ClientId, ViewId, OpId, Oref, PageId, SpaceId, Stamp};
use tercel_wire::message::{Effects, Write};

use crate::shapes;

/// See the module.
pub fn run(data: &[u8]) {
    if let Ok(state) = State::decode(data) {
        let again = State::decode(&state.encode()).expect("a state that was written");
        assert_eq!(again.encode(), state.encode());
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
    for _ in 0..u.int_in_range(1..=12)? {
        let (kind, payload) = entry(u)?;
        if kind == kind::COMMIT && u.ratio(1, 4)? {
            records.extend(pieces(&payload, u.int_in_range(1..=64)?));
            continue;
        }
        records.push((kind, payload));
    }
    for (_, payload) in &mut records {
        if u.ratio(1, 8)? && !payload.is_empty() {
            let at = u.choose_index(payload.len())?;
            payload[at] = u.arbitrary()?;
        }
    }
    let checkpoint = match u.int_in_range(0..=2)? {
        0 => None,
        1 => {
            let mut state = State::new();
            let applied = u.choose_index(records.len())?;
            for (kind, payload) in &records[..applied] {
                let Ok(entry) = Entry::decode(*kind, payload) else { return Ok(()) };
                state.apply(&entry);
            }
            let replay_from = u.int_in_range(0..=applied as u64 + 1)?;
            Some(Checkpoint {
                applied: Stamp(applied as u64),
                replay_from: Stamp(replay_from),
                state: state.encode(),
            })
        }
        _ => Some(Checkpoint {
            applied: Stamp(u.arbitrary()?),
            replay_from: Stamp(u.arbitrary()?),
            state: Vec::arbitrary(u)?,
        }),
    };
    let end = if u.arbitrary()? { PageId::MAX.get() } else { 9 };
    let Ok(mut recovery) = Recovery::new(ServerConfig::default(), SpaceId(1), checkpoint.as_ref(), end)
    else {
        return Ok(());
    };
    for (i, (kind, payload)) in records.iter().enumerate() {
        if recovery.replay(Stamp(i as u64 + 1), *kind, payload).is_err() {
            return Ok(());
        }
    }
    let _ = recovery.finish(Now(0), 1, &mut Default::default());
    Ok(())
}

/// A commit as it is staged.
fn pieces(commit: &[u8], piece: usize) -> Vec<(u8, Vec<u8>)> {
    let Ok(Entry::Commit(Logged { op, .. })) = Entry::decode(kind::COMMIT, commit) else { return Vec::new() };
    let at = (0u32..).step_by(piece);
    let pieces = at.zip(commit.chunks(piece)).map(|(at, bytes)| Entry::Stage { op, at, bytes });
    let end = Entry::CommitStaged { op, bytes: commit.len() as u32 };
    pieces.chain([end]).map(|entry| (entry.kind(), entry.encode())).collect()
}

fn entry(u: &mut Unstructured<'_>) -> Result<(u8, Vec<u8>)> {
    let entry = match u.int_in_range(0..=6)? {
        0 => Entry::Genesis,
        1 => Entry::View(ViewId::new(u.int_in_range(0..=u32::MAX - 1)?, u.arbitrary()?)),
        2 => Entry::Define(ClassId(u.int_in_range(10..=20)?), shapes::layout(u, 2)?),
        3 => Entry::Evict(ClientId(u.int_in_range(0..=3)?)),
        4 => Entry::Lease(u.int_in_range(0..=PageId::MAX.get() + 1)?),
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
                placements.push((u.choose_index(writes.len())? as u32, oref(u)?));
            }
            let op = OpId {
                client: ClientId(u.int_in_range(0..=3)?),
                slot: u.int_in_range(0..=3)?,
                seq: u.int_in_range(1..=5)?,
                view: ViewId::new(u.int_in_range(0..=3)?, *u.choose(&[0, 7])?),
            };
            let effects = Effects { base: Stamp(u.arbitrary()?), reads: vec![oref(u)?], writes };
            let logged = Entry::Commit(Logged { op, effects, placements });
            return Ok((logged.kind(), logged.encode()));
        }
    };
    Ok((entry.kind(), entry.encode()))
}

fn oref(u: &mut Unstructured<'_>) -> Result<Oref> {
    let page = PageId::new(u.int_in_range(1..=12)?).expect("a page");
    Ok(Oref::new(page, u.int_in_range(0..=511)?).expect("a slot"))
}
