//! Sessions over several spaces: no effect is seen without its cause, whatever is late.

use crate::world::things::{Thing, make, set};
use crate::world::{SPACE, World};
use tercel_engine::error::{Bound, Error};
use tercel_engine::server::ServerConfig;
use tercel_engine::spaces::Session;
use tercel_engine::txn::Port;
use tercel_wire::id::{SpaceId, Stamp, ViewId};
use tercel_wire::record::Ref;
use tercel_wire::vector::{Seen, VECTOR_MAX, Vector};

/// Accounts, which say who may read, and documents. Client 0 of each writes, client 1 reads.
struct Two {
    accounts: World,
    documents: World,
    access: Ref<Thing>,
    document: Ref<Thing>,
}

impl Two {
    fn new() -> Two {
        let accounts = World::new(1, 2, ServerConfig::default());
        let documents = World::of_space(SpaceId(SPACE.0 + 1), 2, 2, ServerConfig::default());
        let (access, document) = (make(&accounts, 0, "access", 1), make(&documents, 0, "document", 0));
        let two = Two { accounts, documents, access, document };
        two.accounts.lock().patience = 200;
        // Both readers have both in their caches.
        assert_eq!((two.access_now(), two.document_now()), (1, 0));
        two.accounts.run_until_idle();
        two.documents.run_until_idle();
        two
    }

    fn access_now(&self) -> u64 {
        self.accounts.run(1, |tx| Ok(tx.get(self.access)?.count())).unwrap()
    }

    fn document_now(&self) -> u64 {
        self.documents.run(1, |tx| Ok(tx.get(self.document)?.count())).unwrap()
    }

    /// Runs `f` with a session of these clients.
    fn session<R>(&self, client: usize, f: impl FnOnce(&Session<'_>) -> R) -> R {
        let (accounts, documents) = (self.accounts.thread(client), self.documents.thread(client));
        f(&Session::new([
            ("accounts", &accounts as &(dyn Port + Sync)),
            ("documents", &documents as &(dyn Port + Sync)),
        ]))
    }

    /// Takes access away, and only then writes the document. The reader hears nothing of the first.
    fn revoke_and_write(&self) -> Vector {
        self.accounts.lock().hold.down = Some(1);
        let token = self.session(0, |writer| {
            writer.space("accounts")?.run(|tx| set(tx, self.access, 0))?;
            writer.space("documents")?.run(|tx| set(tx, self.document, 1))?;
            writer.token()
        });
        self.documents.run_until_idle();
        token.unwrap()
    }

    fn release(&self) {
        self.accounts.lock().hold.down = None;
    }

    fn read(&self, session: &Session<'_>, space: &str, of: Ref<Thing>) -> Result<u64, Error> {
        session.space(space)?.read(|tx| Ok(tx.get(of)?.count()))
    }
}

#[test]
fn effect_is_not_seen_without_its_cause() {
    let two = Two::new();
    two.revoke_and_write();
    // Two transactions that know nothing of each other show the anomaly.
    assert_eq!((two.document_now(), two.access_now()), (1, 1));
    two.session(1, |reader| {
        assert_eq!(two.read(reader, "documents", two.document), Ok(1));
        let late = two.read(reader, "accounts", two.access);
        assert!(late.is_err(), "{late:?}");
        two.release();
        assert_eq!(two.read(reader, "accounts", two.access), Ok(0));
    });
}

#[test]
fn session_without_the_effect_waits_for_nothing() {
    let two = Two::new();
    two.revoke_and_write();
    two.session(1, |reader| {
        assert_eq!(two.read(reader, "accounts", two.access), Ok(1));
        assert_eq!(two.read(reader, "documents", two.document), Ok(1));
        // Now it has.
        assert!(two.read(reader, "accounts", two.access).is_err());
    });
}

#[test]
fn cause_is_known_after_the_server_was_lost() {
    let two = Two::new();
    two.revoke_and_write();
    two.documents.crash();
    two.documents.restart();
    let another = two.documents.add_client(99, 512 << 10);
    let (accounts, documents) = (two.accounts.thread(1), two.documents.thread(another));
    let reader = Session::new([
        ("accounts", &accounts as &(dyn Port + Sync)),
        ("documents", &documents as &(dyn Port + Sync)),
    ]);
    assert_eq!(two.read(&reader, "documents", two.document), Ok(1));
    assert!(two.read(&reader, "accounts", two.access).is_err());
    two.release();
    assert_eq!(two.read(&reader, "accounts", two.access), Ok(0));
}

#[test]
fn token_carries_what_a_session_has_seen() {
    let two = Two::new();
    let token = two.revoke_and_write().to_string();
    two.session(1, |reader| {
        reader.absorb(&token.parse().unwrap()).unwrap();
        assert!(two.read(reader, "accounts", two.access).is_err());
        two.release();
        assert_eq!(two.read(reader, "accounts", two.access), Ok(0));
    });
}

#[test]
fn cut_of_two_spaces_has_both_or_neither() {
    for documents_first in [true, false] {
        let two = Two::new();
        two.revoke_and_write();
        let cut = |reader: &Session<'_>| {
            reader.read(|cut| {
                let access = || Ok(cut.space("accounts")?.get(two.access)?.count());
                let document = || Ok(cut.space("documents")?.get(two.document)?.count());
                match documents_first {
                    true => document().and_then(|d| Ok((access()?, d))),
                    false => access().and_then(|a| Ok((a, document()?))),
                }
            })
        };
        two.session(1, |reader| {
            let late = cut(reader);
            assert!(late.is_err(), "{late:?}");
            two.release();
            assert_eq!(cut(reader), Ok((0, 1)));
        });
    }
}

#[test]
fn reads_that_write_and_unknown_names_are_refused() {
    let two = Two::new();
    two.session(0, |session| {
        let read = session.space("accounts").unwrap().read(|tx| set(tx, two.access, 5));
        assert!(matches!(&read, Err(Error::Invalid(text)) if text.contains("only reads")), "{read:?}");
        let cut = session.read(|cut| set(cut.space("accounts")?, two.access, 5));
        assert!(matches!(&cut, Err(Error::Invalid(text)) if text.contains("only reads")), "{cut:?}");
        let unknown = session.space("orders").map(|_| ());
        assert!(matches!(&unknown, Err(Error::Invalid(text)) if text.contains("accounts")), "{unknown:?}");
    });
    assert_eq!(two.access_now(), 1);
}

#[test]
fn space_rests_on_bounded_number_of_others() {
    let two = Two::new();
    let seen = |from: u64, count: usize| {
        let mut vector = Vector::default();
        let all = (from..from + count as u64).map(|n| (SpaceId(n), Seen::at(ViewId::new(1, 1), Stamp(n))));
        all.for_each(|(space, seen)| vector.add(space, seen));
        vector
    };
    two.session(0, |session| {
        session.absorb(&seen(1_000, VECTOR_MAX - 1)).unwrap();
        session.space("documents").unwrap().run(|tx| set(tx, two.document, 5)).unwrap();
        let more = session.absorb(&seen(2_000, 2));
        assert!(matches!(more, Err(Error::Invalid(_))), "{more:?}");
    });
    two.session(1, |session| {
        session.absorb(&seen(3_000, 2)).unwrap();
        let full = session.space("documents").unwrap().run(|tx| set(tx, two.document, 6));
        assert!(matches!(full, Err(Error::Full(Bound::Server(_)))), "{full:?}");
    });
    assert_eq!(two.document_now(), 5);
}
