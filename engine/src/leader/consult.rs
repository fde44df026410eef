//! Questions to other spaces about transactions over several: when they are asked, and again.
//!
//! A participant whose part is not settled asks the coordinator. A coordinator tells each participant the end
//! until that says that its part is settled, and then forgets the decision. Both wait a while first: mostly
//! the client has brought the end by then. The invariant: each part that waits, and each decision that is
//! kept, has a moment at which it is asked about next.

use std::collections::{BTreeMap, BTreeSet};

use tercel_wire::id::{OpId, SpaceId, Stamp};
use tercel_wire::message::{Decision, Settle};

use super::{Leader, Reply, Work};
use crate::consult::{Consult, Consulted};
use crate::replica::Replica;
use crate::replica::entry::Entry;
use crate::table::Map;
use crate::time::Now;

/// The questions, by when they are due.
#[derive(Debug, Default)]
pub(super) struct Consulting {
    due: BTreeSet<(Now, Subject)>,
    questions: BTreeMap<Subject, Question>,
    /// By space, questions that are out.
    out: Map<SpaceId, usize>,
    /// Decisions all parts of which are settled.
    done: Vec<OpId>,
    /// Why the last question was not answered, until one is.
    pub(super) unreached: Option<String>,
}

/// The subject of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// The transaction of a part, by the stamp of its prepare.
    Part(Stamp),
    /// A decision, by its stamp, and a participant.
    Decision(Stamp, SpaceId),
}

/// Progress of a question.
#[derive(Debug)]
struct Question {
    /// When this leader heard of its subject first.
    since: Now,
    due: Now,
    wait_us: u64,
    /// The space that is being asked.
    out_to: Option<SpaceId>,
}

/// The time before a participant is told, and before a coordinator is asked, in microseconds: its question
/// ends a transaction that is not decided, and other parts may take longer to prepare.
const FIRST_TOLD_US: u64 = 500_000;
const FIRST_ASKED_US: u64 = 2_000_000;

/// The time between two questions doubles up to this, in microseconds.
const LONGEST_US: u64 = 30_000_000;

/// The time after which a question without an answer is asked again.
const ANSWER_US: u64 = 10_000_000;

/// Questions to one space that are out at once, and the time after which another is tried, in microseconds.
const OUT_MAX: usize = 16;
const FULL_US: u64 = 50_000;

/// Decisions that one entry forgets.
const FORGOTTEN_AT_ONCE: usize = 64;

impl Consulting {
    /// A view begins: everything that is open is asked about.
    pub(super) fn new(now: Now, replica: &Replica) -> Consulting {
        let mut consulting = Consulting::default();
        replica.prepares.iter().for_each(|(stamp, _)| consulting.prepared(stamp, now));
        for (stamp, decided) in replica.decisions.iter() {
            let spaces = decided.parts.iter().map(|part| part.space);
            consulting.decided(stamp, spaces, now);
        }
        consulting
    }

    /// A part waits to be settled.
    pub(super) fn prepared(&mut self, stamp: Stamp, now: Now) {
        self.ask_at(Subject::Part(stamp), now, now, FIRST_ASKED_US);
    }

    /// A transaction was decided.
    pub(super) fn decided(&mut self, stamp: Stamp, spaces: impl Iterator<Item = SpaceId>, now: Now) {
        spaces.for_each(|space| self.ask_at(Subject::Decision(stamp, space), now, now, FIRST_TOLD_US));
    }

    fn ask_at(&mut self, subject: Subject, since: Now, now: Now, wait_us: u64) {
        self.end(subject);
        let due = now.plus_us(wait_us);
        self.due.insert((due, subject));
        self.questions.insert(subject, Question { since, due, wait_us, out_to: None });
    }

    fn end(&mut self, subject: Subject) -> Option<Question> {
        let question = self.questions.remove(&subject)?;
        self.due.remove(&(question.due, subject));
        if let Some(count) = question.out_to.and_then(|space| self.out.get_mut(&space)) {
            *count -= 1;
        }
        Some(question)
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Takes a question that is due, which is asked again at that moment unless something happens before.
    fn next(&mut self, now: Now) -> Option<Subject> {
        let (due, subject) = *self.due.first().filter(|(due, _)| *due <= now)?;
        self.postpone(due, subject, now.plus_us(ANSWER_US));
        Some(subject)
    }

    fn postpone(&mut self, due: Now, subject: Subject, until: Now) {
        self.due.remove(&(due, subject));
        self.due.insert((until, subject));
        if let Some(question) = self.questions.get_mut(&subject) {
            question.due = until;
        }
    }

    /// Notes that a space is asked, if it is not asked too much at once.
    fn send(&mut self, subject: Subject, to: SpaceId, now: Now) -> bool {
        let Some(question) = self.questions.get_mut(&subject) else { return false };
        let count = self.out.entry(to).or_default();
        // One that had no answer is out no longer.
        if question.out_to != Some(to) && *count >= OUT_MAX {
            let due = question.due;
            self.postpone(due, subject, now.plus_us(FULL_US));
            return false;
        }
        *count += usize::from(question.out_to.replace(to) != Some(to));
        true
    }

    /// The question is asked again later.
    fn again(&mut self, subject: Subject, now: Now) {
        if let Some(question) = self.end(subject) {
            self.ask_at(subject, question.since, now, (2 * question.wait_us).min(LONGEST_US));
        }
    }
}

impl Leader {
    /// Says for how long this leader has known of the part that was prepared at a stamp, in microseconds.
    pub(crate) fn part_age_us(&self, prepared: Stamp, now: Now) -> u64 {
        let question = self.across.consulting.questions.get(&Subject::Part(prepared));
        question.map_or(0, |question| now.since_us(question.since))
    }

    /// Why the last question to another space was not answered, until one is.
    pub(crate) fn unreached(&self) -> Option<&str> {
        self.across.consulting.unreached.as_deref()
    }

    /// Asks what is due, and forgets decisions whose parts are all settled.
    pub(super) fn consult(&mut self, work: &mut Work) {
        while let Some(subject) = self.across.consulting.next(work.now) {
            match question(subject, work) {
                Asking::Over => _ = self.across.consulting.end(subject),
                Asking::NotYet => self.across.consulting.again(subject, work.now),
                Asking::ByHand(why) => {
                    self.across.consulting.unreached = Some(why);
                    self.across.consulting.again(subject, work.now);
                }
                Asking::Now(consult) => {
                    if self.across.consulting.send(subject, consult.space(), work.now) {
                        work.replies.push(Reply::Consult(consult));
                    }
                }
            }
        }
        let done = &mut self.across.consulting.done;
        if !done.is_empty() && !work.disk_full && !work.log_is_full() {
            let ops: Vec<OpId> = done.drain(..done.len().min(FORGOTTEN_AT_ONCE)).collect();
            self.order(&Entry::Forget(ops), None, work);
        }
    }

    /// Takes the answer of another space.
    pub(crate) fn consulted(&mut self, consult: &Consult, answer: Consulted, work: &mut Work) {
        let subject = match consult {
            Consult::Inquire { prepared, .. } => Subject::Part(*prepared),
            Consult::Settle { participant, settle } => match work.replica.decisions.get(settle.of) {
                Some((stamp, _)) => Subject::Decision(stamp, *participant),
                None => return,
            },
        };
        if !matches!(answer, Consulted::Failed(_)) {
            self.across.consulting.unreached = None;
        }
        match (subject, consult, answer) {
            (
                Subject::Part(prepared),
                Consult::Inquire { of, coordinator, .. },
                Consulted::Decided(decision, mut seen),
            ) => {
                let (of, coordinator) = (*of, *coordinator);
                seen.remove(work.space);
                let seen = match decision {
                    Decision::Aborted => None,
                    Decision::Committed => Some(seen),
                    Decision::Pending => return self.across.consulting.again(subject, work.now),
                    Decision::Unknown => {
                        let text = format!(
                            "space {:x} does not have the history of transaction {of}: its operator decides what became of it, \
                             and settles the part here (`tercel settle`)",
                            coordinator.0
                        );
                        self.across.consulting.unreached = Some(text);
                        return self.across.consulting.again(subject, work.now);
                    }
                };
                // If it cannot be placed now, it is asked about again.
                self.across.consulting.again(subject, work.now);
                self.settle(None, Settle { of, coordinator, prepared, seen }, work);
            }
            (Subject::Decision(stamp, _), Consult::Settle { settle, .. }, Consulted::Settled) => {
                _ = self.across.consulting.end(subject);
                let first = Subject::Decision(stamp, SpaceId(0));
                let last = Subject::Decision(stamp, SpaceId(u64::MAX));
                if self.across.consulting.questions.range(first..=last).next().is_none() {
                    self.across.consulting.done.push(settle.of);
                }
            }
            (subject, _, answer) => {
                if let Consulted::Failed(why) = answer {
                    self.across.consulting.unreached = Some(why);
                }
                self.across.consulting.again(subject, work.now);
            }
        }
    }
}

/// The question about a subject.
enum Asking {
    Now(Consult),
    /// The decision is not stable, and may still be lost.
    NotYet,
    /// No server can know the end: an operator decides, by this sentence.
    ByHand(String),
    Over,
}

fn question(subject: Subject, work: &Work) -> Asking {
    match subject {
        Subject::Part(prepared) => {
            let Some(part) = work.replica.prepares.get(prepared) else { return Asking::Over };
            if part.view.number < work.config.view_first {
                // The coordinator may have forgotten since what it decided.
                return Asking::ByHand(format!(
                    "a part of transaction {} was prepared before this space was restored: its operator settles it (`tercel settle`)",
                    part.of
                ));
            }
            Asking::Now(Consult::Inquire { coordinator: part.coordinator, of: part.of, prepared })
        }
        Subject::Decision(stamp, participant) => {
            let Some(decided) = work.replica.decisions.at(stamp) else { return Asking::Over };
            let part = decided.parts.iter().find(|part| part.space == participant);
            let Some(part) = part else { return Asking::Over };
            if stamp > work.pages.visible() {
                return Asking::NotYet;
            }
            let seen = Some(decided.seen_at(stamp, work.space));
            let settle = Settle { of: decided.op, coordinator: work.space, prepared: part.at, seen };
            Asking::Now(Consult::Settle { participant, settle })
        }
    }
}
