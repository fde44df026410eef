//! One program, unchanged, in both homes: a client of a server, and the server itself.

use crate::program::program;
use crate::{local, world};
use tercel_engine::server::ServerConfig;
use tercel_engine::txn::{self, Isolation};

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
    for seed in 1..10 {
        let server = local::server(seed);
        let inside = local::Inside::new(&server);
        assert_eq!(program(&|body| inside.run(body)).unwrap(), remote, "seed {seed}");
        assert!(inside.fake().reads > 10, "pages were waited for");
    }
}
