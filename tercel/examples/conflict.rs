//! One server, two clients, and a seat that both want: what a conflict is, and what runs again.
//! `cargo run -p tercel --example conflict`.

use std::fmt;

use tercel::{Address, Client, Error, Object, Ref, Server, ServerConfig, Text};

#[derive(Object)]
struct Concert {
    name: Text,
    seats_free: u32,
}

/// Why a buyer got no seat: an error of the program's own beside the errors of the space.
#[derive(Debug)]
enum BuyError {
    SoldOut,
    Space(Error),
}

impl fmt::Display for BuyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuyError::SoldOut => f.write_str("it is sold out"),
            BuyError::Space(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for BuyError {}

impl From<Error> for BuyError {
    fn from(e: Error) -> BuyError {
        BuyError::Space(e)
    }
}

const SEATS: u32 = 40;

/// The program.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("tercel-conflict-{}", std::process::id()));
    let listen = vec![Address::Tcp("127.0.0.1:0".into())];
    let server = Server::start(ServerConfig { listen, ..ServerConfig::new(&dir) })?;
    let address = &server.addresses()[0];
    let (ann, bob) = (Client::connect(address)?, Client::connect(address)?);
    let concert = ann.run(|tx| tx.create(&Concert { name: "Thursday".into(), seats_free: SEATS }))?;

    // By hand: Ann has read how many seats there are when Bob takes one, so she may not write what follows
    // from it.
    let tx = ann.transaction().begin()?;
    let free = tx.get(concert)?.seats_free();
    tx.edit(concert)?.set_seats_free(free - 1)?;
    bob.run(|tx| take(tx, concert))?;
    let refused = tx.commit().expect_err("Bob was first");
    println!("Ann's commit: {refused}");
    assert!(matches!(&refused, Error::Conflict(Some(over)) if over.class.as_deref() == Some("Concert")));

    // With `run` and `try_run` that happens by itself, until a seat was bought or there is none.
    let sales = std::thread::scope(|scope| {
        let buyers = [&ann, &bob].map(|client| scope.spawn(move || buy_until_sold_out(client, concert)));
        buyers.map(|buyer| buyer.join().expect("a buyer does not panic"))
    });
    let mut bought = 1;
    for (name, sale) in ["Ann", "Bob"].into_iter().zip(sales) {
        let (seats, attempts) = sale?;
        println!("{name} bought {seats} more seats in {attempts} attempts");
        bought += seats;
    }
    assert_eq!(bought, SEATS, "each seat is sold once");
    println!(
        "The first commit has the seat. The slower buyer pauses before it tries again, so the quicker buyer may well take all."
    );
    drop((ann, bob));
    server.stop()?;
    Ok(std::fs::remove_dir_all(&dir)?)
}

/// Seats bought, and how often a transaction was run for them.
fn buy_until_sold_out(client: &Client, concert: Ref<Concert>) -> Result<(u32, u32), BuyError> {
    let (mut seats, mut attempts) = (0, 0);
    loop {
        let bought = client.try_run(|tx| {
            attempts += 1;
            match tx.get(concert)?.seats_free() {
                0 => Err(BuyError::SoldOut),
                _ => Ok(take(tx, concert)?),
            }
        });
        match bought {
            Ok(()) => seats += 1,
            Err(BuyError::SoldOut) => return Ok((seats, attempts)),
            // The other one was quicker 64 times in a row; this program has the patience.
            Err(BuyError::Space(Error::Conflict(_))) => {}
            Err(e) => return Err(e),
        }
    }
}

fn take(tx: &tercel::Tx<'_>, concert: Ref<Concert>) -> Result<(), Error> {
    let free = tx.get(concert)?.seats_free();
    tx.edit(concert)?.set_seats_free(free - 1)
}
