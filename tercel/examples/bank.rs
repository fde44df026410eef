//! Transfers between accounts by many threads: no money is made or lost.
//! `cargo run -p tercel --example bank`.

use tercel::{Error, List, Object, Ref};

#[derive(Object)]
struct Account {
    cents: i64,
}

#[derive(Object)]
struct Bank {
    accounts: List<Ref<Account>>,
}

const ACCOUNTS: usize = 16;
const THREADS: usize = 4;
const TRANSFERS: usize = 250;

/// The program.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("tercel-bank-{}", std::process::id()));
    let space = tercel::embedded(&dir)?;
    let accounts = space.run(|tx| {
        let accounts =
            (0..ACCOUNTS).map(|_| tx.create(&Account { cents: 1_000 })).collect::<Result<Vec<_>, Error>>()?;
        let bank = tx.create(&Bank { accounts: List(accounts.clone()) })?;
        tx.set_root("bank", bank)?;
        Ok(accounts)
    })?;
    let (space_ref, accounts_ref) = (&space, &accounts);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|t| {
                scope.spawn(move || -> Result<(), Error> {
                    for i in 0..TRANSFERS {
                        let from = accounts_ref[(t * 7 + i * 3) % ACCOUNTS];
                        let to = accounts_ref[(t * 5 + i * 11 + 1) % ACCOUNTS];
                        space_ref.run(|tx| transfer(tx, from, to, 10))?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|t| t.join().expect("a teller does not panic"))
    })?;
    let total = space.run(|tx| {
        tx.get_root::<Bank>("bank")?
            .accounts()
            .into_iter()
            .map(|a| Ok(a?.cents()))
            .sum::<Result<i64, Error>>()
    })?;
    println!("{} transfers by {THREADS} threads; the accounts hold {total} cents", THREADS * TRANSFERS);
    assert_eq!(total, ACCOUNTS as i64 * 1_000);
    space.close()?;
    Ok(std::fs::remove_dir_all(&dir)?)
}

fn transfer(tx: &tercel::Tx<'_>, from: Ref<Account>, to: Ref<Account>, cents: i64) -> Result<(), Error> {
    if from == to {
        return Ok(());
    }
    let (a, b) = (tx.get(from)?, tx.get(to)?);
    if a.cents() < cents {
        return Ok(());
    }
    a.edit()?.set_cents(a.cents() - cents)?;
    b.edit()?.set_cents(b.cents() + cents)
}
