//! Watching: receiving changes, instead of looking again and again.
//!
//! Watched objects were read in a transaction, and the home reports changes of everything that it read.
//! Objects are reported as they change. A *query*, for a root or a range of a map, is run again when
//! something that it read has changed. Its new result is compared with the one before, so it may be any code
//! that reads. A query whose results are of *parts*, as those of a range are of the leaves of its map, is run
//! again for the parts that have changed alone, as long as nothing else has that it read.
//!
//! The invariant, on which [`Watch::token`] rests: the changes ready to be reported were gathered at one
//! moment, under one lock, and are everything that changed up to then. So changes are reported in the order
//! of their stamps, and an earlier stamp never comes again.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tercel_wire::id::{Oref, Stamp};
use tercel_wire::record::{Any, Ref};
use tercel_wire::token::Token;

use super::{Heard, Home, Options, Port, Step, Tx, WatchId};
use crate::error::{Bound, Error};
use crate::table::{Map, Set};
use crate::time::Now;

/// A change of something that is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// A state that has the change: a transaction that begins with `at_least` this, here or elsewhere, sees
    /// it.
    pub token: Token,
    /// The object that changed; of a root or of a map's entry the object that it leads to now, or led to if
    /// it was removed from the map. Null: the root was removed, or the whole range may have changed.
    pub reference: Ref<Any>,
    /// Which of the things that are watched it is of, counted from 0 in the order in which they were named.
    pub source: usize,
    /// The key of an entry of a map, as the bytes that order it, which the map's `key_of` reads; the name of
    /// a root. `None` for an object, and where a whole range may have changed.
    pub key: Option<Arc<[u8]>>,
    /// Set if the root or the entry was removed.
    pub is_removed: bool,
}

/// The result of a query: references by key, the keys rising.
pub type Found = Vec<(Vec<u8>, Oref)>;

/// The node that a part of a result is of, and that part.
pub type FoundIn = (Oref, Found);

/// Reads what is watched.
pub trait Query: Send {
    /// Reads all of it, with the parts that have nothing yet. A query without parts gives one of the null
    /// reference.
    ///
    /// # Errors
    /// As reading.
    fn run(&mut self, tx: &Tx<'_>) -> Result<Vec<FoundIn>, Error>;

    /// The nodes that have parts, without reading these; none of a query without parts.
    ///
    /// # Errors
    /// As reading.
    fn outline(&mut self, _tx: &Tx<'_>) -> Result<Option<Vec<Oref>>, Error> {
        Ok(None)
    }

    /// Reads the part of a node; none if the node has none any more.
    ///
    /// # Errors
    /// As reading.
    fn part(&mut self, _tx: &Tx<'_>, _node: Oref) -> Result<Option<Found>, Error> {
        Ok(None)
    }
}

impl<F: FnMut(&Tx<'_>) -> Result<Found, Error> + Send> Query for F {
    fn run(&mut self, tx: &Tx<'_>) -> Result<Vec<FoundIn>, Error> {
        Ok(vec![(Oref::NULL, self(tx)?)])
    }
}

/// The source of a watch.
pub enum Source {
    /// An object, whether it exists yet or not.
    Object(Ref<Any>),
    /// The result of a query.
    Query {
        /// The query.
        run: Box<dyn Query>,
        /// Set if changes of the objects that it finds are reported as well.
        follows: bool,
        /// Set if it always finds the same keys, so that a report of all its results is complete.
        is_complete: bool,
    },
}

/// The key of an entry, as the bytes that order it.
type Key = Arc<[u8]>;

/// Objects, with the sources and the keys that led to them.
type Followed = Map<Oref, BTreeSet<(usize, Key)>>;

/// A query, and what it found.
struct Standing {
    source: usize,
    run: Box<dyn Query>,
    follows: bool,
    is_complete: bool,
    /// By node, the keys rising; none before the first run.
    parts: Option<Map<Oref, Found>>,
}

/// The parts of a query that are others than before.
struct Changed {
    /// The parts that were read, by node.
    parts: Vec<FoundIn>,
    /// The nodes that have no part any more.
    gone: Vec<Oref>,
    /// All entries of these, before and now, in order.
    before: Found,
    after: Found,
}

/// The keys that lead to an object now and did not before, and the other way round.
#[derive(Default)]
struct Moves {
    come: Vec<(usize, Key)>,
    gone: Vec<(usize, Key)>,
}

impl Moves {
    /// Says whether a key leads to the object now, of which so many did.
    fn is_followed_after(&self, before: usize) -> bool {
        before + self.come.len() > self.gone.len()
    }
}

impl Standing {
    fn has_part(&self, node: Oref) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.contains_key(&node))
    }

    /// Reads the parts of the nodes among these that have one; if more than parts has changed, also those
    /// that are new. None if one of the nodes has no part any more, and nothing says so.
    fn run_again(&mut self, tx: &Tx<'_>, batch: &[Oref], is_deep: bool) -> Result<Option<Changed>, Error> {
        let known = self.parts.get_or_insert_default();
        let outline = if is_deep { self.run.outline(tx)? } else { None };
        let (mut parts, mut gone) = (Vec::new(), Vec::new());
        match outline {
            Some(nodes) => {
                for node in nodes.iter().filter(|node| !known.contains_key(*node) || batch.contains(*node)) {
                    let Some(found) = self.run.part(tx, *node)? else { return Ok(None) };
                    parts.push((*node, found));
                }
                let nodes: Set<Oref> = nodes.into_iter().collect();
                gone.extend(known.keys().filter(|node| !nodes.contains(*node)));
                gone.sort_unstable();
            }
            // It has no parts.
            None if is_deep => parts = self.run.run(tx)?,
            None => {
                for node in batch.iter().filter(|node| known.contains_key(*node)) {
                    let Some(found) = self.run.part(tx, *node)? else { return Ok(None) };
                    parts.push((*node, found));
                }
            }
        }
        let read = parts.iter().map(|(node, _)| node).chain(&gone);
        let mut before: Found = read.filter_map(|node| known.get(node)).flatten().cloned().collect();
        parts.iter_mut().for_each(|(_, found)| found.sort_unstable());
        let mut after: Found = parts.iter().flat_map(|(_, found)| found).cloned().collect();
        before.sort_unstable();
        after.sort_unstable();
        Ok(Some(Changed { parts, gone, before, after }))
    }
}

/// A watch of a home: its objects and queries, and the changes that are ready to be reported.
pub struct Watch {
    id: WatchId,
    /// The objects, each with its source and the stamp of the reference that named it.
    objects: Map<Oref, (usize, Stamp)>,
    queries: Vec<Standing>,
    /// The objects that queries found and follow, with the queries' sources and the keys under which they
    /// found them.
    followed: Followed,
    /// The objects that queries read to find them.
    nodes: Set<Oref>,
    /// Objects that must be read before their changes are received.
    unread: BTreeSet<Oref>,
    /// Those of them that have changed since.
    changed: BTreeSet<Oref>,
    /// Set if queries must be run.
    is_due: bool,
    /// While the watch is opened: objects that are first read at a later state than this are reported.
    tells_from: Option<Stamp>,
    gathered: Gathered,
    ready: VecDeque<Change>,
    /// Everything up to here was reported, once nothing is ready.
    upto: Token,
    told: Token,
}

/// Changes to be reported, one for each object, root or entry.
#[derive(Default)]
struct Gathered {
    last: BTreeMap<(usize, Option<Key>), Told>,
}

/// The last change of something.
#[derive(Clone, Copy)]
struct Told {
    stamp: Stamp,
    oref: Oref,
    /// The stamp of the reported reference: of a state in which the object was there, if it was.
    seen: Stamp,
    is_removed: bool,
}

impl Gathered {
    /// Keeps the later of two changes of the same thing, and of two at one stamp the one that is reported
    /// later.
    fn tell(&mut self, source: usize, key: Option<&Key>, told: Told) {
        let of = (source, key.cloned());
        if self.last.get(&of).is_none_or(|last| last.stamp <= told.stamp) {
            self.last.insert(of, told);
        }
    }

    /// Tells of an entry that is there now, or not any more, between two states of a query.
    fn differs(
        &mut self,
        source: usize,
        (key, oref, is_there): (&[u8], Oref, bool),
        (before_at, at): (Stamp, Stamp),
    ) {
        let is_removed = !is_there || oref.is_null();
        // An object that is there no longer may be gone by now, and its place another's.
        let seen = if is_there { at } else { before_at };
        self.tell(source, Some(&key.into()), Told { stamp: at, oref, seen, is_removed });
    }
}

/// The entries of all parts, in order.
fn whole(parts: &Map<Oref, Found>) -> Found {
    let mut found: Found = parts.values().flatten().cloned().collect();
    found.sort_unstable();
    found
}

/// Says whether a node has a part once these changes are taken.
fn has_part_in(queries: &[Standing], changes: &[Changed], node: &Oref) -> bool {
    queries.iter().zip(changes).any(|(query, changed)| {
        let is_read = changed.parts.iter().any(|(of, _)| of == node);
        is_read || query.has_part(*node) && changed.gone.binary_search(node).is_err()
    })
}

/// Tells the entries that are in one of two results and not in the other: key, reference, and whether it is
/// there now. Of a key whose reference is another one, it tells the new one alone.
fn differ(before: &Found, found: &Found, mut tell: impl FnMut(&[u8], Oref, bool)) {
    let (mut old, mut new) = (before.iter().peekable(), found.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((old, _)), Some((new, _))) => old.cmp(new),
        };
        let was = if order.is_le() { old.next() } else { None };
        let is = if order.is_ge() { new.next() } else { None };
        match (was, is) {
            (Some((_, was)), Some((_, is))) if was == is => {}
            (_, Some((key, oref))) => tell(key, *oref, true),
            (Some((key, oref)), None) => tell(key, *oref, false),
            (None, None) => return,
        }
    }
}

/// Objects that are read in one transaction: few enough for a small cache.
const OBJECTS_AT_ONCE: usize = 256;

/// Makes a transaction one that waits for its server; its end is the caller's.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time that reading may take beyond the caller's time, in microseconds.
const READ_US: u64 = 1_000_000;

/// The pause before a state that changed while it was read is read again, in microseconds.
const AGAIN_US: u64 = 200;

impl Watch {
    /// Opens a watch. With a token it begins by telling everything that may have changed since.
    ///
    /// # Errors
    /// `OtherHistory` if the token is of another; `Full` if what is to be watched is too much; what a query
    /// says; `Timeout` or `Unavailable` if the home's server did not answer until `until`.
    pub fn open(
        port: &dyn Port,
        sources: Vec<Source>,
        since: Option<Token>,
        until: Now,
    ) -> Result<Watch, Error> {
        let mut watch = Watch::begin(port, sources, since)?;
        loop {
            match watch.open_further(port, since, until) {
                Ok(()) => return Ok(watch),
                Err(Error::Conflict(_)) if port.now() < until => port.back_off(AGAIN_US),
                Err(e) => {
                    watch.close(port);
                    return Err(e);
                }
            }
        }
    }

    /// Begins to open a watch, for a task: [`Watch::open_further`] reads what is watched.
    ///
    /// # Errors
    /// `Invalid` if a reference is null, or the home has no watches; that of a home that is closed.
    pub fn begin(port: &dyn Port, sources: Vec<Source>, since: Option<Token>) -> Result<Watch, Error> {
        if sources.iter().any(|source| matches!(source, Source::Object(r) if r.is_null())) {
            return Err(Error::Invalid("a null reference names nothing that could be watched".into()));
        }
        let mut opened = None;
        port.drive(None, &mut |home, _| {
            let id = home.watcher().map(|watcher| watcher.open());
            opened = id.map(|id| (id, home.token(Stamp::ZERO)));
            Step::Done
        })?;
        let (id, none) = opened.ok_or_else(no_watcher)?;
        let mut watch = Watch {
            id,
            objects: Map::default(),
            queries: Vec::new(),
            followed: Map::default(),
            nodes: Set::default(),
            unread: BTreeSet::new(),
            changed: BTreeSet::new(),
            is_due: false,
            tells_from: since.map(|since| since.stamp),
            gathered: Gathered::default(),
            ready: VecDeque::new(),
            upto: none,
            told: none,
        };
        for (number, source) in sources.into_iter().enumerate() {
            match source {
                Source::Object(r) => _ = watch.objects.entry(r.oref()).or_insert((number, r.stamp())),
                Source::Query { run, follows, is_complete } => {
                    watch.queries.push(Standing { source: number, run, follows, is_complete, parts: None });
                }
            }
        }
        watch.unread = watch.objects.keys().copied().collect();
        watch.is_due = !watch.queries.is_empty();
        Ok(watch)
    }

    /// Reads what is watched, with the token that it began with. It is open then; after an error this can be
    /// called again.
    ///
    /// # Errors
    /// As [`Watch::open`]; `Conflict` if something changed meanwhile.
    pub fn open_further(&mut self, port: &dyn Port, since: Option<Token>, until: Now) -> Result<(), Error> {
        self.gather(port, since, until)?;
        self.tells_from = None;
        match since {
            Some(_) if self.ready.is_empty() => {}
            Some(since) => self.told = since,
            None => {
                // What changed while the watch was being opened is not news.
                self.ready.clear();
                self.told = self.upto;
            }
        }
        Ok(())
    }

    /// The next change. Waits for it until `until`, also while the server is gone; then `None`. Reading what
    /// must be read after a change may take a second longer.
    ///
    /// # Errors
    /// `OtherHistory` if the space was put back to an earlier state, or another one is at the address: watch
    /// anew. What a query says. After an error the watch can be asked again, and nothing is lost by it.
    pub fn next(&mut self, port: &dyn Port, until: Now) -> Result<Option<Change>, Error> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                self.told = match self.ready.front() {
                    // Some changes of this commit are still to be reported.
                    Some(next) if next.token.stamp == change.token.stamp => self.told,
                    Some(_) => change.token,
                    None => self.upto,
                };
                return Ok(Some(change));
            }
            let outcome = match self.has_work() {
                true => Ok(()),
                false => self.wait(port, until),
            };
            // Reading is begun anew by the next call if it is broken off, so it has a time of its own.
            let read_until = until.max(port.now().plus_us(READ_US));
            match outcome.and_then(|()| self.gather(port, None, read_until)) {
                Ok(()) => continue,
                Err(Error::Conflict(_) | Error::Full(Bound::Transactions)) if port.now() < until => {
                    port.back_off(AGAIN_US);
                }
                Err(Error::Unavailable(_) | Error::Timeout) if port.now() < until => port.pause(),
                Err(
                    Error::Conflict(_)
                    | Error::Full(Bound::Transactions)
                    | Error::Unavailable(_)
                    | Error::Timeout,
                ) => return Ok(None),
                // Told however short the caller's time is, and at a pace that a loop can stand.
                Err(e) => {
                    if e.is_outage() {
                        port.pause();
                    }
                    return Err(e);
                }
            }
        }
    }

    /// A watch that begins since this token reports everything that this one has not reported yet.
    pub fn token(&self) -> Token {
        self.told
    }

    /// The number that the home knows it by.
    pub fn id(&self) -> WatchId {
        self.id
    }

    /// Ends it.
    pub fn close(&mut self, port: &dyn Port) {
        let closed = port.drive(None, &mut |home, _| {
            if let Some(watcher) = home.watcher() {
                watcher.close(self.id);
            }
            Step::Done
        });
        // A home that is closed keeps no watches.
        closed.ok();
    }

    fn has_work(&self) -> bool {
        self.is_due || !self.changed.is_empty() || !self.unread.is_empty() || !self.gathered.last.is_empty()
    }

    /// Waits until a change is received.
    fn wait(&mut self, port: &dyn Port, until: Now) -> Result<(), Error> {
        let mut outcome = Ok(Vec::new());
        let mut quiet_upto = None;
        let driven = port.drive(Some(until), &mut |home, _| {
            let Some(watcher) = home.watcher() else {
                outcome = Err(no_watcher());
                return Step::Done;
            };
            match watcher.take(self.id) {
                Ok(heard) if heard.is_empty() => match watcher.refusal() {
                    None => {
                        let upto = watcher.watermark();
                        quiet_upto = Some(home.token(upto));
                        return Step::WaitForNews(self.id);
                    }
                    Some(e) => outcome = Err(e),
                },
                heard => outcome = heard,
            }
            Step::Done
        });
        if let Some(upto) = quiet_upto {
            // Nothing is ready either, so everything up to here was reported.
            (self.upto, self.told) = (upto, upto);
        }
        driven?;
        outcome?.into_iter().for_each(|heard| self.note(heard));
        Ok(())
    }

    fn note(&mut self, Heard { oref, changed, lost }: Heard) {
        let told = changed.map(|stamp| Told { stamp, oref, seen: stamp, is_removed: false });
        if let Some((source, named)) = self.objects.get(&oref) {
            if let Some(told) = told {
                self.gathered.tell(*source, None, Told { seen: told.seen.min(*named), ..told });
            }
            if lost {
                self.unread.insert(oref);
            }
        }
        if let Some(found) = self.followed.get(&oref) {
            for (source, key) in found {
                if let Some(told) = told {
                    self.gathered.tell(*source, Some(key), told);
                }
            }
            self.is_due |= lost;
        }
        if self.nodes.contains(&oref) {
            self.changed.insert(oref);
            self.is_due |= lost;
        }
    }

    /// Reads what must be read, and makes ready what changed up to one moment.
    fn gather(&mut self, port: &dyn Port, since: Option<Token>, until: Now) -> Result<(), Error> {
        // With a time of its own, beginning waits for a server that is gone.
        let options = Options { at_least: since, timeout: Some(PATIENCE), ..Options::default() };
        loop {
            while !self.unread.is_empty() {
                self.read_objects(&Tx::begin_until(port, &options, Some(until))?)?;
            }
            let upto = if self.is_due {
                self.run_queries(&Tx::begin_until(port, &options, Some(until))?)?
            } else if !self.changed.is_empty() {
                match self.run_parts(&Tx::begin_until(port, &options, Some(until))?)? {
                    Some(upto) => upto,
                    None => continue,
                }
            } else {
                self.take(port, until)?
            };
            // Between the two, more changes may have been received that must be read.
            if !self.is_due && self.changed.is_empty() && self.unread.is_empty() {
                self.make_ready(upto);
                return Ok(());
            }
        }
    }

    /// Reads some objects whose changes are not received.
    fn read_objects(&mut self, tx: &Tx<'_>) -> Result<(), Error> {
        let some: Vec<Oref> = self.unread.iter().copied().take(OBJECTS_AT_ONCE).collect();
        some.iter().try_for_each(|oref| tx.touch(*oref))?;
        let mut at = Err(no_watcher());
        tx.port.drive(tx.until, &mut |home, _| {
            at = look(home, self.id, tx, &some, &[]).map(|()| tx.scope.snapshot());
            Step::Done
        })?;
        let at = at?;
        for oref in some {
            self.unread.remove(&oref);
            if self.tells_from.is_some_and(|from| at > from)
                && let Some((source, named)) = self.objects.get(&oref)
            {
                let told = Told { stamp: at, oref, seen: at.min(*named), is_removed: false };
                self.gathered.tell(*source, None, told);
            }
        }
        Ok(())
    }

    /// Runs the queries, all in one transaction, and gives the moment at which what they found was so.
    fn run_queries(&mut self, tx: &Tx<'_>) -> Result<Token, Error> {
        let mut found = Vec::with_capacity(self.queries.len());
        for query in &mut self.queries {
            let mut parts = query.run.run(tx)?;
            parts.iter_mut().for_each(|(_, entries)| entries.sort_unstable());
            found.push(parts);
        }
        let mut nodes = Vec::new();
        tx.port.drive(tx.until, &mut |home, _| {
            home.read_set(&tx.scope, &mut nodes);
            Step::Done
        })?;
        let nodes: Set<Oref> = nodes.into_iter().collect();
        let mut followed = Followed::default();
        for (query, found) in self.queries.iter().zip(&found).filter(|(query, _)| query.follows) {
            let entries = found.iter().flat_map(|(_, entries)| entries);
            for (key, oref) in entries.filter(|(_, oref)| !oref.is_null()) {
                let under = followed.entry(*oref).or_default();
                if under.is_empty() {
                    tx.touch(*oref)?;
                }
                under.insert((query.source, key.as_slice().into()));
            }
        }
        let read: Vec<Oref> = sorted(nodes.iter().chain(followed.keys()));
        let is_read = |oref: &&Oref| {
            nodes.contains(*oref) || followed.contains_key(*oref) || self.objects.contains_key(*oref)
        };
        let left: Vec<Oref> = sorted(self.nodes.iter().chain(self.followed.keys()).filter(|o| !is_read(o)));
        let mut outcome = Err(no_watcher());
        tx.port.drive(tx.until, &mut |home, _| {
            outcome = look(home, self.id, tx, &read, &left).and_then(|()| {
                let heard = home.watcher().map_or(Ok(Vec::new()), |watcher| watcher.take(self.id))?;
                Ok((heard, home.token(tx.scope.snapshot())))
            });
            Step::Done
        })?;
        let (heard, upto) = outcome?;
        for (i, parts) in found.into_iter().enumerate() {
            self.compare(i, parts.into_iter().collect(), upto.stamp);
        }
        (self.nodes, self.followed) = (nodes, followed);
        heard.into_iter().for_each(|heard| self.note(heard));
        // The changes received by now, of the objects that the queries read, are in their results.
        self.changed.clear();
        self.is_due = false;
        Ok(upto)
    }

    /// Runs the queries as far as the changed nodes want it, and gives the moment at which their results were
    /// so; none if more has changed meanwhile.
    fn run_parts(&mut self, tx: &Tx<'_>) -> Result<Option<Token>, Error> {
        let batch: Vec<Oref> = self.changed.iter().copied().collect();
        // Another node leads to parts, or is of a query without.
        let has_part = |node: &Oref| self.queries.iter().any(|query| query.has_part(*node));
        let is_deep = !batch.iter().all(has_part);
        let mut changes = Vec::with_capacity(self.queries.len());
        for query in &mut self.queries {
            match query.run_again(tx, &batch, is_deep)? {
                Some(changed) => changes.push(changed),
                None => {
                    // A leaf is none any more.
                    self.is_due = true;
                    return Ok(None);
                }
            }
        }
        let moves = self.moves(&changes);
        let is_new = |oref: &&Oref| !self.followed.contains_key(*oref) && moves[*oref].is_followed_after(0);
        let new: Vec<Oref> = sorted(moves.keys().filter(is_new));
        let mut nodes = Vec::new();
        tx.port.drive(tx.until, &mut |home, _| {
            home.read_set(&tx.scope, &mut nodes);
            Step::Done
        })?;
        new.iter().try_for_each(|oref| tx.touch(*oref))?;
        // All that leads to parts was read, and nothing else does.
        let is_dropped =
            |node: &&Oref| is_deep && !nodes.contains(*node) && !has_part_in(&self.queries, &changes, node);
        let dropped = sorted(self.nodes.iter().filter(is_dropped));
        let is_unfollowed = |oref: &&Oref| {
            let before = self.followed.get(*oref).map_or(0, BTreeSet::len);
            !moves[*oref].is_followed_after(before) && !self.nodes.contains(*oref)
        };
        let left = moves.keys().filter(is_unfollowed).chain(&dropped);
        let left = sorted(left.filter(|oref| !self.objects.contains_key(*oref) && !nodes.contains(oref)));
        let read = sorted(nodes.iter().chain(&new));
        let (mut outcome, mut heard) = (Err(no_watcher()), Vec::new());
        tx.port.drive(tx.until, &mut |home, _| {
            let Some(watcher) = home.watcher() else { return Step::Done };
            match watcher.take(self.id) {
                Ok(taken) => heard = taken,
                Err(e) => {
                    outcome = Err(e);
                    return Step::Done;
                }
            }
            // Parts that were not read anew are as they were only if nothing of them has changed.
            let is_other = |heard: &Heard| {
                heard.lost || self.nodes.contains(&heard.oref) && batch.binary_search(&heard.oref).is_err()
            };
            outcome = match heard.iter().any(is_other) {
                true => Ok(None),
                false => {
                    look(home, self.id, tx, &read, &left).map(|()| Some(home.token(tx.scope.snapshot())))
                }
            };
            Step::Done
        })?;
        if let Ok(Some(upto)) = &outcome {
            for (i, changed) in changes.into_iter().enumerate() {
                self.tell_changed(i, changed, upto.stamp);
            }
            for (oref, Moves { come, gone }) in moves {
                let under = self.followed.entry(oref).or_default();
                gone.iter().for_each(|of| _ = under.remove(of));
                under.extend(come);
                if under.is_empty() {
                    self.followed.remove(&oref);
                }
            }
            dropped.iter().for_each(|node| _ = self.nodes.remove(node));
            self.nodes.extend(nodes);
        }
        heard.into_iter().for_each(|heard| self.note(heard));
        if let Ok(Some(_)) = &outcome {
            // The changes received by now of these nodes are in their parts, and nothing else has changed.
            self.changed.clear();
        }
        outcome
    }

    /// By object that queries follow, the keys that lead to it now and did not before, and the other way
    /// round.
    fn moves(&self, changes: &[Changed]) -> Map<Oref, Moves> {
        let mut moves: Map<Oref, Moves> = Map::default();
        for (query, changed) in self.queries.iter().zip(changes).filter(|(query, _)| query.follows) {
            let is_missing =
                |of: &Found, entry: &&(Vec<u8>, Oref)| !entry.1.is_null() && of.binary_search(entry).is_err();
            let Changed { before, after, .. } = changed;
            let under = |key: &[u8]| (query.source, Key::from(key));
            for (key, oref) in before.iter().filter(|entry| is_missing(after, entry)) {
                moves.entry(*oref).or_default().gone.push(under(key));
            }
            for (key, oref) in after.iter().filter(|entry| is_missing(before, entry)) {
                moves.entry(*oref).or_default().come.push(under(key));
            }
        }
        moves
    }

    /// Takes the new result of a query, and tells what is different in it.
    fn tell_changed(&mut self, query: usize, changed: Changed, at: Stamp) {
        let Standing { source, parts, .. } = &mut self.queries[query];
        let (source, before_at) = (*source, self.upto.stamp);
        if let Some(parts) = parts {
            changed.gone.iter().for_each(|node| _ = parts.remove(node));
            parts.extend(changed.parts);
        }
        differ(&changed.before, &changed.after, |key, oref, is_there| {
            self.gathered.differs(source, (key, oref, is_there), (before_at, at));
        });
    }

    /// Tells what a query found that it did not find before, and the other way round.
    fn compare(&mut self, query: usize, parts: Map<Oref, Found>, at: Stamp) {
        let Standing { source, is_complete, .. } = self.queries[query];
        let before_at = self.upto.stamp;
        let found = whole(&parts);
        let before = self.queries[query].parts.replace(parts);
        let gathered = &mut self.gathered;
        let mut tell = |key: &[u8], oref: Oref, is_there: bool| {
            gathered.differs(source, (key, oref, is_there), (before_at, at));
        };
        match before {
            Some(before) => differ(&whole(&before), &found, tell),
            None => match self.tells_from {
                Some(from) if at > from && is_complete => {
                    found.iter().for_each(|(key, oref)| tell(key, *oref, true));
                }
                Some(from) if at > from => {
                    let all = Told { stamp: at, oref: Oref::NULL, seen: at, is_removed: false };
                    gathered.tell(source, None, all);
                }
                _ => {}
            },
        }
    }

    /// Takes the changes received, and gives the moment up to which they are complete.
    fn take(&mut self, port: &dyn Port, until: Now) -> Result<Token, Error> {
        let mut taken = Err(no_watcher());
        port.drive(Some(until), &mut |home, _| {
            let Some(watcher) = home.watcher() else { return Step::Done };
            let (heard, upto) = (watcher.take(self.id), watcher.watermark());
            taken = heard.map(|heard| (heard, home.token(upto)));
            Step::Done
        })?;
        let (heard, upto) = taken?;
        heard.into_iter().for_each(|heard| self.note(heard));
        Ok(upto)
    }

    fn make_ready(&mut self, upto: Token) {
        let mut gathered: Vec<_> = std::mem::take(&mut self.gathered).last.into_iter().collect();
        gathered.sort_by_key(|(_, told)| told.stamp);
        self.ready.extend(gathered.into_iter().map(|((source, key), told)| Change {
            token: Token { stamp: told.stamp, ..upto },
            reference: Ref::new(told.oref).read_at(told.seen),
            source,
            key,
            is_removed: told.is_removed,
        }));
        self.upto = upto;
        if self.ready.is_empty() {
            self.told = upto;
        }
    }
}

impl Tx<'_> {
    /// Counts an object as read, whatever it is, there or not.
    fn touch(&self, oref: Oref) -> Result<(), Error> {
        self.search(oref, |home, now, search| match home.watcher() {
            Some(watcher) => watcher.touch(now, &self.scope, oref, search),
            None => Some(Err(no_watcher())),
        })
    }
}

/// If what the transaction read still holds, the watch looks at it from now on.
fn look(home: &mut dyn Home, id: WatchId, tx: &Tx<'_>, read: &[Oref], left: &[Oref]) -> Result<(), Error> {
    home.recheck(&tx.scope)?;
    let watcher = home.watcher().ok_or_else(no_watcher)?;
    watcher.look_at(id, read)?;
    watcher.let_go(id, left);
    Ok(())
}

fn sorted<'a>(orefs: impl Iterator<Item = &'a Oref>) -> Vec<Oref> {
    let mut orefs: Vec<Oref> = orefs.copied().collect();
    orefs.sort_unstable();
    orefs.dedup();
    orefs
}

fn no_watcher() -> Error {
    Error::Invalid("changes are watched at a client: connect one to this server".into())
}
