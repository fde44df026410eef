//! Bytes from a peer or a disk never make a decoder panic; the messages of an honest sender survive the round
//! trip.

use proptest::collection::vec;
use proptest::prelude::*;
use tercel_wire::deframer::Deframer;
use tercel_wire::frame::{self, FRAME_BYTES, Header, Kind};
use tercel_wire::id::{ClassId, ClientId, OP_SLOTS_MAX, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::layout::{Layout, RecordError, Shape, padded};
use tercel_wire::message::*;
use tercel_wire::page::{PAGE_BYTES, Page, PageBuilder};
use tercel_wire::schema::Scalar;
use tercel_wire::token::Token;

/// Decodes as every message; what can be read says the same when it is written and read again.
fn read_as_anything(b: &[u8]) {
    for kind in Kind::ALL {
        let mut out = Vec::new();
        if let Ok(message) = FromClient::decode(*kind, b) {
            message.encode(&mut out);
            assert_eq!(FromClient::decode(*kind, &out), Ok(message), "it is not read as it was written");
        } else if let Ok(message) = FromServer::decode(*kind, b) {
            message.encode(&mut out);
            assert_eq!(FromServer::decode(*kind, &out), Ok(message), "it is not read as it was written");
        }
    }
    if let Ok(effects) = CommitEffects::decode(b) {
        let mut out = Vec::new();
        effects.encode(&mut out);
        assert_eq!(CommitEffects::decode(&out), Ok(effects));
    }
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

/// Bytes with some of them changed, some missing, some more.
pub(crate) fn mutated(bytes: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (Just(bytes), changes, any::<Option<prop::sample::Index>>(), vec(any::<u8>(), 0..6)).prop_map(
        |(mut bytes, changes, cut, more)| {
            for (at, byte) in changes {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len() + 1));
            }
            bytes.extend(more);
            bytes
        },
    )
}

fn page() -> impl Strategy<Value = PageId> {
    (1..=PageId::MAX.get()).prop_map(|n| PageId::new(n).unwrap())
}

fn oref() -> impl Strategy<Value = Oref> {
    (page(), 0u16..512).prop_map(|(p, s)| Oref::new(p, s).unwrap())
}

fn view() -> impl Strategy<Value = ViewId> {
    (any::<u32>(), any::<u32>()).prop_map(|(number, incarnation)| ViewId::new(number, incarnation))
}

fn op() -> impl Strategy<Value = OpId> {
    (any::<u64>(), 0..OP_SLOTS_MAX, 1u64.., view()).prop_map(|(c, slot, seq, view)| OpId {
        client: ClientId(c),
        slot,
        seq,
        view,
    })
}

fn pages() -> impl Strategy<Value = Vec<(PageId, u64)>> {
    vec((page(), any::<u64>()), 0..5)
}

fn object() -> impl Strategy<Value = Vec<u8>> {
    (any::<u16>(), vec(any::<u32>(), 1..20)).prop_map(|(class, words)| {
        let mut bytes = class.to_le_bytes().to_vec();
        bytes.extend([0, 0]);
        words.iter().for_each(|w| bytes.extend(w.to_le_bytes()));
        bytes
    })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        any::<u64>().prop_map(|s| Ok(Stamp(s))),
        prop::sample::select(&Refusal::ALL[..]).prop_map(Err),
        oref().prop_map(|oref| Err(Refusal::Conflict(oref))),
        prop::sample::select(Limit::ALL).prop_map(|limit| Err(Refusal::Full(limit))),
    ]
}

fn scalar() -> impl Strategy<Value = Scalar> {
    use Scalar::*;
    prop::sample::select(vec![U8, U16, U32, U64, I8, I16, I32, I64, F32, F64, Bool])
}

fn shape() -> impl Strategy<Value = Shape> {
    let leaf = prop_oneof![
        scalar().prop_map(Shape::Scalar),
        (scalar(), 1u16..9).prop_map(|(s, n)| Shape::Array(s, n)),
        Just(Shape::Text),
        Just(Shape::Bytes),
        "[a-z]{0,4}".prop_map(Shape::Ref),
        "[a-z]{0,4}".prop_map(Shape::Far),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|s| Shape::List(Box::new(s))),
            inner.clone().prop_map(|s| Shape::Option(Box::new(s))),
            vec(inner.clone(), 1..4).prop_map(|shapes| Shape::Record(Box::new(layout_of("r", shapes)))),
            vec(vec(inner, 0..3), 1..4).prop_map(|variants| {
                let named = |(i, shapes)| layout_of(&format!("V{i}"), shapes);
                Shape::variants("e".into(), variants.into_iter().enumerate().map(named).collect())
            }),
        ]
    })
}

fn layout_of(name: &str, shapes: Vec<Shape>) -> Layout {
    let fields = shapes.into_iter().enumerate().map(|(i, s)| (format!("f{i}"), s)).collect();
    Layout::new(name.into(), fields)
}

pub(crate) fn layout() -> impl Strategy<Value = Layout> {
    ("[A-Z][a-z]{1,6}", vec(shape(), 0..6))
        .prop_map(|(name, shapes)| layout_of(&name, shapes))
        .prop_filter("an admissible class", |l| l.admissible().is_ok())
}

/// A message as an honest sender writes it.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let stamp = any::<u64>().prop_map(Stamp);
    let resume = (view(), any::<u64>(), any::<u64>(), pages()).prop_map(|(view, w, h, pages)| Resume {
        view,
        watermark: Stamp(w),
        heard: Stamp(h),
        pages,
    });
    let hello = (any::<u64>(), any::<u64>(), any::<u64>(), prop::option::of(resume)).prop_map(
        |(client, connection, space, resume)| {
            let hello = Hello {
                client: ClientId(client),
                connection,
                version_min: 1,
                version_max: 9,
                space: SpaceId(space),
                resume,
                via: [None, Some(Via::Any), Some(Via::Replica)][connection as usize % 3],
            };
            written(|o| hello.encode(o))
        },
    );
    let write = (oref(), any::<bool>(), object());
    let effects = (stamp.clone(), vec(oref(), 0..6), vec(write, 0..6)).prop_map(|(base, reads, writes)| {
        let writes =
            writes.iter().map(|(oref, new, object)| Write { oref: *oref, new: *new, object }).collect();
        written(|o| CommitEffects { base, reads, writes }.encode(o))
    });
    let change = (any::<u64>(), prop::option::of(op()), vec(oref(), 0..5))
        .prop_map(|(stamp, own, orefs)| Change { stamp: Stamp(stamp), own, orefs });
    let stream = (any::<u32>(), any::<u32>(), vec(change, 0..4), pages(), any::<bool>()).prop_map(
        |(from, more, changes, revoked, ack)| {
            let (from, to) = (Stamp(from as u64), Stamp(from as u64 + more as u64));
            written(|o| Stream { from, to, changes, revoked, ack }.encode(o))
        },
    );
    let verdict = (op(), outcome()).prop_map(|(op, outcome)| written(|o| Verdict { op, outcome }.encode(o)));
    let classes = vec((any::<u16>(), layout()), 0..4).prop_map(|classes| {
        let classes = classes.into_iter().map(|(id, l)| (ClassId(id), l)).collect();
        written(|o| Classes { classes }.encode(o))
    });
    let commit = (op(), any::<u32>(), vec(any::<u8>(), 0..40))
        .prop_map(|(op, parts, bytes)| written(|o| Commit { op, parts, bytes: &bytes }.encode(o)));
    let refused = (".{0,20}", vec(".{0,9}", 0..4)).prop_map(|(text, servers)| {
        written(|o| Refused { reason: Refusal::NotLeader, text, servers }.encode(o))
    });
    let ping = prop::option::of((any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>())).prop_map(|of| {
        let token = |(space, number, incarnation, stamp)| Token {
            space: SpaceId(space),
            view: ViewId::new(number, incarnation),
            stamp: Stamp(stamp),
        };
        written(|o| Ping { of: of.map(token) }.encode(o))
    });
    let unsubscribe = pages().prop_map(|pages| written(|o| Unsubscribe { pages }.encode(o)));
    let leased = (any::<u64>(), any::<u64>(), vec(page(), 0..6)).prop_map(|(seq, birth, pages)| {
        written(|o| Leased { seq, birth: Stamp(birth), pages, holes: vec![] }.encode(o))
    });
    let begun =
        (any::<u64>(), any::<u32>(), 0..=PageId::MAX.get(), any::<u32>()).prop_map(|(s, e, pages_end, n)| {
            let begun = BackupBegun { stamp: Stamp(s), view: ViewId::new(e, 0), pages_end, state_bytes: n };
            written(|o| begun.encode(o))
        });
    let part = prop_oneof![
        vec(any::<u8>(), 0..40).prop_map(|bytes| written(|o| BackupPart::State(&bytes).encode(o))),
        (any::<u32>(), any::<u8>(), 0usize..3).prop_map(|(upto, fill, n)| {
            written(|o| BackupPart::Pages { upto, pages: &vec![fill; n * PAGE_BYTES] }.encode(o))
        }),
        any::<u64>().prop_map(|pages| written(|o| BackupPart::End { pages }.encode(o))),
    ];
    prop_oneof![
        begun,
        part,
        hello,
        effects,
        stream,
        verdict,
        classes,
        commit,
        refused,
        unsubscribe,
        leased,
        ping
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_bytes_are_read_as_any_message_without_a_panic(bytes in vec(any::<u8>(), 0..200)) {
        read_as_anything(&bytes);
    }

    #[test]
    fn messages_come_back_and_damaged_ones_do_no_harm((whole, damaged) in message().prop_flat_map(|m| (Just(m.clone()), mutated(m)))) {
        read_as_anything(&whole);
        read_as_anything(&damaged);
    }

    #[test]
    fn pages_of_a_backup_come_whole_or_not_at_all(upto in any::<u32>(), n in 0usize..4, more in 1..PAGE_BYTES) {
        let pages = vec![7; n * PAGE_BYTES];
        let mut bytes = written(|o| BackupPart::Pages { upto, pages: &pages }.encode(o));
        prop_assert_eq!(BackupPart::decode(&bytes), Ok(BackupPart::Pages { upto, pages: &pages }));
        bytes.resize(bytes.len() + more, 0);
        prop_assert!(BackupPart::decode(&bytes).is_err());
    }

    #[test]
    fn a_verdict_comes_back(op in op(), outcome in outcome()) {
        let bytes = written(|o| Verdict { op, outcome }.encode(o));
        prop_assert_eq!(Verdict::decode(&bytes), Ok(Verdict { op, outcome }));
    }

    #[test]
    fn a_layout_comes_back_and_judges_any_bytes_without_a_panic(
        (l, damaged) in layout().prop_flat_map(|l| (Just(l.clone()), mutated(written(|o| l.encode(o))))),
        other in layout(),
        body in vec(any::<u8>(), 0..120),
    ) {
        let bytes = written(|o| l.encode(o));
        let back = Layout::decode(&bytes);
        prop_assert_eq!(back.as_ref(), Ok(&l));
        let _ = l.accepts(&other);
        for l in [Some(l), Layout::decode(&damaged).ok()].into_iter().flatten() {
            // Where nothing but the length is wrong, the right one is named, and random bytes seldom have it.
            let body = match l.check(&body) {
                Err(RecordError::Length { expected, .. }) if expected < body.len() => &body[..expected],
                _ => &body[..],
            };
            if l.check(body).is_ok() {
                prop_assert_eq!(padded(l.used(body)), body.len());
                l.refs(body, |at| assert!(at + 4 <= body.len()));
            }
        }
    }

    #[test]
    fn headers_come_back_and_any_others_are_refused_without_a_panic(
        call in any::<u64>(),
        stamp in any::<u64>(),
        body in vec(any::<u8>(), 0..50),
        noise in any::<[u8; 16]>(),
        at in 0..FRAME_BYTES - 16,
    ) {
        let header = Header { stamp: Stamp(stamp), ..Header::new(Kind::Commit, call) };
        let bytes = written(|o| frame::encode(header, &body, o));
        let mut head = *bytes.first_chunk::<FRAME_BYTES>().unwrap();
        let read = Header::decode(&head).unwrap();
        prop_assert_eq!((read.call, read.stamp, read.body_bytes), (call, Stamp(stamp), body.len() as u32));
        head[at..at + 16].copy_from_slice(&noise);
        let _ = Header::decode(&head);
    }

    #[test]
    fn a_stream_of_frames_is_cut_as_it_was_joined(
        bodies in vec(vec(any::<u8>(), 0..60), 1..6),
        cuts in vec(any::<prop::sample::Index>(), 0..5),
        flip in any::<Option<(prop::sample::Index, u8)>>(),
    ) {
        let mut bytes = Vec::new();
        for (i, body) in bodies.iter().enumerate() {
            frame::encode(Header::new(Kind::Part, i as u64), body, &mut bytes);
        }
        let mut whole = true;
        if let Some((at, with)) = flip {
            let at = at.index(bytes.len());
            whole = bytes[at] == with;
            bytes[at] = with;
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let mut deframer = Deframer::default();
        let mut found = Vec::new();
        'all: for piece in cuts.windows(2) {
            deframer.push(&bytes[piece[0]..piece[1]]);
            loop {
                match deframer.next_frame() {
                    Ok(Some((_, body))) => found.push(body.to_vec()),
                    Ok(None) => break,
                    Err(_) => break 'all,
                }
            }
        }
        // Whatever came out before the damage is what went in.
        let expected = if whole { &bodies[..] } else { &bodies[..found.len().min(bodies.len() - 1)] };
        prop_assert_eq!(&found[..], expected);
    }

    #[test]
    fn pages_come_back_and_damaged_ones_do_no_harm(
        objects in vec((object(), 0u16..3), 0..30),
        id in page(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut builder = PageBuilder::new(Vec::new(), id, SpaceId(1));
        let mut slot = 0;
        let mut put = Vec::new();
        for (object, gap) in &objects {
            slot += gap;
            if builder.push(slot, object) {
                put.push((slot, object.as_slice()));
            }
            slot += 1;
        }
        let bytes = builder.finish(Stamp(9));
        let page = Page::parse(&bytes, id).unwrap();
        prop_assert_eq!(page.objects().collect::<Vec<_>>(), put);
        let mut damaged = bytes.clone();
        for (at, byte) in changes {
            // Where it hurts: the header, the slot table.
            let at = at.index(300);
            let at = if at < 32 { at } else { PAGE_BYTES - 1 - (at - 32) };
            damaged[at] = byte;
        }
        prop_assert!(damaged == bytes || Page::parse(&damaged, id).is_err());
        // As if the checksum, too, had been made to fit.
        if let Ok(page) = Page::trusted(&damaged, id) {
            for (slot, object) in page.objects() {
                prop_assert!(object.len() >= 4 && page.extent(slot).is_some());
            }
            let _ = (page.id(), page.stamp(), page.free());
        }
    }
}
