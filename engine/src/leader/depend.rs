//! Dependencies: states of other spaces that a session has seen, ordered before it changes this one.

use tercel_wire::id::Stamp;
use tercel_wire::message::Refusal;
use tercel_wire::vector::Vector;

use super::{Asked, Leader, Reply, Work};
use crate::limits;
use crate::replica::entry::Entry;

/// A request that waits until its vector is visible.
#[derive(Debug)]
pub(super) struct Depending {
    stamp: Stamp,
    pub asked: Asked,
    on: Vector,
}

impl Leader {
    /// Orders states of other spaces that a client has seen, before anything that it writes from now on. The
    /// answer follows once they are visible.
    pub(crate) fn depend(&mut self, asked: Asked, on: Vector, work: &mut Work) {
        match self.order_dependencies(&on, work) {
            Err((reason, text)) => work.refuse(asked, reason, text),
            Ok(stamp) if stamp <= work.pages.visible() => work.replies.push(Reply::Depends(asked, on)),
            Ok(_) if self.ordered.vectors.len() >= limits::SESSIONS_MAX => {
                work.refuse(asked, Refusal::FULL, "too many clients wait for dependencies at once");
            }
            Ok(stamp) => {
                let at = self.ordered.vectors.partition_point(|other| other.stamp <= stamp);
                self.ordered.vectors.insert(at, Depending { stamp, asked, on });
            }
        }
    }

    /// The stamp from which on the space rests on a vector, which is ordered unless it was before.
    pub(crate) fn order_dependencies(
        &mut self,
        on: &Vector,
        work: &mut Work,
    ) -> Result<Stamp, (Refusal, String)> {
        let is_told = |space| work.replica.decisions.has_part_of(space);
        if let Some(stamp) =
            work.replica.dependencies.covered_since(on).filter(|_| !on.forgotten().any(is_told))
        {
            return Ok(stamp);
        }
        if !work.replica.dependencies.has_room_for(on) {
            return Err((Refusal::FULL, "the space rests on 64 others, as many as it can: its operator can have it forget one that is gone (`tercel forget`)".into()));
        }
        if let Some((why, text)) = work.refuses_writes() {
            return Err((why, text.into()));
        }
        if work.log_is_full() {
            return Err((Refusal::FULL, "the server's disk: make room there".into()));
        }
        let stamp = self.order(&Entry::Depend(on.clone()), None, work);
        on.forgotten().for_each(|space| self.forgot(space, work));
        Ok(stamp)
    }

    /// Answers the requests whose vectors have become visible.
    pub(super) fn depended_upto(&mut self, visible: Stamp, work: &mut Work) {
        while let Some(depending) = self.ordered.vectors.pop_front_if(|d| d.stamp <= visible) {
            work.replies.push(Reply::Depends(depending.asked, depending.on));
        }
    }
}
