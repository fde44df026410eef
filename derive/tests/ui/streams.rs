use tercel_derive::service;

struct Output<T>(T);
struct Input<T>(T);
struct Callback<Q, A>(Q, A);

#[service]
trait Quick {
    fn prices(&self, out: &Output<u64>) -> u64;
}

#[service]
trait Kinds {
    #[slow]
    #[read]
    fn prices(&self, out: &Output<u64>) -> u64;
    #[slow]
    #[one_way]
    fn upload(&self, lines: &Input<u64>);
}

#[service]
trait Owned {
    #[slow]
    fn upload(&self, lines: Input<u64>) -> u64;
    #[slow]
    fn change(&self, lines: &mut Input<u64>) -> u64;
}

#[service]
trait Many {
    #[slow]
    fn two(&self, a: &Output<u64>, b: &Output<u64>);
    #[slow]
    fn both(&self, ask: &Callback<u64, u64>, lines: &Input<u64>);
}

fn main() {}
