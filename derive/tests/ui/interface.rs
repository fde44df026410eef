use tercel_derive::interface;

#[interface]
trait NoReceiver {
    fn now() -> u64;
}

#[interface]
trait NotMarked {
    fn balance(&self) -> i64;
    #[read]
    fn deposit(&mut self, cents: i64);
}

#[interface]
trait Generic<T> {
    #[read]
    fn get(&self) -> u64;
}

#[interface]
trait Borrowed {
    #[read]
    fn name(&self) -> &str;
    fn rename(&mut self, to: &String);
    fn open(&mut self, (a, b): (u8, u8)) {}
}

#[interface]
trait Empty {}

#[interface(colour = "red")]
trait Coloured {
    #[read]
    fn get(&self) -> u64;
}

#[interface]
trait Hidden {
    #[internal]
    fn settle(&mut self);
}

fn main() {}
