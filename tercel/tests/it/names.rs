//! Arguments may have any name: those that the code of `#[interface]` and `#[service]` uses are its own.
#![allow(non_snake_case, clippy::too_many_arguments, reason = "the names are the test")]

use tercel::rpc::{Input, Output, Streaming};
use tercel::{Called, Client, Context, LentBytes, Obj, Object, Server, interface, service};

/// A class with the name of a type parameter that generated code is likely to have.
#[derive(Object)]
pub struct T {
    e: u32,
    at: u32,
    value: u32,
    r#type: u32,
}

#[interface]
pub trait Named {
    fn put(&mut self, e: u32, this: u32, self_: u32, tx: u32, r#type: u32) -> u32;
    #[read]
    fn sum(&self, given: u32, out: &str, method: u32, object: &[u8], called: u32, schema: u32) -> u32;
    fn own(&mut self, gives: u32, fails: u32, T: u32, __Class: u32, __SCHEMA: u32, __run: u32) -> u32;
    fn constants(&mut self, METHODS: u32, __TAKES: u32, put: u32, number: u32) -> u32;
}

impl Named for T {
    fn put(this: &Obj<T>, e: u32, object: u32, self_: u32, tx: u32, r#type: u32) -> Called<u32> {
        this.edit()?.set_type(r#type)?;
        Ok(e + object + self_ + tx + r#type + this.at() + this.value() + this.e())
    }

    fn sum(
        _: &Obj<T>,
        given: u32,
        out: &str,
        method: u32,
        object: &[u8],
        called: u32,
        s: u32,
    ) -> Called<u32> {
        Ok(given + out.len() as u32 + method + object.len() as u32 + called + s)
    }

    fn own(_: &Obj<T>, a: u32, b: u32, c: u32, d: u32, e: u32, f: u32) -> Called<u32> {
        Ok(a + b + c + d + e + f)
    }

    fn constants(_: &Obj<T>, a: u32, b: u32, c: u32, d: u32) -> Called<u32> {
        Ok(a + b + c + d)
    }
}

#[service]
pub trait Names {
    fn sum(&self, e: u32, cx: u32, given: u32, out: &str, method: u32, called: u32, schema: u32) -> u32;
    fn own(&self, gives: u32, fails: u32, client: u32, __TAKES: u32, lent: LentBytes<'_>, r#type: u32)
    -> u32;
    #[slow]
    fn give(&self, cx: u32, e: &Output<u32>, given: &Input<u32>) -> u32;
    #[one_way]
    fn tell(&self, cx: u32, this: u32, self_: u32);
}

struct Sums;

impl Names for Sums {
    fn sum(
        &self,
        _: &Context<'_>,
        e: u32,
        cx: u32,
        g: u32,
        out: &str,
        m: u32,
        c: u32,
        s: u32,
    ) -> Called<u32> {
        Ok(e + cx + g + out.len() as u32 + m + c + s)
    }

    fn own(
        &self,
        _: &Context<'_>,
        gives: u32,
        fails: u32,
        client: u32,
        takes: u32,
        lent: LentBytes<'_>,
        r#type: u32,
    ) -> Called<u32> {
        Ok(gives + fails + client + takes + lent.len() as u32 + r#type)
    }

    fn give(&self, _: &Context<'_>, cx: u32, e: &Output<u32>, given: &Input<u32>) -> Called<u32> {
        let mut sum = cx;
        while let Some(item) = given.next()? {
            sum += item;
            e.send(&sum)?;
        }
        Ok(sum)
    }

    fn tell(&self, _: &Context<'_>, _: u32, _: u32, _: u32) {}
}

/// A stream belongs to its client, and not to the handle that began it.
fn begun(client: &Client, from: u32) -> Result<Streaming<'_, u32, u32, u32>, tercel::Error> {
    client.service::<dyn Names>().give(from)
}

#[test]
fn arguments_of_any_name_reach_their_method() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Server::builder(dir.path()).listen("127.0.0.1:0").methods(T::METHODS);
    let server = builder.service(Names::serve(Sums)).start().unwrap();
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let object = client.run(|tx| tx.create(&T { e: 1, at: 2, value: 3, r#type: 4 })).unwrap();
    let here = client.handle(object).local();
    for handle in [client.handle(object).remote(), here] {
        assert_eq!(handle.put(10, 20, 30, 40, 50).unwrap(), 156);
        assert_eq!(handle.sum(1, "ab", 3, &[0; 4], 5, 6).unwrap(), 21);
        assert_eq!(handle.own(1, 2, 3, 4, 5, 6).unwrap(), 21);
        assert_eq!(handle.constants(1, 2, 3, 4).unwrap(), 10);
    }
    let names = client.service::<dyn Names>();
    assert_eq!(names.sum(1, 2, 3, "abcd", 5, 6, 7).unwrap(), 28);
    assert_eq!(names.own(1, 2, 3, 4, &[0; 5], 6).unwrap(), 21);
    names.tell(1, 2, 3).unwrap();
}

#[test]
fn stream_outlives_the_handle_that_began_it() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Server::builder(dir.path()).listen("127.0.0.1:0").service(Names::serve(Sums));
    let server = builder.start().unwrap();
    let client = Client::connect(&server.addresses()[0]).unwrap();
    let streaming = begun(&client, 5).unwrap();
    streaming.send(&2).unwrap();
    assert_eq!(streaming.next().unwrap(), Some(7));
    assert_eq!(streaming.finish().unwrap(), 7);
}
