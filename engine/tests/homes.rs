//! One program, unchanged, in both homes: a client of a server, and the server itself.

mod local;
mod world;

use tercel_derive::Object;
use tercel_engine::error::Error;
use tercel_engine::server::ServerConfig;
use tercel_engine::txn::{self, Isolation, Port, Tx};
use tercel_wire::record::{Bytes, List, Ref, Text};

/// Has a part of every kind.
#[derive(Object, Debug, Clone, PartialEq)]
#[object(crate = "tercel_engine")]
struct Thing {
    count: u64,
    name: Text,
    blob: Bytes,
    next: Ref<Thing>,
    kids: List<Ref<Thing>>,
    numbers: List<u32>,
    maybe: Option<i16>,
}

fn thing(count: u64) -> Thing {
    Thing {
        count,
        name: format!("thing {count}").into(),
        blob: Bytes(vec![]),
        next: Ref::NULL,
        kids: List::default(),
        numbers: List::default(),
        maybe: None,
    }
}

/// A program: what it saw, to be compared.
fn program(port: &dyn Port) -> Result<Vec<String>, Error> {
    let mut seen = Vec::new();
    build(port)?;
    seen.push(format!("{:?}", run(port, walk)?));
    run(port, change)?;
    seen.push(format!("{:?}", run(port, walk)?));
    seen.push(format!("{:?}", run(port, large)?));
    seen.push(format!("{:?}", refused(port)));
    Ok(seen)
}

fn run<R>(port: &dyn Port, body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Error> {
    txn::run(port, Isolation::Serializable, body)
}

/// A ring of things under a root, some small, one whose parts are in chunks.
fn build(port: &dyn Port) -> Result<(), Error> {
    let ring = run(port, |tx| {
        let last = tx.reserve(&thing(0))?;
        let mut next = last;
        let mut all = vec![last];
        for count in 1..40 {
            next = tx.create(&Thing { next, ..thing(count) })?;
            all.push(next);
        }
        let kids = all.iter().copied().chain([Ref::NULL]).collect();
        tx.fill(last, &Thing { next, kids, ..thing(0) })?;
        tx.set_root("ring", last)?;
        Ok(all)
    })?;
    run(port, |tx| {
        let large = Thing {
            name: "ü".repeat(9_000).into(),
            blob: Bytes((0..20_000u32).map(|i| i as u8).collect()),
            kids: (0..2_500).map(|i| ring[i % ring.len()]).collect(),
            numbers: (0..5_000).collect(),
            maybe: Some(-3),
            ..thing(1_000)
        };
        let large = tx.create(&large)?;
        tx.set_root("large", large)
    })
}

/// What is reached from the ring's root, by every way that there is.
fn walk(tx: &Tx<'_>) -> Result<(Vec<u64>, u64, usize, Vec<String>), Error> {
    let head = tx.get(tx.root::<Thing>("ring")?.unwrap())?;
    let (mut at, mut counts) = (head.next().get()?, vec![head.count()]);
    while at.reference() != head.reference() {
        counts.push(at.count());
        at = at.next().get()?;
    }
    let mut sum = 0;
    for kid in head.kids().iter() {
        sum += kid?.count();
    }
    let third = head.kids().get(3)?.unwrap().name()?.into_owned();
    let roots = tx.roots()?.into_iter().map(|(name, _)| name);
    Ok((counts, sum, head.kids().len(), roots.chain([third]).collect()))
}

/// Changes in place, grows beyond what the page has, and sees its own changes at once.
fn change(tx: &Tx<'_>) -> Result<(), Error> {
    let head = tx.get(tx.root::<Thing>("ring")?.unwrap())?;
    let first = head.kids().get(1)?.unwrap();
    let mut edit = first.edit()?;
    edit.set_count(77)?;
    edit.set_name("x".repeat(900))?;
    edit.set_maybe(Some(5))?;
    assert_eq!((first.count(), tx.get(first.reference())?.count()), (1, 77));
    assert_eq!(head.kids().get(1)?.unwrap().name()?.len(), 900);
    let made = tx.create(&Thing { next: first.reference(), ..thing(500) })?;
    assert_eq!(tx.get(made)?.next().get()?.count(), 77);
    head.edit()?.set_next(made)?;
    tx.replace(head.kids().get(2)?.unwrap().reference(), &thing(88))
}

fn large(tx: &Tx<'_>) -> Result<(usize, usize, Vec<u64>, u64, u32), Error> {
    let large = tx.get(tx.root::<Thing>("large")?.unwrap())?;
    let blob = large.blob()?;
    assert!(blob.iter().zip(0u32..).all(|(b, i)| *b == i as u8));
    let some = [0, 991, 992, 2_499].map(|i| large.kids().get(i).map(|kid| kid.unwrap().count()));
    let sum = large.kids().iter().try_fold(0, |sum, kid| Ok::<_, Error>(sum + kid?.count()))?;
    let numbers = large.numbers()?.iter().sum();
    assert_eq!(large.to_value()?.kids.0.len(), 2_500);
    Ok((large.name()?.len(), blob.len(), some.into_iter().collect::<Result<_, _>>()?, sum, numbers))
}

/// What does not work, by kind.
fn refused(port: &dyn Port) -> Vec<String> {
    let kind = |r: Result<(), Error>| match r.unwrap_err() {
        Error::Full(_) => "full".to_owned(),
        e => e.to_string(),
    };
    vec![
        kind(run(port, |tx| tx.get(Ref::<Thing>::NULL).map(drop))),
        kind(run(port, |tx| tx.get(tx.root::<Thing>("ring")?.unwrap().cast::<Other>()).map(drop))),
        kind(run(port, |tx| {
            let names = List((0..400).map(|i| format!("{i:090}").into()).collect());
            tx.create(&Other { names }).map(drop)
        })),
        format!("{:?}", run(port, |tx| tx.root::<Thing>("none"))),
    ]
}

/// Not a thing; its list of texts cannot leave the record.
#[derive(Object, Debug)]
#[object(crate = "tercel_engine")]
struct Other {
    names: List<Text>,
}

#[test]
fn one_program_sees_the_same_in_both_homes() {
    let w = world::World::new(3, 1, ServerConfig::default());
    let remote = program(&w.thread(0)).unwrap();
    for seed in 1..10 {
        let server = local::server(seed);
        let inside = local::Inside::new(&server);
        assert_eq!(program(&inside).unwrap(), remote, "seed {seed}");
        assert!(inside.fake().reads > 10, "pages were waited for");
    }
}
