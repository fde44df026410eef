//! Money between two spaces, each with a server and an order of its own: what is taken out of one is in the
//! other, or both are as they were. `cargo run -p tercel --example transfer`.

use std::path::Path;
use std::thread;

use tercel::{Cut, Error, Object, Server, Session, Spaces};

#[derive(Object)]
struct Purse {
    cents: i64,
}

const CENTS: i64 = 10_000;
const TELLERS: usize = 3;
const PAYMENTS: usize = 20;

/// The purse of one space.
fn cents(cut: &Cut<'_>, space: &str) -> Result<i64, Error> {
    Ok(cut.space(space)?.get_root::<Purse>("purse")?.cents())
}

/// Pays from one space to the other, and gives what is left. The body may run again after a conflict; what it
/// wrote is committed once, in both spaces or in none.
fn pay(session: &Session<'_>, from: &str, to: &str, cents: i64) -> Result<i64, Error> {
    session.run(|cut| {
        let purse = cut.space(from)?.get_root::<Purse>("purse")?;
        let left = purse.cents() - cents;
        purse.edit()?.set_cents(left)?;
        let purse = cut.space(to)?.get_root::<Purse>("purse")?;
        purse.edit()?.set_cents(purse.cents() + cents)?;
        Ok(left)
    })
}

/// Pays to and fro, and looks into both purses each time: together they never have more or less.
fn tell(spaces: &Spaces, teller: usize) -> Result<(), Error> {
    let session = spaces.session();
    for i in 0..PAYMENTS {
        let (from, to) = if (teller + i).is_multiple_of(2) { ("north", "south") } else { ("south", "north") };
        pay(&session, from, to, 5)?;
        let all = session.read(|cut| Ok(cents(cut, "north")? + cents(cut, "south")?))?;
        assert_eq!(all, 2 * CENTS);
    }
    Ok(())
}

/// The program, with its files in a directory.
pub fn run(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let at = |name: &str| format!("unix:{}", dir.join(name).with_extension("socket").display());
    // A server whose client is gone in the middle asks the other one how the payment ended.
    let serve = |name, other| Server::builder(dir.join(name)).listen(at(name)).peer(at(other)).start();
    std::fs::create_dir_all(dir)?;
    let servers = [serve("north", "south")?, serve("south", "north")?];

    let spaces = Spaces::connect([("north", &*at("north")), ("south", &*at("south"))])?;
    let session = spaces.session();
    for space in ["north", "south"] {
        session.space(space)?.run(|tx| tx.set_root("purse", tx.create(&Purse { cents: CENTS })?))?;
    }
    println!("{} cents are left in the north", pay(&session, "north", "south", 2_500)?);
    thread::scope(|scope| {
        let tellers: Vec<_> = (0..TELLERS)
            .map(|i| {
                scope.spawn({
                    let spaces = &spaces;
                    move || tell(spaces, i)
                })
            })
            .collect();
        tellers.into_iter().try_for_each(|teller| teller.join().expect("a teller does not panic"))
    })?;
    let both = session.read(|cut| Ok((cents(cut, "north")?, cents(cut, "south")?)))?;
    println!("{} payments later: {both:?}", TELLERS * PAYMENTS);
    drop(session);
    drop(spaces);
    servers.into_iter().try_for_each(Server::stop)?;
    Ok(())
}

/// An error that `main` returns is printed for programmers; this prints its sentence.
fn main() {
    let dir = std::env::temp_dir().join(format!("tercel-transfer-{}", std::process::id()));
    let done = run(&dir);
    let _ = std::fs::remove_dir_all(&dir);
    if let Err(e) = done {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}
