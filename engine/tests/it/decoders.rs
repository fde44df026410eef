//! A server reads its log and its store without a panic, whatever they hold.

use crate::world::nowhere::Nowhere;
use proptest::collection::vec;
use proptest::prelude::*;
use tercel_engine::replica::Replica;
use tercel_engine::replica::entry::{Entry, Grant, Head, Logged, Placement};
use tercel_engine::server::{Checkpoint, Recovery, ServerConfig};
use tercel_wire::id::{
    ClassId, ClientId, LogPosition, OP_SLOTS_MAX, OpId, Oref, PageId, SpaceId, Stamp, ViewId,
};
use tercel_wire::layout::{Layout, Shape};
use tercel_wire::message::{CommitEffects, Write};
use tercel_wire::schema::Scalar;

fn oref() -> impl Strategy<Value = Oref> {
    (2..40u32, 0u16..512).prop_map(|(p, s)| Oref::new(PageId::new(p).unwrap(), s).unwrap())
}

fn view() -> impl Strategy<Value = ViewId> {
    (any::<u32>(), any::<u32>()).prop_map(|(number, incarnation)| ViewId::new(number, incarnation))
}

fn op() -> impl Strategy<Value = OpId> {
    (0u64..5, 0..OP_SLOTS_MAX, 1u64.., view()).prop_map(|(c, slot, seq, view)| OpId {
        client: ClientId(c),
        slot,
        seq,
        view,
    })
}

/// A record of the log: its kind and its bytes.
fn record() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let commit = (
        op(),
        any::<u64>(),
        vec(oref(), 0..5),
        vec((oref(), any::<bool>(), any::<u32>()), 1..5),
        vec(oref(), 0..3),
    );
    let commit = commit.prop_map(|(op, base, reads, writes, to)| {
        let objects: Vec<[u8; 8]> = writes
            .iter()
            .map(|(_, _, word)| {
                let w = word.to_le_bytes();
                [16, 0, 0, 0, w[0], w[1], w[2], w[3]]
            })
            .collect();
        let place = |(write, to)| Placement { write, to, is_new: true };
        let placements = (0u32..).zip(to).take(writes.len()).map(place).collect();
        let writes = writes
            .iter()
            .zip(&objects)
            .map(|((oref, new, _), object)| Write { oref: *oref, new: *new, object })
            .collect();
        let head = Head { op, digest: 7, reply: vec![1, 2], placements, ..Head::default() };
        let entry =
            Entry::Commit(Logged { head, effects: CommitEffects { base: Stamp(base), reads, writes } });
        (entry.kind(), entry.encode())
    });
    let define = (16u16..20, "[A-C]", 0usize..3).prop_map(|(id, name, n)| {
        let fields = (0..n).map(|i| (format!("f{i}"), Shape::Scalar(Scalar::U32))).collect();
        let entry = Entry::Define(ClassId(id), Layout::new(name, fields));
        (entry.kind(), entry.encode())
    });
    let small = prop_oneof![
        Just(Entry::Genesis),
        any::<(u64, bool)>().prop_map(|(kept, lost)| Entry::View { kept: Stamp(kept), lost }),
        (0u64..5).prop_map(|c| Entry::Evict(ClientId(c))),
        (0u64..5).prop_map(|c| Entry::End(ClientId(c))),
        (0u64..5, 0..=PageId::MAX.get() + 1, vec(2u32..40, 0..5)).prop_map(|(c, next_page, pages)| {
            let pages = pages.into_iter().filter_map(PageId::new).collect();
            Entry::Grant(Grant { client: ClientId(c), seq: 3, next_page, pages, holes: vec![] })
        }),
    ];
    let staged = (op(), 0u32..3, vec(any::<u8>(), 0..9), any::<bool>()).prop_map(|(op, n, bytes, ends)| {
        let entry = match ends {
            true => Entry::CommitStaged { op, bytes: n },
            false => Entry::Stage { op, at: n, bytes: &bytes },
        };
        (entry.kind(), entry.encode())
    });
    let small = small.prop_map(|e| (e.kind(), e.encode()));
    prop_oneof![4 => commit, 1 => define, 2 => small, 2 => staged]
}

fn change(bytes: &mut Vec<u8>, changes: &[(prop::sample::Index, u8)], cut: Option<prop::sample::Index>) {
    for (at, byte) in changes {
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
    }
    if let Some(cut) = cut {
        bytes.truncate(cut.index(bytes.len() + 1));
    }
}

/// The state after some records.
fn state_after(records: &[(u8, Vec<u8>)]) -> Replica {
    let mut state = Replica::new();
    for (i, (kind, bytes)) in (1..).zip(records) {
        // Pieces that are not all there are an error, and change nothing.
        let entry = Entry::decode(*kind, bytes).unwrap();
        let _ = state.apply(Stamp(i), ViewId::new(i as u32, 7), &entry, &mut Nowhere);
    }
    state
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_bytes_are_read_as_any_entry_without_a_panic(kind in any::<u8>(), bytes in vec(any::<u8>(), 0..120)) {
        for kind in [kind, kind % 14] {
            if let Ok(entry) = Entry::decode(kind, &bytes) {
                let again = entry.encode();
                prop_assert_eq!(Entry::decode(entry.kind(), &again), Ok(entry.clone()));
            }
        }
        let _ = Replica::decode(&bytes);
    }

    #[test]
    fn entries_come_back_and_damaged_ones_do_no_harm(
        (kind, bytes) in record(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let entry = Entry::decode(kind, &bytes).unwrap();
        prop_assert_eq!(entry.encode(), bytes.clone());
        let mut damaged = bytes;
        change(&mut damaged, &changes, cut);
        let _ = Entry::decode(kind, &damaged);
    }

    #[test]
    fn a_state_comes_back_and_a_damaged_one_does_no_harm(
        records in vec(record(), 0..12),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let bytes = state_after(&records).encode();
        prop_assert_eq!(Replica::decode(&bytes).unwrap().encode(), bytes.clone());
        let mut damaged = bytes;
        change(&mut damaged, &changes, cut);
        let _ = Replica::decode(&damaged);
    }

    #[test]
    fn a_log_of_damaged_records_is_recovered_or_refused(
        records in vec(record(), 1..10),
        damaged in any::<prop::sample::Index>(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        from in 0u64..4,
        state in any::<bool>(),
    ) {
        let before = state_after(&records[..records.len().min(2)]);
        let checkpoint = state.then(|| Checkpoint {
            applied: Stamp(2),
            replay_from: Stamp(from),
            state: before.save(),
        });
        let Ok(mut recovery) = Recovery::new(ServerConfig::default(), SpaceId(1), checkpoint.as_ref(), PageId::MAX.get())
        else {
            // There is no entry before the first, and none may be missing behind the state.
            prop_assert!(state && (from == 0 || from > before.stamp.0 + 1));
            return Ok(());
        };
        let mut records = records;
        let at = damaged.index(records.len());
        change(&mut records[at].1, &changes, None);
        for (i, (kind, bytes)) in records.iter().enumerate() {
            if recovery.replay(ViewId::new(i as u32 + 1, 7), Stamp(i as u64 + 1), *kind, bytes).is_err() {
                return Ok(());
            }
        }
        let mut out = Default::default();
        let _ = recovery.finish(Default::default(), 7, LogPosition(records.len() as u64), &mut out);
    }
}
