//! One node: it always leads, and an entry on its disk is stable.

use std::collections::VecDeque;

use tercel_wire::id::{LogPosition, Stamp};

use crate::{Input, Lead, Output, Sequencer};
use tercel_machine::time::Now;

/// The sequencer of a single node, which always leads.
#[derive(Debug)]
pub struct Solo {
    lead: Lead,
    last: LogPosition,
    is_leading: bool,
    /// Entries that the disk does not have yet, and the last one that it has.
    unwritten: VecDeque<(LogPosition, Stamp)>,
    stable: Stamp,
}

impl Solo {
    /// Leads after a log that ends at `last`, with the last entry that `lead` keeps.
    pub fn new(lead: Lead, last: LogPosition) -> Solo {
        Solo { lead, last, is_leading: false, unwritten: VecDeque::new(), stable: Stamp::ZERO }
    }
}

impl Sequencer for Solo {
    fn handle(&mut self, _: Now, input: Input<'_>, out: &mut Vec<Output>) {
        if !std::mem::replace(&mut self.is_leading, true) {
            out.push(Output::Leading(self.lead));
        }
        match input {
            Input::Submit(entry) => {
                self.last = self.last.next();
                self.unwritten.push_back((self.last, entry.stamp));
                out.push(Output::Append(self.last, entry));
            }
            // Nothing cuts its log.
            Input::Written(_, position) => {
                let mut last = None;
                while let Some(entry) = self.unwritten.pop_front_if(|(at, _)| *at <= position) {
                    last = Some(entry);
                }
                if let Some((position, stamp)) = last {
                    self.stable = stamp;
                    out.push(Output::Stable(position, stamp));
                }
            }
            // No other node can lead.
            Input::Confirm(id) => out.push(Output::Confirmed(id, self.stable)),
            Input::Packet(..)
            | Input::Saved(_)
            | Input::Found(..)
            | Input::Gone(_)
            | Input::Ready(_)
            | Input::MoveLead(_)
            | Input::StandDown
            | Input::Time => {}
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
    use tercel_wire::id::ViewId;

    const LEAD: Lead = Lead { view: ViewId::new(3, 33), kept: Stamp(19), is_unsure: false };

    fn said(solo: &mut Solo, input: Input<'_>) -> Vec<Output> {
        let mut out = Vec::new();
        solo.handle(Now(0), input, &mut out);
        out
    }

    fn entry(stamp: u64) -> Sealed {
        Sealed { stamp: Stamp(stamp), view: LEAD.view, kind: 3, payload: Default::default() }
    }

    #[test]
    fn solo_leads_at_once_and_written_is_stable() {
        let mut solo = Solo::new(LEAD, LogPosition(7));
        assert_eq!(said(&mut solo, Input::Time), [Output::Leading(LEAD)]);
        for (position, stamp) in [(8, 20), (9, 22), (10, 23)] {
            let submit = Input::Submit(entry(stamp));
            assert_eq!(said(&mut solo, submit), [Output::Append(LogPosition(position), entry(stamp))]);
        }
        let written = |position| Input::Written(0, LogPosition(position));
        assert_eq!(said(&mut solo, written(7)), []);
        assert_eq!(said(&mut solo, written(9)), [Output::Stable(LogPosition(9), Stamp(22))]);
        assert_eq!(said(&mut solo, written(9)), []);
        assert_eq!(said(&mut solo, written(10)), [Output::Stable(LogPosition(10), Stamp(23))]);
    }
}
