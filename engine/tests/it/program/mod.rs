//! A program of transactions that can run in any home: it builds, reads by every way there is, changes in
//! place, grows objects out of their pages, and does what does not work.

use tercel_derive::Object;
use tercel_engine::error::Error;
use tercel_engine::txn::Tx;
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

/// Runs a transaction somewhere: at a client, or inside of a server.
pub type Run<'r> = &'r dyn Fn(&mut dyn FnMut(&Tx<'_>) -> Result<(), Error>) -> Result<(), Error>;

/// The program: what it saw, to be compared.
pub fn program(home: Run<'_>) -> Result<Vec<String>, Error> {
    let mut seen = Vec::new();
    build(home)?;
    seen.push(format!("{:?}", run(home, walk)?));
    run(home, change)?;
    seen.push(format!("{:?}", run(home, walk)?));
    seen.push(format!("{:?}", run(home, large)?));
    seen.push(format!("{:?}", refused(home)));
    Ok(seen)
}

fn run<R>(home: Run<'_>, mut body: impl FnMut(&Tx<'_>) -> Result<R, Error>) -> Result<R, Error> {
    let mut value = None;
    home(&mut |tx| {
        value = Some(body(tx)?);
        Ok(())
    })?;
    Ok(value.expect("a transaction that has committed has run"))
}

/// A ring of things under a root, some small, one whose parts are in chunks.
fn build(home: Run<'_>) -> Result<(), Error> {
    let ring = run(home, |tx| {
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
    run(home, |tx| {
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

/// The objects that are reached from the ring's root, by every way that there is.
fn walk(tx: &Tx<'_>) -> Result<(Vec<u64>, u64, usize, Vec<String>), Error> {
    let head = tx.get_root::<Thing>("ring")?;
    let (mut at, mut counts) = (head.next().get()?, vec![head.count()]);
    while at.reference() != head.reference() {
        counts.push(at.count());
        at = at.next().get()?;
    }
    let mut sum = 0;
    for kid in head.kids().iter() {
        sum += kid?.count();
    }
    let third = head.kids().get(3)?.name()?.into_owned();
    let roots = tx.roots()?.into_iter().map(|(name, _)| name);
    Ok((counts, sum, head.kids().len(), roots.chain([third]).collect()))
}

/// Changes in place, grows beyond what the page has, and sees its own changes at once.
fn change(tx: &Tx<'_>) -> Result<(), Error> {
    let head = tx.get_root::<Thing>("ring")?;
    let first = head.kids().get(1)?;
    let edit = first.edit()?;
    edit.set_count(77)?;
    edit.set_name("x".repeat(900))?;
    edit.set_maybe(Some(5))?;
    assert_eq!((first.count(), tx.get(first.reference())?.count()), (1, 77));
    assert_eq!(head.kids().get(1)?.name()?.len(), 900);
    let made = tx.create(&Thing { next: first.reference(), ..thing(500) })?;
    assert_eq!(tx.get(made)?.next().get()?.count(), 77);
    head.edit()?.set_next(made)?;
    tx.replace(head.kids().get(2)?.reference(), &thing(88))
}

fn large(tx: &Tx<'_>) -> Result<(usize, usize, Vec<u64>, u64, u32), Error> {
    let large = tx.get_root::<Thing>("large")?;
    let blob = large.blob()?;
    assert!(blob.iter().zip(0u32..).all(|(b, i)| *b == i as u8));
    let some = [0, 991, 992, 2_499].map(|i| large.kids().get(i).map(|kid| kid.count()));
    let sum = large.kids().iter().try_fold(0, |sum, kid| Ok::<_, Error>(sum + kid?.count()))?;
    let numbers = large.numbers().to_vec()?.iter().sum();
    assert_eq!(large.to_value()?.kids.0.len(), 2_500);
    Ok((large.name()?.len(), blob.len(), some.into_iter().collect::<Result<_, _>>()?, sum, numbers))
}

/// The errors of operations that must fail, by kind.
fn refused(home: Run<'_>) -> Vec<String> {
    let kind = |r: Result<(), Error>| match r.unwrap_err() {
        Error::Full(_) => "full".to_owned(),
        e => e.to_string(),
    };
    vec![
        kind(run(home, |tx| tx.get(Ref::<Thing>::NULL).map(drop))),
        kind(run(home, |tx| tx.get(tx.get_root_ref::<Thing>("ring")?.unwrap().cast::<Other>()).map(drop))),
        kind(run(home, |tx| {
            let names = List((0..400).map(|i| format!("{i:090}").into()).collect());
            tx.create(&Other { names }).map(drop)
        })),
        format!("{:?}", run(home, |tx| tx.get_root_ref::<Thing>("none"))),
    ]
}

/// Not a thing; its list of texts cannot leave the record.
#[derive(Object, Debug)]
#[object(crate = "tercel_engine")]
struct Other {
    names: List<Text>,
}
