//! Two people, one transaction, and a restart: `cargo run -p tercel --example hello`.

use tercel::{List, Object, Ref, Text};

#[derive(Object)]
struct Person {
    name: Text,
    friends: List<Ref<Person>>,
}

/// The program.
pub fn run() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("tercel-hello-{}", std::process::id()));
    let space = tercel::embedded(&dir)?;
    space.run(|tx| {
        let bob = tx.create(&Person { name: "Bob".into(), friends: List::new() })?;
        let ann = tx.create(&Person { name: "Ann".into(), friends: [bob].into() })?;
        tx.set_root("ann", ann)
    })?;
    space.close()?;

    let space = tercel::embedded(&dir)?;
    space.run(|tx| {
        for friend in tx.get_root::<Person>("ann")?.friends() {
            println!("Ann has a friend called {}", friend?.name()?);
        }
        Ok(())
    })?;
    space.close()?;
    Ok(std::fs::remove_dir_all(&dir)?)
}

/// An error that `main` returns is printed for programmers, as `NotFound("ann")`; this prints its sentence.
fn main() {
    if let Err(e) = run() {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}
