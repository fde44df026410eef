//! The warnings of a server, for the program that runs it.
//!
//! The loop notes its current warning, and a reader waits for a warning of another kind than its last.
//! Nothing is queued, so a slow reader costs no memory and holds nothing up. A warning that came and went
//! meanwhile is not reported.

use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, Condvar, Mutex};

use tercel_engine::server::SpaceWarning;
use tercel_lock::unpoison;

/// The board on which the loop notes its warning. No more comes once it is dropped.
pub(super) struct Board(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    warning: Option<SpaceWarning>,
    is_over: bool,
}

/// The warnings of a server, each when it becomes true; ends when the server has stopped.
/// [`Server::warnings`](super::Server::warnings) has an example.
pub struct Warnings {
    shared: Arc<Shared>,
    /// The kind of the last warning that this reader has received.
    heard: Option<Discriminant<SpaceWarning>>,
}

impl Board {
    /// An empty one, and its first reader.
    pub(super) fn new() -> (Board, Warnings) {
        let shared = Arc::<Shared>::default();
        (Board(shared.clone()), Warnings { shared, heard: None })
    }

    /// The server warns of this now.
    pub(super) fn note(&self, warning: Option<SpaceWarning>) {
        let mut state = unpoison(self.0.state.lock());
        let was = std::mem::replace(&mut state.warning, warning);
        drop(state);
        if kind(was) != kind(warning) {
            self.0.changed.notify_all();
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        unpoison(self.0.state.lock()).is_over = true;
        self.0.changed.notify_all();
    }
}

impl Warnings {
    /// A reader that has received nothing.
    pub(super) fn anew(&self) -> Warnings {
        Warnings { shared: self.shared.clone(), heard: None }
    }
}

impl Iterator for Warnings {
    type Item = SpaceWarning;

    fn next(&mut self) -> Option<SpaceWarning> {
        let mut state = unpoison(self.shared.state.lock());
        while !state.is_over {
            let is_new = kind(state.warning) != self.heard;
            self.heard = kind(state.warning);
            if let Some(warning) = state.warning.filter(|_| is_new) {
                return Some(warning);
            }
            state = unpoison(self.shared.changed.wait(state));
        }
        None
    }
}

fn kind(of: Option<SpaceWarning>) -> Option<Discriminant<SpaceWarning>> {
    of.as_ref().map(discriminant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_warning_is_told_once_until_the_server_ends() {
        let (board, mut warnings) = Board::new();
        let soon = SpaceWarning::FullSoon { seconds: 100 };
        let few = SpaceWarning::FewPages { left: 9 };
        board.note(Some(soon));
        assert_eq!(warnings.next(), Some(soon));
        board.note(Some(SpaceWarning::FullSoon { seconds: 99 }));
        let reader = std::thread::spawn(move || (warnings.next(), warnings.next()));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!reader.is_finished(), "the same was told twice");
        board.note(Some(few));
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(board);
        assert_eq!(reader.join().unwrap(), (Some(few), None));
    }
}
