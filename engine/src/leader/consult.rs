//! Questions to other spaces about transactions over several: when they are asked, and again.
//!
//! A participant whose part is not settled asks the coordinator. A coordinator tells each participant the end
//! until that says that its part is settled, and then forgets the decision. Both wait a while first: mostly
//! the client has brought the end by then. They wait for nothing where the client's connection has ended, and
//! where a new leader finds what was open. The invariant: each part that waits, and each decision that is
//! kept, has a moment at which it is asked about next.

use std::collections::{BTreeMap, BTreeSet};

use tercel_wire::id::{ClientId, OpId, SpaceId, Stamp};
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
    /// Why the last question was not answered, until one is or its subject is settled.
    unreached: Option<(Subject, String)>,
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
    /// The pause after it is asked next.
    pause_us: u64,
    /// The space that is being asked.
    out_to: Option<SpaceId>,
}

/// The time before a participant is told, and before a coordinator is asked, while the client that brings the
/// end is connected, in microseconds. The question ends a transaction that is not decided, and other parts
/// may take longer to prepare.
const FIRST_TOLD_US: u64 = 500_000;
const FIRST_ASKED_US: u64 = 2_000_000;

/// The first pause between two questions, and the longest, in microseconds: each is twice the one before. The
/// first is some round trips, the longest what an operator does not notice.
const PAUSE_US: u64 = 10_000;
const LONGEST_US: u64 = 2_000_000;

/// The time after which a question without an answer is asked again.
const ANSWER_US: u64 = 10_000_000;

/// Questions to one space that are out at once, and the time after which another is tried, in microseconds.
const OUT_MAX: usize = 64;
const FULL_US: u64 = 10_000;

/// Decisions that one entry forgets.
const FORGOTTEN_AT_ONCE: usize = 64;

impl Consulting {
    /// A view begins: everything that is open is asked about at once. A client that lives goes on at the new
    /// leader no sooner.
    pub(super) fn new(now: Now, replica: &Replica) -> Consulting {
        let mut consulting = Consulting::default();
        let decided = replica.decisions.iter();
        let decided = decided.flat_map(|(stamp, decided)| {
            decided.parts.iter().map(move |part| Subject::Decision(stamp, part.space))
        });
        let parts = replica.prepares.iter().map(|(stamp, _)| Subject::Part(stamp));
        decided.chain(parts).for_each(|subject| consulting.ask_at(subject, now, now, PAUSE_US));
        consulting
    }

    /// A part waits to be settled.
    pub(super) fn prepared(&mut self, stamp: Stamp, now: Now) {
        self.ask_at(Subject::Part(stamp), now, now.plus_us(FIRST_ASKED_US), PAUSE_US);
    }

    /// A transaction was decided.
    pub(super) fn decided(&mut self, stamp: Stamp, spaces: impl Iterator<Item = SpaceId>, now: Now) {
        let due = now.plus_us(FIRST_TOLD_US);
        spaces.for_each(|space| self.ask_at(Subject::Decision(stamp, space), now, due, PAUSE_US));
    }

    /// The last connection of a client is gone: it brings no end, so what it left is asked about at once.
    pub(super) fn client_left(&mut self, client: ClientId, now: Now, replica: &Replica) {
        let mut left = Vec::new();
        if replica.prepares.count_of(client) > 0 {
            let parts = replica.prepares.iter().filter(|(_, part)| part.client == client);
            left.extend(parts.map(|(stamp, _)| Subject::Part(stamp)));
        }
        if replica.decisions.count_of(client) > 0 {
            let decided = replica.decisions.iter().filter(|(_, decided)| decided.op.client == client);
            left.extend(decided.flat_map(|(stamp, decided)| {
                decided.parts.iter().map(move |part| Subject::Decision(stamp, part.space))
            }));
        }
        for subject in left {
            let is_idle = |question: &&Question| question.out_to.is_none() && question.due > now;
            if let Some(Question { due, .. }) = self.questions.get(&subject).filter(is_idle) {
                self.postpone(*due, subject, now);
            }
        }
    }

    fn ask_at(&mut self, subject: Subject, since: Now, due: Now, pause_us: u64) {
        self.end(subject);
        self.due.insert((due, subject));
        self.questions.insert(subject, Question { since, due, pause_us, out_to: None });
    }

    fn end(&mut self, subject: Subject) -> Option<Question> {
        let question = self.questions.remove(&subject)?;
        self.due.remove(&(question.due, subject));
        if let Some(count) = question.out_to.and_then(|space| self.out.get_mut(&space)) {
            *count -= 1;
        }
        Some(question)
    }

    /// Nothing is asked about a subject any more.
    fn over(&mut self, subject: Subject) {
        self.end(subject);
        self.unreached.take_if(|(of, _)| *of == subject);
    }

    /// A part is settled.
    pub(super) fn settled(&mut self, prepared: Stamp) {
        self.over(Subject::Part(prepared));
    }

    /// A part whose transaction is committed cannot be settled yet, for a reason.
    pub(super) fn not_settled(&mut self, prepared: Stamp, why: String) {
        self.unreached = Some((Subject::Part(prepared), why));
    }

    /// A participant is settled, or will be told nothing any more. With the last one the decision is done.
    fn told(&mut self, stamp: Stamp, participant: SpaceId, replica: &Replica) {
        self.over(Subject::Decision(stamp, participant));
        let (first, last) =
            (Subject::Decision(stamp, SpaceId(0)), Subject::Decision(stamp, SpaceId(u64::MAX)));
        if self.questions.range(first..=last).next().is_none() {
            self.done.extend(replica.decisions.at(stamp).map(|decided| decided.op));
        }
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
        if let Some(Question { since, pause_us, .. }) = self.end(subject) {
            self.ask_at(subject, since, now.plus_us(pause_us), (2 * pause_us).min(LONGEST_US));
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
        self.across.consulting.unreached.as_ref().map(|(_, why)| &**why)
    }

    /// Asks what is due, and forgets decisions whose parts are all settled.
    pub(super) fn consult(&mut self, work: &mut Work) {
        while let Some(subject) = self.across.consulting.next(work.now) {
            match question(subject, work) {
                Asking::Over => match subject {
                    Subject::Part(_) => self.across.consulting.over(subject),
                    Subject::Decision(stamp, space) => {
                        self.across.consulting.told(stamp, space, &work.replica)
                    }
                },
                Asking::NotYet => self.across.consulting.again(subject, work.now),
                Asking::ByHand(why) => {
                    self.across.consulting.unreached = Some((subject, why));
                    self.across.consulting.again(subject, work.now);
                }
                Asking::Now(consult) => {
                    if self.across.consulting.send(subject, consult.space(), work.now) {
                        work.replies.push(Reply::Consult(consult));
                    }
                }
            }
        }
        self.forget_done(work);
    }

    /// A space is gone for good: nothing is told to it any more, and decisions that waited for it alone are
    /// forgotten.
    pub(super) fn forgot(&mut self, space: SpaceId, work: &mut Work) {
        let is_told = |subject: &&Subject| matches!(subject, Subject::Decision(_, to) if *to == space);
        let told: Vec<Subject> = self.across.consulting.questions.keys().filter(is_told).copied().collect();
        for subject in told {
            if let Subject::Decision(stamp, _) = subject {
                self.across.consulting.told(stamp, space, &work.replica);
            }
        }
        self.forget_done(work);
    }

    /// Forgets decisions whose parts are all settled.
    fn forget_done(&mut self, work: &mut Work) {
        let done = &mut self.across.consulting.done;
        if work.disk_full || work.log_is_full() {
            return;
        }
        let done = std::mem::take(done);
        done.chunks(FORGOTTEN_AT_ONCE).for_each(|ops| _ = self.order(&Entry::Forget(ops.into()), None, work));
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
            let space = consult.space();
            self.across.consulting.unreached.take_if(|(of, _)| match of {
                Subject::Part(stamp) => {
                    work.replica.prepares.get(*stamp).is_none_or(|part| part.coordinator == space)
                }
                Subject::Decision(_, to) => *to == space,
            });
        }
        match (subject, consult, answer) {
            (
                Subject::Part(prepared),
                Consult::Inquire { of, coordinator, .. },
                Consulted::Decided(decision, mut seen),
            ) => {
                let (of, coordinator) = (*of, *coordinator);
                seen.remove(work.space);
                let part = work.replica.prepares.get(prepared);
                let may_be_settled = part.is_some_and(|part| work.replica.views.may_miss_of(part.view));
                let seen = match decision {
                    Decision::Aborted if may_be_settled => {
                        let text = format!(
                            "space {:x} does not know transaction {of}, and may have forgotten it: entries of this space that                              were made since its part was prepared may be lost; an operator decides what became of it, and                              settles the part here (`tercel settle`)",
                            coordinator.0
                        );
                        return self.not_ended(subject, text, work);
                    }
                    Decision::Aborted => None,
                    Decision::Committed => Some(seen),
                    Decision::Pending => {
                        let text = format!("space {:x} has not decided transaction {of}", coordinator.0);
                        self.refuse_hearing(prepared, &text, work);
                        return self.across.consulting.again(subject, work.now);
                    }
                    Decision::Unknown => {
                        let text = format!(
                            "space {:x} does not have the history of transaction {of}: its operator decides what became of it, \
                             and settles the part here (`tercel settle`)",
                            coordinator.0
                        );
                        return self.not_ended(subject, text, work);
                    }
                };
                // If it cannot be placed now, it is asked about again.
                self.across.consulting.again(subject, work.now);
                self.settle(None, Settle { of, coordinator, prepared, seen, view: None }, work);
            }
            (Subject::Decision(stamp, participant), _, Consulted::Settled) => {
                self.across.consulting.told(stamp, participant, &work.replica);
                self.forget_done(work);
            }
            (subject, _, Consulted::Failed(why)) => self.not_ended(subject, why, work),
            (subject, ..) => self.across.consulting.again(subject, work.now),
        }
    }

    /// A question has no answer that ends its subject: it is asked again.
    fn not_ended(&mut self, subject: Subject, why: String, work: &mut Work) {
        if let Subject::Part(prepared) = subject {
            self.refuse_hearing(prepared, &why, work);
        }
        self.across.consulting.unreached = Some((subject, why));
        self.across.consulting.again(subject, work.now);
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
            let (of, coordinator, view) = (decided.op, work.space, Some(part.view));
            let settle = Settle { of, coordinator, prepared: part.at, seen, view };
            Asking::Now(Consult::Settle { participant, settle })
        }
    }
}
