//! The events of a world, as lines for people, if the caller wants them.

use std::fmt::{Arguments, Write};

/// The lines of a trace; `None` if they are not kept.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    lines: Option<String>,
}

impl Trace {
    /// One that keeps lines, or one that does not.
    pub(crate) fn new(on: bool) -> Trace {
        Trace { lines: on.then(String::new) }
    }

    /// Says whether lines are kept: asked before a costly one is made.
    pub(crate) fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    /// A line, at a moment.
    pub(crate) fn line(&mut self, time_us: u64, what: Arguments<'_>) {
        if let Some(lines) = &mut self.lines {
            let (s, us) = (time_us / 1_000_000, time_us % 1_000_000);
            // Writing to a text cannot fail.
            let _ = writeln!(lines, "{s:4}.{us:06} {what}");
        }
    }

    /// All lines.
    pub(crate) fn into_text(self) -> String {
        self.lines.unwrap_or_default()
    }
}
