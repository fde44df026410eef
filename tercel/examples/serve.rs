//! A server with a method and a procedure of its own, which stays up until a signal tells it to stop. It
//! takes a directory and an address: `cargo run -p tercel --example serve -- ./counters 127.0.0.1:7117`. In
//! another terminal then:
//!
//! ```text
//! tercel call counter add 3
//! tercel call Kitchen cook 2000        # milliseconds; SIGTERM meanwhile lets it end, a second SIGTERM does not
//! ```

use std::path::Path;
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tercel::{Called, Context, Obj, Object, Server, interface, service};

/// Time for calls that are under way at the first signal to come to their end.
const DRAIN: Duration = Duration::from_secs(5);

/// The served object, under the root `counter`.
#[derive(Object)]
pub struct Counter {
    count: u64,
}

/// The methods of a counter.
#[interface]
pub trait Counts {
    /// The count.
    #[read]
    fn count(&self) -> u64;
    /// Adds to the count; gives what it is then.
    fn add(&mut self, more: u64) -> u64;
}

impl Counts for Counter {
    fn count(this: &Obj<Counter>) -> Called<u64> {
        Ok(this.count())
    }

    fn add(this: &Obj<Counter>, more: u64) -> Called<u64> {
        let after = this.count() + more;
        this.edit()?.set_count(after)?;
        Ok(after)
    }
}

/// The procedures that take a while.
#[service]
pub trait Kitchen {
    /// Takes so long; gives whether it came to its end.
    #[slow]
    fn cook(&self, ms: u64) -> bool;
}

struct Cook;

impl Kitchen for Cook {
    fn cook(&self, cx: &Context<'_>, ms: u64) -> Called<bool> {
        let steps = ms.div_ceil(10);
        Ok((0..steps).all(|_| {
            thread::sleep(Duration::from_millis(10));
            // A stop waits for procedures that run, but not long for one that does not look.
            !cx.is_cancelled()
        }))
    }
}

/// Serves until a signal, or until the server stops by itself.
///
/// # Errors
/// If the server does not start, or stops by itself.
pub fn serve(dir: &Path, address: &str) -> Result<(), Box<dyn std::error::Error>> {
    // Taken over first, so that a signal while the server starts counts.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let server = Server::builder(dir).listen(address).methods(Counter::METHODS);
    let server = server.service(Kitchen::serve(Cook)).start()?;
    server.run(|tx| match tx.get_root_ref::<Counter>("counter")? {
        Some(_) => Ok(()),
        None => tx.set_root("counter", tx.create(&Counter { count: 0 })?),
    })?;
    println!("listening on {}", server.addresses()[0]);

    let (first, second) = (server.stopper(), server.stopper());
    thread::spawn(move || {
        let mut signals = signals.forever();
        signals.next();
        thread::spawn(move || {
            first.drain(DRAIN);
            first.stop();
        });
        signals.next();
        second.stop();
    });
    Ok(server.wait()?)
}

/// The program.
fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().unwrap_or_else(|| "./counters".into());
    let address = args.next().unwrap_or_else(|| "127.0.0.1:7117".into());
    // An error that `main` returns is printed for programmers; this prints its sentence.
    if let Err(e) = serve(Path::new(&dir), &address) {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}
