//! A ledger that prints what was acknowledged.
//!
//! `ledger write ADDRESS` commits entry after entry and prints the number of each once its commit is
//! acknowledged, until a commit fails. `ledger read DIR` prints the newest number in a directory that no
//! server has open, and fails if an entry below it is missing. `.ci/sweep` compares the two.

use std::error::Error;
use std::time::Duration;

use tercel::{Bytes, Client, ClientConfig, Object, Ref};

#[derive(Object)]
struct Ledger {
    newest: Ref<Entry>,
    filler: Bytes,
}

#[derive(Object)]
struct Entry {
    number: u64,
    before: Ref<Entry>,
}

const ROOT: &str = "ledger";

/// Some sixty commits fill a segment of the log, so that segments come and go while the ledger is written.
const FILLER_BYTES: usize = 256 << 10;

fn write(address: &str) -> Result<(), Box<dyn Error>> {
    let config = ClientConfig { timeout: Duration::from_secs(5), ..ClientConfig::default() };
    let client = Client::connect_with(address, config)?;
    eprintln!("connected by {:?}", client.transport());
    loop {
        let number = client.run(|tx| {
            let filler: Bytes = vec![7; FILLER_BYTES].into();
            let Some(ledger) = tx.find_root::<Ledger>(ROOT)? else {
                let newest = tx.create(&Entry { number: 1, before: Ref::NULL })?;
                tx.set_root(ROOT, tx.create(&Ledger { newest, filler })?)?;
                return Ok(1);
            };
            let before = ledger.newest().get()?;
            let number = before.number() + 1;
            let newest = tx.create(&Entry { number, before: before.reference() })?;
            let ledger = ledger.edit()?;
            ledger.set_newest(newest)?;
            ledger.set_filler(filler)?;
            Ok(number)
        })?;
        println!("{number}");
    }
}

fn read(dir: &str) -> Result<(), Box<dyn Error>> {
    let space = tercel::embedded(dir)?;
    let newest = space.run(|tx| {
        let Some(ledger) = tx.find_root::<Ledger>(ROOT)? else { return Ok(0) };
        let newest = ledger.newest().get()?.number();
        let (mut at, mut wanted) = (ledger.newest().find()?, newest);
        while let Some(entry) = at {
            assert_eq!(entry.number(), wanted, "an entry is missing");
            (at, wanted) = (entry.before().find()?, wanted - 1);
        }
        assert_eq!(wanted, 0, "the first entries are missing");
        Ok(newest)
    })?;
    println!("{newest}");
    Ok(space.close()?)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", address] => write(address),
        ["read", dir] => read(dir),
        _ => Err("give `write ADDRESS` or `read DIR`".into()),
    };
    if let Err(e) = done {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}
