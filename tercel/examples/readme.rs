//! The snippet of README.md, line for line: `cargo run -p tercel --example readme`.

use tercel::{List, Object, Ref, Text};

#[derive(Object)]
struct Person {
    name: Text,
    friends: List<Ref<Person>>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("tercel-readme-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    std::env::set_current_dir(&dir)?;
    people()?;
    Ok(std::fs::remove_dir_all(&dir)?)
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
