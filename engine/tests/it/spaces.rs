//! Sessions over several spaces: no effect is seen without its cause, whatever is late.

use std::collections::{BTreeMap, BTreeSet};

use crate::collect::status;
use crate::exports::Letter;
use crate::world::hand::{A, Hand, closed};
use crate::world::things::{Thing, make, set, thing};
use crate::world::{Chaos, SPACE, Thread, World};
use tercel_engine::error::{Bound, Error};
use tercel_engine::random::Random;
use tercel_engine::server::{CollectConfig, ServerConfig};
use tercel_engine::spaces::{Cut, Session};
use tercel_engine::txn::{Home, Isolation, Options, Port, Step, Tx, run};
use tercel_testkit::node::disk::Disk;
use tercel_wire::far::Far;
use tercel_wire::frame::Kind;
use tercel_wire::id::{SpaceId, Stamp, ViewId};
use tercel_wire::message::Depend;
use tercel_wire::record::{List, Ref};
use tercel_wire::vector::{Seen, VECTOR_MAX, Vector};

/// Two spaces: accounts with the right to read, and documents. Client 0 of each writes, client 1 reads.
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
        f(&both(&[self.accounts.thread(client), self.documents.thread(client)]))
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

    /// Accounts come back from an older disk.
    fn put_back(&self, old: Disk) {
        self.accounts.crash();
        self.accounts.lock().node.disk = old;
        self.accounts.restart();
        self.accounts.run_until_idle();
    }

    /// Reads both in one cut.
    fn cut(&self, reader: &Session<'_>, documents_first: bool) -> Result<(u64, u64), Error> {
        reader.read(|cut| {
            let access = || Ok(cut.space("accounts")?.get(self.access)?.count());
            let document = || Ok(cut.space("documents")?.get(self.document)?.count());
            match documents_first {
                true => document().and_then(|d| Ok((access()?, d))),
                false => access().and_then(|a| Ok((a, document()?))),
            }
        })
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
    let ports = [two.accounts.thread(1), two.documents.thread(another)];
    let reader = both(&ports);
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
        two.session(1, |reader| {
            let late = two.cut(reader, documents_first);
            assert!(late.is_err(), "{late:?}");
            two.release();
            assert_eq!(two.cut(reader, documents_first), Ok((0, 1)));
        });
    }
}

#[test]
fn cut_that_failed_on_changed_states_begins_again() {
    let two = Two::new();
    two.session(1, |reader| {
        let mut attempts = 0;
        let read = reader.read(|cut| {
            attempts += 1;
            let count = cut.space("accounts")?.get(two.access)?.count();
            if attempts == 1 {
                two.accounts.run(0, |tx| set(tx, two.access, 5))?;
                two.accounts.run_until_idle();
            }
            if count == 5 { Ok(count) } else { Err(Error::NotFound("the fifth".into())) }
        });
        assert_eq!((read, attempts), (Ok(5), 2));
        let failed = reader.read(|_| Err::<(), _>(Error::NotFound("it".into())));
        assert!(matches!(failed, Err(Error::NotFound(_))), "{failed:?}");
    });
}

#[test]
fn state_of_lost_history_keeps_its_view() {
    let two = Two::new();
    let other = make(&two.accounts, 0, "other", 1);
    two.accounts.run_until_idle();
    let old = two.accounts.lock().node.disk.clone();
    let port = two.accounts.thread(1);
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    let began = tx.as_of().token;
    two.accounts.run(0, |tx| set(tx, other, 2)).unwrap();
    two.accounts.run_until_idle();
    assert_eq!(tx.get(other).unwrap().count(), 2);
    assert!(tx.snapshot() > began.stamp);
    two.put_back(old);
    let token = tx.commit().unwrap().token;
    assert_eq!((token.view, token.stamp > began.stamp), (began.view, true));
    let read = Options { at_least: Some(token), ..Options::default() };
    let refused = run(&port, read, |_| Ok(()));
    assert!(matches!(refused, Err(Error::OtherHistory(_))), "{refused:?}");
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
fn session_does_one_thing_after_the_other() {
    let two = Two::new();
    two.session(0, |session| {
        let within = session.space("documents").unwrap().run(|tx| {
            let inner = two.read(session, "accounts", two.access);
            assert!(matches!(&inner, Err(Error::Invalid(text)) if text.contains("runs")), "{inner:?}");
            assert!(session.token().is_err() && session.read(|_| Ok(())).is_err());
            set(tx, two.document, 7)
        });
        assert_eq!(within, Ok(()));
        assert_eq!(two.read(session, "accounts", two.access), Ok(1));
    });
}

/// States of spaces that never were.
fn invented(from: u64, count: usize) -> Vector {
    let mut vector = Vector::default();
    let all = (from..from + count as u64).map(|n| (SpaceId(n), Seen::at(ViewId::new(1, 1), Stamp(n))));
    all.for_each(|(space, seen)| vector.add(space, seen));
    vector
}

#[test]
fn space_rests_on_bounded_number_of_others() {
    let two = Two::new();
    two.session(0, |session| {
        session.absorb(&invented(1_000, VECTOR_MAX - 1)).unwrap();
        session.space("documents").unwrap().run(|tx| set(tx, two.document, 5)).unwrap();
        let more = session.absorb(&invented(2_000, 2));
        assert!(matches!(more, Err(Error::Invalid(_))), "{more:?}");
    });
    two.session(1, |session| {
        session.absorb(&invented(3_000, 2)).unwrap();
        let full = session.space("documents").unwrap().run(|tx| set(tx, two.document, 6));
        assert!(matches!(full, Err(Error::Full(Bound::Server(_)))), "{full:?}");
    });
    assert_eq!(two.document_now(), 5);
}

/// Has a client's space rest on a vector, or forget what it says.
fn depend(port: &dyn Port, on: &Vector) -> Result<(), Error> {
    let mut end = None;
    port.drive(None, &mut |home, _| {
        end = home.depend(on);
        if end.is_some() { Step::Done } else { Step::Wait }
    })?;
    end.unwrap()
}

#[test]
fn live_clients_go_on_after_space_is_forgotten() {
    let two = Two::new();
    let port = two.documents.thread(0);
    depend(&port, &invented(1_000, VECTOR_MAX)).unwrap();
    for n in 0..3 {
        two.documents.run_until_idle();
        depend(&port, &Vector::forgetting(SpaceId(1_000 + n))).unwrap();
        depend(&port, &invented(2_000 + n, 1)).unwrap();
        for client in 0..2 {
            two.documents.run(client, |tx| set(tx, two.document, n)).unwrap();
            two.documents.run_until_idle();
            let on = two.documents.lock().clients[client].dependencies(Stamp::ZERO).unwrap();
            assert_eq!((on.len(), on.get(SpaceId(1_000 + n))), (VECTOR_MAX, None), "client {client}");
            assert!(on.covers(&invented(2_000 + n, 1)));
        }
    }
}

#[test]
fn forgotten_space_is_ordered_again_after_greeting() {
    let two = Two::new();
    let ports = [two.documents.thread(0), two.documents.thread(1)];
    depend(&ports[0], &invented(1_000, 1)).unwrap();
    two.documents.run_until_idle();
    depend(&ports[1], &Vector::forgetting(SpaceId(1_000))).unwrap();
    two.documents.cut(0);
    two.documents.run_until_idle();
    depend(&ports[0], &invented(1_000, 1)).unwrap();
    assert!(status(&two.documents).contains("\"rests_on\":[\"3e8:"));
}

#[test]
fn space_that_rests_on_many_is_read() {
    for count in [VECTOR_MAX - 1, VECTOR_MAX] {
        let two = Two::new();
        depend(&two.documents.thread(0), &invented(1_000, count)).unwrap();
        two.documents.run(0, |tx| set(tx, two.document, 3)).unwrap();
        two.documents.run_until_idle();
        two.session(1, |session| {
            for _ in 0..2 {
                assert_eq!(two.read(session, "documents", two.document), Ok(3));
                assert_eq!(two.read(session, "accounts", two.access), Ok(1));
            }
            // All of them and both spaces are more than a token names, and than a space rests on.
            let token = session.token();
            assert!(matches!(&token, Err(Error::Invalid(text)) if text.contains("forget")), "{token:?}");
            let written = session.space("accounts").unwrap().run(|tx| set(tx, two.access, 2));
            assert_eq!(matches!(written, Err(Error::Invalid(_))), count == VECTOR_MAX, "{written:?}");
            assert_eq!(two.read(session, "documents", two.document), Ok(3));
        });
    }
}

#[test]
fn cut_beside_writers_of_both_spaces_ends() {
    let two = Two::new();
    let mut attempts = 0;
    let read = two.session(1, |reader| {
        reader.read(|cut| {
            attempts += 1;
            let access = cut.space("accounts")?.get(two.access)?.count();
            let document = cut.space("documents")?.get(two.document)?.count();
            two.session(0, |writer| {
                writer.space("accounts")?.run(|tx| set(tx, two.access, 10 + attempts))?;
                writer.space("documents")?.run(|tx| set(tx, two.document, attempts))
            })?;
            two.accounts.run_until_idle();
            two.documents.run_until_idle();
            Ok((access, document))
        })
    });
    assert_eq!((read, attempts), (Ok((1, 0)), 1));
}

#[test]
fn client_that_has_space_rest_on_itself_is_shown_out() {
    let mut h = Hand::new();
    h.greet(A, 1, 1);
    let on = |space| {
        let mut on = Vector::default();
        on.add(SpaceId(space), Seen::at(ViewId::new(1, 1), Stamp(9)));
        on
    };
    assert!(!closed(&h.send(A, Kind::Depend, |o| Depend { on: on(2) }.encode(o)), A));
    assert!(closed(&h.send(A, Kind::Depend, |o| Depend { on: on(1) }.encode(o)), A));
}

/// A letter of the space of documents about a thing of the space of accounts, which only the letter names.
fn write_letter(two: &Two, session: &Session<'_>, count: u64) -> (Ref<Letter>, Far<Thing>) {
    let export = |tx: &Tx<'_>| tx.export(tx.create(&thing(count))?);
    let about = session.space("accounts").unwrap().run(export).unwrap();
    let letter = session.space("documents").unwrap().run(|tx| {
        let letter = tx.create(&Letter { about, more: List::new(), last: None })?;
        tx.set_root("letter", letter)?;
        Ok(letter)
    });
    two.documents.run_until_idle();
    (letter.unwrap(), about)
}

#[test]
fn far_reference_leads_session_to_its_object() {
    let two = Two::new();
    // The reader hears of the letter, and nothing of what it is about.
    two.accounts.lock().hold.down = Some(1);
    let (letter, _) = two.session(0, |writer| write_letter(&two, writer, 7));
    two.session(1, |reader| {
        let about = reader.space("documents").unwrap().read(|tx| Ok(tx.get(letter)?.about())).unwrap();
        let late = reader.follow(about, |thing| Ok(thing.count()));
        assert!(matches!(late, Err(Error::Unavailable(_))), "{late:?}");
        two.release();
        assert_eq!(reader.follow(about, |thing| Ok(thing.count())), Ok(7));
        let cut = reader.read(|cut| {
            let about = cut.space("documents")?.get(letter)?.about();
            Ok(cut.get_far(about)?.count())
        });
        assert_eq!(cut, Ok(7));
        let space = reader.space_of(about).unwrap();
        space.run(|tx| set(tx, tx.get_far(about)?.reference(), 8)).unwrap();
        assert_eq!(reader.follow(about, |thing| Ok(thing.count())), Ok(8));
        // As a text it means the same.
        let text = about.to_string();
        assert_eq!(reader.follow(text.parse::<Far<Thing>>().unwrap(), |thing| Ok(thing.count())), Ok(8));
        assert_eq!(reader.space_of(about).unwrap().run(|tx| tx.withdraw(about)), Ok(true));
        let gone = reader.follow(about, |thing| Ok(thing.count()));
        assert!(matches!(&gone, Err(Error::NotFound(text)) if text.contains("withdrawn")), "{gone:?}");
    });
}

#[test]
fn far_reference_of_unconnected_space_is_refused() {
    let two = Two::new();
    let (_, about) = two.session(0, |writer| write_letter(&two, writer, 7));
    let port = two.documents.thread(1);
    let alone = Session::new([("documents", &port as &(dyn Port + Sync))]);
    let refused = alone.follow(about, |thing| Ok(thing.count()));
    assert!(matches!(&refused, Err(Error::Invalid(text)) if text.contains("documents")), "{refused:?}");
    assert!(matches!(alone.follow(Far::<Thing>::NULL, |_| Ok(())), Err(Error::NotFound(_))));
    let cut = alone.read(|cut| cut.get_far(about).map(|_| ()));
    assert!(matches!(cut, Err(Error::Invalid(_))), "{cut:?}");
}

/// Which version of an object a session has seen, or rests on: objects by space and number.
type Past = BTreeMap<(usize, usize), u64>;

fn join(past: &mut Past, other: &Past) {
    for (object, version) in other {
        let mine = past.entry(*object).or_default();
        *mine = (*mine).max(*version);
    }
}

/// Readers and writers of two spaces, in sessions or without, and the judge of what they see: each version of
/// an object is written by a transaction that read the one before, so versions of an object have an order.
struct Judged<'w> {
    worlds: &'w [World; 2],
    objects: [Vec<Ref<Thing>>; 2],
    pasts: Vec<Past>,
    causes: BTreeMap<((usize, usize), u64), Past>,
    violations: u32,
    reads: u32,
    /// Letters of the space of documents, each about a thing of the space of accounts that nothing else
    /// names.
    letters: Vec<Ref<Letter>>,
    exports: BTreeMap<Far<Thing>, u64>,
    withdrawn: BTreeSet<Far<Thing>>,
    followed: u32,
}

const NAMES: [&str; 2] = ["accounts", "documents"];
const READERS: usize = 3;
const OBJECTS: usize = 2;

impl Judged<'_> {
    /// A reader has seen a version, which may be older than one that it, or what it has seen, rests on.
    fn saw(&mut self, reader: usize, object: (usize, usize), version: u64) {
        self.reads += 1;
        let past = &mut self.pasts[reader];
        self.violations += u32::from(version < past.get(&object).copied().unwrap_or(0));
        // The causes of a write are not known if nobody has heard its outcome.
        let alone = Past::from([(object, version)]);
        join(past, self.causes.get(&(object, version)).unwrap_or(&alone));
    }

    fn wrote(&mut self, reader: usize, object: (usize, usize), version: u64) {
        self.saw(reader, object, version - 1);
        let past = &mut self.pasts[reader];
        past.insert(object, version);
        self.causes.insert((object, version), past.clone());
    }

    fn step(&mut self, random: &mut Random, sessions: Option<&[Session<'_>]>) {
        let reader = random.below(READERS as u64) as usize;
        let objects = [0, 1].map(|space| (space, random.below(OBJECTS as u64) as usize));
        let (space, number) = objects[random.below(2) as usize];
        let at = |(space, number): (usize, usize)| self.objects[space][number];
        let object = at((space, number));
        let add = |tx: &Tx<'_>| {
            let version = tx.get(object)?.count() + 1;
            set(tx, object, version)?;
            Ok(version)
        };
        let read = |tx: &Tx<'_>, object: Ref<Thing>| Ok::<_, Error>(tx.get(object)?.count());
        let within = sessions.map(|sessions| sessions[reader].space(NAMES[space]).unwrap());
        let world = &self.worlds[space];
        match random.below(9) {
            5 => self.write_letter(reader, objects[1].1, sessions.map(|sessions| &sessions[reader])),
            6 => self.read_letter(reader, objects[1].1, sessions.map(|sessions| &sessions[reader])),
            0 | 1 => {
                let written = match within {
                    Some(space) => space.run(add),
                    None => world.run(reader, add),
                };
                written.into_iter().for_each(|version| self.wrote(reader, (space, number), version));
            }
            2 | 3 | 7 | 8 => {
                let seen = match within {
                    Some(space) => space.read(|tx| read(tx, object)),
                    None => world.run(reader, |tx| read(tx, object)),
                };
                seen.into_iter().for_each(|version| self.saw(reader, (space, number), version));
            }
            _ => {
                let cut = sessions.map(|sessions| {
                    let both = |cut: &Cut<'_>| {
                        let first = read(cut.space(NAMES[0])?, at(objects[0]))?;
                        Ok([first, read(cut.space(NAMES[1])?, at(objects[1]))?])
                    };
                    sessions[reader].read(both)
                });
                // The one read rests on must be in the other, whichever is judged first.
                if let Some(Ok(versions)) = cut {
                    for i in [0, 1, 0] {
                        self.saw(reader, objects[i], versions[i]);
                    }
                }
            }
        }
    }
}

impl Judged<'_> {
    /// Runs a transaction of one space, in a session or without.
    fn run<R>(
        &self,
        reader: usize,
        space: usize,
        session: Option<&Session<'_>>,
        body: impl FnMut(&Tx<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        match session {
            Some(session) => session.space(NAMES[space])?.run(body),
            None => self.worlds[space].run(reader, body),
        }
    }

    /// Makes a thing, has the letter lead to it, and withdraws what the letter led to before.
    fn write_letter(&mut self, reader: usize, letter: usize, session: Option<&Session<'_>>) {
        let count = self.exports.len() as u64 + 1;
        let export = |tx: &Tx<'_>| tx.export(tx.create(&thing(count))?);
        let Ok(about) = self.run(reader, 0, session, export) else { return };
        self.exports.insert(about, count);
        let letter = self.letters[letter];
        let before = self.run(reader, 1, session, |tx| {
            let before = tx.get(letter)?.about();
            tx.edit(letter)?.set_about(about)?;
            Ok(before)
        });
        if let Ok(before) = before
            && !before.is_null()
        {
            self.withdrawn.insert(before);
            _ = self.run(reader, 0, session, |tx| tx.withdraw(before));
        }
    }

    /// Follows what a letter leads to: it is there as long as nobody withdraws it.
    fn read_letter(&mut self, reader: usize, letter: usize, session: Option<&Session<'_>>) {
        let letter = self.letters[letter];
        let read = |tx: &Tx<'_>| Ok(tx.get(letter)?.about());
        let about = match session {
            Some(session) => session.space(NAMES[1]).and_then(|space| space.read(read)),
            None => self.worlds[1].run(reader, read),
        };
        let Ok(about) = about else { return };
        if about.is_null() {
            return;
        }
        let found = match session {
            Some(session) => session.follow(about, |thing| Ok(thing.count())),
            None => self.worlds[0].run(reader, |tx| Ok(tx.get_far(about)?.count())),
        };
        let is_wrong = match &found {
            Ok(count) => Some(count) != self.exports.get(&about),
            Err(Error::NotFound(_)) => !self.withdrawn.contains(&about),
            Err(_) => false,
        };
        self.followed += u32::from(found.is_ok());
        self.violations += u32::from(is_wrong);
    }
}

fn both<'s>([accounts, documents]: &'s [Thread<'_>; 2]) -> Session<'s> {
    let all: [&'s (dyn Port + Sync); 2] = [accounts, documents];
    Session::new(NAMES.into_iter().zip(all))
}

const GRACE_MS: u64 = 5;

/// The configuration of a server that collects when it is asked to, and soon frees.
fn collecting() -> ServerConfig {
    let collect = CollectConfig { is_automatic: false, grace_ms: GRACE_MS, ..CollectConfig::default() };
    ServerConfig { collect, ..ServerConfig::default() }
}

/// Asks for a collection, and waits for nothing.
fn begin_collection(world: &World) {
    let mut inner = world.lock();
    let now = inner.now;
    _ = inner.clients[0].begin_collection(now, false);
    inner.send(0);
}

/// Plays a world of two spaces whose connections are cut and whose servers crash. Gives reads, and those that
/// lack a cause.
fn play(seed: u64, is_causal: bool) -> (u32, u32) {
    let mut random = Random::new(seed);
    let worlds = [0, 1].map(|n| World::of_space(SpaceId(SPACE.0 + n), 2 * seed + n, READERS, collecting()));
    let objects =
        [0, 1].map(|space| (0..OBJECTS).map(|i| make(&worlds[space], 0, &format!("o{i}"), 0)).collect());
    let letter = |tx: &Tx<'_>| {
        let letter = tx.create(&Letter { about: Far::NULL, more: List::new(), last: None })?;
        tx.set_root(&format!("letter {letter:?}"), letter)?;
        Ok(letter)
    };
    let letters = (0..OBJECTS).map(|_| worlds[1].run(0, letter).unwrap()).collect();
    for world in &worlds {
        let mut inner = world.lock();
        inner.chaos = Chaos { cut: 150, crash: 400, ..Chaos::default() };
        inner.patience = 400;
    }
    let ports: Vec<_> =
        (0..READERS).map(|reader| [worlds[0].thread(reader), worlds[1].thread(reader)]).collect();
    let sessions: Vec<_> = ports.iter().map(both).collect();
    let pasts = vec![Past::new(); READERS];
    let mut judged = Judged {
        worlds: &worlds,
        objects,
        pasts,
        causes: BTreeMap::new(),
        violations: 0,
        reads: 0,
        letters,
        exports: BTreeMap::new(),
        withdrawn: BTreeSet::new(),
        followed: 0,
    };
    for _ in 0..240 {
        judged.step(&mut random, is_causal.then_some(&sessions));
        // The worlds go on by themselves, the one more than the other, and nothing reaches some reader.
        let world = &worlds[random.below(2) as usize];
        match random.below(32) {
            0..2 => world.run_until_idle(),
            2..6 => world.lock().hold.down = Some(random.below(READERS as u64) as usize),
            6 => world.lock().hold.down = None,
            7 => worlds[0].pass_ms(GRACE_MS),
            8..10 => begin_collection(&worlds[0]),
            _ => {}
        }
    }
    (judged.reads + judged.followed, judged.violations)
}

#[test]
fn sessions_lack_no_cause_in_random_worlds() {
    let (mut reads, mut without) = (0, 0);
    for seed in 0..100 {
        let (seen, violations) = play(seed, true);
        assert_eq!(violations, 0, "seed {seed}");
        reads += seen;
        without += play(seed, false).1;
    }
    // Reads that know nothing of each other do lack causes in these worlds.
    println!("{reads} reads, {without} without their causes where there is no session");
    assert!(reads > 3_000 && without > 10, "{reads} reads, {without} without their causes");
}

/// Writers of documents have seen each another space. Says whether a new client waits for what the first had
/// seen.
fn causes_of_both_writers_are_waited_for() -> bool {
    let two = Two::new();
    two.revoke_and_write();
    let groups = World::of_space(SpaceId(SPACE.0 + 2), 3, 1, ServerConfig::default());
    let ports = [groups.thread(0), two.documents.thread(0)];
    let all: [&(dyn Port + Sync); 2] = [&ports[0], &ports[1]];
    let second = Session::new(["groups", "documents"].into_iter().zip(all));
    let make = |tx: &Tx<'_>| tx.create(&thing(1)).map(|_| ());
    second.space("groups").unwrap().run(make).unwrap();
    second.space("documents").unwrap().run(|tx| set(tx, two.document, 2)).unwrap();
    let another = two.documents.add_client(99, 512 << 10);
    let ports = [two.accounts.thread(1), two.documents.thread(another)];
    let reader = both(&ports);
    assert_eq!(two.read(&reader, "documents", two.document), Ok(2));
    two.read(&reader, "accounts", two.access).is_err()
}

#[test]
fn space_rests_on_what_each_writer_has_seen() {
    assert!(causes_of_both_writers_are_waited_for());
}

/// A session has seen a commit that its space then loses: says whether another
/// session with its token reads there.
fn state_of_lost_history_is_read() -> bool {
    let two = Two::new();
    let old = two.accounts.lock().node.disk.clone();
    two.session(0, |session| session.space("accounts").unwrap().run(|tx| set(tx, two.access, 5))).unwrap();
    let token = two.session(0, |session| {
        session.space("accounts").unwrap().read(|tx| Ok(tx.get(two.access)?.count())).unwrap();
        session.token().unwrap()
    });
    two.put_back(old);
    // Other commits have its stamps by then.
    (0..3).for_each(|n| two.accounts.run(1, |tx| set(tx, two.access, n)).unwrap());
    two.session(1, |session| {
        session.absorb(&token).unwrap();
        let read = two.read(session, "accounts", two.access);
        assert!(matches!(read, Ok(2) | Err(Error::OtherHistory(_))), "{read:?}");
        read.is_ok()
    })
}

#[test]
fn cut_with_lost_cause_is_refused() {
    for documents_first in [true, false] {
        let two = Two::new();
        let old = two.accounts.lock().node.disk.clone();
        two.revoke_and_write();
        two.release();
        two.put_back(old);
        // Other commits have its stamps by then.
        (0..5).for_each(|n| two.accounts.run(1, |tx| set(tx, two.access, n)).unwrap());
        let cut = two.session(1, |reader| two.cut(reader, documents_first));
        assert!(matches!(cut, Err(Error::OtherHistory(_))), "{cut:?}");
    }
}

#[test]
fn token_of_lost_history_is_refused() {
    assert!(!state_of_lost_history_is_read());
}

/// For builds with `--cfg tercel_mutants`, as the step `worlds` of `.ci/run` makes one.
#[cfg(tercel_mutants)]
#[test]
fn dropped_rules_of_spaces_are_noticed() {
    use tercel_engine::mutant::{Rule, drop_rule};

    let mut missed: Vec<Rule> = Vec::new();
    // With two spaces a vector has one entry, which no other replaces.
    drop_rule(Some(Rule::DependenciesForgotten));
    assert!(!causes_of_both_writers_are_waited_for());
    for rule in Rule::OF_SPACES.iter().filter(|rule| **rule != Rule::DependenciesForgotten) {
        drop_rule(Some(*rule));
        let caught = (0..WORLDS_MAX).find(|seed| play(*seed, true).1 > 0);
        println!("{rule:?} is noticed in world {caught:?}");
        missed.extend(caught.is_none().then_some(*rule));
    }
    drop_rule(Some(Rule::AtLeastOfAnyHistory));
    assert!(state_of_lost_history_is_read());
    drop_rule(None);
    assert!(missed.is_empty(), "{missed:?}");
}

/// Worlds in which a dropped rule must be noticed.
#[cfg(tercel_mutants)]
const WORLDS_MAX: u64 = 60;
