//! The audit of calls: each of them is a line, by whatever way it comes.

use std::path::Path;

use tercel::{Address, Auditing, Called, Client, Context, Obj, Object, Server, interface, service};
use tercel_testkit::process::until;

#[interface]
pub trait Till {
    fn pay(&mut self, cents: i64) -> i64;
}

#[derive(Object)]
pub struct Drawer {
    cents: i64,
}

impl Till for Drawer {
    fn pay(this: &Obj<Drawer>, cents: i64) -> Called<i64> {
        let more = this.cents() + cents;
        this.edit()?.set_cents(more)?;
        Ok(more)
    }
}

#[service]
pub trait Clerk {
    fn add(&self, a: i64, b: i64) -> i64;
}

struct Adds;

impl Clerk for Adds {
    fn add(&self, _: &Context<'_>, a: i64, b: i64) -> Called<i64> {
        Ok(a + b)
    }
}

/// An argument that is part of no identity and no moment.
const CENTS: i64 = 987_654_321_987;

/// The methods that a file of an audit has, in order.
fn called(audit: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(audit).unwrap_or_default();
    let of =
        |line: &str| Some(line.split_once("\"what\":\"call\",\"of\":\"")?.1.split('"').next()?.to_string());
    text.lines().filter_map(of).collect()
}

#[test]
fn calls_by_every_way_are_lines() {
    for calls in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (audit, socket) = (dir.path().join("audit"), Address::Unix(dir.path().join("socket")));
        let server =
            Server::builder(dir.path().join("data")).listen(socket.clone()).listen("udp:127.0.0.1:0");
        let server = server.methods(Drawer::METHODS).service(Clerk::serve(Adds));
        let server = server.audit(Auditing { file: audit.clone(), calls }).start().unwrap();
        let mut expected = Vec::new();
        for at in server.addresses() {
            let client = Client::connect(at).unwrap();
            let till = client.run(|tx| tx.create(&Drawer { cents: 0 })).unwrap();
            for n in 0..3 {
                assert_eq!(client.service::<dyn Clerk>().add(n, 1).unwrap(), n + 1);
                expected.push("Clerk.add".to_string());
            }
            assert_eq!(client.handle(till).remote().pay(CENTS).unwrap(), CENTS);
            expected.push("Till.pay".into());
        }
        if calls {
            until(|| (called(&audit) == expected).then_some(()));
            assert!(
                !std::fs::read_to_string(&audit).unwrap().contains(&CENTS.to_string()),
                "an argument is told"
            );
        }
        server.stop().unwrap();
        assert_eq!(called(&audit), if calls { expected } else { Vec::new() });
    }
}
