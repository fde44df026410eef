use tercel_derive::Object;
use tercel_engine::Error;
use tercel_engine::txn::{Isolation, Port, run};
use tercel_wire::record::{Ref, Text};

#[derive(Object)]
#[object(crate = "tercel_engine")]
struct Person {
    name: Text,
}

fn find(port: &dyn Port) -> Result<(), Error> {
    let ann = run(port, Isolation::Serializable, |tx| tx.get_root::<Person>("ann"))?;
    drop(ann);
    Ok(())
}

fn name(port: &dyn Port, ann: Ref<Person>) -> Result<(), Error> {
    let name = run(port, Isolation::Serializable, |tx| tx.get(ann)?.name())?;
    drop(name);
    Ok(())
}

fn main() {}
