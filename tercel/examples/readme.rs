//! The snippets of README.md, line for line: `cargo run -p tercel --example readme`. What calls methods is the same at every address.

use std::path::Path;

use tercel::{Called, Client, Failure, Obj, Record, Server, ServerError, interface};
use tercel::{List, Object, Ref, Text};

#[derive(Object)]
struct Person {
    name: Text,
    friends: List<Ref<Person>>,
}

#[interface]
trait Account {
    #[read]
    fn balance(&self) -> i64;
    fn deposit(&mut self, cents: i64) -> Result<i64, Overdrawn>;
}

#[derive(Object)]
struct Purse {
    cents: i64,
}

#[derive(Record, Debug)]
struct Overdrawn {
    short: i64,
}

impl Account for Purse {
    fn balance(this: &Obj<Purse>) -> Called<i64> {
        Ok(this.cents())
    }

    fn deposit(this: &Obj<Purse>, cents: i64) -> Called<i64, Overdrawn> {
        let after = this.cents() + cents;
        if after < 0 {
            return Err(Overdrawn { short: -after }.into());
        }
        this.edit()?.set_cents(after)?;
        Ok(after)
    }
}

/// A server of purses, at these addresses.
///
/// # Errors
/// If it does not start.
pub fn serve(dir: &Path, addresses: &[&str]) -> Result<Server, ServerError> {
    let builder = Server::builder(dir).methods(Purse::METHODS);
    addresses.iter().fold(builder, |builder, address| builder.listen(*address)).start()
}

/// Calls methods of a new purse, wherever the client is connected to. Gives what is in the purse then.
///
/// # Errors
/// If the server does not answer.
#[rustfmt::skip]
pub fn methods(client: &Client) -> Result<i64, Box<dyn std::error::Error>> {
    let purse = client.handle(client.run(|tx| tx.create(&Purse { cents: 0 }))?);
    purse.deposit(500)?;                                   // at the server: one message there, one back
    println!("{}", purse.balance()?);                      // on the cached copy, never older than the answer before
    if let Err(Failure::Method(overdrawn)) = purse.deposit(-600) {
        println!("{} cents short", overdrawn.short);
    }
    Ok(purse.balance()?)
}

/// The program.
///
/// # Errors
/// If a server does not start, or does not answer.
pub fn run() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("tercel-readme-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    std::env::set_current_dir(&dir)?;
    people()?;
    let server = serve(Path::new("./purses"), &["127.0.0.1:0", "unix:./purses.sock"])?;
    for address in server.addresses() {
        let client = Client::connect(address)?;
        println!("at {address}, by {}:", client.transport().ok_or("not connected")?);
        methods(&client)?;
    }
    server.stop()?;
    Ok(std::fs::remove_dir_all(&dir)?)
}

/// An error that `main` returns is printed for programmers, as `NotFound("ann")`; this prints its sentence.
fn main() {
    if let Err(e) = run() {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}

#[rustfmt::skip]
fn people() -> Result<(), tercel::Error> {
    let space = tercel::embedded("./people")?;             // or Client::connect("127.0.0.1:7117")
    space.run(|tx| {                                       // a serializable transaction, run again if it conflicts
        let bob = tx.create(&Person { name: "Bob".into(), friends: List::new() })?;
        let ann = tx.create(&Person { name: "Ann".into(), friends: [bob].into() })?;
        tx.set_root("ann", ann)
    })?;
    space.run(|tx| {
        let ann = tx.get_root::<Person>("ann")?;
        for friend in ann.friends() {
            println!("{}", friend?.name()?);               // read in place, from this process's memory
        }
        Ok(())
    })?;
    space.close()
}
