//! One node: it always leads, and what its disk has is stable.

use std::collections::VecDeque;

use tercel_wire::id::{LogPosition, Stamp, ViewId};

use crate::{Input, Level, Output, Sequencer};
use tercel_machine::time::Now;

/// The sequencer of a single node, which always leads.
#[derive(Debug)]
pub struct Solo {
    view: ViewId,
    last: LogPosition,
    is_leading: bool,
    /// Entries that the disk does not have yet, and the last one that it has.
    unwritten: VecDeque<(LogPosition, Stamp)>,
    stable: Stamp,
}

impl Solo {
    /// Leads in `view` after a log that ends at `last`.
    pub fn new(view: ViewId, last: LogPosition) -> Solo {
        Solo { view, last, is_leading: false, unwritten: VecDeque::new(), stable: Stamp::ZERO }
    }
}

impl Sequencer for Solo {
    fn handle(&mut self, _: Now, input: Input<'_>, out: &mut Vec<Output>) {
        if !std::mem::replace(&mut self.is_leading, true) {
            out.push(Output::Leading(self.view));
        }
        match input {
            Input::Submit { entry, .. } => {
                self.last = self.last.next();
                self.unwritten.push_back((self.last, entry.stamp));
                out.push(Output::Append(self.last, self.view, entry));
            }
            Input::Written(view, position) if view == self.view => {
                let before = self.stable;
                while let Some((_, stamp)) = self.unwritten.pop_front_if(|(at, _)| *at <= position) {
                    self.stable = stamp;
                }
                if self.stable > before {
                    out.push(Output::Stable(self.stable, Level::Disk));
                }
            }
            // No other node can lead.
            Input::Confirm(id) => out.push(Output::Confirmed(id, self.stable)),
            Input::Written(..) | Input::Packet(..) | Input::Gone(_) | Input::Time => {}
        }
    }

    fn deadline(&self) -> Option<Now> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sealed;

    const VIEW: ViewId = ViewId::new(3, 33);

    fn said(solo: &mut Solo, input: Input<'_>) -> Vec<Output> {
        let mut out = Vec::new();
        solo.handle(Now(0), input, &mut out);
        out
    }

    fn entry(stamp: u64) -> Sealed {
        Sealed { stamp: Stamp(stamp), view: VIEW, kind: 3, payload: vec![] }
    }

    #[test]
    fn solo_leads_at_once_and_written_is_stable() {
        let mut solo = Solo::new(VIEW, LogPosition(7));
        assert_eq!(said(&mut solo, Input::Time), [Output::Leading(VIEW)]);
        for (position, stamp) in [(8, 20), (9, 22), (10, 23)] {
            let submit = Input::Submit { entry: entry(stamp), level: Level::Disk };
            assert_eq!(said(&mut solo, submit), [Output::Append(LogPosition(position), VIEW, entry(stamp))]);
        }
        let written = |view, position| Input::Written(view, LogPosition(position));
        assert_eq!(said(&mut solo, written(ViewId::new(2, 33), 10)), []);
        assert_eq!(said(&mut solo, written(VIEW, 9)), [Output::Stable(Stamp(22), Level::Disk)]);
        assert_eq!(said(&mut solo, written(VIEW, 9)), []);
        assert_eq!(said(&mut solo, written(VIEW, 10)), [Output::Stable(Stamp(23), Level::Disk)]);
    }
}
