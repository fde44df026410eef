//! Tasks that look for what is not there, or may not be read: they are told so, and at once.

use std::time::Duration;

use futures_executor::block_on;
use tercel::access::{Principal, grant};
use tercel::{Client, ClientConfig, Error, Oref, Ref, Server, Spaces, Text};

use crate::common::{Counter, counter, serve};

fn quick() -> ClientConfig {
    // A task that never learns it would wait for as long.
    ClientConfig { timeout: Duration::from_secs(20), ..ClientConfig::default() }
}

/// References to places that nothing was ever in: in the page of an object, in another one, and in one that
/// the space does not have yet.
fn absent(beside: Ref<Counter>) -> Vec<Ref<Counter>> {
    let page = beside.oref().to_string().split('.').next().unwrap().to_string();
    let places = [format!("{page}.300"), format!("{page}.301"), "2.500".into(), "7000.1".into()];
    places.iter().map(|text| Ref::new(text.parse::<Oref>().unwrap())).collect()
}

#[test]
fn tasks_are_told_what_is_absent() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let maker = Client::connect(&server.addresses()[0]).unwrap();
    let there = counter(&maker, "count");
    let absent = absent(there);
    for _ in 0..2 {
        let client = Client::connect_with(&server.addresses()[0], quick()).unwrap();
        for one in &absent {
            let found = block_on(client.run_async(|tx| Ok(tx.get(*one)?.count())));
            assert!(matches!(found, Err(Error::NotFound(_))), "{one:?}: {found:?}");
        }
        // One run meets all of them, and what is there between them.
        let found = block_on(client.run_async(|tx| {
            let mut found = 0;
            for one in &absent {
                found += u64::from(tx.find(*one)?.is_some());
                tx.get(there)?;
            }
            Ok(found)
        }));
        assert_eq!(found, Ok(0));
        // What comes to be in a place afterwards is found.
        let made = maker.run(|tx| tx.create(&Counter { count: 7, text: Text::default() })).unwrap();
        assert_eq!(block_on(client.run_async(|tx| Ok(tx.get(made)?.count()))), Ok(7));
    }
    server.stop().unwrap();
}

#[test]
fn tasks_of_sessions_are_told_what_is_absent() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path());
    let maker = Client::connect(&server.addresses()[0]).unwrap();
    let absent = absent(counter(&maker, "count"));
    let client = Client::connect_with(&server.addresses()[0], quick()).unwrap();
    let spaces = Spaces::new().with("a", client);
    let mut session = spaces.session();
    for one in absent {
        let found = block_on(session.run_async(|cut| Ok(cut.space("a")?.get(one)?.count())));
        assert!(matches!(found, Err(Error::NotFound(_))), "{one:?}: {found:?}");
    }
    server.stop().unwrap();
}

#[test]
fn tasks_are_told_what_they_may_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let socket: tercel::Address = format!("unix:{}", dir.path().join("socket").display()).parse().unwrap();
    let server = Server::builder(dir.path().join("data")).listen(socket.clone()).start().unwrap();
    let of = counter(&Client::connect(socket.clone()).unwrap(), "count");
    let me = Principal::Uid(rustix::process::geteuid().as_raw());
    grant(&socket.clone().into(), None, &me, &"write Other".parse().unwrap()).unwrap();
    let client = Client::connect_with(socket.clone(), quick()).unwrap();
    let count = || block_on(client.run_async(|tx| Ok(tx.get(of)?.count())));
    for _ in 0..2 {
        let refused = count();
        assert!(matches!(&refused, Err(Error::Denied(text)) if text.contains("`read`")), "{refused:?}");
    }
    // Once it may, it asks anew.
    grant(&socket.into(), None, &me, &"read".parse().unwrap()).unwrap();
    tercel_testkit::process::until(|| (count() == Ok(0)).then_some(()));
    server.stop().unwrap();
}
