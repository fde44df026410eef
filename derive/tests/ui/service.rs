use tercel_derive::service;

#[service]
trait NoReceiver {
    fn now() -> u64;
    fn set(&mut self, to: u64);
}

#[service]
trait Reserved {
    fn serve(&self);
}

#[service]
trait Answered {
    #[one_way]
    fn log(&self, line: &str) -> u64;
    #[fast]
    fn quick(&self);
}

#[service]
trait Generic<T> {
    fn get(&self) -> u64;
}

#[service]
trait Empty {}

fn main() {}
