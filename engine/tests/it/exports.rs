//! Exports: what they keep, for how long, and what a far reference says when it leads nowhere.

use crate::collect::{ask, collect, config, number, report};
use crate::space::verify;
use crate::world::things::{Thing, make, set, small, thing};
use crate::world::{SPACE, World};
use tercel_derive::Object;
use tercel_engine::error::{Bound, Error};
use tercel_engine::server::ServerConfig;
use tercel_engine::txn::{Isolation, Tx, run};
use tercel_wire::far::Far;
use tercel_wire::id::{SpaceId, Stamp, ViewId};
use tercel_wire::record::{List, Ref};
use tercel_wire::token::Token;

/// A thing that only far references name.
#[derive(Object)]
#[object(crate = "tercel_engine")]
pub struct Letter {
    pub about: Far<Thing>,
    pub more: List<Far<Thing>>,
    pub last: Option<Far<Thing>>,
}

fn world(clients: usize) -> World {
    World::new(1, clients, config(ServerConfig::default()))
}

/// Makes a thing that no root reaches, and exports it.
fn exported(w: &World, client: usize, count: u64) -> Far<Thing> {
    w.run(client, |tx| tx.export(tx.create(&thing(count))?)).unwrap()
}

fn followed(w: &World, client: usize, far: Far<Thing>) -> Result<u64, Error> {
    w.run(client, |tx| Ok(tx.get_far(far)?.count()))
}

#[test]
fn exported_object_is_kept_until_it_is_withdrawn() {
    for config in [config(ServerConfig::default()), config(small())] {
        let w = World::new(1, 2, config);
        let next = w.run(0, |tx| tx.create(&thing(8))).unwrap();
        let far = w.run(0, |tx| tx.export(tx.create(&Thing { next, ..thing(7) })?)).unwrap();
        // Exported again it is the same export.
        let again = w.run(1, |tx| tx.export(Ref::<Thing>::new(far.oref())));
        assert_eq!((again, w.run(1, |tx| Ok(tx.exports()?.len()))), (Ok(far), Ok(1)));
        assert_eq!(number(&collect(&w), "objects"), 0);
        w.crash();
        w.restart();
        assert_eq!(number(&collect(&w), "objects"), 0);
        assert_eq!(w.run(1, |tx| Ok(tx.get_far(far)?.next().get()?.count())), Ok(8));
        assert_eq!((w.run(0, |tx| tx.withdraw(far)), w.run(1, |tx| tx.withdraw(far))), (Ok(true), Ok(false)));
        assert_eq!(number(&collect(&w), "objects"), 2);
        let gone = followed(&w, 1, far);
        assert!(matches!(&gone, Err(Error::NotFound(text)) if text.contains("withdrawn")), "{gone:?}");
        verify(&w);
    }
}

#[test]
fn far_references_are_fields_of_every_form() {
    let w = world(2);
    let (a, b) = (exported(&w, 0, 1), exported(&w, 0, 2));
    let many: Vec<_> = (0..100).map(|_| b).collect();
    let letter =
        w.run(0, |tx| tx.create(&Letter { about: a, more: List(many.clone()), last: None })).unwrap();
    let read = |tx: &Tx<'_>| {
        let letter = tx.get(letter)?;
        Ok((letter.about(), letter.more().to_vec()?, letter.last()))
    };
    assert_eq!(w.run(1, read), Ok((a, many.clone(), None)));
    w.run(1, |tx| {
        let letter = tx.edit(letter)?;
        letter.set_about(b)?;
        letter.set_last(Some(a))
    })
    .unwrap();
    assert_eq!(w.run(0, read), Ok((b, many, Some(a))));
    w.run(0, |tx| tx.set_root("letter", letter)).unwrap();
    // A far reference in an object of the same space keeps nothing.
    w.run(0, |tx| tx.withdraw(a)).unwrap();
    assert_eq!(number(&collect(&w), "objects"), 1);
    verify(&w);
}

#[test]
fn far_reference_that_leads_nowhere_says_why() {
    let w = world(1);
    let far = exported(&w, 0, 7);
    let elsewhere = Far::<Thing>::new(Token { space: SpaceId(9), ..far.token() }, far.oref());
    let other = followed(&w, 0, elsewhere);
    assert!(matches!(&other, Err(Error::Invalid(text)) if text.contains("space 9")), "{other:?}");
    let foreign = Token { view: ViewId::new(1, 0xbad), ..far.token() };
    let foreign = followed(&w, 0, Far::new(foreign, far.oref()));
    assert!(matches!(foreign, Err(Error::OtherHistory(_))), "{foreign:?}");
    let class = w.run(0, |tx| tx.get_far(far.cast::<Letter>()).map(|_| ()));
    assert!(matches!(class, Err(Error::Schema(_))), "{class:?}");
    assert!(matches!(followed(&w, 0, Far::NULL), Err(Error::NotFound(_))));
    // Another export of the same object.
    let stamp = Stamp(far.token().stamp.0 - 1);
    let older = followed(&w, 0, Far::new(Token { stamp, ..far.token() }, far.oref()));
    assert!(matches!(older, Err(Error::NotFound(_))), "{older:?}");
    // One that this view has not reached: nothing would come of waiting for it.
    let stamp = Stamp(far.token().stamp.0 + 1_000);
    let ahead = followed(&w, 0, Far::new(Token { stamp, ..far.token() }, far.oref()));
    assert!(matches!(ahead, Err(Error::NotFound(_))), "{ahead:?}");
    let none = w.run(0, |tx| tx.export(Ref::<Thing>::NULL));
    assert!(matches!(none, Err(Error::NotFound(_))), "{none:?}");
    assert_eq!(far.space(), SPACE);
}

#[test]
fn export_after_view_change_is_of_that_view() {
    let w = world(2);
    let other = make(&w, 1, "other", 1);
    let port = w.thread(0);
    let tx = Tx::begin(&port, Isolation::Serializable).unwrap();
    w.crash();
    w.restart();
    w.run(1, |tx| set(tx, other, 2)).unwrap();
    w.run_until_idle();
    // It takes over the state that has this.
    assert_eq!(tx.get(other).unwrap().count(), 2);
    assert!(tx.snapshot() > tx.as_of().token.stamp);
    let far = tx.export(tx.create(&thing(7)).unwrap()).unwrap();
    tx.commit().unwrap();
    w.run_until_idle();
    assert_eq!((followed(&w, 1, far), w.run(1, |tx| tx.withdraw(far))), (Ok(7), Ok(true)));
    let gone = followed(&w, 1, far);
    assert!(matches!(gone, Err(Error::NotFound(_))), "{gone:?}");
}

#[test]
fn object_exported_anew_has_another_far_reference() {
    let w = world(1);
    let far = exported(&w, 0, 7);
    make(&w, 0, "kept", 1);
    let object = w.run(0, |tx| Ok(tx.get_far(far)?.reference())).unwrap();
    w.run(0, |tx| tx.set_root("also", object)).unwrap();
    w.run(0, |tx| tx.withdraw(far)).unwrap();
    let anew = w.run(0, |tx| tx.export(object)).unwrap();
    assert!(anew != far && anew.oref() == far.oref());
    assert_eq!((followed(&w, 0, anew), followed(&w, 0, far).is_err()), (Ok(7), true));
    assert_eq!(w.run(0, |tx| tx.withdraw(far)), Ok(false));
}

#[test]
fn space_exports_bounded_number_of_objects() {
    let w = world(1);
    let mut exports = 0;
    let full = loop {
        let some = w.run(0, |tx| (0..2_000).try_for_each(|i| tx.export(tx.create(&thing(i))?).map(|_| ())));
        match some {
            Ok(()) => exports += 2_000,
            Err(e) => break e,
        }
        assert!(exports < 40_000);
    };
    assert!(
        matches!(full, Error::Full(Bound::Exports { max: 32_768 })) && exports >= 24_000,
        "{exports}: {full:?}"
    );
    let all = w.run(0, |tx| tx.exports()).unwrap();
    assert_eq!(all.len(), exports);
    w.run(0, |tx| all.iter().take(2_000).try_for_each(|far| tx.withdraw(*far).map(|_| ()))).unwrap();
    exported(&w, 0, 1);
}

#[test]
fn first_exports_of_two_clients_are_both_there() {
    let w = world(2);
    let ports = [w.thread(0), w.thread(1)];
    let open: Vec<_> = ports.iter().map(|port| Tx::begin(port, Isolation::Snapshot).unwrap()).collect();
    let made: Vec<_> = open.iter().map(|tx| tx.export(tx.create(&thing(3)).unwrap()).unwrap()).collect();
    let mut ends = open.into_iter().map(|tx| tx.commit().map(|_| ()));
    // Both make the table: one of them is there, and the other begins again.
    assert!(matches!((ends.next(), ends.next()), (Some(Ok(())), Some(Err(Error::Conflict(_))))));
    let second = run(&ports[1], Isolation::Snapshot, |tx| tx.export(tx.create(&thing(4))?)).unwrap();
    assert_eq!((followed(&w, 1, made[0]), followed(&w, 0, second)), (Ok(3), Ok(4)));
    assert_eq!(number(&collect(&w), "objects"), 0);
}

#[test]
fn export_beside_collection_keeps_object_or_fails() {
    let (mut kept, mut refused) = (0, 0);
    for delay in 0..60 {
        let w = world(2);
        let object = make(&w, 0, "old", 7);
        // The head of the roots, which leads to the table of exports, stays what it is.
        make(&w, 0, "first", 1);
        exported(&w, 0, 2);
        let port = w.thread(1);
        w.run(1, |tx| tx.get(object).map(|_| ())).unwrap();
        // It is under way before the collection begins, and ends anywhere in it.
        let open = Tx::begin(&port, [Isolation::Serializable, Isolation::Snapshot][delay % 2]).unwrap();
        let far = open.export(object).unwrap();
        w.run(0, |tx| tx.remove_root("old").map(|_| ())).unwrap();
        let ticket = ask(&w, false);
        (0..delay * delay).for_each(|_| _ = w.lock().step_in_order());
        w.pass_ms(delay as u64 * 40);
        match open.commit() {
            Ok(_) => {
                report(&w, ticket);
                collect(&w);
                assert_eq!(followed(&w, 0, far), Ok(7), "after {delay}");
                kept += 1;
            }
            Err(Error::Conflict(_)) => {
                report(&w, ticket);
                assert!(followed(&w, 0, far).is_err());
                refused += 1;
            }
            Err(e) => panic!("{e}"),
        }
        verify(&w);
    }
    assert!(kept > 5 && refused > 5, "{kept} kept, {refused} refused");
}

#[test]
fn export_inside_of_server_is_like_any_other() {
    let w = world(1);
    let indoors = w.indoors();
    let far = indoors.run(|tx| tx.export(tx.create(&thing(7))?)).unwrap();
    assert_eq!(followed(&w, 0, far), Ok(7));
    w.run(0, |tx| set(tx, tx.get_far(far)?.reference(), 8)).unwrap();
    assert_eq!(indoors.run(|tx| Ok(tx.get_far(far)?.count())), Ok(8));
    assert_eq!(indoors.run(|tx| tx.withdraw(far)), Ok(true));
}
