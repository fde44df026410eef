//! A thread that watches objects, and writes down what it was told.
//!
//! The watch goes on over the ends of its process and of its connections, by its token. In the end the record
//! is compared with the history: the watch has reported every commit that changed something watched.

use tercel_engine::error::Error;
use tercel_engine::random::Random;
use tercel_engine::time::Now;
use tercel_engine::txn::{Change, Freshness, Options, Port, Source, Tx, Watch};
use tercel_verify::Object;
use tercel_wire::id::Stamp;
use tercel_wire::record::Ref;
use tercel_wire::token::Token;

use super::actor::HEALED_WAIT_US;
use super::cell::Cell;
use super::{CRADLE, Ground, KEYS, cell_id, key_id};
use crate::port::ActorPort;
use crate::watched::Watched;
use crate::world::Phase;

/// Watches, from one life of the process to the next.
pub(crate) struct WatchWorker<'s> {
    port: ActorPort<'s>,
    r: Random,
    /// The cells that it watches, the first sources.
    cells: Vec<usize>,
    /// The keys of the map that it watches, the last source.
    keys: std::ops::Range<u64>,
    watch: Option<Watch>,
    /// Where the watch stands: kept, as a file would be, when what was told is written down.
    since: Option<Token>,
    /// The stamp of the last change that this watch told.
    last: Stamp,
    /// Why it could not go on when it last could not.
    failed: Option<Error>,
    watched: Watched,
}

/// Subscriptions below which the thread watches a few cells only.
const SUBSCRIPTIONS_MIN: usize = 64;

/// Time of a wait for a change, in microseconds.
const WAIT_US: u64 = 20_000;
/// Time that opening a watch may take, in microseconds: all that is watched is read.
const OPEN_US: u64 = 2_000_000;

impl<'s> WatchWorker<'s> {
    pub(crate) fn new(port: ActorPort<'s>, seed: u64, ground: &Ground) -> WatchWorker<'s> {
        let mut r = Random::new(seed);
        let mut cells: Vec<usize> = (0..4).map(|_| r.below(ground.cells.len() as u64) as usize).collect();
        cells.sort_unstable();
        cells.dedup();
        let first = r.below(KEYS);
        let mut keys = first..(first + 16).min(KEYS);
        // A client that may have a few pages can watch objects of fewer.
        if port.scheduler.world().plan.server.subscriptions < SUBSCRIPTIONS_MIN {
            cells.truncate(2);
            keys = first..first;
        }
        WatchWorker {
            port,
            r,
            cells,
            keys,
            watch: None,
            since: None,
            last: Stamp::ZERO,
            failed: None,
            watched: Watched::default(),
        }
    }

    /// Watches until the world is healed, and then until it was told of all that was promised by then.
    pub(crate) fn work(&mut self, ground: &Ground) {
        loop {
            let phase = self.port.scheduler.world().phase();
            match phase {
                Phase::Before | Phase::Safety => self.step(ground),
                Phase::Healed => break,
                Phase::Closing | Phase::Over => return,
            }
            // A program that is slow finds changes that have joined.
            if self.r.below(4) == 0 {
                let us = self.r.below(30_000);
                self.port.scheduler.sleep(self.port.me, us);
            }
        }
        let (promised, end) = {
            let world = self.port.scheduler.world();
            (world.oracle.promised, world.time() + HEALED_WAIT_US)
        };
        while self.watch.is_none() || self.watched.upto < promised {
            if self.port.scheduler.world().is_over() {
                return;
            }
            if self.port.scheduler.world().time() > end {
                let Watched { upto, .. } = self.watched;
                let failed = &self.failed;
                return self.blame(format!(
                    "is never told of {promised} although everything works, but of {upto}: {failed:?}"
                ));
            }
            self.step(ground);
        }
        self.set_down();
    }

    fn say(&self, what: std::fmt::Arguments<'_>) {
        let (me, site) = (self.port.me.0, self.port.site);
        let mut world = self.port.scheduler.world();
        if world.trace.is_on() {
            world.say(format_args!("{site}.{me}    {what}"));
        }
    }

    fn blame(&self, what: String) {
        let site = self.port.site;
        let mut world = self.port.scheduler.world();
        if !world.is_over() {
            world.blame(format!("the watch of {site} {what}"));
        }
    }

    /// Hands the record over.
    fn set_down(&mut self) {
        let watched = std::mem::take(&mut self.watched);
        let mut world = self.port.scheduler.world();
        world.record.counts.told += watched.told.len() as u64;
        world.record.watched.push(watched);
    }

    fn step(&mut self, ground: &Ground) {
        let life = self.port.scheduler.world().life_of(self.port.site);
        if life != self.port.life {
            self.port.life = life;
            self.watch = None;
        }
        if self.r.below(64) == 0
            && let Some(mut watch) = self.watch.take()
        {
            watch.close(&self.port);
        }
        let until = |port: &ActorPort<'_>, us| Now(port.now().0 + us);
        let outcome = match &mut self.watch {
            None => self.open(ground, until(&self.port, OPEN_US)),
            Some(watch) => match watch.next(&self.port, until(&self.port, WAIT_US)) {
                Ok(None) => {
                    // All that was heard up to here was told.
                    self.watched.upto = watch.token().stamp;
                    Ok(())
                }
                Ok(Some(change)) => self.note(ground, change),
                Err(e) => Err(e),
            },
        };
        match (outcome, &self.watch) {
            (Err(e), _) => self.fail(e),
            // One that died in between has written nothing down.
            (Ok(()), Some(watch)) if !self.port.is_gone() => self.since = Some(watch.token()),
            (Ok(()), _) => {}
        }
    }

    fn open(&mut self, ground: &Ground, until: Now) -> Result<(), Error> {
        let mut sources: Vec<Source> =
            self.cells.iter().map(|i| Source::Object(ground.cells[*i].cast())).collect();
        let root = |tx: &Tx<'_>| {
            Ok(vec![(Vec::new(), tx.get_root_ref::<Cell>("cradle")?.unwrap_or(Ref::NULL).oref())])
        };
        if !self.keys.is_empty() {
            sources.push(Source::Query { run: Box::new(root), follows: true, is_complete: true });
            let run = ground.map.query(self.keys.clone());
            sources.push(Source::Query { run, follows: true, is_complete: false });
        }
        let watch = Watch::open(&self.port, sources, self.since, until)?;
        if self.since.is_none() {
            let root = (!self.keys.is_empty()).then_some(CRADLE);
            let objects = self.cells.iter().map(|i| cell_id(*i)).chain(root);
            let all = objects.chain(self.keys.clone().map(key_id));
            let from = watch.token().stamp;
            let by = self.port.site.to_string();
            self.watched = Watched { by, from, upto: from, told: all.map(|o| (o, from)).collect() };
        }
        self.say(format_args!("watches from {}", watch.token().stamp));
        (self.watch, self.last) = (Some(watch), Stamp::ZERO);
        Ok(())
    }

    fn fail(&mut self, e: Error) {
        match &e {
            Error::OtherHistory(_) => {
                self.set_down();
                if let Some(mut watch) = self.watch.take() {
                    watch.close(&self.port);
                }
                self.since = None;
            }
            Error::Unavailable(_) | Error::Timeout | Error::Conflict(_) => {}
            Error::Full(_) => self.port.scheduler.world().record.counts.full += 1,
            Error::Corrupt(_) if self.port.scheduler.world().excuses_damage() => {}
            _ => self.blame(format!("ends with {e}")),
        }
        self.failed = Some(e);
        let us = self.r.below(5_000);
        self.port.scheduler.sleep(self.port.me, us);
    }

    /// Writes a change down. A transaction that begins now sees it.
    fn note(&mut self, ground: &Ground, change: Change) -> Result<(), Error> {
        let Change { token, reference, source, .. } = change;
        if token.stamp < std::mem::replace(&mut self.last, token.stamp) {
            self.blame(format!("goes back to {}", token.stamp));
        }
        self.say(format_args!("is told of {}, at {}, source {source}", reference.oref(), token.stamp));
        let objects: Vec<Object> = match self.cells.get(source) {
            Some(i) if ground.cells[*i].oref() == reference.oref() => vec![cell_id(*i)],
            Some(i) => {
                self.blame(format!("tells of {} where cell {i} is watched", reference.oref()));
                return Ok(());
            }
            None if source == self.cells.len() => vec![CRADLE],
            None if reference.is_null() => self.keys.clone().map(key_id).collect(),
            None => {
                let object = self.object_at(reference.cast(), token);
                let key = ground.map.key_of(&change)?.map(key_id);
                if object.is_some() && object != key {
                    self.blame(format!("tells of {object:?} under the key of {key:?}"));
                }
                // The key tells it, too, of one that is not in the map any more, and is freed.
                object.or(key).into_iter().collect()
            }
        };
        for object in objects {
            match self.watched.told.get_mut(&object) {
                Some(last) => *last = token.stamp,
                None => self.blame(format!("tells of object {}, which is not watched", object.0)),
            }
        }
        Ok(())
    }

    /// The object that a reference of the map leads to, in whatever state is at hand; none if it is freed, or
    /// the process ends.
    fn object_at(&self, r: Ref<Cell>, token: Token) -> Option<Object> {
        let options = Options { freshness: Freshness::Stale, ..Options::default() };
        while !self.port.is_gone() {
            let read = Tx::begin(&self.port, options).and_then(|tx| {
                if tx.snapshot() < token.stamp {
                    self.blame(format!(
                        "tells of {}, and a transaction reads {}",
                        token.stamp,
                        tx.snapshot()
                    ));
                }
                Ok(Object(tx.get(r)?.object()))
            });
            match read {
                Ok(object) => return Some(object),
                Err(Error::NotFound(_)) => return None,
                Err(_) => self.port.scheduler.sleep(self.port.me, 1_000),
            }
        }
        None
    }
}
