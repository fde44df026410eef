//! Keyed transactions: repeated by several clients at once, and given up in the middle.

use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use futures_executor::block_on;
use tercel::{Client, Error, Isolation, Record, Text};

use crate::common::relay::Relay;
use crate::common::{counter, serve};

#[derive(Record, Debug, PartialEq, Clone)]
struct Receipt {
    number: u64,
    words: Text,
}

#[test]
fn repetitions_have_one_effect_and_one_result() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let connect = || Client::connect(&server.addresses()[0]).unwrap();
    let of = counter(&connect(), "count");
    let order = |client: &Client, key: &str| {
        client.once((key, "one"), |tx| {
            let number = tx.get(of)?.count() + 1;
            tx.edit(of)?.set_count(number)?;
            Ok(Receipt { number, words: format!("for {key}").as_str().into() })
        })
    };
    const KEYS: u64 = 60;
    let mut told: Vec<Vec<Receipt>> = thread::scope(|s| {
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let client = connect();
                s.spawn(move || {
                    (0..KEYS)
                        .map(|n| {
                            // Each begins elsewhere; some are given up in the middle, and sent again.
                            let key = format!("order {}", (n + 20 * thread) % KEYS);
                            for _ in 0..n % 4 {
                                let mut run = pin!(client.once_async((key.as_str(), "one"), |tx| {
                                    let number = tx.get(of)?.count() + 1;
                                    tx.edit(of)?.set_count(number)?;
                                    Ok(Receipt { number, words: format!("for {key}").as_str().into() })
                                }));
                                let _ = run.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                                thread::sleep(Duration::from_micros(100 * (n % 5)));
                            }
                            order(&client, &key).unwrap()
                        })
                        .collect()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let client = connect();
    let count = client.run(|tx| Ok(tx.get(of)?.count())).unwrap();
    assert_eq!(count, KEYS, "each key has one effect");
    for receipts in &mut told {
        receipts.sort_by_key(|receipt| receipt.number);
        assert_eq!(
            receipts.iter().map(|receipt| receipt.number).collect::<Vec<_>>(),
            (1..=KEYS).collect::<Vec<_>>()
        );
    }
    assert!(told.iter().all(|receipts| *receipts == told[0]), "each key has one result");
}

#[test]
fn key_of_another_request_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let space = tercel::embedded(dir.path()).unwrap();
    let of = counter(&space, "count");
    let set = |key: (&str, &str), to| space.once(key, |tx| tx.edit(of)?.set_count(to).map(|()| to));
    assert_eq!((set(("a", "to 1"), 1), set(("a", "to 1"), 2)), (Ok(1), Ok(1)));
    let other = set(("a", "to 2"), 2);
    assert!(matches!(&other, Err(Error::Invalid(text)) if text.contains("another request")), "{other:?}");
    for wrong in ["", &"k".repeat(129)] {
        let refused = set((wrong, ""), 3);
        assert!(matches!(&refused, Err(Error::Invalid(text)) if text.contains("128 bytes")), "{refused:?}");
    }
    assert_eq!(set((&"k".repeat(128), ""), 4), Ok(4));
    // A body that fails keeps nothing, and may be sent again.
    let failed = space.once("b", |_| Err::<u64, _>(Error::NotFound("it".into())));
    assert!(matches!(failed, Err(Error::NotFound(_))), "{failed:?}");
    assert_eq!(space.once("b", |_| Ok(7)), Ok(7u64));
    // Nor does one whose result is too large: it has no effect.
    let large = space.once("c", |tx| {
        tx.edit(of)?.set_count(9)?;
        Ok(Text::from("x".repeat(5_000).as_str()))
    });
    assert!(matches!(large, Err(Error::Full(_))), "{large:?}");
    assert_eq!(space.run(|tx| Ok(tx.get(of)?.count())), Ok(4));
}

/// The withdrawal of one under a key, by a client that has not heard of the deposit before it, nor of the
/// result that is kept: what it has is too old for a refusal.
#[test]
fn repetition_is_not_refused_by_an_old_state() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let relay = Relay::of_sockets(&server);
    let (near, far) =
        (Client::connect(&server.addresses()[0]).unwrap(), Client::connect(&relay.address).unwrap());
    let of = counter(&near, "count");
    let withdraw = |tx: &tercel::Tx<'_>| {
        let left = tx.get(of)?.count().checked_sub(1).ok_or_else(|| Error::NotFound("a cent".into()))?;
        tx.edit(of)?.set_count(left).map(|()| left)
    };
    let session = |client: &Client, key: &str| {
        let spaces = tercel::Spaces::new().with("a", client.clone());
        spaces.session().run(|cut| {
            let tx = cut.space("a")?;
            tercel::once(tx, key, || withdraw(tx))
        })
    };
    type Way<'a> = &'a (dyn Fn(&Client, &str) -> Result<u64, Error> + Sync);
    let ways: [Way<'_>; 3] = [
        &|client, key| client.once(key, withdraw),
        &|client, key| block_on(client.once_async(key, withdraw)),
        &session,
    ];
    for (way, key) in ways.into_iter().zip(["blocks", "task", "session"]) {
        // All of it is cached here.
        assert!(matches!(way(&far, "none"), Err(Error::NotFound(_))));
        let held = relay.hold();
        near.run(|tx| tx.edit(of)?.set_count(1)).unwrap();
        assert_eq!(way(&near, key), Ok(0));
        thread::scope(|s| {
            let (tell, told) = mpsc::channel();
            let far = &far;
            s.spawn(move || tell.send(way(far, key)).unwrap());
            let early = told.recv_timeout(Duration::from_millis(200));
            drop(held);
            assert_eq!(early.ok(), None, "{key}: nobody had said so");
            assert_eq!(told.recv().unwrap(), Ok(0), "{key}");
        });
    }
}

/// A part that fails under a key may have written another space than the key's: a caller that goes on all the
/// same commits nothing of that.
#[test]
fn failed_part_leaves_nothing_in_other_spaces() {
    let dir = tempfile::tempdir().unwrap();
    let [north, south] = ["north", "south"].map(|name| {
        let server = serve(&dir.path().join(name));
        let client = Client::connect(&server.addresses()[0]).unwrap();
        let of = counter(&client, "count");
        (server, client, of)
    });
    let spaces = tercel::Spaces::new().with("north", north.1.clone()).with("south", south.1.clone());
    let run = |key: &str, refuses_late: bool| {
        spaces.session().run(|cut| {
            let (here, there) = (cut.space("north")?, cut.space("south")?);
            // The caller keeps its writes from before.
            there.edit(south.2)?.set_count(1)?;
            let refused = tercel::once(here, key, || {
                if refuses_late {
                    there.edit(south.2)?.set_count(50)?;
                }
                Err::<u64, _>(Error::NotFound("a seat".into()))
            });
            here.edit(north.2)?.set_count(7)?;
            Ok(refused.is_err())
        })
    };
    let halved = run("late", true);
    assert!(matches!(&halved, Err(Error::Invalid(why)) if why.contains("pass the error on")), "{halved:?}");
    let counts = || {
        let count = |(_, client, of): &(_, Client, tercel::Ref<_>)| {
            client
                .transaction()
                .isolation(Isolation::Strict)
                .run(|tx| Ok(tx.get::<crate::common::Counter>(*of)?.count()))
                .unwrap()
        };
        [count(&north), count(&south)]
    };
    assert_eq!(counts(), [0, 0]);
    assert_eq!(run("early", false), Ok(true));
    assert_eq!(counts(), [7, 1]);
}
