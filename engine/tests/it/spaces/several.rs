//! Transactions that write several spaces, one at a time: what they cost, and what ends them.

use tercel_engine::error::Error;
use tercel_engine::server::ServerConfig;
use tercel_engine::spaces::Session;
use tercel_engine::txn::{Freshness, Isolation, Port, Tx};
use tercel_wire::id::SpaceId;
use tercel_wire::vector::VECTOR_MAX;

use super::{Two, invented, put_back};
use crate::world::things::{Thing, set, thing};
use crate::world::{SPACE, World};

/// Writes both of the objects in one transaction.
fn write_both(two: &Two, session: &Session<'_>, count: u64) -> Result<(), Error> {
    session.run(|tx| {
        set(tx.space("accounts")?, two.access, count)?;
        set(tx.space("documents")?, two.document, count)
    })
}

/// Prepares that were ordered, in both spaces.
fn prepares(two: &Two) -> [u64; 2] {
    [&two.accounts, &two.documents].map(|world| world.lock().node.machine().unwrap().stats().prepares)
}

#[test]
fn transaction_writes_both_spaces() {
    let two = Two::new();
    two.session(0, |session| {
        for count in 5..9 {
            write_both(&two, session, count).unwrap();
            assert_eq!(two.cut(session, true), Ok((count, count)));
        }
    });
    assert_eq!(prepares(&two), [0, 4], "the first that is written decides");
    two.settle();
    two.session(1, |reader| {
        assert_eq!(two.read(reader, "accounts", two.access), Ok(8));
        assert_eq!(two.read(reader, "documents", two.document), Ok(8));
    });
}

#[test]
fn space_that_has_no_part_prepares_nothing() {
    let two = Two::new();
    two.session(0, |session| {
        session.run(|tx| set(tx.space("documents")?, two.document, 3)).unwrap();
        let copy = |isolation| {
            session.run_with(isolation, |tx| {
                let count = tx.space("accounts")?.get(two.access)?.count();
                set(tx.space("documents")?, two.document, count)
            })
        };
        copy(Isolation::Snapshot).unwrap();
        assert_eq!(prepares(&two), [0, 0]);
        // What it read must hold.
        copy(Isolation::Serializable).unwrap();
        assert_eq!(prepares(&two), [1, 0]);
        assert_eq!(two.cut(session, false), Ok((1, 1)));
    });
}

#[test]
fn transaction_that_fails_writes_nothing() {
    let two = Two::new();
    two.session(0, |session| {
        let failed = session.run(|tx| {
            set(tx.space("accounts")?, two.access, 9)?;
            set(tx.space("documents")?, two.document, 9)?;
            Err::<(), _>(Error::NotFound("the third".into()))
        });
        assert!(matches!(failed, Err(Error::NotFound(_))), "{failed:?}");
        // Amid this one somebody else writes what it has read, in the space that is to prepare.
        let mut attempts = 0;
        let added = session.run(|tx| {
            let count = tx.space("documents")?.get(two.document)?.count() + 1;
            attempts += 1;
            if attempts == 1 {
                two.documents.run(1, |tx| set(tx, two.document, 6))?;
            }
            set(tx.space("accounts")?, two.access, count)?;
            set(tx.space("documents")?, two.document, count)
        });
        assert_eq!((added, attempts), (Ok(()), 2));
        assert_eq!(two.cut(session, true), Ok((7, 7)));
    });
}

#[test]
fn objects_are_made_in_both_spaces() {
    let two = Two::new();
    let [of_accounts, of_documents] = two.session(0, |session| {
        let make = |tx: &Tx<'_>| -> Result<_, Error> {
            let made = tx.create(&thing(5))?;
            tx.set_root("made", made)?;
            Ok::<_, Error>(made)
        };
        session.run(|tx| Ok([make(tx.space("accounts")?)?, make(tx.space("documents")?)?])).unwrap()
    });
    two.settle();
    two.session(1, |reader| {
        assert_eq!(two.read(reader, "documents", of_documents), Ok(5));
        assert_eq!(two.read(reader, "accounts", of_accounts), Ok(5));
        let by_root = |tx: &Tx<'_>| Ok(tx.get_root::<Thing>("made")?.count());
        assert_eq!(reader.space("documents").unwrap().read(by_root), Ok(5));
    });
}

#[test]
fn part_that_is_not_settled_is_waited_for() {
    let two = Two::new();
    two.session(0, |writer| {
        // The decision is made, and its client hears nothing of it.
        let unheard = writer.run(|tx| {
            set(tx.space("accounts")?, two.access, 5)?;
            set(tx.space("documents")?, two.document, 5)?;
            two.accounts.lock().hold.down = Some(0);
            Ok(())
        });
        assert!(matches!(unheard, Err(Error::Unknown { op: Some(_), .. })), "{unheard:?}");
        two.release();
    });
    two.session(1, |reader| {
        // Who knows nothing of it waits for nothing, and then goes on with that.
        assert_eq!(two.read(reader, "documents", two.document), Ok(0));
        // A writer is refused in the end: no newer state comes.
        let space = reader.space("documents").unwrap().with(Freshness::Stale);
        let held = space.run(|tx| set(tx, two.document, 9));
        assert!(matches!(held, Err(Error::Conflict(_))), "{held:?}");
        assert_eq!(two.read(reader, "accounts", two.access), Ok(5));
        let half = two.read(reader, "documents", two.document);
        assert!(matches!(&half, Err(Error::Unavailable(text)) if text.contains("settled")), "{half:?}");
        let half = two.cut(reader, true);
        assert!(half.is_err(), "{half:?}");
    });
}

#[test]
fn prepare_of_lost_history_is_not_waited_for() {
    let two = Two::new();
    let old = two.documents.lock().node.disk.clone();
    // The space is far from the stamp of the prepare when it comes back.
    (0..9).for_each(|n| two.documents.run(0, |tx| set(tx, two.document, n)).unwrap());
    let token = two.session(0, |writer| {
        write_both(&two, writer, 5).unwrap();
        two.settle();
        writer.token().unwrap()
    });
    put_back(&two.documents, old);
    two.session(1, |reader| {
        reader.absorb(&token).unwrap();
        let read = two.read(reader, "documents", two.document);
        assert!(matches!(read, Err(Error::OtherHistory(_))), "{read:?}");
        for documents_first in [true, false] {
            let cut = two.cut(reader, documents_first);
            assert!(matches!(cut, Err(Error::OtherHistory(_))), "{cut:?}");
        }
    });
}

#[test]
fn transaction_rests_on_bounded_number_of_spaces() {
    let two = Two::new();
    two.session(0, |session| {
        // Its own two are among those that it has seen, also where nothing was seen of them before.
        session.absorb(&invented(1_000, VECTOR_MAX - 2)).unwrap();
        assert_eq!(write_both(&two, session, 5), Ok(()));
        assert_eq!(two.cut(session, true), Ok((5, 5)));
    });
    two.settle();
    two.session(1, |session| {
        session.absorb(&invented(1_000, VECTOR_MAX - 1)).unwrap();
        let more = write_both(&two, session, 6);
        assert!(matches!(&more, Err(Error::Invalid(text)) if text.contains("at most 64")), "{more:?}");
    });
    assert_eq!((prepares(&two), two.document_now()), ([0, 1], 5));
}

#[test]
fn transaction_has_bounded_parts() {
    let two = Two::new();
    let large = two.session(0, |session| {
        session.run(|tx| {
            set(tx.space("documents")?, two.document, 5)?;
            let text = "x".repeat(7_000);
            (0..40).try_for_each(|n| {
                let tx = tx.space("accounts")?;
                tx.create(&Thing { text: text.as_str().into(), ..thing(n) }).map(|_| ())
            })
        })
    });
    assert!(matches!(&large, Err(Error::Invalid(text)) if text.contains("256 KiB")), "{large:?}");
    assert_eq!(two.document_now(), 0);

    let world = |n| World::of_space(SpaceId(SPACE.0 + n), n, 1, ServerConfig::default());
    let worlds: Vec<World> = (0..17).map(world).collect();
    let names: Vec<String> = (0..17).map(|n| n.to_string()).collect();
    let ports: Vec<_> = worlds.iter().map(|world| world.thread(0)).collect();
    let all = names.iter().map(String::as_str).zip(ports.iter().map(|port| port as &(dyn Port + Sync)));
    let session = Session::new(all);
    let many = |count: usize| {
        session.run(|tx| {
            names[..count].iter().try_for_each(|name| tx.space(name)?.create(&thing(1)).map(|_| ()))
        })
    };
    assert_eq!(many(16), Ok(()));
    let many = many(17);
    assert!(matches!(&many, Err(Error::Invalid(text)) if text.contains("16 spaces")), "{many:?}");
}
