//! One program, unchanged, in both homes: a client of a server, and the server itself.

use std::time::Duration;

use crate::calls::C;
use crate::program::program;
use crate::world;
use tercel_engine::error::Error;
use tercel_engine::server::ServerConfig;
use tercel_engine::txn::{self, Isolation, Options, Port};

#[test]
fn one_program_sees_the_same_in_both_homes() {
    let w = world::World::new(3, 1, ServerConfig::default());
    let remote = {
        let thread = w.thread(0);
        program(&|body| txn::run(&thread, Isolation::Serializable, body)).unwrap()
    };
    // A real server, in a space of its own, from whose memory pages go.
    for cache_bytes in [1, 64 << 20] {
        let config = ServerConfig { cache_bytes, mob_bytes: 256 << 10, ..ServerConfig::default() };
        let w = world::World::new(3, 0, config);
        let indoors = w.indoors();
        let seen = program(&|body| indoors.run(body)).unwrap();
        assert_eq!(seen, remote, "{cache_bytes} bytes of pages");
    }
}

#[test]
fn transaction_whose_time_is_over_is_not_sent() {
    let w = world::World::new(3, 1, ServerConfig::default());
    let (thread, indoors) = (w.thread(0), w.indoors());
    let node = w.run(0, |tx| tx.create(&C { n: 1 })).unwrap();
    for port in [&thread as &dyn Port, &indoors] {
        let options = Options { timeout: Some(Duration::from_millis(10)), ..Options::default() };
        let count_on = |ms: u64| {
            txn::run(port, options, |tx| {
                let count = tx.get(node)?.n();
                tx.edit(node)?.set_n(count + 1)?;
                w.pass_ms(ms);
                Ok(())
            })
        };
        let before = w.run(0, |tx| Ok(tx.get(node)?.n())).unwrap();
        assert_eq!(count_on(20), Err(Error::Timeout), "without an operation: it was not executed");
        assert_eq!(w.run(0, |tx| Ok(tx.get(node)?.n())), Ok(before));
        assert_eq!(count_on(0), Ok(()));
        // The client is told of it.
        w.run_until_idle();
        assert_eq!(w.run(0, |tx| Ok(tx.get(node)?.n())), Ok(before + 1));
    }
}
