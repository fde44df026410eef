//! Sessions over several spaces: no effect is seen without its cause, whatever is late.

mod foreign;
mod ground;
mod groups;
mod judged;
mod keys;
mod several;
mod transfers;

use self::judged::{Done, Guarantee, Judged, both};
use crate::collect::status;
use crate::exports::Letter;
use crate::world::hand::{A, Hand, closed};
use crate::world::things::{Thing, make, set, thing};
use crate::world::{Chaos, SPACE, Thread, World};
use tercel_engine::error::{Bound, Error};
use tercel_engine::random::Random;
use tercel_engine::server::{CollectConfig, ServerConfig};
use tercel_engine::spaces::Session;
use tercel_engine::txn::{Home, Isolation, Options, Port, Step, Tx, run};
use tercel_testkit::node::disk::Disk;
use tercel_wire::far::Far;
use tercel_wire::frame::Kind;
use tercel_wire::id::{SpaceId, Stamp, ViewId};
use tercel_wire::message::Depend;
use tercel_wire::record::{List, Ref};
use tercel_wire::token::Token;
use tercel_wire::vector::{Seen, VECTOR_MAX, Vector};

/// Two spaces: accounts with the right to read, and documents. Client 0 of each writes, client 1 reads.
struct Two {
    accounts: World,
    documents: World,
    access: Ref<Thing>,
    document: Ref<Thing>,
}

/// A space comes back from an older disk.
fn put_back(world: &World, old: Disk) {
    world.crash();
    world.lock().node.disk = old;
    world.restart();
    world.run_until_idle();
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
        two.settle();
        two
    }

    fn settle(&self) {
        self.accounts.run_until_idle();
        self.documents.run_until_idle();
    }

    fn access_now(&self) -> u64 {
        self.accounts.run(1, |tx| Ok(tx.get(self.access)?.count())).unwrap()
    }

    fn document_now(&self) -> u64 {
        self.documents.run(1, |tx| Ok(tx.get(self.document)?.count())).unwrap()
    }

    /// Runs `f` with a session of these clients.
    fn session<R>(&self, client: usize, f: impl FnOnce(&Session<'_>) -> R) -> R {
        f(&over(&[self.accounts.thread(client), self.documents.thread(client)]))
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

    /// The state of accounts that a session has seen.
    fn token_of(&self, session: &Session<'_>) -> Option<Token> {
        self.read(session, "accounts", self.access).unwrap();
        session.token().unwrap().token(SPACE)
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
    let reader = over(&ports);
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

/// Reads access and a document in a cut amid which the one is written, and then the other.
fn cut_amid_writes(two: &Two, options: impl Into<Options>) -> ((u64, u64), u32) {
    let mut attempts = 0;
    let write = |world: &World, of, count| {
        world.run(0, |tx| set(tx, of, count)).unwrap();
        world.run_until_idle();
    };
    let read = two.session(1, |reader| {
        reader.read_with(options, |cut| {
            attempts += 1;
            let access = cut.space("accounts")?.get(two.access)?.count();
            if attempts == 1 {
                write(&two.accounts, two.access, 5);
                write(&two.documents, two.document, 6);
            }
            Ok((access, cut.space("documents")?.get(two.document)?.count()))
        })
    });
    (read.unwrap(), attempts)
}

#[test]
fn strict_cut_is_of_one_moment() {
    // A document of after the write of the access that it is read beside: nothing causal forbids that.
    assert_eq!(cut_amid_writes(&Two::new(), Isolation::Serializable), ((1, 6), 1));
    assert_eq!(cut_amid_writes(&Two::new(), Isolation::Strict), ((5, 6), 2));
    // A state that one of the spaces is to contain is none of the other's.
    let two = Two::new();
    let at_least = two.session(0, |session| two.token_of(session));
    let strict = Options { isolation: Isolation::Strict, at_least, ..Options::default() };
    assert_eq!(cut_amid_writes(&two, strict), ((5, 6), 2));
}

#[test]
fn strict_cut_waits_for_all_spaces() {
    let two = Two::new();
    two.session(1, |reader| {
        let strict = || {
            reader.read_with(Isolation::Strict, |cut| {
                let access = cut.space("accounts")?.get(two.access)?.count();
                let document = cut.space("documents")?.get(two.document)?.count();
                // Both have begun; what is asked after this point is not answered.
                two.accounts.lock().hold.down = Some(1);
                Ok((access, document))
            })
        };
        assert!(matches!(strict(), Err(Error::Unavailable(_))));
        two.release();
        assert_eq!(reader.read(|_| Ok(7)), Ok(7));
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
    put_back(&two.accounts, old);
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

/// A session over the clients of both spaces.
fn over<'w>([accounts, documents]: &'w [Thread<'_>; 2]) -> Session<'w> {
    both(&[accounts, documents])
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

const READERS: usize = 3;

/// Plays a world of two spaces whose connections are cut and whose servers crash.
fn play(seed: u64, is_causal: bool) -> Played {
    let mut random = Random::new(seed);
    let worlds = [0, 1].map(|n| World::of_space(SpaceId(SPACE.0 + n), 2 * seed + n, READERS, collecting()));
    let threads: Vec<_> =
        (0..READERS).map(|reader| [worlds[0].thread(reader), worlds[1].thread(reader)]).collect();
    let ports = threads.iter().map(|[accounts, documents]| [accounts as _, documents as _]).collect();
    let mut judged = Judged::new(ports, is_causal, Options::default());
    for world in &worlds {
        let mut inner = world.lock();
        inner.chaos = Chaos { cut: 150, crash: 400, ..Chaos::default() };
        inner.patience = 400;
    }
    for _ in 0..240 {
        judged.step(&mut random);
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
    Played::of(judged, 0)
}

/// The course of a world.
struct Played {
    reads: u32,
    violations: Vec<Guarantee>,
    /// Answers of members that came before the state that they are of.
    early: u32,
    history: Vec<Done>,
}

impl Played {
    fn of(judged: Judged<'_>, early: u32) -> Played {
        let Judged { reads, violations, history, .. } = judged;
        Played { reads, violations, early, history }
    }

    fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.early == 0
    }
}

/// Plays worlds with sessions, and the same without.
fn play_worlds(play: fn(u64, bool) -> Played, worlds: u64) {
    let (mut reads, mut without) = (0, Vec::new());
    for seed in 0..worlds {
        let played = play(seed, true);
        assert!(played.is_clean(), "seed {seed}: {:?}", played.violations);
        reads += played.reads;
        without.extend(play(seed, false).violations);
    }
    // Reads that know nothing of each other do lack causes in these worlds.
    let all = [Guarantee::MonotonicReads, Guarantee::ReadYourWrites, Guarantee::Causes, Guarantee::Exported];
    let without = all.map(|lacks| without.iter().filter(|is| **is == lacks).count());
    println!("{worlds} worlds, {reads} reads; without a session these lack: {without:?} of {all:?}");
    assert!(u64::from(reads) > 30 * worlds && (without[2] + without[3]) as u64 > worlds / 20);
}

/// Worlds in each of these tests.
fn worlds(count: u64) -> u64 {
    std::env::var("TERCEL_TEST_SPACES").ok().and_then(|text| text.parse().ok()).unwrap_or(count)
}

#[test]
fn sessions_lack_no_cause_in_random_worlds() {
    play_worlds(play, worlds(100));
}

#[test]
fn sessions_at_members_that_lag_lack_no_cause() {
    play_worlds(groups::play, worlds(50));
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
    let reader = over(&ports);
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
    put_back(&two.accounts, old);
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
        put_back(&two.accounts, old);
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
    let rules = Rule::OF_SPACES.iter().chain(&[Rule::AnswerBeforeApplied]);
    for rule in rules.filter(|rule| **rule != Rule::DependenciesForgotten) {
        drop_rule(Some(*rule));
        // A world notices a rule also by an assertion of its own: each reader reads in the end, say.
        let is_clean = |n, which: usize| {
            let is_clean = || match which {
                0 => play(n, true).is_clean(),
                1 => groups::play(n, true).is_clean(),
                2 => transfers::play(n).is_clean(),
                _ => transfers::play_groups(n).is_clean(),
            };
            std::panic::catch_unwind(is_clean).unwrap_or(false)
        };
        // Worlds of groups take longest: those in which a member loses its holds are enough.
        let groups_max = if *rule == Rule::HoldsForgotten { GROUPS_MAX } else { 0 };
        let worlds = [WORLDS_MAX, WORLDS_MAX, WORLDS_MAX, groups_max].into_iter().enumerate();
        let caught: Vec<_> = worlds.map(|(which, max)| (0..max).find(|n| !is_clean(*n, which))).collect();
        println!("{rule:?} is noticed in world {caught:?}");
        missed.extend((groups_max > 0 && caught[3].is_none() || caught == [None; 4]).then_some(*rule));
    }
    drop_rule(Some(Rule::AtLeastOfAnyHistory));
    assert!(state_of_lost_history_is_read());
    drop_rule(None);
    assert!(missed.is_empty(), "{missed:?}");
}

/// Worlds in which a dropped rule must be noticed.
#[cfg(tercel_mutants)]
const WORLDS_MAX: u64 = 100;

/// Worlds of groups in which lost holds must be noticed.
#[cfg(tercel_mutants)]
const GROUPS_MAX: u64 = 100;
