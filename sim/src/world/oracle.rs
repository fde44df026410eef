//! The oracle of the order: every entry that was promised, and the log of each node.
//!
//! A promised entry stays, and no node has another in its place. An opening of a log yields everything that
//! was appended, at least as far as was synced; what it does not yield, or what is cut, never happened there.

use std::collections::BTreeMap;

use tercel_engine::limits;
use tercel_engine::order::Sealed;
use tercel_engine::order::quorum::members::Members;
use tercel_engine::replica::entry::{Entry, Head, kind};
use tercel_verify::{Logged, Object, Value, Write};
use tercel_wire::id::{ClassId, ClientId, EntryId, LogPosition, PageId, Stamp, ViewId};

use super::fresh::Acknowledged;
use crate::record::CollectCounts;
use crate::workload::cell;

/// The log of a node: every entry that its processes appended and did not cut, and what its disk has of them.
#[derive(Default, Clone)]
pub(crate) struct Ledger {
    /// From position 1 on, without a gap.
    entries: Vec<Sealed>,
    /// The disk has everything up to here, whatever happens.
    pub durable: LogPosition,
    /// Everything up to here was found to be what is promised.
    promised: LogPosition,
    /// The lists of members in it.
    lists: Vec<(LogPosition, Members)>,
    /// While the log is to be cut: above which position, and what its file still has there.
    cutting: Option<(LogPosition, Vec<Sealed>)>,
}

impl Ledger {
    /// The node appends an entry.
    pub(super) fn append(&mut self, position: LogPosition, entry: &Sealed) -> Result<(), String> {
        let end = self.end();
        if position != end.next() {
            return Err(format!("entry {} gets position {position} behind {end}", entry.stamp));
        }
        if let Some(last) = self.entries.last().filter(|l| l.stamp >= entry.stamp || l.view > entry.view) {
            return Err(format!("entry {} of view {} follows {}", entry.stamp, entry.view, last.stamp));
        }
        self.entries.push(entry.clone());
        self.lists.extend(list_of(entry).map(|list| (position, list)));
        Ok(())
    }

    /// The newest list of members, stable or not.
    pub(super) fn members(&self) -> Option<&Members> {
        self.lists.last().map(|(_, list)| list)
    }

    fn truncate(&mut self, above: LogPosition) {
        self.entries.truncate(above.0 as usize);
        self.lists.retain(|(position, _)| *position <= above);
    }

    /// The position of the last entry.
    pub(super) fn end(&self) -> LogPosition {
        LogPosition(self.entries.len() as u64)
    }

    /// The last entry up to a stamp, and its name.
    pub(super) fn upto(&self, stamp: Stamp) -> EntryId {
        let n = self.entries.partition_point(|e| e.stamp <= stamp);
        let view = n.checked_sub(1).map_or(ViewId::NONE, |last| self.entries[last].view);
        EntryId { view, position: LogPosition(n as u64) }
    }

    /// The entry at a position.
    pub(super) fn at(&self, position: LogPosition) -> Option<&Sealed> {
        self.entries.get((position.0 as usize).checked_sub(1)?)
    }

    /// The entries above the first so many.
    pub(super) fn from(&self, first: u64) -> &[Sealed] {
        &self.entries[first as usize..]
    }

    /// The entries above a position, up to another.
    pub(super) fn between(&self, above: LogPosition, upto: LogPosition) -> &[Sealed] {
        let upto = (upto.0 as usize).min(self.entries.len());
        &self.entries[(above.0 as usize).min(upto)..upto]
    }

    /// Entries above the position are to go from the log, whose file ends there.
    pub(super) fn cut(&mut self, above: LogPosition, end: LogPosition) -> Result<(), String> {
        if above < self.promised {
            return Err(format!(
                "the log is cut above {above}, and everything up to {} is stable",
                self.promised
            ));
        }
        self.cutting = Some(match self.cutting.take() {
            None => (above.min(end), self.between(above, end).to_vec()),
            Some((base, old)) if above < base => (above, [self.between(above, base), &old].concat()),
            Some(cutting) => cutting,
        });
        self.truncate(above);
        self.durable = self.durable.min(above);
        Ok(())
    }

    /// The file was cut above a position.
    pub(super) fn was_cut(&mut self, above: LogPosition) {
        let deeper = self.cutting.take().filter(|(base, _)| *base < above);
        self.cutting = deeper.map(|(base, mut old)| {
            old.truncate((above.0 - base.0) as usize);
            (base, old)
        });
    }

    /// The file is durable up to a position.
    pub(super) fn written(&mut self, upto: LogPosition) {
        let kept = self.cutting.as_ref().map_or(upto, |(base, _)| upto.min(*base));
        self.durable = self.durable.max(kept);
    }

    /// An opening of the log yielded these, from `from` on, as the last that it has. What comes up to
    /// `begins` it has let go of. Gives the position of the last.
    pub(super) fn reopened(
        &mut self,
        from: Stamp,
        begins: Stamp,
        found: &[Sealed],
    ) -> Result<LogPosition, String> {
        if begins >= from {
            return Err(format!("the log begins behind {begins}, and {from} is needed"));
        }
        // A cut that was not made never happened.
        if let Some((base, old)) = self.cutting.take() {
            self.truncate(base);
            self.promised = self.promised.min(base);
            old.iter().try_for_each(|entry| self.append(self.end().next(), entry))?;
        }
        let first = self.entries.partition_point(|e| e.stamp < from);
        for (i, f) in found.iter().enumerate() {
            match self.entries.get(first + i) {
                Some(e) if e == f => {}
                Some(e) => return Err(format!("the log yields {} where {} is due", f.stamp, e.stamp)),
                None => return Err(format!("the log yields entry {}, which was never written", f.stamp)),
            }
        }
        let end = LogPosition((first + found.len()) as u64);
        if end < self.durable {
            return Err(format!("the log ends at {end}, and everything up to {} was synced", self.durable));
        }
        self.truncate(end);
        (self.durable, self.promised) = (end, self.promised.min(end));
        Ok(end)
    }

    /// By page, when its client gave it back, or the session ended of the client that it was granted to, if
    /// the client had it until then.
    pub(super) fn ended(&self) -> BTreeMap<PageId, Stamp> {
        let mut granted: BTreeMap<ClientId, Vec<PageId>> = BTreeMap::new();
        let mut ended = BTreeMap::new();
        let mut staged = Vec::new();
        for e in &self.entries {
            match Entry::decode(e.kind, &e.payload) {
                // A page that is full may return from now on without a word of its client.
                Ok(Entry::Commit(logged)) => filled(&mut granted, &logged.head),
                Ok(Entry::Stage { at, bytes, .. }) => {
                    staged.truncate(at as usize);
                    staged.extend_from_slice(bytes);
                }
                Ok(Entry::CommitStaged { .. }) => {
                    if let Ok(Entry::Commit(logged)) = Entry::decode(kind::COMMIT, &staged) {
                        filled(&mut granted, &logged.head);
                    }
                }
                Ok(Entry::Grant(g)) => {
                    g.pages.iter().for_each(|page| _ = ended.remove(page));
                    // A client with too many pages has lost the oldest, and does not say so either.
                    granted.values_mut().for_each(|pages| pages.retain(|page| !g.pages.contains(page)));
                    granted.entry(g.client).or_default().extend(g.pages);
                }
                Ok(Entry::GiveBack(client, pages)) => {
                    granted
                        .entry(client)
                        .or_default()
                        .retain(|page| pages.iter().all(|(done, _)| done != page));
                    ended.extend(pages.into_iter().map(|(page, _)| (page, e.stamp)));
                }
                Ok(Entry::End(client)) => {
                    // A client with too many pages loses the oldest, when is not looked into here.
                    let pages = granted.remove(&client).unwrap_or_default();
                    let last = pages.iter().rev().take(limits::leased_pages_max());
                    ended.extend(last.map(|page| (*page, e.stamp)));
                }
                _ => {}
            }
        }
        ended
    }
}

/// Every entry that was promised: a server's disk has it, or those of a quorum of servers.
#[derive(Default, Clone)]
pub(crate) struct Oracle {
    /// From position 1 on, without a gap.
    entries: Vec<Sealed>,
    /// The last of them. Everything up to here must survive whatever happens.
    pub promised: Stamp,
    /// The space goes on from before something that clients have heard of.
    pub(super) is_put_back: bool,
    /// The last list of members, and how many there were.
    pub(super) members: Option<Members>,
    pub(crate) lists: u64,
    /// By the number of a view, the node that led in it.
    pub(super) leaders: BTreeMap<u32, usize>,
    /// The stamps that threads received, and when.
    pub(super) acknowledged: Acknowledged,
    /// By written version, its place.
    values: BTreeMap<(Object, Value), u64>,
}

impl Oracle {
    /// Everything of a log up to a position is promised. Says whether it is more than before.
    pub(super) fn promise(&mut self, ledger: &mut Ledger, upto: LogPosition) -> Result<bool, String> {
        let known = LogPosition(self.entries.len() as u64);
        let upto = upto.min(ledger.end());
        let shared = upto.min(known);
        for (i, entry) in ledger.between(ledger.promised, shared).iter().enumerate() {
            let due = &self.entries[ledger.promised.0 as usize + i];
            if entry != due {
                let (position, stamp) = (ledger.promised.0 + i as u64 + 1, due.stamp);
                return Err(format!("the entry at {position} is stable, and was another, {stamp}, before"));
            }
        }
        for list in ledger.between(known, upto).iter().filter_map(list_of) {
            self.members = Some(list);
            self.lists += 1;
        }
        self.entries.extend_from_slice(ledger.between(known, upto));
        ledger.promised = ledger.promised.max(upto);
        self.promised = self.entries.last().map_or(Stamp::ZERO, |e| e.stamp);
        Ok(upto > known)
    }

    /// A process begins, and takes its log up to a position for stable. Gives the first that is not so.
    pub(super) fn differs(&self, ledger: &Ledger, stable: LogPosition) -> Option<LogPosition> {
        let both = self.entries.iter().zip(ledger.between(LogPosition::ZERO, stable));
        let at = both.enumerate().find(|(_, (due, entry))| due != entry)?.0;
        Some(LogPosition(at as u64 + 1))
    }

    /// The position of the last entry.
    pub(super) fn end(&self) -> LogPosition {
        LogPosition(self.entries.len() as u64)
    }

    /// The log of a node that has what is promised up to a position, and no more.
    pub(super) fn ledger(&self, upto: LogPosition) -> Ledger {
        let entries = self.entries[..self.entries.len().min(upto.0 as usize)].to_vec();
        let lists = (1..).zip(&entries).filter_map(|(at, entry)| Some((LogPosition(at), list_of(entry)?)));
        let (lists, end) = (lists.collect(), LogPosition(entries.len() as u64));
        Ledger { entries, durable: end, promised: end, lists, cutting: None }
    }

    /// Every entry that was promised, in order.
    pub(crate) fn promised(&self) -> impl Iterator<Item = &Sealed> {
        self.entries.iter()
    }

    /// The counts of the collections that were promised.
    pub(crate) fn collected(&self) -> CollectCounts {
        let mut counts = CollectCounts::default();
        // Objects in the pieces so far, if there are any.
        let mut condemned = None;
        for e in self.promised() {
            match Entry::decode(e.kind, &e.payload) {
                Ok(Entry::Condemn(piece)) => {
                    let is_end = piece.at == 0 && piece.pages.is_empty() && piece.unheld.is_empty();
                    if piece.at == 0 {
                        counts.given_up += u64::from(condemned.take().is_some());
                    }
                    counts.pieces += u64::from(!is_end);
                    let objects: usize = piece.pages.iter().map(|(_, slots)| slots.count()).sum();
                    condemned = (!is_end).then(|| condemned.unwrap_or(0) + objects as u64);
                }
                Ok(Entry::Collect { .. }) => {
                    counts.ended += 1;
                    counts.objects += condemned.take().unwrap_or(0);
                }
                Ok(Entry::View { .. }) => counts.given_up += u64::from(condemned.take().is_some()),
                _ => {}
            }
        }
        counts
    }

    /// The commits that were promised, as a history has them.
    pub(crate) fn logged(&mut self) -> Vec<Logged> {
        let mut cell_classes: Vec<ClassId> = Vec::new();
        let mut logged = Vec::new();
        self.values.clear();
        let mut pieces: Vec<u8> = Vec::new();
        for e in &self.entries {
            let commit = match Entry::decode(e.kind, &e.payload) {
                Ok(Entry::Define(id, layout)) if cell::is_layout(&layout) => {
                    cell_classes.push(id);
                    continue;
                }
                Ok(Entry::Stage { at, bytes, .. }) => {
                    pieces.truncate(at as usize);
                    pieces.extend_from_slice(bytes);
                    continue;
                }
                Ok(Entry::CommitStaged { .. }) => Entry::decode(kind::COMMIT, &pieces),
                other => other,
            };
            if let Ok(Entry::Commit(c)) = commit {
                let writes = c.effects.writes.iter().filter_map(|w| cell::written(w.object, &cell_classes));
                let writes: Vec<Write> = writes.collect();
                for w in &writes {
                    self.values.insert((w.object, w.value), e.stamp.0);
                }
                logged.push(Logged { stamp: e.stamp.0, op: c.head.op.to_string(), writes });
            }
        }
        logged
    }

    /// Where a version was written, as of the last [`Oracle::logged`].
    pub(crate) fn place_of(&self, object: Object, value: Value) -> Option<u64> {
        self.values.get(&(object, value)).copied()
    }
}

/// The list of members that an entry is.
fn list_of(entry: &Sealed) -> Option<Members> {
    let entry = (entry.kind == kind::MEMBERS).then(|| Entry::decode(entry.kind, &entry.payload))?;
    if let Ok(Entry::Members(list)) = entry { Some(list) } else { None }
}

/// The pages that a transaction leaves no room in are granted no more.
fn filled(granted: &mut BTreeMap<ClientId, Vec<PageId>>, head: &Head) {
    if !head.filled.is_empty() {
        granted.entry(head.op.client).or_default().retain(|page| !head.filled.contains(page));
    }
}
