//! The objects of a soak: accounts, journals, a shelf, and ballast that makes the store large.
//!
//! Every object holds the number of its last write, which no other write of the run has. So a read names the
//! write that it saw.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use tercel::collections::Map;
use tercel::{Bytes, Client, Error, List, Object, Ref};
use tercel_term::Term;
use tercel_term::fail::Failure;
use tercel_verify::{Object as Id, Read, Value};

/// Money.
#[derive(Object)]
pub struct Account {
    /// The number of its last write.
    pub version: u64,
    /// The amount, in cents.
    pub cents: i64,
}

/// A list that is only appended to.
#[derive(Object)]
pub struct Journal {
    /// The number of its last write.
    pub version: u64,
    /// The versions that it had, in order.
    pub entries: List<u64>,
}

/// A place of the shelf.
#[derive(Object)]
pub struct Entry {
    /// The number of its last write.
    pub version: u64,
}

/// An object that makes the store large.
#[derive(Object)]
pub struct Ballast {
    /// The number of its last write.
    pub version: u64,
    /// Nothing of interest.
    pub bytes: Bytes,
}

/// All that the root leads to, and thus all there is: objects that no root reaches are collected.
#[derive(Object)]
struct Soak {
    accounts: List<Ref<Account>>,
    journals: List<Ref<Journal>>,
    shelf: Map<u64, Entry>,
    ballast: List<Ref<Ballast>>,
}

/// The root's name. What an earlier run left under it is collected.
const ROOT: &str = "soak";

/// The objects that all clients know.
pub struct Space {
    pub accounts: Vec<Ref<Account>>,
    pub journals: Vec<Ref<Journal>>,
    pub shelf: Map<u64, Entry>,
    pub ballast: Vec<Ref<Ballast>>,
}

/// The state that a client reads in the end.
#[derive(Default)]
pub struct Ending {
    versions: BTreeMap<u64, u64>,
    pub cents: i64,
    /// Entries of all journals.
    pub entries: Vec<u64>,
}

/// Between two attempts while the server has no room.
const PAUSE: Duration = Duration::from_millis(20);

/// Keys of the shelf.
pub const KEYS: u64 = 512;
/// The first balance of each account.
const CENTS: i64 = 1_000;
/// Bytes of an object of ballast, and objects made in one transaction.
const BALLAST_BYTES: usize = 960;
const BALLAST_BATCH: usize = 2_000;

/// Names of objects in the history.
pub fn account(i: usize) -> Id {
    Id(i as u64)
}
pub fn journal(i: usize) -> Id {
    Id(1_000_000 + i as u64)
}
pub fn place(key: u64) -> Id {
    Id(2_000_000 + key)
}
pub fn ballast(i: usize) -> Id {
    Id(3_000_000 + i as u64)
}

impl Space {
    /// Makes it, for so many clients and with so many bytes of ballast.
    pub fn make(client: &Client, clients: usize, fill_bytes: u64, term: &Term) -> Result<Space, Failure> {
        let (accounts, journals, shelf) = client.run(|tx| {
            let account = |_| tx.create(&Account { version: 0, cents: CENTS });
            let journal = |_| tx.create(&Journal { version: 0, entries: List::default() });
            let accounts = (0..4 * clients).map(account).collect::<Result<Vec<_>, Error>>()?;
            let journals = (0..2 * clients).map(journal).collect::<Result<Vec<_>, Error>>()?;
            let shelf = Map::<u64, Entry>::create(tx)?;
            let (of_accounts, of_journals) = (accounts.clone().into(), journals.clone().into());
            let all = Soak { accounts: of_accounts, journals: of_journals, shelf, ballast: List::new() };
            tx.set_root(ROOT, tx.create(&all)?)?;
            Ok((accounts, journals, shelf))
        })?;
        let wanted = fill_bytes as usize / BALLAST_BYTES;
        let bar = (wanted > 0).then(|| term.bar(wanted as u64, tercel_term::THINGS, "fill"));
        let mut ballast = Vec::with_capacity(wanted);
        while ballast.len() < wanted {
            let n = BALLAST_BATCH.min(wanted - ballast.len());
            let made = client.run(|tx| {
                let bytes = || Bytes(vec![0x5a; BALLAST_BYTES]);
                let one = |_| tx.create(&Ballast { version: 0, bytes: bytes() });
                let made = (0..n).map(one).collect::<Result<Vec<_>, Error>>()?;
                let all = tx.get_root::<Soak>(ROOT)?.edit()?;
                all.set_ballast(ballast.iter().chain(&made).copied().collect::<List<_>>())?;
                Ok(made)
            });
            match made {
                // A small buffer is installed more slowly than it is filled.
                Err(e) if tercel_term::fail::drains(&e) => thread::sleep(PAUSE),
                made => ballast.extend(made?),
            }
            bar.iter().for_each(|bar| bar.set_position(ballast.len() as u64));
        }
        bar.iter().for_each(|bar| bar.finish_and_clear());
        Ok(Space { accounts, journals, shelf, ballast })
    }

    /// The money that there must be.
    pub fn total(&self) -> i64 {
        CENTS * self.accounts.len() as i64
    }

    /// Reads all but the ballast.
    pub fn read(&self, client: &Client) -> Result<Ending, Error> {
        client.run(|tx| {
            let mut ending = Ending::default();
            for (i, r) in self.accounts.iter().enumerate() {
                let a = tx.get(*r)?;
                ending.cents += a.cents();
                ending.versions.insert(account(i).0, a.version());
            }
            for (i, r) in self.journals.iter().enumerate() {
                let j = tx.get(*r)?;
                for entry in j.entries() {
                    ending.entries.push(entry?);
                }
                ending.versions.insert(journal(i).0, j.version());
            }
            for entry in self.shelf.iter(tx) {
                let (key, r) = entry?;
                ending.versions.insert(place(key).0, tx.get(r)?.version());
            }
            Ok(ending)
        })
    }
}

impl Ending {
    /// Which version each object has.
    pub fn versions(&self) -> Vec<Read> {
        self.versions.iter().map(|(&o, &v)| Read { object: Id(o), value: Value(v) }).collect()
    }
}
