//! Calls by lines beside what other threads of the client send: never in the middle of a message, never
//! before what their own thread sent, and as many as before once the others are quiet.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tercel::{Bytes, Called, Client, ClientConfig, Context, Server, service};

#[service]
trait Marks {
    /// Remembers a number of a thread.
    #[one_way]
    fn mark(&self, thread: u32, n: u64);
    /// The last one.
    fn marked(&self, thread: u32) -> u64;
    /// Returns the bytes given.
    fn echo(&self, bytes: &[u8]) -> Bytes;
}

#[derive(Default)]
struct Marked([AtomicU64; THREADS]);

impl Marks for Marked {
    fn mark(&self, _: &Context<'_>, thread: u32, n: u64) {
        self.0[thread as usize].store(n, Ordering::SeqCst);
    }

    fn marked(&self, _: &Context<'_>, thread: u32) -> Called<u64> {
        Ok(self.0[thread as usize].load(Ordering::SeqCst))
    }

    fn echo(&self, _: &Context<'_>, bytes: &[u8]) -> Called<Bytes> {
        Ok(Bytes(bytes.to_vec()))
    }
}

const THREADS: usize = 3;
const MARKS: u64 = 1_500;

#[test]
fn calls_by_lines_come_behind_what_their_thread_sent_and_between_messages() {
    for shared_memory in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let listen = format!("unix:{}", dir.path().with_extension("sock").display());
        let service = Marks::serve(Marked::default());
        let server = Server::builder(dir.path()).listen(listen).service(service).start().unwrap();
        let config = ClientConfig {
            shared_memory: crate::common::by_memory(shared_memory),
            ..ClientConfig::default()
        };
        let client = Client::connect_with(server.addresses()[0].clone(), config).unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // Messages that do not fit into the memory at once, so that their sender waits in the middle of
            // them.
            scope.spawn(|| {
                let marks = client.service::<dyn Marks>();
                let large: Vec<u8> = (0..900_000_u32).map(|i| (i * 7) as u8).collect();
                while !is_over.load(Ordering::SeqCst) {
                    assert_eq!(marks.echo(&large), Ok(Bytes(large.clone())));
                }
            });
            let marking: Vec<_> = (0..THREADS as u32)
                .map(|thread| {
                    let client = &client;
                    scope.spawn(move || {
                        let marks = client.service::<dyn Marks>();
                        for n in 1..=MARKS {
                            marks.mark(thread, n).unwrap();
                            assert_eq!(marks.marked(thread), Ok(n));
                        }
                    })
                })
                .collect();
            let ended: Vec<_> = marking.into_iter().map(|marking| marking.join()).collect();
            is_over.store(true, Ordering::SeqCst);
            assert!(ended.iter().all(Result::is_ok));
        });
        // The short way is free again.
        let (marks, before) = (client.service::<dyn Marks>(), client.stats().calls_by_lines);
        for _ in 0..500 {
            assert_eq!(marks.marked(0), Ok(MARKS));
        }
        let by_lines = client.stats().calls_by_lines - before;
        assert!(by_lines > 400, "{by_lines} of 500 calls went by lines");
        server.stop().unwrap();
    }
}
