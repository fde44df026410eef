//! `once.method`: a method under a key, beside the same one without. Both are durable when they return.

use tercel::{Called, Client, Obj, Object, Ref, Server, interface};

use super::Options;
use super::blocks::{alternate, median};
use super::commit::latencies;
use super::placed;
use super::report::Row;
use super::scratch::Scratch;

#[interface]
trait Paying {
    /// Pays, and gives what is left.
    fn pay(&mut self, cents: i64) -> i64;
}

/// An object as large as what suite `commit` commits.
#[derive(Object)]
struct Till {
    cents: i64,
    padding: [u8; 48],
}

impl Paying for Till {
    fn pay(this: &Obj<Till>, cents: i64) -> Called<i64> {
        let left = this.cents() - cents;
        this.edit()?.set_cents(left)?;
        Ok(left)
    }
}

/// Measures.
///
/// # Errors
/// A sentence: what failed.
pub fn run(options: &Options, scratch: &Scratch) -> Result<Row, String> {
    let (first, last) = placed::ends();
    let server = placed::on(last, || {
        let builder = Server::builder(scratch.join("keyed")).listen("127.0.0.1:0").methods(Till::METHODS);
        builder.start().map_err(failed)
    })?;
    let row = placed::on(first, || {
        let client = Client::connect(&server.addresses()[0]).map_err(failed)?;
        let create = |tx: &tercel::Tx<'_>| tx.create(&Till { cents: 0, padding: [7; 48] });
        measure(options, &client, client.run(create).map_err(failed)?)
    })?;
    server.stop().map_err(failed)?;
    Ok(row)
}

fn measure(options: &Options, client: &Client, till: Ref<Till>) -> Result<Row, String> {
    let till = client.handle(till).remote();
    let (mut keys, mut paid) = (0u64, 0);
    let pairs = alternate(
        if options.quick { 10 } else { 40 },
        || {
            let block = latencies(|| till.pay(1).map(|_| paid += 1).map_err(failed));
            block.map(|mut block| median(&mut block))
        },
        || {
            let block = latencies(|| {
                keys += 1;
                till.clone().with_key(format!("order {keys}")).pay(1).map(drop).map_err(failed)
            });
            block.map(|mut block| median(&mut block))
        },
    )?;
    let note = "keys that are new; what is kept is an object and an entry of a map in the same commit";
    Ok(Row::compared("once.method", "us", &pairs, "the same without a key", keys).note(note))
}

fn failed(e: impl std::fmt::Display) -> String {
    e.to_string()
}
