//! The examples run, and do what they say. That of the guide is in `guide`; that of the README makes its directory where it
//! stands, so it is compiled here, and run by itself.

#[path = "../../examples/bank.rs"]
mod bank;
#[path = "../../examples/conflict.rs"]
mod conflict;
#[path = "../../examples/hello.rs"]
mod hello;

#[test]
fn bank_loses_no_money() {
    bank::main().unwrap();
}

#[test]
fn conflict_sells_each_seat_once() {
    conflict::main().unwrap();
}

#[test]
fn hello_finds_the_friend_after_a_restart() {
    hello::main().unwrap();
}
