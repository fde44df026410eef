//! Rights: a change is judged and ordered in one step, and answered once it is visible.

use tercel_wire::id::{ClassId, ClientId, OpId, Stamp};
use tercel_wire::interface::Interface;
use tercel_wire::message::{Accessing, Refusal, Right};

use super::{Asked, Leader, Reply, Work};
use crate::limits;
use crate::mutant::{Rule, dropped};
use crate::replica::entry::Entry;
use crate::rights::{DEFINE, Lack, READ, WRITE};

impl Leader {
    /// Grants or revokes a right.
    pub(crate) fn access(&mut self, asked: Asked, step: Accessing, right: Right, work: &mut Work) {
        let is_granted = step == Accessing::Grant;
        if work.replica.access.has(&right) == is_granted {
            // Somebody else may have asked for it a moment ago, and it is not visible yet.
            return self.accessed_at(work.replica.access.epoch(), asked, work);
        }
        if is_granted && !work.replica.access.has_room() {
            let text = "the space has 256 rights, as many as it can: revoke some, or grant to one principal what several share";
            return work.refuse(asked, Refusal::FULL, text);
        }
        if let Some((reason, text)) = work.refuses_writes() {
            return work.refuse(asked, reason, text);
        }
        if work.log_is_full() {
            return work.refuse(asked, Refusal::FULL, "the server's disk: make room there");
        }
        let stamp = self.order(&Entry::Access(is_granted, right), None, work);
        self.accessed_at(stamp, asked, work);
    }

    fn accessed_at(&mut self, stamp: Stamp, asked: Asked, work: &mut Work) {
        if stamp <= work.pages.visible() {
            return work.replies.push(Reply::Accessed(asked));
        }
        if self.ordered.rights.len() >= limits::SESSIONS_MAX {
            return work.refuse(asked, Refusal::FULL, "too many ask for changes of rights at once");
        }
        self.ordered.rights.push_back((stamp, asked));
    }

    /// Answers the changes that have become visible.
    pub(super) fn accessed_upto(&mut self, visible: Stamp, work: &mut Work) {
        while let Some((_, asked)) = self.ordered.rights.pop_front_if(|(stamp, _)| *stamp <= visible) {
            work.replies.push(Reply::Accessed(asked));
        }
    }

    /// From what is ordered next on the client is its connection's principal's, if rights are judged.
    pub(super) fn own(&mut self, asked: Asked, client: ClientId, work: &mut Work) {
        if !work.replica.access.is_judged() || work.replica.access.owner(client).is_some() {
            return;
        }
        if let Some(who) = work.seats.who(asked.conn).cloned() {
            self.order(&Entry::Own(client, (*who).clone()), None, work);
        }
    }

    /// A transaction is not executed, because its principal lacks a role.
    pub(super) fn denied(&mut self, asked: Asked, op: OpId, lack: &Lack, work: &mut Work) {
        work.refuse(asked, Refusal::Denied, lack.to_string());
        self.not_executed(asked, op, Refusal::Denied, work);
    }
}

impl Work {
    /// Checks the classes of what a transaction writes, in the step in which it is ordered; of a method that
    /// was called, given by its interface and its own number, that its caller may call it.
    ///
    /// # Errors
    /// The role that its principal lacks.
    pub(super) fn judge_rights(
        &mut self,
        asked: Asked,
        called: Option<(u16, u16)>,
        classes: impl ExactSizeIterator<Item = ClassId>,
    ) -> Result<(), Lack> {
        if dropped(Rule::RightsJudgedEarly) {
            return Ok(());
        }
        match called {
            Some((interface, method)) => self.may_call(asked, interface, method),
            None => {
                let of = (&self.replica, &self.config);
                self.seats.check_writes(asked.conn, of, classes)
            }
        }
    }

    /// Checks that a method may be called.
    ///
    /// # Errors
    /// The role that its principal lacks.
    pub(crate) fn may_call(&mut self, asked: Asked, interface: u16, method: u16) -> Result<(), Lack> {
        let of = (&self.replica, &self.config);
        let named = || called(self.config.methods.get(interface), method);
        self.seats.check(asked.conn, of, |rights| rights.calls_method(interface, method), named)
    }

    /// Checks that a class may be defined, or only looked up.
    ///
    /// # Errors
    /// The role that its principal lacks.
    pub(super) fn may_define(&mut self, asked: Asked, is_new: bool) -> Result<(), Lack> {
        let (bits, role) = if is_new { (DEFINE, "define") } else { (DEFINE | WRITE | READ, "read") };
        let of = (&self.replica, &self.config);
        self.seats.check(asked.conn, of, |rights| rights.bits & bits != 0, || role.into())
    }
}

/// The role that a call needs, as it would be granted.
pub(crate) fn called(interface: Option<&Interface>, method: u16) -> String {
    match interface {
        None => "call".into(),
        interface => format!("call {}", name_of(interface, method)),
    }
}

/// A method as `INTERFACE.METHOD`, as far as it is known.
pub(crate) fn name_of(interface: Option<&Interface>, method: u16) -> String {
    let Some(interface) = interface else { return String::new() };
    match interface.methods.get(usize::from(method)) {
        Some(of) => format!("{}.{}", interface.name, of.name),
        None => interface.name.to_string(),
    }
}
