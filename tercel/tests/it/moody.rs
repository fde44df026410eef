//! Values whose encoding panics: the call, or the item, is not sent, and leaves no gap in the numbers of
//! those behind it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tercel::object::Field;
use tercel::object::{RawObj, Stored};
use tercel::rpc::{Callback, Input, Output};
use tercel::tools::wire::record::{Encoder, Value};
use tercel::tools::wire::schema::Type;
use tercel::{Called, Client, ClientConfig, Context, Error, Failure, Object, Server, service};

/// A number that cannot be 13, nor read if it is 130.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moody(u64);

impl Value for Moody {
    const TYPE: Type = <u64 as Value>::TYPE;

    fn put(&self, e: &mut Encoder<'_>, at: usize) {
        assert!(self.0 != 13, "an encoding that is broken on purpose");
        self.0.put(e, at);
    }
}

impl Field for Moody {
    type Got<'a, 't, T: Object>
        = <u64 as Field>::Got<'a, 't, T>
    where
        't: 'a;

    fn got<'a, 't, T: Object>(obj: &'a RawObj<'t, T>, at: usize) -> Self::Got<'a, 't, T> {
        <u64 as Field>::got(obj, at)
    }

    fn load(stored: &Stored<'_>, at: usize) -> Result<Self, Error> {
        let n = u64::load(stored, at)?;
        assert!(n != 130, "a number that cannot be read, on purpose");
        Ok(Moody(n))
    }
}

#[service]
trait Moods {
    /// The number of executed calls.
    fn count(&self, n: Moody) -> u64;
    /// The number.
    fn same(&self, n: u64) -> Moody;
    /// The same, on a thread of its own.
    #[slow]
    fn same_slowly(&self, n: u64) -> Moody;
    /// Gives the numbers up to one.
    #[slow]
    fn give(&self, to: u64, out: &Output<Moody>) -> u64;
    /// The sum.
    #[slow]
    fn take(&self, items: &Input<Moody>) -> u64;
    /// Asks with each number up to one; the sum of the answers.
    #[slow]
    fn ask(&self, to: u64, ask: &Callback<Moody, Moody>) -> u64;
}

struct MyMoods(Arc<AtomicU64>);

/// Says whether it has come to its end without a panic.
fn is_calm<T>(run: impl FnOnce() -> Result<T, Error>) -> Result<Option<T>, Error> {
    catch_unwind(AssertUnwindSafe(run)).ok().transpose()
}

impl Moods for MyMoods {
    fn count(&self, _: &Context<'_>, _: Moody) -> Called<u64> {
        Ok(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn same(&self, _: &Context<'_>, n: u64) -> Called<Moody> {
        Ok(Moody(n))
    }

    fn same_slowly(&self, _: &Context<'_>, n: u64) -> Called<Moody> {
        Ok(Moody(n))
    }

    fn give(&self, _: &Context<'_>, to: u64, out: &Output<Moody>) -> Called<u64> {
        let mut given = 0;
        for n in 0..to {
            given += u64::from(is_calm(|| out.send(&Moody(n)))?.is_some());
        }
        Ok(given)
    }

    fn take(&self, _: &Context<'_>, items: &Input<Moody>) -> Called<u64> {
        let mut sum = 0;
        while let Some(Moody(n)) = items.next()? {
            sum += n;
        }
        Ok(sum)
    }

    fn ask(&self, _: &Context<'_>, to: u64, ask: &Callback<Moody, Moody>) -> Called<u64> {
        let mut sum = 0;
        for n in 0..to {
            sum += is_calm(|| ask.ask(&Moody(n)))?.map_or(0, |answer| answer.0);
        }
        Ok(sum)
    }
}

#[test]
fn panic_in_an_encoding_leaves_no_gap_behind_it() {
    for shared_memory in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let listen = format!("unix:{}", dir.path().with_extension("sock").display());
        let moods = MyMoods(Arc::default());
        let server = Server::builder(dir.path()).listen(listen).service(Moods::serve(moods)).start().unwrap();
        let config = ClientConfig {
            shared_memory: crate::common::by_memory(shared_memory),
            ..ClientConfig::default()
        };
        let client = Client::connect_with(server.addresses()[0].clone(), config).unwrap();
        let moods = client.service::<dyn Moods>();
        // Those that are sent are executed once each, whether by lines or by messages.
        let mut executed = 0;
        for n in (0..300).map(|n| 10 + n % 5) {
            let called = catch_unwind(AssertUnwindSafe(|| moods.count(Moody(n))));
            assert_eq!(called.is_err(), n == 13);
            executed += u64::from(n != 13);
            assert!(called.is_err() || called.unwrap() == Ok(executed), "{n}");
        }
        // More than there are slots.
        let before = client.stats().calls_by_lines;
        for n in (0..600).map(|n| 129 + n % 2) {
            let called = catch_unwind(AssertUnwindSafe(|| moods.same(n)));
            assert_eq!(called.is_err(), n == 130);
        }
        assert_eq!(moods.same(7), Ok(Moody(7)));
        // They keep the short way.
        let by_lines = client.stats().calls_by_lines - before;
        assert!(by_lines > 500, "{by_lines} of 600 calls");
        // What is given cannot be encoded at the server.
        for n in [13, 7, 13, 7] {
            for called in [moods.same(n), moods.same_slowly(n)] {
                match called {
                    Ok(Moody(7)) if n == 7 => {}
                    Err(Failure::Space(Error::Failed(why))) if n == 13 => {
                        assert!(why.contains("panicked"), "{why}")
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        let give = moods.give(20).unwrap();
        let given: Vec<u64> = give.items().map(|item| item.unwrap().0).collect();
        assert!(given.iter().copied().eq((0..20).filter(|n| *n != 13)), "{given:?}");
        assert_eq!(give.finish(), Ok(19));
        let take = moods.take().unwrap();
        let sent = (0..20).filter(|n| is_calm(|| take.send(&Moody(*n))) == Ok(Some(true))).count();
        assert_eq!((sent, take.finish()), (19, Ok((0..20).sum::<u64>() - 13)));
        assert_eq!(moods.ask(20, |question: Moody| question), Ok((0..20).sum::<u64>() - 13));
    }
}
