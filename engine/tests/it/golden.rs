//! The bytes of the log's entries and of a stored state, as the newest version promises them, written by
//! today's code and read by it.

use crate::promise::Promises;
use crate::world::nowhere::Nowhere;
use tercel_engine::order::quorum::members::{Member, Members};
use tercel_engine::replica::Replica;
use tercel_engine::replica::entry::Piece;
use tercel_engine::replica::entry::{Decide, Entry, Freed, Grant, Head, Logged, Placement, Prepare, Settle};
use tercel_wire::id::{ClassId, ClientId, MemberId, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::layout::{Layout, Shape};
use tercel_wire::message::{CommitEffects, Prepared, Right, Write};
use tercel_wire::schema::Scalar;
use tercel_wire::vector::{Seen, Vector};

fn oref(page: u32, slot: u16) -> Oref {
    Oref::new(PageId::new(page).unwrap(), slot).unwrap()
}

fn class() -> Layout {
    Layout::new("C".into(), vec![("n".into(), Shape::Scalar(Scalar::U16)), ("t".into(), Shape::Text)])
}

/// One entry of each kind, in an order that a log could have.
fn entries() -> [(&'static str, Entry<'static>); 11] {
    let op = OpId {
        client: ClientId(0x0102_0304_0506_0708),
        slot: 0x0112,
        seq: 0x2122_2324_2526_2728,
        view: ViewId::new(9, 0x0a0b_0c0d),
    };
    let page = |n| PageId::new(n).unwrap();
    let client = ClientId(0x1112_1314_1516_1718);
    let head = Head {
        op,
        digest: 0x5152_5354,
        reply: b"yes".to_vec(),
        placements: vec![Placement { write: 0, to: oref(12, 3), is_new: true }],
        named: vec![page(66)],
        filled: vec![page(67)],
        left: vec![oref(11, 2)],
        released: vec![oref(13, 1), oref(14, 1)],
        births: vec![(page(9), Stamp(4))],
    };
    let effects = CommitEffects {
        base: Stamp(6),
        reads: vec![oref(2, 1)],
        writes: vec![
            Write { oref: oref(2, 1), new: false, object: &[16, 0, 0, 0, 1, 2, 3, 4] },
            Write { oref: oref(9, 0), new: true, object: &[16, 0, 0, 0, 5, 6, 7, 8] },
        ],
    };
    let condemned = Piece {
        at: 0,
        pages: vec![(page(2), [1, 20].into_iter().collect())],
        released: vec![oref(16, 1)],
        unheld: vec![page(67)],
    };
    [
        ("genesis", Entry::Genesis),
        ("view", Entry::View { kept: Stamp(0x0102_0304_0506_0708), lost: true }),
        ("define", Entry::Define(ClassId(16), class())),
        (
            "grant",
            Entry::Grant(Grant {
                client,
                seq: 3,
                next_page: 70,
                pages: vec![page(66), page(67)],
                holes: vec![],
            }),
        ),
        ("commit", Entry::Commit(Logged { head, effects })),
        ("free", Entry::Free(Freed { taken: 1, chunks: vec![oref(13, 1)], below: vec![oref(15, 1)] })),
        ("give_back", Entry::GiveBack(client, vec![(page(66), 9)])),
        ("condemn", Entry::Condemn(condemned)),
        ("collect", Entry::Collect { pages: 1 }),
        ("end", Entry::End(client)),
        ("evict", Entry::Evict(client)),
    ]
}

fn members() -> Members {
    let member = |id, votes| Member { id: MemberId(id), votes, address: "a:1".into() };
    Members::new(vec![member(0x6162_6364_6566_6768, true), member(0x7172_7374_7576_7778, false)]).unwrap()
}

fn dependencies() -> Vector {
    let seen = |at, done| Seen { done: Stamp(done), ..Seen::at(ViewId::new(9, 0x0a0b_0c0d), Stamp(at)) };
    let mut on = Vector::default();
    on.add(SpaceId(0x3132_3334_3536_3738), seen(0x0102_0304, 0));
    on.add(SpaceId(0x3132_3334_3536_3739), seen(7, 5));
    on
}

/// Those that change nothing by themselves.
fn pieces() -> [(&'static str, Entry<'static>); 10] {
    let op = OpId {
        client: ClientId(0x0102_0304_0506_0708),
        slot: 0x0112,
        seq: 0x2122_2324_2526_2728,
        view: ViewId::new(9, 0x0a0b_0c0d),
    };
    let part = Prepared { space: SpaceId(0x3132_3334_3536_3738), view: op.view, at: Stamp(7), writes: true };
    let settle = |logged| Entry::Settle(Settle { prepared: Stamp(0x4142), seen: dependencies(), logged });
    [
        ("stage", Entry::Stage { op, at: 0x3132_3334, bytes: &[5, 6, 7] }),
        ("commit_staged", Entry::CommitStaged { op, bytes: 0x4142_4344 }),
        ("leave", Entry::Leave(ClientId(0x1112_1314_1516_1718))),
        ("members", Entry::Members(members())),
        ("depend", Entry::Depend(dependencies())),
        ("prepare", Entry::Prepare(Prepare { of: op, coordinator: SpaceId(9), logged: logged(op) })),
        ("decide", Entry::Decide(Decide { parts: vec![part], seen: dependencies(), logged: logged(op) })),
        ("settle_committed", settle(Some(logged(op)))),
        ("settle_aborted", settle(None)),
        ("forget", Entry::Forget(vec![op])),
    ]
}

/// Those of rights.
fn rights() -> [(&'static str, Entry<'static>); 4] {
    let right = |who: &str, role: &str| Right { who: who.parse().unwrap(), role: role.parse().unwrap() };
    let anna = || "client:anna".parse().unwrap();
    [
        ("access_granted", Entry::Access(true, right("client:anna", "write C"))),
        ("access_granted_call", Entry::Access(true, right("uid:1000", "call Bank.pay"))),
        ("access_revoked", Entry::Access(false, right("uid:1000", "call Bank.pay"))),
        ("own", Entry::Own(ClientId(0x0102_0304_0506_0708), anna())),
    ]
}

/// A part of a transaction over several spaces.
fn logged(op: OpId) -> Logged<'static> {
    let oref = Oref::from_raw(0x0506 << 9 | 3).unwrap();
    let head = Head { op, digest: 6, named: vec![oref.page()], ..Head::default() };
    let writes = vec![Write { oref, new: true, object: &[16, 0, 0, 0, 1, 2, 3, 4] }];
    Logged { head, effects: CommitEffects { base: Stamp(4), reads: vec![oref], writes } }
}

#[test]
fn entries_have_the_bytes_of_version_4() {
    let mut promised = Promises::read(include_str!("../golden/entries_v4.txt"));
    for (name, entry) in entries().into_iter().chain(pieces()).chain(rights()) {
        // The kind is the log record's; here it stands first.
        let bytes = promised.keep(name, &[&[entry.kind()], &entry.encode()[..]].concat());
        assert_eq!(Entry::decode(bytes[0], &bytes[1..]), Ok(entry));
    }
    promised.end();
}

#[test]
fn stored_state_has_the_bytes_of_version_9() {
    let mut promised = Promises::read(include_str!("../golden/states_v9.txt"));
    let mut state = Replica::new();
    let bytes = promised.keep("new", &state.encode());
    assert_eq!(Replica::decode(&bytes).unwrap().encode(), bytes);
    for (stamp, (_, entry)) in (1..).zip(entries()) {
        state.apply(Stamp(stamp), ViewId::new(0x0102_0304, 0x0506_0708), &entry, &mut Nowhere).unwrap();
    }
    let read = keep(&mut promised, ["of_every_entry", "of_every_entry_rows"], &state);
    assert_eq!(
        (read.stamp, read.view(), read.places.next_page()),
        (Stamp(11), ViewId::new(0x0102_0304, 0x0506_0708), 70)
    );
    // A page that is granted and one that has returned, beside the one above that was full of nothing.
    let view = state.view();
    let grants = [(0x0203_0405_0607_0809, 70), (0x0a0b_0c0d_0e0f_1011, 71)].map(|(client, page)| Grant {
        client: ClientId(client),
        seq: 1,
        next_page: page + 1,
        pages: vec![PageId::new(page).unwrap()],
        holes: vec![],
    });
    let ended = Entry::End(grants[1].client);
    let entries = grants.into_iter().map(Entry::Grant).chain([
        ended,
        Entry::Members(members()),
        Entry::Depend(dependencies()),
    ]);
    let open = pieces().into_iter().map(|(_, entry)| entry);
    let open = open.filter(|entry| matches!(entry, Entry::Prepare(_) | Entry::Decide(_)));
    let entries = entries.chain(open);
    for (stamp, entry) in (12..).zip(entries) {
        state.apply(Stamp(stamp), view, &entry, &mut Nowhere).unwrap();
    }
    let read = keep(&mut promised, ["of_grants", "of_grants_rows"], &state);
    assert_eq!((read.places.granted_count(), read.places.returned_count()), (1, 2));
    // A state in which there was a grant has more behind it; builds before refuse that.
    let first = state.stamp.next().0;
    for (stamp, (_, entry)) in (first..).zip(rights()) {
        state.apply(Stamp(stamp), view, &entry, &mut Nowhere).unwrap();
    }
    let read = keep(&mut promised, ["of_rights", "of_rights_rows"], &state);
    assert_eq!((read.access.rights().len(), read.access.is_judged()), (1, true));
    promised.end();
}

/// Promises a state's head, and of its rows of counts what comes before zeros; gives the state read from what
/// was promised.
fn keep(promised: &mut Promises, [head, rows]: [&str; 2], state: &Replica) -> Replica {
    let saved = state.save();
    let bytes: Vec<u8> = saved.rows.iter().flat_map(|(_, row)| row.iter().copied()).collect();
    let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    let mut whole = promised.keep(head, &saved.head);
    let mut of_rows = promised.keep(rows, &bytes[..used]);
    of_rows.resize(bytes.len(), 0);
    whole.extend(of_rows);
    let read = Replica::decode(&whole).unwrap();
    assert_eq!((read.encode(), read.save()), (whole, saved));
    read
}
