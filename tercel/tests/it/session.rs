//! The reads of a caller after a message from a service: never older than the commits of the procedure before
//! that message.

use tercel::rpc::{Callback, Output};
use tercel::{Called, Client, ClientConfig, Context, Ref, Server, Spaces, Text, Token, service};

use crate::common::{Counter, counter};

#[service]
trait Ledger {
    /// Counts an object up so many times, and gives each count once it is committed.
    #[slow]
    fn grow(&self, of: Ref<Counter>, times: u64, out: &Output<u64>) -> u64;
    /// Sets the count, and gives the token of the commit.
    #[slow]
    fn set(&self, of: Ref<Counter>, count: u64) -> Text;
    /// As `grow`, and waits after each until its caller has heard of it.
    #[slow]
    fn grow_slowly(&self, of: Ref<Counter>, times: u64, ask: &Callback<u64, u64>) -> u64;
}

struct MyLedger;

impl Ledger for MyLedger {
    fn grow(&self, cx: &Context<'_>, of: Ref<Counter>, times: u64, out: &Output<u64>) -> Called<u64> {
        for n in 1..=times {
            cx.run(|tx| tx.edit(of)?.set_count(n))?;
            out.send(&n)?;
        }
        Ok(times)
    }

    fn set(&self, cx: &Context<'_>, of: Ref<Counter>, count: u64) -> Called<Text> {
        assert_eq!(cx.token(), None);
        cx.run(|tx| tx.edit(of)?.set_count(count))?;
        let token = cx.token().expect("it has run a transaction");
        Ok(token.to_string().as_str().into())
    }

    fn grow_slowly(
        &self,
        cx: &Context<'_>,
        of: Ref<Counter>,
        times: u64,
        ask: &Callback<u64, u64>,
    ) -> Called<u64> {
        for n in 1..=times {
            cx.run(|tx| tx.edit(of)?.set_count(n))?;
            ask.ask(&n)?;
        }
        Ok(times)
    }
}

/// Returns the stamp of a transaction that a client begins now.
fn stamp(client: &Client) -> u64 {
    client.transaction().begin().unwrap().as_of().token.stamp.0
}

#[test]
fn caller_reads_what_was_committed_before_an_item_was_given() {
    for shared_memory in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let listen = format!("unix:{}", dir.path().with_extension("sock").display());
        let server = Server::builder(dir.path()).listen(listen).service(Ledger::serve(MyLedger));
        let server = server.start().unwrap();
        let connect = || {
            let config = ClientConfig {
                shared_memory: crate::common::by_memory(shared_memory),
                ..ClientConfig::default()
            };
            Client::connect_with(server.addresses()[0].clone(), config).unwrap()
        };
        let reader = connect();
        let of = counter(&reader, "n");
        let ledger = reader.service::<dyn Ledger>();
        let grow = ledger.grow(of, 50).unwrap();
        while let Some(n) = grow.next().unwrap() {
            let read = reader.run(|tx| Ok(tx.get(of)?.count())).unwrap();
            assert!(read >= n, "{read} is read behind {n}");
        }
        assert_eq!(grow.finish(), Ok(50));
        // A client that has nothing hears of no commit by itself.
        let stranger = connect();
        let mut last = stamp(&stranger);
        let grown = stranger.service::<dyn Ledger>().grow_slowly(of, 50, |n| {
            let now = stamp(&stranger);
            assert!(now > last, "the commit before question {n} is not in the state of {now}");
            last = now;
            n
        });
        assert_eq!(grown, Ok(50));
    }
}

#[test]
fn session_sees_what_another_clients_call_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let server =
        Server::builder(dir.path()).listen("127.0.0.1:0").service(Ledger::serve(MyLedger)).start().unwrap();
    let [caller, reader] = [(); 2].map(|()| Client::connect(&server.addresses()[0]).unwrap());
    let of = counter(&caller, "n");
    let session = Spaces::new().with("counts", reader).session();
    for n in 1..=60 {
        let told = caller.service::<dyn Ledger>().set(of, n).unwrap();
        session.absorb(&told.to_string().parse::<Token>().unwrap().into()).unwrap();
        let read = session.space("counts").unwrap().read(|tx| Ok(tx.get(of)?.count()));
        assert_eq!(read, Ok(n));
    }
}
