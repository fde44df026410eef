//! A value made of files, and made anew when they change.
//!
//! The files are looked at while the value is used, every ten seconds at most. The invariant: the value in
//! use is of files that were read together and fit together; a file that is wrong changes nothing but what
//! [`Anew::problem`] says.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::fs::{Stat, stat};
use tercel_lock::unpoison;

/// A value made of files, and made anew when they change.
pub struct Anew<T> {
    files: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    state: Mutex<State<T>>,
}

/// The files as they were read last.
struct State<T> {
    made: T,
    seen: Vec<Mark>,
    looked: Instant,
    problem: Option<String>,
}

/// Marks of a file that change when it is replaced; none if there is no file.
type Mark = Option<(u64, u64, i64, i64)>;

impl<T> Anew<T> {
    /// Makes the value.
    ///
    /// # Errors
    /// The maker's own.
    pub fn open<E: Display>(
        files: impl Into<Vec<PathBuf>>,
        make: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Anew<T>, E> {
        let files = files.into();
        let seen = see(&files);
        let state = State { made: make()?, seen, looked: Instant::now(), problem: None };
        let make = Box::new(move || make().map_err(|why| why.to_string()));
        Ok(Anew { files, make, state: Mutex::new(state) })
    }

    /// Uses the value, after a look at the files if that is due.
    pub fn with<R>(&self, of: impl FnOnce(&T) -> R) -> R {
        if unpoison(self.state.lock()).looked.elapsed() >= LOOK {
            self.look();
        }
        self.last(of)
    }

    /// Uses the value as it was made last: no file is read for it.
    pub fn last<R>(&self, of: impl FnOnce(&T) -> R) -> R {
        of(&unpoison(self.state.lock()).made)
    }

    /// The reason for which newer files do not count, as a sentence; none if the newest are in use.
    pub fn problem(&self) -> Option<String> {
        unpoison(self.state.lock()).problem.clone()
    }

    /// Looks at the files, and takes them if they have changed, or were wrong before: the last of several may
    /// have come. Others use the value before meanwhile.
    pub fn look(&self) {
        let mut state = unpoison(self.state.lock());
        state.looked = Instant::now();
        let (before, was_wrong) = (state.seen.clone(), state.problem.is_some());
        drop(state);
        let seen = see(&self.files);
        if seen == before && !was_wrong {
            return;
        }
        // Seen before they are read: a file that is replaced meanwhile is another one at the next look.
        let made = (self.make)();
        let mut state = unpoison(self.state.lock());
        match made {
            Ok(made) => (state.made, state.seen, state.problem) = (made, seen, None),
            Err(why) => state.problem = Some(format!("what was read before stays in use: {why}")),
        }
    }
}

fn see(files: &[PathBuf]) -> Vec<Mark> {
    let of = |found: Stat| {
        let moment = found.st_mtime * 1_000_000 + found.st_mtime_nsec as i64 / 1_000;
        (found.st_dev, found.st_ino, found.st_size, moment)
    };
    files.iter().map(|file| stat(file).ok().map(of)).collect()
}

/// Time between two looks at the files.
const LOOK: Duration = Duration::from_secs(10);
